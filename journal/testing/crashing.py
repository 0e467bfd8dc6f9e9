"""`crash_points`: crash an agent at each of its boundaries, and be told what would go wrong in production."""

from __future__ import annotations

import inspect
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, cast

from runjournal.log import failpoint
from runjournal.log.base import Json
from runjournal.log.codec import plain
from runjournal.log.errors import InvalidArgument
from runjournal.log.limits import crash_life_s

from .crash_judges import CrashFacts, CrashVerdict, Unsteady, facts, judged, unsteady, without_crash
from .crash_lives import CrashStory, LifePlan, story, warmed
from .crash_report import At, CrashFailure, CrashReport, failure, names_of, text_of, told_of
from .world import World

HOWS: Final = ("kill", "interrupt")
How = Literal["kill", "interrupt"]


def crash_points(
    agent: Callable[[Any], Any],
    *,
    input: Json = None,
    world: World | None = None,
    how: Sequence[How] | How = ("kill",),
    at: At | None = None,
    pairs: bool = False,
    person: Literal["world"] | None = "world",
    max_s: float = crash_life_s,
    check: bool = True,
) -> CrashReport:
    """Crash an agent at each boundary of its run, let it recover, and raise AssertionError if anything goes wrong.

    `agent` is a function of its run, or a coroutine function, called with `input` as the input of the run. First it
    runs twice without a crash. Its boundaries are what it passes there: before and after each commit of the log, each
    tool's body, each function of a `do`, each request to a model, and after each effect of the `world`. Then it runs
    once for each boundary: its process is crashed there, and further processes go on until the run has ended. Each
    process is forked from this one, so closures, fixtures and mocks work; each run has a store of its own, in a
    temporary folder (in `TMPDIR`; else in memory, if there is room), and an empty World.

    What the judges find, by name: `twice`, something that may happen only once (`World.did` with `once` or a key) did
    more often; `lost`, an effect or the output is missing; `differs`, the output, an effect, or what was asked isn't as
    without a crash; `stuck`, the run doesn't end; `paid_twice`, a model was asked for an answer that was on record;
    `invalid`, a provider would refuse the messages that a model was sent, if they are of the shape of Anthropic's or
    OpenAI's. What two runs without a crash differ in isn't compared, and told as `unstable`. A run that fails without a
    crash is told as `at` 0, and none is crashed.

    `how`: `kill` is SIGKILL; `interrupt` is a KeyboardInterrupt, which runs `finally` blocks. `at` crashes at that
    boundary alone, as a failure says; with two, (boundary, boundary after it), a second time while it recovers. `pairs`
    does that at all of them, which takes long. `person="world"`: approvals are given, and where nobody can know whether
    an unsafe call has happened the World says; without an answer from a person (None) a run that waits is at its end,
    and only `twice`, `paid_twice` and `invalid` are judged. `max_s` bounds the life of one process, in seconds. With
    `check=False` the report is returned whatever it says.

    Not crashed are the machine (no fsync is lost) and what the agent changes outside of run and World: that isn't put
    back between two runs. Children of one process share its hash seed and its modules; Python seeds `random` anew in
    each. If this process is killed its temporary folder, `runjournal-crash-*`, stays until the next walk; its children
    die with it on Linux. Raises AssertionError, and InvalidArgument for what can't be done, such as on a platform
    without fork.

    >>> world = World(tmp_path / "world")  # doctest: +SKIP
    >>> crash_points(lambda run: agent(run, world), world=world)  # doctest: +SKIP
    CrashReport(boundaries=31, failures=(), unstable=(), asked=1, seconds=3.2)
    """
    began = time.monotonic()
    hows = _checked(agent, world, how, at, person, max_s)
    places = cast("list[int]", _listed(at))
    single = places[0] if len(places) == 1 else (places[0], places[1])
    from .crash_folders import walk_folder  # where there is no fork there are no locks of files either

    with walk_folder() as folder:
        awaited, empty = inspect.iscoroutinefunction(agent), warmed(folder)
        plan = LifePlan(agent, plain(input), awaited, folder, empty)
        plan = replace(plan, person=person is not None, max_s=float(max_s))
        found = CrashWalk(plan, world, hows).walk(single, pairs=pairs)
    report = CrashReport(*found, seconds=time.monotonic() - began)
    if check and report.failures:
        raise AssertionError(text_of(report))
    return report


def _checked(  # noqa: PLR0917 - what crash_points takes
    agent: object, world: object, how: object, at: object, person: object, max_s: object
) -> tuple[How, ...]:
    """Return the ways to crash. Raises InvalidArgument for what can't be right."""
    if not hasattr(os, "fork"):
        raise InvalidArgument(
            "crash_points forks the process that calls it, and this platform has no fork: use Linux or macOS"
        )
    if failpoint.hit is not None:
        raise InvalidArgument("crash_points was called inside an agent that it crashes: call it from a test")
    if not callable(agent):
        raise InvalidArgument(f"agent: expected a function of a run, got {type(agent).__name__}")
    if world is not None and not isinstance(world, World):
        raise InvalidArgument(f"world: expected a World, got {type(world).__name__}")
    hows, told, numbers = _listed(how), ascii(how)[:60], _listed(at)
    if not hows or any(each not in HOWS for each in hows) or len(set(hows)) < len(hows):
        raise InvalidArgument(f"how: expected one or both of {', '.join(HOWS)}, got {told}")
    if at is not None and not (len(numbers) in (1, 2) and all(type(each) is int and each > 0 for each in numbers)):
        raise InvalidArgument(f"at: expected a boundary, from 1 on, or two of them, got {str(at)[:60]}")
    if person not in ("world", None):
        raise InvalidArgument(f"person: expected 'world' or None, got {str(person)[:60]!r}")
    if not isinstance(max_s, int | float) or isinstance(max_s, bool) or not (0 < max_s < math.inf):
        raise InvalidArgument(f"max_s: expected seconds, more than 0, got {str(max_s)[:60]}")
    return tuple(cast("list[How]", hows))


def _listed(value: object) -> list[object]:
    return list(cast("Sequence[object]", value)) if isinstance(value, list | tuple) else [value]


class CrashWalk:
    """A walk over the boundaries of an agent."""

    def __init__(self, plan: LifePlan, world: World | None, hows: tuple[How, ...]) -> None:
        self.plan = plan
        self.world = world
        self.hows = hows
        self.asked = 0
        self.failures = list[CrashFailure]()
        self._names = list[str]()
        self._stories = 0
        self._lives = 0

    def walk(self, at: At | None, *, pairs: bool) -> tuple[int, tuple[CrashFailure, ...], tuple[str, ...], int]:
        """Return how many boundaries there are, what fails, what isn't compared, and how much was asked."""
        first = self._clean()
        second = self._run("kill", ())
        clean, boundaries = facts(first), len(first.points)
        self._names = [name for names in names_of(first) for name in names]
        loose = unsteady(clean, facts(second), (boundaries, len(second.points)))
        for each in (first, second):
            self._fail(0, "", each, list(without_crash(each, person=self.plan.person))[:1])
            if self.failures:
                return boundaries, tuple(self.failures), loose.told, self.asked
        if isinstance(at, int) and at > boundaries:
            raise InvalidArgument(f"at: there are {boundaries} boundaries, from 1 to {boundaries}; got {at}")
        if isinstance(at, tuple) and at[0] > boundaries:
            raise InvalidArgument(f"at: there are {boundaries} boundaries, from 1 to {boundaries}; got {at[0]} first")
        self.plan = replace(self.plan, results=clean.results)
        self._lives = len(first.lives)
        for place in range(1, boundaries + 1) if at is None else [at]:
            for how in self.hows:
                crashed = self._crash(place, how, clean, loose)
                if isinstance(at, tuple) and not sum(each.struck for each in crashed.lives) == 2:  # noqa: PLR2004 - a pair
                    raise InvalidArgument(f"at: fewer than {at[1]} boundaries come after boundary {at[0]}")
                if pairs and not isinstance(place, tuple):
                    for later in self._later(crashed):
                        self._crash((place, later), how, clean, loose)
        return boundaries, tuple(self.failures), loose.told, self.asked

    def _later(self, crashed: CrashStory) -> Iterator[int]:
        """Yield the boundaries of a recovery, from 1."""
        struck = next((at for at, life in enumerate(crashed.lives) if life.struck), len(crashed.lives))
        yield from range(1, sum(len(life.points) for life in crashed.lives[struck + 1 :]) + 1)

    def _clean(self) -> CrashStory:
        """Return a run without a crash; of a function that returns a coroutine, as of a coroutine function."""
        first = self._run("kill", ())
        if not first.end.coroutine:
            return first
        self.plan = replace(self.plan, awaited=True)
        return self._run("kill", ())

    def _run(self, how: str, strikes: tuple[int, ...]) -> CrashStory:
        self._stories += 1
        folder = self.plan.folder / f"run-{self._stories}"
        made = story(replace(self.plan, folder=folder, how=how), self.world, strikes, lives=self._lives)
        shutil.rmtree(folder)
        self.asked += made.asked
        return made

    def _crash(self, at: At, how: str, clean: CrashFacts, loose: Unsteady) -> CrashStory:
        crashed = self._run(how, at if isinstance(at, tuple) else (at,))
        self._fail(at, how, crashed, list(judged(crashed, clean, loose)))
        return crashed

    def _fail(self, at: At, how: str, crashed: CrashStory, verdicts: list[CrashVerdict]) -> None:
        given = [f", at={at}"] if at else []
        if how and self.hows != ("kill",):
            given.append(f", how={how!r}")
        call = f"crash_points(…{''.join(given)})"
        if verdicts:
            told = told_of(crashed, how, self._names)
            self.failures += [failure(at, how, told, each, call) for each in verdicts]
