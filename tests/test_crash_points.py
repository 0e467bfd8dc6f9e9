"""`crash_points`: agents that are wrong are found out where they are wrong, and those that are right pass."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import wrong_agents as agents

from runjournal import KEY, Run, StepFailed, tool
from runjournal.log.errors import InvalidArgument
from runjournal.log.limits import crash_output_bytes_max
from runjournal.testing import CrashReport, World, crash_points
from runjournal.testing.refusals import refusal

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="its lives are forked"),
    pytest.mark.requirement("R23"),
]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


def walked(agent: Callable[..., Any], world: World, **how: Any) -> CrashReport:
    """What a walk of an agent of `wrong_agents` finds."""
    return crash_points(lambda run: agent(run, world), world=world, check=False, **how)


def found(report: CrashReport) -> list[tuple[Any, str, str]]:
    return [(each.at, each.point, each.rule) for each in report.failures]


# ------------------------------------------------------------------------------------------------------ wrong agents

FIRST: list[tuple[Callable[..., Any], str, int, str, str, str]] = [
    (agents.no_key, "kill", 11, "effect charge 100", "twice", "hands the receiver no key"),
    (agents.effect_before_intent, "kill", 8, "effect charge 100", "twice", "outside of any tool"),
    (agents.random_key, "kill", 11, "effect charge 100", "twice", "its key is another one each time"),
    (agents.clock_in_a_decision, "kill", 17, "commit.after step.completed", "twice", "by a clock"),
    (agents.swallowed_interrupt, "interrupt", 11, "effect mail ada", "twice", "took the interrupt for a failure"),
    (agents.mutable_default, "kill", 17, "commit.after step.completed", "differs", "a mutable default"),
    (agents.locals_over_each, "kill", 15, "commit.after step.completed", "differs", "loop of run.each"),
    (agents.effect_in_plain_code, "kill", 5, "effect mail ada", "twice", "outside of any tool"),
]
"""Each wrong agent, a way to crash it and a boundary; the name of that, the judge, and a part of a likely cause."""


@pytest.mark.parametrize("first", FIRST, ids=lambda each: each[0].__name__)
def test_a_wrong_agent_is_found_out(first: Any, world: World) -> None:
    """It is red at the boundary where it goes wrong, by the judge that sees it, with what is likely the cause."""
    agent, how, at, point, rule, cause = first
    report = walked(agent, world, how=how, at=at)
    assert [(at, point, rule)] == found(report)
    assert any(cause in each for each in report.failures[0].causes)


WALKS: list[tuple[Callable[..., Any], dict[str, list[int]]]] = [
    (agents.no_key, {"twice": [11, 12, 13]}),
    (agents.effect_before_intent, {"twice": [8, 9, 10]}),
    (agents.random_key, {"twice": [11, 12, 13]}),
    (agents.clock_in_a_decision, {"stuck": list(range(6, 17)), "twice": [17, 18]}),
    (agents.mutable_default, {"differs": list(range(17, 32))}),
    (agents.locals_over_each, {"differs": list(range(15, 28))}),
    (agents.effect_in_plain_code, {"twice": list(range(5, 13))}),
    (agents.swallowed_interrupt, {}),
]


@pytest.mark.crash
@pytest.mark.parametrize("how", ["kill", "interrupt"])
@pytest.mark.parametrize(("agent", "expected"), WALKS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_wrong_agent_is_found_out_wherever_it_is_wrong(agent: Any, expected: Any, how: Any, world: World) -> None:
    """A whole walk finds it at all boundaries where it goes wrong, and at no other one."""
    if agent is agents.swallowed_interrupt and how == "interrupt":
        expected = {"twice": [11]}
    rules: dict[str, list[Any]] = {}
    for each in walked(agent, world, how=how).failures:
        rules.setdefault(each.rule, []).append(each.at)
    assert expected == rules


def test_a_failure_tells_all_and_how_to_repeat_it(world: World) -> None:
    """The AssertionError names boundary, judge, what was passed around it, causes, and the call that finds it again."""
    with pytest.raises(AssertionError) as told:
        crash_points(partial(agents.effect_in_plain_code, world=world), world=world)
    lines = str(told.value).splitlines()
    assert "crash_points: 8 of 13 boundaries fail" == lines[0]
    assert "twice: at 5, killed, effect mail ada: 'mail ada' happened twice; without a crash, once" == lines[2]
    assert "  >   5 effect mail ada  <- killed here" in lines
    assert "  in the next process:" in lines
    assert any(line.startswith("  - it was done in plain code") for line in lines)
    assert "again: crash_points(…, at=5)" in lines
    assert lines[-1].startswith("  twice: killed at 6, 7, 8, 9, 10, 11, 12: ")
    again = walked(agents.effect_in_plain_code, world, at=5)
    assert lines[2] == again.failures[0].brief


# ------------------------------------------------------------------------------------------------------ right agents


@pytest.mark.parametrize(("at", "asked"), [(8, 0), (9, 1), (11, 1), (13, 1), (14, 0)])
def test_a_right_agent_passes(at: int, asked: int, world: World) -> None:
    """One tool that is unsafe: where nobody can know whether it has happened, and only there, the World is asked."""
    mail = agents.sending(world)["mail"]
    report = crash_points(lambda run: run.do("tell", mail, "ada"), world=world, at=at)
    assert (19, (), (), asked) == report[:4]
    assert ["mail ada"] == [each.what for each in world.effects()]


@pytest.mark.parametrize("at", [28, 29, 44])
def test_a_right_asyncio_agent_passes(at: int, world: World) -> None:
    """A function that returns a coroutine is run in asyncio; an interrupt while an end is committed is no end."""
    report = crash_points(lambda run: agents.right_async(run, world), input="go", world=world, how="interrupt", at=at)
    assert (True, ()) == (report.boundaries > at, report.failures)


def test_a_walk_may_begin_where_a_loop_runs(world: World) -> None:
    """A coroutine function is walked from inside a loop, too: its lives have loops of their own."""

    async def test() -> CrashReport:
        return crash_points(partial(agents.right_async, world=world), input="go", world=world, at=30)

    assert () == asyncio.run(test()).failures


@pytest.mark.parametrize("at", [12, 34])
def test_a_right_agent_with_a_person_passes(at: int, world: World) -> None:
    """An approval is given, in each of the runs; after a crash its process goes on."""
    report = crash_points(partial(agents.right_with_a_person, world=world), world=world, at=at)
    assert (True, (), ()) == (report.boundaries > at, report.failures, report.unstable)


@pytest.mark.crash
@pytest.mark.parametrize("how", ["kill", "interrupt"])
@pytest.mark.parametrize("agent", agents.RIGHT, ids=lambda each: each.__name__)
def test_right_agents_pass_everywhere(agent: Any, how: Any, world: World) -> None:
    """Plain, asyncio, and with a person: no boundary of theirs fails, however they are crashed."""
    report = crash_points(partial(agent, world=world), input="go", world=world, how=how)
    assert (True, (), ()) == (report.boundaries > 30, report.failures, report.unstable)


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_a_second_crash_changes_nothing(world: World) -> None:
    """A right agent passes, too, if it is crashed at each boundary and at each one of its recovery."""
    mail = agents.sending(world)["mail"]
    assert () == crash_points(lambda run: run.do("tell", mail, "ada"), world=world, pairs=True).failures


def test_a_second_crash_is_at_a_pair(world: World) -> None:
    """With two boundaries it is crashed at the first, and at the second of those that come after that."""
    report = walked(agents.no_key, world, at=(11, 9))
    assert [((11, 9), "effect charge 100, then effect charge 100", "twice")] == found(report)
    assert "'charge 100' happened 3 times; without a crash, once" == report.failures[0].what
    with pytest.raises(InvalidArgument, match="fewer than 90 boundaries come after boundary 11"):
        walked(agents.no_key, world, at=(11, 90))


# --------------------------------------------------------------------------------------------------- the other judges


def test_what_is_not_done_is_lost(world: World) -> None:
    """An effect whose record was written before it, outside of the tool, doesn't happen after a crash in between."""

    def agent(run: Any) -> None:
        if not run.done("note"):
            with run.step("note"):
                run.memory["mailed"] = True
            run.do("tell", agents.sending(world)["mail"], "ada")

    report = crash_points(agent, world=world, at=10, check=False)
    assert [("lost", "'mail ada' happened never; without a crash, once")] == [(e.rule, e.what) for e in report.failures]


def test_a_run_that_fails_has_lost_its_output(world: World) -> None:
    """An agent that can't stand what it has left behind fails when it is called again, and its output is missing."""

    def agent(run: Any) -> Any:
        if world.happened("begun"):
            raise ValueError("it has begun already")
        world.did("begun")
        return run.do("count", lambda: "done")

    report = crash_points(agent, world=world, at=8, check=False)
    line = agent.__code__.co_firstlineno + 2
    assert ["lost"] == [each.rule for each in report.failures]
    assert report.failures[0].what.startswith("the run has failed, and its output is missing: ")
    assert report.failures[0].what.endswith(f"test_crash_points.py:{line}, in agent: ValueError: it has begun already")


def test_a_run_that_fails_without_a_crash_is_told_of() -> None:
    """A walk over an agent that isn't ready would show nothing: it says so, what was raised, and where in the agent."""

    def cents(order: dict[str, int]) -> int:
        return order["cents"]

    def agent(run: Any) -> Any:
        return run.do("count", partial(cents, json.loads("{}")))

    line = cents.__code__.co_firstlineno + 1
    with pytest.raises(AssertionError) as told:
        crash_points(agent)
    lines = str(told.value).splitlines()
    assert "crash_points: it fails without a crash" == lines[0]
    assert lines[2].startswith("lost: without a crash: the run has failed: ")
    assert lines[2].endswith(f"test_crash_points.py:{line}, in cents: StepFailed: KeyError: 'cents'")
    assert ["", "likely:"] == lines[3:5]


def test_the_place_of_a_failure_is_in_the_agent() -> None:
    """What was raised deep in Python is told where the agent called it."""
    report = crash_points(lambda run: json.loads("x"), check=False)
    line = sys._getframe().f_lineno - 1
    assert f"test_crash_points.py:{line}, in <lambda>: JSONDecodeError: " in report.failures[0].what


def test_an_answer_that_is_paid_for_again_is_found(world: World) -> None:
    """The same question in a step that is another one in each process is paid for twice."""

    def agent(run: Any) -> Any:
        return run.do("ask", lambda: run.model("m", {"q": 1}, lambda _: "answer"), key=time.time_ns())

    report = crash_points(agent, world=world, at=16, check=False)
    assert [(16, "commit.after step.completed", "paid_twice")] == found(report)


def test_a_history_that_a_provider_refuses_is_found() -> None:
    """Where a request has a result without its call the walk says so, and at which boundary."""
    kept: list[Any] = [{"role": "user", "content": "go"}]

    def agent(run: Any) -> Any:
        if not run.done("use"):
            with run.step("use"):
                kept.append({"role": "assistant", "content": [{"type": "tool_use", "id": "t1"}]})
        kept.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1"}]})
        return run.do("ask", lambda: run.model("m", {"messages": kept}, lambda _: "answer"))

    report = crash_points(agent, at=8, check=False)
    what = "m was sent messages that a provider refuses: message 1 answers 't1', which wasn't asked"
    assert [(8, "invalid", what)] == [(each.at, each.rule, each.what) for each in report.failures]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}], None),
        ([{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}], "'a' isn't answered"),
        ([{"role": "user", "content": ""}], "message 0 is empty"),
        (
            [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}, {"role": "user", "content": "no"}],
            "'a' isn't answered once in message 1, directly behind its call",
        ),
        ([{"role": "tool", "tool_call_id": "a", "content": "x"}], "message 0 answers 'a', which wasn't asked"),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "'a' isn't answered"),
        (
            [{"role": "assistant", "tool_calls": [{"id": "a"}]}, {"role": "user", "content": "no"}],
            "'a' isn't answered before message 1",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "a"}]}, {"role": "tool", "tool_call_id": "a"},
             {"role": "assistant", "content": ""}],
            "message 2 is empty",
        ),
        ([{"role": "user", "content": "hi"}, {"role": "assistant", "content": {"tool": "mail"}},
          {"role": "tool", "content": "sent"}], None),
        ([{"role": "tool", "content": "sent"}], None),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "mail"}}]}], None),
        ([{"role": "assistant", "content": [{"type": "tool_use", "name": "mail"}]}], None),
        ([{"role": "user", "content": [{"type": "tool_result", "content": "sent"}]}], None),
        ([{"role": "user", "parts": [{"text": "hi"}]}], None),
        (["hi"], None),
    ],
)  # fmt: skip
def test_what_providers_refuse(messages: Any, expected: str | None) -> None:
    """Calls and results belong together as both providers want it, none is empty, and other shapes aren't judged."""
    assert expected == refusal({"messages": messages})
    assert None is refusal(messages)


def test_a_run_that_does_not_end_is_stuck(tmp_path: Path) -> None:
    """A process that waits for what its dead one held is ended when its time is over."""

    def agent(run: Any) -> None:
        lock = Path(run.input) / str(os.getppid())
        if run.done("lock"):
            return
        with run.step("lock"):
            while lock.exists():
                time.sleep(0.01)
            lock.touch()
            run.memory["locked"] = True
        lock.unlink()

    report = crash_points(agent, input=str(tmp_path), at=8, max_s=0.7, check=False)
    assert [(8, "commit.after memory.set", "stuck")] == found(report)
    assert "a process of it took longer than 0.7 s" == report.failures[0].what
    assert any(line.endswith(" in agent") and __file__ in line for line in report.failures[0].around)


def test_an_agent_that_prints_without_an_end_is_stuck(world: World) -> None:
    """A process that prints more than anybody reads is ended, and the failure says so."""

    def agent(run: Any) -> Any:
        while world.happened("begun"):
            print("x" * 1_000_000)  # noqa: T201 - that is what is tested
        world.did("begun")
        return run.do("count", lambda: "done")

    report = crash_points(agent, world=world, at=8, check=False)
    what = f"a process of it printed more than {crash_output_bytes_max} bytes"
    assert [("stuck", what)] == [(each.rule, each.what) for each in report.failures]
    assert "a loop that doesn't end after a crash, and prints" == report.failures[0].causes[0]


def test_an_agent_that_fails_by_itself_is_told_of_without_a_crash() -> None:
    """If already a run without a crash is stuck, no boundary is tried, and the failure says so."""

    def agent(run: Any) -> None:
        os._exit(3)

    report = crash_points(agent, check=False)
    assert ["stuck: without a crash: its process dies by itself: exit code 3"] == [e.brief for e in report.failures]


def test_what_two_runs_differ_in_is_told_and_not_compared(world: World) -> None:
    """An output, an effect and a question by chance are no failure; what is the same in both is compared."""

    def agent(run: Any) -> Any:
        chance = run.do("draw", lambda: os.urandom(4).hex())
        run.do("tell", agents.sending(world)["mail"], chance)
        return run.do("ask", lambda: run.model("m", {"q": chance}, lambda _: chance))

    report = crash_points(agent, world=world, at=18)
    told = ["the output", "what happened", "what happened", "what m was asked", "what mail was asked"]
    assert told == [each.partition(":")[0] for each in report.unstable]


def test_without_a_person_a_question_is_an_end(world: World) -> None:
    """Nobody answers: a run that waits is at its end, and what it would have done isn't missing."""
    report = crash_points(partial(agents.right_with_a_person, world=world), world=world, at=7, person=None)
    assert (0, ()) == (report.asked, report.failures)
    mail = agents.sending(world)["mail"]
    report = crash_points(lambda run: run.do("tell", mail, "ada"), world=world, at=11, person=None)
    assert (0, (), 19) == (report.asked, report.failures, report.boundaries)


def test_a_retry_does_not_wait_for_its_time(world: World) -> None:
    """A transient failure that leaves the agent is followed by another round, which is due at once here."""

    def agent(run: Any) -> Any:
        if world.did("tried", key="first"):
            raise ConnectionError("no")
        return run.do("count", lambda: "done")

    report = crash_points(agent, world=world, at=4)
    assert (True, ()) == (report.boundaries > 10, report.failures)


class Down(Exception):
    """What a service raises that is down."""


@pytest.mark.parametrize(
    ("given", "at"), [({"read_only": True}, 17), ({"policy": "keyed"}, 17), ({"policy": "keyed"}, 15)]
)
def test_a_retry_more_or_less_is_no_difference(given: Any, at: int, world: World) -> None:
    """A service that is down for its first request, and up after the crash, is asked one time less, which is right."""

    @tool(**given)
    def rates(idempotency_key: str = KEY) -> float:
        world.did("asked")
        if len(world.effects()) < 2:
            raise Down("503")
        return 1.1

    def rated(run: Any) -> Any:
        asked = run.model("m", {"messages": []}, lambda _: "which?")
        return [asked, rates()]

    def agent(run: Any) -> Any:
        for number in range(3):
            with suppress(StepFailed):
                return run.do("rate", partial(rated, run), key=number)
        return None

    assert () == crash_points(agent, world=world, at=at, check=False).failures
    assert ["asked", "asked"] == [each.what for each in world.effects()]


def test_a_call_that_is_not_made_again_is_a_difference() -> None:
    """Where nothing has failed, the second of two equal calls of a tool that acts says something."""

    @tool
    def mail(to: str) -> str:
        return f"told {to}"

    def forgetful(run: Any) -> None:
        entered: list[str] = []
        run.do("tell", lambda: entered.extend([mail("ada")]), key=1)
        if entered:
            run.do("tell", mail, "ada", key=2)

    report = crash_points(forgetful, at=17, check=False)
    what = 'it asked for nothing more; without a crash, for mail {"to": "ada"} in step tell/2'
    assert [("differs", what)] == [(each.rule, each.what) for each in report.failures]


# ------------------------------------------------------------------------------------------------- what it leaves alone


def test_nothing_of_it_is_left(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """No child, no process that a child has begun, no folder, no word on the streams, and nothing done at an exit."""
    folder, at_exit = tmp_path / "temporary", tmp_path / "exit"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    atexit.register(at_exit.touch)
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]

    def agent(run: Any) -> Any:
        print("said", flush=True)  # noqa: T201 - that is what is tested
        os.write(2, b"said\n")
        begun = subprocess.Popen(sleeper)
        (tmp_path / f"pid-{begun.pid}").touch()
        begun.returncode = 0  # it isn't waited for
        return run.do("count", lambda: "done")

    try:
        assert () == crash_points(agent, world=world, at=6).failures
    finally:
        atexit.unregister(at_exit.touch)
    assert ("", "") == capfd.readouterr()
    assert ([], False) == (list(folder.iterdir()), at_exit.exists())
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    pids = [int(each.name.removeprefix("pid-")) for each in tmp_path.glob("pid-*")]
    assert 4 == len(pids)
    until_s = time.monotonic() + 20
    while any(lives(pid) for pid in pids) and time.monotonic() < until_s:  # a kill takes its time
        time.sleep(0.01)
    assert [] == [pid for pid in pids if lives(pid)]


KILLED = """
import os, sys, time
from pathlib import Path
from runjournal.testing import crash_points

def agent(run):
    Path(run.input, "begun.new").write_text(str(os.getpid()))
    Path(run.input, "begun.new").rename(Path(run.input, "begun"))
    time.sleep(600)

crash_points(agent, input=sys.argv[1])
"""
"""A test process whose agent takes its time; it writes down which process it is in."""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's death on Linux alone")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_walk_that_is_killed(how: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its children die with it, and the next walk removes its folder, and none of a walk that goes on."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)]) as process:
        until_s = time.monotonic() + 60
        while not (tmp_path / "begun").exists() and time.monotonic() < until_s:
            time.sleep(0.01)
        child = int((tmp_path / "begun").read_text())
        crash_points(lambda run: None, at=1)
        assert (1, True) == (len(list(folder.iterdir())), lives(child))
        process.send_signal(how)
    until_s = time.monotonic() + 20
    while lives(child) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert (1, False) == (len(list(folder.iterdir())), lives(child))
    while list(folder.iterdir()) and time.monotonic() < until_s:  # its last thread may still be about to end
        crash_points(lambda run: None, at=1)
    assert [] == list(folder.iterdir())


def lives(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie that waits for its new parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_random_is_another_one_in_each_process(world: World) -> None:
    """A child doesn't draw what its parent would have drawn: a key by `random` differs from process to process."""
    import random

    def agent(run: Any) -> Any:
        world.did("charge 100", key=str(random.random()))
        return run.do("count", lambda: "done")

    random.seed(1)
    assert [(6, "twice")] == [
        (each.at, each.rule) for each in crash_points(agent, world=world, at=6, check=False).failures
    ]


# ---------------------------------------------------------------------------------------------------------- the World


def test_a_world_does_once_what_has_a_key(world: World) -> None:
    """What comes again under a key is noted and doesn't happen; another one of the World reads the same."""
    assert [True, False, True, True] == [
        world.did("charge 1", "k"), world.did("charge 1", "k"), world.did("charge 2", "k"), world.did("charge 1")
    ]  # fmt: skip
    again = World(world.path)
    assert [False, True, False, False] == [each.again for each in again.effects()]
    assert (True, True, False) == (again.happened("charge 1"), again.happened("charge 2", "k"), again.happened("mail"))
    world.begin("another run")
    assert ([], True) == (world.effects(), world.did("charge 1", "k"))


def test_a_key_that_is_used_for_two_things_is_found(world: World) -> None:
    """A receiver would take the second for the first, or refuse it."""

    def agent(run: Any) -> Any:
        for cents in run.each("pay", [100, 200]):
            run.do("pay", partial(agents.sending(world)["charge"].fn, cents, idempotency_key="order-7"), key=cents)
        return "done"

    report = crash_points(agent, world=world, at=2, check=False)
    assert ["the key 'order-7' was used for 'charge 100', then for 'charge 200'"] == [e.what for e in report.failures]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"agent": 7}, "agent: expected a function of a run, got int"),
        ({"world": "w"}, "world: expected a World, got str"),
        ({"how": "power cut"}, "how: expected one or both of kill, interrupt, got 'power cut'"),
        ({"how": ()}, "how: expected one or both"),
        ({"at": 0}, "at: expected a boundary, from 1 on, or two of them, got 0"),
        ({"at": (1, 2, 3)}, "at: expected a boundary"),
        ({"at": 99}, "at: there are 12 boundaries, from 1 to 12; got 99"),
        ({"person": "me"}, "person: expected 'world' or None, got 'me'"),
        ({"max_s": 0}, "max_s: expected seconds, more than 0, got 0"),
    ],
)
def test_bad_arguments_are_refused(given: dict[str, Any], match: str) -> None:
    """What can't be right is refused in words that say what can."""
    how = {"agent": lambda run: run.do("count", lambda: 1)} | given
    with pytest.raises(InvalidArgument, match=match):
        crash_points(how.pop("agent"), **how)


def test_without_fork_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform without fork is told so at once."""
    monkeypatch.delattr(os, "fork")
    with pytest.raises(InvalidArgument, match="this platform has no fork"):
        crash_points(lambda run: None)


def test_a_world_refuses_what_is_none(tmp_path: Path, world: World) -> None:
    """A folder, a file of something else, and a place that can't be written are no World, and it takes texts."""
    (tmp_path / "notes").write_text("buy milk\n")
    for path, match in (
        (tmp_path, "is a folder"),
        (tmp_path / "notes", "holds something else"),
        (tmp_path / "no" / "w", "can't be written"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            World(path)
    assert "buy milk\n" == (tmp_path / "notes").read_text()
    for what in ("", 7):
        with pytest.raises(InvalidArgument, match="did: expected texts"):
            world.did(what)  # type: ignore[arg-type]  # that is what is tested


def test_a_world_that_was_not_passed_is_told_of(world: World) -> None:
    """An agent whose World the walk doesn't know is stopped, with what to write."""
    report = crash_points(lambda run: world.did("mail"), check=False)
    assert ["stuck"] == [each.rule for each in report.failures]
    assert "call crash_points(agent, world=world)" in report.failures[0].what


def test_a_walk_inside_a_walk_is_refused() -> None:
    """An agent that walks over itself is told that this isn't the place."""

    def agent(run: Any) -> Any:
        return crash_points(agent)

    report = crash_points(agent, check=False)
    assert "crash_points was called inside an agent that it crashes" in report.failures[0].what


def asked_child(run: Run) -> Any:
    """A child that sleeps, and asks a person to choose."""
    run.sleep(for_s=60)
    return run.ask("which?", choices=["first", "second"])["choice"]


def test_a_family_is_walked() -> None:
    """What a child waits for comes: its time, and a person who answers its question with the first choice."""

    def parent(run: Run) -> Any:
        return run.do("kid", lambda: run.call_child(asked_child))

    found = crash_points(parent, at=1)
    assert () == found.failures
    assert 20 < found.boundaries
