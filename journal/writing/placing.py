"""Which step an event belongs to."""

from __future__ import annotations

from runjournal.log import events as e
from runjournal.log.codec import Draft
from runjournal.projections.state import RunState


def placed(draft: Draft, epoch: int, state: RunState | None) -> Draft:
    """Return the draft with the index of its step: its own, or the open one of the owner."""
    event, index = draft.event, draft.step
    if isinstance(event, e.StepStarted | e.StepCompleted | e.StepFailed | e.StepRecorded):
        index = event.index
    elif index is None and epoch and state is not None and state.steps.open is not None:
        index = state.steps.open.index
    if index == draft.step:
        return draft
    return Draft(event, draft.type, draft.at, draft.by, index, draft.data, draft.ext, draft.blobs)
