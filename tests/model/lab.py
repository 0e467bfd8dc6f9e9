"""A world, a machine that dies as planned, people who tell the truth, and the judges: for the model and the product.

From the model's own tests; `m` is what is under test: `reference_model`, or a `product.Product` that looks like it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from model.programs import OWN, POLICIES, Program
from model.reference_model import ERASED

PAUSES = {"busy": 600.0, "soon": 2.0}  # how long a service asks to be left alone
COUNTS: Counter[str] = Counter()  # what was really tried
CALL_EVENTS = ("tool.started", "tool.completed", "tool.failed", "tool.resolved")  # what they say is of one attempt


class Lab:
    """A world, a journal, a machine that dies as planned, and people who tell the truth."""

    def __init__(
        self,
        m: Any,
        program: Program,
        strikes: dict[int, str] | None = None,
        *,
        power: bool = False,
        find: bool | str = False,
        on_unknown: str = "ask",
        agent: Callable[[Any], Any] | None = None,
        private: bool = False,
    ) -> None:
        self.m, self.program, self.power, self.private = m, program, power, private
        self.world = self.m.World({tick: getattr(self, kind) for tick, kind in (strikes or {}).items()})
        tick, self.where, self.acting = self.world.tick, "", ""
        self.world.tick = lambda where: [self.look_around(where), tick(where)][-1]
        self.store = self.m.Store(self.world)
        hooks = dict.fromkeys(["keyed", "unsafe"], self.glance if find == "some" else self.look) if find else {}
        of = {p: (self.tool(p), hooks.get(p), on_unknown) for p in POLICIES}
        self.tools = {p: self.m.Tool(p, p, *of[p]) for p in POLICIES}
        self.tools |= {name: self.m.Tool(name, p, *of[p], key=name + "-{of}-{x}") for name, p in OWN.items()}
        self.agent = agent or getattr(self, program.style)
        self.clock, self.coins = itertools.count(1_767_323_045), itertools.repeat(0)
        self.crashes = self.stalls = self.lost = 0
        self.comparable = True  # no lost attempt had failed behind our back
        self.seen: dict[str, list[Any]] = {}
        self.purged_calls, self.purged_ends = set[str](), 0  # what the judges knew by events that are gone
        self.boot()

    def boot(self, patience: int = 10**6) -> None:
        self.journal = self.m.Journal(self.store, *self.tools.values(), patience=patience, private=self.private)

    def look_around(self, where: str) -> None:
        self.where, self.acting = where, "" if where == "before effect" else self.acting

    @property
    def locked(self) -> bool:
        """The body of a transactional tool holds the store's write lock: nobody else can append."""
        inside = self.where in ("after failure", "after effect", "before tool.completed")
        return inside and self.acting == "transactional"

    # What strikes.

    def crash(self, where: str) -> None:
        raise self.m.Crash(where)

    def day(self, where: str) -> None:
        """It dies, and is found a day later: keys are forgotten."""
        self.world.now += 86400
        raise self.m.Crash(where)

    def stall(self, where: str) -> None:
        """It sleeps; another process takes over and goes as far as it gets, alone; then the first one wakes."""
        self.take_over(people=False)

    def stall_long(self, where: str) -> None:
        """The same, and people answer what the other process asks."""
        self.take_over(people=True)

    def take_over(self, people: bool) -> None:
        if self.locked:
            return
        self.stalls += 1
        first, run_id, acting = self.journal, self.run_id, self.acting
        self.disown(run_id)
        self.boot()
        with suppress(self.m.Fenced, self.m.RunBusy, self.m.Refused):
            try:
                for _ in range(50):
                    state = self.journal.run(self.agent, run_id)
                    if state.status in self.m.TERMINAL or (state.status == "waiting" and not people):
                        break
                    self.people(run_id)
            except self.m.Crash as crash:
                self.died(run_id, str(crash))
        self.journal, self.acting = first, acting

    def elsewhere(self, act: Callable[[], Any]) -> None:
        """Another process appends, undisturbed; or is refused."""
        if self.locked:
            return
        plan, self.world.plan = self.world.plan, {}
        with suppress(self.m.Refused):
            act()
        self.world.plan = plan

    # What the outside does: nature goes by the ends recorded so far, so that a repeated attempt turns out the same.

    def events(self, *kinds: str) -> list[Any]:
        """Events of these kinds, but of runs that were purged: nothing is known of them."""
        return [event for log in self.store.log.values() for event in log if event.type in kinds and event.data]

    def nature(self, tool: str, x: Any, ends: int) -> str:
        return (self.program.nature.get((tool, x), [])[ends:] or ["ok"])[0]

    def ends(self, id: str) -> int:
        told = [e for e in self.events("tool.completed", "tool.failed") if e.data["call_id"] == id]
        return sum(e.data.get("error", {}).get("type") != "CallOutcomeUnknown" for e in told)

    def result(self, policy: str, args: Any, key: str) -> str:
        return f"{policy}:{args['x']}:{key[:6]}"

    def tool(self, policy: str) -> Callable[[Any, str], Any]:
        def fn(args: Any, key: str) -> Any:
            self.acting = policy
            end, result = self.nature(policy, args["x"], self.ends(key)), self.result(policy, args, key)
            if end in ("ok", "lost", "never but did"):
                result = self.world.act(policy, key, result)
            if end in ("late", "lost"):
                raise self.m.Transient(end)
            if end in PAUSES:
                raise self.asking(end)
            if end in ("never", "never but did"):
                raise ValueError(end)
            if end in ("did not happen", "not sent"):
                raise {"did not happen": self.m.DidNotHappen, "not sent": self.m.NotSent}[end](end)
            return result

        return fn

    def model(self, request: Any) -> Any:
        self.acting = "model"
        question = request["q"]
        started = [e.data for e in self.events("model.started") if e.data["args"] != ERASED]
        asked = {data["call_id"] for data in started if data["args"]["request"]["q"] == question}
        ends = sum(e.data["call_id"] in asked for e in self.events("model.completed", "model.failed"))
        end = self.nature("model", question, ends)
        self.world.act("model", question, None)
        if end == "late":
            raise self.m.Transient(end)
        if end in PAUSES:
            raise self.asking(end)
        if end == "never":
            raise ValueError(end)
        return end if end == "rejected" else f"answer {ends} to {question}"

    def asking(self, end: str) -> Any:
        """A failure whose service asks to be left alone for a while."""
        error = self.m.Transient(end)
        error.retry_after = PAUSES[end]
        return error

    def look(self, args: Any, key: str) -> tuple[str, Any]:
        """The hook of keyed and unsafe tools: it sees the truth."""
        policy = "keyed" if key in self.world.seen else "unsafe"
        happened = key in self.world.effects
        return ("happened", self.result(policy, args, key)) if happened else ("did_not_happen", None)

    def glance(self, args: Any, key: str) -> tuple[str, Any] | None:
        """A hook that knows about half of all keys."""
        match sum(key.encode()) % 6:
            case 0:
                return None
            case 1:
                return "unknown", None
            case 2:
                raise OSError("no network")
        return self.look(args, key)

    # The agents.

    def body(self, run: Any, ops: list[Any]) -> None:
        for op in ops:
            match op:
                case "say", text:
                    run.message("user", f"{text}{len(run.context['messages'])}")
                case "count", key:
                    run.memory[key] = run.memory.get(key, 0) + 1
                case "plan", task:
                    run.plan(task, "done")
                case "boom", times:
                    if run.state.step["attempt"] <= times:
                        raise ValueError("boom")
                case "model", question, clock, how:
                    run.message("assistant", self.attempt(lambda: self.think(run, question, clock), how))
                case "tool", tool, x, how:
                    run.message("tool", self.attempt(lambda: use(run, self, tool, x), how))
                case "parallel", calls, how:
                    outcomes = run.parallel(*(request(run, self, tool, x) for tool, x in calls))
                    for (tool, x), outcome in zip(calls, outcomes, strict=True):
                        if isinstance(outcome, self.m.CallFailed) and how == "again":
                            outcome = self.attempt(lambda: use(run, self, tool, x), how)
                        run.message("tool", type(outcome).__name__ if isinstance(outcome, Exception) else outcome)
                case "ask", question, policy, x, how:
                    try:
                        args = run.ask(question, args={"x": x}, **lasts(x))
                    except self.m.Rejected as no:
                        if how == "raise":
                            raise
                        run.message("user", str(no))
                    else:
                        run.message("tool", self.attempt(lambda: run.call(self.tools[policy], **args), "again"))
                case ("signals",):
                    run.message("user", run.signals())
                case "sleep", seconds:
                    run.sleep(for_s=seconds)
                case "wait", seconds:
                    run.message("user", str(run.wait_signal("lab", seconds)))
                case "coin", heads, tails:
                    self.body(run, [tails if next(self.coins) else heads])

    def think(self, run: Any, question: str, clock: bool) -> Any:
        request = {"q": question, "seen": len(run.context["messages"])} | ({"now": next(self.clock)} if clock else {})
        return run.model("m", request, self.model, check=lambda answer: answer != "rejected")

    def attempt(self, fn: Callable[[], Any], how: str) -> Any:
        for tries in range(3):
            try:
                return fn()
            except self.m.CallFailed as failure:
                if how == "raise" or tries == 2:
                    raise
                if how == "catch":
                    return f"failed: {failure}"
            except self.m.CallOutcomeUnknown:
                if how == "raise":
                    raise
                return "unknown"
        raise AssertionError

    def gives_up(self, failure: Any, how: str) -> bool:
        """Whether it lets the failure of a step leave it. A new round and a retry go on counting attempts."""
        return how == "raise" or failure.attempt >= 3

    def line(self, run: Any) -> Any:
        got: list[Any] = []
        for i, (name, ops, how) in enumerate(self.program.steps):
            if how == "fallback":
                got.append(run.ask("go on?", args={"x": 3}, key=i))
            for _ in range(3):
                try:
                    got.append(run.do(f"{name}{i}", lambda: self.body(run, ops) or len(run.context["messages"])))
                    break
                except (self.m.StepFailed, self.m.Rejected, self.m.CallOutcomeUnknown) as failure:
                    if self.gives_up(failure, how):
                        raise
                    got.append(str(failure))
                    if how == "fallback":
                        run.do(f"{name}{i} failed", lambda: run.message("system", got[-1]))
                        break
        run.do("end", lambda: run.message("system", str(got)))
        return got

    def loop(self, run: Any) -> Any:
        while (i := run.memory.get("i", 0)) < len(self.program.steps):
            name, ops, how = self.program.steps[i]
            try:
                with run.step(name, repeat=True):
                    self.body(run, ops)
                    run.memory["i"] = i + 1
            except (self.m.StepFailed, self.m.Rejected, self.m.CallOutcomeUnknown) as failure:
                if self.gives_up(failure, how):
                    raise
                if how == "fallback":
                    with run.step("failed", repeat=True):
                        run.message("system", str(failure))
                        run.memory["i"] = i + 1
        return run.context["messages"][-1:]

    def keyed(self, run: Any) -> Any:
        for i, (name, ops, how) in enumerate(self.program.steps):
            while not run.done(name, i) and not run.done("failed", i):
                try:
                    with run.step(name, i):
                        self.body(run, ops)
                except (self.m.StepFailed, self.m.Rejected, self.m.CallOutcomeUnknown) as failure:
                    if self.gives_up(failure, how):
                        raise
                    if how == "fallback":
                        with run.step("failed", i):
                            run.message("system", str(failure))
        return len(run.context["messages"])

    def mixed(self, run: Any) -> Any:
        first = run.do("set up", lambda: self.body(run, self.program.steps[0][1]) or "ready")
        last = self.loop(run)
        return run.do("end", lambda: run.message("system", first) or [first, last])

    def each(self, run: Any) -> Any:
        steps = self.program.steps
        for turn in range(3):
            for i in run.each("item", range(len(steps))):
                try:
                    with run.step("item", i):
                        self.body(run, steps[i][1])
                except (self.m.StepFailed, self.m.Rejected, self.m.CallOutcomeUnknown) as failure:
                    if steps[i][2] == "raise":
                        raise
                    said = str(failure)
                    run.do("note", lambda: run.message("system", said), key=f"{i} {turn}")
        return len(run.context["messages"])

    def blind(self, run: Any) -> Any:
        for _, ops, _ in self.program.steps:
            with run.step("turn", repeat=True):
                self.body(run, ops)
        return len(run.context["messages"])

    # The machine and the people.

    def serve(self, run_id: str = "r", most: int = 400) -> Any:
        """Run it until it has ended, whatever strikes."""
        self.run_id = run_id
        for _ in range(most):
            try:
                state = self.journal.run(self.agent, run_id)
                if state.status in self.m.TERMINAL:
                    return state
                self.people(run_id)
            except self.m.Crash as crash:
                self.died(run_id, str(crash))
            except (self.m.Fenced, self.m.RunBusy, self.m.Refused):
                self.disown(run_id)
            except (self.m.PlanChanged, self.m.StepDiverged) as stop:
                if self.agent == getattr(self, self.program.style):
                    raise AssertionError(stop) from stop  # Hypothesis shrinks no BaseException
                raise
        raise AssertionError(f"no end: {self.store.state(run_id).status}")

    def disown(self, run_id: str) -> None:
        self.store.gone.add((run_id, self.store.state(run_id).epoch))

    def died(self, run_id: str, where: str) -> None:
        self.crashes += 1
        lost = len(self.world.paid) - self.purged_ends - len(self.events("model.completed", "model.failed"))
        if lost > self.lost and not self.stalls:
            assert where in ("after failure", "after effect", "before model.completed", "before model.failed")
        self.lost = lost
        if self.power:
            before = {id: list(log) for id, log in self.store.log.items()}
            self.store.power_cut()
            assert all(before[id][: len(log)] == log for id, log in self.store.log.items()), "lost more than a suffix"
        self.seen = {id: list(log) for id, log in self.store.log.items()}
        self.disown(run_id)
        self.boot()

    def people(self, run_id: str) -> None:
        state = self.store.state(run_id)
        data = next((event.data for event in reversed(self.store.log[run_id]) if event.type == "run.waiting"), {})
        timed = [*data.get("timers", []), *data.get("signals", [])]
        if state.status == "waiting" and timed and data.get("due"):
            self.world.now += PAUSES["busy"] + 1
        for id in list(state.waits) if state.status == "waiting" else []:
            if id in timed:
                continue
            if id in self.store.log:  # a child: whatever that one waits for
                self.people(self.store.newest[id])
            elif id not in state.approvals:
                self.say(run_id, id)
            elif state.approvals[id]["decision"] is None:
                x = state.approvals[id]["args"]["x"]
                decision = ["approved", "edited", "rejected"][x % 3]
                self.journal.answer(run_id, id, decision, {"x": x + 10} if decision == "edited" else None)

    def say(self, run_id: str, id: str) -> None:
        """A truthful word about a call of which nobody knows."""
        call = self.store.state(run_id).calls.get(id)
        if call is None or not call.unresolved or call.args == ERASED:
            return
        if id in self.world.effects:
            self.comparable &= call.status != "open" or self.nature(call.policy, call.args["x"], self.ends(id)) == "ok"
            self.journal.resolve(run_id, id, "happened", self.result(call.policy, call.args, id))
        else:
            self.journal.resolve(run_id, id, "did_not_happen")

    def ends_for_good(self, act: Callable[[], Any]) -> None:
        """Erase or purge something; the judges keep what they would need of it."""
        before = {id: list(log) for id, log in self.store.log.items()}
        known = {id: set.union(*self.evidence(self.store.state(id).scope)) for id in before}
        ends = len(self.events("model.completed", "model.failed"))
        try:
            act()
        finally:
            purged = [id for id in before if self.store.state(id).status == "purged"]
            self.purged_calls |= set[str]().union(*(known[id] for id in purged))
            self.purged_ends += ends - len(self.events("model.completed", "model.failed"))
            self.seen = {
                id: log
                for id, log in self.seen.items()
                if before.get(id) == self.store.log[id][: len(before.get(id, []))]
            }

    # The judges.

    def judge(self, run_id: str = "r") -> None:
        """What must hold after anything."""
        for id, log in self.store.log.items():
            assert [event.seq for event in log] == list(range(1, len(log) + 1)), "dense"
            assert self.seen.get(id, []) == log[: len(self.seen.get(id, []))], "append-only"
            assert legal([event.type for event in log if event.type.startswith("run.")]), "transitions"
            if log[-1].type != "run.purged":
                self.refold(id)
        happened = Counter(self.world.effects)
        assert set(happened.values()) <= {1}, "an effect happened twice"
        assert len(self.store.table) == len(set(self.store.table)), "a transaction committed twice"
        state = self.store.state(run_id)
        suspects, known = self.evidence(state.scope)
        reported = {id for id in state.unresolved() if (state.scope, id) not in self.store.effects}
        assert set(happened) <= self.purged_calls.union(
            *(known | suspects for known, suspects in map(self.evidence, self.store.newest))
        )
        assert reported == suspects - known, "what is unknown is reported, and only that"
        paid, ends = len(self.world.paid), self.purged_ends + len(self.events("model.completed", "model.failed"))
        assert ends <= paid <= ends + self.crashes + self.stalls, "paid without a record"
        assert self.stalls or paid == ends + self.lost, "paid again for a recorded answer"
        COUNTS.update(runs=len(self.store.log), crashes=self.crashes, stalls=self.stalls, events=len(self.store.order))

    def refold(self, id: str, *seqs: int) -> None:
        """P8: fold(checkpoint + tail) = fold(all) = what the store went on folding, byte for byte."""
        log, folded = self.store.log[id], self.store.state(id).dump()
        for seq in seqs or (1 + self.world.ticks % len(log),):
            state = self.m.State.load(self.store.state(id, seq).dump())
            for event in log[seq:]:
                state.apply(event)
            assert state.dump() == folded, f"checkpoint at {seq}"

    def evidence(self, scope: str = "r") -> tuple[set[str], set[str]]:
        """From the raw events of a line: calls that may have happened, and calls that are known to have happened."""
        maybe: dict[str, set[int]] = {}
        known = set()
        line = [log for id, log in self.store.log.items() if self.store.state(id).scope == scope]
        for event in (e for log in line for e in log if e.type in CALL_EVENTS and e.data):
            id, attempt = event.data["call_id"], event.data["attempt"]
            if event.type == "tool.started" and event.data["policy"] in ("keyed", "unsafe"):
                maybe.setdefault(id, set()).add(attempt)
            elif event.type == "tool.completed" or event.data.get("outcome") == "happened":
                known.add(id)
            elif event.data.get("did_not_happen"):
                maybe.get(id, set()).discard(attempt)
            elif event.data.get("outcome") == "did_not_happen":
                maybe[id] = {a for a in maybe[id] if (a != attempt if event.data.get("late") else a > attempt)}
        return {id for id, attempts in maybe.items() if attempts}, known

    def facts(self, run_id: str = "r") -> dict[str, Any]:
        """What must not depend on interruptions."""
        state = self.store.state(run_id)
        return {
            "status": state.status,
            "output": state.output,
            "context": state.context,
            "effects": sorted(self.world.effects),
            "table": sorted(self.store.table),
            "answers": len(self.events("model.completed", "model.failed")),
        }


NEXT = {
    "": ["queued", "opened"],
    "queued": ["claimed", "cancelled", "cancel_requested"],
    "claimed": ["waiting", "retry_scheduled", "requeued", "completed", "failed", "cancelled", "cancel_requested"],
    "waiting": ["claimed", "requeued", "cancelled", "cancel_requested"],
    "retry_scheduled": ["requeued", "cancelled", "cancel_requested"],
    "requeued": ["claimed", "waiting", "cancelled", "cancel_requested"],
    "opened": ["erased", "purged"],
}
NEXT |= {end: ["erased", "purged"] for end in ("completed", "failed", "cancelled")}


def legal(types_: list[str]) -> bool:
    """The state machine, seen from outside; a request to cancel changes no status, nor does an erasure."""
    last = ""
    for type_ in (t.removeprefix("run.") for t in types_):
        if type_ not in NEXT.get(last, []):
            return False
        last = last if type_ in ("cancel_requested", "erased") else type_
    return True


def request(run: Any, lab: Lab, tool: str, x: int = 1) -> tuple[Any, Any]:
    return lab.tools[tool], {"x": x} | ({"of": run.state.scope} if tool in OWN else {})


def lasts(x: int) -> dict[str, Any]:
    """How long a question of random programs may be answered: some have an hour, and some of these a default then."""
    return {} if x % 2 else {"expires_in": 3600, "default": {"x": x + 20} if x % 4 else None}


def use(run: Any, lab: Lab, tool: str, x: int = 1) -> Any:
    called, args = request(run, lab, tool, x)
    return run.call(called, **args)


def uninterrupted(m: Any, program: Program, **how: Any) -> Lab:
    lab = Lab(m, program, **how)
    lab.serve()
    lab.judge()
    return lab


def alike(base: Lab, lab: Lab, *but: str) -> None:
    """The interrupted run ended as the other one."""
    lab.serve()
    lab.judge()
    if lab.comparable:
        expected, actual = base.facts(), lab.facts()
        assert {k: v for k, v in expected.items() if k not in but} == {k: v for k, v in actual.items() if k not in but}
        COUNTS["alike"] += 1


def patiently(lab: Lab, run_id: str, act: Callable[[], Any]) -> None:
    """A person tries again when the machine dies under them."""
    while True:
        try:
            return act()
        except lab.m.Crash as crash:
            lab.died(run_id, str(crash))


def begin(lab: Lab, run_id: str, link: str, of: str, at: int | None = None) -> None:
    patiently(lab, run_id, lambda: lab.store.log.get(run_id) or lab.journal.start(run_id, link, of, at))


def blind(lab: Lab) -> Lab:
    """Its agent takes its turn from a local variable."""
    lab.agent = lab.blind
    return lab


class AsyncLab(Lab):
    """The same agents for asyncio: each verb that may wait is awaited. `m` is a `product.AsyncProduct`."""

    async def body(self, run: Any, ops: list[Any]) -> None:  # type: ignore[override]
        for op in ops:
            match op:
                case "say", text:
                    run.message("user", f"{text}{len(run.context['messages'])}")
                case "count", key:
                    run.memory[key] = run.memory.get(key, 0) + 1
                case "plan", task:
                    run.plan(task, "done")
                case "boom", times:
                    if run.state.step["attempt"] <= times:
                        raise ValueError("boom")
                case "model", question, clock, how:
                    answer = await self.attempt(lambda: self.think(run, question, clock), how)
                    run.message("assistant", answer)
                case "tool", tool, x, how:
                    run.message("tool", await self.attempt(lambda: use(run, self, tool, x), how))
                case "parallel", calls, how:
                    outcomes = await run.parallel(*(request(run, self, tool, x) for tool, x in calls))
                    for (tool, x), outcome in zip(calls, outcomes, strict=True):
                        if isinstance(outcome, self.m.CallFailed) and how == "again":
                            outcome = await self.attempt(lambda: use(run, self, tool, x), how)
                        run.message("tool", type(outcome).__name__ if isinstance(outcome, Exception) else outcome)
                case "ask", question, policy, x, how:
                    try:
                        args = await run.ask(question, args={"x": x}, **lasts(x))
                    except self.m.Rejected as no:
                        if how == "raise":
                            raise
                        run.message("user", str(no))
                    else:
                        run.message("tool", await self.attempt(lambda: run.call(self.tools[policy], **args), "again"))
                case ("signals",):
                    run.message("user", await run.signals())
                case "sleep", seconds:
                    await run.sleep(for_s=seconds)
                case "wait", seconds:
                    run.message("user", str(await run.wait_signal("lab", seconds)))
                case "coin", heads, tails:
                    await self.body(run, [tails if next(self.coins) else heads])

    async def attempt(self, fn: Callable[[], Any], how: str) -> Any:
        for tries in range(3):
            try:
                return await fn()
            except self.m.CallFailed as failure:
                if how == "raise" or tries == 2:
                    raise
                if how == "catch":
                    return f"failed: {failure}"
            except self.m.CallOutcomeUnknown:
                if how == "raise":
                    raise
                return "unknown"
        raise AssertionError

    async def length(self, run: Any, ops: list[Any]) -> int:
        await self.body(run, ops)
        return len(run.context["messages"])

    async def line(self, run: Any) -> Any:
        got: list[Any] = []
        for i, (name, ops, how) in enumerate(self.program.steps):
            if how == "fallback":
                got.append(await run.ask("go on?", args={"x": 3}, key=i))
            for _ in range(3):
                try:
                    got.append(await run.do(f"{name}{i}", lambda: self.length(run, ops)))
                    break
                except (self.m.StepFailed, self.m.Rejected, self.m.CallOutcomeUnknown) as failure:
                    if self.gives_up(failure, how):
                        raise
                    got.append(str(failure))
                    if how == "fallback":
                        await run.do(f"{name}{i} failed", lambda: run.message("system", got[-1]))
                        break
        await run.do("end", lambda: run.message("system", str(got)))
        return got

    async def loop(self, run: Any) -> Any:
        while (i := run.memory.get("i", 0)) < len(self.program.steps):
            name, ops, how = self.program.steps[i]
            try:
                async with run.step(name, repeat=True):
                    await self.body(run, ops)
                    run.memory["i"] = i + 1
            except (self.m.StepFailed, self.m.Rejected, self.m.CallOutcomeUnknown) as failure:
                if self.gives_up(failure, how):
                    raise
                if how == "fallback":
                    async with run.step("failed", repeat=True):
                        run.message("system", str(failure))
                        run.memory["i"] = i + 1
        return run.context["messages"][-1:]

    async def keyed(self, run: Any) -> Any:
        for i, (name, ops, how) in enumerate(self.program.steps):
            while not run.done(name, i) and not run.done("failed", i):
                try:
                    async with run.step(name, i):
                        await self.body(run, ops)
                except (self.m.StepFailed, self.m.Rejected, self.m.CallOutcomeUnknown) as failure:
                    if self.gives_up(failure, how):
                        raise
                    if how == "fallback":
                        async with run.step("failed", i):
                            run.message("system", str(failure))
        return len(run.context["messages"])

    async def mixed(self, run: Any) -> Any:
        async def ready() -> str:
            await self.body(run, self.program.steps[0][1])
            return "ready"

        first = await run.do("set up", ready)
        last = await self.loop(run)
        return await run.do("end", lambda: run.message("system", first) or [first, last])

    async def each(self, run: Any) -> Any:
        steps = self.program.steps
        for turn in range(3):
            for i in run.each("item", range(len(steps))):
                try:
                    async with run.step("item", i):
                        await self.body(run, steps[i][1])
                except (self.m.StepFailed, self.m.Rejected, self.m.CallOutcomeUnknown) as failure:
                    if steps[i][2] == "raise":
                        raise
                    said = str(failure)
                    await run.do("note", lambda: run.message("system", said), key=f"{i} {turn}")
        return len(run.context["messages"])

    async def blind(self, run: Any) -> Any:
        for _, ops, _ in self.program.steps:
            async with run.step("turn", repeat=True):
                await self.body(run, ops)
        return len(run.context["messages"])
