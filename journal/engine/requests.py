"""A request to a model as it was asked: its hash, what is new in it, and what makes a long one cheap.

An agent sends its whole conversation at every turn. What a turn costs has to hang on what is new in it, so each list of
a request (its messages, its tools) is known by a chain of digests, one an element, which can be extended. What was
asked before is compared with a copy that nobody else has; only what comes behind it is checked, copied and hashed, and
only that is put into the log (`projections/requests.py`).

A request hash is SHA-256, in hex, over the JSON of [rest, lists]: `rest` is the request without the lists that it holds
by a key, and `lists` holds the hash of each of them by that key. The hash of a list is that of its last element:
h(0) = SHA-256 of nothing, h(i) = SHA-256(h(i-1) ‖ SHA-256 of the JSON of element i). A request that is a list is
[null, {"": its hash}]. JSON is that of the standard library, keys sorted, not escaped.

Where requests aren't stored, short digests of their parts are: of each key, and each element of a list, without its
clocks.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

import orjson

from runjournal.log.base import Json
from runjournal.log.codec import check_blob, dumps, plain
from runjournal.log.errors import Unstorable
from runjournal.log.limits import request_lists_kept_max, request_parts_max
from runjournal.log.shapes import kind_of
from runjournal.projections.requests import NO_LIST, hash_of, sha256_of
from runjournal.projections.requests import request_hash as request_hash

from .clocks import Clocks, ClockSpan

_OPTIONS: Final = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class Element(NamedTuple):
    """An element of a list that was asked: the chains up to it.

    `rest` is the chain of the elements beyond `request_parts_max` without their clocks; `short` is what stands for the
    element among the parts of its request. Both are nothing where requests are stored.
    """

    chain: bytes
    rest: bytes
    short: str


_START: Final = Element(NO_LIST, NO_LIST, "")
_DEPTH: Final = len(("request", "rest", "key"))
"""How deep what stands by a key of a request is in the data of an event; an element of a list is one deeper."""


class RecordedRequest(NamedTuple):
    """A request in the log, at a seq, that the next ones go on from; `lists` has the length and chain of each."""

    seq: int
    keys: list[str] | None
    rest: Mapping[str, bytes]
    lists: Mapping[str, tuple[int, bytes]]


_NOTHING: Final = RecordedRequest(0, None, {}, {})
"""Where a request goes on from that has nothing in common with what is in the log."""


class AskedList:
    """A list of a request, as it was asked last: a copy that nobody else has, one to lend, and a chain of digests."""

    def __init__(self, *, parts: bool) -> None:
        self.items: list[Json] = []  # replaced when it changes, never changed: a request may have it
        self.span = ClockSpan()  # when the parts hold
        self.origin: RecordedRequest | None = None  # the last one in the log that it stood in
        self.stable = 0  # so many elements are those that it had there
        self._parts = parts
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
        tail = [(dumps(item, "$", _DEPTH + 1), copied(item))[1] for item in given[count:]]
        if not tail and count == len(self.items):
            return
        mine, clocks = self.borrow(self.items)[:count], Clocks(now)
        del self._elements[count + 1 :], self._exact[bisect_left(self._exact, count) :]
        self.items, self.stable = self.items[:count], min(self.stable, count)
        for item in tail:
            mine.append(copied(item))
            self._add(item, clocks)
        self._lent, self._untouched = mine, True
        self.span = self.span.both(clocks.span)

    def _add(self, item: Json, clocks: Clocks) -> None:
        before, place = self._elements[-1], len(self.items)
        own = sha256_of(item)
        if _has_number(item):
            self._exact.append(place)
        self.items.append(item)
        rest, short = NO_LIST, ""
        if self._parts:
            shaped = clocks.shape(item)
            shape = own if shaped is item else sha256_of(shaped)
            rest, short = (
                hashlib.sha256(before.rest + shape).digest() if place >= request_parts_max else rest,
                _short(shape),
            )
        self._elements.append(Element(hashlib.sha256(before.chain + own).digest(), rest, short))

    def begins_with(self, length: int, chain: bytes) -> bool:
        """Return whether its first elements are those of a list with this chain."""
        return length < len(self._elements) and self._elements[length].chain == chain

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

    `hash` says which request it is. With `parts`, it is told of in the log by these alone.
    """

    def __init__(
        self, rest: dict[str, bytes], lists: dict[str, AskedList], now: datetime, *, keys: list[str] | None, parts: bool
    ) -> None:
        self._rest = rest
        self._lists = {key: (kept, kept.items) for key, kept in lists.items()}
        self._keys = keys  # in their order; None: the request is no dict
        self._loans: list[tuple[AskedList, list[Json], list[Json]]] = []
        self._chains = {key: kept.last.chain for key, kept in lists.items()}
        self.at = now
        values = {key: orjson.loads(text) for key, text in rest.items()}
        chains = {key: chain.hex() for key, chain in self._chains.items()}
        self.hash = hash_of(values if keys is not None else values.get(""), chains)
        self._parts: dict[str, Any] | None = None
        if parts:
            told = {key: kept.parts() for key, kept in lists.items()}
            self._parts = {key: told[key] if key in told else part_of(values[key], now) for key in self._order}

    @property
    def _order(self) -> list[str]:
        return [""] if self._keys is None else self._keys

    @property
    def parts(self) -> dict[str, Any]:
        """Return its keys, and the elements of a list under one, without their clocks, as short digests."""
        return parts_of(self.value, self.at) if self._parts is None else self._parts

    def told(self) -> tuple[Json, Json]:
        """Return what `model.started` holds of it as `request` and as `parts`: one of the two."""
        return (self._new(), None) if self._parts is None else (None, self._parts)

    def _new(self) -> dict[str, Any]:
        """Return what is new in it behind the request in the log that it has most in common with."""
        before, keep = _NOTHING, dict[str, int]()
        for kept, items in self._lists.values():
            origin = kept.origin if kept.items is items else None
            if origin is None or (origin.keys is None) != (self._keys is None):
                continue
            common = self._kept(origin)
            if (sum(common.values()), origin.seq) > (sum(keep.values()), before.seq):
                before, keep = origin, common
        rest, lists, new = before.rest, before.lists, dict[str, Any]()
        if before.seq:
            new["after"] = before.seq
        if self._keys is not None and before.keys != self._keys:
            new["keys"] = self._keys
        changed = {
            key: items for key, (_, items) in self._lists.items()
            if key not in lists or not len(items) == lists[key][0] == keep.get(key, 0)
        }  # fmt: skip
        new["keep"] = {key: count for key, count in keep.items() if count and key in changed}
        new["tail"] = {
            key: tail for key, items in changed.items() if (tail := items[keep.get(key, 0) :]) or not keep.get(key)
        }
        new["rest"] = {key: orjson.loads(text) for key, text in self._rest.items() if rest.get(key) != text}
        return {name: value for name, value in new.items() if value or name not in ("keep", "tail", "rest")}

    def _kept(self, before: RecordedRequest) -> dict[str, int]:
        """Return how many of the first elements of each list are those of a request in the log."""
        found: dict[str, int] = {}
        for key, (kept, items) in self._lists.items():
            length, chain = before.lists.get(key, (0, NO_LIST))
            if kept.items is not items or key not in before.lists:
                continue
            if kept.origin is before:
                found[key] = kept.stable
            elif kept.begins_with(length, chain):
                found[key] = length
        return found

    def recorded(self, seq: int) -> None:
        """Note that it is in the log: what is asked next goes on from there."""
        lists = {key: (len(items), self._chains[key]) for key, (_, items) in self._lists.items()}
        there = RecordedRequest(seq, self._keys, self._rest, lists)
        for kept, items in self._lists.values():
            if kept.items is items:
                kept.origin, kept.stable = there, len(items)

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
        whole = {key: lists[key] if key in lists else orjson.loads(self._rest[key]) for key in self._order}
        return whole[""] if self._keys is None else whole


class AskedRequests:
    """The requests of one call of an agent: of each list that a model was asked the newest ones, to go on from.

    With `parts`, they are told of in the log by short digests. `newest(model)` returns the newest request to a model in
    the log of the run, with its seq: what another process has asked is gone on from, too.
    """

    def __init__(
        self, *, parts: bool = False, newest: Callable[[str], tuple[int, Json] | None] = lambda _: None
    ) -> None:
        self._kept: dict[tuple[str, str], list[AskedList]] = {}
        self._with_parts = parts
        self._newest = newest
        self._known: set[str] = set()

    def asked(self, model: str, request: Json, now: datetime) -> AskedRequest:
        """Return what an agent asks a model. Raises Unstorable, TooLarge: what is returned here can be stored."""
        if model not in self._known and not self._with_parts:
            self._known.add(model)
            if (before := self._newest(model)) is not None:
                self._asked(model, before[1], now).recorded(before[0])
        return self._asked(model, request, now)

    def _asked(self, model: str, request: Json, now: datetime) -> AskedRequest:
        keyed = kind_of(request) is dict
        given = cast("dict[str, Any]", request) if keyed else {"": request}
        listed = {key: item for key, item in given.items() if kind_of(item) is list}
        try:
            rest = {key: _bytes(key, item, _DEPTH) for key, item in given.items() if key not in listed}
            lists = {key: self._followed((model, _key(key)), item, now) for key, item in listed.items()}
        except Unstorable:
            plain(request)  # raises, and says where
            raise
        return AskedRequest(rest, lists, now, keys=list(given) if keyed else None, parts=self._with_parts)

    def _followed(self, name: tuple[str, str], given: list[Any], now: datetime) -> AskedList:
        """Return a list as it is asked now: the one of the newest that it goes on from, or one of its own."""
        kept = [each for each in self._kept.get(name, ()) if each.span.holds(now)]
        counts = [each.common(given) for each in kept]
        count = max(counts, default=0)
        found = kept.pop(counts.index(count)) if counts else AskedList(parts=self._with_parts)
        if 2 * count < len(found.items):  # it is another conversation: that one may go on, too
            kept.append(found)
            found, count = AskedList(parts=self._with_parts), 0
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


def _short(digest: bytes) -> str:
    """Return what is enough of a digest that is only compared beside others."""
    return digest.hex()[:8]


def part_of(value: Json, now: datetime) -> str | list[str]:
    """Return what stands for what a request holds by a key, without its clocks: of a list one for each element.

    What is beyond `request_parts_max` is one.
    """
    if kind_of(value) is not list:
        return _short(sha256_of(Clocks(now).shape(value)))
    kept = AskedList(parts=True)
    kept.follow(value, 0, now)
    return kept.parts()


def parts_of(request: Json, now: datetime) -> dict[str, Any]:
    """Return the parts of a request that was asked at a moment."""
    given = cast("dict[str, Json]", request) if kind_of(request) is dict else {"": request}
    return {key: part_of(item, now) for key, item in given.items()}
