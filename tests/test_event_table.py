"""The table of events: statements on a connection whose transaction is the caller's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from runjournal.log.sqlite_events import EventTable

TABLE = EventTable("events")


def row(seq: int = 1, run_id: str = "run-1") -> tuple[str, int, str, bytes]:
    return run_id, seq, "note.added", b"{}"


def rows(first: int, last: int, run_id: str = "run-1") -> list[tuple[str, int, str, bytes]]:
    return [row(seq, run_id) for seq in range(first, last + 1)]


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[apsw.Connection]:
    """A connection to a file that has the table."""
    connection = apsw.Connection(str(tmp_path / "store.db"))
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    TABLE.create(connection)
    yield connection
    connection.close()


def test_insert_in_transaction(connection: apsw.Connection) -> None:
    """Inserts belong to the caller's transaction: they commit with it, and give dense positions in order."""
    connection.execute("BEGIN IMMEDIATE")
    assert range(1, 2) == TABLE.insert(connection, [row()])
    assert range(2, 5) == TABLE.insert(connection, rows(2, 4))
    assert not TABLE.insert(connection, [])
    assert connection.in_transaction
    connection.execute("COMMIT")
    assert [1, 2, 3, 4] == [found[4] for found in TABLE.select(connection, "run-1")]


def test_insert_rolled_back(connection: apsw.Connection) -> None:
    """A rollback, of the transaction or of a savepoint in it, takes the inserts along, and positions stay dense."""
    connection.execute("BEGIN IMMEDIATE")
    TABLE.insert(connection, rows(1, 3))
    connection.execute("ROLLBACK")
    assert TABLE.max_position(connection) is None
    connection.execute("BEGIN IMMEDIATE")
    TABLE.insert(connection, [row()])
    connection.execute("SAVEPOINT one")
    TABLE.insert(connection, rows(2, 3))
    connection.execute("ROLLBACK TO one")
    assert range(2, 3) == TABLE.insert(connection, [row(2)])
    connection.execute("COMMIT")
    assert [1, 2] == [found[1] for found in TABLE.select(connection, "run-1")]


def test_insert_conflict_raw(connection: apsw.Connection) -> None:
    """In the caller's transaction a conflict is apsw's error and the transaction stays open, so the caller decides."""
    connection.execute("BEGIN IMMEDIATE")
    TABLE.insert(connection, [row()])
    with pytest.raises(apsw.ConstraintError):
        TABLE.insert(connection, [row()])
    assert connection.in_transaction
    connection.execute("ROLLBACK")


def test_statement_texts_constant(connection: apsw.Connection) -> None:
    """Whatever the bounds, the order and the batch, a table has six statement texts, so caches hit."""
    texts: set[str] = set()

    def trace(cursor: apsw.Cursor, text: str, bindings: object) -> bool:
        texts.add(text)
        return True

    connection.exec_trace = trace
    for size in (1, 2, 5):
        TABLE.insert(connection, rows(1, size, run_id=f"run-{size}"))
        for desc in (False, True):
            TABLE.select(connection, "run-5", gt=size, desc=desc)
            TABLE.select(connection, "run-5", lte=size, desc=desc, limit=size)
        TABLE.select_log(connection, limit=size)
        TABLE.select_log(connection, gt=size, lte=9, types=["t"] * size, limit=size)
        TABLE.max_position(connection)
    assert 6 == len(texts)


def test_select_bounds(connection: apsw.Connection) -> None:
    """A select takes gt < seq <= lte, at most limit, up or down."""
    TABLE.insert(connection, [*rows(1, 5), *rows(1, 2, "run-2")])

    def seqs(**bounds: Any) -> list[int]:
        return [found[1] for found in TABLE.select(connection, "run-1", **bounds)]

    assert [1, 2, 3, 4, 5] == seqs()
    assert [3, 4] == seqs(gt=2, lte=4)
    assert [5, 4] == seqs(desc=True, limit=2)
    assert [4, 3] == seqs(lte=4, desc=True, limit=2)
    assert [] == seqs(gt=5)
    assert [] == seqs(limit=0)
    assert [6, 7] == [found[4] for found in TABLE.select(connection, "run-2")]


def test_select_uses_index(connection: apsw.Connection) -> None:
    """A stream is read through its index and the log through the key, without sorting."""
    plans: list[str] = []
    for sql, arguments in (
        (TABLE._select, 4),
        (TABLE._select_desc, 4),
        (TABLE._select_log, 3),
        (TABLE._select_log_types, 4),
    ):
        plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", (1,) * arguments)
        plans.append(" ".join(str(step[3]) for step in plan))
    assert all(plan.startswith("SEARCH events USING INDEX") for plan in plans[:2])
    assert all(plan.startswith("SEARCH events USING INTEGER PRIMARY KEY") for plan in plans[2:])
    assert not [plan for plan in plans if "TEMP B-TREE" in plan]
