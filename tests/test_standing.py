"""Each way in which a run can stand still: the word, why it doesn't move, and a line that moves it when it is typed."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from runjournal import Journal, RunWaiting, tool
from runjournal.agent_code import agent_path
from runjournal.cli.app import cli
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.logbook import Logbook
from runjournal.looking.standing import KINDS

AGENTS = """
from pathlib import Path

from runjournal import tool


@tool
def mail(to):
    return "mail-1"


def later(run):
    return run.do("add", sum, [1, 2])


def asks(run):
    return run.ask("refund", args={"cents": 500}, reason="it broke")


def mails(run):
    with run.step("s"):
        return mail("ada")


def prompted(run):
    with run.step("s"):
        answer = run.model("m", {"prompt": Path("prompt").read_text()}, lambda request: {"to": "ada"})
        post(answer["to"])
        if Path("dies").exists():
            raise KeyboardInterrupt
    return "done"


@tool
def post(to):
    with Path("posted").open("a") as file:
        file.write(to)
    return "post-1"
"""
R = "run-1"
ERROR = {"type": "Boom", "message": "no number"}
GONE = e.RunClaimed("w@old", 1, 60.0, "old-host", "another boot", "n", 7, "1")
CALL = (
    e.StepStarted(0, "s", "s", "once", 1, 1),
    e.ToolStarted("c1", "mail", {"to": "ada"}, "unsafe", False, "ask", 1),
)
QUESTION = e.ApprovalRequested("q1", "refund", "it broke", args={"cents": 500})
RETRY = "2026-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"


def mine() -> e.RunClaimed:
    me = owner.here()
    return e.RunClaimed("w@here", 1, 600.0, me.host, me.boot_id, me.pid_ns, me.pid, me.started)


def holding(*events: e.Event, claim: e.RunClaimed | None = None) -> Callable[[Journal], None]:
    """Return what makes a run with these events of its owner."""

    def made(journal: Journal) -> None:
        journal.append(R, [e.RunQueued("later", None), claim or mine()], expect=0)
        if events:
            journal.append(R, list(events), epoch=1)

    return made


def queued(journal: Journal) -> None:
    journal.enqueue("later", run_id=R)


def stopping(journal: Journal) -> None:
    holding()(journal)
    journal.cancel(R)


def asked(journal: Journal) -> None:
    journal.enqueue("asks", run_id=R)
    with pytest.raises(RunWaiting):
        journal.run(lambda run: run.ask("refund", args={"cents": 500}), run_id=R)


def called(journal: Journal) -> None:
    @tool(name="mail")
    def lost(to: str) -> str:
        raise ConnectionError("lost")

    def mails(run: Any) -> None:
        with run.step("s"):
            lost("ada")

    with pytest.raises(RunWaiting):
        journal.run(mails, run_id=R)


def answered(journal: Journal) -> None:
    asked(journal)
    journal.approve(R, journal.questions(R)[0].id)


def ended(journal: Journal) -> None:
    queued(journal)
    journal.cancel(R)


def purged(journal: Journal) -> None:
    ended(journal)
    journal.purge(R, reason="old")


def superseded(journal: Journal) -> None:
    ended(journal)
    journal.retry(R, new_run_id="run-2")


def completed(journal: Journal) -> None:
    holding(e.RunCompleted("done"))(journal)


def imported(journal: Journal) -> None:
    journal.append(R, [e.RunImported("later", "x", "claude-code", "0" * 64)], expect=0, by="import:claude-code")


def opened(journal: Journal) -> None:
    journal.open_run("later", source="a chat", run_id=R)


def elsewhere(journal: Journal) -> None:
    assert isinstance(journal.store.url, str)
    path = Path(journal.store.url.removeprefix("sqlite:"))
    with Journal.open(path.with_name("other.db")) as other:
        holding(claim=GONE)(other)
    export = str(path.with_name("export.jsonl"))
    typed(path.with_name("other.db"), "export", R, "--to", export)
    typed(path, "import", "jsonl", export)


def overdue(journal: Journal) -> None:
    over = "2026-01-01T00:00:00.000000Z"
    question = e.ApprovalRequested("q1", "refund", "", args={"cents": 500}, expires_at=over)
    holding(question, e.RunWaiting([{"kind": "approval", "id": "q1"}], over))(journal)


WAYS: dict[str, tuple[Callable[[Journal], None], str]] = {
    "queued": (queued, "it is queued, and nobody runs it"),
    "mistake": (
        holding(e.RunRequeued("released", error={"type": "StepDone", "message": "step a is complete"})),
        "its agent's code has met a mistake, and was left with nothing failed: StepDone: step a is complete",
    ),
    "owned": (holding(), "it is running: w@here, process "),
    "stopping": (stopping, "a cancel was requested (after_step), and its owner hasn't obeyed yet: w@here, process "),
    "abandoned": (holding(claim=GONE), "its owner is gone: w@old, process 7 on old-host, since 2"),
    "approval": (asked, "it waits for a yes or no to 'refund' {\"cents\": 500}"),
    "call": (called, 'nobody knows whether mail {"to": "ada"} has happened, and it waits for somebody to say so'),
    "answers": (
        holding(*CALL, QUESTION, e.RunWaiting([{"kind": "approval", "id": "q1"}, {"kind": "question", "id": "c1"}])),
        'it waits for people to say a yes or no to \'refund\' {"cents": 500}; whether mail {"to": "ada"} has happened',
    ),
    "answered": (answered, "what it waited for has come, and nobody runs it"),
    "due": (
        holding(e.RunRetryScheduled(RETRY[0], 1, ERROR, [])),
        "its round 2 is due since 2026-01-01T00:00:00.000000Z: Boom: no number",
    ),
    "backoff": (
        holding(e.RunRetryScheduled(RETRY[1], 1, ERROR, [])),
        "its round 2 is due at 2999-01-01T00:00:00.000000Z, not before: Boom: no number",
    ),
    "failed": (
        holding(e.RunFailed(ERROR, [["s", 1]], "error")),
        "it has failed (error): Boom: no number",
    ),
    "unanswered": (
        holding(*CALL, e.RunFailed(ERROR, [], "unsafe_in_flight")),
        'it has failed, and nobody has said whether mail {"to": "ada"} has happened: Boom: no number',
    ),
    "budget": (
        holding(e.RunFailed({"type": "BudgetExceeded", "message": "2 USD are spent"}, [], "budget")),
        "its budget is used up: BudgetExceeded: 2 USD are spent",
    ),
    "cancelled": (ended, "it was cancelled"),
    "completed": (completed, "it has completed: there is nothing to do"),
    "imported": (imported, "it happened in another tool, and was imported: it is there to be looked at"),
    "open": (opened, "it is open: it happens elsewhere, and is recorded here as it happens; nobody owns it"),
    "elsewhere": (elsewhere, "it lives in another store, and goes on there"),
    "purged": (purged, "it was cancelled, and was purged (old): this is all that is left of it"),
    "superseded": (superseded, "it is cancelled, and its line went on as run-2"),
    "code": (
        holding(e.RunWaiting([{"kind": "code", "id": "PlanChanged"}], why="the log has step a, the code asks for b")),
        "stopped: the code differs: the log has step a, the code asks for b",
    ),
    "recoveries": (
        holding(e.RunWaiting([{"kind": "recoveries", "id": "restart_loop"}], why="4 recoveries")),
        "stopped: it doesn't get on: 4 recoveries",
    ),
    "overdue": (overdue, "the time of what it waited for was over at 2026-01-01T00:00:00.000000Z, and nobody runs it"),
    "signal": (holding(e.RunWaiting([{"kind": "signal", "id": "paid"}])), "it waits for the signal 'paid'"),
    "child": (holding(e.RunWaiting([{"kind": "child", "id": R}])), f"it waits for run {R}"),
    "timer": (
        holding(e.RunWaiting([{"kind": "timer", "id": "t"}], "2999-01-01T00:00:00.000000Z")),
        "it goes on at 2999-01-01T00:00:00.000000Z, not before: it waits for a time, 2999-01-01T00:00:00.000000Z",
    ),
    "waiting": (holding(e.RunWaiting([{"kind": "timer", "id": "t"}])), "it waits for timer t"),
}


def typed(store: Path, *words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, ["--db", str(store), *words], catch_exceptions=False)
    assert code == done.exit_code, done.output
    return done


def position(store: Path) -> int:
    with Journal.open(store) as journal:
        return journal.store.last_position()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the agents' module in it, where commands are typed."""
    (tmp_path / "standing_agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "standing_agents", raising=False)
    return tmp_path


def test_every_row_of_the_table_is_tested() -> None:
    """A new way in which a run can stand still has a test."""
    assert sorted(WAYS) == sorted(kind.word for kind in KINDS)


@pytest.mark.parametrize("word", WAYS)
def test_a_line_that_is_printed_moves_the_run(place: Path, word: str) -> None:
    """`explain` says the word and the reason; each line that it prints as one that moves the run does, on a copy."""
    build, why = WAYS[word]
    store = place / "runjournal.db"
    with Journal.open(store) as journal:
        build(journal)
        kind = journal.head(R).kind
    name = f"{R}~1" if word == "superseded" else R
    told = json.loads(typed(store, "explain", name, "--agent", f"standing_agents:{kind}", "-o", "json").stdout)
    assert (word, True) == (told["stands"], told["why"].startswith(why))
    text = typed(store, "explain", name, "--agent", f"standing_agents:{kind}").stdout
    lines = [row.strip() for row in text.splitlines() if row.startswith("  runjournal ")]
    assert [way["command"] for way in told["ways"]] == lines
    assert lines
    before = position(store)
    for way, printed in zip(told["ways"], lines, strict=True):
        copy = place / "copy.db"
        with Journal.open(store) as journal:
            copy.unlink(missing_ok=True)
            journal.backup(copy)
        program, option, named, *words = shlex.split(printed)
        assert ("runjournal", "--db", str(store)) == (program, option, named)
        code = 75 if word in ("backoff", "timer") and words[0] == "recover" else 0
        typed(copy, *words, code=code)
        assert way["moves"] == (position(copy) > before), printed
    assert before == position(store)


NOT_MOVED = {"owned", "stopping", "backoff", "timer", "completed", "imported", "open", "purged", "superseded", "child"}


@pytest.mark.parametrize("word", sorted(set(WAYS) - NOT_MOVED))
def test_the_first_line_changes_how_the_run_stands(place: Path, word: str) -> None:
    """Once the best line is typed, the run stands in another way, or has a newer run that goes on from it."""
    store = place / "runjournal.db"
    with Journal.open(store) as journal:
        WAYS[word][0](journal)
        kind = journal.head(R).kind
    told = json.loads(typed(store, "explain", R, "--agent", f"standing_agents:{kind}", "-o", "json").stdout)
    typed(store, *shlex.split(told["ways"][0]["command"])[3:])
    after = json.loads(typed(store, "explain", R, "-o", "json").stdout)["stands"]
    with Journal.open(store) as journal:
        runs = len(list(journal.runs()))
    assert (word, 1) != (after, runs)


def test_an_agent_that_is_not_known_is_a_placeholder(place: Path) -> None:
    """Without --agent the line has a placeholder, which keeps the run's kind, and it is said how to fill it in."""
    store = place / "runjournal.db"
    with Journal.open(store) as journal:
        queued(journal)
        journal.enqueue("a kind", run_id="other")
    done = typed(store, "explain", R)
    assert f"runjournal --db {store} recover {R} --agent MODULE:later" in done.stdout
    assert "MODULE is where the agent is; --agent or RUNJOURNAL_AGENT fills it in" in done.stderr
    assert "--agent 'a kind=MODULE:FUNCTION'" in typed(store, "explain", "other").stdout
    assert "--agent 'a kind=x:y'" in typed(store, "explain", "other", "--agent", "x:y").stdout


def test_the_log_names_the_agent(place: Path) -> None:
    """The line is whole where this run, or another one of its kind, was claimed for an agent that can be imported."""
    store = place / "runjournal.db"
    typed(store, "run", "--agent", "standing_agents:asks", "--run-id", R, code=3)
    typed(store, "approve", R, json.loads(typed(store, "questions", "-o", "json").stdout)[0]["id"])
    with Journal.open(store) as journal:
        journal.enqueue("asks", run_id="other")
    for run_id in (R, "other"):
        done = typed(store, "explain", run_id)
        assert f"recover {run_id} --agent standing_agents:asks" in done.stdout
        assert "MODULE" not in done.stderr


def test_only_an_agent_that_is_found_again_is_named() -> None:
    """A function of a module is; a function in a function, a lambda, an object, one under another name aren't."""

    def inner() -> None: ...

    others: list[Any] = [inner, lambda: None, type(sys)("standing_alias"), Journal.open]
    assert f"{__name__}:holding" == agent_path(holding)
    assert "runjournal.logbook:Logbook.close" == agent_path(Logbook.close)
    assert [None] * 4 == [agent_path(each) for each in others]


def test_a_run_and_a_store_that_are_missing(place: Path) -> None:
    """Each error has the command that leads on."""
    said = typed(place / "no.db", "explain", R, code=75).stderr
    assert "no.db (--db); `runjournal run`, `runjournal demo` or `runjournal import` makes one, --db or " in said
    with Journal.open(place / "runjournal.db") as journal:
        queued(journal)
    assert "ls` lists those that are" in typed(place / "runjournal.db", "explain", "nobody", code=4).stderr


def test_ls_and_show_have_the_word(place: Path) -> None:
    """`ls` says it behind the status where it says more, `show` in a line of its own; for programs both always do."""
    store = place / "runjournal.db"
    with Journal.open(store) as journal:
        asked(journal)
        journal.enqueue("later", run_id="other")
    rows = typed(store, "ls").stdout.splitlines()[1:]
    assert ["other queued later", f"{R} waiting: approval"] == [" ".join(row.split()[:3]) for row in rows]
    found = json.loads(typed(store, "ls", "-o", "json").stdout)
    assert ["queued", "approval"] == [each["stands"] for each in found]
    assert "approval" == json.loads(typed(store, "show", R, "-o", "json").stdout)["stands"]
    text = " ".join(typed(store, "show", R).stdout.split())
    assert "stands approval" in text
    assert f"explain {R} why it isn't moving, and what to type" in text


def test_a_run_is_resumed_for_whoever_runs_it_next(place: Path) -> None:
    """Without an agent it is free, with the reason on record; one that has nothing to resume says what to do."""
    store = place / "runjournal.db"
    with Journal.open(store) as journal:
        WAYS["code"][0](journal)
    typed(store, "resume", R, "--reason", "mended", "--dry-run")
    assert "stopped: the code differs" in typed(store, "show", R).stdout
    typed(store, "resume", R, "--reason", "mended", "--by", "ada")
    with Journal.open(store) as journal:
        *_, last = journal.events(R)
    assert (e.RunRequeued("resumed", "mended", point=3), "ada") == (last.event, last.by)
    assert "it is queued: run it" in typed(store, "resume", R, code=5).stderr
    done = typed(store, "resume", R, "--agent", "standing_agents:later", "--reason", "now")
    assert "3\n" == done.stdout
    assert (
        "is of kind later, the agent's is asks"
        in typed(store, "resume", R, "--agent", "standing_agents:asks", code=2).stderr
    )


def test_explain_writes_nothing(place: Path) -> None:
    """The bytes of the store are the same before and after."""
    store = place / "runjournal.db"
    with Journal.open(store) as journal:
        asked(journal)
    before = store.read_bytes()
    typed(store, "explain", R)
    assert before == store.read_bytes()


@pytest.fixture
def diverged(place: Path) -> Path:
    """A run whose process died in a step that has asked a model and sent something, and whose prompt was changed."""
    Path("prompt").write_text("say to whom")
    Path("dies").touch()
    words = ["--agent", "standing_agents:prompted", "--run-id", R]
    typed(place / "runjournal.db", "run", *words, code=130)
    Path("prompt").write_text("say it in one word")
    Path("dies").unlink()
    typed(place / "runjournal.db", "run", *words, code=3)
    return place / "runjournal.db"


def test_a_changed_prompt_has_ways_out(diverged: Path) -> None:
    """`explain` prints each: with what is on record, anew, as a fork, an end; each moves the run."""
    found = json.loads(typed(diverged, "explain", R, "-o", "json").stdout)
    assert "code" == found["stands"]
    verbs = [shlex.split(way["command"])[3] for way in found["ways"]]
    assert ["resume", "resume", "abandon-step", "fork", "cancel", "show"] == verbs
    before = position(diverged)
    for way in found["ways"][1:]:
        copy = diverged.with_name("copy.db")
        copy.unlink(missing_ok=True)
        with Journal.open(diverged) as journal:
            journal.backup(copy)
        typed(copy, *shlex.split(way["command"])[3:])
        assert way["moves"] == (position(copy) > before)


def test_what_is_on_record_sends_nothing_twice(diverged: Path) -> None:
    """`resume --recorded` goes on with the answers that the step has, and the run completes with one effect."""
    line = json.loads(typed(diverged, "explain", R, "-o", "json").stdout)["ways"][1]["command"]
    assert "--recorded" in line
    assert '"done"\n' == typed(diverged, *shlex.split(line)[3:]).stdout
    assert "ada" == Path("posted").read_text()


@pytest.mark.parametrize("verb", ["abandon-step", "cancel", "fork"])
def test_what_was_sent_is_said(diverged: Path, verb: str) -> None:
    """Who gives up a step or a run is told what it has sent, since that can be sent again; a dry run says it, too."""
    for dry in (["--dry-run"], []):
        done = typed(diverged, verb, R, *dry)
        assert "what it has sent can be sent again by a new attempt or a new run:" in done.stderr
        assert '  post {"to": "ada"}: it has happened' in done.stderr
    copy = json.loads(typed(diverged, "fork", R, "--dry-run", "-o", "json").stdout)
    assert [("post", {"to": "ada"}, True)] == [(each["tool"], each["args"], each["known"]) for each in copy["sent"]]


def test_a_step_is_abandoned_and_tried_anew(diverged: Path) -> None:
    """It is free, and today's code does its step again; a run without an open step has none to give up."""
    typed(diverged, "abandon-step", R, "--reason", "the prompt is new")
    assert '"done"\n' == typed(diverged, "resume", R, "--agent", "standing_agents:prompted").stdout
    said = typed(diverged, "abandon-step", R, code=5).stderr
    assert "has no step to give up: it is completed" in said


def told_of(store: Path, run_id: str = R) -> Any:
    return json.loads(typed(store, "explain", run_id, "-o", "json").stdout)


def verbs(found: Any) -> list[str]:
    return [shlex.split(way["command"])[3] for way in found["ways"]]


def test_two_questions_of_one_action_are_told_apart(place: Path) -> None:
    """Each line has the args that it is about, in short; the JSON has them whole."""
    asks = [
        e.ApprovalRequested(f"q{n}", "wire", "", args={"to": to, "note": "x" * n})
        for n, to in ((1, "ada"), (900, "bob"))
    ]
    store = place / "runjournal.db"
    with Journal.open(store) as journal:
        holding(*CALL, *asks, e.RunWaiting([{"kind": "approval", "id": each.approval_id} for each in asks]))(journal)
    found = told_of(store)
    assert ["mail", "wire", "wire"] == sorted(each["action"] for each in found["questions"])
    assert [each.args for each in asks] == [each["args"] for each in found["questions"] if each["action"] == "wire"]
    said = [way["why"] for way in found["ways"] if shlex.split(way["command"])[3] in ("approve", "resolve")]
    assert (5, 5) == (len(said), len(set(said)))
    assert [True, True] == ['"to": "ada"' in said[0], '"to": "bob"' in found["why"]]
    assert all(len(each) < 400 for each in said)


def test_args_are_edited_by_a_line_that_has_them(place: Path) -> None:
    """`explain` offers `edit` with the args on record, to be changed in the line; it is a yes as it stands."""
    store = place / "runjournal.db"
    with Journal.open(store) as journal:
        asked(journal)
    (line,) = [way["command"] for way in told_of(store)["ways"] if " edit " in way["command"]]
    typed(store, *shlex.split(line.replace("500", "400"))[3:])
    with Journal.open(store) as journal:
        *_, last = journal.events(R)
    assert ("edited", {"cents": 400}) == (getattr(last.event, "decision", None), getattr(last.event, "args", None))


def late(journal: Journal, *, pid: int) -> None:
    """A call that was given up when its time was over, by a process of this machine."""
    me = owner.here()
    claim = e.RunClaimed("w@here", 1, 600.0, me.host, me.boot_id, me.pid_ns, pid, me.started)
    error = {"type": "TimeoutError", "message": "mail took longer than timeout_s = 0.3"}
    failed = e.ToolFailed("c1", 1, error, transient=True, lost=True)
    holding(*CALL, failed, e.RunWaiting([{"kind": "question", "id": "c1"}]), claim=claim)(journal)


@pytest.mark.parametrize("alive", [True, False])
def test_a_body_that_may_still_run_is_told_of(place: Path, alive: bool) -> None:
    """A call that ran out of its time in a process that lives may yet act: who says that it did nothing is told so."""
    store, me = place / "runjournal.db", owner.here()
    with Journal.open(store) as journal:
        late(journal, pid=me.pid if alive else 2**22 + 1)
    found = told_of(store)
    where = f"process {me.pid} of host {me.host}"
    assert alive == (f"its body may still be running in {where}, and may yet act" in found["why"])
    ways = [shlex.split(way["command"])[-1] for way in found["ways"] if " resolve " in way["command"]]
    assert ["happened", "did-not-happen", "retry"] == ways
    assert alive == any(f"did nothing, and {where} has ended" in way["why"] for way in found["ways"])
    assert [where if alive else ""] == [each["running"] for each in found["questions"]]
    assert alive == (f"may still be running in {where}" in " ".join(typed(store, "questions").stdout.split()))


def test_a_cancel_that_its_dead_owner_has_not_obeyed(place: Path) -> None:
    """It is said that whoever recovers the run ends it, and that isn't called going on."""
    store = place / "runjournal.db"
    with Journal.open(store) as journal:
        holding(claim=GONE)(journal)
        journal.append(R, [e.RunCancelRequested("", "after_step")], expect=None)
    found = told_of(store)
    assert found["why"].endswith("; a cancel was requested, and whoever recovers it ends it")
    assert ["cancel", "recover"] == verbs(found)
    for words in (["cancel", R], ["recover", R, "--agent", "standing_agents:later"]):
        copy = store.with_name("copy.db")
        copy.unlink(missing_ok=True)
        with Journal.open(store) as journal:
            journal.backup(copy)
        typed(copy, *words, code=0 if words[0] == "cancel" else 1)
        assert "cancelled" == told_of(copy)["status"]


def test_a_completed_run_sends_nothing(place: Path) -> None:
    """Of a call that it has left open people may say what became; it isn't said that it would be sent."""
    store = place / "runjournal.db"
    with Journal.open(store) as journal:
        holding(
            e.StepStarted(0, "s", "s", "once", 1, 1),
            e.ToolStarted("c1", "mail", {"to": "ada"}, "unsafe", False, "fail", 1),
            e.ToolFailed("c1", 1, ERROR | {"kind": "unknown"}, transient=False),
            e.StepCompleted(0, None),
            e.RunCompleted("done"),
        )(journal)
    found = told_of(store)
    assert "nothing is sent any more, but nobody has said whether mail" in found["why"]
    assert ["resolve", "resolve", "show"] == verbs(found)
    assert not [way for way in found["ways"] if "sent again" in way["why"]]
