"""One verdict: what `recover` says of an open call is what the engine then does, whatever the tool was and is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from runjournal.engine import tools
from runjournal.engine.callees import ToolTarget, today
from runjournal.engine.failures import CallOutcomeUnknown, RunWaiting
from runjournal.engine.tools import KEY, Tool, tool
from runjournal.engine.verdict import UNDECIDED, judge, key_lives
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.clock import FakeClock, timestamp
from runjournal.log.errors import CallEnded
from runjournal.log.owner import Moment, moment
from runjournal.projections.calls import Call

POLICIES = ("idempotent", "transactional", "keyed", "unsafe")
HOOKS = ("happened", "did_not_happen", "unknown", "raises")
SAID = (None, "happened", "did_not_happen", "retry", "unknown")
THEN_AND_NOW = (("ask", "fail"), ("fail", "tell"), ("tell", "ask"), ("ask", "ask"))
"""What the tool says of a call that nobody knows of, as it was recorded and today."""
KNOWLEDGE = [*((None, said) for said in SAID), *((says, None) for says in HOOKS), ("happened", "did_not_happen")]
"""What the tool's hook says, None for no hook, and what somebody said before the run went on."""
TTL_S = 60.0


@dataclass
class World:
    """How often a body ran and a hook was asked, and whether the process dies in the body."""

    dies: bool = True
    bodies: int = 0
    asked: int = 0
    made: dict[str, Any] = field(default_factory=dict[str, Any])

    def work(self) -> str:
        """The effect."""
        self.bodies += 1
        if self.dies:
            raise KeyboardInterrupt
        return "sent"


def hook(world: World, says: str) -> Callable[..., Any]:
    """A hook that says this."""

    def reconcile(args, key):
        world.asked += 1
        if says == "raises":
            raise RuntimeError("no")
        return says, "found" if says == "happened" else None

    return reconcile


def made(world: World, policy: str, on_unknown: str, says: str | None = None, *, registered: bool = True) -> Tool:
    """A tool named t of this policy; an adapter makes one that no registry knows."""

    def plain(to):
        return world.work()

    def keyed(to, *, idempotency_key=KEY):
        return world.work()

    def transactional(tx, to):
        return world.work()

    body = {"keyed": keyed, "transactional": transactional}.get(policy, plain)
    how: dict[str, Any] = {} if policy == "transactional" else {"on_unknown": on_unknown}
    if says is not None and policy != "transactional":
        how["reconcile"] = hook(world, says)
    if policy == "keyed":
        how["key_ttl_s"] = TTL_S
    tools._known.pop("t", None)
    if not registered:
        return Tool(body, "t", policy, **how)
    return tool(policy=policy, name="t", **how)(body)


def crashed(journal: Journal, then: str, on_unknown: str) -> str:
    """A run that died in the body of a tool that was so; the id of the call."""
    world = World()
    first = made(world, then, on_unknown)
    with pytest.raises(KeyboardInterrupt):
        journal.run(lambda run: run.do("s", first, "bob"), run_id="r")
    assert 1 == world.bodies
    return next(iter(journal.state("r").calls.known))


def done(journal: Journal, world: World, now: Tool) -> str:
    """What the engine does with the call when the run goes on."""
    try:
        journal.run(lambda run: run.do("s", now, "bob"), run_id="r")
    except RunWaiting:
        return "ask"
    except CallOutcomeUnknown:
        return "fail" if journal.state("r").calls.unresolved() else "tell"
    return "run" if world.bodies else "recorded"


def clocks(journal: Journal) -> Moment:
    """What the clocks say now."""
    return moment(journal.clock, journal.ownership.process)


START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def at(wall_s: float, boot_id: str = "one", boottime_s: float | None = None) -> Moment:
    """Some seconds after the key was born, by the wall clock and since boot."""
    since = 100 + (wall_s if boottime_s is None else boottime_s)
    return Moment(timestamp(START + timedelta(seconds=wall_s)), boot_id, since)


@pytest.mark.parametrize(
    ("now", "lives"),
    [
        (at(0), True),
        (at(59.9), True),
        (at(60), False),
        (at(-10, boottime_s=59.9), True),
        (at(-10, boottime_s=60), False),
        (at(30, boottime_s=60), False),
        (at(60, boottime_s=1), False),
        (at(1, boottime_s=-1), False),
        (at(0, "two"), True),
        (at(59.9, "two", -50), True),
        (at(60, "two", 1), False),
        (at(-0.1, "two", 1), False),
        (at(-0.1, "", 1), False),
    ],
)
def test_the_age_of_a_key_is_proven_or_it_has_expired(now, lives):
    """The seconds since boot prove it in the same boot; in another the wall clock does, unless it has gone back."""
    born = {"boot_id": "one", "boottime_s": 100}
    expires = timestamp(START + timedelta(seconds=60))
    call = Call("t", "keyed", "s", maybe=[1], key_expires_at=expires, key_since=timestamp(START), key_born=born)
    assert lives is key_lives(call, now)
    call.key_born = None  # as it was recorded before anybody said
    assert (timestamp(START) <= now.now < expires) is key_lives(call, now)


@dataclass
class SetBack(FakeClock):
    """A wall clock that can be set back."""

    back_s: float = 0.0

    def now(self) -> datetime:
        return super().now() - timedelta(seconds=self.back_s)


def test_a_clock_that_was_set_back_does_not_make_a_key_live_again():
    """It has been forgotten by its receiver: the call isn't sent again, and `recover` says so."""
    with Journal.open("memory:", clock=SetBack()) as journal:
        crashed(journal, "keyed", "ask")
        journal.clock.sleep(TTL_S + 1)
        journal.clock.back_s = 30.0
        world = World(dies=False)
        now = made(world, "keyed", "ask")
        assert ["ask"] == [each.verdict for each in journal.recover("r").verdicts]
        assert ("ask", 0) == (done(journal, world, now), world.bodies)


@pytest.mark.parametrize("late", [False, True], ids=["key lives", "key expired"])
@pytest.mark.parametrize("then", POLICIES)
@pytest.mark.parametrize("now", [*POLICIES, "unknown here"])
def test_recover_says_what_the_engine_does(then, now, late):
    """For every policy then and now, on_unknown, hook and word; of a tool that no registry knows the record counts."""
    policy = now if now in POLICIES else then
    for (then_ask, now_ask), (says, said) in product(THEN_AND_NOW, KNOWLEDGE):
        if says is not None and now == "unknown here":
            continue  # a hook that no registry knows is asked when the agent asks
        case = f"{then}/{then_ask} -> {now}={policy}/{now_ask}, hook {says}, somebody said {said}"
        with Journal.open("memory:", clock=FakeClock()) as journal:
            call_id = crashed(journal, then, then_ask)
            call = journal.state("r").calls.known[call_id]
            if said is not None and call.unresolved:
                journal.resolve("r", call_id, said, "told" if said == "happened" else None)
            if late:
                journal.clock.sleep(TTL_S + 1)
            world = World(dies=False)
            today_s = made(world, policy, now_ask, says, registered=now in POLICIES)
            verdicts = {each.key: each.verdict for each in journal.recover("r").verdicts}
            call = journal.state("r").calls.known[call_id]
            assert (call.status == "open") == (call_id in verdicts), case
            known = today(ToolTarget(today_s)) if now in POLICIES else None
            verdict = verdicts.get(call_id) or judge(call, known, clocks(journal)).verdict
            asked_first = verdict == "hook"
            if asked_first and says in ("happened", "did_not_happen"):
                verdict = "recorded" if says == "happened" else "run"
            elif asked_first:
                assert known is not None
                verdict = judge(call, known._replace(hook=False), clocks(journal)).verdict
            if verdict in UNDECIDED and now == "unknown here" and not (call_id in verdicts and verdict == "ask"):
                verdict = judge(call, today(ToolTarget(today_s)), clocks(journal)).verdict
            assert (verdict, asked_first) == (done(journal, world, today_s), world.asked > 0), case


def test_a_key_is_of_no_use_to_a_tool_that_no_longer_passes_it_on():
    """A call recorded as keyed whose tool is unsafe today isn't sent again, and `recover` says so."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        crashed(journal, "keyed", "ask")
        world = World(dies=False)
        now = made(world, "unsafe", "ask")
        (found,) = journal.recover("r").verdicts
        assert ("ask", "it may have happened, and its tool of today passes no key on") == (found.verdict, found.why)
        assert ("ask", 0) == (done(journal, world, now), world.bodies)


@pytest.mark.parametrize(("recorded", "then"), [("ask", "ask"), ("fail", "tell"), ("tell", "ask")])
def test_a_tool_that_no_registry_knows_is_judged_by_what_was_recorded(recorded, then):
    """What an adapter made is asked about if its call was recorded so; else the agent's own tool says what becomes."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        crashed(journal, "unsafe", recorded)
        world = World(dies=False)
        now = made(world, "unsafe", "fail" if recorded == "ask" else then, registered=False)
        assert [recorded] == [each.verdict for each in journal.recover("r").verdicts]
        assert (then, 0) == (done(journal, world, now), world.bodies)


def test_a_call_that_was_told_and_settled_is_sent_again():
    """After `tell` nobody is asked any more: a retry that asks for the call sends it, and so does the verdict say."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        call_id = crashed(journal, "unsafe", "tell")
        world = World(dies=False)
        now = made(world, "unsafe", "tell")
        (found,) = journal.recover("r").questions
        assert ("tell", "tell", 0) == (found.verdict, done(journal, world, now), world.bodies)
        call = journal.state("r").calls.known[call_id]
        assert (True, False, "run") == (
            call.settled,
            call.unresolved,
            judge(call, today(ToolTarget(now)), clocks(journal)).verdict,
        )
        with pytest.raises(CallEnded):
            journal.append("r", [e.ToolResolved(call_id, 1, "happened")])
        again = journal.retry("r")
        assert "sent" == journal.run(lambda run: run.do("s", now, "bob"), run_id=again)
        (started,) = journal.events(again, types=["tool.started"])
        assert (1, 2) == (world.bodies, started.event.attempt)


def test_the_agent_is_not_called_before_a_person_has_spoken():
    """It couldn't go on: the run waits before a line of the agent's is executed."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        crashed(journal, "unsafe", "ask")
        now, called = made(World(dies=False), "unsafe", "ask"), list[bool]()
        with pytest.raises(RunWaiting):
            journal.run(lambda run: (called.append(True), run.do("s", now, "bob"))[1], run_id="r")
        assert [] == called


def test_a_word_that_nobody_knows_is_told_and_asked_of_nobody():
    """A person who doesn't know either has said so: the call isn't asked about again, nor sent, and stays open."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        call_id = crashed(journal, "unsafe", "ask")
        journal.resolve("r", call_id, "unknown")
        call, world = journal.state("r").calls.known[call_id], World(dies=False)
        assert (True, True, "unknown") == (call.said, call.unresolved, call.status)
        assert ("fail", 0) == (done(journal, world, made(world, "unsafe", "ask")), world.bodies)
