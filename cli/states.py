"""A folded state, and what changed between two of them, for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from runjournal.log.limits import diff_side_chars_min, diff_value_chars_max, state_value_chars_max

from .attached import told
from .formats import amount, money
from .output import Column, styled, table, terminal_width
from .safe import ELLIPSIS, line, preview

if TYPE_CHECKING:
    from runjournal.log.differences import Change

_PLAIN: Final = (
    "status", "kind", "title", "at", "owner", "epoch", "round", "due_at", "cancel", "cause", "next_step_index",
    "steps_completed", "steps_failed", "prompt_fingerprint",
)  # fmt: skip


def state_lines(found: dict[str, Any]) -> Iterator[str]:
    """A state, as `looking.states.state_as_json` returns it, for people."""
    yield f"{styled(line(found['run_id']), 'title')} after event {found['seq']}"
    for name in _PLAIN:
        if found[name] not in (None, ""):
            yield _fact(name, found[name])
    if found["step"]:
        step = found["step"]
        yield _fact(
            "step", f"{step['index']} {step['id']} open, attempt {step['attempt']}, entry {step['entry']} (uncommitted)"
        )
    if found["cost"]:
        yield _fact("cost", ", ".join(f"{money(value)} {line(name)}" for name, value in found["cost"].items()))
    for name in ("error", "waits", "questions", "signals", "children"):
        if found[name]:
            yield _fact(name, found[name])
    if found["messages"]:
        roles = ", ".join(f"{role} {amount(count)}" for role, count in found["messages"].items())
        first, last = found["message_range"]
        yield _fact("context", f"{roles}; seq {first} to {last}" + (", compacted" if found["compacted"] else ""))
    for name in ("calls", "model_calls"):
        counts = found[name]
        if counts["started"]:
            yield _fact(name, ", ".join(f"{amount(count)} {what.replace('_', ' ')}" for what, count in counts.items()))
    yield from _part(
        "Calls open",
        [(c["tool"], c["policy"], c["attempt"], c["call_id"]) for c in found["open_calls"]],
        ("TOOL", "POLICY", "TRY", "ID"),
    )
    yield from _part(
        "Calls that nobody knows of",
        [(c["tool"], c["status"], c["attempt"], c["call_id"]) for c in found["unresolved_calls"]],
        ("TOOL", "STATUS", "TRY", "ID"),
    )
    yield from _part(
        "Memory",
        [(key, preview(told(value), state_value_chars_max)) for key, value in found["memory"].items()],
        ("KEY", "VALUE"),
    )
    yield from _part("Plan", [(t["status"], t["id"], t["title"]) for t in found["plan"]], ("STATUS", "ID", "TITLE"))
    usage = [(model, *(amount(number) for number in tokens.values())) for model, tokens in found["usage"].items()]
    yield from _part("Tokens", usage, ("MODEL", "INPUT", "OUTPUT", "CACHE READ", "CACHE WRITE"))


def _fact(name: str, value: Any) -> str:
    return f"  {styled(name.replace('_', ' ').ljust(18), 'dim')} {preview(told(value), state_value_chars_max)}"


def _part(title: str, rows: list[tuple[Any, ...]], names: tuple[str, ...]) -> Iterator[str]:
    if rows:
        numbers = {"TRY", "INPUT", "OUTPUT", "CACHE READ", "CACHE WRITE"}
        flexible = {"VALUE", "TITLE", "ID", "MODEL", "TOOL", "KEY"}
        yield ""
        yield styled(title, "title")
        yield from table([Column(name, name in numbers, name in flexible) for name in names], rows, "  ")


CHANGE_COLUMNS: Final = (Column("WHERE", flex=True), Column("BEFORE", flex=True), Column("AFTER", flex=True))


def change_row(change: Change) -> tuple[object, ...]:
    """A change as a row: where, before, after."""
    if change.path == "first_divergence":
        return change.path, *(_event_shown(each) for each in (change.before, change.after))
    width = terminal_width()
    chars_max = diff_value_chars_max if width is None else min(diff_value_chars_max, _side(width, change.path))
    return change.path, *sides(change, chars_max)


def _side(width: int, path: str) -> int:
    """The columns of each of two sides, beside a place that takes a third of the width at most."""
    return max(diff_side_chars_min, (width - min(len(path), width // 3)) // 2 - 2)


def sides(change: Change, chars_max: int) -> tuple[str, str]:
    """What was there before and after, each in so many characters: of long ones the part where they differ."""
    before, after = ("" if each is None else preview(told(each), sys.maxsize) for each in (change.before, change.after))
    if max(len(before), len(after)) > chars_max:
        same = len(os.path.commonprefix([before, after]))  # noqa: RUF071 - of two texts, character by character
        start = max(0, same - chars_max // 3)
        before, after = (_from(each, start) for each in (before, after))
    return line(before, chars_max), line(after, chars_max)


def _from(text: str, start: int) -> str:
    return ELLIPSIS + text[start + 1 :] if start and text else text


def _event_shown(event: dict[str, Any] | None) -> str:
    return "(ended)" if event is None else f"{event['seq']} {event['type']} {event['summary']}"
