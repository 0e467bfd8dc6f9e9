"""The one guarded append of every writer: judge, link, encode, fold and write, all inside the store's write lock.

What was read there is what is replaced, so that an append either stands behind the head it saw or writes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Final

from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.authority import Gate
from runjournal.log.base import BlobRef, RecordedEvent, at_position
from runjournal.log.chain import PURGED, NewRow
from runjournal.log.clock import Clock, timestamp
from runjournal.log.codec import Draft, encode, linked, loads
from runjournal.log.errors import NotAllowed, NotNewest, WrongExpectation
from runjournal.log.head import TERMINAL, Head, advance
from runjournal.log.limits import append_batch_events_max, states_cached_max
from runjournal.log.store import Alone, SharedTransaction, Sharing, Store, Transaction, Write
from runjournal.projections import index
from runjournal.projections.state import RunState

from . import alone as alone_way
from . import checkpoints, folding, keys, purged
from .alone import OwnersView
from .batch import Batch, check_size, is_single, may_share
from .bounds import BOUNDS
from .checkpoints import CheckpointPolicy
from .placing import check_step, placed
from .sharing import SharedAppend
from .short import ShortAppend
from .states import Key, States

__all__ = ["Appender", "Batch", "SharedAppend"]


class Appender:
    """Appends for one journal. `states` are the folded states of the runs that it appended to last.

    `owned(run_id)` says whether the run is this journal's; `private` makes every new run a private one.
    """

    shares = True
    """Whether an append may share its commit with those of others."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        policy: CheckpointPolicy,
        process: owner.Process,
        owned: Callable[[str], bool] = lambda _: False,
        *,
        private: bool = False,
    ) -> None:
        self.private = private
        self.store = store
        self._clock = clock
        self._process = process
        self.states = States(store, policy, owned)

    def append(self, *batches: Batch) -> list[list[RecordedEvent]]:
        """Append all of these batches or nothing; return the records of each. Raises what `Journal.append` says."""
        durable = self._checked(batches)
        batch, sharing = batches[0], self.store.sharing
        if sharing is not None and self.shares and sharing.crowded(durable=durable) and may_share(batches):
            return [self._shared(batch, sharing, durable=durable)]
        if len(batches) == 1 and (view := self._view(batch)) is not None:
            alone = self._alone(batch, view, durable=durable)
            if alone is not None:
                return [[alone]]
        return self._commit(batches, durable=durable)

    def _shared(self, batch: Batch, sharing: Sharing, *, durable: bool) -> list[RecordedEvent]:
        """Append in a commit with others, which somebody else makes."""
        work = SharedAppend(self.judge, self.states, batch, durable=durable)
        try:
            sharing.wait(work, work.heard)
        except BaseException:
            self.states.free()
            raise
        return work.outcome()

    def submit(self, batch: Batch, told: Callable[[SharedAppend], None]) -> bool:
        """Take an append of the owner that shares its commit with others; return False if it has to be made at once.

        `told` hears of its end, in another thread, some time after the store's `sharing.wake`. Raises what is wrong
        with the batch, StoreClosed.
        """
        sharing = self.store.sharing
        if sharing is None or not may_share((batch,)):
            return False
        work = SharedAppend(self.judge, self.states, batch, durable=self._checked((batch,)), told=told)
        self.states.fly(batch.run_id, partial(work.settle, sharing.wake))
        try:
            sharing.add(work)
        except BaseException:
            self.states.fly(batch.run_id, None)
            raise
        return True

    def _checked(self, batches: tuple[Batch, ...]) -> bool:
        """Return whether the commit of these batches waits for the disk. Raises InvalidArgument, TooLarge.

        Raises NotAllowed for run.purged: whoever appends it takes away what stands before it, in the same commit.
        """
        durable = False
        for batch in batches:
            if not 0 < len(batch.drafts) <= append_batch_events_max:
                check_size(batch)
            for draft in batch.drafts:
                durable = durable or e.is_durable(draft.event)
                if draft.type == PURGED:
                    raise NotAllowed(f"run {batch.run_id}: {PURGED} is appended by Journal.purge alone")
        return durable

    def judge(self, tx: SharedTransaction, work: SharedAppend) -> list[RecordedEvent]:
        """Append in a transaction that others share."""
        appends: list[_Append | ShortAppend] = []
        try:
            return self._decided(tx, (work.batch,), appends, work.warnings)[0]
        finally:
            work.keys = [key for append in appends for key in append.states()]

    def _view(self, batch: Batch) -> alone_way.OwnersView | None:
        """Return what is known of the run of an owner's event that may go the short way; None if it can't."""
        if not is_single(batch):
            return None
        key, draft, states = (batch.run_id, True), batch.drafts[0], self.states
        known = states.known(key)
        if known is None or not known.current or known.head.epoch != batch.epoch:
            return None
        if batch.expect not in (None, known.head.head_seq) or not alone_way.may_go_alone(draft, known):
            return None
        return None if states.is_due(key, draft.type) else known

    def _short(self, batch: Batch, view: OwnersView) -> ShortAppend | None:
        """Judge and fold one event of an owner by what is known of its run; None if it has to go the long way."""
        judged = alone_way.judged(batch.drafts[0], view, batch.epoch, self.now)
        if judged is None:
            return None
        record, row, draft = judged
        key = (batch.run_id, True)
        try:
            return ShortAppend(key, Alone(batch.run_id, view.head, row), alone_way.folded(record, view), record, draft)
        except BaseException:
            self.states.drop([key])
            raise

    def _alone(self, batch: Batch, view: OwnersView, *, durable: bool) -> RecordedEvent | None:
        """Append one event of an owner the short way; None, and nothing is written, if it has to go the long one."""
        key = (batch.run_id, True)
        short: ShortAppend | None = None
        position: int | None = None

        def decide() -> Alone | None:
            nonlocal short
            if self.states.known(key) is view:  # nobody has appended since this thread looked
                short = self._short(batch, view)
            return None if short is None else short.alone

        try:
            position = self.store.append_alone(decide, durable=durable)
            if short is None:
                return None
            if position is None:  # it was folded in, and another event has come before it
                self.states.drop([key])
                return None
            return short.kept(self.states, position)
        except BaseException:
            self.states.free()
            if position is None:
                self.states.drop([key])
            raise

    def append_stream(self, batches: Iterable[Batch]) -> dict[str, int]:
        """Append all of these batches or nothing, each as it comes; return how many events each run got.

        They may be more than memory holds: what was written is let go of, and the batches of a run follow each other.
        Nothing is written, and no lock is taken, if there is none. Raises what `append` raises.
        """
        coming = iter(batches)
        first = next(coming, None)
        if first is None:
            return {}
        added: dict[str, int] = {}
        ended: deque[tuple[Key, RecordedEvent]] = deque(maxlen=states_cached_max)
        told: list[str] = []

        def decide(tx: Transaction) -> None:
            newest: tuple[Key, RecordedEvent] | None = None
            try:
                for batch in chain([first], coming):
                    check_size(batch)
                    append = _Append(self, tx, batch)
                    added.setdefault(batch.run_id, 0)
                    if newest is not None and newest[0] != append.key:
                        ended.append(newest)
                    records = append.run()
                    added[batch.run_id] += len(records)
                    newest = append.key, records[-1]
                if newest is not None:
                    ended.append(newest)
                for key, record in ended:
                    told.extend(self.states.keep_due(tx, key, [record]))
            except BaseException:
                self.states.drop((run_id, False) for run_id in added)
                raise

        try:
            self.store.transact(decide, durable=True)
        except BaseException:
            self.states.drop((run_id, False) for run_id in added)
            raise
        for text in told:
            checkpoints.warn(text)
        return added

    def append_made(self, make: Callable[[Transaction], Batch]) -> list[RecordedEvent]:
        """Append what `make` returns, inside the transaction. What `make` does there commits with it, or not at all."""

        def made(tx: Transaction) -> tuple[Batch, ...]:
            batch = make(tx)
            check_size(batch)
            return (batch,)

        return self._commit(made, durable=True)[0]

    def append_all_made(self, make: Callable[[Transaction], Iterable[Batch]]) -> list[list[RecordedEvent]]:
        """Append what `make` returns to several runs, inside one transaction, as `append_made` does to one."""
        return self._commit(make, durable=True)

    def _commit(
        self, made: Iterable[Batch] | Callable[[Transaction], Iterable[Batch]], *, durable: bool
    ) -> list[list[RecordedEvent]]:
        appends: list[_Append | ShortAppend] = []
        told: list[str] = []

        def decide(tx: Transaction) -> list[list[RecordedEvent]]:
            try:
                return self._decided(tx, made(tx) if callable(made) else made, appends, told)
            except BaseException:
                self.states.drop(
                    key for append in appends for key in append.states()
                )  # before anybody goes on from there
                raise

        appended: list[list[RecordedEvent]] | None = None
        try:
            appended = self.store.transact(decide, durable=durable)
            for append, records in zip(appends, appended, strict=True):
                self.states.note_words(append.key, records)
            for text in told:
                checkpoints.warn(text)
        except BaseException:
            self.states.free()
            if appended is None:
                self.states.drop(key for append in appends for key in append.states())
            raise
        return appended

    def _decided(
        self, tx: Transaction, batches: Iterable[Batch], appends: list[_Append | ShortAppend], told: list[str]
    ) -> list[list[RecordedEvent]]:
        """Judge, fold and write batches, and the checkpoints that they make due; note the `appends`, and warnings.

        An owner's event that brings nothing but itself goes the short way here, too.
        """
        done: list[list[RecordedEvent]] = []
        for batch in batches:
            if (view := self._view(batch)) is not None and (short := self._short(batch, view)) is not None:
                appends.append(short)
                if (position := tx.append_alone(short.alone)) is not None:
                    done.append([short.kept(self.states, position)])
                    continue
                self.states.drop([short.key])
                appends.pop()
            append = _Append(self, tx, batch)
            appends.append(append)
            done.append(append.run())
        for each, records in zip(appends, done, strict=True):  # here nobody else folds on
            if isinstance(each, _Append):  # no checkpoint is due with what goes the short way
                told.extend(self.states.keep_due(tx, each.key, records))
        return done

    def now(self) -> str:
        """Return the time of the wall clock, as events hold it."""
        return timestamp(self._clock.now())

    def owner_gone(self, head: Head) -> bool:
        """Return whether a running run has no living owner."""
        return owner.gone(head, self._process, self._clock)

    def boottime_s(self) -> float:
        """Return the seconds since boot, where leases begin."""
        return self._clock.boottime_s()


NO_ROWS: Final = index.Rows()
"""What most events have to say to the index tables; nothing is ever put in here."""


class _Append:
    """One append, inside its transaction."""

    def __init__(self, appender: Appender, tx: Transaction, batch: Batch) -> None:
        self.appender = appender
        self.tx = tx
        self.batch = batch
        self.before = tx.head(batch.run_id)
        self.head = self.before or Head(batch.run_id)
        self.key: Key = (batch.run_id, batch.epoch > 0 and batch.epoch == self.head.epoch)
        self.state: RunState | None = None
        self.rows = NO_ROWS
        self.records: list[RecordedEvent] = []
        self.starts: dict[int, bytes] = {}
        self.claims = False
        self.after = self.head
        self.secret: bytes | None = None

    def states(self) -> list[Key]:
        """Return the states that it may have folded on, or handed over to a new owner."""
        run_id = self.batch.run_id
        return [(run_id, True), (run_id, False)] if self.claims else [self.key]

    def run(self) -> list[RecordedEvent]:
        """Judge, fold, write."""
        batch, head = self.batch, self.head
        behind = batch.expect is not None and batch.expect < head.head_seq
        if (behind or head.status in TERMINAL) and (repeated := self._repeated()) is not None:
            return repeated
        if batch.expect is not None and batch.expect != head.head_seq:
            raise WrongExpectation(batch.run_id, batch.expect, head.head_seq)
        first = batch.drafts[0].event
        purged.check_base(self.tx, first)
        self.state = self.appender.states.cached(self.tx, head, self.key)
        claims = bool(batch.drafts[1:]) and any(draft.type == "run.claimed" for draft in batch.drafts[:-1])
        if self.state is None and (self.before is None or batch.epoch or claims):  # what follows is its owner's
            self.state = self.appender.states.load(self.tx, head, self.key, first)
        records = self._write(Gate(head, batch.epoch, self))
        if self.state is not None:
            self.appender.states.keep(self.key, OwnersView(self.state, self.after, self.secret), self.starts)
        if self.claims:
            self.appender.states.hand_over(batch.run_id)
            self.key = (batch.run_id, True)
        return records

    # What the gate asks: the scene of `log/authority.py`.

    def now(self) -> str:
        """Return the time of the wall clock."""
        return self.appender.now()

    def owner_gone(self, head: Head) -> bool:
        """Return whether a running run has no living owner."""
        return self.appender.owner_gone(head)

    def newest(self, scope: str) -> str | None:
        """Return the newest run of a line."""
        return self.tx.newest(scope)

    def elsewhere(self) -> bool:
        """Return whether the run was imported, and lives elsewhere."""
        return self.tx.imported(self.head.run_id) is not None

    def happened(self, key: str) -> bool:
        """Return whether a call that isn't idempotent has happened under this key, in this run's scope."""
        return self.tx.effect(self.head.scope or self.head.run_id, key) is not None

    def facts(self) -> RunState:
        """Return the state as the events admitted so far have made it; it is loaded at the first question."""
        if self.state is None:
            self.state = self.appender.states.load(self.tx, self.head, self.key).fold(self.records)
        return self.state

    def _write(self, gate: Gate) -> list[RecordedEvent]:
        head, records = self.head, self.records
        if self.before is not None and not self.batch.epoch and self.batch.imported is None:
            self._check_native()
        rows: list[NewRow] = []
        blobs: dict[str, bytes] = {}
        self.secret = keys.of_run(self.tx, self.batch.run_id, self.appender.private, self.batch.drafts[0].event)
        for draft in self.batch.drafts:
            epoch = gate.epoch
            gate.admit(draft)
            if isinstance(draft.event, e.RunClaimed):
                epoch, self.claims = draft.event.epoch, True
            draft = placed(draft, epoch, self.state)  # noqa: PLW2901 - the same draft, at its place
            seq = head.head_seq + 1
            stored = draft if self.secret is None else keys.hidden(draft, self.secret, self.batch.run_id, seq)
            rec, row = linked(self.batch.run_id, seq, head.head_hash, stored, epoch=epoch)
            if isinstance(draft.event, e.RunQueued):
                self._check_line(draft.event)
            head = advance(head, rec, self.appender.boottime_s() if isinstance(draft.event, e.RunClaimed) else 0.0)
            self._fold(rec)
            records.append(rec)
            rows.append(row)
            self.starts |= alone_way.starts_of(rec, draft)
            blobs.update(stored.blobs)
        if self.state is not None and head.status == "waiting" and self.state.status.woken and not head.wake_at:
            head = head._replace(wake_at=head.updated_at)
        newest_run = (head.scope, head.run_id) if records[0].type == "run.queued" else None
        self.after = head
        positions = self.tx.write(
            Write(
                self.before,
                head,
                rows,
                list(blobs.items()),
                self.rows.effects,
                self.rows.unknown,
                self.rows.known,
                self.rows.step_ends,
                self.rows.bills,
                newest_run,
                self.batch.imported,
            )
        )
        return [at_position(rec, position) for rec, position in zip(records, positions, strict=True)]

    def _fold(self, rec: RecordedEvent) -> None:
        """Fold the event in, and note what it means for the index tables."""
        if rec.type in (index.BILLED if self.head.unowned else index.INDEXED):
            state = self.state or self.facts()
            if self.rows is NO_ROWS:
                self.rows = index.Rows()
            check_step(rec.run_id, rec.event, state)
            index.apply(state, rec, self.rows, self._args_at)
        elif self.state is not None:
            self.state.apply(rec)
        if self.state is not None and (check := BOUNDS.get(rec.type)) is not None:
            check(self.state, rec)

    def _args_at(self, seq: int) -> object:
        """Return the args of the tool.started at a seq: of this very append, of the log, or of the run's base."""
        place = seq - self.head.head_seq - 1
        if place < 0:
            if (data := self.appender.states.start(self.key, seq)) is not None:
                return loads(data)["args"]
            return folding.args_reader(self.appender.store, self.tx, self.batch.run_id)(seq)
        draft = self.batch.drafts[place]
        args = draft.event.args if isinstance(draft.event, e.ToolStarted) else None
        blob = dict(draft.blobs).get(args.sha256) if isinstance(args, BlobRef) else None
        return args if blob is None else loads(blob)

    def _check_native(self) -> None:
        """Refuse to write into a run that lives elsewhere: what happens to it there is imported from there."""
        goes = self.batch.drafts[0].type in ("run.erased", "run.purged")
        if not goes and self.tx.imported(self.batch.run_id) is not None:
            raise NotAllowed(
                f"run {self.batch.run_id} was imported and lives elsewhere: here only its importer adds to it; "
                "fork it to go on"
            )

    def _check_line(self, event: e.RunQueued) -> None:
        """Check that a retry or restart takes the newest run of its line, once that has ended.

        Nobody else takes its scope.
        """
        scope = event.scope or self.batch.run_id
        last = self.tx.newest(scope)
        if event.link in ("retry", "restart"):
            base = event.base["run_id"] if event.base else None
            ended = self.tx.head(base) if base else None
            if base is None or base != last or ended is None or ended.status not in TERMINAL:
                raise NotNewest(
                    f"run {self.batch.run_id}: a {event.link} takes the newest run of a line, once it has ended"
                )
        elif last is not None:
            raise NotNewest(f"run {self.batch.run_id}: the scope {scope} is that of run {last}; retry or restart that")

    def _repeated(self) -> list[RecordedEvent] | None:
        """Return the records of this very append, if it is there already."""
        batch, head = self.batch, self.head
        first = batch.drafts[0]
        if len(batch.drafts) == 1 and first.type in _TERMINALS and head.status == first.type.removeprefix("run."):
            for rec in self.tx.read(batch.run_id, types=(first.type,)):
                if self._same(rec, first):
                    return [rec]
        if batch.expect is None or batch.expect >= head.head_seq:
            return None
        upto = batch.expect + len(batch.drafts)
        there = list(self.tx.read(batch.run_id, batch.expect, upto))
        alike = len(there) == len(batch.drafts) and all(
            (rec.at, rec.by) == (draft.at, draft.by) and self._same(rec, draft)
            for rec, draft in zip(there, batch.drafts, strict=True)
        )
        return there if alike else None

    def _same(self, rec: RecordedEvent, draft: Draft) -> bool:
        """Return whether a stored event is this draft: the same type and, at its own place, the same bytes."""
        if rec.type != draft.type:
            return False
        again = draft._replace(at=rec.at, by=rec.by, step=rec.step)
        if (secret := self.tx.key(rec.run_id)) is not None:
            again = keys.hidden(again, secret, rec.run_id, rec.seq)
        body = encode(again, epoch=rec.epoch)
        return any(raw[3] == body for raw in self.tx.read_raw(rec.run_id, rec.seq - 1, rec.seq))


_TERMINALS = frozenset({"run.completed", "run.failed", "run.cancelled"})
