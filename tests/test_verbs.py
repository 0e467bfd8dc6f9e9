"""One set of verbs for plain threads and for asyncio: an agent that is moved from one to the other finds them all."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from runjournal.async_journal import AsyncJournal
from runjournal.async_run import AsyncDriver, AsyncRun
from runjournal.engine.commands import Append
from runjournal.engine.tools import tool
from runjournal.journal import Journal
from runjournal.run import Run, SyncDriver

PLAIN_ALONE = {"thread"}
"""What only threads need: a task is simply made."""
ASYNC_ALONE = {"loop"}
"""What only tasks have."""


def verbs(cls: type) -> dict[str, list[tuple[str, Any, Any]]]:
    """The public methods and properties of a class, each with its parameters: name, kind and default."""
    found: dict[str, list[tuple[str, Any, Any]]] = {}
    for name, value in inspect.getmembers(cls):
        if not name.startswith("_") and not isinstance(value, type):
            asked = inspect.signature(value).parameters.values() if callable(value) else ()
            found[name] = [(each.name, each.kind, each.default) for each in asked]
    return found


def test_both_runs_have_the_same_verbs() -> None:
    """Each public verb of a run is there in both, with the same parameters."""
    plain, looped = verbs(Run), verbs(AsyncRun)
    assert PLAIN_ALONE == plain.keys() - looped.keys()
    assert ASYNC_ALONE == looped.keys() - plain.keys()
    assert {name: plain[name] for name in plain.keys() - PLAIN_ALONE} == {
        name: looped[name] for name in looped.keys() - ASYNC_ALONE
    }


@pytest.mark.parametrize("name", ["do", "call", "model", "parallel", "ask", "signals", "complete", "fail"])
def test_what_may_wait_is_awaited_in_one_and_blocks_in_the_other(name: str) -> None:
    """A verb that may wait is a coroutine function of the asyncio run, and a plain one of the other."""
    assert not inspect.iscoroutinefunction(getattr(Run, name))
    assert inspect.iscoroutinefunction(inspect.unwrap(getattr(AsyncRun, name)))


@pytest.mark.parametrize("waits", [False, True])
def test_a_driver_may_be_asked_for_each_append(waits: bool) -> None:
    """What a verb does is the same whether its driver appends at once or performs each append as a command."""
    performed = list[Any]()

    @tool
    def pay() -> int:
        return 1

    def agent(run: Run) -> int:
        driver = run._driver
        perform = driver.perform

        async def noted(command: Any) -> Any:
            performed.append(type(command))
            return await perform(command)

        driver.perform = noted  # type: ignore[method-assign]
        if waits:
            driver.at_once = None
        with run.step("a"):
            return run.call(pay)

    with Journal.open("memory:") as journal:
        assert 1 == journal.run(agent, run_id="r")
        types = [each.type for each in journal.events("r")]
    assert waits == (Append in performed)
    assert ["step.started", "tool.started", "tool.completed", "step.completed", "run.completed"] == types[-5:]


def test_an_asyncio_journal_has_every_verb_of_a_journal() -> None:
    """What a journal can be asked, an asyncio one can be asked in the same words; it adds only what is awaited."""
    plain, looped = verbs(Journal), verbs(AsyncJournal)
    assert plain == {name: looped[name] for name in plain}
    added = looped.keys() - plain.keys()
    assert {f"{name}_async" for name in ("run", "recover_all", "check")} == added
    assert all(inspect.iscoroutinefunction(getattr(AsyncJournal, name)) for name in added)


def test_an_asyncio_verb_of_a_journal_takes_what_its_twin_takes() -> None:
    """`run_async` has those of `run`, `check_async` of `check`, `recover_all_async` also how many at a time."""
    looped = verbs(AsyncJournal)
    assert looped["run"] == looped["run_async"]
    assert looped["check"] == looped["check_async"]
    assert looped["recover_all"] == looped["recover_all_async"][:2]
    assert ["concurrency"] == [name for name, _, _ in looped["recover_all_async"][2:]]


def test_both_drivers_do_the_same_for_the_engine() -> None:
    """Each command and each question of the engine has its method in both drivers, with the same parameters."""
    asked = {name for name in verbs(SyncDriver) if name in verbs(AsyncDriver)}
    assert {"perform", "value", "check", "alone", "current", "ring", "settle", "begin_step", "break_step"} <= asked
    for name in ("perform", "value", "check", "break_step", "abandon_step", "forget_step"):
        assert verbs(SyncDriver)[name] == verbs(AsyncDriver)[name]
