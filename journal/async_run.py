"""`AsyncRun`: what an asyncio agent works with. It performs what the core asks for, task by task, and adds nothing.

Each body has a task of its own, so that a cancelled asker can wait until what can't be cut has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NoReturn, ParamSpec, TypeVar, Unpack, cast, overload

from runjournal.engine import failures as f
from runjournal.engine.callees import ModelOptions, ModelTarget, ToolTarget
from runjournal.engine.calls import Caller
from runjournal.engine.commands import Append, Command, Ended, Invoke, Made, Until, Verb
from runjournal.engine.context import Context
from runjournal.engine.core import Core
from runjournal.engine.script import Entry
from runjournal.engine.tools import TOOL_CONTEXT, Tool
from runjournal.log import events as e
from runjournal.log.base import Event, Json
from runjournal.log.codec import plain, tellable
from runjournal.log.limits import cancel_wait_s, told_turns

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
V = TypeVar("V", bound=Callable[..., Coroutine[Any, Any, Any]])


class AsyncDriver:
    """Performs commands in the task that asks. Appends are done at once, so that no cancel comes between."""

    def __init__(self, append: Callable[[tuple[Event, ...] | Made], Any]) -> None:
        self._append = append
        self.fault: Callable[[BaseException], None] = lambda _: None  # is told when the store failed a verb
        self._waiters: list[asyncio.Future[None]] = []
        self._settling = 0
        self.loop = asyncio.get_running_loop()
        self.others: set[asyncio.Task[Any]] = set()
        self.bodies: set[asyncio.Task[Any]] = set()

    # What the core asks without waiting.

    @property
    def calm(self) -> bool:
        """Whether nobody was told anything in the last turns."""
        return self._settling == 0

    def alone(self) -> bool:
        """Whether no task was made since the step began."""
        return not (asyncio.all_tasks() - self.others - self.bodies - {asyncio.current_task()})

    def current(self) -> asyncio.Task[Any] | None:
        """The task that asks."""
        return asyncio.current_task()

    def ring(self) -> None:
        """Wake whoever waits."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def settle(self) -> None:
        """Let whoever was just told do what he will do at once."""
        self._settling += 1
        self._turn(told_turns)

    def _turn(self, left: int) -> None:
        if left:
            self.loop.call_soon(self._turn, left - 1)
        else:
            self._settling -= 1
            self.ring()

    def now_s(self) -> float:
        """Seconds of the loop's clock."""
        return self.loop.time()

    def begin(self) -> None:
        """A step begins: who is there now isn't of it."""
        self.others = asyncio.all_tasks() - {cast("asyncio.Task[Any]", asyncio.current_task())}
        self.bodies = set()

    # Performing.

    async def drive(self, steps: Verb[T]) -> T:
        """Run a verb of the core to its end."""
        try:
            command = next(steps)
            while True:
                try:
                    outcome = await self._perform(command)
                except BaseException as error:  # noqa: BLE001 - it is the core's to judge
                    command = steps.throw(error)
                else:
                    command = steps.send(outcome)
        except StopIteration as end:
            value: T = end.value
            return value
        except Exception as error:
            if isinstance(error, f.BROKEN):
                self.fault(error)
            raise

    def drive_now(self, steps: Verb[T]) -> T:
        """The same for a verb that only appends."""
        try:
            command = next(steps)
            while True:
                if not isinstance(command, Append):
                    raise f.Mistake("this verb waits: it must be awaited")  # noqa: TRY301 - as if the verb had
                try:
                    outcome = self._append(command.events)
                except BaseException as error:  # noqa: BLE001 - it is the core's to judge
                    command = steps.throw(error)
                else:
                    command = steps.send(outcome)
        except StopIteration as end:
            value: T = end.value
            return value
        except Exception as error:
            if isinstance(error, f.BROKEN):
                self.fault(error)
            raise

    async def _perform(self, command: Command) -> Any:
        match command:
            case Append(events):
                return self._append(events)
            case Until(ready, bound_s):
                return await self._wait(ready, bound_s)
            case Invoke():
                return await self._invoke(command)

    async def _wait(self, ready: Callable[[], object], bound_s: float | None) -> bool:
        deadline = None if bound_s is None else self.loop.time() + bound_s
        while not ready():
            left = None if deadline is None else deadline - self.loop.time()
            if left is not None and left <= 0:
                return False
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._waiters.append(waiter)
            await asyncio.wait([waiter], timeout=left)
        return True

    async def _invoke(self, command: Invoke) -> Ended:
        body = self._in_thread(command) if command.blocking else self._in_task(command)
        deadline = None if command.timeout_s is None else self.loop.time() + command.timeout_s
        cancelled: asyncio.CancelledError | None = None
        while not body.done():
            left = None if deadline is None else deadline - self.loop.time()
            if left is not None and left <= 0:
                break
            try:
                await asyncio.wait([body], timeout=left)
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                if command.cuttable:
                    break
                if cancel_wait_s is not None:
                    held = self.loop.time() + cancel_wait_s
                    deadline = held if deadline is None else min(deadline, held)
        if body.done():
            return _ended(body)._replace(cancelled=cancelled)
        if not command.blocking:  # a thread tells by itself
            body.add_done_callback(lambda done: None if done.cancelled() else command.late(_ended(done)))
        body.cancel()
        return Ended(cut="cancel" if cancelled is not None else "timeout", cancelled=cancelled)

    def _in_task(self, command: Invoke) -> asyncio.Future[Any]:
        """A body in a task of its own, which a cancel of its asker doesn't reach."""

        async def work() -> Any:
            result = command.body()
            return await result if inspect.isawaitable(result) else result

        task = self.loop.create_task(work())
        self.bodies.add(task)
        return task

    def _in_thread(self, command: Invoke) -> asyncio.Future[Any]:
        """A body in a thread of its own: in a pool it could wait for its turn, be cut meanwhile, and begin later."""
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
            self.bodies.add(task)
            task.add_done_callback(lambda task: None if task.cancelled() else deliver(_ended(task)))
            body.add_done_callback(lambda body: task.cancel() if body.cancelled() else None)

        def work() -> None:
            try:
                ended = Ended(context.run(command.body))
            except BaseException as error:  # noqa: BLE001 - how it ended is the core's to judge
                ended = Ended(error=error)
            try:
                self.loop.call_soon_threadsafe(deliver, ended)
            except RuntimeError:  # the loop is closed, and whoever waited is gone
                command.late(ended)

        threading.Thread(target=work, name="runjournal body", daemon=True).start()
        return body


INTERRUPTS: Final = (KeyboardInterrupt, SystemExit)
"""What breaks a loop at once, whoever raises it."""


def _ended(body: asyncio.Future[Any]) -> Ended:
    """How a body ended. The loop has its interrupt already: raised by its asker too, it would break the end of it."""
    if body.cancelled():
        return Ended(error=asyncio.CancelledError())
    error = body.exception()
    ended = Ended(error=error) if error else body.result()
    if not isinstance(ended, Ended):
        ended = Ended(ended)
    if isinstance(ended.error, INTERRUPTS):
        return Ended(error=f.Released(f"{type(ended.error).__name__} in a tool"))
    return ended


class AsyncCore(Core):
    """The core, where the step of a task is that of its context."""

    cancellation = asyncio.CancelledError

    @property
    def inside(self) -> bool:
        """Whether this context is that of the open step."""
        caller = TOOL_CONTEXT.get()
        return isinstance(caller, _Inside) and caller.core is self and caller.entry is self.entry and caller.entry.open


class _Inside:
    """The step of a context: what a tool that is called there goes to."""

    def __init__(self, core: AsyncCore, entry: Entry, run: AsyncRun) -> None:
        self.core = core
        self.entry = entry
        self.run = run

    def call_tool(self, tool: Tool[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The call, journalled: to be awaited in the loop; in a thread of `asyncio.to_thread` it waits."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            coroutine = self.run.call(tool, *args, **kwargs)
            return asyncio.run_coroutine_threadsafe(coroutine, self.run.loop).result()
        return self.run.call(tool, *args, **kwargs)


def _awaited(method: V) -> V:
    """A verb that is remembered until it has begun: a forgotten `await` is found at the end of its step."""

    @functools.wraps(method)
    def verb(run: AsyncRun, *args: Any, **kwargs: Any) -> Any:
        made = method(run, *args, **kwargs)
        about = args[0].name if args and isinstance(args[0], Tool) else f"run.{method.__name__}"
        run.made.append((about, made, run.open_entry))
        return made

    return cast("V", verb)


class AsyncRun(Context):
    """A run that this process owns. An agent is an async function of it, called again after a crash."""

    def __init__(self, core: AsyncCore, driver: AsyncDriver, caller: Caller) -> None:
        super().__init__(core, driver.drive_now)
        self._core = core
        self._driver = driver
        self._caller = caller
        self.made: list[tuple[str, Coroutine[Any, Any, Any], Entry | None]] = []  # what was called, and in which step

    @property
    def open_entry(self) -> Entry | None:
        """The step of this context, None outside any."""
        return self._core.entry if self._core.inside else None

    def _not_begun(self, entry: Entry | None) -> list[tuple[str, Coroutine[Any, Any, Any], Entry | None]]:
        self.made = [each for each in self.made if inspect.getcoroutinestate(each[1]) == inspect.CORO_CREATED]
        return [each for each in self.made if entry is None or each[2] is entry]

    async def check_awaited(self, entry: Entry | None = None) -> None:
        """Raise NotAwaited if something was called in this step, or in the run, and doesn't begin in some turns."""
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

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that the run lives in."""
        return self._driver.loop

    # Steps.

    @asynccontextmanager
    async def step(self, name: str, key: str | int | None = None, *, repeat: bool = False) -> AsyncGenerator[None]:
        """A step; see `Run.step`."""
        step_id, kind, blind = self._core.plan_step(name, key, repeat=repeat)
        uses = self._core.state.steps.uses.get(name, 0) if repeat else 0
        async with self._open(step_id, name, kind, key, blind=blind):
            yield
        if repeat:
            self._core.turns[name] = uses + 1

    @overload
    async def do(self, name: str, fn: Callable[..., Awaitable[R]], *args: Any, key: str | int | None = None) -> R: ...

    @overload
    async def do(self, name: str, fn: Callable[..., R], *args: Any, key: str | int | None = None) -> R: ...

    @_awaited
    async def do(self, name: str, fn: Callable[..., Any], *args: Any, key: str | int | None = None) -> Any:
        """A step that gives back its recorded result; see `Run.do`. `fn` may be a coroutine function or a plain one."""
        return await self._do(name, key, fn, args)

    async def _do(self, name: str, key: str | int | None, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        step_id, done = self._core.plan_do(name, key)
        if not done:
            async with self._open(step_id, name, "do", key) as result:
                value = fn(*args)
                value = await value if inspect.isawaitable(value) else value
                result.append(f.given_back(f"the function of step {name}", value))
        self._core.passed.add(step_id)
        return copy.deepcopy(self._core.result_of(step_id))

    def done(self, name: str, key: str | int | None = None) -> bool:
        """Whether this step is complete; then the agent has passed it."""
        return self._core.has_done(name, key)

    def each(self, name: str, items: Iterable[T], key: Callable[[T], str] = str) -> Iterator[T]:
        """The items whose step is still to be done: a loop that gives each its step survives a crash."""
        return (item for item in items if not self.done(name, key(item)))

    @asynccontextmanager
    async def _open(
        self, step_id: str, name: str, kind: str, key: str | int | None, *, blind: bool = False
    ) -> AsyncGenerator[list[Any]]:
        drive, core = self._driver.drive, self._core
        entry = await drive(core.begin(step_id, name, kind, None if key is None else str(key), blind=blind))
        self._driver.begin()
        token, result = TOOL_CONTEXT.set(_Inside(core, entry, self)), list[Any]()
        try:
            yield result
            await self.check_awaited(entry)
            self.check_memory()
            await drive(core.complete(entry, result[0] if result else None))
        except GeneratorExit:
            if not self.loop.is_closed():  # else nobody is there to be told
                core.left_half_way(entry)
            raise
        except BaseException as error:  # noqa: BLE001 - judged, and raised anew
            await self._failed(entry, error)
        finally:
            self.made = [each for each in self.made if each[2] is not entry]
            self.forget_lent()
            core.leave(entry)
            with suppress(ValueError):  # closed from another context
                TOOL_CONTEXT.reset(token)

    async def _failed(self, entry: Entry, error: BaseException) -> NoReturn:
        """What leaves a step: a stop leaves it open; anything else fails it, when none of its calls is in flight."""
        core = self._core
        stop = core.stopped or f.stop_in(error)
        cancelled = isinstance(error, asyncio.CancelledError)
        if stop is None and (core.leaving or not (isinstance(error, Exception) or cancelled)):
            stop = error
        if stop is not None:
            core.stop(stop)
        await self.drain(entry)
        stop = core.stopped or stop
        if stop is not None:
            if stop is error or (cancelled and core.leaving):
                raise error
            raise f.again(stop) from error
        leaf = TimeoutError("the step was cancelled") if cancelled else error
        failure = await self._driver.drive(core.fail(entry, leaf, cut=cancelled))
        if cancelled:
            raise error  # swallowing it would break the timeout or the group that sent it
        raise failure from error

    async def drain(self, entry: Entry) -> None:
        """What is in flight: cut what can be cut, await the rest. Held back from every cancel."""
        told: set[asyncio.Task[Any]] = set()
        while tasks := {t for t in entry.flights.values() if t is not asyncio.current_task() and not t.done()}:
            for task in tasks - told:
                task.cancel()
            told |= tasks
            with suppress(asyncio.CancelledError):
                await asyncio.wait(tasks, timeout=1)

    # Calls.

    @overload
    async def call(self, tool: Tool[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def call(self, tool: Tool[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...

    @_awaited
    async def call(self, tool: Tool[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call a tool: its recorded outcome, or a live one; see `Run.call`."""
        bound = tool.bind(args, kwargs)
        return await self._driver.drive(self._caller.call(ToolTarget(tool), bound, tool.own_key(bound)))

    @_awaited
    async def parallel(self, asks: Sequence[tuple[Tool[..., Any], Mapping[str, Any]]]) -> list[Any]:
        """Calls in flight together: [(tool, kwargs), …]; outcomes in that order, failures as values."""
        tasks = [self.call(tool, **kwargs) for tool, kwargs in asks]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, f.Told | f.ResultUnusable):
                raise outcome
        return list(outcomes)

    @_awaited
    async def model(self, name: str, request: Json, call: Callable[[Json], Any], **how: Unpack[ModelOptions]) -> Json:
        """Ask a model: paid for once; see `Run.model`. `call` may be a coroutine function."""
        return await self._driver.drive(self._caller.call(ModelTarget(name, call, **how), {"request": plain(request)}))

    # Waiting and ending.

    @_awaited
    async def ask(
        self, action: str, *, key: str | int | None = None, reason: str = "", **args: Json
    ) -> dict[str, Json]:
        """Ask a person; see `Run.ask`."""
        stored: dict[str, Json] = plain(args)
        if not self._core.inside:
            answer: dict[str, Json] = await self._do(f"ask {action}", key, self._ask_inside, (action, stored, reason))
            return answer
        return await self._ask_inside(action, stored, reason)

    async def _ask_inside(self, action: str, args: dict[str, Json], reason: str) -> dict[str, Json]:
        return await self._driver.drive(self._caller.ask(action, args, tellable(reason)))

    @_awaited
    async def signals(self) -> list[Json]:
        """The payloads of the inbox of the open step; see `Run.signals`."""
        return await self._driver.drive(self.take_signals(self._caller.entry()))

    @_awaited
    async def complete(self, output: Json) -> NoReturn:
        """End the run; see `Run.complete`."""
        await self._driver.drive(self._core.end(e.RunCompleted(f.given_back("the agent", output))))
        raise AssertionError

    @_awaited
    async def fail(self, message: str, *, type: str = "Failed") -> NoReturn:
        """End the run as failed; see `Run.fail`."""
        await self._driver.drive(self._core.end(e.RunFailed(f.error_of(f.Failed(type, message))[0], [], "error")))
        raise AssertionError


def carried(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs in the context of now: for pools whose threads don't carry it by themselves."""
    context = contextvars.copy_context()
    return lambda *args, **kwargs: context.copy().run(fn, *args, **kwargs)
