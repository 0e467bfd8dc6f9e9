"""The system prompt that the run has pinned: its fingerprint and that of each layer; the text by reference."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from runjournal.log import events as e
from runjournal.log.base import Event, RecordedEvent


class Fingerprints(NamedTuple):
    """SHA-256 in hex of a system prompt as a whole, and of each of its layers."""

    whole: str
    layers: dict[str, str]


def joined(layers: Mapping[str, str]) -> str:
    """Return the text of a prompt of these layers."""
    return "\n\n".join(layers.values())


def fingerprints(layers: Mapping[str, str]) -> Fingerprints:
    """Return the fingerprints of a prompt of these layers."""
    each = {name: hashlib.sha256(layer.encode()).hexdigest() for name, layer in layers.items()}
    return Fingerprints(hashlib.sha256(joined(layers).encode()).hexdigest(), each)


@dataclass(slots=True)
class Prompt:
    """The pinned prompt. `seq` is the event that holds the text; `pins` counts how often another prompt was pinned."""

    VERSION: ClassVar[int] = 1

    fingerprint: str | None = None
    layers: dict[str, str] = field(default_factory=dict[str, str])
    seq: int | None = None
    pins: int = 0

    def on_pinned(self, record: RecordedEvent, event: e.PromptPinned) -> None:
        """Take the newest prompt: it is the one that counts."""
        self.fingerprint, self.layers, self.seq, self.pins = event.fingerprint, event.layers, record.seq, self.pins + 1

    def changed_layers(self, layers: Mapping[str, str]) -> list[str]:
        """Return the names of the layers that differ from the pinned ones, sorted."""
        return sorted(name for name in self.layers.keys() | layers.keys() if self.layers.get(name) != layers.get(name))

    def dump(self) -> dict[str, Any]:
        """Return the fold as a JSON value."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def load(cls, data: dict[str, Any]) -> Prompt:
        """Return the fold that `dump` made this value of."""
        return cls(**data)


HANDLERS: Final[Mapping[type[Event], Any]] = {e.PromptPinned: Prompt.on_pinned}
