"""Private values of an event: which they are, how they leave its stored data, and how they come back.

In a private run the stored body of an event has, beside `data`, its private values as one ciphertext (`cipher.py`):

    "private":{"box":"<base64>","out":["args"]}

The box holds a JSON list of [path, value]. A whole field that isn't text is left out of `data` and named in `out`;
where a text was taken, ERASED_TEXT stands. So what is left is a sound event whether the box can be opened or not.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, cast

import orjson

from . import cipher
from .base import ERASED, Event, Json
from .chain import GENESIS
from .private_fields import ERASED_TEXT

Keys: TypeAlias = Callable[[str], bytes | None]
"""Return the key of a private run; None for a run that isn't private or was erased."""
Path: TypeAlias = list[str | int]
_NO_DIGEST: Final = GENESIS.hex()
_HEX: Final = frozenset("0123456789abcdef")


def no_key(_: str) -> None:
    """Return None: no key is known."""


def take(event: Event, data: dict[str, Any]) -> tuple[list[tuple[Path, Json]], list[str]]:
    """Take the private values out of an event's data; return them with their paths, and the fields that are gone."""
    taken: list[tuple[Path, Json]] = []
    out: list[str] = []
    for path in event.PRIVATE:
        for holder, key, where in list(_places(data, path.split("."), [])):
            value = holder[key]
            taken.append((where, value))
            if len(where) == 1 and (key in event.BLOBS or type(value) is not str):
                del holder[key]
                out.append(cast("str", key))
            else:
                holder[key] = _NO_DIGEST if _is_digest(value) else ERASED_TEXT
    return taken, out


def _places(value: Any, parts: list[str], where: Path) -> Iterator[tuple[Any, str | int, Path]]:
    """Yield (container, key, path) of each place that a path names and that is there."""
    first, rest = parts[0], parts[1:]
    keys: list[str | int] = []
    if isinstance(value, dict):
        keys = list(cast("dict[str, Any]", value)) if first == "*" else [first] if first in value else []
    elif isinstance(value, list) and first == "*":
        keys = list(range(len(cast("Any", value))))
    holder = cast("Any", value)
    for key in keys:
        inner: Any = holder[key]
        if rest:
            yield from _places(inner, rest, [*where, key])
        elif inner is not None:
            yield holder, key, [*where, key]


def _is_digest(value: Json) -> bool:
    return isinstance(value, str) and len(value) == len(_NO_DIGEST) and _HEX.issuperset(value)


def box(key: bytes, run_id: str, seq: int, event_type: str, taken: list[tuple[Path, Json]]) -> str:
    """Return private values as one ciphertext, bound to their event. Raises MissingExtra."""
    text = cipher.encrypt(key, orjson.dumps(taken), _place(run_id, seq, event_type))
    return base64.b64encode(text).decode()


def put_back(  # noqa: PLR0917 - the place of an event, and what its body has there
    keys: Keys, run_id: str, seq: int, event_type: str, data: dict[str, Any], hidden: Any, blobs: frozenset[str]
) -> None:
    """Put the private values of an event back into its data, or what stands for erased ones.

    `hidden` is what its body has as `private`, `blobs` the fields for which a reference may stand. Raises ValueError,
    KeyError, TypeError, IndexError if it isn't what `take` and `box` made; MissingExtra.
    """
    key = keys(run_id)
    if key is None:
        data.update(dict.fromkeys(blobs.intersection(hidden["out"]), ERASED))
        return
    if "box" not in hidden:
        return
    text = cipher.decrypt(key, base64.b64decode(hidden["box"], validate=True), _place(run_id, seq, event_type))
    for path, value in orjson.loads(text):
        holder: Any = data
        for part in path[:-1]:
            holder = holder[part]
        holder[path[-1]] = value


def _place(run_id: str, seq: int, event_type: str) -> tuple[bytes, bytes, bytes]:
    return run_id.encode(), str(seq).encode(), event_type.encode()


class KeyRing:
    """The keys of runs as a store has them, each asked for once. Not to be kept: a run may be erased at any time."""

    def __init__(self, ask: Keys) -> None:
        self._ask = ask
        self._known: dict[str, bytes | None] = {}

    def __call__(self, run_id: str) -> bytes | None:
        """Return the key of a private run; None for a run that isn't private or was erased."""
        if run_id not in self._known:
            self._known[run_id] = self._ask(run_id)
        return self._known[run_id]
