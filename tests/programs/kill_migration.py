"""Migrate the store at argv[1] and be killed: argv[2] says at which of the migration's own statements.

`before` its first, after its `first`, or as late as it can be, at its COMMIT (`second`).
"""

import os
import signal
import sys

from runjournal.log.sqlite_place import connect
from runjournal.log.sqlite_schema import migrate

path, when = sys.argv[1:]
connection = connect(path, 1.0)
statements = 0


def trace(_cursor: object, text: str, _bindings: object) -> bool:
    """Count what the migration executes after it has begun."""
    global statements  # noqa: PLW0603 - a script
    if text.lstrip().startswith(("CREATE", "ALTER", "INSERT", "UPDATE", "DROP", "--")):
        statements += 1
    last = when == "second" and text == "COMMIT"
    if (when == "before" and statements == 1) or (when == "first" and statements == 2) or last:
        os.kill(os.getpid(), signal.SIGKILL)
    return True


connection.exec_trace = trace
migrate(connection, path)
sys.exit("survived")
