"""The hash chain: each event's hash covers the one before it, so that any change to the past is found.

A row keeps its own hash. The chain is checked by working every hash out anew, from the first event or from a checkpoint
on; the column is compared with it and never believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import sha256 as _sha256
from typing import Final, TypeAlias

import orjson

from .errors import CorruptLog, InvalidArgument
from .limits import hash_bytes, hashed_name_bytes_max

DOMAIN: Final = b"runjournal/2\0"
PURGED: Final = "run.purged"
"""The type of the event behind which nothing comes, and before which all is empty."""
GENESIS: Final = bytes(hash_bytes)
"""What stands for the hash before the first event of a run."""

RawRow: TypeAlias = tuple[int, int, str, bytes, bytes]
"""An event of a run as it is stored: (seq, position, type, body, hash)."""
NewRow: TypeAlias = tuple[int, str, bytes, bytes]
"""The same before it has a position: (seq, type, body, hash)."""


def event_hash(run_id: str, seq: int, event_type: str, prev: bytes, body: bytes) -> bytes:
    r"""Return the 32 bytes of the hash of an event: SHA-256 over the text that stands for it.

    That is `"runjournal/2\0"`, the run id behind a byte of its length in bytes, `seq` as 8 bytes, big-endian, the type
    behind a byte of its length, `prev` (the 32 bytes of the hash before it, GENESIS for the first event), and the body.
    One hash stands for the whole run up to `seq`. The bytes of a text that is no UTF-8, which a store returns as lone
    surrogates, are those that are stored. Raises InvalidArgument for a run id or type of more than 255 bytes, a `seq`
    that 8 bytes can't hold, and a `prev` of another length: no stored event has one.
    """
    if len(prev) != hash_bytes:
        raise InvalidArgument(f"prev: expected {hash_bytes} bytes, got {len(prev)}")
    try:
        place = seq.to_bytes(8, "big")
    except OverflowError:
        raise InvalidArgument(f"seq: expected a whole number from 0 that 8 bytes hold, got {seq}"[:120]) from None
    return _sha256(b"".join((_run(run_id), place, _type(event_type), prev, body))).digest()


@lru_cache(maxsize=1024)
def _run(run_id: str) -> bytes:
    return DOMAIN + _counted(run_id, "run id")


@lru_cache(maxsize=1024)
def _type(event_type: str) -> bytes:
    return _counted(event_type, "type")


def _counted(text: str, what: str) -> bytes:
    encoded = text.encode("utf-8", "surrogateescape")
    if len(encoded) > hashed_name_bytes_max:
        raise InvalidArgument(f"{what}: expected at most {hashed_name_bytes_max} bytes, got {len(encoded)}")
    return bytes((len(encoded),)) + encoded


class Emptied:
    """What is left of the events before a `run.purged`, which names the number of them and this digest of them all.

    Their bodies are gone, so that no hash can be worked out anew: what is stored is taken, and pinned by that event.
    """

    def __init__(self) -> None:
        self.count = 0
        self._digest = _sha256()

    def add(self, event_type: str, digest: bytes) -> None:
        """Count one more event, its type and its stored hash."""
        self.count += 1
        self._digest.update(_type(event_type) + digest)

    def digest(self) -> str:
        """Return SHA-256, in hex, over the type, behind a byte of its length, and the hash of each event so far."""
        return self._digest.hexdigest()

    def fits(self, seq: int, body: bytes) -> bool:
        """Return whether the event at `seq`, a `run.purged` with this body, is about just these."""
        try:
            said = orjson.loads(body)["data"]
            return bool(self.count == seq - 1 and (said["events"], said["hashes"]) == (self.count, self.digest()))
        except (ValueError, KeyError, TypeError):
            return False


def verified(rows: Iterable[RawRow], run_id: str, after: int = 0, prev: str | None = None) -> Iterator[RawRow]:
    """Yield the same rows, each checked to stand behind the one before it: dense `seq`, and the hash that it must have.

    `after` and `prev` are the seq and the hash, in hex, of the event before the first. Of a run that was purged, hashes
    are taken as they are stored up to its last event, which has to be among the rows, as all before it. Raises
    CorruptLog at the first row that doesn't fit.
    """
    link = GENESIS if prev is None else _from_hex(run_id, after + 1, prev)
    run, sha256 = b"", _sha256
    emptied: Emptied | None = None
    for row in rows:
        after += 1
        seq, _, event_type, body, stored = row
        if seq != after:
            raise CorruptLog(run_id, after, f"the event is missing, the next one is seq {seq}")
        if not body:
            emptied = emptied or Emptied()
            _leave(run_id, row, emptied)
            link = stored
            yield row
            continue
        if event_type == PURGED or emptied is not None:
            _check_marker(run_id, row, emptied or Emptied())
            emptied = None
        try:
            run = run or _run(run_id)
            link = sha256(b"".join((run, seq.to_bytes(8, "big"), _type(event_type), link, body))).digest()
        except InvalidArgument as error:
            raise CorruptLog(run_id, after, f"no event can be like this: {error}") from error
        if link != stored:
            raise CorruptLog(
                run_id,
                after,
                "its hash isn't the one that was stored: it, or the hash of the event before it, was changed",
            )
        yield row
    if emptied is not None:
        raise CorruptLog(run_id, after, _NO_MARKER)


_NO_MARKER: Final = "its body was taken away, and no run.purged stands behind it"


def _leave(run_id: str, row: RawRow, emptied: Emptied) -> None:
    """Take an emptied event as it is stored. Raises CorruptLog where none can be."""
    seq, _, event_type, _, stored = row
    if emptied.count != seq - 1 or event_type == PURGED or len(stored) != hash_bytes:
        raise CorruptLog(run_id, seq, _NO_MARKER)
    try:
        emptied.add(event_type, stored)
    except InvalidArgument as error:
        raise CorruptLog(run_id, seq, f"no event can be like this: {error}") from error


def _check_marker(run_id: str, row: RawRow, emptied: Emptied) -> None:
    """Raise CorruptLog unless this event is the `run.purged` of the emptied ones before it, and of all of them."""
    seq, _, event_type, body, _ = row
    if event_type != PURGED:
        raise CorruptLog(run_id, seq - 1, _NO_MARKER)
    if not emptied.fits(seq, body):
        raise CorruptLog(run_id, seq, "it isn't about the events before it: one of them was changed, or not purged")


def _from_hex(run_id: str, seq: int, text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise CorruptLog(run_id, seq, "the hash of the event before it is no hash") from None
