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
        return Awaited(kind, key, f"the signal {key!r}", [shell.command("signal", run_id, key, db=db)])
    return Awaited(kind, key, f"{kind} {key}", [])
