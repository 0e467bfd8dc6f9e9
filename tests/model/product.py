"""The product in the shape of `reference_model`: the same names, so that one program and one judge fit both.

Boundaries are the model's: each append of a journal, and around each body of a tool. A process that dies there
appends nothing more; its epoch is put into `Store.gone`, which makes its owner provably dead to everybody else.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

import apsw
import orjson
from model import reference_model
from model.reference_model import STORE_ID, Tool, World
from tasks.lab import VirtualLoop, finish

from runjournal.async_journal import AsyncRunner
from runjournal.async_run import AsyncRun
from runjournal.engine import failures as f
from runjournal.engine.attempts import Sender
from runjournal.engine.callees import ModelTarget, ToolTarget
from runjournal.engine.calls import LIVE, Caller
from runjournal.engine.driver import Driver
from runjournal.engine.parts import RunParts
from runjournal.engine.requests import request_hash
from runjournal.engine.retry import Retry
from runjournal.engine.tools import Tool as ProductTool
from runjournal.engine.tools import bound_to, call_key
from runjournal.importers.jsonl import ImportConflict
from runjournal.importers.transfer import export_runs, import_jsonl
from runjournal.journal import Journal as Product_
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.base import ERASED as BASE_ERASED
from runjournal.log.base import Event as ProductEvent
from runjournal.log.base import RecordedEvent, register
from runjournal.log.clock import FakeClock
from runjournal.log.codec import plain
from runjournal.log.errors import AppendRefused, InvalidArgument, NotNewest, RunNotFound
from runjournal.log.memory import MemoryStore
from runjournal.log.memory_transaction import MemoryRecorder
from runjournal.log.owner import Process
from runjournal.log.sqlite import SQLiteStore
from runjournal.naming import named
from runjournal.projections.state import RunState, dump_bytes
from runjournal.projections.transcript import messages
from runjournal.run import Run
from runjournal.runner import Claim, Runner
from runjournal.writing import keys
from runjournal.writing.appender import Batch

STATUSES = {"scheduled_retry": "scheduled"}
TYPES = {"plan.set": "plan.updated"}
AGENT = eval(compile("lambda agent, run_of: lambda run: agent(run_of(run))", "<agent>", "eval"))  # of no module


class Crash(f.Stop):
    """The process dies here."""


# Which processes live: each claim is that of a process of its own, with a pid that no process here has.

OWNERS: dict[int, tuple[Store, str, int]] = {}
_started = owner.started


def _started_in_lab(pid: int) -> str | None:
    if pid not in OWNERS:
        return _started(pid)
    store, run_id, epoch = OWNERS[pid]
    return None if (run_id, epoch) in store.gone else "1"


owner.started = _started_in_lab
FIRST_PID = 10_000_000


def process(pid: int, boots: int = 0) -> Process:
    return Process("lab", f"boot {boots}", "namespace", pid, "1")


@register
@dataclass(frozen=True, slots=True)
class LabSaid(ProductEvent):
    """A type of somebody's own."""

    TYPE: ClassVar[str] = "x.lab.said"
    text: str


@dataclass
class WorldClock(FakeClock):
    """The world's time, and a tick for each look; nobody's lease expires."""

    world: Any = None

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.world.now + self.world.slip)

    def boottime_s(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.world.now += seconds


class RewindStore(MemoryStore):
    """A store in memory whose power can be cut: what came after the last durable commit is gone."""

    _kept: tuple[Any, list[Any]] | None = None

    def transact(self, decide: Any, *, durable: bool) -> Any:
        before = self._kept or ({name: dict(rows) for name, rows in self._tables.items()}, self.last_position())
        result = super().transact(decide, durable=durable)
        self._kept = None if durable else before
        return result

    def power_cut(self) -> None:
        if self._kept is not None:
            tables, count = self._kept
            recorder = MemoryRecorder()
            recorder.insert_events(self._recorder._stored_events[:count])
            self._tables, self._recorder, self._kept = tables, recorder, None


class Event(NamedTuple):
    """An event in the words of the model, and the record that it is of."""

    seq: int
    type: str
    data: Any
    record: RecordedEvent

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and self.record == other.record

    def __hash__(self) -> int:
        return hash(self.record.hash)


CODE_CHARS = 20  # the real one is a digest


def in_words_of_the_model(event: ProductEvent, store: Store, attempt: int) -> Any:
    """The data of an event as the model has it."""
    return unerased(_in_words_of_the_model(event, store, attempt))


def _in_words_of_the_model(event: ProductEvent, store: Store, attempt: int) -> Any:
    match event:
        case e.RunQueued():
            return {"link": event.link or "", "scope": event.scope, "again": event.again or [], "base": event.base}
        case e.RunClaimed():
            resume = {"code": "reopen", "child": "reopen"}.get(event.resume or "", event.resume)
            how = {"boot": int(event.boot_id.removeprefix("boot ")), "code": event.code_version or "", "resume": resume}
            named = {name: value for name, value in how.items() if value and len(str(value)) < CODE_CHARS}
            return {"epoch": event.epoch} | named
        case e.RunRequeued():
            return {"reason": event.reason, "mistake": event.error is not None}
        case e.RunWaiting():
            stands = {wait["kind"] for wait in event.for_} & {"code", "recoveries"}
            timers = [wait["id"] for wait in event.for_ if wait["kind"] == "timer"]
            signals = [wait["id"] for wait in event.for_ if wait["kind"] == "signal"]
            told = {"for": [wait["id"] for wait in event.for_], "timers": timers, "signals": signals}
            told["due"] = event.due_at
            return told | ({"stands": stands.pop()} if stands else {})
        case e.RunCompleted():
            return {"output": event.output}
        case e.RunFailed():
            cause = "error" if event.cause in ("retries_exhausted", "rejected") else event.cause
            return {"cause": cause, "error": event.error, "left": event.left}
        case e.StepStarted():
            keys = ("id", "name", "kind", "index", "entry", "attempt")
            return {key: getattr(event, key) for key in keys}
        case e.StepFailed():
            return {"index": event.index, "error": _error(event.error, event.transient) | {"attempt": attempt}}
        case e.ModelStarted():
            return {"call_id": event.call_id, "tool": event.model, "policy": "model", "attempt": event.attempt,
                    "args": store.requests.get(event.request_hash, BASE_ERASED)}  # fmt: skip
        case e.ToolStarted():
            keys = ("call_id", "tool", "policy", "args", "attempt")
            return {key: getattr(event, key) for key in keys}
        case e.ModelCompleted():
            return {"call_id": event.call_id, "attempt": event.attempt, "result": event.response}
        case e.ToolFailed() | e.ModelFailed():
            keys = ("call_id", "attempt", "again", "did_not_happen", "lost", "settled")
            data = {key: getattr(event, key, False) for key in keys}
            return data | {"error": _error(event.error, event.transient)}
        case e.ChildSpawned():
            return {"child": event.child_run_id, "call_id": event.call_id}
        case e.ChildFinished():
            error = event.error and {"type": event.error["type"], "message": event.error["message"]}
            return {"child": event.child_run_id, "status": event.status, "output": error or event.output}
        case e.PlanSet():
            task = event.tasks[-1]
            return {"task_id": task["id"], "status": task["status"]}
        case e.SignalTaken():
            return {"wait_id": event.wait_id, "took": bool(event.wait_id and event.signal_ids)}
        case e.RunCancelled() | e.RunErased() | e.PurgedEvent():
            return {}
        case e.RunCancelRequested():
            return {"mode": event.mode} | ({"above": event.above} if event.above else {})
        case _:
            return {name: getattr(event, name) for name in event.__slots__}


def unerased(value: Any) -> Any:
    """A value in which stands, as in the model, a text for what was erased."""
    if value == BASE_ERASED:
        return reference_model.ERASED
    if isinstance(value, dict):
        return {key: unerased(each) for key, each in value.items()}
    return [unerased(each) for each in value] if isinstance(value, list) else value


def in_words_of_the_product(type: str, data: Any, store: Store) -> ProductEvent:
    """What anybody says of a run, or records into an open one."""
    call = data.get("call_id"), data.get("attempt")
    match type:
        case "message.appended":
            return e.MessageAppended(data["role"], data["content"], data.get("message_id"))
        case "memory.set":
            return e.MemorySet(data["key"], data["value"])
        case "context.compacted":
            return e.ContextCompacted(data["summary"], 1)
        case "cost.recorded":
            return e.CostRecorded("1", "USD", "lab")
        case "tool.started":
            return e.ToolStarted(
                data["call_id"], data["tool"], data["args"], data["policy"], False, "ask", data["attempt"]
            )
        case "tool.completed":
            return e.ToolCompleted(*call, data["result"])
        case "tool.failed":
            return e.ToolFailed(*call, data["error"], transient=False)
        case "model.started":
            digest = request_hash(data["args"]["request"])
            store.requests[digest] = data["args"]
            return e.ModelStarted(data["call_id"], data["tool"], digest, data["attempt"])
        case "model.completed":
            return e.ModelCompleted(*call, data["result"])
        case "x.lab.said":
            return LabSaid(data["text"])
        case _:
            return e.NoteAdded(data["text"])


def _error(error: Any, transient: bool) -> Any:
    return {"type": error["type"], "message": error["message"], "transient": transient}


class Store:
    """A store of the product, and what the model's store lets one see."""

    def __init__(self, world: World, path: str | None = None) -> None:
        self.world = world
        self.clock = WorldClock(world=world)
        self.inner = (
            SQLiteStore(path, clock=self.clock, store_id=STORE_ID)
            if path
            else RewindStore(clock=self.clock, store_id=STORE_ID)
        )
        self.gone: set[tuple[str, int]] = set()
        self.requests: dict[str, Any] = {}
        self.reader = Product_(self.inner, process=process(0))
        self._log: dict[str, list[Event]] = {}
        self._attempts: dict[str, int] = {}
        self.purged_rows: list[str] = []
        self._seen, self._sorted = 0, dict[str, list[Event]]()

    @property
    def log(self) -> dict[str, list[Event]]:
        """What is stored, in the words of the model."""
        if (last := self.inner.last_position()) == self._seen and self._sorted:
            return self._sorted
        self._seen = last
        for head in self.inner.heads(limit=100):
            known = self._log.setdefault(head.run_id, [])
            if head.head_seq > len(known):
                for record in self.inner.read(head.run_id, len(known)):
                    if isinstance(record.event, e.StepStarted):
                        self._attempts[head.run_id] = record.event.attempt
                    data = in_words_of_the_model(record.event, self, self._attempts.get(head.run_id, 0))
                    known.append(Event(record.seq, TYPES.get(record.type, record.type), data, record))
        self._sorted = dict(sorted(self._log.items(), key=lambda item: item[1][0].record.position))
        return self._sorted

    def power_cut(self) -> None:
        self.inner.power_cut()
        self.read_anew()

    def read_anew(self) -> None:
        """What was read before is there no more."""
        self._log, self._sorted = {}, {}

    def move(self, inner: Any) -> None:
        """Go on with another store, which holds the same."""
        self.inner, self.reader = inner, Product_(inner, process=process(0))

    @property
    def order(self) -> range:
        return range(self.inner.last_position())

    @property
    def newest(self) -> dict[str, str]:
        return dict(self.inner.index_rows("lines"))

    @property
    def effects(self) -> dict[tuple[str, str], Any]:
        return {(row[0], row[1]): row for row in self.inner.index_rows("effects")}

    @property
    def table(self) -> list[str]:
        """The user's own rows."""
        if isinstance(self.inner, SQLiteStore):
            return [key for (key,) in self.inner.sql("SELECT key FROM user_table")]
        return self.purged_rows + self._rows()

    def _rows(self) -> list[str]:
        """In memory there is no table: the events say what would be in it."""
        events = [event for log in self.log.values() for event in log if event.data]
        calls = {event.data["call_id"]: event.data for event in events if event.type == "tool.started"}
        return [
            event.data["call_id"]
            for event in events
            if event.type == "tool.completed" and calls[event.data["call_id"]]["policy"] == "transactional"
        ]

    def state(self, run_id: str, upto: int | None = None) -> State:
        head = self.inner.head(run_id)
        return State(RunState() if head is None else self.reader.fold(RunState, run_id, at=upto), self)

    def parts(self, run_id: str) -> list[tuple[str, int | None]]:
        """The runs whose steps are this one's, oldest first, each with how much of it."""
        parts: list[tuple[str, int | None]] = [(run_id, None)]
        while run_id in self.log and (first := self.log[run_id][0].data).get("link") in ("retry", "fork"):
            run_id = first["base"]["run_id"]
            parts.insert(0, (run_id, first["base"]["seq"]))
        return parts

    def line(self, run_id: str, upto: int | None = None) -> list[Event]:
        parts = self.parts(run_id)
        parts[-1] = (run_id, upto)
        return [event for part, last in parts for event in self.log.get(part, [])[:last] if not self.purged(part)]

    def purged(self, run_id: str) -> bool:
        return bool(self.log[run_id]) and self.log[run_id][-1].type == "run.purged"


class State:
    """The folded state of the product, by the model's names."""

    def __init__(self, state: RunState, store: Store | None = None) -> None:
        self.product = state
        self.store = store

    def dump(self) -> str:
        return dump_bytes(self.product.dump()).decode()

    @classmethod
    def load(cls, text: str) -> State:
        return cls(RunState.load(orjson.loads(text)))

    def apply(self, event: Event) -> None:
        self.product.apply(event.record)

    @property
    def status(self) -> str:
        status = self.product.status.status
        return STATUSES.get(status, status)

    @property
    def output(self) -> Any:
        log = self.store.log[self.product.run_id]
        return log[self.product.seq - 1].data if self.product.status.terminal else None

    @property
    def waits(self) -> list[str]:
        return [wait["id"] for wait in self.product.status.waits]

    @property
    def due(self) -> str | None:
        return self.product.status.due_at

    @property
    def stands(self) -> str:
        return self.product.stands

    @property
    def woken(self) -> bool:
        return self.product.status.woken

    @property
    def scope(self) -> str:
        return self.product.status.scope

    @property
    def epoch(self) -> int:
        return self.product.status.epoch

    @property
    def index(self) -> int:
        return self.product.steps.last_index

    @property
    def redo(self) -> str | None:
        return self.product.steps.redo

    @property
    def uses(self) -> dict[str, int]:
        return self.product.steps.uses

    @property
    def step(self) -> Any:
        opened = self.product.steps.open
        return opened and opened.dump()

    @property
    def done(self) -> dict[str, Any]:
        """Step -> its recorded result."""
        found, step = dict[str, Any](), ""
        for event in self.store.line(self.product.run_id, self.product.seq):
            if event.type == "step.started":
                step = event.data["id"]
            if event.type == "step.completed":
                found[step] = event.data["result"]
        return found

    @property
    def context(self) -> Any:
        """What is committed."""
        records = [event.record for event in self.store.line(self.product.run_id, self.product.seq)]
        return {
            "messages": [{"role": x.role, "content": unerased(x.content)} for x in messages(records) if x.committed],
            "memory": unerased(self.product.memory.committed),
            "plan": {task["id"]: task["status"] for task in self.product.plan.base},
        }

    @property
    def calls(self) -> dict[str, Any]:
        return {key: CallView(call, self.args_at(call.args_seq)) for key, call in self.product.calls.known.items()}

    def args_at(self, at: int) -> Any:
        """The args of the tool.started at a place in the line, restarts included."""
        run_id = self.product.run_id
        while run_id in self.store.log:
            offset = self.store.reader.fold(RunState, run_id, at=1).offset
            if at > offset:
                return self.store.log[run_id][at - offset - 1].data.get("args")
            run_id = self.store.log[run_id][0].data["base"]["run_id"]
        return None

    def unresolved(self) -> dict[str, Any]:
        calls = self.calls
        return {key: calls[key] for key in self.product.calls.unresolved()}

    @property
    def approvals(self) -> dict[str, Any]:
        return {key: {"decision": each.decision, "args": self.asked_at(each.asked_seq)} for key, each in
                self.product.approvals.known.items()}  # fmt: skip

    def asked_at(self, at: int) -> Any:
        return self.args_at(at)

    @property
    def inbox(self) -> list[Any]:
        by_id = {x.data["signal_id"]: x.data["payload"] for log in self.store.log.values() for x in log
                 if x.type == "signal.received" and x.data}  # fmt: skip
        return [[at, by_id[signal_id]] for at, signal_id, _ in self.product.inbox.signals]


class CallView:
    def __init__(self, call: Any, args: Any) -> None:
        self.args = args
        for name in ("tool", "policy", "step", "attempt", "status", "unresolved", "sent", "maybe"):
            setattr(self, name, getattr(call, name))


# A process.


class Ticking(Product_):
    """A journal that may die at each append."""

    dead: Crash | None = None
    world: World

    def tick(self, where: str) -> None:
        if self.dead:
            raise self.dead
        try:
            self.world.tick(where)
        except Crash as crash:
            self.dead = crash
            raise

    def append(self, run_id: Any, events: Iterable[Any] = (), **how: Any) -> Any:
        drafts = list(events) or [draft.event for draft in run_id.drafts]  # a batch is named in place of the run
        where = TYPES.get(drafts[0].TYPE, drafts[0].TYPE)
        self.tick(f"before {where}")
        with same_salt(drafts[0]):
            records = super().append(run_id, () if isinstance(run_id, Batch) else drafts, **how)
        self.tick(f"after {where}")
        return records

    def append_all(self, batches: Any) -> Any:
        self.tick("before child.spawned")
        records = super().append_all(batches)
        self.tick("after child.spawned")
        return records

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        appender = self.ownership.appender
        append_made = appender.append_made

        def ticking_append(make: Any) -> Any:
            def ticking(tx: Any) -> Any:
                batch = make(tx)
                if batch.epoch:
                    self.tick("after effect")
                self.tick(f"before {batch.drafts[0].type}")
                return batch

            records = append_made(ticking)
            self.tick(f"after {records[0].type}")
            return records

        appender.append_made = ticking_append
        append_all_made = appender.append_all_made

        def ticking_all(make: Any) -> Any:
            def ticking(tx: Any) -> Any:
                for place, batch in enumerate(make(tx)):
                    if not place:
                        self.tick(f"before {batch.drafts[0].type}")
                    yield batch

            records = append_all_made(ticking)
            if records:
                self.tick(f"after {records[0][0].type}")
            return records

        appender.append_all_made = ticking_all


@contextmanager
def same_salt(first: ProductEvent) -> Iterator[None]:
    """A private line that begins has the ids of its calls worked out as in the model."""
    if not isinstance(first, e.RunQueued | e.RunOpened):
        yield
        return
    with patch.object(keys, "new_key", lambda: reference_model.SALT):
        yield


class LabTool(ProductTool[..., Any]):
    """A tool of the model as one of the product, in one process."""

    def __init__(self, tool: Tool, log: Ticking) -> None:
        super().__init__(
            tool.fn,
            tool.name,
            tool.policy,
            key=tool.key,
            key_ttl_s=tool.ttl,
            reconcile=tool.find,
            on_unknown=tool.on_unknown,
            not_sent=tool.not_sent,
        )
        self.log = log
        self.takes = tool.takes

    def bind(self, args: Any, kwargs: Any) -> Any:
        if self.takes:
            named = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in self.takes]
            bound_to(self.name, inspect.Signature(named), (), args, kwargs)
        return plain(dict(kwargs))

    def invoke(self, args: Any, key: str, tx: Any = None) -> Any:
        result = failing(self.log, lambda: self.fn(args, key))
        if tx is not None and isinstance(self.log.store, SQLiteStore):
            tx.execute("INSERT INTO user_table VALUES (?)", (key,))
        return result


def failing(log: Ticking, body: Callable[[], Any]) -> Any:
    try:
        return body()
    except Exception:
        log.tick("after failure")
        raise


class AsyncLabTool(LabTool):
    """The same as a coroutine function, but for a transactional one."""

    @property
    def is_async(self) -> bool:
        return self.policy != "transactional"

    def invoke(self, args: Any, key: str, tx: Any = None) -> Any:
        if not self.is_async:
            return super().invoke(args, key, tx)

        async def body() -> Any:
            return super(AsyncLabTool, self).invoke(args, key)

        return body()


class LabRunner(Runner):
    """A runner with the model's boundaries around the bodies of tools."""

    log: Ticking
    code = ""

    def claim(self, run_id: str, **how: Any) -> Claim | None:
        return super().claim(run_id, **how | ({"code": self.code} if self.code else {}))

    def check_lease(self, run_id: str, epoch: int) -> None:
        self.log.tick("before effect")
        self.log.ownership.leases._held.clear()  # no lease runs out here, so it is taken as if it had: ask the store
        super().check_lease(run_id, epoch)

    def parts(self, claim: Claim, driver: Driver, code: str) -> RunParts:
        parts = super().parts(claim, driver, code)
        self.bound(parts.caller.sender)
        return parts

    def bound(self, sender: Sender) -> None:
        ending = sender._ending

        def judged(*args: Any, **how: Any) -> Any:
            end = ending(*args, **how)
            self.log.tick("after effect")
            return end

        testify = sender._testify

        def testified(target: Any, call_id: str, attempt: int, ended: Any, word: str = "") -> None:
            if target.policy == "model" and word not in ("", "unknown"):  # the model tries, and is refused
                self.log.tick("before tool.resolved")
            testify(target, call_id, attempt, ended, word)

        sender._ending = judged  # type: ignore[method-assign]
        sender._testify = testified  # type: ignore[method-assign]


class AsyncLabRunner(LabRunner, AsyncRunner):
    """The same for asyncio agents."""


def on_a_loop(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run on a loop of its own, on virtual time; in a thread of its own if this one has a loop that runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _on_a_loop(main)
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(_on_a_loop(main))
        except BaseException as error:
            found.extend([None, error])  # raised where it is waited for

    thread = threading.Thread(target=work, name="another process")
    thread.start()
    thread.join()
    if len(found) > 1:
        raise found[1]
    return found[0]


def _on_a_loop(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main())
    finally:
        finish(loop)
        loop.close()


class Journal:
    """A process that runs agents, and people who speak to runs."""

    Tool: type[LabTool] = LabTool
    Runner: type[LabRunner] = LabRunner

    def __init__(self, store: Store, *tools: Tool, patience: int = 3, private: bool = False) -> None:
        self.store, self.given, self.patience, self.private = store, tools, patience, private
        self.code = ""
        self.boot()

    def boot(self) -> None:
        retry = Retry(attempts=reference_model.TRIES, first_s=0, within_s=1e9)
        self.log = Ticking(self.store.inner, by="lab", process=process(0), private=self.private, retry=retry)
        self.log.world = self.store.world
        tools = {tool.name: self.Tool(tool, self.log) for tool in self.given}
        self.runner = self.Runner(self.log, tools, patience=self.patience)
        self.runner.code = self.code

    def start(
        self, run_id: str, link: str = "", of: str = "", at: int | None = None, again: Iterable[str] = ()
    ) -> None:
        if not link:
            self.log.enqueue("lab", run_id=run_id)
        elif link == "fork":
            self.log.fork(of, at, new_run_id=run_id)
        else:
            ticks = self.store.world.ticks
            try:
                if link == "retry":
                    self.log.retry(of, again=again, new_run_id=run_id)
                else:
                    self.log.restart(of, new_run_id=run_id)
            except NotNewest:
                if ticks == self.store.world.ticks:  # it looked, and tried no append: in the model that is one
                    self.log.tick("before run.queued")
                raise

    def run(self, agent: Any, run_id: str) -> State:
        self.boot()
        run_id = named(self.store.inner, run_id)
        head = self.store.inner.head(run_id)
        if head is None:
            self.start(run_id)
        elif head.status == "scheduled_retry":
            self.store.clock.elapsed_s += 10
        pid = FIRST_PID + len(OWNERS)
        OWNERS[pid] = self.store, run_id, (head.epoch if head else 0) + 1
        self.log.ownership.process = process(pid, self.store.world.boots)
        left: list[BaseException] = []
        try:
            self.call(agent, run_id, left)
        except (f.RunFailed, f.RunCancelled, f.RunWaiting, f.RunNotDue):
            pass
        except f.Mistake:
            raise
        except Crash:
            self.boot()  # the next one is another process
            raise
        except Exception as error:
            if error not in left:
                raise
        return self.store.state(run_id)

    def call(self, agent: Any, run_id: str, left: list[BaseException]) -> None:
        def run_of(run: Run) -> Any:
            with self.noted(left):
                return agent(RunView(run, self))

        self.runner.run(AGENT(run_of, lambda run: run), run_id)

    @contextmanager
    def noted(self, left: list[BaseException]) -> Iterator[None]:
        """What leaves the agent."""
        try:
            yield
        except Crash as crash:
            self.log.dead = crash
            raise
        except Exception as error:
            left.append(error)
            raise

    def open_run(self, run_id: str) -> None:
        self.log.append(run_id, [e.RunOpened("lab", "lab")], expect=0)

    def tell(self, run_id: str, *drafts: Any) -> None:
        events = [in_words_of_the_product(type, data, self.store) for type, data in drafts]
        self.log.append(run_id, events, expect=None)

    def bring(self, there: Store, *run_ids: str) -> None:
        self.log.tick("before import")
        self.store.requests |= there.requests
        try:
            import_jsonl(self.log, export_runs(there.reader, run_ids), "lab")
        except (InvalidArgument, ImportConflict) as error:
            raise AppendRefused(str(error)) from error
        self.store.read_anew()
        self.log.tick("after import")

    def erase(self, run_id: str, line: bool = False) -> None:
        try:
            self.log.erase(run_id, reason="lab", line=line)
        except (InvalidArgument, RunNotFound) as error:
            raise AppendRefused(str(error)) from error
        finally:
            self.store.read_anew()

    def purge(self, run_id: str) -> None:
        before = self.store._rows()
        try:
            self.log.purge(run_id, reason="lab")
        except RunNotFound as error:
            raise AppendRefused(str(error)) from error
        finally:
            self.store.read_anew()
            self.store.purged_rows += [key for key in before if key not in self.store._rows()]

    def testify(self, run_id: str, end: Any, word: str) -> None:
        said = e.ToolResolved(end["call_id"], end["attempt"], word, end.get("result"), late=True)
        self.runner.testify(run_id, said)

    def resolve(self, run_id: str, call_id: str, outcome: str, result: Any = None) -> None:
        self.log.resolve(run_id, call_id, outcome, result)  # type: ignore[arg-type]

    def answer(self, run_id: str, approval_id: str, decision: str, args: Any = None, note: str | None = None) -> None:
        self.log.append(run_id, [e.ApprovalResolved(approval_id, decision, args, note)], expect=None)

    def signal(self, run_id: str, payload: Any) -> None:
        try:
            self.log.signal(run_id, "lab", payload)
        except RunNotFound as error:  # it looked, and tried no append: in the model that is one
            self.log.tick("before signal.received")
            raise AppendRefused(str(error)) from error

    def point(self, run_id: str) -> int:
        report = self.log.resume_report(run_id)
        assert report is not None
        return report.point

    def resume(self, run_id: str, recorded: bool = False, point: int | None = None) -> None:
        self.log.resume(run_id, recorded=recorded, point=point)

    def abandon(self, run_id: str) -> None:
        self.log.abandon_step(run_id)

    def told_to_stop(self, run_id: str) -> None:
        note = e.NoteAdded("", code="told_to_stop")
        self.log.append(run_id, [note], epoch=self.store.inner.head(run_id).epoch)

    def cancel(self, run_id: str, mode: str = "now") -> None:
        self.log.append(named(self.store.inner, run_id), [e.RunCancelRequested("", mode)], expect=None)


class AsyncJournal(Journal):
    """The same, for asyncio agents. `together`: calls that are in flight together are those of tasks."""

    Tool, Runner, together = AsyncLabTool, AsyncLabRunner, False

    def call(self, agent: Any, run_id: str, left: list[BaseException]) -> None:
        async def run_of(run: AsyncRun) -> Any:
            with self.noted(left):
                return await agent(AsyncRunView(run, self))

        assert isinstance(self.runner, AsyncLabRunner)
        run_async = self.runner.run_async
        on_a_loop(lambda: run_async(AGENT(run_of, lambda run: run), run_id))


class PlainBodies(AsyncJournal):
    """The same, with tools and models that are plain functions: each body has a thread of its own."""

    Tool = LabTool


class Together(AsyncJournal):
    together = True


class Memory(dict[str, Any]):
    """`run.memory` as the model has it."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.state.memory)
        self.run = run

    def __setitem__(self, key: str, value: Any) -> None:
        self.run.memory[key] = value
        super().__setitem__(key, copy.deepcopy(value))


class RunView:
    """A run of the product, by the model's names."""

    def __init__(self, run: Run, journal: Journal) -> None:
        self.product = run
        self.journal = journal
        self.id = run.id
        names = (
            "message",
            "signals",
            "complete",
            "done",
            "each",
            "step",
            "do",
            "ask",
            "ask_all",
            "sleep",
            "wait_signal",
        )
        for name in names:
            setattr(self, name, getattr(run, name))

    def spawn(self, input: Any = None, run_id: str = "", kind: str = "child") -> str:
        how = {"run_id": run_id} if run_id else {}
        return self.product.spawn(AGENT(None, None), input=input, kind=kind, **how)

    def wait_child(self, child_id: str, agent: Any) -> Any:
        return self.product.wait_child(child_id, lambda run: agent(RunView(run, self.journal)))

    def call_child(self, agent: Any, input: Any = None, kind: str = "child") -> Any:
        return self.wait_child(self.spawn(input, kind=kind), agent)

    @property
    def state(self) -> State:
        return State(self.product._core.state, self.journal.store)

    @property
    def context(self) -> Any:
        state = self.product.state
        return {
            "messages": [{"role": message.role, "content": message.content} for message in state.messages],
            "memory": state.memory,
            "plan": {task["id"]: task["status"] for task in state.plan.tasks},
        }

    @property
    def memory(self) -> Memory:
        return Memory(self.product)

    def plan(self, task_id: str, status: str) -> None:
        tasks = self.product._core.state.plan.tasks  # not through `run.plan`: the model's agent doesn't look at it
        if task_id in {task["id"] for task in tasks}:
            self.product.plan.update(task_id, status)
        else:
            self.product.plan.set([*tasks, {"id": task_id, "title": task_id, "status": status}])

    def _tool(self, tool: Tool) -> LabTool:
        return self.journal.Tool(tool, self.journal.log)

    def call(self, tool: Tool, **args: Any) -> Any:
        return self.product.call(self._tool(tool), **args)

    def parallel(self, *asks: tuple[Tool, Any]) -> list[Any]:
        return self.product.parallel([(self._tool(tool), args) for tool, args in asks])

    def model(self, name: str, request: Any, call: Any, check: Any = bool) -> Any:
        def ask(asked: Any) -> Any:
            if check(answer := call(asked)):
                return answer
            raise f.Transient("rejected")

        return self.product.model(name, self._noted(request), self._body(ask))

    def _body(self, ask: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda asked: failing(self.journal.log, lambda: ask(asked))

    def _noted(self, request: Any) -> Any:
        """The log holds the digest of a request; the world remembers which it is of."""
        args = plain({"request": request})
        self.journal.store.requests[request_hash(args["request"])] = args
        return request

    # One call, in parts: for a test that ends calls in another order than it asks.

    @property
    def _caller(self) -> Caller:
        return self.product._caller

    def _target(self, tool: Tool) -> Any:
        if tool.policy == "model":
            return ModelTarget(tool.name, lambda request: tool.fn({"request": request}, ""))
        return ToolTarget(self._tool(tool))

    def _identify(self, tool: Tool, args: Any) -> str:
        entry = self._caller.entry()
        call_id = self.product._parts.drive(
            self._caller.identify(entry, self._target(tool), self._args(tool, args), "")
        )
        entry.asks[call_id] += 1
        return call_id

    def _args(self, tool: Tool, args: Any) -> Any:
        if tool.policy != "model":
            return plain(args)
        request = self._noted(args["request"])
        return {"request": self.product._parts.requests.asked(tool.name, request, self.journal.store.clock.now())}

    def _recorded(self, call_id: str, tool: Tool) -> Any:
        entry = self._caller.entry()
        return self.product._parts.drive(self._caller.recorded(entry, call_id, self._target(tool), {}))

    def _start(self, call_id: str, tool: Tool, args: Any) -> int:
        return self.product._parts.drive(
            self._caller.sender.start(self._caller.entry(), call_id, self._target(tool), self._args(tool, args))
        )

    def _finish(self, call_id: str, tool: Tool, args: Any, attempt: int) -> Any:
        entry = self._caller.entry()
        return self.product._parts.drive(
            self._caller.sender.finish(entry, call_id, self._target(tool), self._args(tool, args), attempt)
        )


class AsyncRunView(RunView):
    """A run of an asyncio agent, by the model's names: what may wait is to be awaited."""

    journal: AsyncJournal

    def parallel(self, *asks: tuple[Tool, Any]) -> Any:
        if self.journal.together:
            return super().parallel(*asks)
        wanted = [(tool := self._tool(each), bound := plain(args), tool.own_key(bound)) for each, args in asks]
        steps = self._caller.parallel([(ToolTarget(tool), bound, key) for tool, bound, key in wanted])
        return self.product._core.drive(steps)

    def _body(self, ask: Callable[[Any], Any]) -> Callable[[Any], Any]:
        body = super()._body(ask)
        if self.journal.Tool is LabTool:
            return body

        async def asked(request: Any) -> Any:
            return body(request)

        return asked


@dataclass
class Product:
    """What stands in for the module `reference_model`."""

    where: str = "memory"
    stores: list[Any] = field(default_factory=list)
    folder: Any = None

    Tool, World, State, Journal, Crash, LIVE = Tool, World, State, Journal, Crash, LIVE
    Transient, DidNotHappen, NotSent = f.Transient, f.DidNotHappen, f.NotSent
    Suspend, Fenced, Cancelled, Completed = f.Suspend, f.Fenced, f.Cancelled, f.Completed
    PlanChanged, StepDiverged, Mistake, StepDone = f.PlanChanged, f.StepDiverged, f.Mistake, f.StepDone
    Misuse, RunBusy, Refused, KeyReused = f.NestedStep, f.RunBusy, AppendRefused, f.KeyReused
    ChildFailed, NotAChild = f.ChildFailed, f.NotAChild
    Rejected, CallOutcomeUnknown, CallFailed, StepFailed = f.Rejected, f.CallOutcomeUnknown, f.CallFailed, f.StepFailed
    TERMINAL = reference_model.TERMINAL
    key_of = staticmethod(call_key)

    def Store(self, world: World) -> Store:  # noqa: N802 - the model's class
        if self.where == "memory":
            return Store(world)
        if self.folder is None:
            self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").exists() else None)
        path = f"{self.folder.name}/{len(self.stores)}.db"
        store = Store(world, path)
        with closing(apsw.Connection(path)) as connection:
            connection.execute("CREATE TABLE user_table (key TEXT)")
        self.stores.append(store.inner)
        return store

    def close(self) -> None:
        for store in self.stores:
            store.close()
        self.stores.clear()
        OWNERS.clear()
        if self.folder is not None:
            with suppress(OSError):
                self.folder.cleanup()
            self.folder = None


@dataclass
class AsyncProduct(Product):
    """The product's asyncio driver in its place; agents are those of an `AsyncLab`."""

    Journal: Any = AsyncJournal
