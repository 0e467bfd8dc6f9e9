"""Real processes: agents that are killed at random moments, and owners that sleep until another one has taken over.

Each agent (`programs/random_agent.py`) is a process with a SQLite store; what it does to the outside world is in the
ledger of another process (`programs/world.py`). `make crash` kills 300 agents, `make test` a seeded sample.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import apsw
import pytest
from programs import random_agent

from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.clock import SystemClock
from runjournal.log.head import Head
from runjournal.looking.audit import audit_store

PROGRAMS = Path(__file__).parent / "programs"
KILLS = 12
"""Kills of a seed."""
ONCE = ("pay", "order", "send", "post", "push")
"""Tools whose effect is made once for a key."""


class Kill(NamedTuple):
    """When: at `line`, some time behind the at-th acknowledged event; `before` or `after` the world's at-th service."""

    when: str
    at: int
    delay_s: float = 0.0


class Ended(NamedTuple):
    """What a process said, "" if it was killed before it could."""

    said: str
    killed: bool


class Agents:
    """Agents, one after the other, each a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, str(PROGRAMS / "random_agent.py")]
        self.parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.parent:
            self.parent.kill()
            if self.pid:
                self.kill()

    def kill(self) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(self.pid, signal.SIGKILL)

    def begin(self, store: Path, world: str, run_id: str, program: Any, lease_s: float | None = None) -> None:
        assert self.parent.stdin is not None
        if self.pid:  # a test that failed left it
            self.kill()
            list(self.lines())
        self.parent.stdin.write(json.dumps([str(store), world, run_id, program, lease_s]) + "\n")
        self.parent.stdin.flush()
        self.pid = int(self.line().removeprefix("! "))

    def line(self) -> str:
        assert self.parent.stdout is not None
        return self.parent.stdout.readline().rstrip("\n")

    def lines(self) -> Iterator[str]:
        """What it still says."""
        while not (line := self.line()).startswith("."):
            yield line
        self.pid, self.code = 0, int(line.removeprefix(". "))


class Place:
    """A store and a world, and the supervisor of agents there."""

    def __init__(self, folder: Path, world: Callable[..., Any]) -> None:
        folder.mkdir(exist_ok=True)
        self.store, self.ledger, self.world = folder / "runs.db", folder / "ledger", world
        self.acknowledged: dict[tuple[str, int], str] = {}
        with Journal.open(self.store, store_id="s"), closing(apsw.Connection(str(self.store))) as connection:
            connection.execute("CREATE TABLE bookings (id INTEGER PRIMARY KEY, key TEXT)")

    def live(self, agents: Agents, run_id: str, program: Any, kill: Kill | None = None) -> Ended:
        """One process, until it has ended or is killed."""
        if kill is not None and kill.when != "line":
            self.world("strike", at=kill.at, when=kill.when, signal="SIGKILL")
        assert isinstance(self.world, random_agent.World)
        agents.begin(self.store, self.world.path, run_id, program)
        lines: list[str] = []
        if kill is not None and kill.when == "line":
            lines += islice(agents.lines(), kill.at)
            if agents.pid:
                time.sleep(kill.delay_s)
                agents.kill()
        if agents.pid:
            lines += agents.lines()
        self.world("strike", at=0, when="", signal="SIGKILL")
        assert agents.code in (0, -signal.SIGKILL), lines
        return Ended(self.heard(lines), agents.code != 0)

    def heard(self, lines: list[str]) -> str:
        """Note what was acknowledged; gives what the process said became of the run."""
        said = ""
        for line in lines:
            match line.split():
                case "+", run_id, seq, digest:
                    self.acknowledged[run_id, int(seq)] = digest
                case "=", *words:
                    said = " ".join(words)
                case other:
                    raise AssertionError(other)
        return said

    # People.

    def speak(self, run_id: str) -> str:
        """Answer truthfully what is open; gives the run that goes on: this one, or, of a mail, a retry of it."""
        with Journal.open(self.store, by="people") as journal:
            state = journal.state(run_id)
            open_ = state.calls.unresolved()
            mails = [
                wait["id"] for wait in state.status.waits if wait["id"] in open_ and open_[wait["id"]].tool == "send"
            ]
            if mails and state.status.status == "waiting":
                journal.cancel(run_id)
                for call_id in mails:
                    self.tell(journal, run_id, call_id)
                return journal.retry(run_id, new_run_id=f"{run_id}-")  # so its scope is its id without the dashes
            for wait in state.status.waits if state.status.status == "waiting" else ():
                if wait["kind"] == "approval":
                    self.answer(journal, run_id, wait["id"])
                elif wait["kind"] == "recoveries":
                    journal.resume(run_id)
                elif wait["id"] in state.calls.unresolved():
                    self.tell(journal, run_id, wait["id"])
            assert state.status.status != "failed", state.status.error
            return run_id

    def tell(self, journal: Journal, run_id: str, call_id: str) -> None:
        call = journal.state(run_id).calls.known[call_id]
        happened = self.world("happened", key=call_id)["happened"]
        started = next(
            record.event
            for each in reversed([run_id[:end] for end in range(1, len(run_id) + 1)])
            if journal.store.head(each)
            for record in journal.events(each, types=["tool.started"])
            if record.event.call_id == call_id  # type: ignore[attr-defined]
        )
        assert isinstance(started, e.ToolStarted)
        result = f"{call.tool}:{started.args['x']}:{call_id[:6]}"
        journal.resolve(run_id, call_id, "happened" if happened else "did_not_happen", result if happened else None)

    def answer(self, journal: Journal, run_id: str, approval_id: str) -> None:
        """Yes, yes with other arguments, or no."""
        asked = next(
            record.event
            for record in journal.events(run_id, types=["approval.requested"])
            if record.event.approval_id == approval_id  # type: ignore[attr-defined]
        )
        assert isinstance(asked, e.ApprovalRequested)
        match asked.args:
            case {"x": 1}:
                journal.approve(run_id, approval_id)
            case {"x": 2}:
                journal.approve(run_id, approval_id, args={"x": 12})
            case _:
                journal.reject(run_id, approval_id)

    # Looking.

    def head(self, run_id: str) -> Head:
        with Journal.open(self.store) as journal:
            return journal.head(run_id)

    def effects(self, scope: str) -> Counter[tuple[str, ...]]:
        """(tool, key) -> how often it is in the ledger, for the calls of the runs of a scope, models included."""
        keys = self.keys(scope) | {scope}
        lines = [tuple(line.split()) for line in self.ledger.read_text().splitlines()]
        return Counter(line for line in lines if line[1] in keys)

    def keys(self, scope: str) -> set[str]:
        query = "SELECT DISTINCT data ->> '$.call_id' FROM log WHERE type = 'tool.started'"
        with Journal.open(self.store) as journal:
            return {str(key) for (key,) in journal.sql(f"{query} AND rtrim(run_id, '-') = ?", (scope,))}

    def rows(self, scope: str) -> list[str]:
        keys = self.keys(scope)
        with Journal.open(self.store) as journal:
            return sorted(str(key) for (key,) in journal.sql("SELECT key FROM bookings") if key in keys)

    def answers(self, scope: str) -> int:
        """How many answers and failures of models are on record."""
        ends = "type IN ('model.completed', 'model.failed') AND rtrim(run_id, '-') = ?"
        with Journal.open(self.store) as journal:
            return int(journal.sql(f"SELECT count(*) FROM log WHERE {ends}", (scope,))[0][0])

    def end(self, run_id: str) -> Any:
        """What the agent gave back; memory and plan as the fold has them."""
        with Journal.open(self.store) as journal:
            state = journal.state(run_id)
            output = output_of(journal, run_id)
            return {"output": output, "memory": state.memory.committed, "plan": state.plan.base}

    def whole(self) -> None:
        """What was acknowledged is stored; no run has a gap; the audit finds no damage."""
        with Journal.open(self.store) as journal:
            for head in journal.runs():
                records = list(journal.store.read(head.run_id))
                assert [record.seq for record in records] == list(range(1, head.head_seq + 1))
                told = {seq: digest for (run_id, seq), digest in self.acknowledged.items() if run_id == head.run_id}
                assert told.items() <= {record.seq: record.hash for record in records}.items()
            assert {run_id for run_id, _ in self.acknowledged} <= {head.run_id for head in journal.runs()}
            assert [] == [finding for finding in audit_store(journal.store) if finding.severity == "error"]


def output_of(journal: Journal, run_id: str) -> Any:
    completed = list(journal.events(run_id, types=["run.completed"]))[-1].event
    assert isinstance(completed, e.RunCompleted)
    return completed.output


@contextmanager
def world_of(folder: Path) -> Iterator[random_agent.World]:
    """A world in a process of its own. Its socket is elsewhere: there is a limit to the length of its name."""
    with tempfile.TemporaryDirectory(prefix="world") as short:
        command = [sys.executable, str(PROGRAMS / "world.py"), f"{short}/socket", str(folder / "ledger")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert "ready\n" == process.stdout.readline()
                yield random_agent.World(f"{short}/socket")
            finally:
                process.kill()


# ----------------------------------------------------------------------------------------------------- killed at random


def in_peace(folder: Path, run_id: str, program: Any) -> tuple[Any, Counter[tuple[str, ...]], list[str], int]:
    """The same run, undisturbed, in a store and a world of its own: its end, effects, rows, answers of models."""
    seen = list[tuple[str, str]]()

    def world(do: str, *, tool: str = "", key: str = "", once: bool = False) -> Any:
        if do == "act" and not (once and (tool, key) in seen):
            seen.append((tool, key))
        return {"happened": key in {known for _, known in seen}}

    place = Place(folder, world)
    random_agent.WORLD[:] = [world]
    for _ in range(20):
        with Journal.open(place.store) as journal:
            if (said := random_agent.go_on(journal, run_id, program)) == "completed":
                break
        assert said == "waiting"
        place.speak(run_id)
    return place.end(run_id), Counter[tuple[str, ...]](seen), place.rows(run_id), place.answers(run_id)


def as_promised(place: Place, run_id: str, newest: str, struck: int, peace: Any) -> None:
    """The run ended as the undisturbed one, and so did its effects; each blow cost at most one answer of a model."""
    end, effects, rows, answers = peace
    assert end == place.end(newest)
    assert rows == place.rows(run_id)
    assert answers == place.answers(run_id)
    actual = place.effects(run_id)
    assert effects.keys() == actual.keys()
    assert {} == {each: count for each, count in actual.items() if each[0] in ONCE and count > 1}
    assert answers <= actual["model", run_id] <= answers + struck


def moment(rng: random.Random) -> Kill:
    match rng.random():
        case chance if chance < 0.5:
            return Kill("line", rng.randint(1, 45), rng.uniform(0, 0.006))
        case chance if chance < 0.55:
            return Kill("line", 0, rng.uniform(0, 0.02))
        case chance if chance < 0.8:
            return Kill("after", rng.randint(1, 8))
        case _:
            return Kill("before", rng.randint(1, 8))


def kill_agents(folder: Path, seed: int) -> Counter[str]:
    """Kill agents again and again, and let each come to its end; gives how often which kind of kill struck."""
    struck, number = Counter[str](), 0
    with world_of(folder) as world, Agents() as agents:
        place = Place(folder, world)
        while struck.total() < KILLS:
            run_id = f"s{seed}n{number}"
            program = random_agent.draw(f"{seed}-{number}") | {"of": run_id}
            newest, lives, kills = run_id, 0, 0
            while True:
                rng = random.Random(f"{run_id} {lives}")
                kill = moment(rng) if struck.total() < KILLS else None
                about = f"seed {seed}, kill {struck.total()}: life {lives} of {newest}, {kill}"
                try:
                    ended = place.live(agents, newest, program, kill)
                    struck[kill.when if kill else ""] += ended.killed
                    lives += 1
                    kills += ended.killed
                    if ended.said == "completed":
                        break
                    if not ended.killed:
                        newest = place.speak(newest)
                    elif rng.random() < 0.3:
                        place.whole()
                except AssertionError as error:
                    raise AssertionError(about) from error
            try:
                place.whole()
                as_promised(place, run_id, newest, kills, in_peace(folder / f"peace{number}", run_id, program))
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, up to kill {struck.total()}: {run_id}, {program}") from error
            number += 1
    return struck


@pytest.mark.requirement("R3", "R14", "R47", "R49", "R60")
@pytest.mark.parametrize("seed", range(2))
def test_killed_agents_end_as_if_nobody_had_killed_them(tmp_path: Path, seed: int) -> None:
    """Two dozen kills: nothing acknowledged is lost, effects are as promised, context and output as undisturbed."""
    assert kill_agents(tmp_path, seed).total() >= KILLS


@pytest.mark.crash
@pytest.mark.requirement("R3", "R14", "R47", "R49", "R60")
@pytest.mark.parametrize("seed", range(100, 125))
def test_three_hundred_killed_agents(tmp_path: Path, seed: int) -> None:
    """The same with 25 seeds of a dozen kills."""
    assert kill_agents(tmp_path, seed).total() >= KILLS


# ------------------------------------------------------------------------------------------------- an owner that slept

LEASE_S = 0.15


class Slept(NamedTuple):
    """What a sleeper and its successor said; what the first added when it woke; the ledger before and after that."""

    said: tuple[str, str]
    added: list[Any]
    effects: Counter[tuple[str, ...]]
    woken: Counter[tuple[str, ...]]


def until(ready: Callable[[], object]) -> None:
    for _ in range(2000):
        if ready():
            return
        time.sleep(0.005)
    raise AssertionError("it doesn't come")


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def lapsed(place: Place) -> bool:
    lease_until = place.head("r").lease_until
    return lease_until is not None and SystemClock().boottime_s() > lease_until


def sleeper(place: Place, two: tuple[Agents, Agents], program: Any, at: int) -> Slept:
    """The first owner is stopped behind the world's at-th service, until its lease is over and a second one is done."""
    first, second = two
    assert isinstance(place.world, random_agent.World)
    place.world("strike", at=at, when="after", signal="SIGSTOP")
    first.begin(place.store, place.world.path, "r", program, LEASE_S)
    until(lambda: stopped(first.pid))
    until(lambda: lapsed(place))
    ended = place.live(second, "r", program)
    effects = place.effects("r")
    seq = place.head("r").head_seq
    os.kill(first.pid, signal.SIGCONT)
    said = place.heard(list(first.lines()))
    with Journal.open(place.store) as journal:
        added = [record.event for record in journal.events("r", after=seq)]
    return Slept((said, ended.said), added, effects, place.effects("r"))


def go_to_the_end(place: Place, agents: Agents, program: Any) -> str:
    newest = "r"
    for _ in range(5):
        newest = place.speak(newest)
        if place.live(agents, newest, program).said == "completed":
            return newest
    raise AssertionError("no end")


def program_of(*ops: Any) -> Any:
    return {"first": [["say", "a"], *ops, ["call", "send", 3]], "turns": [], "items": [], "asks": 0, "of": "r"}


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Agents, Agents]]:
    with Agents() as first, Agents() as second:
        yield first, second


NEXT = ["send", "", *(pytest.param(name, marks=pytest.mark.crash) for name in ("note", "pay", "book"))]


@pytest.mark.requirement("R48")
@pytest.mark.parametrize("name", NEXT)
def test_an_owner_that_slept_between_two_calls_does_nothing(tmp_path: Path, two: Any, name: str) -> None:
    """When it wakes the run is another's: no event of it is stored, no tool of it acts, and it says that it is busy."""
    after = ["call", name, 2] if name else ["count", "a"]
    program = program_of(["call", "push", 1], ["ping", ""], after, ["model", "q1", False])
    with world_of(tmp_path) as world:
        place = Place(tmp_path, world)
        slept = sleeper(place, two, program, 3)
        assert ("busy", "completed") == slept.said
        assert [] == slept.added
        assert slept.effects == slept.woken
        place.whole()
        as_promised(place, "r", "r", 1, in_peace(tmp_path / "peace", "r", program))


@pytest.mark.requirement("R48")
@pytest.mark.parametrize("name", NEXT)
def test_an_owner_that_wakes_while_another_one_works_does_nothing(tmp_path: Path, two: Any, name: str) -> None:
    """The run is running, under another epoch: the one that slept adds no event, no effect; the other one ends it."""
    after = ["call", name, 2] if name else ["count", "a"]
    program = program_of(["call", "push", 1], ["ping", ""], ["say", "b"], ["ping", ""], after, ["call", "send", 1])
    first, second = two
    with world_of(tmp_path) as world:
        place = Place(tmp_path, world)
        world("strike", at=3, when="after", signal="SIGSTOP")
        first.begin(place.store, world.path, "r", program, LEASE_S)
        until(lambda: stopped(first.pid))
        until(lambda: lapsed(place))
        world("strike", at=2, when="after", signal="SIGSTOP")  # of the other one, which is told what push 1 came to
        second.begin(place.store, world.path, "r", program)
        until(lambda: stopped(second.pid))
        effects, seq = place.effects("r"), place.head("r").head_seq
        os.kill(first.pid, signal.SIGCONT)
        assert "busy" == place.heard(list(first.lines()))
        assert (effects, seq) == (place.effects("r"), place.head("r").head_seq)
        os.kill(second.pid, signal.SIGCONT)
        assert "completed" == place.heard(list(second.lines()))
        place.whole()
        as_promised(place, "r", "r", 0, in_peace(tmp_path / "peace", "r", program))


class Asleep(NamedTuple):
    """Inside which tool, before (1) or after (2) its effect; what the other owner came to, and how many words came."""

    name: str
    at: int
    successor: str
    words: int


BEFORE, AFTER = 1, 2
PLACES = [
    Asleep("send", AFTER, "waiting", 1),
    Asleep("post", BEFORE, "waiting", 1),
    Asleep("push", AFTER, "completed", 0),  # before the effect it is the window that is documented
    Asleep("pay", AFTER, "completed", 0),
    *(
        pytest.param(place, marks=pytest.mark.crash)
        for place in (
            Asleep("send", BEFORE, "waiting", 1),
            Asleep("post", AFTER, "waiting", 1),
            Asleep("pay", BEFORE, "completed", 0),
        )
    ),
]


@pytest.mark.requirement("R48")
@pytest.mark.parametrize("asleep", PLACES, ids=lambda place: f"{place.name} {'' if place.at == BEFORE else 'done'}")
def test_an_owner_that_slept_inside_a_tool_testifies_once(tmp_path: Path, two: Any, asleep: Asleep) -> None:
    """What it had begun it ends, and says so, once, if that is still a question; it begins nothing new."""
    program = program_of(["call", asleep.name, 1], ["call", "pay", 2])
    with world_of(tmp_path) as world:
        place = Place(tmp_path, world)
        slept = sleeper(place, two, program, asleep.at)
        assert ("busy", asleep.successor) == slept.said
        assert [("happened", True)] * asleep.words == [(word.outcome, word.late) for word in slept.added]
        newest = "r" if asleep.successor == "completed" else go_to_the_end(place, two[1], program)
        with Journal.open(place.store) as journal:
            runs = [head.run_id for head in journal.runs()]
            words = [word.event for run_id in runs for word in journal.events(run_id, types=["tool.resolved"])]
        assert asleep.words == sum(word.late for word in words)  # type: ignore[attr-defined]
        place.whole()
        as_promised(place, "r", newest, 1, in_peace(tmp_path / "peace", "r", program))
