"""Bytes of a run, such as screenshots: how they come in and are read, by its agent, its tools and its models' calls.

They come in as anybody's note does, beside the steps and calls of the owner (engine.md A25): what brings them in tells
the agent nothing, and is told to nobody again. What stands in a result or a message is the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from runjournal.log import media
from runjournal.log.base import BlobRef, Json, RecordedEvent
from runjournal.log.cipher import encrypt_blob
from runjournal.log.codec import digest_of
from runjournal.log.errors import InvalidArgument
from runjournal.log.events import BlobAttached
from runjournal.log.store import Store

from .failures import NotInRun
from .tools import IN_TOOL


def attachment(data: object, media_type: str, name: str | None) -> BlobAttached:
    """Return the event of bytes that come in. Raises InvalidArgument for what is no bytes, or none."""
    if not isinstance(data, bytes | bytearray | memoryview):
        hint = "; read the file, or encode the text" if isinstance(data, str) else ""
        raise InvalidArgument(f"attach: expected bytes, got {type(data).__name__}{hint}; nothing was written")
    content = data if isinstance(data, bytes) else bytes(cast("bytearray", data))
    if not content:
        raise InvalidArgument("attach: expected some bytes, got none; nothing was written")
    return BlobAttached(content, media_type, len(content), name)


def reference_of(record: RecordedEvent) -> dict[str, Json] | None:
    """Return the reference to the bytes of a `blob.attached`; None for any other event, or one that can't be read."""
    event = record.event
    if not isinstance(event, BlobAttached) or not isinstance(event.content, BlobRef):
        return None
    return media.reference(event.content.sha256, event.bytes, event.media_type, event.name, private=record.private)


class RunMedia:
    """The bytes of one run. `append` brings an event in; None: nothing is written, as when code is checked."""

    def __init__(self, store: Store, run_id: str, append: Callable[[BlobAttached], RecordedEvent] | None) -> None:
        self._store = store
        self._run_id = run_id
        self._append = append

    def attach(self, data: object, media_type: str, name: str | None) -> dict[str, Json]:
        """Bring bytes in; return the reference to them. Raises InvalidArgument, TooLarge, AppendRefused, StoreError."""
        event = attachment(data, media_type, name)
        found = None if self._append is None else reference_of(self._append(event))
        if found is not None:
            return found
        key, body = self._store.key(self._run_id), event.content
        body = body if key is None else encrypt_blob(key, self._run_id, body)
        return media.reference(digest_of(body), event.bytes, media_type, name, private=key is not None)

    def read(self, ref: Json) -> bytes:
        """Return the bytes that a reference leads to; raises what `media.opened` raises."""
        return media.opened(ref, self._store.blob, self._store.key)


def attach(data: bytes, media_type: str, name: str | None = None) -> dict[str, Any]:
    """Bring bytes into the run whose tool, or whose model's call, this is in; return the reference; see `Run.attach`.

    Raises NotInRun anywhere else: there it is `run.attach`.
    """
    return _here("attach").attach(data, media_type, name)


def read_blob(ref: Json) -> bytes:
    """Return the bytes that a reference leads to, in a tool or in a model's call; see `Run.read_blob`."""
    return _here("read_blob").read(ref)


def _here(verb: str) -> RunMedia:
    found = getattr(IN_TOOL.get(), "media", None)
    if not isinstance(found, RunMedia):
        raise NotInRun(
            f"{verb} was called outside the tools and models' calls of a run: there it is run.{verb} or journal.{verb}"
        )
    return found
