"""The commands that write to a run: what they append, who has said it, what they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from runjournal import Journal, RunWaiting, tool
from runjournal.cli.app import cli
from runjournal.log import events as e
from runjournal.log.base import data_of
from runjournal.log.errors import NotAllowed
from runjournal.run import Run
from runjournal.writing.rehearsal import RehearsingAppender


@tool(on_unknown="ask")
def mail(to: str) -> str:
    raise ConnectionError("lost")


def mailing(run: Run) -> None:
    with run.step("s"):
        try:
            mail("ada")
        except Exception:  # noqa: BLE001 - as people do
            mail("ada")


def asking(run: Run) -> Any:
    return run.ask("refund", args={"cents": 500}, reason="it broke")


def failing(run: Run) -> None:
    run.do("fail", int, "no number")


def taking(run: Run) -> None:
    with run.step("wait"):
        run.ask("go on")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "runs.db"
    with Journal.open(path) as journal:
        for run_id, agent in (("asks-1", asking), ("mails-1", mailing)):
            with pytest.raises(RunWaiting):
                journal.run(agent, run_id=run_id)
        with pytest.raises(Exception, match="no number"):
            journal.run(failing, run_id="fails-1")
        journal.enqueue("later", run_id="queued-1")
    return path


def typed(store: Path, *words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, ["--db", str(store), *words], catch_exceptions=False)
    assert code == done.exit_code, done.output
    return done


def loaded(store: Path, *words: str) -> Any:
    return json.loads(typed(store, *words, "-o", "json").stdout)


def newest(store: Path, run_id: str) -> Any:
    with Journal.open(store) as journal:
        return list(journal.events(run_id))[-1]


def key_of(store: Path, run_id: str) -> str:
    with Journal.open(store) as journal:
        (found,) = journal.questions(run_id)
    return found.id


def test_questions_say_what_to_type(store: Path) -> None:
    """Each with what is asked, how long ago, and the command that answers it; for programs the same as JSON."""
    text = typed(store, "questions").stdout
    asked, sent = key_of(store, "asks-1"), key_of(store, "mails-1")
    heads = [row.split() for row in text.splitlines() if not row.startswith(" ")]
    assert ["asks-1 approval refund asked", "mails-1 call mail sent"] == [" ".join(head[:4]) for head in heads]
    told = [row.strip() for row in text.splitlines() if row.startswith("    answer: ")]
    answers = [f"{verb} asks-1 {asked}" for verb in ("approve", "reject")]
    answers += [f"""edit asks-1 {asked} --args '{{"cents": 500}}'"""]
    answers += [f"resolve mails-1 {sent} {word}" for word in ("happened", "did-not-happen", "retry")]
    assert [f"answer: runjournal --db {store} {answer}" for answer in answers] == told
    assert '{"cents": 500}' in text
    assert "it broke" in text
    found = loaded(store, "questions")
    assert [("asks-1", asked, {"cents": 500}), ("mails-1", sent, {"to": "ada"})] == [
        (each["run_id"], each["id"], each["args"]) for each in found
    ]
    assert [found[1]["id"]] == [each["id"] for each in loaded(store, "questions", "mails")]
    assert "nobody is asked anything" in typed(store, "questions", "queued-1").stderr


ANSWERS = {
    "approve": (["approve", "asks-1", "{asked}"], e.ApprovalResolved("{asked}", "approved", note="why")),
    "reject": (["reject", "asks-1", "{asked}"], e.ApprovalResolved("{asked}", "rejected", note="why")),
    "edit": (
        ["edit", "asks-1", "{asked}", "--args", '{"cents": 4}'],
        e.ApprovalResolved("{asked}", "edited", {"cents": 4}, "why"),
    ),
    "happened": (
        ["resolve", "mails-1", "{sent}", "happened", "--result", '"m-1"'],
        e.ToolResolved("{sent}", 1, "happened", "m-1", note="why"),
    ),
    "did not happen": (
        ["resolve", "mails-1", "{sent}", "did-not-happen"],
        e.ToolResolved("{sent}", 1, "did_not_happen", note="why"),
    ),
    "retry a call": (["resolve", "mails-1", "{sent}", "retry"], e.ToolResolved("{sent}", 1, "retry", note="why")),
    "signal": (
        ["signal", "queued-1", "paid", "--payload", "7", "--signal-id", "s1"],
        e.SignalReceived("s1", "paid", 7),
    ),
    "cancel": (["cancel", "queued-1"], e.RunCancelled("why")),
    "cancel now": (["cancel", "queued-1", "--mode", "now"], e.RunCancelRequested("why", "now")),
}


@pytest.mark.parametrize(("words", "event"), ANSWERS.values(), ids=ANSWERS)
def test_what_is_typed_is_appended(store: Path, words: list[str], event: Any) -> None:
    """Under the name of whoever types it, with the reason; a dry run says the same and writes nothing."""
    ids = {"{asked}": key_of(store, "asks-1"), "{sent}": key_of(store, "mails-1")}
    words = [ids.get(word, word) for word in words]
    expected = {name: ids.get(str(value), value) for name, value in data_of(event).items()}
    before = newest(store, words[1])
    dry = loaded(store, *words, "--by", "ada", "--reason", "why", "--dry-run")
    assert before == newest(store, words[1])
    done = loaded(store, *words, "--by", "ada", "--reason", "why")
    assert (True, False) == (dry["dry_run"], done["dry_run"])
    for found in (dry, done):
        (same,) = (each for each in found["appended"] if each["type"] == event.TYPE)
        assert ("ada", words[1], expected) == (same["by"], same["run_id"], same["data"])
    assert [each["type"] for each in dry["appended"]] == [each["type"] for each in done["appended"]]
    with Journal.open(store) as journal:
        kept = list(journal.events(words[1], types=(event.TYPE,)))[-1]
    assert (expected, "ada") == (data_of(kept.event), kept.by)


def test_who_types_is_named_by_the_environment_too(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RUNJOURNAL_BY is who acts, unless --by says so; else it is the user of the command line."""
    typed(store, "signal", "queued-1", "a")
    assert newest(store, "queued-1").by.startswith("cli:")
    monkeypatch.setenv("RUNJOURNAL_BY", "ben")
    typed(store, "signal", "queued-1", "b")
    assert "ben" == newest(store, "queued-1").by
    typed(store, "signal", "queued-1", "c", "--by", "ada")
    assert "ada" == newest(store, "queued-1").by


LINKS = {
    "retry": ["retry", "fails-1"],
    "restart": ["restart", "fails-1"],
    "fork": ["fork", "fails-1", "--at", "2"],
}


@pytest.mark.parametrize("words", LINKS.values(), ids=LINKS)
def test_a_new_run_is_queued_with_its_reason(store: Path, words: list[str]) -> None:
    """A run that goes on from another one is queued, the reason stands behind it as a note; a dry run makes none."""
    dry = loaded(store, *words, "--reason", "why", "--dry-run", "--new-run-id", "new-1")
    with Journal.open(store) as journal:
        assert "new-1" not in [head.run_id for head in journal.runs()]
    done = loaded(store, *words, "--reason", "why", "--new-run-id", "new-1")
    for found in (dry, done):
        assert ("new-1", ["run.queued", "note.added"]) == (
            found["run_id"],
            [each["type"] for each in found["appended"]],
        )
    with Journal.open(store) as journal:
        queued, note = (record.event for record in journal.events("new-1"))
    assert isinstance(queued, e.RunQueued)
    assert (words[0], "fails-1") == (queued.link, (queued.base or {})["run_id"])
    assert e.NoteAdded("why", "reason") == note


def test_a_step_is_tried_again(store: Path) -> None:
    """`retry --again` names steps; one that the run never began is refused."""
    done = loaded(store, "retry", "fails-1", "--again", "fail")
    assert ["fail"] == done["appended"][0]["data"]["again"]
    assert "no step 'fial'; close to it: 'fail'" in typed(store, "retry", "fails-1", "--again", "fial", code=2).stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["cancel", "queued"], 2, "expected the whole id of a run, got queued; if you mean queued-1, type that"),
        (["cancel", "@last"], 2, "expected the whole id of a run, got @last; if you mean "),
        (["cancel", "nobody"], 4, "no run 'nobody' in "),
        (["approve", "asks-1", "{asked}"[:3]], 2, "has no question '{as'"),
        (["signal", "fails-1", "paid"], 5, "the run has ended"),
        (["retry", "queued-1"], 5, "run queued-1 is queued: a retry takes a run that has ended"),
        (["edit", "asks-1", "q", "--args", "[1]"], 2, "expected a JSON object"),
        (["signal", "queued-1", "paid", "--payload", "{1"], 2, "expected JSON, got {1 ("),
        (["resolve", "mails-1", "c", "retry", "--result", "1"], 2, "leave it out with retry"),
        (
            ["resolve", "mails-1", "c", "maybe"],
            2,
            "'maybe' is not one of 'happened', 'did-not-happen', 'retry', 'unknown'",
        ),
        (["cancel", "queued-1", "--by", "\x1b"], 2, "by: expected text of 1 to 512 printable characters"),
    ],
)
def test_what_is_refused(store: Path, words: list[str], code: int, said: str) -> None:
    """A short name, an unknown one, and what can't be: each with its exit code, and nothing is written."""
    with Journal.open(store) as journal:
        before = journal.store.last_position()
    assert said in typed(store, *words, code=code).stderr
    with Journal.open(store) as journal:
        assert before == journal.store.last_position()


def test_a_short_id_of_a_question_or_a_call_is_refused(store: Path) -> None:
    """The refusal names the whole id; the second answer to a question is refused, too."""
    asked, sent = key_of(store, "asks-1"), key_of(store, "mails-1")
    said = typed(store, "approve", "asks-1", asked[:4], code=2).stderr
    assert f"expected the whole id of a question, got {asked[:4]}; if you mean {asked}, type that" in said
    said = typed(store, "resolve", "mails-1", sent[:4], "retry", code=2).stderr
    assert f"expected the whole id of a call, got {sent[:4]}; if you mean {sent}, type that" in said
    assert f"appended  asks-1 6  approval.resolved  {asked}" in typed(store, "approve", "asks-1", asked).stdout
    assert "the first answer counts" in typed(store, "reject", "asks-1", asked, code=5).stderr


def test_a_store_that_is_missing_is_not_made(tmp_path: Path) -> None:
    """No act makes a store: the text says where none is, and how to name another."""
    assert "--db or RUNJOURNAL_DB names another" in typed(tmp_path / "no.db", "cancel", "r", code=75).stderr
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["memory:", "{folder}/runs.db"])
def test_a_rehearsal_judges_one_append_behind_the_other(tmp_path: Path, url: str) -> None:
    """What is rehearsed counts for what is rehearsed next, is refused as ever, and is never there."""
    with Journal.open(url.format(folder=tmp_path)) as real:
        with Journal(real.store, appender=RehearsingAppender) as journal:
            journal.enqueue("k", run_id="r")
            journal.append("r", [e.NoteAdded("x")], expect=1)
            journal.append("r", [e.RunCancelled("no")], expect=2)
            with pytest.raises(Exception, match="has ended"):
                journal.append("r", [e.SignalReceived("s", "n", 1)], expect=None)
            with pytest.raises(NotAllowed):
                journal.append("other", [e.RunQueued("k", 1), e.ApprovalResolved("q", "approved")], expect=0)
            records = journal.ownership.appender.records  # type: ignore[attr-defined]  # it is a RehearsingAppender
            assert [(1, "run.queued"), (2, "note.added"), (3, "run.cancelled")] == [(r.seq, r.type) for r in records]
        assert [] == list(real.runs())
        real.enqueue("k", run_id="r")


def test_an_id_stands_for_its_line(store: Path) -> None:
    """What moves a run follows the first id to the newest one; `ID~1` is the first one itself; answers don't follow."""
    assert "fails-1.r2" == loaded(store, "retry", "fails-1")["run_id"]
    assert ["fails-1.r2"] == [each["run_id"] for each in loaded(store, "cancel", "fails-1")["appended"][-1:]]
    said = typed(store, "cancel", "fails-1~1", code=5).stderr
    assert "the run has ended" in said
    assert "fails-1.r3" == loaded(store, "restart", "fails-1")["run_id"]
    assert "queued" == loaded(store, "explain", "fails-1")["stands"]
    assert "superseded" == loaded(store, "explain", "fails-1~2")["stands"]
    asked = key_of(store, "asks-1")
    typed(store, "cancel", "asks-1")
    typed(store, "retry", "asks-1")
    assert "run asks-1 is cancelled" in typed(store, "approve", "asks-1", asked, code=5).stderr
    assert "run asks-1.r2" in typed(store, "approve", "asks-1~2", asked, code=5).stderr
