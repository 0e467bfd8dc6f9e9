"""The gate of the demo's processes: each tells what it has just done, and goes on when it is told to.

So whoever has started them can kill one exactly there, and the same seed tells the same story.
"""

from __future__ import annotations

import os
import sys


def tell(text: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def pause(text: str) -> None:
    """Tell, and wait for a line on standard input. If none can come any more, end: whoever started this is gone."""
    tell(text)
    if not sys.stdin.readline():
        os._exit(1)
