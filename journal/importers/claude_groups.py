"""The lines of one assistant message: Claude Code writes a line per block, repeats lines, and counts usage in each.

A line's usage is what the request has cost so far. So what counts per (message id, request id) is the maximum of each
counter, and the model of the last line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from runjournal.log.events import Event, Json, MessageAppended, ModelCompleted, ModelStarted, NoteAdded
from runjournal.log.limits import finish_reason_chars_max, usage_raw_bytes_max
from runjournal.projections.usage import measure

from .values import name_of, text_of, value_digest

PROVIDER: Final = "anthropic"
Counters: TypeAlias = dict[str, int]


def counters_of(usage: Mapping[str, Any]) -> tuple[Counters, dict[str, Any]]:
    """Return a usage object in the journal's words: its counters, and what it says beside them."""
    told = measure(usage, PROVIDER) or {}
    counters = {name: value for name, value in told.items() if type(value) is int}
    return counters, {name: value for name, value in told.items() if name not in counters and name != "raw"}


@dataclass(slots=True)
class Request:
    """What one request of a message has cost: `now` by all lines, `told` by the events of earlier imports.

    `beside` is what its newest line says beside counters: tiers, and what is unknown.
    """

    now: Counters
    model: str
    raw: dict[str, Any]
    beside: dict[str, Any]
    told: Counters | None = None

    def left(self) -> Counters | None:
        """Return what is still to be told; None if nothing is."""
        if self.told is None:
            return dict(self.now)
        left = {name: value - self.told.get(name, 0) for name, value in self.now.items()}
        return left if any(left.values()) else None


@dataclass(slots=True)
class Group:
    """An assistant message, as far as it was read: `key` is what its lines share, `message_id` the provider's.

    `name` is how the session finds it, `chain` the number of its run, `live` whether any of it is new.
    """

    name: str
    key: str
    message_id: str | None
    chain: int
    live: bool = False
    model: str = "unknown"
    seen: set[bytes] = field(default_factory=set[bytes])
    requests: dict[str, Request] = field(default_factory=dict[str, Request])
    begun: bool = False
    part: Part | None = None

    def see(self, block: Json) -> bool:
        """Return whether a block is new."""
        digest = value_digest(block)
        if digest in self.seen:
            return False
        self.seen.add(digest)
        return True

    def spend(self, request_id: str, usage: dict[str, Any], model: str) -> None:
        """Take a line's usage into account."""
        counters, beside = counters_of(usage)
        request = self.requests.get(request_id)
        if request is None:
            self.requests[request_id] = Request(counters, model, usage, beside)
            return
        names = (*request.now, *(name for name in counters if name not in request.now))
        request.now = {name: max(request.now.get(name, 0), counters.get(name, 0)) for name in names}
        request.model, request.raw, request.beside = model, usage, beside

    def settle(self) -> None:
        """Note that all up to here was imported before."""
        self.part = None
        for request in self.requests.values():
            request.told = request.now

    def events(self) -> Iterator[Event]:
        """Yield the model calls, the message, and the tool calls that the message asked for."""
        if self.part is not None:
            yield from self._asked(self.part)
            yield self._message(self.part)
            yield from self.part.calls

    def _asked(self, part: Part) -> Iterator[Event]:
        for request_id, line in part.spent.items():
            request = self.requests[request_id]
            if (left := request.left()) is not None:
                usage: dict[str, Any] = {**left, **request.beside}
                if len(json.dumps(request.raw)) <= usage_raw_bytes_max:
                    usage["raw"] = request.raw
                yield from self._pair(part, line, request.model, usage)
        if not part.spent and not part.continued:
            yield from self._pair(part, part.line, self.model, None)

    def _pair(self, part: Part, line: int, model: str, usage: dict[str, Any] | None) -> Iterator[Event]:
        first = line == part.line and not part.continued
        call_id = name_of(f"model-{self.key}" if first else f"model-{self.key}.line-{line}")
        reason = part.head.get("stop_reason")
        yield ModelStarted(call_id, name_of(model), "", 1, provider=PROVIDER)
        yield ModelCompleted(
            call_id,
            1,
            part.head,
            usage=usage,
            response_id=self.message_id,
            finish_reason=reason[:finish_reason_chars_max] if isinstance(reason, str) else None,
        )

    def _message(self, part: Part) -> Event:
        if part.continued and not part.adjacent:
            rest = {"message_id": self.message_id, "content": part.blocks, "raw": part.records}
            return NoteAdded(json.dumps(rest, ensure_ascii=False), code="message_continued")
        return MessageAppended(
            "assistant", part.blocks, message_id=self.message_id, provider=PROVIDER, raw=part.records
        )


@dataclass(slots=True)
class Part:
    """What one import adds to a message; it stands at its first line, `line`.

    `continued`: the message began in an earlier import. `adjacent`: and it is still the last one of its role.
    """

    line: int
    continued: bool
    adjacent: bool
    blocks: list[Json] = field(default_factory=list[Json])
    records: list[Json] = field(default_factory=list[Json])
    head: dict[str, Any] = field(default_factory=dict[str, Any])
    spent: dict[str, int] = field(default_factory=dict[str, int])
    calls: list[Event] = field(default_factory=list[Event])


def model_of(message: Mapping[str, Any]) -> str:
    """Return the model's name, "" if it is missing."""
    model = message.get("model")
    return text_of(model) if isinstance(model, str) else ""
