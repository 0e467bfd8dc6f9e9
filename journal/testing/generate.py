"""Random values, events and runs from a seed: small, legal, keys in any order, the same for the same `random.Random`.

Needs neither pytest nor hypothesis; `strategies.py` makes Hypothesis strategies of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from runjournal.log import events as e
from runjournal.log import shapes as s
from runjournal.log.authority import tells_unknown
from runjournal.log.base import BlobRef, Event, Json, RecordedEvent, plan_of
from runjournal.log.codec import draft, linked
from runjournal.projections.state import RunState

Written = tuple[Event, int]
"""An event, and the epoch of its writer (0: not the owner)."""

NAMES: Final = ("a", "b", "load", "wörk", "x" * 40)
TEXTS: Final = ("", "hello", "\x00\x1b[31m", "日本語 🎲", "a\nb", "\u202egnp.exe")
NUMBERS: Final = (0, 1, -1, 2**63 - 1, -(2**63), 0.5, -0.0, 1e16, 1e-300)
AT: Final = "2026-01-02T03:04:05.000006Z"


def value(rng: random.Random, depth: int = 2) -> Json:
    """Return any value that the log stores."""
    kind = rng.randrange(8 if depth else 5)
    if kind < 2:  # noqa: PLR2004
        return rng.choice(TEXTS)
    if kind == 2:  # noqa: PLR2004
        return rng.choice(NUMBERS)
    if kind < 5:  # noqa: PLR2004
        return rng.choice((None, True, False))
    if kind == 5:  # noqa: PLR2004
        return [value(rng, depth - 1) for _ in range(rng.randrange(3))]
    return {rng.choice(TEXTS): value(rng, depth - 1) for _ in range(rng.randrange(4))}


def _money(rng: random.Random) -> str:
    return f"{rng.randrange(-9999, 9999)}.{rng.randrange(10000):04}"


def _of_shape(rng: random.Random, shape: s.Shape) -> Any:
    if shape is s.MONEY:
        return _money(rng)
    match shape:
        case s.Name():
            return rng.choice(NAMES)
        case s.Text(pattern=pattern) if pattern:
            return AT if shape is s.TIME else "image/png" if shape is s.MEDIA_TYPE else "0" * 64
        case s.Text():
            return rng.choice(TEXTS)
        case s.Flag():
            return rng.random() < 0.5  # noqa: PLR2004
        case s.Whole(least=least):
            return rng.randrange(least, max(least, 0) + 3)
        case s.Number():
            return rng.choice((0, 1, 2.5))
        case s.OneOf(words=words):
            return rng.choice(words)
        case s.ListOf(item=item, least=least):
            return [_of_shape(rng, item) for _ in range(least + rng.randrange(2))]
        case s.MapOf(value=inner):
            return {rng.choice(NAMES): _of_shape(rng, inner) for _ in range(rng.randrange(4))}
        case s.Pair():
            return [rng.choice(NAMES), rng.randrange(3)]
        case s.Fields():
            chosen = {name: inner for name, inner in shape.optional.items() if rng.random() < 0.3}  # noqa: PLR2004
            names = rng.sample([*shape.required, *chosen], len(shape.required) + len(chosen))  # in any order
            return {name: _of_shape(rng, {**shape.required, **chosen}[name]) for name in names}
        case _:
            return value(rng)


def event(rng: random.Random, cls: type[Event], **fixed: Any) -> Any:
    """Return an event of this type, some fields fixed; bytes are as a reader gets them, held out of line."""
    values: dict[str, Any] = dict(fixed)
    for f in plan_of(cls):
        if f.attribute not in values and (not f.optional or rng.random() < 0.3):  # noqa: PLR2004
            values[f.attribute] = BlobRef("0" * 64, 1) if f.name == cls.RAW else _of_shape(rng, f.shape)
    return cls(**values)


def claim(epoch: int, resume: str | None = None) -> e.RunClaimed:
    """Return a claim by a process that isn't there."""
    return e.RunClaimed(
        worker="w", epoch=epoch, lease_s=60.0, host="h", boot_id="b", pid_ns="1", pid=1, pid_started="1", resume=resume
    )


class RunBuilder:
    """Events as they would be read back from a log that holds just them: chained, a millisecond apart."""

    def __init__(self, run_id: str = "r") -> None:
        self.run_id = run_id
        self.records: list[RecordedEvent] = []
        self.step: int | None = None

    def add(self, event: Event, epoch: int) -> RecordedEvent:
        """Add the next event, and return its record."""
        seq = len(self.records) + 1
        if isinstance(event, e.StepStarted):
            self.step = event.index
        millis = f"{seq // 60000:02}:{seq // 1000 % 60:02}.{seq % 1000:03}"
        made = draft(event, at=f"2026-01-02T03:{millis}000Z", by="test", step=self.step if epoch else None)
        prev = self.records[-1].hash if self.records else None
        self.records.append(linked(self.run_id, seq, prev, made, epoch=epoch)[0]._replace(position=seq))
        if isinstance(event, e.StepCompleted | e.StepFailed):
            self.step = None
        return self.records[-1]


def as_records(events: Sequence[Written], run_id: str = "r") -> list[RecordedEvent]:
    """Return events, each with its writer's epoch, as they would be read back."""
    chain = RunBuilder(run_id)
    for one, epoch in events:
        chain.add(one, epoch)
    return chain.records


def run(rng: random.Random, size: int) -> list[Written]:
    """Return the events of a run as the guarded append lets them through, each with its writer's epoch."""
    chain, state, written = RunBuilder(), RunState.initial(), list[Written]()
    for _ in range(size):
        one, epoch = next_event(rng, state)
        epoch = one.epoch if isinstance(one, e.RunClaimed) else epoch
        state.apply(chain.add(one, epoch))
        written.append((one, epoch))
    return written


def next_event(rng: random.Random, state: RunState) -> Written:
    """Return an event that may come next in a run in this state, and its writer's epoch."""
    status, epoch = state.status.status, state.status.epoch
    match status:
        case "new":
            return event(rng, e.RunQueued, scope=None, link=None, base=None, not_before=None), 0
        case "queued":
            return (claim(epoch + 1), 0) if rng.random() < 0.95 else (e.RunCancelled("no"), 0)  # noqa: PLR2004
        case "waiting":
            if asked := sorted(state.approvals.open()):
                return _answered(rng, state, rng.choice(asked))
            return claim(epoch + 1, "manual"), 0
        case "scheduled_retry":
            return e.RunRequeued("retry_due"), 0
        case "running":
            moves = _MOVES if state.steps.open else _MOVES_OUTSIDE
            return rng.choice(moves)(rng, state) or _context(rng, state)
        case _:
            return event(rng, rng.choice((e.NoteAdded, e.CostRecorded))), 0


def _context(rng: random.Random, state: RunState) -> Written:
    types = (e.MessageAppended, e.MessageAppended, e.MemorySet, e.MemorySet, e.MemoryDeleted, e.MemoryReset, e.PlanSet,
             e.PlanUpdated, e.PromptPinned, e.ContextCompacted, e.NoteAdded, e.CostRepriced)  # fmt: skip
    return event(rng, rng.choice(types)), state.status.epoch


def _step(rng: random.Random, state: RunState) -> Written:
    """Return the start of a step that may start now: the open one again, the failed one again, or a new one."""
    steps = state.steps
    if (o := steps.open) is not None:
        return e.StepStarted(o.index, o.id, o.name, o.kind, o.entry + 1, o.attempt, o.key), state.status.epoch
    again = steps.redo if steps.redo and rng.random() < 0.7 else None  # noqa: PLR2004
    name = again or f"{rng.choice('abc')}{steps.last_index + 1}"
    index, kind = steps.next_index if again else steps.last_index + 1, rng.choice(e.STEP_KINDS)
    return e.StepStarted(index, name, name, kind, 1, steps.attempts.get(name, 0) + 1), state.status.epoch


def _call(rng: random.Random, state: RunState) -> Written:
    ended = {
        key for key, call in state.calls.known.items() if call.status == "completed" and (call.sent or call.own_key)
    }
    again = sorted(state.calls.known.keys() - ended)
    call_id = rng.choice(again) if again and rng.random() < 0.5 else f"{rng.choice('cccm')}{state.seq}"  # noqa: PLR2004
    known = state.calls.known.get(call_id)
    if call_id.startswith("m"):
        return event(
            rng, e.ModelStarted, call_id=call_id, attempt=known.attempt + 1 if known else 1
        ), state.status.epoch
    fixed: dict[str, Any] = {"policy": known.policy, "tool": known.tool, "own_key": known.own_key} if known else {}
    return event(
        rng, e.ToolStarted, call_id=call_id, attempt=known.attempt + 1 if known else 1, **fixed
    ), state.status.epoch


def _end(rng: random.Random, state: RunState) -> Written | None:
    if not (opened := state.calls.open()):
        return None
    call_id = rng.choice(sorted(opened))
    call = opened[call_id]
    ends: tuple[type[Event], ...] = (
        (e.ModelCompleted, e.ModelFailed) if call.policy == "model" else (e.ToolCompleted, e.ToolFailed)
    )
    end = event(rng, rng.choice(ends), call_id=call_id, attempt=call.attempt)
    if tells_unknown(end):  # that is no end
        end = replace(end, error={name: text for name, text in end.error.items() if name != "kind"})
    return end, state.status.epoch


def _word(rng: random.Random, state: RunState) -> Written | None:
    if not (unresolved := state.calls.unresolved()):
        return None
    call_id = rng.choice(sorted(unresolved))
    return event(
        rng, e.ToolResolved, call_id=call_id, attempt=unresolved[call_id].attempt, late=False
    ), state.status.epoch


def _told(rng: random.Random, state: RunState) -> Written | None:
    """Return that the agent was told "nobody knows"."""
    if not (unresolved := state.calls.unresolved()):
        return None
    call_id = rng.choice(sorted(unresolved))
    error = {"type": "CallOutcomeUnknown", "message": "nobody knows", "kind": "unknown"}
    told = e.ToolFailed(call_id, unresolved[call_id].attempt, error, transient=False, settled=rng.choice((False, True)))
    return told, state.status.epoch


def _adopted(rng: random.Random, state: RunState) -> Written | None:
    step = state.steps.open.id if state.steps.open else ""
    elsewhere = sorted(key for key, call in state.calls.known.items() if call.kept and call.step != step)
    return (e.ToolAdopted(rng.choice(elsewhere)), state.status.epoch) if elsewhere else None


def _ask(rng: random.Random, state: RunState) -> Written:
    return event(rng, e.ApprovalRequested, approval_id=f"q{state.seq}"), state.status.epoch


def _answer(rng: random.Random, state: RunState) -> Written | None:
    asked = sorted(state.approvals.open())
    return _answered(rng, state, asked[0]) if asked else None


def _answered(rng: random.Random, state: RunState, key: str) -> Written:
    over = state.approvals.known[key].expires_at is not None  # AT is over at any time at which this is appended
    decision = "expired" if over else rng.choice(("approved", "rejected", "edited"))
    return event(rng, e.ApprovalResolved, approval_id=key, decision=decision), 0


def _signal(rng: random.Random, state: RunState) -> Written:
    if state.inbox.signals and state.steps.open and rng.random() < 0.5:  # noqa: PLR2004
        waits = f"w{state.seq}" if rng.random() < 0.5 else None  # noqa: PLR2004
        taken = [signal[1] for signal in state.inbox.signals]
        return e.SignalTaken(taken[: 1 if waits else None], waits), state.status.epoch
    return event(rng, e.SignalReceived, signal_id=f"s{state.seq}"), 0


def _timer(rng: random.Random, state: RunState) -> Written | None:
    if state.steps.open is None:
        return None
    running = sorted(key for key, (_, fired) in state.steps.open.timers.items() if not fired)
    one = e.TimerFired(running[0]) if running else event(rng, e.TimerSet, timer_id=f"t{state.seq}")
    return one, state.status.epoch


def _close(rng: random.Random, state: RunState) -> Written | None:
    if state.steps.open is None:
        return None
    index, epoch = state.steps.open.index, state.status.epoch
    if rng.random() < 0.7:  # noqa: PLR2004
        return event(rng, e.StepCompleted, index=index), epoch
    return event(rng, e.StepFailed, index=index, left=False), epoch  # else it is a person's


def _leave(rng: random.Random, state: RunState) -> Written:
    one: Event = rng.choice((
        e.RunRequeued("released"), e.RunRequeued("released"), event(rng, e.RunWaiting, due_at=None),
        event(rng, e.RunRetryScheduled, due_at=AT), event(rng, e.RunCompleted), event(rng, e.RunFailed),
    ))  # fmt: skip
    return one, state.status.epoch


Move = Callable[[random.Random, RunState], "Written | None"]
_MOVES: Final[tuple[Move, ...]] = (
    _context, _context, _call, _call, _end, _end, _word, _told, _adopted, _ask, _answer, _signal, _close, _close, _step,
    _leave, _timer,
)  # fmt: skip
_MOVES_OUTSIDE: Final[tuple[Move, ...]] = (_step, _step, _step, _step, _context, _signal, _leave)
