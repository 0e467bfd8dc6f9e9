"""An agent that has one of each kind of state, and is killed inside a tool of its second step.

python inventory_agent.py STORE
"""

import os
import signal
import sys
from typing import Any

from runjournal import Journal, tool
from runjournal.run import Run

PROMPT = "You keep the books of the Übersee company.\n"
SECRET = os.environ.get("BANK_TOKEN", "")


@tool(read_only=True)
def read_file(path: str) -> str:
    """Repeatable."""
    return f"text of {path}"


@tool
def pay(invoice: int) -> str:
    """Unsafe; it dies when it is called."""
    assert SECRET
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError(invoice)


def ask(_: Any) -> dict[str, Any]:
    usage = {"input": 1200, "output": 80, "cache_read": 0, "cache_write": 0}
    return {"text": "one open item", "usage": usage, "cost": {"amount": "0.0125", "currency": "USD"}}


def agent(run: Run) -> None:
    run.pin_prompt(identity=PROMPT, rules="Pay once.")
    if not run.done("read"):
        with run.step("read"):
            run.message("user", read_file("books.csv"))
            answer = run.model("claude-sonnet-4-5", {"ask": "what is open?"}, ask)
            run.message("assistant", answer["text"])
            run.memory["open"] = ["a random name that no message holds", 17]
            run.plan.done("read")
    with run.step("pay"):
        run.message("assistant", "I pay now")
        run.memory["open"] = []
        pay(17)


if __name__ == "__main__":
    with Journal.open(sys.argv[1]) as journal:
        plan = [{"id": "read", "title": "read", "status": "todo"}, {"id": "pay", "title": "pay", "status": "todo"}]
        journal.run(agent, run_id="r", input=None, plan=plan)
