"""The rows of the runs and the index tables, made again from the events."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings

from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.errors import AppendRefused, NotAllowed
from runjournal.projections.state import RunState
from runjournal.testing.generate import claim, next_event
from runjournal.testing.strategies import seeds
from runjournal.writing.rebuild import rebuild

TABLES = ("effects", "unknowns", "step_ends", "bills", "lines")


def fill(journal: Journal, rng: random.Random, runs: int = 2, events: int = 25) -> None:
    """Append a few random runs."""
    for number in range(runs):
        state = RunState.initial()
        for _ in range(events):
            event, epoch = next_event(rng, state)
            if isinstance(event, e.RunClaimed):
                epoch = 0
            try:
                state.fold(journal.append(f"r{number}", [event], expect=state.seq, epoch=epoch))
            except AppendRefused:
                continue


def everything(journal: Journal) -> dict[str, list[object]]:
    """All rows that follow from the events."""
    tables: dict[str, list[object]] = {name: list(journal.store.index_rows(name)) for name in TABLES}
    return tables | {"runs": list(journal.runs())}


def spoil(journal: Journal) -> None:
    """Leave the index tables empty, as a migration does."""
    journal.store.transact(lambda tx: tx.reindex([]), durable=True)


@settings(max_examples=100)  # no property of the log itself
@given(rng=seeds())
def test_rebuilt_rows_are_the_written_ones(rng: random.Random) -> None:
    """Whatever was appended, all rows come back from the events as the appends had written them."""
    with Journal.open("memory:") as journal:
        fill(journal, rng)
        before = everything(journal)
        spoil(journal)
        rebuild(journal.store)
        assert before == everything(journal)


def test_rebuild_on_sqlite(tmp_path):
    """On SQLite, too; the triggers that a rebuild lifts are back behind it."""
    with Journal.open(tmp_path / "runs.db") as journal:
        fill(journal, random.Random(5), runs=8)
        before = everything(journal)
        triggers = journal.sql("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' ORDER BY name")
        spoil(journal)
        assert 8 == rebuild(journal.store)
        assert before == everything(journal)
        assert triggers == journal.sql("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' ORDER BY name")


def test_rebuild_spares_a_living_owner():
    """A run that a living process owns is not touched: the rebuild is refused, and nothing is changed."""
    with Journal.open("memory:") as journal:
        me = owner.here()
        claim = e.RunClaimed("w", 1, 60.0, me.host, me.boot_id, me.pid_ns, me.pid, me.started)
        journal.append("r", [e.RunQueued("k", None), claim], expect=0)
        before = everything(journal)
        with pytest.raises(NotAllowed):
            rebuild(journal.store)
        assert before == everything(journal)


def test_rebuild_never_lowers_an_epoch():
    """An epoch that is higher than the events say is kept, so that whoever was fenced stays so."""
    with Journal.open("memory:") as journal:
        journal.append("r", [e.RunQueued("k", None)], expect=0)
        head = journal.head("r")._replace(epoch=7)
        from runjournal.log.store import Write

        journal.store.transact(lambda tx: tx.reindex([Write(None, head, [])]), durable=True)
        rebuild(journal.store)
        assert 7 == journal.head("r").epoch


@pytest.mark.requirement("R88")
@pytest.mark.parametrize("at_once", [True, False])
def test_the_digest_of_large_args(at_once):
    """Equal args have one digest in `effects`, in whatever order their keys were given and wherever they are held."""
    found = []
    for args in ({"a": "x" * 70_000, "b": 1}, {"b": 1, "a": "x" * 70_000}):
        with Journal.open("memory:") as journal:
            journal.append("r", [e.RunQueued("k", None), claim(1)], expect=0)
            events = [
                e.StepStarted(0, "s", "s", "once", 1, 1),
                e.ToolStarted("c", "t", args, "unsafe", False, "ask", 1),
                e.ToolCompleted("c", 1, 1),
            ]
            for batch in [events] if at_once else [events[:2], events[2:]]:
                journal.append("r", batch, epoch=1)
            effect = journal.store.effect("r", "c")
            found.append(effect and effect.args_sha256)
    assert None is not found[0] == found[1]
