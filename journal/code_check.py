"""Whether today's code of an agent can go on with a run that is stored: every call is served from its log.

The agent is called as after a crash, over a copy of the log in memory. When it enters a step it is shown what was
recorded of that attempt, up to its end, as if its process had died directly before. What it is told then is history
(engine.md H1). Whatever it asks for that isn't on record is the first divergence, and so is another end of the step. A
run that hasn't ended is then taken up once more, as its next owner would.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NoReturn

from runjournal.engine import failures as f
from runjournal.engine.attempts import Sender
from runjournal.engine.callees import ModelTarget, Target
from runjournal.engine.calls import Caller
from runjournal.engine.clocks import shape
from runjournal.engine.commands import Made, Verb, WithRun
from runjournal.engine.core import Core
from runjournal.engine.driver import Driver
from runjournal.engine.lineage import Lineage
from runjournal.engine.media import RunMedia
from runjournal.engine.order import TellingOrder
from runjournal.engine.parts import RunParts
from runjournal.engine.requests import AskedRequest, parts_of
from runjournal.engine.script import Entry
from runjournal.engine.steps import StepControl, id_of
from runjournal.engine.tools import Word
from runjournal.log import events as e
from runjournal.log.base import Event, Json, RecordedEvent
from runjournal.log.clock import parse_timestamp
from runjournal.log.codec import dumps, plain
from runjournal.log.errors import InvalidArgument
from runjournal.log.head import TERMINAL
from runjournal.projections.requests import NotStored, rebuilt
from runjournal.projections.state import RunState
from runjournal.projections.steps import OpenStep
from runjournal.writing import folding

from .agent_code import code_version
from .check_shown import CONTEXT, Shown
from .check_words import asked_in, id_in, in_short, in_words, named_in, where_differs, written_by
from .children import ShownNursery
from .logbook import Logbook
from .reel import OWNING, Reel
from .resumes import ShownPast
from .run import Run, SyncDriver
from .runner import Runner

RUN_ENDS: Final = (e.RunCompleted, e.RunFailed, e.RunRetryScheduled, e.RunCancelled)
AGENTS_CAUSES: Final = ("error", "retries_exhausted", "rejected", "unsafe_in_flight")
"""Causes of a failed run that lie in what its agent did; another one came from outside, at any place."""


@dataclass(frozen=True, slots=True)
class CodeCheck:
    """Whether an agent can go on with a run; if not, the first place where it asks for something else.

    `seq` is the recorded event there, `step` the id of its step. `recorded` and `asked` say in words what is on record
    and what today's code asks for. `unchecked` says from where on nothing was compared, and why; "" if all of it was.
    `remarks` are what differs and keeps no run from going on: requests to models in steps that are over, what its next
    owner would go past.
    """

    run_id: str
    ok: bool
    message: str
    seq: int | None = None
    step: str | None = None
    recorded: str = ""
    asked: str = ""
    unchecked: str = ""
    remarks: tuple[str, ...] = ()


class CheckOver(f.Stop):
    """The check has its answer: the agent is called no further."""


class RoundOver(f.Stop):
    """A round has ended as it did when it was recorded: the agent is called for the next one."""


class Watcher:
    """Shows a log to an engine, and compares what the engine would append with what comes next there."""

    def __init__(self, reel: Reel) -> None:
        self.reel = reel
        self.found: CodeCheck | None = None
        self.core: Core
        self.steps: StepControl
        self.entry: Entry | None = None
        self.remarks: list[str] = []
        self._shown: Shown | None = None
        self._writes: list[Event] = []
        self._next: RecordedEvent | None = None

    # What comes next in the log.

    def _ahead(self) -> RecordedEvent | None:
        """Return the next step or end of a run in the log, which stays next; what others said before it is shown."""
        while self._next is None:
            record = next(self.reel.ahead, None)
            if record is None:
                return None
            if isinstance(record.event, (e.StepStarted, *RUN_ENDS)):
                self._next = record
            elif not isinstance(record.event, (*OWNING, e.PromptPinned)):
                self.reel.show(record)
        return self._next

    def enter(self, step_id: str, kind: str) -> None:
        """The agent asks for a step that isn't complete: show what was recorded of its next attempt."""
        self.go_on()
        opened, coming = self.core.state.steps.open, self._ahead()
        if self._shown is not None or (opened is not None and opened.id != step_id):
            return  # the engine refuses it
        asked = f"step {step_id}"
        match coming:
            case RecordedEvent(event=e.StepStarted() as start):
                if (start.id, start.kind) != (step_id, kind):
                    self._diverged(f"step {start.id} ({start.kind})", f"{asked} ({kind})", coming)
                self._show(coming, start, whole=opened is None and kind == "do")
            case None if opened is not None:
                self._shown, self._writes = self._of_open(opened), []
                self._never_again(kind)
            case None:
                self._over(f"it can go on with {asked}")
            case _:
                self._unless_outside(coming, asked)

    def _of_open(self, opened: OpenStep) -> Shown:
        """Return what the log holds of the open step, where all of it is shown."""
        lineage = self.core.lineage
        shown = Shown(opened.id, opened.since - lineage.offset)
        for place, _ in lineage.events_after(opened.since):
            if (record := lineage.record_at(place)) is not None:
                shown.note(record)
        return shown

    def _show(self, first: RecordedEvent, start: e.StepStarted, *, whole: bool) -> None:
        """Show an attempt up to its end; one of a `do` in which nothing was journalled, with its end."""
        self._next, shown, record = None, Shown(start.id, first.seq), first
        while True:
            shown.note(record)
            told = isinstance(record.event, e.SignalTaken) and record.event.wait_id is not None
            if told or not isinstance(record.event, (*OWNING, *CONTEXT, e.PromptPinned)):
                self.reel.show(record)
            following = next(self.reel.ahead, None)
            if following is None or isinstance(following.event, RUN_ENDS):
                self._next = following
                break
            record = following
            if isinstance(record.event, e.StepCompleted | e.StepFailed):
                shown.end = record
                shown.cut |= bool(getattr(record.event, "cut", False))
                break
        if whole and shown.end is not None and not (shown.asks or shown.writes):
            self.reel.show(shown.end)  # a plain function, which isn't called: its result is on record
            return
        self._shown = shown
        self._writes = []
        if shown.cut:
            self._over(
                "", unchecked=f"from step {start.id} on: one who asked there was cancelled, by a timeout or a task"
            )
        self._never_again(start.kind)

    def _never_again(self, kind: str) -> None:
        """A `do` that is open, and in which nothing was journalled, isn't executed: nobody knows what it would do."""
        shown = self._shown
        if shown is not None and shown.end is None and kind == "do" and not (shown.asks or shown.writes):
            self._over(f"it can go on: step {shown.step} is executed again")

    def stand_in(self, entry: Entry, target: ModelTarget, request: AskedRequest, call_id: str) -> str | None:
        """Return the recorded request whose answer stands in for that of another one, in a step that is over.

        Nothing rests on it any more: the answer was given, and what was made of it is on record.
        """
        shown = self._shown
        if shown is None or shown.end is None or (call_id in shown.asks and call_id in shown.ended):
            return None  # one without an end was asked by a process that died, and another one in its place
        today = target.started(call_id, {"request": request}, 1, self.core.lineage.clock)
        for key, record in shown.asks.items():
            if named_in(record.event) == named_in(today) and key not in entry.asked and key in shown.ended:
                where = where_differs(self._asked_in(record), asked_in(today))
                self.remarks.append(f"step {shown.step}: the request to {target.name} differs: {where or '$.request'}")
                return key
        return None

    # What the engine would append.

    def append(self, events: tuple[Event, ...] | Made) -> list[RecordedEvent]:
        """Put what the engine appends into the copy, if it is what was recorded."""
        self.go_on()
        if isinstance(events, WithRun):
            events = events.events
        assert not callable(events)  # noqa: S101 - a transactional tool: its intent comes first
        return [self._append(event) for event in events]

    def go_on(self) -> None:
        """Raise CheckOver again, if there is an answer."""
        if self.found is not None:
            raise CheckOver

    def _append(self, event: Event) -> RecordedEvent:
        match event:
            case e.StepStarted() | e.PromptPinned() | e.NoteAdded() | e.SignalTaken():
                pass
            case e.StepCompleted() | e.StepFailed():
                self._end_step(event)
            case e.RunCompleted() | e.RunFailed() | e.RunRetryScheduled():
                self._end_run(event)
            case e.TimerSet() | e.TimerFired():  # nothing rests on having slept
                if (shown := self._shown) is not None and shown.end is None:
                    self._over(f"it can go on: it waits for a time in step {shown.step}")
            case _ if isinstance(event, CONTEXT):
                self._writes.append(event)
            case _:
                self._live(event)
        return self.reel.add(event)

    def wait_for(self, child_id: str) -> NoReturn:
        """The agent waits for a child of which nothing more is on record."""
        shown = self._shown
        if shown is None or shown.end is None:
            self._over(f"it can go on: it waits for run {child_id}")
        self._diverged(in_words(shown.end.event), f"a wait for run {child_id}", shown.end, shown.step)

    def _end_step(self, event: e.StepCompleted | e.StepFailed) -> None:
        shown, self._shown = self._shown, None
        if shown is None:
            raise AssertionError("a step ends that was never begun")
        if shown.end is None:  # what it has written is written anew
            self._over(f"it can go on with the end of step {shown.step}")
        self._compare_writes(shown)
        recorded = shown.end.event
        if type(recorded) is not type(event):
            self._diverged(in_words(recorded), in_words(event), shown.end, shown.step)
        if isinstance(event, e.StepCompleted):
            self._same(shown.end, "result", event.result, f"the result of step {shown.step}", shown.step)
        elif isinstance(recorded, e.StepFailed) and recorded.error["type"] != event.error["type"]:
            self._diverged(in_words(recorded), in_words(event), shown.end, shown.step)

    def _compare_writes(self, shown: Shown) -> None:
        """Compare what the step has written: one after the other, or in whatever order its tasks have written it."""
        recorded, written = shown.writes, self._writes
        now = self.core.lineage.clock.now()
        were = [dumps(shape(written_by(self._filled(one).event), parse_timestamp(one.at))) for one in recorded]
        are = [dumps(shape(written_by(event), now)) for event in written]
        if were == are or sorted(were) == sorted(are):
            return
        place = next(
            (n for n, (was, is_) in enumerate(zip(were, are, strict=False)) if was != is_), min(len(were), len(are))
        )
        before = self._filled(recorded[place]) if place < len(were) else None
        after = written[place] if place < len(are) else None
        told = [
            in_words(before.event) if before else "nothing more written",
            in_words(after) if after else "nothing more",
        ]
        where = ""
        if before is not None and after is not None and type(before.event) is type(after):
            where = where_differs(written_by(before.event), written_by(after))
        self._diverged(told[0], told[1], before or shown.end or shown.seq, shown.step, where)

    def _end_run(self, event: e.RunCompleted | e.RunFailed | e.RunRetryScheduled) -> None:
        coming = self._ahead()
        if coming is None:
            self._over(f"it can go on: {in_words(event)}")
        if isinstance(coming.event, e.StepStarted):
            self._diverged(f"step {coming.event.id}", in_words(event), coming)
        self._unless_outside(coming, in_words(event), same=type(event))
        match coming.event, event:
            case e.RunCompleted(), e.RunCompleted():
                self._same(coming, "output", event.output, "the output of the run")
            case ((e.RunFailed() | e.RunRetryScheduled()), (e.RunFailed() | e.RunRetryScheduled())):
                if coming.event.error["type"] != event.error["type"]:
                    self._diverged(in_words(coming.event), in_words(event), coming)
            case _:
                pass
        if isinstance(event, e.RunRetryScheduled):
            self._next = None
            self.reel.show(coming)
            raise RoundOver
        self._over("it does what was recorded")

    def _unless_outside(self, coming: RecordedEvent, asked: str, *, same: type[Event] | None = None) -> None:
        """The run ends here in the log: it is a divergence, unless the end came from outside, at whatever place."""
        event = coming.event
        outside = isinstance(event, e.RunFailed) and event.cause not in AGENTS_CAUSES
        if isinstance(event, e.RunCancelled) or outside:
            self._over(f"it does what was recorded, up to its end: {in_words(event)}")
        if same is not type(event):
            self._diverged(in_words(event), asked, coming)

    def _live(self, event: Event) -> None:
        """What isn't on record would be sent, asked or said: where the log ends it goes on so, elsewhere it differs."""
        shown, entry = self._shown, self.steps.entry
        step = shown.step if shown is not None else None
        if shown is None or entry is None:
            self._diverged("nothing more", in_words(event), None, step)
        left = [record for key, record in shown.asks.items() if key not in entry.asked]
        alike = next((one for one in left if named_in(one.event) == named_in(event)), None)
        if shown.end is None:  # the engine would have refused it, if what was sent or asked were left out
            if alike is not None and id_in(event) not in shown.asks:
                where = where_differs(self._asked_in(alike), asked_in(event))
                self.remarks.append(f"step {step}: {in_words(event)} differs from what was asked before: {where}")
            self._over(f"it can go on in step {step}: {in_words(event)}")
        if alike is not None:
            before, after = self._asked_in(alike), asked_in(event)
            self._diverged(in_words(alike.event), in_words(event), alike, step, where_differs(before, after))
        at = left[0] if left else shown.end
        self._diverged(in_words(at.event), in_words(event), at, step)

    def _same(self, recorded: RecordedEvent, name: str, today: Json, what: str, step: str | None = None) -> None:
        """Compare a value, clocks left out of it."""
        before = getattr(self._filled(recorded).event, name)
        then, now = parse_timestamp(recorded.at), self.core.lineage.clock.now()
        if dumps(shape(before, then)) != dumps(shape(plain(today), now)):
            where = where_differs(before, plain(today))
            self._diverged(f"{what} {in_short(before)}", in_short(today), recorded, step, where)

    def _asked_in(self, record: RecordedEvent) -> Json:
        """Return what was asked: args, or the digests of the parts of a request, put together where it is stored."""
        event = self._filled(record).event
        if not isinstance(event, e.ModelStarted) or event.request is None:
            return asked_in(event)
        real, run_id = self.reel.real, self.reel.run_id

        def at(seq: int) -> Event | None:
            found = folding.event_at(real, run_id, seq)
            return self._filled(found).event if found is not None else None

        with suppress(NotStored):
            return {"request": parts_of(rebuilt(event, record.seq, at), parse_timestamp(record.at))}
        return {"request": {}}

    def _filled(self, record: RecordedEvent) -> RecordedEvent:
        return folding.filled_record(self.reel.real, record)

    # The answer.

    def _over(self, message: str, *, unchecked: str = "") -> NoReturn:
        self.found = self.found or CodeCheck(
            self.reel.run_id, ok=True, message=message, unchecked=unchecked, remarks=tuple(self.remarks)
        )
        raise CheckOver

    def _diverged(
        self, recorded: str, asked: str, at: RecordedEvent | int | None, step: str | None = None, where: str = ""
    ) -> NoReturn:
        text = f"recorded is {recorded}, today's code has {asked}{where and f': {where}'}"
        seq = at.seq if isinstance(at, RecordedEvent) else at
        message = text if step is None else f"step {step}: {text}"
        self.found = self.found or CodeCheck(self.reel.run_id, ok=False, message=message, seq=seq, step=step,
                                             recorded=recorded, asked=asked)  # fmt: skip
        raise CheckOver

    def refused(self, stop: BaseException) -> None:
        """The engine has refused what today's code does."""
        shown, entry = self._shown, self.entry
        for key, record in (shown.asks if shown and isinstance(stop, f.StepDiverged) else {}).items():
            event, name = self._filled(record).event, named_in(record.event)[1]
            asked = f"ask {name}" if isinstance(event, e.ApprovalRequested) else name
            if entry is not None and key not in entry.asked and asked in entry.unrecorded:
                given, _ = entry.unrecorded[asked]
                today = {"args": given.value if isinstance(given, AskedRequest) else given}
                with suppress(CheckOver):
                    words = f"{in_words(event).partition(' (')[0]} ({in_short(today['args'])})"
                    self._diverged(
                        in_words(event), words, record, entry.step, where_differs(self._asked_in(record), today)
                    )
        seq = shown.seq if shown else self._next.seq if self._next else None
        text = f"{type(stop).__name__}: {stop}"
        self.found = self.found or CodeCheck(
            self.reel.run_id, ok=False, message=text, step=shown.step if shown else None, seq=seq,
            asked=type(stop).__name__,
        )  # fmt: skip


class WatchedSteps(StepControl):
    """Steps of which an agent is shown what was recorded, when it asks for them."""

    watcher: Watcher

    def plan_do(self, name: str, key: str | int | None) -> tuple[str, bool]:
        """Show the step first: it may be one that isn't executed."""
        self.check_name(name, key)
        step_id = id_of(name, key)
        if not self.inside and self.core.lineage.done(step_id) is None:
            self.core.alive()
            self._enter(step_id, "do")
        return super().plan_do(name, key)

    def _enter(self, step_id: str, kind: str) -> None:
        """Show the step, unless a failure of it that was handled is to be told first, which opens nothing."""
        if all(failure.at in self.order.heard for failure in self.core.lineage.failures(step_id)):
            self.watcher.enter(step_id, kind)

    def begin(self, step_id: str, name: str, kind: str, key: str | None, *, blind: bool = False) -> Verb[Entry]:
        """Show the step, then enter it."""
        if kind != "do":
            self._enter(step_id, kind)
        self.watcher.entry = entry = yield from super().begin(step_id, name, kind, key, blind=blind)
        return entry


class ServedCaller(Caller):
    """Serves a question to a model that differs by the answer that was recorded in its place."""

    watcher: Watcher

    def request(self, entry: Entry, target: ModelTarget, asked: AskedRequest, call_id: str) -> Verb[str]:
        """Return which recorded request this one is, or which one's answer stands in for its own."""
        found = yield from super().request(entry, target, asked, call_id)
        stands = self.watcher.stand_in(entry, target, asked, found)
        if stands is None:
            return found
        entry.stands[call_id] = stands
        entry.places.setdefault(stands, entry.places[found])
        return stands


class UnaskingSender(Sender):
    """Asks no hook, and waits for no time: nothing outside is called."""

    def paused(self, entry: Entry, call_id: str, target: Target, args: dict[str, Json]) -> Verb[bool]:
        """Return False: what it comes to is what is looked for."""
        yield from ()
        return False

    def slept(self, seconds: float) -> Verb[None]:
        """Don't sleep."""
        yield from ()

    def word(self, target: Target, args: dict[str, Json], call_id: str) -> Word | None:
        return None


def both(shown: CodeCheck, taken_up: CodeCheck) -> CodeCheck:
    """Return what a next owner would meet, by the first place that differs; where it goes on, that is a remark."""
    before = () if shown.ok or not taken_up.ok else (shown.message,)
    remarks = tuple(dict.fromkeys((*before, *shown.remarks, *taken_up.remarks)))
    return replace(taken_up if shown.ok or taken_up.ok else shown, remarks=remarks)


class CodeChecker(Runner):
    """Checks the code of an agent against the log of a run, which it only reads."""

    def __init__(self, log: Logbook, agent: Callable[[Any], Any], run_id: str) -> None:
        super().__init__(log)
        self.agent, self._code = agent, code_version(agent)
        state = log.fold(RunState, run_id)
        if state.status.unowned:
            raise InvalidArgument(f"run {run_id} is {state.status.status}: no agent of this journal's has run it")
        self._ended = state.status.status in TERMINAL
        self._known = state.status.proven_code or ""
        self._run_id = run_id

    def check(self) -> CodeCheck:
        """Check it in plain threads."""
        found = self._lives(Watcher(self.reel()))
        return both(found, self._lives(Watcher(self.whole()))) if self.twice(found) else found

    def twice(self, found: CodeCheck) -> bool:
        """Whether the run is then taken up as its next owner would: that is what decides, of one that may go on."""
        return not self._ended and not found.unchecked

    def reel(self) -> Reel:
        """Return the copy that the agent is shown bit by bit."""
        return Reel(self.log.store, self._run_id, self.log.ownership.process)

    def whole(self) -> Reel:
        """Return a reel that has been shown to its end."""
        reel = self.reel()
        for record in reel.ahead:
            if not isinstance(record.event, (*OWNING, e.PromptPinned)):
                reel.show(record)
        return reel

    def watched(self, watcher: Watcher, driver: Driver) -> RunParts:
        """Return the engine of a watched run, which neither sends nor asks anything."""
        lineage = Lineage(watcher.reel, self._run_id, lambda _: None)
        order = TellingOrder(Core(lineage, 0, driver))
        steps = WatchedSteps(order, code_version=self._code, known_code=self._known)
        steps.watcher, watcher.core, watcher.steps = watcher, order.core, steps
        caller = ServedCaller(steps, UnaskingSender(order, lambda _: None))
        caller.watcher = watcher
        media = RunMedia(watcher.reel.real, self._run_id, None)
        past = ShownPast(self.log, self._run_id)
        return RunParts(caller, media, ShownNursery(self.log, watcher.wait_for), store_requests=False, past=past)

    def _lives(self, watcher: Watcher) -> CodeCheck:
        while watcher.found is None:
            driver = SyncDriver(watcher.append)
            parts = self.watched(watcher, driver)
            self.ended_so(watcher, parts, partial(self.agent, Run(parts, driver)))
        return watcher.found

    def ended_so(self, watcher: Watcher, parts: RunParts, agent: Callable[[], Any]) -> None:
        """Call the agent; what leaves it is the answer, or the round's end."""
        try:
            self._drive(agent, parts)
        except (CheckOver, RoundOver):
            return
        except f.OverBudget as over:
            with suppress(CheckOver, RoundOver):
                watcher.append((over.event,))
        except (f.Mistake, f.PlanChanged, f.StepDiverged) as stop:
            watcher.refused(stop)


# In words.
