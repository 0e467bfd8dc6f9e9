"""`runjournal config`: every option, its value, and where it came from; and every limit."""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from click.core import ParameterSource

from . import exits
from .app import App, command, pass_app
from .output import Cell, Column, document, emit, styled, table, wrapped
from .safe import line

if TYPE_CHECKING:
    from click import Context, Parameter

_PREFIX: Final = "RUNJOURNAL_"
_SOURCES: Final = {ParameterSource.COMMANDLINE: "command line", ParameterSource.ENVIRONMENT: "environment"}
_ELSEWHERE: Final = {
    "RUNJOURNAL_DEBUG": "1: an unexpected error shows where it was raised",
    "NO_COLOR": "anything: no colours, unless --color always",
    "FORCE_COLOR": "1: colours, also into a pipe",
    "TERM": "dumb: no colours, no pager, plain ASCII",
    "PAGER": "the pager of long output",
    "LESS": "its options; FRX if it isn't set",
}
"""What the environment says that no option says."""
_COLUMNS: Final = (Column("OPTION"), Column("VALUE", flex=True), Column("FROM"), Column("ENVIRONMENT", spare=1))


class Setting(NamedTuple):
    """An option or a variable: its value as text or None, where that came from, and the variable that sets it."""

    name: str
    value: Any
    source: str
    env: str


class Limit(NamedTuple):
    """A bound of the package: its name and value, what it bounds, and what happens beyond."""

    name: str
    value: float | tuple[float, ...] | None
    meaning: str


@command(
    "config",
    examples=[
        ("runjournal config", "which store this is, and why"),
        ("runjournal config --db other.db -o json", "for a script"),
    ],
    epilog="Every option has a variable: RUNJOURNAL_DB for --db, RUNJOURNAL_LS_LIMIT for `ls --limit`. "
    "The command line beats the environment.",
)
@pass_app
def config(app: App) -> int:
    """Tell every option, its value and where it came from: default, environment or command line; and every limit."""
    context = click.get_current_context()
    found = [*_shared(app, context), *_of_commands(context.find_root()), *_elsewhere()]
    limits = bounds()
    if not app.plain:
        names = ("name", "value", "from", "env")
        document(
            app,
            {
                "options": [dict(zip(names, each, strict=True)) for each in found],
                "limits": [each._asdict() for each in limits],
            },
        )
        return exits.OK
    emit(app, _lines(found, limits))
    for name, near in _mistyped(context.find_root()):
        app.say(f"{name} is set and no option reads it" + (f"; did you mean {near}?" if near else ""))
    app.say("next: runjournal doctor")
    return exits.OK


def _lines(found: list[Setting], limits: list[Limit]) -> Iterator[str]:
    rows = (
        (each.name, each.value, Cell(each.source, "dim" if each.source == "default" else "title"), each.env)
        for each in found
    )
    yield from table(_COLUMNS, rows)
    yield ""
    yield styled("Limits", "title")
    for each in limits:
        yield f"  {each.name} = {spelt(each.value)}"
        yield from (styled(part, "dim") for part in wrapped(each.meaning, "      "))


def _shared(app: App, context: Context) -> Iterator[Setting]:
    """The options that every command has."""
    root = context.find_root()
    values = {
        "db": app.db
        if "://" in app.db or app.db == "memory:"
        else str(Path(app.db.removeprefix("sqlite:")).absolute()),
        "output": app.output,
        "color": {None: "auto", True: "always", False: "never"}[app.color],
        "pager": app.pager,
    }
    for name, value in values.items():
        sources = (each.get_parameter_source(name) for each in (context, root))
        source = next((_SOURCES[each] for each in sources if each and each in _SOURCES), "default")
        yield Setting(f"--{name}", _text(value), source, f"{_PREFIX}{name.upper()}")


def _text(value: Any) -> Any:
    return ("no", "yes")[value] if isinstance(value, bool) else value


def _of_commands(root: Context) -> Iterator[Setting]:
    """The options of single commands that the environment sets."""
    for path, option, env in _variables(root.command, root, ()):
        if env in os.environ:
            yield Setting(f"{' '.join(path)} {option.opts[-1]}", os.environ[env], "environment", env)


def _variables(
    group: click.Command, context: Context, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Parameter, str]]:
    if not isinstance(group, click.Group):
        return
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if found is None:
            continue
        place = (*path, name)
        for parameter in found.params:
            if isinstance(parameter, click.Option) and parameter.allow_from_autoenv:
                words = [*place, parameter.name or ""]
                yield place, parameter, _PREFIX + "_".join(words).upper().replace("-", "_")
        yield from _variables(found, context, place)


def _elsewhere() -> Iterator[Setting]:
    for name in _ELSEWHERE:
        value = os.environ.get(name)
        yield Setting(name, value, "default" if value is None else "environment", name)


def _mistyped(root: Context) -> Iterator[tuple[str, str | None]]:
    """Variables that look like ours and aren't, and the one that may have been meant."""
    known = {env for _, _, env in _variables(root.command, root, ())} | set(_ELSEWHERE)
    known |= {f"{_PREFIX}{name}" for name in ("DB", "OUTPUT", "COLOR", "PAGER")}
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in known:
            yield line(name, 80), next(iter(difflib.get_close_matches(name, known, 1)), None)


def bounds() -> list[Limit]:
    """Every limit of `runjournal.log.limits`, in its order, with the text that stands below it there."""
    from runjournal.log import limits

    found = list[Limit]()
    for node, below in itertools.pairwise(ast.parse(inspect.getsource(limits)).body):
        match node, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                found.append(Limit(name, vars(limits)[name], " ".join(meaning.split())))
            case _:
                pass
    return found


def spelt(value: float | tuple[float, ...] | None) -> str:
    """The value of a limit as people read it."""
    if value is None:
        return "none"
    return ", ".join(spelt(each) for each in value) if isinstance(value, tuple) else f"{value:,}"
