"""Exports and imports: the same bytes, the same hashes, in one transaction."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from same import exact
from test_rebuild import fill

from runjournal.engine.failures import RunBusy
from runjournal.importers.transfer import export_runs, import_jsonl
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.errors import JournalError, NotAllowed, NotNewest
from runjournal.looking.audit import audit_store
from runjournal.testing.generate import claim
from runjournal.testing.strategies import seeds
from runjournal.writing.rebuild import rebuild


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


@pytest.mark.parametrize("end", ["queued", "cancelled"])
def test_who_wants_to_go_on_with_a_run_from_elsewhere_is_told_to_fork_it(end):
    """Whether it is run or tried again, and whether it has ended."""
    with Journal.open("memory:") as one, Journal.open("memory:") as other:
        one.append("r", [e.RunQueued("k", None), *([e.RunCancelled("")] if end == "cancelled" else [])], expect=0)
        import_jsonl(other, exported(one), "export.jsonl")
        for ask in (other.retry, other.restart):
            with pytest.raises(NotNewest, match=r"run r is imported: nobody owns it, so there is no .*; fork it"):
                ask("r")
        if end == "queued":
            with pytest.raises(RunBusy, match="run r is queued: nobody owns it; fork it, and run that"):
                other.run(lambda _: None, run_id="r", kind="k")


def test_a_run_from_elsewhere_that_has_not_ended_is_erased_and_purged():
    """It can't be ended here, so it would stay for ever; what is left of it is as if it had been purged elsewhere."""
    with Journal.open("memory:", private=True) as one, Journal.open("memory:") as other:
        one.append("r", [e.RunQueued("k", "Ada"), e.NoteAdded("Ada")], expect=0)
        import_jsonl(other, exported(one), "export.jsonl")
        assert ("r",) == other.erase("r", reason="asked for").run_ids
        assert ("r",) == other.purge("r", reason="asked for").run_ids
        assert ("purged", "imported") == (other.state("r").status.status, other.state("r").status.was)
        before = other.head("r")
        rebuild(other.store)
        assert (before, []) == (other.head("r"), list(other.store.index_rows("lines")))
        assert [] == [finding for finding in audit_store(other.store) if finding.severity != "info"]


def test_a_later_export_of_what_was_erased_here_leaves_it_out_and_brings_the_rest():
    """Its tail was another history than the erasure, so that nothing of the file came in."""
    with Journal.open("memory:", private=True) as one, Journal.open("memory:") as other:
        one.append("r", [e.RunQueued("k", "Ada")], expect=0)
        import_jsonl(other, exported(one), "first")
        other.erase("r", reason="asked for")
        one.append("r", [e.NoteAdded("later")])
        one.append("s", [e.RunQueued("k", "Bob")], expect=0)
        told = {
            each.run_id: (each.events_added, each.left_out) for each in import_jsonl(other, exported(one), "x").runs
        }
        assert {"r": (0, "it was erased here, and nothing is added to it"), "s": (1, None)} == told
        assert ["run.queued", "run.erased"] == [record.type for record in other.events("r")]
