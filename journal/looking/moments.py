"""A time of day, as people write it, and the event that was the last one then."""

from __future__ import annotations

import re

from runjournal.logbook import Logbook


def seq_at_time(journal: Logbook, run_id: str, text: str) -> int | None:
    """Return the last event at or before a time: `14:03`, `14:03:22` on the day of the newest event, or ISO text; UTC.

    None if the run began later. The order of events is that of `seq`; a clock that went back doesn't matter.
    """
    day = journal.head(run_id).updated_at[:10]
    bare = text.removesuffix("Z")
    moment = bare if "T" in bare else f"{day}T{bare}"
    if re.fullmatch(r".*T\d\d:\d\d", moment):
        moment += ":59"
    moment = (moment + ".999999") if "." not in moment else moment.ljust(26, "9")
    return journal.store.seq_at(run_id, moment[:26])
