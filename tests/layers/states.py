"""L4: every state of the files that a power cut may leave, built from the writes that were recorded.

Of each file there is what its last fsync has made sure of, and what was written since. A power cut at any moment leaves
of the latter nothing, all, or any part, each write whole or torn at a multiple of 512 bytes. The WAL's index, which is
in memory, is gone.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from . import workloads
from .disk import Change, hooked
from .judge import Told
from .kills import judge_here
from .lives import Tell, live
from .report import Entry, emptied, folder, timed

SECTOR: Final = 512
FULL_OF: Final = 50
"""One of so many states is judged in full."""
PARTS: Final = 12
"""How many random parts of what is pending are tried at each moment."""
ROWS: Final = "SELECT position, hash FROM events ORDER BY position"
FILES: Final = ("", "-wal", "-journal")
Images = dict[str, bytes]


class Recording(NamedTuple):
    """What a life did to its files and told, in order, and the rows of its events in the end."""

    made: list[Change | dict[str, Any]]
    rows: list[tuple[int, bytes]]


def record(home: Path, work: Callable[..., None]) -> Recording:
    """Live once, and note every change of a file and every word."""
    kept = home / "recording"

    def noted(tell: Tell) -> None:
        made: list[Change | dict[str, Any]] = []

        def hook(change: Change) -> None:
            made.append(change)

        with hooked(hook):
            work(tell=lambda **what: made.append(what))
        rows = apsw.Connection(str(home / "runs.db")).execute(ROWS).fetchall()
        kept.write_bytes(pickle.dumps((made, rows)))

    life = live(noted)
    if life.ended:
        raise RuntimeError(f"the life that was to be recorded ended with {life.ended}")
    return Recording(*pickle.loads(kept.read_bytes()))


def applied(images: Images, changes: list[Change]) -> Images:
    """Return files as changes leave them; those that nothing changes are the same objects."""
    made = dict(images)
    for file in {change.file for change in changes}:
        image: bytearray | None = bytearray(images[file]) if file in images else None
        for change in changes:
            if change.file != file or change.what == "sync":
                continue
            if change.what == "delete":
                image = None
                continue
            image = bytearray() if image is None else image
            if change.what == "truncate":
                del image[change.offset :]
            image.extend(bytes(max(0, change.offset - len(image))))
            image[change.offset : change.offset + len(change.data)] = change.data
        if image is None:
            made.pop(file, None)
        else:
            made[file] = bytes(image)
    return made


class Moment(NamedTuple):
    """How much was done, how often something was made sure, what is sure of the files, and what is pending."""

    done: int
    syncs: int
    sure: Images
    pending: list[Change]


def moments(recording: Recording) -> Iterator[Moment]:
    """Yield each moment at which the power may go."""
    sure: Images = {}
    pending: list[Change] = []
    syncs = 0
    for place, made in enumerate(recording.made):
        if isinstance(made, Change) and (made.what == "sync" or made.at_once):
            sure = applied(sure, [each for each in [*pending, made] if each.file == made.file])
            pending = [each for each in pending if each.file != made.file]
            syncs += 1
        elif isinstance(made, Change) and made.what != "open":
            pending = [*pending, made]
        yield Moment(place + 1, syncs, sure, pending)


Kept = tuple[tuple[int, int], ...]
"""Which of the pending changes got through, by their place, and how many bytes of each."""


def left(pending: list[Change], rng: random.Random) -> Iterator[Kept]:
    """Yield what a power cut may have let through: nothing, all, random parts, one of them torn."""
    whole = tuple((place, len(change.data)) for place, change in enumerate(pending))
    yield ()
    yield whole
    for _ in range(PARTS if pending else 0):
        kept = [each for each in whole if rng.random() < 0.7]
        if kept and rng.random() < 0.5:
            torn = rng.randrange(len(kept))
            place, size = kept[torn]
            kept[torn] = (place, SECTOR * rng.randrange(size // SECTOR + 1))
        yield tuple(kept)


def seen(recording: Recording, upto: int) -> tuple[Told, int]:
    """Return what was told up to a moment, and the position that a durable commit has made sure of."""
    told = [each for each in recording.made[:upto] if not isinstance(each, Change)]
    return told, max((each["position"] for each in told if each["say"] == "done" and each["durable"]), default=0)


class Judge:
    """Opens files with SQLite alone: the events there are the first ones that were written, and enough of them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.there: Images = {}

    def put(self, images: Images) -> None:
        """Have these files there. Opening them changes none of them."""
        for name in FILES:
            image = images.get(name)
            if image is not None and image is self.there.get(name):
                continue
            path = self.home / f"runs.db{name}"
            if image is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(image)
        (self.home / "runs.db-shm").unlink(missing_ok=True)
        self.there = {} if "-journal" in images else images  # SQLite may roll back

    def judge(self, images: Images, rows: list[tuple[int, bytes]], least: int) -> list[str]:
        """Return what is wrong with files, of which a durable commit has made sure of so many events."""
        self.put(images)
        try:
            connection = apsw.Connection(str(self.home / "runs.db"))
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            try:
                found = connection.execute(ROWS).fetchall() if _made(connection) else []
            finally:
                connection.close()
        except apsw.Error as error:
            return [f"corrupt: {type(error).__name__}: {error}"]
        if found != rows[: len(found)]:
            return ["corrupt: the events aren't those that were written"]
        return [f"lost: {len(found)} events are left, {least} were durable"] if len(found) < least else []


def _made(connection: apsw.Connection) -> bool:
    return bool(connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'events'").fetchall())


def states(seed: str, n: int, *, harm: str = "") -> Entry:
    """Build and judge so many states; each moment of each recording has its own."""
    entry = Entry("L4", "files as a power cut may leave them, built from recorded writes", seed)
    with timed(entry), folder() as home:
        case = 0
        while entry.n < n:
            rng = random.Random(f"{seed} states {case}")
            place = emptied(home / "r")
            work = partial(
                workloads.appends, place / "runs.db", f"{seed}.{case}", count=14, private=not case % 3, harm=harm
            )
            _recorded(entry, home, record(place, work), rng, n, case)
            case += 1
    return entry


def _recorded(  # noqa: PLR0917 - what a case is
    entry: Entry, home: Path, recording: Recording, rng: random.Random, n: int, case: int
) -> None:
    known, judge = set[tuple[int, int, Kept]](), Judge(emptied(home / "j"))
    for moment in moments(recording):
        told, least = seen(recording, moment.done)
        for kept in left(moment.pending, rng):
            if (moment.syncs, least, kept) in known:
                continue
            known.add((moment.syncs, least, kept))
            through = [moment.pending[place] for place, _ in kept]
            through = [each._replace(data=each.data[:size]) for each, (_, size) in zip(through, kept, strict=True)]
            images = applied(moment.sure, through)
            wrong = judge.judge(images, recording.rows, least)
            if not wrong and entry.n % FULL_OF == 0:
                entry.count("judged in full")
                wrong = judge_here(_written(emptied(home / "f"), images), told, power=True)
            entry.add(f"recording {case}, after {moment.done} changes and words", wrong)
            if entry.n >= n:
                return


def _written(home: Path, images: Images) -> Path:
    for name, image in images.items():
        (home / f"runs.db{name}").write_bytes(image)
    return home / "runs.db"
