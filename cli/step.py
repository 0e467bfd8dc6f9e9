"""`runjournal replay RUN --step`: a walk through a run, event by event, by keys or by lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import click

from runjournal.log.limits import step_changes_max, step_value_chars_max

from . import exits
from .app import App, color_of
from .output import styled
from .progress import progress
from .safe import dumps, line
from .states import sides, state_lines

if TYPE_CHECKING:
    from runjournal.log.differences import Change
    from runjournal.logbook import Logbook

    from .stepper import Position, Stepper

_KEYS: Final = {
    "n": "next", " ": "next", "\r": "next", "\n": "next", "\x1b[C": "next", "\x1b[B": "next",
    "p": "previous", "\x1b[D": "previous", "\x1b[A": "previous",
    "g": "goto", "s": "state", "d": "diff", "q": "quit", "?": "help", "h": "help",
    "\x03": "quit", "\x04": "quit", "\x1b": "quit",
}  # fmt: skip
_WORDS: Final = ("next", "previous", "goto", "state", "diff", "quit", "help")
_HELP: Final = (
    "n next    p previous    g goto N (-1: before the last)    s state    d diff: all that this event changed, "
    "diff N: all since event N    q quit"
)


def walk(app: App, journal: Logbook, run_id: str, at: int | None, *, force: bool) -> int:
    """Walk through a run from an event on, the first by default; return the exit code."""
    from .stepper import Stepper

    session = _Session(app, Stepper(journal, run_id, force=force), color=color_of(app, sys.stdout))
    keys = app.plain and sys.stdin.isatty() and sys.stdout.isatty()
    commands = _by_key(session) if keys else _by_line()
    if keys:
        app.say(_HELP)
    session.obey("goto", str(at or 1))
    for word, argument in commands:
        if (name := _meant(word)) == "quit":
            break
        session.obey(name or word, argument)
    app.say(f"next: runjournal replay {run_id}@{session.seq}")
    return exits.USAGE if session.refused and not keys else exits.OK


def _meant(word: str) -> str | None:
    """The command that a word or its beginning means."""
    return next((each for each in _WORDS if word and each.startswith(word.lower())), None)


def _by_line() -> Iterator[tuple[str, str]]:
    """Commands from stdin, a line each: a word or how it begins, and maybe a number."""
    for text in sys.stdin:
        name, _, argument = text.strip().partition(" ")
        yield name or "next", argument.strip()


def _by_key(session: _Session) -> Iterator[tuple[str, str]]:
    """Commands from single keys."""
    while True:
        click.echo(styled(f"{session.place()} n p g s d q ?> ", "dim"), nl=False, color=session.color)
        try:
            key = click.getchar()
        except (EOFError, KeyboardInterrupt):
            key = "q"
        name = _KEYS.get(key, "")
        click.echo(name or line(key, 10))
        argument = ""
        if name == "goto":
            try:
                argument = input("goto event: ").strip()
            except (EOFError, KeyboardInterrupt):
                click.echo()
                continue
        yield name or key, argument


class _Session:
    """Where somebody is, and what the commands do. `seq` 0: nowhere yet; `refused` counts what wasn't understood."""

    def __init__(self, app: App, stepper: Stepper, *, color: bool) -> None:
        self._app, self._stepper, self.color = app, stepper, color
        self._position: Position | None = None
        self.seq = 0
        self.refused = 0

    def place(self) -> str:
        """Where this is, of how much."""
        return f"{self.seq}/{self._stepper.last}"

    def obey(self, name: str, argument: str) -> None:
        """Do one command; what can't be done is said, and the place stays."""
        from runjournal.log.errors import InvalidArgument, JournalError, StoreError

        actions: dict[str, Callable[[str], None]] = {
            "next": lambda _: self._go(self.seq + 1, end="this is the last event"),
            "previous": lambda _: self._go(self.seq - 1, end="this is the first event"),
            "goto": lambda text: self._go(self._number(text)),
            "state": lambda _: self._state(),
            "diff": self._diff,
            "help": lambda _: self._app.say(_HELP),
        }
        try:
            if name not in actions:
                raise InvalidArgument(f"expected one of {', '.join(_WORDS)}, got {name[:40]!r}")
            actions[name](argument)
        except StoreError:
            raise
        except JournalError as error:
            self.refused += isinstance(error, InvalidArgument)
            text = str(error)
            click.echo(
                f"error: {line(text)}" if self._app.plain else dumps({"error": {"code": error.code, "message": text}}),
                err=True,
            )

    def _number(self, text: str) -> int:
        from runjournal.log.errors import InvalidArgument

        try:
            number = int(text[:20])
        except ValueError:
            raise InvalidArgument(f"expected the number of an event, got {text[:40]!r}") from None
        return self._stepper.last + number if number < 0 else number

    def _go(self, seq: int, end: str = "") -> None:
        if end and not 1 <= seq <= self._stepper.last:
            self._app.say(end)
            return
        with progress(f"going to {seq}") as report:
            self._position = self._stepper.go(seq, report)
        self.seq = seq
        self._show(self._position)

    def _show(self, position: Position) -> None:
        from .events import event_json

        if not self._app.plain:
            self._write([dumps(event_json(position.record) | {"changes": [c._asdict() for c in position.changes]})])
        else:
            self._write(_lines(position))

    def _state(self) -> None:
        from runjournal.looking.states import state_as_json

        found = state_as_json(self._stepper.state)
        self._write(state_lines(found) if self._app.plain else [dumps(found)])

    def _diff(self, argument: str) -> None:
        from runjournal.log.differences import differences
        from runjournal.looking.states import state_as_json

        if argument:
            since = self._number(argument)
            with progress(f"folding to {since}") as report:
                before = self._stepper.at(since, report)
            changes = list(differences(before, state_as_json(self._stepper.state)))
        else:
            changes = self._position.changes if self._position else []
        if self._app.plain:
            self._write(_change(each, None) for each in changes)
            if not changes:
                self._app.say("nothing changed")
        else:
            self._write([dumps({"changes": [each._asdict() for each in changes]})])

    def _write(self, lines: Iterator[str] | list[str]) -> None:
        for each in lines:
            click.echo(each, color=self.color)
        sys.stdout.flush()


def _lines(position: Position) -> Iterator[str]:
    """An event in one line, and a line for each thing it changed."""
    from .describe import event

    record = position.record
    style = "bad" if record.type.endswith(".failed") else "title"
    step = "" if record.step is None else f"  step {record.step}"
    head = f"{record.seq}  {line(record.at[:19].replace('T', ' '))}  {styled(line(record.type), style)}"
    yield f"{head}  {styled(line(record.by), 'dim')}{step}  {event(record)}".rstrip()
    for change in position.changes[:step_changes_max]:
        yield _change(change, step_value_chars_max)
    if (left := len(position.changes) - step_changes_max) > 0:
        yield f"    … {left} more: diff"


def _change(change: Change, chars_max: int | None) -> str:
    sides_of = sides(change, chars_max or sys.maxsize)
    before, after = (
        "-" if each is None else shown for each, shown in zip((change.before, change.after), sides_of, strict=True)
    )
    return f"    {styled(line(change.path), 'dim')}: {before} -> {after}"
