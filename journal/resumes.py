"""Resume reports: what a run would go on from now, and what its owner has gone on from. Reads only.

The rules: engine.md G2 and G3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from runjournal.engine.brief import BriefBasis
from runjournal.engine.resuming import (
    KINDS,
    ResumeKind,
    ResumeReport,
    classified,
    code_words,
    next_action,
    prompt_words,
    tasks_done,
)
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.authority import ANYTIME
from runjournal.log.clock import parse_timestamp, timestamp
from runjournal.log.head import LAPSES, STATUS_AFTER
from runjournal.log.owner import moment
from runjournal.log.store import Store
from runjournal.projections.prompt import Fingerprints, Prompt, fingerprints
from runjournal.projections.state import RunState
from runjournal.writing import folding, purged

from .agent_code import code_version
from .logbook import Logbook

_REASONS: Final = {
    "lease_expired": "its process went silent, and its lease ran out",
    "owner_dead": "its process died",
    "machine_restarted": "its machine was started anew",
    "told_to_stop": "its process was told to stop",
    "redeployed": "its process died, and other code goes on with it",
    "released": "its process let it go",
    "retry_due": "its round ended in a failure that may pass",
    "resumed": "a person resumed it",
    "abandoned": "a person gave up its step",
}
_CLAIMS_OWN: Final = LAPSES | {"retry_due"}
"""Reasons of a requeue that is part of a claim: nobody saw the run so."""

ENDS: Final = ("step.completed", "step.failed")


class ResumePoint(NamedTuple):
    """Where a run stands or stood: its resume point, how its next owner comes to it, and why it came to stand."""

    point: int
    kind: ResumeKind
    why: str


class Today(NamedTuple):
    """When a run is reported, by which code of its agent it goes on, and with which prompt, where that is known."""

    now: str
    code: str | None = None
    prompt: Fingerprints | None = None


def resume_report(
    log: Logbook, run_id: str, agent: Any = None, prompt: Mapping[str, str] | None = None
) -> ResumeReport | None:
    """Return what a run would go on from now; None if it has never begun, or nobody ever owns it.

    `agent` and `prompt`, by its layers, are those of today. Raises RunNotFound, Purged.
    """
    head = log.head(run_id)
    purged.check_there(log.store, run_id)
    state: RunState = log.fold(RunState, run_id, at=head.head_seq)
    kind = _kind(state)
    if kind is None or head.unowned or log.store.imported(run_id) is not None:
        return None
    found = ResumePoint(point_at(log.store, run_id, head.head_seq), kind, _why_now(log, state))
    today = Today(
        timestamp(log.clock.now()),
        None if agent is None else code_version(agent),
        None if prompt is None else fingerprints(prompt),
    )
    return _report(log, state, found, today)


class TakenUp(NamedTuple):
    """A run as an owner has taken it up, and what he went on from."""

    state: RunState
    report: ResumeReport


def of_claim(log: Logbook, run_id: str, epoch: int) -> TakenUp | None:
    """Return what the owner with this epoch has gone on from; None if that was the run's first start."""
    claims = log.store.read(run_id, types=("run.claimed",))
    claim = next((each for each in claims if isinstance(each.event, e.RunClaimed) and each.event.epoch == epoch), None)
    if claim is None or not isinstance(claim.event, e.RunClaimed) or claim.event.resume is None:
        return None
    before = next(log.store.read_back(run_id, claim.seq))
    own = isinstance(before.event, e.RunRequeued) and before.event.reason in _CLAIMS_OWN
    point = point_at(log.store, run_id, before.seq - own)
    why = _REASONS[before.event.reason] if own and isinstance(before.event, e.RunRequeued) else ""
    if not why or before.event == e.RunRequeued("retry_due"):
        why = _why_moved(log.store, run_id, point)
    state = folding.load(log.store, log.store, run_id, point)[0]
    found = ResumePoint(point, KINDS[claim.event.resume], why)
    return TakenUp(state, _report(log, state, found, Today(claim.at, claim.event.code_version)))


class LivePast:
    """The past of a run that is owned here with an epoch; read once, when it is asked for."""

    def __init__(self, log: Logbook, run_id: str, epoch: int) -> None:
        self._log = log
        self._run_id = run_id
        self._epoch = epoch
        self._known: list[TakenUp | None] = []

    def report(self) -> ResumeReport | None:
        """Return what the owner at work goes on from; None at the first start."""
        taken = self._taken()
        return None if taken is None else taken.report

    def prompt(self) -> Prompt:
        """Return the system prompt as it was pinned there."""
        taken = self._taken()
        return Prompt() if taken is None else taken.state.prompt

    def basis(self, state: RunState) -> BriefBasis:
        """Return what the brief of a run in this state is made of: engine.md G5."""
        run_id, before = begun_in(self._log.store, state)
        return _basis(self._log, run_id, anchor(self._log.store, run_id, before))

    def _taken(self) -> TakenUp | None:
        if not self._known:
            self._known.append(of_claim(self._log, self._run_id, self._epoch))
        return self._known[0]


class ShownPast:
    """The past of a run that is only shown to its agent: what it would go on from now."""

    def __init__(self, log: Logbook, run_id: str) -> None:
        self._log = log
        self._run_id = run_id

    def report(self) -> ResumeReport | None:
        """Return what the run would go on from now."""
        return resume_report(self._log, self._run_id)

    def prompt(self) -> Prompt:
        """Return the system prompt that is pinned now."""
        state: RunState = self._log.fold(RunState, self._run_id)
        return state.prompt

    def basis(self, state: RunState) -> BriefBasis:
        """Return what the brief was made of where the real log has as many ends of steps as are shown."""
        store = self._log.store
        run_id, before = begun_in(store, state)
        if run_id != self._run_id:
            return _basis(self._log, run_id, anchor(store, run_id, before))
        failed = folding.begin(store, folding.first(store, run_id)).steps.failed_count
        left, seq = state.steps.completed_count + state.steps.failed_count - failed, 1
        for record in store.read(run_id, types=("run.claimed", "step.started", *ENDS)):
            if left == 0 and record.type == "step.started":
                break
            if record.type in ENDS:
                left -= 1
            if left == 0:
                seq = record.seq
        return _basis(self._log, run_id, seq)


def begun_in(store: Store, state: RunState) -> tuple[str, int | None]:
    """Return in which run the attempt of the open step began, and at which event; None where no step is open."""
    if state.steps.open is None:
        return state.run_id, None
    run_id, offset, since = state.run_id, state.offset, state.steps.open.since
    while since <= offset and (queued := folding.first(store, run_id)) is not None and queued.base is not None:
        run_id, offset = queued.base["run_id"], offset - queued.base["seq"]
    return run_id, since - offset


def anchor(store: Store, run_id: str, before: int | None) -> int:
    """Return the newest end of a step or claim of a run before an event: what came since changes no brief."""
    return next(
        (each.seq for each in store.read_back(run_id, before) if each.type in ENDS or each.type == "run.claimed"), 1
    )


def _basis(log: Logbook, run_id: str, seq: int) -> BriefBasis:
    """Return what a brief is made of at an event: the state, and what the owner of then had gone on from."""
    state = folding.load(log.store, log.store, run_id, seq)[0]
    taken = of_claim(log, run_id, state.status.epoch)
    return BriefBasis(state, None if taken is None else taken.report)


def point_at(reading: Store, run_id: str, upto: int) -> int:
    """Return the resume point of a run up to an event: the newest one that counts, as notes and costs don't."""
    return next(each.seq for each in reading.read_back(run_id, upto + 1) if counts(each.type))


def counts(event_type: str) -> bool:
    """Return whether an event of this type moves a run: notes, costs and users' own types don't."""
    return event_type not in ANYTIME and not event_type.startswith("x.")


def _kind(state: RunState) -> ResumeKind | None:
    """Return how the next owner of a run would come to it; None for one that has never begun."""
    status = state.status
    if status.terminal:
        return "manual"
    return "crash" if status.status == "running" else KINDS.get(status.freed)


def _report(log: Logbook, state: RunState, found: ResumePoint, today: Today) -> ResumeReport:
    store, scope, tasks = log.store, state.status.scope, state.plan.base
    worked_at = _worked_at(store, state.run_id, found.point)
    at = moment(log.clock, log.ownership.process)
    return ResumeReport(
        state.run_id,
        found.kind,
        found.why,
        found.point,
        worked_at,
        max(0.0, (parse_timestamp(today.now) - parse_timestamp(worked_at)).total_seconds()),
        state.steps.completed[-1] if state.steps.completed else None,
        state.steps.completed_count,
        next_action(state),
        tasks_done(tasks),
        len(tasks),
        tuple(classified(state, at, lambda key: store.effect(scope, key) is not None)),
        code_words(state.status.code_version, today.code),
        prompt_words(state.prompt, today.prompt),
    )


def _worked_at(reading: Store, run_id: str, upto: int) -> str:
    """Return when an owner last appended to a run up to an event, or to what it goes on from; else when it began."""
    began = ""
    for record in reading.read_back(run_id, upto + 1):
        if record.epoch:
            return record.at
        began = record.at
    queued = folding.first(reading, run_id)
    if queued is None or queued.base is None:
        return began
    return _worked_at(reading, queued.base["run_id"], queued.base["seq"])


def _why_now(log: Logbook, state: RunState) -> str:
    """Return why a run stands now, in words."""
    if state.status.status != "running":
        return _why_moved(log.store, state.run_id, state.seq)
    head = log.head(state.run_id)
    if owner.gone(head, log.ownership.process, log.clock):
        return "its process is gone"
    return f"{head.owner} is at work with it, and would have to die first"


def _why_moved(reading: Store, run_id: str, upto: int) -> str:
    """Return how a run came to stand as it did at an event, in words."""
    for record in reading.read_back(run_id, upto + 1):
        match record.event:
            case e.RunRequeued() as freed if freed.reason != "retry_due":
                said = freed.error["message"] if freed.error else freed.note
                return _REASONS[freed.reason] + (f": {said}" if said else "")
            case e.RunWaiting() as waits:
                kinds = ", ".join(dict.fromkeys(str(wait["kind"]) for wait in waits.for_))
                return f"it has waited for {kinds}" + (f": {waits.why}" if waits.why else "")
            case e.RunRetryScheduled() as ended:
                return f"{_REASONS['retry_due']}: {ended.error['type']}"
            case e.RunQueued() as queued if queued.base is not None:
                return f"it is a {queued.link} of {queued.base['run_id']}, from event {queued.base['seq']}"
            case e.StepFailed(left=True):
                return _REASONS["abandoned"]
            case _ if record.type in STATUS_AFTER:
                return f"it has {record.type.removeprefix('run.')}"
            case _:
                pass
    return ""
