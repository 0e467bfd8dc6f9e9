"""The audit sees every column of every table, and every part of the schema: what one hand changes, it names."""

import sqlite3
import warnings
from pathlib import Path
from typing import Any

import pytest
from test_audit import BEGUN, ERROR, SECRET, claimed, imported, queued, started, tool, whole

from runjournal.importers.transfer import export_runs, import_jsonl
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.sqlite_parts import expected
from runjournal.log.store import Import
from runjournal.looking.audit import audit_store
from runjournal.looking.doctor import doctor
from runjournal.writing.rebuild import rebuild

INCOMPARABLE = {
    ("runs", "lease_until", "*"): "the last heartbeat moved it: true of that moment alone",
    ("runs", "heartbeat_at", "*"): "the last heartbeat moved it: true of that moment alone",
    ("runs", "wake_at", "*"): "the time of the append that woke the run, not of one of its events",
    ("imports", "sha256", "transcript"): "it is of a file outside, which has grown since the first event",
    ("imports", "taken", "transcript"): "it is how far a file outside was read",
    ("meta", "value", "store_id"): "it says which store this is, and nothing else in the file does",
    ("secrets", "id", "*"): "it only says which of several keys is the newest",
    ("secrets", "key", 2): "it opens checkpoints, and one that it doesn't open is left out",
    ("secrets", "key", 3): "no event is encrypted with it: ids of calls are worked out with it",
}
"""(table, column, run) of which only the form can be looked at, and why."""
TRIGGERS = sorted(name for kind, name in expected() if kind == "trigger")
INDEXES = sorted(name for (kind, name), part in expected().items() if kind == "index" and part.sql)
OURS = sorted(name for kind, name in expected() if kind == "table")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with a row in every table: lines that went on, imports of both kinds, an owner."""
    path = tmp_path_factory.mktemp("columns") / "r.db"
    with Journal.open("memory:", clock=FakeClock()) as other:
        whole(other, "exported")
        lines = list(export_runs(other, ["exported"]))
    with Journal.open(path, clock=FakeClock(), private=True) as journal:
        journal.append("hidden", [queued()], expect=0)
    with Journal.open(path, clock=FakeClock()) as journal:
        whole(journal)
        import_jsonl(journal, lines, "e.jsonl")
        journal.append("old", [queued()], expect=0)
        journal.append("old", [claimed()])
        journal.append("old", [started(), tool()], epoch=1)
        journal.append("old", [e.ToolFailed("pay", 1, ERROR, False)], epoch=1)
        journal.append("old", [e.RunFailed(ERROR, [], "error")], epoch=1)
        journal.retry("old", new_run_id="young")
        journal.append("parent", [queued(title="t", not_before="2026-12-01T00:00:00.000000Z")], expect=0)
        journal.append("owned", [queued(parent_run_id="parent")], expect=0)
        journal.append("owned", [claimed()])
        journal.append("owned", [e.RunCancelRequested("no", "after_step")], expect=None)
        journal.append("woken", [queued()], expect=0)
        journal.append("woken", [claimed()])
        journal.append("woken", [e.RunWaiting([{"kind": "signal", "id": "s"}], None)], epoch=1)
        journal.append("woken", [e.SignalReceived("1", "s", None)], expect=None)
        batch = journal.batch("transcript", [imported(), e.MessageAppended("user", "hi")], expect=0, by="import:tool")
        journal.append(batch._replace(imported=Import("transcript", "tool", "0" * 64, "{}")))
    return path


def found(path: Path) -> list[str]:
    """The codes of all findings but what is normal in this store."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Journal.open(path, clock=FakeClock(), create=False) as journal:
            return [
                each.code for each in audit_store(journal.store) if each.code not in ("call_unresolved", "uncommitted")
            ]


def changed(path: Path, tmp_path: Path, *statements: str, params: tuple[Any, ...] = ()) -> Path:
    """A copy of a closed store, changed by another library; the triggers are back afterwards."""
    copy = tmp_path / "copy.db"
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"copy.db{suffix}").unlink(missing_ok=True)
    copy.write_bytes(path.read_bytes())
    with sqlite3.connect(copy, isolation_level=None) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            assert 0 != connection.execute(statement, params).rowcount
        for _, text in triggers:
            connection.execute(text)
    connection.close()
    return copy


def columns(path: Path) -> list[tuple[str, str]]:
    """(table, column) of all our tables."""
    with sqlite3.connect(path) as connection:
        names = [(table, row[1]) for table in OURS for row in connection.execute(f"PRAGMA table_info({table})")]
    connection.close()
    return names


def other(value: object) -> object:
    """Another value of the same type."""
    if isinstance(value, bytes):
        return value + b" "
    if isinstance(value, int | float):
        return value + 1 if value not in (0, 1) else 1 - value
    return "2026-11-29T00:00:00.000000Z" if value is None else f"{value}0"


def test_untouched_store(store: Path, tmp_path: Path) -> None:
    """The store of these tests has nothing wrong, and a row in every table."""
    copy = changed(store, tmp_path)
    assert [] == found(copy)
    with sqlite3.connect(copy) as connection:
        empty = [t for t in OURS if not connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0]]
    connection.close()
    assert [] == empty


def test_every_column(store: Path, tmp_path: Path) -> None:
    """One changed value, of whatever table, column and row, is found; or it stands in the list, with its reason."""
    missed, listed = [], set()
    for table, column in columns(store):
        with sqlite3.connect(store) as connection:
            keys = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5]]
            rows = connection.execute(f"SELECT {', '.join(keys)}, {column} FROM {table}").fetchall()
        connection.close()
        if table == "events":
            rows = rows[-3:]  # of a log, the end is what is hardest to see
        for *key, value in rows:
            where = " AND ".join(f"{name} = ?" for name in keys)
            new = other(value)
            if value is None and column in ("pid", "lease_until", "heartbeat_at"):
                new = 5
            try:
                copy = changed(store, tmp_path, f"UPDATE {table} SET {column} = ? WHERE {where}", params=(new, *key))
            except sqlite3.IntegrityError:  # another row has this key
                continue
            if not found(copy):
                reason = next((k for k in ((table, column, "*"), (table, column, key[0])) if k in INCOMPARABLE), None)
                if reason is None:
                    missed.append((table, column, key, value, new))
                else:
                    listed.add(reason)
    assert [] == missed
    assert set(INCOMPARABLE) == listed


def test_every_row(store: Path, tmp_path: Path) -> None:
    """A row that is gone is found, of whatever table; snapshots apart, which nothing needs."""
    missed = []
    for table in OURS:
        with sqlite3.connect(store) as connection:
            keys = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5]]
            rows = connection.execute(f"SELECT {', '.join(keys)} FROM {table}").fetchall()
        connection.close()
        for key in rows:
            where = " AND ".join(f"{name} = ?" for name in keys)
            if not found(changed(store, tmp_path, f"DELETE FROM {table} WHERE {where}", params=key)):
                missed.append((table, key))
    # Without its note an export that was imported is a run like any other; nothing in the log says where it lives.
    # And without the row that says which store this is, one of an earlier schema looks the same.
    assert [("meta", ("store_id",))] == [each for each in missed if each[0] != "checkpoints"]


@pytest.mark.parametrize("name", TRIGGERS + INDEXES)
def test_every_part_of_the_schema(store: Path, tmp_path: Path, name: str) -> None:
    """A trigger or index that is gone, or has another text, is named by audit and doctor; a rebuild makes it again."""
    kind = "TRIGGER" if name in TRIGGERS else "INDEX"
    copy = changed(store, tmp_path)
    with sqlite3.connect(copy) as connection:
        connection.execute(f"DROP {kind} {name}")
    connection.close()
    with Journal.open(copy, clock=FakeClock()) as journal:
        (finding,) = [each for each in audit_store(journal.store) if each.code == "schema"]
        assert f"{kind.lower()} {name}: it is missing" == finding.what
        (check,) = [each for each in doctor(journal) if each.name == "schema" and each.ok is False]
        assert name in check.what
    with sqlite3.connect(copy) as connection:
        connection.execute(
            f"CREATE TRIGGER {name} AFTER INSERT ON blobs BEGIN SELECT 1; END"
            if kind == "TRIGGER"
            else f"CREATE INDEX {name} ON runs (title)"
        )
    connection.close()
    assert "schema" in found(copy)
    with Journal.open(copy, clock=FakeClock()) as journal:
        journal.append("owned", [e.RunCompleted(None)], epoch=1)
        rebuild(journal.store)
    assert "schema" not in found(copy)


@pytest.mark.parametrize(
    ("part", "statement"),
    [
        ("view theirs", "CREATE VIEW theirs AS SELECT 1"),
        ("trigger theirs", "CREATE TRIGGER theirs AFTER INSERT ON runs BEGIN SELECT 1; END"),
        ("index theirs", "CREATE INDEX theirs ON events (type)"),
        ("virtual table theirs", "CREATE VIRTUAL TABLE theirs USING fts5(a)"),
    ],
)
def test_foreign_part(store: Path, tmp_path: Path, part: str, statement: str) -> None:
    """What nobody can have made through a Journal is named."""
    copy = changed(store, tmp_path)
    with sqlite3.connect(copy) as connection:
        connection.execute(statement)
    connection.close()
    with Journal.open(copy, clock=FakeClock()) as journal:
        assert f"{part}: this version makes none of this name" in [each.what for each in audit_store(journal.store)]


def test_tables_of_ones_own(tmp_path: Path) -> None:
    """Tables and indexes that were made by `define` are named, and are no fault."""
    with Journal.open(tmp_path / "r.db", clock=FakeClock()) as journal:
        journal.define("CREATE TABLE mine (a)")
        journal.define("CREATE INDEX mine_by_a ON mine (a)")
        found = list(audit_store(journal.store))
        assert ["schema_own", "schema_own"] == [each.code for each in found]
        assert [False, False] == [each.counts for each in found]
        assert any("mine" in each.what for each in doctor(journal) if each.name == "schema")


def test_native_run_noted_as_imported(store: Path, tmp_path: Path) -> None:
    """A row of imports that makes a run of this store unclaimable is found, of the newest run of a line and before."""
    for run_id in ("r", "old", "young"):
        row = f"INSERT INTO imports VALUES ('{run_id}', 'jsonl', '', '{{}}')"
        assert "import_native" in found(changed(store, tmp_path, row))


def test_row_of_a_run_that_lives_elsewhere(store: Path, tmp_path: Path) -> None:
    """An effect of an imported run, which nobody may be answered from here, is found."""
    row = "INSERT INTO effects VALUES ('exported', 'pay', 'pay_tool', 'x', 'exported', 7)"
    assert ["index_extra"] == found(changed(store, tmp_path, row))


def test_notes_and_orphans(store: Path, tmp_path: Path) -> None:
    """The note of an import that says another thing, and a checkpoint of no run, are told by their codes."""
    assert ["import_note"] == found(changed(store, tmp_path, "UPDATE imports SET source = 'x' WHERE source = 'tool'"))
    assert ["import_note"] == found(changed(store, tmp_path, "UPDATE imports SET taken = '{' WHERE source = 'jsonl'"))
    copy = changed(store, tmp_path, "INSERT INTO checkpoints SELECT 'gone', seq, fold, body FROM checkpoints LIMIT 1")
    assert ["checkpoint_orphan"] == found(copy)
    assert ["positions"] == found(
        changed(store, tmp_path, "UPDATE events SET position = 999 WHERE position = (SELECT max(position) FROM events)")
    )


def test_secret_is_in_no_finding(store: Path, tmp_path: Path) -> None:
    """No payload is told of by any of these."""
    copy = changed(store, tmp_path, "UPDATE blobs SET bytes = bytes + 1")
    with Journal.open(copy, clock=FakeClock()) as journal:
        assert SECRET not in repr(list(audit_store(journal.store)))
        assert BEGUN
