"""`run` and `recover`: agents that are named on the command line, and what becomes of their runs."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from runjournal import Journal
from runjournal.cli.app import cli

AGENTS = """
import asyncio

from runjournal import tool


def add(run):
    return run.do("add", sum, run.input)


async def add_later(run):
    return await run.do("add", sum, run.input)


def other(run):
    return run.do("other", sum, run.input)


async def other_later(run):
    return await run.do("other", sum, run.input)


def ask(run):
    return run.ask("go on")


def fail(run):
    raise ValueError("no number")


def slip(run):
    run.do("x" * 10_000, list)


def late(run):
    raise TimeoutError("too late")


def moves(run):
    run.do("other" if (run.state.completed or run.input) else "first", print)


class Adder:
    def __call__(self, run):
        return run.do("add", sum, run.input)


adder = Adder()
answer = 42
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the agents' module in it, where commands are typed."""
    (tmp_path / "agents_here.py").write_text(AGENTS)
    (tmp_path / "broken_here.py").write_text("import no_such_module_at_all\n")
    (tmp_path / "ends_here.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("agents_here", "broken_here", "ends_here"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def typed(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert code == done.exit_code, done.output
    return done


def loaded(*words: str, code: int = 0) -> Any:
    return json.loads(typed(*words, "-o", "json", code=code).stdout)


@pytest.mark.parametrize("name", ["add", "add_later"])
def test_an_agent_is_run(place: Path, name: str) -> None:
    """A plain one and an asyncio one: the output goes to stdout, and the run is of its name."""
    done = typed("run", "--agent", f"agents_here:{name}", "--run-id", "r", "--input", "[1, 2]", "--by", "ada")
    assert ("3\n", "run r has completed; next: runjournal show r\n") == (done.stdout, done.stderr)
    again = loaded("run", "--agent", f"agents_here:{name}", "--run-id", "r")
    assert {"run_id": "r", "became": "completed", "output": 3, "error": None} == again
    with Journal.open("runjournal.db") as journal:
        assert (name, {"ada"}) == (journal.head("r").kind, {record.by for record in journal.events("r")})


def test_an_object_may_be_an_agent(place: Path) -> None:
    """One that can be called; its kind is said before it, and a run of another kind is refused."""
    assert 3 == loaded("run", "--agent", "sum=agents_here:adder", "--run-id", "r", "--input", "[1, 2]")["output"]
    said = typed("run", "--agent", "agents_here:add", "--run-id", "r", code=2).stderr
    assert "run r is of kind sum, the agent's is add; name its agent, or say --agent sum=MODULE:FUNCTION" in said


@pytest.mark.parametrize(
    ("agent", "code", "said"),
    [
        ("agents_here", 2, "expected MODULE:FUNCTION, as in agents:report, got agents_here"),
        ("no_such_place:add", 2, "no module no_such_place in {place}, nor on Python's path"),
        (
            "broken_here:add",
            1,
            "broken_here can't be imported: ModuleNotFoundError: No module named 'no_such",
        ),
        ("ends_here:add", 1, "ends_here ends its process when it is imported"),
        ("agents_here:ad", 2, "agents_here has no ad; did you mean add?"),
        ("agents_here:answer", 2, "expected a function of a run, agents_here:answer is a int"),
        ("agents_here:Adder", 2, "agents_here:Adder is a class: name an object of it"),
    ],
)
def test_what_is_no_agent(place: Path, agent: str, code: int, said: str) -> None:
    """Each says what was expected and what came, and no store is made."""
    assert said.format(place=place) in typed("run", "--agent", agent, code=code).stderr
    assert not (place / "runjournal.db").exists()


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("ask", 3, "error: run r waits for a yes or no to 'go on'. Answer it, `runjournal approve r "),
        ("fail", 1, "error: ValueError: no number"),
    ],
)
def test_what_becomes_of_a_run(place: Path, name: str, code: int, said: str) -> None:
    """A run that waits and one that fails have exit codes of their own, and lead to `explain`."""
    done = typed("run", "--agent", f"agents_here:{name}", "--run-id", "r", code=code)
    assert ("", True) == (done.stdout, done.stderr.startswith(said))
    assert done.stderr.endswith("next: runjournal explain r\n")


def test_another_input_is_refused(place: Path) -> None:
    """A run of the id is there with another input: nothing is run."""
    typed("run", "--agent", "agents_here:add", "--run-id", "r", "--input", "[1, 2]")
    said = typed("run", "--agent", "agents_here:add", "--run-id", "r", "--input", "[7]", code=5).stderr
    assert "run r is there with another input" in said


def test_a_run_is_rehearsed(place: Path) -> None:
    """A dry run says what would be appended before the agent is called, and calls none."""
    assert "no store at" in typed("run", "--agent", "agents_here:add", "--dry-run", code=75).stderr
    with Journal.open("runjournal.db") as journal:
        journal.enqueue("add", [1, 2], run_id="r")
    for words, types in (
        (["run", "--run-id", "r"], ["run.claimed", "note.added"]),
        (["run", "--run-id", "new", "--input", "[1]"], ["run.queued", "note.added"]),
        (["recover", "r"], ["run.claimed", "note.added"]),
        (["recover", "--all"], ["run.claimed"]),
    ):
        done = loaded(*words, "--agent", "agents_here:add", "--reason", "why", "--dry-run")
        assert types == [each["type"] for each in done["appended"]]
    with Journal.open("runjournal.db") as journal:
        assert [("r", "queued", 1)] == [(head.run_id, head.status, head.head_seq) for head in journal.runs()]


@pytest.fixture
def queued(place: Path) -> Path:
    with Journal.open("runjournal.db") as journal:
        for run_id, kind in (("a", "add"), ("b", "add_later"), ("c", "ask"), ("d", "fail"), ("e", "other")):
            journal.enqueue(kind, [1, 2], run_id=run_id)
    return place


ALL = [word for name in ("add", "add_later", "ask", "fail") for word in ("--agent", f"agents_here:{name}")]


def test_all_runs_go_on(queued: Path) -> None:
    """Those of the agents' kinds, plain and asyncio ones; the worst of them is the exit code."""
    found = {each["run_id"]: each for each in loaded("recover", "--all", *ALL, code=1)}
    assert {"a": "completed", "b": "completed", "d": "failed"} == {key: each["became"] for key, each in found.items()}
    assert (3, {"type": "ValueError", "message": "no number"}) == (found["a"]["output"], found["d"]["error"])
    with Journal.open("runjournal.db") as journal:
        assert ("waiting", "queued") == (journal.head("c").status, journal.head("e").status)
    assert "no run may go on here now" in typed("recover", "--all", *ALL).stderr


def test_some_runs_go_on(queued: Path) -> None:
    """Those that are named by their whole ids, each by the agent of its kind; a waiting one says so."""
    found = loaded("recover", "a", "c", *ALL, "--reason", "the host was replaced", code=3)
    assert [("a", "completed"), ("c", "waits")] == [(each["run_id"], each["became"]) for each in found]
    with Journal.open("runjournal.db") as journal:
        assert "the host was replaced" in {getattr(record.event, "text", "") for record in journal.events("a")}
    assert "run e is of kind other" in typed("recover", "e", *ALL, code=2).stderr
    text = typed("recover", "a", "c", *ALL, code=3).stdout
    assert ["a completed 3", "c waits RunWaiting:"] == [" ".join(row.split()[:3]) for row in text.splitlines()[1:]]


def test_what_recover_refuses(queued: Path) -> None:
    """Neither runs nor all, both, and two agents of a kind."""
    assert "expected one or more RUN, or --all, got neither" in typed("recover", *ALL, code=2).stderr
    assert "got both" in typed("recover", "a", "--all", *ALL, code=2).stderr
    twice = ["--agent", "agents_here:add", "--agent", "add=agents_here:adder"]
    said = typed("recover", "--all", *twice, code=2).stderr
    assert "two agents of kind add, agents_here:add and agents_here:adder: say KIND= before one of them" in said


def test_an_agent_is_named_by_the_environment(queued: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RUNJOURNAL_AGENT stands in for --agent: one for `run`, several, apart by spaces, for `recover`."""
    monkeypatch.setenv("RUNJOURNAL_AGENT", "agents_here:add agents_here:add_later")
    assert ["a", "b"] == [each["run_id"] for each in loaded("recover", "--all")]
    monkeypatch.setenv("RUNJOURNAL_AGENT", "agents_here:add")
    assert 3 == loaded("run", "--run-id", "a")["output"]


def test_check_says_where_todays_code_differs(place):
    """Runs that their code can go on with pass; one that it can not go on with is told with its place: exit code 3."""
    typed("run", "--agent", "agents_here:add", "--run-id", "a", "--input", "[1, 2]")
    typed("run", "--agent", "agents_here:add_later", "--run-id", "b", "--input", "[1, 2]")
    agents = ["--agent", "agents_here:add", "--agent", "agents_here:add_later"]
    found = loaded("check", "--all", "--ended", *agents)
    assert [("a", True), ("b", True)] == sorted((each["run_id"], each["ok"]) for each in found)
    done = typed("check", "a", "--agent", "add=agents_here:other", code=3)
    words = "recorded is step add (do), today's code has step other (do)"
    assert words in " ".join(done.stdout.split())
    (found,) = loaded("check", "a", "--agent", "add=agents_here:other_later", code=3)
    assert (False, 3, "step add (do)", words) == (found["ok"], found["seq"], found["recorded"], found["message"])
    assert "1 run checked, the code differs in 1" in done.stderr
    typed("check", "a", "--all", *agents, code=2)
    typed("check", "none", *agents, code=4)


def test_a_failed_run_is_gone_on_from(place):
    """`run --retry` makes the next run of a line that has failed and runs it; a dry run says that it would be made."""
    typed("run", "--agent", "agents_here:fail", "--run-id", "r", code=1)
    assert "r has failed" in typed("run", "--agent", "agents_here:fail", "--run-id", "r", code=1).stderr
    dry = loaded("run", "--agent", "agents_here:fail", "--run-id", "r", "--retry", "--dry-run")
    assert ("r.r2", ["run.queued"]) == (dry["run_id"], [each["type"] for each in dry["appended"]])
    done = typed("run", "--agent", "agents_here:fail", "--run-id", "r", "--retry", code=1)
    assert done.stderr.endswith("next: runjournal explain r.r2\n")


@pytest.mark.parametrize(
    ("agent", "became", "stands"),
    [("fail", "failed", "failed"), ("slip", "queued", "mistake"), ("late", "scheduled_retry", "backoff")],
)
def test_what_really_became_of_a_run(place: Path, agent: str, became: str, stands: str) -> None:
    """Its status as it is behind what was raised: a mistake has failed nothing, and a round may follow."""
    with Journal.open("runjournal.db") as journal:
        journal.enqueue(agent, run_id="r", input=[1, 2])
    done = typed("recover", "r", "--agent", f"agents_here:{agent}", "-o", "json", code=1)
    (found,) = json.loads(done.stdout)
    assert (became, True) == (found["became"], bool(found["error"]["message"]))
    told = json.loads(typed("explain", "r", "-o", "json").stdout)
    assert stands == told["stands"]
    assert found["error"]["message"].splitlines()[0] in told["why"]


def test_a_mistake_is_seen_from_outside(place: Path) -> None:
    """`ls`, `show` and the log say what the owner met, until the run is claimed again."""
    with Journal.open("runjournal.db") as journal:
        journal.enqueue("slip", run_id="r")
    typed("recover", "r", "--agent", "agents_here:slip", code=1)
    with Journal.open("runjournal.db") as journal:
        *_, last = journal.events("r")
    error = getattr(last.event, "error", None) or {}
    assert ("WrongArgument", True) == (error["type"], "expected" in error["message"])
    assert "queued: mistake" in typed("ls").stdout
    assert "WrongArgument: " in typed("show", "r").stdout
    with pytest.raises(Exception, match="expected"), Journal.open("runjournal.db") as journal:
        journal.run(lambda run: run.do("x" * 10_000, list), run_id="r", kind="slip")
    with Journal.open("runjournal.db") as journal:
        journal.run(lambda run: None, run_id="r", kind="slip")
        assert None is journal.state("r").status.why


def test_only_what_went_on_is_counted(place: Path) -> None:
    """A run that is over, waits or isn't due is told of, and not counted as one that went on."""
    with Journal.open("runjournal.db") as journal:
        for run_id in ("a", "b"):
            journal.enqueue("add", run_id=run_id, input=[1, 2])
    typed("recover", "a", "--agent", "agents_here:add")
    assert "1 of 2 runs went on; " in typed("recover", "a", "b", "--agent", "agents_here:add").stderr
    assert "0 of 1 run went on; " in typed("recover", "a", "--agent", "agents_here:add").stderr


def test_all_that_are_checked_may_go_on(place: Path) -> None:
    """A run that has completed, was cancelled, or went on as another one counts only with --ended."""
    with Journal.open("runjournal.db") as journal:
        for run_id in ("done", "queued", "failed", "cancelled"):
            journal.enqueue("add", run_id=run_id, input=[1, 2])
        journal.cancel("cancelled")
    typed("recover", "done", "--agent", "agents_here:add")
    with Journal.open("runjournal.db") as journal, pytest.raises(ValueError, match="no"):
        journal.run(lambda run: int("no"), run_id="failed", kind="add")
    words = ("check", "--all", "--agent", "add=agents_here:other", "-o", "json")
    assert ["failed", "queued"] == sorted(each["run_id"] for each in loaded(*words, code=3))
    with Journal.open("runjournal.db") as journal:
        journal.retry("failed", new_run_id="again")
    assert ["again", "queued"] == sorted(each["run_id"] for each in loaded(*words))
    every = ["again", "cancelled", "done", "failed", "queued"]
    assert every == sorted(each["run_id"] for each in loaded(*words, "--ended", code=3))
    typed("check", "queued", "--ended", "--agent", "agents_here:add", code=2)
