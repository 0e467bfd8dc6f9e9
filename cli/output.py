"""Output: tables for people, JSON for programs; streamed, so that a long run takes no more memory than a short one."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import click

from runjournal.log.limits import output_chunk_chars, table_layout_rows

from .app import App, color_of
from .progress import stop_bars
from .safe import ELLIPSIS, dumps, line

T = TypeVar("T")
GAP: Final = "  "
_narrow_min: Final = 8
_width_elsewhere: Final = 100
"""The width of a text that goes to no terminal."""

STYLES: Final[dict[str, dict[str, Any]]] = {
    "title": {"bold": True},
    "dim": {"dim": True},
    "good": {"fg": "green"},
    "busy": {"fg": "cyan"},
    "warn": {"fg": "yellow"},
    "bad": {"fg": "red", "bold": True},
}
STATUS_STYLES: Final = {
    "completed": "good",
    "failed": "bad",
    "cancelled": "dim",
    "purged": "dim",
    "running": "busy",
    "waiting": "warn",
    "scheduled_retry": "warn",
}


class Column(NamedTuple):
    """A column: numbers stand `right`. Where a terminal is too narrow, `flex` is cut and the most `spare` left out."""

    title: str
    right: bool = False
    flex: bool = False
    spare: int = 0


class Cell(NamedTuple):
    """A cell with a style; a plain value has none."""

    value: object
    style: str = ""


@functools.cache
def _marks(style: str) -> tuple[str, str]:
    before, _, after = click.style("|", **STYLES[style]).partition("|")
    return before, after


_plain: bool = False


def styled(text: str, style: str) -> str:
    """Text, already safe, in a style; where it is known by now that the output has none, as it is."""
    if _plain or not style or not text:
        return text
    before, after = _marks(style)
    return f"{before}{text}{after}"


def is_utf8() -> bool:
    """Whether stdout shows more than ASCII."""
    return os.environ.get("TERM") != "dumb" and (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def width_of(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """The text, or what of it fits into `width` columns, with an ellipsis."""
    if width_of(text) <= width:
        return text
    if text.isascii():
        return text[: max(0, width - 1)] + ELLIPSIS
    from rich.cells import set_cell_size

    return set_cell_size(text, max(0, width - 1)).rstrip() + ELLIPSIS


def terminal_width() -> int | None:
    """The columns of the terminal that stdout is, or None: what goes elsewhere is never cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]], indent: str = "") -> Iterator[str]:
    """The lines of a table, its widths taken from the head of the rows. Every cell is made safe here."""
    source = iter(rows)
    head = list(itertools.islice(source, table_layout_rows))
    if not head:
        return
    widths = [
        max(len(column.title), *(width_of(line(_value(row[place]))) for row in head))
        for place, column in enumerate(columns)
    ]
    shown, limit = list(range(len(columns))), terminal_width()
    if limit is not None:
        room = limit - len(indent) + len(GAP)
        _leave_out(columns, widths, shown, room)
        _narrow(columns, widths, shown, room)
    yield indent + _row(columns, widths, shown, [Cell(column.title, "dim") for column in columns], limit)
    for row in itertools.chain(head, source):
        yield indent + _row(columns, widths, shown, row, limit)


def _value(cell: object) -> object:
    value = cell.value if isinstance(cell, Cell) else cell
    return "" if value is None else value


def _leave_out(columns: Sequence[Column], widths: Sequence[int], shown: list[int], room: int) -> None:
    """Leave out spare columns until the rest fits, its flexible ones at their narrowest."""

    def least(place: int) -> int:
        return len(GAP) + (min(widths[place], _narrow_min) if columns[place].flex else widths[place])

    while sum(least(place) for place in shown) > room:
        most = max(shown, key=lambda place: columns[place].spare)
        if not columns[most].spare:
            return
        shown.remove(most)


def _narrow(columns: Sequence[Column], widths: list[int], shown: Sequence[int], room: int) -> None:
    """Take what is too much from the flexible columns, the widest first."""
    flexible = [place for place in shown if columns[place].flex]
    while (over := sum(widths[place] + len(GAP) for place in shown) - room) > 0 and flexible:
        widest = max(flexible, key=lambda place: widths[place])
        if widths[widest] <= _narrow_min:
            return
        second = max((widths[place] for place in flexible if place != widest), default=_narrow_min)
        widths[widest] -= min(over, max(1, widths[widest] - max(second, _narrow_min)))


def _row(
    columns: Sequence[Column], widths: Sequence[int], shown: Sequence[int], row: Sequence[object], limit: int | None
) -> str:
    parts: list[str] = []
    for place in shown:
        column, width, cell = columns[place], widths[place], row[place]
        text = line(_value(cell))
        if limit is not None and column.flex:
            text = cut(text, width)
        colored = styled(text, cell.style) if isinstance(cell, Cell) else text
        if place == shown[-1] and not column.right:
            parts.append(colored)
            break
        space = " " * (width - width_of(text))
        parts.append(space + colored if column.right else colored + space)
    return GAP.join(parts).rstrip(" ")


def emit(app: App, lines: Iterable[str]) -> None:
    """Write safe lines to stdout; on a terminal through a pager, if there are more than it shows at once."""
    global _plain  # noqa: PLW0603 - one process, one stdout; lines are made while they are written
    color = color_of(app, sys.stdout)
    before, _plain = _plain, not color
    try:
        _write(iter(lines), color=color, pager=app.pager)
    finally:
        _plain = before


def _write(source: Iterator[str], *, color: bool, pager: bool) -> None:
    if pager and sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM") != "dumb":
        height = shutil.get_terminal_size().lines - 1
        first = list(itertools.islice(source, height))
        if len(first) == height and (more := next(source, None)) is not None:
            stop_bars()
            os.environ.setdefault("LESS", "FRX")
            click.echo_via_pager((each + "\n" for each in itertools.chain(first, [more], source)), color=color)
            return
        source = iter(first)
    held, size = list[str](), 0
    for each in source:
        held.append(each)
        size += len(each)
        if size > output_chunk_chars:
            stop_bars()
            click.echo("\n".join(held), color=color)
            held, size = [], 0
    if held:
        stop_bars()
        click.echo("\n".join(held), color=color)


class Counted(Generic[T]):
    """The same items, once, and how many there were."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items, self.count = items, 0

    def __iter__(self) -> Iterator[T]:
        for item in self._items:
            self.count += 1
            yield item


def records(
    app: App,
    items: Iterable[T],
    columns: Sequence[Column],
    row: Callable[[T], Sequence[object]],
    as_json: Callable[[T], Any],
) -> int:
    """Write many things of one kind in the format asked for; return how many there were."""
    counted = Counted(items)
    if app.output == "table":
        emit(app, table(columns, (row(item) for item in counted)))
    elif app.output == "jsonl":
        emit(app, (dumps(as_json(item)) for item in counted))
    else:
        emit(app, _array(dumps(as_json(item)) for item in counted))
    return counted.count


def _array(items: Iterable[str]) -> Iterator[str]:
    """The lines of a JSON array, an item a line."""
    source = iter(items)
    held = next(source, None)
    if held is None:
        yield "[]"
        return
    yield "["
    for item in source:
        yield held + ","
        held = item
    yield held
    yield "]"


def document(app: App, value: Any) -> None:
    """Write one JSON value: on one line as jsonl, readable as json."""
    emit(app, dumps(value, indent=None if app.output == "jsonl" else 2).split("\n"))


def wrapped(text: str, indent: str) -> Iterator[str]:
    """A text, made safe before, in lines that fit; nothing of it is left out."""
    width = max(_narrow_min, (terminal_width() or _width_elsewhere) - len(indent))
    if text.isascii():
        parts = textwrap.wrap(
            text, width, expand_tabs=False, replace_whitespace=False, drop_whitespace=False, break_on_hyphens=False
        )
    else:
        from rich.cells import chop_cells

        parts = chop_cells(text, width)
    return (indent + part for part in parts)
