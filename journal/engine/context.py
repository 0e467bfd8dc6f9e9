"""What a run knows, as its agent sees it: state, working memory, plan, transcript, prompt; and how it writes them.

A step is a transaction on all this: inside it the agent sees what the step has made of it, outside what is committed.
"""

from __future__ import annotations

import copy
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from runjournal.log import events as e
from runjournal.log import failpoint
from runjournal.log.base import Event, Json
from runjournal.log.codec import plain
from runjournal.projections.costs import Costs
from runjournal.projections.plan import Task
from runjournal.projections.prompt import fingerprints, joined
from runjournal.projections.transcript import Message

from . import failures as f
from .asking import Asker, AskOptions, Wording, worded
from .block import Asked, CallHere, StepBlock
from .callees import ModelOptions, ModelTarget, Target, ToolTarget
from .children import ChildOptions, asked_child
from .commands import Verb
from .core import Core
from .media import RunMedia
from .parts import RunParts
from .requests import copied
from .resuming import ResumeReport
from .tools import IN_TOOL, Tool, looking

T = TypeVar("T")


class PlanView:
    """The plan: `tasks`, `next()`, and how to change it, inside a step."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts

    @property
    def tasks(self) -> list[Task]:
        """Return copies of all tasks, in order: {id, title, status, note?}."""
        return self._parts.tasks()

    def next(self) -> Task | None:
        """Return the first task that is being done, else the first to do, or None."""
        for status in ("doing", "todo"):
            for task in self.tasks:
                if task["status"] == status:
                    return task
        return None

    def set(self, tasks: Sequence[Task]) -> None:
        """Replace the whole plan."""
        self._parts.note(e.PlanSet([f.written("run.plan", dict(task)) for task in tasks]))

    def update(self, task: str | Task, status: str, note: str | None = None) -> None:
        """Set the status of a task: todo, doing, done or dropped."""
        self._parts.note(e.PlanUpdated(task if isinstance(task, str) else task["id"], status, note))

    def done(self, task: str | Task, note: str | None = None) -> None:
        """Set the status of a task to done."""
        self.update(task, "done", note)


class StateView:
    """The folded state as the agent may see it: inside a step base and overlay, outside a step the base alone."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts

    @property
    def messages(self) -> list[Message]:
        """Return the messages of the context, in order; copies."""
        return [
            message
            if isinstance(message.content, str) and message.raw is None
            else message._replace(content=copied(message.content), raw=copied(message.raw))
            for message in self._parts.messages()
        ]

    @property
    def memory(self) -> dict[str, Json]:
        """Return a copy of the working memory."""
        return dict(MemoryView(self._parts).items())

    @property
    def plan(self) -> PlanView:
        """Return the plan."""
        return PlanView(self._parts)

    @property
    def costs(self) -> Costs:
        """Return what this run has spent: tokens and money."""
        return Costs.load(copy.deepcopy(self._parts.core.state.costs.dump()))

    @property
    def completed(self) -> list[str]:
        """Return the ids of the last completed steps, oldest first."""
        return list(self._parts.core.state.steps.completed)


class MemoryView(MutableMapping[str, Json]):
    """The working memory, as `run.memory`. Reading returns copies; setting a key appends an event."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts

    def __getitem__(self, key: str) -> Json:
        given = copied(self._parts.value(self._parts.memory()[key]))
        if self._parts.steps.inside:
            self._parts.lent.lend(key, given)
        return given

    def __setitem__(self, key: str, value: Json) -> None:
        self._parts.note(e.MemorySet(key, f.written(f"run.memory[{key!r}]", value)))
        self._parts.lent.forget(key)

    def __delitem__(self, key: str) -> None:
        if key not in self._parts.memory():
            raise KeyError(key)
        self._parts.note(e.MemoryDeleted(key))
        self._parts.lent.forget(key)

    def setdefault(self, key: str, default: Json = None) -> Json:
        """Return the value of a key, set to `default` first if it isn't there.

        The value is a copy, as everywhere here.
        """
        if key not in self:
            self[key] = default
        return self[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts.memory())

    def __len__(self) -> int:
        return len(self._parts.memory())

    def reset(self) -> None:
        """Delete all keys."""
        self._parts.note(e.MemoryReset())


class TurnVerbs(NamedTuple):
    """What a turn of an agent's loop does with its run; what may wait is awaited, in plain threads too.

    `call(tool, args, id)` returns the recorded JSON, whatever `into` would make of it; `id` is that of the call in the
    model's message. `together(works)` does some things
    at the same time, where the driver can.
    """

    core: Core
    input: Json
    messages: Callable[[], list[Message]]
    write: Callable[..., None]
    step: Callable[[str], AbstractAsyncContextManager[StepBlock]]
    model: Callable[[str, Json, Callable[[Json], Any], ModelOptions], Awaitable[Json]]
    ask: Callable[[str, Mapping[str, Json], AskOptions], Awaitable[dict[str, Json]]]
    call: Callable[[Tool[..., Any], Mapping[str, Json], str], Awaitable[Json]]
    together: Callable[[Sequence[Callable[[], Awaitable[Any]]]], Awaitable[list[Any]]]


class Context:
    """What the runs of both drivers have in common: all but how they wait."""

    def __init__(self, parts: RunParts, call_here: CallHere) -> None:
        self._call_here = call_here  # a tool that was called as a function, in the step of this context
        self._parts = parts
        self._core = parts.core
        self._steps = parts.steps
        self._caller = parts.caller
        self._asker = Asker(parts.caller)
        self._memory = MemoryView(parts)

    @property
    def id(self) -> str:
        """Return the run's id."""
        return self._core.lineage.run_id

    @property
    def input(self) -> Json:
        """Return what the run was queued with."""
        return copy.deepcopy(self._core.lineage.input())

    @property
    def state(self) -> StateView:
        """Return what the run knows: messages, memory, plan, costs, completed steps; to read."""
        return StateView(self._parts)

    @property
    def resumed(self) -> ResumeReport | None:
        """Return what the run goes on from, and why, if this process has taken it up; None at the first start.

        It says what was done when the run was taken up, and stays so. Its `prompt` is known once the agent has pinned
        its own. Another process is told otherwise: what a step asks for must not hang on it, see `brief`.
        """
        return self._parts.resumed()

    def brief(self) -> str:
        """Return where the plan stands, as text for the model: "4 of 10 done, next: …", and the open tasks.

        Behind that: what the run was resumed from, who hasn't answered, and what of the budget is left. It is made of
        the log alone: of the plan as the step sees it, and all else as it was when the attempt of the open step began.
        So a step that is entered again after a crash is told the same, and its requests are the same.
        """
        return self._parts.brief()

    @property
    def memory(self) -> MemoryView:
        """Return a copy of the working memory."""
        return self._memory

    @property
    def plan(self) -> PlanView:
        """Return the plan, to read and, inside a step, to change: `set`, `update`, `done`."""
        return PlanView(self._parts)

    def message(self, role: str, content: Json, *, message_id: str | None = None, raw: Json = None) -> None:
        """Append to the transcript: role is system, user, assistant or tool."""
        content, raw = f.written("run.message", content), f.written("run.message, raw,", raw)
        self._parts.note(e.MessageAppended(role, content, message_id, raw=raw))

    def attach(self, data: bytes, media_type: str, name: str | None = None) -> dict[str, Json]:
        """Bring bytes into the run: a screenshot, a PDF, audio; return the reference to them, a plain JSON object.

        {"$blob", "bytes", "media_type", "name"} may stand anywhere: in a message, in arguments and results, in memory,
        in the run's output. `read_blob` returns the bytes. The same bytes are stored once, and in a private run
        encrypted. It may be called anywhere in the agent, and in its tools and models' calls, too, where the function
        `runjournal.attach` is the same without the run. Raises InvalidArgument; TooLarge over blob_bytes_max.
        """
        return self._media.attach(data, media_type, name)

    def read_blob(self, ref: Json) -> bytes:
        """Return the bytes that a reference leads to, verified by its SHA-256; allowed wherever `attach` is.

        Raises InvalidArgument for what is no reference, MissingBlob, ChangedBlob, and NotAllowed for bytes of a run
        that was erased.
        """
        return self._media.read(ref)

    @property
    def _media(self) -> RunMedia:
        if IN_TOOL.get() is not self._core:
            self._core.alive()
        return self._core.media

    def pin_prompt(self, **layers: str) -> str:
        """Pin the system prompt, layer by layer, in this order; return its text. A no-op if it is pinned already.

        If another prompt was pinned before, this one is pinned in its place, and a note in the log names the layers
        that differ.
        """
        text, today, before = joined(plain(layers)), fingerprints(plain(layers)), self._core.state.prompt
        each = today.layers
        if before.fingerprint != today.whole:
            events: list[Event] = [e.PromptPinned(today.whole, each, text)]
            if before.fingerprint is not None:
                differ = ", ".join(before.changed_layers(each)) or "their order"
                events.append(e.NoteAdded(f"the system prompt isn't the one pinned before: {differ}", "prompt_changed"))
            self._core.alive()
            self._parts.drive(self._core.append(*events))
        self._parts.pinned = today
        return text

    def _signals(self) -> Verb[list[Json]]:
        """Return what had arrived when the attempt began, and record that the step has seen it."""
        core, entry = self._core, self._caller.entry()
        opened = core.state.steps.open
        if opened is None or opened.id != entry.step:
            return []
        waited = set(opened.waited.values())
        arrived = [signal for signal in core.state.inbox.arrived(opened.since) if signal[1] not in waited]
        if opened.took is None:
            yield from core.append(e.SignalTaken([signal[1] for signal in arrived]))
        core.looked = True
        events = [core.lineage.event_at(signal[0]) for signal in arrived]
        return [event.payload for event in events if isinstance(event, e.SignalReceived)]

    # Steps.

    def done(self, name: str, key: str | int | None = None) -> bool:
        """Return whether this step is complete; if it is, the agent has passed it."""
        return self._steps.has_done(name, key)

    def each(self, name: str, items: Iterable[T], key: Callable[[T], str] = str) -> Iterator[T]:
        """Yield the items whose step is still to be done. A loop with a step for each item survives a crash.

        Raises StepDone at a second item of an equal key.
        """
        seen: set[str] = set()
        for item in items:
            item_key = looking(self._core, partial(key, item))
            if str(item_key) in seen:
                self._core.refuse(
                    f.StepDone(
                        f"run.each({name!r}): two items have the key {str(item_key)[:80]!r}, and the second one would "
                        "be left out: give each a key of its own (key=), or leave out what is there twice"
                    )
                )
            seen.add(str(item_key))
            if not self.done(name, item_key):
                yield item
        if not seen:
            self._steps.had_no_items(name)

    def _block(self, asked: Asked) -> StepBlock:
        return StepBlock(self._steps, asked, self._call_here, self._parts.lent.check, self._parts.lent.clear)

    @contextmanager
    def _asked(self, name: str, key: str | int | None, *, repeat: bool) -> Generator[StepBlock]:
        """Return the block of the step that is asked for, and note that it has had its turn."""
        step_id, kind, blind = self._steps.plan_step(name, key, repeat=repeat)
        uses = self._core.state.steps.uses.get(name, 0) if repeat else 0
        yield self._block(Asked(step_id, name, kind, key, blind))
        if repeat:
            self._steps.turns[name] = uses + 1

    async def _do(self, name: str, key: str | int | None, body: Callable[[], Awaitable[Json]]) -> Any:
        """Return the recorded result of a step; its `body` makes it once."""
        driver = self._core.driver
        if driver.taken:
            await driver.take_floor()  # until the step is begun, nothing comes between
        try:
            step_id, done = self._steps.plan_do(name, key)
            if not done:
                async with self._block(Asked(step_id, name, "do", key)) as block:
                    block.result = f.given_back(f"the function of step {name}", await body())
            self._steps.passed.add(step_id)
            return copied(self._steps.result_of(step_id))
        finally:
            if driver.taken:
                driver.give_floor()

    def _made(self, name: str, fn: Callable[..., Any], args: Sequence[Any]) -> Callable[[], Awaitable[Any]]:
        """Return what makes the result of a `do`."""
        who, value = f"the function of step {name}", self._core.driver.value
        if failpoint.hit is not None:
            return lambda: value(who, failpoint.around("do", name, lambda: fn(*args)))
        return lambda: value(who, fn(*args))

    # Calls and questions.

    def _bound(
        self, tool: Tool[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[ToolTarget, dict[str, Json], str]:
        """Return a call of a tool as the engine takes it: the target, its args by name, its own key.

        Raises NotInStep, CallFailed for args that the tool doesn't take: no event says so, for the code says it again.
        """
        self._caller.entry()
        bound = tool.bind(args, kwargs)
        target = ToolTarget(tool)
        self._core.driver.check(target)
        return target, bound, tool.own_key(bound) if tool.key else ""

    def _call(self, tool: Tool[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Verb[Any]:
        return self._caller.call(*self._bound(tool, args, kwargs))

    def _parallel(self, asks: Sequence[tuple[Tool[..., Any], Mapping[str, Any]]]) -> Verb[list[Any]]:
        """Make calls that are in flight together; those whose args the tool doesn't take are failures at once."""
        unbound, bound = dict[int, f.CallFailed](), list[tuple[Target, dict[str, Json], str]]()
        for place, (tool, kwargs) in enumerate(asks):
            try:
                bound.append(self._bound(tool, (), kwargs))
            except f.CallFailed as failure:
                unbound[place] = failure
        outcomes = iter((yield from self._caller.parallel(bound)))
        return [unbound[place] if place in unbound else next(outcomes) for place in range(len(asks))]

    def _model(self, name: str, request: Json, call: Callable[[Json], Any], how: ModelOptions) -> Verb[Json]:
        target = self._parts.priced(ModelTarget(name, call, **how))
        self._core.driver.check(target)
        now = self._core.lineage.clock.now()
        asked = self._core.locked(lambda: self._parts.requests.asked(name, request, now))
        return self._caller.call(target, {"request": asked})

    async def _ask(self, key: str | int | None, question: Wording) -> dict[str, Json]:
        """Ask a question; outside a step it is a step of its own."""

        async def answer() -> dict[str, Json]:
            return await self._core.drive(self._asker.ask(question))

        if self._steps.inside:
            return await answer()
        given: dict[str, Json] = await self._do(question.what, key, answer)
        return given

    # Children.

    def _spawn(self, agent: Callable[..., Any], input: Json, how: ChildOptions) -> Verb[str]:
        """Begin a child. Raises WrongArgument for what can't be one."""
        return self._parts.children.spawn(agent, asked_child(agent, input, how, awaits=self._core.driver.awaits))

    def _ask_all(self, questions: Sequence[Mapping[str, Any]]) -> Verb[list[dict[str, Json] | f.Rejected]]:
        """Ask several questions at once, each the keyword arguments of `ask`. Raises WrongArgument."""
        self._caller.entry()
        asked = [dict(each) for each in questions]
        return self._asker.ask_all(
            [worded(each.pop("action", ""), each.pop("args", None), cast("AskOptions", each)) for each in asked]
        )

    # Times and signals.

    async def _sleep(self, for_s: float | None, until: datetime | None, key: str | int | None) -> None:
        """Sleep; outside a step it is a step of its own. Raises WrongArgument."""
        timers = self._parts.timers
        timers.check_sleep(for_s, until)

        async def over() -> None:
            await self._core.drive(timers.sleep(for_s, until))

        if self._steps.inside:
            await over()
        else:
            await self._do("sleep until" if for_s is None else f"sleep {for_s:g}s", key, over)

    async def _wait_signal(self, name: str, timeout_s: float | None, key: str | int | None) -> Json:
        """Wait for a signal; outside a step it is a step of its own. Raises WrongArgument."""
        timers = self._parts.timers
        timers.check_wait(name, timeout_s)

        async def told() -> Json:
            return await self._core.drive(timers.wait_signal(name, timeout_s))

        if self._steps.inside:
            return await told()
        return await self._do(f"wait_signal {name}", key, told)

    # The loop of an agent.

    def _turn_verbs(self) -> TurnVerbs:
        """Return what `run.turn` does with this run."""
        core = self._core

        @asynccontextmanager
        async def step(name: str) -> AsyncGenerator[StepBlock]:
            with self._asked(name, None, repeat=True) as block:
                yield block

        async def model(name: str, request: Json, call: Callable[[Json], Any], how: ModelOptions) -> Json:
            return await core.drive(self._model(name, request, call, how))

        async def use(tool: Tool[..., Any], args: Mapping[str, Json], provider_call_id: str) -> Json:
            target, bound, own_key = self._bound(tool, (), args)
            target.into, target.provider_call_id = None, provider_call_id
            return await core.drive(self._caller.call(target, bound, own_key))

        async def ask(action: str, args: Mapping[str, Json], how: AskOptions) -> dict[str, Json]:
            return await self._ask(None, worded(action, args, how))

        return TurnVerbs(
            core, self.input, self._parts.messages, self.message, step, model, ask, use, core.driver.together
        )

    # The run's end.

    def _complete(self, output: Json) -> Verb[NoReturn]:
        return self._steps.end(e.RunCompleted(f.given_back("the agent", output)))

    def _fail(self, message: str, type: str) -> Verb[NoReturn]:
        error = {"type": f.storable_text(type), "message": f.storable_text(message)}
        return self._steps.end(e.RunFailed(error, [], "error"))
