"""Runs that stand still, for today's code differs or they don't get on: who sees it, and who gets them going."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from runjournal import (
    AsyncJournal,
    CallFailed,
    CallOutcomeUnknown,
    DidNotHappen,
    Journal,
    PlanChanged,
    RunWaiting,
    StepDiverged,
    tool,
)
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.errors import NotAllowed, RunNotFound
from runjournal.log.limits import lease_s, stopped_codes_max
from runjournal.looking.audit import audit_run
from runjournal.looking.doctor import doctor
from runjournal.looking.family import stands
from runjournal.runner import Runner
from runjournal.sent import SentCall

OLD = """
def agent(run):
    with run.step("old"):
        raise KeyboardInterrupt
"""
NEW = """
def agent(run):
    with run.step("new"):
        pass
"""
MENDED = """
def agent(run):
    with run.step("old"):
        run.memory["done"] = True
    return "ok"
"""


class Died(BaseException):
    """The process dies; but a test that goes wrong there fails, and the others go on."""


class Deploys:
    """Agents out of files, so that each has a version of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, text: str, **names: Any) -> Callable[..., Any]:
        path = self.folder / f"deploy_{abs(hash(text))}.py"
        path.write_text(text)
        exec(compile(text, str(path), "exec"), names)  # as a deploy does
        agent: Callable[..., Any] = names["agent"]
        return agent


@pytest.fixture
def deploy(tmp_path: Path) -> Deploys:
    return Deploys(tmp_path)


@pytest.fixture
def journal() -> Iterator[AsyncJournal]:
    with AsyncJournal.open("memory:", clock=FakeClock()) as opened:
        yield opened


def begun(journal: Journal, deploy: Deploys, run_id: str = "r") -> None:
    with pytest.raises(KeyboardInterrupt):
        journal.run(deploy(OLD), run_id=run_id)


def claims(journal: Journal) -> int:
    return len(list(journal.events("r", types=["run.claimed"])))


def test_recover_all_tries_code_once(journal: AsyncJournal, deploy: Deploys) -> None:
    """It tries each version once, in whatever order they come; what is named, or was resumed, is tried each time."""
    begun(journal, deploy)
    new, other = deploy(NEW), deploy(NEW + "# other\n")
    tried = [bool(journal.recover_all({"agent": agent})) for agent in (new, new, other, new, other)]
    assert [True, False, True, False, False] == tried
    for _ in range(2):
        with pytest.raises(PlanChanged):
            journal.run(new, run_id="r")
    assert {} == journal.recover_all({"agent": new})
    journal.resume("r")
    assert ["PlanChanged"] == [type(each).__name__ for each in journal.recover_all({"agent": new}).values()]
    assert {} == journal.recover_all({"agent": other})
    assert {"r": "ok"} == journal.recover_all({"agent": deploy(MENDED)})


def test_what_a_run_remembers_of_its_stops_is_bounded(journal: AsyncJournal, deploy: Deploys) -> None:
    """After as many versions the oldest is forgotten; once a step has ended all are."""
    begun(journal, deploy)
    versions = [deploy(f"{NEW}# {number}\n") for number in range(stopped_codes_max + 1)]
    for version in versions:
        assert journal.recover_all({"agent": version})
    assert stopped_codes_max == len(journal.state("r").status.stopped_codes)
    assert {} == journal.recover_all({"agent": versions[-1]})
    assert journal.recover_all({"agent": versions[0]})
    assert {"r": "ok"} == journal.recover_all({"agent": deploy(MENDED)})
    assert [] == journal.state("r").status.stopped_codes


def test_recover_all_async_tries_code_once(journal: AsyncJournal, deploy: Deploys) -> None:
    """The same under asyncio: the stop is on record with its message, and the same code isn't tried again."""
    begun(journal, deploy)
    new = deploy("async def agent(run):\n    async with run.step('new'):\n        pass\n")
    tried = [asyncio.run(journal.recover_all_async({"agent": new})) for _ in range(2)]
    assert [["r"], []] == [list(each) for each in tried]
    with pytest.raises(PlanChanged):
        asyncio.run(journal.run_async(new, run_id="r"))
    status = journal.state("r").status
    assert [{"kind": "code", "id": "PlanChanged", "step": "old", "differs": "step"}] == status.waits
    assert str(status.why).startswith("step old is open, new was asked for")


def test_a_renamed_do_is_stopped_however_often_new_code_is_tried(journal: AsyncJournal, deploy: Deploys) -> None:
    """The code that was stopped isn't taken for the code that the run got on with: nothing is sent under a new name."""
    sent = []
    text = "def agent(run):\n    run.do('charge', lambda: charge(run))\n    raise Died\n"

    def charge(run: Any) -> None:
        run.call(pay)

    @tool
    def pay() -> None:
        sent.append(1)

    with pytest.raises(Died):
        journal.run(deploy(text, charge=charge, Died=Died), run_id="r")
    renamed = deploy(text.replace("'charge'", "'pay'"), charge=charge, Died=Died)
    for _ in range(5):
        with pytest.raises(PlanChanged):
            journal.run(renamed, run_id="r")
        journal.resume("r")
    assert [1] == sent


def test_the_message_is_on_record_and_shown(journal: AsyncJournal, deploy: Deploys) -> None:
    """Who asks is told why it stands and what gets it going; nobody is told of an answer that would help."""
    begun(journal, deploy)
    with pytest.raises(PlanChanged):
        journal.run(deploy(NEW), run_id="r")
    assert {} == journal.recover_all({"agent": deploy(NEW)})
    with pytest.raises(RunWaiting, match=r"stopped: the code differs \(PlanChanged\): step old is open") as told:
        Runner(journal).outcome("r")
    assert ["runjournal resume r"] == told.value.answers


def test_a_stop_in_a_group_is_a_stop(journal: AsyncJournal, deploy: Deploys) -> None:
    """Whoever wraps it, the run waits for code."""
    begun(journal, deploy)

    def agent(run: Any) -> None:
        try:
            run.do("new", list)
        except PlanChanged as error:
            raise BaseExceptionGroup("several", [error]) from None

    with pytest.raises((PlanChanged, BaseExceptionGroup)):
        journal.run(agent, run_id="r")
    assert "code" == journal.state("r").stands


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("queued", "it is queued: run it"),
        ("running", "is running it"),
        ("gone", "its owner is gone: run it again"),
        ("asks", "it waits for an answer: `runjournal explain r`"),
        ("due", "its next round is due at"),
        ("completed", "it has completed"),
        ("failed", "it is failed: go on from it, `runjournal retry r`"),
        ("cancelled", "it is cancelled: go on from it, `runjournal retry r`"),
    ],
)
def test_what_there_is_to_do_instead(journal: AsyncJournal, state: str, words: str) -> None:
    """A run that has nothing to resume says where it is, and what gets it on; nothing is appended."""
    journal.enqueue("agent", run_id="r")
    agents: dict[str, Callable[[Any], Any]] = {
        "asks": lambda run: run.ask("ok?"),
        "due": lambda run: _raise(TimeoutError("later")),
        "completed": lambda run: None,
        "failed": lambda run: _raise(ValueError("no")),
    }
    if state in agents:
        with suppress(RunWaiting, TimeoutError, ValueError):
            journal.run(agents[state], run_id="r", kind="agent")
    elif state in ("running", "gone"):
        journal.claim("r")
        journal.clock.sleep(2 * lease_s if state == "gone" else 0)
    elif state == "cancelled":
        journal.cancel("r")
    before = journal.head("r").head_seq
    with pytest.raises(NotAllowed, match=f"run r has nothing to resume: .*{words}"):
        journal.resume("r")
    assert before == journal.head("r").head_seq


def _raise(error: Exception) -> None:
    raise error


def test_everybody_sees_that_it_stands_still(journal: AsyncJournal, deploy: Deploys) -> None:
    """One word table: `ls`, the audit and the doctor say the same, and each names what to type."""
    begun(journal, deploy)
    assert "" == stands(journal.store, journal.head("r"))
    with pytest.raises(PlanChanged):
        journal.run(deploy(NEW), run_id="r")
    journal.signal("r", "late")
    word = "stopped: the code differs"
    assert word == stands(journal.store, journal.head("r"))
    found = [each for each in audit_run(journal.store, "r") if each.code == "stopped"]
    told = f"the run is {word} ('PlanChanged')", "runjournal explain r"
    assert [told] == [(each.what, each.next) for each in found]
    checks = {check.name: check for check in doctor(journal.store)}
    assert (False, f"1 runs are {word} (r)") == (checks["stopped"].ok, checks["stopped"].what)
    journal.resume("r", reason="mended the prompt")
    assert "" == stands(journal.store, journal.head("r"))
    assert "mended the prompt" == list(journal.events("r"))[-1].event.note  # type: ignore[attr-defined]


def test_a_diverged_step_waits_under_each_driver(journal: AsyncJournal) -> None:
    """StepDiverged is such a stop too; the step stays open with what it sent."""
    coins = iter([1, 2, 3])

    @tool
    def send(n: int) -> None:
        if n == 1:
            raise KeyboardInterrupt

    def agent(run: Any) -> None:
        with run.step("s"):
            run.call(note, n=0)
            run.call(send, n=next(coins))

    @tool
    def note(n: int) -> None:
        pass

    with pytest.raises(KeyboardInterrupt):
        journal.run(agent, run_id="r")
    (call_id,) = journal.state("r").calls.unresolved()
    journal.resolve("r", call_id, "happened")
    with pytest.raises(StepDiverged):
        journal.run(agent, run_id="r")
    state = journal.state("r")
    assert [{"kind": "code", "id": "StepDiverged", "step": "s", "differs": "step"}] == state.status.waits
    assert state.steps.open is not None
    assert not state.calls.unresolved()


# Ways out of a step that goes another way than its log.


@tool(read_only=True)
def look(at: str) -> str:
    return at


@tool
def mail(to: str) -> str:
    return f"sent to {to}"


@tool
def charge(cents: int) -> None:
    raise DidNotHappen("no card")


@tool(on_unknown="fail")
def lost(n: int) -> None:
    raise TimeoutError


def sends(run: Any) -> None:
    with run.step("first"):
        look("here")
        mail("ann")
    with run.step("second"):
        with suppress(CallFailed):
            charge(7)
        with suppress(CallOutcomeUnknown):
            lost(1)
        mail("bob")
        raise KeyboardInterrupt


def told(calls: list[SentCall]) -> list[tuple[str, Any, str, bool]]:
    return [(call.tool, call.args, call.step, call.known) for call in calls]


def test_what_a_run_has_sent(journal: AsyncJournal) -> None:
    """Calls that happened or may have, by their line; not those that only look, nor those that did nothing."""
    with pytest.raises(KeyboardInterrupt):
        journal.run(sends, run_id="r")
    sent = journal.sent("r")
    first, unknown, last = (
        ("mail", {"to": "ann"}, "first"),
        ("lost", {"n": 1}, "second"),
        ("mail", {"to": "bob"}, "second"),
    )
    assert [(*first, True), (*unknown, False), (*last, True)] == told(sent)
    assert sent[0].seq == next(journal.events("r", types=["tool.started"], after=sent[0].seq - 1)).seq
    journal.resolve("r", sent[1].call_id, "did_not_happen")
    assert [(*first, True), (*last, True)] == told(journal.sent("r"))
    journal.cancel("r")
    assert told(journal.sent("r")) == told(journal.sent(journal.restart("r")))


def test_a_step_that_is_given_up_says_what_it_has_sent(journal: AsyncJournal) -> None:
    """Of this step alone; its reason is on record, and the audit finds nothing wrong."""
    with pytest.raises(KeyboardInterrupt):
        journal.run(sends, run_id="r")
    with pytest.raises(PlanChanged):
        journal.run(lambda run: run.do("other", list), run_id="r")
    assert ["lost", "mail"] == [call.tool for call in journal.abandon_step("r", reason="a new prompt")]
    failed = list(journal.events("r", types=["step.failed"]))[-1].event
    assert isinstance(failed, e.StepFailed)
    assert ("StepAbandoned", "a new prompt", True) == (failed.error["type"], failed.error["message"], failed.left)
    assert {"call_unresolved"} >= {found.code for found in audit_run(journal.store, "r")}
    with pytest.raises(NotAllowed, match="run r has no step to give up: no step is open in it"):
        journal.abandon_step("r")
    with pytest.raises(RunNotFound):
        journal.abandon_step("s")


def test_to_give_a_step_up_proves_no_code(journal: AsyncJournal, deploy: Deploys) -> None:
    """The code that was stopped isn't the code that the run got on with: its renamed `do` is stopped as before."""
    made = []
    do = "def agent(run):\n    run.do('charge', lambda: make())\n"
    text = f"{do}    with run.step('s'):\n        raise Died\n"

    def make() -> None:
        made.append(mail("ann"))

    with pytest.raises(Died):
        journal.run(deploy(text, make=make, Died=Died), run_id="r")
    renamed = deploy(text.replace("'charge'", "'pay'"), make=make, Died=Died)
    with pytest.raises(PlanChanged):
        journal.run(renamed, run_id="r")
    journal.abandon_step("r")
    for _ in range(2):
        with pytest.raises(PlanChanged, match="step pay is new, and charge"):
            journal.run(renamed, run_id="r")
    assert ["sent to ann"] == made


def test_no_step_is_given_up_behind_its_owner(journal: AsyncJournal) -> None:
    """Its owner is at work in it: it is cancelled instead. Nor of a run that has ended."""
    heard: list[str] = []

    def agent(run: Any) -> None:
        with run.step("s"):
            try:
                journal.abandon_step("r")
            except NotAllowed as refused:
                heard.append(str(refused))

    journal.run(agent, run_id="r")
    assert "is at work in step s; cancel the run instead" in heard[0]
    with pytest.raises(NotAllowed, match="it is completed"):
        journal.abandon_step("r")


def test_recorded_answers_under_asyncio(journal: AsyncJournal) -> None:
    """A step of asyncio goes on as recorded, too; the next attempt of it, and the next step, ask anew."""
    asked: list[str] = []
    version = [1]

    async def ask(request: Any) -> str:
        asked.append(request)
        return f"answer to {request}"

    async def agent(run: Any) -> Any:
        async with run.step("s"):
            answer = await run.model("m", f"question {version[0]}", ask)
            await run.call(mail, to=answer)
            if version[0] == 1:
                raise KeyboardInterrupt
        async with run.step("t"):
            return [answer, await run.model("m", f"question {version[0]}", ask)]

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(journal.run_async(agent, run_id="r"))
    version[0] = 2
    with pytest.raises(StepDiverged):
        asyncio.run(journal.run_async(agent, run_id="r"))
    assert ["question 1"] == asked
    journal.resume("r", recorded=True, reason="the prompt is a better one now")
    assert ["answer to question 1", "answer to question 2"] == asyncio.run(journal.run_async(agent, run_id="r"))
    assert ["question 1", "question 2"] == asked
    assert ["mail"] == [call.tool for call in journal.sent("r")]


def test_what_cannot_go_on_as_recorded(journal: AsyncJournal, deploy: Deploys) -> None:
    """A run between two steps, and one that stands still for another reason; nothing is appended."""
    pays = "def agent(run):\n    run.do('pay', lambda: mail('ann'))\n    raise KeyboardInterrupt\n"
    with pytest.raises(KeyboardInterrupt):
        journal.run(deploy(pays, mail=mail), run_id="r")
    with pytest.raises(PlanChanged):
        journal.run(deploy("def agent(run):\n    run.do('pay all', list)\n"), run_id="r")
    before = journal.head("r").head_seq
    with pytest.raises(NotAllowed, match="run r can't go on as recorded: no step is open; resume it without that"):
        journal.resume("r", recorded=True)
    assert before == journal.head("r").head_seq
