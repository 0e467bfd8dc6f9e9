"""What a provider refuses of a conversation: a tool call without its result, a result without its call, nothing said.

It is of Anthropic's Messages API and of OpenAI's chat. Of messages of any other shape nobody knows what their provider
refuses: they aren't judged.
"""

from __future__ import annotations

from typing import Any, cast


def refusal(request: object) -> str | None:
    """Return why a provider would refuse the messages of a request, or None.

    What has no messages is no such request. A history is judged only if it is of a known shape: each message has a text
    or blocks, and each call and each result has an id.

    >>> refusal({"messages": [{"role": "tool", "tool_call_id": "t1", "content": "7"}]})
    "message 0 answers 't1', which wasn't asked"
    """
    found = cast("dict[str, object]", request).get("messages") if isinstance(request, dict) else None
    messages = _dicts(found)
    if (
        not isinstance(found, list)
        or len(messages) < len(cast("list[object]", found))
        or not all(map(_known, messages))
    ):
        return None
    if any(each.get("role") == "tool" or each.get("tool_calls") for each in messages):
        return refused_by_openai(messages)
    return refused_by_anthropic(messages)


def _known(message: dict[str, Any]) -> bool:
    """Return whether a message is one of Anthropic's or OpenAI's: a text, or blocks, and ids of what is called."""
    content: object = message.get("content")
    calls: object = message.get("tool_calls") or []
    if not isinstance(content, str | list | None) or not isinstance(calls, list):
        return False
    ids: list[object] = [each.get("id") for each in _dicts(cast("object", calls))]
    if message.get("role") == "tool":
        ids.append(message.get("tool_call_id"))
    names = {"tool_use": "id", "tool_result": "tool_use_id"}
    ids += [each.get(names[str(each["type"])]) for each in _dicts(message.get("content")) if each.get("type") in names]
    return all(isinstance(each, str) for each in ids) and ("content" in message or bool(ids))


def refused_by_anthropic(messages: list[dict[str, Any]]) -> str | None:
    """Return why Anthropic refuses these: each tool_use is answered once, in the next message; none is empty."""
    waiting = list[str]()
    for place, message in enumerate(messages):
        if not message.get("content"):
            return f"message {place} is empty"
        blocks = _dicts(message["content"])
        answered = [str(each.get("tool_use_id")) for each in blocks if each.get("type") == "tool_result"]
        for each in answered:
            if each not in waiting:
                return f"message {place} answers {each!r}, which wasn't asked"
        if sorted(answered) != sorted(waiting):
            return f"{_first(waiting, answered)!r} isn't answered once in message {place}, directly behind its call"
        waiting = [str(each.get("id")) for each in blocks if each.get("type") == "tool_use"]
    return f"{waiting[0]!r} isn't answered" if waiting else None


def refused_by_openai(messages: list[dict[str, Any]]) -> str | None:
    """Return why OpenAI's chat refuses these: each tool call is answered once, behind its message, before any other."""
    waiting = list[str]()
    for place, message in enumerate(messages):
        if message.get("role") == "tool":
            if (answered := str(message.get("tool_call_id"))) not in waiting:
                return f"message {place} answers {answered!r}, which wasn't asked"
            waiting.remove(answered)
            continue
        if waiting:
            return f"{waiting[0]!r} isn't answered before message {place}"
        asked: list[Any] = message.get("tool_calls") or []
        if message.get("role") == "assistant" and not message.get("content") and not asked:
            return f"message {place} is empty"
        waiting = [str(each.get("id")) for each in asked]
    return f"{waiting[0]!r} isn't answered" if waiting else None


def _first(asked: list[str], answered: list[str]) -> str:
    return next((each for each in asked if answered.count(each) != asked.count(each)), "")


def _dicts(value: object) -> list[dict[str, Any]]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", each) for each in items if isinstance(each, dict)]
