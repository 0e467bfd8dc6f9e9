"""Order is part of a value: whatever gives a value back gives its keys back in the order that they had."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner
from crashing import Agent, everywhere, outside
from hypothesis import given, settings
from hypothesis import strategies as st
from same import exact

from runjournal import KEY, AsyncRun, CheckpointPolicy, Journal, Run, tool
from runjournal.cli.app import cli
from runjournal.importers.transfer import export_runs, import_jsonl
from runjournal.log import codec
from runjournal.log import events as e
from runjournal.log.base import BlobRef
from runjournal.log.clock import FakeClock
from runjournal.log.differences import differences
from runjournal.log.limits import inline_value_bytes_max
from runjournal.looking.audit import audit_store
from runjournal.testing import generate, strategies
from runjournal.writing.rebuild import rebuild

R = "r"
NEVER = CheckpointPolicy(0, at_ends=False)
ZEBRA_FIRST = {"zebra": 1, "ant": {"y": [], "b": {"z": 0, "a": None}}, "mole": [{"d": 1, "c": 2}]}
ERROR = {"type": "E", "message": "m"}

# --- all that gives a value back --------------------------------------------------------------------------------------


def values() -> st.SearchStrategy[dict[str, Any]]:
    """Objects with keys in any order, in a third of the cases too large to be held in line."""
    small = st.dictionaries(strategies.text(), strategies.json_values(), min_size=2, max_size=5)
    large = small.map(lambda value: {"~": "x" * inline_value_bytes_max} | value | {"!": 0})
    return st.one_of(small, small, large)


def told(journal: Journal, run_id: str) -> dict[str, Any]:
    """Every value that a run has on record, as a reader gets it."""
    found: dict[str, Any] = {"messages": list(journal.messages(run_id)), "row": json.loads(journal.head(run_id).tags)}
    for record in journal.events(run_id):
        match event := record.event:
            case e.RunQueued():
                found |= {"input": event.input, "plan": event.plan, "queued": event.messages, "tags": event.tags}
            case e.ToolStarted() | e.ApprovalRequested() | e.ApprovalResolved():
                found[event.TYPE] = event.args
            case e.ToolCompleted():
                found["result"] = event.result
            case e.ModelCompleted():
                found["answer"] = event.response
            case e.SignalReceived():
                found["payload"] = event.payload
            case e.MemorySet():
                found["memory"] = event.value
            case e.StepCompleted():
                found["step"] = event.result
            case e.RunCompleted():
                found["output"] = event.output
            case _:
                pass
    return found


def write(journal: Journal, given_values: list[dict[str, Any]], keys: list[str]) -> dict[str, Any]:
    """A run that holds the values wherever one can be; gives what must come back."""
    each = cycle(given_values)
    expected: dict[str, Any] = {
        "input": next(each), "tool.started": next(each), "approval.requested": next(each),
        "approval.resolved": next(each), "result": next(each), "answer": next(each), "payload": next(each),
        "memory": next(each), "step": next(each), "output": next(each), "tags": dict.fromkeys(keys, "x"),
        "plan": [{"title": "t", "status": "todo", "id": "1"}],
        "queued": [{"raw": {"z": 1, "a": {"y": 1, "b": 2}}, "content": 0, "role": "user"}],
    }  # fmt: skip
    content, raw = next(each), next(each)
    tags, plan, queued = expected["tags"], expected["plan"], expected["queued"]
    journal.append(
        R, [e.RunQueued("k", expected["input"], plan=plan, messages=queued, tags=tags), generate.claim(1)], expect=0
    )
    events: list[e.Event] = [
        e.StepStarted(0, "s", "s", "once", 1, 1),
        e.MessageAppended("assistant", content, raw=raw),
        e.ToolStarted("c", "t", expected["tool.started"], "unsafe", read_only=False, on_unknown="ask", attempt=1),
        e.ToolCompleted("c", 1, expected["result"]),
        e.ModelStarted("m", "m", "h", 1),
        e.ModelCompleted("m", 1, expected["answer"]),
        e.ApprovalRequested("q", "a", "r", args=expected["approval.requested"]),
        *(e.MemorySet(key, expected["memory"]) for key in keys),
    ]
    journal.append(R, events, epoch=1)
    journal.append(R, [e.ApprovalResolved("q", "edited", expected["approval.resolved"])])
    journal.append(R, [e.SignalReceived("s", "n", expected["payload"])])
    journal.append(R, [e.StepCompleted(0, expected["step"])], epoch=1)
    assert exact([(0, {"z": 1, "a": {"y": 1, "b": 2}}), (content, raw)]) == exact(
        [(message.content, message.raw) for message in journal.messages(R)]
    )
    return expected


def check(journal: Journal, run_id: str, expected: dict[str, Any], memory: list[str]) -> None:
    """Raise AssertionError unless the run's values and its memory are these, key after key."""
    found = told(journal, run_id)
    for name in expected.keys() & found.keys():
        assert exact(expected[name]) == exact(found[name]), name
    assert exact(expected["tags"]) == exact(found["row"])
    committed = journal.state(run_id).memory.committed
    assert memory == list(committed)
    for value in committed.values():
        held = codec.loads(journal.store.blob(value.sha256) or b"") if isinstance(value, BlobRef) else value
        assert exact(expected["memory"]) == exact(held)


@settings(max_examples=60)  # its values are large
@given(st.lists(values(), min_size=1, max_size=3), st.lists(strategies.text(), min_size=2, max_size=4, unique=True))
def test_whatever_gives_a_value_back_keeps_its_order(given_values: list[dict[str, Any]], names: list[str]) -> None:
    """Log, fold, checkpoint, retry, fork, export, import and blobs give back each value with its keys in order."""
    keys = [f"k{name}".replace("\0", "")[:20] + str(place) for place, name in enumerate(names)]
    with (
        Journal.open("memory:", clock=FakeClock(), checkpoints=NEVER) as journal,
        Journal.open("memory:", checkpoints=NEVER) as other,
    ):
        expected = write(journal, given_values, keys)
        check(journal, R, expected, keys)
        full = exact(journal.state(R).dump())
        journal.checkpoint(R)
        journal.append(R, [e.NoteAdded("behind it")])
        fresh = Journal(journal.store, checkpoints=NEVER)  # knows nothing but the checkpoint
        check(fresh, R, expected, keys)
        assert exact(fresh.state(R).dump()) == exact(journal.replay(R).dump())
        assert full == exact(journal.replay(R, journal.head(R).head_seq - 1).dump())
        journal.append(R, [e.RunCompleted(expected["output"])], epoch=1)
        inherited = ("input", "tags", "memory")
        for link in (journal.retry(R), journal.fork(R)):
            check(Journal(journal.store, checkpoints=NEVER), link, {name: expected[name] for name in inherited}, keys)
        import_jsonl(other, list(export_runs(journal, [R])), "export.jsonl")
        check(other, R, expected, keys)
        assert exact(told(journal, R)) == exact(told(other, R))


# --- agents -----------------------------------------------------------------------------------------------------------


@tool
def feed(animal: str) -> str:
    return outside.did("feed", animal)


@tool(policy="keyed")
def house(plan: dict[str, Any], *, idempotency_key: str = KEY) -> str:
    return outside.did("house", plan, idempotency_key)


@tool
async def slowly_feed(animal: str) -> str:
    return await outside.did_slowly("slowly_feed", animal)


@tool(policy="keyed")
async def slowly_house(plan: dict[str, Any], *, idempotency_key: str = KEY) -> str:
    return await outside.did_slowly("slowly_house", plan, idempotency_key)


def count(run: Run | AsyncRun) -> None:
    """Remember animals in an order that isn't the sorted one; one of them twice."""
    for number, animal in enumerate(["zebra", "ant", "mole"]):
        run.memory[animal] = number
    run.memory["food"] = {"zebra": "hay", "ant": "sugar", "mole": {"worms": 1, "beetles": 2}}
    run.memory["zebra"] = 7


def keeper(run: Run) -> Any:
    """Goes by the order of a dict in its memory, and by that of the memory's own keys."""
    run.do("count", count, run)
    for animal in run.each("feed", run.memory["food"]):
        with run.step("feed", key=animal):
            feed(animal)
    for key in run.memory:
        if not run.done("house", key):
            with run.step("house", key=key):
                house({key: run.memory[key], "a": run.memory["food"]})
    return {"order": list(run.memory), "food": run.memory["food"]}


async def slow_keeper(run: AsyncRun) -> Any:
    """The same as a coroutine."""
    await run.do("count", count, run)
    for animal in run.each("feed", run.memory["food"]):
        async with run.step("feed", key=animal):
            await slowly_feed(animal)
    for key in run.each("house", run.memory):
        async with run.step("house", key=key):
            await slowly_house({key: run.memory[key], "a": run.memory["food"]})
    return {"order": list(run.memory), "food": run.memory["food"]}


@pytest.mark.parametrize("agent", [keeper, slow_keeper], ids=lambda agent: agent.__name__)
def test_an_agent_loops_the_same_way_after_a_crash(agent: Agent) -> None:
    """An agent that loops over what it remembers, killed at any boundary, goes on and feeds in the same order."""
    whole, ends = everywhere(agent)
    assert ("completed", None) == (whole.status, whole.stop)
    assert ["zebra", "ant", "mole", "food"] == whole.output["order"]
    assert ends
    for end in ends:
        assert None is end.stop
        assert exact(list(whole.facts[:3])) == exact(list(end.facts[:3]))
        fed = [json.loads(args) for what, args, _ in end.world.effects if what.endswith("feed")]
        assert ["zebra", "ant", "mole"] == list(dict.fromkeys(fed))
        assert whole.effects == end.effects


def test_equal_args_in_another_order_are_the_same_call() -> None:
    """Which call it is doesn't depend on the order of its args; a tool gets them as they were asked with."""
    seen: list[Any] = []

    @tool(name="order_of_args", key="once")
    def send(what: dict[str, Any]) -> str:
        seen.append(what)
        return "sent"

    def agent(run: Run) -> Any:
        with run.step("s"):
            return [send({"zebra": 1, "ant": 2}), send({"ant": 2, "zebra": 1})]

    with Journal.open("memory:") as journal:
        assert ["sent", "sent"] == journal.run(agent, run_id=R)
        (started,) = (record.event for record in journal.events(R) if isinstance(record.event, e.ToolStarted))
    assert exact([{"zebra": 1, "ant": 2}]) == exact(seen)
    assert exact({"what": {"zebra": 1, "ant": 2}}) == exact(started.args)


def test_a_hook_is_asked_with_the_args_as_they_were_sent() -> None:
    """A reconcile hook gets the recorded args in the order in which the tool had them."""
    asked: list[Any] = []

    def ask(args: dict[str, Any], _: str) -> Any:
        asked.append(args)
        return "happened", {"zebra": 1, "ant": 2}

    @tool(name="order_of_a_hook", reconcile=ask)
    def send(what: dict[str, Any]) -> Any:
        raise RuntimeError(str(what))

    def agent(run: Run) -> Any:
        with run.step("s"):
            return send({"zebra": 1, "ant": 2})

    with Journal.open("memory:") as journal:
        assert exact({"zebra": 1, "ant": 2}) == exact(journal.run(agent, run_id=R))
    assert exact([{"what": {"zebra": 1, "ant": 2}}]) == exact(asked)


# --- rows, references, reports ----------------------------------------------------------------------------------------


def test_tags_keep_their_order(tmp_path: Path) -> None:
    """Tags come back as they were given, from a listing too; a row that an earlier version sorted is no damage."""
    tags = {"zebra": "1", "ant": "2"}
    with Journal.open(tmp_path / "runs.db") as journal:
        journal.enqueue("k", run_id=R, tags=tags)
        assert exact(tags) == exact(json.loads(journal.head(R).tags)) == exact(journal.state(R).status.tags)
        for stored in ('{"ant":"2","zebra":"1"}', '{"zebra":"1","ant":"2"}', '{"zebra":"1"}'):
            put_tags(tmp_path / "runs.db", stored)
            codes = [each.code for each in audit_store(journal.store) if each.severity == "error"]
            assert (["run_row"] if stored == '{"zebra":"1"}' else []) == codes
        rebuild(journal.store)
        assert exact(tags) == exact(json.loads(journal.head(R).tags))


def put_tags(path: Path, tags: str) -> None:
    """Put other tags into the rows of the runs."""
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE runs SET tags = ?", [tags])
    connection.close()


def test_references_stand_in_one_order() -> None:
    """What is held out of line is named in one order, whatever process writes it."""
    ref = BlobRef("0" * 64, 1)
    made = codec.draft(e.MessageAppended("user", ref, raw=ref), at=generate.AT, by="w")
    assert ["content", "raw"] == list(json.loads(made.ext))


@pytest.mark.parametrize(("before", "after", "expected"), [
    ({"z": 1, "a": 2}, {"z": 1, "a": 2}, []),
    ({"z": 1, "a": 2}, {"a": 2, "z": 1}, ["x"]),
    ({"z": 1, "a": 2}, {"z": 2, "b": 0, "a": 3}, ["x.z", "x.a", "x.b"]),
    ([{"z": 1, "a": 2}], [{"a": 2, "z": 1}], ["x[0]"]),
])  # fmt: skip
def test_differences_are_in_order(before: Any, after: Any, expected: list[str]) -> None:
    """What differs is told in the order of the values; another order of the same keys is a difference."""
    assert expected == [change.path for change in differences({"x": before}, {"x": after})]


@pytest.mark.parametrize("output", ["json", "jsonl", "table"])
@pytest.mark.parametrize("command", [["show", R, "--events"], ["replay", R], ["show", R, "--messages"]], ids=" ".join)
def test_the_command_line_keeps_the_order(tmp_path: Path, command: list[str], output: str) -> None:
    """Whatever the format, a value is printed with its keys in order."""
    with Journal.open(tmp_path / "runs.db") as journal:
        journal.append(R, [e.RunQueued("k", None), generate.claim(1)], expect=0)
        events = [e.StepStarted(0, "s", "s", "once", 1, 1), e.MemorySet("m", ZEBRA_FIRST), e.StepCompleted(0)]
        journal.append(R, [*events, e.MessageAppended("user", ZEBRA_FIRST)], epoch=1)
    found = CliRunner().invoke(cli, ["--db", str(tmp_path / "runs.db"), "-o", output, *command])
    assert 0 == found.exit_code, found.output
    assert found.output.index("zebra") < found.output.index("ant") < found.output.index("mole")
