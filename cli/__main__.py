"""`runjournal`, and `python -m runjournal.cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")  # a terminal that isn't UTF-8 must not end a command

    from .app import cli

    cli.main(prog_name="runjournal")


if __name__ == "__main__":
    main()
