"""Many agents in one process, and many processes on one file: what sharing commits brings, and what waiting costs.

The fsync is emulated by a sleep, so that the other threads go on meanwhile, as with a disk.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import append
import disks
from agents import counted_commits
from measure import interleaved

from runjournal import tool
from runjournal.async_journal import AsyncJournal
from runjournal.async_run import AsyncRun
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.sqlite import SQLiteStore

RUNS = 256
FSYNC_S = 3e-3
LAG_LOOK_S = 2e-3


@tool(policy="keyed")
async def send(x: int, *, idempotency_key: str = "") -> int:
    """An effect whose start waits for the disk, and its end."""
    return x + bool(idempotency_key)


class Measured(NamedTuple):
    """Events a second, CPU seconds an event, events a durable commit, and how late the loop came, the 99th of 100."""

    events_per_s: float
    cpu_s: float
    per_commit: float
    lag_p99_ms: float


async def _lags(found: list[float]) -> None:
    while True:
        begin = time.perf_counter()
        await asyncio.sleep(LAG_LOOK_S)
        found.append(time.perf_counter() - begin - LAG_LOOK_S)


def agents(folder: Path, runs: int, seconds: float) -> Measured:
    """So many runs at the same time, each in steps of four tool calls; measured for so long, once all have begun."""
    begun, over = asyncio.Semaphore(0), asyncio.Event()

    async def agent(run: AsyncRun) -> None:
        while not over.is_set():
            async with run.step("work", repeat=True):
                begun.release()
                for number in range(4):
                    await run.call(send, x=number)

    async def all_of_them(journal: AsyncJournal) -> Measured:
        lags: list[float] = []
        commits = counted_commits(journal)
        tasks = [asyncio.create_task(journal.run_async(agent, run_id=f"r{number}")) for number in range(runs)]
        for _ in tasks:
            await begun.acquire()
        looking = asyncio.create_task(_lags(lags))
        first, before = journal.store.last_position(), commits[0]
        cpu, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        took, worked = time.perf_counter() - began, time.process_time() - cpu
        events, made = journal.store.last_position() - first, commits[0] - before
        looking.cancel()
        over.set()
        await asyncio.gather(*tasks)
        lags.sort()
        return Measured(
            events / took, worked / events, events / max(made, 1), round(1e3 * lags[int(0.99 * len(lags))], 2)
        )

    with AsyncJournal.open(folder / f"agents-{runs}.db") as journal:
        return asyncio.run(all_of_them(journal))


@contextmanager
def slow_commits() -> Generator[Path]:
    """A folder in memory, on which a durable commit takes as long as an fsync more.

    No file system in Python: each page that it wrote would wait for the interpreter.
    """
    committed = SQLiteStore._committed  # noqa: SLF001 - behind COMMIT, with the lock held

    def slow(store: SQLiteStore) -> None:
        if store._durable:  # noqa: SLF001 - as there
            time.sleep(FSYNC_S)
        committed(store)

    SQLiteStore._committed = slow  # type: ignore[method-assign]  # noqa: SLF001 - as there
    folder = Path(tempfile.mkdtemp(dir=disks.MEMORY if disks.MEMORY.is_dir() else None))
    try:
        yield folder
    finally:
        SQLiteStore._committed = committed  # type: ignore[method-assign]  # noqa: SLF001 - as there
        shutil.rmtree(folder)


def many_agents(*, quick: bool) -> dict[str, Any]:
    """{group_commit_ratio, appends_per_commit, group_cpu_ratio, loop_lag_p99_ms}."""
    seconds = 3.0 if quick else 8.0
    with slow_commits() as folder:
        one = agents(folder, 1, seconds)
        many = agents(folder, RUNS, seconds)
    return {
        "group_commit_ratio": round(many.events_per_s / one.events_per_s, 2),
        "appends_per_commit": round(many.per_commit, 1),
        "group_cpu_ratio": round(many.cpu_s / one.cpu_s, 3),
        "loop_lag_p99_ms": many.lag_p99_ms,
        "group_events_per_s": round(many.events_per_s),
        "lone_events_per_s": round(one.events_per_s),
    }


def append_group_vs_bare_batch(folder: Path, groups: int) -> dict[str, float]:
    """Events a second of `append_all`, 256 a commit, one for each of as many runs / the same rows by bare apsw."""
    with Journal.open(folder / "batch-ours.db") as journal:
        for number in range(RUNS):
            append.claimed(journal, f"r{number}")
        journal.append("r0", [append.event()], epoch=1)
        journal.ownership.appender.states._owned = lambda _: True  # noqa: SLF001 - as of one that runs them all
        bare = append.Bare(folder / "batch-bare.db", journal, run_id="r0")

        def ours() -> None:
            journal.append_all(
                [journal.batch(f"r{number}", [append.event()], expect=None, epoch=1) for number in range(RUNS)]
            )

        def rows() -> None:
            with bare.connection:
                for _ in range(RUNS):
                    bare.insert()

        return interleaved(rows, ours, groups, warmup=5).ratio()


def hot_processes(folder: Path, count: int, seconds: float) -> dict[str, Any]:
    """{store_busy_count, worst_wait_s, most_least_appends} of so many processes that append without a pause."""
    path = folder / "hot.db"
    with Journal.open(path) as journal:
        for number in range(count):
            append.claimed(journal, f"r{number}")
    workers = [
        subprocess.Popen([sys.executable, __file__, str(path), f"r{number}", str(seconds)], stdout=subprocess.PIPE)
        for number in range(count)
    ]
    found = [json.loads(worker.communicate()[0]) for worker in workers]
    appends = [each["appends"] for each in found]
    return {
        "store_busy_count": sum(each["busy"] for each in found),
        "worst_wait_s": round(max(each["worst_s"] for each in found), 3),
        "most_least_appends": round(max(appends) / max(1, min(appends)), 2),
        "hot_appends_per_s": round(sum(appends) / seconds),
    }


def _hot(path: str, run_id: str, seconds: float) -> None:
    """One of them: append for so long, and print what came of it."""
    from runjournal.log.errors import StoreBusy

    busy, worst_s, appends = 0, 0.0, 0
    with Journal.open(path) as journal:
        time.sleep(0.5)
        until = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < until:
            try:
                journal.append(run_id, [e.CostRecorded(amount="1", currency="USD", source="x")], epoch=1)
                appends += 1
            except StoreBusy:
                busy += 1
            worst_s = max(worst_s, time.perf_counter() - begin)
    sys.stdout.write(json.dumps({"busy": busy, "worst_s": worst_s, "appends": appends}))


if __name__ == "__main__":
    _hot(sys.argv[1], sys.argv[2], float(sys.argv[3]))
