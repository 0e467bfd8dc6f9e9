"""Make the frozen file of a store as schema 2 left it: argv[1] is its path. Run once; the file is kept.

It holds the runs of make_store.py, byte for byte, with the rows of the index tables, and was closed properly.
"""

import sys
from pathlib import Path

from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.sqlite import SQLiteStore
from runjournal.testing.store_making import append, claimed, note, queued
from runjournal.writing.rebuild import rebuild

path = sys.argv[1]
with SQLiteStore(path, clock=FakeClock()) as store:
    if store.info()["schema"] != 2:
        sys.exit("this runjournal writes another schema: check out the one that wrote schema 2")
    append(store, "run-1", [queued(), claimed(1)], at=1)
    append(
        store, "run-1", [e.StepStarted(index=0, id="a", name="a", kind="once", entry=1, attempt=1), note("Grüße")], at=2
    )
    append(store, "run-2", [queued("mail")], at=3)
    rebuild(store)
Path(path).chmod(0o644)
print(f"{path}: {Path(path).stat().st_size} bytes")  # noqa: T201 - for the person who runs it
