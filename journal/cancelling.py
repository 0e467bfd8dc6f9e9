"""Cancels: one is requested of a run, goes down to the runs that it has begun, and ends what nobody owns.

The rules: engine.md X9 and X22 for one run, K7 and K13 for those below it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.base import Event
from runjournal.log.errors import AppendRefused, WrongExpectation
from runjournal.log.head import TERMINAL, Head
from runjournal.log.limits import cancel_tries_max

from . import naming
from .children import newest
from .logbook import Logbook

CANCELLED: Final = "a cancel was requested"
CANCELLED_ABOVE: Final = "the run that has begun it was cancelled"


def cancel_family(log: Logbook, run_id: str, reason: str, mode: str, above: str | None = None) -> None:
    """Cancel a run and its children: first it is requested, then they are cancelled, then the run ends.

    So whoever claims it meanwhile cancels them, too, and none is left behind (engine.md K7). `above` is the run whose
    cancel takes this one down, None if somebody cancels this one.
    """
    if unended(log, run_id):
        log.append(run_id, [e.RunCancelRequested(reason, mode, above)], expect=None)
        cancel_below(log, run_id, reason, mode)
    _cancel(log, run_id, reason, mode, above)


def cancel_below(log: Logbook, run_id: str, reason: str, mode: str) -> None:
    """Cancel the children of a run that haven't ended: one that ends meanwhile stays as it has ended."""
    for head in unended(log, run_id):
        with suppress(AppendRefused):
            cancel_family(log, head.run_id, reason, mode, run_id)


def unended(log: Logbook, run_id: str) -> list[Head]:
    """Return the children of a run's line up to it that haven't ended, each as the newest run of its own line."""
    found: dict[str, Head] = {}
    for member in naming.members(log.store, run_id):
        for head in log.runs(parent=member):
            last = newest(log, head.scope) or head
            if last.status not in TERMINAL and not last.unowned:
                found[last.run_id] = last
    return list(found.values())


def _cancel(log: Logbook, run_id: str, reason: str, mode: str, above: str | None) -> None:
    """Request a cancel; a run that nobody owns is ended at once, in one append.

    The request stands behind any head. What ends the run stands behind the head that shows that nobody owns it.
    """
    requested = False
    for _ in range(cancel_tries_max):
        head = log.head(run_id)
        ending = _cancelled(log, head, reason)
        if requested and not ending:
            return  # its owner obeys, or it has ended
        events: list[Event] = [] if requested else [e.RunCancelRequested(reason, mode, above)]
        try:
            log.append(run_id, [*events, *ending], expect=head.head_seq if ending else None)
        except WrongExpectation:
            continue  # somebody was faster: maybe it is owned now
        if ending:
            return
        requested = True  # maybe its owner has just given it back
    if not requested:
        log.append(run_id, [e.RunCancelRequested(reason, mode, above)], expect=None)


def _cancelled(log: Logbook, head: Head, reason: str) -> list[Event]:
    """Return what ends a run that nobody owns; nothing for one that has an owner or has ended."""
    if head.status in ("queued", "waiting", "scheduled_retry"):
        return [e.RunCancelled(reason)]
    if head.status == "running" and owner.gone(head, log.ownership.process, log.clock):
        return [
            e.RunRequeued(owner.lapse_reason(head, log.clock, log.ownership.process, stopping=False)),
            e.RunCancelled(reason),
        ]
    return []
