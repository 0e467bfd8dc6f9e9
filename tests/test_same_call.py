"""Same call, and ends that prove nothing, where the model doesn't reach: deploys, asyncio tasks and threads.

The rules are engine.md C10, H15 and D7; what holds without tasks stands in `tests/model/rules.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from tasks.lab import Crash, Lab

from runjournal import CallOutcomeUnknown, Journal, RunWaiting, tool
from runjournal.engine import failures as f
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.run import Run


@pytest.fixture
def journal() -> Iterator[Journal]:
    with Journal.open("memory:", clock=FakeClock()) as opened:
        yield opened


def of(log: Any, *types: type[e.Event]) -> list[Any]:
    """The events of these types, of a journal's run or of a lab's."""
    events = [each.event for each in log.events("r")] if isinstance(log, Journal) else log.log
    return [each for each in events if isinstance(each, types)]


def ids(log: Any, *types: type[e.Event]) -> list[str]:
    """The ids of the calls that these events are of, each once, in their order."""
    return list(dict.fromkeys(each.call_id for each in of(log, *types)))


# ------------------------------------------------------------------------------------------------------------- deploys


@pytest.mark.parametrize(
    ("more", "same"), [({}, True), ({"urgent": False}, True), ({"urgent": True}, False), ({"tags": ["x"]}, False)]
)
def test_a_parameter_that_a_deploy_adds_makes_no_other_call(journal: Journal, more: dict[str, Any], same: bool) -> None:
    """With the default of today it is the call that nobody knows of; with another value it is another call."""
    sent: list[str] = []

    def before(to: str) -> str:
        sent.append(to)
        raise TimeoutError

    def today(to: str, urgent: bool = False, tags: Any = None) -> str:
        sent.append(to)
        return "sent"

    def begins(run: Run) -> None:
        with run.step("first"), suppress(CallOutcomeUnknown):
            run.call(tool(name="send", on_unknown="fail")(before), to="ann")
        raise KeyboardInterrupt

    def goes_on(run: Run) -> Any:
        run.done("first")
        return run.do("second", lambda: run.call(tool(name="send", on_unknown="fail")(today), to="ann", **more))

    with pytest.raises(KeyboardInterrupt):
        journal.run(begins, run_id="r", kind="agent")
    with suppress(CallOutcomeUnknown):
        assert "sent" == journal.run(goes_on, run_id="r", kind="agent")
    assert same == (["ann"] == sent)
    assert (1, 1) if same else (2, 0) == (len(ids(journal, e.ToolStarted)), len(of(journal, e.ToolAdopted)))


def test_a_call_of_another_tool_is_another_call(journal: Journal) -> None:
    """The step has taken over a call with the same arguments: that of another tool isn't this one."""

    @tool(on_unknown="fail", name="send")
    def send(to: str) -> None:
        raise TimeoutError

    @tool(on_unknown="fail", name="write")
    def write(to: str) -> str:
        return "written"

    def unknown() -> str:
        with pytest.raises(CallOutcomeUnknown):
            send("ann")
        return "unknown"

    def agent(run: Run) -> Any:
        run.do("a", unknown)
        return run.do("b", lambda: [unknown(), write("ann")])

    assert ["unknown", "written"] == journal.run(agent, run_id="r")


# -------------------------------------------------------------------------------------------------------------- asyncio


@pytest.mark.parametrize("slow", [{}, {"A": 1, "B": 9, "C": 60}])
def test_calls_of_a_gather_that_fail_are_asked_about_together(slow: dict[Any, float]) -> None:
    """The others go on; then the run waits for both, and goes on with what people said of each."""
    lab = Lab(slow=slow, fails={"A", "B"})

    async def agent(run: Any) -> Any:
        async with run.step("s"):
            calls = [run.call(lab.tools["patient"], x=x) for x in "AB"]
            return await asyncio.gather(*calls, run.call(lab.tools["unsafe"], x="C"))

    assert "waiting" == lab.run(agent)
    first, second = (wait["id"] for wait in lab.state.status.waits)
    assert {first, second} == set(lab.state.calls.unresolved())
    assert [True, True] == [end.lost for end in of(lab, e.ToolFailed)]
    lab.outside().resolve("r", first, "happened", "by hand")
    assert "waiting" == lab.run(agent)
    lab.outside().resolve("r", second, "happened", "by hand")
    assert "completed" == lab.run(agent)
    assert ["by hand", "by hand", "unsafe:C"] == lab.output
    assert (3, {"C": 1}) == (len(of(lab, e.ToolStarted)), +lab.tags)


def test_calls_of_a_gather_that_fail_are_told_to_each() -> None:
    """With `fail` each asker is told of his own call, with its error; nobody waits for an end that nobody is told."""

    def made(strikes: Any) -> Lab:
        lab = Lab(0, strikes, slow={"A": 1, "B": 9, "C": 1}, fails={"A", "B"})
        lab.tool("told", "unsafe", on_unknown="fail")
        return lab

    async def body(run: Any) -> None:
        async with run.step("s"):
            got = list[Any]()
            for _ in range(2):
                calls = (run.call(lab.tools["told"], x=x) for x in "AB")
                got = await asyncio.gather(*calls, return_exceptions=True)
            told = [each.original for each in got if isinstance(each, CallOutcomeUnknown)]
            run.memory["told"] = [original and original["message"] for original in told]
            await run.call(lab.tools["keyed"], x="C")

    async def agent(run: Any) -> Any:
        if not run.done("s"):
            await body(run)
        return run.memory["told"]

    whole = lab = made(())
    assert ("completed", ["A", "B"]) == (lab.run(agent), lab.output)
    assert 30 > lab.slowest
    for tick in range(whole.world.ticks - 10, whole.world.ticks):
        lab = made((tick,))
        assert ("completed", ["A", "B"]) == (lab.run(agent), lab.output)
        assert 30 > lab.slowest


def test_of_two_tasks_that_ask_at_once_one_takes_it_over() -> None:
    """While it is in flight, the other one's is a call of its own: it is meant twice. So it is after any crash."""

    async def agent(run: Any) -> Any:
        lab.fails = set() if run.done("a") else {"A"}
        if lab.fails:
            async with run.step("a"):
                with suppress(f.CallFailed):
                    await run.call(lab.tools["keyed"], x="A")
        lab.fails = set()
        if not run.done("b"):
            async with run.step("b"):
                run.memory["got"] = await asyncio.gather(*(run.call(lab.tools["keyed"], x="A") for _ in range(2)))
        return run.memory["got"]

    whole = lab = Lab(1, slow={"A": 3})
    assert "completed" == lab.run(agent)
    one, other = ids(lab, e.ToolStarted)
    assert ([one], [one, other]) == (ids(lab, e.ToolAdopted), sorted(lab.world.effects, key=[one, other].index))
    for tick in range(1, whole.world.ticks + 1):
        lab = Lab(1, (tick,), slow={"A": 3})
        assert ("completed", ["keyed:A"] * 2) == (lab.run(agent), lab.output)
        assert [one, other] == ids(lab, e.ToolStarted) == sorted(lab.world.effects, key=[one, other].index)
        assert [one] == [each.call_id for each in of(lab, e.ToolAdopted)]


@pytest.mark.parametrize("on_unknown", ["fail", "tell"])
def test_of_equal_calls_in_tasks_each_asker_is_told_of_his_own(on_unknown: str) -> None:
    """Who is told that nobody knows hears it in his turn: his call isn't free before the other one has asked."""

    def made(strikes: Any) -> Lab:
        lab = Lab(2, strikes, slow={"A": 3})
        lab.tool("told", "unsafe", on_unknown=on_unknown)
        return lab

    async def asked(run: Any) -> str:
        try:
            return str(await run.call(lab.tools["told"], x="A"))
        except CallOutcomeUnknown as failure:
            return str(failure)

    async def body(run: Any) -> None:
        async with run.step("s"):
            run.memory["told"] = await asyncio.gather(asked(run), asked(run))
            await run.call(lab.tools["keyed"], x="B")

    async def agent(run: Any) -> Any:
        if not run.done("s"):
            await body(run)
        return run.memory["told"]

    whole = lab = made(())
    assert ("completed", ["unsafe:A"] * 2) == (lab.run(agent), lab.output)
    for tick in range(1, whole.world.ticks + 1):
        lab = made((tick,))
        assert "completed" == lab.run(agent)
        calls = ids(lab, e.ToolStarted)[:2]
        for call_id, told in zip(calls, lab.output, strict=True):
            assert call_id in told or told == "unsafe:A"
            assert 1 >= lab.world.effects.count(call_id)


def test_the_asker_who_was_cancelled_is_told_of_the_cut() -> None:
    """His call failed while its end was waited for: he hears of his cancel, and whoever asks again is asked about."""
    lab, again = Lab(slow={"u": 8}, fails={"u"}), list[bool]()

    async def agent(run: Any) -> Any:
        async with run.step("s"):
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await run.call(lab.tools["patient"], x="u")
            if again:
                return await run.call(lab.tools["patient"], x="u")
        return "went on"

    assert "completed" == lab.run(agent)
    (end,) = of(lab, e.ToolFailed)
    assert ("ValueError", True, False) == (end.error["type"], end.cut, end.lost)
    lab, again = Lab(slow={"u": 8}, fails={"u"}), [True]
    assert "waiting" == lab.run(agent)
    (question,) = lab.state.status.waits
    lab.outside().resolve("r", question["id"], "happened", "by hand")
    assert ("completed", "by hand", 1) == (lab.run(agent), lab.output, len(of(lab, e.ToolStarted)))


def test_a_new_question_waits_for_a_task_that_asks_again() -> None:
    """It isn't stopped because another task asks later for what was sent: it is paid for then."""
    prompts, paid = ["old"], list[str]()

    async def answer(request: Any) -> Any:
        paid.append(request["q"])
        return "answer"

    async def agent(run: Any) -> Any:
        async def later() -> Any:
            await asyncio.sleep(0 if prompts == ["old"] else 5)
            return await run.call(lab.tools["unsafe"], x="A")

        async with run.step("s"):
            return await asyncio.gather(later(), run.model("m", {"q": prompts[-1]}, answer))

    whole = lab = Lab(slow={"A": 1})
    lab.once(agent)
    lab = Lab(0, (whole.world.ticks - 4,), slow={"A": 1})
    with pytest.raises(Crash):
        lab.once(agent)
    assert {"A": 1} == +lab.tags
    prompts.append("new")
    lab.boot()
    assert ["unsafe:A", "answer"] == lab.once(agent)
    assert ["old", "old", "new"] == paid


# -------------------------------------------------------------------------------------------------------------- threads


def test_a_thread_whose_call_fails_waits_with_the_run(journal: Journal) -> None:
    """The body goes on; then the run waits, and the thread is told what a person said. Nothing is sent again."""
    sent, got = list[str](), list[str]()

    @tool
    def send(to: str) -> str:
        sent.append(to)
        raise TimeoutError(to)

    @tool(read_only=True)
    def look() -> str:
        return "seen"

    def agent(run: Run) -> Any:
        with run.step("s"):
            run.thread(lambda: got.append(send("ann")))
            run.memory["seen"] = look()
        return sorted(got)

    for _ in range(2):
        with pytest.raises(RunWaiting):
            journal.run(agent, run_id="r")
    (question,) = journal.state("r").status.waits
    journal.resolve("r", question["id"], "happened", "by hand")
    assert ["by hand"] == journal.run(agent, run_id="r")
    assert (["ann"], {"seen": "seen"}) == (sent, journal.state("r").memory.committed)
