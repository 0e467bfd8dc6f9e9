"""Files that grow while they are imported: each look takes what has come since the last one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from .claude_files import Source, discover

Stamp: TypeAlias = tuple[int, int, int, int] | None


def grown(paths: Iterable[str], stop: Callable[[float], bool], pause_s: float) -> Iterator[Source]:
    """Yield the transcripts among these files and folders, and each again once it has changed, until told to stop.

    `stop(wait_s)` waits up to so long and returns whether to end; it is asked after each file, and between two looks.
    A folder is looked through anew each time, so files that come later are found.
    """
    wanted = list(paths)
    known: dict[str, Stamp] = {}
    while True:
        for source in discover(wanted):
            stamp = _stamp(source.path)
            if source.path in known and known[source.path] == stamp:
                continue
            known[source.path] = stamp
            yield source
            if stop(0.0):
                return
        if stop(pause_s):
            return


def _stamp(path: str) -> Stamp:
    """Return what changes when a file does; None for one that can't be looked at."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a path stays as the user wrote it
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
