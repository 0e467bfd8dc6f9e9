"""`runjournal tail`: the newest events of a run or of the store, and those that come."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from . import exits
from .app import App, color_of, command, pass_app
from .output import styled
from .refs import HELP
from .safe import dumps, line

if TYPE_CHECKING:
    from runjournal.log.base import RecordedEvent
    from runjournal.logbook import Logbook


@command(
    "tail",
    epilog=HELP,
    examples=[
        ("runjournal tail -f", "all runs of the store, as they are written"),
        ("runjournal tail @last -n 50", "the last 50 events of a run"),
        ("runjournal tail report-42 -f -o jsonl", "for a program"),
    ],
)
@click.argument("run", required=False)
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=10, show_default=True, help="Begin so many events back."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until interrupted.")
@pass_app
def tail(app: App, run: str | None, lines: int, *, follow: bool) -> int:
    """Show the newest events, and follow; with JSON output one object a line."""
    from .events import event_json
    from .refs import run_id_of

    color = color_of(app, sys.stdout)
    with app.open() as journal:
        run_id = run_id_of(journal, run) if run else None
        for record in _records(journal, run_id, lines, follow=follow):
            click.echo(_line(record, run_id) if app.plain else dumps(event_json(record)), color=color)
    return exits.OK


def _records(journal: Logbook, run_id: str | None, lines: int, *, follow: bool) -> Iterator[RecordedEvent]:
    from runjournal.logbook import Place
    from runjournal.looking.summary import newest

    last = journal.store.last_position()
    if run_id is None:
        shown = list(itertools.islice(journal.store.read_all(max(0, last - lines), last), lines))
    else:
        shown = newest(journal, run_id, journal.head(run_id).head_seq, lines)[::-1]
    yield from shown
    if follow:
        begin = shown[-1] if shown else None
        place = Place(begin.position, begin.hash) if begin else Place(last)
        yield from journal.follow(place, run_id=run_id)


def _line(record: RecordedEvent, run_id: str | None) -> str:
    from .describe import event

    style = "bad" if record.type.endswith(".failed") else ""
    name = "" if run_id else f"{line(record.run_id)} "
    at = styled(line(record.at[11:23]), "dim")
    return f"{at} {name}{record.seq:>5} {styled(line(record.type).ljust(18), style)} {event(record)}".rstrip()
