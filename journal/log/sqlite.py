"""A store in a SQLite file: one writer at a time, readers beside it.

The file is in WAL mode. One connection writes, behind a lock; `PRAGMA synchronous` is switched between FULL (durable)
and NORMAL (relaxed) before a transaction begins. Readers borrow connections of their own and keep no transaction open
between two pages. Leases are extended on a connection of their own, so that a long transaction of this process is all
that a heartbeat ever waits for.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock, RLock, get_ident
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar
from weakref import WeakSet

import apsw

from . import failpoint, sqlite_single
from . import sqlite_checkpoints as checkpoints
from . import sqlite_upkeep as upkeep
from .clock import Clock, new_store_id
from .errors import (
    InvalidArgument,
    NotAStore,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StorePoisoned,
    StoreUnavailable,
    UsedAfterFork,
)
from .group import GroupCommit
from .guard import free, hold
from .limits import busy_wait_s as busy_wait_default_s
from .limits import idle_readers_max, int_max, wal_autocheckpoint_pages
from .sqlite_copy import copy
from .sqlite_errors import closed, translate, translated
from .sqlite_files import Files, inode
from .sqlite_parts import check_tables, faults
from .sqlite_place import (
    check_engine,
    check_file_system,
    check_path,
    check_utf8,
    connect,
    create_file,
    make_private,
    mountinfo,
    switch_to_wal,
    value,
)
from .sqlite_query import select
from .sqlite_reads import SQLiteWideReads
from .sqlite_schema import check_header, check_id, migrate, stored_id
from .sqlite_transaction import SQLiteTransaction
from .sqlite_wait import LockWait
from .store import Alone, Checkpoint, Fault, Transaction

T = TypeVar("T")

# Opening makes an empty file and closes it again; a connection of another thread would lose its locks by that.
_opening = Lock()
_stores: WeakSet[SQLiteStore] = WeakSet()
_poisoned: set[tuple[str, int, int]] = set()
"""Path, device and inode of each file of which a commit's outcome is unknown to this process."""


def _after_fork_in_child() -> None:
    # No lock is taken, because its holder may not exist here; nothing is closed, because the parent goes on using it.
    # A reference that is never given back keeps the interpreter from closing the connections when the child exits.
    global _opening  # noqa: PLW0603 - the lock may be held by a thread that doesn't exist here
    _opening = Lock()
    for store in list(_stores):
        for connection in store.connections:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


os.register_at_fork(after_in_child=_after_fork_in_child)


class SQLiteStore(SQLiteWideReads):
    """The store in the file `path`; made if it isn't there, unless `create=False`; migrated if it is older.

    `allow_unsafe` accepts a network file system. `busy_wait_s` bounds the wait for another writer, of this process or
    another one, in seconds. A new store gets `store_id`, by default a random one; one that is there has to have it.
    Safe to share between threads; after a fork every use but `close` raises UsedAfterFork.

    Raises StoreUnavailable, StoreBusy, StoreReadOnly, NotAStore, NewerSchema, UnsafePlace, StoreIdDiffers,
    InvalidArgument.

    >>> from runjournal.log.clock import SystemClock
    >>> with SQLiteStore("runs.db", clock=SystemClock()) as store:  # doctest: +SKIP
    ...     store.last_position()
    0
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock,
        create: bool = True,
        allow_unsafe: bool = False,
        busy_wait_s: float = busy_wait_default_s,
        store_id: str | None = None,
    ) -> None:
        check_engine(apsw.sqlite_lib_version())
        self._path = check_path(path)
        self.url = f"sqlite:{self._path}"
        self.clock = clock
        self._busy_wait_s = busy_wait_s
        self._pid = os.getpid()
        self._lock = RLock()
        self._owner = 0
        self._heart_lock = RLock()
        self._watch_lock = RLock()
        self._closed = False
        self._durable: bool | None = None
        self._wal_pages = 0
        self._idle: list[apsw.Connection] = []
        self.connections: list[apsw.Connection] = []
        _stores.add(self)
        if not allow_unsafe:
            check_file_system(self._path, mountinfo())
        with _opening, translated(self._path):
            self._writer = self._open(create, store_id)
        self._heart: apsw.Connection | None = None
        self._watcher: apsw.Connection | None = None
        self._writer.set_wal_hook(self._on_commit)
        upkeep.keep_in_memory(self._writer)
        self._writer.set_busy_handler(LockWait(busy_wait_s))
        self.sharing = GroupCommit(self.transact, self._check, lambda: self._owner, self._path, busy_wait_s)
        """Where appends share a commit when there are several at the same time."""

    def _open(self, create: bool, store_id: str | None) -> apsw.Connection:  # noqa: FBT001 - private
        if create:
            create_file(self._path)
        elif not Path(self._path).exists():
            raise StoreUnavailable(f"{self._path}: there is no such file, expected a store; create=True makes one")
        there = check_header(self._path)
        if not there and not create:
            raise NotAStore(
                f"{self._path} is empty, expected a store; name another file, or remove it and make a new one"
            )
        if not there:
            make_private(self._path)
        before = inode(self._path)
        try:
            writer = self._added()
            try:
                migrate(writer, self._path, store_id=new_store_id(self.clock) if store_id is None else store_id)
                switch_to_wal(writer, self._path, self.clock, self._busy_wait_s)
                check_tables(writer, self._path)
                self.store_id = stored_id(writer)
                check_id(self._path, store_id, self.store_id)
                self._files = Files(self._path, before)
                if not there:
                    for name in self._files.beside:
                        make_private(name)
                # Now it is known to be ours to change: closing may move what the WAL holds into the file.
                writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            except BaseException:
                self._disconnect(writer)
                raise
        except apsw.CorruptError as error:
            raise NotAStore(f"{self._path} is damaged ({error}); it was not touched, restore a backup") from error
        return writer

    def _added(self) -> apsw.Connection:
        connection = connect(self._path, self._busy_wait_s)
        self.connections.append(connection)
        return connection

    def _connect(self) -> apsw.Connection:
        connection = self._added()
        try:
            self._files.check("nothing was read or written")  # else this one has opened another file than the writer
        except BaseException:
            self._disconnect(connection)
            raise
        return connection

    def _disconnect(self, connection: apsw.Connection) -> None:
        self.connections.remove(connection)
        connection.close()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise UsedAfterFork
        if self._closed:
            raise closed(self._path)

    # Writing.

    def transact(self, decide: Callable[[Transaction], T], *, durable: bool) -> T:
        """Run `decide` inside the write lock and commit what it wrote; if it raises, nothing is written.

        `durable` commits wait for the disk; relaxed ones survive the death of the process, but a power cut may take
        them until the next durable commit. Raises StoreBusy, StoreFull, StoreReadOnly, OutcomeUnknown, StorePoisoned,
        StoreError if it is called inside itself, and whatever `decide` raises.
        """

        def decided(writer: apsw.Connection) -> T:
            tx = SQLiteTransaction(writer, self._path)
            try:
                result = decide(tx)
                if tx.failed is not None:
                    tx.check()
            finally:
                tx.end()
            return result

        return self._write(decided, durable=durable)

    def append_alone(self, decide: Callable[[], Alone | None], *, durable: bool) -> int | None:
        """Append one event of an owner in one statement that commits by itself; return its position.

        `decide` is called alone among this process's writers, and reads nothing from the store. Nothing is written,
        and None returned, if it returns None, or if the run isn't any more as it says. Raises what `transact` raises.
        """

        def insert(writer: apsw.Connection) -> int | None:
            alone = decide()
            if alone is None:
                return None
            try:
                position = sqlite_single.append_and_commit(writer, alone, self._path)
            except apsw.Error as error:
                self._not_committed(error)
            if position is not None:
                self._committed()
            return position

        return self._locked(insert, durable=durable)

    def _write(self, work: Callable[[apsw.Connection], T], *, durable: bool) -> T:
        """Do a piece of work in a transaction. An interrupt at any point leaves neither it nor the lock behind."""

        def within(writer: apsw.Connection) -> T:
            try:
                writer.execute("BEGIN IMMEDIATE")
            except apsw.Error as error:
                raise translate(error, self._path) from error
            result = work(writer)
            self._commit()
            return result

        return self._locked(within, durable=durable)

    def _locked(self, work: Callable[[apsw.Connection], T], *, durable: bool) -> T:
        """Do a piece of work as the one writer of this process, its `synchronous` set."""
        if self._closed or os.getpid() != self._pid:
            self._check()
        if self._owner == get_ident():
            raise StoreError(f"{self._path}: transact was called inside transact; write through its transaction")
        try:
            try:
                self._enter(durable)
                return work(self._writer)
            finally:
                self._leave()
        except BaseException:  # an interrupt may have come in the middle of leaving
            self._leave()
            raise

    def _enter(self, durable: bool) -> None:  # noqa: FBT001 - private
        if not self._lock.acquire(timeout=self._busy_wait_s):
            raise StoreBusy(f"{self._path}: another thread holds the write lock; nothing was written, try again")
        if self._closed:  # while this thread waited; it can't have been forked meanwhile
            self._check()
        if _poisoned:
            self._refuse_if_poisoned()
        self._files.check_main()
        writer = self._writer
        try:
            if durable is not self._durable:
                self._durable = None  # an interrupt in between: nobody knows
                writer.execute("PRAGMA synchronous = FULL" if durable else "PRAGMA synchronous = NORMAL")
                self._durable = durable
        except apsw.Error as error:
            raise translate(error, self._path) from error
        self._owner = get_ident()

    def _leave(self) -> None:
        """Roll back what this thread has begun and not committed, and let go of the lock; it may be called again."""
        if not self._lock.acquire(blocking=False):
            return  # it is another thread's
        try:
            if not self._closed and self._writer.in_transaction:  # SQLite rolls back by itself after some errors
                self._roll_back()
        finally:
            self._owner = 0
            free(self._lock)

    def _commit(self) -> None:
        failpoint.passed("commit.before")
        try:
            self._writer.execute("COMMIT")
        except apsw.Error as error:
            self._not_committed(error)
        self._committed()

    def _not_committed(self, error: apsw.Error) -> NoReturn:
        translation = translate(error, self._path, committing=True)
        if isinstance(translation, OutcomeUnknown):
            self._poison()
        raise translation from error

    def _committed(self) -> None:
        failpoint.passed("commit.after")
        # Behind the commit, so that none is acknowledged that went into a file which nobody finds again.
        self._files.check("what was committed just now is in the file that was there, and counts for nothing")
        if self._wal_pages >= wal_autocheckpoint_pages:
            self._checkpoint()

    def _roll_back(self) -> None:
        try:
            self._writer.execute("ROLLBACK")
        except apsw.Error:
            self._poison()

    def _on_commit(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self, mode: int = apsw.SQLITE_CHECKPOINT_PASSIVE) -> None:
        """Move what the WAL holds into the file, as far as readers allow, so that the WAL can be used anew.

        The commit before it stands, whatever happens here. But a failed fsync may have lost pages that later ones
        build on, so nothing more is acknowledged after it.
        """
        self._wal_pages = 0
        failpoint.passed("checkpoint")
        try:
            self._writer.wal_checkpoint(mode=mode)
        except (apsw.BusyError, apsw.LockedError, apsw.FullError):
            return
        except apsw.Error:
            self._poison()

    def _poison(self) -> None:
        _poisoned.add(self._files.identity)
        self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def _refuse_if_poisoned(self) -> None:
        if _poisoned and self._files.identity in _poisoned:
            raise StorePoisoned(
                f"{self._path}: an earlier commit of this process has an unknown outcome; nothing more is written, "
                "restart the process"
            )

    def save_checkpoint(self, checkpoint: Checkpoint, keep: int = 3) -> None:
        """Keep a checkpoint, relaxed, and drop all but the newest `keep` of the run. Raises what `transact` raises."""
        self._relaxed(partial(checkpoints.save, checkpoint=checkpoint, keep=keep))

    def drop_checkpoints(self, run_id: str | None = None, seq: int | None = None) -> int:
        """Drop checkpoints: one, those of a run, or all. Return how many.

        Raises InvalidArgument, what `transact` raises.
        """
        if seq is not None and not 0 <= seq <= int_max:
            raise InvalidArgument(f"seq: expected one from 0 to {int_max}, got {seq}"[:120])
        return self._relaxed(partial(checkpoints.drop, run_id=run_id, seq=seq))

    def scrub(self) -> bool:
        """Move the whole WAL into the file, so that no older page is left in it; return whether readers let it.

        Keys that were overwritten are then in no file of the store. Raises what `transact` raises.
        """
        return upkeep.scrub(self.scrub_noted, lambda noted: self._locked(partial(self._scrubbed, noted), durable=True))

    def _scrubbed(self, noted: str, writer: apsw.Connection) -> bool:
        try:
            return upkeep.empty_wal(writer, noted)
        except apsw.Error as error:
            self._poison()
            raise translate(error, self._path) from error
        finally:
            writer.set_busy_handler(LockWait(self._busy_wait_s))

    def vacuum(self) -> int:
        """Write the file anew without the pages that hold nothing; return how many bytes it and the WAL have lost."""

        def rewrite(writer: apsw.Connection) -> int:
            before = upkeep.bytes_held(self._path)
            with translated(self._path):
                upkeep.vacuum(writer)
            self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
            return max(0, before - upkeep.bytes_held(self._path))

        return self._locked(rewrite, durable=True)

    def _relaxed(self, work: Callable[[apsw.Connection], T]) -> T:
        def translating(writer: apsw.Connection) -> T:
            with translated(self._path):
                return work(writer)

        return self._write(translating, durable=False)

    def heartbeat(self, run_id: str, epoch: int, lease_until: float, at: float) -> bool:
        """Extend the lease of a running run if `epoch` is still its epoch; return whether it was.

        Both times are seconds since boot. Raises what `transact` raises.
        """
        self._check()
        self._refuse_if_poisoned()
        self._files.check()

        def extend() -> bool:
            self._check()
            if self._heart is None:
                self._heart = self._connect()
                self._heart.execute("PRAGMA synchronous = NORMAL")
            return sqlite_single.heartbeat(self._heart, run_id, epoch, lease_until, at)

        with translated(self._path):
            return hold(self._heart_lock, extend)

    def check_place(self) -> None:
        """Raise StoreReplaced if a file of the store was deleted, moved or replaced since it was opened."""
        if self._closed or os.getpid() != self._pid:
            self._check()
        self._files.check()

    # Reading.

    def _use(self, use: Callable[[apsw.Connection], T]) -> T:
        if self._closed or os.getpid() != self._pid:
            self._check()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
            connection.execute("PRAGMA query_only = ON")
        try:
            result = use(connection)
        except BaseException:
            self._disconnect(connection)
            raise
        if len(self._idle) < idle_readers_max:
            self._idle.append(connection)
        else:
            self._disconnect(connection)
        if self._closed:  # close() may have emptied the list since this connection was taken out
            self._close_idle()
        return result

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._disconnect(self._idle.pop())

    def data_version(self) -> int:
        """A number that changes when another connection commits, of this process or another one.

        Raises StoreReplaced where nobody would ever commit to the file again.
        """
        self._check()
        self._files.check("nothing more will come")

        def look() -> int:
            self._check()
            if self._watcher is None:
                self._watcher = self._connect()
                self._watcher.execute("PRAGMA query_only = ON")
            return int(value(self._watcher, "PRAGMA data_version"))

        with translated(self._path):
            return hold(self._watch_lock, look)

    def sql(self, query: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a read-only query: one SELECT, on a connection of its own that can't do anything else.

        Raises InvalidArgument for anything else, and for what SQLite can't understand.
        """
        self._check()
        with translated(self._path):
            connection = self._connect()
            try:
                return select(connection, query, params)
            finally:
                self._disconnect(connection)

    def backup(self, target: str) -> None:
        """Write a copy that is a store of its own, complete and verified, while writers go on.

        The target must not exist. Raises InvalidArgument if it does, StoreUnavailable, StoreFull, CorruptLog.
        """
        self._check()
        check_utf8(target)
        if os.path.lexists(target):
            raise InvalidArgument(f"backup: {target} exists; name a new file")
        copy(self._path, str(Path(target).absolute()))

    def faults(self) -> list[Fault]:
        """What of the file isn't as this version makes it: its schema, and what no run's events tell."""
        with translated(self._path):
            return self._use(faults)

    def info(self) -> dict[str, Any]:
        """Return what there is to know of the place: engine, versions, settings, sizes in bytes, counts."""
        with translated(self._path):
            found = self._use(upkeep.facts)
        poisoned = self._files.identity in _poisoned
        return upkeep.about(self._path, busy_wait_s=self._busy_wait_s) | {"url": self.url, "poisoned": poisoned} | found

    # The end.

    def close(self) -> None:
        """Close the store, after moving what the WAL holds into the file; idempotent.

        In a forked child it does nothing: the connections belong to the parent. Raises StoreBusy if a transaction of
        another thread doesn't end, StoreError inside a transaction.
        """
        if self._closed or os.getpid() != self._pid:
            return
        if self._owner == get_ident():
            raise StoreError(f"{self._path}: close was called inside transact")
        if not self._lock.acquire(timeout=self._busy_wait_s):
            raise StoreBusy(f"{self._path}: another thread holds the write lock; close it when that thread is done")
        try:
            self._closed = True
            with self._heart_lock, self._watch_lock:
                for connection in (self._heart, self._watcher):
                    if connection is not None:
                        self._disconnect(connection)
                self._heart = self._watcher = None
            self._close_idle()
            if self._files.identity in _poisoned or not self._files.may_close():
                self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            else:
                upkeep.truncate_before_close(self._writer)
            self._disconnect(self._writer)
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
