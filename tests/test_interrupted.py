"""An interrupt at any point of an append: the journal works afterwards, and the run goes on (engine.md A13)."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
import pytest

from runjournal import Journal, Run, tool
from runjournal import runner as runner_module
from runjournal.log import events as e
from runjournal.log import guard, memory, sqlite, sqlite_transaction
from runjournal.writing import appender, leases

MODULES = {str(Path(m.__file__)) for m in (guard, memory, sqlite, sqlite_transaction, appender, leases, runner_module)}  # type: ignore[arg-type]  # as a test may
SENT: list[int] = []


@tool(policy="idempotent")
def act(x: int) -> int:
    """An effect."""
    SENT.append(x)
    return x


def agent(run: Run) -> int:
    run.do("one", act, 1)
    return run.do("two", act, 2)


@contextmanager
def interrupted(at: int) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt before the opcode of this number in the modules of an append; count them."""
    count = [0]

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            count[0] += 1
            if count[0] == at:
                sys.settrace(None)
                frame.f_trace = None
                raise KeyboardInterrupt
        return local

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call" and frame.f_code.co_filename in MODULES:
            frame.f_trace_opcodes = True
            return local
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


def usable(journal: Journal, path: Path | None) -> None:
    """Assert that this process can append, and another one, too."""
    if path is not None:
        other = apsw.Connection(str(path))
        other.set_busy_timeout(0)
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        other.close()
    journal.enqueue("another", run_id="another")
    journal.append("another", [e.NoteAdded("x")], expect=None)
    journal.cancel("another")


def an_append(journal: Journal) -> Any:
    return journal.append("r", [e.RunQueued("agent", None)], expect=0)


def a_run(journal: Journal) -> Any:
    return journal.run(agent, run_id="r")


def a_definition(journal: Journal) -> Any:
    return journal.define("CREATE TABLE IF NOT EXISTS mine (a)")


def a_heartbeat(journal: Journal) -> Any:
    return journal.store.heartbeat("none", 1, 0.0, 0.0)


WORKS: dict[str, Callable[[Journal], Any]] = {
    "append": an_append,
    "run": a_run,
    "define": a_definition,
    "heartbeat": a_heartbeat,
}


def points(work: str, place: Path | None) -> int:
    with Journal.open(place or "memory:") as journal, interrupted(0) as count:
        WORKS[work](journal)
    return count[0]


def strike(work: str, place: Path | None, at: int) -> None:
    SENT.clear()
    with Journal.open(place or "memory:") as journal:
        try:
            with interrupted(at):
                WORKS[work](journal)
        except KeyboardInterrupt:
            pass
        usable(journal, place)
        assert 2 == journal.run(agent, run_id="r")
        assert {1, 2} == set(SENT)
        assert journal.replay("r").status.status == "completed"


def walk(work: str, store: str, folder: Path, stride: int, first: int) -> None:
    total = points(work, folder / "count.db" if store == "sqlite" else None)
    assert total > 50
    for at in range(first, total + 1, stride):
        place = folder / f"{at}.db" if store == "sqlite" else None
        try:
            strike(work, place, at)
        except BaseException as error:
            raise AssertionError(f"interrupted at {at} of {total}") from error
        if place is not None:
            place.unlink()


CASES = [(work, store) for work in WORKS for store in ("memory", "sqlite") if (work, store) != ("define", "memory")]


@pytest.mark.parametrize(("work", "store"), CASES)
def test_a_sample_of_points(work: str, store: str, tmp_path: Path) -> None:
    """Some forty points of each piece of work, spread over it."""
    total = points(work, tmp_path / "total.db" if store == "sqlite" else None)
    walk(work, store, tmp_path, max(1, total // 40), 7)


@pytest.mark.crash
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("work", "store"), CASES)
def test_every_point(work: str, store: str, tmp_path: Path) -> None:
    """Every bytecode of the store, the appender, the leases and the runner."""
    walk(work, store, tmp_path, 1, 1)
