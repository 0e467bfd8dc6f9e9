"""What a layer found, one entry of the report, and the folder that it works in."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .lives import live

FIRST = 3
"""How many of its violations an entry holds."""


@dataclass
class Entry:
    """One layer: what was done how often, from which seed, and what was wrong.

    `counts` is what else was counted. A layer that can't run here says why in `skipped`.
    """

    layer: str
    what: str
    seed: str
    n: int = 0
    violations: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    first: list[str] = field(default_factory=list)
    skipped: str = ""

    def count(self, name: str, by: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + by

    def add(self, case: str, wrong: list[str]) -> None:
        """Count one case."""
        self.n += 1
        if wrong:
            self.violations += 1
            if len(self.first) < FIRST:
                self.first.append(f"{case}: {'; '.join(wrong[:3])}"[:600])

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value not in ("", [], {})} | {
            "n": self.n, "violations": self.violations, "seconds": round(self.seconds, 1),
        }  # fmt: skip


@contextmanager
def timed(entry: Entry) -> Generator[Entry]:
    """Have an entry know how long it took."""
    began = time.monotonic()
    try:
        yield entry
    finally:
        entry.seconds += time.monotonic() - began


MEMORY = Path("/dev/shm")


@contextmanager
def folder() -> Generator[Path]:
    """Make an empty folder, in memory if there is such a file system, and take it away in the end."""
    made = Path(tempfile.mkdtemp(prefix="layers-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def emptied(path: Path) -> Path:
    """Return a folder that is there and empty."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def apart(run: Callable[[], list[Entry]]) -> list[Entry]:
    """Run a layer in a process of its own: what it breaks on purpose stays broken there."""
    life = live(lambda tell: tell(entries=[asdict(each) for each in run()]))
    if life.ended:
        raise RuntimeError(f"the layer fell with {life.ended}: {life.told}")
    return [Entry(**each) for each in life.told[-1]["entries"]]
