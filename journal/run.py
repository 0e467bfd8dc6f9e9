"""`Run`: what an agent works with, in plain threads. It performs what the core asks for, and adds nothing."""

from __future__ import annotations

import contextvars
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NoReturn, ParamSpec, TypeVar, Unpack

from runjournal.engine import failures as f
from runjournal.engine.asking import AskOptions, worded
from runjournal.engine.callees import ModelOptions, Target
from runjournal.engine.children import ChildOptions
from runjournal.engine.commands import Append, Command, Ended, Invoke, Made, Until
from runjournal.engine.context import Context
from runjournal.engine.driver import finished
from runjournal.engine.parts import RunParts
from runjournal.engine.script import Entry
from runjournal.engine.tools import Tool
from runjournal.log.base import Event, Json
from runjournal.log.guard import Signal, free, hold, take_again
from runjournal.log.limits import thread_look_s, working_wait_s

from .provider_shapes import GrowingHistory
from .turn import AgentTurn, Approve

P = ParamSpec("P")
R = TypeVar("R")


class _Nobody(BaseException):
    """Never raised: in plain threads nobody is cancelled."""


class SyncDriver:
    """Performs commands in the thread that asks. One lock is held around all but bodies and waits."""

    awaits = False
    cancellation = _Nobody
    calm = True
    taken = False  # an append is over before its verb goes on, under the lock
    leaving = False  # nobody is cancelled

    def __init__(self, append: Callable[[tuple[Event, ...] | Made], Any]) -> None:
        self._append = append
        self.append_now: Callable[[tuple[Event, ...] | Made], Any] = append
        self.at_once: Callable[[tuple[Event, ...] | Made], Any] | None = append
        # Taken as it is, never through the condition: that one's own `with` is Python, and an interrupt inside it would
        # leave the lock to a thread that never gives it back.
        self.lock = threading.RLock()
        self._bell = threading.Condition(self.lock)
        self.threads: set[threading.Thread] = set()
        self.left: list[Exception] = []  # what has left those of them that the step hasn't been told of
        self._sending: set[threading.Thread] = set()
        self._waiting: set[threading.Thread] = set()  # those that wait in a verb, or for another thread
        self._body: threading.Thread | None = None  # the one that has begun the open step
        self._acted_s = 0.0

    def alone(self) -> bool:
        """Whether no other thread can ask: this is none of `run.thread`, and none of those lives.

        One that the run doesn't know, which carries its context all the same, counts while its call is in flight.
        """
        return not any(each.is_alive() for each in list(self.threads)) and self._sending <= {threading.current_thread()}

    @property
    def working(self) -> bool:
        """Whether another thread of the step is between two verbs, and one of them did something not long ago."""
        if not self.threads:
            return False
        others = {self._body, *(each for each in list(self.threads) if each.is_alive())}
        others -= {None, threading.current_thread()} | self._waiting
        return bool(others) and time.monotonic() - self._acted_s < working_wait_s

    def joins(self, join: Callable[[], None]) -> None:
        """Have this thread wait until another one has ended: meanwhile it isn't at work."""

        def waits() -> None:
            self._waiting.add(threading.current_thread())
            self._bell.notify_all()

        try:
            hold(self.lock, waits)
            join()
        finally:
            self._waiting.discard(threading.current_thread())

    def begin(self, thread: threading.Thread) -> None:
        """Start a thread that may ask."""

        def start() -> None:
            self.threads.add(thread)
            self._acted_s = time.monotonic()
            thread.start()

        hold(self.lock, start)  # nobody joins it before it runs, and it can't be over before it is known

    def unlock(self) -> None:
        """Let go of the lock, as often as this thread has it."""
        free(self.lock)

    def told_again(self, stop: BaseException) -> BaseException:
        """Return the same stop: an interrupt reaches whoever has begun the threads."""
        return f.anew(stop)

    def current(self) -> threading.Thread:
        """Return the thread that asks."""
        return threading.current_thread()

    def ring(self) -> None:
        """Wake all who wait."""
        with self.lock:
            self._bell.notify_all()

    def settle(self) -> None:
        """Do nothing: threads run by themselves. Somebody has asked for something."""
        with self.lock:
            self._acted_s = time.monotonic()
            self._bell.notify_all()

    async def take_floor(self, *, through: bool = False) -> None:
        """Do nothing: the lock is the floor."""

    def give_floor(self) -> None:
        """Do nothing: nobody has taken it."""

    def absorbed(self) -> BaseException | None:
        """Return None: nobody is cancelled."""
        return None

    def leave_floor(self, *, cancelled: bool) -> None:
        """Do nothing: the lock is the floor, and nobody is cancelled."""

    # Performing.

    async def perform(self, command: Command) -> Any:
        match command:
            case Append(events):
                return self._append(events)
            case Until(ready, bound_s, _):
                return self._wait(ready, bound_s)
            case Invoke():
                return self._unlocked(command)

    def _unlocked(self, command: Invoke) -> Ended:
        """Have a body run without the lock."""
        me = threading.current_thread()
        try:
            self._sending.add(me)
            self.lock.release()
            return self._invoke(command)
        finally:
            take_again(self.lock)
            self._sending.discard(me)
            self._acted_s = time.monotonic()

    def check(self, target: Target) -> None:
        """Raise Mistake for a coroutine function: nobody would await its body."""
        if target.is_async:
            raise f.Mistake(f"{target.name} is a coroutine function: {AWAITED}")

    async def value(self, who: str, value: Any) -> Any:
        """Return what a function of the agent's returned. Raises Mistake for a coroutine, which nobody would await."""
        if inspect.iscoroutine(value):
            value.close()
            raise f.Mistake(f"{who} gives a coroutine: {AWAITED}")
        return value

    async def together(self, works: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        """Do one after another."""
        return [await work() for work in works]

    # The step of a thread.

    def begin_step(self, entry: Entry) -> None:
        """Do nothing: every thread of `run.thread` is begun in a step, and belongs to it."""
        self.left.clear()
        self._body = threading.current_thread()

    async def end_step(self, entry: Entry) -> None:
        """Its end joins its threads. Raises what has left one of them: it is the step's."""
        self._join()
        if self.left:
            raise self.left[0]

    async def break_step(self, entry: Entry, error: BaseException | None = None) -> None:
        """Its threads end by themselves: if the run has stopped, at their next verb. What left them is noted."""
        self._join()
        for other in self.left:
            if error is not None and other is not error:
                stored, _ = f.error_of(other)
                BaseException.add_note(error, f"a thread of the step ended with {stored['type']}: {stored['message']}")

    def abandon_step(self, stop: Callable[[], None]) -> None:
        """Stop the run: the generator that holds the step was closed."""
        stop()
        self._join()

    def forget_step(self, entry: Entry) -> None:
        """Nobody is its body any more."""
        self._body = None

    def _join(self) -> None:
        while others := self._others():
            for thread in others:  # it may have begun another one
                thread.join()

    def _others(self) -> list[threading.Thread]:
        def look() -> list[threading.Thread]:
            for dead in [each for each in list(self.threads) if not each.is_alive()]:
                self.threads.discard(dead)
                self.left.append(InterruptedError("a thread of the step was ended from outside before it began"))
            return [each for each in list(self.threads) if each is not threading.current_thread()]

        return hold(self.lock, look)  # one that is being begun isn't there before it runs

    def _wait(self, ready: Callable[[], object], bound_s: float | None) -> bool:
        if ready():
            return True
        if self.alone():
            return False
        me, until = threading.current_thread(), None if bound_s is None else time.monotonic() + bound_s
        try:
            self._waiting.add(me)
            self._bell.notify_all()  # the others may wait for nobody else
            while not (ready() or self.alone()):
                left = thread_look_s if until is None else min(thread_look_s, until - time.monotonic())
                if left <= 0:
                    break
                self._bell.wait(left)  # one that was ended from outside rings nobody
        finally:
            self._waiting.discard(me)
        return bool(ready())

    def _invoke(self, command: Invoke) -> Ended:
        if command.timeout_s is None:
            return _ended(command.body)
        return self._timed(command, command.timeout_s)

    def _timed(self, command: Invoke, timeout_s: float) -> Ended:
        """Run a body with a bound in a thread of its own. What it comes to after the bound is told to `late`."""
        lock, done, found = threading.Lock(), Signal(), list[Ended]()
        context, given_up = contextvars.copy_context(), False

        def work() -> None:
            ended = context.run(_ended, command.body)
            with lock:
                found.append(ended)
                late = given_up
            done.set()
            if late:
                with self.lock:
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


class StepThread(threading.Thread):
    """A thread of a step. Who joins it waits; with a bound he goes on by himself, and is at work."""

    def __init__(self, driver: SyncDriver, work: Callable[[], None]) -> None:
        super().__init__(target=work, daemon=True)
        self._driver = driver

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        if timeout is not None:
            super().join(timeout)
        else:
            self._driver.joins(super().join)


AWAITED: Final = "make it a plain function, or the agent an async one, for AsyncJournal.run_async"


class Run(Context):
    """A run that this process owns. An agent is a function of it, called again after a crash."""

    def __init__(self, parts: RunParts, driver: SyncDriver) -> None:
        super().__init__(parts, lambda tool, args, kwargs: self.call(tool, *args, **kwargs))
        self._driver = driver
        self._history = GrowingHistory()  # of its turns

    # Steps.

    @contextmanager
    def step(self, name: str, key: str | int | None = None, *, repeat: bool = False) -> Generator[None]:
        """Open a step: a transaction on messages, memory and plan.

        A name and key are for one step; with `repeat`, a name is for many. Raises StepDone, StepFailed, NestedStep, and
        stops: PlanChanged, Fenced, Cancelled.
        """
        with self._asked(name, key, repeat=repeat) as block, block:
            yield

    def do(self, name: str, fn: Callable[..., R], *args: Any, key: str | int | None = None) -> R:
        """Return the recorded result of a step: `fn(*args)` is called once, whatever crashes.

        With a `key` it is one of many of its name. What `fn` returns must be storable. Raises StepDone, StepFailed,
        Unstorable, and stops.
        """
        result: R = finished(self._do(name, key, self._made(name, fn, args)))
        return result

    def thread(self, fn: Callable[..., Any], *args: Any) -> threading.Thread:
        """Start a thread that belongs to the open step: its calls are the step's, and the step's end joins it.

        An exception that leaves it fails the step, as if its body had raised it.
        """
        self._caller.entry()
        context = contextvars.copy_context()

        def asking() -> None:
            try:
                context.run(fn, *args)
            except BaseException as error:  # noqa: BLE001 - it is the step's, and must not get lost with its thread
                if (stop := f.stop_in(error)) is not None or not isinstance(error, Exception):
                    self._core.stop(stop or error)
                else:
                    self._driver.left.append(error)
            finally:
                self._driver.threads.discard(thread)
                self._driver.ring()

        def work() -> None:
            try:
                asking()
            finally:  # an interrupt may have left the lock to this thread, which won't be there any more
                self._driver.unlock()

        thread = StepThread(self._driver, work)
        self._driver.begin(thread)
        return thread

    # Calls.

    def call(self, tool: Tool[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a tool: return its recorded outcome, or a live one.

        Raises CallFailed, for args that it doesn't take, too; CallOutcomeUnknown, KeyReused, ResultUnusable, NotInStep.
        """
        result: R = finished(self._core.drive(self._caller.call(*self._bound(tool, args, kwargs))))
        return result

    def parallel(self, asks: Sequence[tuple[Tool[..., Any], Mapping[str, Any]]]) -> list[Any]:
        """Make calls that are in flight together: [(tool, kwargs), …].

        Return outcomes in that order, failures as values.
        """
        return self._parts.drive(self._parallel(asks))

    def model(self, name: str, request: Json, call: Callable[[Json], Any], **how: Unpack[ModelOptions]) -> Json:
        """Ask a model; return its answer, which is paid for once.

        `call(request)` asks it, and returns JSON or an object of a provider's client. `check(answer)` says whether it
        can be used: if it raises or returns False, the model is asked again. `into(answer)` parses what comes back.
        `usage(answer)` and `cost(answer)` say what it took, {input, output, cache_read, cache_write} and {amount,
        currency}, where the answer doesn't. Raises CallFailed, NotInStep.
        """
        return self._parts.drive(self._model(name, request, call, how))

    def turn(
        self,
        model: str,
        request: Mapping[str, Json],
        tools: Sequence[Tool[..., Any]],
        call: Callable[[Json], Any],
        *,
        approve: Approve = (),
        name: str = "turn",
    ) -> str | None:
        """Take one turn of an agent's loop, outside a step; return the text of the last answer, None before that.

        `while (answer := run.turn(…)) is None: pass` is a whole agent. A turn asks the model, in a step of its own, and
        makes the tool calls of its answer in the next step; after a crash it goes on with the answer that is on record.
        `call(request)` asks the model, of Anthropic's Messages API or OpenAI's chat, and returns what its client
        returns. The messages of the run stand behind those of `request`; where there are none, the run's input is the
        first one. The model is told of failures, of names and args that no tool has, and of a person's no. Before a
        tool in `approve`, or for which `approve(name, args)` is true, a person is asked, who may edit the args; what
        it returns may be a dict that says how: {reason, risk, schema, expires_in, default}, as of `ask`.
        """
        return finished(AgentTurn(self._turn_verbs(), model, request, tools, call, approve, name, self._history).take())

    # Children.

    def spawn(self, agent: Callable[[Run], Any], *, input: Json = None, **how: Unpack[ChildOptions]) -> str:
        """Begin a run of its own for an agent, a child; return its id, for `wait_child`.

        It is begun once for each ask: a step that is entered again finds the same one. Its id is made of this run's and
        of the ask, or is `run_id`, which is one child in all of the run. `kind` is the agent's name, unless it says
        another. `budget` is reserved out of this run's own; what is left goes back when the child has ended. Raises
        CallFailed where the budget has nothing left for it, KeyReused where another run has the `run_id`, NotInStep.
        """
        return finished(self._core.drive(self._spawn(agent, input, how)))

    def wait_child(self, child_id: str, agent: Callable[[Run], Any] | None = None) -> Json:
        """Return the output of a child, once it has ended: it is run here, unless another process runs it.

        What it waits for, this run waits for. `agent` is needed where the child was begun by another process, in
        another step, and its agent isn't found by its name. Raises ChildFailed, NotAChild, NotInStep.
        """
        return finished(self._core.drive(self._parts.children.wait(child_id, agent)))

    def call_child(self, agent: Callable[[Run], Any], *, input: Json = None, **how: Unpack[ChildOptions]) -> Json:
        """Begin a child and wait for it; return its output: see `spawn` and `wait_child`."""
        return self.wait_child(self.spawn(agent, input=input, **how), agent)

    # Waiting and ending.

    def ask(
        self,
        action: str,
        *,
        args: Mapping[str, Json] | None = None,
        key: str | int | None = None,
        **how: Unpack[AskOptions],
    ) -> dict[str, Json]:
        """Ask a person; return the approved args. The run waits, and leaves this process.

        `args` are what is asked about, by name: the person may edit them. `reason` says why it is asked, `risk` in a
        word how bad a wrong yes is. `choices` are texts of which the person picks one, which comes back as `choice`
        beside the args. `schema` says what the args may be edited to, {name: {"type": …, "maximum": …}}, a subset of
        JSON Schema (`runjournal.engine.arguments`). After `expires_in`, in seconds or as a timedelta, it is a no, or
        what `default` is: args, or one of the choices. Outside a step it is a step of its own, `ask <action>`; in a
        loop it takes a `key`. Raises Rejected, with the person's `note`.
        """
        return finished(self._ask(key, worded(action, args, how)))

    def ask_all(self, questions: Sequence[Mapping[str, Any]]) -> list[dict[str, Json] | f.Rejected]:
        """Ask several questions at once, inside a step; return what came of each, a no as a value, in their order.

        Each is the keyword arguments of `ask`: {"action": …, "args": …, "risk": …}. People may answer in any order.
        """
        return finished(self._core.drive(self._ask_all(questions)))

    def sleep(self, *, for_s: float | None = None, until: datetime | None = None, key: str | int | None = None) -> None:
        """Sleep for so many seconds, or until a time (a datetime with its zone), through crashes and restarts.

        The time is on record when it is asked for first: whoever goes on with the run sleeps for what is left of it. A
        sleep of a few seconds is slept in this process; in a longer one the run waits, and leaves it: whoever runs it
        is told RunNotDue, with the time. Outside a step it is a step of its own, `sleep <n>s`; in a loop it takes a
        `key`. Raises WrongArgument.
        """
        finished(self._sleep(for_s, until, key))

    def wait_signal(self, name: str, timeout_s: float | None = None, *, key: str | int | None = None) -> Json:
        """Wait for a signal of this name; return its payload, or None if `timeout_s` seconds are over first.

        It is the oldest one that nothing has taken, whether it has come before or comes now; the step takes it if it
        completes. The run waits, and leaves this process. Outside a step it is a step of its own, `wait_signal <name>`;
        in a loop it takes a `key`. Raises WrongArgument.
        """
        return finished(self._wait_signal(name, timeout_s, key))

    def signals(self) -> list[Json]:
        """Return the payloads in the inbox of the open step: what had arrived when its attempt began.

        The step takes them if it completes. What `wait_signal` has taken isn't among them.
        """
        return self._parts.drive(self._signals())

    def complete(self, output: Json) -> NoReturn:
        """End the run; to return from the agent is the same. Raises StepOpen inside a step."""
        self._parts.drive(self._complete(output))
        raise AssertionError

    def fail(self, message: str, *, type: str = "Failed") -> NoReturn:
        """End the run as failed: no round follows. Whoever runs it gets RunFailed. Raises StepOpen inside a step.

        What of the message can't be stored is escaped, as in the message of an exception; the rest is kept.
        """
        self._parts.drive(self._fail(message, type))
        raise AssertionError
