"""The command lines that messages tell people to type: each is written here, whole, and quoted for a shell.

Where there is a choice each answer is a line of its own: whoever pastes one has chosen it.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable

from runjournal.log.base import BlobRef, Json
from runjournal.log.limits import asked_args_chars_max, edited_args_chars_max

WORDS = ("happened", "did-not-happen", "retry")
"""What people say of a call, as `resolve` takes it."""


def command(name: str, *args: str, options: str = "", db: str = "") -> str:
    """Return a command of the command line: its name, its arguments, and options that are quoted already.

    `db` is the option that names the store, as `store_option` returns it.
    """
    dashed = any(arg.startswith("-") for arg in args)  # such an argument is none of the options
    words = [options, "--", shlex.join(args)] if dashed else [shlex.join(args), options]
    return " ".join(["runjournal", *filter(None, [db]), name, *filter(None, words)])


def store_option(url: str) -> str:
    """Return `--db PATH` for the store of a URL; "" where a command finds it by itself, or can't reach it.

    What is typed in this folder, with this environment, looks into RUNJOURNAL_DB, or else into ./runjournal.db.
    """
    named = os.environ.get("RUNJOURNAL_DB") or "runjournal.db"
    path = _path(url)
    return "" if not url.startswith("sqlite:") or path == _path(named) else f"--db {shlex.quote(path)}"


def _path(url: str) -> str:
    return os.path.abspath(url.removeprefix("sqlite:").removeprefix("//"))  # noqa: PTH100 - pathlib has no such


def show_events(run_id: str, seq: int, *, db: str = "") -> str:
    """Return the command that shows a run's events from a seq on."""
    return command("show", run_id, options=f"--events --from {seq}", db=db)


def show_calls(run_id: str, *, models: bool = False, db: str = "") -> str:
    """Return the command that shows a run's calls; with `models`, those of models too."""
    return command("show", run_id, options=f"--calls{' --models' if models else ''}", db=db)


def resolutions(run_id: str, call_id: str, *, db: str = "") -> list[str]:
    """Return the commands of which one says what became of a call."""
    return [command("resolve", run_id, call_id, word, db=db) for word in WORDS]


def answers(run_id: str, approval_id: str, choices: Iterable[str] = (), *, db: str = "") -> list[str]:
    """Return the commands of which one answers a question: yes, or each choice, and no."""
    options = [f"--choice {shlex.quote(each)}" for each in choices] or [""]
    yes = [command("approve", run_id, approval_id, options=each, db=db) for each in options]
    return [*yes, command("reject", run_id, approval_id, db=db)]


def edit(run_id: str, approval_id: str, args: object, choices: Iterable[str] = ()) -> str | None:
    """Return the command that says yes to a question with the args it has asked with, for people to change them.

    None if they are no object, or too long for a line.
    """
    text = "" if not isinstance(args, dict) else json.dumps(args, ensure_ascii=False)
    if not text or len(text) > edited_args_chars_max:
        return None
    first = next(iter(choices), None)
    choice = "" if first is None else f" --choice {shlex.quote(first)}"
    return command("edit", run_id, approval_id, options=f"--args {shlex.quote(text)}{choice}")


def choice(commands: Iterable[str]) -> str:
    """Return commands of which one is to be typed, for a sentence: each whole, in backticks."""
    return " or ".join(f"`{each}`" for each in commands)


def asked(name: str, args: Json | BlobRef) -> str:
    """Return what is asked for in a line, args in short: two questions of one name are told apart by them."""
    if isinstance(args, BlobRef):
        return f"{name} ({args.bytes:,} bytes)"
    text = json.dumps(args, ensure_ascii=False) if args else ""
    short = text if len(text) <= asked_args_chars_max else f"{text[:asked_args_chars_max]}…"
    return f"{name} {short}".rstrip()
