"""What a run has sent, and what people have answered it: what whoever abandons a part of it must know (engine.md V11).

What was sent can be sent again, and a question that was answered may not be asked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from runjournal.log import events as e
from runjournal.log.base import Json, RecordedEvent
from runjournal.log.policies import EFFECT_FREE, REPEATABLE
from runjournal.writing import folding

from . import naming
from .logbook import Logbook

T = TypeVar("T", bound="SentCall | GivenAnswer")


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


class GivenAnswer(NamedTuple):
    """What a person has answered a step that asked. `seq` is that of the question, in `run_id`.

    `edited` are the args of one who has said yes to others than were asked about, `note` is what he said with it.
    """

    run_id: str
    seq: int
    step: str
    approval_id: str
    action: str
    args: Json
    decision: str
    edited: Json
    note: str
    at: str


def answers_to(log: Logbook, run_id: str) -> list[GivenAnswer]:
    """Return what people have answered a run and those of its line before it, in the order of the questions."""
    found: dict[str, GivenAnswer] = {}
    for record, step in _told(log, run_id, _ASKING):
        match record.event:
            case e.ApprovalRequested() as asked:
                found[asked.approval_id] = GivenAnswer(
                    record.run_id, record.seq, step, asked.approval_id, asked.action, asked.args, "", None, "", ""
                )
            case e.ApprovalResolved() as said if said.approval_id in found:
                if not found[said.approval_id].decision:
                    edited = said.args if said.decision == "edited" else None
                    found[said.approval_id] = found[said.approval_id]._replace(
                        decision=said.decision, edited=edited, note=said.note or "", at=record.at
                    )
            case _:
                pass
    return [each for each in found.values() if each.decision in ("approved", "rejected", "edited")]


def redone(log: Logbook, run_id: str, base_seq: int, found: Iterable[T]) -> list[T]:
    """Return those of them whose step a fork of a run does again that goes on from one of its events."""
    members = list[str]()
    for member in reversed(naming.members(log.store, run_id)):
        members.append(member)
        queued = folding.first(log.store, member)
        if queued is not None and queued.link == "restart":  # what is before it is no step of this run's
            break

    def done(step: str) -> bool:
        ends = ((member, end) for member in members for end in log.store.step_ends(member, step))
        return any(end.ok and (member != run_id or end.seq <= base_seq) for member, end in ends)

    return [each for each in found if not done(each.step)]


def sent_by(log: Logbook, run_id: str) -> list[SentCall]:
    """Return the calls that a run and those of its line before it have sent, in their order.

    Calls that only look, and those that did nothing, are left out.
    """
    found: dict[str, SentCall] = {}
    maybe: dict[str, set[int]] = {}
    for record, step in _told(log, run_id, _SENDING):
        match record.event:
            case e.ToolStarted() as call if call.policy not in EFFECT_FREE:
                attempts = maybe.setdefault(call.call_id, set())
                if call.policy not in REPEATABLE:  # a transaction that has no end did nothing
                    attempts.add(call.attempt)
                mine = SentCall(
                    record.run_id, record.seq, step, call.call_id, call.tool, call.args, record.at, known=False
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
                    kept = {n for n in maybe[word.call_id] if (n != word.attempt if word.late else n > word.attempt)}
                    maybe[word.call_id] = kept
            case _:
                pass
    return [call for call_id, call in found.items() if call.known or maybe[call_id]]


def _told(log: Logbook, run_id: str, types: tuple[str, ...]) -> Iterator[tuple[RecordedEvent, str]]:
    """Yield the events of a run and of its line before it, of these types, each with the id of the step it came in."""
    for member in naming.members(log.store, run_id):
        step = ""
        for record in log.events(member, types=("step.started", *types)):
            if isinstance(record.event, e.StepStarted):
                step = record.event.id
            else:
                yield record, step


_ASKING = ("approval.requested", "approval.resolved")
_SENDING = ("tool.started", "tool.completed", "tool.failed", "tool.resolved")
