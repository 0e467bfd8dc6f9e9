"""A state machine over families of runs: whatever happens in between, the product does as the model, on a real file.

Each rule is done to both: a process lives once and is struck at some boundaries, runs go on from others, people speak,
clocks jump, an owner sleeps until it is fenced, somebody records into an open run or says something of one that is
owned, runs are erased and purged. There are two journals, each with a connection of its own; the second one lives on,
so that what it knows grows old. Some rules are of the product alone, and change nothing that the model knows of:
checkpoints are taken by another journal and dropped, and the machine dies: its files are copied as they are, without
the memory of the WAL's index, and opened elsewhere.
"""

from __future__ import annotations

import copy
import itertools
import os
import shutil
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from model import reference_model
from model.agree import agree
from model.lab import Lab
from model.product import Product
from model.programs import FIND, Program, programs

from runjournal import Journal
from runjournal.log.sqlite import SQLiteStore
from runjournal.looking.audit import audit_store

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "crash"
RUNS_MAX = 5
ANY = st.integers(0, 10**6)
CALLED = {"call_id": "c", "tool": "look", "policy": "unsafe", "args": {}, "attempt": 1}
TOLD: dict[str, tuple[str, Any]] = {
    "note": ("note.added", {"text": "n"}),
    "cost": ("cost.recorded", {"amount": "1"}),
    "own": ("x.lab.said", {"text": "own"}),
    "compacted": ("context.compacted", {"summary": "s"}),
    "message": ("message.appended", {"role": "user", "content": "hi"}),
    "whole message": ("message.appended", {"role": "user", "content": "hi", "message_id": "1"}),
    "start": ("tool.started", CALLED),
    "end": ("tool.completed", {"call_id": "c", "attempt": 1, "result": 1}),
}
"""What somebody says of a run that he doesn't own; the last four only of one that nobody owns."""
WORDS = ["note", "cost", "own", "compacted", "signal", "cancel"]


class Family(RuleBasedStateMachine):
    """Two labs, of the model and of the product, to which the same is done."""

    @initialize(program=programs(size=3), find=FIND, on_unknown=st.sampled_from(["ask", "fail"]), private=st.booleans())
    def begin(self, program: Program, find: bool | str, on_unknown: str, private: bool) -> None:
        """Somebody queues the first run."""
        self.product = Product("sqlite")
        how: dict[str, Any] = {"find": find, "on_unknown": on_unknown, "private": private}
        self.labs = [Lab(m, program, **how) for m in (reference_model, self.product)]
        self.moves = 0
        self.runs = ["r"]
        self.but: list[str] = []
        self.open_others()
        self.both(lambda lab: lab.journal.start("r"))

    def open_others(self) -> None:
        """Open the second journal of each."""
        model, product = self.labs
        self.second = SQLiteStore(_path(product.store.inner), clock=product.store.clock)
        self.product.stores.append(self.second)
        seen_by_other = copy.copy(product.store)
        seen_by_other.inner = self.second
        self.others = [
            lab.m.Journal(store, *lab.tools.values(), patience=10**6, private=lab.private)
            for lab, store in ((model, model.store), (product, seen_by_other))
        ]

    def both(self, act: Any, *, other: bool = False) -> None:
        """Do it to both, by the second journal if `other`; what one of them refuses, the other has to refuse."""
        said = list[str]()
        for lab, second in zip(self.labs, self.others, strict=True):
            first = lab.journal
            lab.journal = second if other else first
            said.append(_said(lab, act))
            lab.journal = first if lab.journal is second else lab.journal  # of a process that died there is a new one
        for store in (self.labs[1].store, self.others[1].store):
            store.read_anew()
        assert said[0] == said[1]

    def run_of(self, which: int) -> str:
        return self.runs[which % len(self.runs)]

    # What agents and people do.

    @rule(
        which=ANY,
        strikes=st.dictionaries(st.integers(1, 40), st.sampled_from(["crash", "day", *WORDS]), max_size=2),
        other=st.booleans(),
    )
    def live(self, which: int, strikes: dict[int, str], other: bool) -> None:
        """A process goes on with a run, as far as it gets; others speak to the run meanwhile."""
        run_id = self.run_of(which)
        self.both(lambda lab: _live(lab, run_id, strikes), other=other)

    @rule(which=ANY, tick=st.integers(1, 40), kind=st.sampled_from(["stall", "stall_long"]))
    def stall(self, which: int, tick: int, kind: str) -> None:
        """An owner sleeps; another one takes over and goes as far as it gets; the first one wakes, and is fenced."""
        run_id = self.run_of(which)
        self.but = ["ticks"]  # the one that wakes looks once more or less
        self.both(lambda lab: _live(lab, run_id, {tick: kind}))
        now = max(next(lab.clock) for lab in self.labs)  # and at its clock
        for lab in self.labs:
            lab.clock = itertools.count(now)

    @rule(which=ANY, what=st.sampled_from(sorted(TOLD)), other=st.booleans())
    def tell(self, which: int, what: str, other: bool) -> None:
        """Somebody says something of a run, or records into it."""
        run_id = self.run_of(which)
        self.both(lambda lab: lab.journal.tell(run_id, TOLD[what]), other=other)

    @precondition(lambda self: len(self.runs) < RUNS_MAX)
    @rule()
    def open(self) -> None:
        """Somebody opens a run that happens elsewhere."""
        run_id = f"r{len(self.runs)}"
        self.both(lambda lab: lab.journal.open_run(run_id))
        self.runs.append(run_id)

    @rule(which=ANY, how=st.sampled_from(["erase", "erase line", "purge"]), other=st.booleans())
    def end_for_good(self, which: int, how: str, other: bool) -> None:
        """Somebody erases or purges a run, its line with it; or that is refused."""
        run_id = self.run_of(which)

        def end(lab: Lab) -> None:
            try:
                lab.journal.purge(run_id) if how == "purge" else lab.journal.erase(run_id, how != "erase")
            finally:
                self.labs[1].store.read_anew()  # the second journal has its own view

        def end_and_note(lab: Lab) -> None:
            lab.ends_for_good(lambda: end(lab))

        self.both(end_and_note, other=other)

    @rule(which=ANY)
    def give_up(self, which: int) -> None:
        """People say that nobody will ever know."""
        run_id = self.run_of(which)

        def speak(lab: Lab) -> None:
            for call_id in sorted(lab.store.state(run_id).unresolved()):
                lab.journal.resolve(run_id, call_id, "unknown")

        self.both(speak)

    @rule(which=ANY)
    def answer(self, which: int) -> None:
        """People answer what a run waits for."""
        run_id = self.run_of(which)
        self.both(lambda lab: lab.people(run_id))

    @rule(which=ANY)
    def say(self, which: int) -> None:
        """People say what became of calls of which nobody knows."""
        run_id = self.run_of(which)

        def speak(lab: Lab) -> None:
            for call_id in sorted(lab.store.state(run_id).unresolved()):
                lab.say(run_id, call_id)

        self.both(speak)

    @rule(which=ANY, link=st.sampled_from(["retry", "restart", "fork"]), at=ANY)
    def go_on(self, which: int, link: str, at: int) -> None:
        """A run goes on from another one, or that is refused."""
        if len(self.runs) >= RUNS_MAX:
            return
        parent, run_id = self.run_of(which), f"r{len(self.runs)}"
        place = 1 + at % len(self.labs[0].store.log[parent]) if link == "fork" else None
        self.both(lambda lab: lab.journal.start(run_id, link, parent, place))
        if run_id in self.labs[0].store.log:
            self.runs.append(run_id)

    @rule(which=ANY)
    def cancel(self, which: int) -> None:
        """Somebody cancels a run."""
        run_id = self.run_of(which)
        self.both(lambda lab: lab.journal.cancel(run_id))

    @rule(which=ANY, payload=st.integers(0, 3))
    def signal(self, which: int, payload: int) -> None:
        """Somebody sends a signal."""
        run_id = self.run_of(which)
        self.both(lambda lab: lab.journal.signal(run_id, payload))

    @rule(seconds=st.sampled_from([-86400, -1, 1, 3600, 86400]))
    def jump(self, seconds: int) -> None:
        """The wall clocks are set, forwards or back."""
        for lab in self.labs:
            lab.world.now += seconds

    # What is of the product alone.

    @rule(which=ANY)
    def checkpoint(self, which: int) -> None:
        """Another journal of the same store takes a checkpoint."""
        with _other(self.labs[1].store.inner) as other:
            other.checkpoint(self.run_of(which))

    @rule(which=ANY)
    def forget(self, which: int) -> None:
        """All checkpoints of a run go."""
        self.labs[1].store.inner.drop_checkpoints(self.run_of(which))

    @precondition(lambda self: self.moves < 3)
    @rule()
    def die(self) -> None:
        """The machine dies: another one goes on with the files as they are."""
        self.moves += 1
        store = self.labs[1].store
        old = Path(_path(store.inner))
        new = old.with_name(f"{old.stem}-{self.moves}.db")
        for suffix in ("", "-wal"):
            if Path(f"{old}{suffix}").exists():
                shutil.copyfile(f"{old}{suffix}", f"{new}{suffix}")
        store.inner.close()
        self.second.close()
        store.move(SQLiteStore(new, clock=store.clock))
        self.product.stores.append(store.inner)
        for lab in self.labs:
            lab.boot()
        self.open_others()

    # What must hold after anything.

    @invariant()
    def the_same(self) -> None:
        """The product has done and told what the model has."""
        agree(self.labs[0], self.labs[1], *self.but)

    def teardown(self) -> None:
        """Everything is judged once more, and audited."""
        if not hasattr(self, "labs"):
            return
        with closing(self.product):
            for run_id in self.runs:
                if self.labs[1].store.state(run_id).status != "open":
                    self.labs[1].judge(run_id)
            assert [] == [each for each in audit_store(self.labs[1].store.inner) if each.severity == "error"]


def _said(lab: Lab, act: Any) -> str:
    m = lab.m
    try:
        act(lab)
    except m.Refused:
        return "refused"
    return "done"


def _live(lab: Lab, run_id: str, strikes: dict[int, str]) -> None:
    """One process, which may die."""
    m = lab.m
    lab.run_id = run_id
    for tick, kind in strikes.items():
        lab.world.plan[lab.world.ticks + tick] = _word(lab, kind, run_id) if kind in WORDS else getattr(lab, kind)
    try:
        with suppress(m.RunBusy, m.Refused):
            lab.journal.run(lab.agent, run_id)
    except m.Crash as crash:
        lab.died(run_id, str(crash))
    except m.Fenced:
        lab.disown(run_id)
    except (m.PlanChanged, m.StepDiverged) as stop:
        raise AssertionError(stop) from stop  # Hypothesis shrinks no BaseException
    finally:
        lab.world.plan.clear()


def _word(lab: Lab, kind: str, run_id: str) -> Any:
    """What somebody else says to a run while it is at work."""
    match kind:
        case "cancel":
            return lambda _: lab.elsewhere(lambda: lab.journal.cancel(run_id))
        case "signal":
            return lambda _: lab.elsewhere(lambda: lab.journal.signal(run_id, 9))
        case _:
            return lambda _: lab.elsewhere(lambda: lab.journal.tell(run_id, TOLD[kind]))


def _path(store: SQLiteStore) -> str:
    return store.url.removeprefix("sqlite:")


def _other(store: SQLiteStore) -> Journal:
    return Journal.open(_path(store), clock=store.clock)


def test_whatever_is_done_to_a_family_of_runs() -> None:
    """Runs that live, die, go on from each other and are spoken to: the product does as the model."""
    run_state_machine_as_test(
        Family,
        settings=settings(
            max_examples=int(os.environ.get("EXAMPLES", "1500" if LONG else "10")),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate] if os.environ.get("NO_SHRINK") else list(Phase),
        ),
    )
