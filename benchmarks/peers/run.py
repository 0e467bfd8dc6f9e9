"""A step of one agent in five systems; prints a table, writes `peers-report.json`, and draws the chart of the docs.

Each system runs in a process of its own, on a memory file system and on the real disk. The fsyncs of a step are counted
by strace, where there is one. On the memory file system an fsync costs nothing, so that 400 microseconds for each are
added: what a server's flash disk takes (`benchmarks/disks.py` does the same for runjournal alone).

A run of 2,000 steps is measured once and on the memory file system alone: one of the systems leaves gigabytes.

python benchmarks/peers/run.py [--steps 100,400,2000] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import chart
import page
from systems import SYSTEMS, Peer

FSYNC_US = 400
STEPS = (100, 400, 2_000)
MEMORY = Path("/dev/shm")
MEMORY_OR_NONE = MEMORY if MEMORY.is_dir() else None
COUNTED = (20, 70)
PACKAGES = ("runjournal", "dbos", "langgraph", "langgraph-checkpoint-sqlite", "eventsourcing", "openai-agents", "apsw")
PROGRAM = Path(__file__).parent / "systems.py"
REPORT = Path("peers-report.json")
CHART = Path("docs/explanation/peers.svg")
PAGE = Path("docs/explanation/peers.md")
LONG = 1_000
"""Runs of more steps are measured once, and not on the real disk."""
GOALS = {"dbos 100": 3.0, "langgraph 100": 2.0, "langgraph 2,000": 15.0}


def run(name: str, steps: int, beneath: Path | None, *before: str) -> dict[str, float]:
    """One system, in a new folder: {wall_s, cpu_s, bytes}."""
    folder = tempfile.mkdtemp(dir=beneath)
    try:
        command = [*before, sys.executable, str(PROGRAM), name, str(steps), folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
        if done.returncode:
            raise SystemExit(f"{name}, {steps} steps:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder)


def _environment() -> dict[str, str]:
    return os.environ | {"DBOS__CLOUD": "", "OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false"}


def fsyncs_per_step(name: str) -> float | None:
    """How often a step waits for the disk, counted between a short run and a longer one; None without strace."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    found: list[int] = []
    for steps in COUNTED:
        with tempfile.NamedTemporaryFile("r") as calls:
            run(name, steps, MEMORY_OR_NONE, strace, "-f", "-e", "trace=fsync,fdatasync", "-o", calls.name)
            found.append(sum("sync(" in line for line in calls))
    return round((found[1] - found[0]) / (COUNTED[1] - COUNTED[0]), 2)


def rows(name: str, peer: Peer, steps: tuple[int, ...], repeats: int) -> list[dict[str, Any]]:
    """The rows of a system: for each number of steps one a disk."""
    syncs, found = fsyncs_per_step(name), list[dict[str, Any]]()
    for count in steps:
        for disk, beneath in (("memory", MEMORY_OR_NONE), ("real", None)):
            if count > LONG and disk == "real":
                continue
            several = [run(name, count, beneath) for _ in range(1 if count > LONG else repeats)]
            took_us, cpu_us = (
                1e6 * statistics.median(each[clock] for each in several) / count for clock in ("wall_s", "cpu_s")
            )
            if disk == "memory":
                took_us += FSYNC_US * (syncs or 0)
            found.append({
                "system": name,
                "called": peer.system,
                "store": peer.store,
                "disk": f"memory + {FSYNC_US} us an fsync" if disk == "memory" else "real",
                "steps": count,
                "durability": peer.durability,
                "step_us": round(took_us, 1),
                "step_cpu_us": round(cpu_us, 1),
                "bytes_per_step": round(several[-1]["bytes"] / count),
                "fsyncs_per_step": syncs,
            })  # fmt: skip
            line = "{called:<34} {disk:<24} {steps:>6} {step_us:>12} us {bytes_per_step:>9} B {fsyncs_per_step}\n"
            sys.stdout.write(line.format(**found[-1]))
            sys.stdout.flush()
    return found


def ratios(found: list[dict[str, Any]]) -> dict[str, float]:
    """Each system's step / ours, on the emulated disk, by system and number of steps."""
    took = {(row["system"], row["steps"]): row["step_us"] for row in found if row["disk"] != "real"}
    return {
        f"{system} {steps:,}": round(us / took["runjournal", steps], 2)
        for (system, steps), us in took.items()
        if not system.startswith("runjournal")
    }


def main() -> None:
    """Measure, print, write, draw."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--steps", default=",".join(map(str, STEPS)))
    given.add_argument("--repeats", type=int, default=3)
    asked = given.parse_args()
    steps = tuple(int(each) for each in asked.steps.split(","))
    found = [row for name, peer in SYSTEMS.items() for row in rows(name, peer, steps, asked.repeats)]
    report = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in PACKAGES},
        "fsync_us": FSYNC_US,
        "ratios": ratios(found),
        "rows": found,
    }
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    for name, ratio in report["ratios"].items():
        goal = GOALS.get(name)
        met = "" if goal is None else f"  goal >= {goal:g}  " + ("met" if ratio >= goal else "MISSED")
        sys.stdout.write(f"{name:<24} {ratio:>8} times a step of runjournal{met}\n")
    chart.draw(found, CHART)
    page.write(report, PAGE)


if __name__ == "__main__":
    main()
