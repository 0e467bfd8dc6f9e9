"""`runjournal show RUN`: one screen for three in the morning; or all its events, messages or calls, streamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from runjournal.log.limits import audit_events_max, show_lines_max, show_message_chars_max

from . import exits
from .app import App, command, pass_app
from .audit import finding_json
from .events import event_json, event_row
from .formats import duration, plural, when
from .output import (
    Cell,
    Column,
    Counted,
    document,
    emit,
    records,
    styled,
)
from .progress import progress
from .refs import HELP
from .safe import line

if TYPE_CHECKING:
    from runjournal.log.base import RecordedEvent
    from runjournal.logbook import Logbook
    from runjournal.looking.audit import Finding
    from runjournal.looking.calls import CallRow
    from runjournal.projections.transcript import Message


@command(
    "show",
    epilog=HELP,
    examples=[
        ("runjournal show @last", "where the run stands that changed last"),
        ("runjournal show 0198f3 --calls", "every tool call: args, outcome, times"),
        ("runjournal show report-42 --events --type tool.", "its log, some types of event"),
        ("runjournal show report-42 --tree", "its steps, attempts, calls and children, with durations"),
        ("runjournal show report-42 --waterfall", "the same as bars over time"),
        ("runjournal show report-42@120", "as it stood after event 120"),
        ("runjournal show report-42 --request 120", "what a model was asked by the model.started at event 120, whole"),
        ("runjournal show @last-failed -o json", "for a script"),
    ],
)
@click.argument("run")
@click.option("--events", "what", flag_value="events", help="Every event.")
@click.option("--messages", "what", flag_value="messages", help="The transcript.")
@click.option("--calls", "what", flag_value="calls", help="Every attempt of every tool call.")
@click.option("--tree", "what", flag_value="tree", help="Its steps with their attempts and calls, and its children.")
@click.option("--waterfall", "what", flag_value="waterfall", help="The same as bars over time.")
@click.option("--request", "asked", type=click.IntRange(min=1), help="What a model was asked by this event, whole.")
@click.option("--models", is_flag=True, help="With --calls: model calls too.")
@click.option("--type", "types", multiple=True, help="With --events: only this type, or all that begin so (tool.).")
@click.option("--from", "first", type=click.IntRange(min=1), default=1, help="With --events: from this seq on.")
@click.option("--full", is_flag=True, help="Cut nothing.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    help=f"With --tree and --waterfall: at most so many lines, 0 = all.  [default: {show_lines_max} in a table]",
)
@click.option("--audit", is_flag=True, help=f"Look for findings in a run of over {audit_events_max:,} events too.")
@pass_app
def show(
    app: App,
    *,
    run: str,
    what: str | None,
    asked: int | None,
    types: tuple[str, ...],
    first: int,
    models: bool,
    full: bool,
    limit: int | None,
    audit: bool,
) -> int:
    """Show where a run stands: what it was doing, what is in flight, what it cost, what to do next."""
    from .refs import resolve

    with app.open() as journal:
        run_id, at = resolve(journal, run, newest=True)
        if asked is not None:
            document(app, journal.request(run_id, asked))
            return exits.OK
        if what == "events":
            return _events(app, journal, run_id, at, types=types, first=first, full=full)
        if what == "messages":
            return _messages(app, journal, run_id, at, full=full)
        if what == "calls":
            return _calls(app, journal, run_id, at, models=models)
        if what in ("tree", "waterfall"):
            from .tree import show_tree

            most = (show_lines_max if app.plain else 0) if limit is None else limit
            return show_tree(app, journal, run_id, at, most, bars=what == "waterfall")
        return _summary(app, journal, run_id, at, audit=audit, full=full)


# --- the parts, streamed -----------------------------------------------------------------------------------------

_EVENT_COLUMNS: Final = (
    Column("SEQ", right=True),
    Column("AT"),
    Column("TYPE"),
    Column("BY", flex=True),
    Column("STEP", right=True),
    Column("SUMMARY", flex=True),
)


def _events(
    app: App, journal: Logbook, run_id: str, at: int | None, *, types: Sequence[str], first: int, full: bool
) -> int:
    found: Iterable[RecordedEvent] = journal.events(run_id, after=first - 1, upto=at, blobs=full)
    if types:
        found = (record for record in found if record.type in types or record.type.startswith(_prefixes(types)))
    count = records(app, found, _EVENT_COLUMNS, lambda record: event_row(record, full=full), event_json)
    app.say(f"{plural(count, 'event')} of {run_id}; next: runjournal replay {run_id}@SEQ")
    return exits.OK


def _prefixes(types: Sequence[str]) -> tuple[str, ...]:
    return tuple(each for each in types if each.endswith("."))


def _messages(app: App, journal: Logbook, run_id: str, at: int | None, *, full: bool) -> int:
    found = journal.messages(run_id, at=at)
    if app.plain:
        shown = Counted(found)
        emit(app, _transcript(shown, full=full))
        count = plural(shown.count, "message") if shown.count else f"no messages in {run_id}"
        app.say(f"{count}; next: runjournal show {run_id} --calls")
    else:
        records(app, found, (), lambda _: (), lambda message: message._asdict())
    return exits.OK


def _transcript(messages: Iterable[Message], *, full: bool) -> Iterator[str]:
    from .describe import message as text_of_message

    role_styles = {"user": "busy", "assistant": "good", "tool": "warn", "system": "dim"}
    for message in messages:
        note = "" if message.committed else "  (uncommitted: its step is open)"
        yield styled(line(message.role), role_styles.get(message.role, "")) + styled(f"  {message.seq}{note}", "dim")
        yield from text_of_message(message.content, "  ", None if full else show_message_chars_max).split("\n")
        yield ""


_CALL_COLUMNS: Final = (
    Column("SEQ", right=True),
    Column("TOOL", flex=True),
    Column("STATUS"),
    Column("TRY", right=True),
    Column("STEP", right=True),
    Column("STARTED"),
    Column("TOOK", right=True),
    Column("ARGS", flex=True),
    Column("OUTCOME", flex=True),
)


def _calls(app: App, journal: Logbook, run_id: str, at: int | None, *, models: bool) -> int:
    from runjournal.looking.calls import calls
    from runjournal.writing.purged import seq_of

    count = records(app, calls(journal, run_id, upto=at, models=models), _CALL_COLUMNS, _call_row, _call_json)
    upto = seq_of(journal.head(run_id), at)
    hidden = 0 if models else journal.store.type_counts(run_id, upto).get("model.started", 0)
    left = f"; left out: {plural(hidden, 'attempt')} of model calls, --models shows them" if hidden else ""
    order = " in the order of their ends, those in flight last" if count > 1 else ""
    app.say(f"{plural(count, 'attempt')}{order}{left}; next: runjournal audit {run_id}")
    return exits.OK


def _call_row(row: CallRow) -> tuple[object, ...]:
    from .describe import value

    style = {"completed": "good", "failed": "bad", "open": "warn", "unknown": "warn"}.get(row.status, "")
    outcome = "" if row.outcome is None else value(row.outcome, 80)
    args = "" if row.args is None else value(row.args, 80)
    return (
        row.seq, row.tool, Cell(row.status, style), row.attempt, row.step, when(row.started_at),
        duration(row.started_at, row.ended_at), args, outcome,
    )  # fmt: skip


def _call_json(row: CallRow) -> dict[str, Any]:
    from runjournal.projections.status import reference

    return row._asdict() | {"args": reference(row.args), "outcome": reference(row.outcome)}


# --- the summary -------------------------------------------------------------------------------------------------


def _summary(app: App, journal: Logbook, run_id: str, at: int | None, *, audit: bool, full: bool) -> int:
    from runjournal.log.clock import timestamp
    from runjournal.looking.summary import summary

    from .screen import screen

    with progress(f"folding {run_id}") as report:
        found = summary(journal, run_id, at, report)
    findings = _findings(journal, run_id) if at is None and (audit or found.seq <= audit_events_max) else None
    if not app.plain:
        more: dict[str, Any] = {"findings_skipped": findings is None}
        if findings is not None:
            more["findings"] = [finding_json(app, each) for each in findings]
        document(app, found.as_json() | more)
        return exits.OK
    now = timestamp(journal.clock.now())
    emit(app, screen(app, found, findings, now, journal if full else None))
    return exits.OK


def _findings(journal: Logbook, run_id: str) -> list[Finding]:
    from runjournal.looking.audit import audit_run

    with progress(f"auditing {run_id}") as report:
        return list(audit_run(journal.store, run_id, progress=report))
