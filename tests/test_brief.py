"""The brief of a run: its plan as text for a model, told again as it was. engine.md G5."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runjournal import AsyncJournal, AsyncRun, Journal, Run, RunWaiting
from runjournal.log.clock import FakeClock
from runjournal.log.limits import brief_tasks_max

PLAN: list[dict[str, Any]] = [
    {"id": "1", "title": "read", "status": "done"},
    {"id": "2", "title": "think", "status": "todo"},
    {"id": "3", "title": "write", "status": "todo"},
]


def test_the_brief_of_a_plan() -> None:
    """What is done, what comes, the open tasks with their notes, and what is left of the budget."""

    def agent(run: Run) -> list[str]:
        told = [run.brief()]
        with run.step("s"):
            run.plan.update("2", "doing", "half of it")
            told.append(run.brief())
        return told

    with Journal.open("memory:", clock=FakeClock()) as journal:
        budget: Any = {"usd": "2.50", "tokens": 100, "steps": 3, "seconds": 60.0}
        first, second = journal.run(agent, plan=PLAN, budget=budget)
    left = "Budget left: 2.50 of 2.50 USD, 100 of 100 tokens, 3 of 3 steps, 60 of 60 seconds"
    assert f"1 of 3 done, next: think\n- think [todo]\n- write [todo]\n{left}" == first
    assert f"1 of 3 done, next: think\n- think [doing] (half of it)\n- write [todo]\n{left}" == second


def test_the_brief_without_a_plan_and_of_one_that_is_done() -> None:
    """It says so; of a long plan the first open tasks are listed."""

    def agent(run: Run) -> str:
        return run.brief()

    with Journal.open("memory:") as journal:
        assert "No plan yet." == journal.run(agent)
        assert "1 of 1 done, nothing is left to do" == journal.run(agent, plan=PLAN[:1])
        many = [{"id": str(n), "title": f"t{n}", "status": "todo"} for n in range(brief_tasks_max + 2)]
        told = journal.run(agent, plan=many).splitlines()
    assert (brief_tasks_max + 2, "- … and 2 more") == (len(told), told[-1])


def test_a_step_that_is_entered_again_is_told_the_same_brief() -> None:
    """A crash inside a step changes no brief of that attempt, in it or before it; the next step's says it."""
    told: list[str] = []

    def agent(run: Run) -> str:
        run.do("a", int)
        told.append(run.brief())
        with run.step("b"):
            told.append(run.brief())
            run.model("m", {"prompt": told[-1]}, lambda _: {"text": "x", "usage": {"input": 10, "output": 5}})
            if len(told) < 4:
                raise KeyboardInterrupt
        told.append(run.brief())
        return "done"

    with Journal.open("memory:", clock=FakeClock()) as journal:
        with pytest.raises(KeyboardInterrupt):
            journal.run(agent, run_id="r", plan=PLAN, budget={"tokens": 100})
        journal.clock.sleep(7200)
        assert "done" == journal.run(agent, run_id="r")
    assert {told[0]} == set(told[:4])
    assert "Resumed reopened, behind step a; it had stood still for 2.0 h: its process let it go" in told[4]
    assert "85 of 100 tokens" in told[4]


def test_a_retry_that_enters_a_step_again_is_told_the_same_brief() -> None:
    """The attempt began in the run before it: so did its brief."""
    told: list[str] = []

    def agent(run: Run) -> str:
        if not run.done("a"):
            with run.step("a"):
                run.model("m", {"prompt": "x"}, lambda _: {"text": "x", "usage": {"input": 10, "output": 5}})
        with run.step("b"):
            told.append(run.brief())
            if run.id == "r":
                run.ask("go on?")
        told.append(run.brief())
        return "done"

    with Journal.open("memory:") as journal:
        with pytest.raises(RunWaiting):
            journal.run(agent, run_id="r", plan=PLAN, budget={"tokens": 100})
        journal.cancel("r")
        assert "done" == journal.run(agent, run_id="r", retry=True)
    assert told[0] == told[1]
    assert "85 of 100 tokens" in told[1]


def test_an_asyncio_agent_is_briefed_and_what_nobody_knows_is_told() -> None:
    """The same text under asyncio; the check of an agent's code briefs it as the log has it."""
    told: list[str] = []

    async def agent(run: AsyncRun) -> str:
        for name in ("a", "b"):
            async with run.step(name):
                told.append(run.brief())
                await run.model("m", {"prompt": told[-1]}, lambda _: {"text": "x"})
                if len(told) == 1:
                    raise KeyboardInterrupt
        return "done"

    with AsyncJournal.open("memory:", clock=FakeClock()) as journal:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(journal.run_async(agent, run_id="r", plan=PLAN))
        assert "done" == asyncio.run(journal.run_async(agent, run_id="r"))
        live = told[:]
        assert asyncio.run(journal.check_async(agent, "r")).ok
    assert live[0] == live[1] != live[2]
    assert {live[0], live[2]} == set(told)
