"""What a waiting run waits for, in words, and the verb that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from runjournal.projections.state import RunState
from runjournal.projections.status import STANDSTILLS


class Awaited(NamedTuple):
    """One thing that a run waits for: `what` says it in words, `answer` is the call of a `Journal` that answers it."""

    kind: str
    id: str
    what: str
    answer: str


def resolve_call(run_id: str, call_id: str) -> str:
    """Return the call of a `Journal` that says what became of a call."""
    return f"resolve({run_id!r}, {call_id!r}, 'happened', result) or 'did_not_happen'"


def awaited(run_id: str, state: RunState, wait: Mapping[str, Any]) -> Awaited:
    """Return a wait of a run, {kind, id}, in words for people."""
    kind, key = str(wait["kind"]), str(wait["id"])
    if kind in STANDSTILLS:
        why = f": {state.status.why}" if state.status.why else ""
        return Awaited(kind, key, f"{STANDSTILLS[kind]} ({key}){why}", f"resume({run_id!r})")
    question, call = state.approvals.known.get(key), state.calls.known.get(key)
    if question is not None:
        args = f"({run_id!r}, {key!r})"
        return Awaited(kind, key, f"a yes or no to {question.action!r}", f"approve{args} or reject{args}")
    if call is not None:
        sent = f"whether {call.tool} happened, sent {call.started_at}"
        return Awaited(kind, key, sent, resolve_call(run_id, key))
    if kind == "signal":
        return Awaited(kind, key, f"the signal {key!r}", f"signal({run_id!r}, {key!r}, payload)")
    return Awaited(kind, key, f"{kind} {key}", "")
