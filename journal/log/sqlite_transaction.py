"""Writing to a SQLite store: the guarded append, inside a transaction that somebody else begins and ends."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

import apsw

from . import sqlite_checkpoints as checkpoints
from . import sqlite_single
from .errors import CorruptLog, InvalidArgument, StoreError, WrongExpectation
from .head import Head, only_moved
from .limits import key_bytes, overdue_look_steps, transaction_s_max
from .sqlite_errors import translate
from .sqlite_parts import restore
from .sqlite_reads import HEAD_OF, SQLiteReads, fetch, head_of
from .store import Alone, Bill, Checkpoint, Write
from .tables import ALL, DERIVED

T = TypeVar("T")

_SET: Final = ", ".join(f"{name} = ?" for name in Head._fields[1:])
_NUMBER: Final = "INSERT INTO run_keys (run_id) VALUES (?)"
_NUMBER_OF: Final = "SELECT run FROM run_keys WHERE run_id = ?"
_CREATE: Final = f"INSERT INTO runs (run, {', '.join(Head._fields)}) VALUES (?{', ?' * len(Head._fields)})"
_RESTORE: Final = f"{_CREATE} ON CONFLICT DO UPDATE SET {_SET.replace('?', 'excluded.{}')}".format(*Head._fields[1:])
_STANDS: Final = (
    "SELECT run, iif(status = 'running', (SELECT max(seq) FROM events WHERE run = runs.run), head_seq), epoch, status "
    "FROM runs WHERE run_id = ?"
)
_REPLACE: Final = f"UPDATE runs SET {_SET} WHERE run = ?"
_INSERT: Final = "INSERT INTO events (run, seq, type, body, hash) VALUES (?, ?, ?, ?, ?)"

_ADD_BLOB: Final = (
    "INSERT INTO blobs (digest, bytes, body) VALUES (?, ?, ?) "
    "ON CONFLICT DO UPDATE SET bytes = excluded.bytes, body = excluded.body WHERE length(body) = 0"
)
_ADD_EFFECT: Final = "INSERT INTO effects (scope, key, tool, args_sha256, run_id, seq) VALUES (?, ?, ?, ?, ?, ?)"
_ADD_UNKNOWN: Final = "INSERT INTO unknowns (scope, key, run_id, seq) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_RETAG: Final = (
    "DELETE FROM run_tags",
    (
        "INSERT OR IGNORE INTO run_tags SELECT key, CAST(value AS TEXT), queued_at, run_id "
        "FROM runs, json_each(iif(json_valid(tags), tags, '{}')) WHERE json_each.type = 'text'"
    ),
)
_DROP_UNKNOWN: Final = "DELETE FROM unknowns WHERE scope = ? AND key = ?"
_ADD_STEP_END: Final = (
    "INSERT INTO step_ends (run_id, step, attempt, kind, ok, seq) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET kind = excluded.kind, ok = excluded.ok, seq = excluded.seq"
)
_ADD_BILL: Final = (
    f"INSERT OR REPLACE INTO bills ({', '.join(Bill._fields)}) VALUES (?{', ?' * (len(Bill._fields) - 1)})"
)
_SET_NEWEST: Final = (
    "INSERT INTO lines (scope, newest) VALUES (?, ?) ON CONFLICT DO UPDATE SET newest = excluded.newest"
)
_SET_IMPORT: Final = (
    "INSERT INTO imports (run_id, source, sha256, taken) VALUES (?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET source = excluded.source, sha256 = excluded.sha256, taken = excluded.taken"
)
_ADD_KEY: Final = "INSERT INTO secrets (purpose, name, key) VALUES (?, ?, ?)"
_ERASE_KEYS: Final = (
    f"UPDATE secrets SET key = zeroblob({key_bytes}) "
    f"WHERE purpose = ? AND name = ? AND key <> zeroblob({key_bytes}) RETURNING id"
)
_UNSCRUBBED: Final = (
    "INSERT INTO meta (key, value) VALUES ('scrub', '1') ON CONFLICT DO UPDATE SET value = CAST(value AS INTEGER) + 1"
)
"""Counted, so that who has scrubbed takes away no note that came meanwhile."""
_EMPTY: Final = (
    "UPDATE events SET body = x'' WHERE run = (SELECT run FROM run_keys WHERE run_id = ?) AND type <> 'run.purged' "
    "AND body <> x''"
)
_EMPTY_BLOB: Final = "UPDATE blobs SET bytes = 0, body = x'' WHERE digest = ?"
_FORGET: Final = (
    *(f"DELETE FROM {table} WHERE run_id = ?" for table in ("effects", "unknowns", "step_ends", "checkpoints")),
    "DELETE FROM bills WHERE run_id = ? AND seq < (SELECT head_seq FROM runs WHERE runs.run_id = bills.run_id)",
)
"""What a purged run has beside its events; of its bills those of run.purged stay, which is its last event.

The row of its line stays, so that nobody takes the scope again.
"""


class SQLiteTransaction(SQLiteReads):
    """A write transaction that has begun on `connection`; whoever began it ends it.

    After an error that may have left half a write behind, `failed` holds it, and nothing more is read or written.
    """

    def __init__(self, connection: apsw.Connection, path: str) -> None:
        self._path = path
        self._connection = connection
        self._began_s = time.monotonic()
        self._blobs_of: set[str] = set()
        self.written = 0
        """How many times it was written to: who raises before has changed nothing."""
        self.failed: BaseException | None = None

    def check(self) -> None:
        """Raise the error that made this transaction unusable, if there was one."""
        if self.failed is not None:
            raise self.failed

    def end(self) -> None:
        """Make sure that nobody goes on using the connection through this object."""
        self.failed = StoreError(f"{self._path}: this transaction has ended; use the store")

    def _use(self, use: Callable[[apsw.Connection], T]) -> T:
        if self.failed is not None:
            raise self.failed
        return use(self._connection)

    def _rows(self, query: str, params: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if self.failed is not None:
            raise self.failed
        try:
            return cast("list[tuple[Any, ...]]", self._connection.execute(query, params).fetchall())
        except apsw.Error as error:
            raise translate(error, self._path) from error

    def head(self, run_id: str) -> Head | None:
        """The run's head, or None."""
        if self.failed is not None:
            raise self.failed
        try:  # each append comes by here: no detour
            rows = cast("list[tuple[Any, ...]]", self._connection.execute(HEAD_OF, (run_id,)).fetchall())
        except apsw.Error as error:
            raise translate(error, self._path) from error
        return head_of(rows[0]) if rows else None

    def write(self, write: Write) -> list[int]:
        """Append; return the store-wide positions of the events. Raises WrongExpectation if the head has moved."""
        if self.failed is not None:
            raise self.failed
        write.check()
        self.written += 1
        if write.blobs:
            self._blobs_of.add(write.head.run_id)
        try:
            run = self._move_head(write.before, write.head)
            # Nobody else inserts between two rows, because this transaction holds the file's only write lock.
            self._connection.executemany(_INSERT, [(run, *event) for event in write.events])
            end = self._connection.last_insert_rowid() + 1
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
        return list(range(end - len(write.events), end))

    def append_alone(self, alone: Alone) -> int | None:
        """Append one event of an owner; return its position, or None, and nothing written, if its run has moved on."""
        if self.failed is not None:
            raise self.failed
        try:
            position = sqlite_single.append(self._connection, alone)
        except apsw.Error as error:
            self.failed = translate(error, self._path)
            raise self.failed from error
        except BaseException as error:
            self.failed = error
            raise
        self.written += position is not None
        return position

    def settled(self, run_id: str) -> bool:
        """Return whether all that this transaction wrote of a run can be read through it: it added no blob to it."""
        return run_id not in self._blobs_of

    def save_checkpoint(self, checkpoint: Checkpoint, keep: int = 3) -> None:
        """Keep a checkpoint in this commit. Raises StoreError; unless SQLite rolled back, the transaction goes on."""
        self.check()
        try:
            checkpoints.save(self._connection, checkpoint, keep)
        except apsw.Error as error:
            translation = translate(error, self._path)
            if not self._connection.in_transaction:
                self.failed = translation
            raise translation from error

    def add_secret(self, purpose: str, name: str, key: bytes) -> None:
        """Keep a new key, which is from now on the newest for its purpose and name."""
        self.written += 1
        self._rows(_ADD_KEY, (purpose, name, key))

    def erase_secrets(self, purpose: str, name: str) -> int:
        """Overwrite every key for a purpose and name in place; return how many weren't erased before."""
        self.written += 1
        found = len(self._rows(_ERASE_KEYS, (purpose, name)))
        if found:
            self._rows(_UNSCRUBBED)
        return found

    def purge(self, run_id: str, digests: Iterable[str]) -> None:
        """Empty the events of a run whose last one is run.purged, and these blobs; forget what it has beside them."""
        self.written += 1
        with self._or_failed():
            self._connection.execute(_EMPTY, (run_id,))
            self._connection.executemany(_EMPTY_BLOB, [(digest,) for digest in digests])
            for statement in _FORGET:
                self._connection.execute(statement, (run_id,))
            self._connection.execute(_UNSCRUBBED)

    def execute(self, query: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement of a transactional tool on its tables; return its rows.

        Raises InvalidArgument, TimeoutError. A statement that fails changes nothing, and the tool may go on; unless
        SQLite rolled everything back.
        """
        return self._own("tx.execute", query, tuple(params), _authorize)

    def define(self, query: str) -> None:
        """Make, change or drop a table or index of the user's own. Raises InvalidArgument for anything else."""
        self._own("define", query, (), _authorize_define)

    def _own(
        self, what: str, query: str, params: tuple[Any, ...], authorizer: Callable[..., int]
    ) -> list[tuple[Any, ...]]:
        try:
            return self._authorized(what, query, params, authorizer)
        except BaseException:  # an interrupt may have come in the middle of taking them away
            self._connection.set_progress_handler(None)
            self._connection.authorizer = None
            raise

    def _authorized(
        self, what: str, query: str, params: tuple[Any, ...], authorizer: Callable[..., int]
    ) -> list[tuple[Any, ...]]:
        self.check()
        connection = self._connection
        connection.authorizer = authorizer
        connection.set_progress_handler(self._overdue, overdue_look_steps)
        try:
            if self._overdue():
                raise apsw.InterruptError  # noqa: TRY301 - the same end as SQLite's own
            return fetch(connection, query, params, can_cache=False)  # a cached one would bypass the authorizer
        except apsw.InterruptError:
            self.failed = TimeoutError(f"the transaction took longer than transaction_s_max = {transaction_s_max}")
            raise self.failed from None
        except apsw.Error as error:
            if not connection.in_transaction:
                self.failed = translate(error, self._path)
                raise self.failed from error
            raise InvalidArgument(f"{what}: {error}") from error
        finally:
            connection.set_progress_handler(None)
            connection.authorizer = None

    def _overdue(self) -> bool:
        return time.monotonic() > self._began_s + transaction_s_max

    def reindex(self, writes: Iterable[Write]) -> None:
        """Forget the rows of all tables that follow from events, and keep those of these writes instead.

        Triggers and indexes of ours that are gone or were changed are made again.
        """
        with self._or_failed():
            with self._without_triggers("effects"):
                for table in DERIVED:
                    self._connection.execute(f"DELETE FROM {table}")
                for write in writes:
                    run = fetch(self._connection, _NUMBER_OF, (write.head.run_id,))[0][0]
                    self._connection.execute(_RESTORE, (run, *write.head))
                    self._write_rows(write)
            restore(self._connection)
            for statement in _RETAG:
                self._connection.execute(statement)
            self._connection.execute("DELETE FROM meta WHERE key = 'index'")

    @contextmanager
    def _or_failed(self) -> Generator[None]:
        """Let nothing more be read or written after an error in here."""
        self.check()
        try:
            yield
        except apsw.Error as error:
            self.failed = translate(error, self._path)
            raise self.failed from error
        except BaseException as error:
            self.failed = error
            raise

    @contextmanager
    def _without_triggers(self, table: str) -> Generator[None]:
        """Drop the triggers that refuse what only a rebuild may do, and make them again before the commit."""
        query = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? ORDER BY name"
        triggers = fetch(self._connection, query, (table,))
        for name, _ in triggers:
            self._connection.execute(f'DROP TRIGGER "{name}"')
        yield
        for _, sql in triggers:
            self._connection.execute(sql)

    def _move_head(self, before: Head | None, head: Head) -> int:
        """Make or move the row of a run, and return the run's number. Raises WrongExpectation."""
        connection, run_id = self._connection, head.run_id
        rows = fetch(connection, _STANDS, (run_id,))
        run, seq, epoch, status = rows[0] if rows else (0, 0, 0, "")
        expected = (before.head_seq, before.epoch, before.status) if before else (0, 0, "")
        if (seq, epoch, status) != expected or (before is None and rows):
            raise WrongExpectation(run_id, expected[0], seq)
        if before is None:
            connection.execute(_NUMBER, (run_id,))
            run = connection.last_insert_rowid()
            connection.execute(_CREATE, (run, *head))
        # While a run is running, its last event tells how far it is: a row that stays costs no page of the WAL.
        elif before.status != "running" or not only_moved(before, head):
            connection.execute(_REPLACE, (*head[1:], run))
        return int(run)

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
        if write.bills:
            connection.executemany(_ADD_BILL, write.bills)
        if write.newest is not None:
            connection.execute(_SET_NEWEST, write.newest)
        if write.imported is not None:
            connection.execute(_SET_IMPORT, write.imported)


_ON_TABLES: Final = frozenset({apsw.SQLITE_READ, apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE})
_ON_NOTHING: Final = frozenset({apsw.SQLITE_SELECT, apsw.SQLITE_RECURSIVE})


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Return whether a tool's statement may do this: read and write rows of tables that aren't ours, nothing else."""
    table = (first or "").lower()
    if action in _ON_TABLES:
        allowed = table not in ALL and not table.startswith("sqlite_")
    elif action == apsw.SQLITE_FUNCTION:
        allowed = (second or "").lower() != "load_extension"
    else:
        allowed = action in _ON_NOTHING
    return apsw.SQLITE_OK if allowed else apsw.SQLITE_DENY


_ON_SCHEMA: Final = frozenset({"sqlite_master", "sqlite_schema"})
_DEFINES: Final = {
    apsw.SQLITE_CREATE_TABLE: 0,
    apsw.SQLITE_DROP_TABLE: 0,
    apsw.SQLITE_ALTER_TABLE: 1,
    apsw.SQLITE_CREATE_INDEX: 1,
    apsw.SQLITE_DROP_INDEX: 1,
    apsw.SQLITE_REINDEX: 0,
}
"""What a definition may do, and which of its two names is the one that must not be ours."""


def _authorize_define(action: int, first: str | None, second: str | None, *more: str | None) -> int:
    """Return whether a definition may do this. SQLite itself lets only such statements write the schema."""
    if action in _DEFINES:
        name = ((first, second)[_DEFINES[action]] or "").lower()
        return apsw.SQLITE_OK if name not in ALL and not name.startswith("sqlite_") else apsw.SQLITE_DENY
    if action in _ON_TABLES and (first or "").lower() in _ON_SCHEMA:
        return apsw.SQLITE_OK
    return _authorize(action, first, second, *more)
