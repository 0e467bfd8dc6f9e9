"""Agents as data, and where their world strikes: drawn by Hypothesis, or fixed samples. From the model's own tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

POLICIES = ["transactional", "idempotent", "keyed", "unsafe"]
OWN = {"order": "keyed", "ticket": "unsafe"}  # tools with a key of their own


@dataclass
class Program:
    """An agent as data. Each step is (name, ops, what the agent does when the step fails: raise, again or fallback)."""

    # line: `do`, in a straight line; loop: a step that repeats; keyed: a step per key; mixed: `do`, loop, `do`; each: a
    # step per item, over and over
    style: str
    steps: list[tuple[str, list[Any], str]]
    nature: dict[tuple[str, Any], list[str]] = field(
        default_factory=dict
    )  # (tool, x) -> how its recorded ends turn out


def ops() -> st.SearchStrategy[Any]:
    how, x, policy = st.sampled_from(["raise", "catch", "again"]), st.integers(1, 3), st.sampled_from(POLICIES)
    tool = st.sampled_from([*POLICIES, *OWN])
    return st.one_of(
        st.tuples(st.just("say"), st.sampled_from("ab")),
        st.tuples(st.just("count"), st.sampled_from("ab")),
        st.tuples(st.just("plan"), st.sampled_from("ab")),
        st.tuples(st.just("boom"), st.integers(0, 3)),
        st.tuples(st.just("model"), st.sampled_from(["q1", "q2"]), st.booleans(), how),
        st.tuples(st.just("tool"), policy, x, how),
        st.tuples(st.just("tool"), tool, x, how),
        st.tuples(st.just("parallel"), st.lists(st.tuples(tool, st.integers(1, 2)), min_size=2, max_size=3), how),
        st.tuples(st.just("ask"), st.sampled_from(["ok?", "go?"]), policy, x, how),
        st.tuples(st.sampled_from(["sleep", "wait"]), st.sampled_from([0, 2, 600])),
    )


ENDS = ["ok", "ok", "late", "lost", "never", "never but did", "did not happen", "not sent", "busy", "soon"]
ANSWERS = ["ok", "rejected", "late", "never", "busy", "soon"]
FIND = st.sampled_from([False, True, "some"])  # which keys a hook knows of
NATURES = st.dictionaries(
    st.tuples(st.sampled_from(POLICIES), st.sampled_from([1, 2, 3, 11, 12])),
    st.lists(st.sampled_from(ENDS), max_size=4),
    max_size=8,
)
MODELS = st.dictionaries(
    st.tuples(st.just("model"), st.sampled_from(["q1", "q2"])),
    st.lists(st.sampled_from(ANSWERS), max_size=5),
    max_size=2,
)


@st.composite
def programs(draw: st.DrawFn, kind: st.SearchStrategy[Any] | None = None, calm: bool = False, size: int = 5) -> Program:
    hows = st.sampled_from(["raise", "again", "fallback"])
    steps = st.lists(
        st.tuples(st.sampled_from("ab"), st.lists(ops() if kind is None else kind, max_size=size), hows),
        min_size=1,
        max_size=3,
    )
    nature = {} if calm else draw(NATURES) | draw(MODELS)
    return Program(draw(st.sampled_from(["line", "loop", "keyed", "mixed", "each"])), draw(steps), nature)


CALL, AGAIN = "raise", "again"
SAMPLES = {
    "plain": Program("loop", [
        ("a", [("say", "a"), ("model", "q1", False, CALL), ("tool", "unsafe", 1, CALL), ("count", "a")], "raise"),
        ("a", [("tool", "keyed", 1, CALL), ("tool", "idempotent", 1, CALL), ("plan", "a"),
               ("tool", "transactional", 1, CALL)], "raise"),
    ]),
    "twins": Program("line", [
        ("a", [("parallel", [("keyed", 1), ("keyed", 1)], AGAIN), ("tool", "keyed", 1, AGAIN),
               ("model", "q1", False, CALL), ("model", "q1", False, CALL)], "raise"),
    ], {("keyed", 1): ["never"]}),
    "handled": Program("line", [
        ("a", [("tool", "unsafe", 1, AGAIN), ("tool", "keyed", 2, AGAIN), ("say", "a"), ("tool", "unsafe", 2, CALL)],
         "fallback"),
        ("b", [("boom", 1), ("tool", "transactional", 1, AGAIN), ("count", "b")], "again"),
        ("c", [("tool", "unsafe", 3, "catch"), ("boom", 3)], "fallback"),
    ], {("unsafe", 1): ["did not happen"], ("keyed", 2): ["late", "never", "late"], ("unsafe", 2): ["never"],
        ("transactional", 1): ["never"]}),
    "clock": Program("keyed", [
        ("a", [("model", "q1", True, "catch"), ("tool", "unsafe", 1, CALL), ("model", "q2", True, CALL), ("say", "a")],
         "again"),
        ("b", [("model", "q1", True, CALL), ("boom", 1), ("tool", "keyed", 1, CALL)], "again"),
    ], {("model", "q1"): ["rejected", "late", "rejected"]}),
    "asks": Program("loop", [
        ("a", [("ask", "ok?", "unsafe", 1, AGAIN), ("ask", "ok?", "keyed", 2, AGAIN),
               ("ask", "ok?", "unsafe", 3, AGAIN)], "again"),
        ("a", [("ask", "ok?", "unsafe", 3, AGAIN), ("tool", "unsafe", 2, AGAIN)], "again"),
    ], {("unsafe", 2): ["never but did"]}),
    "items": Program("each", [
        ("", [("parallel", [("order", 1), ("order", 1), ("ticket", 1)], "catch"), ("boom", 1)], "again"),
        ("", [("tool", "order", 1, AGAIN), ("ask", "ok?", "unsafe", 2, CALL)], "again"),
        ("", [("tool", "ticket", 1, AGAIN), ("model", "q1", True, CALL)], "again"),
    ], {("keyed", 1): ["never"], ("unsafe", 1): ["did not happen"]}),
    "rounds": Program("line", [
        ("a", [("count", "a"), ("tool", "keyed", 1, CALL)], "raise"),
        ("b", [("tool", "idempotent", 2, CALL), ("say", "b"), ("tool", "unsafe", 1, CALL)], "raise"),
    ], {("keyed", 1): ["lost"] * 3, ("idempotent", 2): ["late"], ("unsafe", 1): ["not sent"] * 3}),
    "times": Program("loop", [
        ("a", [("tool", "unsafe", 1, CALL), ("sleep", 600), ("model", "q1", False, CALL), ("sleep", 2),
               ("wait", 600), ("tool", "keyed", 1, CALL), ("boom", 1), ("sleep", 600)], "again"),
    ]),
    "outage": Program("line", [
        ("a", [("model", "q1", False, CALL), ("tool", "keyed", 1, CALL), ("say", "a"), ("model", "q2", False, CALL),
               ("parallel", [("idempotent", 1), ("keyed", 2)], AGAIN), ("tool", "unsafe", 1, AGAIN)], "again"),
    ], {("model", "q2"): ["busy", "soon"], ("keyed", 1): ["soon", "busy"], ("idempotent", 1): ["busy"],
        ("keyed", 2): ["busy", "late"]}),
}  # fmt: skip

BLIND = {"tool", "parallel", "plan", "boom"}  # what doesn't look at the context
