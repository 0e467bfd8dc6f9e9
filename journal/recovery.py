"""Recovery, looked at: what a run would go on with, and what is to become of each call that was open. Reads only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from runjournal.engine.callees import tool_today
from runjournal.engine.verdict import UNDECIDED, Judged, judge
from runjournal.log import events as e
from runjournal.log.owner import moment
from runjournal.projections.state import RunState
from runjournal.writing import folding

from .logbook import Logbook
from .runner import Claim


@dataclass(frozen=True, slots=True)
class Recovery:
    """What recovery finds: the folded state, and a verdict for each call of the open step that has no outcome.

    `take()` becomes the owner; until then nothing is written.
    """

    run_id: str
    state: RunState
    verdicts: list[Judged]
    _take: Callable[[str | None], Claim | None]

    @property
    def questions(self) -> list[Judged]:
        """Return the calls that aren't sent again before a hook or a person has said whether they happened."""
        return [each for each in self.verdicts if each.verdict in UNDECIDED]

    def take(self, resume: Literal["crash", "reopen", "manual"] | None = None) -> Claim | None:
        """Become the owner; return None if the run may not go on. Raises RunBusy, RunNotDue."""
        return self._take(resume)


def recover(log: Logbook, run_id: str, take: Callable[[str | None], Claim | None]) -> Recovery:
    """Return a run as its next owner will find it, a process that knows the tools of this one.

    Raises RunNotFound, Unfoldable, CorruptLog.
    """
    state = log.fold(RunState, run_id)
    now = moment(log.clock, log.ownership.process)
    verdicts: list[Judged] = []
    for call_id, call in state.calls.open().items():
        record = folding.event_at(log.store, run_id, call.args_seq - state.offset)
        event = folding.filled_record(log.store, record).event if record else None
        args = event.args if isinstance(event, e.ToolStarted) else None
        happened = log.store.effect(state.status.scope, call_id) is not None
        verdict, why = judge(call, tool_today(call.tool), now, happened=happened)
        verdicts.append(
            Judged(call_id, call.tool, call.policy, call.read_only, call.attempt, call.started_at, args, verdict, why)
        )
    return Recovery(run_id, state, verdicts, take)
