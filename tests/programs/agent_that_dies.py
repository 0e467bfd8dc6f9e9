"""An agent with real effects, in a file beside the store, whose process dies where it is told to.

    python agent_that_dies.py STORE LEDGER STORY [WHERE]

STORY: sms (two steps), pr (the pull request of step 23), pr-reconcile (the same with a hook). WHERE: `step:<name>`, it
dies before this step begins; `effect:<tool>`: between the effect and its record. Prints what became of the run.
"""

import os
import sys
from pathlib import Path
from typing import Any

from runjournal import Journal, tool
from runjournal.engine.failures import RunFailed, RunWaiting
from runjournal.run import Run

STORE, LEDGER, STORY, WHERE = [*sys.argv[1:], ""][:4]


def act(what: str) -> str:
    with Path(LEDGER).open("a") as ledger:
        ledger.write(what + "\n")
        ledger.flush()
    if f"effect:{what}" == WHERE:
        os._exit(9)
    return f"did {what}"


def look(args: dict[str, Any], key: str) -> tuple[str, Any]:
    ledger = Path(LEDGER)
    done = ledger.exists() and "open_pr" in ledger.read_text().split()
    return ("happened", "did open_pr") if done else ("did_not_happen", None)


@tool
def send_sms(to: str) -> str:
    return act("send_sms")


@tool(policy="keyed")
def charge(cents: int, *, idempotency_key: str = "") -> str:
    return act("charge")


@tool(reconcile=look if STORY == "pr-reconcile" else None)
def open_pr(title: str) -> str:
    return act("open_pr")


def at(run: Run, name: str, fn: Any, *args: Any) -> Any:
    if f"step:{name}" == WHERE:
        os._exit(9)
    return run.do(name, fn, *args)


def sms(run: Run) -> list[str]:
    return [at(run, "sms", send_sms, "+41"), at(run, "charge", charge, 500)]


def pr(run: Run) -> str:
    for number in range(1, 23):
        at(run, f"step {number}", str, number)
    return str(at(run, "step 23", open_pr, "Fix"))


with Journal.open(STORE) as journal:
    try:
        print("completed", journal.run({"sms": sms}.get(STORY, pr), run_id="r"))  # noqa: T201
    except RunFailed as failed:
        print("failed", failed.cause)  # noqa: T201
    except RunWaiting as waiting:
        print("waiting", *(wait["kind"] for wait in waiting.waits))  # noqa: T201
