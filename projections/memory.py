"""The working memory: what the agent chose to remember, key by key; committed, and as the open step has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import orjson

from runjournal.log import events as e
from runjournal.log.base import BlobRef, Event, Json, RecordedEvent

Entry = tuple[Any, ...]


def _entry(value: Json) -> Entry:
    """Return a value, or where it is: ("value", v) or ("blob", sha256, bytes)."""
    return ("blob", value.sha256, value.bytes) if isinstance(value, BlobRef) else ("value", value)


def _size(key: str, entry: Entry | None) -> int:
    return 0 if entry is None else len(key) + len(orjson.dumps(entry))


def _value(entry: Entry) -> Json:
    return BlobRef(entry[1], entry[2]) if entry[0] == "blob" else entry[1]


@dataclass(slots=True)
class Memory:
    """The working memory. Values over the inline bound are held as `BlobRef`; nobody changes a value in place.

    Keys stand in the order of a dict: a new one comes last, one that is set again keeps its place, one that was deleted
    and is set again comes last.
    """

    VERSION: ClassVar[int] = 2

    base: dict[str, Entry] = field(default_factory=dict[str, Entry])
    overlay: dict[str, Entry] | None = None
    base_bytes: int = 0
    overlay_bytes: int = 0

    @property
    def committed(self) -> dict[str, Json]:
        """Return what completed steps have left, by key, in the order of setting."""
        return {key: _value(entry) for key, entry in self.base.items()}

    @property
    def view(self) -> dict[str, Json]:
        """Return what the open step sees, in the order of setting; the committed memory if none is open."""
        entries = self.base if self.overlay is None else self.overlay
        return {key: _value(entry) for key, entry in entries.items()}

    @property
    def bytes(self) -> int:
        """Return the size of `view`, as JSON, values held out of line by reference."""
        return self.base_bytes if self.overlay is None else self.overlay_bytes

    def _put(self, key: str, entry: Entry | None) -> None:
        entries = self.base if self.overlay is None else self.overlay
        grown = _size(key, entry) - _size(key, entries.get(key))
        if entry is None:
            entries.pop(key, None)
        else:
            entries[key] = entry
        if self.overlay is None:
            self.base_bytes += grown
        else:
            self.overlay_bytes += grown

    def on_set(self, _: RecordedEvent, event: e.MemorySet) -> None:
        """Set a key."""
        self._put(event.key, _entry(event.value))

    def on_deleted(self, _: RecordedEvent, event: e.MemoryDeleted) -> None:
        """Delete a key."""
        self._put(event.key, None)

    def on_reset(self, _: RecordedEvent, __: e.MemoryReset) -> None:
        """Delete all keys."""
        for key in list(self.base if self.overlay is None else self.overlay):
            self._put(key, None)

    def begin(self) -> None:
        """Begin a step: it starts from the committed memory."""
        self.overlay, self.overlay_bytes = dict(self.base), self.base_bytes

    def commit(self) -> None:
        """Commit what the step has changed: it completed."""
        if self.overlay is not None:
            self.base, self.base_bytes = self.overlay, self.overlay_bytes
            self.drop()

    def drop(self) -> None:
        """Drop what the step has changed: it failed."""
        self.overlay, self.overlay_bytes = None, 0

    def dump(self) -> dict[str, Any]:
        """Return the memory as a JSON value."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def load(cls, data: dict[str, Any]) -> Memory:
        """Return the memory that `dump` made this value of."""
        base, overlay = data["base"], data["overlay"]
        return cls(
            {key: tuple(entry) for key, entry in base.items()},
            None if overlay is None else {key: tuple(entry) for key, entry in overlay.items()},
            data["base_bytes"],
            data["overlay_bytes"],
        )


HANDLERS: Final[Mapping[type[Event], Any]] = {
    e.MemorySet: Memory.on_set,
    e.MemoryDeleted: Memory.on_deleted,
    e.MemoryReset: Memory.on_reset,
}
