"""A user's agents, as type checkers see them: what is right has its type, and what is wrong is an error on its line.

Never run. mypy takes an unused `type: ignore` for an error, pyright an unnecessary one.
"""

from typing import Any, TypedDict, assert_type

from runjournal import KEY, AsyncJournal, AsyncRun, Journal, Run, Tool, tool


class Receipt(TypedDict):
    """What a service answers."""

    id: str
    cents: int


@tool
def greet(name: str, times: int = 1) -> str:
    """Without arguments: an unsafe tool."""
    return name * times


@tool(policy="keyed", timeout_s=30)
def send_email(to: str, body: str, *, idempotency_key: str = KEY) -> Receipt:
    """With arguments."""
    return {"id": to + body + idempotency_key, "cents": 1}


@tool
async def look_up(city: str) -> list[int]:
    """An async tool."""
    return [len(city)]


@tool(read_only=True)
async def count(city: str, *, exact: bool = False) -> int:
    """An async tool with arguments."""
    return len(city) + exact


class Mailer:
    """Methods are tools, too."""

    runjournal_id = "mailer"

    @tool
    def send(self, to: str) -> Receipt:
        """A method."""
        return {"id": to, "cents": 0}

    @tool(policy="idempotent")
    async def status(self, receipt: str) -> bool:
        """An async method."""
        return bool(receipt)


mailer = Mailer()


def what_a_tool_is() -> None:
    """It is called as its function is."""
    assert_type(greet("ann"), str)
    assert_type(send_email(to="ann", body="hi"), Receipt)
    assert_type(send_email.fn(to="ann", body="hi"), Receipt)
    assert_type(mailer.send("ann"), Receipt)
    assert_type(mailer.send(to="ann"), Receipt)
    greet(1)  # type: ignore[arg-type]
    greet("ann", time=2)  # type: ignore[call-arg]
    send_email(to="ann")  # type: ignore[call-arg]
    send_email("ann", "hi").upper()  # type: ignore[attr-defined]
    mailer.send()  # type: ignore[call-arg]
    mailer.send(1)  # type: ignore[arg-type]
    tool(policy="sometimes")  # type: ignore[call-overload]
    not_a_number: int = greet("ann")  # type: ignore[assignment]
    del not_a_number


def plain_agent(run: Run) -> Receipt:
    """An agent in plain threads."""
    with run.step("greet", key="ann"):
        assert_type(greet("ann"), str)
        assert_type(run.call(greet, "ann"), str)
        assert_type(run.call(send_email, to="ann", body="hi"), Receipt)
        assert_type(run.call(mailer.send, "ann"), Receipt)
        run.call(greet)  # type: ignore[call-arg]
        run.call(greet, 1)  # type: ignore[arg-type]
        run.call(greet, "ann", time=1)  # type: ignore[call-arg]
        run.call(send_email, to="ann")  # type: ignore[call-arg]
        run.call(send_email, to="ann", body="hi").upper()  # type: ignore[attr-defined]
        run.call(print, "ann")  # type: ignore[arg-type]
        count_of_greetings: int = run.call(greet, "ann")  # type: ignore[assignment]
        del count_of_greetings
    assert_type(run.do("mail", send_email, "ann", "hi"), Receipt)
    assert_type(run.do("add", sum, [1, 2]), int)
    assert_type(list(run.each("item", [1, 2])), list[int])
    return run.do("mail", mailer.send, "ann")


async def async_agent(run: AsyncRun) -> Receipt:
    """An agent in asyncio."""
    async with run.step("look"):
        assert_type(await look_up("Rome"), list[int])
        assert_type(await count("Rome", exact=True), int)
        assert_type(await mailer.status("r"), bool)
        assert_type(await run.call(look_up, "Rome"), list[int])
        assert_type(await run.call(count, "Rome", exact=True), int)
        assert_type(await run.call(mailer.status, "r"), bool)
        assert_type(await run.call(greet, "ann"), str)
        assert_type(await run.call(send_email, to="ann", body="hi"), Receipt)
        await run.call(look_up)  # type: ignore[call-overload]
        await run.call(look_up, 1)  # type: ignore[call-overload]
        await run.call(look_up, "Rome", time=1)  # type: ignore[call-arg]
        await run.call(greet, 1)  # type: ignore[call-overload]
        await run.call(send_email, to="ann")  # type: ignore[call-overload]
        (await run.call(look_up, "Rome")).upper()  # type: ignore[attr-defined]
        run.call(look_up, "Rome").append(1)  # type: ignore[attr-defined]
        cities: list[int] = await run.call(look_up, "Rome")
        cities.upper()  # type: ignore[attr-defined]
    assert_type(await run.do("look", look_up, "Rome"), list[int])
    assert_type(await run.do("mail", send_email, "ann", "hi"), Receipt)
    return await run.do("mail", mailer.send, "ann")


async def who_runs_them(journal: Journal, loop: AsyncJournal) -> None:
    """Each agent has its journal."""
    assert_type(journal.run(plain_agent, run_id="r"), Any)
    assert_type(await loop.run_async(async_agent, run_id="r"), Any)
    journal.run(async_agent)  # type: ignore[arg-type]
    await loop.run_async(plain_agent)  # type: ignore[arg-type]


def what_takes_a_tool(made: Tool[[str], str]) -> str:
    """Tools can be passed on."""
    return made("ann")
