"""Make the frozen file of a store as schema 1 left it: argv[1] is its path. Run once per schema; the file is kept.

It holds two runs, five events in all, and was closed properly.
"""

import sys
from pathlib import Path

import apsw

from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.memory import MemoryStore
from runjournal.log.sqlite_events import EventTable
from runjournal.log.sqlite_place import connect, create_file, switch_to_wal
from runjournal.log.sqlite_schema import MIGRATIONS, migrate
from runjournal.testing.store_making import append, claimed, note, queued

path = sys.argv[1]
create_file(path)
connection = connect(path, 1.0)
migrate(connection, path, MIGRATIONS[:1])
switch_to_wal(connection, path, FakeClock(), 1.0)
with MemoryStore(clock=FakeClock()) as store:
    append(store, "run-1", [queued(), claimed(1)], at=1)
    append(
        store, "run-1", [e.StepStarted(index=0, id="a", name="a", kind="once", entry=1, attempt=1), note("Grüße")], at=2
    )
    append(store, "run-2", [queued("mail")], at=3)
    heads = store.heads()
    events = [(each.run_id, seq, kind, body) for each in heads for seq, _, kind, body in store.read_raw(each.run_id)]
connection.execute("BEGIN IMMEDIATE")
for head in heads:
    connection.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(head))})", head)
EventTable("events").insert(connection, events)
connection.execute("COMMIT")
connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
connection.close()
Path(path).chmod(0o644)
print(f"{path}: {Path(path).stat().st_size} bytes, {len(events)} events")  # noqa: T201 - for the person who runs it
