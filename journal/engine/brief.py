"""The brief of a run: where its plan stands, as text for a model; by the log alone, so that it is told again as it was.

The rule: engine.md G5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import NamedTuple, Protocol

from runjournal.log.clock import parse_timestamp
from runjournal.log.limits import brief_tasks_max
from runjournal.projections.findings import spoken
from runjournal.projections.plan import Task
from runjournal.projections.prompt import Prompt
from runjournal.projections.state import RunState

from .resuming import KIND_WORDS, ResumeReport, tasks_done


class BriefBasis(NamedTuple):
    """What a brief is made of, beside the plan: the state where its step began, and what its owner went on from."""

    state: RunState
    resumed: ResumeReport | None


class Past(Protocol):
    """Where the log of a run is read for what it goes on from."""

    def report(self) -> ResumeReport | None:
        """Return what the owner at work goes on from; None at the first start."""
        ...

    def prompt(self) -> Prompt:
        """Return the system prompt as it was pinned there."""
        ...

    def basis(self, state: RunState) -> BriefBasis:
        """Return what the brief of a run in this state is made of."""
        ...


def brief_text(tasks: Sequence[Task], basis: BriefBasis) -> str:
    """Return the brief of a plan: what is done, what is open, what was resumed, who is asked, what is left."""
    return "\n".join([*_plan(tasks), *_resumed(basis.resumed), *_asked(basis.state), *_left(basis.state)])


def _plan(tasks: Sequence[Task]) -> Iterator[str]:
    if not tasks:
        yield "No plan yet."
        return
    left = [task for task in tasks if task["status"] in ("doing", "todo")]
    doing = [task for task in left if task["status"] == "doing"]
    following = next(iter(doing or left), None)
    said = f", next: {following['title']}" if following else ", nothing is left to do"
    yield f"{tasks_done(tasks)} of {len(tasks)} done{said}"
    for task in left[:brief_tasks_max]:
        note = f" ({task['note']})" if task.get("note") else ""
        yield f"- {task['title']} [{task['status']}]{note}"
    if len(left) > brief_tasks_max:
        yield f"- … and {len(left) - brief_tasks_max} more"


def _resumed(report: ResumeReport | None) -> Iterator[str]:
    if report is not None:
        last = f"behind step {report.last_step}" if report.last_step else "before any step was complete"
        stood = spoken(round(report.stood_s))
        yield f"Resumed {KIND_WORDS[report.kind]}, {last}; it had stood still for {stood}: {report.why}"


def _asked(state: RunState) -> Iterator[str]:
    for question in state.approvals.open().values():
        yield f"Unanswered: {question.action}, asked at {question.asked_at}"
    for call in state.calls.unresolved().values():
        yield f"Unknown: whether {call.tool} happened, sent at {call.started_at}"


def _left(state: RunState) -> Iterator[str]:
    """What is left of the budget."""
    budget = state.status.budget or {}
    left: list[str] = []
    if "usd" in budget:
        spent = state.costs.amount("USD") + Decimal(state.children.usd) + state.children.reserved("usd")
        left.append(f"{max(Decimal(budget['usd']) - spent, Decimal(0)):f} of {budget['usd']} USD")
    if "tokens" in budget:
        used = state.costs.tokens() + state.children.tokens + int(state.children.reserved("tokens"))
        left.append(f"{max(budget['tokens'] - used, 0)} of {budget['tokens']} tokens")
    if "steps" in budget:
        left.append(f"{max(budget['steps'] - state.steps.completed_count, 0)} of {budget['steps']} steps")
    if "seconds" in budget and state.status.started_at is not None:
        took_s = (parse_timestamp(state.at) - parse_timestamp(state.status.started_at)).total_seconds()
        left.append(f"{max(budget['seconds'] - took_s, 0):.0f} of {budget['seconds']:g} seconds")
    if left:
        yield f"Budget left: {', '.join(left)}"
