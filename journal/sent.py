"""What a run has sent: what whoever abandons a part of it must know, since it can be sent again (engine.md V11)."""

from __future__ import annotations

from typing import NamedTuple

from runjournal.log import events as e
from runjournal.log.base import Json
from runjournal.log.policies import EFFECT_FREE, REPEATABLE

from . import naming
from .logbook import Logbook


class SentCall(NamedTuple):
    """A call that has happened, or may have: `known` says which. `seq` is that of its first attempt, in `run_id`."""

    run_id: str
    seq: int
    step: str
    call_id: str
    tool: str
    args: Json
    at: str
    known: bool


def sent_by(log: Logbook, run_id: str) -> list[SentCall]:
    """Return the calls that a run and those of its line before it have sent, in their order.

    Calls that only look, and those that did nothing, are left out.
    """
    found: dict[str, SentCall] = {}
    maybe: dict[str, set[int]] = {}
    for member in naming.members(log.store, run_id):
        step = ""
        for record in log.events(member, types=_TYPES):
            match record.event:
                case e.StepStarted(id=step):
                    continue
                case e.ToolStarted() as call if call.policy not in EFFECT_FREE:
                    attempts = maybe.setdefault(call.call_id, set())
                    if call.policy not in REPEATABLE:  # a transaction that has no end did nothing
                        attempts.add(call.attempt)
                    mine = SentCall(
                        member, record.seq, step, call.call_id, call.tool, call.args, record.at, known=False
                    )
                    found.setdefault(call.call_id, mine)
                case e.ToolCompleted() as end if end.call_id in found:
                    found[end.call_id] = found[end.call_id]._replace(known=True)
                case e.ToolFailed(did_not_happen=True) as end:
                    maybe.get(end.call_id, set()).discard(end.attempt)
                case e.ToolResolved() as word if word.call_id in found:
                    if word.outcome == "happened":
                        found[word.call_id] = found[word.call_id]._replace(known=True)
                    elif word.outcome in ("did_not_happen", "retry"):
                        kept = {
                            n for n in maybe[word.call_id] if (n != word.attempt if word.late else n > word.attempt)
                        }
                        maybe[word.call_id] = kept
                case _:
                    pass
    return [call for call_id, call in found.items() if call.known or maybe[call_id]]


_TYPES = ("step.started", "tool.started", "tool.completed", "tool.failed", "tool.resolved")
