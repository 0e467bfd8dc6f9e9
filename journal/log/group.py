"""Appends that share a commit: while one commit waits for the disk, those that come meanwhile make the next one.

An append that finds nobody before it goes by itself, in its own thread. The others stand in a line, and one thread of
the store's own, the committer, judges and writes as many as are there in one transaction. It is no thread of theirs, so
that an interrupt in one of them never ends an append of another one.

Each is judged before it writes, so a refusal ends only itself. One that fails after it has written takes the
transaction with it: then each of them has one of its own. What a failed commit says is said to each that was in it, and
to those behind it in the line that append to the same runs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import RLock, Thread, current_thread, get_ident
from typing import Protocol, TypeVar, cast

from . import failpoint
from .errors import OutcomeUnknown, StoreBusy, StoreError
from .guard import Signal, hold
from .limits import committer_idle_s, group_appends_max
from .store import SharedTransaction, SharedWork, Transaction

T = TypeVar("T")


class _Transact(Protocol):
    def __call__(self, decide: Callable[[Transaction], T], /, *, durable: bool) -> T: ...


class _BrokenError(Exception):
    """An append has failed after it wrote: nothing of this transaction may be committed."""


class _Waiting:
    """An append in the line, since when, and whether the committer has begun with it."""

    def __init__(self, work: SharedWork) -> None:
        self.work = work
        self.since_s = time.monotonic()
        self.begun = False
        self.told = False


class GroupCommit:
    """The line of one store, and its committer: a thread that lives while there is something in the line.

    `transact` is the store's, `check` raises if it may not be used, `writer()` is the thread that holds its write lock,
    0 for none.
    """

    def __init__(
        self, transact: _Transact, check: Callable[[], None], writer: Callable[[], int], path: str, busy_wait_s: float
    ) -> None:
        self._transact = transact
        self._check = check
        self._writer = writer
        self._path = path
        self._busy_wait_s = busy_wait_s
        self._lock = RLock()  # around the line alone: nothing waits inside it
        self._line: deque[_Waiting] = deque()
        self._thread: Thread | None = None
        self._wake = Signal()
        self._now = _Group()

    # Whoever appends.

    def crowded(self, *, durable: bool) -> bool:
        """Return whether an append should come here: others stand in the line, or the disk is waited for just now."""
        if self._line:
            return self._writer() != get_ident()
        return durable and self._writer() not in (0, get_ident())

    def add(self, work: SharedWork) -> None:
        """Take an append; its `over` will be called some time after a `wake`. Raises StoreClosed, UsedAfterFork."""
        self._add(_Waiting(work))

    def wake(self) -> None:
        """Let the committer begin with what stands in the line."""

        def begin() -> RuntimeError | None:
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._lead, name="runjournal-committer", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # the machine gives no more threads
                    self._thread = None
                    return error
            self._wake.set()
            return None

        if (error := hold(self._lock, begin)) is not None:
            what = f"{self._path}: no thread could be started to commit ({error}); nothing was written, try again"
            self._not_begun(list(self._line), StoreBusy(what))

    def wait(self, work: SharedWork, heard: Callable[[float], bool]) -> None:
        """Take an append, and wait for its end, which `heard(seconds)` says.

        Raises StoreBusy if it hasn't begun in time. An interrupt takes it back if it hasn't begun, else waits for it.
        """
        waiting, late = _Waiting(work), False
        try:
            self._add(waiting)
            self.wake()
            if not heard(self._busy_wait_s):
                late = self._taken_back(waiting)
                while not late and not heard(self._busy_wait_s):
                    pass  # it has begun: a commit ends
        except BaseException:
            if not self._taken_back(waiting):
                heard(self._busy_wait_s)
            raise
        if late:
            raise StoreBusy(f"{self._path}: other threads hold the write lock; nothing was written, try again")

    def _add(self, waiting: _Waiting) -> None:
        self._check()
        if self._writer() == get_ident():
            raise StoreError(f"{self._path}: an append was made inside transact; write through its transaction")
        hold(self._lock, lambda: self._line.append(waiting))

    def _taken_back(self, waiting: _Waiting) -> bool:
        """Return whether an append is in the line no more and was never begun."""

        def take_back() -> bool:
            with suppress(ValueError):
                self._line.remove(waiting)
            return not waiting.begun

        return hold(self._lock, take_back)

    # The committer.

    def _lead(self) -> None:
        while True:
            try:
                if not self._led():
                    return
            except BaseException as error:  # noqa: BLE001 - an interrupt: whoever waits must hear all the same
                self._now.end(OutcomeUnknown(f"{self._path}: an interrupt has ended a commit ({type(error).__name__})"))

    def _led(self) -> bool:
        """Commit what stands in the line; return False when nothing has come for so long that the thread may end."""
        while True:
            if not self._line and not self._wake.wait(committer_idle_s):
                with self._lock:
                    if not self._line:
                        if self._thread is current_thread():
                            self._thread = None
                        return False
            if self._line:
                self._commit()

    def _commit(self) -> None:
        """Commit as many as stand in the line, in one transaction; tell each how it ended."""
        there = list(self._line)
        durable = any(each.work.durable for each in there)
        group = self._now = _Group()
        failpoint.passed("group")

        def decide(tx: Transaction) -> None:
            self._judge(cast("SharedTransaction", tx), group, durable=durable)

        try:
            self._transact(decide, durable=durable)
        except _BrokenError:
            self._one_by_one(group)
        except BaseException as error:  # noqa: BLE001 - theirs to hear
            if group.taken:
                self._failed(group, error)
            else:
                self._not_begun(there, error)
        else:
            group.tell()

    def _judge(self, tx: SharedTransaction, group: _Group, *, durable: bool) -> None:
        while (waiting := self._next(tx, group, durable=durable)) is not None:
            written = tx.written
            try:
                waiting.work.decide(tx)
            except BaseException as error:
                waiting.work.undo()
                if tx.failed is not None or tx.written != written:
                    raise _BrokenError from error
                group.refused[waiting] = error

    def _next(self, tx: SharedTransaction, group: _Group, *, durable: bool) -> _Waiting | None:
        """Take the next one out of the line, if it may be in this commit."""
        with self._lock:
            first = self._line[0] if self._line else None
            if first is None or len(group.taken) >= group_appends_max:
                return None
            if (first.work.durable and not durable) or not tx.settled(first.work.run_id):
                return None
            first.begun = True
            group.taken.append(first)
            return self._line.popleft()

    def _one_by_one(self, group: _Group) -> None:
        """One of them has broken the transaction that all shared: each has its own, in their order."""
        group.undo()
        failed: dict[str, BaseException] = {}
        for waiting in group.taken:
            work = waiting.work
            if (before := failed.get(work.run_id)) is not None:
                work.over(again(before))
                waiting.told = True
            elif (error := self._alone(waiting)) is not None:
                failed[work.run_id] = error

    def _alone(self, waiting: _Waiting) -> BaseException | None:
        """Commit one by itself, and tell it; return the error of its commit, if that failed."""
        judged = False

        def decide(tx: Transaction) -> None:
            nonlocal judged
            waiting.work.decide(cast("SharedTransaction", tx))
            judged = True

        try:
            self._transact(decide, durable=waiting.work.durable)
        except BaseException as error:  # noqa: BLE001 - its own to hear
            if judged:
                self._failed(_Group([waiting]), error)
                return error
            waiting.work.undo()
            waiting.work.over(error)
            waiting.told = True
            return None
        waiting.work.over(None)
        waiting.told = True
        return None

    def _failed(self, group: _Group, error: BaseException) -> None:
        """Tell the end of a commit that failed, and whoever stands behind it for the same runs."""
        group.undo()
        runs = {waiting.work.run_id for waiting in group.taken if waiting not in group.refused}
        with self._lock:
            behind = [waiting for waiting in self._line if waiting.work.run_id in runs]
            self._drop(behind)
        group.tell(error)
        for waiting in behind:
            waiting.work.over(again(error))

    def _not_begun(self, there: Iterable[_Waiting], error: BaseException) -> None:
        """Tell those that the transaction hasn't begun, who were there when it was tried."""
        with self._lock:
            left = [waiting for waiting in there if waiting in self._line]
            self._drop(left)
        for waiting in left:
            waiting.work.over(again(error))

    def _drop(self, some: Iterable[_Waiting]) -> None:
        for waiting in some:
            waiting.begun = True
            self._line.remove(waiting)


class _Group:
    """The appends of one transaction: those that were taken, and of these the refused ones with their errors."""

    def __init__(self, taken: Iterable[_Waiting] = ()) -> None:
        self.taken: list[_Waiting] = list(taken)
        self.refused: dict[_Waiting, BaseException] = {}
        self.outcome: tuple[BaseException | None] | None = None

    def undo(self) -> None:
        """Forget what all of them have changed in memory."""
        for waiting in self.taken:
            waiting.work.undo()

    def tell(self, error: BaseException | None = None) -> None:
        """Tell each how it ended; all but the refused ones by `error`, or committed."""
        self.outcome = (error,)
        for waiting in self.taken:
            if not waiting.told:
                mine = self.refused.get(waiting)
                waiting.work.over(mine if mine is not None else None if error is None else again(error))
                waiting.told = True

    def end(self, unknown: BaseException) -> None:
        """Tell those who weren't told yet, behind an interrupt; if nobody knows how it ended, that."""
        if self.outcome is None:
            self.undo()
        self.tell(*(self.outcome or (unknown,)))


def again(error: BaseException) -> BaseException:
    """Return the same error as an object of its own: each that hears it raises it with a traceback of its own."""
    made: BaseException = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made
