"""The only door to time, ids and randomness, and its fake.

Everything else takes a `Clock`. Times of events are UTC wall time; leases are counted in seconds since boot, which no
administrator can set back.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Protocol
from uuid import UUID

from .limits import store_id_bytes


class Clock(Protocol):
    """Where time and chance come from."""

    def now(self) -> datetime:
        """Return the time of the wall clock: aware, in UTC."""
        ...

    def boottime_s(self) -> float:
        """Return the seconds since boot, those of suspends included."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """Return that many random bytes."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for that many seconds."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def boottime_s(self) -> float:
        """Return the seconds since boot; on systems without CLOCK_BOOTTIME, those of the monotonic clock."""
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass
class FakeClock:
    """A clock that tests move. Each look at it takes `tick_s`, `sleep` takes no time, and chance follows `seed`."""

    start: datetime = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    tick_s: float = 0.001
    seed: int = 0
    elapsed_s: float = 0.0
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - a fake is to be predictable

    def now(self) -> datetime:
        """Return the time that the test has set; it is one tick later at each call."""
        self.elapsed_s += self.tick_s
        return self.start + timedelta(seconds=self.elapsed_s)

    def boottime_s(self) -> float:
        """Return the seconds since this clock was made."""
        return self.elapsed_s

    def random_bytes(self, count: int) -> bytes:
        """Return bytes that are the same in every run of the tests."""
        return self._random.randbytes(count)

    def sleep(self, seconds: float) -> None:
        """Set the clock forward by that many seconds, without waiting."""
        self.elapsed_s += seconds


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp(moment: datetime) -> str:
    """Return the text of a time as it is stored: UTC, microseconds, `2026-11-29T13:28:05.123456Z`."""
    since = (moment if moment.tzinfo is UTC else moment.astimezone(UTC)) - _EPOCH
    return f"{_second(since.days, since.seconds)}.{since.microseconds:06d}Z"


@lru_cache(maxsize=16)
def _second(days: int, seconds: int) -> str:
    return (_EPOCH + timedelta(days, seconds)).isoformat()[: -len("+00:00")]


def parse_timestamp(text: str) -> datetime:
    """Return the time that a text says, in any form of ISO 8601; without an offset it is UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def new_store_id(clock: Clock) -> str:
    """Return a new id of a store: 64 random bits, as hex digits."""
    return clock.random_bytes(store_id_bytes).hex()


def new_id(clock: Clock) -> str:
    """Return a new UUIDv7 (RFC 9562, 5.7): 48 bits of milliseconds, then random bits, so that ids sort by time."""
    millis = int(clock.now().timestamp() * 1000)
    raw = bytearray(millis.to_bytes(6, "big") + clock.random_bytes(10))
    raw[6] = (raw[6] & 0x0F) | 0x70
    raw[8] = (raw[8] & 0x3F) | 0x80
    return str(UUID(bytes=bytes(raw)))
