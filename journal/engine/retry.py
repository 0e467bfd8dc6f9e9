"""How often, and after which pauses, a call is tried again that may be tried again: `Retry`; and what a service asks.

The rules: engine.md F20 to F24.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple, cast

from runjournal.log.clock import parse_timestamp, timestamp
from runjournal.log.errors import InvalidArgument
from runjournal.log.limits import (
    refused_max,
    retry_after_s_max,
    retry_attempts,
    retry_factor,
    retry_first_s,
    retry_longest_s,
    retry_within_s,
)
from runjournal.projections.calls import Call

from .failures import leaves, said


@dataclass(frozen=True, slots=True)
class Retry:
    """How a call is tried again that failed for now and can't happen twice. Raises InvalidArgument.

    There are at most `attempts` of it within one ask, the first one counted, and none begins more than `within_s`
    seconds after the first. Before the second one is a pause of at most `first_s` seconds, before each later one of at
    most `factor` times as many, and of `longest_s` at the most. How long a pause is follows from the call and the
    attempt: anything from nothing to the most, spread evenly, so that many runs don't ask at the same moment. What the
    service itself asks for (`Retry-After`) is waited for in any case.

    >>> Retry(attempts=5, first_s=2.0)
    Retry(attempts=5, first_s=2.0, factor=3.0, longest_s=300.0, within_s=21600.0)
    """

    attempts: int = retry_attempts
    first_s: float = retry_first_s
    factor: float = retry_factor
    longest_s: float = retry_longest_s
    within_s: float = retry_within_s

    def __post_init__(self) -> None:
        """Check what was given."""
        attempts = cast("object", self.attempts)  # callers aren't all typed
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
            raise InvalidArgument(f"Retry: attempts: expected a whole number from 1, got {attempts!r}")
        for name, least in {"first_s": 0, "factor": 1, "longest_s": 0, "within_s": 0}.items():
            value = cast("object", getattr(self, name))
            if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < math.inf:
                raise InvalidArgument(f"Retry: {name}: expected a number from {least}, got {value!r}")

    def pause_s(self, call_id: str, attempt: int, tried: int) -> float:
        """Return the pause behind an attempt of a call, in seconds; `tried` says how many there were in this ask.

        Each is drawn evenly from nothing to the most. Those of one call are drawn apart from each other, so that no
        call has many short ones: the first by its id, each further one by a step of the golden ratio.
        """
        most = min(self.first_s, self.longest_s)
        for _ in range(min(tried - 1, _GROWS_MAX)):
            most = min(most * self.factor, self.longest_s)
        drawn = int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:8]) / 2**64
        return most * ((drawn + attempt * _GOLDEN) % 1)


class NextTry(NamedTuple):
    """What becomes of a call whose attempt failed for now: is it tried `again`, and not before which time (UTC text)?

    Where the service itself asks to be left alone until then, that holds for whoever asks next, too.
    """

    again: bool
    retry_at: str | None


def next_try(retry: Retry, call_id: str, call: Call, error: BaseException, now: datetime, *, refused: bool) -> NextTry:
    """Return what becomes of a call that may be tried again; `call` is as it was before the failure.

    `refused`: it is a model's answer that was of no use, and was paid for: another one is asked for at once, and not
    often.
    """
    if refused:
        return NextTry(call.refused + 1 < min(refused_max, retry.attempts), None)
    asked_s = asked_pause_s(error, now)
    tried = call.tries - call.refused + 1
    pause_s = max(retry.pause_s(call_id, call.attempt, tried), asked_s or 0.0)
    since_s = (now - parse_timestamp(call.since)).total_seconds() if call.since else 0.0
    again = tried < retry.attempts and since_s + pause_s <= retry.within_s
    retry_at = timestamp(now + timedelta(seconds=pause_s)) if again or asked_s is not None else None
    return NextTry(again, retry_at)


def checked(retry: Retry | None, who: str) -> Retry | None:
    """Return what was given as `retry`. Raises InvalidArgument for anything else."""
    given = cast("object", retry)  # callers aren't all typed
    if given is not None and not isinstance(given, Retry):
        raise InvalidArgument(f"{who}: retry: expected a Retry, got {type(given).__name__}: retry=Retry(attempts=5)")
    return retry


_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_GROWS_MAX: Final = 100
"""A pause grows so often; it is at its longest by then, but for factors that are hardly any."""


def asked_pause_s(error: BaseException, now: datetime) -> float | None:
    """Return for how many seconds the service that raised an error asks to be left alone; None if it doesn't say.

    That is an attribute `retry_after` (seconds, a timedelta, a time), or the headers `retry-after-ms` and `Retry-After`
    (seconds, or a date) of the error or its response. Of several errors the longest counts.
    """
    found: list[float] = []
    for leaf in leaves(error):
        try:
            told = _asked_s(leaf, now)
        except Exception:  # noqa: BLE001 - what a client's error does when it is looked at must not keep it from the log
            told = None
        if told is not None and not math.isnan(told):
            found.append(min(max(told, 0.0), retry_after_s_max))
    return max(found, default=None)


def _asked_s(error: BaseException, now: datetime) -> float | None:
    own = said(error, "retry_after")
    if own is not None and (seconds := _seconds(own, now)) is not None:
        return seconds
    for holder in (said(error, "response"), error):
        headers = said(holder, "headers")
        if headers is None:
            continue
        millis = _header(headers, "retry-after-ms")
        if millis is not None and (told := _number(millis)) is not None:
            return told / 1000
        if (after := _header(headers, "retry-after")) is not None:
            return _seconds(after, now)
    return None


def _header(headers: Any, name: str) -> str | None:
    """Return a header, however it is written: clients' own mappings don't tell cases apart, a plain dict does."""
    value = headers.get(name)
    if value is None and isinstance(headers, Mapping):
        known = cast("Mapping[object, object]", headers)
        value = next((each for key, each in known.items() if isinstance(key, str) and key.lower() == name), None)
    return value if isinstance(value, str) else None if value is None else str(value)


def _seconds(told: object, now: datetime) -> float | None:
    match told:
        case bool():
            return None
        case int() | float():
            return float(told)
        case timedelta():
            return told.total_seconds()
        case datetime():
            return ((told if told.tzinfo else told.replace(tzinfo=UTC)) - now).total_seconds()
        case str():
            number = _number(told)
            return number if number is not None else _seconds(parsedate_to_datetime(told), now)
        case _:
            return None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
