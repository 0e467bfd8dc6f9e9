"""Run an agent, let its process die at a boundary, and go on in new ones until its run has ended or can't go on.

A boundary is each transaction of a process, before and after its commit, and each effect and each question to a model,
before and after. A process that dies there writes nothing more. The agents are written as people write them: plain
functions with plain tools, whose effects go to `outside`, the world that survives every process.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from tasks.lab import FIRST_PID, Deadlock, LoopClock, VirtualLoop, bury
from tasks.lab import finish as finish_loop

from runjournal import AsyncJournal
from runjournal.engine import failures as f
from runjournal.engine.lineage import Lineage
from runjournal.log import events as e
from runjournal.log.memory import MemoryStore
from runjournal.log.owner import Process
from runjournal.log.sqlite import SQLiteStore
from runjournal.projections.transcript import messages

Agent = Callable[[Any], Any]
LIVES_MAX = 40


class Crash(f.Stop):
    """The process dies here."""


class Now(LoopClock):
    """Begins now, since agents look at the real clock, too."""

    def __init__(self) -> None:
        super().__init__()
        self.began = datetime.now(UTC)

    def now(self) -> datetime:
        living = 0.0 if self.loop is None else self.loop.time()
        return self.began + timedelta(seconds=self.passed_s + living)


class Struck:
    """A store, as one process sees it: each transaction is two boundaries."""

    sharing = None  # its transactions are where it dies

    def __init__(self, inner: Any, tick: Callable[[], None]) -> None:
        self._inner, self._tick = inner, tick

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def transact(self, decide: Any, *, durable: bool) -> Any:
        self._tick()
        done = self._inner.transact(decide, durable=durable)
        self._tick()
        return done

    def append_alone(self, decide: Any, *, durable: bool) -> Any:
        self._tick()
        done = self._inner.append_alone(decide, durable=durable)
        self._tick()
        return done

    def save_checkpoint(self, *args: Any, **how: Any) -> Any:
        with suppress(Crash):
            self._tick()
            return self._inner.save_checkpoint(*args, **how)


@dataclass
class World:
    """What is outside the journal, and the machine that dies when `ticks` comes to one of the `strikes`."""

    strikes: frozenset[int]
    store: Any
    random: random.Random
    ticks: int = 0
    dead: bool = False
    loop: Any = None
    effects: list[tuple[str, str, str]] = field(default_factory=list)  # tool, args, key
    answers: list[Any] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    decides: Any = None  # of a question's action and args: None is a yes, a dict edits the args, a text is a no
    lock: Any = field(default_factory=threading.Lock)

    def tick(self) -> None:
        with self.lock:
            if not self.dead:
                self.ticks += 1
                self.dead = self.ticks in self.strikes
                if self.dead and self.loop is not None:
                    self.loop.call_soon_threadsafe(self.loop.stop)
        if self.dead:
            raise Crash


class Outside:
    """What tools and models of the agents talk to. One world at a time."""

    world: World

    def did(self, tool: str, args: Any, key: str = "") -> str:
        """One request of a tool arrives. What is asked with a key happens once for it."""
        world, what = self.world, (tool, json.dumps(args), key)
        world.tick()
        if not key or what not in world.effects:
            world.effects.append(what)
        world.tick()
        return f"{tool} {args}"

    async def did_slowly(self, tool: str, args: Any, key: str = "") -> str:
        """The same, after and before a while that is another one each time."""
        world = self.world
        await asyncio.sleep(world.random.random())
        done = self.did(tool, args, key)
        await asyncio.sleep(world.random.random())
        return done

    def says(self, request: Any) -> Any:
        """A model's next answer: as many of the script are over as are on record; an exception among them is raised."""
        world = self.world
        world.tick()
        ended = [x for x in self.events() if isinstance(x, e.ModelCompleted | e.ModelFailed)]
        answer = world.answers[min(len(ended), len(world.answers) - 1)]
        world.asked.append(request)
        world.tick()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def fails(self, tool: str, times: int) -> None:
        """Raise, as long as fewer attempts of this tool than `times` have an end on record."""
        self.world.tick()
        started = {x.call_id for x in self.events() if isinstance(x, e.ToolStarted) and x.tool == tool}
        ends = [x for x in self.events() if isinstance(x, e.ToolCompleted | e.ToolFailed) and x.call_id in started]
        if len([x for x in ends if getattr(x, "error", {}).get("kind") != "unknown"]) < times:
            raise RuntimeError(f"{tool} is down")

    def events(self) -> Iterator[e.Event]:
        """All that is on record, whoever reads it."""
        for head in self.world.store.heads(limit=100):
            for record in self.world.store.read(head.run_id):
                yield record.event


outside = Outside()


class End(NamedTuple):
    """How a run ended: its status, what it knows, what happened outside; and what stopped it, if it can't go on."""

    status: str
    output: Any
    context: Any
    effects: Counter[tuple[str, str]]
    keys: Counter[tuple[str, str, str]]
    stop: BaseException | None
    world: World

    @property
    def facts(self) -> Any:
        """What doesn't depend on interruptions."""
        return self.status, self.output, self.context, self.effects


def finish(
    agent: Agent,
    strikes: Iterable[int] = (),
    *,
    path: Path | None = None,
    answers: Iterable[Any] = (),
    seed: int = 0,
    mended: Agent | None = None,
    decides: Callable[[str, Any], Any] | None = None,
) -> End:
    """Processes, one after the other, until the run has ended or its code is refused; `mended` goes on then."""
    clock = Now()
    store: Any = MemoryStore(clock=clock) if path is None else SQLiteStore(str(path), clock=clock)
    world = World(frozenset(strikes), store, random.Random(seed), answers=list(answers), decides=decides)
    outside.world, run_id, stop, left = world, "r", None, None
    for life in range(LIVES_MAX):
        if path is not None and life:
            store.close()
            world.store = store = SQLiteStore(str(path), clock=clock)
        world.dead = False
        process = Process("crashing", "boot", "namespace", FIRST_PID + life, "1")
        journal = AsyncJournal(Struck(store, world.tick), by=f"process-{life}", process=process)
        left = None
        try:
            live(journal, agent, run_id, world, clock)
            break
        except Crash:
            clock.passed_s += 1
        except (f.Mistake, f.PlanChanged, f.StepDiverged) as error:
            stop = error
            if mended is None:
                break
            agent, mended = mended, None
        except f.RunFailed:  # it was the agent that gave up
            break
        except f.RunWaiting:
            for head in store.heads(limit=100):
                say(AsyncJournal(store, process=process), head.run_id, world)
        except f.RunNotDue:
            clock.passed_s += 60
        except Exception as error:  # noqa: BLE001 - what leaves the agent; the next life finds what became of the run
            left = error
    else:
        raise AssertionError(f"no end: {left!r}, {[x.type for x in store.read(run_id)][-9:]}")
    world.strikes, world.dead = frozenset(), False
    end = look(AsyncJournal(store), run_id, world, stop)
    if path is not None:
        store.close()
    return end


def live(journal: AsyncJournal, agent: Agent, run_id: str, world: World, clock: LoopClock) -> None:
    """One process, from its start to its end or its death."""
    if not inspect.iscoroutinefunction(agent):
        journal.run(agent, run_id=run_id, kind="agent")
        if world.dead:  # the code swallowed its death
            raise Crash
        return
    loop = world.loop = clock.loop = VirtualLoop()
    loop.set_exception_handler(lambda *_: None)
    try:
        loop.run_until_complete(journal.run_async(agent, run_id=run_id, kind="agent"))
    except (RuntimeError, Deadlock):
        if world.dead:
            raise Crash from None
        raise
    finally:
        (bury if world.dead else finish_loop)(loop)
        clock.over()
        world.loop = None
        loop.close()


def say(journal: AsyncJournal, run_id: str, world: World) -> None:
    """A person says what became of the calls that were open when the process died."""
    every = list(outside.events())
    started = {x.call_id: (x.tool, json.dumps(shown(x.args))) for x in every if isinstance(x, e.ToolStarted)}
    ended = [x for x in every if isinstance(x, e.ToolCompleted | e.ToolResolved)]
    known = Counter(started[x.call_id] for x in ended if getattr(x, "outcome", "happened") == "happened")
    happened = Counter((tool, args) for tool, args, _ in world.effects)
    for call_id in journal.state(run_id).calls.unresolved():
        tool, args = started[call_id]
        if happened[tool, args] > known[tool, args]:
            known[tool, args] += 1
            journal.resolve(run_id, call_id, "happened", f"{tool} {json.loads(args)}")
        else:
            journal.resolve(run_id, call_id, "did_not_happen")
    asked = {x.approval_id: x for x in every if isinstance(x, e.ApprovalRequested)}
    state = journal.state(run_id)
    for question_id, question in state.approvals.open().items() if not state.status.terminal else ():
        word = world.decides and world.decides(question.action, asked[question_id].args)
        if isinstance(word, str):
            journal.reject(run_id, question_id, word)
        else:
            journal.approve(run_id, question_id, word)


def shown(args: dict[str, Any]) -> Any:
    """The one argument of a tool, or the list of them: what the tools here tell `outside`."""
    values = list(args.values())
    return values[0] if len(values) == 1 else values


def look(journal: AsyncJournal, run_id: str, world: World, stop: BaseException | None) -> End:
    """What is to be seen from outside."""
    state, line = journal.state(run_id), Lineage(journal.ownership, run_id, lambda _: None)
    last = [record.event for record in journal.events(run_id)][-1]
    output = last.output if isinstance(last, e.RunCompleted) else getattr(last, "error", None)
    if isinstance(output, dict):
        output.pop("traceback", None)
    context = {
        "messages": [[x.role, x.content] for x in messages(line.records()) if x.committed],
        "memory": state.memory.committed,
        "plan": state.plan.base,
    }
    effects = Counter((tool, args) for tool, args, _ in world.effects)
    return End(state.status.status, output, context, effects, Counter(world.effects), stop, world)


def everywhere(agent: Agent, **how: Any) -> tuple[End, list[End]]:
    """The uninterrupted end, and that of each run whose process died once, at each boundary."""
    whole = finish(agent, **how)
    return whole, [finish(agent, [tick], **how) for tick in range(1, whole.world.ticks + 1)]


def at_random(agent: Agent, points: int, folder: Path | None = None, **how: Any) -> tuple[End, list[End]]:
    """The same for runs that die at one to three random boundaries each, `points` in all, on SQLite if in a folder."""
    chance, ends = random.Random(agent.__name__), list[End]()
    whole = finish(agent, **how)
    while points > 0:
        strikes = {chance.randint(1, whole.world.ticks + 2) for _ in range(min(points, chance.randint(1, 3)))}
        path = None if folder is None else folder / f"{points}.db"
        ends.append(finish(agent, strikes, path=path, seed=points, **how))
        points -= len(strikes)
    return whole, ends
