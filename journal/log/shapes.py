"""Shapes of event data: one small vocabulary that checks a field at the door and describes it as JSON Schema.

Folds rely on these shapes, so both the writer and the reader of an event check them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from .errors import InvalidArgument
from .limits import int_max, int_min, name_chars_max
from .policies import ON_UNKNOWN, POLICIES


class Shape(Protocol):
    """What a field may hold."""

    def check(self, value: Any, path: str) -> None:
        """Raise InvalidArgument, naming `path`, if the value isn't of this shape."""
        ...

    def schema(self) -> dict[str, Any]:
        """Return this shape as JSON Schema (draft 2020-12)."""
        ...


def kind_of(value: object) -> type[object]:
    """Return the exact type of a value, for the type checker too."""
    return type(value)


def describe(value: object) -> str:
    """Describe a value for an error text: its type and size, never its content."""
    if value is None or isinstance(value, bool | int | float):
        return f"{type(value).__name__} {value!r}"[:60]
    kind: type[object] = type(value)
    return f"{kind.__name__} of length {len(value)}" if isinstance(value, Sized) else kind.__name__


def refuse(path: str, expected: str, value: object) -> InvalidArgument:
    """Return the error of a value that isn't what it should be."""
    return InvalidArgument(f"{path}: expected {expected}, got {describe(value)}; nothing was written")


def is_unicode(text: str) -> bool:
    """Whether a text can be stored: no half of a surrogate pair is in it."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Anything:
    """Any JSON value. What can be stored at all is the codec's business."""

    def check(self, value: Any, path: str) -> None:
        """Accept every value."""

    def schema(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class Text:
    """A text; with `pattern`, one that matches it whole."""

    pattern: str = ""
    what: str = "a text"
    _matches: Callable[[str], object] = field(init=False, repr=False, compare=False, default=bool)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_matches", re.compile(self.pattern).fullmatch)

    def check(self, value: Any, path: str) -> None:
        if type(value) is not str or (self.pattern and not self._matches(value)):
            raise refuse(path, self.what, value)
        if not (value.isascii() or is_unicode(value)):
            raise refuse(path, "text that is valid Unicode, without a lone surrogate", value)

    def schema(self) -> dict[str, Any]:
        return {"type": "string"} | ({"pattern": f"^(?:{self.pattern})$"} if self.pattern else {})


@dataclass(frozen=True, slots=True)
class Name:
    """An id, a key or a name: not empty, bounded, without NUL."""

    def check(self, value: Any, path: str) -> None:
        """See Shape."""
        sound = type(value) is str and 0 < len(value) <= name_chars_max and "\0" not in value
        if not sound or not (value.isascii() or is_unicode(value)):
            raise refuse(path, f"a name of 1 to {name_chars_max} characters of Unicode without NUL", value)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "maxLength": name_chars_max}


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    def check(self, value: Any, path: str) -> None:
        if type(value) is not bool:
            raise refuse(path, "true or false", value)

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number of at most 64 bits, from `least`."""

    least: int = 0

    def check(self, value: Any, path: str) -> None:
        if type(value) is not int or not max(self.least, int_min) <= value <= int_max:
            raise refuse(path, f"a whole number from {self.least}", value)

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least}


@dataclass(frozen=True, slots=True)
class Number:
    """A number that isn't negative: a duration, an age."""

    def check(self, value: Any, path: str) -> None:
        if type(value) not in (int, float) or not 0 <= value < float("inf"):
            raise refuse(path, "a finite number from 0", value)

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": 0}


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]

    def check(self, value: Any, path: str) -> None:
        if value not in self.words or type(value) is not str:
            raise refuse(path, f"one of {', '.join(self.words)}", value)

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list whose items are all of one shape."""

    item: Shape
    least: int = 0

    def check(self, value: Any, path: str) -> None:
        kind = kind_of(value)
        items = cast("list[Any]", value)
        if kind is not list or len(items) < self.least:
            raise refuse(path, f"a list of at least {self.least}" if self.least else "a list", value)
        if not isinstance(self.item, Anything):
            for place, item in enumerate(items):
                self.item.check(item, f"{path}[{place}]")

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema()} | ({"minItems": self.least} if self.least else {})


@dataclass(frozen=True, slots=True)
class Pair:
    """A list of two: [text, whole number]."""

    def check(self, value: Any, path: str) -> None:
        kind = kind_of(value)
        pair = cast("list[Any]", value)
        if kind is not list or len(pair) != 2:  # noqa: PLR2004 - a pair
            raise refuse(path, "a pair [text, whole number]", value)
        Text().check(pair[0], f"{path}[0]")
        Whole().check(pair[1], f"{path}[1]")

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "prefixItems": [Text().schema(), Whole().schema()], "minItems": 2, "maxItems": 2}


@dataclass(frozen=True, slots=True)
class MapOf:
    """An object whose values are all of one shape."""

    value: Shape

    def check(self, value: Any, path: str) -> None:
        if type(value) is not dict:
            raise refuse(path, "an object", value)
        if not isinstance(self.value, Anything):
            entries = cast("dict[str, Any]", value)
            for key, item in entries.items():
                Text().check(key, f"a key of {path}")
                self.value.check(item, f"{path}.{key}"[:200])

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.value.schema()}


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """An object with these fields. Those in `optional` may be missing; others are allowed if `open`."""

    required: Mapping[str, Shape]
    optional: Mapping[str, Shape] = field(default_factory=dict[str, Shape])
    open: bool = False

    def check(self, value: Any, path: str) -> None:
        if type(value) is not dict:
            raise refuse(path, f"an object with {', '.join(self.required) or 'known fields'}", value)
        entries = cast("dict[str, Any]", value)
        for name, shape in self.required.items():
            if name not in entries:
                raise InvalidArgument(
                    f"{path}: {name} is missing; expected {', '.join(self.required)}; nothing was written"
                )
            shape.check(entries[name], f"{path}.{name}")
        for name, item in entries.items():
            if name in self.optional:
                self.optional[name].check(item, f"{path}.{name}")
            elif name not in self.required and not self.open:
                known = ", ".join([*self.required, *self.optional])
                raise InvalidArgument(
                    f"{path}: unknown field {str(name)[:60]!r}; known are {known}; nothing was written"
                )

    def schema(self) -> dict[str, Any]:
        shapes = {**self.required, **self.optional}
        return {
            "type": "object",
            "properties": {name: shape.schema() for name, shape in shapes.items()},
            "required": list(self.required),
            "additionalProperties": self.open,
        }


def without_unknown(shape: Shape, value: Any, path: str, unknown: dict[str, Any]) -> Any:
    """Return a value without the keys of its objects that the shape doesn't know; these go to `unknown`, by path.

    What a newer version added is so told from what is wrong: the rest still has to be of the shape.
    """
    if isinstance(shape, ListOf) and kind_of(value) is list:
        items = cast("list[Any]", value)
        return [without_unknown(shape.item, item, f"{path}[{place}]", unknown) for place, item in enumerate(items)]
    if kind_of(value) is not dict:
        return value
    entries = cast("dict[str, Any]", value)
    if isinstance(shape, MapOf):
        return {key: without_unknown(shape.value, item, f"{path}.{key}", unknown) for key, item in entries.items()}
    if not isinstance(shape, Fields) or shape.open:
        return entries
    shapes, known = {**shape.required, **shape.optional}, dict[str, Any]()
    for key, item in entries.items():
        if key in shapes:
            known[key] = without_unknown(shapes[key], item, f"{path}.{key}", unknown)
        else:
            unknown[f"{path}.{key}"] = item
    return known


# The nested values: each is named in docs/reference/events.md.

MONEY: Final = Text(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", "a decimal number as text, such as '0.0125'")
TIME: Final = Text(
    r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{6}Z",
    "a UTC time such as 2026-11-29T13:28:05.123456Z",
)
MEDIA_TYPE: Final = Text(
    r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}(;[ -~]{1,200})?",
    "a media type such as image/png",
)
DIGEST: Final = Text(r"[0-9a-f]{64}", "a SHA-256 in hex")
RAISED: Final = Fields({"type": Text(), "message": Text()})
ERROR: Final = Fields(
    {"type": Text(), "message": Text()},
    {
        "kind": OneOf(("rejected", "unknown")),
        "note": Text(),
        "traceback": Text(),
        "original": RAISED,
        "status": Whole(100),
    },
)
USAGE: Final = Fields(
    {},
    {
        "input": Whole(), "output": Whole(), "cache_read": Whole(), "cache_write": Whole(), "unsplit": Whole(),
        "cache_write_1h": Whole(), "reasoning": Whole(), "input_audio": Whole(), "output_audio": Whole(),
        "web_searches": Whole(), "service_tier": Name(), "speed": Name(), "region": Name(), "batch": Flag(),
        "unknown": ListOf(Name()), "assumed": ListOf(Name()), "unmeasured": Text(), "raw": Anything(),
    },
)  # fmt: skip
COST: Final = Fields(
    {"amount": MONEY, "currency": Name(), "source": OneOf(("reported", "estimated"))}, {"pricing_version": Text()}
)
PRICE: Final = Fields(
    {"source": OneOf(("estimated", "list")), "pricing_version": Text(), "model": Name(), "currency": Name()},
    {"amount": MONEY, "rates": MapOf(MONEY), "why": Text()},
)
BUDGET: Final = Fields({}, {"usd": MONEY, "tokens": Whole(), "steps": Whole(), "seconds": Number()})
SPENT: Final = Fields({"usd": MONEY, "tokens": Whole()})
BORN: Final = Fields({"boot_id": Name(), "boottime_s": Number()})
PROCESS: Final = Fields({"host": Text(), "boot_id": Text(), "pid_ns": Text(), "pid": Whole(), "started": Text()})
BASE: Final = Fields({"run_id": Name(), "seq": Whole(1), "hash": DIGEST})
ORIGIN: Final = Fields({}, {"session_id": Text(), "uuid": Text(), "agent_id": Text(), "sidechain": Flag()})
REQUEST: Final = Fields(
    {},
    {
        "after": Whole(1),
        "keys": ListOf(Text()),
        "keep": MapOf(Whole(1)),
        "tail": MapOf(ListOf(Anything())),
        "rest": MapOf(Anything()),
    },
)
WAIT: Final = Fields(
    {"kind": OneOf(("approval", "question", "child", "signal", "timer", "code", "recoveries")), "id": Name()},
    {"step": Name(), "differs": OneOf(("plan", "step", "request"))},
)
DEFAULT: Final = Fields({}, {"args": Anything(), "choice": Text()})
RECALLED_CALL: Final = Fields(
    {"tool": Name(), "policy": OneOf(("model", *POLICIES)), "status": OneOf(("new", "completed", "failed"))},
    {
        "read_only": Flag(), "on_unknown": OneOf(ON_UNKNOWN), "own_key": Flag(), "unusable": Flag(), "attempt": Whole(),
        "ended": Whole(), "place": Whole(), "maybe": ListOf(Whole(1)), "value_seq": Whole(), "args_seq": Whole(),
        "began": Whole(), "latest": Whole(), "started_at": Text(), "taken": Text(), "taken_seq": Whole(),
    },
)  # fmt: skip
RECALLED_QUESTION: Final = Fields(
    {"action": Text(), "attempt": Whole(), "asked_seq": Whole(1), "asked_at": Text(), "decision": Text()},
    {"tool": Text(), "call_id": Text(), "risk": Text(), "expires_at": Text(), "answered_seq": Whole(1)},
)
RECALLED: Final = Fields({"calls": MapOf(RECALLED_CALL), "questions": MapOf(RECALLED_QUESTION)})
TASK: Final = Fields(
    {"id": Name(), "title": Text(), "status": OneOf(("todo", "doing", "done", "dropped"))}, {"note": Text()}
)
MESSAGE: Final = Fields(
    {"role": OneOf(("system", "user", "assistant", "tool")), "content": Anything()},
    {"message_id": Name(), "provider": Text(), "raw": Anything()},
)
