"""What a run can call: a tool or a model, as the core sees them; how each is written down."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, Protocol, TypeAlias, TypedDict, cast

from runjournal.log import events as e
from runjournal.log.base import Event, Json
from runjournal.log.clock import Clock, timestamp
from runjournal.log.codec import dumps, plain
from runjournal.log.errors import InvalidArgument, Unstorable
from runjournal.log.limits import (
    money_digits_max,
    name_chars_max,
    usage_bytes_max,
)
from runjournal.log.shapes import COST, USAGE, Shape
from runjournal.projections.pricing import money_text, reported_by
from runjournal.projections.usage import measure, told_by

from .failures import Failed, ToolUsesRun, Transient, check_name, error_of, said
from .requests import AskedRequest, copied
from .retry import Retry, checked
from .tools import Tool, Tx, Word, known
from .verdict import ToolToday

Error = dict[str, Any]
PriceOf: TypeAlias = Callable[[Mapping[str, Any] | None, tuple[str | None, ...]], dict[str, Any] | None]


class Target(Protocol):
    """Something that a run can call: a tool or a model."""

    name: str
    policy: str
    on_unknown: str
    timeout_s: float | None
    into: Callable[[Json], Any] | None
    retry: Retry | None

    @property
    def is_async(self) -> bool:
        """Return whether its body is a coroutine function."""
        ...

    @property
    def has_hook(self) -> bool:
        """Return whether `word` can say what became of a call."""
        ...

    def identity(self, args: dict[str, Json]) -> dict[str, Json]:
        """Return what of the args the id of a call is made of, and what is compared of two calls."""
        ...

    def started(self, call_id: str, args: Json, attempt: int, clock: Clock) -> Event:
        """Return the event of the intent."""
        ...

    def lend(self, args: dict[str, Json]) -> dict[str, Json]:
        """Return a copy of the args for a body, which may do with it as it likes."""
        ...

    def take_back(self, args: dict[str, Json]) -> None:
        """Take back what a body was lent of these args: it has ended."""
        ...

    def invoke(self, args: Json, key: str, tx: Tx | None = None) -> Any:
        """Run the body, if it is transactional in `tx`; return its result, or its coroutine."""
        ...

    def completed(self, call_id: str, attempt: int, value: Any, *, cut: bool) -> tuple[Event, Any]:
        """Return the event of the outcome, and what is wrong with the answer if it is to be tried again."""
        ...

    def failed(
        self, call_id: str, attempt: int, error: Error, *,
        transient: bool = False, did_not_happen: bool = False, again: bool = False, cut: bool = False,
        retry_at: str | None = None,
    ) -> Event:  # fmt: skip
        """Return the event of the failure. The flags are those of the event."""
        ...

    def word(self, args: Json, key: str) -> Word | None:
        """Return what its hook says; None if it has none, or doesn't know."""
        ...


class ToolTarget:
    """A tool, as the core calls it."""

    def __init__(self, tool: Tool[..., Any], *, provider_call_id: str | None = None) -> None:
        self.tool = tool
        self.provider_call_id = provider_call_id  # in the message of the model that asks for it
        self.name, self.policy, self.on_unknown = tool.name, tool.policy, tool.on_unknown
        self.timeout_s, self.into, self.is_async = tool.timeout_s, tool.into, tool.is_async
        self.retry = tool.retry

    @property
    def has_hook(self) -> bool:
        return self.tool.reconcile is not None

    def identity(self, args: dict[str, Json]) -> dict[str, Json]:
        """Return them all."""
        return args

    def lend(self, args: dict[str, Json]) -> dict[str, Json]:
        lent: dict[str, Json] = copied(args)
        return lent

    def take_back(self, args: dict[str, Json]) -> None:
        """Do nothing: it was a copy of its own."""

    def started(self, call_id: str, args: Json, attempt: int, clock: Clock) -> Event:
        expires = None
        if self.policy == "keyed":
            expires = timestamp(clock.now() + timedelta(seconds=self.tool.key_ttl_s))
        return e.ToolStarted(
            call_id, self.name, args, self.policy, self.tool.read_only, self.on_unknown, attempt,
            provider_call_id=self.provider_call_id, key_expires_at=expires, timeout_s=self.timeout_s,
            own_key=bool(self.tool.key),
        )  # fmt: skip

    def invoke(self, args: Json, key: str, tx: Tx | None = None) -> Any:
        return self.tool.invoke(args, key, tx)

    def completed(self, call_id: str, attempt: int, value: Any, *, cut: bool) -> tuple[Event, BaseException | None]:
        """Return the event of the outcome. If the result can't be stored, the event says so in its place.

        Of a tool that may be called again that is a failure, which the agent is told of: nothing is lost by it.
        """
        try:
            return e.ToolCompleted(call_id, attempt, plain(value), cut=cut), None
        except Exception as error:  # noqa: BLE001 - whatever a value does when it is looked at: it has happened
            why = error_of(error)[0]
            told = Failed(why["type"], unstored(why)) if self.policy == "idempotent" else None
            return e.ToolCompleted(call_id, attempt, result_error=why, cut=cut), told

    def failed(
        self, call_id: str, attempt: int, error: Error, *,
        transient: bool = False, did_not_happen: bool = False, again: bool = False, cut: bool = False,
        retry_at: str | None = None,
    ) -> Event:  # fmt: skip
        return e.ToolFailed(call_id, attempt, error, transient, did_not_happen, again, cut, retry_at)

    def word(self, args: Json, key: str) -> Word | None:
        """Return what its hook says. One that raises, doesn't know, or returns anything else has said nothing."""
        if self.tool.reconcile is None:
            return None
        try:
            word: Any = self.tool.reconcile(copy.deepcopy(args), key)  # whatever it says
            if word and word[0] == "happened":
                return "happened", plain(word[1] if len(word) > 1 else None)
            if word and word[0] == "did_not_happen":
                return "did_not_happen", None
        except ToolUsesRun:
            raise
        except Exception:  # noqa: BLE001 - it says unknown, by rule
            return None
        return None


def unstored(error: Error) -> str:
    """Return what the agent is told of a result that can't be stored, of a tool that may be called again."""
    why = str(error["message"]).removesuffix("; nothing was written")
    return f"the result can't be stored: {why}. Let the tool return plain JSON values"


def today(target: Target, *, hook: bool = True) -> ToolToday:
    """Return what the verdict asks of a tool or a model; `hook`: whether a hook, if it has one, can know now."""
    return ToolToday(target.policy, target.on_unknown, target.has_hook and hook)


def tool_today(name: str) -> ToolToday | None:
    """Return the same for a tool of this process, by its name; None if no tool, or more than one, has the name."""
    tool = known().get(name)
    return None if tool is None else today(ToolTarget(tool))


class ModelOptions(TypedDict, total=False):
    """What `run.model` takes beside the name, the request and `call`.

    `check(answer)` raises or returns False for an answer that can't be used: the model is asked again, and paid again.
    `into(answer)` turns the recorded JSON into the value that the agent gets. `usage(answer)` returns the tokens, as
    the provider tells them or as {input, output, cache_read, cache_write}, and `cost(answer)` the price, {amount,
    currency}, where the answer doesn't say them as `usage` and `cost`; None is unknown. `timeout_s` bounds the call in
    seconds. `provider` is the provider's name: its usage is read by its rule. `fingerprint` is for the log. `retry`
    says how often it is asked again after a failure that may pass, where the journal's own `retry` doesn't fit.
    """

    check: Callable[[Any], object] | None
    provider: str | None
    timeout_s: float | None
    into: Callable[[Any], Any] | None
    usage: Callable[[Any], Mapping[str, Any] | None] | None
    cost: Callable[[Any], Mapping[str, Any] | None] | None
    fingerprint: str | None
    retry: Retry | None


class ModelTarget:
    """A model, as the core calls it. `call(request)` asks it.

    `check(answer)` raises or returns False for an answer that can't be used. `usage(answer)` returns its tokens in a
    provider's words or the journal's, by default what the answer has as `usage`; `projections/usage.py` reads them.
    `cost(answer)` returns its price, {amount, currency} or {amount, currency, source}, by default what `cost_of` finds.
    None is unknown. If one of these raises, or returns another shape, that is unknown too: an answer that was paid for
    must not get lost by it.
    """

    policy = "model"
    on_unknown = "fail"
    has_hook = False

    def __init__(
        self,
        name: str,
        call: Callable[[Json], Any],
        *,
        check: Callable[[Json], object] | None = None,
        provider: str | None = None,
        timeout_s: float | None = None,
        into: Callable[[Json], Any] | None = None,
        usage: Callable[[Json], Mapping[str, Any] | None] | None = None,
        cost: Callable[[Json], Mapping[str, Any] | None] | None = None,
        fingerprint: str | None = None,
        retry: Retry | None = None,
    ) -> None:
        for given, function in {"check": check, "into": into, "usage": usage, "cost": cost}.items():
            if function is not None and inspect.iscoroutinefunction(function):
                raise InvalidArgument(f"{name}: {given}= is a coroutine function: make it a plain one, it only looks")
        for named, about in {"model": name, "provider": provider, "fingerprint": fingerprint}.items():
            if about is not None:
                check_name(about, named)
        self.name = name
        self.call = call
        self.check = check
        self.provider = provider
        self.timeout_s = timeout_s
        self.into = into
        self.usage = usage
        self.cost = cost or cost_of
        self.fingerprint = fingerprint
        self.retry = checked(retry, name)
        self.price_of: PriceOf = _nothing  # of a usage, by the names of the model: set by who has a list

    @property
    def is_async(self) -> bool:
        """Return whether `call` is a coroutine function."""
        return inspect.iscoroutinefunction(self.call)

    def identity(self, args: dict[str, Json]) -> dict[str, Json]:
        """Return the hash of the request, as long as that may be."""
        request: AskedRequest = args["request"]
        return {"request": request.hash}

    def lend(self, args: dict[str, Json]) -> dict[str, Json]:
        request: AskedRequest = args["request"]
        return {"request": request.lend()}

    def take_back(self, args: dict[str, Json]) -> None:
        request: AskedRequest = args["request"]
        request.take_back()

    def started(self, call_id: str, args: Json, attempt: int, clock: Clock) -> Event:
        """Return the event of the intent.

        It holds what is new in the request behind an earlier one, or digests of its parts where requests aren't stored.
        """
        asked: AskedRequest = args["request"]
        request, parts = asked.told()
        return e.ModelStarted(
            call_id, self.name, asked.hash, attempt, self.provider, self.fingerprint, parts=parts, request=request
        )

    def invoke(self, args: Json, key: str, tx: Tx | None = None) -> Any:
        """Ask the model."""
        return self.call(args["request"])

    def completed(self, call_id: str, attempt: int, value: Any, *, cut: bool) -> tuple[Event, BaseException | None]:
        """Return the answer with its usage; or a failure, if the check rejects it, which costs the same."""
        try:
            answer = storable(value)
        except ToolUsesRun:
            raise
        except Exception as error:  # noqa: BLE001 - whatever an answer does when it is looked at: it was paid for
            why = error_of(error)[0]
            told = Failed(why["type"], f"the answer can't be stored: {why['message']}")
            usage, cost, price = self._spent(value)
            return e.ModelCompleted(call_id, attempt, None, usage, cost, price=price), told
        usage, cost, price = self._spent(answer)
        try:
            if self.check is not None and self.check(answer) is False:
                raise Transient("the answer was rejected")  # noqa: TRY301 - as if the check had raised it
        except ToolUsesRun:
            raise
        except Exception as error:  # noqa: BLE001 - a check says no by raising
            stored, _ = error_of(error)
            return e.ModelCompleted(call_id, attempt, answer, usage, cost, price=price), Failed(
                stored["type"], stored["message"], transient=True
            )
        about: Mapping[str, Any] = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
        return e.ModelCompleted(
            call_id, attempt, answer, usage, cost,
            response_id=_short(about.get("id")),
            finish_reason=_short(about.get("stop_reason") or about.get("finish_reason")),
            request_id=_request_id(value), response_model=_short(about.get("model")), price=price,
        ), None  # fmt: skip

    def failed(
        self, call_id: str, attempt: int, error: Error, *,
        transient: bool = False, did_not_happen: bool = False, again: bool = False, cut: bool = False,
        retry_at: str | None = None,
    ) -> Event:  # fmt: skip
        return e.ModelFailed(call_id, attempt, error, transient, again, cut, retry_at)

    def spent(self, event: e.ModelFailed, error: BaseException) -> e.ModelFailed:
        """Return a failure with what it has cost all the same, if its error tells a `usage` or a `cost`."""
        try:
            told = {name: value for name in ("usage", "cost") if (value := getattr(error, name, None)) is not None}
        except Exception:  # noqa: BLE001 - an error of a client's may do anything: unknown
            told = {}
        event = replace(event, request_id=_short(said(error, "request_id")))
        if not told:
            return event
        usage, cost, price = self._spent(told)
        return replace(event, usage=usage, cost=cost, price=price)

    def _spent(self, answer: Any) -> tuple[dict[str, Any] | None, dict[str, Any] | None, dict[str, Any] | None]:
        """Return its usage, what somebody says that it cost, and its price by a list, each None if that is unknown."""
        told = self.usage or told_by
        usage = _said(
            lambda value: measure(told(value), self.provider, value), answer, USAGE, lent=self.usage is not None
        )
        cost = _said(lambda value: _money(self.cost(value)), answer, COST, lent=self.cost is not cost_of)
        model = cast("dict[str, Any]", answer).get("model") if isinstance(answer, dict) else None
        return usage, cost, self.price_of(usage, (_short(model), self.name))

    def word(self, args: Json, key: str) -> Word | None:
        """Return None: a model has no hook."""
        return None


def storable(value: Any) -> Json:
    """Return a model's answer as JSON: as it is, or as the objects of the providers' clients dump it.

    Raises Unstorable.
    """
    try:
        return plain(value)
    except Unstorable:
        dump = getattr(value, "model_dump", None) or getattr(value, "to_dict", None)
        if dump is None:
            raise
        named = "mode" in inspect.signature(dump).parameters
        return plain(dump(mode="json") if named else dump())


def _request_id(answer: object) -> str | None:
    """Return the id by which a provider knows a request: what its client's objects have beside the answer itself."""
    told = (
        cast("dict[str, Any]", answer).get("_request_id") if isinstance(answer, dict) else said(answer, "_request_id")
    )
    return _short(told)


def _short(value: Json) -> str | None:
    """A text of a provider's that is one to look at; a longer one stands in the answer."""
    return value if isinstance(value, str) and len(value) <= name_chars_max else None


def _said(
    say: Callable[[Json], Mapping[str, Any] | None], answer: Json, shape: Shape, *, lent: bool
) -> dict[str, Any] | None:
    """Return what a function says of an answer, if that has this shape; else it is unknown.

    One of the user's, to whom the answer is `lent`, gets a copy: it may change what it is passed.
    """
    try:
        said = say(copy.deepcopy(answer) if lent else answer)
        found = None if said is None else _plain(dict(said))
        if found is not None:
            shape.check(found, "$")
            if len(dumps(found)) > usage_bytes_max:
                found.pop("raw", None)
                found = found if len(dumps(found)) <= usage_bytes_max else None
    except ToolUsesRun:
        raise
    except Exception:  # noqa: BLE001 - by rule: unknown, which is counted
        return None
    return found


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    """Return it as JSON; what can't be JSON of a provider's own words is left out, the counters stay."""
    try:
        stored: dict[str, Any] = plain(found)
    except Unstorable:
        stored = plain({name: value for name, value in found.items() if name != "raw"})
    return stored


def _money(said: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a cost as it is stored: the amount is decimal text, never a float's digits."""
    if said is None:
        return None
    amount = said["amount"]
    if isinstance(amount, str):
        text = amount
    else:
        number = Decimal(repr(amount) if isinstance(amount, float) else amount)
        text = money_text(number) if abs(number.adjusted()) <= money_digits_max else str(number)
    return {"source": "reported", **said, "amount": text}


def cost_of(answer: Json) -> Mapping[str, Any] | None:
    """Return the price that an answer tells, {amount, currency, source?}; None if it tells nothing."""
    return reported_by(answer)


def _nothing(usage: Mapping[str, Any] | None, models: tuple[str | None, ...]) -> None:
    """Return no price."""
