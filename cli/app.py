"""The command line's frame: its commands, loaded when they are called, and what all of them share."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from . import exits
from .safe import line

if TYPE_CHECKING:
    from runjournal.logbook import Logbook

F = TypeVar("F", bound=Callable[..., Any])
OUTPUTS: Final = ("table", "json", "jsonl")
COLORS: Final = ("auto", "always", "never")

# name: (module:attribute, what it does), by section. Their modules are loaded only when they are called.
COMMANDS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Begin": {
        "demo": ("begin:demo", "Kill an agent half-way and watch its run recover."),
        "import": ("transfer:import_", "Bring runs in: from Claude Code, or from an export."),
    },
    "Look": {
        "ls": ("ls:ls", "List the runs, newest first."),
        "cost": ("cost:cost", "Say what runs have cost, by run, line, tree, model, tool, step or day."),
        "show": ("show:show", "Show a run: where it stands, what it was doing, what it cost."),
        "blob": ("attached:blob", "List the bytes that a run refers to (screenshots, PDFs), or write them out."),
        "replay": ("replay:replay", "Show the state of a run as it was after one of its events."),
        "diff": ("replay:diff", "Show what changed between two states."),
        "tail": ("tail:tail", "Show the newest events, and follow."),
    },
    "Run": {
        "run": ("runs:run", "Run an agent, or go on where a run of it was."),
        "resume": ("runs:resume", "Get a run going that stands still."),
        "recover": ("runs:recover", "Go on with runs that a process left."),
    },
    "Act": {
        "explain": ("explain:explain", "Say why a run isn't moving, and the exact line to type."),
        "questions": ("answers:questions", "List what people are asked, and what to type."),
        "approve": ("answers:approve", "Say yes to a question."),
        "reject": ("answers:reject", "Say no to a question."),
        "edit": ("answers:edit", "Say yes to a question, with other arguments."),
        "resolve": ("answers:resolve", "Say what became of a call of which nobody knows."),
        "signal": ("answers:signal", "Send a message to a run."),
        "cancel": ("moves:cancel", "Stop a run."),
        "abandon-step": ("moves:abandon_step", "Give up the open attempt of a run's step; it is tried anew."),
        "retry": ("moves:retry", "Queue a run that goes on from one that has failed or was cancelled."),
        "restart": ("moves:restart", "Queue a run that begins anew with what its line was queued with."),
        "fork": ("moves:fork", "Queue a run that goes on from a place in another one, beside it."),
    },
    "Check": {
        "audit": ("audit:audit", "Find what is wrong or unsafe in a run, and say what to do."),
        "check": ("check:check", "Check that today's code can go on with stored runs."),
        "verify": ("audit:verify", "Check every hash and link of the log."),
        "doctor": ("audit:doctor", "Check this place: engine, file, settings, what recovery needs."),
    },
    "Keep": {
        "export": ("transfer:export", "Write runs out, to be imported elsewhere with the same hashes."),
        "erase": ("erase:erase", "Make what private runs were told and have said unreadable, for ever."),
        "purge": ("purge:purge", "Take lines of runs that have ended away for ever; what they came to stays."),
        "db": ("db:db", "The store itself: info, backup, vacuum, rebuild, migrate."),
        "checkpoint": ("checkpoint:checkpoint", "Checkpoints of folded state: list, show, prune."),
        "schema": ("schema:schema", "Print the JSON Schema of the event types."),
        "config": ("config:config", "Tell every option, its value, where it came from; and every limit."),
        "completion": ("begin:completion", "Print the completion script of a shell."),
    },
}


class App:
    """The options that every command has. `source`: what has named the store, an option or a variable."""

    def __init__(
        self,
        db: str = "runjournal.db",
        output: str = "table",
        *,
        color: bool | None = None,
        pager: bool = True,
        source: str = "the default",
    ) -> None:
        self.db, self.output, self.color, self.pager, self.source = db, output, color, pager, source

    @property
    def plain(self) -> bool:
        """Return whether people read the output; programs get JSON."""
        return self.output == "table"

    @property
    def path(self) -> str | None:
        """Return the file that the store is in, if it is in one."""
        path = self.db.removeprefix("sqlite:").removeprefix("//")
        return None if _is_url(path) else path

    def check_there(self) -> None:
        """Raise StoreUnavailable if there is no file; its text says which command makes one."""
        from runjournal.log.errors import StoreUnavailable

        if self.path is not None and not os.path.lexists(self.path):
            makes = "`runjournal run`, `runjournal demo` or `runjournal import` makes one"
            hint = f"{makes}, --db or RUNJOURNAL_DB names another"
            raise StoreUnavailable(f"no store at {self.path} ({self.source}); {hint}")

    @contextlib.contextmanager
    def open(self, *, create: bool = False) -> Generator[Logbook]:
        """Open the journal; only what writes makes a new one. If a run isn't there, the error names the store."""
        from runjournal.log.errors import StoreReadOnly, StoreUnavailable
        from runjournal.logbook import Logbook

        if not create:
            self.check_there()
        load_types()
        by, path = f"cli:{user()}", self._unwritable
        try:
            if path is not None and not os.access(path, os.W_OK):
                opened = self._copied(path, by)  # SQLite might make files beside it
            else:
                opened = Logbook.open(self.db, create=create, by=by)
        except (StoreReadOnly, StoreUnavailable):
            if path is None:
                raise
            opened = self._copied(path, by)
        with opened as journal, self.naming_the_store():
            yield journal

    @property
    def _unwritable(self) -> str | None:
        """Return the file of a store that can be read, and that can't be written, or nothing beside it."""
        from pathlib import Path

        path = self.path
        if path is None or not os.access(path, os.R_OK) or not Path(path).is_file():
            return None
        return None if os.access(path, os.W_OK) and os.access(Path(path).absolute().parent, os.W_OK) else path

    def _copied(self, path: str, by: str) -> Logbook:
        """Open a private copy of a store that can't be written, and say how fresh it is."""
        from runjournal.log.clock import SystemClock
        from runjournal.log.sqlite_snapshot import CopiedStore
        from runjournal.logbook import Logbook
        from runjournal.writing.rebuild import rebuild

        store = CopiedStore(path, clock=SystemClock())
        try:
            if store.index_stale():
                rebuild(store)
            store.seal()
        except BaseException:
            store.close()
            raise
        click.echo(
            line(f"{path} can't be written: this is a copy of it, last changed {store.changed_at} UTC"), err=True
        )
        return Logbook(store, by=by, owned=True)

    @contextlib.contextmanager
    def naming_the_store(self) -> Generator[None]:
        """Let a RunNotFound say in which store the run isn't."""
        from runjournal.log.errors import RunNotFound

        try:
            yield
        except RunNotFound as error:
            hint = self.typed("runjournal ls")
            error.args = (f"no run {error.run_id!r} in {self.db} ({self.source}); `{hint}` lists those that are",)
            raise

    def typed(self, command: str) -> str:
        """Return a command as it must be typed to reach this store: with its --db, if the command line had one."""
        if self.source != "--db" or not command.startswith("runjournal ") or " --db " in command:
            return command
        import shlex

        return f"runjournal --db {shlex.quote(self.db)} {command.removeprefix('runjournal ')}"

    def say(self, text: str) -> None:
        """Say something to people only: on stderr, and not beside JSON."""
        if self.plain:
            before, next_, command = text.partition("next: ")
            click.echo(line(before + next_ + self.typed(command)), err=True)


def load_types() -> None:
    """Load the event types of installed packages; say on stderr which couldn't be."""
    from runjournal.log.own_types import load_own_types

    for name, why in load_own_types().failed:
        click.echo(line(f"event types of {name} can't be loaded: {why}", 300), err=True)


def _is_url(path: str) -> bool:
    return path == "memory:" or path.startswith(("postgresql:", "postgres:"))


def user() -> str:
    """Return the name of whoever types."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid{os.getuid()}"


# --- options that the group and every command have -----------------------------------------------------------------


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(context: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None:
            app = context.ensure_object(App)
            if name == "db":
                told = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
                app.source = "--db" if told else "RUNJOURNAL_DB"
            setattr(app, name, value if name != "color" else {"always": True, "never": False}.get(value))

    return callback


def _shared(*, root: bool, outputs: Sequence[str] = OUTPUTS) -> list[click.Parameter]:
    """Add the shared options. Only the group's read the environment: what stands in the command line beats it."""

    def option(*names: str, field: str, env: str, **more: Any) -> click.Option:
        return click.Option(
            names, callback=_set(field), expose_value=False, envvar=env if root else None, show_envvar=root,
            allow_from_autoenv=False, default=None, **more,
        )  # fmt: skip

    return [
        option("--db", field="db", env="RUNJOURNAL_DB", metavar="PATH", help="The store.  [default: ./runjournal.db]"),
        option(
            "-o", "--output", field="output", env="RUNJOURNAL_OUTPUT", type=click.Choice(outputs),
            help="table for people, JSON for programs.  [default: table]",
        ),
        option(
            "--color", field="color", env="RUNJOURNAL_COLOR", type=click.Choice(COLORS),
            help="[default: auto; NO_COLOR, FORCE_COLOR and TERM=dumb count]",
        ),
        option("--pager/--no-pager", field="pager", env="RUNJOURNAL_PAGER", help="Page long output on a terminal."),
    ]  # fmt: skip


def color_of(app: App, stream: Any) -> bool:
    """Return whether output to a stream is coloured: by the option, then the environment, then if it is a terminal."""
    env = os.environ
    if app.color is not None:
        return app.color
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR", "") not in ("", "0"):
        return True
    return env.get("TERM") != "dumb" and bool(stream.isatty())


# --- commands and groups ---------------------------------------------------------------------------------------------


class _Helpful:
    """Help that begins with examples."""

    examples: Sequence[tuple[str, str]] = ()

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.width = min(formatter.width, 100)
        command: Any = self
        command.format_usage(ctx, formatter)
        command.format_help_text(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                formatter.write_dl([(example, meaning) for example, meaning in self.examples], col_max=60)
        command.format_options(ctx, formatter)
        command.format_epilog(ctx, formatter)


class Command(_Helpful, click.Command):
    """A command with the shared options, and help that begins with examples."""

    def __init__(
        self, *args: Any, examples: Sequence[tuple[str, str]] = (), outputs: Sequence[str] = OUTPUTS, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.examples = examples
        self.params += _shared(root=False, outputs=outputs)


class CommandGroup(_Helpful, click.Group):
    """A group with the shared options; its commands are `Command`s."""

    command_class = Command

    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]] = (), **more: Any) -> None:
        super().__init__(*args, **more)
        self.examples = examples
        self.params += _shared(root=False)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)


class Root(CommandGroup):
    """The root: loads a command's module when the command is called, and turns errors into exit codes."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.params = [each for each in self.params if each.name not in ("db", "output", "color", "pager")]
        self.params += _shared(root=True)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, by section."""
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command, when it is called."""
        for section in COMMANDS.values():
            if cmd_name in section:
                module, _, attribute = section[cmd_name][0].partition(":")
                found: click.Command = getattr(importlib.import_module(f".{module}", __package__), attribute)
                return found
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, or raise an error that says which one may have been meant."""
        if args and not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(self.list_commands(ctx))}"
            raise click.UsageError(f"no command {args[0][:40]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, without loading any."""
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in section.items()], col_max=14)

    def main(  # pyright: ignore[reportIncompatibleMethodOverride] - it always exits
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002 - click's signature
        **extra: Any,
    ) -> NoReturn:
        """Run the command line, and exit with the code that `exits` returns."""
        words = list(sys.argv[1:] if args is None else args)
        app = App(output=_output_in(words))
        extra = {"obj": app, "auto_envvar_prefix": "RUNJOURNAL"} | extra

        def run() -> Any:
            name = prog_name or "runjournal"
            self._main_shell_completion(extra, name, complete_var)
            with self.make_context(name, words, None, **extra) as context:
                return self.invoke(context)

        sys.exit(exits.guarded(run, as_json=lambda: not app.plain))


def _output_in(words: Sequence[str]) -> str:
    """Return the format that a command line asks for, if it can be seen before parsing: errors need it too."""
    found = os.environ.get("RUNJOURNAL_OUTPUT", "table")
    for place, word in enumerate(words):
        if word in ("-o", "--output"):
            found = next(iter(words[place + 1 : place + 2]), found)
        elif word.startswith(("-o", "--output=")):
            found = word.removeprefix("--output=").removeprefix("-o")
    return found if found in OUTPUTS else "table"


def command(name: str, *, examples: Sequence[tuple[str, str]], **more: Any) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command; the function returns its exit code, or None for 0."""
    return click.command(name, cls=Command, examples=examples, **more)


def group(name: str, *, examples: Sequence[tuple[str, str]]) -> Callable[[Callable[..., Any]], CommandGroup]:
    """Make a function a group of commands."""
    return click.group(name, cls=CommandGroup, examples=examples)


pass_app = click.make_pass_decorator(App, ensure=True)


def _version(context: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value and not context.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"runjournal {version('runjournal')}")
        context.exit()


@click.group(
    cls=Root,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    examples=[
        ("runjournal demo", "kill an agent half-way, watch it recover"),
        ("runjournal import claude-code ~/.claude/projects", "look at what your own agents did"),
        ("runjournal ls --status failed --since 2h", "what went wrong lately"),
        ("runjournal show @last", "the run that changed last"),
        ("runjournal audit --all", "what is wrong, and what to do about it"),
    ],
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 findings, 4 not found, 5 conflict, 75 store unavailable.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Tell the version.")
@click.pass_context
def cli(context: click.Context) -> None:
    """The journal of long-running AI agents: look at runs, check them, bring them in and out."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
