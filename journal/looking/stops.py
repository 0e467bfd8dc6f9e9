"""Where today's code has stopped a run, and what a fork from before that place would send again."""

from __future__ import annotations

from typing import NamedTuple

from runjournal.log import events as e
from runjournal.logbook import Logbook
from runjournal.projections.state import RunState
from runjournal.sent import SentCall, redone, sent_by
from runjournal.writing import folding


class Differs(NamedTuple):
    """Where today's code goes another way than the log: at a step, which first began behind event `at` of `run_id`.

    `what` is that of the stop: `plan`, `step` or `request`. `sent` are the calls that were sent since.
    """

    step: str
    what: str
    run_id: str
    at: int
    sent: list[SentCall]


def stopped_at(log: Logbook, state: RunState) -> Differs | None:
    """Return where today's code has stopped a run; None if that isn't on record."""
    wait = next((wait for wait in state.status.waits if "step" in wait), None) if state.stands == "code" else None
    began = None if wait is None else _began(log, state.run_id, wait["step"])
    if wait is None or began is None:
        return None
    return Differs(wait["step"], wait["differs"], *began, redone(log, *began, sent_by(log, state.run_id)))


def _began(log: Logbook, run_id: str, step: str) -> tuple[str, int] | None:
    """Return behind which event of which run a step first began, by its id or by its name in a loop."""
    found: tuple[str, int] | None = None
    of, upto = run_id, None
    while True:
        for record in log.store.read(of, 0, upto, types=("step.started",)):
            if isinstance(record.event, e.StepStarted) and step in (record.event.id, record.event.name):
                found = of, record.seq - 1
                break
        queued = folding.first(log.store, of)
        if queued is None or queued.base is None or queued.link not in ("retry", "fork"):
            return found
        of, upto = str(queued.base["run_id"]), int(queued.base["seq"])
