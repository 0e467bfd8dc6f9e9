"""SQLite's own file system, with somebody who is told of each change before it is made, and may prevent it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import apsw

CHANGES = ("write", "sync", "truncate", "delete", "open")


class Change(NamedTuple):
    """A change that is about to be made: `what` is a word of CHANGES, `file` is what `suffix` says of its path."""

    what: str
    file: str
    path: str
    offset: int = 0
    data: bytes = b""
    at_once: bool = False
    """Whether the folder is synced with it: of a file that is deleted."""


def suffix(path: str) -> str:
    """What a file of a store is: the store itself, its write-ahead log, or its rollback journal."""
    return next((each for each in ("-wal", "-journal") if path.endswith(each)), "")


Hook = Callable[[Change], "bytes | None"]
"""Told of a change. What it raises is the change's error; bytes are what of a write is made before it fails."""


class HookedFile(apsw.VFSFile):
    """A file whose changes the hook hears of."""

    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        self._file = suffix(self._path)
        super().__init__(disk.beneath, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - the VFS's word
        if (torn := self._disk.hook(Change("write", self._file, self._path, offset, bytes(data)))) is not None:
            super().xWrite(torn, offset)
            raise apsw.FullError("a short write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802 - the VFS's word
        self._disk.hook(Change("sync", self._file, self._path))
        super().xSync(flags)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - the VFS's word
        self._disk.hook(Change("truncate", self._file, self._path, newsize))
        super().xTruncate(newsize)


class Disk(apsw.VFS):
    """The default file system while it is there."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.beneath = apsw.vfs_names()[0]
        super().__init__("hooked", self.beneath, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - the VFS's word
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        self.hook(Change("open", suffix(path), path))
        return HookedFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - the VFS's word
        self.hook(Change("delete", suffix(filename), filename, at_once=syncdir))
        super().xDelete(filename, syncdir)


@contextmanager
def hooked(hook: Hook) -> Generator[Disk]:
    """Have all files of SQLite tell this hook, in this process."""
    disk = Disk(hook)
    try:
        yield disk
    finally:
        disk.unregister()


class Counted:
    """A hook that acts at the change of number `at`, from 1, of these kinds; `seen` counts."""

    def __init__(self, at: int, act: Callable[[Change], bytes | None], kinds: tuple[str, ...] = CHANGES) -> None:
        self.seen, self.at, self.act, self.kinds = 0, at, act, kinds

    def hooked(self) -> AbstractContextManager[object]:
        """Be told of each change."""
        return hooked(self)

    def __call__(self, change: Change) -> bytes | None:
        if change.what not in self.kinds:
            return None
        self.seen += 1
        return self.act(change) if self.seen == self.at else None


def die(_: Change | None = None) -> None:
    """Kill this process as nothing that it does itself can."""
    os.kill(os.getpid(), signal.SIGKILL)
