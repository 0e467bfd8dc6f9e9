"""What people and scripts ask of a run: a summary, the state at a point, its calls, what changed between two points.

Everything reads in a stream: what is held is bounded by the folded state, never by the length of the run.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.base import BlobRef, Json, RecordedEvent
from runjournal.log.errors import CorruptLog, InvalidArgument, JournalError, Unfoldable
from runjournal.log.head import Head
from runjournal.log.store import Checkpoint
from runjournal.projections.calls import Call, Counts
from runjournal.projections.state import RunState
from runjournal.projections.status import reference

from . import checkpoints
from .journal import Journal

glance_tail_events_max: Final = 1000
"""A listing folds at most this many events of a run behind its newest checkpoint."""
last_events: Final = 8
error_search_events_max: Final = 500
"""How far back the last error of a run is looked for."""


class OpenCall(NamedTuple):
    """A call in flight, or one of which nobody knows: `status` open or unknown; `seq` where its newest attempt started.

    `args` is None for a model call, and a `BlobRef` where the args are large.
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
        }


def summary(journal: Journal, run_id: str, at: int | None = None) -> Summary:
    """Where a run stands after the event `at` (the newest: None); of a damaged one, what can still be said.

    Raises RunNotFound, InvalidArgument (no such seq).
    """
    head, store = journal.head(run_id), journal.store
    state: RunState | None = None
    problem: JournalError | None = None
    try:
        state = journal.fold(RunState, run_id, at=at)
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
        dict(sorted(Counter(row[2] for row in store.read_raw(run_id, 0, seq)).items())),
        last,
        open_calls(journal, state) if state else [],
        _last_error(journal, run_id, seq, state),
        first.event.path if first and isinstance(first.event, e.RunImported) else None,
        head.status == "running" and owner.gone(head, owner.here(), journal.clock),
    )


def newest(journal: Journal, run_id: str, upto: int, count: int) -> list[RecordedEvent]:
    """The last `count` events up to a seq, newest first."""
    return [record for record, _ in zip(journal.store.read_back(run_id, upto + 1), range(count), strict=False)]


def open_calls(journal: Journal, state: RunState) -> list[OpenCall]:
    """The tool calls in flight and those that nobody knows of, in the order of their start, with their args."""
    chosen = state.calls.open() | state.calls.unresolved()
    tools = [(call_id, call) for call_id, call in chosen.items() if call.policy != "model"]
    return [_open_call(journal, state.run_id, call_id, call) for call_id, call in tools]


def _open_call(journal: Journal, run_id: str, call_id: str, call: Call) -> OpenCall:
    record = next(iter(journal.store.read(run_id, call.args_seq - 1, call.args_seq)), None) if call.args_seq else None
    args = record.event.args if record and isinstance(record.event, e.ToolStarted) else None
    status = "open" if call.status == "open" else "unknown"
    return OpenCall(
        call_id, call.tool, status, call.policy, call.step, call.attempt, call.latest, call.started_at, args
    )


def call_as_json(call: OpenCall) -> dict[str, Any]:
    """As JSON; large args by reference."""
    return call._asdict() | {"args": reference(call.args)}


def _last_error(journal: Journal, run_id: str, seq: int, state: RunState | None) -> LastError | None:
    if state and state.status.error:
        error = state.status.error
        return LastError(None, f"run {state.status.cause or state.status.status}", error["type"], error["message"])
    if state and state.steps.failures:
        at, step, attempt, _, error = state.steps.failures[-1]
        return LastError(at, f"step {step}, attempt {attempt}", error["type"], error["message"])
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


class Glance(NamedTuple):
    """What a listing says of a run beside its head."""

    tokens: int
    cost: dict[str, str]
    in_flight: int


def glance(journal: Journal, head: Head) -> Glance | None:
    """Tokens, money and calls in flight of a run, or None where that would take a long fold."""
    try:
        found = checkpoints.newest(journal.store, RunState, head.run_id, head.head_seq)
        state, seq = (cast("RunState", found[0]), found[1]) if found else (RunState.initial(), 0)
        if head.head_seq - seq > glance_tail_events_max:
            return None
        state.fold(journal.store.read(head.run_id, seq, head.head_seq))
    except JournalError:
        return None
    money = {currency: str(state.costs.amount(currency)) for currency in sorted(state.costs.money)}
    return Glance(state.costs.tokens(), money, state.calls.tools.in_flight)


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


def calls(journal: Journal, run_id: str, *, upto: int | None = None, models: bool = False) -> Iterator[CallRow]:
    """Every attempt of every tool call, in the order of their ends, those without one last. Raises RunNotFound.

    With `models`, model calls too. Only what is open is held.
    """
    begun: dict[tuple[str, int], CallRow] = {}
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
                orphan = CallRow(record.seq, event.call_id, "", event.attempt, record.step, "", "", None, None, None)
                row = begun.pop((event.call_id, event.attempt), orphan)
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


def seq_at_time(journal: Journal, run_id: str, text: str) -> int | None:
    """The last event at or before a time: `14:03`, `14:03:22` on the day of the newest event, or ISO text; UTC.

    None if the run began later. The order of events is that of `seq`; a clock that went back doesn't matter.
    """
    day = journal.head(run_id).updated_at[:10]
    bare = text.removesuffix("Z")
    moment = bare if "T" in bare else f"{day}T{bare}"
    if re.fullmatch(r".*T\d\d:\d\d", moment):
        moment += ":59"
    moment = (moment + ".999999") if "." not in moment else moment.ljust(26, "9")
    found = deque((rec.seq for rec in journal.events(run_id, blobs=False) if rec.at[:26] <= moment), maxlen=1)
    return found[0] if found else None


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


def size_of(value: Json) -> int | None:
    """The bytes of a value that is held out of line, or None."""
    return value.bytes if isinstance(value, BlobRef) else None


def checkpoint_problem(journal: Journal, checkpoint: Checkpoint) -> str | None:
    """Why a checkpoint isn't used, or None."""
    try:
        chain = checkpoints.hash_at(journal.store, checkpoint.run_id, checkpoint.seq)
        checkpoints.unseal(RunState, checkpoint, chain)
    except InvalidArgument as error:
        return str(error)
    return None
