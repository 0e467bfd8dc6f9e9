"""A file without a name for what doesn't fit memory while something is read; it is gone when it is closed.

SQLite keeps a few pages of it in memory and the rest on the disk of the temporary files. Nobody else can open it.
"""

# apsw's stub takes Buffer from collections.abc, which has it from Python 3.12 on: to pyright on 3.11 it is unknown.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Self, TypeVar

import apsw

from .limits import scratch_cache_bytes
from .sqlite_errors import translate

T = TypeVar("T")

_MAKE: Final = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    f"PRAGMA cache_size = -{scratch_cache_bytes // 1024}",
    "CREATE TABLE lists (place INTEGER PRIMARY KEY, list INTEGER NOT NULL, body BLOB NOT NULL)",
    "CREATE INDEX lists_list ON lists (list)",
    "CREATE TABLE pairs (kind TEXT NOT NULL, key BLOB NOT NULL, body BLOB NOT NULL, UNIQUE (kind, key))",
    "BEGIN",
)
_PLACE: Final = "the temporary file of an import"


class Scratch:
    """Lists and pairs of bytes on disk, for one process, as long as it is open.

    Raises StoreFull, StoreError where the disk says no.
    """

    def __init__(self) -> None:
        def make() -> apsw.Connection:
            connection = apsw.Connection("")
            for statement in _MAKE:
                connection.execute(statement)
            return connection

        self._connection = _translated(make)

    def add(self, number: int, body: bytes) -> None:
        """Put bytes at the end of the list of this number."""
        self._run("INSERT INTO lists (list, body) VALUES (?, ?)", (number, body))

    def read(self, number: int) -> Iterator[bytes]:
        """The bytes of the list of this number, in the order in which they were added."""
        try:
            for (body,) in self._connection.execute("SELECT body FROM lists WHERE list = ? ORDER BY place", (number,)):
                yield body
        except apsw.Error as error:
            raise translate(error, _PLACE) from error

    def put(self, kind: str, key: bytes, body: bytes) -> None:
        """Keep bytes under a key, instead of what was there."""
        self._run(
            "INSERT INTO pairs (kind, key, body) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET body = excluded.body",
            (kind, key, body),
        )

    def get(self, kind: str, key: bytes) -> bytes | None:
        """What is kept under a key, or None."""
        row = self._run("SELECT body FROM pairs WHERE kind = ? AND key = ?", (kind, key))
        return row[0][0] if row else None

    def _run(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return _translated(lambda: list(self._connection.execute(statement, values)))

    def close(self) -> None:
        """Let go of the file; idempotent."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _translated(do: Callable[[], T]) -> T:
    try:
        return do()
    except apsw.Error as error:
        raise translate(error, _PLACE) from error
