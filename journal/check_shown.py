"""What an agent whose code is checked was shown of an attempt of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from runjournal.log import events as e
from runjournal.log.base import RecordedEvent

from .check_words import id_in

CONTEXT: Final = (
    e.MessageAppended, e.MemorySet, e.MemoryDeleted, e.MemoryReset, e.PlanSet, e.PlanUpdated, e.SignalTaken,
)  # fmt: skip
"""What a step writes into the context, and takes from its inbox."""
ASKS: Final = (e.ToolStarted, e.ModelStarted, e.ApprovalRequested, e.ChildSpawned)


@dataclass(slots=True)
class Shown:
    """An attempt of a step that the agent was shown, up to its `end`; None where the log ends in it.

    `writes` is what its last entry wrote into the context, `asks` are its calls and questions by id, `ended` the calls
    of models among them that have an end, `cut`: an asker was cancelled in it.
    """

    step: str
    seq: int
    end: RecordedEvent | None = None
    writes: list[RecordedEvent] = field(default_factory=list[RecordedEvent])
    asks: dict[str, RecordedEvent] = field(default_factory=dict[str, RecordedEvent])
    ended: set[str] = field(default_factory=set[str])
    cut: bool = False

    def note(self, record: RecordedEvent) -> None:
        """Note an event of the attempt."""
        event = record.event
        if isinstance(event, e.StepStarted):  # what an entry before wrote was dropped
            self.writes.clear()
        elif isinstance(event, CONTEXT) and not isinstance(event, e.SignalTaken):
            self.writes.append(record)
        elif isinstance(event, ASKS):
            self.asks.setdefault(id_in(event), record)
        elif isinstance(event, e.ModelCompleted | e.ModelFailed):
            self.ended.add(event.call_id)
        self.cut |= bool(getattr(event, "cut", False)) or getattr(event, "code", None) == "cut"
