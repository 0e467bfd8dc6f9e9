"""`Journal.check`: whether today's code of an agent can go on with a stored run, every call served from its log."""

import asyncio
import contextlib
import copy
import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from model.lab import AsyncLab, Lab
from model.product import AsyncJournal as AsyncInParts
from model.product import AsyncProduct, AsyncRunView, Product, RunView, Together, on_a_loop
from model.programs import POLICIES, programs

from runjournal import KEY, AsyncJournal, Journal, Mistake, RunWaiting, StepFailed, tool
from runjournal.log.clock import FakeClock
from runjournal.log.errors import RunNotFound

CALLED: list[Any] = []


@tool(policy="keyed")
def pay(cents: int, to: str = "ada", *, idempotency_key: str = KEY) -> str:
    CALLED.append(("pay", cents))
    return f"paid {cents}"


@tool
def mail(to: str) -> str:
    CALLED.append(("mail", to))
    return f"mail to {to}"


@tool(read_only=True)
def look(at: int) -> int:
    CALLED.append(("look", at))
    if at < 0:
        raise ValueError("no such place")
    return at


def says(request: Any) -> Any:
    CALLED.append(("model", request))
    return {"text": "yes"}


@pytest.fixture
def journal():
    CALLED.clear()
    with Journal.open("memory:", clock=FakeClock()) as journal:
        yield journal


def recorded(run: Any) -> Any:
    """The agent that has made the runs."""
    first = run.do("load", lambda: 7)
    if not run.done("think"):
        with run.step("think"):
            run.message("user", "shall I?")
            run.memory["answer"] = run.model("m", {"q": "shall I?", "n": [first]}, says)["text"]
            run.memory["place"] = look(first)
    try:
        run.do("fail", look, -1)
    except StepFailed as failure:
        said = str(failure)
        run.do("note", lambda: said)
    allowed = run.ask("pay", args={"cents": 5})
    run.do("pay", pay, allowed["cents"])
    return run.do("mail", mail, "ann")


def made(journal: Journal, agent: Callable[[Any], Any] = recorded, answer: str = "yes") -> None:
    """Run an agent to its end."""
    try:
        journal.run(agent, run_id="r")
    except RunWaiting as waiting:
        if answer == "yes":
            journal.approve("r", waiting.waits[0]["id"])
            journal.run(agent, run_id="r")


def variant(old: str, new: str) -> Callable[[Any], Any]:
    """The agent with a piece of its code replaced."""
    source = inspect.getsource(recorded)
    assert 1 == source.count(old), old
    names: dict[str, Any] = dict(globals())
    exec(source.replace(old, new), names)
    changed: Callable[[Any], Any] = names["recorded"]
    return changed


def test_the_code_that_made_it_passes_and_calls_nothing(journal):
    """Nothing is called or written; a function in which nothing was journalled isn't called, either."""
    made(journal)
    before, called = journal.store.last_position(), list(CALLED)
    agent = variant("lambda: 7", "lambda: CALLED.append('load')")
    for each in (recorded, agent):
        found = journal.check(each, "r")
        assert (True, "it does what was recorded", "") == (found.ok, found.message, found.unchecked)
    assert (before, called) == (journal.store.last_position(), CALLED)


CHANGES = {
    "a renamed step": (
        'run.step("think")',
        'run.step("ponder")',
        "recorded is step think (once), today's code has step ponder (once)",
    ),
    "a renamed do": (
        'run.do("pay"',
        'run.do("payment"',
        "recorded is step pay (do), today's code has step payment (do)",
    ),
    "another kind": (
        'run.do("mail", mail, "ann")',
        'run.step("mail").__enter__()',
        "recorded is step mail (do), today's code has step mail (once)",
    ),
    "a step less": (
        '    run.do("pay", pay, allowed["cents"])\n',
        "",
        "recorded is step pay (do), today's code has step mail (do)",
    ),
    "an end before": (
        "    allowed = run.ask",
        "    return 1\n    allowed = run.ask",
        "recorded is step ask pay, today's code has the end of the run",
    ),
    "a changed argument": (
        'allowed["cents"])',
        'allowed["cents"] + 1)',
        'a call of pay ({"cents":6,"to":"ada"}): $.args.cents was 5, is 6',
    ),
    "an added unsafe call": (
        '            run.memory["place"]',
        '            mail("bob")\n            run.memory["place"]',
        'step think: recorded is a call of look ({"at":7}), today\'s code has a call of mail ({"to":"bob"})',
    ),
    "another question": ('args={"cents": 5}', 'args={"cents": 6}', "$.args.cents was 5, is 6"),
    "another message": ('message("user", "shall I?")', 'message("user", "no?")', "$.content was shall I?, is no?"),
    "another value": (
        '["text"]',
        '["text"] + "!"',
        "recorded is memory answer = yes, today's code has memory answer = yes!",
    ),
    "another failure": (
        'run.do("fail", look, -1)',
        'run.do("fail", lambda: look(-1) if 0 else 1 / 0)',
        "today's code has a failure of the step (ZeroDivisionError",
    ),
    "another output": (
        'return run.do("mail", mail, "ann")',
        'return [run.do("mail", mail, "ann")]',
        'recorded is the output of the run mail to ann, today\'s code has ["mail to ann"]',
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_first_divergence_is_found(journal, change):
    """It says what is recorded, what today's code asks for, and where; nothing is called."""
    old, new, words = CHANGES[change]
    made(journal)
    called = list(CALLED)
    found = journal.check(variant(old, new), "r")
    assert not found.ok
    assert words in found.message
    assert called == CALLED
    if found.seq is not None:
        assert 1 <= found.seq <= journal.head("r").head_seq


def test_a_waiting_run_passes_and_is_taken_up(journal):
    """It can go on where it waits; code that doesn't ask the question can't."""
    made(journal, answer="")
    found = journal.check(recorded, "r")
    assert (True, "it can go on in step ask pay: a wait for approval") == (found.ok, found.message)
    found = journal.check(variant('allowed = run.ask("pay", args={"cents": 5})', 'allowed = {"cents": 5}'), "r")
    assert not found.ok
    assert "recorded is step ask pay" in found.message


def test_a_loop_on_local_variables_is_found_in_a_run_that_goes_on(journal):
    """A completed run it has made is as the code says; one that is half-way it can't go on with."""
    strikes = [True]

    def loop(run):
        for n in range(3):
            with run.step("turn", repeat=True):
                look(n)
                if n == 2 and strikes:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        journal.run(loop, run_id="r")
    strikes.clear()
    found = journal.check(loop, "r")
    assert not found.ok
    assert found.message.startswith("PlanChanged: ")
    journal.cancel("r")
    assert journal.check(loop, "r").ok


def test_a_half_way_step_of_a_changed_call_is_found(journal):
    """What was sent in the open step is not asked for: nothing more is asked of anybody."""

    def agent(run):
        with run.step("a"):
            mail("ann")
            raise KeyboardInterrupt

    def changed(run):
        with run.step("a"):
            mail("bob")

    def more(run):
        with run.step("a"):
            mail("ann")
            mail("bob")

    with pytest.raises(KeyboardInterrupt):
        journal.run(agent, run_id="r")
    assert journal.check(more, "r").ok
    found = journal.check(changed, "r")
    assert (False, "a") == (found.ok, found.step)
    assert 'today\'s code has a call of mail ({"to":"bob"}): $.args.to was ann, is bob' in found.message
    assert [("mail", "ann")] == CALLED


def test_a_changed_prompt_of_steps_that_are_over_is_a_remark(journal):
    """It keeps no run from going on: what was made of the answers is on record."""
    made(journal)
    found = journal.check(variant('"n": [first]', '"n": [first, 2]'), "r")
    assert (True, "it does what was recorded") == (found.ok, found.message)
    assert ("step think: the request to m differs: $.request.n[1]",) == found.remarks
    assert () == journal.check(recorded, "r").remarks


@pytest.mark.parametrize("apart", [True, False])
def test_a_changed_prompt_of_an_open_step(journal, apart):
    """Beside an effect it stops the run, and that is found; in a step of its own, as in `run.turn`, it doesn't."""

    def agent(prompt):
        def loop(run):
            if not run.done("ask"):
                with run.step("ask"):
                    run.memory["to"] = run.model("m", {"q": prompt}, says)["text"]
                    if not apart:
                        mail(run.memory["to"])
                        strike()
            return run.do("mail", lambda: [mail(run.memory["to"]), strike()])

        return loop

    def strike():
        if strikes:
            strikes.pop()
            raise KeyboardInterrupt

    strikes = [True]

    with pytest.raises(KeyboardInterrupt):
        journal.run(agent("old"), run_id="r")
    assert journal.check(agent("old"), "r").ok
    found = journal.check(agent("new"), "r")
    assert apart == found.ok
    assert apart == bool(found.remarks)


def test_rounds_retries_and_forks(journal):
    """A run of several rounds is checked round by round; one that goes on from another, behind what that has done."""
    tries = [0]

    @tool(read_only=True)
    def flaky() -> str:
        tries[0] += 1
        if tries[0] < 100:
            raise ConnectionError("away")
        return "there"

    def agent(run):
        run.do("first", look, 1)
        return run.do("second", lambda: [look(2), flaky()])

    for _ in range(3):
        with pytest.raises(StepFailed):
            journal.run(agent, run_id="r")
        journal.clock.sleep(60)
    again, fork = journal.retry("r", new_run_id="again"), journal.fork("r", new_run_id="fork")
    tries[0] = 100
    assert [[2, "there"]] * 2 == [journal.run(agent, run_id=again), journal.run(agent, run_id=fork)]
    for run_id in ("r", "again", "fork"):
        assert "it does what was recorded" == journal.check(agent, run_id).message, run_id

    def other(run):
        run.do("first", look, 1)
        return run.do("second", lambda: [look(3), flaky()])

    assert [False] * 3 == [journal.check(other, run_id).ok for run_id in ("r", "again", "fork")]


def test_an_asyncio_agent():
    """Calls that were in flight together are served in the order in which they were told."""

    async def agent(run):
        async with run.step("a"):
            found = await asyncio.gather(run.call(look, 1), run.call(look, 2), run.model("m", {"q": 1}, says))
            run.memory["found"] = found[:2]
        return await run.do("b", mail, "ann")

    async def changed(run):
        async with run.step("a"):
            found = await asyncio.gather(run.call(look, 1), run.call(look, 3), run.model("m", {"q": 1}, says))
            run.memory["found"] = found[:2]
        return await run.do("b", mail, "ann")

    with AsyncJournal.open("memory:") as other:
        asyncio.run(other.run_async(agent, run_id="r"))
        called = list(CALLED)
        assert "it does what was recorded" == asyncio.run(other.check_async(agent, "r")).message
        found = asyncio.run(other.check_async(changed, "r"))
        assert (False, "a") == (found.ok, found.step)
        assert "$.args.at was 2, is 3" in found.message
        assert called == CALLED


def test_what_cannot_be_checked(journal):
    """A run that isn't there, and an asyncio agent in plain threads."""
    with pytest.raises(RunNotFound):
        journal.check(recorded, "none")
    with pytest.raises(Mistake, match="check_async"):
        journal.check(asyncio.sleep, "none")


STRUCK = st.tuples(
    programs(), st.integers(1, 60), st.integers(1, 90), st.integers(1, 6), st.sampled_from(["ask", "fail", "tell"])
)


def some_lives(lab: Any, lives: int, run_id: str = "r") -> None:
    """Run an agent until it has ended, or for so many lives: then it is waiting or half-way."""
    with contextlib.suppress(AssertionError):
        lab.serve(run_id, most=lives)


@settings(max_examples=int(os.environ.get("EXAMPLES", "100")))
@given(STRUCK, st.sampled_from(["retry", "restart", "fork"]))
def test_unchanged_code_passes(struck, link):
    """Random agents, killed twice: completed, failed, waiting and half-way runs, and what goes on from them."""
    program, first, second, lives, on_unknown = struck
    product = Product("memory")
    lab = Lab(product, program, {first: "crash", first + second: "crash"}, on_unknown=on_unknown)
    try:
        some_lives(lab, lives)
        assume(lab.store.inner.head("r") is not None)
        with contextlib.suppress(product.Crash, product.Refused):  # a retry takes a run that has ended
            lab.journal.start("r2", link, "r")
            some_lives(lab, lives, "r2")
        log = Journal(lab.store.inner)
        before = lab.store.inner.last_position()
        for head in log.runs():
            found = log.check(lambda run: lab.agent(RunView(run, lab.journal)), head.run_id)
            assert found.ok, (found, [(record.seq, record.event) for record in log.events(head.run_id)])
        assert before == lab.store.inner.last_position()
    finally:
        product.close()


@settings(max_examples=int(os.environ.get("EXAMPLES", "30")))
@given(STRUCK, st.sampled_from([AsyncInParts, Together]))
def test_unchanged_asyncio_code_passes(struck, journal):
    """The same of asyncio agents, whose calls are in flight together."""
    program, first, second, lives, on_unknown = struck
    product = AsyncProduct("memory", Journal=journal)
    lab = AsyncLab(product, program, {first: "crash", first + second: "crash"}, on_unknown=on_unknown)

    async def agent(run):
        return await lab.agent(AsyncRunView(run, lab.journal))

    try:
        some_lives(lab, lives)
        log = AsyncJournal(lab.store.inner)
        for head in log.runs():
            found = on_a_loop(lambda: log.check_async(agent, "r"))
            assert found.ok, (found, [(record.seq, record.event) for record in log.events(head.run_id)])
    finally:
        product.close()


def dies(request: Any) -> Any:
    raise KeyboardInterrupt


def asks(prompt: str, ask: Callable[[Any], Any] = says) -> Callable[[Any], Any]:
    def agent(run: Any) -> Any:
        with run.step("think"):
            return run.model("m", {"system": prompt}, ask)["text"]

    return agent


def test_a_prompt_that_differs_where_the_model_was_asked(journal: Journal) -> None:
    """The next owner asks anew: the run can go on, before and after, and the remark says by path what differs."""
    with pytest.raises(KeyboardInterrupt):
        journal.run(asks("one", dies), run_id="r", kind="k")
    found = journal.check(asks("two"), "r")
    remark = "step think: a question to m differs from what was asked before: $.request.system"
    assert (True, (remark,)) == (found.ok, found.remarks)
    assert "yes" == journal.run(asks("two"), run_id="r", kind="k")
    assert (True, ()) == ((after := journal.check(asks("two"), "r")).ok, after.remarks)
    found = journal.check(asks("one"), "r")
    assert (True, ("step think: the request to m differs: $.request.system",)) == (found.ok, found.remarks)


def test_what_its_next_owner_goes_past_is_a_remark(journal: Journal) -> None:
    """Two steps of a run that may go on, in another order: whoever takes it up goes on, and so says the check."""

    def agent(names: str, *, last: Callable[[], Any]) -> Callable[[Any], Any]:
        def called(run: Any) -> Any:
            for name in names:
                run.do(name, lambda: 1)
            return run.do("end", last)

        return called

    with pytest.raises(KeyboardInterrupt):
        journal.run(agent("ab", last=lambda: dies(None)), run_id="r", kind="k")
    changed = agent("ba", last=lambda: 2)
    found = journal.check(changed, "r")
    assert (True, ("recorded is step a (do), today's code has step b (do)",)) == (found.ok, found.remarks)
    assert 2 == journal.run(changed, run_id="r", kind="k")
    assert not journal.check(changed, "r").ok


@settings(max_examples=int(os.environ.get("EXAMPLES", "30")))
@given(programs(calm=True), st.integers(1, 200), st.integers(1, 6))
def test_changed_calls_are_found(program, first, lives):
    """Of a random agent the args of one call are changed: where it was made, the check says so."""
    changed = copy.deepcopy(program)
    calls = [(ops, place) for _, ops, _ in changed.steps for place, op in enumerate(ops) if op[0] == "tool"]
    assume(calls and calls[0][0][calls[0][1]][1] in POLICIES)
    ops, place = calls[0]
    _, tool_name, x, how = ops[place]
    ops[place] = ("tool", tool_name, x + 50, how)
    product = Product("memory")
    lab = Lab(product, program, {first: "crash"})
    try:
        some_lives(lab, lives)
        lab.program, log = changed, Journal(lab.store.inner)
        made = [each.data for each in lab.events("tool.started") if each.data["tool"] == tool_name]
        assume(any(each["args"]["x"] == x for each in made))
        found = log.check(lambda run: lab.agent(RunView(run, lab.journal)), "r")
        assert not found.ok or (found.remarks and log.head("r").status not in ("completed", "failed"))
    finally:
        product.close()
