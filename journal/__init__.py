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
    from runjournal.log.errors import JournalError, WrongExpectation
    from runjournal.projections.state import Projection, RunState

    from .appender import Batch
    from .async_journal import AsyncJournal
    from .async_run import AsyncRun
    from .budget import Budget
    from .checkpoints import CheckpointPolicy, CheckpointWarning
    from .failures import (
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
    from .journal import Journal, Place
    from .run import Run
    from .tools import KEY, Tool, Tx, tool

_HOMES = {
    "AsyncJournal": "runjournal.async_journal",
    "AsyncRun": "runjournal.async_run",
    "Batch": "runjournal.appender",
    "Budget": "runjournal.budget",
    "CallFailed": "runjournal.failures",
    "CallOutcomeUnknown": "runjournal.failures",
    "CheckpointPolicy": "runjournal.checkpoints",
    "CheckpointWarning": "runjournal.checkpoints",
    "DidNotHappen": "runjournal.failures",
    "EffectNotRecorded": "runjournal.failures",
    "Event": "runjournal.log.base",
    "InputDiffers": "runjournal.failures",
    "Journal": "runjournal.journal",
    "JournalError": "runjournal.log.errors",
    "KEY": "runjournal.tools",
    "KeyReused": "runjournal.failures",
    "Mistake": "runjournal.failures",
    "NotSent": "runjournal.failures",
    "Place": "runjournal.journal",
    "PlanChanged": "runjournal.failures",
    "Projection": "runjournal.projections.state",
    "RecordedEvent": "runjournal.log.base",
    "Rejected": "runjournal.failures",
    "ResultUnusable": "runjournal.failures",
    "Run": "runjournal.run",
    "RunBusy": "runjournal.failures",
    "RunCancelled": "runjournal.failures",
    "RunFailed": "runjournal.failures",
    "RunNotDue": "runjournal.failures",
    "RunState": "runjournal.projections.state",
    "RunWaiting": "runjournal.failures",
    "StepDiverged": "runjournal.failures",
    "StepFailed": "runjournal.failures",
    "Tool": "runjournal.tools",
    "Transient": "runjournal.failures",
    "Tx": "runjournal.tools",
    "WrongExpectation": "runjournal.log.errors",
    "register": "runjournal.log.base",
    "tool": "runjournal.tools",
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
