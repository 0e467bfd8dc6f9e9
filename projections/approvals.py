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
    """The questions of the open step and of the last ones that failed, and every open one, by id."""

    VERSION: ClassVar[int] = 2

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

    def recallable(self, step: str) -> dict[str, dict[str, Any]]:
        """Return what a step.started can tell again of the answers to a failed step, by id; see `let_go`."""
        found = {key: each for key, each in self.known.items() if each.step == step and each.decision}
        names = [name for name in Question.__slots__ if name != "step"]
        return {
            key: {name: value for name in names if (value := getattr(each, name)) is not None}
            for key, each in found.items()
        }

    def let_go(self, step: str) -> None:
        """Forget the answers to a step that has failed long ago."""
        for key in self.recallable(step):
            del self.known[key]

    def recall(self, step: str, questions: dict[str, dict[str, Any]]) -> None:
        """Know the answers to a step again."""
        for key, question in questions.items():
            known: dict[str, Any] = {name: value for name, value in question.items() if name in Question.__slots__}
            known["step"] = step
            self.known.setdefault(key, Question(**known))

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
