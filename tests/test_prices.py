"""What requests cost by lists of prices: right to the last digit, or told as unknown."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from genai_prices import Usage
from genai_prices.data import providers
from genai_prices.data_snapshot import DataSnapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from runjournal.engine import price_list
from runjournal.engine.price_list import PriceList
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.errors import InvalidArgument
from runjournal.log.store import Bill
from runjournal.projections.bills import status_of
from runjournal.projections.pricing import amount_of, reported_by
from runjournal.projections.usage import measure

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
SONNET = {
    "input_tokens": 10, "output_tokens": 50, "cache_read_input_tokens": 5000, "cache_creation_input_tokens": 1000,
    "cache_creation": {"ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 600},
}  # fmt: skip
CHAT = {"prompt_tokens": 1_000_000, "completion_tokens": 1_000_000}
OWN: dict[str, Any] = {"m": {"input": "3", "output": 15, "cache_read": 0.3}, "free": {"input": 0, "output": 0}}


def priced(provider, model, told, at=NOW, own=None):
    """The price of a usage in a provider's words."""
    return PriceList(own).price(provider, (model,), at, measure(told, provider)) or {}


def test_one_hour_writes_have_a_price_of_their_own():
    """The example: $0.00738 on claude-sonnet-4-5; were all of it written for five minutes, it would be $0.00603."""
    price = priced("anthropic", "claude-sonnet-4-5", SONNET)
    assert ("0.00738", "USD", "anthropic/claude-sonnet-4-5") == (price["amount"], price["currency"], price["model"])
    short = SONNET | {"cache_creation": {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 0}}
    assert "0.00603" == priced("anthropic", "claude-sonnet-4-5", short)["amount"]
    rates = {name: Decimal(rate) for name, rate in price["rates"].items()}
    assert Decimal("0.00738") == amount_of(measure(SONNET) or {}, rates), "the stored rates do the sum again"


def test_a_price_is_that_of_the_day():
    """A million tokens in and out of o3, by one list: the day before its price changed, and the day itself."""
    prices, usage = PriceList(), measure(CHAT)
    days = [datetime(2025, 6, day, 12, tzinfo=UTC) for day in (9, 10)]
    assert ["50", "10"] == [(prices.price("openai", ("o3",), day, usage) or {})["amount"] for day in days]


LEDGER = [  # by hand: provider, model, what was told, dollars
    ("anthropic", "claude-sonnet-4-5-20250929", {"input_tokens": 1000, "output_tokens": 200}, "0.006"),
    ("anthropic", "claude-sonnet-4-5", {"input_tokens": 200_001, "output_tokens": 1000}, "1.222506"),
    ("anthropic", "claude-sonnet-4-5", {"input_tokens": 200_000, "output_tokens": 1000}, "0.615"),
    ("anthropic", "claude-sonnet-4-5", {"input_tokens": 1000, "output_tokens": 200, "service_tier": "batch"}, "0.003"),
    ("anthropic", "claude-sonnet-4-5",
     {"input_tokens": 0, "output_tokens": 0, "server_tool_use": {"web_search_requests": 3}}, "0.03"),
    (None, "claude-opus-4-6", {"input_tokens": 1000, "output_tokens": 1000}, "0.03"),
    ("openai", "o3", {"prompt_tokens": 1000, "completion_tokens": 500}, "0.006"),
    ("openai", "o3", {"prompt_tokens": 1000, "completion_tokens": 500,
                      "prompt_tokens_details": {"cached_tokens": 600}}, "0.0051"),
    ("openai", "gpt-5", {"input_tokens": 1000, "input_tokens_details": {"cached_tokens": 1000}, "output_tokens": 0},
     "0.000125"),
    ("openai", "gpt-5", {"prompt_tokens": 1000, "completion_tokens": 100, "service_tier": "flex"}, "0.001125"),
    ("openai", "gpt-5-2025-08-07", {"prompt_tokens": 1000, "completion_tokens": 100, "service_tier": "default"},
     "0.00225"),
    ("google", "gemini-2.5-pro", {"promptTokenCount": 1000, "candidatesTokenCount": 100, "thoughtsTokenCount": 400},
     "0.00625"),
    ("google", "models/gemini-2.5-pro", {"promptTokenCount": 200_001, "cachedContentTokenCount": 1,
                                         "candidatesTokenCount": 0}, "0.50000025"),
    ("deepseek", "deepseek-chat", {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_cache_hit_tokens": 400},
     "0.0003"),
    ("azure", "gpt-5", {"prompt_tokens": 1000, "completion_tokens": 100}, "0.00225"),
    ("litellm", "anthropic/claude-sonnet-4-5",
     {"prompt_tokens": 98_805, "completion_tokens": 5_120, "total_tokens": 103_925, "cache_read_input_tokens": 66_360,
      "cache_creation_input_tokens": 32_435}, "0.21836925"),
]  # fmt: skip


@pytest.mark.parametrize(("provider", "model", "told", "dollars"), LEDGER)
def test_a_ledger_that_was_computed_by_hand(provider, model, told, dollars):
    """Rows over six providers: dates in names, tiers by size, batches, caches, thoughts, searches."""
    assert dollars == priced(provider, model, told).get("amount")


def test_the_ledger_by_hand_adds_up():
    """The sum of the rows is the sum of the hand-computed amounts."""
    amounts = [Decimal(priced(*row[:3])["amount"]) for row in LEDGER]
    assert sum(Decimal(row[3]) for row in LEDGER) == sum(amounts)


@pytest.mark.parametrize(
    ("provider", "model", "told", "why"),
    [
        ("openai", "o3", {"input": 1, "output": 1, "cache_write": 7}, "there is no rate for 7 cache_write"),
        ("anthropic", "claude-sonnet-4-55", {"input": 1, "output": 1}, "only looks like claude-sonnet-4-5"),
        ("openai", "gpt-5", {"input": 1, "output": 1, "service_tier": "scale"}, "no price for service_tier scale"),
        ("anthropic", "claude-opus-4-6", {"input": 1, "output": 1, "region": "us"}, "no price for region us"),
        ("openai", "gpt-5", {"input": 1, "output": 1, "batch": True, "service_tier": "flex"}, "service_tier flex with"),
        ("azure", "gpt-5", {"input": 1, "output": 1, "service_tier": "flex"}, "no price for service_tier flex"),
        ("openai", "gpt-5", {"input": 9, "output": 1, "input_audio": 3}, "no rate for 3 input_audio"),
        ("anthropic", "claude-sonnet-4-5",
         {"input_tokens": 1, "output_tokens": 1, "cache_creation_input_tokens": 5,
          "cache_creation": {"ephemeral_1h_input_tokens": None}}, "how much of cache_write is cache_write_1h"),
    ],
)  # fmt: skip
def test_what_would_be_a_guess_is_told_and_not_priced(provider, model, told, why):
    """A counter without a rate, terms that nobody prices, a name that is only like one: the price says why."""
    price = priced(provider, model, told)
    assert ("amount" in price, True) == (False, why in price["why"]), price


def test_a_batch_before_its_price_was_known_is_not_priced():
    """The list knows prices of batches from a day on; before it they would be a guess."""
    told = {"input_tokens": 1, "output_tokens": 1, "service_tier": "batch"}
    assert "batch" in priced("anthropic", "claude-sonnet-4-5", told, datetime(2026, 10, 13, tzinfo=UTC))["why"]


@pytest.mark.parametrize(("provider", "model"), [(None, "m"), ("openai", "m"), ("nobody", "gpt-5"), (None, "a/b")])
def test_nobody_has_a_price_for_an_unknown_model(provider, model):
    """A model, or a provider, that no list has is without a price."""
    assert {} == priced(provider, model, CHAT)


SNAPSHOT = DataSnapshot(providers=providers, from_auto_update=False)
MODELS = [
    ("anthropic", "claude-sonnet-4-5"), ("anthropic", "claude-opus-4-6"), ("openai", "o3"), ("openai", "gpt-5"),
    ("google", "gemini-2.5-pro"), ("deepseek", "deepseek-chat"), ("x-ai", "grok-4"),
]  # fmt: skip
COUNT = st.integers(0, 10**6) | st.sampled_from([0, 199_999, 200_000, 200_001])


@settings(max_examples=150)
@given(
    st.sampled_from(MODELS), st.tuples(COUNT, COUNT, COUNT, COUNT), st.integers(0, 3), st.integers(0, 50),
    st.sampled_from([{}, {"batch": True}, {"service_tier": "flex"}, {"service_tier": "priority"}]),
    st.datetimes(datetime(2025, 1, 1), datetime(2026, 11, 30), timezones=st.just(UTC)),  # noqa: DTZ001 - it gets one
)  # fmt: skip
def test_our_sum_is_that_of_the_package(  # noqa: PLR0917 - what is drawn
    model, counts, hour_of, searches, terms, at
):
    """Whatever was used, when and how: an amount is the one that genai-prices comes to, to the last digit."""
    input_, output, read, write = counts
    hour = write * hour_of // 3
    usage = {
        "input": input_, "output": output, "cache_read": read, "cache_write": write, "cache_write_1h": hour,
        "web_searches": searches, **terms,
    }  # fmt: skip
    price = PriceList().price(model[0], (model[1],), at, usage)
    assert price is not None
    if "amount" in price:
        used = Usage(
            input_tokens=input_ + read + write, output_tokens=output, cache_read_tokens=read, cache_write_tokens=write,
            cache_write_1h_tokens=hour, web_searches=searches,
        )  # fmt: skip
        context = {"processing": "batch"} if terms.get("batch") else dict(terms)
        theirs = SNAPSHOT.calc(used, model[1], model[0], None, at, context).total_price
        assert theirs == Decimal(price["amount"])


def test_a_rate_by_the_time_of_day_is_not_kept_for_the_day():
    """A model that is cheaper at night is looked up by the minute."""
    prices, usage = PriceList(), {"input": 10**6, "output": 0, "cache_read": 0, "cache_write": 0}
    times = [datetime(2025, 3, 1, hour, tzinfo=UTC) for hour in (12, 20)]
    amounts = [(prices.price("deepseek", ("deepseek-chat",), at, usage) or {})["amount"] for at in times]
    assert ["0.27", "0.135"] == amounts


def test_prices_of_ones_own_go_first():
    """Theirs are exact, whatever type they were given in; a model that is free is known to be free."""
    told = {"input": 1000, "output": 100, "cache_read": 1000}
    price = priced(None, "m", told, own=OWN)
    assert ("0.0048", "own", "m") == (price["amount"], price["pricing_version"], price["model"])
    assert "0" == priced(None, "free", CHAT, own=OWN)["amount"]
    assert "no rate for 1000 cache_read" in priced(None, "free", told, own=OWN)["why"]
    gpt = {"openai/gpt-5": {"input": "1", "output": "1", "currency": "EUR"}}
    assert ("2", "EUR") == tuple(priced("openai", "gpt-5", CHAT, own=gpt)[name] for name in ("amount", "currency"))
    assert "USD" == priced("azure", "gpt-5", CHAT, own=gpt)["currency"]


@pytest.mark.parametrize(
    "prices",
    [
        {"m": "3"}, {"m": {}}, {"m": {"currency": "USD"}}, {"m": {"inputs": "3"}}, {"m": {"input": "much"}},
        {"m": {"input": -1}}, {"m": {"input": float("nan")}}, {"m": {"input": True}},
        {"m": {"input": "0.0000000000001"}},
    ],
)  # fmt: skip
def test_prices_that_are_none_are_refused_at_open(prices):
    """The error names the model, what was expected and what came."""
    with pytest.raises(InvalidArgument, match="prices\\['m'\\]"):
        Journal.open("memory:", prices=prices)


@pytest.mark.parametrize(
    ("answer", "amount"),
    [
        ({"usage": {"prompt_tokens": 1, "cost_in_usd_ticks": 37_756_000}}, "0.0037756"),
        ({"usage": {"prompt_tokens": 1, "cost": 0.00014225000000000002}}, "0.00014225"),
        ({"usage": {"prompt_tokens": 1, "cost": 0}}, "0"),
        ({"usage": {"prompt_tokens": 1, "cost": {"total_cost": 0.006}}}, "0.006"),
        ({"_hidden_params": {"response_cost": 1.5e-05}}, "0.000015"),
        ({"response_cost": 2}, "2"),
        ({"usage": {"prompt_tokens": 1, "cost": float("nan")}}, None),
        ({"usage": {"prompt_tokens": 1, "cost": "0.1"}}, None),
        ({"response_cost": True}, None),
        ([], None),
    ],
)
def test_what_a_provider_bills_is_read_by_its_own_word(answer, amount):
    """XAI tells ticks, OpenRouter and Perplexity dollars, LiteLLM a cost beside the answer."""
    assert amount == (reported_by(answer) or {}).get("amount")


def run_of(journal, asks, run_id="r"):
    """The ends of a run's calls of models: (name, how, answer)."""

    def agent(run):
        with run.step("ask"):
            for turn, (name, how, answer) in enumerate(asks):
                run.model(name, {"turn": turn}, lambda _, answer=answer: answer, **how)

    journal.run(agent, run_id=run_id)
    return [each.event for each in journal.events(run_id, types=("model.completed",))]


def test_a_run_stores_rates_and_what_was_billed_counts():
    """The ledger adds what was reported, else what the list says; the list's amount stands beside a reported one."""
    billed = {"usage": {"prompt_tokens": 1000, "completion_tokens": 0, "cost_in_usd_ticks": 5 * 10**9}}
    with Journal.open("memory:", clock=FakeClock(NOW), prices=OWN) as journal:
        ends = run_of(
            journal,
            [
                ("router", {"provider": "anthropic"}, {"usage": SONNET, "model": "claude-sonnet-4-5"}),
                ("m", {}, {"usage": CHAT}),
                ("m", {}, billed),
                ("free", {}, {"usage": CHAT}),
                ("gpt-5-none", {"provider": "openai"}, {"usage": CHAT}),
                ("who", {}, {"usage": CHAT}),
                ("who", {}, {"usage": CHAT | {"total_tokens": 1}}),
            ],
        )
        rows = [
            ("priced", "0.00738"), ("priced", "18"), ("reported", "0.5"), ("free", "0"), ("unpriced", None),
            ("unpriced", None), ("unmeasured", None),
        ]  # fmt: skip
        found = sorted(map(Bill._make, journal.store.index_rows("bills", "r")), key=lambda bill: bill.seq)
        assert rows == [(bill.status, bill.amount) for bill in found]
        assert ("0.003", "own") == tuple((ends[2].price or {})[name] for name in ("amount", "pricing_version"))
        assert {"input": "3", "cache_write_1h": "6"}.items() <= ends[0].price["rates"].items()
        costs = journal.state("r").costs
        assert {"USD": {"estimated": "18.00738", "reported": "0.5"}} == costs.money
        assert 3 == costs.unpriced()


def test_reading_needs_no_list(monkeypatch):
    """A run that was priced is read the same where the extra isn't installed; there a new call is without a price."""
    asks: list[Any] = [("claude-sonnet-4-5", {}, {"usage": SONNET})]
    with Journal.open("memory:", clock=FakeClock(NOW)) as journal:
        run_of(journal, asks)
        price_list._bundled.cache_clear()
        monkeypatch.setitem(sys.modules, "genai_prices", None)
        try:
            assert not price_list.has_list()
            assert Decimal("0.00738") == journal.state("r").costs.amount("USD")
            journal.prices = PriceList()
            assert [None] == [end.price for end in run_of(journal, asks, "s")]
        finally:
            price_list._bundled.cache_clear()


def test_a_row_of_the_ledger_says_what_is_known():
    """A contradiction is unmeasured; a part without a price; a list price is a price."""
    unmeasured = e.ModelCompleted("a", 1, None, usage=measure(CHAT | {"total_tokens": 1}))
    part = e.ModelCompleted("a", 1, None, usage=measure({"input_tokens": 0, "output_tokens": None}))
    assert ["unmeasured", "unpriced"] == [status_of(unmeasured), status_of(part)]
    listed = priced("anthropic", "claude-sonnet-4-5", SONNET)
    whole = e.ModelCompleted("a", 1, None, usage=measure(SONNET), price=listed)
    assert ("priced", "free") == (status_of(whole), status_of(replace(whole, price=listed | {"amount": "0"})))
