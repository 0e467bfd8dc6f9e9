"""Where the engine was broken once, or the store breaks under it: each fault, and what is right instead."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from runjournal import KEY, AsyncJournal, AsyncRun, Journal, Run, RunWaiting, Tx, tool
from runjournal.engine import failures as f
from runjournal.engine.clocks import shape
from runjournal.log.errors import CorruptLog, StoreBusy, StoreFull
from runjournal.log.guard import Signal, take_again
from runjournal.log.memory_transaction import MemoryTransaction
from runjournal.log.sqlite_transaction import SQLiteTransaction
from runjournal.run import SyncDriver

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.fixture
def journal() -> Iterator[Journal]:
    with Journal.open("memory:") as opened:
        yield opened


def types(journal: Journal, prefix: str = "") -> list[str]:
    return [each.type for each in journal.events("r") if each.type.startswith(prefix)]


# ------------------------------------------------------------------------------------------------- requests and clocks


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("it is 2026-11-29", "it is 2026-11-30", True),
        ("it is 12:00:01", "it is 14:30", True),
        (1795953600, 1795953723, True),
        ("at 1795953600.25", "at 1795953700.5", True),
        (1795953600123, 1795953723456, True),
        ("what happened on 2026-01-01?", "what happened on 2026-01-02?", False),
        ("on 2026-99-99", "on 2026-98-98", False),
        ({"customer": 4915110000001}, {"customer": 4915110000002}, False),
        ("order 5000000001", "order 5000000002", False),
        (True, False, False),
        ([1, 2], [1, 3], False),
    ],
)
def test_what_is_a_clock_in_a_request(one: Any, other: Any, alike: bool) -> None:
    """What is near to now may differ in a request that is asked again; another day, an order, a phone number can't."""
    assert alike is (shape(one, NOON) == shape(other, NOON))


def test_answers_stay_with_their_questions(journal: Journal) -> None:
    """Two customers, asked in another order after an interrupt: each gets its own letter."""
    customers, lives = [4915110000001, 4915110000002], [1]

    def ask(request: Any) -> Any:
        return {"text": f"letter for {request['customer']}"}

    def letters(run: Run) -> dict[str, Any]:
        found = {}
        for place, customer in enumerate(customers):
            if place and lives:
                lives.clear()
                raise KeyboardInterrupt
            answer: Any = run.model("m", {"customer": customer}, ask)
            found[str(customer)] = answer["text"]
        return found

    def agent(run: Run) -> Any:
        return run.do("letters", letters, run)

    with pytest.raises(KeyboardInterrupt):
        journal.run(agent, run_id="r")
    customers.reverse()
    assert {str(customer): f"letter for {customer}" for customer in customers} == journal.run(agent, run_id="r")


# ------------------------------------------------------------------------------------------------------ words and hooks


def test_a_late_word_while_the_next_attempt_is_made(journal: Journal) -> None:
    """The first attempt ends late and says so, the second one ends after it: both are one effect, and nothing fails."""
    made, told = [], threading.Event()

    @tool(policy="keyed", timeout_s=0.1)
    def pay(cents: int, *, idempotency_key: str = KEY) -> str:
        made.append(idempotency_key)
        if len(made) == 1:
            assert told.wait(20)
            return "first"
        told.set()
        deadline = time.monotonic() + 20
        while "tool.resolved" not in types(journal) and time.monotonic() < deadline:
            threading.Event().wait(0.001)
        return "second"

    assert journal.run(lambda run: run.do("pay", pay, 5), run_id="r") in ("first", "second")
    assert (2, 1) == (len(made), len(set(made)))
    assert [] == types(journal, "step.failed")


@pytest.mark.parametrize("word", [True, (), ("happened", object()), "happened", ("perhaps", 1), 7])
def test_a_hook_that_says_what_is_no_word_has_said_nothing(journal: Journal, word: Any) -> None:
    """Nobody knows what became of the call, and the agent is told so, with the failure as it was."""

    @tool(reconcile=lambda args, key: word, on_unknown="fail")
    def send() -> None:
        raise OSError("broke")

    def agent(run: Run) -> str:
        with run.step("s"):
            with pytest.raises(f.CallOutcomeUnknown, match="OSError: broke") as unknown:
                send()
            assert {"type": "OSError", "message": "broke"} == unknown.value.original
            return "told"

    assert "told" == journal.run(agent, run_id="r")


@pytest.mark.parametrize("fails", [True, False], ids=["it failed", "it was lost"])
def test_a_hook_that_gives_what_cannot_be_stored_has_said_nothing(fails: bool, journal: Journal) -> None:
    """Its word counts as the log gives it back: live it is a copy, and what can't be stored is no word."""
    lives, words = [0], [object(), {"found": [1]}]

    @tool(reconcile=lambda args, key: ("happened", words[0]), on_unknown="fail" if fails else "ask")
    def send(to: str) -> Any:
        lives[0] += 1
        raise ValueError(to) if fails else KeyboardInterrupt

    def agent(run: Run) -> Any:
        with run.step("s"):
            for _ in range(2):
                try:
                    got = send("ann")
                except f.CallOutcomeUnknown:
                    del words[0]
            return [got, got is words[0]]  # type: ignore[possibly-undefined]  # as a test may

    if fails:
        assert [{"found": [1]}, False] == journal.run(agent, run_id="r")
        return
    with pytest.raises(KeyboardInterrupt):
        journal.run(agent, run_id="r")
    with pytest.raises(f.RunWaiting, match=r"whether send .*happened"):
        journal.run(agent, run_id="r")
    assert 1 == lives[0]


def test_a_hook_is_not_asked_while_the_body_runs(journal: Journal) -> None:
    """It was cut by its time, and goes on in this process: that it hasn't happened yet is no word."""
    acted, go = list[int](), threading.Event()

    def word(args: Any, key: str) -> Any:
        return ("happened", 1) if acted else ("did_not_happen", None)

    @tool(timeout_s=0.05, reconcile=word, on_unknown="fail")
    def send() -> int:
        assert go.wait(20)
        acted.append(1)
        return 1

    def agent(run: Run) -> None:
        with run.step("s"):
            for _ in range(2):
                with pytest.raises(f.CallOutcomeUnknown, match="TimeoutError"):
                    send()
            go.set()

    journal.run(agent, run_id="r")
    deadline = time.monotonic() + 20
    while not types(journal, "tool.resolved") and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    assert ([1], ["tool.resolved"]) == (acted, types(journal, "tool.resolved"))


# ----------------------------------------------------------------------------------------------------------- parallel


@pytest.mark.parametrize("raised", [KeyboardInterrupt, StoreFull])
def test_what_was_never_sent_is_on_record_as_that(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException]
) -> None:
    """Of calls that were asked for together one is interrupted: the others did nothing, and are sent the next time."""
    broken, sent = [True], []

    @tool(read_only=True)
    def look() -> int:
        if raised is KeyboardInterrupt and broken and broken.pop():
            raise KeyboardInterrupt
        return 1

    @tool
    def send() -> int:
        sent.append(1)
        return 2

    append = journal.append

    def once(run_id: Any, events: Any = (), **how: Any) -> Any:
        names = [each.TYPE for each in events]
        if raised is StoreFull and names == ["tool.started"] and events[0].tool == "look" and broken and broken.pop():
            raise StoreFull("full")
        return append(run_id, events, **how)

    monkeypatch.setattr(journal, "append", once)

    def agent(run: Run) -> Any:
        order: list[Any] = [(look, {}), (send, {})] if raised is KeyboardInterrupt else [(send, {}), (look, {})]
        return run.do("s", run.parallel, order)

    with pytest.raises(raised):
        journal.run(agent, run_id="r")
    assert [1, 2] == sorted(journal.run(agent, run_id="r"))
    assert [1] == sent


def test_a_call_of_its_own_key_in_a_thread_and_in_parallel(journal: Journal) -> None:
    """It is in flight once, and both get its one outcome."""
    sent, begun, go = [], threading.Event(), threading.Event()

    @tool(key="order-{order}")
    def ship(order: int) -> str:
        sent.append(order)
        begun.set()
        assert go.wait(20)
        return f"shipped {order}"

    got: list[Any] = []

    def later() -> None:
        threading.Event().wait(0.05)
        go.set()

    def agent(run: Run) -> Any:
        with run.step("s"):
            run.thread(lambda: got.append(ship(7)))
            assert begun.wait(20)
            run.thread(later)
            return run.parallel([(ship, {"order": 7})])

    assert ["shipped 7"] == journal.run(agent, run_id="r")
    assert ([7], ["shipped 7"]) == (sent, got)


# ------------------------------------------------------------------------------------------------------------ the store


@pytest.mark.parametrize("verb", ["effect", "step_ends", "read"])
def test_a_store_that_cannot_be_read_now_ends_no_run(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The run stops there, is released, and goes on later."""

    @tool
    def send() -> int:
        return 1

    def agent(run: Run) -> Any:
        if not run.done("first"):
            with run.step("first"):
                run.message("user", "hello")
        real = getattr(journal.store, verb)

        def once(*args: Any, **how: Any) -> Any:
            monkeypatch.setattr(journal.store, verb, real)
            raise StoreBusy("busy")

        if broken:
            broken.pop()
            monkeypatch.setattr(journal.store, verb, once)
        return run.do("send", lambda: [send(), len(run.state.messages)])

    broken = [True]
    with pytest.raises(StoreBusy):
        journal.run(agent, run_id="r")
    assert ("queued", []) == (journal.head("r").status, [name for name in types(journal) if name.endswith("failed")])
    assert [1, 1] == journal.run(agent, run_id="r")


def test_a_checkpoint_that_cannot_be_kept_fails_no_append(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a warning, whatever the store says; what was committed stands."""

    def broken(*_: Any, **__: Any) -> None:
        raise CorruptLog("r", 1, "a page is damaged")

    for transaction in (MemoryTransaction, SQLiteTransaction):
        monkeypatch.setattr(transaction, "save_checkpoint", broken)
    with pytest.warns(UserWarning, match="couldn't be kept"):
        assert 3 == journal.run(lambda run: run.do("a", lambda: 3), run_id="r")


# --------------------------------------------------------------------------------------------------------------- models


def test_an_answer_that_cannot_be_stored_was_paid_for(journal: Journal) -> None:
    """It is a failure with its usage, and the agent is told."""

    def ask(_: Any) -> Any:
        return {"logprob": float("-inf"), "usage": {"input_tokens": 1000, "output_tokens": 5}}

    def agent(run: Run) -> str:
        with run.step("s"):
            with pytest.raises(f.CallFailed, match="the answer can't be stored"):
                run.model("m", {"q": 1}, ask)
            return "told"

    assert "told" == journal.run(agent, run_id="r")
    assert (1005, 0) == (journal.state("r").costs.tokens(), journal.state("r").calls.models.in_flight)


# -------------------------------------------------------------------------------------------------------------- threads


def test_a_thread_that_a_thread_has_begun_is_joined_too(journal: Journal) -> None:
    """The step's end waits for both, however deep."""
    log = []

    @tool
    def send(x: str) -> str:
        threading.Event().wait(0.02)
        log.append(x)
        return x

    def agent(run: Run) -> None:
        def inner() -> None:
            send("one")
            send("two")

        with run.step("s"):
            run.thread(lambda: run.thread(lambda: run.thread(inner)))

    journal.run(agent, run_id="r")
    assert ["one", "two"] == log
    assert "step.completed" == types(journal, "step.")[-1]


def test_a_thread_that_is_slow_to_start_is_joined_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step ends while a thread is being begun in it: it is joined once it runs."""
    starting, start, ran = threading.Event(), threading.Thread.start, list[bool]()

    def slow(thread: threading.Thread) -> None:
        starting.set()
        threading.Event().wait(0.05)
        start(thread)

    def work() -> None:
        ran.append(True)
        driver.threads.discard(begun)

    driver, begun = SyncDriver(lambda _: None), threading.Thread(target=work)
    monkeypatch.setattr(begun, "start", lambda: slow(begun))
    beginner = threading.Thread(target=lambda: driver.begin(begun))
    beginner.start()
    assert starting.wait(20)
    driver._join()
    beginner.join()
    driver._join()
    assert [True] == ran


@pytest.mark.parametrize("where", ["__enter__", "__exit__"])
def test_an_interrupt_inside_the_code_of_the_lock(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A thread that an interrupt ends inside the standard library's own code leaves no lock behind."""
    driver, sound, struck = SyncDriver(lambda _: None), getattr(threading.Condition, where), list[int]()
    inside = list[int]()

    def strike(condition: threading.Condition, *args: Any) -> Any:
        if not inside:
            return sound(condition, *args)
        if where == "__enter__":
            sound(condition, *args)
        struck.append(1)
        raise SystemExit

    def work() -> None:
        inside.append(1)
        with suppress(SystemExit), driver.lock:
            pass
        inside.clear()

    monkeypatch.setattr(threading.Condition, where, strike)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert driver.lock.acquire(timeout=20)
    driver.lock.release()
    assert [] == struck


def test_an_interrupt_that_ends_the_wait_for_a_lock() -> None:
    """Whoever takes a lock again has it in any case: what the interrupt meets lets go of it once."""

    class Struck:
        """A lock whose first wait an interrupt ends, once it is taken or before."""

        def __init__(self, *, taken: bool) -> None:
            self.count, self.taken, self.struck = 0, taken, False

        def acquire(self) -> None:
            if not self.struck:
                self.struck, self.count = True, int(self.taken)
                raise KeyboardInterrupt
            self.count += 1

        def release(self) -> None:
            if not self.count:
                raise RuntimeError
            self.count -= 1

    for taken in (False, True):
        lock = Struck(taken=taken)
        with pytest.raises(KeyboardInterrupt):
            take_again(lock)  # type: ignore[arg-type]
        assert 1 == lock.count


def test_an_interrupt_while_a_timed_tool_runs(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its body ends in this process, and testifies: nobody is asked, and it isn't sent again."""
    go = threading.Event()

    @tool(timeout_s=30)
    def send() -> int:
        assert go.wait(20)
        return 1

    def agent(run: Run) -> Any:
        return run.do("s", send)

    class Interrupted(Signal):
        def wait(self, timeout_s: float) -> bool:
            if timeout_s == 30:
                raise KeyboardInterrupt
            return super().wait(timeout_s)

    with monkeypatch.context() as patch:
        patch.setattr("runjournal.run.Signal", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.run(agent, run_id="r")
    go.set()
    deadline = time.monotonic() + 20
    while not types(journal, "tool.resolved") and time.monotonic() < deadline:
        go.wait(0.001)
        threading.Event().wait(0.001)
    assert 1 == journal.run(agent, run_id="r")
    assert ["tool.started", "tool.resolved"] == types(journal, "tool.")


# --------------------------------------------------------------------------------------------------------- smaller ones


def test_a_plan_that_is_held_stays_the_plan(journal: Journal) -> None:
    """Also after an append that failed, which folds the run anew."""

    @tool(policy="transactional")
    def book(tx: Tx, item: str) -> None:
        raise ValueError(item)

    def agent(run: Run) -> int:
        plan, turns = run.plan, 0
        while (task := plan.next()) and turns < 5:
            turns += 1
            with run.step("t", repeat=True):
                with pytest.raises(f.CallFailed):
                    book(task["id"])
                plan.done(task)
        return turns

    assert 1 == journal.run(agent, run_id="r", plan=[{"id": "a", "title": "a", "status": "todo"}])


def test_setdefault_hands_out_a_copy(journal: Journal) -> None:
    """What is changed in it in place is found."""

    def agent(run: Run) -> None:
        with run.step("a"):
            run.memory.setdefault("seen", []).append(1)

    with pytest.raises(f.MemoryMutated):
        journal.run(agent, run_id="r")


def test_what_a_failed_step_was_given_counts_no_more(journal: Journal) -> None:
    """It changed a copy and failed before it could assign it: the next step has nothing to do with that."""

    def changes(run: Run) -> None:
        run.memory["seen"].append(2)
        raise ValueError("no")

    def agent(run: Run) -> str:
        run.do("list", lambda: run.memory.update({"seen": [1]}))
        with pytest.raises(f.StepFailed):
            run.do("a", changes, run)
        return run.do("b", lambda: "done")

    assert "done" == journal.run(agent, run_id="r")


def test_a_question_beside_a_call_is_asked_again_at_once() -> None:
    """Of a run that was cancelled while it waited, and is retried: nobody waits for what is being asked."""

    @tool(read_only=True)
    async def fetch() -> int:
        return 1

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            return await asyncio.gather(run.ask("pay", args={"cents": 1}), fetch())

    with AsyncJournal.open("memory:") as journal:
        with pytest.raises(RunWaiting):
            asyncio.run(journal.run_async(agent, run_id="r"))
        journal.cancel("r")

        async def soon() -> None:
            async with asyncio.timeout(10):
                await journal.run_async(agent, run_id=journal.retry("r"))

        with pytest.raises(RunWaiting):
            asyncio.run(soon())


def test_a_step_that_took_a_day(journal: Journal) -> None:
    """What was near to now when it was asked is a clock still, and what wasn't is none."""
    assert shape(f"{NOON.date()}", NOON) == shape(f"{(NOON + timedelta(days=1)).date()}", NOON + timedelta(days=1))


# ---------------------------------------------------------------------------------- a thread that is ended from outside


def stillborn(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the next thread of each of these names end before its first line, as an asynchronous exception may."""
    run, left = threading.Thread.run, list(names)

    def struck(thread: threading.Thread) -> None:
        if any(thread.name.startswith(name) for name in left):
            left.remove(next(name for name in left if thread.name.startswith(name)))
            return
        run(thread)

    monkeypatch.setattr(threading.Thread, "run", struck)


def test_a_body_whose_thread_never_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its loop hears of it: the run is released with the call in flight, and doesn't wait for ever."""
    sent = list[int]()

    @tool(read_only=True)
    def look() -> int:
        sent.append(1)
        return 1

    async def agent(run: AsyncRun) -> int:
        async with run.step("s"):
            found: int = await run.call(look)
        return found

    stillborn(monkeypatch, "runjournal body")
    with AsyncJournal.open(tmp_path / "r.db") as journal:
        with pytest.raises(KeyboardInterrupt, match="before it began"):
            asyncio.run(asyncio.wait_for(journal.run_async(agent, run_id="r"), 60))
        assert "run.requeued" == [record.type for record in journal.events("r")][-1]
        assert [] == sent
        assert 1 == asyncio.run(asyncio.wait_for(journal.run_async(agent, run_id="r"), 60))
    assert [1] == sent


def test_a_thread_of_a_step_that_never_begins(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step's end finds it, and the step fails: what it should have done isn't done."""
    done = list[int]()

    def agent(run: Run) -> None:
        with run.step("s"):
            run.thread(done.append, 1)

    begun = SyncDriver.begin

    def begin(driver: SyncDriver, thread: threading.Thread) -> None:
        thread.name = "of a step"
        begun(driver, thread)

    monkeypatch.setattr(SyncDriver, "begin", begin)
    stillborn(monkeypatch, "of a step")
    with pytest.raises(f.StepFailed, match="ended from outside"):
        journal.run(agent, run_id="r")
    assert [] == done
    assert "step.failed" in types(journal, "step.")
