"""Looking after a SQLite file: what there is to know of it, and giving back what it doesn't need."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import apsw

from .limits import scrub_tries_max, scrub_wait_s
from .sqlite_files import size
from .sqlite_place import value
from .sqlite_schema import MIGRATIONS, stored_id


def facts(connection: apsw.Connection) -> dict[str, Any]:
    """Return schema, settings and counts of a store."""
    settings = ("journal_mode", "page_size", "page_count", "freelist_count", "journal_size_limit")
    counts = ("runs", "checkpoints")
    return {
        "schema": value(connection, "PRAGMA user_version"),
        "store_id": stored_id(connection),
        **{name: value(connection, f"PRAGMA {name}") for name in settings},
        **{f"{name}_count": value(connection, f"SELECT count(*) FROM {name}") for name in counts},
        "blobs_count": value(connection, "SELECT count(*) FROM blobs WHERE length(body) > 0"),
        "events_count": value(connection, "SELECT count(*) FROM events"),
    }


def about(path: str, *, busy_wait_s: float) -> dict[str, Any]:
    """Return what there is to know of a store without reading it: engine, driver, sizes in bytes."""
    return {
        "store": "sqlite",
        "path": path,
        "engine": f"SQLite {apsw.sqlite_lib_version()}",
        "driver": f"apsw {apsw.apsw_version()}",
        "schema_known": len(MIGRATIONS),
        "busy_wait_s": busy_wait_s,
        "file_bytes": size(path),
        "wal_bytes": size(f"{path}-wal"),
    }


def bytes_held(path: str) -> int:
    """Return how many bytes the file of a store and its WAL have."""
    return size(path) + size(f"{path}-wal")


def keep_in_memory(writer: apsw.Connection) -> None:
    """Have the connection keep what a statement may have to undo in memory: in a file, what was purged would lie on."""
    writer.execute("PRAGMA temp_store = MEMORY").fetchall()


def vacuum(writer: apsw.Connection) -> None:
    """Write the file anew, by way of a copy in a temporary file: there may be no room for it in memory."""
    writer.execute("PRAGMA temp_store = FILE").fetchall()
    try:
        writer.execute("VACUUM").fetchall()
    finally:
        keep_in_memory(writer)


def truncate_wal(connection: apsw.Connection) -> bool:
    """Move the whole WAL into the file, so that no older page is left in it; return whether readers let it."""
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except (apsw.BusyError, apsw.LockedError):
        return False
    return True


def truncate_before_close(connection: apsw.Connection) -> None:
    """Move the whole WAL into the file, unless somebody else has it open, who will do it when it closes it."""
    try:
        connection.set_busy_timeout(0)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError:
        return
    except apsw.Error:  # SQLite would try once more, and believe a second fsync; the WAL has it all
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def scrub(noted: Callable[[], str | None], attempt: Callable[[str], bool]) -> bool:
    """Try to empty the WAL until nothing is noted that it may hold; return whether that could be done.

    `attempt` is given the note that it is to take away, and says whether readers have let it.
    """
    for _ in range(scrub_tries_max):
        note = noted()
        if note is None:
            return True
        if not attempt(note):
            time.sleep(scrub_wait_s)  # with no lock held: a reader lets it wait, and it lets no writer wait
    return noted() is None


def empty_wal(connection: apsw.Connection, noted: str) -> bool:
    """Empty the WAL if readers let it, and take the note away unless another erasure has come since it was read."""
    connection.set_busy_timeout(0)
    if not truncate_wal(connection):
        return False
    try:
        connection.execute("DELETE FROM meta WHERE key = 'scrub' AND value = ?", (noted,)).fetchall()
    except apsw.BusyError:
        return False
    return True
