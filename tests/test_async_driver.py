"""The sentences on tasks, each tried on the asyncio driver: on virtual time, on a real store, crashed everywhere.

The sentences are those of docs/explanation/engine.md, above all D1 to D6 and T1 to T13. `SEEDS=12` and the `crash` mark
for the long run; where a rule is switched off, it is to show what it is for.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import random
import signal
import threading
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from tasks.lab import Crash, Deadlock, Lab, VirtualLoop, everywhere

from runjournal import async_run
from runjournal.async_run import AsyncDriver, AsyncRun
from runjournal.engine import failures as f
from runjournal.engine import script
from runjournal.engine import steps as engine
from runjournal.engine.core import Core
from runjournal.engine.lineage import Lineage
from runjournal.engine.order import TellingOrder
from runjournal.engine.steps import StepControl
from runjournal.engine.tools import KEY
from runjournal.log import events as e

SEEDS = int(os.environ.get("SEEDS", "12"))
read = script.read


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Switch rules off, to see what each is for."""

    def no_order() -> None:
        monkeypatch.setattr(engine, "read", lambda events: ([], read(events)[1]))

    def no_park() -> None:
        now, failures = vars(engine)["read"], Lineage.failures
        monkeypatch.setattr(engine, "read", lambda events: (now(events)[0], set()))
        monkeypatch.setattr(Lineage, "failures", lambda *args: [each._replace(cut=False) for each in failures(*args)])

    def no_drain() -> None:
        monkeypatch.setattr(TellingOrder, "idle", lambda order, entry: True)

    def no_await() -> None:
        complete = StepControl.complete

        def at_once(steps: StepControl, entry: Any, result: Any) -> Any:
            if entry.flights:
                raise f.Mistake("OpenCalls")
            return (yield from complete(steps, entry, result))

        monkeypatch.setattr(StepControl, "complete", at_once)

    def no_mark() -> None:
        record = Core.record

        def silent(core: Core, *events: Any) -> Any:
            if getattr(events[0], "code", None) == "cut":
                return 0
            return (yield from record(core, *events))

        monkeypatch.setattr(Core, "record", silent)

    def no_hold() -> None:
        invoke = AsyncDriver._invoke

        async def cut(driver: AsyncDriver, command: Any) -> Any:
            return await invoke(driver, command._replace(cuttable=True))

        monkeypatch.setattr(AsyncDriver, "_invoke", cut)

    every = {"order": no_order, "park": no_park, "drain": no_drain, "await": no_await, "mark": no_mark, "hold": no_hold}
    return lambda *off: [every[name]() for name in off]


# ------------------------------------------------------------------------------------------- (a) who cancelled


def failing(inner: Any) -> Any:
    async def agent(run: AsyncRun) -> Any:
        try:
            await inner(run)
        except BaseException as error:  # noqa: BLE001 - as agents do
            return type(error).__name__
        return "ok"

    return agent


def test_a_timeout_inside_a_step():
    """The block's own TimeoutError leaves the step: an ordinary transient failure."""
    lab = Lab(slow={1: 5})

    async def inner(run: AsyncRun) -> None:
        async with run.step("s"), asyncio.timeout(1):
            await run.call(lab.tools["idempotent"], x=1)

    assert lab.run(failing(inner)) == "completed"
    assert lab.output == "StepFailed"
    failed = lab.last("step.failed")
    assert failed.error["type"] == "TimeoutError"
    assert failed.transient
    assert not failed.cut
    assert lab.last("tool.failed").error["type"] == "Cancelled"


def test_a_timeout_around_a_step():
    """The step records TimeoutError and lets the CancelledError go on: only so the timeout works."""
    lab = Lab(slow={1: 5})

    async def inner(run: AsyncRun) -> None:
        async with asyncio.timeout(1):
            async with run.step("s"):
                await run.call(lab.tools["idempotent"], x=1)

    lab.run(failing(inner))
    assert lab.output == "TimeoutError"
    assert lab.last("step.failed").error["type"] == "TimeoutError"
    assert lab.last("step.failed").cut


def test_a_timeout_around_a_gather():
    """What can be cut is cut, the rest ends and is recorded, and then the step fails."""
    lab = Lab(slow={1: 5, 2: 3, 3: 0.2})
    keyed, idem = lab.tools["keyed"], lab.tools["idempotent"]

    async def inner(run: AsyncRun) -> None:
        async with run.step("s"), asyncio.timeout(1):
            await asyncio.gather(run.call(idem, x=1), run.call(keyed, x=2), run.call(keyed, x=3))

    lab.run(failing(inner))
    assert lab.output == "StepFailed"
    assert lab.ends() == ["Cancelled", "ok", "ok"]
    assert lab.types()[-2] == "step.failed"


@pytest.mark.parametrize("rule", [True, False])
def test_a_plan_b_after_a_timeout_survives_a_crash(rules: Any, *, rule: bool):
    """What was cancelled waits for its cancel again; without that, right agents diverge after a crash."""
    rules(*([] if rule else ["park"]))

    async def agent(run: AsyncRun, lab: Lab) -> Any:
        async with run.step("s"):
            try:
                async with asyncio.timeout(1):
                    await run.call(lab.tools["unsafe"], x="slow")
            except TimeoutError:
                await run.call(lab.tools["unsafe"], x="b")
            await run.call(lab.tools["keyed"], x="c")

    outcomes = everywhere(agent, 1, slow={"slow": 6}).outcomes
    # a crash before the timeout was told to anybody may do without plan B
    told = {"completed", "completed, other effects"}
    assert set(outcomes) == (told if rule else told | {"StepDiverged"}), outcomes


def test_a_plan_b_is_not_held_up_by_what_was_cancelled():
    """An end whose cancel came again has been told: with others about, plan B doesn't wait for it in vain."""

    async def agent(run: AsyncRun, lab: Lab) -> Any:
        async with run.step("s"):
            other = asyncio.create_task(run.call(lab.tools["idempotent"], x="o"))
            try:
                async with asyncio.timeout(1):
                    await run.call(lab.tools["unsafe"], x="slow")
            except TimeoutError:
                await run.call(lab.tools["unsafe"], x="b")
            await other

    struck = everywhere(agent, 1, slow={"slow": 6, "b": 1, "o": 9})
    assert struck.waited == 0, struck
    assert set(struck.outcomes) <= {"completed", "completed, other effects"}, struck


@pytest.mark.parametrize("rule", [True, False])
def test_a_plan_b_after_a_timeout_around_a_step_survives(rules: Any, *, rule: bool):
    """A cancelled step, asked for again, waits for its cancel: else it is StepFailed once and TimeoutError once."""
    rules(*([] if rule else ["park"]))

    async def agent(run: AsyncRun, lab: Lab) -> Any:
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                if not run.done("s"):
                    async with run.step("s"):
                        await run.call(lab.tools["idempotent"], x="slow")
        if not run.done("b"):
            async with run.step("b"):
                await run.call(lab.tools["unsafe"], x="b")
        return "end"

    whole, outcomes = Lab(slow={"slow": 6}), Counter[str]()
    whole.run(lambda run: agent(run, whole))
    for tick in range(1, whole.world.ticks + 1):
        lab = Lab(0, (tick,), slow={"slow": 6})
        outcomes[lab.run(lambda run, lab=lab: agent(run, lab))] += 1
    assert (set(outcomes) == {"completed"}) == rule, outcomes


# ------------------------------------------------------------------------------- (b) cancelling one that waits


def test_b_taskgroup_where_a_sibling_fails():
    """The group cancels: a model call is cut, an unsafe one ends; then the group's error is the agent's."""
    lab = Lab(slow={"bad": 1, "u": 5, "i": 5}, fails={"bad"})
    t = lab.tools

    async def out(run: AsyncRun) -> Any:
        async with run.step("s"):
            got = []
            try:
                async with asyncio.TaskGroup() as group:
                    for tool, x in (("keyed", "bad"), ("unsafe", "u"), ("idempotent", "i")):
                        group.create_task(run.call(t[tool], x=x))
            except* f.CallFailed as failed:
                got = [str(e) for e in failed.exceptions]
        return got

    lab.run(out)
    assert lab.output == ["ValueError: bad"]
    assert lab.ends() == ["Cancelled", "ValueError", "ok"]


def test_b_nested_timeouts_and_a_second_cancel():
    """An unsafe call of 5 s under two timeouts of 1 and 2 s: it ends, is recorded, then the outer timeout is one."""
    lab, times = Lab(slow={"u": 5}), []

    async def agent(run: AsyncRun) -> Any:
        where: list[Any] = []
        async with run.step("s"):
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(2):
                    try:
                        async with asyncio.timeout(1):
                            await run.call(lab.tools["unsafe"], x="u")
                    except TimeoutError:
                        where.append("inner")
                        await asyncio.sleep(0)
            except TimeoutError:
                where.append("outer")
            times.append(loop.time())
            task = asyncio.current_task()
            assert task
            where.append(task.cancelling())
        return where

    lab.run(agent)
    assert "tool.completed" in lab.types()
    assert times[0] >= 5
    assert lab.output[-2:] == ["outer", 0]


def test_b_a_call_that_never_ends_is_cut_after_a_bound():
    """Without a bound the cancel never comes: the agent hangs. The bound cuts it; it may have happened."""
    lab = Lab(slow={"u": 10**9})

    async def inner(run: AsyncRun) -> None:
        async with run.step("s"), asyncio.timeout(1):
            await run.call(lab.tools["blind"], x="u")

    lab.run(failing(inner))
    assert lab.output == "StepFailed"
    assert lab.slowest == 1 + 30
    assert lab.last("tool.failed").error["type"] == "Cancelled"
    assert lab.state.calls.unresolved()


def test_b_the_bound_of_a_cancel_is_what_is_left_of_timeout_s():
    """A call with 5 s to go is cut then, though a cancel would wait longer."""
    lab = Lab(slow={"u": 10**9})
    tool = lab.tool("t", "unsafe", timeout_s=5)

    async def inner(run: AsyncRun) -> None:
        async with run.step("s"), asyncio.timeout(1):
            await run.call(tool, x="u")

    lab.run(failing(inner))
    assert lab.output == "StepFailed"
    assert lab.slowest == 5


def test_b_without_a_bound_it_hangs(monkeypatch: pytest.MonkeyPatch):
    """What the bound is for."""
    monkeypatch.setattr(async_run, "cancel_wait_s", None)
    lab = Lab()

    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    tool = lab.tool("f", "unsafe", forever)

    async def inner(run: AsyncRun) -> None:
        async with run.step("s"), asyncio.timeout(1):
            await run.call(tool)

    with pytest.raises(Deadlock):
        lab.run(failing(inner))


def test_b_asked_again_after_the_cancel_it_gives_its_result():
    """The held back result isn't lost: the same call asked again is that call, not a second sending."""
    lab = Lab(slow={"u": 5})

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await run.call(lab.tools["unsafe"], x="u")
            return await run.call(lab.tools["unsafe"], x="u")

    lab.run(agent)
    assert lab.output == "unsafe:u"
    assert len(lab.world.effects) == 1


@pytest.mark.parametrize("rule", [True, False])
def test_b_a_cancel_waits_for_what_cant_be_cut(rules: Any, *, rule: bool):
    """Held back, the call's outcome is known; without that it is cut, and nobody knows."""
    rules(*([] if rule else ["hold"]))
    lab = Lab(slow={"u": 5})

    async def inner(run: AsyncRun) -> None:
        async with run.step("s"), asyncio.timeout(1):
            await run.call(lab.tools["blind"], x="u")

    lab.run(failing(inner))
    assert bool(lab.state.calls.unresolved()) != rule


# ---------------------------------------------------------------------------------------------- (c) timeout_s


def test_c_timeout_s_cuts_an_async_body():
    """tool.failed{TimeoutError, transient}; an unsafe one may have happened and isn't tried again."""
    lab = Lab(slow={1: 60})
    tool = lab.tool("t", "unsafe", timeout_s=2, on_unknown="fail")

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            try:
                await run.call(tool, x=1)
            except f.CallOutcomeUnknown as unknown:
                return unknown.original and unknown.original["type"]

    lab.run(agent)
    assert lab.output == "TimeoutError"
    ends = [event for event in lab.log if isinstance(event, e.ToolFailed)]
    assert [("TimeoutError", True, True), ("CallOutcomeUnknown", False, False)] == [
        (end.error["type"], end.transient, end.lost) for end in ends
    ]
    assert lab.slowest == 2
    assert lab.types().count("tool.started") == 1
    assert lab.state.calls.unresolved()


def test_c_timeout_s_of_what_may_run_again_is_tried_three_times():
    """What can't happen twice is sent again within the ask."""
    lab = Lab(slow={1: 60})
    tool = lab.tool("t", "idempotent", timeout_s=2)

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            try:
                await run.call(tool, x=1)
            except f.CallFailed as failed:
                return failed.type

    lab.run(agent)
    assert lab.output == "TimeoutError"
    assert lab.types().count("tool.started") == 3
    assert [event.again for event in lab.log if isinstance(event, e.ToolFailed)] == [True, True, False]


def test_c_the_late_end_of_a_thread_testifies():
    """A sync body runs in a thread: it can't be stopped, and what it comes to after the bound is a late word."""
    lab, release, done = Lab(), threading.Event(), threading.Event()

    def slow() -> str:
        lab.process.loop.wait(release)
        done.set()
        return "late"

    tool = lab.tool("t", "unsafe", slow, timeout_s=0.1, on_unknown="fail")

    async def agent(run: AsyncRun) -> Any:
        first = None
        async with run.step("s"):
            try:
                await run.call(tool)
            except f.CallOutcomeUnknown as unknown:
                first = unknown.original and unknown.original["type"]
            release.set()
            await lab.until(lambda: "tool.resolved" in lab.types())
        return first

    lab.run(agent)
    assert lab.output == "TimeoutError"
    assert done.is_set()
    word = lab.last("tool.resolved")
    assert word.outcome == "happened"
    assert word.result == "late"
    assert word.late
    assert not lab.state.calls.unresolved()


def test_c_a_thread_that_ends_after_its_loop_still_testifies():
    """The run and its loop are over when the body ends: its word is on record all the same."""
    lab, release = Lab(), threading.Event()
    bodies: list[threading.Thread] = []

    def slow() -> str:
        bodies.append(threading.current_thread())
        with lab.process.loop.asleep():
            release.wait(20)
        return "late"

    tool = lab.tool("t", "unsafe", slow, timeout_s=0.1, on_unknown="fail")

    async def inner(run: AsyncRun) -> None:
        async with run.step("s"):
            await run.call(tool)

    lab.run(failing(inner))
    assert lab.output == "CallOutcomeUnknown"
    assert lab.state.calls.unresolved()
    lab.clock.loop = VirtualLoop()
    release.set()
    bodies[0].join(20)
    lab.clock.loop.close()
    assert lab.last("tool.resolved").outcome == "happened"
    assert not lab.state.calls.unresolved()


def test_c_a_body_that_was_cut_never_begins_later():
    """Many sync bodies hang; one more still begins at once, in a thread of its own, not when another one ends."""
    lab, release = Lab(), threading.Event()

    def hang(x: int) -> None:
        lab.process.loop.wait(release)

    hanging = lab.tool("h", "unsafe", hang, timeout_s=1, on_unknown="fail")
    quick = lab.tool("q", "unsafe", lambda: "quick", timeout_s=1)

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            calls = [run.call(hanging, x=x) for x in range(40)]
            *_, got = await asyncio.gather(*calls, run.call(quick), return_exceptions=True)
            release.set()
            await lab.until(lambda: lab.types().count("tool.resolved") == 40)
        return got

    lab.run(agent)
    assert lab.output == "quick"


def test_c_a_thread_is_waited_for_by_a_cancel_and_testifies_after_its_bound():
    """The caller cancels while a sync body hangs: 30 s later it is cut, the run released; then the body ends."""
    lab, release = Lab(), threading.Event()

    def slow() -> str:
        lab.process.loop.wait(release)
        return "late"

    tool = lab.tool("t", "unsafe", slow)

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            await run.call(tool)

    async def main() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await lab.journal.run_async(agent, run_id="r")
        assert asyncio.get_running_loop().time() == 31
        assert lab.types()[-2:] == ["tool.failed", "run.requeued"]
        assert lab.state.calls.unresolved()
        release.set()
        await lab.until(lambda: "tool.resolved" in lab.types())

    lab.once(agent, main)
    assert lab.last("tool.resolved").outcome == "happened"
    assert not lab.state.calls.unresolved()


@pytest.mark.parametrize("end", ["gives", "raises", "is cut"])
def test_c_a_plain_function_that_gives_a_coroutine(end: str):
    """As `lambda request: client.create(request)` is: it is awaited in the loop, and cut there."""
    lab, seen = Lab(), list[str]()

    async def create(request: Any) -> Any:
        seen.append(threading.current_thread().name)
        try:
            await asyncio.sleep(60 if end == "is cut" else 1)
        except asyncio.CancelledError:
            seen.append("cut")
            raise
        if end == "raises":
            raise ValueError(request)
        return f"answer to {request}"

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            try:
                async with asyncio.timeout(5):
                    return await run.model("m", "q", lambda request: create(request))  # noqa: PLW0108 - that is the case
            except f.CallFailed as failed:
                return failed.type
            except TimeoutError:
                return "cut"

    lab.run(agent)
    assert lab.output == {"gives": "answer to q", "raises": "ValueError", "is cut": "cut"}[end]
    assert seen == ["MainThread"] + ["cut"] * (end == "is cut")


# ------------------------------------------------------------------------------------------------- (d) stops


async def chain(run: AsyncRun, *calls: tuple[Any, Any]) -> list[Any]:
    return [await run.call(tool, x=x) for tool, x in calls]


@pytest.mark.parametrize("how", ["gather", "swallow", "group"])
def test_d_a_question_lets_the_others_go_on(how: str):
    """The siblings go on until only persons are waited for; then run.waiting, with no call open; and again the same."""
    lab = Lab(3, slow={"A": 2, "B": 2})
    t = lab.tools

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            work = [
                run.ask("ok?", args={"x": 1}),
                run.ask("go?", args={"x": 2}),
                chain(run, (t["unsafe"], "A"), (t["unsafe2"], "B")),
            ]
            if how == "group":
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(w) for w in work]
                got: list[Any] = [task.result() for task in tasks]
            else:
                got = await asyncio.gather(*work, return_exceptions=how == "swallow")
            await run.call(t["keyed"], x="after")
        return got

    assert lab.run(agent) == "waiting"
    waits = [wait["id"] for wait in lab.last("run.waiting").for_]
    assert waits == list(lab.state.approvals.known)
    assert len(waits) == 2
    assert lab.types()[-2:] == ["tool.completed", "run.waiting"]
    assert lab.types().count("tool.completed") == 2
    lab.answer()
    assert lab.run(agent) == "completed"
    assert lab.output[2] == ["unsafe:A", "unsafe:B"]
    assert sorted(lab.tags) == ["A", "B", "after"]
    assert set(lab.tags.values()) == {1}


def test_d_run_waiting_with_an_open_call_loses_its_outcome(rules: Any):
    """Without the rule that a run waits only when nothing is in flight: the lease is gone when the call ends."""
    rules("drain")
    lab = Lab(slow={"A": 5})

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            await asyncio.gather(run.ask("ok?"), run.call(lab.tools["unsafe"], x="A"))

    lab.run(agent)
    assert lab.types().index("run.waiting")
    assert "tool.completed" not in lab.types()


@pytest.mark.parametrize("policy", ["idempotent", "unsafe"])
def test_d_a_stop_while_siblings_are_in_flight(policy: str):
    """A mistake in one task: what can be cut is dropped, the rest ends and is recorded, then the run is released."""
    lab = Lab(slow={"A": 5})

    async def agent(run: AsyncRun) -> Any:
        async def wrong() -> None:
            await asyncio.sleep(1)
            async with run.step("other"):
                pass

        async with run.step("s"):
            await asyncio.gather(run.call(lab.tools[policy], x="A"), wrong())

    with pytest.raises(f.NestedStep):
        lab.run(agent)
    assert lab.types()[-1] == "run.requeued"
    assert lab.state.steps.open
    assert ("tool.completed" in lab.types()) == (policy == "unsafe")
    assert "step.failed" not in lab.types()
    assert "tool.failed" not in lab.types()


def test_d_a_stop_swallowed_by_return_exceptions_reaches_the_end_of_the_step():
    """A stop can't be swallowed."""
    lab = Lab()

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            await asyncio.gather(run.ask("ok?"), return_exceptions=True)
        return "went on"

    assert lab.run(agent) == "waiting"
    assert lab.types()[-1] == "run.waiting"


# ---------------------------------------------------------------------------------------- (e) re-entered steps


async def six(run: AsyncRun, lab: Lab) -> Any:
    """Six tools of all policies under one gather, in a random order of asking."""
    async with run.step("s"):

        async def one(policy: str, x: int) -> Any:
            await lab.jitter()
            return await run.call(lab.tools[policy], x=x)

        ps = ["idempotent", "keyed", "unsafe", "unsafe2", "keyed", "idempotent"]
        await asyncio.gather(*(one(p, x) for x, p in enumerate(ps)))
        await run.call(lab.tools["unsafe"], x="end")


async def twice_alike(run: AsyncRun, lab: Lab) -> Any:
    """The same call twice, alike, in flight together; each is a call of its own."""
    async with run.step("s"):

        async def one() -> Any:
            await lab.jitter()
            return await run.call(lab.tools["keyed"], x="same")

        await asyncio.gather(one(), one())
        await run.call(lab.tools["unsafe"], x="end")


async def abc(run: AsyncRun, lab: Lab) -> Any:
    """gather(chain(A, B), C), and one task more that is created early and awaited late."""
    t = lab.tools
    async with run.step("s"):
        late = asyncio.create_task(chain(run, (t["keyed"], "L"), (t["unsafe"], "M")))
        await lab.jitter()
        await asyncio.gather(chain(run, (t["unsafe"], "A"), (t["unsafe2"], "B")), run.call(t["unsafe2"], x="C"))
        await run.call(t["unsafe"], x="D")
        await late


async def ordered(run: AsyncRun, lab: Lab) -> Any:
    """The tasks share a list; what is sent last depends on the order of their ends."""
    t, seen = lab.tools, list[str]()

    async def one(tool: Any, x: str) -> None:
        seen.append(await run.call(tool, x=x))

    async with run.step("s"):
        await asyncio.gather(one(t["unsafe"], "A"), one(t["keyed"], "B"), one(t["idempotent"], "C"))
        await run.call(t["unsafe2"], x="D", order=list(seen))
        await run.call(t["keyed"], x="E")


async def semaphore(run: AsyncRun, lab: Lab) -> Any:
    """A model for each item, then one tool at a time: the order of the tools is that of the models' ends."""
    one = asyncio.Semaphore(1)

    async def item(x: int) -> None:
        await run.call(lab.tools["idempotent"], x=f"m{x}")
        async with one:
            await run.call(lab.tools["unsafe"], x=x)

    async with run.step("s"):
        await asyncio.gather(*map(item, range(4)))


async def race(run: AsyncRun, lab: Lab) -> Any:
    """The first answer wins, the other is cancelled; what follows depends on the winner."""
    t = lab.tools
    async with run.step("s"):
        tasks = [asyncio.create_task(run.call(t["idempotent"], x=x), name=x) for x in "pq"]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.wait(tasks)
        winner = min(task.get_name() for task in done)
        await run.call(t["unsafe"], x="won", by=winner)
        await run.call(t["keyed"], x="end")


async def group(run: AsyncRun, lab: Lab) -> Any:
    """A sibling's failure cancels the others; then plan B."""
    t = lab.tools
    async with run.step("s"):
        try:
            async with asyncio.TaskGroup() as tg:
                for tool, x in (("keyed", "bad"), ("unsafe", "u"), ("idempotent", "i")):
                    tg.create_task(run.call(t[tool], x=x))
        except* f.CallFailed:
            pass
        await run.call(t["unsafe2"], x="B")


async def late_sibling(run: AsyncRun, lab: Lab) -> Any:
    """The same, but one sibling asks a moment later: when its failure is told at once, it would never be asked for."""
    t = lab.tools

    async def late() -> None:
        await asyncio.sleep(0.5)
        await run.call(t["unsafe"], x="u")

    async with run.step("s"):
        try:
            async with asyncio.TaskGroup() as tg:
                tg.create_task(run.call(t["keyed"], x="bad"))
                tg.create_task(late())
        except* f.CallFailed:
            pass
        await run.call(t["unsafe2"], x="B")


async def pool(run: AsyncRun, lab: Lab) -> Any:
    """Two workers over one queue."""
    items = iter(range(5))

    async def worker() -> None:
        for x in items:
            await run.call(lab.tools["unsafe"], x=x)

    async with run.step("s"):
        await asyncio.gather(worker(), worker())


async def questions(run: AsyncRun, lab: Lab) -> Any:
    """Persons and tools at once; the answers come while the run waits."""
    t = lab.tools

    async def asks(x: int) -> None:
        await lab.jitter()
        await run.ask("ok?", args={"x": x})
        await run.call(t["unsafe"], x=x)

    async with run.step("s"):
        await asyncio.gather(asks(1), asks(2), chain(run, (t["unsafe2"], "A"), (t["keyed"], "B")))


async def second_attempt(run: AsyncRun, lab: Lab) -> Any:
    """A gather fails while siblings are in flight; the step is tried again with another plan."""
    t, x = lab.tools, "bad"
    for _ in range(2):
        try:
            async with run.step("s"):
                await asyncio.gather(
                    chain(run, (t["unsafe"], "A"), (t["keyed"], "A2")),
                    run.call(t["keyed"], x=x),
                    run.call(t["idempotent"], x="C"),
                )
                await run.call(t["unsafe2"], x="end")
            return
        except f.StepFailed:
            x = "good"


AGENTS = [second_attempt, six, abc, ordered, semaphore, race, group, late_sibling, pool, questions, twice_alike]


def needs(agent: Any) -> dict[str, Any]:
    bad = agent in (group, late_sibling, second_attempt)
    lab: dict[str, Any] = {"fails": {"bad"}, "slow": {"bad": 4, "u": 6, "i": 6}} if bad else {}
    return lab | ({"people": True} if agent is questions else {})


@pytest.mark.parametrize("agent", AGENTS[:-1], ids=lambda a: a.__name__)
def test_e_crashed_everywhere_and_re_entered_with_other_delays(agent: Any):
    """Always the same end, no effect twice, and nobody waits in vain: a sample of all boundaries."""
    struck = everywhere(agent, 4, 25, **needs(agent))
    assert (set(struck.outcomes), struck.waited) == ({"completed"}, 0), struck


@pytest.mark.crash
@pytest.mark.parametrize("agent", AGENTS, ids=lambda a: a.__name__)
def test_e_crashed_at_every_boundary(agent: Any):
    """The same at each boundary, once and twice, with many delays."""
    struck = everywhere(agent, SEEDS, **needs(agent))
    assert (set(struck.outcomes), struck.waited) == ({"completed"}, 0), struck


@pytest.mark.parametrize("off", [("order",), ("order", "park")], ids=["no order", "neither order nor park"])
@pytest.mark.parametrize("agent", [ordered, semaphore, late_sibling], ids=lambda a: a.__name__)
def test_e_without_the_order_of_the_log(agent: Any, off: Any, rules: Any):
    """What the order is for: agents whose next call depends on who was told first."""
    rules(*off)
    struck = everywhere(agent, 4, 40, **needs(agent))
    assert set(struck.outcomes) != {"completed"}, struck
    assert not struck.outcomes["twice"], struck


@pytest.mark.parametrize("agent", [six, race, questions, group], ids=lambda a: a.__name__)
def test_e_crashed_on_sqlite(agent: Any, tmp_path: Any):
    """The same on a file, which each process opens anew."""
    whole = Lab(7, path=tmp_path / "whole.db", **needs(agent))
    assert whole.run(lambda run: agent(run, whole)) == "completed"
    for tick in random.Random(1).sample(range(1, whole.world.ticks + 1), 6):
        lab = Lab(tick, (tick,), path=tmp_path / f"{tick}.db", **needs(agent))

        async def guarded(run: AsyncRun, lab: Lab = lab) -> None:
            if not run.done("s"):
                await agent(run, lab)

        assert lab.run(guarded) == "completed"
        assert +lab.tags == +whole.tags
        assert len(lab.world.effects) == len(set(lab.world.effects))
        lab.store.close()
    whole.store.close()


@pytest.mark.parametrize("agent", [six, twice_alike], ids=lambda a: a.__name__)
def test_e_crashed_at_100_random_points(agent: Any):
    """Each ends as uninterrupted, keyed effects under one key."""
    struck = everywhere(agent, 5, 100, **needs(agent))
    assert set(struck.outcomes) == {"completed"}, struck


def test_e_what_stays_wrong_an_order_that_comes_from_the_clock():
    """A semaphore that is taken after a random sleep: what is new may hold it while what is recorded waits for it."""

    async def agent(run: AsyncRun, lab: Lab) -> Any:
        one = asyncio.Semaphore(1)

        async def item(x: int) -> None:
            await lab.jitter()
            async with one:
                await run.call(lab.tools["unsafe"], x=x)

        async with run.step("s"):
            await asyncio.gather(*map(item, range(3)))

    outcomes = everywhere(agent, 3, 50).outcomes
    assert {"StepDiverged", "completed"} <= set(outcomes), outcomes
    assert not outcomes["twice"], outcomes


@pytest.mark.parametrize("other", ["A", "B"])
@pytest.mark.parametrize("off", [(), ("order",)])
def test_e_true_divergence_is_found_before_the_damage(other: str, off: Any, rules: Any):
    """Today's code asks for Z in place of a recorded call: nothing new is sent."""
    rules(*off)

    def version(a: str, b: str) -> Any:
        async def agent(run: AsyncRun) -> Any:
            t = lab.tools
            async with run.step("s"):
                await asyncio.gather(chain(run, (t["unsafe"], a), (t["unsafe2"], b)), run.call(t["keyed"], x="C"))

        return agent

    whole = lab = Lab(5, slow={"C": 60})
    lab.once(version("A", "B"))
    lab = Lab(5, (whole.world.ticks - 6,), slow={"C": 60})
    with pytest.raises(Crash):
        lab.once(version("A", "B"))
    assert sorted(+lab.tags) in (["A", "B"], ["A", "B", "C"])
    lab.boot()
    with pytest.raises(f.StepDiverged):
        lab.once(version("Z" if other == "A" else "A", "Z" if other == "B" else "B"))
    assert "Z" not in lab.tags
    assert [("run.waiting", "code")] == [(lab.types()[-1], wait["kind"]) for wait in lab.last("run.waiting").for_]


# ------------------------------------------------------------------------------------------- (f) whose verb is it


def test_f_a_task_that_outlives_its_step():
    """After its step's end a verb is NotInStep, which stops nothing."""
    lab, got = Lab(), []

    async def agent(run: AsyncRun) -> Any:
        async def outlives() -> None:
            await asyncio.sleep(10)
            try:
                await run.call(lab.tools["unsafe"], x=1)
            except f.Mistake as mistake:
                got.append(type(mistake).__name__)

        async with run.step("s"):
            task = asyncio.create_task(outlives())
        async with run.step("t"):
            await run.call(lab.tools["unsafe"], x=2)
            await task
        return "end"

    assert lab.run(agent) == "completed"
    assert got == ["NotInStep"]
    assert list(lab.tags) == ["2"]


def test_f_threads():
    """asyncio.to_thread carries the context, also back into the loop; a bare pool doesn't."""
    lab, got = Lab(slow={1: 0, 2: 0}), list[Any]()
    bare = concurrent.futures.ThreadPoolExecutor(1)
    unsafe = lab.tools["unsafe"]

    async def agent(run: AsyncRun) -> Any:
        loop = asyncio.get_running_loop()
        async with run.step("s"):
            got.append(await asyncio.to_thread(unsafe, x=1))
            try:
                await loop.run_in_executor(bare, lambda: unsafe(x=2))
            except f.NotInRun as error:
                got.append(type(error).__name__)
            context = contextvars.copy_context()
            got.append(await loop.run_in_executor(bare, context.run, lambda: unsafe(x=2)))

    assert lab.run(agent) == "completed"
    assert got == ["unsafe:1", "NotInRun", "unsafe:2"]
    bare.shutdown()


def test_f_a_thread_whose_asker_was_cancelled_goes_on_asking():
    """Cancelling a task that waits for to_thread doesn't stop the thread: its call is awaited by the step's end."""
    lab = Lab(slow={1: 0.3})

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            started = asyncio.Event()
            loop = asyncio.get_running_loop()

            def work() -> Any:
                loop.call_soon_threadsafe(started.set)
                with lab.process.loop.asleep():
                    return lab.tools["unsafe"](x=1)

            task = asyncio.create_task(asyncio.to_thread(work))
            await started.wait()
            await asyncio.sleep(0.1)
            task.cancel()

    assert lab.run(agent) == "completed"
    assert lab.types()[-3:] == ["tool.completed", "step.completed", "run.completed"]


@pytest.mark.parametrize("policy", ["unsafe", "idempotent"])
def test_f_two_steps_at_once(policy: str):
    """A mistake: the first step stays open, nothing is recorded as failed, the run is released."""
    lab = Lab(slow={1: 3, 2: 3})

    async def agent(run: AsyncRun) -> Any:
        async def one(name: str, x: int) -> None:
            async with run.step(name):
                await run.call(lab.tools[policy], x=x)

        async with asyncio.TaskGroup() as group:
            group.create_task(one("a", 1))
            group.create_task(one("b", 2))

    with pytest.raises(f.StepOpen):
        lab.run(agent)
    opened = lab.state.steps.open
    assert "step.failed" not in lab.types()
    assert opened
    assert opened.id == "a"
    assert lab.types()[-1] == "run.requeued"


@pytest.mark.parametrize("policy", ["unsafe", "idempotent"])
@pytest.mark.parametrize("how", ["returns", "raises"])
def test_f_the_agent_ends_while_a_step_is_open_in_a_task(policy: str, how: str):
    """The same mistake: what can't be cut ends and is recorded, then the run is released."""
    lab = Lab(slow={1: 3})

    async def agent(run: AsyncRun) -> Any:
        async def one() -> None:
            async with run.step("a"):
                await run.call(lab.tools[policy], x=1)

        lab.task = asyncio.create_task(one())  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        if how == "raises":
            raise ValueError("bad")
        return "end"

    with pytest.raises(f.StepOpen):
        lab.run(agent)
    assert lab.types()[-1] == "run.requeued"
    assert "step.failed" not in lab.types()
    assert ("tool.completed" in lab.types()) == (policy == "unsafe")


# ------------------------------------------------------------------------------------------------ (g) equal calls


class Flaky(Lab):
    """Some calls of `e` fail once."""

    async def act(self, policy: str, x: Any, key: str) -> Any:
        ended = sum(isinstance(event, e.ToolFailed) and event.call_id == key for event in self.log)
        if x == "e" and not ended and int(key, 16) % 2:
            await asyncio.sleep(self.random.random())
            raise ValueError
        return await super().act(policy, x, key)


@pytest.mark.parametrize("jitter", [0, 2])
def test_g_equal_calls_in_flight(jitter: float, monkeypatch: pytest.MonkeyPatch):
    """Equal calls are told apart by the order of asking; a failed one, asked again, is the same call."""
    # With tasks whose order of asking comes from the clock they may change places: harmless if the tasks are alike.
    monkeypatch.setattr("tasks.lab.Lab", Flaky)

    async def agent(run: AsyncRun, lab: Lab) -> Any:
        async def one(i: int) -> str:
            await lab.jitter(jitter)
            for _ in range(3):
                with suppress(f.CallFailed):
                    got: str = await run.call(lab.tools["keyed"], x="e")
                    return got
                await run.call(lab.tools["idempotent"], x=f"after failure {i}")
            return "-"

        async with run.step("s"):
            await asyncio.gather(*map(one, range(3)))
            await run.call(lab.tools["unsafe"], x="end")

    outcomes = everywhere(agent, 4, 30).outcomes
    assert set(outcomes) == {"completed"}, outcomes


@pytest.mark.parametrize("off", [(), ("order",)])
def test_g_model_requests_with_clocks_in_parallel(off: Any, rules: Any):
    """Requests that differ in their clocks find their answers, in the order of asking; no answer goes astray."""
    rules(*off)
    wrong = list[str]()

    async def agent(run: AsyncRun, lab: Lab) -> Any:
        async def one(topic: str) -> str:
            async def llm(request: Any) -> str:
                lab.process.tick("before effect")
                await lab.jitter()
                return str(request.split()[0])

            now = f"12:{lab.processes:02}:{lab.random.randint(10, 59)}"
            answer = await run.model("m", f"{topic} at {now}", llm)
            wrong.extend([] if answer == topic else [str(answer)])
            return str(answer)

        async with run.step("s"):
            got = await asyncio.gather(one("a"), one("a"), one("b"))
            await run.call(lab.tools["unsafe"], x="end", by=got)

    outcomes = everywhere(agent, 4, 30).outcomes
    assert (set(outcomes), wrong) == ({"completed"}, []), outcomes


def test_g_a_key_of_its_own_asked_while_it_is_in_flight():
    """It is sent once, and both get its one outcome."""
    lab = Lab(slow={1: 2})
    tool = lab.tool("own", "keyed", key="order-{x}")

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            return await asyncio.gather(run.call(tool, x=1), run.call(tool, x=1))

    lab.run(agent)
    assert lab.output == ["keyed:1", "keyed:1"]
    assert lab.types().count("tool.started") == 1


def test_g_a_key_of_its_own_that_failed_is_asked_again():
    """A failed one, asked again, is the same call, attempt + 1."""
    lab, times = Lab(), []

    async def body(*, idempotency_key: str = KEY) -> str:
        times.append(idempotency_key)
        if len(times) == 1:
            raise ValueError("bad")
        return "good"

    tool = lab.tool("own", "keyed", body, key="order")

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            try:
                await run.call(tool)
            except f.CallFailed:
                return await run.call(tool)

    lab.run(agent)
    assert lab.output == "good"
    assert times == ["order", "order"]


def test_g_the_first_asker_of_a_key_of_its_own_is_cancelled():
    """The other one isn't: he gets the outcome."""
    lab = Lab(slow={1: 5})
    tool = lab.tool("own", "keyed", key="order-{x}")

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            first = asyncio.create_task(run.call(tool, x=1))
            await asyncio.sleep(0.1)
            second = asyncio.create_task(run.call(tool, x=1))
            await asyncio.sleep(0.1)
            first.cancel()
            got = await second
            return [got, first.cancelled()]

    assert lab.run(agent) == "completed"
    assert lab.output == ["keyed:1", True]
    assert lab.types().count("tool.started") == 1


# ------------------------------------------------------------------------------------------------ (h) a step's end


@pytest.mark.parametrize("rule", [True, False])
def test_h_the_end_of_a_step_with_open_calls(rules: Any, *, rule: bool):
    """Awaiting always ends alike. Refusing would depend on who is faster: the same code completes or is a mistake."""
    rules(*([] if rule else ["await"]))
    outcomes = Counter[str]()
    for seed in range(20):
        lab = Lab(seed)

        async def agent(run: AsyncRun, lab: Lab = lab) -> Any:
            async with run.step("s"):
                lab.task = asyncio.create_task(run.call(lab.tools["unsafe"], x=1))  # type: ignore[attr-defined]
                await run.call(lab.tools["unsafe2"], x=2)

        try:
            outcomes[lab.run(agent)] += 1
        except f.Mistake as mistake:
            outcomes[str(mistake)] += 1
        assert lab.types().count("tool.started") == lab.types().count("tool.completed") == 2
    assert set(outcomes) == ({"completed"} if rule else {"completed", "OpenCalls"}), outcomes


def test_h_a_failed_gather_leaves_calls_in_flight():
    """A gather doesn't cancel the siblings: the step's failure waits for them, and their tasks get a cancel."""
    lab, seen = Lab(slow={"bad": 1, "A": 5}, fails={"bad"}), []

    async def agent(run: AsyncRun) -> Any:
        async def orphan() -> None:
            try:
                await chain(run, (lab.tools["unsafe"], "A"), (lab.tools["unsafe2"], "B"))
            except BaseException as error:
                seen.append(type(error).__name__)
                raise

        try:
            async with run.step("s"):
                await asyncio.gather(orphan(), run.call(lab.tools["keyed"], x="bad"))
        except f.StepFailed as failed:
            return failed.type
        return "?"

    lab.run(agent)
    assert lab.output == "ValueError"
    assert lab.types()[-3:] == ["tool.completed", "step.failed", "run.completed"]
    assert seen == ["CancelledError"]
    assert "B" not in lab.tags


# ----------------------------------------------------------------------------------------- (i) the caller cancels


@pytest.mark.parametrize("policy", ["unsafe", "idempotent"])
@pytest.mark.parametrize("times", [1, 3])
def test_i_the_caller_cancels(policy: str, times: int):
    """What can't be cut ends and is recorded; the step stays open; the run is released; it goes on where it was."""
    lab = Lab(slow={"A": 5})

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            with suppress(Exception):
                await run.call(lab.tools[policy], x="A")
            await run.call(lab.tools["keyed"], x="B")

    async def main() -> Any:
        task = asyncio.create_task(lab.journal.run_async(agent, run_id="r"))
        for _ in range(times):
            await asyncio.sleep(1)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    lab.once(agent, main)
    assert lab.types()[-1] == "run.requeued"
    assert "step.failed" not in lab.types()
    assert "B" not in lab.tags
    assert ("tool.completed" in lab.types()) == (policy == "unsafe")
    assert "tool.failed" not in lab.types()
    lab.boot()
    assert lab.run(agent) == "completed"
    assert lab.tags["A"] == (policy == "unsafe")
    assert lab.tags["B"] == 1


def test_i_the_agent_swallows_the_callers_cancel():
    """It is of no use: the run is released, and the caller's timeout is one."""
    lab = Lab(slow={"A": 5})

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            with suppress(asyncio.CancelledError):
                await run.call(lab.tools["unsafe"], x="A")
            await run.call(lab.tools["keyed"], x="B")

    async def main() -> Any:
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await lab.journal.run_async(agent, run_id="r")
            return "no timeout"
        return "timeout"

    assert lab.once(agent, main) == "timeout"
    assert lab.types()[-1] == "run.requeued"
    assert "B" not in lab.tags


def in_a_runner(lab: Lab, agent: Any, before: Any = lambda: None) -> None:
    async def main() -> None:
        lab.process.loop = lab.clock.loop = asyncio.get_running_loop()
        before()
        await lab.journal.run_async(agent, run_id="r")

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop().set_exception_handler(lambda *_: None)
        runner.run(main())


@pytest.mark.parametrize("policy", ["unsafe", "idempotent"])
def test_i_keyboard_interrupt(policy: str):
    """asyncio.run turns SIGINT into a cancel of the main task: the caller's cancel."""
    # os.kill may hand it to another thread, which the loop then outruns: it is raised in this one.
    lab = Lab(slow={"A": 0.6})

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            await run.call(lab.tools[policy], x="A")

    with pytest.raises(KeyboardInterrupt):
        in_a_runner(lab, agent, lambda: lab.process.loop.call_later(0.2, signal.raise_signal, signal.SIGINT))
    assert lab.types()[-1] == "run.requeued"
    assert ("tool.completed" in lab.types()) == (policy == "unsafe")


@pytest.mark.parametrize("what", [KeyboardInterrupt, SystemExit])
def test_i_an_interrupt_raised_inside_the_loop(what: Any):
    """An interrupt that a task raises leaves what is in flight open: it may have happened; the run is released."""
    # It breaks the loop at once; asyncio.run then cancels every task, the driver's own too.
    lab = Lab(slow={"A": 0.6})

    async def agent(run: AsyncRun) -> Any:
        async def interrupt() -> None:
            await asyncio.sleep(0.1)
            raise what

        async with run.step("s"):
            await asyncio.gather(run.call(lab.tools["blind"], x="A"), interrupt())

    with pytest.raises(what):
        in_a_runner(lab, agent)
    assert lab.types()[-2:] == ["tool.started", "run.requeued"]
    assert lab.state.calls.unresolved()


@pytest.mark.parametrize("what", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["agent", "body", "thread", "step"])
def test_i_an_interrupt_in_each_place(what: Any, where: str):
    """Wherever it is raised, the step stays open and the run is released."""
    lab = Lab(slow={"A": 0.6})

    async def raising() -> None:
        await asyncio.sleep(0.1)
        raise what

    def in_thread() -> None:
        raise what

    body, thread = lab.tool("body", "unsafe", raising), lab.tool("thread", "unsafe", in_thread)

    async def agent(run: AsyncRun) -> Any:
        if where == "agent":
            raise what
        async with run.step("s"):
            if where == "step":
                raise what
            await run.call(body if where == "body" else thread)

    with pytest.raises(what):
        in_a_runner(lab, agent)
    assert lab.types()[-1] == "run.requeued"
    assert not {"step.failed", "run.failed"} & set(lab.types())


# --------------------------------------------------------------------------- stops that come from others, and costs


@pytest.mark.parametrize("what", ["fenced", "cancelled"])
@pytest.mark.parametrize("policy", ["unsafe", "idempotent"])
def test_d_another_stops_the_run_while_siblings_are_in_flight(what: str, policy: str):
    """Fenced: what had been sent ends and testifies. Cancelled: it ends and is recorded, then run.cancelled."""
    lab = Lab(slow={"A": 5, "B": 0, "C": 0})

    async def agent(run: AsyncRun) -> Any:
        async def strike() -> None:
            await run.call(lab.tools["keyed"], x="B")
            await asyncio.sleep(1)
            if what == "cancelled":
                lab.journal.append("r", [e.RunCancelRequested("enough", "now")], expect=None)
            else:
                lab.outside().claim("r")
            await run.call(lab.tools["keyed"], x="C")

        async with run.step("s"):
            await asyncio.gather(run.call(lab.tools[policy], x="A"), strike())

    with pytest.raises(f.RunBusy if what == "fenced" else f.RunCancelled):
        lab.once(agent)
    if what == "fenced":
        assert ("tool.resolved" in lab.types()) == (policy == "unsafe")
    else:
        assert lab.status == "cancelled"
        assert lab.types().count("tool.completed") == (2 if policy == "unsafe" else 1)
    assert "step.failed" not in lab.types()
    assert "C" not in lab.tags


@pytest.mark.parametrize("what", ["fenced", "cancelled"])
def test_d_a_stop_that_is_found_before_the_agent_is_called(what: str):
    """Another strikes between the claim and the word of a hook: as later, and nothing is left running here."""
    lab = Lab(0, (10,), slow={"A": 5})

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            await run.call(lab.tools["unsafe"], x="A")

    with pytest.raises(Crash):
        lab.once(agent)
    lab.boot()
    append = lab.journal.append

    def late(run_id: Any, events: Any = (), **how: Any) -> Any:
        done = append(run_id, events, **how)
        if done[-1].type == "run.claimed":
            if what == "fenced":
                lab.outside().claim("r")
            else:
                lab.outside().append("r", [e.RunCancelRequested("enough", "now")], expect=None)
        return done

    lab.journal.append = late  # type: ignore[method-assign]
    with pytest.raises(f.RunBusy if what == "fenced" else f.RunCancelled):
        lab.once(agent)
    assert lab.status == ("running" if what == "fenced" else "cancelled")
    assert lab.tags["A"] == 1


def test_d_the_owner_is_fenced_before_the_run_completes():
    """Another has the run: its caller is told RunBusy, as with the sync driver."""
    lab = Lab(slow={"A": 0})

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            await run.call(lab.tools["unsafe"], x="A")
        lab.outside().claim("r")
        return "end"

    with pytest.raises(f.RunBusy):
        lab.once(agent)


def test_d_an_output_that_cant_be_stored_is_a_mistake():
    """As with the sync driver: nothing has failed, and its owner has let go."""
    lab = Lab()

    async def agent(run: AsyncRun) -> Any:
        return object()

    with pytest.raises(f.ResultUnstorable):
        lab.once(agent)
    assert lab.last("run.requeued").reason == "released"


def test_e_a_sequential_agent_that_diverges_waits_for_nobody():
    """With no task made since the step began nobody else can ask: StepDiverged at once."""
    slow = {"A": 1, "B": 1, "Z": 0}

    def agent_of(lab: Lab) -> Any:
        async def agent(run: AsyncRun) -> Any:
            async with run.step("s"):
                await chain(run, (lab.tools["unsafe"], "A" if lab.processes == 1 else "Z"), (lab.tools["unsafe2"], "B"))

        return agent

    whole = Lab(5, slow=slow)
    whole.run(agent_of(whole))
    lab = Lab(5, (whole.world.ticks - 5,), slow=slow)
    with pytest.raises(Crash):
        lab.once(agent_of(lab))
    assert lab.tags["A"]
    lab.boot()
    lab.slowest = 0
    with pytest.raises(f.StepDiverged):
        lab.once(agent_of(lab))
    assert lab.slowest < 1
    assert "Z" not in lab.tags


@pytest.mark.parametrize("turns", [0, 1, 3, 10])
def test_e_ends_are_told_one_at_a_time(turns: int, monkeypatch: pytest.MonkeyPatch):
    """Between two ends the loop makes some turns: else what a deep task does next changes places with a shallow one."""
    monkeypatch.setattr(async_run, "told_turns", turns)

    async def agent(run: AsyncRun, lab: Lab) -> Any:
        seen = list[str]()

        async def one(tool: str, x: str, deep: int) -> None:
            work: Any = run.call(lab.tools[tool], x=x)
            for _ in range(deep):
                work = asyncio.gather(work)
            await work
            seen.append(x)

        async with run.step("s"):
            await asyncio.gather(one("unsafe", "A", 3), one("keyed", "B", 0), one("unsafe2", "C", 1))
            await run.call(lab.tools["unsafe"], x="D", order=list(seen))
            await run.call(lab.tools["keyed"], x="E")

    outcomes = everywhere(agent, 4, 40).outcomes
    assert (set(outcomes) == {"completed"}) == (turns > 1), outcomes


@pytest.mark.parametrize("rule", [True, False])
def test_b_cancelled_while_its_end_waits_to_be_told(rules: Any, *, rule: bool):
    """A cancel between the record of an end and its telling is recorded too, so that it comes again."""
    rules(*([] if rule else ["mark"]))

    async def agent(run: AsyncRun, lab: Lab) -> Any:
        async def late() -> None:
            await asyncio.sleep(0.1 if lab.processes == 1 else 5 * lab.random.random())
            await run.call(lab.tools["unsafe2"], x="C")

        async def two() -> None:
            try:
                async with asyncio.timeout(2):
                    await run.call(lab.tools["unsafe"], x="A")
            except TimeoutError:
                await run.call(lab.tools["unsafe"], x="B")
                await run.call(lab.tools["unsafe"], x="B2")

        async with run.step("s"):
            await asyncio.gather(late(), two())

    outcomes = everywhere(agent, 6, 70, slow={"A": 1, "C": 0.1, "B": 1, "B2": 1}).outcomes
    assert not outcomes["twice"], outcomes
    assert bool(outcomes["StepDiverged"]) != rule, outcomes


@pytest.mark.parametrize("rule", [True, False])
def test_b_cancelled_in_the_turns_between_record_and_telling(rules: Any, *, rule: bool):
    """The same in the first entry: a cancel that comes some turns of the loop after the end was recorded."""
    rules(*([] if rule else ["mark"]))

    async def agent(run: AsyncRun, lab: Lab) -> Any:
        async with run.step("s"):
            before, other = len(lab.log), asyncio.create_task(run.call(lab.tools["keyed"], x="O"))
            task = asyncio.create_task(run.call(lab.tools["unsafe"], x="A"))
            for _ in range(300):
                await asyncio.sleep(0)
                if lab.store.head("r").head_seq >= before + 4:
                    break
            task.cancel()
            await other
            try:
                await task
            except asyncio.CancelledError:
                await run.call(lab.tools["unsafe"], x="B")
            await run.call(lab.tools["unsafe"], x="C")

    outcomes = everywhere(agent, 1, 40, slow={"A": 0, "O": 0}).outcomes
    assert not outcomes["twice"], outcomes
    assert bool(outcomes["StepDiverged"]) != rule, outcomes
