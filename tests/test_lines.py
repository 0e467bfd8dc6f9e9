"""A run id stands for its line: who is meant by which name, how the next run of a line is called, and who is faster."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runjournal import AsyncJournal, Journal, KindDiffers, PlanChanged, RunCancelled, RunFailed, RunWaiting, tool
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.errors import AppendRefused, InvalidArgument, NotAllowed, NotNewest, RunNotFound, WrongExpectation
from runjournal.log.limits import run_id_chars_max
from runjournal.naming import members, named, on_line

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "crash"
RACES = 250 if LONG else 10


@pytest.fixture
def journal() -> Iterator[AsyncJournal]:
    with AsyncJournal.open("memory:", clock=FakeClock()) as opened:
        yield opened


def fails(run: Any) -> None:
    raise ValueError("no")


def failed(journal: Journal, run_id: str = "bill") -> None:
    with pytest.raises(ValueError, match="no"):
        journal.run(fails, run_id=run_id)


def line(journal: Journal, length: int, run_id: str = "bill") -> list[str]:
    """A line of failed runs, made by the id of its first one."""
    failed(journal, run_id)
    for _ in range(length - 1):
        journal.retry(run_id)
        failed(journal, run_id)
    return members(journal.store, named(journal.store, run_id))


def test_the_runs_of_a_line_are_numbered(journal: Journal) -> None:
    """A retry and a restart by their places; `ID~n` names each by its place, and its own id does, too."""
    assert ["bill", "bill.r2", "bill.r3"] == line(journal, 3)
    assert "bill.r4" == journal.restart("bill.r3")
    assert ["bill", "bill.r2", "bill.r4"] == [journal.state(f"bill~{n}").run_id for n in (1, 2, 4)]
    assert ["bill.r4", "bill.r2"] == [journal.state(name).run_id for name in ("bill", "bill.r2")]
    assert "bill" == journal.state("bill.r3~1").run_id
    with pytest.raises(RunNotFound):
        journal.state("bill~5")
    for wrong in ("bill~0", "bill~x", "bill~"):
        with pytest.raises(InvalidArgument):
            journal.state(wrong)
    with pytest.raises(InvalidArgument):
        journal.enqueue("k", run_id="bill~1")


def test_strangers_keep_their_ids(journal: Journal) -> None:
    """The next free number is taken; from there on it goes on counting."""
    for run_id in ("bill.r2", "bill.r3", "bill.r5"):
        journal.enqueue("other", run_id=run_id)
    assert ["bill", "bill.r4", "bill.r6"] == line(journal, 3)
    assert "bill.r2" == journal.state("bill.r2").run_id
    assert 1 == len(members(journal.store, "bill.r2"))


def test_an_id_of_ones_own_counts_as_a_place(journal: Journal) -> None:
    """Where the newest run was named by hand its place in the line is counted."""
    line(journal, 2)
    assert "by-hand" == journal.retry("bill", new_run_id="by-hand")
    failed(journal)
    assert "bill.r4" == journal.retry("bill")


def test_long_ids_are_cut(journal: Journal) -> None:
    """The id of a retry has at most 120 characters, and two lines that begin alike don't share it."""
    one, other = ("x" * (run_id_chars_max - 1) + end for end in "ab")
    ids = [line(journal, 3, run_id) for run_id in (one, other)]
    assert 6 == len({*ids[0], *ids[1]})
    assert 120 >= max(len(run_id) for each in ids for run_id in each[1:])
    assert all(each[2].endswith(".r3") for each in ids)


def test_who_is_spoken_to_by_the_name_of_a_line(journal: Journal) -> None:
    """`signal`, `cancel`, `resolve`, `resume`, `recover`, `fork` take the newest; what looks at events is exact."""
    line(journal, 2)
    journal.retry("bill")
    journal.signal("bill", "go")
    assert ["signal.received"] == [record.type for record in journal.events("bill.r3", after=1)]
    assert 3 == journal.head("bill").head_seq
    assert "bill" == journal.replay("bill").run_id
    assert "bill.r3" == journal.recover("bill").run_id
    with pytest.raises(NotAllowed, match=r"run bill\.r3 has nothing to resume: it is queued"):
        journal.resume("bill")
    for old in ("bill~1", "bill.r2"):
        with pytest.raises(AppendRefused, match="the run has ended"):
            journal.signal(old, "go")
    assert journal.claim("bill") is None
    fork = journal.fork("bill")
    assert "bill.r3" == journal.state(fork).status.base["run_id"]  # type: ignore[index]
    assert "bill" == journal.state(journal.fork("bill", 2)).status.base["run_id"]  # type: ignore[index]
    journal.cancel("bill")
    assert ("cancelled", "failed") == (journal.head("bill.r3").status, journal.head("bill").status)
    with pytest.raises(RunCancelled):
        journal.run(fails, run_id="bill")


def test_answers_are_about_exactly_one_run(journal: Journal) -> None:
    """A retry asks the same question under the same id: a yes to the first run isn't one to the second."""

    def agent(run: Any) -> Any:
        return run.ask("pay?", args={"cents": 7})

    with pytest.raises(RunWaiting) as asked:
        journal.run(agent, run_id="bill")
    (question,) = (wait["id"] for wait in asked.value.waits)
    journal.cancel("bill")
    journal.retry("bill")
    with pytest.raises(RunWaiting):
        journal.run(agent, run_id="bill")
    with pytest.raises(NotAllowed):
        journal.approve("bill", question)
    journal.approve("bill.r2", question)
    assert {"cents": 7} == journal.run(agent, run_id="bill")


def test_a_retry_that_was_asked_for_is_not_asked_for_twice(journal: Journal) -> None:
    """Until it begins it is the same one; another one is refused, in words that say why."""
    line(journal, 1)
    assert "bill.r2" == journal.retry("bill") == journal.retry("bill") == journal.retry("bill.r2")
    with pytest.raises(NotNewest, match=r"run bill\.r2 is queued: a restart takes a run that has ended"):
        journal.restart("bill")
    with pytest.raises(NotNewest, match=r"run bill went on as bill\.r2: a retry takes the newest run of a line"):
        journal.retry("bill~1")
    with pytest.raises(NotNewest):
        journal.retry("bill", new_run_id="another")
    journal.claim("bill.r2")
    with pytest.raises(NotNewest, match=r"run bill\.r2 is running"):
        journal.retry("bill")


def test_a_retry_that_was_asked_for_in_between_is_the_same(journal: Journal) -> None:
    """Whoever has looked which run is the newest, and is overtaken then, gets the id of the one who was faster."""
    line(journal, 1)
    faster: list[str] = []

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(journal.store, name)

        def newest(self, scope: str) -> Any:
            found = journal.store.newest(scope)
            if not faster:
                faster.append(journal.retry("bill"))
            return found

    slow: Any = Slow()
    assert "bill.r2" == Journal(slow, by="slow").retry("bill")
    assert ["bill.r2"] == faster


def test_an_older_run_is_not_gone_on_from(journal: Journal) -> None:
    """Whoever names it itself, and not its line, hears which run is the newest; a fork of it is of that run alone."""
    line(journal, 3)
    for name in ("bill~2", "bill.r2"):
        with pytest.raises(NotNewest, match=r"run bill\.r2 went on as bill\.r3"):
            journal.run(fails, run_id=name, retry=True)
    assert "bill.r2" == journal.state(journal.fork("bill~2", 1)).status.base["run_id"]  # type: ignore[index]
    with pytest.raises(RunNotFound):
        journal.fork("bill~9", 1)


def test_an_id_of_ones_own_that_is_taken_is_refused(journal: Journal) -> None:
    """Nobody else's run is taken for the retry."""
    line(journal, 1)
    journal.enqueue("other", run_id="mine")
    with pytest.raises(WrongExpectation):
        journal.retry("bill", new_run_id="mine")


def test_run_goes_on_from_a_failed_run_in_one_word(journal: AsyncJournal) -> None:
    """With `retry`, under threads and asyncio; one that completed returns its output, a new one is begun."""
    failed(journal)
    with pytest.raises(RunFailed):
        journal.run(lambda run: run.id, run_id="bill")
    assert "bill.r2" == journal.run(lambda run: run.id, run_id="bill", retry=True)
    assert "bill.r2" == journal.run(lambda run: run.id, run_id="bill", retry=True)
    assert "new" == journal.run(lambda run: run.id, run_id="new", retry=True)

    async def agent(run: Any) -> str:
        return str(run.id)

    journal.enqueue("agent", run_id="soon")
    journal.cancel("soon")
    with pytest.raises(RunCancelled):
        asyncio.run(journal.run_async(agent, run_id="soon"))
    assert "soon.r2" == asyncio.run(journal.run_async(agent, run_id="soon", retry=True))


def test_a_run_of_another_kind_is_not_run(journal: AsyncJournal) -> None:
    """Nor is its output given to another agent; who names the kind says that it is the same work."""

    def report(run: Any) -> str:
        return "a report"

    def refund(run: Any) -> str:
        return "a refund"

    async def refund_soon(run: Any) -> str:
        return "a refund"

    assert "a report" == journal.run(report, run_id="r")
    for retry in (False, True):
        with pytest.raises(KindDiffers, match="run r is of the kind 'report', and this agent is 'refund'"):
            journal.run(refund, run_id="r", retry=retry)
    with pytest.raises(KindDiffers):
        asyncio.run(journal.run_async(refund_soon, run_id="r"))
    with pytest.raises(KindDiffers):
        journal.run(report, run_id="r", kind="other")
    assert "a report" == journal.run(refund, run_id="r", kind="report") == journal.run(lambda run: 1, run_id="r")


# Who is faster.


def test_what_is_said_while_a_run_goes_on_reaches_the_next_one(journal: Journal) -> None:
    """The run that has ended refuses it, and the one that it went on as gets it; a refusal by that one stays one."""
    line(journal, 1)
    said: list[str] = []

    def say(run_id: str) -> None:
        said.append(run_id)
        if run_id == "bill":
            journal.retry("bill")
        journal.append(run_id, [e.SignalReceived("s", "go", None)])

    on_line(journal.store, "bill", say)
    assert ["bill", "bill.r2"] == said
    assert ["go"] == [name for _, _, name in journal.state("bill").inbox.signals]
    with pytest.raises(NotAllowed):
        on_line(journal.store, "bill~1", say)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Journal]]:
    """Two journals on one file."""
    with ExitStack() as stack:
        yield [stack.enter_context(Journal.open(tmp_path / "runs.db")) for _ in range(2)]


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Do these at the same time; return what each came to, or raised."""
    barrier = threading.Barrier(len(acts))

    def act(each: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return each()
        except AppendRefused as refused:
            return refused

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(act, acts))


def dense(journal: Journal, run_id: str) -> None:
    seqs = [record.seq for record in journal.events(run_id)]
    assert list(range(1, len(seqs) + 1)) == seqs


def test_two_approvers(two: list[Journal]) -> None:
    """The first answer counts, the other one is told so; there is one on record."""

    def agent(run: Any) -> Any:
        return run.ask("pay?", args={"cents": 7})

    for number in range(RACES):
        run_id = f"r{number}"
        with pytest.raises(RunWaiting) as asked:
            two[0].run(agent, run_id=run_id)
        (question,) = (wait["id"] for wait in asked.value.waits)
        outcomes = at_once(
            partial(two[0].approve, run_id, question, {"cents": 8}), partial(two[1].approve, run_id, question)
        )
        assert [True, False] == sorted((isinstance(each, NotAllowed) for each in outcomes), reverse=True)
        assert 1 == len(list(two[0].events(run_id, types=["approval.resolved"])))
        assert {"cents": 7 if outcomes[0] else 8} == two[1].run(agent, run_id=run_id)
        dense(two[0], run_id)


def test_two_retries(two: list[Journal]) -> None:
    """They are one: both get its id, and the line has one run more."""
    for number in range(RACES):
        run_id = f"r{number}"
        failed(two[0], run_id)
        outcomes = at_once(partial(two[0].retry, run_id), partial(two[1].retry, run_id))
        assert [f"{run_id}.r2"] * 2 == outcomes
        assert [run_id, f"{run_id}.r2"] == [head.run_id for head in sorted(two[0].runs(prefix=run_id))]
        dense(two[0], f"{run_id}.r2")


def test_a_cancel_and_a_retry(two: list[Journal]) -> None:
    """Either the cancel finds the retry and ends it, or it comes before it and is refused."""
    for number in range(RACES):
        run_id = f"r{number}"
        failed(two[0], run_id)
        cancelled, retry = at_once(partial(two[0].cancel, run_id), partial(two[1].retry, run_id))
        assert f"{run_id}.r2" == retry
        assert ("queued" if cancelled else "cancelled") == two[0].head(retry).status
        assert "failed" == two[0].head(run_id).status
        dense(two[0], retry)


def test_a_resume_and_a_recovery(two: list[Journal]) -> None:
    """Whoever is first, the agent goes on once, and what it sends is sent once."""
    sent: list[str] = []

    @tool
    def send(to: str) -> None:
        sent.append(to)

    def first(run: Any) -> None:
        with run.step("old"):
            raise KeyboardInterrupt

    def other(run: Any) -> None:
        with run.step("new"):
            pass

    def mended(run: Any) -> str:
        with run.step("old"):
            send(run.id)
        return "done"

    for number in range(RACES):
        run_id = f"r{number}"
        with pytest.raises(KeyboardInterrupt):
            two[0].run(first, run_id=run_id, kind="k")
        with pytest.raises(PlanChanged):
            two[0].run(other, run_id=run_id, kind="k")
        resumed, found = at_once(partial(two[0].resume, run_id), partial(two[1].recover_all, {"k": mended}))
        if not found:
            assert resumed is None
            found = two[1].recover_all({"k": mended})
        assert {run_id: "done"} == found
        assert [run_id] == sent
        dense(two[0], run_id)
        sent.clear()
