"""What is in flight when a run ends: answers of models are waited for, and one that doesn't come is told of as lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from runjournal.async_journal import AsyncJournal
from runjournal.engine.failures import RunCancelled, RunFailed
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.projections.state import RunState

PAID = {"usage": {"input_tokens": 6, "output_tokens": 4}}


def group(journal: AsyncJournal, ends: asyncio.Event, begun: asyncio.Event, meanwhile: Any) -> Any:
    """An agent of a model call that ends with the event, and of what is done `meanwhile`, in a group."""

    async def slow(_: Any) -> Any:
        begun.set()
        await ends.wait()
        return PAID

    async def agent(run: Any) -> Any:
        async with run.step("work"), asyncio.TaskGroup() as tasks:
            tasks.create_task(run.model("slow", {"ask": 1}, slow))
            tasks.create_task(meanwhile(run))

    return journal.run_async(agent, run_id="r", budget={"tokens": 10})


async def spends(run: Any) -> None:
    """Use the budget up, and ask once more."""
    for ask in range(2):
        await run.model("fast", {"ask": ask}, lambda _: PAID)


async def is_cancelled(run: Any) -> None:
    """Be told to end now, and ask once more."""
    run.journal.cancel("r", mode="now")
    await run.model("fast", {}, lambda _: PAID)


@pytest.mark.parametrize(("meanwhile", "raised", "end"), [
    (spends, RunFailed, "run.failed"), (is_cancelled, RunCancelled, "run.cancelled"),
])  # fmt: skip
@pytest.mark.parametrize("comes", [True, False])
def test_an_answer_in_flight_is_waited_for(meanwhile, raised, end, comes, monkeypatch):
    """It is on record before the end; one that isn't there after the grace counts as lost, once in the line."""

    async def main() -> None:
        ends, begun = asyncio.Event(), asyncio.Event()
        with AsyncJournal.open("memory:", grace_s=60.0 if comes else 0.01) as journal:

            async def doing(run: Any) -> None:
                await begun.wait()
                asyncio.get_running_loop().call_later(0.05, ends.set if comes else int)
                monkeypatch.setattr(type(run), "journal", journal, raising=False)
                await meanwhile(run)

            with pytest.raises(raised):
                await group(journal, ends, begun, doing)
            types = [record.type for record in journal.events("r")]
            lines = journal.state("r").costs.lines
            outcomes = {outcome: line["calls"] for outcome, line in lines["slow"].items()}
            assert (end, {"completed" if comes else "lost": 1}) == (types[-1], outcomes)
            if not comes:
                assert lines["slow"]["lost"]["without_usage"] == lines["slow"]["lost"]["unpriced"] == 1
                ends.set()

                async def again(run: Any) -> Any:
                    async with run.step("work"):
                        await run.model("slow", {"ask": 1}, lambda _: PAID)

                with suppress(RunFailed):
                    await journal.run_async(again, run_id="r", retry=True, kind="agent")
                costs = journal.state("r").costs
                assert {"completed"} == set(costs.lines["slow"])

    asyncio.run(main())


STARTED = [e.StepStarted(0, "a", "a", "once", 1, 1), e.ModelStarted("c", "m", "h", 1)]


@pytest.mark.parametrize("end", [
    [e.RunCancelled("")], [e.RunFailed({"type": "X", "message": ""}, [], "error")], [e.RunCompleted(None)],
    [e.StepCompleted(0)], [e.StepCompleted(0), e.RunCompleted(None)],
])  # fmt: skip
def test_an_answer_that_nobody_will_hear_of_is_counted(end):
    """However the run or the step ends, the ledger says that there was a call whose cost nobody knows; once."""
    with Journal.open("memory:") as journal:
        journal.enqueue("k", run_id="r")
        claim = journal.claim("r")
        assert claim is not None
        journal.append("r", [*STARTED, *end], epoch=claim.epoch)
        costs = journal.fold(RunState, "r").costs
        assert (1, 1) == (costs.lines["m"]["lost"]["calls"], costs.count("unpriced"))
