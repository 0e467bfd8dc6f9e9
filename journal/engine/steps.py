"""Steps: which one is asked for, whether it may be entered, and how it ends.

The rules: engine.md S1 to S14, and engine.md F2 for failures that are told again.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from runjournal.log import events as e
from runjournal.log.base import Event, Json
from runjournal.log.limits import left_out_wait_s

from . import failures as f
from .commands import Verb
from .order import TellingOrder
from .script import Entry, read
from .tools import TOOL_CONTEXT


class StepControl:
    """The steps of one call of an agent; `entry` is the one that is open. One is open at a time."""

    def __init__(self, order: TellingOrder, *, code_version: str = "", known_code: str = "") -> None:
        self.core = order.core
        self.order = order
        self.same_code = bool(code_version) and code_version == known_code
        self.entry: Entry | None = None
        self.passed: set[str] = set()  # each `do` that it has passed
        self.turns: dict[str, int] = {}  # name -> uses of a step that repeats, when it completed one itself
        self.names: set[str] = set()  # of the steps that it has entered or passed
        self.emptied: set[str] = set()  # names of loops without items, whose steps another process has begun
        self.way: list[int] = []  # where each step began that it entered, and ended that it passed, in its order

    # Which step is next.

    def plan_step(self, name: str, key: str | int | None, *, repeat: bool) -> tuple[str, str, bool]:
        """Return the id and kind of the step that is asked for, and whether its turn is of another process's loop."""
        self.check_name(name, key)
        uses = self.core.state.steps.uses.get(name, 0) if repeat else 0
        step_id, kind = (f"{name}#{uses + 1}" if uses else id_of(name, key)), "repeat" if repeat else "once"
        self.check_kind(step_id, kind)
        if self.core.lineage.done(step_id) is not None:
            self.core.refuse(f.StepDone(done_text(step_id, name, key)))
        return step_id, kind, uses > 0 and self.turns.get(name) != uses

    def check_name(self, name: str, key: str | int | None) -> None:
        """Check a name: it holds neither / nor #, which ids are made of."""
        if not name or "/" in name or "#" in name:
            raise f.Mistake(f"step {name!r}: a name isn't empty and holds neither / nor #; give the rest as key=")
        if key is not None and not str(key):
            raise f.Mistake(f"step {name!r}: its key is empty")
        f.check_name(id_of(name, key), "the id of a step")

    def check_kind(self, step_id: str, kind: str) -> None:
        """Check that a step keeps its kind for ever.

        Else a `do` would return what a block has left, which is nothing.
        """
        opened = self.core.state.steps.open
        if opened is not None and opened.id == step_id:
            self.core.refused = None
        self.core.alive()
        if self.inside:
            raise f.NestedStep(
                f"step {step_id} was begun inside step {self.entry.step if self.entry else ''}: "
                "end that one first, or do the work of both in one step"
            )
        if self.entry is not None and self.entry.open:  # at once: else their group cancels the other task's step
            self.core.halt(
                f.StepOpen(
                    f"step {self.entry.step} is open in another task, {step_id} was asked for: one step is open at a "
                    "time, so make the tasks inside one, `async with run.step(name): await asyncio.gather(…)`"
                )
            )
        known = self.core.lineage.kind(step_id)
        if known not in (None, kind):
            self.core.halt(
                f.PlanChanged(
                    f"step {step_id} was begun {WRITTEN[known or kind]}, and today's code asks for it {WRITTEN[kind]}: "
                    "write it as it was, for under another name what it did would be done again",
                    step_id,
                )
            )

    @property
    def inside(self) -> bool:
        """Return whether this context is that of the open step."""
        return self.here is not None

    @property
    def here(self) -> Entry | None:
        """Return the step of this context, None outside any."""
        entry, context = self.entry, TOOL_CONTEXT.get()
        mine = entry is not None and entry.open and getattr(context, "entry", None) is entry
        return entry if mine else None

    def plan_do(self, name: str, key: str | int | None) -> tuple[str, bool]:
        """Return the id of a `do`, and whether it is complete. Raises what the agent has handled of it, once each."""
        self.check_name(name, key)
        step_id, state = id_of(name, key), self.core.state
        self.check_kind(step_id, "do")
        if (end := self.core.lineage.done(step_id)) is not None:
            self.tell_failure(step_id)
            self._goes(name, end)
            if step_id in self.passed:
                self.core.refuse(
                    f.StepDone(
                        f"step {step_id} was asked for twice: in a loop give each its own key, "
                        f"run.do({name!r}, fn, key=…)"
                    )
                )
            return step_id, True
        begun = step_id in state.steps.attempts or (state.steps.open is not None and state.steps.open.id == step_id)
        begun = begun or (state.steps.let_go > 0 and self.core.lineage.kind(step_id) is not None)
        if key is None and not begun and not self.same_code and (left := self._not_passed()):
            self.core.halt(
                f.PlanChanged(
                    f"step {step_id} is new, and {', '.join(sorted(left))}, which has sent something, was left out: "
                    "if it was renamed, give it its old name; if it was dropped, say run.done(name)",
                    left[0],
                )
            )
        return step_id, False

    def _not_passed(self) -> list[str]:
        """Return the steps that have sent something, and that the agent hasn't passed, the first one first."""
        return [step for step in self.core.state.steps.spent if step not in self.passed]

    def has_done(self, name: str, key: str | int | None) -> bool:
        """Return whether this step is complete; if it is, the agent has passed it."""
        self.check_name(name, key)
        step_id = id_of(name, key)
        if (end := self.core.lineage.done(step_id)) is None:
            return False
        self._goes(name, end)
        self.passed.add(step_id)
        return True

    def _goes(self, name: str, place: int) -> None:
        """The agent enters a step of this name, or passes one, that began or ended at a place."""
        self.way.append(place)
        self.names.add(name)
        self.emptied.discard(name)

    def had_no_items(self, name: str) -> None:
        """A loop over items had none; if another process has begun its steps, the items have got lost with that one."""
        steps = self.core.state.steps
        begun = {*(step[0] for step in steps.recent), *steps.attempts, steps.open.id if steps.open else ""}
        if name not in self.names and any(step_id.startswith(f"{name}/") for step_id in begun):
            self.emptied.add(name)

    def stop_if_emptied(self) -> None:
        """A list that an earlier turn of another process has filled is empty in this one."""
        if self.emptied and not self.core.looked:
            name = min(self.emptied)
            self.core.halt(
                f.PlanChanged(
                    f"run.each({name!r}) has no items, and another process has begun steps of that name: what it had "
                    "put into a list is gone. Make the items in `items = run.do(name, make)`, or take them from "
                    "run.state (memory, messages, plan)",
                    name,
                )
            )

    def result_of(self, step_id: str) -> Json:
        """Return the recorded result of a step that is complete."""
        end = self.core.lineage.done(step_id)
        event = None if end is None else self.core.lineage.event_at(end)
        return event.result if isinstance(event, e.StepCompleted) else None

    # Beginning and ending a step.

    def begin(self, step_id: str, name: str, kind: str, key: str | None, *, blind: bool = False) -> Verb[Entry]:
        """Enter a step: a new one, the open one again, or the one that failed last."""
        yield from self.tell_step(step_id)
        steps = self.core.state.steps
        if steps.open is not None and steps.open.id != step_id:
            self.core.halt(
                f.PlanChanged(
                    f"step {steps.open.id} is open, {step_id} was asked for: today's code goes another way than the "
                    "log; what says which step is next (a file, a clock, a list) is made once, "
                    "`x = run.do(name, make)`",
                    steps.open.id,
                    "step",
                )
            )
        if steps.open is None:
            self.core.check_budget(step=True)
        entry = steps.open.entry + 1 if steps.open else 1
        failed, recalled = (0, None) if steps.open else self.core.lineage.recall(step_id)
        attempt = steps.open.attempt if steps.open else (failed or steps.attempts.get(step_id, 0)) + 1
        index = steps.last_index if steps.open or steps.redo == step_id else steps.last_index + 1
        self.emptied.discard(name)
        self.stop_if_emptied()
        start = e.StepStarted(index, step_id, name, kind, entry, attempt, key, recalled)
        place = yield from self.core.append(start)
        self._goes(name, place)
        self.core.blind = blind
        script, cuts = self._script()
        known = self.core.state.calls.of_step(step_id)
        self.entry = Entry(step_id, attempt, index, script, cuts, since=place, recorded=set(known))
        return self.entry

    def _script(self) -> tuple[list[Any], set[int]]:
        opened = self.core.state.steps.open
        return read(self.core.lineage.events_after(opened.since)) if opened and opened.entry > 1 else ([], set())

    def complete(self, entry: Entry, result: Json) -> Verb[None]:
        """Complete a step, when its calls have ended and all that is recorded has been asked for."""
        self.core.alive()
        self.core.driver.settle()
        yield from self.core.until(lambda: self.order.idle(entry) or entry.awaited, None)
        yield from self.core.until(lambda: not self.order.left_out(entry, questions=False), self.order.wait_s())
        yield from self.core.until(lambda: self.order.idle(entry), None)
        self.order.stop_if_left_out(entry, "the end of the step", questions=False)
        self._stop_if_unended(entry)
        yield from self.core.append(e.StepCompleted(entry.index, result))

    def _stop_if_unended(self, entry: Entry) -> None:
        """No step completes while a call that it asked for has no end: its asker was closed in the middle of it."""
        calls = self.core.state.calls.of_step(entry.step)
        if names := {
            call.tool
            for key, call in calls.items()
            if key in entry.asked and call.status == "open" and call.policy != "outbox"
        }:
            self.core.halt(f.Released(f"{', '.join(sorted(names))} was begun in step {entry.step} and has no end"))

    def fail(self, entry: Entry, error: BaseException, *, cut: bool = False) -> Verb[f.Told]:
        """Fail the step that an exception left; return what the agent is told."""
        stored, transient = f.error_of(error)
        told = stored if (trace := f.trace_of(error)) is None else stored | {"traceback": trace}
        place = yield from self.core.append(e.StepFailed(entry.index, told, transient, cut))
        self.order.heard.add(place)
        failure = self._failure(place, entry.step, entry.attempt, stored, transient=transient)
        failure.__cause__ = error
        return failure

    def _failure(self, at: int, step_id: str, attempt: int, error: dict[str, Any], *, transient: bool) -> f.Told:
        """What the agent is told of a step that failed at a place."""
        failure = f.step_failure(step_id, attempt, error, transient=transient)
        failure.run_id = self.core.lineage.run_id
        failure.told_at = at, len(self.way)
        return failure

    def has_handled(self, failure: f.Told) -> bool:
        """Whether the agent has gone on behind a failure that it was told: to a step that began after it."""
        at, since = failure.told_at
        return any(place > at for place in self.way[since:])

    def leave(self, entry: Entry) -> None:
        """Leave the step: its body is over, however it ended."""
        entry.open = False
        self.core.blind = False
        if self.entry is entry:
            self.entry = None

    def left_half_way(self, entry: Entry) -> None:
        """Stop the run: a generator in the middle of a step was closed. The step stays open, and nothing goes on."""
        self.core.stop(
            f.StepOpen(
                f"step {entry.step} was left half-way by a generator that was closed: don't yield inside a step, "
                "yield what it came to behind it"
            )
        )

    def tell_failure(self, step_id: str) -> None:
        """Raise once more each failure of this step that the agent may have handled, each one once."""
        for failure in self.core.lineage.failures(step_id):
            if failure.at not in self.order.heard:
                self.order.heard.add(failure.at)
                raise self._failure(failure.at, step_id, failure.attempt, failure.error, transient=failure.transient)

    def tell_step(self, step_id: str) -> Verb[None]:
        """Tell the failures of a step; but one that was cancelled waits for its cancel again before it fails."""
        for failure in self.core.lineage.failures(step_id):
            if failure.at not in self.order.heard and failure.cut:
                yield from self.core.until(lambda: False, failure.took_s + left_out_wait_s)
        self.tell_failure(step_id)

    # The run's end.

    def stop_if_step_left(self) -> None:
        """A run isn't complete while a step is open that another process began: what it did would be forgotten.

        Nor is it if the items of a loop have got lost.
        """
        if (opened := self.core.state.steps.open) is not None:
            self.core.halt(
                f.PlanChanged(
                    f"step {opened.id} is open in the log, and today's code completes the run without it: "
                    "enter it, or cancel the run",
                    opened.id,
                    "step",
                )
            )
        self.stop_if_emptied()

    def end(self, event: Event) -> Verb[NoReturn]:
        """End the run, as the agent says: complete or failed. Raises StepOpen inside a step."""
        self.core.alive()
        if self.inside:
            step = self.entry.step if self.entry else ""
            raise f.StepOpen(f"step {step} is open: end the run behind it")
        if isinstance(event, e.RunCompleted):
            self.stop_if_step_left()
        yield from self.core.append(event)
        self.core.halt(f.Completed())


WRITTEN: Final = {"once": "as a block (run.step)", "repeat": "as a loop (repeat=True)", "do": "by run.do"}
"""How the agent's code has a step of each kind."""


def done_text(step_id: str, name: str, key: str | int | None) -> str:
    """Return what to write where a step that is complete was asked for again."""
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
    """Return the identity of a step that doesn't repeat."""
    return name if key is None else f"{name}/{key}"
