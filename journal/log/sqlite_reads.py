"""Reading a SQLite store, on whatever connection: inside a write transaction or beside it.

The texts of statements are constants, so that each is prepared once and then found in the connection's statement cache.
Every query takes all its rows at once: an open cursor would keep its snapshot, and the WAL would grow behind it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

import apsw

from .base import RecordedEvent
from .chain import RawRow
from .cipher import ERASED_KEY
from .codec import decode, is_utf8
from .errors import CorruptLog, InvalidArgument
from .head import STATUSES, Head, row_fault
from .limits import int_max, read_page_events_max
from .private_values import KeyRing
from .sqlite_checkpoints import opened
from .sqlite_errors import translate
from .sqlite_events import fetched
from .store import BadRow, Checkpoint, Effect, Import, StepEnd, Unknown, read, warn_of
from .tables import INDEX

T = TypeVar("T")

_AT: Final = re.compile(rb'\{"v":\d+,"at":"([^"\\]{27})"')

_NUMBER: Final = "(SELECT run FROM run_keys WHERE run_id = ?)"
_STREAM: Final = (
    f"SELECT seq, position, type, body, hash FROM events WHERE run = {_NUMBER} AND seq > ? AND seq <= ? ORDER BY seq"
)
_PAGE: Final = f"{_STREAM} LIMIT {read_page_events_max}"
_PAGE_BACK: Final = f"{_STREAM} DESC LIMIT {read_page_events_max}"
_LOG_PAGE: Final = (
    "SELECT run_id, seq, position, type, body, hash FROM events CROSS JOIN run_keys USING (run) "
    f"WHERE position > ? AND position <= ? ORDER BY position LIMIT {read_page_events_max}"
)
_STATED_AT: Final = """substr(CAST({0} AS TEXT), instr(CAST({0} AS TEXT), '"at":"') + 6, {1})"""
"""The first characters of the time in a body; it stands at the beginning."""

_FIELDS: Final = ", ".join(f"runs.{name}" for name in Head._fields)
_ROW_OF: Final = f"SELECT {_FIELDS} FROM runs WHERE run_id = ?"
# The last event of a run that is running is its head; the body's beginning holds its time.
_LAST: Final = (
    "LEFT JOIN events AS last ON last.position = iif(runs.status = 'running', "
    "(SELECT position FROM events WHERE run = runs.run ORDER BY seq DESC LIMIT 1), NULL)"
)
_COLUMNS: Final = f"SELECT {_FIELDS}, last.seq, last.hash, substr(last.body, 1, 60) FROM"
_HEAD: Final = f"{_COLUMNS} runs {_LAST}"
_TAGGED: Final = f"{_COLUMNS} run_tags AS tagged CROSS JOIN runs ON runs.run_id = tagged.run_id {_LAST}"
_HAS_TAG: Final = (
    "EXISTS (SELECT 1 FROM run_tags AS also WHERE also.tag = ? AND also.value = ? "
    "AND also.queued_at = runs.queued_at AND also.run_id = runs.run_id)"
)
HEAD_OF: Final = f"{_HEAD} WHERE runs.run_id = ?"
_EFFECT: Final = "SELECT scope, key, tool, args_sha256, run_id, seq FROM effects WHERE scope = ? AND key = ?"
_UNKNOWN: Final = "SELECT scope, key, run_id, seq FROM unknowns WHERE scope = ? AND key = ?"
_NEWEST: Final = "SELECT newest FROM lines WHERE scope = ?"
_STEP_END: Final = (
    "SELECT run_id, step, attempt, kind, ok, seq FROM step_ends WHERE run_id = ? AND step = ? "
    "ORDER BY attempt DESC LIMIT 1"
)
_STEP_ENDS: Final = (
    "SELECT run_id, step, attempt, kind, ok, seq FROM step_ends WHERE run_id = ? AND step = ? ORDER BY attempt"
)
_IMPORTED: Final = "SELECT run_id, source, sha256, taken FROM imports WHERE run_id = ?"
# An empty blob is one that was purged.
_BLOB: Final = "SELECT body FROM blobs WHERE digest = ? AND length(body) > 0"
_BLOBS_PAGE: Final = (
    "SELECT digest, iif(bytes = length(body), bytes, -1) FROM blobs "
    "WHERE digest > ? AND (bytes <> 0 OR length(body) > 0) ORDER BY digest LIMIT ?"
)
_CHECKPOINT_BEFORE: Final = (
    "SELECT run_id, seq, fold, body FROM checkpoints WHERE run_id = ? AND (seq, fold) < (?, CAST(? AS TEXT)) "
    "ORDER BY seq DESC, fold DESC LIMIT 1"
)
_CHECKPOINT_RUNS: Final = "SELECT DISTINCT run_id FROM checkpoints"
_BORN: Final = (
    "SELECT position, run_id FROM events CROSS JOIN run_keys USING (run) "
    "WHERE seq = 1 AND position > ? ORDER BY position LIMIT ?"
)
# Runs are numbered in the order of their first events.
_BORN_ALL: Final = (
    "SELECT run, run_id FROM run_keys "
    "WHERE EXISTS (SELECT 1 FROM events WHERE events.run = run_keys.run AND seq = 1) AND run > ? ORDER BY run LIMIT ?"
)
_NAMING_BLOBS: Final = (
    "SELECT position, run_id, body FROM events CROSS JOIN run_keys USING (run) "
    "WHERE position > ? AND (instr(body, CAST('\"ext\"' AS BLOB)) > 0 OR instr(body, CAST('\"names\"' AS BLOB)) > 0 "
    "OR instr(body, CAST('\\u' AS BLOB)) > 0) "
    f"ORDER BY position LIMIT {read_page_events_max}"  # as blob_names.may_name
)
_RUN_IDS: Final = "SELECT run_id FROM run_keys WHERE EXISTS (SELECT 1 FROM events WHERE events.run = run_keys.run)"
_TYPE_COUNTS: Final = (
    f"SELECT type, count(*) FROM events WHERE run = {_NUMBER} AND seq <= ? GROUP BY type ORDER BY type"
)
_SEQ_AT: Final = (
    f"SELECT seq FROM events WHERE run = {_NUMBER} AND {_STATED_AT.format('body', 26)} <= ? ORDER BY seq DESC LIMIT 1"
)
_NEWEST_KEY: Final = "SELECT key FROM secrets WHERE purpose = ? AND name = ? ORDER BY id DESC LIMIT 1"
_LAST_POSITION: Final = "SELECT coalesce(max(position), 0) FROM events"


def index_page(name: str, run_id: str | None, after: tuple[Any, ...] | None) -> tuple[str, tuple[Any, ...]]:
    """The query for a page of an index table, by key, behind the row `after`. Raises InvalidArgument."""
    if (table := INDEX.get(name)) is None:
        raise InvalidArgument(f"index table {name[:40]!r}: expected one of {', '.join(INDEX)}")
    key = ", ".join(table.columns[: table.key])
    where: list[str] = []
    params: list[Any] = []
    if run_id is not None:
        where.append(f"{table.run} = ?")
        params.append(run_id)
    if after is not None:
        where.append(f"({key}) > ({', '.join(_place(each) for each in after[: table.key])})")
        params += map(_bytes, after[: table.key])
    text = f"SELECT {', '.join(table.columns)} FROM {name}"
    text += f" WHERE {' AND '.join(where)}" if where else ""
    return f"{text} ORDER BY {key} LIMIT {read_page_events_max}", tuple(params)


def _place(value: object) -> str:
    """The placeholder of a value that was read: a text that is no UTF-8 goes back as the bytes that it is."""
    return "?" if _bytes(value) is value else "CAST(? AS TEXT)"


def _bytes(value: Any) -> Any:
    lone = isinstance(value, str) and not value.isascii() and not is_utf8(value)
    return value.encode("utf-8", "surrogateescape") if lone else value


def escaped(text: str) -> str:
    """A text that may be no UTF-8, each byte that isn't as an escape."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def heads_page(  # noqa: PLR0917 - each one is a filter
    status: str | None,
    kind: str | None,
    parent: str | None,
    tags: Mapping[str, str],
    prefix: str,
    since: str | None,
    after: tuple[str, str] | None,
    limit: int,
) -> tuple[str, tuple[Any, ...]]:
    """The query for a page of heads, newest first.

    One filter, the narrowest, is walked down by its index, in the order of the page. A + keeps the index of another
    out: it would gather all that fits and sort it.
    """
    filters = {"parent_run_id": parent, "status": status, "kind": kind}
    given = [(column, value) for column, value in filters.items() if value is not None]
    where = [f"{'+' * bool(place or tags)}runs.{column} = ?" for place, (column, _) in enumerate(given)]
    params: list[Any] = [value for _, value in given]
    by, text = "runs", _HEAD
    for place, (tag, value) in enumerate(tags.items()):
        if place:
            where.append(_HAS_TAG)
        else:
            by, text = "tagged", _TAGGED
            where.append("tagged.tag = ? AND tagged.value = ?")
        params += [tag, value]
    if prefix:
        where.append("runs.run_id >= ? AND runs.run_id < ?")
        params += [prefix, prefix + "\x7f"]  # above all that an id may hold
    if since is not None:
        where.append(f"(updated_at >= ? OR {_STATED_AT.format('substr(last.body, 1, 60)', 27)} >= ?)")
        params += [since, since]
    if after is not None:
        where.append(f"({by}.queued_at, {by}.run_id) < ({', '.join(_place(each) for each in after)})")
        params += map(_bytes, after)
    text = f"{text} WHERE {' AND '.join(where)}" if where else text
    return f"{text} ORDER BY {by}.queued_at DESC, {by}.run_id DESC LIMIT ?", (*params, limit)


def changed_page(status: str, after: tuple[str, str] | None) -> tuple[str, tuple[Any, ...]]:
    """The query for the run of a status, begun by no other, that changed last, or before the row (time, id) `after`.

    Of runs that are running it is all of them: their last events say when they changed.
    """
    text, params = f"{_HEAD} WHERE status = ? AND parent_run_id IS NULL", (status,)
    if status == "running":
        return text, params
    if after is not None:
        text += f" AND (updated_at, run_id) < ({', '.join(_place(each) for each in after)})"
        params = (status, *map(_bytes, after))
    return f"{text} ORDER BY updated_at DESC, run_id DESC LIMIT 1", params


def _listed(head: Head) -> tuple[bytes, bytes]:
    """Where a head stands in a listing, as SQLite compares texts."""
    return head.queued_at.encode("utf-8", "surrogateescape"), head.run_id.encode("utf-8", "surrogateescape")


def head_of(row: tuple[Any, ...]) -> Head:
    """Return the head of a run: its row, and if it is running, how far its last event is."""
    *columns, seq, digest, beginning = row
    head = Head._make(columns)
    if seq is None:
        return head
    at = _AT.match(beginning)
    return head._replace(
        head_seq=seq, head_hash=digest.hex(), updated_at=head.updated_at if at is None else at[1].decode()
    )


def fetch(
    connection: apsw.Connection, query: str, params: tuple[Any, ...], *, can_cache: bool = True
) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    return fetched(connection, query, params, can_cache=can_cache)


class SQLiteReads(ABC):
    """What can be read from a store, wherever the connection comes from."""

    _path: str

    @abstractmethod
    def _use(self, use: Callable[[apsw.Connection], T]) -> T:
        """Call `use` with a connection, translating nothing."""

    def _rows(self, query: str, params: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._use(partial(fetched, query=query, params=params))
        except apsw.Error as error:
            raise translate(error, self._path) from error

    def head(self, run_id: str) -> Head | None:
        """The run's head, or None. Raises CorruptLog if its row can't be read."""
        rows = self._rows(HEAD_OF, (run_id,))
        if not rows:
            return None
        return _sound(run_id, head_of(rows[0]))

    def head_row(self, run_id: str) -> Head | None:
        """The run's row as it stands, or None. Raises CorruptLog if it can't be read."""
        rows = self._rows(_ROW_OF, (run_id,))
        return _sound(run_id, Head._make(rows[0])) if rows else None

    def read(
        self, run_id: str, after: int = 0, upto: int | None = None, *, types: Sequence[str] | None = None
    ) -> Iterator[RecordedEvent]:
        """The run's events with after < seq <= upto, in order, of these types (all: None)."""
        return read(self, run_id, after, upto, types=types)

    def read_raw(self, run_id: str, after: int = 0, upto: int | None = None) -> Iterator[RawRow]:
        """The same rows as they are stored: (seq, position, type, body, hash)."""
        while True:
            page = self._page(run_id, after, upto)
            yield from page
            if len(page) < read_page_events_max:
                return
            after = page[-1][0]

    def _page(self, run_id: str, after: int, upto: int | None, *, newest_first: bool = False) -> list[RawRow]:
        """(seq, position, type, body, hash) of at most a page of events with after < seq <= upto."""
        query, params = (_PAGE_BACK if newest_first else _PAGE), (run_id, after, int_max if upto is None else upto)
        try:
            return cast("list[RawRow]", self._use(partial(fetched, query=query, params=params)))
        except apsw.Error as error:
            raise translate(error, self._path, run_id=run_id, seq=after + 1) from error

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

    def step_ends(self, run_id: str, step: str) -> list[StepEnd]:
        """Every end of a step, by attempt."""
        return [StepEnd._make(row) for row in self._rows(_STEP_ENDS, (run_id, step))]

    def imported(self, run_id: str) -> Import | None:
        """Where an imported run came from."""
        rows = self._rows(_IMPORTED, (run_id,))
        return Import._make(rows[0]) if rows else None

    def secret(self, purpose: str, name: str) -> bytes | None:
        """The newest key for a purpose and name; None if there never was one."""
        rows = self._rows(_NEWEST_KEY, (purpose, name))
        return bytes(rows[0][0]) if rows else None

    def key(self, run_id: str) -> bytes | None:
        """The key of a run's private values; None if it has none, or they were erased."""
        key = self.secret("run", run_id)
        return None if key == ERASED_KEY else key

    def born(self, after: int = 0) -> Iterator[str]:
        """Every run that has a first event, in the order of these; only those born behind a position."""
        query = _BORN if after else _BORN_ALL
        while page := self._rows(query, (after, read_page_events_max)):
            yield from (run_id for _, run_id in page)
            after = page[-1][0]

    def naming_blobs(self, after: int = 0) -> Iterator[tuple[str, bytes]]:
        """(run id, body) of every event behind a position that may name a blob."""
        while page := self._rows(_NAMING_BLOBS, (after,)):
            yield from ((run_id, body) for _, run_id, body in page)
            after = page[-1][0]


class SQLiteWideReads(SQLiteReads):
    """What can be read of a whole store, outside of transactions."""

    def heads(
        self,
        *,
        status: Sequence[str] = (),
        kind: str | None = None,
        parent: str | None = None,
        tags: Mapping[str, str] | None = None,
        prefix: str = "",
        since: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
        bad: Callable[[BadRow], None] = warn_of,
    ) -> list[Head]:
        """Heads by (queued_at, run_id), newest first, after the given one in that order; `since` bounds updated_at.

        `bad` is told of each row that can't be read, maybe twice; there may be more behind fewer heads than `limit`,
        and none behind no head.
        """
        if limit < 1:
            raise InvalidArgument(f"limit: expected 1 or more, got {limit}")
        while True:
            rows: list[Head] = []
            for each in dict.fromkeys(status) or (None,):
                page = heads_page(each, kind, parent, tags or {}, prefix, since, after, limit)
                rows += map(head_of, self._rows(*page))
            if len(status) > 1:
                rows = sorted(rows, key=_listed, reverse=True)[:limit]
            faults = [row_fault(head) for head in rows]
            found = [head for head, fault in zip(rows, faults, strict=True) if fault is None]
            for head, fault in zip(rows, faults, strict=True):
                if fault is not None:
                    bad(BadRow("runs", escaped(head.run_id), fault))
            if found or len(rows) < limit:
                return found
            after = (rows[-1].queued_at, rows[-1].run_id)

    def latest(self, *, status: Sequence[str] = (), bad: Callable[[BadRow], None] = warn_of) -> Head | None:
        """The run that changed last, of these statuses (all: none), among those that no other run began."""
        found: list[Head] = []
        for each in dict.fromkeys(status or STATUSES):
            after: tuple[str, str] | None = None
            while rows := [head_of(row) for row in self._rows(*changed_page(each, after))]:
                sound = [head for head in rows if row_fault(head) is None]
                for head in rows:
                    if (fault := row_fault(head)) is not None:
                        bad(BadRow("runs", escaped(head.run_id), fault))
                found += sound
                if sound or each == "running":
                    break
                after = (rows[-1].updated_at, rows[-1].run_id)
        return max(found, key=lambda head: (head.updated_at, head.run_id), default=None)

    def read_back(self, run_id: str, before: int | None = None) -> Iterator[RecordedEvent]:
        """The run's events with seq < before, newest first."""
        upto, keys = int_max if before is None else before - 1, KeyRing(self.key)
        while page := self._page(run_id, 0, upto, newest_first=True):
            for row in page:
                yield decode(run_id, *row, keys)
            upto = page[-1][0] - 1

    def read_all(self, after: int = 0, upto: int | None = None) -> Iterator[RecordedEvent]:
        """All runs' events with after < position <= upto, in the order of the store."""
        keys = KeyRing(self.key)
        while True:
            page = self._rows(_LOG_PAGE, (after, int_max if upto is None else upto))
            for row in page:
                yield decode(*cast("tuple[str, int, int, str, bytes, bytes]", row), keys)
            if len(page) < read_page_events_max:
                return
            after = page[-1][2]

    def index_stale(self) -> bool:
        """Return whether the index tables wait for a `reindex`: after a migration that made them."""
        return bool(self._rows("SELECT 1 FROM meta WHERE key = 'index' AND value = 'stale'"))

    def unscrubbed(self) -> bool:
        """Return whether keys were overwritten and `scrub` hasn't got through since."""
        return self.scrub_noted() is not None

    def scrub_noted(self) -> str | None:
        """Return the note that keys were overwritten since the last scrub, None if there is none."""
        rows = self._rows("SELECT value FROM meta WHERE key = 'scrub'")
        return str(rows[0][0]) if rows else None

    def run_ids(self) -> Iterator[str]:
        """Every run that has an event, each once."""
        yield from (str(run_id) for (run_id,) in self._rows(_RUN_IDS))

    def type_counts(self, run_id: str, upto: int) -> dict[str, int]:
        """How many events of each type a run has with seq <= upto, by type, sorted."""
        return {str(event_type): int(count) for event_type, count in self._rows(_TYPE_COUNTS, (run_id, upto))}

    def seq_at(self, run_id: str, at: str) -> int | None:
        """The seq of the run's last event that was appended at or before a time, or None."""
        rows = self._rows(_SEQ_AT, (run_id, at))
        return rows[0][0] if rows else None

    def last_position(self) -> int:
        """The greatest position in the store, 0 if it is empty."""
        return int(self._rows(_LAST_POSITION)[0][0])

    def blob(self, digest: str) -> bytes | None:
        """The bytes of a blob, or None."""
        rows = self._rows(_BLOB, (digest,))
        return rows[0][0] if rows else None

    def blob_digests(self) -> Iterator[tuple[str, int]]:
        """(digest, bytes) of every blob, by digest; -1 for one whose stored length isn't that of its bytes."""
        after = ""
        while page := self._rows(_BLOBS_PAGE, (after, read_page_events_max)):
            yield from ((digest, size) for digest, size in page)
            after = page[-1][0]

    def checkpoints(self, run_id: str, upto: int | None = None) -> Iterator[Checkpoint]:
        """The run's checkpoints with seq <= upto, newest first."""
        before = (int_max if upto is None else upto + 1, "")
        while rows := self._rows(_CHECKPOINT_BEFORE, (run_id, *before)):
            found = Checkpoint._make(rows[0])
            readable = opened(found, self.secret)
            if readable is not None:
                yield readable
            before = (found.seq, _bytes(found.fold))

    def checkpoint_runs(self) -> Iterator[str]:
        """Every run that a checkpoint is noted for, each once."""
        yield from (run_id for (run_id,) in self._rows(_CHECKPOINT_RUNS))

    def index_rows(self, table: str, run_id: str | None = None) -> Iterator[tuple[Any, ...]]:
        """The rows of an index table (`tables.INDEX`), sorted by their key, of one run or all.

        A row of lines is of the run that is its newest. Raises InvalidArgument for any other table.
        """
        after: tuple[Any, ...] | None = None
        while page := self._rows(*index_page(table, run_id, after)):
            yield from page
            if len(page) < read_page_events_max:
                return
            after = page[-1]


def _sound(run_id: str, head: Head) -> Head:
    if (fault := row_fault(head)) is not None:
        raise CorruptLog(run_id, 0, f"its row in the table runs can't be read ({fault})")
    return head
