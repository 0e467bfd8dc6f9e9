"""`runjournal show RUN`: one screen for three in the morning; or all its events, messages or calls, streamed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from runjournal.log import limits

from . import exits
from .app import App, command, pass_app
from .audit import SEVERITY_STYLES, finding_json
from .output import (
    STATUS_STYLES,
    Cell,
    Column,
    Counted,
    amount,
    document,
    duration,
    emit,
    moment,
    plural,
    progress,
    records,
    styled,
    table,
    terminal_width,
    when,
    wrapped,
)
from .refs import HELP
from .safe import line

if TYPE_CHECKING:
    from runjournal.log.base import RecordedEvent
    from runjournal.logbook import Logbook
    from runjournal.looking.audit import Finding
    from runjournal.looking.reports import CallRow, OpenCall, Summary
    from runjournal.projections.state import RunState
    from runjournal.projections.transcript import Message

INDENT: Final = "  "


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
        ("runjournal show @last-failed -o json", "for a script"),
    ],
)
@click.argument("run")
@click.option("--events", "what", flag_value="events", help="Every event.")
@click.option("--messages", "what", flag_value="messages", help="The transcript.")
@click.option("--calls", "what", flag_value="calls", help="Every attempt of every tool call.")
@click.option("--tree", "what", flag_value="tree", help="Its steps with their attempts and calls, and its children.")
@click.option("--waterfall", "what", flag_value="waterfall", help="The same as bars over time.")
@click.option("--models", is_flag=True, help="With --calls: model calls too.")
@click.option("--type", "types", multiple=True, help="With --events: only this type, or all that begin so (tool.).")
@click.option("--from", "first", type=click.IntRange(min=1), default=1, help="With --events: from this seq on.")
@click.option("--full", is_flag=True, help="Cut nothing.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    help=f"With --tree and --waterfall: at most so many lines, 0 = all.  [default: {limits.show_lines_max} in a table]",
)
@click.option(
    "--audit", is_flag=True, help=f"Look for findings in a run of over {limits.audit_events_max:,} events too."
)
@pass_app
def show(
    app: App,
    *,
    run: str,
    what: str | None,
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
        run_id, at = resolve(journal, run)
        if what == "events":
            return _events(app, journal, run_id, at, types=types, first=first, full=full)
        if what == "messages":
            return _messages(app, journal, run_id, at, full=full)
        if what == "calls":
            return _calls(app, journal, run_id, at, models=models)
        if what in ("tree", "waterfall"):
            from .tree import show_tree

            most = (limits.show_lines_max if app.plain else 0) if limit is None else limit
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


def event_row(record: RecordedEvent, *, full: bool = False) -> tuple[object, ...]:
    """An event as a row: seq, at, type, by, step, summary."""
    from .describe import event

    style = "bad" if record.type.endswith(".failed") else "good" if record.type == "run.completed" else ""
    summary = event(record, 100_000 if full else limits.summary_chars_max)
    return (
        record.seq,
        when(record.at),
        Cell(record.type, style),
        Cell(record.by, "dim"),
        record.step,
        summary,
    )


def event_json(record: RecordedEvent) -> dict[str, Any]:
    """An event as JSON, as it is stored; what is held out of line by reference, unless it was put in place."""
    from runjournal.log.base import NewerEvent, UnknownEvent, UnreadableEvent, data_of
    from runjournal.projections.status import reference

    event = record.event
    match event:
        case UnknownEvent() | NewerEvent():
            data: Any = event.data
        case UnreadableEvent():
            data = {"unreadable": event.reason, "body_bytes": len(event.body)}
        case _:
            data = {name: reference(value) for name, value in data_of(event).items()}
    head = {name: getattr(record, name) for name in record._fields if name != "event"}
    return head | {"data": data}


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
        yield from text_of_message(message.content, "  ", None if full else limits.show_message_chars_max).split("\n")
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
    from runjournal.looking.reports import calls, checked_seq, type_counts

    count = records(app, calls(journal, run_id, upto=at, models=models), _CALL_COLUMNS, _call_row, _call_json)
    hidden = 0 if models else type_counts(journal, run_id, checked_seq(journal, run_id, at)).get("model.started", 0)
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
    from runjournal.looking.reports import summary

    with progress(f"folding {run_id}") as report:
        found = summary(journal, run_id, at, report)
    findings = _findings(journal, run_id) if at is None and (audit or found.seq <= limits.audit_events_max) else None
    if not app.plain:
        more: dict[str, Any] = {"findings_skipped": findings is None}
        if findings is not None:
            more["findings"] = [finding_json(app, each) for each in findings]
        document(app, found.as_json() | more)
        return exits.OK
    now = timestamp(journal.clock.now())
    emit(app, _screen(app, found, findings, now, journal if full else None))
    return exits.OK


def _findings(journal: Logbook, run_id: str) -> list[Finding]:
    from runjournal.looking.audit import audit_run

    with progress(f"auditing {run_id}") as report:
        return list(audit_run(journal.store, run_id, progress=report))


def _screen(
    app: App, found: Summary, findings: Sequence[Finding] | None, now: str, whole: Logbook | None
) -> Iterator[str]:
    """With `whole`, args are shown whole."""
    yield from _about(found, now)
    if found.problem is not None:
        yield from _section("Can't be folded", texts=[styled(line(found.problem), "bad")])
    if found.state is not None:
        yield from _open_calls(app, found, now, whole)
    last = (_last_row(each) for each in reversed(found.last))
    yield from _section("Last events", rows=table(_LAST_COLUMNS, last, INDENT))
    if found.state is not None:
        yield from _costs(app, found, found.state)
    if found.error is not None:
        where = f"{found.error.where} (seq {found.error.seq})" if found.error.seq else found.error.where
        what = styled(line(f"{found.error.type}: {found.error.message}", 400), "bad")
        yield from _section("Last error", texts=[line(where), what])
    yield from _findings_lines(findings)
    yield from _section("Next", texts=_next(app, found, findings))


def _section(title: str, *, rows: Iterable[str] = (), texts: Iterable[str] = ()) -> Iterator[str]:
    """A title, the rows of a table and some texts; nothing, if there are neither."""
    body = [*rows, *(INDENT + each for each in texts)]
    if body:
        yield ""
        yield styled(title, "title")
        yield from body


def _about(found: Summary, now: str) -> Iterator[str]:
    head, state = found.head, found.state
    status = state.status.status if state else head.status
    note = "" if found.seq == head.head_seq else f"  (as of event {found.seq} of {head.head_seq})"
    note += styled("  its process is gone", "bad") if found.owner_gone else ""
    yield f"{styled(head.run_id, 'title')}  {styled(line(status), STATUS_STYLES.get(status, ''))}{note}"
    for name, text in _facts(found, now):
        if text:
            yield f"  {styled(name.ljust(9), 'dim')} {text}"


def _facts(found: Summary, now: str) -> Iterator[tuple[str, str]]:
    from runjournal.engine.waits import awaited

    head, state = found.head, found.state
    yield "title", line(head.title or "", 120)
    yield "kind", line(head.kind)
    yield "from", line(found.path or "")
    yield "parent", line(head.parent_run_id or "")
    last_at = state.at if state else head.updated_at
    ago = duration(last_at, now)
    yield "time", f"began {moment(head.queued_at)}, last event {moment(last_at)}" + (f" ({ago} ago)" if ago else "")
    types = sorted(found.events.items(), key=lambda item: -item[1])
    most = [f"{amount(count)} {line(name)}" for name, count in types[: limits.show_types_max]] + ["…"] * (
        len(types) > limits.show_types_max
    )
    yield "log", f"{plural(found.seq, 'event')} ({', '.join(most)}), head {line(found.hash or '', 12)}"
    if state is None:
        return
    owner = f"{line(state.status.owner)}, epoch {state.status.epoch}" if state.status.owner else ""
    yield "owner", owner
    if base := state.status.base:
        yield "from", line(f"{base['run_id']}, event {base['seq']} ({state.status.link}); its costs are its own")
    if found.newest is not None:
        yield "went on", line(f"as {found.newest}")
    elif state.status.status in ("failed", "cancelled") and state.status.kind:
        how = f"Journal.retry({head.run_id!r}) gives the id of a run that goes on from here; run that one"
        yield "go on", line(how)
    for wait in state.status.waits[: limits.show_rows_max]:
        what = awaited(head.run_id, state, wait)
        yield "waits for", line(f"{what.kind}: {what.what}")
        yield "answer", line(f"Journal.{what.answer}") if what.answer else ""
    yield "due", moment(state.status.due_at)
    yield (
        "cancel",
        line(f"requested, mode {state.status.cancel}") if state.status.cancel and not state.status.terminal else "",
    )
    yield "step", _step(state, now)
    roles = ", ".join(f"{line(role)} {amount(count)}" for role, count in sorted(state.transcript.view.roles.items()))
    yield "messages", f"{amount(state.transcript.view.count)} ({roles})" if roles else ""
    memory = state.memory.view
    yield "memory", f"{plural(len(memory), 'key')}, {amount(state.memory.bytes)} bytes" if memory else ""
    tasks = state.plan.view
    done = sum(task["status"] == "done" for task in tasks)
    task = state.plan.next()
    doing = f", now: {line(task['title'], 60)}" if task else ""
    yield "plan", f"{done} of {plural(len(tasks), 'task')} done{doing}" if tasks else ""
    tools, models = state.calls.tools, state.calls.models
    yield "calls", _counted(tools.started, tools.completed, tools.failed, tools.in_flight)
    yield "models", _counted(models.started, models.completed, models.failed, models.in_flight)
    children = found.family.runs if found.family else state.inbox.children_count
    yield "children", amount(children) if children else ""


def _step(state: RunState, now: str) -> str:
    step = state.steps.open
    done = f"{amount(state.steps.completed_count)} completed, {amount(state.steps.failed_count)} failed"
    if step is None:
        return done if state.steps.last_index >= 0 else ""
    again = f", attempt {step.attempt}, entry {step.entry}" if (step.attempt, step.entry) != (1, 1) else ""
    since = f"since {moment(step.started_at)} ({duration(step.started_at, now)})"
    return f"{step.index} {styled(line(step.id), 'busy')} is open{again}, {since}; {done}"


def _counted(started: int, completed: int, failed: int, in_flight: int) -> str:
    if not started:
        return ""
    text = f"{amount(started)} started, {amount(completed)} completed, {amount(failed)} failed"
    return text + (f", {styled(f'{amount(in_flight)} in flight', 'warn')}" if in_flight else "")


_OPEN_COLUMNS: Final = (
    Column("TOOL", flex=True),
    Column("STATUS"),
    Column("POLICY"),
    Column("TRY", right=True, spare=2),
    Column("SEQ", right=True),
    Column("STARTED", spare=1),
    Column("AGO", right=True),
)


def _open_calls(app: App, found: Summary, now: str, whole: Logbook | None) -> Iterator[str]:
    calls = found.open_calls if whole else found.open_calls[: limits.show_rows_max]
    rows = [
        (
            Cell(call.tool, "title"),
            Cell(call.status, "warn"),
            call.policy,
            call.attempt,
            call.seq,
            moment(call.started_at),
            duration(call.started_at, now),
        )
        for call in calls
    ]
    head, *shown = table(_OPEN_COLUMNS, rows, INDENT) if rows else [""]
    run_id = found.head.run_id
    args = (
        each
        for row, call in zip(shown, calls, strict=True)
        for each in (row, *_args(run_id, call, whole), *_verdict(found, call))
    )
    left = len(found.open_calls) - len(calls)
    more = [f"… {left} more: {line(app.typed(f'runjournal show {run_id} --full'))}"] if left else []
    yield from _section(f"In flight ({len(found.open_calls)})", rows=(head, *args) if rows else (), texts=more)


def _verdict(found: Summary, call: OpenCall) -> Iterator[str]:
    """What becomes of a call when the run goes on; where a person must say first, what to type."""
    if call.verdict:
        what = {"run": "made again", "ask": "asked"}.get(call.verdict, call.verdict)
        yield from wrapped(f"on resume: {what}; {call.why}", INDENT * 2)
    if call.verdict == "ask":
        from runjournal.engine.waits import resolve_call

        yield f"{INDENT * 2}answer: Journal.{line(resolve_call(found.head.run_id, call.call_id))}"


def _args(run_id: str, call: OpenCall, whole: Logbook | None) -> Iterator[str]:
    """The args of a call, exact, on lines of their own; cut, unless they are wanted whole. A model call has none."""
    from .describe import value

    if call.policy == "model":
        return
    args = call.args
    if whole is not None:
        from runjournal.writing.folding import event_at

        started = event_at(whole.store, run_id, call.seq)
        args = getattr(whole.filled(started).event, "args", None) if started else args
    text = value(args, sys.maxsize)
    over = len(text) - limits.show_args_chars_max
    if whole is None and over > 0:
        text = f"{text[: limits.show_args_chars_max]}… ({over:,} characters more: --full)"
    yield from wrapped(text, INDENT * 2)


_LAST_COLUMNS: Final = (Column("SEQ", right=True), Column("AT"), Column("TYPE"), Column("SUMMARY", flex=True))


def _last_row(record: RecordedEvent) -> tuple[object, ...]:
    seq, at, kind, _, _, summary = event_row(record)
    return seq, at, kind, summary


def _costs(app: App, found: Summary, state: RunState) -> Iterator[str]:
    from .costs import cost_notes, cost_rows, family_note

    notes = list(cost_notes(state))
    if found.family is not None:
        notes += family_note(state, found.family, app.typed(f"runjournal ls --parent {found.head.run_id}"))
    yield from _section("Cost", rows=cost_rows(state, INDENT), texts=notes)


def _findings_lines(findings: Sequence[Finding] | None) -> Iterator[str]:
    if findings:
        lines = (
            f"{styled(line(each.severity), SEVERITY_STYLES[each.severity])} {line(each.code)}: {line(each.what, 300)}"
            for each in findings[: limits.show_rows_max]
        )
        more = [f"… {len(findings) - limits.show_rows_max} more"] if len(findings) > limits.show_rows_max else []
        yield from _section(f"Findings ({len(findings)})", texts=[*lines, *more])


def _next(app: App, found: Summary, findings: Sequence[Finding] | None) -> Iterator[str]:
    run_id = found.head.run_id
    hints: list[tuple[str, str]] = []
    if found.problem is not None:
        hints.append((f"runjournal verify {run_id}", "where the log is damaged"))
    if findings is None or findings:
        hints.append((f"runjournal audit {run_id}", "each finding with what to do" if findings else "check it"))
    if found.open_calls:
        models = " --models" if any(call.policy == "model" for call in found.open_calls) else ""
        hints.append((f"runjournal show {run_id} --calls{models}", "what was sent, and what came back"))
    hints.append((f"runjournal show {run_id} --events", "the whole log"))
    if found.state is None or found.state.transcript.view.count:
        hints.append((f"runjournal show {run_id} --messages", "what was said"))
    if found.error is not None and found.error.seq:
        hints.append((f"runjournal replay {run_id}@{found.error.seq}", "the state when it failed"))
    hints = [(line(app.typed(hint)), why) for hint, why in hints]
    width = max(len(hint) for hint, _ in hints)
    limit = terminal_width()
    for hint, why in hints:
        text = f"{hint.ljust(width)}  {styled(why, 'dim')}"
        yield text if limit is None or len(INDENT) + width + 2 + len(why) <= limit else hint
