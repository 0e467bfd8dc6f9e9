"""`runjournal db`: the store itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from . import exits
from .app import App, group, pass_app
from .formats import amount, plural
from .output import document, emit, styled
from .progress import progress
from .safe import preview


@group(
    "db",
    examples=[
        ("runjournal db info", "engine, settings, sizes, counts"),
        ("runjournal db backup runs-2026-11-29.db", "a verified copy, while writers go on"),
        ("runjournal db migrate --dry-run", "whether this runjournal would change the schema"),
        ("runjournal db vacuum", "give unused disk space back"),
        ("runjournal db rebuild", "make all that follows from the events again"),
    ],
)
def db() -> None:
    """The store itself."""


@db.command("info", examples=[("runjournal db info -o json", "for a script")])
@pass_app
def info(app: App) -> int:
    """Tell what there is to know of the store: engine, settings, sizes, counts."""
    with app.open() as journal:
        found = journal.store.info()
    if app.plain:
        emit(app, facts(found))
    else:
        document(app, found)
    return exits.OK


def facts(found: dict[str, Any]) -> Iterator[str]:
    """Names and values, a line each."""
    width = max((len(name) for name in found), default=0)
    for name, value in found.items():
        yield f"{styled(preview(name, 60).ljust(width), 'dim')}  {preview(value, 400)}"


@db.command("backup", examples=[("runjournal db backup /backups/runs.db", "the target must not exist")])
@click.argument("target", type=click.Path())
@pass_app
def backup(app: App, target: str) -> int:
    """Copy the store to a new file, complete and verified, while writers go on."""
    with app.open() as journal:
        journal.backup(target)
    app.say(f"written to {target}; next: runjournal --db {target} verify")
    return exits.OK


@db.command("vacuum", examples=[("runjournal db vacuum", "after `checkpoint prune`, or once large runs are over")])
@pass_app
def vacuum(app: App) -> int:
    """Give disk space back that holds nothing any more. It takes as much free disk as the store has, while it works."""
    with app.open() as journal:
        freed = journal.store.vacuum()
    if not app.plain:
        document(app, {"freed_bytes": freed})
    app.say(f"gave {amount(freed)} bytes back")
    return exits.OK


@db.command(
    "rebuild",
    epilog="Exit codes: 0 done, 5 a run has a living owner: stop it first. Nothing is changed then.",
    examples=[("runjournal db rebuild", "after `audit` has found that an index differs from the log")],
)
@pass_app
def rebuild(app: App) -> int:
    """Make the rows of the runs and the index tables again from the events, all or nothing; checkpoints are dropped."""
    from runjournal.writing.rebuild import rebuild as make_again

    with app.open() as journal, progress("rebuilding") as report:
        done, total = 0, journal.store.last_position()

        def count(more: int) -> None:
            nonlocal done
            done += more
            report(done, total)

        runs = make_again(journal.store, count)
    if not app.plain:
        document(app, {"runs": runs, "events": total})
    app.say(f"{plural(runs, 'run')} made again from {plural(total, 'event')}; next: runjournal audit")
    return exits.OK


@db.command(
    "migrate",
    examples=[
        ("runjournal db migrate --dry-run", "say what would be done, and do nothing"),
        ("runjournal db migrate", "to the newest schema; the store is copied before"),
    ],
)
@click.option("--dry-run", is_flag=True, help="Change nothing.")
@pass_app
def migrate(app: App, *, dry_run: bool) -> int:
    """Bring the store to the schema of this runjournal. Every command that opens a store does so too."""
    path = Path(app.path).absolute() if app.path else None
    found, newest = _schemas(app, path)
    backups: list[str] = []
    if not dry_run:
        before = set(_backups(path))
        with app.open():
            backups = sorted(set(_backups(path)) - before)
    if not app.plain:
        document(app, {"from": found, "to": newest, "migrated": not dry_run and found != newest, "backups": backups})
    if found == newest:
        app.say(f"the store has schema {newest}, the newest; next: runjournal doctor")
    elif dry_run:
        app.say(f"the store has schema {found}, it would become {newest}, a copy is made before; {_MIGRATE}")
    else:
        where = f", the store as it was is in {', '.join(backups)}" if backups else ""
        app.say(f"migrated from schema {found} to {newest}{where}; next: runjournal verify")
    return exits.OK


_MIGRATE = "next: runjournal db migrate"


def _schemas(app: App, path: Path | None) -> tuple[int, int]:
    """The schema that the store has, and the newest one, without changing anything."""
    from runjournal.log.errors import NotAStore
    from runjournal.log.sqlite_place import read_header
    from runjournal.log.sqlite_schema import MIGRATIONS, check_header

    if path is None:
        raise click.UsageError(f"expected a store in a file, got {app.db}; there is nothing to migrate")
    app.check_there()
    if not check_header(str(path)) or (header := read_header(str(path))) is None:
        raise NotAStore(f"{path} is empty; `runjournal demo` or `runjournal import` makes a store")
    return header.schema, len(MIGRATIONS)


def _backups(path: Path | None) -> Iterator[str]:
    if path is not None:
        yield from (str(each) for each in path.parent.glob("*.backup-schema-*") if each.name.startswith(path.name))
