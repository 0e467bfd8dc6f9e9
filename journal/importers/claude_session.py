"""The records of one Claude Code transcript -> the events of its run, and of the sidechains inside it.

The whole file goes through a `Session`, each time. What was imported before is only remembered; from `go_live` on,
records become events. So all that an import must keep is how far it came.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from runjournal.engine.price_list import listed
from runjournal.log.events import (
    ChildSpawned,
    Event,
    Json,
    MessageAppended,
    NoteAdded,
    ToolCompleted,
    ToolFailed,
    ToolStarted,
)
from runjournal.log.limits import (
    error_chars_max,
    import_messages_held_max,
    import_names_held_max,
    version_chars_max,
)
from runjournal.log.sqlite_scratch import Scratch

from .claude_groups import PROVIDER, Group, Part, model_of
from .shelf import Row, Shelf
from .values import dict_of, id_of, moment_of, name_of, short_digest, text_of

Obj: TypeAlias = dict[str, Any]
KIND: Final = "claude-code"
SUB_AGENT: Final = "claude-code.sub-agent"
WORKFLOW: Final = "claude-code.workflow"
_TITLES: Final = {"summary": ("summary", 1), "ai-title": ("aiTitle", 2), "custom-title": ("customTitle", 3)}


@dataclass(slots=True)
class TranscriptCall:
    """A call by its id: `chain` is the number of the run that asked for it, None as long as only a result was seen.

    `early` says that there is such a result; `ended` whether the call has an end.
    """

    chain: int | None = None
    ended: bool = False
    early: bool = False


@dataclass(slots=True)
class Chain:
    """A run of the file: its own, or a sidechain's. `number` counts from 0, the file's own."""

    number: int
    run_id: str
    kind: str
    new: bool
    parent_run_id: str | None = None
    last_message: str | None = None  # key of the last assistant message


@dataclass(frozen=True, slots=True)
class StreamItem:
    """What stands at a place of a run: an event, or what is only known once the file was read to its end.

    `at` is None before the first known time. `group` names the message that stands here, `call_id` a result that came
    without its call.
    """

    at: str | None
    event: Event | None = None
    group: str | None = None
    call_id: str | None = None


class Session:
    """Takes the records of a file in order; `chains` are the runs that they belong to, the file's own first.

    `sidechains=False` takes the file as one run: it is a sub-agent's own. `live` says whether records become events.
    What grows with the file is in `scratch`.
    """

    def __init__(
        self, scratch: Scratch, run_id: str, parent_run_id: str | None, *, sidechains: bool, live: bool
    ) -> None:
        self.main = Chain(0, run_id, KIND if sidechains else SUB_AGENT, live, parent_run_id)
        self.live = live
        self.version: str | None = None
        self.first_at: str | None = None
        self.title: str | None = None
        self._title_rank = 0
        self._sidechains = sidechains
        self._at: str | None = None
        self._line = 0
        self._scratch = scratch
        self._chains_count = 1
        self._chains = Shelf[Chain](scratch, "chain", import_names_held_max)
        self._trees = Shelf[int](scratch, "tree", import_names_held_max)
        self._groups = Shelf[Group](scratch, "group", import_messages_held_max)
        self._calls = Shelf[TranscriptCall](scratch, "call", import_names_held_max)
        self._early = Shelf[Obj](scratch, "early", import_messages_held_max)

    def chains(self) -> Iterator[Chain]:
        """The runs of the file."""
        return (self._chain_of(number) for number in range(self._chains_count))

    def _chain_of(self, number: int) -> Chain:
        chain = self._chains.get(str(number)) if number else self.main
        if chain is None:
            raise LookupError(number)
        return chain

    def events(self, chain: Chain) -> Iterator[tuple[str | None, Event]]:
        """The events of a run of the file, each with its time, once the file was read."""
        for entry in Row[StreamItem](self._scratch, chain.number):
            if entry.event is not None:
                yield entry.at, entry.event
            elif entry.group is not None:
                group = self._groups.get(entry.group)
                events = listed(group.events() if group else (), PROVIDER, entry.at)
                yield from ((entry.at, event) for event in events)
            elif entry.call_id is not None and not self._call_of(entry.call_id).ended:
                yield entry.at, NoteAdded("a result without a call", code="orphan_result", call_id=entry.call_id)

    def _call_of(self, call_id: str) -> TranscriptCall:
        return self._calls.get(call_id) or self._calls.put(call_id, TranscriptCall())

    def go_live(self) -> None:
        """Note that all up to here was imported before; what follows is new."""
        self.live = True

    def quarantined(self, line: int, cause: str) -> None:
        """Leave a note where a line is missing."""
        self._add(self.main, NoteAdded(f"line {line} of the file was quarantined: {cause}", code="quarantined"))

    def record(self, line: int, text: str, value: Json, clean: Any, changed: bool) -> None:  # noqa: FBT001 - as storable returns it
        """Take a record: the text of a line, the JSON value that it is, and that value as the journal can hold it."""
        self._line = line
        record = dict_of(value)
        if record is None:
            self._add(self.main, NoteAdded(text, code="record"))
            return
        self._at = moment_of(record.get("timestamp")) or self._at
        self.first_at = self.first_at or self._at
        self._describe(record)
        chain = self._chain(record)
        kind = record.get("type")
        if kind not in ("user", "assistant") or not isinstance(record.get("message"), dict):
            self._add(chain, NoteAdded(text, code="record"))
            return
        raw = {"json": text} if changed else _without_content(clean)
        if kind == "user":
            self._user(chain, clean["message"].get("content"), raw)
        else:
            self._assistant(chain, clean, raw)

    def _add(self, chain: Chain, event: Event) -> None:
        self._enter(chain, StreamItem(self._at, event))

    def _enter(self, chain: Chain, entry: StreamItem) -> None:
        if self.live:
            Row[StreamItem](self._scratch, chain.number).add(entry)

    def _describe(self, record: Obj) -> None:
        version = record.get("version")
        if self.version is None and isinstance(version, str) and version:
            self.version = text_of(version)[:version_chars_max]
        kind = record.get("type")
        name, rank = _TITLES.get(kind, ("", 0)) if isinstance(kind, str) else ("", 0)
        title = record.get(name)
        if rank and rank >= self._title_rank and isinstance(title, str) and title:
            self.title, self._title_rank = text_of(title), rank

    # Sidechains: a tree of records by parentUuid, or by the agent that they name.

    def _chain(self, record: Obj) -> Chain:
        if not self._sidechains or record.get("isSidechain") is not True:
            return self.main
        uuid, agent = id_of(record.get("uuid")), id_of(record.get("agentId"))
        keys = [key for key in (agent and f"agent {agent}", uuid and f"uuid {uuid}") if key]
        parent = id_of(record.get("parentUuid"))
        found = (self._trees.get(key) for key in [*keys, f"uuid {parent}"])
        number = next((each for each in found if each is not None), None)
        if number is None and not keys and self._chains_count > 1:
            number = self._chains_count - 1
        chain = self._spawn(keys[0] if keys else "without id") if number is None else self._chain_of(number)
        for key in keys:
            if self._trees.get(key) is None:
                self._trees.put(key, chain.number)
        return chain

    def _spawn(self, key: str) -> Chain:
        name = f"{self.main.run_id}.{short_digest(key.encode('utf-8', 'surrogatepass'))}"
        chain = Chain(self._chains_count, name, SUB_AGENT, self.live, self.main.run_id)
        self._chains.put(str(chain.number), chain)
        self._chains_count += 1
        self._add(self.main, ChildSpawned(chain.run_id, chain.kind))
        return chain

    # User entries.

    def _user(self, chain: Chain, content: Json, raw: Json) -> None:
        results = [block for block in _blocks(content) if block.get("type") == "tool_result"]
        role = "tool" if results else "user"
        self._add(chain, MessageAppended(role, content, provider=PROVIDER, raw=[raw]))
        for block in results:
            if provider_id := id_of(block.get("tool_use_id")):
                self._result(chain, name_of(provider_id), block)

    def _result(self, chain: Chain, call_id: str, block: Obj) -> None:
        call = self._call_of(call_id)
        if call.ended or call.early:
            return
        if call.chain is None:
            call.early = True
            self._early.put(call_id, block)
            self._enter(chain, StreamItem(self._at, call_id=call_id))
            return
        call.ended = True
        self._add(self._chain_of(call.chain), _outcome(call_id, block))

    # Assistant entries.

    def _assistant(self, chain: Chain, record: Obj, raw: Json) -> None:
        message: Obj = record["message"]
        group, chain = self._group(chain, id_of(message.get("id")))
        group.model = model_of(message) or group.model
        content = message.get("content")
        blocks = _wrapped(content)
        part = self._part(group, chain)
        request_id, usage = id_of(record.get("requestId")), dict_of(message.get("usage"))
        if usage is not None:
            group.spend(request_id, usage, group.model)
            part.spent.setdefault(request_id, self._line)
        part.head = {name: value for name, value in message.items() if name not in ("content", "usage")}
        if self.live and raw not in part.records[-1:]:
            part.records.append(raw)
        for place, block in enumerate(blocks):
            self._block(group, part, place, block)

    def _group(self, chain: Chain, message_id: str) -> tuple[Group, Chain]:
        name = f"id {message_id}" if message_id else f"line {self._line}"
        group = self._groups.get(name)
        if group is None:
            provider_id = name_of(message_id) if message_id else None
            group = self._groups.put(name, Group(name, provider_id or f"line-{self._line}", provider_id, chain.number))
            group.live = self.live
            chain.last_message = group.key
            if message_id:
                self._part(group, chain)
        elif self.live and not group.live:
            group.live = True
            group.settle()
        return group, self._chain_of(group.chain)

    def _part(self, group: Group, chain: Chain) -> Part:
        if group.part is None:
            group.part = Part(self._line, group.begun, chain.last_message == group.key)
            group.begun = True
            self._enter(chain, StreamItem(self._at, group=group.name))
        return group.part

    def _block(self, group: Group, part: Part, place: int, block: Json) -> None:
        if group.see(block) and self.live:
            part.blocks.append(block)
        call = dict_of(block)
        if call is not None and call.get("type") == "tool_use":
            self._call(group, part, place, call)

    def _call(self, group: Group, part: Part, place: int, block: Obj) -> None:
        provider_id = id_of(block.get("id"))
        call_id = name_of(provider_id or f"call-line-{self._line}.{place}")
        call = self._call_of(call_id)
        if call.chain is not None:
            return
        call.chain = group.chain
        part.calls.append(_started(call_id, call_id if provider_id else None, block))
        if not provider_id:
            call.ended = True
            part.calls.append(_unmatched(call_id))
        elif (early := self._early.get(call_id)) is not None:
            call.ended = True
            part.calls.append(_outcome(call_id, early))


def _without_content(record: Obj) -> Obj:
    """Return the record without what `content` of the event holds."""
    return record | {"message": {name: value for name, value in record["message"].items() if name != "content"}}


def _blocks(content: Json) -> list[Obj]:
    return [block for item in _wrapped(content) if (block := dict_of(item)) is not None]


def _wrapped(content: Json) -> list[Json]:
    """Return content as a list of blocks; a text becomes one."""
    if isinstance(content, list):
        blocks: list[Json] = cast("Any", content)  # one of the type checkers sees no list[Any] here
        return blocks
    if content is None:
        return []
    return [{"type": "text", "text": content} if isinstance(content, str) else content]


def _started(call_id: str, provider_id: str | None, block: Mapping[str, Any]) -> Event:
    tool = block.get("name")
    return ToolStarted(
        call_id,
        name_of(tool) if isinstance(tool, str) and tool else "unknown",
        block.get("input"),
        policy="unsafe",
        read_only=False,
        on_unknown="ask",
        attempt=1,
        provider_call_id=provider_id,
    )


def _outcome(call_id: str, block: Mapping[str, Any]) -> Event:
    content = block.get("content")
    if block.get("is_error") is not True:
        return ToolCompleted(call_id, 1, content)
    texts = [str(each.get("text")) for each in _blocks(content) if each.get("type") == "text"]
    text = content if isinstance(content, str) else "\n".join(texts) or json.dumps(content)
    return ToolFailed(call_id, 1, {"type": "ToolError", "message": text[:error_chars_max]}, transient=False)


def _unmatched(call_id: str) -> Event:
    message = "the transcript gives this call no id, so its result can't be told from others"
    return ToolCompleted(call_id, 1, result_error={"type": "NoCallId", "message": message})
