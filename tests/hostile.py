"""What a hostile log, file name or transcript holds, and what of it must never reach a terminal."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apsw
import orjson

from runjournal.importers.jsonl import VERSION
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.base import Event
from runjournal.log.chain import GENESIS, event_hash
from runjournal.log.clock import Clock, SystemClock, timestamp
from runjournal.log.codec import digest_of

# By name, so that a failing test says which; all of them are written as escapes.
CORPUS = {
    "osc 8 link": "\x1b]8;;http:evil.example\x1b\\click\x1b]8;;\x1b\\",
    "osc 52 clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "title": "\x1b]0;owned\x07",
    "title with ST": "\x1b]2;owned\x1b\\",
    "clear": "\x1b[2J\x1b[H\x1bc",
    "own colour": "\x1b[31;1m\x1b[0m",
    "report": "\x1b[6n\x1b[c\x1b[21t",
    "alternate screen": "\x1b[?1049h\x1b[?25l",
    "dcs": "\x1bP$q\x1b\\\x1bPtmux;\x1b\\",
    "apc, pm, sos": "\x1b_a\x1b\\\x1b^p\x1b\\\x1bXs\x1b\\",
    "c1": "\x9b31m\x9d0;owned\x9c\x90q\x9c\x85\x84\x8d",
    "cr": "safe\rEVIL",
    "crlf": "safe\r\nEVIL\n\rEVIL",
    "bell, backspace, tabs": "\x07\x08\x08\x0b\x0c\x0e\x0f\x7f",
    "bidi": "\u202egnp.exe\u202c\u2066x\u2069\u200f\u061c",
    "zero width": "a\u200bb\u200cc\u200dd\u2060e\ufefff\u00ad",
    "separators": "a\u2028b\u2029c",
    "tag letters": "\U000e0001\U000e0041\U000e007f",
    "variation": "a\ufe0f\U000e0100",
    "fillers": "\u3164\u115f\uffa0\u180e",
    "marks": "z" + "\u0336\u0489" * 60,
    "markup": "[red]x[/red] [link=http:evil]y[/link] {0} %s %n",
    "wide": "漢字🎲" * 6,
}
TEXT = " ".join(CORPUS.values())
"""All of it, for texts without a bound."""
NAMES = [text for text in CORPUS.values() if len(text) < 200]
NAME = "".join(CORPUS.values())[:512]
"""As much as an id or a name may have."""
FILE_NAME = "run\x1b]0;owned\x07\r\u202e\x9b31m\u200b\x1b[2J"
"""A file may have this name."""

_SGR = re.compile(r"\x1b\[(?:0|1|2|3[0-7])m")
"""The colours of runjournal.cli.output.STYLES, one attribute a sequence, as click writes them."""
_HIDDEN = {0x34F, 0x115F, 0x1160, 0x180E, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10), *range(0xE0000, 0xE1000)}
_LETTERS = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
"""Signs of category Cf that are seen: they stand before Arabic and other numbers."""


def harmful(written: bytes, *, color: bool) -> list[str]:
    """What of the bytes that reached a terminal steers it, reorders or can't be seen; raw C1 bytes aren't UTF-8."""
    text = written.decode("utf-8", "backslashreplace")
    if len(text.encode("utf-8")) != len(written):
        return [f"not UTF-8: {written[:2000]!r}"]
    if color:
        text = _SGR.sub("", text)
    return [f"{char!a} in {text[max(0, place - 30) : place + 30]!a}" for place, char in enumerate(text) if _bad(char)]


def _bad(char: str) -> bool:
    if char in "\n\t" or (char.isascii() and char.isprintable()):
        return False
    category, code = unicodedata.category(char), ord(char)
    return category in {"Cc", "Zl", "Zp", "Cs"} or code in _HIDDEN or (category == "Cf" and code not in _LETTERS)


# --- a store -------------------------------------------------------------------------------------------------------

Row = tuple[str, Any]


def _envelope(data: Any, **changes: Any) -> dict[str, Any]:
    return {"v": 1, "at": "2026-01-01T00:00:00.000000Z", "by": "x", "epoch": 0, "step": None, "data": data} | changes


def chained(run_id: str, rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Lines of an export whose hashes are right, whatever the bodies say.

    A body is a dict, or bytes that stand as they are.
    """
    prev = GENESIS
    for seq, (kind, body) in enumerate(rows, 1):
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        prev = event_hash(run_id, seq, kind, prev, raw)
        yield {"run_id": run_id, "seq": seq, "type": kind, "hash": prev.hex(), "body": raw.decode()}


def export_of(lines: Iterable[dict[str, Any]]) -> bytes:
    """A whole export."""
    rows = list(lines)
    blobs = sum("blob" in row for row in rows)
    end = {"end": {"events": len(rows) - blobs, "blobs": blobs}}
    return b"".join(orjson.dumps(row) + b"\n" for row in [{"runjournal": VERSION}, *rows, end])


def forged() -> bytes:
    """An export of runs that no runjournal would write: hostile types, times, writers, data of the wrong shape."""
    first: Row = (
        "run.queued",
        _envelope({"kind": TEXT, "input": TEXT, "title": TEXT, "tags": {TEXT: TEXT}}, by=TEXT, at=TEXT, step=7),
    )
    shown: list[Row] = [
        first,
        *((f"x.{name}", _envelope({name: name, "n": 2**63 - 1})) for name in NAMES),
        ("x.big", _envelope([1e308], step=2**62, epoch=2**62)),
        ("run.claimed", _envelope({"worker": TEXT, "epoch": TEXT})),
        ("tool.started", _envelope({"call_id": {}, "tool": [TEXT]})),
        ("tool.completed", _envelope({"call_id": "c", "attempt": 1}, v=99)),
        ("memory.set", _envelope({TEXT: TEXT}, v=TEXT)),
    ]
    newer: list[Row] = [first, ("note.added", _envelope({"text": TEXT, TEXT: TEXT}, v=2, by=TEXT, at=TEXT))]
    return export_of([*chained("forged", shown), *chained("forged-newer", newer)])


def events() -> list[list[Event]]:
    """Two batches with hostile text in every field of every type that a run may hold."""
    name, text = NAME, TEXT
    error = {"type": text, "message": text, "traceback": text}
    call: dict[str, Any] = {"policy": "unsafe", "read_only": False, "on_unknown": "ask", "attempt": 1}
    value = {text: [text, {text: None}], "n": 1.5}
    usage = {"input": 1, "output": 2, "cache_read": 0, "cache_write": 0, "raw": value}
    claim = e.RunClaimed(name, 1, 60.0, text, text, text, 1, text, code_version=text[:200], agent=text)
    tasks = [{"id": each, "title": text, "status": "todo"} for each in (name, "b")]
    return [
        [
            e.RunQueued(
                kind=name, input=value, title=text, tags={name: name}, parent_run_id=name, code_version=text,
                messages=[{"role": "user", "content": text}],
            ),
            claim,
        ],
        [
            e.PromptPinned("0" * 64, {text: text}, text),
            e.StepStarted(index=0, id=name, name=name, kind="once", entry=1, attempt=1, key=text),
            *(e.MessageAppended(role, text, message_id=name, provider=text, raw=value) for role in ("system", "tool")),
            e.MessageAppended("assistant", [
                {"type": "text", "text": text}, {"type": "thinking", "thinking": text},
                {"type": "tool_use", "name": text, "input": value}, {"type": "tool_result", "content": text},
            ]),
            e.ModelStarted(name, name, text, 1, provider=name, params=value),
            e.ModelCompleted(
                name, 1, value, usage=usage, finish_reason=text, response_id=text,
                cost={"amount": "0.1", "currency": name, "source": "reported"},
            ),
            e.ModelStarted("m2", text[:100], text, 1),
            e.ModelFailed("m2", 1, error, transient=False),
            e.ToolStarted("t1", name, value, **call),
            e.ToolCompleted("t1", 1, value),
            e.ToolStarted("t2", name, text, **call),
            e.ToolCompleted("t2", 1, None, result_error=error),
            e.ToolStarted("t3", name, value, **call),
            e.ToolFailed("t3", 1, error, transient=True),
            e.ToolStarted("t4" + name[:100], name, value, provider_call_id=text, **call),
            e.MemorySet(name, value),
            e.MemorySet("k", text),
            e.PlanSet(tasks),
            e.PlanUpdated(name, "doing", text),
            e.ApprovalRequested(name, text, text, text, value, value, text, name, text),
            e.SignalReceived(name, name, value),
            e.CostRecorded("1.5", name, text),
            e.NoteAdded(text, text, text),
            e.RunCancelRequested(text, "after_step"),
            e.RunFailed(error=error, left=[], cause="error"),
        ],
    ]  # fmt: skip


def fill(path: str | Path, clock: Clock | None = None) -> None:
    """A store of hostile runs: `bad-1` with every type of event, `bad-2` queued, and what `forged` has."""
    from runjournal.importers.transfer import import_jsonl

    with Journal.open(path, by="t", clock=clock or SystemClock()) as journal:
        for number, batch in enumerate(events()):
            journal.append("bad-1", batch, epoch=number, expect=number * 2)
        journal.append("bad-2", [e.RunQueued(kind=NAME, input=TEXT, title=TEXT)], expect=0)
        journal.checkpoint("bad-1")
        import_jsonl(journal, forged().splitlines(keepends=True), FILE_NAME)


def tamper(path: str | Path) -> None:
    """Change a store's file behind its back: what no reader may trust to be a status, a time, JSON or a snapshot."""
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE runs SET status = ?1, owner = ?1, kind = ?1, tags = '{', cancel_requested = ?1, "
                       "head_hash = ?1, updated_at = ?1 WHERE run_id = 'bad-2'", (TEXT,))  # fmt: skip
    pickle = b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94."
    for seq, fold in enumerate((TEXT, "os:system", "RunState:" + TEXT), 1):
        connection.execute("INSERT INTO checkpoints VALUES ('bad-1', ?, ?, ?)", (seq, fold, pickle))
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?1, ?1)", (TEXT,))
    connection.close()


def transcript() -> bytes:
    """A transcript of Claude Code with hostile text in every field, and lines that are none."""
    now = timestamp(SystemClock().now())
    value = {TEXT: [TEXT]}
    base = {"sessionId": TEXT, "uuid": TEXT, "version": TEXT, "cwd": TEXT, "gitBranch": TEXT, "timestamp": now}
    reply = {"id": TEXT, "model": TEXT, "role": "assistant", "stop_reason": TEXT, "usage": {"input_tokens": 1, TEXT: 2}}
    use = {"type": "tool_use", "id": TEXT, "name": TEXT, "input": value}
    lines = [
        base | {"type": "user", "message": {"role": "user", "content": TEXT}},
        base | {"type": "assistant", "message": reply | {"content": [{"type": "text", "text": TEXT}, use]}},
        base | {"type": "user", "message": {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": TEXT, "content": TEXT, "is_error": True}]}},
        base | {"type": "summary", "summary": TEXT, "leafUuid": TEXT},
        base | {"type": TEXT, TEXT: TEXT, "timestamp": TEXT},
    ]  # fmt: skip
    bad = TEXT.encode() + b'\n{"a": "\x9b"}\n'
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines) + bad


def blob_row(path: str | Path, body: bytes) -> str:
    """Put a blob into a store's file behind its back; gives its digest."""
    connection = apsw.Connection(str(path))
    connection.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)", (digest_of(body), len(body), body))
    connection.close()
    return digest_of(body)
