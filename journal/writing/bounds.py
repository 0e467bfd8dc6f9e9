"""The bounds of a folded state: what makes it greater than a run may have is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from runjournal.log import events as e
from runjournal.log.base import RecordedEvent
from runjournal.log.errors import TooLarge
from runjournal.log.limits import inbox_signals_max, memory_bytes_max, plan_tasks_max, step_calls_max, tags_max
from runjournal.projections.state import RunState


def _check_tags(_: RunState, rec: RecordedEvent) -> None:
    if isinstance(rec.event, e.RunQueued | e.RunOpened) and len(rec.event.tags or ()) > tags_max:
        raise TooLarge(f"run {rec.run_id}: {len(rec.event.tags or ())} tags, a run may have tags_max = {tags_max}")


def _check_context(state: RunState, rec: RecordedEvent) -> None:
    if state.memory.bytes > memory_bytes_max:
        raise TooLarge(
            f"run {rec.run_id}: the working memory would have {state.memory.bytes} bytes, "
            f"memory_bytes_max = {memory_bytes_max}"
        )
    if len(state.plan.view) > plan_tasks_max:
        raise TooLarge(f"run {rec.run_id}: the plan would have more than plan_tasks_max = {plan_tasks_max} tasks")


def _check_calls(state: RunState, rec: RecordedEvent) -> None:
    if len(state.calls.known) > step_calls_max:
        raise TooLarge(f"run {rec.run_id}: more than step_calls_max = {step_calls_max} calls are open or in one step")


def _check_signals(state: RunState, rec: RecordedEvent) -> None:
    if len(state.inbox.signals) > inbox_signals_max:
        raise TooLarge(f"run {rec.run_id}: more than inbox_signals_max = {inbox_signals_max} signals wait")


BOUNDS: Final[Mapping[str, Callable[[RunState, RecordedEvent], None]]] = {
    "run.queued": _check_tags,
    "run.opened": _check_tags,
    "memory.set": _check_context,
    "plan.set": _check_context,
    "plan.updated": _check_context,
    "model.started": _check_calls,
    "tool.started": _check_calls,
    "signal.received": _check_signals,
}
"""What raises TooLarge if the state, with an event of this type folded in, is greater than it may be."""
