"""Every attempt of every call of a run, from its start to its end, read in a stream."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from runjournal.log import events as e
from runjournal.log.authority import tells_unknown
from runjournal.log.base import Json
from runjournal.log.limits import ended_attempts_held_max
from runjournal.logbook import Logbook


class CallRow(NamedTuple):
    """One attempt of a call, from its start to its end; `status` is open if it has none. `seq` is where it started.

    It is unknown if nobody knows what the attempt did, whatever it ended with.
    `value` is its args, `outcome` its result or error, each possibly a `BlobRef`; `ended_at` None while it is open.
    """

    seq: int
    call_id: str
    tool: str
    attempt: int
    step: int | None
    status: str
    started_at: str
    ended_at: str | None
    args: Json
    outcome: Json


_CALL_TYPES: Final = (
    "tool.started", "tool.completed", "tool.failed", "tool.resolved",
    "model.started", "model.completed", "model.failed",
)  # fmt: skip


def calls(journal: Logbook, run_id: str, *, upto: int | None = None, models: bool = False) -> Iterator[CallRow]:
    """Yield every attempt of every tool call, in the order of their ends, those without one last. Raises RunNotFound.

    With `models`, model calls too. A word that is said later of an attempt is a row of its own. Only what is open is
    held, and the last ones that ended.
    """
    begun: dict[tuple[str, int], CallRow] = {}
    ended: OrderedDict[tuple[str, int], CallRow] = OrderedDict()  # the last ones, for a word that comes later
    types = _CALL_TYPES if models else _CALL_TYPES[:4]
    for record in journal.events(run_id, upto=upto, types=types, blobs=False):
        event = record.event
        match event:
            case e.ToolStarted() | e.ModelStarted():
                tool, args = (event.tool, event.args) if isinstance(event, e.ToolStarted) else (event.model, None)
                row = CallRow(
                    record.seq, event.call_id, tool, event.attempt, record.step, "open", record.at, None, args, None
                )
                begun[event.call_id, event.attempt] = row
            case e.ToolCompleted() | e.ModelCompleted() | e.ToolFailed() | e.ModelFailed() | e.ToolResolved():
                place = event.call_id, event.attempt
                orphan = CallRow(record.seq, event.call_id, "", event.attempt, record.step, "", "", None, None, None)
                row = begun.pop(place) if place in begun else ended.get(place, orphan)
                if isinstance(event, e.ToolFailed) or getattr(event, "result_error", None):
                    ended[place] = row
                    if len(ended) > ended_attempts_held_max:
                        ended.popitem(last=False)
                yield row._replace(status=_ended(event), ended_at=record.at, outcome=_outcome(event))
            case _:
                pass
    yield from begun.values()


_End = e.ToolCompleted | e.ModelCompleted | e.ToolFailed | e.ModelFailed | e.ToolResolved


def _ended(event: _End) -> str:
    if isinstance(event, e.ToolResolved):
        return event.outcome
    if isinstance(event, e.ToolFailed) and (event.lost or tells_unknown(event)):
        return "unknown"
    return event.TYPE.partition(".")[2]


def _outcome(event: _End) -> Json:
    match event:
        case e.ToolCompleted():
            return event.result_error or event.result
        case e.ToolResolved():
            return event.result if event.result is not None else event.note
        case e.ModelCompleted():
            return event.usage
        case _:
            return {"type": event.error["type"], "message": event.error["message"]}
