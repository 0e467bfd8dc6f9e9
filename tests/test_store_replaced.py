"""The file of a store goes away while it is open: nothing more is acknowledged, and nothing more is sent."""

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.errors import JournalError, StoreReplaced
from runjournal.log.memory import MemoryStore
from runjournal.log.sqlite import SQLiteStore
from runjournal.writing.leases import Leases


def delete(path: Path) -> None:
    """The database is deleted."""
    path.unlink()


def replace(path: Path) -> None:
    """Another store is renamed over it."""
    Journal.open(path.with_name("other.db")).close()
    path.with_name("other.db").rename(path)


def copy_over(path: Path) -> None:
    """A copy of itself takes its name, as some editors and backup tools do."""
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").rename(path)


def move_folder(path: Path) -> None:
    """The folder that it lies in is moved."""
    path.parent.rename(path.parent.with_name("elsewhere"))


def delete_wal(path: Path) -> None:
    """Only the log of the newest commits is deleted."""
    path.with_name(path.name + "-wal").unlink()


def replace_wal(path: Path) -> None:
    """The log of the newest commits is replaced by an empty file."""
    delete_wal(path)
    path.with_name(path.name + "-wal").touch()


def delete_shm(path: Path) -> None:
    """Only the file in which processes lock and find each other's commits is deleted."""
    path.with_name(path.name + "-shm").unlink()


LOSSES = [delete, replace, copy_over, move_folder, delete_wal, replace_wal, delete_shm]
lossy = pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store may lie, in a folder of its own."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place" / "runs.db"


@lossy
def test_append_into_a_lost_file_is_refused(path: Path, lose: Callable[[Path], None]) -> None:
    """An append, a checkpoint, a heartbeat and a follower's look raise StoreReplaced once the file is not in place."""
    with Journal.open(path) as journal:
        journal.enqueue("kind", run_id="r")
        lose(path)
        with pytest.raises(StoreReplaced):
            journal.append("r", [e.NoteAdded("lost")], expect=None)
        with pytest.raises(StoreReplaced):
            journal.store.drop_checkpoints("r")
        with pytest.raises(StoreReplaced):
            journal.store.heartbeat("r", 1, 1.0, 1.0)
        with pytest.raises(StoreReplaced):
            journal.store.data_version()
        with pytest.raises(StoreReplaced) as refused:
            journal.store.check_place()
        assert "store_replaced" == refused.value.code


@lossy
def test_file_lost_inside_a_transaction(path: Path, lose: Callable[[Path], None]) -> None:
    """What was committed into a file that was lost in between is not acknowledged."""
    with SQLiteStore(path, clock=FakeClock()) as store, pytest.raises(StoreReplaced, match="counts for nothing"):
        store.transact(lambda _: lose(path), durable=True)


@lossy
def test_run_stops_before_its_next_effect(path: Path, lose: Callable[[Path], None]) -> None:
    """An agent whose store goes away sends nothing more."""
    sent: list[str] = []

    def agent(run):
        run.do("first", sent.append, "first")
        lose(path)
        run.do("second", sent.append, "second")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the heartbeat and the checkpoint tell of it too
        with Journal.open(path) as journal, pytest.raises(JournalError):
            journal.run(agent, run_id="r")
    assert ["first"] == sent


def test_lease_is_not_sure_without_its_store(path: Path) -> None:
    """Directly before a call, an owner whose lease holds looks for the store's file too."""
    clock = FakeClock()
    with SQLiteStore(path, clock=clock) as store:
        leases = Leases(store, clock)
        with leases.held("r", 1, clock.boottime_s()):
            assert leases.ensure("r", 1)
            delete(path)
            with pytest.raises(StoreReplaced):
                leases.ensure("r", 1)


def test_file_that_is_put_back(path: Path) -> None:
    """The same file under its name again is the store again."""
    with Journal.open(path) as journal:
        journal.enqueue("kind", run_id="r")
        aside = path.with_name("aside")
        path.rename(aside)
        with pytest.raises(StoreReplaced, match="nothing was written"):
            journal.append("r", [e.NoteAdded("lost")], expect=None)
        aside.rename(path)
        assert [2] == [record.seq for record in journal.append("r", [e.NoteAdded("kept")], expect=None)]


def test_replacement_is_left_alone(path: Path) -> None:
    """Closing a store whose name means another file now changes no byte of that one, nor of what lies beside it."""
    with Journal.open(path) as journal:
        journal.enqueue("kind", run_id="r")
        replace(path)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).write_bytes(b"of the new one")
        before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    assert before == {each.name: each.read_bytes() for each in path.parent.iterdir()}


def test_wal_that_was_deleted(path: Path) -> None:
    """What was acknowledged before the WAL was deleted is saved when the store is closed."""
    with Journal.open(path) as journal:
        journal.enqueue("kind", run_id="r")
        delete_wal(path)
    with Journal.open(path) as journal:
        assert ["r"] == [head.run_id for head in journal.runs()]


def test_reader_opens_no_other_file(path: Path) -> None:
    """A connection that is opened later than the file was replaced reads nothing of the new one."""
    with Journal.open(path) as journal:
        journal.enqueue("kind", run_id="r")
        replace(path)
        with pytest.raises(StoreReplaced):
            journal.sql("SELECT count(*) FROM runs")


def test_link_of_the_folder(path: Path, tmp_path: Path) -> None:
    """A link that is turned to another folder is found; a further hard link of the file is none of it."""
    (tmp_path / "other").mkdir()
    Journal.open(tmp_path / "other" / "runs.db").close()
    link = tmp_path / "link"
    link.symlink_to(path.parent)
    with Journal.open(link / "runs.db") as journal:
        journal.enqueue("kind", run_id="r")
        os.link(path, tmp_path / "hard.db")
        journal.append("r", [e.NoteAdded("kept")], expect=None)
        link.unlink()
        link.symlink_to(tmp_path / "other")
        with pytest.raises(StoreReplaced):
            journal.append("r", [e.NoteAdded("lost")], expect=None)


def test_memory_is_nowhere_else() -> None:
    """A store in memory can't be replaced."""
    with MemoryStore(clock=FakeClock()) as store:
        assert store.check_place() is None  # type: ignore[func-returns-value]  # as a test may
