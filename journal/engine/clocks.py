"""What in a request to a model is a clock, which may differ when it is asked again: engine.md C4."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from math import inf
from typing import Any, Final, NamedTuple, cast

from runjournal.log.base import Json
from runjournal.log.limits import date_near_days, stamp_min_s, stamp_near_days
from runjournal.log.shapes import kind_of

CLOCK: Final = re.compile(r"\d{4}-\d\d-\d\d|\d\d?:\d\d(:\d\d)?(\.\d+)?|\d{10,}(\.\d+)?")
"""Dates, times of day, and numbers of ten digits and more: what may differ in a request that is asked again."""


class Span(NamedTuple):
    """The seconds since 1970 between which the same is a clock; its ends are none of them."""

    since: float = -inf
    until: float = inf

    def holds(self, now: datetime) -> bool:
        """Return whether a moment lies in it."""
        return self.since < now.timestamp() < self.until

    def both(self, other: Span) -> Span:
        """Return the seconds that lie in another span, too."""
        return Span(max(self.since, other.since), min(self.until, other.until))


class Clocks:
    """What is a clock at a moment. `span` is when the same would be one, of all that was looked through."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.span = Span()
        self._now_s = now.timestamp()

    def shape(self, value: Json) -> Json:
        """Return a value without its clocks: itself, if it has none.

        A date, or a number of (milli-, micro-, nano-) seconds since 1970, that is far from now is no clock, but what is
        asked about: another day, an order, a phone number.
        """
        if isinstance(value, str):
            return CLOCK.sub(lambda found: "0" if self._is_clock(found[0]) else found[0], value)
        if isinstance(value, dict):
            entries = cast("dict[str, Any]", value)
            shaped = {key: self.shape(item) for key, item in entries.items()}
            return shaped if any(shaped[key] is not item for key, item in entries.items()) else entries
        if kind_of(value) is list:
            items = [self.shape(item) for item in value]
            return items if any(item is not was for item, was in zip(items, value, strict=True)) else value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return 0 if abs(value) >= stamp_min_s and self._is_stamp(value) else value
        return value

    def _is_clock(self, text: str) -> bool:
        if ":" in text:
            return True
        if "-" not in text:
            return self._is_stamp(float(text))
        try:
            day = date.fromisoformat(text)
        except ValueError:
            return False
        try:
            near = [datetime.combine(day + timedelta(days), time(), self.now.tzinfo).timestamp() for days in _DAYS]
        except OverflowError:  # it is at an end of the calendar
            return False
        return self._between(*near)

    def _is_stamp(self, number: float) -> bool:
        width = stamp_near_days * 86_400
        return any(self._between(number / unit - width, number / unit + width) for unit in (1, 10**3, 10**6, 10**9))

    def _between(self, since: float, until: float) -> bool:
        """Return whether now lies between two moments, and note how long that stays so."""
        inside = since <= self._now_s < until
        if inside:
            self.span = self.span.both(Span(since, until))
        elif self._now_s < since:
            self.span = self.span.both(Span(-inf, since))
        else:
            self.span = self.span.both(Span(until, inf))
        return inside


_DAYS: Final = (-date_near_days, date_near_days + 1)


def shape(value: Json, now: datetime) -> Json:
    """Return a request without its clocks. Nothing else may differ: an answer must not go to another question."""
    return Clocks(now).shape(value)
