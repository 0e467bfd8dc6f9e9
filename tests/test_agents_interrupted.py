"""Agents that do what agents do, killed at a hundred random places each: they end as if nothing had been."""

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from crashing import Agent, at_random, everywhere, outside

from runjournal import KEY, AsyncRun, CallFailed, Run, tool
from runjournal.engine import failures as f

POINTS = 100


@tool
def mail(to: str) -> str:
    return outside.did("mail", to)


@tool(policy="keyed")
def charge(order: int, *, idempotency_key: str = KEY) -> str:
    outside.fails("charge", 1)
    return outside.did("charge", order, idempotency_key)


@tool(policy="keyed")
def book(seat: str, *, idempotency_key: str = KEY) -> str:
    return outside.did("book", seat, idempotency_key)


def tries_again(run: Run) -> Any:
    """The first charge fails; what it was told of that is in its messages."""

    def order() -> str:
        try:
            receipt = charge(7)
        except CallFailed as failure:
            run.message("tool", str(failure))
            receipt = charge(7)
        run.message("tool", receipt)
        run.memory["receipt"] = receipt
        return mail("ann")

    return [run.do("order", order), run.do("tell", mail, "bob")]


def is_json(answer: Any) -> None:
    json.loads(answer)


def rejects_an_answer(run: Run) -> Any:
    """Three answers in a row can't be read; it catches that, and asks once more."""

    def plan() -> Any:
        for _ in range(2):
            try:
                answer = run.model("m", {"question": "whom?"}, outside.says, check=is_json)
            except CallFailed as failure:
                run.message("user", f"JSON, please: {failure.type}")
            else:
                run.message("assistant", answer)
                return mail(json.loads(str(answer))["to"])
        return "gave up"

    return run.do("plan", plan)


def knows_the_time(run: Run) -> Any:
    """Its prompts say when it is; no two of them are equal."""

    def turn() -> list[str]:
        sent = list[str]()
        for question in ("who is first?", "who is next?"):
            answer = run.model("m", {"now": datetime.now().isoformat(), "question": question}, outside.says)  # noqa: DTZ005
            run.message("assistant", answer)
            sent.append(mail(str(answer)))
        return sent

    return [run.do("turn", turn), run.do("book", book, "12A")]


@tool(policy="idempotent")
async def look(where: str) -> str:
    await asyncio.sleep(outside.world.random.random())
    return f"seen {where}"


@tool
async def mail_slowly(to: str) -> str:
    return await outside.did_slowly("mail_slowly", to)


@tool(policy="keyed")
async def book_slowly(seat: str, *, idempotency_key: str = KEY) -> str:
    return await outside.did_slowly("book_slowly", seat, idempotency_key)


async def does_six_things_at_once(run: AsyncRun) -> Any:
    """Who is faster is another one each time."""

    async def all_of_it() -> list[str]:
        done = await asyncio.gather(
            look("here"), mail_slowly("ann"), book_slowly("1A"), look("there"), mail_slowly("bob"), book_slowly("1B")
        )
        run.memory["done"] = list(done)
        return list(done)

    return await run.do("all", all_of_it)


def does_it_twice(run: Run) -> Any:
    """Two equal calls are two effects."""

    def both() -> list[str]:
        run.memory["first"] = mail("ann")
        return [mail("ann"), book("1A"), book("1A")]

    return run.do("both", both)


AGENTS: list[tuple[Agent, list[Any], dict[tuple[str, str], int]]] = [
    (tries_again, [], {("charge", "7"): 1, ("mail", '"ann"'): 1, ("mail", '"bob"'): 1}),
    (rejects_an_answer, ["{oops", "no", "[", '{"to": "ann"}'], {("mail", '"ann"'): 1}),
    (knows_the_time, ["ann", "bob"], {("mail", '"ann"'): 1, ("mail", '"bob"'): 1, ("book", '"12A"'): 1}),
    (
        does_six_things_at_once,
        [],
        {
            ("mail_slowly", '"ann"'): 1,
            ("mail_slowly", '"bob"'): 1,
            ("book_slowly", '"1A"'): 1,
            ("book_slowly", '"1B"'): 1,
        },
    ),
    (does_it_twice, [], {("mail", '"ann"'): 2, ("book", '"1A"'): 2}),
]


@pytest.mark.parametrize(("agent", "answers", "effects"), AGENTS, ids=[each[0].__name__ for each in AGENTS])
@pytest.mark.parametrize("sqlite", [False, True], ids=["memory", "sqlite"])
def test_killed_at_random_places(
    agent: Agent, answers: list[Any], effects: dict[tuple[str, str], int], sqlite: bool, tmp_path: Path
) -> None:
    """It ends as the one that nobody killed: the same context and output, each effect once and under one key."""
    points, folder = (20, tmp_path) if sqlite else (POINTS - 20, None)
    whole, ends = at_random(agent, points, folder, answers=answers)
    assert ("completed", effects) == (whole.status, whole.effects)
    for end in ends:
        assert (None, whole.facts) == (end.stop, end.facts)
        assert {1} == set(end.keys.values()) or not all(key for _, _, key in end.keys)


def test_an_answer_is_paid_for_once() -> None:
    """Who is killed once asks for at most one answer again: the one that got lost with him."""
    whole, ends = everywhere(knows_the_time, answers=["ann", "bob"])
    assert {0, 1} == {len(end.world.asked) - len(whole.world.asked) for end in ends}


@tool
def note(text: str) -> str:
    return outside.did("note", text)


def writes_the_time(run: Run) -> None:
    """The time of day is in what an unsafe tool is given."""
    run.do("note", lambda: [note(f"it is {datetime.now().isoformat()}"), mail("ann")])  # noqa: DTZ005


def test_a_clock_in_an_argument_of_an_unsafe_tool() -> None:
    """Nothing is sent a second time: the step has diverged, and the message says where the time is to come from."""
    whole, ends = everywhere(writes_the_time)
    assert "completed" == whole.status
    diverged = [end for end in ends if end.stop is not None]
    for end in ends:
        assert 1 >= sum(count for (name, _), count in end.effects.items() if name == "note")
        assert ("waiting" if end in diverged else "completed") == end.status
    assert {f.StepDiverged} == {type(end.stop) for end in diverged}
    assert all("is made once, in a step before this one, `x = run.do(name, make)`" in str(end.stop) for end in diverged)
    assert any(("mail", '"ann"') in end.effects for end in diverged)
    assert any(("mail", '"ann"') not in end.effects for end in diverged)
