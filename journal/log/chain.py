"""The hash chain: each event names the hash of the one before it, so that any change to the past is found."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from .base import RecordedEvent, UnreadableEvent
from .errors import CorruptLog

DOMAIN: Final = b"runjournal/1\0"


def event_hash(run_id: str, seq: int, event_type: str, body: bytes) -> str:
    r"""Return the hash of an event: SHA-256, in hex, over the text that stands for it.

    The body holds the previous hash, so one hash stands for the whole run up to `seq`. The bytes of a text that is no
    UTF-8, which a store returns as lone surrogates, are those that are stored.
    """
    return hashlib.sha256(_run(run_id) + seq.to_bytes(8, "big") + _type(event_type) + body).hexdigest()


@lru_cache(maxsize=1024)
def _run(run_id: str) -> bytes:
    return DOMAIN + run_id.encode("utf-8", "surrogateescape") + b"\0"


@lru_cache(maxsize=1024)
def _type(event_type: str) -> bytes:
    return event_type.encode("utf-8", "surrogateescape") + b"\0"


def verified(
    records: Iterable[RecordedEvent], run_id: str, after: int = 0, prev: str | None = None
) -> Iterator[RecordedEvent]:
    """Yield the same records, each checked to stand behind the one before it: dense `seq`, matching `prev`.

    `after` and `prev` are the seq and hash of the event before the first. Raises CorruptLog at the first record that
    doesn't fit. An event that can't be read names no `prev`; the event behind it still pins its bytes.
    """
    for record in records:
        after += 1
        if record.seq != after:
            raise CorruptLog(run_id, after, f"the event is missing, the next one is seq {record.seq}")
        if record.prev != prev and type(record.event) is not UnreadableEvent:
            raise CorruptLog(
                run_id, after, "its link doesn't match the hash of the event before it: one of them was changed"
            )
        prev = record.hash
        yield record
