"""Children: runs that a run begins and waits for (engine.md K1 to K12; K13 and later: test_children_lines.py)."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from crashing import Struck, World, everywhere, finish, outside
from model import reference_model
from model.agree import agree
from model.product import Product
from model.rules_children import family

from runjournal import KEY, AsyncJournal, AsyncRun, Journal, Run, RunNotDue, RunWaiting, tool
from runjournal.cli.app import cli
from runjournal.engine import failures as f
from runjournal.engine.driver import finished
from runjournal.importers.transfer import with_family
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.errors import InvalidTransition
from runjournal.log.head import TERMINAL
from runjournal.log.memory import MemoryStore
from runjournal.looking.audit import audit_run

FIVE = range(5)


@tool(policy="keyed")
def send(n: int, *, idempotency_key: str = KEY) -> str:
    return outside.did("send", n, idempotency_key)


@tool(policy="keyed")
async def send_slowly(n: int, *, idempotency_key: str = KEY) -> str:
    return await outside.did_slowly("send", n, idempotency_key)


def child(run: Run) -> Any:
    return run.do("send", lambda: send(run.input))


def fans_out(run: Run) -> Any:
    if not run.done("fan out"):
        with run.step("fan out"):
            run.memory["children"] = [run.spawn(child, input=n) for n in FIVE]
    return run.do("fan in", lambda: [run.wait_child(child_id, child) for child_id in run.memory["children"]])


async def child_async(run: AsyncRun) -> Any:
    return await run.do("send", lambda: send_slowly(run.input))


async def fans_out_async(run: AsyncRun, numbers: Iterable[int] = FIVE) -> Any:
    async def all_of_them() -> Any:
        return await asyncio.gather(*(run.call_child(child_async, input=n) for n in numbers))

    return await run.do("fan out", all_of_them)


# Which child it is, and what is told of it.


FINISHED = ("child.finished",)


def begun(journal: Journal, run_id: str = "p") -> list[str]:
    found = journal.events(run_id, types=("child.spawned",))
    return [x.event.child_run_id for x in found if isinstance(x.event, e.ChildSpawned)]


def told(journal: Journal, run_id: str = "p") -> list[str]:
    return [x.event.status for x in journal.events(run_id, types=FINISHED) if isinstance(x.event, e.ChildFinished)]


def doubles(run: Run) -> Any:
    return run.do("double", lambda: 2 * run.input)


class Down(Exception):
    """What the children here fail of."""


def fails(run: Run) -> Any:
    raise Down(f"{run.input} is down")


def test_one_id_for_each_ask() -> None:
    """Equal asks are told apart by their number, and a step that is tried anew finds the children of the first try."""
    tries = [f.Transient("later"), None]

    def parent(run: Run) -> Any:
        def work() -> Any:
            ids = [run.spawn(doubles, input=n) for n in (1, 1, 2)]
            if (error := tries.pop(0)) is not None:
                raise error
            return [ids, [run.wait_child(each) for each in ids]]

        try:
            return run.do("work", work)
        except f.StepFailed:
            return run.do("work", work)

    with Journal.open("memory:") as journal:
        ids, outputs = journal.run(parent, run_id="p")
        assert [2, 2, 4] == outputs
        assert ids == begun(journal)
        assert 3 == len(set(ids))
        assert all(each.startswith("p.") for each in ids)
        assert ["p"] * 3 == [journal.head(each).parent_run_id for each in ids]


def test_an_id_of_its_own_is_one_child() -> None:
    """With `run_id` a child is one for all of the run; another run of that id, or another input, is refused."""
    refused = list[str]()

    def parent(run: Run) -> Any:
        with run.step("a"):
            assert ["mine", "mine"] == [run.spawn(doubles, input=1, run_id="mine") for _ in range(2)]
            for number, run_id in ((2, "mine"), (1, "taken")):
                with pytest.raises(f.KeyReused) as error:
                    run.spawn(doubles, input=number, run_id=run_id)
                refused.append(str(error.value))
            first = run.wait_child("mine")
        return [first, run.do("b", lambda: run.call_child(doubles, input=1, run_id="mine"))]

    with Journal.open("memory:") as journal:
        journal.enqueue("doubles", 1, run_id="taken")
        assert [2, 2] == journal.run(parent, run_id="p")
        assert ["mine"] == begun(journal)
        assert ["completed"] == told(journal)
    assert "another kind or input" in refused[0]
    assert "hasn't begun it" in refused[1]


def test_only_a_child_is_waited_for() -> None:
    """A run that this one hasn't begun is NotAChild: the parent is released, and mended code goes on."""
    with Journal.open("memory:") as journal:
        journal.enqueue("doubles", 1, run_id="stranger")
        for wrong in ("stranger", "nobody"):
            with pytest.raises(f.NotAChild):
                journal.run(waits_for(wrong), run_id="p", kind="p")
        assert 4 == journal.run(lambda run: run.do("a", lambda: run.call_child(doubles, input=2)), run_id="p")


def waits_for(run_id: str) -> Any:
    return lambda run: run.do("a", lambda: run.wait_child(run_id))


def test_a_child_that_fails_is_told_as_that() -> None:
    """The parent is told what the child has failed of, and may go on; its step fails if it doesn't."""

    def parent(run: Run) -> Any:
        def work() -> Any:
            with pytest.raises(f.ChildFailed) as error:
                run.call_child(fails, input="disk")
            return [error.value.status, error.value.type, error.value.message, error.value.child_run_id]

        return run.do("work", work)

    with Journal.open("memory:") as journal:
        found = journal.run(parent, run_id="p")
        assert ["failed", "Down", "disk is down", *begun(journal)] == found
        with pytest.raises(f.StepFailed, match="Down: net is down"):
            journal.run(lambda run: run.do("work", lambda: run.call_child(fails, input="net")), run_id="q")
        assert "failed" == journal.head("q").status


def test_what_was_told_of_a_child_stays_told_when_it_is_retried() -> None:
    """The attempt that was told of the failure is told it again; a new attempt is told how the child's line stands."""
    stops = [True, False]

    def parent(run: Run) -> Any:
        def work() -> Any:
            child_id = run.spawn(fails, input="disk")
            try:
                return run.wait_child(child_id)
            except f.ChildFailed as failure:
                if stops.pop(0):
                    raise KeyboardInterrupt from failure
                raise

        try:
            return run.do("work", work)
        except f.StepFailed as failure:
            return [str(failure), run.do("work", work)]

    with Journal.open("memory:") as journal:
        with pytest.raises(KeyboardInterrupt):
            journal.run(parent, run_id="p")
        retried = journal.retry(*begun(journal))
        journal.run(lambda run: "mended", run_id=retried)
        assert "p" == journal.head(retried).parent_run_id
        assert ["Down: disk is down", "mended"] == journal.run(parent, run_id="p")
        assert ["failed", "completed"] == told(journal)
        assert [None, retried] == [getattr(x.event, "ended_as", "") for x in journal.events("p", types=FINISHED)]


def test_a_child_that_another_process_runs_is_waited_for_and_never_run_again() -> None:
    """Where nobody knows its agent the parent waits for it; once it has ended its end is read, and it isn't run."""
    calls, dies = list[Any](), [True, False, False, False]

    def parent(run: Run) -> Any:
        def counted(run: Run) -> Any:  # found by no name
            calls.append(run.input)
            return "done"

        child_id = run.do("spawn", lambda: run.spawn(counted, input=1))
        if dies.pop(0):
            raise KeyboardInterrupt
        return run.do("wait", lambda: run.wait_child(child_id))

    with Journal.open("memory:") as journal:
        with pytest.raises(KeyboardInterrupt):
            journal.run(parent, run_id="p")
        with pytest.raises(RunWaiting, match=r"its child p\.[0-9a-f]{12}, which is queued"):
            journal.run(parent, run_id="p")
        (child_id,) = begun(journal)
        with pytest.raises(RunWaiting):
            journal.run(parent, run_id="p")
        assert "done" == journal.run(counts(calls), run_id=child_id)
        assert "done" == journal.run(parent, run_id="p")
    assert [1] == calls


def counts(calls: list[Any]) -> Any:
    def counted(run: Run) -> Any:
        calls.append(run.input)
        return "done"

    return counted


# Its waits are the parent's.


def asks(run: Run) -> Any:
    return run.ask("delete", args={"path": run.input})["path"]


def asks_below(run: Run) -> Any:
    return run.do("below", lambda: run.call_child(asks, input=run.input))


def test_the_question_of_a_grandchild_is_seen_from_the_parent() -> None:
    """The parent's wait names it with the command that answers it, and the answer gets all three going."""

    def parent(run: Run) -> Any:
        return run.do("work", lambda: run.call_child(asks_below, input="/tmp/a"))

    with Journal.open("memory:") as journal:
        with pytest.raises(RunWaiting) as waiting:
            journal.run(parent, run_id="p")
        (question,) = journal.questions("p")
        assert ("delete", {"path": "/tmp/a"}) == (question.action, question.args)
        assert question.run_id not in ("p", *begun(journal))
        (wait,) = waiting.value.waits
        assert ("approval", question.id, question.run_id) == (wait["kind"], wait["id"], wait["run_id"])
        assert any(question.run_id in each and "approve" in each for each in waiting.value.answers)
        with pytest.raises(RunWaiting):
            journal.run(parent, run_id="p")
        journal.approve(question.run_id, question.id)
        assert "/tmp/a" == journal.run(parent, run_id="p")
        assert 1 == len(told(journal))


def test_a_no_in_a_child_is_a_failure_of_the_child() -> None:
    """What a person has refused is the child's question: the parent is told that the child has failed, and of what."""

    def parent(run: Run) -> Any:
        return run.do("work", lambda: run.call_child(asks, input="/"))

    with Journal.open("memory:") as journal:
        with pytest.raises(RunWaiting):
            journal.run(parent, run_id="p")
        (question,) = journal.questions("p")
        journal.reject(question.run_id, question.id, "never")
        with pytest.raises(f.StepFailed, match="rejected: never"):
            journal.run(parent, run_id="p")


def test_children_that_wait_let_the_others_end() -> None:
    """Of children that are waited for together all run until each has ended or waits; then the parent waits for all."""

    async def asking(run: AsyncRun) -> Any:
        return (await run.ask("go on", args={"n": run.input}))["n"]

    async def quick(run: AsyncRun) -> Any:
        return run.input

    async def parent(run: AsyncRun) -> Any:
        async def work() -> Any:
            asked = [run.call_child(asking, input=n) for n in (1, 2)]
            return await asyncio.gather(*asked, run.call_child(quick, input=3))

        return await run.do("work", work)

    async def main() -> None:
        with AsyncJournal.open("memory:") as journal:
            with pytest.raises(RunWaiting) as waiting:
                await journal.run_async(parent, run_id="p")
            assert ["approval"] * 2 == [each["kind"] for each in waiting.value.waits]
            assert ["completed"] == told(journal)
            for question in journal.questions("p"):
                journal.approve(question.run_id, question.id)
            assert [1, 2, 3] == await journal.run_async(parent, run_id="p")
            assert ["completed"] * 3 == told(journal)

    asyncio.run(main())


def test_code_is_checked_against_what_was_told_of_children() -> None:
    """Ends of children are served from the log, and none is run; another child in the place of one is a divergence."""
    ran = list[Any]()

    def parent(run: Run, n: int = 1) -> Any:
        return run.do("work", lambda: [run.call_child(counted, input=n), run.call_child(asks, input="/")])

    def counted(run: Run) -> Any:
        ran.append(run.input)
        return run.input

    with Journal.open("memory:") as journal:
        with pytest.raises(RunWaiting):
            journal.run(parent, run_id="p")
        found = journal.check(parent, "p")
        assert (True, f"it can go on: it waits for run {begun(journal)[1]}") == (found.ok, found.message)
        assert not journal.check(lambda run: parent(run, 2), "p").ok
        journal.approve(*(getattr(journal.questions("p")[0], name) for name in ("run_id", "id")))
        journal.run(parent, run_id="p")
        assert journal.check(parent, "p").ok
        assert "the child counted was sent or asked before" in journal.check(lambda run: parent(run, 2), "p").message
    assert [1] == ran


# Cancelling.


def test_a_cancel_goes_down_and_overwrites_nothing() -> None:
    """Children that haven't ended are cancelled with the parent, and theirs; one that has ended stays as it is."""

    def parent(run: Run) -> Any:
        def work() -> Any:
            run.call_child(doubles, input=1)
            return run.call_child(asks_below, input="/tmp/a")

        return run.do("work", work)

    with Journal.open("memory:") as journal:
        with pytest.raises(RunWaiting):
            journal.run(parent, run_id="p")
        done, waits = begun(journal)
        (below,) = begun(journal, waits)
        journal.cancel("p", "enough")
        assert ["cancelled", "completed", "cancelled", "cancelled"] == [
            journal.head(each).status for each in ("p", done, waits, below)
        ]
        with pytest.raises(f.RunCancelled):
            journal.run(parent, run_id="p")


def test_a_child_that_is_cancelled_is_told_to_the_parent() -> None:
    """The parent goes on, and may go another way."""

    def parent(run: Run) -> Any:
        def work() -> Any:
            with pytest.raises(f.ChildFailed, match="no time") as failure:
                run.call_child(asks, input="/")
            return failure.value.status

        return run.do("work", work)

    with Journal.open("memory:") as journal:
        with pytest.raises(RunWaiting):
            journal.run(parent, run_id="p")
        journal.cancel(begun(journal)[0], "no time")
        assert "cancelled" == journal.run(parent, run_id="p")


# Lines and forks.


def test_a_retry_and_a_restart_of_the_parent_keep_its_children() -> None:
    """They ask for the same children, which have ended, and act no second time."""
    acts, breaks = list[Any](), [True, True, False]

    def acting(run: Run) -> Any:
        acts.append(run.input)
        return run.input

    def parent(run: Run) -> Any:
        def work() -> Any:
            return [run.call_child(acting, input=n) for n in (1, 2)]

        done = run.do("work", work)
        if breaks.pop(0):
            raise Down
        return done

    with Journal.open("memory:") as journal:
        with pytest.raises(Down):
            journal.run(parent, run_id="p")
        restarted = journal.restart("p")
        with pytest.raises(Down):
            journal.run(parent, run_id=restarted)
        assert begun(journal) == begun(journal, restarted)
        assert [1, 2] == journal.run(parent, run_id=journal.retry(restarted))
    assert [1, 2] == acts


def test_a_fork_takes_no_children_along() -> None:
    """It begins children of its own; of those of its base it sees what was recorded, and none that was still to end."""

    def parent(run: Run) -> Any:
        ids = run.do("spawn", lambda: [run.spawn(doubles, input=n) for n in (1, 2)])
        first = run.do("first", lambda: run.wait_child(ids[0]))
        return [first, run.do("second", lambda: run.wait_child(ids[1]))]

    with Journal.open("memory:") as journal:
        assert [2, 4] == journal.run(parent, run_id="p")
        (place,) = [x.seq for x in journal.events("p", types=("step.completed",))][1:2]
        fork = journal.fork("p", at=place)
        with pytest.raises(f.NotAChild):
            journal.run(parent, run_id=fork)
        assert ["p", "p"] == [journal.head(each).parent_run_id for each in begun(journal)]
        early = journal.fork("p", at=2)
        assert [2, 4] == journal.run(parent, run_id=early)
        assert [] == [each for each in begun(journal, early) if each in begun(journal)]


def test_a_child_that_is_left_out_stops_the_step() -> None:
    """Code that begins another child in the place of one on record begins nothing."""
    inputs = [1, 2]

    def parent(run: Run) -> Any:
        def work() -> Any:
            child_id = run.spawn(doubles, input=inputs.pop(0))
            if inputs:
                raise KeyboardInterrupt
            return run.wait_child(child_id)

        return run.do("work", work)

    with Journal.open("memory:") as journal:
        with pytest.raises(KeyboardInterrupt):
            journal.run(parent, run_id="p")
        with pytest.raises(f.StepDiverged, match="the child doubles was sent or asked before"):
            journal.run(parent, run_id="p")
        assert 1 == len(begun(journal))


# Budgets.


def spends(run: Run) -> Any:
    return run.do("ask", lambda: run.model("m", {"n": run.input}, lambda _: answer(run.input)))["text"]


def answer(usd: str) -> Any:
    return {"text": usd, "cost": {"amount": usd, "currency": "USD", "source": "reported"}}


def test_the_budget_of_a_child_is_reserved_and_what_is_left_goes_back() -> None:
    """A child that the run's budget has nothing left for is refused before it is begun, and later it isn't."""

    def parent(run: Run) -> Any:
        def work() -> Any:
            first = run.spawn(spends, input="0.1", budget={"usd": "0.7"})
            with pytest.raises(f.CallFailed, match=r"wants 0\.5 usd, and the budget of the run has 0\.3 left"):
                run.spawn(spends, input="0.2", budget={"usd": "0.5"})
            run.wait_child(first)
            return run.call_child(spends, input="0.3", budget={"usd": "0.9"})

        return run.do("work", work)

    with Journal.open("memory:") as journal:
        assert "0.3" == journal.run(parent, run_id="p", budget={"usd": "1.0"})
        state = journal.state("p")
        assert ("0", "0.4") == (str(state.costs.amount("USD")), state.children.usd)


def test_what_the_line_of_a_child_has_spent_is_counted_once() -> None:
    """A child that has spent something, failed, and was retried: its line's sum counts, and not each end of it."""

    def spends_and_fails(run: Run) -> Any:
        spends(run)
        raise Down("later")

    def parent(run: Run) -> Any:
        try:
            return run.do("work", lambda: run.call_child(spends_and_fails, input="0.1"))
        except f.StepFailed:
            if not retried:
                retried.append(journal.retry(begun(journal)[0]))
            return run.do("work", lambda: run.wait_child(begun(journal)[0], lambda run: paid(run, "0.2")))

    retried = list[str]()
    with Journal.open("memory:") as journal:
        assert "0.2" == journal.run(parent, run_id="p", budget={"usd": "1.0"})
        assert ["failed", "completed"] == told(journal)
        assert "0.3" == journal.state("p").children.usd


def paid(run: Run, usd: str) -> Any:
    return run.do("again", lambda: run.model("m", {"usd": usd}, lambda _: answer(usd)))["text"]


def test_what_children_have_spent_counts_against_the_budget_of_the_parent() -> None:
    """It ends before its next paid call, and the child's spending is counted once."""

    def parent(run: Run) -> Any:
        def work() -> Any:
            return run.call_child(spends, input="0.5")

        run.do("work", work)
        return run.do("more", lambda: run.model("m", {}, lambda _: answer("9")))

    with Journal.open("memory:") as journal, pytest.raises(f.RunFailed, match=r"BudgetExceeded: 0\.5 USD are spent"):
        journal.run(parent, run_id="p", budget={"usd": "0.5"})


# asyncio.


def test_a_child_whose_asker_is_cancelled_is_given_back() -> None:
    """A timeout around it leaves it unended and free; after a crash the parent's second way is taken again."""
    passed = list[str]()

    async def slow(run: AsyncRun) -> Any:
        await asyncio.sleep(3600)

    async def parent(run: AsyncRun) -> Any:
        async def work() -> Any:
            try:
                async with asyncio.timeout(0.05):
                    return await run.call_child(slow)
            except TimeoutError:
                passed.append("second way")
                return "second way"

        return await run.do("work", work)

    async def main() -> None:
        with AsyncJournal.open("memory:") as journal:
            assert "second way" == await journal.run_async(parent, run_id="p")
            assert ["queued"] == [journal.head(each).status for each in begun(journal)]
            assert [] == told(journal)

    asyncio.run(main())


async def slow(run: AsyncRun) -> Any:
    return await run.do("sleep", lambda: asyncio.sleep(1000))


async def gives_up(run: AsyncRun) -> Any:
    async def work() -> Any:
        try:
            async with asyncio.timeout(5):
                return await run.call_child(slow)
        except TimeoutError:
            return await send_slowly(7)

    return await run.do("work", work)


def test_a_second_way_after_a_timeout_around_a_child_survives() -> None:
    """Killed at every boundary it ends as if nobody had killed it: the second way is taken again, and sends once."""
    whole, ends = everywhere(gives_up)
    assert ("completed", "send 7", None) == (whole.status, whole.output, whole.stop)
    for end in ends:
        assert whole.facts == end.facts
        assert {("send", "7"): 1} == end.effects


def test_an_agent_of_another_kind_is_a_mistake() -> None:
    """A coroutine function in a run of threads, and a plain one in an asyncio run."""

    async def main() -> None:
        with AsyncJournal.open("memory:") as journal:

            async def parent(run: AsyncRun) -> Any:
                async with run.step("a"):
                    await run.spawn(doubles)  # type: ignore[arg-type]

            with pytest.raises(f.Mistake, match="no coroutine function"):
                await journal.run_async(parent, run_id="p")

    asyncio.run(main())
    with Journal.open("memory:") as journal, pytest.raises(f.Mistake, match="a coroutine function"):
        journal.run(lambda run: run.do("a", lambda: run.spawn(child_async)), run_id="p")  # type: ignore[arg-type]


def test_children_that_finish_while_the_parent_dies_ask_people_once() -> None:
    """Two children that wait for a person, struck everywhere: each question is asked once, each answer is used."""

    def parent(run: Run) -> Any:
        return run.do("work", lambda: [run.call_child(asks, input=n) for n in ("a", "b")])

    whole, ends = everywhere(parent)
    assert ("completed", ["a", "b"]) == (whole.status, whole.output)
    for end in ends:
        assert whole.facts == end.facts
        asked = [x for x in all_events(end) if isinstance(x, e.ApprovalRequested)]
        assert 2 == len(asked)


def all_events(end: Any) -> list[Any]:
    heads = end.world.store.heads(limit=100)
    return [record.event for head in heads for record in end.world.store.read(head.run_id)]


# What people see of children.


def seen(tmp_path: Path) -> str:
    """Write a store with a parent whose child asks; return its path."""
    path = str(tmp_path / "runs.db")

    def parent(run: Run) -> Any:
        return run.do("work", lambda: [run.call_child(doubles, input=1), run.call_child(asks, input="/tmp/a")])

    with Journal.open(path) as journal, pytest.raises(RunWaiting):
        journal.run(parent, run_id="p")
    return path


def typed(path: str, *args: str) -> Any:
    return CliRunner().invoke(cli, ["--db", path, *args])


def test_what_people_see_of_children(tmp_path: Path) -> None:
    """`ls --tree` has them below their parent; `explain` of the parent names the child's question and its answers."""
    path = seen(tmp_path)
    tree = json.loads(typed(path, "ls", "--tree", "-o", "json").stdout)
    assert [("parent", 0), ("doubles", 1), ("asks", 1)] == [(each["kind"], each["depth"]) for each in tree]
    explained = typed(path, "explain", "p").stdout
    child_id = tree[2]["run_id"]
    assert f"runjournal approve {child_id}" in explained.replace(f"--db {path} ", "")
    assert "a yes or no to 'delete'" in explained
    with Journal.open(path) as journal:
        (question,) = journal.questions("p")
        journal.approve(question.run_id, question.id)
    assert "answered" in typed(path, "explain", "p").stdout


def test_an_export_takes_children_and_bases_along(tmp_path: Path) -> None:
    """Unless it is told not to; the audit of the other store then misses nothing."""
    path = seen(tmp_path)
    with Journal.open(path) as journal:
        journal.cancel("p")
        retried = journal.retry("p")
        family = {head.run_id for head in journal.runs()}
        assert family == set(with_family(journal, [retried]))
    whole, alone = (typed(path, "export", retried, *more).stdout for more in ((), ("--alone",)))
    assert all(f'"{run_id}"' in whole for run_id in family)
    assert not any(f'"{run_id}"' in alone for run_id in family - {retried, "p"})


def test_the_audit_compares_what_was_told_with_how_children_ended(tmp_path: Path) -> None:
    """An end that the child's own log doesn't have is an error; that of a run which does is none."""
    with Journal.open("memory:") as journal:
        journal.run(lambda run: run.do("a", lambda: run.call_child(doubles, input=1)), run_id="p")
        assert [] == list(audit_run(journal.store, "p"))

        def lies(run: Run) -> None:
            with run.step("a"):
                child_id = run.spawn(doubles, input=1)
                finished(run._core.drive(run._core.append(e.ChildFinished(child_id, "completed", 7))))

        journal.run(lies, run_id="q")
        assert ["child_differs"] == [each.code for each in audit_run(journal.store, "q")]


def test_a_child_that_ends_while_its_parent_is_cancelled() -> None:
    """Cancelled from outside at each boundary, parent and child have one end each, and what has ended stays so."""

    def parent(run: Run) -> Any:
        first = run.do("first", lambda: run.call_child(child, input=1))
        return [first, run.do("second", lambda: run.call_child(child, input=2))]

    ends = Counter[tuple[str, ...]]()
    for place in range(1, finish(parent).world.ticks + 1):
        store = MemoryStore(clock=FakeClock())
        world = outside.world = World(frozenset(), store, random.Random(0))
        other = Journal(store)

        def tick(world: World = world, other: Journal = other, place: int = place) -> None:
            world.ticks += 1
            if world.ticks == place and other.store.head("r") is not None:
                with suppress(InvalidTransition):
                    other.cancel("r")

        world.tick = tick  # type: ignore[method-assign]
        journal, tries = Journal(Struck(store, tick)), 0
        while (head := store.head("r")) is None or head.status not in TERMINAL:
            with suppress(f.RunCancelled, f.RunBusy, RunWaiting):
                journal.run(parent, run_id="r")
            tries += 1
            assert tries < 5
        heads = {head.run_id: head.status for head in store.heads(limit=9)}
        ends[tuple(sorted(heads.values()))] += 1
        for run_id, status in heads.items():
            types = [record.type for record in store.read(run_id)]
            assert [f"run.{status}"] == [each for each in types if each in ENDS]
            assert list(range(1, len(types) + 1)) == [record.seq for record in store.read(run_id)]
        assert set(heads.values()) <= {"completed", "cancelled"}
        assert all(1 == n for n in Counter(world.effects).values())
    assert {("completed",) * 3, ("cancelled",) * 2} <= ends.keys()
    assert ("cancelled", "completed") in ends


ENDS = {"run.completed", "run.failed", "run.cancelled"}


def test_what_stops_a_child_stops_its_parent() -> None:
    """A mistake in its code releases both; other code than its log's makes both wait, and mended code goes on."""
    lives = iter(["mistake", "interrupt", "plan", "other", "mended"])

    def breaks(run: Run) -> Any:
        life = next(lives)
        if life == "mistake":
            run.message("user", "outside of any step")
        if life == "interrupt":
            raise KeyboardInterrupt
        with run.step("other" if life == "other" else "plan"):
            if life == "plan":
                raise SystemExit
        return life

    def parent(run: Run) -> Any:
        return run.do("work", lambda: run.call_child(breaks))

    with Journal.open("memory:") as journal:
        for stop in (f.NotInStep, KeyboardInterrupt, SystemExit):
            with pytest.raises(stop):
                journal.run(parent, run_id="p")
            assert ["queued", "queued"] == [journal.head(each).status for each in ("p", *begun(journal))]
        with pytest.raises(RunWaiting, match="the code differs") as waiting:
            journal.run(parent, run_id="p")
        assert begun(journal) == [each["run_id"] for each in waiting.value.waits]
        assert "mended" == journal.run(parent, run_id="p")


# Killed everywhere.


async def two_async(run: AsyncRun) -> Any:
    return await fans_out_async(run, range(2))


@pytest.mark.parametrize(
    ("agent", "count"), [(fans_out, 5), (two_async, 2), pytest.param(fans_out_async, 5, marks=pytest.mark.crash)]
)
def test_five_children_while_the_parent_is_killed_at_every_boundary(agent: Any, count: int) -> None:
    """Whatever boundary of its fan-out and fan-in it dies at, each child acts once and its result is told once."""
    whole, ends = everywhere(agent)
    assert ("completed", [f"send {n}" for n in range(count)], None) == (whole.status, whole.output, whole.stop)
    for end in [whole, *ends]:
        assert whole.facts == end.facts
        assert dict.fromkeys((("send", json.dumps(n)) for n in range(count)), 1) == end.effects
        assert 1 + count == len(end.world.store.heads(limit=100))
        records = list(end.world.store.read("r"))
        told = [x.event for x in records if isinstance(x.event, e.ChildFinished)]
        begun = [x.event for x in records if isinstance(x.event, e.ChildSpawned)]
        assert {x.child_run_id: 1 for x in begun} == Counter(x.child_run_id for x in told)
        assert count == len(begun)


@pytest.mark.parametrize("kind", ["crash", "stall", "stall_long"])
def test_model_and_product_agree_on_children_that_are_struck(kind: str) -> None:
    """Struck at the same boundary, both have the same events, effects and ends; a stalled owner changes nothing."""
    product = Product("memory")
    ticks = ran(reference_model, {}).world.ticks
    for tick in range(1, ticks + 1, 3):
        model = ran(reference_model, {tick: kind})
        agree(model, ran(product, {tick: kind}), *([] if kind == "crash" else ["ticks"]))
        assert (2, ["completed"] * 3) == (len(model.world.effects), told_in(model))
    product.close()


def ran(m: Any, strikes: dict[int, str]) -> Any:
    lab = family(m, strikes)
    lab.serve()
    lab.judge()
    return lab


def told_in(lab: Any) -> list[str]:
    return [event.data["status"] for event in lab.store.log["r"] if event.type == "child.finished"]


def test_a_parent_whose_children_only_pause_is_not_due() -> None:
    """Whoever runs it is told when to come back, the first time too; nobody is asked, so nobody has to answer."""

    def child(run: Run) -> Any:
        run.sleep(for_s=run.input)
        return run.input

    def parent(run: Run) -> Any:
        with run.step("kids"):
            return run.call_child(child, input=900)

    clock = FakeClock()
    journal = Journal(MemoryStore(clock=clock))
    for _ in range(2):
        with pytest.raises(RunNotDue) as later:
            journal.run(parent, run_id="p")
        assert "2026-01-02T03:19:05" == str(later.value.due_at)[:19]
        assert "it waits for a sleep" in str(later.value.cause)
    assert 900 == journal.run(parent, run_id="p", wait_s=1000)


def test_a_parent_is_waiting_if_one_child_asks_and_another_one_pauses() -> None:
    """The time of one doesn't hide the question of the other."""

    def asks(run: Run) -> Any:
        return run.ask("go?")

    def pauses(run: Run) -> Any:
        run.sleep(for_s=900)

    def parent(run: Run) -> Any:
        with run.step("kids"):
            kids = [run.spawn(asks), run.spawn(pauses)]
            threads = [run.thread(run.wait_child, kid) for kid in kids]
            for thread in threads:
                thread.join()

    journal = Journal(MemoryStore(clock=FakeClock()))
    for _ in range(2):
        with pytest.raises(RunWaiting) as waiting:
            journal.run(parent, run_id="p")
        assert "go?" in str(waiting.value)
