"""Runs that other runs have begun: how the line of one stands, what it has spent, and which agent it is the work of.

The rules of children: engine.md K1 to K13. The engine asks here; nothing is written, but for the retry of a child that
was taken down.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Literal, NamedTuple, NoReturn

from runjournal.engine.children import ChildStanding
from runjournal.engine.failures import RunNotDue
from runjournal.engine.tools import TOOL_CONTEXT
from runjournal.engine.waits import Awaited, awaited
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.base import Event
from runjournal.log.clock import timestamp
from runjournal.log.errors import AppendRefused
from runjournal.log.head import TERMINAL, Head
from runjournal.log.limits import (
    child_id_chars,
    children_depth_max,
    link_digest_chars,
    link_id_chars_max,
)
from runjournal.projections.costs import Costs, add
from runjournal.projections.state import RunState
from runjournal.writing import folding

from . import naming
from .agent_code import found_here, path_here
from .family import below_line
from .linking import go_on
from .logbook import Logbook
from .questions import told

_ENDS = ("run.completed", "run.failed", "run.cancelled", "run.purged")


def run_beside(run: Callable[[Any, str], Any], agent: Any, run_id: str) -> None:
    """Run a child in a step of its parent: its tools aren't that step's."""
    outer = TOOL_CONTEXT.set(None)
    try:
        run(agent, run_id)
    finally:
        TOOL_CONTEXT.reset(outer)


class JournalNursery:
    """What the engine asks of other runs; `run(agent, run_id)` runs one of them here."""

    def __init__(self, log: Logbook, run: Callable[[Any, str], Any]) -> None:
        self.log = log
        self._run = run

    def id_of(self, scope: str, call_id: str) -> str:
        """Return the id of a child that was given none: that of the line which asks, and of the ask."""
        stem = scope
        if len(stem) > link_id_chars_max:
            digest = hashlib.sha256(scope.encode()).hexdigest()[:link_digest_chars]
            stem = f"{scope[: link_id_chars_max - link_digest_chars - 1]}-{digest}"
        return f"{stem}.{call_id[:child_id_chars]}"

    def first(self, run_id: str) -> tuple[Event, str | None] | None:
        """Return the first event of a run and the scope of the run that began it; None if there is no such run."""
        if self.log.store.head(run_id) is None:
            return None
        first = next(self.log.events(run_id, upto=1)).event
        parent = getattr(first, "parent_run_id", None)
        head = None if parent is None else self.log.store.head(parent)
        return first, None if head is None else head.scope

    def standing(self, run_id: str, *, spent: bool) -> ChildStanding | None:
        """Return how the line of a run stands; None if there is no such run."""
        head = newest(self.log, run_id)
        if head is None:
            return None
        if head.status not in TERMINAL:
            now = ready(self.log, head)
            return ChildStanding(head.run_id, None, now, due_at=None if now else head.due_at)
        record = next(self.log.events(head.run_id, types=_ENDS))
        end = record.event if isinstance(record.event, e.RunCompleted | e.RunFailed | e.RunCancelled) else None
        found = end or e.RunCancelled(f"run {head.run_id} was purged")
        above = taken_down_by(self.log, head.run_id) if head.status == "cancelled" else None
        used = spent_by(self.log, head.run_id) if spent else None
        return ChildStanding(head.run_id, found, ready=False, spent=used, above=above)

    def take_up(self, run_id: str) -> bool:
        """Retry a child that was cancelled; return whether its line has gone on. One that was erased can't."""
        try:
            go_on(self.log, "retry", run_id, None, ())
        except AppendRefused:  # maybe somebody was faster
            last = newest(self.log, run_id)
            return last is not None and last.run_id != run_id
        return True

    def path_of(self, agent: Callable[..., Any]) -> str | None:
        """Return module:name of an agent, None for one that isn't found by that, as a lambda."""
        return path_here(agent)

    def found(self, path: str | None) -> Callable[..., Any] | None:
        """Return the agent of a path, if its module is loaded here; nothing is imported."""
        return found_here(path)

    def body(self, agent: Callable[..., Any], run_id: str) -> Callable[[], Any]:
        """Return what runs an agent on a run of its own, to its end or until it waits."""
        return lambda: self._run(agent, run_id)


class ShownNursery(JournalNursery):
    """Runs nothing: whoever would wait for a child is told by `waits`, since its end isn't on record."""

    def __init__(self, log: Logbook, waits: Callable[[str], NoReturn]) -> None:
        super().__init__(log, lambda _agent, run_id: waits(run_id))
        self._waits = waits

    def standing(self, run_id: str, *, spent: bool) -> ChildStanding | None:
        """Say that a child is waited for."""
        self._waits(run_id)


def newest(log: Logbook, run_id: str) -> Head | None:
    """Return the newest run of the line that a run began, None if there is no such run."""
    head = log.store.head(run_id)
    if head is None or head.scope != run_id:
        return head
    later = log.store.newest(run_id)
    return (log.store.head(later) if later is not None else None) or head


def taken_down_by(log: Logbook, run_id: str) -> str | None:
    """Return the run whose cancel alone took down a run that was cancelled; None if somebody has cancelled it."""
    asked = [record.event for record in log.events(run_id, types=("run.cancel_requested",))]
    above = [event.above if isinstance(event, e.RunCancelRequested) else None for event in asked]
    return above[-1] if all(above) and above else None


def ready(log: Logbook, head: Head, *, code: bool = True, depth: int = children_depth_max) -> bool:
    """Return whether a run that hasn't ended may be gone on with now; `code`: one that code has stopped, too."""
    if head.cancel_requested and head.status != "running":
        return True
    match head.status:
        case "queued":
            return True
        case "running":
            return owner.gone(head, log.ownership.process, log.clock)
        case "scheduled_retry":
            return is_due(log, head)
        case "waiting":
            state = log.fold(RunState, head.run_id, at=head.head_seq)
            stopped = code and state.stands == "code"
            return state.status.woken or is_due(log, head) or stopped or moved(log, state, code=code, depth=depth)
        case _:
            return False


def is_due(log: Logbook, head: Head) -> bool:
    """Return whether the time has come at which a run is gone on with, whatever else it waits for."""
    return head.due_at is not None and head.due_at <= timestamp(log.clock.now())


def moved(log: Logbook, state: RunState, *, code: bool = True, depth: int = children_depth_max) -> bool:
    """Return whether a child that a run waits for has ended, or may be gone on with."""
    return depth > 0 and any(
        head.status in TERMINAL or ready(log, head, code=code, depth=depth - 1) for head in awaited_children(log, state)
    )


def awaited_children(log: Logbook, state: RunState) -> Iterator[Head]:
    """Yield the children that a run waits for, each as the newest run of its line."""
    for wait in state.status.waits:
        if wait["kind"] == "child" and (head := newest(log, wait["id"])) is not None:
            yield head


class Leaf(NamedTuple):
    """What a run waits for in the end: a wait of its own, or of a run below it, whose id and state stand here."""

    run_id: str
    state: RunState
    wait: dict[str, Any]


def leaves(log: Logbook, state: RunState, depth: int = children_depth_max) -> Iterator[Leaf]:
    """Yield what a run waits for; in the place of a child that waits, what that one waits for."""
    for wait in state.status.waits:
        head = newest(log, wait["id"]) if wait["kind"] == "child" and depth else None
        if head is None or head.status != "waiting":
            yield Leaf(state.run_id, state, wait)
        else:
            yield from leaves(log, log.fold(RunState, head.run_id, at=head.head_seq), depth - 1)


def failed_below(log: Logbook, state: RunState) -> tuple[str, ...]:
    """Return the children of whose failure a run was told since a step was last complete, and that stand so still."""
    ended = [run_id for run_id, each in state.children.known.items() if each.ended_seq > state.steps.last_done]
    heads = [head for run_id in ended if (head := newest(log, run_id)) is not None]
    down = [head.run_id for head in heads if head.status in ("failed", "cancelled")]
    return tuple(run_id for run_id in down if taken_down_by(log, run_id) is None)


def waits_told(log: Logbook, state: RunState, db: str) -> tuple[list[dict[str, Any]], list[Awaited]]:
    """Return what a run waits for, {kind, id, action, …}, with the id of the run below it that asks; and in words."""
    waits, found = list[dict[str, Any]](), list[Awaited]()
    for leaf in leaves(log, state):
        wait = told(log, leaf.state, leaf.wait) | ({} if leaf.state is state else {"run_id": leaf.run_id})
        words = awaited(leaf.run_id, leaf.state, wait, db=db)
        waits.append(wait)
        found.append(words._replace(what=in_words(log, words.id)) if words.kind == "child" else words)
    return waits, found


def not_due_below(log: Logbook, state: RunState) -> RunNotDue | None:
    """Return what is told of a run that waits, itself and below it, for times alone; None if somebody is asked."""
    dues = list[str]()
    for leaf in leaves(log, state):
        head = newest(log, leaf.wait["id"]) if leaf.wait["kind"] == "child" else None
        scheduled = head is not None and head.status == "scheduled_retry"
        due = leaf.state.status.due_at if leaf.wait["kind"] == "timer" else head.due_at if scheduled and head else None
        if due is None:
            return None
        dues.append(due)
    if not dues:
        return None
    _, found = waits_told(log, state, "")
    return RunNotDue(state.run_id, min(dues), f"it waits for {'; '.join(each.what for each in found)}")


def in_words(log: Logbook, run_id: str) -> str:
    """Return where a child stands that a run waits for, in words."""
    head = newest(log, run_id)
    if head is None:
        return f"its child {run_id}, which isn't in this store"
    words = {
        "queued": "which is queued: run it, or the agent isn't known here",
        "running": f"which {head.owner} is running",
        "scheduled_retry": f"whose next round is due at {head.due_at}",
    }
    return f"its child {head.run_id}, {words.get(head.status, f'which is {head.status}')}"


def resumed(log: Logbook, state: RunState, *, code: str | None, only_new: bool) -> Literal["code", "child"] | None:
    """Return why a run that waits may be claimed though nothing has woken it; None if it may not.

    A child that it waits for has ended, or may be gone on with; or other code has stopped it. Raises RunNotDue.
    """
    if moved(log, state, code=not only_new):
        return "child"
    if (later := not_due_below(log, state)) is not None:
        raise later
    if code is None or state.stands != "code" or (only_new and code in state.status.stopped_codes):
        return None
    return "code"


# What children cost.


def spent_by(log: Logbook, run_id: str) -> dict[str, Any]:
    """Return what a line of runs up to one of them has spent, with all below it, each run once: {usd, tokens}."""
    runs = dict.fromkeys([*naming.members(log.store, run_id), *(head.run_id for head in below_line(log, run_id))])
    usd, tokens = "0", 0
    for each in runs:
        costs: Costs = folding.load(log.store, log.store, each, log.head(each).head_seq)[0].costs
        usd, tokens = add(usd, format(costs.amount("USD"), "f")), tokens + costs.tokens()
    return {"usd": format(Decimal(usd), "f"), "tokens": tokens}
