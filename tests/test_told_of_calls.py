"""What is told of calls beside their outcomes: providers' ids, the model that answered, HTTP statuses, tools' costs."""

from decimal import Decimal
from typing import Any

import pytest

from runjournal import CallFailed, Journal, Run, tool
from runjournal.log import events as e
from runjournal.log.base import Event
from runjournal.log.errors import InvalidArgument
from runjournal.projections.costs import Costs

USAGE = {"input": 10, "output": 5, "cache_read": 2, "cache_write": 1}
COST = {"amount": "0.25", "currency": "USD", "source": "reported"}
R = "r"


class Told(Exception):
    """An error of a client's."""

    status_code = 529
    request_id = "req_2"


class Answer:
    """An answer of a client's: its request id stands beside what it dumps."""

    _request_id = "req_1"

    def model_dump(self) -> dict[str, Any]:
        return {"id": "msg_1", "model": "big-2026", "content": []}


def ends(journal: Journal, kind: type[Event]) -> list[Any]:
    return [each.event for each in journal.events(R) if isinstance(each.event, kind)]


def test_what_a_provider_tells_of_an_answer_is_on_record() -> None:
    """The id of the request and the model that answered, of an answer and of a failure; the HTTP status of an error."""

    def ask(request: Any) -> Any:
        if request["n"]:
            return Answer() if request["n"] == 1 else {"_request_id": "req_3", "model": "small"}
        raise Told

    def agent(run: Run) -> None:
        with run.step("ask"):
            for n in (1, 2):
                run.model("big", {"n": n}, ask)
            with pytest.raises(CallFailed):
                run.model("big", {"n": 0}, ask)

    with Journal.open("memory:") as journal:
        journal.run(agent, run_id=R)
        first, second = ends(journal, e.ModelCompleted)
        assert ("req_1", "big-2026", "msg_1") == (first.request_id, first.response_model, first.response_id)
        assert ("req_3", "small") == (second.request_id, second.response_model)
        failure = ends(journal, e.ModelFailed)[-1]
        assert ("req_2", 529) == (failure.request_id, failure.error["status"])


def test_an_error_without_a_status_of_http_has_none() -> None:
    """A number that is no status isn't stored as one."""
    error = RuntimeError("no")
    error.status = 7  # type: ignore[attr-defined]

    @tool(read_only=True)
    def look() -> None:
        raise error

    def agent(run: Run) -> None:
        with run.step("look"), pytest.raises(CallFailed):
            look()

    with Journal.open("memory:") as journal:
        journal.run(agent, run_id=R)
        assert {"type": "RuntimeError", "message": "no"} == {
            key: value for key, value in ends(journal, e.ToolFailed)[0].error.items() if key != "traceback"
        }


def test_a_call_of_a_turn_has_the_id_that_the_model_gave_it() -> None:
    """`run.turn` records which call of the model's message each tool call is."""

    @tool(read_only=True, name="look_told")
    def look(n: int) -> int:
        return n

    def ask(request: Any) -> Any:
        if len(request["messages"]) > 1:
            return {"role": "assistant", "content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn"}
        uses = [{"type": "tool_use", "id": f"toolu_{n}", "name": "look_told", "input": {"n": n}} for n in (1, 2)]
        return {"role": "assistant", "content": uses, "stop_reason": "tool_use"}

    def agent(run: Run) -> Any:
        while (answer := run.turn("m", {}, [look], ask)) is None:
            pass
        return answer

    with Journal.open("memory:") as journal:
        assert "done" == journal.run(agent, run_id=R, input="go")
        started = {each.args["n"]: each.provider_call_id for each in ends(journal, e.ToolStarted)}
        assert {1: "toolu_1", 2: "toolu_2"} == started


def test_what_tools_have_cost_is_in_the_ledger() -> None:
    """Tokens and money of tool calls, failed ones too, and tokens told beside the calls; no call lacks a price."""
    with Journal.open("memory:") as journal:
        journal.open_run("chat", source="test", run_id=R)
        for call_id in "abcd":
            journal.append(R, [e.ToolStarted(call_id, "search", {}, "unsafe", True, "ask", 1)])
        error = {"type": "E", "message": "m", "status": 503}
        journal.append(
            R,
            [
                e.ToolCompleted("a", 1, 1, usage=USAGE, cost=COST),
                e.ToolFailed("b", 1, error, transient=True, usage=USAGE),
                e.ToolCompleted("c", 1, 1, cost=COST),
                e.ToolCompleted("d", 1, 1),
                e.CostRecorded("0.5", "USD", "bill", model="gpt", usage=USAGE),
                e.CostRecorded("0.5", "USD", "bill"),
                e.CostRepriced("-0.1", "USD", "bill"),
            ],
        )
        costs = journal.state(R).costs
        assert ({"tool:search": {name: 2 * count for name, count in USAGE.items()}, "gpt": USAGE}, 54) == (
            costs.usage(), costs.tokens(),
        )  # fmt: skip
        assert (Decimal("1.4"), 0, 0, 2) == (
            costs.amount("USD"), costs.count("unpriced"), costs.count("without_usage"), costs.count("calls"),
        )  # fmt: skip
        assert costs == Costs.load(costs.dump())
        with pytest.raises(InvalidArgument, match="status"):
            journal.append(R, [e.ToolFailed("z", 1, {"type": "E", "message": "m", "status": "503"}, transient=True)])
