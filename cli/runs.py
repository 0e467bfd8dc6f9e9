"""`runjournal run`, `resume` and `recover`: go on with runs here, in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from . import exits
from .acts import WHOLE, Act, Desk, act_options, acting, json_text, newest, note, opened
from .agents import NamedAgent, agent_named, agent_of, agent_option, by_kind
from .app import App, command, pass_app
from .formats import plural
from .output import STATUS_STYLES, Cell, Column, document, emit, records
from .safe import dumps, line

if TYPE_CHECKING:
    from runjournal.async_journal import AsyncJournal

_EXITS: Final = (
    "Exit codes: 0 completed, 1 it failed or was cancelled, 2 the command line can't be right, 3 it waits for a person "
    "or for other code, 5 it has a living owner, or another input, 75 it goes on at a time that hasn't come."
)
wait_option = click.option(
    "--wait", type=click.FloatRange(0, clamp=False), default=0.0, show_default=True, metavar="SECONDS",
    help="Sleep so long in all until it goes on, where it waits for a time.",
)  # fmt: skip


class RanOn(NamedTuple):
    """What became of a run here, with its output or what was raised.

    It completed, waits, was left alone (its owner lives, it isn't due), or today's code has stopped it; else it is as
    its status says: failed, cancelled, queued after a mistake, scheduled for its next round. `went_on`: it was claimed.
    """

    run_id: str
    became: str
    output: Any
    error: BaseException | None
    went_on: bool


@command(
    "run",
    epilog=_EXITS,
    examples=[
        ("runjournal run --agent agents:report --run-id report-42", "a new run, or the one of this id goes on"),
        ('runjournal run --agent agents:report --input \'{"path": "a.md"}\'', "with what it is to do"),
        ("runjournal run --agent agents:report --run-id report-42 --wait 3600", "and wait here for what it waits for"),
    ],
)
@agent_option(required=True)
@click.option("--run-id", metavar="ID", help="The run; it stands for its line.  [default: a new one]")
@click.option("--retry", is_flag=True, help="Go on from one that has failed or was cancelled, as a new run.")
@click.option("--input", type=json_text, metavar="JSON", help="What a new run is to do.")
@wait_option
@act_options
@pass_app
def run(app: App, *, agent: str, run_id: str | None, retry: bool, input: Any, wait: float, act: Act) -> int:
    """Run an agent to its end, or go on where a run of this id was; its output goes to stdout.

    A store that isn't there is made.
    """
    from runjournal.journal import begin
    from runjournal.writing.appender import Appender

    named = agent_named(agent)
    if act.dry_run:
        with acting(app, act) as desk:
            _check_kind(desk.journal, named, run_id)
            begun = begin(desk.journal, named.function, run_id, input, retry=retry, kind=named.kind)
            if desk.journal.store.head(begun) is not None:  # it isn't a new one
                claimed(desk, named, begun)
            desk.note(begun)
            return desk.told(begun)
    with opened(app, act.by, Appender, create=True) as journal:
        _check_kind(journal, named, run_id)
        begun = begin(journal, named.function, run_id, input, retry=retry, kind=named.kind)
        note(journal, begun, act.reason)
        return told(app, ran_on(journal, named, begun, wait))


def _check_kind(journal: AsyncJournal, named: NamedAgent, name: str | None) -> None:
    """Raise UsageError if a run of this name is there, and isn't of the agent's kind."""
    head = None if name is None else journal.store.head(newest(journal, name))
    if head is not None:
        agent_of({named.kind: named}, head)


def claimed(desk: Desk, named: NamedAgent, run_id: str) -> None:
    """Rehearse how a run would be claimed. Raises RunBusy, RunNotDue."""
    from runjournal.agent_code import agent_path, code_version
    from runjournal.runner import Runner

    Runner(desk.journal).claim(run_id, code=code_version(named.function), agent=agent_path(named.function))


def ran_on(journal: AsyncJournal, named: NamedAgent, run_id: str, wait_s: float = 0.0) -> RanOn:
    """Go on with a run; return what became of it. `wait_s`: see `Journal.run`. An interrupt is raised."""
    from runjournal.engine.failures import Stop

    before = journal.head(run_id).head_seq
    try:
        if named.is_async:
            output = asyncio.run(journal.run_async(named.function, run_id=run_id, kind=named.kind, wait_s=wait_s))
        else:
            output = journal.run(named.function, run_id=run_id, kind=named.kind, wait_s=wait_s)
    except (Exception, Stop) as error:  # noqa: BLE001 - whatever leaves the agent is told of
        return _became(journal, run_id, error, before)
    return _became(journal, run_id, output, before)


def _became(journal: AsyncJournal, run_id: str, outcome: Any, before: int) -> RanOn:
    """Return what became of a run whose log had so many events before it was tried here."""
    from runjournal.engine.failures import RunBusy, RunNotDue, RunWaiting, Stop

    head = journal.head(run_id)
    went_on = head.head_seq > before
    match outcome:
        case RunBusy() | RunNotDue():
            return RanOn(run_id, "left alone", None, outcome, went_on)
        case RunWaiting():
            return RanOn(run_id, "waits", None, outcome, went_on)
        case Stop():
            return RanOn(run_id, "stopped", None, outcome, went_on)
        case BaseException():
            return RanOn(run_id, head.status, None, outcome, went_on)
        case _:
            return RanOn(run_id, "completed", outcome, None, went_on)


def told(app: App, ran: RanOn) -> int:
    """Say what became of a run, and what to type next."""
    if ran.error is not None:
        exits.told(ran.error, as_json=not app.plain)
        app.say(f"next: runjournal explain {ran.run_id}")
        return _code(ran)
    if app.plain:
        emit(app, dumps(ran.output, indent=2).split("\n"))
        app.say(f"run {ran.run_id} has completed; next: runjournal show {ran.run_id}")
    else:
        document(app, _json(ran))
    return exits.OK


def _code(ran: RanOn) -> int:
    if ran.error is None:
        return exits.OK
    return exits.FINDINGS if ran.became == "stopped" else exits.code_of(ran.error)


# --- resume ------------------------------------------------------------------------------------------------------


@command(
    "resume",
    epilog=f"{WHOLE}\n\n{_EXITS} Without --agent: 0 it is free to be run, 5 there is nothing to resume.",
    examples=[
        ("runjournal resume report-42 --agent agents:report", "try a run again that the code of before has stopped"),
        ("runjournal resume report-42 --reason 'the prompt is mended'", "free it for whoever runs it next"),
        (
            "runjournal resume report-42 --recorded --agent agents:report",
            "its prompt was changed: by what is on record",
        ),
    ],
)
@click.argument("run")
@agent_option(required=False)
@click.option("--recorded", is_flag=True, help="With the answers that its step has, whatever is asked.")
@click.option("--point", type=click.IntRange(min=1), help="The resume point that you have seen; it is used once.")
@wait_option
@act_options
@pass_app
def resume(app: App, run: str, *, agent: str | None, recorded: bool, point: int | None, wait: float, act: Act) -> int:
    """Get a run going that stands still: today's code has stopped it, or it doesn't get on.

    What it goes on from is said first. With --agent it is run here, too; so is one that would go on without being
    resumed. With --recorded a prompt that has changed asks and sends nothing twice: the step goes on with what is on
    record of it. A resume point, as `show` names it, is used once: whoever comes second is refused.
    """
    from runjournal.writing.appender import Appender

    from .refs import whole_id

    named = None if agent is None else agent_named(agent)
    if named is None or act.dry_run:
        with acting(app, act) as desk:
            name = desk.name(run)
            seen = _seen(app, desk.journal, name, named, point)
            if named is None or recorded or _stands(desk.journal, name, named):
                desk.journal.resume(name, recorded=recorded, reason=act.reason or "", point=seen)
            else:
                claimed(desk, named, newest(desk.journal, name))
                desk.note(name)
            return desk.told(name)
    with opened(app, act.by, Appender, create=False) as journal:
        name = whole_id(journal, run)
        seen = _seen(app, journal, name, named, point)
        if _stands(journal, name, named) or recorded:
            journal.resume(name, recorded=recorded, reason=act.reason or "", point=seen)
        else:
            note(journal, name, act.reason)
        return told(app, ran_on(journal, named, newest(journal, name), wait))


def _seen(app: App, journal: AsyncJournal, name: str, named: NamedAgent | None, point: int | None) -> int | None:
    """Say what a run goes on from; return the point that is used. Raises ResumePointUsed."""
    from runjournal.standstill import check_point

    run_id = newest(journal, name)
    if point is not None:
        check_point(journal.store, run_id, point, journal.head(run_id).head_seq)
    report = journal.resume_report(run_id, agent=named and named.function)
    for text in report.lines() if report is not None and app.plain else ():
        app.say(line(text, 400))
    return point if report is None else report.point


def _stands(journal: AsyncJournal, name: str, named: NamedAgent) -> bool:
    """Return whether a run stands still, which must be of the agent's kind. Raises UsageError."""
    agent_of({named.kind: named}, journal.head(newest(journal, name)))
    return bool(journal.state(name).stands)


# --- recover -----------------------------------------------------------------------------------------------------


@command(
    "recover",
    epilog=f"{WHOLE}\n\n{_EXITS} Of several runs the worst counts.",
    examples=[
        (
            "runjournal recover --all --agent agents:report --agent agents:pay",
            "all runs of two kinds that may go on",
        ),
        ("runjournal recover report-42 --agent report=agents:write_report", "one, of a kind of another name"),
    ],
)
@click.argument("run", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All runs of the agents' kinds that may go on.")
@agent_option(required=True, multiple=True)
@act_options
@pass_app
def recover(app: App, run: tuple[str, ...], *, every: bool, agents: tuple[str, ...], act: Act) -> int:
    """Go on with runs that are queued, due, answered, or left by a process that died."""
    from runjournal.writing.appender import Appender

    from .refs import whole_id

    if bool(run) == every:
        raise click.UsageError(f"expected one or more RUN, or --all, got {'both' if every else 'neither'}")
    known = by_kind(agents)
    if act.dry_run:
        with acting(app, act) as desk:
            return _rehearsed_recovery(desk, known, run)
    with opened(app, act.by, Appender, create=False) as journal:
        run_ids = [newest(journal, whole_id(journal, each)) for each in run]
        chosen = [(run_id, agent_of(known, journal.head(run_id))) for run_id in run_ids]
        for run_id in run_ids:
            note(journal, run_id, act.reason)
        found = _recovered(journal, known) if every else (ran_on(journal, agent, each) for each, agent in chosen)
        return _told_all(app, found)


def _recovered(journal: AsyncJournal, known: dict[str, NamedAgent]) -> Iterator[RanOn]:
    plain = {kind: agent.function for kind, agent in known.items() if not agent.is_async}
    tasks = {kind: agent.function for kind, agent in known.items() if agent.is_async}
    for run_id, outcome in (journal.recover_all(plain) if plain else {}).items():
        yield _became(journal, run_id, outcome, 0)
    for run_id, outcome in (asyncio.run(journal.recover_all_async(tasks)) if tasks else {}).items():
        yield _became(journal, run_id, outcome, 0)


def _rehearsed_recovery(desk: Desk, known: dict[str, NamedAgent], run: tuple[str, ...]) -> int:
    from runjournal.engine.failures import RunBusy, RunNotDue
    from runjournal.journal import unfinished

    named = [newest(desk.journal, desk.name(each)) for each in run]
    chosen = named or [run_id for run_id, _ in unfinished(desk.journal, known)]
    for run_id in chosen:
        agent = agent_of(known, desk.journal.head(run_id))
        with contextlib.suppress(*(() if run else (RunBusy, RunNotDue))):
            claimed(desk, agent, run_id)
            if run:
                desk.note(run_id)
    return desk.told(chosen[0] if chosen else "")


_COLUMNS: Final = (Column("RUN"), Column("BECAME"), Column("OUTPUT, OR WHY", flex=True))
_STYLES: Final = {"waits": "warn", "left alone": "dim", "stopped": "bad"}


def _told_all(app: App, found: Iterator[RanOn]) -> int:
    worst, on = [exits.OK], list[str]()
    count = records(app, _weighed(found, worst, on), _COLUMNS, _row, _json)
    some = plural(len(on), "run") if len(on) == count else f"{len(on)} of {plural(count, 'run')}"
    app.say(f"{some} went on; next: runjournal ls" if count else "no run may go on here now")
    return max(worst)


def _weighed(found: Iterator[RanOn], worst: list[int], on: list[str]) -> Iterator[RanOn]:
    for each in found:
        worst.append(_code(each))
        if each.went_on:
            on.append(each.run_id)
        yield each


def _row(ran: RanOn) -> tuple[object, ...]:
    style = _STYLES.get(ran.became) or STATUS_STYLES.get(ran.became, "")
    said = dumps(ran.output) if ran.error is None else f"{type(ran.error).__name__}: {ran.error}"
    return Cell(ran.run_id, "title"), Cell(ran.became, style), line(said, 400)


def _json(ran: RanOn) -> dict[str, Any]:
    error = None if ran.error is None else {"type": type(ran.error).__name__, "message": str(ran.error)}
    return {"run_id": ran.run_id, "became": ran.became, "output": ran.output, "error": error}
