"""The recorders pass eventsourcing's base cases, and do what the stores need of them."""

import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from uuid import UUID, uuid4

import apsw
import pytest
from eventsourcing.persistence import (
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    StoredEvent,
)
from eventsourcing.tests.persistence import (
    AggregateRecorderTestCase,
    ApplicationRecorderTestCase,
    NonInterleavingNotificationIDsBaseCase,
    RecorderTestCase,
)

from runjournal.log import recorder as recorder_module
from runjournal.log.limits import idle_readers_max
from runjournal.log.recorder import SQLiteRecorder, SQLiteStreamRecorder
from runjournal.log.sqlite_events import EventTable

# What the store's migrations make: the columns of the recorder's own table, with a check that it doesn't have.
STORE_TABLE = """
CREATE TABLE events (
    position INTEGER PRIMARY KEY, run_id TEXT NOT NULL, seq INTEGER NOT NULL CHECK (seq >= 1), type TEXT NOT NULL,
    body BLOB NOT NULL, UNIQUE (run_id, seq)
) STRICT
"""

R = TypeVar("R", bound=SQLiteStreamRecorder)


def event(seq: int = 1, run_id: str = "run-1", kind: str = "note.added", body: bytes = b"{}") -> StoredEvent:
    """An event to insert."""
    return StoredEvent(run_id, seq, kind, body)


def events(first: int, last: int, run_id: str = "run-1") -> list[StoredEvent]:
    """Events of one run, both ends included."""
    return [event(seq, run_id) for seq in range(first, last + 1)]


def wait_until(condition: Callable[[], bool], wait_s: float = 10.0) -> None:
    """Wait until a condition holds, or fail."""
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# --- eventsourcing's base cases, unmodified -----------------------------------------------------------------------


class OnFile(RecorderTestCase):
    """A file database and UUID ids."""

    id_type: type[UUID | str] = UUID

    def database(self) -> str:
        """A path in a folder that goes when the test ends."""
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return str(Path(folder.name, "recorder.db"))

    def opened(self, recorder_class: type[R]) -> R:
        """A recorder with its table."""
        recorder = recorder_class(self.database(), table="stored_events", id_type=self.id_type)
        self.addCleanup(recorder.close)
        recorder.create_table()
        return recorder


class InMemory(OnFile):
    """An in-memory database and UUID ids."""

    def database(self) -> str:
        """The name that asks for it."""
        return ":memory:"


class TextIds(OnFile):
    """A file database and text ids."""

    id_type = str

    def new_originator_id(self) -> UUID | str:
        """An id as our runs have it."""
        return f"run-{uuid4()}"


class TestStream(OnFile, AggregateRecorderTestCase):
    """eventsourcing's contract of streams."""

    def create_recorder(self) -> SQLiteStreamRecorder:
        """The recorder under test."""
        return self.opened(SQLiteStreamRecorder)


class TestStreamWithText(TextIds, TestStream):
    """The same with text ids."""


class TestStreamInMemory(InMemory, TestStream):
    """The same in memory."""


class TestLog(OnFile, ApplicationRecorderTestCase[SQLiteRecorder]):
    """eventsourcing's contract of the log."""

    def create_recorder(self) -> SQLiteRecorder:
        """The recorder under test."""
        return self.opened(SQLiteRecorder)

    def test_insert_subscribe(self) -> None:
        """The optional part of the contract, subscriptions, holds too."""
        self.optional_test_insert_subscribe()


class TestLogWithText(TextIds, TestLog):
    """The same with text ids."""


class TestLogInMemory(InMemory, TestLog):
    """The same in memory."""


class TestPositions(OnFile, NonInterleavingNotificationIDsBaseCase):
    """eventsourcing's contract of positions: batches of two threads don't interleave."""

    def create_recorder(self) -> SQLiteRecorder:
        """The recorder under test."""
        return self.opened(SQLiteRecorder)


class TestPositionsWithText(TextIds, TestPositions):
    """The same with text ids."""


class TestPositionsInMemory(InMemory, TestPositions):
    """The same in memory."""


def test_base_cases_run() -> None:
    """No case of this module is abstract: pytest passes over those without a word."""
    cases = [case for name, case in vars(sys.modules[__name__]).items() if name.startswith("Test")]
    assert 9 == len(cases)
    assert [] == [case for case in cases if inspect.isabstract(case)]


# --- on the store's own table ------------------------------------------------------------------------------------


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[apsw.Connection]:
    """An open store, made by migrations elsewhere."""
    connection = apsw.Connection(str(tmp_path / "store.db"))
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute(STORE_TABLE)
    yield connection
    connection.close()


def test_store_check(connection: apsw.Connection, tmp_path: Path) -> None:
    """The check of the store's own table, seq >= 1, reaches callers as IntegrityError."""
    with SQLiteRecorder(tmp_path / "store.db") as recorder, pytest.raises(IntegrityError):
        recorder.insert_events([event(0)])
    assert EventTable("events").max_position(connection) is None


# --- parameters and errors ----------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that isn't there yet."""
    return tmp_path / "recorder.db"


@pytest.fixture
def recorder(path: Path) -> Iterator[SQLiteRecorder]:
    """A recorder on a file, with its table."""
    with SQLiteRecorder(path) as recorder:
        recorder.create_table()
        yield recorder


@pytest.mark.parametrize("table", ["events", "select", 'say "hi"; DROP TABLE x --', "tab le.é", "a]b`c'd"])
def test_table_name(path: Path, table: str) -> None:
    """A table may have any name, and two recorders with two names share a file without sharing events."""
    with SQLiteRecorder(path, table=table) as one, SQLiteRecorder(path, table="other") as two:
        one.create_table()
        two.create_table()
        assert [1, 2] == one.insert_events(events(1, 2))
        assert [1] == two.insert_events(events(1, 1))
        assert events(1, 2) == one.select_events("run-1")
        assert [1] == [found.id for found in two.select_notifications(None, 10)]
    connection = apsw.Connection(str(path))
    assert {(table,), ("other",)} == set(connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'"))
    connection.close()


@pytest.mark.parametrize("table", ["", "a\0b"])
def test_table_name_refused(table: str) -> None:
    """A table's name that SQL can't hold is refused at once."""
    with pytest.raises(ValueError, match="table name"):
        SQLiteRecorder(":memory:", table=table)


@pytest.mark.parametrize(("id_type", "wrong"), [(str, uuid4()), (UUID, "run-1")])
def test_id_type(path: Path, id_type: type[UUID | str], wrong: UUID | str) -> None:
    """A run id of the other type is refused, in and out, and nothing is written."""
    with SQLiteRecorder(path, id_type=id_type) as recorder:
        recorder.create_table()
        right = uuid4() if id_type is UUID else "run-1"
        with pytest.raises(TypeError, match="run id"):
            recorder.insert_events([StoredEvent(right, 1, "t", b""), StoredEvent(wrong, 1, "t", b"")])
        with pytest.raises(TypeError, match="run id"):
            recorder.select_events(wrong)
        assert recorder.max_notification_id() is None
        assert [1] == recorder.insert_events([StoredEvent(right, 1, "t", b"\xff\0")])
        assert [StoredEvent(right, 1, "t", b"\xff\0")] == recorder.select_events(right)


def test_conflict(recorder: SQLiteRecorder) -> None:
    """A conflict is IntegrityError, its text holds no value, nothing of the batch stays, and work goes on."""
    recorder.insert_events([event(1, "secret-run")])
    with pytest.raises(IntegrityError) as caught:
        recorder.insert_events([event(2, "secret-run"), event(1, "secret-run")])
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, apsw.ConstraintError)
    assert [2] == recorder.insert_events([event(2, "secret-run")])


def test_errors_translated(recorder: SQLiteRecorder, path: Path) -> None:
    """A missing table, a held lock, a path that can't be opened and a closed recorder have eventsourcing's names."""
    with SQLiteRecorder(path, table="missing") as other, pytest.raises(ProgrammingError, match="missing"):
        other.select_events("run-1")
    holder = apsw.Connection(str(path))
    holder.execute("BEGIN IMMEDIATE")
    with SQLiteRecorder(path, busy_wait_s=0.01) as other, pytest.raises(OperationalError):
        other.insert_events([event()])
    holder.close()
    with pytest.raises(OperationalError):
        SQLiteRecorder(path / "no" / "such.db")
    recorder.close()
    recorder.close()
    with pytest.raises(InterfaceError):
        recorder.insert_events([event()])
    with pytest.raises(InterfaceError):
        recorder.select_events("run-1")


def test_all_driver_errors_known() -> None:
    """Each translation is from an apsw error to one that eventsourcing calls a PersistenceError."""
    table = recorder_module.TRANSLATIONS
    assert all(issubclass(error, apsw.Error) for error in table)
    assert {"eventsourcing.persistence"} == {error.__module__ for error in table.values()}


def test_options_refused(recorder: SQLiteRecorder) -> None:
    """A tracking record, which only a ProcessRecorder keeps, is refused instead of being dropped."""
    with pytest.raises(NotSupportedError, match="tracking"):
        recorder.insert_events([event()], tracking=object())
    assert recorder.max_notification_id() is None


def test_factory(path: Path) -> None:
    """A function may open the connections; the recorder closes what it asked for, and its readers can't write."""
    opened: list[apsw.Connection] = []

    def connect() -> apsw.Connection:
        opened.append(apsw.Connection(str(path)))
        return opened[-1]

    with SQLiteRecorder(connect) as recorder:
        recorder.create_table()
        recorder.insert_events([event()])
        assert [event()] == recorder.select_events("run-1")
        writer, reader = opened
        with pytest.raises(apsw.ReadOnlyError):
            reader.execute("DELETE FROM events")
    for connection in (writer, reader):
        with pytest.raises(apsw.ConnectionClosedError):
            connection.execute("SELECT 1")


@pytest.mark.parametrize("name", [":memory:", Path(":memory:")])
def test_memory_private(name: str | Path) -> None:
    """Two in-memory recorders share nothing, though each has several connections."""
    with SQLiteRecorder(name) as one, SQLiteRecorder(name) as two:
        one.create_table()
        two.create_table()
        one.insert_events([event()])
        assert [event()] == one.select_events("run-1")
        assert [] == two.select_events("run-1")


def test_open_at_once(path: Path) -> None:
    """Many recorders may make a fresh file at the same moment."""
    barrier = threading.Barrier(16)

    def work(number: int) -> None:
        barrier.wait()
        with SQLiteRecorder(path) as recorder:
            recorder.create_table()
            recorder.insert_events([event(run_id=f"run-{number}")])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    with SQLiteRecorder(path) as recorder:
        assert 16 == recorder.max_notification_id()


def test_readers_bounded(recorder: SQLiteRecorder) -> None:
    """Readers are kept for the next caller, up to a bound."""
    barrier = threading.Barrier(20)

    def read(_: int) -> None:
        with recorder._reading():
            barrier.wait()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(read, range(20)))
    assert idle_readers_max == len(recorder._idle)


def test_read_beside_writer(recorder: SQLiteRecorder) -> None:
    """A reader neither waits for an open write transaction nor sees it."""
    recorder.insert_events([event()])
    with recorder._writing() as writer:
        EventTable("events").insert(writer, [("run-1", 2, "note.added", b"{}")])
        assert [event()] == recorder.select_events("run-1")
    assert events(1, 2) == recorder.select_events("run-1")


# --- notifications ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_paging(recorder: SQLiteRecorder, limit: int) -> None:
    """Pages that start behind the last id give every event once and in order, whatever the page's size."""
    recorder.insert_events([event(seq, f"run-{seq % 3}", "odd" if seq % 2 else "even") for seq in range(1, 26)])

    def ids(topics: Sequence[str]) -> list[int]:
        seen: list[int] = []
        while page := recorder.select_notifications(
            seen[-1] if seen else None, limit, topics=topics, inclusive_of_start=not seen
        ):
            assert limit >= len(page)
            seen += [found.id for found in page]
        return seen

    assert list(range(1, 26)) == ids(())
    assert list(range(1, 26, 2)) == ids(["odd"])
    assert [] == ids(["none", 'a "quote"'])


def test_subscription_complete(recorder: SQLiteRecorder, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside four writers, two of them on connections of others, no event is lost or doubled, with topics or not."""
    monkeypatch.setattr(recorder_module, "subscription_page_events_max", 7)
    seen: dict[str, list[int]] = {"all": [], "even": []}

    def collect(name: str, topics: Sequence[str], count: int) -> None:
        with recorder.subscribe(topics=topics) as subscription:
            seen[name] += [found.id for _, found in zip(range(count), subscription, strict=False)]

    def write(number: int, target: SQLiteRecorder) -> None:
        for seq in range(1, 150, 3):
            kinds = ("odd", "even")
            target.insert_events([event(s, f"run-{number}", kinds[s % 2 == 0]) for s in range(seq, seq + 3)])

    with SQLiteRecorder(path) as other, ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(collect, "all", (), 600), pool.submit(collect, "even", ["even"], 300)]
        writers = [pool.submit(write, n, target) for n, target in enumerate((recorder, other, recorder, other))]
        for future in writers + readers:
            future.result(timeout=60)
    assert list(range(1, 601)) == seen["all"]
    assert [found.id for found in recorder.select_notifications(None, 999, topics=["even"])] == seen["even"]


@pytest.mark.parametrize("end", ["stop", "close"])
def test_subscription_ends(recorder: SQLiteRecorder, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting subscription ends when another thread stops it or closes the recorder, not when it would look next."""
    monkeypatch.setattr(recorder_module, "subscription_poll_s", 3600.0)
    subscription = recorder.subscribe()
    ended = threading.Event()

    def wait() -> None:
        assert [] == list(subscription)
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: subscription._version is not None)
    (subscription.stop if end == "stop" else recorder.close)()
    thread.join(timeout=60)
    assert ended.is_set()
    assert subscription._connection is None
    assert [] == list(subscription)


def test_subscription_skips(recorder: SQLiteRecorder) -> None:
    """A subscription doesn't walk again over what it passed for other topics, nor read while nothing commits."""
    recorder.insert_events(events(1, 9))
    subscription = recorder.subscribe(topics=["wanted"])
    assert subscription._pull()
    assert 9 == subscription._place
    assert not subscription._pull()
    recorder.insert_events([event(10, kind="wanted")])
    assert 10 == next(subscription).id
    subscription.stop()


def test_subscription_ahead(recorder: SQLiteRecorder) -> None:
    """A subscription that starts behind the newest event, or beyond it, gives only what is newer."""
    recorder.insert_events(events(1, 3))
    with recorder.subscribe(gt=3) as newest, recorder.subscribe(gt=4) as beyond:
        assert newest._pull()
        assert beyond._pull()
        recorder.insert_events(events(4, 5))
        assert 4 == next(newest).id
        assert 5 == next(beyond).id
