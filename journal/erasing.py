"""Erasing the private values of runs: their keys are overwritten, and the log goes on without what they opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from runjournal.log import events as e
from runjournal.log.cipher import ERASED_KEY, new_key
from runjournal.log.codec import check_run_id, tellable
from runjournal.log.errors import InvalidArgument, NotAllowed, RunNotFound
from runjournal.log.head import TERMINAL
from runjournal.log.store import Reading, Store, Transaction
from runjournal.writing import purged
from runjournal.writing.appender import Batch

from . import naming, undecided
from .logbook import Logbook
from .relations import Relations


class Erasure(NamedTuple):
    """What an erasure comes to. Backups and exports that were made before it are out of its reach.

    `run_ids` are the runs whose private values are gone now, `before` those that were erased already. `derived` are
    runs that go on from these, or were begun by them, and weren't erased: what they were told is still there. While
    `pending` is true, a reader that began before keeps an older page with a key in the write-ahead log: `doctor` says
    so until it is gone, and opening the store or another erasure tries again.
    """

    run_ids: tuple[str, ...]
    before: tuple[str, ...]
    derived: tuple[str, ...]
    pending: bool


class ErasurePlan(NamedTuple):
    """The runs that an erasure takes, those that were erased before, and those that came of any of them."""

    run_ids: tuple[str, ...]
    before: tuple[str, ...]
    derived: tuple[str, ...]


def erase(log: Logbook, run_id: str, reason: str, *, line: bool = False) -> Erasure:
    """Erase the private values of a run, with `line` of its whole line and of all that came of it.

    See `Journal.erase`.
    """
    planned: list[ErasurePlan] = []
    relations = Relations(log.store)

    def make(tx: Transaction) -> Iterable[Batch]:
        relations.catch_up(tx)
        planned.append(plan(log.store, tx, run_id, relations, line=line))
        overwrite(tx, planned[0])
        return [log.batch(each, [e.RunErased(tellable(reason))], expect=None) for each in planned[0].run_ids]

    log.ownership.appender.append_all_made(make)
    touched = [*planned[0].run_ids, *planned[0].derived]
    log.ownership.forget(touched)
    for each in touched:
        log.store.drop_checkpoints(each)
    return Erasure(*planned[0], pending=not log.store.scrub())


def plan(store: Store, reading: Reading, run_id: str, relations: Relations, *, line: bool = False) -> ErasurePlan:
    """Return what an erasure takes; `reading` is the store, or a transaction of it.

    Raises RunNotFound, InvalidArgument for a run that isn't private, NotAllowed, Purged.
    """
    head = reading.head(check_run_id(run_id))
    if head is None:
        raise RunNotFound(run_id)
    purged.check_head(reading, head)
    chosen = {run_id}
    if line:
        chosen.update(naming.members(reading, reading.newest(head.scope) or run_id))
    below, going_on = relations.come_of(chosen), relations.going_on(chosen)
    if line:
        chosen |= below
        below, going_on = set[str](), set[str]()
    keys = {each: reading.secret("run", each) for each in sorted(chosen)}
    if keys[run_id] is None:
        raise InvalidArgument(
            f"run {run_id} isn't private, so nothing of it can be erased; open the journal with private=True "
            "before its first event"
        )
    take = tuple(each for each, key in keys.items() if key not in (None, ERASED_KEY))
    for each in [*take, *sorted(going_on)]:
        _check_over(reading, each, run_id)
    undecided.check_decided(store, take, "erased")
    return ErasurePlan(take, tuple(each for each, key in keys.items() if key == ERASED_KEY), tuple(sorted(below)))


def overwrite(tx: Transaction, planned: ErasurePlan) -> None:
    """Overwrite the keys of the runs of a plan, and those of checkpoints that were folded from them."""
    for each in planned.run_ids:
        tx.erase_secrets("run", each)
        tx.erase_secrets("checkpoints", each)
    for each in planned.derived:
        if tx.erase_secrets("checkpoints", each):
            tx.add_secret("checkpoints", each, new_key())
    heads = [head for each in planned.run_ids if (head := tx.head(each)) is not None]
    for scope in {head.scope for head in heads}:
        line = naming.members(tx, tx.newest(scope) or scope)
        if all(tx.key(each) is None for each in line):  # nobody goes on with it
            tx.erase_secrets("scope", scope)


def _check_over(reading: Reading, each: str, run_id: str) -> None:
    """Check that nothing more comes here of a run that an erasure takes, or that reads what it takes."""
    head = reading.head(each)
    if head is not None and head.status not in TERMINAL and not head.unowned and reading.imported(each) is None:
        whose = "its own values" if each == run_id else f"those of {run_id}"
        raise NotAllowed(
            f"run {head.run_id} is {head.status} and needs {whose} to go on; nothing was erased: "
            "let it end, or cancel it, and erase then"
        )
