"""`runjournal audit`, `verify` and `doctor`: what is wrong, where, and what to type next."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from . import exits
from .app import App, command, pass_app
from .formats import amount, plural
from .output import Column, emit, records, styled
from .progress import progress
from .refs import HELP
from .safe import line

if TYPE_CHECKING:
    from runjournal.looking.audit import Finding, Verification
    from runjournal.looking.doctor import Check

SEVERITY_STYLES: Final = {"error": "bad", "warning": "warn", "info": "dim"}


@command(
    "audit",
    epilog=HELP + "\n\nExit codes: 0 nothing is wrong, 3 there are findings (info alone doesn't count).",
    examples=[
        ("runjournal audit @last", "one run: log, state machine, calls, checkpoints"),
        ("runjournal audit --all -o jsonl", "the whole store, for a script"),
    ],
)
@click.argument("run", required=False)
@click.option("--all", "every", is_flag=True, help="All runs.  [default, if no RUN is given]")
@pass_app
def audit(app: App, run: str | None, *, every: bool) -> int:
    """Find what is wrong or unsafe; each finding says where, and what to type next."""
    from runjournal.looking.audit import audit_run, audit_store

    from .refs import run_id_of

    _one_or_all(run, every=every)
    tally: dict[str, int] = {}
    with app.open() as journal, progress("auditing") as report:
        if run is None:
            found = audit_store(journal.store, progress=report)
        else:
            found = audit_run(journal.store, run_id_of(journal, run), progress=report)
        _findings(app, _tallied(found, tally))
    told = ", ".join(plural(tally[name], name) for name in SEVERITY_STYLES if name in tally and name != "info")
    remarks = f"{plural(tally['info'], 'remark')}, " if "info" in tally else ""
    app.say(f"found {told}" if told else f"{remarks}nothing is wrong")
    return exits.FINDINGS if told else exits.OK


def _one_or_all(run: str | None, *, every: bool) -> None:
    if run is not None and every:
        raise click.UsageError("expected a RUN or --all, got both")


def _tallied(found: Iterable[Finding], tally: dict[str, int]) -> Iterator[Finding]:
    for each in found:
        tally[each.severity] = tally.get(each.severity, 0) + 1
        yield each


def _findings(app: App, found: Iterable[Finding]) -> None:
    if app.plain:
        emit(app, itertools.chain.from_iterable(finding_lines(app, each) for each in found))
    else:
        records(app, found, (), lambda _: (), lambda each: finding_json(app, each))


def finding_json(app: App, finding: Finding) -> dict[str, Any]:
    """A finding as JSON."""
    found = {name: getattr(finding, name) for name in ("severity", "code", "run_id", "seq", "what")}
    return found | {"next": app.typed(finding.next)}


def finding_lines(app: App, finding: Finding) -> Iterator[str]:
    """A finding for people: what and where, then what to type next."""
    where = line(finding.run_id) + ("" if finding.seq is None else f" seq {finding.seq}")
    severity = styled(finding.severity.ljust(7), SEVERITY_STYLES[finding.severity])
    yield f"{severity} {styled(where or 'store', 'title')}  {line(finding.code)}"
    yield f"        {line(finding.what)}"
    yield f"        {styled('next:', 'dim')} {line(app.typed(finding.next))}"


# --- verify ------------------------------------------------------------------------------------------------------

_VERIFY_COLUMNS: Final = (
    Column("RUN", flex=True),
    Column("EVENTS", right=True),
    Column("PROBLEMS", right=True),
    Column("HEAD HASH"),
)


@command(
    "verify",
    epilog=HELP + "\n\nExit codes: 0 every hash and link is right, 3 they aren't.",
    examples=[
        ("runjournal verify", "every run of the store"),
        ("runjournal verify report-42", "one run; its head hash stands for all of it"),
    ],
)
@click.argument("run", required=False)
@click.option("--all", "every", is_flag=True, help="All runs.  [default, if no RUN is given]")
@pass_app
def verify(app: App, run: str | None, *, every: bool) -> int:
    """Check every hash, link and number of the log; `audit` looks at what it means too."""
    from runjournal.looking.audit import verify_run, verify_store

    from .refs import run_id_of

    _one_or_all(run, every=every)
    problems: list[Finding] = []
    with app.open() as journal, progress("verifying") as report:
        if run is None:
            found: Iterable[Verification] = verify_store(journal.store, progress=report)
        else:
            found = [verify_run(journal.store, run_id_of(journal, run), progress=report)]
        records(app, _noted(found, problems), _VERIFY_COLUMNS, _verify_row, lambda each: _verify_json(app, each))
    if app.plain:
        emit(app, itertools.chain.from_iterable(finding_lines(app, each) for each in problems))
        app.say(
            f"{plural(len(problems), 'problem')}; next: runjournal audit"
            if problems
            else "every hash and link is right"
        )
    return exits.FINDINGS if problems else exits.OK


def _noted(found: Iterable[Verification], problems: list[Finding]) -> Iterator[Verification]:
    for each in found:
        problems.extend(each.problems)
        yield each


def _verify_row(each: Verification) -> tuple[object, ...]:
    return each.run_id, amount(each.events), amount(len(each.problems)), each.head_hash


def _verify_json(app: App, each: Verification) -> dict[str, Any]:
    return {
        "run_id": each.run_id,
        "events": each.events,
        "head_hash": each.head_hash,
        "problems": [finding_json(app, problem) for problem in each.problems],
    }


# --- doctor ------------------------------------------------------------------------------------------------------

_MARKS: Final = {True: ("ok", "good"), False: ("bad", "bad"), None: ("-", "dim")}


@command(
    "doctor",
    epilog="Exit codes: 0 all is well, 3 something isn't.",
    examples=[
        ("runjournal doctor", "engine, file, settings, disk, and what recovery needs"),
        ("runjournal doctor -o json", "for a script"),
    ],
)
@pass_app
def doctor(app: App) -> int:
    """Check whether the store lies safely, and what is missing to recover the runs that haven't ended."""
    from runjournal.looking.doctor import doctor as examine

    with app.open() as journal:
        checks = examine(journal, app.db)
    if app.plain:
        emit(app, itertools.chain.from_iterable(_check_lines(app, each) for each in checks))
    else:
        names = ("name", "ok", "what", "next")
        records(app, checks, (), lambda _: (), lambda each: {name: getattr(each, name) for name in names})
    bad = sum(each.ok is False for each in checks)
    app.say(f"{plural(bad, 'check')} failed" if bad else "all is well; next: runjournal audit")
    return exits.FINDINGS if bad else exits.OK


def _check_lines(app: App, check: Check) -> Iterator[str]:
    mark, style = _MARKS[check.ok]
    yield f"{styled(mark.ljust(4), style)} {line(check.name).ljust(10)} {line(check.what)}"
    if check.next:
        yield f"     {''.ljust(10)} {styled('next:', 'dim')} {line(app.typed(check.next))}"
