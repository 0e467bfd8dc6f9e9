"""A state machine over families of runs: whatever happens in between, the product does as the model, on a real file.

Each rule is done to both: a process lives once and is struck at some boundaries, runs go on from others, people speak,
clocks jump. Some rules are of the product alone, and change nothing that the model knows of: checkpoints are taken by
another journal and dropped, and the machine dies: its files are copied as they are, without the memory of the WAL's
index, and opened elsewhere.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
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


class Family(RuleBasedStateMachine):
    """Two labs, of the model and of the product, to which the same is done."""

    @initialize(program=programs(size=3), find=FIND, on_unknown=st.sampled_from(["ask", "fail"]))
    def begin(self, program: Program, find: bool | str, on_unknown: str) -> None:
        """Somebody queues the first run."""
        self.product = Product("sqlite")
        self.labs = [Lab(m, program, find=find, on_unknown=on_unknown) for m in (reference_model, self.product)]
        self.moves = 0
        self.runs = ["r"]
        self.both(lambda lab: lab.journal.start("r"))

    def both(self, act: Any) -> None:
        """Do it to both; what one of them refuses, the other has to refuse."""
        said = [_said(lab, act) for lab in self.labs]
        assert said[0] == said[1]

    def run_of(self, which: int) -> str:
        return self.runs[which % len(self.runs)]

    # What agents and people do.

    @rule(which=ANY, strikes=st.dictionaries(st.integers(1, 40), st.sampled_from(["crash", "day"]), max_size=2))
    def live(self, which: int, strikes: dict[int, str]) -> None:
        """A process goes on with a run, as far as it gets."""
        run_id = self.run_of(which)
        self.both(lambda lab: _live(lab, run_id, strikes))

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
        old = Path(store.inner.url.removeprefix("sqlite:"))
        new = old.with_name(f"{old.stem}-{self.moves}.db")
        for suffix in ("", "-wal"):
            if Path(f"{old}{suffix}").exists():
                shutil.copyfile(f"{old}{suffix}", f"{new}{suffix}")
        store.inner.close()
        store.move(SQLiteStore(new, clock=store.clock))
        self.product.stores.append(store.inner)
        for lab in self.labs:
            lab.boot()

    # What must hold after anything.

    @invariant()
    def the_same(self) -> None:
        """The product has done and told what the model has."""
        agree(self.labs[0], self.labs[1])

    def teardown(self) -> None:
        """Everything is judged once more, and audited."""
        if not hasattr(self, "labs"):
            return
        with closing(self.product):
            for run_id in self.runs:
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
        lab.world.plan[lab.world.ticks + tick] = getattr(lab, kind)
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


def _other(store: SQLiteStore) -> Journal:
    return Journal.open(store.url.removeprefix("sqlite:"), clock=store.clock)


def test_whatever_is_done_to_a_family_of_runs() -> None:
    """Runs that live, die, go on from each other and are spoken to: the product does as the model."""
    run_state_machine_as_test(
        Family,
        settings=settings(
            max_examples=int(os.environ.get("EXAMPLES", "1500" if LONG else "12")),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
