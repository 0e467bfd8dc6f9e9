"""What can be private of each event type of the package, each a path with `*` for every item.

Names, keys, tags, kinds, ids, times, numbers and who wrote it never are: with them the log still says what was done.
An event type of a user's own says it itself, as `PRIVATE` of its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
    "tool.completed": (
        "result",
        "result_error.message",
        "result_error.note",
        "result_error.traceback",
        "result_error.original.message",
    ),
    "tool.failed": _ERROR,
    "tool.resolved": ("result", "note"),
    "memory.set": ("value",),
    "prompt.pinned": ("fingerprint", "layers.*", "text"),
    "approval.requested": ("reason", "args", "args_schema", "preview"),
    "approval.resolved": ("args", "note"),
    "signal.received": ("payload",),
    "child.finished": ("output",),
    "plan.set": ("tasks.*.title", "tasks.*.note"),
    "plan.updated": ("note",),
    "context.compacted": ("summary",),
    "note.added": ("text",),
}
"""By type. That of an error is the name of a class, and stays."""
