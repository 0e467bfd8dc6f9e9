"""A run's messages as a provider takes them: every call has its result, whatever crashed in between.

The log is never edited: what is missing is made up here, truthfully. A call of which nobody knows gets a result that
says so; reasoning items stay with the items that they belong to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from runjournal.log.base import Json
from runjournal.log.shapes import kind_of
from runjournal.projections.transcript import Message

UNKNOWN: Final = (
    "The process that made this call stopped before its result was recorded. It is not known whether the call took "
    "effect. Do not assume that it did or that it did not; check before making it again."
)
Item = dict[str, Any]


def anthropic(messages: Iterable[Message]) -> list[Item]:
    """Return messages for Anthropic's Messages API: [{role, content}], each tool_use answered in the next user message.

    A result goes directly behind its call, whatever was written in between. A system message is left out: it goes to
    the request's own field. Results without a call are left out too, as the API refuses them.
    """
    out: list[Item] = []
    for said, behind in _exchanges(message for message in messages if message.role != "system"):
        asked = [] if said is None else _blocks(said.content)
        _add(out, "assistant", asked)
        open_ids = [str(block["id"]) for block in asked if block.get("type") == "tool_use" and "id" in block]
        blocks = [block for message in behind for block in _blocks(message.content)]
        results = [block for block in blocks if block.get("type") == "tool_result"]
        results = [block for block in results if block.get("tool_use_id") in open_ids]
        given = {block.get("tool_use_id") for block in results}
        _add(out, "user", results + [_unknown(call_id) for call_id in open_ids if call_id not in given])
        _add(out, "user", [block for block in blocks if block.get("type") != "tool_result"])
    return out


def _exchanges(messages: Iterable[Message]) -> Iterator[tuple[Message | None, list[Message]]]:
    """Yield each message of the model with those behind it, up to its next one; first those before all of them."""
    said, behind = None, list[Message]()
    for message in messages:
        if message.role == "assistant":
            yield said, behind
            said, behind = message, []
        else:
            behind.append(message)
    yield said, behind


def _blocks(content: Json) -> list[Item]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    items: list[Any] = content if kind_of(content) is list else [content]
    return [cast("Item", item) if isinstance(item, dict) else {"type": "text", "text": str(item)} for item in items]


def _unknown(call_id: str) -> Item:
    return {"type": "tool_result", "tool_use_id": call_id, "content": UNKNOWN, "is_error": True}


def _add(out: list[Item], role: str, blocks: list[Item]) -> None:
    """Append a message, or add to the one before it if that has the same role: roles must alternate."""
    if not blocks:
        return
    if out and out[-1]["role"] == role:
        out[-1]["content"] += blocks
    else:
        out.append({"role": role, "content": list(blocks)})


def openai_chat(messages: Iterable[Message]) -> list[Item]:
    """Return messages for OpenAI's Chat Completions: each tool call of an assistant is answered by a tool message.

    A result goes directly behind its call, whatever was written in between. A message is the provider's own object
    where it was recorded as `raw`, else {role, content}.
    """
    out: list[Item] = []
    for said, behind in _exchanges(messages):
        item = {} if said is None else _own(said)
        out += [item] if item else []
        open_ids = [str(call["id"]) for call in item.get("tool_calls") or () if "id" in call]
        results = {each.get("tool_call_id"): each for each in map(_own, behind) if each["role"] == "tool"}
        out += [each for call_id, each in results.items() if call_id in open_ids]
        missing = [call_id for call_id in open_ids if call_id not in results]
        out += [{"role": "tool", "tool_call_id": call_id, "content": UNKNOWN} for call_id in missing]
        out += [_own(message) for message in behind if message.role != "tool"]
    return out


def openai_responses(messages: Iterable[Message]) -> list[Item]:
    """Return input items for OpenAI's Responses API: every function_call has its output, reasoning keeps its partner.

    `content` of a message is an item or a list of items, as the API returned them; a text becomes a message item. A
    reasoning item whose partner, the item behind it, isn't there is left out: the API refuses it alone.
    """
    items = list(_response_items(messages))
    answered = {item.get("call_id") for item in items if item.get("type") == "function_call_output"}
    called = {item.get("call_id") for item in items if item.get("type") == "function_call"}
    out: list[Item] = []
    for place, item in enumerate(items):
        kind = item.get("type")
        if kind == "reasoning" and not _partner(items, place):
            continue
        if kind == "function_call_output" and item.get("call_id") not in called:
            continue
        out.append(item)
        if kind == "function_call" and item.get("call_id") not in answered:
            out.append({"type": "function_call_output", "call_id": item.get("call_id"), "output": UNKNOWN})
    return out


def _partner(items: list[Item], place: int) -> bool:
    """Return whether a reasoning item is followed by an item of the model's own."""
    for item in items[place + 1 :]:
        if item.get("type") == "reasoning":
            continue
        return item.get("type") == "function_call" or item.get("role") == "assistant"
    return False


def _response_items(messages: Iterable[Message]) -> Iterator[Item]:
    for message in messages:
        content = message.content
        parts: list[Any] = content if kind_of(content) is list else [content]
        if all(isinstance(part, dict) and "type" in part for part in parts):
            for part in cast("list[Item]", parts):
                if part["type"] in ("input_text", "output_text", "text"):
                    yield {"type": "message", "role": message.role, "content": [part]}
                else:
                    yield part
        else:
            yield {"type": "message", "role": message.role, "content": content}


def _own(message: Message) -> Item:
    raw = message.raw
    return (
        dict(cast("Item", raw))
        if isinstance(raw, dict) and "role" in raw
        else {"role": message.role, "content": message.content}
    )
