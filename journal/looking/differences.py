"""Where two JSON values differ, such as two states of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import orjson

from runjournal.log.base import Json


class Change(NamedTuple):
    """A place (`memory.total`) whose value differs; None stands for one that isn't there."""

    path: str
    before: Json
    after: Json


def differences(before: Json, after: Json, path: str = "") -> Iterator[Change]:
    """Yield where two JSON values differ, place by place, in their order; where only that differs, as a whole."""
    if isinstance(before, dict) and isinstance(after, dict):
        left, right = cast("dict[str, Any]", before), cast("dict[str, Any]", after)
        if [key for key in left if key in right] != [key for key in right if key in left]:
            yield Change(path, left, right)
            return
        for key in {**left, **right}:
            yield from differences(left.get(key), right.get(key), f"{path}.{key}" if path else key)
    elif orjson.dumps(before) != orjson.dumps(after):
        yield Change(path, before, after)
