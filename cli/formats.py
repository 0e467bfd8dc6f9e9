"""Times, money and counts as people read them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Final

from .safe import line

UNKNOWN: Final = "1970-01-01T00:00:00.000000Z"
"""The time that an importer sets on events that have none."""
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


def moment(text: str | None) -> str:
    """A stored time as people read it: UTC, to the second; one that is none as it is, made safe; "-" if unknown."""
    if text and text.startswith(UNKNOWN):
        return "-"
    if text and len(text) >= len("2026-11-29T13:28:05"):
        text = f"{text[:10]} {text[11:19]}Z"
    return line(text or "", 40)


def duration(began: str | None, ended: str | None) -> str:
    """The time between two stored times, as people say it; nothing where one is missing or unknown."""
    if (began or "").startswith(UNKNOWN):
        return ""
    try:
        seconds = (datetime.fromisoformat(ended or "") - datetime.fromisoformat(began or "")).total_seconds()
    except ValueError:
        return ""
    if abs(seconds) < _MINUTE_S:
        return f"{seconds:.2f} s" if abs(seconds) < 10 else f"{seconds:.0f} s"  # noqa: PLR2004
    if abs(seconds) < _HOUR_S:
        return f"{seconds // 60:.0f} min"
    return f"{seconds / _HOUR_S:.1f} h" if abs(seconds) < _DAY_S else f"{seconds / _DAY_S:.1f} d"


def when(text: str | None) -> str:
    """A `moment` without the Z, for columns."""
    return moment(text).removesuffix("Z")


def money(text: str, places_max: int | None = None) -> str:
    """Money as people read it: no zeros at its end but for two places; rounded to `places_max`, if that is passed."""
    value = Decimal(text)
    places = max(0, -int(value.normalize().as_tuple().exponent))
    places = places if places_max is None else min(places, places_max)
    return f"{value:,.{max(2, places)}f}"


def amount(number: int | None) -> str:
    """A number with its thousands apart."""
    return "" if number is None else f"{number:,}"


def at_least(text: str, least: bool) -> str:  # noqa: FBT001 - one thing to say, and whether it is so
    """Return the text of a sum; behind `>=`, if parts of it are unknown."""
    return f">= {text}" if least else text


def size(number: int) -> str:
    """A number of bytes as people say it: `999 bytes`, `34 KB`, `1.2 MB`."""
    if number < 1e3:  # noqa: PLR2004 - what the prefixes say
        return plural(number, "byte")
    return f"{number / 1e3:.0f} KB" if number < 1e6 else f"{number / 1e6:,.1f} MB"  # noqa: PLR2004


def plural(count: int, noun: str) -> str:
    """`1 event`, `2 events`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
