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
from typing import Final, Protocol
from uuid import UUID


class Clock(Protocol):
    """Where time and chance come from."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""
        ...

    def boottime_s(self) -> float:
        """Seconds since boot, counted through suspends."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """That many random bytes."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The real one."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""
        return datetime.now(UTC)

    def boottime_s(self) -> float:
        """Seconds since boot; on systems without CLOCK_BOOTTIME, of the monotonic clock."""
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def random_bytes(self, count: int) -> bytes:
        """That many bytes of the system's randomness."""
        return os.urandom(count)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


@dataclass
class FakeClock:
    """A clock that tests move: each look at it takes `tick_s`, `sleep` takes no time, chance follows `seed`."""

    start: datetime = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    tick_s: float = 0.001
    seed: int = 0
    elapsed_s: float = 0.0
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - a fake is to be predictable

    def now(self) -> datetime:
        """The time that tests have set, a tick later each time."""
        self.elapsed_s += self.tick_s
        return self.start + timedelta(seconds=self.elapsed_s)

    def boottime_s(self) -> float:
        """Seconds since the fake's start."""
        return self.elapsed_s

    def random_bytes(self, count: int) -> bytes:
        """The same bytes in every test run."""
        return self._random.randbytes(count)

    def sleep(self, seconds: float) -> None:
        """Jump ahead."""
        self.elapsed_s += seconds


_TEXT_CHARS: Final = len("2026-11-29T13:28:05.123456")


def timestamp(moment: datetime) -> str:
    """The text of a moment as it is stored: UTC, microseconds, `2026-11-29T13:28:05.123456Z`."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    text = moment.isoformat()[:-6]  # with its microseconds, unless there are none: half the time of asking for them
    return f"{text}Z" if len(text) == _TEXT_CHARS else f"{text}.000000Z"


def parse_timestamp(text: str) -> datetime:
    """The inverse of `timestamp`, for any ISO 8601 text; one without an offset is UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def new_id(clock: Clock) -> str:
    """A UUIDv7 (RFC 9562, 5.7): 48 bits of milliseconds, then chance; ids sort by time."""
    millis = int(clock.now().timestamp() * 1000)
    raw = bytearray(millis.to_bytes(6, "big") + clock.random_bytes(10))
    raw[6] = (raw[6] & 0x0F) | 0x70
    raw[8] = (raw[8] & 0x3F) | 0x80
    return str(UUID(bytes=bytes(raw)))
