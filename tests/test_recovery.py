"""Recovery, looked at: verdicts by the policy that was frozen at the start, and nothing written."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from runjournal.async_journal import AsyncJournal
from runjournal.engine.failures import NotInRun, RunBusy
from runjournal.engine.tools import tool
from runjournal.engine.verdict import judge
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.limits import lease_s
from runjournal.log.owner import Moment
from runjournal.runner import Runner
from runjournal.testing.generate import claim
from runjournal.writing import folding, states

PAST, FUTURE = "2020-01-01T00:00:00.000000Z", "2036-01-01T00:00:00.000000Z"


def crashed(policy: str, *, expires: str | None = None, ended: e.Event | None = None) -> Journal:
    """A run whose owner died with one call open, in an open step."""
    journal = Journal.open("memory:", clock=FakeClock())
    journal.append("r", [e.RunQueued("k", None), claim(1)], expect=0)
    start = e.ToolStarted("c", "t", {"to": "bob"}, policy, False, "ask", 1, key_expires_at=expires)
    events = [e.StepStarted(0, "s", "s", "once", 1, 1), start, *([ended] if ended else [])]
    journal.append("r", events, expect=2, epoch=1)
    return journal


@pytest.mark.requirement("R4")
@pytest.mark.requirement("R59")
@pytest.mark.requirement("R60")
@pytest.mark.requirement("R62")
@pytest.mark.requirement("R63")
@pytest.mark.requirement("R68")
@pytest.mark.parametrize(
    ("policy", "expires", "verdict"),
    [
        ("idempotent", None, "run"),
        ("transactional", None, "run"),
        ("keyed", FUTURE, "run"),
        ("keyed", PAST, "ask"),
        ("unsafe", None, "ask"),
    ],
)
def test_verdicts(policy: str, expires: str | None, verdict: str) -> None:
    """An open call is listed with its tool, exact args, key and start; its policy says what becomes of it."""
    with crashed(policy, expires=expires) as journal:
        (found,) = journal.recover("r").verdicts
        assert ("c", "t", policy, {"to": "bob"}, verdict) == (
            found.key, found.tool, found.policy, found.args, found.verdict
        )  # fmt: skip
        assert found.started_at.startswith("2026-01-02T")


def test_an_attempt_that_did_nothing_is_made_again():
    """An unsafe call whose only attempt said that it did nothing may be sent."""
    with crashed("unsafe") as journal:
        call = journal.state("r").calls.known["c"]
        call.maybe = []
        assert "run" == judge(call, None, Moment(FUTURE, "", 0)).verdict


@pytest.mark.requirement("R67")
def test_recovering_writes_nothing():
    """Looking at a run leaves the log as it is; taking it is one more append."""
    with crashed("unsafe") as journal:
        recovery = journal.recover("r")
        assert 4 == journal.head("r").head_seq
        taken = recovery.take()
        assert taken is not None
        assert (2, 6) == (taken.epoch, journal.head("r").head_seq)


def test_recover_all_goes_on_with_what_may_go_on():
    """Runs without a living owner are gone on with by the agent of their kind; others are left alone."""
    with crashed("idempotent") as journal:
        journal.append("q", [e.RunQueued("other", None)], expect=0)

        def agent(run):
            with run.step("s"):
                run.memory["done"] = True
            return "ok"

        assert {"r": "ok"} == journal.recover_all({"k": agent})
        assert "queued" == journal.head("q").status


def test_recover_all_goes_past_a_run_that_cannot_go_on():
    """Code that goes another way than the log stops its own run, once; the others go on, and it is told of."""

    def begun(journal, run_id):
        def agent(run):
            with run.step("old"):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            journal.run(agent, run_id=run_id, kind="k")

    calls = []

    def agent(run):
        calls.append(run.id)
        with run.step("old" if run.id == "b" else "new"):
            run.memory["done"] = True
        return "ok"

    with Journal.open("memory:") as journal:
        for run_id in "abc":
            begun(journal, run_id)
        found = journal.recover_all({"k": agent})
        assert {"a": "PlanChanged", "b": "str", "c": "PlanChanged"} == {k: type(v).__name__ for k, v in found.items()}
        assert ["a", "b", "c"] == sorted(calls)
        assert ["waiting", "completed", "waiting"] == [journal.head(run_id).status for run_id in "abc"]


def test_recover_all_of_asyncio_agents():
    """They go on at the same time, as many as are allowed; each has its own end."""
    running, most = 0, 0

    async def agent(run):
        nonlocal running, most
        running += 1
        most = max(most, running)
        async with run.step("s"):
            await asyncio.sleep(0)
        running -= 1
        if run.id == "r1":
            raise ValueError("no")
        return run.id

    with AsyncJournal.open("memory:") as journal:
        for number in range(5):
            journal.enqueue("k", run_id=f"r{number}")
        found = asyncio.run(journal.recover_all_async({"k": agent}, concurrency=2))
        assert ["r0", "ValueError", "r2", "r3", "r4"] == [
            type(found[run_id]).__name__ if run_id == "r1" else found[run_id] for run_id in sorted(found)
        ]
        assert 2 == most


def test_twenty_recoveries_of_one_attempt_are_the_bound():
    """A step in which calls end, but that never does, is not tried for ever: the 21st recovery stops the run."""

    class Died(BaseException):
        pass

    @tool
    def ping(n):
        return n

    entries = []

    def agent(run):
        with run.step("s"):
            entries.append(1)
            for n in range(len(entries)):
                ping(n)
            raise Died

    clock = FakeClock()
    with Journal.open("memory:", clock=clock) as journal:
        journal.enqueue("k", run_id="r")
        runner = Runner(journal, {})
        for _ in range(21):
            claim = runner.claim("r")
            assert claim is not None
            run, _ = runner.open(claim)
            with pytest.raises(Died):
                agent(run)
            clock.elapsed_s += 2 * lease_s
        assert runner.claim("r") is None
        status = journal.state("r").status
        assert ("waiting", 21, 21) == (status.status, status.recoveries, len(entries))
        assert "21 recoveries within one attempt of step s" == status.why


def test_a_lease_that_ran_out_is_renewed_before_a_call_or_nothing_is_sent():
    """A process that slept past its lease looks before it sends: still its run, or another's by now."""
    sent = []

    @tool
    def ping(n):
        sent.append(n)
        return n

    clock = FakeClock()
    with Journal.open("memory:", clock=clock) as journal:

        def agent(run):
            with run.step("s"):
                ping(1)
                clock.elapsed_s += 2 * lease_s
                ping(2)
                before = journal.head("r").lease_until or 0.0
                clock.elapsed_s += 2 * lease_s
                other = Journal(journal.store, by="other").claim("r")
                assert other is not None
                assert (2, True) == (other.epoch, before > 2 * lease_s)
                ping(3)

        with pytest.raises(RunBusy):
            journal.run(agent, run_id="r")
        assert [1, 2] == sent
        assert "running" == journal.head("r").status


def test_a_lease_that_was_renewed_is_remembered(monkeypatch):
    """The store is asked once, not before each call that follows."""
    clock, asked = FakeClock(), list[str]()

    @tool(read_only=True)
    def ping(n):
        return n

    with Journal.open("memory:", clock=clock) as journal:
        heartbeat = journal.store.heartbeat

        def counted(run_id, *args):
            asked.append(run_id)
            return heartbeat(run_id, *args)

        monkeypatch.setattr(journal.store, "heartbeat", counted)

        def agent(run):
            with run.step("s"):
                clock.elapsed_s += 2 * lease_s
                return [ping(n) for n in range(3)]

        assert [0, 1, 2] == journal.run(agent, run_id="r")
    assert ["r"] == asked


def counted_loads(monkeypatch):
    """The runs whose states were loaded from the store, as often as they were."""
    loads, load = list[str](), folding.load

    def counted(store, reading, run_id, *args, **how):
        loads.append(run_id)
        return load(store, reading, run_id, *args, **how)

    monkeypatch.setattr(folding, "load", counted)
    return loads


def test_an_owner_goes_on_from_the_state_of_its_queued_run(monkeypatch):
    """What was folded when the run was queued is handed over to its first owner: nothing is loaded."""
    loads = counted_loads(monkeypatch)
    with Journal.open("memory:", clock=FakeClock()) as journal:
        journal.append("r", [e.RunQueued("k", None)], expect=0)
        journal.append("r", [claim(1)], expect=1)
        journal.append("r", [e.StepStarted(0, "s", "s", "once", 1, 1)], expect=2, epoch=1)
    assert [] == loads


def test_the_state_of_an_owned_run_outlives_those_of_others(monkeypatch):
    """While an owner is at work any number of other runs are appended to: its state is not loaded again."""
    monkeypatch.setattr(states, "states_cached_max", 4)
    loads = counted_loads(monkeypatch)

    def agent(run):
        run.do("a", int)
        for number in range(20):
            journal.enqueue("k", run_id=f"r{number}")
        before = len(loads)
        run.do("b", int)
        return len(loads) - before

    with Journal.open("memory:", clock=FakeClock()) as journal:
        assert 0 == journal.run(agent, run_id="r")


def test_a_run_inside_a_step_of_another_one():
    """Its tools are its own: called outside its steps they are in no run, in its step they are that step's."""

    @tool(read_only=True)
    def look(n):
        return n

    def inner(run):
        with pytest.raises(NotInRun):
            look(1)
        return run.do("look", look, 2)

    async def inner_async(run):
        with pytest.raises(NotInRun):
            look(1)
        return await run.do("look", look, 3)

    with AsyncJournal.open("memory:") as journal:

        def outer(run):
            with run.step("s"):
                found = [journal.run(inner, run_id="in"), look(4)]
                return [*found, asyncio.run(journal.run_async(inner_async, run_id="in2")), look(5)]

        assert [2, 4, 3, 5] == journal.run(outer, run_id="out")
        args = {
            run_id: [r.event.args["n"] for r in journal.events(run_id) if isinstance(r.event, e.ToolStarted)]
            for run_id in ("out", "in", "in2")
        }
        assert {"out": [4, 5], "in": [2], "in2": [3]} == args


def test_the_states_of_owned_runs_are_kept(monkeypatch):
    """However many runs a process has at the same time, none of them is folded again; of others the last are kept."""
    monkeypatch.setattr(states, "states_cached_max", 4)
    loads = counted_loads(monkeypatch)

    async def agent(run):
        for n in range(5):
            async with run.step("s", key=n):
                run.message("user", "x")
                await asyncio.sleep(0)

    with AsyncJournal.open("memory:") as journal:
        for number in range(20):
            journal.enqueue("k", run_id=f"r{number}")
        asyncio.run(journal.recover_all_async({"k": agent}, concurrency=20))
        assert 2 >= max(Counter(loads).values())
        journal.enqueue("k", run_id="more")
        assert 4 == len(journal.ownership.appender.states._cache)
