"""One of two processes that act on the same run: reads what to do, a JSON line each, and writes what came of it.

Called as `racer.py STORE LEDGER`. A line is [verb, run id, when]: the verb is done at that time, as near as can be.
"""

import json
import sys
import time
from pathlib import Path

from runjournal import Journal, tool
from runjournal.engine.failures import Stop, Transient
from runjournal.log.errors import JournalError

STORE, LEDGER = sys.argv[1:]


@tool
def post(run_id):
    with Path(LEDGER).open("a") as file:
        file.write(f"{run_id}\n")
    return "posted"


def agent(run):
    return run.do("post", post, run.input)


def failing(run):
    run.do("post", post, run.input)
    raise Transient("once more")


def resume_and_run(journal, run_id):
    journal.resume(run_id)
    return journal.run(agent, run_id=run_id)


def recover(journal, run_id):
    return {key: str(value) for key, value in journal.recover_all({"agent": agent}).items() if key == run_id}


VERBS = {
    "approve": lambda journal, run_id: journal.approve(run_id, "q1"),
    "reject": lambda journal, run_id: journal.reject(run_id, "q1"),
    "retry": lambda journal, run_id: journal.retry(run_id),
    "cancel": lambda journal, run_id: journal.cancel(run_id),
    "cancel now": lambda journal, run_id: journal.cancel(run_id, mode="now"),
    "run": lambda journal, run_id: journal.run(agent, run_id=run_id),
    "run and fail": lambda journal, run_id: journal.run(failing, run_id=run_id, kind="agent"),
    "resume": resume_and_run,
    "recover": recover,
}


def main():
    with Journal.open(STORE) as journal:
        print("ready", flush=True)  # noqa: T201 - to the test
        for line in sys.stdin:
            verb, run_id, when = json.loads(line)
            while time.monotonic() < when:
                pass
            try:
                came = [True, VERBS[verb](journal, run_id)]
            except (JournalError, Stop, Transient) as error:
                came = [False, type(error).__name__]
            print(json.dumps(came), flush=True)  # noqa: T201 - to the test


main()
