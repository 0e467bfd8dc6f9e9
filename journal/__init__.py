"""runjournal: the journal that a long-running AI agent can't do without.

Everything public is here; it is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "runjournal":
    raise ImportError(f"import this package as runjournal, not as {__name__}")

if TYPE_CHECKING:
    from runjournal.log.base import Event, RecordedEvent, register
    from runjournal.log.errors import JournalError
    from runjournal.projections.state import Projection, RunState

    from .appender import Batch
    from .checkpoints import CheckpointPolicy, CheckpointWarning
    from .journal import Journal, Place

_HOMES = {
    "Batch": "runjournal.appender",
    "CheckpointPolicy": "runjournal.checkpoints",
    "CheckpointWarning": "runjournal.checkpoints",
    "Event": "runjournal.log.base",
    "Journal": "runjournal.journal",
    "JournalError": "runjournal.log.errors",
    "Place": "runjournal.journal",
    "Projection": "runjournal.projections.state",
    "RecordedEvent": "runjournal.log.base",
    "RunState": "runjournal.projections.state",
    "register": "runjournal.log.base",
}

__all__ = [
    "Batch",
    "CheckpointPolicy",
    "CheckpointWarning",
    "Event",
    "Journal",
    "JournalError",
    "Place",
    "Projection",
    "RecordedEvent",
    "RunState",
    "register",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'runjournal' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
