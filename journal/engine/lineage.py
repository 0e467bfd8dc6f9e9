"""A run and the runs that it goes on from, as one line: places in it, and what the log says there.

A place (`at`) counts the events of a line: `offset + seq`, where `offset` is the number of events of the bases. A retry
and a fork look up steps in their bases too; a restart begins anew, and only the calls that nobody knows of come along.
The rules: engine.md L1 to L5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol

from runjournal.log import events as e
from runjournal.log.base import BlobRef, Event, Json, RecordedEvent
from runjournal.log.clock import Clock, parse_timestamp
from runjournal.log.errors import MissingBlob
from runjournal.log.hiding import blob_value
from runjournal.log.limits import request_search_events_max, steps_recent_max
from runjournal.log.owner import Moment, Process, moment
from runjournal.log.store import Effect, StepEnd, Store
from runjournal.projections.requests import NotStored, rebuilt
from runjournal.projections.shell import store_option
from runjournal.projections.state import RunState


class Segment(NamedTuple):
    """A run of the line: its events up to `upto` (None: all) stand at `offset + seq`; `steps`: its steps are ours."""

    run_id: str
    offset: int
    upto: int | None
    steps: bool


class Failure(NamedTuple):
    """An attempt of a step that failed at a place; `cut`: it was cancelled, after `took_s`."""

    at: int
    attempt: int
    error: dict[str, Any]
    transient: bool
    cut: bool
    took_s: float


class RunSource(Protocol):
    """Where the runs of a line are read: a journal."""

    store: Store
    clock: Clock
    process: Process

    @property
    def live(self) -> Callable[[str], RunState]:
        """Return what returns the folded state of a run that this process owns."""
        ...

    def filled(self, record: RecordedEvent) -> RecordedEvent:
        """Return the record with blobs in place."""
        ...


class Lineage:
    """The line of a run that this process owns.

    `check_lease` raises Fenced if the time of the lease is over.
    """

    def __init__(
        self,
        source: RunSource,
        run_id: str,
        check_lease: Callable[[int], None],
    ) -> None:
        self.run_id = run_id
        self.clock = source.clock
        self.check_lease = check_lease
        self._source = source
        self._process = source.process
        self._store = source.store
        self._filled = source.filled
        self.state: Callable[[], RunState] = partial(source.live, run_id)
        """The folded state, as of this process's last append."""
        state = self.state()
        self.offset = state.offset  # the number of events of the bases
        self.scope = state.status.scope  # a run keeps it for ever
        self.salt = source.store.secret("scope", self.scope) or b""
        """What ids of calls are worked out with in a private line; else nothing."""
        self.store_id = source.store.store_id
        """What keys that tools are sent under join."""
        self._parts = list(self._walk())

    def _walk(self) -> Iterator[Segment]:
        run_id, offset, upto, steps = self.run_id, self.offset, None, True
        while True:
            yield Segment(run_id, offset, upto, steps)
            first = next(iter(self._store.read(run_id, 0, 1)), None)
            queued = first.event if first else None
            if not isinstance(queued, e.RunQueued) or queued.base is None:
                return
            steps = steps and queued.link in ("retry", "fork")
            run_id, upto = queued.base["run_id"], queued.base["seq"]
            offset -= queued.base["seq"]

    @property
    def store_option(self) -> str:
        """Return the option that names the store in a command line, "" where none is needed."""
        return store_option(self._store.url)

    def moment(self) -> Moment:
        """What the clocks of this process say."""
        return moment(self.clock, self._process)

    # Events.

    def record_at(self, at: int) -> RecordedEvent | None:
        """Return the record at a place, blobs in place, or None."""
        for part in self._parts:
            if at > part.offset:
                found = next(iter(self._store.read(part.run_id, at - part.offset - 1, at - part.offset)), None)
                return self._filled(found) if found else None
        return None

    def request_at(self, at: int) -> Json:
        """Return the whole request of the model.started at a place. Raises NotStored."""
        for part in self._parts:
            if at > part.offset:
                event = self.event_at(at)
                if isinstance(event, e.ModelStarted):
                    return rebuilt(event, at - part.offset, partial(self._event_of, part))
        raise NotStored(f"no model.started at {at}")

    def _event_of(self, part: Segment, seq: int) -> Event | None:
        return self.event_at(part.offset + seq)

    def newest_request(self, model: str) -> tuple[int, Json] | None:
        """Return the newest request to a model near the end of the run's own log, with its seq, or None."""
        for record in islice(self._store.read_back(self.run_id), request_search_events_max):
            if isinstance(record.event, e.ModelStarted) and record.event.model == model:
                try:
                    return record.seq, self.request_at(self.offset + record.seq)
                except (NotStored, MissingBlob):
                    return None
        return None

    def event_at(self, at: int) -> Event | None:
        """Return the event at a place, blobs in place, or None."""
        record = self.record_at(at)
        return record.event if record else None

    def events_after(self, at: int) -> Iterator[tuple[int, Event]]:
        """Yield every event behind a place, with its own place, in order; values held out of line stay references."""
        for part in reversed(self._parts):
            last = None if part.upto is None else part.offset + part.upto
            if last is None or last > at:
                for record in self._store.read(part.run_id, max(0, at - part.offset), part.upto):
                    yield part.offset + record.seq, record.event

    def event_of(self, run_id: str, seq: int) -> Event | None:
        """Return the event of a run of the line at a seq, blobs in place, or None."""
        found = next(iter(self._store.read(run_id, seq - 1, seq)), None)
        return self._filled(found).event if found else None

    def records(self, types: Sequence[str] | None = None, after: int = 0) -> Iterator[RecordedEvent]:
        """Yield every event of these types (all: None), in order, blobs in place.

        These are the events of the runs whose steps are this line's; with `after` those of the run itself behind a seq.
        """
        for part in reversed([part for part in self._parts if part.steps]):
            if not after or part.run_id == self.run_id:
                for record in self._store.read(part.run_id, after, part.upto, types=types):
                    yield self._filled(record)

    def input(self) -> Json:
        """Return what the run was queued with."""
        queued = self.event_of(self.run_id, 1)
        return queued.input if isinstance(queued, e.RunQueued) else None

    def blob(self, ref: BlobRef) -> Json:
        """Return the value of a reference. Raises MissingBlob."""
        body = self._store.blob(ref.sha256)
        if body is None:
            raise MissingBlob(ref.sha256, f"run {self.run_id}")
        return blob_value(body, self._store.key)

    def effect(self, key: str) -> Effect | None:
        """Return the call that isn't idempotent and has happened under this key, in the line's scope; else None."""
        return self._store.effect(self.scope, key)

    def effect_args(self, effect: Effect) -> Json:
        """Return the args that a call which happened was last started with, in whatever run of the line; else None."""
        args: Json = None
        for record in self._store.read(effect.run_id, 0, effect.seq, types=("tool.started",)):
            if isinstance(record.event, e.ToolStarted) and record.event.call_id == effect.key:
                args = record.event.args
        return self.blob(args) if isinstance(args, BlobRef) else args

    # Steps.

    def _ends(self, step_id: str) -> Iterator[tuple[int, StepEnd]]:
        for part in self._parts:
            if part.steps:
                for end in self._store.step_ends(part.run_id, step_id):
                    if part.upto is None or end.seq <= part.upto:
                        yield part.offset + end.seq, end

    def done(self, step_id: str) -> int | None:
        """Return where a step completed, or None."""
        last = self.state().steps.recent
        for recent in reversed(last):
            if recent[0] == step_id:
                return int(recent[4])
        if len(last) < steps_recent_max:  # these are all, those of the runs that this one goes on from included
            return None
        return next((at for at, end in self._ends(step_id) if end.ok), None)

    def kind(self, step_id: str) -> str | None:
        """Return the kind of a step that was ever begun, or None."""
        opened = self.state().steps.open
        if opened is not None and opened.id == step_id:
            return opened.kind
        return next((end.kind for _, end in self._ends(step_id)), None)

    def failures(self, step_id: str) -> list[Failure]:
        """Return the failures of a step that the agent may have handled, oldest first.

        These are the failures since a step last completed, and earlier ones of a step that doesn't repeat. Left out are
        those that left the agent, and those that a person wants tried again.
        """
        steps = self.state().steps
        if not steps.failed_count:
            return []
        return [
            self._failure(at, end)
            for at, end in sorted(self._ends(step_id))
            if not end.ok and steps.may_be_told(step_id, end.attempt, at, repeats=end.kind == "repeat")
        ]

    def recall(self, step_id: str) -> tuple[int, dict[str, dict[str, Any]] | None]:
        """Return how often a step has failed, and what it did, if the folded state has let go of it; else 0 and None.

        The line is read once more, which is rare: more than `failed_steps_max` other steps have failed since.
        """
        steps = self.state().steps
        if not steps.let_go or step_id in steps.attempts or next(self._ends(step_id), None) is None:
            return 0, None
        state = RunState(held=step_id)
        for part in reversed(self._parts):
            for record in self._store.read(part.run_id, 0, part.upto):
                event = record.event
                if isinstance(event, e.RunQueued) and event.link is not None and event.base is not None:
                    state = state.derive(event.link, event.again or ())
                state.apply(record)
        return state.steps.attempts.get(step_id, 0), state.recallable(step_id)

    def _failure(self, at: int, end: StepEnd) -> Failure:
        event = self.event_at(at)
        if not isinstance(event, e.StepFailed):
            return Failure(at, end.attempt, {"type": "Unknown", "message": ""}, transient=False, cut=False, took_s=0.0)
        took_s = self.seconds(at, e.StepStarted) if event.cut else 0.0
        return Failure(at, end.attempt, event.error, event.transient, event.cut, took_s)

    def seconds(self, at: int, start: type[Event], call_id: str | None = None) -> float:
        """Return how long it took from the newest start of this type, of a call or not, to the event at a place."""
        end = self.record_at(at)
        if end is None:
            return 0.0
        for place in range(at - 1, 0, -1):
            record = self.record_at(place)
            if record and isinstance(record.event, start) and getattr(record.event, "call_id", None) == call_id:
                return max(0.0, (parse_timestamp(end.at) - parse_timestamp(record.at)).total_seconds())
        return 0.0
