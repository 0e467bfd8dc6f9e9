"""An append that shares its commit with those of others: judged in the committer's thread, awaited in its asker's."""

from __future__ import annotations

import time
from collections.abc import Callable

from runjournal.log.base import RecordedEvent
from runjournal.log.guard import Signal
from runjournal.log.limits import thread_look_s
from runjournal.log.store import SharedTransaction

from . import checkpoints
from .batch import Batch
from .states import Key, States


class SharedAppend:
    """An append that shares its commit with others, see `SharedWork`.

    `judge` is the appender's way to make it. `told` hears of its end, in another thread.
    """

    def __init__(
        self,
        judge: Callable[[SharedTransaction, SharedAppend], list[RecordedEvent]],
        states: States,
        batch: Batch,
        *,
        durable: bool,
        told: Callable[[SharedAppend], None] | None = None,
    ) -> None:
        self.batch = batch
        self.durable = durable
        self.keys: list[Key] = []
        self.warnings: list[str] = []
        self._judge = judge
        self._states = states
        self._told = told
        self._records: list[RecordedEvent] = []
        self._error: BaseException | None = None
        self._folded = False
        self._over = False
        self._bell = Signal()

    @property
    def run_id(self) -> str:
        """Return the run that it appends to."""
        return self.batch.run_id

    def decide(self, tx: SharedTransaction) -> None:
        """Judge, fold and write."""
        self.warnings.clear()
        self._records = self._judge(tx, self)
        self._folded = True
        self._bell.set()

    def undo(self) -> None:
        """Forget the states that it has folded on."""
        self._folded = False
        self._states.free()
        self._states.drop(self.keys)

    def stands(self, tx: SharedTransaction) -> bool:
        """Return whether its records, as they were judged last, are in the log: one commit has written all of them."""
        if not self._records:
            return False
        last = self._records[-1]
        return any(row[4].hex() == last.hash for row in tx.read_raw(self.run_id, last.seq - 1, last.seq))

    def over(self, error: BaseException | None) -> None:
        """Note how it ended, and tell who waits."""
        if error is None:
            for key in self.keys:
                self._states.note_words(key, self._records)
        self._error, self._over = error, True
        self._bell.set()
        if self._told is not None:
            self._told(self)

    def heard(self, timeout_s: float) -> bool:
        """Return whether it is over within so many seconds."""
        until = time.monotonic() + timeout_s
        while not self._over and (left := until - time.monotonic()) > 0:
            self._bell.wait(left)
        return self._over

    def settle(self, wake: Callable[[], None]) -> None:
        """Wait until it is folded, or over: then nobody else uses the state of its run.

        Who waits here may be who was to `wake` the thread that folds it.
        """
        while not (self._folded or self._over):
            wake()
            self._bell.wait(thread_look_s)

    def heard_of(self) -> None:
        """Note that its owner hears of it now: nothing of its run is under way."""
        self._states.fly(self.run_id, None)

    def outcome(self) -> list[RecordedEvent]:
        """Return its records, once it is over; raise its error, and warn of what there was to warn of."""
        if self._error is not None:
            raise self._error
        for text in self.warnings:
            checkpoints.warn(text)
        return self._records
