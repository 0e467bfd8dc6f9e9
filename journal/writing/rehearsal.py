"""Appenders that keep what they append: one that writes it, and one that judges it as ever and takes it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from runjournal.log.base import RecordedEvent
from runjournal.log.store import Transaction

from .appender import Appender, Batch


class NotingAppender(Appender):
    """Appends, and keeps the `records` of all that it has appended."""

    shares = False

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self.records: list[RecordedEvent] = []

    def _commit(
        self, made: Iterable[Batch] | Callable[[Transaction], Iterable[Batch]], *, durable: bool
    ) -> list[list[RecordedEvent]]:
        done = super()._commit(made, durable=durable)
        self.records += [record for records in done for record in records]
        return done


class _TakenBack(Exception):
    """Ends the transaction of a rehearsal, so that nothing of it is written."""


class RehearsingAppender(NotingAppender):
    """Judges each append behind those that were rehearsed before it, says what it would be, and writes nothing.

    Who reads the store in between sees none of it.
    """

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._before: list[Batch] = []

    def _commit(
        self, made: Iterable[Batch] | Callable[[Transaction], Iterable[Batch]], *, durable: bool
    ) -> list[list[RecordedEvent]]:
        tried, seen = list[Batch](), list[list[RecordedEvent]]()

        def rehearsed(tx: Transaction) -> Iterator[Batch]:
            yield from self._before
            for batch in made(tx) if callable(made) else made:
                head = tx.head(batch.run_id)
                tried.append(batch)
                yield batch
                seen.append(list(tx.read(batch.run_id, 0 if head is None else head.head_seq)))
            raise _TakenBack

        with suppress(_TakenBack):
            Appender._commit(self, rehearsed, durable=durable)  # noqa: SLF001 - its own base's
        self._before += tried
        self.records += [record for records in seen for record in records]
        return seen
