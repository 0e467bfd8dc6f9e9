"""What two providers' answers look like, and the messages that they take back: Anthropic's Messages API, OpenAI's chat.

Which one it is shows in the answer. The log keeps what the model said as it came, so that it goes back as it came; what
a provider would refuse, as blank text, is left out of the request alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

from runjournal.log.base import Json
from runjournal.log.errors import InvalidArgument
from runjournal.log.shapes import kind_of
from runjournal.projections.transcript import Message

from .histories import anthropic, openai_chat

Item = dict[str, Any]
NOTHING: Final = "(it returned nothing)"
"""What a model is told of a result without text: a provider may refuse an empty one."""
CUT_OFF: Final = "the answer was cut off before this call was complete: nothing was sent. Make it again, shorter"


class Wanted(NamedTuple):
    """A tool call that a model asks for. `wrong` says why it can't be made as it stands."""

    id: str
    name: str
    args: Item
    wrong: str = ""


class Said(NamedTuple):
    """What a model is told of a call that it asked for."""

    text: str
    is_error: bool = False


class ProviderShape(Protocol):
    """How a provider writes what a turn of an agent needs."""

    def spoken(self, answer: Item) -> tuple[Json, Json]:
        """Return the content and the raw form of an answer, as the log keeps them. Raises InvalidArgument."""
        ...

    def wanted(self, message: Message) -> list[Wanted]:
        """Return the tool calls that a message of the model asks for."""
        ...

    def text(self, message: Message) -> str:
        """Return the text of a message of the model."""
        ...

    def paused(self, message: Message) -> bool:
        """Return whether the model isn't done, though it asks for no tool: it is to be asked on."""
        ...

    def results(self, calls: Sequence[tuple[Wanted, Said]]) -> list[tuple[str, Json, Json]]:
        """Return the messages (role, content, raw) that answer the tool calls of one message of the model."""
        ...

    def history(self, messages: Iterable[Message]) -> list[Item]:
        """Return the messages as a request takes them."""
        ...

    def joined(self, before: list[Item], after: list[Item]) -> list[Item]:
        """Return one history of two: the second begins with a message of the model, and the first with none of it."""
        ...


class AnthropicShape:
    """Anthropic's Messages API: content blocks; results stand in one message of the user."""

    def spoken(self, answer: Item) -> tuple[Json, Json]:
        """Return the content blocks, and what the answer says beside them. Raises InvalidArgument."""
        content = answer["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if any(kind_of(block) is not dict or "type" not in block for block in content):
            raise InvalidArgument(f"a model's answer: expected content blocks with a type, got {_kinds(content)}")
        return content, {key: answer[key] for key in ("id", "stop_reason") if answer.get(key) is not None}

    def wanted(self, message: Message) -> list[Wanted]:
        """Return the tool_use blocks; of an answer that was cut off, the last one may be half of one."""
        found = [
            Wanted(str(block.get("id")), str(block.get("name")), *_args(block.get("input")))
            for block in _items(message.content)
            if block.get("type") == "tool_use"
        ]
        return _cut(found) if _told(message, "stop_reason") == "max_tokens" else found

    def text(self, message: Message) -> str:
        """Return the texts of its blocks."""
        content = message.content
        if isinstance(content, str):
            return content
        return "".join(str(block.get("text", "")) for block in _items(content) if block.get("type") == "text")

    def paused(self, message: Message) -> bool:
        """Return whether it is in the middle of tools of the provider's own."""
        return bool(_told(message, "stop_reason") == "pause_turn")

    def results(self, calls: Sequence[tuple[Wanted, Said]]) -> list[tuple[str, Json, Json]]:
        """Return one message with a tool_result for each."""
        blocks: list[Json] = [
            {"type": "tool_result", "tool_use_id": call.id, "content": said.text or NOTHING}
            | ({"is_error": True} if said.is_error else {})
            for call, said in calls
        ]
        return [("user", blocks, None)]

    def history(self, messages: Iterable[Message]) -> list[Item]:
        """Return [{role, content}], blank texts left out, as the API refuses them."""
        return anthropic(message._replace(content=_without_blanks(message.content)) for message in messages)

    def joined(self, before: list[Item], after: list[Item]) -> list[Item]:
        """Return both, as one message where they meet in one role: roles alternate."""
        if not before or not after or before[-1]["role"] != after[0]["role"]:
            return [*before, *after]
        both = {**after[0], "content": [*before[-1]["content"], *after[0]["content"]]}
        return [*before[:-1], both, *after[1:]]


class ChatShape:
    """OpenAI's Chat Completions: an assistant message with tool_calls; a tool message answers each."""

    def spoken(self, answer: Item) -> tuple[Json, Json]:
        """Return the text of the answer's message, and the message. Raises InvalidArgument."""
        reason = None
        if "choices" in answer:
            choices = _items(answer["choices"])
            if not choices or kind_of(choices[0].get("message")) is not dict:
                raise InvalidArgument("a model's answer: expected choices[0].message, got none")
            reason, answer = choices[0].get("finish_reason"), choices[0]["message"]
        raw = {key: value for key, value in answer.items() if value is not None and key != "annotations"}
        if not raw.get("tool_calls"):  # an empty list of them is refused, and so is no content
            raw.pop("tool_calls", None)
            raw.setdefault("content", raw.get("refusal") or "")
        raw |= {"role": "assistant"}
        return raw.get("content"), {**raw, CUT: True} if reason == "length" else raw

    def wanted(self, message: Message) -> list[Wanted]:
        """Return the tool calls, their arguments read, which are a JSON text that may be broken."""
        found: list[Wanted] = []
        for call in _items(_told(message, "tool_calls")):
            function = call.get("function")
            named: Item = cast("Item", function) if isinstance(function, dict) else {}
            args, wrong = _parsed(named.get("arguments"))
            if not named:
                wrong = f"a tool call of type {call.get('type')!r} can't be made here: call a function"
            found.append(Wanted(str(call.get("id")), str(named.get("name")), args, wrong))
        return _cut(found) if _told(message, CUT) else found

    def text(self, message: Message) -> str:
        """Return its text, or why it refuses to say one."""
        content = message.content
        if isinstance(content, str):
            return content
        return "".join(str(part.get("text") or part.get("refusal") or "") for part in _items(content))

    def paused(self, message: Message) -> bool:
        """Return False: an answer without tool calls is the last one."""
        return False

    def results(self, calls: Sequence[tuple[Wanted, Said]]) -> list[tuple[str, Json, Json]]:
        """Return a tool message for each."""
        return [
            ("tool", said.text or NOTHING, {"role": "tool", "tool_call_id": call.id, "content": said.text or NOTHING})
            for call, said in calls
        ]

    def history(self, messages: Iterable[Message]) -> list[Item]:
        """Return the messages, each the provider's own object where it came as one."""
        return [{key: value for key, value in item.items() if key != CUT} for item in openai_chat(messages)]

    def joined(self, before: list[Item], after: list[Item]) -> list[Item]:
        """Return both."""
        return [*before, *after]


CUT: Final = "_cut_off"
"""In the raw form of a chat message: it was cut off by the bound on its tokens. The provider isn't sent it."""
ANTHROPIC: Final[ProviderShape] = AnthropicShape()
CHAT: Final[ProviderShape] = ChatShape()


def shape_of_answer(answer: Json) -> ProviderShape:
    """Return whose answer it is. Raises InvalidArgument for an answer of neither provider."""
    if isinstance(answer, dict):
        about = cast("Item", answer)
        if "choices" in about or "tool_calls" in about:
            return CHAT
        if kind_of(about.get("content")) is list:
            return ANTHROPIC
        if about.get("role") == "assistant" and isinstance(about.get("content"), str):
            return CHAT
    raise InvalidArgument(
        "a model's answer: expected Anthropic's {content: [{type, …}]} or OpenAI's {choices: [{message}]}, as the "
        f"client returns it, got {_kinds(cast('object', answer))}"
    )


def shape_of_message(message: Message) -> ProviderShape:
    """Return by which provider a message of the model was written."""
    if kind_of(_told(message, "tool_calls")) is list or _told(message, "role") == "assistant":
        return CHAT
    return ANTHROPIC


def answered(messages: Iterable[Message]) -> set[str]:
    """Return the ids of the tool calls that these messages have results of."""
    found: set[str] = set()
    for message in messages:
        blocks = [block for block in _items(message.content) if block.get("type") == "tool_result"]
        found.update(str(block.get("tool_use_id")) for block in blocks)
        if message.role == "tool":
            found.add(str(_told(message, "tool_call_id")))
    return found


def history(messages: Sequence[Message], request: Mapping[str, Json]) -> list[Item]:
    """Return the messages of a run as its provider takes them; before the first answer, in the form that both take."""
    spoken = next((message for message in reversed(messages) if message.role == "assistant"), None)
    if spoken is not None:
        return shape_of_message(spoken).history(messages)
    dropped = "system" if "system" in request else ""  # Anthropic's field: its messages hold none
    kept = ((message.role, _without_blanks(message.content)) for message in messages if message.role != dropped)
    return [{"role": role, "content": content} for role, content in kept if content]


class GrowingHistory:
    """The messages of one run as its provider takes them, turn after turn: what was there before is kept as it was."""

    def __init__(self) -> None:
        self._shape: ProviderShape | None = None
        self._last: Message | None = None
        self._count = 0
        self._items: list[Item] = []

    def of(self, messages: Sequence[Message], request: Mapping[str, Json]) -> list[Item]:
        """Return the same as `history`."""
        spoken = next((message for message in reversed(messages) if message.role == "assistant"), None)
        if spoken is None:
            return history(messages, request)
        shape = shape_of_message(spoken)
        if shape is not self._shape or messages[self._count - 1 : self._count] != [self._last]:
            self._shape, self._count, self._items = shape, 0, []
        for place in range(len(messages) - 1, self._count, -1):
            if messages[place].role == "assistant":  # each call before it has its result, made up if need be
                self._items = shape.joined(self._items, shape.history(messages[self._count : place]))
                self._count, self._last = place, messages[place - 1]
                break
        return shape.joined(self._items, shape.history(messages[self._count :]))


def result_text(value: Json) -> str:
    """Return a tool's result as a model is told it: a text as it is, anything else as JSON."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _told(message: Message, name: str) -> Json:
    """Return what the raw form of a message says."""
    raw = message.raw
    return cast("Item", raw).get(name) if isinstance(raw, dict) else None


def _items(value: Json) -> list[Item]:
    """Return the objects of a list."""
    if kind_of(value) is not list:
        return []
    return [cast("Item", item) for item in cast("list[Json]", value) if isinstance(item, dict)]


def _without_blanks(content: Json) -> Json:
    """Return content without texts that say nothing."""
    if isinstance(content, str):
        return content if content.strip() else ""
    if kind_of(content) is not list:
        return content
    blocks = cast("list[Json]", content)
    return [block for block in blocks if not (_is_text(block) and not str(cast("Item", block).get("text")).strip())]


def _is_text(block: Json) -> bool:
    return isinstance(block, dict) and cast("Item", block).get("type") == "text"


def _args(given: Json) -> tuple[Item, str]:
    """Return the args of a call, and what is wrong with them."""
    if isinstance(given, dict):
        return cast("Item", given), ""
    return {}, f"the arguments are no JSON object, but {_kinds(given)}: nothing was sent"


def _parsed(text: Json) -> tuple[Item, str]:
    """Return the args that a JSON text holds, and what is wrong with it."""
    if not isinstance(text, str):
        return _args({} if text is None else text)
    try:
        return _args(json.loads(text) if text.strip() else {})
    except (ValueError, RecursionError) as error:
        return {}, f"the arguments are no JSON that can be read ({error}): nothing was sent"


def _cut(found: list[Wanted]) -> list[Wanted]:
    return [*found[:-1], found[-1]._replace(wrong=CUT_OFF)] if found else []


def _kinds(value: object) -> str:
    if isinstance(value, dict):
        return f"an object of {', '.join(ascii(key)[:40] for key in list(cast('Item', value))[:8]) or 'nothing'}"
    if isinstance(value, list):
        kinds = sorted({type(item).__name__ for item in cast("list[object]", value)})
        return f"a list of {', '.join(kinds) or 'nothing'}"
    return type(value).__name__
