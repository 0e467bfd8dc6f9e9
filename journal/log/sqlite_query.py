"""A query of a user's on a connection that can do nothing but read."""

# apsw's stub takes Buffer from collections.abc, which has it from Python 3.12 on: to pyright on 3.11 it is unknown.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import apsw

from .errors import InvalidArgument

_READ_ONLY: Final = frozenset({apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE})


def select(connection: apsw.Connection, query: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the rows of one SELECT. Afterwards the connection can do nothing else.

    Raises InvalidArgument for anything else, and for what SQLite can't understand.
    """
    statements = 0

    def only_one(_cursor: apsw.Cursor, _text: str, _bindings: Any) -> bool:
        nonlocal statements
        statements += 1
        return statements == 1

    connection.execute("PRAGMA query_only = ON")
    connection.authorizer = _authorize
    connection.exec_trace = only_one
    try:
        return cast("list[tuple[Any, ...]]", connection.execute(query, tuple(params)).fetchall())
    except apsw.ExecTraceAbort:
        raise InvalidArgument("sql: expected one SELECT, got several statements") from None
    except (apsw.AuthError, apsw.SQLError, apsw.BindingsError, apsw.ReadOnlyError) as error:
        raise InvalidArgument(f"sql: expected a SELECT that SQLite understands: {error}") from error


def _authorize(action: int, *_names: str | None) -> int:
    return apsw.SQLITE_OK if action in _READ_ONLY else apsw.SQLITE_DENY
