"""The state machine and who may append what: every pair through the real guarded append, allowed or refused."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from runjournal import CheckpointPolicy, Journal, register
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.base import BlobRef
from runjournal.log.clock import FakeClock, timestamp
from runjournal.log.errors import (
    AppendRefused,
    CallEnded,
    CancelRequested,
    InvalidTransition,
    NotAllowed,
    NotNewest,
    StaleEpoch,
    TooLarge,
    WrongExpectation,
)
from runjournal.log.head import STATUS_AFTER, TERMINAL
from runjournal.log.policies import OUTCOMES
from runjournal.projections.status import STEP_TYPES, TRANSITIONS, arrow

R = "r"
LATER = "2099-01-01T00:00:00.000000Z"
ERROR = {"type": "E", "message": "m"}
SHA = "0" * 64


@register
@dataclass(frozen=True, slots=True)
class Remark(e.Event):
    TYPE: ClassVar[str] = "x.test_status.remark"


class Desk:
    """A journal in memory, a clock that tests move, and one run on which others have written."""

    def __init__(self):
        self.clock = FakeClock(tick_s=0.001)
        self.journal = Journal.open("memory:", clock=self.clock, by="w")

    def append(self, *events, epoch=0, **more):
        return self.journal.append(R, events, epoch=epoch, **more)

    def stranger(self):
        """A second process, as far as an append can tell: it has folded nothing."""
        return Journal(self.journal.store, by="stranger")

    def image(self):
        """All that the store holds of the run, but for the lease."""
        store = self.journal.store
        tables = [list(store.index_rows(name)) for name in ("effects", "unknowns", "step_ends", "bills", "lines")]
        return list(store.read_raw(R)), store.head(R), tables

    @property
    def head(self):
        return self.journal.store.head(R)


def claim(epoch=1, resume=None):
    """A claim by this process, which lives."""
    here = owner.here()
    return e.RunClaimed("w", epoch, 60.0, here.host, here.boot_id, here.pid_ns, here.pid, here.started, resume)


def tool(call_id, policy="unsafe", attempt=1, **more):
    return e.ToolStarted(call_id, "send", {"n": 1}, policy, read_only=False, on_unknown="fail", attempt=attempt, **more)


def step(index=0, id="load", entry=1, attempt=1):
    return e.StepStarted(index, id, id, "once", entry, attempt)


def retry_scheduled(due_at):
    return e.RunRetryScheduled(due_at, 1, ERROR, [])


def tool_failed(call_id="c", attempt=1, kind="E", **more):
    known = {"kind": "unknown"} if kind == "CallOutcomeUnknown" else {}
    return e.ToolFailed(call_id, attempt, {"type": kind, "message": "", **known}, transient=False, **more)


QUEUED = e.RunQueued("demo", None)
WAIT = e.RunWaiting([{"kind": "signal", "id": "go"}])
LOOP = {"kind": "recoveries", "id": "restart_loop"}
IMPORTED = e.RunImported("demo", "s", "t", SHA)
OPENED = e.RunOpened("demo", "elsewhere")
OPEN = (
    step(),
    tool("c"),
    tool("o", "outbox"),
    e.ModelStarted("m", "gpt", "h", 1),
    e.ApprovalRequested("q", "a", "r"),
)


def running(desk):
    desk.append(QUEUED, expect=0)
    desk.append(claim())
    desk.append(*OPEN, epoch=1)


def left(*events):
    def put(desk):
        running(desk)
        desk.append(*events, epoch=1)

    return put


def gone(desk):
    running(desk)
    desk.clock.sleep(61)


def queued(desk):
    running(desk)
    desk.append(e.RunRequeued("released"), epoch=1)


def imported(desk):
    desk.append(IMPORTED, expect=0, by="import:t")
    desk.append(*OPEN, by="import:t")


def opened(desk):
    desk.append(OPENED, *OPEN[1:4], expect=0)


def woken(desk):
    left(WAIT)(desk)
    desk.append(e.SignalReceived("s", "go", None))


def due(desk):
    left(retry_scheduled(timestamp(desk.clock.now())))(desk)


def purged(desk):
    left(e.RunCompleted(None))(desk)
    for call_id in desk.journal.state(R).calls.unresolved():
        desk.journal.resolve(R, call_id, "unknown")
    desk.journal.purge(R, reason="asked")


SCENES = {
    "new": lambda desk: None,
    "queued": queued,
    "running": running,
    "gone": gone,
    "waiting": left(WAIT),
    "woken": woken,
    "stands": left(e.RunWaiting([LOOP])),
    "retry": left(retry_scheduled(LATER)),
    "due": due,
    "completed": left(e.RunCompleted(None)),
    "failed": left(e.RunFailed(ERROR, [], "error")),
    "cancelled": left(e.RunCancelled("")),
    "imported": imported,
    "open": opened,
    "purged": purged,
}
STATUS = {scene: scene for scene in SCENES} | {
    "gone": "running",
    "woken": "waiting",
    "stands": "waiting",
    "retry": "scheduled_retry",
    "due": "scheduled_retry",
}

SAMPLES: dict[str, Any] = {
    "run.queued": QUEUED,
    "run.imported": IMPORTED,
    "run.opened": OPENED,
    "run.erased": e.RunErased("asked"),
    "run.purged": e.RunPurged("asked", "completed", "demo", R, LATER, 1, SHA, SHA, {}, {}),
    "run.claimed": claim(2),
    "run.waiting": WAIT,
    "run.retry_scheduled": retry_scheduled(LATER),
    "run.requeued": e.RunRequeued("lease_expired"),
    "run.completed": e.RunCompleted(1),
    "run.failed": e.RunFailed(ERROR, [], "expired"),
    "run.cancel_requested": e.RunCancelRequested("", "now"),
    "run.cancelled": e.RunCancelled("other"),
    "step.started": step(entry=2),
    "step.completed": e.StepCompleted(0),
    "step.failed": e.StepFailed(0, ERROR, transient=False),
    "step.recorded": e.StepRecorded(0),
    "message.appended": e.MessageAppended("user", "hi"),
    "model.started": e.ModelStarted("m2", "gpt", "h", 1),
    "model.completed": e.ModelCompleted("m", 1, "hi"),
    "model.failed": e.ModelFailed("m", 1, ERROR, transient=False),
    "model.recounted": e.ModelRecounted("m", 1, "gpt", {"input": 1, "output": 2, "cache_read": 0, "cache_write": 0}),
    "tool.started": tool("c2"),
    "tool.dispatched": e.ToolDispatched("o"),
    "tool.completed": e.ToolCompleted("c", 1),
    "tool.failed": tool_failed(),
    "tool.adopted": e.ToolAdopted("c"),
    "tool.resolved": e.ToolResolved("c", 1, "happened"),
    "memory.set": e.MemorySet("k", 1),
    "memory.deleted": e.MemoryDeleted("k"),
    "memory.reset": e.MemoryReset(),
    "prompt.pinned": e.PromptPinned(SHA, {}, ""),
    "approval.requested": e.ApprovalRequested("q2", "a", "r"),
    "approval.resolved": e.ApprovalResolved("q", "approved"),
    "signal.received": e.SignalReceived("s2", "x", None),
    "signal.taken": e.SignalTaken([]),
    "child.spawned": e.ChildSpawned("kid", "demo"),
    "child.finished": e.ChildFinished("kid", "completed"),
    "plan.set": e.PlanSet([]),
    "plan.updated": e.PlanUpdated("t", "done"),
    "context.compacted": e.ContextCompacted("", 1),
    "cost.recorded": e.CostRecorded("1", "USD", "bill"),
    "cost.repriced": e.CostRepriced("-1", "USD", "bill"),
    "note.added": e.NoteAdded("n"),
    "timer.set": e.TimerSet("t", "2026-01-02T03:04:05.000006Z"),
    "timer.fired": e.TimerFired("t"),
    "blob.attached": e.BlobAttached(b"x", "text/plain", 1),
    "x.test_status.remark": Remark(),
}

# Who may append what, by hand from the table of docs/architecture.md (engine.md A2).
ANYTIME = {"cost.recorded", "cost.repriced", "note.added", "blob.attached", "x.test_status.remark", "tool.dispatched"}
NOT_TERMINAL = {"run.cancel_requested", "approval.resolved", "signal.received", "child.finished", "context.compacted"}
LIVE = {"queued", "running", "gone", "waiting", "woken", "stands", "retry", "due"}
RECORDED = {"message.appended", "context.compacted", "model.started", "model.completed", "model.failed"} | {
    "tool.started", "tool.completed", "tool.failed"
}  # fmt: skip
ANYONE = {
    "new": {"run.queued", "run.opened"},
    "queued": {"run.claimed", "run.waiting", "run.cancelled", "run.failed"},
    "running": set(),
    "gone": {"run.requeued"},
    "waiting": {"run.cancelled", "run.failed"},
    "woken": {"run.claimed", "run.cancelled", "run.failed"},
    "stands": {"run.requeued", "run.cancelled", "run.failed"},
    "retry": {"run.cancelled"},
    "due": {"run.requeued", "run.cancelled"},
}
OWNER = SAMPLES.keys() - {
    "run.queued", "run.imported", "run.opened", "run.erased", "run.purged", "run.claimed", "step.recorded",
    "tool.dispatched", "model.recounted",
}  # fmt: skip


def anyone(scene):
    allowed = set(ANYONE.get(scene, ()))
    if scene not in ("new", "purged"):
        allowed |= ANYTIME
    if scene in LIVE:
        allowed |= NOT_TERMINAL
    if scene not in ("new", "running", "imported", "open", "purged"):
        allowed.add("tool.resolved")
    if scene == "open":
        allowed |= RECORDED
    if scene in ("imported", "open", *TERMINAL) and scene != "purged":
        allowed.add("run.erased")
    return allowed - ({"tool.dispatched"} if scene in ("imported", "open") else set())


def sample(kind, scene, epoch=0):
    if kind == "run.requeued":
        reasons = {"retry": "retry_due", "due": "retry_due", "stands": "resumed"}
        return e.RunRequeued("released" if epoch else reasons.get(scene, "lease_expired"))
    if kind == "run.waiting" and scene == "queued":
        return e.RunWaiting([LOOP])
    return SAMPLES[kind]


def test_samples_cover_every_type():
    """The matrix has a sample of every type."""
    assert {name for name in e.registered() if not name.startswith("x.")} | {Remark.TYPE} == SAMPLES.keys()


@pytest.mark.requirement("R36", "R43")
@pytest.mark.parametrize("epoch", [0, 1], ids=["anyone", "owner"])
@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("scene", SCENES)
def test_every_pair(scene, kind, epoch):
    """Each event in each status, by anyone and by the owner, is let through or refused as the table says."""
    desk = Desk()
    SCENES[scene](desk)
    allowed = anyone(scene) if not epoch else (OWNER if scene in ("running", "gone") else set())
    before, event = desk.image(), sample(kind, scene, epoch)
    if kind in allowed:
        (record,) = desk.append(event, epoch=epoch)
        after = STATUS_AFTER.get(kind, STATUS[scene])
        if isinstance(event, e.BlobAttached):  # bytes are out of line, however few
            event = replace(event, content=BlobRef(hashlib.sha256(b"x").hexdigest(), 1))
        assert (event, after, record.seq, after) == (
            record.event, desk.head.status, desk.head.head_seq, desk.journal.replay(R).status.status,
        )  # fmt: skip
    else:
        with pytest.raises(AppendRefused) as refusal:
            desk.append(event, epoch=epoch)
        assert (True, before) == (refusal.type is not AppendRefused, desk.image())


@pytest.mark.requirement("R43")
def test_arrows_are_the_table():
    """The arrows that the guarded append lets through are those of TRANSITIONS, but for a purge, which is none."""
    seen: dict[str, set[str]] = {status: set() for status in TRANSITIONS}
    moving = STATUS_AFTER.keys() | STEP_TYPES
    for scene, put in SCENES.items():
        for kind in sorted(moving):
            for epoch, by in ((0, "w"), (1, "w"), (0, "import:t")):
                desk = Desk()
                put(desk)
                try:
                    desk.append(sample(kind, scene, epoch), epoch=epoch, by=by)
                except AppendRefused:
                    continue
                if STATUS[scene] != "imported" or kind not in STEP_TYPES:  # an importer tells of steps
                    seen[STATUS[scene]].add(desk.head.status)
    assert {status: set(after) - {"purged"} for status, after in TRANSITIONS.items()} == seen


@pytest.mark.parametrize("status", TRANSITIONS)
@pytest.mark.parametrize("kind", SAMPLES)
def test_arrow(status, kind):
    """`arrow` says of each pair what TRANSITIONS says."""
    if kind in STEP_TYPES:
        expected = "running" if status == "running" else None
    elif kind not in STATUS_AFTER:
        expected = status
    elif (status, kind) == ("running", "run.claimed"):
        expected = None
    else:
        expected = STATUS_AFTER[kind] if STATUS_AFTER[kind] in TRANSITIONS[status] else None
    assert expected == arrow(status, kind)


@pytest.fixture
def desk():
    return Desk()


def refused(desk, error, *events, epoch=0, **more):
    """The append is refused with exactly this error, and nothing has changed."""
    before = desk.image()
    with pytest.raises(AppendRefused) as refusal:
        desk.append(*events, epoch=epoch, **more)
    assert (error, before) == (refusal.type, desk.image())


# --- the creator, the importer ----------------------------------------------------------------------------------------


def test_create_and_claim(desk):
    """A run may be created and claimed in one batch, whose later events are the owner's."""
    records = desk.append(QUEUED, claim(), step(), e.MessageAppended("user", "hi"), expect=0)
    assert [0, 1, 1, 1] == [record.epoch for record in records]
    assert [None, None, 0, 0] == [record.step for record in records]


def test_create_needs_a_beginning(desk):
    """A batch for a new run that doesn't begin with run.queued is refused."""
    refused(desk, InvalidTransition, claim(), QUEUED, expect=0)


def test_second_creation(desk):
    """A run is created once."""
    queued(desk)
    refused(desk, InvalidTransition, QUEUED)
    refused(desk, WrongExpectation, QUEUED, expect=0)


def test_importer_only_imports(desk):
    """An importer begins with run.imported, anybody else with run.queued or run.opened."""
    refused(desk, InvalidTransition, QUEUED, by="import:t")
    refused(desk, InvalidTransition, OPENED, by="import:t")
    refused(desk, InvalidTransition, IMPORTED)


def test_imported_tail(desk):
    """The importer goes on with a run that it brought; nobody moves it."""
    imported(desk)
    desk.append(e.MessageAppended("user", "more"), by="import:t")
    refused(desk, InvalidTransition, claim(1), by="import:t")
    refused(desk, InvalidTransition, e.MessageAppended("user", "more"))


# --- claims, epochs, owners -------------------------------------------------------------------------------------------


@pytest.mark.requirement("R37")
@pytest.mark.parametrize("epoch", [1, 3])
def test_claim_takes_the_next_epoch(desk, epoch):
    """A claim counts the epoch on by one, or somebody was faster."""
    queued(desk)
    refused(desk, StaleEpoch, claim(epoch))


def test_second_claim_loses(desk):
    """Of two claims of the same queued run the second is refused."""
    queued(desk)
    desk.append(claim(2))
    refused(desk, InvalidTransition, claim(2))
    refused(desk, InvalidTransition, claim(3))


@pytest.mark.requirement("R48")
def test_fenced_owner(desk):
    """An owner whose run was taken over can append nothing, not even a note, under its old epoch."""
    gone(desk)
    desk.append(e.RunRequeued("lease_expired"), claim(2))
    for event in (e.MessageAppended("user", "hi"), e.StepCompleted(0), e.RunCompleted(1), e.NoteAdded("n")):
        refused(desk, StaleEpoch, event, epoch=1)
    desk.append(e.MessageAppended("user", "hi"), epoch=2)


def test_epoch_of_the_future(desk):
    """An epoch that nobody was given is refused."""
    running(desk)
    refused(desk, StaleEpoch, e.NoteAdded("n"), epoch=2)


def test_owner_writes_need_its_epoch(desk):
    """In a running run only its owner writes messages, and says so."""
    running(desk)
    refused(desk, NotAllowed, e.MessageAppended("user", "hi"))


@pytest.mark.requirement("R48")
def test_living_owner_is_left_alone(desk):
    """A running run is requeued by others only when its owner is gone: not a second before its lease is over."""
    running(desk)
    desk.clock.sleep(58)
    refused(desk, NotAllowed, e.RunRequeued("lease_expired"))
    refused(desk, NotAllowed, e.RunRequeued("owner_dead"), claim(2))
    desk.clock.sleep(2)
    desk.append(e.RunRequeued("lease_expired"), claim(2))
    assert ("running", 2) == (desk.head.status, desk.head.epoch)


def test_heartbeat_keeps_the_lease(desk):
    """A lease that was extended isn't over when the first one would have been."""
    running(desk)
    desk.journal.store.heartbeat(R, 1, desk.clock.boottime_s() + 100, desk.clock.boottime_s())
    desk.clock.sleep(61)
    refused(desk, NotAllowed, e.RunRequeued("lease_expired"))


@pytest.mark.parametrize(
    "ending",
    [[], [claim(2)], [e.RunCancelled("")], [e.RunWaiting([LOOP])]],
    ids=lambda ending: ending[-1].TYPE if ending else "left",
)
def test_take_over_in_one_batch(desk, ending):
    """After its owner is gone a run is requeued and, in the same batch, claimed, cancelled, left waiting, or left."""
    gone(desk)
    desk.append(e.RunRequeued("owner_dead"), *ending)
    expected = STATUS_AFTER[ending[-1].TYPE] if ending else "queued"
    assert expected == desk.head.status == desk.journal.state(R).status.status


@pytest.mark.parametrize("reason", ["retry_due", "lease_expired", "owner_dead"])
def test_owner_releases(desk, reason):
    """An owner gives a run back as released, for no other reason."""
    running(desk)
    refused(desk, NotAllowed, e.RunRequeued(reason), epoch=1)


@pytest.mark.parametrize("scene", ["gone", "due"])
def test_only_the_owner_releases(desk, scene):
    """Others don't requeue as released."""
    SCENES[scene](desk)
    refused(desk, InvalidTransition, e.RunRequeued("released"))


def test_released_by_its_owner_then_claimed(desk):
    """What an owner writes behind its own release is anybody's, and a claim counts on."""
    running(desk)
    records = desk.append(e.RunRequeued("released"), claim(2), e.MemorySet("k", 1), epoch=1)
    assert [1, 2, 2] == [record.epoch for record in records]


# --- due, woken -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R31")
def test_retry_not_before_due(desk):
    """A scheduled retry is requeued when it is due, not a moment earlier."""
    left(retry_scheduled("2026-01-02T03:05:05.000000Z"))(desk)
    refused(desk, NotAllowed, e.RunRequeued("retry_due"))
    desk.clock.sleep(60)
    desk.append(e.RunRequeued("retry_due"))
    assert ("queued", None) == (desk.head.status, desk.head.due_at)


def test_waiting_needs_a_reason(desk):
    """A waiting run is claimed when it was woken, or by hand."""
    left(WAIT)(desk)
    refused(desk, NotAllowed, claim(2))
    refused(desk, NotAllowed, claim(2, "crash"))
    desk.append(claim(2, "manual"))
    assert "running" == desk.head.status


def test_waiting_until_due(desk):
    """A waiting run whose time has come may be claimed."""
    left(e.RunWaiting([{"kind": "timer", "id": "t"}], "2026-01-02T03:05:05.000000Z"))(desk)
    refused(desk, NotAllowed, claim(2))
    desk.clock.sleep(60)
    desk.append(claim(2))


WAKERS = {
    "signal": ({"kind": "signal", "id": "go"}, e.SignalReceived("s", "go", None)),
    "approval": ({"kind": "approval", "id": "q"}, e.ApprovalResolved("q", "rejected")),
    "question": ({"kind": "question", "id": "q"}, e.ApprovalResolved("q", "approved")),
    "child": ({"kind": "child", "id": "kid"}, e.ChildFinished("kid", "failed")),
    "call": ({"kind": "question", "id": "c"}, e.ToolResolved("c", 1, "did_not_happen")),
}


@pytest.mark.parametrize("fresh", [False, True], ids=["same process", "other process"])
@pytest.mark.parametrize("waker", WAKERS)
def test_woken(desk, waker, fresh):
    """An answer, signal, child or word wakes the run that waits for it, whichever process brings it."""
    wait, event = WAKERS[waker]
    left(e.ChildSpawned("kid", "demo"), e.RunWaiting([wait]))(desk)
    journal = desk.stranger() if fresh else desk.journal
    journal.append(R, [event])
    assert (True, True) == (desk.head.wake_at is not None, desk.journal.state(R).status.woken)
    desk.append(claim(2))


@pytest.mark.parametrize("fresh", [False, True], ids=["same process", "other process"])
def test_not_woken(desk, fresh):
    """What a run doesn't wait for doesn't wake it."""
    left(WAIT)(desk)
    (desk.stranger() if fresh else desk.journal).append(R, [e.SignalReceived("s", "stop", None)])
    assert (None, False) == (desk.head.wake_at, desk.journal.state(R).status.woken)


def test_already_come(desk):
    """A run that waits for what has already come is woken at once."""
    running(desk)
    desk.append(e.SignalReceived("s", "go", None))
    desk.append(WAIT, epoch=1)
    assert desk.head.wake_at is not None


def test_taken_signals_wake_nobody(desk):
    """A signal that the open step has taken already is not what it waits for next."""
    running(desk)
    desk.append(e.SignalReceived("s", "go", None))
    desk.append(e.SignalTaken(["s"]), WAIT, epoch=1)
    assert (None, False) == (desk.head.wake_at, desk.journal.state(R).status.woken)


def test_inbox_is_bounded_for_strangers(desk, monkeypatch):
    """A process that only sends signals meets the bound on signals too."""
    monkeypatch.setattr("runjournal.writing.bounds.inbox_signals_max", 9)
    queued(desk)
    journal = desk.stranger()
    journal.append(R, [e.SignalReceived(f"s{i}", "x", None) for i in range(9)])
    with pytest.raises(TooLarge, match="inbox_signals_max"):
        journal.append(R, [e.SignalReceived("last", "x", None)])
    assert 9 == len(desk.journal.state(R).inbox.signals)


# --- the end ----------------------------------------------------------------------------------------------------------

ENDS = {"completed": e.RunCompleted(None), "failed": e.RunFailed(ERROR, [], "error"), "cancelled": e.RunCancelled("")}


@pytest.mark.requirement("R39")
@pytest.mark.parametrize("expect", [None, 0, 3, 99])
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("status", ENDS)
def test_same_end_again(desk, status, epoch, expect):
    """The same end again is a no-op that gives the record there is, whatever its expectation."""
    SCENES[status](desk)
    desk.append(e.NoteAdded("after"))
    before = desk.image()
    (record,) = desk.append(ENDS[status], epoch=epoch, expect=expect)
    assert (before, before[1].head_seq - 1) == (desk.image(), record.seq)


def test_same_end_after_many_notes(desk):
    """The same end again is a no-op however much was noted since."""
    SCENES["completed"](desk)
    desk.append(*[e.NoteAdded("n")] * 600)
    (record,) = desk.append(ENDS["completed"])
    assert "run.completed" == record.type


@pytest.mark.requirement("R40", "R41")
@pytest.mark.parametrize(
    "other", [*ENDS.values(), e.RunCompleted(1), e.RunFailed(ERROR, [], "budget")], ids=lambda end: end.TYPE
)
@pytest.mark.parametrize("status", ENDS)
def test_another_end(desk, status, other):
    """After an end, another one, or the same kind with other data, is refused; nothing leads back."""
    SCENES[status](desk)
    if other != ENDS[status]:
        refused(desk, InvalidTransition, other)
        refused(desk, StaleEpoch, other, epoch=1)


def test_ends_are_terminal():
    """The ends have no arrow out but to being purged, which has none."""
    lead = {status for status, after in TRANSITIONS.items() if not after - {"purged"}}
    assert TERMINAL | {"imported", "open"} == lead
    assert 0 == len(TRANSITIONS["purged"])


@pytest.mark.parametrize(("scene", "cause", "error"), [
    ("queued", "expired", None), ("queued", "budget", None), ("queued", "restart_loop", InvalidTransition),
    ("queued", "error", InvalidTransition), ("queued", "unsafe_in_flight", InvalidTransition),
    ("waiting", "expired", None), ("waiting", "budget", InvalidTransition), ("waiting", "rejected", InvalidTransition),
    ("running", "expired", InvalidTransition), ("gone", "restart_loop", InvalidTransition),
    ("retry", "expired", InvalidTransition), ("retry", "retries_exhausted", InvalidTransition),
])  # fmt: skip
def test_failing_without_an_owner(desk, scene, cause, error):
    """Without its owner a run fails only for what its status allows."""
    SCENES[scene](desk)
    event = e.RunFailed(ERROR, [], cause)
    if error:
        refused(desk, error, event)
    else:
        desk.append(event)
        assert ("failed", cause) == (desk.head.status, desk.journal.state(R).status.cause)


@pytest.mark.parametrize(("scene", "kinds", "error"), [
    ("queued", ["recoveries"], None), ("queued", ["recoveries", "timer"], InvalidTransition),
    ("queued", ["code"], InvalidTransition), ("waiting", ["recoveries"], InvalidTransition),
    ("gone", ["recoveries"], InvalidTransition), ("failed", ["recoveries"], InvalidTransition),
])  # fmt: skip
def test_waiting_without_an_owner(desk, scene, kinds, error):
    """Without its owner a run waits only because it doesn't get on, and only when it would be claimed."""
    SCENES[scene](desk)
    event = e.RunWaiting([{"kind": kind, "id": "restart_loop"} for kind in kinds], why="it dies")
    if error:
        refused(desk, error, event)
    else:
        desk.append(event)
        assert ("waiting", "it dies") == (desk.head.status, desk.journal.state(R).status.why)


@pytest.mark.parametrize(("scene", "error"), [
    ("queued", None), ("waiting", None), ("stands", None), ("retry", None), ("gone", NotAllowed),
    ("running", InvalidTransition), ("failed", InvalidTransition), ("imported", InvalidTransition),
])  # fmt: skip
def test_a_step_is_given_up_without_an_owner(desk, scene, error):
    """By anyone, once, where nobody owns the run; never by its owner, whose step fails by itself."""
    SCENES[scene](desk)
    left = e.StepFailed(0, ERROR, transient=False, left=True)
    if scene in ("gone", "running"):
        refused(desk, InvalidTransition, left)
        refused(desk, InvalidTransition, left, epoch=1)
        if scene == "gone":
            desk.append(e.RunRequeued("owner_dead"), left)
    elif error:
        refused(desk, error, left)
    else:
        desk.append(left)
        refused(desk, NotAllowed, left)
        assert desk.journal.state(R).steps.open is None


@pytest.mark.parametrize(("wait", "error"), [
    ({"kind": "code", "id": "StepDiverged"}, None), (LOOP, NotAllowed), (WAIT.for_[0], NotAllowed),
])  # fmt: skip
def test_only_a_run_that_waits_for_code_goes_on_as_recorded(desk, wait, error):
    """A person says so while it waits; it holds for the open attempt."""
    running(desk)
    refused(desk, InvalidTransition, e.StepRecorded(0))
    desk.append(e.RunWaiting([wait]), epoch=1)
    if error:
        refused(desk, error, e.StepRecorded(0))
    else:
        desk.append(e.StepRecorded(0), e.RunRequeued("resumed"))
        refused(desk, InvalidTransition if error else NotAllowed, e.StepRecorded(0))
        assert desk.journal.state(R).steps.open.recorded


@pytest.mark.parametrize("wait", [LOOP, {"kind": "code", "id": "PlanChanged"}, WAIT.for_[0]], ids=lambda w: w["kind"])
def test_only_a_run_that_stands_still_is_requeued_from_waiting(desk, wait):
    """It is free for whoever runs it next; a run that waits for something that comes stays where it is."""
    running(desk)
    desk.append(e.RunWaiting([wait]), epoch=1)
    if wait["kind"] in ("code", "recoveries"):
        desk.append(e.RunRequeued("resumed", "mended"))
        assert ("queued", []) == (desk.head.status, desk.journal.state(R).status.waits)
    else:
        refused(desk, NotAllowed, e.RunRequeued("resumed"))


def test_only_what_nobody_knows_of_is_taken_over(desk):
    """A call that never started, one of a model, and one whose outcome is known are no other step's."""
    running(desk)
    for call_id in ("nothing", "m"):
        refused(desk, CallEnded, e.ToolAdopted(call_id), epoch=1)
    desk.append(tool_failed(lost=True), e.StepFailed(0, ERROR, transient=False), step(1, "next"), epoch=1)
    desk.append(e.ToolAdopted("c"), epoch=1)
    assert ("next", "next") == (
        desk.journal.state(R).calls.known["c"].step,
        desk.journal.state(R).calls.known["c"].taken,
    )
    desk.append(tool_failed(kind="CallOutcomeUnknown", settled=True), epoch=1)
    refused(desk, CallEnded, e.ToolAdopted("c"), epoch=1)


# --- cancels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "event", "refuses"), [
    ("after_step", step(entry=2), True), ("after_step", tool("c2"), False),
    ("after_step", e.ModelStarted("m2", "g", "h", 1), False), ("after_step", e.StepCompleted(0), False),
    ("now", step(entry=2), True), ("now", tool("c2"), True), ("now", e.ModelStarted("m2", "g", "h", 1), True),
    ("now", e.ToolCompleted("c", 1), False), ("now", e.StepCompleted(0), False), ("now", e.RunCancelled(""), False),
    ("now", e.RunCompleted(1), False), ("now", e.MessageAppended("user", "x"), False),
    ("after_step", e.RunWaiting([{"kind": "timer", "id": "t"}]), True), ("after_step", e.RunRequeued("released"), True),
    ("after_step", e.RunRetryScheduled("2026-01-01T00:00:00.000000Z", 1, ERROR, []), True),
    ("after_step", e.RunFailed(ERROR, [], "error"), False),
])  # fmt: skip
def test_cancel_beats_every_intent(desk, mode, event, refuses):
    """No step starts, with `now` no call either; what was begun may end, and the run isn't left to others."""
    running(desk)
    desk.append(e.RunCancelRequested("", mode))
    if refuses:
        refused(desk, CancelRequested, e.NoteAdded("n"), event, epoch=1)
    else:
        desk.append(event, epoch=1)


def test_sharper_cancel_counts(desk):
    """A gentler request after `now` doesn't take it back, in the gate as in the fold."""
    running(desk)
    desk.append(e.RunCancelRequested("", "now"))
    desk.append(e.RunCancelRequested("", "after_step"))
    refused(desk, CancelRequested, tool("c2"), epoch=1)
    assert ("now", "now") == (desk.head.cancel_requested, desk.journal.state(R).status.cancel)


def test_sharper_cancel_in_one_batch(desk):
    """The same within a batch of the owner's."""
    running(desk)
    events = e.RunCancelRequested("", "now"), e.RunCancelRequested("", "after_step"), tool("c2")
    refused(desk, CancelRequested, *events, epoch=1)


@pytest.mark.parametrize("scene", ["queued", "woken"])
def test_cancel_beats_a_claim(desk, scene):
    """A run whose cancel was requested can't be claimed any more."""
    SCENES[scene](desk)
    desk.append(e.RunCancelRequested("", "after_step"))
    refused(desk, CancelRequested, claim(2))
    desk.append(e.RunCancelled(""))


@pytest.mark.parametrize(("scene", "first"), [
    ("queued", []), ("waiting", []), ("retry", []), ("gone", [e.RunRequeued("lease_expired")]),
])  # fmt: skip
def test_cancel_without_an_owner(desk, scene, first):
    """A cancel with no living owner is one batch that ends in run.cancelled."""
    SCENES[scene](desk)
    desk.append(e.RunCancelRequested("stop", "now"), *first, e.RunCancelled("stop"))
    assert "cancelled" == desk.head.status


def test_cancel_after_the_end(desk):
    """A run that has ended can't be cancelled."""
    SCENES["completed"](desk)
    refused(desk, InvalidTransition, e.RunCancelRequested("", "now"))


# --- calls ------------------------------------------------------------------------------------------------------------


def test_first_outcome_wins(desk):
    """An attempt of a call ends once."""
    running(desk)
    desk.append(e.ToolCompleted("c", 1, "sent"), epoch=1)
    refused(desk, CallEnded, tool_failed(), epoch=1)
    refused(desk, CallEnded, e.ToolCompleted("c", 1, "sent"), epoch=1)
    refused(desk, CallEnded, e.ToolResolved("c", 1, "did_not_happen"), epoch=1)


def test_model_ends_once(desk):
    """The same for a model call."""
    running(desk)
    desk.append(e.ModelFailed("m", 1, ERROR, transient=True), epoch=1)
    refused(desk, CallEnded, e.ModelCompleted("m", 1, "hi"), epoch=1)


@pytest.mark.parametrize(
    "event", [e.ToolCompleted("nobody", 1), e.ModelCompleted("nobody", 1, ""), e.ToolCompleted("c", 2)], ids=repr
)
def test_what_never_started_has_no_end(desk, event):
    """A call that never started, or an attempt that didn't, has no end."""
    running(desk)
    refused(desk, CallEnded, event, epoch=1)


@pytest.mark.parametrize("attempt", [1, 3])
def test_attempts_are_counted(desk, attempt):
    """Attempts of a call count on by one."""
    running(desk)
    desk.append(tool_failed(), epoch=1)
    refused(desk, NotAllowed, tool("c", attempt=attempt), epoch=1)
    desk.append(tool("c", attempt=2), epoch=1)


def test_unknown_is_no_outcome(desk):
    """Saying that nobody knows leaves the attempt its first outcome."""
    running(desk)
    desk.append(e.ToolResolved("c", 1, "unknown"), epoch=1)
    desk.append(e.ToolCompleted("c", 1, "sent"), epoch=1)
    refused(desk, CallEnded, tool_failed(), epoch=1)
    assert (0, 1) == (len(desk.journal.state(R).calls.unresolved()) - 1, desk.journal.state(R).calls.tools.completed)


def test_telling_that_nobody_knows_is_no_outcome(desk):
    """Nor does telling the agent so; but a failure before it was one."""
    running(desk)
    desk.append(tool_failed(kind="CallOutcomeUnknown"), epoch=1)
    desk.append(tool_failed(), epoch=1)
    desk.append(tool_failed(kind="CallOutcomeUnknown"), epoch=1)
    refused(desk, CallEnded, tool_failed(), epoch=1)


def test_known_outcome_is_not_unknown(desk):
    """What is known can't be told as unknown."""
    running(desk)
    desk.append(e.ToolCompleted("c", 1), epoch=1)
    refused(desk, CallEnded, tool_failed(kind="CallOutcomeUnknown"), epoch=1)


def test_happened_call_is_not_started_again(desk):
    """A call that happened can't be started again, not even in the batch that ended it."""
    running(desk)
    refused(desk, CallEnded, e.ToolCompleted("c", 1), tool("c", attempt=2), epoch=1)
    desk.append(e.ToolCompleted("c", 1), epoch=1)
    refused(desk, CallEnded, tool("c", attempt=2), epoch=1)


def test_word_with_a_living_owner(desk):
    """While its owner lives nobody else says what became of a call; the owner may."""
    running(desk)
    refused(desk, NotAllowed, e.ToolResolved("c", 1, "happened"))
    desk.append(e.ToolResolved("c", 1, "happened"), epoch=1)


@pytest.mark.requirement("R73")
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("scene", ["gone", "queued", "waiting", "due", "completed", "failed", "cancelled"])
def test_a_persons_word(desk, scene, outcome):
    """With no living owner a person's word is taken in any status; a second one only while nobody knows."""
    SCENES[scene](desk)
    desk.stranger().append(R, [e.ToolResolved("c", 1, outcome)], by="cli:me")
    if outcome == "unknown":
        desk.append(e.ToolResolved("c", 1, "happened"))
    refused(desk, CallEnded, e.ToolResolved("c", 1, "happened"))


def test_word_names_the_newest_attempt(desk):
    """A person's word speaks of the newest attempt, so that it isn't about another one than was seen."""
    running(desk)
    desk.append(tool_failed(), tool("c", attempt=2), e.RunRequeued("released"), epoch=1)
    refused(desk, NotAllowed, e.ToolResolved("c", 1, "happened"))
    refused(desk, NotAllowed, e.ToolResolved("c", 3, "happened"))
    desk.append(e.ToolResolved("c", 2, "did_not_happen"))


@pytest.mark.parametrize("call_id", ["m", "nobody"])
def test_word_about_nothing(desk, call_id):
    """A model call, or one that never started, isn't resolved."""
    queued(desk)
    refused(desk, CallEnded, e.ToolResolved(call_id, 1, "happened"))


def test_late_testimony(desk):
    """A fenced owner testifies, without an epoch, of its own attempt, once, while the next owner lives."""
    gone(desk)
    desk.append(e.RunRequeued("lease_expired"), claim(2))
    desk.append(step(entry=2), tool("c", attempt=2), epoch=2)
    desk.append(e.ToolResolved("c", 1, "did_not_happen", late=True))
    refused(desk, CallEnded, e.ToolResolved("c", 1, "happened", late=True))
    assert [2] == desk.journal.state(R).calls.known["c"].maybe


def test_late_testimony_of_the_newest_attempt_is_its_outcome(desk):
    """An attempt of which its late owner has spoken can't be ended again."""
    running(desk)
    desk.append(tool_failed(), tool("c", attempt=2), epoch=1)
    desk.append(e.ToolResolved("c", 2, "did_not_happen", late=True))
    refused(desk, CallEnded, e.ToolCompleted("c", 2), epoch=1)


def test_late_after_the_end(desk):
    """A late word is heard after the run has ended too."""
    SCENES["cancelled"](desk)
    desk.append(e.ToolResolved("c", 1, "happened", "sent", late=True))
    assert {"o"} == desk.journal.state(R).calls.unresolved().keys()


@pytest.mark.parametrize("scene", ["running", "queued", "completed"])
@pytest.mark.parametrize("end", [e.ToolCompleted("o", 1, "sent"), tool_failed("o")], ids=lambda end: end.TYPE)
def test_relay_ends_outbox_calls(desk, scene, end):
    """The relay, which owns no run, tells of dispatching an outbox call and of its end, in any status."""
    SCENES[scene](desk)
    desk.append(e.ToolDispatched("o"), end)
    assert desk.journal.state(R).calls.facts("o") is None or not desk.journal.state(R).calls.facts("o").open


@pytest.mark.parametrize(
    "event", [e.ToolDispatched("c"), e.ToolDispatched("nobody"), e.ToolCompleted("c", 1)], ids=repr
)
def test_relay_knows_only_the_outbox(desk, event):
    """The relay has no say in other calls."""
    queued(desk)
    with pytest.raises(AppendRefused):
        desk.append(event)


def test_index_rows_of_one_batch(desk):
    """A call that starts and ends in one batch leaves its effect and nothing unknown."""
    desk.append(QUEUED, claim(), step(), tool("c"), e.ToolCompleted("c", 1), expect=0)
    store = desk.journal.store
    assert (None, "send") == (store.unknown(R, "c"), store.effect(R, "c").tool)


def test_index_rows_over_batches(desk):
    """A call is in `unknowns` from its start until somebody says what became of it."""
    running(desk)
    assert desk.journal.store.unknown(R, "c") is not None
    desk.append(tool_failed(did_not_happen=True), tool("c", attempt=2), epoch=1)
    assert desk.journal.store.unknown(R, "c") is not None
    desk.append(e.ToolResolved("c", 2, "happened"), epoch=1)
    assert (None, True) == (desk.journal.store.unknown(R, "c"), desk.journal.store.effect(R, "c") is not None)


# --- questions, steps, lines ------------------------------------------------------------------------------------------


@pytest.mark.requirement("R132", "R133")
def test_first_answer_counts(desk):
    """Of two answers the first one counts; a question that nobody asked, or of a run that has ended, has none."""
    left(e.RunWaiting([{"kind": "approval", "id": "q"}]))(desk)
    desk.append(e.ApprovalResolved("q", "approved"))
    refused(desk, NotAllowed, e.ApprovalResolved("q", "rejected"))
    refused(desk, NotAllowed, e.ApprovalResolved("nobody", "approved"))
    desk.append(e.RunCancelled(""))
    refused(desk, InvalidTransition, e.ApprovalResolved("q", "rejected"))


def test_question_asked_twice(desk):
    """An open question isn't asked again."""
    running(desk)
    refused(desk, NotAllowed, e.ApprovalRequested("q", "a", "r"), epoch=1)


@pytest.mark.parametrize("event", [
    step(1, "other"), step(0, "other"), step(1), e.StepCompleted(1), e.StepFailed(1, ERROR, transient=False),
], ids=repr)  # fmt: skip
def test_one_step_at_a_time(desk, event):
    """While a step is open only it is entered, and only it ends."""
    running(desk)
    refused(desk, NotAllowed, event, epoch=1)


@pytest.mark.parametrize(("event", "allowed"), [
    (step(0, attempt=2), True), (step(1, "plan b"), True), (step(1, attempt=2), False), (step(0, "plan b"), False),
    (step(2, "plan b"), False), (e.StepCompleted(0), False),
], ids=repr)  # fmt: skip
def test_after_a_failed_step(desk, event, allowed):
    """After step.failed the same step keeps its index, another one takes the next."""
    running(desk)
    desk.append(e.StepFailed(0, ERROR, transient=False), epoch=1)
    if allowed:
        desk.append(event, epoch=1)
    else:
        refused(desk, NotAllowed, event, epoch=1)


@pytest.mark.parametrize("index", [0, 2])
def test_steps_are_dense(desk, index):
    """After a completed step the next one takes the next index."""
    running(desk)
    desk.append(e.StepCompleted(0), epoch=1)
    refused(desk, NotAllowed, step(index, "next"), epoch=1)
    desk.append(step(1, "next"), epoch=1)


def linked(desk, of, link, scope=R):
    head = desk.journal.head(of)
    base = {"run_id": of, "seq": head.head_seq, "hash": head.head_hash}
    return e.RunQueued("demo", None, scope=scope, parent_run_id=of, link=link, base=base)


@pytest.mark.requirement("R42")
@pytest.mark.parametrize("link", ["retry", "restart"])
def test_line(desk, link):
    """A retry or restart is a new run that names its parent, whose log stays as it is; only the newest goes on."""
    SCENES["failed"](desk)
    before = desk.image()[:2]
    desk.journal.append("r2", [linked(desk, R, link)], expect=0)
    assert (before, ["r2"]) == (desk.image()[:2], [head.run_id for head in desk.journal.runs(parent=R)])
    with pytest.raises(NotNewest):
        desk.journal.append("r3", [linked(desk, R, link)], expect=0)
    with pytest.raises(NotNewest):
        desk.journal.append("r3", [linked(desk, "r2", link)], expect=0)  # it hasn't ended
    with pytest.raises(NotNewest):
        desk.append(e.ToolResolved("c", 1, "happened"))  # say it to the newest
    desk.append(e.ToolResolved("c", 1, "happened", late=True))  # a fenced owner knows only its own run


def test_scope_belongs_to_a_line(desk):
    """Nobody else takes the scope of a line; a fork has its own."""
    SCENES["failed"](desk)
    for event in (e.RunQueued("demo", None, scope=R), linked(desk, R, "fork")):
        with pytest.raises(NotNewest):
            desk.journal.append("r2", [event], expect=0)
    desk.journal.append("r2", [linked(desk, R, "fork", None)], expect=0)


# --- batches ----------------------------------------------------------------------------------------------------------


def test_all_or_nothing(desk):
    """One refused event refuses the batch, and the state kept in memory doesn't remember it."""
    running(desk)
    refused(
        desk,
        InvalidTransition,
        e.MessageAppended("user", "1"),
        e.StepCompleted(0),
        e.ToolDispatched("k"),
        epoch=1,
    )
    desk.append(e.StepCompleted(0), epoch=1)
    assert desk.journal.replay(R).dump() == desk.journal.state(R).dump()


def test_take_over_by_a_stranger(desk):
    """A process that has folded nothing takes over and goes on in one batch; the checkpoint that it leaves is right."""
    gone(desk)
    stranger = desk.stranger()
    events = [
        e.RunRequeued("lease_expired"),
        claim(2),
        step(entry=2),
        e.MessageAppended("user", "hi"),
        e.StepCompleted(0),
    ]
    records = stranger.append(R, events)
    assert [None, 0, 0, 0, 0] == [record.step for record in records]
    assert desk.journal.replay(R).dump() == desk.journal.state(R).dump()


def test_state_of_a_stranger(desk):
    """A process that folds only when it must has then folded all of its batch."""
    left(WAIT)(desk)
    stranger = Journal(desk.journal.store, by="stranger", checkpoints=CheckpointPolicy(1))
    stranger.append(R, [e.CostRecorded("1", "USD", "bill"), e.SignalReceived("s", "go", None), e.NoteAdded("n")])
    assert desk.head.head_seq == next(desk.journal.store.checkpoints(R)).seq
    assert desk.journal.replay(R).dump() == desk.journal.state(R).dump()


@pytest.mark.parametrize("fresh", [False, True], ids=["same process", "other process"])
def test_step_of_the_next_owner(desk, fresh):
    """What the next owner writes carries the index of the open step, even in the batch of its claim."""
    gone(desk)
    journal = desk.stranger() if fresh else desk.journal
    records = journal.append(R, [e.RunRequeued("lease_expired"), claim(2), e.MessageAppended("user", "hi")])
    assert [None, 0, 0] == [record.step for record in records]
