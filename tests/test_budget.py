"""Budgets end a run before the next paid call or step; heartbeats keep a lease as long as an agent works."""

from __future__ import annotations

import threading
from decimal import Decimal

import pytest

from runjournal.engine.failures import RunFailed, StepFailed
from runjournal.engine.tools import tool
from runjournal.journal import Journal
from runjournal.log.errors import InvalidArgument
from runjournal.log.limits import lease_s
from runjournal.projections.usage import measure
from runjournal.writing import leases


def spend(run):
    """An agent that asks a model four times, each time for 10 tokens."""
    for turn in range(4):
        with run.step("ask", key=turn):
            run.model("m", {"turn": turn}, lambda _: {"usage": {"input_tokens": 6, "output_tokens": 4}})
    return "done"


@pytest.mark.requirement("R122")
@pytest.mark.parametrize(
    ("budget", "cause", "asked"),
    [({"tokens": 20}, "budget", 2), ({"steps": 3}, "step_cap", 3), ({"tokens": 41}, None, 4), ({"usd": "1"}, None, 4)],
)
def test_a_budget_ends_the_run_before_the_next_paid_call(budget, cause, asked):
    """What is used up ends the run, with its cause, before more is spent; within its budget it completes."""
    with Journal.open("memory:") as journal:
        if cause is None:
            assert "done" == journal.run(spend, run_id="r", budget=budget)
        else:
            with pytest.raises(RunFailed) as told:
                journal.run(spend, run_id="r", budget=budget)
            assert cause == told.value.cause
        assert asked == journal.state("r").calls.models.completed


@pytest.mark.requirement("R121")
def test_a_step_cap_is_its_own_cause():
    """A run that has done its number of steps fails as `step_cap`."""
    with Journal.open("memory:") as journal, pytest.raises(RunFailed, match="step_cap"):
        journal.run(spend, run_id="r", budget={"steps": 1})


@pytest.mark.requirement("R45")
def test_a_heartbeat_extends_the_lease_while_an_agent_works(monkeypatch):
    """While an agent works its lease is extended; when it has ended the heartbeat is gone."""
    monkeypatch.setattr(leases, "heartbeat_s", 0.01)
    with Journal.open("memory:") as journal:

        def agent(run):
            first = journal.head(run.id)
            while journal.head(run.id).lease_until == first.lease_until:
                threading.Event().wait(0.01)
            return [first.lease_until, journal.head(run.id).lease_until, first.owner]

        before, after, who = journal.run(agent, run_id="r")
        assert (True, True, journal.by) == (before < after, after - before < lease_s, who)
    assert [] == [thread for thread in threading.enumerate() if thread.name == "runjournal-heartbeat"]


@pytest.mark.parametrize(("told", "cached", "counted"), [(10, 4, (6, 4)), (4, 4, (0, 4)), (3, 5, (3, 5))])
def test_cached_tokens_are_taken_off_the_input_and_never_make_it_less_than_nothing(told, cached, counted):
    """A client that counts its cached tokens beside its input, and not in it, doesn't make the usage unknown."""
    usage = measure({"prompt_tokens": told, "prompt_tokens_details": {"cached_tokens": cached}})
    assert usage is not None
    assert counted == (usage["input"], usage["cache_read"])


def ended(journal):
    """(type, usage, cost) of each end of a model call."""
    records = journal.events("r", types=("model.completed", "model.failed"))
    return [(each.type, each.event.usage and each.event.usage["input"], each.event.cost) for each in records]


def asking(call, **how):
    """An agent that asks a model once."""
    return lambda run: run.do("ask", lambda: run.model("m", {"ask": 1}, call, **how))


@pytest.mark.requirement("R10")
@pytest.mark.parametrize(
    ("answer", "how", "amount"),
    [
        ({"cost": {"amount": "0.0125", "currency": "USD"}}, {}, "0.0125"),
        ({"cost": {"amount": 0.1, "currency": "USD"}}, {}, "0.1"),
        ({"price": 3}, {"cost": lambda a: {"amount": Decimal(a["price"]), "currency": "USD"}}, "3"),
        ({"price": 3}, {"cost": lambda a: {"amount": a["nothing"], "currency": "USD"}}, None),
        ({"cost": {"amount": "much", "currency": "USD"}}, {}, None),
        ({"cost": "0.0125"}, {}, None),
        ({}, {"usage": lambda _: {"input": "many"}}, None),
        ({"usage": {"words": 3}}, {}, None),
    ],
)
def test_what_an_answer_cost_is_in_the_ledger(answer, how, amount):
    """By what it says, or by the caller's function; what these can't say is unknown, counted, and loses no answer."""
    with Journal.open("memory:") as journal:
        assert answer == journal.run(asking(lambda _: answer, **how), run_id="r")
        costs = journal.state("r").costs
        assert (Decimal(amount or 0), int(amount is None), 1) == (
            costs.amount("USD"), costs.count("unpriced"), costs.count("without_usage"),
        )  # fmt: skip


def test_a_failed_call_costs_too():
    """An answer that a check rejects, and an error that tells its usage, are in the ledger like any other."""
    usage = {"input_tokens": 7, "output_tokens": 1}
    price = {"amount": "0.5", "currency": "USD", "source": "reported"}

    overloaded = ConnectionError("no")
    overloaded.usage = {"input_tokens": 5, "output_tokens": 0}  # type: ignore[attr-defined]  # as some clients do
    turns = iter([overloaded, {"usage": usage, "cost": price, "ok": False}, {"usage": usage, "ok": True}])

    def call(_):
        turn = next(turns)
        if isinstance(turn, Exception):
            raise turn
        return turn

    with Journal.open("memory:") as journal:
        assert journal.run(asking(call, check=lambda answer: answer["ok"]), run_id="r")["ok"]
        expected = [("model.failed", 5, None), ("model.failed", 7, price), ("model.completed", 7, None)]
        assert expected == ended(journal)
        assert (Decimal("0.5"), 21) == (journal.state("r").costs.amount("USD"), journal.state("r").costs.tokens())


def test_a_lost_call_is_counted_as_unknown():
    """The process died while it waited for an answer: what that one cost nobody knows, and the ledger says so."""

    class Died(BaseException):
        pass

    def dies(_):
        raise Died

    with Journal.open("memory:") as journal:
        with pytest.raises(Died):
            journal.run(asking(dies), run_id="r")
        journal.run(asking(lambda _: {"usage": {"input_tokens": 7, "output_tokens": 1}}), run_id="r")
        costs = journal.state("r").costs
        assert (2, 1, 8) == (costs.count("calls"), costs.count("without_usage"), costs.tokens())
        assert {"completed": 1, "lost": 1} == {outcome: line["calls"] for outcome, line in costs.lines["m"].items()}


@pytest.mark.requirement("R122")
def test_a_run_whose_budget_is_used_up_is_not_claimed():
    """Between two steps it is ended by whoever comes next, who never owned it; its agent isn't called."""

    def agent(run):
        run.do("ask", lambda: run.model("m", {"ask": 1}, lambda _: {"usage": {"input_tokens": 6, "output_tokens": 4}}))
        raise KeyboardInterrupt

    called: list[object] = []
    with Journal.open("memory:") as journal:
        with pytest.raises(KeyboardInterrupt):
            journal.run(agent, run_id="r", budget={"tokens": 10})
        with pytest.raises(RunFailed, match="10 tokens are spent"):
            journal.run(called.append, run_id="r", kind="agent")
        types = [record.type for record in journal.events("r")]
        assert ([], ["run.requeued", "run.failed"]) == (called, types[-2:])


def test_what_only_looks_is_a_plain_function():
    """A check that is a coroutine function would accept everything; it is refused, as are the hooks of tools."""

    async def wrong(_):
        return False

    with Journal.open("memory:") as journal:
        for given in ("check", "into", "usage", "cost"):
            with pytest.raises(StepFailed, match=f"{given}= is a coroutine function"):
                journal.run(asking(lambda _: {}, **{given: wrong}), run_id=given)
    for given in ("reconcile", "into"):
        with pytest.raises(InvalidArgument, match=f"{given}= is a coroutine function"):
            tool(**{given: wrong})(lambda: None)  # type: ignore[call-overload]  # that is what is tested
