"""The temporary folder of a walk: it goes with the walk, or with the next one if its process was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from runjournal.log.limits import crash_memory_bytes_min

IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
PREFIX: Final = "runjournal-crash-"
_OWNER: Final = "owner"


@contextmanager
def walk_folder() -> Generator[Path]:
    """Make a folder for a walk, and remove it at the end; first remove those whose processes are dead.

    It is in `TMPDIR`; else in memory, if there is room. Its owner holds a lock on a file in it: a lock ends with its
    process, however that ends, and is known in all containers that share the folder.
    """
    for place in {IN_MEMORY, Path(tempfile.gettempdir())}:
        for each in place.glob(f"{PREFIX}*"):
            _remove_if_left(each)
    made = tempfile.TemporaryDirectory(prefix=PREFIX, dir=_memory())
    folder = Path(made.name)
    owner = os.open(folder / f"{_OWNER}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with made:
            fcntl.flock(owner, fcntl.LOCK_EX)
            (folder / f"{_OWNER}.new").rename(folder / _OWNER)  # whoever finds it finds it locked
            yield folder
    finally:
        os.close(owner)


def _memory() -> str | None:
    """Return where files are kept in memory, if there is room: what is crashed are processes, and no disk."""
    if "TMPDIR" in os.environ or not os.access(IN_MEMORY, os.W_OK):
        return None
    return str(IN_MEMORY) if shutil.disk_usage(IN_MEMORY).free >= crash_memory_bytes_min else None


def _remove_if_left(folder: Path) -> None:
    """Remove a folder of this user that no process holds; one without an owner is being made."""
    with suppress(OSError):  # another one removes it, too, or it is another's
        if folder.is_symlink() or folder.lstat().st_uid != os.getuid():
            return
        owner = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(owner)
