"""What an importer must remember of a file: the newest of it in memory, all of it on disk.

A transcript may have a million lines, and each may be named by any later one, so nothing of it may be forgotten; and
nothing of it may make memory grow.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Generic, TypeVar, cast

from runjournal.log.limits import import_filter_bytes
from runjournal.log.sqlite_scratch import Scratch

T = TypeVar("T")


def _dump(value: object) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _load(body: bytes) -> object:
    return pickle.loads(body)  # noqa: S301 - only what this process wrote, into a file that nobody else can open


class Shelf(Generic[T]):
    """Things by name. The `held` that were used last are in memory; what is changed there is kept.

    Whoever gets a thing changes it before he asks for `held` others. `_away` has a bit for each name that may be on
    disk, so that a new name, as most are, isn't looked for there; several names may share one.
    """

    def __init__(self, scratch: Scratch, kind: str, held: int) -> None:
        self._scratch = scratch
        self._kind = kind
        self._held = held
        self._recent: OrderedDict[str, T] = OrderedDict()
        self._away = bytearray(import_filter_bytes)

    def get(self, name: str) -> T | None:
        """The thing of this name, or None."""
        if (found := self._recent.get(name)) is not None:
            self._recent.move_to_end(name)
            return found
        found = self.look_up(name)
        return None if found is None else self.put(name, found)

    def look_up(self, name: str) -> T | None:
        """The thing of this name, or None, for one who changes nothing of it."""
        if (found := self._recent.get(name)) is not None:
            return found
        place, bit = _place(name)
        if not self._away[place] & bit:
            return None
        body = self._scratch.get(self._kind, _key(name))
        return None if body is None else cast("T", _load(body))

    def put(self, name: str, thing: T) -> T:
        """Keep a thing under a name, instead of what was there; return it."""
        self._recent[name] = thing
        self._recent.move_to_end(name)
        if len(self._recent) > self._held:
            oldest, old = self._recent.popitem(last=False)
            self._scratch.put(self._kind, _key(oldest), _dump(old))
            place, bit = _place(oldest)
            self._away[place] |= bit
        return thing


class Seen:
    """Which numbers came before. The newest `held` are in memory, those before them on disk."""

    def __init__(self, scratch: Scratch, kind: str, held: int) -> None:
        self._scratch = scratch
        self._kind = kind
        self._held = held
        self._recent: set[int] = set()
        self._spilled = False

    def again(self, number: int) -> bool:
        """Return whether a number of 64 bits came before, and remember it."""
        if number in self._recent or (self._spilled and self._scratch.get(self._kind, _bytes(number)) is not None):
            return True
        self._recent.add(number)
        if len(self._recent) > self._held:
            for each in self._recent:
                self._scratch.put(self._kind, _bytes(each), b"")
            self._recent.clear()
            self._spilled = True
        return False


def _bytes(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def _place(name: str) -> tuple[int, int]:
    """Return the byte and the bit that stand for a name."""
    byte, bit = divmod(hash(name) % (8 * import_filter_bytes), 8)
    return byte, 1 << bit


def _key(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
