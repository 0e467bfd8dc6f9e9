"""What is appended at once to one run."""

from __future__ import annotations

from typing import NamedTuple

from runjournal.log import events as e
from runjournal.log.codec import Draft
from runjournal.log.errors import InvalidArgument, TooLarge
from runjournal.log.limits import append_batch_events_max
from runjournal.log.store import Import


class Batch(NamedTuple):
    """An append, made once: repeating it is the same append, and a no-op if it is there already.

    `expect` is the expected version: the seq of the head that it stands behind (0: the run is new), or None: whatever
    the head is.
    """

    run_id: str
    drafts: tuple[Draft, ...]
    expect: int | None
    epoch: int = 0
    imported: Import | None = None


def is_single(batch: Batch) -> bool:
    """Return whether an append is one event of an owner."""
    return bool(batch.epoch) and len(batch.drafts) == 1 and batch.imported is None


def may_share(batches: tuple[Batch, ...]) -> bool:
    """Return whether an append may share its commit: one run's, that reads nothing but through its transaction."""
    batch = batches[0]
    return len(batches) == 1 and batch.imported is None and not any(_has_base(draft.event) for draft in batch.drafts)


def _has_base(event: e.Event) -> bool:
    return isinstance(event, e.RunQueued) and event.base is not None


def check_size(batch: Batch) -> None:
    """Check that an append has some events, and not too many; what an importer has read of one file goes in whole."""
    count = len(batch.drafts)
    if not count:
        raise InvalidArgument("an append needs at least one event")
    if count > append_batch_events_max and batch.imported is None:
        raise TooLarge(f"{count} events in one append, at most append_batch_events_max = {append_batch_events_max}")
