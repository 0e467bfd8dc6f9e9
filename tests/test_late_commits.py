"""The asyncio driver while appends are under way: what an agent observes is the same as when each is made at once."""

import asyncio
from typing import Any

import pytest
from tasks.lab import Struck, VirtualLoop, everywhere
from tasks.late import LateCommits
from test_async_driver import AGENTS, needs

from runjournal import AsyncJournal, AsyncRun, tool
from runjournal.engine import failures as f
from runjournal.log.clock import FakeClock
from runjournal.log.memory import MemoryStore
from runjournal.looking.audit import audit_store


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[LateCommits]:
    """All that a process of the lab appends is committed late; these are the lines of them all."""
    made = list[LateCommits]()

    def sharing(store: Any) -> LateCommits:
        if not hasattr(store, "late"):
            store.late = LateCommits(store.transact, len(made))
            made.append(store.late)
        found: LateCommits = store.late
        return found

    monkeypatch.setattr(Struck, "sharing", property(sharing))
    monkeypatch.setattr(MemoryStore, "sharing", property(sharing))
    return made


@pytest.mark.parametrize("agent", AGENTS[:-1], ids=lambda agent: agent.__name__)
def test_crashed_everywhere(agent: Any, late: list[LateCommits]) -> None:
    """Always the same end, no effect twice, and nobody waits in vain: a sample of all boundaries."""
    struck = everywhere(agent, 1, 4, **needs(agent))
    assert ({"completed"}, 0) == (set(struck.outcomes), struck.waited), struck
    assert sum(each.committed for each in late) > 20


@tool(policy="keyed")
async def send(x: int, *, idempotency_key: str = "") -> int:
    return x + bool(idempotency_key)


def run_on(loop: VirtualLoop, agent: Any) -> tuple[Any, list[str]]:
    """What an agent returned on virtual time, and the types of its run's events."""
    with AsyncJournal.open("memory:", clock=FakeClock()) as journal:
        try:
            output = loop.run_until_complete(journal.run_async(agent, run_id="r"))
            assert [] == list(audit_store(journal.store))
            return output, [each.type for each in journal.events("r")]
        finally:
            loop.close()


@pytest.mark.parametrize("after_s", [0.02, 0.07, 0.12, 0.17, 0.22])
def test_a_cancel_while_an_append_is_under_way(
    late: list[LateCommits], monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    """It comes behind the append, inside the block that it is meant for, and nothing is cancelled later."""
    monkeypatch.setattr(LateCommits, "delays", (0.05,))

    async def agent(run: AsyncRun) -> list[Any]:
        told: list[Any] = []
        try:
            async with asyncio.timeout(after_s), run.step("cut"):
                told.append(await run.call(send, x=1))
        except TimeoutError:
            told.append("late")
        await asyncio.sleep(0.5)  # here a cancel that was left behind would be raised
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        return told

    told, types = run_on(VirtualLoop(), agent)
    assert "late" == told[-1] or after_s > 0.2
    assert "run.completed" == types[-1]


def test_a_second_step_while_the_first_is_begun(late: list[LateCommits], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for a step while another task's is under way is told so, as if that had begun at once."""
    monkeypatch.setattr(LateCommits, "delays", (0.05,))

    async def enter(run: AsyncRun, name: str) -> None:
        async with run.step(name):
            await asyncio.sleep(1)

    async def agent(run: AsyncRun) -> None:
        await asyncio.gather(enter(run, "a"), enter(run, "b"))

    with pytest.raises(f.StepOpen, match="step a is open in another task, b was asked for"):
        run_on(VirtualLoop(), agent)


def test_what_an_agent_reads_while_an_append_is_under_way(
    late: list[LateCommits], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that one task has set is there for another one, and a write that isn't awaited keeps its place."""
    monkeypatch.setattr(LateCommits, "delays", (0.05,))

    async def agent(run: AsyncRun) -> list[Any]:
        async with run.step("s"):
            run.memory["n"] = 1
            call = asyncio.create_task(run.call(send, x=1))
            await asyncio.sleep(0.01)
            run.memory["n"] = run.memory["n"] + 1
            return [await call, run.memory["n"]]

    told, types = run_on(VirtualLoop(), agent)
    assert [2, 2] == told
    assert ["memory.set", "tool.started", "memory.set", "tool.completed"] == types[3:7]
