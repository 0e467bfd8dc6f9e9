"""A request to a model as it was asked: its hash, its parts and its shape; and what makes a long one cheap.

An agent sends its whole conversation at every turn. What a turn costs has to hang on what is new in it, so each list of
a request (its messages, its tools) is known by a chain of digests, one an element, which can be extended. What was
asked before is compared with a copy that nobody else has; only what comes behind it is checked, copied, hashed and
looked through for clocks.

A request hash is SHA-256, in hex, over the JSON of [rest, lists]: `rest` is the request without the lists that it holds
by a key, and `lists` holds the hash of each of them by that key. The hash of a list is that of its last element:
h(0) = SHA-256 of nothing, h(i) = SHA-256(h(i-1) ‖ SHA-256 of the JSON of element i). A request that is a list is
[null, {"": its hash}]. JSON is that of the standard library, keys sorted, not escaped.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

import orjson

from runjournal.log.base import Json
from runjournal.log.codec import check_blob, dumps, plain
from runjournal.log.errors import Unstorable
from runjournal.log.limits import request_lists_kept_max, request_parts_max
from runjournal.log.shapes import kind_of

from .clocks import Clocks, Span

_NO_LIST: Final = hashlib.sha256(b"").digest()
_OPTIONS: Final = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class Element(NamedTuple):
    """An element of a list that was asked: the chains up to it.

    `shapes` is the chain of the elements without their clocks, `rest` that of those beyond `request_parts_max`; `short`
    is what stands for the element among the parts of its request.
    """

    chain: bytes
    shapes: bytes
    rest: bytes
    short: str


_START: Final = Element(_NO_LIST, _NO_LIST, _NO_LIST, "")


class AskedList:
    """A list of a request, as it was asked last: a copy that nobody else has, one to lend, and a chain of digests."""

    def __init__(self, depth: int) -> None:
        self.depth = depth  # of its elements, in an event
        self.items: list[Json] = []  # replaced when it changes, never changed: a request may have it
        self.span = Span()  # when the shapes hold
        self._elements = [_START]
        self._exact: list[int] = []  # the places of those that may be equal to what has other bytes, as 1 and True are
        self._lent: list[Json] | None = []  # None: somebody has it, and may keep it
        self._untouched = True  # nobody has had it

    @property
    def last(self) -> Element:
        """Return its last element; that of an empty list is none."""
        return self._elements[-1]

    def common(self, given: list[Any]) -> int:
        """Return how many of its elements another list begins with."""
        if self._same(given, len(self.items)):
            return len(self.items)
        unlike = (place for place, (mine, item) in enumerate(zip(self.items, given, strict=False)) if mine != item)
        count = next(unlike, min(len(self.items), len(given)))
        while not self._same(given, count):  # it differs from a number on, maybe
            count //= 2
        return count

    def _same(self, given: list[Any], count: int) -> bool:
        """Return whether a list begins with so many of these elements, type for type."""
        if given[:count] != self.items[:count]:
            return False
        exact = self._exact[: bisect_left(self._exact, count)]
        try:
            return not exact or _exactly([given[n] for n in exact]) == _exactly([self.items[n] for n in exact])
        except (TypeError, ValueError, RecursionError):  # it can't be stored: whoever stores it says so
            return False

    def follow(self, given: list[Any], count: int, now: datetime) -> None:
        """Go on from the first `count` elements with those of a list. Raises Unstorable."""
        tail = [(dumps(item, "$", self.depth), copied(item))[1] for item in given[count:]]
        if not tail and count == len(self.items):
            return
        mine, clocks = self.borrow(self.items)[:count], Clocks(now)
        del self._elements[count + 1 :], self._exact[bisect_left(self._exact, count) :]
        self.items = self.items[:count]
        for item in tail:
            mine.append(copied(item))
            self._add(item, clocks)
        self._lent, self._untouched = mine, True
        self.span = self.span.both(clocks.span)

    def _add(self, item: Json, clocks: Clocks) -> None:
        before, place = self._elements[-1], len(self.items)
        own = _sha256(item)
        shaped = clocks.shape(item)
        shape = own if shaped is item else _sha256(shaped)
        if _has_number(item):
            self._exact.append(place)
        self.items.append(item)
        self._elements.append(
            Element(
                hashlib.sha256(before.chain + own).digest(),
                hashlib.sha256(before.shapes + shape).digest(),
                hashlib.sha256(before.rest + shape).digest() if place >= request_parts_max else _NO_LIST,
                _short(shape),
            )
        )

    def parts(self) -> list[str]:
        """Return its elements, without their clocks, as short digests; what is beyond `request_parts_max` is one."""
        first = [element.short for element in self._elements[1 : request_parts_max + 1]]
        return [*first, _short(self.last.rest)] if len(self.items) > request_parts_max else first

    def borrow(self, items: list[Json]) -> list[Json]:
        """Return a copy of what the list was; `give_back` it, if nobody else can have kept it."""
        if self._lent is not None and items is self.items:
            lent, self._lent = self._lent, None
            if self._untouched or (len(lent) == len(items) and self._same(lent, len(items))):
                return lent
        again: list[Json] = copied(items)
        return again

    def give_back(self, items: list[Json], lent: list[Json]) -> None:
        """Take a copy back that was borrowed: it is compared before it is lent again."""
        if items is self.items:
            self._lent, self._untouched = lent, False


class AskedRequest:
    """A request as it was asked at a moment; whatever becomes of the value that was given, it stays what it is.

    `hash` says which request it is, `shape` which one it is without its clocks. `parts` are its keys, and the elements
    of a list under one, without their clocks, as short digests: {"system": "9f86d081", "messages": ["2c26b46b", …]}.
    """

    def __init__(
        self, rest: dict[str, bytes], lists: dict[str, AskedList], now: datetime, *, keys: list[str] | None
    ) -> None:
        self._rest = rest
        self._lists = {key: (kept, kept.items) for key, kept in lists.items()}
        self._keys = keys  # in their order; None: the request is no dict
        self._loans: list[tuple[AskedList, list[Json], list[Json]]] = []
        values = {key: orjson.loads(text) for key, text in rest.items()}
        shaped = Clocks(now).shape(values)
        chains = {key: kept.last.chain.hex() for key, kept in lists.items()}
        shapes = {key: kept.last.shapes.hex() for key, kept in lists.items()}
        self.hash = _hash(values if keys is not None else values.get(""), chains)
        self.shape = _hash(shaped if keys is not None else shaped.get(""), shapes)
        self.parts: dict[str, Any] = {
            key: lists[key].parts() if key in lists else _short(_sha256(shaped[key]))
            for key in ([""] if keys is None else keys)
        }

    @property
    def value(self) -> Json:
        """Return the request, a copy."""
        return self._whole({key: copied(items) for key, (_, items) in self._lists.items()})

    def lend(self) -> Json:
        """Return a copy of the request to one who may change it; `take_back` what was lent once he has ended."""
        found: dict[str, Json] = {}
        for key, (kept, items) in self._lists.items():
            lent = kept.borrow(items)
            self._loans.append((kept, items, lent))
            found[key] = [*lent]
        return self._whole(found)

    def take_back(self) -> None:
        """Take back what was lent."""
        loans, self._loans = self._loans, []
        for kept, items, lent in loans:
            kept.give_back(items, lent)

    def _whole(self, lists: dict[str, Json]) -> Json:
        whole = {
            key: lists[key] if key in lists else orjson.loads(self._rest[key])
            for key in ([""] if self._keys is None else self._keys)
        }
        return whole[""] if self._keys is None else whole


class AskedRequests:
    """The requests of one call of an agent: of each list that a model was asked the newest ones, to go on from."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], list[AskedList]] = {}

    def asked(self, model: str, request: Json, now: datetime) -> AskedRequest:
        """Return what an agent asks a model. Raises Unstorable, TooLarge: what is returned here can be stored."""
        keyed = kind_of(request) is dict
        given = cast("dict[str, Any]", request) if keyed else {"": request}
        depth = 2 if keyed else 1  # as in the field of an event
        listed = {key: item for key, item in given.items() if kind_of(item) is list}
        try:
            rest = {key: _bytes(key, item, depth) for key, item in given.items() if key not in listed}
            lists = {key: self._followed((model, _key(key)), item, now, depth + 1) for key, item in listed.items()}
        except Unstorable:
            plain(request)  # raises, and says where
            raise
        return AskedRequest(rest, lists, now, keys=list(given) if keyed else None)

    def _followed(self, name: tuple[str, str], given: list[Any], now: datetime, depth: int) -> AskedList:
        """Return a list as it is asked now: the one of the newest that it goes on from, or one of its own."""
        kept = [each for each in self._kept.get(name, ()) if each.depth == depth and each.span.holds(now)]
        counts = [each.common(given) for each in kept]
        count = max(counts, default=0)
        found = kept.pop(counts.index(count)) if counts else AskedList(depth)
        if 2 * count < len(found.items):  # it is another conversation: that one may go on, too
            kept.append(found)
            found, count = AskedList(depth), 0
        found.follow(given, count, now)
        self._kept[name] = [*kept, found][-request_lists_kept_max:]
        return found


def _key(key: object) -> str:
    """Return a key of a request. Raises Unstorable."""
    dumps(key)
    if not isinstance(key, str):
        raise Unstorable("$", "text as keys", f"a key of type {type(key).__name__}")
    return key


def _bytes(key: object, value: Json, depth: int) -> bytes:
    """Return the bytes of what a request holds by a key, as those of an event's field. Raises Unstorable, TooLarge."""
    _key(key)
    text = dumps(value, "$", depth)
    check_blob(text, "$")
    return text


def copied(value: Json) -> Json:
    """Return a copy of a value of JSON that has the very texts of it: these are equal at a glance, however long."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in cast("dict[str, Json]", value).items()}
    return [copied(item) for item in value] if kind_of(value) is list else value


def _exactly(values: list[Json]) -> bytes:
    """Return bytes that differ where equal values do, as 1, 1.0 and True. Raises TypeError for what is no JSON."""
    return orjson.dumps(values, option=_OPTIONS)


def _has_number(value: Json) -> bool:
    """Return whether a value is or holds a number or a bool: such a one may be equal to one of another type."""
    if isinstance(value, dict):
        return any(map(_has_number, cast("dict[str, Json]", value).values()))
    if kind_of(value) is list:
        return any(map(_has_number, value))
    return isinstance(value, int | float)


def _sha256(value: Json) -> bytes:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).digest()


def _short(digest: bytes) -> str:
    """Return what is enough of a digest that is only compared beside others."""
    return digest.hex()[:8]


def _hash(rest: Json, lists: Mapping[str, str]) -> str:
    return _sha256([rest, lists]).hex()


def request_hash(request: Json) -> str:
    """Return the hash of a request: what `model.started` calls by this name, for whoever has the request itself."""
    given = cast("dict[str, Json]", request) if isinstance(request, dict) else {"": request}
    chains: dict[str, str] = {}
    for key, items in given.items():
        if kind_of(items) is list:
            chain = _NO_LIST
            for item in items:
                chain = hashlib.sha256(chain + _sha256(item)).digest()
            chains[key] = chain.hex()
    rest = {key: item for key, item in given.items() if key not in chains}
    return _hash(rest if isinstance(request, dict) else rest.get(""), chains)
