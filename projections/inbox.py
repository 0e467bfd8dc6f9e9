"""Signals that have arrived and that no completed step has taken, by reference; and the run's children."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from runjournal.log import events as e
from runjournal.log.base import Event, RecordedEvent
from runjournal.log.limits import children_kept_max


@dataclass(slots=True)
class Inbox:
    """The inbox of a run, and its children.

    `signals` are [seq, signal_id, name], oldest first. `children` are {run id: status}, those that run first of all.
    """

    VERSION: ClassVar[int] = 1

    signals: list[list[Any]] = field(default_factory=list[list[Any]])
    children: dict[str, str] = field(default_factory=dict[str, str])
    children_count: int = 0

    def on_signal(self, record: RecordedEvent, event: e.SignalReceived) -> None:
        """Add a signal; the same id again is the same signal."""
        if all(signal[1] != event.signal_id for signal in self.signals):
            self.signals.append([record.seq, event.signal_id, event.name])

    def arrived(self, before_seq: int) -> list[list[Any]]:
        """Return the signals that had arrived before a seq."""
        return [signal for signal in self.signals if signal[0] < before_seq]

    def take(self, signal_ids: Iterable[str]) -> None:
        """Drop the signals that a completed step has taken."""
        taken = set(signal_ids)
        if taken:
            self.signals = [signal for signal in self.signals if signal[1] not in taken]

    def on_spawned(self, _: RecordedEvent, event: e.ChildSpawned) -> None:
        """Add a child."""
        self.children[event.child_run_id] = "running"
        self.children_count += 1
        self._bound()

    def on_finished(self, _: RecordedEvent, event: e.ChildFinished) -> None:
        """Note that a child has ended."""
        self.children[event.child_run_id] = event.status
        self._bound()

    def _bound(self) -> None:
        ended = [key for key, status in self.children.items() if status != "running"]
        for key in sorted(ended)[: max(0, len(self.children) - children_kept_max)]:
            del self.children[key]

    def dump(self) -> dict[str, Any]:
        """Return the fold as a JSON value."""
        return {"signals": self.signals, "children": self.children, "children_count": self.children_count}

    @classmethod
    def load(cls, data: dict[str, Any]) -> Inbox:
        """Return the fold that `dump` made this value of."""
        return cls(**data)


HANDLERS: Final[Mapping[type[Event], Any]] = {
    e.SignalReceived: Inbox.on_signal,
    e.ChildSpawned: Inbox.on_spawned,
    e.ChildFinished: Inbox.on_finished,
}
