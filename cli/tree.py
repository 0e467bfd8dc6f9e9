"""`runjournal show RUN --tree` and `--waterfall`: what a run did, and how long each part of it took."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runjournal.log.limits import tree_depth_max, tree_note_chars_max

from . import exits
from .app import App
from .formats import duration, moment, plural
from .output import STATUS_STYLES, cut, emit, is_utf8, records, styled, terminal_width, width_of
from .progress import progress
from .safe import ELLIPSIS, line

if TYPE_CHECKING:
    from runjournal.log.head import Head
    from runjournal.logbook import Logbook

    from .spans import Span, SpanRow

_width_elsewhere: Final = 100
"""The width of a waterfall that goes to no terminal."""
_label_min, _bar_min, _took_width = 16, 10, 8
_name_min: Final = 8
_STYLES: Final = STATUS_STYLES | {"open": "warn", "unknown": "warn", "happened": "good"}


class _Drawing(NamedTuple):
    """What branches and bars are drawn with; one character for each kind of bar."""

    bar: str
    middle: str
    last: str
    through: str
    ellipsis: str
    bars: dict[str, str]
    going_on: str


_LINES: Final = _Drawing(
    "│  ", "├─ ", "└─ ", "─", "…", {"run": "─", "step": "━", "model": "▒", "tool": "█", "wait": "·"}, "▶"
)
_ASCII: Final = _Drawing(
    "|  ", "|- ", "`- ", "-", "...", {"run": "-", "step": "=", "model": "~", "tool": "#", "wait": "."}, ">"
)


def show_tree(app: App, journal: Logbook, run_id: str, at: int | None, limit: int, *, bars: bool) -> int:
    """Show a run's spans as a tree, or as bars over time; at most `limit` lines, 0 = all."""
    from runjournal.looking.progress import told

    from .spans import events, rows

    head, shown = journal.head(run_id), _Shown(limit)
    with progress(f"reading {run_id}") as report:
        total = head.head_seq if at is None else at
        found = shown.of(rows(journal, head, at, told(events(journal, run_id, at), total, report)))
        if not app.plain:
            records(app, found, (), lambda _: (), _json)
        elif bars:
            emit(app, _waterfall(journal, head, at, found))
        else:
            now, drawing = _until(journal, head, at), _drawing()
            emit(app, (_line(row, now, drawing) for row in found))
    if shown.more:
        app.say(f"the first {plural(shown.count, 'line')}; next: runjournal show {run_id} {_flag(bars=bars)} --limit 0")
    else:
        other = _flag(bars=not bars)
        app.say(f"{plural(shown.count, 'line')}; next: runjournal show {run_id} {other}")
    return exits.OK


def _flag(*, bars: bool) -> str:
    return "--waterfall" if bars else "--tree"


class _Shown:
    """Lets at most `limit` rows by, and knows how many there were, and whether there are more."""

    def __init__(self, limit: int) -> None:
        self._limit, self.count, self.more = limit, 0, False

    def of(self, rows: Iterator[SpanRow]) -> Iterator[SpanRow]:
        for row in itertools.islice(rows, self._limit or None):
            self.count += 1
            yield row
        self.more = bool(self._limit) and next(rows, None) is not None


def _drawing() -> _Drawing:
    return _LINES if is_utf8() else _ASCII


def _until(journal: Logbook, head: Head, at: int | None) -> str:
    """The end of what is shown: that of the run, or now."""
    from runjournal.log.clock import timestamp

    from .spans import run_span

    return run_span(journal, head, at).ended_at or timestamp(journal.clock.now())


def _json(row: SpanRow) -> dict[str, Any]:
    span = row.span
    return {
        "run_id": span.name if span.kind == "run" else row.run_id,
        "depth": len(row.lasts),
        "kind": span.kind,
        "name": span.name,
        "seq": span.seq,
        "status": span.status,
        "attempt": span.attempt,
        "entry": span.entry,
        "began_at": span.began_at,
        "ended_at": span.ended_at,
        "duration_s": _seconds(span.began_at, span.ended_at) if span.ended_at else None,
        "note": span.note,
        "left_out": span.left_out,
    }


def _seconds(began: str, ended: str) -> float:
    try:
        return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
    except ValueError:
        return 0.0


# --- the tree ----------------------------------------------------------------------------------------------------


def _line(row: SpanRow, until: str, drawing: _Drawing) -> str:
    span, limit = row.span, terminal_width()
    status, took = line(span.status), _took(span, until)
    title, name, again = _titled(span)
    more = f"({plural(span.left_out, 'call')} more)" if span.left_out else ""
    note = "  ".join(filter(None, (more, line(span.note, tree_note_chars_max))))
    branch = _branch(row.lasts, drawing)
    if limit is not None:
        others = (branch, title, again, "  ", status, "  ", took)
        room = max(_name_min, limit - sum(width_of(each) for each in others))
        name = _cut(name, room, drawing)
        note = _cut(note, room - width_of(name) - 2, drawing)
    title = styled(title, "dim") + styled(name, "title" if span.kind == "run" else "") + again
    return branch + "  ".join(filter(None, (title, styled(status, _STYLES.get(span.status, "")), took, note)))


def _cut(text: str, width: int, drawing: _Drawing) -> str:
    """What of a text fits."""
    if width_of(text) <= width:
        return text
    room = width - len(drawing.ellipsis)
    return cut(text, room + 1).removesuffix(ELLIPSIS) + drawing.ellipsis if room > 0 else ""


def _branch(lasts: tuple[bool, ...], drawing: _Drawing) -> str:
    if not lasts:
        return ""
    hidden = len(lasts) - tree_depth_max
    shown = lasts[max(0, hidden) :]
    above = "".join("   " if last else drawing.bar for last in shown[:-1])
    return above + (drawing.last if shown[-1] else drawing.middle)


def _titled(span: Span) -> tuple[str, str, str]:
    """What a span is: its kind, a step with its index; its name; which attempt, which entry."""
    index = "" if span.index is None else f"{span.index} "
    again = f" attempt {span.attempt}" if span.attempt > 1 else ""
    again += f" entry {span.entry}" if span.entry > 1 else ""
    return f"{span.kind} {index}", line(span.name, tree_note_chars_max), again


def _took(span: Span, now: str) -> str:
    if span.status == "not here":
        return ""
    text = duration(span.began_at, span.ended_at or now)
    return text if span.ended_at else f"{text} so far"


# --- the waterfall -----------------------------------------------------------------------------------------------


class _Scale(NamedTuple):
    """From times to columns: `width` of them, from `began` on, `seconds` in all."""

    began: str
    seconds: float
    width: int
    label: int

    def column(self, at: str) -> int:
        part = _seconds(self.began, at) / self.seconds if self.seconds > 0 else 0.0
        return min(self.width - 1, max(0, int(part * self.width)))


def _waterfall(journal: Logbook, head: Head, at: int | None, found: Iterator[SpanRow]) -> Iterator[str]:
    drawing, until = _drawing(), _until(journal, head, at)
    columns = terminal_width() or _width_elsewhere
    label = max(_label_min, columns * 2 // 5)
    width = max(_bar_min, columns - label - _took_width - 3)
    scale = _Scale(head.queued_at, _seconds(head.queued_at, until), width, label)
    yield _axis(until, scale)
    for row in found:
        yield _bar_line(row, scale, until, drawing)
    yield styled("  ".join(f"{mark} {kind}" for kind, mark in drawing.bars.items()), "dim")


def _axis(until: str, scale: _Scale) -> str:
    left, right = moment(scale.began), f"+{duration(scale.began, until)}"
    return styled(" " * (scale.label + _took_width + 3) + left + right.rjust(scale.width - len(left)), "dim")


def _bar_line(row: SpanRow, scale: _Scale, until: str, drawing: _Drawing) -> str:
    span = row.span
    again = f" #{span.attempt}" if span.attempt > 1 else ""
    indent = "  " * min(len(row.lasts), tree_depth_max // 2)
    text = _cut(f"{indent}{span.kind} {line(span.name)}{again}", scale.label, drawing)
    first = scale.column(span.began_at)
    last = max(first, scale.column(span.ended_at or until))
    drawn = drawing.bars[span.kind] * (last - first) + (drawing.bars[span.kind] if span.ended_at else drawing.going_on)
    took = duration(span.began_at, span.ended_at or until)
    style = _STYLES.get(span.status, "")
    left = text + " " * (scale.label - width_of(text))
    mark = "!" if span.status == "failed" else " "
    return f"{left} {took.rjust(_took_width)} {mark}{' ' * first}{styled(drawn, style)}"
