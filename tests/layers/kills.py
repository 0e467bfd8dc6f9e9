"""L1: a process is killed at the k-th write or fsync of its store, at a point, or at a random moment; others go on."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from runjournal import Journal
from runjournal.log import failpoint

from . import workloads
from .disk import Counted, die
from .judge import Told, effects_wrong, faults, judge
from .lives import Life, Tell, begin, live
from .report import Entry, emptied, folder, timed

LIVES_MAX = 12
Work = Callable[[Tell], None]


def counted(work: Work, kinds: tuple[str, ...]) -> int:
    """Return how many changes of these kinds a life makes that nobody strikes."""
    return _seen(work, Counted(0, die, kinds))


def _seen(work: Work, counter: Counted | Points) -> int:
    def watched(tell: Tell) -> None:
        with counter.hooked():
            work(tell)
        tell(say="seen", seen=counter.seen)

    return next(int(line["seen"]) for line in reversed(live(watched).told) if line["say"] == "seen")


class Points:
    """Kills the process at the point of number `at` that it passes in its way: `log/failpoint.py` has their names."""

    def __init__(self, at: int) -> None:
        self.seen, self.at = 0, at

    def __call__(self, point: str, about: object) -> None:
        self.seen += 1
        if self.seen == self.at:
            die()

    @contextmanager
    def hooked(self) -> Generator[None]:
        """Be told of each point."""
        failpoint.hit = self
        try:
            yield
        finally:
            failpoint.hit = None


def counts(work_on: Callable[[Path], Work], home: Path, made: Callable[[], object] = lambda: None) -> dict[str, int]:
    """Return how many writes and fsyncs a life makes, and how many points it passes; `made` makes what it finds."""

    def fresh() -> Path:
        emptied(home)
        made()
        return home / "runs.db"

    found = {kind: counted(work_on(fresh()), (kind,)) for kind in ("write", "sync")}
    return found | {"point": _seen(work_on(fresh()), Points(0))}


def struck(work: Work, rng: random.Random, most: dict[str, int]) -> tuple[str, Life]:
    """Live once and die: before a write, before an fsync, at a point, or whenever."""
    kind = rng.choice(("write", "sync", "point", "moment"))
    if kind == "moment":
        child = begin(work)
        time.sleep(rng.random() * 0.03)
        os.kill(child.pid, signal.SIGKILL)
        return kind, child.over()
    at = rng.randint(1, most[kind])

    def dying(tell: Tell) -> None:
        with Points(at).hooked() if kind == "point" else Counted(at, die, (kind,)).hooked():
            work(tell)

    return f"{kind} {at}", live(dying)


def kills(seed: str, n: int, *, harm: str = "") -> Entry:
    """Kill writers and agents; each store is struck again and again, its recovery included, and then judged."""
    entry = Entry("L1", "SIGKILL at the k-th write, fsync or point, at random moments; recoveries struck too", seed)
    with timed(entry), folder() as home:
        of_writer = counts(lambda path: partial(workloads.appends, path, "count"), home / "c")
        of_agent = counts(
            lambda path: partial(workloads.runs, path, "count", world=path.with_name("world")), home / "c"
        )
        case = 0
        while entry.n < n:
            rng = random.Random(f"{seed} kill {case}")
            if harm == "an effect before its intent" or (case % 2 and not harm):
                _agent(entry, emptied(home / "w"), case, rng, of_agent, harm)
            else:
                _writer(entry, emptied(home / "w"), case, rng, of_writer, harm)
            case += 1
    return entry


def _writer(  # noqa: PLR0917 - what both kinds of cases take
    entry: Entry, home: Path, case: int, rng: random.Random, most: dict[str, int], harm: str
) -> None:
    path, told = home / "runs.db", Told()
    for number in range(rng.randint(1, 4)):
        name = f"{case}.{number}"
        if case % 4 and not harm:
            work = partial(workloads.crowd, path, name)
        else:
            work = partial(workloads.appends, path, name, private=not case % 8, harm=harm)
        where, life = struck(work, rng, most)
        told += life.told
        wrong = judge_here(path, told) if rng.random() < 0.5 else []
        entry.count(where.split()[0])
        entry.count("killed" if life.killed else "survived")
        entry.add(f"case {case}, life {number}, {where}", wrong + fell(life))
    if wrong := judge_here(path, told):
        entry.add(f"case {case}, in the end", wrong)


def judge_here(path: Path, told: Told, *, power: bool = False, beside: Path | None = None) -> list[str]:
    """Judge a copy in a process of its own, so that the judge changes nothing. The copy is made in `beside`."""
    copy = emptied((beside or path.parent) / "judged")
    for each in path.parent.glob(path.name + "*"):
        if not each.name.endswith("-shm"):
            (copy / each.name).write_bytes(each.read_bytes())
    life = live(lambda tell: tell(wrong=judge(copy / path.name, told, power=power)))
    return life.told[0].get("wrong", [f"the judge fell: {life.told}"]) if life.told else ["the judge fell"]


def _agent(  # noqa: PLR0917 - what both kinds of cases take
    entry: Entry, home: Path, case: int, rng: random.Random, most: dict[str, int], harm: str
) -> None:
    path, world = home / "runs.db", home / "world"
    output: Any = None
    life = Life([], 0)
    for number in range(LIVES_MAX):
        work = partial(workloads.runs, path, f"{case}.{number}", world=world, harm=harm)
        if number < rng.randint(1, 4):
            where, life = struck(work, rng, most)
            entry.count(where.split()[0])
            entry.count("killed" if life.killed else "survived")
            entry.add(f"case {case}, life {number}, {where}", fell(life) + _twice(workloads.effects(world)))
        else:
            life = live(work)
        found = [line["output"] for line in life.told if line["say"] == "output"]
        if found:
            output = found[0]
            break
    wrong = effects_wrong(workloads.effects(world), workloads.EXPECTED, output)
    if output is None:
        wrong.append(f"the last life told {life.told}")
    wrong += live(lambda tell: tell(wrong=audited(path))).told[0]["wrong"]
    if wrong:
        entry.add(f"case {case}, the agent in the end", wrong)


def audited(path: Path) -> list[str]:
    with Journal.open(path) as journal:
        return faults(journal)


def _twice(happened: list[str]) -> list[str]:
    return [f"twice: {each}" for each in set(happened) if each.startswith("send") and happened.count(each) > 1]


def fell(life: Life) -> list[str]:
    return [] if life.killed or not life.ended else [f"a process fell with {life.ended}: {life.told[-1:]}"]
