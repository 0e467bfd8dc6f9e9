"""The audit of one run, streaming: what its events say by themselves, one after another, and all together.

Memory is that of the folded state, plus eight bytes or so for each effect that happened, so that a second one under
the same key is found however far behind it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from runjournal.log import events as e
from runjournal.log.authority import tells_unknown
from runjournal.log.base import NewerEvent, PurgedEvent, RecordedEvent, UnknownEvent, UnreadableEvent
from runjournal.log.clock import parse_timestamp
from runjournal.log.errors import Unfoldable
from runjournal.log.head import STATUS_AFTER, TERMINAL, UNOWNED, Head
from runjournal.log.limits import clock_skew_s, unknown_types_max
from runjournal.log.shapes import TIME

from .calls import Call
from .chain_audit import ChainAudit
from .derived import Derived
from .findings import Finding, Severity, finding, shown, spoken
from .shell import command, show_calls, show_events
from .state import RunState
from .status import STANDSTILLS, arrow

_TIME: Final = re.compile(TIME.pattern)
_AFTER_END: Final = frozenset(
    {"cost.recorded", "cost.repriced", "note.added", "run.erased", "run.purged"}
    | {"tool.dispatched", "tool.completed", "tool.failed", "tool.resolved"}
)
"""What may still be said of a run that has ended; users' own types may too."""


def _nothing(_: int) -> object:
    return None


class RunAudit:
    """Audit one run: `feed` it the events in order; each call returns what it has found, `finish` what the end shows.

    `row` is the run's row in the table `runs` as it was before the first event was read. `args_at(seq)` returns the
    args of the tool.started there. `state` is where the run goes on from, if it isn't the beginning. `chain` and
    `derived` hold what was folded.

    >>> audit = RunAudit("r", None)
    >>> audit.finish()
    []
    """

    def __init__(
        self,
        run_id: str,
        row: Head | None,
        *,
        args_at: Callable[[int], object] = _nothing,
        state: RunState | None = None,
    ) -> None:
        self.run_id = run_id
        self.chain = ChainAudit(run_id, row)
        self.derived = Derived(run_id, args_at, state=state)
        self.folding = True
        self._at = ""
        self._unknown_types: set[str] = set()
        self._effects: set[int] = set()
        self._entered = 0
        self._given = state is not None
        self._checks: Mapping[type[e.Event], Callable[[RecordedEvent, Any], list[Finding]]] = {
            e.RunClaimed: self._check_claim,
            e.StepStarted: self._check_step_start,
            e.StepCompleted: self._check_step_end,
            e.StepFailed: self._check_step_end,
            e.ModelStarted: self._check_call_start,
            e.ToolStarted: self._check_call_start,
            e.ToolAdopted: self._check_adoption,
            e.ModelCompleted: self._check_call_end,
            e.ModelFailed: self._check_call_end,
            e.ToolCompleted: self._check_call_end,
            e.ToolFailed: self._check_call_end,
            e.ToolResolved: self._check_word,
            e.ApprovalResolved: self._check_answer,
        }

    @property
    def state(self) -> RunState:
        """Return the folded state so far."""
        return self.derived.state

    # One event.

    def feed(self, record: RecordedEvent, body: bytes | None = None) -> list[Finding]:
        """Check one more event, and its stored bytes if they are passed."""
        found = self.chain.feed(record, body)
        if type(record.event) is PurgedEvent:
            if self.folding:
                self.derived.apply(record)
            return found
        found += self._check_schema(record, body)
        if type(record.event) is not UnreadableEvent:
            found += self._check_time(record)
        if self.folding:
            found += self._check_meaning(record)
        else:
            self.derived.move_head(record)
        return found

    def skip(self, seq: int, what: str) -> list[Finding]:
        """Count a row that can't be read at all."""
        found = self.chain.skip(seq, what)
        return [*found, *self._stop(seq)]

    def _check_schema(self, record: RecordedEvent, body: bytes | None) -> list[Finding]:
        event, kind, seq = record.event, shown(record.type), record.seq
        match event:
            case UnreadableEvent():
                return [self._one("unreadable", seq, f"{kind} can't be read ({event.reason.partition(':')[0]})")]
            case NewerEvent():
                what = f"{kind} has version {event.v} of its data: update runjournal"
                return [self._one("newer", seq, what)]
            case UnknownEvent() if record.type not in self._unknown_types:
                if len(self._unknown_types) < unknown_types_max:
                    self._unknown_types.add(record.type)
                    return [self._one("unknown_type", seq, f"{kind} is no type that is known here; the first of them")]
            case _ if body is not None and not _canonical(body):
                return [self._one("not_canonical", seq, f"the body of {kind} isn't written as runjournal writes it")]
            case _:
                pass
        return []

    def _check_time(self, record: RecordedEvent) -> list[Finding]:
        at, before = record.at, self._at
        if _TIME.fullmatch(at) is None:
            return [self._one("bad_time", record.seq, "its time isn't UTC text with microseconds")]
        self._at = at
        if at >= before:
            return []
        try:
            back_s = (parse_timestamp(before) - parse_timestamp(at)).total_seconds()
        except ValueError:
            return [self._one("bad_time", record.seq, "its time isn't one of the calendar")]
        if back_s <= clock_skew_s:
            return []
        severity: Severity | None = "info" if self.state.status.unowned else None
        what = f"its time is {spoken(back_s)} before that of the event before it; order is by seq, so nothing is lost"
        return [self._one("clock_back", record.seq, what, severity)]

    def _check_meaning(self, record: RecordedEvent) -> list[Finding]:
        if type(record.event) in (UnreadableEvent, NewerEvent):
            self.derived.move_head(record)
            return self._stop(record.seq)
        try:
            found = self._check_place(record)
            if (check := self._checks.get(type(record.event))) is not None:
                found += check(record, record.event)
            self.derived.apply(record)
        except Unfoldable:
            return self._stop(record.seq)
        except Exception as error:  # noqa: BLE001 - a damaged log must not stop its own audit
            what = f"{shown(record.type)} can't be folded ({type(error).__name__})"
            return [self._one("fold_failed", record.seq, what), *self._stop(record.seq)]
        self._note_effect(record)
        return found

    def _stop(self, seq: int) -> list[Finding]:
        if not self.folding:
            return []
        self.folding = False
        what = f"from event {seq} on only the chain, schemas and times are checked"
        next_command = f"{command('replay', self.run_id)} --at {max(1, seq - 1)}"
        return [finding("checks_stopped", self.run_id, seq, what, next_command)]

    def _one(self, code: str, seq: int, what: str, severity: Severity | None = None) -> Finding:
        return finding(code, self.run_id, seq, f"event {seq}: {what}", show_events(self.run_id, seq), severity=severity)

    # Where the run stands, and who writes.

    def _check_place(self, record: RecordedEvent) -> list[Finding]:
        """Check the arrow, the first event, what may come after the end, and the epoch."""
        status, kind, found = self.state.status, record.type, list[Finding]()
        now = status.status
        if not _may_stand(now, record):
            found.append(self._one("transition", record.seq, f"{shown(kind)} has no place in a run that is {now}"))
        if record.epoch and kind != "run.claimed" and (now != "running" or record.epoch != status.epoch):
            what = f"{shown(kind)} was written with epoch {record.epoch}, the run is {now} with epoch {status.epoch}"
            found.append(self._one("fenced", record.seq, what))
        return found

    def _check_claim(self, record: RecordedEvent, event: e.RunClaimed) -> list[Finding]:
        epoch = self.state.status.epoch
        if event.epoch == epoch + 1 == record.epoch:
            return []
        return [self._one("fenced", record.seq, f"the claim has epoch {event.epoch}, expected {epoch + 1}")]

    # Steps.

    def _check_step_start(self, record: RecordedEvent, event: e.StepStarted) -> list[Finding]:
        steps, found = self.state.steps, list[Finding]()
        step, seq = steps.open, record.seq
        self._entered = self.state.offset + seq
        if step is not None and (step.id, step.index) != (event.id, event.index):
            what = f"step {event.index} started while step {step.index} was open"
            found.append(self._one("step_order", seq, what))
        elif not self._goes_on and event.index not in (steps.next_index, steps.next_index + bool(steps.redo)):
            what = f"a step started with index {event.index}, expected {steps.next_index}"
            found.append(self._one("step_order", seq, what))
        attempt = steps.attempts.get(event.id, event.attempt - 1 if steps.let_go else 0) + 1
        entry = step.entry + 1 if step and (step.id, step.attempt) == (event.id, event.attempt) else 1
        if not self._linked and (event.attempt, event.entry) != (attempt, entry):
            named = f"attempt {event.attempt}, entry {event.entry}"
            what = f"step {event.index} started as {named}, expected {attempt}, {entry}"
            found.append(self._one("step_attempt", seq, what))
        return found

    @property
    def _linked(self) -> bool:
        """Return whether the run goes on from another one whose state isn't known here."""
        return self.state.status.base is not None and not self._given

    @property
    def _goes_on(self) -> bool:
        return self._linked and self.state.steps.last_index < 0

    def _check_step_end(self, record: RecordedEvent, event: e.StepCompleted | e.StepFailed) -> list[Finding]:
        step = self.state.steps.open
        if step is None or step.index != event.index:
            opened = "none is open" if step is None else f"step {step.index} is open"
            return [self._one("step_end", record.seq, f"step {event.index} ended, but {opened}")]
        if isinstance(event, e.StepFailed):
            return []
        return [
            self._one("step_left_call", record.seq, f"step {step.index} completed while call {shown(call_id)} was open")
            for call_id, call in self.state.calls.of_step(step.id).items()
            if call.status == "open" and call.policy != "outbox" and (call.maybe or call.latest > self._entered)
        ]

    # Calls.

    def _check_call_start(self, record: RecordedEvent, event: e.ModelStarted | e.ToolStarted) -> list[Finding]:
        call = self.state.calls.known.get(event.call_id)
        expected = call.attempt + 1 if call else 1
        if event.attempt == expected or (call is None and self._linked):
            return []
        what = f"call {shown(event.call_id)} started as attempt {event.attempt}, expected {expected}"
        return [self._one("call_attempt", record.seq, what)]

    def _check_call_end(
        self, record: RecordedEvent, event: e.ModelCompleted | e.ModelFailed | e.ToolCompleted | e.ToolFailed
    ) -> list[Finding]:
        call = self.state.calls.known.get(event.call_id)
        if isinstance(event, e.ToolCompleted) and not event.replayed and self._happened(event.call_id, call):
            return [self._twice(record, event.call_id)]
        if tells_unknown(event):
            sound = call is not None and call.unresolved
        else:
            sound = call is not None and call.status == "open" and call.attempt == event.attempt
        if sound or (call is None and self._linked):
            return []
        why = "never started" if call is None else "wasn't open"
        what = f"attempt {event.attempt} of call {shown(event.call_id)} ended, but it {why}"
        return [self._one("call_end", record.seq, what)]

    def _check_adoption(self, record: RecordedEvent, event: e.ToolAdopted) -> list[Finding]:
        call, step = self.state.calls.known.get(event.call_id), self.state.steps.open
        if step is None:
            return [self._one("call_adopted", record.seq, f"call {shown(event.call_id)} was taken over by no step")]
        if (call is not None and call.kept) or (call is None and self._linked):
            return []
        why = "it never started, or what became of it was known"
        what = f"step {step.index} took over call {shown(event.call_id)}, but {why}"
        return [self._one("call_adopted", record.seq, what)]

    def _check_word(self, record: RecordedEvent, event: e.ToolResolved) -> list[Finding]:
        call = self.state.calls.known.get(event.call_id)
        if call is not None and call.unusable and event.outcome == "happened":
            return []
        if event.outcome == "happened" and self._happened(event.call_id, call):
            return [self._twice(record, event.call_id)]
        proof = event.late and call is not None and event.attempt in (*call.denied, *call.maybe)
        if proof or (call is not None and call.unresolved) or (call is None and self._linked):
            return []
        why = "it never started" if call is None else "what became of it was known"
        return [self._one("call_end", record.seq, f"a word was said of call {shown(event.call_id)}, but {why}")]

    def _happened(self, call_id: str, call: Call | None) -> bool:
        """Return whether an effect under this key is on record."""
        return (call is not None and call.has_effect) or hash(call_id) in self._effects

    def _twice(self, record: RecordedEvent, call_id: str) -> Finding:
        what = f"event {record.seq}: a second effect under the key {shown(call_id)}, which had happened already"
        return finding("duplicate_effect", self.run_id, record.seq, what, show_calls(self.run_id))

    def _note_effect(self, record: RecordedEvent) -> None:
        if isinstance(record.event, e.ToolCompleted | e.ToolResolved):
            self._effects.update(hash(effect.key) for effect in self.derived.rows.effects)

    # Questions.

    def _check_answer(self, record: RecordedEvent, event: e.ApprovalResolved) -> list[Finding]:
        if self.state.question_open(event.approval_id) or self._linked:
            return []
        what = f"question {shown(event.approval_id)} was answered, but it wasn't asked or had its answer"
        return [self._one("approval_unasked", record.seq, what)]

    # The end.

    def finish(
        self, *, owner_gone: bool = False, known_elsewhere: Callable[[str], bool] = lambda _: False
    ) -> list[Finding]:
        """Return what the end of the run shows. `owner_gone`: the run is running, and no living process owns it.

        `known_elsewhere(call_id)`: another run of the line has said what became of the call.
        """
        found = self.chain.finish()
        if self.folding:
            found += self._dangling(owner_gone, known_elsewhere)
            found += self._uncommitted(owner_gone)
            found += self._stopped()
            found += self._untaken()
        return found

    def _stopped(self) -> list[Finding]:
        """A run that stands still has somebody who should look at it."""
        if not (stands := self.state.stands):
            return []
        ids = ", ".join(shown(wait["id"]) for wait in self.state.status.waits)
        what = f"the run is {STANDSTILLS[stands]} ({ids})"
        return [finding("stopped", self.run_id, self.state.seq, what, command("explain", self.run_id))]

    def _untaken(self) -> list[Finding]:
        """A signal may come while the run ends; it is told by nobody else."""
        state, found = self.state, list[Finding]()
        for seq, _, name in state.inbox.signals if state.status.terminal else ():
            place = seq - state.offset
            what = f"event {place}: no step took the signal {shown(name)} before the run was {state.status.status}"
            at = place if place > 0 else None
            found.append(finding("signal_untaken", self.run_id, at, what, show_events(self.run_id, max(place, 1))))
        return found

    def _severity(self, owner_gone: bool, *, harmless: bool) -> Severity:  # noqa: FBT001 - private
        """Return how severe an open thing is: no fault while the run goes on, nor, if `harmless`, after a cancel."""
        status = self.state.status.status
        if status == "cancelled" and harmless:
            return "info"
        return "warning" if status in TERMINAL or (status == "running" and owner_gone) else "info"

    def _dangling(self, owner_gone: bool, known_elsewhere: Callable[[str], bool]) -> list[Finding]:  # noqa: FBT001 - private
        calls, found = self.state.calls, list[Finding]()
        for call_id, call in {**calls.open(), **calls.unresolved()}.items():
            severity = self._severity(owner_gone, harmless=not call.unresolved)
            if call.unresolved and ((call.policy == "outbox" and not call.parked) or known_elsewhere(call_id)):
                severity = "info"  # the relay's business; or the line knows
            code, why = "call_open", "is in flight: it has no end"
            if call.unresolved:
                code, why = "call_unresolved", "may have happened, and nobody knows"
                if call.policy == "outbox" and not call.parked:
                    why = "is in the outbox: no relay has delivered it yet"
            what = f"event {call.latest}: attempt {call.attempt} of call {shown(call_id)} ({shown(call.tool)}) {why}"
            next_command = show_calls(self.run_id, models=call.policy == "model")
            if call.unresolved and severity == "warning":
                next_command = command("explain", self.run_id)
            found.append(finding(code, self.run_id, call.latest, what, next_command, severity=severity))
        return found

    def _uncommitted(self, owner_gone: bool) -> list[Finding]:  # noqa: FBT001 - private
        step = self.state.steps.open
        if step is None:
            return []
        severity = self._severity(owner_gone, harmless=True)
        status = self.state.status.status
        status += " and has no living owner" * owner_gone
        what = f"step {step.index} ({shown(step.id)}), begun at event {step.since}, is open in a run that is {status}"
        next_command = show_events(self.run_id, step.since)
        return [finding("uncommitted", self.run_id, step.since, what, next_command, severity=severity)]


def _may_stand(status: str, record: RecordedEvent) -> bool:
    kind, event = record.type, record.event
    if status == "new":
        if kind == "run.purged":
            return True  # whether it may be is the chain's to tell
        return kind in ("run.queued", "run.imported", "run.opened")
    if status == "purged":
        return False
    if status in UNOWNED:
        return kind not in STATUS_AFTER or kind == "run.purged"
    if status in TERMINAL:
        return kind in _AFTER_END or kind not in e.registered() or kind.startswith("x.")
    if isinstance(event, e.StepFailed) and event.left:  # a person gave it up
        return status in ("queued", "waiting", "scheduled_retry")
    return arrow(status, kind) is not None


def _canonical(body: bytes) -> bool:
    """Return whether the bytes are what this package makes of the JSON that they hold: no blanks, no key twice."""
    try:
        return orjson.dumps(orjson.loads(body)) == body
    except (ValueError, TypeError):
        return False
