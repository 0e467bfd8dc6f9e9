"""Appends random runs to a store until it is killed, and tells each acknowledged event on standard output.

    python writer.py STORE SEED

A line is `run_id seq hash`, written after the append returned.
"""

from __future__ import annotations

import random
import sys

from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.errors import AppendRefused
from runjournal.projections.state import RunState
from runjournal.testing.generate import next_event


def claim(journal: Journal, epoch: int, resume: str | None) -> e.RunClaimed:
    """A claim by this very process."""
    me = owner.here()
    return e.RunClaimed(journal.by, epoch, 60.0, me.host, me.boot_id, me.pid_ns, me.pid, me.started, resume)


def step(journal: Journal, run_id: str, rng: random.Random) -> None:
    """One append of one to three events to a run, taken over from a dead owner if need be."""
    head = journal.store.head(run_id)
    state = journal.state(run_id) if head else RunState.initial()
    if head and head.status == "running" and head.pid != owner.here().pid:
        events: list[e.Event] = [e.RunRequeued("owner_dead"), claim(journal, head.epoch + 1, "crash")]
        epoch, seq = 0, head.head_seq
    else:
        seq = state.seq
        event, epoch = next_event(rng, state)
        if isinstance(event, e.RunClaimed):
            event, epoch = claim(journal, event.epoch, event.resume), 0
        events = [event]
        if epoch:
            events += [e.MessageAppended("user", "x" * rng.randrange(2000)) for _ in range(rng.randrange(3))]
    try:
        records = journal.append(run_id, events, expect=seq, epoch=epoch)
    except AppendRefused:  # the last event ended the ownership, so the messages behind it are refused
        return
    sys.stdout.write("".join(f"{r.run_id} {r.seq} {r.hash}\n" for r in records))
    sys.stdout.flush()


def main(path: str, seed: str) -> None:
    """Until killed."""
    rng = random.Random(seed)
    with Journal.open(path) as journal:
        runs = [head.run_id for head in journal.runs(status=("queued", "running", "waiting", "scheduled_retry"))]
        count = 0
        while True:
            if len(runs) < 4 or rng.random() < 0.02:
                count += 1
                runs.append(f"r{seed}-{count}")
            step(journal, rng.choice(runs[-8:]), rng)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
