"""What a model was asked, read back from the log: `model.started` holds what is new in a request (engine.md C14).

`request` is {after, keys, keep, tail, rest}, each left out where it says nothing. `after` is the seq of the earlier
`model.started` of the run that it goes on from. `keys` are the keys of the request in their order, left out if they are
those of `after`; a request that is no object has none, and is held by the key "". A list by a key is the first `keep`
elements of the one before, and the `tail`; `rest` holds what else stands by a key. A key that none of them names has
what it had before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from runjournal.log.base import BlobRef, Event, Json
from runjournal.log.call_events import ModelStarted
from runjournal.log.shapes import kind_of

NO_LIST: Final = hashlib.sha256(b"").digest()
"""The hash of a list without elements."""


def sha256_of(value: Json) -> bytes:
    """Return the hash of a value's JSON: that of the standard library, keys sorted, not escaped."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).digest()


def hash_of(rest: Json, lists: Mapping[str, str]) -> str:
    """Return the hash of a request, of what it holds beside its lists and the hash of each list by its key."""
    return sha256_of([rest, lists]).hex()


def request_hash(request: Json) -> str:
    """Return the hash of a request: what `model.started` calls by this name, for whoever has the request itself."""
    given = cast("dict[str, Json]", request) if isinstance(request, dict) else {"": request}
    chains: dict[str, str] = {}
    for key, items in given.items():
        if kind_of(items) is list:
            chain = NO_LIST
            for item in items:
                chain = hashlib.sha256(chain + sha256_of(item)).digest()
            chains[key] = chain.hex()
    rest = {key: item for key, item in given.items() if key not in chains}
    return hash_of(rest if isinstance(request, dict) else rest.get(""), chains)


class NotStored(Exception):
    """The request isn't in the log, or isn't the one that was asked."""


def rebuilt(event: ModelStarted, seq: int, at: Callable[[int], Event | None]) -> Json:
    """Return the whole request of the model.started at a seq, which hashes to what the event says.

    `at(seq)` returns an event of the same run, values that are held out of line in place. Raises NotStored.
    """
    changes: list[dict[str, Any]] = []
    before: Event | None = event
    while True:
        change: Json = before.request if isinstance(before, ModelStarted) else None
        if change is None or isinstance(change, BlobRef):
            raise NotStored(f"event {seq} doesn't hold the request")
        changes.append(change)
        after = change.get("after")
        if after is None:
            break
        if after >= seq:
            raise NotStored(f"the request of event {seq} is to go on from a later one")
        seq, before = after, at(after)
    keys: list[str] | None = None
    found: dict[str, Any] = {}
    for change in reversed(changes):
        keys, found = _gone_on(keys, found, change)
    whole: Json = found.get("") if keys is None else found
    if request_hash(whole) != event.request_hash:
        raise NotStored("the request on record isn't the one that was asked")
    return whole


def _gone_on(
    keys: list[str] | None, before: dict[str, Any], change: dict[str, Any]
) -> tuple[list[str] | None, dict[str, Any]]:
    """Return a request, by its keys, and these, after one more change."""
    keys = change.get("keys", keys)
    keep: dict[str, int] = change.get("keep") or {}
    tail: dict[str, list[Any]] = change.get("tail") or {}
    rest: dict[str, Any] = change.get("rest") or {}
    found: dict[str, Any] = {}
    for key in [""] if keys is None else keys:
        if key in rest:
            found[key] = rest[key]
        elif key in keep or key in tail:
            kept: Json = before.get(key)
            found[key] = (kept[: keep[key]] if key in keep and kind_of(kept) is list else []) + tail.get(key, [])
        else:
            found[key] = before.get(key)
    return keys, found
