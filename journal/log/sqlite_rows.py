"""The statements of a SQLite store and the rows that they give, on whatever connection.

Texts are constants, so that each is prepared once and then found in the connection's statement cache. Every query takes
all its rows at once: an open cursor would keep its snapshot, and the WAL would grow behind it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import apsw

from .base import RecordedEvent
from .codec import decode
from .errors import CorruptLog, InvalidArgument, StoreError, WrongExpectation
from .head import Head
from .limits import read_page_events_max
from .recorder import SQLiteRecorder, StoredEvent
from .sqlite_errors import translate
from .store import Effect, Import, StepEnd, Unknown, Write

T = TypeVar("T")

recorder: Final = SQLiteRecorder(table="events")
"""eventsourcing's recorder for the table `events`; it works on the connections that it is given."""

_HEAD: Final = f"SELECT {', '.join(Head._fields)} FROM runs"
_HEAD_OF: Final = f"{_HEAD} WHERE run_id = ?"
_CREATE: Final = f"INSERT INTO runs ({', '.join(Head._fields)}) VALUES ({', '.join('?' * len(Head._fields))})"
_GUARD: Final = "WHERE run_id = ? AND head_seq = ? AND epoch = ? AND status = ?"
_AT, _SEQ = Head._fields.index("updated_at"), Head._fields.index("head_seq")
_ADVANCE: Final = f"UPDATE runs SET updated_at = ?, head_seq = ?, head_hash = ? {_GUARD}"
_REPLACE: Final = f"UPDATE runs SET {', '.join(f'{name} = ?' for name in Head._fields[1:])} {_GUARD}"

_EFFECT: Final = "SELECT scope, key, tool, args_sha256, run_id, seq FROM effects WHERE scope = ? AND key = ?"
_UNKNOWN: Final = "SELECT scope, key, run_id, seq FROM unknowns WHERE scope = ? AND key = ?"
_NEWEST: Final = "SELECT newest FROM lines WHERE scope = ?"
_STEP_END: Final = (
    "SELECT run_id, step, attempt, kind, ok, seq FROM step_ends WHERE run_id = ? AND step = ? "
    "ORDER BY attempt DESC LIMIT 1"
)
_IMPORTED: Final = "SELECT run_id, source, sha256, taken FROM imports WHERE run_id = ?"

_ADD_BLOB: Final = "INSERT INTO blobs (digest, bytes, body) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_ADD_EFFECT: Final = "INSERT INTO effects (scope, key, tool, args_sha256, run_id, seq) VALUES (?, ?, ?, ?, ?, ?)"
_ADD_UNKNOWN: Final = "INSERT INTO unknowns (scope, key, run_id, seq) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_DROP_UNKNOWN: Final = "DELETE FROM unknowns WHERE scope = ? AND key = ?"
_ADD_STEP_END: Final = (
    "INSERT INTO step_ends (run_id, step, attempt, kind, ok, seq) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET kind = excluded.kind, ok = excluded.ok, seq = excluded.seq"
)
_SET_NEWEST: Final = (
    "INSERT INTO lines (scope, newest) VALUES (?, ?) ON CONFLICT DO UPDATE SET newest = excluded.newest"
)
_SET_IMPORT: Final = (
    "INSERT INTO imports (run_id, source, sha256, taken) VALUES (?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET source = excluded.source, sha256 = excluded.sha256, taken = excluded.taken"
)


class Table(NamedTuple):
    """An index table: its columns, how many of them are the key, and the one that names the run."""

    columns: tuple[str, ...]
    key: int
    run: str


TABLES: Final = {
    "effects": Table(Effect._fields, 2, "run_id"),
    "unknowns": Table(Unknown._fields, 2, "run_id"),
    "step_ends": Table(StepEnd._fields, 3, "run_id"),
    "lines": Table(("scope", "newest"), 1, "newest"),
    "imports": Table(Import._fields, 1, "run_id"),
}


def index_page(name: str, run_id: str | None, after: tuple[Any, ...] | None) -> tuple[str, tuple[Any, ...]]:
    """The query for a page of an index table, by key, behind the row `after`. Raises InvalidArgument."""
    if (table := TABLES.get(name)) is None:
        raise InvalidArgument(f"index table {name[:40]!r}: expected one of {', '.join(TABLES)}")
    key = ", ".join(table.columns[: table.key])
    where: list[str] = []
    params: list[Any] = []
    if run_id is not None:
        where.append(f"{table.run} = ?")
        params.append(run_id)
    if after is not None:
        where.append(f"({key}) > ({', '.join('?' * table.key)})")
        params += after[: table.key]
    text = f"SELECT {', '.join(table.columns)} FROM {name}"
    text += f" WHERE {' AND '.join(where)}" if where else ""
    return f"{text} ORDER BY {key} LIMIT {read_page_events_max}", tuple(params)


def heads_page(  # noqa: PLR0917 - each one is a filter
    status: Sequence[str],
    kind: str | None,
    parent: str | None,
    prefix: str,
    since: str | None,
    after: tuple[str, str] | None,
    limit: int,
) -> tuple[str, tuple[Any, ...]]:
    """The query for a page of heads, newest first."""
    where: list[str] = []
    params: list[Any] = []
    if status:
        # Most runs have completed: then walking down runs_by_updated finds a page soon. The others are few: they are
        # gathered by status and sorted. The + keeps the index out.
        column = "+status" if "completed" in status else "status"
        where.append(f"{column} IN ({', '.join('?' * len(status))})")
        params += status
    if kind is not None:
        where.append("kind = ?")
        params.append(kind)
    if parent is not None:
        where.append("parent_run_id = ?")
        params.append(parent)
    if prefix:
        where.append("run_id >= ? AND run_id < ?")
        params += [prefix, prefix + "\x7f"]  # above all that an id may hold
    if since is not None:
        where.append("updated_at >= ?")
        params.append(since)
    if after is not None:
        where.append("(updated_at, run_id) < (?, ?)")
        params += after
    text = f"{_HEAD} WHERE {' AND '.join(where)}" if where else _HEAD
    return f"{text} ORDER BY updated_at DESC, run_id DESC LIMIT ?", (*params, limit)


def fetch(connection: apsw.Connection, query: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    return cast("list[tuple[Any, ...]]", connection.execute(query, params).fetchall())


class SQLiteReads(ABC):
    """What can be read from a store, wherever the connection comes from."""

    _path: str

    @abstractmethod
    def _use(self, use: Callable[[apsw.Connection], T]) -> T:
        """Call `use` with a connection, translating nothing."""

    def _rows(self, query: str, params: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._use(partial(fetch, query=query, params=params))
        except apsw.Error as error:
            raise translate(error, self._path) from error

    def head(self, run_id: str) -> Head | None:
        """The run's head, or None."""
        rows = self._rows(_HEAD_OF, (run_id,))
        return Head._make(rows[0]) if rows else None

    def read(
        self, run_id: str, after: int = 0, upto: int | None = None, *, types: Sequence[str] | None = None
    ) -> Iterator[RecordedEvent]:
        """The run's events with after < seq <= upto, in order, of these types (all: None)."""
        wanted = None if types is None else frozenset(types)
        for seq, position, event_type, body in self.read_raw(run_id, after, upto):
            if wanted is None or event_type in wanted:
                yield decode(run_id, seq, position, event_type, body)

    def read_raw(self, run_id: str, after: int = 0, upto: int | None = None) -> Iterator[tuple[int, int, str, bytes]]:
        """The same rows as they are stored: (seq, position, type, body)."""
        while True:
            page = self._page(run_id, after, upto)
            yield from page
            if len(page) < read_page_events_max:
                return
            after = page[-1][0]

    def _page(
        self, run_id: str, after: int, upto: int | None, *, newest_first: bool = False
    ) -> list[tuple[int, int, str, bytes]]:
        """(seq, position, type, body) of at most a page of events with after < seq <= upto."""
        try:
            found = self._use(
                lambda connection: recorder.select(
                    connection, run_id, gt=after, lte=upto, desc=newest_first, limit=read_page_events_max
                )
            )
        except apsw.Error as error:
            raise translate(error, self._path, run_id=run_id, seq=after + 1) from error
        return [(each.originator_version, each.id, each.topic, each.state) for each in found]

    def effect(self, scope: str, key: str) -> Effect | None:
        """The row of a call that happened."""
        rows = self._rows(_EFFECT, (scope, key))
        return Effect._make(rows[0]) if rows else None

    def unknown(self, scope: str, key: str) -> Unknown | None:
        """The row of a call that may have happened."""
        rows = self._rows(_UNKNOWN, (scope, key))
        return Unknown._make(rows[0]) if rows else None

    def newest(self, scope: str) -> str | None:
        """The newest run of a line."""
        rows = self._rows(_NEWEST, (scope,))
        return rows[0][0] if rows else None

    def step_end(self, run_id: str, step: str) -> StepEnd | None:
        """The newest end of a step."""
        rows = self._rows(_STEP_END, (run_id, step))
        return StepEnd._make(rows[0]) if rows else None

    def imported(self, run_id: str) -> Import | None:
        """Where an imported run came from."""
        rows = self._rows(_IMPORTED, (run_id,))
        return Import._make(rows[0]) if rows else None


class SQLiteTransaction(SQLiteReads):
    """A write transaction that has begun on `connection`; whoever began it ends it.

    After an error that may have left half a write behind, `failed` holds it, and nothing more is read or written.
    """

    def __init__(self, connection: apsw.Connection, path: str) -> None:
        self._path = path
        self._connection = connection
        self.failed: BaseException | None = None

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self.failed is not None:
            raise self.failed

    def end(self) -> None:
        """Make sure that nobody goes on using the connection through this object."""
        self.failed = StoreError(f"{self._path}: this transaction has ended; use the store")

    def _use(self, use: Callable[[apsw.Connection], T]) -> T:
        self.check()
        return use(self._connection)

    def head(self, run_id: str) -> Head | None:
        """The run's head, or None."""
        self.check()
        try:  # each append comes by here: no detour
            rows = self._connection.execute(_HEAD_OF, (run_id,)).fetchall()
        except apsw.Error as error:
            raise translate(error, self._path) from error
        return Head._make(rows[0]) if rows else None

    def write(self, write: Write) -> list[int]:
        """Append; gives the store-wide positions of the events. Raises WrongExpectation if the head has moved."""
        self.check()
        write.check()
        try:
            self._move_head(write.before, write.head)
            run_id = write.head.run_id
            positions = recorder.insert(
                self._connection, [StoredEvent(run_id, seq, kind, body) for seq, kind, body in write.events]
            )
            self._write_rows(write)
        except WrongExpectation:
            raise
        except apsw.ConstraintError as error:
            what = f"the tables contradict each other ({error})"
            self.failed = CorruptLog(write.head.run_id, write.events[0][0], what)
            raise self.failed from error
        except apsw.Error as error:
            self.failed = translate(error, self._path)
            raise self.failed from error
        except BaseException as error:
            self.failed = error
            raise
        return list(positions)

    def _move_head(self, before: Head | None, head: Head) -> None:
        connection = self._connection
        if before is None:
            try:
                connection.execute(_CREATE, head)
            except apsw.ConstraintError:
                if (actual := self.head(head.run_id)) is None:
                    raise
                raise WrongExpectation(head.run_id, 0, actual.head_seq) from None
            return
        guard = (before.run_id, before.head_seq, before.epoch, before.status)
        # Most events move nothing else, and an UPDATE of a column that is in an index costs a page of the WAL.
        if (
            before[:_AT] == head[:_AT]
            and before[_AT + 1 : _SEQ] == head[_AT + 1 : _SEQ]
            and before[_SEQ + 2 :] == head[_SEQ + 2 :]
        ):
            connection.execute(_ADVANCE, (head.updated_at, head.head_seq, head.head_hash, *guard))
        else:
            connection.execute(_REPLACE, head[1:] + guard)
        if connection.changes() != 1:
            actual = self.head(head.run_id)
            raise WrongExpectation(head.run_id, before.head_seq, actual.head_seq if actual else 0)

    def _write_rows(self, write: Write) -> None:
        connection = self._connection
        if write.blobs:
            connection.executemany(_ADD_BLOB, [(digest, len(body), body) for digest, body in write.blobs])
        if write.effects:
            connection.executemany(_ADD_EFFECT, write.effects)
        if write.known:
            connection.executemany(_DROP_UNKNOWN, write.known)
        if write.unknown:
            connection.executemany(_ADD_UNKNOWN, write.unknown)
        if write.step_ends:
            connection.executemany(_ADD_STEP_END, write.step_ends)
        if write.newest is not None:
            connection.execute(_SET_NEWEST, write.newest)
        if write.imported is not None:
            connection.execute(_SET_IMPORT, write.imported)


def all_page(connection: apsw.Connection, after: int, upto: int | None) -> list[RecordedEvent]:
    """A page of all runs' events with after < position <= upto, in order."""
    found = recorder.select_log(connection, gt=after, lte=upto, limit=read_page_events_max)
    return [decode(str(each.originator_id), each.originator_version, each.id, each.topic, each.state) for each in found]
