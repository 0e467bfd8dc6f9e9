"""Where a run stands: its state, its last events, its open calls, its newest error, in one look.

What is held is bounded by the folded state, never by the length of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from runjournal.engine.resuming import ResumeReport
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.base import Json, RecordedEvent
from runjournal.log.errors import CorruptLog, JournalError, Purged, Unfoldable
from runjournal.log.head import TERMINAL, Head
from runjournal.log.limits import error_search_events_max, last_events, show_rows_max
from runjournal.logbook import Logbook
from runjournal.projections.state import RunState
from runjournal.questions import told
from runjournal.resumes import of_claim, resume_report
from runjournal.writing import checkpoints

from .family import Family, family
from .open_calls import OpenCall, call_as_json, open_calls
from .progress import Progress
from .standing import word_of
from .states import state_as_json, state_at


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
    by retries and restarts; None if there is none. `stands` is the word for how it stands now, as `explain` has it; ""
    where it stands at an earlier event, or can't be folded. `asked` has the args of what it waits for, by id.
    `resume` is what it would go on from now, or what its living owner has gone on from; None where that is nothing.
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
    stands: str
    asked: dict[str, Json]
    resume: ResumeReport | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the summary as JSON: the keys of `show -o json`, the findings left out."""
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
            "waits": [wait | {"answered": state.answered(wait)} for wait in state.status.waits] if state else [],
            "signals": found.get("signals", []),
            "open_calls": [call_as_json(call) for call in self.open_calls],
            "error": self.error._asdict() if self.error else None,
            "problem": str(self.problem) if self.problem else None,
            "sub_agents": self.family._asdict() if self.family else None,
            "goes_on_from": found.get("base"),
            "went_on_as": self.newest,
            "stands": self.stands or None,
            "resume": self.resume.as_json() if self.resume else None,
        }


def summary(journal: Logbook, run_id: str, at: int | None = None, progress: Progress | None = None) -> Summary:
    """Return where a run stands after the event `at` (the newest: None); of a damaged one, what can still be said.

    Raises RunNotFound, InvalidArgument (no such seq).
    """
    head, store = journal.head(run_id), journal.store
    state: RunState | None = None
    problem: JournalError | None = None
    try:
        state = state_at(journal, run_id, at, progress=progress).state
    except (CorruptLog, Purged, Unfoldable) as found:
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
        store.type_counts(run_id, seq),
        last,
        open_calls(journal, state) if state else [],
        _last_error(journal, run_id, seq, state),
        first.event.path if first and isinstance(first.event, e.RunImported) else None,
        head.status == "running" and owner.gone(head, owner.here(), journal.clock),
        family(journal, run_id) if at is None else None,
        later if (later := store.newest(head.scope)) != run_id else None,
        word_of(journal, head, state) if at is None and state is not None else "",
        {str(wait["id"]): told(journal, state, wait).get("args") for wait in state.status.waits[:show_rows_max]}
        if state
        else {},
        _resume(journal, head) if at is None and state is not None else None,
    )


def _resume(journal: Logbook, head: Head) -> ResumeReport | None:
    """Return what a run that hasn't ended would go on from, or what its living owner has gone on from."""
    if head.status in TERMINAL:
        return None
    if head.status == "running" and not owner.gone(head, owner.here(), journal.clock):
        taken = of_claim(journal, head.run_id, head.epoch)
        return None if taken is None else taken.report
    return resume_report(journal, head.run_id)


def newest(journal: Logbook, run_id: str, upto: int, count: int) -> list[RecordedEvent]:
    """Return the last `count` events up to a seq, newest first."""
    return [record for record, _ in zip(journal.store.read_back(run_id, upto + 1), range(count), strict=False)]


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
