"""Budgets: what a run may cost, checked before it is claimed, before each step and before each paid call."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

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


def exceeded(state: RunState, now: str, *, step: bool = False, paid: bool = False) -> Exceeded | None:
    """Return what of the run's budget is used up at a time (UTC text), or None.

    `step`: a new step is about to begin; `paid`: a model is about to be asked, which may not spend what is reserved for
    children. Money and tokens are lower bounds where calls told no cost or no usage, so a run may go over by what is
    unknown. What children have spent that have ended counts as spent.
    """
    budget = state.status.budget or {}
    spent = state.costs.amount("USD") + Decimal(state.children.usd)
    if paid:
        spent += state.children.reserved("usd")
    if "usd" in budget and spent >= Decimal(budget["usd"]):
        return Exceeded("budget", f"{spent} USD are spent, the budget is {budget['usd']}")
    tokens = state.costs.tokens() + state.children.tokens + (int(state.children.reserved("tokens")) if paid else 0)
    if "tokens" in budget and tokens >= budget["tokens"]:
        return Exceeded("budget", f"{tokens} tokens are spent, the budget is {budget['tokens']}")
    if "seconds" in budget and state.status.started_at is not None:
        took_s = (parse_timestamp(now) - parse_timestamp(state.status.started_at)).total_seconds()
        if took_s >= budget["seconds"]:
            return Exceeded("budget", f"{took_s:.0f} seconds have passed, the budget is {budget['seconds']}")
    if step and "steps" in budget and state.steps.completed_count >= budget["steps"]:
        return Exceeded("step_cap", f"{state.steps.completed_count} steps are done, the budget is {budget['steps']}")
    return None


def left_for_children(state: RunState, wanted: Mapping[str, Any] | None) -> str | None:
    """Return why a run's budget has nothing left for a child that wants this much; None if it has."""
    budget = state.status.budget or {}
    spent = {
        "usd": state.costs.amount("USD") + Decimal(state.children.usd),
        "tokens": Decimal(state.costs.tokens() + state.children.tokens),
    }
    for what, used in spent.items():
        if what in budget:
            left = Decimal(str(budget[what])) - used - state.children.reserved(what)
            asked = Decimal(str((wanted or {}).get(what, 0)))
            if asked > left:
                return f"a child wants {asked:f} {what}, and the budget of the run has {max(left, Decimal(0)):f} left"
    return None
