"""The calls of a run that are in flight, and those of which nobody knows what became."""

from __future__ import annotations

from typing import Any, NamedTuple

from runjournal.engine.callees import tool_today
from runjournal.engine.verdict import judge
from runjournal.log import events as e
from runjournal.log.base import Json
from runjournal.log.owner import moment
from runjournal.logbook import Logbook
from runjournal.projections.calls import Call
from runjournal.projections.state import RunState
from runjournal.projections.status import reference
from runjournal.writing import folding


class OpenCall(NamedTuple):
    """A call in flight, or one of which nobody knows: `status` is open or unknown.

    `seq` is where its newest attempt started: 0 and below counts back in the run that this one goes on from.
    `args` is None for a model call, and a `BlobRef` where the args are large. `verdict` is what recovery does with it
    (recorded, run, hook, ask, fail, tell), and `why`; "" in a run that isn't gone on with here.
    """

    call_id: str
    tool: str
    status: str
    policy: str
    step: str
    attempt: int
    seq: int
    started_at: str
    args: Json
    verdict: str = ""
    why: str = ""


def open_calls(journal: Logbook, state: RunState) -> list[OpenCall]:
    """Return the calls in flight and those that nobody knows of, in the order of their start, with their args."""
    chosen = state.calls.open() | state.calls.unresolved()
    return [_open_call(journal, state, call_id, call) for call_id, call in chosen.items()]


def _open_call(journal: Logbook, state: RunState, call_id: str, call: Call) -> OpenCall:
    started = folding.event_at(journal.store, state.run_id, call.args_seq - state.offset)
    args: Json = started.event.args if started and isinstance(started.event, e.ToolStarted) else None
    status = "open" if call.status == "open" else "unknown"
    seq = call.latest - state.offset
    verdict, why = "", ""
    if not state.status.unowned:
        happened = journal.store.effect(state.status.scope, call_id) is not None
        verdict, why = judge(
            call, tool_today(call.tool), moment(journal.clock, journal.ownership.process), happened=happened
        )
    return OpenCall(
        call_id, call.tool, status, call.policy, call.step, call.attempt, seq, call.started_at, args, verdict, why
    )


def call_as_json(call: OpenCall) -> dict[str, Any]:
    """Return a call as JSON; large args by reference."""
    return call._asdict() | {"args": reference(call.args)}
