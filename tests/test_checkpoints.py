"""Checkpoints: disposable, verified before use, never ahead of the log; and they say what a person needs."""

import random
import sys
import threading
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from same import exact

from runjournal import CheckpointPolicy, CheckpointWarning, Journal
from runjournal.log import base
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.codec import digest_of
from runjournal.log.errors import InvalidArgument, StoreFull, WrongExpectation
from runjournal.log.limits import checkpoint_every_events, checkpoint_warn_bytes
from runjournal.log.memory_transaction import MemoryTransaction
from runjournal.log.store import Checkpoint
from runjournal.projections.state import RunState, dump_bytes
from runjournal.testing import generate, strategies
from runjournal.writing import checkpoints

R = "r"
ERROR = {"type": "E", "message": "m", "traceback": "t"}
NEVER = CheckpointPolicy(0, at_ends=False)
USAGE = {"input": 10, "output": 5, "cache_read": 2, "cache_write": 1}


@pytest.fixture
def journal():
    """One that takes no snapshots by itself, in memory."""
    with Journal.open("memory:", clock=FakeClock(), checkpoints=NEVER) as opened:
        yield opened


def start(journal, *events):
    journal.append(R, [e.RunQueued("demo", None), generate.claim(1)], expect=0)
    if events:
        journal.append(R, events, epoch=1)


def step(index, id, attempt=1):
    return e.StepStarted(index, id, id, "once", 1, attempt)


def fill(journal, count=3):
    """Some events with a snapshot behind each."""
    start(journal)
    for n in range(count):
        journal.append(R, [step(n, f"s{n}"), e.MemorySet("n", n), e.StepCompleted(n)], epoch=1)
        journal.checkpoint(R)


def newest(journal):
    return next(journal.store.checkpoints(R))


def same_state(journal):
    """The state, by way of whatever checkpoints there are, is that of the events alone."""
    return exact(journal.replay(R).dump()) == exact(journal.state(R).dump())


# --- what one says (R15, R142) ----------------------------------------------------------------------------------------


def told(journal, *events):
    """The summary of a run, read back from its checkpoint."""
    start(journal, *events)
    journal.checkpoint(R)
    found = checkpoints.newest(journal.store, RunState, R)
    assert found is not None
    assert isinstance(found[0], RunState)
    return checkpoints.summary(found[0])


STORY = (
    e.PromptPinned("f" * 64, {"identity": "1" * 64}, "You are"),
    step(0, "load"), e.MessageAppended("user", "hi"), e.MessageAppended("assistant", "ho"), e.MemorySet("k", {"v": 1}),
    e.ModelStarted("m", "gpt", "h", 1),
    e.ModelCompleted("m", 1, "ho", USAGE, {"amount": "0.0125", "currency": "USD", "source": "reported"}),
    e.StepCompleted(0),
    step(1, "sum"), e.StepFailed(1, ERROR, transient=True),
)  # fmt: skip


@pytest.mark.requirement("R15", "R142")
@pytest.mark.parametrize(("name", "expected"), [
    ("run_id", R), ("step_index", 1), ("next_index", 1), ("completed", ["load"]), ("status", "running"),
    ("message_range", [5, 6]), ("working_memory", {"k": {"v": 1}}), ("tokens_spent", 18),
    ("cost_spent", {"USD": "0.0125"}), ("prompt_fingerprint", "f" * 64),
    ("last_error", {"type": "E", "message": "m", "transient": True}),
])  # fmt: skip
def test_summary(journal, name, expected):
    """A checkpoint says where the run is, what it knows and what it has spent."""
    assert expected == told(journal, *STORY)[name]


@pytest.mark.requirement("R15", "R142")
def test_committed_at(journal):
    """A checkpoint says when the last event that it holds was committed."""
    assert told(journal, *STORY)["committed_at"] == list(journal.events(R))[-1].at


@pytest.mark.requirement("R15")
def test_summary_of_a_beginning(journal):
    """Of a run that has done nothing it says so, and what it has spent isn't invented."""
    journal.append(R, [e.RunQueued("demo", None)], expect=0)
    summary = checkpoints.summary(journal.state(R))
    expected: dict[str, Any] = {
        "step_index": -1,
        "next_index": 0,
        "message_range": None,
        "cost_spent": {},
        "last_error": None,
    }
    assert expected == {name: summary[name] for name in expected}


@pytest.mark.requirement("R15")
def test_summary_is_of_what_is_committed(journal):
    """What an open step has done so far isn't in the summary; its index is."""
    summary = told(journal, step(0, "load"), e.MessageAppended("user", "hi"), e.MemorySet("k", 1))
    assert (0, None, {}) == (summary["step_index"], summary["message_range"], summary["working_memory"])


def test_last_error_of_a_round(journal):
    """The error that ended a round or the run is the last error."""
    due = "2099-01-01T00:00:00.000000Z"
    summary = told(journal, e.RunRetryScheduled(due, 1, {"type": "Last", "message": ""}, []))
    assert "Last" == summary["last_error"]["type"]


# --- bounded, versioned -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("R18")
def test_large_ones_warn(journal):
    """A checkpoint over 50 KB is kept, with a warning that says how large it is."""
    start(journal, *(e.MemorySet(f"k{n}", "x" * 10_000) for n in range(6)))
    with pytest.warns(CheckpointWarning, match=f"checkpoint_warn_bytes = {checkpoint_warn_bytes}"):
        journal.checkpoint(R)
    assert 1 == len(list(journal.store.checkpoints(R)))


class Sentence:
    NAME = "sentence"
    VERSION = 1

    @classmethod
    def initial(cls):
        return cls()

    def apply(self, record):
        pass

    def dump(self):
        return ["w" * 60_000]

    @classmethod
    def load(cls, data):
        return cls()


FILLED = {
    "memory": ([e.MemorySet("k", "x" * 60_000)], "are memory 600.., ", "; keep large values out of the working memory"),
    "calls": (
        [step(0, "s"), *(e.ToolStarted(f"c{n}", "t", {}, "unsafe", False, "ask", 1) for n in range(300))],
        "are calls [0-9]{5,6}, ",
        "; a step holds its calls until it completes, so make several steps of a long one",
    ),
    "plan": (
        [e.PlanSet([{"id": "a", "title": "x" * 60_000, "status": "todo"}])],
        "are plan 60...",
        "; keep the titles",
    ),
    "inbox": ([e.SignalReceived(f"id{n}", "s" * 500, None) for n in range(120)], "are inbox ", "; let a step take"),
}


@pytest.mark.parametrize(("events", "parts", "advice"), FILLED.values(), ids=FILLED)
def test_a_large_one_says_what_fills_it(journal, events, parts, advice):
    """The warning names the largest parts in bytes, the largest first, and what to do about that one."""
    start(journal, *events)
    with pytest.warns(CheckpointWarning, match=f"its largest parts, in bytes, {parts}.*{advice}"):
        journal.checkpoint(R)


def test_a_large_one_of_another_projection(journal):
    """Of a projection of one's own nothing is advised."""
    start(journal)
    with pytest.warns(CheckpointWarning, match=r"its largest parts, in bytes, are state 60004$"):
        journal.checkpoint(R, Sentence)


@pytest.mark.requirement("R18")
def test_it_points_at_messages(journal):
    """A checkpoint holds a range of messages, not the messages, and large values by reference."""
    start(journal, *(e.MessageAppended("user", "x" * 1000) for _ in range(500)), e.MemorySet("k", "y" * 100_000))
    journal.checkpoint(R)
    assert len(newest(journal).body) < 5_000


def state_in(checkpoint):
    return orjson.loads(checkpoint.body.partition(b"\n")[2])["state"]


def tampered(checkpoint, **changes):
    """A checkpoint with other content, sound in itself."""
    content = orjson.loads(checkpoint.body.partition(b"\n")[2]) | changes
    text = dump_bytes(content)
    return Checkpoint(checkpoint.run_id, checkpoint.seq, content["fold"], digest_of(text).encode() + b"\n" + text)


def put(journal, checkpoint):
    """In the place of the one there is at its seq."""
    journal.store.drop_checkpoints(R, checkpoint.seq)
    journal.store.save_checkpoint(checkpoint, 99)


FLAWS = {
    "empty": lambda c: c._replace(body=b""),
    "garbage": lambda c: c._replace(body=b"\xff\x00"),
    "bit flip": lambda c: c._replace(body=c.body[:-9] + bytes([c.body[-9] ^ 1]) + c.body[-8:]),
    "changed digit": lambda c: c._replace(body=c.body.replace(b'"completed_count":3', b'"completed_count":7')),
    "cut": lambda c: c._replace(body=c.body[:-1]),
    "sound hash of garbage": lambda c: c._replace(body=digest_of(b"[").encode() + b"\n["),
    "sound hash of a list": lambda c: c._replace(body=digest_of(b"[]").encode() + b"\n[]"),
    "newer fold": lambda c: tampered(c, fold="run_state:" + "0" * 64),
    "column lies": lambda c: c._replace(fold="run_state:" + "0" * 64),
    "other run": lambda c: tampered(c, run_id="other"),
    "other seq": lambda c: tampered(c, seq=1),
    "other event": lambda c: tampered(c, hash="0" * 64),
    "state is no dump": lambda c: tampered(c, state={}),
    "state is a list": lambda c: tampered(c, state=[]),
    "a fold is missing": lambda c: tampered(c, state={k: v for k, v in state_in(c).items() if k != "plan"}),
    "a fold has a new field": lambda c: tampered(c, state=state_in(c) | {"prompt": {"x": 1}}),
}  # fmt: skip


@pytest.mark.requirement("R19", "R22")
@pytest.mark.parametrize("flaw", FLAWS)
def test_flawed_ones_are_left_out(journal, flaw):
    """A corrupt, newer or foreign checkpoint is left out with a warning; the one before it gives the same state."""
    fill(journal)
    put(journal, FLAWS[flaw](newest(journal)))
    with pytest.warns(CheckpointWarning, match="is left out") as caught:
        assert same_state(journal)
    assert 1 == len(caught)


@pytest.mark.requirement("R19", "R22")
@pytest.mark.parametrize("flaw", FLAWS)
def test_all_are_flawed(journal, flaw):
    """With no sound checkpoint left the log from its start gives the same state, to appends too."""
    fill(journal)
    for checkpoint in list(journal.store.checkpoints(R)):
        put(journal, FLAWS[flaw](checkpoint))
    stranger = Journal(journal.store, checkpoints=NEVER)
    with pytest.warns(CheckpointWarning):
        assert same_state(journal)
    with pytest.warns(CheckpointWarning):
        stranger.append(R, [step(3, "next"), e.StepCompleted(3)], epoch=1)


@pytest.mark.requirement("R143")
def test_ahead_of_the_log(journal):
    """A checkpoint ahead of the log, as after a power cut, is never used."""
    fill(journal, 1)
    content = tampered(newest(journal)._replace(seq=99), seq=99)
    put(journal, content)
    assert same_state(journal)
    with pytest.warns(CheckpointWarning, match="ahead of the log"):
        assert checkpoints.newest(journal.store, RunState, R, 100) is not None


@pytest.mark.requirement("R22", "R137")
def test_deleting_all_changes_nothing(journal):
    """Checkpoints and the log are two things, both there; without the first the state is the same."""
    fill(journal)
    before = exact(journal.state(R).dump())
    assert (3, 3) == (len(list(journal.store.checkpoints(R))), journal.store.drop_checkpoints(R))
    assert (before, 0) == (exact(journal.state(R).dump()), len(list(journal.store.checkpoints(R))))


def test_keeps_three(journal):
    """The newest three are kept."""
    fill(journal, 5)
    assert [17, 14, 11] == [checkpoint.seq for checkpoint in journal.store.checkpoints(R)]


# --- when they are taken ----------------------------------------------------------------------------------------------


def taken(policy, *batches):
    """The seqs of the checkpoints after these appends by the owner."""
    with Journal.open("memory:", clock=FakeClock(), checkpoints=policy) as opened:
        start(opened)
        for batch in batches:
            opened.append(R, batch, epoch=1)
        return [checkpoint.seq for checkpoint in opened.store.checkpoints(R)]


@pytest.mark.requirement("R20")
@pytest.mark.parametrize(("event", "ends"), [
    (e.StepCompleted(0), True), (e.StepFailed(0, ERROR, transient=False), True),
    (e.RunWaiting([{"kind": "timer", "id": "t"}]), True),
    (e.RunRetryScheduled("2099-01-01T00:00:00.000000Z", 1, ERROR, []), True), (e.RunCompleted(1), True),
    (e.RunFailed(ERROR, [], "error"), True), (e.RunCancelled(""), True), (e.MessageAppended("user", "x"), False),
    (e.RunRequeued("released"), False),
])  # fmt: skip
def test_at_ends(event, ends):
    """One is taken when a step or a round ends, not only at the end of the run."""
    assert ([4] if ends else []) == taken(CheckpointPolicy(), [step(0, "load")], [event])


@pytest.mark.requirement("R21")
@pytest.mark.parametrize(("every", "expected"), [(0, []), (4, [8, 4]), (5, [7]), (100, [])])
def test_every_so_many_events(every, expected):
    """One is taken once so many events have come since the last; the number is the user's."""
    notes = [[e.NoteAdded("n")]] * 6
    policy = CheckpointPolicy(every, at_ends=False)
    got = taken(policy, *notes)
    assert [seq for seq in got if seq] == got
    assert (len(expected) > 0) == (len(got) > 0)
    assert all(left - right >= every for left, right in pairwise(got))


@pytest.mark.requirement("R18", "R20")
def test_tail_is_bounded(journal):
    """By default the tail behind the newest checkpoint stays shorter than the policy's number."""
    assert [checkpoint_every_events] == [CheckpointPolicy().every_events]
    notes = [[e.NoteAdded("n")]] * (2 * checkpoint_every_events)
    got = taken(CheckpointPolicy(), *notes)
    assert 2 + len(notes) - max(got) < checkpoint_every_events


def test_policy_keeps():
    """How many are kept is the user's too."""
    steps = [[step(n, f"s{n}"), e.StepCompleted(n)] for n in range(4)]
    assert [10, 8] == taken(CheckpointPolicy(keep=2), *steps)


@pytest.mark.requirement("R143")
def test_failing_to_write_one_is_a_warning(journal, monkeypatch):
    """When a checkpoint can't be kept the append has succeeded all the same, and says so with a warning."""

    def full(*_):
        raise StoreFull("no space")

    monkeypatch.setattr(MemoryTransaction, "save_checkpoint", full)
    opened = Journal(journal.store, checkpoints=CheckpointPolicy())
    start(opened)
    with pytest.warns(CheckpointWarning, match="couldn't be kept"):
        opened.append(R, [step(0, "load"), e.StepCompleted(0)], epoch=1)
    assert (4, True) == (opened.head(R).head_seq, same_state(opened))


@pytest.mark.requirement("R143")
def test_refused_append_leaves_no_checkpoint():
    """A refused append leaves no checkpoint of what it would have made."""
    with Journal.open("memory:", clock=FakeClock(), checkpoints=CheckpointPolicy(1)) as opened:
        start(opened)
        before = list(opened.store.checkpoints(R))
        with pytest.raises(WrongExpectation):
            opened.append(R, [step(0, "load"), e.StepCompleted(0)], epoch=1, expect=1)
        assert before == list(opened.store.checkpoints(R))


def test_threads_leave_sound_checkpoints():
    """A checkpoint that is taken while other threads append holds the state at its seq and nothing else."""
    opened = Journal.open("memory:", checkpoints=CheckpointPolicy(1, keep=10_000))
    opened.append(R, [e.RunQueued("demo", None)], expect=0)

    def work(n):
        for i in range(150):
            opened.append(R, [e.SignalReceived(f"{n}-{i}", "x", None)])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    records, state, dumps = list(opened.store.read(R)), RunState.initial(), {}
    for record in records:
        state.apply(record)
        dumps[record.seq] = orjson.loads(dump_bytes(state.dump()))
    kept = list(opened.store.checkpoints(R))
    assert kept
    assert [] == [c.seq for c in kept if exact(dumps[c.seq]) != exact(state_in(c))]


# --- projections of the user's own ------------------------------------------------------------------------------------


@dataclass
class Words:
    """Counts words, and can be made to fail."""

    NAME: ClassVar[str] = "test_checkpoints.words"
    VERSION: ClassVar[int] = 1
    broken: ClassVar[BaseException | None] = None
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def initial(cls):
        return cls()

    def apply(self, record):
        if isinstance(record.event, e.NoteAdded):
            for word in record.event.text.split():
                self.counts[word] = self.counts.get(word, 0) + 1

    def dump(self) -> Any:
        return self.counts

    @classmethod
    def load(cls, data):
        if cls.broken:
            raise cls.broken
        return cls(data)


def test_own_projection(journal):
    """A projection of the user's own goes on from its own checkpoint, not from another's."""
    journal.append(R, [e.RunQueued("demo", None), e.NoteAdded("a b a")], expect=0)
    assert 2 == journal.checkpoint(R, Words)
    journal.append(R, [e.NoteAdded("b")])
    journal.checkpoint(R)
    assert {"a": 2, "b": 2} == journal.fold(Words, R).counts
    assert {"a": 2, "b": 1} == journal.fold(Words, R, at=2).counts


def test_own_projection_of_another_version(journal, monkeypatch):
    """After its version was raised the old checkpoint is left out."""
    journal.append(R, [e.RunQueued("demo", None), e.NoteAdded("a")], expect=0)
    journal.checkpoint(R, Words)
    monkeypatch.setattr(Words, "VERSION", 2)
    with pytest.warns(CheckpointWarning, match="other versions"):
        assert {"a": 1} == journal.fold(Words, R).counts


def test_own_projection_keeps_its_order(journal):
    """What a projection of the user's own has counted first is first after a checkpoint, too."""
    journal.append(R, [e.RunQueued("demo", None), e.NoteAdded("zebra ant zebra")], expect=0)
    journal.checkpoint(R, Words)
    journal.append(R, [e.NoteAdded("bee ant")])
    fresh = Journal(journal.store, checkpoints=NEVER)
    assert exact({"zebra": 2, "ant": 2, "bee": 1}) == exact(fresh.fold(Words, R).counts)


def first_seal(kind, projection, seq, chain):
    """A checkpoint as the first version of the package wrote it: with sorted keys, and a name that didn't say how."""
    name = f"{kind.NAME}:{kind.VERSION}"
    content = {"run_id": R, "seq": seq, "hash": chain, "fold": name, "state": projection.dump()}
    text = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    return Checkpoint(R, seq, name, digest_of(text).encode() + b"\n" + text)


def test_own_projection_that_was_sealed_in_sorted_order(journal):
    """A checkpoint of the time when keys were sorted is left out: the order of its keys is lost."""
    journal.append(R, [e.RunQueued("demo", None), e.NoteAdded("zebra ant")], expect=0)
    words = journal.fold(Words, R)
    journal.store.save_checkpoint(first_seal(Words, words, 2, list(journal.events(R))[-1].hash), 9)
    with pytest.warns(CheckpointWarning, match="other versions"):
        assert exact({"zebra": 1, "ant": 1}) == exact(journal.fold(Words, R).counts)


@pytest.mark.parametrize(
    "error", [KeyError("x"), ZeroDivisionError(), InvalidArgument("x"), AttributeError()], ids=repr
)
def test_own_projection_that_cannot_load(journal, monkeypatch, error):
    """A projection whose load raises, whatever it raises, is folded from the start, with a warning."""
    journal.append(R, [e.RunQueued("demo", None), e.NoteAdded("a")], expect=0)
    journal.checkpoint(R, Words)
    monkeypatch.setattr(Words, "broken", error)
    with pytest.warns(CheckpointWarning, match="is left out"):
        assert {"a": 1} == journal.fold(Words, R).counts


# --- the property -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R21", "R22")
@given(strategies.seeds(), st.integers(1, 60), st.data())
def test_checkpoint_and_tail(rng, size, data):
    """A checkpoint at any seq and the tail behind it give the full fold, byte for byte."""
    records = generate.as_records(generate.run(rng, size), R)
    full = RunState.initial().fold(records)
    at = data.draw(st.integers(1, len(records)))
    part = RunState.initial().fold(records[:at])
    sealed = checkpoints.seal(RunState, part, R, at, records[at - 1].hash)
    loaded = checkpoints.unseal(RunState, sealed, records[at - 1].hash)
    assert isinstance(loaded, RunState)
    assert exact(full.dump()) == exact(loaded.fold(records[at:]).dump())


@pytest.mark.requirement("R22", "R143")
@settings(max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 8))
def test_stored_checkpoints_and_tail(seed, size, every):
    """Whatever the policy, a journal that appended event by event knows the state that the events alone give."""
    with Journal.open("memory:", clock=FakeClock(), checkpoints=CheckpointPolicy(every)) as opened:
        rng, state = random.Random(seed), RunState.initial()
        for _ in range(size):
            event, epoch = generate.next_event(rng, state)
            for record in opened.append(R, [event], epoch=epoch):
                state.apply(record)
        assert exact(state.dump()) == exact(opened.replay(R).dump()) == exact(opened.state(R).dump())
        assert all(checkpoint.seq <= state.seq for checkpoint in opened.store.checkpoints(R))


def test_upcasters_of_own_types_leave_checkpoints_usable(monkeypatch):
    """An upcaster of a user's own type doesn't change what made a checkpoint; one of a built-in type does."""
    before = RunState.version()
    monkeypatch.setitem(base._upcasters, ("x.invoice", 1), dict)
    assert before == RunState.version()
    monkeypatch.setitem(base._upcasters, ("note.added", 1), dict)
    assert before != RunState.version()
