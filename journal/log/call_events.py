"""The event types of calls: of models, and of tools. All others are in `events.py`, which has these, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from . import shapes as s
from .base import Event, Json, builtin
from .field_types import Cost, Error, Name, Obj, One, Price, Time, Usage
from .policies import ON_UNKNOWN, OUTCOMES, POLICIES


@builtin
@dataclass(frozen=True, slots=True)
class ModelStarted(Event):
    """A model is about to be asked."""

    TYPE: ClassVar[str] = "model.started"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"params", "request"})
    call_id: Name
    model: Name
    request_hash: str
    attempt: One
    provider: Name | None = None
    prompt_fingerprint: str | None = None
    params: Json = None
    place: Annotated[int | None, s.Whole(1)] = None
    parts: Obj | None = None
    request: Annotated[Obj | None, s.REQUEST] = None


@builtin
@dataclass(frozen=True, slots=True)
class ModelCompleted(Event):
    """A model answered. `usage` is None if it is unknown, which is never zero."""

    TYPE: ClassVar[str] = "model.completed"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"response"})
    call_id: Name
    attempt: One
    response: Json
    usage: Usage | None = None
    cost: Cost | None = None
    response_id: str | None = None
    finish_reason: str | None = None
    request_id: str | None = None
    response_model: str | None = None
    first_token_at: Time | None = None
    price: Price | None = None
    origin: Annotated[Obj | None, s.ORIGIN] = None


@builtin
@dataclass(frozen=True, slots=True)
class ModelRecounted(Event):
    """The record of a run from elsewhere has grown, and tells another usage of a model call that had ended.

    `usage` takes the place of `was`, which is None if it was unknown. `was_model` is the model that was named before,
    if it was another. `price` and `was_price` are what both come to, by the same list of prices. An importer alone
    writes it.
    """

    TYPE: ClassVar[str] = "model.recounted"
    call_id: Name
    attempt: One
    model: Name
    usage: Usage
    was: Usage | None = None
    was_model: Name | None = None
    provider: str | None = None
    response_id: str | None = None
    finish_reason: str | None = None
    request_id: str | None = None
    price: Price | None = None
    was_price: Price | None = None


@builtin
@dataclass(frozen=True, slots=True)
class ModelFailed(Event):
    """A model call failed; it may have cost something all the same."""

    TYPE: ClassVar[str] = "model.failed"
    call_id: Name
    attempt: One
    error: Error
    transient: bool
    again: bool = False
    cut: bool = False
    retry_at: Time | None = None
    usage: Usage | None = None
    cost: Cost | None = None
    response_id: str | None = None
    request_id: str | None = None
    response_model: str | None = None
    first_token_at: Time | None = None
    price: Price | None = None


@builtin
@dataclass(frozen=True, slots=True)
class ToolStarted(Event):
    """The intent, before the effect: what will be done, under which key (= call_id), and by which policy."""

    TYPE: ClassVar[str] = "tool.started"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"args"})
    call_id: Name
    tool: Name
    args: Json
    policy: Annotated[str, s.OneOf(POLICIES)]
    read_only: bool
    on_unknown: Annotated[str, s.OneOf(ON_UNKNOWN)]
    attempt: One
    provider_call_id: str | None = None
    key_expires_at: Time | None = None
    timeout_s: float | None = None
    key_born: Annotated[Obj | None, s.BORN] = None
    own_key: bool = False


@builtin
@dataclass(frozen=True, slots=True)
class ToolDispatched(Event):
    """A relay of the outbox is about to act, under a claim that holds until a time, or the death of its process."""

    TYPE: ClassVar[str] = "tool.dispatched"
    call_id: Name
    claim: Name | None = None
    until: Time | None = None
    process: Annotated[Obj | None, s.PROCESS] = None
    key_expires_at: Time | None = None


@builtin
@dataclass(frozen=True, slots=True)
class ToolCompleted(Event):
    """The effect happened. `result_error` stands in for a result that couldn't be stored."""

    TYPE: ClassVar[str] = "tool.completed"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"result"})
    call_id: Name
    attempt: One
    result: Json = None
    result_error: Error | None = None
    cut: bool = False
    replayed: bool = False
    usage: Usage | None = None
    cost: Cost | None = None


@builtin
@dataclass(frozen=True, slots=True)
class ToolFailed(Event):
    """The tool raised. That proves nothing, unless `did_not_happen` says so of this attempt.

    `lost`: the agent wasn't told, and the call is judged as after a crash. `settled`: the agent was told that nobody
    knows, and that was the word about all attempts so far.
    """

    TYPE: ClassVar[str] = "tool.failed"
    call_id: Name
    attempt: One
    error: Error
    transient: bool
    did_not_happen: bool = False
    again: bool = False
    cut: bool = False
    retry_at: Time | None = None
    lost: bool = False
    settled: bool = False
    usage: Usage | None = None
    cost: Cost | None = None


@builtin
@dataclass(frozen=True, slots=True)
class ToolAdopted(Event):
    """The open step asks for what may have happened in another one: from now on that call is its own."""

    TYPE: ClassVar[str] = "tool.adopted"
    call_id: Name


@builtin
@dataclass(frozen=True, slots=True)
class ToolResolved(Event):
    """Somebody says what became of a call: a person, a hook, or (`late`) a fenced owner of its own attempt."""

    TYPE: ClassVar[str] = "tool.resolved"
    BLOBS: ClassVar[frozenset[str]] = frozenset({"result"})
    call_id: Name
    attempt: One
    outcome: Annotated[str, s.OneOf(OUTCOMES)]
    result: Json = None
    late: bool = False
    note: str | None = None
