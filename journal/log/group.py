"""Appends that share a commit: while one commit waits for the disk, those that come meanwhile make the next one.

An append that finds nobody before it goes by itself, in its own thread. The others stand in a line, and one thread of
the store's own, the committer, judges and writes as many as are there in one transaction. It is no thread of theirs, so
that an interrupt in one of them never ends an append of another one.

Each is judged before it writes, so a refusal ends only itself. One that fails after it has written takes the
transaction with it: then each of them has one of its own. What a failed commit says is said to each that was in it, and
to those behind it in the line that append to the same runs.

An interrupt of the committer is nobody's own, and nobody hears of it: this thread, or the next one, looks which of
those that weren't told are in the log, and commits each of the others by itself.
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
from .guard import Signal, free, hold
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
        self.unsure = False  # it may be committed, and nobody has said so yet
        self.told = False

    def undo(self) -> None:
        """Forget what it has changed in memory: nothing of it was written."""
        self.work.undo()
        self.unsure = False

    def over(self, error: BaseException | None) -> None:
        """Tell it how it ended; once, but for an interrupt in the middle of it."""
        if not self.told:
            self.work.over(error)
            self.told = True


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
            hold(self._lock, lambda: self._end(list(self._line), StoreBusy(what)))

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
                    self.wake()  # it has begun: a commit ends
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
            return not (waiting.begun or waiting.told)

        return hold(self._lock, take_back)

    # The committer.

    def _lead(self) -> None:
        while self._thread is current_thread():  # else it was to end, and another one may have begun
            with suppress(KeyboardInterrupt, SystemExit):  # nobody's own, see above
                self._led()

    def _led(self) -> None:
        """Commit what stands in the line, until nothing has come for so long that the thread may end.

        What an interrupt has left comes first: of this thread, or of one that has died of it.
        """
        free(self._lock)
        if (outcome := self._now.outcome) is not None:
            self._now.tell(*outcome)
        else:
            self._one_by_one(self._now)
        while True:
            if not self._line and not self._wake.wait(committer_idle_s):
                with self._lock:
                    if not self._line:
                        self._thread = None
                        return
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
            group.undo()
            self._one_by_one(group)
        except Exception as error:  # noqa: BLE001 - theirs to hear
            if group.taken:
                self._failed(group, error)
            else:
                self._end(there, error)
        else:
            group.tell()

    def _judge(self, tx: SharedTransaction, group: _Group, *, durable: bool) -> None:
        while (waiting := self._next(tx, group, durable=durable)) is not None:
            written = tx.written
            try:
                waiting.work.decide(tx)
                waiting.unsure = True
            except BaseException as error:
                waiting.undo()
                if tx.failed is not None or tx.written != written or not isinstance(error, Exception):
                    raise _BrokenError from error
                group.refused[waiting] = error

    def _next(self, tx: SharedTransaction, group: _Group, *, durable: bool) -> _Waiting | None:
        """Take the next one out of the line, if it may be in this commit."""
        with self._lock:
            while self._line and self._line[0].told:  # an interrupt has left it there
                self._line.popleft()
            first = self._line[0] if self._line else None
            if first is None or len(group.taken) >= group_appends_max:
                return None
            if (first.work.durable and not durable) or not tx.settled(first.work.run_id):
                return None
            first.begun = True
            group.taken.append(first)
            return self._line.popleft()

    def _one_by_one(self, group: _Group) -> None:
        """Something has broken the transaction that all shared: each that wasn't told has its own, in their order."""
        failed: dict[str, BaseException] = {}
        for waiting in group.taken:
            if waiting.told:
                continue
            run_id = waiting.work.run_id
            if (before := failed.get(run_id)) is not None:
                waiting.over(again(before))
            elif (error := self._alone(waiting)) is not None:
                failed[run_id] = error

    def _alone(self, waiting: _Waiting) -> BaseException | None:
        """Commit one by itself, unless it is there, and tell it; return the error of its commit, if that failed."""
        work, judged = waiting.work, False

        def decide(tx: Transaction) -> None:
            nonlocal judged
            if waiting.unsure and work.stands(cast("SharedTransaction", tx)):
                return
            waiting.undo()
            work.decide(cast("SharedTransaction", tx))
            waiting.unsure = judged = True

        try:
            self._transact(decide, durable=work.durable)
        except Exception as error:  # noqa: BLE001 - its own to hear
            if judged:
                self._failed(_Group([waiting]), error)
                return error
            if waiting.unsure:
                error = OutcomeUnknown(
                    f"{self._path}: an interrupt has ended a commit, and what it wrote can't be read: {error}"
                )
            waiting.undo()
            waiting.over(error)
            return None
        waiting.over(None)
        return None

    def _failed(self, group: _Group, error: BaseException) -> None:
        """Tell the end of a commit that failed, and whoever stands behind it for the same runs."""
        group.undo()
        runs = {waiting.work.run_id for waiting in group.taken if waiting not in group.refused}
        behind = [waiting for waiting in list(self._line) if waiting.work.run_id in runs]
        group.tell(error)
        self._end(behind, error)

    def _end(self, some: Iterable[_Waiting], error: BaseException) -> None:
        """Tell those of them that stand in the line still, and that nobody has begun; they stand there no more."""
        with self._lock:
            for waiting in some:
                if waiting in self._line:
                    waiting.over(again(error))
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
            waiting.undo()

    def tell(self, error: BaseException | None = None) -> None:
        """Tell each how it ended; all but the refused ones by `error`, or committed."""
        self.outcome = (error,)
        for waiting in self.taken:
            mine = self.refused.get(waiting)
            waiting.over(mine if mine is not None else None if error is None else again(error))


def again(error: BaseException) -> BaseException:
    """Return the same error as an object of its own: each that hears it raises it with a traceback of its own."""
    made: BaseException = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made
