"""One row that can't be read never hides the others: each reading command, on a store with one bad row of each kind."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import hostile
import orjson
import pytest
from click.testing import CliRunner
from test_audit import whole

from runjournal.cli.app import cli
from runjournal.importers.transfer import import_jsonl
from runjournal.journal import Journal
from runjournal.log.chain import GENESIS
from runjournal.log.clock import FakeClock
from runjournal.log.codec import decode, loads
from runjournal.log.errors import CorruptLog, NotAStore, Unfoldable
from runjournal.log.limits import json_depth_max
from runjournal.log.private_values import no_key
from runjournal.log.store import RowWarning
from runjournal.looking.audit import audit_store

ROWS = {
    "a title that is no UTF-8": "UPDATE runs SET title = CAST(x'78fffe' AS TEXT) WHERE run_id = 'bad'",
    "a kind that is no UTF-8": "UPDATE runs SET kind = CAST(x'78fffe' AS TEXT) WHERE run_id = 'bad'",
    "an id that is no UTF-8": "UPDATE runs SET run_id = CAST(x'78fffe' AS TEXT) WHERE run_id = 'bad'",
    "a time that is no UTF-8": "UPDATE runs SET queued_at = CAST(x'fffe' AS TEXT) WHERE run_id = 'bad'",
    "a seq of 2**63 - 1": "UPDATE runs SET head_seq = 9223372036854775807 WHERE run_id = 'bad'",
    "a seq of -1": "UPDATE runs SET head_seq = -1 WHERE run_id = 'bad'",
    "an epoch of 2**63 - 1": "UPDATE runs SET epoch = 9223372036854775807 WHERE run_id = 'bad'",
    "a pid of 2**63 - 1": "UPDATE runs SET pid = 9223372036854775807 WHERE run_id = 'bad'",
    "a lease without end": "UPDATE runs SET lease_until = 9e999 WHERE run_id = 'bad'",
    "a status of its own": "UPDATE runs SET status = 'gone' WHERE run_id = 'bad'",
    "tags that are no JSON": "UPDATE runs SET tags = '{' WHERE run_id = 'bad'",
    "tags that are a list": "UPDATE runs SET tags = '[]' WHERE run_id = 'bad'",
    "tags that nest": "UPDATE runs SET tags = '{\"a\":{}}' WHERE run_id = 'bad'",
    "an id that is none": "UPDATE runs SET run_id = '../bad' WHERE run_id = 'bad'",
}
"""In the table runs: what is left out of a listing, and told."""
OTHERS = {
    "a type that is no UTF-8": "UPDATE events SET type = CAST(x'78fffe' AS TEXT) WHERE run = 2 AND seq = 4",
    "the last type that is no UTF-8": "UPDATE events SET type = CAST(x'78fffe' AS TEXT) WHERE position = "
    "(SELECT max(position) FROM events WHERE run = 2)",
    "a run's id that is no UTF-8": "UPDATE run_keys SET run_id = CAST(x'78fffe' AS TEXT) WHERE run_id = 'bad'",
    "events of no run": "UPDATE events SET run = 99 WHERE run = 2",
    "a seq of an event": "UPDATE events SET seq = 9223372036854775807 WHERE run = 2 AND seq = 4",
    "a body that is no JSON": "UPDATE events SET body = x'ff' WHERE run = 2 AND seq = 4",
    "an effect": "UPDATE effects SET tool = CAST(x'78fffe' AS TEXT) WHERE run_id = 'bad'",
    "an effect's scope": "UPDATE effects SET scope = CAST(x'78fffe' AS TEXT) WHERE run_id = 'bad'",
    "an effect's run": "UPDATE effects SET run_id = CAST(x'78fffe' AS TEXT) WHERE run_id = 'bad'",
    "a line": "UPDATE lines SET newest = CAST(x'78fffe' AS TEXT) WHERE newest = 'bad'",
    "a line's scope": "UPDATE lines SET scope = CAST(x'78fffe' AS TEXT) WHERE newest = 'bad'",
    "the end of a step": "UPDATE step_ends SET step = CAST(x'78fffe' AS TEXT) WHERE run_id = 'bad' AND attempt = 2",
    "a checkpoint's fold": "UPDATE checkpoints SET fold = CAST(x'78fffe' AS TEXT) WHERE run_id = 'bad'",
    "a checkpoint's run": "UPDATE OR REPLACE checkpoints SET run_id = CAST(x'78fffe' AS TEXT) WHERE run_id = 'bad'",
    "a checkpoint that nests deep": "UPDATE checkpoints SET body = CAST(body || '[' AS BLOB) WHERE run_id = 'bad'",
    "a blob's digest": "UPDATE blobs SET digest = CAST(x'78fffe' AS TEXT)",
    "an import": "INSERT INTO imports VALUES ('bad', CAST(x'78fffe' AS TEXT), 'x', '{')",
    "an import of no run": "INSERT INTO imports VALUES (CAST(x'78fffe' AS TEXT), 'x', 'x', '{')",
}
"""In other tables."""
COMMANDS = [
    ["ls"], ["ls", "-o", "json"], ["ls", "--status", "completed"], ["ls", "--tag", "a=b"], ["show", "good"],
    ["show", "good", "--waterfall"],
    ["show", "good", "-o", "json"], ["show", "good", "--events"], ["show", "good", "--calls"],
    ["show", "good", "--messages"], ["show", "good", "--tree"], ["tail"], ["tail", "-n", "99", "-o", "jsonl"],
    ["tail", "good"], ["audit"], ["audit", "good"], ["verify"], ["doctor"], ["replay", "good"],
    ["diff", "good", "fine"],
    ["export", "good"], ["checkpoint", "ls", "good"], ["show", "@last"], ["db", "info"],
]  # fmt: skip
OF_THE_BAD_ONE = [
    ["show", "bad"], ["show", "bad", "-o", "json"], ["show", "bad", "--events"], ["show", "bad", "--calls"],
    ["show", "bad", "--messages"], ["show", "bad", "--tree"], ["tail", "bad"], ["audit", "bad"], ["verify", "bad"],
    ["replay", "bad"], ["diff", "bad", "good"], ["export", "bad"], ["export", "--all"], ["checkpoint", "ls", "bad"],
]  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store of three whole runs."""
    path = tmp_path_factory.mktemp("rows") / "r.db"
    with Journal.open(path, clock=FakeClock()) as journal:
        for run_id in ("fine", "bad", "good"):
            whole(journal, run_id)
    return path


def spoiled(sound: Path, tmp_path: Path, statement: str) -> Path:
    """A copy of a store with one bad row, as another program may leave it."""
    path = tmp_path / "r.db"
    path.write_bytes(sound.read_bytes())
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        assert 0 != connection.execute(statement).rowcount
        for _, text in triggers:
            connection.execute(text)
    connection.close()
    return path


def said(path: Path, command: list[str]) -> Any:
    """What a command says; it must have been made for what it says."""
    result = CliRunner().invoke(cli, ["--db", str(path), *command])
    assert "unexpected" not in result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    assert isinstance(result.exception, SystemExit | type(None))
    return result


@pytest.mark.parametrize("statement", ROWS.values(), ids=ROWS)
def test_bad_row_of_runs(sound: Path, tmp_path: Path, statement: str) -> None:
    """A row of runs that can't be read is told of by its id; the other runs are listed, shown and found."""
    path = spoiled(sound, tmp_path, statement)
    listed = said(path, ["ls", "-o", "json"])
    assert ["good", "fine"] == [each["run_id"] for each in json.loads(listed.stdout)]
    assert 3 == listed.exit_code
    assert "can't be read" in listed.stderr
    assert "bad" in listed.stderr or "x\\\\xff\\\\xfe" in listed.stderr
    assert "good" in said(path, ["show", "@last"]).stdout
    assert "row_unreadable" in said(path, ["audit"]).stdout
    with Journal.open(path, clock=FakeClock()) as journal, pytest.warns(RowWarning):
        assert ["good", "fine"] == [head.run_id for head in journal.runs()]


@pytest.mark.parametrize("statement", [*ROWS.values(), *OTHERS.values()], ids=[*ROWS, *OTHERS])
def test_commands_go_on(sound: Path, tmp_path: Path, statement: str) -> None:
    """Every command that reads says what it has to say of the others, with a code that it documents."""
    path = spoiled(sound, tmp_path, statement)
    for command in COMMANDS:
        result = said(path, command)
        assert result.exit_code in (0, 3), (command, result.stderr)
        assert command not in (["ls"], ["show", "good"], ["show", "@last"]) or "good" in result.stdout
        assert ["audit"] != command or 3 == result.exit_code
    for command in OF_THE_BAD_ONE:
        result = said(path, command)
        assert result.exit_code in (0, 1, 3, 4), (command, result.stderr)


def test_page_of_bad_rows(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a whole page can't be read, the runs behind it are listed."""
    monkeypatch.setattr("runjournal.log.store.read_page_heads_max", 1)
    path = spoiled(sound, tmp_path, "UPDATE runs SET title = CAST(x'ff' AS TEXT), queued_at = "
                   "CAST(queued_at || x'ff' AS TEXT) WHERE run_id <> 'fine'")  # fmt: skip
    with Journal.open(path, clock=FakeClock()) as journal, pytest.warns(RowWarning):
        assert ["fine"] == [head.run_id for head in journal.runs()]


def test_null_where_none_may_be(sound: Path, tmp_path: Path) -> None:
    """A row that another program could only write past the schema is left out like any other."""
    path = spoiled(sound, tmp_path, ROWS["a seq of -1"])
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        kept = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'runs'").fetchone()[0]
        loose = kept.replace("kind TEXT NOT NULL", "kind TEXT")
        connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'runs'", (loose,))
    connection.close()
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("UPDATE runs SET kind = NULL, head_seq = 5 WHERE run_id = 'bad'")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'runs'", (kept,))
    connection.close()
    listed = said(path, ["ls", "-o", "json"])
    assert ["good", "fine"] == [each["run_id"] for each in json.loads(listed.stdout)]
    assert "kind is NULL" in listed.stderr


def nested(levels: int) -> Any:
    """A list in a list, and so on."""
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


DEEP = {
    "x.theirs": b'{"deep":DEEP}',
    "tool.completed": b'{"call_id":"c","attempt":1,"result":DEEP}',
    "message.appended": b'{"role":"user","content":DEEP}',
}
"""Types of events, and data of theirs in which a value may nest."""


@pytest.mark.parametrize("event_type", DEEP)
@pytest.mark.parametrize("levels", [json_depth_max, 900, 1000, 1015])
def test_deep_event(sound: Path, tmp_path: Path, event_type: str, levels: int) -> None:
    """An event that nests deeper than one may is told of as unreadable, whatever its type; all else is shown."""
    path = tmp_path / "r.db"
    path.write_bytes(sound.read_bytes())
    head = b'{"v":1,"at":"2026-01-01T00:00:00.000000Z","by":"x","epoch":0,"step":null'
    data = DEEP[event_type].replace(b"DEEP", b"[" * levels + b"]" * levels)
    first = head + b',"data":{"kind":"k","input":1}}'
    rows = [("run.queued", first), (event_type, head + b',"data":' + data + b"}")]
    lines = hostile.export_of(hostile.chained("deep", rows)).splitlines(keepends=True)
    with Journal.open(path, clock=FakeClock()) as journal:
        import_jsonl(journal, lines, "e.jsonl")
    for command in COMMANDS:
        result = said(path, command)
        assert result.exit_code in (0, 3), (command, result.stderr)
    for command in (["--events"], [], ["-o", "json"], ["--messages"], ["--events", "-o", "json"], ["--calls"]):
        assert said(path, ["show", "deep", *command]).exit_code in (0, 1)
    assert "unreadable" in said(path, ["audit", "deep"]).stdout


def test_depth_that_is_allowed() -> None:
    """What `dumps` lets in is read; one level more isn't, in an event and in a value that is held out of line."""
    head = b'{"v":1,"at":"2026-01-01T00:00:00.000000Z","by":"x","epoch":0,"step":null,"data":{"a":'
    for levels, fine in ((json_depth_max - 1, True), (json_depth_max, False)):
        record = decode("r", 1, 1, "x.theirs", head + b"[" * levels + b"]" * levels + b"}}", GENESIS, no_key)
        assert fine is (type(record.event).__name__ == "UnknownEvent")
    assert nested(json_depth_max) == loads(orjson.dumps(nested(json_depth_max)))
    with pytest.raises(ValueError, match="json_depth_max"):
        loads(orjson.dumps(nested(json_depth_max + 1)))


@pytest.mark.parametrize(
    "query",
    [
        "WITH RECURSIVE endless(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM endless) SELECT {} FROM endless",
        "SELECT {} FROM kept, kept AS b, kept AS c",
    ],
)
@pytest.mark.parametrize("table", ["runs", "events", "effects", "checkpoints", "meta"])
def test_view_in_place_of_a_table(sound: Path, tmp_path: Path, table: str, query: str) -> None:
    """A store in which a view took the name of a table, maybe one without end, is refused by every command."""
    path = tmp_path / "r.db"
    path.write_bytes(sound.read_bytes())
    with sqlite3.connect(path) as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(f"ALTER TABLE {table} RENAME TO kept")
        connection.execute(f"CREATE VIEW {table} AS " + query.format(", ".join(f"1 AS {name}" for name in columns)))
    connection.close()
    with pytest.raises(NotAStore, match=f"the table {table} is a view"):
        Journal.open(path)
    for command in COMMANDS:
        result = said(path, command)
        assert 75 == result.exit_code
        assert "is a view" in result.stderr


def test_table_that_is_gone_or_another(sound: Path, tmp_path: Path) -> None:
    """A store that lacks a table of ours, or has one with other columns, is refused by name."""
    path = spoiled(sound, tmp_path, ROWS["a seq of -1"])
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE imports")
    connection.close()
    with pytest.raises(NotAStore, match="the table imports is missing"):
        Journal.open(path)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE imports (run_id)")
    connection.close()
    with pytest.raises(NotAStore, match="the table imports has another schema"):
        Journal.open(path)


def test_type_that_is_no_utf8_is_not_gone_past(sound: Path, tmp_path: Path) -> None:
    """No fold goes past an event whose type can't be read, though it is the last one."""
    path = spoiled(sound, tmp_path, OTHERS["the last type that is no UTF-8"])
    with Journal.open(path, clock=FakeClock()) as journal, pytest.raises((Unfoldable, CorruptLog)):
        journal.replay("bad")


def test_bad_row_is_told_by_the_audit_once(sound: Path, tmp_path: Path) -> None:
    """An audit names the row, and audits the other runs."""
    path = spoiled(sound, tmp_path, ROWS["tags that are no JSON"])
    with Journal.open(path, clock=FakeClock()) as journal:
        found = [(each.code, each.run_id) for each in audit_store(journal.store)]
        assert [("row_unreadable", "bad")] == [each for each in found if each[0] == "row_unreadable"]
