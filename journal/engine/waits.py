"""What a waiting run waits for, in words, and the command that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from runjournal.projections import shell
from runjournal.projections.state import RunState
from runjournal.projections.status import STANDSTILLS

MENDS: Final = (
    "Nobody is asked if the tool says more of itself: read_only=True (it only looks), not_sent=(SomeError,) (nothing "
    'was done when it raises that), on_unknown="tell" (the agent hears of it, and may send it again)'
)
"""What keeps a person from being asked about a call of a tool the next time."""


class Awaited(NamedTuple):
    """One thing that a run waits for: `what` says it in words, each of `answers` is a command line that answers it.

    `mend` says what keeps it from being asked the next time, "" if nothing does.
    """

    kind: str
    id: str
    what: str
    answers: list[str]
    mend: str = ""


def awaited(run_id: str, state: RunState, wait: Mapping[str, Any], *, db: str = "") -> Awaited:
    """Return a wait of a run, {kind, id}, in words for people; with its args, if it has them.

    `db` names the store in the command lines.
    """
    kind, key = str(wait["kind"]), str(wait["id"])
    if kind in STANDSTILLS:
        why = f": {state.status.why}" if state.status.why else ""
        return Awaited(kind, key, f"{STANDSTILLS[kind]} ({key}){why}", [shell.command("resume", run_id, db=db)])
    question, call = state.approvals.known.get(key), state.calls.known.get(key)
    if kind == "timer":
        return Awaited(kind, key, timer_words(state, wait), [])
    if question is not None:
        choices: list[str] = list(wait.get("choices") or ())
        answer = f"one of {', '.join(choices)}, or a no," if choices else "a yes or no"
        what = f"{answer} to {shell.asked(repr(question.action), wait.get('args'))}"
        if question.risk:
            what += f", risk {question.risk}"
        if question.expires_at:
            what += f", until {question.expires_at}"
        return Awaited(kind, key, what, shell.answers(run_id, key, choices, db=db))
    if call is not None:
        what = f"whether {shell.asked(call.tool, wait.get('args'))} happened, sent {call.started_at}"
        return Awaited(kind, key, what, shell.resolutions(run_id, key, db=db), MENDS)
    if kind == "signal":
        until = f", until {state.status.due_at}" if state.status.due_at else ""
        return Awaited(kind, key, f"the signal {key!r}{until}", [shell.command("signal", run_id, key, db=db)])
    return Awaited(kind, key, f"{kind} {key}", [])


def timer_words(state: RunState, wait: Mapping[str, Any]) -> str:
    """Return what a wait for a time is about, in words."""
    key = str(wait["id"])
    call, sleeps = state.calls.known.get(key), state.steps.open.timers if state.steps.open else {}
    if call is None:
        return f"a sleep, until {sleeps[key][0]}" if key in sleeps else f"a time, {state.status.due_at}"
    why = f" ({wait['reason']})" if wait.get("reason") else ""
    return f"{call.tool}, whose attempt {call.attempt} failed{why}, to be tried again at {call.retry_at}"


def only_timers(state: RunState) -> bool:
    """Return whether a run waits for nothing but times."""
    return bool(state.status.waits) and all(wait["kind"] == "timer" for wait in state.status.waits)
