"""The event types: what can happen in a run. Shapes are in `shapes.py`, what all events share in `base.py`.

A field that ends in `_` is stored without it. A field with a default is stored only when it says something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from . import shapes as s
from .base import BlobRef as BlobRef
from .base import Event as Event
from .base import Json as Json
from .base import NewerEvent as NewerEvent
from .base import PurgedEvent as PurgedEvent
from .base import RecordedEvent as RecordedEvent
from .base import UnknownEvent as UnknownEvent
from .base import UnreadableEvent as UnreadableEvent
from .base import builtin
from .base import register as register
from .base import registered as registered
from .call_events import ModelCompleted as ModelCompleted
from .call_events import ModelFailed as ModelFailed
from .call_events import ModelRecounted as ModelRecounted
from .call_events import ModelStarted as ModelStarted
from .call_events import ToolAdopted as ToolAdopted
from .call_events import ToolCompleted as ToolCompleted
from .call_events import ToolDispatched as ToolDispatched
from .call_events import ToolFailed as ToolFailed
from .call_events import ToolResolved as ToolResolved
from .call_events import ToolStarted as ToolStarted
from .field_types import Digest, Error, Left, Name, Obj, One, Time, Usage
from .policies import RELAXED_STARTS

LINKS: Final = ("retry", "restart", "fork", "child")
REQUEUES: Final = (
    "retry_due", "lease_expired", "owner_dead", "machine_restarted", "told_to_stop", "redeployed", "released",
    "resumed", "abandoned",
)  # fmt: skip
CAUSES: Final = (
    "error", "rejected", "step_cap", "budget", "unsafe_in_flight", "retries_exhausted", "restart_loop", "expired",
)  # fmt: skip
STEP_KINDS: Final = ("once", "repeat", "do")
DECISIONS: Final = ("approved", "rejected", "edited", "expired")


@builtin
@dataclass(frozen=True, slots=True)
class RunQueued(Event):
    """A run begins: what it is to do, and the run that it goes on from, if any. Always the first event."""

    TYPE: ClassVar[str] = "run.queued"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"input"})
    kind: Name
    input: Json
    messages: Annotated[list[Obj] | None, s.ListOf(s.MESSAGE)] = None
    plan: Annotated[list[Obj] | None, s.ListOf(s.TASK)] = None
    title: str | None = None
    tags: dict[str, str] | None = None
    scope: Name | None = None
    priority: Annotated[int | None, s.Whole(-1_000_000)] = None
    parent_run_id: Name | None = None
    link: Annotated[str | None, s.OneOf(LINKS)] = None
    base: Annotated[Obj | None, s.BASE] = None
    again: list[str] | None = None
    budget: Annotated[Obj | None, s.BUDGET] = None
    not_before: Time | None = None
    expires_at: Time | None = None
    every: str | None = None
    code_version: str | None = None


@builtin
@dataclass(frozen=True, slots=True)
class RunImported(Event):
    """A run that happened elsewhere, brought in from another tool's record; read-only for ever."""

    TYPE: ClassVar[str] = "run.imported"
    kind: Name
    source: str
    tool: str
    sha256: Digest
    title: str | None = None
    tool_version: str | None = None
    path: str | None = None
    parent_run_id: Name | None = None
    note: str | None = None


@builtin
@dataclass(frozen=True, slots=True)
class RunOpened(Event):
    """A run begins that nobody owns: whoever knows its id records into it, live, what happens elsewhere."""

    TYPE: ClassVar[str] = "run.opened"
    kind: Name
    source: str
    title: str | None = None
    tags: dict[str, str] | None = None
    parent_run_id: Name | None = None


@builtin
@dataclass(frozen=True, slots=True)
class RunClaimed(Event):
    """A process becomes the owner: its epoch fences every owner before it. `pid_started` is as in `log/owner.py`."""

    TYPE: ClassVar[str] = "run.claimed"
    worker: Name
    epoch: One
    lease_s: float
    host: str
    boot_id: str
    pid_ns: str
    pid: int
    pid_started: str
    resume: Annotated[str | None, s.OneOf(("crash", "reopen", "manual", "code", "child"))] = None
    code_version: str | None = None
    agent: str | None = None


@builtin
@dataclass(frozen=True, slots=True)
class RunWaiting(Event):
    """The owner hands the run back until something that it waits for has come; or nobody goes on with it, for `why`."""

    TYPE: ClassVar[str] = "run.waiting"
    for_: Annotated[list[Obj], s.ListOf(s.WAIT, 1)]
    due_at: Time | None = None
    why: str | None = None


@builtin
@dataclass(frozen=True, slots=True)
class RunRetryScheduled(Event):
    """A transient failure ended a round; the next one begins when it is due."""

    TYPE: ClassVar[str] = "run.retry_scheduled"
    due_at: Time
    attempt: One
    error: Error
    left: Left


@builtin
@dataclass(frozen=True, slots=True)
class RunRequeued(Event):
    """The run is free to be claimed again; `error` is the mistake in its code that its owner met, and left it for.

    `point` is the resume point that a person has resumed it from: it is used once.
    """

    TYPE: ClassVar[str] = "run.requeued"
    reason: Annotated[str, s.OneOf(REQUEUES)]
    note: str | None = None
    error: Annotated[Obj | None, s.RAISED] = None
    point: Annotated[int | None, s.Whole(1)] = None


@builtin
@dataclass(frozen=True, slots=True)
class RunCompleted(Event):
    """The run ended well."""

    TYPE: ClassVar[str] = "run.completed"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"output"})
    output: Json


@builtin
@dataclass(frozen=True, slots=True)
class RunFailed(Event):
    """The run ended in a failure; `left` are the step failures that left the agent, [step id, attempt]."""

    TYPE: ClassVar[str] = "run.failed"
    error: Error
    left: Left
    cause: Annotated[str, s.OneOf(CAUSES)]


@builtin
@dataclass(frozen=True, slots=True)
class RunCancelRequested(Event):
    """Somebody wants the run to stop; whoever owns it, or claims it next, obeys."""

    TYPE: ClassVar[str] = "run.cancel_requested"
    reason: str
    mode: Annotated[str, s.OneOf(("after_step", "now"))]
    above: Name | None = None


@builtin
@dataclass(frozen=True, slots=True)
class RunCancelled(Event):
    """The run ended because a cancel was requested."""

    TYPE: ClassVar[str] = "run.cancelled"
    reason: str


@builtin
@dataclass(frozen=True, slots=True)
class RunErased(Event):
    """The private values of the run were erased, for a reason that isn't private; see `Journal.erase`."""

    TYPE: ClassVar[str] = "run.erased"
    reason: str


@builtin
@dataclass(frozen=True, slots=True)
class RunPurged(Event):
    """The run was purged, see `Journal.purge`: what is left of it. Always the last event, and all before it are empty.

    `hashes` is SHA-256 over the type, behind a byte of its length, and the hash of each event before it.
    """

    TYPE: ClassVar[str] = "run.purged"
    reason: str
    status: Annotated[str, s.OneOf(("completed", "failed", "cancelled", "imported", "open"))]
    kind: Name
    scope: Name
    queued_at: Time
    events: One
    head_hash: Digest
    hashes: Digest
    lines: Annotated[dict[str, dict[str, dict[str, int]]], s.MapOf(s.MapOf(s.MapOf(s.Whole(0))))]
    money: Annotated[dict[str, dict[str, str]], s.MapOf(s.MapOf(s.Text()))]
    started_at: Time | None = None
    ended_at: Time | None = None
    parent_run_id: Name | None = None


@builtin
@dataclass(frozen=True, slots=True)
class StepStarted(Event):
    """An execution of a step's body begins. `attempt` counts from 1, `entry` the executions of one attempt from 1.

    `recalled` is there where the step has failed so long ago that the folded state has let go of it.
    """

    TYPE: ClassVar[str] = "step.started"
    index: int
    id: Name
    name: Name
    kind: Annotated[str, s.OneOf(STEP_KINDS)]
    entry: One
    attempt: One
    key: str | None = None
    recalled: Annotated[Obj | None, s.RECALLED] = None


@builtin
@dataclass(frozen=True, slots=True)
class StepCompleted(Event):
    """The step committed: its overlay becomes the context."""

    TYPE: ClassVar[str] = "step.completed"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"result"})
    index: int
    result: Json = None


@builtin
@dataclass(frozen=True, slots=True)
class StepFailed(Event):
    """An exception left the step: its overlay is dropped."""

    TYPE: ClassVar[str] = "step.failed"
    index: int
    error: Error
    transient: bool
    cut: bool = False
    left: bool = False


@builtin
@dataclass(frozen=True, slots=True)
class StepRecorded(Event):
    """A person has decided: this attempt of the open step goes on with the answers that models have given in it."""

    TYPE: ClassVar[str] = "step.recorded"
    index: int


@builtin
@dataclass(frozen=True, slots=True)
class MessageAppended(Event):
    """A message of the transcript. One with the message_id of the message before it, of its role, continues that."""

    TYPE: ClassVar[str] = "message.appended"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"content", "raw"})
    role: Annotated[str, s.OneOf(("system", "user", "assistant", "tool"))]
    content: Json
    message_id: Name | None = None
    provider: str | None = None
    raw: Json = None


@builtin
@dataclass(frozen=True, slots=True)
class MemorySet(Event):
    """A key of the working memory gets a value."""

    TYPE: ClassVar[str] = "memory.set"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"value"})
    key: Name
    value: Json


@builtin
@dataclass(frozen=True, slots=True)
class MemoryDeleted(Event):
    """A key of the working memory is gone."""

    TYPE: ClassVar[str] = "memory.deleted"
    key: Name


@builtin
@dataclass(frozen=True, slots=True)
class MemoryReset(Event):
    """The working memory is empty again."""

    TYPE: ClassVar[str] = "memory.reset"


@builtin
@dataclass(frozen=True, slots=True)
class PromptPinned(Event):
    """The system prompt of the run: SHA-256 of its exact UTF-8 bytes, of each layer's, and the text."""

    TYPE: ClassVar[str] = "prompt.pinned"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"text"})
    fingerprint: Digest
    layers: dict[str, str]
    text: str


@builtin
@dataclass(frozen=True, slots=True)
class ApprovalRequested(Event):
    """A question to a person.

    With `choices` it is answered by one of them, with `args_schema` by args that fit it. It may be answered until
    `expires_at`; if nobody does that is a no, or what `default` says: {args} or {choice}.
    """

    TYPE: ClassVar[str] = "approval.requested"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"args", "args_schema", "preview"})
    approval_id: Name
    action: str
    reason: str
    tool: str | None = None
    args: Json = None
    args_schema: Json = None
    preview: Json = None
    call_id: Name | None = None
    risk: Name | None = None
    expires_at: Time | None = None
    choices: list[str] | None = None
    default: Annotated[Obj | None, s.DEFAULT] = None


@builtin
@dataclass(frozen=True, slots=True)
class ApprovalResolved(Event):
    """The answer of a person, or of time: `expired` with neither args nor a choice is a no."""

    TYPE: ClassVar[str] = "approval.resolved"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"args"})
    approval_id: Name
    decision: Annotated[str, s.OneOf(DECISIONS)]
    args: Json = None
    note: str | None = None
    choice: str | None = None


@builtin
@dataclass(frozen=True, slots=True)
class TimerSet(Event):
    """The open step sleeps, or waits for a signal with a bound: until then, however often it is entered again."""

    TYPE: ClassVar[str] = "timer.set"
    timer_id: Name
    due_at: Time


@builtin
@dataclass(frozen=True, slots=True)
class TimerFired(Event):
    """The agent was told that a sleep is over."""

    TYPE: ClassVar[str] = "timer.fired"
    timer_id: Name


@builtin
@dataclass(frozen=True, slots=True)
class SignalReceived(Event):
    """A message to the run."""

    TYPE: ClassVar[str] = "signal.received"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"payload"})
    signal_id: Name
    name: Name
    payload: Json


@builtin
@dataclass(frozen=True, slots=True)
class SignalTaken(Event):
    """The open step has seen these signals; it takes them if it completes.

    `wait_id`: it has waited for the one; none of them: the wait timed out.
    """

    TYPE: ClassVar[str] = "signal.taken"
    signal_ids: list[str]
    wait_id: str | None = None


@builtin
@dataclass(frozen=True, slots=True)
class ChildSpawned(Event):
    """This run began another one, in the same append. `agent` says how its agent is imported."""

    TYPE: ClassVar[str] = "child.spawned"
    child_run_id: Name
    kind: Name
    call_id: Name | None = None
    agent: str | None = None
    budget: Annotated[Obj | None, s.BUDGET] = None


@builtin
@dataclass(frozen=True, slots=True)
class ChildFinished(Event):
    """The agent is told how a run that this one began has ended.

    `ended_as` is the run of its line that ended so, if that is another one: a retry or a restart of it.
    """

    TYPE: ClassVar[str] = "child.finished"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"output"})
    child_run_id: Name
    status: Annotated[str, s.OneOf(("completed", "failed", "cancelled"))]
    output: Json = None
    error: Error | None = None
    ended_as: Name | None = None
    spent: Annotated[Obj | None, s.SPENT] = None


@builtin
@dataclass(frozen=True, slots=True)
class PlanSet(Event):
    """The plan, whole."""

    TYPE: ClassVar[str] = "plan.set"
    tasks: Annotated[list[Obj], s.ListOf(s.TASK)]


@builtin
@dataclass(frozen=True, slots=True)
class PlanUpdated(Event):
    """A task of the plan has a new status."""

    TYPE: ClassVar[str] = "plan.updated"
    task_id: Name
    status: Annotated[str, s.OneOf(("todo", "doing", "done", "dropped"))]
    note: str | None = None


@builtin
@dataclass(frozen=True, slots=True)
class ContextCompacted(Event):
    """The messages up to `upto_seq` are shown to the model as this summary; the log keeps them."""

    TYPE: ClassVar[str] = "context.compacted"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"summary"})
    summary: Json
    upto_seq: One


@builtin
@dataclass(frozen=True, slots=True)
class CostRecorded(Event):
    """Money, or tokens of a model, that isn't part of a call's own record."""

    TYPE: ClassVar[str] = "cost.recorded"
    amount: Annotated[str, s.MONEY]
    currency: Name
    source: str
    call_id: str | None = None
    model: str | None = None
    usage: Usage | None = None


@builtin
@dataclass(frozen=True, slots=True)
class CostRepriced(Event):
    """A correction of the ledger: `amount` is what is added to it, so it may be negative."""

    TYPE: ClassVar[str] = "cost.repriced"
    amount: Annotated[str, s.MONEY]
    currency: Name
    source: str
    call_id: str | None = None


@builtin
@dataclass(frozen=True, slots=True)
class NoteAdded(Event):
    """A remark for people and for the audit; it changes no state, but for an owner's `told_to_stop`."""

    TYPE: ClassVar[str] = "note.added"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"text"})
    text: str
    code: str | None = None
    call_id: str | None = None


@builtin
@dataclass(frozen=True, slots=True)
class BlobAttached(Event):
    """Bytes came into the run: a screenshot, a PDF. They are held out of line as they are; references lead to them."""

    TYPE: ClassVar[str] = "blob.attached"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"content"})
    RAW: ClassVar[str] = "content"
    content: Json
    media_type: Annotated[str, s.MEDIA_TYPE]
    bytes: One
    name: Name | None = None


RELAXED: Final = frozenset({
    "step.started", "message.appended", "memory.set", "memory.deleted", "memory.reset", "plan.set", "plan.updated",
    "prompt.pinned", "context.compacted", "signal.taken", "note.added", "timer.set", "timer.fired",
    "blob.attached"})  # fmt: skip
"""Types whose commit survives the death of the process, but a power cut may take it until the next durable one."""


def is_durable(event: Event) -> bool:
    """Whether the commit of this event waits for the disk."""
    if isinstance(event, ToolStarted):
        return not (event.read_only or event.policy in RELAXED_STARTS)
    return event.TYPE not in RELAXED and event.DURABLE
