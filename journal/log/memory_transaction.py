"""What a store in memory keeps, and a transaction on it: changes over its tables, which wait for the commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from eventsourcing.persistence import Notification, StoredEvent
from eventsourcing.popo import POPOApplicationRecorder

from .base import RecordedEvent
from .blob_names import may_name
from .chain import NewRow, RawRow
from .cipher import ERASED_KEY
from .codec import decode
from .errors import InvalidArgument, StoreError, WrongExpectation
from .guard import hold
from .head import Head
from .limits import checkpoint_stretch_events, hash_bytes, read_page_events_max
from .private_values import Keys
from .store import Alone, Checkpoint, Effect, Import, StepEnd, Unknown, Write, read
from .tables import DERIVED, STATE

T = TypeVar("T")

Key = tuple[Any, ...]
Tables = dict[str, dict[Key, Any]]


class MemoryRecorder(POPOApplicationRecorder):
    """eventsourcing's recorder in plain objects, with pages of a run that cost what they hold."""

    def page(self, run_id: str, first: int, last: int) -> list[Notification]:
        """The run's events with first <= seq <= last."""

        def found() -> list[Notification]:
            index = self._stored_events_index.get(run_id, {})
            places = [index[seq] for seq in range(first, min(last, len(index)) + 1)]
            return [_notification(place + 1, self._stored_events[place]) for place in places]

        return hold(self._database_lock, found)

    def run_ids(self) -> list[str]:
        """Every run that has an event."""
        return hold(self._database_lock, lambda: [str(run_id) for run_id in self._stored_events_index])

    def empty(self, run_id: str) -> None:
        """Take the bodies of a run's events away, but for the last one's."""

        def emptied() -> None:
            places = self._stored_events_index.get(run_id, {})
            for seq, place in places.items():
                if seq < len(places):
                    self._stored_events[place] = _emptied(self._stored_events[place])

        hold(self._database_lock, emptied)

    def put(self, after: int, events: Sequence[StoredEvent]) -> None:
        """Insert events behind a position; called again after an interrupt, it begins anew."""

        def cut() -> None:
            while len(self._stored_events) > after:
                event = self._stored_events[-1]
                self._stored_events_index[str(event.originator_id)].pop(event.originator_version, None)
                self._stored_events.pop()

        hold(self._database_lock, cut)
        self.insert_events(events)


def _notification(position: int, event: StoredEvent) -> Notification:
    return Notification(event.originator_id, event.originator_version, event.topic, event.state, position)


def _stored(run_id: str, row: NewRow) -> StoredEvent:
    """An event as the recorder keeps it: its state is the hash, and behind that the body."""
    seq, kind, body, digest = row
    return StoredEvent(run_id, seq, kind, digest + body)


def _emptied(event: StoredEvent) -> StoredEvent:
    return StoredEvent(event.originator_id, event.originator_version, event.topic, event.state[:hash_bytes])


def _emptied_at(each: Notification) -> Notification:
    return Notification(each.originator_id, each.originator_version, each.topic, each.state[:hash_bytes], each.id)


def _row(each: Notification) -> RawRow:
    state = each.state
    return each.originator_version, each.id, each.topic, state[hash_bytes:], state[:hash_bytes]


def decoded_event(each: Notification, keys: Keys) -> RecordedEvent:
    """Return the record of what the recorder keeps, as `decode` makes it."""
    return decode(str(each.originator_id), *_row(each), keys)


class MemoryReads(ABC):
    """What both the store and its transaction can read: one table row by its key, one page of a run's events."""

    @abstractmethod
    def _row(self, table: str, key: Key) -> Any: ...

    @abstractmethod
    def _step_ends(self, run_id: str, step: str) -> list[StepEnd]: ...

    @abstractmethod
    def _page(self, run_id: str, first: int, last: int) -> list[Notification]: ...

    def head(self, run_id: str) -> Head | None:
        """The run's head, or None."""
        found: Head | None = self._row("runs", (run_id,))
        return found

    def read(
        self, run_id: str, after: int = 0, upto: int | None = None, *, types: Sequence[str] | None = None
    ) -> Iterator[RecordedEvent]:
        """The run's events with after < seq <= upto, in order, of these types (all: None)."""
        return read(self, run_id, after, upto, types=types)

    def read_raw(self, run_id: str, after: int = 0, upto: int | None = None) -> Iterator[RawRow]:
        """The same rows as they are stored: (seq, position, type, body, hash)."""
        after = max(after, 0)
        while True:
            last = after + read_page_events_max
            page = self._page(run_id, after + 1, last if upto is None else min(last, upto))
            yield from map(_row, page)
            if len(page) < read_page_events_max:
                return
            after = last

    def effect(self, scope: str, key: str) -> Effect | None:
        """The row of a call that happened."""
        found: Effect | None = self._row("effects", (scope, key))
        return found

    def unknown(self, scope: str, key: str) -> Unknown | None:
        """The row of a call that may have happened."""
        found: Unknown | None = self._row("unknowns", (scope, key))
        return found

    def newest(self, scope: str) -> str | None:
        """The newest run of a line."""
        row = self._row("lines", (scope,))
        return row[1] if row else None

    def step_end(self, run_id: str, step: str) -> StepEnd | None:
        """The newest end of a step."""
        return max(self._step_ends(run_id, step), key=lambda end: end.attempt, default=None)

    def step_ends(self, run_id: str, step: str) -> list[StepEnd]:
        """Every end of a step, by attempt."""
        return sorted(self._step_ends(run_id, step), key=lambda end: end.attempt)

    def imported(self, run_id: str) -> Import | None:
        """Where an imported run came from."""
        found: Import | None = self._row("imports", (run_id,))
        return found

    def secret(self, purpose: str, name: str) -> bytes | None:
        """The newest key for a purpose and name; None if there never was one."""
        found: bytes | None = self._row("secrets", (purpose, name))
        return found

    def key(self, run_id: str) -> bytes | None:
        """The key of a run's private values; None if it has none, or they were erased."""
        key = self.secret("run", run_id)
        return None if key == ERASED_KEY else key

    @abstractmethod
    def _runs(self) -> list[str]: ...

    def born(self, after: int = 0) -> Iterator[str]:
        """Every run that has a first event, in the order of these; only those born behind a position."""
        first = [(position, run_id) for run_id in self._runs() for _, position, *_ in self.read_raw(run_id, 0, 1)]
        yield from (run_id for position, run_id in sorted(first) if position > after)

    def naming_blobs(self, after: int = 0) -> Iterator[tuple[str, bytes]]:
        """(run id, body) of every event behind a position that may name a blob."""
        for run_id in self._runs():
            for _, position, _, body, _ in self.read_raw(run_id):
                if position > after and may_name(body):
                    yield run_id, body


class MemoryTransaction(MemoryReads):
    """Changes that wait for the commit, over the tables that they will go to. A row that is None will be deleted."""

    def __init__(self, tables: Tables, recorder: MemoryRecorder) -> None:
        self.tables = tables
        self.recorder = recorder
        self.changes: Tables = {name: {} for name in STATE}
        self.events: list[StoredEvent] = []
        self.checkpoints: list[tuple[Checkpoint, int]] = []
        self.purged: dict[str, int] = {}
        self.after = recorder.max_notification_id() or 0
        self.ended = False

    def _open(self) -> None:
        if self.ended:
            raise StoreError("memory: this transaction has ended; use the store")

    def _row(self, table: str, key: Key) -> Any:
        self._open()
        changes = self.changes[table]
        return changes[key] if key in changes else self.tables[table].get(key)

    def _step_ends(self, run_id: str, step: str) -> list[StepEnd]:
        self._open()
        rows = {**self.tables["step_ends"], **self.changes["step_ends"]}.values()
        return [end for end in rows if (end.run_id, end.step) == (run_id, step)]

    def _page(self, run_id: str, first: int, last: int) -> list[Notification]:
        self._open()
        start = 1 + (self.recorder.max_notification_id() or 0)
        mine = [
            _notification(start + place, event)
            for place, event in enumerate(self.events)
            if event.originator_id == run_id and first <= event.originator_version <= last
        ]
        page = self.recorder.page(run_id, first, last) + mine
        upto = self.purged.get(run_id, 0)
        return [each if each.originator_version >= upto else _emptied_at(each) for each in page] if upto else page

    def write(self, write: Write) -> list[int]:
        """Append; return the store-wide positions of the events. Raises WrongExpectation if the head has moved."""
        self._open()
        write.check()
        run_id, before, actual = write.head.run_id, write.before, self.head(write.head.run_id)
        expected = None if before is None else (before.head_seq, before.epoch, before.status)
        if expected != (None if actual is None else (actual.head_seq, actual.epoch, actual.status)):
            raise WrongExpectation(run_id, before.head_seq if before else 0, actual.head_seq if actual else 0)
        first = 1 + (self.recorder.max_notification_id() or 0) + len(self.events)
        self.events += [_stored(run_id, row) for row in write.events]
        self.changes["runs"][run_id,] = write.head
        for digest, body in write.blobs:
            self._add("blobs", (digest,), body)
        self._index(write)
        if write.imported is not None:
            self.changes["imports"][run_id,] = write.imported
        return list(range(first, first + len(write.events)))

    def add_secret(self, purpose: str, name: str, key: bytes) -> None:
        """Keep a new key, in place of the one before it."""
        self._open()
        self.changes["secrets"][purpose, name] = key

    def erase_secrets(self, purpose: str, name: str) -> int:
        """Erase the key for a purpose and name; return how many weren't erased before."""
        if self.secret(purpose, name) in (None, ERASED_KEY):
            return 0
        self.changes["secrets"][purpose, name] = ERASED_KEY
        return 1

    def purge(self, run_id: str, digests: Iterable[str]) -> None:
        """Empty the events of a run whose last one is run.purged, and these blobs; forget what it has beside them."""
        head = self.head(run_id)
        if head is None or head.status != "purged":
            raise StoreError(f"memory: run {run_id} has no run.purged, so nothing of it is purged")
        self.purged[run_id] = head.head_seq
        self.changes["blobs"].update(dict.fromkeys((digest,) for digest in digests))
        for table in ("effects", "unknowns", "step_ends", "bills", "checkpoints"):
            rows: dict[Key, Any] = {**self.tables[table], **self.changes[table]}
            mine = [key for key, row in rows.items() if row is not None and row.run_id == run_id]
            if table == "bills":  # those of run.purged stay, its last event
                mine = [key for key in mine if rows[key].seq < head.head_seq]
            self.changes[table].update(dict.fromkeys(mine))

    def execute(self, query: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Raise InvalidArgument: there is no SQL here."""
        raise InvalidArgument("tx.execute: a store in memory knows no SQL; use a SQLite store")

    def define(self, query: str) -> None:
        """Raise InvalidArgument: there is no SQL here."""
        raise InvalidArgument("define: a store in memory has no tables; use a SQLite store")

    def _runs(self) -> list[str]:
        self._open()
        return [key[0] for key in {**self.tables["runs"], **self.changes["runs"]}]

    def reindex(self, writes: Iterable[Write]) -> None:
        """Forget the rows of all tables that follow from events, and keep those of these writes instead."""
        self._open()
        for name in DERIVED:
            self.changes[name] = dict.fromkeys({**self.tables[name], **self.changes[name]})
        for write in writes:
            self.changes["runs"][write.head.run_id,] = write.head
            self._index(write)

    def _index(self, write: Write) -> None:
        for effect in write.effects:
            self._add("effects", effect[:2], effect)
        for key in write.known:
            self.changes["unknowns"][key] = None
        for unknown in write.unknown:
            self._add("unknowns", unknown[:2], unknown)
        for end in write.step_ends:
            self.changes["step_ends"][end[:3]] = end
        for bill in write.bills:
            self.changes["bills"][bill[:3]] = bill
        if write.newest is not None:
            self.changes["lines"][write.newest[:1]] = write.newest

    def _add(self, table: str, key: Key, row: Any) -> None:
        """Add a row, unless its key is there: the first row stays."""
        if self._row(table, key) is None:
            self.changes[table][key] = row

    def append_alone(self, alone: Alone) -> int | None:
        """Return None: nothing is shorter than `write` here."""
        self._open()
        return None

    def save_checkpoint(self, checkpoint: Checkpoint, keep: int = 3) -> None:
        """Keep a checkpoint in this commit."""
        self._open()
        self.checkpoints.append((checkpoint, keep))

    def commit(self) -> None:
        """Move all changes into the tables; called again after an interrupt, it ends the same."""
        if self.events:
            self.recorder.put(self.after, self.events)
        for run_id in self.purged:
            self.recorder.empty(run_id)
        for name, changes in self.changes.items():
            table = self.tables[name]
            for key, row in changes.items():
                if row is None:
                    table.pop(key, None)
                else:
                    table[key] = row
        for checkpoint, keep in self.checkpoints:
            keep_checkpoint(self.tables, checkpoint, keep)


def keep_checkpoint(tables: Tables, checkpoint: Checkpoint, keep: int) -> None:
    """Keep a checkpoint, and drop all but the newest `keep` of its projection in the run, and the last of a stretch."""
    table, head = tables["checkpoints"], tables["runs"].get((checkpoint.run_id,))
    if head is not None and head.status == "purged":
        return
    table[checkpoint[:3]] = checkpoint
    whose = (checkpoint.run_id, checkpoint.projection)
    mine = sorted((key for key, each in table.items() if (each.run_id, each.projection) == whose), reverse=True)
    last = {key[1] // checkpoint_stretch_events: key for key in reversed(mine)}
    for key in mine[keep:]:
        if key not in last.values():
            del table[key]
