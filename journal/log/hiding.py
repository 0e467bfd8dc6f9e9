"""From a draft to one whose private values are encrypted, and from a blob to its value."""

from __future__ import annotations

from typing import Any

import orjson

from . import cipher
from .base import ERASED, BlobRef, Json
from .codec import Draft, digest_of, dumps, loads, with_refs
from .private_values import Keys, box, take


def hide(draft: Draft, key: bytes, run_id: str, seq: int) -> Draft:
    """Return a draft as a private run stores it at a place: its event as before, its values encrypted.

    The same draft at the same place is stored as the same bytes. The first event of a private run says that it is one,
    even if nothing in it is private. Raises MissingExtra.
    """
    data: dict[str, Json] = loads(draft.data)
    ext: dict[str, dict[str, Any]] = loads(draft.ext) if draft.ext else {}
    taken, out = take(draft.event, data)
    event, blobs = draft.event, dict(draft.blobs)
    private = [name for name, ref in ext.items() if name in draft.event.PRIVATE and ref["sha256"] in blobs]
    if not (taken or private or seq == 1):
        return draft
    for name in private:
        body = cipher.encrypt_blob(key, run_id, blobs.pop(ext[name]["sha256"]))
        ext[name] = {"sha256": digest_of(body), "bytes": len(body)}
        blobs[ext[name]["sha256"]] = body
    if private:
        event = with_refs(event, ext)
    hidden = orjson.dumps({"box": box(key, run_id, seq, draft.type, taken), "out": out}) if taken else b'{"out":[]}'
    text, more = dumps(data), orjson.dumps(ext) if ext else b""
    return Draft(
        event, draft.type, draft.at, draft.by, draft.step, text, more, tuple(blobs.items()), hidden, draft.names
    )


def blob_value(body: bytes, keys: Keys) -> Json | BlobRef:
    """Return the value that the bytes of a blob hold; ERASED if it was. Raises ValueError, MissingExtra."""
    run_id = cipher.blob_run(body)
    if run_id is None:
        return loads(body)
    key = keys(run_id)
    return ERASED if key is None else loads(cipher.decrypt_blob(key, body))
