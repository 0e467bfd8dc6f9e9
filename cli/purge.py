"""`runjournal purge`: take runs away for ever, and leave a last event with what they came to."""

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
    from runjournal.purging import Purge


@command(
    "purge",
    epilog="RUN is a whole id, of any run of the line: the whole line goes.\n\n"
    "Backups and exports that were made before are out of reach: delete them yourself. " + EXITS,
    examples=[
        ("runjournal purge report-42 --reason 'older than a year' --dry-run", "what would go, and its bytes"),
        ("runjournal purge report-42 --reason 'older than a year'", "asks before it does it"),
        ("runjournal db vacuum", "gives the disk space back"),
    ],
)
@click.argument("run")
@click.option("--yes", is_flag=True, help="Don't ask.")
@act_options
@pass_app
def purge(app: App, run: str, *, yes: bool, act: Act) -> int:
    """Take a line of runs that have ended away for ever; kind, status, times and costs stay."""
    from runjournal.purging import plan
    from runjournal.relations import Relations

    if not act.reason:
        raise click.UsageError("expected --reason TEXT: it stays in the log, in place of what is gone")
    with acting(app, act) as desk:
        run_id, store = desk.run_id(run), desk.journal.store
        planned = plan(store, run_id, Relations(store)).told(pending=False)
        if act.dry_run:
            return _told(app, planned, "would purge", dry_run=True)
        if planned.run_ids and not (yes or agreed(app, f"Purge {_sizes(planned)}", planned.run_ids, "purged")):
            return exits.CONFLICT
        done = desk.journal.purge(run_id, reason=act.reason)
    if done.pending:
        say_pending(app)
    return _told(app, done, "purged", dry_run=False)


def _sizes(done: Purge) -> str:
    runs, events = plural(len(done.run_ids), "run"), plural(done.events, "event")
    return f"{runs} with {events}, {done.bytes:,} bytes"


def _told(app: App, done: Purge, what: str, *, dry_run: bool) -> int:
    if not app.plain:
        document(app, {"dry_run": dry_run, **done._asdict()})
    if not done.run_ids:
        app.say("it was purged before")
        return exits.OK
    text = f"{what} {_sizes(done)}"
    if done.children:
        text += f"; runs that came of it stay: {', '.join(safe_line(each) for each in done.children[:10])}"
    app.say(f"{text}; backups and exports made before are out of reach; next: runjournal db vacuum")
    return exits.OK
