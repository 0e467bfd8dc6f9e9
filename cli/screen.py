"""One screen for three in the morning: where a run stands, what is in flight, what it cost, what to do next."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from runjournal.log.limits import show_args_chars_max, show_rows_max, show_types_max

from .app import App
from .audit import SEVERITY_STYLES
from .events import event_row
from .formats import amount, duration, moment, plural
from .output import STATUS_STYLES, Cell, Column, styled, table, terminal_width, wrapped
from .safe import line

if TYPE_CHECKING:
    from runjournal.log.base import RecordedEvent
    from runjournal.logbook import Logbook
    from runjournal.looking.audit import Finding
    from runjournal.looking.open_calls import OpenCall
    from runjournal.looking.summary import Summary
    from runjournal.projections.state import RunState

INDENT: Final = "  "


def screen(
    app: App, found: Summary, findings: Sequence[Finding] | None, now: str, whole: Logbook | None
) -> Iterator[str]:
    """With `whole`, args are shown whole."""
    yield from _about(app, found, now)
    if found.problem is not None:
        yield from _section("Can't be folded", texts=[styled(line(found.problem), "bad")])
    if found.state is not None:
        yield from _open_calls(app, found, now, whole)
    if found.resume is not None:
        verb = "Goes on from" if found.head.status != "running" or found.owner_gone else "Has gone on from"
        yield from _section(verb, texts=(line(each, 400) for each in found.resume.lines()))
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


def _about(app: App, found: Summary, now: str) -> Iterator[str]:
    from runjournal.projections.status import STANDSTILLS

    head, state = found.head, found.state
    status = state.status.status if state else head.status
    note = "" if found.seq == head.head_seq else f"  (as of event {found.seq} of {head.head_seq})"
    note += styled("  its process is gone", "bad") if found.owner_gone else ""
    stopped = STANDSTILLS.get(state.stands) if state else None
    shown = styled(stopped, "bad") if stopped else styled(line(status), STATUS_STYLES.get(status, ""))
    yield f"{styled(head.run_id, 'title')}  {shown}{note}"
    for name, text in _facts(app, found, now):
        if text:
            yield f"  {styled(name.ljust(9), 'dim')} {text}"


def _facts(app: App, found: Summary, now: str) -> Iterator[tuple[str, str]]:
    from runjournal.engine.waits import awaited
    from runjournal.projections import shell
    from runjournal.projections.status import STANDSTILLS

    head, state = found.head, found.state
    yield "title", line(head.title or "", 120)
    yield "stands", found.stands if found.stands != "completed" else ""
    yield "kind", line(head.kind)
    yield "from", line(found.path or "")
    yield "parent", line(head.parent_run_id or "")
    last_at = state.at if state else head.updated_at
    ago = duration(last_at, now)
    yield "time", f"began {moment(head.queued_at)}, last event {moment(last_at)}" + (f" ({ago} ago)" if ago else "")
    types = sorted(found.events.items(), key=lambda item: -item[1])
    most = [f"{amount(count)} {line(name)}" for name, count in types[:show_types_max]] + ["…"] * (
        len(types) > show_types_max
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
        yield "go on", line(app.typed(shell.command("retry", head.run_id)))
    elif found.stands == "mistake":
        yield "left for", line(state.status.why or "", 400)
    mend = ""
    for wait in state.status.waits[:show_rows_max]:
        what = awaited(head.run_id, state, wait | {"args": found.asked.get(wait["id"])})
        if what.kind in STANDSTILLS:
            yield "stopped", line(what.what)
            yield from (("go on", line(app.typed(answer))) for answer in what.answers)
        elif state.answered(wait):
            yield "answered", line(f"{what.kind}: {what.what}{_decision(state, what.id)}; it goes on when it is run")
        else:
            yield "waits for", line(f"{what.kind}: {what.what}")
            yield from (("answer", line(app.typed(answer))) for answer in what.answers)
            mend = mend or what.mend
    yield "mend", line(mend)
    yield "due", moment(state.status.due_at)
    yield (
        "cancel",
        line(f"requested, mode {state.status.cancel}") if state.status.cancel and not state.status.terminal else "",
    )
    yield "signals", _untaken(state)
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
    count = found.family.runs if found.family else state.children.count
    yield "children", f"{amount(count)}{_children(state)}" if count else ""


def _children(state: RunState) -> str:
    """The first children, each with what the agent was told of it last."""
    told = list(state.children.statuses.items())
    named = [f"{line(child_id)} ({status})" for child_id, status in told[:show_rows_max]]
    named += ["…"] * (len(told) > show_rows_max)
    return f": {', '.join(named)}" if named else ""


def _decision(state: RunState, key: str) -> str:
    question = state.approvals.known.get(key)
    return f" ({question.decision})" if question is not None and question.decision else ""


def _untaken(state: RunState) -> str:
    """The signals that no step had taken when the run ended, "" if there are none."""
    signals = state.inbox.signals if state.status.terminal else []
    named = [f"{line(name, 60)} (seq {seq - state.offset})" for seq, _, name in signals[:show_rows_max]]
    named += ["…"] * (len(signals) > show_rows_max)
    return f"{amount(len(signals))} that nobody took: {', '.join(named)}" if signals else ""


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
    calls = found.open_calls if whole else found.open_calls[:show_rows_max]
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
        for each in (row, *_args(run_id, call, whole), *_verdict(app, found, call))
    )
    left = len(found.open_calls) - len(calls)
    more = [f"… {left} more: {line(app.typed(f'runjournal show {run_id} --full'))}"] if left else []
    ended = found.state is not None and found.state.status.terminal
    title = "Left open" if ended else "In flight"
    yield from _section(f"{title} ({len(found.open_calls)})", rows=(head, *args) if rows else (), texts=more)


_ON_RESUME: Final = {
    "recorded": "its outcome is returned",
    "run": "it is made again",
    "hook": "the tool's hook is asked",
    "ask": "a person is asked",
    "fail": "the agent is told that nobody knows",
    "tell": "the agent is told once that nobody knows, and may send it again",
}


def _verdict(app: App, found: Summary, call: OpenCall) -> Iterator[str]:
    """What becomes of a call when the run goes on, or a retry of it; where a person must say first, what to type."""
    from runjournal.engine.verdict import UNDECIDED
    from runjournal.projections import shell

    if not call.verdict or found.state is None:
        return
    then, status = _ON_RESUME[call.verdict], found.state.status.status
    if found.state.status.terminal:
        undecided = f"nobody knows whether it happened{call.why.removeprefix('it may have happened')}"
        text = f"the run is {status}: {undecided if call.verdict in UNDECIDED else call.why}"
        if found.newest is not None:
            text += f"; the run went on as {found.newest}"
        elif status != "completed":
            text += f"; in a retry {then}"
    else:
        text = f"on resume: {then}; {call.why}"
    yield from wrapped(line(text, 400), INDENT * 2)
    if call.verdict in UNDECIDED:
        for answer in shell.resolutions(found.head.run_id, call.call_id):
            yield f"{INDENT * 2}answer: {line(app.typed(answer))}"


def _args(run_id: str, call: OpenCall, whole: Logbook | None) -> Iterator[str]:
    """The args of a call, exact, on lines of their own; cut, unless they are wanted whole. A model call has none."""
    from .describe import value

    if call.policy == "model":
        return
    args = call.args
    if whole is not None:
        from runjournal.writing.folding import event_at, filled_record

        started = event_at(whole.store, run_id, call.seq)
        args = getattr(filled_record(whole.store, started).event, "args", None) if started else args
    text = value(args, sys.maxsize)
    over = len(text) - show_args_chars_max
    if whole is None and over > 0:
        text = f"{text[:show_args_chars_max]}… ({over:,} characters more: --full)"
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
            for each in findings[:show_rows_max]
        )
        more = [f"… {len(findings) - show_rows_max} more"] if len(findings) > show_rows_max else []
        yield from _section(f"Findings ({len(findings)})", texts=[*lines, *more])


def _next(app: App, found: Summary, findings: Sequence[Finding] | None) -> Iterator[str]:
    run_id = found.head.run_id
    hints: list[tuple[str, str]] = []
    if found.stands not in ("", "completed") and not found.head.unowned:
        hints.append((f"runjournal explain {run_id}", "why it isn't moving, and what to type"))
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
