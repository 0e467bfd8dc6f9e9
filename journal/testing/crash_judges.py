"""What would go wrong in production: a run that was crashed, compared with one that wasn't.

The judges, by name: `twice`, `lost`, `differs`, `stuck`, `paid_twice`, `invalid`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from runjournal.log.base import Json

from .crash_lives import CrashStory
from .world import WorldEffect

RULES: Final = ("twice", "lost", "paid_twice", "invalid", "differs", "stuck")
"""The judges, the one whose verdict weighs most first."""


class AskedCall(NamedTuple):
    """The first time that a run has asked for something: in which step, what kind, its name, and its args or hash.

    `again` says that it has asked the same before, and that it may: once more or less is no difference.
    """

    step: str
    kind: str
    name: str
    args: str
    again: bool = False


class CrashFacts(NamedTuple):
    """What a run came to, as far as it can be compared."""

    status: str
    output: Json
    asked: list[AskedCall]
    together: frozenset[str]
    requests: Counter[tuple[str, str]]
    effects: Counter[str]
    results: dict[str, Any]


class CrashVerdict(NamedTuple):
    """What a judge says: its name, what is wrong, and likely causes, the likeliest first."""

    rule: str
    what: str
    causes: tuple[str, ...]


class Unsteady(NamedTuple):
    """What isn't compared, as two runs without a crash differ there."""

    told: tuple[str, ...]
    output: bool
    order: bool
    steps: bool
    names: frozenset[str]
    effects: frozenset[str]


def facts(story: CrashStory) -> CrashFacts:
    """Return what a run came to."""
    step, open_, together, seen = "", set[str](), set[str](), set[str]()
    asked, requests, output, results = list[AskedCall](), Counter[tuple[str, str]](), None, dict[str, Any]()
    about, repeated = dict[str, tuple[str, str]](), set[tuple[str, str]]()
    in_step = defaultdict[str, set[tuple[str, str]]](set)
    for _, kind, data in story.end.events:
        match kind:
            case "step.started":
                step = str(data["id"])
                open_.clear()
            case "tool.started" | "model.started" | "approval.requested":
                call_id = str(data.get("call_id") or data.get("approval_id"))
                name = str(data.get("tool") or data.get("model") or data.get("action"))
                args = str(data["request_hash"]) if kind == "model.started" else _text(data["args"])
                about[call_id] = name, args
                if call_id not in seen:
                    asked.append(AskedCall(step, kind.partition(".")[0], name, args, (name, args) in repeated))
                    seen.add(call_id)
                in_step[step].add((name, args))
                if data.get("policy") == "idempotent":  # a tool that only looks is, too
                    repeated.add((name, args))
                open_.add(call_id)
                if len(open_) > 1:
                    together.add(step)
            case "tool.completed" | "model.completed" | "tool.failed" | "model.failed":
                open_.discard(str(data["call_id"]))
                if kind.endswith(".failed"):
                    repeated.add(about[str(data["call_id"])])
                if kind == "model.completed":
                    requests[about[str(data["call_id"])]] += 1
                if kind == "tool.completed":
                    name, args = about[str(data["call_id"])]
                    results[str(data["call_id"])] = data["result"]
                    results.setdefault(json.dumps([name, json.loads(args)], sort_keys=True), data["result"])
            case "step.failed":
                repeated |= in_step[step]
            case "approval.resolved":
                open_.discard(str(data["approval_id"]))
            case "run.completed":
                output = data["output"]
            case "run.failed":
                output = data["error"]["type"]
            case _:
                pass
    happened = Counter(each.what for each in story.effects if not each.again)
    return CrashFacts(story.end.status, output, asked, frozenset(together), requests, happened, results)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def unsteady(first: CrashFacts, second: CrashFacts, points: tuple[int, int]) -> Unsteady:
    """Return in what two runs without a crash differ."""
    told = list[str]()
    output = (first.status, first.output) != (second.status, second.output)
    if output:
        told.append(f"the output: {_cut(first.output)}, then {_cut(second.output)}")
    effects = frozenset((first.effects - second.effects) + (second.effects - first.effects))
    told += [f"what happened: {each}" for each in sorted(effects)]
    kinds = [[(each.kind, each.name) for each in of.asked] for of in (first, second)]
    order = kinds[0] != kinds[1]
    if order:
        told.append("the order, or the kind, of what was asked")
        names = frozenset(name for _, name in kinds[0] + kinds[1])
    else:
        pairs = zip(first.asked, second.asked, strict=True)
        names = frozenset(one.name for one, other in pairs if one.args != other.args)
        told += [f"what {each} was asked" for each in sorted(names)]
    steps = not order and [each.step for each in first.asked] != [each.step for each in second.asked]
    if steps:
        told.append("the steps in which something was asked")
    if points[0] != points[1]:
        told.append(f"how many boundaries there are: {points[0]}, then {points[1]}")
    return Unsteady(tuple(told), output, order, steps, names, effects)


def _cut(value: Any, most: int = 60) -> str:
    text = value if isinstance(value, str) else _text(value)
    return text if len(text) <= most else f"{text[:most]}…"


def judged(story: CrashStory, clean: CrashFacts, loose: Unsteady) -> Iterator[CrashVerdict]:
    """Yield what is wrong with a run that was crashed."""
    first = (SWALLOWED,) if any(life.swallowed for life in story.lives) else ()
    found = list(_judged(story, clean, loose)) or list(_asked_otherwise(facts(story), clean, loose))
    for each in found:
        yield each._replace(causes=first + tuple(cause for cause in each.causes if cause not in first))


def _judged(story: CrashStory, clean: CrashFacts, loose: Unsteady) -> Iterator[CrashVerdict]:
    found = facts(story)
    yield from _twice(story, clean, loose)
    yield from _paid_twice(story, clean, loose)
    yield from _refused(story)
    if story.stuck:
        yield CrashVerdict("stuck", story.stuck, _why_stuck(story.stuck))
        return
    if _waits(found, clean):
        return
    missing = [
        each for each, count in clean.effects.items() if found.effects[each] < count and each not in loose.effects
    ]
    for each in missing:
        yield CrashVerdict(
            "lost",
            f"{each!r} happened {_times(found.effects[each])}; without a crash, {_times(clean.effects[each])}",
            _why_lost(story, each),
        )
    if clean.status == "completed" != found.status:
        why = story.end.why or found.status
        yield CrashVerdict("lost", f"the run has {found.status}, and its output is missing: {why}", (FAILED,))
        return
    if clean.output is not None and found.output is None and not loose.output:
        yield CrashVerdict("lost", f"the output is missing; without a crash it is {_cut(clean.output)}", (VARIABLES,))
    elif (clean.status, clean.output) != (found.status, found.output) and not loose.output:
        what = f"the output is {_cut(found.output)}; without a crash it is {_cut(clean.output)}"
        yield CrashVerdict("differs", what, (VARIABLES, DEFAULTS, CLOCK))


def _waits(found: CrashFacts, clean: CrashFacts) -> bool:
    """Return whether nobody was to answer: such a run has no end that can be compared."""
    return found.status == "waiting" != clean.status


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _otherwise(clean: CrashFacts, what: str) -> str:
    return f"without a crash, {_times(clean.effects[what])}" if clean.effects[what] else "it may happen only once"


def _twice(story: CrashStory, clean: CrashFacts, loose: Unsteady) -> Iterator[CrashVerdict]:
    done = [each for each in story.effects if not each.again]
    for what, count in Counter(each.what for each in done if each.counted).items():
        expected = max(1, clean.effects[what])
        if count > expected and what not in loose.effects:
            same = [each for each in done if each.what == what]
            text = f"{what!r} happened {_times(count)}; {_otherwise(clean, what)}"
            yield CrashVerdict("twice", text, _why_twice(same))
    under = dict[str, str]()
    for each in done:
        if each.key and under.setdefault(each.key, each.what) != each.what:
            text = f"the key {each.key[:40]!r} was used for {under[each.key]!r}, then for {each.what!r}"
            yield CrashVerdict("twice", text, (KEY_REUSED,))


def _paid_twice(story: CrashStory, clean: CrashFacts, loose: Unsteady) -> Iterator[CrashVerdict]:
    about, answered, told = dict[str, tuple[str, str]](), Counter[tuple[str, str]](), set[tuple[str, str]]()
    for _, kind, data in story.end.events:
        if kind == "model.started":
            asked = str(data["model"]), str(data["request_hash"])
            about[str(data["call_id"])] = asked
            steady = asked[0] not in loose.names and not loose.order
            if steady and answered[asked] >= max(1, clean.requests[asked]) and asked not in told:
                told.add(asked)
                yield CrashVerdict(
                    "paid_twice",
                    f"{asked[0]} was asked the same once more, though its answer was on record",
                    (NEW_STEP, CLOCK),
                )
        elif kind == "model.completed":
            answered[about[str(data["call_id"])]] += 1


def without_crash(story: CrashStory, *, person: bool) -> Iterator[CrashVerdict]:
    """Yield what is wrong with a run that wasn't crashed: it must complete, or wait where nobody is to answer."""
    if story.stuck:
        yield CrashVerdict("stuck", story.stuck, (SETUP,))
    elif story.end.status != "completed" and (person or story.end.status != "waiting"):
        yield CrashVerdict("lost", f"the run has {story.end.status}: {story.end.why}", (SETUP,))
    yield from _refused(story)


def _refused(story: CrashStory) -> Iterator[CrashVerdict]:
    found = next((each for each in story.points if each.refused), None)
    if found is not None:
        what = f"{found.what} was sent messages that a provider refuses: {found.refused}"
        yield CrashVerdict("invalid", what, (HISTORY,))


def _asked_otherwise(found: CrashFacts, clean: CrashFacts, loose: Unsteady) -> Iterator[CrashVerdict]:
    if _waits(found, clean):
        return
    extra = [each for each in found.effects if each not in clean.effects and not loose.effects]
    if extra and not loose.order:
        yield CrashVerdict(
            "differs", f"{extra[0]!r} happened; without a crash it doesn't", (CLOCK, VARIABLES, DEFAULTS)
        )
    if loose.order:
        return
    expected, actual = (_comparable(each.asked, clean.together, loose) for each in (clean, found))
    if expected != actual:
        at = next((at for at, pair in enumerate(zip(expected, actual, strict=False)) if pair[0] != pair[1]), None)
        at = min(len(expected), len(actual)) if at is None else at
        now, then = (_asked_text(of, at) for of in (actual, expected))
        yield CrashVerdict("differs", f"it asked for {now}; without a crash, for {then}", (CLOCK, VARIABLES, DEFAULTS))


def _comparable(asked: list[AskedCall], together: frozenset[str], loose: Unsteady) -> list[AskedCall]:
    """Return what was asked in its order; what is in flight together in one step has none.

    What may be repeated counts where it was asked first: how often a call was tried again is up to who was asked.
    """
    known = [each._replace(args="") if each.name in loose.names else each for each in asked if not each.again]
    if loose.steps:
        return [each._replace(step="") for each in known]
    places = {each.step: at for at, each in reversed(list(enumerate(known)))}
    return sorted(known, key=lambda each: (places[each.step], each if each.step in together else ()))


def _asked_text(asked: list[AskedCall], at: int) -> str:
    if at >= len(asked):
        return "nothing more"
    each = asked[at]
    shown = "" if each.kind == "model" or not each.args else f" {_cut(each.args)}"
    return f"{each.name}{shown} in step {each.step}"


# ------------------------------------------------------------------------------------------------------ likely causes

SETUP: Final = "no crash was needed: the agent, or what the test has made for it, isn't ready to be walked"
FAILED: Final = "the agent, or a tool, can't stand to be called again: it finds what it has left behind, and raises"
VARIABLES: Final = (
    "variables of the agent that a loop of run.each, or code between steps, fills: after a crash they are empty, and "
    "steps that are done aren't entered again; keep what counts in run.memory, or in what run.do returns"
)
DEFAULTS: Final = "a mutable default, a global or an attribute that lives as long as a process: keep it in run.memory"
CLOCK: Final = (
    "a decision, a step's name or a key by a clock or by chance, outside of run.do: the next process decides "
    "otherwise; take it from run.do, which keeps it"
)
SWALLOWED: Final = "an `except BaseException`, or a bare `except`, that took the interrupt for a failure: let it pass"
KEY_REUSED: Final = "the key doesn't tell two effects apart: put what makes them two into it"
NEW_STEP: Final = "the same question in a new step: a step's name or key that is another one in each process"
HISTORY: Final = (
    "a conversation that the agent keeps by itself, or changes between the answer and its results: use run.turn, or "
    "write call and result in one step"
)
OUTSIDE: Final = (
    "it was done in plain code, outside of any tool, and that runs again in each process: make it a @tool, and call it "
    "in a step"
)
RANDOM_KEY: Final = (
    "its key is another one each time: take the one that the tool is handed (`idempotency_key: str = KEY`), not a "
    "random number or a clock"
)
NO_KEY: Final = (
    "its tool may be sent again (policy keyed or idempotent), and hands the receiver no key: hand on "
    "`idempotency_key`, or let the tool be unsafe, the default"
)
OTHER_CALL: Final = (
    "two calls did it: a step's name or key, or the args, came from a clock, from chance or from variables that a "
    "crash takes"
)
IN_PARTS: Final = "its tool does several things, and a crash came in between: make a tool of each"
INTENT: Final = (
    "something that says it is done was written before it was done, outside of the tool: what a tool and its record "
    "say is enough"
)


def _why_twice(same: list[WorldEffect]) -> tuple[str, ...]:
    if any(not each.call for each in same):
        return (OUTSIDE,)
    if len({each.call for each in same}) > 1:
        return (OTHER_CALL, CLOCK)
    if len({each.key for each in same}) > 1:
        return (RANDOM_KEY,)
    return (IN_PARTS, NO_KEY) if any(each.key for each in same) else (NO_KEY, IN_PARTS)


def _why_lost(story: CrashStory, what: str) -> tuple[str, ...]:
    if any(each.what == what for each in story.effects):
        return (INTENT,)
    return (INTENT, CLOCK, IN_PARTS)


def _why_stuck(why: str) -> tuple[str, ...]:
    if "other code" in why:
        return (CLOCK, VARIABLES)
    if "printed more" in why:
        return ("a loop that doesn't end after a crash, and prints", VARIABLES)
    if "longer than" in why:
        return ("it waits for what its dead process held: a lock, a file, a connection", "max_s is too short for it")
    return (FAILED, DEFAULTS)
