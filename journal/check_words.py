"""Events as a check tells of them: what is asked for, where two asks differ, and an event in a few words."""

from __future__ import annotations

from typing import cast

from runjournal.log import events as e
from runjournal.log.base import Event, Json, data_of
from runjournal.log.codec import dumps
from runjournal.log.differences import differences
from runjournal.log.limits import differing_text_chars_max


def id_in(event: Event) -> str:
    """Return the id of the call or the question that an event is about, "" if it is about none."""
    return str(getattr(event, "call_id", None) or getattr(event, "approval_id", ""))


def named_in(event: Event) -> tuple[str, str]:
    """Return what kind of ask it is, and of what."""
    return event.TYPE, str(
        getattr(event, "tool", None)
        or getattr(event, "model", None)
        or getattr(event, "action", None)
        or getattr(event, "kind", "")
    )


def asked_in(event: Event) -> Json:
    """Return what is asked: args, or the digests of the parts of a request that isn't stored."""
    return (
        {"request": event.parts or {}} if isinstance(event, e.ModelStarted) else {"args": getattr(event, "args", None)}
    )


def where_differs(before: Json, after: Json) -> str:
    """Return the first place where two values differ, as a JSON path, with both."""
    change = next(differences(before, after), None)
    if change is None:
        return ""
    path = change.path if change.path.startswith("[") else f".{change.path}" if change.path else ""
    if path.startswith(".request"):
        return f"${path}"
    return f"${path} was {in_short(change.before)}, is {in_short(change.after)}"


def written_by(event: Event) -> Json:
    """Return what an event writes, as a value."""
    return {"type": event.TYPE, **data_of(event)}


def in_words(event: Event) -> str:
    """Return what an event is, for a sentence about what was recorded or asked."""
    match event:
        case e.ToolStarted():
            return f"a call of {event.tool} ({in_short(event.args)})"
        case e.ModelStarted():
            return f"a question to {event.model}"
        case e.ApprovalRequested():
            return f"the question {event.action!r} ({in_short(event.args)})"
        case e.ChildSpawned():
            return f"a child of the kind {event.kind!r}"
        case e.StepCompleted():
            return "the end of the step"
        case e.StepFailed() | e.RunFailed() | e.RunRetryScheduled():
            what = "step" if isinstance(event, e.StepFailed) else "run"
            return f"a failure of the {what} ({event.error['type']}: {in_short(event.error['message'])})"
        case e.RunCompleted():
            return "the end of the run"
        case e.RunCancelled():
            return "its cancel"
        case e.RunWaiting():
            return f"a wait for {', '.join(str(wait['kind']) for wait in event.for_)}"
        case e.MessageAppended():
            return f"a message of the {event.role} ({in_short(event.content)})"
        case e.MemorySet():
            return f"memory {event.key} = {in_short(event.value)}"
        case _:
            return event.TYPE


def in_short(value: object) -> str:
    """Return a value as a short text."""
    text = value if isinstance(value, str) else dumps(cast("Json", value)).decode()
    return text if len(text) <= differing_text_chars_max else f"{text[:differing_text_chars_max]}…"
