"""runjournal: the journal that a long-running AI agent can't do without.

Everything public is here; it is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "runjournal":
    raise ImportError(f"import this package as runjournal, not as {__name__}")

if TYPE_CHECKING:
    from runjournal.engine.budget import Budget
    from runjournal.engine.failures import (
        CallFailed,
        CallOutcomeUnknown,
        DidNotHappen,
        EffectNotRecorded,
        InputDiffers,
        KeyReused,
        Mistake,
        NotSent,
        PlanChanged,
        Rejected,
        ResultUnusable,
        RunBusy,
        RunCancelled,
        RunFailed,
        RunNotDue,
        RunWaiting,
        StepDiverged,
        StepFailed,
        Transient,
    )
    from runjournal.engine.tools import KEY, Tool, Tx, tool
    from runjournal.log.base import Event, RecordedEvent, register
    from runjournal.log.errors import JournalError, WrongExpectation
    from runjournal.projections.state import Projection, RunState
    from runjournal.writing.appender import Batch
    from runjournal.writing.checkpoints import CheckpointPolicy, CheckpointWarning

    from .async_journal import AsyncJournal
    from .async_run import AsyncRun
    from .journal import Journal, Place
    from .run import Run

_HOMES = {
    "AsyncJournal": "runjournal.async_journal",
    "AsyncRun": "runjournal.async_run",
    "Batch": "runjournal.writing.appender",
    "Budget": "runjournal.engine.budget",
    "CallFailed": "runjournal.engine.failures",
    "CallOutcomeUnknown": "runjournal.engine.failures",
    "CheckpointPolicy": "runjournal.writing.checkpoints",
    "CheckpointWarning": "runjournal.writing.checkpoints",
    "DidNotHappen": "runjournal.engine.failures",
    "EffectNotRecorded": "runjournal.engine.failures",
    "Event": "runjournal.log.base",
    "InputDiffers": "runjournal.engine.failures",
    "Journal": "runjournal.journal",
    "JournalError": "runjournal.log.errors",
    "KEY": "runjournal.engine.tools",
    "KeyReused": "runjournal.engine.failures",
    "Mistake": "runjournal.engine.failures",
    "NotSent": "runjournal.engine.failures",
    "Place": "runjournal.journal",
    "PlanChanged": "runjournal.engine.failures",
    "Projection": "runjournal.projections.state",
    "RecordedEvent": "runjournal.log.base",
    "Rejected": "runjournal.engine.failures",
    "ResultUnusable": "runjournal.engine.failures",
    "Run": "runjournal.run",
    "RunBusy": "runjournal.engine.failures",
    "RunCancelled": "runjournal.engine.failures",
    "RunFailed": "runjournal.engine.failures",
    "RunNotDue": "runjournal.engine.failures",
    "RunState": "runjournal.projections.state",
    "RunWaiting": "runjournal.engine.failures",
    "StepDiverged": "runjournal.engine.failures",
    "StepFailed": "runjournal.engine.failures",
    "Tool": "runjournal.engine.tools",
    "Transient": "runjournal.engine.failures",
    "Tx": "runjournal.engine.tools",
    "WrongExpectation": "runjournal.log.errors",
    "register": "runjournal.log.base",
    "tool": "runjournal.engine.tools",
}

__all__ = [
    "AsyncJournal",
    "AsyncRun",
    "Batch",
    "Budget",
    "CallFailed",
    "CallOutcomeUnknown",
    "CheckpointPolicy",
    "CheckpointWarning",
    "DidNotHappen",
    "EffectNotRecorded",
    "Event",
    "InputDiffers",
    "Journal",
    "JournalError",
    "KEY",
    "KeyReused",
    "Mistake",
    "NotSent",
    "Place",
    "PlanChanged",
    "Projection",
    "RecordedEvent",
    "Rejected",
    "ResultUnusable",
    "Run",
    "RunBusy",
    "RunCancelled",
    "RunFailed",
    "RunNotDue",
    "RunState",
    "RunWaiting",
    "StepDiverged",
    "StepFailed",
    "Tool",
    "Transient",
    "Tx",
    "WrongExpectation",
    "register",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'runjournal' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
