"""An interrupt in any thread of a run, or in its loop: nobody waits for ever, the run goes on (engine.md A13, X5)."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from runjournal import AsyncJournal, AsyncRun, Run, async_journal, async_run, floor, tasks, tool
from runjournal import run as run_module
from runjournal.engine import block, core
from runjournal.engine.failures import RunBusy, StepFailed, StepOpen
from runjournal.log import group, guard
from runjournal.log.errors import OutcomeUnknown
from runjournal.looking.audit import audit_store
from runjournal.runner import Runner
from runjournal.writing import leases, sharing

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]

MODULES = {
    str(Path(module.__file__))  # type: ignore[arg-type]  # as a test may
    for module in (async_journal, async_run, block, core, floor, group, guard, run_module, sharing, tasks)
}
SENT: list[int] = []


@tool(policy="idempotent")
def act(x: int) -> int:
    """An effect, of plain code; asyncio has it in a thread."""
    SENT.append(x)
    return x


@tool(policy="idempotent")
async def act_soon(x: int) -> int:
    """An effect, of a coroutine."""
    SENT.append(x)
    return x


def plain(run: Run) -> int:
    while not run.done("s"):
        with suppress(StepFailed), run.step("s"):  # a thread that never began fails it
            threads = [run.thread(act, x) for x in range(2)]
            for thread in threads:
                thread.join()
            act(2)
    return 2


async def soon(run: AsyncRun) -> int:
    if run.done("s"):
        return 2
    async with run.step("s"):
        await asyncio.gather(run.call(act_soon, 0), run.call(act, 1), run.call(act_soon, 2))
    return 2


class Strike:
    """Raises KeyboardInterrupt before the opcode `at` that the main thread, or the others, come to in the modules.

    `codes`: in these functions alone.
    """

    def __init__(self, at: int, *, other: bool, codes: frozenset[CodeType] = frozenset()) -> None:
        self.at, self.other, self.codes, self.count = at, other, codes, 0

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        mine = (threading.current_thread() is threading.main_thread()) is not self.other
        chosen = frame.f_code in self.codes if self.codes else frame.f_code.co_filename in MODULES
        if event == "call" and mine and chosen:
            frame.f_trace_opcodes = True
            return self.local
        return None

    def local(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                frame.f_trace = None
                raise KeyboardInterrupt
        return self.local

    @contextmanager
    def on(self) -> Iterator[None]:
        before = sys.gettrace()
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)


def run_plain(journal: AsyncJournal) -> Any:
    return journal.run(plain, run_id="r")


def run_soon(journal: AsyncJournal) -> Any:
    return asyncio.run(journal.run_async(soon, run_id="r"))


def strike(work: Callable[[AsyncJournal], Any], place: Path, at: int, *, other: bool) -> int:
    """Interrupt a run at a point, and go on with it; return how many points there were until then."""
    SENT.clear()
    struck = Strike(at, other=other)
    with AsyncJournal.open(place) as journal:
        try:
            with struck.on():
                work(journal)
        except (KeyboardInterrupt, OutcomeUnknown, StepOpen):  # the last one between the lines of a `step`
            pass
        assert 2 == work(journal)
        assert {0, 1, 2} == set(SENT)
        assert "completed" == journal.replay("r").status.status
    return struck.count


def walk(work: Callable[[AsyncJournal], Any], folder: Path, *, other: bool, points: int, first: int) -> None:
    total = strike(work, folder / "total.db", 0, other=other)
    assert total > 50
    for at in range(first, total + 1, max(1, total // points)):
        try:
            strike(work, folder / f"{at}.db", at, other=other)
        except BaseException as error:
            raise AssertionError(f"interrupted at {at} of {total}") from error


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks whether others live does so soon."""
    for module in (tasks, sharing, run_module):
        monkeypatch.setattr(module, "thread_look_s", 0.02)


CASES = [(work, other) for work in (run_plain, run_soon) for other in (False, True)]


@pytest.mark.parametrize(("work", "other"), CASES)
def test_a_sample_of_points(work: Any, other: bool, tmp_path: Path, hasty: None) -> None:
    """Some points of the main thread, and of those that a run has begun, spread over them."""
    walk(work, tmp_path, other=other, points=6, first=11)


def opened(place: Path) -> AsyncJournal:
    return AsyncJournal.open(place / "runs.db")


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, where: Callable[[], bool] = lambda: True) -> list[int]:
    """Raise KeyboardInterrupt at the first call of a function `where` it should be; return how often it was."""
    found, sound = list[int](), getattr(owner, name)

    def struck(*args: Any, **how: Any) -> Any:
        if not found and where():
            found.append(1)
            raise KeyboardInterrupt
        return sound(*args, **how)

    monkeypatch.setattr(owner, name, struck)
    return found


def in_the_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def test_an_interrupt_before_a_loop_is_called() -> None:
    """Whoever tells a loop of an append is interrupted, and tells it again: then the loop hears."""

    class Work:
        def heard_of(self) -> None:
            """Do nothing."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        bell, waiter = tasks.Bell(loop), tasks.Unbroken[Any]()
        with pytest.MonkeyPatch.context() as patched:
            once(patched, loop, "call_soon_threadsafe")
            with pytest.raises(KeyboardInterrupt):
                bell.tell(waiter, Work())
            bell.tell(waiter, Work())
        await asyncio.wait_for(waiter, 10)

    asyncio.run(main())


def test_a_wake_that_got_lost(monkeypatch: pytest.MonkeyPatch, hasty: None) -> None:
    """Whoever waits for an append has the thread that commits woken again and again."""
    woken = list[int]()

    class Work:
        def heard_of(self) -> None:
            """Do nothing."""

    async def main() -> None:
        bell, waiter = tasks.Bell(asyncio.get_running_loop()), tasks.Unbroken[Any]()

        def wake() -> None:
            woken.append(1)
            if len(woken) == 4:
                bell.tell(waiter, Work())

        bell.want(waiter, wake)
        await asyncio.wait_for(waiter, 10)

    asyncio.run(main())
    assert 4 == len(woken)


def test_who_reads_while_an_append_is_not_woken_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that reads the run's state in the turn in which another one appends doesn't hold up the loop."""
    monkeypatch.setattr(group, "committer_idle_s", 0.01)

    async def read(run: AsyncRun) -> int:
        return len(run.state.messages)

    async def agent(run: AsyncRun) -> Any:
        async with run.step("s"):
            await asyncio.sleep(0.2)  # the thread that commits has ended
            return await asyncio.gather(*(run.call(act_soon, x) for x in range(3)), read(run))

    with opened(tmp_path) as journal:
        assert [0, 1, 2, 0] == asyncio.run(journal.run_async(agent, run_id="r"))


@pytest.mark.parametrize("place", ["decide", "committed"])
def test_an_interrupt_of_the_committer_is_nobodys(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its commit and behind it: nobody hears of it, and what was appended is there once."""

    def elsewhere() -> bool:
        return not in_the_main_thread() and threading.current_thread().name == "runjournal-committer"

    with opened(tmp_path) as journal:
        owner: Any = sharing.SharedAppend if place == "decide" else journal.store
        found = once(monkeypatch, owner, place if place == "decide" else "_committed", elsewhere)
        assert 2 == asyncio.run(journal.run_async(soon, run_id="r"))
        assert [1] == found
        types = [record.type for record in journal.events("r")]
        assert [3, 3] == [types.count(each) for each in ("tool.started", "tool.completed")]
        assert [] == list(audit_store(journal.store))


def test_an_interrupt_breaks_a_loop_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tasks of the run are told of a stop: the loop ends in order, and gives the run back."""
    turns = list[int]()

    def third() -> bool:
        turns.append(1)
        return len(turns) == 3

    async def agent(run: AsyncRun) -> None:
        async with run.step("s"):
            await asyncio.gather(*(run.call(act_soon, x) for x in range(3)))

    with opened(tmp_path) as journal:
        found = once(monkeypatch, floor.Floor, "seize", third)
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(journal.run_async(agent, run_id="r"))
        assert ([1], "queued") == (found, journal.head("r").status)
        asyncio.run(journal.run_async(agent, run_id="r"))


def test_a_loop_that_ends_behind_an_interrupt_fails_no_step(tmp_path: Path) -> None:
    """Its end cancels all tasks, the agent's maybe before that of its caller: the step stays open."""

    async def agent(run: AsyncRun) -> None:
        async with run.step("s"):
            await asyncio.sleep(60)

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def main(journal: AsyncJournal) -> None:
        asyncio.get_running_loop().call_later(0.05, interrupt)
        await journal.run_async(agent, run_id="r")

    for number in range(12):  # a set of tasks has another order each time
        with AsyncJournal.open(tmp_path / f"{number}.db") as journal:
            with pytest.raises(KeyboardInterrupt):
                asyncio.run(main(journal))
            assert "run.requeued" == [record.type for record in journal.events("r")][-1]
            assert "step.failed" not in [record.type for record in journal.events("r")]


def test_a_loop_that_is_closed_has_left_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of it is renewed no more, and whoever claims it next in this process gets it at once."""
    monkeypatch.setattr(leases, "heartbeat_s", 0.01)

    async def waits(run: AsyncRun) -> int:
        async with run.step("s"):
            await asyncio.sleep(60)
        return 1

    async def agent(run: AsyncRun) -> int:
        async with run.step("s"):
            return 1

    with opened(tmp_path) as journal:
        loop = asyncio.new_event_loop()
        left = loop.create_task(journal.run_async(waits, run_id="r", kind="agent"))
        while not journal.ownership.leases.holds("r") or "s" not in str(journal.state("r").steps.open):
            loop.run_until_complete(asyncio.sleep(0.01))
        with pytest.raises(RunBusy):
            asyncio.run(journal.run_async(agent, run_id="r"))
        loop.close()
        beats = list[int]()
        monkeypatch.setattr(journal.ownership.leases, "_extend", lambda *_: beats.append(1))
        threading.Event().wait(0.1)
        assert [] == beats
        assert 1 == asyncio.run(journal.run_async(agent, run_id="r"))
        assert not left.done()
        del left


def test_who_has_the_floor_and_is_gone() -> None:
    """A task that an interrupt has ended with the floor keeps nobody waiting, nor does one that stood in the line."""

    async def main() -> None:
        ground = floor.Floor()

        async def take(*, give: bool) -> None:
            await ground.take(through=True)
            if give:
                ground.give()

        await asyncio.wait([asyncio.create_task(take(give=False))])
        await asyncio.wait_for(ground.take(), 10)
        gone = asyncio.create_task(asyncio.sleep(0))
        await gone
        ground._line.append((gone, tasks.Unbroken()))
        waits = asyncio.create_task(take(give=True))
        await asyncio.sleep(0)
        ground.give()
        assert {waits} == (await asyncio.wait([waits], timeout=10))[0]

    asyncio.run(main())


def test_a_floor_whose_passing_on_was_interrupted() -> None:
    """Who was to get it isn't told: the next one that asks, or is cancelled at the loop's end, sees to it."""

    async def main() -> None:
        ground = floor.Floor()

        async def take() -> None:
            await ground.take(through=True)
            ground.give()

        await ground.take()
        first = asyncio.create_task(take())
        await asyncio.sleep(0)
        ground.holder = first
        first.cancel()
        await asyncio.wait_for(asyncio.wait([first]), 10)

    asyncio.run(main())


@pytest.mark.parametrize(("code", "other"), [(core.Core.drive, False), (run_module.SyncDriver.ring, True)])
def test_a_lock_that_an_interrupt_leaves_at_its_edge(code: Any, other: bool, tmp_path: Path) -> None:
    """Between the body of a `with` and its exit: neither an agent that joins its threads waits, nor they for it."""
    joined = list[bool]()

    def struck(at: int) -> int:
        strike = Strike(at, other=other, codes=frozenset({code.__code__}))

        def agent(run: Run) -> None:
            with run.step("s"), strike.on():
                go = threading.Event()
                threads = [run.thread(lambda x=x: (go.wait(20), act(x))) for x in range(2)]
                try:
                    act(2)
                finally:
                    go.set()
                    for thread in threads:
                        thread.join(10)
                    joined.append(any(thread.is_alive() for thread in threads))

        with AsyncJournal.open(tmp_path / f"{at}.db") as journal, suppress(KeyboardInterrupt, StepFailed):
            journal.run(agent, run_id="r")
        return strike.count

    for at in range(1, struck(0) + 1, 5):  # as many opcodes as there are between a body and its exit
        struck(at)
    assert {False} == set(joined)


def test_an_interrupt_while_a_run_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that claims it is waited for, so that what it did is given back."""
    begun, claimed, claim, unbroken = threading.Event(), list[Any](), Runner.claim, tasks.unbroken

    async def struck(waiter: Any) -> Any:
        if begun.wait(0.05):
            raise KeyboardInterrupt
        return await unbroken(waiter)

    def slow(*args: Any, **how: Any) -> Any:
        begun.set()
        time.sleep(0.1)
        claimed.append(claim(*args, **how))
        return claimed[0]

    with opened(tmp_path) as journal, monkeypatch.context() as patched:
        patched.setattr(Runner, "claim", slow)
        patched.setattr(tasks, "unbroken", struck)
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(journal.run_async(soon, run_id="r"))
        assert (1, "queued") == (len(claimed), journal.head("r").status)


def test_an_interrupt_as_the_loop_is_told_of_a_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's end hears of it all the same, and gives the run back."""
    with opened(tmp_path) as journal:

        def claimed() -> bool:
            head = journal.store.head("r")
            return head is not None and head.status == "running"

        found = once(monkeypatch, tasks.Unbroken, "set_result", claimed)
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(journal.run_async(soon, run_id="r"))
        assert ([1], "queued") == (found, journal.head("r").status)


def test_a_caller_that_is_cancelled_while_an_end_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no cancel that the agent was told of: nothing of it is on record, and the next life waits for none."""
    submit, callers = Runner.submit, list[Any]()

    def cancelling(runner: Any, run_id: str, epoch: int, events: Any, told: Any) -> bool:
        if callers and not callable(events) and "tool.completed" == events[0].TYPE:
            callers.pop().cancel()
        return submit(runner, run_id, epoch, events, told)

    async def main(journal: AsyncJournal) -> None:
        callers.append(asyncio.create_task(journal.run_async(soon, run_id="r")))
        with pytest.raises(asyncio.CancelledError):
            await callers[0]

    monkeypatch.setattr(Runner, "submit", cancelling)
    with opened(tmp_path) as journal:
        asyncio.run(main(journal))
        types = [record.type for record in journal.events("r")]
        assert ("run.requeued", False) == (types[-1], "note.added" in types)


@pytest.mark.crash
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("work", "other"), CASES)
def test_many_points(work: Any, other: bool, tmp_path: Path, hasty: None) -> None:
    """A thousand of them."""
    walk(work, tmp_path, other=other, points=1000, first=1)
