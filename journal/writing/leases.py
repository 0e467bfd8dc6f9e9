"""Leases: one heartbeat thread per journal extends those of all runs that it owns.

A lease is counted in seconds since boot, through suspends: no clock that is set back can stretch it. Who loses it is
fenced by the epoch of the next claim, whatever this thread does; the heartbeat only keeps others from claiming too
early. Directly before a call the owner looks at its own clock: a lease that may have run out while this process was
stopped is renewed first, in the store, where whoever took over is found. The store itself is looked for, too.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

from runjournal.log.clock import Clock, SystemClock
from runjournal.log.errors import StoreClosed, StoreError
from runjournal.log.guard import Signal, hold
from runjournal.log.limits import heartbeat_s, lease_s
from runjournal.log.store import Store


class LeaseWarning(UserWarning):
    """A heartbeat couldn't be written. The lease goes on, and runs out if no later heartbeat is written."""


class Lease(NamedTuple):
    """A lease that is held; nobody else may claim the run before `until`, in seconds since boot.

    `left()` says whether nobody is there any more to go on with the run, nor to give it back.
    """

    epoch: int
    until: float
    left: Callable[[], bool]


class Leases:
    """The leases of one journal. The thread lives as long as there is one; a fake clock has none, tests move it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.RLock()
        self._held: dict[str, Lease] = {}
        self._thread: threading.Thread | None = None
        self._wake = Signal()

    @contextmanager
    def held(self, run_id: str, epoch: int, since: float, left: Callable[[], bool] = lambda: False) -> Generator[None]:
        """Keep a lease that was just claimed, not before `since` (seconds since boot), as long as the block lasts.

        One that is `left` before is renewed no more.
        """

        def keep() -> None:
            self._held[run_id] = Lease(epoch, since + lease_s, left)
            alive = self._thread is not None and self._thread.is_alive()  # an interrupt may have kept it from its start
            if not alive and isinstance(self._clock, SystemClock):
                self._thread = threading.Thread(target=self._beat, name="runjournal-heartbeat", daemon=True)
                self._thread.start()

        hold(self._lock, keep)
        try:
            yield
        finally:
            self.drop(run_id, epoch)

    def ensure(self, run_id: str, epoch: int) -> bool:
        """Return whether the run is ours now: by this process's clock, or, when that isn't sure, by renewing the lease.

        Raises StoreError if that can't be known, or if the store's file isn't where it was: nobody would find the call.
        """
        self._store.check_place()
        now = self._clock.boottime_s()
        lease = self._held.get(run_id)
        if lease is not None and lease.epoch == epoch and now < lease.until:
            return True
        return self._renew(run_id, epoch)

    def holds(self, run_id: str) -> bool:
        """Return whether a lease of this run is kept here."""
        return run_id in self._held

    def left(self, run_id: str) -> int | None:
        """Return the epoch under which a run of this journal's was left before it was released, None if none was."""
        lease = self._held.get(run_id)
        return lease.epoch if lease is not None and lease.left() else None

    def drop(self, run_id: str, epoch: int) -> None:
        """Keep this lease no longer, if it is kept."""

        def forget() -> None:
            lease = self._held.get(run_id)
            if lease is not None and lease.epoch == epoch:
                del self._held[run_id]
            if not self._held:
                self._wake.set()

        hold(self._lock, forget)

    def close(self) -> None:
        """Stop the thread, and wait for it: before its store is closed."""
        hold(self._lock, self._held.clear)
        thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join()

    def _beat(self) -> None:
        while True:
            self._wake.wait(heartbeat_s)
            with self._lock:
                held = list(self._held.items())
                if not held:
                    self._thread = None
                    return
            for run_id, lease in held:
                if not lease.left():
                    self._extend(run_id, lease.epoch)

    def _extend(self, run_id: str, epoch: int) -> None:
        try:
            self._renew(run_id, epoch)
        except StoreClosed:
            self.drop(run_id, epoch)
        except StoreError as error:
            warnings.warn(f"run {run_id}: its heartbeat couldn't be written: {error}", LeaseWarning, stacklevel=2)

    def _renew(self, run_id: str, epoch: int) -> bool:
        """Extend the lease in the store; return False if it is another owner's, or nobody's to extend."""
        now = self._clock.boottime_s()
        if not self._store.heartbeat(run_id, epoch, now + lease_s, now):
            self.drop(run_id, epoch)
            return False

        def extend() -> None:
            if (lease := self._held.get(run_id)) is not None:
                self._held[run_id] = lease._replace(epoch=epoch, until=now + lease_s)

        hold(self._lock, extend)
        return True
