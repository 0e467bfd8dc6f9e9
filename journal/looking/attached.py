"""The bytes that a run refers to, such as screenshots: those that came into it, and those of other runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from runjournal.engine.media import reference_of
from runjournal.log.base import NewerEvent, PurgedEvent, RecordedEvent, UnknownEvent, UnreadableEvent, data_of
from runjournal.log.errors import MissingBlob
from runjournal.log.media import references_in
from runjournal.logbook import Logbook
from runjournal.writing import folding


class Attached(NamedTuple):
    """Bytes, by the event `seq` that refers to them first, and the reference to them."""

    seq: int
    ref: dict[str, Any]

    @property
    def digest(self) -> str:
        """Return the SHA-256 of what is stored, in hex."""
        return str(self.ref["$blob"])


def attached(journal: Logbook, run_id: str, upto: int | None = None) -> Iterator[Attached]:
    """Yield what the events up to one (all: None) refer to, each once. Raises RunNotFound."""
    seen: set[str] = set()
    for record in journal.events(run_id, upto=upto, blobs=False):
        found = reference_of(record)
        for ref in [found] if found is not None else _references(journal, record):
            if ref["$blob"] not in seen:
                seen.add(ref["$blob"])
                yield Attached(record.seq, ref)


def _references(journal: Logbook, record: RecordedEvent) -> list[dict[str, Any]]:
    event = record.event
    if isinstance(event, UnknownEvent | NewerEvent):
        return list(references_in(event.data))
    if isinstance(event, PurgedEvent | UnreadableEvent):
        return []
    with suppress(MissingBlob):  # its own value is gone: the audit tells
        event = folding.filled_record(journal.store, record).event
    return list(references_in(data_of(event)))
