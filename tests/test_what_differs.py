"""A stop of a step names what differs from the record, by JSON path: in requests to models, in args, in questions."""

from datetime import UTC, datetime
from typing import Any

import pytest

from runjournal import Journal, Run, RunWaiting, StepDiverged, tool
from runjournal.engine.requests import AskedRequests
from runjournal.log.limits import differences_told_max, request_parts_max


class Died(BaseException):
    """The process dies here."""


@tool
def send(to: str, body: dict[str, Any]) -> str:
    return f"sent to {to}"


def stopped(journal: Journal, first: Any, second: Any) -> str:
    """Run a step that dies behind its last line, then the mended code; return what the stop says."""

    def agent(body: Any, dies: bool) -> Any:
        def run_(run: Run) -> Any:
            with run.step("s"):
                body(run)
                if dies:
                    raise Died

        return run_

    with pytest.raises(Died):
        journal.run(agent(first, True), run_id="r", kind="k")
    with pytest.raises(StepDiverged) as caught:
        journal.run(agent(second, False), run_id="r", kind="k")
    return caught.value.message.partition("; what differs: ")[2]


def ask(run: Run, request: dict[str, Any]) -> Any:
    return run.model("m", request, lambda _: {"text": "yes"})


REQUEST = {"model": "x", "system": "Be kind.", "messages": [{"role": "user", "content": "hi"}, {"role": "user"}]}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"system": "Be terse."}, "m: request.system"),
        ({"messages": [REQUEST["messages"][0], {"role": "user", "content": "2"}]}, "m: request.messages[1]"),
        ({"temperature": 0}, "m: request.temperature"),
        ({"system": "Be terse.", "model": "y"}, "m: request.model, m: request.system"),
    ],
)
def test_a_changed_prompt_is_named(changed: dict[str, Any], told: str) -> None:
    """A deploy changed a prompt in a step that has sent something: the stop says which part, and nothing is paid."""
    paid: list[Any] = []

    def first(run: Run) -> None:
        ask(run, REQUEST)
        send("ann", {"text": "hi"})

    def second(run: Run) -> None:
        run.model("m", REQUEST | changed, paid.append)

    with Journal.open("memory:") as journal:
        assert told == stopped(journal, first, second)
        assert not paid


def test_a_changed_argument_is_named() -> None:
    """With the value that was sent, and today's."""
    with Journal.open("memory:") as journal:
        told = stopped(
            journal,
            lambda run: send("ann", {"text": "hi", "cc": ["bob"]}),
            lambda run: send("ann", {"text": "hi", "cc": ["eve"]}),
        )
    assert 'send: args.body.cc[0] was "bob" and is "eve"' == told


def test_a_changed_question_is_named() -> None:
    """What a person was asked is compared like the args of a tool."""

    def agent(cents: int) -> Any:
        return lambda run: run.do("s", lambda: run.ask("pay", args={"cents": cents}))

    with Journal.open("memory:") as journal:
        with pytest.raises(RunWaiting):
            journal.run(agent(100), run_id="r", kind="k")
        (question,) = journal.state("r").approvals.known
        journal.approve("r", question)
        with pytest.raises(StepDiverged, match=r"ask pay: args\.cents was 100 and is 200"):
            journal.run(agent(200), run_id="r", kind="k")


def test_no_more_is_named_than_can_be_read() -> None:
    """Of many differences the first ones, and that there are more; a long value is cut."""
    many = differences_told_max + 2
    with Journal.open("memory:") as journal:
        told = stopped(
            journal,
            lambda run: send("ann", {str(n): "x" * 1000 for n in range(many)}),
            lambda run: send("ann", {str(n): "y" * 1000 for n in range(many)}),
        )
    assert told.endswith(", and more")
    assert differences_told_max == told.count(" was ")
    assert len(told) < differences_told_max * 200


def test_where_nothing_is_known_nothing_is_said() -> None:
    """The tool wasn't asked for at all: its name alone is told."""
    with Journal.open("memory:") as journal:
        assert "" == stopped(journal, lambda run: send("ann", {}), lambda run: None)


def parts_of(request: Any) -> Any:
    return AskedRequests(parts=True).asked("m", request, datetime(2026, 1, 2, tzinfo=UTC)).parts


def test_the_parts_of_a_request_are_bounded() -> None:
    """A list is told element by element up to a bound, and whatever a request is has parts."""
    long = parts_of({"messages": list(range(10 * request_parts_max)), "system": "x"})
    assert request_parts_max + 1 == len(long["messages"])
    assert [8] * len(long["messages"]) == [len(each) for each in long["messages"]]
    assert [""] == list(parts_of(["a list"]))
    assert parts_of({"a": 1}) != parts_of({"a": 2})
