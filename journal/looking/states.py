"""The state of a run at a point, and as people think of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from runjournal.logbook import Logbook
from runjournal.projections.calls import Call, Counts
from runjournal.projections.state import RunState
from runjournal.projections.status import reference
from runjournal.writing import folding, purged

from .progress import Progress, told


class Folded(NamedTuple):
    """A folded state, and the seq of the checkpoint that the fold went on from: 0, if it began at the first event."""

    state: RunState
    since: int


def state_at(
    journal: Logbook,
    run_id: str,
    at: int | None = None,
    *,
    whole: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Folded:
    """Return the state after the event `at` (the newest: None), from the newest usable checkpoint.

    With `whole`, it is folded from the start. What is folded is verified: its links, and that no event is missing.
    Raises RunNotFound, InvalidArgument (no such seq), CorruptLog, Unfoldable.
    """
    upto = purged.checked_seq(journal.store, journal.head(run_id), at)
    state, since, chain = folding.start(journal.store, journal.store, run_id, upto, whole=whole)
    records = folding.chained(journal.store, run_id, since, upto, chain)
    return Folded(state.fold(told(records, upto - since, progress), force=force), since)


def state_as_json(state: RunState) -> dict[str, Any]:
    """Return a folded state as people think of it; `RunState.dump` is the exact one.

    Context is as the open step sees it.
    """
    extent, step, status = state.transcript.view, state.steps.open, state.status
    return {
        "run_id": state.run_id,
        "seq": state.seq,
        "hash": state.hash,
        "at": state.at,
        "status": status.status,
        "kind": status.kind,
        "title": status.title,
        "owner": status.owner,
        "epoch": status.epoch,
        "round": status.round,
        "waits": status.waits,
        "base": status.base,
        "due_at": status.due_at,
        "cancel": status.cancel,
        "error": status.error,
        "cause": status.cause,
        "step": step.dump() if step else None,
        "next_step_index": state.steps.next_index,
        "steps_completed": state.steps.completed_count,
        "steps_failed": state.steps.failed_count,
        "overlay_open": state.overlay_open,
        "messages": dict(sorted(extent.roles.items())),
        "message_range": [extent.first_seq, extent.last_seq] if extent.count else None,
        "compacted": extent.compacted,
        "memory": {key: reference(value) for key, value in state.memory.view.items()},
        "plan": state.plan.tasks,
        "calls": _counts(state.calls.tools),
        "model_calls": _counts(state.calls.models),
        "open_calls": _listed(state.calls.open()),
        "unresolved_calls": _listed(state.calls.unresolved()),
        "questions": [
            {"approval_id": key, "action": q.action, "asked_at": q.asked_at}
            for key, q in state.approvals.open().items()
        ],
        "signals": [{"seq": seq, "signal_id": key, "name": name} for seq, key, name in state.inbox.signals],
        "children": dict(sorted(state.children.statuses.items())),
        "prompt_fingerprint": state.prompt.fingerprint,
        "usage": state.costs.usage(),
        "cost": {currency: str(state.costs.amount(currency)) for currency in sorted(state.costs.money)},
    }


def _counts(counts: Counts) -> dict[str, int]:
    return {**counts.dump(), "in_flight": counts.in_flight}


def _listed(calls: Mapping[str, Call]) -> list[dict[str, Any]]:
    return [
        {"call_id": key, "tool": call.tool, "policy": call.policy, "attempt": call.attempt, "status": call.status}
        for key, call in calls.items()
    ]
