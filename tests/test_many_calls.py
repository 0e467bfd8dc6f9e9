"""A step with very many recorded calls: each is given back at the same cost, however many there are."""

import asyncio
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from runjournal import AsyncJournal, AsyncRun, Journal, Run, tool
from runjournal.engine.script import Entry, ScriptItem

pytestmark = pytest.mark.filterwarnings("ignore::runjournal.CheckpointWarning")


class Died(BaseException):
    """The process dies here."""


@tool(read_only=True)
def look(n: int) -> int:
    return n


@tool
def send(n: int) -> int:
    return n


@tool(read_only=True)
async def look_async(n: int) -> int:
    return n


@contextmanager
def counted(told: list[int]) -> Generator[None]:
    """Add to `told` how often anything is called meanwhile, with what the loops inside it look at."""
    before, found = sys.getprofile(), 0

    def count(frame: Any, event: str, arg: object) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)
    told.append(found)


def one_by_one(count: int, make: Callable[[int], Any]) -> int:
    """Return what it takes to be told of calls that another process has made in a step."""
    told: list[int] = []

    def agent(run: Run) -> None:
        with run.step("s"):
            with counted(told):
                for n in range(count):
                    make(n)
            raise Died

    with Journal.open("memory:") as journal:
        for _ in range(2):
            with suppress(Died):
                journal.run(agent, run_id="r", kind="k")
    return told[1]


def together(count: int) -> int:
    """Return the same of calls that were in flight together, in the tasks of a loop."""
    told: list[int] = []

    async def agent(run: AsyncRun) -> None:
        async with run.step("s"):
            with counted(told):
                await asyncio.gather(*(look_async(n) for n in range(count)))
            raise Died

    async def main() -> None:
        with AsyncJournal.open("memory:") as journal:
            for _ in range(2):
                with suppress(Died):
                    await journal.run_async(agent, run_id="r", kind="k")

    asyncio.run(main())
    return told[1]


@pytest.mark.parametrize("make", [look, send, lambda n: look(7)], ids=["idempotent", "unsafe", "equal"])
def test_a_recorded_call_among_many(make: Callable[[int], Any]) -> None:
    """Four times as many calls are given back for four times as many calls of Python."""
    assert one_by_one(120, make) <= 4 * 1.1 * one_by_one(30, make)


def test_recorded_calls_in_flight_together() -> None:
    """In a loop too: only the task whose turn it is is woken."""
    assert together(160) <= 4 * 1.2 * together(40)


def test_the_script_is_gone_through_once() -> None:
    """What was told or asked for isn't looked at again; an end that comes late is told in its place."""
    script = [ScriptItem(2, "ask", "a", 1), ScriptItem(3, "tell", "a", 1), ScriptItem(9, "tell", "b", 0)]
    entry = Entry("s", 1, 0, script, set())
    assert script[0] == entry.before(3)
    assert entry.before(2) is None
    entry.asks["a"] += 1
    assert script[1] == entry.before(9)
    entry.told(3)
    assert entry.before(9) is None
    assert 9 == entry.word("b")
    late = ScriptItem(5, "tell", "c", 0)
    entry.add(late)
    assert late == entry.before(9)
    entry.leave_out(9)
    assert entry.before(9) is None
    assert script[-1] == entry.before(10)
    entry.told(9)
    assert entry.word("b") is None
    assert entry.before(float("inf")) is None
