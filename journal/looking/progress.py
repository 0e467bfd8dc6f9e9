"""How whoever waits for a long look is told how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from runjournal.log.limits import progress_every_events

T = TypeVar("T")

Progress = Callable[[int, int | None], None]
"""Told now and then how much is done, and of how much, if that is known."""


def told(items: Iterable[T], total: int | None, progress: Progress | None) -> Iterator[T]:
    """Yield the same items; `progress` is told from time to time how many of them have gone by."""
    for count, item in enumerate(items):
        if progress is not None and count % progress_every_events == 0:
            progress(count, total)
        yield item
