"""`runjournal check`: whether today's code can go on with the runs that are stored. It calls no tool and no model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from . import exits
from .agents import NamedAgent, agent_of, agent_option, by_kind
from .app import App, command, pass_app
from .formats import plural
from .output import Cell, Column, records
from .safe import line

if TYPE_CHECKING:
    from runjournal.code_check import CodeCheck
    from runjournal.log.head import Head
    from runjournal.logbook import Logbook


@command(
    "check",
    epilog="A run that has ended is checked to its end. One that may go on is taken up, as its next owner would: if "
    "that goes on, what differs before is a remark. The agent is called: code outside tools is executed.\n\nExit codes"
    ": 0 the code can go on with all of them, 3 it can't with some, 2 the command line can't be right, 4 no such run.",
    examples=[
        ("runjournal check --all --agent agents:report", "before a deploy: all runs of this agent's kind"),
        ("runjournal check @last --agent report=agents:write_report", "one run, of a kind of another name"),
    ],
)
@click.argument("run", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All runs of the agents' kinds that may go on.")
@click.option("--ended", is_flag=True, help="With --all: those that can't go on any more, too.")
@agent_option(required=True, multiple=True)
@pass_app
def check(app: App, run: tuple[str, ...], *, every: bool, ended: bool, agents: tuple[str, ...]) -> int:
    """Check that today's code can go on with stored runs; say where it first asks for something else.

    Each call, question and answer is served from the log. Nothing is sent, and nothing is written.
    """
    from .refs import run_id_of

    if bool(run) == every:
        raise click.UsageError(f"expected one or more RUN, or --all, got {'both' if every else 'neither'}")
    if ended and not every:
        raise click.UsageError("--ended goes with --all; a run that is named is checked whatever it is")
    known, counts = by_kind(agents), {True: 0, False: 0}
    with app.open() as journal:
        heads = journal.runs() if every else (journal.head(run_id_of(journal, each)) for each in run)
        chosen = (head for head in heads if not every or _counts(journal, head, known, ended=ended))
        records(app, _counted(journal, known, chosen, counts), _COLUMNS, _row, asdict)
    app.say(f"{plural(sum(counts.values()), 'run')} checked, the code differs in {counts[False]}")
    return exits.FINDINGS if counts[False] else exits.OK


def _counts(journal: Logbook, head: Head, known: dict[str, NamedAgent], *, ended: bool) -> bool:
    """Return whether a run of all counts: it may go on, or has failed and a retry may."""
    if head.kind not in known or head.unowned:
        return False
    over = head.status in ("completed", "cancelled") or journal.store.newest(head.scope) not in (None, head.run_id)
    return ended or not over


def _counted(
    journal: Logbook, known: dict[str, NamedAgent], heads: Iterator[Head], counts: dict[bool, int]
) -> Iterator[CodeCheck]:
    for head in heads:
        found = _checked(journal, agent_of(known, head), head.run_id)
        counts[found.ok] += 1
        yield found


def _checked(journal: Logbook, agent: NamedAgent, run_id: str) -> CodeCheck:
    from runjournal.async_journal import AsyncCodeChecker
    from runjournal.code_check import CodeChecker

    if agent.is_async:
        return asyncio.run(AsyncCodeChecker(journal, agent.function, run_id).check_async())
    return CodeChecker(journal, agent.function, run_id).check()


_COLUMNS: Final = (Column("RUN"), Column("CODE"), Column("SEQ"), Column("WHAT", flex=True))


def _row(found: CodeCheck) -> tuple[object, ...]:
    said = Cell("can go on", "good") if found.ok else Cell("differs", "bad")
    unchecked = [f"unchecked {found.unchecked}"] * bool(found.unchecked)
    told = "; ".join(filter(None, [found.message, *unchecked, *found.remarks]))
    return Cell(found.run_id, "title"), said, "" if found.seq is None else found.seq, line(told, 600)
