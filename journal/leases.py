"""Leases: one heartbeat thread per journal extends those of all runs that it owns.

A lease is counted in seconds since boot, which no clock that is set back can stretch. Who loses it is fenced by the
epoch of the next claim, whatever this thread does; the heartbeat only keeps others from claiming too early.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager

from runjournal.log.clock import Clock
from runjournal.log.errors import StoreError
from runjournal.log.limits import heartbeat_s, lease_s
from runjournal.log.store import Store


class LeaseWarning(UserWarning):
    """A heartbeat couldn't be written: the lease runs on, and out if that goes on."""


class Leases:
    """The leases of one journal."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[str, tuple[int, float]] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._closed = False

    @contextmanager
    def held(self, run_id: str, epoch: int) -> Generator[None]:
        """Keep a lease that was just claimed, as long as the block lasts."""
        with self._lock:
            self._held[run_id] = epoch, self._clock.boottime_s() + lease_s
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._beat, name="runjournal-heartbeat", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                if self._held.get(run_id, (0, 0.0))[0] == epoch:
                    del self._held[run_id]

    def alive(self, run_id: str, epoch: int) -> bool:
        """Whether the lease of this epoch hasn't run out, by our own clock; extended now if it has less than half."""
        with self._lock:
            held = self._held.get(run_id)
        if held is None or held[0] != epoch:
            return False
        if held[1] - self._clock.boottime_s() < lease_s / 2:
            self._extend(run_id, epoch)
            with self._lock:
                held = self._held.get(run_id)
        return held is not None and held[1] > self._clock.boottime_s()

    def close(self) -> None:
        """Stop the thread; it is joined before the store is closed."""
        self._closed = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _beat(self) -> None:
        while not self._wake.wait(heartbeat_s):
            with self._lock:
                held = list(self._held.items())
            for run_id, (epoch, _) in held:
                self._extend(run_id, epoch)

    def _extend(self, run_id: str, epoch: int) -> None:
        now = self._clock.boottime_s()
        try:
            kept = self._store.heartbeat(run_id, epoch, now + lease_s, now)
        except StoreError as error:
            warnings.warn(f"run {run_id}: its heartbeat couldn't be written: {error}", LeaseWarning, stacklevel=2)
            return
        with self._lock:
            if self._held.get(run_id, (0, 0.0))[0] == epoch:
                if kept:
                    self._held[run_id] = epoch, now + lease_s
                else:  # another owner
                    del self._held[run_id]
