"""An event in one line, and a message in a few: what people see of the log. Every text returned is safe to show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from runjournal.log import events as e
from runjournal.log.base import (
    ERASED,
    BlobRef,
    Event,
    NewerEvent,
    PurgedEvent,
    RecordedEvent,
    UnknownEvent,
    UnreadableEvent,
    data_of,
)
from runjournal.log.limits import summary_chars_max
from runjournal.log.private_fields import ERASED_TEXT

from .attached import told
from .formats import money, plural, size
from .safe import block, dumps, line, preview


def value(content: Any, chars_max: int = summary_chars_max) -> str:
    """A logged value as one short line; one that is held out of line by its size."""
    if content == ERASED:
        return ERASED_TEXT
    if isinstance(content, BlobRef):
        return f"({content.bytes:,} bytes, blob {content.sha256[:12]})"
    return preview(told(content), chars_max)


def event(record: RecordedEvent, chars_max: int = summary_chars_max) -> str:
    """What an event says, in one line."""
    happened = record.event
    teller = _TELLERS.get(type(happened))
    text = teller(happened) if teller else _plain(happened)
    if record.unknown:
        text = f"{text} (not known to this runjournal: {value(dict(record.unknown))})"
    return line(text, chars_max)


def _digest(content: Any) -> str:
    return f"{content.sha256[:12]}…" if isinstance(content, BlobRef) else value(content)


def error(what: dict[str, Any]) -> str:
    """An error, in one line."""
    return f"{what.get('type', 'error')}: {what.get('message', '')}"


def _plain(happened: Event) -> str:
    match happened:
        case UnknownEvent() | NewerEvent():
            return f"version {happened.v}, not known to this runjournal: {value(happened.data)}"
        case PurgedEvent():
            return "(purged)"
        case UnreadableEvent():
            return f"unreadable: {happened.reason} ({len(happened.body)} bytes)"
        case _:
            pairs = (f"{name}={value(item, 60)}" for name, item in data_of(happened).items())
            return " ".join(pairs)


def _started(happened: e.ToolStarted) -> str:
    again = f" attempt {happened.attempt}" if happened.attempt > 1 else ""
    return f"{happened.tool}{again} ({happened.policy}) {value(happened.args)}"


def _failed(happened: e.ToolFailed) -> str:
    """What came of an attempt that failed, and what it says of the call."""
    said = (
        (happened.did_not_happen, "did not happen"),
        (happened.lost, "nobody knows what it did"),
        (happened.settled, "settled"),
    )
    return error(happened.error) + "".join(f" ({text})" for is_so, text in said if is_so)


def _usage(happened: e.ModelCompleted) -> str:
    usage = happened.usage
    told = "usage unknown" if usage is None else f"{usage.get('input', 0):,} in, {usage.get('output', 0):,} out"
    cost = f", {money(happened.cost['amount'])} {happened.cost['currency']}" if happened.cost else ""
    return f"{told}{cost}{f', {happened.finish_reason}' if happened.finish_reason else ''}"


def _step_started(happened: e.StepStarted) -> str:
    again = (
        f" attempt {happened.attempt} entry {happened.entry}" if (happened.attempt, happened.entry) != (1, 1) else ""
    )
    return f"{happened.id}{again}"


def _asked(happened: e.ApprovalRequested) -> str:
    terms = (
        (happened.choices, f"one of {', '.join(happened.choices or ())}"),
        (happened.risk, f"risk {happened.risk}"),
        (happened.expires_at, f"until {happened.expires_at}"),
    )
    said = "".join(f", {text}" for is_so, text in terms if is_so)
    return f"{happened.approval_id} {happened.action} {value(happened.args)}{said}"


def _answered(happened: e.ApprovalResolved) -> str:
    chosen = f" {happened.choice}" if happened.choice else ""
    edited = "" if happened.args is None else f" {value(happened.args)}"
    return f"{happened.approval_id} {happened.decision}{chosen}{edited}{f': {happened.note}' if happened.note else ''}"


_TELLERS: Final[dict[type[Event], Callable[[Any], str]]] = {
    e.RunQueued: lambda v: f"{v.kind} {value(v.input)}",
    e.RunOpened: lambda v: f"{v.kind} from {v.source}",
    e.RunImported: lambda v: f"{v.kind} from {v.tool} {v.path or ''}",
    e.RunClaimed: lambda v: f"{v.worker} epoch {v.epoch}{f' ({v.resume})' if v.resume else ''}",
    e.RunWaiting: lambda v: (
        "for " + ", ".join(f"{each['kind']} {each['id']}" for each in v.for_) + (f": {v.why}" if v.why else "")
    ),
    e.RunRetryScheduled: lambda v: f"attempt {v.attempt} due {v.due_at}: {error(v.error)}",
    e.RunPurged: lambda v: f"{v.status}, {plural(v.events, 'event')}, for: {v.reason}",
    e.RunCompleted: lambda v: value(v.output),
    e.RunFailed: lambda v: f"{v.cause}: {error(v.error)}",
    e.StepStarted: _step_started,
    e.StepCompleted: lambda v: "" if v.result is None else value(v.result),
    e.StepFailed: lambda v: error(v.error) + (" (transient)" if v.transient else ""),
    e.MessageAppended: lambda v: f"{v.role}: {value(text_of(v.content))}",
    e.ModelStarted: lambda v: f"{v.model}{f' attempt {v.attempt}' if v.attempt > 1 else ''}",
    e.ModelCompleted: _usage,
    e.ModelFailed: lambda v: error(v.error),
    e.ToolStarted: _started,
    e.ToolCompleted: lambda v: error(v.result_error) if v.result_error else value(v.result),
    e.ToolFailed: _failed,
    e.ToolAdopted: lambda v: f"{v.call_id}: it may have happened in another step, and is asked for again",
    e.ToolResolved: lambda v: f"{v.outcome} {v.note or ''}",
    e.ApprovalRequested: _asked,
    e.ApprovalResolved: _answered,
    e.MemorySet: lambda v: f"{v.key} = {value(v.value)}",
    e.MemoryDeleted: lambda v: v.key,
    e.PromptPinned: lambda v: f"{v.fingerprint[:12]} {' '.join(v.layers)}",
    e.PlanSet: lambda v: plural(len(v.tasks), "task"),
    e.PlanUpdated: lambda v: f"{v.task_id} {v.status}",
    e.ContextCompacted: lambda v: f"up to seq {v.upto_seq}: {value(v.summary)}",
    e.BlobAttached: lambda v: f"{v.media_type}, {size(v.bytes)}, {_digest(v.content)} {v.name or ''}",
    e.NoteAdded: lambda v: f"{v.code or ''} {value(v.text)}",
}


def text_of(content: Any) -> Any:
    """The text of a message's content, where it has one; else the content as it is."""
    if not isinstance(content, list):
        return content
    parts: list[Any] = [_part(part) for part in cast("list[Any]", content)]  # type: ignore[redundant-cast]  # for pyright
    return "\n".join(parts) if all(isinstance(part, str) for part in parts) else cast("Any", content)


def _part(part: Any) -> Any:
    """A part of a message as text: its text, or what it asks of a tool, or what a tool said."""
    if not isinstance(part, dict):
        return part
    content = cast("dict[str, Any]", part)
    match content.get("type"):
        case "text" if isinstance(content.get("text"), str):
            return content["text"]
        case "thinking" if isinstance(content.get("thinking"), str):
            return f"(thinking) {content['thinking']}"
        case "tool_use":
            return f"-> {content.get('name')} {dumps(told(content.get('input')))}"
        case "tool_result":
            inner = text_of(content.get("content"))
            return f"<- {inner if isinstance(inner, str) else dumps(told(inner))}"
        case _:
            return content


def message(content: Any, indent: str, chars_max: int | None) -> str:
    """A message's content on lines of its own; cut to `chars_max` characters where that isn't None."""
    text = told(text_of(content))
    if isinstance(text, BlobRef):
        return indent + value(text)
    shown = text if isinstance(text, str) else dumps(text, indent=2)
    if chars_max is not None and len(shown) > chars_max:
        shown = f"{shown[:chars_max]}… ({len(shown) - chars_max:,} characters more: --full)"
    return block(shown, indent)
