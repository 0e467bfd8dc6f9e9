"""What the runs of a journal are owned with: the plumbing of runner and engine, which no agent's program needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from runjournal.log.base import RecordedEvent
from runjournal.log.owner import Process
from runjournal.log.store import Store
from runjournal.projections.state import RunState

from . import folding
from .appender import Appender
from .checkpoints import CheckpointPolicy
from .leases import Leases


class Ownership:
    """One process as an owner of runs: who it is, its leases, and the appender that keeps its runs' folded states."""

    def __init__(
        self,
        store: Store,
        policy: CheckpointPolicy,
        process: Process,
        appender: type[Appender],
        *,
        private: bool = False,
    ) -> None:
        self.store = store
        self.clock = store.clock
        self.process = process
        self.leases = Leases(store, store.clock)
        self.appender = appender(store, store.clock, policy, process, self.leases.holds, private=private)
        self.live: Callable[[str], RunState] = self.appender.states.live
        """The folded state of a run that is owned here, as of the last append of its owner: no copy, leave it be."""

    def forget(self, run_ids: Iterable[str]) -> None:
        """Drop what is kept of these runs in memory, after something else wrote them; an owner here keeps its own."""
        for run_id in run_ids:
            self.appender.states.forget(run_id)

    def filled(self, record: RecordedEvent) -> RecordedEvent:
        """Return the record with the values that are held out of line in place. Raises MissingBlob, CorruptLog."""
        return folding.filled_record(self.store, record)

    def close(self) -> None:
        """End the heartbeat: before the store is closed."""
        self.leases.close()
