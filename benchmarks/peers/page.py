"""The page of the docs on what a step costs here and elsewhere, from a peers-report.

python benchmarks/peers/page.py peers-report.json docs/explanation/peers.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

BEGIN = """<!-- Made by `make bench-peers`; don't edit. -->

# What a step costs, here and elsewhere

One agent, written for each system as its documentation has it: a step makes one model call and two tool calls, and adds
one message of 260 bytes. Models and tools do nothing, so that what is left is the cost of keeping the record. The
systems promise different things: what each has on the disk, and when, stands in the table. In LangGraph each tool call
is a task of its own, so that one that has ended isn't made again; one node for both would be cheaper, and would make
both again.

```text
make bench-peers
```

That installs the others in an environment of their own, `.venv-peers`, measures, and writes `peers-report.json`, this
page and the chart. `ARGS="--steps 100 --repeats 1"` is the short way.

![Milliseconds a step, by the length of the run](peers.svg)

"""


END = """
A step counts as its CPU time, on a memory file system, and {fsync_us} microseconds for each of its fsyncs: what a
server's flash disk takes. The fsyncs were counted by strace. On the disk of the machine that made this page:

"""


def write(report: dict[str, Any], path: Path) -> None:
    """Write the page of this report."""
    ratios, rows = report["ratios"], report["rows"]
    text = BEGIN + _table(
        ("system", "steps", "a step", "of ours", "CPU", "bytes a step", "fsyncs", "what is on the disk"),
        [
            (*_step(row), _times(ratios.get(f"{row['system']} {row['steps']:,}")),
             f"{row['step_cpu_us'] / 1000:.2f} ms", f"{row['bytes_per_step']:,}",
             _number(row["fsyncs_per_step"]), row["durability"])
            for row in rows if row["disk"] != "real"
        ],
    )  # fmt: skip
    text += END.format(**report)
    text += _table(("system", "steps", "a step"), [_step(row) for row in rows if row["disk"] == "real"])
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    path.write_text(f"{text}\nPython {report['python']} on {report['machine']}; {versions}.\n", encoding="utf-8")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---",) * len(head), *rows))


def _step(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["called"], f"{row['steps']:,}", f"{row['step_us'] / 1000:.2f} ms"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:g} times"


def _number(value: float | None) -> str:
    return "not counted" if value is None else f"{value:g}"


if __name__ == "__main__":
    write(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
