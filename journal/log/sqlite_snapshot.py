"""A store that may be read and not written: it is looked at in a private copy, and nothing of it is touched.

SQLite can't read a file with a write-ahead log unless it may write beside it, which somebody else's store, or a folder
that is mounted read-only, doesn't allow. The file and its WAL are copied; what a copy of both holds is what was
committed when the WAL was copied, as long as the WAL wasn't begun anew meanwhile.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn, TypeVar

import apsw

from .clock import Clock
from .errors import StoreBusy, StoreFull, StoreReadOnly, StoreUnavailable, TooLarge
from .limits import copied_store_bytes_max, copy_piece_bytes, copy_tries_max, wal_header_bytes
from .private import open_new
from .sqlite import SQLiteStore
from .sqlite_errors import translate
from .sqlite_files import size
from .sqlite_place import check_path
from .sqlite_schema import check_header

T = TypeVar("T")


class CopiedStore(SQLiteStore):
    """A private copy of a store, gone when it is closed. `changed_at`: when the original was written last, UTC text.

    What writes is StoreReadOnly. Raises StoreUnavailable, NotAStore, TooLarge (more than `copied_store_bytes_max`),
    StoreBusy (its writer was faster, each time), StoreFull.
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock) -> None:
        self.original = check_path(path)
        check_header(self.original)
        self._folder = tempfile.mkdtemp(prefix="runjournal-")
        self._sealed = False
        try:
            copy = str(Path(self._folder) / Path(self.original).name)
            self.changed_at = _copied(self.original, copy)
            super().__init__(copy, clock=clock, create=False, allow_unsafe=True)
        except BaseException:
            shutil.rmtree(self._folder)
            raise
        self.url = f"sqlite:{self.original}"

    def seal(self) -> None:
        """Refuse to write from here on."""
        self._sealed = True

    def close(self) -> None:
        """Close the copy, and remove it."""
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _locked(self, work: Callable[[apsw.Connection], T], *, durable: bool) -> T:
        if self._sealed:
            self._refuse()
        return super()._locked(work, durable=durable)

    def heartbeat(self, run_id: str, epoch: int, lease_until: float, at: float) -> bool:
        """Refuse: nobody owns a run here."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StoreReadOnly(
            f"{self.original}: this process may read the store and not write it; ask its owner, or check owner and mode"
        )


def _copied(path: str, copy: str) -> str:
    """Copy a store's file and its WAL to a new file; return when they were changed last, as UTC text."""
    for _ in range(copy_tries_max):
        found = size(path) + size(f"{path}-wal")
        if found > copied_store_bytes_max:
            raise TooLarge(
                f"{path}: {found} bytes, a copy may have copied_store_bytes_max = {copied_store_bytes_max}: "
                "look at it as somebody who may write it, or at a backup"
            )
        try:
            before = _version(path)
            changed = max(Path(name).stat().st_mtime for name in (path, f"{path}-wal") if size(name))
            _copy_file(path, copy)
            if size(f"{path}-wal"):
                shutil.copyfile(f"{path}-wal", f"{copy}-wal")
            if _version(path) == before:
                return datetime.fromtimestamp(changed, UTC).isoformat(sep=" ", timespec="seconds")[:19]
        except apsw.Error as error:
            raise translate(error, path) from error
        except OSError as error:
            if error.filename is not None and not str(error.filename).startswith(path):
                raise StoreFull(f"{copy}: the copy can't be written: {error.strerror}") from error
            raise StoreUnavailable(f"{path}: can't be read: {error.strerror}; check owner and mode") from error
        for name in (copy, f"{copy}-wal"):
            Path(name).unlink(missing_ok=True)
    raise StoreBusy(f"{path}: it is written faster than it can be copied; try again")


def _version(path: str) -> tuple[bytes, int]:
    """What is another one if a copy in between is torn: the header of the WAL; without one, when the file changed."""
    try:
        with Path(f"{path}-wal").open("rb") as file:
            header = file.read(wal_header_bytes)
    except FileNotFoundError:
        header = b""
    return header, 0 if header else Path(path).stat().st_mtime_ns


def _copy_file(path: str, copy: str) -> None:
    """Copy a database file through SQLite, so that no lock is dropped that this process may have on it."""
    source = apsw.VFSFile("", path, [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0])
    try:
        total, done = source.xFileSize(), 0
        with os.fdopen(open_new(copy), "wb") as target:
            while done < total:
                piece = source.xRead(min(copy_piece_bytes, total - done), done)
                target.write(piece)
                done += len(piece)
    finally:
        source.xClose()
