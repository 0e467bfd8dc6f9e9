"""`Run`: what an agent works with, in plain threads. It performs what the core asks for, and adds nothing."""

from __future__ import annotations

import contextvars
import copy
import inspect
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn, ParamSpec, TypeVar, Unpack

from runjournal.engine import failures as f
from runjournal.engine.callees import ModelOptions, ModelTarget, Target, ToolTarget
from runjournal.engine.calls import Caller
from runjournal.engine.commands import Append, Command, Ended, Invoke, Made, Until, Verb
from runjournal.engine.context import Context
from runjournal.engine.core import Core
from runjournal.engine.script import Entry
from runjournal.engine.tools import TOOL_CONTEXT, Tool
from runjournal.log import events as e
from runjournal.log.base import Event, Json
from runjournal.log.codec import plain, tellable

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Nobody(BaseException):
    """Never raised: in plain threads nobody is cancelled."""


class SyncDriver:
    """Performs commands in the thread that asks. One lock is held around all but bodies and waits."""

    calm = True

    def __init__(self, append: Callable[[tuple[Event, ...] | Made], Any]) -> None:
        self._append = append
        self.fault: Callable[[BaseException], None] = lambda _: None  # is told when the store failed a verb
        self._changed = threading.Condition(threading.RLock())
        self.threads: set[threading.Thread] = set()

    def alone(self) -> bool:
        """Whether no other thread can ask: this is none of `run.thread`, and none of those lives."""
        return not self.threads

    def begin(self, thread: threading.Thread) -> None:
        """Start a thread that may ask."""
        with self._changed:  # nobody joins it before it runs, and it can't be over before it is known
            self.threads.add(thread)
            thread.start()

    def current(self) -> threading.Thread:
        """The thread that asks."""
        return threading.current_thread()

    def ring(self) -> None:
        """Wake whoever waits."""
        with self._changed:
            self._changed.notify_all()

    def settle(self) -> None:
        """Threads run by themselves."""
        self.ring()

    def now_s(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def drive(self, steps: Verb[T]) -> T:
        """Run a verb of the core to its end."""
        with self._changed:
            try:
                command = next(steps)
                while True:
                    try:
                        outcome = self._perform(command)
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

    def _perform(self, command: Command) -> Any:
        match command:
            case Append(events):
                return self._append(events)
            case Until(ready, bound_s):
                return self._wait(ready, bound_s)
            case Invoke():
                self._changed.release()
                try:
                    return self._invoke(command)
                finally:
                    self._changed.acquire()

    def _wait(self, ready: Callable[[], object], bound_s: float | None) -> bool:
        if ready():
            return True
        if self.alone():
            return False
        self._changed.wait_for(lambda: bool(ready()) or self.alone(), bound_s)
        return bool(ready())

    def _invoke(self, command: Invoke) -> Ended:
        if command.timeout_s is None:
            return _ended(command.body)
        return self._timed(command, command.timeout_s)

    def _timed(self, command: Invoke, timeout_s: float) -> Ended:
        """A body with a bound runs in a thread of its own; what it comes to after the bound is told to `late`."""
        lock, done, found = threading.Lock(), threading.Event(), list[Ended]()
        context, given_up = contextvars.copy_context(), False

        def work() -> None:
            ended = context.run(_ended, command.body)
            with lock:
                found.append(ended)
                late = given_up
            done.set()
            if late:
                with self._changed:
                    command.late(ended)

        threading.Thread(target=work, daemon=True).start()
        try:
            done.wait(timeout_s)
        finally:  # an interrupt, too, leaves it to itself
            with lock:
                given_up = not found
        return found[0] if found else Ended(cut="timeout")


def _ended(body: Callable[[], Any]) -> Ended:
    try:
        return Ended(body())
    except BaseException as error:  # noqa: BLE001 - how it ended is the core's to judge
        return Ended(error=error)


def _plain(target: Target) -> Target:
    """What a plain agent can call: nobody would await the body of a coroutine function."""
    if target.is_async:
        raise f.Mistake(f"{target.name} is a coroutine function: {AWAITED}")
    return target


def _in_thread(name: str, value: R) -> R:
    """What the function of a `do` gave, if that isn't a coroutine that nobody would await."""
    if inspect.iscoroutine(value):
        value.close()
        raise f.Mistake(f"the function of step {name} gives a coroutine: {AWAITED}")
    return value


AWAITED: Final = "make it a plain function, or the agent an async one, for AsyncJournal.run_async"


class SyncCore(Core):
    """The core, where the step of a thread is that of its context."""

    cancellation = _Nobody

    @property
    def inside(self) -> bool:
        """Whether this context is that of the open step."""
        caller = TOOL_CONTEXT.get()
        return isinstance(caller, _Inside) and caller.core is self and caller.entry is self.entry and caller.entry.open


class _Inside:
    """The step of a context: what a tool that is called there goes to."""

    def __init__(self, core: SyncCore, entry: Entry, run: Run) -> None:
        self.core = core
        self.entry = entry
        self.run = run

    def call_tool(self, tool: Tool[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The call, journalled."""
        return self.run.call(tool, *args, **kwargs)


class Run(Context):
    """A run that this process owns. An agent is a function of it, called again after a crash.

    `memory` is its working memory, a mapping: copies come out, what is assigned inside a step is recorded.
    """

    def __init__(self, core: SyncCore, driver: SyncDriver, caller: Caller) -> None:
        super().__init__(core, driver.drive)
        self._core = core
        self._driver = driver
        self._caller = caller

    # Steps.

    @contextmanager
    def step(self, name: str, key: str | int | None = None, *, repeat: bool = False) -> Generator[None]:
        """A step: a transaction on messages, memory and plan.

        A name and key are for one step; with `repeat`, a name is for many. Raises StepDone, StepFailed, NestedStep,
        and stops: PlanChanged, Fenced, Cancelled.
        """
        step_id, kind, blind = self._core.plan_step(name, key, repeat=repeat)
        uses = self._core.state.steps.uses.get(name, 0) if repeat else 0
        with self._open(step_id, name, kind, key, blind=blind):
            yield
        if repeat:
            self._core.turns[name] = uses + 1

    def do(self, name: str, fn: Callable[..., R], *args: Any, key: str | int | None = None) -> R:
        """A step that gives back its recorded result: `fn(*args)` is called once, whatever crashes.

        With a `key` it is one of many of its name. What `fn` returns must be storable. Raises StepDone, StepFailed,
        Unstorable, and stops.
        """
        result: R = self._do(name, key, fn, args)
        return result

    def _do(self, name: str, key: str | int | None, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        step_id, done = self._core.plan_do(name, key)
        if not done:
            with self._open(step_id, name, "do", key) as result:
                result.append(f.given_back(f"the function of step {name}", _in_thread(name, fn(*args))))
        self._core.passed.add(step_id)
        return copy.deepcopy(self._core.result_of(step_id))

    def done(self, name: str, key: str | int | None = None) -> bool:
        """Whether this step is complete; then the agent has passed it."""
        return self._core.has_done(name, key)

    def each(self, name: str, items: Iterable[T], key: Callable[[T], str] = str) -> Iterator[T]:
        """The items whose step is still to be done: a loop that gives each its step survives a crash."""
        return (item for item in items if not self.done(name, key(item)))

    @contextmanager
    def _open(
        self, step_id: str, name: str, kind: str, key: str | int | None, *, blind: bool = False
    ) -> Generator[list[Any]]:
        drive, core = self._driver.drive, self._core
        entry = drive(core.begin(step_id, name, kind, None if key is None else str(key), blind=blind))
        token, result = TOOL_CONTEXT.set(_Inside(core, entry, self)), list[Any]()
        try:
            yield result
            self._join()
            self.check_memory()
            drive(core.complete(entry, result[0] if result else None))
        except GeneratorExit:
            core.left_half_way(entry)
            self._join()
            raise
        except BaseException as error:
            stop = core.stopped or f.stop_in(error)
            if stop is None and not isinstance(error, Exception):
                stop = error
            if stop is not None:
                core.stop(stop)  # its threads are told at their next verb
            self._join()
            stop = core.stopped
            if stop is not None:  # the step stays open
                if stop is error:
                    raise
                raise f.again(stop) from error
            failure = drive(core.fail(entry, error))
            raise failure from error
        finally:
            self.forget_lent()
            core.leave(entry)
            TOOL_CONTEXT.reset(token)

    def _join(self) -> None:
        """The step's end joins its threads."""
        while others := [each for each in list(self._driver.threads) if each is not threading.current_thread()]:
            for thread in others:  # it may have begun another one
                thread.join()

    def thread(self, fn: Callable[..., Any], *args: Any) -> threading.Thread:
        """Start a thread that belongs to the open step: its calls are the step's, and the step's end joins it."""
        self._caller.entry()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                context.run(fn, *args)
            except f.Mistake as mistake:  # it must not get lost with its thread
                self._core.stop(mistake)
            except BaseException as error:
                if not isinstance(error, f.Stop) and type(error) is not type(self._core.stopped):
                    raise
            finally:
                self._driver.threads.discard(thread)
                self._driver.ring()

        thread = threading.Thread(target=work, daemon=True)
        self._driver.begin(thread)
        return thread

    # Calls.

    def call(self, tool: Tool[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a tool: its recorded outcome, or a live one.

        Raises CallFailed, CallOutcomeUnknown, KeyReused, ResultUnusable, NotInStep.
        """
        bound = tool.bind(args, kwargs)
        result: R = self._driver.drive(self._caller.call(_plain(ToolTarget(tool)), bound, tool.own_key(bound)))
        return result

    def parallel(self, asks: Sequence[tuple[Tool[..., Any], Mapping[str, Any]]]) -> list[Any]:
        """Calls in flight together: [(tool, kwargs), …]; outcomes in that order, failures as values."""
        wanted = [
            (_plain(ToolTarget(tool)), bound := tool.bind((), kwargs), tool.own_key(bound)) for tool, kwargs in asks
        ]
        return self._driver.drive(self._caller.parallel(wanted))

    def model(self, name: str, request: Json, call: Callable[[Json], Any], **how: Unpack[ModelOptions]) -> Json:
        """Ask a model: paid for once.

        `call(request)` asks it, and gives JSON or an object of a provider's client. `check(answer)` says whether it can
        be used: one for which it raises or returns False is asked for again. `into(answer)` parses what comes back;
        `usage(answer)` and `cost(answer)` say what it took, {input, output, cache_read, cache_write} and {amount,
        currency}, where the answer doesn't. Raises CallFailed, NotInStep.
        """
        target = _plain(ModelTarget(name, call, **how))
        return self._driver.drive(self._caller.call(target, {"request": plain(request)}))

    # Waiting and ending.

    def ask(self, action: str, *, key: str | int | None = None, reason: str = "", **args: Json) -> dict[str, Json]:
        """Ask a person; gives back the approved args. The run waits, and leaves this process. Raises Rejected.

        Outside a step it is a step of its own, `ask <action>`; in a loop it takes a `key`.
        """
        stored: dict[str, Json] = plain(args)
        if not self._core.inside:
            answer: dict[str, Json] = self._do(f"ask {action}", key, self._ask_inside, (action, stored, reason))
            return answer
        return self._ask_inside(action, stored, reason)

    def _ask_inside(self, action: str, args: dict[str, Json], reason: str) -> dict[str, Json]:
        return self._driver.drive(self._caller.ask(action, args, tellable(reason)))

    def signals(self) -> list[Json]:
        """The payloads of the inbox of the open step: what had arrived when its attempt began.

        The step takes them if it completes.
        """
        return self._driver.drive(self.take_signals(self._caller.entry()))

    def complete(self, output: Json) -> NoReturn:
        """End the run; to return from the agent is the same. Raises StepOpen inside a step."""
        self._driver.drive(self._core.end(e.RunCompleted(f.given_back("the agent", output))))
        raise AssertionError

    def fail(self, message: str, *, type: str = "Failed") -> NoReturn:
        """End the run as failed: no round follows. Whoever runs it gets RunFailed. Raises StepOpen inside a step.

        What of the message can't be stored is escaped, as in the message of an exception; the rest is kept.
        """
        self._driver.drive(self._core.end(e.RunFailed(f.error_of(f.Failed(type, message))[0], [], "error")))
        raise AssertionError
