"""What happened can be put on record: whatever a tool, a model, a hook or an error is made of (engine.md H13)."""

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runjournal import KEY, AsyncJournal, AsyncRun, CallFailed, Journal, JournalError, ResultUnusable, Run, tool
from runjournal.engine import failures as f
from runjournal.log import codec
from runjournal.log.errors import InvalidArgument

pytestmark = pytest.mark.filterwarnings("ignore::runjournal.writing.checkpoints.CheckpointWarning")
MAKES: list[Callable[[], Any]] = []
SENT: list[str] = []


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def made(what: str = "tool") -> Any:
    SENT.append(what)
    return MAKES[-1]()


@tool(policy="keyed", name="kept keyed")
def keyed(x: int = 1, *, idempotency_key: str = KEY) -> Any:
    """Make what the test says."""
    return made()


@tool(name="kept unsafe", on_unknown="fail")
def unsafe(x: int = 1) -> Any:
    """The same."""
    return made()


@tool(reconcile=lambda _, __: MAKES[-1](), name="kept hooked", on_unknown="fail")
def hooked(x: int = 1) -> Any:
    """Its hook says what the test says."""
    SENT.append("hooked")
    raise ValueError(x)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    MAKES.clear()
    SENT.clear()


class Sly(str):
    """A text that isn't what it seems."""

    __slots__ = ()

    def __getitem__(self, _: Any) -> Any:
        raise OSError("no slice")

    def encode(self, *_: Any) -> Any:
        raise OSError("no bytes")

    def __str__(self) -> Any:
        raise OSError("no text")


class SlyMeta(type):
    """A class that doesn't tell its name."""

    @property
    def __module__(cls) -> Any:  # type: ignore[override]
        raise OSError("no module")


class SlyValue(metaclass=SlyMeta):
    """A value of it."""


class SlyError(Exception):
    """An error of which nothing can be asked."""

    def __str__(self) -> str:
        raise OSError("no text")

    @property
    def status_code(self) -> Any:
        raise OSError("no status")

    @property
    def usage(self) -> Any:
        raise OSError("no usage")


class SlyGroup(ExceptionGroup):
    """A group that says what it holds as it likes."""

    @property
    def exceptions(self) -> Any:
        raise OSError("no members")


class Dumped:
    """An answer of a provider's client."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def model_dump(self) -> Any:
        return self.value


def with_type(message: Any, kind: Any) -> Exception:
    error = ValueError("x")
    error.message, error.type = message, kind  # type: ignore[attr-defined]
    return error


def raising(error: BaseException) -> Any:
    raise error


HOSTILE: dict[str, Callable[[], Any]] = {
    **{f"{levels} levels": lambda levels=levels: nested(levels) for levels in (62, 63, 64, 65, 1100)},
    "surrogates": lambda: {"\ud800": {"\ud800": 1}},
    "a surrogate": lambda: ["\udfff"],
    "a number": lambda: 2**70,
    "nan": lambda: float("nan"),
    "an object": object,
    "a sly text": lambda: Sly("x"),
    "a sly value": SlyValue,
    "a large text": lambda: "x" * 3_000_000,
    "a large id": lambda: {"id": "x" * 2_000_000, "stop_reason": "y" * 2_000_000},
    "a surrogate id": lambda: {"id": "\ud800"},
    "large usage": lambda: {"usage": {"input_tokens": 1, "output_tokens": 2, "details": "x" * 2_000_000}},
    "a deep usage": lambda: {"usage": {"input_tokens": 1, "output_tokens": 2, "details": nested(61)}},
    "a large cost": lambda: {"cost": {"amount": "1", "currency": "x" * 2_000_000}},
    "a large version": lambda: {"cost": {"amount": "1", "currency": "x", "pricing_version": "v" * 2_000_000}},
    "a dump": lambda: Dumped(nested(64)),
    "a sly dump": lambda: Dumped(SlyValue()),
    "an error": lambda: raising(ValueError("\ud800" * 30_000)),
    "a long error": lambda: raising(ValueError("\0" * 2_000_000)),
    "a sly error": lambda: raising(SlyError()),
    "a sly type": lambda: raising(with_type(Sly("m"), Sly("t"))),
    "a long type": lambda: raising(with_type("m" * 2_000_000, "t" * 2_000_000)),
    "a sly group": lambda: raising(SlyGroup("g", [ValueError(1)])),
    "a sly status": lambda: raising(
        type("E", (Exception,), {"status_code": type("I", (int,), {"__bool__": raising})(5)})()
    ),
    "happened, 64 levels": lambda: ("happened", nested(64)),
    "happened, a surrogate": lambda: ("happened", {"\ud800": {"\ud800": 1}}),
    "happened, an object": lambda: ("happened", SlyValue()),
    "a sly word": lambda: (Sly("happened"), 1),
    "no word": SlyValue,
}
CALLS: dict[str, Callable[[Any], Any]] = {
    "keyed": lambda run: run.call(keyed, 1),
    "unsafe": lambda run: run.call(unsafe),
    "hook": lambda run: run.call(hooked),
    "model": lambda run: run.model("m", "q", lambda _: made("model")),
    "check": lambda run: run.model("m", "q", lambda _: SENT.append("model"), check=lambda _: MAKES[-1]()),
    "usage": lambda run: run.model("m", "q", lambda _: SENT.append("model"), usage=lambda _: MAKES[-1]()),
    "cost": lambda run: run.model("m", "q", lambda _: SENT.append("model"), cost=lambda _: MAKES[-1]()),
}
TOLD = (CallFailed, ResultUnusable, f.CallOutcomeUnknown)


def agent(run: Run, call: str) -> Any:
    with run.step("s"):
        try:
            CALLS[call](run)
        except TOLD as told:
            run.memory["told"] = f"{type(told).__name__}: {told}"[:50]
        else:
            run.memory["told"] = "a result"
    return run.memory["told"]


async def async_agent(run: AsyncRun, call: str) -> Any:
    async with run.step("s"):
        try:
            await CALLS[call](run)
        except TOLD as told:
            run.memory["told"] = f"{type(told).__name__}: {told}"[:50]
        else:
            run.memory["told"] = "a result"
    return run.memory["told"]


def all_ended(journal: Journal, run_id: str) -> None:
    """Assert that each call that was begun has an end, and that the run does."""
    ends: set[tuple[str, int]] = set()
    starts: set[tuple[str, int]] = set()
    for record in journal.events(run_id):
        if record.type in ("tool.started", "model.started"):
            starts.add((record.event.call_id, record.event.attempt))
        if record.type in ("tool.completed", "tool.failed", "model.completed", "model.failed"):
            ends.add((record.event.call_id, record.event.attempt))
    assert starts <= ends
    assert "completed" == journal.head(run_id).status


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("asyncio_", [False, True])
def test_an_end_is_on_record(value: str, call: str, *, asyncio_: bool) -> None:
    """For each start there is an end, and the run goes on."""
    MAKES.append(HOSTILE[value])
    with AsyncJournal.open("memory:") as journal:
        if asyncio_:

            async def named(run: AsyncRun) -> Any:
                return await async_agent(run, call)

            asyncio.run(journal.run_async(named, run_id="r"))
        else:
            journal.run(lambda run: agent(run, call), run_id="r")
        all_ended(journal, "r")
        if value == "63 levels" and call in ("keyed", "unsafe", "model"):
            assert "a result" == journal.state("r").memory.committed["told"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(exclude_categories=())), inner),
    max_leaves=8,
)
ANY = JSON | st.binary() | st.tuples(st.sampled_from(["happened", "did_not_happen", "unknown"]), JSON)
ANY = ANY | st.sampled_from(
    [SlyValue(), Sly("x"), object(), Dumped(2**70), {1: 2}, {"id": Sly("x")}, Decimal("1e999999")]
)
DEEP = st.builds(lambda inner, levels: [nested(levels), inner], ANY, st.integers(55, 70))
ERRORS = st.builds(with_type, JSON, JSON) | st.sampled_from(
    [SlyError(), SlyGroup("g", [ValueError(1)]), OSError(), ExceptionGroup("g", [SlyError()])]
)
USAGES = st.builds(lambda usage, cost, more: {"usage": usage, "cost": cost, "id": more}, ANY, ANY, ANY)


@settings(max_examples=min(300, settings().max_examples))
@given(st.sampled_from(sorted(CALLS)), ANY | DEEP | USAGES, st.none() | ERRORS)
def test_any_python_value(call: str, value: Any, error: Exception | None) -> None:
    """Any value or error, of a tool, a model or a hook: an end for each start, and another process sends nothing."""
    MAKES[:], SENT[:] = [lambda: value if error is None else raising(error)], []
    died: list[str] = []
    with Journal.open("memory:") as journal:
        with pytest.raises(KeyboardInterrupt):
            journal.run(lambda run: with_step(run, call, died), run_id="r")
        sent = list(SENT)
        told = journal.run(lambda run: with_step(run, call, died), run_id="r")
        assert (sent, died[0]) == (SENT, told)
        all_ended(journal, "r")


def with_step(run: Run, call: str, died: list[str]) -> Any:
    """The agent, interrupted before its step ends: the step is entered again, and told the same."""
    with run.step("s"):
        try:
            CALLS[call](run)
            told = "a result"
        except TOLD as failure:
            told = f"{type(failure).__name__}: {failure}"[:50]
        if not died:
            died.append(told)
            raise KeyboardInterrupt
    return told


def test_an_end_that_does_not_fit_is_recorded_without_what_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last net: an error that is too long for an event is on record as one that is."""
    monkeypatch.setattr(codec, "event_data_bytes_max", 700)
    MAKES.append(lambda: raising(ValueError("x" * 5_000)))
    with Journal.open("memory:") as journal:
        for call in ("keyed", "unsafe", "model"):
            told = journal.run(lambda run, call=call: agent(run, call), run_id=call)
            assert ("CallOutcomeUnknown: " if call == "unsafe" else "CallFailed: TooLarge") == told[:20]
            all_ended(journal, call)
        (lost, _) = (each.event for each in journal.events("unsafe", types=["tool.failed"]))
        assert ("TooLarge", True) == (lost.error["type"], lost.lost)


def test_a_result_over_the_bound_of_a_blob(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has happened, and its result is unusable; the same of a `do` is ResultUnstorable."""
    monkeypatch.setattr(codec, "blob_bytes_max", 100_000)
    MAKES.append(lambda: "x" * 200_000)
    with Journal.open("memory:") as journal:
        assert "ResultUnusable" == journal.run(lambda run: agent(run, "unsafe"), run_id="r").split(":")[0]
        with pytest.raises(f.ResultUnstorable):
            journal.run(lambda run: run.do("a", lambda: "x" * 200_000), run_id="s")


@pytest.mark.parametrize("levels", [63, 64, 65])
def test_the_result_of_a_do_is_as_deep_as_an_event_holds(levels: int) -> None:
    """At 63 levels it is stored; at 64, as at 65, it is a mistake that ends nothing."""
    with Journal.open("memory:") as journal:
        if levels == 63:
            assert nested(63) == journal.run(lambda run: run.do("a", lambda: nested(63)), run_id="r")
            return
        with pytest.raises(f.ResultUnstorable):
            journal.run(lambda run: run.do("a", lambda: nested(levels)), run_id="r")
        assert "queued" == journal.head("r").status


BAD = ("a\ud800", "a\0")
NAMES: dict[str, Callable[[Any, str], Any]] = {
    "step": lambda run, bad: run.step(bad).__enter__(),
    "step key": lambda run, bad: run.step("s", bad).__enter__(),
    "repeat": lambda run, bad: run.step(bad, repeat=True).__enter__(),
    "do": lambda run, bad: run.do(bad, list),
    "do key": lambda run, bad: run.do("s", list, key=bad),
    "done": lambda run, bad: run.done(bad),
    "done key": lambda run, bad: run.done("s", bad),
    "each": lambda run, bad: list(run.each(bad, [1])),
    "each key": lambda run, bad: list(run.each("s", [bad])),
    "ask": lambda run, bad: run.ask(bad),
    "ask key": lambda run, bad: run.ask("s", key=bad),
}
INSIDE: dict[str, Callable[[Any, str], Any]] = {
    "ask inside": lambda run, bad: run.ask(bad),
    "memory": lambda run, bad: run.memory.__setitem__(bad, 1),
    "plan task": lambda run, bad: run.plan.update(bad, "done"),
    "message id": lambda run, bad: run.message("user", "x", message_id=bad),
    "model": lambda run, bad: run.model(bad, "q", lambda _: 1),
    "provider": lambda run, bad: run.model("m", "q", lambda _: 1, provider=bad),
    "fingerprint": lambda run, bad: run.model("m", "q", lambda _: 1, fingerprint=bad),
}


@pytest.mark.parametrize("bad", [*BAD, "a" * 2_000])
@pytest.mark.parametrize("where", [*NAMES, *INSIDE])
def test_a_name_that_cannot_be_on_record_ends_nothing(where: str, bad: str) -> None:
    """A lone surrogate, a NUL, or too many characters, in a name inside an agent: a mistake; the run is released."""

    def wrong(run: Run) -> None:
        if where in NAMES:
            NAMES[where](run, bad)
        with run.step("s"):
            INSIDE[where](run, bad)

    with Journal.open("memory:") as journal:
        with pytest.raises(f.WrongArgument):
            journal.run(wrong, run_id="r")
        assert "queued" == journal.head("r").status


def test_a_key_of_its_own_that_cannot_be_on_record_sends_nothing() -> None:
    """The template is filled with what the agent was given."""

    @tool(key="{name}")
    def own_key(name: str) -> None:
        SENT.append(name)

    def wrong(run: Run) -> None:
        with run.step("s"):
            own_key("a\0")

    with Journal.open("memory:") as journal:
        with pytest.raises(f.WrongArgument):
            journal.run(wrong, run_id="r")
        assert ([], "queued") == (SENT, journal.head("r").status)


OUTSIDE: dict[str, Callable[[Journal, str], Any]] = {
    "run id": lambda journal, bad: journal.enqueue("k", run_id=bad),
    "kind": lambda journal, bad: journal.enqueue(bad),
    "tag": lambda journal, bad: journal.enqueue("k", tags={bad: "x"}) if bad != "a\0" else journal.enqueue(bad),
    "signal": lambda journal, bad: journal.signal("r", bad),
    "signal id": lambda journal, bad: journal.signal("r", "s", signal_id=bad),
    "call": lambda journal, bad: journal.resolve("r", bad, "happened"),
    "question": lambda journal, bad: journal.approve("r", bad),
    "tool": lambda journal, bad: tool(name=bad)(lambda: None),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", OUTSIDE)
def test_a_name_that_cannot_be_on_record_is_an_invalid_argument(where: str, bad: str) -> None:
    """Outside an agent it is InvalidArgument, and nothing is written."""
    with Journal.open("memory:") as journal:
        journal.enqueue("k", run_id="r")
        with pytest.raises(InvalidArgument):
            OUTSIDE[where](journal, bad)
        assert 1 == len(list(journal.events("r")))


def test_the_text_of_a_failure_is_cut_and_escaped() -> None:
    """`run.fail` ends the run whatever it is told."""
    with Journal.open("memory:") as journal:
        with pytest.raises(JournalError, match="has failed"):
            journal.run(lambda run: run.fail("\ud800" * 2_000_000, type="\ud800"), run_id="r")
        assert "failed" == journal.head("r").status
