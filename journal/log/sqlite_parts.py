"""The parts of a SQLite store: its tables, indexes and triggers, compared by name and text with what migrations make.

A trigger that is gone no longer refuses what it was there to refuse, and no row tells of it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple, cast

import apsw

from .errors import NotAStore
from .sqlite_schema import MIGRATIONS
from .store import Fault
from .tables import ALL

_PARTS: Final = (
    "SELECT CAST(type AS BLOB), CAST(name AS BLOB), CAST(tbl_name AS BLOB), CAST(sql AS BLOB), rootpage "
    "FROM sqlite_schema ORDER BY type, name"
)
_POSITIONS: Final = "SELECT count(*), coalesce(min(position), 1), coalesce(max(position), 0) FROM events"
_ORPHANS: Final = "SELECT count(*) FROM events WHERE run NOT IN (SELECT run FROM run_keys)"
_LOST: Final = (
    "SELECT count(*) FROM events AS one NOT INDEXED WHERE one.position IS NOT "
    "(SELECT position FROM events AS found WHERE found.run = one.run AND found.seq = one.seq)"
)
"""Events that are read as one run's by whoever goes by the index, and as another one's by whoever goes by position."""
_NUMBERS: Final = "SELECT count(*) FROM runs LEFT JOIN run_keys USING (run_id) WHERE runs.run IS NOT run_keys.run"
_META: Final = (
    "SELECT count(*) FROM meta WHERE (key, value) IS NOT ('index', 'stale') AND key NOT IN ('scrub', 'store_id')"
)
_TAGS_OF_RUNS: Final = (
    "SELECT key, CAST(value AS TEXT), queued_at, run_id FROM runs, json_each(iif(json_valid(tags), tags, '{}')) "
    "WHERE json_each.type = 'text'"
)
_TAGS: Final = (
    f"SELECT count(*) FROM (SELECT * FROM (SELECT * FROM run_tags EXCEPT {_TAGS_OF_RUNS}) "
    f"UNION ALL SELECT * FROM ({_TAGS_OF_RUNS} EXCEPT SELECT * FROM run_tags))"
)


class SchemaObject(NamedTuple):
    """What one row of sqlite_schema says; text that is no UTF-8 is escaped. `sql` is "" where SQLite makes it."""

    type: str
    name: str
    table: str
    sql: str
    has_rows: bool


def _parts(connection: apsw.Connection) -> dict[tuple[str, str], SchemaObject]:
    found: dict[tuple[str, str], SchemaObject] = {}
    rows = cast("list[tuple[Any, ...]]", connection.execute(_PARTS).fetchall())
    for *texts, root in rows:
        kind, name, table, sql = ((text or b"").decode(errors="backslashreplace") for text in texts)
        found[kind, name] = SchemaObject(kind, name, table, sql, bool(root))
    return found


@cache
def expected() -> dict[tuple[str, str], SchemaObject]:
    """Each part that the migrations make, by type and name."""
    connection = apsw.Connection(":memory:")
    try:
        for script in MIGRATIONS:
            connection.execute(script).fetchall()
        return _parts(connection)
    finally:
        connection.close()


def check_tables(connection: apsw.Connection, path: str) -> None:
    """Raise NotAStore unless each of our tables is the one that migrations make.

    A view of the same name may have no end, and a table with other columns can't be read.
    """
    found = _parts(connection)
    for key, part in expected().items():
        if part.type != "table" or found.get(key) == part._replace(has_rows=True):
            continue
        what = "is missing"
        if (other := next((each for each in found.values() if each.name == part.name), None)) is not None:
            what = f"is a {other.type}" if other.type != "table" else "has another schema"
        raise NotAStore(
            f"{path}: the table {part.name} {what}; it was not touched: restore a backup, or undo what was done to it"
        )


def faults(connection: apsw.Connection) -> list[Fault]:
    """What isn't as this version makes it: in the schema, among the positions of events, in the table meta."""
    found = [*_schema(_parts(connection))]
    count, first, last = connection.execute(_POSITIONS).fetchall()[0]
    if (first, last) != (1, count):
        found.append(Fault("positions", "table events", f"it has {count} events at the positions {first} to {last}"))
    if orphans := connection.execute(_ORPHANS).fetchall()[0][0]:
        found.append(Fault("positions", "table events", f"it has {orphans} events whose run has no number"))
    if lost := connection.execute(_LOST).fetchall()[0][0]:
        found.append(Fault("positions", "table events", f"it has {lost} events that its index has elsewhere"))
    if wrong := connection.execute(_NUMBERS).fetchall()[0][0]:
        found.append(Fault("positions", "table runs", f"it has {wrong} rows with another number than their run's"))
    if connection.execute(_META).fetchall()[0][0]:
        found.append(Fault("schema", "table meta", "it has a row that this version doesn't write"))
    if wrong := connection.execute(_TAGS).fetchall()[0][0]:
        found.append(Fault("schema", "table run_tags", f"{wrong} rows differ from the tags in the table runs"))
    return found


def _schema(found: dict[tuple[str, str], SchemaObject]) -> Iterator[Fault]:
    for key, part in expected().items():
        actual = found.get(key)
        if actual is None:
            yield Fault("schema", f"{part.type} {part.name}", "it is missing")
        elif (actual.table, actual.sql) != (part.table, part.sql):
            yield Fault("schema", f"{part.type} {part.name}", "its text isn't that of the migrations")
    for key, part in found.items():
        if key in expected():
            continue
        virtual = part.type == "table" and not part.has_rows
        theirs = part.type in ("table", "index") and not virtual and part.table.lower() not in ALL
        what = "it was made by the store's user" if theirs else "this version makes none of this name"
        name = f"{'virtual ' if virtual else ''}{part.type} {part.name}"
        yield Fault("schema_own" if theirs else "schema", name, what)


def restore(connection: apsw.Connection) -> None:
    """Make our triggers, indexes and views again that are missing or have another text, and the rows of run_tags.

    What others made stays.
    """
    found = _parts(connection)
    for key, part in expected().items():
        actual = found.get(key)
        if part.type in ("trigger", "index", "view") and part.sql and (actual is None or actual.sql != part.sql):
            if actual is not None:
                connection.execute(f'DROP {part.type.upper()} "{part.name}"')
            connection.execute(part.sql)
    connection.execute("DELETE FROM run_tags")
    connection.execute(f"INSERT INTO run_tags {_TAGS_OF_RUNS}")
