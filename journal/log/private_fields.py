"""What can be private of each event type of the package, each a path with `*` for every item.

Names, keys, tags, kinds, ids, times, numbers and who wrote it never are: with them the log still says what was done.
An event type of a user's own says it itself, as `PRIVATE` of its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .errors import InvalidArgument
from .shapes import DIGEST, Anything

ERASED_TEXT: Final = "(erased)"
"""What stands for an erased value where only a text can stand."""

_ERROR: Final = ("error.message", "error.note", "error.traceback", "error.original.message")

PRIVATE_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "run.queued": ("input", "messages.*.content", "messages.*.raw", "plan.*.title", "plan.*.note", "title"),
    "run.imported": ("title", "note", "path"),
    "run.opened": ("title",),
    "run.waiting": ("why",),
    "run.retry_scheduled": _ERROR,
    "run.requeued": ("note", "error.message"),
    "run.completed": ("output",),
    "run.failed": _ERROR,
    "run.cancel_requested": ("reason",),
    "run.cancelled": ("reason",),
    "step.completed": ("result",),
    "step.failed": _ERROR,
    "message.appended": ("content", "raw"),
    "model.started": ("params", "request", "request_hash", "prompt_fingerprint", "parts"),
    "model.completed": ("response",),
    "model.failed": _ERROR,
    "tool.started": ("args",),
    "tool.completed": ("result", *(f"result_{path}" for path in _ERROR)),
    "tool.failed": _ERROR,
    "tool.resolved": ("result", "note"),
    "memory.set": ("value",),
    "prompt.pinned": ("fingerprint", "layers.*", "text"),
    "approval.requested": ("reason", "args", "args_schema", "preview", "choices.*", "default.args", "default.choice"),
    "approval.resolved": ("args", "note", "choice"),
    "signal.received": ("payload",),
    "child.finished": ("output", *_ERROR),
    "plan.set": ("tasks.*.title", "tasks.*.note"),
    "plan.updated": ("note",),
    "context.compacted": ("summary",),
    "note.added": ("text",),
    "blob.attached": ("content", "name"),
}
"""By type. That of an error is the name of a class, and stays."""


def check_paths(name: str, paths: tuple[str, ...], fields: Mapping[str, tuple[Any, bool]]) -> None:
    """Raise InvalidArgument unless each path leads to what can be taken out of an event, and no two overlap.

    That is a text, or any JSON, or a whole field that may be missing or be held out of line: what is left must be an
    event of its class once the value is erased. `name` is the class's, `fields` its fields by name, each with its shape
    and whether it can be left out.
    """
    split = [path.split(".") for path in paths]
    for place, parts in enumerate(split):
        for other in split[:place]:
            if all(one == two or "*" in (one, two) for one, two in zip(parts, other, strict=False)):
                raise InvalidArgument(
                    f"{name}.PRIVATE: {'.'.join(other)!r} and {'.'.join(parts)!r} overlap; name the outer one"
                )
    for parts in split:
        if parts[0] not in fields:
            raise InvalidArgument(f"{name}.PRIVATE: {parts[0]!r} is none of its fields, which are {', '.join(fields)}")
        shape, left_out = fields[parts[0]]
        if not (left_out and len(parts) == 1) and not _may_be_text(shape, parts[1:]):
            raise InvalidArgument(
                f"{name}.PRIVATE: {'.'.join(parts)!r} is no text, so nothing could stand for it once it is erased; "
                "take the whole field, and give it a default or name it in BLOBS"
            )


def _may_be_text(shape: Any, parts: list[str]) -> bool:
    """Return whether a text may stand at a path below a shape."""
    for part in parts:
        if isinstance(shape, Anything):
            return True
        known = {**getattr(shape, "required", {}), **getattr(shape, "optional", {})}
        inner = (getattr(shape, "item", None) if part == "*" else known.get(part)) or getattr(shape, "value", None)
        if inner is None:
            return False
        shape = inner
    try:
        shape.check(ERASED_TEXT, "")
    except InvalidArgument:
        return bool(shape == DIGEST)
    return True
