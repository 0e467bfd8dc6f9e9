"""One turn of the usual loop of an agent, written as it must be: `run.turn`.

The question to the model is a step of its own, and the tool calls of its answer are the next one. No step holds both a
question and effects: whatever differs in the next process, as the prompt does, what was sent hangs on an answer that is
on record. It is one coroutine for both drivers: in plain threads it waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, cast

from runjournal.engine import failures as f
from runjournal.engine.asking import AskOptions
from runjournal.engine.context import TurnVerbs
from runjournal.engine.requests import copied
from runjournal.engine.tools import Tool, looking, receiver_id
from runjournal.log.base import Json
from runjournal.log.codec import plain
from runjournal.log.errors import InvalidArgument, TooLarge, Unstorable
from runjournal.projections.transcript import Message

from . import provider_shapes as shapes
from .provider_shapes import Said, Wanted

Approve: TypeAlias = Iterable[str] | Callable[[str, dict[str, Json]], object]
"""Which calls a person is asked about first: names of tools, or a function of a name and the args.

What the function returns may say how: a dict of reason, risk, schema, expires_in and default, as `run.ask` takes them.
"""
_HOW: Final = frozenset({"reason", "risk", "schema", "expires_in", "default"})
UNSURE: Final = "Do not assume that it took effect or that it did not; check before making the call again."
"""What a model is told beside the failure of a call of which nobody knows."""
OF_THE_CALL = (f.Told, f.ResultUnusable, f.KeyReused, InvalidArgument, Unstorable, TooLarge)
"""What the args that a model has made can run into: it is told of that, and of nothing else."""


@dataclass
class AgentTurn:
    """A turn of an agent's loop: what it asks, what it may call, and what a person is asked about first."""

    verbs: TurnVerbs
    model: str
    request: Mapping[str, Json]
    offered: Sequence[Tool[..., Any]]
    call: Callable[[Json], Any]
    first_ask: Approve
    name: str
    history: shapes.GrowingHistory

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.request), Mapping):
            given = type(self.request).__name__
            raise f.WrongArgument(f"run.turn: request is what the model is asked, a dict, got {given}")
        self.tools = _by_name(self.offered)
        self.approve = _predicate(self.first_ask, self.tools)

    async def take(self) -> str | None:
        """Ask the model and make the calls that it asks for; or make those of the last answer, if that was recorded.

        Return the text of the answer if it asks for none, else None.
        """
        last, wanted = self._last_answer()
        if last is None:
            last = await self._ask()
            wanted = shapes.shape_of_message(last).wanted(last)
        shape = shapes.shape_of_message(last)
        if wanted:
            async with self.verbs.step(f"{self.name} tools") as block, block:
                said = await self.verbs.together([partial(self._said, each) for each in wanted])
                for role, content, raw in shape.results(list(zip(wanted, said, strict=True))):
                    self.verbs.write(role, content, raw=raw)
            return None
        return None if shape.paused(last) else shape.text(last)

    def _last_answer(self) -> tuple[Message | None, list[Wanted]]:
        """Return the model's last message with those of its calls that have no result, whatever was written behind it.

        If it has none, return it if it isn't asked on: nothing has been said to it yet, and the model is done.
        """
        messages = self.verbs.messages()
        place = next((at for at in reversed(range(len(messages))) if messages[at].role == "assistant"), None)
        if place is None:
            return None, []
        last, behind = messages[place], messages[place + 1 :]
        shape, answered = shapes.shape_of_message(last), shapes.answered(behind)
        left = [each for each in shape.wanted(last) if each.id not in answered]
        return (last, left) if left or not (behind or shape.paused(last)) else (None, [])

    async def _ask(self) -> Message:
        """Ask the model in a step of its own; return what it said."""
        async with self.verbs.step(self.name) as block, block:
            messages = self.verbs.messages()
            before = cast("list[Json]", self.request.get("messages") or [])
            if not messages and not before:
                self.verbs.write("user", self._input())
                messages = self.verbs.messages()
            request = {**self.request, "messages": [*before, *self.history.of(messages, self.request)]}
            answer = await self.verbs.model(self.model, request, self.call, {"check": _known})
            content, raw = shapes.shape_of_answer(answer).spoken(answer)
            self.verbs.write("assistant", content, raw=raw)
        return self.verbs.messages()[-1]

    def _input(self) -> Json:
        """Return the first message of a run that was given none: its input."""
        given = self.verbs.input
        if given in (None, "", [], {}):
            raise f.WrongArgument(
                "run.turn: there is nothing to ask the model: give the run an input or a first message "
                "(journal.run(…, messages=[{…}])), or the request its `messages`"
            )
        return shapes.result_text(given)

    # One tool call of an answer.

    async def _said(self, wanted: Wanted) -> Said:
        """Make a call; return what the model is told of it. Stops and mistakes go by."""
        try:
            return await self._made(wanted)
        except f.Mistake:
            raise
        except f.Rejected as no:
            why = f": {no.note}" if no.note else "."
            return Said(f"A person has refused this call; nothing was sent{why}", is_error=True)
        except f.CallOutcomeUnknown as failure:
            return Said(f"{failure}. {UNSURE}", is_error=True)
        except OF_THE_CALL as error:
            return Said(str(error), is_error=True)

    async def _made(self, wanted: Wanted) -> Said:
        tool, args = self.tools.get(wanted.name), copied(wanted.args)  # of `approve`, which may change them
        if wanted.wrong:
            return Said(wanted.wrong, is_error=True)
        if tool is None:
            wrong = f"there is no tool {ascii(wanted.name)[:80]}; there are: {', '.join(self.tools) or 'none'}"
            return Said(f"{wrong}. Nothing was sent", is_error=True)
        plain(args)
        self._check_args(tool, args)
        edited = args
        if how := looking(self.verbs.core, partial(self.approve, tool.name, args)):
            edited = await self.verbs.ask(tool.name, args, _how(how))
            self._check_args(tool, edited)
        result = shapes.result_text(await self.verbs.call(tool, edited, wanted.id))
        if edited != args:
            result = f"(A person has changed the arguments to {shapes.result_text(edited)}.)\n{result}"
        return Said(result)

    def _check_args(self, tool: Tool[..., Any], args: Mapping[str, Json]) -> None:
        """Raise what the model is told of args that can't be those of the call, before anybody is asked about it."""
        try:
            f.check_name(tool.own_key(tool.bind((), args)) or "none", f"the key of {tool.name}")
        except f.WrongArgument as error:
            raise InvalidArgument(str(error)) from None


def _by_name(tools: Sequence[Tool[..., Any]]) -> dict[str, Tool[..., Any]]:
    """Return the tools by name. Raises Mistakes."""
    found: dict[str, Tool[..., Any]] = {}
    for tool in tools:
        if not isinstance(cast("object", tool), Tool):
            shown = getattr(tool, "__name__", type(tool).__name__)
            raise f.WrongArgument(f"run.turn: {shown} is no tool: decorate it, @tool, so that its calls are journalled")
        if found.setdefault(tool.name, tool) is not tool:
            raise f.SameName(f"run.turn: two of the tools are named {tool.name}: give one another name (name=)")
        if tool.instance is not None:
            receiver_id(tool.name, tool.instance)
    return found


def _predicate(approve: Approve, tools: Mapping[str, object]) -> Callable[[str, dict[str, Json]], object]:
    """Return whether a person is asked first, as a function. Raises WrongArgument for a name that no tool has."""
    if callable(approve):
        return approve
    names = {approve} if isinstance(approve, str) else set(approve)
    if strangers := sorted(names - set(tools)):
        raise f.WrongArgument(
            f"run.turn: approve names {', '.join(strangers)}, and no such tool is there: {', '.join(tools) or 'none'}"
        )
    return lambda name, _: name in names


def _how(told: object) -> AskOptions:
    """Return how a person is asked about a call, if `approve` says more than that one is. Raises WrongArgument."""
    how = dict(cast("Mapping[str, Any]", told)) if isinstance(told, Mapping) else {}
    if strangers := set(how) - _HOW:
        raise f.WrongArgument(
            f"run.turn: approve says {', '.join(sorted(map(str, strangers)))}; it may say {', '.join(sorted(_HOW))}"
        )
    return cast("AskOptions", how)


def _known(answer: Json) -> None:
    """Check that an answer is one of a provider's. Raises InvalidArgument."""
    shapes.shape_of_answer(answer).spoken(cast("dict[str, Any]", answer))
