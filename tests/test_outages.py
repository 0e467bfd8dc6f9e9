"""A call that fails for now is tried again later: engine.md F20 to F24."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from urllib.error import URLError

import pytest

from runjournal import AsyncJournal, AsyncRun, CallFailed, Journal, Retry, Run, RunNotDue, tool
from runjournal.engine.failures import Transient, is_transient
from runjournal.engine.retry import asked_pause_s
from runjournal.log import events as e
from runjournal.log.clock import FakeClock, parse_timestamp
from runjournal.log.errors import InvalidArgument

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Busy(Exception):
    """What a client raises: a status, and what the service asks for."""

    def __init__(self, status: int, after: Any = None) -> None:
        super().__init__(f"status {status}")
        self.status_code = status
        if after is not None:
            self.retry_after = after


class Service:
    """A service that is out for so many seconds; `after` is what it asks of whoever comes too early."""

    def __init__(self, clock: FakeClock, out_s: float, after: Callable[[int], Any] = lambda _: None) -> None:
        self.clock, self.after = clock, after
        self.until = clock.now() + timedelta(seconds=out_s)
        self.asked: list[datetime] = []
        self.answered: list[Any] = []

    def __call__(self, request: Any) -> Any:
        now = self.clock.now()
        self.asked.append(now)
        if now < self.until:
            raise Busy(529, self.after(len(self.asked)))
        self.answered.append(request)
        return {"answer": request}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def journal(clock: FakeClock) -> Iterator[Journal]:
    with Journal.open("memory:", clock=clock, retry=Retry()) as journal:
        yield journal


def through(journal: Journal, agent: Any, run_id: str = "r") -> Any:
    """Run it until it has ended, each time in another call of `run`, whenever it is due."""
    for _ in range(100):
        try:
            return journal.run(agent, run_id=run_id)
        except RunNotDue as not_due:
            left = parse_timestamp(not_due.due_at) - journal.clock.now()
            journal.clock.sleep(max(0.0, left.total_seconds()))
    raise AssertionError("it hasn't ended")


def test_ten_minutes_of_outage_end_no_run(journal: Journal, clock: FakeClock) -> None:
    """It completes, has asked at most twelve times, and what was paid before the outage is paid once."""
    before, out = Service(clock, 0), Service(clock, 600)

    def agent(run: Run) -> Any:
        with run.step("work"):
            first = run.model("m", "one", before)
            return run.model("m", ["two", first], out)

    assert {"answer": ["two", {"answer": "one"}]} == through(journal, agent)
    assert len(out.asked) <= 12
    assert (1, 1) == (len(before.answered), len(out.answered))
    types = [record.type for record in journal.events("r")]
    assert "step.failed" not in types
    assert 1 == types.count("run.queued")


def test_no_call_asks_more_than_twelve_times_in_ten_minutes() -> None:
    """The pauses of any call, drawn as they may be, are so long together that the thirteenth attempt comes later."""
    retry = Retry()
    for n in range(3000):
        pauses = [retry.pause_s(f"call {n}", tried, tried) for tried in range(1, 13)]
        assert sum(pauses) > 600
        assert all(0 <= pause <= 300 for pause in pauses)
    drawn = [retry.pause_s(f"call {n}", 3, 3) / 9 for n in range(3000)]
    assert 0.48 < sum(drawn) / len(drawn) < 0.52
    assert min(drawn) < 0.01
    assert max(drawn) > 0.99


def test_whoever_runs_it_is_told_when_it_goes_on_and_why(journal: Journal, clock: FakeClock) -> None:
    """The text names the call, its error and the time; the process is free, and the step is open."""
    out = Service(clock, 600, lambda _: 120)

    def agent(run: Run) -> Any:
        return run.do("ask", lambda: run.model("m", "q", out))

    with pytest.raises(RunNotDue, match=r"m, whose attempt 1 failed \(Busy: status 529\)") as raised:
        journal.run(agent, run_id="r")
    assert 1 == len(out.asked)
    assert parse_timestamp(raised.value.due_at) - out.asked[0] >= timedelta(seconds=120)
    head = journal.head("r")
    assert ("waiting", None) == (head.status, head.owner)
    assert journal.state("r").steps.open is not None
    assert [] == journal.questions()
    with pytest.raises(RunNotDue):
        journal.run(agent, run_id="r")
    assert 1 == len(out.asked)


def test_a_service_is_never_asked_before_it_wants_to_be(journal: Journal, clock: FakeClock) -> None:
    """Retry-After counts where it is longer than the pause: as seconds, as a span, and as a time."""
    told = [20, timedelta(seconds=50), clock.now() + timedelta(seconds=400)]
    out = Service(clock, 300, lambda asked: told[asked - 1])

    def agent(run: Run) -> Any:
        return run.do("ask", lambda: run.model("m", "q", out))

    through(journal, agent)
    first, second, third, fourth = out.asked
    assert second - first >= timedelta(seconds=20)
    assert third - second >= timedelta(seconds=50)
    assert fourth >= told[2]


def test_the_time_is_on_record(journal: Journal, clock: FakeClock) -> None:
    """Each failure that is tried again says when; a process that finds the log asks no earlier."""
    out = Service(clock, 300, lambda _: 100)

    def agent(run: Run) -> Any:
        return run.do("ask", lambda: run.model("m", "q", out))

    through(journal, agent)
    failed = [record.event for record in journal.events("r") if record.type == "model.failed"]
    assert all(isinstance(event, e.ModelFailed) and event.again and event.retry_at for event in failed)
    assert 1 == sum(record.type == "model.completed" for record in journal.events("r"))


def test_when_the_attempts_are_used_up_the_agent_is_told(clock: FakeClock) -> None:
    """It hears of a failure that may pass, as it always did; the next round tries it again."""
    with Journal.open("memory:", clock=clock, retry=Retry(attempts=4, first_s=0.5)) as journal:
        out, told = Service(clock, 1e6), []

        def agent(run: Run) -> Any:
            with run.step("ask"):
                try:
                    return run.model("m", "q", out)
                except CallFailed as failure:
                    told.append(failure.transient)
                    raise

        with pytest.raises(Exception, match="529"):
            journal.run(agent, run_id="r")
        assert [True] == told
        assert 4 == len(out.asked)
        assert "scheduled_retry" == journal.head("r").status


def test_nothing_is_tried_beyond_the_time_for_it(clock: FakeClock) -> None:
    """What the service asks for lies behind `within_s`, so the agent is told at once."""
    with Journal.open("memory:", clock=clock, retry=Retry(within_s=60)) as journal:
        out = Service(clock, 1e6, lambda _: 3600)

        def agent(run: Run) -> str:
            with run.step("ask"):
                try:
                    run.model("m", "q", out)
                except CallFailed:
                    return "plan b"
            return "answered"

        assert "plan b" == journal.run(agent, run_id="r")
        assert 1 == len(out.asked)


def test_a_refused_answer_is_asked_for_again_at_once_and_not_often(journal: Journal, clock: FakeClock) -> None:
    """It isn't an outage, and each answer is paid for."""
    answers = Service(clock, 0)

    def agent(run: Run) -> str:
        with run.step("ask"):
            try:
                run.model("m", "q", answers, check=lambda _: False)
            except CallFailed:
                return "told"
        return "answered"

    before = clock.now()
    assert "told" == journal.run(agent, run_id="r")
    assert 3 == len(answers.answered)
    assert clock.now() - before < timedelta(seconds=1)


def test_a_tool_says_for_itself_how_it_is_tried_again(journal: Journal, clock: FakeClock) -> None:
    """Its own `retry` counts before the journal's; so does that of a call of a model."""
    asked = {"tool": 0, "model": 0}

    @tool(read_only=True, retry=Retry(attempts=2, first_s=0))
    def look() -> None:
        asked["tool"] += 1
        raise Transient("no")

    def think(_: Any) -> None:
        asked["model"] += 1
        raise Transient("no")

    def agent(run: Run) -> str:
        with run.step("ask"):
            with pytest.raises(CallFailed):
                look()
            with pytest.raises(CallFailed):
                run.model("m", "q", think, retry=Retry(attempts=5, first_s=0))
        return "told"

    assert "told" == journal.run(agent, run_id="r")
    assert {"tool": 2, "model": 5} == asked


def test_calls_in_parallel_end_before_the_run_waits_for_a_time(journal: Journal, clock: FakeClock) -> None:
    """What can go on does; then one wait is for the rest, until the first of them is due."""
    out = Service(clock, 50, lambda _: 60)
    sent: list[int] = []

    @tool(read_only=True)
    def ask(n: int) -> Any:
        sent.append(n)
        return out(n) if n < 2 else n

    def agent(run: Run) -> Any:
        return run.do("all", lambda: run.parallel([(ask, {"n": n}) for n in range(4)]))

    with pytest.raises(RunNotDue):
        journal.run(agent, run_id="r")
    assert [0, 1, 2, 3] == sent
    waiting = journal.state("r").status.waits
    assert ["timer", "timer"] == [wait["kind"] for wait in waiting]
    assert [{"answer": 0}, {"answer": 1}, 2, 3] == through(journal, agent)
    assert [0, 1, 2, 3, 0, 1] == sent


def test_tasks_go_on_while_one_of_them_waits_for_a_time(clock: FakeClock) -> None:
    """In asyncio the others of the step end first; then the run waits, and each answer is paid once."""
    with AsyncJournal.open("memory:", clock=clock, retry=Retry()) as journal:
        out, well = Service(clock, 100, lambda _: 120), Service(clock, 0)

        async def agent(run: AsyncRun) -> Any:
            async with run.step("both"):
                return list(await asyncio.gather(run.model("m", "a", out), two(run)))

        async def two(run: AsyncRun) -> Any:
            return [await run.model("m", "b", well), await run.model("m", "c", well)]

        with pytest.raises(RunNotDue):
            asyncio.run(journal.run_async(agent, run_id="r"))
        assert ["b", "c"] == well.answered
        output = asyncio.run(journal.run_async(agent, run_id="r", wait_s=1000))
        assert [{"answer": "a"}, [{"answer": "b"}, {"answer": "c"}]] == output
        assert (1, 2) == (len(out.answered), len(well.answered))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"retry_after": 3}, 3.0),
        ({"retry_after": timedelta(minutes=1)}, 60.0),
        ({"retry_after": NOW + timedelta(seconds=9)}, 9.0),
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": True}, None),
        ({"retry_after": -5}, 0.0),
        ({"retry_after": float("nan")}, None),
        ({"retry_after": 1e300}, 366 * 86400.0),
        ({"headers": {"Retry-After": "120"}}, 120.0),
        ({"headers": {"retry-after": format_datetime(NOW + timedelta(seconds=30), usegmt=True)}}, 30.0),
        ({"headers": {"retry-after-ms": "1500", "retry-after": "9"}}, 1.5),
        ({"headers": {"Retry-After": "soon"}}, None),
        ({"headers": 5}, None),
        ({}, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("where", ["error", "response"])
def test_what_a_service_asks_for(error: dict[str, Any], expected: float | None, where: str) -> None:
    """It is read where the clients that people use have it, and nothing that it may be breaks anything."""
    raised = Exception("no")
    holder = raised if where == "error" or "retry_after" in error else type("Response", (), {})()
    for name, value in error.items():
        setattr(holder, name, value)
    if holder is not raised:
        raised.response = holder  # type: ignore[attr-defined]
    assert expected == asked_pause_s(ExceptionGroup("all", [raised]), NOW)


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": 1.5},
        {"attempts": True},
        {"first_s": -1},
        {"factor": 0.5},
        {"longest_s": float("inf")},
        {"within_s": "an hour"},
    ],
    ids=str,
)
def test_a_retry_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    """The text names the field, what is expected and what came."""
    with pytest.raises(InvalidArgument, match=f"Retry: {next(iter(wrong))}: expected"):
        Retry(**wrong)
    with pytest.raises(InvalidArgument, match="expected a Retry"):
        Journal.open("memory:", retry=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("package", "name", "expected"),
    [
        ("httpx._exceptions", "NetworkError", True),
        ("openai", "APIConnectionError", True),
        ("requests.exceptions", "Timeout", True),
        ("httpx", "InvalidURL", False),
        ("mine", "NetworkError", False),
    ],
)
def test_a_lost_connection_of_a_known_client_is_transient(package: str, name: str, expected: bool) -> None:
    """What derives from its class is, too; the name alone says nothing, and a status decides where there is one."""
    base = type(name, (Exception,), {"__module__": package})
    assert expected == is_transient(type("Derived", (base,), {"__module__": "elsewhere"})("no"))
    assert is_transient(URLError(ConnectionResetError("reset")))
    assert not is_transient(URLError("unknown url type"))
