"""Statements that are a transaction of their own: an owner's event, and its heartbeat."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Final

import apsw

from . import failpoint
from .errors import StoreError
from .store import Alone

_APPEND: Final = (
    "INSERT INTO events (run, seq, type, body, hash) VALUES ((SELECT run FROM runs WHERE run_id = ?1 "
    "AND status = 'running' AND epoch = ?7 AND cancel_requested IS ?8 "
    "AND (SELECT hash FROM events WHERE run = runs.run AND seq = ?2 - 1) = ?6), ?2, ?3, ?4, ?5)"
)
"""The hash of the event before it pins all that is known of the run; if that has moved on, the triggers refuse."""
_HEARTBEAT: Final = (
    "UPDATE runs SET lease_until = ?, heartbeat_at = ? WHERE run_id = ? AND epoch = ? AND status = 'running'"
)


def append(connection: apsw.Connection, alone: Alone) -> int | None:
    """Insert an owner's event and return its position; None if its run isn't as it says. Raises the driver's errors."""
    run_id, before, event = alone
    prev = bytes.fromhex(before.head_hash or "")
    try:
        connection.execute(_APPEND, (run_id, *event, prev, before.epoch, before.cancel_requested))
    except apsw.ConstraintError:  # who asks again in a transaction hears why
        return None
    return int(connection.last_insert_rowid())


def append_and_commit(connection: apsw.Connection, alone: Alone, path: str) -> int | None:
    """Do as `append`; raise StoreError inside a transaction, whose end would be that of the statement."""
    if connection.in_transaction:
        raise StoreError(f"{path}: a transaction is open on the connection of the writer")
    failpoint.passed("commit.before")
    return append(connection, alone)


def heartbeat(connection: apsw.Connection, run_id: str, epoch: int, lease_until: float, at: float) -> bool:
    """Extend the lease of a running run; return whether `epoch` is its epoch. Raises the driver's errors."""
    failpoint.passed("heartbeat")
    connection.execute(_HEARTBEAT, (lease_until, at, run_id, epoch))
    return connection.changes() == 1
