"""What `crash_points` found, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from runjournal.log.limits import crash_around_points, crash_told_chars_max

from .crash_judges import CrashVerdict
from .crash_lives import CrashStory, PassedPoint

At = int | tuple[int, int]
_STRUCK: Final = {"kill": "killed here", "interrupt": "interrupted here"}


@dataclass(frozen=True)
class CrashFailure:
    """What goes wrong if the agent crashes at one boundary. `str(failure)` tells all of it."""

    at: At
    """The boundary, from 1; two, if it was crashed again while it recovered; 0 is a run without a crash."""
    how: str
    """How it was crashed: kill, interrupt, or "" if it wasn't."""
    point: str
    """The name of the boundary, and what it is about."""
    rule: str
    """Which judge has found it: twice, lost, differs, stuck, paid_twice, invalid."""
    what: str
    """What is wrong, in a sentence."""
    around: tuple[str, ...]
    """What was passed before the crash and behind it, a line each."""
    causes: tuple[str, ...]
    """Likely causes, in plain words."""
    again: str
    """The call that repeats it."""

    def __str__(self) -> str:
        causes = [f"  - {each}" for each in self.causes]
        return "\n".join(
            [self.brief, "", *(f"  {each}" for each in self.around), "", "likely:", *causes, "", f"again: {self.again}"]
        )

    @property
    def brief(self) -> str:
        """Return where and what it is, in a line."""
        how = {"kill": "killed", "interrupt": "interrupted"}.get(self.how, "not crashed")
        where = f"at {self.at}, {how}, {self.point}" if self.at else "without a crash"
        return f"{self.rule}: {where}: {self.what}"


class CrashReport(NamedTuple):
    """What a walk over all boundaries has found.

    `boundaries` is how many a run without a crash has, `failures` what went wrong, in the order of the boundaries,
    `unstable` in what two runs without a crash differ, which isn't compared; `asked` how many questions nobody but the
    World could answer, and `seconds` how long it took.
    """

    boundaries: int
    failures: tuple[CrashFailure, ...]
    unstable: tuple[str, ...]
    asked: int
    seconds: float


def text_of(report: CrashReport) -> str:
    """Return all failures in a line each, the first in full."""
    places = len({each.at for each in report.failures})
    lines = [f"crash_points: {places} of {report.boundaries} boundaries fail", "", str(report.failures[0])]
    if report.unstable:
        lines += [
            "",
            "not compared, since two runs without a crash differ there:",
            *(f"  {e}" for e in report.unstable),
        ]
    if report.failures[1:]:
        lines += ["", "also:", *(f"  {each.brief}" for each in report.failures[1:])]
    return "\n".join(lines)


def failure(at: At, how: str, story: CrashStory, verdict: CrashVerdict, call: str) -> CrashFailure:
    """Return what a judge says of a run as a failure."""
    struck = next((each for life in story.lives for each in named(life.points, story) if each[1].struck), None)
    point = "" if struck is None else struck[0]
    return CrashFailure(at, how, point, verdict.rule, _cut(verdict.what), around(story, how), verdict.causes, call)


def _cut(text: str) -> str:
    return text if len(text) <= crash_told_chars_max else f"{text[:crash_told_chars_max]}…"


def named(points: Sequence[PassedPoint], story: CrashStory) -> list[tuple[str, PassedPoint]]:
    """Return points with their names; a commit is named by the events that it committed."""
    types = {seq: kind for seq, kind, _ in story.end.events}
    before = max((each.last for each in _before(points, story)), default=0)
    found = list[tuple[str, PassedPoint]]()
    for place, each in enumerate(points):
        what = each.what
        if each.point.startswith("commit."):
            after = next((other.last for other in points[place:] if other.point == "commit.after"), 0)
            after = after or (max(types, default=0) if each.point == "commit.after" else 0)
            what = ", ".join(types[seq] for seq in range(before + 1, after + 1) if seq in types)
            if each.point == "commit.after":
                before = max(before, each.last)
        found.append((f"{each.point} {what}".strip(), each))
    return found


def _before(points: Sequence[PassedPoint], story: CrashStory) -> list[PassedPoint]:
    """Return what was passed in the lives before these points."""
    found = list[PassedPoint]()
    for life in story.lives:
        if life.points is points:
            break
        found += life.points
    return found


def around(story: CrashStory, how: str) -> tuple[str, ...]:
    """Return the points around each crash, a line each, with the numbers of the boundaries."""
    lines, count = list[str](), 0
    for place, life in enumerate(story.lives):
        points = named(life.points, story)
        at = next((at for at, each in enumerate(life.points) if each.struck), None)
        first, last = 0, min(len(points), crash_around_points)
        if at is not None:
            first, last = max(0, at - crash_around_points), at + 1
        if at is None and not any(each.struck for each in story.points):
            break
        if place:
            lines.append("in the next process:")
        for number in range(first, last):
            sign = ">" if number == at else " "
            note = f"  <- {_STRUCK[how]}" if number == at else ""
            lines.append(f"{sign} {count + number + 1:3} {points[number][0]}{note}")
        if last < len(points) and at is None:
            lines.append(f"      and {len(points) - last} more")
        if life.raised and at is None:
            lines.append(f"      it ended with {_cut(': '.join(life.raised))}")
        if at is not None or place:
            count = 0 if at is not None else count + len(points)
        else:
            count += len(points)
    return tuple(lines)
