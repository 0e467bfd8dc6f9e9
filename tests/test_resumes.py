"""What a run goes on from: told before it does, to people and to its agent. engine.md G1 to G3."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from runjournal import AsyncJournal, AsyncRun, Journal, PlanChanged, ResumeReport, Run, tool
from runjournal.cli.app import cli
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.errors import InvalidArgument, ResumePointUsed, RunNotFound
from runjournal.log.limits import lease_s


@tool(policy="unsafe")
def pays(x: int) -> int:
    """Pay."""
    return x


@tool(policy="idempotent")
def looks(x: int) -> int:
    """Look."""
    return x


class PowerCut(BaseException):
    """The process is gone."""


def died(journal: Journal) -> None:
    """A run with one step done, and one open: a call of it ended, two are in flight, and a question is open."""
    plan = [{"id": "1", "title": "first", "status": "done"}, {"id": "2", "title": "second", "status": "todo"}]
    journal.enqueue("agent", run_id="r", plan=plan)
    claim = journal.claim("r")
    assert claim is not None
    start = [e.StepStarted(0, "a", "a", "do", 1, 1), e.StepCompleted(0, 1), e.StepStarted(1, "b", "b", "do", 1, 1)]
    calls = [
        e.ToolStarted("1", "looks", {"x": 1}, "idempotent", True, "ask", 1),
        e.ToolCompleted("1", 1, 1),
        e.ToolStarted("2", "looks", {"x": 2}, "idempotent", True, "ask", 1),
        e.ToolStarted("3", "pays", {"x": 3}, "unsafe", False, "ask", 1),
        e.ToolStarted("4", "told", {"x": 4}, "unsafe", False, "fail", 1),
        e.ApprovalRequested("5", "ok", "why"),
    ]
    journal.append("r", [*start, *calls], epoch=claim.epoch)
    journal.clock.sleep(lease_s + 7200)


def test_the_report_says_what_a_run_would_go_on_from() -> None:
    """Behind a crash: last step, what comes, each call by what becomes of it, and how long it stood."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        died(journal)
        before = journal.head("r").head_seq
        report = journal.resume_report("r")
        assert isinstance(report, ResumeReport)
        assert ("crash", "its process is gone", before) == (report.kind, report.why, report.point)
        assert ("a", 1, "step b is entered again (attempt 1, entry 2); task: second") == (
            report.last_step, report.steps_completed, report.next_action
        )  # fmt: skip
        assert {"1": "done", "2": "repeat", "3": "person", "4": "unknown", "5": "person"} == {
            call.call_id: call.becomes for call in report.calls
        }
        assert lease_s + 7200 <= report.stood_s < lease_s + 7210
        assert (1, 2) == (report.tasks_done, report.tasks)
        assert before == journal.head("r").head_seq


def test_the_report_in_lines_and_as_json() -> None:
    """People read it in lines that name each call which isn't done; programs read the same as JSON."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        died(journal)
        report = journal.resume_report("r")
        assert report is not None
        text = report.lines()
        assert "run r goes on from event 11, behind a crash: its process is gone" == text[0]
        assert "last step: a (1 completed, 1 of 2 tasks done)" == text[2]
        assert "calls: 1 done, 1 safe to repeat, 1 unknown, 2 waits for a person" == text[4]
        assert ["2", "3", "4", "5"] == [line.split(":")[0][-1] for line in text[5:9]]
        assert "code: not recorded; system prompt: not recorded" == text[-1]
        assert [1, "done"] == [report.as_json()["calls"][0][key] for key in ("attempt", "becomes")]


def test_notes_and_costs_do_not_move_the_resume_point() -> None:
    """What anybody says of a run at any time leaves the point where it is; an answer moves it."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        died(journal)
        report = journal.resume_report("r")
        assert report is not None
        journal.append("r", [e.NoteAdded("seen"), e.CostRecorded("1", "USD", "lab")], expect=None)
        later = journal.resume_report("r")
        journal.approve("r", "5")
        moved = journal.resume_report("r")
        assert later is not None
        assert moved is not None
        assert (report.point, report.worked_at) == (later.point, later.worked_at)
        assert report.point + 3 == moved.point


def test_a_run_that_never_began_has_no_report() -> None:
    """A queued run and one that happens elsewhere aren't resumed; a run that isn't there is refused."""
    with Journal.open("memory:") as journal:
        journal.enqueue("k", run_id="q")
        journal.open_run("k", source="elsewhere", run_id="o")
        assert [None, None] == [journal.resume_report("q"), journal.resume_report("o")]
        with pytest.raises(RunNotFound):
            journal.resume_report("no")


def test_the_agent_is_told_what_it_goes_on_from() -> None:
    """Nothing at the first start; then what was on record when this owner took it up, however far it has gone on."""
    seen: list[ResumeReport | None] = []

    def agent(run: Run) -> None:
        run.pin_prompt(system="be kind", tone="short")
        run.do("a", int)
        seen.append(run.resumed)
        if len(seen) < 2:
            raise KeyboardInterrupt
        run.do("b", int)
        seen.append(run.resumed)

    with Journal.open("memory:") as journal:
        with pytest.raises(KeyboardInterrupt):
            journal.run(agent, run_id="r")
        journal.run(agent, run_id="r")
    first, *later = seen
    assert first is None
    for report in later:
        assert report is not None
        assert ("reopen", "its process let it go", "a") == (report.kind, report.why, report.last_step)
        assert ("same", "same") == (report.code, report.prompt)


def test_an_asyncio_agent_is_told_the_same() -> None:
    """Its run has the report, too; a prompt that it pins otherwise is named by its layers."""
    seen: list[str] = []
    tones = iter(["short", "long"])

    async def agent(run: AsyncRun) -> None:
        told = run.resumed
        seen.append("" if told is None else f"{told.kind} {told.prompt}")
        run.pin_prompt(system="be kind", tone=next(tones))
        told = run.resumed
        seen.append("" if told is None else told.prompt)
        await run.do("ask", lambda: 1)
        await run.ask("ok?")

    with AsyncJournal.open("memory:") as journal:
        with pytest.raises(Exception, match="ok"):
            asyncio.run(journal.run_async(agent, run_id="r"))
        (question,) = journal.questions("r")
        journal.approve("r", question.id)
        asyncio.run(journal.run_async(agent, run_id="r"))
    assert ["", "", "reopen not compared", "changed: tone"] == seen


def test_a_retry_goes_on_from_the_run_before_it() -> None:
    """A person has asked for it: it names the run and the event that it goes on from, and when that was at work."""
    seen: list[ResumeReport | None] = []

    def agent(run: Run) -> None:
        run.do("a", int)
        seen.append(run.resumed)
        if run.id == "r":
            raise LookupError

    with Journal.open("memory:", clock=FakeClock()) as journal:
        with pytest.raises(LookupError):
            journal.run(agent, run_id="r")
        journal.clock.sleep(100)
        ended = journal.resume_report("r")
        assert ended is not None
        assert ("manual", "a retry: what comes behind step a") == (ended.kind, ended.next_action)
        journal.run(agent, run_id="r", retry=True)
    report = seen[-1]
    assert report is not None
    assert ("manual", "it is a retry of r, from event 5", "a") == (report.kind, report.why, report.last_step)
    assert 100 <= report.stood_s < 101


def test_the_report_compares_the_code_and_the_prompt_of_today() -> None:
    """Whoever looks may name the agent and the layers of its prompt: same, changed, or not recorded."""

    def agent(run: Run) -> None:
        run.pin_prompt(system="be kind", tone="short")
        raise KeyboardInterrupt

    with Journal.open("memory:") as journal:
        with pytest.raises(KeyboardInterrupt):
            journal.run(agent, run_id="r")
        told = [
            journal.resume_report("r", agent=agent, prompt={"system": "be kind", "tone": "short"}),
            journal.resume_report("r", agent=sum, prompt={"system": "be kind"}),
            journal.resume_report("r", prompt={"tone": "short", "system": "be kind"}),
        ]
    assert [
        ("same", "same"),
        ("not recorded", "changed: tone"),
        ("not recorded", "changed: the order of its layers"),
    ] == [(each.code, each.prompt) for each in told if each is not None]


def test_the_check_of_code_tells_an_agent_of_a_resume() -> None:
    """Whoever asks whether today's code can go on calls an agent that may look at what it goes on from."""

    def agent(run: Run) -> str:
        run.pin_prompt(system="x")
        told = run.resumed
        run.do("a", int)
        if told is None:
            raise KeyboardInterrupt
        return told.kind

    with Journal.open("memory:") as journal:
        with pytest.raises(KeyboardInterrupt):
            journal.run(agent, run_id="r")
        assert journal.check(agent, "r").ok
        assert "reopen" == journal.run(agent, run_id="r")


def stopped(journal: Journal) -> int:
    """A run that today's code has stopped, and its resume point."""

    def one(run: Run) -> None:
        with run.step("a"):
            raise KeyboardInterrupt

    def two(run: Run) -> None:
        run.do("b", int)

    with pytest.raises(KeyboardInterrupt):
        journal.run(one, run_id="r", kind="k")
    with pytest.raises(PlanChanged):
        journal.run(two, run_id="r", kind="k")
    report = journal.resume_report("r")
    assert report is not None
    assert report.why.startswith("it has waited for code: ")
    return report.point


def test_whoever_comes_second_is_told_who_was_first() -> None:
    """The same resume point again is refused, with who has used it; so is one behind which the run has moved."""
    with Journal.open("memory:", by="ada") as journal:
        point = stopped(journal)
        journal.append("r", [e.NoteAdded("seen by two")], expect=None)
        journal.resume("r", point=point)
        with pytest.raises(ResumePointUsed, match=f"got {point}: ada used it at .* \\(event {point + 2}\\)") as raised:
            journal.resume("r", point=point)
        assert (point, point + 2) == (raised.value.point, raised.value.actual)
        with pytest.raises(ResumePointUsed, match="the run has moved since"):
            journal.resume("r", point=point - 1)
        with pytest.raises(ResumePointUsed, match="there is none such"):
            journal.resume("r", point=99)
        with pytest.raises(InvalidArgument, match="expected the seq of a resume point from 1, got True"):
            journal.resume("r", point=True)
        report = journal.resume_report("r")
        assert report is not None
        assert ("manual", "a person resumed it") == (report.kind, report.why)


def test_two_people_resume_by_the_command_line(tmp_path: Path) -> None:
    """Each is told first what the run goes on from; the second use of the point that both have seen is refused."""
    store = str(tmp_path / "j.db")
    with Journal.open(store) as journal:
        point = stopped(journal)
    words = ["--db", store, "resume", "r", "--point", str(point)]
    first, second = (CliRunner().invoke(cli, words) for _ in range(2))
    assert f"run r goes on from event {point}, reopened: it has waited for code" in first.stderr
    assert (0, 5) == (first.exit_code, second.exit_code)
    assert "used it at" in second.stderr
    shown = CliRunner().invoke(cli, ["--db", store, "show", "r"])
    assert "Goes on from" in shown.stdout
