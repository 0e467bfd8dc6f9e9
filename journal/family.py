"""The runs below a run: those that it has begun, and those that these have begun."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from runjournal.log.head import Head

from .logbook import Logbook
from .naming import members


def below(log: Logbook, run_id: str) -> Iterator[Head]:
    """Yield the runs that a run has begun, and those that these have begun, level by level, each once."""
    parents, seen = deque([run_id]), {run_id}
    while parents:
        for head in log.runs(parent=parents.popleft()):
            if head.run_id not in seen:
                seen.add(head.run_id)
                parents.append(head.run_id)
                yield head


def below_line(log: Logbook, run_id: str) -> Iterator[Head]:
    """Yield the runs below a run and below those of its line before it, whose children are its own, each once."""
    found = {head.run_id: head for member in members(log.store, run_id) for head in below(log, member)}
    yield from found.values()
