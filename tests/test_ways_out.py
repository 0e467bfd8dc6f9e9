"""Ways out of a run that today's code has stopped: each line that `explain` prints for it is typed, and moves it."""

import contextlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from runjournal import Journal, StepDiverged, tool
from runjournal.cli.app import cli

AGENTS = """
from pathlib import Path

from runjournal import tool


@tool
def post(to):
    with Path("posted").open("a") as file:
        file.write(to + " ")
    return "post-1"


def dies():
    if Path("dies").exists():
        raise KeyboardInterrupt


def renamed(run, name):
    run.do(name, post, "ada")
    with run.step("ship"):
        dies()
    return "done"


def other_kind(run, block):
    if not block:
        run.do("a", lambda: dies() or post("ada"))
    elif not run.done("a"):
        with run.step("a"):
            post("ada")
    return "done"


def other_step(run, name):
    if not run.done(name):
        with run.step(name):
            post("ada")
            dies()
    return "done"


def without(run, step):
    if step:
        with run.step(step):
            post("ada")
            dies()
    return "done"


def emptied(run, items):
    for item in run.each("page", items):
        with run.step("page", key=item):
            post(item)
    with run.step("end"):
        dies()
    return "done"


def blind(run, _):
    said = []
    while len(said) < 3:
        with run.step("turn", repeat=True):
            said.append(post(str(len(said))))
            if len(said) == 2:
                dies()
    return "done"


def asked(run, prompt):
    with run.step("s"):
        answer = run.model("m", {"prompt": prompt}, lambda request: {"to": "ada"})
        post(answer["to"])
        dies()
    return "done"


def sent(run, to):
    with run.step("s"):
        run.model("m", {"prompt": "x"}, lambda request: {"to": "ada"})
        post(to)
        dies()
    return "done"


def limited(run, limit):
    with run.step("s"):
        if limit < 500:
            try:
                run.ask("refund", args={"cents": 500})
            except Exception:
                pass
            dies()
        post("ada")
    return "done"


def agent(run):
    name, value = Path("today").read_text().split(" ", 1)
    return globals()[name](run, __import__("json").loads(value))
"""
R = "run-1"
STOPPED: dict[str, tuple[Any, Any, list[str]]] = {
    "renamed": ("a", "b", ["resume", "fork --at 2", "cancel"]),
    "other_kind": (False, True, ["resume", "fork --at 2", "cancel"]),
    "other_step": ("a", "b", ["resume", "abandon-step", "fork --at 2", "cancel"]),
    "without": ("a", None, ["resume", "abandon-step", "fork --at 2", "cancel"]),
    "emptied": (["1", "2"], [], ["resume", "fork --at 2", "cancel"]),
    "blind": (None, None, ["fork --at 2", "cancel"]),
    "asked": (
        "to?",
        "to whom?",
        ["resume", "resume --recorded", "abandon-step", "fork --at 2", "cancel"],
    ),
    "sent": ("ada", "bob", ["resume", "abandon-step", "fork --at 2", "cancel"]),
}


def typed(store: Path, *words: str, code: int | None = 0) -> Result:
    done = CliRunner().invoke(cli, ["--db", str(store), *words], catch_exceptions=False)
    assert code in (None, done.exit_code), done.output
    return done


def told(store: Path, run_id: str = R) -> Any:
    return json.loads(typed(store, "explain", run_id, "-o", "json").stdout)


def deploy(name: str, value: Any) -> None:
    """Put today's code where it is: its module differs too, since a run that goes on with the same code knows more."""
    Path("today").write_text(f"{name} {json.dumps(value)}")
    Path("ways_out_agents.py").write_text(f"{AGENTS}\n# {value!r}\n")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "ways_out_agents", raising=False)
    return tmp_path / "runjournal.db"


RUN = ("--agent", "ways_out_agents:agent")


def stopped(store: Path, name: str) -> None:
    """Make a run whose process died, and that other code has stopped."""
    before, today, _ = STOPPED[name]
    deploy(name, before)
    Path("dies").touch()
    typed(store, "run", *RUN, "--run-id", R, code=130)
    Path("dies").unlink()
    deploy(name, today)
    typed(store, "recover", R, *RUN, code=3)


@pytest.mark.parametrize("name", STOPPED)
def test_each_way_out_moves_the_run(store: Path, name: str) -> None:
    """What is printed depends on what differs; once a line is typed, the run or its fork completes, or has ended."""
    stopped(store, name)
    before, _, expected = STOPPED[name]
    found = told(store)
    ways = [shlex.split(way["command"])[3:] for way in found["ways"] if way["moves"]]
    shown = [" ".join([way[0], *(word for word in way[2:] if word not in RUN)]) for way in ways]
    assert ("code", expected) == (found["stands"], [each for each in shown if name != "blind" or each != "resume"])
    for way in ways:
        copy = store.with_name("copy.db")
        copy.unlink(missing_ok=True)
        with Journal.open(store) as journal:
            journal.backup(copy)
        deploy(name, before if way[0] == "resume" and "--recorded" not in way else STOPPED[name][1])
        done = typed(copy, *way, code=None)
        with Journal.open(copy) as journal:
            run_id = next(head.run_id for head in journal.runs() if head.run_id != R or way[0] != "fork")
        if way[0] in ("abandon-step", "fork"):
            typed(copy, "recover", run_id, *RUN)
        if way[0] != "resume" or name != "blind":
            assert ("cancelled" if way[0] == "cancel" else "completed") == told(copy, run_id)["status"], done.output


def test_a_fork_says_what_it_sends_again(store: Path) -> None:
    """Only of the steps that it does again: in its line, in what it prints, and in the rehearsal."""
    stopped(store, "renamed")
    (line,) = [way for way in told(store)["ways"] if " fork " in way["command"]]
    assert line["why"].endswith('what was sent in it can be sent again: post {"to": "ada"}')
    for words in (["--dry-run"], []):
        fork = typed(store, *shlex.split(line["command"])[3:], *words)
        assert '  post {"to": "ada"}: it has happened' in fork.stderr
        assert "can be sent again" not in typed(store, "fork", R, *words).stderr


@pytest.mark.parametrize("dry", [True, False])
def test_a_no_is_told_of_before_it_is_forgotten(store: Path, dry: bool) -> None:
    """Who gives up a step is told what people have answered in it: today's code may not ask again."""
    deploy("limited", 100)
    typed(store, "run", *RUN, "--run-id", R, code=3)
    (question,) = told(store)["questions"]
    typed(store, "reject", R, question["id"], "--reason", "fraud")
    deploy("limited", 999)
    typed(store, "recover", R, *RUN, code=3)
    assert "the question 'refund' was sent or asked before" in told(store)["why"]
    for verb in ("abandon-step", "fork"):
        words = [verb, R, *["--dry-run"] * dry]
        copy = store.with_name("copy.db")
        copy.unlink(missing_ok=True)
        with Journal.open(store) as journal:
            journal.backup(copy)
        if dry:
            said = typed(copy, *words).stderr
            assert "what people have answered holds for exactly the same question" in said
            assert """  a person said no to 'refund' {"cents": 500}: fraud""" in said
        (answer,) = json.loads(typed(copy, *words, "-o", "json").stdout)["answers"]
        names = ("approval_id", "action", "args", "decision", "note")
        assert [question["id"], "refund", {"cents": 500}, "rejected", "fraud"] == [answer[name] for name in names]


def test_a_stop_says_where_its_question_is_seen(store: Path) -> None:
    """By a command that is whole, in the text for who runs it; what is on record doesn't name a store's place."""
    deploy("limited", 100)
    typed(store, "run", *RUN, "--run-id", R, code=3)
    typed(store, "reject", R, told(store)["questions"][0]["id"])
    deploy("limited", 999)
    said = typed(store, "recover", R, *RUN, "-o", "json", code=3).stdout
    line = json.loads(said)[0]["error"]["message"].split("`")[-2]
    assert "approval.requested" in typed(store, *shlex.split(line)[1:]).stdout
    assert str(store) not in told(store)["why"]


@pytest.mark.parametrize(
    ("step", "to", "key", "times"),
    [
        ("a", "ada", None, 1),
        ("a", "ada", "mail-{to}", 1),
        ("b", "ada", "mail-{to}", 1),
        ("b", "ada", None, 2),
        ("a", "bob", None, 2),
    ],
)
def test_a_restart_sends_only_other_calls(step: str, to: str, key: str | None, times: int) -> None:
    """The same call in a step of the same name, or by the tool's own key, is told again; after a rename it is sent."""
    sent: list[str] = []

    @tool(key=key)
    def mail(to: str) -> str:
        sent.append(to)
        return "m"

    with Journal.open("memory:") as journal:
        journal.run(lambda run: run.do("a", mail, "ada"), run_id=R, kind="k")
        journal.restart(R)
        journal.run(lambda run: run.do(step, mail, to), run_id=R, kind="k")
    assert times == len(sent)


def mails(key: str | None = None, *, cc: bool = False) -> Any:
    if cc:
        return tool(name="mail", key=key)(lambda to, cc="none": "m")
    return tool(name="mail", key=key)(lambda to: "m")


@pytest.mark.parametrize(("changed", "stops"), [({}, False), ({"cc": True}, True), ({"key": "mail-{to}"}, True)])
def test_a_tool_that_was_changed_inside_an_open_turn(changed: dict[str, Any], stops: bool) -> None:
    """A deploy while the calls of an answer are made: of a tool that is another one since, the run stops unsent."""
    dead: list[bool] = []

    def look(x: int) -> int:
        if not dead:
            dead.append(True)
            raise KeyboardInterrupt
        return x

    def model(request: Any) -> Any:
        if len(request["messages"]) > 1:
            return {"content": [{"type": "text", "text": "end"}]}
        uses = [("mail", {"to": "ada"}), ("look", {"x": 1})]
        return {"content": [{"type": "tool_use", "id": name, "name": name, "input": args} for name, args in uses]}

    def agent(mail: Any, prompt: str) -> Any:
        def called(run: Any) -> Any:
            tools = [mail, tool(read_only=True)(look)]
            while (answer := run.turn("m", {"system": prompt, "tools": []}, tools, model)) is None:
                pass
            return answer

        return called

    with Journal.open("memory:") as journal:
        with pytest.raises(KeyboardInterrupt):
            journal.run(agent(mails(), "one"), run_id=R, kind="k", input="hi")
        with contextlib.ExitStack() as stack:
            if stops:
                stack.enter_context(pytest.raises(StepDiverged, match="mail was sent"))
            assert "end" == journal.run(agent(mails(**changed), "two"), run_id=R, kind="k")
        assert 1 == len([each for each in journal.sent(R) if each.tool == "mail"])
