"""What the log knows of a call and of a failure, when tools change between two processes and errors misbehave.

An interrupt in the agent stands for the death of its process: the run is released, and the next call of the agent
knows nothing but the log.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pytest

from runjournal import Budget, Journal, tool
from runjournal.engine import failures as f
from runjournal.engine.tools import KEY
from runjournal.log import events as e
from runjournal.log.base import Event
from runjournal.log.clock import FakeClock
from runjournal.log.errors import CallEnded, CorruptLog, JournalError, MissingBlob, StoreBusy
from runjournal.log.limits import steps_recent_max
from runjournal.log.policies import STRICTNESS
from runjournal.projections.calls import Call, Calls
from runjournal.projections.state import RunState
from runjournal.run import Run
from runjournal.testing import generate

NUMBERS = itertools.count(1)
Policy = Literal["idempotent", "transactional", "keyed", "outbox", "unsafe"]
DUE, LATER = "2026-02-03T04:05:06.000000Z", "2026-02-04T04:05:06.000000Z"


@pytest.fixture
def journal() -> Iterator[Journal]:
    with Journal.open("memory:", clock=FakeClock()) as opened:
        yield opened


def events(journal: Journal, kind: type[Any], run_id: str = "r") -> list[Any]:
    return [record.event for record in journal.events(run_id) if isinstance(record.event, kind)]


# ------------------------------------------------------------------------------------------- a policy that was changed


class Mended:
    """A tool whose policy is another one in each process; it dies in those that `dies` says."""

    def __init__(self, journal: Journal) -> None:
        self.journal, self.sent = journal, list[str]()
        self.name = f"send_{next(NUMBERS)}"  # of its own: a name that two functions claim is nobody's

    def run(
        self, policy: Policy, *, dies: bool = False, error: Exception | None = None, run_id: str = "r", **how: Any
    ) -> Any:
        def body() -> str:
            self.sent.append(policy)
            if dies:
                raise KeyboardInterrupt
            if error is not None:
                raise error
            return "ok"

        def keyed(idempotency_key: str = KEY) -> str:
            return body()

        made: Any = tool
        send = made(policy=policy, name=self.name, **how)(keyed if policy == "keyed" else body)

        def agent(run: Run) -> Any:
            with run.step("s"):
                return send()

        return self.journal.run(agent, run_id=run_id)

    def die(self, policy: Policy, **how: Any) -> None:
        with pytest.raises(KeyboardInterrupt):
            self.run(policy, dies=True, **how)


def test_an_attempt_that_was_unsafe_is_not_sent_again_unasked(journal: Journal) -> None:
    """A tool is mended from idempotent to unsafe after a crash; its unsafe attempt may have happened."""
    mended = Mended(journal)
    mended.die("idempotent")
    mended.die("unsafe")
    with pytest.raises(f.RunWaiting):
        mended.run("unsafe")
    assert ["idempotent", "unsafe"] == mended.sent


def test_an_attempt_that_was_unsafe_stays_so_when_the_tool_is_loosened(journal: Journal) -> None:
    """That the tool is idempotent today says nothing of an attempt that was recorded as unsafe."""
    mended = Mended(journal)
    mended.die("unsafe")
    with pytest.raises(f.RunWaiting):
        mended.run("idempotent")
    assert ["unsafe"] == mended.sent


def test_a_key_that_lives_is_of_use_to_a_tool_that_passes_it_on(journal: Journal) -> None:
    """A keyed attempt isn't sent again by a tool that isn't keyed any more: nobody would dedupe it."""
    mended = Mended(journal)
    mended.die("keyed", key="one")
    with pytest.raises(f.RunWaiting):
        mended.run("unsafe", key="one")
    assert ["keyed"] == mended.sent


def test_a_call_that_completed_as_unsafe_is_in_the_ledger(journal: Journal) -> None:
    """A restart of the run is given its result, although its first attempt was idempotent."""
    mended = Mended(journal)
    mended.die("idempotent")
    assert "ok" == mended.run("unsafe")
    again = journal.restart("r")
    assert "ok" == mended.run("unsafe", run_id=again)
    assert ["idempotent", "unsafe"] == mended.sent


def test_an_attempt_of_a_mended_tool_may_say_that_it_did_nothing(journal: Journal) -> None:
    """Then it may be sent again: the attempt before it was one that may be repeated."""
    mended = Mended(journal)
    mended.die("idempotent")
    with pytest.raises(f.StepFailed):
        mended.run("unsafe", error=f.DidNotHappen("refused"))
    assert "ok" == mended.run("unsafe", run_id=journal.retry("r"))
    assert ["idempotent", "unsafe", "unsafe"] == mended.sent


def started(policy: str, attempt: int, **more: Any) -> e.ToolStarted:
    given = {"read_only": False, "on_unknown": "fail", **more}
    return e.ToolStarted("c", "send", {}, policy, attempt=attempt, **given)


def folded(*given: Event) -> Call:
    begun = [e.RunQueued("demo", None), generate.claim(1), e.StepStarted(0, "s", "s", "once", 1, 1)]
    written = [(event, int(not isinstance(event, e.RunQueued))) for event in (*begun, *given)]
    calls = RunState.initial().fold(generate.as_records(written)).calls
    assert calls.dump() == Calls.load(calls.dump()).dump()
    return calls.known["c"]


@pytest.mark.parametrize("first", STRICTNESS)
@pytest.mark.parametrize("second", STRICTNESS)
def test_the_stricter_policy_counts(first: str, second: str) -> None:
    """From an attempt on, whichever of its policy and that of the attempts before it is the stricter one."""
    call = folded(started(first, 1), started(second, 2))
    strict = max(first, second, key=STRICTNESS.index)
    counted = [attempt for attempt, policy in ((1, first), (2, strict)) if policy in ("keyed", "outbox", "unsafe")]
    assert (strict, counted) == (call.policy, call.maybe)


def test_the_flags_of_a_call_are_those_of_its_policy() -> None:
    """Read-only is what every attempt was; what is done where nobody knows, the newest attempt says."""
    mended = folded(started("idempotent", 1, read_only=True), started("unsafe", 2, on_unknown="ask"))
    assert (False, "ask") == (mended.read_only, mended.on_unknown)
    loosened = folded(started("unsafe", 1, on_unknown="ask"), started("idempotent", 2, read_only=True))
    assert (False, "fail") == (loosened.read_only, loosened.on_unknown)


def test_a_keys_life_is_counted_from_the_first_attempt_that_may_have_happened() -> None:
    """An attempt before it that may be repeated has no key; one after it doesn't prolong its life."""
    mended = folded(started("idempotent", 1), started("keyed", 2, key_expires_at=DUE))
    assert DUE == mended.key_expires_at
    mended = folded(started("keyed", 1, key_expires_at=DUE), started("keyed", 2, key_expires_at=LATER))
    assert DUE == mended.key_expires_at


def test_a_model_call_has_no_policy_of_tools() -> None:
    """A start of a tool under its id changes nothing."""
    assert "model" == folded(e.ModelStarted("c", "m", "h", 1), started("unsafe", 2)).policy


# ------------------------------------------------------------------------------ who says that nobody knows of a call


def test_a_tool_may_raise_a_class_named_like_ours(journal: Journal) -> None:
    """What the name of its class is doesn't matter: it is a failure of the call, and recorded as one."""
    mine = type("CallOutcomeUnknown", (Exception,), {})

    @tool(read_only=True)
    def look() -> None:
        raise mine("upstream doesn't know")

    def agent(run: Run) -> str:
        with run.step("s"):
            try:
                look()
            except f.CallFailed as failure:
                return str(failure)
        return ""

    assert "CallOutcomeUnknown: upstream doesn't know" == journal.run(agent, run_id="r")
    failed = events(journal, e.ToolFailed)
    assert [("CallOutcomeUnknown", None)] == [(end.error["type"], end.error.get("kind")) for end in failed]


@pytest.mark.parametrize("ours", [f.CallOutcomeUnknown, f.Rejected])
def test_a_tool_may_raise_what_a_run_of_its_own_was_told(journal: Journal, ours: type[f.Told]) -> None:
    """Of another call nobody knows, or to another question a person said no: this call has failed."""

    @tool(read_only=True)
    def sub() -> None:
        raise ours("of the inner run")

    def agent(run: Run) -> str:
        with run.step("s"):
            try:
                sub()
            except f.CallFailed as failure:
                return str(failure)
        return ""

    assert f"{ours.__name__}: of the inner run" == journal.run(agent, run_id="r")
    assert [None] == [end.error.get("kind") for end in events(journal, e.ToolFailed)]


@pytest.mark.parametrize("ours", [f.CallOutcomeUnknown, f.Rejected, ValueError])
def test_what_a_body_raised_has_no_kind(ours: type[Exception]) -> None:
    """The kind of an error is the engine's own word of a call; all else is stored as ever."""
    stored, transient = f.error_of_body(ours("no"))
    assert ({"type": ours.__name__, "message": "no"}, False) == (stored, transient)


def test_being_told_that_nobody_knows_is_no_outcome_of_a_call_that_is_known(journal: Journal) -> None:
    """The gate goes by the kind of the error: of a repeatable call it can't be said, of its failure it can."""
    named = {"type": "CallOutcomeUnknown", "message": ""}
    epoch, begun = 1, [generate.claim(1), e.StepStarted(0, "s", "s", "once", 1, 1), started("idempotent", 1)]
    journal.append("r", [e.RunQueued("demo", None)], expect=0)
    journal.append("r", begun, expect=None, epoch=0)
    with pytest.raises(CallEnded):
        journal.append("r", [e.ToolFailed("c", 1, {**named, "kind": "unknown"}, False)], expect=None, epoch=epoch)
    journal.append("r", [e.ToolFailed("c", 1, named, False)], expect=None, epoch=epoch)
    assert "failed" == journal.state("r").calls.known["c"].status


# --------------------------------------------------------------------------------- errors that can't be written down


class Wordless(Exception):
    """Its text can't be made."""

    def __str__(self) -> str:
        return str(self.args[5])


class Unready(Exception):
    """It has properties that raise."""

    @property
    def response(self) -> Any:
        raise RuntimeError("no response yet")

    transient = status_code = status = type = message = exceptions = response


class Numb(Exception):
    """It is equal to nothing, and neither true nor false."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not now")

    def __bool__(self) -> bool:
        raise RuntimeError("not now")

    __hash__ = None  # type: ignore[assignment]


class Bare(f.Told):
    """It was made without what its base class sets."""

    def __init__(self) -> None:
        pass


def chained(count: int) -> Exception:
    error: Exception = ValueError("the first")
    for _ in range(count):
        after = ValueError("after it")
        after.__cause__, error = error, after
    return error


def caused(error: Exception) -> Exception:
    outer = ValueError("because of it")
    outer.__cause__ = error
    return outer


def nested(count: int) -> Exception:
    error: Exception = ValueError("the innermost")
    for _ in range(count):
        error = ExceptionGroup("around it", [error])
    return error


WRONG: dict[str, Callable[[], Exception]] = {
    "text": Wordless,
    "properties": Unready,
    "comparison": Numb,
    "bare": Bare,
    "chain": lambda: chained(3000),
    "cause": lambda: caused(Numb()),
    "group": lambda: nested(3000),
    "named": lambda: f.Failed("\ud800", "\ud800"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("where", ["agent", "step", "tool"])
def test_no_error_keeps_a_run_from_ending(journal: Journal, wrong: str, where: str) -> None:
    """Whatever is wrong with what was raised, it is recorded, and the run has failed."""
    failing = WRONG[wrong]

    @tool(policy="idempotent")
    def fall() -> None:
        raise failing()

    def agent(run: Run) -> None:
        if where == "agent":
            raise failing()
        with run.step("s"):
            if where == "tool":
                fall()
            raise failing()

    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is
        journal.run(agent, run_id="r")
    assert ("failed", "error") == (journal.state("r").status.status, journal.state("r").status.cause)
    recorded: dict[str, list[type[Event]]] = {
        "agent": [e.RunFailed],
        "step": [e.StepFailed, e.RunFailed],
        "tool": [e.ToolFailed, e.RunFailed],
    }
    assert all(events(journal, kind) for kind in recorded[where])


def test_an_error_of_which_nothing_can_be_said_ends_the_run(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its type is recorded, if even looking at it raises."""

    def unable(_: BaseException) -> Any:
        raise RecursionError

    monkeypatch.setattr(f, "error_of", unable)

    def agent(_: Run) -> None:
        raise Wordless

    with pytest.raises(Wordless):
        journal.run(agent, run_id="r")
    (failed,) = events(journal, e.RunFailed)
    assert ("Wordless", "error", []) == (failed.error["type"], failed.cause, failed.left)


def test_a_status_of_a_response_makes_an_error_transient() -> None:
    """An attribute that raises or says nothing is passed over, the next place counts."""

    def error(**said: Any) -> Exception:
        made = ValueError()
        vars(made).update(said)
        return made

    class Busy(Unready):
        status = 503

    response = error(status_code=503)
    given = [error(status_code=503), error(response=response), error(status=429), error(status_code=404), Unready()]
    assert [True, True, True, False, False] == [f.is_transient(each) for each in given]
    assert f.is_transient(Busy())
    assert not f.is_transient(error(status_code=400, response=response))


def told(step: str, attempt: int = 1) -> f.StepFailed:
    failure = f.StepFailed("E", "no", attempt=attempt)
    failure.run_id, failure.step = "r", step
    return failure


def left_by(error: BaseException, *handled: f.Told) -> list[list[Any]]:
    return f.left_by(error, "r", lambda failure: failure in handled)


def test_what_left_the_agent_is_found_in_order() -> None:
    """As itself, in groups, as cause or context; each once, however the errors hang together."""
    first, second, third = told("a"), told("b", 2), told("c")
    group = ExceptionGroup("both", [caused(first), ExceptionGroup("inner", [second, caused(first)])])
    group.__context__ = third
    first.__cause__ = told("never: it isn't what left")
    assert [["a", 1], ["b", 2], ["c", 1]] == left_by(group)
    loop = ValueError()
    loop.__context__ = caused(loop)
    assert [] == left_by(loop)
    assert [["a", 1]] == left_by(caused(told("a")))


def test_a_reason_that_was_handled_has_not_left() -> None:
    """What leaves itself, or in a group, has left; its reason hasn't, if the agent has gone on behind it."""
    first, second = told("a"), told("b")
    assert [["a", 1]] == left_by(first, first)
    assert [] == left_by(caused(first), first)
    assert [["b", 1]] == left_by(ExceptionGroup("both", [caused(first), second]), first, second)
    assert [["a", 1]] == left_by(ExceptionGroup("both", [caused(ExceptionGroup("it", [first])), first]), first)
    first.run_id = "another"
    assert [] == left_by(first)
    first.__cause__ = second
    assert [["b", 1]] == left_by(first)


def test_a_long_chain_is_followed_to_its_end() -> None:
    """What left the agent may lie behind more errors than Python's stack is deep."""
    error = chained(3000)
    last: BaseException = error
    while last.__cause__ is not None:
        last = last.__cause__
    last.__cause__ = told("a")
    assert [["a", 1]] == left_by(error)


# ------------------------------------------------------------------------------------------------ the steps of a run


@pytest.mark.parametrize("links", [("restart",), ("restart", "restart"), ("retry", "restart"), ("fork", "restart")])
def test_a_restart_begins_with_what_the_first_run_was_queued_with(journal: Journal, links: tuple[str, ...]) -> None:
    """Its plan and messages as they were, and input, title, tags and budget: it doesn't end with nothing done."""
    paid: list[str] = []

    def agent(run: Run) -> list[str]:
        said = [message.content for message in run.state.messages]
        while task := run.plan.next():
            with run.step("pay", key=task["id"]):
                paid.append(task["id"])
                run.plan.done(task)
                run.message("assistant", "paid")
        if run.id == "r":
            raise ValueError("later")
        return [*said, str(run.input)]

    tasks = [{"id": each, "title": each, "status": "todo"} for each in ("a", "b")]
    messages = [{"role": "user", "content": "pay them"}]
    about: dict[str, Any] = {"title": "Bills", "tags": {"of": "May"}, "budget": {"steps": 9}}
    with pytest.raises(ValueError, match="later"):
        journal.run(agent, run_id="r", input=7, plan=tasks, messages=messages, **about)
    run_id = "r"
    for link in links:
        run_id = getattr(journal, link)(run_id)
        if link != "fork":
            journal.run(agent, run_id=run_id)
        else:
            journal.cancel(run_id)
    assert ["a", "b"] * (1 + links.count("restart")) == paid
    assert ["pay them", "7"] == journal.run(agent, run_id=run_id)
    status = journal.state(run_id).status
    assert ("Bills", {"of": "May"}, {"steps": 9}) == (status.title, status.tags, status.budget)


def counting(run: Run) -> str:
    for i in range(6):
        run.do("s", lambda: None, key=i)
    return "done"


def test_a_retry_has_the_steps_of_its_budget_anew(journal: Journal) -> None:
    """What failed at its cap goes on; the index of its steps is that of the line."""
    journal.enqueue("counting", run_id="r", budget=Budget(steps=3))
    with pytest.raises(f.RunFailed, match="step_cap"):
        journal.run(counting, run_id="r")
    retry = journal.retry("r")
    assert "done" == journal.run(counting, run_id=retry)
    indexes = [event.index for run in ("r", retry) for event in events(journal, e.StepStarted, run)]
    assert [0, 1, 2, 3, 4, 5] == indexes
    assert [3, 3] == [journal.state(run).steps.completed_count for run in ("r", retry)]


@pytest.mark.parametrize("count", [2, steps_recent_max, steps_recent_max + 2])
def test_a_retry_knows_all_steps_of_its_line(journal: Journal, count: int) -> None:
    """Whether it completed few or many before, none is done again, and each is known to be done."""
    done, fails = list[int](), iter([True, False])

    def agent(run: Run) -> Sequence[bool]:
        for i in range(count):
            if not run.done("s", i):
                run.do("s", lambda i=i: done.append(i), key=i)
        if next(fails):
            raise ValueError("no")
        return [run.done("s", i) for i in range(count)]

    with pytest.raises(ValueError, match="no"):
        journal.run(agent, run_id="r")
    assert [True] * count == journal.run(agent, run_id=journal.retry("r"))
    assert list(range(count)) == done


# ------------------------------------------------------------------------------------------- what stops, fails nothing


@pytest.mark.parametrize(
    "broken", [StoreBusy("busy"), CorruptLog("r", 3, "a hash is wrong"), MissingBlob("0" * 64, "")]
)
def test_what_is_wrong_with_the_log_is_no_failure(broken: JournalError) -> None:
    """It stops the run, alone or in a group; one that is merely the cause of another error doesn't."""
    assert broken is f.stop_in(broken)
    assert broken is f.stop_in(ExceptionGroup("", [ValueError(), ExceptionGroup("", [broken])]))
    assert f.stop_in(caused(broken)) is None
    assert f.stop_in(JournalError()) is None
