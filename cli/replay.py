"""`runjournal replay RUN@SEQ` and `runjournal diff`: the state of a run as it was, and what changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from . import exits
from .app import App, command, pass_app
from .output import Column, amount, document, emit, plural, records, styled, table
from .refs import HELP
from .safe import line, preview

if TYPE_CHECKING:
    from runjournal.reports import Change

_value_chars: Final = 200
_FORCE: Final = "Fold past events that can't be read or are newer than this runjournal."


@command(
    "replay",
    epilog=HELP,
    examples=[
        ("runjournal replay report-42 --at 120", "its state after event 120"),
        ("runjournal replay report-42@-1", "before the last event"),
        ("runjournal replay @last@14:03:22 -o json", "at a time of day, for a script"),
    ],
)
@click.argument("run")
@click.option("--at", type=int, metavar="SEQ", help="The state after this event.  [default: the newest]")
@click.option("--force", is_flag=True, help=_FORCE)
@pass_app
def replay(app: App, run: str, at: int | None, *, force: bool) -> int:
    """Fold a run from its first event on, checking the hash chain, and show the state it comes to."""
    from runjournal.reports import state_as_json

    from .refs import resolve

    with app.open() as journal:
        run_id, named = resolve(journal, run)
        if at is not None and named is not None:
            raise click.UsageError("expected one place, got both RUN@SEQ and --at; leave one out")
        state = journal.replay(run_id, at if named is None else named, force=force)
        found = state_as_json(state)
    if not app.plain:
        document(app, found)
        return exits.OK
    emit(app, _lines(found))
    skipped = f", {plural(state.skipped, 'event')} left out" if state.skipped else ""
    hint = f"next: runjournal diff {run_id}@{max(1, state.seq - 1)} {run_id}@{state.seq}"
    app.say(f"folded {plural(state.seq, 'event')}, the chain is whole{skipped}; {hint}")
    return exits.OK


_PLAIN: Final = (
    "status", "kind", "title", "at", "owner", "epoch", "round", "due_at", "cancel", "cause", "next_step_index",
    "steps_completed", "steps_failed", "prompt_fingerprint",
)  # fmt: skip


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"{styled(line(found['run_id']), 'title')} after event {found['seq']}"
    for name in _PLAIN:
        if found[name] not in (None, ""):
            yield _fact(name, found[name])
    if found["step"]:
        step = found["step"]
        yield _fact(
            "step", f"{step['index']} {step['id']} open, attempt {step['attempt']}, entry {step['entry']} (uncommitted)"
        )
    for name in ("error", "waits", "questions", "signals", "children", "cost"):
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
        "Memory", [(key, preview(value, _value_chars)) for key, value in found["memory"].items()], ("KEY", "VALUE")
    )
    yield from _part("Plan", [(t["status"], t["id"], t["title"]) for t in found["plan"]], ("STATUS", "ID", "TITLE"))
    usage = [(model, *(amount(number) for number in tokens.values())) for model, tokens in found["usage"].items()]
    yield from _part("Tokens", usage, ("MODEL", "INPUT", "OUTPUT", "CACHE READ", "CACHE WRITE"))


def _fact(name: str, value: Any) -> str:
    return f"  {styled(name.replace('_', ' ').ljust(18), 'dim')} {preview(value, _value_chars)}"


def _part(title: str, rows: list[tuple[Any, ...]], names: tuple[str, ...]) -> Iterator[str]:
    if rows:
        numbers = {"TRY", "INPUT", "OUTPUT", "CACHE READ", "CACHE WRITE"}
        flexible = {"VALUE", "TITLE", "ID", "MODEL", "TOOL", "KEY"}
        yield ""
        yield styled(title, "title")
        yield from table([Column(name, name in numbers, name in flexible) for name in names], rows, "  ")


@command(
    "diff",
    epilog=HELP,
    examples=[
        ("runjournal diff report-42@80 report-42@120", "what 40 events changed"),
        ("runjournal diff report-42 report-43", "two runs, as they stand"),
    ],
)
@click.argument("before")
@click.argument("after")
@click.option("--force", is_flag=True, help=_FORCE)
@pass_app
def diff(app: App, before: str, after: str, *, force: bool) -> int:
    """Show what differs between two states, place by place."""
    from runjournal.reports import differences, state_as_json

    from .refs import resolve

    with app.open() as journal:
        left, right = (state_as_json(journal.replay(*resolve(journal, each), force=force)) for each in (before, after))
    columns = (Column("WHERE", flex=True), Column("BEFORE", flex=True), Column("AFTER", flex=True))
    records(app, differences(left, right), columns, _change_row, lambda change: change._asdict())
    return exits.OK


def _change_row(change: Change) -> tuple[object, ...]:
    return change.path, _shown(change.before), _shown(change.after)


def _shown(value: Any) -> str:
    return "" if value is None else preview(value, _value_chars)
