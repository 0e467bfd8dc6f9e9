"""What all events have in common: the base class, the registry, and the record that a stored event is read back as."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from operator import attrgetter
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from .errors import InvalidArgument
from .private_fields import PRIVATE_FIELDS, check_paths
from .shapes import Anything, Flag, ListOf, MapOf, Number, Shape, Text, Whole, without_unknown

Json: TypeAlias = Any
"""A value that JSON can hold: None, bool, int of 64 bits, finite float, str, list, dict with str keys."""
E_ = TypeVar("E_", bound="type[Event]")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. Immutable; its class says what, by a `TYPE` that is stored and never changes.

    A subclass is a frozen dataclass of JSON values. `VERSION` is that of its data; `BLOBS` names the fields that may
    be kept out of line, which no fold reads. `PRIVATE` names what is private in a private run, each a path with `*` for
    every item: `args`, `error.message`, `tasks.*.title`.
    `DURABLE`: the commit waits for the disk; for types of the user's own. `RAW`: the one of `BLOBS` that holds bytes
    as they are, no JSON; of the package's own type for that.
    """

    TYPE: ClassVar[str] = ""
    VERSION: ClassVar[int] = 1
    BLOBS: ClassVar[frozenset[str]] = frozenset()
    DURABLE: ClassVar[bool] = True
    PRIVATE: ClassVar[tuple[str, ...]] = ()
    RAW: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class BlobRef:
    """A value that is held out of line: the SHA-256 (hex) and the length in bytes of its JSON."""

    sha256: str
    bytes: int


ERASED: Final = BlobRef("", 0)
"""What stands for a private value that was erased; where only a text can stand, that is `ERASED_TEXT`."""


@dataclass(frozen=True, slots=True)
class UnknownEvent(Event):
    """An event of a type that this version doesn't know: kept, shown, verified, and nothing to any fold."""

    type: str
    v: int
    data: Json


@dataclass(frozen=True, slots=True)
class NewerEvent(Event):
    """A known type with data of a newer version: shown, and refused by folds."""

    type: str
    v: int
    data: Json


@dataclass(frozen=True, slots=True)
class UnreadableEvent(Event):
    """A stored body that isn't an event of its type; `reason` says what is wrong. Folding past it needs force."""

    type: str
    reason: str
    body: bytes


@dataclass(frozen=True, slots=True)
class PurgedEvent(Event):
    """An event of a run that was purged: its place, type and hash are there, and nothing else; to any fold nothing."""

    type: str


NOTHING_UNKNOWN: Final[Mapping[str, Any]] = types.MappingProxyType({})


class RecordedEvent(NamedTuple):
    """An event as it stands in the log: a tuple, because a replay makes hundreds of thousands of them.

    `seq` counts the run's events from 1 without a gap, `position` those of the store from 1, with gaps possible.
    `at` is UTC text with microseconds, `by` who wrote it, `epoch` the writer's fencing token (0 = not the owner),
    `step` the index of the step that it belongs to, from 0, or None. `hash` is its hash in hex, as it is stored.
    `unknown` holds what of its data this version doesn't know, by path: a newer one wrote it, and ignoring it is right.
    `private` says whether some of its values are stored so that they can be erased.
    """

    run_id: str
    seq: int
    position: int
    type: str
    at: str
    by: str
    epoch: int
    step: int | None
    hash: str
    event: Event
    unknown: Mapping[str, Json] = NOTHING_UNKNOWN
    private: bool = False


def at_position(record: RecordedEvent, position: int) -> RecordedEvent:
    """Return a record at its place in the store; `_replace` would take twice as long, and each append comes by here."""
    return RecordedEvent._make((record.run_id, record.seq, position, *record[3:]))


class Field(NamedTuple):
    """One field of an event class: its name in storage, its shape, and whether it may be missing."""

    name: str
    attribute: str
    shape: Shape
    optional: bool
    default: Any
    check: Callable[[Any, str], None] | None
    get: Callable[[Any], Any]
    put: Callable[[Any, Any], None] | None


_Writing: TypeAlias = tuple[str, Callable[[Any], Any], object, "Callable[[Any, str], None] | None"]
"""A field as `data_of` needs it: its name in storage, how to get its value, which value isn't stored, its check."""
_plans: dict[type[Event], tuple[Field, ...]] = {}
_writing_plans: dict[type[Event], tuple[_Writing, ...]] = {}
_NEVER: Final = object()
"""What no field ever holds."""
_types: dict[str, type[Event]] = {}
_upcasters: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}
_SIMPLE: Final[Mapping[Any, Shape]] = {str: Text(), int: Whole(), float: Number(), bool: Flag(), Any: Anything()}


def _shape(hint: Any) -> Shape:
    """Return the shape that an annotation stands for."""
    if get_origin(hint) is Annotated:
        return cast("Shape", get_args(hint)[1])
    if get_origin(hint) in (Union, types.UnionType):
        inner = [part for part in get_args(hint) if part is not type(None)]
        return _shape(inner[0]) if len(inner) == 1 else Anything()
    if get_origin(hint) is list:
        return ListOf(_shape(get_args(hint)[0]))
    if get_origin(hint) is dict:
        return MapOf(_shape(get_args(hint)[1]))
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    raise InvalidArgument(f"an event's field can't be a {hint}: use str, int, float, bool, list, dict or Json")


def _field(cls: type[Event], f: Any, hint: Any) -> Field:
    shape = _shape(hint)
    default = f.default if f.default is not MISSING else None
    if f.default_factory is not MISSING:
        raise InvalidArgument(f"{cls.__name__}.{f.name}: a default must be a plain value, not a factory")
    slot = getattr(cls, f.name, None)
    put = slot.__set__ if isinstance(slot, types.MemberDescriptorType) and not hasattr(cls, "__post_init__") else None
    check: Callable[[Any, str], None] | None = None if isinstance(shape, Anything) else shape.check
    if check is not None and f.name in cls.BLOBS:
        check = _unless(BlobRef, check)
    if check is not None and type(None) in get_args(hint) and f.default is not None:  # else None is never stored
        check = _unless(type(None), check)
    name = f.name.removesuffix("_")
    return Field(name, f.name, shape, f.default is not MISSING, default, check, attrgetter(f.name), put)


def _unless(kind: type, check: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    return lambda value, path: None if isinstance(value, kind) else check(value, path)


def plan_of(cls: type[Event]) -> tuple[Field, ...]:
    """Return the fields of an event class. They are read from its annotations, once."""
    if (plan := _plans.get(cls)) is None:
        hints = get_type_hints(cls, include_extras=True)
        plan = _plans[cls] = tuple(_field(cls, f, hints[f.name]) for f in fields(cls))
    return plan


def _writing_plan(cls: type[Event]) -> tuple[_Writing, ...]:
    if (plan := _writing_plans.get(cls)) is None:
        plan = tuple((f.name, f.get, f.default if f.optional else _NEVER, f.check) for f in plan_of(cls))
        _writing_plans[cls] = plan
    return plan


def data_of(event: Event) -> dict[str, Any]:
    """Return the data of an event as it is stored: optional fields only where they say something.

    Raises InvalidArgument.
    """
    data: dict[str, Any] = {}
    for name, get, unsaid, check in _writing_plans.get(type(event)) or _writing_plan(type(event)):
        value = get(event)
        if value is unsaid:
            continue
        if check is not None:
            check(value, name)
        data[name] = value
    return data


def event_of(cls: type[Event], data: Mapping[str, Any], *, checked: bool = False) -> Event:
    """Return the event that this data is stored from: the inverse of `data_of`.

    Raises InvalidArgument if a field is missing, unknown or of another shape. `checked`: the shapes are known to be
    right.
    """
    event, known, plain = cls.__new__(cls), 0, True
    for name, _, _, optional, default, check, _, put in _plans.get(cls) or plan_of(cls):
        if name in data:
            known += 1
            value = data[name]
            if check is not None and not checked:
                check(value, name)
        elif optional:
            value = default
        else:
            raise InvalidArgument(f"{name} is missing")
        if put is None:
            plain = False
        else:
            put(event, value)
    if known != len(data):
        unknown = sorted(data.keys() - {f.name for f in plan_of(cls)})
        raise InvalidArgument(f"unknown field {unknown[0][:60]!r}")
    return event if plain else cls(**{f.attribute: data[f.name] for f in plan_of(cls) if f.name in data})


def known_data(cls: type[Event], data: Mapping[str, Json]) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return the part of an event's data that its class knows, and the rest by path, such as `usage.audio`.

    Left out is only what may be ignored: fields that the class hasn't, and keys that a nested object doesn't know.
    """
    known, unknown = dict[str, Json](), dict[str, Json]()
    shapes = {f.name: f.shape for f in plan_of(cls)}
    for name, value in data.items():
        if name in shapes:
            known[name] = without_unknown(shapes[name], value, name, unknown)
        else:
            unknown[name] = value
    return known, unknown


def builtin(cls: E_) -> E_:
    """Register one of the package's own event types."""
    cls.PRIVATE = PRIVATE_FIELDS.get(cls.TYPE, cls.PRIVATE)
    _types[cls.TYPE] = cls
    return cls


def register(cls: E_) -> E_:
    """Register an event type of the user's own; usable as a decorator.

    `cls` is a frozen dataclass that derives from `Event`, with a `TYPE` of the form `x.<name>`. Stored data is matched
    to it by that text alone: nothing stored is ever imported. Raises InvalidArgument.

    >>> @register
    ... @dataclass(frozen=True, slots=True)
    ... class InvoiceSent(Event):
    ...     TYPE = "x.invoice_sent"
    ...     number: str
    """
    if not re.fullmatch(r"x\.[a-z0-9][a-z0-9_.-]{0,125}", cls.TYPE):
        raise InvalidArgument(f"{cls.__name__}.TYPE: expected 'x.<name>' in small letters, got {cls.TYPE[:60]!r}")
    params = vars(cls).get("__dataclass_params__")  # its own: fields of a class without the decorator are none
    derived = issubclass(cast("type[object]", cls), Event)  # a caller without a type checker may pass anything
    if not derived or params is None or not params.frozen:
        raise InvalidArgument(
            f"{cls.__name__}: expected a frozen dataclass that derives from Event: @dataclass(frozen=True, slots=True)"
        )
    other = _types.get(cls.TYPE)
    if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise InvalidArgument(f"{cls.TYPE} is registered already, by {other.__module__}.{other.__qualname__}")
    names = [f.name for f in plan_of(cls)]
    if len(set(names)) < len(names):
        raise InvalidArgument(f"{cls.__name__}: two of its fields differ only by a '_' at the end, which isn't stored")
    fields = {f.name: (f.shape, f.optional or f.attribute in cls.BLOBS) for f in plan_of(cls)}
    check_paths(cls.__name__, cls.PRIVATE, fields)
    return builtin(cls)


def upcaster(event_type: str, version: int) -> Callable[[Callable[[dict[str, Any]], dict[str, Any]]], Any]:
    """Register a function from dict to dict that turns data of `event_type` at `version` into data of `version + 1`."""

    def keep(function: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
        if (event_type, version) in _upcasters:
            raise InvalidArgument(f"{event_type} has an upcaster from version {version} already")
        _upcasters[event_type, version] = function
        return function

    return keep


def registered() -> Mapping[str, type[Event]]:
    """Return every known event type, by its `TYPE`."""
    return types.MappingProxyType(_types)


def upcasters() -> Mapping[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]]:
    """Return every registered upcaster, by (type, version that it takes)."""
    return types.MappingProxyType(_upcasters)
