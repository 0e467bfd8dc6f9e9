"""What an agent pays: one message beside a bare row, sync and asyncio; the time and the fsyncs of a whole step.

A message is relaxed by itself; here it is made durable, so that both sides wait for the disk. The step makes one model
call and two tool calls, and appends one message.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import append
import apsw
from measure import Pairs, spread

from runjournal import tool
from runjournal.async_journal import AsyncJournal
from runjournal.async_run import AsyncRun
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.run import Run

POLICIES = ("idempotent", "keyed", "unsafe")
TEXT = "x" * 260


@contextmanager
def durable_messages() -> Generator[None]:
    """Each message waits for the disk."""
    relaxed = e.RELAXED
    e.RELAXED = relaxed - {"message.appended"}  # type: ignore[misc] # for as long as it is measured
    try:
        yield
    finally:
        e.RELAXED = relaxed  # type: ignore[misc]


def append_run_ratio(folder: Path, groups: int) -> dict[str, float]:
    """`Run.message` / the same row by bare apsw, single operations in turn."""
    found: list[dict[str, float]] = []
    with Journal.open(folder / "run-ours.db") as journal:
        run_id = journal.new_run_id()

        def agent(run: Run) -> None:
            with run.step("talk"):
                run.message("user", TEXT)
                bare = append.Bare(folder / "run-bare.db", journal, run_id)
                with durable_messages():
                    found.append(append.grouped(lambda: run.message("user", TEXT), bare.insert, groups))

        journal.run(agent, run_id=run_id)
    return found[0]


def async_append_ratio(folder: Path, groups: int) -> dict[str, float]:
    """The same inside a running event loop, by `AsyncRun.message`, while another task takes its turns."""
    found: list[dict[str, float]] = []

    async def agent(run: AsyncRun) -> None:
        async with run.step("talk"):
            run.message("user", TEXT)
            bare = append.Bare(folder / "async-bare.db", journal, run_id)
            with durable_messages():
                found.append(await alternated(run, bare, groups))

    async def alternated(run: AsyncRun, bare: append.Bare, groups: int) -> dict[str, float]:
        ratios: list[float] = []
        for group in range(-append.WARM_UP // append.GROUP, groups):
            pairs = Pairs([], [])
            for _ in range(append.GROUP):
                await asyncio.sleep(0)
                begin = time.perf_counter()
                run.message("user", TEXT)
                middle = time.perf_counter()
                bare.insert()
                pairs.first.append(middle - begin)
                pairs.second.append(time.perf_counter() - middle)
            if group >= 0:
                ratios.append(statistics.median(pairs.first) / statistics.median(pairs.second))
        return spread(ratios)

    with AsyncJournal.open(folder / "async-ours.db") as journal:
        run_id = journal.new_run_id()
        asyncio.run(journal.run_async(agent, run_id=run_id))
    return found[0]


class _CountingFile(apsw.VFSFile):
    def __init__(self, vfs: _Counting, name: Any, flags: list[int]) -> None:
        super().__init__(vfs.beneath, name, flags)
        self.vfs = vfs

    def xSync(self, flags: int) -> None:  # noqa: N802 - the VFS's word
        self.vfs.syncs += 1
        super().xSync(flags)


class _Counting(apsw.VFS):
    """The default file system of SQLite, that counts each fsync it is asked for."""

    def __init__(self) -> None:
        self.syncs = 0
        self.beneath = apsw.vfs_names()[0]
        super().__init__("counting", self.beneath, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - the VFS's word
        return _CountingFile(self, name, flags)


def _tools(policy: str) -> Callable[..., Any]:
    if policy == "keyed":

        @tool(policy="keyed")
        def send(x: int, *, idempotency_key: str = "") -> str:
            return f"{idempotency_key} {x}"

        return send

    @tool(policy=policy, name=policy)  # type: ignore[arg-type] # one of POLICIES
    def act(x: int) -> int:
        return x

    return act


def _step(run: Run, send: Callable[..., Any]) -> None:
    usage = {"input": 10, "output": 1, "cache_read": 0, "cache_write": 0}
    with run.step("turn", repeat=True):
        turn = run.memory.get("turn", 0)
        run.model("m", {"ask": turn}, lambda _: {"text": "yes", "usage": usage})
        send(2 * turn)
        send(2 * turn + 1)
        run.message("assistant", TEXT)


def steps(folder: Path, count: int = 200) -> dict[str, Any]:
    """{`step_us`: {policy: median microseconds}, `step_fsyncs`: {policy: counted}, `step_commits`: of the first}."""
    took: dict[str, float] = {}
    cpu: dict[str, float] = {}
    syncs: dict[str, float] = {}
    commits: dict[str, float] = {}
    for policy in POLICIES:
        send = _tools(policy)
        timed = _timed_steps(folder / f"steps-{policy}.db", send, count)
        took[policy], cpu[policy] = (round(1e6 * statistics.median(each), 1) for each in zip(*timed, strict=True))
        vfs = _Counting()
        try:
            counted = _counted_steps(folder / f"counted-{policy}.db", send, vfs)
        finally:
            vfs.unregister()
        syncs[policy], commits[policy] = (statistics.median(each) for each in zip(*counted, strict=True))
    return {"step_us": took, "step_cpu_us": cpu, "step_fsyncs": syncs, "step_commits": commits["idempotent"]}


def _timed_steps(path: Path, send: Callable[..., Any], count: int) -> list[tuple[float, float]]:
    """Seconds of each step, by the wall and of the processor."""
    took: list[tuple[float, float]] = []

    def agent(run: Run) -> None:
        for _ in range(count):
            begin, cpu = time.perf_counter(), time.process_time()
            _step(run, send)
            took.append((time.perf_counter() - begin, time.process_time() - cpu))

    with Journal.open(path) as journal:
        journal.run(agent, run_id=journal.new_run_id())
    return took[count // 4 :]


def _counted_steps(path: Path, send: Callable[..., Any], vfs: _Counting, count: int = 21) -> list[tuple[int, int]]:
    """(fsyncs, commits) of each step."""
    found: list[tuple[int, int]] = []

    def agent(run: Run) -> None:
        for _ in range(count):
            before, made = vfs.syncs, commits[0]
            _step(run, send)
            found.append((vfs.syncs - before, commits[0] - made))

    with Journal.open(path) as journal:
        commits = counted_commits(journal)
        journal.run(agent, run_id=journal.new_run_id())
    return found


def counted_commits(journal: Journal) -> list[int]:
    """Count the commits of a journal's store in the list that is returned."""
    count, store = [0], journal.store

    def hook(connection: apsw.Connection, name: str, pages: int) -> int:
        count[0] += 1
        return store._on_commit(connection, name, pages)  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001 - only it knows

    store._writer.set_wal_hook(hook)  # type: ignore[attr-defined]  # noqa: SLF001 - as there
    return count
