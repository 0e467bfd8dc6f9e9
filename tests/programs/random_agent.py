"""An agent that is data, in a process of its own; its effects go to the world of `world.py`, its rows to its own table.

    python random_agent.py

Each line of standard input, [STORE, WORLD, RUN_ID, PROGRAM, LEASE_S] as JSON, is one process, forked from this one
before any store was opened, so that no time goes into imports; the next line is read when it is over. PROGRAM is
{"first": ops, "turns": [ops, …], "items": [ops, …], "asks": x or 0, "of": the first run's id}; `draw` makes one from a
seed. LEASE_S, if it isn't null, is how short its leases are.

Prints `! pid`, a line `+ run_id seq hash` for each event when its append has returned, what became of the run:
`= completed`, `= failed CAUSE`, `= waiting` or `= busy`; and when the process is over `. code`, its exit code or minus
the signal that killed it.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from runjournal import runner
from runjournal.engine import failures as f
from runjournal.engine.tools import KEY, tool
from runjournal.journal import Journal
from runjournal.run import Run
from runjournal.writing import leases
from runjournal.writing.appender import Appender


class World:
    """The world of another process."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, do: str, **about: Any) -> Any:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.path)
            connection.sendall(json.dumps({"do": do, **about}).encode() + b"\n")
            return json.loads(connection.makefile().readline())


WORLD: list[Callable[..., Any]] = []  # the one that this process acts in


def act(name: str, x: int, key: str, *, once: bool = False) -> str:
    """An effect; of one number nothing comes, of another one an error after it."""
    WORLD[0]("ping")
    if x == REFUSED:
        raise ValueError("refused")
    WORLD[0]("act", tool=name, key=key, once=once)
    return f"{name}:{x}:{key[:6]}"


REFUSED, LATE, DOWN = 4, 5, 6


def look(args: Any, key: str) -> Any:
    """The hook of `push`: the world knows."""
    happened = WORLD[0]("happened", key=key)["happened"]
    return ("happened", f"push:{args['x']}:{key[:6]}") if happened else ("did_not_happen", None)


@tool(policy="idempotent")
def note(x: int, *, idempotency_key: str = KEY) -> str:
    if x == DOWN:
        raise ConnectionError("down")
    return act("note", x, idempotency_key)


@tool(policy="keyed")
def pay(x: int, *, idempotency_key: str = KEY) -> str:
    done = act("pay", x, idempotency_key, once=True)
    if x == LATE:
        raise ValueError("late")
    return done


@tool(policy="keyed", key="order-{of}-{x}")
def order(x: int, of: str, *, idempotency_key: str = KEY) -> str:
    return act("order", x, idempotency_key, once=True)


@tool(policy="unsafe", not_sent=(ValueError,))
def send(x: int, *, idempotency_key: str = KEY) -> str:
    return act("send", x, idempotency_key)


@tool(policy="unsafe", on_unknown="ask", not_sent=(ValueError,))
def post(x: int, *, idempotency_key: str = KEY) -> str:
    return act("post", x, idempotency_key)


@tool(policy="unsafe", reconcile=look, not_sent=(ValueError,))
def push(x: int, *, idempotency_key: str = KEY) -> str:
    return act("push", x, idempotency_key)


@tool(policy="transactional")
def book(tx: Any, x: int, *, idempotency_key: str = KEY) -> str:
    """One row of its own table. The world is told while the transaction is open."""
    tx.execute("INSERT INTO bookings (key) VALUES (?)", (idempotency_key,))
    WORLD[0]("ping")
    if x == REFUSED:
        raise ValueError("refused")
    return f"book:{x}:{idempotency_key[:6]}"


TOOLS: dict[str, Any] = {each.name: each for each in (note, pay, order, send, post, push, book)}

# Drawing.


def draw(seed: str) -> dict[str, Any]:
    rng = random.Random(seed)
    return {
        "first": _ops(rng, 3),
        "turns": [_ops(rng, 4) for _ in range(rng.randint(1, 2))],
        "items": [_ops(rng, 4) for _ in range(rng.randint(1, 2))],
        "asks": rng.choice([0, 0, 0, 1, 2, 3]),
    }


def _ops(rng: random.Random, most: int) -> list[Any]:
    return [_op(rng) for _ in range(rng.randint(1, most))]


def _op(rng: random.Random) -> Any:
    name, x = rng.choice(list(TOOLS)), rng.choice([1, 1, 2, 2, 3, REFUSED, LATE, DOWN])
    kinds = ["say", "count", "plan", "boom", "ask", "model", "model", "parallel", "call", "call", "call", "call"]
    match rng.choice(kinds):
        case "call":
            return ["call", name, x]
        case "parallel":
            return ["parallel", [[rng.choice(list(TOOLS)), rng.choice([1, 2, REFUSED])] for _ in range(3)]]
        case "model":
            return ["model", rng.choice(["q1", "q2", "q3"]), rng.random() < 0.5]
        case "ask":
            return ["ask", x % 3 + 1]
        case kind:
            return [kind, rng.choice("ab")]


# The agent.


def agent(run: Run) -> Any:
    """A `do`, a loop that takes its turn from memory, a step for each item, a question, a `do`."""
    program: Any = run.input
    tried(lambda attempt: run.do("set up", body, run, program["first"], attempt))
    while (turn := run.memory.get("turn", 0)) < len(program["turns"]):
        ops = program["turns"][turn]
        tried(partial(block, run, partial(run.step, "turn", repeat=True), [*ops, ["next", turn + 1]]))
    for item in run.each("item", range(len(program["items"]))):
        tried(partial(block, run, partial(run.step, "item", item), program["items"][item]))
    answer = run.ask("go?", args={"x": program["asks"]}) if program["asks"] in (1, 2) else None
    run.do("end", body, run, [["say", "end"]], 1)
    context = {"messages": [[each.role, each.content] for each in run.state.messages], "memory": run.state.memory}
    return {**context, "plan": run.state.plan.tasks, "answer": answer}


def tried(step: Callable[[int], object]) -> None:
    """A step, and when it fails the same step again: which attempt it is, its failures tell."""
    attempt = 1
    while True:
        try:
            step(attempt)
        except f.StepFailed as failure:
            attempt = failure.attempt + 1
        else:
            return


def block(run: Run, begin: Callable[[], AbstractContextManager[None]], ops: list[Any], attempt: int) -> None:
    with begin():
        body(run, ops, attempt)


def body(run: Run, ops: list[Any], attempt: int) -> int:
    for op in ops:
        match op:
            case "say", text:
                run.message("user", f"{text}{len(run.state.messages)}")
            case "count", key:
                run.memory[key] = run.memory.get(key, 0) + 1
            case "next", turn:
                run.memory["turn"] = turn
            case "plan", task:
                ids = [each["id"] for each in run.plan.tasks]
                if task in ids:
                    run.plan.done(task)
                else:
                    run.plan.set([*run.plan.tasks, {"id": task, "title": task, "status": "todo"}])
            case "boom", _:
                if attempt == 1:
                    raise ValueError("boom")
            case "ping", _:
                WORLD[0]("ping")
            case "model", question, clock:
                request = {"q": question, "seen": len(run.state.messages)} | ({"now": time.time_ns()} if clock else {})
                run.message("assistant", told(run.model, "m", request, partial(think, run.input["of"]), check=usable))
            case "call", name, x:
                run.message("tool", told(TOOLS[name], **args(run, name, x)))
            case "parallel", calls:
                for outcome in run.parallel([(TOOLS[name], args(run, name, x)) for name, x in calls]):
                    run.message("tool", str(outcome))
            case "ask", x:
                run.message("user", told(run.ask, "ok?", args={"x": x}))
    return len(run.state.messages)


def args(run: Run, name: str, x: int) -> dict[str, Any]:
    return {"x": x, "of": run.input["of"]} if name == "order" else {"x": x}


def told(ask: Callable[..., Any], *what: Any, **how: Any) -> Any:
    try:
        return ask(*what, **how)
    except (f.CallFailed, f.CallOutcomeUnknown, f.Rejected) as failure:
        return f"{type(failure).__name__}: {failure}"


def think(of: str, request: Any) -> Any:
    """A model; what it was paid for is in the ledger, under the id of the first run."""
    WORLD[0]("act", tool="model", key=of, once=False)
    return {"text": f"{request['q']} after {request['seen']}", "usage": {"input_tokens": 3, "output_tokens": 5}}


def usable(answer: Any) -> bool:
    return not answer["text"].startswith("q3")


# The process.


class TellingAppender(Appender):
    """An appender that tells what was acknowledged."""

    def append(self, *what: Any) -> Any:
        return [self.tell(records) for records in super().append(*what)]

    def append_made(self, make: Any) -> Any:
        return self.tell(super().append_made(make))

    def tell(self, records: Any) -> Any:
        os.write(1, "".join(f"+ {each.run_id} {each.seq} {each.hash}\n" for each in records).encode())
        return records


class Telling(Journal):
    """A journal with that appender."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how, appender=TellingAppender)


def go_on(journal: Journal, run_id: str, program: Any) -> str:
    """Run it, and say what became of it."""
    try:
        journal.run(agent, run_id=run_id, input=program)
    except f.RunFailed as failed:
        return f"failed {failed.cause}"
    except f.RunWaiting:
        return "waiting"
    except f.RunBusy:
        return "busy"
    return "completed"


def live(store: str, world: str, run_id: str, program: Any, lease_s: float | None) -> None:
    """The life of one process."""
    os.write(1, f"! {os.getpid()}\n".encode())
    if lease_s is not None:
        vars(runner).update(lease_s=lease_s)
        vars(leases).update(lease_s=lease_s, heartbeat_s=lease_s / 4)
    WORLD[:] = [World(world)]
    with Telling.open(store) as journal:
        became = go_on(journal, run_id, program)
    os.write(1, f"= {became}\n".encode())


def main() -> None:
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            live(*json.loads(line))
            return
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(1, f". {code}\n".encode())


if __name__ == "__main__":
    main()
