"""A walk through a run, forwards and back: at each event the state after it, and what it changed."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

import orjson

from runjournal.log.base import RecordedEvent
from runjournal.log.differences import Change, differences
from runjournal.log.limits import snapshot_every_events, snapshots_max
from runjournal.logbook import Logbook
from runjournal.looking.progress import Progress, told
from runjournal.looking.states import state_as_json
from runjournal.projections.state import RunState, dump_bytes
from runjournal.writing import checkpoints, folding, purged


class Position(NamedTuple):
    """One event of a run, and what it changed in the folded state."""

    record: RecordedEvent
    changes: list[Change]


class Stepper:
    """Walks through a run, forwards and back: at each event the state after it, and what it changed.

    Going back folds again from the nearest state that is at hand: one of the last `snapshots_max` that were kept on the
    way, a checkpoint, or the beginning.
    """

    def __init__(self, journal: Logbook, run_id: str, *, force: bool = False) -> None:
        self._journal, self._run_id, self._force = journal, run_id, force
        self._kept: dict[int, bytes] = {}
        self.state = RunState.initial()

    @property
    def last(self) -> int:
        """Return the seq of the newest event, now."""
        return self._journal.head(self._run_id).head_seq

    def go(self, seq: int, progress: Progress | None = None) -> Position:
        """Go to an event. Raises InvalidArgument (no such seq), CorruptLog, Unfoldable: then the place stays."""
        purged.checked_seq(self._journal.store, self._journal.head(self._run_id), seq)
        state = self._folded(self._copied(seq - 1), seq - 1, progress)
        before = _snapshot(state)
        record = next(folding.chained(self._journal.store, self._run_id, seq - 1, seq, state.hash))
        state.fold([record], force=self._force)
        self.state = state
        changes = differences(before, _snapshot(state))
        return Position(record, [change for change in changes if change.path not in _EVERY_EVENT])

    def at(self, seq: int, progress: Progress | None = None) -> dict[str, Any]:
        """Return the state after another event, as JSON; the place stays."""
        purged.checked_seq(self._journal.store, self._journal.head(self._run_id), seq)
        return _snapshot(self._folded(self._copied(seq), seq, progress))

    def _copied(self, upto: int) -> RunState:
        """Return a copy of the newest state at hand at or before a seq."""
        kept = max((place for place in self._kept if place <= upto), default=0)
        if kept < self.state.seq <= upto:
            return RunState.load(orjson.loads(dump_bytes(self.state.dump())))
        if kept <= upto - snapshot_every_events:
            found = checkpoints.newest(self._journal.store, RunState, self._run_id, upto) if upto else None
            if found and found[1] > kept:
                return cast("RunState", found[0])
        return RunState.load(orjson.loads(self._kept[kept])) if kept else self._fresh()

    def _fresh(self) -> RunState:
        store = self._journal.store
        return folding.begin(store, folding.first(store, self._run_id))

    def _folded(self, state: RunState, upto: int, progress: Progress | None) -> RunState:
        since = state.seq
        records = folding.chained(self._journal.store, self._run_id, since, upto, state.hash)
        for record in told(records, upto - since, progress):
            state.fold([record], force=self._force)
            if (
                record.seq % snapshot_every_events == 0
                and upto - record.seq < snapshots_max // 2 * snapshot_every_events
            ):
                self._keep(state)
        return state

    def _keep(self, state: RunState) -> None:
        self._kept[state.seq] = dump_bytes(state.dump())
        if len(self._kept) > snapshots_max:
            self._kept.pop(next(iter(self._kept)))


def _snapshot(state: RunState) -> dict[str, Any]:
    """The state as JSON that later events don't change."""
    found: dict[str, Any] = orjson.loads(dump_bytes(state_as_json(state)))
    return found


_EVERY_EVENT: Final = frozenset({"seq", "hash", "at"})
