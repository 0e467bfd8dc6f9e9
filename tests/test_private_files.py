"""Each file that the product writes is its owner's alone, whatever the umask is and whatever was there."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner

from runjournal.cli.app import cli
from runjournal.cli.demo.command import _prepare
from runjournal.journal import Journal
from runjournal.log.errors import StoreReadOnly, StoreUnavailable
from runjournal.log.recorder import SQLiteRecorder
from runjournal.log.sqlite_copy import copy
from runjournal.log.sqlite_schema import MIGRATIONS, migrate


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """A umask that takes nothing, the usual one, and one that takes all."""
    assert tmp_path.exists()
    before = os.umask(request.param)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """The rights on each file of a folder."""
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.rglob("*") if each.is_file()}


def test_store_and_what_lies_beside_it(tmp_path: Path) -> None:
    """A new store, its WAL and its shared memory."""
    with Journal.open(tmp_path / "r.db") as journal:
        journal.enqueue("kind", run_id="r")
        assert {"r.db": 0o600, "r.db-wal": 0o600, "r.db-shm": 0o600} == modes(tmp_path)


def test_empty_file_that_becomes_a_store(tmp_path: Path) -> None:
    """An empty file that others could open, and empty ones beside it, are closed to them before they hold anything."""
    for name in ("r.db", "r.db-wal", "r.db-shm"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o666)
    with Journal.open(tmp_path / "r.db") as journal:
        journal.enqueue("kind", run_id="r")
        assert {"r.db": 0o600, "r.db-wal": 0o600, "r.db-shm": 0o600} == modes(tmp_path)


def test_empty_file_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its rights can't be changed, an empty file becomes no store."""

    def refuse(_path: str, _mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    (tmp_path / "r.db").touch(0o600)
    (tmp_path / "r.db").chmod(0o666)
    monkeypatch.setattr(os, "chmod", refuse)
    with pytest.raises(StoreReadOnly, match="others may open"):
        Journal.open(tmp_path / "r.db")


def test_backup(tmp_path: Path) -> None:
    """A backup, of a store that others may read too."""
    with Journal.open(tmp_path / "r.db") as journal:
        (tmp_path / "r.db").chmod(0o644)
        journal.backup(tmp_path / "copy.db")
        assert 0o600 == modes(tmp_path)["copy.db"]


def test_unfinished_backup_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that lies where the copy would grow is never written to, nor a link followed."""
    Journal.open(tmp_path / "r.db").close()
    monkeypatch.setattr("runjournal.log.sqlite_copy.get_ident", lambda: 7)
    planted = tmp_path / f"copy.db.unfinished-{os.getpid()}-7"
    planted.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable, match="File exists"):
        copy(str(tmp_path / "r.db"), str(tmp_path / "copy.db"))
    assert {"r.db"} == set(modes(tmp_path))


def test_copy_before_a_migration(tmp_path: Path) -> None:
    """The copy of a store that is about to be migrated."""
    (tmp_path / "r.db").touch()
    (tmp_path / "r.db").chmod(0o644)
    connection = apsw.Connection(str(tmp_path / "r.db"))
    migrate(connection, str(tmp_path / "r.db"), MIGRATIONS[:1])
    connection.close()
    Journal.open(tmp_path / "r.db").close()
    assert 0o600 == modes(tmp_path)["r.db.backup-schema-1"]


def test_export(tmp_path: Path) -> None:
    """An export into a file; one that is there is refused, as it is."""
    with Journal.open(tmp_path / "r.db") as journal:
        journal.enqueue("kind", run_id="r")
    arguments = ["--db", str(tmp_path / "r.db"), "export", "r", "--to"]
    assert 0 == CliRunner().invoke(cli, [*arguments, str(tmp_path / "new.jsonl")]).exit_code
    (tmp_path / "old.jsonl").touch()
    (tmp_path / "old.jsonl").chmod(0o666)
    assert 1 == CliRunner().invoke(cli, [*arguments, str(tmp_path / "old.jsonl")]).exit_code
    assert (0o600, 0o666) == (modes(tmp_path)["new.jsonl"], modes(tmp_path)["old.jsonl"])
    assert b"" == (tmp_path / "old.jsonl").read_bytes()


def test_store_of_an_import(tmp_path: Path) -> None:
    """The store that an import makes."""
    with Journal.open(tmp_path / "r.db") as journal:
        journal.enqueue("kind", run_id="r")
    for command in (["--db", "r.db", "export", "r", "--to", "e"], ["--db", "new.db", "import", "jsonl", "e"]):
        names = [str(tmp_path / each) if each in ("r.db", "new.db", "e") else each for each in command]
        assert 0 == CliRunner().invoke(cli, names).exit_code
    assert 0o600 == modes(tmp_path)["new.db"]


def test_recorder(tmp_path: Path) -> None:
    """The database of a recorder that is used by itself."""
    with SQLiteRecorder(tmp_path / "r.db"):
        assert {0o600} == set(modes(tmp_path).values())


def test_papers_of_the_demo(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """What the demo's agent reads."""
    if "0o777" in request.node.name:
        pytest.skip("a folder that its owner can't enter")
    folder = _prepare(tmp_path / "r.db", "r")
    assert {0o600} == set(modes(folder).values())
