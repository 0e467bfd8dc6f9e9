"""Runs that stand still: what gets them going, and what to do with one that only seems to.

A run stands still when nothing will come by itself: the code differs, or it doesn't get on (engine.md X2, V6, V10).
"""

from __future__ import annotations

from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.base import Event
from runjournal.log.cipher import ERASED_KEY
from runjournal.log.codec import tellable
from runjournal.log.errors import InvalidArgument, NotAllowed, ResumePointUsed
from runjournal.log.head import TERMINAL, Head
from runjournal.log.store import Store, Transaction
from runjournal.projections.shell import command, store_option
from runjournal.writing import folding, purged
from runjournal.writing.appender import Batch

from .logbook import Logbook
from .resumes import point_at


def resume(log: Logbook, run_id: str, reason: str, *, recorded: bool = False, point: int | None = None) -> None:
    """Free a run that stands still for whoever runs it next; `recorded`: with the answers of models that it has.

    `point` is the resume point that is used for it, once: engine.md G4. Raises NotAllowed, ResumePointUsed.
    """
    note = tellable(reason) or None
    if point is not None and (type(point) is not int or point < 1):
        raise InvalidArgument(f"point: expected the seq of a resume point from 1, got {point!r}"[:120])

    def made(tx: Transaction) -> Batch:
        head = tx.head(run_id) or Head(run_id)
        purged.check_head(tx, head)
        state = folding.load(log.store, tx, run_id, head.head_seq)[0]
        if point is not None:
            check_point(log.store, run_id, point, head.head_seq)
        if not state.stands:
            raise NotAllowed(f"run {run_id} has nothing to resume: {_instead(log, head)}")
        events: list[Event] = [e.RunRequeued("resumed", note, point=point)]
        if recorded:
            opened = state.steps.open
            if opened is None or state.stands != "code":
                why = "no step is open" if opened is None else "its code doesn't differ from the record"
                raise NotAllowed(f"run {run_id} can't go on as recorded: {why}; resume it without that")
            events.insert(0, e.StepRecorded(opened.index))
        return log.batch(run_id, events, expect=None)

    log.ownership.appender.append_made(made)


def check_point(store: Store, run_id: str, point: int, head_seq: int) -> None:
    """Raise ResumePointUsed unless a run that has so many events stands at this resume point."""
    actual = point_at(store, run_id, head_seq)
    if actual == point:
        return
    for record in store.read(run_id, point, types=("run.requeued",)):
        if isinstance(record.event, e.RunRequeued) and record.event.point == point:
            raise ResumePointUsed(run_id, point, actual, f"{record.by} used it at {record.at} (event {record.seq})")
    raise ResumePointUsed(run_id, point, actual, "the run has moved since" if actual > point else "there is none such")


def abandon_step(log: Logbook, run_id: str, reason: str) -> str:
    """Give up the open attempt of a step of a run that nobody owns; return the step's id. Raises NotAllowed."""
    text = tellable(reason) or "a person gave up this attempt"
    error = {"type": "StepAbandoned", "message": text}
    step: list[str] = []

    def made(tx: Transaction) -> Batch:
        head = tx.head(run_id) or Head(run_id)
        purged.check_head(tx, head)
        state = folding.load(log.store, tx, run_id, head.head_seq)[0]
        opened = state.steps.open
        if head.status in TERMINAL or opened is None:
            ended = f"it is {head.status}: retry it" if head.status in TERMINAL else "no step is open in it"
            raise NotAllowed(f"run {run_id} has no step to give up: {ended}")
        events: list[Event] = [e.StepFailed(opened.index, error, transient=False, left=True)]
        if head.status == "running":
            if not owner.gone(head, log.ownership.process, log.clock):
                raise NotAllowed(f"run {run_id}: {head.owner} is at work in step {opened.id}; cancel the run instead")
            events.insert(
                0,
                e.RunRequeued(
                    owner.lapse_reason(head, log.clock, log.ownership.process, stopping=state.status.stopping)
                ),
            )
        elif head.status == "waiting":
            events.append(e.RunRequeued("abandoned"))
        step[:] = [opened.id]
        return log.batch(run_id, events, expect=None)

    log.ownership.appender.append_made(made)
    return step[0]


def _instead(log: Logbook, head: Head) -> str:
    """Return what a run does that doesn't stand still, and what gets it on."""
    db = store_option(log.store.url)
    if head.unowned or log.store.imported(head.run_id) is not None:
        return f"it isn't run in this store: go on from it, `{command('fork', head.run_id, db=db)}`"
    match head.status:
        case "running" if not owner.gone(head, log.ownership.process, log.clock):
            return f"{head.owner} is running it"
        case "running":
            return "its owner is gone: run it again, or recover_all"
        case "queued":
            return "it is queued: run it"
        case "scheduled_retry":
            return f"its next round is due at {head.due_at}: run it then"
        case "waiting" if head.due_at is not None:
            return f"it goes on by itself at {head.due_at}, or when what it waits for has come: run it then"
        case "waiting":
            return f"it waits for an answer: `{command('explain', head.run_id, db=db)}` says which"
        case "completed":
            return "it has completed"
        case "failed" | "cancelled" if log.store.secret("run", head.run_id) == ERASED_KEY:
            return f"it is {head.status}, and was erased: nothing goes on from it; begin another run"
        case "failed" | "cancelled":
            return f"it is {head.status}: go on from it, `{command('retry', head.run_id, db=db)}`"
        case _:
            return f"it is {head.status}: go on from it, `{command('fork', head.run_id, db=db)}`"
