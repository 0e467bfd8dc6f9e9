"""Purging: runs that are over go for ever and give their disk back; a marker with what they came to stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from runjournal.log import blob_names
from runjournal.log import events as e
from runjournal.log.chain import Emptied
from runjournal.log.codec import check_run_id, tellable
from runjournal.log.errors import NotAllowed, Purged, RunNotFound, WrongExpectation
from runjournal.log.head import TERMINAL, Head
from runjournal.log.limits import line_tries_max
from runjournal.log.store import Store, Transaction
from runjournal.projections.state import RunState
from runjournal.writing.appender import Batch

from . import naming, undecided
from .logbook import Logbook
from .relations import Relations


class Purge(NamedTuple):
    """What a purge comes to. Backups and exports that were made before it are out of its reach.

    `run_ids` are the runs of the line that are gone now, first to last; none if they were purged before. They had
    `events` events, and `bytes` bytes in these and in the values that only they held. `children` are runs that they
    have begun, and that stay. While `pending` is true, a reader that began before keeps older pages in the write-ahead
    log: `doctor` says so until they are gone, and opening the store or another purge tries again.
    """

    run_ids: tuple[str, ...]
    events: int
    bytes: int
    children: tuple[str, ...]
    pending: bool


class Leaving(NamedTuple):
    """A run as it is before it is purged: its head, the bytes of its events, the blobs that these name."""

    head: Head
    hashes: str
    bytes: int
    digests: frozenset[str]


class PurgePlan(NamedTuple):
    """What a purge takes: `runs`, and of their blobs `digests`, those that no other run had named at `position`."""

    runs: tuple[Leaving, ...]
    digests: frozenset[str]
    bytes: int
    children: tuple[str, ...]
    position: int

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Return the runs that go, first to last."""
        return tuple(each.head.run_id for each in self.runs)

    def told(self, *, pending: bool) -> Purge:
        """Return what it comes to."""
        return Purge(
            self.run_ids, sum(each.head.head_seq for each in self.runs), self.bytes, self.children, pending=pending
        )


def purge(log: Logbook, run_id: str, reason: str) -> Purge:
    """Purge a run with its whole line; see `Journal.purge`."""
    for _ in range(line_tries_max):
        relations = Relations(log.store)
        try:
            planned = plan(log.store, run_id, relations)
            if planned.runs:
                _empty(log, planned, relations, tellable(reason))
        except (WrongExpectation, Purged):  # somebody has said something of it since, or was faster
            continue
        return planned.told(pending=not log.store.scrub())
    raise NotAllowed(f"run {run_id} is appended to again and again, so it wasn't purged; try again")


def plan(store: Store, run_id: str, relations: Relations) -> PurgePlan:
    """Return what a purge takes; no runs, if they were purged before. Raises RunNotFound, NotAllowed."""
    head, position = store.head(check_run_id(run_id)), store.last_position()
    if head is None:
        raise RunNotFound(run_id)
    line = naming.members(store, store.newest(head.scope) or run_id) if head.status != "purged" else []
    heads = [found for each in line if (found := store.head(each)) is not None]
    if head.status == "purged" or any(each.status == "purged" for each in heads):  # just then
        return PurgePlan((), frozenset(), 0, (), position)
    for each in heads:
        _check_over(store, each)
    _check_left(set(line), relations)
    undecided.check_decided(store, line, "purged")
    runs = tuple(_leaving(store, each) for each in heads)
    digests = frozenset[str]().union(*(each.digests for each in runs))
    if digests:
        digests -= _named(store.naming_blobs(), set(line))
    sizes = (len(body) for digest in digests if (body := store.blob(digest)) is not None)
    children = relations.come_of(set(line))
    return PurgePlan(runs, digests, sum(each.bytes for each in runs) + sum(sizes), tuple(sorted(children)), position)


def _empty(log: Logbook, planned: PurgePlan, relations: Relations, reason: str) -> None:
    """Append the markers, and take away what stands before them, in one transaction. Raises WrongExpectation."""
    markers = {
        each.head.run_id: _marker(log.fold(RunState, each.head.run_id, at=each.head.head_seq, force=True), each, reason)
        for each in planned.runs
    }

    def make(tx: Transaction) -> Iterator[Batch]:
        relations.catch_up(tx)
        _check_left(set(planned.run_ids), relations)
        for each in planned.runs:
            yield log.batch(each.head.run_id, [markers[each.head.run_id]], expect=each.head.head_seq)
        digests = planned.digests
        if digests:
            digests -= _named(tx.naming_blobs(planned.position), set(planned.run_ids))
        for each in planned.runs:
            run = each.head.run_id
            tx.purge(run, sorted(digests & each.digests))
            tx.erase_secrets("run", run)
            tx.erase_secrets("checkpoints", run)
        for scope in {each.head.scope for each in planned.runs}:
            tx.erase_secrets("scope", scope)

    log.ownership.appender.append_all_made(make)
    log.ownership.forget(planned.run_ids)


def _marker(state: RunState, leaving: Leaving, reason: str) -> e.RunPurged:
    head, status, costs = leaving.head, state.status, state.costs
    return e.RunPurged(
        reason,
        head.status if head.status in TERMINAL or head.unowned else "imported",
        head.kind,
        head.scope,
        head.queued_at,
        head.head_seq,
        head.head_hash or "",
        leaving.hashes,
        costs.lines,
        costs.money,
        status.started_at,
        status.ended_at,
        head.parent_run_id,
    )


def _leaving(store: Store, head: Head) -> Leaving:
    """Read what a run holds, up to its head."""
    emptied, held, digests = Emptied(), 0, set[str]()
    for _, _, event_type, body, digest in store.read_raw(head.run_id, 0, head.head_seq):
        emptied.add(event_type, digest)
        held += len(body)
        digests |= blob_names.digests(body)
    return Leaving(head, emptied.digest(), held, frozenset(digests))


def _named(bodies: Iterator[tuple[str, bytes]], of: set[str]) -> set[str]:
    """Return the digests that events of other runs may name."""
    return {digest for run_id, body in bodies if run_id not in of for digest in blob_names.digests(body)}


def _check_over(store: Store, head: Head) -> None:
    """Check that a run has ended, or never was anybody's here."""
    if head.status not in TERMINAL and not head.unowned and store.imported(head.run_id) is None:
        raise NotAllowed(
            f"run {head.run_id} is {head.status}; nothing was purged: let it end, or cancel it, and purge then"
        )


def _check_left(line: set[str], relations: Relations) -> None:
    """Check that no run beside a line goes on from it."""
    if going_on := sorted(relations.going_on(line)):
        named = ", ".join(going_on[:10])
        raise NotAllowed(f"these runs go on from what would be purged: {named}; nothing was purged, purge them first")
