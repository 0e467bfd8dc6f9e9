"""One tree of errors.

Every error has a stable `code` for programs, and a text for people that names what was expected, what came and what
to do next. Texts never hold a payload. Errors of a database driver are translated where the driver is used, so nobody
above `runjournal.log` ever sees one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class JournalError(Exception):
    """The root of every error that this package raises on purpose."""

    code: ClassVar[str] = "error"


class InvalidArgument(JournalError, ValueError):
    """An argument that can't be right: the text says which, what is allowed and what came."""

    code = "invalid_argument"


class Unstorable(JournalError, TypeError):
    """A value that wouldn't come back equal from the log, refused before anything is written.

    `path` is where it lies, as a JSON path (`$.args.when`).
    """

    code = "unstorable"

    def __init__(self, path: str, expected: str, got: str) -> None:
        path = path.encode("utf-8", "backslashreplace").decode()  # it may hold the very text that can't be stored
        super().__init__(f"{path}: expected {expected}, got {got}; nothing was written")
        self.path = path
        self.expected = expected
        self.got = got


class TooLarge(JournalError, ValueError):
    """A value over a bound of `runjournal.log.limits`, refused before anything is written."""

    code = "too_large"


class MissingExtra(JournalError, ImportError):
    """A part of this package needs a library that isn't installed."""

    code = "missing_extra"

    def __init__(self, what: str, library: str, extra: str) -> None:
        super().__init__(f"{what} need the library {library}: pip install 'runjournal[{extra}]'")


class RunNotFound(JournalError, LookupError):
    """No run has this id."""

    code = "run_not_found"

    def __init__(self, run_id: str, close: Sequence[str] = ()) -> None:
        meant = f"; close to it: {', '.join(close)}" if close else ""
        super().__init__(f"no run {run_id!r} in this store{meant}; `runjournal ls` lists the runs that are there")
        self.run_id = run_id


# Appending.


class AppendRefused(JournalError):
    """The guarded append said no: nothing was written. The root of every refusal, so that one `except` sees all."""

    code = "append_refused"


class WrongExpectation(AppendRefused):
    """Somebody else appended first: the head isn't where the writer expected it.

    `expected` and `actual` are sequence numbers, 0 for a run that doesn't exist. Read the run again, decide again.
    """

    code = "wrong_expectation"

    def __init__(self, run_id: str, expected: int, actual: int) -> None:
        super().__init__(
            f"run {run_id}: expected the head at seq {expected}, it is at {actual}; "
            "read what came in between and append again"
        )
        self.run_id = run_id
        self.expected = expected
        self.actual = actual


class NotAllowed(AppendRefused):
    """This writer may not append this event now; see "who may append what" in docs/architecture.md."""

    code = "not_allowed"


class InvalidTransition(NotAllowed):
    """The state machine has no such arrow: `status` is where the run is, `event_type` what was tried."""

    code = "invalid_transition"

    def __init__(self, run_id: str, status: str, event_type: str, why: str = "") -> None:
        reason = why or "the state machine has no such arrow"
        super().__init__(f"run {run_id} is {status}: {event_type} is refused ({reason})")
        self.run_id = run_id
        self.status = status
        self.event_type = event_type


class Purged(NotAllowed):
    """The run was purged (`Journal.purge`): nothing of it is left to go on from, and nothing is ever added to it."""

    code = "purged"

    def __init__(self, run_id: str, what: str = "") -> None:
        super().__init__(f"run {run_id} was purged{f' ({what})' if what else ''}: nothing goes on from it any more")
        self.run_id = run_id


class ResumePointUsed(NotAllowed):
    """A resume that names a resume point came too late: somebody has used the point, or the run has moved since.

    Look again at what the run goes on from (`Journal.resume_report`), and resume that.
    """

    code = "resume_point_used"

    def __init__(self, run_id: str, point: int, actual: int, what: str) -> None:
        super().__init__(
            f"run {run_id}: expected the resume point {actual}, got {point}: {what}; look again at what it goes on "
            f"from, `runjournal show {run_id}`, and resume that"
        )
        self.run_id = run_id
        self.point = point
        self.actual = actual


class StaleEpoch(AppendRefused):
    """The writer's lease was taken over: a newer owner has a higher epoch. It must stop working on this run."""

    code = "stale_epoch"

    def __init__(self, run_id: str, epoch: int, actual: int, status: str) -> None:
        super().__init__(
            f"run {run_id}: this writer's epoch is {epoch}, the run is {status} with epoch {actual}; "
            "stop, another owner has it"
        )
        self.run_id = run_id
        self.epoch = epoch
        self.actual = actual


class CancelRequested(AppendRefused):
    """A cancel was requested: nothing new may begin in this run."""

    code = "cancel_requested"


class CallEnded(AppendRefused):
    """This attempt of the call has an outcome already; the first one counts."""

    code = "call_ended"


class NotNewest(AppendRefused):
    """Only the newest run of a line may go on; this one was retried or restarted before."""

    code = "not_newest"


# Reading.


class CorruptLog(JournalError):
    """The log contradicts itself at `run_id`, `seq`: a hash, a link or a number is wrong; `runjournal verify` says."""

    code = "corrupt_log"

    def __init__(self, run_id: str, seq: int, what: str) -> None:
        super().__init__(f"run {run_id} seq {seq}: {what}; `runjournal verify {run_id}` shows the extent")
        self.run_id = run_id
        self.seq = seq
        self.what = what


class Unfoldable(JournalError):
    """An event that a fold can't go past: unreadable, or written by a newer version of this package.

    Update the package, or pass `force=True` (`--force`) to fold as if the event weren't there.
    """

    code = "unfoldable"

    def __init__(self, run_id: str, seq: int, event_type: str, what: str) -> None:
        super().__init__(
            f"run {run_id} seq {seq}: {event_type} {what}; update runjournal, or fold with force=True to leave it out"
        )
        self.run_id = run_id
        self.seq = seq


class MissingBlob(JournalError, LookupError):
    """A value over the inline bound whose bytes aren't in the store. The log itself is whole; folds don't need it."""

    code = "missing_blob"

    def __init__(self, digest: str, where: str) -> None:
        super().__init__(f"{where}: the blob sha256:{digest} is not in the store; restore it from a backup")
        self.digest = digest


class ChangedBlob(JournalError):
    """Bytes that are held out of line aren't those that their reference names."""

    code = "changed_blob"

    def __init__(self, digest: str) -> None:
        super().__init__(f"the blob sha256:{digest} was changed in the store; restore it from a backup")
        self.digest = digest


class TailRewound(JournalError):
    """What a reader had seen is gone: a power cut took relaxed commits. Read again from `position`."""

    code = "tail_rewound"

    def __init__(self, position: int) -> None:
        super().__init__(
            f"the event at position {position} is not the one seen before: a power cut took relaxed commits; "
            "read again from the last position that you know to be durable"
        )
        self.position = position


# Stores.


class StoreError(JournalError):
    """The store can't do what was asked."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store can't be reached or opened now; the text says why and what to do."""

    code = "store_unavailable"


class StoreBusy(StoreUnavailable):
    """Another process held the write lock longer than `busy_wait_s`. Nothing was written; try again."""

    code = "store_busy"


class StoreFull(StoreUnavailable):
    """The disk, or a quota, is full. Nothing was written; what was committed before is readable."""

    code = "store_full"


class StoreReadOnly(StoreUnavailable):
    """The file or its folder can't be written."""

    code = "store_read_only"


class StoreReplaced(StoreUnavailable):
    """A file of the store was deleted, moved or replaced while it was open: what is written now, nobody finds again.

    Nothing more is acknowledged. Put the file back, or stop and open the store that is there now.
    """

    code = "store_replaced"


class StoreClosed(StoreError):
    """This store was closed; open it again."""

    code = "store_closed"


class NotAStore(StoreError):
    """The file is something else: another tool's, a directory, a damaged header. It was not touched."""

    code = "not_a_store"


class StoreIdDiffers(StoreError):
    """The store has another id than `Journal.open(store_id=)` expected: keys that its runs send are others."""

    code = "store_id_differs"

    def __init__(self, path: str, expected: str, found: str) -> None:
        has = f"has the id {found!r}" if found else "has no id"
        super().__init__(
            f"{path} {has}, expected {expected!r}; nothing was written: name the store that you mean, or leave "
            "store_id out. An id is for life: keys that were sent begin with it"
        )
        self.expected = expected
        self.found = found


class NewerSchema(StoreError):
    """A newer runjournal has migrated this store; this version doesn't touch it."""

    code = "newer_schema"

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(
            f"{path} has schema {found}, this runjournal knows schemas up to {known}; "
            "update runjournal, nothing was touched"
        )
        self.found = found
        self.known = known


class UnsafePlace(StoreError):
    """The file lies where commits aren't safe (no WAL, a network file system), or the engine has a known fault."""

    code = "unsafe_place"


class UsedAfterFork(StoreError):
    """A store that was opened before a fork is used in the child: its locks and connections belong to the parent."""

    code = "used_after_fork"

    def __init__(self) -> None:
        super().__init__("this store was opened before fork(); open a Journal of its own in each process")


class OutcomeUnknown(StoreError):
    """The commit failed, and this process can't find out whether it is there. A new process can.

    Append the same batch again from a new process: it is a no-op if the commit had come through.
    """

    code = "outcome_unknown"


class StorePoisoned(StoreError):
    """An earlier commit ended in `OutcomeUnknown`, so this process must not acknowledge anything more. Restart it."""

    code = "store_poisoned"
