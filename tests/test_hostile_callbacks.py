"""Small agents whose callbacks are struck, one mutation after another: raised at, killed at, or given a hostile value.

Whatever strikes, in either driver: no step completes while a call that it asked for has no end, a run that is gone on
with ends, and what isn't repeatable is sent once.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from test_recordable import SlyError, SlyValue, nested

from runjournal import KEY, AsyncJournal, AsyncRun, Run, tool
from runjournal.engine import failures as f


class Gone(BaseException):
    """An interrupt of the user's own."""


STRIKES: dict[int, Callable[[], Any]] = {}
TICKS = [0]
SENT: Counter[str] = Counter()
TOLD = (f.CallFailed, f.ResultUnusable, f.CallOutcomeUnknown, f.StepFailed)


def tick(value: Any) -> Any:
    """What a callback comes to: its value, or what strikes at this place."""
    TICKS[0] += 1
    strike = STRIKES.pop(TICKS[0], None)
    return value if strike is None else strike()


def strikes() -> list[Callable[[], Any]]:
    """What may strike."""

    def raises(error: BaseException) -> Callable[[], Any]:
        def strike() -> Any:
            raise error

        return strike

    errors: list[BaseException] = [Gone(), ValueError("x"), SlyError(), TimeoutError(), f.DidNotHappen(), f.NotSent()]
    values: list[Any] = [nested(64), {"\ud800": 1}, SlyValue(), None, False, ("happened", nested(64)), 2**70]
    return [*(raises(error) for error in errors), *(lambda value=value: value for value in values)]


def look(args: Any, key: str) -> Any:
    """A hook that tells the truth, unless it is struck."""
    return tick(("happened", "found") if SENT[key] else ("did_not_happen", None))


@tool(policy="keyed", reconcile=look, name="struck hooked")
def hooked(x: int, *, idempotency_key: str = KEY) -> Any:
    """A keyed tool with a hook."""
    before = tick(x)
    SENT[idempotency_key] += 1
    return tick(before)


@tool(policy="idempotent", into=tick, name="struck parsed")
def parsed(x: int) -> Any:
    """A tool whose result is parsed."""
    return tick(x)


@tool(on_unknown="fail", name="struck unsafe")
def unsafe(x: int) -> Any:
    """An unsafe tool."""
    SENT[f"unsafe {x}"] += 1
    try:
        return tick(x)
    except f.DidNotHappen:
        SENT[f"unsafe {x}"] -= 1
        raise


def ops(run: Any, place: int) -> list[Callable[[], Any]]:
    """The snippets that agents are made of."""
    return [
        lambda: run.call(hooked, 1),
        lambda: run.call(parsed, 1),
        lambda: run.call(unsafe, 10 * place + 1),
        lambda: run.call(unsafe, 10 * place + 2),
        lambda: run.model("m", "q", lambda _: tick({"id": "a"}), check=lambda _: tick(None)),
        lambda: run.model("m", "r", lambda _: tick("b"), usage=lambda _: tick(None), into=tick),
        lambda: run.parallel([(hooked, {"x": 2}), (unsafe, {"x": 10 * place + 3}), (parsed, {"x": 2})]),
    ]


def sync_agent(plan: list[list[int]]) -> Callable[[Run], Any]:
    """An agent of these snippets, by step."""

    def agent(run: Run) -> None:
        for place, step in enumerate(plan):
            if not run.done("s", place):
                try:
                    with run.step("s", place):
                        for op in step:
                            with suppress(TOLD):
                                ops(run, place)[op]()
                        tick(None)
                except f.StepFailed:
                    pass

    return agent


def async_agent(plan: list[list[int]]) -> Callable[[AsyncRun], Any]:
    """The same for asyncio, each step's calls in flight together."""

    async def agent(run: AsyncRun) -> None:
        for place, step in enumerate(plan):
            if not run.done("s", place):
                try:
                    async with run.step("s", place):
                        await asyncio.gather(*(ops(run, place)[op]() for op in step), return_exceptions=True)
                        tick(None)
                except f.StepFailed:
                    pass

    return agent


def go_on(journal: AsyncJournal, plan: list[list[int]], *, asyncio_: bool) -> None:
    """Run it, and run it again, until it has ended; people say the truth."""
    for _ in range(20):
        try:
            if asyncio_:
                asyncio.run(journal.run_async(async_agent(plan), run_id="r"))
            else:
                journal.run(sync_agent(plan), run_id="r")
        except (Gone, Exception):  # noqa: BLE001 - it is gone on with
            pass
        if journal.head("r").status in ("completed", "failed"):
            return
        journal.clock.sleep(0)
    raise AssertionError(f"it doesn't end: {journal.head('r').status}")


def judge(journal: AsyncJournal) -> None:
    """No step completed over an open call; what isn't repeatable was sent once."""
    open_: set[tuple[str, int]] = set()
    for record in journal.events("r"):
        if record.type in ("step.started", "run.claimed"):
            open_.clear()  # another entry
        if record.type in ("tool.started", "model.started"):
            open_.add((record.event.call_id, record.event.attempt))
        if record.type in ("tool.completed", "tool.failed", "model.completed", "model.failed"):
            open_.discard((record.event.call_id, record.event.attempt))
        if record.type == "tool.resolved":
            open_ = {each for each in open_ if each[0] != record.event.call_id}
        if record.type == "step.completed":
            assert set() == open_
    assert {0, 1} >= {count for sent, count in SENT.items() if sent.startswith("unsafe")}


def mutate(seed: int, *, asyncio_: bool) -> None:
    """One agent, and one or two strikes at its callbacks."""
    chance = random.Random(seed)
    plan = [chance.sample(range(7), chance.randint(1, 3)) for _ in range(chance.randint(1, 2))]
    SENT.clear()
    STRIKES.clear()
    TICKS[0] = 0
    for _ in range(chance.randint(1, 2)):
        STRIKES[chance.randint(1, 14)] = chance.choice(strikes())
    with AsyncJournal.open("memory:") as journal:
        try:
            go_on(journal, plan, asyncio_=asyncio_)
            judge(journal)
        except BaseException as error:
            told = [f"{record.seq} {record.type}" for record in journal.events("r")]
            raise AssertionError(f"seed {seed}, asyncio {asyncio_}, {plan}: {told}") from error


@pytest.mark.parametrize("asyncio_", [False, True])
@pytest.mark.parametrize("seeds", range(4))
def test_a_sample_of_mutations(seeds: int, *, asyncio_: bool) -> None:
    """A hundred agents, the same ones every time."""
    for seed in range(seeds * 25, seeds * 25 + 25):
        mutate(seed, asyncio_=asyncio_)


@pytest.mark.crash
@pytest.mark.parametrize("asyncio_", [False, True])
def test_many_mutations(*, asyncio_: bool) -> None:
    """Thousands of them."""
    for seed in range(1_000, 6_000):
        mutate(seed, asyncio_=asyncio_)
