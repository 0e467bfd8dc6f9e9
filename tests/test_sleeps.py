"""Sleeps and waits for signals: engine.md W22 to W25."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from runjournal import AsyncJournal, AsyncRun, Journal, Run, RunNotDue, RunWaiting
from runjournal.cli.app import cli
from runjournal.engine import failures as f
from runjournal.log.clock import FakeClock, parse_timestamp
from runjournal.log.errors import NotAllowed
from runjournal.looking.standing import stand_of, standing

HOUR = 3600.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def journal(clock: FakeClock) -> Iterator[Journal]:
    with Journal.open("memory:", clock=clock) as journal:
        yield journal


def types(journal: Journal, run_id: str = "r") -> list[str]:
    return [record.type for record in journal.events(run_id)]


def test_ten_hours_of_sleep_with_two_restarts_inside(tmp_path: Path) -> None:
    """Each process is told the time that the first one put on record; what came before is done once."""
    clock, did = FakeClock(), list[str]()

    def agent(run: Run) -> str:
        with run.step("night"):
            run.model("m", "before", lambda _: did.append("before"))
            run.sleep(for_s=10 * HOUR)
            run.model("m", "after", lambda _: did.append("after"))
        return "morning"

    due = set[str]()
    for hours in (0, 3, 4):
        clock.sleep(hours * HOUR)
        with Journal.open(tmp_path / "runs.db", clock=clock) as journal, pytest.raises(RunNotDue) as raised:
            journal.run(agent, run_id="r")
        due.add(raised.value.due_at)
    assert 1 == len(due)
    clock.sleep(3 * HOUR)
    with Journal.open(tmp_path / "runs.db", clock=clock) as journal:
        assert "morning" == journal.run(agent, run_id="r")
        assert 1 == types(journal).count("timer.set")
        assert 1 == types(journal).count("timer.fired")
    assert ["before", "after"] == did


def test_a_process_that_dies_asleep_goes_on_sleeping(journal: Journal, clock: FakeClock) -> None:
    """The time counts from when the agent asked for it first, also where the process was killed before it waited."""
    lives: list[int] = []

    def agent(run: Run) -> None:
        with run.step("work"):
            run.sleep(for_s=3)
            lives.append(1)
            if len(lives) == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        journal.run(agent, run_id="r")
    before = clock.now()
    journal.run(agent, run_id="r")
    assert clock.now() - before < timedelta(seconds=1)
    assert 1 == types(journal).count("timer.set")


def test_a_sleep_outside_a_step_is_a_step_of_its_own(journal: Journal, clock: FakeClock) -> None:
    """It is done once; one in a loop takes a key."""

    def agent(run: Run) -> float:
        began = parse_timestamp(run.do("began", lambda: clock.now().isoformat()))
        for n in range(3):
            run.sleep(for_s=HOUR, key=n)
        run.sleep(until=began + timedelta(hours=5))
        return (clock.now() - began).total_seconds() // HOUR

    assert 5 == journal.run(agent, run_id="r", wait_s=10 * HOUR)
    assert {"sleep 3600s/0", "sleep 3600s/1", "sleep 3600s/2", "sleep until"} <= set(journal.state("r").steps.completed)


def test_a_time_that_is_worked_out_anew_is_the_one_on_record(journal: Journal, clock: FakeClock) -> None:
    """`until` made of today's clock in each process doesn't move the time: it would never come."""

    def agent(run: Run) -> str:
        with run.step("wait"):
            run.sleep(until=clock.now() + timedelta(hours=1))
        return "done"

    with pytest.raises(RunNotDue) as first:
        journal.run(agent, run_id="r")
    clock.sleep(HOUR / 2)
    with pytest.raises(RunNotDue) as second:
        journal.run(agent, run_id="r")
    assert first.value.due_at == second.value.due_at
    assert "a sleep" in second.value.cause
    clock.sleep(HOUR / 2)
    assert "done" == journal.run(agent, run_id="r")


def test_equal_sleeps_of_a_step_are_several(journal: Journal, clock: FakeClock) -> None:
    """Asked for twice is meant twice; a new attempt of its step sleeps anew."""

    def agent(run: Run) -> float:
        began = clock.now()
        with run.step("twice"):
            run.sleep(for_s=2)
            run.sleep(for_s=2)
        return (clock.now() - began).total_seconds()

    assert 4 <= journal.run(agent, run_id="r") < 5


def test_tasks_sleep_side_by_side(clock: FakeClock) -> None:
    """The run waits for the first of them that is due, and goes on with that one; each is told in its turn again."""
    with AsyncJournal.open("memory:", clock=clock) as journal:
        order: list[str] = []

        async def one(run: AsyncRun, name: str, hours: int) -> str:
            await run.sleep(for_s=hours * HOUR)
            order.append(name)
            return name

        async def agent(run: AsyncRun) -> list[str]:
            order.clear()
            async with run.step("all"):
                return list(await asyncio.gather(one(run, "c", 3), one(run, "a", 1), one(run, "b", 2)))

        assert ["c", "a", "b"] == asyncio.run(journal.run_async(agent, run_id="r", wait_s=10 * HOUR))
        assert ["a", "b", "c"] == order
        assert 3 == types(journal).count("run.waiting")


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"for_s": 1, "until": datetime.fromisoformat("2026-01-01T00:00:00+00:00")},
        {"for_s": -1},
        {"for_s": float("nan")},
        {"for_s": "an hour"},
        {"for_s": True},
        {"for_s": 1e10},
        {"until": datetime.fromisoformat("2026-01-01")},
        {"until": 5},
    ],
    ids=str,
)
def test_what_is_no_time_to_sleep_is_a_mistake(journal: Journal, wrong: dict[str, Any]) -> None:
    """It fails nothing, and the text says what is expected."""
    with pytest.raises(f.WrongArgument, match=r"run\.sleep.*expected"):
        journal.run(lambda run: run.sleep(**wrong), run_id="r", kind="agent")
    assert "queued" == journal.head("r").status


# Signals.


def waits_for_it(run: Run) -> Any:
    with run.step("wait"):
        return run.wait_signal("paid")


def test_a_run_waits_for_a_signal(journal: Journal) -> None:
    """It leaves its process, the signal wakes it, and its payload is returned."""
    with pytest.raises(RunWaiting, match="the signal 'paid'"):
        journal.run(waits_for_it, run_id="r")
    journal.signal("r", "other", 1)
    with pytest.raises(RunWaiting):
        journal.run(waits_for_it, run_id="r")
    journal.signal("r", "paid", {"eur": 5})
    assert {"eur": 5} == journal.run(waits_for_it, run_id="r")


def test_a_signal_that_came_before_is_taken_at_once(journal: Journal) -> None:
    """The oldest of its name comes first, each is taken once, and `signals` doesn't return what was waited for."""
    journal.enqueue("agent", run_id="r")
    for n, name in enumerate(["paid", "other", "paid", "paid"]):
        journal.signal("r", name, n)

    def agent(run: Run) -> list[Any]:
        with run.step("first"):
            told = [run.wait_signal("paid"), run.wait_signal("paid"), run.signals(), run.wait_signal("paid", 0)]
        with run.step("second"):
            return [*told, run.signals()]

    assert [0, 2, [1, 3], None, []] == journal.run(agent, run_id="r")


def test_a_wait_that_times_out_says_so_again(journal: Journal, clock: FakeClock) -> None:
    """None, live as after a crash, though the signal has come since; that one is there for the next wait."""
    told: list[Any] = []

    def agent(run: Run) -> list[Any]:
        with run.step("wait"):
            first = run.wait_signal("paid", timeout_s=HOUR)
            told.append(first)
            if len(told) == 1:
                raise KeyboardInterrupt
            return [first, run.wait_signal("paid")]

    with pytest.raises(RunWaiting) as raised:
        journal.run(agent, run_id="r")
    assert ["signal"] == [wait["kind"] for wait in raised.value.waits]
    clock.sleep(HOUR)
    with pytest.raises(KeyboardInterrupt):
        journal.run(agent, run_id="r")
    journal.signal("r", "paid", 7)
    assert [None, 7] == journal.run(agent, run_id="r")


def test_a_step_that_fails_gives_its_signal_back(journal: Journal) -> None:
    """A step takes what it waited for only if it completes: its next attempt is told the same one."""
    journal.enqueue("agent", run_id="r")
    journal.signal("r", "paid", 1)
    tries: list[Any] = []

    def agent(run: Run) -> Any:
        for _ in range(2):
            try:
                with run.step("wait"):
                    tries.append(run.wait_signal("paid"))
                    if len(tries) == 1:
                        raise ValueError("no")
            except f.StepFailed:
                continue
        return tries

    assert [1, 1] == journal.run(agent, run_id="r")


def test_a_wait_outside_a_step_is_a_step_of_its_own(journal: Journal) -> None:
    """Its result is on record; in a loop it takes a key."""

    def agent(run: Run) -> list[Any]:
        return [run.wait_signal("paid", key=n) for n in range(2)]

    for n in range(2):
        with pytest.raises(RunWaiting):
            journal.run(agent, run_id="r")
        journal.signal("r", "paid", n)
    assert [0, 1] == journal.run(agent, run_id="r")


def test_tasks_that_wait_for_one_name_take_one_signal_each(clock: FakeClock) -> None:
    """Who asked first is told the oldest; the other one goes on waiting."""
    with AsyncJournal.open("memory:", clock=clock) as journal:

        async def agent(run: AsyncRun) -> list[Any]:
            async with run.step("wait"):
                return list(await asyncio.gather(run.wait_signal("paid"), run.wait_signal("paid")))

        for n in range(2):
            with pytest.raises(RunWaiting):
                asyncio.run(journal.run_async(agent, run_id="r"))
            journal.signal("r", "paid", n)
        assert [0, 1] == asyncio.run(journal.run_async(agent, run_id="r"))


def test_a_run_that_is_waited_for_is_woken_by_its_signal(journal: Journal, clock: FakeClock) -> None:
    """Whoever runs it with `wait_s` looks whether the signal comes before the time is over."""
    slept = clock.sleep

    def sleep(seconds: float) -> None:
        slept(seconds)
        if seconds and journal.head("r").wake_at is None:
            journal.signal("r", "paid", "now")

    clock.sleep = sleep  # type: ignore[method-assign]
    before = clock.now()

    def agent(run: Run) -> Any:
        return run.wait_signal("paid", timeout_s=HOUR)

    assert "now" == journal.run(agent, run_id="r", wait_s=2 * HOUR)
    assert clock.now() - before < timedelta(seconds=10)


@pytest.mark.parametrize("wrong", [("", None), ("x" * 600, None), ("paid", -1), ("paid", float("inf"))], ids=str)
def test_what_cannot_be_waited_for_is_a_mistake(journal: Journal, wrong: tuple[str, Any]) -> None:
    """It fails nothing."""
    with pytest.raises(f.WrongArgument, match=r"wait_signal|the name of a signal"):
        journal.run(lambda run: run.wait_signal(*wrong), run_id="r", kind="agent")
    assert "queued" == journal.head("r").status


def test_a_signal_comes_once_under_its_id(journal: Journal) -> None:
    """Sent again it is the same one, also when a step has taken it; another payload or name is refused."""
    journal.enqueue("agent", run_id="r")
    journal.signal("r", "paid", {"eur": 5}, signal_id="s1")

    def agent(run: Run) -> list[Any]:
        with run.step("one"):
            first = run.wait_signal("paid")
        journal.signal("r", "paid", {"eur": 5}, signal_id="s1")
        with run.step("two"):
            return [first, run.wait_signal("paid", timeout_s=0)]

    with pytest.raises(NotAllowed, match="'s1' has come before, with another name or payload"):
        journal.signal("r", "paid", {"eur": 6}, signal_id="s1")
    with pytest.raises(NotAllowed, match="'s1'"):
        journal.signal("r", "unpaid", {"eur": 5}, signal_id="s1")
    assert [{"eur": 5}, None] == journal.run(agent, run_id="r")
    assert 1 == types(journal).count("signal.received")


def test_a_retry_knows_the_signals_of_the_run_before_it(journal: Journal) -> None:
    """It has that one's inbox, so what is sent to the line once more isn't another signal."""
    journal.enqueue("agent", run_id="r")
    journal.signal("r", "paid", 1, signal_id="s1")
    journal.cancel("r")
    retry = journal.retry("r")
    journal.signal("r", "paid", 1, signal_id="s1")
    assert "signal.received" not in types(journal, retry)
    with pytest.raises(NotAllowed):
        journal.signal("r", "paid", 2, signal_id="s1")
    assert 1 == journal.run(waits_for_it, run_id="r", kind="agent")


def test_a_sleep_and_a_pause_are_explained(journal: Journal, clock: FakeClock) -> None:
    """Whoever looks at the run is told what it waits for and when it goes on, in plain words."""

    def sleeps(run: Run) -> None:
        run.sleep(for_s=HOUR)

    with pytest.raises(RunNotDue):
        journal.run(sleeps, run_id="r")
    stands = standing(stand_of(journal, journal.head("r")))
    assert ("timer", True) == (stands.word, "it waits for a sleep, until 2026" in stands.why)
    clock.sleep(HOUR)
    assert "overdue" == standing(stand_of(journal, journal.head("r"))).word


def test_every_look_at_a_run_that_sleeps_says_so(tmp_path: Path) -> None:
    """The command line has words for a wait that asks nobody."""
    store = tmp_path / "runs.db"
    with Journal.open(store) as journal, pytest.raises(RunNotDue):
        journal.run(lambda run: run.sleep(for_s=1000), run_id="r")
    for words in (["show", "r"], ["explain", "r"], ["questions"], ["ls"], ["audit", "r"]):
        done = CliRunner().invoke(cli, ["--db", str(store), *words], catch_exceptions=False)
        assert 0 == done.exit_code, done.output
        assert "error" not in done.output.lower().replace("errors", "")
