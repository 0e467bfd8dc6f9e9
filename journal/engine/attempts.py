"""Sending a call, in the core of a run: the intent, the effect, its outcome, and what a failure says.

The rules: engine.md A7, A12 (before it), engine.md H5 to H8 (its outcome), engine.md H11 (a log that can't be told).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from runjournal.log import events as e
from runjournal.log import failpoint
from runjournal.log.authority import CALL_ENDS
from runjournal.log.base import Event, Json
from runjournal.log.clock import parse_timestamp
from runjournal.log.errors import CallEnded, StoreError, StoreUnavailable, TooLarge
from runjournal.log.limits import pause_s_max, record_waits_s
from runjournal.log.policies import EFFECT_FREE, REPEATABLE
from runjournal.log.store import Transaction
from runjournal.projections.calls import Call

from . import failures as f
from .callees import ModelTarget, Target, ToolTarget, unstored
from .commands import Append, Ended, Invoke, Verb
from .order import TellingOrder
from .requests import AskedRequest, copied
from .retry import Retry, next_try
from .script import Entry, ScriptItem
from .tools import Tx, Word, as_tool, looking
from .verdict import key_lives

T = TypeVar("T")

PAUSED: Final = object()
"""What came of a call that is tried again only later: it waits until then, and is judged as after a crash."""

LOST: Final = object()
"""What came of a call whose failure proves nothing and is told to nobody: it is judged as after a crash."""

NOTHING: Final = object()
"""No result: the effect didn't happen, or isn't known to have."""


class Sent(NamedTuple):
    """What came of one attempt: where its end is, its value or failure, and whether it is tried again at once.

    `lost`: nobody is told of it, and nobody knows what it did.
    """

    at: int
    value: Json
    failure: BaseException | None
    again: bool
    cancelled: BaseException | None
    lost: bool = False


class Recorded(NamedTuple):
    """Where an outcome was recorded, and the cancel of its asker, if one came while the store couldn't be written."""

    at: int
    cancelled: BaseException | None


class Sender:
    """Sends the calls of one run. `testify` appends what a fenced owner may still say.

    `retry` says how a call is tried again that doesn't say so itself.
    """

    def __init__(self, order: TellingOrder, testify: Callable[[Event], None], retry: Retry | None = None) -> None:
        self.core = order.core
        self.retry = retry or Retry()
        self.order = order
        self.testify = testify
        self.bodies: Counter[str] = Counter()  # of calls that were cut, those whose bodies go on in this process

    def start(self, entry: Entry, call_id: str, target: Target, args: dict[str, Json]) -> Verb[int]:
        """Append the intent, before the effect.

        Nothing new is sent before all that is recorded has been asked for, no model asked before all that was sent.
        """
        if (cancelled := self.core.driver.absorbed()) is not None:
            raise cancelled  # it came before anything was sent
        call = self.core.state.calls.known.get(call_id)
        known = call is not None and call.fresh
        if not known and target.policy not in EFFECT_FREE:
            yield from self.order.nothing_left_out(entry, f"{target.name} was called anew", call_id)
        elif not known and target.policy == "model":  # nothing is paid for that a stop would throw away
            where = f"{target.name} was asked anew"
            yield from self.order.nothing_left_out(entry, where, call_id, questions=False, told=False)
        if target.policy == "model":
            self.core.check_budget()
        attempt = call.attempt + 1 if call is not None else 1
        intent = target.started(call_id, args, attempt, self.core.lineage.clock)
        if isinstance(intent, e.ModelStarted):
            intent = replace(intent, place=entry.places.get(call_id))
        if isinstance(intent, e.ToolStarted) and intent.key_expires_at is not None:
            now = self.core.lineage.moment()
            if now.boot_id:
                intent = replace(intent, key_born={"boot_id": now.boot_id, "boottime_s": now.boottime_s})
        at = yield from self.core.append(intent)
        if isinstance(intent, e.ModelStarted) and intent.request is not None:
            asked: AskedRequest = args["request"]
            asked.recorded(at - self.core.lineage.offset)
        return attempt

    def finish(self, entry: Entry, call_id: str, target: Target, args: dict[str, Json], attempt: int) -> Verb[Json]:
        """Make the effect and record its outcome; try again what may be tried again within the ask.

        Returns the result, LOST, or PAUSED if it is tried again only later. Raises the failure that the agent is told.
        """
        core, order = self.core, self.order
        entry.flights[call_id] = core.driver.current()
        try:
            while True:
                sent = yield from self.attempt(entry, call_id, target, args, attempt)
                if not sent.again:
                    break
                if (yield from self.paused(entry, call_id, target, args)):
                    return PAUSED
                attempt = yield from self.start(entry, call_id, target, args)
            del entry.flights[call_id]
            if sent.cancelled is not None:
                order.tell(entry, sent.at)
                raise sent.cancelled
            if sent.lost:
                return LOST
            yield from self.told_in_turn(entry, sent.at, call_id)
            order.tell(entry, sent.at)
            if sent.failure is not None:
                raise sent.failure
            return sent.value
        finally:
            entry.flights.pop(call_id, None)
            core.driver.ring()

    def due_at(self, call_id: str) -> str | None:
        """Return when a call may be sent again (UTC text); None if it may be now."""
        call = self.core.state.calls.known.get(call_id)
        return None if call is None or self._left_s(call) <= 0 else call.retry_at

    def _left_s(self, call: Call) -> float:
        if call.retry_at is None:
            return 0.0
        return (parse_timestamp(call.retry_at) - self.core.lineage.clock.now()).total_seconds()

    def paused(self, entry: Entry, call_id: str, target: Target, args: dict[str, Json]) -> Verb[bool]:
        """Return whether a call is to be sent only later; a short pause is slept here, with the lease held."""
        call = self.core.state.calls.known.get(call_id)
        left_s = 0.0 if call is None else self._left_s(call)
        if left_s <= 0 or left_s > pause_s_max:
            return left_s > 0
        try:
            yield from self.slept(left_s)
        except self.core.driver.cancellation:
            yield from self.give_up(entry, call_id, target, args)
            raise
        return False

    def slept(self, seconds: float) -> Verb[None]:
        """Sleep in this process, with the lease held. Raises the cancel of the asker."""
        sleep = partial(self.core.lineage.clock.sleep, seconds)
        ended: Ended = yield Invoke(sleep, cuttable=True, timeout_s=None, late=_nothing)
        if ended.error is not None:
            raise ended.error
        if ended.cancelled is not None:
            raise ended.cancelled

    def give_up(self, entry: Entry, call_id: str, target: Target, args: dict[str, Json]) -> Verb[None]:
        """Record that the asker of a call was cancelled between two attempts: that is what it was told."""
        if self.core.stopped is not None or self.core.leaving:
            return
        attempt = yield from self.start(entry, call_id, target, args)
        stored, _ = f.error_of_body(f.cancelled_call(target.name))
        at = yield from self.core.record(
            target.failed(call_id, attempt, stored, transient=True, did_not_happen=True, cut=True)
        )
        entry.cuts.add(at)
        entry.add(ScriptItem(at, "tell", call_id, 0))
        self.order.tell(entry, at)

    def attempt(self, entry: Entry, call_id: str, target: Target, args: dict[str, Json], attempt: int) -> Verb[Sent]:
        """Send the call once."""
        core = self.core
        before = core.state.calls.known[call_id].copy()
        cuttable = target.policy in EFFECT_FREE
        if target.policy == "transactional":
            ended = yield from self._transact(entry, call_id, target, args, attempt)
            if isinstance(ended, Sent):
                return ended
        else:
            ended = yield from self._send(call_id, target, args, attempt, cuttable=cuttable)
        leaving = core.stopped is not None or core.leaving
        if ended.cut == "cancel" and cuttable and leaving and ended.cancelled is not None:
            raise ended.cancelled  # nobody is told: it stays open, and is sent again
        if isinstance(ended.error, core.driver.cancellation) and leaving:
            raise ended.cancelled or ended.error  # its body was cancelled with the run: nobody knows what it came to
        cut = ended.cancelled is not None and not leaving
        ending = partial(self._ending, target, call_id, attempt, ended, before, args, cut=cut)
        events, failure, word = self._looked(ending)
        try:
            result = ended.value if word == "happened" else NOTHING
            try:
                recorded = yield from self._record(events, target, result)
            except (f.WrongArgument, TooLarge) as error:  # whatever it is: what happened is on record
                events, failure = self._bare(target, events[-1], error)
                recorded = yield from self._record(events, target, result)
        except f.Fenced:
            self._testify(target, call_id, attempt, ended, word)
            raise
        except CallEnded:  # a word came in between
            return (yield from self._said_meanwhile(entry, events[-1], ended))
        leaving = leaving or core.stopped is not None or core.leaving  # the run's caller may have cancelled meanwhile
        late = None if cut or leaving else recorded.cancelled
        if late is not None:
            yield from core.record(e.NoteAdded("its asker was cancelled", code="cut", call_id=call_id))
        if cut or late is not None:
            entry.cuts.add(recorded.at)
        again = bool(getattr(events[-1], "again", False)) and late is None
        lost = bool(getattr(events[-1], "lost", False))
        if not (again or lost):  # else nobody is told of it, and nobody must wait for that
            entry.add(ScriptItem(recorded.at, "tell", call_id, 0))
        return Sent(recorded.at, _value(events[-1]), failure, again, ended.cancelled or recorded.cancelled, lost)

    def word(self, target: Target, args: dict[str, Json], call_id: str) -> Word | None:
        """What the hook of a tool says of a call now."""
        return self._looked(lambda: target.word(args, call_id))

    def _looked(self, callback: Callable[[], T]) -> T:
        """What comes of a function of the user's, which may only look: a mistake in it stops the run."""
        try:
            return looking(self.core, callback)
        except f.Mistake as mistake:
            self.core.stop(mistake)
            raise

    def _said_meanwhile(self, entry: Entry, end: Event, ended: Ended) -> Verb[Sent]:
        """Return what becomes of an attempt of which somebody has spoken while it was made: engine.md V4.

        That it has happened is the outcome, whoever says so; whoever made it knows better than a word that it did
        nothing. Else that word counts, as after a crash.
        """
        assert isinstance(end, e.ToolCompleted | e.ToolFailed)  # noqa: S101 - nobody speaks of a model call
        call_id = end.call_id
        if isinstance(end, e.ToolCompleted) and self.core.state.calls.known[call_id].status != "completed":
            yield from self.core.record(e.ToolResolved(call_id, end.attempt, "happened", end.result, late=True))
        call = self.core.state.calls.known[call_id]
        if call.status != "completed":
            return Sent(0, None, None, again=False, cancelled=ended.cancelled, lost=True)
        event = self.core.lineage.event_at(call.value_seq)
        entry.add(ScriptItem(call.value_seq, "tell", call_id, 0))
        wrong = getattr(event, "result_error", None)
        failure = None if wrong is None else f.unusable(call.tool, wrong)
        return Sent(call.value_seq, getattr(event, "result", None), failure, again=False, cancelled=ended.cancelled)

    def _send(
        self, call_id: str, target: Target, args: dict[str, Json], attempt: int, *, cuttable: bool
    ) -> Verb[Ended]:
        """Run the body, if the run is still ours."""
        core, reached, lent = self.core, list[bool](), target.lend(args)

        def body() -> Any:
            core.lineage.check_lease(core.epoch)
            reached.append(True)
            if failpoint.hit is not None:
                what, about = "model" if target.policy == "model" else "tool", (target.name, call_id, lent)
                return failpoint.around(what, about, lambda: as_tool(core, target.invoke, lent, call_id))
            return as_tool(core, target.invoke, lent, call_id)

        def late(ended: Ended) -> None:
            self.bodies[call_id] -= 1
            if not cuttable:
                self._testify(target, call_id, attempt, ended)

        self.bodies[call_id] += 1
        patience_s = partial(core.patience_s, target.policy)
        ended: Ended = yield Invoke(body, cuttable, target.timeout_s, late, not target.is_async, patience_s)
        if not ended.cut:
            self.bodies[call_id] -= 1
            target.take_back(args)
        if isinstance(ended.error, f.Stop | f.ToolUsesRun):
            core.stop(ended.error)
            if not reached and isinstance(ended.error, f.Fenced):
                self._testify(target, call_id, attempt, ended, "did_not_happen")
            raise ended.error
        return ended

    def _transact(
        self, entry: Entry, call_id: str, target: Target, args: dict[str, Json], attempt: int
    ) -> Verb[Sent | Ended]:
        """Make the effect and record its outcome in one transaction: both commit, or neither is there."""
        core, made = self.core, list[Event]()

        def make(tx: Transaction) -> tuple[Event, ...]:
            try:
                lent = target.lend(args)
                about = (target.name, call_id, lent)
                value = failpoint.around(
                    "tool", about, lambda: as_tool(core, lambda: target.invoke(lent, call_id, Tx(tx)))
                )
            except Exception as error:
                raise _Raised(error) from error
            made[:] = [self._looked(lambda: target.completed(call_id, attempt, value, cut=False)[0])]
            return tuple(made)

        try:
            core.lineage.check_lease(core.epoch)
            at = yield from core.commit(Append(make))
        except (f.Stop, StoreError) as stop:
            core.stop(stop)
            raise
        except f.NotSent as error:  # the lease couldn't be renewed
            return Ended(error=error)
        except TimeoutError as error:  # the tool swallowed it
            return Ended(error=f.TransactionTooLong(str(error)))
        except _Raised as raised:
            if isinstance(raised.error, f.ToolUsesRun):
                core.stop(raised.error)
                raise raised.error from None
            late = isinstance(raised.error, TimeoutError)
            return Ended(error=f.TransactionTooLong(str(raised.error)) if late else raised.error)
        entry.add(ScriptItem(at, "tell", call_id, 0))
        wrong = getattr(made[0], "result_error", None)
        failure = None if wrong is None else f.unusable(target.name, wrong)
        return Sent(at, _value(made[0]), failure, again=False, cancelled=None)

    def _record(self, events: Sequence[Event], target: Target, result: Any) -> Verb[Recorded]:
        """Append an outcome.

        While the store can't be written, hold the lease and try again: an effect must not get lost. A cancel that comes
        meanwhile waits for it.
        """
        cancelled: BaseException | None = None
        for wait_s in (*record_waits_s, None):
            try:
                at = yield from self.core.commit(Append(tuple(events)))
                return Recorded(at, cancelled or self.core.driver.absorbed())
            except StoreError as error:
                if wait_s is not None and isinstance(error, StoreUnavailable):
                    sleep = partial(self.core.lineage.clock.sleep, wait_s)
                    waited: Ended = yield Invoke(sleep, cuttable=False, timeout_s=None, late=_nothing)
                    cancelled = cancelled or waited.cancelled
                    continue
                if result is NOTHING:
                    self.core.stop(error)
                    raise
                lost = f.EffectNotRecorded(f"{target.name} ended, and the log couldn't be told: {error}", result)
                self.core.stop(lost)
                raise lost from error
        raise AssertionError

    def _ending(  # noqa: PLR0917 - one attempt, and how it ended
        self, target: Target, call_id: str, attempt: int, ended: Ended, call: Call, args: dict[str, Json], *, cut: bool
    ) -> tuple[list[Event], BaseException | None, str]:
        """Return the event of an outcome, what the agent is told if it failed, and what a fenced owner may say."""
        error: BaseException | None = ended.error
        if ended.cut == "timeout":
            error = f.timed_out(target.name, target.timeout_s)
        elif ended.cut == "cancel":
            error = f.cancelled_call(target.name)
        if error is None:
            event, rejection = target.completed(call_id, attempt, ended.value, cut=cut)
            if rejection is None:
                wrong = getattr(event, "result_error", None)
                failure = None if wrong is None else f.unusable(target.name, wrong)
                return [event], failure, "happened"
            failed = self._failed(target, call_id, attempt, rejection, call, cut=cut, paid=event)
            return [failed], self._told(failed, rejection), "happened"
        if not isinstance(error, Exception):
            if not isinstance(error, self.core.driver.cancellation):
                raise error
            error = f.cancelled_call(target.name)
        nothing = target.tool.did_nothing(error) if isinstance(target, ToolTarget) else False
        word = None if nothing or ended.cut else target.word(args, call_id)
        if word is not None and word[0] == "happened":
            event, _ = target.completed(call_id, attempt, word[1], cut=cut)
            return [event], None, "happened"
        void = nothing or word is not None
        failed = self._failed(target, call_id, attempt, error, call, cut=cut, void=void, dropped=ended.cut == "cancel")
        return [failed], self._told(failed, error), "did_not_happen" if void else "unknown"

    def _bare(self, target: Target, event: Event, error: Exception) -> tuple[list[Event], BaseException]:
        """An end that can't be stored as it is, with nothing in it but why; and what the agent is told."""
        why, _ = f.error_of(error)
        match event:
            case e.ToolCompleted() if target.policy == "idempotent":
                why = {"type": why["type"], "message": unstored(why)}
                bare: Event = target.failed(event.call_id, event.attempt, why, cut=event.cut)
            case e.ToolCompleted():
                return [replace(event, result=None, result_error=why)], f.unusable(target.name, why)
            case e.ToolFailed():
                bare = replace(event, error=why)
            case e.ModelFailed() | e.ModelCompleted():
                bare = e.ModelFailed(
                    event.call_id, event.attempt, why, transient=False, cut=getattr(event, "cut", False)
                )
            case _:
                raise AssertionError(event.TYPE)
        return [bare], self._told(bare, error)

    def _failed(
        self, target: Target, call_id: str, attempt: int, error: BaseException, call: Call, *,
        cut: bool, void: bool = False, dropped: bool = False, paid: Event | None = None,
    ) -> Event:  # fmt: skip
        """Return the same for a failure. It is tried again within the ask if it is transient and can't happen twice.

        One that proves nothing, of a call that may not be made again, is told to nobody: engine.md H15. But for one
        whose asker was cancelled: that is what he was told. `paid`: an answer as it came.
        """
        stored, transient = f.error_of_body(error)
        if (trace := f.trace_of(error)) is not None:
            stored["traceback"] = trace
        lives = key_lives(call, self.core.lineage.moment())
        safe = call.policy in REPEATABLE or (void and call.maybe == [attempt]) or lives
        now = self.core.lineage.clock.now()
        next_ = next_try(target.retry or self.retry, call_id, call, error, now, refused=paid is not None)
        again = transient and safe and next_.again and not cut and not dropped
        event = target.failed(
            call_id, attempt, stored, transient=transient, did_not_happen=void, again=again, cut=cut,
            retry_at=next_.retry_at if transient else None,
        )  # fmt: skip
        if isinstance(event, e.ToolFailed) and not (void or safe or cut):
            return replace(event, lost=True)
        if isinstance(event, e.ModelFailed) and isinstance(target, ModelTarget):
            if isinstance(paid, e.ModelCompleted):
                return replace(
                    event, usage=paid.usage, cost=paid.cost, response_id=paid.response_id,
                    request_id=paid.request_id, response_model=paid.response_model, price=paid.price,
                )  # fmt: skip
            return target.spent(event, error)
        return event

    def _told(self, event: Event, cause: BaseException) -> BaseException:
        assert isinstance(event, e.ToolFailed | e.ModelFailed)  # noqa: S101 - what a target's `failed` gives
        failure = f.call_failure(event.error, transient=event.transient)
        failure.__cause__ = cause
        return failure

    def _testify(self, target: Target, call_id: str, attempt: int, ended: Ended, word: str = "") -> None:
        """Say what became of an attempt that timed out, or whose owner is fenced, if that is still a question."""
        if not word:
            word = "unknown"
            if ended.error is None:
                word = "happened"
            elif isinstance(target, ToolTarget) and target.tool.did_nothing(ended.error):
                word = "did_not_happen"
        if word == "unknown" or target.policy == "model":
            return
        event, _ = target.completed(call_id, attempt, ended.value, cut=False) if word == "happened" else (None, None)
        self.testify(e.ToolResolved(call_id, attempt, word, getattr(event, "result", None), late=True))

    def told_in_turn(self, entry: Entry, at: int, call_id: str) -> Verb[None]:
        """Wait for the turn of an end. If its asker is cancelled before, that cancel is what he was told."""
        try:
            yield from self.order.turn(entry, at, call_id)
        except self.core.driver.cancellation:
            if not (self.core.stopped or self.core.leaving) and at not in entry.cuts:
                yield from self.core.record(e.NoteAdded("its asker was cancelled", code="cut", call_id=call_id))
            self.order.tell(entry, at)
            raise


class _Raised(Exception):
    """Carries what the body of a transactional tool raised out of the transaction, which is rolled back."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def _value(event: Event) -> Json:
    assert event.TYPE in CALL_ENDS  # noqa: S101 - for whoever changes _ending
    return copied(getattr(event, "result", getattr(event, "response", None)))


def _nothing(_: Ended) -> None:
    """Do nothing: a wait has no late outcome."""
