"""A store in memory, for tests and trials: the same behaviour as the others, gone with the process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from threading import RLock, get_ident
from types import TracebackType
from typing import Any, Self, TypeVar

from eventsourcing.persistence import Notification, StoredEvent
from eventsourcing.popo import POPOApplicationRecorder

from .base import RecordedEvent
from .chain import NewRow, RawRow
from .cipher import ERASED_KEY
from .clock import Clock
from .codec import decode, loads
from .errors import InvalidArgument, StoreClosed, StoreError, WrongExpectation
from .guard import free, hold
from .head import Head
from .limits import checkpoint_stretch_events, hash_bytes, read_page_events_max
from .private_values import KeyRing, Keys, no_key
from .store import Alone, BadRow, Checkpoint, Effect, Fault, Import, StepEnd, Transaction, Unknown, Write, read, warn_of
from .tables import DERIVED, INDEX, STATE

T = TypeVar("T")

_Key = tuple[Any, ...]
_Tables = dict[str, dict[_Key, Any]]


class _Recorder(POPOApplicationRecorder):
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


def _row(each: Notification) -> RawRow:
    state = each.state
    return each.originator_version, each.id, each.topic, state[hash_bytes:], state[:hash_bytes]


def _decoded(each: Notification, keys: Keys) -> RecordedEvent:
    return decode(str(each.originator_id), *_row(each), keys)


class _Reads(ABC):
    """What both the store and its transaction can read: one table row by its key, one page of a run's events."""

    @abstractmethod
    def _row(self, table: str, key: _Key) -> Any: ...

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

    def born(self) -> Iterator[str]:
        """Every run that has a first event, in the order of these."""
        first = [(position, run_id) for run_id in self._runs() for _, position, *_ in self.read_raw(run_id, 0, 1)]
        yield from (run_id for _, run_id in sorted(first))


class _Transaction(_Reads):
    """Changes that wait for the commit, over the tables that they will go to. A row that is None will be deleted."""

    def __init__(self, tables: _Tables, recorder: _Recorder) -> None:
        self.tables = tables
        self.recorder = recorder
        self.changes: _Tables = {name: {} for name in STATE}
        self.events: list[StoredEvent] = []
        self.checkpoints: list[tuple[Checkpoint, int]] = []
        self.after = recorder.max_notification_id() or 0
        self.ended = False

    def _open(self) -> None:
        if self.ended:
            raise StoreError("memory: this transaction has ended; use the store")

    def _row(self, table: str, key: _Key) -> Any:
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
        return self.recorder.page(run_id, first, last) + mine

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
        """Forget the rows of effects, unknowns, lines and step_ends, and keep those of these writes instead."""
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
        if write.newest is not None:
            self.changes["lines"][write.newest[:1]] = write.newest

    def _add(self, table: str, key: _Key, row: Any) -> None:
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
        for checkpoint, keep in self.checkpoints:
            _keep(self.tables["checkpoints"], checkpoint, keep)
        if self.events:
            self.recorder.put(self.after, self.events)
        for name, changes in self.changes.items():
            table = self.tables[name]
            for key, row in changes.items():
                if row is None:
                    table.pop(key, None)
                else:
                    table[key] = row


def _pinned(head: Head) -> tuple[str | None, int, str | None]:
    return head.head_hash, head.epoch, head.cancel_requested


def _decoded_at(alone: Alone) -> str:
    seq, kind, body, digest = alone.event
    return decode(alone.run_id, seq, 0, kind, body, digest, no_key).at


def _keep(table: dict[_Key, Any], checkpoint: Checkpoint, keep: int) -> None:
    """Keep a checkpoint, and drop all but the newest `keep` of its projection in the run, and the last of a stretch."""
    table[checkpoint[:3]] = checkpoint
    whose = (checkpoint.run_id, checkpoint.projection)
    mine = sorted((key for key, each in table.items() if (each.run_id, each.projection) == whose), reverse=True)
    last = {key[1] // checkpoint_stretch_events: key for key in reversed(mine)}
    for key in mine[keep:]:
        if key not in last.values():
            del table[key]


def _decided(tx: _Transaction, decide: Callable[[Transaction], T]) -> T:
    """What is decided in a transaction, which nobody uses any more then."""
    try:
        return decide(tx)
    finally:
        tx.ended = True


class MemoryStore(_Reads):
    """A store in memory. Safe to share between threads; `durable` and `relaxed` are the same here."""

    url = "memory:"
    sharing = None
    """A commit waits for nothing here."""

    def __init__(self, *, clock: Clock) -> None:
        self.clock = clock
        self._tables: _Tables = {name: {} for name in STATE}
        self._recorder = _Recorder()
        self._lock = RLock()  # held by a writer while it commits, by a reader for a page
        self._write_lock = RLock()
        self._committing: _Transaction | None = None
        self._owner = 0
        self._version = 1
        self._closed = False

    def _check(self) -> None:
        if self._closed:
            raise StoreClosed("memory: this store was closed, and what it held is gone")

    def index_stale(self) -> bool:
        """Return False: nothing is ever migrated here."""
        return False

    def _runs(self) -> list[str]:
        self._check()
        return hold(self._lock, lambda: [key[0] for key in self._tables["runs"]])

    # Writing.

    def transact(self, decide: Callable[[Transaction], T], *, durable: bool) -> T:
        """Run `decide` alone and keep what it wrote; if it raises, nothing is written.

        Raises StoreError if it is called inside itself, and whatever `decide` raises.
        """
        self._check()
        if self._owner == get_ident():
            raise StoreError("memory: transact was called inside transact; write through its transaction")
        try:
            return self._transact(decide)
        except BaseException:
            self._leave()
            raise

    def _transact(self, decide: Callable[[Transaction], T]) -> T:
        with self._write_lock:
            self._check()
            self._owner = get_ident()
            tx = _Transaction(self._tables, self._recorder)
            result = _decided(tx, decide)
            self._committing = tx  # from here on it stands
            self._finish()
            self._owner = 0
            return result

    def _finish(self) -> None:
        """Do what a commit does, or what an interrupt has left of it."""
        if (tx := self._committing) is not None:
            hold(self._lock, tx.commit)
            self._version += 1
            self._committing = None

    def _leave(self) -> None:
        """After an error or an interrupt: a commit that was begun ends, and this thread lets go of the lock."""
        if not self._write_lock.acquire(blocking=False):
            return  # it is another thread's
        self._owner = 0
        self._finish()
        free(self._write_lock)

    def append_alone(self, decide: Callable[[], Alone | None], *, durable: bool) -> int | None:
        """Append one event of an owner, as the head that it names still stands; return its position, or None."""

        def append(tx: Transaction) -> int | None:
            alone = decide()
            now = None if alone is None else tx.head(alone.run_id)
            if alone is None or now is None or now.status != "running" or _pinned(now) != _pinned(alone.before):
                return None
            seq, _, _, digest = alone.event
            head = now._replace(head_seq=seq, head_hash=digest.hex(), updated_at=_decoded_at(alone))
            return tx.write(Write(now, head, [alone.event]))[0]

        return self.transact(append, durable=durable)

    def save_checkpoint(self, checkpoint: Checkpoint, keep: int = 3) -> None:
        """Keep a checkpoint and drop all but the newest `keep` of its projection, and the last of each stretch."""

        def save() -> None:
            self._check()
            _keep(self._tables["checkpoints"], checkpoint, keep)

        hold(self._lock, save)

    def scrub(self) -> bool:
        """Return True: what is erased in memory is nowhere else."""
        self._check()
        return True

    def unscrubbed(self) -> bool:
        """Return False, as `scrub` has nothing to do."""
        self._check()
        return False

    def drop_checkpoints(self, run_id: str | None = None, seq: int | None = None) -> int:
        """Drop checkpoints: one, those of a run, or all. Return how many."""

        def drop() -> int:
            self._check()
            table = self._tables["checkpoints"]
            found = [key for key in table if run_id in (None, key[0]) and seq in (None, key[1])]
            for key in found:
                del table[key]
            return len(found)

        return hold(self._lock, drop)

    def heartbeat(self, run_id: str, epoch: int, lease_until: float, at: float) -> bool:
        """Extend the lease of a running run if `epoch` is still its epoch; return whether it was."""
        self._check()

        def extend() -> bool:
            head = self._tables["runs"].get((run_id,))
            if head is None or (head.epoch, head.status) != (epoch, "running"):
                return False
            self._tables["runs"][run_id,] = head._replace(lease_until=lease_until, heartbeat_at=at)
            self._version += 1
            return True

        return hold(self._write_lock, partial(hold, self._lock, extend))

    # Reading.

    def _row(self, table: str, key: _Key) -> Any:
        self._check()
        return hold(self._lock, lambda: self._tables[table].get(key))

    def _sorted(self, table: str) -> list[Any]:
        self._check()

        def found() -> list[Any]:
            rows = self._tables[table]
            return [rows[key] for key in sorted(rows)]

        return hold(self._lock, found)

    def _step_ends(self, run_id: str, step: str) -> list[StepEnd]:
        return [end for end in self._sorted("step_ends") if (end.run_id, end.step) == (run_id, step)]

    def _page(self, run_id: str, first: int, last: int) -> list[Notification]:
        self._check()
        return hold(self._lock, lambda: self._recorder.page(run_id, first, last))

    def head_row(self, run_id: str) -> Head | None:
        """The run's head, which its row always is here."""
        return self.head(run_id)

    def heads(
        self,
        *,
        status: Sequence[str] = (),
        kind: str | None = None,
        parent: str | None = None,
        tags: Mapping[str, str] | None = None,
        prefix: str = "",
        since: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
        bad: Callable[[BadRow], None] = warn_of,
    ) -> list[Head]:
        """Heads by (queued_at, run_id), newest first, after the given one in that order; none of them is bad."""
        if limit < 1:
            raise InvalidArgument(f"limit: expected 1 or more, got {limit}")
        found = [
            head
            for head in self._sorted("runs")
            if (not status or head.status in status)
            and kind in (None, head.kind)
            and parent in (None, head.parent_run_id)
            and (not tags or tags.items() <= loads(head.tags.encode()).items())
            and head.run_id.startswith(prefix)
            and (since is None or head.updated_at >= since)
            and (after is None or (head.queued_at, head.run_id) < after)
        ]
        return sorted(found, key=lambda head: (head.queued_at, head.run_id), reverse=True)[:limit]

    def latest(self, *, status: Sequence[str] = (), bad: Callable[[BadRow], None] = warn_of) -> Head | None:
        """The run that changed last, of these statuses (all: none), among those that no other run began."""
        own = (head for head in self._sorted("runs") if head.parent_run_id is None)
        found = (head for head in own if not status or head.status in status)
        return max(found, key=lambda head: (head.updated_at, head.run_id), default=None)

    def read_back(self, run_id: str, before: int | None = None) -> Iterator[RecordedEvent]:
        """The run's events with seq < before, newest first."""
        head = self.head(run_id)
        last = head.head_seq if head else 0
        last = last if before is None else min(last, before - 1)
        keys = KeyRing(self.key)
        while last > 0:
            first = max(1, last - read_page_events_max + 1)
            yield from (_decoded(each, keys) for each in reversed(self._page(run_id, first, last)))
            last = first - 1

    def read_all(self, after: int = 0, upto: int | None = None) -> Iterator[RecordedEvent]:
        """All runs' events with after < position <= upto, in the order of the store."""
        keys = KeyRing(self.key)
        while True:
            self._check()
            look = partial(self._recorder.select_notifications, after, read_page_events_max, upto)
            page = hold(self._lock, partial(look, inclusive_of_start=False))
            yield from (_decoded(each, keys) for each in page)
            if len(page) < read_page_events_max:
                return
            after = page[-1].id

    def run_ids(self) -> Iterator[str]:
        """Every run that has an event, each once."""
        self._check()
        yield from self._recorder.run_ids()

    def type_counts(self, run_id: str, upto: int) -> dict[str, int]:
        """How many events of each type a run has with seq <= upto, by type, sorted."""
        return dict(sorted(Counter(row[2] for row in self.read_raw(run_id, 0, upto)).items()))

    def seq_at(self, run_id: str, at: str) -> int | None:
        """The seq of the run's last event that was appended at or before a time, or None."""
        return next((each.seq for each in self.read_back(run_id) if each.at[:26] <= at), None)

    def last_position(self) -> int:
        """The greatest position in the store, 0 if it is empty."""
        self._check()
        return self._recorder.max_notification_id() or 0

    def blob(self, digest: str) -> bytes | None:
        """The bytes of a blob, or None."""
        found: bytes | None = self._row("blobs", (digest,))
        return found

    def blob_digests(self) -> Iterator[tuple[str, int]]:
        """(digest, bytes) of every blob, by digest."""
        self._check()
        yield from hold(self._lock, lambda: sorted((key[0], len(body)) for key, body in self._tables["blobs"].items()))

    def checkpoints(self, run_id: str, upto: int | None = None) -> Iterator[Checkpoint]:
        """The run's checkpoints with seq <= upto, newest first."""
        for each in reversed(self._sorted("checkpoints")):
            if each.run_id == run_id and (upto is None or each.seq <= upto):
                yield each

    def checkpoint_runs(self) -> Iterator[str]:
        """Every run that a checkpoint is noted for, each once."""
        yield from dict.fromkeys(each.run_id for each in self._sorted("checkpoints"))

    def index_rows(self, table: str, run_id: str | None = None) -> Iterator[tuple[Any, ...]]:
        """The rows of effects, unknowns, step_ends, lines or imports, sorted by their key, of one run or all.

        A row of lines is of the run that is its newest. Raises InvalidArgument for any other table.
        """
        if table not in INDEX:
            raise InvalidArgument(f"index table {table[:40]!r}: expected one of {', '.join(INDEX)}")
        column = INDEX[table].run_place
        yield from (tuple(row) for row in self._sorted(table) if run_id in (None, row[column]))

    def check_place(self) -> None:
        """Nothing: what lies in memory is nowhere else."""
        self._check()

    def data_version(self) -> int:
        """A number that changes with each commit."""
        self._check()
        return self._version

    def sql(self, query: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Raise InvalidArgument: there is no SQL here."""
        raise InvalidArgument("sql: a store in memory knows no SQL; use a SQLite store")

    def backup(self, target: str) -> None:
        """Raise InvalidArgument: there is no file to copy."""
        raise InvalidArgument("backup: a store in memory has no file; use a SQLite store")

    def vacuum(self) -> int:
        """Return 0: nothing is on disk."""
        self._check()
        return 0

    def faults(self) -> list[Fault]:
        """None: there is nothing that another program could have changed."""
        self._check()
        return []

    def info(self) -> dict[str, Any]:
        """What there is to know of the place: counts."""
        self._check()
        tables = ("runs", "blobs", "checkpoints")
        counts = hold(self._lock, lambda: {f"{name}_count": len(self._tables[name]) for name in tables})
        return {"store": "memory", "url": self.url, **counts, "events_count": self.last_position()}

    # The end.

    def close(self) -> None:
        """Let go of the store and all that it holds; idempotent."""
        if self._owner == get_ident():
            raise StoreError("memory: close was called inside transact")
        with self._write_lock:
            self._closed = True
            self._tables = {name: {} for name in STATE}
            self._recorder = _Recorder()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
