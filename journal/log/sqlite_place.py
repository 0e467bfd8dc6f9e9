"""Where a SQLite store may lie, and what with: engine, file system, file, and the settings of each connection.

A file that may be in use by this process is only ever opened through SQLite: closing any other descriptor of it would
drop the POSIX locks that its connections hold.
"""

# apsw's stub takes Buffer from collections.abc, which has it from Python 3.12 on: to pyright on 3.11 it is unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from .clock import Clock
from .errors import InvalidArgument, NotAStore, StoreBusy, StoreReadOnly, StoreUnavailable, UnsafePlace
from .limits import wal_size_limit_bytes
from .private import open_new, take_rights
from .sqlite_errors import translate

APPLICATION_ID: Final = int.from_bytes(b"RunJ", "big")
"""Bytes 68 to 71 of each of our files, so that nobody takes it for another tool's."""
ENGINE_MIN: Final = "3.51.3"
"""The first release in which a checkpoint can't make readers and writers skip committed transactions."""
_MAGIC: Final = b"SQLite format 3\0"
_JOURNAL_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")
_NETWORK: Final = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|ncpfs|afs|9p|ceph|glusterfs|lustre|beegfs|gpfs|ocfs2|gfs2|davfs|vboxsf|prl_fs|virtiofs"
    r"|fuse\.(sshfs|ceph|glusterfs|rclone|s3fs|gcsfuse|goofys|davfs|vmhgfs-fuse|cifs|smb.*|nfs.*|juicefs|mount-s3)"
)
"""File systems that several machines share: locks or the shared memory of the WAL don't reach from one to another."""
_SETTINGS: Final[dict[str, int]] = {
    "trusted_schema": 0,
    "cell_size_check": 1,
    "mmap_size": 0,
    "secure_delete": 1,  # bytes of a key that SQLite moves are overwritten where they were
    "journal_size_limit": wal_size_limit_bytes,
    "wal_autocheckpoint": 0,  # SQLite's own ignores a failed fsync: the store checkpoints itself
    "synchronous": 3,  # EXTRA: while a store is made, a rollback journal that is gone must not come back
    **({"fullfsync": 1, "checkpoint_fullfsync": 1} if sys.platform == "darwin" else {}),
}


class Header(NamedTuple):
    """What the first bytes of a database file say."""

    application_id: int
    schema: int


def check_engine(version: str) -> None:
    """Raise UnsafePlace for a SQLite older than ENGINE_MIN."""
    if [int(part) for part in version.split(".")] < [int(part) for part in ENGINE_MIN.split(".")]:
        raise UnsafePlace(
            f"SQLite {version} may lose committed transactions while it checkpoints a WAL; "
            f"expected {ENGINE_MIN} or newer: update apsw"
        )


def check_utf8(path: str) -> None:
    """Raise InvalidArgument for a path with bytes that are no UTF-8: SQLite can't be told of it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"the path of a store: expected UTF-8, got {ascii(path)[:200]}; rename it") from None


def check_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a store's file. Raises InvalidArgument, NotAStore."""
    name = os.fspath(path)
    if not name or "\0" in name or name == ":memory:":
        raise InvalidArgument("the path of a store: expected a file name; write 'memory:' for a store that isn't kept")
    check_utf8(name)
    place = Path(name).absolute()
    name = str(place)
    try:
        mode = place.stat().st_mode
    except FileNotFoundError:
        return name
    except OSError as error:
        raise StoreUnavailable(f"{name}: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise NotAStore(f"{name} is a {'directory' if stat.S_ISDIR(mode) else 'special file'}; name a file in it")
    return name


def mountinfo() -> str:
    """Return the mounts that this process sees, in the kernel's words; empty where there is no /proc."""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def file_system(path: str, mounts: str) -> str:
    """The type of the file system that a path lies on, from the text of mountinfo; empty if that doesn't say.

    >>> file_system("/data/x.db", "30 22 0:40 / /data rw - nfs4 host:/x rw")
    'nfs4'
    """
    real, best, found = os.path.realpath(path), "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:  # noqa: PLR2004 - the fifth is the mount point
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # a later mount lies over an earlier one
            best, found = point, after.split()[0]
    return found


def check_file_system(path: str, mounts: str) -> None:
    """Raise UnsafePlace if a path lies on a network file system."""
    if _NETWORK.fullmatch(kind := file_system(path, mounts)):
        raise UnsafePlace(
            f"{path} lies on {kind}, which machines share: SQLite's WAL isn't safe there; use a local disk, "
            "or allow_unsafe=True if no other machine ever opens it"
        )


def create_file(path: str) -> None:
    """Make an empty file, its owner's alone; one that is there stays. Raises StoreUnavailable, StoreReadOnly."""
    try:
        os.close(open_new(path))
    except FileExistsError:
        return
    except OSError as error:
        kind = StoreReadOnly if isinstance(error, PermissionError) or error.errno == 30 else StoreUnavailable  # noqa: PLR2004 - EROFS
        advice = "check owner and mode of the folder" if kind is StoreReadOnly else "check the path and the disk"
        raise kind(f"{path}: can't be made: {error.strerror}; {advice}") from error


def make_private(path: str) -> None:
    """Make a file its owner's alone that is about to become a store. Raises StoreReadOnly."""
    try:
        take_rights(path)
    except OSError as error:
        raise StoreReadOnly(
            f"{path}: it would become a store that others may open, and its rights can't be changed: {error.strerror}; "
            "check owner and mode, or name a new file"
        ) from error


def read_header(path: str) -> Header | None:
    """Return what a database file says of itself, without taking a lock or touching anything; None if it is empty.

    Raises NotAStore for a file that isn't a SQLite database, StoreUnavailable.
    """
    flags = [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0]
    try:
        file = apsw.VFSFile("", path, flags)
        try:
            size = file.xFileSize()
            head = file.xRead(min(size, 100), 0) if size else b""
        finally:
            file.xClose()
    except apsw.Error as error:
        raise translate(error, path) from error
    if not head:
        return None
    if len(head) < 100 or not head.startswith(_MAGIC):  # noqa: PLR2004 - the size of the header
        if _never_committed(path):
            return None
        raise NotAStore(f"{path} is not a SQLite database; it was not touched")
    return Header(int.from_bytes(head[68:72], "big"), int.from_bytes(head[60:64], "big"))


def _never_committed(path: str) -> bool:
    """Return whether a file is what is left of a store that was being made when the power went.

    The rollback journal beside it then says that the file had no page before: SQLite will empty it. Its header is as
    in section 3 of SQLite's file format: 8 bytes of magic, and the number of pages before in bytes 16 to 19.
    """
    try:
        with Path(f"{path}-journal").open("rb") as journal:
            head = journal.read(20)
    except OSError:
        return False
    return head.startswith(_JOURNAL_MAGIC) and head[16:] == bytes(4)


def value(connection: apsw.Connection, query: str, *params: Any) -> Any:
    """Return the first column of the first row, or None."""
    rows = connection.execute(query, params).fetchall()
    return rows[0][0] if rows else None


def connect(path: str, busy_wait_s: float) -> apsw.Connection:
    """Open one more connection to an existing file, its settings read back. It leaves the WAL alone when it closes.

    Raises the driver's errors, UnsafePlace, StoreReadOnly.
    """
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.set_busy_timeout(round(busy_wait_s * 1000))
        _set_up(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: apsw.Connection, path: str) -> None:
    for name, setting in _SETTINGS.items():
        connection.execute(f"PRAGMA {name} = {setting}").fetchall()
        actual = value(connection, f"PRAGMA {name}")
        if actual != setting and not (name == "mmap_size" and actual is None):  # None: compiled without it
            raise UnsafePlace(f"{path}: expected PRAGMA {name} to be {setting}, it stays at {actual}")
    if connection.readonly("main"):
        raise StoreReadOnly(f"{path}: the file can't be written; check owner and mode")


def switch_to_wal(connection: apsw.Connection, path: str, clock: Clock, busy_wait_s: float) -> None:
    """Turn the write-ahead log on. Raises UnsafePlace where it can't be had, StoreBusy."""
    waits_max, wait_s = max(1, round(busy_wait_s / 0.01)), 0.01
    for _ in range(waits_max):
        try:
            mode = value(connection, "PRAGMA journal_mode = WAL")
            break
        except apsw.BusyError:  # SQLite doesn't wait by itself for the lock of this switch
            clock.sleep(wait_s)
    else:
        raise StoreBusy(f"{path}: another process holds the lock; try again")
    if mode != "wal":
        raise UnsafePlace(
            f"{path}: expected journal mode wal, got {mode}: SQLite has no write-ahead log here; use a local disk"
        )
