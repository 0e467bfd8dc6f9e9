"""What a request costs by a list of prices: rates times counters, exactly, and what can't be priced said as such.

Rates are {counter: money} for a million tokens; `web_searches` and `requests` are for a thousand. They stand in the
event beside the amount that they came to (`price`), so whoever reads it needs no list, and can do the sum again. An
amount that somebody reported or billed is the event's `cost`: it counts, and the computed one stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from math import isfinite
from typing import Any, Final, TypeAlias, cast

from runjournal.log.limits import money_digits_max

from .costs import MONEY
from .usage import PARTS, number, told_by

Rates: TypeAlias = Mapping[str, Decimal]

PER_MILLION: Final = ("input", "output", "cache_read", "cache_write", *PARTS)
PER_THOUSAND: Final = ("web_searches", "requests")
RATES: Final = (*PER_MILLION, *PER_THOUSAND)
"""What a list may have a rate for."""


class NoRate(Exception):
    """Something that was used has no rate; says what."""


def amount_of(usage: Mapping[str, Any], rates: Rates) -> Decimal:
    """Return what a whole usage comes to, exactly. Raises NoRate, which names the counters without a rate."""
    counts = _leaves(usage, rates)
    if missing := [f"{count} {name}" for name, count in counts.items() if count and name not in rates]:
        raise NoRate(f"there is no rate for {', '.join(missing)}")
    total = Decimal(0)
    for name, count in counts.items():
        if count:
            power = -6 if name in PER_MILLION else -3
            total = MONEY.add(total, MONEY.scaleb(MONEY.multiply(rates[name], count), power))
    return total


def money_text(amount: Decimal) -> str:
    """Return an amount as it is stored, with as many decimals as it has, up to those that are kept."""
    kept = Decimal(1).scaleb(-money_digits_max)
    if cast("int", amount.as_tuple().exponent) < -money_digits_max:
        amount = MONEY.quantize(amount, kept)
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def context_tokens(usage: Mapping[str, Any]) -> int:
    """Return how much a model was given to read, by which some prices go in tiers."""
    return sum(usage.get(name, 0) for name in ("input", "cache_read", "cache_write"))


def _leaves(usage: Mapping[str, Any], rates: Rates) -> dict[str, int]:
    """Return the counters so that none is in another one; a part without a rate of its own is priced with its whole.

    Tokens that were cached for an hour, and spoken ones, always cost something else: they need rates.
    """
    counts: dict[str, int] = {name: usage.get(name, 0) for name in ("input", "output", "cache_read", "cache_write")}
    for part, whole in PARTS.items():
        if part == "reasoning" and part not in rates:
            continue
        if part in usage.get("unknown", ()) and (part in rates or part == "cache_write_1h") and counts[whole]:
            raise NoRate(f"nobody knows how much of {whole} is {part}")
        count = usage.get(part, 0)
        if part == "input_audio" and count and counts["cache_read"]:
            raise NoRate("nobody knows how many of the cached tokens were spoken")
        counts[whole] -= count
        counts[part] = count
    counts["web_searches"] = usage.get("web_searches", 0)
    counts["requests"] = 1 if "requests" in rates else 0
    return counts


def reported_by(answer: Any) -> dict[str, Any] | None:
    """Return the amount that an answer tells, {amount, currency, source?}; None if it tells none.

    The journal's own word for it is `cost`: {amount, currency}. xAI bills ticks, OpenRouter and Perplexity dollars in
    the usage, LiteLLM's proxy dollars beside it.

    https://docs.x.ai/developers/cost-tracking
    https://openrouter.ai/docs/use-cases/usage-accounting
    https://docs.litellm.ai/docs/completion/token_usage
    """
    if not isinstance(answer, Mapping):
        return None
    about = cast("Mapping[str, Any]", answer)
    if isinstance(about.get("cost"), Mapping):
        return dict(about["cost"])
    told: Any = told_by(about)
    usage: Mapping[str, Any] = cast("Mapping[str, Any]", told) if isinstance(told, Mapping) else {}
    if (ticks := number(usage.get("cost_in_usd_ticks"))) is not None:
        return _usd(MONEY.scaleb(Decimal(ticks), -10))  # 10^10 ticks are a dollar
    cost = usage.get("cost")
    if isinstance(cost, Mapping):
        cost = cast("Mapping[str, Any]", cost).get("total_cost")
    hidden = about.get("_hidden_params")
    if cost is None and isinstance(hidden, Mapping):
        cost = cast("Mapping[str, Any]", hidden).get("response_cost")
    cost = about.get("response_cost") if cost is None else cost
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not isfinite(cost) or cost < 0:
        return None
    return _usd(Decimal(repr(cost)))


def _usd(amount: Decimal) -> dict[str, Any]:
    return {"amount": money_text(amount), "currency": "USD"}
