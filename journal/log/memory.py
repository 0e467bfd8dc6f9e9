"""A store in memory, for tests and trials: the same behaviour as the others, gone with the process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from threading import RLock, get_ident
from types import TracebackType
from typing import Any, Self, TypeVar

from eventsourcing.persistence import Notification

from .base import RecordedEvent
from .clock import Clock, new_store_id
from .codec import decode, loads
from .errors import InvalidArgument, StoreClosed, StoreError
from .guard import free, hold
from .head import Head
from .limits import read_page_events_max
from .memory_transaction import (
    Key,
    MemoryReads,
    MemoryRecorder,
    MemoryTransaction,
    Tables,
    decoded_event,
    keep_checkpoint,
)
from .private_values import KeyRing, no_key
from .store import Alone, BadRow, Checkpoint, Fault, StepEnd, Transaction, Write, warn_of
from .tables import INDEX, STATE

T = TypeVar("T")


def _pinned(head: Head) -> tuple[str | None, int, str | None]:
    return head.head_hash, head.epoch, head.cancel_requested


def _decoded_at(alone: Alone) -> str:
    seq, kind, body, digest = alone.event
    return decode(alone.run_id, seq, 0, kind, body, digest, no_key).at


def _decided(tx: MemoryTransaction, decide: Callable[[Transaction], T]) -> T:
    """What is decided in a transaction, which nobody uses any more then."""
    try:
        return decide(tx)
    finally:
        tx.ended = True


class MemoryStore(MemoryReads):
    """A store in memory. Safe to share between threads; `durable` and `relaxed` are the same here."""

    url = "memory:"
    sharing = None
    """A commit waits for nothing here."""

    def __init__(self, *, clock: Clock, store_id: str | None = None) -> None:
        self.clock = clock
        self.store_id = new_store_id(clock) if store_id is None else store_id
        self._tables: Tables = {name: {} for name in STATE}
        self._recorder = MemoryRecorder()
        self._lock = RLock()  # held by a writer while it commits, by a reader for a page
        self._write_lock = RLock()
        self._committing: MemoryTransaction | None = None
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
            tx = MemoryTransaction(self._tables, self._recorder)
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
            keep_checkpoint(self._tables, checkpoint, keep)

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

    def _row(self, table: str, key: Key) -> Any:
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
            yield from (decoded_event(each, keys) for each in reversed(self._page(run_id, first, last)))
            last = first - 1

    def read_all(self, after: int = 0, upto: int | None = None) -> Iterator[RecordedEvent]:
        """All runs' events with after < position <= upto, in the order of the store."""
        keys = KeyRing(self.key)
        while True:
            self._check()
            look = partial(self._recorder.select_notifications, after, read_page_events_max, upto)
            page = hold(self._lock, partial(look, inclusive_of_start=False))
            yield from (decoded_event(each, keys) for each in page)
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
        """The rows of an index table (`tables.INDEX`), sorted by their key, of one run or all.

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
        return {
            "store": "memory",
            "url": self.url,
            "store_id": self.store_id,
            **counts,
            "events_count": self.last_position(),
        }

    # The end.

    def close(self) -> None:
        """Let go of the store and all that it holds; idempotent."""
        if self._owner == get_ident():
            raise StoreError("memory: close was called inside transact")
        with self._write_lock:
            self._closed = True
            self._tables = {name: {} for name in STATE}
            self._recorder = MemoryRecorder()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
