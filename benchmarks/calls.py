"""How much Python there is in one verb: calls of the package's own functions, its files, and lock takings.

python benchmarks/calls.py [--by function]

Counted on a SQLite store, after a warm-up, in the thread that asks. A resumed generator counts as a call: that is what
the interpreter does. `--by function` says where they went: what was called, most first, verb by verb.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple


class Counted:
    """A lock that counts how often it is taken."""

    taken = 0

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def acquire(self, *args: Any, **how: Any) -> bool:
        """Take it."""
        Counted.taken += 1
        return bool(self._lock.acquire(*args, **how))

    def __enter__(self) -> bool:
        Counted.taken += 1
        return bool(self._lock.__enter__())

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(*error)


class Found(NamedTuple):
    """What one verb took."""

    functions: Counter[str]
    locks: int

    @property
    def calls(self) -> int:
        """Calls of the package's own functions."""
        return self.functions.total()

    @property
    def files(self) -> int:
        """Files of the package that were touched."""
        return len({name.split(":")[0] for name in self.functions})


def counted(package: str, verb: Callable[[], object]) -> Found:
    """Call a verb and count."""
    functions: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            functions[f"{code.co_filename.removeprefix(package)}:{code.co_qualname}"] += 1

    before = Counted.taken
    sys.setprofile(profile)
    try:
        verb()
    finally:
        sys.setprofile(None)
    return Found(functions, Counted.taken - before)


def measure() -> dict[str, Found]:
    """Each verb, by name. The package is imported here: its locks are made with those that count."""
    lock, rlock = threading.Lock, threading.RLock
    threading.Lock, threading.RLock = lambda: Counted(lock()), lambda: Counted(rlock())  # type: ignore[assignment,misc]
    try:
        import runjournal
        from runjournal import tool
        from runjournal.journal import Journal
        from runjournal.log import events as e
        from runjournal.run import Run

        package = f"{Path(runjournal.__file__).parent}/"

        @tool
        def pay(n: int) -> dict[str, int]:
            return {"paid": n}

        found: dict[str, Found] = {}

        def agent(run: Run) -> None:
            with run.step("work"):
                for n in range(3):
                    run.message("user", "warm")
                    run.call(pay, n=n)
                found["Run.message"] = counted(package, lambda: run.message("user", "hello"))
                found["unsafe call"] = counted(package, lambda: run.call(pay, n=9))

        with tempfile.TemporaryDirectory() as folder, Journal.open(f"{folder}/calls.db") as journal:
            journal.append("a", [e.RunQueued(kind="x", input=None)], expect=0)
            for _ in range(3):
                journal.append("a", [e.NoteAdded("warm")])
            found["Journal.append"] = counted(package, lambda: journal.append("a", [e.NoteAdded("hello")]))
            journal.run(agent, run_id="r")
        return found
    finally:
        threading.Lock, threading.RLock = lock, rlock  # type: ignore[assignment,misc]


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description="Count the calls of the package's own functions, verb by verb.")
    parser.add_argument("--by", choices=["verb", "function"], default="verb", help="`function` lists what was called")
    by = parser.parse_args().by
    found = measure()
    print(f"{'verb':<16}{'calls':>8}{'files':>8}{'locks':>8}")
    for name, each in found.items():
        print(f"{name:<16}{each.calls:>8}{each.files:>8}{each.locks:>8}")
    if by == "function":
        for name, each in found.items():
            print(f"\n{name}: {each.calls}")
            for function, count in each.functions.most_common():
                print(f"{count:>6}  {function}")


if __name__ == "__main__":
    main()
