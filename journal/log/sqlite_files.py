"""The files of an open SQLite store: whether their names still mean what this process has open.

A file that was deleted, moved or replaced stays open, and takes all that is written to it; nobody will ever find it
there. So the names are looked at with each append, and directly before each call.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from .errors import StoreReplaced

_BESIDE: Final = ("-wal", "-shm")


def inode(path: str) -> tuple[int, int] | None:
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
    """The database, its WAL and its shared memory, as they were just opened; all three are there by then.

    `before` is what the name of the database meant before it was opened. Raises StoreReplaced if it means another now.
    """

    def __init__(self, path: str, before: tuple[int, int] | None) -> None:
        self._path = path
        self._real = os.path.realpath(path)
        self._main = inode(path)
        self._beside = [(f"{self._real}{suffix}", inode(f"{self._real}{suffix}")) for suffix in _BESIDE]
        self._all = [(path, self._main), *self._beside]
        if self._main is None or self._main != before:
            raise self._replaced(path, "while it was being opened")
        self.identity = (self._real, *self._main)
        """The real path, device and inode of the database."""
        self.beside = [name for name, its in self._beside if its is not None]
        """The names of the other two."""

    def check(self, after: str = "") -> None:
        """Raise StoreReplaced unless each name means the file that is open; `after` says what has been done before."""
        for name, its in self._all:  # each append comes by here: no detour by `inode`
            try:
                found = os.stat(name)  # noqa: PTH116 - as there
                now = (found.st_dev, found.st_ino)
            except OSError:
                now = None
            if now != its:
                raise self._replaced(name, after)

    def check_main(self) -> None:
        """The same for the database alone: before a transaction, which is checked as a whole at its end."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - as in `inode`
            now = (found.st_dev, found.st_ino)
        except OSError:
            now = None
        if now != self._main:
            raise self._replaced(self._path, "")

    def may_close(self) -> bool:
        """Whether the WAL may be moved into the database: all is where it was, or the WAL has lost its name alone.

        Then this process has what was committed last, and nobody else ever will.
        """
        (wal, its), shm = self._beside
        return inode(self._path) == self._main and inode(shm[0]) == shm[1] and inode(wal) in (its, None)

    def _replaced(self, name: str, after: str) -> StoreReplaced:
        done = f"; {after}" if after else "; nothing was written"
        return StoreReplaced(
            f"{name} isn't the file that this process has open: it was deleted, moved or replaced{done}; "
            "put it back, or stop and open the store that is there now"
        )
