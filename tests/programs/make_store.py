"""Make the frozen file of a store as a schema left it: argv[1] is its path, argv[2] the schema. The file is kept.

It holds two runs, five events in all, and was closed properly.
"""

import sys
from pathlib import Path

import apsw

from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.memory import MemoryStore
from runjournal.log.sqlite import SQLiteStore
from runjournal.log.sqlite_place import connect, create_file, switch_to_wal
from runjournal.log.sqlite_schema import MIGRATIONS, migrate
from runjournal.log.store import Store
from runjournal.testing.store_making import append, claimed, note, queued


def fill(store: Store) -> None:
    """Append the two runs; the newest schema is the one that a store writes."""
    step = e.StepStarted(index=0, id="a", name="a", kind="once", entry=1, attempt=1)
    append(store, "run-1", [queued(), claimed(1)], at=1, rows={"newest": ("run-1", "run-1")})
    append(store, "run-1", [step, note("Grüße")], at=2)
    append(store, "run-2", [queued("mail")], at=3, rows={"newest": ("run-2", "run-2")})


def make_first(path: str) -> None:
    """Make a file of schema 1, which had no index tables."""
    create_file(path)
    connection = connect(path, 1.0)
    migrate(connection, path, MIGRATIONS[:1])
    switch_to_wal(connection, path, FakeClock(), 1.0)
    connection.execute("BEGIN IMMEDIATE")
    with MemoryStore(clock=FakeClock()) as store:
        fill(store)
        for run, head in enumerate(sorted(store.heads()), 1):
            connection.execute("INSERT INTO run_keys VALUES (?, ?)", (run, head.run_id))
            connection.execute(f"INSERT INTO runs VALUES (?{', ?' * len(head)})", (run, *head))
            for seq, _, kind, body, digest in store.read_raw(head.run_id):
                values = (run, seq, kind, digest, body)
                connection.execute("INSERT INTO events (run, seq, type, hash, body) VALUES (?, ?, ?, ?, ?)", values)
    connection.execute("COMMIT")
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    connection.close()


if __name__ == "__main__":
    place, schema = sys.argv[1], int(sys.argv[2])
    if schema == 1:
        make_first(place)
    else:
        with SQLiteStore(place, clock=FakeClock()) as made:
            fill(made)
    Path(place).chmod(0o644)
    print(f"{place}: {Path(place).stat().st_size} bytes")  # noqa: T201 - for the person who runs it
