"""What differs between what is on record and what is asked for today: for the text of a stop (engine.md D8).

A deploy that changed a prompt or an argument stops a step that has sent something. Whoever reads that at night has to
know which text it was. The args of a tool are on record; of a request to a model its parts are, each as a short digest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

from runjournal.log import events as e
from runjournal.log.base import Json
from runjournal.log.differences import differences
from runjournal.log.limits import differences_told_max, differing_text_chars_max
from runjournal.projections.calls import Call

from .core import Core
from .recorded_requests import recorded_parts
from .requests import AskedRequest
from .script import Entry


def what_differs(core: Core, entry: Entry, left: set[str]) -> str:
    """Return a sentence that names what of the recorded asks differs today, by JSON path; "" if nothing is known.

    `left` are the calls and questions that were sent or asked and weren't asked for in this entry. Of each the newest
    ask that isn't on record, of the same tool or model, is what it is compared with.
    """
    found = list(islice(_differing(core, entry, left), differences_told_max + 1))
    if len(found) > differences_told_max:
        found[-1] = "and more"
    return f"; what differs: {', '.join(found)}" if found else ""


def asks_otherwise(core: Core, entry: Entry) -> bool:
    """Return whether a question to a model isn't the one on record in its place: the answer on record could stand."""
    return any(True for _ in _other_requests(core, entry))


def _other_requests(core: Core, entry: Entry) -> Iterator[tuple[Call, Json]]:
    """Yield each call of a model that another request was made in place of, with that request."""
    known = core.state.calls.known
    models = {key for key, call in known.items() if call.policy == "model" and call.step == entry.step and call.fresh}
    for key in sorted(models - entry.asked, key=lambda key: known[key].place):
        request, place = entry.unrecorded.get(known[key].tool, (None, 0))
        if place == known[key].place:
            yield known[key], request


def _differing(core: Core, entry: Entry, left: set[str]) -> Iterator[str]:
    for call, request in _other_requests(core, entry):
        if isinstance(request, AskedRequest):
            for change in differences(recorded_parts(core, call.latest), request.parts):
                yield f"{call.tool}: request.{change.path}"
    for key in sorted(left):
        name, recorded = _recorded(core, key)
        today, _ = entry.unrecorded.get(name, (None, 0))
        if isinstance(recorded, dict) and isinstance(today, dict):
            for change in differences(recorded, today):
                yield f"{name}: args.{change.path} was {_text(change.before)} and is {_text(change.after)}"


def _recorded(core: Core, key: str) -> tuple[str, Json]:
    """The name and the args of a call or a question on record."""
    call, question = core.state.calls.known.get(key), core.state.approvals.known.get(key)
    seq = call.args_seq if call is not None else question.asked_seq if question is not None else 0
    event = core.lineage.event_at(seq) if seq else None
    match event:
        case e.ToolStarted():
            return event.tool, event.args
        case e.ApprovalRequested():
            return f"ask {event.action}", event.args
        case _:
            return "", None


def _text(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= differing_text_chars_max else f"{text[:differing_text_chars_max]}…"
