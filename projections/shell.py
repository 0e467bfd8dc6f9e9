"""The command lines that messages tell people to type: each is written here, quoted for a shell.

A line that leaves a choice has it in brackets, so that a shell refuses it as it is, instead of choosing for people.
"""

from __future__ import annotations

import shlex


def command(name: str, *args: str, options: str = "") -> str:
    """Return a command of the command line: its name, its arguments, and options that are quoted already."""
    dashed = any(arg.startswith("-") for arg in args)  # such an argument is none of the options
    words = [options, "--", shlex.join(args)] if dashed else [shlex.join(args), options]
    return " ".join(["runjournal", name, *filter(None, words)])


def show_events(run_id: str, seq: int) -> str:
    """Return the command that shows a run's events from a seq on."""
    return command("show", run_id, options=f"--events --from {seq}")


def show_calls(run_id: str, *, models: bool = False) -> str:
    """Return the command that shows a run's calls; with `models`, those of models too."""
    return command("show", run_id, options=f"--calls{' --models' if models else ''}")


def resolve(run_id: str, call_id: str) -> str:
    """Return the command that says what became of a call, with the words that there are."""
    return f"{command('resolve', run_id, call_id, 'happened')} (or did-not-happen, or retry)"


def approve(run_id: str, approval_id: str) -> str:
    """Return the command that answers a question, with both answers."""
    return f"{command('approve', run_id, approval_id)} (or reject)"
