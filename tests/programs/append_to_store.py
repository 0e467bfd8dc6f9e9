"""Open the store at argv[1], create the run argv[2] with one event, relaxed; then close or kill, as argv[3] says."""

import os
import signal
import sys

from runjournal.log.clock import SystemClock
from runjournal.log.sqlite import SQLiteStore
from runjournal.testing.store_making import append, queued

path, run_id, end = sys.argv[1:]
store = SQLiteStore(path, clock=SystemClock())
append(store, run_id, [queued()])
if end == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
store.close()
