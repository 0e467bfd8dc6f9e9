"""What leaves a call and is no failure, whoever made the call: the run stops, and its step stays open."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from runjournal import AsyncJournal, AsyncRun, Journal, Run, StepFailed, tool
from runjournal.async_run import AsyncDriver

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Gone(BaseException):
    """An interrupt of the user's own."""


LEAVES: list[BaseException] = []


@tool(name="left unsafe", not_sent=(ValueError,))
def unsafe(x: int) -> int:
    """Raise what the test says, once."""
    if LEAVES:
        raise LEAVES.pop()
    return x


@tool(read_only=True, name="left read")
def read(x: int) -> int:
    """The same, of a tool that only reads."""
    if LEAVES:
        raise LEAVES.pop()
    return x


@tool(name="left unsafe_async")
async def unsafe_async(x: int) -> int:
    """The same, of a coroutine function."""
    if LEAVES:
        raise LEAVES.pop()
    return x


def by_itself(run: Run, call: Callable[[], Any]) -> None:
    with suppress(BaseException):
        call()


def by_a_thread(run: Run, call: Callable[[], Any]) -> None:
    run.thread(call)


def by_a_thread_of_its_context(run: Run, call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=contextvars.copy_context().run, args=(call,))
    thread.start()
    thread.join()


def by_a_model(run: Run, call: Callable[[], Any]) -> None:
    with suppress(BaseException):
        run.model("m", "q", lambda _: read.fn(1))


def by_a_check(run: Run, call: Callable[[], Any]) -> None:
    with suppress(BaseException):
        run.model("m", "q", lambda _: 1, check=lambda _: read.fn(1))


def by_a_parse(run: Run, call: Callable[[], Any]) -> None:
    with suppress(BaseException):
        run.model("m", "q", lambda _: 1, into=lambda _: read.fn(1))


WAYS = (by_itself, by_a_thread, by_a_thread_of_its_context, by_a_model, by_a_check, by_a_parse)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("of", [unsafe, read])
@pytest.mark.parametrize("leaves", [Gone, SystemExit, KeyboardInterrupt])
def test_an_interrupt_in_a_call_leaves_the_step_open(way: Any, of: Any, leaves: type[BaseException]) -> None:
    """Whoever swallows it, the step doesn't complete, the run is released, and whoever runs it gets it."""
    LEAVES[:] = [leaves("now")]

    def agent(run: Run) -> None:
        with run.step("s"):
            way(run, lambda: of(1))

    with Journal.open("memory:") as journal:
        with pytest.raises(leaves):
            journal.run(agent, run_id="r")
        types = [record.type for record in journal.events("r")]
        assert "run.requeued" == types[-1]
        assert "step.completed" not in types
        assert "s" == journal.state("r").steps.open.id  # type: ignore[union-attr]  # as a test may


@pytest.mark.parametrize("of", [unsafe, read, unsafe_async])
def test_an_interrupt_in_a_task_leaves_the_step_open(of: Any) -> None:
    """`gather(return_exceptions=True)` keeps it as a value; the step stays open all the same."""  # engine.md X5
    LEAVES[:] = [Gone("now")]

    async def agent(run: AsyncRun) -> None:
        async with run.step("s"):
            await asyncio.gather(run.call(of, 1), return_exceptions=True)

    with AsyncJournal.open("memory:") as journal:
        with pytest.raises(Gone):
            asyncio.run(journal.run_async(agent, run_id="r"))
        types = [record.type for record in journal.events("r")]
        assert ["run.requeued", False] == [types[-1], "step.completed" in types]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_group_fails_no_call_of_a_sibling(interrupt: type[BaseException]) -> None:
    """The loop's end cancels the body of an unsafe call: nothing has failed, it stays open."""  # engine.md X5
    begun = asyncio.Event()

    @tool(name="unsafe_in_a_group")
    async def unsafe_in_a_group(x: int) -> None:
        begun.set()
        await asyncio.sleep(60)

    async def breaks() -> None:
        await begun.wait()
        raise interrupt

    async def agent(run: AsyncRun) -> None:
        async with run.step("s"), asyncio.TaskGroup() as group:
            group.create_task(run.call(unsafe_in_a_group, 1))
            group.create_task(breaks())

    with AsyncJournal.open("memory:") as journal:
        with pytest.raises(interrupt):
            asyncio.run(journal.run_async(agent, run_id="r"))
        assert ["step.started", "tool.started", "run.requeued"] == [record.type for record in journal.events("r")][2:]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_a_group_that_raises_an_interrupt_again_releases_the_run(interrupt: type[BaseException]) -> None:
    """It leaves the group's task and then the group; the loop ends once, and another may go on."""  # engine.md X5

    async def breaks() -> None:
        raise interrupt

    async def agent(run: AsyncRun) -> None:
        async with run.step("s"), asyncio.TaskGroup() as group:
            group.create_task(breaks())

    with AsyncJournal.open("memory:") as journal:
        with pytest.raises(interrupt):
            asyncio.run(journal.run_async(agent, run_id="r"))
        assert "queued" == journal.head("r").status


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_between_the_start_of_a_step_and_its_block_is_no_mistake(
    interrupt: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs an asyncio agent gets the interrupt, and no advice about a step that is open."""  # engine.md X5

    def interrupted(driver: AsyncDriver, entry: object) -> None:
        raise interrupt

    async def agent(run: AsyncRun) -> None:
        await run.do("s", lambda: 1)

    monkeypatch.setattr(AsyncDriver, "begin_step", interrupted)
    with AsyncJournal.open("memory:") as journal:
        with pytest.raises(interrupt):
            asyncio.run(journal.run_async(agent, run_id="r"))
        assert "queued" == journal.head("r").status


def test_a_call_of_a_thread_that_the_run_does_not_know_is_waited_for() -> None:
    """It carries the step's context: the step ends behind its end."""  # engine.md T3
    begun, go_on = threading.Event(), threading.Event()

    @tool(name="slow_of_a_stranger")
    def slow() -> str:
        begun.set()
        assert go_on.wait(20)
        return "done"

    def agent(run: Run) -> None:
        with run.step("s"):
            threading.Thread(target=contextvars.copy_context().run, args=(slow,), daemon=True).start()
            assert begun.wait(20)
            threading.Timer(0.05, go_on.set).start()

    with Journal.open("memory:") as journal:
        journal.run(agent, run_id="r")
        types = [record.type for record in journal.events("r")]
        assert ["tool.completed", "step.completed", "run.completed"] == types[-3:]


def test_what_leaves_a_thread_fails_its_step() -> None:
    """It is the step's failure, as if its body had raised it, and no line of `threading.excepthook`."""  # engine.md T3
    told = list[str]()

    def agent(run: Run) -> None:
        try:
            with run.step("s"):
                run.thread(lambda: unsafe(1))
        except StepFailed as failure:
            told.append(f"{failure.type}: {failure.message}")

    LEAVES[:] = [ValueError("bad")]
    with Journal.open("memory:") as journal:
        journal.run(agent, run_id="r")
        assert ["ValueError: bad"] == told
        assert ["step.failed", "run.completed"] == [record.type for record in journal.events("r")][-2:]


def test_what_leaves_a_thread_beside_the_body_is_noted() -> None:
    """The body's own error fails the step; the thread's stands in its traceback."""  # engine.md T3

    def agent(run: Run) -> None:
        with suppress(StepFailed), run.step("s"):
            run.thread(lambda: int("x"))
            raise KeyError("body")

    with Journal.open("memory:") as journal:
        journal.run(agent, run_id="r")
        error = next(record.event.error for record in journal.events("r", types=("step.failed",)))  # type: ignore[attr-defined]  # as a test may
        assert ("KeyError", True) == (error["type"], "a thread of the step ended with ValueError" in error["traceback"])
