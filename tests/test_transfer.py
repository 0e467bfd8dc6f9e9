"""Exports and imports: the same bytes, the same hashes, in one transaction."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from same import exact
from test_rebuild import fill

from runjournal.importers.transfer import export_runs, import_jsonl
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.errors import JournalError, NotAllowed
from runjournal.looking.audit import audit_store
from runjournal.testing.generate import claim
from runjournal.testing.strategies import seeds


def exported(journal: Journal) -> list[bytes]:
    """An export of all runs, in the order of their ids."""
    return list(export_runs(journal, sorted(head.run_id for head in journal.runs())))


@pytest.mark.requirement("R145")
@given(rng=seeds())
def test_export_import_export(rng: random.Random) -> None:
    """An export that is imported elsewhere exports to the same lines: ids, bytes, hashes."""
    with Journal.open("memory:") as one, Journal.open("memory:") as other:
        fill(one, rng, runs=1, events=rng.randrange(1, 20))
        lines = exported(one)
        import_jsonl(other, lines, "export.jsonl")
        assert lines == exported(other)
        for head in one.runs():
            assert exact(one.state(head.run_id).dump()) == exact(other.state(head.run_id).dump())
        assert [0] * len(list(one.runs())) == [run.events_added for run in import_jsonl(other, lines, "again").runs]


def test_blobs_come_along():
    """A value that is held out of line is in the export, and is read back from where it was imported."""
    with Journal.open("memory:") as one, Journal.open("memory:") as other:
        value = {"text": "x" * 70_000, "about": {"z": 1, "a": 2}}
        one.append("big", [e.RunQueued("k", value)], expect=0)
        import_jsonl(other, exported(one), "export.jsonl")
        assert exact(e.RunQueued("k", value)) == exact(next(other.events("big")).event)


def test_a_longer_export_adds_its_tail():
    """A later export of the same run adds what has come since, and nothing else."""
    with Journal.open("memory:") as one, Journal.open("memory:") as other:
        one.append("r", [e.RunQueued("k", None)], expect=0)
        import_jsonl(other, exported(one), "first")
        one.append("r", [e.NoteAdded("later")], expect=1)
        report = import_jsonl(other, exported(one), "second")
        assert [1] == [run.events_added for run in report.runs]
        assert exported(one) == exported(other)


def test_another_history_is_refused():
    """An export whose run is another one than the store's is refused, and nothing of it is written."""
    with Journal.open("memory:") as one, Journal.open("memory:") as other:
        one.append("r", [e.RunQueued("k", 1)], expect=0)
        one.append("s", [e.RunQueued("k", 1)], expect=0)
        other.append("s", [e.RunQueued("k", 2)], expect=0)
        before = exported(other)
        with pytest.raises(JournalError):
            import_jsonl(other, exported(one), "export.jsonl")
        assert before == exported(other)


def test_a_damaged_line_leaves_nothing_behind():
    """A line that was changed is named, and nothing of the file is written."""
    with Journal.open("memory:") as one, Journal.open("memory:") as other:
        one.append("r", [e.RunQueued("k", None), e.NoteAdded("hello")], expect=0)
        lines = [line.replace(b"hello", b"hullo") for line in exported(one)]
        with pytest.raises(JournalError, match="line 3"):
            import_jsonl(other, lines, "export.jsonl")
        assert [] == list(other.runs())


def test_a_run_from_elsewhere_is_not_claimed():
    """A run that lives in another store can be looked at and audited, and is never claimed."""
    with Journal.open("memory:") as one, Journal.open("memory:") as other:
        one.append("r", [e.RunQueued("k", None)], expect=0)
        import_jsonl(other, exported(one), "export.jsonl")
        with pytest.raises(NotAllowed, match="fork"):
            other.append("r", [claim(1)], expect=1)
        assert [] == [finding for finding in audit_store(other.store) if finding.severity == "error"]
