"""Which runs are private, and the keys that they get: with their first event, in its transaction, and never later.

A run is private if its journal makes private runs, or if the run that it goes on from, or its parent, is. It has a key
for its values and one for its checkpoints; its line has one that ids of calls are worked out with, since these depend
on arguments and stay.
"""

from __future__ import annotations

from runjournal.log import events as e
from runjournal.log.base import Event
from runjournal.log.cipher import ERASED_KEY, new_key
from runjournal.log.codec import Draft
from runjournal.log.errors import NotAllowed
from runjournal.log.hiding import hide
from runjournal.log.store import Reading, Transaction

from . import folding


def of_run(tx: Transaction, run_id: str, private: bool, first: Event) -> bytes | None:  # noqa: FBT001 - a setting
    """Return the key of a run to which something is appended, None if it isn't private; `first` may begin it.

    An erased key is returned as it is. Raises NotAllowed for a run that goes on from an erased one; MissingExtra.
    """
    known = tx.secret("run", run_id)
    if known is not None or not isinstance(first, e.RunQueued | e.RunImported | e.RunOpened):
        return known
    base = first.base["run_id"] if isinstance(first, e.RunQueued) and first.base else None
    if base is not None:
        check_bases(tx, base, f"what {run_id} would go on from")
    private = private or any(tx.secret("run", other) is not None for other in (base, first.parent_run_id) if other)
    if not private:
        return None
    key, scope = new_key(), getattr(first, "scope", None) or run_id
    tx.add_secret("run", run_id, key)
    tx.add_secret("checkpoints", run_id, new_key())
    if tx.newest(scope) is None:  # a line that has begun in the open keeps the ids of its calls
        tx.add_secret("scope", scope, new_key())
    return key


def check_bases(reading: Reading, run_id: str, needed: str) -> None:
    """Raise NotAllowed if a run, or any that it goes on from, was erased: its calls and messages are the line's."""
    for each in (run_id, *folding.bases(reading, run_id)):
        check_there(reading, each, needed)


def check_there(reading: Reading, run_id: str, needed: str) -> None:
    """Raise NotAllowed if a run was erased; `needed` says what is wanted of it."""
    if reading.secret("run", run_id) == ERASED_KEY:
        raise NotAllowed(f"run {run_id} was erased, and {needed} is gone with it; take another run id")


def hidden(draft: Draft, key: bytes, run_id: str, seq: int) -> Draft:
    """Return a draft as a private run stores it. Raises NotAllowed for private values in a run that was erased."""
    stored = hide(draft, key, run_id, seq)
    if key == ERASED_KEY and stored is not draft:
        raise NotAllowed(f"run {run_id} was erased: no private value is added to it, and {draft.type} has one")
    return stored
