"""All that follows from the events of a run: its row in `runs`, its rows in the index tables, its folded state.

`db rebuild` writes it again, the audit compares it with what is stored.
"""

from __future__ import annotations

from collections.abc import Callable

from runjournal.log.base import RecordedEvent
from runjournal.log.head import UNOWNED, Head, advance

from . import index
from .state import RunState


class Derived:
    """Apply a run's events in order; `rows` are then the rows of the index tables that the last one stands for.

    `head` is the row of `runs`. What isn't in the events is left at its beginning: a lease begins at `boottime_s`, and
    `wake_at` is the time of the event that woke the run. `args_at(seq)` returns the args of the tool.started there;
    `state` is where the run goes on from, if not from nothing.
    """

    def __init__(
        self,
        run_id: str,
        args_at: Callable[[int], object],
        *,
        state: RunState | None = None,
        boottime_s: float = 0.0,
    ) -> None:
        self.head = Head(run_id)
        self.state = state or RunState.initial()
        self.rows = index.Rows()
        self._args_at = args_at
        self._boottime_s = boottime_s

    def apply(self, record: RecordedEvent) -> index.Rows:
        """Fold one event in, and return the rows that it stands for. Raises Unfoldable."""
        self.move_head(record)
        self.rows = index.Rows()
        index.apply(self.state, record, self.rows, self._args_at)
        head = self.head
        if head.status == "waiting" and self.state.status.woken and head.wake_at is None:
            self.head = head._replace(wake_at=record.at)
        return self.rows

    def move_head(self, record: RecordedEvent) -> None:
        """Move only the head: for an event that can't be folded."""
        self.head = advance(self.head, record, self._boottime_s)

    @property
    def newest(self) -> tuple[str, str] | None:
        """Return (scope, run id), if the run's first event made it the newest of its line; else None.

        A run that nobody owns has no line.
        """
        status = self.state.status
        lone = status.unowned or status.was in UNOWNED
        return None if lone or status.status == "new" else (self.head.scope, self.head.run_id)
