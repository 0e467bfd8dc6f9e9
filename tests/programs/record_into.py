"""Record into an open run of a store, as one of several processes: `record_into.py STORE RUN_ID NAME COUNT`."""

import sys

from runjournal import Journal
from runjournal.log import events as e

store, run_id, name, count = sys.argv[1:]
with Journal.open(store, by=name) as journal:
    assert run_id == journal.open_run("chat", source="test", run_id=run_id)
    for n in range(int(count)):
        call = f"{name}-{n}"
        journal.append(
            run_id, [e.ToolStarted(call, "look", {}, "unsafe", read_only=False, on_unknown="ask", attempt=1)]
        )
        journal.append(run_id, [e.MessageAppended("user", call, call), e.ToolCompleted(call, 1, n)])
