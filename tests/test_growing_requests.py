"""A conversation that grows: what a turn costs hangs on what is new in it, and each request is what it was alone."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from runjournal import Journal, Run, StepFailed, tool
from runjournal.cli.app import cli
from runjournal.engine import requests
from runjournal.engine.requests import AskedRequests, request_hash
from runjournal.log import events as e
from runjournal.log.codec import draft
from runjournal.log.errors import InvalidArgument, Unstorable
from runjournal.log.limits import request_lists_kept_max, request_parts_max
from runjournal.projections.requests import NotStored, rebuilt, sha256_of
from runjournal.projections.transcript import Message
from runjournal.provider_shapes import GrowingHistory, history

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
TEXT = "x" * 1000


def about(request: Any, now: datetime = NOON, asked: AskedRequests | None = None) -> tuple[Any, ...]:
    """Return all that is worked out of a request, alone or behind others."""
    found = (asked or AskedRequests(parts=True)).asked("m", request, now)
    return found.hash, found.parts, found.value, found.lend()


ELEMENTS: st.SearchStrategy[list[Any]] = st.lists(
    st.one_of(
        st.sampled_from([0, 1, True, False, 1.0, 0.0, -0.0, None, "", "12:30", "2026-01-02", [], {}, "1"]),
        st.dictionaries(st.sampled_from("ab"), st.sampled_from([1, True, 1.0, "x", "12:31", None, [1]]), max_size=2),
    ),
    max_size=6,
)
REQUESTS = st.lists(
    st.one_of(
        ELEMENTS,
        st.fixed_dictionaries(
            {"messages": ELEMENTS}, optional={"tools": ELEMENTS, "system": st.sampled_from(["x", 1])}
        ),
        st.sampled_from([None, "hi", 1, {"": []}, [[]], {"": "x"}]),
    ),
    max_size=6,
)


@settings(max_examples=300)  # its values are long, and no property of the log itself
@given(REQUESTS)
def test_a_request_behind_others_is_what_it_is_alone(several: list[Any]) -> None:
    """Whatever was asked before, its hash, its parts and its value are the same, type for type."""
    asked = AskedRequests(parts=True)
    for request in several:
        assert repr(about(request)) == repr(about(request, asked=asked)) == repr(about(request, asked=AskedRequests()))
        assert request_hash(request) == about(request, asked=asked)[0]


@settings(max_examples=300)  # its values are long, and no property of the log itself
@given(REQUESTS, st.lists(st.integers(0, 3), max_size=8))
def test_what_is_stored_of_a_request_is_all_of_it(several: list[Any], lost: list[int]) -> None:
    """From what is new in each, each is put together again, type for type: also where some never came to the log."""
    asked, log = AskedRequests(), dict[int, e.ModelStarted]()
    for number, request in enumerate(several):
        found = asked.asked("m", request, NOON)
        new, parts = found.told()
        event = e.ModelStarted("c", "m", found.hash, 1, request=new, parts=parts)
        assert event == draft(event, at="2026-01-02T12:00:00.000000Z", by="w", step=None).event
        if number % 4 in lost:
            continue
        log[number + 1] = event
        found.recorded(number + 1)
        assert repr(request) == repr(rebuilt(event, number + 1, log.get))


def test_a_request_that_was_changed_in_the_log_is_none() -> None:
    """What doesn't hash to what the event says, or goes on from what isn't there, isn't the request."""
    asked, log = AskedRequests(), dict[int, e.ModelStarted]()
    for number, messages in enumerate((["a"], ["a", "b"]), start=1):
        found = asked.asked("m", {"messages": messages}, NOON)
        log[number] = e.ModelStarted("c", "m", found.hash, 1, request=found.told()[0])
        found.recorded(number)
    assert {"after": 1, "keep": {"messages": 1}, "tail": {"messages": ["b"]}} == log[2].request
    assert {"messages": ["a", "b"]} == rebuilt(log[2], 2, log.get)
    for wrong in ({1: replace(log[1], request={"keys": ["messages"], "tail": {"messages": ["x"]}})}, {}, {1: None}):
        with pytest.raises(NotStored):
            rebuilt(log[2], 2, wrong.get)
    with pytest.raises(NotStored, match="a later one"):
        rebuilt(replace(log[2], request={"after": 2}), 2, log.get)


def test_the_hash_of_a_request_is_golden() -> None:
    """A vector by which anybody can check his own; the order of keys doesn't matter, that of elements does."""
    golden = "951d6907b700ce819ffff8246ace562bdc0de0ba8044f51217bb71d6b194dbf1"
    assert golden == request_hash({"system": "ä", "messages": [{"role": "user", "content": "hi"}, 1.5]})
    assert golden == request_hash({"messages": [{"content": "hi", "role": "user"}, 1.5], "system": "ä"})
    assert golden != request_hash({"messages": [1.5, {"content": "hi", "role": "user"}], "system": "ä"})
    assert request_hash({"": [1]}) != request_hash([1])


@pytest.mark.parametrize("changed", [True, 1.0, 2, "1"])
def test_what_is_equal_in_python_alone_is_another_request(changed: Any) -> None:
    """A message that was changed afterwards from 1 to True makes another request of it."""
    asked = AskedRequests()
    first = asked.asked("m", {"messages": [{"n": 1}, "x"]}, NOON)
    again = asked.asked("m", {"messages": [{"n": changed}, "x"]}, NOON)
    assert first.hash != again.hash
    assert type(changed) is type(again.value["messages"][0]["n"])


@pytest.mark.parametrize("wrong", [("a",), {1: "a"}, "\ud800", float("nan"), object()])
def test_what_can_not_be_stored_is_named_wherever_it_stands(wrong: Any) -> None:
    """An element that was fine before is looked at again: a tuple in its place is refused, with its path."""
    asked = AskedRequests()
    asked.asked("m", {"messages": [["a"], "x"]}, NOON)
    for messages in ([wrong, "x"], [["a"], "x", wrong]):
        with pytest.raises(Unstorable, match=r"messages\[[02]\]"):
            asked.asked("m", {"messages": messages}, NOON)


def test_a_request_stays_what_it_was() -> None:
    """Whatever its asker, the model or a later request does to what it was made of or lent."""
    asked, given = AskedRequests(), {"messages": [{"content": ["a"]}]}
    first = asked.asked("m", given, NOON)
    given["messages"][0]["content"].append("b")
    first.lend()["messages"][0]["content"].append("c")
    first.take_back()
    asked.asked("m", {"messages": [{"content": ["z"]}, "y"]}, NOON)
    assert {"messages": [{"content": ["a"]}]} == first.value == first.lend() == first.lend()


def test_a_clock_stops_being_one() -> None:
    """A date is a clock within a day of it: the parts of what was asked before are those of now."""
    asked = AskedRequests(parts=True)
    request = {"messages": ["on 2026-01-02", f"at {NOON.timestamp():.0f}"]}
    for days in (0, 1, 2, 0, 40, -40):
        now = NOON + timedelta(days=days)
        assert about(request, now) == about(request, now, asked)
    assert about(request, NOON)[1] != about(request, NOON + timedelta(days=2))[1]


# What it costs, counted.


class Counted:
    """What was hashed, in bytes, and how often anything was called."""

    def __init__(self) -> None:
        self.hashed = self.calls = 0


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    found = Counted()
    before = sha256_of

    def sha256(value: Any) -> bytes:
        found.hashed += len(repr(value))
        return before(value)

    def count(frame: object, event: str, arg: object) -> None:
        found.calls += event in ("call", "c_call")

    with monkeypatch.context() as patch:
        patch.setattr(requests, "sha256_of", sha256)
        sys.setprofile(count)
        try:
            yield found
        finally:
            sys.setprofile(None)


def costs(monkeypatch: pytest.MonkeyPatch, turn: Callable[[Run, int], None], turns: tuple[int, ...]) -> list[Counted]:
    """Return what some turns of an agent's loop cost: each the cheapest of five, for a checkpoint may be due."""
    found: dict[int, list[Counted]] = {}

    def agent(run: Run) -> None:
        for number in range(max(turns) + 5):
            with counted(monkeypatch) as each:
                turn(run, number)
            found.setdefault(next((first for first in turns if first <= number < first + 5), -1), []).append(each)

    with Journal.open("memory:") as journal:
        journal.run(agent, run_id="r", input="go")
    return [min(found[first], key=lambda each: each.calls) for first in turns]


def test_a_turn_costs_what_is_new_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hundredth question with the whole conversation hashes no more, and calls no more, than the tenth."""
    said: list[dict[str, str]] = []

    def turn(run: Run, number: int) -> None:
        with run.step("turn", repeat=True):
            said.append({"role": "user", "content": f"{number} {TEXT}"})
            run.message(**said[-1])
            answer = run.model("m", {"messages": said, "tools": [{"n": n} for n in range(9)]}, lambda _: {"text": TEXT})
            said.append({"role": "assistant", "content": answer["text"]})
            run.message(**said[-1])

    early, late = costs(monkeypatch, turn, (request_parts_max // 2 + 8, 100))
    assert late.calls <= early.calls + 20
    assert late.hashed <= early.hashed + 20


def test_a_conversation_that_is_mended_at_its_end_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that moves to the last message at each turn, as one for a cache does, makes two messages new, not all."""
    said: list[dict[str, Any]] = []

    def turn(run: Run, number: int) -> None:
        with run.step("turn", repeat=True):
            if said:
                said[-1].pop("mark")
            said.append({"role": "user", "content": f"{number} {TEXT}", "mark": True})
            run.model("m", {"messages": said}, lambda _: {})

    early, late = costs(monkeypatch, turn, (70, 110))
    assert late.hashed <= early.hashed + 20


def test_conversations_that_take_turns_are_all_gone_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several agents in one run that ask the same model pay for what is new in each."""
    said: list[list[str]] = [[f"agent {number}"] for number in range(request_lists_kept_max)]

    def turn(run: Run, number: int) -> None:
        with run.step("turn", repeat=True):
            for each in said:
                each.append(f"{number} {TEXT}")
                run.model("m", {"messages": each}, lambda _: {})

    early, late = costs(monkeypatch, turn, (5, 20))
    assert late.hashed <= early.hashed + 20 * request_lists_kept_max


@tool(read_only=True)
def look(n: int) -> str:
    return f"{n} {TEXT}"


def test_a_turn_of_a_loop_reads_and_converts_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run.turn` late in a run hashes and calls no more than early."""

    def answer(request: dict[str, Any]) -> Any:
        number = len(request["messages"])
        use = {"type": "tool_use", "id": f"t{number}", "name": "look", "input": {"n": number}}
        return {"role": "assistant", "content": [{"type": "text", "text": TEXT}, use], "stop_reason": "tool_use"}

    def turn(run: Run, number: int) -> None:
        run.turn("m", {"max_tokens": 1}, tools=[look], call=answer)

    early, late = costs(monkeypatch, turn, (40, 80))
    assert late.calls <= early.calls + 40
    assert late.hashed <= early.hashed + 20


def test_messages_are_read_once() -> None:
    """`run.state.messages` reads what is new in the log; those of a step that failed are gone, and each is a copy."""
    read: list[int] = []

    def agent(run: Run) -> None:
        filled = run._core.lineage._filled

        def noted(record: Any) -> Any:
            read.append(record.seq)
            return filled(record)

        run._core.lineage._filled = noted
        for number in range(5):
            with suppress(StepFailed), run.step("fails", key=number):
                run.message("user", "dropped")
                assert not run.state.messages[-1].committed
                raise ValueError("no")
            with run.step("talk", repeat=True):
                run.message("user", ["a", number])
            run.state.messages[-1].content.append("mine alone")
            assert [["a", n] for n in range(number + 1)] == [message.content for message in run.state.messages]
            assert all(message.committed for message in run.state.messages)

    with Journal.open("memory:") as journal:
        journal.run(agent, run_id="r", messages=[])
        assert len(set(read)) == len(read)


KINDS = ["user", "tools", "tool", "blank", "assistant", "system", "results"]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(KINDS), max_size=12), st.booleans())
def test_a_history_that_grows_is_the_history(said: list[str], chat: bool) -> None:
    """Turn after turn the same messages go to the provider as if all were converted at once."""
    growing, messages = GrowingHistory(), list[Message]()
    for n, kind in enumerate(said):
        messages.append(_message(n, kind, chat=chat))
        assert history(messages, {}) == growing.of(messages, {})


def _message(n: int, kind: str, *, chat: bool) -> Message:
    blocks: dict[str, tuple[str, Any]] = {
        "user": ("user", f"text {n}"),
        "system": ("system", "be kind"),
        "blank": ("assistant", [{"type": "text", "text": " "}]),
        "assistant": ("assistant", [{"type": "text", "text": f"said {n}"}]),
        "tools": ("assistant", [{"type": "tool_use", "id": f"t{n}", "name": "x", "input": {}}]),
        "tool": ("user", [{"type": "tool_result", "tool_use_id": f"t{n - 1}", "content": "x"}]),
        "results": ("user", [{"type": "tool_result", "tool_use_id": f"t{n - 2}", "content": "y"}, {"type": "text"}]),
    }
    if not chat:
        return Message(n + 1, *blocks[kind])
    raws: dict[str, Any] = {
        "tools": {"role": "assistant", "content": None, "tool_calls": [{"id": f"t{n}", "function": {}}]},
        "tool": {"role": "tool", "tool_call_id": f"t{n - 1}", "content": "x"},
        "results": {"role": "tool", "tool_call_id": f"t{n - 2}", "content": "x"},
        "assistant": {"role": "assistant", "content": f"said {n}"},
        "blank": {"role": "assistant", "content": ""},
    }
    role = "tool" if kind in ("tool", "results") else blocks[kind][0]
    return Message(n + 1, role, f"text {n}", raw=raws.get(kind))


def test_the_hash_is_on_record() -> None:
    """`model.started` names the request by the hash that anybody can work out; a body may change what it is lent."""
    seen: list[Any] = []

    def spoil(request: Any) -> Any:
        seen.append([*request["messages"]])
        request["messages"][0]["content"] = "spoilt"
        request["messages"].clear()
        return {}

    def agent(run: Run) -> None:
        said = [{"content": "hi"}]
        for _ in range(3):
            with run.step("turn", repeat=True):
                run.model("m", {"messages": said}, spoil)
        assert [{"content": "hi"}] == said

    with Journal.open("memory:") as journal:
        journal.run(agent, run_id="r")
        hashes = [each.event.request_hash for each in journal.events("r") if isinstance(each.event, e.ModelStarted)]
    assert [request_hash({"messages": [{"content": "hi"}]})] * 3 == hashes
    assert [1, 1, 1] == [len(messages) for messages in seen]


def test_the_whole_request_is_read_back() -> None:
    """`journal.request` returns what a model was asked, in every process; the log holds each message once."""
    said: list[str] = []

    def turns(upto: int) -> Callable[[Run], None]:
        def agent(run: Run) -> None:
            while run.memory.get("turns", 0) < upto:
                with run.step("turn", repeat=True):
                    run.memory["turns"] = run.memory.get("turns", 0) + 1
                    said.append(f"message {len(said)}")
                    run.model("m", {"system": TEXT, "messages": said, "tools": [TEXT]}, lambda _: {})
            if upto < 4:
                raise KeyboardInterrupt

        return agent

    with Journal.open("memory:") as journal:
        for upto in (2, 4):
            with suppress(KeyboardInterrupt):
                journal.run(turns(upto), run_id="r", kind="k")
        records: list[Any] = [each for each in journal.events("r") if isinstance(each.event, e.ModelStarted)]
        for number, record in enumerate(records, start=1):
            whole = {"system": TEXT, "messages": said[:number], "tools": [TEXT]}
            assert whole == journal.request("r", record.seq)
        assert [None, *(each.seq for each in records[:-1])] == [each.event.request.get("after") for each in records]
        text = repr([each.event.request for each in records])
        assert [1, 1, 1, 1, 2] == [text.count(each) for each in (*said, TEXT)]
        for seq in (0, 1, records[0].seq + 1):
            with pytest.raises(InvalidArgument, match="is no model"):
                journal.request("r", seq)


def test_requests_need_not_be_stored() -> None:
    """Without `store_requests` the log has digests of a request's parts, and a clock in it may still differ."""
    asked: list[Any] = []

    def ask(request: Any) -> Any:
        asked.append(request)
        return {"n": 1}

    def agent(text: str) -> Callable[[Run], Any]:
        def body(run: Run) -> Any:
            with run.step("ask"):
                answer = run.model("m", {"messages": [text]}, ask)
                if len(asked) == 1 and "12:30" in text:
                    raise KeyboardInterrupt
                return answer["n"]

        return body

    with Journal.open("memory:", store_requests=False) as journal:
        with pytest.raises(KeyboardInterrupt):
            journal.run(agent("it is 12:30"), run_id="r", kind="k")
        record: Any = next(each for each in journal.events("r") if isinstance(each.event, e.ModelStarted))
        assert (None, ["messages"]) == (record.event.request, list(record.event.parts))
        with pytest.raises(InvalidArgument, match="doesn't hold the request"):
            journal.request("r", record.seq)
        assert 1 == journal.run(agent("it is 12:31"), run_id="r", kind="k")
        assert 1 == len(asked)


def test_what_is_new_grows_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a late turn puts into the log about its request is as long as what an early one does."""
    with Journal.open("memory:") as journal:
        said: list[dict[str, str]] = []

        def agent(run: Run) -> None:
            for number in range(60):
                with run.step("turn", repeat=True):
                    said.append({"role": "user", "content": f"{number:3} {TEXT}"})
                    run.model("m", {"messages": said, "tools": [{"n": n} for n in range(9)]}, lambda _: {})

        journal.run(agent, run_id="r")
        sizes = [len(body) for _, _, kind, body, _ in journal.store.read_raw("r") if kind == "model.started"]
    assert sizes[-1] <= sizes[1] + 20


def test_the_command_line_shows_a_request_whole(tmp_path: Path) -> None:
    """`show --request` prints what a model was asked, and says what is no such event."""
    path = str(tmp_path / "runs.db")
    whole = {"messages": [{"content": "hi\x1b[2J"}], "n": 1}

    def agent(run: Run) -> None:
        with run.step("ask"):
            run.model("m", whole, lambda _: {})

    with Journal.open(path) as journal:
        journal.run(agent, run_id="r")
        (seq,) = (each.seq for each in journal.events("r", types=["model.started"]))
    found = CliRunner().invoke(cli, ["--db", path, "show", "r", "--request", str(seq)])
    assert (0, whole) == (found.exit_code, json.loads(found.stdout))
    assert "\x1b" not in found.stdout
    wrong = CliRunner().invoke(cli, ["--db", path, "show", "r", "--request", "1"])
    assert (2, True) == (wrong.exit_code, "event 1 is no model.started" in wrong.stderr)
