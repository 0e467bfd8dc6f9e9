"""What a run of the model and the same run of the product have in common: all that the rules decide."""

from __future__ import annotations

import json
import re
from typing import Any

from model.lab import Lab

UNKNOWN = re.compile(r"[\w ]+ \(([^()\"]+)\) may have happened, and nobody knows(; it raised \w+: [\w ]+)?")
SAID = {
    "run.queued": ("link", "again"),
    "run.requeued": ("mistake",),
    "run.waiting": ("for", "timers", "signals"),
    "run.completed": ("output",),
    "run.failed": ("cause", "left"),
    "step.started": ("id", "name", "kind", "index", "entry", "attempt"),
    "step.completed": ("index", "result"),
    "step.failed": ("index", "error"),
    "model.started": ("call_id", "tool", "attempt", "args"),
    "model.completed": ("call_id", "attempt", "result"),
    "model.failed": ("call_id", "attempt", "error", "again"),
    "tool.started": ("call_id", "tool", "policy", "attempt", "args"),
    "tool.completed": ("call_id", "attempt", "result"),
    "tool.failed": ("call_id", "attempt", "error", "did_not_happen", "again", "lost", "settled"),
    "tool.adopted": ("call_id",),
    "tool.resolved": ("call_id", "attempt", "outcome", "result", "late"),
    "message.appended": ("role", "content"),
    "memory.set": ("key", "value"),
    "plan.updated": ("task_id", "status"),
    "child.spawned": ("child", "call_id"),
    "child.finished": ("child", "status", "output"),
    "approval.requested": ("approval_id", "action", "args"),
    "approval.resolved": ("approval_id", "decision", "args"),
    "signal.received": ("payload",),
    "signal.taken": ("wait_id", "took"),
    "timer.set": ("timer_id",),
    "timer.fired": ("timer_id",),
}
"""What of an event is compared; of other types, that it is there."""


def words(value: Any) -> Any:
    """A value without the product's own wording, in one order."""
    return json.loads(UNKNOWN.sub(r"\1", json.dumps(value, sort_keys=True)))


def story(lab: Lab) -> dict[str, list[Any]]:
    """The events of each run. The index of a step isn't compared where there are forks: the model's leaves a gap for a
    step that was open or had failed, while a fork begins behind the last completed step."""
    forked = any(log[0].data.get("link") == "fork" for log in lab.store.log.values())
    return {run_id: [_line(event, forked) for event in log] for run_id, log in lab.store.log.items()}


def _line(event: Any, forked: bool) -> Any:
    said = {name: event.data.get(name) or None for name in SAID.get(event.type, ()) if not (forked and name == "index")}
    if event.type == "run.waiting":
        said["for"] = sorted(said["for"] or [])
    return [event.type, words(said)]


def sight(lab: Lab) -> Any:
    """All that can be seen of a world, a store and its runs."""
    ends = {run_id: words({"status": (state := lab.store.state(run_id)).status, "context": state.context,
                           "done": state.done, "uses": state.uses, "unresolved": sorted(state.unresolved()),
                           "inbox": [payload for _, payload in state.inbox]})
            for run_id in lab.store.log}  # fmt: skip
    return {
        "story": story(lab),
        "ends": ends,
        "effects": lab.world.effects,
        "paid": lab.world.paid,
        "table": sorted(lab.store.table),
        "ticks": lab.world.ticks,
    }


def agree(model: Lab, product: Lab, *but: str) -> None:
    """Raise AssertionError at the first difference."""
    expected, actual = sight(model), sight(product)
    for run_id, events in expected["story"].items():
        theirs = actual["story"].get(run_id, [])
        for place, (mine, other) in enumerate(zip(events, theirs, strict=False)):
            assert mine == other, f"{run_id}, event {place + 1}"
        assert events == theirs, run_id
    for what in expected.keys() - set(but):
        assert expected[what] == actual[what], what
