"""What the command line says of runs that agents left: what becomes of each open call, and what to type."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from runjournal import KEY, Journal, RunFailed, RunWaiting, tool
from runjournal.cli.app import cli
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.base import Event
from runjournal.looking.audit import audit_run
from runjournal.run import Run


@tool(on_unknown="fail")
def pay(cents: int) -> str:
    raise ConnectionError("lost")


@tool
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
        assert ['whether mail {"to": "ada"} happened'] == [what.partition(",")[0] for what in waiting.value.whats]
        assert waiting.value.answers[0].startswith(f"runjournal --db {path} resolve waits ")
        with pytest.raises(KeyboardInterrupt):
            journal.run(twice(charge, 7), run_id="keyed")
        with pytest.raises(RunFailed) as failed:
            journal.run(twice(pay, 5), run_id="failed")
        assert failed.value.answers[0].startswith(f"runjournal --db {path} resolve failed ")
    return path


def test_show_says_what_becomes_of_an_open_call(store: Path) -> None:
    """Each with its verdict and its reason; where a person must say first, the call that says it."""
    with Journal.open(store) as journal:
        keys = {run: next(iter(journal.state(run).calls.known)) for run in ("failed", "waits", "keyed")}
    twice = "and nothing keeps it from happening twice"
    for run, what in (
        ("failed", f"the run is failed: nobody knows whether it happened, {twice}; in a retry the agent is told that"),
        ("waits", f"on resume: a person is asked; it may have happened, {twice}"),
    ):
        text = show(store, run)
        assert what in " ".join(text.split())
        for word in ("happened", "did-not-happen", "retry"):
            assert f"answer: runjournal --db {store} resolve {run} {keys[run]} {word}\n" in text
    assert f"go on     runjournal --db {store} retry failed" in show(store, "failed")
    assert 'waits for question: whether mail {"to": "ada"} happened' in show(store, "waits")
    keyed = show(store, "keyed")
    assert "on resume: it is made again; the receiver does it once for its key" in keyed
    assert "answer: " not in keyed
    (call,) = json.loads(show(store, "keyed", "-o", "json"))["open_calls"]
    assert ("run", True) == (call["verdict"], call["why"].startswith("the receiver does it once"))


def test_show_leads_from_a_run_to_the_one_that_went_on(store: Path) -> None:
    """And back; of a call of which somebody has said what became of it, the row names the tool."""
    with Journal.open(store) as journal:
        (key,) = journal.state("failed").calls.unresolved()
        journal.resolve("failed", key, "did_not_happen")
        journal.retry("failed", new_run_id="again")
    assert "went on   as again" in show(store, "failed~1")
    assert show(store, "again").splitlines()[0] == show(store, "failed").splitlines()[0]
    assert "from      failed, event " in show(store, "again")
    rows = show(store, "failed~1", "--calls").splitlines()
    assert ["pay"] == [row.split()[1] for row in rows if "did_not_happen" in row]


def spaced(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_show_says_no_resume_of_what_has_ended(tmp_path: Path, status: str) -> None:
    """A run that has ended isn't resumed: what is known of its call is said, and what a retry would do, if one may."""
    me = owner.here()
    ends: dict[str, Event] = {
        "completed": e.RunCompleted(1),
        "failed": e.RunFailed({"type": "E", "message": "m"}, [], "error"),
        "cancelled": e.RunCancelled("no"),
    }
    with Journal.open(tmp_path / "runs.db") as journal:
        claim = e.RunClaimed("w", 1, 60.0, me.host, me.boot_id, me.pid_ns, me.pid, me.started)
        journal.append("r", [e.RunQueued(kind="k", input=1), claim], expect=0)
        calls = [e.ToolStarted(f"c{p}", "not_here", {}, p, False, "ask", 1) for p in ("unsafe", "idempotent")]
        steps = [e.StepStarted(0, "s", "s", "once", 1, 1), *calls, ends[status]]
        journal.append("r", steps, expect=None, epoch=1)
    text = spaced(show(tmp_path / "runs.db", "r"))
    assert "on resume" not in text
    assert "Left open (2)" in text
    assert f"the run is {status}: nobody knows whether it happened, and nothing keeps it from happening twice" in text
    assert (status != "completed") == ("; in a retry a person is asked" in text)
    assert (status != "completed") == ("it may simply be made again; in a retry it is made again" in text)
    with Journal.open(tmp_path / "runs.db") as journal:
        if status != "completed":
            journal.retry("r", new_run_id="later")
            assert "; the run went on as later" in spaced(show(tmp_path / "runs.db", "r~1"))


def test_show_says_what_was_answered(tmp_path: Path) -> None:
    """A question that was answered isn't asked for again; it is said that the run goes on when it is run."""

    def agent(run: Run) -> None:
        with run.step("s"):
            run.ask("send", args={"to": "ada"})

    with Journal.open(tmp_path / "runs.db") as journal:
        with pytest.raises(RunWaiting) as waiting:
            journal.run(agent, run_id="r")
        assert "waits for approval: a yes or no to 'send'" in spaced(show(tmp_path / "runs.db", "r"))
        journal.reject("r", waiting.value.waits[0]["id"])
    text = spaced(show(tmp_path / "runs.db", "r"))
    assert """answered approval: a yes or no to 'send' {"to": "ada"} (rejected); it goes on when it is run""" in text
    assert ("waits for" in text, "approve" in text) == (False, False)
    found = json.loads(show(tmp_path / "runs.db", "r", "-o", "json"))
    assert [True] == [wait["answered"] for wait in found["waits"]]


def test_show_and_audit_tell_of_signals_that_nobody_took(tmp_path: Path) -> None:
    """A signal that came while the run ended stands in both; while the run lives, nothing is said of it."""

    def agent(run: Run) -> None:
        with run.step("s"):
            pass
        journal.signal("r", "stop", None)
        assert "that nobody took" not in show(tmp_path / "runs.db", "r")

    with Journal.open(tmp_path / "runs.db") as journal:
        journal.run(agent, run_id="r")
        found = [(each.code, each.severity, each.seq) for each in audit_run(journal.store, "r")]
    (seq,) = (each["seq"] for each in json.loads(show(tmp_path / "runs.db", "r", "-o", "json"))["signals"])
    assert [("signal_untaken", "info", seq)] == found
    assert f"signals 1 that nobody took: stop (seq {seq})" in spaced(show(tmp_path / "runs.db", "r"))


@tool(on_unknown="tell")
def shell(line: str) -> str:
    raise OSError("exit 1")


@tool(on_unknown="tell")
def kill(line: str) -> str:
    raise KeyboardInterrupt


def test_show_tells_of_ends_that_prove_nothing(store: Path) -> None:
    """What an attempt raised and that nobody knows what it did; what was taken over, and what is settled."""
    assert "mail unknown" in spaced(show(store, "waits", "--calls"))
    assert "ConnectionError: lost (nobody knows what it did)" in show(store, "waits", "--events")
    assert "unknown" in next(row for row in show(store, "waits", "--tree").splitlines() if "mail" in row)
    assert "read_only=True (it only looks), not_sent=(SomeError,)" in spaced(show(store, "waits"))

    def agent(run: Run) -> None:
        for name in "ab":
            with run.step(name):
                with pytest.raises(Exception, match="nobody knows"):
                    pay(5)
                with pytest.raises(Exception, match="nobody knows"):
                    shell("ls")

    with Journal.open(store) as journal:
        journal.run(agent, run_id="told")
        with pytest.raises(KeyboardInterrupt):
            journal.run(lambda run: run.do("s", kill, "ls"), run_id="killed")
    events = spaced(show(store, "told", "--events"))
    assert 2 == events.count("(settled)")
    assert 1 == events.count(": it may have happened in another step, and is asked for again")
    assert ["pay"] == [call["tool"] for call in json.loads(show(store, "told", "-o", "json"))["open_calls"]]
    assert "on resume: the agent is told once that nobody knows, and may send it again" in spaced(show(store, "killed"))
