"""Which values held out of line the stored bytes of an event name, however they are written: nobody's value is lost."""

from __future__ import annotations

import re
from typing import Any, Final, cast

import orjson

_DIGEST: Final = re.compile(rb'"([0-9a-f]{64})"')
_ESCAPE: Final = b"\\u"
"""By this JSON can write any letter in another way."""


def may_name(body: bytes) -> bool:
    """Return whether an event may name a value that is held out of line; most events don't, and aren't parsed."""
    return b'"ext"' in body or b'"names"' in body or _ESCAPE in body


def references(body: bytes) -> set[str]:
    """Return the digests of the values and bytes that an event refers to; none of one that can't be read."""
    if not may_name(body):
        return set()
    envelope = _envelope(body)
    ext = envelope.get("ext")
    values = cast("dict[str, Any]", ext).values() if isinstance(ext, dict) else ()
    digests = (cast("dict[str, Any]", ref).get("sha256") for ref in values if isinstance(ref, dict))
    return {digest for digest in digests if isinstance(digest, str)} | _names(envelope)


def names(body: bytes) -> set[str]:
    """Return the digests of the bytes that references in an event's values lead to."""
    return _names(_envelope(body)) if b'"names"' in body or _ESCAPE in body else set()


def _names(envelope: dict[str, Any]) -> set[str]:
    found = envelope.get("names")
    items = cast("list[object]", found) if isinstance(found, list) else []
    return {each for each in items if isinstance(each, str)}


def digests(body: bytes) -> set[str]:
    """Return every digest that an event may refer to, wherever it stands; texts that look like one are among them."""
    if not may_name(body):
        return set()
    found = {each.decode() for each in _DIGEST.findall(body)}
    if _ESCAPE in body:
        found |= {each for each in references(body) if re.fullmatch(r"[0-9a-f]{64}", each)}
    return found


def _envelope(body: bytes) -> dict[str, Any]:
    """Return the JSON of a stored event, {} if it can't be read: it is carried over as it is."""
    try:
        envelope = orjson.loads(body)
    except ValueError:
        return {}
    return cast("dict[str, Any]", envelope) if isinstance(envelope, dict) else {}
