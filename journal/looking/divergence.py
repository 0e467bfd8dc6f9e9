"""Where two runs begin to differ in what they did."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Final, NamedTuple

from runjournal.log import events as e
from runjournal.log.base import Json, RecordedEvent, data_of
from runjournal.log.codec import decode
from runjournal.log.private_values import KeyRing, Keys
from runjournal.logbook import Logbook

from .progress import Progress, told

_KEEPING_HOUSE: Final = ("run.claimed", "run.requeued", "note.added", "cost.", "tool.dispatched", "child.finished")
_IDS: Final = frozenset({
    "call_id", "approval_id", "message_id", "signal_id", "signal_ids", "wait_id", "child_run_id", "provider_call_id",
    "response_id", "scope", "parent_run_id", "link", "base", "again", "request_hash", "place", "raw", "key_expires_at",
    "key_born", "expires_at", "due_at", "not_before", "retry_at", "entry", "replayed", "tags", "title", "code_version",
})  # fmt: skip


class Divergence(NamedTuple):
    """The first events in which two runs differ; None where one of them has ended."""

    before: RecordedEvent | None
    after: RecordedEvent | None


def first_divergence(
    journal: Logbook,
    before: tuple[str, int | None],
    after: tuple[str, int | None],
    progress: Progress | None = None,
) -> Divergence | None:
    """Return where two runs (id, seq of the last event to look at) begin to differ in what they did, or None.

    Ids, times, owners and what is said of money don't count, nor do a run's title and tags.
    """
    left, right = (_deeds(journal, *each) for each in (before, after))
    for one, other in told(zip_longest(left, right), None, progress):
        if one is None or other is None or not one.same(other):
            return Divergence(one and one.record(), other and other.record())
    return None


class _Deed(NamedTuple):
    run_id: str
    seq: int
    type: str
    body: bytes
    digest: bytes
    keys: Keys

    def same(self, other: _Deed) -> bool:
        """Return whether both say the same, but for ids."""
        if self.type != other.type:
            return False
        return self.content() == other.content() or _without_ids(self.record()) == _without_ids(other.record())

    def content(self) -> tuple[bytes, bytes]:
        """What is held out of line, and the data, as they are stored: `ext` and `data` stand behind all else."""
        head, _, data = self.body.partition(b'"data":')
        return head.partition(b'"ext":')[2], data

    def record(self) -> RecordedEvent:
        return decode(self.run_id, self.seq, 0, self.type, self.body, self.digest, self.keys)


def _deeds(journal: Logbook, run_id: str, upto: int | None) -> Iterator[_Deed]:
    """Yield the events that say what a run did."""
    keys = KeyRing(journal.store.key)
    for seq, _, event_type, body, digest in journal.store.read_raw(run_id, 0, upto):
        if not event_type.startswith(_KEEPING_HOUSE):
            yield _Deed(run_id, seq, event_type, body, digest, keys)


def _without_ids(record: RecordedEvent) -> Json:
    event = record.event
    if isinstance(event, e.UnknownEvent | e.NewerEvent | e.UnreadableEvent):
        return event
    return {name: value for name, value in data_of(event).items() if name not in _IDS}
