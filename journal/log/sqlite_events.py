"""The table of events in a SQLite file: the statements that write and read it, on a connection of the caller's.

    position  the event's place in the table, from 1, dense
    run_id    text
    seq       from 1 in its run
    type      text
    body      bytes

Transactions are the caller's, and so are errors: what apsw raises comes through, because the caller translates it.
"""

# apsw's stub takes Buffer from collections.abc, which has it from Python 3.12 on: to pyright on 3.11 it is unknown.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from typing import Any, TypeAlias, cast

import apsw

from .limits import int_max, int_min

NewRow: TypeAlias = tuple[str, int, str, bytes]
"""(run_id, seq, type, body): what is inserted."""
Row: TypeAlias = tuple[str, int, str, bytes, int]
"""The same with the position."""


class EventTable:
    """The statements on one table, whose name may be any text without NUL; it is quoted.

    Raises:
        ValueError: The table's name is empty or holds a NUL.

    Inside a transaction of the caller's:

        connection.execute("BEGIN IMMEDIATE")
        positions = EventTable("events").insert(connection, [("run-1", 1, "run.queued", b"{}")])
        connection.execute("COMMIT")
    """

    def __init__(self, name: str) -> None:
        table = quoted(name)
        self._create = (
            f"CREATE TABLE IF NOT EXISTS {table} (position INTEGER PRIMARY KEY, run_id TEXT NOT NULL, "
            "seq INTEGER NOT NULL, type TEXT NOT NULL, body BLOB NOT NULL, UNIQUE (run_id, seq)) STRICT"
        )
        self._insert = f"INSERT INTO {table} (run_id, seq, type, body) VALUES (?, ?, ?, ?)"
        columns = f"SELECT run_id, seq, type, body, position FROM {table}"
        stream = f"{columns} WHERE run_id = ? AND seq > ? AND seq <= ? ORDER BY seq"
        self._select = f"{stream} LIMIT ?"
        self._select_desc = f"{stream} DESC LIMIT ?"
        log = f"{columns} WHERE position > ? AND position <= ?"
        self._select_log = f"{log} ORDER BY position LIMIT ?"
        # The types travel as one JSON array, so that the text is the same for any number of them.
        self._select_log_types = f"{log} AND type IN (SELECT value FROM json_each(?)) ORDER BY position LIMIT ?"
        self._max = f"SELECT max(position) FROM {table}"

    def create(self, connection: apsw.Connection) -> None:
        """Make the table unless it is there: any seq, any bytes as body, one row for each (run_id, seq)."""
        connection.execute(self._create)

    def insert(self, connection: apsw.Connection, rows: Sequence[NewRow]) -> range:
        """Insert events in the caller's open write transaction and return their positions, in order.

        The positions are dense, because the caller holds the database's only write lock and nothing else inserts
        between two rows. After an error some rows may be in: roll back to where the caller began.

        Raises:
            apsw.ConstraintError: The table holds this (run_id, seq) already, or one of its own checks said no.
        """
        connection.executemany(self._insert, rows)
        end = connection.last_insert_rowid() + 1
        return range(end - len(rows), end)

    def select(
        self,
        connection: apsw.Connection,
        run_id: str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> list[Row]:
        """Return a run's events with gt < seq <= lte, at most `limit`, by seq up or down."""
        bounds = (
            run_id,
            int_min if gt is None else gt,
            int_max if lte is None else lte,
            int_max if limit is None else limit,
        )
        return _fetch(connection, self._select_desc if desc else self._select, bounds)

    def select_log(
        self,
        connection: apsw.Connection,
        *,
        gt: int = 0,
        lte: int | None = None,
        types: Sequence[str] = (),
        limit: int,
    ) -> list[Row]:
        """Return the events of all runs with gt < position <= lte, at most `limit`, in order; no types: all of them."""
        upto = int_max if lte is None else lte
        if types:
            return _fetch(connection, self._select_log_types, (gt, upto, dumps(list(types)), limit))
        return _fetch(connection, self._select_log, (gt, upto, limit))

    def max_position(self, connection: apsw.Connection) -> int | None:
        """Return the newest event's position, or None without events."""
        return cast("int | None", connection.execute(self._max).fetchall()[0][0])


def _fetch(connection: apsw.Connection, query: str, params: tuple[int | str, ...]) -> list[Row]:
    """All rows at once: an open cursor would keep its snapshot, and the WAL would grow behind it."""
    return cast("list[Row]", fetched(connection, query, params))


def fetched(
    connection: apsw.Connection, query: str, params: tuple[Any, ...], *, can_cache: bool = True
) -> list[tuple[Any, ...]]:
    """Return all rows of a query, whatever their texts hold: bytes that are no UTF-8 become lone surrogates.

    One such text would otherwise take all the other rows with it. Whoever encodes it again by `surrogateescape` has
    the bytes that are stored.
    """
    try:
        return cast("list[tuple[Any, ...]]", connection.execute(query, params, can_cache=can_cache).fetchall())
    except UnicodeDecodeError:
        cursor = connection.execute(query, params, can_cache=can_cache)
        names = [f"c{place}" for place, _ in enumerate(cursor.get_description())]
        cursor.close()
    columns = ", ".join(f"typeof({name}), iif(typeof({name}) = 'text', CAST({name} AS BLOB), {name})" for name in names)
    query = f"WITH found ({', '.join(names)}) AS ({query}) SELECT {columns} FROM found"
    rows = cast("list[tuple[Any, ...]]", connection.execute(query, params).fetchall())
    return [
        tuple(
            value.decode("utf-8", "surrogateescape") if kind == "text" else value
            for kind, value in zip(row[::2], row[1::2], strict=True)
        )
        for row in rows
    ]


def quoted(name: str) -> str:
    """Return an SQL identifier for any name.

    Raises:
        ValueError: The name is empty or holds a NUL, which would end the statement's text.
    """
    if not name or "\0" in name:
        raise ValueError(f"expected a table name without NUL, got {name!r}")
    return '"' + name.replace('"', '""') + '"'
