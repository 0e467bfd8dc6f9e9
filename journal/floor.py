"""The floor of an asyncio run: who has it goes on alone among the run's verbs, while its append is under way."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

from .tasks import Unbroken, unbroken

Asker = asyncio.Task[Any] | None


class Floor:
    """Who has the floor, who wants it, and the cancels of those who couldn't be interrupted.

    It is given on in the order of asking. A cancel that was absorbed is raised by whoever asks for it, or again where
    its asker waits next.
    """

    def __init__(self) -> None:
        self.holder: Asker = None
        self._line: deque[tuple[Asker, asyncio.Future[None]]] = deque()
        self._absorbed: dict[Asker, asyncio.CancelledError] = {}

    @property
    def others(self) -> bool:
        """Return whether somebody else has it."""
        return self.holder is not None and self.holder is not _me()

    @property
    def quiet(self) -> bool:
        """Return whether nobody else has it or wants it."""
        return not self._line and not self.others

    def seize(self) -> None:
        """Take it for the asker, who is alone or has it."""
        self.holder = _me()

    async def take(self, *, through: bool = False) -> None:
        """Wait until the asker has it; `through`: a cancel that comes meanwhile is absorbed."""
        me = asyncio.current_task()
        if self.holder is not None and self.holder is not me:
            self._look()
        if self.holder is None or self.holder is me:
            self.holder = me
            return
        waiter: asyncio.Future[None] = Unbroken(self._look) if through else asyncio.get_running_loop().create_future()
        try:
            self._line.append((me, waiter))
            if through:
                self.absorb(await unbroken(waiter))
            else:
                await waiter
        except BaseException:
            if self.holder is me:
                self.give()
            else:
                with suppress(ValueError):  # an interrupt came before it stood there
                    self._line.remove((me, waiter))
            raise

    def give(self) -> bool:
        """Give it to the next one, if the asker has it; return whether it was his and nobody wants it."""
        return self.holder is not None and not self.others and self._pass_on()

    def _pass_on(self) -> bool:
        """Give it to the first one in the line that waits still; return whether there is none."""
        while self._line:
            self.holder, waiter = self._line[0]
            if not waiter.done():
                waiter.set_result(None)
            self._line.popleft()
            if not (waiter.cancelled() or (self.holder is not None and self.holder.done())):
                return False
        self.holder = None
        return True

    def _look(self) -> None:
        """Pass it on if an interrupt has ended who has it, or the passing on itself."""
        if self.holder is None or self.holder.done() or (self._line and self._line[0][0] is self.holder):
            self._pass_on()

    def absorb(self, cancelled: asyncio.CancelledError | None) -> None:
        """Keep a cancel of the asker, which came while he couldn't be interrupted, until he is told."""
        if cancelled is not None:
            self._absorbed[_me()] = cancelled

    def absorbed(self) -> asyncio.CancelledError | None:
        """Return the cancel of the asker that was absorbed; once."""
        return self._absorbed.pop(_me(), None) if self._absorbed else None

    def cancel_again(self) -> None:
        """Have that cancel raised where the asker waits next."""
        if (late := self.absorbed()) is not None and (me := _me()) is not None:
            me.uncancel()  # it was counted, and is counted again: a timeout takes it for its own
            me.cancel(*late.args)


def _me() -> Asker:
    """Return the task that asks, None in another thread or where no loop runs."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
