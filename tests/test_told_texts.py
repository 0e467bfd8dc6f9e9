"""What is said to people, by an exception or an argument, is kept as far as it can be stored."""

import asyncio

import pytest

from runjournal import AsyncJournal, Journal, RunFailed, RunWaiting, tool
from runjournal.log import events as e
from runjournal.log.codec import tellable

ODD = "can't read 'gr\udcfc\ud800n.txt': \u00fc \U0001f600"
KEPT = "can't read 'gr\\udcfc\\ud800n.txt': \u00fc \U0001f600"


class Odd(Exception):
    """Whatever it says."""


@pytest.fixture
def journal():
    with Journal.open("memory:") as journal:
        yield journal


def events(journal, kind, run_id="r"):
    return [record.event for record in journal.events(run_id) if isinstance(record.event, kind)]


def test_tellable():
    """Only lone surrogates are escaped; what is no text is itself."""
    assert (KEPT, "plain", None) == (tellable(ODD), tellable("plain"), tellable(None))


@pytest.mark.parametrize("message", [ODD, ODD * 1000], ids=["short", "long"])
def test_fail(journal, message):
    """What a run is failed with is told, and so is what it was of."""
    with pytest.raises(RunFailed) as failed:
        journal.run(lambda run: run.fail(message, type=ODD), run_id="r")
    error = failed.value.error
    assert (KEPT, True) == (error["type"], error["message"].startswith(KEPT))
    assert [error] == [event.error for event in events(journal, e.RunFailed)]


def test_fail_async():
    """The same of an asyncio agent."""

    async def agent(run):
        await run.fail(ODD)

    with AsyncJournal.open("memory:") as journal:
        with pytest.raises(RunFailed):
            asyncio.run(journal.run_async(agent, run_id="r"))
        assert [KEPT] == [event.error["message"] for event in events(journal, e.RunFailed)]


def test_exceptions(journal):
    """What a tool, a step or the agent raises keeps its text, its type and its traceback."""

    @tool(on_unknown="fail")
    def odd():
        raise Odd(ODD)

    def agent(run):
        with run.step("s"):
            odd()

    with pytest.raises(Exception, match="can't read"):
        journal.run(agent, run_id="r")
    lost, told = events(journal, e.ToolFailed)
    assert (True, True) == (KEPT in lost.error["message"], KEPT in lost.error["traceback"])
    (failed,), (ended,) = events(journal, e.StepFailed), events(journal, e.RunFailed)
    for event in (told, failed, ended):
        assert (True, lost.error["message"]) == (
            KEPT in event.error["message"],
            event.error["original"]["message"],
        )


def test_arguments(journal):
    """A title, a reason or a note that can't be stored as it is never keeps a verb from doing its work."""

    def agent(run):
        with run.step("s"):
            run.ask("send", args={"to": "ada"}, reason=ODD)

    journal.enqueue("agent", run_id="r", title=ODD)
    with pytest.raises(RunWaiting) as waiting:
        journal.run(agent, run_id="r")
    question = waiting.value.waits[0]["id"]
    journal.reject("r", question, note=ODD)
    journal.cancel("r", ODD)
    assert KEPT == journal.head("r").title
    assert [KEPT] == [event.reason for event in events(journal, e.ApprovalRequested)]
    assert [KEPT] == [event.note for event in events(journal, e.ApprovalResolved)]
    assert [KEPT] == [event.reason for event in events(journal, e.RunCancelRequested)]
    assert [KEPT] == [event.reason for event in events(journal, e.RunCancelled)]
