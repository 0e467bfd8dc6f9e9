"""Print the rooms of the package and the arrows between them, from the imports: `python docs/rooms.py [CHECKOUT]`.

The picture in architecture.md is what this prints (tests/test_architecture.py compares); of another checkout, of an
older commit say, only the counts are printed: rooms (folders that hold modules), modules, arrows (imports from a module
to another, each pair once) and floors (the longest way down).
"""

from __future__ import annotations

import sys
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import test_architecture as architecture  # noqa: E402 - it knows how to read imports


def arrows(sources: architecture.Sources) -> set[tuple[str, str]]:
    """The imports of one module by another, by path; the façade is left out, as it imports everything."""
    paths = {architecture.module_name(path): path for path in sources}
    pairs = {(each.path, paths[each.target]) for each in architecture.imports(sources) if each.target in paths}
    return {(one, other) for one, other in pairs if one != other and "journal/__init__.py" not in (one, other)}


def floors(pairs: set[tuple[str, str]]) -> int:
    """How many modules the longest way down goes through."""
    below: dict[str, set[str]] = {}
    for one, other in pairs:
        below.setdefault(one, set()).add(other)
    height: dict[str, int] = {}
    for path in TopologicalSorter(below).static_order():
        height[path] = 1 + max((height[each] for each in below.get(path, ())), default=0)
    return max(height.values(), default=0)


def picture(sources: architecture.Sources) -> str:
    """The rooms as a Mermaid graph, the highest floor first; an arrow that a longer way implies is left out."""
    named = ((architecture.room_of(one)[0], architecture.room_of(other)[0]) for one, other in arrows(sources))
    pairs = {pair for pair in named if pair[0] != pair[1]}
    order = {room: -floor for _, room, floor in architecture.ROOMS}
    lines = [f"    {_node(room)}[{room}/]" for room in sorted(order, key=lambda room: (order[room], room))]
    found = sorted((pair for pair in pairs if not _implied(pairs, pair)), key=lambda pair: (order[pair[0]], pair))
    return "\n".join(["graph TD", *lines, *(f"    {_node(one)} --> {_node(other)}" for one, other in found)])


def _implied(pairs: set[tuple[str, str]], pair: tuple[str, str]) -> bool:
    """Whether another way leads from the one room to the other."""
    seen: set[str] = set()
    next_ = {other for one, other in pairs if one == pair[0] and other != pair[1]}
    while next_ - seen:
        seen |= next_
        next_ = {other for one, other in pairs if one in seen}
    return pair[1] in seen


def _node(room: str) -> str:
    return room.rpartition("/")[2]


def counts(root: Path) -> str:
    """The size of the structure of a checkout."""
    files = [file for folder in architecture.FOLDERS for file in sorted((root / folder).rglob("*.py"))]
    sources = {file.relative_to(root).as_posix(): file.read_text("utf-8") for file in files}
    pairs = arrows(sources)
    rooms = {str(Path(path).parent) for path in sources}
    widest = max(rooms, key=lambda room: sum(str(Path(path).parent) == room for path in sources))
    most = sum(str(Path(path).parent) == widest for path in sources)
    return (
        f"{len(rooms)} rooms, {len(sources)} modules, {len(pairs)} arrows, {floors(pairs)} floors; "
        f"most in one room: {most} in {widest}/"
    )


if __name__ == "__main__":
    root = Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT
    if root == ROOT:
        print(picture(architecture.checkout()))
    print(counts(root))
