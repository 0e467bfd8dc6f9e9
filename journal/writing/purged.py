"""Runs that were purged: who wants anything of one is told what it was, when it went, and why."""

from __future__ import annotations

from runjournal.log import events as e
from runjournal.log.errors import InvalidArgument, Purged
from runjournal.log.head import Head
from runjournal.log.store import Reading


def is_purged(reading: Reading, run_id: str) -> bool:
    """Return whether a run was purged."""
    head = reading.head(run_id)
    return head is not None and head.status == "purged"


def check_there(reading: Reading, run_id: str) -> None:
    """Raise Purged if a run was purged."""
    check_head(reading, reading.head(run_id))


def seq_of(head: Head, at: int | None) -> int:
    """Return the seq of an event of the run, the newest for None. Raises InvalidArgument if it has no such event."""
    if at is None:
        return head.head_seq
    if type(at) is not int or not 1 <= at <= head.head_seq:
        raise InvalidArgument(f"run {head.run_id} has the events 1 to {head.head_seq}, got {at!r}"[:200])
    return at


def checked_seq(reading: Reading, head: Head, at: int | None) -> int:
    """Return the seq of an event of a run up to which it can be folded; of a purged run that is the last one.

    None stands for the newest. Raises Purged, and InvalidArgument if the run has no such event.
    """
    if at not in (None, head.head_seq):
        check_head(reading, head)
    return seq_of(head, at)


def check_base(reading: Reading, first: e.Event) -> None:
    """Raise Purged if an event begins a run that would go on from a purged one."""
    if isinstance(first, e.RunQueued) and first.base is not None:
        check_there(reading, first.base["run_id"])


def check_head(reading: Reading, head: Head | None) -> None:
    """Raise Purged if the run of this head was purged."""
    if head is not None and head.status == "purged":
        raise Purged(head.run_id, _told(reading, head))


def _told(reading: Reading, head: Head) -> str:
    marker = next(iter(reading.read(head.run_id, head.head_seq - 1, head.head_seq)), None)
    if marker is None or not isinstance(marker.event, e.RunPurged):
        return ""
    event = marker.event
    return f"{event.kind}, {event.status}, {event.events} events; at {marker.at}, for: {event.reason}"
