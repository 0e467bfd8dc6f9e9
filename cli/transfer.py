"""`runjournal import` and `runjournal export`: runs in and out of a store."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from runjournal.log.limits import import_follow_pause_s, import_told_lines_max

from . import exits
from .app import App, command, group, pass_app
from .formats import amount, plural
from .output import Column, emit, records
from .progress import Report, progress
from .refs import HELP
from .safe import dumps, escape_json, line

if TYPE_CHECKING:
    from runjournal.importers.claude_files import Source
    from runjournal.importers.transfer import FileReport
    from runjournal.logbook import Logbook


_COLUMNS: Final = (
    Column("RUN", flex=True),
    Column("ADDED", right=True),
    Column("QUARANTINED", right=True),
    Column("TORN", right=True),
    Column("FROM", flex=True),
)
_NOTHING: Final = "no line of it is a JSON object; expected a transcript of Claude Code"


@group(
    "import",
    examples=[
        ("runjournal import claude-code ~/.claude/projects", "every session there; again later adds what is new"),
        ("runjournal import jsonl runs.jsonl", "an export, with the same hashes"),
    ],
)
def import_() -> None:
    """Bring runs in. Imported runs are read-only; importing the same again adds nothing."""


@import_.command(
    "claude-code",
    examples=[
        ("runjournal import claude-code ~/.claude/projects", "all sessions and their sub-agents"),
        ("runjournal import claude-code session.jsonl -o json", "one file, for a script"),
        ("runjournal import claude-code ~/.claude/projects --follow", "all of them, and what is written from now on"),
    ],
    epilog="Exit codes: 0 ok, also with a torn last line, which is read again once the file has grown; 3 lines were "
    "quarantined; 1 nothing came in, or a file was left alone.",
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="FILE|FOLDER...")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until interrupted.")
@pass_app
def claude_code(app: App, paths: tuple[str, ...], *, follow: bool) -> int:
    """Import transcripts of Claude Code, one transaction a file; with --follow, JSON output is one object a line."""
    if follow:
        return _follow(app, paths)
    from runjournal.importers.claude_code import discover, holds_records
    from runjournal.logbook import Logbook

    sources = discover(paths)
    # What can't be imported makes no store either.
    there = not _is_new(app) or any(holds_records(source) for source in sources)
    opened = app.open(create=True) if there else Logbook.open("memory:")
    with opened as journal, progress("importing") as report:
        outcome = _Outcome()
        done = (outcome.count(_import(journal, source)) for source in sources)
        rows = (row for number, found in enumerate(done, 1) for row in _reported(found, report, number, len(sources)))
        records(app, rows, _COLUMNS, _row, lambda row: row)
        shown = _shown_by(journal, outcome) if outcome.runs else ""
    if not sources:
        app.say("no *.jsonl files there; a session's transcript lies in ~/.claude/projects/<project>/")
    outcome.tell(app, shown)
    return outcome.code()


def _follow(app: App, paths: tuple[str, ...]) -> int:
    """Import what is there, and then what comes, until Ctrl-C or SIGTERM."""
    from runjournal.importers.following import grown

    from .stopping import EndAsked

    files: dict[str, tuple[FileReport, list[str]]] = {}
    events = 0
    with app.open(create=True) as journal, EndAsked() as stop:
        for source in grown(paths, stop.asked, import_follow_pause_s):
            found, one = _import(journal, source), _Outcome()
            one.count(found)
            events += one.events
            said = files[source.path][1] if source.path in files else []
            files[source.path] = found, one.told
            for row in _reported(found, _untold, 0, 0):
                if not app.plain:
                    click.echo(dumps(row))
                elif row["events_added"]:
                    added = plural(row["events_added"], "event")
                    click.echo(f"{line(row['run_id'])}  {added} added from {line(_at_home(row['path']))}")
            for text in one.told:
                if text not in said:
                    app.say(text)
        outcome = _Outcome()
        for found, _ in files.values():
            outcome.count(found)
        outcome.events, outcome.told = events, []
        shown = _shown_by(journal, outcome) if outcome.runs else ""
    outcome.tell(app, shown)
    return outcome.code() if outcome.runs or outcome.failed else exits.OK


def _untold(*_: object) -> None:
    """What follows has no end to be told of."""


def _shown_by(journal: Logbook, outcome: _Outcome) -> str:
    """The command that shows what came in."""
    if len(outcome.runs) > 1:
        return "runjournal ls"
    (run_id,) = outcome.runs
    last = journal.latest()
    return f"runjournal show {'@last' if last and last.run_id == run_id else run_id}"


def _reported(found: FileReport, report: Report, number: int, total: int) -> list[dict[str, Any]]:
    """One object a run; the lines that weren't taken belong to the file's own run, which comes first."""
    report(number, total)
    lines = [{"line": each.line, "cause": each.cause} for each in found.quarantined]
    whole = len(lines) - found.torn_tail
    missing: dict[str, Any] = {"quarantined": lines[:whole], "torn": lines[whole:]}
    if found.findings > whole:
        missing["quarantined_count"] = found.findings
    error = {"error": found.error or _NOTHING} if found.error or not found.runs else {}
    if not found.runs:
        return [_object(None, found.path, 0) | missing | error]
    return [
        _object(each.run_id, each.path, each.events_added, each.left_out) | ({} if place else missing) | error
        for place, each in enumerate(found.runs)
    ]


def _object(run_id: str | None, path: str, events_added: int, left_out: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"run_id": run_id, "path": path, "events_added": events_added}
    found |= {"quarantined": [], "torn": []}
    return found if left_out is None else found | {"left_out": left_out}


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        row["run_id"] or "-",
        amount(row["events_added"]),
        amount(row.get("quarantined_count", len(row["quarantined"]))),
        amount(len(row["torn"])),
        _at_home(row["path"]),
    )


def _at_home(path: str) -> str:
    """A path with `~` for the user's folder."""
    home = os.path.expanduser("~").rstrip("/")  # noqa: PTH111 - it never raises
    return f"~{path.removeprefix(home)}" if home and path.startswith(f"{home}/") else path


class _Outcome:
    """What the exit code and the last line come from."""

    def __init__(self) -> None:
        self.runs: dict[str, None] = {}
        self.events = self.quarantined = self.torn = self.failed = 0
        self.told: list[str] = []
        self.untold = 0

    def count(self, found: FileReport) -> FileReport:
        """Count one file; return it."""
        self.runs.update(dict.fromkeys(each.run_id for each in found.runs))
        self.events += sum(each.events_added for each in found.runs)
        self.quarantined += found.findings
        self.torn += found.torn_tail
        self.failed += found.error is not None
        if found.error or not found.runs:
            self._say(f"{line(found.path)}: {line(found.error or _NOTHING)}")
        for run in found.runs:
            if run.left_out is not None:
                self._say(f"run {line(run.run_id)} is left out: {run.left_out}")
        for each in found.quarantined:
            self._say(f"{line(found.path)}:{each.line}: {line(each.cause)}")
        self.untold += found.quarantined_count - len(found.quarantined)
        return found

    def _say(self, text: str) -> None:
        if len(self.told) < import_told_lines_max:
            self.told.append(text)
        else:
            self.untold += 1

    def tell(self, app: App, command: str) -> None:
        """Say it, and what to type next."""
        for each in self.told:
            app.say(each)
        if self.untold:
            app.say(f"… and {plural(self.untold, 'line')} more; -o json lists them")
        hint = f"; next: {command}" if command else ""
        lines = f"{plural(self.quarantined, 'line')} quarantined"
        lines += f", {plural(self.torn, 'torn line')} left for the next time" if self.torn else ""
        app.say(f"{plural(self.events, 'event')} added, {plural(len(self.runs), 'run')}, {lines}{hint}")

    def code(self) -> int:
        """Return 0 if all is well, 3 if lines were quarantined, 1 if nothing came in or a file was left alone."""
        if not self.runs or self.failed:
            return exits.FAILED
        return exits.FINDINGS if self.quarantined else exits.OK


def _import(journal: Logbook, source: Source) -> FileReport:
    """Import one file; what is wrong with it is its own, and the others go on."""
    from runjournal.importers.transfer import FileReport as Found
    from runjournal.importers.transfer import import_claude_code
    from runjournal.log.errors import JournalError, StoreError

    try:
        return import_claude_code(journal, source)
    except StoreError:
        raise
    except JournalError as error:
        return Found(source.path, error=str(error))


@import_.command(
    "jsonl",
    examples=[
        ("runjournal import jsonl runs.jsonl", "the runs of an export"),
        ("runjournal export @last | runjournal --db other.db import jsonl -", "from store to store"),
    ],
)
@click.argument("path", type=click.Path(), metavar="FILE|-")
@pass_app
def jsonl(app: App, path: str) -> int:
    """Import an export, byte for byte: the same events, the same hashes. All of the file or nothing."""
    from runjournal.importers.jsonl import lines_of, read_lines
    from runjournal.importers.transfer import import_jsonl

    with click.open_file(path, "rb") as file, progress("importing") as report:
        if path != "-" and _is_new(app) and file.seekable():  # what can't be imported makes no store either
            deque(read_lines(lines_of(file), path), maxlen=0)
            file.seek(0)
        with app.open(create=True) as journal:
            added = import_jsonl(journal, _counted(lines_of(file), report), path).runs
    rows = [_object(each.run_id, each.path, each.events_added, each.left_out) for each in added]
    records(app, rows, _COLUMNS[:2], lambda row: _row(row)[:2], lambda row: row)
    for each in added:
        if each.left_out is not None:
            app.say(f"run {line(each.run_id)} is left out: {each.left_out}")
    app.say(f"{plural(sum(each.events_added for each in added), 'event')} added; next: runjournal verify")
    return exits.OK if added else exits.FAILED


def _is_new(app: App) -> bool:
    return app.db != "memory:" and not os.path.lexists(app.db.removeprefix("sqlite:").removeprefix("//"))


def _write_new(path: Path, lines: Iterable[str]) -> None:
    """Write a new file whole, its owner's alone, or none. Raises OSError."""
    from runjournal.log.private import open_new

    with open(open_new(path), "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor has no path
        try:
            file.writelines(lines)
            file.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _counted(lines: Iterable[bytes], report: Report) -> Iterator[bytes]:
    for number, each in enumerate(lines, 1):
        report(number)
        yield each


@command(
    "export",
    epilog=HELP,
    examples=[
        ("runjournal export report-42 > report-42.jsonl", "a run, what it goes on from, and its children"),
        ("runjournal export --all --to runs.jsonl", "all runs, into a new file"),
    ],
)
@click.argument("runs", nargs=-1, metavar="RUN...")
@click.option("--all", "every", is_flag=True, help="All runs.")
@click.option("--alone", is_flag=True, help="These alone: not what they go on from, nor what they have begun.")
@click.option("--to", type=click.Path(dir_okay=False), metavar="FILE", help="Write to a new file.  [default: stdout]")
@pass_app
def export(app: App, runs: tuple[str, ...], *, every: bool, alone: bool, to: str | None) -> int:
    """Write runs out, with those that they go on from and have begun, as lines that `import jsonl` reads back."""
    from runjournal.importers.transfer import export_runs, with_family

    from .refs import run_id_of

    if bool(runs) == every:
        raise click.UsageError("expected one or more RUNs, or --all" + (", got both" if every else ""))
    with app.open() as journal, progress("exporting") as report:
        heads = list(journal.runs()) if every else []
        left = [head.run_id for head in heads if head.status != "purged"]
        chosen = sorted(left) if every else [run_id_of(journal, each) for each in runs]
        if not (every or alone):
            chosen = with_family(journal, named := chosen)
            if more := len(chosen) - len(set(named)):
                app.say(f"with {plural(more, 'run')} that they go on from or have begun; --alone leaves these out")
        if len(left) < len(heads):
            app.say(f"{plural(len(heads) - len(left), 'run')} left out: of a run that was purged nothing is exported")
        lines = (escape_json(each.decode()) for each in _counted(export_runs(journal, dict.fromkeys(chosen)), report))
        if to is None:
            emit(app, (each.removesuffix("\n") for each in lines))
        else:
            _write_new(Path(to), lines)
            app.say(f"{plural(len(chosen), 'run')} written to {to}; next: runjournal --db OTHER import jsonl {to}")
    return exits.OK
