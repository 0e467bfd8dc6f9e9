"""One agent in five systems: each step makes one model call and two tool calls, and adds one message of 260 bytes.

Each system is used as its documentation does, and as durable as it can be by a documented setting; what that is stands
in SYSTEMS. Tools and models do nothing, so that what is left is the cost of keeping a record. Every function is called
with a folder of its own and a number of steps, and returns when the last step is on record.

python benchmarks/peers/systems.py SYSTEM STEPS FOLDER
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

TEXT = "x" * 260
WARM_UP = 5
"""Steps that aren't measured by the clock: the first ones make tables, compile and import."""


class Took(NamedTuple):
    """Seconds by the wall and of the processor, of all threads."""

    wall_s: float
    cpu_s: float


class Watch:
    """A stopwatch: it runs from when it was made."""

    def __init__(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    def took(self) -> Took:
        """Return what went by."""
        return Took(time.perf_counter() - self.began[0], time.process_time() - self.began[1])


class Peer(NamedTuple):
    """How a system is called in a report: its store, and what it promises once a step is over."""

    run: Callable[[Path, int], Took]
    system: str
    store: str
    durability: str


def _act(value: int) -> int:
    return value


def _clocked(steps: int, one: Callable[[int], object]) -> Took:
    """What the steps took, those of the warm-up left out."""
    watch = Watch()
    for number in range(-WARM_UP, steps):
        if number == 0:
            watch = Watch()
        one(number)
    return watch.took()


def runjournal_(folder: Path, steps: int, policy: str = "idempotent") -> Took:
    """An agent of runjournal."""
    from runjournal import Journal, Run, tool

    took = Took(0.0, 0.0)
    how: dict[str, Any] = {"policy": policy, "name": "act"}
    if policy == "keyed":

        @tool(**how)
        def act(value: int, *, idempotency_key: str = "") -> int:
            return _act(value) if idempotency_key else 0
    else:

        @tool(**how)
        def act(value: int) -> int:
            return _act(value)

    usage = {"input": 10, "output": 1, "cache_read": 0, "cache_write": 0}

    def agent(run: Run) -> None:
        nonlocal took

        def one(number: int) -> None:
            with run.step("turn", repeat=True):
                turn = run.memory.get("turn", 0)
                run.model("m", {"ask": turn + number}, lambda _: {"text": "yes", "usage": usage})
                act(2 * number)
                act(2 * number + 1)
                run.message("assistant", TEXT)

        took = _clocked(steps, one)

    with Journal.open(folder / "runs.db") as journal:
        journal.run(agent, run_id="r")
    return took


def runjournal_keyed(folder: Path, steps: int) -> Took:
    """The same with tools whose intent has to be on the disk before they are called."""
    return runjournal_(folder, steps, "keyed")


def dbos_(folder: Path, steps: int) -> Took:
    """A workflow of DBOS: the model call and both tool calls are steps of it, and so is the message."""
    from dbos import DBOS

    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{folder / 'dbos.sqlite'}"})

    @DBOS.step()
    def ask(turn: int) -> dict[str, object]:
        return {"text": "yes", "turn": turn}

    @DBOS.step()
    def act(value: int) -> int:
        return _act(value)

    @DBOS.step()
    def say(text: str) -> str:
        return text

    took = Took(0.0, 0.0)

    @DBOS.workflow()
    def agent(count: int) -> int:
        nonlocal took

        def one(number: int) -> None:
            ask(number)
            act(2 * number)
            act(2 * number + 1)
            say(TEXT)

        took = _clocked(count, one)
        return count

    DBOS.launch()
    agent(steps)
    DBOS.destroy()
    return took


def langgraph_(folder: Path, steps: int) -> Took:
    """A graph of LangGraph over messages: a node for the model, which sends each tool call to a task of its own."""
    import sqlite3

    from langchain_core.messages import AIMessage, ToolMessage
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.types import Send

    watches, asked = [Watch()], [0]

    def model(_: Any) -> dict[str, object]:
        number = asked[0] - WARM_UP
        if number == 0:
            watches.append(Watch())
        asked[0] += 1
        calls = [{"name": "act", "args": {"value": 2 * number + each}, "id": f"{number}-{each}"} for each in (0, 1)]
        return {"messages": [AIMessage(TEXT, tool_calls=calls)]}

    def act(call: dict[str, Any]) -> dict[str, object]:
        return {"messages": [ToolMessage(str(_act(call["args"]["value"])), tool_call_id=call["id"])]}

    def sent(state: Any) -> list[Any]:
        return [Send("act", call) for call in state["messages"][-1].tool_calls]

    def more(_: Any) -> str:
        return "model" if asked[0] < steps + WARM_UP else END

    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("act", act)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", sent, ["act"])
    graph.add_conditional_edges("act", more, ["model", END])
    connection = sqlite3.connect(folder / "langgraph.sqlite", check_same_thread=False)
    compiled = graph.compile(checkpointer=SqliteSaver(connection))
    config = {"configurable": {"thread_id": "r"}, "recursion_limit": 2 * (steps + WARM_UP) + 10}
    compiled.invoke({"messages": []}, config, durability="sync")
    took = watches[-1].took()
    connection.close()
    return took


def eventsourcing_(folder: Path, steps: int) -> Took:
    """An aggregate of eventsourcing that is saved after each of four events: model, tool, tool, message."""
    from eventsourcing.application import Application
    from eventsourcing.domain import Aggregate, event

    class Agent(Aggregate):
        def __init__(self) -> None:
            self.messages = 0

        @event("ModelAnswered")
        def answer(self, text: str) -> None:
            self.last = text

        @event("ToolCalled")
        def call(self, value: int, result: int) -> None:
            self.result = result

        @event("MessageAppended")
        def say(self, role: str, content: str) -> None:
            self.messages += 1

    app: Any = Application(
        env={"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(folder / "eventsourcing.sqlite")}
    )
    agent: Any = Agent()

    def one(number: int) -> None:
        agent.answer("yes")
        app.save(agent)
        for value in (2 * number, 2 * number + 1):
            agent.call(value, _act(value))
            app.save(agent)
        agent.say("assistant", TEXT)
        app.save(agent)

    took = _clocked(steps, one)
    app.close()
    return took


def openai_agents_(folder: Path, steps: int) -> Took:
    """A session of the OpenAI Agents SDK, told of the model's items and of the tools' outputs, as its runner does."""
    from agents import SQLiteSession

    session = SQLiteSession("r", folder / "agents.sqlite")

    async def all_of_it() -> Took:
        watch = Watch()
        for number in range(-WARM_UP, steps):
            if number == 0:
                watch = Watch()
            ids = [f"call_{number}_{each}" for each in (0, 1)]
            answer: list[Any] = [{"role": "assistant", "content": TEXT}]
            answer += [{"type": "function_call", "call_id": each, "name": "act", "arguments": "{}"} for each in ids]
            await session.add_items(answer)
            outputs: list[Any] = [
                {"type": "function_call_output", "call_id": each, "output": str(_act(number))} for each in ids
            ]
            await session.add_items(outputs)
        return watch.took()

    took = asyncio.run(all_of_it())
    session.close()
    return took


SYSTEMS = {
    "runjournal": Peer(
        runjournal_, "runjournal, idempotent tools", "SQLite (apsw)",
        "each end of a call and each step is on the disk before the next thing happens",
    ),
    "runjournal-keyed": Peer(
        runjournal_keyed, "runjournal, keyed tools", "SQLite (apsw)",
        "the same, and the intent of each tool call is on the disk before it is sent",
    ),
    "dbos": Peer(
        dbos_, "DBOS, as shipped", "SQLite (sqlite3)", "each step of the workflow is committed when it is over"
    ),
    "langgraph": Peer(
        langgraph_, "LangGraph, durability=sync", "SQLite (SqliteSaver)",
        "the whole state is committed after each node, and the result of each tool call when it is there",
    ),
    "eventsourcing": Peer(
        eventsourcing_, "eventsourcing", "SQLite (sqlite3)", "each event is committed by itself; nothing is recovered"
    ),
    "openai-agents": Peer(
        openai_agents_, "OpenAI Agents SDK, SQLiteSession", "SQLite (sqlite3)",
        "the items of a turn are committed in two parts; which call was sent isn't known",
    ),
}  # fmt: skip


def main() -> None:
    """Run one system in this process, and print what it took, in seconds, and the bytes that are left."""
    name, steps, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    took = SYSTEMS[name].run(folder, steps)
    left = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    sys.stdout.write(json.dumps(took._asdict() | {"bytes": left}) + "\n")


if __name__ == "__main__":
    main()
