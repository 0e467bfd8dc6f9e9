"""`runjournal db`: the store itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from . import exits
from .app import App, group, pass_app
from .output import document, emit, styled
from .safe import preview


@group(
    "db",
    examples=[
        ("runjournal db info", "engine, settings, sizes, counts"),
        ("runjournal db backup runs-2026-11-29.db", "a verified copy, while writers go on"),
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
