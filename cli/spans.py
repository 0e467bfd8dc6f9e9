"""A run as spans over time: its steps with their attempts, the calls and waits in them, and its children.

Read in one pass: a step is held until it ends, what stands outside of steps until all before it has ended.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from runjournal.log import events as e
from runjournal.log.authority import tells_unknown
from runjournal.log.base import RecordedEvent
from runjournal.log.head import TERMINAL, Head
from runjournal.log.limits import spans_children_max, spans_depth_max, spans_held_max
from runjournal.logbook import Logbook

from . import describe

_TYPES: Final = (
    "run.claimed", "run.waiting", "run.requeued", "run.completed", "run.failed", "run.cancelled", "run.retry_scheduled",
    "step.started", "step.completed", "step.failed", "model.started", "model.completed", "model.failed",
    "tool.started", "tool.completed", "tool.failed", "tool.resolved", "child.spawned",
)  # fmt: skip
_ENDS_OF_RUNS: Final = (
    e.RunClaimed | e.RunRequeued | e.RunCompleted | e.RunFailed | e.RunCancelled | e.RunRetryScheduled
)
Started = e.ModelStarted | e.ToolStarted
Ended = e.ModelCompleted | e.ModelFailed | e.ToolCompleted | e.ToolFailed | e.ToolResolved


@dataclass(slots=True)
class Span:
    """Something that took time. `kind`: run, step, model, tool or wait; `ended_at` None: not yet; `note` how it ended.

    `left_out` counts what happened in a step beyond `spans_held_max`.
    """

    kind: str
    name: str
    seq: int
    began_at: str
    status: str = "open"
    ended_at: str | None = None
    attempt: int = 1
    entry: int = 1
    note: str = ""
    index: int | None = None
    left_out: int = 0
    inner: list[Span] = field(default_factory=list["Span"])

    def end(self, record: RecordedEvent, status: str, note: str = "") -> None:
        """End the span with this event."""
        self.ended_at, self.status, self.note = record.at, status, note


class SpanRow(NamedTuple):
    """A span in its place: the run that it belongs to, and for each level down to it whether it is the last there."""

    run_id: str
    span: Span
    lasts: tuple[bool, ...]


def rows(journal: Logbook, head: Head, upto: int | None, records: Iterable[RecordedEvent]) -> Iterator[SpanRow]:
    """A run and all in it, each before what is inside it. `records` are the run's events, up to `upto`."""
    yield from _Walk(journal).run(head, upto, records, ())


def events(journal: Logbook, run_id: str, upto: int | None) -> Iterator[RecordedEvent]:
    """The events of a run that spans come from."""
    return journal.events(run_id, upto=upto, types=_TYPES, blobs=False)


class _Walk:
    """Opens a run, and the runs in it. `_above` are the runs that are open at the moment."""

    def __init__(self, journal: Logbook) -> None:
        self._journal = journal
        self._above: list[str] = []

    def run(
        self, head: Head, upto: int | None, records: Iterable[RecordedEvent], lasts: tuple[bool, ...]
    ) -> Iterator[SpanRow]:
        """A run and all in it."""
        yield SpanRow(head.run_id, run_span(self._journal, head, upto), lasts)
        self._above.append(head.run_id)
        reader = _Reader()
        inner = itertools.chain(reader.spans(records), _unnamed(self._journal, head.run_id, upto, reader.named))
        for span, last in _with_last(inner):
            yield from self._span(head.run_id, span, (*lasts, last))
        self._above.pop()

    def _span(self, run_id: str, span: Span, lasts: tuple[bool, ...]) -> Iterator[SpanRow]:
        """A span and what is in it; a child is opened, unless it stands above itself or too deep."""
        if span.kind == "run" and span.name not in self._above and len(lasts) <= spans_depth_max:
            head = self._journal.store.head(span.name)
            if head is not None:
                yield from self.run(head, None, events(self._journal, span.name, None), lasts)
                return
        yield SpanRow(run_id, span, lasts)
        for each, last in _with_last(span.inner):
            yield from self._span(run_id, each, (*lasts, last))


def _with_last(items: Iterable[Span]) -> Iterator[tuple[Span, bool]]:
    source = iter(items)
    held = next(source, None)
    while held is not None:
        following = next(source, None)
        yield held, following is None
        held = following


def run_span(journal: Logbook, head: Head, upto: int | None = None) -> Span:
    """A run as a span: from its first event to the one at `upto`, or to its end."""
    span = Span("run", head.run_id, 1, head.queued_at, head.status, note=head.kind)
    if upto is not None and upto < head.head_seq:
        last = next(iter(journal.store.read(head.run_id, upto - 1, upto)), None)
        span.ended_at, span.status = last.at if last else None, f"as of event {upto}"
    elif head.status in TERMINAL or head.unowned:
        span.ended_at = head.updated_at
    return span


def _unnamed(journal: Logbook, run_id: str, upto: int | None, named: set[str]) -> Iterator[Span]:
    """The children that say whose they are, while no event of the parent names them, the oldest first."""
    if upto is not None:
        return
    found = deque(itertools.islice(journal.runs(parent=run_id), spans_children_max))
    while found:
        head = found.pop()
        if head.run_id not in named:
            yield Span("run", head.run_id, 1, head.queued_at, head.status, head.updated_at)


class _Reader:
    """Makes spans of the events of a run; `named` are the children that they name, the first `spans_children_max`."""

    def __init__(self) -> None:
        self.named: set[str] = set()
        self._waiting: deque[Span] = deque()  # can't be given yet; in the order of their start
        self._step: Span | None = None
        self._wait: Span | None = None
        self._open: dict[tuple[str, int], Span] = {}

    def spans(self, records: Iterable[RecordedEvent]) -> Iterator[Span]:
        """Those outside of steps, and the steps with what is in them, in the order of their start."""
        for record in records:
            self._read(record)
            while self._waiting and (self._waiting[0].ended_at is not None or len(self._waiting) > spans_held_max):
                yield self._waiting.popleft()
        yield from self._waiting

    def _read(self, record: RecordedEvent) -> None:
        event = record.event
        match event:
            case e.StepStarted():
                self._step_started(record, event)
            case e.StepCompleted() | e.StepFailed():
                self._step_ended(record, event)
            case e.ModelStarted() | e.ToolStarted():
                self._started(record, event)
            case e.ModelCompleted() | e.ModelFailed() | e.ToolCompleted() | e.ToolFailed() | e.ToolResolved():
                self._ended(record, event)
            case e.ChildSpawned():
                child = event.child_run_id
                self._add(Span("run", child, record.seq, record.at, "not here", record.at, note=event.kind))
                if len(self.named) < spans_children_max:
                    self.named.add(child)
            case e.RunWaiting():
                names = ", ".join(f"{wait['kind']} {wait['id']}" for wait in event.for_)
                self._wait = Span("wait", names, record.seq, record.at, "waiting")
                self._add(self._wait)
            case _ if isinstance(event, _ENDS_OF_RUNS):
                self._woken(record)
            case _:
                pass

    def _add(self, span: Span) -> None:
        if self._step is None:
            self._waiting.append(span)
        elif len(self._step.inner) < spans_held_max:
            self._step.inner.append(span)
        else:
            self._step.left_out += 1

    def _step_started(self, record: RecordedEvent, event: e.StepStarted) -> None:
        step = self._step
        if step is not None and (step.index, step.attempt) == (event.index, event.attempt):
            step.entry = event.entry
            return
        if step is not None:
            step.ended_at = step.ended_at or record.at
        self._step = None
        span = Span(
            "step", event.id, record.seq, record.at, attempt=event.attempt, entry=event.entry, index=event.index
        )
        self._add(span)
        self._step = span

    def _step_ended(self, record: RecordedEvent, event: e.StepCompleted | e.StepFailed) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        if isinstance(event, e.StepFailed):
            step.end(record, "failed", describe.error(event.error))
        else:
            step.end(record, "completed")
        for span in self._open.values():  # an outbox delivers later; of others nobody knows
            span.end(record, "queued" if span.status == "queued" else "unknown")
        self._open.clear()

    def _started(self, record: RecordedEvent, event: Started) -> None:
        kind, name = ("tool", event.tool) if isinstance(event, e.ToolStarted) else ("model", event.model)
        span = Span(kind, name, record.seq, record.at, attempt=event.attempt)
        if isinstance(event, e.ToolStarted) and event.policy == "outbox":
            span.status = "queued"
        if len(self._open) < spans_held_max:
            self._open[event.call_id, event.attempt] = span
        self._add(span)

    def _ended(self, record: RecordedEvent, event: Ended) -> None:
        span = self._open.pop((event.call_id, event.attempt), None)
        if span is None:
            return
        if isinstance(event, e.ToolResolved):
            span.end(record, event.outcome, event.note or "")
        else:
            lost = isinstance(event, e.ToolFailed) and (event.lost or tells_unknown(event))
            span.end(record, "unknown" if lost else event.TYPE.partition(".")[2], _note(event))

    def _woken(self, record: RecordedEvent) -> None:
        if self._wait is not None:
            self._wait.end(record, "came" if isinstance(record.event, e.RunClaimed) else "over")
            self._wait = None


def _note(event: e.ModelCompleted | e.ModelFailed | e.ToolCompleted | e.ToolFailed) -> str:
    match event:
        case e.ModelFailed() | e.ToolFailed():
            return describe.error(event.error)
        case e.ToolCompleted():
            return describe.error(event.result_error) if event.result_error else ""
        case _:
            usage = event.usage or {}
            tokens = f"{usage.get('input', 0):,} in, {usage.get('output', 0):,} out" if usage else ""
            cost = f"{event.cost['amount']} {event.cost['currency']}" if event.cost else ""
            return ", ".join(filter(None, (tokens, cost)))
