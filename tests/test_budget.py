"""Budgets end a run before the next paid call or step; heartbeats keep a lease as long as an agent works."""

from __future__ import annotations

import threading

import pytest

from runjournal import leases
from runjournal.failures import RunFailed
from runjournal.journal import Journal
from runjournal.log.limits import lease_s


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
