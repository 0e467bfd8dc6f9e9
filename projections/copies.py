"""Which imported model calls are copies of which: a session that was resumed, forked or delegated begins with a copy.

Ids join only imported calls: the same provider, model, message and request, and counters that are equal or growing. A
call that doesn't name its request, or of a side chain, is joined within its session alone. What has the same ids and
fits nothing is another call, and its ids say nothing. The order in which the calls are given doesn't matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from runjournal.log import events as e
from runjournal.log.base import RecordedEvent

_COUNTERS: Final = ("input", "output", "cache_read", "cache_write")


class ImportedCall(NamedTuple):
    """A model call of an imported run, as far as its events say. `counters` is None if they are unknown.

    `counters` are input, output, cache_read, cache_write. `session_id` is the session that its line named, `uuid` the
    line's own id.
    """

    run_id: str
    call_id: str
    at: str
    provider: str
    model: str
    message_id: str | None = None
    request_id: str | None = None
    session_id: str | None = None
    uuid: str | None = None
    sidechain: bool = False
    counters: tuple[int, ...] | None = None


@dataclass(slots=True)
class JoinedCall:
    """A call and its copies: `first` is the earliest, `counters` the largest that any of them told.

    `id_reused` says that another call has the same ids.
    """

    first: ImportedCall
    copies: list[ImportedCall] = field(default_factory=list[ImportedCall])
    counters: tuple[int, ...] | None = None
    id_reused: bool = False
    told: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]], repr=False)
    """The counters that any of them told, each once."""

    def take(self, call: ImportedCall) -> None:
        """Add a copy; or the first call itself, for what it told."""
        if call is not self.first:
            self.copies.append(call)
        if call.counters is not None:
            self.told.add(call.counters)
            self.counters = max(self.told, key=sum)

    def fits(self, call: ImportedCall) -> bool:
        """Return whether a call is of this model, and its counters are equal to all of these, or growing."""
        if self.first.model != call.model:
            return False
        return call.counters is None or all(_grows(each, call.counters) for each in self.told)


def imported_calls(records: Iterable[RecordedEvent]) -> list[ImportedCall]:
    """Return the model calls of an imported run, by its events; one that has no end yet isn't among them."""
    started: dict[str, e.ModelStarted] = {}
    found: dict[str, ImportedCall] = {}
    for record in records:
        event = record.event
        if isinstance(event, e.ModelStarted):
            started[event.call_id] = event
        elif isinstance(event, e.ModelCompleted) and (begun := started.pop(event.call_id, None)) is not None:
            origin = event.origin or {}
            found[event.call_id] = ImportedCall(
                record.run_id,
                event.call_id,
                record.at,
                begun.provider or "",
                begun.model,
                event.response_id,
                event.request_id,
                origin.get("session_id"),
                origin.get("uuid"),
                origin.get("sidechain", False),
                _counters(event.usage),
            )
        elif isinstance(event, e.ModelRecounted) and (call := found.get(event.call_id)) is not None:
            found[event.call_id] = call._replace(
                model=event.model,
                counters=_counters(event.usage),
                request_id=event.request_id or call.request_id,
            )
    return list(found.values())


def _counters(usage: Mapping[str, Any] | None) -> tuple[int, ...] | None:
    return None if usage is None else tuple(usage.get(name, 0) for name in _COUNTERS)


def joined(calls: Iterable[ImportedCall]) -> list[JoinedCall]:
    """Return the calls, each once with its copies, whatever their order. Calls without a message's id are each one."""
    buckets: dict[tuple[str, str], list[ImportedCall]] = {}
    found: list[JoinedCall] = []
    for call in sorted(calls, key=_order):
        if call.message_id is None:
            found.append(JoinedCall(call, counters=call.counters))
        else:
            buckets.setdefault((call.provider, call.message_id), []).append(call)
    for bucket in buckets.values():
        found += _joined(bucket)
    return sorted(found, key=lambda each: _order(each.first))


def _order(call: ImportedCall) -> tuple[Any, ...]:
    """The earliest first; of copies with one time the one at home in its session; then any order that stays."""
    return call.at, call.run_id != call.session_id, call.sidechain, tuple(map(str, call))


def _joined(bucket: list[ImportedCall]) -> Iterator[JoinedCall]:
    rows: list[JoinedCall] = []
    for call in bucket:
        alike = [row for row in rows if _same_ids(row.first, call)]
        row = next((row for row in alike if row.fits(call)), None)
        if row is None:
            row = JoinedCall(call, id_reused=bool(alike))
            rows.append(row)
            for each in alike:
                each.id_reused = True
        row.take(call)
    yield from rows


def _same_ids(one: ImportedCall, other: ImportedCall) -> bool:
    """Return whether two calls of one message are of one request, by their ids."""
    if one.request_id is not None and one.request_id == other.request_id:
        return True
    near = (one.session_id is not None and one.session_id == other.session_id) or (
        one.uuid is not None and one.uuid == other.uuid
    )
    loose = one.request_id is None or other.request_id is None or one.sidechain or other.sidechain
    return near and loose


def _grows(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) or all(a >= b for a, b in pairs)
