# The names of the façade, each once: type checkers read this file, and `__init__.py` takes from it what it loads, and
# from where. One name a line, `from <module> import <name> as <name>`: so a typed package marks a re-export.

from runjournal.engine.budget import Budget as Budget
from runjournal.engine.failures import CallFailed as CallFailed
from runjournal.engine.failures import CallOutcomeUnknown as CallOutcomeUnknown
from runjournal.engine.failures import ChildFailed as ChildFailed
from runjournal.engine.failures import DidNotHappen as DidNotHappen
from runjournal.engine.failures import EffectNotRecorded as EffectNotRecorded
from runjournal.engine.failures import InputDiffers as InputDiffers
from runjournal.engine.failures import KeyReused as KeyReused
from runjournal.engine.failures import KindDiffers as KindDiffers
from runjournal.engine.failures import Mistake as Mistake
from runjournal.engine.failures import NotSent as NotSent
from runjournal.engine.failures import PlanChanged as PlanChanged
from runjournal.engine.failures import Rejected as Rejected
from runjournal.engine.failures import ResultUnusable as ResultUnusable
from runjournal.engine.failures import RunBusy as RunBusy
from runjournal.engine.failures import RunCancelled as RunCancelled
from runjournal.engine.failures import RunFailed as RunFailed
from runjournal.engine.failures import RunNotDue as RunNotDue
from runjournal.engine.failures import RunWaiting as RunWaiting
from runjournal.engine.failures import StepDiverged as StepDiverged
from runjournal.engine.failures import StepFailed as StepFailed
from runjournal.engine.failures import Transient as Transient
from runjournal.engine.media import attach as attach
from runjournal.engine.media import read_blob as read_blob
from runjournal.engine.resuming import ResumeReport as ResumeReport
from runjournal.engine.retry import Retry as Retry
from runjournal.engine.tools import KEY as KEY
from runjournal.engine.tools import Tool as Tool
from runjournal.engine.tools import Tx as Tx
from runjournal.engine.tools import tool as tool
from runjournal.log.base import Event as Event
from runjournal.log.base import RecordedEvent as RecordedEvent
from runjournal.log.base import register as register
from runjournal.log.errors import JournalError as JournalError
from runjournal.log.errors import WrongExpectation as WrongExpectation
from runjournal.projections.state import Projection as Projection
from runjournal.projections.state import RunState as RunState
from runjournal.writing.appender import Batch as Batch
from runjournal.writing.checkpoints import CheckpointPolicy as CheckpointPolicy
from runjournal.writing.checkpoints import CheckpointWarning as CheckpointWarning

from .async_journal import AsyncJournal as AsyncJournal
from .async_run import AsyncRun as AsyncRun
from .code_check import CodeCheck as CodeCheck
from .journal import Journal as Journal
from .journal import Place as Place
from .questions import OpenQuestion as OpenQuestion
from .run import Run as Run
from .telling import HookWarning as HookWarning
from .telling import Waiting as Waiting
from .telling import by_command as by_command

__all__: list[str]  # noqa: PYI035 - the names stand above, once
