"""Calls of which somebody has still to say what became: what they were must not go before he has."""

from __future__ import annotations

from collections.abc import Iterable

from runjournal.log.errors import NotAllowed
from runjournal.log.store import Store
from runjournal.projections.shell import command
from runjournal.writing import folding

from . import naming


def check_decided(store: Store, run_ids: Iterable[str], done: str) -> None:
    """Raise NotAllowed if a call of the lines of these runs may have happened, and nobody has said a word of it.

    `done` is what would have been done to them: "purged". A word may be that nobody will ever know. What lives
    elsewhere is asked there.
    """
    heads = [head for run_id in run_ids if (head := store.head(run_id)) is not None]
    for scope in sorted({head.scope for head in heads if not head.unowned}):
        _check_line(store, scope, done)


def _check_line(store: Store, scope: str, done: str) -> None:
    run_id = store.newest(scope)
    head = store.head(run_id) if run_id is not None else None
    if run_id is None or head is None or store.imported(run_id) is not None:
        return
    line = naming.members(store, run_id)
    if not any(True for each in line for _ in store.index_rows("unknowns", each)):
        return
    state, _ = folding.load(store, store, run_id, head.head_seq, force=True)
    for call_id, call in state.calls.unresolved().items():
        if not call.said and (call.policy != "outbox" or not call.step):
            say = command("resolve", run_id, call_id, "WORD")
            raise NotAllowed(
                f"run {run_id}: call {call_id} of {call.tool} may have happened, and nobody has said whether; nothing "
                f"was {done}: type `{say}` (happened, did-not-happen, retry or unknown), and do it again"
            )
