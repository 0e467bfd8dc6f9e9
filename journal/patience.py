"""How long whoever runs a run waits, in his own process, for a time at which it goes on: engine.md W21."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import cast

from runjournal.engine.failures import RunWaiting
from runjournal.log.clock import Clock, SystemClock, parse_timestamp
from runjournal.log.errors import InvalidArgument
from runjournal.log.limits import wait_look_s

from .logbook import Logbook


class Patience:
    """How long a run may still be waited for: `wait_s` seconds in all. Raises InvalidArgument."""

    def __init__(self, log: Logbook, run_id: str, wait_s: float) -> None:
        given = cast("object", wait_s)  # callers aren't all typed
        if not isinstance(given, int | float) or isinstance(given, bool) or not 0 <= given < math.inf:
            raise InvalidArgument(f"wait_s: expected a number of seconds from 0, got {given!r}")
        self._log = log
        self._run_id = run_id
        self._until = log.clock.now() + timedelta(seconds=wait_s) if wait_s else None

    def pause_s(self, error: BaseException) -> float | None:
        """Return for how many seconds to sleep before the run is tried again; None if its error is for the caller.

        One that waits for something else besides, which may come earlier, is looked at every so often.
        """
        if self._until is None or not isinstance(error, Exception):
            return None
        head = self._log.head(self._run_id)
        if head.status not in ("waiting", "scheduled_retry") or head.due_at is None:
            return None
        due = parse_timestamp(head.due_at)
        if due > self._until:
            return None
        left_s = max(0.0, (due - self._log.clock.now()).total_seconds())
        return min(left_s, wait_look_s) if isinstance(error, RunWaiting) else left_s


async def slept(clock: Clock, seconds: float) -> None:
    """Sleep on a loop: by the loop's time where the clock is the machine's, else by the clock's own."""
    if isinstance(clock, SystemClock):
        await asyncio.sleep(seconds)
    else:
        clock.sleep(seconds)
