"""`Journal.append` of one 300-byte event, durable, beside a bare INSERT of the same row that commits by itself.

The two take turns operation by operation, each on a file of its own whose WAL is past its first checkpoint, so that
neither pays for a WAL that grows. The table is the store's own: made by the store, its triggers and indexes included.
`disks.py` says which disk.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

import apsw
from measure import Pairs, spread, timed

from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log import owner

WARM_UP = 1_500
GROUP = 100
WAL_FRAME_HEADER_BYTES = 24


def claimed(journal: Journal, run_id: str | None = None) -> str:
    """A run that this process owns, with epoch 1; return its id, one that the journal makes unless it is said."""
    run_id = run_id or journal.new_run_id()
    me = owner.here()
    claim = e.RunClaimed(journal.by, 1, 3600.0, me.host, me.boot_id, me.pid_ns, me.pid, me.started)
    journal.append(run_id, [e.RunQueued(kind="bench", input=None), claim], expect=0)
    return run_id


def event() -> e.CostRecorded:
    """A durable event whose data has 300 bytes."""
    return e.CostRecorded(amount="0.0125", currency="USD", source="x" * 244)


class Bare:
    """The last row of a run, again and again, into the same table by apsw alone."""

    def __init__(self, path: Path, journal: Journal, run_id: str) -> None:
        *_, (_, _, self.type, self.body, self.hash) = journal.store.read_raw(run_id)
        with Journal.open(path) as made:  # the store's own table, with its triggers
            claimed(made, run_id)
        self.connection = apsw.Connection(str(path))
        for pragma in ("journal_mode = WAL", "synchronous = FULL", f"journal_size_limit = {64 * 1024 * 1024}"):
            self.connection.execute(f"PRAGMA {pragma}").fetchall()
        self.seq = 2

    def insert(self) -> None:
        """One durable row."""
        self.seq += 1
        self.connection.execute(
            "INSERT INTO events (run, seq, type, hash, body) VALUES (1, ?, ?, ?, ?)",
            (self.seq, self.type, self.hash, self.body),
        )


def measure(folder: Path, pairs: int = 15, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Ours / bare, the median of each group of operations: {median, low, high}."""
    with Journal.open(folder / "append-ours.db") as journal:
        run_id = claimed(journal)
        journal.append(run_id, [event()], expect=2, epoch=1)
        bare = Bare(folder / "append-bare.db", journal, run_id)
        seq = 3

        def ours() -> None:
            nonlocal seq
            journal.append(run_id, [event()], expect=seq, epoch=1)
            seq += 1

        return grouped(ours, bare.insert, pairs, clock)


def wal_frames(folder: Path, appends: int = 200) -> float:
    """Pages that one append writes to the WAL, on average, before its first checkpoint."""
    path = folder / "frames.db"
    with Journal.open(path) as journal:
        run_id = claimed(journal)
        journal.append(run_id, [event()], expect=2, epoch=1)
        page_bytes = journal.store.info()["page_size"]
        wal = Path(f"{path}-wal")
        before = wal.stat().st_size
        for seq in range(3, 3 + appends):
            journal.append(run_id, [event()], expect=seq, epoch=1)
        return round((wal.stat().st_size - before) / (page_bytes + WAL_FRAME_HEADER_BYTES) / appends, 2)


def grouped(
    first: Callable[[], None],
    second: Callable[[], None],
    groups: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Single operations in turn; each group gives the ratio of its two medians, by this clock."""
    for _ in range(WARM_UP):
        first()
        second()
    ratios: list[float] = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(groups):
            pairs = Pairs([], [])
            for _ in range(GROUP):
                pairs.first.append(timed(first, clock))
                pairs.second.append(timed(second, clock))
            ratios.append(sorted(pairs.first)[GROUP // 2] / sorted(pairs.second)[GROUP // 2])
    finally:
        gc.enable()
    return spread(ratios)
