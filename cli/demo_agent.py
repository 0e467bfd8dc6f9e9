"""The demo's agent: a scripted run, appended event by event until somebody kills it.

    python -m runjournal.cli.demo_agent STORE RUN_ID

It tells each append that was acknowledged on standard output, as `seq type`, after it was committed.
"""

from __future__ import annotations

import sys
import time

from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log import owner

FILES = ("ledger.csv", "invoices.csv", "contracts.md", "rates.json", "clients.csv", "march.eml", "april.eml", "may.eml")
MODEL = "claude-sonnet-4-5"


class Agent:
    """Owns a run, and appends to it."""

    def __init__(self, journal: Journal, run_id: str) -> None:
        self.journal = journal
        self.run_id = run_id
        self.seq = 0

    def begin(self) -> None:
        """Create the run and claim it, in one append."""
        plan = [{"id": name, "title": f"check {name}", "status": "todo"} for name in FILES]
        queued = e.RunQueued("demo", {"folder": "books/2026"}, plan=plan, title="check the books of 2026")
        self._append(queued, *self._claim(), epoch=0)

    def _claim(self) -> tuple[e.RunClaimed, ...]:
        me = owner.here()
        return (
            e.RunClaimed(
                worker=self.journal.by, epoch=1, lease_s=60.0, host=me.host, boot_id=me.boot_id, pid_ns=me.pid_ns,
                pid=me.pid, pid_started=me.started,
            ),
        )  # fmt: skip

    def say(self, *events: e.Event) -> None:
        """Append as the owner; slowly enough for a person to follow."""
        self._append(*events, epoch=1)
        time.sleep(0.004)

    def _append(self, *events: e.Event, epoch: int) -> None:
        records = self.journal.append(self.run_id, events, expect=self.seq, epoch=epoch)
        self.seq = records[-1].seq
        for record in records:
            sys.stdout.write(f"{record.seq} {record.type}\n")
        sys.stdout.flush()

    def check(self, index: int, name: str) -> None:
        """One step: read a file, ask a model, book what it found."""
        read, ask, book = f"read-{name}", f"ask-{name}", f"book-{name}"
        self.say(e.StepStarted(index, f"check/{name}", "check", "once", 1, 1, key=name))
        self.say(e.ToolStarted(read, "read_file", {"path": f"books/2026/{name}"}, "idempotent", True, "fail", 1))
        self.say(e.ToolCompleted(read, 1, result=f"{40 + index} lines of {name}"))
        self.say(e.ModelStarted(ask, MODEL, f"hash-{name}", f"shape-{name}", 1))
        usage = {"input": 1200 + 100 * index, "output": 80 + index, "cache_read": 900, "cache_write": 0}
        cost = {"amount": f"0.0{52 + index}", "currency": "USD", "source": "reported"}
        self.say(e.ModelCompleted(ask, 1, {"text": f"{name} has one open item"}, usage=usage, cost=cost))
        self.say(e.MessageAppended("assistant", f"{name} has one open item"))
        self.say(e.ToolStarted(book, "post_entry", {"file": name, "eur": 100 + index}, "unsafe", False, "ask", 1))
        self.say(e.ToolCompleted(book, 1, result={"entry": 7000 + index}))
        self.say(e.MemorySet("checked", [*FILES[: index + 1]]), e.PlanUpdated(name, "done"))
        self.say(e.StepCompleted(index))


def main(path: str, run_id: str) -> None:
    """Run until the end, or until killed."""
    with Journal.open(path, by="demo-agent") as journal:
        agent = Agent(journal, run_id)
        agent.begin()
        for index, name in enumerate(FILES):
            agent.check(index, name)
        agent.say(e.RunCompleted({"checked": len(FILES)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
