"""`runjournal erase`: make what private runs were told and have said unreadable, for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import exits
from .acts import EXITS, Act, act_options, acting, agreed, say_pending
from .app import App, command, pass_app
from .formats import plural
from .output import document
from .safe import line as safe_line

if TYPE_CHECKING:
    from runjournal.erasing import Erasure, ErasurePlan


@command(
    "erase",
    epilog="RUN is a whole id, and exactly that run; with --line it stands for its whole line.\n\n"
    "Backups and exports that were made before are out of reach: delete them yourself. " + EXITS,
    examples=[
        ("runjournal erase report-42 --reason 'asked by the customer' --dry-run", "what would be erased"),
        ("runjournal erase report-42 --reason 'asked by the customer'", "asks before it does it"),
        ("runjournal erase report-42 --reason 'asked by the customer' --line --yes", "its retries and forks too"),
    ],
)
@click.argument("run")
@click.option("--line", "whole_line", is_flag=True, help="The whole line, and all runs that go on from any of it.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@act_options
@pass_app
def erase(app: App, run: str, *, whole_line: bool, yes: bool, act: Act) -> int:
    """Erase the private values of a run that has ended; names, times, costs and the log's hashes stay."""
    from runjournal.erasing import plan
    from runjournal.relations import Relations

    if not act.reason:
        raise click.UsageError("expected --reason TEXT: it stays in the log, beside what is gone")
    with acting(app, act) as desk:
        run_id = desk.run_id(run)
        store = desk.journal.store
        planned = plan(store, store, run_id, Relations(store), line=whole_line)
        if act.dry_run:
            return _told(app, planned, f"would erase {plural(len(planned.run_ids), 'run')}", dry_run=True)
        runs = plural(len(planned.run_ids), "run")
        if planned.run_ids and not (yes or agreed(app, f"Erase {runs}", planned.run_ids, "erased")):
            return exits.CONFLICT
        done = desk.journal.erase(run_id, reason=act.reason, line=whole_line)
    if done.pending:
        say_pending(app)
    return _told(app, done, f"erased {plural(len(done.run_ids), 'run')}", dry_run=False)


def _told(app: App, done: Erasure | ErasurePlan, what: str, *, dry_run: bool) -> int:
    if not app.plain:
        document(app, {"dry_run": dry_run, **done._asdict()})
    app.say(what + "".join(f"; {text}" for text in _more(done)))
    return exits.OK


def _more(done: Erasure | ErasurePlan) -> list[str]:
    found: list[str] = []
    if done.before:
        found.append(f"{plural(len(done.before), 'run')} erased before")
    if done.derived:
        named = ", ".join(safe_line(each) for each in done.derived[:10])
        found.append(f"not erased, though going on from it: {named} (--line takes them along)")
    return [*found, "backups and exports made before are out of reach"]
