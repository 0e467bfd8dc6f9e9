"""Ids that name nothing: each verb says so, and which id may have been meant."""

import pytest

from runjournal import Journal, RunFailed, RunWaiting, tool
from runjournal.log.errors import CallEnded, InvalidArgument, NotAllowed, RunNotFound, Unstorable
from runjournal.run import Run


@tool(on_unknown="fail")
def wire_money(cents: int) -> str:
    raise ConnectionError("lost")


def asking(run: Run) -> None:
    with run.step("ask"):
        run.ask("send the letter", args={"to": "ada"})


def paying(run: Run) -> None:
    with run.step("pay"):
        try:
            wire_money(5)
        except Exception:  # noqa: BLE001 - as people do
            wire_money(5)


@pytest.fixture
def journal():
    journal = Journal.open("memory:")
    with pytest.raises(RunWaiting):
        journal.run(asking, run_id="waits-1")
    with pytest.raises(Exception, match="nobody knows"):
        journal.run(paying, run_id="failed-1")
    with pytest.raises(RunFailed):
        journal.run(paying, run_id="failed-1")
    return journal


VERBS = {
    "signal": lambda journal, run_id: journal.signal(run_id, "stop"),
    "approve": lambda journal, run_id: journal.approve(run_id, "q"),
    "reject": lambda journal, run_id: journal.reject(run_id, "q"),
    "resolve": lambda journal, run_id: journal.resolve(run_id, "c", "happened"),
    "cancel": lambda journal, run_id: journal.cancel(run_id),
    "retry": lambda journal, run_id: journal.retry(run_id),
    "restart": lambda journal, run_id: journal.restart(run_id),
    "fork": lambda journal, run_id: journal.fork(run_id),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_unknown_run(journal, verb):
    """Each verb on a run that isn't there says so, names the run that is close to it, and makes no run."""
    with pytest.raises(RunNotFound, match="no run 'failed-2' in this store; close to it: failed-1; `runjournal ls`"):
        verb(journal, "failed-2")
    with pytest.raises(RunNotFound, match="no run 'xyz' in this store; `runjournal ls`"):
        verb(journal, "xyz")
    assert ["failed-1", "waits-1"] == sorted(head.run_id for head in journal.runs())


def test_unknown_call(journal):
    """A word about a call that the run doesn't have is no word about one that is known."""
    (call_id,) = journal.state("failed-1").calls.unresolved()
    with pytest.raises(InvalidArgument) as refused:
        journal.resolve("failed-1", call_id[:-1], "happened")
    assert f"run failed-1 has no call {call_id[:-1]!r}; close to it: {call_id!r}; `runjournal show" in str(
        refused.value
    )
    with pytest.raises(InvalidArgument, match="has no call 'xyz'; `runjournal show failed-1 --calls` lists them"):
        journal.resolve("failed-1", "xyz", "happened")
    journal.resolve("failed-1", call_id, "happened", "ok")
    with pytest.raises(CallEnded, match="is known"):
        journal.resolve("failed-1", call_id, "happened")
    again = journal.retry("failed-1")
    with pytest.raises(CallEnded, match="is known"):
        journal.resolve(again, call_id, "happened")
    with pytest.raises(InvalidArgument, match=f"run {again} has no call 'xyz'"):
        journal.resolve(again, "xyz", "happened")


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_unknown_question(journal, verb):
    """An answer to a question that was never asked says so; one to a question that was answered, that it was."""
    question = journal.state("waits-1").status.waits[0]["id"]
    with pytest.raises(InvalidArgument) as refused:
        getattr(journal, verb)("waits-1", question + "x")
    assert f"has no question {question + 'x'!r}; close to it: {question!r}; `runjournal" in str(refused.value)
    getattr(journal, verb)("waits-1", question)
    with pytest.raises(NotAllowed, match="the first answer counts"):
        getattr(journal, verb)("waits-1", question)


def test_unknown_step(journal):
    """A retry of a step that the run never began would try nothing anew, in silence: it is refused."""
    with pytest.raises(InvalidArgument, match=r"has no step 'pya'; close to it: 'pay'; .*--tree. lists them"):
        journal.retry("failed-1", again=["pay", "pya"])
    with pytest.raises(InvalidArgument, match=r"expected a list of ids of steps, got the text 'pay'"):
        journal.retry("failed-1", again="pay")
    first = journal.retry("failed-1", again=["pay"], new_run_id="r-1")
    with pytest.raises(Exception, match="nobody knows"):
        journal.run(paying, run_id=first)
    assert "r-2" == journal.retry(first, again=["pay"], new_run_id="r-2")


def test_odd_ids(journal):
    """What can't be an id at all is told like any other that nothing has."""
    for odd in ("", "\ud800", "x" * 100_000):
        with pytest.raises((InvalidArgument, Unstorable)):
            journal.resolve("failed-1", odd, "happened")
        with pytest.raises((InvalidArgument, Unstorable)):
            journal.approve("waits-1", odd)
        with pytest.raises((InvalidArgument, Unstorable)):
            journal.retry("failed-1", again=[odd])
