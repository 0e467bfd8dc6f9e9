"""Run an agent that charges 500 cents over HTTP: argv are a store, a port, and where its process kills itself.

`before` the request, `sent` before its answer, `answered` behind that, or `never`.
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from payments import charge_at

from runjournal import Journal, tool

store, port, dies = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def here(place: str) -> None:
    if place == dies:
        os.kill(os.getpid(), signal.SIGKILL)


@tool(policy="keyed")
def charge(cents: int, *, idempotency_key: str = "") -> dict:
    here("before")
    receipt = charge_at(port, idempotency_key, {"cents": cents}, lambda: here("sent"))
    here("answered")
    return receipt


with Journal.open(store) as journal:
    receipt = journal.run(lambda run: run.do("charge", charge, 500), run_id="bill", kind="bill")
    print(receipt["charge"])  # noqa: T201 - for the test
