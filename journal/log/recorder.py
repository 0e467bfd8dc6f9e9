"""eventsourcing's recorder interfaces on apsw, on connections of their own; the stores don't use them.

`SQLiteStreamRecorder` writes and reads the streams of runs, `SQLiteRecorder` adds the store-wide order. Both are
thread-safe and raise eventsourcing's errors. The table's name and the type of the run ids are parameters. What a
`StoredEvent` calls originator_id, originator_version, topic and state are the columns run_id, seq, type and body of an
`EventTable`; a Notification's id is the position.
"""

# apsw's stub takes Buffer from collections.abc, which has it from Python 3.12 on: to pyright on 3.11 it is unknown.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import count
from threading import Event, Lock
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self, TypeAlias, cast
from uuid import UUID
from weakref import WeakSet

import apsw
from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    Notification,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    StoredEvent,
    Subscription,
)

from .limits import (
    idle_readers_max,
    recorder_busy_wait_s,
    subscription_page_events_max,
    subscription_poll_s,
    wal_retry_s,
)
from .private import open_new
from .sqlite_events import EventTable, NewRow, Row

Database: TypeAlias = str | os.PathLike[str] | Callable[[], apsw.Connection]

__all__ = ["SQLiteRecorder", "SQLiteStreamRecorder", "SQLiteSubscription"]


# What is not listed is a DatabaseError.
TRANSLATIONS: dict[type[apsw.Error], type[Exception]] = {
    apsw.ConstraintError: IntegrityError,
    apsw.MismatchError: DataError,
    apsw.TooBigError: DataError,
    apsw.InternalError: InternalError,
    apsw.BindingsError: ProgrammingError,
    apsw.MisuseError: ProgrammingError,
    apsw.SQLError: ProgrammingError,
    apsw.ConnectionClosedError: InterfaceError,
    apsw.ForkingViolationError: InterfaceError,
    apsw.ThreadingViolationError: InterfaceError,
    **dict.fromkeys(
        (
            apsw.AbortError,
            apsw.AuthError,
            apsw.BusyError,
            apsw.CantOpenError,
            apsw.FullError,
            apsw.IOError,
            apsw.InterruptError,
            apsw.LockedError,
            apsw.NoMemError,
            apsw.PermissionsError,
            apsw.ProtocolError,
            apsw.ReadOnlyError,
            apsw.SchemaChangeError,
        ),
        OperationalError,
    ),
}

memory_numbers = count(1)


class SQLiteStreamRecorder(AggregateRecorder):
    """Inserts events into the streams of runs and selects them, in one SQLite table.

    Args:
        database: The path of a file (made if absent, switched to WAL, durable at each commit); `":memory:"`, private
            to this recorder; or a function that opens a new connection to one and the same file at each call.
        table: The table's name, any text without NUL; it is quoted.
        id_type: `str` or `UUID`: the type of the run ids that go in and come back.
        busy_wait_s: Seconds to wait for another connection's lock. A function sets its connections' wait itself.

    Raises:
        ValueError: The table's name is empty or holds a NUL.
        OperationalError: The database can't be opened.
    """

    def __init__(
        self,
        database: Database,
        *,
        table: str = "events",
        id_type: type[str | UUID] = str,
        busy_wait_s: float = recorder_busy_wait_s,
    ) -> None:
        self._id_type = id_type
        self._row = uuid_row if id_type is UUID else text_row
        self._table = EventTable(table)
        self._lock = Lock()
        # An in-memory database has no WAL, so a reader that met a writer would be busy: they take turns instead.
        memory = not callable(database) and str(database) == ":memory:"
        self._read_lock: AbstractContextManager[object] = self._lock if memory else nullcontext()
        self._open = opener(database, busy_wait_s)
        self._idle: list[apsw.Connection] = []
        self._closed = False
        with translated():
            self._writer = self._open()
            if not callable(database):
                switch_to_wal(self._writer, busy_wait_s)
                self._writer.execute("PRAGMA synchronous = FULL")

    def create_table(self) -> None:
        """Make the table unless it is there: any seq, any bytes as body, one row for each (run_id, seq).

        Raises:
            PersistenceError: One of eventsourcing's errors, for what SQLite reports.
        """
        with self._writing() as connection:
            self._table.create(connection)

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Insert the events in one transaction, all or none, and return None.

        Raises:
            IntegrityError: One of them is stored already, or the table's own checks said no.
            NotSupportedError: Options were given; this recorder has none, and dropping a `tracking` would lose it.
            OperationalError: Busy beyond the wait, disk full, I/O error.
            TypeError: A run id isn't of this recorder's type.
        """
        self._insert_all(stored_events, kwargs)
        return None

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> list[StoredEvent]:
        """Return a run's events with gt < version <= lte, at most `limit`, by version up or down.

        Raises:
            PersistenceError: One of eventsourcing's errors, for what SQLite reports.
            TypeError: The run id isn't of this recorder's type.
        """
        text = self._to_text(originator_id)
        with self._reading() as connection:
            rows = self._table.select(connection, text, gt=gt, lte=lte, desc=desc, limit=limit)
        return [StoredEvent(self._id_type(run_id), seq, kind, body) for run_id, seq, kind, body, _ in rows]

    def close(self) -> None:
        """Close the recorder's own connections; a second call does nothing."""
        with self._lock:
            self._closed = True
            self._writer.close()
        self._close_idle()

    def __enter__(self) -> Self:
        """Return the recorder, which closes when the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the recorder."""
        self.close()

    def _insert_all(self, stored_events: Sequence[StoredEvent], options: dict[str, Any]) -> list[int]:
        if options:
            raise NotSupportedError(f"insert_events() takes no options, got {sorted(options)}")
        if not stored_events:
            return []
        rows = [self._row(each) for each in stored_events]
        with self._writing() as connection:
            return list(self._table.insert(connection, rows))

    def _to_text(self, run_id: UUID | str) -> str:
        if not isinstance(run_id, self._id_type):
            raise wrong_id(self._id_type, run_id)
        return run_id if isinstance(run_id, str) else str(run_id)

    def _notifications(self, rows: Sequence[Row]) -> list[Notification]:
        to_id = self._id_type
        return [Notification(to_id(run_id), seq, kind, body, position) for run_id, seq, kind, body, position in rows]

    @contextmanager
    def _writing(self) -> Generator[apsw.Connection]:
        """Hold the writer in a transaction that commits at the end of the block, or rolls back."""
        with self._lock, translated():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                # A full disk or an I/O error makes SQLite roll back by itself.
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Generator[apsw.Connection]:
        """Borrow a connection that only reads; several threads may, beside the writer."""
        with self._read_lock, translated():
            connection = self._reader()
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            self._give_back(connection)

    def _reader(self) -> apsw.Connection:
        if self._closed:
            raise InterfaceError("the recorder is closed")
        with suppress(IndexError):
            return self._idle.pop()
        connection = self._open()
        connection.execute("PRAGMA query_only = ON")
        return connection

    def _give_back(self, connection: apsw.Connection) -> None:
        if len(self._idle) < idle_readers_max:
            self._idle.append(connection)
        else:
            connection.close()
        # close() may have emptied the list since this connection was taken out.
        if self._closed:
            self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


class SQLiteRecorder(SQLiteStreamRecorder, ApplicationRecorder):
    """Adds the store-wide order: positions out of inserts, pages of the log, subscriptions."""

    def __init__(
        self,
        database: Database,
        *,
        table: str = "events",
        id_type: type[str | UUID] = str,
        busy_wait_s: float = recorder_busy_wait_s,
    ) -> None:
        """Take what `SQLiteStreamRecorder` takes."""
        super().__init__(database, table=table, id_type=id_type, busy_wait_s=busy_wait_s)
        self._subscriptions: WeakSet[SQLiteSubscription] = WeakSet()

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> list[int]:
        """Insert the events as `SQLiteStreamRecorder` does and return their positions, in order."""
        return self._insert_all(stored_events, kwargs)

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> list[Notification]:
        """Return events from `start` (None: the first; itself only if inclusive) to `stop` (itself too), in order.

        To page, call again with the last id as `start` and `inclusive_of_start=False`. Nothing ever appears below an
        id that was returned, because SQLite has one writer at a time.

        Raises:
            PersistenceError: One of eventsourcing's errors, for what SQLite reports.
        """
        gt = 0 if start is None else start - 1 if inclusive_of_start else start
        with self._reading() as connection:
            rows = self._table.select_log(connection, gt=gt, lte=stop, types=topics, limit=limit)
        return self._notifications(rows)

    def max_notification_id(self) -> int | None:
        """Return the newest event's position, or None without events.

        Raises:
            PersistenceError: One of eventsourcing's errors, for what SQLite reports.
        """
        with self._reading() as connection:
            return self._table.max_position(connection)

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> SQLiteSubscription:
        """Return an iterator over the events behind position `gt`, which waits for new ones, of any process.

        Example:
            with recorder.subscribe(gt=seen) as subscription:
                for notification in subscription: ...
        """
        subscription = SQLiteSubscription(
            self,
            gt,
            topics,
            open_reader=self._reader,
            read_lock=self._read_lock,
            table=self._table,
            notifications=self._notifications,
        )
        self._subscriptions.add(subscription)
        return subscription

    def close(self) -> None:
        """Stop the subscriptions and close the recorder's own connections; a second call does nothing."""
        for subscription in list(self._subscriptions):
            subscription.stop()
        super().close()


class SQLiteSubscription(Subscription[SQLiteRecorder]):
    """Iterates over events in their store-wide order, and waits at the end of the log for more.

    It polls `PRAGMA data_version` on a connection that never writes, so it sees commits of every thread and process.
    Each event comes once, because a position is never filled in below one that was seen. `stop()` may be called from
    any thread; the iteration then ends within one poll.
    """

    def __init__(
        self,
        recorder: SQLiteRecorder,
        gt: int | None,
        topics: Sequence[str],
        *,
        open_reader: Callable[[], apsw.Connection],
        read_lock: AbstractContextManager[object],
        table: EventTable,
        notifications: Callable[[Sequence[Row]], list[Notification]],
    ) -> None:
        """Start behind position `gt` (None: at the first event); `SQLiteRecorder.subscribe` calls this."""
        super().__init__(recorder=recorder, gt=gt, topics=topics)
        self._place = gt or 0
        self._open_reader = open_reader
        self._read_lock = read_lock
        self._table = table
        self._notifications = notifications
        self._connection: apsw.Connection | None = None
        self._lock = Lock()
        self._stopped = Event()
        self._pending: deque[Notification] = deque()
        self._version: int | None = None

    def stop(self) -> None:
        """End the iteration; what was read ahead is dropped. A second call does nothing."""
        super().stop()
        self._stopped.set()
        self._close()

    def __next__(self) -> Notification:
        """Return the next event, waiting for it as long as it takes.

        Raises:
            StopIteration: The subscription was stopped, or its recorder closed.
            PersistenceError: One of eventsourcing's errors, for what SQLite reports; the place is kept.
        """
        while not self._stopped.is_set():
            with suppress(IndexError):
                return self._pending.popleft()
            if not self._pull():
                self._stopped.wait(subscription_poll_s)
        self._close()
        raise StopIteration

    def _pull(self) -> bool:
        """Read the next page; False when nothing was committed since the end of the log was reached."""
        with self._lock, self._read_lock, translated():
            if self._stopped.is_set():
                return False
            connection = self._connection = self._connection or self._open_reader()
            # The version is read before the page: a commit between the two makes the next pull read once more.
            version = cast("int", connection.execute("PRAGMA data_version").fetchall()[0][0])
            if version == self._version:
                return False
            head = self._table.max_position(connection) or 0
            limit = subscription_page_events_max
            rows = self._table.select_log(connection, gt=self._place, lte=head, types=self._topics, limit=limit)
            page = self._notifications(rows)
            self._pending.extend(page)
            if len(page) == limit:
                self._place = page[-1].id
            else:
                # Up to the head all is read, other topics too: the next pull needn't walk over them again.
                self._place = max(self._place, head)
                self._version = version
            return True

    def _close(self) -> None:
        # A pull that holds the lock right now comes back here by itself; waiting could hang a signal handler.
        if self._lock.acquire(blocking=False):
            try:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
            finally:
                self._lock.release()


# Two functions instead of one with a branch, and no method: an insert calls one for each event.


def text_row(event: StoredEvent) -> NewRow:
    """Return the values to insert for an event whose run id is text."""
    run_id = event.originator_id
    if not isinstance(run_id, str):
        raise wrong_id(str, run_id)
    return run_id, event.originator_version, event.topic, event.state


def uuid_row(event: StoredEvent) -> NewRow:
    """Return the values to insert for an event whose run id is a UUID."""
    run_id = event.originator_id
    if not isinstance(run_id, UUID):
        raise wrong_id(UUID, run_id)
    return str(run_id), event.originator_version, event.topic, event.state


def wrong_id(expected: type[UUID | str], run_id: UUID | str) -> TypeError:
    """Return the error of a run id that isn't of the recorder's type."""
    return TypeError(f"expected a run id of type {expected.__name__}, got {type(run_id).__name__}")


def opener(database: Database, busy_wait_s: float) -> Callable[[], apsw.Connection]:
    """Return the function that opens one more connection to a database."""
    if callable(database):
        return database
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    name = os.fspath(database)
    if name == ":memory:":
        # The memdb VFS lets connections share memory and lock like a file does; a shared cache locks tables instead.
        name, flags = f"file:/runjournal-recorder-{next(memory_numbers)}?vfs=memdb", flags | apsw.SQLITE_OPEN_URI

    private = name and not flags & apsw.SQLITE_OPEN_URI

    def open_connection() -> apsw.Connection:
        if private:
            with suppress(OSError):  # it is there already; or it can't be made, which SQLite says next
                os.close(open_new(name))
        connection = apsw.Connection(name, flags=flags)
        connection.set_busy_timeout(round(busy_wait_s * 1000))
        return connection

    return open_connection


def switch_to_wal(connection: apsw.Connection, busy_wait_s: float) -> None:
    """Put the database into WAL mode, in which readers go on beside the writer; in memory nothing happens.

    Raises:
        apsw.BusyError: Others held the file all the time.
    """
    deadline = monotonic() + busy_wait_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except apsw.BusyError:
            # When several switch a fresh file at once, SQLite reports busy without asking its busy timeout.
            if monotonic() >= deadline:
                raise
            sleep(wal_retry_s)
        else:
            return


@contextmanager
def translated() -> Generator[None]:
    """Raise apsw's errors as eventsourcing's; their texts name tables and columns, never values."""
    try:
        yield
    except apsw.Error as error:
        raise TRANSLATIONS.get(type(error), DatabaseError)(str(error)) from error
