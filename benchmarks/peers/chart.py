"""The chart of a peers-report: what a step takes, by the length of the run, one line a system.

python benchmarks/peers/chart.py peers-report.json docs/explanation/peers.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the chart of these rows, the same bytes for the same rows."""
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "runjournal"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for system in dict.fromkeys(row["system"] for row in rows):
        points = [row for row in rows if row["system"] == system and row["disk"] != "real"]
        label = f"{points[0]['called']} ({points[0]['fsyncs_per_step']} fsyncs a step)"
        width = 2.5 if system == "runjournal" else 1.5
        axes.plot(
            [row["steps"] for row in points], [row["step_us"] / 1000 for row in points], "o-", label=label, lw=width
        )
    steps = sorted({row["steps"] for row in rows})
    axes.set(xscale="log", yscale="log", xlabel="steps of the run", ylabel="milliseconds a step")
    axes.set_xticks(steps, [f"{each:,}" for each in steps])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    low, high = axes.get_ylim()
    marks = [mark for mark in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if low <= mark <= high]
    axes.set_yticks(marks, [f"{mark:g}" for mark in marks])
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    figure.savefig(path, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text())["rows"], Path(sys.argv[2]))
