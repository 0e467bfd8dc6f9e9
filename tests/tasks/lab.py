"""A world, a store, and processes that die as planned, on virtual time: for the asyncio driver.

A boundary is each transaction of a process, before and after its commit, and each body of a tool, before and after. A
process that dies there writes nothing more and its loop is abandoned; its pid is one that no process here has, so that
its owner is provably dead. Each process has a loop, a journal and delays of its own.
"""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from runjournal.async_journal import AsyncJournal, AsyncRunner
from runjournal.async_run import AsyncRun
from runjournal.engine import failures as f
from runjournal.engine.tools import KEY, Tool
from runjournal.journal import Journal, begin
from runjournal.log import events as e
from runjournal.log.base import Event
from runjournal.log.clock import FakeClock
from runjournal.log.memory import MemoryStore
from runjournal.log.owner import Process
from runjournal.log.sqlite import SQLiteStore
from runjournal.projections.state import RunState

FIRST_PID = 20_000_000  # beyond every pid_max
REAL_WAIT_S = 20.0  # for a thread that has something to do


class Crash(f.Stop):
    """The process dies here."""


class Deadlock(Exception):
    """Nothing can happen any more."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only when there is nothing to do; then at once. Waiting for nothing is a Deadlock.

    Bodies in threads have something to do, unless they wait in `asleep`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now, self.jobs, self.sleeping, select = 0.0, 0, set[int](), self._selector.select  # type: ignore[attr-defined]

        def skip(timeout: float | None) -> Any:
            until = time.monotonic() + REAL_WAIT_S
            while timeout != 0 and self.at_work() and time.monotonic() < until:
                if found := select(0.0005):
                    return found
            if found := select(0):
                return found
            if timeout is None:
                raise Deadlock
            self.now += max(timeout, 0)
            return []

        self._selector.select = skip  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        self.jobs += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(lambda _: self._over())
        return future

    def _over(self) -> None:
        self.jobs -= 1

    def at_work(self) -> bool:
        """Whether a thread is about to do something."""
        bodies = sum(thread.name.startswith("runjournal") and thread.is_alive() for thread in threading.enumerate())
        return bodies + self.jobs > len(self.sleeping)

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """In a thread: what is waited for here comes from the loop, so time may pass."""
        me = threading.get_ident()
        self.sleeping.add(me)
        try:
            yield
        finally:
            self.sleeping.discard(me)

    def wait(self, event: threading.Event) -> None:
        """In a thread: wait for an event that the loop sets."""
        with self.asleep():
            assert event.wait(REAL_WAIT_S)


@dataclass
class LoopClock(FakeClock):
    """The time of the loop of the process that lives; nobody's lease expires."""

    passed_s: float = 0.0
    loop: Any = None

    def now(self) -> datetime:
        living = 0.0 if self.loop is None else self.loop.time()
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.passed_s + living)

    def boottime_s(self) -> float:
        return 0.0

    def over(self) -> None:
        """A process is over: its loop stands still."""
        self.passed_s += self.loop.time()
        self.loop = None


class World:
    """Everything outside the journal. It survives every crash; `plan` says at which tick a process dies."""

    def __init__(self, plan: Any = ()) -> None:
        self.plan, self.ticks, self.lock = set(plan), 0, threading.Lock()
        self.effects: list[str] = []  # the key of each effect of a keyed or unsafe tool, as often as it happened

    def act(self, policy: str, key: str) -> None:
        """One request arrives. The service of keyed tools does it once for a key."""
        if policy == "unsafe" or (policy == "keyed" and key not in self.effects):
            self.effects.append(key)


class Struck:
    """A store, as one process sees it: each transaction is two boundaries."""

    sharing = None  # its transactions are where it dies

    def __init__(self, inner: Any, process: Living) -> None:
        self._inner, self._process = inner, process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def transact(self, decide: Any, *, durable: bool) -> Any:
        self._process.tick("before commit")
        done = self._inner.transact(decide, durable=durable)
        self._process.tick("after commit")
        return done

    def append_alone(self, decide: Any, *, durable: bool) -> Any:
        self._process.tick("before commit")
        done = self._inner.append_alone(decide, durable=durable)
        self._process.tick("after commit")
        return done

    def save_checkpoint(self, *args: Any, **how: Any) -> Any:
        if self._process.dead:
            raise Crash
        return self._inner.save_checkpoint(*args, **how)


class Living:
    """A process: it has a journal, and dies as a whole."""

    def __init__(self, lab: Lab, pid: int) -> None:
        self.lab, self.dead = lab, False
        self.loop: Any = None
        identity = Process("lab", "boot", "namespace", pid, "1")
        self.journal = LabJournal(Struck(lab.store, self), by=f"process-{pid - FIRST_PID}", process=identity)
        self.journal.tools = lab.tools

    def tick(self, where: str) -> None:
        """A boundary: here it may die."""
        if self.dead:
            raise Crash("a dead process does nothing")
        with self.lab.world.lock:
            self.lab.world.ticks += 1
            if self.lab.world.ticks in self.lab.world.plan:
                self.dead = True
        if self.dead:
            self.died()
            if self.loop is not None:
                self.loop.call_soon_threadsafe(self.loop.stop)
                self.loop.stop()
            raise Crash(where)

    def died(self) -> None:
        """Nothing of it goes on."""


class LabJournal(AsyncJournal):
    """A journal that knows its tools, and has patience."""

    tools: dict[str, Tool[..., Any]]

    async def run_async(self, agent: Any, *, run_id: str | None = None, input: Any = None, **how: Any) -> Any:
        run_id = begin(self, agent, run_id, input, **how)
        return await AsyncRunner(self, self.tools, patience=10**6).run_async(agent, run_id)


class Lab:
    """A world, a store, and processes that die as planned; each process has other delays."""

    def __init__(
        self,
        seed: int = 0,
        strikes: Any = (),
        *,
        slow: Mapping[Any, float] | None = None,
        fails: Any = frozenset(),
        people: bool = False,
        path: Any = None,
    ) -> None:
        self.clock, self.path = LoopClock(), path
        self.store: Any = MemoryStore(clock=self.clock) if path is None else SQLiteStore(str(path), clock=self.clock)
        self.world, self.people, self.slowest = World(strikes), people, 0.0
        self.slow, self.fails = slow or {}, fails
        self.random, self.processes, self.tags = random.Random(seed), 0, Counter[Any]()
        self.tools: dict[str, Tool[..., Any]] = {}
        for policy in ("idempotent", "keyed", "unsafe"):
            self.tool(policy, policy, reconcile=self.find if policy == "unsafe" else None)
        self.tool("unsafe2", "unsafe", reconcile=self.find)
        self.tool("blind", "unsafe")
        self.tool("patient", "unsafe", on_unknown="ask")
        self.boot()

    def tool(self, name: str, policy: str, fn: Any = None, **how: Any) -> Tool[..., Any]:
        self.tools[name] = Tool(fn or self.fn(policy), name, policy, **how)
        return self.tools[name]

    def boot(self) -> None:
        """The next process."""
        if self.path is not None and self.processes:
            self.store.close()
            self.store = SQLiteStore(str(self.path), clock=self.clock)
        self.process = Living(self, FIRST_PID + self.processes)
        self.processes += 1

    @property
    def journal(self) -> LabJournal:
        return self.process.journal

    def outside(self) -> Journal:
        """Another process, alive, whom nothing strikes."""
        return Journal(self.store, by="people", process=Process("lab", "boot", "namespace", FIRST_PID - 1, "1"))

    def fn(self, policy: str) -> Any:
        async def fn(x: Any, order: Any = None, by: Any = None, *, idempotency_key: str = KEY) -> Any:
            return await self.act(policy, x, idempotency_key)

        return fn

    async def act(self, policy: str, x: Any, key: str) -> Any:
        process = self.process
        slow = self.slow.get(x, self.random.choice([0, 0.1, 1, 3]))
        process.tick("before effect")
        await asyncio.sleep(slow / 2)
        if process.dead:
            raise Crash
        if x in self.fails:
            raise ValueError(x)
        before = len(self.world.effects)
        self.world.act(policy, key)
        self.tags[str(x)] += len(self.world.effects) - before
        await asyncio.sleep(slow / 2)
        process.tick("after effect")
        return f"{policy}:{x}"

    def find(self, args: Any, key: str) -> Any:
        """The hook of unsafe tools: it sees the truth."""
        return ("happened", f"unsafe:{args['x']}") if key in self.world.effects else ("did_not_happen", None)

    async def jitter(self, of: float = 2.0) -> None:
        await asyncio.sleep(self.random.random() * of)

    async def until(self, ready: Callable[[], bool]) -> None:
        """In the loop: look again and again."""
        while not ready():  # noqa: ASYNC110 - what it looks at is the log
            await asyncio.sleep(0.01)

    # Running.

    def once(self, agent: Any, main: Any = None) -> Any:
        """One process from its start to its end, or to its death: then its loop is abandoned, and Crash is raised."""
        process = self.process
        loop = process.loop = self.clock.loop = VirtualLoop()
        loop.set_exception_handler(lambda *_: None)
        try:
            return loop.run_until_complete(main() if main else self.journal.run_async(agent, run_id="r"))
        except RuntimeError:
            if process.dead:
                raise Crash from None
            raise
        finally:
            (bury if process.dead else finish)(loop)
            self.slowest = max(self.slowest, loop.now)
            self.clock.over()
            loop.close()

    def run(self, agent: Any, times: int = 30) -> str:
        """Processes, one after the other, until the run has ended or waits; gives its status."""
        for _ in range(times):
            try:
                self.once(agent)
            except Crash:
                self.boot()
                continue
            except Exception:
                if self.status in ("running", "queued"):
                    raise
            if self.status != "waiting" or not self.people:
                return self.status
            self.answer()
        raise AssertionError("it doesn't get on")

    def answer(self) -> None:
        """People say yes to all that is asked."""
        for wait in self.state.status.waits:
            self.outside().approve("r", wait["id"])

    # Looking.

    @property
    def state(self) -> RunState:
        return self.outside().state("r")

    @property
    def status(self) -> str:
        return self.state.status.status

    @property
    def log(self) -> list[Event]:
        return [record.event for record in self.store.read("r")]

    def types(self, *without: str) -> list[str]:
        return [event.TYPE for event in self.log if event.TYPE not in ("run.queued", "run.claimed", *without)]

    def last(self, type_: str) -> Any:
        return [event for event in self.log if type_ == event.TYPE][-1]

    @property
    def output(self) -> Any:
        return self.last("run.completed").output

    def ends(self) -> list[str]:
        """How the calls ended, sorted."""
        ends = [event for event in self.log if isinstance(event, e.ToolCompleted | e.ToolFailed)]
        return sorted(end.error["type"] if isinstance(end, e.ToolFailed) else "ok" for end in ends)


def bury(loop: VirtualLoop) -> None:
    """A process died: its tasks end here and now, without a loop, and nobody hears of it."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        for _ in range(10):
            try:
                task.get_coro().close()
                break
            except BaseException:  # noqa: BLE001 - what a dead process raises
                continue


def finish(loop: VirtualLoop) -> None:
    """What asyncio.run does at its end."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    with suppress(Deadlock):
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    bury(loop)


# Everywhere.

Agent = Callable[[AsyncRun, Lab], Any]


@dataclass
class Outcome:
    """What became of the struck runs of an agent, and in how many somebody waited for `left_out_wait_s` in vain."""

    outcomes: Counter[str]
    waited: int


def everywhere(body: Agent, seeds: int = 3, sample: int | None = None, **how: Any) -> Outcome:
    """Crash at every boundary, or at a sample of them, and enter again with other delays: what became of it."""
    outcomes, waited, cases = Counter[str](), 0, list[tuple[int, int, tuple[int, ...], Counter[Any]]]()

    async def agent(run: AsyncRun, lab: Lab) -> Any:  # what follows a step is struck too
        if not run.done("s"):
            await body(run, lab)

    def of(lab: Lab) -> Any:
        async def wrapped(run: AsyncRun) -> Any:
            return await agent(run, lab)

        return wrapped

    for seed in range(seeds):
        whole = Lab(seed, **how)
        whole.run(of(whole))
        assert whole.status == "completed", whole.log[-1]
        for tick in range(1, whole.world.ticks + 1):
            cases += [(seed, tick, again, +whole.tags) for again in ((), (tick + 9,))]
    if sample is not None:
        cases = random.Random(0).sample(cases, min(sample, len(cases)))
    for seed, tick, again, tags in cases:
        one = Lab(seed + 1000 * tick, (tick, *again), **how)
        try:
            status = one.run(of(one))
        except (f.StepDiverged, f.PlanChanged, f.Mistake, Deadlock) as error:
            outcomes[type(error).__name__] += 1
            continue
        waited += one.slowest >= 30
        twice = len(one.world.effects) != len(set(one.world.effects))
        outcomes["twice" if twice else status if +one.tags == tags else status + ", other effects"] += 1
    gc.collect()
    return Outcome(outcomes, waited)
