"""L1: a run dies at a point, and its recovery at each of its own points, writes and fsyncs; then it is left alone."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any, Final

from . import workloads
from .disk import Counted, die
from .judge import effects_wrong
from .kills import LIVES_MAX, Points, Work, audited, counts
from .lives import live
from .report import Entry, emptied, folder, timed

STEPS: Final = 1
"""Steps of the agent: it is killed at every pair, so it is small."""
EXPECTED: Final = workloads.EXPECTED[: 2 * STEPS]


def recoveries(seed: str, every: int = 1, first: int = 1, some: int = 1) -> Entry:
    """Kill a small agent at each point, and its recovery at each boundary.

    `every`: only each so-many-th point of its first life, from the `first` on; `some`: of its recovery.
    """
    entry = Entry("L1", "a second SIGKILL, at every point, write and fsync of the recovery of a small agent", seed)
    with timed(entry), folder() as home:
        last = counts(partial(_work, f"{seed} count"), emptied(home / "c"))["point"]
        for at in range(first, last + 1, every):
            died = emptied(home / "died")
            live(partial(_dying, _work(f"{seed} {at}", died / "runs.db"), Points(at)))
            recovery = partial(_work, f"{seed} {at} again")
            for kind, most in _counted(recovery, died, home / "c").items():
                for second in range(1, most + 1, some):
                    place = _copied(died, home / "w")
                    strike = Points(second) if kind == "point" else Counted(second, die, (kind,))
                    life = live(partial(_dying, recovery(place / "runs.db"), strike))
                    entry.count(kind)
                    entry.count("killed" if life.killed else "survived")
                    entry.add(f"point {at}, then {kind} {second} of the recovery", _ends(place))
    return entry


def _work(life: str, path: Path) -> Work:
    return partial(workloads.runs, path, life, world=path.with_name("world"), steps=STEPS)


def _dying(work: Work, strike: Points | Counted, tell: Any) -> None:
    with strike.hooked():
        work(tell)


def _copied(died: Path, place: Path) -> Path:
    """The files as the process left them, without the memory of the WAL's index: it is made anew."""
    shutil.rmtree(place, ignore_errors=True)
    return Path(shutil.copytree(died, place, ignore=shutil.ignore_patterns("*-shm")))


def _counted(recovery: Any, died: Path, place: Path) -> dict[str, int]:
    """Count the boundaries of a recovery that nobody strikes."""
    return counts(recovery, place, lambda: _copied(died, place))


def _ends(place: Path) -> list[str]:
    """Let it go on to its end, and judge that."""
    path, world, output = place / "runs.db", place / "world", None
    told: list[Any] = []
    for number in range(LIVES_MAX):
        told = live(_work(f"end {number}", path)).told
        found = [line["output"] for line in told if line["say"] == "output"]
        if found:
            output = found[0]
            break
    wrong = effects_wrong(workloads.effects(world), EXPECTED, output)
    if output is None:
        wrong.append(f"the last life told {told}")
    faults: list[str] = live(lambda tell: tell(wrong=audited(path))).told[0]["wrong"]
    return wrong + faults
