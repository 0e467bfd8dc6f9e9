"""`runjournal replay RUN@SEQ` and `runjournal diff`: the state of a run as it was, and what changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from . import exits
from .app import App, command, pass_app
from .formats import plural
from .output import document, emit, records
from .progress import progress
from .refs import HELP
from .states import CHANGE_COLUMNS, change_row, state_lines

if TYPE_CHECKING:
    from runjournal.log.base import RecordedEvent
    from runjournal.log.differences import Change
    from runjournal.logbook import Logbook
    from runjournal.looking.progress import Progress

    from .refs import Ref

_WHOLE: Final = "Fold from the first event on, whatever checkpoints there are."
_FORCE: Final = "Fold past events that can't be read or are newer than this runjournal."


@command(
    "replay",
    epilog=HELP,
    examples=[
        ("runjournal replay report-42 --at 120", "its state after event 120"),
        ("runjournal replay report-42@-1", "before the last event"),
        ("runjournal replay @last@14:03:22 -o json", "at a time of day, for a script"),
        ("runjournal replay @last-failed@-5 --step", "event by event: n next, p previous, g goto, s state, d diff"),
        ("printf 'goto 40\\nnext\\n' | runjournal replay @last --step", "the same from a script"),
    ],
)
@click.argument("run")
@click.option("--at", type=int, metavar="SEQ", help="The state after this event.  [default: the newest]")
@click.option("--step", is_flag=True, help="Walk through the events, by keys on a terminal, else by lines of stdin.")
@click.option("--whole", is_flag=True, help=_WHOLE)
@click.option("--force", is_flag=True, help=_FORCE)
@pass_app
def replay(app: App, run: str, at: int | None, *, step: bool, whole: bool, force: bool) -> int:
    """Fold a run, checking the hash chain, and show the state it comes to; with --step, event by event."""
    from runjournal.looking.states import state_as_json, state_at

    from .refs import resolve

    with app.open() as journal:
        run_id, named = resolve(journal, run)
        if at is not None and named is not None:
            raise click.UsageError("expected one place, got both RUN@SEQ and --at; leave one out")
        at = at if named is None else named
        if step:
            from .step import walk

            return walk(app, journal, run_id, at, force=force)
        with progress(f"folding {run_id}") as report:
            state, since = state_at(journal, run_id, at, whole=whole, force=force, progress=report)
        found = state_as_json(state)
    if not app.plain:
        document(app, found)
        return exits.OK
    emit(app, state_lines(found))
    skipped = f", {plural(state.skipped, 'event')} left out" if state.skipped else ""
    hint = f"next: runjournal diff {run_id}@{max(1, state.seq - 1)} {run_id}@{state.seq}"
    what = f"{plural(state.seq - since, 'event')}, the chain is whole"
    if since:
        what = f"{plural(state.seq - since, 'event')} behind the checkpoint at {since} (--whole folds all)"
    app.say(f"folded {what}{skipped}; {hint}")
    return exits.OK


@command(
    "diff",
    epilog=HELP,
    examples=[
        ("runjournal diff report-42@80 report-42@120", "what 40 events changed: context, calls, cost"),
        ("runjournal diff report-42 report-43", "two runs: where they part, and how they stand"),
    ],
)
@click.argument("before")
@click.argument("after")
@click.option("--whole", is_flag=True, help=_WHOLE)
@click.option("--force", is_flag=True, help=_FORCE)
@pass_app
def diff(app: App, before: str, after: str, *, whole: bool, force: bool) -> int:
    """Show what differs between two states, place by place; of two runs, first where they began to differ."""
    from runjournal.looking.states import state_as_json, state_at

    from .refs import resolve

    with app.open() as journal, progress("folding") as report:
        refs = [resolve(journal, each) for each in (before, after)]
        left, right = (
            state_as_json(state_at(journal, *ref, whole=whole, force=force, progress=report).state) for ref in refs
        )
        parted = list(_parted(journal, (refs[0], refs[1]), report))
    count = records(app, _changes(parted, left, right), CHANGE_COLUMNS, change_row, lambda change: change._asdict())
    if refs[0].run_id != refs[1].run_id:
        hint = f"next: runjournal diff {refs[0].run_id}@SEQ {refs[1].run_id}@SEQ"
    else:
        hint = f"next: runjournal replay {refs[0].run_id}@{left['seq']} --step"
    app.say(f"{plural(count, 'difference')}; {hint}")
    return exits.OK


def _changes(parted: list[Change], left: dict[str, Any], right: dict[str, Any]) -> Iterator[Change]:
    from runjournal.log.differences import differences

    yield from parted
    yield from differences(left, right)


def _parted(journal: Logbook, refs: tuple[Ref, Ref], report: Progress) -> Iterator[Change]:
    """The events in which two runs begin to differ, as a change of its own: `first_divergence`."""
    from runjournal.log.differences import Change as Found
    from runjournal.looking.divergence import first_divergence

    if refs[0].run_id == refs[1].run_id:
        return
    found = first_divergence(journal, *refs, report)
    if found is not None:
        yield Found("first_divergence", *(_event(record) for record in found))


def _event(record: RecordedEvent | None) -> dict[str, Any] | None:
    from .describe import event

    return None if record is None else {"seq": record.seq, "type": record.type, "summary": event(record)}
