"""The folded states that a journal keeps of the runs that it appended to last.

A run has two here. The owner's is read by the agent outside the store's write lock. So only the owner's own appends
fold into it; what others append through the same journal is in it with the next of these. The other one is for the
appends of everybody else, and is read nowhere but inside that lock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from runjournal.log import events as e
from runjournal.log.base import RecordedEvent
from runjournal.log.errors import CorruptLog, RunNotFound
from runjournal.log.guard import free, hold
from runjournal.log.head import Head
from runjournal.log.limits import states_cached_max, step_calls_max
from runjournal.log.store import Store, Transaction
from runjournal.projections.state import RunState

from . import folding
from .alone import OwnersView
from .checkpoints import CheckpointPolicy, kept, seal


@dataclass(slots=True)
class Cached:
    """A folded run, the seq of its last checkpoint, and up to which seq its reader must have it.

    `starts` are the bytes of the data of each tool.started, by seq, that was folded here and hasn't been asked for.
    `view` is what was known of the run behind the last append here, if there was one.
    """

    state: RunState
    checkpointed: int
    starts: dict[int, bytes]
    upto: int = 0
    view: OwnersView | None = None


Key: TypeAlias = tuple[str, bool]
"""A run, and whether it is its owner's state."""


class States:
    """The states of one journal, by run and reader.

    `owned(run_id)` says whether the run is this journal's: the owner's states of these are all kept. `_lock` is around
    each change of the cache and around nothing that waits: the store's lock is never taken inside it. One look at the
    cache needs no lock.
    """

    def __init__(self, store: Store, policy: CheckpointPolicy, owned: Callable[[str], bool]) -> None:
        self.store = store
        self._policy = policy
        self._owned = owned
        self._lock = threading.RLock()
        self._cache: OrderedDict[Key, Cached] = OrderedDict()
        self._flying: dict[str, Callable[[], None]] = {}

    def free(self) -> None:
        """Let go of the lock, if an interrupt has left this thread with it."""
        free(self._lock)

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget the states of appends that failed: they may have folded what was then not written."""
        with self._lock:
            for key in keys:
                self._cache.pop(key, None)

    def note_word(self, run_id: str, seq: int) -> None:
        """Note a word about a call: it may be of an attempt of the owner's, who must see it at once."""

        def note() -> None:
            entry = self._cache.get((run_id, True))
            if entry is not None:
                entry.upto = max(entry.upto, seq)

        hold(self._lock, note)

    def note_words(self, key: Key, records: Sequence[RecordedEvent]) -> None:
        """Note what others have said of a call of the owner's, who must see it at once."""
        if not key[1] and any(rec.type == "tool.resolved" for rec in records):
            self.note_word(key[0], records[-1].seq)

    def cached(self, tx: Transaction, head: Head, key: Key) -> RunState | None:
        """Return the folded state at the head, if this journal has it; what others appended since is folded in."""
        entry = self._cache.get(key)
        if entry is None:
            return None
        state = entry.state
        try:
            if state.seq < head.head_seq:
                state.fold(folding.chained(tx, head.run_id, state.seq, head.head_seq, state.hash))
            rewound = (state.seq, state.hash) != (head.head_seq, head.head_hash)
        except CorruptLog:  # the tail follows on other events than this state's, or is damaged: a load finds out
            rewound = True
        if rewound:  # by a power cut
            with self._lock:
                self._cache.pop(key, None)
            return None
        return state

    def load(self, tx: Transaction, head: Head, key: Key, first: e.Event | None = None) -> RunState:
        """Return the folded state at the head, from the newest checkpoint and the tail; `first` begins a new run."""
        if head.head_seq:
            state, checkpointed = folding.load(self.store, tx, head.run_id, head.head_seq)
        else:
            queued = first if isinstance(first, e.RunQueued) else None
            state, checkpointed = folding.begin(self.store, queued), 0
        with self._lock:
            self._keep(key, Cached(state, checkpointed, {}))
        return state

    def keep(self, key: Key, view: OwnersView, starts: dict[int, bytes]) -> None:
        """Keep the state that an append has folded on, whatever a reader has loaded meanwhile; its head and key too."""
        with self._lock:
            entry = self._cache.get(key)
            if entry is None or entry.state is not view.state:
                self._keep(key, Cached(view.state, entry.checkpointed if entry else 0, starts, 0, view))
                return
            if starts:
                if len(entry.starts) > step_calls_max:
                    entry.starts.clear()
                entry.starts.update(starts)
            entry.view = view

    def known(self, key: Key) -> OwnersView | None:
        """Return what is known of a run as of its owner's last append here, if no word has come since.

        It is the same object until another append is kept.
        """
        entry = self._cache.get(key)
        return None if entry is None or entry.upto > entry.state.seq else entry.view

    def start(self, key: Key, seq: int) -> bytes | None:
        """Return the data of the tool.started at a seq, if it was folded into this state here; once."""
        with self._lock:
            entry = self._cache.get(key)
            return None if entry is None else entry.starts.pop(seq, None)

    def hand_over(self, run_id: str) -> None:
        """Hand the state to a new owner: it goes on from what everybody had, never from what an owner before it had."""
        with self._lock:
            self._cache.pop((run_id, True), None)
            entry = self._cache.pop((run_id, False), None)
            if entry is not None:
                self._keep((run_id, True), entry)

    def live(self, run_id: str) -> RunState:
        """Return the owner's state: as of its last append here, or the newest. Raises RunNotFound."""
        if (settle := self._flying.get(run_id)) is not None:
            settle()
        entry = self._cache.get((run_id, True))
        if entry is not None and entry.state.seq >= entry.upto:
            return entry.state
        try:
            return self._newest((run_id, True))
        except BaseException:
            free(self._lock)
            raise

    def _newest(self, key: Key) -> RunState:
        run_id = key[0]
        head = self.store.head(run_id)
        if head is None:
            raise RunNotFound(run_id)
        state, checkpointed = folding.load(self.store, self.store, run_id, head.head_seq)
        with self._lock:  # an append may have made a newer one since the head was read
            entry = self._cache.get(key)
            if entry is not None and entry.state.seq >= state.seq:
                return entry.state
            self._keep(key, Cached(state, checkpointed, {}, entry.upto if entry else 0))
        return state

    def _keep(self, key: Key, entry: Cached) -> None:
        """Keep a state. If there are too many, those that came first are forgotten, but for those of owned runs."""
        self._cache[key] = entry
        self._cache.move_to_end(key)
        if (over := len(self._cache) - states_cached_max) > 0:
            old = [each for each in self._cache if each != key and not (each[1] and self._owned(each[0]))]
            for each in old[:over]:
                del self._cache[each]

    def forget(self, run_id: str) -> None:
        """Drop what is kept of a run that nobody owns here."""

        def drop() -> None:
            self._cache.pop((run_id, False), None)
            if not self._owned(run_id):
                self._cache.pop((run_id, True), None)

        hold(self._lock, drop)

    def fly(self, run_id: str, settle: Callable[[], None] | None) -> None:
        """Note an append of the owner's that another thread folds, None if it is over.

        Who wants to read the owner's state waits meanwhile, by `settle`, until it is folded.
        """
        if settle is None:
            self._flying.pop(run_id, None)
        else:
            self._flying[run_id] = settle

    def is_due(self, key: Key, event_type: str) -> bool:
        """Return whether a checkpoint is due with the next event, of this type."""
        entry = self._cache.get(key)
        return entry is not None and self._policy.due(event_type, entry.state.seq + 1 - entry.checkpointed)

    def keep_due(self, tx: Transaction, key: Key, records: Sequence[RecordedEvent]) -> list[str]:
        """Keep the checkpoint that is due after these records, if one is, in the commit that makes it due.

        Return what to warn of once that has ended.
        """
        entry = self._cache.get(key)
        if entry is None or not records or entry.state.seq != records[-1].seq or entry.state.hash is None:
            return []
        since = entry.state.seq - entry.checkpointed
        if not any(self._policy.due(rec.type, since) for rec in records):
            return []
        checkpoint = seal(RunState, entry.state, key[0], entry.state.seq, entry.state.hash)
        is_kept, told = kept(tx, checkpoint, self._policy.keep)
        if is_kept:
            with self._lock:
                entry = self._cache.get(key)
                if entry is not None:
                    entry.checkpointed = checkpoint.seq
        return told
