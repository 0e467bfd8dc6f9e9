"""Strike random agents with SIGKILL and with KeyboardInterrupt, in forked children that are warm, and judge the ends.

    python tests/programs/strike.py --kills 1000 --interrupts 1000 --seed 7

This process imports everything once and opens no journal; each life of an agent is a fork of it, on a SQLite store in a
temporary folder. A case is a random agent (`struck_agent.py`) that is struck again and again until its run has ended:

* a kill: SIGKILL at a random moment of the time that the undisturbed run takes, or directly before or behind a random
  write to the ledger or of what was acknowledged; people who answer are killed at random moments, too;
* an interrupt: KeyboardInterrupt before a random bytecode of agent, engine or store (`trace`) in the main thread or
  another one, SIGINT at a random moment (`signal`), or an asynchronous exception in a random thread (`async`). Then the
  same process goes on with `journal.run`, or another one does first, while the one that was interrupted lives.

The judges look at the ledger and at the log, read by a fresh process. The exit code is 1 if there is a violation; each
is printed with its case, which `--only N` does again.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import faulthandler
import json
import logging
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, NoReturn

import apsw

import runjournal.log.clock as a_module_of_the_package
from runjournal import runner
from runjournal.async_journal import AsyncJournal
from runjournal.engine import calls, order, steps
from runjournal.engine import failures as f
from runjournal.log import events as e
from runjournal.looking.audit import audit_store
from runjournal.writing.appender import Appender

sys.path.insert(0, str(Path(__file__).parent))
import struck_agent as s

PACKAGE: Final = str(Path(a_module_of_the_package.__file__).parent.parent)
LIVES_MAX: Final = 80
"""Lives of a case."""
HANGS_S: Final = 60.0
"""A process that says nothing for so long hangs."""
MADE_CALM_S: Final = 1.0
ENDS: Final = ("tool.completed", "tool.failed", "tool.resolved", "model.completed", "model.failed")


class Strike(NamedTuple):
    """How a life is struck: at the share `at` of its time, of its writes or of its calls."""

    kind: str  # kill-time, kill-write, trace-main, trace-other, signal, async
    at: float
    opcode: int = 0
    same: bool = True  # who goes on after an interrupt: the same process, or another one first
    behind: bool = False


class Measure(NamedTuple):
    """What an undisturbed life takes."""

    seconds: float
    writes: int
    main_calls: int
    other_calls: int


# ---------------------------------------------------------------------------------------------------- in a child


class TellingAppender(Appender):
    """An appender that notes what was acknowledged."""

    def append(self, *what: Any) -> Any:
        return [self.tell(records) for records in super().append(*what)]

    def append_made(self, make: Any) -> Any:
        return self.tell(super().append_made(make))

    def tell(self, records: Any) -> Any:
        text = "".join(f"{each.run_id} {each.seq} {each.hash}\n" for each in records)
        s.OUTSIDE.write(s.OUTSIDE.acknowledged, text)
        return records


class Telling(AsyncJournal):
    """A journal with that appender."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how, appender=TellingAppender)


class Tracing:
    """Raises KeyboardInterrupt `opcode` bytecodes behind the call of number `call` in a kind of thread."""

    def __init__(self, call: int = -1, opcode: int = 0, *, other: bool = False) -> None:
        self.call, self.opcode, self.other = call, opcode, other
        self.calls = {False: 0, True: 0}
        self.where: list[str] = []

    def traced(self, frame: FrameType) -> bool:
        path = frame.f_code.co_filename
        return path.startswith(PACKAGE) or path == s.__file__ or path.endswith("/contextlib.py")

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if self.where or event != "call" or not self.traced(frame):
            return None
        thread = threading.current_thread()
        if thread.name == "runjournal-heartbeat":
            return None
        other = thread is not threading.main_thread()
        self.calls[other] += 1
        if other != self.other or self.call < 0 or self.calls[other] < self.call:
            return None
        at: FrameType | None = frame
        while at is not None:
            if self.traced(at):
                at.f_trace, at.f_trace_opcodes = self.local, True
            at = at.f_back
        return self.local

    def local(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode" and not self.where:
            self.opcode -= 1
            if self.opcode <= 0:
                self.where += places(frame)
                sys.settrace(None)
                threading.settrace(None)  # type: ignore[arg-type]  # None is what the library itself passes
                raise KeyboardInterrupt
        return self.local

    @contextmanager
    def on(self) -> Iterator[None]:
        threading.settrace(self)
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]  # the same


def places(frame: FrameType | None) -> list[str]:
    found = list[str]()
    while frame is not None and len(found) < 12:
        found.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return found


def an_interrupt_for_somebody(delay_s: float, rng: random.Random, where: list[str]) -> None:
    """Raise KeyboardInterrupt in a random thread that is at work for a run."""
    # A thread that it meets before its first line dies in the standard library's own code, and `Thread.start` waits for
    # ever, whoever called it: no public way to begin one can tell. So no thread may end, and its ident be that of a
    # new one, between the look and the throw: none gets its turn before this one lets go, once those are served that
    # have asked for theirs by the old interval.
    time.sleep(delay_s)
    interval_s = sys.getswitchinterval()
    try:
        sys.setswitchinterval(20.0)
        time.sleep(2 * interval_s)
        at_work = {
            ident: frame
            for ident, frame in sys._current_frames().items()
            if any(
                name in place
                for place in places(frame)
                for name in ("struck_agent", "run.py", "core.py", "attempts.py")
            )
        }
        at_work.pop(threading.get_ident(), None)
        if at_work:
            ident = rng.choice(sorted(at_work))
            where += places(at_work[ident])
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(KeyboardInterrupt))
    finally:
        sys.setswitchinterval(interval_s)


class Life:
    """One process."""

    def __init__(self, case: Case, out: int, orders: int) -> None:
        self.case, self.out, self.orders = case, out, orders

    def tell(self, **what: Any) -> None:
        os.write(self.out, json.dumps(what).encode() + b"\n")

    def live(self, folder: Path, run_id: str, strike: Strike | None, measure: Measure | None, seed: str) -> None:
        at, when, tracing = 0, "", Tracing()
        if strike is not None and measure is not None:
            if strike.kind == "kill-write":
                at, when = 1 + int(strike.at * measure.writes), "after" if strike.behind else "before"
            elif strike.kind.startswith("trace"):
                other = strike.kind == "trace-other" and measure.other_calls > 0
                total = measure.other_calls if other else measure.main_calls
                tracing = Tracing(1 + int(strike.at * total), strike.opcode, other=other)
        s.OUTSIDE.open(folder, at, when)
        with Telling.open(folder / "runs.db", store_id="s") as journal:
            self.tell(begun=True)
            began = time.monotonic()
            said, where = self.attempt(journal, run_id, strike, measure, tracing, seed)
            measured = [time.monotonic() - began, s.OUTSIDE.writes, tracing.calls[False], tracing.calls[True]]
            if strike is not None and not strike.kind.startswith("kill"):
                self.tell(struck=said == "interrupted" or bool(where), said=said, where=where)
                rng = random.Random(seed)
                while (what := os.read(self.orders, 1)) in {b"g", b"t"}:
                    again, tracing = None, Tracing()
                    if what == b"t" and measure is not None:
                        other = rng.random() < 0.5 and measure.other_calls > 0
                        calls_made = measure.other_calls if other else measure.main_calls
                        again = Strike("trace-other" if other else "trace-main", 0)
                        tracing = Tracing(1 + int(rng.random() ** 2 * calls_made), rng.randint(1, 60), other=other)
                    said, where = self.attempt(journal, run_id, again, None, tracing, seed)
                    kind = again.kind if again else ""
                    self.tell(struck=said == "interrupted" or bool(where), said=said, where=where, kind=kind)
                return
        self.tell(said=said, measured=measured)

    def attempt(  # noqa: PLR0917 - all that is known of a strike
        self,
        journal: Telling,
        run_id: str,
        strike: Strike | None,
        measure: Measure | None,
        tracing: Tracing,
        seed: str,
    ) -> tuple[str, list[str]]:
        """Run it, and say what became of it, and where it was interrupted."""
        where, watcher = list[str](), None
        try:
            try:
                if strike is not None and measure is not None and strike.kind == "async":
                    delay_s, rng = strike.at * measure.seconds, random.Random(seed)
                    watcher = threading.Thread(
                        target=an_interrupt_for_somebody, args=(delay_s, rng, where), daemon=True
                    )
                    watcher.start()
                if strike is not None and strike.kind == "signal":
                    signal.signal(signal.SIGINT, signal.default_int_handler)
                if measure is None and strike is None and tracing.call < 0 and not self.case.measuring:
                    return self.run(journal, run_id), []
                if strike is not None and not strike.kind.startswith("trace"):
                    return self.run(journal, run_id), where
                with tracing.on():
                    said = self.run(journal, run_id)
                return said, tracing.where
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                if watcher is not None:
                    watcher.join()
        except KeyboardInterrupt as interrupt:
            sys.settrace(None)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if watcher is not None:
                watcher.join()
            trace = traceback.extract_tb(interrupt.__traceback__)
            return "interrupted", tracing.where or where or [f"{each.filename}:{each.lineno}" for each in trace[-6:]]

    def run(self, journal: Telling, run_id: str) -> str:
        about: Any = {"run_id": run_id, "input": {"parts": self.case.program, "of": self.case.run_id}}
        try:
            if self.case.asynchronous:
                asyncio.run(journal.run_async(s.agent_soon, **about))
            else:
                journal.run(s.agent, **about)
        except f.RunFailed as failed:
            return f"failed {failed.cause}" + (" down" if "down" in json.dumps(failed.error) else "")
        except f.RunWaiting:
            return "waiting"
        except f.RunBusy:
            return "busy"
        except f.RunNotDue:
            return "not due"
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - it is looked up what became of the run
            if "down" in str(error) and isinstance(error, f.StepFailed):
                return "failed error down"
            return "raised " + "".join(traceback.format_exception(error))[-3000:]
        return "completed"

    # The run is queued; people.

    def queue(self, folder: Path) -> None:
        s.OUTSIDE.open(folder)
        with (
            Telling.open(folder / "runs.db", store_id="s") as journal,
            closing(apsw.Connection(str(folder / "runs.db"))) as bare,
        ):
            bare.execute("CREATE TABLE bookings (id INTEGER PRIMARY KEY, key TEXT, x INTEGER)")
            name = "agent_soon" if self.case.asynchronous else "agent"
            journal.enqueue(name, {"parts": self.case.program, "of": self.case.run_id}, run_id=self.case.run_id)
            for number in range(2):
                journal.signal(self.case.run_id, "news", {"n": number}, signal_id=f"s{number}")
        self.tell(said="queued")

    def speak(self, folder: Path, run_id: str) -> None:
        """Answer truthfully what is open; tell which run goes on, and how often somebody was asked of a call."""
        s.OUTSIDE.open(folder)
        asked = 0
        with Telling.open(folder / "runs.db", store_id="s", by="people") as journal:
            self.tell(begun=True)
            while journal.store.head(run_id + "-") is not None:
                run_id += "-"
            state = journal.state(run_id)
            status = state.status.status
            waits = {wait["id"]: wait["kind"] for wait in state.status.waits} if status == "waiting" else {}
            for wait, kind in waits.items():
                if kind == "approval":
                    self.answer(journal, run_id, wait)
            if "recoveries" in waits.values():
                journal.resume(run_id)
            if status == "failed" or "question" in waits.values():
                for call_id in list(state.calls.unresolved()):
                    if status == "failed" or call_id in waits:
                        asked += 1
                        self.word(journal, run_id, call_id)
            if status == "failed":
                if state.status.cause == "error":
                    s.OUTSIDE.mended().touch()
                run_id = journal.retry(run_id, new_run_id=run_id + "-")
        self.tell(said="spoken", run_id=run_id, asked=asked)

    def answer(self, journal: Telling, run_id: str, approval_id: str) -> None:
        state = journal.state(run_id)
        if approval_id not in {wait["id"] for wait in state.status.waits}:
            return
        x = next(
            record.event.args["x"]  # type: ignore[attr-defined]
            for record in journal.events(run_id, types=["approval.requested"])
            if record.event.approval_id == approval_id  # type: ignore[attr-defined]
        )
        with suppress(Exception):  # it has been answered by somebody who was killed then
            if x % 3 == 0:
                journal.reject(run_id, approval_id)
            else:
                journal.approve(run_id, approval_id, args={"x": x + 1000} if x % 3 == 1 else None)

    def word(self, journal: Telling, run_id: str, call_id: str) -> None:
        started = next(
            record.event
            for head in journal.runs()
            for record in journal.events(head.run_id, types=["tool.started"])
            if record.event.call_id == call_id  # type: ignore[attr-defined]
        )
        assert isinstance(started, e.ToolStarted)
        args: Any = started.args
        if s.OUTSIDE.happened(call_id):
            journal.resolve(run_id, call_id, "happened", s.told_of(started.tool, args["x"], call_id))
        else:
            journal.resolve(run_id, call_id, "did_not_happen")

    # Judges.

    def facts(self, folder: Path, run_id: str) -> None:
        """Tell what a fresh process finds: what must be as in peace, and what is wrong in any case."""
        s.OUTSIDE.open(folder)
        wrong = list[str]()
        lines = s.OUTSIDE.lines()
        with AsyncJournal.open(folder / "runs.db", store_id="s") as journal:
            told = [line.split() for line in (folder / "acknowledged").read_text().splitlines()]
            stored, keys = dict[tuple[str, int], str](), dict[str, Any]()
            for head in journal.runs():
                records = list(journal.store.read(head.run_id))
                if [each.seq for each in records] != list(range(1, head.head_seq + 1)):
                    wrong.append(f"gap in {head.run_id}")
                stored |= {(head.run_id, each.seq): each.hash for each in records}
                wrong += open_at_the_end_of_a_step(records)
                for each in records:
                    if isinstance(each.event, e.ToolStarted):
                        args: Any = each.event.args
                        keys[each.event.call_id] = [each.event.tool, args.get("x")]
            wrong += [f"lost {each}" for each in told if stored.get((each[0], int(each[1]))) != each[2]]
            wrong += [f"audit {each}" for each in audit_store(journal.store) if each.severity == "error"]
            booked = [[key, x] for key, x in journal.sql("SELECT key, x FROM bookings ORDER BY x, key")]
            last = [record.event for record in journal.events(run_id, types=["run.completed"])]
            output = last[-1].output if last and isinstance(last[-1], e.RunCompleted) else "none"
        counts = Counter((name, key) for name, key, _ in lines)
        wrong += [f"twice {each}" for each, count in counts.items() if each[0] in s.ONCE and count > 1]
        wrong += [f"unknown key {each}" for each in counts if each[0] != "model" and each[1] not in keys]
        effects = sorted({(name, x, key) for name, key, x in lines if name != "model"})
        self.tell(output=output, effects=effects, booked=booked, wrong=wrong, lines=len(lines))


def open_at_the_end_of_a_step(records: list[Any]) -> list[str]:
    """Return which calls had no end when their step completed."""
    wrong, started = list[str](), dict[str, Any]()
    for each in records:
        if each.type in ("tool.started", "model.started"):
            started[each.event.call_id] = each.step
        elif each.type in ENDS:
            started.pop(each.event.call_id, None)
        elif each.type == "step.completed":
            wrong += [f"{call} is open at the end of {step}" for call, step in started.items() if step == each.step]
    return wrong


# ---------------------------------------------------------------------------------------------------- the parent


class Hang(Exception):
    """A process says nothing any more."""


class Child:
    """A process that does one thing of a life."""

    def __init__(self, case: Case, what: str, *args: Any) -> None:
        self.stacks = case.folder / "stacks"
        here, out = os.pipe()
        orders, self.orders = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(here)
            os.close(self.orders)
            in_child(Life(case, out, orders), self.stacks, what, args)
        os.close(out)
        os.close(orders)
        self.file, self.rest, self.over = here, b"", False

    def line(self, bound_s: float = HANGS_S) -> Any:
        """What it says next; None if it is over. Raises Hang, and TimeoutError for a bound that is no hang."""
        until = time.monotonic() + bound_s
        while b"\n" not in self.rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.file], [], [], left)[0]:
                if bound_s < HANGS_S:
                    raise TimeoutError
                os.kill(self.pid, signal.SIGUSR1)
                time.sleep(1)
                self.end()
                raise Hang(self.stacks.read_text())
            got = os.read(self.file, 65536)
            if not got:
                return None
            self.rest += got
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def order(self, what: bytes) -> None:
        os.write(self.orders, what)

    def end(self, *, kill: bool = True) -> int:
        """Wait for its end, killed if need be; return its code."""
        if self.over:
            return 0
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        self.over = True
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.file)
        os.close(self.orders)
        return code


def in_child(life: Life, stacks: Path, what: str, args: tuple[Any, ...]) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        logging.disable(logging.CRITICAL)
        threading.excepthook = lambda _: None  # an interrupt that leaves a thread is judged by what it leaves behind
        sys.unraisablehook = lambda _: None
        faulthandler.register(signal.SIGUSR1, stacks.open("w"), all_threads=True)
        getattr(life, what)(*args)
        code = 0
    except BaseException as error:  # noqa: BLE001 - it is the parent's to judge
        life.tell(error="".join(traceback.format_exception(error))[-3000:])
    finally:
        os._exit(code)


class Violation(Exception):
    """A judge's finding."""


class Case:
    """A random agent, undisturbed and struck."""

    def __init__(self, root: Path, seed: int, number: int, mode: str) -> None:
        self.number, self.mode = number, mode
        self.name = f"{seed}-{number}-{mode}"
        self.rng = random.Random(self.name)
        self.asynchronous = self.rng.random() < 0.5
        self.program = s.draw(self.name, asynchronous=self.asynchronous)
        self.run_id = f"r{number}"
        self.folder = root / self.name
        self.counts = Counter[str]()
        self.children = list[Child]()
        self.struck = list[Any]()
        self.measuring = False

    def child(self, what: str, *args: Any) -> Child:
        child = Child(self, what, *args)
        self.children.append(child)
        return child

    def asked(self, what: str, *args: Any) -> Any:
        """What a child says last that isn't struck."""
        child, said = self.child(what, *args), None
        while (line := child.line()) is not None:
            said = line
            if "error" in line:
                raise Violation(f"{what}: {line['error']}")
        child.end(kill=False)
        return said

    def judge(self, limit: int) -> None:
        """Run it in peace, and then struck, at most so often. Raises Violation."""
        try:
            peace, measure = self.in_peace()
            facts = self.struck_down(measure, limit)
            if facts["wrong"]:
                raise Violation(f"wrong: {facts['wrong']}")
            for name in ("output", "booked", "effects"):
                if peace[name] != facts[name]:
                    raise Violation(f"another {name}: {peace[name]} in peace, {facts[name]} struck")
        except Hang as hang:
            raise Violation(f"hang: {hang}") from hang
        finally:
            for child in self.children:
                child.end()

    def in_peace(self) -> tuple[Any, Measure]:
        folder, newest, total = self.folder / "peace", self.run_id, [0.0, 0, 0, 0]
        folder.mkdir(parents=True)
        self.asked("queue", folder)
        for _ in range(30):
            self.measuring = self.mode == "interrupt"
            said = self.asked("live", folder, newest, None, None, "")
            self.measuring = False
            total = [max(a, b) for a, b in zip(total, said["measured"], strict=True)]
            if said["said"] == "completed":
                facts = self.asked("facts", folder, newest)
                if facts["wrong"]:
                    raise Violation(f"in peace: {facts['wrong']}")
                return facts, Measure(*total)
            newest = self.goes_on(folder, newest, said["said"])
        raise Violation("no end in peace")

    def goes_on(self, folder: Path, newest: str, said: str) -> str:
        if said == "not due":
            time.sleep(0.02)
            return newest
        if said not in ("waiting", "failed error down"):
            raise Violation(f"a life ended as {said}")
        if self.mode == "kill" and self.rng.random() < 0.2:
            child = self.child("speak", folder, newest)
            child.line()
            with suppress(TimeoutError):
                while child.line(self.rng.uniform(0, 0.03)) is not None:
                    pass
            self.counts["kill-people"] += child.end() == -signal.SIGKILL
        spoken = self.asked("speak", folder, newest)
        self.counts["questions"] += spoken["asked"]
        return str(spoken["run_id"])

    def struck_down(self, measure: Measure, limit: int) -> Any:
        folder, newest = self.folder / "struck", self.run_id
        folder.mkdir(parents=True)
        self.asked("queue", folder)
        left = min(limit, self.rng.randint(4, 12))
        for life in range(LIVES_MAX):
            strike = self.strike() if left > 0 else None
            self.struck.append(strike)
            if strike is None:
                said = self.asked("live", folder, newest, None, None, "")["said"]
            elif strike.kind.startswith("kill"):
                said = self.killed(folder, newest, strike, measure, life)
            else:
                said = self.interrupted(folder, newest, strike, measure, life)
            left -= strike is not None
            if said == "completed":
                facts = self.asked("facts", folder, newest)
                self.counts["effects"] += facts["lines"]
                self.counts["runs"] += len(newest) - len(self.run_id) + 1
                return facts
            if said != "killed":
                newest = self.goes_on(folder, newest, said)
        raise Violation("no end")

    def strike(self) -> Strike:
        rng = self.rng
        if self.mode == "kill":
            return Strike(
                rng.choice(["kill-time", "kill-write", "kill-write"]), rng.random() ** 2, behind=rng.random() < 0.5
            )
        kind = rng.choice(["trace-main", "trace-main", "trace-other", "trace-other", "signal", "async"])
        return Strike(kind, rng.random() ** 2, rng.randint(1, 60), same=rng.random() < 0.5)

    def killed(self, folder: Path, newest: str, strike: Strike, measure: Measure, life: int) -> str:
        child, said = self.child("live", folder, newest, strike, measure, f"{life}"), ""
        line = child.line()
        if strike.kind == "kill-time":
            with suppress(TimeoutError):
                line = child.line(strike.at * measure.seconds)
            if not (line and "said" in line):
                child.end()
                self.counts[strike.kind] += 1
                return "killed"
        while line is not None:
            if "error" in line:
                raise Violation(line["error"])
            said = line.get("said", said)
            line = child.line()
        code = child.end(kill=False)
        self.counts[strike.kind] += code == -signal.SIGKILL
        return said or "killed"

    def interrupted(self, folder: Path, newest: str, strike: Strike, measure: Measure, life: int) -> str:
        child = self.child("live", folder, newest, strike, measure, f"{self.name} {life}")
        line = child.line()
        if strike.kind == "signal":
            line = None
            with suppress(TimeoutError):
                line = child.line(min(strike.at * measure.seconds, HANGS_S / 2))
            if line is None:
                os.kill(child.pid, signal.SIGINT)
        if line is None or "begun" in line:
            line = child.line()
        if line is None or "error" in line:
            raise Violation(f"{strike}: {line}")
        kind = strike.kind + (" asyncio" if self.asynchronous else " plain")
        self.counts[kind] += line["struck"]
        self.struck[-1] = [strike, line]
        said = line["said"]
        if line["struck"]:
            if said not in ("interrupted", "completed"):
                self.counts["ended otherwise"] += 1
            other = "" if strike.same else self.asked("live", folder, newest, None, None, "")["said"]
            for what in b"ttttg" if strike.same else b"g":
                child.order(bytes([what]))
                line = child.line()
                if line is None or "error" in line:
                    raise Violation(f"{strike}, then: {line}")
                said = line["said"]
                self.struck[-1].append([other, line])
                if line["kind"]:
                    self.counts[line["kind"] + (" asyncio" if self.asynchronous else " plain")] += line["struck"]
                if said != "interrupted":
                    break
            if other and other != said and not other.startswith("failed error"):
                raise Violation(f"another process said {other}, the one that was interrupted {said}")
        child.order(b"e")
        child.end(kill=False)
        return str(said)


def hurry() -> None:
    """Have this process, and all that it forks, wait for less."""
    vars(runner).update(backoff_s=0.01)
    for module in (calls, order, steps):
        vars(module).update(left_out_wait_s=MADE_CALM_S * 5)


def strike_all(
    kills: int, interrupts: int, seed: int, *, only: int | None = None, keep: bool = False, bound_s: float = 1e9
) -> int:
    hurry()
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    root = Path(tempfile.mkdtemp(prefix="strike", dir=place))
    began, counts, violations, number = time.monotonic(), Counter[str](), list[str](), 0
    while (only is None or number <= only) and not done(counts, kills, interrupts):
        if time.monotonic() - began > bound_s:
            break
        mode = "kill" if total(counts, "kill") < kills and (number % 2 == 0 or interrupts == 0) else "interrupt"
        if only is not None:
            mode = "kill" if number % 2 == 0 and kills else "interrupt"
        if only is None or number == only:
            case = Case(root, seed, number, mode)
            goal = kills - total(counts, "kill") if mode == "kill" else interrupts - struck(counts)
            try:
                case.judge(goal if only is None else 8)
            except Violation as violation:
                violations.append(f"case {number} ({mode}), {case.program}\n  {case.struck}\n  {violation}")
                sys.stderr.write(violations[-1] + "\n")
                sys.stderr.flush()
            else:
                if not keep:
                    shutil.rmtree(case.folder)
            counts += case.counts
            counts["cases"] += 1
            counts["asyncio cases"] += case.asynchronous
        number += 1
    report(counts, len(violations), seed, time.monotonic() - began)
    if not violations and not keep:
        shutil.rmtree(root)
    return 1 if violations else 0


def total(counts: Counter[str], start: str) -> int:
    return sum(count for name, count in counts.items() if name.startswith(start))


def struck(counts: Counter[str]) -> int:
    return sum(total(counts, name) for name in ("trace", "signal", "async "))


def done(counts: Counter[str], kills: int, interrupts: int) -> bool:
    return total(counts, "kill") >= kills and struck(counts) >= interrupts


def report(counts: Counter[str], violations: int, seed: int, seconds: float) -> None:
    rows: dict[str, Any] = {"kills": total(counts, "kill")}
    rows |= {f"  {name}": count for name, count in sorted(counts.items()) if name.startswith("kill")}
    rows["interrupts"] = struck(counts)
    kinds = ("trace", "signal", "async ")
    rows |= {f"  {name}": count for name, count in sorted(counts.items()) if name.startswith(kinds)}
    rows |= {name: counts[name] for name in ("cases", "asyncio cases", "runs", "effects", "questions")}
    rows |= {"violations": violations, "seed": seed, "seconds": round(seconds)}
    for name, value in rows.items():
        sys.stdout.write(f"{name:<24}{value:>8}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Strike random agents, and judge how they end.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--interrupts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", type=int, help="the number of the one case to do")
    parser.add_argument("--keep", action="store_true", help="keep the stores")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after that")
    given = parser.parse_args()
    return strike_all(
        given.kills, given.interrupts, given.seed, only=given.only, keep=given.keep, bound_s=given.seconds
    )


if __name__ == "__main__":
    sys.exit(main())
