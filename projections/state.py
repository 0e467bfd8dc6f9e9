"""`RunState`: what all events of a run come to; and the engine that folds.

A fold is a function of the events alone: folding a then b is folding a + b, and a dump, loaded, goes on as if it had
never been written. Order is part of a value: what has keys keeps them in the order in which the events brought them, in
the state, in its dump and in what is loaded from that. Events of types that nothing here names change nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

import orjson

from runjournal.log import events as e
from runjournal.log.authority import CallFacts
from runjournal.log.base import Event, NewerEvent, PurgedEvent, RecordedEvent, UnreadableEvent, upcasters
from runjournal.log.errors import InvalidArgument, Unfoldable
from runjournal.log.limits import failed_steps_max, recalled_max

from . import approvals, bills, calls, children, costs, inbox, memory, plan, prompt, status, steps, transcript
from .calls import Call
from .transcript import Stretch

P = TypeVar("P", bound="Projection")


class Projection(Protocol):
    """A fold of one's own: a class whose instance is the state. `apply` must depend on nothing but the events.

    `NAME` and `VERSION` say which fold made a dump; raise `VERSION` when `apply` or `dump` changes.
    """

    NAME: ClassVar[str]
    VERSION: ClassVar[int]

    @classmethod
    def initial(cls) -> Self:
        """Return the state before the first event."""
        ...

    def apply(self, record: RecordedEvent) -> None:
        """Fold one event in, in place."""
        ...

    def dump(self) -> Any:
        """Return the state as a JSON value. The order of its keys is kept, and must follow from the events as well."""
        ...

    @classmethod
    def load(cls, data: Any) -> Self:
        """Return the state that `dump` made this value of."""
        ...


def fold(projection: P, records: Iterable[RecordedEvent], *, force: bool = False) -> P:
    """Fold events into a projection, in place; return the projection.

    Raises Unfoldable at an event that is unreadable or of a newer version; with `force` such events are left out.
    """
    for record in records:
        if isinstance(record.event, UnreadableEvent | NewerEvent):
            if not force:
                raise unfoldable(record)
            continue
        if isinstance(record.event, PurgedEvent):
            continue
        try:
            projection.apply(record)
        except Exception as error:
            error.add_note(f"while folding {record.run_id}@{record.seq} {record.type}")
            raise
    return projection


def foldable(records: Iterable[RecordedEvent]) -> Iterator[RecordedEvent]:
    """Yield the same records. Raises Unfoldable at one that is unreadable or of a newer version."""
    for record in records:
        if isinstance(record.event, UnreadableEvent | NewerEvent):
            raise unfoldable(record)
        yield record


def unfoldable(record: RecordedEvent) -> Unfoldable:
    """Return the error of an event that no fold goes past."""
    event = record.event
    if isinstance(event, NewerEvent):
        what = f"has version {event.v} of its data, newer than this runjournal knows"
    else:
        what = f"can't be read ({event.reason if isinstance(event, UnreadableEvent) else 'unknown'})"
    return Unfoldable(record.run_id, record.seq, record.type, what)


def dump_bytes(data: Any) -> bytes:
    """Return a dump as bytes: JSON that keeps the order of its keys, since an agent's loop over a value follows it."""
    return orjson.dumps(data)


@dataclass(slots=True)
class RunState:
    """The folded state of a run after the event `seq`, whose hash is `hash`; `at` is that event's time.

    `offset` is the number of events of the runs that this one goes on from; the folds count places, `offset + seq`, in
    all that is called a seq, so that a line of runs has one order.
    """

    NAME: ClassVar[str] = "run_state"
    VERSION: ClassVar[int] = 2

    run_id: str = ""
    offset: int = 0
    seq: int = 0
    hash: str | None = None
    at: str = ""
    skipped: int = 0
    status: status.Status = field(default_factory=status.Status)
    steps: steps.Steps = field(default_factory=steps.Steps)
    transcript: transcript.Transcript = field(default_factory=transcript.Transcript)
    memory: memory.Memory = field(default_factory=memory.Memory)
    plan: plan.Plan = field(default_factory=plan.Plan)
    prompt: prompt.Prompt = field(default_factory=prompt.Prompt)
    costs: costs.Costs = field(default_factory=costs.Costs)
    calls: calls.Calls = field(default_factory=calls.Calls)
    approvals: approvals.Approvals = field(default_factory=approvals.Approvals)
    inbox: inbox.Inbox = field(default_factory=inbox.Inbox)
    children: children.Children = field(default_factory=children.Children)
    held: str = field(default="", compare=False)
    """The id of a step that this state doesn't let go of; it is in no dump."""

    # Reading.

    @property
    def overlay_open(self) -> bool:
        """Return whether a step is open, so that what it did to the context is uncommitted."""
        return self.steps.open is not None

    def call_facts(self, call_id: str) -> CallFacts | None:
        """Return what the log knows of a call, for the guarded append."""
        return self.calls.facts(call_id)

    def question_open(self, approval_id: str) -> bool:
        """Return whether a question is still to be answered, for the guarded append."""
        question = self.approvals.known.get(approval_id)
        return question is not None and question.decision is None

    def question_expires(self, approval_id: str) -> str | None:
        """Return until when a question may be answered, for the guarded append."""
        question = self.approvals.known.get(approval_id)
        return None if question is None else question.expires_at

    def goes_on(self, role: str, message_id: str) -> bool:
        """Return whether a message with this id would continue the last one of its role, for the guarded append."""
        return self.transcript.view.last_ids.get(role) == message_id

    @property
    def between_steps(self) -> bool:
        """Return whether no step is open, for the guarded append."""
        return self.steps.open is None

    @property
    def stands(self) -> str:
        """Return why the run waits though nothing will come, for the guarded append; "" if it doesn't."""
        return self.status.stands

    def answered(self, wait: Mapping[str, Any]) -> bool:
        """Return whether what a run waits for has come."""
        kind, key = wait["kind"], wait["id"]
        if kind == "child":
            return self.status.status == "waiting" and self.children.statuses.get(key, "running") != "running"
        if kind == "signal":
            taken = self.steps.open.taken if self.steps.open else ()
            return any(signal[2] == key and signal[1] not in taken for signal in self.inbox.signals)
        if kind in ("timer", *status.STANDSTILLS):
            return False
        if (question := self.approvals.known.get(key)) is not None:
            return question.decision is not None
        call = self.calls.known.get(key)
        return call is None or call.said or not call.unresolved

    # Folding.

    @classmethod
    def initial(cls) -> Self:
        return cls()

    def apply(self, record: RecordedEvent) -> None:
        """Fold one event in, in place. Raises Unfoldable."""
        event = record.event
        placed = record if not self.offset else record._replace(seq=self.offset + record.seq)
        if (handlers := _dispatch().get(type(event))) is not None:
            for part, handle in handlers:
                handle(self if part is None else part(self), placed, event)
        elif type(event) in _UNFOLDABLE:
            raise unfoldable(record)
        self.run_id, self.seq, self.hash, self.at = record.run_id, record.seq, record.hash, record.at
        if self.status.waits and not self.status.woken and record.type in _WAKING:
            self.status.woken = any(self.answered(wait) for wait in self.status.waits)

    def fold(self, records: Iterable[RecordedEvent], *, force: bool = False) -> Self:
        """Fold events in, in place; return this state. With `force`, `skipped` counts the events left out."""
        apply = self.apply
        for record in records:
            if force and type(record.event) in _UNFOLDABLE:
                self.run_id, self.seq, self.hash, self.at = record.run_id, record.seq, record.hash, record.at
                self.skipped += 1
            else:
                apply(record)
        return self

    def count_messages(self, run_id: str, seq: int, digest: str, at: str, stretch: Stretch) -> None:
        """Fold in a stretch of messages, of which the last is the event `seq`, at once."""
        self.transcript.view.add_stretch(stretch, self.offset, seq, digest)
        self.run_id, self.seq, self.hash, self.at = run_id, seq, digest, at

    def on_step_started(self, _: RecordedEvent, event: e.StepStarted) -> None:
        """Begin a step: what it does to the context is uncommitted from here on."""
        for context in (self.transcript, self.memory, self.plan):
            context.begin()
        if event.recalled is not None:
            self.calls.recall(event.id, event.recalled["calls"])
            self.approvals.recall(event.id, event.recalled["questions"])

    def on_step_completed(self, record: RecordedEvent, event: e.StepCompleted) -> None:
        """Commit what the step did to the context."""
        step = self.steps.open
        for context in (self.transcript, self.memory, self.plan):
            context.commit()
        if step is not None:
            self._lose(record, step.id)  # a process that died has left it open, and nobody asked for it any more
        self.children.end_step()
        sent = self.calls.complete_step()
        if step is not None:
            if sent and step.kind == "do" and step.key is None:
                self.steps.spent.append(step.id)
            self.inbox.take(step.taken)
            self.approvals.complete_step(step.id)
        self.steps.on_completed(record, event)
        self.status.progress()

    def on_step_failed(self, record: RecordedEvent, event: e.StepFailed) -> None:
        """Drop what the step did to the context."""
        for context in (self.transcript, self.memory, self.plan):
            context.drop()
        self.children.end_step()
        self.calls.fail_step()
        self.steps.on_failed(record, event)
        self._let_go(record)
        self.status.progress(proven=not event.left)
        if event.left:  # a person has given it up
            self.status.freed = "manual"

    def _let_go(self, record: RecordedEvent) -> None:
        """Forget what is known of the steps that failed before the last `failed_steps_max` ones.

        A step.started that enters one of them again tells it: `recallable`. A step of more than that can tell stays.
        """
        attempts = self.steps.attempts
        over = len(attempts) - failed_steps_max
        for step in list(attempts) if over > 0 else ():
            if over <= 0:
                break
            told = self.recallable(step)
            if step not in (self.held, self.steps.redo) and sum(map(len, told.values())) <= recalled_max:
                del attempts[step]
                self._lose(record, step)
                self.calls.let_go(step)
                self.approvals.let_go(step)
                self.steps.let_go += 1
                over -= 1

    def recallable(self, step: str) -> dict[str, dict[str, Any]]:
        """Return what a step.started can tell again of a failed step, as its `recalled` holds it."""
        return {"calls": self.calls.recallable(step), "questions": self.approvals.recallable(step)}

    def on_model_ended(self, record: RecordedEvent, event: e.ModelCompleted | e.ModelFailed) -> None:
        """Add the cost of a model call to the model of that call."""
        call = self.calls.known.get(event.call_id)
        self.costs.on_model(call.tool if call else "unknown", event)
        if self.costs.billed is not None:
            self.costs.billed.append(bills.of_end(record, event, call))

    def on_tool_ended(self, record: RecordedEvent, event: e.ToolCompleted | e.ToolFailed) -> None:
        """Add what a call of a tool has told of its cost."""
        if event.usage is not None or event.cost is not None:
            call = self.calls.known.get(event.call_id)
            self.costs.on_tool(call.tool if call else "unknown", event)
            if self.costs.billed is not None:
                self.costs.billed.append(bills.of_end(record, event, call))

    def on_model_started(self, record: RecordedEvent, event: e.ModelStarted) -> None:
        """Count the attempt before as lost, if it has no end when the next one starts."""
        call = self.calls.known.get(event.call_id)
        if call is not None and call.status == "open" and not call.priced:
            self._lost(record, event.call_id, call)

    def _lose(self, record: RecordedEvent, step: str | None = None) -> None:
        for call_id, call in self.calls.lose(step).items():
            self._lost(record, call_id, call)

    def _lost(self, record: RecordedEvent, call_id: str, call: Call) -> None:
        self.costs.on_lost(call.tool)
        if self.costs.billed is not None:
            self.costs.billed.append(bills.of_lost(record, call_id, call))

    def on_run_ended(self, record: RecordedEvent, _: e.RunCompleted | e.RunFailed | e.RunCancelled) -> None:
        """Count as lost what is in flight: nobody will ever know what it has cost."""
        self._lose(record)

    def on_purged(self, _: RecordedEvent, __: e.RunPurged) -> None:
        """Forget everything: what is left of the run stands in this event."""
        for name, kind in _FOLDS.items():
            setattr(self, name, kind())
        self.offset, self.skipped, self.held = 0, 0, ""

    def on_asked(self, record: RecordedEvent, event: e.ApprovalRequested) -> None:
        """Add a question to the step that is open."""
        step = self.steps.open
        self.approvals.ask(record, event, step.id if step else "", step.attempt if step else 0)

    # Going on from another run.

    def derive(self, link: str, again: Iterable[str] = ()) -> RunState:
        """Return the state that a linked run begins with; this state is its base.

        A retry goes on from here: an open step is entered again with its history and answers, a failed one is a new
        attempt; the steps in `again` are tried as if they hadn't failed. A fork starts behind the last step that
        completed: no calls, questions, signals. A restart keeps only the calls that nobody knows of. Costs and counts
        begin anew, since they are those of a run.
        """
        base = RunState.load(self.dump())
        place = self.offset + self.seq
        kept = {key: call for key, call in base.calls.known.items() if call.kept} if link == "restart" else {}
        base.held = self.held
        new = RunState(offset=place, held=self.held)
        if link == "restart":
            for call in kept.values():
                call.forget()
            new.calls = calls.inherited(kept, "")
            return new
        new.transcript, new.memory, new.plan, new.prompt, new.steps = (
            base.transcript, base.memory, base.plan, base.prompt, base.steps
        )  # fmt: skip
        new.steps.completed_count = 0  # else a retry of what failed at its cap would fail at once, for ever
        if link == "retry":
            if new.steps.open is not None:
                new.steps.open.recoveries = 0  # a person has looked at it, and wants it tried again
            new.steps.try_anew([*base.status.left, *([step, 0] for step in again)], place + 1)
            new.calls = calls.inherited(base.calls.known, base.calls.step)
            step = base.steps.open.id if base.steps.open else None
            new.approvals.known = {k: q for k, q in base.approvals.known.items() if q.step == step and q.decision}
            new.inbox = base.inbox
            new.children = base.children
            return new
        for context in (new.transcript, new.memory, new.plan):
            context.drop()
        new.steps.open, new.steps.redo, new.steps.failures = None, None, []
        new.steps.cut = 0
        new.steps.attempts = dict(new.steps.settled)
        told = base.children.settled()
        new.children = told
        return new

    # Dumping.

    def dump(self) -> dict[str, Any]:
        """Return the state as a JSON value; `dump_bytes` makes the same bytes of it for the same events."""
        data: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        for name in _FOLDS:
            part = getattr(self, name)
            data[name] = (
                part.dump() if hasattr(part, "dump") else {each: getattr(part, each) for each in part.__slots__}
            )
        return data

    @classmethod
    def load(cls, data: dict[str, Any]) -> Self:
        """Return the state that `dump` made this value of. Raises InvalidArgument if it isn't such a value."""
        try:
            folds = {
                name: kind.load(data[name]) if hasattr(kind, "load") else kind(**data[name])
                for name, kind in _FOLDS.items()
            }
            return cls(**{name: data[name] for name in _PLAIN}, **folds)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgument(f"this is no dump of a RunState: {type(error).__name__}") from None

    @classmethod
    def version(cls) -> str:
        """Return SHA-256, in hex, over the versions of all folds and upcasters: a dump of another version isn't loaded.

        Upcasters of users' own types (x.*) don't count: no part of a RunState reads these, and a program that doesn't
        have them, such as the command line, can use the same checkpoints.
        """
        parts = [f"{name}={kind.VERSION}" for name, kind in sorted(_FOLDS.items())]
        parts += [f"{kind}@{version}" for kind, version in sorted(upcasters()) if not kind.startswith("x.")]
        return hashlib.sha256(";".join([f"{cls.NAME}={cls.VERSION}", *parts]).encode()).hexdigest()


_PLAIN: Final = ("run_id", "offset", "seq", "hash", "at", "skipped")
_FOLDS: Final[dict[str, Any]] = {
    "status": status.Status,
    "steps": steps.Steps,
    "transcript": transcript.Transcript,
    "memory": memory.Memory,
    "plan": plan.Plan,
    "prompt": prompt.Prompt,
    "costs": costs.Costs,
    "calls": calls.Calls,
    "approvals": approvals.Approvals,
    "inbox": inbox.Inbox,
    "children": children.Children,
}
_UNFOLDABLE: Final = frozenset({UnreadableEvent, NewerEvent})
_WAKING: Final = frozenset({"run.waiting", "approval.resolved", "tool.resolved", "signal.received", "child.finished"})
Handler = tuple[Callable[[RunState], Any] | None, Callable[[Any, RecordedEvent, Any], None]]
"""What folds an event: a part of the state, which the first reads (None: the state itself), and its method."""


@cache
def _dispatch() -> dict[type[Event], tuple[Handler, ...]]:
    """Return {event class: what folds it, in order}.

    Costs go before calls, which may forget the call; steps after both.
    """
    own: dict[type[Event], Callable[[Any, RecordedEvent, Any], None]] = {
        e.StepStarted: RunState.on_step_started,
        e.StepCompleted: RunState.on_step_completed,
        e.StepFailed: RunState.on_step_failed,
        e.ModelStarted: RunState.on_model_started,
        e.ModelCompleted: RunState.on_model_ended,
        e.ModelFailed: RunState.on_model_ended,
        e.ToolCompleted: RunState.on_tool_ended,
        e.ToolFailed: RunState.on_tool_ended,
        e.ApprovalRequested: RunState.on_asked,
        e.RunPurged: RunState.on_purged,
        e.RunCompleted: RunState.on_run_ended,
        e.RunFailed: RunState.on_run_ended,
        e.RunCancelled: RunState.on_run_ended,
    }
    table: dict[type[Event], list[Handler]] = {event_type: [(None, method)] for event_type, method in own.items()}
    parts: tuple[tuple[str, Mapping[type[Event], Any]], ...] = (
        ("status", status.HANDLERS),
        ("transcript", transcript.HANDLERS),
        ("memory", memory.HANDLERS),
        ("plan", plan.HANDLERS),
        ("prompt", prompt.HANDLERS),
        ("costs", costs.HANDLERS),
        ("calls", calls.HANDLERS),
        ("approvals", approvals.HANDLERS),
        ("inbox", inbox.HANDLERS),
        ("children", children.HANDLERS),
        ("steps", steps.HANDLERS),
    )
    for name, handlers in parts:
        for event_type, method in handlers.items():
            if event_type not in (e.StepCompleted, e.StepFailed):  # composed above
                table.setdefault(event_type, []).append((attrgetter(name), method))
    return {event_type: tuple(handlers) for event_type, handlers in table.items()}
