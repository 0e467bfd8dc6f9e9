"""Everything that follows from the events, made again from them: the rows of the runs and the index tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from runjournal.log import owner
from runjournal.log.errors import NotAllowed
from runjournal.log.head import Head
from runjournal.log.store import Store, Transaction, Write
from runjournal.projections.derived import Derived
from runjournal.projections.index import Rows

from . import folding

Progress = Callable[[int], None]
"""Told how many events were read so far."""


def rebuild(store: Store, progress: Progress | None = None) -> int:
    """Make the rows of the runs and the index tables again, in one transaction; return the number of runs.

    An epoch is never lowered, so that an owner who was fenced stays so. Raises NotAllowed while a run has a living
    owner, Unfoldable at an event that can't be read: then nothing is changed.
    """
    count = 0

    def writes(tx: Transaction) -> Iterator[Write]:
        nonlocal count
        for run_id in tx.born():
            yield _write(tx, run_id, store, progress)
            count += 1

    store.transact(lambda tx: tx.reindex(writes(tx)), durable=True)
    return count


def _write(tx: Transaction, run_id: str, store: Store, progress: Progress | None) -> Write:
    before = tx.head(run_id)
    if before is not None and before.status == "running" and not owner.gone(before, owner.here(), store.clock):
        raise NotAllowed(f"run {run_id} has a living owner, {before.owner}: stop it, then rebuild; nothing was changed")
    state = folding.begin(store, folding.first(tx, run_id))
    derived, rows = Derived(run_id, folding.args_reader(store, tx, run_id), state=state), Rows()
    for record in tx.read(run_id):
        new = derived.apply(record)
        rows.effects += new.effects
        rows.step_ends += new.step_ends
        rows.bills += new.bills
        if new.known:
            gone = set(new.known)
            rows.unknown = [row for row in rows.unknown if (row.scope, row.key) not in gone]
        rows.unknown += new.unknown
        if progress is not None and record.seq % 1000 == 0:
            progress(1000)
    elsewhere = tx.imported(run_id) is not None
    head = _kept(derived.head, before)
    if elsewhere:
        return Write(before, head, [], step_ends=rows.step_ends, bills=rows.bills)
    return Write(
        before,
        head,
        [],
        effects=rows.effects,
        unknown=rows.unknown,
        step_ends=rows.step_ends,
        bills=rows.bills,
        newest=derived.newest,
    )


def _kept(head: Head, before: Head | None) -> Head:
    """Return the head with what isn't in the events: the lease as the heartbeat left it, and a higher epoch."""
    if before is None:
        return head
    head = head._replace(epoch=max(head.epoch, before.epoch))
    if (before.status, before.owner, before.epoch) == (head.status, head.owner, head.epoch):
        return head._replace(lease_until=before.lease_until, heartbeat_at=before.heartbeat_at)
    return head
