"""Signals that have arrived and that no completed step has taken, by reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from runjournal.log import events as e
from runjournal.log.base import Event, RecordedEvent


@dataclass(slots=True)
class Inbox:
    """The inbox of a run: `signals` are [seq, signal_id, name], oldest first."""

    VERSION: ClassVar[int] = 2

    signals: list[list[Any]] = field(default_factory=list[list[Any]])

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

    def dump(self) -> dict[str, Any]:
        """Return the fold as a JSON value."""
        return {"signals": self.signals}

    @classmethod
    def load(cls, data: dict[str, Any]) -> Inbox:
        """Return the fold that `dump` made this value of."""
        return cls(**data)


HANDLERS: Final[Mapping[type[Event], Any]] = {
    e.SignalReceived: Inbox.on_signal,
}
