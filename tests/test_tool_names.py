"""One name, one function: what happens where two functions of a process are tools of one name."""

import asyncio
from typing import Any

import pytest

from runjournal import AsyncJournal, Journal, RunWaiting, tool
from runjournal.engine import tools
from runjournal.engine.failures import SameName


class First:
    runjournal_id = "first"

    @tool(name="save_it")
    def save(self, text: str) -> str:
        return f"first {text}"


class Second:
    runjournal_id = "second"

    @tool(name="save_it")
    def save(self, text: str) -> str:
        return f"second {text}"


def made(word: str, **how: Any) -> Any:
    """A factory: what it makes is one function, with another setting."""

    @tool(name="from_factory", **how)
    def body(text: str) -> str:
        return f"{word} {text}"

    return body


@pytest.fixture(autouse=True)
def forgotten():
    """The names of this file are unclaimed after each test."""
    yield
    for name in ("from_factory", "post", "quiet"):
        tools._known.pop(name, None)


@pytest.fixture
def journal():
    with Journal.open("memory:") as journal:
        yield journal


def both(run: Any) -> list[str]:
    with run.step("a"):
        first = First().save("x")
    with run.step("b"):
        return [first, Second().save("x")]


def test_two_functions_of_one_name_may_be_made(journal: Journal) -> None:
    """Two modules, or two tests, may each have a tool of a name, as long as no run calls both."""
    assert "first x" == journal.run(lambda run: run.do("a", First().save, "x"))
    assert "second x" == journal.run(lambda run: run.do("a", Second().save, "x"))


def test_a_run_that_calls_both_is_stopped(journal: Journal) -> None:
    """It is a mistake that names both places; the run is released, and goes on once one has another name."""
    with pytest.raises(SameName) as stopped:
        journal.run(both, run_id="r", kind="agent")
    text = str(stopped.value)
    assert "two tools are named save_it: " in text
    for place in ("First.save (", "Second.save (", f"{__file__}:", "name=)"):
        assert place in text
    assert ("queued", 1) == (journal.head("r").status, journal.state("r").calls.tools.started)

    def mended(run: Any) -> list[str]:
        with run.step("b"):
            return [First().save("y")]

    def agent(run: Any) -> Any:
        if not run.done("a"):
            raise AssertionError
        return mended(run)

    assert ["first y"] == journal.run(agent, run_id="r", kind="agent")


def test_a_mistake_that_is_swallowed_stops_all_the_same(journal: Journal) -> None:
    """What is caught by the agent is raised again by its next verb."""

    def agent(run: Any) -> None:
        with run.step("a"):
            First().save("x")
            try:
                Second().save("x")
            except Exception:  # noqa: BLE001 - as people do
                First().save("y")

    with pytest.raises(SameName):
        journal.run(agent, run_id="r")


def test_the_same_in_asyncio() -> None:
    """An asyncio agent is told the same."""

    async def agent(run: Any) -> None:
        async with run.step("a"):
            await run.call(First().save, "x")
            await run.call(Second().save, "x")

    with AsyncJournal.open("memory:") as journal, pytest.raises(SameName):
        asyncio.run(journal.run_async(agent))


def test_a_function_that_is_made_again_is_the_same(journal: Journal) -> None:
    """What a factory makes of the same values is one tool in a step, and of others in another step."""

    def agent(run: Any) -> list[str]:
        with run.step("a"):
            first = [made("one")("x"), made("one")("y")]
        with run.step("b"):
            return [*first, made("two")("x")]

    assert ["one x", "one y", "two x"] == journal.run(agent)
    newest = made("three")
    assert newest is tools.known()["from_factory"]


def crash(journal: Journal) -> None:
    @tool
    def post(text: str) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        journal.run(lambda run: run.do("a", post, "x"), run_id="r")


def test_a_recovery_asks_no_hook_of_two(journal: Journal) -> None:
    """Which hook knows what became of a call nobody can say: the run is left as it is, and both places are named."""
    crash(journal)

    @tool(reconcile=lambda args, key: ("happened", "asked"))
    def post(text: str) -> str:
        return "sent again"

    with pytest.raises(SameName, match=r"two tools are named post: .*crash.*post.* and .*of_two.*post"):
        journal.run(lambda run: run.do("a", post, "x"), run_id="r")
    assert 1 == journal.state("r").calls.tools.started
    tools._known["post"].pop(next(iter(tools._known["post"])))  # one of the two has another name now
    assert "asked" == journal.run(lambda run: run.do("a", post, "x"), run_id="r")


def test_a_recovery_without_hooks_goes_by_the_record(journal: Journal) -> None:
    """Where none of the two has a hook, what was recorded of the call says what becomes of it."""
    crash(journal)

    @tool(policy="idempotent")
    def post(text: str) -> str:
        return "sent again"

    with pytest.raises(RunWaiting, match=r"whether post .* happened"):
        journal.run(lambda run: run.do("a", post, "x"), run_id="r")


def test_what_is_no_plain_function() -> None:
    """An object that is called has no place of its own, and is told by its class."""

    class Quiet:
        def __call__(self, text: str) -> str:
            return text

    assert "quiet" == tool(name="quiet")(Quiet()).name
    assert "Quiet" in str(tools.same_name(tools.known()["quiet"], tools.known()["quiet"]))
