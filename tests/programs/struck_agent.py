"""Agents that are data, in plain code and in asyncio, for `strike.py`; what they do outside goes to a ledger file.

A program is {"parts": [[kind, name, blocks], …], "of": the first run's id}. The blocks of a step are lists of
operations; `draw` makes a program from a seed. Each asked x is another one but for those of "twice", so that what an
effect is asked for is to be seen in the ledger: `tool key x`, one line an effect.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from runjournal.async_run import AsyncRun
from runjournal.engine import failures as f
from runjournal.engine.tools import KEY, tool
from runjournal.run import Run

REFUSED, LATE = 4, 5
"""The last digit of an x of which nothing comes; of one of which an error comes after the effect, if it has a key."""


class Outside:
    """What is outside of the process: a ledger, and a person who mends what is down.

    The process kills itself before or behind the write of number `at`; events that were acknowledged count, too.
    """

    def __init__(self) -> None:
        self.folder = Path()
        self.ledger = self.acknowledged = -1
        self.at = self.writes = 0
        self.when = ""

    def open(self, folder: Path, at: int = 0, when: str = "") -> None:
        self.folder, self.at, self.when, self.writes = folder, at, when, 0
        self.ledger = os.open(folder / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.acknowledged = os.open(folder / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, file: int, text: str) -> None:
        self.writes += 1
        mine = self.writes == self.at
        if mine and self.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(file, text.encode())
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)

    def act(self, name: str, x: int, key: str) -> str:
        if x % 10 == REFUSED:
            raise ValueError("refused")
        if x % 3 == 0:
            time.sleep(0.001)
        self.write(self.ledger, f"{name} {key} {x}\n")
        if x % 4 == 0:
            time.sleep(0.001)
        return told_of(name, x, key)

    def lines(self) -> list[tuple[str, str, int]]:
        found = [line.split() for line in (self.folder / "ledger").read_text().splitlines()]
        return [(name, key, int(x)) for name, key, x in found]

    def happened(self, key: str) -> bool:
        return key in {line[1] for line in self.lines()}

    def mended(self) -> Path:
        return self.folder / "mended"


OUTSIDE: Final = Outside()


def told_of(name: str, x: int, key: str) -> str:
    return f"{name}:{x}:{key[:8]}"


def look(args: Any, key: str) -> Any:
    """The hook of `push`."""
    return ("happened", told_of("push", args["x"], key)) if OUTSIDE.happened(key) else ("did_not_happen", None)


@tool(policy="idempotent")
def note(x: int, *, idempotency_key: str = KEY) -> str:
    return OUTSIDE.act("note", x, idempotency_key)


@tool(policy="idempotent")
def down(x: int) -> str:
    if not OUTSIDE.mended().exists():
        raise ValueError("down")
    return f"up:{x}"


@tool(policy="keyed")
def pay(x: int, *, idempotency_key: str = KEY) -> str:
    done = OUTSIDE.act("pay", x, idempotency_key)
    if x % 10 == LATE:
        raise ValueError("late")
    return done


@tool(policy="keyed", key="order-{of}-{x}")
def order(x: int, of: str, *, idempotency_key: str = KEY) -> str:
    return OUTSIDE.act("order", x, idempotency_key)


@tool(policy="unsafe", not_sent=(ValueError,))
def send(x: int, *, idempotency_key: str = KEY) -> str:
    return OUTSIDE.act("send", x, idempotency_key)


@tool(policy="unsafe", on_unknown="ask", not_sent=(ValueError,))
def post(x: int, *, idempotency_key: str = KEY) -> str:
    return OUTSIDE.act("post", x, idempotency_key)


@tool(policy="unsafe", reconcile=look, not_sent=(ValueError,))
def push(x: int, *, idempotency_key: str = KEY) -> str:
    return OUTSIDE.act("push", x, idempotency_key)


@tool(policy="transactional")
def book(tx: Any, x: int, *, idempotency_key: str = KEY) -> str:
    tx.execute("INSERT INTO bookings (key, x) VALUES (?, ?)", (idempotency_key, x))
    if x % 10 == REFUSED:
        raise ValueError("refused")
    return told_of("book", x, idempotency_key)


@tool(policy="idempotent")
async def note_soon(x: int, *, idempotency_key: str = KEY) -> str:
    await asyncio.sleep(0.001)
    return OUTSIDE.act("note_soon", x, idempotency_key)


@tool(policy="keyed")
async def pay_soon(x: int, *, idempotency_key: str = KEY) -> str:
    await asyncio.sleep(0.001)
    done = OUTSIDE.act("pay_soon", x, idempotency_key)
    await asyncio.sleep(0.001)
    return done


@tool(policy="unsafe", not_sent=(ValueError,))
async def send_soon(x: int, *, idempotency_key: str = KEY) -> str:
    await asyncio.sleep(0.001)
    done = OUTSIDE.act("send_soon", x, idempotency_key)
    await asyncio.sleep(0)
    return done


@tool(policy="idempotent")
async def stall(x: int) -> str:
    await asyncio.sleep(300)
    return f"stalled:{x}"


PLAIN: Final[dict[str, Any]] = {each.name: each for each in (note, pay, order, send, post, push, book)}
SOON: Final[dict[str, Any]] = {each.name: each for each in (note_soon, pay_soon, send_soon)}
TOOLS: Final = PLAIN | SOON | {"down": down, "stall": stall}
ONCE: Final = {"send", "post", "push", "send_soon"}
"""Tools whose effect stands in the ledger once for a key."""
KEYED: Final = {"pay", "order", "pay_soon"}


def think(request: Any) -> Any:
    OUTSIDE.write(OUTSIDE.ledger, "model - 0\n")
    return {"text": f"thought of {request['q']}", "usage": {"input_tokens": 3, "output_tokens": 5}}


def usable(answer: Any) -> bool:
    return not answer["text"].endswith("q3")


# ------------------------------------------------------------------------------------------------------- drawing


class Drawing:
    """Draws a program."""

    def __init__(self, seed: str, *, asynchronous: bool) -> None:
        self.rng, self.x, self.asynchronous = random.Random(seed), 10, asynchronous
        self.tools = list(TOOLS)[:-2] if asynchronous else list(PLAIN)
        self.fails = False

    def program(self) -> list[Any]:
        parts = list[Any]()
        for number in range(self.rng.randint(2, 4)):
            kind = self.rng.choice(["do", "do", "step", "each", "loop"])
            blocks = [self.ops(4) for _ in range(1 if kind in ("do", "step") else self.rng.randint(1, 2))]
            parts.append([kind, f"p{number}", blocks])
        return parts

    def ops(self, most: int) -> list[Any]:
        return [self.op() for _ in range(self.rng.randint(1, most))]

    def call(self) -> list[Any]:
        self.x += self.rng.randint(1, 3)
        return ["call", self.rng.choice(self.tools), self.x]

    def op(self) -> Any:
        kinds = ["say", "set", "plan", "signals", "ask", "model", "model", "boom", "down", "twice", "parallel"]
        kinds += ["group", "pool", "timeout", "gather"] if self.asynchronous else ["threads", "threads", "threads"]
        match self.rng.choice([*kinds, *["call"] * 6]):
            case "call":
                return self.call()
            case "twice":
                return ["twice", *self.call()[1:]]
            case "parallel" | "gather" | "group" as kind:
                return [kind, [self.call() for _ in range(self.rng.randint(2, 4))]]
            case "pool":
                self.x += 1
                return [
                    "pool",
                    [["call", self.rng.choice(list(PLAIN)), self.x + each] for each in range(2)],
                    self.skip(2),
                ]
            case "threads":
                return ["threads", [[self.call() for _ in range(self.rng.randint(1, 3))] for _ in range(2)]]
            case "model":
                return ["model", self.rng.choice(["q1", "q2", "q3"])]
            case "ask":
                self.x += 1
                return ["ask", self.x]
            case "down" if self.fails or self.rng.random() < 0.5:
                return ["say", "up"]
            case "down":
                self.fails, self.x = True, self.x + 1
                return ["call", "down", self.x]
            case kind:
                self.x += 1
                return [kind, self.x]

    def skip(self, count: int) -> int:
        self.x += count
        return self.x


def draw(seed: str, *, asynchronous: bool) -> list[Any]:
    return Drawing(seed, asynchronous=asynchronous).program()


# ------------------------------------------------------------------------------------------- what both agents do


def told(ask: Callable[..., Any], *what: Any, **how: Any) -> Any:
    try:
        return ask(*what, **how)
    except (f.CallFailed, f.CallOutcomeUnknown, f.Rejected) as failure:
        return f"{type(failure).__name__}: {failure}"


async def told_soon(asked: Any) -> Any:
    try:
        return await asked
    except (f.CallFailed, f.CallOutcomeUnknown, f.Rejected) as failure:
        return f"{type(failure).__name__}: {failure}"


def args(of: str, name: str, x: int) -> dict[str, Any]:
    return {"x": x, "of": of} if name == "order" else {"x": x}


def plainly(run: Run | AsyncRun, op: list[Any], attempt: int) -> bool:
    """Do what is the same in both; return whether it was that."""
    match op:
        case "say", text:
            run.message("user", f"{text} {len(run.state.messages)}")
        case "set", x:
            run.memory[f"k{x}"] = run.memory.get(f"k{x}", 0) + 1
        case "plan", x:
            run.plan.set([*run.plan.tasks, {"id": str(x), "title": "t", "status": "todo"}])
        case "boom", _:
            if attempt == 1:
                raise ValueError("boom")
        case _:
            return False
    return True


def end(run: Run | AsyncRun) -> Any:
    said = [[each.role, each.content] for each in run.state.messages]
    return {"messages": said, "memory": dict(run.state.memory), "plan": list(run.state.plan.tasks)}


class Attempts:
    """Which attempt of a step this is, as its failures tell; a failure that says "down" leaves the agent."""

    def __init__(self) -> None:
        self.number = 1

    def failed(self, failure: f.StepFailed) -> None:
        if "down" in str(failure):
            raise failure
        self.number = failure.attempt + 1


# ---------------------------------------------------------------------------------------------------- plain code


def agent(run: Run) -> Any:
    for kind, name, blocks in run.input["parts"]:
        match kind:
            case "do":
                again(lambda n, name=name, ops=blocks[0]: run.do(name, body, run, ops, n))
            case "step":
                again(partial(once, run, name, blocks[0]))
            case "each":
                for item in run.each(name, range(len(blocks))):
                    again(partial(block, run, name, item, blocks[item]))
            case "loop":
                while (turn := run.memory.get(name, 0)) < len(blocks):
                    again(partial(a_turn, run, name, turn, blocks[turn]))
    return end(run)


def again(work: Callable[[int], object]) -> None:
    attempts = Attempts()
    while True:
        try:
            work(attempts.number)
        except f.StepFailed as failure:
            attempts.failed(failure)
        else:
            return


def once(run: Run, name: str, ops: list[Any], attempt: int) -> None:
    if not run.done(name):
        with run.step(name):
            body(run, ops, attempt)


def block(run: Run, name: str, item: int, ops: list[Any], attempt: int) -> None:
    with run.step(name, key=item):
        body(run, ops, attempt)


def a_turn(run: Run, name: str, turn: int, ops: list[Any], attempt: int) -> None:
    with run.step(name, repeat=True):
        run.memory[name] = turn + 1
        body(run, ops, attempt)


def body(run: Run, ops: list[Any], attempt: int) -> int:
    for op in ops:
        if not plainly(run, op, attempt):
            an_op(run, op)
    return len(run.state.messages)


def an_op(run: Run, op: list[Any]) -> None:
    match op:
        case "call", "down", x:
            run.message("tool", down(x))
        case "call", name, x:
            run.message("tool", told(TOOLS[name], **args(run.input["of"], name, x)))
        case "twice", name, x:
            for _ in range(2):
                run.message("tool", told(TOOLS[name], **args(run.input["of"], name, x)))
        case "model", question:
            run.message("assistant", told(run.model, "m", {"q": question}, think, check=usable))
        case "parallel", calls:
            asks = [(TOOLS[name], args(run.input["of"], name, x)) for _, name, x in calls]
            run.message("tool", [str(outcome) for outcome in run.parallel(asks)])
        case "threads", works:
            said = dict[int, Any]()
            threads = [run.thread(in_thread, run, number, calls, said) for number, calls in enumerate(works)]
            for thread in threads:
                thread.join()
            run.message("tool", [said.get(number) for number in range(len(works))])
        case "signals", _:
            run.message("user", run.signals())
        case "ask", x:
            run.message("user", told(run.ask, "ok?", args={"x": x}, key=x))


def in_thread(run: Run, number: int, calls: list[Any], said: dict[int, Any]) -> None:
    said[number] = [told(TOOLS[name], **args(run.input["of"], name, x)) for _, name, x in calls]
    run.memory[f"t{calls[0][2]}"] = number


# ------------------------------------------------------------------------------------------------------- asyncio


async def agent_soon(run: AsyncRun) -> Any:
    for kind, name, blocks in run.input["parts"]:
        match kind:
            case "do":
                await again_soon(lambda n, name=name, ops=blocks[0]: run.do(name, body_soon, run, ops, n))
            case "step":
                await again_soon(partial(once_soon, run, name, blocks[0]))
            case "each":
                for item in run.each(name, range(len(blocks))):
                    await again_soon(partial(block_soon, run, name, item, blocks[item]))
            case "loop":
                while (turn := run.memory.get(name, 0)) < len(blocks):
                    await again_soon(partial(a_turn_soon, run, name, turn, blocks[turn]))
    return end(run)


async def again_soon(work: Callable[[int], Any]) -> None:
    attempts = Attempts()
    while True:
        try:
            await work(attempts.number)
        except f.StepFailed as failure:
            attempts.failed(failure)
        else:
            return


async def once_soon(run: AsyncRun, name: str, ops: list[Any], attempt: int) -> None:
    if not run.done(name):
        async with run.step(name):
            await body_soon(run, ops, attempt)


async def block_soon(run: AsyncRun, name: str, item: int, ops: list[Any], attempt: int) -> None:
    async with run.step(name, key=item):
        await body_soon(run, ops, attempt)


async def a_turn_soon(run: AsyncRun, name: str, turn: int, ops: list[Any], attempt: int) -> None:
    async with run.step(name, repeat=True):
        run.memory[name] = turn + 1
        await body_soon(run, ops, attempt)


async def body_soon(run: AsyncRun, ops: list[Any], attempt: int) -> int:
    for op in ops:
        if not plainly(run, op, attempt):
            await an_op_soon(run, op)
    return len(run.state.messages)


async def an_op_soon(run: AsyncRun, op: list[Any]) -> None:
    of = run.input["of"]
    match op:
        case "call", "down", x:
            run.message("tool", await run.call(down, x))
        case "call", name, x:
            run.message("tool", await told_soon(run.call(TOOLS[name], **args(of, name, x))))
        case "twice", name, x:
            for _ in range(2):
                run.message("tool", await told_soon(run.call(TOOLS[name], **args(of, name, x))))
        case "model", question:
            run.message("assistant", await told_soon(run.model("m", {"q": question}, think, check=usable)))
        case "parallel", calls:
            outcomes = await run.parallel([(TOOLS[name], args(of, name, x)) for _, name, x in calls])
            run.message("tool", [str(outcome) for outcome in outcomes])
        case "gather", calls:
            asked = [told_soon(run.call(TOOLS[name], **args(of, name, x))) for _, name, x in calls]
            run.message("tool", list(await asyncio.gather(*asked)))
        case "group", calls:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(told_soon(run.call(TOOLS[name], **args(of, name, x)))) for _, name, x in calls
                ]
            run.message("tool", [task.result() for task in tasks])
        case "pool", calls, _:
            asked = [asyncio.to_thread(told, TOOLS[name], **args(of, name, x)) for _, name, x in calls]
            run.message("tool", list(await asyncio.gather(*asked)))
        case "timeout", x:
            try:
                async with asyncio.timeout(0.01):
                    await run.call(stall, x)
            except TimeoutError:
                run.message("tool", "timeout")
        case "signals", _:
            run.message("user", await run.signals())
        case "ask", x:
            run.message("user", await told_soon(run.ask("ok?", args={"x": x}, key=x)))
