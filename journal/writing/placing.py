"""Which step an event belongs to, and whether a step may begin or end."""

from __future__ import annotations

from typing import Final

from runjournal.log import events as e
from runjournal.log.base import Event
from runjournal.log.codec import Draft
from runjournal.log.errors import NotAllowed
from runjournal.projections.state import RunState

_OF_STEPS: Final = (e.StepStarted, e.StepCompleted, e.StepFailed, e.StepRecorded)


def placed(draft: Draft, epoch: int, state: RunState | None) -> Draft:
    """Return the draft with the index of its step: its own, or the open one of the owner."""
    event, index = draft.event, draft.step
    if isinstance(event, _OF_STEPS):
        index = event.index
    elif index is None and epoch and state is not None and (step := state.steps.open) is not None:
        index = step.index
    if index == draft.step:
        return draft
    return Draft(
        event, draft.type, draft.at, draft.by, index, draft.data, draft.ext, draft.blobs, draft.private, draft.names
    )


def check_step(run_id: str, event: Event, state: RunState) -> None:
    """Check that steps are numbered without a gap, one is open at a time, and only the open one ends.

    Raises NotAllowed. `state` is that before the event; events of other types pass.
    """
    step = state.steps.open
    if isinstance(event, e.StepStarted):
        if step is not None and (step.id, step.index) != (event.id, event.index):
            raise NotAllowed(f"run {run_id}: step {step.index} ({step.id}) is open, so {event.id} can't start")
        again = step is not None or state.steps.redo == event.id
        expected = state.steps.last_index + (not again)
        if event.index != expected:
            raise NotAllowed(f"run {run_id}: step {event.id}: expected index {expected}, got {event.index}")
    elif isinstance(event, e.StepCompleted | e.StepFailed) and (step is None or step.index != event.index):
        opened = "none is open" if step is None else f"{step.index} is open"
        raise NotAllowed(f"run {run_id}: {event.TYPE} of step {event.index}, but {opened}")
