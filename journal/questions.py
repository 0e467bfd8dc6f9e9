"""What people are asked: open approvals, and calls of which nobody knows what became."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from runjournal.engine.failures import TIMED_OUT, RunNotDue
from runjournal.engine.verdict import judge
from runjournal.engine.waits import awaited
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.base import Json
from runjournal.log.clock import parse_timestamp
from runjournal.log.head import STATUSES, TERMINAL, UNOWNED, Head
from runjournal.log.store import Unknown
from runjournal.projections.calls import Call
from runjournal.projections.state import RunState
from runjournal.writing import folding

from .family import below_line
from .logbook import Logbook


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """Something that a person is asked.

    `id` is what `approve` and `reject` take if `kind` is `approval`, and what `resolve` takes if it is `call`: a call
    of which nobody knows whether it happened. `action` is what is asked for, or the name of the tool; `args` are its
    arguments, a `BlobRef` if their bytes are missing. `reason` is the agent's, or why nobody knows. `asked_at` is when
    it was asked, or when the call was sent (UTC text), `age_s` how long ago that was. `running` says in which process
    the body of a call that ran out of its time may still be at work: it may yet act, whatever is said of it now.

    Of an approval: `risk` is how bad a wrong yes is, in the agent's word; `choices` are what it is answered with, if
    not empty; `schema` says what its args may be edited to (`runjournal.engine.arguments`). It may be answered until
    `expires_at` (UTC text); then it is a no, or what `default` says: {args} or {choice}.
    """

    run_id: str
    id: str
    kind: Literal["approval", "call"]
    action: str
    args: Json
    reason: str
    asked_at: str
    age_s: float
    running: str = ""
    risk: str | None = None
    choices: tuple[str, ...] = ()
    schema: Json = None
    expires_at: str | None = None
    default: Json = None


def questions(log: Logbook, run_id: str | None = None) -> list[OpenQuestion]:
    """Return what people are asked, oldest first, of all runs or of one. Raises RunNotFound.

    Of a run that has ended nobody asks for an approval any more; of its calls people may still say what became.
    """
    heads = _heads(log) if run_id is None else [log.head(run_id), *below_line(log, run_id)]
    found = [each for head in heads for each in of_run(log, head)]
    return sorted(found, key=lambda each: (each.asked_at, each.run_id, each.id))


def _heads(log: Logbook) -> Iterator[Head]:
    """Yield the runs that people may be asked about: those that haven't ended, and ends of lines with open calls."""
    seen = set[str]()
    for head in log.runs(status=[each for each in STATUSES if each not in TERMINAL | UNOWNED]):
        seen.add(head.run_id)
        yield head
    for scope in {Unknown._make(row).scope for row in log.store.index_rows("unknowns")}:
        newest = log.store.newest(scope)
        ended = log.store.head(newest) if newest is not None and newest not in seen else None
        if ended is not None:
            yield ended


def of_run(log: Logbook, head: Head, state: RunState | None = None) -> list[OpenQuestion]:
    """Return what people are asked of one run, whose state may be passed.

    What lives elsewhere is asked there, and what an older run of a line has left is asked of the newest.
    """
    newest = log.store.newest(head.scope) in (None, head.run_id)
    if head.unowned or not newest or log.store.imported(head.run_id) is not None:
        return []
    state = log.fold(RunState, head.run_id, at=head.head_seq) if state is None else state
    approvals = [] if head.status in TERMINAL else list(state.approvals.open())
    owned = head.status == "running" and not owner.gone(head, log.ownership.process, log.clock)
    waits = {wait["id"] for wait in state.status.waits if wait["kind"] != "timer"}
    now = owner.moment(log.clock, log.ownership.process)
    calls = [
        call_id
        for call_id, call in ({} if owned else state.calls.unresolved()).items()
        if call_id in waits or judge(call, None, now).verdict in ("ask", "fail")
    ]
    return [each for key in (*approvals, *calls) if (each := question(log, state, key)) is not None]


def question(log: Logbook, state: RunState, key: str) -> OpenQuestion | None:
    """Return what a person is asked by an id of a run; None for what isn't asked of a person."""
    asked, call = state.approvals.known.get(key), state.calls.known.get(key)
    if asked is not None:
        event = _event(log, state, asked.asked_seq)
        found = OpenQuestion(
            state.run_id, key, "approval", asked.action, None, "", asked.asked_at, _age_s(log, asked.asked_at),
            risk=asked.risk, expires_at=asked.expires_at,
        )  # fmt: skip
        if not isinstance(event, e.ApprovalRequested):
            return found
        return replace(
            found, args=event.args, reason=event.reason, choices=tuple(event.choices or ()), schema=event.args_schema,
            default=event.default,
        )  # fmt: skip
    if call is not None:
        event = _event(log, state, call.args_seq)
        args = event.args if isinstance(event, e.ToolStarted) else None
        why = judge(call, None, owner.moment(log.clock, log.ownership.process)).why
        return OpenQuestion(
            state.run_id,
            key,
            "call",
            call.tool,
            args,
            why,
            call.started_at,
            _age_s(log, call.started_at),
            _running(log, state, key, call),
        )
    return None


def _running(log: Logbook, state: RunState, key: str, call: Call) -> str:
    """Return in which process a body may still be at work that was given up when its time was over."""
    since = call.args_seq - state.offset
    if call.policy == "model" or since < 1:
        return ""
    late = [
        record.epoch
        for record in log.store.read(state.run_id, since, types=("tool.failed",))
        if isinstance(record.event, e.ToolFailed)
        and (record.event.call_id, record.event.error["type"]) == (key, "TimeoutError")
        and TIMED_OUT in record.event.error["message"]
    ]
    for record in log.store.read(state.run_id, types=("run.claimed",)) if late else ():
        claim = record.event
        if isinstance(claim, e.RunClaimed) and claim.epoch == late[-1]:
            there = owner.Process(claim.host, claim.boot_id, claim.pid_ns, claim.pid, claim.pid_started)
            gone = owner.dead(there, log.ownership.process)
            return "" if gone else f"process {claim.pid} of host {claim.host}"
    return ""


def _age_s(log: Logbook, at: str) -> float:
    return max(0.0, (log.clock.now() - parse_timestamp(at)).total_seconds())


def _event(log: Logbook, state: RunState, seq: int) -> e.Event | None:
    """Return the event at a seq, args that are held out of line in place."""
    record = folding.event_at(log.store, state.run_id, seq - state.offset)
    if record is None:
        return None
    event = record.event
    if isinstance(event, e.ApprovalRequested | e.ToolStarted):
        return replace(event, args=folding.filled(log.store, event.args))
    return event


_TOLD: Final = ("action", "args", "reason", "age_s")
_ASKED: Final = ("risk", "choices", "schema", "expires_at", "default")


def told(log: Logbook, state: RunState, wait: dict[str, Json]) -> dict[str, Json]:
    """Return a wait of a run, {kind, id}, with what is asked: action, args, reason, age_s.

    With risk, choices, schema, expires_at and default, each if it was given. Of a wait for a time, {kind, id, reason}:
    the error that a call is to be tried again after, "" for none.
    """
    if wait["kind"] == "timer":
        return wait | {"reason": _failed_with(log, state, str(wait["id"]))}
    found = question(log, state, str(wait["id"]))
    if found is None:
        return wait | {"action": "", "args": None, "reason": "", "age_s": 0.0}
    asked = {name: value for name in _ASKED if (value := getattr(found, name))}
    return wait | {name: getattr(found, name) for name in _TOLD} | asked


def _failed_with(log: Logbook, state: RunState, call_id: str) -> str:
    """Return the error that the newest attempt of a call ended with, in words; "" if it has none."""
    call = state.calls.known.get(call_id)
    event = None if call is None else _event(log, state, call.value_seq)
    return f"{event.error['type']}: {event.error['message']}" if isinstance(event, e.ToolFailed | e.ModelFailed) else ""


def not_due(log: Logbook, state: RunState) -> RunNotDue:
    """Return what whoever runs a run is told that goes on by itself, at a time."""
    status = state.status
    if status.status == "scheduled_retry":
        error = status.error or {"type": "", "message": ""}
        cause = f"round {status.round} follows {error['type']}: {error['message']}"
    else:
        whats = [awaited(state.run_id, state, told(log, state, wait)).what for wait in status.waits]
        cause = f"it waits for {'; '.join(whats)}"
    return RunNotDue(state.run_id, status.due_at or "", cause)
