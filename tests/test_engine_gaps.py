"""Rules of the product alone, each with the smallest agent that shows it; those of the model are in `model/rules.py`.

An interrupt in the agent stands for the death of its process: the run is released, and the next call of the agent
knows nothing but the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from tasks.lab import Lab

from runjournal import Journal, tool
from runjournal.async_journal import AsyncJournal
from runjournal.engine import failures as f
from runjournal.engine.tools import KEY, Tx
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.errors import CallEnded, StoreBusy, StoreFull
from runjournal.log.limits import attempt_recoveries_max, lease_s, left_out_wait_s, steps_recent_max
from runjournal.log.owner import Process
from runjournal.run import Run
from runjournal.runner import Runner


@pytest.fixture
def journal() -> Iterator[Journal]:
    with Journal.open("memory:", clock=FakeClock()) as opened:
        yield opened


def interrupted(journal: Journal, agent: Callable[[Run], Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        journal.run(agent, run_id="r")


def events(journal: Journal, kind: type[Any], run_id: str = "r") -> list[Any]:
    return [record.event for record in journal.events(run_id) if isinstance(record.event, kind)]


def once() -> Callable[[], bool]:
    """True at the first call."""
    calls = iter([True])
    return lambda: next(calls, False)


# --------------------------------------------------------------------------------------------------------------- steps


@pytest.mark.parametrize("look", ["messages", "plan", "memory", "signals"])
def test_a_look_at_any_part_of_the_context_tells_a_loop_where_it_is(journal: Journal, look: str) -> None:
    """Each of them alone is enough for a later turn of another process's loop."""
    looks = {
        "messages": lambda run: run.state.messages,
        "plan": lambda run: run.state.plan.next(),
        "memory": lambda run: len(run.memory),
        "signals": lambda run: run.signals(),
    }
    first = once()

    def agent(run: Run) -> str:
        with run.step("turn", repeat=True):
            looks[look](run)
            run.message("user", "hello")
        if first():
            raise KeyboardInterrupt
        return "done"

    interrupted(journal, agent)
    assert "done" == journal.run(agent, run_id="r")


def test_the_same_code_may_leave_out_what_it_did(journal: Journal) -> None:
    """A `do` that was left out by a branch, not by a change of the code, doesn't stop the run."""
    first = once()

    @tool
    def charge() -> str:
        return "charged"

    def agent(run: Run) -> str:
        if first():
            run.do("charge", charge)
            raise KeyboardInterrupt
        return run.do("mail", lambda: "sent")

    interrupted(journal, agent)
    assert "sent" == journal.run(agent, run_id="r")


def test_a_step_of_long_ago_is_done(journal: Journal) -> None:
    """Of more steps than the state remembers each is done once, and its result comes back from the log."""
    count, first, done = steps_recent_max + 6, once(), list[int]()

    def once_more(i: int) -> int:
        done.append(i)
        return i

    def agent(run: Run) -> list[int]:
        got = [run.do("item", once_more, i, key=i) for i in range(count)]
        if first():
            raise KeyboardInterrupt
        return got

    interrupted(journal, agent)
    assert list(range(count)) == journal.run(agent, run_id="r") == done


def test_a_value_that_was_assigned_may_have_been_changed_in_place(journal: Journal) -> None:
    """What was handed out before the assignment isn't looked at any more."""

    def agent(run: Run) -> Any:
        with run.step("a"):
            run.memory["list"] = [1]
            items = run.memory["list"]
            items.append(2)
            run.memory["list"] = items
        return run.memory["list"]

    assert [1, 2] == journal.run(agent, run_id="r")


def test_an_agent_that_returns_inside_a_step_is_mistaken(journal: Journal) -> None:
    """A step that was entered by hand and not left: the run is released, with the step open."""
    entered: list[Any] = []

    def agent(run: Run) -> str:
        entered.append(run.step("a"))
        entered[0].__enter__()
        return "done"

    with pytest.raises(f.StepOpen):
        journal.run(agent, run_id="r")
    assert "queued" == journal.state("r").status.status
    assert not events(journal, e.RunCompleted)


# -------------------------------------------------------------------------------------------------- what a run ends as


@pytest.mark.parametrize("name", ["Rejected", "CallOutcomeUnknown"])
def test_no_class_of_an_agents_own_is_taken_for_ours(journal: Journal, name: str) -> None:
    """What a failure is isn't told by the name of its class."""
    mine = type(name, (Exception,), {})

    def agent(run: Run) -> None:
        with run.step("a"):
            raise mine("no")

    with pytest.raises(f.StepFailed):
        journal.run(agent, run_id="r")
    assert ("failed", "error") == (journal.state("r").status.status, journal.state("r").status.cause)


def test_a_no_that_leaves_the_agent_is_the_cause(journal: Journal) -> None:
    """The run has failed because a person said no."""
    with pytest.raises(f.RunWaiting) as waits:
        journal.run(lambda run: run.ask("ok?"), run_id="r")
    journal.reject("r", waits.value.waits[0]["id"])
    with pytest.raises(f.Rejected):
        journal.run(lambda run: run.ask("ok?"), run_id="r")
    assert "rejected" == journal.state("r").status.cause


@pytest.mark.parametrize(("second", "status"), [(f.Transient, "scheduled_retry"), (ValueError, "failed")])
def test_a_group_is_transient_if_all_of_it_is(journal: Journal, second: type[Exception], status: str) -> None:
    """One failure that trying again can't help ends the run."""

    def agent(run: Run) -> None:
        raise ExceptionGroup("both", [f.Transient("busy"), second("no")])

    with pytest.raises(ExceptionGroup):
        journal.run(agent, run_id="r")
    assert status == journal.state("r").status.status


def test_a_round_begins_when_it_is_due(journal: Journal) -> None:
    """Before that the run is left alone."""
    first = once()

    def agent(run: Run) -> str:
        if first():
            raise f.Transient("busy")
        return "done"

    with pytest.raises(f.Transient):
        journal.run(agent, run_id="r")
    with pytest.raises(f.RunNotDue):
        journal.run(agent, run_id="r")
    journal.clock.sleep(10)
    assert "done" == journal.run(agent, run_id="r")


def test_an_attempt_of_a_step_is_not_recovered_for_ever(journal: Journal) -> None:
    """R81: its calls end one after the other, and each time its process dies: that isn't getting on either."""
    journal.enqueue("agent", run_id="r")
    for number in range(attempt_recoveries_max + 1):
        claim = journal.claim("r")
        assert claim is not None
        entered = e.StepStarted(0, "a", "a", "once", number + 1, 1)
        started = e.ToolStarted(f"call {number}", "look", {}, "idempotent", read_only=True, on_unknown="ask", attempt=1)
        journal.append("r", [entered, started, e.ToolCompleted(f"call {number}", 1, None)], epoch=claim.epoch)
        journal.clock.sleep(lease_s + 1)
    assert journal.claim("r") is None
    assert [{"kind": "recoveries", "id": "restart_loop"}] == journal.state("r").status.waits
    assert journal.claim("r") is None
    journal.resume("r")
    assert journal.claim("r") is not None


def test_a_run_is_of_one_input(journal: Journal) -> None:
    """With another one it isn't run, and its output isn't given."""
    assert 1 == journal.run(lambda run: run.input, run_id="r", input=1)
    with pytest.raises(f.InputDiffers):
        journal.run(lambda run: run.input, run_id="r", input=2)


# --------------------------------------------------------------------------------------------------------------- calls


def test_a_hook_has_a_copy_of_the_arguments(journal: Journal) -> None:
    """What it does to them isn't what the next attempt is begun with, or what it is asked about again."""
    words = iter([None, None, ("did_not_happen", None)])
    asked = list[Any]()

    def word(args: dict[str, Any], key: str) -> Any:
        asked.append([*args["items"]])
        args["items"].append("more")
        return next(words)

    first, unknown = once(), list[int]()

    @tool(reconcile=word, on_unknown="fail")
    def send(items: list[str]) -> list[str]:
        if first():
            raise ValueError("lost")
        return items

    def agent(run: Run) -> Any:
        with run.step("a"):
            for nth in (1, 2):
                try:
                    return send(["one"])
                except f.CallOutcomeUnknown:
                    unknown.append(nth)
            return send(["one"])

    assert ["one"] == journal.run(agent, run_id="r")
    assert ([["one"]] * 3, [1, 2]) == (asked, unknown)
    assert [["one"]] * 2 == [event.args["items"] for event in events(journal, e.ToolStarted)]


def test_a_call_gives_the_same_live_and_after_a_crash(journal: Journal) -> None:
    """A result is what the log gives back, parsed by `into`, and nobody's own object; a failure is type and message."""
    kept, first, heard = ["one"], once(), list[Any]()

    @tool(read_only=True, into=frozenset)
    def look() -> Any:
        return kept

    @tool(read_only=True)
    def look_at_all() -> list[str]:
        return kept

    @tool(read_only=True)
    def fail() -> None:
        raise LookupError("nothing there")

    def agent(run: Run) -> None:
        with run.step("a"):
            seen, found = look(), look_at_all()
            with pytest.raises(f.CallFailed) as caught:
                fail()
            heard.append((seen, list(found), str(caught.value), caught.value.type))
            found.append("mine")
            if first():
                raise KeyboardInterrupt

    interrupted(journal, agent)
    journal.run(agent, run_id="r")
    assert [(frozenset({"one"}), ["one"], "LookupError: nothing there", "LookupError")] * 2 == heard
    assert ["one"] == kept


def test_an_answer_that_is_rejected_was_paid_for(journal: Journal) -> None:
    """Its tokens count as those of the one that is taken."""
    answers = iter([{"ok": False, "usage": {"input_tokens": 3}}, {"ok": True, "usage": {"input_tokens": 4}}])

    def agent(run: Run) -> Any:
        with run.step("a"):
            return run.model("m", "hello", lambda request: next(answers), check=lambda answer: answer["ok"])["ok"]

    assert journal.run(agent, run_id="r")
    assert 7 == journal.state("r").costs.tokens()


def test_a_budget_is_looked_at_before_each_paid_call(journal: Journal) -> None:
    """The second question of a step isn't asked when the first answer has used up what the run may spend."""
    asked: list[str] = []

    def think(request: str) -> Any:
        asked.append(request)
        return {"usage": {"input_tokens": 7}}

    def agent(run: Run) -> None:
        with run.step("a"):
            for question in ("one", "two"):
                run.model("m", question, think)

    with pytest.raises(f.RunFailed, match="budget"):
        journal.run(agent, run_id="r", budget={"tokens": 5})
    assert ["one"] == asked


@pytest.mark.parametrize("policy", ["transactional", "idempotent", "keyed", "unsafe"])
def test_no_body_is_run_without_a_lease(journal: Journal, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is looked at directly before a call, whatever its policy."""
    sent: list[str] = []

    def act(tx: Any = None, idempotency_key: str = KEY) -> None:
        sent.append(policy)

    def fenced(runner: Runner, run_id: str, epoch: int) -> None:
        raise f.Fenced(run_id)

    act.__name__ = policy
    monkeypatch.setattr(Runner, "check_lease", fenced)
    made = tool(policy=policy)(_of(act, tx=policy == "transactional"))
    with pytest.raises(f.RunBusy):
        journal.run(lambda run: run.do("a", made), run_id="r")
    assert [] == sent


def _of(act: Callable[..., None], *, tx: bool) -> Callable[..., None]:
    def with_tx(tx: Tx) -> None:
        act(tx)

    def without(idempotency_key: str = KEY) -> None:
        act()

    return with_tx if tx else without


def test_an_owner_whose_lease_ran_out_looks_who_has_the_run(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped behind its intent for longer than its lease, and somebody has claimed the run: nothing is sent."""
    append, sent, here = journal.append, list[str](), journal.ownership.process
    other = Journal(journal.store, process=Process(here.host, here.boot_id, here.pid_ns, here.pid + 1, "1"))

    def stalls(run_id: Any, drafts: Any = (), **how: Any) -> Any:
        records = append(run_id, drafts, **how)
        if [each.TYPE for each in drafts] == ["tool.started"]:
            journal.clock.sleep(lease_s + 1)
            assert other.claim("r") is not None
        return records

    @tool
    def send() -> None:
        sent.append("sent")

    monkeypatch.setattr(journal, "append", stalls)
    with pytest.raises(f.RunBusy):
        journal.run(lambda run: run.do("a", send), run_id="r")
    assert [] == sent


def test_what_has_happened_in_a_scope_is_never_begun_again(journal: Journal) -> None:
    """The log refuses the intent, also when the step that had asked for the call is complete and its call forgotten."""

    @tool(key="rent")
    def pay() -> str:
        return "receipt"

    def agent(run: Run) -> None:
        run.do("a", pay)
        start = e.ToolStarted("rent", "pay", {}, "unsafe", read_only=False, on_unknown="fail", attempt=1)
        with run.step("b"), pytest.raises(CallEnded):
            journal.append("r", [start], epoch=run._core.epoch)

    journal.run(agent, run_id="r")
    assert 1 == len(events(journal, e.ToolStarted))


def test_an_outcome_is_told_to_the_log_again_and_again(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is busy for a while loses no effect: the lease is held, and the result recorded."""
    append, busy = journal.append, iter([True, True, True])

    def sometimes(run_id: Any, drafts: Any = (), **how: Any) -> Any:
        if [each.TYPE for each in drafts] == ["tool.completed"] and next(busy, False):
            raise StoreBusy("busy")
        return append(run_id, drafts, **how)

    @tool
    def pay() -> str:
        return "receipt"

    monkeypatch.setattr(journal, "append", sometimes)
    assert "receipt" == journal.run(lambda run: run.do("a", pay), run_id="r")


def test_an_effect_that_got_lost_can_not_be_swallowed(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the agent gets it, though the agent catches everything; nothing else is sent."""
    append, sent = journal.append, list[str]()

    def full(run_id: Any, drafts: Any = (), **how: Any) -> Any:
        if [each.TYPE for each in drafts] == ["tool.completed"]:
            raise StoreFull("full")
        return append(run_id, drafts, **how)

    @tool
    def pay(what: str) -> str:
        sent.append(what)
        return what

    def agent(run: Run) -> None:
        with run.step("a"):
            for what in ("rent", "phone"):
                with suppress(Exception):
                    pay(what)

    monkeypatch.setattr(journal, "append", full)
    with pytest.raises(f.EffectNotRecorded):
        journal.run(agent, run_id="r")
    assert ["rent"] == sent


def test_nothing_is_sent_past_a_question_that_is_left_out(journal: Journal) -> None:
    """The call behind it on record is told at last; then a new one isn't sent, though nothing is left to be told."""
    asks, first = [True], once()

    @tool
    def send_past(number: int) -> int:
        return number

    def agent(run: Run) -> None:
        with run.step("a"):
            if asks:
                run.ask("ok?")
            send_past(1)
            if first():
                raise KeyboardInterrupt
            send_past(2)

    with pytest.raises(f.RunWaiting) as waits:
        journal.run(agent, run_id="r")
    journal.approve("r", waits.value.waits[0]["id"])
    interrupted(journal, agent)
    asks.clear()
    with pytest.raises(f.StepDiverged):
        journal.run(agent, run_id="r")
    assert [{"number": 1}] == [event.args for event in events(journal, e.ToolStarted)]


# ------------------------------------------------------------------------------------------------------------- asyncio


def test_an_asyncio_question_outside_a_step_is_a_step_of_its_own_name() -> None:
    """A yes to `deploy` isn't the result of the step `deploy`."""

    async def agent(run: Any) -> Any:
        await run.ask("deploy")
        return await run.do("deploy", lambda: "deployed")

    async def main() -> Any:
        with AsyncJournal.open("memory:", clock=FakeClock()) as journal:
            with pytest.raises(f.RunWaiting) as waits:
                await journal.run_async(agent, run_id="r")
            journal.approve("r", waits.value.waits[0]["id"])
            return await journal.run_async(agent, run_id="r")

    assert "deployed" == asyncio.run(main())


def test_an_asyncio_loop_over_items_leaves_out_the_done_ones() -> None:
    """`each` gives those whose step is still to be done."""
    seen: list[int] = []
    first = once()

    async def agent(run: Any) -> str:
        for item in run.each("item", [1, 2, 3]):
            async with run.step("item", key=item):
                seen.append(item)
            if first():
                raise f.Transient("busy")
        return "done"

    async def main() -> Any:
        with AsyncJournal.open("memory:", clock=FakeClock()) as journal:
            with pytest.raises(f.Transient):
                await journal.run_async(agent, run_id="r")
            journal.clock.sleep(10)
            return await journal.run_async(agent, run_id="r")

    assert "done" == asyncio.run(main())
    assert [1, 2, 3] == seen


def died_once(lab: Lab, body: Callable[[Any], Any]) -> float:
    """A step beside another task, whose first process dies at its end: how long its longest process took."""

    async def agent(run: Any) -> None:
        async with run.step("s"):
            other = asyncio.create_task(asyncio.sleep(1000))
            await body(run)
            if lab.processes == 1:
                lab.world.plan.add(lab.world.ticks + 1)
                run.message("user", "it dies here")
            other.cancel()

    assert "completed" == lab.run(agent)
    assert 2 == lab.processes
    return lab.slowest


def test_what_was_tried_again_within_an_ask_is_not_waited_for_again() -> None:
    """It was asked for once, so in the next process nobody waits for a second ask."""
    lab, first = Lab(slow={"B": 1}), once()

    async def busy(x: str, *, idempotency_key: str = KEY) -> str:
        if first():
            raise f.Transient("busy")
        return x

    tool_ = lab.tool("busy", "idempotent", busy)

    async def body(run: Any) -> None:
        await run.call(tool_, x="A")
        await run.call(lab.tools["idempotent"], x="B")

    assert died_once(lab, body) < left_out_wait_s


def test_who_is_left_out_is_waited_for_once() -> None:
    """The first end behind it waits in vain, those after that don't wait any more."""
    lab = Lab(slow=dict.fromkeys("ABC", 1))

    async def body(run: Any) -> None:
        for x in "ABC" if lab.processes == 1 else "BC":
            await run.call(lab.tools["idempotent"], x=x)

    assert left_out_wait_s <= died_once(lab, body) < 2 * left_out_wait_s


def test_an_end_waits_for_a_call_that_was_asked_for_again_before_it() -> None:
    """A failed call is asked for twice; what ended behind its second start is told behind its second ask."""
    lab, first, order = Lab(slow={"B": 3}), once(), list[str]()

    async def fails(x: str, *, idempotency_key: str = KEY) -> str:
        if first():
            raise ValueError("the first time")
        await asyncio.sleep(5)
        return x

    tool_ = lab.tool("fails", "idempotent", fails)

    async def again(run: Any) -> None:
        with suppress(f.CallFailed):
            await run.call(tool_, x="A")
        await asyncio.sleep(0 if lab.processes == 1 else 5)
        order.append("again")
        await run.call(tool_, x="A")

    async def other(run: Any) -> None:
        await run.call(lab.tools["idempotent"], x="B")
        order.append("B")

    async def body(run: Any) -> None:
        await asyncio.gather(again(run), other(run))

    died_once(lab, body)
    assert ["again", "B"] * 2 == order


def test_something_new_is_sent_when_all_that_is_recorded_has_been_told() -> None:
    """Also what may simply be made again: whoever waits for its end may have something to say about the new call."""
    lab, order = Lab(slow={"A": 1}), list[str]()

    async def send(*, idempotency_key: str = KEY) -> None:
        order.append("sent")

    tool_ = lab.tool("send", "unsafe", send)

    async def first(run: Any) -> None:
        await asyncio.sleep(0 if lab.processes == 1 else 5)
        await run.call(lab.tools["idempotent"], x="A")
        order.append("A")

    async def second(run: Any) -> None:
        if lab.processes == 2:
            await run.call(tool_)

    async def body(run: Any) -> None:
        await asyncio.gather(first(run), second(run))

    died_once(lab, body)
    assert ["A", "A", "sent"] == order


@pytest.mark.parametrize("what", ["answer", "word"])
def test_what_people_say_is_told_in_its_turn(what: str) -> None:
    """It came when another call had ended: whoever enters the step again is told of that one first."""
    lab, order, entries = Lab(slow={"A": 1, "B": 1}, fails={"A"}), list[str](), list[str]()

    async def asks(run: Any) -> None:
        if what == "answer":
            await run.ask("ok?")
        else:
            await run.call(lab.tools["patient"], x="A")
        order.append(what)

    async def other(run: Any) -> None:
        await asyncio.sleep(0 if len(entries) == 1 else 5)
        await run.call(lab.tools["idempotent"], x="B")
        order.append("B")

    async def agent(run: Any) -> None:
        entries.append("entry")
        async with run.step("s"):
            await asyncio.gather(asks(run), other(run))

    assert "waiting" == lab.run(agent)
    (wait,) = lab.state.status.waits
    if what == "answer":
        lab.outside().approve("r", wait["id"])
    else:
        lab.outside().resolve("r", wait["id"], "happened", "by hand")
    assert "completed" == lab.run(agent)
    assert ["B", "B", what] == order


def test_a_step_does_not_end_while_a_question_is_open() -> None:
    """Its body is over, and a task of it still asks: the run waits, with the step open."""
    lab = Lab()

    async def agent(run: Any) -> None:
        async with run.step("s"):
            asking = asyncio.create_task(run.ask("ok?"))
            await asyncio.sleep(0)
            assert not asking.done()

    assert "waiting" == lab.run(agent)
    assert lab.state.steps.open is not None


def test_a_stop_ends_every_wait() -> None:
    """Another task waits for what is left out; when the run is cancelled it is stopped at once, not after its wait."""
    lab = Lab(slow=dict.fromkeys("ABZ", 1))

    async def cancels(run: Any) -> None:
        await asyncio.sleep(1)
        lab.outside().cancel("r", mode="now")
        await run.call(lab.tools["idempotent"], x="B")

    async def agent(run: Any) -> None:
        async with run.step("s"):
            if lab.processes == 1:
                await run.call(lab.tools["unsafe"], x="A")
                lab.world.plan.add(lab.world.ticks + 1)
                run.message("user", "it dies here")
            waits = asyncio.create_task(run.call(lab.tools["unsafe2"], x="Z"))
            await asyncio.gather(cancels(run), waits, return_exceptions=True)

    assert "cancelled" == lab.run(agent)
    assert lab.slowest < left_out_wait_s
    assert "Z" not in lab.tags
