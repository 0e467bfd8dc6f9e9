"""A run's messages as providers take them."""

from __future__ import annotations

import pytest

from runjournal.engine.failures import RunWaiting
from runjournal.engine.tools import tool
from runjournal.histories import UNKNOWN, anthropic, openai_chat, openai_responses
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.limits import lease_s
from runjournal.projections.transcript import Message
from runjournal.runner import Runner


def use(call_id: str) -> dict[str, object]:
    """A tool_use block."""
    return {"type": "tool_use", "id": call_id, "name": "t", "input": {}}


def result(call_id: str) -> dict[str, object]:
    """A tool_result block."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": "ok"}


def unknown(call_id: str) -> dict[str, object]:
    """The block of a call of which nobody knows."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": UNKNOWN, "is_error": True}


def test_anthropic_answers_an_open_call():
    """A tool_use at the end of the log gets a result that says that nobody knows."""
    messages = [Message(1, "user", "go"), Message(2, "assistant", [use("a")])]
    expected = [
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {"role": "assistant", "content": [use("a")]},
        {"role": "user", "content": [unknown("a")]},
    ]
    assert expected == anthropic(messages)


def test_anthropic_answers_the_missing_one_of_two():
    """Of two parallel calls the answered one keeps its result, in the one user message behind them."""
    messages = [Message(1, "assistant", [use("a"), use("b")]), Message(2, "tool", [result("b")])]
    assert {"role": "user", "content": [result("b"), unknown("a")]} == anthropic(messages)[1]


def test_anthropic_answers_before_the_next_word():
    """A user who went on without a result comes behind the result that is made up."""
    messages = [Message(1, "assistant", [use("a")]), Message(2, "user", "and?")]
    assert [unknown("a"), {"type": "text", "text": "and?"}] == anthropic(messages)[1]["content"]


def test_anthropic_puts_a_result_behind_its_call():
    """A user who wrote before the result came stands behind it."""
    messages = [Message(1, "assistant", [use("a")]), Message(2, "user", "and?"), Message(3, "user", [result("a")])]
    assert [result("a"), {"type": "text", "text": "and?"}] == anthropic(messages)[1]["content"]


def test_anthropic_leaves_out_a_result_without_a_call():
    """A result whose call isn't there is refused by the API, so it isn't sent."""
    assert [] == anthropic([Message(1, "tool", [result("x")])])


def test_anthropic_roles_alternate():
    """Messages of one role in a row become one."""
    messages = [Message(1, "user", "a"), Message(2, "user", "b"), Message(3, "system", "s")]
    expected = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert expected == anthropic(messages)


def test_openai_chat_answers_an_open_call():
    """Each tool call has a tool message behind it, before anything else is said."""
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}, {"id": "b"}]}
    answer = {"role": "tool", "tool_call_id": "a", "content": "ok"}
    messages = [Message(1, "assistant", None, raw=call), Message(2, "tool", "ok", raw=answer), Message(3, "user", "?")]
    expected = [
        call, answer, {"role": "tool", "tool_call_id": "b", "content": UNKNOWN}, {"role": "user", "content": "?"}
    ]  # fmt: skip
    assert expected == openai_chat(messages)


def test_openai_chat_puts_a_result_behind_its_call():
    """A user who wrote before the result came stands behind it."""
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}
    answer = {"role": "tool", "tool_call_id": "a", "content": "ok"}
    messages = [Message(1, "assistant", None, raw=call), Message(2, "user", "?"), Message(3, "tool", "ok", raw=answer)]
    assert [call, answer, {"role": "user", "content": "?"}] == openai_chat(messages)


def test_openai_responses_keeps_reasoning_with_its_partner():
    """A reasoning item goes with the call behind it, and alone it is left out; the call is answered."""
    reasoning, call = {"type": "reasoning", "id": "r1"}, {"type": "function_call", "call_id": "a", "name": "t"}
    messages = [
        Message(1, "assistant", [reasoning, call]),
        Message(2, "assistant", [{"type": "reasoning", "id": "r2"}]),
    ]
    expected = [reasoning, call, {"type": "function_call_output", "call_id": "a", "output": UNKNOWN}]
    assert expected == openai_responses(messages)


@pytest.mark.requirement("R70")
def test_what_nobody_knows_is_on_record_and_the_model_is_told(tmp_path):
    """An open call is asked about by an event, once, and the history pairs it with a truthful result."""

    class Died(BaseException):
        pass

    @tool(name="pay_of_a_history")
    def pay():
        raise Died

    def agent(run):
        if not run.done("pay"):
            with run.step("pay"):
                run.message("assistant", [use("a")])
                run.message("tool", [result("a") | {"content": pay()}])

    clock = FakeClock()
    with Journal.open(tmp_path / "runs.db", clock=clock) as journal:
        journal.enqueue("agent", run_id="r")
        runner = Runner(journal, {"pay_of_a_history": pay})
        claim = runner.claim("r")
        assert claim is not None
        with pytest.raises(Died):
            agent(runner.open(claim)[0])
        clock.elapsed_s += 2 * lease_s
        for _ in range(2):
            with pytest.raises(RunWaiting, match=r"whether pay_of_a_history .*happened"):
                journal.run(agent, run_id="r")
        (waits,) = (each.event.for_ for each in journal.events("r") if isinstance(each.event, e.RunWaiting))
        assert [("question", *journal.state("r").calls.unresolved())] == [(wait["kind"], wait["id"]) for wait in waits]
        assert [{"role": "assistant", "content": [use("a")]}, {"role": "user", "content": [unknown("a")]}] == anthropic(
            journal.messages("r")
        )
