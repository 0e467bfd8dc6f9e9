"""What stands in the runs of a file, in their order: the newest in memory, what doesn't fit there on disk."""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from runjournal.log.events import Event, registered
from runjournal.log.limits import import_stream_held_bytes, import_stream_held_max
from runjournal.log.sqlite_scratch import Scratch

Packed: TypeAlias = tuple[str, tuple[Any, ...]]
"""An event as its type and the values of its fields: what is kept of very many, and told apart by nothing else."""
_known: Final = registered()


@cache
def _names(event_type: str) -> tuple[str, ...]:
    return tuple(each.name for each in fields(_known[event_type]))


def pack(event: Event) -> Packed:
    """Return an event as plain values."""
    return event.TYPE, tuple([getattr(event, name) for name in _names(event.TYPE)])


def unpack(packed: Packed) -> Event:
    """Return the event that `pack` made this of."""
    return _known[packed[0]](*packed[1])


class StreamItem(NamedTuple):
    """What stands at a place of a run: an event, or what is only known once the file was read to its end.

    `at` is None before the first known time. `group` names the message that stands here, `call_id` a result that came
    without its call.
    """

    at: str | None
    event: Packed | None = None
    group: str | None = None
    call_id: str | None = None


class Streams:
    """The items of each run of a file, by the run's number."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._recent: dict[int, list[StreamItem]] = {}
        self._held = self._held_bytes = 0

    def add(self, number: int, item: StreamItem, size: int) -> None:
        """Put an item at the end of a run; `size` is about that of what it holds, in bytes."""
        self._recent.setdefault(number, []).append(item)
        self._held += 1
        self._held_bytes += size
        if self._held >= import_stream_held_max or self._held_bytes >= import_stream_held_bytes:
            for each, items in self._recent.items():
                self._scratch.add(each, marshal.dumps([tuple(item) for item in items]))
            self._recent.clear()
            self._held = self._held_bytes = 0

    def read(self, number: int) -> Iterator[StreamItem]:
        """Yield the items of a run, in their order."""
        for body in self._scratch.read(number):
            yield from map(StreamItem._make, marshal.loads(body))  # noqa: S302 - only what this process wrote, as in Shelf
        yield from self._recent.get(number, ())
