"""Owning a run: claims, recovery before the agent is called, the agent's end, and what a fenced owner may still say.

The rules: engine.md V1 to V6, and engine.md F3, F4 for what leaves the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from runjournal.engine import failures as f
from runjournal.engine.attempts import Sender
from runjournal.engine.budget import exceeded
from runjournal.engine.callees import ToolTarget
from runjournal.engine.calls import Caller
from runjournal.engine.commands import Made, WithRun
from runjournal.engine.core import Core
from runjournal.engine.driver import Driver
from runjournal.engine.lineage import Lineage
from runjournal.engine.media import RunMedia
from runjournal.engine.order import TellingOrder
from runjournal.engine.parts import RunParts
from runjournal.engine.steps import StepControl
from runjournal.engine.tools import TOOL_CONTEXT, Tool, claims, known, same_name
from runjournal.engine.waits import awaited, only_timers
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.base import Event, Json, RecordedEvent
from runjournal.log.clock import timestamp
from runjournal.log.codec import plain
from runjournal.log.errors import AppendRefused, CancelRequested, RunNotFound, StoreError
from runjournal.log.head import RECOVERIES, TERMINAL, Head
from runjournal.log.limits import (
    backoff_s,
    lease_s,
    rounds_max,
)
from runjournal.projections.shell import store_option
from runjournal.projections.state import RunState
from runjournal.writing import purged
from runjournal.writing.appender import Batch, SharedAppend

from . import children
from .agent_code import agent_path, code_version
from .cancelling import CANCELLED, CANCELLED_ABOVE, cancel_below
from .leaving import left_by, restart_loop
from .logbook import Logbook
from .patience import Patience
from .questions import not_due
from .resumes import LivePast
from .run import Run, SyncDriver
from .stopping import heeded_by, heeding
from .telling import tell

Agent = Callable[[Run], Any]

WAITS: Final = (f.RunWaiting, f.CodeDiffers)
"""What whoever runs a run is told when it waits for people, who are told then, too."""


class Claim(NamedTuple):
    """A run that this process owns, with its epoch, and the agent's code as it was when the run last got on.

    The lease runs from `since`, in seconds since boot, or a little later.
    """

    run_id: str
    epoch: int
    known_code: str
    since: float


class AgentEnd(NamedTuple):
    """How an agent has ended: the event that says so, and what it returned, or the error that left it."""

    event: Event
    output: Json = None
    error: BaseException | None = None

    def told(self) -> Json:
        """Return what it returned, or raise what left it."""
        if self.error is not None:
            raise self.error
        return self.output


class Runner:
    """Runs agents on a journal, in the thread that asks."""

    def __init__(
        self, log: Logbook, tools: dict[str, Tool[..., Any]] | None = None, *, patience: int | None = None
    ) -> None:
        self.log = log
        self.tools = known() if tools is None else tools
        self.patience = log.stop_limits.recoveries_max if patience is None else patience

    # Claiming.

    def claim(
        self,
        run_id: str,
        *,
        resume: str | None = None,
        code: str | None = None,
        agent: str | None = None,
        only_new: bool = False,
        tried: list[Batch] | None = None,
    ) -> Claim | None:
        """Become the owner. A cancel beats any resume; a run that doesn't get on isn't tried for ever. One append.

        Who has `code`, its agent's, may try a run that other code has stopped, with `only_new` once. `tried` is given
        what is appended, before it is: an interrupt may come behind the commit.

        None if the run has ended, or waits for what hasn't come. Raises RunBusy, RunNotDue, RunNotFound.
        """
        log, clock = self.log, self.log.clock
        if (left := log.ownership.leases.left(run_id)) is not None:
            with suppress(AppendRefused):  # another process has it by now
                self._give_back(run_id, left)
        head = log.store.head(run_id)
        if head is None:
            raise RunNotFound(run_id)
        if head.status in TERMINAL or head.unowned or log.store.imported(run_id) is not None:
            return None
        if head.status == "running" and not owner.gone(head, log.ownership.process, clock):
            raise f.RunBusy(f"run {run_id}: its owner {head.owner} is alive")
        state = log.fold(RunState, run_id, at=head.head_seq)  # of our own: an agent may be at work with the journal's
        due = head.due_at is not None and head.due_at <= timestamp(clock.now())
        if head.status == "waiting" and not (state.status.woken or due or head.cancel_requested or resume == "manual"):
            if only_timers(state):
                raise not_due(log, state)
            resume = children.resumed(log, state, code=code, only_new=only_new)
            if resume is None:
                return None
        events: list[Event] = []
        stuck, entered = state.status.stuck, state.steps.open.recoveries if state.steps.open else 0
        since = clock.boottime_s()
        if head.status == "running":
            events.append(lapse := e.RunRequeued(self._lapse(head, state, code)))
            counted = int(lapse.reason in RECOVERIES)
            stuck, entered = stuck + counted, entered + counted
        if head.status == "scheduled_retry" and not head.cancel_requested:
            if head.due_at is not None and not due:
                raise not_due(log, state)
            events.append(e.RunRequeued("retry_due"))
        if head.cancel_requested:
            cancel_below(log, run_id, CANCELLED_ABOVE, head.cancel_requested)
            events.append(e.RunCancelled(CANCELLED))
        elif (hopeless := self._hopeless(state, stuck, entered)) is not None and head.status != "waiting":
            events.append(hopeless)
        else:
            came = "crash" if head.status == "running" else state.status.freed or None
            events.append(self._claimed(head, came if resume is None else resume, code, agent))
        try:
            batch = log.batch(run_id, events, expect=head.head_seq)
            if tried is not None:
                tried.append(batch)
            log.append(batch)
        except AppendRefused as error:
            raise f.RunBusy(f"run {run_id}: somebody else was faster") from error
        claimed = isinstance(events[-1], e.RunClaimed)
        return Claim(run_id, head.epoch + 1, state.status.proven_code or "", since) if claimed else None

    def _lapse(self, head: Head, state: RunState, code: str | None) -> str:
        """Return why the owner of a run is gone."""
        before, ownership = state.status.code_version, self.log.ownership
        redeployed = bool(code and before) and code != before
        stopping = state.status.stopping
        return owner.lapse_reason(head, self.log.clock, ownership.process, stopping=stopping, redeployed=redeployed)

    def _hopeless(self, state: RunState, stuck: int, entered: int) -> e.RunWaiting | e.RunFailed | None:
        """Return what becomes of a run instead of being claimed; None if it may be claimed.

        It waits for a person's `resume` if it doesn't get on, and is ended if its budget is used up between two steps.
        In a step it may still end well, by what is on record; there the budget is checked before the next paid call.
        """
        if stuck > self.patience:
            return restart_loop(f"{stuck} recoveries, and no call or step ended in between")
        if entered > self.log.stop_limits.attempt_recoveries_max:
            step = state.steps.open.id if state.steps.open else ""
            return restart_loop(f"{entered} recoveries within one attempt of step {step}")
        over = None if state.steps.open else exceeded(state, timestamp(self.log.clock.now()))
        return None if over is None else e.RunFailed(over.error, [], over.cause)

    def _claimed(self, head: Head, resume: str | None, code: str | None, agent: str | None) -> e.RunClaimed:
        me = self.log.ownership.process
        return e.RunClaimed(
            self.log.by,
            head.epoch + 1,
            lease_s,
            me.host,
            me.boot_id,
            me.pid_ns,
            me.pid,
            me.started,
            resume,
            code or None,
            agent,
        )

    def check_kind(self, run_id: str, kind: str) -> None:
        """Raise KindDiffers if a run of this id is the work of another agent."""
        known = self.log.head(run_id).kind
        if known != kind:
            raise f.KindDiffers(
                f"run {run_id} is of the kind {known!r}, and this agent is {kind!r}: give it an id of its own, or pass "
                f"kind={known!r} if the agent was renamed"
            )

    def check_input(self, run_id: str, given: Json) -> None:
        """Raise InputDiffers if a run of this id has another input. None stands for no input: it is not compared."""
        if given is None:
            return
        queued = next(iter(self.log.events(run_id, upto=1))).event
        if isinstance(queued, e.RunQueued) and queued.input != plain(given):
            raise f.InputDiffers(f"run {run_id} is there with another input; give this one an id of its own")

    # Running.

    def run(self, agent: Agent, run_id: str, *, only_new: bool = False, wait_s: float = 0.0) -> Json:
        """Go on with a run, or say how it ended. `only_new`: code that has stopped it isn't tried once more.

        `wait_s`: sleep up to so many seconds in all for times at which it goes on.
        """
        patience = Patience(self.log, run_id, wait_s)
        while True:
            tried = list[Batch]()
            try:
                return self._run(agent, run_id, tried, only_new=only_new)
            except BaseException as error:
                if isinstance(error, WAITS):
                    tell(self.log, run_id)
                elif not isinstance(error, Exception | f.Stop):
                    self.let_go(tried)
                pause_s = patience.pause_s(error)
                if pause_s is None:
                    raise
            self.log.clock.sleep(pause_s)

    def _run(self, agent: Agent, run_id: str, tried: list[Batch], *, only_new: bool) -> Json:
        code = code_version(agent)
        with heeding(self.log.stop_limits.grace_s) as heed:
            claim = self.claim(run_id, code=code, agent=agent_path(agent), only_new=only_new, tried=tried)
            if claim is None:
                return self.outcome(run_id)
            (run, parts), output = self.open(claim, code), list[Json]()
            heeded_by(heed, self.log, parts.core, parts.core.driver.ring)
            with self.owned(claim):
                self.triage(parts)
                output.append(self._drive(partial(agent, run), parts))
            return output[0] if output else self.outcome(run_id)

    def let_go(self, tried: Sequence[Batch]) -> None:
        """After an interrupt: release a run that was claimed and that nobody here goes on with.

        It may have come before the claim was known to be made, or while the run was released: to append the claim
        again is to ask whether it is there.
        """
        for batch in tried:
            claimed = batch.drafts[-1].event
            with suppress(AppendRefused, StoreError):
                if isinstance(claimed, e.RunClaimed):
                    self.log.append(batch)
                    self._give_back(batch.run_id, claimed.epoch)

    def _give_back(self, run_id: str, epoch: int) -> None:
        """Release a run, if it is still owned with this epoch."""
        self.log.ownership.leases.drop(run_id, epoch)
        head = self.log.head(run_id)
        if (head.status, head.epoch) == ("running", epoch):
            self._leave(run_id, epoch, e.RunRequeued("released"))

    def _leave(self, run_id: str, epoch: int, event: Event) -> None:
        """Append as the owner what leaves the run to others; its end, if a cancel was requested."""
        try:
            self.log.append(run_id, [event], epoch=epoch)
        except CancelRequested:
            self._obey(run_id, epoch)

    def _obey(self, run_id: str, epoch: int) -> None:
        """End a run that is to be cancelled, as its owner; its children first."""
        mode = self.log.head(run_id).cancel_requested or "after_step"
        cancel_below(self.log, run_id, CANCELLED_ABOVE, mode)
        self.log.append(run_id, [e.RunCancelled(CANCELLED)], epoch=epoch)

    @contextmanager
    def owned(self, claim: Claim, left: Callable[[], bool] = lambda: False) -> Generator[None]:
        """Own the run while the block lasts.

        What leaves the block decides: the run waits, ends, is cancelled, or is released. If nothing ever does, `left()`
        says so: then the next claim releases it.
        """
        run_id = claim.run_id
        try:
            with self.log.ownership.leases.held(run_id, claim.epoch, claim.since, left):
                yield
        except (f.Suspend, f.Completed):
            return
        except f.Cancelled:
            self._obey(run_id, claim.epoch)
        except f.OverBudget as over:
            self.log.append(run_id, [over.event], epoch=claim.epoch)
        except f.Fenced as fenced:
            raise f.RunBusy(f"run {run_id} was taken over by another owner: this one has stopped") from fenced
        except f.EffectNotRecorded:
            raise  # somebody must see to it first: the lease runs out by itself
        except BaseException as error:
            with suppress(AppendRefused, StoreError):  # if it can't be written the lease runs out
                if self.log.ownership.live(run_id).status.status == "running":  # else it has ended, or its round has
                    self._leave(run_id, claim.epoch, left_by(error))
            raise

    def open(self, claim: Claim, code: str = "") -> tuple[Run, RunParts]:
        """The run of a claim, for its agent, and what it is made of."""
        driver = SyncDriver(self.appending(claim))
        parts = self.parts(claim, driver, code)
        return Run(parts, driver), parts

    def parts(self, claim: Claim, driver: Driver, code: str) -> RunParts:
        """The engine of a claim's run: its core, the order of telling, its steps and its calls."""
        run_id = claim.run_id
        lineage = Lineage(self.log.ownership, run_id, partial(self.check_lease, run_id))
        order = TellingOrder(Core(lineage, claim.epoch, driver, self.log.stop_limits.grace_s))
        steps = StepControl(order, code_version=code, known_code=claim.known_code)
        caller = Caller(steps, Sender(order, partial(self.testify, run_id), self.log.call_retry))
        media = RunMedia(self.log.store, run_id, lambda event: self.log.append(run_id, [event])[0])
        past = LivePast(self.log, run_id, claim.epoch)
        log = self.log
        return RunParts(caller, media, self.nursery(), store_requests=log.store_requests, prices=log.prices, past=past)

    def nursery(self) -> children.JournalNursery:
        """Return what runs the children of a run, in the thread that waits for them."""
        return children.JournalNursery(self.log, partial(children.run_beside, self.run))

    def appending(self, claim: Claim) -> Callable[[tuple[Event, ...] | Made], list[RecordedEvent]]:
        """Return what appends as the owner of a claim."""
        return partial(self.append, claim.run_id, claim.epoch)

    def append(self, run_id: str, epoch: int, events: tuple[Event, ...] | Made) -> list[RecordedEvent]:
        """Append as the owner."""
        if isinstance(events, WithRun):
            began = self.log.batch(events.run_id, [events.queued], expect=0)
            return self.log.append_all([began, self.log.batch(run_id, events.events, expect=None, epoch=epoch)])[1]
        if callable(events):
            make = events
            return self.log.ownership.appender.append_made(
                lambda tx: self.log.batch(run_id, make(tx), expect=None, epoch=epoch)
            )
        return self.log.append(run_id, events, epoch=epoch)

    def submit(
        self, run_id: str, epoch: int, events: tuple[Event, ...] | Made, told: Callable[[SharedAppend], None]
    ) -> bool:
        """Submit an append as the owner, see `AsyncDriver`."""
        if callable(events):
            return False
        batch = self.log.batch(run_id, events, expect=None, epoch=epoch)
        return self.log.ownership.appender.submit(batch, told)

    def check_lease(self, run_id: str, epoch: int) -> None:
        """Check, directly before a call, that the run is still ours. Raises Fenced; NotSent if nobody can say now."""
        try:
            ours = self.log.ownership.leases.ensure(run_id, epoch)
        except StoreError as error:
            raise f.NotSent(f"the lease of run {run_id} couldn't be renewed, so nothing was sent: {error}") from error
        if not ours:
            raise f.Fenced(f"run {run_id} has another owner")

    def triage(self, parts: RunParts) -> None:
        """Ask, before the agent is called, about each call of the open step that may not be sent again: engine.md V2.

        Of one whose tool doesn't let a person be asked the agent is told, when it asks for it.
        """
        core = parts.core
        opened = core.state.steps.open
        calls = core.state.calls.of_step(opened.id) if opened else {}
        waits: list[dict[str, str]] = []
        for call_id, call in sorted(calls.items(), key=lambda item: item[1].args_seq):
            if call.status == "open" and call.maybe:
                tool = self._tool(call.tool)
                event = core.lineage.event_at(call.args_seq)
                args: dict[str, Json] = event.args if isinstance(event, e.ToolStarted) else {}
                target = ToolTarget(tool) if tool else None
                verdict = parts.drive(parts.caller.verdict(call_id, target, args))
                if verdict == "ask":
                    waits.append({"kind": "question", "id": call_id})
        if waits:
            parts.drive(core.append(e.RunWaiting(waits)))
            core.halt(f.Suspend())

    def _tool(self, name: str) -> Tool[..., Any] | None:
        """The tool of this process that may know of a call. Raises SameName if two are named so, and one has a hook."""
        found = self.tools.get(name)
        if found is None and len(claimants := claims(name)) > 1 and any(each.reconcile for each in claimants):
            raise same_name(*claimants[:2])
        return found

    def _drive(self, agent: Callable[[], Any], parts: RunParts) -> Json:
        """Call the agent, and end the run as it says."""
        end = self._called(agent, parts)
        parts.drive(parts.core.append(end.event))
        return end.told()

    def _called(self, agent: Callable[[], Any], parts: RunParts) -> AgentEnd:
        """Call the agent. A failure that leaves it ends the round if it is transient, else the run.

        A mistake ends nothing.
        """
        core, steps = parts.core, parts.steps
        outer = TOOL_CONTEXT.set(None)  # a run inside a step of another one: its tools aren't that step's
        try:
            output = f.given_back("the agent", agent())
            core.alive()
            if steps.entry is not None:
                raise f.StepOpen(  # noqa: TRY301 - as if the agent had raised it
                    f"the agent returned, and step {steps.entry.step} is open"
                )
        except f.Mistake:
            raise
        except Exception as error:
            core.alive()
            if isinstance(error, f.BROKEN):  # the store's, in a read between two steps
                raise
            return AgentEnd(self.ending(error, steps), error=error)
        finally:
            TOOL_CONTEXT.reset(outer)
            core.driver.unlock()  # nobody asks any more, and threads that the agent has left behind are to end
        steps.stop_if_step_left()
        return AgentEnd(e.RunCompleted(output), output)

    def ending(self, error: BaseException, steps: StepControl) -> Event:
        """Return the event of a failure that leaves the agent."""
        core = steps.core
        try:
            stored, transient = f.error_of(error)
            left = f.left_by(error, core.lineage.run_id, steps.has_handled)
        except Exception:  # noqa: BLE001 - whatever it is, the run must not be left without an end
            return e.RunFailed(f.untold(error), [], "error")
        round_ = core.state.status.round
        if transient and round_ < rounds_max:
            due = self.log.clock.now() + timedelta(seconds=backoff_s * 4 ** (round_ - 1))
            return e.RunRetryScheduled(timestamp(due), round_, stored, left)
        cause = "retries_exhausted" if transient else "error"
        if stored.get("kind") == "unknown":
            cause = "unsafe_in_flight"
        if stored.get("kind") == "rejected":
            cause = "rejected"
        return e.RunFailed(stored, left, cause)

    def outcome(self, run_id: str) -> Json:
        """Return the output of a run that has completed; any other end is raised."""
        purged.check_there(self.log.store, run_id)
        state, db = self.log.fold(RunState, run_id), store_option(self.log.store.url)
        status = state.status
        if status.status == "completed" and status.output_seq is not None:
            seq = status.output_seq - state.offset
            event = next(iter(self.log.events(run_id, after=seq - 1, upto=seq))).event
            return event.output if isinstance(event, e.RunCompleted) else None
        foreign = status.unowned or self.log.store.imported(run_id) is not None
        if foreign and status.status not in TERMINAL:
            raise f.RunBusy(f"run {run_id} is {status.status}: nobody owns it; fork it, and run that")
        if foreign and status.status == "failed" and status.error is not None:  # nobody speaks of its calls here
            raise f.RunFailed(run_id, status.cause or "error", status.error, db=db, link="fork")
        if status.status == "failed" and status.error is not None:
            open_ = [awaited(run_id, state, {"kind": "question", "id": key}, db=db) for key in state.calls.unresolved()]
            raise f.RunFailed(run_id, status.cause or "error", status.error, [each.answers for each in open_], db=db)
        if status.status == "cancelled":
            raise f.RunCancelled(f"run {run_id} was cancelled")
        if status.status == "waiting" and only_timers(state):
            raise not_due(self.log, state)
        if status.status == "waiting":
            if (later := children.not_due_below(self.log, state)) is not None:
                raise later
            waits, found = children.waits_told(self.log, state, db)
            mend = next((each.mend for each in found if each.mend), "")
            raise f.RunWaiting(run_id, waits, [each.what for each in found], [each.answers for each in found], mend)
        raise f.RunBusy(f"run {run_id} is {status.status}: it can't be run here")

    # What others append.

    def testify(self, run_id: str, event: Event) -> None:
        """Append a word about an attempt, if that is still a question."""
        with suppress(AppendRefused):
            self.log.append(run_id, [event], expect=None)
