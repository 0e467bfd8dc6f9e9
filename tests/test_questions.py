"""What people are asked: of one run and of all, while it waits and after it has ended."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from runjournal import Journal, OpenQuestion, RunFailed, RunWaiting, tool
from runjournal.log.clock import FakeClock
from runjournal.log.errors import InvalidArgument, RunNotFound
from runjournal.run import Run

BIG = "x" * 70_000


@tool(on_unknown="ask")
def mail(to: str) -> str:
    raise ConnectionError("lost")


@tool(on_unknown="fail")
def pay(cents: int) -> str:
    raise ConnectionError("lost")


def twice(what: Any, **args: Any) -> Any:
    def agent(run: Run) -> None:
        with run.step("s"):
            try:
                what(**args)
            except Exception:  # noqa: BLE001 - as people do
                what(**args)

    return agent


def asking(run: Run) -> None:
    with run.step("s"):
        run.ask("send the letter", args={"to": "ada"}, reason="it is late")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(tick_s=0)


@pytest.fixture
def journal(clock: FakeClock) -> Journal:
    journal = Journal.open("memory:", clock=clock)
    with pytest.raises(RunWaiting):
        journal.run(asking, run_id="asks")
    clock.sleep(10)
    with pytest.raises(RunWaiting):
        journal.run(twice(mail, to=BIG), run_id="mails")
    clock.sleep(10)
    with pytest.raises(Exception, match="nobody knows"):
        journal.run(twice(pay, cents=5), run_id="pays")
    return journal


def test_all_questions_are_listed_oldest_first(journal: Journal, clock: FakeClock) -> None:
    """Of all runs: approvals, and calls of which nobody knows, those of a run that has failed too."""
    clock.sleep(100)
    found = journal.questions()
    assert ["asks", "mails", "pays"] == [each.run_id for each in found]
    assert ["approval", "call", "call"] == [each.kind for each in found]
    assert [("send the letter", {"to": "ada"}), ("mail", {"to": BIG}), ("pay", {"cents": 5})] == [
        (each.action, each.args) for each in found
    ]
    assert ["it may have happened, and nothing keeps it from happening twice"] * 2 == [
        each.reason for each in found[1:]
    ]
    assert [120, 110, 100] == [round(each.age_s) for each in found]


def test_an_id_of_a_question_is_what_answers_it(journal: Journal) -> None:
    """What `approve` and `resolve` take is what the question has; an answered one isn't asked any more."""
    ask, call, failed = journal.questions()
    journal.approve(ask.run_id, ask.id)
    journal.resolve(call.run_id, call.id, "did_not_happen")
    journal.resolve(failed.run_id, failed.id, "happened", 7)
    assert [] == journal.questions()


def test_questions_of_one_run_are_those_of_the_newest_of_its_line(journal: Journal) -> None:
    """A retry has the question of the run that it goes on from, which is asked there alone."""
    (before,) = journal.questions("pays")
    again = journal.retry("pays")
    (found,) = journal.questions("pays")
    assert (again, before.id) == (found.run_id, found.id)
    assert [again] == [each.run_id for each in journal.questions() if each.action == "pay"]
    with pytest.raises(RunNotFound, match="close to it: pays"):
        journal.questions("payz")


def test_a_run_that_has_ended_asks_for_no_approval(journal: Journal) -> None:
    """An approval is open as long as its run may go on, and no longer."""
    journal.cancel("asks")
    assert [] == journal.questions("asks")


def test_a_call_in_flight_is_no_question() -> None:
    """While the owner lives nobody is asked about its calls."""
    seen = list[list[OpenQuestion]]()

    @tool
    def send(to: str) -> None:
        seen.append(own.questions())

    with Journal.open("memory:") as own:
        own.run(lambda run: run.do("s", send, "ada"), run_id="r")
        assert [[]] == seen
        assert [] == own.questions("r")


def test_a_wait_says_what_is_asked(journal: Journal, clock: FakeClock) -> None:
    """`RunWaiting.waits` has what a person must know to answer, and its text the command that answers."""
    clock.sleep(60)
    with pytest.raises(RunWaiting) as waits:
        journal.run(asking, run_id="asks")
    (wait,) = waits.value.waits
    (question,) = journal.questions("asks")
    expected = {"action": "send the letter", "args": {"to": "ada"}, "reason": "it is late", "age_s": 80.0}
    assert {"kind": "approval", "id": question.id, **expected} == wait
    both = " or ".join(f"`runjournal {verb} asks {question.id}`" for verb in ("approve", "reject"))
    assert f"""'send the letter' {{"to": "ada"}}. Answer it, {both}, and run it again""" in str(waits.value)
    with pytest.raises(RunWaiting) as mails:
        journal.run(asking, run_id="mails", kind="agent")
    assert ["mail"] == [wait["action"] for wait in mails.value.waits]
    mends = ("read_only=True", "not_sent=(", 'on_unknown="tell"')
    assert [(True, False)] * 3 == [(mend in str(mails.value), mend in str(waits.value)) for mend in mends]
    assert [{"kind", "id"}] == [set(wait) for wait in journal.state("asks").status.waits]


def test_a_failed_run_says_what_to_type(journal: Journal) -> None:
    """Its text has the command that says what became of its call, and the one that goes on."""
    with pytest.raises(RunFailed) as failed:
        journal.run(asking, run_id="pays", kind="agent")
    resolve = " or ".join(rf"`runjournal resolve pays \S+ {word}`" for word in ("happened", "did-not-happen", "retry"))
    assert re.search(rf"say what became of it, {resolve}, then `runjournal retry pays`", str(failed.value))


STORES: dict[str, tuple[str | None, list[str]]] = {
    "runjournal.db": (None, []),
    "my runs.db": (None, ["--db", "my runs.db"]),
    "named.db": ("named.db", []),
    "third.db": ("named.db", ["--db", "third.db"]),
}


@pytest.mark.parametrize("name", STORES)
def test_a_command_in_a_text_reaches_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It names the store, but for the one that a command finds by itself; each can be pasted as it is."""
    variable, option = STORES[name]
    monkeypatch.delenv("RUNJOURNAL_DB", raising=False)
    if variable is not None:
        monkeypatch.setenv("RUNJOURNAL_DB", variable)
    monkeypatch.chdir(tmp_path)
    begin = ["runjournal", *(word.replace(name, str(tmp_path / name)) for word in option)]
    with Journal.open(name) as journal:
        with pytest.raises(RunWaiting) as waits:
            journal.run(asking, run_id="asks", kind="agent")
        question = journal.questions("asks")[0].id
        typed = [shlex.split(line) for line in re.findall("`(.+?)`", str(waits.value))]
        assert [[*begin, verb, "asks", question] for verb in ("approve", "reject")] == typed
        with pytest.raises(InvalidArgument) as refused:
            journal.resolve("asks", "no", "happened")
        (line,) = re.findall("`(.+?)`", str(refused.value))
        assert [*begin, "show", "asks", "--calls"] == shlex.split(line)
