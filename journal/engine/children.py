"""Children, in the core of a run: runs that it begins, and whose ends its agent is told.

A child is a call whose attempts are the runs of its line. Which child it is follows from the ask, as with calls. What
`wait` returns is history first, the ends that this attempt of the step was told, each once, in the order of the log;
then how the line of the child stands now. The rules: engine.md K1 to K13.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol, TypedDict

from runjournal.log import events as e
from runjournal.log.base import Json
from runjournal.log.codec import check_run_id, plain, tellable
from runjournal.log.errors import InvalidArgument, StoreError, Unstorable, WrongExpectation
from runjournal.log.limits import left_out_wait_s
from runjournal.projections.children import LEFT, REFUSED, child_key

from . import failures as f
from .budget import Budget, left_for_children
from .calls import Caller
from .commands import Append, Ended, Invoke, Verb, WithRun
from .requests import copied
from .script import Awaiting, Entry, ScriptItem


class ChildOptions(TypedDict, total=False):
    """What a child takes beside its agent and its input.

    `run_id` is its id, one child in all of the run; by default its id is made of the run's and of the ask. `kind` is
    the agent's name, unless it says another. `budget` is what it may spend, reserved out of the run's own.
    """

    run_id: str | None
    kind: str | None
    title: str | None
    budget: Budget | None


class AskedChild(NamedTuple):
    """What a child is asked for: its agent's kind, its input, its own id if it was given one, and what it may spend."""

    kind: str
    input: Json
    run_id: str | None = None
    title: str | None = None
    budget: dict[str, Any] | None = None


def asked_child(agent: Callable[..., Any], input: Json, how: ChildOptions, *, awaits: bool) -> AskedChild:
    """Return what a child is asked for, as it is stored; `awaits`: a loop runs it. Raises Mistake, WrongArgument."""
    if awaits != _is_async(agent):
        what = "no coroutine function, and an asyncio run" if awaits else "a coroutine function, and a run of threads"
        raise f.Mistake(f"run.spawn: the agent is {what} can't run it: let both be the same")
    try:
        run_id, kind, budget = how.get("run_id"), how.get("kind"), how.get("budget")
        if run_id is not None:
            check_run_id(run_id)
        named = getattr(agent, "__name__", "agent") if kind is None else kind
        kind = "agent" if named == "<lambda>" else named
        stored = None if budget is None else plain(dict(budget))
        return AskedChild(kind, plain(input), run_id, tellable(how.get("title")), stored)
    except (InvalidArgument, Unstorable) as error:
        raise f.WrongArgument(f"run.spawn: {error}") from error


def _is_async(agent: Callable[..., Any]) -> bool:
    called = getattr(agent, "__call__", None)  # noqa: B004 - an object may be one
    return inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(called)


class ChildStanding(NamedTuple):
    """How the line of a child stands: its newest run, and the end of that, None while it goes on.

    `ready`: it may be run here, now; `due_at`: then it may be (UTC text). `spent` is what its line and all below
    it have spent, {usd, tokens}. `above`: of one that was cancelled, the run whose cancel alone has done that.
    """

    run_id: str
    end: e.RunCompleted | e.RunFailed | e.RunCancelled | e.RunPurged | None
    ready: bool
    spent: dict[str, Any] | None = None
    due_at: str | None = None
    above: str | None = None


class Nursery(Protocol):
    """What the engine knows of other runs, and how it has them run."""

    def id_of(self, scope: str, call_id: str) -> str:
        """Return the id of a child that was given none."""
        ...

    def first(self, run_id: str) -> tuple[e.Event, str | None] | None:
        """Return the first event of a run and the scope of the run that began it; None if there is no such run."""
        ...

    def standing(self, run_id: str, *, spent: bool) -> ChildStanding | None:
        """Return how the line of a run stands; None if there is no such run."""
        ...

    def take_up(self, run_id: str) -> bool:
        """Retry a child that was cancelled with the run that began it; return whether its line has gone on."""
        ...

    def path_of(self, agent: Callable[..., Any]) -> str | None:
        """Return how an agent is found again in another process, None if it can't be."""
        ...

    def found(self, path: str | None) -> Callable[..., Any] | None:
        """Return the agent of a path, as this process has it; None if it hasn't."""
        ...

    def body(self, agent: Callable[..., Any], run_id: str) -> Callable[[], Any]:
        """Return what runs an agent on a run of its own, to its end or until it waits."""
        ...


class ChildCalls:
    """The children of one run."""

    def __init__(self, caller: Caller, nursery: Nursery) -> None:
        self.caller = caller
        self.core = caller.core
        self.order = caller.order
        self.nursery = nursery
        self._agents: dict[str, Callable[..., Any]] = {}  # by the id of a child, of those asked for in this process

    # Beginning one.

    def spawn(self, agent: Callable[..., Any], asked: AskedChild) -> Verb[str]:
        """Begin a child, or find the one that this ask has begun; return its id. Raises CallFailed, KeyReused."""
        entry, what = self.caller.entry(), f"spawn {asked.kind}"
        f.check_name(what, "a child")
        args: dict[str, Json] = {"input": asked.input}
        call_id = self.caller.free_id(entry, what, args) if asked.run_id is None else f"spawn {asked.run_id}"
        entry.asks[call_id] += 1
        entry.busy[call_id] = what, ""
        while (at := self._untold(call_id)) is not None:
            yield from self.caller.sender.told_in_turn(entry, at, call_id)
            self.order.tell(entry, at)
            self._refuse(at)
        child_id = self.core.state.children.of_call(call_id)
        if child_id is None:
            entry.unrecorded[what] = args, 0
            yield from self.order.nothing_left_out(entry, f"{what} was asked for anew", call_id)
            child_id = asked.run_id or self.nursery.id_of(self.core.lineage.scope, call_id)
            yield from self._begin(entry, child_id, call_id, agent, asked)
        elif asked.run_id is not None:
            self._check_same(child_id, asked)
        entry.asked.add(call_id)
        self._agents[child_id] = agent
        return child_id

    def _begin(
        self, entry: Entry, child_id: str, call_id: str, agent: Callable[..., Any], asked: AskedChild
    ) -> Verb[None]:
        """Append a child and that this run has begun it, at once; or that alone, if the line of this run has it."""
        core, budget = self.core, asked.budget
        queued = e.RunQueued(
            asked.kind, asked.input, title=asked.title, parent_run_id=core.lineage.run_id, link="child", budget=budget
        )
        spawned = e.ChildSpawned(child_id, asked.kind, call_id, self.nursery.path_of(agent), budget)
        while True:
            if self.nursery.first(child_id) is not None:
                self._check_same(child_id, asked)
                yield from core.append(spawned)
                return
            why = left_for_children(core.state, budget)
            if why is not None:
                yield from self._tell_refused(entry, call_id, why)
            core.alive()
            core.stop_if_blind(spawned.TYPE)
            try:
                yield from core.commit(Append(WithRun((spawned,), child_id, queued)))
            except WrongExpectation:
                continue  # somebody has just begun a run of this id
            except StoreError as error:
                core.stop(error)
                raise
            return

    def _check_same(self, child_id: str, asked: AskedChild) -> None:
        """Check that a run is a child of this line that was asked for in the same words. Raises KeyReused."""
        there = self.nursery.first(child_id)
        queued, scope = there if there is not None else (None, None)
        if not isinstance(queued, e.RunQueued) or scope != self.core.lineage.scope:
            raise f.KeyReused(f"run {child_id} is there, and this run hasn't begun it: give the child another run_id")
        if (queued.kind, queued.input) != (asked.kind, asked.input):
            raise f.KeyReused(
                f"run {child_id} is a child of this run, of another kind or input: give it another run_id"
            )

    def _tell_refused(self, entry: Entry, call_id: str, why: str) -> Verb[NoReturn]:
        at = yield from self.core.append(e.NoteAdded(why, code=REFUSED, call_id=call_id))
        yield from self._told(entry, at, call_id)
        raise f.CallFailed("BudgetExceeded", why)

    def _refuse(self, at: int) -> NoReturn:
        note = self.core.lineage.event_at(at)
        raise f.CallFailed("BudgetExceeded", note.text if isinstance(note, e.NoteAdded) else "")

    # Waiting for one.

    def wait(self, child_id: str, agent: Callable[..., Any] | None = None) -> Verb[Json]:
        """Return the output of a child, which is run here if nobody else runs it. Raises ChildFailed, NotAChild."""
        entry, key = self.caller.entry(), child_key(child_id)
        entry.asks[key] += 1
        entry.asked.add(key)
        self.core.driver.settle()
        if agent is not None:
            self._agents[child_id] = agent
        while (flight := entry.shared.get(key)) is not None:  # another task waits for it: both are told
            yield from self.core.until(partial(bool, flight), None)
            if not flight:
                raise f.Mistake(f"run {child_id} is waited for in a thread that the run doesn't know: use run.thread")
            value, failure = flight[0]
            if isinstance(failure, Exception):
                raise failure
            if failure is None:
                return copied(value)
        entry.shared[key] = []
        try:
            value = yield from self._outcome(entry, child_id, key)
        except BaseException as error:
            self.caller.share(entry, key, None, error)
            raise
        self.caller.share(entry, key, value)
        return value

    def _untold(self, about: str) -> int | None:
        """Return the first place of what this attempt was told of it and this entry hasn't been told yet."""
        places = self.core.state.children.history(about)
        return next((at for at in places if at not in self.order.heard), None)

    def _outcome(self, entry: Entry, child_id: str, key: str) -> Verb[Json]:
        core, tried = self.core, False
        while True:
            if (at := self._untold(key)) is not None:
                yield from self.caller.sender.told_in_turn(entry, at, key)
                cut = at in entry.cuts
                try:
                    if cut:
                        yield from self._park(entry, key, at)
                finally:
                    self.order.tell(entry, at)
                if not cut:
                    return self._value(at)
                continue
            child = core.state.children.known.get(child_id)
            if child is not None and child.ended_seq and (child.settled or child.status == "completed"):
                return self._value(child.ended_seq)
            there = self.nursery.standing(child_id, spent=core.state.status.budget is not None)
            if there is None or (child is None and not self._is_ours(child_id)):
                raise f.NotAChild(f"run {child_id} is no child of this run: run.spawn begins one, and returns its id")
            if there.above == core.lineage.run_id:
                core.halt(f.Cancelled(f"run {there.run_id} was cancelled with the run that has begun it"))
            if there.above is not None and self.nursery.take_up(there.run_id):
                continue
            if there.end is not None:
                at = yield from core.append(_finished(child_id, there))
                if isinstance(there.end, e.RunCancelled) and core.state.status.cancel:  # it was cancelled from above
                    core.halt(f.Cancelled(f"run {child_id} was cancelled with the run that has begun it"))
                yield from self._told(entry, at, key)
                return self._value(at)
            agent = self._agents.get(child_id) or self.nursery.found(child.agent if child is not None else None)
            if tried or agent is None or not there.ready:
                yield from self.caller.waiter.wait_for(entry, Awaiting("child", child_id, there.due_at))
                tried = False  # it is due
            else:
                tried = yield from self._run(entry, key, agent, there.run_id)

    def _park(self, entry: Entry, key: str, at: int) -> Verb[None]:
        """Wait for the cancel of an asker who was cancelled before: as long as his step took then, and a while more."""
        took_s = self.core.lineage.seconds(at, e.StepStarted)
        entry.held.add(key)
        try:
            yield from self.core.until(lambda: False, took_s + left_out_wait_s)
        finally:
            entry.held.discard(key)

    def _is_ours(self, child_id: str) -> bool:
        there = self.nursery.first(child_id)
        return there is not None and there[1] == self.core.lineage.scope

    def _told(self, entry: Entry, at: int, key: str) -> Verb[None]:
        """Tell something that was just recorded, in its turn."""
        entry.add(ScriptItem(at, "tell", key, 0))
        yield from self.caller.sender.told_in_turn(entry, at, key)
        self.order.tell(entry, at)

    def _value(self, at: int) -> Json:
        """Return the output in the end at a place. Raises ChildFailed."""
        event = self.core.lineage.event_at(at)
        if not isinstance(event, e.ChildFinished):
            raise f.Mistake(f"the log has no end of a child at {at}")
        if event.status == "completed":
            return copied(event.output)
        raise f.ChildFailed(event.child_run_id, event.status, event.error or _UNTOLD)

    def _run(self, entry: Entry, key: str, agent: Callable[..., Any], run_id: str) -> Verb[bool]:
        """Run a child here; return True when it has ended or waits. What stops it for good stops this run, too."""
        core = self.core
        entry.flights[key] = core.driver.current()
        try:
            ended: Ended = yield Invoke(
                self.nursery.body(agent, run_id),
                cuttable=True,
                timeout_s=None,
                late=_nothing,
                blocking=not core.driver.awaits,
                leaves=True,
            )
        finally:
            entry.flights.pop(key, None)
            core.driver.ring()
        if ended.cancelled is not None:
            if not (core.stopped or core.leaving):
                at = yield from core.record(e.NoteAdded("its asker was cancelled", code=LEFT, call_id=key))
                entry.add(ScriptItem(at, "tell", key, 0))
                self.order.tell(entry, at)
            raise ended.cancelled
        error = ended.error
        stops = f.Mistake | f.EffectNotRecorded | f.BROKEN
        ends = isinstance(error, stops) or not isinstance(error, Exception | f.CodeDiffers)
        if error is not None and ends:
            core.stop(error)
            raise error
        return True


def _finished(child_id: str, there: ChildStanding) -> e.ChildFinished:
    """Return how a child has ended, as the agent is told."""
    ended_as = None if there.run_id == child_id else there.run_id
    match there.end:
        case e.RunCompleted(output=output):
            return e.ChildFinished(child_id, "completed", output, ended_as=ended_as, spent=there.spent)
        case e.RunFailed(error=error):
            kept = {name: value for name, value in error.items() if name not in ("kind", "note", "original")}
            return e.ChildFinished(child_id, "failed", error=kept, ended_as=ended_as, spent=there.spent)
        case e.RunCancelled(reason=reason):
            error = {"type": "RunCancelled", "message": reason or f"run {there.run_id} was cancelled"}
            return e.ChildFinished(child_id, "cancelled", error=error, ended_as=ended_as, spent=there.spent)
        case _:
            error = {"type": "RunPurged", "message": f"run {there.run_id} was purged"}
            return e.ChildFinished(child_id, "failed", error=error, ended_as=ended_as, spent=there.spent)


_UNTOLD = {"type": "Unknown", "message": ""}


def _nothing(_: Ended) -> None:
    """Do nothing: whoever cuts a child waits until it is released."""
