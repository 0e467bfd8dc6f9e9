"""Runs that stand still: what gets them going, and what to do with one that only seems to.

A run stands still when nothing will come by itself: the code differs, or it doesn't get on (engine.md X2, V6, V10).
"""

from __future__ import annotations

from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.base import Event
from runjournal.log.codec import tellable
from runjournal.log.errors import NotAllowed
from runjournal.log.head import Head
from runjournal.log.store import Transaction
from runjournal.projections.shell import command
from runjournal.writing import folding
from runjournal.writing.appender import Batch

from .logbook import Logbook


def resume(log: Logbook, run_id: str, reason: str) -> None:
    """Free a run that stands still for whoever runs it next. Raises NotAllowed."""
    note = tellable(reason) or None

    def made(tx: Transaction) -> Batch:
        head = tx.head(run_id) or Head(run_id)
        state = folding.load(log.store, tx, run_id, head.head_seq)[0]
        if not state.stands:
            raise NotAllowed(f"run {run_id} has nothing to resume: {_instead(log, head)}")
        events: list[Event] = [e.RunRequeued("resumed", note)]
        return log.batch(run_id, events, expect=None)

    log.ownership.appender.append_made(made)


def _instead(log: Logbook, head: Head) -> str:
    """Return what a run does that doesn't stand still, and what gets it on."""
    match head.status:
        case "running" if not owner.gone(head, log.ownership.process, log.clock):
            return f"{head.owner} is running it"
        case "running":
            return "its owner is gone: run it again, or recover_all"
        case "queued":
            return "it is queued: run it"
        case "scheduled_retry":
            return f"its next round is due at {head.due_at}: run it then"
        case "waiting":
            return f"it waits for an answer: `{command('explain', head.run_id)}` says which"
        case "completed":
            return "it has completed"
        case "failed" | "cancelled":
            return f"it is {head.status}: go on from it, `{command('retry', head.run_id)}`"
        case _:
            return f"it is {head.status}: go on from it, `{command('fork', head.run_id)}`"
