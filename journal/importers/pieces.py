"""The content of one assistant message, from its lines: a line per block, snapshots that grow, lines that come again.

What is equal within a line stays, and so do equal blocks of two lines that have ids of their own. A line that comes
again, or that goes on from the line before it, is a snapshot of that: the whole one with the most output counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from runjournal.log.events import Json

from .values import dict_of, value_digest

_TEXT: Final = frozenset({"type", "text"})


class _CallKey(NamedTuple):
    """What a call is found by."""

    provider_id: str


@dataclass(slots=True)
class Piece:
    """The blocks of a line. `output` are the tokens that it told, `told` the blocks that an earlier import took."""

    uuid: str
    blocks: list[Json]
    output: int
    told: list[Json] = field(default_factory=list[Json])

    def added(self) -> list[Json]:
        """Return the blocks that are new in this import."""
        same = 0
        for old, new in zip(self.told, self.blocks, strict=False):
            if old != new:
                break
            same += 1
        return self.blocks[same:]


@dataclass(slots=True)
class Pieces:
    """The pieces of a message in their order; `places` finds them by the line's uuid and by what they hold."""

    pieces: list[Piece] = field(default_factory=list[Piece])
    places: dict[object, int] = field(default_factory=dict[object, int])
    blocks_count: int = 0

    def take(self, uuid: str, blocks: list[Json], output: int) -> int:
        """Take a line's blocks; return how many of them, from the first, are known from the lines before it."""
        if not blocks:
            return 0
        content = tuple(_key(block) for block in blocks)
        place = self._place(uuid, blocks, content)
        if place is None:
            place = len(self.pieces)
            self.pieces.append(Piece(uuid, blocks, output))
            self.blocks_count += len(blocks)
            known = 0
        else:
            known = self._again(self.pieces[place], blocks, output)
        if uuid:
            self.places[uuid] = place
        self.places[content] = place
        return known

    def _place(self, uuid: str, blocks: list[Json], content: tuple[object, ...]) -> int | None:
        """Return which piece these blocks are a snapshot of; None if they are new."""
        if uuid and (place := self.places.get(uuid)) is not None:
            return place
        place = self.places.get(content)
        if place is not None and not (uuid and self.pieces[place].uuid and not _has_id(content)):
            return place
        if not self.pieces:
            return None
        last = len(self.pieces) - 1
        newest = self.pieces[last]
        if _goes_on(newest.blocks, blocks) or (not (uuid and newest.uuid) and _goes_on(blocks, newest.blocks)):
            return last
        if last and len(blocks) >= self.blocks_count:
            so_far = [block for piece in self.pieces for block in piece.blocks]
            if so_far == blocks[: len(so_far)]:
                self._join()
                return 0
        return None

    def _join(self) -> None:
        """Make all pieces one: a line holds the whole message so far."""
        first = self.pieces[0]
        for piece in self.pieces[1:]:
            first.blocks = first.blocks + piece.blocks
            first.told = first.told + piece.told
            first.output = max(first.output, piece.output)
        self.pieces = [first]
        self.places = dict.fromkeys(self.places, 0)

    def _again(self, piece: Piece, blocks: list[Json], output: int) -> int:
        known = len(piece.blocks)
        if output >= piece.output and not (output == piece.output and len(blocks) < known):
            self.blocks_count += len(blocks) - known
            piece.blocks, piece.output = blocks, output
        return known

    def blocks(self) -> list[Json]:
        """Return the blocks that are new in this import."""
        return [block for piece in self.pieces for block in piece.added()]

    def settle(self) -> None:
        """Note that all up to here was imported before."""
        for piece in self.pieces:
            piece.told = piece.blocks


def _goes_on(old: list[Json], new: list[Json]) -> bool:
    """Return whether blocks are a later snapshot of others: the same and more, the last text perhaps longer."""
    if len(new) < len(old) or old[:-1] != new[: len(old) - 1]:
        return False
    before, after = dict_of(old[-1]), dict_of(new[len(old) - 1])
    if before == after:
        return len(new) > len(old)
    if before is None or after is None or before.keys() != after.keys():
        return False
    text = before.get("text"), after.get("text")
    return (
        isinstance(text[0], str)
        and isinstance(text[1], str)
        and 0 < len(text[0]) < len(text[1])
        and text[1].startswith(text[0])
        and before | {"text": ""} == after | {"text": ""}
    )


def _key(block: Json) -> object:
    """Return what a block is found by: a call by its id, all else by what it holds."""
    held: dict[str, Any] | None = dict_of(block)
    if held is None:
        return value_digest(block)
    kind = held.get("type")
    if kind == "tool_use" and isinstance(held.get("id"), str) and held["id"]:
        return _CallKey(held["id"])
    if kind == "text" and held.keys() == _TEXT and isinstance(held["text"], str):
        return "text", held["text"]
    return value_digest(block)


def _has_id(content: tuple[object, ...]) -> bool:
    return any(isinstance(key, _CallKey) for key in content)
