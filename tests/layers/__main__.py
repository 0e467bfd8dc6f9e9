"""Run the crash layers, and write what they found.

    cd tests && python -m layers --report ../docs/crash-report.json     # all of them, about an hour on two cores
    cd tests && python -m layers --only L4 --scale 0.01 --seed 8

With `--only` a report keeps what it has of the other layers, so that they can be run one after another.

The exit code is 1 if a promise was broken, or if a control, a promise that is broken on purpose, wasn't noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from . import again, errors, interrupts, kills, power, races, states, tampering, traced
from .report import FIRST, Entry, apart

Layer = Callable[..., "Entry | list[Entry]"]
SHARDS: Final = 8
"""Into so many parts a large layer is cut, so that the processors are busy to the end."""


class Part(NamedTuple):
    """A part of a layer, by what it is called with."""

    layer: str
    run: Layer
    args: tuple[Any, ...]
    harm: str = ""

    def found(self) -> list[Entry]:
        """Run it, one that harms the product in a process of its own."""
        return (
            apart(lambda: listed(self.run(*self.args, harm=self.harm))) if self.harm else listed(self.run(*self.args))
        )


def listed(made: Entry | list[Entry]) -> list[Entry]:
    return [made] if isinstance(made, Entry) else made


def parts(seed: str, scale: float) -> list[Part]:
    """Return all that there is to run; at scale 1 it is what the guarantees cite."""

    def of(n: float) -> int:
        return max(1, round(n * scale))

    def sharded(layer: str, run: Layer, n: int) -> list[Part]:
        return [Part(layer, run, (f"{seed}.{shard}", of(n / SHARDS))) for shard in range(SHARDS)]

    every = max(1, round(1 / scale))
    return [
        Part("L3", power.power, (seed, of(2000))),
        *sharded("L4", states.states, 500_000),
        *sharded("L1", kills.kills, 10_000),
        *(Part("L2", errors.errors, (f"{seed}", SHARDS * every, 1 + shard)) for shard in range(SHARDS)),
        *(Part("L1", again.recoveries, (f"{seed}", SHARDS * every, 1 + shard)) for shard in range(SHARDS)),
        Part("L1", traced.kill, (seed, of(600))),
        Part("L2", traced.error, (seed, of(400))),
        *sharded("L7", tampering.tamperings, 1000),
        *sharded("L7", tampering.flips, 100_000),
        Part("L5", races.appends, (seed, of(1000))),
        Part("L5", races.deliveries, (seed, of(1000))),
        Part("L5", races.fences, (seed, of(1000))),
        Part("L5", races.clocks, (seed, of(1000))),
        Part("L5", races.repeats, (seed, of(1000))),
        Part("L5", races.forks, (seed, of(1000))),
        *sharded("L6", interrupts.interrupts, 1000),
    ]


CONTROLS: Final[tuple[tuple[str, Layer, int, str], ...]] = (
    ("L1", kills.kills, 40, "acknowledged before the commit"),
    ("L1", kills.kills, 400, "an effect before its intent"),
    ("L2", errors.errors, 40, "an error of a commit taken for a success"),
    *(
        (layer, run, n, harm)
        for layer, run, n in (("L3", power.power, 40), ("L4", states.states, 2500))
        for harm in (
            "acknowledged before the commit",
            "synchronous=NORMAL for durable events",
            "synchronous=OFF",
            "journal_mode=DELETE",
        )
    ),
    ("L5", races.repeats, 4, "a retry that doesn't compare bytes"),
    ("L5", races.forks, 3, "no guard after a fork"),
    ("L5", races.fences, 30, "no fence"),
    ("L5", races.fences, 60, "a fence outside of the transaction"),
    ("L6", interrupts.interrupts, 60, "an interrupted claim that is kept"),
    ("L7", tampering.tamperings, 2, "no hash compared"),
    ("L7", tampering.tamperings, 2, "a checkpoint that is believed"),
)
"""What each layer has to notice."""


def controls(seed: str) -> list[Part]:
    """Return each promise that is broken on purpose, to be found by the layer that looks after it."""
    return [Part(layer, run, (f"{seed}.control", n), harm) for layer, run, n, harm in CONTROLS]


def merged(entries: list[Entry]) -> list[Entry]:
    """Return the entries of the parts of a layer as one."""
    found: dict[tuple[str, str], Entry] = {}
    for each in entries:
        key = (each.layer, each.what)
        if key not in found:
            found[key] = replace(each, counts=dict(each.counts), first=list(each.first), seed=each.seed.split(".")[0])
            continue
        one = found[key]
        one.n, one.violations, one.seconds = (
            one.n + each.n,
            one.violations + each.violations,
            one.seconds + each.seconds,
        )
        one.first = [*one.first, *each.first][:FIRST]
        for name, count in each.counts.items():
            one.count(name, count)
    return list(found.values())


def commit() -> str:
    """Return which commit this is; `-changed` if the files aren't as it has them, the report apart."""
    here = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/docs/crash-report.json")
    return (here or "unknown") + ("-changed" if changed else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    """Run, print, write, judge."""
    parser = argparse.ArgumentParser(prog="python -m layers", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seed", default="7")
    parser.add_argument("--scale", type=float, default=1.0, help="a part of the full numbers, from 0 to 1")
    parser.add_argument("--only", choices=["L1", "L2", "L3", "L4", "L5", "L6", "L7"])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--report", type=Path, help="write what was found to this file, as JSON")
    given = parser.parse_args(argv)
    if not 0 < given.scale <= 1:
        parser.error(f"--scale: expected more than 0 and at most 1, got {given.scale}")
    began, entries, noticed = time.monotonic(), list[Entry](), list[dict[str, Any]]()
    chosen = [
        each for each in [*parts(given.seed, given.scale), *controls(given.seed)] if given.only in (None, each.layer)
    ]
    with ProcessPoolExecutor(given.jobs) as pool:
        for part, found in zip(chosen, pool.map(Part.found, chosen), strict=True):
            if part.harm:
                noticed.append(control(part, found))
            else:
                entries += found
    entries = merged(entries)
    for entry in entries:
        say(f"{entry.layer}  {entry.n:>7}  {entry.violations:>3} wrong  {entry.seconds:7.1f} s  {entry.what}")
        for each in [*entry.first, *([f"skipped: {entry.skipped}"] if entry.skipped else [])]:
            say(f"    {each}")
    for one in noticed:
        say(f"{one['layer']}  control  {one['verdict']:<8}  {one['harm']}")
    wrong = any(entry.violations for entry in entries) or any(each["verdict"] == "blind" for each in noticed)
    if given.report is not None:
        made = report(given, entries, noticed, time.monotonic() - began)
        text = json.dumps(joined(given.report, made, given.only), indent=1)
        given.report.write_text(text + "\n", encoding="utf-8")
    return int(wrong)


def joined(path: Path, made: dict[str, Any], only: str | None) -> dict[str, Any]:
    """Return a report with what another one has of other layers, if it is of the same commit, seed and scale."""
    if only is None or not path.exists():
        return made
    old = json.loads(path.read_text(encoding="utf-8"))
    if any(old[name] != made[name] for name in ("command", "commit")):
        return made
    for name in ("layers", "controls"):
        made[name] = sorted(
            [*(each for each in old[name] if each["layer"] != only), *made[name]], key=lambda each: each["layer"]
        )
    return made | {"seconds": old["seconds"] + made["seconds"]}


def control(part: Part, found: list[Entry]) -> dict[str, Any]:
    """Return whether a layer has noticed what was broken on purpose."""
    n, violations = sum(each.n for each in found), sum(each.violations for each in found)
    skipped = any(each.skipped for each in found)
    verdict = "skipped" if skipped else "noticed" if violations else "blind"
    return {"layer": part.layer, "harm": part.harm, "n": n, "violations": violations, "verdict": verdict}


def report(
    given: argparse.Namespace, entries: list[Entry], noticed: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    """Return the report: what a stranger needs to do it again, and what was found."""
    return {
        "command": f"make crash-report ARGS='--seed {given.seed} --scale {given.scale:g}'",
        "commit": commit(),
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "cores": given.jobs,
        "seconds": round(seconds),
        "layers": [entry.as_json() for entry in entries],
        "controls": noticed,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
