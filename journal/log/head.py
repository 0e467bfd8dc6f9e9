"""The head of a run: its row in the table `runs`, and what each event makes of it.

It holds what a guarded append and a listing need without folding. All of it but the heartbeat follows from the events,
so it can be rebuilt from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import orjson

from . import events as e
from .base import RecordedEvent
from .codec import RUN_ID, is_utf8
from .limits import row_int_max

TERMINAL: Final = frozenset({"completed", "failed", "cancelled", "purged"})
UNOWNED: Final = frozenset({"imported", "open"})
"""The statuses of a run that nobody ever owns: it happens elsewhere, and the log is only told of it."""
STATUSES: Final = (
    "queued", "running", "waiting", "scheduled_retry", "completed", "failed", "cancelled", "imported", "open",
    "purged",
)  # fmt: skip
STATUS_AFTER: Final[Mapping[str, str]] = {
    "run.queued": "queued",
    "run.imported": "imported",
    "run.opened": "open",
    "run.claimed": "running",
    "run.requeued": "queued",
    "run.waiting": "waiting",
    "run.retry_scheduled": "scheduled_retry",
    "run.completed": "completed",
    "run.failed": "failed",
    "run.cancelled": "cancelled",
    "run.purged": "purged",
}
"""The status that an event leads to; every other type leaves it as it is."""


RECOVERIES: Final = frozenset({"lease_expired", "owner_dead"})
"""Why a run is requeued that its owner didn't give back by itself, and that may be the run's own doing: it counts."""
LAPSES: Final = RECOVERIES | {"machine_restarted", "told_to_stop", "redeployed"}
"""The same, with what is none of the run's doing: engine.md X21."""
TOLD_TO_STOP: Final = "told_to_stop"
"""The code of the note of an owner whose process got a SIGTERM."""


class Head(NamedTuple):
    """A row of `runs`. Times are UTC text; `lease_until` and `heartbeat_at` are seconds since the boot `boot_id`."""

    run_id: str
    status: str = "new"
    kind: str = ""
    title: str | None = None
    tags: str = "{}"
    scope: str = ""
    priority: int = 0
    parent_run_id: str | None = None
    queued_at: str = ""
    updated_at: str = ""
    due_at: str | None = None
    wake_at: str | None = None
    head_seq: int = 0
    head_hash: str | None = None
    owner: str | None = None
    epoch: int = 0
    lease_until: float | None = None
    heartbeat_at: float | None = None
    boot_id: str | None = None
    host: str | None = None
    pid_ns: str | None = None
    pid: int | None = None
    pid_started: str | None = None
    cancel_requested: str | None = None

    @property
    def unowned(self) -> bool:
        """Return whether nobody ever owns the run: it happens elsewhere, and nothing of it is sent from here."""
        return self.status in UNOWNED


_NEEDED: Final = frozenset(
    [
        "run_id",
        "status",
        "kind",
        "tags",
        "scope",
        "priority",
        "queued_at",
        "updated_at",
        "head_seq",
        "head_hash",
        "epoch",
    ]
)
_COUNTS: Final = {"head_seq": 1, "epoch": 0, "pid": 0}


def row_fault(head: Head) -> str | None:
    """Why a row of `runs` can't be read, the first column that is at fault; None for one that can.

    It is about what would break whoever reads it, not about what the events say: that the audit compares.
    """
    columns: list[tuple[str, Any]] = list(zip(Head._fields, head, strict=True))
    for name, value in columns:
        if value is None:
            if name in _NEEDED:
                return f"{name} is NULL"
        elif isinstance(value, str):
            if not (value.isascii() or is_utf8(value)):
                return f"{name} is no UTF-8"
        elif isinstance(value, float):
            if not math.isfinite(value):
                return f"{name} is no number"
        elif name in _COUNTS and not _COUNTS[name] <= value <= row_int_max:
            return f"{name} can't be {value}"
    if head.status not in STATUSES:
        return "status is none of those that there are"
    if not RUN_ID.fullmatch(head.run_id):
        return "run_id can't be the id of a run"
    return None if head.tags == "{}" or _are_tags(head.tags) else "tags isn't JSON of names and texts"


def _are_tags(text: str) -> bool:
    try:
        tags = orjson.loads(text)
    except ValueError:
        return False
    return isinstance(tags, dict) and all(isinstance(each, str) for each in cast("dict[str, object]", tags).values())


_AT: Final = Head._fields.index("updated_at")
_SEQ: Final = Head._fields.index("head_seq")


def only_moved(before: Head, after: Head) -> bool:
    """Return whether `after` differs from `before` in nothing but how far it is."""
    return (
        before[:_AT] == after[:_AT]
        and before[_AT + 1 : _SEQ] == after[_AT + 1 : _SEQ]
        and before[_SEQ + 2 :] == after[_SEQ + 2 :]
    )


def advance(head: Head, record: RecordedEvent, boottime_s: float = 0.0) -> Head:
    """Return the head after one more event; a lease begins at `boottime_s`, in seconds since boot."""
    if record.type not in MOVES:  # all else as it was; by slices, since `_replace` costs four times as much
        at = max(record.at, head.updated_at) if head.status == "imported" else record.at  # files aren't sorted by time
        return Head._make((*head[:_AT], at, *head[_AT + 1 : _SEQ], record.seq, record.hash, *head[_SEQ + 2 :]))
    head = head._replace(
        head_seq=record.seq,
        head_hash=record.hash,
        updated_at=record.at,
        status=STATUS_AFTER.get(record.type, head.status),
    )
    event = record.event
    title = None if record.private else getattr(event, "title", None)  # no column holds a private value
    match event:
        case e.RunQueued():
            return head._replace(
                kind=event.kind, title=title, tags=tags_json(event.tags),
                scope=event.scope or head.run_id,
                priority=event.priority or 0, parent_run_id=event.parent_run_id, queued_at=record.at,
                due_at=event.not_before,
            )  # fmt: skip
        case e.RunImported():
            return head._replace(
                kind=event.kind,
                title=title,
                scope=head.run_id,
                parent_run_id=event.parent_run_id,
                queued_at=record.at,
            )
        case e.RunOpened():
            return head._replace(
                kind=event.kind, title=title, tags=tags_json(event.tags),
                scope=head.run_id, parent_run_id=event.parent_run_id, queued_at=record.at,
            )  # fmt: skip
        case e.RunClaimed():
            return head._replace(
                owner=event.worker, epoch=event.epoch, lease_until=boottime_s + event.lease_s, heartbeat_at=boottime_s,
                boot_id=event.boot_id, host=event.host, pid_ns=event.pid_ns, pid=event.pid,
                pid_started=event.pid_started, due_at=None, wake_at=None,
            )  # fmt: skip
        case e.RunPurged():
            return Head(
                head.run_id, head.status, event.kind, scope=event.scope, parent_run_id=event.parent_run_id,
                queued_at=event.queued_at, updated_at=record.at, head_seq=record.seq, head_hash=record.hash,
            )  # fmt: skip
        case e.RunCancelRequested():
            return head._replace(cancel_requested=sharper(head.cancel_requested, event.mode))
        case e.RunWaiting() | e.RunRetryScheduled():
            return _ownerless(head)._replace(due_at=event.due_at, wake_at=None)
        case _:
            return _ownerless(head)._replace(due_at=None, wake_at=None)


def tags_json(tags: Mapping[str, str] | None) -> str:
    """Return tags as the column holds them: JSON, in the order in which they were set."""
    return orjson.dumps(dict(tags or {})).decode()


def sharper(mode: str | None, other: str) -> str:
    """Return the one of two cancel modes that counts: a `now` isn't taken back."""
    return "now" if "now" in (mode, other) else other


def _ownerless(head: Head) -> Head:
    return head._replace(
        owner=None,
        lease_until=None,
        heartbeat_at=None,
        boot_id=None,
        host=None,
        pid_ns=None,
        pid=None,
        pid_started=None,
    )


MOVES: Final = frozenset(STATUS_AFTER) | {"run.cancel_requested"}
"""Types of events that change more of a head than how far it is."""
