"""What `crash_points` found, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from runjournal.log.limits import crash_around_points, crash_told_chars_max

from .crash_judges import CrashVerdict
from .crash_lives import CrashStory

At = int | tuple[int, int]
_PAST: Final = {"kill": "killed", "interrupt": "interrupted", "": "not crashed"}
_STRUCK: Final = {"kill": "  <- killed here", "interrupt": "  <- interrupted here", "": ""}


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
        around = ["", *(f"  {each}" for each in self.around)] if self.around else []
        return "\n".join([self.brief, *around, "", "likely:", *causes, "", f"again: {self.again}"])

    @property
    def brief(self) -> str:
        """Return where and what it is, in a line."""
        where = f"at {self.at}, {_PAST[self.how]}, {self.point}" if self.at else "without a crash"
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
    """Return all failures, those that are alike in a line, and the first in full."""
    places = len({each.at for each in report.failures})
    how_many = (
        f"{places} of {report.boundaries} boundaries fail" if report.failures[0].at else "it fails without a crash"
    )
    lines = [f"crash_points: {how_many}", "", str(report.failures[0])]
    if report.unstable:
        lines += [
            "",
            "not compared, since two runs without a crash differ there:",
            *(f"  {e}" for e in report.unstable),
        ]
    alike: dict[tuple[str, tuple[str, ...]], list[CrashFailure]] = {}
    for each in report.failures[1:]:
        alike.setdefault((each.rule, each.causes), []).append(each)
    if alike:
        lines += ["", "also:", *(f"  {_places(found)}" for found in alike.values())]
    return "\n".join(lines)


def _places(found: Sequence[CrashFailure]) -> str:
    """Return failures that are alike in a line: where they are, and what the first of them says."""
    hows = [
        f"{_PAST[how]} at {', '.join(str(each.at) for each in found if each.how == how)}"
        for how in dict.fromkeys(each.how for each in found)
    ]
    return f"{found[0].rule}: {'; '.join(hows)}: {found[0].what}"


def failure(at: At, how: str, told: CrashTold, verdict: CrashVerdict, call: str) -> CrashFailure:
    """Return what a judge says of a run as a failure."""
    what = verdict.what if len(verdict.what) <= crash_told_chars_max else f"{verdict.what[:crash_told_chars_max]}…"
    return CrashFailure(at, how, told.point, verdict.rule, what, told.around, verdict.causes, call)


def names_of(story: CrashStory) -> list[list[str]]:
    """Return the names of the points that each life has passed; a commit is named by the events that it committed."""
    types, before, found = {seq: kind for seq, kind, _ in story.end.events}, 0, list[list[str]]()
    for life in story.lives:
        names = list[str]()
        for place, each in enumerate(life.points):
            what = each.what
            if each.point.startswith("commit."):
                after = next((other.last for other in life.points[place:] if other.point == "commit.after"), 0)
                what = ", ".join(types[seq] for seq in range(before + 1, after + 1) if seq in types)
                before = max(before, each.last)
            names.append(f"{each.point} {what}".strip())
        found.append(names)
    return found


class CrashTold(NamedTuple):
    """Where a run was crashed, and what it passed around that."""

    point: str
    around: tuple[str, ...]


def told_of(story: CrashStory, how: str, clean: Sequence[str]) -> CrashTold:
    """Return where a run was crashed, by the names that its boundaries have without a crash, and what is around it.

    Behind a crash the points are counted anew.
    """
    lines, count, struck = list[str](), 0, ""
    strikes = [life.strike for life in story.lives]
    if not any(strikes):
        return CrashTold("", ())
    for place, (life, own) in enumerate(zip(story.lives, names_of(story), strict=True)):
        at, names = life.strike, own
        if not struck:  # what follows may be in no log any more
            names = [*clean[count : count + (at or len(own))], *own[at or len(own) :]]
        shown = list(range(at or len(names)))[-1 - crash_around_points :]
        if not at:
            shown = [each for each in range(len(names)) if not names[each].startswith("commit.before")]
            shown = shown[: 2 * crash_around_points]
        if not at and not struck and any(strikes[place + 1 :]):
            count += len(names)
            continue
        if place and lines:
            lines.append("in the next process:")
        for number in shown:
            here = number + 1 == at
            lines.append(f"{'>' if here else ' '} {count + number + 1:3} {names[number]}{_STRUCK[how] if here else ''}")
        if not at and shown and shown[-1] + 1 < len(names):
            lines.append(f"      and {len(names) - shown[-1] - 1} more")
        if life.stood:
            lines += ["      it stood at", *(f"        {each}" for each in life.stood)]
        if not at and life.raised:
            lines.append(f"      it ended with {life.raised[0]}")
        struck = (f"{struck}, then " if struck and at else struck) + (names[at - 1] if at else "")
        count = 0 if at else count + len(names)
    return CrashTold(struck, tuple(lines))
