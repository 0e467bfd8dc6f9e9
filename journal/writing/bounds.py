"""The bounds of a folded state: what makes it greater than a run may have is refused."""

from __future__ import annotations

from runjournal.log import events as e
from runjournal.log.authority import CALL_STARTS
from runjournal.log.base import RecordedEvent
from runjournal.log.errors import TooLarge
from runjournal.log.limits import inbox_signals_max, memory_bytes_max, plan_tasks_max, step_calls_max, tags_max
from runjournal.projections.state import RunState


def check_bounds(state: RunState, rec: RecordedEvent) -> None:
    """Refuse an event that would break a bound of the folded state."""
    kind = rec.type
    if isinstance(rec.event, e.RunQueued) and len(rec.event.tags or ()) > tags_max:
        raise TooLarge(f"run {rec.run_id}: {len(rec.event.tags or ())} tags, a run may have tags_max = {tags_max}")
    if kind in ("memory.set", "plan.set", "plan.updated"):
        if state.memory.bytes > memory_bytes_max:
            raise TooLarge(
                f"run {rec.run_id}: the working memory would have {state.memory.bytes} bytes, "
                f"memory_bytes_max = {memory_bytes_max}"
            )
        if len(state.plan.view) > plan_tasks_max:
            raise TooLarge(f"run {rec.run_id}: the plan would have more than plan_tasks_max = {plan_tasks_max} tasks")
    elif kind in CALL_STARTS and len(state.calls.known) > step_calls_max:
        raise TooLarge(f"run {rec.run_id}: more than step_calls_max = {step_calls_max} calls are open or in one step")
    elif kind == "signal.received" and len(state.inbox.signals) > inbox_signals_max:
        raise TooLarge(f"run {rec.run_id}: more than inbox_signals_max = {inbox_signals_max} signals wait")
