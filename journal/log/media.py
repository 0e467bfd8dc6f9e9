"""References to bytes: what stands in JSON for bytes that are held out of line, such as a screenshot or a PDF.

    {"$blob":"<sha256>","bytes":34816,"media_type":"image/png","name":"page.png"}

Such an object may stand anywhere in a value, and comes back as it is: nothing ever puts bytes in its place. Whoever
wants them asks for them. An event whose values hold references lists their digests in its body, as `names`, so that
what the event needs is known without its values, be these out of line or encrypted. An object with other keys, or
values of other shapes, is no reference.

`private` is in one to bytes of a private run. These are stored encrypted, and the digest is that of what is stored: it
tells nothing of them, and erasing the run's key takes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from . import cipher
from .base import Json
from .errors import ChangedBlob, InvalidArgument, MissingBlob, NotAllowed
from .private_values import Keys
from .shapes import DIGEST, MEDIA_TYPE, Fields, Flag, Name, Whole, kind_of

MARK: Final = b'"$blob"'
"""What is in the JSON of every value that holds a reference."""
_KEY: Final = "$blob"
_SHAPE: Final = Fields({_KEY: DIGEST, "bytes": Whole(1), "media_type": MEDIA_TYPE}, {"name": Name(), "private": Flag()})


def reference(digest: str, size: int, media_type: str, name: str | None, *, private: bool) -> dict[str, Json]:
    """Return the reference to bytes that are stored under a digest."""
    found: dict[str, Json] = {_KEY: digest, "bytes": size, "media_type": media_type}
    if name is not None:
        found["name"] = name
    if private:
        found["private"] = True
    return found


def checked(value: object) -> dict[str, Any]:
    """Return a value that is a reference, or raise InvalidArgument, which says in what it isn't one."""
    if kind_of(value) is not dict:
        raise InvalidArgument(
            f"expected a reference to bytes, as `attach` returns it, got {type(value).__name__}; nothing was read"
        )
    try:
        _SHAPE.check(value, "the reference")
    except InvalidArgument as error:
        raise InvalidArgument(str(error).replace("nothing was written", "nothing was read")) from None
    return cast("dict[str, Any]", value)


def is_reference(value: object) -> bool:
    """Return whether a value is a reference to bytes."""
    if kind_of(value) is not dict or _KEY not in cast("dict[str, Any]", value):
        return False
    try:
        checked(value)
    except InvalidArgument:
        return False
    return True


def references_in(value: Json) -> Iterator[dict[str, Any]]:
    """Yield the references that stand anywhere in a value."""
    left: list[Any] = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            if is_reference(cast("object", each)):
                yield cast("dict[str, Any]", each)
            else:
                left.extend(cast("dict[str, Any]", each).values())
        elif isinstance(each, list):
            left.extend(cast("list[Any]", each))  # type: ignore[redundant-cast]  # for pyright


def named_in(value: Json) -> list[str]:
    """Return the digests of the references that stand anywhere in a value, each once, sorted."""
    return sorted({ref[_KEY] for ref in references_in(value)})


def opened(value: object, blob: Callable[[str], bytes | None], keys: Keys) -> bytes:
    """Return the bytes that a reference leads to, compared with its digest; `blob` and `keys` are those of the store.

    Raises InvalidArgument for what is no reference, MissingBlob, ChangedBlob, NotAllowed for those of an erased run,
    MissingExtra.
    """
    ref = checked(value)
    digest: str = ref[_KEY]
    body = blob(digest)
    if body is None:
        raise MissingBlob(digest, "a reference to bytes")
    if hashlib.sha256(body).hexdigest() != digest:
        raise ChangedBlob(digest)
    if ref.get("private"):
        body = _decrypted(digest, body, keys)
    if len(body) != ref["bytes"]:
        raise InvalidArgument(f"the reference says {ref['bytes']} bytes, and there are {len(body)}: it was changed")
    return body


def _decrypted(digest: str, body: bytes, keys: Keys) -> bytes:
    run_id = cipher.blob_run(body)
    if run_id is None:
        raise InvalidArgument("the reference says that its bytes are private, and they aren't: it was changed")
    key = keys(run_id)
    if key is None:
        raise NotAllowed(f"these bytes belong to run {run_id}, whose key was erased, or isn't in this store")
    try:
        return cipher.decrypt_blob(key, body)
    except ValueError:
        raise ChangedBlob(digest) from None
