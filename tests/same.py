"""What "equal" means in a test of a round trip: the same types, and the same keys in the same order."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

import orjson


def exact(value: object) -> bytes:
    """Bytes that are equal for two values only if these are equal, type for type, their keys in the same order.

    `==` alone takes `{"a": 1, "b": 2}` for `{"b": 2, "a": 1}`, 1 for 1.0 and True, and 0.0 for -0.0.
    """
    return orjson.dumps(_told(value))


def _told(value: Any) -> Any:
    """The value as JSON, in which whatever isn't plain JSON names its type."""
    kind = type(value)
    if value is None or kind in (bool, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is int:
        return value if abs(value) < 2**63 else {"(int)": str(value)}
    if kind is list:
        return [_told(item) for item in value]
    if kind is dict:
        return {key if type(key) is str else repr(key): _told(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return {f"({kind.__name__})": [_told(item) for item in value]}
    if is_dataclass(kind):
        return {f"({kind.__name__})": {f.name: _told(getattr(value, f.name)) for f in fields(value)}}
    return {f"({kind.__name__})": repr(value)}
