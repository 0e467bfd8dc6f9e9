"""Waiting for the write lock of other processes: who has waited longer looks more often, so that nobody starves.

SQLite's own wait looks less and less often, up to ten times a second: a process that writes without a pause leaves the
lock free for some microseconds at a time, and whoever came last finds them first.
"""

from __future__ import annotations

import random
import time
from typing import Final

from .limits import lock_look_first_s, lock_look_last_s, lock_patience_s

_ever: Final = random.Random()  # noqa: S311 - processes mustn't look in step, nothing more


class LockWait:
    """What a connection does while another process has the lock: it waits a little, until it has waited too long."""

    def __init__(self, bound_s: float) -> None:
        self._bound_s = bound_s
        self._since_s = 0.0

    def __call__(self, looks: int) -> bool:
        """Wait before the next look; return False when it has waited long enough. `looks` counts from 0 each time."""
        now = time.monotonic()
        if looks == 0:
            self._since_s = now
        waited_s = now - self._since_s
        if waited_s >= self._bound_s:
            return False
        time.sleep(min(pause_s(waited_s) * (0.5 + _ever.random()), self._bound_s - waited_s))
        return True


def pause_s(waited_s: float) -> float:
    """Return how long to wait for the next look, after so long."""
    left = max(0.0, 1 - waited_s / lock_patience_s)
    return lock_look_last_s + (lock_look_first_s - lock_look_last_s) * left
