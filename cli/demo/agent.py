"""The demo's agent: it pays the invoices of a folder. Written as an agent of yours would be.

    DEMO_WORLD=ADDRESS python -m runjournal.cli.demo.agent STORE RUN_ID FOLDER

It may die anywhere. Called again it goes the same way: complete steps are passed, recorded outcomes are returned, and
each tool's policy says what becomes of a call whose outcome was lost. (Your imports are shorter: `from runjournal
import KEY, Journal, Run, tool`.)
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from runjournal.engine.failures import RunWaiting
from runjournal.engine.tools import KEY, Tx, tool
from runjournal.journal import Journal
from runjournal.log.base import RecordedEvent
from runjournal.log.store import Transaction
from runjournal.run import Run
from runjournal.writing.appender import Appender, Batch

from .gate import pause, tell
from .world import request

MODEL: Final = "claude-sonnet-4-5"
PROMPT: Final = "You keep the books of a small company. Pay each invoice once."
TABLE: Final = "CREATE TABLE IF NOT EXISTS demo_bookings (run_id TEXT, invoice TEXT, cents INTEGER, charge TEXT)"
BOOK: Final = "INSERT INTO demo_bookings (run_id, invoice, cents, charge) VALUES (?, ?, ?, ?)"


# Its tools.


def ask_model(question: Any) -> Any:
    """What `run.model` calls; here a script that the world plays."""
    return request(os.environ["DEMO_WORLD"], "ask_model", {"request": question})


@tool(read_only=True)
def list_invoices(folder: str) -> list[str]:
    """Read-only: it may simply be made again."""
    return sorted(path.name for path in Path(folder).glob("*.txt"))


@tool(read_only=True)
def read_invoice(folder: str, name: str) -> str:
    """Read-only too."""
    return (Path(folder) / name).read_text(encoding="utf-8")


@tool(policy="keyed")
def charge_card(invoice: str, cents: int, *, idempotency_key: str = KEY) -> dict[str, Any]:
    """Keyed: the card company makes one charge for a key, however often it is asked."""
    charge: dict[str, Any] = request(
        os.environ["DEMO_WORLD"], "charge_card", {"invoice": invoice, "cents": cents}, idempotency_key
    )
    return charge


@tool(policy="transactional")
def book(tx: Tx, run_id: str, invoice: str, cents: int, charge: str) -> None:
    """Transactional: this row and the record of the call commit together, or neither is there."""
    tx.execute(BOOK, (run_id, invoice, cents, charge))


@tool(policy="unsafe", on_unknown="ask")
def open_pull_request(title: str, body: str) -> dict[str, Any]:
    """Unsafe: nothing keeps it from happening twice, so whether it happened is asked of a person."""
    opened: dict[str, Any] = request(os.environ["DEMO_WORLD"], "open_pull_request", {"title": title, "body": body})
    return opened


# The agent.


def pay_invoices(run: Run) -> Any:
    """Pay each invoice. The agent is a function of its run, called again after a crash."""
    about: Any = run.input
    folder: str = about["folder"]
    run.pin_prompt(identity=PROMPT)
    if not run.done("plan"):
        with run.step("plan"):
            run.message("user", "Pay the invoices, then open a pull request with the bookings.")
            names = list_invoices(folder)
            run.plan.set([{"id": name, "title": f"pay {name}", "status": "todo"} for name in names])
    for task in run.each("pay", run.state.plan.tasks, key=lambda task: task["id"]):
        name = task["id"]
        with run.step("pay", key=name):
            text = read_invoice(folder, name)
            answer: Any = run.model(MODEL, {"system": PROMPT, "prompt": text}, call=ask_model)
            run.message("assistant", answer["text"])
            charged = charge_card(name, answer["cents"])
            book(run.id, name, answer["cents"], charged["charge"])
            run.memory["paid_cents"] = run.memory.get("paid_cents", 0) + answer["cents"]
            run.plan.done(task)
    if not run.done("report"):
        with run.step("report"):
            answer = run.model(MODEL, {"system": PROMPT, "prompt": "Sum up what you did."}, call=ask_model)
            opened = open_pull_request("Bookings of November", answer["text"])
            run.memory["pull_request"] = opened["number"]
            run.message("assistant", f"{answer['text']} See pull request {opened['number']}.")
    return run.state.memory


# Its process.


class GatedAppender(Appender):
    """An appender that passes the gate after each commit. Only the demo needs it."""

    def append(self, *batches: Batch) -> list[list[RecordedEvent]]:
        return [_passed(records) for records in super().append(*batches)]

    def append_made(self, make: Callable[[Transaction], Batch]) -> list[RecordedEvent]:
        return _passed(super().append_made(make))


class GatedJournal(Journal):
    """A journal with that appender."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how, appender=GatedAppender)


def _passed(records: list[RecordedEvent]) -> list[RecordedEvent]:
    pause(" ".join(["committed", *(f"{record.seq}:{record.type}" for record in records)]))
    return records


def main(path: str, run_id: str, folder: str) -> None:
    """Run until the end, until a person is asked, or until killed."""
    with GatedJournal.open(path, by="demo-agent") as journal:
        try:
            output = journal.run(pay_invoices, run_id=run_id, input={"folder": folder}, title="pay the invoices")
        except RunWaiting as waiting:
            tell(f"waiting {len(waiting.waits)}")
        else:
            tell(f"completed {json.dumps(output)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
