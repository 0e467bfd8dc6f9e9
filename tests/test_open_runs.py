"""Open runs: nobody owns them, and whoever knows their id records into them (engine.md A14)."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner

from runjournal import AsyncJournal, Journal, Run, register
from runjournal.cli.app import cli
from runjournal.engine.failures import RunBusy
from runjournal.log import events as e
from runjournal.log.errors import CallEnded, InvalidTransition, NotAllowed, NotNewest, TooLarge, WrongExpectation
from runjournal.log.limits import tags_max
from runjournal.log.store import Import
from runjournal.looking.audit import audit_run

R = "conversation"
PROGRAM = Path(__file__).parent / "programs" / "record_into.py"
ERROR = {"type": "E", "message": "m"}


@register
@dataclass(frozen=True, slots=True)
class Heard(e.Event):
    """A type of a user's own."""

    TYPE: ClassVar[str] = "x.test_open_runs.heard"
    text: str


def look(call_id: str = "c", attempt: int = 1) -> e.ToolStarted:
    return e.ToolStarted(call_id, "look", {}, "unsafe", read_only=False, on_unknown="ask", attempt=attempt)


def asked(call_id: str = "m", attempt: int = 1) -> e.ModelStarted:
    return e.ModelStarted(call_id, "gpt", "h", attempt)


@pytest.fixture(params=["memory", "sqlite", "asyncio"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    kind = AsyncJournal if request.param == "asyncio" else Journal
    with kind.open("memory:" if request.param == "memory" else tmp_path / "runs.db") as opened:
        opened.open_run("chat", source="test", run_id=R, title="a talk", tags={"who": "ada"}, parent_run_id="p")
        yield opened


def test_it_is_opened_once(journal: Journal) -> None:
    """Who opens it again, of the same kind and source, gets the same run; anything else of its id is refused."""
    before = journal.head(R)
    assert R == journal.open_run("chat", source="test", run_id=R)
    assert before == journal.head(R)
    assert ("open", "chat", "a talk", '{"who":"ada"}', "p") == (
        before.status, before.kind, before.title, before.tags, before.parent_run_id,
    )  # fmt: skip
    for kind, source in (("other", "test"), ("chat", "other")):
        with pytest.raises(WrongExpectation):
            journal.open_run(kind, source=source, run_id=R)
    journal.enqueue("chat", run_id="native")
    with pytest.raises(WrongExpectation):
        journal.open_run("chat", source="test", run_id="native")
    with pytest.raises(TooLarge):
        journal.open_run("chat", source="test", tags={str(n): "" for n in range(tags_max + 1)})


def test_what_happens_elsewhere_is_recorded(journal: Journal) -> None:
    """Messages, calls, costs, notes, a summary and own types are let through, and folded."""
    usage = {"input": 3, "output": 2, "cache_read": 0, "cache_write": 0}
    journal.append(R, [e.MessageAppended("user", "hi", "1"), asked(), e.ModelCompleted("m", 1, "ho", usage)])
    journal.append(R, [look(), e.ToolCompleted("c", 1, 5), e.CostRecorded("0.5", "USD", "bill"), e.NoteAdded("n")])
    journal.append(R, [e.MessageAppended("assistant", "ho", "2"), e.ContextCompacted("they met", 2), Heard("ho")])
    state = journal.state(R)
    assert ("open", 5, 1, 1) == (
        state.status.status, state.costs.tokens(), state.calls.tools.completed, state.calls.models.completed,
    )  # fmt: skip
    assert ["hi", "ho"] == [message.content for message in journal.messages(R)]
    assert ["they met", "ho"] == [message.content for message in journal.messages(R, compacted=True)]
    assert state == journal.replay(R)


def test_a_message_is_whole(journal: Journal) -> None:
    """A message isn't continued: one with the id of the last of its role is refused, in one append, too."""
    journal.append(R, [e.MessageAppended("user", "hi", "1"), e.MessageAppended("assistant", "ho", "1")])
    with pytest.raises(NotAllowed, match="message 1 is there"):
        journal.append(R, [e.MessageAppended("user", "again", "1")])
    with pytest.raises(NotAllowed):
        journal.append(R, [e.MessageAppended("user", "more", "2"), e.MessageAppended("user", "more", "2")])
    journal.append(R, [e.MessageAppended("user", "other"), e.MessageAppended("user", "other")])
    assert ["hi", "ho", "other", "other"] == [message.content for message in journal.messages(R)]


def test_calls_are_nobodys_question(journal: Journal) -> None:
    """A call of a tool without an end is no question and no unknown; what was sent has no row, nor has the line."""
    journal.append(R, [look("open"), look("done"), e.ToolCompleted("done", 1, 1), asked()])
    state = journal.state(R)
    assert ({"open", "m"}, {}, []) == (set(state.calls.open()), state.calls.unresolved(), journal.questions(R))
    assert [] == journal.questions()
    tables = ("effects", "unknowns", "lines", "step_ends")
    assert [] == [row for table in tables for row in journal.store.index_rows(table)]
    assert ["call_open", "call_open"] == [
        each.code for each in audit_run(journal.store, R) if each.code != "parent_missing"
    ]


def test_an_attempt_ends_once_and_may_start_anew(journal: Journal) -> None:
    """An open attempt isn't started twice, a later one is; what has ended isn't ended again, and may start anew."""
    journal.append(R, [look()])
    with pytest.raises(NotAllowed, match="attempt 1 is open"):
        journal.append(R, [look()])
    journal.append(R, [look(attempt=2)])
    with pytest.raises(CallEnded):
        journal.append(R, [e.ToolFailed("c", 1, ERROR, transient=False)])
    journal.append(R, [e.ToolFailed("c", 2, ERROR, transient=True), look(attempt=3), e.ToolCompleted("c", 3, 1)])
    with pytest.raises(CallEnded):
        journal.append(R, [e.ToolCompleted("c", 3, 1)])
    assert {} == journal.state(R).calls.known


def test_nobody_goes_on_with_it(journal: Journal) -> None:
    """It is never claimed, run, retried, restarted, resumed, cancelled or signalled, and nothing is written then."""
    before = journal.head(R)
    for refused, words, act in (
        (NotNewest, "fork it", lambda: journal.retry(R)),
        (NotNewest, "fork it", lambda: journal.restart(R)),
        (InvalidTransition, "fork it", lambda: journal.cancel(R)),
        (InvalidTransition, "fork it", lambda: journal.signal(R, "go")),
        (NotAllowed, "fork", lambda: journal.resume(R)),
        (NotAllowed, "no step is open", lambda: journal.abandon_step(R)),
        (RunBusy, "fork it", lambda: journal.run(lambda _: None, run_id=R, kind="chat")),
        (InvalidTransition, "fork it", lambda: journal.append(R, [e.StepStarted(0, "a", "a", "once", 1, 1)])),
        (InvalidTransition, "fork it", lambda: journal.append(R, [e.MemorySet("k", 1)])),
    ):
        with pytest.raises(refused, match=words):
            act()
    assert journal.claim(R) is None
    assert {} == journal.recover_all({"chat": lambda _: None})
    assert before == journal.head(R)


def test_a_fork_goes_on_from_it(journal: Journal) -> None:
    """A fork is an agent's run that begins with the messages of the open one, now or as of an event; it has no call."""
    journal.append(R, [e.MessageAppended("user", "hi"), look(), e.MessageAppended("user", "ho")])

    def agent(run: Run) -> list[str]:
        with run.step("answer"):
            run.message("assistant", "yes")
        return [message.content for message in run.state.messages]

    assert ["hi", "ho", "yes"] == journal.run(agent, run_id=journal.fork(R), kind="chat")
    at = journal.fork(R, 3, new_run_id="early")
    assert ["hi", "yes"] == journal.run(agent, run_id=at, kind="chat")
    assert ("chat", "a talk", {"who": "ada"}, {}) == (
        journal.head(at).kind, journal.head(at).title, journal.state(at).status.tags, journal.state(at).calls.known,
    )  # fmt: skip
    assert [] == [each for each in audit_run(journal.store, at) if each.severity == "error"]


def test_what_was_imported_is_its_importers_alone(journal: Journal) -> None:
    """Into a run with a row in `imports` nobody else writes a thing, not a note; its importer does."""
    batch = journal.batch("there", [e.RunImported("chat", "s", "t", "0" * 64)], expect=0, by="import:t")
    note = Import("there", "t", "0" * 64, "{}")
    journal.append(batch)
    journal.append("there", [e.NoteAdded("not noted yet")])
    more = journal.batch("there", [e.MessageAppended("user", "hi")], expect=2, by="import:t")
    imported = type(more)(more.run_id, more.drafts, more.expect, imported=note)
    journal.append(imported)
    for event, by in ((e.NoteAdded("n"), "w"), (Heard("n"), "w"), (e.MessageAppended("user", "ho"), "import:t")):
        with pytest.raises(NotAllowed, match="only its importer"):
            journal.append("there", [event], by=by)
    again = journal.batch("there", [e.MessageAppended("user", "ho")], expect=3, by="import:t")
    journal.append(type(again)(again.run_id, again.drafts, again.expect, imported=note))
    fork = journal.fork("there", new_run_id="fork")
    assert ["hi", "ho"] == [message.content for message in journal.messages(fork)]


def test_several_processes_record_into_one(tmp_path: Path) -> None:
    """What three processes record at once is all there, each message whole and each call ended, in one chain."""
    words = [sys.executable, str(PROGRAM), str(tmp_path / "runs.db"), R]
    started = [subprocess.Popen([*words, name, "10"]) for name in ("a", "b", "c")]
    assert [0, 0, 0] == [each.wait(60) for each in started]
    with Journal.open(tmp_path / "runs.db") as journal:
        said = [message.content for message in journal.messages(R)]
        assert sorted(f"{name}-{n}" for name in "abc" for n in range(10)) == sorted(said)
        assert (1 + 3 * 30, 30, {}) == (
            journal.head(R).head_seq, journal.state(R).calls.tools.completed, journal.state(R).calls.known,
        )  # fmt: skip
        assert [] == list(audit_run(journal.store, R))


def test_people_can_look_at_it(tmp_path: Path) -> None:
    """Each command that looks at runs shows an open one as what it is."""
    path = str(tmp_path / "runs.db")
    with Journal.open(path) as journal:
        journal.open_run("chat", source="test", run_id=R)
        journal.append(R, [e.MessageAppended("user", "hi"), look()])

    def typed(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(cli, ["--db", path, *words])
        assert code == result.exit_code, result.output
        return result.stdout

    assert "open" in typed("ls", "--status", "open")
    assert ["open"] == [each["stands"] for each in json.loads(typed("ls", "-o", "json"))]
    assert "In flight (1)" in typed("show", R)
    assert "hi" in typed("show", R, "--messages")
    assert "nobody owns it" in typed("explain", R)
    assert "open" in typed("replay", R)
    typed("audit")
    assert "1 runs are open" in typed("doctor")
    typed("fork", R)
    typed("retry", R, code=5)
    copied = CliRunner().invoke(cli, ["--db", path, "export", R])
    (tmp_path / "out.jsonl").write_text(copied.stdout, encoding="utf-8")
    again = CliRunner().invoke(
        cli, ["--db", str(tmp_path / "other.db"), "import", "jsonl", str(tmp_path / "out.jsonl")]
    )
    assert 0 == again.exit_code, again.output
    with Journal.open(tmp_path / "other.db") as other, pytest.raises(NotAllowed):
        other.append(R, [e.NoteAdded("n")])
