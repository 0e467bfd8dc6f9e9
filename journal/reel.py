"""The log of a run, shown to an engine bit by bit, in a store of its own: what was recorded there, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from runjournal.log import events as e
from runjournal.log.base import BlobRef, Event, NewerEvent, RecordedEvent, UnknownEvent, UnreadableEvent, plan_of
from runjournal.log.chain import NewRow
from runjournal.log.clock import timestamp
from runjournal.log.codec import Draft, decode, draft, linked
from runjournal.log.memory import MemoryStore
from runjournal.log.owner import Process
from runjournal.log.store import Store, Transaction, Write
from runjournal.projections.derived import Derived
from runjournal.projections.state import RunState
from runjournal.writing import folding

OWNING: Final = (e.RunClaimed, e.RunRequeued, e.RunWaiting, e.RunCancelRequested)
"""What says who runs a run and when: nothing that its agent sees."""


class Reel:
    """A run in a store in memory. It reads the `real` store, and writes nothing there.

    Runs that it goes on from are there from the start, byte for byte, and so is the first event of the run. The others
    stand in `ahead`, and are shown by `show`; what an engine adds comes in between by `add`. It is a `RunSource`.
    """

    def __init__(self, real: Store, run_id: str, process: Process) -> None:
        self.run_id = run_id
        self.real = real
        self.clock = real.clock
        self.process = process
        self.store: Store = MemoryStore(clock=real.clock, store_id=real.store_id)
        self.live: Callable[[str], RunState] = lambda _: self.derived.state
        bases = list(folding.bases(real, run_id))
        self.store.transact(lambda tx: self._copy_secrets(tx, [run_id, *bases]), durable=False)
        for base in reversed(bases):
            self._copy(base)
        self.ahead: Iterator[RecordedEvent] = iter(real.read(run_id))
        self.derived = self._derived(run_id)
        first = next(self.ahead)
        queued = first.event
        if isinstance(queued, e.RunQueued):  # no budget ends what was already paid for
            self.show(first._replace(event=replace(queued, budget=None)))

    def filled(self, record: RecordedEvent) -> RecordedEvent:
        """Return the record with the values that are held out of line in place."""
        return folding.filled_record(self.store, record)

    def _copy_secrets(self, tx: Transaction, run_ids: list[str]) -> None:
        """Let the values of private runs be read, and the ids of their calls be what they are there."""
        heads = [head for each in run_ids if (head := self.real.head(each)) is not None]
        names = dict.fromkeys([*(("run", each) for each in run_ids), *(("scope", head.scope) for head in heads)])
        for purpose, name in names:
            if (key := self.real.secret(purpose, name)) is not None:
                tx.add_secret(purpose, name, key)

    def _derived(self, run_id: str) -> Derived:
        args_at = folding.args_reader(self.store, self.store, run_id)
        first = folding.first(self.real, run_id)
        return Derived(run_id, args_at, state=folding.begin(self.store, first))

    def _copy(self, run_id: str) -> None:
        """Put a whole run into the store: another one is begun from what it was."""
        derived = self._derived(run_id)
        for row in self.real.read_raw(run_id):
            seq, _, kind, body, digest = row
            self._write(derived, decode(run_id, *row, self.real.key), (seq, kind, body, digest), self._blobs)

    def show(self, recorded: RecordedEvent) -> None:
        """Put a recorded event behind what is there. One that means nothing here is left out."""
        if not isinstance(recorded.event, UnknownEvent | NewerEvent | UnreadableEvent):
            self._put(draft(recorded.event, at=recorded.at, by=recorded.by, step=recorded.step), recorded.epoch)

    def add(self, event: Event) -> RecordedEvent:
        """Put an event of today's behind what is there."""
        opened = self.derived.state.steps.open
        index = getattr(event, "index", None) if opened is None else opened.index
        return self._put(draft(event, at=timestamp(self.clock.now()), by="check", step=index), 0)

    def _put(self, made: Draft, epoch: int) -> RecordedEvent:
        head = self.derived.head
        put, row = linked(self.run_id, head.head_seq + 1, head.head_hash, made, epoch=epoch)
        self._write(self.derived, put, row, lambda event: [*made.blobs, *self._blobs(event)])
        return put

    def _write(
        self,
        derived: Derived,
        put: RecordedEvent,
        row: NewRow,
        blobs: Callable[[Event], list[tuple[str, bytes]]],
    ) -> None:
        before = derived.head if derived.head.head_seq else None
        rows = derived.apply(put)
        newest = derived.newest if put.seq == 1 else None
        write = Write(
            before, derived.head, [row], blobs(put.event),
            rows.effects, rows.unknown, rows.known, rows.step_ends, rows.bills, newest,
        )  # fmt: skip
        self.store.transact(lambda tx: tx.write(write), durable=False)

    def _blobs(self, event: Event) -> list[tuple[str, bytes]]:
        """Return the values of an event that the real store holds out of line."""
        values = [getattr(event, field.attribute) for field in plan_of(type(event))] if event.BLOBS else []
        refs = [value for value in values if isinstance(value, BlobRef)]
        return [(ref.sha256, body) for ref in refs if (body := self.real.blob(ref.sha256)) is not None]
