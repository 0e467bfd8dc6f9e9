"""Agents for `crash_points`: eight that are wrong, each in its way, and three that are right.

Each is a function of a run and a World. They are as small as they can be, so that a walk is short.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from runjournal import KEY, AsyncRun, Run, tool
from runjournal.testing import World


def sending(world: World) -> dict[str, Any]:
    """The tools of the agents, on this World."""

    @tool(policy="keyed")
    def charge(cents: int, *, idempotency_key: str = KEY) -> int:
        world.did(f"charge {cents}", key=idempotency_key, once=True)
        return cents

    @tool(policy="keyed")
    def charge_without_key(cents: int, *, idempotency_key: str = KEY) -> int:
        world.did(f"charge {cents}", once=True)
        return cents

    @tool(policy="keyed")
    def charge_under_any_key(cents: int, *, idempotency_key: str = KEY) -> int:
        world.did(f"charge {cents}", key=str(uuid.uuid4()))
        return cents

    @tool
    def mail(to: str) -> str:
        world.did(f"mail {to}", once=True)
        return f"told {to}"

    @tool
    def mail_stubbornly(to: str) -> str:
        for _ in range(3):
            try:
                world.did(f"mail {to}", once=True)
            except BaseException:  # noqa: BLE001 - that is what is wrong
                continue
            return f"told {to}"
        return "failed"

    return {each.name: each for each in (charge, charge_without_key, charge_under_any_key, mail, mail_stubbornly)}


# ------------------------------------------------------------------------------------------------------------ wrong


def no_key(run: Run, world: World) -> int:
    """Its tool is keyed, and the receiver isn't told the key."""
    cents: int = run.do("pay", sending(world)["charge_without_key"], 100)
    return cents


def effect_before_intent(run: Run, world: World) -> bool:
    """It acts in a function of a `do`: nothing is on record before that it is going to."""
    return run.do("pay", partial(world.did, "charge 100", once=True))


def random_key(run: Run, world: World) -> int:
    """The receiver is told another key each time."""
    cents: int = run.do("pay", sending(world)["charge_under_any_key"], 100)
    return cents


def clock_in_a_decision(run: Run, world: World) -> int:
    """Which step is next is decided by a clock."""
    cents: int = run.do("pay", sending(world)["charge"], 100, key=time.time_ns())
    return cents


def swallowed_interrupt(run: Run, world: World) -> str:
    """Its tool takes an interrupt for a failure, and tries again."""
    told: str = run.do("tell", sending(world)["mail_stubbornly"], "ada")
    return told


def mutable_default(run: Run, world: World, told: list[str] = []) -> list[str]:  # noqa: B006 - that is what is wrong
    """What it has done stands in a default, which is empty in the next process."""
    mail = sending(world)["mail"]
    if not run.done("ada"):
        told.append(run.do("ada", mail, "ada"))
    told.append(run.do("bob", mail, "bob"))
    return told


def locals_over_each(run: Run, world: World) -> int:
    """It counts in a variable, over steps that aren't entered again."""
    charge, total = sending(world)["charge"], 0
    for cents in run.each("pay", [100, 200]):
        with run.step("pay", cents):
            total += charge(cents)
    return total


def effect_in_plain_code(run: Run, world: World) -> int:
    """It acts outside of any tool."""
    world.did("mail ada", once=True)
    return run.do("count", lambda: 1)


# ------------------------------------------------------------------------------------------------------------ right


def asked(request: Any) -> Any:
    """A model that asks for a charge and a mail, and then is content."""
    if len(request["messages"]) > 1:
        return {"content": [{"type": "text", "text": "done"}], "usage": {"input_tokens": 3, "output_tokens": 2}}
    uses = [("t1", "charge", {"cents": 100}), ("t2", "mail", {"to": "ada"})]
    return {"content": [{"type": "tool_use", "id": id_, "name": name, "input": args} for id_, name, args in uses]}


def right(run: Run, world: World) -> Any:
    """Plain code: a model's turns, and what counts kept in its memory."""
    tools = sending(world)
    while (answer := run.turn("m", {"max_tokens": 9}, [tools["charge"], tools["mail"]], asked)) is None:
        pass
    for cents in run.each("pay", [200, 300]):
        with run.step("pay", cents):
            run.memory["paid"] = run.memory.get("paid", 0) + tools["charge"](cents)
    return [answer, run.memory["paid"]]


async def right_async(run: AsyncRun, world: World) -> Any:
    """Asyncio: the calls of an answer are in flight together."""
    tools = sending(world)
    while (answer := await run.turn("m", {"max_tokens": 9}, [tools["charge"], tools["mail"]], asked)) is None:
        pass
    return [answer, await run.do("more", tools["charge"], 200)]


def right_with_a_person(run: Run, world: World) -> Any:
    """A person is asked before something that can't be undone."""
    tools = sending(world)
    args = run.ask("charge", args={"cents": 100})
    paid = run.do("pay", tools["charge"], args["cents"])
    return [paid, run.do("tell", tools["mail"], "ada")]


WRONG: list[Callable[..., Any]] = [
    no_key, effect_before_intent, random_key, clock_in_a_decision, swallowed_interrupt, mutable_default,
    locals_over_each, effect_in_plain_code,
]  # fmt: skip
RIGHT: list[Callable[..., Any]] = [right, right_async, right_with_a_person]
