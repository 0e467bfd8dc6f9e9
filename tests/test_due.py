"""A run that waits for a time: engine.md W20, W21."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runjournal import Journal, Run, RunNotDue
from runjournal.engine import failures as f
from runjournal.log import events as e
from runjournal.log.clock import FakeClock, timestamp
from runjournal.log.errors import InvalidArgument


def held(journal: Journal, after_s: float) -> str:
    """A run that waits for nothing but a time, which is so far away."""
    journal.enqueue("agent", run_id="r")
    claim = journal.claim("r")
    assert claim is not None
    due = timestamp(journal.clock.now() + timedelta(seconds=after_s))
    journal.append("r", [e.RunWaiting([{"kind": "timer", "id": "t"}], due)], epoch=claim.epoch)
    return due


def agent(run: Run) -> str:
    return "done"


def test_a_run_that_waits_for_a_time_says_when_it_goes_on() -> None:
    """Whoever runs it gets the run, the time and the cause, and nothing is claimed."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        due = held(journal, 100)
        with pytest.raises(RunNotDue) as raised:
            journal.run(agent, run_id="r")
        assert ("r", due) == (raised.value.run_id, raised.value.due_at)
        assert due in raised.value.cause
        assert "waiting" == journal.head("r").status
        journal.clock.sleep(101)
        assert "done" == journal.run(agent, run_id="r")


def test_whoever_runs_it_may_wait_for_the_time() -> None:
    """With `wait_s` the process sleeps until then, and goes on; a time that is further away is told at once."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        held(journal, 100)
        before = journal.clock.now()
        with pytest.raises(RunNotDue):
            journal.run(agent, run_id="r", wait_s=50)
        assert (journal.clock.now() - before).total_seconds() < 10
        assert "done" == journal.run(agent, run_id="r", wait_s=200)


def test_a_round_is_waited_for_too() -> None:
    """A transient failure that leaves the agent ends a round; with `wait_s` the next one follows in this process."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        rounds: list[int] = []

        def flaky(run: Run) -> int:
            rounds.append(1)
            if len(rounds) < 3:
                raise f.Transient("busy")
            return len(rounds)

        assert 3 == journal.run(flaky, run_id="r", wait_s=60)


def test_how_long_to_wait_is_a_number_of_seconds() -> None:
    """Anything else is refused before the run is looked at."""
    with Journal.open("memory:", clock=FakeClock()) as journal, pytest.raises(InvalidArgument, match="wait_s"):
        journal.run(agent, run_id="r", wait_s=float("nan"))
