"""Real processes that get a SIGTERM while an agent runs: what is in flight ends, and the run is released."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runjournal.engine import failures as f
from runjournal.engine.tools import Tool
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.errors import InvalidArgument
from runjournal.projections.status import Status
from runjournal.stopping import HERE, heeding, heeding_async

PROGRAM = Path(__file__).parent / "programs" / "stopped.py"
HUNG_S = 60.0
"""After this a process is ended by the test."""


class Stopped:
    """A process of `programs/stopped.py`."""

    def __init__(self, store: Path, how: str, *, grace_s: float = HUNG_S, go: Path | None = None) -> None:
        command = [sys.executable, str(PROGRAM), str(store), how, str(grace_s), *([str(go)] if go else [])]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.timer = threading.Timer(HUNG_S, self.process.kill)
        self.timer.start()

    def until(self, what: str) -> None:
        """Read until it says so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == what:
                return
        _, told = self.process.communicate()
        raise AssertionError(f"it never said {what!r}: {told}")

    def term(self) -> None:
        """Tell it to stop."""
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> tuple[int, list[str]]:
        """How it ended, and what else it said."""
        try:
            said, told = self.process.communicate()
        finally:
            self.timer.cancel()
        return self.process.returncode, [*said.splitlines(), *told.splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def log_of(place: Path, run_id: str = "r") -> tuple[list[str], Status]:
    """The types of events, calls and moves of the run, and where it stands."""
    with Journal.open(place) as journal:
        types = [record.type for record in journal.events(run_id)]
        return types, journal.state(run_id).status


def told_to_stop(process: Stopped, place: Path, run_id: str = "r") -> None:
    """Tell it to stop, and wait until it knows."""
    process.term()
    with Journal.open(place) as journal:
        while not any(getattr(each.event, "code", "") == "told_to_stop" for each in journal.events(run_id)):
            assert process.process.poll() is None


def test_a_tool_in_flight_ends_and_the_run_is_released(place, tmp_path):
    """What it came to is on record, no call begins, no recovery counts, and the process dies by the signal."""
    process = Stopped(place, "sync", go=tmp_path / "go")
    process.until("in the tool")
    told_to_stop(process, place)
    (tmp_path / "go").touch()
    assert (-signal.SIGTERM, []) == process.ended()
    types, status = log_of(place)
    assert ["tool.started", "note.added", "tool.completed", "run.requeued"] == types[-4:]
    assert ("queued", 0, 0) == (status.status, status.stuck, status.recoveries)
    process = Stopped(place, "sync", go=tmp_path / "go")
    assert (0, ["second", "ended with ['done', 'second']", "default"]) == process.ended()


def test_a_tool_that_does_not_end_dies_with_the_process(place, tmp_path):
    """After the grace it is as after a crash, but for the recovery, which doesn't count."""
    process = Stopped(place, "sync", grace_s=0.2)
    process.until("in the tool")
    told_to_stop(process, place)
    assert (-signal.SIGTERM, []) == process.ended()
    types, status = log_of(place)
    assert (["tool.started", "note.added"], "running") == (types[-2:], status.status)
    with Journal.open(place) as journal:
        journal.claim("r")
        requeued = next(each.event for each in journal.events("r") if isinstance(each.event, e.RunRequeued))
        status = journal.state("r").status
    assert ("told_to_stop", 0, 1) == (requeued.reason, status.stuck, status.recoveries)


def test_a_second_signal_ends_the_process_at_once(place):
    """Nobody waits for what is in flight any more."""
    process = Stopped(place, "sync")
    process.until("in the tool")
    told_to_stop(process, place)
    process.term()
    assert -signal.SIGTERM == process.ended()[0]
    assert "running" == log_of(place)[1].status


def test_answers_in_flight_on_a_loop_are_on_record(place, tmp_path):
    """A group that the stop breaks doesn't cut a model's answer that is paid for."""
    process = Stopped(place, "in_a_model", go=tmp_path / "go")
    process.until("in the tool")
    process.until("in the tool")
    told_to_stop(process, place)
    (tmp_path / "go").touch()
    assert (-signal.SIGTERM, []) == process.ended()
    types, status = log_of(place)
    assert {"model.completed", "tool.completed"} < set(types)
    assert ("queued", 0) == (status.status, status.stuck)
    process = Stopped(place, "in_a_model", go=tmp_path / "go")
    assert (0, ["second", "ended with {'ask': 1}", "default"]) == process.ended()


def test_agents_on_a_loop_that_wait_for_something_of_their_own(place, tmp_path):
    """They are told where they wait, since no tool is in flight there; the process ends when all are released."""
    (tmp_path / "go").touch()
    process = Stopped(place, "several", go=tmp_path / "go")
    process.until("asleep")
    process.until("asleep")
    process.term()
    assert (-signal.SIGTERM, []) == process.ended()
    for run_id in ("r", "s"):
        types, status = log_of(place, run_id)
        assert ("run.requeued", "queued", 0) == (types[-1], status.status, status.stuck)


def test_a_handler_of_somebody_else_is_left_alone(place, tmp_path):
    """It alone is told, and the run goes on to its end."""
    process = Stopped(place, "mine", go=tmp_path / "go")
    process.until("in the tool")
    process.term()
    process.until("mine")
    (tmp_path / "go").touch()
    assert (0, ["second", "ended with ['done', 'second']", "handled"]) == process.ended()


def test_a_run_beside_the_main_thread_is_as_before(place):
    """Python tells signals to the main thread only, and that one runs no agent: the process dies at once."""
    process = Stopped(place, "thread")
    process.until("in the tool")
    process.term()
    assert -signal.SIGTERM == process.ended()[0]
    assert ("tool.started", "running") == (log_of(place)[0][-1], log_of(place)[1].status)


def test_a_process_that_was_forked_off_dies_by_the_signal(place):
    """It has the handler of its parent, and no run."""
    assert (0, [f"child {-signal.SIGTERM}", "default"]) == Stopped(place, "forks").ended()


def test_behind_a_run_that_waits_nothing_is_handled(place):
    """The handler stands while an agent runs."""
    assert (0, ["waits", "default"]) == Stopped(place, "asks").ended()


def test_only_the_owner_says_that_its_process_was_told_to_stop():
    """What others remark excuses no death, and neither does what the owner before has said."""
    with Journal.open("memory:") as journal:
        journal.enqueue("k", run_id="r")
        note = e.NoteAdded("", code="told_to_stop")
        first = journal.claim("r")
        assert first is not None
        journal.append("r", [note])
        assert not journal.state("r").status.stopping
        journal.append("r", [note], epoch=first.epoch)
        assert journal.state("r").status.stopping
        journal.append("r", [e.RunRequeued("released")], epoch=first.epoch)
        assert journal.claim("r") is not None
        assert not journal.state("r").status.stopping


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals that this process sends itself; none reaches it."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    yield sent
    assert ([], False) == (HERE.heeds, HERE.came)
    assert signal.SIG_DFL == signal.getsignal(signal.SIGTERM)


def test_a_run_inside_a_run_is_told_through_the_outer_one(kills):
    """The inner one is released first and waits for nobody; the signal acts behind the outer one, once."""
    with Journal.open("memory:") as journal:

        def inner(run: Any) -> Any:
            signal.raise_signal(signal.SIGTERM)
            while run_of["r"].stopped is None:
                pass
            return run.do("more", list)

        def outer(run: Any) -> Any:
            run_of["r"] = run._core
            return journal.run(inner, run_id="inner")

        run_of: dict[str, Any] = {}
        with pytest.raises(f.ToldToStop):
            journal.run(outer, run_id="r")
        assert {"queued"} == {journal.head(name).status for name in ("r", "inner")}
    assert [signal.SIGTERM] == kills


def test_a_run_whose_loop_was_closed_is_waited_for_by_nobody(kills):
    """It never leaves by itself: the signal acts once the others have left."""
    loop = asyncio.new_event_loop()
    left = heeding_async(1.0)
    loop.run_until_complete(left.__aenter__())
    loop.close()
    assert 1 == len(HERE.heeds)

    def agent(run: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return run.do("a", list)

    with Journal.open("memory:") as journal, pytest.raises(f.ToldToStop):
        journal.run(agent, run_id="r")
    assert [signal.SIGTERM] == kills


def test_a_run_inside_a_tool_is_a_call_in_flight(kills):
    """It goes on to its end, and so what the tool does is on record."""
    with Journal.open("memory:") as journal:

        def tool() -> Any:
            signal.raise_signal(signal.SIGTERM)
            return journal.run(lambda run: run.do("more", lambda: 3), run_id="inner")

        def agent(run: Any) -> Any:
            return run.do("a", lambda: [run.call(called), run.call(called)])

        called = Tool(tool, "tool", "unsafe")
        with pytest.raises(f.ToldToStop):
            journal.run(agent, run_id="r")
        types = [record.type for record in journal.events("r")]
        assert ("completed", 1) == (journal.head("inner").status, types.count("tool.completed"))
    assert [signal.SIGTERM] == kills


def test_no_run_begins_once_the_process_is_to_stop(kills):
    """It isn't claimed, so that nobody has to release it."""
    with Journal.open("memory:") as journal:
        journal.enqueue("agent", run_id="r")

        def begin() -> None:
            with heeding(0.0):
                signal.raise_signal(signal.SIGTERM)
                journal.run(lambda run: run.do("a", list), run_id="r", kind="agent")

        with pytest.raises(f.ToldToStop):
            begin()
        assert 1 == journal.head("r").head_seq


@pytest.mark.parametrize("wrong", [
    {"grace_s": -1}, {"grace_s": float("inf")}, {"grace_s": "8"}, {"recoveries_max": -1}, {"recoveries_max": True},
    {"attempt_recoveries_max": 1.5},
])  # fmt: skip
def test_settings_that_cannot_be(wrong):
    """They are refused where the journal is opened."""
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Journal.open("memory:", **wrong)
