"""`AsyncRun`: what an asyncio agent works with. It performs what the core asks for, task by task, and adds nothing.

Each body has a task of its own, so that a cancelled asker can wait until what can't be cut has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import heapq
import inspect
import itertools
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import Any, NoReturn, ParamSpec, TypeAlias, TypeVar, Unpack, cast, overload

from runjournal.engine import failures as f
from runjournal.engine.asking import AskOptions, worded
from runjournal.engine.callees import ModelOptions, Target
from runjournal.engine.children import ChildOptions
from runjournal.engine.commands import Append, Command, Ended, Invoke, Made, Until
from runjournal.engine.context import Context
from runjournal.engine.parts import RunParts
from runjournal.engine.script import Entry
from runjournal.engine.tools import Tool
from runjournal.log.base import Event, Json
from runjournal.log.limits import cancel_wait_s, told_turns
from runjournal.writing.appender import SharedAppend

from .body_telling import INTERRUPTS, BodyTelling, ended_of
from .floor import Floor
from .provider_shapes import GrowingHistory
from .tasks import Unbroken, bell_of, made_in, unbroken, wake
from .turn import AgentTurn, Approve

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V", bound=Callable[..., Coroutine[Any, Any, Any]])


AsyncAgent: TypeAlias = "Callable[[AsyncRun], Awaitable[Any]]"
Submit = Callable[[tuple[Event, ...] | Made, Callable[[SharedAppend], None]], bool]


class AsyncDriver:
    """Performs commands in the task that asks.

    With `submit`, appends share their commits with those of other runs, in another thread: `submit(events, told)`
    returns False if they have to be made at once, and `wake` begins with those that were submitted. Their asker has the
    floor meanwhile, and no cancel comes between. Without, they are made at once.
    """

    awaits, working = True, False  # whether a task is at work or waits for something of its own isn't known
    cancellation = asyncio.CancelledError
    lock = nullcontext()  # one task runs at a time

    def __init__(
        self,
        append: Callable[[tuple[Event, ...] | Made], Any],
        submit: Submit | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.append_now = append
        self.at_once: Callable[[tuple[Event, ...] | Made], Any] | None = append if submit is None else None
        self._submit = submit
        self._wake_committer = wake
        self.floor = Floor()
        self._waiters: list[asyncio.Future[None]] = []
        self._turns: dict[int, list[tuple[int, int, Until, asyncio.Future[None]]]] = {}  # heaps
        self._counted = itertools.count()
        self._settling = 0
        self.loop = asyncio.get_running_loop()
        self._tasks = made_in(self.loop)
        self._step: Entry | None = None
        self._caller: asyncio.Task[Any] | None = None
        self._cancels = 0
        self.stopping: asyncio.Future[None] = self.loop.create_future()
        self.made: list[tuple[str, Coroutine[Any, Any, Any], Entry | None]] = []  # what was called, and in which step

    # What the core asks without waiting.

    def begin(self) -> None:
        """Note the task that calls the agent: a cancel of that one is the run's."""
        self._caller = asyncio.current_task()
        self._cancels = self._caller.cancelling() if self._caller else 0

    @property
    def leaving(self) -> bool:
        """Return whether the caller was cancelled, as he is with all tasks when their loop ends behind an interrupt."""
        return self._caller is not None and self._caller.cancelling() > self._cancels

    def told_of_stop(self) -> None:
        """Wake all who wait, and whoever has called the agent: its process is to stop. From any thread."""

        def told() -> None:
            self.ring()
            wake(self.stopping)

        with suppress(RuntimeError):  # the loop is closed, and with it the run has left
            self.loop.call_soon_threadsafe(told)

    @property
    def calm(self) -> bool:
        """Return whether nobody was told anything in the last turns of the loop, nor wants the floor to act on it."""
        return self._settling == 0 and self.floor.quiet

    def alone(self) -> bool:
        """Return whether no task was made in the step."""
        return self._step is None or not self._tasks.others(self._step, asyncio.current_task())

    def current(self) -> asyncio.Task[Any] | None:
        """Return the task that asks."""
        return asyncio.current_task()

    def unlock(self) -> None:
        """Give the floor on, if the asker has it: there is no lock."""
        self.give_floor()

    def told_again(self, stop: BaseException) -> BaseException:
        """Return the same stop; Released for an interrupt, which breaks the loop once: again, it would break its end.

        Whoever runs the agent gets the interrupt itself.
        """
        if isinstance(stop, INTERRUPTS):
            return f.Released(f"{type(stop).__name__} has stopped the run")
        return f.anew(stop)

    def ring(self) -> None:
        """Wake all who wait; while an append is under way, when that is over."""
        if self.floor.others:
            return
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            wake(waiter)
        ready = list[tuple[int, int, Until, asyncio.Future[None]]]()
        for heap in self._turns.values():
            while heap and (heap[0][3].done() or heap[0][2].ready()):
                ready.append(heapq.heappop(heap))
        for _, _, _, waiter in sorted(ready, key=lambda each: each[1]):  # as they came
            wake(waiter)

    def settle(self) -> None:
        """Wait some turns of the loop, so that whoever was just told something acts on it at once."""
        self._settling += 1
        self._turn(told_turns)

    def _turn(self, left: int) -> None:
        if left:
            self.loop.call_soon(self._turn, left - 1)
        else:
            self._settling -= 1
            self.ring()

    async def together(self, works: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        """Give each a task."""
        found = await asyncio.gather(*(work() for work in works), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return list(found)

    # The step of a task.

    def begin_step(self, entry: Entry) -> None:
        """Count the tasks that are made in the step from now on."""
        self._tasks.count(entry)
        self._step = entry
        self._turns = {}

    async def end_step(self, entry: Entry | None = None) -> None:
        """Raise NotAwaited if a verb or tool was called, in this step or in the run, and doesn't begin soon.

        "Soon" is within some turns of the loop.
        """
        turns = 0
        while forgotten := self._not_begun(entry):
            if turns == told_turns:
                break
            turns += 1
            await asyncio.sleep(0)
        else:
            return
        names = ", ".join(sorted({about for about, _, _ in forgotten}))
        for _, coroutine, _ in forgotten:
            coroutine.close()
        raise f.NotAwaited(f"{names} was called and not awaited, so it didn't happen: write `await` before it")

    def _not_begun(self, entry: Entry | None) -> list[tuple[str, Coroutine[Any, Any, Any], Entry | None]]:
        self.made = [each for each in self.made if inspect.getcoroutinestate(each[1]) == inspect.CORO_CREATED]
        return [each for each in self.made if entry is None or each[2] is entry]

    async def break_step(self, entry: Entry, error: BaseException | None = None) -> None:
        """End what is in flight: cut what can be cut, await the rest. No cancel interrupts this."""
        told: set[asyncio.Task[Any]] = set()
        while tasks := {t for t in entry.flights.values() if t is not asyncio.current_task() and not t.done()}:
            for task in tasks - told:
                task.cancel()
            told |= tasks
            with suppress(asyncio.CancelledError):
                await asyncio.wait(tasks, timeout=1)

    def abandon_step(self, stop: Callable[[], None]) -> None:
        """Stop the run: the generator that holds the step was closed."""
        if not self.loop.is_closed():  # else nobody is there to be told
            stop()

    def forget_step(self, entry: Entry) -> None:
        """Forget what was called in the step and has never begun."""
        self.made = [each for each in self.made if each[2] is not entry]

    # The floor.

    @property
    def taken(self) -> bool:
        """Return whether somebody has the floor."""
        return self.floor.holder is not None

    async def take_floor(self, *, through: bool = False) -> None:
        """Wait until the asker has the floor, in the order of asking."""
        await self.floor.take(through=through)

    def give_floor(self) -> None:
        """Give the floor to the next one, if the asker has it; when nobody wants it, wake all who wait."""
        if self.floor.give() and (self._waiters or self._turns):
            self.ring()

    def absorbed(self) -> asyncio.CancelledError | None:
        """Return the cancel of the asker that came while he waited for an append; once."""
        return self.floor.absorbed()

    def leave_floor(self, *, cancelled: bool) -> None:
        """The asker's verb is over: give the floor on; `cancelled`: such a cancel is raised where he waits next."""
        if cancelled:
            self.floor.cancel_again()
        self.give_floor()

    # Performing.

    def check(self, target: Target) -> None:
        """Accept everything: a loop can call plain functions and coroutine functions."""

    async def value(self, who: str, value: Any) -> Any:
        """Return what a function of the agent's returned, awaited if need be."""
        return await value if inspect.isawaitable(value) else value

    async def perform(self, command: Command) -> Any:
        match command:
            case Append(events):
                return await self._append(events)
            case Until():
                return await self._wait(command)
            case Invoke():
                return await self._invoke(command)

    async def _append(self, events: tuple[Event, ...] | Made) -> Any:
        if self._submit is None:
            return self.append_now(events)
        self.floor.seize()
        bell, waiter = bell_of(self.loop), Unbroken[SharedAppend](loop=self.loop)
        if not self._submit(events, partial(bell.tell, waiter)):
            return self.append_now(events)
        bell.want(waiter, self._wake_committer)
        self.floor.absorb(await unbroken(waiter))
        return waiter.result().outcome()

    async def _wait(self, until: Until) -> bool:
        if (cancelled := self.absorbed()) is not None:
            raise cancelled
        deadline = None if until.bound_s is None else self.loop.time() + until.bound_s
        while True:
            if self.floor.holder is not None:
                await self.floor.take()
            if until.ready():
                return True
            left = None if deadline is None else deadline - self.loop.time()
            if left is not None and left <= 0:
                return False
            self.give_floor()
            waiter: asyncio.Future[None] = self.loop.create_future()
            alarm = None if left is None else self.loop.call_later(left, wake, waiter)
            if until.turn is None:
                self._waiters.append(waiter)
            else:
                line, place = until.turn
                heapq.heappush(self._turns.setdefault(line, []), (place, next(self._counted), until, waiter))
            try:
                await waiter
            finally:
                waiter.cancel()  # nobody waits for it any more
                if alarm is not None:
                    alarm.cancel()

    async def _invoke(self, command: Invoke) -> Ended:
        body = self._in_thread(command) if command.blocking else self._in_task(command)
        deadline = None if command.timeout_s is None else self.loop.time() + command.timeout_s
        cancelled: asyncio.CancelledError | None = None
        self.floor.cancel_again()
        while not body.done():
            left = None if deadline is None else deadline - self.loop.time()
            if left is not None and left <= 0:
                break
            try:
                await asyncio.wait([body], timeout=left)
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                patience_s = command.patience_s() if command.cuttable else cancel_wait_s
                if command.cuttable and not patience_s:
                    break
                if patience_s is not None:
                    held = self.loop.time() + patience_s
                    deadline = held if deadline is None else min(deadline, held)
        if body.done():
            if body.cancelled():  # by itself, or with all tasks at the loop's end: then the run is stopped in this turn
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError as error:
                    cancelled = cancelled or error
            return ended_of(body)._replace(cancelled=cancelled)
        if not command.blocking:  # a thread tells by itself
            body.add_done_callback(lambda done: None if done.cancelled() else command.late(ended_of(done)))
        body.cancel()
        while command.leaves and not body.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([body])
        return Ended(cut="cancel" if cancelled is not None else "timeout", cancelled=cancelled)

    def _in_task(self, command: Invoke) -> asyncio.Future[Any]:
        """Run a body in a task of its own, which a cancel of its asker doesn't reach."""

        async def work() -> Any:
            result = command.body()
            return await result if inspect.isawaitable(result) else result

        task = self.loop.create_task(work())
        self._tasks.is_body(task)
        return task

    def _in_thread(self, command: Invoke) -> asyncio.Future[Any]:
        """Run a body in a thread of its own.

        In a pool it could wait for its turn, be cut meanwhile, and begin later.
        """
        body: asyncio.Future[Any] = self.loop.create_future()
        context = contextvars.copy_context()

        def deliver(ended: Ended) -> None:
            if inspect.isawaitable(ended.value):  # a plain function that gives a coroutine
                go_on(ended.value)
                return
            if body.done():  # it can't be stopped: it was cut, and has ended now
                command.late(ended)
                return
            body.set_result(ended)
            if isinstance(ended.error, INTERRUPTS):
                raise ended.error  # it breaks the loop, as one of a task does

        def go_on(value: Awaitable[Any]) -> None:
            async def wait() -> Any:
                return await value

            task = self.loop.create_task(wait(), context=context)
            self._tasks.is_body(task, context)
            task.add_done_callback(lambda task: None if task.cancelled() else deliver(ended_of(task)))
            body.add_done_callback(lambda body: task.cancel() if body.cancelled() else None)

        telling = BodyTelling(self.loop, deliver, command.late)

        def work() -> None:
            ended: Ended | None = None
            try:
                try:
                    ended = Ended(context.run(command.body))
                except BaseException as error:  # noqa: BLE001 - how it ended is the core's to judge
                    ended = Ended(error=error)
                telling.tell(ended)
            except BaseException as error:  # noqa: BLE001 - an interrupt between the lines: whoever waits must hear of it
                telling.tell(ended or Ended(error=error))

        thread = threading.Thread(target=work, name="runjournal body", daemon=True)
        weakref.finalize(thread, telling.lost).atexit = False
        thread.start()
        return body


class AsyncRun(Context):
    """A run that this process owns. An agent is an async function of it, called again after a crash."""

    def __init__(self, parts: RunParts, driver: AsyncDriver) -> None:
        super().__init__(parts, self._call_from)
        self._driver = driver
        self._history = GrowingHistory()  # of its turns

    @staticmethod
    def _awaited(method: V) -> V:
        """Remember a verb until it has begun, so that the end of its step finds a forgotten `await`."""

        @functools.wraps(method)
        def verb(self: AsyncRun, *args: Any, **kwargs: Any) -> Any:
            self._core.not_in_tool()  # at once: a function that the run calls by itself can't await it
            made = method(self, *args, **kwargs)
            about = args[0].name if args and isinstance(args[0], Tool) else f"run.{method.__name__}"
            self._driver.made.append((about, made, self._steps.here))
            return made

        return cast("V", verb)

    def _call_from(self, tool: Tool[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make the call of a tool that was called as a function.

        In the loop it is awaited; another thread waits for it. Such a thread is one of `asyncio.to_thread`.
        """
        called = self.call(tool, *args, **kwargs)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(called, self.loop).result()
        return called

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that the run lives in."""
        return self._driver.loop

    # Steps.

    @asynccontextmanager
    async def step(self, name: str, key: str | int | None = None, *, repeat: bool = False) -> AsyncGenerator[None]:
        """Open a step; see `Run.step`."""
        if self._driver.taken:
            await self._driver.take_floor()  # until the step is begun, nothing comes between
        try:
            with self._asked(name, key, repeat=repeat) as block:
                async with block:
                    yield
        finally:
            self._driver.give_floor()

    @overload
    async def do(self, name: str, fn: Callable[..., Awaitable[R]], *args: Any, key: str | int | None = None) -> R: ...

    @overload
    async def do(self, name: str, fn: Callable[..., R], *args: Any, key: str | int | None = None) -> R: ...

    @_awaited
    async def do(self, name: str, fn: Callable[..., Any], *args: Any, key: str | int | None = None) -> Any:
        """Return the recorded result of a step; see `Run.do`. `fn` may be a coroutine function or a plain one."""
        return await self._do(name, key, self._made(name, fn, args))

    # Calls.

    @overload
    async def call(self, tool: Tool[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def call(self, tool: Tool[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...

    @_awaited
    async def call(self, tool: Tool[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call a tool: its recorded outcome, or a live one; see `Run.call`."""
        return await self._core.drive(self._call(tool, args, kwargs))

    @_awaited
    async def parallel(self, asks: Sequence[tuple[Tool[..., Any], Mapping[str, Any]]]) -> list[Any]:
        """Make calls that are in flight together: [(tool, kwargs), …]; see `Run.parallel`."""
        tasks = [self.call(tool, **kwargs) for tool, kwargs in asks]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, f.Told | f.ResultUnusable):
                raise outcome
        return list(outcomes)

    @_awaited
    async def model(self, name: str, request: Json, call: Callable[[Json], Any], **how: Unpack[ModelOptions]) -> Json:
        """Ask a model: paid for once; see `Run.model`. `call` may be a coroutine function."""
        return await self._core.drive(self._model(name, request, call, how))

    @_awaited
    async def turn(
        self,
        model: str,
        request: Mapping[str, Json],
        tools: Sequence[Tool[..., Any]],
        call: Callable[[Json], Any],
        *,
        approve: Approve = (),
        name: str = "turn",
    ) -> str | None:
        """Take one turn of an agent's loop; see `Run.turn`. The tool calls of an answer are made at the same time."""
        return await AgentTurn(self._turn_verbs(), model, request, tools, call, approve, name, self._history).take()

    # Children.

    @_awaited
    async def spawn(self, agent: AsyncAgent, *, input: Json = None, **how: Unpack[ChildOptions]) -> str:
        """Begin a run of its own for an agent, a child; see `Run.spawn`."""
        return await self._core.drive(self._spawn(agent, input, how))

    @_awaited
    async def wait_child(self, child_id: str, agent: AsyncAgent | None = None) -> Json:
        """Return the output of a child; see `Run.wait_child`. Children that are waited for together run together."""
        return await self._core.drive(self._parts.children.wait(child_id, agent))

    @_awaited
    async def call_child(self, agent: AsyncAgent, *, input: Json = None, **how: Unpack[ChildOptions]) -> Json:
        """Begin a child and wait for it; see `Run.call_child`."""
        child_id = await self._core.drive(self._spawn(agent, input, how))
        return await self._core.drive(self._parts.children.wait(child_id, agent))

    # Waiting and ending.

    @_awaited
    async def ask(
        self,
        action: str,
        *,
        args: Mapping[str, Json] | None = None,
        key: str | int | None = None,
        **how: Unpack[AskOptions],
    ) -> dict[str, Json]:
        """Ask a person; see `Run.ask`."""
        return await self._ask(key, worded(action, args, how))

    @_awaited
    async def ask_all(self, questions: Sequence[Mapping[str, Any]]) -> list[dict[str, Json] | f.Rejected]:
        """Ask several questions at once; see `Run.ask_all`."""
        return await self._core.drive(self._ask_all(questions))

    @_awaited
    async def sleep(
        self, *, for_s: float | None = None, until: datetime | None = None, key: str | int | None = None
    ) -> None:
        """Sleep, through crashes and restarts; see `Run.sleep`."""
        await self._sleep(for_s, until, key)

    @_awaited
    async def wait_signal(self, name: str, timeout_s: float | None = None, *, key: str | int | None = None) -> Json:
        """Wait for a signal; see `Run.wait_signal`."""
        return await self._wait_signal(name, timeout_s, key)

    @_awaited
    async def signals(self) -> list[Json]:
        """Return the payloads in the inbox of the open step; see `Run.signals`."""
        return await self._core.drive(self._signals())

    @_awaited
    async def complete(self, output: Json) -> NoReturn:
        """End the run; see `Run.complete`."""
        await self._core.drive(self._complete(output))
        raise AssertionError

    @_awaited
    async def fail(self, message: str, *, type: str = "Failed") -> NoReturn:
        """End the run as failed; see `Run.fail`."""
        await self._core.drive(self._fail(message, type))
        raise AssertionError


def carried(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs in the context of now: for pools whose threads don't carry it by themselves."""
    context = contextvars.copy_context()
    return lambda *args, **kwargs: context.copy().run(fn, *args, **kwargs)
