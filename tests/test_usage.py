"""What a provider tells of a request's tokens, in one shape: each provider's words, and the right numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runjournal.cli.costs import cost_notes, cost_rows
from runjournal.journal import Journal
from runjournal.log.limits import int_max
from runjournal.log.shapes import USAGE
from runjournal.projections.usage import KINDS, is_whole, measure, told_by, total

ANTHROPIC = {
    "input_tokens": 10, "output_tokens": 50, "cache_read_input_tokens": 5000, "cache_creation_input_tokens": 1000,
    "cache_creation": {"ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 600},
}  # fmt: skip
LITELLM = {
    "prompt_tokens": 98_805, "completion_tokens": 5_120, "total_tokens": 103_925,
    "prompt_tokens_details": {"cached_tokens": 66_360, "cache_creation_tokens": 32_435, "audio_tokens": None},
    "cache_read_input_tokens": 66_360, "cache_creation_input_tokens": 32_435,
}  # fmt: skip
CHAT = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
RESPONSES = {
    "input_tokens": 100, "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30}, "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 15}, "total_tokens": 120,
}  # fmt: skip
XAI = {"prompt_tokens": 32, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 94}}
GEMINI = {
    "promptTokenCount": 100, "cachedContentTokenCount": 40, "candidatesTokenCount": 7, "thoughtsTokenCount": 5,
    "toolUsePromptTokenCount": 20, "totalTokenCount": 132,
}  # fmt: skip
BEDROCK = {
    "inputTokens": 10, "outputTokens": 50, "totalTokens": 6060, "cacheReadInputTokens": 5000,
    "cacheWriteInputTokens": 1000,
    "cacheDetails": [{"ttl": "1h", "inputTokens": 600}, {"ttl": "5m", "inputTokens": 400}],
}  # fmt: skip
OTEL = {
    "gen_ai.usage.input_tokens": 6010, "gen_ai.usage.output_tokens": 50,
    "gen_ai.usage.cache_read.input_tokens": 5000, "gen_ai.usage.cache_creation.input_tokens": 1000,
}  # fmt: skip
COMPACTED = {
    "input_tokens": 23_000, "output_tokens": 1_000,
    "iterations": [
        {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500, "cache_read_input_tokens": 7},
        {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000},
    ],
}  # fmt: skip
HOUR = {"cache_write_1h": 600}


def counters(*numbers, **more):
    return dict(zip(KINDS, numbers, strict=True)) | more


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (ANTHROPIC, counters(10, 50, 5000, 1000, **HOUR)),
        (COMPACTED, counters(203_000, 4_500, 7, 0)),
        ({"input_tokens": 10, "output_tokens": 50, "output_tokens_details": {"thinking_tokens": 30}},
         counters(10, 50, 0, 0, reasoning=30)),
        ({"input_tokens": 1, "output_tokens": 2, "cache_creation_input_tokens": 300},
         counters(1, 2, 0, 300, assumed=["cache_write_5m"])),
        ({"input_tokens": 1, "output_tokens": 2, "cache_creation": {"ephemeral_1h_input_tokens": 600}},
         counters(1, 2, 0, 600, **HOUR)),
        (CHAT, counters(100, 20, 0, 0)),
        (CHAT | {"prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 30}}, counters(6, 20, 64, 30)),
        (CHAT | {"prompt_tokens_details": None, "completion_tokens_details": None}, counters(100, 20, 0, 0)),
        (CHAT | {"completion_tokens_details": {"reasoning_tokens": 15}}, counters(100, 20, 0, 0, reasoning=15)),
        (CHAT | {"prompt_tokens_details": {"audio_tokens": 3}}, counters(100, 20, 0, 0, input_audio=3)),
        ({"prompt_tokens": 8, "total_tokens": 8}, counters(8, 0, 0, 0)),
        ({"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5},
         counters(5, 1, 4, 0)),
        (RESPONSES, counters(10, 20, 60, 30, reasoning=15)),
        (XAI, counters(32, 103, 0, 0, reasoning=94)),
        (XAI | {"total_tokens": 135}, counters(32, 103, 0, 0, reasoning=94)),
        (LITELLM, counters(10, 5_120, 66_360, 32_435, assumed=["cache_write_5m"], unknown=["input_audio"])),
        (GEMINI, counters(80, 12, 40, 0, reasoning=5)),
        ({"prompt_token_count": 4, "total_token_count": 4}, counters(4, 0, 0, 0)),
        ({"promptTokenCount": 9, "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 5}, {"modality": "TEXT"}]},
         counters(9, 0, 0, 0, input_audio=5)),
        (BEDROCK, counters(10, 50, 5000, 1000, **HOUR)),
        (BEDROCK | {"totalTokens": 60}, counters(10, 50, 5000, 1000, **HOUR)),
        (OTEL, counters(10, 50, 5000, 1000)),
        ({"input": 5, "output": 7}, counters(5, 7, 0, 0)),
        (counters(10, 50, 5000, 1000, **HOUR), counters(10, 50, 5000, 1000, **HOUR)),
    ],
)  # fmt: skip
def test_each_provider_is_read_by_its_own_rule(told, expected):
    """Input without caches, output with reasoning, and what was told beside them."""
    assert expected | {"raw": told} == measure(told)


@pytest.mark.parametrize(
    ("told", "provider", "expected"),
    [
        # Without a total the provider decides whether the reasoning is in the completion; a total decides for itself.
        (XAI | {"completion_tokens": 100}, None, counters(32, 100, 0, 0, reasoning=94)),
        (XAI | {"completion_tokens": 100}, "x-ai", counters(32, 194, 0, 0, reasoning=94)),
        (XAI | {"completion_tokens": 100, "total_tokens": 132}, "x-ai", counters(32, 100, 0, 0, reasoning=94)),
        (XAI | {"completion_tokens": 100, "total_tokens": 226}, None, counters(32, 194, 0, 0, reasoning=94)),
        # A gateway that counts caches beside the prompt: its total says so, or that they don't fit into it.
        (CHAT | {"prompt_tokens_details": {"cached_tokens": 50}, "total_tokens": 170}, None, counters(100, 20, 50, 0)),
        ({"prompt_tokens": 3, "completion_tokens": 1, "cache_read_input_tokens": 50}, None, counters(3, 1, 50, 0)),
    ],
)
def test_a_total_chooses_the_reading(told, provider, expected):
    """Where two readings are possible, the one whose sum is the total; without a total that of the provider."""
    assert expected | {"raw": told} == measure(told, provider)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (CHAT | {"total_tokens": 121}, "the total is 121, the counters come to 120"),
        (LITELLM | {"cache_read_input_tokens": 66_361}, "66360 and 66361"),
        (
            ANTHROPIC | {"cache_creation_input_tokens": 999},
            "999 tokens were written to the cache",
        ),
        (BEDROCK | {"cacheWriteInputTokens": 999, "totalTokens": 60}, "by time to live 1000"),
        (GEMINI | {"cachedContentTokenCount": 121}, "no part of 120"),
        ({"input": 3, "output": 1, "reasoning": 2}, "more than the 1 of output"),
        ({"input_tokens": "10", "output_tokens": None}, "neither the input nor the output"),
        ({"input_tokens": int_max + 1, "output_tokens": 0}, "more than"),
    ],
)
def test_what_contradicts_itself_is_unmeasured_and_kept(told, why):
    """No counter of it is believed; what was told stays in the event."""
    found = measure(told)
    assert found is not None
    assert ({"unmeasured", "raw"}, told, True) == (set(found), found["raw"], why in found["unmeasured"])


@pytest.mark.parametrize("odd", [None, "12", float("nan"), float("inf"), -1, 1.5, True, [], {}])
def test_a_counter_that_is_no_number_is_unknown(odd):
    """It is never zero: it is missing and named; what else was told stays."""
    cached = measure(CHAT | {"prompt_tokens_details": {"cached_tokens": odd}})
    assert cached is not None
    expected = {"output": 20, "cache_write": 0, "unsplit": 100, "unknown": ["input", "cache_read"]}
    assert (expected, False, 120) == ({k: v for k, v in cached.items() if k != "raw"}, is_whole(cached), total(cached))
    output = measure({"input_tokens": 12.0, "output_tokens": odd})
    assert output is not None
    assert (12, False, ["output"]) == (output["input"], "output" in output, output["unknown"])


@pytest.mark.parametrize("told", [None, [], "10", {}, {"words": 3}, {"total": 3}])
def test_nothing_told_is_no_usage(told):
    """An object without any word that a provider has for tokens tells nothing of them."""
    assert None is measure(told)


def test_what_has_a_price_of_its_own_is_kept():
    """Tier, speed, region, batch and searches of the web stand beside the counters; what is usual doesn't."""
    one = {"input_tokens": 1, "output_tokens": 1}
    anthropic = one | {"service_tier": "priority", "speed": "fast", "inference_geo": "us"}
    searched = one | {
        "service_tier": "standard",
        "inference_geo": "global",
        "server_tool_use": {"web_search_requests": 2},
    }
    answer = {"usage": RESPONSES, "service_tier": "flex", "output": [{"type": "web_search_call"}, {"type": "message"}]}
    names = ("service_tier", "speed", "region", "batch", "web_searches")

    def terms(usage, answer=None):
        return {name: value for name, value in (measure(usage, None, answer) or {}).items() if name in names}

    assert {"service_tier": "priority", "speed": "fast", "region": "us"} == terms(anthropic)
    assert {"web_searches": 2} == terms(searched)
    assert {"batch": True} == terms(one | {"service_tier": "batch"})
    assert {"service_tier": "flex", "web_searches": 1} == terms(told_by(answer), answer)
    assert {"service_tier": "flex"} == terms(BEDROCK, {"serviceTier": {"type": "flex"}})


NUMBERS = st.none() | st.integers(-1, 10**6) | st.floats(width=16) | st.text(max_size=2)
WORDS = sorted({*ANTHROPIC, *LITELLM, *RESPONSES, *XAI, *GEMINI, *BEDROCK, *OTEL, *KINDS, "iterations"})


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(WORDS), NUMBERS | st.dictionaries(st.sampled_from(WORDS), NUMBERS, max_size=3)))
def test_whatever_a_provider_tells_is_stored(told):
    """Any words of any providers, with any values, are read without an error, into what an event may hold."""
    found = measure(told)
    if found is not None:
        USAGE.check({name: value for name, value in found.items() if name != "raw"}, "$")
        assert 0 <= total(found)


def test_a_run_counts_by_the_rule_of_its_provider_and_tells_what_is_unknown():
    """`provider=` chooses the rule; a user's function may return a provider's words; NaN costs no answer."""
    said: list[Any] = [
        ({"usage": XAI | {"completion_tokens": 100}}, {"provider": "x-ai"}),
        ({"meta": GEMINI}, {"usage": lambda answer: answer["meta"]}),
        ({"usage": CHAT | {"total_tokens": 7}}, {}),
        ({"n": 1}, {"usage": lambda _: {"input": 5, "output": float("nan")}}),
    ]

    def agent(run):
        with run.step("ask"):
            for turn, (answer, how) in enumerate(said):
                assert answer == run.model("m", {"turn": turn}, lambda _, answer=answer: answer, **how)

    with Journal.open("memory:") as journal:
        journal.run(agent, run_id="r")
        costs = journal.state("r").costs
        expected = {"input": 32 + 80 + 5, "output": 194 + 12, "cache_read": 40, "cache_write": 0}
        assert ({"m": expected}, 4, 1, 1, 2) == (
            costs.usage(), costs.count("calls"), costs.count("without_usage"), costs.count("partial"), costs.unknown(),
        )  # fmt: skip
        ends: list[Any] = list(journal.events("r", types=("model.completed",)))
        usages = [each.event.usage for each in ends]
        assert [False, False, True, False] == ["unmeasured" in usage for usage in usages]
        assert (CHAT | {"total_tokens": 7}, False) == (usages[2]["raw"], "raw" in usages[3])


def test_sums_with_unknowns_are_printed_as_lower_bounds():
    """A model that told not all of its tokens has `>=` before its sum, and so has the sum of all; others have none."""

    def agent(run):
        with run.step("ask"):
            run.model("whole", 1, lambda _: {"usage": CHAT, "cost": {"amount": "0.5", "currency": "USD"}})
            run.model("part", 2, lambda _: {"usage": CHAT | {"completion_tokens": None}})

    with Journal.open("memory:") as journal:
        journal.run(agent, run_id="r")
        state = journal.state("r")
        rows = {line.split()[0]: line.split()[-2:] for line in cost_rows(state, "")}
        assert (["0", "120"], [">=", "100"], [">=", "220"]) == (rows["whole"], rows["part"], rows["TOTAL"])
        assert ">= 0.50 USD reported" in "\n".join(cost_notes(state))
