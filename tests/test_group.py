"""Appends that share a commit: each is judged by itself, all end as their commit does, and nobody waits for ever."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from runjournal import AsyncJournal, AsyncRun, Journal, tool
from runjournal.log import events as e
from runjournal.log import failpoint
from runjournal.log import group as group_module
from runjournal.log.clock import SystemClock
from runjournal.log.errors import CorruptLog, OutcomeUnknown, StaleEpoch, StoreBusy, StorePoisoned
from runjournal.log.limits import group_woken_max, lock_look_first_s, lock_look_last_s, lock_patience_s
from runjournal.log.sqlite import SQLiteStore
from runjournal.log.sqlite_transaction import SQLiteTransaction
from runjournal.log.sqlite_wait import LockWait, pause_s
from runjournal.looking.audit import audit_store
from runjournal.tasks import Bell, Unbroken
from runjournal.testing import generate

COST = e.CostRecorded("1", "USD", "x")  # durable
HOLDER = Path(__file__).parent / "programs" / "hold_lock.py"
RUNS = [f"r{number}" for number in range(6)]


class FailingFile(apsw.VFSFile):
    """A file whose fsync fails when it is told to, what was written since the last one lost or not."""

    def __init__(self, vfs: "Failing", name: Any, flags: list[int]) -> None:
        super().__init__(vfs.beneath, name, flags)
        self.vfs, self.is_wal = vfs, bool(flags[0] & apsw.SQLITE_OPEN_WAL)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - the VFS's word
        if not (self.is_wal and self.vfs.fail and self.vfs.lose):
            super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802 - the VFS's word
        self.vfs.hold.wait(10)
        if self.is_wal and self.vfs.fail:
            raise apsw.IOError("the disk says no")
        super().xSync(flags)


class Failing(apsw.VFS):
    """The default file system of SQLite, whose fsyncs can be made to fail, or to wait."""

    def __init__(self) -> None:
        self.fail = self.lose = False
        self.hold = threading.Event()
        self.hold.set()
        self.beneath = apsw.vfs_names()[0]
        super().__init__("failing", self.beneath, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - the VFS's word
        return FailingFile(self, name, flags)


@pytest.fixture
def disk() -> Iterator[Failing]:
    vfs = Failing()
    yield vfs
    vfs.unregister()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """A journal that owns some runs, each with one durable event of its own behind its claim."""
    with Journal.open(tmp_path / "runs.db") as opened:
        for run_id in RUNS:
            opened.append(run_id, [e.RunQueued("k", None), generate.claim(1)], expect=0)
            opened.append(run_id, [COST], epoch=1)
        yield opened


def commits(journal: Journal) -> list[int]:
    """Count the commits from now on."""
    count, store = [0], journal.store

    def hook(connection: apsw.Connection, name: str, pages: int) -> int:
        count[0] += 1
        return store._on_commit(connection, name, pages)  # type: ignore[attr-defined, no-any-return]

    store._writer.set_wal_hook(hook)  # type: ignore[attr-defined]
    return count


@contextmanager
def locked(journal: Journal) -> Iterator[Callable[[], None]]:
    """Another thread has the write lock until the block ends, or what it yields is called."""
    inside, leave = threading.Event(), threading.Event()

    def hold(_: Any) -> None:
        inside.set()
        leave.wait(10)

    thread = threading.Thread(target=journal.store.transact, args=(hold,), kwargs={"durable": True})
    thread.start()
    inside.wait(10)
    try:
        yield leave.set
    finally:
        leave.set()
        thread.join()


def together(journal: Journal, *works: Callable[[], Any]) -> list[Any]:
    """Do these at the same time, so that they share a commit; return what each came to, errors as values."""
    found: list[Any] = [None] * len(works)

    def work(place: int) -> None:
        try:
            found[place] = works[place]()
        except Exception as error:  # noqa: BLE001 - it is what is looked at
            found[place] = error

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(works))]
    with locked(journal):
        for place, thread in enumerate(threads):
            thread.start()
            until = time.monotonic() + 10
            while len(journal.store.sharing._line) <= place and time.monotonic() < until:  # type: ignore[union-attr]
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    return found


def append(journal: Journal, run_id: str, *events: e.Event, epoch: int = 1) -> Callable[[], Any]:
    return lambda: journal.append(run_id, events or (COST,), epoch=epoch)


def test_appends_at_the_same_time_share_a_commit(journal: Journal) -> None:
    """Those that wait for the lock are committed together, the short way and the long one, each with its records."""
    count = commits(journal)
    start = e.ToolStarted("c", "t", None, policy="unsafe", read_only=False, on_unknown="ask", attempt=1)
    works = [append(journal, run_id) for run_id in RUNS[:4]]
    found = together(journal, *works, append(journal, RUNS[4], start), append(journal, RUNS[5], COST, COST))
    assert [1, 1, 1, 1, 1, 2] == [len(each) for each in found]
    assert [4, 4, 4, 4, 4, 4] == [each[0].seq for each in found]
    positions = sorted(record.position for each in found for record in each)
    assert list(range(positions[0], positions[0] + 7)) == positions
    assert 1 == count[0]
    assert ["call_unresolved"] == [each.code for each in audit_store(journal.store)]
    for run_id in RUNS:
        assert journal.replay(run_id).dump() == journal.ownership.live(run_id).dump()


def test_appends_of_one_run_keep_their_order(journal: Journal) -> None:
    """Each is judged behind those before it in the same commit, whoever makes it."""
    count = commits(journal)
    others = append(journal, "r0", e.SignalReceived("s", "n", 1), epoch=0)
    found = together(journal, append(journal, "r0"), others, append(journal, "r0"), append(journal, "r0"))
    assert ([4, 5, 6, 7], 1) == ([each[0].seq for each in found], count[0])
    assert [] == list(audit_store(journal.store))


def test_a_refusal_ends_only_itself(journal: Journal) -> None:
    """One that may not append is told so; the others are committed, and nothing of it is."""
    found = together(journal, append(journal, "r0"), append(journal, "r1", epoch=7), append(journal, "r2"))
    assert isinstance(found[1], StaleEpoch)
    assert [4, 3, 4] == [journal.head(run_id).head_seq for run_id in RUNS[:3]]
    assert [5] == [record.seq for record in append(journal, "r0")()]
    assert [4] == [record.seq for record in append(journal, "r1")()]


def test_one_that_fails_after_it_wrote(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the transaction with it, and each of the others has one of its own."""
    write, damaged = SQLiteTransaction._write_rows, CorruptLog("r1", 4, "the tables contradict each other")

    def failing(tx: SQLiteTransaction, made: Any) -> None:
        if made.head.run_id == "r1":
            raise damaged
        write(tx, made)

    monkeypatch.setattr(SQLiteTransaction, "_write_rows", failing)
    found = together(journal, append(journal, "r0"), append(journal, "r1", COST, COST), append(journal, "r2"))
    assert damaged is found[1]
    assert [4, 3, 4] == [journal.head(run_id).head_seq for run_id in RUNS[:3]]
    monkeypatch.undo()
    assert [4, 5] == [record.seq for record in append(journal, "r1", COST, COST)()]
    assert [] == list(audit_store(journal.store))


@pytest.mark.parametrize("lose", [False, True], ids=["frames_written", "frames_lost"])
def test_a_commit_that_fails(disk: Failing, journal: Journal, lose: bool) -> None:
    """Each that was in it hears of it by an error of its own, and nobody goes on from what it had folded."""
    disk.fail, disk.lose = True, lose
    found = together(journal, append(journal, "r0"), append(journal, "r1", COST, COST), append(journal, "r2", epoch=7))
    assert [OutcomeUnknown, OutcomeUnknown, StaleEpoch] == [type(each) for each in found]
    assert found[0] is not found[1]
    assert str(found[0]) == str(found[1])
    states = journal.ownership.appender.states
    assert [None, None] == [states.known((run_id, True)) for run_id in ("r0", "r1")]
    assert states.known(("r3", True)) is not None
    with pytest.raises(StorePoisoned):
        append(journal, "r3")()
    disk.fail = disk.lose = False


def test_what_waits_behind_a_commit_that_fails(disk: Failing, journal: Journal) -> None:
    """An append of a run that was in it fails by the same error, one of another run because the store is poisoned."""
    disk.fail = True
    disk.hold.clear()
    found: dict[str, Any] = {}

    def work(name: str, run_id: str) -> None:
        try:
            found[name] = append(journal, run_id)()
        except Exception as error:  # noqa: BLE001 - it is what is looked at
            found[name] = error

    sharing: Any = journal.store.sharing
    threads: list[threading.Thread] = []

    def begin(name: str, run_id: str, ready: Callable[[], bool]) -> None:
        threads.append(threading.Thread(target=work, args=(name, run_id)))
        threads[-1].start()
        until = time.monotonic() + 10
        while not ready() and time.monotonic() < until:
            time.sleep(0.001)

    with locked(journal):
        begin("first", "r0", lambda: len(sharing._line) == 1)
    until = time.monotonic() + 10
    while sharing._line and time.monotonic() < until:
        time.sleep(0.001)
    begin("same run", "r0", lambda: len(sharing._line) == 1)
    begin("another", "r1", lambda: len(sharing._line) == 2)
    disk.hold.set()
    for thread in threads:
        thread.join()
    assert {"first": OutcomeUnknown, "same run": OutcomeUnknown, "another": StorePoisoned} == {
        name: type(each) for name, each in found.items()
    }
    assert found["first"] is not found["same run"]
    disk.fail = False


def test_who_waits_too_long_is_told(tmp_path: Path) -> None:
    """An append that hasn't begun in time was never made."""
    with Journal.open(tmp_path / "runs.db") as journal:
        journal.append("r0", [e.RunQueued("k", None), generate.claim(1)], expect=0)
        journal.store.sharing._busy_wait_s = 0.05  # type: ignore[union-attr]
        with locked(journal), pytest.raises(StoreBusy):
            append(journal, "r0")()
        assert [3] == [record.seq for record in append(journal, "r0")()]


def test_an_interrupt_while_it_waits(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes back an append that hasn't begun: nothing is written, and the line goes on."""

    def struck(*_: Any) -> bool:
        raise KeyboardInterrupt

    with locked(journal), monkeypatch.context() as patch:
        patch.setattr("runjournal.writing.sharing.SharedAppend.heard", struck)
        with pytest.raises(KeyboardInterrupt):
            append(journal, "r0")()
    assert 3 == journal.head("r0").head_seq
    assert [4] == [record.seq for record in append(journal, "r0")()]


def test_the_committer_ends_when_nobody_comes(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ends, and another one begins when it is needed again."""
    monkeypatch.setattr(group_module, "committer_idle_s", 0.001)
    sharing: Any = journal.store.sharing
    for number in range(2):
        found = together(journal, append(journal, "r0"), append(journal, "r1"))
        assert [4 + number] * 2 == [each[0].seq for each in found]
        until = time.monotonic() + 10
        while sharing._thread is not None and time.monotonic() < until:
            time.sleep(0.001)
        assert sharing._thread is None


@tool(policy="keyed")
async def send(x: int, *, idempotency_key: str = "") -> int:
    return x + bool(idempotency_key)


async def begun(journal: AsyncJournal) -> None:
    """Wait until the run has sent something."""
    for _ in range(10_000):
        if "tool.started" in {each.type for each in journal.store.read("r")}:
            return
        await asyncio.sleep(0.001)


async def sends(run: AsyncRun) -> int:
    async with run.step("s"):
        return sum([await run.call(send, x=x) for x in range(3)])


def test_the_loop_goes_on_while_the_disk_works(disk: Failing, tmp_path: Path) -> None:
    """A commit that waits for the disk holds the run that waits for it, and nobody else in the loop."""

    async def main(journal: AsyncJournal) -> tuple[int, Any]:
        going = asyncio.create_task(journal.run_async(sends, run_id="r"))
        await begun(journal)
        disk.hold.clear()
        turns = 0
        for _ in range(50):
            await asyncio.sleep(0.001)
            turns += 1
        assert not going.done()
        disk.hold.set()
        return turns, await going

    with AsyncJournal.open(tmp_path / "runs.db") as journal:
        assert (50, 6) == asyncio.run(main(journal))
        assert [] == list(audit_store(journal.store))


def test_a_cancelled_append_still_happens(disk: Failing, tmp_path: Path) -> None:
    """A cancel that comes while an append is under way comes behind it: the run is let go of, and goes on later."""

    async def main(journal: AsyncJournal) -> None:
        going = asyncio.create_task(journal.run_async(sends, run_id="r"))
        await begun(journal)
        disk.hold.clear()
        await asyncio.sleep(0.02)
        going.cancel()
        await asyncio.sleep(0.02)
        disk.hold.set()
        with pytest.raises(asyncio.CancelledError):
            await going
        assert "queued" == journal.head("r").status
        assert 6 == await journal.run_async(sends, run_id="r")

    with AsyncJournal.open(tmp_path / "runs.db") as journal:
        asyncio.run(main(journal))
        assert [] == list(audit_store(journal.store))


def test_many_runs_share_their_commits(tmp_path: Path) -> None:
    """Runs of one loop are committed together; each is whole, and ends as it would by itself."""

    async def main(journal: AsyncJournal) -> list[Any]:
        return await asyncio.gather(*(journal.run_async(sends, run_id=f"r{number}") for number in range(12)))

    with AsyncJournal.open(tmp_path / "runs.db") as journal:
        count = commits(journal)
        assert [6] * 12 == asyncio.run(main(journal))
        assert count[0] < journal.store.last_position() / 2
        assert [] == list(audit_store(journal.store))


def test_so_many_are_woken_in_a_turn() -> None:
    """Of tasks that wait for one commit a bounded number go on in a turn of the loop; the next ones in the next."""

    class Work:
        def heard_of(self) -> None:
            woken[-1] += 1

    woken = [0]

    async def main() -> None:
        bell, waiters = Bell(asyncio.get_running_loop()), [Unbroken[Any]() for _ in range(3 * group_woken_max)]
        for waiter in waiters:
            bell.tell(waiter, Work())
        while not waiters[-1].done():
            await asyncio.sleep(0)
            woken.append(0)

    asyncio.run(main())
    assert [group_woken_max] * 3 == [each for each in woken if each]


def test_a_durable_append_waits_for_the_disk_in_any_company(journal: Journal, disk_syncs: list[str]) -> None:
    """One commit takes relaxed and durable ones, and then it is durable; no relaxed commit takes a durable one."""
    relaxed = append(journal, "r0", e.NoteAdded("x"))
    assert [4, 4] == [each[0].seq for each in together(journal, append(journal, "r1"), relaxed)]
    assert ["FULL"] == disk_syncs


@pytest.fixture
def disk_syncs(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each commit of a group was made: FULL or NORMAL."""
    found, judge = list[str](), group_module.GroupCommit._judge

    def judging(line: Any, tx: Any, group: Any, *, durable: bool) -> None:
        judge(line, tx, group, durable=durable)
        found.append("FULL" if durable else "NORMAL")

    monkeypatch.setattr(group_module.GroupCommit, "_judge", judging)
    return found


def test_a_relaxed_commit_leaves_a_durable_append_for_the_next(journal: Journal) -> None:
    """What came while the transaction began, and wants the disk, isn't taken into one that doesn't wait for it."""
    line: Any = journal.store.sharing
    first, second = (group_module._Waiting(Work(durable)) for durable in (False, True))
    group = group_module._Group()
    line._line.extend([first, second])
    line._judge(Tx(), group, durable=False)
    assert ([first], [second]) == (group.taken, list(line._line))
    line._line.clear()


class Tx:
    """A transaction in which nothing is written."""

    written, failed = 0, None

    def settled(self, _: str) -> bool:
        return True


class Work:
    """An append that does nothing."""

    run_id = "r0"

    def __init__(self, durable: bool) -> None:
        self.durable = durable

    def decide(self, tx: Any) -> None:
        """Do nothing."""

    def stands(self, _: Any) -> bool:
        return False

    def undo(self) -> None:
        """Do nothing."""

    def over(self, error: BaseException | None) -> None:
        """Do nothing."""


def test_who_has_waited_longer_looks_more_often() -> None:
    """So among processes that wait for the lock nobody starves; SQLite's own wait looks less and less often."""
    pauses = [pause_s(waited_s) for waited_s in (0.0, lock_patience_s / 2, lock_patience_s, 10.0)]
    assert pauses == sorted(pauses, reverse=True)
    assert (lock_look_first_s, lock_look_last_s) == (pauses[0], pauses[-1])


def test_a_wait_is_bounded() -> None:
    """The wait ends at its bound, and begins anew for the next lock."""
    wait = LockWait(0.01)
    looks = 0
    while wait(looks):
        looks += 1
    assert 0 < looks < 1000
    assert wait(0)


def test_a_process_that_is_stopped_with_the_lock(tmp_path: Path) -> None:
    """The others are told that the store is busy, in time, and go on when it is gone; readers never wait for it."""
    path = tmp_path / "runs.db"
    with SQLiteStore(path, clock=SystemClock(), busy_wait_s=0.1) as store, Journal(store) as journal:
        journal.append("r0", [e.RunQueued("k", None), generate.claim(1)], expect=0)
        holder = subprocess.Popen([sys.executable, HOLDER, str(path)], stdout=subprocess.PIPE)
        assert holder.stdout is not None
        assert b"inside" == holder.stdout.readline().strip()
        holder.send_signal(signal.SIGSTOP)
        try:
            for _ in range(2):
                with pytest.raises(StoreBusy):
                    append(journal, "r0")()
            assert 2 == journal.head("r0").head_seq
        finally:
            holder.kill()
            holder.communicate()
        assert [3] == [record.seq for record in append(journal, "r0")()]


@pytest.mark.timeout(60)
def test_no_thread_to_commit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine gives no more threads, whoever waits in the line hears of it, and may try again."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def agent(run: AsyncRun) -> int:
        async with run.step("a"):
            pass
        return 7

    with AsyncJournal.open(tmp_path / "runs.db") as journal:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            with pytest.raises((StoreBusy, RuntimeError), match="thread"):
                asyncio.run(journal.run_async(agent, run_id="r"))
        assert 7 == asyncio.run(journal.run_async(agent, run_id="r"))


def test_an_interrupt_between_two_tasks_that_are_woken_loses_none() -> None:
    """Those that weren't told yet are told in the next turn, and each of them once."""
    told: list[int] = []

    class Work:
        def __init__(self, number: int) -> None:
            self.number = number

        def heard_of(self) -> None:
            told.append(self.number)
            if self.number == 1 and told.count(1) == 1:
                raise KeyboardInterrupt

    async def main() -> None:
        loop = asyncio.get_running_loop()
        bell, waiters = Bell(loop), [Unbroken[Any]() for _ in range(3)]
        bell._rung = True
        for number, waiter in enumerate(waiters):
            bell.tell(waiter, Work(number))
        with pytest.raises(KeyboardInterrupt):
            bell._turn()
        await asyncio.wait_for(asyncio.gather(*waiters), 10)

    asyncio.run(main())
    assert [0, 1, 1, 2] == told


@pytest.mark.timeout(60)
def test_an_interrupt_in_the_committer_is_no_end_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes when a commit is to be told of: whoever waits hears of the commit all the same."""
    tell, struck = group_module._Group.tell, [0]

    def struck_once(group: Any, error: BaseException | None = None) -> None:
        if not struck[0]:
            struck[0] += 1
            group.outcome = (error,)
            raise KeyboardInterrupt
        tell(group, error)

    async def agent(run: AsyncRun) -> int:
        async with run.step("a"):
            pass
        return 7

    monkeypatch.setattr(group_module._Group, "tell", struck_once)
    with AsyncJournal.open(tmp_path / "runs.db") as journal:
        assert 7 == asyncio.run(journal.run_async(agent, run_id="r"))
    assert [1] == struck


@pytest.mark.timeout(60)
def test_a_run_that_is_cancelled_while_an_end_is_committed_marks_no_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who runs it is cancelled while an answer is committed: no asker was, so the next process waits for no cancel."""
    asked = list[Any]()

    def ask(request: Any) -> str:
        asked.append(request)
        return "answer"

    async def agent(run: AsyncRun) -> Any:
        async with run.step("ask"):
            return await run.model("m", {"q": 1}, ask)

    async def main(journal: AsyncJournal) -> None:
        loop, running = asyncio.get_running_loop(), asyncio.current_task()
        assert running is not None

        def cancel(done: threading.Event) -> None:
            running.cancel()
            loop.call_soon(loop.call_soon, loop.call_soon, done.set)

        def hit(point: str, _: Any) -> None:
            if point == "commit.before" and asked:
                monkeypatch.setattr(failpoint, "hit", None)
                done = threading.Event()
                loop.call_soon_threadsafe(cancel, done)
                assert done.wait(10)

        monkeypatch.setattr(failpoint, "hit", hit)
        await journal.run_async(agent, run_id="r")

    with AsyncJournal.open(tmp_path / "runs.db") as journal:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(main(journal))
        assert [] == [record.event for record in journal.events("r", types=("note.added",))]
        assert "answer" == asyncio.run(journal.run_async(agent, run_id="r"))
    assert 1 == len(asked)
