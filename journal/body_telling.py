"""How a loop hears of the end of a body that ran in a thread: once, whatever ends the thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from runjournal.engine import failures as f
from runjournal.engine.commands import Ended

INTERRUPTS: Final = (KeyboardInterrupt, SystemExit)
"""What breaks a loop at once, whoever raises it."""


class BodyTelling:
    """Tell a loop once how a body in a thread ended; where the loop is closed, tell `late`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deliver: Callable[[Ended], None], late: Callable[[Ended], None]
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._late = late
        self._told = self._heard = False

    def tell(self, ended: Ended) -> None:
        """Tell it, from the thread."""
        self._told = True
        try:
            self._loop.call_soon_threadsafe(self._hear, ended)
        except RuntimeError:  # the loop is closed, and whoever waited is gone
            self._late(ended)

    def _hear(self, ended: Ended) -> None:
        if not self._heard:
            self._heard = True
            self._deliver(ended)

    def lost(self) -> None:
        """The thread is gone: tell that, if nothing was told. An interrupt at its first bytecode leaves nobody else."""
        if not self._told:
            self.tell(Ended(error=KeyboardInterrupt("the thread of a body was ended before it began")))


def ended_of(body: asyncio.Future[Any]) -> Ended:
    """Return how a body ended.

    The loop has its interrupt already; raised by the asker too, it would break the loop's end.
    """
    if body.cancelled():
        return Ended(error=asyncio.CancelledError())
    error = body.exception()
    ended = Ended(error=error) if error else body.result()
    if not isinstance(ended, Ended):
        ended = Ended(ended)
    if isinstance(ended.error, INTERRUPTS):
        return Ended(error=f.Released(f"{type(ended.error).__name__} in a tool"))
    return ended
