"""Which call is it, which step is it: what differs a little from one entry to the next isn't taken for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runjournal import KEY, AsyncJournal, Journal, tool
from runjournal.engine import failures as f
from runjournal.engine.tools import same_function
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.errors import InvalidArgument
from runjournal.log.limits import lease_s
from runjournal.run import Run


@pytest.fixture
def journal() -> Iterator[Journal]:
    with Journal.open("memory:", clock=FakeClock()) as opened:
        yield opened


# ------------------------------------------------------------------------------------------------ keys of one's own


def test_a_key_that_is_empty_is_refused(journal: Journal) -> None:
    """It would silently be no key: nothing is sent."""
    sent: list[str] = []

    @tool(key="{order}")
    def buy(order: str) -> None:
        sent.append(order)

    with pytest.raises(f.StepFailed, match=r"InvalidArgument: buy: the key '\{order\}' is empty"):
        journal.run(lambda run: run.do("a", buy, ""), run_id="r")
    assert [] == sent


# ------------------------------------------------------------------------------------------------ what is empty


def nothing(run: Run) -> None:
    """An agent without work."""


async def nothing_async(run: Any) -> None:
    """The same."""


@pytest.mark.parametrize(
    "begin",
    [
        lambda journal: journal.run(nothing, run_id=""),
        lambda journal: journal.enqueue("k", run_id=""),
        lambda journal: journal.enqueue("", run_id="new"),
        lambda journal: journal.run(nothing, run_id="new", kind=""),
        lambda journal: asyncio.run(AsyncJournal(journal.store).run_async(nothing_async, run_id="")),
        lambda journal: journal.retry("r", new_run_id=""),
        lambda journal: journal.restart("r", new_run_id=""),
        lambda journal: journal.fork("r", new_run_id=""),
        lambda journal: journal.signal("open", "name", signal_id=""),
        lambda journal: journal.signal("open", ""),
        lambda journal: journal.append("open", [e.NoteAdded("x")], by=""),
        lambda journal: Journal(journal.store, by=""),
        lambda journal: journal.claim("left", resume=""),
        lambda journal: tool(name="")(nothing),
        lambda journal: tool(key="")(nothing),
        lambda journal: tool(policy="")(nothing),  # type: ignore[call-overload]  # as a test may
    ],
)
def test_what_is_empty_is_not_taken_for_what_was_left_out(begin: Callable[[Journal], Any], journal: Journal) -> None:
    """An empty id, name or key is refused: a fresh one in its place would do everything twice."""
    journal.run(nothing, run_id="r")
    journal.enqueue("k", run_id="open")
    journal.enqueue("k", run_id="left")
    journal.claim("left")
    journal.clock.sleep(lease_s + 1)
    before = [head.run_id for head in journal.runs()]
    with pytest.raises(InvalidArgument):
        begin(journal)
    assert before == [head.run_id for head in journal.runs()]


def test_a_question_has_a_name(journal: Journal) -> None:
    """A person can't be asked for nothing."""
    with pytest.raises(f.StepFailed, match="InvalidArgument"):
        journal.run(lambda run: run.do("a", run.ask, ""), run_id="r")


# ------------------------------------------------------------------------------------------------ methods


class Account:
    """An account that is paid from; `paid` is what left it."""

    def __init__(self, number: Any) -> None:
        self.runjournal_id = number
        self.paid: list[int] = []
        self.works = False

    @tool(policy="keyed")
    def pay(self, cents: int, *, idempotency_key: str = KEY) -> str:
        """Pay."""
        self.paid.append(cents)
        if not self.works:
            raise ValueError("no")
        return f"from {self.runjournal_id}"

    @tool(key="order-{order}")
    def buy(self, order: int) -> str:
        """Buy once."""
        return f"from {self.runjournal_id}"

    @tool(key="order-{self}-{order}", name="buy_each", reconcile=lambda args, key: ("happened", args["self"]))
    def buy_each(self, order: int) -> str:
        """Buy once from each."""
        raise ValueError(order)

    @tool(read_only=True, name="look_async")
    async def look(self, *places: int, **more: int) -> list[Any]:
        """Look."""
        return [self.runjournal_id, *places, more]


def test_two_objects_are_two_receivers(journal: Journal) -> None:
    """What failed from one account is no attempt of paying from the other, live and after a crash."""
    one, two = Account("one"), Account(2)
    two.works = True

    def agent(run: Run) -> Any:
        with run.step("a"):
            with pytest.raises(f.CallFailed):
                one.pay(5)
            got = two.pay(5)
            if not run.state.memory and len(two.paid) == 1:
                two.paid.append(0)
                raise KeyboardInterrupt
            return got

    with pytest.raises(KeyboardInterrupt):
        journal.run(agent, run_id="r")
    assert "from 2" == journal.run(agent, run_id="r")
    assert ([5], [5, 0]) == (one.paid, two.paid)
    started = [each.event for each in journal.events("r") if each.type == "tool.started"]
    assert [{"self": "one", "cents": 5}, {"self": 2, "cents": 5}] == [each.args for each in started]  # type: ignore[attr-defined]  # as a test may


def test_an_object_is_part_of_what_a_key_of_its_own_is_of(journal: Journal) -> None:
    """Another account under the same key is refused; a key may name it, and the hook is told of it."""
    one, two = Account("one"), Account("two")

    def agent(run: Run) -> Any:
        with run.step("a"):
            got = [one.buy(1), one.buy_each(1), two.buy_each(1)]
            with pytest.raises(f.KeyReused):
                two.buy(1)
            return got

    assert ["from one", "one", "two"] == journal.run(agent, run_id="r")


def test_a_method_of_an_asyncio_agent() -> None:
    """The same in asyncio, with arguments of every kind."""

    async def agent(run: Any) -> Any:
        async with run.step("a"):
            return [await Account("one").look(1, 2, x=3), await Account("two").look(1, 2, x=3)]

    with AsyncJournal.open("memory:", clock=FakeClock()) as journal:
        wanted = [["one", 1, 2, {"x": 3}], ["two", 1, 2, {"x": 3}]]
        assert wanted == asyncio.run(journal.run_async(agent, run_id="r"))


@pytest.mark.parametrize("number", [None, "", True, 1.5, ["one"]])
def test_an_object_that_does_not_say_which_it_is_sends_nothing(number: Any, journal: Journal) -> None:
    """The refusal says what to write."""
    account = Account(number)
    with pytest.raises(f.StepFailed, match='write `runjournal_id = "account"` into the class'):
        journal.run(lambda run: run.do("a", account.pay, 5), run_id="r")
    assert [] == account.paid


def of(account: str, sent: list[str]) -> Any:
    """A tool made for an account, as a factory makes it."""

    @tool(name="pay_from")
    def pay(cents: int) -> str:
        sent.append(account)
        raise f.DidNotHappen(account)

    return pay


def test_two_functions_of_one_name_are_refused_in_one_step(journal: Journal) -> None:
    """The failure of one isn't told as that of the other; the run is released, and mended code goes on."""
    sent: list[str] = []

    def agent(run: Run) -> None:
        with run.step("a"):
            for pay in (of("one", sent), of("two", sent)):
                with pytest.raises(f.CallFailed):
                    pay(5)

    with pytest.raises(f.SameName, match="two tools are named pay_from"):
        journal.run(agent, run_id="r")
    assert ["one"] == sent


def test_a_function_that_is_made_anew_is_the_same() -> None:
    """Of the same code, over the same variables, with the same defaults; a bound method of the same object."""
    sent: list[str] = []

    def make(default: int) -> Callable[..., Any]:
        def made(x: int = default) -> None:
            sent.append(str(x))

        return made

    assert same_function(of("one", sent).fn, of("one", sent).fn)
    assert not same_function(of("one", sent).fn, of("two", sent).fn)
    assert not same_function(of("one", sent).fn, of("one", []).fn)
    assert same_function(make(1), make(1))
    assert not same_function(make(1), make(2))
    assert same_function(sent.append, sent.append)
    assert not same_function(sent.append, [].append)
    assert not same_function([].append, sent.extend)

    def around(text: str) -> Callable[..., Any]:
        return lambda: (text, later)

    assert same_function(around(f"account {len(sent)}"), around("account 0"))
    assert not same_function(around("a"), around("b"))
    later = 1
    assert same_function(around("a"), around("a"))
