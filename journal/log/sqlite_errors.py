"""Errors of the SQLite driver, translated in one place: nobody above the stores ever sees one."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import apsw

from .errors import (
    CorruptLog,
    JournalError,
    NotAStore,
    OutcomeUnknown,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

_HARMLESS_AT_COMMIT: Final = (apsw.BusyError, apsw.FullError, apsw.LockedError, apsw.ProtocolError, apsw.ReadOnlyError)
"""What SQLite says before a commit record is whole in the WAL; after anything else it may be there or not."""


def translate(
    error: apsw.Error, path: str, *, committing: bool = False, run_id: str = "", seq: int = 0
) -> JournalError:
    """Return the package's error for one of the driver's, whose texts name tables and columns, never values.

    `committing` says that COMMIT raised it. `run_id` and `seq` say what was being read, for a damaged page.
    """
    if committing and not isinstance(error, _HARMLESS_AT_COMMIT):
        return OutcomeUnknown(
            f"{path}: the commit failed ({error}) and may be there or not; "
            "append the same batch again from a new process"
        )
    match error:
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():  # the last: no read lock could be had
            return StoreBusy(f"{path}: another process holds the lock; nothing was written, try again")
        case apsw.FullError():
            return StoreFull(f"{path}: the disk or a quota is full; nothing was written, make room and try again")
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreReadOnly(f"{path}: the file or its folder can't be written; check owner and mode ({error})")
        case apsw.CantOpenError():
            return StoreUnavailable(
                f"{path}: can't be opened; check that its folder exists and may be entered ({error})"
            )
        case apsw.NotADBError():
            return NotAStore(f"{path} is not a database, or its header is damaged; it was not touched")
        case apsw.CorruptError():
            return CorruptLog(run_id or "?", seq, f"a page of {path} is damaged")
        case apsw.IOError():
            return StoreUnavailable(f"{path}: I/O error, nothing was written; look at the disk ({error})")
        case apsw.ConnectionClosedError() | apsw.CursorClosedError():
            return closed(path)
        case _:
            return StoreError(f"{path}: {type(error).__name__}: {error}")


def closed(path: str) -> StoreClosed:
    """Return the error of a store that was closed."""
    return StoreClosed(f"{path}: this store was closed; open it again")


@contextmanager
def translated(path: str) -> Generator[None]:
    """Raise the package's errors in place of the driver's."""
    try:
        yield
    except apsw.Error as error:
        raise translate(error, path) from error
