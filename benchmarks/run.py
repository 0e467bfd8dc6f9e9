"""All figures, measured side by side in one run; prints them and writes `bench-report.json`.

python benchmarks/run.py [--quick]
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import agents
import append
import apsw
import disks
import groups
import growth
import listing
import replay
import sizes

SERVER_FSYNC_S = 400e-6
GOALS = {
    "append_store_ratio": ("<=", 1.25),
    "append_run_ratio": ("<=", 1.4),
    "async_append_ratio": ("<=", 1.7),
    "append_cpu_ratio": ("<=", 3.0),
    "wal_frames_per_append": ("<=", 2.5),
    "step_fsyncs.idempotent": ("<=", 5),
    "step_fsyncs.keyed": ("<=", 7),
    "step_fsyncs.unsafe": ("<=", 7),
    "replay_ratio": (">=", 8.0),
    "recover_ratio": ("<=", 1.3),
    "list_growth": ("<=", 2.0),
    "audit_ratio": ("<=", 2.0),
    "run_model_growth": ("<=", 1.5),
    "replayed_calls_growth": ("<=", 1.3),
    "bytes_ratio": ("<=", 1.85),
    "audit_peak_mb": ("<=", 150),
    "export_peak_mb": ("<=", 150),
    "import_peak_mb": ("<=", 150),
    "import_ratio": ("<=", 6.0),
    "cost_by_day_s": ("<=", 1.0),
    "cost_peak_mb": ("<=", 100),
    "help_ratio": ("<=", 1.6),
    "step_commits": ("<=", 6),
    "group_commit_ratio": (">=", 6.0),
    "appends_per_commit": (">=", 20),
    "group_cpu_ratio": ("<=", 1.3),
    "loop_lag_p99_ms": ("<=", 50),
    "append_group_vs_bare_batch": (">=", 0.2),
    "store_busy_count": ("<=", 0),
    "worst_wait_s": ("<=", 1.0),
    "most_least_appends": ("<=", 3.0),
}


def figures(folder: Path, pairs: int, *, quick: bool) -> dict[str, Any]:
    """Every figure, by name."""
    found: dict[str, Any] = {"append_disk_ratio": append.measure(folder, pairs)}
    with disks.emulated(SERVER_FSYNC_S) as memory:
        found["append_store_ratio"] = append.measure(memory, pairs)
        found["append_run_ratio"] = agents.append_run_ratio(memory, pairs)
        found["async_append_ratio"] = agents.async_append_ratio(memory, pairs)
    with disks.emulated(0.0) as memory:
        found["append_cpu_ratio"] = append.measure(memory, pairs, time.process_time)
    found["wal_frames_per_append"] = append.wal_frames(folder)
    found |= agents.steps(folder)
    replayed = replay.measure(folder, pairs)
    found["replay_ratio"] = replayed.ratio()
    found["replay_events_per_s"] = round(replay.EVENTS / statistics.median(replayed.second))
    found["recover_ratio"] = sizes.recover(folder, pairs).ratio()
    found["lists"] = listing.list_growth(folder, pairs)
    found["list_growth"] = max(each["median"] for each in found["lists"].values())
    found["audit_ratio"] = listing.audit_ratio(folder, pairs)
    found["run_model_growth"] = growth.run_model_growth(folder, pairs)
    found["replayed_calls_growth"] = growth.replayed_calls_growth()
    found["bytes_ratio"] = sizes.bytes_ratio(folder)
    found["audit_peak_mb"] = sizes.peak_mb(folder / "long.db", "audit", "r")
    found["export_peak_mb"] = sizes.peak_mb(folder / "long.db", "export", "r")
    found["import_peak_mb"] = sizes.peak_mb(folder / "in.db", "import", "claude-code", str(sizes.transcript(folder)))
    found["import_ratio"] = sizes.import_ratio(folder, pairs)
    spent = listing.spent(folder / "spent.db")
    found["cost_by_day_s"] = listing.cost_by_day_s(spent, pairs)
    found["cost_peak_mb"] = sizes.peak_mb(spent, "cost", "--by", "day")
    found["help_ratio"] = sizes.help_ratio(pairs)
    found |= groups.many_agents(quick=quick)
    found["append_group_vs_bare_batch"] = groups.append_group_vs_bare_batch(folder, pairs)
    found |= groups.hot_processes(folder, 8, 10.0 if quick else 60.0)
    return found


def main() -> None:
    """Measure, print, write."""
    pairs = 5 if "--quick" in sys.argv else 15
    with tempfile.TemporaryDirectory() as folder:
        found = figures(Path(folder), pairs, quick="--quick" in sys.argv)
    report = {
        "pairs": pairs,
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "runjournal": version("runjournal"),
        "machine": platform.machine(),
        "figures": found,
        "goals": {name: f"{sign} {goal}" for name, (sign, goal) in GOALS.items()},
    }
    Path("bench-report.json").write_text(json.dumps(report, indent=2) + "\n")
    for name, value in flat(found):
        middle = value["median"] if isinstance(value, dict) else value
        extent = f"  ({value['low']} to {value['high']})" if isinstance(value, dict) else ""
        goal = GOALS.get(name)
        met = (
            ""
            if goal is None
            else ("  goal " + " ".join(map(str, goal)) + ("  met" if _met(middle, goal) else "  MISSED"))
        )
        sys.stdout.write(f"{name:<22} {middle:>10}{extent}{met}\n")


def flat(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each figure with its name, those of a policy each as `name.policy`."""
    for name, value in found.items():
        if isinstance(value, dict) and "median" not in value:
            yield from ((f"{name}.{part}", each) for part, each in value.items())
        else:
            yield name, value


def _met(value: float, goal: tuple[str, float]) -> bool:
    return value <= goal[1] if goal[0] == "<=" else value >= goal[1]


if __name__ == "__main__":
    main()
