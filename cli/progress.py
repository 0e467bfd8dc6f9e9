"""A bar on a terminal's stderr, for whatever takes longer than a second; output makes it go."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator
from typing import Any, Final, Protocol

from .safe import line


class Report(Protocol):
    """Is told how much is done, and of how much, if that is known."""

    def __call__(self, done: int, total: int | None = None, /) -> None:
        """Show it."""
        ...


_bars: Final = list[Any]()
"""The progress bars that are shown; None in place of one that has made room for output."""


def stop_bars() -> None:
    """On a terminal, output and a bar would write over each other: the bar goes, and doesn't come again."""
    if sys.stdout.isatty():
        for bar in filter(None, _bars):
            bar.stop()
        _bars[:] = [None] * max(1, len(_bars))


@contextlib.contextmanager
def progress(label: str) -> Generator[Report]:
    """A callback `(done, total)` that shows a bar on a terminal's stderr, for whatever takes longer than a second."""
    began = time.monotonic()
    _bars.clear()

    def report(done: int, total: int | None = None, /) -> None:
        if not _bars:
            if time.monotonic() - began < 1 or not sys.stderr.isatty():
                return
            from rich.console import Console
            from rich.progress import Progress

            bar = Progress(console=Console(stderr=True, markup=False, highlight=False), transient=True)
            bar.start()
            bar.add_task(line(label), total=total)
            _bars.append(bar)
        for bar in filter(None, _bars):
            bar.update(bar.task_ids[0], completed=done, total=total)

    try:
        yield report
    finally:
        for bar in filter(None, _bars):
            bar.stop()
        _bars.clear()
