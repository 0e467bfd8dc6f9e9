"""A copy of a SQLite store: complete, verified, its owner's alone, and whole under its name or not there."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import get_ident

from .errors import StoreError, StoreUnavailable
from .private import open_new
from .sqlite_errors import translated
from .sqlite_place import connect, value


def copy(path: str, target: str) -> None:
    """A complete, verified copy of a store as a new file, mode 0600, while others go on writing.

    It is made under another name in the target's folder, so that the target is whole or isn't there. Raises
    StoreUnavailable if the target exists, CorruptLog if the copy isn't sound, and what `translate` returns.
    """
    unfinished = f"{target}.unfinished-{os.getpid()}-{get_ident()}"
    try:
        os.close(open_new(unfinished))  # never one that is there: whose it is isn't known
    except OSError as error:
        raise StoreUnavailable(f"{unfinished}: {error.strerror}; choose another name or place") from error
    try:
        with translated(path):
            source = connect(path, 0.0)
            try:
                source.execute("VACUUM INTO ?", (unfinished,)).fetchall()
            finally:
                source.close()
        with translated(unfinished):
            made = connect(unfinished, 0.0)
            try:
                said = value(made, "PRAGMA quick_check(1)")
            finally:
                made.close()
        if said != "ok":
            raise StoreError(f"{path}: the copy isn't sound ({said}); run `runjournal verify`")
        _publish(unfinished, target)
    finally:
        with suppress(FileNotFoundError):
            Path(unfinished).unlink()


def _publish(unfinished: str, target: str) -> None:
    """Give a finished file its name, on disk, never in place of another file."""
    try:
        _sync(unfinished)
        try:
            os.link(unfinished, target)
        except PermissionError:  # a file system without hard links
            if os.path.lexists(target):
                raise FileExistsError(17, "File exists") from None
            os.rename(unfinished, target)  # noqa: PTH104 - beside os.link, which pathlib words the other way round
        _sync(str(Path(target).parent))
    except OSError as error:
        raise StoreUnavailable(f"{target}: {error.strerror}; choose another name or place") from error


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
