"""Disks on which figures hold anywhere: a memory file system, where each fsync takes as long as one asks.

A real disk's fsync takes from 20 microseconds to 20 milliseconds, and that decides any ratio. 400 microseconds is that
of a server's flash disk; at 0 what is left is the work of the processor.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

MEMORY = Path("/dev/shm")


class _SlowFile(apsw.VFSFile):
    def __init__(self, vfs: _Slow, name: Any, flags: list[int]) -> None:
        super().__init__(vfs.beneath, name, flags)
        self.vfs = vfs

    def xSync(self, flags: int) -> None:  # noqa: N802 - the VFS's word
        until = time.perf_counter() + self.vfs.fsync_s
        while time.perf_counter() < until:
            pass
        self.vfs.syncs += 1
        super().xSync(flags)


class _Slow(apsw.VFS):
    """The default file system of SQLite, whose every fsync takes so many seconds more."""

    def __init__(self, fsync_s: float) -> None:
        self.fsync_s = fsync_s
        self.syncs = 0
        self.beneath = apsw.vfs_names()[0]
        super().__init__("emulated", self.beneath, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - the VFS's word
        return _SlowFile(self, name, flags)


@contextmanager
def emulated(fsync_s: float) -> Generator[Path]:
    """A new folder in memory, on which SQLite's fsync takes `fsync_s` seconds; all are gone behind it."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    vfs = _Slow(fsync_s)
    try:
        yield folder
    finally:
        vfs.unregister()
        shutil.rmtree(folder)
