"""Files that hold what runs say: their owner's alone, mode 0600, whatever the umask is."""

from __future__ import annotations

import os


def open_new(path: str | os.PathLike[str]) -> int:
    """Make a file that wasn't there, and return its descriptor. Raises OSError; FileExistsError where one is there.

    A umask can only take rights away, and one that takes the owner's would leave a file that nobody can open.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def take_rights(path: str | os.PathLike[str]) -> None:
    """Make a file its owner's alone. Raises OSError."""
    os.chmod(path, 0o600)  # noqa: PTH101 - beside os.fchmod
