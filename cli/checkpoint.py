"""`runjournal checkpoint`: checkpoints of folded state. They can always be dropped: the log has all that is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from . import exits
from .app import App, group, pass_app
from .db import facts
from .formats import amount, plural
from .output import Cell, Column, document, emit, records
from .refs import HELP

if TYPE_CHECKING:
    from runjournal.log.store import Checkpoint, Store

_COLUMNS: Final = (Column("SEQ", right=True), Column("BYTES", right=True), Column("USABLE"), Column("FOLD", flex=True))


@group(
    "checkpoint",
    examples=[
        ("runjournal checkpoint ls @last", "a run's checkpoints, and whether they can be used"),
        ("runjournal checkpoint show @last", "what the newest one knows"),
        ("runjournal checkpoint prune --all", "drop them; the next fold starts from the first event"),
    ],
)
def checkpoint() -> None:
    """Checkpoints of folded state: list, show, prune."""


@checkpoint.command("ls", epilog=HELP, examples=[("runjournal checkpoint ls report-42", "newest first")])
@click.argument("run")
@pass_app
def ls(app: App, run: str) -> int:
    """List the checkpoints of a run, newest first."""
    from runjournal.writing.checkpoints import problem

    from .refs import run_id_of

    with app.open() as journal:
        run_id = run_id_of(journal, run)
        found = ((each, problem(journal.store, each)) for each in journal.store.checkpoints(run_id))
        count = records(app, found, _COLUMNS, _row, _json)
    app.say(f"{plural(count, 'checkpoint')}; next: runjournal checkpoint show {run_id}")
    return exits.OK


def _row(item: tuple[Checkpoint, str | None]) -> tuple[object, ...]:
    each, problem = item
    return each.seq, amount(len(each.body)), Cell(problem or "yes", "warn" if problem else "good"), each.fold


def _json(item: tuple[Checkpoint, str | None]) -> dict[str, Any]:
    each, problem = item
    return {"run_id": each.run_id, "seq": each.seq, "bytes": len(each.body), "fold": each.fold, "problem": problem}


@checkpoint.command("show", epilog=HELP, examples=[("runjournal checkpoint show report-42 -o json", "for a script")])
@click.argument("run")
@pass_app
def show(app: App, run: str) -> int:
    """Show what the newest usable checkpoint of a run knows (at or before RUN@SEQ)."""
    from runjournal.projections.state import RunState
    from runjournal.writing.checkpoints import newest, summary

    from .refs import resolve

    with app.open() as journal:
        run_id, at = resolve(journal, run)
        found = newest(journal.store, RunState, run_id, at)
    if found is None or not isinstance(found[0], RunState):
        raise click.ClickException(f"run {run_id} has no usable checkpoint; its state is folded from the first event")
    content = {"seq": found[1]} | summary(found[0])
    if app.plain:
        emit(app, facts(content))
    else:
        document(app, content)
    return exits.OK


@checkpoint.command("prune", epilog=HELP, examples=[("runjournal checkpoint prune report-42", "all of a run")])
@click.argument("run", required=False)
@click.option("--all", "every", is_flag=True, help="Those of all runs.")
@click.option("--seq", type=click.IntRange(min=1), help="Only the one at this seq.")
@pass_app
def prune(app: App, run: str | None, seq: int | None, *, every: bool) -> int:
    """Drop checkpoints. No state is lost: it is folded from the log again."""
    from .refs import run_id_of

    if (run is None) != every:
        raise click.UsageError("expected a RUN or --all" + (", got both" if every else ""))
    with app.open() as journal:
        run_id = run_id_of(journal, run) if run else None
        before = _bytes(journal.store)
        dropped = journal.store.drop_checkpoints(run_id, seq)
        freed = before - _bytes(journal.store)
    if not app.plain:
        document(app, {"dropped": dropped, "bytes": freed})
    app.say(
        f"dropped {plural(dropped, 'checkpoint')} of {amount(freed)} bytes; no state is lost by it; "
        "next: runjournal db vacuum gives the disk back"
    )
    return exits.OK


def _bytes(store: Store) -> int:
    """Return how many bytes the checkpoints of a store hold."""
    return sum(len(each.body) for run_id in store.checkpoint_runs() for each in store.checkpoints(run_id))
