"""The doctor: what it says of a sound store, and of each thing that isn't as it should be."""

import os
import re
import sqlite3
from datetime import UTC, datetime

import pytest

from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log import owner, sqlite_place
from runjournal.log.clock import FakeClock
from runjournal.log.store import Checkpoint, Import
from runjournal.looking.doctor import doctor
from runjournal.projections.state import RunState
from runjournal.writing.checkpoints import seal

NEWER = """UPDATE events SET body = CAST(replace(body, '"v":1', '"v":9') AS BLOB) WHERE run = 1 AND seq = 2"""
NAMES = re.compile(r"[a-z_ ]+")


def claimed(boot_id):
    me = owner.here()
    return e.RunClaimed("w", 1, 60.0, me.host, boot_id, me.pid_ns, me.pid, me.started)


def filled(path, boot_id=None):
    """A store with one running and one queued run."""
    with Journal.open(path, clock=FakeClock()) as journal:
        journal.append("r", [e.RunQueued("demo", {})], expect=0)
        journal.append("r", [claimed(boot_id or owner.here().boot_id)])
        journal.append("r", [e.MemorySet("big", "x" * 70_000), e.CostRecorded("1", "USD", "x")], epoch=1)
        journal.append("q", [e.RunQueued("demo", {})], expect=0)
    return path


def changed(path, *statements):
    connection = sqlite3.connect(path)
    for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def examined(path):
    with Journal.open(path, clock=FakeClock()) as journal:
        return {check.name: check for check in doctor(journal)}


@pytest.mark.requirement("R153")
def test_sound_store(tmp_path):
    """Nothing is wrong with a fresh store, and each check says what it saw."""
    found = examined(filled(tmp_path / "r.db"))
    assert [] == [check for check in found.values() if check.ok is False and check.name not in ("file mode", "disk")]
    expected = {"versions", "engine", "wal", "settings", "schema", "place", "integrity", "lock", "clock", "recovery"}
    assert expected <= found.keys()
    assert all(check.what and NAMES.fullmatch(check.name) for check in found.values())


def test_memory_store():
    """Of a store in memory it says that nothing is kept, and looks at its runs."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        found = {check.name: check for check in doctor(journal.store)}
    assert found["engine"].ok is None
    assert found["recovery"].ok is True


def test_file_mode(tmp_path):
    """A file that others may read is named, with the command that changes it."""
    path = filled(tmp_path / "r.db")
    path.chmod(0o644)
    check = examined(path)["file mode"]
    assert (False, f"chmod 600 {path}") == (check.ok, check.next)


def test_network_file_system(tmp_path, monkeypatch):
    """A place that machines share is named."""
    path = filled(tmp_path / "r.db")
    with Journal.open(path, clock=FakeClock()) as journal:
        monkeypatch.setattr(sqlite_place, "mountinfo", lambda: "22 1 0:40 / / rw - nfs4 host:/x rw")
        (check,) = [check for check in doctor(journal) if check.name == "place"]
    assert check.ok is False
    assert "nfs4" in check.what


def test_old_engine(tmp_path, monkeypatch):
    """An engine without the fixes is named."""
    path = filled(tmp_path / "r.db")
    with Journal.open(path, clock=FakeClock()) as journal:
        monkeypatch.setattr(sqlite_place, "ENGINE_MIN", "99.0.0")
        (check,) = [check for check in doctor(journal) if check.name == "engine"]
    assert check.ok is False


def test_lock(tmp_path):
    """That somebody writes just now is told, and is no fault."""
    path = filled(tmp_path / "r.db")
    with Journal.open(path, clock=FakeClock()) as journal:
        other = sqlite_place.connect(str(path), 0.0)
        other.execute("BEGIN IMMEDIATE")
        (check,) = [check for check in doctor(journal) if check.name == "lock"]
        other.close()
    assert check.ok is None


def test_abandoned_run(tmp_path):
    """A run whose owner is gone is named, with the command that shows it."""
    check = examined(filled(tmp_path / "r.db", boot_id="another-boot"))["abandoned"]
    assert (False, "runjournal explain r") == (check.ok, check.next)


def test_run_that_lives_elsewhere(tmp_path):
    """A running run that was brought in from another store isn't abandoned."""
    path = filled(tmp_path / "r.db", boot_id="another-boot")
    changed(path, "INSERT INTO imports VALUES ('r', 'jsonl', 'x', '{}')")
    assert examined(path)["abandoned"].ok is True


@pytest.mark.requirement("R153")
@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("DELETE FROM blobs", 3),
        ("UPDATE events SET body = x'00' WHERE run = 1 AND seq = 2", 2),
        (NEWER, 2),
        ("DELETE FROM events WHERE run = 1 AND seq = 3", 3),
    ],
)
def test_missing_to_recover(tmp_path, statement, place):
    """What an unfinished run lacks to be recovered is named, with its place."""
    path = filled(tmp_path / "r.db")
    changed(path, statement)
    check = examined(path)["recovery"]
    assert check.ok is False
    assert f"runjournal show r --events --from {place}" == check.next


def test_checkpoints_of_other_versions(tmp_path):
    """Checkpoints of other versions are told: recovery is slower without them, and as good."""
    path = filled(tmp_path / "r.db")
    with Journal.open(path, clock=FakeClock()) as journal:
        sealed = seal(RunState, RunState.initial(), "q", 1, "x")
        journal.store.save_checkpoint(Checkpoint("q", 1, "run_state:old", sealed.body))
        (check,) = [check for check in doctor(journal) if check.name == "checkpoints"]
    assert (None, "runjournal replay q") == (check.ok, check.next)


def test_relaxed_tail(tmp_path):
    """What a power cut could still take is told."""
    path = filled(tmp_path / "r.db")
    assert examined(path)["tail"].ok is True
    with Journal.open(path, clock=FakeClock()) as journal:
        journal.append("q", [e.NoteAdded("x")])
    assert "the last 1 events" in examined(path)["tail"].what


def test_clock_behind(tmp_path):
    """A wall clock behind the newest event is found."""
    path = filled(tmp_path / "r.db")
    with Journal.open(path, clock=FakeClock(start=datetime(2025, 1, 1, tzinfo=UTC))) as journal:
        (check,) = [check for check in doctor(journal) if check.name == "clock"]
    assert check.ok is False


def test_waiting_and_imported_runs(tmp_path):
    """Runs that wait and imported ones are counted, the first named."""
    with Journal.open(tmp_path / "r.db", clock=FakeClock()) as journal:
        journal.append("w", [e.RunQueued("demo", {})], expect=0)
        journal.append("w", [claimed(owner.here().boot_id)])
        journal.append("w", [e.RunWaiting([{"kind": "signal", "id": "go"}])], epoch=1)
        event = e.RunImported("chat", "s", "t", "0" * 64)
        batch = journal.batch("i", [event], expect=0, by="import:t")
        journal.append(batch._replace(imported=Import("i", "t", "0" * 64, "{}")))
        found = {check.name: check for check in doctor(journal)}
    assert "runjournal explain w" == found["waiting"].next
    assert found["imported"].what.startswith("1 ")


def test_other_processes(tmp_path):
    """Processes that have the file open are told, this one left out."""
    check = examined(filled(tmp_path / "r.db"))["others"]
    assert str(os.getpid()) not in check.what
