"""Sending a signal to a run: under its id it comes once. The rule: engine.md W25."""

from __future__ import annotations

from collections.abc import Iterator

from runjournal.log import events as e
from runjournal.log.codec import plain
from runjournal.log.errors import NotAllowed
from runjournal.log.store import Transaction
from runjournal.writing import folding
from runjournal.writing.appender import Batch

from .logbook import Logbook


class _IsThere(Exception):
    """The very same signal has come before: nothing is to be appended."""


def receive(log: Logbook, run_id: str, signal: e.SignalReceived) -> None:
    """Append a signal, unless it has come before: to this run, or to one that it goes on from as a retry.

    Raises NotAllowed if another one has come under its id.
    """

    def made(tx: Transaction) -> Batch:
        for there in _received(tx, run_id):
            if there.signal_id == signal.signal_id:
                if (there.name, plain(folding.filled(log.store, there.payload))) != (signal.name, signal.payload):
                    raise NotAllowed(
                        f"run {run_id}: a signal with the id {signal.signal_id!r} has come before, with another name "
                        "or payload: give this one an id of its own; nothing was written"
                    )
                raise _IsThere
        return log.batch(run_id, [signal], expect=None)

    try:
        log.ownership.appender.append_made(made)
    except _IsThere:
        return


def _received(tx: Transaction, run_id: str) -> Iterator[e.SignalReceived]:
    """Yield the signals that a run has received, and those before it whose inbox it has."""
    of: str | None = run_id
    while of is not None:
        base = None
        for record in tx.read(of, types=("run.queued", "signal.received")):
            if isinstance(record.event, e.RunQueued) and record.event.link == "retry" and record.event.base:
                base = str(record.event.base["run_id"])
            if isinstance(record.event, e.SignalReceived):
                yield record.event
        of = base
