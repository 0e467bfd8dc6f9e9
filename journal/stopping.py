"""What a SIGTERM does to the runs of this process: they end what is in flight, and are released. See engine.md X20.

The handler stands while an agent runs, and only where the process would die of the signal: set from the main thread,
and never in place of another one. It raises nothing, and takes no lock: whoever is interrupted by it may have any.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from types import FrameType
from typing import Final

from runjournal.engine.core import Core
from runjournal.engine.failures import ToldToStop
from runjournal.engine.tools import IN_TOOL
from runjournal.log.errors import AppendRefused, StoreError
from runjournal.log.events import NoteAdded
from runjournal.log.head import TOLD_TO_STOP
from runjournal.log.limits import stop_look_s

from .logbook import Logbook
from .tasks import over

TOLD: Final = "the process was told to stop (SIGTERM)"


class Heed:
    """A run of this process that heeds a SIGTERM, or will once it is claimed. `under`: the one whose agent runs it."""

    def __init__(self, grace_s: float, under: Heed | None) -> None:
        self.grace_s = grace_s
        self.under = under
        self.thread = threading.get_ident()
        self.over: Callable[[], bool] = partial(_ended, threading.current_thread())
        self.mark: Callable[[], object] = _nothing
        self._wake: Callable[[], object] = _nothing
        self._note: Callable[[], object] = _nothing

    def owns(self, mark: Callable[[], object], wake: Callable[[], object], note: Callable[[], object]) -> None:
        """The run is claimed: `mark` has no verb of it go on, and takes no lock; `note` puts that on record.

        `wake` wakes whoever waits in it. All are called from any thread.
        """
        self.mark, self._wake, self._note = mark, wake, note
        if HERE.came:
            mark()
            wake()

    def check(self) -> None:
        """Raise ToldToStop if the signal has come: no run begins any more."""
        if HERE.came:
            raise ToldToStop(TOLD)

    def tell(self) -> None:
        """Have the run leave the process."""
        self._wake()
        self._note()


class StopSignal:
    """The SIGTERM of this process, and the runs that heed it. Of a process that was forked off it knows nothing."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.came = False
        self.heeds: list[Heed] = []
        self.over = threading.Event()  # the signal has acted, and the process lives all the same

    def enter(self, grace_s: float) -> Heed | None:
        """Return what heeds the signal for a run that begins; None where it does what it would do anyway.

        A run inside a tool is a part of that call, which is in flight.
        """
        if self.pid != os.getpid():
            self.__init__()  # type: ignore[misc]  # what was here was the parent's
        if IN_TOOL.get() is not None:
            return None
        if not self.came and signal.getsignal(signal.SIGTERM) is not _on_sigterm and not self._handle():
            return None
        heed = Heed(grace_s, UNDER.get())
        self.heeds.append(heed)
        return heed

    def _handle(self) -> bool:
        if not _is_main() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            return False
        signal.signal(signal.SIGTERM, _on_sigterm)
        return True

    def leave(self, heed: Heed) -> bool:
        """A run has left the process, or ended; return whether the signal has come."""
        self._forget(heed)
        main = threading.main_thread().ident
        last = _is_main() and not any(each.thread == main for each in self.heeds)
        if last and signal.getsignal(signal.SIGTERM) is _on_sigterm:  # else somebody has set another one meanwhile
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return self.came

    def waits(self, heed: Heed) -> bool:
        """Let the signal act if no run heeds it any more; return whether this one has to wait for others."""
        self._forget(heed)
        if self.heeds:
            return not self.over.is_set() and heed.under is None
        os.kill(self.pid, signal.SIGTERM)
        self.came = False  # the process is one that no SIGTERM ends, such as the first one of a container
        self.over.set()
        self.over = threading.Event()
        return False

    def _forget(self, heed: Heed) -> None:
        """Forget a run that has left, and those that never will: their loop was closed, or their thread has ended."""
        self.heeds[:] = [each for each in self.heeds if each is not heed and not each.over()]

    def end(self, heed: Heed) -> None:
        """Let the signal act, once all runs have left."""
        over = self.over
        while self.waits(heed) and not over.wait(stop_look_s):
            pass

    async def end_async(self, heed: Heed) -> None:
        """Let the signal act, once all runs have left: those of this loop go on meanwhile."""
        over = self.over
        while self.waits(heed) and not over.is_set():  # noqa: ASYNC110 - another loop or a thread may end it
            await asyncio.sleep(stop_look_s)

    def watch(self) -> None:
        """Tell the runs, and let the signal act when their time is over, in a thread of its own."""
        grace_s = max((heed.grace_s for heed in self.heeds), default=0.0)
        try:
            threading.Thread(target=self._tell, name="runjournal stop", daemon=True).start()
        finally:
            time.sleep(grace_s)
            if self.came:
                os.kill(self.pid, signal.SIGTERM)

    def _tell(self) -> None:
        for heed in list(self.heeds):
            heed.tell()


HERE = StopSignal()
UNDER: ContextVar[Heed | None] = ContextVar("runjournal_under", default=None)


def _on_sigterm(_: int, __: FrameType | None) -> None:
    """Begin to stop. From now on the signal acts by itself: a second one ends the process at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if HERE.pid != os.getpid():  # a process that was forked off runs nothing of ours
        os.kill(os.getpid(), signal.SIGTERM)
        return
    HERE.came = True
    for heed in list(HERE.heeds):
        heed.mark()
    try:
        _thread.start_new_thread(HERE.watch, ())  # `Thread.start` takes a lock
    except RuntimeError:  # there can be no more threads
        os.kill(HERE.pid, signal.SIGTERM)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _ended(thread: threading.Thread) -> bool:
    return not thread.is_alive()


def _nothing() -> None:
    """Do nothing: the run isn't claimed yet."""


def heeded_by(heed: Heed | None, log: Logbook, core: Core, wake: Callable[[], object]) -> None:
    """Have a run that was claimed heed a SIGTERM; `wake` wakes whoever waits in it, from any thread.

    That the process got one is put on record: if it dies before it has released the run, it is of that. Where that
    can't be written the death counts as any other.
    """

    def note() -> None:
        with suppress(AppendRefused, StoreError):
            log.append(core.lineage.run_id, [NoteAdded(TOLD, code=TOLD_TO_STOP)], epoch=core.epoch)

    if heed is not None:
        heed.owns(partial(core.mark, ToldToStop(TOLD)), wake, note)


@contextmanager
def heeding(grace_s: float) -> Generator[Heed | None]:
    """Heed a SIGTERM while the block lasts; behind it the process ends if one has come."""
    if (heed := HERE.enter(grace_s)) is None:
        yield None
        return
    token = UNDER.set(heed)
    try:
        heed.check()
        yield heed
    finally:
        UNDER.reset(token)
        if HERE.leave(heed):
            HERE.end(heed)


@asynccontextmanager
async def heeding_async(grace_s: float) -> AsyncGenerator[Heed | None]:
    """Do the same on a loop."""
    if (heed := HERE.enter(grace_s)) is None:
        yield None
        return
    heed.over = over(asyncio.get_running_loop())
    under = UNDER.get()
    UNDER.set(heed)
    try:
        heed.check()
        yield heed
    finally:
        UNDER.set(under)  # no `reset`: who closes what was left in the middle has another context
        if HERE.leave(heed) and not heed.over():
            await HERE.end_async(heed)
