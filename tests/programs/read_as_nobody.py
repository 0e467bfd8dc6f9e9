"""Type commands of runjournal as a user who owns nothing; argv: a store that is ours, then the store to look at.

Prints one JSON line a command: [command, exit code, stdout, stderr]. Everything is loaded first, by the same commands
on our own store, since the user may not even read the sources.
"""

import contextlib
import importlib
import io
import json
import os
import pkgutil
import sys

import runjournal

NOBODY = 65534
COMMANDS = (["ls"], ["show", "r"], ["verify", "r"], ["audit", "r"], ["tail", "r"], ["cancel", "r"])


def typed(db, command):
    """What a command comes to."""
    from runjournal.cli.app import cli

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(["--db", db, *command], prog_name="runjournal", standalone_mode=True)
        except SystemExit as left:
            code = left.code
    return [command[0], code or 0, out.getvalue(), err.getvalue()]


def main():
    """Load, drop what root may do, and type."""
    for module in pkgutil.walk_packages(runjournal.__path__, "runjournal."):
        with contextlib.suppress(ImportError):
            importlib.import_module(module.name)
    for command in COMMANDS:
        typed(sys.argv[1], command)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    os.chdir("/")
    for command in COMMANDS:
        sys.stdout.write(json.dumps(typed(sys.argv[2], command)) + "\n")


if __name__ == "__main__":
    main()
