"""The rows of the index tables that events stand for: effects, unknown calls, ends of steps.

The guarded append writes them beside the events; `db rebuild` makes them again; the audit compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import orjson

from runjournal.log import events as e
from runjournal.log.base import BlobRef, RecordedEvent
from runjournal.log.policies import EFFECT_FREE
from runjournal.log.store import Bill, Effect, StepEnd, Unknown

from . import bills
from .calls import Call
from .state import RunState

BILLED: Final = frozenset(
    {"model.started", "model.completed", "model.failed", "model.recounted", "tool.completed", "tool.failed"}
    | {"cost.recorded", "cost.repriced", "step.completed", "step.failed"}
    | {"run.completed", "run.failed", "run.cancelled", "run.purged"}
)
"""Types that a row of `bills` may come from."""
_LOSING: Final = BILLED - {
    "model.completed", "model.failed", "model.recounted", "tool.completed", "tool.failed", "cost.recorded",
    "cost.repriced",
}  # fmt: skip
"""Those behind which nobody will say any more what a call has cost, in a run that somebody owns."""
INDEXED: Final = BILLED | {"step.started", "tool.started", "tool.resolved"}
"""Types that a row may come from, or that it depends on."""


@dataclass(slots=True)
class Rows:
    """Rows to add; `known` are the (scope, key) whose row in `unknowns` goes away."""

    effects: list[Effect] = field(default_factory=list[Effect])
    unknown: list[Unknown] = field(default_factory=list[Unknown])
    known: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    step_ends: list[StepEnd] = field(default_factory=list[StepEnd])
    bills: list[Bill] = field(default_factory=list[Bill])


def apply(state: RunState, record: RecordedEvent, rows: Rows, args_at: Callable[[int], object]) -> None:
    """Fold one event into the state, and add its rows to `rows`.

    `args_at(seq)` returns the args of the tool.started there; a seq of 0 and below counts back in the run's base.

    A run that nobody owns has bills alone, of what was told: nothing is ever sent again from it.
    """
    if record.type not in INDEXED:
        state.apply(record)
        return
    event = record.event
    if isinstance(event, e.RunPurged):
        state.apply(record)
        rows.bills += bills.of_purged(record, event)
        return
    unowned = state.status.unowned
    state.costs.billed = None if unowned and record.type in _LOSING else rows.bills
    try:
        if unowned:
            state.apply(record)
        else:
            _apply(state, record, rows, args_at)
    finally:
        state.costs.billed = None


def _apply(state: RunState, record: RecordedEvent, rows: Rows, args_at: Callable[[int], object]) -> None:
    event = record.event
    step = state.steps.open
    if step is not None and isinstance(event, e.StepCompleted | e.StepFailed):
        ok = int(isinstance(event, e.StepCompleted))
        rows.step_ends.append(StepEnd(record.run_id, step.id, step.attempt, step.kind, ok, record.seq))
    dropped = _outbox_of(state, step.id) if step is not None and isinstance(event, e.StepFailed) else {}
    call_id = getattr(event, "call_id", None)
    call = state.calls.known.get(call_id) if call_id else None
    was_unresolved, was_completed = bool(call and call.unresolved), bool(call and call.status == "completed")
    state.apply(record)
    for key, each in dropped.items():
        if not each.unresolved:
            _no_longer_unknown(rows, state.status.scope, key)
    if call_id and (call := call or state.calls.known.get(call_id)) is not None:
        scope, unresolved = state.status.scope, call.unresolved
        if unresolved and not was_unresolved:
            rows.unknown.append(Unknown(scope, call_id, record.run_id, record.seq))
        elif was_unresolved and not unresolved:
            _no_longer_unknown(rows, scope, call_id)
        if call.has_effect and not was_completed:
            private = state.status.private  # a digest of few possible arguments would tell them
            digest = "" if private else args_sha256(args_at(call.args_seq - state.offset))
            rows.effects.append(Effect(scope, call_id, call.tool, digest, record.run_id, record.seq))


def _outbox_of(state: RunState, step: str) -> dict[str, Call]:
    """Return the calls of the outbox that a step has asked for: if it fails, they are never delivered."""
    calls = state.calls.of_step(step)
    return {key: call for key, call in calls.items() if call.policy == "outbox" and call.unresolved}


def _no_longer_unknown(rows: Rows, scope: str, call_id: str) -> None:
    for row in rows.unknown:
        if (row.scope, row.key) == (scope, call_id):  # it came with this very append, at most once
            rows.unknown.remove(row)
            return
    rows.known.append((scope, call_id))


_OF_CALLS: Final = (e.ModelStarted, e.ToolStarted, e.ToolCompleted, e.ToolFailed)


def has_no_row(state: RunState, event: e.Event) -> bool:
    """Return whether an event of INDEXED is known to have no row: a step begins, or a call may happen twice."""
    if not isinstance(event, _OF_CALLS):
        return isinstance(event, e.StepStarted)
    if isinstance(event, e.ToolStarted) and (event.policy not in EFFECT_FREE or event.own_key):
        return False
    call = state.calls.known.get(event.call_id)
    if isinstance(event, e.ModelStarted):
        return call is None or call.status != "open" or call.priced
    if isinstance(event, e.ToolCompleted | e.ToolFailed) and (event.usage is not None or event.cost is not None):
        return False
    if call is None:
        return isinstance(event, e.ToolStarted)
    return call.policy in EFFECT_FREE and not (call.own_key or call.maybe)


def args_sha256(args: object) -> str:
    """Return SHA-256 in hex of a call's args: of their JSON with sorted keys; of a lost blob, the hash that it had.

    It tells whether two calls are the same one. Equal args are the same in whatever order; the args themselves keep
    theirs.
    """
    if isinstance(args, BlobRef):
        return args.sha256
    return hashlib.sha256(orjson.dumps(args, option=orjson.OPT_SORT_KEYS)).hexdigest()
