"""What this package knows of a loop: which tasks were made in which step, and who waits there for an append."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet, ref

from runjournal.engine.script import Entry
from runjournal.engine.tools import TOOL_CONTEXT
from runjournal.log.limits import group_gather_s, group_woken_max, thread_look_s

T = TypeVar("T")

Loop = asyncio.AbstractEventLoop


def over(loop: Loop) -> Callable[[], bool]:
    """Return what says whether a loop is closed, or gone; it doesn't keep it."""
    there = ref(loop)

    def is_over() -> bool:
        return (loop := there()) is None or loop.is_closed()

    return is_over


def wake(waiter: asyncio.Future[None]) -> None:
    """Wake who waits, if nobody has yet."""
    if not waiter.done():
        waiter.set_result(None)


class Unbroken(asyncio.Future[T]):
    """What is waited for to its end: a cancel of the waiter comes behind it, see `unbroken`.

    A cancel is how a loop ends behind an interrupt: `look` sees to it that the end of what is waited for comes.
    """

    def __init__(self, look: Callable[[], object] = lambda: None, *, loop: Loop | None = None) -> None:
        super().__init__(loop=loop)
        self._look = look

    def cancel(self, msg: Any | None = None) -> bool:
        """Return False: the waiter is told of the cancel when this is done."""
        self._look()
        return False


async def unbroken(waiter: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait until it is done; return the cancel that came meanwhile, which is the caller's to raise."""
    cancelled: asyncio.CancelledError | None = None
    while not waiter.done():
        try:
            await waiter
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:
            if not waiter.done():
                raise
    return cancelled


async def in_thread(work: Callable[[], T]) -> T:
    """Return what a function returns that may wait for the disk, in a thread of its own.

    A cancel that comes meanwhile is raised when it is over: what it did stands.
    """
    loop, context = asyncio.get_running_loop(), copy_context()
    came = list[Callable[[], None]]()

    def tell(settle: Callable[[Any], None], outcome: Any) -> None:
        def told() -> None:
            if not waiter.done():
                settle(outcome)

        came.append(told)
        with suppress(RuntimeError):  # the loop is closed, and whoever waited is gone
            loop.call_soon_threadsafe(told)

    def run() -> None:
        try:
            try:
                result = context.run(work)
            except BaseException as error:  # noqa: BLE001 - its asker's
                failed = RuntimeError("StopIteration") if isinstance(error, StopIteration) else error
                tell(waiter.set_exception, failed)
            else:
                tell(waiter.set_result, result)
        except BaseException as error:  # noqa: BLE001 - an interrupt has come in between
            tell(waiter.set_exception, error)

    thread = threading.Thread(target=run, name="runjournal claim", daemon=True)

    def look() -> None:
        """An interrupt may end a thread where it can't tell, before its first line, or the loop as it is told."""
        if waiter.done():
            return
        if thread.is_alive():
            loop.call_later(thread_look_s, look)
        elif came:
            loop.call_soon(came[0])
        else:
            loop.call_soon(tell, waiter.set_exception, KeyboardInterrupt("a thread was ended before it began"))

    waiter = Unbroken[T](look)
    try:
        thread.start()
        loop.call_later(thread_look_s, look)
        cancelled = await unbroken(waiter)
    except BaseException:  # an interrupt: its asker has to know what it did
        if thread.ident is not None and thread is not threading.current_thread():
            thread.join()
        raise
    if cancelled is not None and waiter.exception() is None:
        raise cancelled
    return waiter.result()


class Heard(Protocol):
    """What a task hears of: it is over."""

    def heard_of(self) -> None:
        """Note, in the loop, that its task is told now."""
        ...


class Bell:
    """Wakes the tasks of a loop, so many a turn: each does some work then, and the loop has others to serve."""

    def __init__(self, loop: Loop) -> None:
        self._loop = ref(loop)
        self._ended: deque[tuple[Unbroken[Any], Heard]] = deque()
        self._rung = self._looking = False
        self._wanted: dict[Callable[[], None], tuple[int, float]] = {}
        self._waiting: WeakKeyDictionary[Unbroken[Any], Callable[[], None]] = WeakKeyDictionary()  # waiters keep a loop

    def want(self, waiter: Unbroken[Any], wake: Callable[[], None]) -> None:
        """Call `wake` soon: when in a turn of the loop nobody has wanted it any more, or it has waited long enough.

        The tasks that were told of one commit submit their next appends within a few turns: they go into one commit
        again, and the thread that makes it doesn't work in between the turns. It is called again as long as the
        `waiter` waits.
        """
        self._waiting[waiter] = wake
        loop = asyncio.get_running_loop()
        if not self._looking:
            loop.call_later(thread_look_s, self._look)
            self._looking = True
        count, since_s = self._wanted.get(wake, (0, 0.0))
        if not count:
            since_s = time.monotonic()
            loop.call_soon(self._gather, wake, 0)
        self._wanted[wake] = count + 1, since_s

    def _gather(self, wake: Callable[[], None], before: int) -> None:
        count, since_s = self._wanted.get(wake, (before, 0.0))
        if count > before and time.monotonic() < since_s + group_gather_s:
            asyncio.get_running_loop().call_soon(self._gather, wake, count)
            return
        self._wanted.pop(wake, None)
        wake()

    def _look(self) -> None:
        """Wake once more for those who still wait: an interrupt may have ended what was to wake, or to be woken."""
        try:
            for wake in set(self._waiting.values()):
                self._wanted.pop(wake, None)
                wake()
            self._turn()
        finally:
            self._looking = bool(self._waiting)
            if self._looking:
                asyncio.get_running_loop().call_later(thread_look_s, self._look)

    def tell(self, waiter: Unbroken[Any], work: Heard) -> None:
        """Wake a task soon, with what it waits for; from any thread. It may be told twice, behind an interrupt."""
        self._ended.append((waiter, work))
        if self._rung or (loop := self._loop()) is None:
            return
        try:
            self._rung = True
            loop.call_soon_threadsafe(self._turn)
        except RuntimeError:  # the loop is closed, and whoever waited is gone
            self._ended.clear()
        except BaseException:
            self._rung = False
            raise

    def _turn(self) -> None:
        try:
            self._rung = False
            for _ in range(min(group_woken_max, len(self._ended))):
                waiter, work = self._ended[0]
                if not waiter.done():  # an interrupt may have come behind this, at the last turn
                    work.heard_of()
                    waiter.set_result(work)
                self._waiting.pop(waiter, None)
                self._ended.popleft()
        finally:
            if self._ended and not self._rung and (loop := self._loop()) is not None:
                self._rung = True
                loop.call_soon(self._turn)


_bells: WeakKeyDictionary[Loop, Bell] = WeakKeyDictionary()


def bell_of(loop: Loop) -> Bell:
    """Return the bell of a loop."""
    if (bell := _bells.get(loop)) is None:
        bell = _bells[loop] = Bell(loop)
    return bell


class MadeTasks:
    """The tasks that were made in the steps of a loop: the loop tells of each that it makes.

    Only a task that was made in a step's own context can ask in that step: it is known by the context that it inherits.
    """

    def __init__(self) -> None:
        self._inner: Any = None
        self._making = False

    def count(self, entry: Entry) -> None:
        """Count the task that has begun this step, and those that are made in it from now on."""
        beginner = asyncio.current_task()
        entry.tasks = WeakSet(() if beginner is None else (beginner,))
        loop = asyncio.get_running_loop()
        if loop.get_task_factory() != self._make:  # another one may have been set meanwhile: it makes them
            self._inner = loop.get_task_factory()
            loop.set_task_factory(self._make)  # type: ignore[arg-type]  # any keyword is passed on

    def others(self, entry: Entry, me: asyncio.Task[Any] | None) -> bool:
        """Return whether a task of the step lives, other than this one."""
        return any(task is not me and not task.done() for task in entry.tasks or ())

    def is_body(self, task: asyncio.Task[Any], context: Context | None = None) -> None:
        """Leave out the task of a body: it is nobody who asks."""
        if (tasks := _tasks_of(context)) is not None:
            tasks.discard(task)

    def _make(self, loop: Loop, coro: Coroutine[Any, Any, Any], **how: Any) -> asyncio.Task[Any]:
        if self._inner is None or self._making:  # the one within may call this one
            task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **how)
        else:
            self._making = True
            try:
                task = self._inner(loop, coro, **how)
            finally:
                self._making = False
        if (tasks := _tasks_of(how.get("context"))) is not None:
            tasks.add(task)
        return task


def _tasks_of(context: Context | None) -> WeakSet[asyncio.Task[Any]] | None:
    """Return the tasks of the step of a context, this one for None."""
    here = TOOL_CONTEXT.get() if context is None else context.get(TOOL_CONTEXT)
    return None if here is None else getattr(here.entry, "tasks", None)


_made: WeakKeyDictionary[Loop, MadeTasks] = WeakKeyDictionary()


def made_in(loop: Loop) -> MadeTasks:
    """Return what counts the tasks of a loop."""
    if (made := _made.get(loop)) is None:
        made = _made[loop] = MadeTasks()
    return made
