"""L2: every change of a store's files fails once, or from there on, in each of several ways."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw

from . import workloads
from .disk import CHANGES, Change, Counted, hooked
from .judge import Told, effects_wrong
from .kills import counted, fell, judge_here
from .lives import Tell, live
from .report import Entry, emptied, folder, timed

IOERR: Final = {
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "delete": apsw.SQLITE_IOERR_DELETE,
}


def eio(change: Change) -> bytes | None:
    """What the file system's EIO and EDQUOT are to SQLite."""
    if change.what == "open":
        raise apsw.CantOpenError("EIO")
    error = apsw.IOError("EIO")
    error.extendedresult = IOERR[change.what]  # type: ignore[attr-defined]
    raise error


def enospc(change: Change) -> bytes | None:
    if change.what != "write":
        return eio(change)
    raise apsw.FullError("ENOSPC")


def short(change: Change) -> bytes | None:
    """Write half of it, then find the disk full."""
    return change.data[: len(change.data) // 2] if change.what == "write" else eio(change)


ERRORS: Final[dict[str, Callable[[Change], bytes | None]]] = {"EIO": eio, "ENOSPC": enospc, "short": short}


class Lasting(Counted):
    """Acts at each change from the one of number `at` on."""

    def __call__(self, change: Change) -> bytes | None:
        self.seen += 1
        return self.act(change) if self.seen >= self.at else None


def errors(seed: str, every: int = 1, first: int = 1, *, harm: str = "") -> Entry:
    """Fail each change of three workloads; `every`: only each so-many-th, from the `first` on."""
    entry = Entry("L2", "EIO, ENOSPC and short writes at every write, fsync, truncate, delete and open", seed)
    kinds = {"appends": False, "private appends": True}
    with timed(entry), folder() as home:
        for name, private in kinds.items():
            work = partial(workloads.appends, life=f"{seed}", private=private, harm=harm)
            for case, fail in _cases(partial(work, emptied(home / "c") / "runs.db"), every, first):
                path = emptied(home / "w") / "runs.db"
                wrong = _writer(entry, path, partial(work, path), fail)
                entry.add(f"{name}, {case}", wrong)
        count = partial(workloads.runs, emptied(home / "c") / "runs.db", "c", world=home / "c" / "world")
        for case, fail in [] if harm else _cases(count, every, first):
            entry.add(f"agent, {case}", _agent(entry, emptied(home / "w"), fail))
    return entry


def _cases(work: Callable[..., None], every: int, first: int) -> list[tuple[str, Counted]]:
    last = counted(lambda tell: work(tell=tell), CHANGES)
    return [
        (f"{name} {'from' if how is Lasting else 'at'} change {at}", how(at, act))
        for at in range(first, last + 1, every)
        for name, act in ERRORS.items()
        for how in (Counted, Lasting)
    ]


def _failing(work: Callable[..., None], fail: Counted) -> Callable[[Tell], None]:
    def failing(tell: Tell) -> None:
        with hooked(fail):
            work(tell=tell)

    return failing


def _writer(entry: Entry, path: Path, work: Callable[..., None], fail: Counted) -> list[str]:
    life = live(_failing(work, fail))
    told: Told = life.told
    for line in told:
        entry.count(line["say"])
    wrong = fell(life)
    return wrong + judge_here(path, told)


def _agent(entry: Entry, home: Path, fail: Counted) -> list[str]:
    path, world = home / "runs.db", home / "world"
    life = live(_failing(partial(workloads.runs, path, "f", world=world), fail))
    wrong = fell(life)
    output: Any = None
    for number in range(3):
        life = live(partial(workloads.runs, path, f"{number}", world=world))
        for line in life.told:
            entry.count(line["say"])
            output = line.get("output", output)
        if output is not None:
            break
    return wrong + effects_wrong(workloads.effects(world), workloads.EXPECTED, output)
