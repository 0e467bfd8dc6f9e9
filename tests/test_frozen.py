"""Files that earlier versions wrote open, migrate whole or not at all, and fold to the same state."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from runjournal.journal import Journal
from runjournal.log.sqlite_schema import MIGRATIONS
from runjournal.looking.audit import verify_store
from runjournal.looking.states import state_as_json

HERE = Path(__file__).parent
FROZEN = {schema: HERE / "data" / f"store-schema-{schema}.db" for schema in (1, 2)}
KILL_AT = ("before", "first", "second")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


def states(path):
    """What every run of a store folds to, as JSON text, and its chain's head."""
    with Journal.open(path, create=False) as journal:
        heads = sorted(journal.runs(), key=lambda head: head.run_id)
        return {
            head.run_id: (head.head_hash, json.dumps(state_as_json(journal.replay(head.run_id)), sort_keys=True))
            for head in heads
        }


def raw(path):
    """The schema and the events of a file as they are stored, without opening it as a store."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        events = connection.execute("SELECT run, seq, type, body, hash FROM events ORDER BY position").fetchall()
        return connection.execute("PRAGMA user_version").fetchall()[0][0], events
    finally:
        connection.close()


@pytest.mark.requirement("R87")
def test_a_file_of_each_schema_is_frozen():
    """There is a frozen file of every schema up to the newest, and it says that it is of that schema."""
    assert set(range(1, len(MIGRATIONS) + 1)) == set(FROZEN)
    assert {1: 1, 2: 2} == {schema: int.from_bytes(file.read_bytes()[60:64], "big") for schema, file in FROZEN.items()}


@pytest.mark.requirement("R87")
@pytest.mark.parametrize("schema", FROZEN)
def test_frozen_file_opens(path, schema):
    """A frozen file opens, is of the newest schema then, holds the same bytes, and every hash and link is right."""
    shutil.copyfile(FROZEN[schema], path)
    _, before = raw(path)
    with Journal.open(path, create=False) as journal:
        assert [] == [problem for each in verify_store(journal.store) for problem in each.problems]
    assert (len(MIGRATIONS), before) == raw(path)
    assert 5 == len(before)


@pytest.mark.requirement("R87")
def test_frozen_files_fold_to_the_same_state(tmp_path):
    """The same runs, written under each schema, fold to the same state, which is the one written down here."""
    found = {}
    for schema, file in FROZEN.items():
        shutil.copyfile(file, tmp_path / f"{schema}.db")
        found[schema] = states(tmp_path / f"{schema}.db")
    assert found[1] == found[2]
    assert {"run-1", "run-2"} == set(found[1])
    first, second = (json.loads(found[1][run_id][1]) for run_id in ("run-1", "run-2"))
    assert ("running", "report", 4, 1) == (first["status"], first["kind"], first["seq"], first["epoch"])
    assert ("queued", "mail", 1) == (second["status"], second["kind"], second["seq"])
    assert "a" == first["step"]["id"]


@pytest.mark.requirement("R87")
@pytest.mark.parametrize("when", KILL_AT)
def test_killed_in_the_migration(path, when):
    """Killed at any statement of the migration, the file is of schema 1 as it was, and the next one migrates it."""
    shutil.copyfile(FROZEN[1], path)
    old = raw(path)
    done = subprocess.run(
        [sys.executable, HERE / "programs" / "kill_migration.py", path, when],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert -9 == done.returncode, done.stderr
    assert old == raw(path)
    expected = path.with_name("whole.db")
    shutil.copyfile(FROZEN[1], expected)
    assert states(expected) == states(path)
    assert len(MIGRATIONS) == raw(path)[0]
