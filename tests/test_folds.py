"""What the events mean: the rules of each fold, and that all of them are functions of the events alone."""

import decimal
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model import reference_model
from same import exact

from runjournal import Journal
from runjournal.log import events as e
from runjournal.log.base import RecordedEvent, data_of
from runjournal.log.clock import FakeClock
from runjournal.log.errors import InvalidArgument, Unfoldable
from runjournal.log.limits import (
    answers_kept_max,
    children_kept_max,
    int_max,
    models_max,
    settled_kept_max,
    steps_recent_max,
)
from runjournal.log.policies import OUTCOMES, REPEATABLE
from runjournal.looking.audit import audit_run
from runjournal.projections import transcript
from runjournal.projections.state import RunState, dump_bytes
from runjournal.testing import generate, strategies
from runjournal.writing import checkpoints

ERROR = {"type": "E", "message": "m"}
USAGE = {"input": 10, "output": 5, "cache_read": 2, "cache_write": 1}
DUE = "2099-01-01T00:00:00.000000Z"
SHA = "0" * 64


def step(index=0, id="load", *, entry=1, attempt=1, kind="once", name=None, key=None):
    return e.StepStarted(index, id, name or id, kind, entry, attempt, key)


def done(index=0, result=None):
    return e.StepCompleted(index, result)


def failed(index=0, *, transient=False):
    return e.StepFailed(index, ERROR, transient)


def say(text, message_id=None, role="user"):
    return e.MessageAppended(role, text, message_id)


def tool(call_id="c", policy="unsafe", attempt=1, expires=None):
    return e.ToolStarted(
        call_id, "send", {}, policy, read_only=False, on_unknown="fail", attempt=attempt, key_expires_at=expires
    )


def no(call_id="c", attempt=1, kind="E", **more):
    known = {"kind": "unknown"} if kind == "CallOutcomeUnknown" else {}
    return e.ToolFailed(call_id, attempt, {"type": kind, "message": "", **known}, False, **more)


def yes(call_id="c", attempt=1):
    return e.ToolCompleted(call_id, attempt, "ok")


def word(outcome, call_id="c", attempt=1, *, late=False):
    return e.ToolResolved(call_id, attempt, outcome, late=late)


def records_of(*events, epoch=1):
    """A claimed run in which the owner writes these; a pair (event, 0) is somebody else's."""
    written = [(e.RunQueued("demo", None), 0), (generate.claim(1), 1)]
    written += [event if isinstance(event, tuple) else (event, epoch) for event in events]
    return generate.as_records(written)


def fold(*events):
    return RunState.initial().fold(records_of(*events))


def data(record):
    """The data of an event, as a reader of the log sees it."""
    return data_of(record.event)


def dumped(state):
    return dump_bytes(state.dump())


def texts(*events, compacted=False):
    return [message.content for message in transcript.messages(records_of(*events), compacted=compacted)]


# --- steps ------------------------------------------------------------------------------------------------------------

THREE_STEPS = (
    step(0, "load_data"), done(0), step(1, "summarize"), failed(1),
    step(1, "summarize", attempt=2), done(1), step(2, "write_report"), done(2),
)  # fmt: skip


@pytest.mark.requirement("R138", "R12")
def test_three_step_plan():
    """A plan of three steps whose second one fails once logs exactly its starts and ends, in a real journal."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        journal.append("r", [e.RunQueued("demo", None), generate.claim(1)], expect=0)
        for event in THREE_STEPS:
            journal.append("r", [event], epoch=1)
        kinds = [record.type.replace(".", "_") for record in journal.events("r") if record.type.startswith("step.")]
    assert kinds == [
        "step_started",
        "step_completed",
        "step_started",
        "step_failed",
        "step_started",
        "step_completed",
        "step_started",
        "step_completed",
    ]


@pytest.mark.requirement("R139")
def test_checkpoint_after_the_failure():
    """After that failure the newest checkpoint says: next step index 1, completed [load_data]."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        journal.append("r", [e.RunQueued("demo", None), generate.claim(1)], expect=0)
        for event in THREE_STEPS[:4]:
            journal.append("r", [event], epoch=1)
        found = checkpoints.newest(journal.store, RunState, "r")
    assert found is not None
    assert isinstance(found[0], RunState)
    summary = checkpoints.summary(found[0])
    assert (6, 1, ["load_data"]) == (found[1], summary["next_index"], summary["completed"])


@pytest.mark.parametrize(
    ("count", "expected"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1), (5, 1), (6, 2), (7, 2), (8, 3)]
)
def test_next_index(count, expected):
    """The index to go on with is that of the open or failed step, else the next one."""
    assert expected == fold(*THREE_STEPS[:count]).steps.next_index


def test_entries_and_attempts():
    """An entry is the same attempt; `since` is where the attempt first began; a failure begins another attempt."""
    opened = fold(step(), step(entry=2)).steps.open
    assert opened is not None
    assert (3, 2, 1) == (opened.since, opened.entry, opened.attempt)
    again = fold(step(), failed(), step(attempt=2)).steps.open
    assert again is not None
    assert (5, 1, 2) == (again.since, again.entry, again.attempt)


def test_failures_until_a_step_completes():
    """Failures are open until a step completes, whichever does; the count of attempts until that very step does."""
    steps = fold(step(), failed(), step(1, "b"), failed(1)).steps
    assert [["load", 1], ["b", 1]] == [failure[1:3] for failure in steps.failures]
    steps = fold(step(), failed(), step(1, "b"), done(1)).steps
    assert ([], {"load": 1}) == (steps.failures, steps.attempts)


def test_failures_that_left_the_agent():
    """A step's failure that left the agent isn't open any more: the next round isn't told of it."""
    steps = fold(step(), failed(), step(1, "b"), failed(1), e.RunRetryScheduled(DUE, 1, ERROR, [["b", 1]])).steps
    assert ["load"] == [failure[1] for failure in steps.failures]
    assert {"load": 1, "b": 1} == steps.attempts


def test_tracebacks_stay_in_the_log():
    """The state holds of an open failure its type and message, not its traceback."""
    event = e.StepFailed(0, ERROR | {"traceback": "x" * 9999}, transient=True)
    assert ERROR | {"transient": True} == fold(step(), event).steps.failures[0][4]


def test_repeats_are_counted():
    """A name that repeats is counted by its completed uses."""
    turns = (step(0, "turn", kind="repeat"), done(0), step(1, "turn#2", kind="repeat", name="turn"), done(1))
    assert {"turn": 2} == fold(*turns).steps.uses


@pytest.mark.parametrize(("policy", "key", "kind", "expected"), [
    ("unsafe", None, "do", ["load"]), ("transactional", None, "do", ["load"]), ("idempotent", None, "do", []),
    ("unsafe", "k", "do", []), ("unsafe", None, "once", []),
])  # fmt: skip
def test_spent(policy, key, kind, expected):
    """A `do` without a key that sent something is remembered by its id."""
    assert expected == fold(step(kind=kind, key=key), tool(policy=policy), yes(), done()).steps.spent


def test_recent_steps_are_bounded():
    """Of the completed steps the last ones are kept, and the count of all."""
    events = [event for n in range(100) for event in (step(n, f"s{n}"), done(n))]
    steps = fold(*events).steps
    assert (100, steps_recent_max, "s99") == (steps.completed_count, len(steps.completed), steps.completed[-1])


# --- the overlay ------------------------------------------------------------------------------------------------------

CONTEXT = (
    say("in"),
    e.MemorySet("k", 2),
    e.PlanSet([{"id": "t", "title": "", "status": "done"}]),
    e.ContextCompacted("s", 1),
)
BEFORE = (say("before"), e.MemorySet("k", 1), e.PlanSet([{"id": "t", "title": "", "status": "todo"}]))


def committed(state):
    return (
        state.transcript.base.count,
        state.memory.committed,
        state.plan.base[0]["status"],
        state.transcript.base.compacted,
    )


def seen(state):
    return state.transcript.view.count, state.memory.view, state.plan.view[0]["status"], state.transcript.view.compacted


OLD, NEW = (1, {"k": 1}, "todo", None), (2, {"k": 2}, "done", [10, 1])


@pytest.mark.requirement("R5")
@pytest.mark.parametrize(("end", "expected_committed", "expected_seen"), [
    ((), OLD, NEW), ((done(),), NEW, NEW), ((failed(),), OLD, OLD), ((step(entry=2),), OLD, OLD),
    ((e.RunRequeued("released"),), OLD, NEW), ((failed(), step(attempt=2)), OLD, OLD),
    ((e.RunRequeued("released"), (generate.claim(2), 2), (step(entry=2), 2), (done(), 2)), OLD, OLD),
])  # fmt: skip
def test_a_step_is_a_transaction(end, expected_committed, expected_seen):
    """What a step does to messages, memory and plan counts once it completes; a failure or another entry drops it."""
    state = fold(*BEFORE, step(), *CONTEXT, *end)
    assert (expected_committed, expected_seen) == (committed(state), seen(state))


def test_never_dropped():
    """Calls, money, approvals and the pinned prompt of a failed step stay."""
    state = fold(
        step(),
        tool(),
        e.CostRecorded("1", "USD", "bill"),
        e.ApprovalRequested("q", "a", "r"),
        e.PromptPinned(SHA, {}, ""),
        failed(),
    )
    assert ({"c"}, decimal.Decimal(1), {"q"}, SHA) == (
        state.calls.known.keys(), state.costs.amount("USD"), state.approvals.open().keys(), state.prompt.fingerprint,
    )  # fmt: skip


def test_steps_of_an_importer():
    """An importer, which owns nothing, tells of steps and what was said in them alike."""
    written = [
        e.RunImported("demo", "s", "t", SHA),
        step(),
        say("in"),
        e.MemorySet("k", 1),
        done(),
        step(1, "b"),
        say("lost"),
        failed(1),
    ]
    records = generate.as_records([(event, 0) for event in written])
    state = RunState.initial().fold(records)
    assert (["in"], 1, {"k": 1}) == (
        [message.content for message in transcript.messages(records)],
        state.transcript.base.count,
        state.memory.committed,
    )


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R2")
def test_messages_of_failed_attempts_are_left_out():
    """The messages of the context are those of completed steps, in order, and an open step's at the end."""
    told = (
        say("1"),
        step(),
        say("lost"),
        failed(),
        step(attempt=2),
        say("lost"),
        step(entry=2, attempt=2),
        say("2"),
        done(),
    )
    assert ["1", "2"] == texts(*told)
    messages = list(transcript.messages(records_of(*told, step(1, "b"), say("3"))))
    assert [("1", True), ("2", True), ("3", False)] == [(message.content, message.committed) for message in messages]


@pytest.mark.parametrize(("messages", "expected"), [
    ([say("a", "1"), say("b", "1")], 1), ([say("a", "1"), say("b", "2")], 2), ([say("a"), say("b")], 2),
    ([say("a", "1"), say("b"), say("c", "1")], 3), ([say("a", "1"), say("x", "1", "assistant"), say("b", "1")], 2),
    ([say("a", "1"), say("b", "2"), say("c", "1")], 3),
])  # fmt: skip
def test_continued_messages(messages, expected):
    """A message with the id of the one before it, of its role, continues that."""
    assert expected == fold(*messages).transcript.base.count


def test_extent():
    """The transcript holds the first and last seq, counts by role, and the hash of the last message's event."""
    records = records_of(say("a"), say("b", role="assistant"))
    extent = RunState.initial().fold(records).transcript.base
    assert (3, 4, 2, {"user": 1, "assistant": 1}, records[-1].hash) == (
        extent.first_seq, extent.last_seq, extent.count, extent.roles, extent.digest,
    )  # fmt: skip


def test_messages_that_a_run_begins_with():
    """The messages of run.queued come first."""
    event = e.RunQueued("demo", None, messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
    records = generate.as_records([(event, 0), (generate.claim(1), 1), (say("x"), 1)])
    assert ["s", "u", "x"] == [message.content for message in transcript.messages(records)]
    assert 3 == RunState.initial().fold(records).transcript.base.count


@pytest.mark.requirement("R162")
def test_compaction():
    """A summary stands in for the messages up to its seq in the compacted view; the full view keeps them."""
    story = (say("1"), say("2"), say("3"), e.ContextCompacted("sum", 4), say("4"))
    assert (["1", "2", "3", "4"], ["sum", "3", "4"]) == (texts(*story), texts(*story, compacted=True))
    assert [6, 4] == fold(*story).transcript.base.compacted


@pytest.mark.requirement("R162")
def test_newest_compaction_counts():
    """A second summary replaces the first."""
    story = (say("1"), e.ContextCompacted("one", 3), say("2"), e.ContextCompacted("two", 5), say("3"))
    assert ["two", "3"] == texts(*story, compacted=True)


FOREIGN = (e.ContextCompacted("foreign", 3), 0)


def test_foreign_compaction_waits_for_the_step():
    """Somebody else's summary isn't seen by a step that is open, however often it is entered, nor lost at its end."""
    story = (say("1"), step(), say("2"), FOREIGN)
    assert [None, None] == [fold(*story, *more).transcript.view.compacted for more in ((), (step(entry=2),))]
    for end in ((done(),), (failed(),), (step(entry=2), done())):
        assert [6, 3] == fold(*story, *end).transcript.base.compacted
    assert ["foreign", "2"] == texts(*story, done(), compacted=True)


def test_foreign_compaction_before_the_step():
    """Somebody else's summary before the step is what it sees."""
    assert [4, 3] == fold(say("1"), FOREIGN, step()).transcript.view.compacted


def test_foreign_compaction_of_the_open_step():
    """A summary that reaches into an open step leaves out what it sums up, wherever it stands."""
    story = (say("1"), step(), say("2"), say("3"), (e.ContextCompacted("sum", 5), 0), done())
    assert ["sum", "3"] == texts(*story, compacted=True)


# --- memory, plan, prompt ---------------------------------------------------------------------------------------------


def test_memory():
    """Keys are set, deleted, reset; the size follows."""
    state = fold(
        e.MemorySet("a", 1),
        e.MemorySet("b", [2]),
        e.MemorySet("a", {"x": 1}),
        e.MemoryDeleted("b"),
        e.MemoryDeleted("none"),
    )
    assert {"a": {"x": 1}} == state.memory.view
    assert fold(e.MemorySet("a", {"x": 1})).memory.bytes == state.memory.bytes
    assert ({}, 0) == (
        fold(e.MemorySet("a", 1), e.MemoryReset()).memory.view,
        fold(e.MemorySet("a", 1), e.MemoryReset()).memory.bytes,
    )


def test_large_memory_by_reference():
    """A value over the inline bound is a reference in the state."""
    value = fold(e.MemorySet("a", "x" * 100_000)).memory.view["a"]
    assert isinstance(value, e.BlobRef)
    assert 100_002 == value.bytes


def test_memory_values_are_no_trap():
    """A value that looks like what the dump writes for a blob is still that value after a load."""
    values = [["blob", SHA, 1], ["value", 1], {"$blob": SHA, "bytes": 1}]
    state = fold(*(e.MemorySet(f"k{n}", value) for n, value in enumerate(values)))
    loaded = RunState.load(orjson.loads(dumped(state)))
    assert exact(values) == exact(list(loaded.memory.view.values()))


ZEBRA_FIRST = {"zebra": 1, "ant": {"y": [], "b": {"z": 0, "a": None}}}


BEFORE_IT = ["zebra", "ant", "mole"]


@pytest.mark.parametrize(("events", "expected"), [
    ((), BEFORE_IT),
    ((e.MemorySet("zebra", 2),), BEFORE_IT),
    ((e.MemorySet("bee", 2),), ["zebra", "ant", "mole", "bee"]),
    ((e.MemoryDeleted("zebra"), e.MemorySet("zebra", 2)), ["ant", "mole", "zebra"]),
    ((e.MemoryReset(), e.MemorySet("mole", 1), e.MemorySet("ant", 1)), ["mole", "ant"]),
])  # fmt: skip
def test_memory_has_the_order_of_a_dict(events, expected):
    """A new key comes last, one that is set again keeps its place, a deleted one is last; a failed step undoes all."""
    before = [e.MemorySet(key, n) for n, key in enumerate(BEFORE_IT)]
    for found, state in (
        (expected, fold(*before, *events)),
        (expected, fold(*before, step(), *events, done())),
        (BEFORE_IT, fold(*before, step(), *events, failed())),
        (BEFORE_IT, fold(*before, step(), *events)),
        (BEFORE_IT, fold(*before, step(), *events, step(entry=2))),
    ):
        loaded = RunState.load(orjson.loads(dumped(state)))
        assert [found, found] == [list(state.memory.committed), list(loaded.memory.committed)]
        assert list(state.memory.view) == list(loaded.memory.view)
    assert expected == list(fold(*before, step(), *events).memory.view)


@pytest.mark.parametrize("link", ["retry", "fork"])
def test_memory_keeps_its_order_in_the_next_run(link):
    """A run that goes on from another one has its keys in the order that they have there."""
    before = [e.MemorySet(key, n) for n, key in enumerate(BEFORE_IT)]
    state = fold(step(), *before, done(), e.RunFailed(ERROR, [], "error"))
    assert BEFORE_IT == list(RunState.load(orjson.loads(dumped(state))).derive(link).memory.view)


def test_a_dump_keeps_the_order_of_values():
    """Memory, plan, tags, budget and errors come out of a dump with their keys as they were."""
    error = {"message": "m", "type": "E"}
    task = {"title": "t", "status": "todo", "id": "1"}
    tags, budget = {"z": "1", "a": "2"}, {"usd": "1", "steps": 3}
    written = [
        (e.RunQueued("demo", None, plan=[task], tags=tags, budget=budget), 0), (generate.claim(1), 1), (step(), 1),
        (e.MemorySet("k", ZEBRA_FIRST), 1), (done(), 1), (step(1, "b"), 1),
        (e.StepFailed(1, error, transient=False), 1), (e.RunFailed(error, [], "error"), 1),
    ]  # fmt: skip
    state = RunState.load(orjson.loads(dumped(RunState.initial().fold(generate.as_records(written)))))
    found = state.memory.view["k"], state.plan.tasks, state.status.tags, state.status.budget, state.status.error
    assert exact((ZEBRA_FIRST, [task], tags, budget, error)) == exact(found)
    assert exact(error | {"transient": False}) == exact(state.steps.failures[0][4])


def task(id, status):
    return {"id": id, "title": id, "status": status}


@pytest.mark.parametrize(
    ("statuses", "expected"), [(["todo", "doing"], "1"), (["done", "todo"], "1"), (["done", "dropped"], None)]
)
def test_plan_next(statuses, expected):
    """The next task is the one that is being done, else the first to do."""
    following = fold(e.PlanSet([task(str(n), status) for n, status in enumerate(statuses)])).plan.next()
    assert expected == (following and following["id"])


def test_plan_updates():
    """An update changes the status of its task and leaves a note; one of no task changes nothing."""
    plan = fold(e.PlanSet([task("a", "todo")]), e.PlanUpdated("a", "done", "n"), e.PlanUpdated("b", "done")).plan
    assert [task("a", "done") | {"note": "n"}] == plan.tasks


def test_plan_of_the_beginning():
    """A run may begin with a plan; a failed step gives it back as it was."""
    event = e.RunQueued("demo", None, plan=[task("a", "todo")])
    records = generate.as_records(
        [(event, 0), (generate.claim(1), 1), (step(), 1), (e.PlanUpdated("a", "done"), 1), (failed(), 1)]
    )
    assert [task("a", "todo")] == RunState.initial().fold(records).plan.tasks


@pytest.mark.requirement("R161")
def test_changed_layers():
    """Which layers of a prompt changed is known by name: changed, new and gone."""
    prompt = fold(e.PromptPinned(SHA, {"identity": "1", "tools": "2", "old": "3"}, "")).prompt
    assert ["new", "old", "tools"] == prompt.changed_layers({"identity": "1", "tools": "9", "new": "4"})


# --- costs ------------------------------------------------------------------------------------------------------------


def asked(call_id="m", usage=None, cost=None, model="gpt"):
    return e.ModelStarted(call_id, model, "h", 1), e.ModelCompleted(call_id, 1, "", usage, cost)


def usd(amount, source="reported"):
    return {"amount": amount, "currency": "USD", "source": source}


@pytest.mark.requirement("R10")
def test_ledger_is_the_fold():
    """Tokens and money are the sums over the events, failed and dropped attempts included."""
    failure = e.ModelFailed("n", 1, ERROR, transient=True, usage=USAGE, cost=usd("0.5", "estimated"))
    state = fold(
        step(),
        *asked(usage=USAGE, cost=usd("0.0125")),
        e.ModelStarted("n", "gpt", "h", 1),
        failure,
        failed(),
        e.CostRecorded("1", "EUR", "bill"),
    )
    assert (36, {"gpt": {"input": 20, "output": 10, "cache_read": 4, "cache_write": 2}}) == (
        state.costs.tokens(),
        state.costs.usage(),
    )
    assert {"USD": {"reported": "0.0125", "estimated": "0.5"}, "EUR": {"bill": "1"}} == state.costs.money
    assert (decimal.Decimal("0.5125"), 1) == (state.costs.amount("USD"), state.costs.lines["gpt"]["failed"]["calls"])


@pytest.mark.requirement("R10")
def test_stored_ledger_is_recomputed():
    """The stored counter, in a checkpoint, equals what the log gives when it is added up by hand."""
    rng = random.Random(5)
    with Journal.open("memory:", clock=FakeClock()) as journal:
        journal.append("r", [e.RunQueued("demo", None), generate.claim(1), step()], expect=0)
        for n in range(30):
            usage = {name: rng.randrange(100) for name in USAGE} if rng.random() < 0.8 else None
            journal.append(
                "r", asked(f"m{n}", usage, usd(f"0.{rng.randrange(10**6):06}") if rng.random() < 0.8 else None), epoch=1
            )
        journal.append("r", [done()], epoch=1)
        found = checkpoints.newest(journal.store, RunState, "r")
        ends = [record.event for record in journal.events("r") if isinstance(record.event, e.ModelCompleted)]
    assert found is not None
    assert isinstance(found[0], RunState)
    costs = found[0].costs
    assert sum(sum(end.usage.values()) for end in ends if end.usage) == costs.tokens()
    assert sum((decimal.Decimal(end.cost["amount"]) for end in ends if end.cost), decimal.Decimal(0)) == costs.amount(
        "USD"
    )
    assert (sum(end.usage is None for end in ends), sum(end.cost is None for end in ends)) == (
        costs.count("without_usage"),
        costs.count("unpriced"),
    )


def test_unknown_is_never_zero():
    """A call that told no usage or no cost is counted as such, and isn't in the sums as nothing."""
    costs = fold(step(), *asked()).costs
    assert ({}, 1, 1, {}) == (costs.usage(), costs.count("without_usage"), costs.count("unpriced"), costs.money)
    zero = fold(step(), *asked(usage=dict.fromkeys(USAGE, 0), cost=usd("0"))).costs
    assert ({"gpt": dict.fromkeys(USAGE, 0)}, 0, 0) == (
        zero.usage(),
        zero.count("without_usage"),
        zero.count("unpriced"),
    )


def test_repricing():
    """A correction is added, and may be negative."""
    costs = fold(e.CostRecorded("1.10", "USD", "bill"), e.CostRepriced("-1.20", "USD", "bill")).costs
    assert "-0.10" == costs.money["USD"]["bill"]


@pytest.mark.parametrize("model", [None, "old"])
@pytest.mark.parametrize("was", [None, {**USAGE, "output": 1}])
def test_recounting(model, was):
    """What is told of a call's usage later takes the place of what was told, or of nothing, also of another model."""
    first = [e.ModelStarted("m", model or "gpt", "", 1), e.ModelCompleted("m", 1, "x", usage=was)]
    costs = fold(*first, e.ModelRecounted("m", 1, "gpt", USAGE, was=was, was_model=model)).costs
    assert {"gpt": USAGE} == {name: usage for name, usage in costs.usage().items() if any(usage.values())}
    assert (1, 0, 1) == tuple(costs.count(what) for what in ("calls", "without_usage", "unpriced"))
    assert 1 == costs.lines["gpt"]["completed"]["calls"]


@pytest.mark.parametrize(
    "context",
    [
        decimal.Context(prec=2),
        decimal.Context(prec=5, traps=[decimal.Inexact]),
        decimal.Context(rounding=decimal.ROUND_UP, prec=1),
    ],
)
def test_decimal_context_does_not_matter(context):
    """Sums are exact whatever Decimal context the program has set for itself."""
    with decimal.localcontext(context):
        costs = fold(*[e.CostRecorded("123456789012.123456789012345678", "USD", "bill")] * 3).costs
        assert ("370370367036.370370367037037034", "370370367036.370370367037037034") == (
            costs.money["USD"]["bill"],
            str(costs.amount("USD")),
        )


def test_huge_usage():
    """Token counts that together pass 64 bits don't make a state that can't be written down."""
    most = dict.fromkeys(USAGE, int_max)
    state = fold(step(), *(event for n in range(4) for event in asked(f"m{n}", most)))
    assert state.costs.lines["gpt"]["completed"]["input"] == int_max == state.costs.tokens()
    assert exact(state.dump()) == exact(RunState.load(orjson.loads(dumped(state))).dump())


def test_models_are_bounded():
    """Models beyond the bound share a line, and no call is lost."""
    events = [event for n in range(models_max + 50) for event in asked(f"m{n}", USAGE, model=f"gpt-{n}")]
    costs = fold(step(), *events).costs
    assert (models_max + 1, models_max + 50) == (len(costs.lines), costs.count("calls"))


def test_sources_are_bounded():
    """Sources of money beyond the bound share a line, and no money is lost."""
    costs = fold(*(e.CostRecorded("1", "USD", f"invoice {n}") for n in range(models_max + 50))).costs
    assert (models_max + 1, decimal.Decimal(models_max + 50)) == (len(costs.money["USD"]), costs.amount("USD"))


# --- calls ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["model", "idempotent", "unsafe"])
def test_a_call_that_a_dead_process_left_and_nobody_asks_for(policy: str) -> None:
    """Once its step is complete it isn't in flight, nor found by an audit, if it could simply have been made again."""
    tool = e.ToolStarted("c", "send", {}, policy, read_only=False, on_unknown="ask", attempt=1)
    left = e.ModelStarted("c", "m", "0" * 64, 1) if policy == "model" else tool
    with Journal.open("memory:", clock=FakeClock()) as journal:
        journal.append("r", [e.RunQueued("demo", None), generate.claim(1), step(), left], expect=0)
        journal.append("r", [e.RunRequeued("released"), generate.claim(2)], epoch=1)
        journal.append("r", [step(entry=2), done(), e.RunCompleted(None)], epoch=2)
        calls = journal.state("r").calls
        codes = {each.code for each in audit_run(journal.store, "r")}
    sent = policy == "unsafe"
    assert (sent, sent) == (bool(calls.tools.in_flight + calls.models.in_flight), "step_left_call" in codes)


@pytest.mark.requirement("R3", "R4")
def test_call_in_flight():
    """A call without an end is listed after a restart with tool, args, key, flags and start time."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        journal.append("r", [e.RunQueued("demo", None), generate.claim(1), step()], expect=0)
        start = e.ToolStarted(
            "key", "send", {"to": "x"}, "keyed", read_only=False, on_unknown="ask", attempt=1, key_expires_at=DUE
        )
        (record,) = journal.append("r", [start], epoch=1)
        (call_id, call), *others = Journal(journal.store).state("r").calls.open().items()
        args = next(journal.events("r", after=call.args_seq - 1)).event.args  # type: ignore[attr-defined]
    assert ([], "key", "send", "keyed", "ask", record.at, DUE, {"to": "x"}) == (
        others, call_id, call.tool, call.policy, call.on_unknown, call.started_at, call.key_expires_at, args,
    )  # fmt: skip


@pytest.mark.parametrize(("events", "tools", "models"), [
    ((tool(),), (1, 0, 0, 1), (0, 0, 0, 0)),
    ((tool(), yes()), (1, 1, 0, 0), (0, 0, 0, 0)),
    ((tool(), no()), (1, 0, 1, 0), (0, 0, 0, 0)),
    ((tool(), no(), tool(attempt=2)), (1, 0, 0, 1), (0, 0, 0, 0)),
    ((tool(), no(), tool(attempt=2), yes(attempt=2)), (1, 1, 0, 0), (0, 0, 0, 0)),
    ((tool(), word("unknown")), (1, 0, 1, 0), (0, 0, 0, 0)),
    ((tool(), word("unknown"), word("happened")), (1, 1, 0, 0), (0, 0, 0, 0)),
    ((tool(), word("did_not_happen")), (1, 0, 1, 0), (0, 0, 0, 0)),
    ((tool(), no(kind="CallOutcomeUnknown")), (1, 0, 1, 0), (0, 0, 0, 0)),
    ((tool(), done(), word("happened")), (1, 1, 0, 0), (0, 0, 0, 0)),
    ((tool(), e.ModelStarted("m", "g", "h", 1)), (1, 0, 0, 1), (1, 0, 0, 1)),
    (asked(), (0, 0, 0, 0), (1, 1, 0, 0)),
    ((*asked(), failed(), step(attempt=2), e.ModelStarted("m", "g", "h", 2)), (0, 0, 0, 0), (1, 0, 0, 1)),
])  # fmt: skip
def test_counts(events, tools, models):
    """Calls are counted once each, by their newest end, tools and models apart; in flight is what has none."""
    calls = fold(step(), *events).calls
    counted = [
        (counts.started, counts.completed, counts.failed, counts.in_flight) for counts in (calls.tools, calls.models)
    ]
    assert [tools, models] == counted


@pytest.mark.parametrize(("events", "maybe", "status"), [
    ((tool(),), [1], "open"), ((tool(), no()), [1], "failed"), ((tool(), no(did_not_happen=True)), [], "failed"),
    ((tool(), no(), tool(attempt=2)), [1, 2], "open"),
    ((tool(), no(), tool(attempt=2), no(attempt=2, did_not_happen=True)), [1], "failed"),
    ((tool(), no(), tool(attempt=2), word("did_not_happen", attempt=2)), [], "failed"),
    ((tool(), no(), tool(attempt=2), word("did_not_happen", attempt=2, late=True)), [1], "open"),
    ((tool(), no(), tool(attempt=2), word("retry", attempt=2)), [], "failed"),
    ((tool(), word("unknown")), [1], "unknown"), ((tool(), no(kind="CallOutcomeUnknown")), [1], "unknown"),
    ((tool(), word("happened")), [1], "completed"), ((tool(policy="idempotent"),), [], "open"),
    ((tool(policy="transactional"), no()), [], "failed"), ((tool(policy="outbox"), no()), [1], "failed"),
])  # fmt: skip
def test_what_may_have_happened(events, maybe, status):
    """A failure proves nothing; that an attempt did nothing is said by its tool, a person, or its late owner."""
    call = fold(step(), *events).calls.known["c"]
    assert (maybe, status) == (call.maybe, call.status)


def test_key_expires_with_its_first_attempt():
    """A key's lifetime counts from the first attempt that may have happened."""
    early, late = "2026-01-01T00:00:00.000000Z", DUE
    assert (
        early == fold(step(), tool(expires=early), no(), tool(attempt=2, expires=late)).calls.known["c"].key_expires_at
    )
    never = (tool(expires=early), no(did_not_happen=True), tool(attempt=2, expires=late))
    assert late == fold(step(), *never).calls.known["c"].key_expires_at


def test_history():
    """History is what was told in the open attempt: not what was tried again within the ask; a failure ends it."""
    story = (step(), tool(policy="idempotent"), no(again=True), tool(policy="idempotent", attempt=2), yes(attempt=2))
    assert ([[7, "completed"]], 0) == (fold(*story).calls.known["c"].told, fold(*story).calls.known["c"].tries)
    assert 1 == fold(*story[:3]).calls.known["c"].tries
    assert [[7, "completed"]] == fold(*story, step(entry=2)).calls.known["c"].told
    assert [] == fold(*story, failed()).calls.known["c"].told


def test_what_a_failed_step_forgets():
    """step.failed forgets the answers that came after all that was sent, and no others."""
    story = (step(), *asked("early"), tool(), yes(), *asked("late"), failed())
    known = fold(*story).calls.known
    assert ["completed", "completed", "new"] == [known[call_id].status for call_id in ("early", "c", "late")]


def test_what_a_completed_step_keeps():
    """step.completed keeps of its calls those that nobody knows of, and those whose happening wasn't heard of."""
    calls = fold(step(), tool(), yes(), tool("d"), no("d"), *asked(), done()).calls
    assert ({"d"}, {"d"}, "") == (calls.known.keys(), calls.unresolved().keys(), calls.known["d"].step)
    assert {} == fold(step(), tool("d"), no("d"), done(), word("did_not_happen", "d")).calls.known
    (unheard,) = fold(step(), tool("d"), no("d"), done(), word("happened", "d")).calls.known.values()
    assert (True, "completed", False) == (unheard.untold, unheard.status, unheard.unresolved)


def test_settled_calls_are_bounded():
    """Of the calls that were settled in steps that are over the newest are kept, since a late word may come."""
    events = [
        each
        for n in range(settled_kept_max + 3)
        for each in (step(n, f"s{n}"), tool(f"c{n}"), no(f"c{n}", kind="CallOutcomeUnknown", settled=True), done(n))
    ]
    calls = fold(*events).calls
    assert [f"c{n}" for n in range(3, settled_kept_max + 3)] == list(calls.known)
    assert ({}, []) == (calls.unresolved(), calls.kept_elsewhere("send", "s"))
    heard = fold(*events, (word("happened", "c3", late=True), 0)).calls
    assert (True, "completed") == (heard.known["c3"].untold, heard.known["c3"].status)


# --- approvals, inbox, status -----------------------------------------------------------------------------------------


def test_answers_live_as_long_as_their_step():
    """An answer outlives a failed attempt of its step and ends with the step."""
    question = (step(), e.ApprovalRequested("q", "a", "r"), (e.ApprovalResolved("q", "approved"), 0))
    assert "approved" == fold(*question, failed(), step(attempt=2)).approvals.known["q"].decision
    assert {} == fold(*question, done()).approvals.known


def test_open_questions_in_order():
    """Open questions are listed in the order of asking."""
    asks = [e.ApprovalRequested(key, "a", "r") for key in "zab"]
    assert ["z", "b"] == list(fold(step(), *asks, (e.ApprovalResolved("a", "expired"), 0)).approvals.open())


def test_answers_without_a_step_are_bounded():
    """Of the answers to questions that no step asked the newest are kept."""
    events = [
        each
        for n in range(100)
        for each in (e.ApprovalRequested(f"q{n}", "a", "r"), (e.ApprovalResolved(f"q{n}", "approved"), 0))
    ]
    known = fold(*events).approvals.known
    assert (answers_kept_max, True) == (len(known), "q99" in known)


def signal(key):
    return e.SignalReceived(key, "n", None), 0


def test_only_a_completed_entry_takes():
    """Signals that a step took are gone once the entry that took them completes, and no others."""
    story = (signal("a"), signal("b"), step(), e.SignalTaken(["a"]))
    left = {"open": (), "failed": (failed(),), "entered again": (step(entry=2), done()), "completed": (done(),)}
    assert [["a", "b"], ["a", "b"], ["a", "b"], ["b"]] == [
        [each[1] for each in fold(*story, *end).inbox.signals] for end in left.values()
    ]


def test_signal_twice():
    """The same signal again is the same signal."""
    assert 1 == len(fold(signal("a"), signal("a")).inbox.signals)


def test_children_are_bounded():
    """Ended children beyond the bound are forgotten, running ones aren't; all are counted."""
    events = [e.ChildSpawned(f"c{n:05}", "k") for n in range(children_kept_max + 10)]
    ends = [(e.ChildFinished(f"c{n:05}", "completed"), 0) for n in range(20)]
    children = fold(step(), *events, *ends, done()).children
    assert (children_kept_max, children_kept_max + 10) == (len(children.known), children.count)
    assert children_kept_max - 10 == sum(status == "running" for status in children.statuses.values())


def requeue(reason, epoch=2):
    return [(e.RunRequeued(reason), 0), (generate.claim(epoch), epoch)]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (requeue("owner_dead"), 1),
        (requeue("lease_expired") + requeue("owner_dead", 3), 2),
        (requeue("released"), 0),
        ([*requeue("owner_dead"), yes()], 0),
        ([*requeue("owner_dead"), failed()], 0),
        ([*requeue("owner_dead"), done()], 0),
        ([*requeue("owner_dead"), e.RunWaiting([{"kind": "timer", "id": "t"}])], 0),
        ([*requeue("owner_dead"), say("x")], 1),
    ],
)
def test_recoveries_since_progress(events, expected):
    """A recovery counts until a call or a step ends or the run waits; a release doesn't count."""
    assert expected == fold(step(), tool(), *events).status.stuck


def test_rounds():
    """A round ends with run.retry_scheduled."""
    state = fold(e.RunRetryScheduled(DUE, 1, ERROR, []))
    assert (2, "scheduled_retry", DUE) == (state.status.round, state.status.status, state.status.due_at)


@pytest.mark.requirement("R140", "R141")
def test_the_log_answers():
    """The log says which tool was called, what came back, which step failed, when, and with which error."""
    records = records_of(step(), tool(), yes(), failed())
    assert ("step.failed", 0, ERROR) == (records[5].type, records[5].step, data(records[5])["error"])
    assert ("send", "ok") == (data(records[3])["tool"], data(records[4])["result"])
    assert all(record.at < later.at for record, later in pairwise(records))


# --- what can't be folded ---------------------------------------------------------------------------------------------


def strange(event):
    return records_of()[-1]._replace(seq=3, type=getattr(event, "type", ""), event=event)


@pytest.mark.requirement("R145")
def test_unknown_types_mean_nothing():
    """An event of an unknown type moves the place and nothing else."""
    state = fold()
    before = state.dump()
    state.apply(strange(e.UnknownEvent("x.teleported", 9, {"to": "mars"})))
    assert before | {"seq": 3} == state.dump()


@pytest.mark.requirement("R145")
@pytest.mark.parametrize(
    "event",
    [e.NewerEvent("note.added", 9, {}), e.UnreadableEvent("note.added", "why", b"")],
    ids=lambda e: type(e).__name__,
)
def test_unfoldable(event):
    """A newer or unreadable event stops a fold, by seq; with force it is left out and counted."""
    with pytest.raises(Unfoldable) as refusal:
        fold().fold([strange(event)])
    assert 3 == refusal.value.seq
    assert (3, 1) == ((state := fold().fold([strange(event)], force=True)).seq, state.skipped)


@pytest.mark.parametrize("data", [None, [], {}, "x", 1, {"status": {}}])
def test_load_refuses(data):
    """What is no dump isn't loaded."""
    with pytest.raises(InvalidArgument):
        RunState.load(data)


def test_dumps_keep_the_order():
    """The bytes of a dump have the keys in the order in which they came to be."""
    assert b'{"b":1,"a":{"d":[],"c":"\xc3\xbc"}}' == dump_bytes({"b": 1, "a": {"d": [], "c": "ü"}})


# --- all of them ------------------------------------------------------------------------------------------------------


@given(strategies.run_events(), st.data())
def test_a_then_b(events, data):
    """Folding a then b, with a dump and a load in between, is folding a + b, byte for byte, in the same order."""
    records = generate.as_records(events)
    cut = data.draw(st.integers(0, len(records)))
    first = RunState.initial().fold(records[:cut])
    loaded = RunState.load(orjson.loads(dumped(first)))
    whole = exact(RunState.initial().fold(records).dump())
    assert whole == exact(first.fold(records[cut:]).dump()) == exact(loaded.fold(records[cut:]).dump())


@given(st.lists(st.tuples(strategies.any_event(), st.integers(0, 2)), max_size=12), st.integers(0, 12))
def test_any_events_at_all(events, cut):
    """Any sequence of any events, legal or not, folds without raising, and the law of a + b holds for it."""
    records = generate.as_records(events)
    state = RunState.load(orjson.loads(dumped(RunState.initial().fold(records[:cut])))).fold(records[cut:])
    assert exact(RunState.initial().fold(records).dump()) == exact(state.dump())
    for reader in (False, True):
        list(transcript.messages(records, compacted=reader))


@settings(max_examples=500)
@given(strategies.run_events())
def test_messages_agree_with_the_extent(events):
    """The messages that are walked and the extent that is folded tell the same of the committed context."""
    records = generate.as_records(events)
    messages = [m for m in transcript.messages(records) if m.committed]
    extent = RunState.initial().fold(records).transcript.base
    assert (extent.first_seq, extent.last_seq) == ((messages[0].seq, messages[-1].seq) if messages else (None, None))
    assert len(messages) >= extent.count == sum(extent.roles.values())


@settings(max_examples=300)
@given(strategies.seeds(), st.integers(1, 40))
def test_head_and_status_agree(rng, size):
    """The head of a run and the folded status say the same after every append."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        state = RunState.initial()
        for _ in range(size):
            event, epoch = generate.next_event(rng, state)
            for record in journal.append("r", [event], epoch=epoch):
                state.apply(record)
            head, status = journal.head("r"), state.status
            assert (
                status.status,
                status.epoch,
                status.owner,
                status.due_at,
                status.cancel,
                status.kind,
                status.scope,
            ) == (
                head.status,
                head.epoch,
                head.owner,
                head.due_at,
                head.cancel_requested,
                head.kind,
                head.scope,
            )
            assert status.woken == (head.wake_at is not None)


# --- the calls and steps against the reference model ------------------------------------------------------------------


def for_model(event, state) -> Any:  # noqa: C901 - one case per type
    """An event as the model has it, or None if it has nothing like it. `state` is ours, before the event."""
    kind = event.TYPE
    match event:
        case e.RunQueued():
            return kind, {"scope": "r"}
        case e.RunWaiting():
            stands = [wait["kind"] for wait in event.for_ if wait["kind"] in ("code", "recoveries")]
            return kind, {"for": [wait["id"] for wait in event.for_], "stands": stands[0] if stands else ""}
        case e.StepStarted():
            more = {"keyed": event.key is not None, "name": event.name, "kind": event.kind}
            return kind, {"index": event.index, "id": event.id, "attempt": event.attempt} | more
        case e.StepCompleted():
            return kind, {"result": None}
        case e.StepFailed():
            return kind, {"error": event.error | {"attempt": state.steps.open.attempt}, "left": event.left}
        case e.ToolStarted():
            data = {"tool": event.tool, "policy": event.policy, "args": None, "expires": event.key_expires_at}
            data |= {"born": event.key_born, "own": event.own_key}  # type: ignore[dict-item]  # as a test may
            return kind, data | {"call_id": event.call_id, "attempt": event.attempt}
        case e.ModelStarted():
            data = {"tool": event.model, "policy": "model", "args": None, "expires": None, "born": None, "own": False}  # type: ignore[dict-item]  # as a test may
            return kind, data | {"call_id": event.call_id, "attempt": event.attempt}
        case e.ToolCompleted() | e.ModelCompleted():
            return kind, {"call_id": event.call_id, "attempt": event.attempt, "result": None}
        case e.ToolFailed():
            names = ("did_not_happen", "again", "lost", "settled")
            said = {name: getattr(event, name) for name in names}
            return kind, {"call_id": event.call_id, "attempt": event.attempt, "error": event.error} | said
        case e.ModelFailed():
            return kind, {
                "call_id": event.call_id,
                "attempt": event.attempt,
                "error": event.error,
                "again": event.again,
            }
        case e.ToolAdopted():
            return kind, {"call_id": event.call_id}
        case e.ToolResolved():
            told = {"outcome": event.outcome, "late": event.late, "result": None}
            return kind, {"call_id": event.call_id, "attempt": event.attempt} | told
        case e.ApprovalRequested() | e.ApprovalResolved():
            return kind, {"approval_id": event.approval_id, "decision": getattr(event, "decision", None)}
        case e.RunClaimed():
            return kind, {"epoch": event.epoch}
        case e.RunRequeued():
            return kind, {"reason": event.reason}
        case e.RunRetryScheduled():
            return kind, {"left": event.left}
        case e.RunCompleted() | e.RunFailed() | e.RunCancelled() | e.RunCancelRequested() | e.SignalTaken():
            return kind, {}
    return None


def our_calls(state):
    return {
        call_id: {
            "maybe": call.maybe, "told": call.told, "status": call.status, "attempt": call.attempt, "began": call.began,
            "latest": call.latest, "tries": call.tries, "fresh": call.fresh, "step": call.step, "sent": call.sent,
            "expires": call.key_expires_at if call.maybe else None, "unresolved": call.unresolved, "said": call.said,
            "settled": call.settled, "taken": (call.taken, call.taken_seq),
            "untold": call.untold,
        }
        for call_id, call in state.calls.known.items()
    }  # fmt: skip


def model_calls(state):
    """The model keeps a call that a word settled, and leaves one that surely did nothing open; we don't."""
    calls = {}
    for call_id, call in state.calls.items():
        nothing = call.policy not in REPEATABLE and not call.maybe and call.status in ("open", "unknown")
        if not call.step and not call.remembered:
            continue
        calls[call_id] = {
            "maybe": call.maybe,
            "told": [told[:2] for told in call.told],
            "status": "failed" if nothing else call.status,
            "attempt": call.attempt,
            "began": call.began,
            "latest": call.latest,
            "tries": call.tries,
            "fresh": call.fresh,
            "step": call.step,
            "sent": call.sent,
            "expires": call.expires if call.maybe else None,
            "unresolved": call.unresolved,
            "said": call.said,
            "settled": call.settled,
            "taken": (call.taken, call.taken_at),
            "untold": call.untold,
        }
    return calls


def our_steps(state):
    steps = state.steps
    return {
        "open": steps.open and (steps.open.id, steps.open.since),
        "index": steps.last_index,
        "redo": steps.redo,
        "attempts": steps.attempts,
        "uses": steps.uses,
        "spent": steps.spent,
        "failures": [f[:2] for f in steps.failures],
    }


def model_steps(state):
    return {
        "open": state.step and (state.step["id"], state.step["since"]),
        "index": state.index,
        "redo": state.redo,
        "attempts": state.attempts,
        "uses": state.uses,
        "spent": state.spent,
        "failures": [f[:2] for f in state.failures],
    }


def story(rng, size):
    """A run of the generator's, with late words, words of ignorance, recoveries and left failures among its events."""
    chain, state = generate.RunBuilder(), RunState.initial()
    for _ in range(size):
        event, epoch = generate.next_event(rng, state)
        unresolved, chance = sorted(state.calls.unresolved()), rng.random()
        running = state.status.status == "running"
        if running and unresolved and state.steps.open and chance < 0.15:
            call = state.calls.known[call_id := rng.choice(unresolved)]
            if chance < 0.08:
                event, epoch = e.ToolResolved(call_id, rng.choice(call.maybe), rng.choice(OUTCOMES), late=True), 0
            else:
                event = no(call_id, call.attempt, "CallOutcomeUnknown", settled=chance > 0.12)
                epoch = state.status.epoch
        elif running and chance > 0.96:
            event, epoch = e.RunRequeued("owner_dead"), 0
        elif isinstance(event, e.RunRetryScheduled):
            names = sorted({failure[1] for failure in state.steps.failures})
            event = e.RunRetryScheduled(DUE, 1, ERROR, [[rng.choice(names), 1]] if names else [])
        epoch = event.epoch if isinstance(event, e.RunClaimed) else epoch
        record, translated = chain.add(event, epoch), for_model(event, state)
        state.apply(record)
        yield record.seq, translated, state


@given(strategies.seeds(), st.integers(1, 80))
def test_calls_and_steps_are_the_models(rng, size):
    """After each event of a random run, calls, steps, status, epoch and recoveries are what the reference model has."""
    theirs = reference_model.State()
    for seq, translated, after in story(rng, size):
        if translated is not None:
            theirs.apply(reference_model.Event(seq, *translated))
        assert model_calls(theirs) == our_calls(after)
        assert model_steps(theirs) == our_steps(after)
        status = theirs.status.replace("scheduled", "scheduled_retry")
        assert (status, theirs.epoch, theirs.stuck) == (after.status.status, after.status.epoch, after.status.stuck)
        assert set(theirs.unresolved()) == set(after.calls.unresolved())


# --- bounded ----------------------------------------------------------------------------------------------------------


def recorded(events) -> Iterator[RecordedEvent]:
    """Events as records, without the price of bytes."""
    for seq, (event, epoch) in enumerate(events, 1):
        yield RecordedEvent("r", seq, seq, event.TYPE, DUE, "w", epoch, None, f"{seq:064}", event)


def long_run(*, abandon):
    """An endless run of items, one step each: it asks, sends, waits, remembers; one in seven fails once."""
    yield e.RunQueued("demo", None), 0
    yield generate.claim(1), 1
    index, epoch, inbox = 0, 1, []
    while True:
        item = f"item/{index}"
        for attempt in (1, 2):
            start = e.StepStarted(index, item, "item", "once" if index % 2 else "repeat", 1, attempt, str(index))
            calls = [tool(f"t{index}", attempt=attempt), no(f"t{index}", attempt, did_not_happen=True)]
            calls += [tool(f"i{index}", "idempotent", attempt), yes(f"i{index}", attempt)]
            calls += [
                e.ModelStarted(f"m{index}", f"gpt-{index % 5}", "h", attempt),
                e.ModelCompleted(f"m{index}", attempt, "x", USAGE, usd("0.1")),
            ]
            for event in (
                start,
                say("hi"),
                e.MemorySet(f"k{index % 20}", index),
                *calls,
                e.ApprovalRequested(f"q{index}", "a", "r"),
            ):
                yield event, epoch
            yield e.ApprovalResolved(f"q{index}", "approved"), 0
            inbox.append(f"s{index}-{attempt}")
            yield e.SignalReceived(inbox[-1], "n", None), 0
            yield e.SignalTaken(list(inbox)), epoch
            if index % 7 or (attempt == 2 and not abandon):
                inbox.clear()
                yield e.StepCompleted(index), epoch
                break
            yield e.StepFailed(index, ERROR, transient=True), epoch
            if abandon:
                break
        index += 1
        if index % 11 == 0:
            yield e.RunRequeued("owner_dead"), 0
            epoch += 1
            yield generate.claim(epoch), epoch


def sizes(*, abandon):
    """The size of the dump at every ten thousandth event of a hundred thousand."""
    state, events = RunState.initial(), long_run(abandon=abandon)
    for record in recorded(next(events) for _ in range(100_000)):
        state.apply(record)
        if record.seq % 10_000 == 0:
            yield len(dumped(state))


@pytest.mark.requirement("R18")
def test_state_is_bounded():
    """The state of a run of a hundred thousand events is no larger than after ten thousand, but for an open step."""
    first, *later = sizes(abandon=False)
    assert max(first, *later) < 10_000
    assert max(later) < 1.5 * first


def test_state_is_bounded_when_failed_items_are_skipped():
    """The same for a run whose agent skips each item that fails."""
    first, *later = sizes(abandon=True)
    assert max(later) < 1.5 * first
