"""The children of a run: the runs that it began, and what its agent was told of each.

What a child is now stands in its own log. Here is what this run has on record: which runs it began, by which ask, and
the ends that its agent was told. What is told in the open attempt of a step is its history, as with calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Final

from runjournal.log import events as e
from runjournal.log.base import Event, RecordedEvent
from runjournal.log.limits import children_kept_max, int_max

from .costs import add

REFUSED: Final = "child_refused"
"""The code of a note: the budget had nothing left for a child, and the agent was told so."""
LEFT: Final = "child_left"
"""The code of a note: who waited for a child was cancelled, and the child hadn't ended."""


def child_key(child_run_id: str) -> str:
    """Return what stands for a child beside the ids of calls and questions, none of which it can be."""
    return f"child {child_run_id}"


@dataclass(slots=True)
class Child:
    """A run that this one began: by which ask, and its newest end that was told.

    `told` are the places of the ends that were told in the open attempt. `settled`: it is of the run that a fork goes
    on from, and stays what it was there.
    """

    kind: str
    call_id: str = ""
    status: str = "running"
    ended_seq: int = 0
    agent: str | None = None
    budget: dict[str, Any] = field(default_factory=dict[str, Any])
    spent: dict[str, Any] = field(default_factory=dict[str, Any])
    told: list[int] = field(default_factory=list[int])
    settled: bool = False


@dataclass(slots=True)
class Children:
    """The children of a run, in the order in which they were begun; those that run are always known.

    `told` are places of notes of the open attempt, by what they are about: an ask that was refused, or a child whose
    asker was cancelled. `begun` are the children that the open attempt has begun. `usd` and `tokens` are what children
    have spent that have ended.
    """

    VERSION: ClassVar[int] = 1

    known: dict[str, Child] = field(default_factory=dict[str, Child])
    told: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    begun: list[str] = field(default_factory=list[str])
    count: int = 0
    usd: str = "0"
    tokens: int = 0
    _by_call: dict[str, str] = field(default_factory=dict[str, str], compare=False)
    _heard: list[str] = field(default_factory=list[str], compare=False)  # the children with ends in the history

    @property
    def statuses(self) -> dict[str, str]:
        """Return {run id: status}, of what was told."""
        return {child_id: child.status for child_id, child in self.known.items()}

    def of_call(self, call_id: str) -> str | None:
        """Return the child that was begun by an ask, None if none was."""
        return self._by_call.get(call_id)

    def history(self, about: str) -> list[int]:
        """Return the places of what the open attempt was told about a child's key, or about an ask, in order."""
        child = self.known.get(about.removeprefix(child_key("")))
        return sorted([*(child.told if child is not None else ()), *self.told.get(about, ())])

    def asked(self) -> dict[str, Child]:
        """Return the children that the open attempt has begun, by the ids of their asks."""
        begun = (self.known[child_id] for child_id in self.begun if child_id in self.known)
        return {child.call_id: child for child in begun if child.call_id}

    def reserved(self, what: str) -> Decimal:
        """Return what is reserved for children that haven't ended, `usd` or `tokens`."""
        running = (child for child in self.known.values() if child.status == "running")
        return sum((Decimal(str(child.budget.get(what, 0))) for child in running), Decimal(0))

    # Folding.

    def on_spawned(self, _: RecordedEvent, event: e.ChildSpawned) -> None:
        """Add a child."""
        known = Child(event.kind, event.call_id or "", agent=event.agent, budget=event.budget or {})
        self.known[event.child_run_id] = known
        self.begun.append(event.child_run_id)
        if known.call_id:
            self._by_call[known.call_id] = event.child_run_id
        self.count += 1
        self._bound()

    def on_finished(self, record: RecordedEvent, event: e.ChildFinished) -> None:
        """Keep an end that the agent is told: what was spent until then is all that its line has spent."""
        child = self.known.get(event.child_run_id)
        if child is None:  # one that was forgotten, or begun by another run of the line
            child = self.known[event.child_run_id] = Child("", spent=event.spent or {})
        elif event.spent is not None:
            before = child.spent or {"usd": "0", "tokens": 0}
            self.usd = add(add(self.usd, event.spent["usd"]), format(-Decimal(before["usd"]), "f"))
            self.tokens = min(self.tokens + event.spent["tokens"] - before["tokens"], int_max)
            child.spent = event.spent
        child.status, child.ended_seq = event.status, record.seq
        child.told.append(record.seq)
        self._heard.append(event.child_run_id)
        self._bound()

    def on_note(self, record: RecordedEvent, event: e.NoteAdded) -> None:
        """Keep what the agent is told by a note."""
        if event.code in (REFUSED, LEFT) and event.call_id:
            self.told.setdefault(event.call_id, []).append(record.seq)

    def on_waiting(self, _: RecordedEvent, event: e.RunWaiting) -> None:
        """The run waits for a child: what was told of it before is not what it waits for."""
        for wait in event.for_:
            if wait["kind"] == "child" and (child := self.known.get(wait["id"])) is not None:
                child.status = "running"

    def end_step(self) -> None:
        """End the history of an attempt."""
        for child_id in self._heard:
            if (child := self.known.get(child_id)) is not None:
                child.told = []
        self._heard, self.begun = [], []
        self._bound()
        if self.told:
            self.told = {}

    def _bound(self) -> None:
        if len(self.known) > children_kept_max:
            ended = [key for key, child in self.known.items() if child.status != "running" and not child.told]
            for key in ended[: len(self.known) - children_kept_max]:
                self._by_call.pop(self.known.pop(key).call_id, None)

    # Going on.

    def settled(self) -> Children:
        """Return what a fork knows: children that have ended, as they were told of, and none that runs."""
        return Children({
            child_id: Child(child.kind, status=child.status, ended_seq=child.ended_seq, settled=True)
            for child_id, child in self.known.items()
            if child.ended_seq
        })  # fmt: skip

    def dump(self) -> dict[str, Any]:
        """Return the fold as a JSON value."""
        known = {child_id: asdict(child) for child_id, child in self.known.items()}
        names = ("told", "begun", "count", "usd", "tokens")
        return {"known": known} | {name: getattr(self, name) for name in names}

    @classmethod
    def load(cls, data: dict[str, Any]) -> Children:
        """Return the fold that `dump` made this value of."""
        known = {child_id: Child(**child) for child_id, child in data["known"].items()}
        told = {about: list(places) for about, places in data["told"].items()}
        by_call = {child.call_id: child_id for child_id, child in known.items() if child.call_id}
        heard = [child_id for child_id, child in known.items() if child.told]
        return cls(known, told, data["begun"], data["count"], data["usd"], data["tokens"], by_call, heard)


HANDLERS: Final[Mapping[type[Event], Any]] = {
    e.ChildSpawned: Children.on_spawned,
    e.ChildFinished: Children.on_finished,
    e.NoteAdded: Children.on_note,
    e.RunWaiting: Children.on_waiting,
}
