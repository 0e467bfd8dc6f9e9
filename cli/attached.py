"""How references to bytes read, and `runjournal blob`: the bytes that a run refers to, into a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from . import exits
from .app import App, command, pass_app
from .formats import plural, size
from .output import Column, records
from .refs import HELP
from .safe import line

if TYPE_CHECKING:
    from runjournal.looking.attached import Attached

_COLUMNS: Final = (Column("SEQ", right=True), Column("SHA256"), Column("SIZE", right=True), Column("TYPE"),
                   Column("NAME", flex=True))  # fmt: skip


def told(value: Any) -> Any:
    """Return a value in which a short text stands for each reference to bytes: `image/png, 34 KB, 3f2a…`."""
    from runjournal.log.media import is_reference

    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        if is_reference(entries):
            return f"{entries['media_type']}, {size(entries['bytes'])}, {entries['$blob'][:12]}…"
        return {key: told(item) for key, item in entries.items()}
    return [told(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value  # type: ignore[redundant-cast]  # for pyright


@command(
    "blob",
    epilog=HELP + " DIGEST: the SHA-256 of the bytes, or the beginning of it.",
    examples=[
        ("runjournal blob report-42", "what it holds: screenshots, PDFs, audio, by SHA-256"),
        ("runjournal blob report-42 3f2a --to page.png", "the bytes, into a new file"),
        ("runjournal blob report-42 3f2a | file -", "or into a pipe"),
    ],
)
@click.argument("run")
@click.argument("digest", required=False)
@click.option("--to", type=click.Path(dir_okay=False), metavar="FILE", help="Write to a new file.  [default: stdout]")
@pass_app
def blob(app: App, run: str, *, digest: str | None, to: str | None) -> int:
    """List the bytes that a run refers to, or write them out, verified."""
    from runjournal.looking.attached import attached

    from .refs import resolve

    if digest is None and to is not None:
        raise click.UsageError("expected the DIGEST of what is to be written; `runjournal blob RUN` lists them")
    with app.open() as journal:
        run_id, at = resolve(journal, run, newest=True)
        if digest is None:
            count = records(
                app, attached(journal, run_id, at), _COLUMNS, _row, lambda each: {"seq": each.seq} | each.ref
            )
            app.say(f"{plural(count, 'blob')} of {run_id}; next: runjournal blob {run_id} SHA256 --to FILE")
            return exits.OK
        found = [each.ref for each in attached(journal, run_id, at) if each.digest.startswith(digest.lower())]
        if len(found) != 1:
            what = "no bytes" if not found else f"{len(found)} blobs"
            raise click.UsageError(f"{run_id} refers to {what} whose SHA-256 begins with {line(digest, 64)!r}")
        if to is None and on_terminal():
            raise click.UsageError("bytes aren't shown on a terminal: --to FILE writes them, or a pipe takes them")
        _write(journal.read_blob(found[0]), to)
        if to is not None:
            app.say(f"{told(found[0])} written to {to}")
    return exits.OK


def on_terminal() -> bool:
    """Return whether what is written is shown to people."""
    return sys.stdout.isatty()


def _write(content: bytes, to: str | None) -> None:
    from runjournal.log.private import open_new

    if to is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    with open(open_new(to), "wb") as file:  # noqa: PTH123 - a descriptor has no path
        try:
            file.write(content)
            file.flush()
        except BaseException:
            Path(to).unlink(missing_ok=True)
            raise


def _row(each: Attached) -> tuple[object, ...]:
    return each.seq, each.digest[:12], size(each.ref["bytes"]), each.ref["media_type"], each.ref.get("name", "")
