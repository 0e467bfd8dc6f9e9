"""Questions to people: until when, one of what, how bad, edited to what; and who is told that a run waits."""

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from runjournal import (
    AsyncJournal,
    AsyncRun,
    HookWarning,
    Journal,
    Rejected,
    Run,
    RunWaiting,
    Waiting,
    by_command,
    tool,
)
from runjournal.cli.app import cli
from runjournal.log.clock import FakeClock
from runjournal.log.errors import NotAllowed, StoreUnavailable
from runjournal.log.memory import MemoryStore


def waits(journal: Journal, agent: Any, run_id: str = "r") -> list[dict[str, Any]]:
    """What a run waits for that is run now."""
    with pytest.raises(RunWaiting) as waiting:
        journal.run(agent, run_id=run_id)
    return waiting.value.waits


def told_no(run: Run, **how: Any) -> Any:
    """Ask; return the answer, or the words of a no."""
    try:
        return run.ask("pay", args={"cents": 500}, **how)
    except Rejected as no:
        return str(no)


# --- until when ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("default", "comes"),
    [(None, "expired: nobody answered in time"), ({"cents": 0}, {"cents": 0})],
    ids=["a no", "the default"],
)
def test_nobody_answers_for_ten_hours(default: Any, comes: Any) -> None:
    """The run is due when the time is over; two processes that look before that change nothing."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)

    def agent(run: Run) -> Any:
        return told_no(run, expires_in=timedelta(hours=10), default=default)

    waits(Journal(store), agent)
    before = store.head("r")
    for _ in range(2):
        clock.elapsed_s += 17_000
        waits(Journal(store), agent)
        assert before == store.head("r")
    clock.elapsed_s += 3_000
    assert comes == Journal(store).run(agent, run_id="r")
    assert comes == Journal(store).run(agent, run_id="r")


def test_ten_hours_of_waiting_and_two_restarts() -> None:
    """An approved call is made once, and with the args as they were edited."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    paid: list[int] = []

    def agent(run: Run) -> Any:
        allowed = run.ask("pay", args={"cents": 500}, expires_in=11 * 3600)
        return run.do("pay", lambda: paid.append(allowed["cents"]))

    question = waits(Journal(store), agent)[0]["id"]
    for _ in range(2):
        clock.elapsed_s += 18_000
        waits(Journal(store), agent)
    Journal(store).approve("r", question, {"cents": 400})
    for _ in range(2):
        Journal(store).run(agent, run_id="r")
    assert [400] == paid


def test_an_answer_that_comes_too_late_is_refused() -> None:
    """Whoever answers is told until when he could; the run isn't woken, and the time's answer counts."""
    clock = FakeClock()
    journal = Journal(MemoryStore(clock=clock))
    question = waits(journal, lambda run: told_no(run, expires_in=60))[0]
    clock.elapsed_s += 60
    for answer in (journal.approve, journal.reject):
        with pytest.raises(NotAllowed, match=f"could be answered until {question['expires_at']}"):
            answer("r", question["id"])
    assert "expired: nobody answered in time" == journal.run(lambda run: told_no(run, expires_in=60), run_id="r")


@tool(read_only=True, name="asking until")
async def until(what: str) -> str:
    """Work until the test says so."""
    await OVER[what].wait()
    return "worked"


OVER: dict[str, asyncio.Event] = {}


def test_a_question_expires_while_another_task_works() -> None:
    """The task that asked goes on in the same process; nobody has to come back for that."""

    async def agent(run: AsyncRun) -> Any:
        async def asks() -> str:
            try:
                return str(await run.ask("pay", expires_in=0.01))
            except Rejected as no:
                OVER["asked"].set()
                return str(no)

        OVER["asked"] = asyncio.Event()
        async with run.step("both"):
            return list(await asyncio.gather(asks(), until("asked")))

    with AsyncJournal.open("memory:") as journal:
        found = asyncio.run(journal.run_async(agent, run_id="r"))
        assert ["expired: nobody answered in time", "worked"] == found
        assert 1 == sum(record.type == "run.claimed" for record in journal.events("r"))


# --- one of what, edited to what -----------------------------------------------------------------------------------


def test_a_person_chooses() -> None:
    """What is chosen comes back beside the args, edited or not, and after a crash again."""

    def agent(run: Run) -> Any:
        return run.ask("pay how?", args={"cents": 5}, choices=["card", "bank"], risk="high", reason="it is due")

    for edited in (None, {"cents": 4}):
        with Journal.open("memory:") as journal:
            asked = waits(journal, agent)[0]
            assert (("card", "bank"), "high", "it is due") == (asked["choices"], asked["risk"], asked["reason"])
            journal.approve("r", asked["id"], edited, choice="bank")
            assert {"cents": 5, **(edited or {}), "choice": "bank"} == journal.run(agent, run_id="r")


def test_nobody_chooses() -> None:
    """The default of a question with choices is one of them."""
    clock = FakeClock()
    journal = Journal(MemoryStore(clock=clock))

    def agent(run: Run) -> Any:
        return run.ask("pay how?", choices=["card", "bank"], expires_in=60, default="card")

    waits(journal, agent)
    clock.elapsed_s += 60
    assert {"choice": "card"} == journal.run(agent, run_id="r")


SCHEMA = {
    "cents": {"type": "integer", "minimum": 1, "maximum": 500},
    "to": {"enum": ["ada", "bob"]},
    "notes": {"type": ["array", "null"], "maxItems": 1, "items": {"type": "string", "minLength": 1, "maxLength": 3}},
}
ASKED = {"cents": 500, "to": "ada", "notes": None}


@pytest.mark.parametrize(
    ("edited", "says"),
    [
        ({"cents": 501}, "cents: expected at most 500, got 501"),
        ({"cents": 0}, "cents: expected at least 1, got 0"),
        ({"cents": "5"}, "cents: expected integer, got '5'"),
        ({"cents": True}, "cents: expected integer, got True"),
        ({"cents": 1.5}, "cents: expected integer, got 1.5"),
        ({"to": "eve"}, "to: expected one of 'ada', 'bob', got 'eve'"),
        ({"notes": ["a", "b"]}, "notes: expected at most 1 items"),
        ({"notes": [""]}, r"notes\[0\]: expected at least 1 characters"),
        ({"notes": ["long"]}, r"notes\[0\]: expected at most 3 characters"),
        ({"notes": "a"}, "notes: expected array or null, got 'a'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_args_are_edited_to_what_the_schema_allows(edited: dict[str, Any], says: str) -> None:
    """What the agent couldn't use is refused before it wakes the run, and says which of them is wrong."""

    def agent(run: Run) -> Any:
        return run.ask("pay", args=ASKED, schema=SCHEMA)

    with Journal.open("memory:") as journal:
        question = waits(journal, agent)[0]["id"]
        with pytest.raises(ValueError, match=says):
            journal.approve("r", question, ASKED | edited)
        assert "waiting" == journal.head("r").status
        journal.approve("r", question, {"cents": 2.0, "to": "bob", "notes": ["abc"], "cc": "eve"})
        assert {"cents": 2.0, "to": "bob", "notes": ["abc"], "cc": "eve"} == journal.run(agent, run_id="r")


# --- several at once -----------------------------------------------------------------------------------------------


def test_several_at_once_in_a_loop() -> None:
    """A coroutine's `ask_all` is that of threads: each has its answer, a no is a value."""

    async def agent(run: AsyncRun) -> Any:
        async with run.step("all"):
            found = await run.ask_all([{"action": "go?", "args": {"x": x}, "risk": "low"} for x in (1, 2)])
        return [str(each) for each in found]

    with AsyncJournal.open("memory:") as journal:
        with pytest.raises(RunWaiting) as waiting:
            asyncio.run(journal.run_async(agent, run_id="r"))
        first, second = (each["id"] for each in waiting.value.waits)
        journal.reject("r", second, note="not that one")
        with pytest.raises(RunWaiting) as waiting:
            asyncio.run(journal.run_async(agent, run_id="r"))
        assert [first] == [each["id"] for each in waiting.value.waits]
        journal.approve("r", first)
        assert ["{'x': 1}", "rejected: not that one"] == asyncio.run(journal.run_async(agent, run_id="r"))


def test_the_time_of_the_first_wakes_a_run_that_has_asked_several() -> None:
    """The others are waited for further, each until its own time."""
    clock = FakeClock()
    journal = Journal(MemoryStore(clock=clock))

    def agent(run: Run) -> Any:
        asks = [{"action": "go?", "args": {"x": x}, "expires_in": 60 * x, "default": {"x": -x}} for x in (2, 1)]
        with run.step("all"):
            return run.ask_all(asks)

    waits(journal, agent)
    clock.elapsed_s += 61
    assert [2] == [each["args"]["x"] for each in waits(journal, agent)]
    clock.elapsed_s += 61
    assert [{"x": -2}, {"x": -1}] == journal.run(agent, run_id="r")


# --- who is told ---------------------------------------------------------------------------------------------------


def asking(run: Run) -> Any:
    """An agent that waits for a person."""
    return run.ask("pay", args={"cents": 500}, risk="high", expires_in=3600)


def test_people_are_told_once_of_a_wait_that_is_on_record() -> None:
    """The hook finds the wait in the store; who looks again later doesn't tell again."""
    told: list[Waiting] = []

    def hook(waiting: Waiting) -> None:
        assert "waiting" == store.head("r").status  # type: ignore[union-attr]
        told.append(waiting)

    store = MemoryStore(clock=FakeClock())
    for _ in range(3):
        waits(Journal(store, on_waiting=[hook]), asking)
    (waiting,) = told
    question = waiting.questions[0]
    assert ("r", "asking", "pay", "high") == (waiting.run_id, waiting.kind, question.action, question.risk)
    assert waiting.due_at == question.expires_at


def test_people_are_told_again_of_a_later_question() -> None:
    """The note of one wait says nothing of the next one."""
    told: list[str] = []

    def agent(run: Run) -> Any:
        return [run.ask(action) for action in ("a", "b")]

    journal = Journal(
        MemoryStore(clock=FakeClock()), on_waiting=[lambda waiting: told.append(waiting.questions[0].action)]
    )
    journal.approve("r", waits(journal, agent)[0]["id"])
    waits(journal, agent)
    assert ["a", "b"] == told


def test_people_are_not_told_of_a_wait_that_could_not_be_saved() -> None:
    """A store that can't be written has no question for anybody."""
    told: list[Waiting] = []

    class Full(MemoryStore):
        def transact(self, decide: Any, *, durable: bool) -> Any:
            def refusing(tx: Any) -> Any:
                found = decide(tx)
                if full and (head := tx.head("r")) is not None and head.status == "waiting":
                    raise StoreUnavailable("the disk is full")
                return found

            return super().transact(refusing, durable=durable)

    store, full = Full(clock=FakeClock()), [True]
    with pytest.raises(StoreUnavailable):
        Journal(store, on_waiting=[told.append]).run(asking, run_id="r")
    assert [] == told
    full.clear()
    waits(Journal(store, on_waiting=[told.append]), asking)
    assert 1 == len(told)


def test_people_are_told_if_the_process_died_before() -> None:
    """Whoever comes next finds the wait without its note: by running the run, or all that may go on."""
    for again in (
        lambda journal: waits(journal, asking),
        lambda journal: journal.recover_all({"asking": asking}),
        lambda journal: asyncio.run(journal.recover_all_async({})),
    ):
        store, told = MemoryStore(clock=FakeClock()), list[Waiting]()
        waits(Journal(store), asking)  # whose hooks were never reached
        again(AsyncJournal(store, on_waiting=[told.append]))
        assert 1 == len(told)


def test_a_hook_that_fails_is_told_of_and_tried_again() -> None:
    """The run waits as it would without a hook."""

    def broken(_: Waiting) -> None:
        raise OSError("no network")

    store, told = MemoryStore(clock=FakeClock()), list[Waiting]()
    with pytest.warns(HookWarning, match="run r waits, and a hook couldn't tell: OSError: no network"):
        waits(Journal(store, on_waiting=[broken, told.append]), asking)
    assert [] == told
    waits(Journal(store, on_waiting=[told.append]), asking)
    assert 1 == len(told)


def test_people_are_told_of_a_run_that_stands_still() -> None:
    """Code that goes another way than the log is somebody's to mend."""
    store, told = MemoryStore(clock=FakeClock()), list[Waiting]()
    journal = Journal(store, on_waiting=[told.append])

    def agent(run: Run) -> Any:
        with run.step(names.pop()):
            return asking(run)

    names = ["b", "a"]
    waits(journal, agent)
    journal.approve("r", told[0].questions[0].id)
    with pytest.raises(BaseException, match="step a is open"):
        journal.run(agent, run_id="r")
    assert [True, False] == [each.why is None for each in told]


def test_a_command_is_told_on_its_standard_input(tmp_path: Path) -> None:
    """It gets one JSON object; what it can't do is a warning, and told again."""
    script, told = tmp_path / "tell.py", tmp_path / "told.json"
    script.write_text(f"import sys; open({str(told)!r}, 'wb').write(sys.stdin.buffer.read())")
    store = MemoryStore(clock=FakeClock())
    with pytest.warns(HookWarning, match="CalledProcessError"):
        waits(Journal(store, on_waiting=[by_command(sys.executable, "-c", "raise SystemExit(3)")]), asking)
    waits(Journal(store, on_waiting=[by_command(sys.executable, str(script))]), asking)
    found = json.loads(told.read_bytes())
    assert ("r", "pay", {"cents": 500}) == (
        found["run_id"], found["questions"][0]["action"], found["questions"][0]["args"],
    )  # fmt: skip


def test_an_asyncio_agents_people_are_told_beside_the_loop() -> None:
    """A hook may block: the loop goes on meanwhile."""
    told: list[bool] = []

    def hook(_: Waiting) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            told.append(True)

    async def agent(run: AsyncRun) -> Any:
        return await run.ask("pay")

    with AsyncJournal.open("memory:", on_waiting=[hook]) as journal, pytest.raises(RunWaiting):
        asyncio.run(journal.run_async(agent, run_id="r"))
    assert [True] == told


def test_people_are_not_told_again_of_what_they_were_told() -> None:
    """A run that has gone on with something else, and waits for the same answer again, has no news for them."""
    clock, told = FakeClock(), list[Waiting]()
    journal = Journal(MemoryStore(clock=clock), on_waiting=[told.append])

    def agent(run: Run) -> Any:
        with run.step("all"):
            return run.ask_all([{"action": "a", "expires_in": 60, "default": {}}, {"action": "b"}])

    waits(journal, agent)
    clock.elapsed_s += 61
    assert ["b"] == [each["action"] for each in waits(journal, agent)]
    assert [["a", "b"]] == [[each.action for each in waiting.questions] for waiting in told]


# --- the command line ----------------------------------------------------------------------------------------------


def test_the_command_line_asks_and_answers_in_full(tmp_path: Path) -> None:
    """Each choice is a line to type; the risk, the time and its end are told; the answers are in the log."""

    def agent(run: Run) -> Any:
        return run.ask(
            "pay", args={"cents": 5}, choices=["by card", "bank"], risk="high", expires_in=3600, default="bank",
            schema={"cents": {"maximum": 5}},
        )  # fmt: skip

    def typed(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(cli, ["--db", str(store), *words], catch_exceptions=False)
        assert code == done.exit_code, done.output
        return done.output

    store = tmp_path / "runs.db"
    with Journal.open(store) as journal:
        question = waits(journal, agent)[0]["id"]
    shown = typed("questions")
    for part in (
        "risk: high", "then it is choice bank", "args may be edited to", f"approve r {question} --choice 'by card'",
        f"approve r {question} --choice bank", f"reject r {question}", f"edit r {question}",
    ):  # fmt: skip
        assert part in shown
    assert "--choice 'by card'" in typed("explain", "r")
    assert "expected one of" in typed("approve", "r", question, code=2)
    assert "cents: expected at most 5" in typed(
        "edit", "r", question, "--args", '{"cents": 6}', "--choice", "bank", code=2
    )
    typed("approve", "r", question, "--choice", "by card", "--reason", "seen", "--by", "ada")
    assert f"{question} approved by card: seen" in typed("show", "r", "--events")
    with Journal.open(store) as journal:
        assert "by card" == journal.run(agent, run_id="r")["choice"]
