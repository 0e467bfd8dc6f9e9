"""An agent that is told to stop: its process says where it is, and goes on when a file is there.

    python stopped.py STORE HOW GRACE_S [GO]

HOW names one of the agents below; in a tool it waits for the file GO, for ever if none is named. `mine` sets a handler
of its own first, and `thread` runs the agent beside the main thread.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from runjournal import AsyncJournal, Run, RunWaiting, tool

STORE, HOW, GRACE_S = sys.argv[1], sys.argv[2], float(sys.argv[3])
GO = Path(sys.argv[4]) if len(sys.argv) > 4 else Path("/nowhere")


def say(what: str) -> None:
    """Tell the test."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def wait() -> str:
    """Wait for the file."""
    say("in the tool")
    while not GO.exists():
        time.sleep(0.01)
    return "done"


@tool
def slow() -> str:
    """Do something that may not be done twice."""
    return wait()


@tool
def second() -> str:
    """Be called after it."""
    say("second")
    return "second"


def agent(run: Run) -> Any:
    """Call the one, then the other."""
    with run.step("work"):
        first = slow()
        run.memory["both"] = [first, second()]
    return run.memory["both"]


def asks(run: Run) -> Any:
    """Wait for a person."""
    return run.ask("go on?")


async def model(request: Any) -> Any:
    """Answer slowly, without a block of the loop."""
    say("in the tool")
    while not GO.exists():  # noqa: ASYNC110 - it is another process that makes it
        await asyncio.sleep(0.01)
    return {"answer": request, "usage": {"input_tokens": 1, "output_tokens": 1}}


async def in_a_model(run: Any) -> Any:
    """Have a model in flight beside a tool that ends first, in a group that cancels the model's task then."""
    async with run.step("work"):
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(run.model("m", {"ask": 1}, model))
            group.create_task(run.call(slow))
        await run.call(second)
        run.memory["answer"] = asked.result()["answer"]
    return run.memory["answer"]


async def asleep(run: Any) -> Any:
    """Wait for something of its own, which no verb of the run knows."""
    async with run.step("work"):
        await run.call(slow)
    say("asleep")
    await asyncio.sleep(0 if GO.with_suffix(".awake").exists() else 3600)
    async with run.step("more"):
        await run.call(second)
    return ["done", "second"]


async def several(journal: AsyncJournal) -> None:
    """Run two at once."""
    await asyncio.gather(*(journal.run_async(asleep, run_id=name) for name in ("r", "s")))


def main() -> None:
    """Run the agent."""
    if HOW == "mine":
        signal.signal(signal.SIGTERM, lambda *_: say("mine"))
    with AsyncJournal.open(STORE, grace_s=GRACE_S) as journal:
        if HOW in ("in_a_model", "asleep"):
            say(f"ended with {asyncio.run(journal.run_async(globals()[HOW], run_id='r'))}")
        elif HOW == "several":
            asyncio.run(several(journal))
        elif HOW == "thread":
            thread = threading.Thread(target=lambda: journal.run(agent, run_id="r"))
            thread.start()
            thread.join()
        elif HOW == "forks":
            journal.run(lambda run: run.do("fork", forks), run_id="r")
        else:
            try:
                say(f"ended with {journal.run(asks if HOW == 'asks' else agent, run_id='r')}")
            except RunWaiting:
                say("waits")
        say("default" if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else "handled")


def forks() -> int:
    """Begin a process that is a copy of this one, and end it by a SIGTERM; return how it ended."""
    if not (pid := os.fork()):
        time.sleep(60)
        os._exit(0)
    time.sleep(0.05)
    os.kill(pid, signal.SIGTERM)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    say(f"child {code}")
    return code


if __name__ == "__main__":
    main()
