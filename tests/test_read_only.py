"""A store whose writer has crashed is looked at by somebody who may read it and not write it: nothing is touched."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from runjournal import Journal
from runjournal.log import events as e
from runjournal.log import sqlite_snapshot as snapshot
from runjournal.log.clock import SystemClock
from runjournal.log.errors import NotAStore, StoreBusy, StoreReadOnly, StoreUnavailable, TooLarge
from runjournal.log.sqlite_snapshot import CopiedStore
from runjournal.logbook import Logbook

HERE = Path(__file__).parent


@pytest.fixture
def crashed(tmp_path):
    """A store with a WAL that holds its newest events, as its writer left it when it was killed."""
    live = tmp_path / "live.db"
    left = tmp_path / "left"
    left.mkdir()
    with Journal.open(live) as journal:
        journal.append("r", [e.RunQueued("demo", None), e.NoteAdded("x")], expect=0)
        for suffix in ("", "-wal", "-shm"):
            shutil.copyfile(f"{live}{suffix}", left / f"runs.db{suffix}")
    return left / "runs.db"


def contents(folder):
    """Every file of a folder: its bytes, its mode and when it was written."""
    return {
        each.name: (each.read_bytes(), each.stat().st_mode, each.stat().st_mtime_ns)
        for each in sorted(folder.iterdir())
    }


@pytest.mark.parametrize("shm", [True, False])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write")
def test_somebody_else_looks_at_a_crashed_store(crashed, tmp_path, shm):
    """Whoever may only read sees all that was committed, is told how fresh it is, and can touch nothing."""
    if not shm:
        Path(f"{crashed}-shm").unlink()
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # pytest's own folders are root's alone
        folder = Path(place) / "store"
        shutil.copytree(crashed.parent, folder)
        for each in (Path(place), folder):
            each.chmod(0o755)
        for each in folder.iterdir():
            each.chmod(0o644)
        before = contents(folder)
        mine = tmp_path / "mine.db"
        with Journal.open(mine) as journal:
            journal.append("r", [e.RunQueued("demo", None)], expect=0)
        program = [sys.executable, HERE / "programs" / "read_as_nobody.py", mine, folder / "runs.db"]
        done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=100)
        assert (0, "") == (done.returncode, done.stderr)
        found = {command: rest for command, *rest in map(json.loads, done.stdout.splitlines())}
        assert before == contents(folder)
    assert {"ls": 0, "show": 0, "verify": 0, "audit": 0, "tail": 0} == {
        name: code for name, (code, _, _) in found.items() if name != "cancel"
    }
    told = {name: "this is a copy of it, last changed " in err for name, (_, _, err) in found.items()}
    assert dict.fromkeys(told, True) | {"cancel": False} == told
    assert "demo" in found["ls"][1]
    assert "note.added" in found["tail"][1]
    code, _, err = found["cancel"]
    assert code != 0
    assert "can't be written" in err or "can't be opened" in err


def test_a_copy_is_read_and_not_written(crashed):
    """A copy holds what the WAL holds, says when the original changed, refuses what writes, and is gone when closed."""
    before = contents(crashed.parent)
    store = CopiedStore(crashed, clock=SystemClock())
    store.seal()
    folder = Path(store._folder)
    with Logbook(store, owned=True) as journal:
        assert ["run.queued", "note.added"] == [record.type for record in journal.events("r")]
        assert 19 == len(store.changed_at)
        with pytest.raises(StoreReadOnly, match="may read the store"):
            journal.append("r", [e.NoteAdded("y")])
        with pytest.raises(StoreReadOnly):
            store.heartbeat("r", 1, 1.0, 1.0)
        assert folder.stat().st_mode & 0o077 == 0
    assert not folder.exists()
    assert before == contents(crashed.parent)


def test_a_copy_has_a_bound(crashed, monkeypatch):
    """A store of more bytes than a copy may have is refused, and no copy is left behind."""
    monkeypatch.setattr(snapshot, "copied_store_bytes_max", 1000)
    made = crashed.parent / "copy"
    made.mkdir()
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: str(made))
    with pytest.raises(TooLarge, match="copied_store_bytes_max = 1000"):
        CopiedStore(crashed, clock=SystemClock())
    assert not made.exists()


def test_a_copy_that_is_torn_is_made_again(crashed, monkeypatch):
    """A copy in the middle of which the WAL was begun anew isn't used; one that never comes out whole is refused."""
    copied, count = snapshot._copy_file, []

    def torn(path, copy, times):
        count.append(copy)
        copied(path, copy)
        if len(count) <= times:
            wal = Path(f"{path}-wal")
            wal.write_bytes(bytes([len(count)]) + wal.read_bytes()[1:])

    whole = Path(f"{crashed}-wal").read_bytes()
    monkeypatch.setattr(snapshot, "_copy_file", lambda path, copy: torn(path, copy, 2))
    with CopiedStore(crashed, clock=SystemClock()):
        assert 3 == len(count)
    count.clear()
    Path(f"{crashed}-wal").write_bytes(whole)
    monkeypatch.setattr(snapshot, "_copy_file", lambda path, copy: torn(path, copy, 99))
    with pytest.raises(StoreBusy, match="faster than it can be copied"):
        CopiedStore(crashed, clock=SystemClock())


@pytest.mark.parametrize(("name", "error"), [("none.db", StoreUnavailable), ("text.db", NotAStore)])
def test_what_is_no_store_is_not_copied(tmp_path, name, error):
    """A file that isn't there, or is no store, is told of as always."""
    (tmp_path / "text.db").write_text("x" * 200)
    with pytest.raises(error):
        CopiedStore(tmp_path / name, clock=SystemClock())
