"""Children: runs that a run begins and waits for (engine.md K1 to K12)."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from crashing import everywhere, finish, outside

from runjournal import KEY, AsyncJournal, AsyncRun, Journal, Run, RunWaiting, tool
from runjournal.engine import failures as f
from runjournal.log import events as e

FIVE = range(5)


@tool(policy="keyed")
def send(n: int, *, idempotency_key: str = KEY) -> str:
    return outside.did("send", n, idempotency_key)


@tool(policy="keyed")
async def send_slowly(n: int, *, idempotency_key: str = KEY) -> str:
    return await outside.did_slowly("send", n, idempotency_key)


def child(run: Run) -> Any:
    return run.do("send", lambda: send(run.input))


def fans_out(run: Run) -> Any:
    if not run.done("fan out"):
        with run.step("fan out"):
            run.memory["children"] = [run.spawn(child, input=n) for n in FIVE]
    return run.do("fan in", lambda: [run.wait_child(child_id, child) for child_id in run.memory["children"]])


async def child_async(run: AsyncRun) -> Any:
    return await run.do("send", lambda: send_slowly(run.input))


async def fans_out_async(run: AsyncRun) -> Any:
    async def all_of_them() -> Any:
        return await asyncio.gather(*(run.call_child(child_async, input=n) for n in FIVE))

    return await run.do("fan out", all_of_them)


@pytest.mark.parametrize("agent", [fans_out, fans_out_async])
def test_five_children_while_the_parent_is_killed_at_every_boundary(agent: Any) -> None:
    """Whatever boundary of its fan-out and fan-in it dies at, each child acts once and its result is told once."""
    whole, ends = everywhere(agent)
    assert ("completed", [f"send {n}" for n in FIVE], None) == (whole.status, whole.output, whole.stop)
    for end in [whole, *ends]:
        assert whole.facts == end.facts
        assert dict.fromkeys((("send", json.dumps(n)) for n in FIVE), 1) == end.effects
        assert 6 == len(end.world.store.heads(limit=100))
        records = list(end.world.store.read("r"))
        told = [x.event for x in records if isinstance(x.event, e.ChildFinished)]
        begun = [x.event for x in records if isinstance(x.event, e.ChildSpawned)]
        assert {x.child_run_id: 1 for x in begun} == Counter(x.child_run_id for x in told)
        assert 5 == len(begun)
