"""Fork with an open store at argv[1]: print, as JSON, what the child and the parent found."""

import json
import os
import sys
from collections.abc import Callable

from runjournal.log.clock import SystemClock
from runjournal.log.errors import JournalError
from runjournal.log.sqlite import SQLiteStore
from runjournal.testing.store_making import append, note, queued

path = sys.argv[1]


def code_of(use: Callable[[], object]) -> str:
    try:
        use()
    except JournalError as error:
        return error.code
    return "ok"


store = SQLiteStore(path, clock=SystemClock())
append(store, "run-1", [queued()])
list(store.read("run-1"))
store.heartbeat("run-1", 1, 1.0, 1.0)
store.data_version()
reading = store.read("run-1")
read_end, write_end = os.pipe()
if not os.fork():
    uses: list[Callable[[], object]] = [
        lambda: store.head("run-1"),
        lambda: next(reading),
        lambda: append(store, "run-1", [note("child")]),
        lambda: store.heartbeat("run-1", 1, 1.0, 1.0),
        store.data_version,
        store.heads,
        store.info,
    ]
    found = [code_of(use) for use in uses]
    store.close()
    with SQLiteStore(path, clock=SystemClock()) as own:
        append(own, "run-1", [note("the child's own store")])
    os.write(write_end, json.dumps(found).encode())
    del store, reading, uses
    sys.exit(0)  # with all that the interpreter does at its end
os.close(write_end)
with os.fdopen(read_end) as pipe:
    child = json.load(pipe)
_, status = os.wait()
append(store, "run-1", [note("parent")])
seqs = [each.seq for each in store.read("run-1")]
check = store.info()["journal_mode"], store.sql("SELECT count(*) FROM events")[0][0]
store.close()
print(json.dumps({"child": child, "status": status, "seqs": seqs, "check": check}))  # noqa: T201 - the test reads it
