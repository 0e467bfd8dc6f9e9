"""The core of a run: which step, which call, what a recorded call gives back. It does nothing by itself.

Its verbs are generators that yield commands (`commands.py`) to a driver, sync or asyncio, and are sent the outcomes: so
no rule exists twice. The ideas that carry it:

* a step is a transaction on context: messages, memory and plan are an overlay that its completion merges;
* history is what the agent was told in the open attempt; a step that is entered again is told the same, in order;
* what identifies a step or a call comes from the log and from what is asked, never from how often a process asked;
* what may have happened and isn't known stays on record until somebody says, and is never sent again before.

Each rule has a number, a reason and tests in docs/explanation/engine.md. Here are above all engine.md S1 to S12
(steps), engine.md F2 (failures that are told again), engine.md D1 to D4 (divergence) and engine.md X1 to X4 (stops).
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from runjournal.log import events as e
from runjournal.log.base import Event, Json, RecordedEvent
from runjournal.log.clock import timestamp
from runjournal.log.errors import CancelRequested, StaleEpoch, StoreError
from runjournal.log.limits import left_out_wait_s
from runjournal.projections.state import RunState

from . import failures as f
from .budget import exceeded
from .commands import Append, Driver, Until, Verb
from .lineage import Lineage
from .script import Entry, read
from .tools import IN_TOOL, call_key


class Core:
    """One call of an agent in one process, as the owner of its run with this epoch."""

    cancellation: type[BaseException] = GeneratorExit
    """What a driver raises in a task that is cancelled; by default what no verb ever meets."""

    def is_cancellation(self, error: BaseException) -> bool:
        """Whether a body was cancelled, by itself or with its task."""
        return isinstance(error, self.cancellation)

    def __init__(
        self, line: Lineage, epoch: int, driver: Driver, *, code_version: str = "", known_code: str = ""
    ) -> None:
        self.line = line
        self.epoch = epoch
        self.driver = driver
        self.same_code = bool(code_version) and code_version == known_code
        self.entry: Entry | None = None
        self.stopped: BaseException | None = None
        self.refused: f.StepDone | None = None  # for what was asked last; whoever swallows it may enter the open step
        self.leaving = False  # the run's caller cancelled
        self.heard: set[int] = set()  # ends and failures that this call of the agent was told, by their place
        self.passed: set[str] = set()  # each `do` that it has passed
        self.turns: dict[str, int] = {}  # name -> uses of a step that repeats, when it completed one itself
        self.looked = False  # the agent has looked at what the log knows of its context
        self.blind = False  # another process began this loop, and the agent must look before it does anything

    @property
    def state(self) -> RunState:
        """The fold of the run, as of this process's last append; what others appended until then is in it."""
        return self.line.state()

    @property
    def scope(self) -> str:
        """What effects dedupe in."""
        return self.state.status.scope

    # Stops.

    def alive(self) -> None:
        """Raise the stop again, if there was one: catching it is of no use."""
        if self.refused is not None:
            self.stop(self.refused)
        if self.stopped is not None:
            raise f.again(self.stopped)
        if IN_TOOL.get() is self:
            raise f.ToolUsesRun(
                "a tool may read the state of the run that called it, nothing else: give it what it needs as "
                "arguments, call other tools and write what it returns in the step that calls it"
            )

    def stop(self, stop: BaseException) -> None:
        """The run leaves this process; the first stop counts."""
        if self.stopped is None:
            self.stopped = stop
        self.driver.ring()

    def refuse(self, mistake: f.StepDone) -> NoReturn:
        """A block isn't done twice. Going on behind it would leave out the rest of its `try`, or lose its result."""
        self.refused = mistake
        raise mistake

    def halt(self, stop: BaseException) -> NoReturn:
        """Stop, here."""
        self.alive()
        self.stop(stop)
        raise stop

    # Appending.

    def append(self, *events: Event) -> Verb[int]:
        """Append as the owner; gives the place of the last event. Fenced and Cancelled are found here."""
        self.alive()
        if events[0].TYPE not in ("step.failed", "signal.taken"):
            self.stop_if_blind(events[0].TYPE)
        return (yield from self.record(*events))

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
        """Append as the owner; gives the place of the last event. A stop that is found here stops the run."""
        try:
            records: list[RecordedEvent] = yield append
        except StaleEpoch as error:
            self.stop(f.Fenced(str(error)))
            raise f.Fenced(str(error)) from error
        except CancelRequested as error:
            self.stop(f.Cancelled(str(error)))
            raise f.Cancelled(str(error)) from error
        return self.state.offset + records[-1].seq

    def until(self, ready: Any, bound_s: float | None) -> Verb[bool]:
        """Wait; False if it took too long. A stop of the run ends every wait."""
        came = yield Until(lambda: self.stopped is not None or ready(), bound_s)
        self.alive()
        return bool(came)

    def wait_s(self) -> float:
        """How long to wait for others: not at all if there are none."""
        return 0.0 if self.driver.alone() else left_out_wait_s

    # Which step is next.

    def plan_step(self, name: str, key: str | int | None, *, repeat: bool) -> tuple[str, str, bool]:
        """The id and kind of the step that is asked for, and whether its turn is that of another process's loop."""
        self.check_name(name, key)
        uses = self.state.steps.uses.get(name, 0) if repeat else 0
        step_id, kind = (f"{name}#{uses + 1}" if uses else id_of(name, key)), "repeat" if repeat else "once"
        self.check_kind(step_id, kind)
        if self.line.done(step_id) is not None:
            self.refuse(f.StepDone(done_text(step_id, name, key)))
        return step_id, kind, uses > 0 and self.turns.get(name) != uses

    def check_name(self, name: str, key: str | int | None) -> None:
        """Names hold neither / nor #, which ids are made of."""
        if not name or "/" in name or "#" in name:
            raise f.Mistake(f"step {name!r}: a name isn't empty and holds neither / nor #; give the rest as key=")
        if key is not None and not str(key):
            raise f.Mistake(f"step {name!r}: its key is empty")

    def check_kind(self, step_id: str, kind: str) -> None:
        """An id is of one kind for ever: else a `do` would give back what a block has left, which is nothing."""
        opened = self.state.steps.open
        if opened is not None and opened.id == step_id:
            self.refused = None
        self.alive()
        if self.inside:
            raise f.NestedStep(
                f"step {step_id} was begun inside step {self.entry.step if self.entry else ''}: "
                "end that one first, or do the work of both in one step"
            )
        if self.entry is not None and self.entry.open:  # at once: else their group cancels the other task's step
            self.halt(
                f.StepOpen(
                    f"step {self.entry.step} is open in another task, {step_id} was asked for: one step is open at a "
                    "time, so make the tasks inside one, `async with run.step(name): await asyncio.gather(…)`"
                )
            )
        known = self.line.kind(step_id)
        if known not in (None, kind):
            self.halt(
                f.PlanChanged(
                    f"step {step_id} was begun {WRITTEN[known or kind]}, and today's code asks for it {WRITTEN[kind]}: "
                    "write it as it was, for under another name what it did would be done again"
                )
            )

    @property
    def inside(self) -> bool:
        """Whether the verb is used inside the open step; the driver knows the context."""
        return False

    def plan_do(self, name: str, key: str | int | None) -> tuple[str, bool]:
        """The id of a `do`, and whether it is complete. Raises what the agent has handled of it, once each."""
        self.check_name(name, key)
        step_id, state = id_of(name, key), self.state
        self.check_kind(step_id, "do")
        if self.line.done(step_id) is not None:
            self.tell_failure(step_id)
            if step_id in self.passed:
                self.refuse(
                    f.StepDone(
                        f"step {step_id} was asked for twice: in a loop give each its own key, "
                        f"run.do({name!r}, fn, key=…)"
                    )
                )
            return step_id, True
        begun = step_id in state.steps.attempts or (state.steps.open is not None and state.steps.open.id == step_id)
        if key is None and not begun and not self.same_code and (left := set(state.steps.spent) - self.passed):
            self.halt(
                f.PlanChanged(
                    f"step {step_id} is new, and {', '.join(sorted(left))}, which has sent something, was left out: if "
                    "it "
                    "was renamed, give it its old name; if it was dropped, say run.done(name)"
                )
            )
        return step_id, False

    def has_done(self, name: str, key: str | int | None) -> bool:
        """Whether this step is complete; if it is, the agent has passed it."""
        step_id = id_of(name, key)
        if self.line.done(step_id) is None:
            return False
        self.passed.add(step_id)
        return True

    def result_of(self, step_id: str) -> Json:
        """The recorded result of a step that is complete."""
        end = self.line.done(step_id)
        event = None if end is None else self.line.event_at(end)
        return event.result if isinstance(event, e.StepCompleted) else None

    # Beginning and ending a step.

    def begin(self, step_id: str, name: str, kind: str, key: str | None, *, blind: bool = False) -> Verb[Entry]:
        """Enter a step: a new one, the open one again, or the one that failed last."""
        yield from self.tell_step(step_id)
        steps = self.state.steps
        if steps.open is not None and steps.open.id != step_id:
            self.halt(
                f.PlanChanged(
                    f"step {steps.open.id} is open, {step_id} was asked for: today's code goes another way than the "
                    "log; what says which step is next (a file, a clock, a list) is made once, `x = run.do(name, make)`"
                )
            )
        if steps.open is None:
            yield from self.check_budget(step=True)
        entry = steps.open.entry + 1 if steps.open else 1
        attempt = steps.open.attempt if steps.open else steps.attempts.get(step_id, 0) + 1
        index = steps.last_index if steps.open or steps.redo == step_id else steps.last_index + 1
        yield from self.append(e.StepStarted(index, step_id, name, kind, entry, attempt, key))
        self.blind = blind
        script, cuts = self._script()
        self.entry = Entry(step_id, attempt, index, script, cuts)
        return self.entry

    def check_budget(self, *, step: bool = False) -> Verb[None]:
        """End the run if its budget is used up: before a new step, and before each paid call."""
        if self.state.status.budget is None:
            return
        over = exceeded(self.state, timestamp(self.line.clock.now()), step=step)
        if over is not None:
            yield from self.append(e.RunFailed(over.error, [], over.cause))
            self.halt(f.Completed())

    def _script(self) -> tuple[list[Any], set[int]]:
        opened = self.state.steps.open
        return read(self.line.events_after(opened.since)) if opened and opened.entry > 1 else ([], set())

    def complete(self, entry: Entry, result: Json) -> Verb[None]:
        """The normal end of a step: when its calls have ended, and all that is recorded has been asked for."""
        self.alive()
        self.driver.settle()
        yield from self.until(lambda: self.idle(entry) or entry.questions, None)
        yield from self.until(lambda: not self.left_out(entry, questions=False), self.wait_s())
        yield from self.until(lambda: self.idle(entry), None)
        self.stop_if_left_out(entry, "the end of the step", questions=False)
        yield from self.append(e.StepCompleted(entry.index, result))

    def fail(self, entry: Entry, error: BaseException, *, cut: bool = False) -> Verb[f.Told]:
        """An exception left the step; gives what the agent is told."""
        stored, transient = f.error_of(error)
        told = stored if (trace := f.trace_of(error)) is None else stored | {"traceback": trace}
        place = yield from self.append(e.StepFailed(entry.index, told, transient, cut))
        self.heard.add(place)
        failure = f.step_failure(entry.step, entry.attempt, stored, transient=transient)
        failure.__cause__ = error
        return failure

    def leave(self, entry: Entry) -> None:
        """The body is over, however it ended."""
        entry.open = False
        self.blind = False
        if self.entry is entry:
            self.entry = None

    def left_half_way(self, entry: Entry) -> None:
        """A generator that was in the middle of a step was closed: the step stays open, and nothing goes on."""
        self.stop(
            f.StepOpen(
                f"step {entry.step} was left half-way by a generator that was closed: don't yield inside a step, "
                "yield what it came to behind it"
            )
        )

    def tell_failure(self, step_id: str) -> None:
        """A failure of this step that the agent may have handled is raised again, each one once."""
        for failure in self.line.failures(step_id):
            if failure.at not in self.heard:
                self.heard.add(failure.at)
                raise f.step_failure(step_id, failure.attempt, failure.error, transient=failure.transient)

    def tell_step(self, step_id: str) -> Verb[None]:
        """The same; but a step that was cancelled waits for its cancel again before it fails."""
        for failure in self.line.failures(step_id):
            if failure.at not in self.heard and failure.cut:
                yield from self.until(lambda: False, failure.took_s + left_out_wait_s)
        self.tell_failure(step_id)

    # What comes before anything new.

    def idle(self, entry: Entry) -> bool:
        """Whether nothing is in flight, waits for its turn, or was just told."""
        return self.driver.calm and not entry.flights and not entry.held

    def stop_if_blind(self, where: str) -> None:
        """A loop on the variables of one process would do its first turns again in the next."""
        if self.blind and not self.looked:
            self.halt(
                f.PlanChanged(
                    f"{where} in a later turn of a loop that another process began, whose variables are gone: take the "
                    "turn from run.state (memory, messages, plan) before doing anything, or use run.each"
                )
            )

    def left_out(self, entry: Entry, *, calls: bool = True, questions: bool = True) -> set[str]:
        """What this attempt has on record, calls that were sent and questions, that this entry hasn't asked for."""
        found: set[str] = set()
        if calls:
            found |= {key for key, call in self.state.calls.of_step(entry.step).items() if call.fresh and call.sent}
        if questions:
            mine = (entry.step, entry.attempt)
            found |= {key for key, asked in self.state.approvals.known.items() if (asked.step, asked.attempt) == mine}
        return found - entry.asked

    def stop_if_left_out(self, entry: Entry, where: str, *, calls: bool = True, questions: bool = True) -> None:
        """What was sent, and what was asked, comes before anything new."""
        self.stop_if_blind(where)
        if left := self.left_out(entry, calls=calls, questions=questions):
            names = {call.tool for key, call in self.state.calls.known.items() if key in left}
            self.halt(
                f.StepDiverged(
                    f"{', '.join(sorted(names or left))} was sent or asked before, in this attempt of step "
                    f"{entry.step}, and was not asked for in the same way before {where}: what differs from one time "
                    "to the next (a clock, a random number, a uuid, a file) is made once, in a step before this one, "
                    "`x = run.do(name, make)`; this step needs what was sent: "
                    f"runjournal show {self.line.run_id} --calls"
                )
            )

    def nothing_left_out(self, entry: Entry, where: str, call_id: str, *, calls: bool = True) -> Verb[None]:
        """Wait until all that is recorded has been asked for and told; then nothing may be left out."""
        entry.held.add(call_id)
        try:
            yield from self.until(
                lambda: self.driver.calm and not self.left_out(entry, calls=calls) and not entry.before(float("inf")),
                self.wait_s(),
            )
            self.stop_if_left_out(entry, where, calls=calls)
        finally:
            entry.held.discard(call_id)
            self.driver.ring()

    def turn(self, entry: Entry, at: int, call_id: str) -> Verb[None]:
        """An end is told when all before it in the log has been asked for and told.

        One that isn't asked for in time is left out, and no longer waited for.
        """
        entry.held.add(call_id)
        try:
            came = yield from self.until(lambda: self.driver.calm and not entry.before(at), self.wait_s())
            if not came:
                gone = set(entry.before(at))
                entry.script = [line for line in entry.script if line not in gone]
        finally:
            entry.held.discard(call_id)
            self.driver.ring()

    def tell(self, entry: Entry, at: int) -> None:
        """This end has been told."""
        self.heard.add(at)
        entry.told(at)
        self.driver.settle()

    def free_id(self, entry: Entry, what: str, args: Json) -> str:
        """The id of a call or a question: equal ones are told apart by n."""
        n = 1
        while (call_id := call_key(self.scope, entry.step, what, args, n)) in entry.busy:
            n += 1
        return call_id

    # The run's end.

    def stop_if_step_left(self) -> None:
        """A run isn't complete while a step is open that another process began: what it did would be forgotten."""
        if (opened := self.state.steps.open) is not None:
            self.halt(
                f.PlanChanged(
                    f"step {opened.id} is open in the log, and today's code completes the run without it: "
                    "enter it, or cancel the run"
                )
            )

    def end(self, event: Event) -> Verb[NoReturn]:
        """The agent says that the run is complete, or has failed. Raises StepOpen inside a step."""
        self.alive()
        if self.inside:
            step = self.entry.step if self.entry else ""
            raise f.StepOpen(f"step {step} is open: end the run behind it")
        if isinstance(event, e.RunCompleted):
            self.stop_if_step_left()
        yield from self.append(event)
        self.halt(f.Completed())


WRITTEN: Final = {"once": "as a block (run.step)", "repeat": "as a loop (repeat=True)", "do": "by run.do"}
"""How the agent's code has a step of each kind."""


def done_text(step_id: str, name: str, key: str | int | None) -> str:
    """What to write where a step that is complete was asked for again."""
    begin = f"step {step_id} is complete, and a block isn't done twice: "
    if key is None:
        return begin + (
            f"write `if not run.done({name!r}):` before it, and put what it leaves for later into run.memory; new code "
            f"says `x = run.do({name!r}, fn)`, a loop `for x in run.each({name!r}, items):` and a key for each step"
        )
    return begin + (
        f"write `for x in run.each({name!r}, items, key=…):`, which leaves out what is done, or "
        f"`if not run.done({name!r}, {key!r}):` before it, and put what it leaves for later into run.memory"
    )


def id_of(name: str, key: str | int | None = None) -> str:
    """The identity of a step that doesn't repeat."""
    return name if key is None else f"{name}/{key}"
