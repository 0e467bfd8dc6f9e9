"""An owner's event that goes alone: the same bytes as the long way, nothing behind a fence, a cancel or a refusal."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.errors import (
    AppendRefused,
    CallEnded,
    CancelRequested,
    NotAllowed,
    OutcomeUnknown,
    StaleEpoch,
    StoreError,
    TooLarge,
    WrongExpectation,
)
from runjournal.log.limits import memory_bytes_max
from runjournal.log.store import Alone
from runjournal.looking.audit import audit_store
from runjournal.projections.state import RunState
from runjournal.testing import generate
from runjournal.writing.appender import Appender

R = "r"
NOTE = e.NoteAdded("x")


def opened(path: Any) -> Journal:
    return Journal.open(path, clock=FakeClock(), by="w")


def owned(path: Any, *more: e.Event) -> Journal:
    """A journal that owns the run, with the events that its owner has appended."""
    journal = opened(path)
    journal.append(R, [e.RunQueued("k", None), generate.claim(1)], expect=0)
    for event in more:
        journal.append(R, [event], epoch=1)
    return journal


@pytest.fixture(params=["memory", "sqlite"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return "memory:" if request.param == "memory" else tmp_path / "runs.db"


def statements(journal: Journal, append: Any) -> list[str]:
    """What the writer's connection executes meanwhile, by its first words."""
    seen: list[str] = []

    def trace(_: Any, text: str, __: Any) -> bool:
        seen.append(" ".join(text.split()[:3]))
        return True

    writer = journal.store._writer  # type: ignore[attr-defined]
    writer.exec_trace = trace
    try:
        append()
    finally:
        writer.exec_trace = None
    return seen


def test_one_statement(tmp_path: Path) -> None:
    """An owner's event that brings nothing but itself is one statement; one with an index row is a transaction."""
    with owned(tmp_path / "runs.db", NOTE) as journal:
        assert ["INSERT INTO events"] == statements(journal, lambda: journal.append(R, [NOTE], epoch=1))
        assert ["INSERT INTO events"] == statements(journal, lambda: journal.append(R, [NOTE], epoch=1, expect=4))
        start = e.ToolStarted("c", "t", None, policy="unsafe", read_only=False, on_unknown="ask", attempt=1)
        big = e.MemorySet("k", "x" * 70_000)
        for events in ([start], [NOTE, NOTE], [big], [e.RunCancelRequested("enough", "after_step")]):
            seen = statements(journal, partial(journal.append, R, events, epoch=1))
            assert "BEGIN IMMEDIATE" == next(each for each in seen if not each.startswith("PRAGMA"))
        assert "BEGIN IMMEDIATE" in statements(journal, lambda: journal.append(R, [NOTE]))
        assert ["call_unresolved"] == [each.code for each in audit_store(journal.store)]


def test_the_row_of_a_running_run_stays(tmp_path: Path) -> None:
    """The head is that of the last event, for all readers; the row is a lower bound until the run is let go of."""
    with owned(tmp_path / "runs.db", NOTE) as journal:
        journal.append(R, [NOTE, NOTE], epoch=1)  # the long way
        journal.append(R, [NOTE])
        last = list(journal.events(R))[-1]
        for head in (journal.head(R), next(iter(journal.runs())), next(iter(journal.runs(since=last.at)))):
            assert (6, last.hash, last.at) == (head.head_seq, head.head_hash, head.updated_at)
        row = journal.store.head_row(R)
        assert row is not None
        assert 2 == row.head_seq
        journal.append(R, [e.RunRequeued("released")], epoch=1)
        assert journal.head(R) == journal.store.head_row(R)


def test_a_step_begins_in_one_statement(tmp_path: Path) -> None:
    """The start of a step brings no index row."""
    with owned(tmp_path / "runs.db", NOTE) as journal:
        step = e.StepStarted(0, "s", "s", "once", 1, 1)
        assert ["INSERT INTO events"] == statements(journal, lambda: journal.append(R, [step], epoch=1))


def test_a_step_out_of_its_order(path: Any) -> None:
    """A step goes the short way in its order alone: another one is refused, and nothing is written or folded."""
    with owned(path, NOTE) as journal:
        for events, wrong in (
            ([], e.StepStarted(1, "b", "b", "once", 1, 1)),
            ([e.StepStarted(0, "a", "a", "once", 1, 1)], e.StepStarted(1, "b", "b", "once", 1, 1)),
        ):
            for event in events:
                journal.append(R, [event], epoch=1)
            before = journal.ownership.live(R).dump()
            with pytest.raises(NotAllowed):
                journal.append(R, [wrong], epoch=1)
            assert before == journal.ownership.live(R).dump()


def test_what_others_append_in_between(path: Any) -> None:
    """The owner's next event stands behind it, and its folded state has it."""
    with owned(path, NOTE) as journal:
        for number in range(3):
            journal.append(R, [e.SignalReceived(f"s{number}", "n", number)])
            assert 4 + 2 * number + 1 == journal.append(R, [NOTE], epoch=1)[0].seq
        assert journal.replay(R).dump() == journal.ownership.live(R).dump()
        assert [] == list(audit_store(journal.store))


def test_what_another_process_appends_in_between(tmp_path: Path) -> None:
    """The guard finds it: the owner goes the long way once, and then the short one again."""
    with owned(tmp_path / "runs.db", NOTE) as journal, opened(tmp_path / "runs.db") as other:
        other.append(R, [e.CostRecorded("1", "USD", "x")])
        seen = statements(journal, lambda: journal.append(R, [NOTE], epoch=1))
        assert ["INSERT INTO events", "BEGIN IMMEDIATE"] == seen[:2]
        assert ["INSERT INTO events"] == statements(journal, lambda: journal.append(R, [NOTE], epoch=1))
        assert [1, 2, 3, 4, 5, 6] == [record.seq for record in journal.events(R)]
        assert [] == list(audit_store(journal.store))


def test_what_another_thread_appends_before_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an owner whose own event has come first nothing is judged by what was known before it."""
    with owned(tmp_path / "runs.db", NOTE) as journal:
        alone, before = journal.store.append_alone, [NOTE]

        def late(decide: Any, *, durable: bool) -> Any:
            if before:
                journal.append(R, [before.pop()], epoch=1)
            return alone(decide, durable=durable)

        monkeypatch.setattr(journal.store, "append_alone", late)
        seen = statements(journal, lambda: journal.append(R, [NOTE], epoch=1))
        assert ["INSERT INTO events", "BEGIN IMMEDIATE"] == seen[:2]
        assert [1, 2, 3, 4, 5] == [record.seq for record in journal.events(R)]
        assert journal.replay(R).dump() == journal.ownership.live(R).dump()


def test_what_was_folded_for_nothing_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody sees a state with an event that the guard has refused, not even before the long way begins."""
    commit, seen = Appender._commit, list[Any]()

    def looking(appender: Appender, *args: Any, **options: Any) -> Any:
        seen.append(appender.states.known((R, True)))
        return commit(appender, *args, **options)

    with owned(tmp_path / "runs.db", NOTE) as journal, opened(tmp_path / "runs.db") as other:
        other.append(R, [e.CostRecorded("1", "USD", "x")])
        monkeypatch.setattr(Appender, "_commit", looking)
        journal.append(R, [NOTE], epoch=1)
    assert [None] == seen


def test_a_fenced_owner(tmp_path: Path) -> None:
    """Who was replaced while it slept writes nothing more, and is told so."""
    with owned(tmp_path / "runs.db", NOTE) as journal, opened(tmp_path / "runs.db") as other:
        journal.append(R, [e.RunRequeued("released")], epoch=1)
        other.append(R, [generate.claim(2)])
        for _ in range(2):
            with pytest.raises(StaleEpoch):
                journal.append(R, [NOTE], epoch=1)
        other.append(R, [NOTE], epoch=2)
        with pytest.raises(StaleEpoch):
            journal.append(R, [NOTE], epoch=1)
        assert [1, 1, 2, 2] == [record.epoch for record in other.events(R)][2:]


def test_a_fenced_owner_whose_journal_believes(tmp_path: Path) -> None:
    """A journal that hasn't heard of the other claim is refused by the file itself."""
    with owned(tmp_path / "runs.db", NOTE) as journal, opened(tmp_path / "runs.db") as other:
        other.append(R, [e.RunRequeued("owner_dead"), generate.claim(2)])
        with pytest.raises(StaleEpoch):
            journal.append(R, [NOTE], epoch=1)
        assert 5 == other.head(R).head_seq


@pytest.mark.parametrize("here", [True, False])
def test_a_cancel_between_two_events(tmp_path: Path, here: bool) -> None:
    """What a cancel forbids is refused behind it, whoever asked; what it allows goes alone again."""
    with owned(tmp_path / "runs.db", NOTE) as journal, opened(tmp_path / "runs.db") as other:
        (journal if here else other).append(R, [e.RunCancelRequested("enough", "now")])
        with pytest.raises(CancelRequested):
            journal.append(R, [e.ModelStarted("c", "m", "a" * 64, 1)], epoch=1)
        assert 5 == journal.append(R, [NOTE], epoch=1)[0].seq
        assert ["INSERT INTO events"] == statements(journal, lambda: journal.append(R, [NOTE], epoch=1))


def test_refusals_are_those_of_the_long_way(path: Any) -> None:
    """A wrong expectation, a call without a start, a state that grows too great are told, and nothing is written."""
    with owned(path, NOTE) as journal:
        with pytest.raises(WrongExpectation):
            journal.append(R, [NOTE], epoch=1, expect=2)
        with pytest.raises(CallEnded):
            journal.append(R, [e.ModelCompleted("none", 1, None)], epoch=1)
        for number in range(memory_bytes_max // 60_000):
            journal.append(R, [e.MemorySet(f"k{number}", "x" * 60_000)], epoch=1)
        with pytest.raises(TooLarge):
            journal.append(R, [e.MemorySet("more", "x" * 60_000)], epoch=1)
        last = journal.head(R).head_seq
        assert last == journal.replay(R).seq
        assert last + 1 == journal.append(R, [NOTE], epoch=1)[0].seq


def test_a_refusal_on_what_is_known_here_is_none_yet(tmp_path: Path) -> None:
    """What this journal would refuse, and the store's own log allows, is appended: the long way decides."""
    step = e.StepStarted(index=0, id="a", name="a", kind="once", entry=1, attempt=1)
    with owned(tmp_path / "runs.db", step) as journal, opened(tmp_path / "runs.db") as other:
        first = e.ModelStarted("c", "m", "a" * 64, 1)
        other.append(R, [first, e.ModelFailed("c", 1, {"type": "T", "message": "m"}, transient=True)], epoch=1)
        assert 6 == journal.append(R, [e.ModelStarted("c", "m", "a" * 64, 2)], epoch=1)[0].seq


def test_a_batch_again(path: Any) -> None:
    """Repeating an owner's event that is there already changes nothing, also behind others."""
    with owned(path, NOTE) as journal:
        batch = journal.batch(R, [NOTE], expect=3, epoch=1)
        first = journal.append(batch)
        assert first == journal.append(batch)
        journal.append(R, [NOTE], epoch=1)
        assert first == journal.append(batch)
        assert 5 == journal.head(R).head_seq


def test_an_io_error_is_an_unknown_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the disk refuses is told as at a COMMIT, and nothing more is acknowledged by this process."""
    from runjournal.log import sqlite_single

    def failing(*_: Any) -> None:
        raise apsw.IOError("disk I/O error")

    with owned(tmp_path / "runs.db", NOTE) as journal:
        monkeypatch.setattr(sqlite_single, "append", failing)
        with pytest.raises(OutcomeUnknown):
            journal.append(R, [NOTE], epoch=1)
        monkeypatch.undo()
        with pytest.raises(StoreError):
            journal.append(R, [NOTE], epoch=1)


def test_the_store_refuses_a_head_that_moved(path: Any) -> None:
    """The guard is the hash of the event before, with the epoch and the cancel: any other writes nothing."""
    with owned(path, NOTE) as journal:
        head = journal.head(R)
        from runjournal.log.codec import draft, linked

        made = draft(NOTE, at="2026-01-01T00:00:00.000000Z", by="w")
        _, row = linked(R, 4, head.head_hash, made, epoch=1)
        wrong = [
            head._replace(head_hash="0" * 64),
            head._replace(epoch=2),
            head._replace(cancel_requested="now"),
            head._replace(run_id="none"),
        ]
        for before in wrong:
            made_up = Alone(before.run_id, before, row)
            assert journal.store.append_alone(partial(lambda alone: alone, made_up), durable=True) is None
        assert journal.store.append_alone(lambda: None, durable=True) is None
        assert 3 == journal.head(R).head_seq
        assert 4 == journal.store.append_alone(lambda: Alone(R, head, row), durable=True)
        assert 4 == journal.head(R).head_seq


def test_no_append_inside_a_transaction(path: Any) -> None:
    """Inside a transaction the short way is refused, as a transaction inside another is."""
    with owned(path, NOTE) as journal:

        def inside(_: Any) -> None:
            with pytest.raises(StoreError, match="inside"):
                journal.store.append_alone(lambda: None, durable=True)

        journal.store.transact(inside, durable=True)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_both_ways_come_to_the_same(seed: int) -> None:
    """Random events, right and wrong ones, by the owner and by others: the same rows, heads and states either way."""
    rng = random.Random(seed)
    with opened("memory:") as short, opened("memory:") as long:
        long.ownership.appender._alone = lambda *_, **__: None  # type: ignore[method-assign]
        state = RunState.initial()
        for _ in range(40):
            event, epoch = generate.next_event(rng, state)
            if isinstance(event, e.RunClaimed):
                epoch = 0
            said: list[list[Any]] = []
            for journal in (short, long):
                try:
                    said.append(journal.append(R, [event], epoch=epoch))
                except AppendRefused as refusal:
                    said.append([type(refusal)])
            assert said[0] == said[1]
            state.fold(each for each in said[0] if isinstance(each, e.RecordedEvent))
        for journal in (short, long):
            journal.store.drop_checkpoints()
        assert list(short.store.read_raw(R)) == list(long.store.read_raw(R))
        assert short.store.head(R) == long.store.head(R)
        assert short.state(R).dump() == long.state(R).dump() == short.replay(R).dump()
