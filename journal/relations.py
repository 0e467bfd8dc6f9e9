"""Which runs came of which: what goes on from a run, and what was begun by it.

That stands in the first event of each run. All of them are read outside of the write lock, and inside it those of runs
that have begun since.
"""

from __future__ import annotations

from runjournal.log.store import Reading, Store


class Relations:
    """The runs of a store, each with the one that it goes on from and the one that began it."""

    def __init__(self, store: Store) -> None:
        self._upto = store.last_position()
        self._before = {each: _before(store, each) for each in store.born()}

    def catch_up(self, reading: Reading) -> None:
        """Take the runs along that have begun since."""
        self._before |= {each: _before(reading, each) for each in reading.born(self._upto)}

    def going_on(self, of: set[str]) -> set[str]:
        """Return the runs that go on from any of these, near or far."""
        return self._below(of, began=False)

    def come_of(self, of: set[str]) -> set[str]:
        """Return the runs that go on from any of these or were begun by them, near or far."""
        return self._below(of, began=True)

    def _below(self, of: set[str], *, began: bool) -> set[str]:
        found: set[str] = set()
        while more := {
            each
            for each, (base, parent) in self._before.items()
            if each not in found and (base in (of | found) or (began and parent in (of | found)))
        }:
            found |= more
        return found - of


def _before(reading: Reading, run_id: str) -> tuple[str | None, str | None]:
    """Return what a run goes on from, and who began it; None where there is none."""
    first = next(iter(reading.read(run_id, 0, 1)), None)
    base = getattr(first and first.event, "base", None)
    return (base["run_id"] if base else None), getattr(first and first.event, "parent_run_id", None)
