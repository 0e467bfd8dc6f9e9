"""The outside check of L1 and L2: strace kills a writer at its k-th system call, or has that call fail.

Nothing of the product knows of it. Without strace it is skipped, and says so.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from . import workloads
from .kills import judge_here
from .report import Entry, emptied, folder, timed

CALLS: Final = ("pwrite64", "fdatasync", "fsync", "ftruncate", "unlink")
ERRORS: Final = ("EIO", "ENOSPC", "EDQUOT", "EINTR")


def tell(**what: Any) -> None:
    """Tell the parent, at once."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def straced(home: Path, life: str, *inject: str) -> tuple[list[dict[str, Any]], int, str]:
    """Have a writer live under strace; return what it told, how it ended, and which calls were made."""
    calls = home / "calls"
    command = [
        "strace", "-f", "-qq", "-o", str(calls), "-e", f"trace={','.join(CALLS)}",
        *(word for each in inject for word in ("-e", f"inject={each}")),
        sys.executable, "-m", "layers.traced", str(home / "runs.db"), life,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent)
    lines = done.stdout.split("\n")[:-1]
    return [json.loads(line) for line in lines], done.returncode, calls.read_text()


def missing() -> str:
    """Return why it can't be done here; "" if it can."""
    if shutil.which("strace") is None:
        return "it needs strace"
    done = subprocess.run(["strace", "-qq", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "strace may not trace here"


def traced(seed: str, n: int, *, how: str) -> Entry:
    """Strike n writers at a random system call; `how`: kill them there ("kill"), or have the call fail ("error")."""
    layer, what = ("L1", "SIGKILL") if how == "kill" else ("L2", ", ".join(ERRORS))
    entry = Entry(layer, f"{what} at the k-th system call, by strace", seed)
    if why := missing():
        entry.skipped = f"{n} calls: {why}"
        return entry
    with timed(entry), folder() as home:
        _, _, calls = straced(emptied(home / "c"), "count")
        counts = {call: len(re.findall(rf"\b{call}\(", calls)) for call in CALLS}
        chosen = [call for call, count in counts.items() if count]
        for number in range(n):
            rng = random.Random(f"{seed} {how} {number}")
            call = rng.choice(chosen)
            at = rng.randint(1, counts[call])
            with_what = "signal=KILL" if how == "kill" else f"error={rng.choice(ERRORS)}"
            place = emptied(home / "w")
            told, ended, _ = straced(place, f"{seed}.{number}", f"{call}:{with_what}:when={at}")
            fell = how == "error" and ended
            entry.count(f"{call}, {with_what}")
            wrong = [f"the process ended with {ended}"] if fell else []
            entry.add(f"{call} {at}, {with_what}", wrong + judge_here(place / "runs.db", told))
    return entry


def kill(seed: str, n: int) -> Entry:
    """Kill n writers at a random system call."""
    return traced(seed, n, how="kill")


def error(seed: str, n: int) -> Entry:
    """Have a random system call of n writers fail."""
    return traced(seed, n, how="error")


if __name__ == "__main__":
    workloads.appends(Path(sys.argv[1]), sys.argv[2], tell, count=20)
