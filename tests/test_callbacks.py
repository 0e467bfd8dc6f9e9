"""What a function that the engine calls by itself may do with the run: read it, and nothing else."""  # engine.md X8

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from runjournal import AsyncJournal, AsyncRun, Journal, Run, tool
from runjournal.engine.failures import ToolUsesRun

RUNS: list[Any] = []
CRASH: list[BaseException] = []
SENT: list[int] = []


@tool(name="callback inner")
def inner(x: int) -> str:
    """Its n=1 is the agent's own."""
    SENT.append(x)
    return f"inner {x}"


@tool(name="callback inner_async")
async def inner_async(x: int) -> str:
    """The same, of a coroutine function."""
    SENT.append(x)
    return f"inner {x}"


USES: dict[str, Callable[[], Any]] = {
    "tool": lambda: inner(1),
    "async tool": lambda: inner_async(1),
    "call": lambda: RUNS[-1].call(inner, 1),
    "message": lambda: RUNS[-1].message("user", "x"),
    "memory": lambda: RUNS[-1].memory.__setitem__("a", 1),
    "model": lambda: RUNS[-1].model("m", "q", lambda _: 1),
    "signals": lambda: RUNS[-1].signals(),  # noqa: PLW0108 - there is no run yet
}
USE: list[Callable[[], Any]] = []


def hook(*_: Any) -> Any:
    """A callback that does what the test says."""
    return USE[-1]()


@tool(reconcile=hook, name="callback hooked")
def hooked(x: int) -> int:
    """Fail, as the test says; its hook is asked."""
    if CRASH:
        raise CRASH.pop()
    raise ValueError(x)


@tool(into=hook, name="callback parsed")
def parsed(x: int) -> int:
    """Its result is parsed by the hook."""
    return x


class Gone(BaseException):
    """An interrupt of the user's own."""


class Answer:
    """An object of a client of a provider, which dumps itself."""

    def model_dump(self) -> Any:
        return hook()


WAYS: dict[str, Callable[[Any], Any]] = {
    "reconcile": lambda run: run.call(hooked, 1),
    "into": lambda run: run.call(parsed, 1),
    "check": lambda run: run.model("m", "q", lambda _: 1, check=hook),
    "model into": lambda run: run.model("m", "q", lambda _: 1, into=hook),
    "usage": lambda run: run.model("m", "q", lambda _: 1, usage=hook),
    "cost": lambda run: run.model("m", "q", lambda _: 1, cost=hook),
    "dump": lambda run: run.model("m", "q", lambda _: Answer()),
    "parallel": lambda run: run.parallel([(hooked, {"x": 1}), (hooked, {"x": 2})]),
}


@pytest.fixture(autouse=True)
def _afresh() -> None:
    for each in (RUNS, CRASH, SENT, USE):
        each.clear()


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("way", WAYS)
def test_a_callback_uses_the_run(way: str, use: str) -> None:
    """It is ToolUsesRun, the step stays open, nothing was sent; and with mended code the agent's own call is made."""
    USE.append(USES[use])

    def agent(run: Run) -> Any:
        RUNS.append(run)
        with run.step("s"):
            if not mended:
                WAYS[way](run)
            run.memory["got"] = inner(1)
        return run.memory["got"]

    mended = False
    with Journal.open("memory:") as journal:
        with pytest.raises(ToolUsesRun):
            journal.run(agent, run_id="r")
        assert ([], "run.requeued") == (SENT, list(journal.events("r"))[-1].type)
        mended = True
        for call_id in journal.state("r").calls.unresolved():
            journal.resolve("r", call_id, "did_not_happen")
        if way not in ("into", "reconcile", "parallel"):
            assert "inner 1" == journal.run(agent, run_id="r")


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("way", WAYS)
def test_a_callback_of_an_asyncio_run_uses_it(way: str, use: str) -> None:
    """The same: at once, since nobody would await what the callback makes."""
    USE.append(USES[use])

    async def agent(run: AsyncRun) -> Any:
        RUNS.append(run)
        async with run.step("s"):
            await WAYS[way](run)

    with AsyncJournal.open("memory:") as journal:
        with pytest.raises(ToolUsesRun):
            asyncio.run(journal.run_async(agent, run_id="r"))
        assert ([], "run.requeued") == (SENT, list(journal.events("r"))[-1].type)


@pytest.mark.parametrize("asyncio_", [False, True])
@pytest.mark.parametrize("use", ["tool", "async tool"])
@pytest.mark.parametrize("outer", [False, True])
def test_a_hook_uses_the_run_before_the_agent_is_called(use: str, *, asyncio_: bool, outer: bool) -> None:
    """At the recovery it is ToolUsesRun too, and no "unknown"; a run that it is run in isn't written to either."""
    CRASH.append(Gone())

    def agent(run: Run) -> None:
        RUNS.append(run)
        with run.step("s"):
            hooked(1)

    async def async_agent(run: AsyncRun) -> None:
        RUNS.append(run)
        async with run.step("s"):
            await run.call(hooked, 1)

    def within(run: Run) -> None:
        with run.step("outer"):
            journal.run(agent, run_id="r")

    with AsyncJournal.open("memory:") as journal:
        with pytest.raises(Gone):
            asyncio.run(journal.run_async(async_agent, run_id="r")) if asyncio_ else journal.run(agent, run_id="r")
        USE.append(USES[use])
        again: Callable[[], Any] = lambda: asyncio.run(journal.run_async(async_agent, run_id="r"))  # noqa: E731
        if not asyncio_:
            again = (lambda: journal.run(within, run_id="outer")) if outer else lambda: journal.run(agent, run_id="r")
        with pytest.raises(ToolUsesRun):
            again()
        assert ([], "run.requeued") == (SENT, list(journal.events("r"))[-1].type)


def test_the_key_of_each_uses_the_run() -> None:
    """The function that says the key of an item only looks at it."""

    def agent(run: Run) -> None:
        list(run.each("item", [1], key=lambda item: "a" + inner(item)))

    with Journal.open("memory:") as journal, pytest.raises(ToolUsesRun):
        journal.run(agent, run_id="r")


def test_a_callback_reads_the_run_and_calls_plain_functions() -> None:
    """A hook may look at the run's memory, and call the function of a tool."""

    def agent(run: Run) -> Any:
        RUNS.append(run)
        with run.step("s"):
            run.memory["a"] = 7
            return run.call(hooked, 1)

    USE.append(lambda: ("happened", [RUNS[-1].memory["a"], inner.fn(1)]))
    with Journal.open("memory:") as journal:
        assert [7, "inner 1"] == journal.run(agent, run_id="r")
    assert not inspect.iscoroutine(agent)
