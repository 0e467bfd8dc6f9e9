"""A run at a glance, and the runs below it, its sub-agents and theirs: what they have cost, and what is in flight."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple, cast

from runjournal.family import below
from runjournal.log import events as e
from runjournal.log.errors import JournalError
from runjournal.log.head import Head
from runjournal.log.limits import family_runs_max, glance_tail_events_max
from runjournal.log.store import Store
from runjournal.logbook import Logbook
from runjournal.projections.state import RunState
from runjournal.projections.status import STANDSTILLS
from runjournal.writing import checkpoints


class Glance(NamedTuple):
    """What a listing says of a run beside its head; `in_flight` counts calls of tools and of models.

    `unknown` counts calls that told not all of their tokens, `unpriced` those without a price.
    """

    tokens: int
    cost: dict[str, str]
    in_flight: int
    unknown: int = 0
    unpriced: int = 0


def glance(journal: Logbook, head: Head) -> Glance | None:
    """Return tokens, money and calls in flight of a run, or None where that would take a long fold."""
    try:
        found = checkpoints.newest(journal.store, RunState, head.run_id, head.head_seq)
        state, seq = (cast("RunState", found[0]), found[1]) if found else (RunState.initial(), 0)
        if head.head_seq - seq > glance_tail_events_max:
            return None
        state.fold(journal.store.read(head.run_id, seq, head.head_seq))
    except JournalError:
        return None
    money = {currency: str(state.costs.amount(currency)) for currency in sorted(state.costs.money)}
    in_flight = state.calls.tools.in_flight + state.calls.models.in_flight
    return Glance(state.costs.tokens(), money, in_flight, state.costs.unknown(), state.costs.unpriced())


def stands(store: Store, head: Head) -> str:
    """Return the words for a run that stands still, "" for any other; its wait is among its newest events."""
    if head.status != "waiting":
        return ""
    for record, _ in zip(store.read_back(head.run_id, head.head_seq + 1), range(glance_tail_events_max), strict=False):
        if isinstance(record.event, e.RunWaiting):
            return next((STANDSTILLS[wait["kind"]] for wait in record.event.for_ if wait["kind"] in STANDSTILLS), "")
    return ""


class Family(NamedTuple):
    """What the runs below a run come to, as of now.

    `runs` says how many there are, `more` that there are others beyond `family_runs_max`. `uncounted` of them would
    take a long fold each: their tokens, money and calls are in no sum.
    """

    runs: int
    tokens: int
    cost: dict[str, str]
    in_flight: int
    uncounted: int
    more: bool


def family(journal: Logbook, run_id: str) -> Family:
    """Return the sums over the runs below a run, by their `parent_run_id`; the run's own are left out."""
    runs = tokens = in_flight = uncounted = 0
    money: dict[str, Decimal] = {}
    for head in below(journal, run_id):
        if runs == family_runs_max:
            return Family(runs, tokens, _text(money), in_flight, uncounted, more=True)
        runs += 1
        seen = glance(journal, head)
        if seen is None:
            uncounted += 1
            continue
        tokens, in_flight = tokens + seen.tokens, in_flight + seen.in_flight
        for currency, amount in seen.cost.items():
            money[currency] = money.get(currency, Decimal(0)) + Decimal(amount)
    return Family(runs, tokens, _text(money), in_flight, uncounted, more=False)


def _text(money: dict[str, Decimal]) -> dict[str, str]:
    return {currency: str(money[currency]) for currency in sorted(money)}
