"""The journal's own lines: runs out of a store and into another one, with the same ids, numbers and hashes.

The first line is a header, the last one counts what came between, so that a cut file is noticed. Every other line is
an event, a blob or the key of a private run; a blob comes before the first event that refers to it, a key before the
first event of its run:

    {"runjournal":2}
    {"blob":"<sha256>","body":"<its JSON, as text>"}
    {"key":"<base64>","of":"<run id>"}
    {"run_id":"…","seq":1,"type":"run.queued","hash":"<sha256>","body":"<the exact bytes, as text>"}
    {"end":{"events":1,"blobs":1}}

A blob comes also where a reference to bytes in the event's values leads to it. `body64` stands for `body` where the
bytes aren't UTF-8, or hold control characters. A blob that is missing is `{"blob":"…","missing":true}`. A
private run that was erased has no key, and what it opened reads as erased.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Final, NamedTuple, Protocol, TypeAlias, cast

import orjson

from runjournal.log.base import RecordedEvent
from runjournal.log.blob_names import references
from runjournal.log.chain import GENESIS, PURGED, event_hash
from runjournal.log.cipher import ERASED_KEY
from runjournal.log.codec import check_run_id, digest_of
from runjournal.log.errors import InvalidArgument, JournalError
from runjournal.log.head import Head
from runjournal.log.limits import export_header_bytes_max, export_line_bytes_max, hashed_name_bytes_max, key_bytes
from runjournal.log.private_values import Keys, no_key

VERSION: Final = 2
_DIGEST_CHARS: Final = 64


class BadExport(JournalError, ValueError):
    """A line of an export isn't what it should be; `line` counts from 1. Nothing of the file may be written."""

    code = "bad_export"

    def __init__(self, line: int, what: str, path: str = "") -> None:
        where = f"{path}, line {line}" if path else f"line {line}"
        super().__init__(f"{where}: {what}; nothing was imported, export the runs again")
        self.line = line


class ImportConflict(JournalError, ValueError):
    """The store has a run of this id with another history."""

    code = "import_conflict"

    def __init__(self, run_id: str, seq: int) -> None:
        super().__init__(
            f"run {run_id}: its event {seq} in the store is another one than in the export; nothing was imported, "
            "import into another store"
        )
        self.run_id = run_id
        self.seq = seq


class JsonlRow(NamedTuple):
    """An event as it is stored: `seq` counts from 1, `body` are the exact bytes, `hash` the 32 bytes of its hash."""

    run_id: str
    seq: int
    type: str
    body: bytes
    hash: bytes


class Blob(NamedTuple):
    """A value that is held out of line; `body` is None if it was erased."""

    digest: str
    body: bytes | None


class RunKey(NamedTuple):
    """The key of a private run, 32 bytes: whoever has the export can read it."""

    run_id: str
    key: bytes


Entry: TypeAlias = JsonlRow | Blob | RunKey


class Stored(Protocol):
    """What a store has already; every `Store` and transaction can tell it."""

    def head(self, run_id: str) -> Head | None:
        """Return the run's head, or None."""
        ...

    def read(self, run_id: str, after: int = 0, upto: int | None = None) -> Iterator[RecordedEvent]:
        """Yield the run's events with after < seq <= upto, in order."""
        ...

    def secret(self, purpose: str, name: str) -> bytes | None:
        """Return a key; ERASED_KEY if it was erased, None if there is none."""
        ...


def export_lines(rows: Iterable[JsonlRow], blob: Callable[[str], bytes | None], key: Keys = no_key) -> Iterator[bytes]:
    """Yield the lines of an export, each with its newline.

    `rows` hold each run from its first event; runs may alternate. `blob` returns the bytes of a blob, or None if it is
    missing: `Store.blob`. `key` returns the key of a private run, or None: `Store.key`.
    """
    written: set[str] = set()
    events = 0
    yield _dump({"runjournal": VERSION})
    for row in rows:
        if row.seq == 1 and (opens := key(row.run_id)) is not None:
            yield _dump({"key": base64.b64encode(opens).decode(), "of": row.run_id})
        for digest in references(row.body):
            if digest not in written:
                written.add(digest)
                body = blob(digest)
                yield _dump({"blob": digest} | ({"missing": True} if body is None else _body(body)))
        events += 1
        named = {"run_id": row.run_id, "seq": row.seq, "type": row.type, "hash": row.hash.hex()}
        yield _dump(named | _body(row.body))
    yield _dump({"end": {"events": events, "blobs": len(written)}})


def is_export(first_line: bytes) -> bool:
    """Return whether a file that begins with this line is an export of ours."""
    try:
        header = orjson.loads(first_line)
    except ValueError:
        return False
    return isinstance(header, dict) and "runjournal" in header


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file, as much of each as shows that it is too long: a file without line breaks fits no memory."""
    bound = export_header_bytes_max
    while line := file.readline(bound + 1):
        yield line
        if len(line) > bound:
            return
        bound = export_line_bytes_max


def read_lines(lines: Iterable[bytes], path: str = "") -> Iterator[Entry]:
    """Yield the entries of an export, each verified: hash, dense numbers, chain, blobs.

    Raises BadExport at the first line that is wrong, at the latest when the lines end. So whoever writes the entries
    must do it in one transaction. `path` is named in the error's text.
    """
    reading = _Reading()
    number = 0
    for number, line in enumerate(lines, 1):
        try:
            entry = reading.take(line)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else _reason(error)
            raise BadExport(number, what, path) from None
        if entry is not None:
            yield entry
    if not reading.ended:
        raise BadExport(number + 1, "the file is cut: its last line should say how much it holds", path)


def additions(entries: Iterable[Entry], stored: Stored) -> Iterator[Entry]:
    """Yield what of an export a store doesn't have: all, the tail of a run, or nothing; blobs and keys always.

    Of a run that was purged or erased there that is nothing.

    Raises ImportConflict if the store has a run of the same id with another history.
    """
    heads: dict[str, tuple[int, str | None]] = {}
    gone: set[str] = set()
    last: dict[str, tuple[int, str]] = {}
    for entry in entries:
        if not isinstance(entry, JsonlRow):
            yield entry
            continue
        if entry.run_id not in heads:
            head = stored.head(entry.run_id)
            heads[entry.run_id] = (head.head_seq, head.head_hash) if head else (0, None)
            if head is not None and (head.status == "purged" or stored.secret("run", entry.run_id) == ERASED_KEY):
                gone.add(entry.run_id)
        if entry.run_id in gone:
            continue
        seq, expected = heads[entry.run_id]
        if entry.seq > seq:
            yield entry
            continue
        last[entry.run_id] = entry.seq, entry.hash.hex()
        if entry.seq == seq and last.pop(entry.run_id)[1] != expected:
            raise ImportConflict(entry.run_id, seq)
    for run_id, (seq, digest) in last.items():  # the store has more of these runs than the export
        if [digest] != [record.hash for record in stored.read(run_id, seq - 1, seq)]:
            raise ImportConflict(run_id, seq)


class _Reading:
    """What must be remembered of the lines before: the end of each run, the blobs, the counts."""

    def __init__(self) -> None:
        self.begun = self.ended = False
        self._ends: dict[str, tuple[int, bytes]] = {}
        self._blobs: set[str] = set()
        self._events = 0

    def take(self, line: bytes) -> Entry | None:
        """Return the entry that a line is; None for the header and the end. Raises ValueError, KeyError, TypeError."""
        if self.ended:
            raise ValueError("something follows the end")
        if not self.begun:
            self._header(line)
            return None
        if len(line) > export_line_bytes_max:
            raise ValueError(f"longer than export_line_bytes_max = {export_line_bytes_max}")
        data = orjson.loads(line)
        if not isinstance(data, dict):
            raise TypeError("expected a JSON object")
        record = cast("dict[str, Any]", data)
        if len(record) != _names_count(line, record):
            raise ValueError("a key of the object comes twice")
        if "end" in record:
            self._end(record)
            return None
        if "key" in record:
            return self._key(record)
        return self._blob(record) if "blob" in record else self._row(record)

    def _header(self, line: bytes) -> None:
        if len(line) > export_header_bytes_max or not is_export(line) or orjson.loads(line)["runjournal"] != VERSION:
            raise ValueError(
                f'expected the header {{"runjournal":{VERSION}}} of an export by `runjournal export`'
                " (for transcripts: `runjournal import claude-code`)"
            )
        self.begun = True

    def _end(self, record: dict[str, Any]) -> None:
        expected, actual = record["end"], {"events": self._events, "blobs": len(self._blobs)}
        if expected != actual:
            raise ValueError("lines are missing: the end counts others than came")
        self.ended = True

    def _blob(self, record: dict[str, Any]) -> Blob:
        digest = record["blob"]
        if not isinstance(digest, str) or len(digest) != _DIGEST_CHARS or digest in self._blobs:
            raise ValueError("expected a blob's SHA-256, each once")
        body = None if record.get("missing") is True else _bytes(record)
        if body is not None and digest_of(body) != digest:
            raise ValueError("the blob has another hash than its line says")
        self._blobs.add(digest)
        return Blob(digest, body)

    def _key(self, record: dict[str, Any]) -> RunKey:
        run_id, key = check_run_id(record["of"]), base64.b64decode(record["key"], validate=True)
        if len(key) != key_bytes or run_id in self._ends:
            raise ValueError(f"expected the {key_bytes} bytes of a run's key, before its first event")
        return RunKey(run_id, key)

    def _row(self, record: dict[str, Any]) -> JsonlRow:
        run_id, number, event_type, body = check_run_id(record["run_id"]), record["seq"], record["type"], _bytes(record)
        if type(number) is not int or not isinstance(event_type, str):
            raise TypeError("expected seq as a whole number, type as text")
        if not event_type or len(event_type.encode()) > hashed_name_bytes_max or "\0" in event_type:
            raise ValueError(f"expected a type of 1 to {hashed_name_bytes_max} bytes without NUL")
        if not body or event_type == PURGED:
            raise ValueError("what was purged is in no export: expected a body, and no run.purged")
        seq, prev = self._ends.get(run_id, (0, GENESIS))
        if number != seq + 1:
            raise ValueError(f"expected event {seq + 1} of its run, got {number}")
        row = JsonlRow(run_id, number, event_type, body, event_hash(run_id, number, event_type, prev, body))
        if row.hash.hex() != record["hash"]:
            raise ValueError("the event has another hash than its line says")
        if missing := references(row.body) - self._blobs:
            raise ValueError(f"{len(missing)} blobs that the event refers to haven't come before it")
        self._ends[row.run_id] = row.seq, row.hash
        self._events += 1
        return row


def _names_count(line: bytes, record: dict[str, Any]) -> int:
    """Return how many keys the object has as it is written; it is read again only if this module hasn't written it."""
    if orjson.dumps(record) == line.removesuffix(b"\n"):
        return len(record)
    counts: list[int] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        counts.append(len(pairs))

    json.loads(line, object_pairs_hook=note)
    return counts[-1]


def _reason(error: Exception) -> str:
    if isinstance(error, orjson.JSONDecodeError):
        return f"not valid JSON: {error.msg} at column {error.pos + 1}"
    if isinstance(error, InvalidArgument | binascii.Error):
        return "a run id or a body64 that can't be one"
    return str(error)


def _dump(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def _body(body: bytes) -> dict[str, str]:
    if not _CONTROL.search(body):
        try:
            return {"body": body.decode()}
        except UnicodeDecodeError:
            pass
    return {"body64": base64.b64encode(body).decode()}


_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
"""In JSON each takes six characters, and no JSON that is stored has one: only bytes that were attached do."""


def _bytes(record: dict[str, Any]) -> bytes:
    if "body64" in record:
        return base64.b64decode(record["body64"], validate=True)
    body = record["body"]
    if not isinstance(body, str):
        raise TypeError("expected body as text")
    return body.encode()
