"""Reading a run for its audit: damage is something to report, never something to stop at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from runjournal.log.base import RecordedEvent, UnreadableEvent
from runjournal.log.chain import GENESIS, event_hash
from runjournal.log.codec import decode
from runjournal.log.errors import CorruptLog, StoreBusy, StoreUnavailable
from runjournal.log.limits import read_page_events_max
from runjournal.log.private_values import KeyRing, Keys
from runjournal.log.store import Store

from .progress import Progress

DAMAGE: Final = (CorruptLog, StoreUnavailable, UnicodeError)
"""What reading a damaged file raises: a page that contradicts itself, a sector that fails, text that is none."""


class IndexRow(NamedTuple):
    """A row that could be read: its record, and the bytes that it was made from."""

    record: RecordedEvent
    body: bytes


class Damage(NamedTuple):
    """A row that couldn't be read."""

    seq: int
    what: str


class Presence:
    """Which runs the tables have rows of, noted once before the runs are looked at: most have none in most tables.

    Rows that come later are told of by their events.
    """

    def __init__(self) -> None:
        self._found: dict[str, set[str]] = {}

    def noted(self, table: str, run_ids: Iterable[str]) -> Iterator[str]:
        """Yield the same run ids, and note them; a table counts as noted once all of it is read."""
        found = set[str]()
        for run_id in run_ids:
            found.add(run_id)
            yield run_id
        self._found[table] = found

    def may_have(self, table: str, run_id: str) -> bool:
        """Return whether the table may have rows of a run."""
        return table not in self._found or run_id in self._found[table]


def rows(store: Store, run_id: str, upto: int | None, progress: Progress | None = None) -> Iterator[IndexRow | Damage]:
    """Yield the rows of a run up to a seq, in order, in one pass.

    Where a page can't be read, its rows are tried one by one. After a page of which no row can be read the rest is one
    `Damage`. Raises StoreBusy, StoreClosed.
    """
    after, count, keys = 0, 0, KeyRing(store.key)
    while True:
        try:
            for row in store.read_raw(run_id, after, upto):
                yield _row(keys, run_id, *row)
                after, count = row[0], count + 1
                if progress is not None and not count % read_page_events_max:
                    progress(count, upto)
            break
        except StoreBusy:
            raise
        except DAMAGE as error:
            last = after + read_page_events_max if upto is None else min(upto, after + read_page_events_max)
            read = 0
            for each in _one_by_one(store, run_id, after, last):
                read += isinstance(each, IndexRow)
                yield each
            count, after = count + read, last
            if not read or after == upto:
                if after != upto:
                    yield Damage(after + 1, f"nor can any behind it ({type(error).__name__})")
                break
    if progress is not None:
        progress(count, upto)


def _one_by_one(store: Store, run_id: str, after: int, last: int) -> Iterator[IndexRow | Damage]:
    for seq in range(after + 1, last + 1):
        try:
            found = list(store.read_raw(run_id, seq - 1, seq))
        except StoreBusy:
            raise
        except DAMAGE as error:
            yield Damage(seq, type(error).__name__)
        else:
            yield from (_row(store.key, run_id, *each) for each in found)


def _row(  # noqa: PLR0917 - the columns of a row, in their order
    keys: Keys, run_id: str, seq: int, position: int, event_type: str, body: bytes, digest: bytes
) -> IndexRow | Damage:
    """Decode a row, whatever it holds."""
    try:
        event_hash(run_id, seq, event_type, GENESIS, b"")  # its place alone: the audit of the chain hashes the body
        link = digest.hex()
    except Exception as error:  # noqa: BLE001 - no event of this package can have been there
        return Damage(seq, type(error).__name__)
    try:
        return IndexRow(decode(run_id, seq, position, event_type, body, digest, keys), body)
    except Exception as error:  # noqa: BLE001 - decode promises not to raise; an audit doesn't rely on it
        reason = f"{type(error).__name__}"
    event = UnreadableEvent(event_type, reason, body)
    return IndexRow(RecordedEvent(run_id, seq, position, event_type, "", "", 0, None, link, event), body)


def beyond(store: Store, run_id: str, head_seq: int) -> int | None:
    """Return the seq of the first event that no head covers, not even one that a writer has moved meanwhile.

    None: there is no such event.
    """
    first = next(iter(store.read_raw(run_id, head_seq)), None)
    if first is None:
        return None
    now = store.head(run_id)
    return first[0] if now is None or now.head_seq < first[0] else None
