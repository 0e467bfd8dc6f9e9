"""The records of one Claude Code transcript -> the events of its run, and of the sidechains inside it.

The whole file goes through a `Session`, each time. What was imported before is only remembered; from `go_live` on,
records become events. So all that an import must keep is how far it came.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

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
from runjournal.log.limits import error_chars_max, version_chars_max

from .claude_groups import PROVIDER, Group, Part, model_of
from .values import dict_of, id_of, moment_of, name_of, short_digest, storable, text_of

Obj: TypeAlias = dict[str, Any]
KIND: Final = "claude-code"
SUB_AGENT: Final = "claude-code.sub-agent"
WORKFLOW: Final = "claude-code.workflow"
_TITLES: Final = {"summary": ("summary", 1), "ai-title": ("aiTitle", 2), "custom-title": ("customTitle", 3)}


@dataclass(slots=True)
class Orphan:
    """The result of a call that hasn't been seen, which may yet come."""

    call_id: str
    block: Obj
    found: bool = False

    def events(self) -> Iterator[Event]:
        """Yield a note, unless the call came after all."""
        if not self.found:
            yield NoteAdded("a result without a call", code="orphan_result", call_id=self.call_id)


@dataclass(slots=True)
class One:
    """A single event at its place."""

    event: Event

    def events(self) -> Iterator[Event]:
        """Yield the event."""
        yield self.event


@dataclass(slots=True)
class Chain:
    """A run of the file: its own, or a sidechain's. `at` of an entry is None before the first known time."""

    run_id: str
    kind: str
    new: bool
    parent_run_id: str | None = None
    entries: list[tuple[str | None, One | Part | Orphan]] = field(
        default_factory=list[tuple[str | None, "One | Part | Orphan"]]
    )
    last_message: str | None = None  # key of the last assistant message


class Session:
    """Takes the records of a file in order; `chains` are the runs that they belong to, the file's own first.

    `sidechains=False` takes the file as one run: it is a sub-agent's own. `live` says whether records become events.
    """

    def __init__(self, run_id: str, parent_run_id: str | None, *, sidechains: bool, live: bool) -> None:
        self.main = Chain(run_id, KIND if sidechains else SUB_AGENT, live, parent_run_id)
        self.chains: list[Chain] = [self.main]
        self.live = live
        self.version: str | None = None
        self.first_at: str | None = None
        self.title: str | None = None
        self._title_rank = 0
        self._sidechains = sidechains
        self._at: str | None = None
        self._line = 0
        self._trees: dict[str, Chain] = {}
        self._groups: dict[str, tuple[Group, Chain]] = {}
        self._calls: dict[str, Chain] = {}
        self._ended: set[str] = set()
        self._orphans: dict[str, Orphan] = {}

    def go_live(self) -> None:
        """Note that all up to here was imported before; what follows is new."""
        self.live = True
        for group, _ in self._groups.values():
            group.settle()
        for chain in self.chains:
            chain.new = False

    def quarantined(self, line: int, cause: str) -> None:
        """Leave a note where a line is missing."""
        self._add(self.main, NoteAdded(f"line {line} of the file was quarantined: {cause}", code="quarantined"))

    def record(self, line: int, text: str, value: Json) -> None:
        """Take a record: the JSON value of a line, and its text."""
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
        clean, changed = storable(record)
        raw = {"json": text} if changed else _without_content(clean)
        if kind == "user":
            self._user(chain, clean["message"].get("content"), raw)
        else:
            self._assistant(chain, clean, raw)

    def _add(self, chain: Chain, event: Event) -> None:
        if self.live:
            chain.entries.append((self._at, One(event)))

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
        wanted = [*keys, f"uuid {parent}"]
        chain = next((self._trees[key] for key in wanted if key in self._trees), None)
        if chain is None and not keys and len(self.chains) > 1:
            chain = self.chains[-1]
        if chain is None:
            chain = self._spawn(keys[0] if keys else "without id")
        for key in keys:
            self._trees.setdefault(key, chain)
        return chain

    def _spawn(self, key: str) -> Chain:
        name = f"{self.main.run_id}.{short_digest(key.encode('utf-8', 'surrogatepass'))}"
        chain = Chain(name, SUB_AGENT, self.live, self.main.run_id)
        self.chains.append(chain)
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
        if call_id in self._ended or call_id in self._orphans:
            return
        if (caller := self._calls.get(call_id)) is None:
            orphan = self._orphans[call_id] = Orphan(call_id, block)
            if self.live:
                chain.entries.append((self._at, orphan))
            return
        self._ended.add(call_id)
        self._add(caller, _outcome(call_id, block))

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
            self._block(part, chain, place, block)

    def _group(self, chain: Chain, message_id: str) -> tuple[Group, Chain]:
        if not message_id:
            group = Group(f"line-{self._line}", None)
            chain.last_message = group.key
            return group, chain
        found = self._groups.get(message_id)
        if found is None:
            name = name_of(message_id)
            found = self._groups[message_id] = Group(name, name), chain
            chain.last_message = name
            self._part(*found)
        return found

    def _part(self, group: Group, chain: Chain) -> Part:
        if group.part is None:
            group.part = Part(group, self._line, group.begun, chain.last_message == group.key)
            group.begun = True
            if self.live:
                chain.entries.append((self._at, group.part))
        return group.part

    def _block(self, part: Part, chain: Chain, place: int, block: Json) -> None:
        if part.group.see(block) and self.live:
            part.blocks.append(block)
        call = dict_of(block)
        if call is not None and call.get("type") == "tool_use":
            self._call(part, chain, place, call)

    def _call(self, part: Part, chain: Chain, place: int, block: Obj) -> None:
        provider_id = id_of(block.get("id"))
        call_id = name_of(provider_id or f"call-line-{self._line}.{place}")
        if call_id in self._calls:
            return
        self._calls[call_id] = chain
        part.calls.append(_started(call_id, call_id if provider_id else None, block))
        if not provider_id:
            self._ended.add(call_id)
            part.calls.append(_unmatched(call_id))
        elif (orphan := self._orphans.pop(call_id, None)) is not None:
            orphan.found = True
            self._ended.add(call_id)
            part.calls.append(_outcome(call_id, orphan.block))


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
