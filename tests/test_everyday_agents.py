"""Agents as newcomers write them, their process killed at every boundary.

Each goes on rightly, or is refused before it does harm, with a sentence that says what to write instead; where that was
done, the run that was refused goes on, and ends as if nobody had been killed.
"""

import asyncio
import concurrent.futures
import contextlib
import json
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any

import pytest
from crashing import Agent, everywhere, finish, outside

from runjournal import KEY, AsyncRun, CallFailed, CallOutcomeUnknown, Journal, Run, StepFailed, tool
from runjournal.engine import failures as f

TURNS = [{"text": "first ann", "mail": "ann"}, {"text": "then bob", "mail": "bob"}, {"text": "done"}]
UNREADABLE = ["{oops", '{"to": "ann"}']


@tool
def mail(to: str) -> str:
    return outside.did("mail", to)


@tool(policy="keyed")
def charge(order: int, *, idempotency_key: str = KEY) -> str:
    return outside.did("charge", order, idempotency_key)


@tool(policy="keyed")
def charge_flaky(order: int, *, idempotency_key: str = KEY) -> str:
    outside.fails("charge_flaky", 1)
    return outside.did("charge_flaky", order, idempotency_key)


@tool
def flaky(to: str) -> str:
    outside.fails("flaky", 2)
    return outside.did("flaky", to)


@tool
async def mail_async(to: str) -> str:
    return await outside.did_slowly("mail_async", to)


# ------------------------------------------------------------------------------------------------- what goes on rightly


def a_do_for_each_thing(run: Run) -> Any:
    receipt = run.do("charge", charge, 7)
    return [receipt, run.do("mail", mail, "ann")]


def a_do_in_a_loop(run: Run) -> Any:
    return [run.do("mail", mail, to, key=to) for to in ("ann", "bob", "eve")]


def each(run: Run) -> None:
    for to in run.each("mail", ["ann", "bob", "eve"]):
        with run.step("mail", key=to):
            run.message("tool", mail(to))


def done_is_asked_for(run: Run) -> None:
    for n, to in enumerate(["ann", "bob", "eve"]):
        if not run.done("mail", n):
            with run.step("mail", key=n):
                mail(to)


def a_loop_on_memory(run: Run) -> Any:
    while (n := run.memory.get("n", 0)) < 3:
        with run.step("turn", repeat=True):
            mail(f"friend {n}")
            run.memory["n"] = n + 1
    return run.memory["n"]


def react_on_the_transcript(run: Run) -> Any:
    while True:
        messages = [[x.role, x.content] for x in run.state.messages]
        if messages and messages[-1] == ["assistant", "done"]:
            return messages[-1][1]
        with run.step("turn", repeat=True):
            reply: Any = run.model("m", {"messages": messages}, outside.says)
            run.message("assistant", reply["text"])
            if "mail" in reply:
                run.message("tool", mail(reply["mail"]))


def react_in_one_step(run: Run) -> Any:
    def loop() -> Any:
        messages = [{"role": "user", "content": "write to them"}]
        while True:
            reply: Any = run.model("m", {"messages": messages}, outside.says)
            messages.append({"role": "assistant", "content": reply["text"]})
            if "mail" not in reply:
                return reply["text"]
            messages.append({"role": "tool", "content": mail(reply["mail"])})

    return run.do("all", loop)


def a_helper_calls_tools(run: Run) -> Any:
    def welcome(to: str, order: int) -> list[str]:
        return [mail(to), charge(order)]

    return run.do("welcome", welcome, "ann", 7)


def a_retry_around_a_do(run: Run) -> Any:
    for _ in range(3):
        try:
            return run.do("charge", charge_flaky, 7)
        except StepFailed:
            continue
    return "gave up"


def a_retry_around_a_tool(run: Run) -> Any:
    def stubborn() -> str:
        for _ in range(2):
            with contextlib.suppress(CallFailed):
                return charge_flaky(7)
        return charge_flaky(7)

    return run.do("charge", stubborn)


def an_answer_that_cannot_be_parsed(run: Run) -> Any:
    def plan() -> Any:
        return json.loads(str(run.model("m", {"question": "whom?"}, outside.says)))

    for _ in range(3):
        try:
            return mail_as(run, run.do("plan", plan)["to"])
        except StepFailed:
            continue
    return "gave up"


def mail_as(run: Run, to: str) -> Any:
    return run.do("mail", mail, to)


def an_undeclared_tool_fails_twice(run: Run) -> Any:
    def stubborn() -> str:
        error: Exception | None = None
        for _ in range(3):
            try:
                return flaky("ann")
            except Exception as caught:  # noqa: BLE001 - as newcomers do
                error = caught
        raise AssertionError from error

    return run.do("tell", stubborn)


def a_uuid_that_is_recorded(run: Run) -> Any:
    ident = run.do("id", lambda: str(uuid.uuid4()))
    run.do("mail", mail, "ann")
    return run.do("same", lambda: ident == ident[:]) and len(ident)


def plan_b(run: Run) -> Any:
    def first() -> None:
        mail("ann")
        raise KeyError("no such order")

    try:
        run.do("first", first)
    except StepFailed as failure:
        return run.do("second", mail, failure.type)


def except_exception_in_a_step(run: Run) -> Any:
    def careless() -> str:
        try:
            return flaky("ann")
        except Exception as error:  # noqa: BLE001 - as newcomers do
            return type(error).__name__

    return [run.do("first", careless), run.do("second", mail, "bob")]


def a_thread_of_the_step(run: Run) -> Any:
    def both() -> list[str]:
        got = list[str]()
        thread = run.thread(lambda: got.append(mail("ann")))
        thread.join()
        return [*got, mail("bob")]

    return run.do("both", both)


def memory_that_is_assigned(run: Run) -> Any:
    for to in run.each("mail", ["ann", "bob"]):
        with run.step("mail", key=to):
            mail(to)
            run.memory["sent"] = [*run.memory.get("sent", []), to]
    return run.memory["sent"]


async def gather_in_one_step(run: AsyncRun) -> Any:
    async def both() -> Any:
        return list(await asyncio.gather(mail_async("ann"), mail_async("bob")))

    return await run.do("both", both)


async def a_thread_pool_of_asyncio(run: AsyncRun) -> Any:
    async def one() -> Any:
        return await asyncio.to_thread(mail, "ann")

    return await run.do("one", one)


RIGHT: list[tuple[Agent, list[Any]]] = [
    (a_do_for_each_thing, []),
    (a_do_in_a_loop, []),
    (each, []),
    (done_is_asked_for, []),
    (a_loop_on_memory, []),
    (react_on_the_transcript, TURNS),
    (react_in_one_step, TURNS),
    (a_helper_calls_tools, []),
    (a_retry_around_a_do, []),
    (a_retry_around_a_tool, []),
    (an_answer_that_cannot_be_parsed, UNREADABLE),
    (a_uuid_that_is_recorded, []),
    (plan_b, []),
    (except_exception_in_a_step, []),
    (a_thread_of_the_step, []),
    (memory_that_is_assigned, []),
    (gather_in_one_step, []),
    (a_thread_pool_of_asyncio, []),
]


@pytest.mark.parametrize(("agent", "answers"), RIGHT, ids=[one[0].__name__ for one in RIGHT])
def test_it_goes_on_rightly(agent: Agent, answers: list[Any]) -> None:
    """Wherever it is killed it ends as the one that nobody killed, and each effect happened once."""
    whole, ends = everywhere(agent, answers=answers)
    assert "completed" == whole.status
    assert {1} == set(whole.effects.values())
    for end in ends:
        assert (None, whole.facts) == (end.stop, end.facts)


# ------------------------------------------------------------------------------------- what is refused, and its advice


def a_straight_line(run: Run) -> str:
    with run.step("charge"):
        charge(7)
    with run.step("mail"):
        mail("ann")
    return "end"


def a_straight_line_mended(run: Run) -> str:
    if not run.done("charge"):
        with run.step("charge"):
            charge(7)
    if not run.done("mail"):
        with run.step("mail"):
            mail("ann")
    return "end"


def a_step_for_each_item(run: Run) -> None:
    for to in ["ann", "bob", "eve"]:
        with run.step("mail", key=to):
            mail(to)


def a_step_for_each_mended(run: Run) -> None:
    for to in run.each("mail", ["ann", "bob", "eve"]):
        with run.step("mail", key=to):
            mail(to)


def a_step_that_repeats(run: Run) -> None:
    for to in ["ann", "bob", "eve"]:
        with run.step("mail", repeat=True):
            mail(to)


def a_step_without_key(run: Run) -> None:
    for to in ["ann", "bob", "eve"]:
        with run.step("mail"):
            mail(to)


def a_do_without_key(run: Run) -> None:
    for to in ["ann", "bob", "eve"]:
        run.do("mail", mail, to)


def react_on_a_local_list(run: Run) -> Any:
    messages = [{"role": "user", "content": "write to them"}]
    while True:
        with run.step("turn", repeat=True):
            reply: Any = run.model("m", {"messages": messages}, outside.says)
            messages.append({"role": "assistant", "content": reply["text"]})
            if "mail" not in reply:
                return reply["text"]
            messages.append({"role": "tool", "content": mail(reply["mail"])})


def a_try_around_everything(run: Run) -> str:
    try:
        with run.step("charge"):
            charge(7)
        with run.step("mail"):
            mail("ann")
    except Exception:  # noqa: BLE001 - as newcomers do
        return "something went wrong"
    return "end"


def a_try_that_swallows_all(run: Run) -> str:
    with contextlib.suppress(BaseException):
        with run.step("charge"):
            charge(7)
        with run.step("mail"):
            mail("ann")
    return "end"


def a_try_and_a_step_behind(run: Run) -> str:
    with contextlib.suppress(Exception):
        with run.step("charge"):
            charge(7)
        with run.step("mail"):
            mail("ann")
    run.do("report", mail, "boss")
    return "end"


def a_try_and_a_step_behind_mended(run: Run) -> str:
    end = a_straight_line_mended(run)
    run.do("report", mail, "boss")
    return end


def a_retry_around_a_block(run: Run) -> Any:
    for _ in range(3):
        try:
            with run.step("charge"):
                return charge_flaky(7)
        except Exception:  # noqa: BLE001 - as newcomers do
            continue
    return "gave up"


def a_retry_around_a_block_mended(run: Run) -> Any:
    while not run.done("charge"):
        with contextlib.suppress(StepFailed), run.step("charge"):
            charge_flaky(7)
    return "charge_flaky 7"


def a_return_out_of_a_step(run: Run) -> Any:
    with run.step("mail"):
        return mail("ann")


def a_return_mended(run: Run) -> Any:
    if not run.done("mail"):
        with run.step("mail"):
            mail("ann")
    return "mail ann"


def a_tool_outside_a_step(run: Run) -> Any:
    return mail("ann")


def run_call_outside_a_step(run: Run) -> Any:
    return run.call(mail, to="ann")


def a_message_outside_a_step(run: Run) -> None:
    run.message("user", "hello")


def the_mail(run: Run) -> Any:
    return run.do("mail", mail, "ann")


def a_bare_thread(run: Run) -> None:
    with run.step("mail"):
        failed = list[Exception]()

        def work() -> None:
            try:
                mail("ann")
            except Exception as error:  # noqa: BLE001 - as newcomers do
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]


def a_thread_pool(run: Run) -> Any:
    with run.step("mail"), concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(mail, ["ann"]))


def a_thread_mended(run: Run) -> None:
    if not run.done("mail"):
        with run.step("mail"):
            run.thread(mail, "ann").join()


def memory_that_is_changed_in_place(run: Run) -> None:
    for to in run.each("mail", ["ann"]):
        with run.step("mail", key=to):
            run.memory.setdefault("sent", [])
            mail(to)
            run.memory["sent"].append(to)


def memory_mended(run: Run) -> None:
    for to in run.each("mail", ["ann"]):
        with run.step("mail", key=to):
            mail(to)
            run.memory["sent"] = [to]


def the_run_inside_a_tool(run: Run) -> Any:
    @tool(policy="keyed")
    def remember(what: str, *, idempotency_key: str = KEY) -> str:
        run.memory["what"] = what
        return outside.did("remember", what, idempotency_key)

    return run.do("remember", remember, "milk")


def a_tool_in_a_tool(run: Run) -> Any:
    @tool(policy="keyed")
    def remember(what: str, *, idempotency_key: str = KEY) -> str:
        return mail(what) + outside.did("remember", what, idempotency_key)

    return run.do("remember", remember, "milk")


def remember_mended(run: Run) -> Any:
    @tool(policy="keyed")
    def remember(what: str, *, idempotency_key: str = KEY) -> str:
        return outside.did("remember", what, idempotency_key)

    return run.do("remember", remember, "milk")


def a_step_in_a_step(run: Run) -> None:
    with run.step("welcome"):
        mail("ann")
        with run.step("bill"):
            charge(7)


def a_do_in_a_step(run: Run) -> Any:
    with run.step("welcome"):
        mail("ann")
        run.do("bill", charge, 7)


def one_step_after_the_other(run: Run) -> None:
    if not run.done("welcome"):
        with run.step("welcome"):
            mail("ann")
    run.do("bill", charge, 7)


def a_generator(run: Run) -> None:
    def mails() -> Iterator[str]:
        for to in ["ann", "bob", "eve"]:
            with run.step("mail", key=to):
                yield mail(to)

    assert all(mails())


def a_generator_that_is_closed(run: Run) -> Any:
    def mails() -> Iterator[str]:
        for to in ["ann", "bob", "eve"]:
            with run.step("mail", key=to):
                yield mail(to)

    for sent in mails():
        if sent.endswith("ann"):
            break
    return "end"


def a_generator_mended(run: Run) -> Any:
    if not run.done("mail", "ann"):
        with run.step("mail", key="ann"):
            mail("ann")
    return "end"


async def an_async_generator_that_is_closed(run: AsyncRun) -> Any:
    async def mails() -> AsyncIterator[str]:
        for to in ["ann", "bob"]:
            async with run.step("mail", key=to):
                yield await mail_async(to)

    async for _ in mails():
        break
    return "end"


async def two_steps_at_once(run: AsyncRun) -> None:
    async def one(to: str) -> None:
        async with run.step("mail", key=to):
            await mail_async(to)

    await asyncio.gather(one("ann"), one("bob"))


async def a_task_that_outlives_its_step(run: AsyncRun) -> Any:
    async def later() -> str:
        await asyncio.sleep(9)
        return await mail_async("late")

    async with run.step("begin"):
        task = asyncio.create_task(later())
    await asyncio.sleep(10)
    return await task


async def a_pool_of_the_loop(run: AsyncRun) -> Any:
    async with run.step("mail"):
        return await asyncio.get_running_loop().run_in_executor(None, mail, "ann")


def an_async_tool_in_a_plain_agent(run: Run) -> Any:
    return run.do("mail", mail_async, "ann")


def an_async_function_in_a_do(run: Run) -> Any:
    async def work() -> str:
        return await mail_async("ann")

    return run.do("mail", work)


def an_async_model_in_a_plain_agent(run: Run) -> Any:
    async def ask(request: Any) -> str:
        return str(request)

    with run.step("ask"):
        return run.model("m", {}, ask)


def a_slash_in_a_name(run: Run) -> None:
    with run.step("mail/ann"):
        mail("ann")


Refused = tuple[Agent, type[BaseException], list[str], Agent | None, list[Any]]
NOT_TWICE = ["is complete, and a block isn't done twice", "write `"]
REFUSED: list[Refused] = [
    (a_straight_line, f.StepDone, [*NOT_TWICE, "if not run.done('charge'):", "run.do("], a_straight_line_mended, []),
    (a_try_around_everything, f.StepDone, [*NOT_TWICE, "if not run.done('charge'):"], a_straight_line_mended, []),
    (a_try_that_swallows_all, f.StepDone, [*NOT_TWICE, "if not run.done('charge'):"], a_straight_line_mended, []),
    (a_try_and_a_step_behind, f.StepDone, [*NOT_TWICE, "before it"], a_try_and_a_step_behind_mended, []),
    (a_retry_around_a_block, f.StepDone, [*NOT_TWICE, "if not run.done('charge'):"], a_retry_around_a_block_mended, []),
    (a_step_for_each_item, f.StepDone, [*NOT_TWICE, "run.each('mail', items"], a_step_for_each_mended, []),
    (a_step_that_repeats, f.PlanChanged, ["take the turn from run.state", "or use run.each"], None, []),
    (a_step_without_key, f.StepDone, [*NOT_TWICE, "for x in run.each('mail', items)", "a key for each step"], None, []),
    (a_do_without_key, f.StepDone, ["in a loop give each its own key, run.do('mail', fn, key=…)"], None, []),
    (react_on_a_local_list, f.PlanChanged, ["whose variables are gone: take the turn from run.state"], None, TURNS),
    (a_return_out_of_a_step, f.StepDone, [*NOT_TWICE, "if not run.done('mail'):"], a_return_mended, []),
    (a_tool_outside_a_step, f.NotInRun, ["call it inside a step (`with run.step(name):`)"], the_mail, []),
    (run_call_outside_a_step, f.NotInStep, ["`with run.step(name):` or `run.do(name, fn)`"], the_mail, []),
    (a_message_outside_a_step, f.NotInStep, ["written inside a step: `with run.step(name):`"], the_mail, []),
    (a_bare_thread, f.NotInRun, ["start the thread with run.thread(fn)"], a_thread_mended, []),
    (a_thread_pool, f.NotInRun, ["start the thread with run.thread(fn)"], a_thread_mended, []),
    (memory_that_is_changed_in_place, f.MemoryMutated, ["assign it, so that the log knows"], memory_mended, []),
    (the_run_inside_a_tool, f.ToolUsesRun, ["give it what it needs as arguments"], remember_mended, []),
    (a_tool_in_a_tool, f.ToolUsesRun, ["call other tools", "in the step that calls it"], remember_mended, []),
    (a_step_in_a_step, f.NestedStep, ["end that one first"], one_step_after_the_other, []),
    (a_do_in_a_step, f.NestedStep, ["or do the work of both in one step"], one_step_after_the_other, []),
    (a_generator, f.StepDone, [*NOT_TWICE, "run.each('mail', items"], a_step_for_each_mended, []),
    (a_generator_that_is_closed, f.StepOpen, ["don't yield inside a step"], a_generator_mended, []),
    (an_async_generator_that_is_closed, f.StepOpen, ["don't yield inside a step"], None, []),
    (two_steps_at_once, f.StepOpen, ["`async with run.step(name): await asyncio.gather(…)`"], None, []),
    (a_task_that_outlives_its_step, f.NotInStep, ["a task is awaited before the step ends"], None, []),
    (a_pool_of_the_loop, f.NotInRun, ["doesn't carry its context: call it inside a step"], None, []),
    (an_async_tool_in_a_plain_agent, f.Mistake, ["make it a plain function, or the agent an async one"], the_mail, []),
    (an_async_function_in_a_do, f.Mistake, ["for AsyncJournal.run_async"], the_mail, []),
    (an_async_model_in_a_plain_agent, f.Mistake, ["make it a plain function"], None, []),
    (a_slash_in_a_name, f.Mistake, ["give the rest as key="], the_mail, []),
]


@pytest.mark.parametrize(
    ("agent", "error", "advice", "mended", "answers"), REFUSED, ids=[one[0].__name__ for one in REFUSED]
)
def test_it_is_refused_with_advice(
    agent: Agent, error: type[BaseException], advice: list[str], mended: Agent | None, answers: list[Any]
) -> None:
    """Wherever it is killed it ends rightly or is refused before it does harm; what was mended goes on from there."""
    whole, ends = everywhere(agent, answers=answers)
    refused = [end for end in [whole, *ends] if end.stop is not None]
    for end in [whole, *ends]:
        assert not end.effects - whole.effects
        stands = "waiting" if isinstance(end.stop, f.PlanChanged | f.StepDiverged) else "queued"
        assert (whole.facts if end.stop is None else stands) == (end.facts if end.stop is None else end.status)
    assert {error} <= {type(end.stop) for end in refused} <= {error, f.StepDone}
    told = {str(end.stop) for end in refused if type(end.stop) is error}
    assert any(all(part in text for part in advice) for text in told), told
    if mended is not None:
        right = finish(mended, answers=answers)
        for tick in range(1, whole.world.ticks + 1):
            assert right.facts == finish(agent, [tick], answers=answers, mended=mended).facts


def test_a_block_that_becomes_a_do() -> None:
    """A run that began with a block is not talked into doing it again under another name."""

    def changed(run: Run) -> Any:
        return [run.do("charge", charge, 7), run.do("mail", mail, "ann")]

    whole = finish(a_straight_line)
    texts = set[str]()
    for tick in range(1, whole.world.ticks + 1):
        end = finish(a_straight_line, [tick], mended=changed)
        if isinstance(end.stop, f.PlanChanged):
            texts.add(str(end.stop))
        assert not end.effects - whole.effects
    (text,) = texts
    assert text.startswith(
        "step charge was begun as a block (run.step), and today's code asks for it by run.do: write it "
    )
    assert text.endswith("as it was, for under another name what it did would be done again")
    assert whole.facts == finish(a_straight_line, [25], mended=a_straight_line_mended).facts


def test_an_undeclared_tool_fails_twice() -> None:
    """A person is asked each time, and the agent, which would try it again at once, hears of no failure."""
    heard = list[BaseException]()

    def stubborn() -> str:
        for _ in range(3):
            try:
                return flaky("ann")
            except Exception as failure:  # noqa: BLE001 - as newcomers do
                heard.append(failure)
        raise AssertionError

    whole, ends = everywhere(lambda run: run.do("tell", stubborn))
    assert ("completed", "flaky ann", {("flaky", '"ann"'): 1}) == (whole.status, whole.output, whole.effects)
    assert {repr(whole.facts)} == {repr(end.facts) for end in ends}
    assert [] == heard


def test_a_tool_whose_agent_is_told_that_nobody_knows() -> None:
    """It isn't sent again, for it may have happened; the error says what to tell the journal of the tool."""

    def agent(run: Run) -> Any:
        with run.step("tell"):
            for _ in range(3):
                try:
                    return told("ann")
                except CallFailed:
                    continue
                except CallOutcomeUnknown as unknown:
                    notes.append(*unknown.__notes__)
                    raise
        raise AssertionError

    told = tool(on_unknown="fail", name="told")(flaky.fn)
    notes = list[str]()
    whole, ends = everywhere(agent)
    for end in (whole, *ends):
        assert ("failed", "CallOutcomeUnknown", {}) == (end.status, end.output["type"], end.effects)
    assert any('@tool(policy="idempotent")' in note and "reconcile=" in note for note in notes)


def test_a_uuid_in_an_argument() -> None:
    """A step that would send with another one is refused, and the advice is to make it once; nothing is sent twice."""

    def agent(run: Run) -> Any:
        return run.do("mail", lambda: [mail(str(uuid.uuid4())), charge(7)])

    whole, ends = everywhere(agent)
    assert {("completed", None), ("waiting", f.StepDiverged)} == {
        (end.status, end.stop and type(end.stop)) for end in [whole, *ends]
    }
    for end in ends:
        assert 1 >= sum(count for (name, _), count in end.effects.items() if name == "mail")
        assert end.stop is None or "in a step before this one, `x = run.do(name, make)`" in str(end.stop)


def test_a_file_that_says_which_step_is_next() -> None:
    """A list that has changed while a step was open is refused, and the advice is to read it once."""
    reads = list[int]()

    def agent(run: Run) -> None:
        reads.append(1)
        for to in run.each("mail", ["ann", "bob"] if len(reads) == 1 else ["bob", "eve"]):
            with run.step("mail", key=to):
                mail(to)

    def read_once(run: Run) -> None:
        for to in run.each("mail", ["ann", "bob"]):
            with run.step("mail", key=to):
                mail(to)

    ticks = finish(agent).world.ticks
    stops = set[str]()
    for tick in range(1, ticks + 1):
        reads.clear()
        end = finish(agent, [tick], mended=read_once)
        stops |= {str(end.stop)} if end.stop else set()
        assert {1} == set(end.effects.values())
    (stop,) = stops
    assert "step mail/ann is open, mail/bob was asked for" in stop
    assert "(a file, a clock, a list) is made once, `x = run.do(name, make)`" in stop


def test_a_coroutine_function_for_a_plain_journal() -> None:
    """It is refused before a run is there."""

    async def agent(run: AsyncRun) -> None:
        await run.do("mail", mail, "ann")

    with Journal.open("memory:") as journal:
        with pytest.raises(f.Mistake, match=r"run it with AsyncJournal\.run_async"):
            journal.run(agent, run_id="r")  # type: ignore[arg-type]  # that it is one is what is tested
        assert [] == list(journal.runs())


# ------------------------------------------------------------------------------------------------ what can't be seen


def a_look_at_something_else(run: Run) -> None:
    """It has looked at memory, but takes its turns from a list of its own: its first turns are done again."""
    run.memory.get("language")
    for to in ["ann", "bob", "eve"]:
        with run.step("mail", repeat=True):
            mail(to)


def a_clock_in_a_key(run: Run) -> None:
    """Each process has other steps; what the one before has completed is done again."""
    for to in ["ann", "bob"]:
        run.do("mail", mail, to, key=f"{to} {datetime.now().isoformat()}")  # noqa: DTZ005


def a_result_in_a_local_list(run: Run) -> list[str]:
    """What the steps of a dead process had put there is missing."""
    sent = list[str]()
    for to in run.each("mail", ["ann", "bob"]):
        with run.step("mail", key=to):
            sent.append(mail(to))
    return sent


@pytest.mark.parametrize("agent", [a_look_at_something_else, a_clock_in_a_key, a_result_in_a_local_list])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="what the code means by it can't be seen from outside")
def test_what_is_not_found(agent: Agent) -> None:
    """Known limits: these should be refused, or go on rightly, and do neither."""
    whole, ends = everywhere(agent)
    for end in ends:
        assert end.stop is not None or whole.facts == end.facts
