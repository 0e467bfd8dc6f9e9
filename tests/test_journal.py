"""The journal: append, read, fold, follow; what fails leaves nothing, what is repeated is there once."""

import hashlib
import random
import shutil
import sqlite3
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from same import exact

from runjournal import CheckpointPolicy, Journal, Place, register
from runjournal.engine.failures import StepFailed
from runjournal.log import base
from runjournal.log import events as e
from runjournal.log.chain import RawRow, event_hash
from runjournal.log.clock import FakeClock
from runjournal.log.codec import decode
from runjournal.log.errors import (
    AppendRefused,
    CorruptLog,
    InvalidArgument,
    JournalError,
    MissingBlob,
    OutcomeUnknown,
    RunNotFound,
    StoreClosed,
    StoreFull,
    TailRewound,
    Unfoldable,
    Unstorable,
    WrongExpectation,
)
from runjournal.log.limits import append_batch_events_max, read_page_events_max
from runjournal.log.private_values import no_key
from runjournal.log.tables import INDEX
from runjournal.projections.state import RunState, dump_bytes
from runjournal.testing import generate

R = "r"
QUEUED = e.RunQueued("demo", {"a": 1})


@pytest.fixture(params=["memory", "sqlite"])
def journal(request, tmp_path):
    url = "memory:" if request.param == "memory" else str(tmp_path / "runs.db")
    with Journal.open(url, clock=FakeClock(), by="w") as opened:
        yield opened


@pytest.fixture
def run(journal):
    """A claimed run of two events."""
    journal.append(R, [QUEUED, generate.claim(1)], expect=0)
    return journal


def note(text="n"):
    return e.NoteAdded(text)


def image(journal, run_id=R):
    store = journal.store
    tables = [list(store.index_rows(name)) for name in INDEX]
    return list(store.read_raw(run_id)), store.head(run_id), tables, list(store.blob_digests()), store.last_position()


# --- appending --------------------------------------------------------------------------------------------------------


def test_records_are_what_is_read(run):
    """What an append gives back is what a reader gets."""
    appended = run.append(R, [e.StepStarted(0, "load", "load", "once", 1, 1), e.MemorySet("k", [1])], epoch=1, by="me")
    assert list(run.events(R, after=2)) == appended
    assert [(3, "step.started", "me", 1, 0), (4, "memory.set", "me", 1, 0)] == [
        (record.seq, record.type, record.by, record.epoch, record.step) for record in appended
    ]


@pytest.mark.requirement("R47")
@pytest.mark.parametrize("expect", [0, 1, 3, 99])
def test_expectation(run, expect):
    """An append stands behind the event it names, or is refused with what was expected and what is there."""
    before = image(run)
    with pytest.raises(WrongExpectation) as refusal:
        run.append(R, [note()], expect=expect)
    assert (expect, 2, before) == (refusal.value.expected, refusal.value.actual, image(run))
    assert [3] == [record.seq for record in run.append(R, [note()], expect=2)]


@pytest.mark.requirement("R47")
def test_sequence_is_dense(run):
    """Seqs count from 1 without a gap, whatever was refused in between."""
    for n in range(20):
        run.append(R, [note()])
        with pytest.raises(AppendRefused):
            run.append(R, [note(), e.ChildSpawned("c", "k")])
        with pytest.raises(Unstorable):
            run.append(R, [note(), e.MemorySet("k", {n})], epoch=1)
    assert list(range(1, 23)) == [record.seq for record in run.events(R)]


def test_no_batches(journal):
    """Who has nothing to append appends nothing."""
    assert [] == journal.append_all([])


@pytest.mark.parametrize("events", [
    [note(), e.MemorySet("k", 2**64)], [note(), e.StepCompleted(7)], [note(), e.MemorySet("", 1)], [],
    [note()] * (append_batch_events_max + 1), [note(), "x"], [note(), e.ToolCompleted("c", 1)],
], ids=["unstorable", "refused", "invalid", "empty", "too many", "no event", "call never started"])  # fmt: skip
def test_all_or_nothing(run, events):
    """A batch that can't be appended whole leaves nothing: no event, row or blob."""
    before = image(run)
    with pytest.raises(JournalError):
        run.append(R, [e.MemorySet("big", "x" * 70_000), *events] if events else [], epoch=1)
    assert before == image(run)
    assert exact(run.replay(R).dump()) == exact(run.state(R).dump())


def test_after_a_refusal_of_a_later_event(run):
    """What was folded for a refused batch isn't remembered by the next append."""
    run.append(R, [e.StepStarted(0, "load", "load", "once", 1, 1)], epoch=1)
    with pytest.raises(AppendRefused):
        run.append(R, [e.StepCompleted(0), e.StepCompleted(0)], epoch=1)
    run.append(R, [e.StepCompleted(0)], epoch=1)
    assert 1 == run.state(R).steps.completed_count


@pytest.mark.parametrize(
    "more",
    [
        {"expect": -1},
        {"expect": "0"},
        {"expect": True},
        {"epoch": -1},
        {"epoch": None},
        {"step": -1},
        {"step": "1"},
        {"step": True},
        {"by": "a\n"},
        {"by": "x" * 513},
    ],
    ids=str,
)
def test_arguments(run, more):
    """Arguments that can't be right are refused by name."""
    before = image(run)
    with pytest.raises(InvalidArgument):
        run.append(R, [note()], **more)
    assert before == image(run)


@pytest.mark.parametrize(
    "at",
    [['2026-01-01T00:00:00.000000Z","by":"root'], ["yesterday"], [""], [None], [], ["2026-01-01T00:00:00Z"]],
    ids=str,
)
def test_times_of_events(journal, at):
    """The time of what happened elsewhere goes into the bytes as it is: UTC text with microseconds, or refused."""
    with pytest.raises(InvalidArgument):
        journal.batch(R, [QUEUED], expect=0, at=at)


def test_given_times(journal):
    """A time that was given is the event's."""
    at = "2020-01-01T00:00:00.000001Z"
    (record,) = journal.append(journal.batch(R, [QUEUED], expect=0, at=[at]))
    assert (at, at) == (record.at, next(journal.events(R)).at)


def test_one_time_for_a_batch(journal):
    """The events of a batch were appended at one time, drawn when it was made."""
    batch = journal.batch(R, [QUEUED, note()], expect=0)
    journal.clock.sleep(100)
    assert {draft.at for draft in batch.drafts} == {record.at for record in journal.append(batch)}
    assert 1 == len({draft.at for draft in batch.drafts})


@pytest.mark.requirement("R144")
def test_the_callers_value_is_copied(run):
    """What the caller does to a value after the append changes neither the log nor any state."""
    value: dict[str, Any] = {"a": [1]}
    run.append(R, [e.StepStarted(0, "load", "load", "once", 1, 1)], epoch=1)
    (record,) = run.append(R, [e.MemorySet("k", value)], epoch=1)
    value["a"].append(2)
    run.append(R, [e.StepCompleted(0)], epoch=1)
    assert ({"k": {"a": [1]}}, {"a": [1]}) == (run.state(R).memory.committed, record.event.value)
    assert exact(run.replay(R).dump()) == exact(run.state(R).dump())


# --- repeating --------------------------------------------------------------------------------------------------------


def test_repeating_a_batch(run):
    """Repeating an append is a no-op that gives the same records, also when others have appended since."""
    batch = run.batch(R, [e.MemorySet("k", "x" * 70_000), note()], expect=2, epoch=1)
    first = run.append(batch)
    assert first == run.append(batch)
    run.append(R, [note("later")])
    before = image(run)
    assert (first, before) == (run.append(batch), image(run))


def test_repeating_a_creation(journal):
    """The same holds for the append that made the run, with its claim."""
    batch = journal.batch(R, [QUEUED, generate.claim(1)], expect=0)
    assert journal.append(batch) == journal.append(batch)


@pytest.mark.parametrize("change", ["time", "by", "data", "type", "order", "longer", "place"])
def test_almost_repeating(run, change):
    """An append that differs in time, writer, data, order, length or place is another one, and conflicts."""
    batch = run.batch(R, [note("a"), note("b")], expect=2)
    run.append(batch)
    a, b = batch.drafts
    other = {
        "time": run.batch(R, [note("a"), note("b")], expect=2),
        "by": run.batch(R, [note("a"), note("b")], expect=2, by="else", at=[a.at, b.at]),
        "data": run.batch(R, [note("a"), note("c")], expect=2, at=[a.at, b.at]),
        "type": run.batch(R, [note("a"), e.CostRecorded("1", "USD", "x")], expect=2, at=[a.at, b.at]),
        "order": batch._replace(drafts=(b, a)),
        "longer": run.batch(R, [note("a"), note("b"), note("c")], expect=2, at=[a.at, b.at, b.at]),
        "place": batch._replace(expect=1),
    }[change]
    before = image(run)
    with pytest.raises(WrongExpectation):
        run.append(other)
    assert before == image(run)


@pytest.mark.parametrize("lost", [True, False], ids=["it had come through", "it hadn't"])
def test_unknown_outcome(run, monkeypatch, lost):
    """After an OutcomeUnknown the same batch is appended again, by another process, and is there once."""
    batch = run.batch(R, [e.StepStarted(0, "load", "load", "once", 1, 1), note()], expect=2, epoch=1)
    transact = run.store.transact

    def unknown(decide, *, durable):
        if lost:
            transact(decide, durable=durable)
        raise OutcomeUnknown("I/O error at COMMIT")

    with monkeypatch.context() as patch:
        patch.setattr(run.store, "transact", unknown)
        with pytest.raises(OutcomeUnknown):
            run.append(batch)
    records = Journal(run.store, by="other").append(batch)
    assert ([3, 4], 4) == ([record.seq for record in records], run.head(R).head_seq)
    run.append(R, [e.StepCompleted(0)], epoch=1)
    assert exact(run.replay(R).dump()) == exact(run.state(R).dump())


@pytest.mark.requirement("R95")
@pytest.mark.parametrize("error", [StoreFull("no space"), OutcomeUnknown("I/O")], ids=lambda error: error.code)
def test_failing_writes_are_loud(run, monkeypatch, error):
    """A write that fails raises; what was there is readable, and what the journal knows is what is there."""

    def fail(decide, *, durable):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(run.store, "transact", fail)
        with pytest.raises(type(error)):
            run.append(R, [note()])
    assert ([1, 2], [3]) == (
        [record.seq for record in run.events(R)],
        [record.seq for record in run.append(R, [note()])],
    )


@pytest.mark.requirement("R95")
def test_failing_in_the_store(run, monkeypatch):
    """The same when the store fails after everything was folded."""
    run.append(R, [e.StepStarted(0, "load", "load", "once", 1, 1)], epoch=1)
    transact = run.store.transact

    def fail(decide, *, durable):
        def late(tx):
            decide(tx)
            raise StoreFull("no space")

        return transact(late, durable=durable)

    before = image(run)
    with monkeypatch.context() as patch:
        patch.setattr(run.store, "transact", fail)
        with pytest.raises(StoreFull):
            run.append(R, [e.StepCompleted(0)], epoch=1)
    assert before == image(run)
    run.append(R, [e.StepCompleted(0)], epoch=1)
    assert 1 == run.state(R).steps.completed_count


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [
    lambda j: j.head("none"), lambda j: j.state("none"), lambda j: j.replay("none"), lambda j: list(j.events("none")),
    lambda j: list(j.messages("none")), lambda j: j.fold(RunState, "none"), lambda j: j.checkpoint("none"),
])  # fmt: skip
def test_no_such_run(journal, read):
    """Whatever is asked of a run that isn't there: RunNotFound."""
    with pytest.raises(RunNotFound):
        read(journal)


@pytest.mark.parametrize("run_id", ["", "a/b", "a\0", "../x", 7, None])
def test_bad_run_id(journal, run_id):
    """An id that no run can have is refused, by readers and writers."""
    for use in (journal.head, journal.state, lambda run_id: journal.append(run_id, [QUEUED], expect=0)):
        with pytest.raises(InvalidArgument):
            use(run_id)


def test_events_by_range_and_type(run):
    """Events are read by range and by type, in order."""
    run.append(R, [note(str(n)) for n in range(5)])
    assert [4, 5] == [record.seq for record in run.events(R, after=3, upto=5)]
    assert [1, 2] == [record.seq for record in run.events(R, types=("run.queued", "run.claimed"))]
    assert [] == list(run.events(R, after=99))


def test_events_by_pages(run):
    """A reader gets the rest of its pages while others append, and sees them."""
    run.append(R, [note()] * (2 * read_page_events_max))
    reader = run.events(R)
    first = next(reader)
    run.append(R, [note()])
    assert list(range(1, 2 * read_page_events_max + 4)) == [first.seq, *(record.seq for record in reader)]


@pytest.mark.requirement("R2")
def test_messages_byte_for_byte(run):
    """The messages that are read back are those that went in, byte for byte, every time."""
    contents: list[Any] = ["hi", {"b": 1, "a": [None, 0.1, "ü\0"]}, [{"type": "text", "text": "x" * 70_000}]]
    run.append(R, [e.MessageAppended("user", content) for content in contents], epoch=1)
    for _ in range(2):
        assert [orjson.dumps(content) for content in contents] == [orjson.dumps(m.content) for m in run.messages(R)]
    assert contents[:1] == [message.content for message in run.messages(R, at=3)]


@pytest.mark.requirement("R88")
def test_blobs(run):
    """A value over the bound is kept under the hash of its JSON, put in place for readers, left out on request."""
    value = {"text": "x" * 2_000_000}
    (record,) = run.append(R, [e.MemorySet("k", value)], epoch=1)
    text = orjson.dumps(value)
    ref = e.BlobRef(hashlib.sha256(text).hexdigest(), len(text))
    assert [ref, ref, value] == [
        record.event.value,
        next(run.events(R, after=2, blobs=False)).event.value,
        next(run.events(R, after=2)).event.value,
    ]
    assert [(ref.sha256, ref.bytes)] == list(run.store.blob_digests())
    assert len(list(run.store.read_raw(R))[2][3]) < 500


@pytest.mark.requirement("R88")
def test_equal_blobs_are_kept_once(run):
    """The same large value twice is one blob."""
    run.append(R, [e.MemorySet("a", "x" * 70_000), e.MemorySet("b", "x" * 70_000)], epoch=1)
    assert 1 == len(list(run.store.blob_digests()))


@pytest.mark.requirement("R88")
def test_missing_blob(run, monkeypatch):
    """A missing blob is reported with its digest and place; folds don't need it."""
    run.append(R, [e.MemorySet("k", "x" * 70_000), note()], epoch=1)
    monkeypatch.setattr(run.store, "blob", lambda digest: None)
    with pytest.raises(MissingBlob, match=r"seq 3 memory\.set\.value") as missing:
        list(run.events(R))
    assert [missing.value.digest] == [digest for digest, _ in run.store.blob_digests()]
    assert (4, 4) == (len(list(run.events(R, blobs=False))), run.replay(R).seq)


def test_changed_blob(run, monkeypatch):
    """A blob whose bytes aren't those that were hashed is reported, not given back."""
    run.append(R, [e.MemorySet("k", "x" * 70_000)], epoch=1)
    monkeypatch.setattr(run.store, "blob", lambda digest: b'"evil"')
    with pytest.raises(CorruptLog, match="blob"):
        list(run.events(R))


# --- a log that was changed -------------------------------------------------------------------------------------------


def tampered(run, monkeypatch, change):
    """The journal, with stored rows as `change` makes them."""
    rows = change(list(run.store.read_raw(R)))

    def page(run_id, after=0, upto=None):
        return iter([row for row in rows if after < row[0] <= (upto or 99)])

    monkeypatch.setattr(type(run.store), "read_raw", lambda self, *args, **more: page(*args, **more))

    def read(self, run_id, after=0, upto=None, *, types=None):
        records = (decode(R, *cast("RawRow", row), no_key) for row in page(run_id, after, upto))
        return (record for record in records if types is None or record.type in types)

    monkeypatch.setattr(type(run.store), "read", read)


def flip(rows):
    seq, position, kind, body, digest = rows[2]
    return [*rows[:2], (seq, position, kind, body.replace(b"one", b"eno"), digest), *rows[3:]]


@pytest.mark.requirement("R93")
@pytest.mark.parametrize(
    ("change", "seq"),
    [
        (flip, 3),
        (lambda rows: rows[:2] + rows[3:], 3),
        (lambda rows: rows[:4], 5),
        (lambda rows: [rows[0], rows[2], rows[1], *rows[3:]], 2),
    ],
    ids=["changed", "missing", "cut tail", "swapped"],
)
def test_changes_are_located(run, monkeypatch, change, seq):
    """A changed, missing, swapped or cut-off event is found by a fold, by its seq."""
    run.append(R, [note("one"), note("two"), note("three")])
    tampered(run, monkeypatch, change)
    for read in (run.replay, run.state):
        with pytest.raises(CorruptLog) as found:
            read(R)
        assert seq == found.value.seq


def unreadable(rows):
    digest = event_hash(R, 5, rows[4][2], rows[3][4], b"{}")
    return [*rows[:4], (*rows[4][:3], b"{}", digest)]


def test_unreadable_event(run, monkeypatch):
    """An unreadable event stops folds and the reading of messages; force leaves it out, readers get its bytes."""
    run.append(R, [note("one"), note("two"), e.MessageAppended("user", "three")], epoch=1)
    tampered(run, monkeypatch, unreadable)
    for read in (run.replay, run.state, lambda run_id: list(run.messages(run_id))):
        with pytest.raises(Unfoldable):
            read(R)
    assert (1, b"{}") == (run.state(R, force=True).skipped, list(run.events(R))[4].event.body)
    assert [] == list(run.messages(R, force=True))


# --- folding ----------------------------------------------------------------------------------------------------------


@register
@dataclass(frozen=True, slots=True)
class Sold(e.Event):
    TYPE: ClassVar[str] = "x.test_journal.sold"
    sku: str
    count: int = 1


@dataclass
class Stock:
    """What is sold, by article: a projection of the user's own, of events of the user's own."""

    NAME: ClassVar[str] = "test_journal.stock"
    VERSION: ClassVar[int] = 1
    applied: ClassVar[list[int]] = []
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def initial(cls):
        return cls()

    def apply(self, record):
        self.applied.append(record.seq)
        if isinstance(record.event, Sold):
            self.counts[record.event.sku] = self.counts.get(record.event.sku, 0) + record.event.count

    def dump(self):
        return self.counts

    @classmethod
    def load(cls, data):
        return cls(data)


def test_replay_at(run):
    """The state after each event is the fold up to it."""
    run.append(
        R,
        [e.StepStarted(0, "load", "load", "once", 1, 1), e.MemorySet("k", 1), e.StepCompleted(0), e.RunCompleted(1)],
        epoch=1,
    )
    expected = ["queued", "running", "running", "running", "running", "completed"]
    assert expected == [run.replay(R, at).status.status for at in range(1, 7)]
    assert [{}, {}, {"k": 1}] == [run.replay(R, at).memory.committed for at in (3, 4, 5)]
    assert exact(run.replay(R).dump()) == exact(run.replay(R, 6).dump())


@pytest.mark.parametrize("at", [0, -1, 3, 2.0, "1", True])
def test_replay_at_nothing(run, at):
    """A seq that the run doesn't have is refused."""
    with pytest.raises(InvalidArgument):
        run.replay(R, at)


def test_own_projection(run):
    """Events and projections of the user's own are appended by anybody, folded, at any event, and checkpointed."""
    run.append(R, [Sold("a", 2), Sold("b")])
    assert ({"a": 2, "b": 1}, {"a": 2}) == (run.fold(Stock, R).counts, run.fold(Stock, R, at=3).counts)
    assert 4 == run.checkpoint(R, Stock)
    run.append(R, [Sold("b")], epoch=1)
    Stock.applied.clear()
    assert ({"a": 2, "b": 2}, [5]) == (run.fold(Stock, R).counts, Stock.applied)


def test_checkpoints_of_two_projections(run):
    """A projection's checkpoint leaves the state of the run what it is, and the other way round."""
    run.append(R, [Sold("a"), e.MemorySet("k", 1)], epoch=1)
    before = exact(run.state(R).dump())
    for projection in (Stock, RunState, Stock):
        run.checkpoint(R, projection)
    assert (before, {"a": 1}) == (exact(run.state(R).dump()), run.fold(Stock, R).counts)


def test_own_types_after_the_end(run):
    """Events of the user's own may come at any time, like notes."""
    run.append(R, [e.RunCompleted(None)], epoch=1)
    run.append(R, [Sold("a")])
    assert {"a": 1} == run.fold(Stock, R).counts


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def many(journal):
    for n in range(5):
        tags = {"team": "a" if n % 2 else "b", "n": str(n)}
        event = e.RunQueued("even" if n % 2 == 0 else "odd", None, tags=tags, parent_run_id="run-0" if n > 2 else None)
        journal.append(f"run-{n}", [event], expect=0)
    journal.append("run-1", [generate.claim(1)])
    return journal


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, "43210"),
        ({"status": ["queued"]}, "4320"),
        ({"status": ["running", "queued"]}, "43210"),
        ({"status": ["failed"]}, ""),
        ({"kind": "odd"}, "31"),
        ({"kind": "none"}, ""),
        ({"tags": {"team": "b"}}, "420"),
        ({"tags": {"team": "b", "n": "2"}}, "2"),
        ({"tags": {"n": "9"}}, ""),
        ({"parent": "run-0"}, "43"),
        ({"prefix": "run-"}, "43210"),
        ({"prefix": "run-4"}, "4"),
        ({"prefix": "run_"}, ""),
        ({"since": "2099-01-01T00:00:00.000000Z"}, ""),
        ({"kind": "odd", "status": ["queued"]}, "3"),
    ],
    ids=str,
)
def test_runs(many, filters, expected):
    """Runs are listed newest first, by status, kind, tags, parent, prefix and time."""
    assert expected == "".join(head.run_id[-1] for head in many.runs(**filters))


def test_runs_since(many):
    """`since` takes in the runs that changed in that very moment or later."""
    assert ["run-4", "run-3", "run-1"] == [head.run_id for head in many.runs(since=many.head("run-3").queued_at)]


@pytest.mark.parametrize("status", [["done"], ["queued", ""], "done", ""])
def test_runs_of_no_status(journal, status):
    """A status that there isn't is refused."""
    with pytest.raises(InvalidArgument):
        list(journal.runs(status=status))


def test_runs_by_pages(journal):
    """More runs than a page holds are listed each once, also those of the same moment."""
    at = "2026-01-01T00:00:00.000000Z"
    for n in range(230):
        journal.append(journal.batch(f"r{n:03}", [QUEUED], expect=0, at=[at] if n % 2 else None))
    listed = [head.run_id for head in journal.runs()]
    assert ({f"r{n:03}" for n in range(230)}, 230) == (set(listed), len(listed))


# --- following --------------------------------------------------------------------------------------------------------


def test_follow(run):
    """A follower gets every event of the store in order, from behind its place, and those that come."""
    run.append("other", [QUEUED], expect=0)
    seen = list(run.follow(idle_s=0))
    assert [(R, 1), (R, 2), ("other", 1)] == [(record.run_id, record.seq) for record in seen]
    run.append(R, [note()])
    place = Place(seen[-1].position, seen[-1].hash)
    assert [(R, 3)] == [(record.run_id, record.seq) for record in run.follow(place, idle_s=0)]
    assert [1] == [record.seq for record in run.follow(run_id="other", idle_s=0)]


def test_follow_goes_on(run):
    """What is appended while somebody follows comes to them."""
    follower = run.follow()
    assert [1, 2] == [next(follower).seq, next(follower).seq]
    other = Journal(run.store)
    other.append(R, [note()])
    assert 3 == next(follower).seq


def test_follow_ends_when_idle(run):
    """With `idle_s` it ends when nothing has come for that long."""
    before = run.clock.boottime_s()
    assert 2 == len(list(run.follow(idle_s=5)))
    assert 5 <= run.clock.boottime_s() - before < 6


@pytest.mark.parametrize("place", [Place(2, "0" * 64), Place(99, "0" * 64)], ids=["another event", "nothing"])
def test_rewound_tail(run, place):
    """A follower whose last event is gone, or is another one now, is told so: it doesn't go on as if nothing was."""
    with pytest.raises(TailRewound) as told:
        list(run.follow(place, idle_s=0))
    assert place.position == told.value.position


def test_rewound_while_following(run, monkeypatch):
    """The same happens to one that is in the middle of following."""
    follower = run.follow()
    next(follower), next(follower)
    run.append(R, [note()])
    monkeypatch.setattr(type(run.store), "read_all", lambda self, after=0, upto=None: iter(()))
    with pytest.raises(TailRewound):
        next(follower)


# --- the place --------------------------------------------------------------------------------------------------------


@pytest.fixture
def filed(tmp_path):
    with Journal.open(tmp_path / "runs.db", clock=FakeClock(), by="w") as opened:
        opened.append(R, [QUEUED, generate.claim(1)], expect=0)
        yield opened


def test_sql(filed):
    """Rows of a query, with parameters."""
    assert [(1, "run.queued")] == filed.sql("SELECT seq, type FROM log WHERE run_id = ? AND seq < ?", (R, 2))


@pytest.mark.requirement("R144")
@pytest.mark.parametrize(
    "query",
    [
        "UPDATE events SET body = ''",
        "DELETE FROM events",
        "INSERT INTO meta VALUES ('a', 'b')",
        "DROP TABLE events",
        "CREATE TABLE x (y)",
        "PRAGMA journal_mode = DELETE",
        "ATTACH ':memory:' AS x",
        "VACUUM",
        "BEGIN",
        "DELETE FROM runs",
        "SELECT 1; DELETE FROM events",
        "WITH x AS (SELECT 1) DELETE FROM events",
        "nonsense",
    ],
)
def test_sql_refuses_to_write(filed, query):
    """Anything but one query is refused and changes nothing."""
    before = image(filed)
    with pytest.raises(JournalError):
        filed.sql(query)
    assert before == image(filed)


@pytest.mark.requirement("R144")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET body = x'7b7d'",
        "DELETE FROM events",
        "INSERT INTO events (run, seq, type, hash, body) VALUES (1, 9, 'x', zeroblob(32), x'7b7d')",
    ],
)
def test_the_database_refuses(filed, statement):
    """The database itself refuses to change, delete or sneak in an event, whoever opens the file."""
    connection = sqlite3.connect(filed.store.url.removeprefix("sqlite:"))
    with pytest.raises(sqlite3.Error), connection:
        connection.execute(statement)
    connection.close()
    assert 2 == len(list(filed.events(R)))


def test_backup(filed, tmp_path):
    """A backup is a store of its own with the same events, and doesn't overwrite."""
    filed.append(R, [e.MemorySet("k", "x" * 70_000)], epoch=1)
    target = tmp_path / "copy.db"
    filed.backup(target)
    with Journal.open(target, create=False) as copy:
        assert image(filed) == image(copy)
        assert exact(filed.state(R).dump()) == exact(copy.state(R).dump())
    with pytest.raises(JournalError):
        filed.backup(target)


@pytest.mark.requirement("R145")
def test_unknown_types_survive_a_copy(filed, tmp_path):
    """Events of a type that this version doesn't know come out of a copy as they went in, and folds pass them."""

    @dataclass(frozen=True, slots=True)
    class Teleported(e.Event):
        TYPE: ClassVar[str] = "x.teleported"
        to: str

    base.builtin(Teleported)
    try:
        filed.append(R, [Teleported("mars")], epoch=1)
    finally:
        del base._types["x.teleported"]
    filed.backup(tmp_path / "copy.db")
    with Journal.open(tmp_path / "copy.db", create=False) as copy:
        (event,) = (record.event for record in copy.events(R, after=2))
        assert (e.UnknownEvent("x.teleported", 1, {"to": "mars"}), 3) == (event, copy.replay(R).seq)
        assert list(filed.store.read_raw(R)) == list(copy.store.read_raw(R))


def test_memory_has_no_file():
    """A store in memory says what it can't."""
    with Journal.open("memory:") as journal:
        for use in (lambda: journal.sql("SELECT 1"), lambda: journal.backup("x")):
            with pytest.raises(InvalidArgument):
                use()


def test_closed(journal):
    """A closed journal says so; closing twice is nothing."""
    journal.close()
    journal.close()
    with pytest.raises(StoreClosed):
        journal.append(R, [QUEUED], expect=0)


def test_borrowed_store(run):
    """A journal over a store that it didn't open leaves it open."""
    with Journal(run.store):
        pass
    assert 2 == run.head(R).head_seq


@pytest.mark.requirement("R2", "R144")
def test_nothing_edits():
    """There is no verb to edit or delete an event, and what is read can't be changed in place."""
    assert not [name for name in dir(Journal) for word in ("edit", "delete", "update", "remove") if word in name]
    with pytest.raises(AttributeError):
        e.NoteAdded("n").text = "m"  # type: ignore[misc]


# --- SQLite is memory -------------------------------------------------------------------------------------------------


class Twins:
    """The same journal twice, in memory and in a file, each with a clock of its own that ticks alike."""

    policy = CheckpointPolicy(every_events=5)

    def __init__(self, folder):
        self.url = str(Path(folder) / "runs.db")
        self.clocks = FakeClock(), FakeClock()
        self.left = Journal.open("memory:", clock=self.clocks[0], by="w", checkpoints=self.policy)
        self.right = Journal.open(self.url, clock=self.clocks[1], by="w", checkpoints=self.policy)
        self.runs = 0

    def reopen(self):
        """A process ends and another begins; in memory only what is folded is lost."""
        self.right.close()
        self.right = Journal.open(self.url, clock=self.clocks[1], by="w", checkpoints=self.policy)
        self.left = Journal(self.left.store, by="w", checkpoints=self.policy)

    def close(self):
        self.left.store.close()
        self.right.close()
        shutil.rmtree(Path(self.url).parent)

    def both(self, use):
        """What comes of it, an error by its type and text: the same in both."""
        left, right = outcome(use, self.left), outcome(use, self.right)
        assert left == right
        return left

    def append(self, made):
        """Append the first of these batches to the left one, the second to the right one."""
        return self.both(lambda journal: journal.append(made[journal is self.right]))

    def sync(self):
        """Opening a file may look at the clock: both go on at the later time."""
        for clock in self.clocks:
            clock.elapsed_s = max(each.elapsed_s for each in self.clocks)


def outcome(use, journal):
    try:
        return use(journal)
    except JournalError as error:
        return type(error), str(error)


@pytest.fixture
def twins(tmp_path):
    """Where the journals are kept between two examples; after a failure they begin anew."""
    kept: list[Twins] = []
    fast = Path("/dev/shm")  # an fsync there costs nothing, and power is not what is tested here

    @contextmanager
    def borrow():
        if kept and kept[0].runs == 50:
            kept.pop().close()
        kept[:] = kept or [Twins(tempfile.mkdtemp(dir=fast if fast.is_dir() else tmp_path))]
        kept[0].runs += 1
        try:
            yield kept[0]
        except BaseException:
            kept.pop().close()
            raise

    yield borrow
    for each in kept:
        each.close()


def some_events(rng, state):
    """What one writer may append next, and its epoch; sometimes a wrong one."""
    trial, chain = RunState.load(orjson.loads(dump_bytes(state.dump()))), generate.RunBuilder()
    events, epoch = list[e.Event](), None
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        event, writer = generate.next_event(rng, trial)
        if epoch is not None and epoch != writer:
            break
        events, epoch = [*events, event], writer
        trial.apply(chain.add(event, event.epoch if isinstance(event, e.RunClaimed) else writer))
    return events, rng.choice((epoch, epoch, epoch, epoch, 0, 1, 7))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_sqlite_is_memory(twins, seed, size):
    """Random appends, right and wrong ones, repetitions and reopenings come to the same in both, byte for byte."""
    rng, batches = random.Random(seed), list[Any]()
    with twins() as pair:
        states = {f"r{pair.runs}-{n}": RunState.initial() for n in (1, 2)}
        for _ in range(size):
            run_id, chance = rng.choice(sorted(states)), rng.random()
            state = states[run_id]
            pair.sync()
            if chance < 0.03:
                pair.reopen()
            elif chance < 0.15 and batches:
                pair.append(rng.choice(batches))
            else:
                events, epoch = some_events(rng, state)
                expect = rng.choice((None, state.seq, state.seq, 0, state.seq + 1, max(0, state.seq - 1)))
                made = [each.batch(run_id, events, expect=expect, epoch=epoch) for each in (pair.left, pair.right)]
                batches.append(made)
                pair.append(made)
            for each, known in states.items():
                known.fold(pair.left.store.read(each, known.seq))
        for run_id, state in states.items():
            pair.both(lambda journal, run_id=run_id: rows(journal, run_id))
            if state.seq:
                folded = pair.both(lambda journal, run_id=run_id: exact(journal.state(run_id).dump()))
                assert exact(state.dump()) == folded


def rows(journal, run_id):
    """All that is stored of a run."""
    store = journal.store
    tables = [list(store.index_rows(name, run_id)) for name in INDEX]
    return (
        list(store.read_raw(run_id)),
        store.head(run_id),
        tables,
        list(store.checkpoints(run_id)),
        store.last_position(),
    )


def test_messages_of_a_run_that_goes_on_from_another(tmp_path):
    """A retry and a fork have those of their base, without those of an attempt that failed; a restart has none."""

    def agent(run):
        if not run.done("greet"):
            with run.step("greet"):
                run.message("user", "hello")
        with run.step("answer"):
            run.message("assistant", f"I am {run.id}")
            if run.id == "r":
                raise ValueError("no")

    with Journal.open(tmp_path / "runs.db") as journal:
        with pytest.raises(StepFailed, match="no"):
            journal.run(agent, run_id="r")
        fork, retry = journal.fork("r", new_run_id="f"), journal.retry("r", new_run_id="s")
        assert ["hello"] == [message.content for message in journal.messages(fork)]
        journal.run(agent, run_id=retry)
        assert ["hello", "I am s"] == [message.content for message in journal.messages(retry) if message.committed]
        assert [] == list(journal.messages(journal.restart(retry)))


def test_append_all_takes_a_list(journal):
    """One batch in place of a list of them is refused, though it is a tuple."""
    batch = journal.batch("r", [e.RunQueued("k", None)], expect=0)
    with pytest.raises(InvalidArgument, match="expected a list of batches"):
        journal.append_all(batch)
    assert [] == list(journal.runs())
