"""Pairs of measurements, taken in turn, so that a ratio holds when the machine's speed drifts."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Pairs:
    """Seconds of two operations, pair by pair."""

    first: list[float]
    second: list[float]

    def ratio(self) -> dict[str, float]:
        """First / second: median, and the quartiles as spread."""
        return spread([a / b for a, b in zip(self.first, self.second, strict=True)])


def spread(values: list[float]) -> dict[str, float]:
    """{median, low, high}: the median and the quartiles."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": round(median, 4), "low": round(low, 4), "high": round(high, 4)}


def timed(run: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call, by this clock."""
    begin = clock()
    run()
    return clock() - begin


def interleaved(first: Callable[[], Any], second: Callable[[], Any], pairs: int, warmup: int = 1) -> Pairs:
    """Both in turn, A B A B …, after a warm-up; the collector is kept out of it."""
    for _ in range(warmup):
        first()
        second()
    measured: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    gc.disable()
    try:
        for _ in range(pairs):
            measured[0].append(timed(first))
            measured[1].append(timed(second))
    finally:
        gc.enable()
    return Pairs(*measured)
