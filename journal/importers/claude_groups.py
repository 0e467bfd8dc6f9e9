"""The lines of one assistant message: Claude Code writes a line per block, repeats lines, and counts usage in each.

A line's usage is what the request has cost so far. So of the snapshots of one request the one with the most output
counts, whole: a counter of one beside a counter of another would be the usage of nothing that was ever sent. A request
is known by the message's id, its own id and the model; a line that doesn't name its request belongs to the last one of
the message. Two models under the same ids are two requests: gateways use ids again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import orjson

from runjournal.log.events import Event, Json, MessageAppended, ModelCompleted, ModelRecounted, ModelStarted, NoteAdded
from runjournal.log.limits import finish_reason_chars_max, usage_raw_bytes_max
from runjournal.projections.usage import measure

from .pieces import Pieces
from .stream import Packed, unpack
from .values import name_of, text_of

PROVIDER: Final = "anthropic"
Counters: TypeAlias = dict[str, int]


def counters_of(usage: Mapping[str, Any]) -> tuple[Counters, dict[str, Any]]:
    """Return a usage object in the journal's words: its counters, and what it says beside them."""
    told = measure(usage, PROVIDER) or {}
    counters = {name: value for name, value in told.items() if type(value) is int}
    return counters, {name: value for name, value in told.items() if name not in counters and name != "raw"}


def output_of(usage: Mapping[str, Any] | None) -> int:
    """Return the tokens of the answer so far; 0 if nobody says."""
    told = (usage or {}).get("output_tokens")
    return told if type(told) is int else 0


@dataclass(slots=True)
class Request:
    """What one request of a message has cost: `now` by its best snapshot, None as long as no line told any.

    `beside` is what that snapshot says beside counters: tiers, and what is unknown. `told`, `told_beside` and
    `told_model` are what the events of earlier imports say of it; `begun` whether they say anything. `origin` is where
    its first line stood.
    """

    request_id: str
    model: str
    call_id: str
    origin: dict[str, Any]
    now: Counters | None = None
    raw: dict[str, Any] = field(default_factory=dict[str, Any])
    beside: dict[str, Any] = field(default_factory=dict[str, Any])
    told: Counters | None = None
    told_beside: dict[str, Any] = field(default_factory=dict[str, Any])
    told_model: str = ""
    begun: bool = False

    @property
    def empty(self) -> bool:
        """Return whether no line told that it has cost anything."""
        return self.now is None or not any(self.now.values())

    def spend(self, usage: dict[str, Any], counters: Counters, beside: dict[str, Any], model: str) -> None:
        """Take a snapshot into account: the most output wins, then the most of all, then the last."""
        if self.now is None or _weight(counters) >= _weight(self.now):
            self.now, self.beside, self.raw, self.model = counters, beside, usage, model

    def usage(self) -> dict[str, Any] | None:
        """Return the usage as an event holds it."""
        if self.now is None:
            return None
        usage: dict[str, Any] = {**self.now, **self.beside}
        if len(orjson.dumps(self.raw)) <= usage_raw_bytes_max:
            usage["raw"] = self.raw
        return usage


def _weight(counters: Counters) -> tuple[int, int]:
    return counters.get("output", 0), sum(counters.values())


@dataclass(slots=True)
class Group:
    """An assistant message, as far as it was read: `key` is what its lines share, `message_id` the provider's.

    `name` is how the session finds it, `chain` the number of its run, `at` the time of its first line, `live` whether
    any of it is new. `requests` are
    by (request id, model), a request perhaps under several; `last` is the newest of each request id.
    """

    name: str
    key: str
    message_id: str | None
    chain: int
    at: str | None = None
    live: bool = False
    model: str = "unknown"
    pieces: Pieces = field(default_factory=Pieces)
    requests: dict[tuple[str, str], Request] = field(default_factory=dict[tuple[str, str], Request])
    last: dict[str, Request] = field(default_factory=dict[str, Request])
    newest: Request | None = None
    begun: bool = False
    part: Part | None = None

    def ask(self, request_id: str, usage: dict[str, Any] | None, line: int, origin: dict[str, Any]) -> Request | None:
        """Return the request that a line is about, its usage taken into account; None if it tells of none.

        A line without usage is a request only as long as the message has no other.
        """
        counters, beside = (None, {}) if usage is None else counters_of(usage)
        request = self._known(request_id, counters)
        if request is None:
            if counters is None and self.requests:
                return None
            call_id = f"model-{self.key}.line-{line}" if self.requests else f"model-{self.key}"
            request = Request(request_id, self.model, name_of(call_id), origin)
        self.requests[request_id, self.model] = self.last[request_id] = self.newest = request
        if usage is not None and counters is not None:
            request.spend(usage, counters, beside, self.model)
        return request

    def _known(self, request_id: str, counters: Counters | None) -> Request | None:
        """Return the request that a line goes on with: one of the same id, or where one has none, of the same model.

        What has cost nothing only holds another one's place, so its model says nothing.
        """
        if (request := self.requests.get((request_id, self.model))) is not None:
            return request
        if (near := self.last.get(request_id)) is not None:
            return near if near.empty or not counters or not any(counters.values()) else None
        near = self.last.get("") if request_id else self.newest
        if near is None or near.model != self.model:
            return None
        if request_id:
            near.request_id = request_id
            del self.last[""]
        return near

    def reused(self, request: Request) -> bool:
        """Return whether another request of this message has the same id, so that it says nothing."""
        return any(each is not request and each.request_id == request.request_id for each in self.requests.values())

    def settle(self) -> None:
        """Note that all up to here was imported before."""
        self.part = None
        self.pieces.settle()
        for request in self.requests.values():
            request.told, request.told_beside = request.now, request.beside
            request.told_model, request.begun = request.model, True

    def events(self) -> Iterator[Event]:
        """Yield the model calls, the message, and the tool calls that the message asked for."""
        if self.part is not None:
            for request in self.part.asked.values():
                yield from self._asked(self.part, request)
            yield self._message(self.part)
            yield from map(unpack, self.part.calls)

    def _asked(self, part: Part, request: Request) -> Iterator[Event]:
        reason = part.head.get("stop_reason")
        reason = reason[:finish_reason_chars_max] if isinstance(reason, str) else None
        request_id = name_of(request.request_id) if request.request_id else None
        if not request.begun:
            yield ModelStarted(request.call_id, name_of(request.model), "", 1, provider=PROVIDER)
            yield ModelCompleted(
                request.call_id,
                1,
                part.head,
                usage=request.usage(),
                response_id=self.message_id,
                finish_reason=reason,
                request_id=request_id,
                origin=request.origin or None,
            )
        elif request.now is not None and (request.now, request.model) != (request.told, request.told_model):
            yield ModelRecounted(
                request.call_id,
                1,
                name_of(request.model),
                usage=request.usage() or {},
                was=None if request.told is None else request.told | request.told_beside,
                was_model=None if request.model == request.told_model else name_of(request.told_model),
                provider=PROVIDER,
                response_id=self.message_id,
                finish_reason=reason,
                request_id=request_id,
            )

    def _message(self, part: Part) -> Event:
        blocks = self.pieces.blocks()
        if part.continued and not part.adjacent:
            rest = {"message_id": self.message_id, "content": blocks, "raw": part.records}
            return NoteAdded(json.dumps(rest, ensure_ascii=False), code="message_continued")
        return MessageAppended("assistant", blocks, message_id=self.message_id, provider=PROVIDER, raw=part.records)


@dataclass(slots=True)
class Part:
    """What one import adds to a message; it stands at its first line, `line`.

    `continued`: the message began in an earlier import. `adjacent`: and it is still the last one of its role. `asked`
    are the requests that its lines are about.
    """

    line: int
    continued: bool
    adjacent: bool
    records: list[Json] = field(default_factory=list[Json])
    head: dict[str, Any] = field(default_factory=dict[str, Any])
    asked: dict[str, Request] = field(default_factory=dict[str, Request])
    calls: list[Packed] = field(default_factory=list[Packed])


def model_of(message: Mapping[str, Any]) -> str:
    """Return the model's name, "" if it is missing."""
    model = message.get("model")
    return text_of(model) if isinstance(model, str) else ""
