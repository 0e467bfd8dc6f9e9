"""A request to a model as it was asked: its hash, its parts and its shape; and what makes a long one cheap.

An agent sends its whole conversation at every turn. What a turn costs has to hang on what is new in it, so each list of
a request (its messages, its tools) is known by a chain of digests, one an element, which can be extended. What was
asked before is compared as bytes; only what comes behind it is checked, copied, hashed and looked through for clocks.

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
from runjournal.log.codec import dumps, plain
from runjournal.log.errors import Unstorable
from runjournal.log.limits import blob_bytes_max, request_lists_kept_max, request_parts_max
from runjournal.log.shapes import kind_of

from .clocks import Clocks, Span

_NO_LIST: Final = hashlib.sha256(b"").digest()
_SHORT: Final = 8  # digits of a digest that is only compared beside others
_OPTIONS: Final = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class Element(NamedTuple):
    """An element of a list that was asked: where its bytes end, and the chains up to it.

    `shapes` is the chain of the elements without their clocks, `rest` that of those beyond `request_parts_max`; `short`
    is what stands for the element among the parts of its request.
    """

    end: int
    chain: bytes
    shapes: bytes
    rest: bytes
    short: str


_START: Final = Element(1, _NO_LIST, _NO_LIST, _NO_LIST, "")


class AskedList:
    """A list of a request, as far as it was ever asked: its bytes, a copy to lend, and a chain of digests."""

    def __init__(self, depth: int) -> None:
        self.text = b"[]"
        self.depth = depth  # of its elements, in an event
        self.span = Span()  # when the shapes hold
        self._elements = [_START]
        self._lent: list[Json] | None = []  # None: somebody has it, or has had it too long

    def __len__(self) -> int:
        return len(self._elements) - 1

    @property
    def last(self) -> Element:
        """Return its last element; that of an empty list is none."""
        return self._elements[-1]

    def common(self, text: bytes) -> int:
        """Return how many of its elements another list begins with, whose bytes these are."""
        if self._begins(text, len(self)):
            return len(self)
        counts = range(1, len(self) + 1)
        return bisect_left(counts, True, key=lambda count: not self._begins(text, count))

    def _begins(self, text: bytes, count: int) -> bool:
        end = self._elements[count].end
        return text[end : end + 1] in (b",", b"]") and memoryview(text)[:end] == memoryview(self.text)[:end]

    def follow(self, given: list[Any], count: int, now: datetime) -> bool:
        """Go on from the first `count` elements with those of a list; return False if these don't come back equal.

        Raises Unstorable for an element that can't be stored.
        """
        mine = self._lent = self.borrow(self.text)
        if mine[:count] != given[:count]:  # the bytes are the same, but a tuple has those of a list
            return False
        texts = [dumps(item, "$", self.depth) for item in given[count:]]
        if not texts and count == len(self):
            return True
        clocks = Clocks(now)
        del self._elements[count + 1 :], mine[count:]
        head = self.text[: self.last.end]
        for text in texts:
            mine.append(orjson.loads(text))
            self._add(len(text), mine[-1], clocks)
        self.text = b"%b%b%b]" % (head, b"," if count and texts else b"", b",".join(texts))
        self.span = self.span.both(clocks.span)
        return True

    def _add(self, length: int, item: Json, clocks: Clocks) -> None:
        before, place = self._elements[-1], len(self)
        own = _sha256(item)
        shaped = clocks.shape(item)
        shape = own if shaped is item else _sha256(shaped)
        self._elements.append(
            Element(
                before.end + length + (1 if place else 0),
                hashlib.sha256(before.chain + own).digest(),
                hashlib.sha256(before.shapes + shape).digest(),
                hashlib.sha256(before.rest + shape).digest() if place >= request_parts_max else _NO_LIST,
                shape.hex()[:_SHORT],
            )
        )

    def parts(self) -> list[str]:
        """Return its elements, without their clocks, as short digests; what is beyond `request_parts_max` is one."""
        first = [element.short for element in self._elements[1 : request_parts_max + 1]]
        return [*first, self.last.rest.hex()[:_SHORT]] if len(self) > request_parts_max else first

    def borrow(self, text: bytes) -> list[Json]:
        """Return a copy of the list that has these bytes; `give_back` it, if nobody else can have kept it."""
        lent, self._lent = self._lent, None
        if lent is not None and text is self.text and orjson.dumps(lent) == text:
            return lent
        again: list[Json] = orjson.loads(text)
        return again

    def give_back(self, text: bytes, lent: list[Json]) -> None:
        """Take a copy back that was borrowed: it is compared before it is lent again."""
        if text is self.text:
            self._lent = lent


class AskedRequest:
    """A request as it was asked at a moment; whatever becomes of the value that was given, it stays what it is.

    `hash` says which request it is, `shape` which one it is without its clocks. `parts` are its keys, and the elements of
    a list under one, without their clocks, as short digests: {"system": "9f86d081", "messages": ["2c26b46b", …]}.
    """

    def __init__(self, texts: Mapping[str, bytes], lists: Mapping[str, AskedList], now: datetime, *, keyed: bool) -> None:
        self._texts = texts
        self._lists = lists
        self._keyed = keyed
        self._loans: list[tuple[AskedList, bytes, list[Json]]] = []
        rest = {key: orjson.loads(text) for key, text in texts.items() if key not in lists}
        shaped = Clocks(now).shape(rest)
        chains = {key: kept.last.chain.hex() for key, kept in lists.items()}
        shapes = {key: kept.last.shapes.hex() for key, kept in lists.items()}
        self.hash = _hash(rest if keyed else rest.get(""), chains)
        self.shape = _hash(shaped if keyed else shaped.get(""), shapes)
        self.parts: dict[str, Any] = {
            key: lists[key].parts() if key in lists else _sha256(shaped[key]).hex()[:_SHORT] for key in texts
        }

    @property
    def value(self) -> Json:
        """Return the request, a copy."""
        return self._whole({key: orjson.loads(text) for key, text in self._texts.items()})

    def lend(self) -> Json:
        """Return a copy of the request to one who may change it; `take_back` what was lent once he has ended."""
        found: dict[str, Json] = {}
        for key, text in self._texts.items():
            if key in self._lists:
                lent = self._lists[key].borrow(text)
                self._loans.append((self._lists[key], text, lent))
                found[key] = [*lent]
            else:
                found[key] = orjson.loads(text)
        return self._whole(found)

    def take_back(self) -> None:
        """Take back what was lent."""
        loans, self._loans = self._loans, []
        for kept, text, lent in loans:
            kept.give_back(text, lent)

    def _whole(self, found: dict[str, Json]) -> Json:
        return found if self._keyed else found[""]


class AskedRequests:
    """The requests of one call of an agent: of each list that a model was asked the newest ones, to go on from."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], list[AskedList]] = {}

    def asked(self, model: str, request: Json, now: datetime) -> AskedRequest:
        """Return what an agent asks a model. Raises Unstorable, TooLarge: what is returned here can be stored."""
        keyed = kind_of(request) is dict
        given = cast("dict[str, Any]", request) if keyed else {"": request}
        depth = 2 if keyed else 1  # as in the field of an event
        try:
            lists = {
                key: self._followed((model, key), cast("list[Any]", item), now, depth + 1)
                for key, item in given.items()
                if kind_of(key) is str and kind_of(item) is list
            }
            texts = {key: lists[key].text if key in lists else _bytes(key, item, depth) for key, item in given.items()}
        except (Unstorable, TypeError, ValueError, RecursionError):
            plain(request)  # raises, and says where
            raise
        if sum(map(len, texts.values())) > blob_bytes_max:
            plain(request)
        return AskedRequest(texts, lists, now, keyed=keyed)

    def _followed(self, name: tuple[str, str], given: list[Any], now: datetime, depth: int) -> AskedList:
        """Return a list as it is asked now: the one of the newest that it goes on from, or one of its own."""
        text = orjson.dumps(given, option=_OPTIONS)
        kept = [each for each in self._kept.get(name, ()) if each.depth == depth and each.span.holds(now)]
        counts = [each.common(text) for each in kept]
        count = max(counts, default=0)
        found = kept.pop(counts.index(count)) if counts else AskedList(depth)
        if 2 * count < len(found):  # it is another conversation: that one may go on, too
            kept.append(found)
            found, count = AskedList(depth), 0
        self._kept[name] = [*kept, found][-request_lists_kept_max:]
        if not found.follow(given, count, now):
            raise Unstorable("$", "a value that comes back equal", "one that doesn't")
        return found


def _bytes(key: object, value: Json, depth: int) -> bytes:
    """Return the bytes of what a request holds by a key, as those of an event's field do. Raises Unstorable."""
    dumps(key)
    if kind_of(key) is not str:
        raise Unstorable("$", "text as keys", f"a key of type {type(key).__name__}")
    return dumps(value, "$", depth)


def _sha256(value: Json) -> bytes:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).digest()


def _hash(rest: Json, lists: Mapping[str, str]) -> str:
    return _sha256([rest, lists]).hex()


def request_hash(request: Json) -> str:
    """Return the hash of a request: what `model.started` calls by this name, for whoever has the request itself."""
    given = cast("dict[str, Json]", request) if isinstance(request, dict) else {"": request}
    chains: dict[str, str] = {}
    for key, items in given.items():
        if isinstance(items, list):
            chain = _NO_LIST
            for item in cast("list[Json]", items):
                chain = hashlib.sha256(chain + _sha256(item)).digest()
            chains[key] = chain.hex()
    rest = {key: item for key, item in given.items() if key not in chains}
    return _hash(rest if isinstance(request, dict) else rest.get(""), chains)
