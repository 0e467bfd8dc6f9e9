"""The rules of children, each with the smallest agents that show it; see `rules.py`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from model.lab import Lab, use
from model.rules import bench, ended_with_its_step_open, rule


def family(m: Any, strikes: dict[int, str] | None = None, **how: Any) -> Lab:
    """A run with two children that act, and a third that asks."""

    def acts(run: Any) -> Any:
        return run.do("act", lambda: use(run, lab, "keyed", int(run.id[-1], 16)))

    def asks(run: Any) -> Any:
        return run.do("ask", lambda: run.ask("go on", args={"x": 3}))

    def parent(run: Any) -> Any:
        ids = run.do("fan out", lambda: [run.spawn(n, kind="acts") for n in (1, 2)])
        got = run.do("fan in", lambda: [run.wait_child(id, acts) for id in ids])
        return [got, run.do("ask", lambda: run.call_child(asks, kind="asks"))]

    lab = bench(m, parent, strikes=strikes, **how)
    return lab


def begun(lab: Lab, run_id: str = "r") -> list[str]:
    return [event.data["child"] for event in lab.store.log[run_id] if event.type == "child.spawned"]


def told(lab: Lab, run_id: str = "r") -> list[str]:
    return [event.data["status"] for event in lab.store.log[run_id] if event.type == "child.finished"]


@rule  # engine.md K1, K3, K4, K5
def test_children_of_a_run_that_is_struck_everywhere(m: Any) -> None:
    """Each child is begun once, acts once, and its end is told once, wherever the process of all of them dies."""
    whole = family(m)
    whole.serve()
    for tick in range(1, whole.world.ticks + 1, 7):
        lab = family(m, {tick: "crash"})
        lab.serve()
        lab.judge()
        assert (2, ["completed"] * 3) == (len(lab.world.effects), told(lab))
        assert begun(whole) == begun(lab)
        assert whole.store.state("r").output == lab.store.state("r").output


@rule  # engine.md K1
def test_which_child_it_is(m: Any) -> None:
    """Equal asks of a step are told apart by n, a new attempt finds those of the first; a given id is one child."""

    def agent(run: Any) -> Any:
        def body() -> Any:
            ids = [run.spawn(n) for n in (1, 1, 2)] + [run.spawn(3, "mine"), run.spawn(3, "mine")]
            if run.state.step["attempt"] == 1:
                raise ValueError("anew")
            for wrong in (4, 3):
                with pytest.raises(m.KeyReused):
                    run.spawn(wrong, "mine" if wrong == 4 else "other")
            return ids

        with suppress(m.StepFailed):
            return run.do("a", body)
        return run.do("a", body)

    lab = bench(m, agent)
    lab.journal.start("other")
    ids = lab.serve().output["output"]
    assert ids[:4] == begun(lab) and ids[3:] == ["mine", "mine"] and len(set(ids)) == 4
    assert m.key_of("r", "a", "spawn child", {"input": 1})[:12] == ids[0].removeprefix("r.")


@rule  # engine.md K2
def test_a_child_is_born_with_its_record(m: Any) -> None:
    """The process dies before or behind the append: the store has both, the child and that it was begun, or neither."""
    for where, count in (("before child.spawned", 0), ("after child.spawned", 1)):
        lab = bench(m, lambda run: run.do("a", lambda: run.call_child(lambda _: "done")))
        crash(lab, where)
        with suppress(m.Crash):
            lab.journal.run(lab.agent, "r")
        assert count == len(begun(lab)) == len(lab.store.log) - 1
        lab.died("r", where)
        assert {"output": "done"} == lab.serve().output
        assert ["completed"] == told(lab)


def crash(lab: Lab, where: str) -> None:
    """Die at the first boundary of this name."""
    tick, left = lab.world.tick, [True]

    def watch(here: str) -> None:
        tick(here)
        if here == where and left[0]:
            left[0] = False
            lab.crash(here)

    lab.world.tick = watch  # type: ignore[method-assign]


@rule  # engine.md K3
def test_what_was_told_of_a_child_stays_told(m: Any) -> None:
    """It failed, the parent was told, and it was retried: the same attempt is told of the failure, a new one isn't."""

    def fails(_: Any) -> Any:
        raise ValueError("down")

    def agent(run: Any) -> Any:
        def body() -> Any:
            with suppress(m.ChildFailed):
                return run.call_child(fails)
            use(run, lab, "keyed")
            return run.wait_child(begun(lab)[0], fails)

        with suppress(m.StepFailed):
            return run.do("a", body)
        return run.do("a", body)

    lab = bench(m, agent, {("keyed", 1): ["never"]})
    crash(lab, "after effect")
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    assert ["failed"] == told(lab)
    lab.died("r", "after effect")
    (child,) = begun(lab)
    lab.journal.start("again", "retry", child)
    lab.journal.run(lambda _: "mended", "again")
    assert {"output": "mended"} == lab.serve().output
    assert ["failed", "completed"] == told(lab)


@rule  # engine.md K3
def test_a_child_that_failed_is_told_to_each_attempt(m: Any) -> None:
    """Nobody has retried it: a new attempt is told of the failure, too, and the run fails by it."""

    def fails(_: Any) -> Any:
        raise ValueError("down")

    def agent(run: Any) -> Any:
        with suppress(m.StepFailed):
            return run.do("a", lambda: run.call_child(fails))
        return run.do("a", lambda: run.call_child(fails))

    lab = bench(m, agent)
    assert "failed" == lab.serve().status
    assert (["failed", "failed"], 2) == (told(lab), len(lab.store.log))


@rule  # engine.md K4
def test_only_a_child_of_the_line_is_waited_for(m: Any) -> None:
    """A run that this one hasn't begun is a mistake: the run is released, and mended code goes on."""
    lab = bench(m, lambda run: run.do("a", lambda: run.wait_child("stranger", len)))
    lab.journal.start("stranger")
    with pytest.raises(m.NotAChild):
        lab.journal.run(lab.agent, "r")
    lab.agent = lambda run: run.do("a", lambda: run.call_child(lambda _: "done"))
    assert {"output": "done"} == lab.serve().output


@rule  # engine.md K6
def test_the_waits_of_a_child_are_those_of_the_run_that_began_it(m: Any) -> None:
    """A grandchild asks; all three wait; the answer alone gets all of them going, by the name of the first."""

    def below(run: Any) -> Any:
        return run.do("b", lambda: run.call_child(lambda below: below.ask("go on", args={"x": 3})))

    lab = bench(m, lambda run: run.do("a", lambda: run.call_child(below)))
    for _ in range(2):
        assert "waiting" == lab.journal.run(lab.agent, "r").status
    (child,) = begun(lab)
    (last,) = begun(lab, child)
    assert [[child], [last]] == [lab.store.state(run_id).waits for run_id in ("r", child)]
    (question,) = lab.store.state(last).waits
    lab.journal.answer(last, question, "approved")
    assert {"output": {"x": 3}} == lab.journal.run(lab.agent, "r").output


@rule  # engine.md K7
def test_a_cancel_goes_down(m: Any) -> None:
    """Whoever claims a run of which a cancel was requested cancels what it has begun; what has ended stays so."""

    def agent(run: Any) -> Any:
        def body() -> Any:
            run.call_child(lambda _: "done")
            return run.call_child(asks, 1)

        return run.do("a", body)

    def asks(run: Any) -> Any:
        return run.do("b", lambda: run.call_child(lambda below: below.ask("go on", args={"x": 3})))

    lab = bench(m, agent)
    assert "waiting" == lab.journal.run(lab.agent, "r").status
    done, asking = begun(lab)
    lab.journal.cancel("r")
    assert "cancelled" == lab.journal.run(lab.agent, "r").status
    states = [lab.store.state(run_id).status for run_id in (done, asking, *begun(lab, asking))]
    assert ["completed", "cancelled", "cancelled"] == states


@rule  # engine.md K8
def test_the_line_of_a_run_keeps_its_children_and_a_fork_takes_none(m: Any) -> None:
    """A retry and a restart ask for the same children; a fork has what its base was told, and begins its own."""
    breaks = [True, True, False, False]

    def agent(run: Any) -> Any:
        ids = run.do("a", lambda: [run.spawn(n) for n in (1, 2)])
        first = run.do("b", lambda: run.wait_child(ids[0], lambda _: "done"))
        if breaks.pop(0):
            raise ValueError("later")
        return [first, run.do("c", lambda: run.wait_child(ids[1], lambda _: "done"))]

    lab = bench(m, agent)
    assert "failed" == lab.serve().status
    lab.journal.start("two", "restart", "r")
    assert "failed" == lab.serve("two").status
    assert begun(lab) == begun(lab, "two")
    lab.journal.start("three", "retry", "two")
    assert {"output": ["done", "done"]} == lab.serve("three").output
    assert [] == begun(lab, "three")
    lab.journal.start("fork", "fork", "r", at=len(lab.store.log["r"]))
    with pytest.raises(m.NotAChild):
        lab.journal.run(lab.agent, "fork")
    assert ["done"] == [lab.store.state("fork").done["b"]]


@rule  # engine.md K9
def test_a_child_that_is_left_out_stops_the_step(m: Any) -> None:
    """Code that begins another child in the place of one on record begins none, and sends nothing."""
    inputs = [1, 2, 1]

    def agent(run: Any) -> Any:
        def body() -> Any:
            id = run.spawn(inputs.pop(0))
            use(run, lab, "keyed")
            return id

        return run.do("a", body)

    lab = bench(m, agent)
    crash(lab, "before effect")
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.died("r", "before effect")
    with pytest.raises(m.StepDiverged):
        lab.journal.run(lab.agent, "r")
    assert ([], 1) == (lab.world.effects, len(begun(lab)))
    assert "completed" == lab.serve().status


@rule  # engine.md K3
def test_what_was_told_of_a_child_ends_with_its_attempt(m: Any) -> None:
    """The next attempt of the step, in whatever process, is told how the child's line stands then."""

    def fails(_: Any) -> Any:
        raise ValueError("down")

    def agent(run: Any) -> Any:
        def body() -> Any:
            id = run.spawn()
            if run.state.step["attempt"] > 1:
                use(run, lab, "keyed")
            return run.wait_child(id, fails)

        with suppress(m.StepFailed):
            return run.do("a", body)
        return run.do("a", body)

    lab = bench(m, agent)
    crash(lab, "before effect")
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.died("r", "before effect")
    (child,) = begun(lab)
    lab.journal.start("again", "retry", child)
    lab.journal.run(lambda _: "mended", "again")
    assert {"output": "mended"} == lab.serve().output
    assert ["failed", "completed"] == told(lab)


@rule  # engine.md K3, L2
def test_a_retry_of_the_parent_is_told_what_its_open_step_was_told(m: Any) -> None:
    """The run ended with its step open; the child was retried since: the same attempt is told of the failure."""

    def fails(_: Any) -> Any:
        raise ValueError("down")

    def agent(run: Any) -> Any:
        def body() -> Any:
            try:
                got = run.call_child(fails)
            except m.ChildFailed:
                got = "told"
            use(run, lab, "keyed")
            return got

        return run.do("a", body)

    lab = bench(m, agent)
    crash(lab, "before effect")
    ended_with_its_step_open(lab)
    (child,) = begun(lab)
    lab.journal.start("again", "retry", child)
    lab.journal.run(lambda _: "mended", "again")
    lab.journal.start("two", "retry", "r")
    assert {"output": "told"} == lab.serve("two").output


def taken_down(m: Any, strikes: dict[int, str] | None = None) -> Lab:
    """A run that was cancelled while a child of its child asked: the child has acted, another one has ended."""

    def below(run: Any) -> Any:
        sent = run.do("act", lambda: use(run, lab, "keyed"))
        return [sent, run.do("b", lambda: run.call_child(lambda last: last.ask("go on", args={"x": 3})))]

    def agent(run: Any) -> Any:
        return run.do("a", lambda: [run.call_child(lambda _: "done"), run.call_child(below, 1)])

    lab = bench(m, agent, strikes=strikes)
    lab.journal.run(lab.agent, "r")
    lab.journal.cancel("r")
    assert "cancelled" == lab.journal.run(lab.agent, "r").status
    return lab


def line_of(lab: Lab, run_id: str) -> list[str]:
    return [lab.store.state(id).status for id in lab.store.log if lab.store.state(id).scope == run_id]


@rule  # engine.md K13, K7, K8
def test_a_retry_takes_up_what_the_cancel_took_down(m: Any) -> None:
    """So does a restart: what was cancelled from above goes on where it was, wherever a process dies."""
    for link in ("retry", "restart"):
        whole = taken_down(m)
        before = whole.world.ticks
        whole.journal.start("two", link, "r")
        assert "completed" == whole.serve("two").status
        for tick in range(before + 1, whole.world.ticks + 1, 17):
            lab = taken_down(m, {tick: "crash"})
            with suppress(m.Crash):
                lab.journal.start("two", link, "r")
            if "two" not in lab.store.log:
                lab.died("r", "")
                lab.journal.start("two", link, "r")
            assert whole.store.state("two").output == lab.serve("two").output
            lab.judge("two")
            assert 1 == len(lab.world.effects)
            done, acting = begun(lab)
            assert [["completed"], ["cancelled", "completed"]] == [line_of(lab, id) for id in (done, acting)]
            assert ["completed"] == told(lab)
            assert ["completed"] * (1 + (link == "restart")) == told(lab, "two")


@rule  # engine.md K13
def test_a_child_that_somebody_has_cancelled_stays_cancelled(m: Any) -> None:
    """A person has cancelled it, and then its parent: whoever retries that one is told that it was cancelled."""
    lab = bench(m, lambda run: run.do("a", lambda: run.call_child(lambda one: one.ask("go on", args={"x": 3}))))
    lab.journal.run(lab.agent, "r")
    (child,) = begun(lab)
    lab.journal.cancel(child)
    lab.journal.cancel("r")
    assert "cancelled" == lab.journal.run(lab.agent, "r").status
    lab.journal.start("two", "retry", "r")
    assert "failed" == lab.serve("two").status
    assert [["cancelled"], ["cancelled"]] == [line_of(lab, child), told(lab, "two")]
