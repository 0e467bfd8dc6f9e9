"""The short way of an owner's event: judged by what this process knows of the run, then one statement that commits.

All that moves who may append moves the run's last event too. So an owner that knows the last event's hash knows all
that the gate asks, and the statement refuses if another event has come behind it. What the short way can't decide, and
every refusal, goes the long way: judged again inside the store's write lock, on what is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, NoReturn

from runjournal.log import events as e
from runjournal.log.authority import Gate
from runjournal.log.base import RecordedEvent
from runjournal.log.chain import NewRow
from runjournal.log.codec import Draft, linked
from runjournal.log.errors import AppendRefused
from runjournal.log.head import MOVES, Head, advance
from runjournal.log.hiding import hide
from runjournal.projections import index
from runjournal.projections.state import RunState

from .bounds import BOUNDS
from .placing import check_step, placed


class OwnersView(NamedTuple):
    """What this process knows of a run that it owns: its folded state and its head, both as of the last event.

    `secret` is the key of its private values, None for a run that isn't private.
    """

    state: RunState
    head: Head
    secret: bytes | None = None

    @property
    def current(self) -> bool:
        """Return whether both are of the same event, and the run is running."""
        head, state = self.head, self.state
        return head.status == "running" and (state.seq, state.hash) == (head.head_seq, head.head_hash)


class _LongWayError(Exception):
    """It can't be decided without the store."""


class _Scene:
    """What the gate asks of an owner's event: the owner's own state, the clock, and nothing of the store."""

    def __init__(self, state: RunState, now: Callable[[], str]) -> None:
        self._state = state
        self.now = now

    def facts(self) -> RunState:
        """Return the state that the owner has."""
        return self._state

    def owner_gone(self, head: Head) -> bool:
        """Raise: that is asked of a run by others."""
        _give_up(head)

    def newest(self, scope: str) -> str | None:
        """Raise: the store knows."""
        _give_up(scope)

    def elsewhere(self) -> bool:
        """Raise: the store knows."""
        _give_up(self)

    def happened(self, key: str) -> bool:
        """Raise: the store knows."""
        _give_up(key)


def _give_up(_: object) -> NoReturn:
    raise _LongWayError


def may_go_alone(draft: Draft, known: OwnersView) -> bool:
    """Return whether an event of the owner brings nothing but itself: no blob, no index row, no move of the head."""
    if draft.blobs or draft.type in MOVES:
        return False
    return draft.type not in index.INDEXED or index.has_no_row(known.state, draft.event)


def judged(
    draft: Draft, known: OwnersView, epoch: int, now: Callable[[], str]
) -> tuple[RecordedEvent, NewRow, Draft] | None:
    """Return an event of the owner at its place, if it may be appended as far as its owner knows; else None."""
    state, head, secret = known
    try:
        Gate(head, epoch, _Scene(state, now)).admit(draft)
        check_step(head.run_id, draft.event, state)
    except (AppendRefused, _LongWayError):
        return None
    draft = placed(draft, epoch, state)
    stored = draft if secret is None else hide(draft, secret, head.run_id, head.head_seq + 1)
    record, row = linked(head.run_id, head.head_seq + 1, head.head_hash, stored, epoch=epoch)
    return record, row, draft


def folded(record: RecordedEvent, known: OwnersView) -> OwnersView:
    """Fold an event into the state that is known, and return what is known then. Raises TooLarge."""
    state = known.state
    state.apply(record)
    if (check := BOUNDS.get(record.type)) is not None:
        check(state, record)
    return OwnersView(state, advance(known.head, record), known.secret)


def starts_of(record: RecordedEvent, draft: Draft) -> dict[int, bytes]:
    """Return the data of a tool.started by its seq, which its end asks for; of anything else, nothing."""
    return {record.seq: draft.data} if isinstance(record.event, e.ToolStarted) and not draft.ext else {}
