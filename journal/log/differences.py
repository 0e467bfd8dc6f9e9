"""Where two JSON values differ, such as two states of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

import orjson

from .base import Json

_IDS: Final = ("id", "approval_id", "call_id", "signal_id", "message_id")
"""The keys by which the elements of a list may be known, the first one that all of them have."""


class Change(NamedTuple):
    """A place (`memory.total`, `plan[send].status`, `waits[0]`) whose value differs; None for one that isn't there."""

    path: str
    before: Json
    after: Json


def differences(before: Json, after: Json, path: str = "") -> Iterator[Change]:
    """Where two JSON values differ, place by place, in their order; where only that differs, as a whole.

    The elements of a list are known by their ids, if all have one; then another order is told as the ids. Others are
    known by their place.
    """
    if orjson.dumps(before) == orjson.dumps(after):
        return
    found: Iterator[Change] = iter(())
    if isinstance(before, dict) and isinstance(after, dict):
        found = _in_dicts(cast("dict[str, Any]", before), cast("dict[str, Any]", after), path)
    elif isinstance(before, list) and isinstance(after, list):
        left: list[Any] = before  # pyright: ignore[reportUnknownVariableType] - of whatever
        right: list[Any] = after  # pyright: ignore[reportUnknownVariableType] - of whatever
        found = _in_lists(left, right, path)
    first = next(found, None)
    yield Change(path, before, after) if first is None else first  # a null that is there differs from none, too
    yield from found


def _in_dicts(before: dict[str, Any], after: dict[str, Any], path: str) -> Iterator[Change]:
    if [key for key in before if key in after] != [key for key in after if key in before]:
        yield Change(path, before, after)
        return
    for key in {**before, **after}:
        yield from _at(before.get(key), after.get(key), f"{path}.{key}" if path else key)


def _in_lists(before: list[Any], after: list[Any], path: str) -> Iterator[Change]:
    if (by_id := _by_id(before, after)) is None:
        for place in range(max(len(before), len(after))):
            left, right = (each[place] if place < len(each) else None for each in (before, after))
            yield from _at(left, right, f"{path}[{place}]")
        return
    left, right = by_id
    if [key for key in left if key in right] != [key for key in right if key in left]:
        yield Change(path, list(left), list(right))
    for key in {**left, **right}:
        yield from _at(left.get(key), right.get(key), f"{path}[{key}]")


def _at(before: Json, after: Json, path: str) -> Iterator[Change]:
    if before is not None or after is not None:
        yield from differences(before, after, path)


def _by_id(before: list[Any], after: list[Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The elements of two lists by their ids, or None if some have none, or one twice."""
    for name in _IDS:
        left, right = _named(before, name), _named(after, name)
        if (len(left), len(right)) == (len(before), len(after)):
            return left, right
    return None


def _named(elements: list[Any], name: str) -> dict[str, Any]:
    """Those elements that are dicts with a text under a name, by that text."""
    found: dict[str, Any] = {}
    for each in elements:
        key = cast("dict[str, Any]", each).get(name) if isinstance(each, dict) else None
        if isinstance(key, str):
            found[key] = each
    return found
