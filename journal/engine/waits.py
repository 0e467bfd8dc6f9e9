"""What a waiting run waits for, in words, and the command that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from runjournal.projections import shell
from runjournal.projections.state import RunState
from runjournal.projections.status import STANDSTILLS


class Awaited(NamedTuple):
    """One thing that a run waits for: `what` says it in words, `answer` is the command line that answers it."""

    kind: str
    id: str
    what: str
    answer: str


def awaited(run_id: str, state: RunState, wait: Mapping[str, Any]) -> Awaited:
    """Return a wait of a run, {kind, id}, in words for people."""
    kind, key = str(wait["kind"]), str(wait["id"])
    if kind in STANDSTILLS:
        why = f": {state.status.why}" if state.status.why else ""
        return Awaited(kind, key, f"{STANDSTILLS[kind]} ({key}){why}", shell.command("resume", run_id))
    question, call = state.approvals.known.get(key), state.calls.known.get(key)
    if question is not None:
        return Awaited(kind, key, f"a yes or no to {question.action!r}", shell.approve(run_id, key))
    if call is not None:
        return Awaited(kind, key, f"whether {call.tool} happened, sent {call.started_at}", shell.resolve(run_id, key))
    if kind == "signal":
        return Awaited(kind, key, f"the signal {key!r}", shell.command("signal", run_id, key))
    return Awaited(kind, key, f"{kind} {key}", "")
