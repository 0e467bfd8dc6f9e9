"""An owner's event on the short way (`alone.py`), between its judgement and its commit."""

from __future__ import annotations

from typing import NamedTuple

from runjournal.log.base import RecordedEvent, at_position
from runjournal.log.codec import Draft
from runjournal.log.store import Alone

from .alone import OwnersView, starts_of
from .states import Key, States


class ShortAppend(NamedTuple):
    """An event of an owner that goes the short way: judged, and folded into what is known of its run.

    `alone` is what the store is asked for, `known` what is known of the run if it does it.
    """

    key: Key
    alone: Alone
    known: OwnersView
    record: RecordedEvent
    draft: Draft

    def states(self) -> list[Key]:
        """Return the state that it has folded on."""
        return [self.key]

    def kept(self, states: States, position: int) -> RecordedEvent:
        """Keep what is known now; return the record, at its position."""
        states.keep(self.key, self.known, starts_of(self.record, self.draft))
        return at_position(self.record, position)
