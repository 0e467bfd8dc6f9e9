"""Calls, in the core of a run: which call is it, and what a recorded one returns; `attempts.py` sends a new one.

What a recorded call returns is its *history* first: the ends that the agent was told in this attempt of the step,
each once, in the order of the log (engine.md H1). When that is used up, *knowledge* counts, the first line that fits of
the table of engine.md H3. Which call it is: engine.md C1 to C9. When a run waits: engine.md W1, W2; the questions to
people are in `asking.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NoReturn

from runjournal.log import events as e
from runjournal.log.authority import tells_unknown
from runjournal.log.base import Event, Json
from runjournal.log.clock import timestamp
from runjournal.log.limits import left_out_wait_s
from runjournal.log.policies import REPEATABLE
from runjournal.projections.calls import Call
from runjournal.projections.index import args_sha256

from . import failures as f
from .attempts import LOST, PAUSED, Sender
from .callees import ModelTarget, Target, ToolTarget, today
from .commands import Verb
from .recorded_requests import alike
from .requests import AskedRequest, copied
from .sameness import known, same
from .script import Awaiting, Entry, ScriptItem
from .steps import StepControl
from .tools import Names, call_key, looking
from .verdict import LIVE, PERSON, Live, Nobody, Person, Verdict, judge
from .waiter import Waiter

Ask = tuple[Target, dict[str, Json]]


class Caller:
    """The calls of one run; `sender` sends those that are new."""

    def __init__(self, steps: StepControl, sender: Sender) -> None:
        self.core = steps.core
        self.order = steps.order
        self.steps = steps
        self.sender = sender
        self.waiter = Waiter(steps.order)
        self.names = Names()  # of the tools that the run has called in this process

    def entry(self) -> Entry:
        """Return the open step of this context. Raises the stop of the run, NotInStep."""
        self.core.alive()
        entry = self.steps.here
        if entry is None:
            raise f.NotInStep(
                "everything happens in a step: `with run.step(name):` or `run.do(name, fn)`; a thread of a step is "
                "begun with run.thread(fn), and a task is awaited before the step ends"
            )
        return entry

    # One call, several calls.

    def call(self, target: Target, args: dict[str, Json], own_key: str = "") -> Verb[Any]:
        """Make one call: return its recorded outcome, or a live one. Raises what the agent is told."""
        entry = self.entry()
        call_id = yield from self.identify(entry, target, args, own_key)
        entry.asks[call_id] += 1
        self.core.driver.settle()
        if call_id in entry.shared and (outcome := (yield from self._shared(entry, call_id, target))) is not LIVE:
            return self.parsed(target, outcome)
        if own_key:
            entry.shared[call_id] = []
        try:
            value = yield from self.outcome(entry, call_id, target, args)
        except BaseException as error:
            entry.busy.pop(call_id, None)
            entry.numbers.clear()
            self.share(entry, call_id, None, error)
            raise
        if own_key:
            self.share(entry, call_id, value)
        return value if target.into is None else self.parsed(target, value)

    def _shared(self, entry: Entry, call_id: str, target: Target) -> Verb[Any]:
        """Return the outcome of a call in flight with the same key of its own: both askers get it.

        LIVE if there is none.
        """
        while (flight := entry.shared.get(call_id)) is not None:
            yield from self.core.until(partial(bool, flight), None)
            if not flight:
                raise f.Mistake(
                    f"{target.name} is in flight in a thread that the run doesn't know: begin it with run.thread(fn)"
                )
            (value, failure), *_ = flight
            if failure is None:
                return copied(value)
            if isinstance(failure, Exception):
                raise failure
        return LIVE

    def share(self, entry: Entry, call_id: str, value: Json, failure: BaseException | None = None) -> None:
        """Note that the call is no longer in flight; whoever waited for it gets its outcome."""
        if (flight := entry.shared.pop(call_id, None)) is not None:
            flight.append((value, failure))
            self.core.driver.ring()

    def parallel(self, asks: Sequence[tuple[Target, dict[str, Json], str]]) -> Verb[list[Any]]:
        """Make calls that are in flight together; return outcomes in the order of the asks, failures as values."""
        entry = self.entry()
        ids: list[str] = []
        for target, args, own_key in asks:
            ids.append((yield from self.identify(entry, target, args, own_key)))
        wanted = dict(zip(ids, asks, strict=True))  # a key of its own may be asked for twice
        shared: list[str] = []
        outcomes: dict[str, Any] = {}
        entry.asks.update(list(wanted))  # all of them are asked for now: what is told in its turn may wait for that
        try:
            for call_id in sorted(wanted, key=partial(self._next_told, entry)):
                target, args, own_key = wanted[call_id]
                outcomes[call_id] = yield from self._caught(self._shared(entry, call_id, target))
                if outcomes[call_id] is not LIVE:
                    continue
                if own_key:
                    entry.shared[call_id] = []
                    shared.append(call_id)
                outcomes[call_id] = yield from self._caught(self.recorded(entry, call_id, target, args))
            yield from self._all_made(entry, wanted, outcomes)
        finally:
            for call_id in shared:
                outcome = outcomes.get(call_id, LIVE)
                if (
                    isinstance(outcome, Live | Person | Nobody) or outcome is PAUSED
                ):  # it came to nothing: who waits for it asks by himself
                    outcome = f.Released(f"{call_id} was not made")
                failure = outcome if isinstance(outcome, BaseException) else None
                self.share(entry, call_id, None if failure else outcome, failure)
        for call_id, outcome in outcomes.items():
            if isinstance(outcome, BaseException):
                entry.busy.pop(call_id, None)
                entry.numbers.clear()
        return [self._parsed_or_failure(wanted[call_id][0], outcomes[call_id]) for call_id in ids]

    def _all_made(
        self, entry: Entry, wanted: dict[str, tuple[Target, dict[str, Json], str]], outcomes: dict[str, Any]
    ) -> Verb[None]:
        """Make those of several calls that are to be made; wait, when nothing else can go on, for those that can't be.

        What has come by then goes on.
        """
        while True:
            for call_id, (target, args, _) in wanted.items():
                if isinstance(outcome := outcomes[call_id], Live | Nobody):
                    outcomes[call_id] = yield from self._caught(self._made(entry, call_id, target, args, outcome))
            left = [key for key, outcome in outcomes.items() if outcome is PERSON or outcome is PAUSED]
            if not left:
                return
            yield from self.waiter.wait_for(entry, *(self._awaiting(key, outcomes[key]) for key in left))
            for call_id in left:
                if outcomes[call_id] is PERSON or self.sender.due_at(call_id) is None:
                    target, args, _ = wanted[call_id]
                    outcomes[call_id] = yield from self._caught(self.recorded(entry, call_id, target, args))

    def _caught(self, steps: Verb[Any]) -> Verb[Any]:
        try:
            return (yield from steps)
        except f.Told as failure:
            return failure
        except f.ResultUnusable as failure:
            return failure

    def _parsed_or_failure(self, target: Target, outcome: Any) -> Any:
        if isinstance(outcome, BaseException):
            return outcome
        try:
            return self.parsed(target, outcome)
        except f.ResultUnusable as error:
            return error

    def parsed(self, target: Target, value: Json) -> Any:
        """Return the value as the tool's `into` makes it. Raises ResultUnusable."""
        if target.into is None:
            return value
        try:
            return looking(self.core, partial(target.into, value))
        except f.ToolUsesRun as mistake:
            self.core.stop(mistake)
            raise
        except Exception as error:
            why = f.error_of(error)[0]
            text = f"{target.name}: into= can't parse the recorded result: {why['type']}: {why['message']}"
            raise f.ResultUnusable(text) from error

    # Which call is it.

    def identify(self, entry: Entry, target: Target, args: dict[str, Json], own_key: str) -> Verb[str]:
        """Return which call it is: by the tool's own key, or by the smallest n that is free in this entry.

        An n is free if its call is neither in flight nor was returned completed.
        """
        digest = args_sha256(identity := target.identity(args))
        if isinstance(target, ToolTarget) and (mistake := self.names.claim(target.tool, entry.functions)) is not None:
            self.core.halt(mistake)
        store = self.core.lineage.store_id if isinstance(target, ToolTarget) else ""
        call_id = own_key or self.free_id(entry, target.name, identity, store)
        if not own_key and isinstance(target, ToolTarget) and target.policy not in REPEATABLE | {"outbox"}:
            call_id = yield from self._equal(entry, target, args, call_id)
        if own_key and any(each not in (None, (target.name, digest)) for each in known(self.core, entry, call_id)):
            raise f.KeyReused(f"{target.name}: the key {own_key!r} is that of another tool or of other arguments")
        if isinstance(target, ModelTarget):
            call_id = yield from self.request(entry, target, args["request"], call_id)
        if call_id not in self.core.state.calls.known:
            asked = args.get("request") if isinstance(target, ModelTarget) else args
            entry.unrecorded[target.name] = asked, entry.places.get(call_id, 0)
        entry.asked.add(call_id)
        entry.recorded.discard(call_id)
        entry.busy[call_id] = target.name, digest
        return call_id

    def _equal(self, entry: Entry, target: ToolTarget, args: dict[str, Json], own_id: str) -> Verb[str]:
        """Return which call this one is, of equal ones that may have happened: engine.md C10.

        Those of this step, its own and those that it has taken over, come in the order in which they became its calls;
        then the oldest one of another step of which nobody knows, or of which somebody has said that it happened and
        the agent hasn't heard; this step takes it over.
        """
        calls = self.core.state.calls
        for call_id in calls.taken_over(entry.step):
            if call_id not in entry.busy and same(self.core, calls.known[call_id], target, args):
                if self._older(own_id, calls.known[call_id].taken_seq):
                    return own_id
                return call_id
        for call_id in calls.kept_elsewhere(target.name, entry.step):
            if call_id in entry.busy or not same(self.core, calls.known[call_id], target, args):
                continue
            if self._older(own_id, None):
                return own_id
            entry.busy[call_id] = target.name, ""  # before anything else is asked for
            yield from self.core.append(e.ToolAdopted(call_id))
            return call_id
        return own_id

    def _older(self, own_id: str, than: int | None) -> bool:
        """Return whether a step's own call was on record before a place; None: at all."""
        call = self.core.state.calls.known.get(own_id)
        if call is None:
            return self.core.lineage.effect(own_id) is not None
        return than is None or call.began < than

    def request(self, entry: Entry, target: ModelTarget, asked: AskedRequest, call_id: str) -> Verb[str]:
        """Return which recorded request this one is: its equal; else the one in its place that differs in clocks only.

        If a person has said so, it is the next one that hasn't been asked for again, whatever differs (engine.md C13).

        The place is that in the order of asking, which is the agent's own; the order of the ends would give one's
        answer to another, and so would the next one that has something to give: a date may be what is asked about.
        """
        same = entry.stands.get(call_id, call_id)
        if same not in entry.busy:
            call_id = same
        place = len(entry.places) + 1
        if call_id not in entry.places and self.core.state.calls.known.get(call_id, _NOBODY).step != entry.step:
            opened = self.core.state.steps.open
            recorded = opened is not None and opened.recorded
            alike = self._next_recorded(entry) if recorded else self._in_place(entry, target, asked, place)
            if len(alike) == 1:
                entry.stands[call_id] = call_id = alike[0]
                note = e.NoteAdded(f"request_changed {call_id}", code="request_changed", call_id=call_id)
                yield from self.core.append(note)
        entry.places.setdefault(call_id, place)
        return call_id

    def _in_place(self, entry: Entry, target: ModelTarget, asked: AskedRequest, place: int) -> list[str]:
        """The recorded requests in this place that differ from this one in their clocks and have something to give."""
        calls = entry.unasked(self.core.state.calls.known)
        there = {key: call for key, call in calls.items() if call.began and call.place == place}
        if not there:
            return []
        found: list[str] = []
        for key, call in there.items():
            if call.tool == target.name and key not in entry.asked and alike(self.core, call, asked):
                found.append(key)
        return found

    def _next_recorded(self, entry: Entry) -> list[str]:
        """The first of the recorded requests, in the order of asking, that hasn't been asked for again."""
        calls = entry.unasked(self.core.state.calls.known)
        left = [key for key, call in calls.items() if call.began and call.place and key not in entry.asked]
        return sorted(left, key=lambda key: calls[key].place)[:1]

    def free_id(self, entry: Entry, what: str, args: Json, store: str = "") -> str:
        """Return the id of a call or a question: equal ones are told apart by n. That of a tool joins the `store`'s."""
        lineage, step = self.core.lineage, entry.step
        first = call_key(lineage.scope, step, what, args, 1, lineage.salt, store)
        n = entry.numbers.get(first, 1)
        while (
            call_id := first if n == 1 else call_key(lineage.scope, step, what, args, n, lineage.salt, store)
        ) in entry.busy:
            n += 1
        entry.numbers[first] = n
        return call_id

    # What a recorded call returns.

    def outcome(self, entry: Entry, call_id: str, target: Target, args: dict[str, Json]) -> Verb[Json]:
        """Return the value, or raise what the agent is told."""
        while True:
            outcome = yield from self.recorded(entry, call_id, target, args)
            if isinstance(outcome, Live | Nobody):
                outcome = yield from self._made(entry, call_id, target, args, outcome)
            if outcome is not PERSON and outcome is not PAUSED:
                return outcome
            yield from self._waited(entry, call_id, target, args, outcome)

    def _waited(self, entry: Entry, call_id: str, target: Target, args: dict[str, Json], outcome: Any) -> Verb[None]:
        """Wait for a person's word about a call, or until it may be sent again."""
        try:
            yield from self.waiter.wait_for(entry, self._awaiting(call_id, outcome))
        except self.core.driver.cancellation:
            if outcome is PAUSED:
                yield from self.sender.give_up(entry, call_id, target, args)
            raise

    def _awaiting(self, call_id: str, outcome: Any) -> Awaiting:
        if outcome is PERSON:
            return Awaiting("question", call_id)
        return Awaiting("timer", call_id, self.sender.due_at(call_id) or timestamp(self.core.lineage.clock.now()))

    def _made(
        self, entry: Entry, call_id: str, target: Target, args: dict[str, Json], outcome: Live | Nobody
    ) -> Verb[Any]:
        """Send a call, its intent directly before its body; return its value, PERSON or PAUSED.

        Raises what the agent is told.

        One whose failure proves nothing is judged as after a crash, but that its hook was asked just now.
        """
        while outcome is LIVE:
            if target.policy == "outbox":
                yield from self.sender.start(entry, call_id, target, args)
                return call_id
            if (yield from self.sender.paused(entry, call_id, target, args)):
                return PAUSED
            started = yield from self.sender.start(entry, call_id, target, args)
            outcome = yield from self.sender.finish(entry, call_id, target, args, started)
            if outcome is LOST:
                outcome = yield from self.recorded(entry, call_id, target, args, asked=True)
        if isinstance(outcome, Nobody):
            yield from self._tell_unknown(entry, call_id, target, outcome)
        return outcome

    def _tell_unknown(self, entry: Entry, call_id: str, target: Target, answer: Nobody) -> Verb[NoReturn]:
        """Record that the agent is told that nobody knows, and tell it in its turn, as any end.

        Whoever was told at once would free its call for another task, whose equal call is another one.
        """
        call = self.core.state.calls.known[call_id]
        failure = f.outcome_unknown(target.name, call_id, self._failure(call))
        stored, _ = f.error_of(failure)
        end = e.ToolFailed(call_id, call.attempt, stored, transient=False, settled=answer.settled)
        at = yield from self.core.append(end)
        entry.script.append(ScriptItem(at, "tell", call_id, 0))
        yield from self.sender.told_in_turn(entry, at, call_id)
        self.order.tell(entry, at)
        raise failure

    def _untold(self, entry: Entry, call_id: str) -> list[int]:
        """Return the places of the ends of a call that this attempt was told, and this entry hasn't been told yet."""
        call = self.core.state.calls.known.get(call_id)
        if call is None or call.step != entry.step:
            return []
        return [int(told[0]) for told in call.told if told[0] not in self.order.heard]

    def _next_told(self, entry: Entry, call_id: str) -> float:
        return next(iter(self._untold(entry, call_id)), float("inf"))

    def recorded(
        self, entry: Entry, call_id: str, target: Target, args: dict[str, Json], *, asked: bool = False
    ) -> Verb[Any]:
        """Return what the log has: history first, then what is known. Raises what the agent is told.

        LIVE: send the call. PERSON: wait for a word. Nobody: the agent is told that nobody knows. `asked`: its hook has
        just said that it doesn't know.
        """
        core = self.core
        while True:
            told = self._untold(entry, call_id)
            if not told:
                break
            at = told[0]
            yield from self.sender.told_in_turn(entry, at, call_id)
            cut = at in entry.cuts
            try:
                if cut:
                    yield from self._park(entry, call_id, at)
            finally:  # its cancel came: that is what it was told
                self.order.tell(entry, at)
            if not cut:
                return self.value_at(at)
        if (word := entry.word(call_id)) is not None:
            yield from self.order.turn(entry, word, call_id)
            self.order.tell(entry, word)
        verdict = yield from self.verdict(call_id, target, args, asked=asked)
        if verdict == "run":
            return LIVE
        call = core.state.calls.known.get(call_id)
        if target.policy == "outbox" or (call is not None and call.policy == "outbox"):
            return call_id
        if verdict == "recorded":
            if call is not None and call.untold:
                yield from core.append(e.ToolAdopted(call_id))
            known = call.value_seq if call is not None and call.status == "completed" else None
            return self.value_at(known) if known else self._effect_value(call_id)
        if call is None:
            return LIVE
        if verdict == "ask":
            return PERSON
        return Nobody(settled=verdict == "tell")

    def _failure(self, call: Call) -> dict[str, Any] | None:
        """Return the error that the newest attempt of a call ended with, whoever was told so; None if it has no end."""
        event = self.core.lineage.event_at(call.value_seq) if call.value_seq and call.ended == call.attempt else None
        if not isinstance(event, e.ToolFailed):
            return None
        told: dict[str, Any] | None = event.error.get("original")
        return told if tells_unknown(event) else event.error

    def verdict(
        self, call_id: str, target: Target | None, args: dict[str, Json], *, asked: bool = False
    ) -> Verb[Verdict]:
        """Return what becomes of a call now. If it has a hook, that has been asked, and what it said is on record."""
        call = self.core.state.calls.known.get(call_id)
        happened = self.core.lineage.effect(call_id) is not None
        if call is None:
            return "recorded" if happened else "run"
        now = self.core.lineage.moment()
        # Of one that was cut and is still being made here no hook can know what it comes to.
        tool = None if target is None else today(target, hook=not (asked or self.sender.bodies[call_id]))
        verdict = judge(call, tool, now, happened=happened).verdict
        if verdict != "hook" or target is None or tool is None:
            return verdict
        word = self.sender.word(target, args, call_id)
        if word is None:
            return judge(call, tool._replace(hook=False), now).verdict
        outcome = "happened" if word[0] == "happened" else "did_not_happen"
        yield from self.core.append(e.ToolResolved(call_id, call.attempt, outcome, word[1]))
        return "recorded" if outcome == "happened" else "run"

    def value_at(self, at: int) -> Json:
        """Return the value of the end at a place; raise what the agent is told of a failure."""
        event = self.core.lineage.event_at(at)
        match event:
            case e.ToolCompleted(result_error=dict(error)):
                call = self.core.state.calls.known.get(event.call_id)
                raise f.unusable("the call" if call is None else call.tool, error)
            case e.ToolCompleted() | e.ToolResolved():
                return event.result
            case e.ModelCompleted():
                return event.response
            case e.ToolFailed() | e.ModelFailed():
                raise f.call_failure(event.error, transient=event.transient)
            case _:
                raise f.Mistake(f"the log has no outcome at {at}")

    def _effect_value(self, call_id: str) -> Json:
        effect = self.core.lineage.effect(call_id)
        event = self.core.lineage.event_of(effect.run_id, effect.seq) if effect else None
        if isinstance(event, e.ToolCompleted) and event.result_error:
            raise f.unusable(effect.tool if effect else "the call", event.result_error)
        return event.result if isinstance(event, e.ToolCompleted | e.ToolResolved) else None

    def _park(self, entry: Entry, call_id: str, at: int) -> Verb[None]:
        """Wait for the cancel of an asker who was cancelled before.

        It comes by the same timeout, or by what was told before.
        """
        start = (
            e.ModelStarted
            if isinstance(self.core.lineage.event_at(at), e.ModelCompleted | e.ModelFailed)
            else e.ToolStarted
        )
        took_s = self.core.lineage.seconds(at, start, call_id)
        entry.held.add(call_id)
        try:
            yield from self.core.until(lambda: False, took_s + left_out_wait_s)
        finally:
            entry.held.discard(call_id)

    # Waiting for a word.

    def wait(self, entry: Entry, waits: list[dict[str, Any]], *before: Event, due_at: str | None = None) -> Verb[None]:
        """Let the run wait; it goes on at `due_at` (UTC text) though nothing has come."""
        return self.waiter.wait(waits, *before, due_at=due_at)


_NOBODY: Final = Call("", "", "\0")
