"""`runjournal demo` and `runjournal completion`: the first things that somebody types."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

import click

from . import exits
from .app import App, command, pass_app
from .safe import block

_SHELLS: Final = ("bash", "zsh", "fish")


@command(
    "demo",
    examples=[
        ("runjournal demo", "kill an agent twice, and watch its run recover"),
        ("runjournal demo --seed 7 --db /tmp/demo.db", "killed at the same points, in another store"),
    ],
)
@click.option("--seed", type=click.IntRange(min=0), help="Where to kill.  [default: a random one]")
@pass_app
def demo(app: App, seed: int | None) -> int:
    """Kill an agent twice at random points, recover its run, and check that all it did was done once.

    What it works on is in a folder beside the store, STORE-demo.
    """
    from runjournal.cli.demo.command import run_demo

    if app.path is None:
        raise click.UsageError("expected a store in a file, for the processes of the demo share it; name one with --db")
    chosen = random.SystemRandom().randrange(10_000) if seed is None else seed
    return run_demo(Path(app.path), chosen, lambda text: click.echo(block(text)))


@command(
    "completion",
    examples=[
        ('eval "$(runjournal completion bash)"', "in ~/.bashrc"),
        ("runjournal completion fish > ~/.config/fish/completions/runjournal.fish", "for fish"),
    ],
)
@click.argument("shell", required=False, type=click.Choice(_SHELLS))
def completion(shell: str | None) -> int:
    """Print the script that completes commands and options with the tab key."""
    from click.shell_completion import get_completion_class

    from .app import cli

    name = shell or Path(os.environ.get("SHELL", "bash")).name
    kind = get_completion_class(name)
    if kind is None:
        raise click.UsageError(f"expected one of {', '.join(_SHELLS)}, and $SHELL names another one")
    click.echo(kind(cli, {}, "runjournal", "_RUNJOURNAL_COMPLETE").source())
    return exits.OK
