"""The transcript: which messages the context holds, by reference. The messages themselves are read lazily.

`Transcript` is bounded: first and last seq, counts, and the hash of the last message's event, which through the chain
pins every message before it. `messages` walks the log and yields what the context holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple

from runjournal.log import events as e
from runjournal.log.base import Event, Json, RecordedEvent


@dataclass(slots=True)
class Extent:
    """A stretch of transcript. `digest`: the hash of its last event; `compacted`: [seq, upto_seq] of a summary."""

    first_seq: int | None = None
    last_seq: int | None = None
    count: int = 0
    digest: str | None = None
    roles: dict[str, int] = field(default_factory=dict[str, int])
    last_ids: dict[str, str] = field(default_factory=dict[str, str])
    compacted: list[int] | None = None

    def copy(self) -> Extent:
        """Return a copy that can be changed."""
        return replace(self, roles=dict(self.roles), last_ids=dict(self.last_ids))

    def add(self, record: RecordedEvent, role: str, message_id: str | None) -> None:
        """Count one more message, or more of the last one of its role, if it has the same id."""
        self.first_seq = self.first_seq or record.seq
        self.last_seq, self.digest = record.seq, record.hash
        if message_id is None:
            self.last_ids.pop(role, None)
        elif self.last_ids.get(role) == message_id:
            return
        else:
            self.last_ids[role] = message_id
        self.count += 1
        self.roles[role] = self.roles.get(role, 0) + 1

    def add_stretch(self, stretch: Stretch, offset: int, last_seq: int, digest: str) -> None:
        """Count the messages of a stretch, whose last one stands at `last_seq`."""
        self.first_seq = self.first_seq or offset + stretch.first_seq
        self.last_seq, self.digest = offset + last_seq, digest
        for role, count in stretch.roles.items():
            self.last_ids.pop(role, None)
            self.count += count
            self.roles[role] = self.roles.get(role, 0) + count


@dataclass(slots=True)
class Stretch:
    """Messages one behind the other, none of which continues another: the seq of the first, and counts by role."""

    first_seq: int
    roles: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(slots=True)
class Transcript:
    """The committed context, what the open step makes of it, and a summary by others that waits for the step's end."""

    VERSION: ClassVar[int] = 1

    base: Extent = field(default_factory=Extent)
    overlay: Extent | None = None
    later: list[int] | None = None

    @property
    def view(self) -> Extent:
        """Return what the open step sees; the committed context if none is open."""
        return self.overlay or self.base

    def on_queued(self, record: RecordedEvent, event: e.RunQueued) -> None:
        """Add the messages that a run begins with."""
        for message in event.messages or ():
            self.base.add(record, message["role"], message.get("message_id"))

    def on_message(self, record: RecordedEvent, event: e.MessageAppended) -> None:
        """Add a message; one of an open step goes to its overlay."""
        self.view.add(record, event.role, event.message_id)

    def on_compacted(self, record: RecordedEvent, event: e.ContextCompacted) -> None:
        """Put a summary in the place of the messages up to a seq; an open step sees only its own summary."""
        if self.overlay is None or record.epoch:
            self.view.compacted = [record.seq, event.upto_seq]
        else:
            self.later = [record.seq, event.upto_seq]

    def begin(self) -> None:
        """Begin a step: what it appends is uncommitted, and what an earlier entry appended is dropped."""
        self.overlay = self.base.copy()

    def commit(self) -> None:
        """Commit what the step has appended: it completed."""
        if self.overlay is not None:
            self.base = self.overlay
        self.drop()

    def drop(self) -> None:
        """Drop what the step has appended: it failed."""
        self.overlay = None
        if self.later is not None and self.later > (self.base.compacted or []):
            self.base.compacted = self.later
        self.later = None

    def dump(self) -> dict[str, Any]:
        """Return the transcript as a JSON value."""
        return {name: extent and {n: getattr(extent, n) for n in extent.__slots__} for name, extent in
                (("base", self.base), ("overlay", self.overlay))} | {"later": self.later}  # fmt: skip

    @classmethod
    def load(cls, data: dict[str, Any]) -> Transcript:
        """Return the transcript that `dump` made this value of."""
        return cls(Extent(**data["base"]), Extent(**data["overlay"]) if data["overlay"] else None, data["later"])


HANDLERS: Final[Mapping[type[Event], Any]] = {
    e.RunQueued: Transcript.on_queued,
    e.MessageAppended: Transcript.on_message,
    e.ContextCompacted: Transcript.on_compacted,
}


class Message(NamedTuple):
    """A message of the context; `committed` is False for one of a step that is still open."""

    seq: int
    role: str
    content: Json
    message_id: str | None = None
    provider: str | None = None
    raw: Json = None
    committed: bool = True


CONTEXT_TYPES: Final = (
    "run.queued", "message.appended", "context.compacted", "step.started", "step.completed", "step.failed",
)  # fmt: skip
"""The types of events that `messages` needs."""


def messages(records: Iterable[RecordedEvent], *, compacted: bool = False) -> Iterator[Message]:
    """Yield the messages of a run's context, from its events in order: those of failed attempts left out.

    Those of a step that is open at the end come last, uncommitted. With `compacted`, the newest summary stands in for
    what it summarises, as a system message; this holds all later messages in memory, the default only an open step's.
    """
    if compacted:
        yield from _compacted(records)
        return
    for item in _walk(records):
        if isinstance(item, Message):
            yield item


def _compacted(records: Iterable[RecordedEvent]) -> Iterator[Message]:
    summaries, held, upto = list[Message](), list[Message](), 0
    for item in _walk(records):
        if isinstance(item, Message):
            if item.seq > upto:
                held.append(item)
        elif isinstance(event := item.event, e.ContextCompacted) and item.seq > (summaries[0].seq if summaries else 0):
            summaries, upto = [Message(item.seq, "system", event.summary)], event.upto_seq
            held = [message for message in held if message.seq > upto]
    yield from summaries
    yield from held


def _walk(records: Iterable[RecordedEvent]) -> Iterator[Message | RecordedEvent]:
    walk = MessageWalk()
    for record in records:
        yield from walk.settled(record)
    for item in walk.unsettled:
        yield item._replace(committed=False) if isinstance(item, Message) else item


class MessageWalk:
    """A walk through a run's events, one after the other: which messages and summaries its context holds so far.

    `unsettled` are those of the step that is open: it may fail yet.
    """

    def __init__(self) -> None:
        self.unsettled: list[Message | RecordedEvent] = []
        self._open = False

    def settled(self, record: RecordedEvent) -> Sequence[Message | RecordedEvent]:
        """Go on by an event; return what is part of the context for good from here on."""
        event = record.event
        match event:
            case e.MessageAppended():
                item = Message(record.seq, event.role, event.content, event.message_id, event.provider, event.raw)
                return self._placed(item)
            case e.ContextCompacted():
                return self._placed(record) if record.epoch else (record,)  # somebody else's is of no step
            case e.RunQueued():
                return [
                    Message(record.seq, m["role"], m["content"], m.get("message_id"), m.get("provider"), m.get("raw"))
                    for m in event.messages or ()
                ]
            case e.StepStarted() | e.StepCompleted() | e.StepFailed():
                items = self.unsettled if isinstance(event, e.StepCompleted) else []
                self.unsettled, self._open = [], isinstance(event, e.StepStarted)
                return items
            case _:
                return ()

    def _placed(self, item: Message | RecordedEvent) -> Sequence[Message | RecordedEvent]:
        if not self._open:
            return (item,)
        self.unsettled.append(item)
        return ()
