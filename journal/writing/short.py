"""An owner's event on the short way (`alone.py`), between its judgement and its commit."""

from __future__ import annotations

from runjournal.log.base import RecordedEvent
from runjournal.log.codec import Draft
from runjournal.log.store import Alone

from .alone import OwnersView, starts_of
from .states import Key, States


class ShortAppend:
    """An event of an owner that goes the short way: judged, and folded into what is known of its run."""

    def __init__(self, key: Key, alone: Alone, record: RecordedEvent, draft: Draft) -> None:
        self.key = key
        self.alone = alone
        self.known: OwnersView
        self._record = record
        self._draft = draft

    def states(self) -> list[Key]:
        """Return the state that it has folded on."""
        return [self.key]

    def kept(self, states: States, position: int) -> RecordedEvent:
        """Keep what is known now; return the record, at its position."""
        record = self._record._replace(position=position)
        starts = starts_of(record, self._draft)
        states.keep(self.key, self.known.state, starts, self.known.head, self.known.secret)
        return record
