"""Small agents whose second entry differs a little: nothing happens twice, and no answer goes to another question.

A process runs a plan and dies; the next one runs a plan that differs in its order, its keys, its receivers, or comes on
another day or with a clock that was set back; then the first plan goes on. What the engine refuses is fine. The world's
ledger says what was done, and each call says to whom its result belongs.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from inspect import isawaitable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runjournal import KEY, AsyncJournal, tool
from runjournal.engine import failures as f
from runjournal.engine.driver import finished
from runjournal.log.clock import FakeClock
from runjournal.log.errors import JournalError

TTL_S = 3600.0


class DiedError(BaseException):
    """The process dies here."""


@dataclass
class Slipping(FakeClock):
    """A clock on the wall that is wrong by `slip_s`; `elapsed_s` is the true time."""

    slip_s: float = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.slip_s)


class Op(NamedTuple):
    """A call of a step: of which kind, on which receiver, with which argument, and how often that fails at first."""

    kind: str
    receiver: str
    x: int
    bad: int


class Plan(NamedTuple):
    """What a process runs: a step for each key, with these calls; when it comes, and at which tick it dies."""

    keys: list[str]
    ops: list[Op]
    later_s: float = 0.0
    slip_s: float = 0.0
    dies_at: int = 0


@dataclass
class World:
    """The ledger: how often something was done under a key, by services that remember a key for an hour."""

    clock: Slipping = field(default_factory=Slipping)
    done: Counter[str] = field(default_factory=Counter[str])
    results: dict[str, str] = field(default_factory=dict[str, str])
    forgotten_at: dict[str, float] = field(default_factory=dict[str, float])
    tries: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    ticks_left: int = 0

    def tick(self) -> None:
        self.ticks_left -= 1
        if self.ticks_left == 0:
            raise DiedError

    def act(self, policy: str, result: str, key: str, bad: int) -> str:
        """One request arrives; it may fail behind its effect, and its sender may die before it and behind it."""
        self.tick()
        if policy == "keyed" and self.clock.elapsed_s < self.forgotten_at.get(key, 0.0):
            return self.results[key]
        if policy != "look":
            self.done[key] += 1
        self.results[key] = result
        self.forgotten_at[key] = self.clock.elapsed_s + TTL_S
        self.tick()
        self.tries[result] += 1
        if self.tries[result] <= bad:
            raise ValueError(result)
        return result

    def ask(self, request: dict[str, Any], place: int) -> dict[str, Any]:
        """A model tells what it was asked, and in which place of its step, which isn't part of the question."""
        self.tick()
        return {"to": request["q"], "place": place}

    def answered(self, question: str, place: int, answer: dict[str, Any]) -> None:
        """An answer is that to its equal; or to the one in its place that differs in its date alone."""
        same_place = (question[:-10], place) == (answer["to"][:-10], answer["place"])
        if question != answer["to"] and not same_place:
            self.wrong.append(f"{question!r} in place {place} was answered {answer!r}")


class Service:
    """A receiver, of which there are two."""

    def __init__(self, name: str, world: World) -> None:
        self.runjournal_id = name
        self.world = world

    def act(self, policy: str, kind: str, x: int, bad: int, key: str) -> str:
        return self.world.act(policy, f"{kind} {self.runjournal_id} {x}", key, bad)

    @tool(name="random_unsafe", on_unknown="ask")
    def unsafe(self, x: int, bad: int, *, idempotency_key: str = KEY) -> str:
        return self.act("unsafe", "unsafe", x, bad, idempotency_key)

    @tool(name="random_keyed", policy="keyed", key_ttl_s=TTL_S, on_unknown="ask")
    def keyed(self, x: int, bad: int, *, idempotency_key: str = KEY) -> str:
        return self.act("keyed", "keyed", x, bad, idempotency_key)

    @tool(name="random_own", key="own-{self}-{x}", on_unknown="ask")
    def own(self, x: int, bad: int, *, idempotency_key: str = KEY) -> str:
        return self.act("unsafe", "own", x, bad, idempotency_key)

    @tool(name="random_look", read_only=True)
    def look(self, x: int, bad: int, *, idempotency_key: str = KEY) -> str:
        return self.act("look", "look", x, bad, idempotency_key)

    @tool(name="random_once", read_only=True, key="once-{self}-{x}")
    def once(self, x: int, bad: int, *, idempotency_key: str = KEY) -> str:
        return self.act("look", "once", x, bad, idempotency_key)


async def value(found: Any) -> Any:
    """What a verb of a run in threads gives, or the coroutine of one in asyncio."""
    return await found if isawaitable(found) else found


@asynccontextmanager
async def step_of(run: Any, key: str) -> AsyncGenerator[None]:
    block = run.step("item", key=key)
    if hasattr(block, "__aenter__"):
        async with block:
            yield
    else:
        with block:
            yield


async def agent(run: Any, plan: Plan, world: World) -> str:
    """It goes by a plan, catches what fails, and looks whether it was told of what it asked for."""
    services = {name: Service(name, world) for name in ("one", "two")}
    for key in run.each("item", plan.keys):
        try:
            async with step_of(run, key):
                for place, op in enumerate(plan.ops):
                    asked_before = sum(other.kind == "ask" for other in plan.ops[:place])
                    await use(run, op, services[op.receiver], world, asked_before)
        except f.StepFailed as failure:
            if failure.type not in {"ValueError", "KeyReused"}:
                world.wrong.append(str(failure))
    return "done"


async def use(run: Any, op: Op, service: Service, world: World, place: int) -> None:
    if op.kind == "ask":
        day = (world.clock.now() + timedelta(days=op.bad)).date()
        question = f"{op.receiver} {op.x} on {day}"
        world.answered(question, place, await value(run.model("m", {"q": question}, partial(world.ask, place=place))))
        return
    try:
        got = await value(getattr(service, op.kind)(op.x, op.bad))
    except f.CallFailed as failure:
        if op.bad > 1:
            raise
        got = failure.message
    if got != (wanted := f"{op.kind} {op.receiver} {op.x}"):
        world.wrong.append(f"{wanted!r} was told {got!r}")


def in_threads(journal: AsyncJournal, run_id: str, plan: Plan, world: World) -> Any:
    return journal.run(lambda run: finished(agent(run, plan, world)), run_id=run_id)


def in_asyncio(journal: AsyncJournal, run_id: str, plan: Plan, world: World) -> Any:
    async def main(run: Any) -> str:
        return await agent(run, plan, world)

    return asyncio.run(journal.run_async(main, run_id=run_id))


def go(drive: Callable[..., Any], journal: AsyncJournal, run_id: str, plan: Plan, world: World) -> str:
    """Run a plan until it is stopped, and answer as the ledger knows; gives the id of the run that goes on."""
    world.ticks_left = plan.dies_at
    world.clock.elapsed_s += plan.later_s
    world.clock.slip_s = plan.slip_s
    for _ in range(20):
        try:
            drive(journal, run_id, plan, world)
        except f.RunWaiting as waits:
            for wait in waits.waits:
                happened = world.done[wait["id"]] > 0
                result = world.results[wait["id"]] if happened else None
                journal.resolve(run_id, wait["id"], "happened" if happened else "did_not_happen", result)
        except f.RunNotDue:
            world.clock.sleep(10)
        except (f.RunFailed, f.CallOutcomeUnknown):
            run_id = journal.retry(run_id)
        except (DiedError, f.Stop, JournalError):
            return run_id
        else:
            return run_id
    return run_id


XS = st.integers(1, 2)
OPS = st.builds(
    Op,
    st.sampled_from(["unsafe", "keyed", "own", "look", "once", "ask", "ask"]),
    st.sampled_from(["one", "two"]),
    XS,
    st.sampled_from([0, 0, 1, 2]),
)
KEYS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True)


@st.composite
def entries(draw: st.DrawFn) -> list[Plan]:
    """A plan that dies, one that differs from it a little, and the first one again."""
    first = Plan(draw(KEYS), draw(st.lists(OPS, min_size=1, max_size=4)), dies_at=draw(st.integers(1, 12)))
    keys, ops = list(first.keys), list(first.ops)
    place = draw(st.integers(0, len(ops) - 1))
    match draw(st.sampled_from(["time", "turned", "twice", "less", "more", "another", "keys", "double", "none"])):
        case "turned":
            ops.reverse()
        case "twice":
            ops.insert(place, ops[place])
        case "less":
            del ops[place]
        case "more":
            ops.insert(place, draw(OPS))
        case "another":
            ops[place] = draw(OPS)
        case "keys":
            keys.reverse()
        case "double":
            keys = [key for key in keys for _ in range(2)]
        case "none":
            keys = []
    later = st.sampled_from([0.0, 0.0, TTL_S / 2, TTL_S, 86_400.0])
    slip = st.sampled_from([0.0, 0.0, -TTL_S, -2 * 86_400.0, TTL_S])
    second = Plan(keys, ops, draw(later), draw(slip), draw(st.sampled_from([0, 0, 1, 3, 6])))
    return [first, second, first._replace(later_s=draw(later), slip_s=draw(slip), dies_at=0)]


@pytest.mark.parametrize("drive", [in_threads, in_asyncio])
@given(plans=entries())
@settings(max_examples=int(os.environ.get("EXAMPLES", "150")))
def test_a_second_entry_that_differs_does_nothing_twice(
    drive: Callable[..., Awaitable[Any]], plans: list[Plan]
) -> None:
    """Under each key something happens once at most, and each call is told of itself, whatever the next entry asks."""
    world, run_id = World(), "r"
    with closing(AsyncJournal.open("memory:", clock=world.clock)) as journal:
        for plan in plans:
            run_id = go(drive, journal, run_id, plan, world)
    assert {} == {key: count for key, count in world.done.items() if count > 1}
    assert [] == world.wrong
