"""Questions to people, and their answers. An answer lives as long as the step that asked; args are by reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from runjournal.log import events as e
from runjournal.log.base import Event, RecordedEvent
from runjournal.log.limits import answers_kept_max


@dataclass(slots=True)
class Question:
    """A question to a person.

    `step` and `attempt` asked it (step "" outside any). `decision` is None while it is open. `*_seq` are the events
    that hold the args.
    """

    action: str
    step: str
    attempt: int
    asked_seq: int
    asked_at: str
    tool: str | None = None
    call_id: str | None = None
    risk: str | None = None
    expires_at: str | None = None
    decision: str | None = None
    answered_seq: int | None = None


@dataclass(slots=True)
class Approvals:
    """The questions of the open step and of failed ones, and every open one, by id."""

    VERSION: ClassVar[int] = 1

    known: dict[str, Question] = field(default_factory=dict[str, Question])

    def open(self) -> dict[str, Question]:
        """Return the questions that nobody has answered, by id, in the order of asking."""
        chosen = [(question.asked_seq, key, question) for key, question in self.known.items() if not question.decision]
        return {key: question for _, key, question in sorted(chosen, key=lambda item: item[:2])}

    def ask(self, record: RecordedEvent, event: e.ApprovalRequested, step: str, attempt: int) -> None:
        """Add a question of a step."""
        self.known[event.approval_id] = Question(
            event.action, step, attempt, record.seq, record.at, event.tool, event.call_id, event.risk, event.expires_at
        )

    def on_resolved(self, record: RecordedEvent, event: e.ApprovalResolved) -> None:
        """Keep the answer to a question; the first answer counts."""
        question = self.known.get(event.approval_id)
        if question is None or question.decision:
            return
        question.decision, question.answered_seq = event.decision, record.seq
        answered = [key for key, known in self.known.items() if not known.step and known.decision]
        for key in sorted(answered, key=lambda key: self.known[key].answered_seq or 0)[:-answers_kept_max]:
            del self.known[key]

    def complete_step(self, step: str) -> None:
        """Forget the questions of a step that has completed: their answers have been used."""
        self.known = {key: question for key, question in self.known.items() if question.step != step}

    def dump(self) -> dict[str, Any]:
        """Return the fold as a JSON value."""
        return {
            "known": {
                key: {name: getattr(question, name) for name in question.__slots__}
                for key, question in self.known.items()
            }
        }

    @classmethod
    def load(cls, data: dict[str, Any]) -> Approvals:
        """Return the fold that `dump` made this value of."""
        return cls({key: Question(**question) for key, question in data["known"].items()})


HANDLERS: Final[Mapping[type[Event], Any]] = {e.ApprovalResolved: Approvals.on_resolved}
