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
    ModelRecounted,
    NoteAdded,
    ToolCompleted,
    ToolFailed,
    ToolStarted,
)
from runjournal.log.limits import (
    error_chars_max,
    import_lines_held_max,
    import_messages_held_max,
    import_names_held_max,
    version_chars_max,
)
from runjournal.log.sqlite_scratch import Scratch

from .claude_groups import PROVIDER, Group, Part, model_of, output_of
from .shelf import Seen, Shelf
from .stream import StreamItem, Streams, pack, unpack
from .values import dict_of, id_of, moment_of, name_of, short_digest, text_of

Obj: TypeAlias = dict[str, Any]
KIND: Final = "claude-code"
SUB_AGENT: Final = "claude-code.sub-agent"
WORKFLOW: Final = "claude-code.workflow"
_TITLES: Final = {"summary": ("summary", 1), "ai-title": ("aiTitle", 2), "custom-title": ("customTitle", 3)}


@dataclass(slots=True)
class TranscriptCall:
    """A call of a tool: its id in the journal, the number of the run that asked for it, and whether it has an end."""

    call_id: str
    chain: int
    ended: bool = False


@dataclass(slots=True)
class EarlyResult:
    """A result that stands before its call, as far as that has come by now."""

    block: Obj
    claimed: bool = False


@dataclass(slots=True)
class Chain:
    """A run of the file: its own, or a sidechain's. `number` counts from 0, the file's own."""

    number: int
    run_id: str
    kind: str
    new: bool
    parent_run_id: str | None = None
    last_message: str | None = None  # key of the last assistant message


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
        self._line = self._size = 0
        self._chains_count = 1
        self._streams = Streams(scratch)
        self._lines = Seen(scratch, "line", import_lines_held_max)
        self._chains = Shelf[Chain](scratch, "chain", import_names_held_max)
        self._trees = Shelf[int](scratch, "tree", import_names_held_max)
        self._groups = Shelf[Group](scratch, "group", import_messages_held_max)
        self._calls = Shelf[TranscriptCall](scratch, "call", import_names_held_max)
        self._latest = Shelf[str](scratch, "latest", import_names_held_max)
        self._named = Shelf[bool](scratch, "named", import_names_held_max)
        self._early = Shelf[EarlyResult](scratch, "early", import_messages_held_max)

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
        for entry in self._streams.read(chain.number):
            if entry.event is not None:
                yield entry.at, unpack(entry.event)
            elif entry.group is not None:
                yield from self._of_group(entry)
            elif entry.call_id is not None and not ((early := self._early.get(entry.call_id)) and early.claimed):
                call_id = name_of(entry.call_id)
                yield entry.at, NoteAdded("a result without a call", code="orphan_result", call_id=call_id)

    def _of_group(self, entry: StreamItem) -> Iterator[tuple[str | None, Event]]:
        """The events of a message. What a call has cost is of the day on which it was made, whenever that was told."""
        group = self._groups.look_up(entry.group or "")
        if group is not None:
            for event in listed(group.events(), PROVIDER, group.at or entry.at):
                yield group.at if isinstance(event, ModelRecounted) else entry.at, event

    def go_live(self) -> None:
        """Note that all up to here was imported before; what follows is new."""
        self.live = True

    def quarantined(self, line: int, cause: str) -> None:
        """Leave a note where a line is missing."""
        self._size = 0
        self.remark("quarantined", f"line {line} of the file was quarantined: {cause}")

    def record(self, line: int, text: str, value: Json, clean: Any, changed: bool) -> None:  # noqa: FBT001 - as storable returns it
        """Take a record: the text of a line, the JSON value that it is, and that value as the journal can hold it."""
        self._line, self._size = line, len(text)
        record = dict_of(value)
        if record is None:
            self._add(self.main, NoteAdded(text, code="record"))
            return
        self._at = moment_of(record.get("timestamp")) or self._at
        self.first_at = self.first_at or self._at
        uuid = record.get("uuid")
        if isinstance(uuid, str) and uuid and self._lines.again(hash((uuid, text))):
            self.remark("repeated_line", f"line {line} of the file repeats an earlier one, with its uuid")
            return
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

    def glued(self, line: int) -> None:
        """Leave a note of a record that stands behind another one in its line."""
        self._size = 0
        self.remark("glued", f"line {line} of the file holds two records glued together; both were taken")

    def remark(self, code: str, text: str) -> None:
        """Leave a note of what is odd about a line."""
        self._add(self.main, NoteAdded(text, code=code))

    def _add(self, chain: Chain, event: Event) -> None:
        if self.live:
            self._enter(chain, StreamItem(self._at, pack(event)))

    def _enter(self, chain: Chain, entry: StreamItem) -> None:
        if self.live:
            self._streams.add(chain.number, entry, self._size)

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
                self._result(chain, provider_id, block)

    def _result(self, chain: Chain, provider_id: str, block: Obj) -> None:
        """End the call that was named last by this id: models use an id again in another message."""
        key = self._latest.get(f"{chain.number} {provider_id}") or self._latest.get(f"* {provider_id}")
        call = self._calls.get(key) if key else None
        if call is None:
            if self._early.get(provider_id) is None:
                self._early.put(provider_id, EarlyResult(block))
                self._enter(chain, StreamItem(self._at, call_id=provider_id))
        elif not call.ended:
            call.ended = True
            self._add(self._chain_of(call.chain), _outcome(call.call_id, block))

    # Assistant entries.

    def _assistant(self, chain: Chain, record: Obj, raw: Json) -> None:
        message: Obj = record["message"]
        group, chain = self._group(chain, id_of(message.get("id")))
        group.model = model_of(message) or group.model
        part = self._part(group, chain)
        usage = dict_of(message.get("usage"))
        request = group.ask(id_of(record.get("requestId")), usage, self._line, _origin(record))
        if request is not None:
            if request.call_id not in part.asked and not request.begun and group.reused(request):
                self.remark(
                    "id_reused", f"line {self._line} of the file is another request under the ids of one before"
                )
            part.asked[request.call_id] = request
        part.head = {name: value for name, value in message.items() if name not in ("content", "usage")}
        if self.live and raw not in part.records[-1:]:
            part.records.append(raw)
        blocks = _wrapped(message.get("content"))
        output = output_of(usage)
        known = group.pieces.take(id_of(record.get("uuid")), blocks, output)
        for place, block in enumerate(blocks):
            call = dict_of(block)
            if call is not None and call.get("type") == "tool_use":
                self._call(group, part, call, f"call-line-{self._line}.{place}" if place >= known else None)

    def _group(self, chain: Chain, message_id: str) -> tuple[Group, Chain]:
        name = f"id {message_id}" if message_id else f"line {self._line}"
        group = self._groups.get(name)
        if group is None:
            provider_id = name_of(message_id) if message_id else None
            group = self._groups.put(name, Group(name, provider_id or f"line-{self._line}", provider_id, chain.number))
            group.live, group.at = self.live, self._at
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

    def _call(self, group: Group, part: Part, block: Obj, nameless: str | None) -> None:
        """Start a call, which is known by its message and its id; one without an id by its place, if that is new."""
        provider_id = id_of(block.get("id"))
        if not provider_id:
            if nameless:
                part.calls += [pack(_started(nameless, None, block)), pack(_unmatched(nameless))]
            return
        key = f"{group.name} {provider_id}"
        self._latest.put(f"{group.chain} {provider_id}", key)
        self._latest.put(f"* {provider_id}", key)
        if self._calls.get(key) is not None:
            return
        call = self._calls.put(key, TranscriptCall(self._name(provider_id, group), group.chain))
        part.calls.append(pack(_started(call.call_id, name_of(provider_id), block)))
        early = self._early.get(provider_id)
        if early is not None and not early.claimed:
            early.claimed = call.ended = True
            part.calls.append(pack(_outcome(call.call_id, early.block)))

    def _name(self, provider_id: str, group: Group) -> str:
        """Return what the journal calls a call: the provider's id, unless another message has used that before."""
        name = name_of(provider_id)
        if self._named.get(name):
            name = name_of(f"{provider_id}.{group.key}")
        while self._named.get(name):
            name = name_of(f"{name}.{self._line}")
        self._named.put(name, True)
        return name


def _origin(record: Obj) -> Obj:
    """Return where a line stands among the sessions: what tells a copy from another call with the same ids."""
    names = (("session_id", "sessionId"), ("uuid", "uuid"), ("agent_id", "agentId"))
    found: Obj = {name: name_of(value) for name, key in names if isinstance(value := record.get(key), str) and value}
    if record.get("isSidechain") is True:
        found["sidechain"] = True
    return found


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
