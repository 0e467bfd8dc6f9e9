"""What is done to a store while it is struck: random appends of one writer, and an agent with effects outside."""

from __future__ import annotations

import base64
import os
import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw

from runjournal import Journal, Run, tool
from runjournal.log import events as e
from runjournal.log.errors import AppendRefused, OutcomeUnknown, StoreError
from runjournal.log.limits import inline_value_bytes_max
from runjournal.log.owner import here
from runjournal.writing.appender import Batch
from runjournal.writing.checkpoints import CheckpointPolicy

from . import harms
from .judge import stored
from .lives import Tell

OFTEN = CheckpointPolicy(every_events=7)
DURABLE = e.is_durable  # as it is, whatever is harmed
BLOB = inline_value_bytes_max + 1000


def claim(epoch: int = 1) -> e.RunClaimed:
    """The claim of this process, whose lease is over soon."""
    me = here()
    return e.RunClaimed("w", epoch, 0.01, me.host, me.boot_id, me.pid_ns, os.getpid(), me.started)


class Writer:
    """Appends to runs of its own; each append has a name, which its events hold, and is told before and after."""

    def __init__(self, journal: Journal, seed: str, tell: Tell) -> None:
        self.journal, self.tell, self.rng, self.life = journal, tell, random.Random(seed), seed
        self.runs: list[str] = []
        self.count = 0
        self.failed: StoreError | None = None

    def event(self, name: str, part: int) -> e.Event:
        kind, text = self.rng.randrange(6), f"{name}/{part}"
        if kind == 0:
            return e.CostRecorded("0.01", "USD", text)
        if kind == 1:
            return e.MessageAppended("user", text + " " + "y" * self.rng.randrange(3000))
        return e.NoteAdded(text + " " + "x" * self.rng.randrange(300))

    def batch(self) -> list[Batch]:
        """The next append: a new run, one event, a few, a value out of line, or two runs at once."""
        self.count += 1
        name, rng = f"{self.life}-{self.count}", self.rng
        if not self.runs or rng.random() < 0.05:
            run_id = f"r{name}"
            return [self.journal.batch(run_id, [e.RunQueued("k", f"{name}/0"), claim()], expect=0)]
        what, run_id = rng.random(), rng.choice(self.runs)
        if what < 0.6:
            return [self.journal.batch(run_id, [self.event(name, 0)], expect=None, epoch=1)]
        if what < 0.8:
            events = [self.event(name, part) for part in range(rng.randrange(2, 5))]
            return [self.journal.batch(run_id, events, expect=None, epoch=1)]
        if what < 0.85:
            big = e.MessageAppended("user", f"{name}/0 " + rng.choice("abc") * BLOB)
            return [self.journal.batch(run_id, [big], expect=None, epoch=1)]
        if what < 0.9:
            self.runs.remove(run_id)
            end = [e.NoteAdded(f"{name}/0"), e.RunCompleted(None)]
            return [self.journal.batch(run_id, end, expect=None, epoch=1)]
        both = rng.sample(self.runs, min(2, len(self.runs)))
        return [
            self.journal.batch(each, [self.event(name, place)], expect=None, epoch=1) for place, each in enumerate(both)
        ]

    def append(self) -> None:
        """Append once. After an error the outcome of which is known it goes on, as its users would."""
        batches = self.batch()
        batches = [  # with the place where it belongs, so that it can be repeated
            Batch(each.run_id, each.drafts, self.head(each.run_id), each.epoch) if each.expect is None else each
            for each in batches
        ]
        name = f"{self.life}-{self.count}"
        durable = any(DURABLE(draft.event) for each in batches for draft in each.drafts)
        count = sum(
            len(each.drafts) - isinstance(each.drafts[-1].event, e.RunClaimed | e.RunCompleted) for each in batches
        )
        again = base64.b85encode(pickle.dumps(batches)).decode()
        self.tell(say="tried", name=name, count=count, durable=durable)
        if harms.EARLY:
            self.tell(say="done", name=name, count=count, durable=durable, position=0)
        try:
            records = self.journal.append_all(batches)
        except OutcomeUnknown as error:
            self.tell(say="unknown", name=name, count=count, again=again)
            self.failed = error
        except StoreError as error:
            self.tell(say="refused", name=name, count=count, why=type(error).__name__)
            self.failed = error
            self.forget(batches)
        except AppendRefused:
            self.tell(say="refused", name=name, count=count, why="refused")
            self.forget(batches)
        else:
            position = max(each.position for some in records for each in some)
            self.tell(say="done", name=name, count=count, durable=durable, position=position, at_s=time.monotonic())
            if batches[0].expect == 0:
                self.runs.append(batches[0].run_id)

    def forget(self, batches: list[Batch]) -> None:
        for each in batches:
            if isinstance(each.drafts[-1].event, e.RunCompleted):
                self.runs.append(each.run_id)

    def head(self, run_id: str) -> int:
        head = self.journal.store.head(run_id)
        return head.head_seq if head else 0


def appends(path: Path, life: str, tell: Tell, count: int = 40, *, private: bool = False, harm: str = "") -> None:
    """One life of a writer; it ends by itself after so many appends, or when the store says that it won't go on.

    `harm` names a promise that is broken on purpose, to see whether the judges notice.
    """
    if harm:
        harms.HARMS[harm]()
    try:
        journal = Journal.open(path, checkpoints=OFTEN, private=private)
    except StoreError as error:
        tell(say="closed", why=type(error).__name__)
        return
    try:
        writer = Writer(journal, life, tell)
        unusable = 0
        for _ in range(count):
            try:
                writer.append()
            except StoreError as error:  # while reading
                writer.failed = error
                tell(say="unread", why=type(error).__name__)
            unusable = unusable + 1 if writer.failed is not None else 0
            writer.failed = None
            if unusable > 5:
                break
    finally:
        try:
            journal.close()
        except (StoreError, apsw.Error) as error:  # SQLite swallows what fails while it closes; apsw tells it
            tell(say="unclosed", why=type(error).__name__)
    tell(say="over")


def crowd(path: Path, life: str, tell: Tell, writers: int = 4, count: int = 15) -> None:
    """One life of several writers in one process, whose appends share their commits."""
    with Journal.open(path, checkpoints=OFTEN) as journal:

        def write(number: int) -> None:
            writer = Writer(journal, f"{life}.{number}", tell)
            for _ in range(count):
                writer.append()

        with ThreadPoolExecutor(writers) as pool:
            list(pool.map(write, range(writers)))
    tell(say="over")


def names(path: Path) -> list[str]:
    """The names of the appends that a store holds."""
    if not path.exists():
        return []
    with Journal.open(path) as journal:
        return sorted(stored(journal))


# --- an agent --------------------------------------------------------------------------------------------------------

LEDGER = -1
"""The descriptor of the world's ledger, outside of what is struck: a line an effect."""


def ledger(path: Path) -> None:
    """Write effects there from now on."""
    global LEDGER  # noqa: PLW0603 - tools are plain functions
    LEDGER = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def effects(path: Path) -> list[str]:
    """What happened outside."""
    return path.read_text().split("\n")[:-1] if path.exists() else []


def act(text: str) -> str:
    os.write(LEDGER, f"{text}\n".encode())
    return text


@tool(policy="unsafe", on_unknown="ask")
def send(x: int) -> str:
    """Must not happen twice."""
    return f"send {x}" if f"send {x}" in harms.EARLY_EFFECTS else act(f"send {x}")


@tool(policy="idempotent")
def fetch(x: int) -> str:
    return act(f"fetch {x}")


STEPS = 4


def agent(run: Run) -> list[Any]:
    """Each step reads, sends once, remembers and says."""

    def step(number: int) -> list[str]:
        found = [run.call(fetch, x=number), run.call(send, x=number)]
        run.memory[f"m{number}"] = number
        run.message("assistant", f"step {number} " + "z" * 200)
        return found

    return [each for number in range(STEPS) for each in run.do(f"s{number}", step, number)]


EXPECTED = [f"{verb} {number}" for number in range(STEPS) for verb in ("fetch", "send")]


def runs(path: Path, life: str, tell: Tell, *, world: Path, harm: str = "", steps: int = STEPS) -> None:
    """One life of the agent: open questions are answered by what the world knows, then it goes on to its end."""
    global STEPS  # noqa: PLW0603 - in a child that ends soon
    STEPS = steps
    ledger(world)
    if harm:
        harms.ACT[:] = [act]
        harms.HARMS[harm]()
    try:
        with Journal.open(path, checkpoints=OFTEN) as journal:
            happened = effects(world)
            for question in journal.questions():
                args: Any = question.args
                did = f"send {args['x']}" in happened
                if did:
                    journal.resolve(question.run_id, question.id, "happened", f"send {args['x']}")
                else:
                    journal.resolve(question.run_id, question.id, "did_not_happen")
            output = journal.run(agent, run_id="agent")
            tell(say="output", output=output)
    except StoreError as error:
        tell(say="failed", why=type(error).__name__)
    except Exception as error:  # noqa: BLE001 - the run may be held up by what was struck
        tell(say="stopped", why=type(error).__name__, what=str(error)[:200])
