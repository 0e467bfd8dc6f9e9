"""Runs that go on from others: a retry, a restart, a fork (engine.md L1 to L4, L8)."""

from __future__ import annotations

from collections.abc import Iterable

from runjournal.log import events as e
from runjournal.log.errors import NotNewest, WrongExpectation
from runjournal.log.head import TERMINAL, Head
from runjournal.log.limits import line_tries_max
from runjournal.projections.state import RunState
from runjournal.writing import folding, keys, purged

from . import naming
from .logbook import Logbook


def go_on(log: Logbook, link: str, of: str, new_run_id: str | None, anew: Iterable[str]) -> str:
    """Queue the next run of a line; return its id. If somebody else has just asked for the same, that one's.

    Raises NotNewest.
    """
    steps, first = list(anew), log.head(of)
    purged.check_head(log.store, first)
    if first.unowned or log.store.imported(of) is not None:
        how = first.status if first.unowned else "imported"
        raise NotNewest(f"run {of} is {how}: nobody owns it, so there is no {link} of it; fork it")
    newest = log.store.newest(first.scope)
    if newest not in (None, of):
        raise NotNewest(f"run {of} went on as {newest}: a {link} takes the newest run of a line")
    for _ in range(line_tries_max):
        head = log.head(log.store.newest(first.scope) or of)
        if head.run_id != of or head.status not in TERMINAL:
            if new_run_id in (None, head.run_id) and _asked_for(log, head, link, of, steps):
                return head.run_id
            raise NotNewest(_ahead(head, link, of))
        new_id = new_run_id
        if new_id is None:
            new_id = naming.next_id(log.store, head.scope, of) or log.new_run_id()
        try:
            return queue(log, link, of, new_id, anew=steps)
        except WrongExpectation:
            if new_run_id is not None:
                raise
        except NotNewest:
            continue  # somebody was faster: what he queued may be the same
    raise NotNewest(f"run {of} goes on again and again; ask later for a {link}")


def _asked_for(log: Logbook, head: Head, link: str, of: str, steps: list[str]) -> bool:
    """Return whether the newest run of a line is what is asked for: made of the same run just now, or not begun yet."""
    queued = folding.first(log.store, head.run_id)
    if queued is None or (queued.link, queued.again or []) != (link, steps):
        return False
    if head.run_id == of:
        return head.status == "queued" and head.epoch == 0
    return queued.base is not None and queued.base["run_id"] == of


def _ahead(head: Head, link: str, of: str) -> str:
    if head.run_id == of:
        return f"run {of} is {head.status}: a {link} takes a run that has ended"
    return f"run {of} has just gone on as {head.run_id}: a {link} takes the newest run of a line"


def queue(log: Logbook, link: str, of: str, new_id: str, *, at: int | None = None, anew: Iterable[str] = ()) -> str:
    """Queue a run that goes on from another one; return its id. Raises NotNewest, WrongExpectation."""
    keys.check_bases(log.store, of, f"what a {link} would go on from")
    purged.check_there(log.store, of)
    state = log.fold(RunState, of, at=at)
    queued = next(log.events(of, upto=1)).event
    if not isinstance(queued, e.RunQueued):  # it has no steps: all that was recorded is its context
        return _fork_unowned(log, state, new_id)
    if link == "fork":
        base_seq = max(1, state.steps.last_done - state.offset)
        state = log.fold(RunState, of, at=base_seq)
    first = _first(log, queued) if link == "restart" else None
    run = e.RunQueued(
        queued.kind,
        queued.input,
        messages=None if first is None else first.messages,
        plan=None if first is None else first.plan,
        title=queued.title,
        tags=queued.tags,
        scope=None if link == "fork" else state.status.scope,
        parent_run_id=None if link == "fork" else queued.parent_run_id,
        link=link,
        base={"run_id": of, "seq": state.seq, "hash": state.hash},
        again=list(anew) or None,
        budget=queued.budget,
    )
    log.append(new_id, [run], expect=0)
    return new_id


def _fork_unowned(log: Logbook, state: RunState, new_id: str) -> str:
    """Queue a run that goes on from one that nobody owns: with its messages, and without an input."""
    run, status = state.run_id, state.status
    base = {"run_id": run, "seq": state.seq, "hash": state.hash}
    queued = e.RunQueued(status.kind, None, title=status.title, tags=status.tags or None, link="fork", base=base)
    log.append(new_id, [queued], expect=0)
    return new_id


def _first(log: Logbook, queued: e.RunQueued) -> e.RunQueued:
    """How the first of the runs that one goes on from was queued: the others have its plan from their base."""
    while queued.base is not None:
        before = next(log.events(queued.base["run_id"], upto=1)).event
        if not isinstance(before, e.RunQueued):
            break
        queued = before
    return queued
