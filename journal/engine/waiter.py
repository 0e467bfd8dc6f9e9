"""Waiting, in the core of a run: in this process while anything else of the step can go on, then without it.

The rules: engine.md W2 (when a run waits) and W20 (what is due).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runjournal.log import events as e
from runjournal.log.base import Event
from runjournal.log.clock import parse_timestamp, timestamp

from . import failures as f
from .commands import Verb
from .order import TellingOrder
from .script import Awaiting, Entry


class Waiter:
    """How the verbs of one run wait for what isn't there yet: an answer, a word, a signal, a time."""

    def __init__(self, order: TellingOrder) -> None:
        self.core = order.core
        self.order = order

    def left_s(self, due_at: str | None) -> float:
        """Return how many seconds there are until a time; 0 if it has come, or none is set."""
        if due_at is None:
            return 0.0
        return max(0.0, (parse_timestamp(due_at) - self.core.lineage.clock.now()).total_seconds())

    def wait_for(self, entry: Entry, *awaited: Awaiting) -> Verb[None]:
        """Wait until one of these has come, or is due.

        The run waits, for all that this step waits for, once nothing else can go on: no call is in flight, and nobody
        was just told something.
        """
        core = self.core
        entry.awaited += awaited
        core.driver.settle()
        try:
            while not self._come(awaited):
                dues = [each.due_at for each in awaited if each.due_at is not None]
                left = self.left_s(min(dues)) if dues else None
                yield from core.until(lambda: self._come(awaited) or self.order.idle(entry), left)
                if not self._come(awaited) and (core.driver.alone() or self.order.idle(entry)):
                    yield from self._suspend(entry)
        finally:
            for each in awaited:
                entry.awaited.remove(each)

    def _come(self, awaited: Sequence[Awaiting]) -> bool:
        state, now = self.core.state, None
        for each in awaited:
            if state.answered({"kind": each.kind, "id": each.id}):
                return True
            if each.due_at is not None:
                now = now or timestamp(self.core.lineage.clock.now())
                if each.due_at <= now:
                    return True
        return False

    def _suspend(self, entry: Entry) -> Verb[None]:
        """Let the run wait for all that its step waits for and hasn't got."""
        left = [each for each in entry.awaited if not self._come([each])]
        waits = [{"kind": each.kind, "id": each.id} for each in left]
        dues = [each.due_at for each in left if each.due_at is not None]
        yield from self.wait(waits, due_at=min(dues) if dues else None)

    def wait(self, waits: list[dict[str, Any]], *before: Event, due_at: str | None = None) -> Verb[None]:
        """Record the wait; people are told behind it. The lease goes back, the step stays open.

        It is over at `due_at` (UTC text), or when the time of its first question is, though nothing has come.
        """
        known = self.core.state.approvals.known
        times = [due_at, *(known[wait["id"]].expires_at for wait in waits if wait["id"] in known)]
        times += [event.expires_at for event in before if isinstance(event, e.ApprovalRequested)]
        yield from self.core.append(*before, e.RunWaiting(waits, min(filter(None, times), default=None)))
        self.core.halt(f.Suspend(", ".join(str(wait["id"]) for wait in waits)))
