"""Leases: one heartbeat thread per journal extends those of all runs that it owns.

A lease is counted in seconds since boot, which no clock that is set back can stretch. Who loses it is fenced by the
epoch of the next claim, whatever this thread does; the heartbeat only keeps others from claiming too early.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager

from runjournal.log.clock import Clock, SystemClock
from runjournal.log.errors import StoreClosed, StoreError
from runjournal.log.limits import heartbeat_s, lease_s
from runjournal.log.store import Store


class LeaseWarning(UserWarning):
    """A heartbeat couldn't be written: the lease runs on, and out if that goes on."""


class Leases:
    """The leases of one journal. The thread lives as long as there is one; a fake clock has none, tests move it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    @contextmanager
    def held(self, run_id: str, epoch: int) -> Generator[None]:
        """Keep a lease that was just claimed, as long as the block lasts."""
        with self._lock:
            self._held[run_id] = epoch
            if self._thread is None and isinstance(self._clock, SystemClock):
                self._wake.clear()
                self._thread = threading.Thread(target=self._beat, name="runjournal-heartbeat", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            self._drop(run_id, epoch)

    def _drop(self, run_id: str, epoch: int) -> None:
        with self._lock:
            if self._held.get(run_id) == epoch:
                del self._held[run_id]
            if not self._held:
                self._wake.set()

    def close(self) -> None:
        """Stop the thread, and wait for it: before its store is closed."""
        with self._lock:
            self._held.clear()
            thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _beat(self) -> None:
        while True:
            self._wake.wait(heartbeat_s)
            with self._lock:
                held = list(self._held.items())
                if not held:
                    self._thread = None
                    return
                self._wake.clear()
            for run_id, epoch in held:
                self._extend(run_id, epoch)

    def _extend(self, run_id: str, epoch: int) -> None:
        now = self._clock.boottime_s()
        try:
            kept = self._store.heartbeat(run_id, epoch, now + lease_s, now)
        except StoreClosed:
            kept = False
        except StoreError as error:
            warnings.warn(f"run {run_id}: its heartbeat couldn't be written: {error}", LeaseWarning, stacklevel=2)
            return
        if not kept:  # another owner, or nobody to beat for
            self._drop(run_id, epoch)
