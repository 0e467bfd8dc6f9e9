"""An event as people and programs read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runjournal.log.limits import summary_chars_max

from .formats import when
from .output import Cell

if TYPE_CHECKING:
    from runjournal.log.base import RecordedEvent


def event_row(record: RecordedEvent, *, full: bool = False) -> tuple[object, ...]:
    """An event as a row: seq, at, type, by, step, summary."""
    from .describe import event

    style = "bad" if record.type.endswith(".failed") else "good" if record.type == "run.completed" else ""
    summary = event(record, 100_000 if full else summary_chars_max)
    return (
        record.seq,
        when(record.at),
        Cell(record.type, style),
        Cell(record.by, "dim"),
        record.step,
        summary,
    )


def event_json(record: RecordedEvent) -> dict[str, Any]:
    """An event as JSON, as it is stored; what is held out of line by reference, unless it was put in place."""
    from runjournal.log.base import NewerEvent, PurgedEvent, UnknownEvent, UnreadableEvent, data_of
    from runjournal.projections.status import reference

    event = record.event
    match event:
        case UnknownEvent() | NewerEvent():
            data: Any = event.data
        case PurgedEvent():
            data = None
        case UnreadableEvent():
            data = {"unreadable": event.reason, "body_bytes": len(event.body)}
        case _:
            data = {name: reference(value) for name, value in data_of(event).items()}
    head = {name: getattr(record, name) for name in record._fields if name not in {"event", "unknown"}}
    return head | {"data": data} | ({"unknown": dict(record.unknown)} if record.unknown else {})
