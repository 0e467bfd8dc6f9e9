"""Where a run stands: its status, its owner, its rounds, what it waits for, and how it ended.

The state machine's table is here; `log/authority.py` decides who may draw which of its arrows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from runjournal.log import events as e
from runjournal.log.base import BlobRef, Event, RecordedEvent
from runjournal.log.head import LAPSES, RECOVERIES, STATUS_AFTER, TERMINAL, TOLD_TO_STOP, UNOWNED, sharper
from runjournal.log.limits import stopped_codes_max

TRANSITIONS: Final[Mapping[str, frozenset[str]]] = {
    "new": frozenset({"queued", "imported", "open"}),
    "queued": frozenset({"running", "waiting", "cancelled", "failed"}),
    "running": frozenset({"running", "waiting", "scheduled_retry", "completed", "failed", "cancelled", "queued"}),
    "waiting": frozenset({"running", "queued", "failed", "cancelled"}),
    "scheduled_retry": frozenset({"queued", "cancelled"}),
    "completed": frozenset({"purged"}),
    "failed": frozenset({"purged"}),
    "cancelled": frozenset({"purged"}),
    "imported": frozenset({"purged"}),
    "open": frozenset({"purged"}),
    "purged": frozenset[str](),
}
"""The arrows. running -> running is a step; an imported run and an open one stand alone."""

STANDSTILLS: Final = {"code": "stopped: the code differs", "recoveries": "stopped: it doesn't get on"}
"""Kinds of waits for which nothing comes but other code or a person's `resume`, each as it is shown to people."""

TOLD: Final = "told"
"""The code of the note that says that people were told that the run waits."""

STEP_TYPES: Final = frozenset({"step.started", "step.completed", "step.failed"})


def arrow(status: str, event_type: str) -> str | None:
    """Return where an event of this type leads from `status`; None if there is no such arrow.

    That is `status` itself, if the event moves nothing.
    """
    if event_type in STEP_TYPES:
        return "running" if "running" in TRANSITIONS[status] and status == "running" else None
    after = STATUS_AFTER.get(event_type)
    if after is None:
        return status
    if event_type == "run.claimed" and status == "running":
        return None  # running -> running is a step; an owner is replaced by way of queued
    return after if after in TRANSITIONS[status] else None


@dataclass(slots=True)
class Status:
    """Where a run stands; see the module.

    `*_seq` point at the events that hold the values. `stuck` counts recoveries since progress, which is a call or a
    step that ended; `recoveries` all, and so those after a death that isn't the run's doing. `stopping`: the owner's
    process was told to stop. `proven_code` is the agent's code as it was then, `stopped_codes` are the codes that the
    run has stopped under since, oldest first. `why` is in words why it waits, or what its owner met that released it.
    `told`: people were told that it waits, `told_of` for which answers. `freed` says how its next owner comes to it:
    `crash`, `reopen` or `manual`, "" at the first start (engine.md G1). Of a run that was purged `was` is the status
    before, and `why` is for what reason.
    """

    VERSION: ClassVar[int] = 8

    status: str = "new"
    kind: str = ""
    title: str | None = None
    tags: dict[str, str] = field(default_factory=dict[str, str])
    scope: str = ""
    parent_run_id: str | None = None
    link: str | None = None
    base: dict[str, Any] | None = None
    path: str | None = None
    budget: dict[str, Any] | None = None
    code_version: str | None = None
    epoch: int = 0
    owner: str | None = None
    round: int = 1
    stuck: int = 0
    recoveries: int = 0
    waits: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    why: str | None = None
    proven_code: str | None = None
    stopped_codes: list[str] = field(default_factory=list[str])
    woken: bool = False
    told: bool = False
    told_of: list[str] = field(default_factory=list[str])
    due_at: str | None = None
    cancel: str | None = None
    queued_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    input_seq: int | None = None
    output_seq: int | None = None
    error: dict[str, Any] | None = None
    cause: str | None = None
    left: list[list[Any]] = field(default_factory=list[list[Any]])
    private: bool = False
    was: str | None = None
    stopping: bool = False
    freed: str = ""

    @property
    def terminal(self) -> bool:
        """Return whether the run has ended."""
        return self.status in TERMINAL

    @property
    def unowned(self) -> bool:
        """Return whether nobody ever owns the run: it happens elsewhere, and nothing of it is sent from here."""
        return self.status in UNOWNED

    @property
    def stands(self) -> str:
        """Return why the run waits though nothing will come: `code`, `recoveries`; "" if it doesn't."""
        return next((str(wait["kind"]) for wait in self.waits if wait["kind"] in STANDSTILLS), "")

    def on_queued(self, record: RecordedEvent, event: e.RunQueued) -> None:
        """Begin the run."""
        self.status, self.kind, self.title = "queued", event.kind, event.title
        self.tags, self.scope = dict(event.tags or {}), event.scope or record.run_id
        self.parent_run_id, self.link, self.base = event.parent_run_id, event.link, event.base
        self.budget, self.code_version, self.due_at = event.budget, event.code_version, event.not_before
        self.queued_at, self.input_seq, self.private = record.at, record.seq, record.private
        self.freed = "manual" if event.link in ("retry", "fork") else ""

    def on_imported(self, record: RecordedEvent, event: e.RunImported) -> None:
        """Note that the run happened elsewhere."""
        self.status, self.kind, self.title, self.scope = "imported", event.kind, event.title, record.run_id
        self.parent_run_id, self.path, self.queued_at = event.parent_run_id, event.path, record.at
        self.private = record.private

    def on_opened(self, record: RecordedEvent, event: e.RunOpened) -> None:
        """Begin a run that nobody owns."""
        self.status, self.kind, self.title, self.scope = "open", event.kind, event.title, record.run_id
        self.tags, self.parent_run_id, self.queued_at = dict(event.tags or {}), event.parent_run_id, record.at
        self.private = record.private

    def on_claimed(self, record: RecordedEvent, event: e.RunClaimed) -> None:
        """Set the new owner."""
        self.status, self.epoch, self.owner = "running", event.epoch, event.worker
        self._waits_no_more()
        self.stopping = False
        self.freed = ""
        self.started_at = self.started_at or record.at
        self.code_version = event.code_version or self.code_version

    def on_requeued(self, _: RecordedEvent, event: e.RunRequeued) -> None:
        """Free the run for a claim; a recovery is counted before it is made, and anew once a person has resumed it."""
        self.status, self.owner = "queued", None
        self._waits_no_more()
        if event.error is not None:
            self.why = f"{event.error['type']}: {event.error['message']}"
        if event.reason in LAPSES:
            self.stuck += event.reason in RECOVERIES
            self.recoveries += 1
            self.freed = "crash"
        elif event.reason in ("resumed", "abandoned"):
            self.stuck = 0
            self.freed = "manual"
        elif event.reason == "released":
            self.freed = "reopen"

    def on_waiting(self, _: RecordedEvent, event: e.RunWaiting) -> None:
        """Note what the run waits for, and that it has no owner; to have come here is progress, unless it stands."""
        self.status, self.owner, self.waits, self.due_at = "waiting", None, event.for_, event.due_at
        self.woken, self.why, self.freed = False, event.why, "reopen"
        asked = self._asked()
        self.told = bool(asked) and set(asked) <= set(self.told_of)
        if not self.stands:
            self.stuck = 0
        elif self.stands == "code":
            code = self.code_version or ""
            self.stopped_codes = [*(each for each in self.stopped_codes if each != code), code][-stopped_codes_max:]

    def _waits_no_more(self) -> None:
        self.waits, self.woken, self.why, self.due_at = [], False, None, None

    def on_retry_scheduled(self, _: RecordedEvent, event: e.RunRetryScheduled) -> None:
        """End a round, and note when the next one is due."""
        self.status, self.owner, self.round, self.due_at = "scheduled_retry", None, self.round + 1, event.due_at
        self.error, self.left, self.freed = event.error, event.left, "reopen"

    def on_completed(self, record: RecordedEvent, _: e.RunCompleted) -> None:
        """End the run: it completed."""
        self._end("completed", record)
        self.output_seq = record.seq

    def on_failed(self, record: RecordedEvent, event: e.RunFailed) -> None:
        """End the run: it failed."""
        self._end("failed", record)
        self.error, self.cause, self.left = event.error, event.cause, event.left

    def on_cancelled(self, record: RecordedEvent, _: e.RunCancelled) -> None:
        """End the run: it was cancelled."""
        self._end("cancelled", record)

    def on_purged(self, _: RecordedEvent, event: e.RunPurged) -> None:
        """Begin and end the run with what is left of it."""
        self.status, self.was, self.why = "purged", event.status, event.reason
        self.kind, self.scope, self.parent_run_id = event.kind, event.scope, event.parent_run_id
        self.queued_at, self.started_at, self.ended_at = event.queued_at, event.started_at, event.ended_at

    def on_cancel_requested(self, _: RecordedEvent, event: e.RunCancelRequested) -> None:
        """Note that the run is to stop; the sharper mode counts."""
        self.cancel = sharper(self.cancel, event.mode)

    def on_note(self, record: RecordedEvent, event: e.NoteAdded) -> None:
        """Note that people were told what the run waits for, or that the owner's process was told to stop."""
        if event.code == TOLD and self.status == "waiting":
            self.told, self.told_of = True, self._asked()
        if event.code == TOLD_TO_STOP and record.epoch and record.epoch == self.epoch:
            self.stopping = True

    def _asked(self) -> list[str]:
        """Return what people are asked of the run while it waits: a wait that comes again for that is no news."""
        return [str(wait["id"]) for wait in self.waits if wait["kind"] in ("approval", "question")]

    def _end(self, status: str, record: RecordedEvent) -> None:
        self.status, self.ended_at, self.owner = status, record.at, None
        self._waits_no_more()

    def progress(self, *, proven: bool = True) -> None:
        """Note that a step ended: recoveries and stops before it don't count. `proven`: its agent's code ended it."""
        self.stuck = 0
        if proven:
            self.proven_code = self.code_version
        if self.stopped_codes:
            self.stopped_codes = []

    def on_call_ended(self, _: RecordedEvent, __: Event) -> None:
        """Note that a call ended: that is progress, too."""
        self.progress()


Handler = Any  # a method of a fold that takes (record, event)

HANDLERS: Final[Mapping[type[Event], Handler]] = {
    e.RunQueued: Status.on_queued,
    e.RunImported: Status.on_imported,
    e.RunOpened: Status.on_opened,
    e.RunClaimed: Status.on_claimed,
    e.RunRequeued: Status.on_requeued,
    e.RunWaiting: Status.on_waiting,
    e.RunRetryScheduled: Status.on_retry_scheduled,
    e.RunCompleted: Status.on_completed,
    e.RunFailed: Status.on_failed,
    e.RunCancelled: Status.on_cancelled,
    e.RunCancelRequested: Status.on_cancel_requested,
    e.RunPurged: Status.on_purged,
    e.NoteAdded: Status.on_note,
    e.ModelCompleted: Status.on_call_ended,
    e.ModelFailed: Status.on_call_ended,
    e.ToolCompleted: Status.on_call_ended,
    e.ToolFailed: Status.on_call_ended,
}


def reference(value: Any) -> Any:
    """Return a value for a dump: a blob by its reference, anything else as it is."""
    return {"$blob": value.sha256, "bytes": value.bytes} if isinstance(value, BlobRef) else value
