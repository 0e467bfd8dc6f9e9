"""Foreign values -> values that the journal can hold."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, Final, cast

from runjournal.log.clock import parse_timestamp, timestamp
from runjournal.log.events import Json
from runjournal.log.limits import foreign_depth_max, int_max, int_min, name_chars_max


class Bad(Exception):
    """A line that can't be taken; its text is the cause, without the line's content."""


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def text_of(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def storable(value: Json) -> tuple[Json, bool]:
    """Return the value as the journal can hold it, and whether that took a change.

    What can't be stored is replaced by its JSON as text: integers over 64 bits, NaN, infinities, what lies deeper than
    `foreign_depth_max`. Lone surrogates become U+FFFD. Raises Bad where the stack is too full to see all of it.
    """
    changes: list[None] = []
    try:
        return _storable(value, 0, changes), bool(changes)
    except RecursionError:
        raise Bad("nested too deep") from None


def _storable(value: Any, depth: int, changes: list[None]) -> Any:
    if isinstance(value, str):
        clean = text_of(value)
        if clean is not value and clean != value:
            changes.append(None)
        return clean
    if isinstance(value, dict | list):
        if depth < foreign_depth_max:
            return _container(cast("Any", value), depth, changes)
    elif not (
        (isinstance(value, int) and not int_min <= value <= int_max)
        or (isinstance(value, float) and not math.isfinite(value))
    ):
        return value
    changes.append(None)
    return json.dumps(value)


def _container(value: dict[str, Any] | list[Any], depth: int, changes: list[None]) -> Any:
    if isinstance(value, list):
        return [_storable(item, depth + 1, changes) for item in value]
    return {_storable(key, depth, changes): _storable(item, depth + 1, changes) for key, item in value.items()}


def name_of(text: str) -> str:
    """Return the text as an id or a name: itself, or where that can't be one, a name made of its digest."""
    if 0 < len(text) <= name_chars_max and "\0" not in text and _SURROGATE.search(text) is None:
        return text
    return "sha256-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def id_of(value: Json) -> str:
    """Return a foreign id as text: "" if there is none; one that isn't text becomes its JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(storable(value)[0], sort_keys=True)


def dict_of(value: Json) -> dict[str, Any] | None:
    """Return the value if it is a JSON object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def short_digest(data: bytes) -> str:
    """Return 12 hex digits that stand for these bytes."""
    return hashlib.sha256(data).hexdigest()[:12]


def value_digest(value: Json) -> bytes:
    """Return a digest that is equal for equal JSON values, whatever the order of their keys."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()


def moment_of(value: Json) -> str | None:
    """Return an ISO 8601 time as the journal writes it, or None if the value is no such time."""
    if not isinstance(value, str):
        return None
    try:
        return timestamp(parse_timestamp(value))
    except (ValueError, OverflowError):
        return None
