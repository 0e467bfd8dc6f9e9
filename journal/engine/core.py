"""The core of a run: its stops, its appends, and how a verb is driven. It does nothing by itself.

Its verbs are generators that yield commands (`commands.py`) to a driver, sync or asyncio, and are sent the outcomes: so
no rule exists twice. The ideas that carry it:

* a step is a transaction on context: messages, memory and plan are an overlay that its completion merges;
* history is what the agent was told in the open attempt; a step that is entered again is told the same, in order;
* what identifies a step or a call comes from the log and from what is asked, never from how often a process asked;
* what may have happened and isn't known stays on record until somebody says, and is never sent again before.

Each rule has a number, a reason and tests in docs/explanation/engine.md. Here are above all engine.md X1 to X4 (stops);
`order.py` has in which order the agent is told, `steps.py` which step is next, `calls.py` and `attempts.py` the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, NoReturn, TypeVar

from runjournal.log import events as e
from runjournal.log.base import Event, RecordedEvent
from runjournal.log.clock import timestamp
from runjournal.log.errors import CancelRequested, InvalidArgument, StaleEpoch, StoreError, Unstorable
from runjournal.projections.state import RunState

from . import failures as f
from .budget import exceeded
from .commands import Append, Command, Invoke, Until, Verb
from .driver import Driver
from .lineage import Lineage
from .media import RunMedia
from .tools import IN_TOOL, USES_RUN

T = TypeVar("T")


class Core:
    """The core of a run: one call of an agent in one process, which owns the run with this epoch."""

    media: RunMedia
    """The bytes of the run."""

    def __init__(self, lineage: Lineage, epoch: int, driver: Driver) -> None:
        self.lineage = lineage
        self.epoch = epoch
        self.driver = driver
        self.stopped: BaseException | None = None
        self.refused: f.StepDone | None = None  # for what was asked last; whoever swallows it may enter the open step
        self.looked = False  # the agent has looked at what the log knows of its context
        self.blind = False  # another process began this loop, and the agent must look before it does anything
        self._state: RunState | None = None  # of the verb that runs now, in the thread `_reader`
        self._reader = 0
        self._now = False  # a verb runs that can't wait, not even for an append

    # What the log says.

    @property
    def state(self) -> RunState:
        """Return the fold of the run as of this process's last append; what others appended until then is in it.

        A verb takes it once, and again after each command: only a command appends, or lets time pass.
        """
        if self._reader != get_ident():
            return self.lineage.state()
        state = self._state
        if state is None:
            state = self._state = self.lineage.state()
        return state

    async def drive(self, verb: Verb[T], *, waits: bool = True, cancelled: bool = True) -> T:
        """Run a verb to its end; `waits=False`: it waits for nothing, and appends at once.

        While an append is under way that is waited for, no other verb of the run goes on: between an append and what it
        means nothing comes. A cancel that came meanwhile is raised at the verb's end, or, with `cancelled=False`, left
        to whoever asks for it.
        """
        self.not_in_tool()  # before the lock, which another thread may hold until this one has ended
        driver = self.driver
        try:
            if waits and driver.taken:
                await driver.take_floor(through=True)  # whoever is cancelled meanwhile has asked all the same
            with driver.lock:
                return await self._driven(verb, waits=waits, cancelled=cancelled)
        except BaseException:
            driver.unlock()
            raise

    async def _driven(self, verb: Verb[T], *, waits: bool, cancelled: bool) -> T:
        driver, me, now = self.driver, get_ident(), self._now
        try:
            self._reader, self._now = me, not waits
            command = next(verb)
            while True:
                self._reader, self._state, self._now = 0, None, now
                outcome, error = await self._performed(command, waits=waits)
                self._reader, self._now = me, not waits
                command = verb.send(outcome) if error is None else verb.throw(error)
        except StopIteration as end:
            value: T = end.value
            return self._given_back(value, cancelled=waits and cancelled)
        except Exception as error:
            if isinstance(error, f.BROKEN):
                self.stop(error)
            raise
        except (driver.cancellation, GeneratorExit):
            raise  # its asker's alone
        except BaseException as interrupt:  # whoever swallows it has been stopped all the same
            self.stop(interrupt)
            raise
        finally:
            self._reader, self._state, self._now = 0, None, now
            if waits:
                driver.leave_floor(cancelled=cancelled)

    def locked(self, work: Callable[[], T]) -> T:
        """Do a piece of work under the driver's lock, which a thread that is in a verb has already."""
        if self._reader == get_ident():
            return work()
        try:
            with self.driver.lock:
                return work()
        except BaseException:
            self.driver.unlock()
            raise

    async def _performed(self, command: Command, *, waits: bool) -> tuple[Any, BaseException | None]:
        """Have a command performed; return its outcome, or the error, once the verb may go on with it."""
        driver = self.driver
        outcome: Any = None
        error: BaseException | None = None
        if driver.taken and waits and not isinstance(command, Append):
            driver.give_floor()
        try:
            outcome = await driver.perform(command)
        except GeneratorExit:
            raise
        except BaseException as raised:  # noqa: BLE001 - it is the verb's to judge
            error = raised
        if driver.taken and waits:
            await driver.take_floor(through=True)
            if error is None and not isinstance(command, Append) and (late := driver.absorbed()) is not None:
                if not isinstance(command, Invoke):
                    return None, late
                outcome = outcome._replace(cancelled=outcome.cancelled or late)
        return outcome, error

    def _given_back(self, value: T, *, cancelled: bool) -> T:
        """Return what a verb came to. Raises the cancel that came while it couldn't be interrupted."""
        late = self.driver.absorbed() if cancelled else None
        if late is not None:
            raise late
        return value

    # Stops.

    @property
    def leaving(self) -> bool:
        """Return whether the run's caller was cancelled: whoever is cancelled then, is so with the run."""
        return self.driver.leaving

    def leave(self) -> f.Released:
        """Stop the run because its caller was cancelled; return that stop."""
        stop = f.Released("the run's caller cancelled it")
        self.stop(stop)
        return stop

    def alive(self) -> None:
        """Raise the stop of the run again, if there was one: catching it is of no use."""
        if self.refused is not None:
            self.stop(self.refused)
        if self.stopped is not None:
            raise self.driver.told_again(self.stopped)
        if IN_TOOL.get() is not None:
            self.not_in_tool()

    def not_in_tool(self) -> None:
        """Raise ToolUsesRun in a tool of this run, or in a function that the run calls by itself."""
        if IN_TOOL.get() is self:
            raise f.ToolUsesRun(USES_RUN)

    def stop(self, stop: BaseException) -> None:
        """Note that the run leaves this process; the first stop counts."""
        if self.stopped is None:
            self.stopped = stop
        self.locked(self.driver.ring)

    def refuse(self, mistake: f.StepDone) -> NoReturn:
        """Refuse to enter a block twice.

        Going on behind it would leave out the rest of its `try`, or lose its result.
        """
        self.refused = mistake
        raise mistake

    def halt(self, stop: BaseException) -> NoReturn:
        """Stop the run, and raise the stop."""
        self.alive()
        self.stop(stop)
        raise stop

    def stop_if_blind(self, where: str) -> None:
        """Stop a loop that counts on the variables of one process: the next process would do its first turns again."""
        if self.blind and not self.looked:
            self.halt(
                f.PlanChanged(
                    f"{where} in a later turn of a loop that another process began, whose variables are gone: take the "
                    "turn from run.state (memory, messages, plan) before doing anything, or use run.each",
                    self.state.steps.open.name if self.state.steps.open else "",
                )
            )

    def check_budget(self, *, step: bool = False) -> Verb[None]:
        """End the run if its budget is used up: before a new step, and before each paid call."""
        if self.state.status.budget is None:
            return
        over = exceeded(self.state, timestamp(self.lineage.clock.now()), step=step, paid=not step)
        if over is not None:
            yield from self.append(e.RunFailed(over.error, [], over.cause))
            self.halt(f.Completed())

    # Appending.

    def append(self, *events: Event) -> Verb[int]:
        """Append as the owner; return the place of the last event. Raises Fenced and Cancelled where they are found."""
        self.alive()
        if self.blind and events[0].TYPE not in ("step.failed", "signal.taken"):
            self.stop_if_blind(events[0].TYPE)
        try:  # as `record` does
            return (yield from self.commit(Append(events)))
        except StoreError as error:
            self.stop(error)
            raise

    def record(self, *events: Event) -> Verb[int]:
        """Append what has happened, even if the run was stopped meanwhile.

        A store that can't be written now is no failure of the agent's: the run stops here, and can go on later.
        """
        try:
            return (yield from self.commit(Append(events)))
        except StoreError as error:
            self.stop(error)
            raise

    def commit(self, append: Append) -> Verb[int]:
        """Append as the owner; return the place of the last event. A stop that is found here stops the run.

        A driver that appends at once is asked directly: nobody up the verb has to be resumed for that.
        """
        records: list[RecordedEvent]
        try:
            at_once = self.driver.at_once
            if at_once is None and self._now:
                at_once = self.driver.append_now
            if at_once is None:
                records = yield append
            else:
                self._reader, self._state = 0, None  # as at any command, see `drive`
                try:
                    records = at_once(append.events)
                finally:
                    self._reader = get_ident()
        except StaleEpoch as error:
            self.stop(f.Fenced(str(error)))
            raise f.Fenced(str(error)) from error
        except CancelRequested as error:
            self.stop(f.Cancelled(str(error)))
            raise f.Cancelled(str(error)) from error
        except (InvalidArgument, Unstorable) as error:  # nothing was written: values were checked before, it is a name
            raise f.WrongArgument(str(error)) from error
        return self.lineage.offset + records[-1].seq

    # Waiting.

    def until(
        self, ready: Callable[[], object], bound_s: float | None, turn: tuple[int, int] | None = None
    ) -> Verb[bool]:
        """Wait; return False if it took too long. A stop of the run ends every wait. `turn`: see `Until`."""
        came = self.stopped is not None or ready()
        if not came:  # else nobody has to be asked
            came = yield Until(lambda: self.stopped is not None or ready(), bound_s, turn)
        self.alive()
        return bool(came)
