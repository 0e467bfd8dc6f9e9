"""What a run knows, as its agent sees it: state, working memory, plan, transcript, prompt; and how it writes them.

A step is a transaction on all this: inside it the agent sees what the step has made of it, outside what is committed.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import (
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from runjournal.log import events as e
from runjournal.log.base import BlobRef, Event, Json
from runjournal.log.codec import dumps, plain
from runjournal.log.shapes import kind_of
from runjournal.projections.costs import Costs
from runjournal.projections.plan import Plan, Task
from runjournal.projections.transcript import CONTEXT_TYPES, Message, messages

from . import failures as f
from .block import Asked, CallHere, StepBlock
from .callees import ModelOptions, ModelTarget, Target, ToolTarget
from .calls import Caller
from .commands import Verb
from .driver import finished
from .tools import Tool

T = TypeVar("T")


class PlanView:
    """The plan: `tasks`, `next()`, and how to change it, inside a step."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def tasks(self) -> list[Task]:
        """All tasks, in order, as copies: {id, title, status, note?}."""
        return self._context.plan_of(self._context.core.state.plan)

    def next(self) -> Task | None:
        """The first task that is being done, else the first to do, or None."""
        for status in ("doing", "todo"):
            for task in self.tasks:
                if task["status"] == status:
                    return task
        return None

    def set(self, tasks: Sequence[Task]) -> None:
        """The whole plan anew."""
        self._context.note(e.PlanSet([plain(dict(task)) for task in tasks]))

    def update(self, task: str | Task, status: str, note: str | None = None) -> None:
        """Give a task a status: todo, doing, done or dropped."""
        self._context.note(e.PlanUpdated(task if isinstance(task, str) else task["id"], status, note))

    def done(self, task: str | Task, note: str | None = None) -> None:
        """This task is done."""
        self.update(task, "done", note)


class StateView:
    """The folded state as the agent may see it: inside a step base and overlay, outside the base alone."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def messages(self) -> list[Message]:
        """The messages of the context, in order."""
        return self._context.read_messages()

    @property
    def memory(self) -> dict[str, Json]:
        """The working memory, as a copy."""
        return dict(self._context.memory.items())

    @property
    def plan(self) -> PlanView:
        """The plan."""
        return self._context.plan

    @property
    def costs(self) -> Costs:
        """What the run has spent, in this run: tokens and money."""
        return Costs.load(copy.deepcopy(self._context.core.state.costs.dump()))

    @property
    def completed(self) -> list[str]:
        """The ids of the last completed steps, oldest first."""
        return list(self._context.core.state.steps.completed)


class MemoryView(MutableMapping[str, Json]):
    """`run.memory`: copies come out, events go in."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def _values(self) -> dict[str, Json]:
        context = self._context
        context.core.looked = True
        memory = context.core.state.memory
        return memory.view if context.steps.inside else memory.committed

    def __getitem__(self, key: str) -> Json:
        value = self._values()[key]
        if isinstance(value, BlobRef):
            value = self._context.core.lineage.blob(value)
        given = copy.deepcopy(value)
        self._context.lend(key, given)
        return given

    def __setitem__(self, key: str, value: Json) -> None:
        self._context.note(e.MemorySet(key, plain(value)))
        self._context.forget(key)

    def __delitem__(self, key: str) -> None:
        if key not in self._values():
            raise KeyError(key)
        self._context.note(e.MemoryDeleted(key))
        self._context.forget(key)

    def setdefault(self, key: str, default: Json = None) -> Json:
        """As a dict's; what it gives is a copy, too."""
        if key not in self:
            self[key] = default
        return self[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def reset(self) -> None:
        """Forget all keys."""
        self._context.note(e.MemoryReset())


class Context:
    """What both drivers' runs have in common: all but how they wait."""

    def __init__(self, caller: Caller, call_here: CallHere) -> None:
        self._call_here = call_here  # a tool that was called as a function, in the step of this context
        self.core = caller.core
        self.steps = caller.steps
        self.caller = caller
        self._lent: list[tuple[str, Any, bytes]] = []
        self.memory = MemoryView(self)

    def drive(self, verb: Verb[T]) -> T:
        """Run a verb that blocks, or waits for nothing but appends."""
        return finished(self.core.drive(verb))

    @property
    def id(self) -> str:
        """The run's id."""
        return self.core.lineage.run_id

    @property
    def input(self) -> Json:
        """What the run was queued with."""
        return copy.deepcopy(self.core.lineage.input())

    @property
    def state(self) -> StateView:
        """What the run knows: messages, memory, plan, costs, completed steps; to read."""
        return StateView(self)

    @property
    def plan(self) -> PlanView:
        """The plan, to read and, inside a step, to change: `set`, `update`, `done`."""
        return PlanView(self)

    def plan_of(self, plan: Plan) -> list[Task]:
        """The tasks as this context sees them."""
        self.core.looked = True
        return [dict(task) for task in (plan.view if self.steps.inside else plan.base)]

    def note(self, event: Event) -> None:
        """Append an event of the context to the overlay of the open step. Raises NotInStep."""
        self.core.alive()
        if not self.steps.inside:
            raise f.NotInStep("messages, memory and plan are written inside a step: `with run.step(name):`")
        self.drive(self.core.append(event))

    def message(self, role: str, content: Json, *, message_id: str | None = None, raw: Json = None) -> None:
        """Append to the transcript: role is system, user, assistant or tool."""
        self.note(e.MessageAppended(role, plain(content), message_id, raw=plain(raw)))

    def read_messages(self) -> list[Message]:
        """The messages of the context."""
        self.core.looked = True
        inside = self.steps.inside
        return [
            message for message in messages(self.core.lineage.records(CONTEXT_TYPES)) if inside or message.committed
        ]

    def pin_prompt(self, **layers: str) -> str:
        """Pin the system prompt, layer by layer, in this order; gives its text. A no-op if it is pinned already.

        Another one than was pinned before is pinned, too, and a note in the log names the layers that differ.
        """
        text = "\n\n".join(layers.values())
        fingerprint, before = hashlib.sha256(text.encode()).hexdigest(), self.core.state.prompt
        if before.fingerprint != fingerprint:
            each = {name: hashlib.sha256(layer.encode()).hexdigest() for name, layer in layers.items()}
            events: list[Event] = [e.PromptPinned(fingerprint, each, text)]
            if before.fingerprint is not None:
                differ = ", ".join(before.changed_layers(each)) or "their order"
                events.append(e.NoteAdded(f"the system prompt isn't the one pinned before: {differ}", "prompt_changed"))
            self.core.alive()
            self.drive(self.core.append(*events))
        return text

    def _signals(self) -> Verb[list[Json]]:
        """What had arrived when the attempt began; it is on record that the step has seen it."""
        core, entry = self.core, self.caller.entry()
        opened = core.state.steps.open
        if opened is None or opened.id != entry.step:
            return []
        arrived = core.state.inbox.arrived(opened.since)
        if opened.took is None:
            yield from core.append(e.SignalTaken([signal[1] for signal in arrived]))
        core.looked = True
        events = [core.lineage.event_at(signal[0]) for signal in arrived]
        return [event.payload for event in events if isinstance(event, e.SignalReceived)]

    # Steps.

    def done(self, name: str, key: str | int | None = None) -> bool:
        """Whether this step is complete; then the agent has passed it."""
        return self.steps.has_done(name, key)

    def each(self, name: str, items: Iterable[T], key: Callable[[T], str] = str) -> Iterator[T]:
        """The items whose step is still to be done: a loop that gives each its step survives a crash.

        Raises StepDone at a second item of an equal key.
        """
        seen: set[str] = set()
        for item in items:
            item_key = key(item)
            if str(item_key) in seen:
                self.core.refuse(
                    f.StepDone(
                        f"run.each({name!r}): two items have the key {str(item_key)[:80]!r}, and the second one would "
                        "be left out: give each a key of its own (key=), or leave out what is there twice"
                    )
                )
            seen.add(str(item_key))
            if not self.done(name, item_key):
                yield item
        if not seen:
            self.steps.had_no_items(name)

    def _block(self, asked: Asked) -> StepBlock:
        return StepBlock(self.steps, asked, self._call_here, self.check_memory, self.forget_lent)

    @contextmanager
    def _asked(self, name: str, key: str | int | None, *, repeat: bool) -> Generator[StepBlock]:
        """The block of a step that is asked for, and that it has had its turn."""
        step_id, kind, blind = self.steps.plan_step(name, key, repeat=repeat)
        uses = self.core.state.steps.uses.get(name, 0) if repeat else 0
        yield self._block(Asked(step_id, name, kind, key, blind))
        if repeat:
            self.steps.turns[name] = uses + 1

    async def _do(self, name: str, key: str | int | None, body: Callable[[], Awaitable[Json]]) -> Any:
        """A step that gives back its recorded result, made by `body` once."""
        step_id, done = self.steps.plan_do(name, key)
        if not done:
            async with self._block(Asked(step_id, name, "do", key)) as block:
                block.result = f.given_back(f"the function of step {name}", await body())
        self.steps.passed.add(step_id)
        return copy.deepcopy(self.steps.result_of(step_id))

    def _made(self, name: str, fn: Callable[..., Any], args: Sequence[Any]) -> Callable[[], Awaitable[Any]]:
        """What makes the result of a `do`."""
        return lambda: self.core.driver.value(f"the function of step {name}", fn(*args))

    # Calls and questions.

    def _bound(
        self, tool: Tool[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Target, dict[str, Json], str]:
        """A call of a tool as the engine takes it: the target, its args by name, its own key."""
        bound = tool.bind(args, kwargs)
        target = ToolTarget(tool)
        self.core.driver.check(target)
        return target, bound, tool.own_key(bound)

    def _call(self, tool: Tool[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Verb[Any]:
        return self.caller.call(*self._bound(tool, args, kwargs))

    def _model(self, name: str, request: Json, call: Callable[[Json], Any], how: ModelOptions) -> Verb[Json]:
        target = ModelTarget(name, call, **how)
        self.core.driver.check(target)
        return self.caller.call(target, {"request": plain(request)})

    async def _ask(self, action: str, key: str | int | None, reason: str, args: dict[str, Json]) -> dict[str, Json]:
        """A question; outside a step it is a step of its own."""
        stored: dict[str, Json] = plain(args)

        async def answer() -> dict[str, Json]:
            return await self.core.drive(self.caller.ask(action, stored, reason))

        if self.steps.inside:
            return await answer()
        given: dict[str, Json] = await self._do(f"ask {action}", key, answer)
        return given

    # The run's end.

    def _complete(self, output: Json) -> Verb[NoReturn]:
        return self.steps.end(e.RunCompleted(f.given_back("the agent", output)))

    def _fail(self, message: str, type: str) -> Verb[NoReturn]:
        return self.steps.end(e.RunFailed({"type": type, "message": message}, [], "error"))

    # Values that were handed out.

    def lend(self, key: str, value: Json) -> None:
        """Remember what was handed out, to see at the step's end whether it was changed in place."""
        if kind_of(value) in (dict, list) and self.steps.inside:
            self._lent.append((key, value, dumps(value)))

    def forget(self, key: str) -> None:
        """The key was assigned: what was handed out before counts no more."""
        self._lent = [lent for lent in self._lent if lent[0] != key]

    def forget_lent(self) -> None:
        """The step is over: what it was given counts no more."""
        self._lent.clear()

    def check_memory(self) -> None:
        """Raise MemoryMutated if a value was changed in place."""
        lent, self._lent = self._lent, []
        for key, value, before in lent:
            if dumps(value) != before:
                raise f.MemoryMutated(f"run.memory[{key!r}] was changed in place: assign it, so that the log knows")
