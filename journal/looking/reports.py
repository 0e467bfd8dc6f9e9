"""What people and scripts ask of a run: a summary, the state at a point, its calls, what changed between two points.

Everything reads in a stream: what is held is bounded by the folded state, never by the length of the run.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, NamedTuple, TypeVar, cast

from runjournal.engine.verdict import judge
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.base import Json, RecordedEvent, data_of
from runjournal.log.clock import timestamp
from runjournal.log.codec import decode
from runjournal.log.errors import CorruptLog, InvalidArgument, JournalError, Unfoldable
from runjournal.log.head import Head
from runjournal.log.limits import ended_attempts_held_max, error_search_events_max, last_events, progress_every_events
from runjournal.log.store import Checkpoint
from runjournal.logbook import Logbook
from runjournal.projections.calls import Call, Counts
from runjournal.projections.state import RunState
from runjournal.projections.status import reference
from runjournal.writing import checkpoints, folding

from .family import Family, family

T = TypeVar("T")
Progress = Callable[[int, int | None], None]
"""Told how much is done, and of how much."""


class OpenCall(NamedTuple):
    """A call in flight, or one of which nobody knows: `status` is open or unknown.

    `seq` is where its newest attempt started: 0 and below counts back in the run that this one goes on from.
    `args` is None for a model call, and a `BlobRef` where the args are large. `verdict` is what recovery does with it
    (recorded, run, ask), and `why`; "" in a run that isn't gone on with here.
    """

    call_id: str
    tool: str
    status: str
    policy: str
    step: str
    attempt: int
    seq: int
    started_at: str
    args: Json
    verdict: str = ""
    why: str = ""


class LastError(NamedTuple):
    """The newest error of a run: where it stands, what failed, and how."""

    seq: int | None
    where: str
    type: str
    message: str


@dataclass(frozen=True, slots=True)
class Summary:
    """Where a run stands after the event `seq`.

    `state` is None where the log can't be folded; `problem` says why. `events` are counts by type, `last` the newest
    events, newest first. `owner_gone`: the run is running now, and the process that owns it is known to be gone.
    `family` are the runs below it; None where it stands at an earlier event. `newest` is the run that went on from it,
    by retries and restarts; None if there is none.
    """

    head: Head
    seq: int
    hash: str | None
    state: RunState | None
    problem: JournalError | None
    events: dict[str, int]
    last: list[RecordedEvent]
    open_calls: list[OpenCall]
    error: LastError | None
    path: str | None
    owner_gone: bool
    family: Family | None
    newest: str | None

    def as_json(self) -> dict[str, Any]:
        """As JSON: keys of `show -o json`, the findings left out."""
        head, state = self.head, self.state
        found = state_as_json(state) if state else {}
        return {
            "run_id": head.run_id,
            "status": found.get("status", head.status),
            "kind": head.kind,
            **({} if self.path is None else {"path": self.path}),
            "title": head.title,
            "parent_run_id": head.parent_run_id,
            "queued_at": head.queued_at,
            "updated_at": found.get("at", head.updated_at),
            "head_seq": self.seq,
            "head_hash": self.hash,
            "events": self.events,
            "messages": found.get("messages", {}),
            "calls": found.get("calls", {}),
            "model_calls": found.get("model_calls", {}),
            "usage": found.get("usage", {}),
            "cost": found.get("cost", {}),
            "step": found.get("step"),
            "owner": found.get("owner"),
            "owner_gone": self.owner_gone,
            "waits": found.get("waits", []),
            "open_calls": [call_as_json(call) for call in self.open_calls],
            "error": self.error._asdict() if self.error else None,
            "problem": str(self.problem) if self.problem else None,
            "sub_agents": self.family._asdict() if self.family else None,
            "goes_on_from": found.get("base"),
            "went_on_as": self.newest,
        }


class Folded(NamedTuple):
    """A folded state, and the seq of the checkpoint that the fold went on from: 0, if it began at the first event."""

    state: RunState
    since: int


def state_at(
    journal: Logbook,
    run_id: str,
    at: int | None = None,
    *,
    whole: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Folded:
    """The state after the event `at` (the newest: None), from the newest usable checkpoint, or `whole` from the start.

    What is folded is verified: its links, and that no event is missing.

    Raises RunNotFound, InvalidArgument (no such seq), CorruptLog, Unfoldable.
    """
    upto = checked_seq(journal, run_id, at)
    found = None if whole else checkpoints.newest(journal.store, RunState, run_id, upto)
    state = cast("RunState", found[0]) if found else begin(journal, run_id)
    since = state.seq
    records = folding.chained(journal.store, run_id, since, upto, state.hash)
    state.fold(told(records, upto - since, progress), force=force)
    return Folded(state, since)


def begin(journal: Logbook, run_id: str) -> RunState:
    """The state before the first event of a run."""
    return folding.begin(journal.store, folding.first(journal.store, run_id))


def checked_seq(journal: Logbook, run_id: str, at: int | None) -> int:
    """The seq itself, the newest for None. Raises RunNotFound, InvalidArgument if the run has no such event."""
    head = journal.head(run_id)
    if at is None:
        return head.head_seq
    if not 1 <= at <= head.head_seq:
        raise InvalidArgument(f"run {run_id} has the events 1 to {head.head_seq}, got {at!r}"[:200])
    return at


def told(items: Iterable[T], total: int | None, progress: Progress | None) -> Iterator[T]:
    """The same items; `progress` is told from time to time how many of them have gone by."""
    for count, item in enumerate(items):
        if progress is not None and count % progress_every_events == 0:
            progress(count, total)
        yield item


def type_counts(journal: Logbook, run_id: str, upto: int) -> dict[str, int]:
    """How many events of each type a run has up to a seq."""
    try:
        rows = journal.store.sql(_TYPE_COUNTS, (run_id, upto))
    except InvalidArgument:  # a store without SQL
        rows = list(Counter(row[2] for row in journal.store.read_raw(run_id, 0, upto)).items())
    return dict(sorted(cast("list[tuple[str, int]]", rows)))


_TYPE_COUNTS: Final = "SELECT type, count(*) FROM events WHERE run_id = ? AND seq <= ? GROUP BY type"


def summary(journal: Logbook, run_id: str, at: int | None = None, progress: Progress | None = None) -> Summary:
    """Where a run stands after the event `at` (the newest: None); of a damaged one, what can still be said.

    Raises RunNotFound, InvalidArgument (no such seq).
    """
    head, store = journal.head(run_id), journal.store
    state: RunState | None = None
    problem: JournalError | None = None
    try:
        state = state_at(journal, run_id, at, progress=progress).state
    except (CorruptLog, Unfoldable) as found:
        problem = found
    seq = head.head_seq if at is None else at
    last = newest(journal, run_id, seq, last_events)
    first = next(iter(store.read(run_id, 0, 1)), None)
    return Summary(
        head,
        seq,
        head.head_hash if at is None else checkpoints.hash_at(store, run_id, at),
        state,
        problem,
        type_counts(journal, run_id, seq),
        last,
        open_calls(journal, state) if state else [],
        _last_error(journal, run_id, seq, state),
        first.event.path if first and isinstance(first.event, e.RunImported) else None,
        head.status == "running" and owner.gone(head, owner.here(), journal.clock),
        family(journal, run_id) if at is None else None,
        later if (later := store.newest(head.scope)) != run_id else None,
    )


def newest(journal: Logbook, run_id: str, upto: int, count: int) -> list[RecordedEvent]:
    """The last `count` events up to a seq, newest first."""
    return [record for record, _ in zip(journal.store.read_back(run_id, upto + 1), range(count), strict=False)]


def open_calls(journal: Logbook, state: RunState) -> list[OpenCall]:
    """The calls in flight and those that nobody knows of, in the order of their start, with their args."""
    chosen = state.calls.open() | state.calls.unresolved()
    return [_open_call(journal, state, call_id, call) for call_id, call in chosen.items()]


def _open_call(journal: Logbook, state: RunState, call_id: str, call: Call) -> OpenCall:
    started = folding.event_at(journal.store, state.run_id, call.args_seq - state.offset)
    args: Json = started.event.args if started and isinstance(started.event, e.ToolStarted) else None
    status = "open" if call.status == "open" else "unknown"
    seq = call.latest - state.offset
    verdict, why = ("", "") if state.status.status == "imported" else judge(call, timestamp(journal.clock.now()))
    return OpenCall(
        call_id, call.tool, status, call.policy, call.step, call.attempt, seq, call.started_at, args, verdict, why
    )


def call_as_json(call: OpenCall) -> dict[str, Any]:
    """As JSON; large args by reference."""
    return call._asdict() | {"args": reference(call.args)}


def _last_error(journal: Logbook, run_id: str, seq: int, state: RunState | None) -> LastError | None:
    if state and state.status.error:
        error = state.status.error
        return LastError(None, f"run {state.status.cause or state.status.status}", error["type"], error["message"])
    if state and state.steps.failures:
        at, step, attempt, _, error = state.steps.failures[-1]
        place = at - state.offset
        return LastError(
            place if place > 0 else None, f"step {step}, attempt {attempt}", error["type"], error["message"]
        )
    for record, _ in zip(journal.store.read_back(run_id, seq + 1), range(error_search_events_max), strict=False):
        event = record.event
        if isinstance(event, e.ToolFailed | e.ModelFailed):
            return LastError(record.seq, f"{record.type} {event.call_id}", event.error["type"], event.error["message"])
    return None


def state_as_json(state: RunState) -> dict[str, Any]:
    """A folded state as people think of it; `RunState.dump` is the exact one. Context is as the open step sees it."""
    extent, step, status = state.transcript.view, state.steps.open, state.status
    return {
        "run_id": state.run_id,
        "seq": state.seq,
        "hash": state.hash,
        "at": state.at,
        "status": status.status,
        "kind": status.kind,
        "title": status.title,
        "owner": status.owner,
        "epoch": status.epoch,
        "round": status.round,
        "waits": status.waits,
        "base": status.base,
        "due_at": status.due_at,
        "cancel": status.cancel,
        "error": status.error,
        "cause": status.cause,
        "step": step.dump() if step else None,
        "next_step_index": state.steps.next_index,
        "steps_completed": state.steps.completed_count,
        "steps_failed": state.steps.failed_count,
        "overlay_open": state.overlay_open,
        "messages": dict(sorted(extent.roles.items())),
        "message_range": [extent.first_seq, extent.last_seq] if extent.count else None,
        "compacted": extent.compacted,
        "memory": {key: reference(value) for key, value in state.memory.view.items()},
        "plan": state.plan.tasks,
        "calls": _counts(state.calls.tools),
        "model_calls": _counts(state.calls.models),
        "open_calls": _listed(state.calls.open()),
        "unresolved_calls": _listed(state.calls.unresolved()),
        "questions": [
            {"approval_id": key, "action": q.action, "asked_at": q.asked_at}
            for key, q in state.approvals.open().items()
        ],
        "signals": [{"seq": seq, "signal_id": key, "name": name} for seq, key, name in state.inbox.signals],
        "children": dict(sorted(state.inbox.children.items())),
        "prompt_fingerprint": state.prompt.fingerprint,
        "usage": state.costs.usage(),
        "cost": {currency: str(state.costs.amount(currency)) for currency in sorted(state.costs.money)},
    }


def _counts(counts: Counts) -> dict[str, int]:
    return {**counts.dump(), "in_flight": counts.in_flight}


def _listed(calls: Mapping[str, Call]) -> list[dict[str, Any]]:
    return [
        {"call_id": key, "tool": call.tool, "policy": call.policy, "attempt": call.attempt, "status": call.status}
        for key, call in calls.items()
    ]


class CallRow(NamedTuple):
    """One attempt of a call, from its start to its end; `status` is open if it has none. `seq` is where it started.

    `value` is its args, `outcome` its result or error, each possibly a `BlobRef`; `ended_at` None while it is open.
    """

    seq: int
    call_id: str
    tool: str
    attempt: int
    step: int | None
    status: str
    started_at: str
    ended_at: str | None
    args: Json
    outcome: Json


_CALL_TYPES: Final = (
    "tool.started", "tool.completed", "tool.failed", "tool.resolved",
    "model.started", "model.completed", "model.failed",
)  # fmt: skip


def calls(journal: Logbook, run_id: str, *, upto: int | None = None, models: bool = False) -> Iterator[CallRow]:
    """Every attempt of every tool call, in the order of their ends, those without one last. Raises RunNotFound.

    With `models`, model calls too. A word that is said later of an attempt is a row of its own. Only what is open is
    held, and the last ones that ended.
    """
    begun: dict[tuple[str, int], CallRow] = {}
    ended: OrderedDict[tuple[str, int], CallRow] = OrderedDict()  # the last ones, for a word that comes later
    types = _CALL_TYPES if models else _CALL_TYPES[:4]
    for record in journal.events(run_id, upto=upto, types=types, blobs=False):
        event = record.event
        match event:
            case e.ToolStarted() | e.ModelStarted():
                tool, args = (event.tool, event.args) if isinstance(event, e.ToolStarted) else (event.model, None)
                row = CallRow(
                    record.seq, event.call_id, tool, event.attempt, record.step, "open", record.at, None, args, None
                )
                begun[event.call_id, event.attempt] = row
            case e.ToolCompleted() | e.ModelCompleted() | e.ToolFailed() | e.ModelFailed() | e.ToolResolved():
                place = event.call_id, event.attempt
                orphan = CallRow(record.seq, event.call_id, "", event.attempt, record.step, "", "", None, None, None)
                row = begun.pop(place) if place in begun else ended.get(place, orphan)
                if isinstance(event, e.ToolFailed) or getattr(event, "result_error", None):
                    ended[place] = row
                    if len(ended) > ended_attempts_held_max:
                        ended.popitem(last=False)
                yield row._replace(status=_ended(event), ended_at=record.at, outcome=_outcome(event))
            case _:
                pass
    yield from begun.values()


_End = e.ToolCompleted | e.ModelCompleted | e.ToolFailed | e.ModelFailed | e.ToolResolved


def _ended(event: _End) -> str:
    if isinstance(event, e.ToolResolved):
        return event.outcome
    return event.TYPE.partition(".")[2]


def _outcome(event: _End) -> Json:
    match event:
        case e.ToolCompleted():
            return event.result_error or event.result
        case e.ToolResolved():
            return event.result if event.result is not None else event.note
        case e.ModelCompleted():
            return event.usage
        case _:
            return {"type": event.error["type"], "message": event.error["message"]}


def seq_at_time(journal: Logbook, run_id: str, text: str) -> int | None:
    """The last event at or before a time: `14:03`, `14:03:22` on the day of the newest event, or ISO text; UTC.

    None if the run began later. The order of events is that of `seq`; a clock that went back doesn't matter.
    """
    day = journal.head(run_id).updated_at[:10]
    bare = text.removesuffix("Z")
    moment = bare if "T" in bare else f"{day}T{bare}"
    if re.fullmatch(r".*T\d\d:\d\d", moment):
        moment += ":59"
    moment = (moment + ".999999") if "." not in moment else moment.ljust(26, "9")
    try:
        rows = journal.store.sql(_AT_TIME, (run_id, moment[:26]))
    except InvalidArgument:  # a store without SQL
        rows = [(rec.seq,) for rec in journal.store.read_back(run_id) if rec.at[:26] <= moment][:1]
    return rows[0][0] if rows else None


_AT_TIME: Final = """
    SELECT seq FROM events
    WHERE run_id = ? AND substr(CAST(body AS TEXT), instr(CAST(body AS TEXT), '"at":"') + 6, 26) <= ?
    ORDER BY seq DESC LIMIT 1
"""


class Change(NamedTuple):
    """A place (`memory.total`) whose value differs; None stands for one that isn't there."""

    path: str
    before: Json
    after: Json


def differences(before: Json, after: Json, path: str = "") -> Iterator[Change]:
    """Where two JSON values differ, place by place, sorted."""
    if isinstance(before, dict) and isinstance(after, dict):
        left, right = cast("dict[str, Any]", before), cast("dict[str, Any]", after)
        for key in sorted(left.keys() | right.keys()):
            yield from differences(left.get(key), right.get(key), f"{path}.{key}" if path else key)
    elif before != after:
        yield Change(path, before, after)


# --- two runs ------------------------------------------------------------------------------------------------------

_KEEPING_HOUSE: Final = ("run.claimed", "run.requeued", "note.added", "cost.", "tool.dispatched", "child.finished")
_IDS: Final = frozenset({
    "call_id", "approval_id", "message_id", "signal_id", "signal_ids", "wait_id", "child_run_id", "provider_call_id",
    "response_id", "scope", "parent_run_id", "link", "base", "again", "request_hash", "raw", "key_expires_at",
    "expires_at", "due_at", "not_before", "retry_at", "entry", "replayed", "tags", "title", "code_version",
})  # fmt: skip


class Divergence(NamedTuple):
    """The first events in which two runs differ; None where one of them has ended."""

    before: RecordedEvent | None
    after: RecordedEvent | None


def first_divergence(
    journal: Logbook,
    before: tuple[str, int | None],
    after: tuple[str, int | None],
    progress: Progress | None = None,
) -> Divergence | None:
    """Where two runs (id, seq of the last event to look at) begin to differ in what they did, or None.

    Ids, times, owners and what is said of money don't count, nor do a run's title and tags.
    """
    left, right = (_deeds(journal, *each) for each in (before, after))
    for one, other in told(zip_longest(left, right), None, progress):
        if one is None or other is None or not one.same(other):
            return Divergence(one and one.record(), other and other.record())
    return None


class _Deed(NamedTuple):
    run_id: str
    seq: int
    type: str
    body: bytes

    def same(self, other: _Deed) -> bool:
        """Whether both say the same, but for ids."""
        if self.type != other.type:
            return False
        return self.content() == other.content() or _without_ids(self.record()) == _without_ids(other.record())

    def content(self) -> tuple[bytes, bytes]:
        """What is held out of line, and the data, as they are stored: `ext` and `data` stand behind all else."""
        head, _, data = self.body.partition(b'"data":')
        return head.partition(b'"ext":')[2], data

    def record(self) -> RecordedEvent:
        return decode(self.run_id, self.seq, 0, self.type, self.body)


def _deeds(journal: Logbook, run_id: str, upto: int | None) -> Iterator[_Deed]:
    """The events that say what a run did."""
    for seq, _, event_type, body in journal.store.read_raw(run_id, 0, upto):
        if not event_type.startswith(_KEEPING_HOUSE):
            yield _Deed(run_id, seq, event_type, body)


def _without_ids(record: RecordedEvent) -> Json:
    event = record.event
    if isinstance(event, e.UnknownEvent | e.NewerEvent | e.UnreadableEvent):
        return event
    return {name: value for name, value in data_of(event).items() if name not in _IDS}


def checkpoint_problem(journal: Logbook, checkpoint: Checkpoint) -> str | None:
    """Why a checkpoint isn't used, or None."""
    try:
        chain = checkpoints.hash_at(journal.store, checkpoint.run_id, checkpoint.seq)
        checkpoints.unseal(RunState, checkpoint, chain)
    except InvalidArgument as error:
        return str(error)
    return None
