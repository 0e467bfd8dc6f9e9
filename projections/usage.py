"""What a request took, in one shape, whatever the provider's is: `measure` is the only reader of a provider's usage.

The counters are {input, output, cache_read, cache_write}: input without what was read from a cache or written to one,
output with its reasoning. `cache_write_1h`, `reasoning`, `input_audio` and `output_audio` are parts of these, which
have prices of their own. A counter that was told and is no number is unknown: it is missing, and stands in `unknown`.
One that a provider doesn't tell at all because there is nothing to tell is 0. `assumed` names what its rule takes for
granted where nothing is told.

The counters stand in the event beside what was told (`raw`): a sum must not change because a later version reads a
provider otherwise, and whoever doubts a counter finds the provider's own words next to it. If what was told contradicts
itself, nothing is counted: the usage is {unmeasured: why, raw}.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias, cast

from runjournal.log.limits import int_max, name_chars_max

Told: TypeAlias = Mapping[str, Any]

KINDS: Final = ("input", "output", "cache_read", "cache_write")
"""The counters that add up to all tokens of a request."""
PARTS: Final = {
    "cache_write_1h": "cache_write",
    "reasoning": "output",
    "input_audio": "input",
    "output_audio": "output",
}
"""Counters of tokens that are in another one, too."""
UNSPLIT: Final = "unsplit"
"""Tokens of an input of which nobody knows which were cached: they count, and have no price."""
ANSWER_KEYS: Final = ("usage", "usageMetadata", "usage_metadata")
"""Where an answer has its usage, first of these."""

NEUTRAL: Final = {"", "auto", "default", "standard", "standard_only", "on_demand", "global", "not_available"}
"""Tiers, speeds and regions that cost what a list says."""


class Unmeasured(Exception):
    """What was told can't be true as a whole; says why."""


class _Sums(NamedTuple):
    """Counters as a provider has them, None where unknown; `total` is None if it wasn't told."""

    input: int | None
    output: int | None
    read: int | None
    write: int | None
    reasoning: int | None = 0
    total: int | None = None


class _Nesting(NamedTuple):
    """One way to understand these: what the caches and the reasoning are counted in."""

    caches_inside: bool
    reasoning_inside: bool


INSIDE: Final = _Nesting(caches_inside=True, reasoning_inside=True)
CACHES_BESIDE: Final = _Nesting(caches_inside=False, reasoning_inside=True)
REASONING_BESIDE: Final = _Nesting(caches_inside=True, reasoning_inside=False)
OPENAI: Final = (INSIDE, REASONING_BESIDE, CACHES_BESIDE)
XAI: Final = (REASONING_BESIDE, INSIDE, CACHES_BESIDE)
ANTHROPIC: Final = (CACHES_BESIDE, INSIDE, REASONING_BESIDE)


def measure(told: Any, provider: str | None = None, answer: Any = None) -> dict[str, Any] | None:
    """Return what a provider tells of a request's tokens, as the journal stores it; None if it tells of none.

    `told` is the usage object, `answer` the answer around it, which may tell the service tier. `provider` is its name:
    where the shape leaves a question open, it decides; else the shape does.
    """
    if not isinstance(told, Mapping):
        return None
    usage = cast("Told", told)
    about: Told = cast("Told", answer) if isinstance(answer, Mapping) else {}
    rule = _rule(usage)
    if rule is None:
        return None
    try:
        xai = (provider or "").lower() in _XAI
        counters = chat(usage, xai=xai) if rule is chat else rule(usage)
        _check(counters)
    except Unmeasured as wrong:
        return {"unmeasured": str(wrong), "raw": dict(usage)}
    known = {name: value for name, value in counters.items() if value is not None}
    unknown = [name for name, value in counters.items() if value is None]
    return {
        **{name: value for name, value in known.items() if name in KINDS or value},
        **({"unknown": unknown} if unknown else {}),
        **({"assumed": ["cache_write_5m"]} if known.get("cache_write") and _assumes_5m(usage) else {}),
        **_terms(usage, about),
        "raw": dict(usage),
    }


def told_by(answer: Any) -> Any:
    """Return the usage object in an answer; None if it has none."""
    if not isinstance(answer, Mapping):
        return None
    about = cast("Told", answer)
    return next((about[key] for key in ANSWER_KEYS if about.get(key) is not None), None)


def is_whole(usage: Told | None) -> bool:
    """Return whether all tokens of a stored usage are known, and which were cached."""
    return usage is not None and all(name in usage for name in KINDS)


def total(usage: Told) -> int:
    """Return all tokens of a stored usage; at least so many, if it isn't whole."""
    return sum(usage.get(name, 0) for name in (*KINDS, UNSPLIT))


def _rule(usage: Told) -> Any:
    """Return the rule of the first provider whose words these are; None if they are nobody's."""
    return next((rule for keys, rule in _RULES if any(key in usage for key in keys)), None)


# The rules, a provider each.


def anthropic(usage: Told) -> dict[str, int | None]:
    """Anthropic's Messages API: the input excludes both caches, the output includes thinking.

    `cache_creation_input_tokens` is all that was written, the object `cache_creation` its split by time to live. What
    isn't split was written for five minutes, which is the default. The iterations of type compaction were paid for and
    are not in the counters above them.

    https://platform.claude.com/docs/en/api/messages
    https://platform.claude.com/docs/en/build-with-claude/prompt-caching
    https://platform.claude.com/docs/en/build-with-claude/compaction
    """
    split = _object(usage, "cache_creation")
    flat = _first(usage, "cache_creation_input_tokens", absent=None if split else 0)
    write, hour = _written(flat, split, _EPHEMERAL)
    sums = _Sums(
        _first(usage, "input_tokens", absent=None),
        _first(usage, "output_tokens", absent=None),
        _first(usage, "cache_read_input_tokens"),
        write,
        _first(usage, "output_tokens_details.thinking_tokens"),
        _first(usage, "total_tokens", absent=None),
    )
    counters = _fitting(sums, ANTHROPIC) | {"cache_write_1h": hour}
    for each in _objects(usage.get("iterations")):
        if each.get("type") == "compaction":
            inner = anthropic({key: value for key, value in each.items() if key != "iterations"})
            counters = {name: _plus(value, inner[name]) for name, value in counters.items()}
    return counters


def responses(usage: Told) -> dict[str, int | None]:
    """OpenAI's Responses API: the input includes what was read from the cache and written to it, the output reasoning.

    https://platform.openai.com/docs/api-reference/responses/object
    https://platform.openai.com/docs/guides/prompt-caching
    """
    details = "input_tokens_details"
    sums = _Sums(
        _first(usage, "input_tokens", absent=None),
        _first(usage, "output_tokens", absent=None),
        _same(usage, f"{details}.cached_tokens", "cache_read_input_tokens"),
        _same(usage, f"{details}.cache_write_tokens", "cache_creation_input_tokens"),
        _first(usage, "output_tokens_details.reasoning_tokens"),
        _first(usage, "total_tokens", absent=None),
    )
    return _fitting(sums, OPENAI) | {
        "input_audio": _first(usage, f"{details}.audio_tokens"),
        "output_audio": _first(usage, "output_tokens_details.audio_tokens"),
    }


def chat(usage: Told, *, xai: bool = False) -> dict[str, int | None]:
    """Chat completions, as OpenAI has them: the prompt includes the caches, the completion the reasoning.

    xAI counts the reasoning beside the completion. LiteLLM repeats the counters of the caches at the top, where
    Anthropic has them: what stands in two places is one number. DeepSeek calls what came from its cache a hit.

    https://platform.openai.com/docs/api-reference/chat/object
    https://docs.x.ai/docs/guides/reasoning
    https://docs.litellm.ai/docs/completion/prompt_caching
    https://api-docs.deepseek.com/api/create-chat-completion
    https://openrouter.ai/docs/use-cases/usage-accounting
    """
    details = "prompt_tokens_details"
    read = (
        f"{details}.cached_tokens",
        "cache_read_input_tokens",
        "prompt_cache_hit_tokens",
        "cached_prompt_text_tokens",
    )
    written = (f"{details}.cache_write_tokens", f"{details}.cache_creation_tokens", "cache_creation_input_tokens")
    split = _object(_object(usage, details), "cache_creation_token_details")
    write, hour = _written(_same(usage, *written), split, _EPHEMERAL)
    prompt, all_ = _first(usage, "prompt_tokens", absent=None), _first(usage, "total_tokens", absent=None)
    completion = _first(usage, "completion_tokens", absent=None)
    if "completion_tokens" not in usage and prompt is not None and all_ is not None:
        completion = max(all_ - prompt, 0)  # embeddings have none
    sums = _Sums(
        prompt, completion, _same(usage, *read), write,
        _same(usage, "completion_tokens_details.reasoning_tokens", "reasoning_tokens"), all_,
    )  # fmt: skip
    return _fitting(sums, XAI if xai or "cost_in_usd_ticks" in usage else OPENAI) | {
        "cache_write_1h": hour,
        "input_audio": _first(usage, f"{details}.audio_tokens"),
        "output_audio": _first(usage, "completion_tokens_details.audio_tokens"),
    }


def gemini(usage: Told) -> dict[str, int | None]:
    """Gemini: the prompt includes what was cached; thoughts are beside the candidates, a tool's beside it.

    Its JSON leaves out a counter that is 0.

    https://ai.google.dev/api/generate-content#UsageMetadata
    """
    thoughts = _first(usage, "thoughtsTokenCount", "thoughts_token_count")
    sums = _Sums(
        _plus(
            _first(usage, "promptTokenCount", "prompt_token_count"),
            _first(usage, "toolUsePromptTokenCount", "tool_use_prompt_token_count"),
        ),
        _first(usage, "candidatesTokenCount", "candidates_token_count"),
        _first(usage, "cachedContentTokenCount", "cached_content_token_count"),
        0,
        thoughts,
        _first(usage, "totalTokenCount", "total_token_count", absent=None),
    )
    return _fitting(sums, (REASONING_BESIDE,)) | {
        "input_audio": _spoken(usage, "promptTokensDetails", "prompt_tokens_details"),
        "output_audio": _spoken(usage, "candidatesTokensDetails", "candidates_tokens_details"),
    }


def bedrock(usage: Told) -> dict[str, int | None]:
    """Amazon Bedrock's Converse: the input excludes both caches; `cacheDetails` splits what was written.

    The total may be told with the caches or without them: the counters are the same.

    https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_TokenUsage.html
    https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_CacheDetail.html
    """
    split = {str(each.get("ttl")): each.get("inputTokens") for each in _objects(usage.get("cacheDetails"))}
    write, hour = _written(_first(usage, "cacheWriteInputTokens"), split, ("5m", "1h"))
    sums = _Sums(
        _first(usage, "inputTokens", absent=None),
        _first(usage, "outputTokens", absent=None),
        _first(usage, "cacheReadInputTokens"),
        write,
        total=_first(usage, "totalTokens", absent=None),
    )
    if sums.total is not None and sums.total == _plus(sums.input, sums.output):
        sums = sums._replace(total=None)
    return _fitting(sums, (CACHES_BESIDE,)) | {"cache_write_1h": hour}


def otel(usage: Told) -> dict[str, int | None]:
    """OpenTelemetry's attributes of a span: the input includes what was read from a cache and written to it.

    https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
    """
    sums = _Sums(
        _first(usage, "gen_ai.usage.input_tokens", absent=None),
        _first(usage, "gen_ai.usage.output_tokens", absent=None),
        _first(usage, "gen_ai.usage.cache_read.input_tokens"),
        _first(usage, "gen_ai.usage.cache_creation.input_tokens"),
        _first(usage, "gen_ai.usage.reasoning.output_tokens"),
    )
    return _fitting(sums, (INSIDE, CACHES_BESIDE))


def own(usage: Told) -> dict[str, int | None]:
    """The journal's own counters, as a function of the user's returns them; nothing of a cache means none."""
    if usage.get("unmeasured"):
        raise Unmeasured(str(usage["unmeasured"]))
    counters = {name: _first(usage, name, absent=None) for name in KINDS[:2]}
    return counters | {name: _first(usage, name) for name in (*KINDS[2:], *PARTS)}


def input_tokens(usage: Told) -> dict[str, int | None]:
    """Two APIs call their input so: OpenAI's Responses tell details of it, or a total; Anthropic's don't."""
    cached = any(key in usage for key in ("cache_creation_input_tokens", "cache_read_input_tokens", "cache_creation"))
    detailed = isinstance(usage.get("input_tokens_details"), Mapping)
    return (responses if detailed or ("total_tokens" in usage and not cached) else anthropic)(usage)


_EPHEMERAL: Final = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
_XAI: Final = ("x-ai", "xai", "grok")
_RULES: Final = (
    (("promptTokenCount", "prompt_token_count", "candidatesTokenCount", "candidates_token_count"), gemini),
    (("inputTokens", "outputTokens"), bedrock),
    (("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"), otel),
    (("prompt_tokens", "completion_tokens"), chat),
    (
        ("input_tokens", "output_tokens", "cache_creation", "cache_creation_input_tokens", "cache_read_input_tokens"),
        input_tokens,
    ),
    (("input", "output"), own),
)


# Numbers.


def _fitting(sums: _Sums, readings: tuple[_Nesting, ...]) -> dict[str, int | None]:
    """Return the counters by the first reading that is possible, and whose sum is the total, if one was told."""
    found = [counters for reading in readings if (counters := _read(sums, reading)) is not None]
    if not found:
        raise Unmeasured(f"{sums.read} cached tokens and {sums.write} written ones are no part of {sums.input}")
    if sums.total is None:
        return found[0]
    fits = [each for each in found if (all_ := _sum(each)) is None or all_ == sums.total]
    if not fits:
        raise Unmeasured(f"the total is {sums.total}, the counters come to {_sum(found[0])}")
    return fits[0]


def _read(sums: _Sums, reading: _Nesting) -> dict[str, int | None] | None:
    """Return the counters by a reading; None if a part would be greater than what it is in."""
    input_, output, rest = sums.input, sums.output, 0
    if reading.caches_inside:
        input_ = _minus(_minus(input_, sums.read), sums.write)
        rest = sums.input - (sums.read or 0) - (sums.write or 0) if sums.input is not None else 0
        if rest < 0:
            return None
    if not reading.reasoning_inside:
        output = _plus(output, sums.reasoning)
    elif output is not None and sums.reasoning is not None and sums.reasoning > output:
        return None
    return {
        "input": input_, "output": output, "cache_read": sums.read, "cache_write": sums.write,
        "cache_write_1h": 0, "reasoning": sums.reasoning, UNSPLIT: rest if input_ is None else 0,
    }  # fmt: skip


def _sum(counters: Mapping[str, int | None]) -> int | None:
    known = [value for name in KINDS if (value := counters[name]) is not None]
    return sum(known) if len(known) == len(KINDS) else None


def _check(counters: Mapping[str, int | None]) -> None:
    if counters["input"] is None and counters["output"] is None and not any(counters.values()):
        raise Unmeasured("neither the input nor the output is told as a number")
    for name, value in counters.items():
        if value is not None and value > int_max:
            raise Unmeasured(f"{name} is more than {int_max}")
    for part, whole in PARTS.items():
        inner, outer = counters.get(part), counters[whole]
        if part == "input_audio" and counters["cache_read"]:
            continue  # what was cached of it may have been spoken
        if inner is not None and outer is not None and inner > outer:
            raise Unmeasured(f"{part} is {inner}, more than the {outer} of {whole} that it is part of")


def _written(flat: int | None, split: Told, names: tuple[str, str]) -> tuple[int | None, int | None]:
    """Return what was written to a cache, and what of it for an hour; the split by time to live is of the flat sum."""
    if not any(name in split for name in names):
        return flat, 0
    short, hour = (_first(split, name) for name in names)
    both = _plus(short, hour)
    if flat is not None and both is not None and flat != both:
        raise Unmeasured(f"{flat} tokens were written to the cache, by time to live {both}")
    return (both if flat is None else flat), hour


def _assumes_5m(usage: Told) -> bool:
    """Return whether these are an API's words that writes to a cache for five minutes if nothing else is said."""
    written = any(number(usage.get(key)) for key in ("cache_creation_input_tokens", "cacheWriteInputTokens"))
    details = _object(usage, "prompt_tokens_details").get("cache_creation_token_details")
    return written and not (usage.get("cache_creation") or usage.get("cacheDetails") or details)


def _first(usage: Told, *paths: str, absent: int | None = 0) -> int | None:
    """Return the counter at the first of these paths that is there, None if it is no number."""
    for path in paths:
        for value in _at(usage, path):
            return number(value)
    return absent


def _same(usage: Told, *paths: str) -> int | None:
    """Return a counter that may stand in several places; 0 if in none. Raises Unmeasured if they differ."""
    told = [number(value) for path in paths for value in _at(usage, path)]
    numbers = {value for value in told if value is not None}
    if len(numbers) > 1:
        raise Unmeasured(f"{' and '.join(paths)} are {' and '.join(map(str, sorted(numbers)))}")
    return numbers.pop() if numbers else (None if told else 0)


def _at(usage: Told, path: str) -> Iterator[Any]:
    """Yield what stands at a path, if anything does: as a key, or as a key of an object, `details.key`."""
    if path in usage:
        yield usage[path]
        return
    outer, _, inner = path.partition(".")
    within = _object(usage, outer)
    if inner and inner in within:
        yield within[inner]


def _object(usage: Told, key: str) -> Told:
    value = usage.get(key)
    return cast("Told", value) if isinstance(value, Mapping) else {}


def _objects(value: Any) -> list[Told]:
    """Return the objects of a list; nothing of what is no list."""
    items = cast("Iterable[Any]", value) if isinstance(value, list) else ()
    return [cast("Told", item) for item in items if isinstance(item, Mapping)]


def _spoken(usage: Told, *keys: str) -> int | None:
    """Return Gemini's count of spoken tokens."""
    spoken: int | None = 0
    for each in (item for key in keys for item in _objects(usage.get(key))):
        if each.get("modality") == "AUDIO":
            spoken = _plus(spoken, _first(each, "tokenCount", "token_count"))
    return spoken


def number(value: object) -> int | None:
    """Return a count: a whole number, also one that is written as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        return None
    return int(value) if value == int(value) else None


def _plus(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right


def _minus(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left - right


# What else has a price.


def _terms(usage: Told, answer: Told) -> dict[str, Any]:
    """Return the tier, speed and region that a request was served with, whether in a batch, and its web searches."""
    tier = _word(usage, "service_tier") or _word(answer, "service_tier") or _word(usage, "trafficType")
    tier = tier or _word(_object(answer, "serviceTier"), "type")
    terms: dict[str, Any] = {
        "service_tier": tier,
        "speed": _word(usage, "speed"),
        "region": _word(usage, "inference_geo") or _word(usage, "region"),
    }
    told = {name: word for name, word in terms.items() if word is not None}
    if tier == "batch" or usage.get("batch") is True:
        told |= {"batch": True}
        if tier == "batch":
            del told["service_tier"]
    searches = _first(usage, "server_tool_use.web_search_requests", "num_sources_used", "web_searches")
    asked = sum(item.get("type") == "web_search_call" for item in _objects(answer.get("output")))
    searches = _plus(searches, asked)
    return told | ({"web_searches": searches} if searches and searches <= int_max else {})


def _word(where: Told, key: str) -> str | None:
    """Return a word that names something other than the usual; None for that, and for what is no word."""
    value = where.get(key)
    if not isinstance(value, str) or value.lower() in NEUTRAL or len(value) > name_chars_max:
        return None
    return value.lower()
