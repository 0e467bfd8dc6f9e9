"""Lists of prices: one's own, `prices=` of a journal, and that of the package genai-prices, the extra `prices`.

A price is looked up when a call ends, and stored with it. What is looked up is the list that came with the package: if
the process keeps a newer one in it, that is its own affair. Only what a list says of exactly this model, at this time
and for these terms is a price; what would be a guess is told in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from runjournal.log import events as e
from runjournal.log.base import Event
from runjournal.log.clock import parse_timestamp
from runjournal.log.errors import InvalidArgument
from runjournal.log.limits import money_digits_max, name_chars_max, prices_held_max
from runjournal.projections.pricing import RATES, NoRate, amount_of, context_tokens, money_text
from runjournal.projections.usage import is_whole

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice, Provider

OwnPrices: TypeAlias = Mapping[str, Mapping[str, Any]]
"""{model, or provider/model: {counter: money for a million tokens, currency?: "USD"}}."""

_KEYS: Final = {
    "input_mtok": "input", "output_mtok": "output", "cache_read_mtok": "cache_read", "cache_write_mtok": "cache_write",
    "cache_write_1h_mtok": "cache_write_1h", "output_reasoning_mtok": "reasoning", "input_audio_mtok": "input_audio",
    "output_audio_mtok": "output_audio", "web_searches_kcount": "web_searches", "requests_kcount": "requests",
}  # fmt: skip
_MAKERS: Final = (
    (re.compile(r"claude-"), "anthropic"),
    (re.compile(r"gpt-|chatgpt-|o[134](-|$)|text-embedding-"), "openai"),
    (re.compile(r"gemini-"), "google"),
    (re.compile(r"grok-"), "x-ai"),
    (re.compile(r"deepseek-"), "deepseek"),
    (re.compile(r"(mistral|ministral|codestral|magistral|devstral|pixtral)-"), "mistral"),
)
"""Whose list is asked for a model that no provider is named of: its maker's."""
_PROVIDERS: Final = {
    "x_ai": "x-ai", "xai": "x-ai", "aws.bedrock": "aws", "bedrock": "aws", "amazon-bedrock": "aws",
    "gcp.gemini": "google", "gcp.vertex_ai": "google", "gcp.gen_ai": "google", "gemini": "google",
    "vertex_ai": "google", "azure.ai.openai": "azure", "azure.ai.inference": "azure", "mistral_ai": "mistral",
    "together_ai": "together",
}  # fmt: skip
"""What OpenTelemetry and clients call providers, and what the list calls them."""
_SUFFIX: Final = re.compile(r"(-v\d+(:\d+)?|[-@]20\d\d-?[01]\d-?[0-3]\d|-\d{4}|-00\d|-latest|:\d+)$")
"""What a name of a model may have behind it and still be the same model: dates and revisions."""
_TERMS: Final = ("service_tier", "speed", "region", "batch")
"""On what terms a request was served, if not as usual."""
_PREFIX: Final = re.compile(r"^(models/|publishers/[^/]+/models/)")
"""What Google writes before the name of a model."""


class _Tiers(NamedTuple):
    """A rate that goes by how much the model was given to read: [(more than so many tokens, rate)], ascending."""

    base: Decimal
    above: tuple[tuple[int, Decimal], ...] = ()

    def at(self, tokens: int) -> Decimal:
        return next((rate for start, rate in reversed(self.above) if tokens > start), self.base)


class ListedModel(NamedTuple):
    """What a list says of a model under some terms: rates; or `why` it says none that would be no guess."""

    model: str
    version: str
    currency: str = "USD"
    rates: Mapping[str, _Tiers] = {}
    why: str = ""


class PriceList:
    """The prices that a journal goes by: `own` ones first, then those of the extra `prices`, if it is installed."""

    def __init__(self, own: OwnPrices | None = None) -> None:
        self._own = {name: _own(name, rates) for name, rates in (own or {}).items()}
        self._held: dict[tuple[Any, ...], ListedModel | None] = {}

    def price(
        self, provider: str | None, models: Sequence[str | None], at: datetime, usage: Mapping[str, Any] | None,
        source: str = "estimated",
    ) -> dict[str, Any] | None:  # fmt: skip
        """Return what a usage costs, as an event's `price`; None if nobody has a price for it or it isn't whole.

        `models` are names of the model, the one that answered before the one that was asked; the first that a list
        knows counts. If a list knows the model and has no price for what was used, the price says `why`.
        """
        if usage is None or not is_whole(usage):
            return None
        found = next((f for name in models if name and (f := self.find(provider, name, at, usage))), None)
        if found is None:
            return None
        told: dict[str, Any] = {
            "source": source,
            "pricing_version": found.version,
            "model": found.model[:name_chars_max],
            "currency": found.currency,
        }
        if found.why:
            return told | {"why": found.why}
        tokens = context_tokens(usage)
        rates = {name: rate.at(tokens) for name, rate in found.rates.items()}
        try:
            amount = amount_of(usage, rates)
        except NoRate as missing:
            return told | {"why": str(missing)}
        stored = {name: format(rate, "f") for name, rate in rates.items()}
        return told | {"amount": money_text(amount), "rates": stored}

    def find(
        self, provider: str | None, model: str, at: datetime, usage: Mapping[str, Any] | None = None
    ) -> ListedModel | None:
        """Return what a list says of a model at a time, on the terms of a usage; None if none knows it."""
        for name in ([f"{provider}/{model}"] if provider else []) + [model]:
            if name in self._own:
                return self._own[name]
        terms = tuple((name, (usage or {})[name]) for name in _TERMS if name in (usage or {}))
        key = (provider, model, at.astimezone(UTC).replace(second=0, microsecond=0), terms)
        day = (provider, model, key[2].date(), terms)
        for held in (day, key):
            if held in self._held:
                return self._held[held]
        if len(self._held) >= prices_held_max:
            self._held.clear()
        found, hourly = _listed(provider, model, at, dict(terms))
        self._held[key if hourly else day] = found
        return found


LIST: Final = PriceList()
"""The prices that anybody can know, for what was recorded elsewhere."""


def listed(events: Iterable[Event], provider: str, at: str | None) -> Iterator[Event]:
    """Yield the events of another program's calls of models, with list prices: nobody knows what was billed."""
    model = None
    for event in events:
        if isinstance(event, e.ModelStarted):
            model = event.model
        if isinstance(event, e.ModelCompleted) and event.usage is not None and at is not None:
            price = LIST.price(provider, (model,), parse_timestamp(at), event.usage, "list")
            yield replace(event, price=price)
        elif isinstance(event, e.ModelRecounted) and at is not None:
            now = parse_timestamp(at)
            was = LIST.price(provider, (event.was_model or event.model,), now, event.was, "list") if event.was else None
            yield replace(event, price=LIST.price(provider, (event.model,), now, event.usage, "list"), was_price=was)
        else:
            yield event


def _own(name: str, rates: Any) -> ListedModel:
    """Return somebody's own prices of a model. Raises InvalidArgument."""
    if not isinstance(rates, Mapping):
        raise InvalidArgument(f"prices[{name!r}]: expected {{counter: money for a million tokens}}, got {rates!r:.60}")
    told = dict(cast("Mapping[str, Any]", rates))
    currency = told.pop("currency", "USD")
    if unknown := sorted(set(told) - set(RATES)):
        raise InvalidArgument(f"prices[{name!r}]: unknown {', '.join(unknown)}; there are {', '.join(RATES)}, currency")
    if not told or not isinstance(currency, str) or not currency:
        raise InvalidArgument(f"prices[{name!r}]: expected one rate or more, of {', '.join(RATES)}, and a currency")
    return ListedModel(name, "own", currency, {each: _Tiers(_rate(name, each, rate)) for each, rate in told.items()})


def _rate(name: str, counter: str, told: Any) -> Decimal:
    try:
        rate = Decimal(repr(told) if isinstance(told, float) else told)
    except (InvalidOperation, TypeError, ValueError):
        rate = Decimal("NaN")
    exact = rate.is_finite() and rate >= 0 and money_text(rate.scaleb(-6)) == _plain(rate.scaleb(-6))
    if isinstance(told, bool) or not exact:
        raise InvalidArgument(
            f"prices[{name!r}][{counter!r}]: expected money for a million tokens, such as '0.30', with at most "
            f"{money_digits_max - 6} decimals, got {told!r:.40}"
        )
    return rate


def _plain(amount: Decimal) -> str:
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


# The list of genai-prices.


@cache
def _bundled() -> tuple[DataSnapshot, str] | None:
    """Return the list that came with the package, and its version; None without the extra."""
    try:
        from genai_prices import __version__
        from genai_prices.data_snapshot import DataSnapshot as Snapshot
    except ImportError:
        return None
    data = import_module("genai_prices.data")  # by name: type checkers take minutes for its 30,000 lines
    return Snapshot(providers=data.providers, from_auto_update=False), f"genai-prices {__version__}"


def has_list() -> bool:
    """Return whether the extra `prices` is installed."""
    return _bundled() is not None


def _listed(provider: str | None, model: str, at: datetime, terms: dict[str, Any]) -> tuple[ListedModel | None, bool]:
    """Return what the package's list says of a model, and whether that goes by the time of day."""
    name = (provider or "").lower().strip()
    maker = next((maker for pattern, maker in _MAKERS if pattern.match(model.lower())), "")
    if (not name and not maker and "/" not in model) or (bundled := _bundled()) is None:
        return None, False
    snapshot, version = bundled
    model = _PREFIX.sub("", model)
    there = {each.id: each for each in snapshot.providers}
    first, _, rest = model.partition("/")
    if name in ("", "litellm") and rest and _PROVIDERS.get(first.lower(), first.lower()) in there:
        name, model = first.lower(), rest
    of = there.get(_PROVIDERS.get(name, name) if name not in ("", "litellm") else maker)
    found = of.find_model(model, all_providers=snapshot.providers) if of is not None else None
    if of is None or found is None:
        return None, False
    label = f"{of.id}/{found.id}"[:name_chars_max]
    if not _names(found, model):
        why = f"{model} only looks like {found.id}: name it in prices= of Journal.open"
        return ListedModel(label, version, why=why), False
    hourly = any(hasattr(each.constraint, "start_time") for each in _conditions(found))
    context, unpriced = _context(found, of, at, terms)
    if unpriced:
        return ListedModel(label, version, why=f"{label} has no price for {unpriced}"), hourly
    return ListedModel(label, version, rates=_rates(found.get_prices(at, context or None))), hourly


def _names(found: ModelInfo, model: str) -> bool:
    """Return whether an entry of the list names a model, but for a date or a revision behind it."""
    names = {found.id.lower(), *(text.lower() for text in _literals(found.match))}
    name = model.lower()
    while name not in names:
        shorter = _SUFFIX.sub("", name)
        if shorter == name:
            return False
        name = shorter
    return True


def _literals(match: Any) -> Iterator[str]:
    for key in ("equals", "starts_with", "ends_with", "contains"):
        if hasattr(match, key):
            yield getattr(match, key)
    for key in ("or_", "and_"):
        for each in getattr(match, key, ()):
            yield from _literals(each)


def _conditions(found: ModelInfo) -> Iterator[Any]:
    yield from found.prices if isinstance(found.prices, list) else ()
    yield from found.price_variants or ()


def _context(found: ModelInfo, of: Provider, at: datetime, terms: dict[str, Any]) -> tuple[dict[str, str], str]:
    """Return the terms in the list's words; and those that it has no price for at that time."""
    context = {name: str(word) for name, word in terms.items() if name != "batch"}
    if terms.get("batch"):
        context["processing"] = "batch"
    of_its_own = any(found is each for each in of.models)
    priced = [
        variant.when
        for variant in (found.price_variants or () if of_its_own else ())
        if variant.constraint is None or variant.constraint.active(at)
    ]
    unpriced = [f"{name} {word}" for name, word in context.items() if {name: word} not in priced]
    together = " with ".join(f"{name} {word}" for name, word in context.items()) if len(context) > 1 else ""
    return context, ", ".join(unpriced) or together


def _rates(prices: ModelPrice) -> dict[str, _Tiers]:
    found: dict[str, _Tiers] = {}
    for key, name in _KEYS.items():
        price = getattr(prices, key)
        if isinstance(price, Decimal):
            found[name] = _Tiers(price)
        elif price is not None:
            found[name] = _Tiers(price.base, tuple((tier.start, tier.price) for tier in price.tiers))
    return found
