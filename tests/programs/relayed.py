"""Kill relays again and again: argv are a folder, how many kills, and a seed. Prints what came of it, as JSON.

Each life is a process of its own, forked off this one, with one or two relays at once. A life dies by SIGKILL at a
place drawn by chance: before or behind a commit, before the delivery or behind it, in front of the mark. The receiver
does a thing once for a key, as its folder of files says; it notes each delivery, and two that overlap under one key.
"""

import json
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path

from runjournal import Journal, tool
from runjournal.log import failpoint

folder, kills_max, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
store, done, busy, heard = folder / "runs.db", folder / "done", folder / "busy", folder / "heard"
for each in (done, busy):
    each.mkdir()
left: list[int] = []


def passed(*_: object) -> None:
    """Die here, if it is time."""
    if left:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)


@tool(policy="outbox")
def bill(number: int, *, idempotency_key: str = "") -> int:
    passed()
    mine = busy / idempotency_key
    try:
        mine.touch(exist_ok=False)
    except FileExistsError:
        with suppress(ProcessLookupError, ValueError):
            os.kill(int(mine.read_text()), 0)
            note("overlap", idempotency_key)
    mine.write_text(str(os.getpid()))
    note("delivery", idempotency_key)
    with suppress(FileExistsError):  # once for a key
        (done / idempotency_key).touch(exist_ok=False)
        note("effect", f"{idempotency_key} {number}")
    passed()
    mine.unlink()
    return number


def note(what: str, about: str) -> None:
    with heard.open("a") as file:
        file.write(f"{what} {about}\n")


def agent(run):
    for turn in range(2):
        with run.step("turn", key=turn):
            bill(2 * turn)
            bill(2 * turn + 1)


def life(until: int) -> None:
    """Relay until there is nothing left, or until it is time to die."""
    left[:] = [until]
    failpoint.hit = passed
    with Journal.open(store) as journal:
        while any(True for _ in journal.store.index_rows("unknowns")):
            journal.relay()
    os._exit(0)


runs = kills = 0
while kills < kills_max:
    with Journal.open(store) as journal:
        runs += 1
        journal.run(agent, run_id=f"run-{runs}")
    pids = set[int]()
    while True:
        while len(pids) < chance.choice((1, 2)):
            until = chance.randrange(24)
            if (pid := os.fork()) == 0:
                life(until)
            pids.add(pid)
        pid, status = os.wait()
        pids.remove(pid)
        kills += os.WIFSIGNALED(status)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            sys.exit("a life ended by an error of its own")
        if os.WIFEXITED(status):
            break
    for pid in pids:
        os.waitpid(pid, 0)
with Journal.open(store) as journal:
    journal.relay()
    starts = [list(journal.events(f"run-{run}", types=["tool.started"])) for run in range(1, runs + 1)]
    pending = len(list(journal.store.index_rows("unknowns")))
numbers = {each.event.call_id: each.event.args["number"] for of_run in starts for each in of_run}
lines = [line.split() for line in heard.read_text().splitlines()]
effects = [key for what, key, *_ in lines if what == "effect"]
ordered = [[key for key in effects if key in {each.event.call_id for each in of_run}] for of_run in starts]
told = {
    "kills": kills,
    "pending": pending,
    "once": sorted(effects) == sorted(numbers),
    "in_order": all([0, 1, 2, 3] == [numbers[key] for key in keys] for keys in ordered),
    "again": sum(what == "delivery" for what, *_ in lines) - len(effects),
    "overlaps": sum(what == "overlap" for what, *_ in lines),
}
print(json.dumps(told))  # noqa: T201 - for the test
