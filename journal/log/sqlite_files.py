"""The files of an open SQLite store: whether their names still mean what this process has open.

A file that was deleted, moved or replaced stays open, and takes all that is written to it; nobody will ever find it
there. So the names are looked at with each append, and directly before each call.
"""

# apsw's stub takes Buffer from collections.abc, which has it from Python 3.12 on: to pyright on 3.11 it is unknown.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import apsw

from .errors import StoreReplaced

_BESIDE: Final = ("-wal", "-shm")


def _inode(path: str) -> tuple[int, int] | None:
    """The device and inode that a name means now, None if it means nothing."""
    try:
        found = os.stat(path)  # noqa: PTH116 - each append comes by here, and a Path costs more than the look
    except OSError:
        return None
    return found.st_dev, found.st_ino


def size(path: str) -> int:
    """The bytes of a file, 0 if it isn't there."""
    with suppress(FileNotFoundError):
        return Path(path).stat().st_size
    return 0


class Files:
    """The database, its WAL and its shared memory, as `connection` has opened them; all three are there by then.

    Raises StoreReplaced.
    """

    def __init__(self, path: str, connection: apsw.Connection) -> None:
        self._path = path
        self._real = os.path.realpath(path)
        self._main = _inode(path)
        self._beside = [(f"{self._real}{suffix}", _inode(f"{self._real}{suffix}")) for suffix in _BESIDE]
        if self._main is None or _moved(connection):
            raise self._replaced(path, "while it was being opened")
        self.identity = (self._real, *self._main)
        """The real path, device and inode of the database."""
        self.beside = [name for name, inode in self._beside if inode is not None]
        """The names of the other two."""

    def check(self, after: str = "") -> None:
        """Raise StoreReplaced unless each name means the file that is open; `after` says what has been done before."""
        if _inode(self._path) != self._main:
            raise self._replaced(self._path, after)
        for name, inode in self._beside:
            if _inode(name) != inode:
                raise self._replaced(name, after)

    def check_main(self) -> None:
        """The same for the database alone: before a transaction, which is checked as a whole at its end."""
        if _inode(self._path) != self._main:
            raise self._replaced(self._path, "")

    def may_close(self) -> bool:
        """Whether the WAL may be moved into the database: all is where it was, or the WAL has lost its name alone.

        Then this process has what was committed last, and nobody else ever will.
        """
        (wal, its_inode), shm = self._beside
        return _inode(self._path) == self._main and _inode(shm[0]) == shm[1] and _inode(wal) in (its_inode, None)

    def _replaced(self, name: str, after: str) -> StoreReplaced:
        done = f"; {after}" if after else "; nothing was written"
        return StoreReplaced(
            f"{name} isn't the file that this process has open: it was deleted, moved or replaced{done}; "
            "put it back, or stop and open the store that is there now"
        )


def _moved(connection: apsw.Connection) -> bool:
    """Whether the name of the database means another file than the one that SQLite has opened, as SQLite knows it."""
    answer = ctypes.c_int(0)
    connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(answer))
    return bool(answer.value)
