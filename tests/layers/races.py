"""L5: several processes at once: one is stopped, killed, or late by days; what is delivered k times counts once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from programs import append_races

from runjournal import Journal
from runjournal.log import events as e
from runjournal.log.clock import SystemClock
from runjournal.log.errors import AppendRefused, JournalError, StaleEpoch, StoreBusy
from runjournal.log.owner import here
from runjournal.log.sqlite import SQLiteStore
from runjournal.looking.audit import audit_store
from runjournal.writing.appender import Batch

from . import harms, workloads
from .kills import fell, judge_here
from .lives import Life, Living, Tell, begin, live
from .report import Entry, emptied, folder, timed

PROCESSES = (2, 3, 4, 8, 16)


def appends(seed: str, rounds: int) -> list[Entry]:
    """The races of programs/append_races.py: crowds, fenced owners, cancels, kills."""
    entries: list[Entry] = []
    for name, race in append_races.RACES.items():
        entry = Entry("L5", f"races of appends: {name}", seed)
        with timed(entry), folder() as home:
            wrong = race(home / "runs.db", random.Random(f"{seed} {name}"), rounds)
        entry.n, entry.violations, entry.first = rounds, len(wrong), wrong[:3]
        entries.append(entry)
    return entries


def crowd(verbs: list[Callable[[Tell], None]], gate: Path) -> list[Life]:
    """Have a process for each of these do it, all at the same time."""

    def work(verb: Callable[[Tell], None], tell: Tell) -> None:
        tell(say="ready")
        while not gate.exists():
            time.sleep(0)
        verb(tell)

    children = [begin(partial(work, verb)) for verb in verbs]
    time.sleep(0.002 * len(verbs))
    gate.touch()
    return [child.over() for child in children]


def _approve(path: Path, tell: Tell) -> None:
    with Journal.open(path) as journal:
        try:
            journal.approve("r", "q1")
        except JournalError as error:
            tell(say="no", why=type(error).__name__)
        else:
            tell(say="yes")


def _run(path: Path, world: Path, tell: Tell) -> None:
    workloads.ledger(world)
    with Journal.open(path) as journal:
        try:
            tell(say="yes", output=journal.run(_once, run_id="r"))
        except Exception as error:  # noqa: BLE001 - busy, or not due: told
            tell(say="no", why=type(error).__name__)


def _once(run: Any) -> str:
    return str(run.do("send", lambda: run.call(workloads.send, x=1)))


def deliveries(seed: str, n: int) -> Entry:
    """An answer, or the order to go on, is given by 2 to 16 processes at once: it is taken once."""
    entry = Entry("L5", "an answer or a resume, delivered by 2 to 16 processes at once", seed)
    with timed(entry), folder() as home:
        for number in range(n):
            rng = random.Random(f"{seed} delivery {number}")
            count, place = rng.choice(PROCESSES), emptied(home / "w")
            path, world = place / "runs.db", place / "world"
            verb: Callable[[Tell], None]
            if number % 2:
                with Journal.open(path) as journal:
                    journal.enqueue(_once.__name__, run_id="r")
                verb = partial(_run, path, world)
            else:
                _asked(path)
                verb = partial(_approve, path)
            lives = crowd([verb] * count, place / "gate")
            entry.count(f"{count} processes")
            entry.add(f"delivery {number} by {count}", _delivered(path, world, lives, asked=not number % 2))
    return entry


def _asked(path: Path) -> None:
    me = here()
    claim = e.RunClaimed("w", 1, 60.0, me.host, me.boot_id, me.pid_ns, me.pid, me.started)
    question = [e.ApprovalRequested("q1", "go on", ""), e.RunWaiting([{"kind": "approval", "id": "q1"}])]
    with Journal.open(path) as journal:
        journal.append("r", [e.RunQueued("k", None), claim], expect=0)
        journal.append("r", question, epoch=1)


def _delivered(path: Path, world: Path, lives: list[Life], *, asked: bool) -> list[str]:
    wrong = [f"a process fell with {life.ended}: {life.told[-1:]}" for life in lives if life.ended]
    yes = sum(line["say"] == "yes" for life in lives for line in life.told)
    with Journal.open(path) as journal:
        types = [record.type for record in journal.events("r")]
        wrong += [f"audit: {each.what}" for each in audit_store(journal.store) if each.severity == "error"]
    if asked and (yes, types.count("approval.resolved")) != (1, 1):
        wrong.append(f"{yes} were told yes, {types.count('approval.resolved')} answers are there")
    happened = workloads.effects(world)
    if not asked and (not yes or happened != ["send 1"] or types.count("run.completed") != 1):
        wrong.append(f"{yes} ran it, {happened} happened: {[life.told for life in lives]}")
    return wrong


# --- fences ----------------------------------------------------------------------------------------------------------


def _goes_on(path: Path, harm: str, tell: Tell) -> None:
    """Own a run for an instant, append to it and append to it, until that is refused or was done fifty times more."""
    if harm:
        harms.HARMS[harm]()
    with Journal.open(path) as journal:
        journal.append("r", [e.RunQueued("k", None), append_races.claim(1)], expect=0)
        tell(say="owns")
        for _ in range(FEW):
            try:
                journal.append("r", [e.NoteAdded("mine")], epoch=1)
            except AppendRefused as error:
                tell(say="refused", why=type(error).__name__)
                return


FEW: Final = 200


def fences(seed: str, n: int, *, harm: str = "") -> Entry:
    """An owner is stopped past its lease, another one claims the run, and the first one wakes up."""
    entry = Entry("L5", "an owner that slept past its lease while another one claimed", seed)
    with timed(entry), folder() as home:
        for number in range(n):
            rng = random.Random(f"{seed} fence {number}")
            path = emptied(home / "w") / "runs.db"
            child = begin(partial(_goes_on, path, harm))
            child.word()
            time.sleep(rng.random() * 0.003)
            os.kill(child.pid, signal.SIGSTOP)
            time.sleep(append_races.LEASE_S)
            taken = _taken(path)
            os.kill(child.pid, signal.SIGCONT)
            life = child.over()
            entry.count("taken" if taken else "the owner was stopped inside the write lock")
            entry.add(f"fence {number}", _behind(path, life) if taken else [])
    return entry


def _taken(path: Path) -> bool:
    try:
        with SQLiteStore(path, clock=SystemClock(), busy_wait_s=0.1) as store, Journal(store) as journal:
            journal.append("r", [e.RunRequeued("lease_expired"), append_races.claim(2)])
    except StoreBusy:
        return False
    return True


def _behind(path: Path, life: Life) -> list[str]:
    with Journal.open(path) as journal:
        events = [(record.type, record.epoch) for record in journal.events("r")]
    behind = events[events.index(("run.claimed", 2)) :] if ("run.claimed", 2) in events else []
    wrong = [f"{kind} of the first owner stands behind the claim of the second" for kind, epoch in behind if epoch == 1]
    if [line.get("why") for line in life.told[1:]] not in ([StaleEpoch.__name__], []):
        wrong.append(f"the first owner was told {life.told[1:]}")
    return wrong[:1] + wrong[-1:]


# --- repeated appends ------------------------------------------------------------------------------------------------


class Still(SystemClock):
    """A wall clock that stands still."""

    def now(self) -> datetime:
        return datetime(2026, 1, 2, tzinfo=UTC)


def _append(path: Path, batch: Batch, tell: Tell) -> None:
    with Journal.open(path) as journal:
        try:
            journal.append(batch)
        except JournalError as error:
            tell(say=type(error).__name__)
        else:
            tell(say="yes")


def repeats(seed: str, n: int, *, harm: str = "") -> Entry:
    """Appends of one writer, of one instant, to one place: if they are the same each succeeds, and else one does."""
    if harm:
        harms.HARMS[harm]()
    entry = Entry("L5", "the same append, or others of the same place and instant, by 2 to 16 processes at once", seed)
    with timed(entry), folder() as home:
        for number in range(n):
            rng = random.Random(f"{seed} repeat {number}")
            count, path = rng.choice(PROCESSES), emptied(home / "w") / "runs.db"
            with Journal.open(path, by="w", clock=Still()) as journal:
                journal.append("r", [e.RunQueued("k", None)], expect=0)
                texts = ["same"] * count if number % 2 else [f"text {place}" for place in range(count)]
                batches = [journal.batch("r", [e.NoteAdded(text)], expect=1) for text in texts]
            lives = crowd([partial(_append, path, batch) for batch in batches], path.with_name("gate"))
            said = [life.told[-1]["say"] for life in lives]
            with Journal.open(path) as journal:
                found = [record.event for record in journal.events("r", after=1)]
            expected = {"yes"} if number % 2 else {"yes", "WrongExpectation"}
            told = [text for text, word in zip(texts, said, strict=True) if word == "yes"]
            wrong = [] if [e.NoteAdded(text) for text in dict.fromkeys(told)] == found else [f"{told} of {found}"]
            entry.add(f"repeat {number}", wrong + [word for word in said if word not in expected])
    return entry


# --- forks ---------------------------------------------------------------------------------------------------------


def _forking(path: Path, name: str, tell: Tell) -> None:
    """Append beside a child that tries to use the open store of its parent."""
    with Journal.open(path, checkpoints=workloads.OFTEN) as journal:
        writer = workloads.Writer(journal, name, tell)
        while not writer.runs:
            writer.append()
        child = begin(partial(_used, journal, writer.runs[0]))
        for _ in range(6):
            writer.append()
        found = child.over().told
        tell(say="child", found=[line.get("why", line) for line in found])
        for _ in range(3):
            writer.append()


def _used(journal: Journal, run_id: str, tell: Tell) -> None:
    uses: list[Callable[[], object]] = [
        lambda: journal.append(run_id, [e.NoteAdded("of the child")], expect=None),
        lambda: journal.head(run_id),
        lambda: journal.store.heartbeat(run_id, 1, 1.0, 1.0),
    ]
    for use in uses:
        try:
            use()
        except JournalError as error:
            tell(why=type(error).__name__)
        else:
            tell(why="used")


def forks(seed: str, n: int, *, harm: str = "") -> Entry:
    """A child uses the store that its parent had open at the fork: it is refused, and the parent's store is sound."""
    if harm:
        harms.HARMS[harm]()
    entry = Entry("L5", "a forked child uses its parent's open store, while the parent appends", seed)
    with timed(entry), folder() as home:
        for number in range(n):
            path = emptied(home / "w") / "runs.db"
            life = live(partial(_forking, path, f"{seed}-{number}"))
            found = [line["found"] for line in life.told if line["say"] == "child"]
            wrong = [] if found == [["UsedAfterFork"] * 3] else [f"the child was told {found}"]
            told = [line for line in life.told if line["say"] != "child"]
            entry.add(f"fork {number}", wrong + fell(life) + judge_here(path, told))
    return entry


# --- clocks ----------------------------------------------------------------------------------------------------------


class Wrong(SystemClock):
    """A wall clock that is off by so many days."""

    def __init__(self, days: float) -> None:
        super().__init__()
        self.days = days

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(days=self.days)


def _owns(path: Path, days: float, tell: Tell) -> None:
    me = here()
    claim = e.RunClaimed("w", 1, 60.0, me.host, me.boot_id, me.pid_ns, os.getpid(), me.started)
    with Journal.open(path, clock=Wrong(days)) as journal:
        journal.append("r", [e.RunQueued("k", None), claim], expect=0)
        tell(say="owns")
        signal.pause()


def _take(path: Path, days: float) -> str:
    me = here()
    claim = e.RunClaimed("v", 2, 60.0, me.host, me.boot_id, me.pid_ns, os.getpid(), me.started)
    with Journal.open(path, clock=Wrong(days)) as journal:
        try:
            journal.append("r", [e.RunRequeued("owner_dead"), claim])
        except AppendRefused as error:
            return type(error).__name__
        return "taken"


def clocks(seed: str, n: int) -> Entry:
    """Owners and rivals have wall clocks that are off: the living keep their runs, the dead lose them."""
    entry = Entry("L5", "wall clocks off by up to a year: a living owner is left alone, a dead one isn't", seed)
    with timed(entry), folder() as home:
        for number in range(n):
            rng = random.Random(f"{seed} clock {number}")
            path = emptied(home / "w") / "runs.db"
            mine, yours = rng.uniform(-365, 365), rng.uniform(-365, 365)
            child: Living = begin(partial(_owns, path, mine))
            child.word()
            alive = _take(path, yours)
            os.kill(child.pid, signal.SIGKILL)
            child.over()
            dead = _take(path, yours)
            wrong = (
                [] if (alive, dead) == ("NotAllowed", "taken") else [f"of a living owner {alive}, of a dead one {dead}"]
            )
            entry.add(f"clock {number}, {mine:.0f} and {yours:.0f} days", wrong)
    return entry
