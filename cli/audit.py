"""`runjournal audit`, `verify` and `doctor`: what is wrong, where, and what to type next."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from . import exits
from .app import App, command, pass_app
from .output import Column, amount, emit, plural, progress, records, styled
from .refs import HELP
from .safe import line

if TYPE_CHECKING:
    from runjournal.auditing import Finding, Verification

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
    from runjournal.auditing import audit_run, audit_store

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
    app.say(f"found {told}" if told else "nothing is wrong")
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
        emit(app, itertools.chain.from_iterable(finding_lines(each) for each in found))
    else:
        records(app, found, (), lambda _: (), finding_json)


def finding_json(finding: Finding) -> dict[str, Any]:
    """A finding as JSON."""
    return {name: getattr(finding, name) for name in ("severity", "code", "run_id", "seq", "what", "next")}


def finding_lines(finding: Finding) -> Iterator[str]:
    """A finding for people: what and where, then what to type next."""
    where = line(finding.run_id) + ("" if finding.seq is None else f" seq {finding.seq}")
    yield f"{styled(finding.severity.ljust(7), SEVERITY_STYLES[finding.severity])} {styled(where or 'store', 'title')}  {line(finding.code)}"
    yield f"        {line(finding.what)}"
    yield f"        {styled('next:', 'dim')} {line(finding.next)}"


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
    from runjournal.auditing import verify_run, verify_store

    from .refs import run_id_of

    _one_or_all(run, every=every)
    problems: list[Finding] = []
    with app.open() as journal, progress("verifying") as report:
        if run is None:
            found: Iterable[Verification] = verify_store(journal.store, progress=report)
        else:
            found = [verify_run(journal.store, run_id_of(journal, run), progress=report)]
        records(app, _noted(found, problems), _VERIFY_COLUMNS, _verify_row, _verify_json)
    if app.plain:
        emit(app, itertools.chain.from_iterable(finding_lines(each) for each in problems))
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


def _verify_json(each: Verification) -> dict[str, Any]:
    return {
        "run_id": each.run_id,
        "events": each.events,
        "head_hash": each.head_hash,
        "problems": [finding_json(problem) for problem in each.problems],
    }
