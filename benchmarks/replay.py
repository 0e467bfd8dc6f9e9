"""Full replay of 20,000 events to state, chain verified, beside eventsourcing's `Repository.get`, in SQLite."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import UUID

from measure import Pairs, interleaved

from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.testing.generate import claim

EVENTS = 20_000
CONTENT = "x" * 300


def our_run(path: Path, count: int = EVENTS) -> Journal:
    """A journal with one run of `count` events, messages of 300 bytes."""
    journal = Journal.open(path)
    journal.append("r", [e.RunQueued(kind="bench", input=None)], expect=0)
    journal.append("r", [claim(1)], expect=1)
    seq = 2
    while seq < count:
        batch = [e.MessageAppended("user", CONTENT)] * min(500, count - seq)
        journal.append("r", batch, expect=seq, epoch=1)
        seq += len(batch)
    return journal


def their_aggregate(path: Path, count: int = EVENTS) -> tuple[Any, UUID]:
    """An eventsourcing application with one aggregate of `count` events that fold messages of 300 bytes."""
    from eventsourcing.application import Application
    from eventsourcing.domain import Aggregate, event

    class Conversation(Aggregate):
        def __init__(self) -> None:
            self.count = 0
            self.last = ""

        @event("MessageAppended")
        def append(self, role: str, content: str) -> None:
            self.count += 1
            self.last = role

    env = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": os.fspath(path)}
    app: Any = Application(env=env)
    conversation: Any = Conversation()
    for place in range(1, count):
        conversation.append("user", CONTENT)
        if place % 500 == 0:
            app.save(conversation)
    app.save(conversation)
    return app, conversation.id


def measure(folder: Path, pairs: int = 15) -> Pairs:
    """Seconds of theirs and ours, pair by pair."""
    journal = our_run(folder / "ours.db")
    app, aggregate_id = their_aggregate(folder / "theirs.db")
    assert app.repository.get(aggregate_id).version == EVENTS
    assert journal.replay("r").seq == EVENTS
    return interleaved(lambda: app.repository.get(aggregate_id), lambda: journal.replay("r"), pairs)
