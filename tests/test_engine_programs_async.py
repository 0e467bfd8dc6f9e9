"""The asyncio driver and the executable model agree: random programs, struck at the same boundaries, in the same words.

The agents of `model/lab.py` as coroutines, on virtual time. Where calls are in flight together as tasks the model, that
has none, can't tell the order of events: there the run must end as an undisturbed one. `make crash` draws 2,000
programs for the first property and hundreds for each other one, `make test` a seeded sample.
"""

import os
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from model import reference_model as model
from model.agree import agree
from model.lab import AsyncLab, Lab, alike, begin, blind, patiently, uninterrupted
from model.product import AsyncProduct, PlainBodies, Together
from model.programs import BLIND, FIND, SAMPLES, Program, ops, programs

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "crash"


def many(sample: int, long: int = 500) -> settings:
    """`sample` examples, `long` in the long suite; EXAMPLES overrides the number there, and bounds it here."""
    most = int(os.environ.get("EXAMPLES", long if LONG else sample))
    return settings(
        max_examples=most if LONG else min(sample, most),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=[Phase.explicit, Phase.reuse, Phase.generate] if os.environ.get("NO_SHRINK") else list(Phase),
    )


TASKS = AsyncProduct("memory")
THREADS = AsyncProduct("memory", Journal=PlainBodies)
TOGETHER = AsyncProduct("memory", Journal=Together)
Strikes = dict[int, str]


def strikes(*kinds: str) -> st.SearchStrategy[Strikes]:
    return st.dictionaries(st.integers(1, 150), st.sampled_from(kinds), min_size=1, max_size=5)


def both(program: Program, act: Callable[[Lab], object], *but: str, on: Any = TASKS, **how: Any) -> Lab:
    """Do the same with the model and with the asyncio driver; what is left must be the same."""
    lab = AsyncLab(on, program, **how)
    of_model = Lab(model, program, **how)
    act(of_model)
    act(lab)
    agree(of_model, lab, *but)
    return lab


def serve(lab: Lab) -> None:
    lab.serve()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_crash_at_some_boundaries_of_a_sample(name: str) -> None:
    """At each boundary in the long suite, at every ninth else: the same events as the model's."""
    for tick in range(1, uninterrupted(model, SAMPLES[name]).world.ticks + 1, 1 if LONG else 9):
        both(SAMPLES[name], serve, strikes={tick: "crash"}, power=tick % 2 == 0).judge()


@many(40, long=2000)
@given(programs(), strikes("crash"), st.booleans(), FIND)
def test_whatever_crashes_the_asyncio_driver_does_as_the_model(
    program: Program, when: Strikes, power: bool, find: bool | str
) -> None:
    """Crashes and power cuts at any boundaries, also in recoveries, with and without hooks."""
    both(program, serve, strikes=when, power=power, find=find).judge()


@many(10)
@given(programs(), strikes("crash"), st.booleans(), FIND)
def test_bodies_in_threads_too(program: Program, when: Strikes, power: bool, find: bool | str) -> None:
    """Tools and models that are plain functions run in threads of their own, and all is the same."""
    both(program, serve, on=THREADS, strikes=when, power=power, find=find).judge()


@many(6)
@given(programs(), strikes("crash", "stall_long"), FIND)
def test_on_sqlite(program: Program, when: Strikes, find: bool | str) -> None:
    """The same on a store in a file, with owners that stall too: it ends as if nothing had happened."""
    with closing(AsyncProduct("sqlite")) as on:
        base = AsyncLab(on, program, find=find)
        serve(base)
        alike(base, AsyncLab(on, program, when, find=find), "answers")


@many(10)
@given(programs(), strikes("day", "crash"), FIND)
def test_a_pause_of_a_day(program: Program, when: Strikes, find: bool | str) -> None:
    """Keys are forgotten meanwhile: a keyed call counts as unsafe."""
    both(program, serve, strikes=when, find=find).judge()


@many(15)
@given(programs(), st.integers(1, 150), st.sampled_from(["stall", "stall_long"]), FIND)
def test_a_stalled_owner(program: Program, tick: int, kind: str, find: bool | str) -> None:
    """One stall, anywhere: the same events, by whichever owner."""
    both(program, serve, "ticks", strikes={tick: kind}, find=find)


def said(lab: Lab, kind: str, tick: int) -> Callable[[str], None]:
    """Somebody else says this, at this boundary."""

    def say() -> Any:
        return lab.journal.signal("r", tick) if kind == "signal" else lab.journal.cancel("r")

    return lambda _: lab.elsewhere(say)


@many(10)
@given(programs(), strikes("crash", "signal", "cancel"), st.booleans())
def test_what_others_append_meanwhile(program: Program, when: Strikes, power: bool) -> None:
    """Signals and cancels between any two boundaries, and crashes."""
    steps = [(name, [("signals",), *ops], how) for name, ops, how in program.steps]

    def disturbed(lab: Lab) -> None:
        lab.world.plan |= {tick: lab.crash if kind == "crash" else said(lab, kind, tick) for tick, kind in when.items()}
        lab.serve()
        lab.judge()

    nature = {key: ends for key, ends in program.nature.items() if key[0] != "model"}
    both(Program(program.style, steps, nature), disturbed, power=power)


@many(10)
@given(programs(), st.sampled_from(["retry", "restart", "fork"]), strikes("crash", "day"), st.booleans(), st.booleans())
def test_runs_that_go_on_from_others(program: Program, link: str, when: Strikes, words: bool, power: bool) -> None:
    """Retries, restarts and forks of a run whose unknown outcomes fail it; people may say what became of them."""

    def go_on(lab: Lab) -> None:
        run_id = "r"
        for number in range(4):
            status = lab.serve(run_id).status
            lab.judge(run_id)
            if status == "completed" and (link != "fork" or number):
                break
            for call_id in sorted(lab.store.state(run_id).unresolved()) if words else []:
                patiently(lab, run_id, partial(lab.say, run_id, call_id))
            parent, run_id = run_id, f"r{number}"
            begin(lab, run_id, link, parent, None)

    both(program, go_on, strikes=when, power=power, on_unknown="fail")


@many(5)
@given(programs(ops().filter(lambda op: op[0] in BLIND), calm=True, size=3), strikes("crash"), st.booleans())
def test_a_loop_on_local_variables_ends_alike_or_is_stopped(program: Program, when: Strikes, power: bool) -> None:
    """A second turn is never taken for a first."""

    def loop(lab: Lab) -> None:
        with suppress(lab.m.PlanChanged):
            blind(lab).serve()

    both(program, loop, strikes=when, power=power)


@many(20, long=1000)
@given(programs(), strikes("crash"), st.booleans(), FIND)
def test_calls_of_tasks_end_as_if_nothing_had_crashed(
    program: Program, when: Strikes, power: bool, find: bool | str
) -> None:
    """Where calls are in flight together, in tasks, the end, the effects and the rows are those of a calm run."""
    base = AsyncLab(TOGETHER, program, find=find)
    serve(base)
    alike(base, AsyncLab(TOGETHER, program, when, power=power, find=find))
