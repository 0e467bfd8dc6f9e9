"""Args that a tool doesn't take: whoever made them, a language model as a rule, is told how to mend them."""

import asyncio
from typing import Any

import pytest

from runjournal import KEY, AsyncJournal, CallFailed, Journal, Tx, tool
from runjournal.engine import failures as f
from runjournal.log import events as e

SENT: list[object] = []


@tool(policy="keyed")
def mail(to: str, body: str, cc: str = "", *, urgent: bool = False, idempotency_key: str = KEY) -> None:
    SENT.append(to)


@tool(read_only=True)
def anything(*words: str, **names: object) -> str:
    return f"{words} {names}"


@tool(policy="transactional")
def book(tx: Tx, cents: int) -> None:
    SENT.append(cents)


@tool
def nothing() -> None:
    SENT.append(None)


untyped: Any = mail  # as a model calls it


class Mailer:
    runjournal_id = "mailer"

    @tool
    def post(self, to: str) -> None:
        SENT.append(to)


MAIL = "It takes to, body, cc (may be left out), urgent (may be left out). Nothing was sent"
WORDS = [
    (mail, {"tto": 1, "body": 2}, f"it has no parameter 'tto', and 'to' is missing. {MAIL}"),
    (mail, {}, f"'to', 'body' is missing. {MAIL}"),
    (mail, {"to": 1, "body": 2, "x\ud800": 3}, f"it has no parameter 'x\\ud800'. {MAIL}"),
    (book, {"tx": 1, "cents": 2}, "it has no parameter 'tx'. It takes cents. Nothing was sent"),
    (book, {}, "'cents' is missing. It takes cents. Nothing was sent"),
    (nothing, {"x": 1}, "it has no parameter 'x'. It takes nothing. Nothing was sent"),
    (Mailer().post, {"too": 1}, "it has no parameter 'too', and 'to' is missing. It takes to. Nothing was sent"),
]


@pytest.fixture(autouse=True)
def _nothing_sent():
    SENT.clear()
    yield
    assert [] == SENT


@pytest.mark.parametrize(("called", "args", "words"), WORDS)
def test_the_words_name_what_there_is_what_is_missing_and_what_is_unknown(called, args, words):
    """The same words in a call, a tool called as a function, and beside other calls; no event is written."""

    def agent(run):
        with run.step("a"):
            heard = []
            for call in (lambda: run.call(called, **args), lambda: called(**args)):
                with pytest.raises(CallFailed) as caught:
                    call()
                heard.append(caught.value)
            wrong, right = run.parallel([(called, args), (anything, {"x": 1})])
            assert "() {'x': 1}" == right
            told.extend(f"{failure.type}: {failure.message}" for failure in [*heard, wrong])

    told: list[str] = []
    with Journal.open("memory:") as journal:
        journal.run(agent, run_id="r")
        assert ["anything"] == [x.event.tool for x in journal.events("r") if isinstance(x.event, e.ToolStarted)]
    assert 1 == len(set(told))
    assert told[0].startswith(f"TypeError: {called.name} can't be called so: ")
    assert told[0].endswith(words)


def test_the_same_in_an_asyncio_agent():
    """Awaited, and beside other calls."""

    async def agent(run):
        async with run.step("a"):
            with pytest.raises(CallFailed, match="'to', 'body' is missing"):
                await run.call(untyped)
            with pytest.raises(CallFailed, match="'to', 'body' is missing"):
                await untyped()
            wrong, right = await run.parallel([(mail, {"to": "ada"}), (anything, {})])
            assert ("CallFailed", "() {}") == (type(wrong).__name__, right)

    with AsyncJournal.open("memory:") as journal:
        asyncio.run(journal.run_async(agent, run_id="r"))


def test_outside_a_step_it_is_the_mistake_that_counts():
    """A call outside any step is NotInStep, whatever its args: a mistake in the code, not of a model."""
    with Journal.open("memory:") as journal:
        with pytest.raises(f.NotInStep):
            journal.run(lambda run: run.call(untyped), run_id="r")
        with pytest.raises(f.NotInStep):
            journal.run(lambda run: run.parallel([(mail, {})]), run_id="r")


def test_a_result_over_the_bound_of_a_blob_is_a_failure_of_a_tool_that_looks(monkeypatch):
    """It is told of as what it is: too large."""
    monkeypatch.setattr("runjournal.log.codec.blob_bytes_max", 100_000)

    @tool(read_only=True)
    def read() -> str:
        return "x" * 200_000

    def agent(run):
        with run.step("a"), pytest.raises(CallFailed, match=r"TooLarge: the result can't be stored: .*plain JSON"):
            read()

    with Journal.open("memory:") as journal:
        journal.run(agent, run_id="r")
