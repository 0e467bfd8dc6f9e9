"""One minimal agent for each rule, from the model's own tests; `m` is the model, or the product in its shape."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from model.lab import Lab, alike, request, uninterrupted, use
from model.programs import POLICIES, SAMPLES, Program

RULES: list[Callable[[Any], None]] = []


def rule(test: Callable[[Any], None]) -> Callable[[Any], None]:
    """Tests that the model and the product must pass."""
    RULES.append(test)
    return test


def bench(
    m: Any,
    agent: Callable[[Any], Any],
    nature: dict[Any, Any] | None = None,
    strikes: dict[int, str] | None = None,
    **how: Any,
) -> Lab:
    lab = Lab(m, Program("line", [], nature or {}), strikes, agent=agent, **how)
    lab.run_id = "r"
    return lab


def crash_at(lab: Lab, where: str, nth: int = 1, kind: str = "crash") -> None:
    """Strike at the nth boundary of this name from now on."""
    left, tick = [nth], lab.world.tick

    def watch(here: str) -> None:
        tick(here)
        left[0] -= here == where
        if left[0] == 0 and here == where:
            getattr(lab, kind)(here)

    lab.world.tick = watch  # type: ignore[method-assign]


def ended_with_its_step_open(lab: Lab) -> Any:
    """Let it die where it is about to, and end the run before anybody goes on with it."""
    with suppress(lab.m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.disown("r")
    lab.journal.cancel("r")
    state = lab.journal.run(lab.agent, "r")
    assert "cancelled" == state.status
    return state


def events_of(lab: Lab, prefix: str = "", run_id: str = "r") -> list[str]:
    return [event.type for event in lab.store.log[run_id] if event.type.startswith(prefix)]


@rule  # engine.md C1, C2
def test_the_key_is_golden(m: Any) -> None:
    """Golden vectors; the order of keys doesn't matter, an equal call in the same step gets n."""
    args, turned = {"to": "ä@b.c", "n": 1}, {"n": 1, "to": "ä@b.c"}
    assert "2a87a304659c9b6bc290a172" == m.key_of("report-42", "draft", "send_email", args)
    assert "2a87a304659c9b6bc290a172" == m.key_of("report-42", "draft", "send_email", turned, 1)
    assert "e866554cefe38507651389a8" == m.key_of("report-42", "draft#2", "send_email", args, 2)
    assert "cd9d7fe135e027d4ae1f60c1" == m.key_of("report-42", "draft", "send_email", args, store="d3b07384d113edec")


@rule  # engine.md E60
def test_the_key_of_a_tools_call_joins_the_id_of_the_store(m: Any) -> None:
    """A tool is passed a key that another store wouldn't pass it; the id of a question is the same there."""

    def agent(run: Any) -> None:
        with run.step("a"):
            use(run, lab, "keyed")
            run.ask("go on?", args={"x": 3})

    lab = bench(m, agent)
    lab.serve()
    (asked,), (called,) = lab.events("approval.requested"), lab.events("tool.started")
    assert m.key_of("r", "a", "keyed", {"x": 1}, store="lab") == called.data["call_id"]
    assert m.key_of("r", "a", "keyed", {"x": 1}, store="other") != called.data["call_id"]
    assert m.key_of("r", "a", "ask go on?", {"x": 3}) == asked.data["approval_id"]


@rule  # engine.md E61
def test_a_call_of_the_outbox_is_written_down_and_nothing_is_sent(m: Any) -> None:
    """It returns its key, in a step that is entered again too; an equal call is another entry."""
    post = m.Tool("post", "outbox", lambda args, key: 1 / 0)

    def agent(run: Any) -> Any:
        return [
            run.do(step, lambda: [run.call(post, x=1), run.call(post, x=1), use(run, lab, "keyed")]) for step in "ab"
        ]

    lab = bench(m, agent)
    crash_at(lab, "before effect", 2)
    keys = [key for found in lab.serve().output["output"] for key in found[:2]]
    starts = [event.data["call_id"] for event in lab.events("tool.started") if event.data["tool"] == "post"]
    assert keys == starts
    assert 4 == len(set(keys))


@rule  # engine.md E61
def test_what_a_failed_step_has_in_the_outbox_is_asked_for_anew(m: Any) -> None:
    """The next attempt writes it down again, under the same key: what the failed one had is never delivered."""
    post, fails = m.Tool("post", "outbox", lambda args, key: 1 / 0), [True]

    def agent(run: Any) -> None:
        while True:
            with suppress(m.StepFailed), run.step("a"):
                run.call(post, x=1)
                if fails:
                    raise ValueError(str(fails.pop()))
                return

    lab = bench(m, agent)
    lab.serve()
    starts = [(event.data["call_id"], event.data["attempt"]) for event in lab.events("tool.started")]
    assert [(starts[0][0], 1), (starts[0][0], 2)] == starts


@rule  # engine.md X5
def test_an_interrupt_that_is_swallowed_stops_the_run(m: Any) -> None:
    """Its call has no end, so the step stays open; whoever goes on with it asks what became of the call."""
    interrupts = [KeyboardInterrupt()]

    def agent(run: Any) -> None:
        with run.step("a"), suppress(KeyboardInterrupt):
            use(run, lab, "unsafe")

    lab = bench(m, agent, find=True)
    act = lab.world.act

    def interrupted(*args: Any) -> Any:
        result = act(*args)
        if interrupts:
            raise interrupts.pop()
        return result

    lab.world.act = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        lab.journal.run(lab.agent, "r")
    assert ["step.started"] == events_of(lab, "step.")
    assert "completed" == lab.serve().status
    assert 1 == len(lab.world.effects)


@rule  # engine.md S9
def test_the_eight_events_of_a_plan_whose_second_step_fails_once(m: Any) -> None:
    """R138, R139: the same index is run again; after the failure the next step is number 1 and load_data is done."""
    lab = bench(m, lambda run: [run.do("load_data", list), run.do("summarize", lambda: use(run, lab, "idempotent")),
                             run.do("write_report", list)], {("idempotent", 1): ["late"] * 3})  # fmt: skip
    lab.journal.run(lab.agent, "r")
    state = lab.store.state("r")
    assert (state.status, state.index, state.redo, list(state.done)) == ("scheduled", 1, "summarize", ["load_data"])
    lab.serve()
    assert "started completed started failed started completed started completed".split() == [
        type_.removeprefix("step.") for type_ in events_of(lab, "step.")
    ]
    assert [0, 1, 1, 2] == [event.data["index"] for event in lab.events("step.started")]


@rule  # engine.md S2
def test_an_overlay_that_a_crash_left_open_is_not_seen_between_steps(m: Any) -> None:
    """Else a loop would take up its next item inside the step of the last one."""

    def agent(run: Any) -> None:
        while (i := run.memory.get("i", 0)) < 2:
            with run.step("item", repeat=True):
                use(run, lab, "unsafe", i)
                run.memory["i"] = i + 1

    lab = bench(m, agent)
    crash_at(lab, "before step.completed")
    lab.serve()
    lab.judge()
    assert 2 == len(lab.world.effects) and {"i": 2} == lab.store.state("r").context["memory"]


@rule  # engine.md S7
def test_a_straight_line_of_with_blocks_does_not_run_twice(m: Any) -> None:
    """The block before the crash can't be skipped, so it is refused: the first card is charged once."""

    def agent(run: Any) -> None:
        with run.step("charge"):
            use(run, lab, "unsafe", 1)
        with run.step("mail"):
            use(run, lab, "unsafe", 2)

    lab = bench(m, agent)
    crash_at(lab, "after step.completed")
    with pytest.raises(m.StepDone):
        lab.serve()
    assert 1 == len(lab.world.effects)


@rule  # engine.md S5
def test_a_do_in_a_loop_says_which_it_is(m: Any) -> None:
    """By its count within one process it would get the result of another item after a crash."""
    items = ["x", "y", "z"]

    def agent(run: Any, keyed: bool = True) -> None:
        while (i := run.memory.get("i", 0)) < 3:
            item = run.do("fetch", lambda: items[i], key=items[i] if keyed else None)
            with run.step("use", repeat=True):
                run.message("user", item)
                run.memory["i"] = i + 1

    for nth in (1, 2, 3, 4, 5):
        lab = bench(m, agent)
        crash_at(lab, "after step.completed", nth)
        lab.serve()
        assert items == [message["content"] for message in lab.store.state("r").context["messages"]]
    with pytest.raises(m.StepDone):
        bench(m, lambda run: agent(run, keyed=False)).serve()


@rule  # engine.md S7
def test_two_items_of_one_key_are_refused(m: Any) -> None:
    """The second one would be left out without a word; it is a mistake, before a crash and after it."""

    def agent(run: Any) -> None:
        for x in run.each("item", [1, 2, "1", 3]):
            with run.step("item", x):
                use(run, lab, "unsafe", x)

    for strike in (0, 1, 2):
        lab = bench(m, agent)
        if strike:
            crash_at(lab, "after step.completed", strike)
        with pytest.raises(m.StepDone):
            lab.serve()
        assert 2 == len(lab.world.effects)


@rule  # engine.md S14
def test_a_loop_over_a_list_that_got_lost_is_stopped(m: Any) -> None:
    """An earlier turn of a dead process had filled it. Whoever looks at the state has the items from there."""

    def agent(run: Any, *, looks: bool) -> None:
        todo = []
        if not run.done("find"):
            with run.step("find"):
                todo = [1, 2, 3]
                run.memory["todo"] = todo
        if looks:
            todo = run.memory["todo"]
        for x in run.each("item", todo):
            with run.step("item", x):
                use(run, lab, "unsafe", x)
        if ends:
            run.do("end", lambda: use(run, lab, "unsafe", "all done"))

    for ends, nth in itertools.product((False, True), (2, 3)):
        lab = bench(m, lambda run: agent(run, looks=False))
        crash_at(lab, "after step.completed", nth)
        with pytest.raises(m.PlanChanged):
            lab.serve()
        assert nth - 1 == len(lab.world.effects)
        lab.agent = lambda run: agent(run, looks=True)
        assert "completed" == lab.serve().status and 3 + ends == len(lab.world.effects)


@rule  # engine.md S14
def test_a_list_without_items_is_none_that_got_lost(m: Any) -> None:
    """Nothing of its name was begun; or it was in this process; or another list of that name still has its items."""

    def agent(run: Any) -> Any:
        for x in run.each("nobody", []):
            raise AssertionError(x)
        for todo in ([], [1, 2], []):
            for x in run.each("item", todo):
                with run.step("item", x):
                    use(run, lab, "unsafe", x)
        return run.do("end", lambda: "done")

    for nth in (1, 2, 3):
        lab = bench(m, agent)
        crash_at(lab, "after step.completed", nth)
        assert {"output": "done"} == lab.serve().output and 2 == len(lab.world.effects)


@rule  # engine.md S14
def test_a_list_that_the_state_says_is_empty_is_none_that_got_lost(m: Any) -> None:
    """What is left to do is in the memory, and after a crash nothing is left."""

    def agent(run: Any) -> Any:
        for x in run.each("item", run.memory.get("todo", [1, 2])):
            with run.step("item", x):
                use(run, lab, "unsafe", x)
                run.memory["todo"] = [y for y in run.memory.get("todo", [1, 2]) if y != x]
        return run.do("end", lambda: "done")

    lab = bench(m, agent)
    crash_at(lab, "after step.completed", 2)
    assert {"output": "done"} == lab.serve().output and 2 == len(lab.world.effects)


@rule  # engine.md F2
def test_a_failure_that_the_agent_has_handled_is_told_again(m: Any) -> None:
    """A plan B that was begun is gone on with; the plan has not changed."""

    def line(run: Any) -> None:
        try:
            run.do("plan A", lambda: use(run, lab, "keyed"))
        except m.StepFailed:
            run.do("plan B", lambda: use(run, lab, "unsafe"))
        run.do("end", lambda: use(run, lab, "unsafe", 2))

    def loop(run: Any) -> None:
        while "done" not in run.memory:
            try:
                with run.step("A", repeat=True):
                    use(run, lab, "keyed")
            except m.StepFailed:
                with run.step("B", repeat=True):
                    use(run, lab, "unsafe")
                    run.memory["done"] = True

    for agent in (line, loop):
        lab = bench(m, agent, {("keyed", 1): ["never"]})
        lab.serve()
        ticks, calls = lab.world.ticks, lab.world.effects
        for tick in range(1, ticks + 1):
            lab = bench(m, agent, {("keyed", 1): ["never"]}, {tick: "crash"})
            assert "completed" == lab.serve().status
            assert calls == lab.world.effects


@rule  # engine.md S11
def test_a_do_that_was_renamed_is_not_done_again(m: Any) -> None:
    """R126: it sent something, and today's code doesn't know it."""
    lab = bench(m, lambda run: [run.do("charge", lambda: use(run, lab, "unsafe")), run.do("mail", list)])
    crash_at(lab, "before step.started", 2)
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.disown("r")
    lab.agent = lambda run: [run.do("pay", lambda: use(run, lab, "unsafe")), run.do("mail", list)]
    with pytest.raises(m.PlanChanged):
        lab.journal.run(lab.agent, "r")
    assert 1 == len(lab.world.effects)
    lab.agent = lambda run: [run.done("charge"), run.do("pay more", lambda: use(run, lab, "unsafe"))]
    assert "completed" == lab.serve().status


@rule  # engine.md S8
def test_another_step_than_the_open_one_changes_nothing(m: Any) -> None:
    """PlanChanged; the log has no word of the new step, and today's code may be put right."""
    lab = bench(m, lambda run: run.do("one", lambda: use(run, lab, "keyed")))
    crash_at(lab, "after effect")
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.disown("r")
    steps = events_of(lab, "step.")
    with pytest.raises(m.PlanChanged):
        lab.journal.run(lambda run: run.do("two", list), "r")
    assert steps == events_of(lab, "step.")
    assert "completed" == lab.serve().status


@rule  # engine.md X2
def test_a_run_that_code_has_stopped_waits_for_code(m: Any) -> None:
    """On record, with no recovery counted, however often it is tried; whoever names it with mended code goes on."""

    def agent(run: Any) -> None:
        with run.step("a"):
            use(run, lab, "unsafe", next(lab.coins))

    for stop, mended in ((m.PlanChanged, 0), (m.StepDiverged, 1)):
        lab = bench(m, agent)
        lab.boot(patience=3)
        lab.coins = iter([0, *[mended] * 6, 0])
        crash_at(lab, "after tool.completed")
        with suppress(m.Crash):
            lab.journal.run(lab.agent, "r")
        lab.disown("r")
        broken = (lambda run: run.do("two", list)) if stop is m.PlanChanged else agent
        for _ in range(6):
            with pytest.raises(stop):
                lab.journal.run(broken, "r")
            state = lab.store.state("r")
            assert ("waiting", [stop.__name__], "code") == (state.status, state.waits, state.stands)
        if stop is m.PlanChanged:
            lab.coins = iter([0])
        assert "completed" == lab.journal.run(agent, "r").status
        assert 1 == len(lab.world.effects) == len(lab.events("run.requeued"))


@rule  # engine.md V6
def test_to_be_stopped_for_code_is_no_progress(m: Any) -> None:
    """A crash before it and one after it are two without progress."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "idempotent")))
    lab.boot(patience=1)
    for where in ("before tool.completed", "", "after run.claimed"):
        if where:
            crash_at(lab, where)
        with suppress(m.Crash, m.PlanChanged):
            lab.journal.run(lab.agent if where else (lambda run: run.do("two", list)), "r")
        lab.disown("r")
    assert ["restart_loop"] == lab.journal.run(lab.agent, "r").waits


@rule  # engine.md V10
def test_only_what_stands_still_is_resumed(m: Any) -> None:
    """Not a run that has an owner, is queued, waits for a person, or has ended; and once is enough."""
    lab = bench(m, lambda run: run.do("a", lambda: [run.ask("ok?", args={"x": 3}), refused()]))

    def refused() -> None:
        with pytest.raises(m.Refused):
            lab.journal.resume("r")

    lab.journal.start("r")
    refused()
    lab.journal.run(lab.agent, "r")
    refused()
    lab.people("r")
    with pytest.raises(m.PlanChanged):
        lab.journal.run(lambda run: run.do("two", list), "r")
    lab.journal.resume("r")
    refused()
    assert "completed" == lab.serve().status
    refused()


def deployed(m: Any) -> Lab:
    """A step with questions and an effect between them, whose prompts a deploy changes after a crash."""
    version = [1]

    def body(run: Any) -> Any:
        first = run.model(f"m{version[0]}", {"q": "q1", "v": version[0]}, lab.model)
        use(run, lab, "unsafe", int(first.split()[1]))
        return [first, run.model("m", {"q": "q2", "v": version[0], "saw": first}, lab.model)]

    lab = bench(m, lambda run: run.do("a", lambda: body(run)))
    crash_at(lab, "after tool.completed")
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.disown("r")
    version[0] = 2
    return lab


@rule  # engine.md C13
def test_a_changed_prompt_has_a_way_out_that_sends_nothing_twice(m: Any) -> None:
    """Tried as it is it pays for nothing; as recorded it goes on, through crashes, and ends with what was answered."""
    for second in range(20):
        lab = deployed(m)
        paid = len(lab.world.paid)
        for _ in range(5):
            with pytest.raises(m.StepDiverged):
                lab.journal.run(lab.agent, "r")
        assert (paid, 1) == (len(lab.world.paid), len(lab.world.effects))
        lab.journal.resume("r", recorded=True)
        if second:
            lab.world.plan[lab.world.ticks + second] = lab.crash
        assert "completed" == lab.serve().status
        lab.judge()
        assert 1 == len(lab.world.effects)
        assert "answer 0 to q1" == lab.store.state("r").output["output"][0]
        if not second:
            assert paid + 1 == len(lab.world.paid)


@rule  # engine.md C13
def test_recorded_answers_go_by_the_order_of_asking(m: Any) -> None:
    """An equal request gets its own answer, any other the first that is left; when none is left it is asked anew."""
    version = [1]

    def agent(run: Any) -> Any:
        with run.step("a"):
            asks = {1: ["q1", "q2", "q3"], 2: ["q2", "new", "q3", "q4"]}[version[0]]
            got = [run.model("m", {"q": q}, lab.model) for q in asks]
            if version[0] == 1:
                raise KeyboardInterrupt
            return got

    lab = bench(m, agent)
    with pytest.raises(KeyboardInterrupt):
        lab.journal.run(lab.agent, "r")
    with pytest.raises(m.PlanChanged):
        lab.journal.run(lambda run: run.do("two", list), "r")
    lab.journal.resume("r", recorded=True)
    version[0] = 2
    expected = ["answer 0 to q2", "answer 0 to q1", "answer 0 to q3", "answer 0 to q4"]
    assert expected == lab.serve().output["output"] and 4 == len(lab.world.paid)


@rule  # engine.md C13
def test_what_is_recorded_holds_for_its_attempt_alone(m: Any) -> None:
    """A step that fails asks anew; and only a run that code has stopped in a step can go on as recorded."""
    lab = deployed(m)
    with pytest.raises(m.Refused):
        lab.journal.resume("r", recorded=True)
    with pytest.raises(m.StepDiverged):
        lab.journal.run(lab.agent, "r")
    lab.journal.resume("r", recorded=True)

    def body(run: Any) -> Any:
        got = run.model("m3", {"q": "q3"}, lab.model)
        use(run, lab, "unsafe", 0)
        if run.state.step["attempt"] == 1:
            raise ValueError
        return got

    def agent(run: Any) -> Any:
        with suppress(m.StepFailed):
            return run.do("a", lambda: body(run))
        return run.do("a", lambda: body(run))

    assert "answer 0 to q3" == lab.journal.run(agent, "r").output["output"]
    assert 1 == len(lab.world.effects)
    with pytest.raises(m.Refused):
        lab.journal.resume("r", recorded=True)


@rule  # engine.md V11
def test_a_step_that_is_given_up_is_tried_anew(m: Any) -> None:
    """Its failure is told to nobody; what it sent stays known, and is sent again only if it is asked for otherwise."""
    for x, effects in ((0, 1), (7, 2)):
        lab = deployed(m)
        with pytest.raises(m.StepDiverged):
            lab.journal.run(lab.agent, "r")
        lab.journal.abandon("r")
        assert "queued" == lab.store.state("r").status and lab.store.state("r").redo == "a"
        (sent,) = lab.world.effects
        lab.agent = lambda run, x=x: run.do("a", lambda: use(run, lab, "unsafe", x))
        assert "completed" == lab.serve().status
        assert effects == len(lab.world.effects) and sent == lab.world.effects[0]


@rule  # engine.md V11
def test_only_an_open_step_that_nobody_is_at_work_in_is_given_up(m: Any) -> None:
    """Queued, waiting, or left by a dead owner; not with a living owner, between steps, or after the end."""
    lab = bench(m, lambda run: run.do("a", lambda: [run.ask("ok?", args={"x": 3}), use(run, lab, "keyed")]))

    def refused() -> None:
        with pytest.raises(m.Refused):
            lab.journal.abandon("r")

    lab.journal.start("r")
    refused()
    lab.journal.run(lab.agent, "r")
    lab.journal.abandon("r")
    refused()
    crash_at(lab, "after step.started")
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    refused()
    lab.disown("r")
    lab.journal.abandon("r")
    assert ("queued", None) == (lab.store.state("r").status, lab.store.state("r").step)
    assert "completed" == lab.serve().status
    assert 3 == lab.events("step.started")[-1].data["attempt"]
    refused()


@rule  # engine.md X9
def test_a_cancel_beats_a_run_that_stands_still(m: Any) -> None:
    """Whoever runs it next ends it, and the agent isn't called."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "keyed")))
    crash_at(lab, "before tool.completed")
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.disown("r")
    with pytest.raises(m.PlanChanged):
        lab.journal.run(lambda run: run.do("two", list), "r")
    lab.journal.cancel("r")
    assert ("cancelled", 2) == (lab.journal.run(lab.agent, "r").status, len(lab.events("run.claimed")))


@rule  # engine.md C2
def test_equal_calls_that_are_in_flight_together(m: Any) -> None:
    """The one that failed is the one that is called again, whatever became of its twin."""

    def agent(run: Any) -> Any:
        with run.step("a"):
            first, second = run.parallel((lab.tools["keyed"], {"x": 1}), (lab.tools["keyed"], {"x": 1}))
            assert isinstance(first, m.CallFailed) and isinstance(second, str)
            return [use(run, lab, "keyed"), second, use(run, lab, "keyed")]

    natural = Lab.nature
    ends = {1: "never", 2: "ok"}
    lab = bench(m, agent)
    count = lambda: len(lab.events("tool.completed", "tool.failed"))  # noqa: E731
    lab.nature = lambda tool, x, n: ends.get(count() + 1, "ok")  # type: ignore[method-assign]
    assert natural is Lab.nature
    assert 3 == len(set(lab.serve().output["output"])) == len(lab.world.effects)
    assert [1, 1, 2, 1] == [event.data["attempt"] for event in lab.events("tool.started")]


@rule  # engine.md D3
def test_a_clock_in_the_arguments_of_an_unsafe_call(m: Any) -> None:
    """StepDiverged before the second one is sent, not at the end of the step."""

    def agent(run: Any) -> None:
        with run.step("a"):
            use(run, lab, "unsafe", next(lab.clock))
            use(run, lab, "keyed")

    lab = bench(m, agent)
    crash_at(lab, "after tool.completed")
    with pytest.raises(m.StepDiverged):
        lab.serve()
    assert 1 == len(lab.world.effects)


@rule  # engine.md D3
def test_a_call_that_is_left_out(m: Any) -> None:
    """StepDiverged instead of step.completed; the step stays open, with what it sent."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "unsafe") if next(lab.coins) else None))
    lab.coins = iter([1, 0, 1])
    crash_at(lab, "after tool.completed")
    with pytest.raises(m.StepDiverged):
        lab.serve()
    assert "completed" == lab.serve().status and 1 == len(lab.world.effects)


@rule  # engine.md S3
def test_the_inbox_of_a_step_is_what_had_arrived_when_it_began(m: Any) -> None:
    """A signal that comes later is for the next step, however often this one is entered."""

    def agent(run: Any) -> list[Any]:
        return [run.do(name, lambda: [run.signals(), use(run, lab, "unsafe")][0]) for name in "abc"]

    lab = bench(m, agent)
    lab.journal.start("r")
    for payload, where in enumerate(
        ["before step.started", "after effect", "before tool.completed", "after step.completed"]
    ):
        crash_at(lab, where, kind="signalled" if payload != 2 else "crash")
    lab.signalled = lambda where: lab.journal.signal("r", where)  # type: ignore[attr-defined]
    got = lab.serve().output["output"]
    assert [["before step.started"], ["after effect", "after step.completed"], []] == got


@rule  # engine.md C4
def test_a_question_of_another_shape_gets_no_recorded_answer(m: Any) -> None:
    """A clock may differ, a question may not."""
    lab = bench(m, lambda run: run.do("a", lambda: [lab.think(run, "q1", True), use(run, lab, "idempotent")]))
    crash_at(lab, "before tool.completed")
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.disown("r")

    def today(run: Any) -> Any:
        return run.do("a", lambda: [run.model("m", {"q": "q2", "list": [1]}, lab.model), lab.think(run, "q1", True)])

    lab.agent = today
    assert ["answer 0 to q2", "answer 1 to q1"] == lab.serve().output["output"]
    assert ["q1", "q2", "q1"] == lab.world.paid  # in another place the first one is another question, too


@rule  # engine.md H1
def test_what_was_told_stays_told(m: Any) -> None:
    """The agent heard that nobody knows and did something else. A word that comes later doesn't rewrite that."""

    def agent(run: Any) -> Any:
        with run.step("a"):
            try:
                return use(run, lab, "unsafe")
            except m.CallOutcomeUnknown:
                return use(run, lab, "keyed")

    lab = bench(m, agent, {("unsafe", 1): ["never"]}, on_unknown="fail")
    crash_at(lab, "before step.completed")
    with suppress(m.Crash):
        lab.journal.run(agent, "r")
    lab.disown("r")
    (call,) = lab.store.state("r").unresolved()
    lab.journal.resolve("r", call, "did_not_happen")
    assert "completed" == lab.serve().status
    assert 1 == len(lab.world.effects) and call not in lab.world.effects


@rule  # engine.md H5
def test_did_not_happen_speaks_of_its_own_attempt(m: Any) -> None:
    """The first one timed out, the second one was refused a connection: the first may still have happened."""

    def agent(run: Any) -> Any:
        with run.step("a"):
            return use(run, lab, "keyed")

    lab = bench(m, agent, {("keyed", 1): ["lost", "not sent", "did not happen"]}, on_unknown="fail")
    lab.serve()
    assert 1 == len(lab.world.effects) == len(lab.store.state("r").unresolved())
    lab.world.now += 86400
    lab.journal.start("r2", "retry", "r")
    assert "unsafe_in_flight" == lab.serve("r2").output["cause"]
    assert 1 == len(lab.world.effects)


@rule  # engine.md V4
def test_a_late_word_about_an_old_attempt_does_not_free_a_new_one(m: Any) -> None:
    """The first owner wakes and says that it sent nothing; the second one did send, and died."""
    for where in ("before effect", "after tool.started"):
        lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "unsafe")))
        crash_at(lab, where, kind="stall_long")
        crash_at(lab, "before tool.completed")
        assert "completed" == lab.serve().status
        lab.judge()


@rule  # engine.md H7
def test_the_expiry_of_a_key_counts_from_its_first_attempt(m: Any) -> None:
    """An attempt half an hour later doesn't make the service remember longer."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "keyed")))
    for _ in range(3):
        crash_at(lab, "before tool.completed")
        with suppress(m.Crash):
            lab.journal.run(lab.agent, "r")
        lab.died("r", "before tool.completed")
        lab.world.now += 2000
    assert "waiting" == lab.journal.run(lab.agent, "r").status
    lab.judge()


@rule  # engine.md L3
def test_a_restart_does_not_send_what_nobody_knows_of(m: Any) -> None:
    """R56: an empty context, the same keys, the same ledger."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "unsafe")), on_unknown="fail")
    crash_at(lab, "before tool.completed")
    assert "unsafe_in_flight" == lab.serve().output["cause"]
    lab.journal.start("again", "restart", "r")
    assert "unsafe_in_flight" == lab.serve("again").output["cause"]
    (call,) = lab.store.state("again").unresolved()
    lab.journal.resolve("again", call, "happened", "by hand")
    lab.journal.start("third", "restart", "again")
    assert {"output": "by hand"} == lab.serve("third").output
    assert 1 == len(lab.world.effects)


@rule  # engine.md H1
def test_what_a_restart_was_told_stays_told_too(m: Any) -> None:
    """Nobody knows what the first run sent; the restart hears so and does something else; then a word comes."""

    def agent(run: Any) -> Any:
        with run.step("a"):
            try:
                return use(run, lab, "unsafe")
            except m.CallOutcomeUnknown:
                return use(run, lab, "keyed")

    lab = bench(m, agent, on_unknown="fail")
    crash_at(lab, "before tool.completed")
    lab.serve()
    lab.journal.start("again", "restart", "r")
    crash_at(lab, "before step.completed")
    with suppress(m.Crash):
        lab.journal.run(agent, "again")
    lab.disown("again")
    (call,) = lab.store.state("again").unresolved()
    lab.journal.resolve("again", call, "happened", "by hand")
    assert "keyed" in lab.serve("again").output["output"]


@rule  # engine.md H1
def test_what_was_told_of_a_key_of_its_own_stays_told_in_a_later_step(m: Any) -> None:
    """The step that heard of the unknown outcome is the one whose history it is."""
    order = m.Tool("order", "unsafe", lambda args, key: 1 / 0, None, "fail", key="order-{id}")

    def agent(run: Any) -> Any:
        for name in "ab":
            with suppress(m.StepDone), run.step(name):
                with pytest.raises(m.CallOutcomeUnknown):
                    run.call(order, id=7)
                use(run, lab, "keyed")

    lab = bench(m, agent)
    crash_at(lab, "before step.completed", 2)
    with suppress(m.Crash):
        lab.journal.run(agent, "r")
    lab.disown("r")
    lab.journal.resolve("r", "order-7", "happened", "by hand")
    assert "completed" == lab.serve().status


@rule  # engine.md H6
def test_a_hook_is_asked_when_a_tool_fails(m: Any) -> None:
    """It timed out, but it did happen: that is a result, before anyone is told of a failure."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "unsafe")), {("unsafe", 1): ["lost"]}, find=True)
    assert "completed" == lab.serve().status and ["tool.started", "tool.completed"] == events_of(lab, "tool.")


@rule  # engine.md V4
def test_the_testimony_of_a_fenced_owner_answers_the_question(m: Any) -> None:
    """The run waits for a word about a call; the owner that slept in it brings the word."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "unsafe")))
    crash_at(lab, "after effect", kind="stall")
    lab.say = None  # type: ignore[assignment]
    assert "completed" == lab.serve().status and 1 == len(lab.world.effects)


@rule  # engine.md V4
def test_the_testimony_of_a_fenced_owner_reaches_the_line(m: Any) -> None:
    """Its run was given up and retried, and the retry heard that nobody knows. It wakes: the next one knows."""

    def give_up(where: str) -> None:
        lab.disown("r")
        lab.journal.run(lab.agent, "r")
        lab.journal.start("two", "retry", "r")
        lab.journal.run(lab.agent, "two")

    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "unsafe")), on_unknown="fail")
    lab.give_up = give_up  # type: ignore[attr-defined]
    crash_at(lab, "after effect", kind="give_up")
    assert "failed" == lab.serve().status == lab.store.state("two").status
    lab.judge("two")
    lab.journal.start("three", "retry", "two")
    assert "completed" == lab.serve("three").status and 1 == len(lab.world.effects)


@rule  # engine.md V4
def test_who_made_a_call_knows_better_than_whoever_spoke_meanwhile(m: Any) -> None:
    """The owner slept past its lease, nobody took the run, and a person spoke. It wakes: its result is the outcome."""
    cases = [("did_not_happen", True), ("retry", True), ("happened", True), ("did_not_happen", False), ("retry", False)]
    for word, returns in cases:
        sent: list[str] = []

        def send(args: Any, key: str, word: str = word, returns: bool = returns, sent: list[str] = sent) -> str:
            sent.append(key)
            if len(sent) == 1:
                lab.store.gone.add(("r", 1))
                lab.journal.resolve("r", key, word, "by hand" if word == "happened" else None)
                lab.store.gone.discard(("r", 1))
                if not returns:
                    raise TimeoutError
            return f"sent {len(sent)}"

        lab = bench(m, lambda run, send=send: run.do("a", lambda: run.call(m.Tool("unsafe", "unsafe", send), x=1)))
        state = lab.journal.run(lab.agent, "r")
        assert "completed" == state.status
        assert {"output": "by hand" if word == "happened" else "sent 1" if returns else "sent 2"} == state.output
        assert (1 if returns else 2) == len(sent) == len(lab.events("tool.started"))
        late = [event.data["outcome"] for event in lab.events("tool.resolved") if event.data.get("late")]
        assert (["happened"] if returns and word != "happened" else []) == late


@rule  # engine.md V4
def test_a_late_proof_beats_a_word_that_nothing_happened(m: Any) -> None:
    """A person has said that it may be sent; before it is, its fenced owner says what came of it, and that is told."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "unsafe")))
    crash_at(lab, "after effect")
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.died("r", "after effect")
    (id,) = lab.store.state("r").unresolved()
    lab.journal.resolve("r", id, "did_not_happen")
    lab.journal.testify("r", {"call_id": id, "attempt": 1, "result": "late"}, "happened")
    assert {"output": "late"} == lab.journal.run(lab.agent, "r").output
    assert 1 == len(lab.events("tool.started")) == len(lab.world.effects)


@rule  # engine.md V4
def test_a_late_word_about_what_is_settled_is_told(m: Any) -> None:
    """The agent was told that nobody knows, and that was all. Whoever made it knows, and the next equal ask is told."""
    for where in ("effect of its step", "effect of the next step"):

        def unknown(run: Any) -> str:
            try:
                return call(run)
            except m.CallOutcomeUnknown:
                return "unknown"

        def first(run: Any, where: str = where) -> Any:
            told = [unknown(run)]
            use(run, lab, "idempotent", 2)
            return told + [unknown(run) for _ in range(2 * (where == "effect of its step"))]

        def agent(run: Any, where: str = where) -> Any:
            told = run.do("a", lambda: first(run))
            run.do("b", lambda: use(run, lab, "idempotent", 3))
            return told + run.do("c", lambda: [unknown(run) for _ in range(2 * (where != "effect of its step"))])

        lab = bench(m, agent)
        call = sent(lab, on_unknown="tell")
        ends = ["lost", "ok"]
        lab.nature = lambda tool, x, n, ends=ends: "ok" if tool == "idempotent" else ends.pop(0)  # type: ignore[method-assign, misc]
        lab.result = lambda policy, args, key: "sent"  # type: ignore[method-assign]
        crash_at(lab, "before effect", 2 if where == "effect of its step" else 3)
        with suppress(m.Crash):
            lab.journal.run(agent, "r")
        lab.died("r", "before effect")
        (id,) = {event.data["call_id"] for event in lab.events("tool.failed")}
        with pytest.raises(m.Refused):
            lab.journal.resolve("r", id, "happened", "by hand")
        for result in ("late", "later"):  # once
            lab.journal.testify("r", {"call_id": id, "attempt": 1, "result": result}, "happened")
        assert {"output": ["unknown", "late", "sent"]} == lab.serve().output
        assert 1 == len(lab.events("tool.resolved"))


@rule  # engine.md V3
def test_a_person_has_no_say_while_the_owner_lives(m: Any) -> None:
    """The owner may still end the call itself."""

    def send(args: Any, key: str) -> str:
        with pytest.raises(m.Refused):
            lab.journal.resolve("r", key, "did_not_happen")
        return "sent"

    lab = bench(m, lambda run: run.do("a", lambda: run.call(m.Tool("unsafe", "unsafe", send))))
    assert {"output": "sent"} == lab.serve().output


@rule  # engine.md L1
def test_a_line_has_one_newest_run(m: Any) -> None:
    """Two retries of one run would both send what did not happen."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "unsafe")), on_unknown="fail")
    crash_at(lab, "before effect")
    lab.serve()
    lab.journal.resolve("r", *lab.store.state("r").unresolved(), "did_not_happen")
    lab.journal.start("one", "retry", "r")
    for of in ("r", "one"):
        with pytest.raises(m.Refused):
            lab.journal.start("two", "retry", of)
    lab.serve("one")
    assert 1 == len(lab.world.effects)


@rule  # engine.md L7
def test_the_id_of_the_first_run_stands_for_the_newest(m: Any) -> None:
    """Who knows a run by its name runs it, speaks to it and goes on from what has become of it; other ids are exact."""

    def agent(run: Any) -> Any:
        with run.step("a"):
            got = run.signals()
            if run.id != "three":
                raise ValueError(run.id)
            use(run, lab, "idempotent")
        return [run.id, got]

    lab = bench(m, agent)
    for run_id in ("two", "three"):
        assert "failed" == lab.journal.run(agent, "r").status
        lab.journal.start(run_id, "retry", "r")
        lab.journal.signal("r", run_id)
    with pytest.raises(m.Refused):
        lab.journal.signal("two", "late")
    with pytest.raises(m.Refused):
        lab.journal.start("four", "retry", "two")
    assert ["three", ["two", "three"]] == lab.journal.run(agent, "r").output["output"]
    assert ["r", "two", "three"] == list(lab.store.log)
    assert "failed" == lab.journal.run(agent, "two").status


@rule  # engine.md L7
def test_a_word_and_a_cancel_by_the_name_of_a_line(m: Any) -> None:
    """They reach the newest run, which is the one that would act; one in the middle of the line hears nothing."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "unsafe")), on_unknown="fail")
    crash_at(lab, "before effect")
    (call,) = lab.serve().unresolved()
    lab.journal.start("two", "retry", "r")
    lab.journal.cancel("r")
    assert "cancelled" == lab.journal.run(lab.agent, "r").status
    lab.journal.start("three", "retry", "r")
    with pytest.raises(m.Refused):
        lab.journal.resolve("two", call, "did_not_happen")
    lab.journal.resolve("r", call, "did_not_happen")
    assert not lab.store.state("three").unresolved() and lab.store.state("two").unresolved()
    assert "completed" == lab.journal.run(lab.agent, "r").status and 1 == len(lab.world.effects)


@rule  # engine.md L2
def test_a_retry_enters_an_open_step_again(m: Any) -> None:
    """Nothing failed, so the answer that was paid for counts, though the request has a clock in it."""
    lab = bench(m, lambda run: run.do("a", lambda: [lab.think(run, "q1", True), use(run, lab, "unsafe")]))
    crash_at(lab, "before tool.completed")
    (call,) = ended_with_its_step_open(lab).unresolved()
    lab.journal.resolve("r", call, "happened", "by hand")
    lab.journal.start("two", "retry", "r")
    assert {"output": ["answer 0 to q1", "by hand"]} == lab.serve("two").output
    assert ["q1"] == lab.world.paid


@rule  # engine.md W5
def test_an_old_yes_is_not_for_a_later_question(m: Any) -> None:
    """R84: the same question in the next turn of a loop, and in a retry after a failure, is a new one."""

    def agent(run: Any) -> None:
        while (i := run.memory.get("i", 0)) < 3:
            with run.step("turn", repeat=True):
                run.ask("go?", args={"x": 3})
                use(run, lab, "keyed", 3)
                run.memory["i"] = i + 1

    lab = bench(m, agent, {("keyed", 3): ["never"]})
    lab.serve()
    assert 1 == len(lab.events("approval.resolved"))
    lab.program.nature = {}
    lab.journal.start("two", "retry", "r")
    lab.serve("two")
    assert (
        4
        == len(lab.events("approval.resolved"))
        == len({e.data["approval_id"] for e in lab.events("approval.resolved")}) + 1
    )


@rule  # engine.md X1
def test_a_stop_can_not_be_swallowed(m: Any) -> None:
    """Whoever catches everything has still been stopped."""

    def agent(run: Any) -> str:
        with run.step("a"):
            with suppress(BaseException):
                run.ask("ok?", args={"x": 3})
            with suppress(BaseException):
                run.message("user", "went on")
            with suppress(BaseException):
                use(run, lab, "unsafe")
        return "done"

    lab = bench(m, agent)
    assert "waiting" == lab.journal.run(agent, "r").status
    assert not lab.world.effects and not lab.events("message.appended")


@rule  # engine.md V6
def test_a_run_that_does_not_get_on_is_given_up(m: Any) -> None:
    """R81: it waits after three recoveries without progress, till a person resumes it; with progress, any number."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "idempotent")))
    for _ in range(5):
        crash_at(lab, "before tool.completed")
    lab.boot(patience=3)
    for _ in range(4):
        with suppress(m.Crash):
            lab.journal.run(lab.agent, "r")
        lab.disown("r")
    for _ in range(2):  # whoever runs it leaves it
        state = lab.journal.run(lab.agent, "r")
        assert ("waiting", ["restart_loop"], "recoveries") == (state.status, state.waits, state.stands)
    assert 4 == len(lab.events("run.claimed"))
    lab.journal.resume("r")
    for _ in range(2):  # it is counted anew: the first of the three is the next one
        with suppress(m.Crash):
            lab.journal.run(lab.agent, "r")
        lab.disown("r")
    assert ("completed", 6) == (lab.serve().status, len(lab.events("run.claimed")))
    lab = bench(m, lambda run: run.do("a", lambda: [use(run, lab, "idempotent", i) for i in range(9)]))
    for nth in range(9):
        crash_at(lab, "after tool.completed", nth + 1)
    lab.boot(patience=1)
    for _ in range(10):
        with suppress(m.Crash):
            lab.journal.run(lab.agent, "r")
        lab.disown("r")
    assert "completed" == lab.store.state("r").status


@rule  # engine.md X21
def test_a_death_that_is_not_the_doing_of_the_run_does_not_count(m: Any) -> None:
    """A machine that starts anew, a process that was told to stop, other code: never given up; the last one is."""

    def boots(nth: int) -> None:
        lab.world.boots = nth

    def codes(nth: int) -> None:
        lab.journal.code = f"v{nth}"

    def stops(_: int) -> None:
        lab.stopped = lambda where: [lab.journal.told_to_stop("r"), lab.crash(where)]  # type: ignore[attr-defined]

    for cause, reason in ((boots, "machine_restarted"), (codes, "redeployed"), (stops, "told_to_stop"), (int, "")):
        lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "idempotent")))
        lab.boot(patience=1)
        lab.journal.code = "v"
        lab.stopped = lab.crash  # type: ignore[attr-defined]
        for nth in range(1, 6):
            cause(nth)
            crash_at(lab, "before tool.completed", kind="stopped")
            with suppress(m.Crash):
                lab.journal.run(lab.agent, "r")
            lab.disown("r")
        if reason:
            cause(6)
            assert "completed" == lab.journal.run(lab.agent, "r").status
            assert {reason} == {event.data["reason"] for event in lab.events("run.requeued")}
        else:
            assert "recoveries" == lab.store.state("r").stands


@rule  # engine.md C3
def test_a_tool_with_a_key_of_its_own_acts_once_in_its_scope(m: Any) -> None:
    """In another step its result is given back; other arguments under the same key are refused."""
    lab = bench(
        m,
        lambda run: [run.do("a", lambda: run.call(order, id=7, x=1)), run.do("b", lambda: run.call(order, id=7, x=1))],
    )
    order = m.Tool("order", "keyed", lab.tool("keyed"), key="order-{id}")
    first, second = lab.serve().output["output"]
    assert first == second and 1 == len(lab.world.effects) == len(lab.events("tool.started"))
    lab.journal.start("two", "restart", "r")
    lab.agent = lambda run: run.do("a", lambda: run.call(order, id=7, x=2))
    assert "KeyReused" == lab.serve("two").output["error"]["type"]


@rule  # engine.md C3
def test_a_tool_that_only_looks_acts_once_under_a_key_of_its_own(m: Any) -> None:
    """In another step, after a failed attempt, in a retry and in a restart its one result is given back."""
    bodies: list[str] = []

    def agent(run: Any) -> Any:
        got = [run.do(name, lambda: run.call(rate, day=1)) for name in "ab"]
        for _ in range(2):
            with suppress(m.StepFailed):
                got.append(run.do("c", lambda: fails_once(run, run.call(rate, day=2))))
        if run.id == "r":
            raise ValueError("later")
        return got

    def fails_once(run: Any, value: Any) -> Any:
        if run.state.step["attempt"] == 1:
            raise ValueError("not this one")
        return value

    lab = bench(m, agent)
    rate = m.Tool("rate", "idempotent", lambda args, key: [bodies.append(key), len(bodies)][1], key="rate-{day}")
    assert "failed" == lab.serve().status
    lab.journal.start("two", "retry", "r")
    assert [1, 1, 2] == lab.serve("two").output["output"]
    lab.journal.start("three", "restart", "two")
    assert [1, 1, 2] == lab.serve("three").output["output"]
    assert ["rate-1", "rate-2"] == bodies


@rule  # engine.md V1
def test_a_finished_run_gives_its_output_and_a_busy_one_is_left_alone(m: Any) -> None:
    """The agent isn't called."""
    lab = bench(m, lambda run: run.complete("out"))
    assert {"output": "out"} == lab.serve().output == lab.journal.run(lambda run: 1 / 0, "r").output
    lab.agent = lambda run: lab.journal.run(lab.agent, "busy")
    assert "RunBusy" == lab.journal.run(lab.agent, "busy").output["error"]["type"]


@rule  # engine.md L4
def test_a_fork_begins_between_steps(m: Any) -> None:
    """With what was completed, and none of the calls, answers and questions of the open step."""

    def agent(run: Any) -> Any:
        first = run.do("a", lambda: use(run, lab, "unsafe"))
        with run.step("b"):
            run.message("user", run.ask("ok?", args={"x": 3}))
            use(run, lab, "unsafe", 2)
        return first

    lab = bench(m, agent)
    crash_at(lab, "before tool.completed", 2)
    lab.journal.run(agent, "r")
    lab.people("r")
    with suppress(m.Crash):
        lab.journal.run(agent, "r")
    lab.journal.start("f", "fork", "r")
    assert "completed" == lab.serve("f").status and 3 == len(lab.world.effects)
    assert ["tool.started", "tool.completed"] == events_of(lab, "tool.", "f")
    assert ["approval.requested", "approval.resolved"] == events_of(lab, "approval.", "f")


@rule  # engine.md W1
def test_the_first_answer_counts(m: Any) -> None:
    """R132, R133: a second one is refused, as is one after the end."""
    lab = bench(m, lambda run: run.ask("ok?", args={"x": 1}))
    (id,) = lab.journal.run(lab.agent, "r").waits
    lab.journal.answer("r", id, "edited", {"x": 2})
    with pytest.raises(m.Refused):
        lab.journal.answer("r", id, "rejected")
    assert {"output": {"x": 2}} == lab.serve().output
    with pytest.raises(m.Refused):
        lab.journal.answer("r", id, "approved")


@rule  # engine.md X9
def test_a_cancel_wins_against_an_intent(m: Any) -> None:
    """It arrives while the owner is about to write its intent; it beats a resume, too."""
    for where, tools in (("before tool.started", []), ("after tool.started", ["tool.started", "tool.completed"])):
        lab = bench(m, lambda run: run.do("a", lambda: [use(run, lab, "unsafe"), use(run, lab, "unsafe", 2)]))
        lab.cancelled = lambda where: lab.journal.cancel("r")  # type: ignore[attr-defined]
        crash_at(lab, where, kind="cancelled")
        assert "cancelled" == lab.serve().status and tools == events_of(lab, "tool.")


@rule  # engine.md X9
def test_a_cancel_after_the_step_lets_the_step_end(m: Any) -> None:
    """It makes its other calls, and the next step isn't begun; a sharper cancel meanwhile stops it in the step."""
    for modes, tools in ((["after_step"], 2), (["after_step", "now"], 1), (["now", "after_step"], 1)):
        lab = bench(
            m,
            lambda run: [
                run.do("a", lambda: [use(run, lab, "unsafe"), use(run, lab, "unsafe", 2)]),
                run.do("b", lambda: use(run, lab, "unsafe", 3)),
            ],
        )
        lab.cancelled = lambda _: [lab.journal.cancel("r", mode) for mode in modes]  # type: ignore[attr-defined]
        crash_at(lab, "after tool.started", kind="cancelled")
        assert ("cancelled", tools) == (lab.serve().status, len(lab.world.effects))


@rule  # engine.md X22
def test_a_run_that_is_to_be_cancelled_is_left_to_nobody(m: Any) -> None:
    """It isn't queued for a retry, doesn't wait, and isn't released: its owner ends it where it would leave it."""

    def agent(run: Any) -> Any:
        run.do("a", lambda: use(run, lab, "unsafe"))
        if way == "retry":
            raise m.Transient("once more")
        if way == "mistake":
            raise m.Mistake("in the code")
        if way == "interrupt":
            raise KeyboardInterrupt
        return run.ask("go on?")

    for way in ("retry", "mistake", "interrupt", "ask"):
        lab = bench(m, agent)
        lab.cancelled = lambda _: lab.journal.cancel("r", "after_step")  # type: ignore[attr-defined]
        crash_at(lab, "after tool.started", kind="cancelled")
        with suppress(m.Mistake, KeyboardInterrupt):
            lab.journal.run(lab.agent, "r")
        assert ("cancelled", 1) == (lab.store.state("r").status, len(lab.events("run.claimed"))), way


@rule  # engine.md A5
def test_a_stalled_owner_in_each_place(m: Any) -> None:
    """The other one finishes, the first one changes nothing."""
    for name, kind in (("plain", "stall_long"), ("asks", "stall")):
        base = uninterrupted(m, SAMPLES[name])
        for first in range(1, base.world.ticks + 1):
            alike(base, Lab(m, SAMPLES[name], {first: kind}), "answers")


@rule  # engine.md H2
def test_the_table_of_what_a_recorded_call_gives_back(m: Any) -> None:
    """4 policies x 5 records x 2 situations."""
    failed = {"ok": "result", "never": "CallFailed", "did not happen": "CallFailed"}
    later = {("unsafe", "never"): "CallOutcomeUnknown"}  # whatever else failed is sent again and succeeds

    def outcome(fn: Callable[[], Any]) -> str:
        try:
            return "result" if fn() else ""
        except Exception as error:
            return type(error).__name__

    for policy, record, entry in itertools.product(POLICIES, ["ok", "never", "did not happen"], ["again", "failed"]):
        heard: list[list[str]] = []

        def agent(run: Any, policy: str = policy, entry: str = entry, heard: list[list[str]] = heard) -> None:
            with run.step("a"):
                heard.append([outcome(lambda: use(run, lab, policy))])
                if len(heard) == 1 and entry == "again":
                    lab.crash("here")
                if len(heard) == 1:
                    raise m.Transient("the step fails")
                if heard[-1] != ["result"]:
                    heard[-1].append(outcome(lambda: use(run, lab, policy)))

        lab = bench(m, agent, {(policy, 1): [record]}, on_unknown="fail")
        lab.serve()
        after, told = later.get((policy, record), "result"), later.get((policy, record), failed[record])
        expected = [told] if entry == "again" else []
        expected += [after] if expected != ["result"] else []
        expected += [after] if expected == ["CallOutcomeUnknown"] else []
        assert [[told], expected] == heard, (policy, record, entry)
    for policy, word in itertools.product(POLICIES, ["", "happened", "did_not_happen"]):
        lab = bench(m, lambda run, policy=policy: run.do("a", lambda: use(run, lab, policy)), on_unknown="ask")
        crash_at(lab, "before tool.completed" if word != "did_not_happen" else "before effect")
        with suppress(m.Crash):
            lab.journal.run(lab.agent, "r")
        lab.disown("r")
        waits = policy == "unsafe"
        assert ("waiting" if waits else "completed") == lab.journal.run(lab.agent, "r").status
        if waits and word:
            lab.journal.resolve("r", *lab.store.state("r").waits, word, "by hand")
            output = lab.serve().output["output"]
            assert output == ("by hand" if word == "happened" else lab.result(policy, {"x": 1}, lab.world.effects[0]))
        lab.judge()


def stopped(lab: Lab, stop: type[BaseException]) -> None:
    with pytest.raises(stop):
        lab.serve()


@rule  # engine.md C3
def test_a_key_of_its_own_asked_for_twice_in_flight(m: Any) -> None:
    """One effect and one end, told to both, and to both again; with other arguments beside it, it is reused."""

    def agent(run: Any) -> list[str]:
        with run.step("a"):
            twice = run.parallel((order, {"x": 7}), (order, {"x": 7}))
            use(run, lab, "idempotent")
        return [type(outcome).__name__ for outcome in twice]

    for policy, end, told in (("unsafe", "ok", "str"), ("keyed", "never", "CallFailed")):
        lab = bench(m, agent, {(policy, 7): [end]})
        order = m.Tool("order", policy, lab.tool(policy), key="order-{x}")
        crash_at(lab, "after tool.started", 2)
        assert [told, told] == lab.serve().output["output"]
        assert 1 == sum(event.data["call_id"] == "order-7" for event in lab.events("tool.started"))
    lab = bench(m, lambda run: run.do("a", lambda: run.parallel((order, {"x": 7, "y": 1}), (order, {"x": 7, "y": 2}))))
    assert "KeyReused" == lab.serve().output["error"]["type"]
    assert not lab.events("tool.started")


@rule  # engine.md C3
def test_a_key_of_its_own_is_of_one_tool(m: Any) -> None:
    """A refund isn't answered with the receipt of the charge, in its step or in a later one."""
    charge, refund = (m.Tool(name, "keyed", lambda args, key: name, key="order-{id}") for name in ("charge", "refund"))
    for lab in (
        bench(m, lambda run: run.do("a", lambda: [run.call(charge, id=7), run.call(refund, id=7)])),
        bench(
            m, lambda run: [run.do("a", lambda: run.call(charge, id=7)), run.do("b", lambda: run.call(refund, id=7))]
        ),
    ):
        assert "KeyReused" == lab.serve().output["error"]["type"]


@rule  # engine.md W3
def test_a_word_that_comes_just_before_the_run_waits_wakes_it(m: Any) -> None:
    """The fenced owner testifies while its successor is about to wait for just that."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "unsafe")))
    crash_at(lab, "before tool.completed")
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.disown("r")
    end = {"call_id": next(iter(lab.store.state("r").unresolved())), "attempt": 1, "result": "late"}
    lab.testify = lambda where: lab.journal.testify("r", end, "happened")  # type: ignore[attr-defined]
    crash_at(lab, "before run.waiting", kind="testify")
    assert "waiting" == lab.journal.run(lab.agent, "r").status
    assert {"output": "late"} == lab.journal.run(lab.agent, "r").output


@rule  # engine.md F2
def test_what_was_handled_stays_handled_in_a_new_round_and_in_a_retry(m: Any) -> None:
    """Plan A failed, plan B sent something and failed too: plan B is gone on with, and A isn't tried beside it."""

    def agent(run: Any) -> Any:
        try:
            return run.do("A", lambda: use(run, lab, "keyed"))
        except m.StepFailed:
            return run.do("B", lambda: [use(run, lab, "unsafe"), use(run, lab, "idempotent")])

    for ends in (["late"] * 3, ["never"]):
        lab = bench(m, agent, {("keyed", 1): ["never"], ("idempotent", 1): ends})
        if "failed" == lab.serve().status:
            lab.journal.start("two", "retry", "r")
            lab.serve("two")
        assert {"completed"} == {lab.store.state(lab.store.newest["r"]).status}
        assert 1 == len(lab.world.effects)


@rule  # engine.md F3
def test_the_step_whose_failure_left_the_agent_is_tried_anew(m: Any) -> None:
    """As itself, or as the reason of the agent's own exception; else no retry would ever get on."""
    for wrap in (lambda failure: failure, lambda failure: RuntimeError("no use")):

        def agent(run: Any, wrap: Callable[[Exception], Exception] = wrap) -> Any:
            try:
                return run.do("a", lambda: use(run, lab, "keyed"))
            except m.StepFailed as failure:
                raise wrap(failure) from failure

        lab = bench(m, agent, {("keyed", 1): ["never"]})
        assert "failed" == lab.serve().status
        lab.journal.start("two", "retry", "r")
        assert "completed" == lab.serve("two").status


@rule  # engine.md F2
def test_a_block_whose_failure_was_handled_fails_again(m: Any) -> None:
    """Plan B is complete, and a crash after it doesn't make plan A worth another try."""

    def agent(run: Any) -> None:
        try:
            with run.step("A"):
                use(run, lab, "keyed")
        except m.StepFailed:
            run.do("B", lambda: use(run, lab, "unsafe"))
        run.do("end", list)

    lab = bench(m, agent, {("keyed", 1): ["never"]})
    crash_at(lab, "after step.completed")
    assert "completed" == lab.serve().status and 1 == len(lab.world.effects)


@rule  # engine.md W40
def test_a_question_whose_time_is_over_is_a_no(m: Any) -> None:
    """Nobody answers for a day: whoever runs it next says so once, and the agent is told the same after each crash."""

    def agent(run: Any) -> Any:
        with suppress(m.Rejected):
            return run.ask("ok?", args={"x": 3}, expires_in=3600)
        return run.do("b", lambda: [next(lab.coins), "not asked any more"][1])

    lab = bench(m, agent)
    lab.journal.start("r")
    assert "waiting" == lab.journal.run(lab.agent, "r").status
    with pytest.raises(m.Refused):  # its time isn't over
        lab.journal.answer("r", lab.store.state("r").waits[0], "expired")
    lab.world.now += 3600
    for decision in ("approved", "rejected"):
        with pytest.raises(m.Refused):
            lab.journal.answer("r", lab.store.state("r").waits[0], decision)
    for where in ("before approval.resolved", "before step.failed"):
        crash_at(lab, where)
    assert "not asked any more" == lab.serve().output["output"] and 2 == lab.crashes
    assert ["expired"] == [event.data["decision"] for event in lab.events("approval.resolved")]


@rule  # engine.md W40
def test_a_question_whose_time_is_over_has_its_default_for_an_answer(m: Any) -> None:
    """What it may go on with was said when it was asked."""
    lab = bench(m, lambda run: run.ask("ok?", args={"x": 3}, expires_in=3600, default={"x": 1}))
    lab.journal.start("r")
    assert "waiting" == lab.journal.run(lab.agent, "r").status
    lab.world.now += 3600
    assert {"x": 1} == lab.journal.run(lab.agent, "r").output["output"]


@rule  # engine.md W40
def test_an_answer_in_time_counts_though_the_run_goes_on_later(m: Any) -> None:
    """The time is that of the answer, and not of who goes on with it."""
    lab = bench(m, lambda run: run.ask("ok?", args={"x": 3}, expires_in=3600, default={"x": 1}))
    lab.journal.start("r")
    lab.journal.run(lab.agent, "r")
    lab.journal.answer("r", lab.store.state("r").waits[0], "approved")
    lab.world.now += 86400
    assert {"x": 3} == lab.journal.run(lab.agent, "r").output["output"]


@rule  # engine.md W42
def test_several_questions_are_answered_in_any_order(m: Any) -> None:
    """All are asked before the run waits; it goes on when all have an answer, and a no is a value among the others."""
    questions = [{"action": "ok?", "args": {"x": x}} for x in (3, 2, 3)]
    lab = bench(m, lambda run: run.do("a", lambda: [str(each) for each in run.ask_all(questions)]))
    lab.journal.start("r")
    lab.journal.run(lab.agent, "r")
    ids = list(lab.store.state("r").waits)
    assert 3 == len(set(ids))
    for id, decision in zip(reversed(ids), ("approved", "rejected", "edited"), strict=True):
        lab.journal.answer("r", id, decision, {"x": 9} if decision == "edited" else None)
        state = lab.journal.run(lab.agent, "r")
    assert ["{'x': 9}", "rejected", "{'x': 3}"] == state.output["output"]
    assert 3 == len(lab.events("approval.requested"))


@rule  # engine.md S4
def test_a_signal_waits_for_a_step_that_looks(m: Any) -> None:
    """Neither a step that doesn't look takes it, nor an entry that looked and isn't the one that completes."""

    def agent(run: Any) -> Any:
        run.ask("go?", args={"x": 3})
        return [run.do(name, lambda: run.signals() if next(lab.coins) else "blind") for name in "abc"]

    lab = bench(m, agent)
    lab.coins = iter([1, 0, 1, 1])
    lab.journal.start("r")
    lab.journal.signal("r", "stop")
    crash_at(lab, "before step.completed", 2)
    assert ["blind", ["stop"], []] == lab.serve().output["output"]


@rule  # engine.md S12
def test_a_question_outside_a_step_is_a_step_of_its_own_name(m: Any) -> None:
    """A yes to `deploy` isn't the result of the step `deploy`."""
    lab = bench(m, lambda run: [run.ask("deploy", args={"x": 3}), run.do("deploy", lambda: "deployed")][1])
    assert {"output": "deployed"} == lab.serve().output


@rule  # engine.md F1
def test_a_no_and_an_unknown_outcome_leave_a_step_as_themselves(m: Any) -> None:
    """Who retries failures retries neither; after a crash the agent is told the same."""

    def unknown(run: Any) -> None:
        with suppress(m.CallFailed):
            use(run, lab, "unsafe")
        use(run, lab, "unsafe")

    def agent(run: Any) -> list[str]:
        acts = [lambda: run.ask("ok?", args={"x": 2}), lambda: run.do("a", lambda: run.ask("ok?", args={"x": 2}))]
        heard = []
        for act in [*acts, lambda: run.do("b", lambda: unknown(run))]:
            with pytest.raises((m.Rejected, m.CallOutcomeUnknown)) as caught:
                act()
            heard.append(f"{caught.type.__name__} {str(caught.value).rpartition('(')[2]}"[:26])
        run.do("end", list)
        return heard

    lab = bench(m, agent, {("unsafe", 1): ["never"]}, on_unknown="fail")
    crash_at(lab, "after step.completed")
    (call,) = lab.serve().unresolved()
    assert ["Rejected rejected"] * 2 + [f"CallOutcomeUnknown {call}"[:26]] == lab.serve().output["output"]
    assert 3 == len(lab.events("step.failed"))


@rule  # engine.md C12
def test_args_that_a_tool_does_not_take_are_told_of_and_nothing_is_sent(m: Any) -> None:
    """A failure like any other, in a call and beside others; no event is written, and a crash changes nothing."""

    def asked(run: Any) -> list[Any]:
        wrong = [{"y": 1}, {}, {"x": 1, "y": 2}]
        heard: list[Any] = []
        for args in wrong:
            try:
                run.call(pay, **args)
            except m.CallFailed as failure:
                heard.append(failure.type)
        outcomes = run.parallel((pay, wrong[0]), (pay, {"x": 2}), (pay, wrong[1]), (pay, {"x": 3}))
        heard += [outcome.type if isinstance(outcome, m.CallFailed) else outcome.split(":")[1] for outcome in outcomes]
        use(run, lab, "keyed")
        return heard

    for where in ("before effect", "after tool.completed", "before step.completed"):
        lab = bench(m, lambda run: run.do("a", lambda: asked(run)), find=True)
        pay = replace(lab.tools["unsafe"], takes=("x",))
        crash_at(lab, where)
        wrong = "TypeError"
        assert [wrong, wrong, wrong, wrong, "2", wrong, "3"] == lab.serve().output["output"]
        assert 1 == lab.crashes and 3 == len(lab.world.effects)
        assert {"2", "3", "1"} == {str(event.data["args"]["x"]) for event in lab.events("tool.started")}


@rule  # engine.md H10
def test_a_result_that_cannot_be_stored_is_a_failure_of_a_tool_that_may_be_called_again(m: Any) -> None:
    """It is recorded as a failure, told, live and after a crash, and not tried again by itself."""

    def agent(run: Any) -> Any:
        return run.do("a", lambda: [attempt(run), use(run, lab, "keyed")][0])

    def attempt(run: Any) -> str:
        try:
            return str(run.call(look, x=1))
        except m.CallFailed as failure:
            return "transient" if failure.transient else "failed"

    for where in ("after tool.failed", "before step.completed", "after step.completed"):
        lab = bench(m, agent, find=True)
        asked: list[Any] = []
        look = replace(lab.tools["idempotent"], fn=lambda args, key, asked=asked: asked.append(key) or {object()})
        crash_at(lab, where)
        assert "failed" == lab.serve().output["output"]
        assert (1, 1) == (lab.crashes, len(asked))
        assert [False] == [event.data["again"] for event in lab.events("tool.failed")]


@rule  # engine.md X3
def test_a_value_of_the_memory_that_cannot_be_stored_is_a_mistake(m: Any) -> None:
    """It fails nothing: the run is released, and mended code goes on where it was."""
    values: list[Any] = [{object()}, "storable"]

    def agent(run: Any) -> None:
        if not run.done("a"):
            with run.step("a"):
                use(run, lab, "unsafe")
                run.memory["x"] = values[0]

    lab = bench(m, agent)
    with pytest.raises(m.Mistake):
        lab.journal.run(agent, "r")
    assert "queued" == lab.store.state("r").status and [] == events_of(lab, "step.failed")
    assert [True] == [event.data["mistake"] for event in lab.events("run.requeued")]
    del values[0]
    assert "completed" == lab.serve().status
    assert {"x": "storable"} == lab.store.state("r").context["memory"] and 1 == len(lab.world.effects)


@rule  # engine.md W4
def test_a_no_has_the_persons_note(m: Any) -> None:
    """An agent that tells a model why it was refused tells it the same after a crash: in a step, and behind one."""
    note = "not today: no money"

    def asked(run: Any) -> list[str]:
        try:
            run.ask("pay", args={"action": "x", "key": 1, "reason": "any name", "self": 2})
        except m.Rejected as no:
            return [str(no), no.note]
        return []

    def agent(run: Any) -> list[Any]:
        heard = [run.do("a", lambda: [asked(run), use(run, lab, "unsafe")][0]), asked(run)]
        run.do("end", lambda: use(run, lab, "unsafe", 2))
        return heard

    def refuse(run_id: str) -> None:
        for id, question in lab.store.state(run_id).approvals.items():
            if question["decision"] is None:
                lab.journal.answer(run_id, id, "rejected", None, note)

    for where in ("before step.completed", "after step.failed", "before run.completed"):
        lab = bench(m, agent)
        lab.people = refuse  # type: ignore[method-assign]
        crash_at(lab, where)
        assert [[f"rejected: {note}", note]] * 2 == lab.serve().output["output"], where
        assert 2 == len(lab.world.effects) and 1 == lab.crashes


@rule  # engine.md C4
def test_a_clock_in_a_text_is_a_clock_too(m: Any) -> None:
    """A time in a text may differ, nothing else: Rome doesn't get the weather of Paris, 3 + 5 isn't 4."""
    for texts, paid in (
        (["rain at 9:05?", "rain at 10:30?"], 1),
        (["on 2026-01-02 at 23:59:59.9, now 1767312000?", "on 2026-01-03 at 00:00:01.2, now 1767398401?"], 1),
        (["rain in Paris?", "rain in Rome?"], 2),
        (["2 + 2?", "3 + 5?"], 2),
    ):
        asks = iter(texts)
        think = lambda request: lab.world.act("model", request["q"], f"answer to {request['q']}")  # noqa: E731
        ask = lambda run: run.model("m", {"q": next(asks)}, think)  # noqa: E731
        lab = bench(m, lambda run: run.do("a", lambda: [ask(run), use(run, lab, "idempotent")]))
        crash_at(lab, "before tool.completed")
        assert f"answer to {texts[paid - 1]}" == lab.serve().output["output"][0]
        assert paid == len(lab.world.paid)


@rule  # engine.md C5
def test_answers_go_by_the_order_of_asking(m: Any) -> None:
    """Two tasks ask, each with a clock, and the second one's answer comes first: they don't swap after a crash."""
    model = m.Tool("m", "model", lambda args, key: lab.world.act("model", key, f"about {args['request']['q']}"))

    def gather(run: Any, *questions: str) -> dict[str, Any]:
        outcomes, live = {}, []
        for question in questions:
            args = {"request": {"q": question, "now": next(lab.clock)}}
            id = run._identify(model, args)
            outcomes[question] = run._recorded(id, model)
            if outcomes[question] is m.LIVE:
                live.append((question, (id, model, args, run._start(id, model, args))))
        return outcomes | {question: run._finish(*call) for question, call in reversed(live)}

    days = ("2026-01-01", "2026-01-02")
    for where, nth, paid in (("before tool.completed", 1, 2), ("before model.completed", 2, 3)):
        lab = bench(m, lambda run: run.do("a", lambda: [gather(run, *days), use(run, lab, "idempotent")]))
        crash_at(lab, where, nth)
        assert {day: f"about {day}" for day in days} == lab.serve().output["output"][0]
        assert paid == len(lab.world.paid)


@rule  # engine.md C4
def test_an_answer_is_given_to_its_equal_or_in_its_place(m: Any) -> None:
    """Asked of 2 and 3 January, and a day later of 3 and 4: the 4th doesn't get the answer about the 2nd."""
    days = ("2026-01-02", "2026-01-03", "2026-01-04")

    def agent(run: Any) -> Any:
        day = int(lab.world.now // 86400)
        with run.step("a"):
            got = [run.model("m", {"q": f"rain on {each}?"}, think) for each in days[day : day + 2]]
            use(run, lab, "idempotent")
            return got

    def think(request: Any) -> str:
        return str(lab.world.act("model", request["q"], f"about {request['q'][8:18]}"))

    lab = bench(m, agent)
    crash_at(lab, "before tool.completed", kind="day")
    assert ["about 2026-01-03", "about 2026-01-04"] == lab.serve().output["output"]
    assert 3 == len(lab.world.paid)


@rule  # engine.md C4
def test_a_question_that_was_dropped_leaves_its_answer_to_nobody(m: Any) -> None:
    """Today's code asks only the second of two questions that differ in a date: it is asked, though one is left."""
    questions = ["rain on 2026-01-02?", "other", "rain on 2026-01-03?"]
    think = lambda request: lab.world.act("model", request["q"], f"about {request['q']}")  # noqa: E731

    def agent(run: Any) -> Any:
        with run.step("a"):
            got = [run.model("m", {"q": question}, think) for question in questions]
            use(run, lab, "idempotent")
            return got

    lab = bench(m, agent)
    crash_at(lab, "before model.started", 3)
    with suppress(m.Crash):
        lab.journal.run(agent, "r")
    lab.disown("r")
    del questions[0]
    assert [f"about {question}" for question in questions] == lab.serve().output["output"]


@rule  # engine.md C5
def test_a_question_that_failed_keeps_its_place(m: Any) -> None:
    """In the next attempt of the step it is asked again, and the known answer is for the one after it."""

    def agent(run: Any) -> Any:
        for _ in range(2):
            with suppress(m.StepFailed), run.step("a"):
                asks = [{"q": question, "now": next(lab.clock)} for question in ("on 2026-01-01", "on 2026-01-02")]
                got = [lab.attempt(lambda: run.model("m", ask, think), "catch") for ask in asks]
                use(run, lab, "unsafe")
                if run.state.step["attempt"] == 1:
                    raise ValueError
                return got

    def think(request: Any) -> str:
        if lab.world.act("model", request["q"], len(lab.world.paid) == 0):
            raise ValueError("the first one")
        return f"about {request['q']}"

    lab = bench(m, agent)
    assert ["about on 2026-01-01", "about on 2026-01-02"] == lab.serve().output["output"]
    assert ["on 2026-01-01", "on 2026-01-02", "on 2026-01-01"] == lab.world.paid


@rule  # engine.md H4
def test_an_answer_that_made_the_step_fail_is_forgotten(m: Any) -> None:
    """Else it would do so for ever. An answer before a call that was sent stays: the call rests on it."""
    mail = m.Tool("mail", "unsafe", lambda args, key: lab.world.act("unsafe", key, "sent"))
    poll = m.Tool("poll", "idempotent", lambda args, key: next(answers))

    def agent(run: Any, ask: Callable[[Any, str], Any], first: str, last: str) -> Any:
        for _ in range(5):
            with suppress(m.StepFailed), run.step("a"):
                text = lab.attempt(lambda: ask(run, first), "catch")
                run.call(mail, text=text if first == "text" else "")
                verdict = ask(run, last) if last else text
                if verdict != "good":
                    raise ValueError(verdict)
                return text

    def think(run: Any, q: str) -> Any:
        return run.model("m", {"q": q}, lambda request: next(answers), check=lambda answer: answer or 1 / 0)

    for ask, asks, ends in (
        (think, ("text", "judge"), ["hello", "bad", "bad", "good"]),
        (think, ("judge", ""), ["", "bad", "good"]),  # asked again after the mail, its answer is younger than the mail
        (lambda run, q: run.call(poll, q=q), ("text", "ready?"), ["hello", "bad", "bad", "good"]),
    ):
        answers = iter(ends)
        lab = bench(m, lambda run: agent(run, ask, *asks))
        assert lab.serve().output["output"] in ("hello", "good")
        assert 1 == len(lab.world.effects) and not [*answers]


@rule  # engine.md H6
def test_a_hook_that_raises_or_does_not_know_has_said_nothing(m: Any) -> None:
    """After a failure the call isn't sent again, and after a crash a person is asked; there is one effect."""

    def broken(args: Any, key: str) -> Any:
        raise OSError("no network")

    for look in (broken, lambda args, key: ("unknown", None), lambda args, key: ("maybe", 1), lambda args, key: None):
        for where, attempts in (("", 1), ("after effect", 1), ("before effect", 2)):
            lab = bench(m, lambda run: run.do("a", lambda: lab.attempt(lambda: use(run, lab, "unsafe"), "catch")),
                        {("unsafe", 1): ["lost"] if not where else []})  # fmt: skip
            lab.tools["unsafe"] = m.Tool("unsafe", "unsafe", lab.tool("unsafe"), look, "ask")
            lab.boot()
            crash_at(lab, where)
            assert "completed" == lab.serve().status
            assert 1 == len(lab.world.effects) and attempts == len(lab.events("tool.started"))
            lab.judge()


@rule  # engine.md V2
def test_a_person_speaks_for_a_tool_that_the_process_does_not_know(m: Any) -> None:
    """A deploy without the tool doesn't fall over: what was recorded of the call says that a person is asked."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "unsafe")), on_unknown="ask")
    crash_at(lab, "before tool.completed")
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.disown("r")
    lab.journal = m.Journal(lab.store)
    assert "waiting" == lab.journal.run(lab.agent, "r").status
    assert "completed" == lab.serve().status and 1 == len(lab.world.effects)


@rule  # engine.md V2
def test_a_tool_that_the_process_does_not_know_is_judged_by_its_record(m: Any) -> None:
    """A call whose tool is gone fails the run if it was recorded so; nothing is sent."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "unsafe")), on_unknown="fail")
    crash_at(lab, "before tool.completed")
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.disown("r")
    lab.journal = m.Journal(lab.store)
    with suppress(Exception):
        lab.journal.run(lab.agent, "r")
    assert ("failed", 1) == (lab.store.state("r").status, len(lab.world.effects))


@rule  # engine.md X3
def test_a_mistake_fails_nothing(m: Any) -> None:
    """Whoever runs the agent gets it, swallowed or not; the step that it left stays open, fixed code goes on."""

    def agent(run: Any, nested: bool = True) -> Any:
        with suppress(Exception), run.step("a"):
            use(run, lab, "unsafe")
            if nested:
                run.do("b", list)
        return "went on"

    lab = bench(m, agent)
    stopped(lab, m.Misuse)
    assert ("queued", "a") == (lab.store.state("r").status, lab.store.state("r").step["id"])
    lab.agent = lambda run: agent(run, nested=False)
    assert {"output": "went on"} == lab.serve().output
    assert 1 == len(lab.world.effects) and not lab.events("step.failed", "run.failed")


@rule  # engine.md S7
def test_a_loop_over_items_survives_a_crash(m: Any) -> None:
    """Each item has its step; `each` leaves out the done ones, and one that failed and was left is told again."""

    def agent(run: Any) -> None:
        for x in run.each("mail", [1, 2, 3]):
            with suppress(m.StepFailed), run.step("mail", key=x):
                use(run, lab, "unsafe", x)

    base = bench(m, agent, {("unsafe", 2): ["did not happen"]})
    lab = base
    base.serve()
    assert 2 == len(base.world.effects)
    for tick in range(1, base.world.ticks + 1):
        lab = bench(m, agent, base.program.nature, {tick: "crash"})
        assert "completed" == lab.serve().status
        assert base.world.effects == lab.world.effects


@rule  # engine.md F3
def test_a_retry_tries_again_what_it_is_told_to(m: Any) -> None:
    """A summary of failures that were handled fails a retry at once, unless a person names the steps."""

    def agent(run: Any) -> None:
        failed = []
        for x in run.each("mail", [1, 2, 3]):
            try:
                with run.step("mail", key=x):
                    use(run, lab, "unsafe", x)
            except m.StepFailed:
                failed.append(x)
        if failed:
            raise RuntimeError(f"{failed} failed")

    lab = bench(m, agent, {("unsafe", 2): ["did not happen"]})
    assert "failed" == lab.serve().status
    lab.journal.start("two", "retry", "r")
    assert ("failed", 2) == (lab.serve("two").status, len(lab.world.effects))
    lab.journal.start("three", "retry", "two", again=["mail/2"])
    assert ("completed", 3) == (lab.serve("three").status, len(lab.world.effects))


@rule  # engine.md S10
def test_a_loop_on_variables_of_a_dead_process_is_stopped(m: Any) -> None:
    """`for i in range(3)` begins at 0, the log is at turn 2 or 3: the next mail would be one that was sent."""

    def agent(run: Any) -> None:
        for i in range(3):
            with run.step("turn", repeat=True):
                use(run, lab, "unsafe", i)

    for where, nth, effects in (("after step.completed", 1, 1), ("after step.completed", 2, 2), ("after effect", 2, 2)):
        lab = bench(m, agent)
        crash_at(lab, where, nth)
        stopped(lab, m.PlanChanged)
        assert effects == len(lab.world.effects)
    lab = bench(m, agent)
    assert "completed" == lab.serve().status and 3 == len(lab.world.effects)


@rule  # engine.md S10
def test_a_loop_that_looks_where_it_is_goes_on(m: Any) -> None:
    """At memory, context or signals, before its turn or in it, but before it does anything."""
    looks = [lambda run: run.memory, lambda run: run.context, lambda run: run.signals()]
    for look, inside in [(looks[0], False), *((look, True) for look in looks)]:

        def agent(run: Any, look: Callable[[Any], Any] = look, inside: bool = inside) -> None:
            if not inside:
                look(run)
            with run.step("turn", repeat=True):
                if inside:
                    look(run)
                run.plan("a", "done")

        lab = bench(m, agent)
        crash_at(lab, "before run.completed")
        assert "completed" == lab.serve().status and 2 == lab.store.state("r").uses["turn"]


@rule  # engine.md S10
def test_a_loop_that_fails_before_it_has_looked_fails(m: Any) -> None:
    """A failure does no harm, and is told to the agent as any."""

    def agent(run: Any) -> None:
        with suppress(m.StepFailed), run.step("turn", repeat=True):
            if len(lab.events("step.completed")):
                raise ValueError

    lab = bench(m, agent)
    crash_at(lab, "before run.completed")
    assert "completed" == lab.serve().status and 1 == len(lab.events("step.failed"))


@rule  # engine.md D3
def test_a_question_with_a_clock_is_not_asked_for_ever(m: Any) -> None:
    """It diverges at the second one; the same question in a new attempt of the step is another matter."""
    lab = bench(m, lambda run: run.do("a", lambda: run.ask("deploy?", args={"x": 3, "at": next(lab.clock)})))
    stopped(lab, m.StepDiverged)
    assert 1 == len(lab.events("approval.requested"))

    def agent(run: Any) -> Any:
        for _ in range(2):
            with suppress(m.StepFailed), run.step("a"):
                attempt = run.state.step["attempt"]
                run.ask("deploy?", args={"x": 3, "at": attempt})
                use(run, lab, "unsafe", attempt)
                if attempt == 1:
                    raise ValueError

    lab = bench(m, agent)
    assert "completed" == lab.serve().status and 2 == len(lab.events("approval.requested"))


@rule  # engine.md D3
def test_nothing_is_sent_in_place_of_a_question(m: Any) -> None:
    """A person was asked, and the step that is entered again acts without the answer: it is stopped before."""
    lab = bench(
        m,
        lambda run: run.do("a", lambda: use(run, lab, "unsafe") if next(lab.coins) else run.ask("ok?", args={"x": 3})),
    )
    lab.coins = iter([0, 1, 0])
    stopped(lab, m.StepDiverged)
    assert not lab.events("tool.started")
    assert "completed" == lab.serve().status


@rule  # engine.md V3
def test_a_person_speaks_to_the_newest_run_of_a_line(m: Any) -> None:
    """A word to its parent would be lost on a retry; the owner that slept may speak to its own run at any time."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "unsafe")), on_unknown="fail")
    crash_at(lab, "before effect")
    (call,) = lab.serve().unresolved()
    lab.journal.start("two", "retry", "r")
    lab.serve("two")
    lab.journal.start("three", "retry", "two")
    with pytest.raises(m.Refused):
        lab.journal.resolve("two", call, "did_not_happen")
    lab.journal.testify("r", {"call_id": call, "attempt": 1}, "did_not_happen")
    lab.journal.resolve("three", call, "did_not_happen")
    assert not lab.store.state("r").unresolved() and "completed" == lab.serve("three").status
    assert 1 == len(lab.world.effects)


@rule  # engine.md S6
def test_an_id_is_of_one_kind(m: Any) -> None:
    """A `do` of the same name would give back the nothing that a block has left, or a block be skipped for it."""

    def ask(run: Any, kind: str) -> None:
        if kind == "do":
            return run.do("plan", list)
        with run.step("plan", repeat=kind == "repeat"):
            return None

    for first, second in itertools.permutations(["once", "do", "repeat"], 2):
        lab = bench(m, lambda run: [ask(run, first), run.done("plan"), run.memory, ask(run, second)])
        stopped(lab, m.PlanChanged)


@rule  # engine.md L2
def test_a_retry_tells_an_open_step_its_history(m: Any) -> None:
    """The agent was told that the first way failed, and took the second: the retry doesn't try the first one."""

    def agent(run: Any) -> Any:
        with run.step("a"):
            try:
                return use(run, lab, "keyed")
            except m.CallFailed:
                return use(run, lab, "unsafe")

    lab = bench(m, agent, {("keyed", 1): ["never"]})
    crash_at(lab, "before tool.completed")
    *_, call = ended_with_its_step_open(lab).unresolved()
    lab.journal.resolve("r", call, "happened", "by hand")
    lab.journal.start("two", "retry", "r")
    assert {"output": "by hand"} == lab.serve("two").output and 1 == len(lab.world.effects)


@rule  # engine.md C5
def test_a_second_try_that_was_in_flight_is_gone_on_with(m: Any) -> None:
    """It failed, was asked for again, and the process died: with a clock in it, it is still no third call."""

    def agent(run: Any) -> Any:
        with run.step("a"):
            request = {"q": "q1", "now": next(lab.clock)}
            return lab.attempt(lambda: run.model("m", request, lab.model), "again")

    for where, nth, ends in (("before model.completed", 1, ["never"]), ("before model.started", 3, ["never", "late"])):
        lab = bench(m, agent, {("model", "q1"): ends})
        crash_at(lab, where, nth)
        assert "completed" == lab.serve().status
        assert 1 == len({event.data["call_id"] for event in lab.events("model.started")})


@rule  # engine.md F2
def test_a_failure_is_told_once_whatever_comes_in_between(m: Any) -> None:
    """A signal that arrives with it doesn't make it another failure: the second try is a real one."""

    def agent(run: Any) -> Any:
        for _ in range(2):
            with suppress(m.StepFailed):
                return run.do("a", lambda: use(run, lab, "keyed"))
        return "told twice"

    lab = bench(m, agent, {("keyed", 1): ["never"]})
    lab.signalled = lambda where: lab.journal.signal("r", where)  # type: ignore[attr-defined]
    crash_at(lab, "after step.failed", kind="signalled")
    assert "told twice" != lab.serve().output["output"]


@rule  # engine.md L4
def test_a_fork_has_not_failed_yet(m: Any) -> None:
    """It starts behind the last completed step, before the failure that its parent has handled."""

    def agent(run: Any) -> Any:
        run.do("a", list)
        try:
            return run.do("b", lambda: use(run, lab, "keyed"))
        except m.StepFailed:
            return "plan B"

    lab = bench(m, agent, {("keyed", 1): ["never"]})
    assert {"output": "plan B"} == lab.serve().output
    lab.program.nature = {}
    lab.journal.start("f", "fork", "r")
    assert {"output": "plan B"} != lab.serve("f").output


@rule  # engine.md L2
def test_a_retry_has_the_inbox_of_its_parent(m: Any) -> None:
    """A signal that arrived while the parent's step ran is older than the first step of the retry."""
    lab = bench(
        m, lambda run: run.do("a", lambda: [use(run, lab, "keyed"), run.signals()][1]), {("keyed", 1): ["never"]}
    )
    lab.signalled = lambda where: lab.journal.signal("r", where)  # type: ignore[attr-defined]
    crash_at(lab, "after tool.started", kind="signalled")
    assert "failed" == lab.serve().status
    lab.journal.start("two", "retry", "r")
    assert {"output": ["after tool.started"]} == lab.serve("two").output


@rule  # engine.md F3
def test_a_failure_that_leaves_late_is_tried_anew(m: Any) -> None:
    """A loop goes on after a failed item and raises it at the end, alone or in a group: a retry tries it anew."""

    def agent(run: Any, wrap: Callable[[list[Any]], Exception]) -> None:
        failures = []
        for x in run.each("mail", [1, 2, 3]):
            try:
                with run.step("mail", key=x):
                    use(run, lab, "unsafe", x)
            except m.StepFailed as failure:
                failures.append(failure)
        if failures:
            raise wrap(failures)

    for wrap in (lambda failures: failures[0], lambda failures: ExceptionGroup("some mails", failures)):
        lab = bench(m, lambda run: agent(run, wrap), {("unsafe", 2): ["did not happen"]})
        assert "failed" == lab.serve().status
        lab.journal.start("two", "retry", "r")
        assert "completed" == lab.serve("two").status
        assert 3 == len(lab.world.effects) and 4 == len(lab.events("tool.started"))


@rule  # engine.md F3
def test_plan_a_is_not_done_when_something_else_fails_behind_plan_b(m: Any) -> None:
    """The failure of plan A is the context of what leaves, and plan B has begun since: it was handled."""

    def line(run: Any) -> None:
        try:
            run.do("A", lambda: use(run, lab, "keyed"))
        except m.StepFailed as failure:
            run.do("B", lambda: use(run, lab, "unsafe"))
            raise m.Transient("later") from (failure if causes else None)

    def blocks(run: Any) -> None:
        try:
            if not run.done("A"):
                with run.step("A"):
                    use(run, lab, "keyed")
        except m.StepFailed as failure:
            if not run.done("B"):
                with run.step("B"):
                    use(run, lab, "unsafe")
            raise m.Transient("later") from (failure if causes else None)

    for agent, chained, strike in itertools.product((line, blocks), (True, False), (0, 1, 2)):
        causes = chained
        lab = bench(m, agent, {("keyed", 1): ["did not happen"]})
        if strike:
            crash_at(lab, "after step.completed", strike)
        lab.serve()
        assert 1 == len(lab.world.effects)


@rule  # engine.md F3
def test_a_failure_behind_which_nothing_was_begun_has_left(m: Any) -> None:
    """It is the context of what leaves, though a step was begun before the agent was told of it again."""

    def agent(run: Any) -> None:
        with run.step("begin", repeat=True):
            run.message("user", str(run.memory.get("n", 0)))
        try:
            run.do("A", lambda: use(run, lab, "keyed"))
        except m.StepFailed:
            run.done("begin")
            raise m.Transient("no") from None

    lab = bench(m, agent, {("keyed", 1): ["did not happen"]})
    crash_at(lab, "before run.retry_scheduled")
    assert "completed" == lab.serve().status


@rule  # engine.md F3
def test_a_failure_of_another_run_is_none_of_this_one(m: Any) -> None:
    """A run beside this one fails in a step of the same name: the plan B of this one is gone on with."""

    def other(run: Any) -> None:
        run.do("A", lambda: use(run, lab, "idempotent", 2))

    def agent(run: Any) -> None:
        try:
            run.do("A", lambda: use(run, lab, "keyed"))
        except m.StepFailed:
            run.do("B", lambda: use(run, lab, "unsafe"))
        raise failed

    failed: list[BaseException] | BaseException = []
    lab = bench(m, agent, {("keyed", 1): ["did not happen"], ("idempotent", 2): ["never"]})

    def beside(run: Any) -> None:
        nonlocal failed
        try:
            other(run)
        except m.StepFailed as failure:
            failed = failure
            raise

    lab.journal.run(beside, "other")
    assert isinstance(failed, m.StepFailed)
    lab.serve()
    lab.journal.start("two", "retry", "r")
    lab.serve("two")
    assert 1 == len(lab.world.effects)


@rule  # engine.md F2
def test_a_failure_that_was_handled_before_stays_handled(m: Any) -> None:
    """It was mended, and the second one of the same step left the agent: a retry doesn't pass over the mending."""

    def agent(run: Any) -> Any:
        try:
            return run.do("a", lambda: use(run, lab, "keyed"))
        except m.StepFailed:
            run.do("mend", lambda: use(run, lab, "unsafe"))
        return ["mended", run.do("a", lambda: use(run, lab, "keyed"))]

    lab = bench(m, agent, {("keyed", 1): ["never", "never"]})
    assert "failed" == lab.serve().status
    lab.journal.start("two", "retry", "r")
    assert "mended" == lab.serve("two").output["output"][0]


@rule  # engine.md S2
def test_messages_and_plan_of_an_open_step_are_not_seen_between_steps(m: Any) -> None:
    """A crash left them in the overlay; outside the step there is the base alone."""
    seen: list[Any] = []

    def agent(run: Any) -> None:
        seen.append([len(run.context["messages"]), run.context["plan"]])
        with run.step("a"):
            run.message("user", "hello")
            run.plan("task", "done")
            use(run, lab, "unsafe")

    lab = bench(m, agent)
    crash_at(lab, "before step.completed")
    assert "completed" == lab.serve().status
    assert [[0, {}], [0, {}]] == seen


@rule  # engine.md S2
def test_what_an_entry_wrote_is_gone_when_its_step_is_entered_again(m: Any) -> None:
    """The second entry goes another way, and nothing of the first one is left in the context."""

    def agent(run: Any) -> None:
        with run.step("a"):
            if next(lab.coins):
                run.message("user", "hello")
                run.memory["key"] = 1
                run.plan("task", "done")
            use(run, lab, "unsafe")

    lab = bench(m, agent)
    lab.coins = iter([1, 0])
    crash_at(lab, "before step.completed")
    assert {"messages": [], "memory": {}, "plan": {}} == lab.serve().context


@rule  # engine.md E3
def test_a_wall_clock_that_was_set_back_proves_no_age_of_a_key(m: Any) -> None:
    """The machine died and was started anew hours later, with its clock set back: the key may be forgotten."""
    for slip, sent in ((0.0, 1), (-9000.0, 1), (-7300.0, 1)):
        lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "keyed")), on_unknown="fail")
        crash_at(lab, "after effect")
        with suppress(m.Crash):
            lab.journal.run(lab.agent, "r")
        lab.disown("r")
        lab.world.now, lab.world.slip, lab.world.boots = 7200.0, slip, 1
        lab.journal.run(lab.agent, "r")
        assert ("failed", sent) == (lab.store.state("r").status, len(lab.world.effects))


@rule  # engine.md H5
def test_an_attempt_that_did_nothing_frees_no_other(m: Any) -> None:
    """The first may have happened, the second did not, and the key is forgotten: there is no third one."""
    tries: list[str] = []

    def send(args: Any, key: str) -> None:
        tries.append(key)
        if len(tries) == 2:
            lab.world.now += 86400
            raise m.NotSent("no route")
        lab.world.act("keyed", key, "sent")
        raise m.Transient("lost")

    lab = bench(m, lambda run: run.do("a", lambda: run.call(m.Tool("send", "keyed", send, None, "fail"))))
    assert "unsafe_in_flight" == lab.serve().output["cause"]
    assert (2, 1) == (len(tries), len(lab.world.effects))


@rule  # engine.md C7
def test_a_tool_has_a_copy_of_its_arguments(m: Any) -> None:
    """What it does to them isn't what the next attempt is begun with."""
    heard: list[Any] = []

    def poll(args: Any, key: str) -> str:
        heard.append(list(args["items"]))
        args["items"].append("more")
        if len(heard) < 3:
            raise m.Transient("busy")
        return "done"

    lab = bench(m, lambda run: run.do("a", lambda: run.call(m.Tool("poll", "idempotent", poll), items=["one"])))
    assert {"output": "done"} == lab.serve().output
    assert [["one"]] * 3 == heard == [event.data["args"]["items"] for event in lab.events("tool.started")]


@rule  # engine.md C4
def test_a_number_is_a_clock_from_ten_digits_on(m: Any) -> None:
    """Seconds since 1970 may differ in a request that is asked again, no other number may."""
    for numbers, paid in (([1767312000, 1767398401], 1), ([4, 5], 2)):
        asks = iter(numbers)
        think = lambda request: lab.world.act("model", str(request["q"]), f"answer to {request['q']}")  # noqa: E731
        lab = bench(
            m,
            lambda run: run.do("a", lambda: [run.model("m", {"q": next(asks)}, think), use(run, lab, "idempotent")]),
        )
        crash_at(lab, "before tool.completed")
        assert f"answer to {numbers[paid - 1]}" == lab.serve().output["output"][0]
        assert paid == len(lab.world.paid)


@rule  # engine.md C6
def test_a_question_is_no_call_of_a_tool_of_its_name(m: Any) -> None:
    """Its id is that of `ask <action>`, so that a tool of the same name and arguments is the first of its kind."""
    lab = bench(m, lambda run: run.do("a", lambda: [run.ask("unsafe", args={"x": 3}), use(run, lab, "unsafe", 3)]))
    lab.serve()
    (asked,), (called,) = lab.events("approval.requested"), lab.events("tool.started")
    assert m.key_of("r", "a", "ask unsafe", {"x": 3}) == asked.data["approval_id"]
    assert m.key_of("r", "a", "unsafe", {"x": 3}, store="lab") == called.data["call_id"]


@rule  # engine.md S10
def test_a_loop_that_has_not_looked_writes_nothing(m: Any) -> None:
    """The first thing that its later turn does is what it is stopped at, a message as well as a call."""

    def agent(run: Any) -> None:
        for i in range(2):
            with run.step("turn", repeat=True):
                run.message("user", f"turn {i}")

    lab = bench(m, agent)
    crash_at(lab, "after step.completed")
    stopped(lab, m.PlanChanged)
    assert 1 == len(lab.events("message.appended"))


@rule  # engine.md S11
def test_what_may_be_left_out_before_a_step(m: Any) -> None:
    """R126: a `do` is stopped if it is new, has no key, and one without a key that sent something was left out."""

    def interrupted(agent: Callable[[Any, Lab], Any], where: str, nth: int) -> Lab:
        lab = bench(m, lambda run: agent(run, lab), {("idempotent", 1): ["late"] * 3})
        crash_at(lab, where, nth)
        with suppress(m.Crash):
            lab.journal.run(lab.agent, "r")
        lab.disown("r")
        return lab

    def two(run: Any, lab: Lab, key: Any = None) -> None:
        run.do("charge", lambda: use(run, lab, "unsafe"), key=key)
        run.do("mail", lambda: use(run, lab, "idempotent"))

    begun = interrupted(two, "after tool.started", 2)
    begun.agent = lambda run: run.do("mail", lambda: use(run, begun, "idempotent"))
    assert "completed" == begun.serve().status
    failed = interrupted(two, "after step.failed", 1)
    failed.agent = lambda run: told(run, failed)
    assert "completed" == failed.serve().status
    keyed = interrupted(lambda run, lab: two(run, lab, key=7), "after step.completed", 1)
    keyed.agent = lambda run: run.do("mail", list)
    assert "completed" == keyed.serve().status
    later = interrupted(two, "after step.completed", 1)
    later.agent = lambda run: run.do("mail", list, key=7)
    assert "completed" == later.serve().status


def told(run: Any, lab: Lab) -> Any:
    """A step that failed, asked for until it is done."""
    for _ in range(3):
        with suppress(lab.m.StepFailed):
            return run.do("mail", lambda: use(run, lab, "idempotent"))
    return None


@rule  # engine.md L4
def test_a_fork_counts_the_attempts_of_its_place(m: Any) -> None:
    """Those that a step had failed when its base last completed one; not those that came after."""

    def agent(run: Any) -> None:
        for name, done in (("b", "c"), ("d", "")):
            for _ in range(2):
                with suppress(m.StepFailed), run.step(name):
                    raise ValueError(name)
            if done:
                run.do(done, list)

    lab = bench(m, agent)
    assert "completed" == lab.serve().status
    lab.journal.start("f", "fork", "r")

    def forked(run: Any) -> None:
        for name in "bd":
            while not run.done(name):
                with suppress(m.StepFailed), run.step(name):
                    pass

    lab.agent = forked
    assert "completed" == lab.serve("f").status
    started = [event.data for event in lab.store.log["f"] if event.type == "step.started"]
    assert [("b", 3), ("d", 1)] == [(data["id"], data["attempt"]) for data in started]


@rule  # engine.md W6
def test_a_cancelled_wait_is_ended_and_its_retry_asks_anew(m: Any) -> None:
    """Nothing need have come; the question that nobody answered is not the retry's."""
    lab = bench(m, lambda run: run.do("a", lambda: run.ask("ok?", args={"x": 3})))
    assert "waiting" == lab.journal.run(lab.agent, "r").status
    lab.journal.cancel("r")
    assert "cancelled" == lab.journal.run(lab.agent, "r").status
    lab.journal.start("two", "retry", "r")
    assert "waiting" == lab.journal.run(lab.agent, "two").status
    assert ["approval.requested"] == events_of(lab, "approval.", "two")


@rule  # engine.md S4
def test_an_attempt_that_failed_takes_no_signals(m: Any) -> None:
    """The next one sees them, too."""
    seen: list[Any] = []

    def agent(run: Any) -> None:
        while not run.done("a"):
            with suppress(m.StepFailed), run.step("a"):
                seen.append(run.signals())
                if len(seen) == 1:
                    raise ValueError("the first one")

    lab = bench(m, agent)
    lab.journal.start("r")
    lab.journal.signal("r", "stop")
    assert "completed" == lab.serve().status
    assert [["stop"], ["stop"]] == seen


@rule  # engine.md V6
def test_a_step_that_ends_and_a_wait_are_progress(m: Any) -> None:
    """R81: a run that dies once between any two of them is never given up."""

    def completes(run: Any) -> None:
        for x in "abcd":
            run.do(x, list)

    def fails(run: Any) -> None:
        for x in "abcd":
            with suppress(m.StepFailed), run.step(x):
                raise ValueError(x)

    def waits(run: Any) -> None:
        run.do("a", lambda: run.ask("ok?", args={"x": 3}))

    for agent, where, nth in (
        (completes, "after step.completed", (1, 1, 1, 1)),  # each counts from behind the one before it
        (fails, "after step.failed", (1, 1, 1, 1)),
        (waits, "after step.started", (1, 2)),
    ):
        lab = bench(m, agent)
        for each in nth:
            crash_at(lab, where, each)
        lab.boot(patience=1)
        for _ in range(8):
            with suppress(m.Crash):
                lab.journal.run(agent, "r")
            if "waiting" == lab.store.state("r").status:
                lab.people("r")
            else:
                lab.disown("r")
        assert ("completed", len(nth)) == (lab.store.state("r").status, len(lab.events("run.requeued"))), where


@rule  # engine.md L4
def test_a_fork_of_a_retry_has_not_failed_yet(m: Any) -> None:
    """It starts behind the last completed step of the line, also if that is in no run of it."""

    def agent(run: Any) -> Any:
        with suppress(m.StepFailed):
            return run.do("a", lambda: use(run, lab, "keyed"))
        raise ValueError("no way")

    lab = bench(m, agent, {("keyed", 1): ["never"]})
    assert "failed" == lab.serve().status
    lab.journal.start("two", "retry", "r")
    lab.program.nature = {}
    lab.journal.start("f", "fork", "two", 1)
    assert "completed" == lab.serve("f").status
    assert [1] == [event.data["attempt"] for event in lab.store.log["f"] if event.type == "step.started"]


@rule  # engine.md V4
def test_a_late_word_is_about_its_own_attempt(m: Any) -> None:
    """The first owner sent nothing, the second one sent under the same key and died, and the key is forgotten."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "keyed")))
    crash_at(lab, "before effect", kind="stall")
    crash_at(lab, "before tool.completed")
    with suppress(m.Fenced, m.RunBusy):
        lab.journal.run(lab.agent, "r")
    (word,) = lab.events("tool.resolved")
    assert (1, "did_not_happen", True) == (word.data["attempt"], word.data["outcome"], word.data["late"])
    lab.world.now += 86400
    assert "waiting" == lab.journal.run(lab.agent, "r").status
    assert 1 == len(lab.world.effects)


@rule  # engine.md X3
def test_a_mistake_between_steps_ends_nothing(m: Any) -> None:
    """A `do` that is asked for twice; the run is released, and mended code goes on where it was."""
    lab = bench(m, lambda run: [run.do("a", lambda: use(run, lab, "unsafe")) for _ in range(2)])
    stopped(lab, m.StepDone)
    assert "queued" == lab.store.state("r").status
    lab.agent = lambda run: run.do("a", lambda: use(run, lab, "unsafe"))
    assert "completed" == lab.serve().status and 1 == len(lab.world.effects)


@rule  # engine.md H8
def test_what_can_not_happen_twice_is_tried_again_within_the_ask(m: Any) -> None:
    """A transient failure of a keyed call isn't told while its key lives; that of an unsafe one is told at once."""
    for policy, ends, attempts, failures in (
        ("idempotent", ["late"], 2, 0),
        ("transactional", ["late"], 2, 0),
        ("keyed", ["lost"], 2, 0),
        ("unsafe", ["not sent"], 2, 0),
        ("keyed", ["never"], 1, 1),
        ("unsafe", ["lost"], 1, 1),
    ):
        lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, policy)), {(policy, 1): ends}, on_unknown="fail")
        lab.journal.run(lab.agent, "r")
        assert (attempts, failures) == (len(lab.events("tool.started")), len(lab.events("step.failed"))), policy


@rule  # engine.md L3
def test_a_restart_begins_anew(m: Any) -> None:
    """No message of its base is in its context, and no step of it has a kind."""
    seen: list[int] = []

    def agent(run: Any) -> None:
        seen.append(len(run.context["messages"]))
        with run.step("a"):
            run.message("user", "hello")
        raise ValueError("no way")

    lab = bench(m, agent)
    assert "failed" == lab.serve().status
    lab.journal.start("two", "restart", "r")
    lab.agent = lambda run: [seen.append(len(run.context["messages"])), run.do("a", lambda: "done")][1]
    assert {"output": "done"} == lab.serve("two").output
    assert [0, 0] == seen


@rule  # engine.md L4
def test_a_fork_knows_nothing_of_what_came_after(m: Any) -> None:
    """A step that its base began later may be of another kind."""

    def agent(run: Any) -> None:
        run.do("a", list)
        with run.step("b"):
            pass

    lab = bench(m, agent)
    assert "completed" == lab.serve().status
    (first, _) = (event.seq for event in lab.store.log["r"] if event.type == "step.completed")
    lab.journal.start("f", "fork", "r", first)
    lab.agent = lambda run: [run.do("a", list), run.do("b", lambda: "done")][1]
    assert {"output": "done"} == lab.serve("f").output


@rule  # engine.md F4
def test_the_third_round_is_the_last(m: Any) -> None:
    """A transient failure that leaves the agent again and again ends the run."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "idempotent")), {("idempotent", 1): ["late"] * 20})
    assert "failed" == lab.serve().status
    assert (3, 2) == (len(lab.events("step.failed")), len(lab.events("run.retry_scheduled")))


# Same call, live ends, and who is asked about them.


def sent(lab: Lab, policy: str = "unsafe", on_unknown: str = "ask", **how: Any) -> Callable[[Any], Any]:
    """A call of the tool of a policy, with another on_unknown than the lab's own."""
    tool = lab.m.Tool(policy, policy, lab.tool(policy), None, on_unknown, **how)
    return lambda run, x=1: run.call(tool, x=x)


def struck_everywhere(make: Callable[[dict[int, str]], Lab], judge: Callable[[Lab], None]) -> Lab:
    """The run without a strike; and behind the same judge the run with a crash, two, or a stall at each boundary."""
    base = make({})
    base.serve()
    judge(base)
    for first in range(1, base.world.ticks + 1):
        for plan in ({first: "crash"}, {first: "crash", first + 3: "crash"}, {first: "stall"}):
            lab = make(plan)
            lab.serve()
            judge(lab)
    return base


@rule  # engine.md H15
def test_a_failure_that_proves_nothing_is_told_to_nobody(m: Any) -> None:
    """It timed out, with no crash at all: a person is asked, the agent goes on with what he says, nothing is sent."""
    told: list[str] = []

    def agent(run: Any) -> Any:
        with run.step("a"):
            try:
                return call(run)
            except Exception as failure:
                told.append(type(failure).__name__)
                raise

    for policy, ends in (("unsafe", ["lost"]), ("unsafe", ["never"])):
        lab = bench(m, agent, {(policy, 1): ends})
        call = sent(lab)
        assert "waiting" == lab.journal.run(agent, "r").status
        (waits,) = lab.store.state("r").waits
        assert [waits] == list(lab.store.state("r").unresolved())
        lab.journal.resolve("r", waits, "happened", "by hand")
        assert {"output": "by hand"} == lab.serve().output
        assert (1, []) == (len(lab.events("tool.started")), told)


@rule  # engine.md H3
def test_what_a_word_makes_of_a_call_that_failed(m: Any) -> None:
    """`did_not_happen` sends it, and so does `retry`, whatever became of it; `happened` doesn't."""
    for word, starts, effects in (("happened", 1, 1), ("did_not_happen", 2, 2), ("retry", 2, 2)):
        lab = bench(m, lambda run: run.do("a", lambda: call(run)), {("unsafe", 1): ["lost"]})
        call = sent(lab)
        lab.journal.run(lab.agent, "r")
        lab.journal.resolve("r", *lab.store.state("r").waits, word, "by hand")
        assert "completed" == lab.serve().status
        assert (starts, effects) == (len(lab.events("tool.started")), len(lab.world.effects)), word


@rule  # engine.md H5
def test_a_failure_that_the_tool_knows_did_nothing_is_told(m: Any) -> None:
    """`not_sent` names classes, and means them exactly: one derived from such a class proves nothing."""

    class Broken(ValueError): ...

    for raised, asked in ((ValueError, False), (Broken, True), (OSError, True)):

        def send(args: Any, key: str, raised: type[Exception] = raised) -> None:
            raise raised("no")

        tool = m.Tool("unsafe", "unsafe", send, not_sent=(ValueError,))
        lab = bench(m, lambda run, tool=tool: run.do("a", lambda: run.call(tool, x=1)))
        state = lab.journal.run(lab.agent, "r") if asked else lab.serve()
        assert ("waiting" if asked else "failed") == state.status
        assert asked == bool(state.unresolved())


@rule  # engine.md H15
def test_a_keyed_call_is_told_while_its_key_lives(m: Any) -> None:
    """Sent again under its key it can't happen twice; once the key may be forgotten, a person is asked."""
    for ttl, status in ((3600.0, "failed"), (0.0, "waiting")):
        lab = bench(m, lambda run: run.do("a", lambda: call(run)), {("keyed", 1): ["never"]})
        call = sent(lab, "keyed", ttl=ttl)
        assert status == lab.journal.run(lab.agent, "r").status


@rule  # engine.md H15
def test_an_agent_that_is_told_goes_its_second_way_live_and_after_a_crash(m: Any) -> None:
    """`fail` and `tell`: whether it failed or the process died, the agent hears of it, and plan B works."""

    def agent(run: Any) -> Any:
        with run.step("a"):
            try:
                return call(run)
            except m.CallOutcomeUnknown:
                return f"plan B: {use(run, lab, 'keyed', 2)}"

    for on_unknown, ends, where in itertools.product(
        ("fail", "tell"), (["lost"], ["ok"]), ("before tool.completed", "before tool.failed", "never")
    ):
        lab = bench(m, agent, {("unsafe", 1): ends})
        call = sent(lab, on_unknown=on_unknown)
        lab.boot()
        lab.tools["unsafe"] = m.Tool("unsafe", "unsafe", lab.tool("unsafe"), None, on_unknown)
        lab.boot()
        crash_at(lab, where)
        output = lab.serve().output["output"]
        struck = where == ("before tool.completed" if ends == ["ok"] else "before tool.failed")
        assert (ends == ["lost"] or struck) == output.startswith("plan B"), (on_unknown, ends, where)
        assert 1 + output.startswith("plan B") == len(lab.world.effects)


@rule  # engine.md H16
def test_a_call_that_is_told_is_settled(m: Any) -> None:
    """A shell whose commands fail all day: no question, nothing is blocked, and asked again it is sent again."""

    def agent(run: Any) -> Any:
        heard = []
        for turn in "abc":
            with run.step(turn):
                try:
                    heard.append(call(run))
                except m.CallOutcomeUnknown:
                    heard.append("unknown")
        return heard[-1]

    lab = bench(m, agent, {("unsafe", 1): ["lost"]})
    call = sent(lab, on_unknown="tell")
    state = lab.serve()
    assert ("completed", {}) == (state.status, state.unresolved())
    assert 3 == len({event.data["call_id"] for event in lab.events("tool.started")})


@rule  # engine.md H16
def test_a_call_that_was_settled_is_told_of_again_when_it_is_lost_again(m: Any) -> None:
    """In one step it is the same call: each attempt that proves nothing is told once, and only an ask sends another."""

    def body(run: Any) -> list[str]:
        heard = []
        for _ in range(3):
            try:
                heard.append(call(run))
            except m.CallOutcomeUnknown:
                heard.append("unknown")
        return heard

    lab = bench(m, lambda run: run.do("a", lambda: body(run)), {("unsafe", 1): ["lost"] * 9})
    call = sent(lab, on_unknown="tell")
    lab.nature = lambda tool, x, n: "ok" if len(lab.events("tool.started")) == 3 else "lost"  # type: ignore[method-assign]
    lab.result = lambda policy, args, key: "sent"  # type: ignore[method-assign]
    assert {"output": ["unknown", "unknown", "sent"]} == lab.serve().output
    assert [1, 2, 3] == [event.data["attempt"] for event in lab.events("tool.started")]


@rule  # engine.md C10
def test_the_documented_loop_sends_nothing_twice(m: Any) -> None:
    """A turn tells the model what failed, the model asks again in the next turn: it is the same call."""

    def make(policy: str, on_unknown: str, ends: list[str], plan: dict[int, str]) -> Lab:
        def agent(run: Any) -> Any:
            while (i := run.memory.get("i", 0)) < 3:
                with run.step("turn", repeat=True):
                    try:
                        out = call(run)
                    except (m.CallFailed, m.CallOutcomeUnknown) as failure:
                        out = type(failure).__name__
                    run.message("tool", out)
                    run.memory["i"] = 3 if out.startswith(policy) else i + 1
            return [message["content"] for message in run.context["messages"]]

        lab = bench(m, agent, {(policy, 1): ends}, plan)
        lab.tools[policy] = m.Tool(policy, policy, lab.tool(policy), None, on_unknown)
        lab.boot()
        call = sent(lab, policy, on_unknown)
        return lab

    def once(lab: Lab) -> None:
        assert len(set(lab.world.effects)) == len(lab.world.effects) <= 1
        assert 1 == len({event.data["call_id"] for event in lab.events("tool.started")})

    for on_unknown, output in (("ask", 1), ("fail", 3)):
        base = struck_everywhere(lambda plan, on=on_unknown: make("unsafe", on, ["lost"], plan), once)  # type: ignore[misc]
        assert output == len(base.store.state("r").output["output"])
        assert 2 * (on_unknown == "fail") == len(base.events("tool.adopted"))
    base = struck_everywhere(lambda plan: make("keyed", "ask", ["late", "late", "late", "lost"], plan), once)
    assert 1 == len(base.events("tool.adopted"))


@rule  # engine.md C10
def test_which_call_is_taken_over(m: Any) -> None:
    """First those that this step has taken over, then its own, then the oldest unknown one; all of equal args."""

    def unknown(run: Any, x: int = 1) -> Any:
        try:
            return call(run, x)
        except m.CallOutcomeUnknown:
            return "unknown"

    def agent(run: Any) -> Any:
        heard = []
        heard += run.do("a", lambda: [unknown(run)])
        heard += run.do("b", lambda: [unknown(run, 2)])
        heard += run.do("c", lambda: [unknown(run), unknown(run), unknown(run, 2), unknown(run, 3)])
        return heard + run.do("d", lambda: [unknown(run, 3)])

    def make(plan: dict[int, str]) -> Lab:
        lab = bench(m, agent, {("unsafe", 1): ["lost"], ("unsafe", 2): ["never"]}, plan)
        lab.tools["unsafe"] = m.Tool("unsafe", "unsafe", lab.tool("unsafe"), None, "fail")
        lab.boot()
        nonlocal call
        call = sent(lab, on_unknown="fail")
        return lab

    call: Any = None
    base = make({})
    base.serve()
    first, second = (event.data["call_id"] for event in base.events("tool.started")[:2])
    assert [first, second] == [event.data["call_id"] for event in base.events("tool.adopted")]
    assert ["unknown"] * 5 == base.store.state("r").output["output"][:5]
    for tick in range(1, base.world.ticks + 1):
        lab = make({tick: "crash"})
        lab.serve()
        assert len(set(lab.world.effects)) == len(lab.world.effects)
        lab.judge()


@rule  # engine.md C10
def test_the_oldest_of_equal_calls_is_taken_over_first(m: Any) -> None:
    """Two that nobody knows of: whoever asks for one gets the oldest that is left, before a crash and after it."""

    def agent(run: Any) -> Any:
        run.do("a", lambda: [type(x).__name__ for x in run.parallel((tool, {"x": 1}), (tool, {"x": 1}))])
        return run.do("b", lambda: [run.call(tool, x=1), run.call(tool, x=1)])

    def make(plan: dict[int, str]) -> Lab:
        nonlocal tool
        lab = bench(m, agent, {("keyed", 1): ["never"]}, plan)
        lab.result = lambda policy, args, key: key  # type: ignore[method-assign]
        tool = lab.tools["keyed"] = m.Tool("keyed", "keyed", lab.tool("keyed"))
        lab.boot()
        return lab

    def in_order(lab: Lab) -> None:
        first, second = dict.fromkeys(event.data["call_id"] for event in lab.events("tool.started"))
        assert [first, second] == [event.data["call_id"] for event in lab.events("tool.adopted")]
        assert [first, second] == lab.store.state("r").output["output"]

    tool: Any = None
    struck_everywhere(make, in_order)


@rule  # engine.md C10
def test_what_was_not_heard_is_told_once(m: Any) -> None:
    """An equal call behind that is another, in whichever step it was told; whatever the agent had heard before."""
    for policy, asks_again in (("unsafe", True), ("unsafe", False), ("keyed", False)):
        ends = ["never", "ok"]

        def heard(run: Any) -> str:
            try:
                return call(run)
            except (m.CallFailed, m.CallOutcomeUnknown):
                return "failed"

        def first(run: Any, asks_again: bool = asks_again) -> Any:
            heard(run)
            use(run, lab, "idempotent", 2)
            return heard(run) if asks_again else "not asked"

        def agent(run: Any) -> Any:
            told = [run.do("a", lambda: first(run))]
            run.ask("go on?", args={"x": 3})
            return told + [run.do(name, lambda: heard(run)) for name in "bc"]

        lab = bench(m, agent)
        call = sent(lab, policy, on_unknown="fail")
        lab.result = lambda policy, args, key: "sent"  # type: ignore[method-assign]
        lab.nature = lambda tool, x, n, ends=ends: "ok" if tool == "idempotent" else (ends or ["ok"]).pop(0)  # type: ignore[method-assign, misc]
        if asks_again:
            crash_at(lab, "before effect", 2)
            with suppress(m.Crash):
                lab.journal.run(agent, "r")
            lab.died("r", "before effect")
        else:
            assert "waiting" == lab.journal.run(agent, "r").status
        (id,) = lab.store.state("r").unresolved()
        lab.journal.resolve("r", id, "happened", "by hand")
        output = lab.serve().output["output"]
        assert (["by hand", "sent", "sent"] if asks_again else ["not asked", "by hand", "sent"]) == output


def or_unknown(m: Any, call: Any, run: Any) -> str:
    """Return what a call comes to, or that the agent was told that nobody knows."""
    try:
        return str(call(run))
    except m.CallOutcomeUnknown:
        return "unknown"


def crashed_and_spoken_of(m: Any, lab: Any, where: str, nth: int) -> None:
    """Let a process die at a place, and a person say of each call of which nobody knows that it has happened."""
    crash_at(lab, where, nth)
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.died("r", where)
    for id in lab.store.state("r").unresolved():
        lab.journal.resolve("r", id, "happened", "by hand")


@rule  # engine.md H1
def test_what_was_told_stays_told_when_its_result_is_told_later(m: Any) -> None:
    """Told that nobody knows, then what a person says: so it is told again in each later entry of the step."""
    heard: list[list[str]] = []

    def body(run: Any) -> Any:
        heard.append([])
        heard[-1].append(or_unknown(m, call, run))
        use(run, lab, "idempotent", 2)
        heard[-1].append(or_unknown(m, call, run))
        return heard[-1]

    lab = bench(m, lambda run: run.do("a", lambda: body(run)), {("unsafe", 1): ["lost"]})
    call = sent(lab, on_unknown="fail")
    for where, nth in (("before effect", 2), ("before step.completed", 1)):
        crashed_and_spoken_of(m, lab, where, nth)
    assert {"output": ["unknown", "by hand"]} == lab.serve().output
    assert [["unknown"], *[["unknown", "by hand"]] * 2] == heard


@rule  # engine.md C10
def test_equal_calls_of_a_step_keep_their_order(m: Any) -> None:
    """What a step hears late of a call of its own doesn't put that before an elder equal one, after any crash."""
    heard: list[list[str]] = []

    def body(run: Any) -> Any:
        heard.append([])
        heard[-1].append(or_unknown(m, call, run))
        heard[-1].append(or_unknown(m, call, run))
        use(run, lab, "idempotent", 2)
        heard[-1].append(or_unknown(m, call, run))
        return heard[-1]

    ends = ["ok", "lost"]
    lab = bench(m, lambda run: run.do("a", lambda: body(run)))
    call = sent(lab, on_unknown="fail")
    lab.result = lambda policy, args, key: "sent"  # type: ignore[method-assign]
    lab.nature = lambda tool, x, n: "ok" if tool == "idempotent" else ends.pop(0)  # type: ignore[method-assign]
    for where, nth in (("before effect", 3), ("before step.completed", 1)):
        crashed_and_spoken_of(m, lab, where, nth)
    assert {"output": ["sent", "unknown", "by hand"]} == lab.serve().output
    assert [["sent", "unknown"], *[["sent", "unknown", "by hand"]] * 2] == heard


@rule  # engine.md C10
def test_a_call_of_its_own_stays_before_one_that_was_taken_over_later(m: Any) -> None:
    """Of equal calls a step asks first for the one that became its call first, before a crash and after it."""

    def heard(run: Any) -> str:
        try:
            return call(run)
        except (m.CallFailed, m.CallOutcomeUnknown, m.DidNotHappen) as failure:
            return type(failure).__name__

    def body(run: Any) -> Any:
        answers.append(heard(run))
        if len(answers) == 1:
            raise ValueError("not yet")
        return [answers[-1], heard(run), use(run, lab, "idempotent", 2) and "looked"]

    def agent(run: Any) -> Any:
        with suppress(m.StepFailed):
            run.do("a", lambda: body(run))
        run.do("b", lambda: heard(run))
        return run.do("a", lambda: body(run))

    answers: list[str] = []
    ends = ["did not happen", "lost", "ok"]
    lab = bench(m, agent)
    lab.nature = lambda tool, x, n: "ok" if tool == "idempotent" else ends.pop(0)  # type: ignore[method-assign]
    call = sent(lab, on_unknown="fail")
    lab.result = lambda policy, args, key: "sent"  # type: ignore[method-assign]
    crash_at(lab, "before step.completed", 2)
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.died("r", "before step.completed")
    assert {"output": ["sent", "CallOutcomeUnknown", "looked"]} == lab.serve().output


@rule  # engine.md C10
def test_what_was_taken_over_keeps_its_place_when_it_is_heard_late(m: Any) -> None:
    """The step that has taken a call over asks for it before a younger equal one, whatever it has heard meanwhile."""
    heard: list[list[str]] = []

    def told(outcome: Any) -> str:
        return "unknown" if isinstance(outcome, m.CallOutcomeUnknown) else str(outcome)

    def body(run: Any) -> Any:
        heard.append([told(outcome) for outcome in run.parallel((tool, {"x": 1}), (tool, {"x": 1}))])
        use(run, lab, "idempotent", 2)
        heard[-1] += [told(outcome) for outcome in run.parallel((tool, {"x": 1}))]
        return heard[-1]

    def agent(run: Any) -> Any:
        run.do("a", lambda: len(run.parallel((tool, {"x": 1}))))
        return run.do("b", lambda: body(run))

    ends = ["lost", "ok"]
    lab = bench(m, agent)
    tool = m.Tool("unsafe", "unsafe", lab.tool("unsafe"), None, "fail")
    lab.result = lambda policy, args, key: "sent"  # type: ignore[method-assign]
    lab.nature = lambda tool, x, n: "ok" if tool == "idempotent" else ends.pop(0)  # type: ignore[method-assign]
    for where, nth in (("before effect", 3), ("before step.completed", 1)):
        crash_at(lab, where, nth)
        with suppress(m.Crash):
            lab.journal.run(lab.agent, "r")
        lab.died("r", where)
        for id in lab.store.state("r").unresolved():
            lab.journal.resolve("r", id, "happened", "by hand")
    assert {"output": ["unknown", "sent", "by hand"]} == lab.serve().output
    assert [["unknown", "sent"], *[["unknown", "sent", "by hand"]] * 2] == heard


@rule  # engine.md C10, D3
def test_a_call_that_was_taken_over_is_not_left_out(m: Any) -> None:
    """It is one of the step that took it over: code that doesn't ask for it again is stopped before it sends."""
    version = [1]

    def unknown(run: Any) -> str:
        with pytest.raises(m.CallOutcomeUnknown):
            call(run)
        return "unknown"

    def second(run: Any) -> Any:
        return unknown(run) if version == [1] else use(run, lab, "keyed", 2)

    lab = bench(m, lambda run: [run.do("a", lambda: unknown(run)), run.do("b", lambda: second(run))][1])
    lab.program.nature[("unsafe", 1)] = ["lost"]
    call = sent(lab, on_unknown="fail")
    crash_at(lab, "before step.completed", 2)
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.died("r", "before step.completed")
    version[0] = 2
    with pytest.raises(m.StepDiverged):
        lab.journal.run(lab.agent, "r")
    assert 1 == len(lab.world.effects)
    version[0] = 1
    assert {"output": "unknown"} == lab.serve().output


@rule  # engine.md C10
def test_a_call_of_its_own_on_record_comes_before_one_of_another_step(m: Any) -> None:
    """A step that failed behind its call is told its result again, though nobody knows of an equal call elsewhere."""
    ends, fails = ["ok", "lost"], [True]

    def first(run: Any) -> Any:
        done = call(run)
        if fails:
            fails.clear()
            raise ValueError
        return done

    def second(run: Any) -> str:
        with pytest.raises(m.CallOutcomeUnknown):
            call(run)
        return "unknown"

    def agent(run: Any) -> Any:
        with suppress(m.StepFailed):
            run.do("own", lambda: first(run))
        return [run.do("other", lambda: second(run)), run.do("own", lambda: first(run))]

    lab = bench(m, agent)
    call = sent(lab, on_unknown="fail")
    lab.result = lambda policy, args, key: "sent"  # type: ignore[method-assign]
    lab.nature = lambda tool, x, n: ends.pop(0)  # type: ignore[method-assign]
    assert {"output": ["unknown", "sent"]} == lab.serve().output
    assert ([], 2) == (lab.events("tool.adopted"), len(lab.events("tool.started")))


@rule  # engine.md C10
def test_a_call_that_was_taken_over_stays_so(m: Any) -> None:
    """A word that comes while the run lies still is for the step that took it over: its result goes there."""
    for word, output in (("happened", "by hand"), ("did_not_happen", "sent")):
        lab = bench(m, lambda run: [run.do("a", lambda: heard(run)), run.do("b", lambda: call(run))])
        lab.result = lambda policy, args, key: "sent"  # type: ignore[method-assign]
        lab.program.nature[("unsafe", 1)] = ["never"]
        fails, call = sent(lab, on_unknown="fail"), sent(lab)

        def heard(run: Any, fails: Any = fails) -> str:
            with pytest.raises(m.CallOutcomeUnknown):
                fails(run)
            return "unknown"

        assert "waiting" == lab.journal.run(lab.agent, "r").status
        (waits,) = lab.store.state("r").waits
        assert [waits] == [event.data["call_id"] for event in lab.events("tool.adopted")]
        lab.journal.resolve("r", waits, word, "by hand")
        assert {"output": ["unknown", output]} == lab.serve().output
        assert {waits} == {event.data["call_id"] for event in lab.events("tool.started")}


@rule  # engine.md C10
def test_what_happened_and_was_not_heard_is_told_to_the_next_ask(m: Any) -> None:
    """The agent was told that nobody knows; a person says that it happened; asked for again it isn't sent again, but
    asked for once more it is meant twice. In the next step, in the same one after a crash, and in a restart."""

    def heard(run: Any) -> str:
        try:
            return call(run)
        except m.CallOutcomeUnknown:
            return "unknown"

    def say(run_id: str = "r") -> None:
        (id,) = lab.store.state(run_id).unresolved()
        lab.journal.resolve(run_id, id, "happened", "by hand")

    def steps(run: Any) -> Any:
        first = run.do("a", lambda: heard(run))
        run.ask("go on?", args={"x": 3})
        return [first, run.do("b", lambda: [heard(run), heard(run)])]

    def one(run: Any) -> Any:
        return run.do("a", lambda: [heard(run), use(run, lab, "idempotent", 2), heard(run), heard(run)])

    def restarted(run: Any) -> Any:
        return run.do("another", lambda: heard(run))

    for where in ("never", "before tool.adopted", "after tool.adopted", "before step.completed"):
        lab = bench(m, steps, {("unsafe", 1): ["lost"]})
        call = sent(lab, on_unknown="fail")
        assert "waiting" == lab.journal.run(steps, "r").status
        say()
        crash_at(lab, where)
        assert ["by hand", "unknown"] == lab.serve().output["output"][
            1
        ]  # the second one is another, and gets lost, too
        assert 2 == len(set(lab.world.effects)) == len(lab.world.effects)
        lab.judge()
    lab = bench(m, one, {("unsafe", 1): ["lost"]})
    call = sent(lab, on_unknown="fail")
    crash_at(lab, "before effect", 2)
    with suppress(m.Crash):
        lab.journal.run(one, "r")
    lab.died("r", "before effect")
    say()
    output = lab.serve().output["output"]
    assert ("unknown", "by hand", 2) == (output[0], output[2], len(lab.world.effects))
    lab = bench(m, lambda run: run.do("a", lambda: call(run)), {("unsafe", 1): ["lost"]})
    call = sent(lab, on_unknown="fail")
    assert "failed" == lab.serve().status
    say()
    lab.journal.start("two", "restart", "r")
    lab.agent = restarted
    assert ({"output": "by hand"}, 1) == (lab.serve("two").output, len(lab.world.effects))


@rule  # engine.md C10
def test_equal_calls_in_flight_are_two(m: Any) -> None:
    """What is asked for twice at once is meant twice; of two that nobody knows of each is taken over once."""

    def agent(run: Any) -> Any:
        return [run.do(name, lambda: [type(x).__name__ for x in run.parallel((tool, {"x": 1}), (tool, {"x": 1}))])
                for name in "ab"]  # fmt: skip

    lab = bench(m, agent, {("unsafe", 1): ["lost"]})
    tool = m.Tool("unsafe", "unsafe", lab.tool("unsafe"), None, "fail")
    assert {"output": [["CallOutcomeUnknown"] * 2] * 2} == lab.serve().output
    assert (2, 2) == (len(lab.events("tool.started")), len({x.data["call_id"] for x in lab.events("tool.adopted")}))


@rule  # engine.md H14
def test_calls_made_together_are_begun_one_by_one(m: Any) -> None:
    """Killed in the first of three: one may have happened, and a person is asked about one."""
    lab = bench(m, lambda run: run.do("a", lambda: run.parallel(*((tool, {"x": x}) for x in (1, 2, 3)))))
    tool = m.Tool("unsafe", "unsafe", lab.tool("unsafe"))
    crash_at(lab, "after effect")
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.died("r", "after effect")
    assert 1 == len(lab.journal.run(lab.agent, "r").waits)
    assert "completed" == lab.serve().status and 3 == len(lab.world.effects)


@rule  # engine.md D7
def test_a_changed_question_is_not_paid_for(m: Any) -> None:
    """A deploy changed the prompt of a step that has sent something: it stops before the new question is paid for."""
    version = [1]

    def agent(run: Any) -> Any:
        def body() -> Any:
            answer = run.model("m", {"q": f"prompt {version[0]}"}, lab.model)
            return [answer, use(run, lab, "unsafe")]

        return run.do("a", body)

    lab = bench(m, agent)
    crash_at(lab, "before step.completed")
    with suppress(m.Crash):
        lab.journal.run(agent, "r")
    lab.died("r", "before step.completed")
    version[0] = 2
    for _ in range(5):
        with pytest.raises(m.StepDiverged):
            lab.journal.run(agent, "r")
    assert ["prompt 1"] == lab.world.paid
    version[0] = 1
    assert "completed" == lab.serve().status and 1 == len(lab.world.effects)


# Runs that happen elsewhere, and what becomes of runs in the end.


def said(role: str, content: str, id: str | None = None) -> tuple[str, Any]:
    return "message.appended", {"role": role, "content": content, "message_id": id}


def begun(id: str = "c", attempt: int = 1) -> tuple[str, Any]:
    return "tool.started", {"call_id": id, "tool": "look", "policy": "unsafe", "args": {}, "attempt": attempt}


def ended(id: str = "c", attempt: int = 1) -> tuple[str, Any]:
    return "tool.completed", {"call_id": id, "attempt": attempt, "result": 1}


NOTE = ("note.added", {"text": "n"})
ANYBODY = [NOTE, ("cost.recorded", {"amount": "1"}), ("x.lab.said", {"text": "own"})]


def all_refused(lab: Lab, *acts: Callable[[], Any]) -> None:
    """None of it is done, and nothing is written."""
    before = {id: list(log) for id, log in lab.store.log.items()}
    for act in acts:
        with pytest.raises((lab.m.Refused, lab.m.RunBusy)):
            act()
    assert before == dict(lab.store.log)


def nobody_speaks(lab: Lab, run_id: str) -> None:
    """Nothing is said of a run by anybody, and nobody but a fork goes on with it."""
    journal = lab.journal
    all_refused(
        lab,
        lambda: journal.start("n", "retry", run_id),
        lambda: journal.start("n", "restart", run_id),
        lambda: journal.cancel(run_id),
        lambda: journal.signal(run_id, 1),
        lambda: journal.resume(run_id),
        lambda: journal.abandon(run_id),
        lambda: journal.tell(run_id, ("memory.set", {"key": "k", "value": 1})),
    )


@rule  # engine.md A14
def test_anybody_records_into_an_open_run(m: Any) -> None:
    """Whole messages, calls, costs, notes, summaries, own types; an attempt ends once, a later one starts."""
    lab = bench(m, lambda run: None)
    journal = lab.journal
    journal.open_run("o")
    all_refused(lab, lambda: journal.open_run("o"), lambda: journal.start("o"))
    journal.tell("o", said("user", "hi", "1"), said("assistant", "ho", "1"), *ANYBODY)
    all_refused(lab, lambda: journal.tell("o", said("user", "again", "1")), lambda: journal.tell("o", ended()))
    journal.tell("o", begun(), ("context.compacted", {"summary": "s"}))
    all_refused(lab, lambda: journal.tell("o", begun()), lambda: journal.tell("o", ended(attempt=2)))
    for draft in (begun(attempt=2), ended(attempt=2), begun("d")):
        journal.tell("o", draft)
    all_refused(lab, lambda: journal.tell("o", ended(attempt=2)))
    state = lab.store.state("o")
    assert ("open", {}, ["d"]) == (state.status, state.unresolved(), list(state.calls))
    assert ["hi", "ho"] == [message["content"] for message in state.context["messages"]]
    assert ({}, {}) == (dict(lab.store.newest), dict(lab.store.effects))


@rule  # engine.md A14
def test_nobody_goes_on_with_an_open_run(m: Any) -> None:
    """It isn't run, retried, restarted, resumed, given up, cancelled or signalled."""
    lab = bench(m, lambda run: None)
    lab.journal.open_run("o")
    nobody_speaks(lab, "o")
    all_refused(lab, lambda: lab.journal.run(lab.agent, "o"))


@rule  # engine.md A14, L6
def test_a_fork_of_an_open_run_has_its_messages_and_none_of_its_calls(m: Any) -> None:
    """As of now, or of an event; what the fork does is its own, and it may be gone on from as any run."""

    def agent(run: Any) -> Any:
        return run.do("a", lambda: [use(run, lab, "unsafe"), *(each["content"] for each in run.context["messages"])])

    lab = bench(m, agent)
    lab.journal.open_run("o")
    lab.journal.tell("o", said("user", "hi"), begun(), said("user", "ho"))
    for run_id, at, told in (("f", None, ["hi", "ho"]), ("early", 2, ["hi"])):
        lab.journal.start(run_id, "fork", "o", at)
        state = lab.store.state(run_id)
        assert ({}, told) == (state.calls, [each["content"] for each in state.context["messages"]])
        assert told == lab.serve(run_id).output["output"][1:]
        lab.judge(run_id)
    lab.journal.start("again", "retry", "f")
    assert "completed" == lab.serve("again").status and 2 == len(lab.world.effects)


@rule  # engine.md A15, L6
def test_a_run_that_was_imported_is_its_importers_alone(m: Any) -> None:
    """Nobody else says a thing to it, or runs it, whatever its status; its tail comes from there; a fork goes on."""
    there = bench(m, lambda run: run.do("a", lambda: [run.ask("ok?", args={"x": 3}), use(run, there, "keyed")]))
    there.journal.start("r")
    lab = bench(m, there.agent)
    for status in ("queued", "waiting", "completed"):
        assert status == there.store.state("r").status
        lab.journal.bring(there.store, "r")
        assert there.store.log["r"] == lab.store.log["r"]
        nobody_speaks(lab, "r")
        all_refused(lab, *(lambda draft=draft: lab.journal.tell("r", draft) for draft in ANYBODY))
        if status != "completed":
            all_refused(lab, lambda: lab.journal.run(lab.agent, "r"))
        else:
            assert status == lab.journal.run(lab.agent, "r").status
        there.people("r")
        there.journal.run(there.agent, "r")
    assert ({}, {}) == (dict(lab.store.newest), dict(lab.store.effects))
    lab.journal.bring(there.store, "r")
    lab.journal.start("f", "fork", "r")
    assert (lab.store.state("r").done, []) == (lab.store.state("f").done, lab.world.effects)
    there.journal.start("mine")
    lab.journal.start("mine")
    all_refused(lab, lambda: lab.journal.bring(there.store, "mine"))


@rule  # engine.md A15, A17
def test_an_imported_run_that_has_not_ended_is_erased_and_purged(m: Any) -> None:
    """It never ends here, and nobody goes on with it here."""
    there = bench(m, lambda run: run.do("a", lambda: run.ask("ok?", args={"x": 3})), private=True)
    there.journal.run(there.agent, "r")
    lab = bench(m, there.agent)
    lab.journal.bring(there.store, "r")
    lab.journal.erase("r")
    assert "waiting" == lab.store.state("r").status
    lab.journal.bring(there.store, "r")
    lab.journal.purge("r")
    there.people("r")
    there.journal.run(there.agent, "r")
    lab.journal.bring(there.store, "r")
    assert "purged" == lab.store.state("r").status


def in_private(m: Any, **how: Any) -> Lab:
    """A run of a private journal that has completed, and what it was told."""
    lab = bench(
        m, lambda run: run.do("a", lambda: [run.message("user", "hi"), use(run, lab, "keyed")][1]), private=True, **how
    )
    assert "completed" == lab.journal.run(lab.agent, "r").status
    return lab


@rule  # engine.md A20
def test_nothing_private_is_left_of_an_erased_run(m: Any) -> None:
    """Its messages, arguments and results are gone; that it happened, its calls and its end stay; once is enough."""
    lab = in_private(m)
    before, types = lab.store.log["r"], events_of(lab)
    (call_id,) = lab.world.effects
    lab.journal.erase("r")
    log = lab.store.log["r"]
    assert [*types, "run.erased"] == events_of(lab)
    assert ["(erased)"] == [event.data["content"] for event in log if event.type == "message.appended"]
    assert [call_id] == [event.data["call_id"] for event in log if event.type == "tool.completed"]
    assert "hi" not in str([event.data for event in log]) and "hi" in str([event.data for event in before])
    state = lab.store.state("r")
    assert ("completed", "(erased)", ["(erased)"]) == (
        state.status, state.done["a"], [each["content"] for each in state.context["messages"]],
    )  # fmt: skip
    lab.journal.erase("r")
    assert [*types, "run.erased"] == events_of(lab)
    lab.judge()


@rule  # engine.md A20
def test_nothing_goes_on_from_an_erased_run(m: Any) -> None:
    """No retry, restart or fork, nor of what had gone on from it before; and nothing private is said of it."""
    lab = in_private(m)
    lab.journal.start("f", "fork", "r")
    lab.serve("f")
    lab.journal.erase("r")
    all_refused(
        lab,
        lambda: lab.journal.start("n", "retry", "r"),
        lambda: lab.journal.start("n", "restart", "r"),
        lambda: lab.journal.start("n", "fork", "r"),
        lambda: lab.journal.start("n", "fork", "r", 3),
        lambda: lab.journal.start("n", "retry", "f"),
        lambda: lab.journal.start("n", "fork", "f"),
        lambda: lab.journal.tell("r", NOTE),
    )
    lab.journal.tell("r", ("cost.recorded", {"amount": "1"}))
    lab.journal.tell("f", NOTE)


@rule  # engine.md A20
def test_what_an_erasure_waits_for(m: Any) -> None:
    """For the end of the run and of what goes on from it; only a private run is erased."""
    lab = bench(m, lambda run: run.do("a", lambda: run.ask("ok?", args={"x": 3})), private=True)
    lab.journal.run(lab.agent, "r")
    all_refused(lab, lambda: lab.journal.erase("r"), lambda: lab.journal.erase("nobody"))
    lab.people("r")
    lab.serve()
    lab.journal.start("f", "fork", "r")
    all_refused(lab, lambda: lab.journal.erase("r"), lambda: lab.journal.erase("r", line=True))
    lab.journal.cancel("f")
    lab.journal.run(lab.agent, "f")
    lab.journal.erase("r", line=True)
    assert ["run.erased"] * 2 == [lab.store.log[id][-1].type for id in ("r", "f")]
    other = bench(m, lambda run: None)
    other.journal.run(other.agent, "r")
    all_refused(other, lambda: other.journal.erase("r"))


@rule  # engine.md A20
def test_a_line_is_erased_with_all_that_goes_on_from_it(m: Any) -> None:
    """A run alone is erased without its retry and its fork, which keep what they were told; they are private, too."""
    for line, left in ((False, 2), (True, 0)):
        lab = in_private(m)
        lab.boot()
        lab.journal.start("again", "retry", "r")
        lab.serve("again")
        lab.journal.start("f", "fork", "again")
        lab.serve("f")
        lab.journal.erase("r", line=line)
        told = [lab.store.log[id][-1].type for id in ("r", "again", "f")]
        assert left == 3 - told.count("run.erased")
        lab.journal.erase("f")
        assert "run.erased" == lab.store.log["f"][-1].type


@rule  # engine.md A17
def test_nothing_is_left_of_a_purged_run_but_that_it_was(m: Any) -> None:
    """Types and numbers stay, the marker is the last event for ever, and the next event stands behind it."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "unsafe")))
    lab.journal.run(lab.agent, "r")
    types, position = events_of(lab), len(lab.store.order)
    lab.ends_for_good(lambda: lab.journal.purge("r"))
    assert ([*types, "run.purged"], position + 1) == (events_of(lab), len(lab.store.order))
    assert not any(event.data for event in lab.store.log["r"][:-1])
    assert ("purged", "r") == (lab.store.state("r").status, lab.store.newest["r"])
    lab.journal.purge("r")
    assert [*types, "run.purged"] == events_of(lab)
    lab.journal.start("s")
    assert "completed" == lab.serve("s").status and 2 == len(lab.world.effects)
    lab.judge("s")


@rule  # engine.md A17
def test_nothing_goes_on_from_a_purged_run(m: Any) -> None:
    """It isn't run, gone on from, erased or spoken to, and neither its id nor its scope is used again."""
    lab = in_private(m)
    lab.journal.purge("r")
    nobody_speaks(lab, "r")
    all_refused(
        lab,
        lambda: lab.journal.run(lab.agent, "r"),
        lambda: lab.journal.start("r"),
        lambda: lab.journal.open_run("r"),
        lambda: lab.journal.start("n", "fork", "r"),
        lambda: lab.journal.start("n", "fork", "r", 2),
        lambda: lab.journal.erase("r"),
        *(lambda draft=draft: lab.journal.tell("r", draft) for draft in ANYBODY),
    )


@rule  # engine.md A17
def test_what_a_purge_waits_for(m: Any) -> None:
    """For the end of the whole line, and until nothing goes on from any of it; it takes the line with it."""
    lab = bench(m, lambda run: run.do("a", lambda: run.ask("ok?", args={"x": 3})))
    lab.journal.run(lab.agent, "r")
    all_refused(lab, lambda: lab.journal.purge("r"), lambda: lab.journal.purge("nobody"))
    lab.people("r")
    lab.serve()
    lab.journal.start("again", "retry", "r")
    all_refused(lab, lambda: lab.journal.purge("r"), lambda: lab.journal.purge("again"))
    lab.serve("again")
    lab.journal.start("f", "fork", "r")
    lab.journal.cancel("f")
    lab.journal.run(lab.agent, "f")
    all_refused(lab, lambda: lab.journal.purge("r"))
    lab.journal.purge("f")
    lab.journal.purge("r")
    assert ["run.purged"] * 3 == [lab.store.log[id][-1].type for id in ("r", "again", "f")]
    lab.journal.open_run("o")
    lab.journal.purge("o")
    assert "purged" == lab.store.state("o").status


@rule  # engine.md A17, A20
def test_what_may_have_happened_is_not_forgotten_before_a_word(m: Any) -> None:
    """Neither purged nor erased, in the whole line; the word may be that nobody knows."""
    for act in ("purge", "erase"):
        lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "unsafe")), private=True, on_unknown="fail")
        crash_at(lab, "after effect")
        with suppress(m.Crash):
            lab.journal.run(lab.agent, "r")
        lab.disown("r")
        assert "failed" == lab.journal.run(lab.agent, "r").status
        lab.journal.start("again", "restart", "r")
        lab.journal.cancel("again")
        lab.journal.run(lab.agent, "again")
        (call_id,) = lab.store.state("again").unresolved()
        all_refused(lab, lambda: getattr(lab.journal, act)("r"), lambda: getattr(lab.journal, act)("again"))
        lab.journal.resolve("again", call_id, "unknown")
        getattr(lab.journal, act)("r")
        assert f"run.{act.removesuffix('e')}ed" == lab.store.log["r"][-1].type


@rule  # engine.md A17
def test_an_import_brings_nothing_back_that_was_purged(m: Any) -> None:
    """Nor what goes on from it; and no tail of what was erased."""
    there = in_private(m)
    lab = bench(m, there.agent)
    lab.journal.bring(there.store, "r")
    lab.journal.purge("r")
    there.journal.start("again", "retry", "r")
    lab.journal.bring(there.store, "r", "again")
    assert ("purged", ["r"]) == (lab.store.state("r").status, list(lab.store.log))
    other = bench(m, there.agent)
    other.journal.bring(there.store, "r")
    other.journal.erase("r")
    there.journal.tell("r", NOTE)
    other.journal.bring(there.store, "r")
    assert "run.erased" == other.store.log["r"][-1].type


# Times (engine.md F20 to F24, W20 to W25).


def busy(m: Any, lab: list[Lab], times: int, after: float = 600.0) -> Any:
    """A model that is out so many times, and asks to be left alone for so long."""

    def ask(request: Any) -> Any:
        lab[0].world.act("model", "asked", None)
        if len(lab[0].world.paid) <= times:
            error = m.Transient("busy")
            error.retry_after = after
            raise error
        return f"answer to {request['q']}"

    return ask


@rule  # engine.md F21
def test_a_call_waits_for_its_time_with_its_step_open(m: Any) -> None:
    """Nobody asks before that; the step isn't begun anew, and what it was answered before is told again."""
    labs: list[Lab] = []
    ask = busy(m, labs, 1)

    def agent(run: Any) -> Any:
        with run.step("a"):
            use(run, lab, "unsafe")
            return run.model("m", {"q": 1}, ask)

    lab = bench(m, agent)
    labs.append(lab)
    for _ in range(3):
        assert "waiting" == lab.journal.run(lab.agent, "r").status
    assert 1 == len(lab.world.paid)
    assert ["run.waiting"] == events_of(lab, "run.waiting")
    lab.world.now += 601
    assert "completed" == lab.journal.run(lab.agent, "r").status
    assert ["step.started", "step.started", "step.completed"] == events_of(lab, "step.")
    assert ["model.started", "model.failed", "model.started", "model.completed"] == events_of(lab, "model.")
    assert 1 == len(lab.world.effects)


@rule  # engine.md F22
def test_a_process_that_dies_in_a_pause_is_followed_by_one_that_keeps_it(m: Any) -> None:
    """The time stands in the log; a short pause is slept by whoever goes on."""
    for after in (600.0, 3.0):
        labs: list[Lab] = []
        ask = busy(m, labs, 1, after)
        lab = bench(m, lambda run, ask=ask: run.do("a", lambda: run.model("m", {"q": 1}, ask)))
        labs.append(lab)
        crash_at(lab, "after model.failed")
        with suppress(m.Crash):
            lab.journal.run(lab.agent, "r")
        lab.disown("r")
        began = lab.world.now
        lab.boot()
        state = lab.journal.run(lab.agent, "r")
        assert ("waiting" if after == 600.0 else "completed") == state.status
        lab.world.now += 601
        assert "completed" == lab.journal.run(lab.agent, "r").status
        assert lab.world.now - began >= after
        assert 2 == len(lab.world.paid)


@rule  # engine.md F21
def test_others_are_made_before_a_run_waits_for_a_time(m: Any) -> None:
    """Calls that are asked for together: one that is to wait keeps none of the others."""
    lab = bench(
        m,
        lambda run: run.do("a", lambda: run.parallel(*(request(run, lab, tool) for tool in ("idempotent", "keyed")))),
        {("idempotent", 1): ["busy"]},
    )
    assert "waiting" == lab.journal.run(lab.agent, "r").status
    assert ["tool.started", "tool.failed", "tool.started", "tool.completed"] == events_of(lab, "tool.")
    lab.world.now += 601
    assert "completed" == lab.journal.run(lab.agent, "r").status


@rule  # engine.md F21
def test_a_call_whose_key_dies_in_a_pause_is_judged_anew(m: Any) -> None:
    """A keyed call isn't sent again under a key that its receiver may have forgotten: a person is asked."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "keyed")), {("keyed", 1): ["busy"]})
    assert "waiting" == lab.journal.run(lab.agent, "r").status
    lab.world.now += 86400
    state = lab.journal.run(lab.agent, "r")
    assert "waiting" == state.status
    assert state.due is None
    lab.people("r")
    assert "completed" == lab.journal.run(lab.agent, "r").status
    assert 1 == len(lab.world.effects)


@rule  # engine.md F24
def test_what_a_service_asks_for_holds_for_whoever_asks_next(m: Any) -> None:
    """When the attempts of an ask are used up the agent is told, and its next ask waits all the same."""
    labs: list[Lab] = []
    ask = busy(m, labs, 3)

    def agent(run: Any) -> Any:
        with run.step("a"):
            for _ in range(2):
                try:
                    return run.model("m", {"q": 1}, ask)
                except m.CallFailed:
                    run.message("user", "it failed")

    lab = bench(m, agent)
    labs.append(lab)
    for asked in (1, 2, 3):
        assert "waiting" == lab.journal.run(lab.agent, "r").status
        assert asked == len(lab.world.paid)
        lab.world.now += 601
    assert "completed" == lab.journal.run(lab.agent, "r").status
    assert 4 == len(lab.world.paid)


@rule  # engine.md W22
def test_a_sleep_is_until_the_time_on_record(m: Any) -> None:
    """Whoever goes on sleeps for what is left of it; equal sleeps are several, and a new attempt sleeps anew."""

    def agent(run: Any) -> None:
        for _ in range(2):
            with suppress(m.StepFailed), run.step("a"):
                run.sleep(for_s=600)
                run.sleep(for_s=600)
                if run.state.step["attempt"] == 1:
                    raise ValueError("once")
                return

    lab = bench(m, agent)
    slept = 0
    while lab.journal.run(lab.agent, "r").status == "waiting":
        lab.world.now += 301
        slept += 1
    assert 8 == slept
    assert ["timer.set", "timer.fired"] * 4 == events_of(lab, "timer.")
    assert ["run.waiting"] * 4 == events_of(lab, "run.waiting")


@rule  # engine.md W22
def test_a_short_sleep_is_slept_in_its_process(m: Any) -> None:
    """The run keeps its owner."""
    lab = bench(m, lambda run: run.sleep(for_s=3))
    assert "completed" == lab.journal.run(lab.agent, "r").status
    assert [] == events_of(lab, "run.waiting")
    assert lab.world.now > 2


@rule  # engine.md W24
def test_a_wait_takes_the_oldest_signal_once(m: Any) -> None:
    """Also one that came before; what a wait has taken isn't in the inbox, and a failed attempt gives it back."""

    def agent(run: Any) -> Any:
        got: list[Any] = []
        for _ in range(2):
            with suppress(m.StepFailed), run.step("a"):
                got = [run.wait_signal("lab"), run.wait_signal("lab"), run.signals()]
                if run.state.step["attempt"] == 1:
                    raise ValueError("once")
                break
        return got

    lab = bench(m, agent)
    lab.journal.start("r")
    lab.journal.signal("r", 1)
    assert "waiting" == lab.journal.run(lab.agent, "r").status
    assert "waiting" == lab.journal.run(lab.agent, "r").status
    lab.journal.signal("r", 2)
    lab.journal.signal("r", 3)
    state = lab.journal.run(lab.agent, "r")
    assert ("completed", [1, 2, [3]]) == (state.status, state.output["output"])
    assert [] == state.inbox


@rule  # engine.md W24
def test_a_wait_that_timed_out_is_told_so_again(m: Any) -> None:
    """Though the signal has come since: that one is for the next wait."""

    def agent(run: Any) -> Any:
        with run.step("a"):
            return [run.wait_signal("lab", 600), run.wait_signal("lab")]

    lab = bench(m, agent)
    assert "waiting" == lab.journal.run(lab.agent, "r").status
    lab.world.now += 601
    assert "waiting" == lab.journal.run(lab.agent, "r").status
    lab.journal.signal("r", "late")
    assert [None, "late"] == lab.journal.run(lab.agent, "r").output["output"]


@rule  # engine.md W20
def test_a_signal_that_comes_just_before_the_run_waits_wakes_it(m: Any) -> None:
    """It would else wait for ever for what has come."""
    lab = bench(m, lambda run: run.wait_signal("lab"))
    send = lambda _: lab.elsewhere(lambda: lab.journal.signal("r", "in between"))  # noqa: E731
    lab.sends = send  # type: ignore[attr-defined]
    crash_at(lab, "before run.waiting", kind="sends")
    assert lab.journal.run(lab.agent, "r").woken
    assert "in between" == lab.journal.run(lab.agent, "r").output["output"]
