"""`run.thread` under the sync driver, as far as it is promised: whose calls they are, who waits, who is stopped."""

from __future__ import annotations

import contextvars
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from tasks.lab import Crash, Lab

from runjournal.engine import failures as f
from runjournal.engine.tools import KEY
from runjournal.run import Run
from runjournal.runner import Runner

WAIT_S = 20.0  # for a thread that has something to do


class SyncLab(Lab):
    """The lab, for plain threads: its tools are plain functions."""

    def fn(self, policy: str) -> Any:
        def fn(x: Any, by: Any = None, *, idempotency_key: str = KEY) -> Any:
            process = self.process
            process.tick("before effect")
            if x in self.fails:
                raise ValueError(x)
            with self.world.lock:
                before = len(self.world.effects)
                self.world.act(policy, idempotency_key)
                self.tags[str(x)] += len(self.world.effects) - before
            process.tick("after effect")
            return f"{policy}:{x}"

        return fn

    def once(self, agent: Any, main: Any = None) -> Any:
        if self.store.head("r") is None:
            self.journal.enqueue("lab", run_id="r")
        process, runner = self.process, Runner(self.journal, self.tools, patience=10**6)
        opened = runner.open

        def open_(*args: Any) -> Any:
            run, parts = opened(*args)
            process.died = lambda: parts.core.stop(Crash())  # type: ignore[method-assign]
            return run, parts

        runner.open = open_  # type: ignore[method-assign, assignment]
        return runner.run(agent, "r")


@pytest.fixture(autouse=True)
def switch_often():
    """Threads take turns often, so that their order differs from run to run."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_calls_from_threads_are_the_steps():
    """They stand in the log with the step's index, and after a crash they are given back."""
    lab = SyncLab()

    def agent(run: Run) -> Any:
        got: list[Any] = []
        with run.step("s"):
            for x in "ab":
                run.thread(lambda x=x: got.append(lab.tools["unsafe"](x=x)))
            got.append(run.call(lab.tools["keyed"], x="c"))
        return sorted(got)

    assert lab.run(agent) == "completed"
    assert lab.output == ["keyed:c", "unsafe:a", "unsafe:b"]
    calls = [record for record in lab.store.read("r") if record.type.startswith("tool.")]
    assert [record.step for record in calls] == [0] * 6
    assert lab.tags == Counter("abc")


def test_the_steps_end_joins_its_threads():
    """step.completed comes behind all that its threads did, though nobody joined them."""
    lab, release = SyncLab(), threading.Event()

    def slow() -> None:
        assert release.wait(WAIT_S)

    tool = lab.tool("slow", "unsafe", slow)

    def agent(run: Run) -> Any:
        with run.step("s"):
            run.thread(lambda: (tool(), lab.tools["keyed"](x=1)))
            run.thread(release.set)

    assert lab.run(agent) == "completed"
    assert lab.types()[-3:] == ["tool.completed", "step.completed", "run.completed"]
    assert lab.types().count("tool.completed") == 2


def test_a_step_that_fails_joins_its_threads_first():
    """step.failed comes behind all that its threads did."""
    lab, release = SyncLab(), threading.Event()

    def slow() -> None:
        assert release.wait(WAIT_S)

    tool = lab.tool("slow", "unsafe", slow)

    def agent(run: Run) -> Any:
        with suppress(f.StepFailed), run.step("s"):
            run.thread(tool)
            run.thread(release.set)
            raise ValueError("bad")

    assert lab.run(agent) == "completed"
    assert lab.types()[-3:] == ["tool.completed", "step.failed", "run.completed"]


def test_no_lock_is_held_during_a_body():
    """Bodies of two threads and of the agent are in flight together."""
    lab, meet = SyncLab(), threading.Barrier(3)
    tool = lab.tool("meet", "unsafe", lambda x: meet.wait(WAIT_S) >= 0)

    def agent(run: Run) -> Any:
        with run.step("s"):
            run.thread(lambda: tool(x=1))
            run.thread(lambda: tool(x=2))
            return tool(x=3)

    assert lab.run(agent) == "completed"
    assert lab.output is True


def test_equal_calls_in_flight_in_two_threads_are_two():
    """Each has a key of its own."""
    lab, meet = SyncLab(), threading.Barrier(2)
    keys = list[str]()

    def body(*, idempotency_key: str = KEY) -> None:
        meet.wait(WAIT_S)
        keys.append(idempotency_key)

    tool = lab.tool("meet", "keyed", body)

    def agent(run: Run) -> Any:
        with run.step("s"):
            run.thread(tool)
            tool()

    assert lab.run(agent) == "completed"
    assert len(set(keys)) == 2


def test_a_bare_thread_is_not_in_the_run():
    """A thread or pool that doesn't carry the context: NotInRun; one that is given the context is the step's."""
    lab, got = SyncLab(), list[Any]()
    unsafe = lab.tools["unsafe"]

    def bare(context: contextvars.Context) -> None:
        try:
            unsafe(x=1)
        except f.NotInRun as error:
            got.append(type(error).__name__)
        got.append(context.run(unsafe, x=2))

    def agent(run: Run) -> Any:
        with run.step("s"), ThreadPoolExecutor(1) as pool:
            pool.submit(bare, contextvars.copy_context()).result()
            thread = threading.Thread(target=bare, args=(contextvars.copy_context(),))
            thread.start()
            thread.join()

    assert lab.run(agent) == "completed"
    assert got == ["NotInRun", "unsafe:2"] * 2
    assert lab.tags == {"2": 2}


def test_a_thread_is_started_in_a_step():
    """Outside one it is NotInStep."""
    lab = SyncLab()

    def agent(run: Run) -> Any:
        run.thread(print)

    with pytest.raises(f.NotInStep):
        lab.run(agent)
    assert lab.types()[-1] == "run.requeued"


def test_a_context_that_outlives_its_step():
    """A verb there is NotInStep, which stops nothing; in the next step it is still that of the first."""
    lab, got = SyncLab(), list[str]()

    def agent(run: Run) -> Any:
        with run.step("s"):
            context = contextvars.copy_context()

        def late() -> None:
            try:
                context.run(lab.tools["unsafe"], x=1)
            except f.NotInStep as error:
                got.append(type(error).__name__)

        late()
        with run.step("t"):
            thread = threading.Thread(target=late)
            thread.start()
            thread.join()
        return "end"

    assert lab.run(agent) == "completed"
    assert got == ["NotInStep"] * 2
    assert not lab.tags


# Stops.


@pytest.mark.parametrize("how", ["fenced", "mistake", "interrupt"])
def test_a_stop_is_raised_at_each_threads_next_verb(how: str):
    """What is in flight ends and is recorded, or testifies; nothing new is sent."""
    lab, started, release, seen = SyncLab(), threading.Barrier(3), threading.Event(), list[str]()

    def slow(x: int) -> None:
        started.wait(WAIT_S)
        assert release.wait(WAIT_S)

    tool = lab.tool("slow", "unsafe", slow)

    def two(x: int) -> None:
        try:
            tool(x=x)
            lab.tools["unsafe"](x=x)
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    def agent(run: Run) -> Any:
        with run.step("s"):
            for x in range(2):
                run.thread(two, x)
            started.wait(WAIT_S)
            threading.Timer(0.02, release.set).start()  # by then the agent's end waits for its threads
            match how:
                case "fenced":
                    lab.outside().claim("r")
                    run.message("user", "hello")
                case "mistake":
                    with run.step("t"):
                        pass
                case _:
                    raise KeyboardInterrupt

    stops = {"fenced": f.RunBusy, "mistake": f.NestedStep, "interrupt": KeyboardInterrupt}
    with pytest.raises(stops[how]):
        lab.run(agent)
    assert seen == [{"fenced": "Fenced", "mistake": "NestedStep", "interrupt": "KeyboardInterrupt"}[how]] * 2
    assert not lab.tags
    if how == "fenced":
        assert lab.types().count("tool.resolved") == 2
    else:
        assert lab.types()[-3:] == ["tool.completed", "tool.completed", "run.requeued"]


def test_a_mistake_in_a_thread_stops_the_run():
    """It is found at once, and can't get lost with its thread: the step stays open and the caller gets it."""
    lab = SyncLab()

    def agent(run: Run) -> Any:
        def wrong() -> None:
            with run.step("t"):
                pass

        with run.step("s"):
            run.thread(wrong)

    with pytest.raises(f.NestedStep):
        lab.run(agent)
    assert lab.types()[-1] == "run.requeued"
    assert "step.completed" not in lab.types()


def test_a_question_lets_the_threads_go_on():
    """run.waiting follows when no call is open; entered again, the same is given back."""
    lab, asked, release = SyncLab(), threading.Event(), threading.Event()

    def slow() -> str:
        asked.set()
        assert release.wait(WAIT_S)
        return "slow"

    tool = lab.tool("slow", "unsafe", slow)

    def agent(run: Run) -> Any:
        got: list[Any] = []
        with run.step("s"):
            run.thread(lambda: got.append(tool()))
            if lab.status == "running" and not lab.state.approvals.known:
                assert asked.wait(WAIT_S)
                threading.Timer(0.02, release.set).start()
            run.ask("ok?")
        return got

    assert lab.run(agent) == "waiting"
    assert lab.types()[-3:] == ["approval.requested", "tool.completed", "run.waiting"]
    lab.answer()
    assert lab.run(agent) == "completed"
    assert lab.output == ["slow"]
    assert lab.types().count("tool.started") == 1


# timeout_s.


def test_timeout_s_cuts_and_a_late_end_testifies():
    """tool.failed{TimeoutError, transient}; it may have happened; what it comes to later is a word."""
    lab, release = SyncLab(), threading.Event()

    def slow() -> str:
        assert release.wait(WAIT_S)
        return "late"

    tool = lab.tool("slow", "unsafe", slow, timeout_s=0.01, on_unknown="fail")

    def agent(run: Run) -> Any:
        with run.step("s"):
            try:
                run.call(tool)
            except f.CallOutcomeUnknown as unknown:
                told = [unknown.original, len(lab.state.calls.unresolved())]
                release.set()
                for thread in threading.enumerate():
                    if thread not in before:
                        thread.join(WAIT_S)
                return told

    before = threading.enumerate()
    assert lab.run(agent) == "completed"
    why = {"type": "TimeoutError", "message": "slow took longer than timeout_s = 0.01"}
    assert lab.output == [why, 1]
    word = lab.last("tool.resolved")
    assert (word.outcome, word.result, word.late) == ("happened", "late", True)
    assert not lab.state.calls.unresolved()


# Crashed and entered again.


def fan(run: Run, lab: SyncLab) -> Any:
    """Threads and the agent call at once; something new comes last."""
    t = lab.tools
    with run.step("s"):
        for x, policy in enumerate(["unsafe", "keyed", "idempotent", "unsafe2"]):
            run.thread(lambda policy=policy, x=x: t[policy](x=x))
        run.call(t["keyed"], x="main")
    with run.step("t"):
        run.call(t["unsafe"], x="end")


def chains(run: Run, lab: SyncLab) -> Any:
    """Each thread has a chain of calls of its own, and they share nothing."""
    t = lab.tools

    def chain(x: int) -> None:
        for name in ("unsafe", "keyed", "unsafe2"):
            t[name](x=x)

    with run.step("s"):
        for x in range(3):
            run.thread(chain, x)
    with run.step("t"):
        run.call(t["unsafe"], x="end")


def alike(run: Run, lab: SyncLab) -> Any:
    """Three threads make the same call."""
    with run.step("s"):
        for _ in range(3):
            run.thread(lambda: lab.tools["keyed"](x="same"))
    with run.step("t"):
        run.call(lab.tools["unsafe"], x="end")


def crashed(agent: Any, ticks: Any, seeds: int) -> Counter[str]:
    outcomes = Counter[str]()
    for seed in range(seeds):
        for tick in ticks:
            lab = SyncLab(seed, (tick, tick + 9))

            def guarded(run: Run, lab: SyncLab = lab) -> None:
                if run.done("t"):
                    return
                if run.done("s"):
                    with run.step("t"):
                        run.call(lab.tools["unsafe"], x="end")
                    return
                agent(run, lab)

            status = lab.run(guarded)
            twice = len(lab.world.effects) != len(set(lab.world.effects))
            outcomes["twice" if twice else f"{status} {sum(lab.tags.values())}"] += 1
    return outcomes


@pytest.mark.parametrize(("agent", "effects"), [(fan, 5), (chains, 10), (alike, 4)], ids=["fan", "chains", "alike"])
def test_threads_crashed_and_entered_again(agent: Any, effects: int):
    """No effect twice, no false StepDiverged, nothing hangs: a sample of all boundaries."""
    ticks = random.Random(0).sample(range(1, 60), 25)
    assert crashed(agent, ticks, 1) == {f"completed {effects}": 25}


@pytest.mark.crash
@pytest.mark.parametrize(("agent", "effects"), [(fan, 5), (chains, 10), (alike, 4)], ids=["fan", "chains", "alike"])
def test_threads_crashed_at_every_boundary(agent: Any, effects: int):
    """The same at each boundary, several times, since the order of threads differs."""
    assert crashed(agent, range(1, 80), 5) == {f"completed {effects}": 395}


def test_a_thread_that_is_left_out_is_found():
    """Today's code starts another thread than the log has: StepDiverged at the step's end, and nothing new was sent."""
    lab = SyncLab(0, (12,))

    def agent(run: Run) -> Any:
        with run.step("s"):
            if lab.processes == 1:
                thread = run.thread(lambda: lab.tools["unsafe"](x="A"))
                thread.join()
                run.call(lab.tools["keyed"], x="B")
            else:
                thread = run.thread(lambda: None)
                thread.join()
                run.call(lab.tools["keyed"], x="B")

    with pytest.raises(f.StepDiverged):
        lab.run(agent)
    assert lab.processes == 2
    assert "B" not in lab.tags
    assert [("run.waiting", "code")] == [(lab.types()[-1], wait["kind"]) for wait in lab.last("run.waiting").for_]


# Who is at work.


@pytest.mark.parametrize("waits", ["ask", "sleep", "signal"])
@pytest.mark.parametrize("works", ["body", "thread"])
def test_a_run_stays_for_a_thread_that_is_between_two_verbs(waits: str, works: str):
    """One thread waits for somebody or a time; the other one, in plain code, reaches its next call in this life."""
    lab, plain = SyncLab(), list[str]()
    tool = lab.tool("pay", "unsafe", lambda: "paid")

    def agent(run: Run) -> Any:
        def wait() -> None:
            match waits:
                case "ask":
                    run.ask("ok?")
                case "sleep":
                    run.sleep(for_s=3600.0)
                case _:
                    run.wait_signal("go")

        def work() -> None:
            for _ in range(100):
                if run._driver._waiting:  # the other one waits, and nothing is in flight
                    break
                time.sleep(0.01)
            plain.append("over")
            tool()

        with run.step("s"):
            other = run.thread(work if works == "thread" else wait)
            (wait if works == "thread" else work)()
            other.join()

    assert lab.run(agent) == "waiting"
    assert lab.types().count("tool.completed") == 1
    assert plain == ["over"]


def test_a_run_does_not_stay_for_a_thread_for_ever(monkeypatch: pytest.MonkeyPatch):
    """One that waits for another by means of its own holds the run for a bounded time."""
    monkeypatch.setattr("runjournal.run.working_wait_s", 0.05)
    monkeypatch.setattr("runjournal.run.thread_look_s", 0.01)
    lab, asked = SyncLab(), threading.Event()

    def agent(run: Run) -> Any:
        def ask() -> None:
            try:
                run.ask("ok?")
            finally:
                asked.set()

        with run.step("s"):
            run.thread(ask)
            assert asked.wait(WAIT_S)

    assert lab.run(agent) == "waiting"
