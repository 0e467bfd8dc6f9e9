"""The lives of an agent that is crashed: each is a forked child, which ends by itself, by a strike, or by its time.

A child tells what it passes line by line, in a file that its death can't take back, and how it ended in another one.
The parent opens no store: what it knows of a run it was told by the last child.
"""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from runjournal.async_journal import AsyncJournal
from runjournal.children import Leaf, leaves
from runjournal.engine.failures import RunBusy, RunWaiting
from runjournal.log import failpoint
from runjournal.log.base import plan_of, registered
from runjournal.log.clock import FakeClock, SystemClock, parse_timestamp
from runjournal.log.errors import RunNotFound
from runjournal.log.head import TERMINAL
from runjournal.log.limits import (
    crash_lives_max,
    crash_output_bytes_max,
    crash_same_errors_max,
    lease_s,
)
from runjournal.run import Run

from .crash_process import die_with, ended, frames_of, place_of, redirect, size, tail
from .refusals import refusal
from .world import CALL, World, WorldEffect

RUN: Final = "crash-points"
"""The id of the run that is walked: keys are the same in each."""
_UNCOUNTED: Final = ("heartbeat", "group")
"""Points that come by the clock, or as threads meet."""
_TRACE, _END, _OUT = "trace", "end", "out"


class Struck(KeyboardInterrupt):
    """The interrupt that `crash_points` sends with `how="interrupt"`."""


@dataclass(frozen=True)
class LifePlan:
    """What is to become of one life: struck at the point `strike`, counted from its first, or never (None)."""

    agent: Callable[[Any], Any]
    input: Any
    awaited: bool
    folder: Path
    empty: Path
    how: str = "kill"
    strike: int | None = None
    ahead_s: float = 0.0
    boot_ahead_s: float = 0.0
    results: dict[str, Any] | None = None
    effects: frozenset[str] = frozenset()
    person: bool = True
    look: bool = False
    max_s: float = 0.0


@dataclass(frozen=True)
class PassedPoint:
    """A point that a life has passed: what it was about, what was committed there, what a provider would refuse."""

    point: str
    what: str = ""
    last: int = 0
    refused: str = ""
    struck: bool = False


@dataclass
class AgentLife:
    """How one life went. `status` is that of its run then, "" if nobody was left to say."""

    points: list[PassedPoint] = field(default_factory=list[PassedPoint])
    slow: bool = False
    loud: bool = False
    stood: list[str] = field(default_factory=list[str])
    died: str = ""
    status: str = ""
    raised: list[str] | None = None
    place: str = ""
    waits: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    events: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list[tuple[int, str, dict[str, Any]]])
    due_s: float = 0.0
    busy: bool = False
    coroutine: bool = False
    asked: int = 0

    @property
    def why(self) -> str:
        """Return where it raised what, "" if it didn't."""
        return " ".join(filter(None, (f"{self.place}:" if self.place else "", ": ".join(self.raised or []))))

    @property
    def strike(self) -> int:
        """Return at which of its points it was struck, from 1; 0 if it wasn't."""
        return next((at for at, each in enumerate(self.points, 1) if each.struck), 0)

    @property
    def struck(self) -> bool:
        """Return whether it was struck."""
        return self.strike > 0

    @property
    def swallowed(self) -> bool:
        """Return whether an interrupt struck it and never left the agent."""
        return self.struck and not self.died and self.raised is None


@dataclass
class CrashStory:
    """A run of the agent from its beginning to its end: its lives, and what it did to the world."""

    lives: list[AgentLife]
    effects: list[WorldEffect]
    stuck: str = ""

    @property
    def end(self) -> AgentLife:
        """Return the last life."""
        return self.lives[-1]

    @property
    def points(self) -> list[PassedPoint]:
        """Return what was passed, in all lives."""
        return [point for life in self.lives for point in life.points]

    @property
    def asked(self) -> int:
        """Return how many questions were answered."""
        return sum(life.asked for life in self.lives)


class ShiftedClock(SystemClock):
    """The clock of this machine, ahead by so many seconds."""

    def __init__(self, ahead_s: float, boot_ahead_s: float) -> None:
        self.ahead_s = ahead_s
        self.boot_ahead_s = boot_ahead_s

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.ahead_s)

    def boottime_s(self) -> float:
        """Return the seconds since boot, and what it is ahead."""
        return super().boottime_s() + self.boot_ahead_s


# ------------------------------------------------------------------------------------------------------- the parent


def warmed(folder: Path) -> Path:
    """Load what each child would load anew, and return an empty store that each run begins with a copy of."""
    for each in registered().values():
        plan_of(each)
    for name in ("empty.db", "warm.db"):
        with AsyncJournal.open(folder / name, by="crash_points", clock=FakeClock()) as journal:
            if name == "warm.db":
                with suppress(RunWaiting):
                    journal.run(_warming, run_id=RUN, input="warm", kind="agent")
                journal.approve(RUN, journal.questions(RUN)[0].id)
                journal.run(_warming, run_id=RUN, input="warm", kind="agent")
                json.dumps(_found(journal), default=repr)
    asyncio.new_event_loop().close()
    return folder / "empty.db"


def _warming(run: Run) -> None:
    run.do("warm", list)
    run.ask("warm")
    while run.turn("m", {"max_tokens": 1}, [], lambda _: {"content": [{"type": "text", "text": "warm"}]}) is None:
        pass


def story(plan: LifePlan, world: World | None, strikes: tuple[int, ...], *, lives: int = 0) -> CrashStory:
    """Let a run live to its end, struck at these points: the first counted from its beginning, another from the crash.

    `lives` is how many it takes without a crash.
    """
    plan.folder.mkdir()
    shutil.copyfile(plan.empty, plan.folder / "store.db")
    if world is not None:
        world.begin(f"struck at {strikes}" if strikes else "without a crash")
    made, left = CrashStory([], []), list(strikes)
    while not made.stuck:
        if len(made.lives) >= lives + crash_lives_max:
            made.stuck = f"it hasn't ended after {len(made.lives)} processes"
            break
        done = frozenset(each.call for each in world.effects() if not each.again) if world else frozenset[str]()
        life = lived(replace(plan, strike=left[0] if left else None, effects=done), len(made.lives))
        made.lives.append(life)
        if life.coroutine:
            break
        if life.struck:
            left = left[1:]
        elif left:
            left[0] -= len(life.points)
        if life.status in TERMINAL:
            break
        if not plan.person and life.status == "waiting" and not _stands(life):
            break
        made.stuck = _stuck(made, plan)
        plan = replace(
            plan, ahead_s=plan.ahead_s + life.due_s, boot_ahead_s=plan.boot_ahead_s + (lease_s if life.busy else 0.0)
        )
    if not made.end.events and not made.end.coroutine:
        seen = lived(replace(plan, strike=None, look=True), len(made.lives))
        made.end.events, made.end.status = seen.events, seen.status
    made.effects = world.effects() if world is not None else []
    return made


def _stands(life: AgentLife) -> bool:
    return any(wait.get("kind") in ("code", "recoveries") for wait in life.waits)


def _stuck(made: CrashStory, plan: LifePlan) -> str:
    """Return why a run won't end, or "" if it may."""
    life = made.end
    last = [each.raised for each in made.lives[-crash_same_errors_max:]]
    why = ": ".join(life.raised or [])
    if life.slow:
        return f"a process of it took longer than {plan.max_s:g} s"
    if life.loud:
        return f"a process of it printed more than {crash_output_bytes_max} bytes"
    if _stands(life):
        return f"it waits for other code: {why}"
    if life.died and not life.struck and all(each.died and not each.struck for each in made.lives[-2:]):
        return f"its process dies by itself: {life.died}"
    waits_for_time = life.busy or life.due_s or life.status == "waiting" or life.struck
    if life.raised and len(last) == crash_same_errors_max and all(each == life.raised for each in last):
        return "" if waits_for_time else f"each process of it ends with {life.why}"
    return ""


def lived(plan: LifePlan, number: int) -> AgentLife:
    """Let one process live; return how that went, once it is gone, and what it has begun in its process group.

    A process that has detached itself from the group (setsid) lives on.
    """
    parent = os.getpid()
    folder = plan.folder / f"life-{number}"
    folder.mkdir()
    with warnings.catch_warnings():  # of threads: the child has but the one that forks, and takes none of their locks
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _child(plan, folder, parent)
    with suppress(OSError):  # the child does it, too: whoever is first
        os.setpgid(pid, pid)
    life, status = AgentLife(), None
    try:
        status = ended(pid, time.monotonic() + plan.max_s, folder / _OUT)
        life.loud = size(folder / _OUT) > crash_output_bytes_max
        life.slow = status is None and not life.loud
    finally:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)  # what it has begun, too
        if status is None:
            with suppress(ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    _read(life, folder)
    if life.slow:
        life.stood = frames_of(tail(folder / _OUT))
    if not (folder / _END).exists() and not life.slow and not life.loud:
        life.died = "killed" if life.struck else _end_of(status or 0, folder)
    return life


def _end_of(status: int, folder: Path) -> str:
    how = (
        f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.waitstatus_to_exitcode(status)}"
    )
    said = tail(folder / _OUT).strip()
    return how + (f"; it printed last: {said.splitlines()[-1]}" if said else "")


def _read(life: AgentLife, folder: Path) -> None:
    with suppress(FileNotFoundError):
        lines = (folder / _TRACE).read_bytes().splitlines()
        life.points = [PassedPoint(**json.loads(line)) for line in lines]
    with suppress(FileNotFoundError):
        told = json.loads((folder / _END).read_bytes())
        for name, value in told.items():
            setattr(life, name, value)


# -------------------------------------------------------------------------------------------------------- the child


def _child(plan: LifePlan, folder: Path, parent: int) -> NoReturn:
    """Live, in a process that was just forked; nothing of its parent's is run at its end."""
    code = 1
    try:
        die_with(parent)
        with suppress(OSError):
            os.setpgid(0, 0)
        redirect(folder / _OUT)
        for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(each, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.dump_traceback_later(plan.max_s * 0.9, file=sys.stderr)  # where it stands, if it doesn't end
        told = _Child(plan, folder).live()
        (folder / f"{_END}.new").write_text(json.dumps(told, default=repr), encoding="utf-8")
        (folder / f"{_END}.new").rename(folder / _END)
        code = 0
    except BaseException:  # noqa: BLE001 - nothing may go on in the code of the parent
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


class _Coroutine(Exception):
    """The agent is a function that returns a coroutine."""


class _Child:
    """A life, from within."""

    def __init__(self, plan: LifePlan, folder: Path) -> None:
        self.plan = plan
        self.trace = os.open(folder / _TRACE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.lock = threading.RLock()
        self.count = 0
        self.journal: AsyncJournal | None = None

    def live(self) -> dict[str, Any]:
        """Answer what is asked, and run the agent; return how that ended."""
        plan, told = self.plan, dict[str, Any]()
        clock = ShiftedClock(plan.ahead_s, plan.boot_ahead_s)
        # It isn't closed: the process ends here, and nothing is written after its last commit.
        journal = self.journal = AsyncJournal.open(plan.folder / "store.db", by="crash_points", clock=clock)
        if not plan.look:
            told["asked"] = self._answer(journal)
            try:
                failpoint.hit = self._hit
                self._run(journal)
            except BaseException as error:  # noqa: BLE001 - whatever ends a process is told of
                told |= _raised(error)
            finally:
                failpoint.hit = None
        return told | _found(journal)

    def _run(self, journal: AsyncJournal) -> None:
        agent, given = self.plan.agent, self.plan.input

        async def soon(run: Any) -> Any:
            return await agent(run)

        def now(run: Any) -> Any:
            done = agent(run)
            if inspect.iscoroutine(done):
                done.close()
                raise _Coroutine
            return done

        if self.plan.awaited:
            asyncio.run(journal.run_async(soon, run_id=RUN, input=given, kind="agent"))
        else:
            journal.run(now, run_id=RUN, input=given, kind="agent")

    def _answer(self, journal: AsyncJournal) -> int:
        """Say what a person would say who looks at the world; return how many calls were asked about."""
        try:
            waits = _waits(journal) if self.plan.person else []
        except RunNotFound:
            return 0
        wanted = {(leaf.run_id, str(leaf.wait["id"])) for leaf in waits}
        runs = dict.fromkeys(leaf.run_id for leaf in waits)  # those of children, too
        found = [each for run_id in runs for each in journal.questions(run_id)]
        asked = [each for each in found if (each.run_id, each.id) in wanted]
        for each in asked:
            if each.kind == "approval":
                journal.approve(each.run_id, each.id, choice=next(iter(each.choices), None))
            elif each.id in self.plan.effects:
                result = _result(self.plan.results or {}, each.id, each.action, each.args)
                journal.resolve(each.run_id, each.id, "happened", result)
            else:
                journal.resolve(each.run_id, each.id, "did_not_happen")
        return sum(each.kind == "call" for each in asked)

    def _hit(self, point: str, about: Any) -> None:
        if point in _UNCOUNTED:
            return
        what, refused = str(about or ""), ""
        if isinstance(about, tuple):
            name, call_id, args = cast("tuple[str, str, dict[str, Any]]", about)
            what = name
            if point.startswith("tool."):
                CALL.set(call_id if point == "tool.before" else "")
            if point == "model.before":
                refused = refusal(args["request"]) or ""
        last = 0
        if point == "commit.after" and self.journal is not None:
            last = self.journal.store.last_position()
        with self.lock:
            self.count += 1
            strikes = self.count == self.plan.strike
            line = {"point": point, "what": what, "last": last, "refused": refused, "struck": strikes}
            os.write(self.trace, json.dumps(line).encode() + b"\n")
            if strikes and self.plan.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(self.plan.max_s)
        if strikes and threading.current_thread() is threading.main_thread():
            raise Struck
        if strikes:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _result(results: dict[str, Any], call_id: str, tool: str, args: Any) -> Any:
    """Return what a call returned in a clean run: this one, or an equal one."""
    same = json.dumps([tool, args], sort_keys=True, default=repr)
    return results[call_id] if call_id in results else results.get(same)


def _raised(error: BaseException) -> dict[str, Any]:
    if isinstance(error, _Coroutine):
        return {"coroutine": True}
    return {
        "raised": [type(error).__name__, str(error)],
        "place": place_of(error),
        "busy": isinstance(error, RunBusy),
        "coroutine": isinstance(error.__context__, _Coroutine) or isinstance(error.__cause__, _Coroutine),
    }


_TIMED: Final = frozenset({"timer", "signal"})


def _waits(journal: AsyncJournal) -> list[Leaf]:
    """Return what the run waits for, itself or by way of its children."""
    return list(leaves(journal, journal.state(RUN))) if journal.head(RUN).status == "waiting" else []


def _found(journal: AsyncJournal) -> dict[str, Any]:
    """Return what the log says by now."""
    try:
        head = journal.head(RUN)
    except RunNotFound:
        return {}
    waits = _waits(journal)
    times = [leaf.state.status.due_at for leaf in waits] if {str(leaf.wait["kind"]) for leaf in waits} <= _TIMED else []
    due_at = head.due_at if head.status == "scheduled_retry" else min(filter(None, times), default=None)
    due = parse_timestamp(due_at) - journal.clock.now() if due_at else None
    return {
        "status": head.status,
        "due_s": max(0.0, due.total_seconds()) if due is not None else 0.0,
        "events": [
            (record.seq, record.type, {each.name: getattr(record.event, each.name) for each in fields(record.event)})
            for record in journal.events(RUN)
        ],
    }
