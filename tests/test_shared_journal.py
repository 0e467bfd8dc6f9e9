"""One journal, several threads: what others do with a run must never change what its owner knows of it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from runjournal import Journal, RunBusy, tool
from runjournal.engine import failures as f
from runjournal.log import events as e
from runjournal.log.errors import AppendRefused, NotAllowed
from runjournal.projections.state import RunState
from runjournal.run import Run
from runjournal.runner import Runner

COUNT = 150
WAIT_S = 20.0  # for a thread that has something to do


@pytest.fixture(autouse=True)
def switch_often():
    """Threads take turns often, so that their order differs from run to run."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(params=["memory:", "file"])
def journal(request: pytest.FixtureRequest, tmp_path: Any):
    """A journal in memory, and one in a file."""
    with Journal.open(request.param if request.param == "memory:" else tmp_path / "j.db") as opened:
        yield opened


def count(run: Run) -> Any:
    """Counts in its memory, in one step."""
    with run.step("count"):
        for _ in range(COUNT):
            run.memory["n"] = run.memory.get("n", 0) + 1
    return run.memory["n"]


def turns(run: Run) -> Any:
    """Counts in its memory, in a step each."""
    while run.memory.get("n", 0) < COUNT // 3:
        with run.step("turn", repeat=True):
            run.memory["n"] = run.memory.get("n", 0) + 1
    return run.memory["n"]


@tool
def send(x: int) -> int:
    return x


def calls(run: Run) -> Any:
    """Calls a tool in a step each."""
    for x in run.each("s", range(COUNT // 3)):
        with run.step("s", key=x):
            run.memory["n"] = send(x) + 1
    return run.memory["n"]


def ignored(words: Callable[..., Any], *args: Any) -> None:
    with suppress(RunBusy, AppendRefused):
        words(*args)


MEANWHILE: dict[str, Callable[[Journal, Any], Any]] = {
    "recover_all": lambda j, agent: j.recover_all({agent.__name__: agent}),
    "claim": lambda j, agent: ignored(j.claim, "r"),
    "run": lambda j, agent: ignored(lambda: j.run(agent, run_id="r")),
    "state": lambda j, agent: j.state("r"),
    "recover": lambda j, agent: j.recover("r"),
    "signal": lambda j, agent: j.signal("r", "s", signal_id="once"),
    "note": lambda j, agent: j.append("r", [e.NoteAdded("x")]),
    "refused": lambda j, agent: ignored(j.append, "r", [e.NoteAdded("x"), e.StepStarted(9, "x", "x", "once", 1, 1)]),
    "forget": lambda j, agent: j.ownership.forget(["r"]),
}


@pytest.mark.parametrize("what", MEANWHILE)
@pytest.mark.parametrize(("agent", "result"), [(count, COUNT), (turns, COUNT // 3), (calls, COUNT // 3)])
def test_an_agent_whose_run_others_ask_for(journal: Journal, agent: Any, result: int, what: str):
    """Whatever another thread does with its run through the same journal, no event of the agent's own is forgotten."""
    journal.enqueue(agent.__name__, run_id="r")
    stop, failed = threading.Event(), list[BaseException]()

    def meanwhile() -> None:
        try:
            while not stop.wait(0.0005):
                if journal.head("r").status == "running":
                    MEANWHILE[what](journal, agent)
        except AppendRefused:
            assert journal.head("r").status == "completed"
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=meanwhile)
    thread.start()
    try:
        assert result == journal.run(agent, run_id="r")
    finally:
        stop.set()
        thread.join()
    assert [] == failed
    assert "completed" == journal.state("r").status.status
    assert journal.replay("r").dump() == journal.state("r").dump()


def test_a_state_that_was_read_before_is_not_kept(journal: Journal, monkeypatch: pytest.MonkeyPatch):
    """A reader of the owner's state, slower than its next append, doesn't put what it loaded in its place."""
    journal.enqueue("agent", run_id="r")
    claim = journal.claim("r")
    assert claim is not None
    journal.append("r", [e.NoteAdded("1")], epoch=claim.epoch)
    journal.ownership.forget(["r"])
    read = journal.store.head

    def slow(run_id: str) -> Any:
        head = read(run_id)
        monkeypatch.undo()
        journal.append("r", [e.NoteAdded("2")], epoch=claim.epoch)
        return head

    monkeypatch.setattr(journal.store, "head", slow)
    assert 4 == journal.ownership.live("r").seq
    assert 4 == journal.ownership.live("r").seq


def test_a_run_that_is_asked_for_by_its_owner(journal: Journal):
    """A claim that finds the run busy leaves the owner the very state that it works with."""
    journal.enqueue("agent", run_id="r")

    def agent(run: Run) -> Any:
        with run.step("s"):
            run.memory["n"] = 1
            before = journal.ownership.live("r")
            with pytest.raises(RunBusy):
                journal.claim("r")
            with pytest.raises(RunBusy):
                Runner(journal).outcome("r")
            journal.ownership.forget(["r"])
            return before is journal.ownership.live("r")

    assert journal.run(agent, run_id="r") is True


# What others append is folded by the owner, in its own thread.


def test_others_fold_into_a_state_of_their_own(journal: Journal, monkeypatch: pytest.MonkeyPatch):
    """A signal is folded while the owner may be reading, so not into what it reads; its next append has it."""
    journal.enqueue("agent", run_id="r")
    folded = list[RunState]()
    apply = RunState.apply

    def noted(self: RunState, record: Any) -> None:
        folded.append(self)
        apply(self, record)

    def agent(run: Run) -> Any:
        with run.step("s"):
            mine = journal.ownership.live("r")
            with monkeypatch.context() as patch:
                patch.setattr(RunState, "apply", noted)
                journal.signal("r", "go")
            seen = [any(each is mine for each in folded), len(mine.inbox.signals)]
            run.memory["n"] = 1
            return [*seen, len(journal.ownership.live("r").inbox.signals)]

    assert [False, 0, 1] == journal.run(agent, run_id="r")
    assert folded


def test_a_batch_that_is_refused_leaves_the_owners_state(journal: Journal):
    """Events that others append and that are refused were never in the owner's state, not even for a moment."""
    journal.enqueue("agent", run_id="r")

    def agent(run: Run) -> Any:
        with run.step("s"):
            mine = journal.ownership.live("r")
            seq = mine.seq
            with pytest.raises(NotAllowed):
                journal.append("r", [e.SignalReceived("i", "go", None), e.StepStarted(9, "x", "x", "once", 1, 1)])
            return [mine is journal.ownership.live("r"), mine.seq - seq, len(mine.inbox.signals)]

    assert [True, 0, 0] == journal.run(agent, run_id="r")


def test_a_word_is_seen_at_once(journal: Journal):
    """What a late body says of an attempt that was given up is in the state that its owner reads next."""
    journal.enqueue("agent", run_id="r")

    @tool(on_unknown="fail")
    def lost(x: int) -> int:
        raise ValueError(x)

    def agent(run: Run) -> Any:
        with run.step("s"):
            with pytest.raises(f.CallOutcomeUnknown):
                lost(1)
            (call_id,) = journal.ownership.live("r").calls.unresolved()
            journal.append("r", [e.ToolResolved(call_id, 1, "happened", 7, late=True)])
            return list(journal.ownership.live("r").calls.unresolved())

    assert [] == journal.run(agent, run_id="r")


def test_a_new_owner_has_none_of_the_old_ones_state(tmp_path: Any):
    """A run that comes back to a journal after another one went on with it begins from the log, not what it had."""
    with Journal.open(tmp_path / "j.db") as journal, Journal.open(tmp_path / "j.db") as other:
        journal.enqueue("agent", run_id="r")
        for number, each in enumerate([journal, other, journal, other]):
            claim = each.claim("r")
            assert claim is not None
            assert [number] * 2 == [number, each.ownership.live("r").memory.committed.get("n", 0)]
            step = f"s{number}"
            each.append("r", [e.StepStarted(number, step, step, "once", 1, 1)], epoch=claim.epoch)
            each.append("r", [e.MemorySet("n", number + 1)], epoch=claim.epoch)
            each.append("r", [e.StepCompleted(number, None), e.RunRequeued("released")], epoch=claim.epoch)
        assert 4 == journal.state("r").memory.committed["n"]


# The same new run, asked for twice.


@pytest.mark.parametrize("given", [1, 2])
def test_a_new_run_that_two_ask_for(journal: Journal, monkeypatch: pytest.MonkeyPatch, given: int):
    """Whoever queues it second finds it there: it goes on with it, or its input differs; it is no WrongExpectation."""
    head = journal.store.head

    def before(run_id: str) -> Any:
        found = head(run_id)
        monkeypatch.undo()
        journal.enqueue("other", 1, run_id=run_id)
        return found

    monkeypatch.setattr(journal.store, "head", before)
    if given == 1:
        assert "done" == journal.run(lambda run: "done", run_id="r", input=given)
    else:
        with pytest.raises(f.InputDiffers):
            journal.run(lambda run: "done", run_id="r", input=given)


def test_a_new_run_that_many_threads_ask_for_at_once(journal: Journal):
    """One runs it; the others are told that it is busy, or get its output."""
    at_once, outcomes = threading.Barrier(6), list[Any]()

    def ask() -> None:
        at_once.wait(WAIT_S)
        try:
            outcomes.append(journal.run(count, run_id="r", input=1))
        except Exception as error:  # noqa: BLE001 - each thread's outcome is compared
            outcomes.append(type(error))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {COUNT} == set(outcomes) - {RunBusy}


# Cancelling.


def moving(journal: Journal, monkeypatch: pytest.MonkeyPatch, moves: list[Callable[[], Any]]) -> None:
    """After each look at the head, the next of these happens."""
    head = journal.head

    def looked(run_id: str) -> Any:
        found = head(run_id)
        if moves:
            moves.pop(0)()
        return found

    monkeypatch.setattr(journal, "head", looked)


def test_a_run_that_appends_is_cancelled(journal: Journal, monkeypatch: pytest.MonkeyPatch):
    """A request needs no head to stand behind: the owner may append as much as it likes."""
    journal.enqueue("agent", run_id="r")

    def agent(run: Run) -> Any:
        with run.step("s"):
            moving(journal, monkeypatch, [lambda: run.message("user", "x")])
            journal.cancel("r", "enough")
        with run.step("t"):
            run.message("user", "never")

    with pytest.raises(f.RunCancelled):
        journal.run(agent, run_id="r")
    found = [record.type for record in journal.events("r", after=3)]
    assert ["message.appended", "run.cancel_requested", "step.completed", "run.cancelled"] == found


def test_a_run_that_is_claimed_while_it_is_cancelled(journal: Journal, monkeypatch: pytest.MonkeyPatch):
    """What ends a run that nobody owns stands behind that head; once it is owned, its owner is asked instead."""
    journal.enqueue("agent", run_id="r")
    moving(journal, monkeypatch, [lambda: journal.claim("r")])
    journal.cancel("r", "enough")
    assert ("running", "after_step") == (journal.head("r").status, journal.head("r").cancel_requested)


def test_a_run_that_is_given_back_while_it_is_cancelled(journal: Journal, monkeypatch: pytest.MonkeyPatch):
    """A run that had an owner when it was looked at, and has none when the request is there, is ended at once."""
    journal.enqueue("agent", run_id="r")
    claim = journal.claim("r")
    assert claim is not None
    moving(journal, monkeypatch, [lambda: journal.append("r", [e.RunRequeued("released")], epoch=claim.epoch)])
    journal.cancel("r", "enough")
    assert "cancelled" == journal.head("r").status


def test_a_cancel_of_a_run_that_moves_on_for_ever(journal: Journal, monkeypatch: pytest.MonkeyPatch):
    """It isn't tried for ever: the request is left in the log, for whoever claims the run next."""
    journal.enqueue("agent", run_id="r")
    moving(journal, monkeypatch, [lambda: journal.append("r", [e.NoteAdded("x")]) for _ in range(100)])
    journal.cancel("r", "enough")
    monkeypatch.undo()
    assert ("queued", "after_step") == (journal.head("r").status, journal.head("r").cancel_requested)
    assert journal.claim("r") is None
    assert "cancelled" == journal.head("r").status


def test_a_run_that_has_ended_is_not_cancelled(journal: Journal):
    """The refusal says so."""
    journal.run(lambda run: None, run_id="r")
    with pytest.raises(AppendRefused):
        journal.cancel("r")
