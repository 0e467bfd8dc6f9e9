"""Children over several runs of a line: what a cancel takes down, and what goes on afterwards (engine.md K13 on)."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from runjournal import AsyncJournal, AsyncRun, Journal, Run, RunWaiting
from runjournal.cli.app import cli
from runjournal.engine import failures as f
from runjournal.log import events as e

FINISHED = ("child.finished",)


def begun(journal: Journal, run_id: str = "p") -> list[str]:
    found = journal.events(run_id, types=("child.spawned",))
    return [x.event.child_run_id for x in found if isinstance(x.event, e.ChildSpawned)]


def told(journal: Journal, run_id: str = "p") -> list[str]:
    return [x.event.status for x in journal.events(run_id, types=FINISHED) if isinstance(x.event, e.ChildFinished)]


def line(journal: Journal, run_id: str) -> list[str]:
    return [head.status for head in journal.runs() if head.scope == run_id]


def typed(store: Path, *words: str) -> Any:
    done = CliRunner().invoke(cli, ["--db", str(store), *words], catch_exceptions=False)
    assert 0 == done.exit_code, done.output
    return json.loads(done.stdout) if "json" in words else done.stdout


def asks(run: Run) -> Any:
    return run.ask("delete", args={"path": run.input})["path"]


def asks_two(run: Run) -> Any:
    return run.do("work", lambda: [run.call_child(asks, input=path) for path in ("/a", "/b")])


async def asks_async(run: AsyncRun) -> Any:
    return (await run.ask("delete", args={"path": run.input}))["path"]


async def asks_two_async(run: AsyncRun) -> Any:
    async def work() -> Any:
        return await asyncio.gather(*(run.call_child(asks_async, input=path) for path in ("/a", "/b")))

    return await run.do("work", work)


def goes_on(journal: Journal, agent: Any, run: Any, link: str) -> None:
    with pytest.raises(RunWaiting):
        run(agent, run_id="p")
    while questions := journal.questions("p"):
        if questions[0].args == {"path": "/b"}:
            break
        journal.approve(questions[0].run_id, questions[0].id)
        with pytest.raises(RunWaiting):
            run(agent, run_id="p")
    journal.cancel("p", "enough")
    new = journal.retry("p") if link == "retry" else journal.restart("p")
    with pytest.raises(RunWaiting):
        run(agent, run_id=new)
    questions = journal.questions(new)
    assert [{"path": "/b"}] == [each.args for each in questions]
    journal.approve(questions[0].run_id, questions[0].id)
    assert ["/a", "/b"] == run(agent, run_id=new)
    one, two = begun(journal)
    assert [["completed"], ["cancelled", "completed"]] == [sorted(line(journal, each)) for each in (one, two)]
    assert "cancelled" not in told(journal) + told(journal, new)


@pytest.mark.parametrize("link", ["retry", "restart"])
def test_a_retry_of_a_cancelled_parent_goes_on_with_its_children(link: str) -> None:
    """The child that its cancel took down asks anew, in a retry of its own; the other one has ended and stays so."""
    with Journal.open("memory:") as journal:
        goes_on(journal, asks_two, journal.run, link)


def test_a_retry_of_a_cancelled_parent_goes_on_with_its_children_on_a_loop() -> None:
    """Children that were waited for together are taken up together."""
    with AsyncJournal.open("memory:") as journal:
        goes_on(
            journal, asks_two_async, lambda agent, run_id: asyncio.run(journal.run_async(agent, run_id=run_id)), "retry"
        )


def test_a_run_that_is_cancelled_takes_up_nothing() -> None:
    """Its child finds the cancel in its own process: the parent is told nothing of that, and stops."""
    with Journal.open("memory:") as journal:

        def cancelled(run: Run) -> Any:
            run.do("first", lambda: journal.cancel("p", mode="now"))
            return run.do("second", lambda: 1)

        with pytest.raises(f.RunCancelled):
            journal.run(lambda run: run.do("work", lambda: run.call_child(cancelled)), run_id="p")
        assert ["cancelled"] == line(journal, *begun(journal))
        assert [] == told(journal)


def test_explain_names_the_child_that_has_failed(tmp_path: Path) -> None:
    """Its line comes first; once it and then the next one is typed, the run completes."""
    store, down = tmp_path / "runs.db", [True, False]

    def fails(run: Run) -> Any:
        if down.pop(0):
            raise ValueError("the disk is down")
        return "mended"

    def parent(run: Run) -> Any:
        return run.do("work", lambda: run.call_child(fails))

    with Journal.open(store) as journal:
        with pytest.raises(f.StepFailed):
            journal.run(parent, run_id="p")
        (child,) = begun(journal)
    ways = typed(store, "explain", "p", "-o", "json")["ways"]
    assert [["retry", child], ["retry", "p"]] == [each["command"].split()[3:] for each in ways[:2]]
    for way in ways[:2]:
        typed(store, *way["command"].split()[3:])
    with Journal.open(store) as journal:
        assert "mended" == journal.run(parent, run_id="p")
