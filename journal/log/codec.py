"""Event <-> the exact bytes that are stored and hashed.

A body is one JSON object, its keys in this order, the optional ones only when used:

    {"v":1,"at":"2026-11-29T13:28:05.123456Z","by":"worker-7","epoch":3,"step":4,"ext":{…},"names":["…"],
     "private":{…},"data":{…}}

The round-trip rule: a value is stored only if it comes back equal, type for type and key after key. Nothing stored is
ever imported, evaluated or unpickled.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

import orjson

from .base import (
    NOTHING_UNKNOWN,
    BlobRef,
    Event,
    Json,
    NewerEvent,
    PurgedEvent,
    RecordedEvent,
    UnknownEvent,
    UnreadableEvent,
    data_of,
    event_of,
    known_data,
    plan_of,
    registered,
    upcasters,
)
from .chain import GENESIS, NewRow, event_hash
from .errors import InvalidArgument, MissingExtra, TooLarge, Unstorable
from .limits import (
    blob_bytes_max,
    event_data_bytes_max,
    inline_value_bytes_max,
    int_max,
    int_min,
    json_depth_max,
    name_chars_max,
    run_id_chars_max,
)
from .media import MARK, named_in
from .private_values import Keys, put_back
from .shapes import DIGEST, Whole, refuse

T = TypeVar("T", bound="str | None")

_OPTIONS: Final = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_known: Final = registered()
_Show: TypeAlias = Callable[[dict[str, Any], Any, frozenset[str]], None]
_SCALARS: Final = frozenset({str, bool, type(None)})
_TEXT: Final = frozenset({str})
_MUTABLE: Final = frozenset({dict, list})
_LENGTH: Final = Whole(0)


class Draft(NamedTuple):
    """An event before it is stored, with all that is drawn once so that a repeated append is the same append.

    `at` is UTC text with microseconds, `step` the index of the step that it belongs to, or None. `data` is its JSON,
    `ext` the fields that went to blobs, `blobs` their bytes by digest. `private` is what was taken out of both,
    encrypted (`hiding.hide`). `names` are the digests of the references to bytes in its values (`media.py`).
    """

    event: Event
    type: str
    at: str
    by: str
    step: int | None
    data: bytes
    ext: bytes = b""
    blobs: tuple[tuple[str, bytes], ...] = ()
    private: bytes = b""
    names: bytes = b""


@lru_cache(maxsize=1024)
def _is_run_id(text: str) -> bool:
    return RUN_ID.fullmatch(text) is not None


def check_run_id(run_id: object) -> str:
    """Return the run id, or raise InvalidArgument.

    A run id is 1 to 128 of A-Z a-z 0-9 . _ - and begins with none of . _ -.
    """
    if not isinstance(run_id, str) or not _is_run_id(run_id):
        shown = ascii(run_id)[:80] if isinstance(run_id, str) else type(run_id).__name__
        raise InvalidArgument(
            f"run id {shown}: expected 1 to {run_id_chars_max} characters of A-Z a-z 0-9 . _ -, "
            "starting with a letter or digit"
        )
    return run_id


def check_store_id(store_id: object) -> str:
    """Return the id of a store, which is of the characters of a run id, or raise InvalidArgument."""
    if not isinstance(store_id, str) or not _is_run_id(store_id):
        raise InvalidArgument(
            f"store_id: expected 1 to {run_id_chars_max} characters of A-Z a-z 0-9 . _ -, starting with a letter or "
            f"digit, got {ascii(store_id)[:80]}"
        )
    return store_id


def _is_flat(value: Json) -> bool:
    """Return whether a value is an object of texts, flags and nulls, as most events are: nothing in it is to check."""
    kind: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType] - of whatever
    return kind is dict and _TEXT.issuperset(map(type, value)) and _SCALARS.issuperset(map(type, value.values()))


def _check(value: Json, path: str, depth: int) -> None:
    kind: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType] - of whatever
    if kind in _SCALARS:
        return
    if kind is int:
        if not int_min <= value <= int_max:
            raise Unstorable(path, "a whole number of 64 bits", f"one of {value.bit_length()} bits")
    elif kind is float:
        if not math.isfinite(value):
            raise Unstorable(path, "a finite number", repr(value))
    elif kind is dict or kind is list:
        if depth >= json_depth_max:
            raise Unstorable(path, f"at most {json_depth_max} levels of nesting", "more")
        if kind is list:
            for place, item in enumerate(value):
                if type(item) not in _SCALARS and not (type(item) is int and int_min <= item <= int_max):
                    _check(item, f"{path}[{place}]", depth + 1)
        else:
            for key, item in value.items():
                if type(key) is not str:
                    raise Unstorable(path, "text as keys", f"a key of type {type(key).__name__}")
                if type(item) not in _SCALARS and not (type(item) is int and int_min <= item <= int_max):
                    _check(item, f"{path}.{key}"[:200], depth + 1)
    else:
        hint = "; a tuple comes back as a list: write list(…)" if isinstance(value, tuple) else ""
        raise Unstorable(
            path,
            "a plain JSON value (None, bool, int, float, str, list, dict)",
            f"{kind.__module__}.{kind.__qualname__}{hint}",
        )


def dumps(value: Json, path: str = "$", depth: int = 0) -> bytes:
    """Return the JSON bytes of a value that comes back equal, type for type. Raises Unstorable, naming the place.

    Allowed are a depth of at most 64, counted from `depth`, integers of 64 bits, finite floats, keys that are text, no
    subclass of str, int, list or dict, and no lone surrogate.
    """
    if type(value) not in _SCALARS and not (depth < json_depth_max and _is_flat(value)):
        _check(value, path, depth)
    try:
        text = orjson.dumps(value, option=_OPTIONS)
    except (TypeError, ValueError, RecursionError):
        raise Unstorable(_surrogate(value, path), "text that is valid Unicode", "a lone surrogate") from None
    if orjson.loads(text) != value:
        raise Unstorable(path, "a value that comes back equal", "one that doesn't")
    return text


def _surrogate(value: object, path: str) -> str:
    """Return where a lone surrogate hides."""
    if isinstance(value, str):
        return path if any("\ud800" <= char <= "\udfff" for char in value) else ""
    children: Iterable[tuple[str, Any]] = ()
    if isinstance(value, list):
        items: list[Any] = value  # pyright: ignore[reportUnknownVariableType] - of whatever
        children = ((f"{path}[{place}]", item) for place, item in enumerate(items))
    elif isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        if any(_surrogate(key, path) for key in entries):
            return path
        children = ((f"{path}.{key}"[:200], item) for key, item in entries.items())
    return next((found for where, item in children if (found := _surrogate(item, where))), "")


def loads(text: bytes) -> Json:
    """Return the value of JSON bytes that `dumps` made. Raises ValueError, also if they nest too deep.

    An integer over 64 bits would become a float.
    """
    value = orjson.loads(text)
    if text.count(b"[") + text.count(b"{") > json_depth_max and not _shallow(value, json_depth_max):
        raise ValueError(f"it nests deeper than json_depth_max = {json_depth_max}")
    return value


def plain(value: Json) -> Json:
    """A value as it comes back from the field of an event that holds it: equal, and a copy.

    Raises Unstorable, TooLarge: what is returned here can be stored.
    """
    text = dumps(value, depth=1)
    if len(text) > blob_bytes_max:
        check_blob(text, "$")
    return orjson.loads(text)


def check_blob(text: bytes, path: str) -> None:
    """Raise TooLarge for a value that no blob may hold."""
    if len(text) > blob_bytes_max:
        raise TooLarge(f"{path}: {len(text)} bytes, a value may have at most blob_bytes_max = {blob_bytes_max}")


def tellable(text: T) -> T:
    """What somebody says to people (a reason, a note, a title), lone surrogates escaped.

    A value is stored only if it comes back equal. What is said for people is kept as far as it can be, since nothing is
    worked out from it, and it may come from bytes of a file's name or of another program. Anything but text is itself.
    """
    if isinstance(text, str) and not text.isascii():
        return cast("T", text.encode("utf-8", "backslashreplace").decode())
    return text


def digest_of(text: bytes) -> str:
    """Return SHA-256 in hex."""
    return hashlib.sha256(text).hexdigest()


def draft(event: Event, *, at: str, by: str, step: int | None = None) -> Draft:
    """Check an event and return it as it will be stored. Raises InvalidArgument, Unstorable, TooLarge."""
    if _known.get(getattr(event, "TYPE", "")) is not type(event):
        if isinstance(event, type):
            raise InvalidArgument(f"expected an event, got the class {event.__name__}: make one, {event.__name__}(…)")
        raise InvalidArgument(
            f"{type(event).__name__} is not a registered event type, or isn't the class registered for its TYPE: "
            "derive from Event, give it a TYPE 'x.<name>', register it"
        )
    data = data_of(event)
    ext: dict[str, Any] = {}
    blobs: list[tuple[str, bytes]] = []
    for name in sorted(event.BLOBS):  # a set has another order in each process
        if type(value := data.get(name)) is BlobRef:
            _check_ref(name, value)
            ext[name] = {"sha256": value.sha256, "bytes": value.bytes}
            del data[name]
        elif name == event.RAW:
            raw = _raw(name, value)
            ext[name] = {"sha256": digest_of(raw), "bytes": len(raw)}
            blobs.append((ext[name]["sha256"], raw))
            del data[name]
    text = dumps(data, "$")
    names = named_in(data) if MARK in text else ()
    if len(text) > inline_value_bytes_max:
        for name in sorted(event.BLOBS & data.keys()):
            value = dumps(data[name], f"$.{name}")
            if len(value) > inline_value_bytes_max:
                check_blob(value, f"$.{name}")
                ext[name] = {"sha256": digest_of(value), "bytes": len(value)}
                blobs.append((ext[name]["sha256"], value))
                del data[name]
        text = dumps(data, "$")
    if len(text) > event_data_bytes_max:
        raise TooLarge(
            f"{event.TYPE}: {len(text)} bytes, an event may have event_data_bytes_max = {event_data_bytes_max}"
        )
    if ext:  # folds see what a reader will see
        event = with_data(event, data, ext)
    elif not _MUTABLE.isdisjoint(map(type, data.values())):  # nor what the writer does to its values later
        event = event_of(type(event), orjson.loads(text), checked=True)
    more = orjson.dumps(ext) if ext else b""
    return Draft(
        event, event.TYPE, at, check_by(by), step, text, more, tuple(blobs), names=orjson.dumps(names) if names else b""
    )


def _raw(name: str, value: object) -> bytes:
    """Return the bytes that a field is given. Raises InvalidArgument, TooLarge."""
    if not isinstance(value, bytes) or not value:
        what = "some bytes" if isinstance(value, bytes) else "bytes"
        raise refuse(name, what, value)
    check_blob(value, name)
    return value


def _check_ref(name: str, ref: BlobRef) -> None:
    """Raise InvalidArgument unless a reference names a blob: a SHA-256 in hex and a length."""
    DIGEST.check(ref.sha256, f"{name}.sha256")
    _LENGTH.check(ref.bytes, f"{name}.bytes")


def check_by(by: object) -> str:
    """Check the name of a writer: 1 to 512 characters without control characters. Raises InvalidArgument."""
    if not isinstance(by, str) or not by or len(by) > name_chars_max or not by.isprintable():
        raise InvalidArgument(f"by: expected text of 1 to {name_chars_max} printable characters")
    return by


def with_data(event: Event, data: Mapping[str, Any], ext: Mapping[str, Any]) -> Event:
    """Return the event with references in place of the fields that went to blobs."""
    return with_refs(event, ext) if ext else event_of(type(event), data)


def with_refs(event: Event, ext: Mapping[str, Any]) -> Event:
    """Return the event with these references as its fields."""
    return replace(event, **{f.attribute: BlobRef(**ext[f.name]) for f in plan_of(type(event)) if f.name in ext})


def encode(draft: Draft, *, epoch: int) -> bytes:
    """Return the exact bytes of an event, which are hashed together with its place: `chain.event_hash`."""
    return b'{"v":%d,"at":"%b","by":%b,"epoch":%d,"step":%b%b%b%b,"data":%b}' % (
        draft.event.VERSION,
        draft.at.encode(),
        orjson.dumps(draft.by),
        epoch,
        b"null" if draft.step is None else b"%d" % draft.step,
        b',"ext":%b' % draft.ext if draft.ext else b"",
        b',"names":%b' % draft.names if draft.names else b"",
        b',"private":%b' % draft.private if draft.private else b"",
        draft.data,
    )


def linked(run_id: str, seq: int, prev: str | None, draft: Draft, *, epoch: int) -> tuple[RecordedEvent, NewRow]:
    """Return a draft at its place: the record that a reader will get, but for its position, and the row to store.

    `prev` is the hash, in hex, of the event before it; None for the first.
    """
    body = encode(draft, epoch=epoch)
    digest = event_hash(run_id, seq, draft.type, GENESIS if prev is None else bytes.fromhex(prev), body)
    at, by, step, event = draft.at, draft.by, draft.step, draft.event
    made = RecordedEvent(
        run_id, seq, 0, draft.type, at, by, epoch, step, digest.hex(), event, NOTHING_UNKNOWN, bool(draft.private)
    )
    return made, (seq, draft.type, body, digest)


def _event(event_type: str, body: bytes, envelope: dict[str, Any], show: _Show) -> tuple[Event, Mapping[str, Json]]:
    """Return the event that a stored body holds, and what of it this version doesn't know. Never raises.

    `show` puts private values back: `private_values.put_back`, but for the data and what stands in the body for them.
    """
    try:
        version, data = envelope["v"], envelope["data"]
        if type(version) is not int or type(data) is not dict:
            return UnreadableEvent(event_type, "v or data has the wrong type", body), NOTHING_UNKNOWN
        cls = _known.get(event_type)
        if (hidden := envelope.get("private")) is not None:
            show(cast("dict[str, Any]", data), hidden, frozenset() if cls is None else cls.BLOBS)
        if not _shallow_text(body, cast("object", data)):
            what = f"it nests deeper than json_depth_max = {json_depth_max}"
            return UnreadableEvent(event_type, what, body), NOTHING_UNKNOWN
        if cls is None and event_type.startswith("x."):
            return UnknownEvent(event_type, version, data), NOTHING_UNKNOWN
        if cls is None or version > cls.VERSION:  # a type that isn't a user's own is one of a newer runjournal
            return NewerEvent(event_type, version, data), NOTHING_UNKNOWN
        if ext := envelope.get("ext"):
            data = cast("dict[str, Any]", data) | {
                name: BlobRef(ref["sha256"], ref["bytes"]) for name, ref in ext.items() if name in cls.BLOBS
            }
            for name in cls.BLOBS & ext.keys():
                _check_ref(name, cast("BlobRef", data[name]))
        while version < cls.VERSION:
            data = upcasters()[event_type, version](dict(cast("dict[str, Any]", data)))
            version += 1
        return _tolerant(cls, cast("dict[str, Any]", data))
    except MissingExtra:
        raise
    except Exception as error:  # noqa: BLE001 - an upcaster or a class of the user's own may raise anything
        return UnreadableEvent(event_type, f"{type(error).__name__}: {error}"[:300], body), NOTHING_UNKNOWN


def _tolerant(cls: type[Event], data: dict[str, Any]) -> tuple[Event, Mapping[str, Json]]:
    """Return the event of this data, and what its class doesn't know of it. Raises InvalidArgument for the rest."""
    try:
        return event_of(cls, data), NOTHING_UNKNOWN
    except InvalidArgument:
        known, unknown = known_data(cls, data)
        if not unknown:
            raise
        return event_of(cls, known), unknown


def _shallow_text(text: bytes, value: object) -> bool:
    """Whether the value of a JSON text nests no deeper than a stored one may: most have fewer brackets than that."""
    return text.count(b"[") + text.count(b"{") <= json_depth_max or _shallow(value, json_depth_max)


def _shallow(value: object, levels: int) -> bool:
    """Whether a value of JSON nests no deeper than so many levels; level by level, since calls have a limit too."""
    found = [value]
    for _ in range(levels):
        found = [item for each in found for item in _items(each)]
        if not found:
            return True
    return not any(isinstance(each, dict | list) for each in found)


def _items(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def is_utf8(text: str) -> bool:
    """Whether a text can be written as UTF-8: no, if a store has read it from bytes that are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_NOTHING: Final[dict[str, Any]] = {}


def decode(  # noqa: PLR0917 - the columns of a row, in their order
    run_id: str, seq: int, position: int, event_type: str, body: bytes, digest: bytes, keys: Keys
) -> RecordedEvent:
    """Return the record of a stored row. What can't be read is an UnreadableEvent; only MissingExtra is raised.

    `digest` are the bytes of the row's hash, which nobody has compared with the event yet: `chain.verified` does.
    `keys(run_id)` returns the key of a private run; with `no_key` its private values read as if they had been erased.
    """
    try:
        envelope = orjson.loads(body) if body else _NOTHING
        at, by, epoch, step = envelope["at"], envelope["by"], envelope["epoch"], envelope["step"]
        sound = type(at) is str and type(by) is str and type(epoch) is int and (step is None or type(step) is int)
    except (KeyError, TypeError, ValueError):
        sound, envelope, at, by, epoch, step = False, _NOTHING, "", "", 0, None
    event: Event
    unknown: Mapping[str, Json] = NOTHING_UNKNOWN
    if not (event_type.isascii() or is_utf8(event_type)) or not (run_id.isascii() or is_utf8(run_id)):
        event = UnreadableEvent(event_type, "its type or its run's id is no UTF-8", body)
    elif not body:
        event = PurgedEvent(event_type)
    elif sound:
        event, unknown = _event(event_type, body, envelope, partial(put_back, keys, run_id, seq, event_type))
    else:
        event = UnreadableEvent(event_type, "the body is not an event's JSON", body)
        at, by, epoch, step = "", "", 0, None
    private = envelope is not _NOTHING and "private" in envelope
    return RecordedEvent(run_id, seq, position, event_type, at, by, epoch, step, digest.hex(), event, unknown, private)
