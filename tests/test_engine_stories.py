"""What the engine is for: agents that die at the worst moment, and go on as if nothing had been."""

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from model.lab import Lab
from model.product import Product
from model.programs import Program

from runjournal import AsyncJournal, AsyncRun, Journal, tool
from runjournal.engine import failures as f
from runjournal.engine.tools import Tx
from runjournal.log.clock import FakeClock
from runjournal.log.errors import InvalidArgument, OutcomeUnknown, StoreBusy, StoreFull
from runjournal.projections.state import RunState
from runjournal.run import Run

AGENT = Path(__file__).parent / "programs" / "agent_that_dies.py"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "runs.db", clock=FakeClock()) as opened:
        yield opened


def types(journal: Journal, prefix: str = "", run_id: str = "r") -> list[str]:
    return [each.type for each in journal.events(run_id) if each.type.startswith(prefix)]


class Machine:
    """Runs the agent in a process of its own; `ledger` is what the world has seen."""

    def __init__(self, folder: Path, story: str) -> None:
        self.store, self.file, self.story = folder / "runs.db", folder / "ledger", story

    def run(self, where: str = "") -> str:
        command = [sys.executable, str(AGENT), str(self.store), str(self.file), self.story, where]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (9 if where else 0) == done.returncode, done.stderr
        return done.stdout.strip()

    @property
    def ledger(self) -> list[str]:
        return self.file.read_text().split()


# ----------------------------------------------------------------------------------------------------------- the issues


@pytest.mark.requirement("R138", "R139")
def test_a_three_step_plan_whose_second_step_fails_once(journal: Journal) -> None:
    """Its eight events are these; after the failure the newest checkpoint says that step 1 is next and one is done."""
    failures = iter([True, False])

    def summarize() -> str:
        if next(failures):
            raise ValueError("no network")
        return "short"

    seen: list[tuple[int, list[str]]] = []

    def agent(run: Run) -> Any:
        run.do("load_data", list)
        try:
            run.do("summarize", summarize)
        except f.StepFailed:
            newest = next(iter(journal.store.checkpoints("r")))
            steps = RunState.load(json.loads(newest.body.split(b"\n", 1)[1])["state"]).steps
            seen.append((steps.next_index, steps.completed))
            run.do("summarize", summarize)
        return run.do("write_report", lambda: "report")

    assert "report" == journal.run(agent, run_id="r")
    expected = ["started", "completed", "started", "failed", "started", "completed", "started", "completed"]
    assert expected == [each.removeprefix("step.") for each in types(journal, "step.")]
    assert [(1, ["load_data"])] == seen


@pytest.mark.requirement("R163")
def test_killed_after_the_sms_and_before_the_charge(tmp_path: Path) -> None:
    """The rerun skips the SMS and charges once; the world outside has seen each once."""
    machine = Machine(tmp_path, "sms")
    machine.run("step:charge")
    assert ["send_sms"] == machine.ledger
    assert "completed ['did send_sms', 'did charge']" == machine.run()
    assert ["send_sms", "charge"] == machine.ledger
    assert "completed ['did send_sms', 'did charge']" == machine.run()
    assert ["send_sms", "charge"] == machine.ledger


@pytest.mark.requirement("R164", "R62", "R50")
def test_the_pull_request_of_step_23(tmp_path: Path) -> None:
    """The process dies between the effect and its record: one pull request, and the run asks what became of it."""
    machine = Machine(tmp_path, "pr")
    machine.run("effect:open_pr")
    assert "waiting question" == machine.run() == machine.run()
    assert ["open_pr"] == machine.ledger
    with Journal.open(machine.store) as journal:
        (call_id,) = journal.state("r").calls.unresolved()
        journal.resolve("r", call_id, "happened", "did open_pr")
        assert "did open_pr" == journal.run(lambda run: run.do("step 23", open_pr, "Fix"), run_id="r")
    assert ["open_pr"] == machine.ledger


@tool
def open_pr(title: str) -> str:
    """The same tool, in this process: never sent."""
    raise AssertionError(title)


@pytest.mark.requirement("R164")
def test_the_pull_request_with_a_hook_goes_on_alone(tmp_path: Path) -> None:
    """`reconcile` says that it happened: nobody is asked, and nothing is sent again."""
    machine = Machine(tmp_path, "pr-reconcile")
    machine.run("effect:open_pr")
    assert "completed did open_pr" == machine.run()
    assert ["open_pr"] == machine.ledger


@pytest.mark.requirement("R5", "R13")
@pytest.mark.parametrize("where", ["memory", "sqlite"])
def test_context_is_never_doubled(where: str) -> None:
    """Messages, counts and plan of an agent that is killed at 300 random points are those of one that isn't."""
    product = Product(where)

    def agent(run: Any) -> Any:
        while (i := run.memory.get("i", 0)) < 6:
            with run.step("turn", repeat=True):
                run.message("user", f"turn {i}")
                run.memory["count"] = run.memory.get("count", 0) + 1
                run.plan(f"task {i}", "done")
                run.message("assistant", run.call(lab.tools["unsafe"], x=i))
                run.memory["i"] = i + 1
        return run.memory["count"]

    def end(strikes: dict[int, str]) -> bytes:
        nonlocal lab
        lab = Lab(product, Program("line", []), strikes, agent=agent)
        output = lab.serve().output
        assert 6 == len(lab.world.effects)
        return json.dumps([output, lab.store.state("r").context], sort_keys=True).encode()

    lab: Lab
    expected = end({})
    chance = random.Random(7)
    killed = 0
    while killed < (300 if where == "memory" else 60):
        strikes = {chance.randint(1, 160): "crash" for _ in range(chance.randint(1, 6))}
        assert expected == end(strikes)
        killed += lab.crashes
    product.close()


# ------------------------------------------------------------------------------------------------------- transactional


@tool(policy="transactional")
def book(tx: Tx, item: str, fail: bool = False) -> int:
    """A row of the user's own table."""
    tx.execute("INSERT INTO bookings VALUES (?)", (item,))
    if fail:
        raise ValueError("no")
    return len(tx.execute("SELECT item FROM bookings"))


@pytest.fixture
def bookings(journal: Journal) -> Any:
    journal.define("CREATE TABLE bookings (item TEXT PRIMARY KEY)")
    return lambda: [item for (item,) in journal.sql("SELECT item FROM bookings ORDER BY item")]


def test_tables_of_your_own(journal: Journal, bookings: Any) -> None:
    """They are made, changed and dropped, each in a durable transaction of its own."""
    journal.define("CREATE TABLE IF NOT EXISTS bookings (other TEXT)")
    journal.define("CREATE INDEX by_item ON bookings (item)")
    journal.define("CREATE TABLE copies AS SELECT item FROM bookings")
    assert 1 == journal.run(lambda run: run.do("a", book, "x"), run_id="r")
    journal.define("ALTER TABLE bookings ADD COLUMN cents INTEGER")
    assert ([("x", None)], []) == (journal.sql("SELECT * FROM bookings"), journal.sql("SELECT * FROM copies"))
    journal.define("DROP INDEX by_item")
    journal.define("DROP TABLE copies")
    with pytest.raises(InvalidArgument, match="copies"):
        journal.sql("SELECT * FROM copies")


@pytest.mark.parametrize(
    "statement",
    ["DROP TABLE events", "ALTER TABLE runs ADD COLUMN x", "CREATE INDEX i ON events (type)",
     "CREATE TABLE x AS SELECT body FROM events", "DELETE FROM events", "UPDATE sqlite_master SET sql = ''",
     "CREATE TRIGGER t AFTER INSERT ON events BEGIN SELECT 1; END", "CREATE VIEW v AS SELECT 1", "ATTACH 'x' AS x",
     "DROP TRIGGER events_not_deleted", "CREATE TEMP TABLE t (x)", "VACUUM", "COMMIT", "DROP INDEX runs_by_status",
     "CREATE TABLE t (x); DROP TABLE events", "PRAGMA foreign_keys = ON", "nonsense"],
)  # fmt: skip
def test_what_a_definition_may_not_do(journal: Journal, statement: str) -> None:
    """Our tables, triggers, views, settings and control of the transaction are refused, and nothing is left of it."""
    before = journal.sql("SELECT name, sql FROM sqlite_schema ORDER BY name")
    with pytest.raises(InvalidArgument, match=r"^define: "):
        journal.define(statement)
    assert before == journal.sql("SELECT name, sql FROM sqlite_schema ORDER BY name")


def test_a_store_in_memory_has_no_tables() -> None:
    """It says so."""
    with Journal.open("memory:") as journal, pytest.raises(InvalidArgument, match="no tables"):
        journal.define("CREATE TABLE t (x)")


def test_the_effect_of_a_transactional_tool_commits_with_its_outcome(journal: Journal, bookings: Any) -> None:
    """Both are there, and asked for again it is given back."""
    assert [1, 2] == journal.run(lambda run: run.do("a", lambda: [book("x"), book("y")]), run_id="r")
    assert ["x", "y"] == bookings()
    assert ["tool.started", "tool.completed"] * 2 == types(journal, "tool.")


def test_a_transactional_tool_that_raises_leaves_nothing(journal: Journal, bookings: Any) -> None:
    """Its rows are rolled back, its failure is recorded, and the agent may go on."""

    def agent(run: Run) -> Any:
        with run.step("a"):
            with pytest.raises(f.CallFailed, match="ValueError: no"):
                book("x", fail=True)
            return book("y")

    assert 1 == journal.run(agent, run_id="r")
    assert ["y"] == bookings()


@pytest.mark.parametrize(
    "statement",
    ["COMMIT", "ROLLBACK", "BEGIN", "SAVEPOINT a", "PRAGMA synchronous = OFF", "ATTACH 'x.db' AS x", "VACUUM",
     "CREATE TABLE t (x)", "DROP TABLE bookings", "ALTER TABLE bookings ADD y", "DELETE FROM events",
     "SELECT * FROM runs", "UPDATE meta SET value = 1", "INSERT INTO blobs VALUES (1, 2, 3)",
     "SELECT * FROM sqlite_schema", "ANALYZE", "REINDEX", "SELECT load_extension('x')",
     "INSERT INTO bookings VALUES ('z'); COMMIT",
     "CREATE TEMP TABLE t (x)"],
)  # fmt: skip
def test_what_a_transactional_tool_may_not_do(journal: Journal, bookings: Any, statement: str) -> None:
    """Control of the transaction, PRAGMA, ATTACH, DDL and our tables are refused; what else it did is rolled back."""

    @tool(policy="transactional")
    def meddle(tx: Tx) -> None:
        tx.execute("INSERT INTO bookings VALUES ('x')")
        tx.execute(statement)

    with pytest.raises(f.StepFailed, match="InvalidArgument"):
        journal.run(lambda run: run.do("a", meddle), run_id="r")
    assert [] == bookings()
    assert "failed" == journal.state("r").status.status


def test_a_transaction_that_takes_too_long_is_rolled_back(
    journal: Journal, bookings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is interrupted, did nothing, and is tried again within the ask."""
    monkeypatch.setattr("runjournal.log.sqlite_transaction.transaction_s_max", 0.05)
    tries = []

    @tool(policy="transactional")
    def slow(tx: Tx) -> str:
        tx.execute("INSERT INTO bookings VALUES ('x')")
        tries.append(1)
        if len(tries) == 1:
            tx.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n")
        return "done"

    assert "done" == journal.run(lambda run: run.do("a", slow), run_id="r")
    assert (["x"], ["tool.started", "tool.failed", "tool.started", "tool.completed"]) == (
        bookings(),
        types(journal, "tool."),
    )
    failed = next(each.event for each in journal.events("r") if each.type == "tool.failed")
    assert (True, True) == (failed.did_not_happen, failed.again)  # type: ignore[attr-defined]


# --------------------------------------------------------------------------------------------------- smaller promises


def test_an_interrupt_releases_the_run(journal: Journal) -> None:
    """KeyboardInterrupt leaves the step open; the next one goes on, and no recovery is counted."""
    interrupts = iter([True, False])

    def agent(run: Run) -> str:
        with run.step("a"):
            if next(interrupts):
                raise KeyboardInterrupt
            return "done"

    with pytest.raises(KeyboardInterrupt):
        journal.run(agent, run_id="r")
    assert ("queued", 0) == (journal.state("r").status.status, journal.state("r").status.recoveries)
    assert "done" == journal.run(agent, run_id="r")
    assert ["step.started", "step.started", "step.completed"] == types(journal, "step.")


def test_a_result_that_cannot_be_stored_is_unusable(journal: Journal) -> None:
    """It happened: no CallFailed, never sent again; asking again raises the same, and so does the next process."""
    sent = []

    @tool(key="only")
    def odd() -> Any:
        sent.append(1)
        return object()

    def agent(run: Run) -> int:
        for name in "ab":
            with run.step(name), pytest.raises(f.ResultUnusable):
                odd()
        return len(sent)

    assert 1 == journal.run(agent, run_id="r")


def test_a_run_that_says_that_it_has_failed(journal: Journal) -> None:
    """`run.fail` ends it at once; inside a step it is a mistake."""
    with pytest.raises(f.RunFailed, match="no money"):
        journal.run(lambda run: run.fail("no money", type="Poor"), run_id="r")
    with pytest.raises(f.StepOpen):
        journal.run(lambda run: run.do("a", lambda: run.fail("no")), run_id="q")
    assert ("failed", "queued") == (journal.state("r").status.status, journal.state("q").status.status)


def test_a_tool_reads_its_run_and_nothing_else(journal: Journal) -> None:
    """A write from inside a tool is a mistake, wherever it is swallowed; the run is released."""

    def agent(run: Run) -> None:
        @tool(policy="idempotent")
        def nosy(write: bool) -> int:
            if write:
                run.message("user", "hello")
            return len(run.state.messages)

        with run.step("a"):
            assert 0 == nosy(write=False)
            nosy(write=True)

    with pytest.raises(f.ToolUsesRun):
        journal.run(agent, run_id="r")
    assert "queued" == journal.state("r").status.status
    assert not types(journal, "message.")


def test_a_value_changed_in_place_is_found(journal: Journal) -> None:
    """`run.memory` hands out copies: what is changed in one gets lost, so it is a mistake at the step's end."""

    def agent(run: Run) -> None:
        with run.step("a"):
            run.memory["list"] = [1]
        with run.step("b"):
            run.memory["list"].append(2)  # type: ignore[union-attr]

    with pytest.raises(f.MemoryMutated):
        journal.run(agent, run_id="r")
    assert not types(journal, "step.failed")


def test_an_effect_that_the_log_cannot_be_told_of(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again for a while; then whoever runs the agent gets the result, and nothing is sent again."""
    append, sent = journal.append, []

    def full(run_id: Any, events: Any = (), **how: Any) -> Any:
        if [each.TYPE for each in events] == ["tool.completed"]:
            raise StoreFull("full")
        return append(run_id, events, **how)

    @tool
    def pay() -> str:
        sent.append(1)
        return "receipt"

    monkeypatch.setattr(journal, "append", full)
    with pytest.raises(f.EffectNotRecorded, match="pay ended, and the log couldn't be told") as caught:
        journal.run(lambda run: run.do("a", pay), run_id="r")
    assert ("receipt", 1) == (caught.value.result, len(sent))
    assert "running" == journal.state("r").status.status


def test_a_cancel_while_the_log_cannot_be_told_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome is recorded first, and marked: its asker was cancelled, and is cancelled then."""
    failures = iter([True, True, False])
    asked: list[asyncio.Task[Any]] = []
    seen: list[str] = []

    @tool
    async def pay() -> str:
        return "receipt"

    async def agent(run: AsyncRun) -> str:
        async with run.step("a"):
            asked.append(asyncio.create_task(pay()))
            with suppress(asyncio.CancelledError):
                await asked[0]
                seen.append("told")
        return "done"

    class Clock(FakeClock):
        def sleep(self, seconds: float) -> None:
            loop.call_soon_threadsafe(asked[0].cancel)
            super().sleep(seconds)

    with AsyncJournal.open("memory:", clock=Clock()) as journal:
        append = journal.append

        def full(run_id: Any, events: Any = (), **how: Any) -> Any:
            if [each.TYPE for each in events] == ["tool.completed"] and next(failures):
                raise StoreFull("full")
            return append(run_id, events, **how)

        monkeypatch.setattr(journal, "append", full)
        loop = asyncio.new_event_loop()
        try:
            assert "done" == loop.run_until_complete(journal.run_async(agent, run_id="r"))
        finally:
            loop.close()
        expected = ["tool.started", "tool.completed", "note.added"]
        assert expected == [each.type for each in journal.events("r") if each.type.startswith(("tool.", "note."))]
        assert [] == seen


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    "event",
    ["message.appended", "step.started", "tool.started", "step.completed", "run.completed", "model.started"],
)
@pytest.mark.parametrize("error", [StoreBusy, StoreFull, OutcomeUnknown])
def test_a_store_that_cannot_be_written_now_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, kind: str, event: str, error: type[Exception]
) -> None:
    """It is no failure of the agent's: the run stops there, whoever runs it is told, and it goes on later."""
    sent: list[int] = []

    @tool
    def act(x: int) -> int:
        sent.append(x)
        return x

    def agent(run: Run) -> str:
        try:
            if not run.done("a"):
                with run.step("a"):
                    run.message("user", "go")
                    run.memory["x"] = run.model("m", {"q": 1}, lambda _: {"x": 1})["x"]
                    act(1)
        except Exception:  # noqa: BLE001 - swallowing it is of no use
            return "swallowed"
        return "done"

    async def async_agent(run: AsyncRun) -> str:
        try:
            if not run.done("a"):
                async with run.step("a"):
                    run.message("user", "go")
                    run.memory["x"] = (await run.model("m", {"q": 1}, lambda _: {"x": 1}))["x"]
                    await run.call(act, 1)
        except Exception:  # noqa: BLE001 - swallowing it is of no use
            return "swallowed"
        return "done"

    with AsyncJournal.open("memory:") as journal:
        append, broken = journal.append, [True]

        def once(run_id: Any, events: Any = (), **how: Any) -> Any:
            if broken and event in [each.TYPE for each in events]:
                broken.pop()
                raise error("now")
            return append(run_id, events, **how)

        def run() -> Any:
            if kind == "sync":
                return journal.run(agent, run_id="r")
            return asyncio.run(journal.run_async(async_agent, run_id="r"))

        monkeypatch.setattr(journal, "append", once)
        with pytest.raises(error, match="now"):
            run()
        assert ("queued", []) == (journal.head("r").status, [t for t in types(journal) if t.endswith(".failed")])
        assert "done" == run()
        assert [1] == sent


async def _forgets_tools(run: AsyncRun) -> None:
    async with run.step("a"):
        looked_at(1)
        waited_for(2)  # type: ignore[unused-coroutine]  # that is what is tested


async def _forgets_a_do(run: AsyncRun) -> None:
    run.do("first", list)  # type: ignore[unused-coroutine]  # that is what is tested
    async with run.step("a"):
        pass


async def _forgets_the_last(run: AsyncRun) -> None:
    run.do("last", list)  # type: ignore[unused-coroutine]  # that is what is tested


@tool(read_only=True)
def looked_at(x: int) -> int:
    return x


@tool(read_only=True)
async def waited_for(x: int) -> int:
    return x


@pytest.mark.parametrize(
    ("agent", "names"),
    [(_forgets_tools, "looked_at, waited_for"), (_forgets_a_do, "run.do"), (_forgets_the_last, "run.do")],
)
def test_a_forgotten_await_is_a_mistake(agent: Any, names: str) -> None:
    """What was called and never began is found at the end of its step, or of the agent; nothing fails by it."""
    with AsyncJournal.open("memory:") as journal:
        with pytest.raises(f.NotAwaited, match=f"{names} was called and not awaited"):
            asyncio.run(journal.run_async(agent, run_id="r"))
        assert "queued" == journal.head("r").status
        assert "run.completed" not in types(journal)


def test_verbs_that_are_awaited_later_are_not_forgotten() -> None:
    """Both are made, then awaited, one after the other."""

    async def agent(run: AsyncRun) -> list[int]:
        first, second = run.do("a", lambda: 1), run.do("b", lambda: 2)
        return [await first, await second]

    with AsyncJournal.open("memory:") as journal:
        assert [1, 2] == asyncio.run(journal.run_async(agent, run_id="r"))


def test_an_agent_of_the_wrong_kind_is_refused_before_a_run_is_there() -> None:
    """A plain function, and an async generator, are no asyncio agents."""

    async def generator(_: Any) -> Any:
        yield 1

    with AsyncJournal.open("memory:") as journal:
        for agent in (generator, lambda _: 1):
            with pytest.raises(f.Mistake, match="no coroutine function"):
                asyncio.run(journal.run_async(agent, run_id="r"))  # type: ignore[arg-type]  # what is tested
        assert [] == list(journal.runs())


def test_a_task_that_was_just_made_is_not_forgotten() -> None:
    """Its step waits for it."""

    async def agent(run: AsyncRun) -> int:
        async with run.step("a"):
            task = asyncio.create_task(waited_for(3))
        return await task

    with AsyncJournal.open("memory:") as journal:
        assert 3 == asyncio.run(journal.run_async(agent, run_id="r"))
