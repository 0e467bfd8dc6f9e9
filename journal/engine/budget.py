"""Budgets: what a run may cost, checked before it is claimed, before each step and before each paid call."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple, TypedDict

from runjournal.log.clock import parse_timestamp
from runjournal.projections.state import RunState


class Budget(TypedDict, total=False):
    """What a run may cost: money as decimal text, tokens in and out together, steps, seconds since it first began."""

    usd: str
    tokens: int
    steps: int
    seconds: float


class Exceeded(NamedTuple):
    """Why a run must stop: `cause` is that of its run.failed, `budget` or `step_cap`."""

    cause: str
    message: str

    @property
    def error(self) -> dict[str, str]:
        """Return the error of the run.failed."""
        return {"type": "BudgetExceeded", "message": self.message}


def exceeded(state: RunState, now: str, *, step: bool = False) -> Exceeded | None:
    """Return what of the run's budget is used up at a time (UTC text), or None. `step`: a new step is about to begin.

    Money and tokens are lower bounds where calls told no cost or no usage, so a run may go over by what is unknown.
    """
    budget = state.status.budget or {}
    spent = state.costs.amount("USD")
    if "usd" in budget and spent >= Decimal(budget["usd"]):
        return Exceeded("budget", f"{spent} USD are spent, the budget is {budget['usd']}")
    tokens = state.costs.tokens()
    if "tokens" in budget and tokens >= budget["tokens"]:
        return Exceeded("budget", f"{tokens} tokens are spent, the budget is {budget['tokens']}")
    if "seconds" in budget and state.status.started_at is not None:
        took_s = (parse_timestamp(now) - parse_timestamp(state.status.started_at)).total_seconds()
        if took_s >= budget["seconds"]:
            return Exceeded("budget", f"{took_s:.0f} seconds have passed, the budget is {budget['seconds']}")
    if step and "steps" in budget and state.steps.completed_count >= budget["steps"]:
        return Exceeded("step_cap", f"{state.steps.completed_count} steps are done, the budget is {budget['steps']}")
    return None
