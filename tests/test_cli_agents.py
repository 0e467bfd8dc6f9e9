"""What the command line says of runs that agents left: what becomes of each open call, and what to type."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from runjournal import KEY, Journal, RunFailed, RunWaiting, tool
from runjournal.cli.app import cli
from runjournal.run import Run


@tool
def pay(cents: int) -> str:
    raise ConnectionError("lost")


@tool(on_unknown="ask")
def mail(to: str) -> str:
    raise ConnectionError("lost")


@tool(policy="keyed")
def charge(cents: int, *, idempotency_key: str = KEY) -> str:
    raise KeyboardInterrupt


def twice(what: Any, arg: Any) -> Any:
    def agent(run: Run) -> None:
        with run.step("s"):
            try:
                what(arg)
            except Exception:  # noqa: BLE001 - as people do
                what(arg)

    return agent


def show(path: Path, *args: str) -> str:
    done = CliRunner().invoke(cli, ["--db", str(path), "show", *args], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "runs.db"
    with Journal.open(path) as journal:
        with pytest.raises(Exception, match="nobody knows"):
            journal.run(twice(pay, 5), run_id="failed")
        with pytest.raises(RunWaiting) as waiting:
            journal.run(twice(mail, "ada"), run_id="waits")
        assert [waiting.value.waits[0]["id"]] == list(journal.state("waits").calls.unresolved())
        assert ["whether mail happened"] == [what.partition(",")[0] for what in waiting.value.whats]
        assert waiting.value.answers[0].startswith("resolve('waits', ")
        with pytest.raises(KeyboardInterrupt):
            journal.run(twice(charge, 7), run_id="keyed")
        with pytest.raises(RunFailed) as failed:
            journal.run(twice(pay, 5), run_id="failed")
        assert failed.value.answers[0].startswith("resolve('failed', ")
    return path


def test_show_says_what_becomes_of_an_open_call(store: Path) -> None:
    """Each with its verdict and its reason; where a person must say first, the call that says it."""
    with Journal.open(store) as journal:
        keys = {run: next(iter(journal.state(run).calls.known)) for run in ("failed", "waits", "keyed")}
    for run in ("failed", "waits"):
        text = show(store, run)
        what = "the agent is told that nobody knows" if run == "failed" else "a person is asked"
        assert f"on resume: {what}; it may have happened, and nothing keeps it from happening twice" in " ".join(
            text.split()
        )
        assert f"answer: Journal.resolve('{run}', '{keys[run]}', 'happened', result) or 'did_not_happen'" in text
    assert "go on     Journal.retry('failed') gives the id of a run" in show(store, "failed")
    assert "waits for question: whether mail happened" in show(store, "waits")
    keyed = show(store, "keyed")
    assert "on resume: made again; the receiver does it once for its key" in keyed
    assert "answer: " not in keyed
    (call,) = json.loads(show(store, "keyed", "-o", "json"))["open_calls"]
    assert ("run", True) == (call["verdict"], call["why"].startswith("the receiver does it once"))


def test_show_leads_from_a_run_to_the_one_that_went_on(store: Path) -> None:
    """And back; of a call of which somebody has said what became of it, the row names the tool."""
    with Journal.open(store) as journal:
        (key,) = journal.state("failed").calls.unresolved()
        journal.resolve("failed", key, "did_not_happen")
        journal.retry("failed", new_run_id="again")
    assert "went on   as again" in show(store, "failed")
    assert "from      failed, event " in show(store, "again")
    rows = show(store, "failed", "--calls").splitlines()
    assert ["pay"] == [row.split()[1] for row in rows if "did_not_happen" in row]
