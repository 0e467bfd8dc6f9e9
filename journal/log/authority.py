"""Who may append what, and when: the one gate that every writer passes, inside the write lock.

Pure: it reads the head of the run and, for events about calls and questions, `Facts` that a fold of the run knows.
The state machine's arrows are those that this gate lets through; `projections/status.py` holds them as a table.
The rules: engine.md A2, A8, A9 and V3.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from . import events as e
from .base import Event
from .codec import Draft
from .errors import CallEnded, CancelRequested, InvalidTransition, NotAllowed, NotNewest, Purged, StaleEpoch
from .head import LAPSES, MOVES, STATUS_AFTER, TERMINAL, UNOWNED, Head, sharper
from .policies import EFFECT_FREE


class CallFacts(NamedTuple):
    """What the log knows of a call: its newest attempt, whether that has no outcome, and whether it may have happened.

    `completed`: the call is known to have happened, by its own end or by somebody's word. `unusable`: it has happened,
    but its result couldn't be stored, and nobody has said since what the result was. `untold`: somebody has said that
    it happened, and the agent hasn't heard. `denied`: attempts of which a person or a hook has said that they did
    nothing.
    """

    attempt: int
    open: bool
    unresolved: bool
    maybe: tuple[int, ...]
    policy: str
    completed: bool
    unusable: bool = False
    untold: bool = False
    denied: tuple[int, ...] = ()


class Facts(Protocol):
    """What the gate asks of the folded state of a run."""

    def call_facts(self, call_id: str) -> CallFacts | None:
        """Return the facts of a call that still matters: it is open, unresolved, or of the open or a failed step."""
        ...

    def question_open(self, approval_id: str) -> bool:
        """Return whether this question was asked and has no answer yet."""
        ...

    def question_expires(self, approval_id: str) -> str | None:
        """Return until when this question may be answered, as UTC text; None: at any time."""
        ...

    def goes_on(self, role: str, message_id: str) -> bool:
        """Return whether the last message of this role has this id, so that another one with it would continue it."""
        ...

    @property
    def between_steps(self) -> bool:
        """Return whether no step is open."""
        ...

    @property
    def stands(self) -> str:
        """Return why the run waits though nothing will come: `code`, `recoveries`; "" if it doesn't."""
        ...


class Scene(Protocol):
    """What the gate may ask about the world around an append. Each answer is worked out only when it is needed."""

    def now(self) -> str:
        """Return the time of the wall clock, as events hold it."""
        ...

    def owner_gone(self, head: Head) -> bool:
        """Return whether the run is running and has no living owner."""
        ...

    def facts(self) -> Facts:
        """Return the folded state of the run, with the events that this append has admitted so far."""
        ...

    def newest(self, scope: str) -> str | None:
        """Return the newest run of a line."""
        ...

    def elsewhere(self) -> bool:
        """Return whether the run was imported, and lives elsewhere."""
        ...

    def happened(self, key: str) -> bool:
        """Whether a call that happens once has happened under this key, anywhere in the run's scope."""
        ...


CALL_STARTS: Final = frozenset({"model.started", "tool.started"})
CALL_ENDS: Final = frozenset({"model.completed", "model.failed", "tool.completed", "tool.failed"})
NEEDS_FACTS: Final = (
    CALL_STARTS
    | CALL_ENDS
    | {"tool.dispatched", "tool.adopted", "tool.resolved", "approval.requested", "approval.resolved"}
    | {"run.waiting", "signal.received", "child.finished", "step.recorded"}
)
"""Types that can't be judged by the head alone, or may wake the run."""

ANYTIME: Final = frozenset({"cost.recorded", "cost.repriced", "note.added", "blob.attached"})
"""What anybody may say of any run; types of users' own are the same."""
_NOT_TERMINAL: Final = frozenset(
    {"run.cancel_requested", "approval.resolved", "signal.received", "child.finished", "context.compacted"}
)
_RECORDED: Final = CALL_STARTS | CALL_ENDS | {"message.appended", "context.compacted"}
"""What is recorded into an open run, beside what anybody may say of any run."""
_NEVER_OWNER: Final = frozenset(
    {"run.queued", "run.imported", "run.opened", "run.erased", "run.purged"}
    | {"run.claimed", "tool.dispatched", "model.recounted"}
)
_OVER: Final = frozenset({"run.erased", "run.purged"})
"""What is done to a run that has ended, by anybody."""
_GOES_ON: Final = frozenset({"step.started", "run.waiting", "run.retry_scheduled", "run.requeued"})
"""What an owner that was told to cancel doesn't append: with it the run would go on, or be there for another owner."""
_RELAY: Final = frozenset({"tool.dispatched", "tool.completed", "tool.failed"})
_EXPIRY_CAUSES: Final = {"queued": ("expired", "budget"), "waiting": ("expired",)}
IMPORTER: Final = "import:"
"""How the `by` of an importer begins."""


def tells_unknown(event: Event) -> bool:
    """Return whether the event says that the agent was told "nobody knows" of a call. That is no outcome of the call.

    Only the engine writes the kind of an error. Its type is the name of a class, and anybody may have a class of that
    name.
    """
    return isinstance(event, e.ToolFailed) and event.error.get("kind") == "unknown"


class Gate:
    """Judge the events of one append, in their order. An event that was admitted counts for those behind it.

    `epoch` is the writer's: that of its claim, or 0 for anybody but the owner.
    """

    def __init__(self, head: Head, epoch: int, scene: Scene) -> None:
        self.head = head
        self.scene = scene
        self.status: str = head.status
        self.epoch = epoch
        self.current: int = head.epoch
        self.cancel: str | None = head.cancel_requested

    def admit(self, draft: Draft) -> None:
        """Raise the refusal if this writer may not append this event now.

        Raises InvalidTransition, NotAllowed, Purged, StaleEpoch, CancelRequested, CallEnded, NotNewest: all are
        `AppendRefused`.
        """
        event, kind, status, run_id = draft.event, draft.type, self.status, self.head.run_id
        if status == "purged":
            raise Purged(run_id)
        if self.epoch and (status != "running" or self.epoch != self.current):
            raise StaleEpoch(run_id, self.epoch, self.current, status)
        if status == "new":
            _may_begin(self.head, kind, draft.by)
        elif self.epoch:
            _owner_may(self.head, event, status, self.cancel)
        elif kind in ANYTIME or kind.startswith("x."):
            pass
        elif status in UNOWNED or kind in _OVER:
            _may_tell(self.head, draft, status, self.scene)
        elif kind in _NOT_TERMINAL:
            if status in TERMINAL:
                raise InvalidTransition(run_id, status, kind, "the run has ended")
        elif kind == "tool.resolved":
            _may_testify(self.head, event, self.scene)
        elif kind in _RELAY and _of_outbox(event, self.scene.facts()):
            _check_newest(self.head, self.scene)
        else:
            _anyone_may(self.head, event, status, self.cancel, self.scene)
        if kind in CALL_STARTS and status in UNOWNED:
            _check_recorded_start(self.head, event, self.scene)
        elif kind in NEEDS_FACTS:
            _check_facts(self.head, event, self.scene)
        if kind in MOVES:  # nothing else changes who may append next
            self._count(event, kind)

    def _count(self, event: Event, kind: str) -> None:
        self.status = STATUS_AFTER.get(kind, self.status)
        if isinstance(event, e.RunClaimed):
            if event.epoch != self.current + 1:
                raise StaleEpoch(self.head.run_id, event.epoch, self.current, self.status)
            self.epoch = self.current = event.epoch
        elif isinstance(event, e.RunCancelRequested):
            self.cancel = sharper(self.cancel, event.mode)
        elif self.status != "running":
            self.epoch = 0


def _may_begin(head: Head, kind: str, by: str) -> None:
    if kind not in (("run.imported",) if by.startswith(IMPORTER) else ("run.queued", "run.opened")):
        what = "a run begins with run.queued, one that nobody owns with run.opened, an imported one with run.imported"
        raise InvalidTransition(head.run_id, "new", kind, what)


def _may_tell(head: Head, draft: Draft, status: str, scene: Scene) -> None:
    """Judge what is told of a run that nobody owns, and the erasing or purging of one that has ended."""
    if draft.type in _OVER:
        if status not in TERMINAL and status not in UNOWNED and not scene.elsewhere():
            word = draft.type.removeprefix("run.")
            raise InvalidTransition(head.run_id, status, draft.type, f"only a run that has ended is {word}")
    elif status == "open":
        _may_record(head, draft.event, scene)
    elif draft.type in STATUS_AFTER or not draft.by.startswith(IMPORTER):
        raise InvalidTransition(head.run_id, status, draft.type, "an imported run is read-only for ever; fork it")


def _may_record(head: Head, event: Event, scene: Scene) -> None:
    """Judge what anybody records into an open run: calls and whole messages, from which nothing is ever sent again."""
    if event.TYPE not in _RECORDED:
        what = "into an open run messages, calls, costs and notes are recorded; fork it to go on from it"
        raise InvalidTransition(head.run_id, "open", event.TYPE, what)
    if isinstance(event, e.MessageAppended) and (message := event.message_id) is not None:
        if not scene.facts().goes_on(event.role, message):
            return
        raise NotAllowed(f"run {head.run_id}: message {message} is there; in an open run each message is whole")


def _owner_may(head: Head, event: Event, status: str, cancel: str | None) -> None:
    """Judge an event of the owner, who has the current epoch: it may write all but what others say to it."""
    kind = event.TYPE
    if kind in _NEVER_OWNER:
        raise InvalidTransition(head.run_id, status, kind, "the owner may not append it")
    if isinstance(event, e.StepRecorded) or (isinstance(event, e.StepFailed) and event.left):
        raise InvalidTransition(head.run_id, status, kind, "a person decides so of a run that nobody owns")
    if isinstance(event, e.RunRequeued) and event.reason != "released":
        raise NotAllowed(f"run {head.run_id}: its owner requeues it as `released`, not as `{event.reason}`")
    if cancel and (kind in _GOES_ON or (cancel == "now" and kind in CALL_STARTS)):
        raise CancelRequested(f"run {head.run_id}: a cancel was requested ({cancel}): {kind} is refused; end the run")


def _anyone_may(head: Head, event: Event, status: str, cancel: str | None, scene: Scene) -> None:
    """Judge an event of somebody who doesn't own the run."""
    kind = event.TYPE
    if isinstance(event, e.StepRecorded) or (isinstance(event, e.StepFailed) and event.left):
        _may_decide(head, event, status, scene)
    elif kind not in STATUS_AFTER:
        if status == "running":
            raise NotAllowed(f"run {head.run_id}: {kind} is its owner's to append; give the epoch of your claim")
        raise InvalidTransition(head.run_id, status, kind)
    elif isinstance(event, e.RunClaimed):
        if status not in ("queued", "waiting"):
            raise InvalidTransition(head.run_id, status, kind)
        if cancel:
            raise CancelRequested(
                f"run {head.run_id}: a cancel was requested, so it can't be claimed; append run.cancelled"
            )
        due = head.due_at is not None and head.due_at <= scene.now()
        if status == "waiting" and not (head.wake_at or due or event.resume in ("manual", "code", "child")):
            raise NotAllowed(
                f"run {head.run_id} waits, and what it waits for hasn't come; resume='manual' claims it anyway"
            )
    elif isinstance(event, e.RunRequeued):
        _may_requeue(head, event, status, scene)
    elif isinstance(event, e.RunWaiting):
        if status != "queued" or {wait["kind"] for wait in event.for_} != {"recoveries"}:
            raise InvalidTransition(
                head.run_id, status, kind, "without its owner it waits only for recoveries, and only from queued"
            )
    elif isinstance(event, e.RunCancelled):
        if status not in ("queued", "waiting", "scheduled_retry"):
            raise InvalidTransition(head.run_id, status, kind, "a running run is cancelled by its owner")
    elif isinstance(event, e.RunFailed):
        causes = _EXPIRY_CAUSES.get(status, ())
        if event.cause not in causes:
            allowed = f"without its owner it fails only as {', '.join(causes)}" if causes else ""
            raise InvalidTransition(head.run_id, status, f"run.failed ({event.cause})", allowed)
    else:
        raise InvalidTransition(head.run_id, status, kind)


def _may_decide(head: Head, event: e.StepRecorded | e.StepFailed, status: str, scene: Scene) -> None:
    """Judge a person's word about the open step of a run that nobody owns."""
    facts = scene.facts()
    if status not in ("queued", "waiting", "scheduled_retry"):
        raise InvalidTransition(head.run_id, status, event.TYPE, "a person decides about a run that nobody owns")
    if facts.between_steps:
        raise NotAllowed(f"run {head.run_id}: no step is open")
    if isinstance(event, e.StepRecorded) and facts.stands != "code":
        raise NotAllowed(f"run {head.run_id} doesn't wait for code: nothing in it differs from the record")


def _may_requeue(head: Head, event: e.RunRequeued, status: str, scene: Scene) -> None:
    if status == "scheduled_retry" and event.reason == "retry_due":
        if head.due_at is not None and head.due_at > scene.now():
            raise NotAllowed(f"run {head.run_id}: its retry is due at {head.due_at}, not before")
    elif status == "running" and event.reason in LAPSES:
        if not scene.owner_gone(head):
            raise NotAllowed(f"run {head.run_id}: its owner {head.owner} is alive and holds the lease")
    elif status == "waiting" and event.reason == "resumed":
        if not scene.facts().stands:
            raise NotAllowed(f"run {head.run_id} waits for an answer: only what stands still is resumed")
    elif status == "waiting" and event.reason == "abandoned":
        if not scene.facts().between_steps:
            raise NotAllowed(f"run {head.run_id}: a step is open: it is abandoned in the same append, and before")
    else:
        raise InvalidTransition(head.run_id, status, f"run.requeued ({event.reason})")


def _may_testify(head: Head, event: Event, scene: Scene) -> None:
    """Judge a word about a call from somebody who doesn't own the run: a person, or (`late`) a fenced owner."""
    if isinstance(event, e.ToolResolved) and event.late:
        return
    call = scene.facts().call_facts(event.call_id) if isinstance(event, e.ToolResolved) else None
    relayed = call is not None and call.policy == "outbox"
    if head.status == "running" and not relayed and not scene.owner_gone(head):
        raise NotAllowed(f"run {head.run_id}: its owner {head.owner} lives and can still end the call; ask again later")
    _check_newest(head, scene)


def _check_newest(head: Head, scene: Scene) -> None:
    newest = scene.newest(head.scope)
    if newest not in (None, head.run_id):
        raise NotNewest(f"run {head.run_id} went on as {newest}; say it there")


def _of_outbox(event: Event, facts: Facts) -> bool:
    """Return whether the event is about a call of the outbox. The relay writes of these, and it owns no run."""
    if not isinstance(event, e.ToolDispatched | e.ToolCompleted | e.ToolFailed):
        return False
    call = facts.call_facts(event.call_id)
    return call is not None and call.policy == "outbox"


def _check_word(head: Head, event: e.ToolResolved, call: CallFacts | None) -> None:
    """Check a word: its call may have happened, or a person says what a result was that couldn't be stored."""
    if call is not None and call.unusable and event.outcome == "happened" and not event.late:
        return
    if event.late:  # whoever made it knows better than a word that it did nothing
        proof = call is not None and event.outcome == "happened" and event.attempt in call.denied
        if call is None or not (proof or (event.attempt in call.maybe and not call.completed)):
            raise CallEnded(f"run {head.run_id}: attempt {event.attempt} of call {event.call_id} has an outcome")
        return
    if call is None or not call.unresolved:
        raise CallEnded(f"run {head.run_id}: what became of call {event.call_id} is known, or it never started")
    if event.attempt != call.attempt:
        raise NotAllowed(
            f"run {head.run_id}: call {event.call_id}: its newest attempt is {call.attempt}, got {event.attempt}"
        )


def _check_in_time(head: Head, event: e.ApprovalResolved, expires_at: str | None, scene: Scene) -> None:
    """Check that people answer before a question's time is over, and that nobody says before that it is over."""
    over = expires_at is not None and expires_at <= scene.now()
    if over and event.decision != "expired":
        raise NotAllowed(f"run {head.run_id}: question {event.approval_id} could be answered until {expires_at}")
    if event.decision == "expired" and not over:
        until = f"until {expires_at}" if expires_at else "at any time"
        raise NotAllowed(f"run {head.run_id}: question {event.approval_id} hasn't expired: it may be answered {until}")


def _check_recorded_start(head: Head, event: Event, scene: Scene) -> None:
    """Check the start of a call that happens elsewhere: one that is open there starts again only as a later attempt."""
    if isinstance(event, e.ModelStarted | e.ToolStarted):
        call = scene.facts().call_facts(event.call_id)
        if call is not None and event.attempt <= call.attempt:
            raise NotAllowed(
                f"run {head.run_id}: call {event.call_id}: attempt {call.attempt} is open, got {event.attempt}"
            )


def _check_facts(head: Head, event: Event, scene: Scene) -> None:
    """Check events about calls and questions: an attempt starts once and ends once, a question is answered once.

    What isn't to happen twice doesn't start once it has happened: by the log so far, this append included, or anywhere
    in the run's scope.
    """
    facts = scene.facts()
    match event:
        case e.ModelStarted() | e.ToolStarted():
            call = facts.call_facts(event.call_id)
            if event.attempt != (call.attempt if call else 0) + 1:
                known = call.attempt if call else 0
                raise NotAllowed(
                    f"run {head.run_id}: call {event.call_id}: expected attempt {known + 1}, got {event.attempt}"
                )
            if isinstance(event, e.ModelStarted) or (event.policy in EFFECT_FREE and not event.own_key):
                return
            if (call is not None and call.completed) or scene.happened(event.call_id):
                raise CallEnded(
                    f"run {head.run_id}: call {event.call_id} has happened; its recorded result is the answer"
                )
        case e.ToolAdopted() | e.ToolFailed() if isinstance(event, e.ToolAdopted) or tells_unknown(event):
            call = facts.call_facts(event.call_id)  # that the agent was told that nobody knows is no outcome
            unheard = call is not None and call.untold and isinstance(event, e.ToolAdopted)
            if call is None or not (call.unresolved or unheard):
                raise CallEnded(f"run {head.run_id}: what became of call {event.call_id} is known")
        case e.ModelCompleted() | e.ModelFailed() | e.ToolCompleted() | e.ToolFailed():
            call = facts.call_facts(event.call_id)
            if call is None or not call.open or call.attempt != event.attempt:
                raise CallEnded(
                    f"run {head.run_id}: attempt {event.attempt} of call {event.call_id} isn't open: "
                    "it never started, or it has ended"
                )
        case e.ToolResolved():
            _check_word(head, event, facts.call_facts(event.call_id))
        case e.ApprovalRequested():
            if facts.question_open(event.approval_id):
                raise NotAllowed(f"run {head.run_id}: question {event.approval_id} is asked already")
        case e.ApprovalResolved():
            expires_at = facts.question_expires(event.approval_id)
            if not facts.question_open(event.approval_id):
                until = f"; it could be answered until {expires_at}" if expires_at else ""
                what = f"question {event.approval_id} isn't open; the first answer counts{until}"
                raise NotAllowed(f"run {head.run_id}: {what}")
            _check_in_time(head, event, expires_at, scene)
        case _:
            pass
