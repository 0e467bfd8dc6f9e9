"""Claude Code's transcripts (`~/.claude/projects/**/*.jsonl`) -> runs.

| in the file | in the journal |
|---|---|
| a user entry without a tool_result | message.appended, role `user` |
| a user entry with one | message.appended, role `tool`; per id tool.completed, with `is_error` tool.failed |
| the assistant entries of a message.id | model.started, model.completed, message.appended, tool.started per tool_use |
| the first line of a sidechain | child.spawned; its lines are a run of their own with the same path |
| anything else, also a record of an unknown type | note.added, code `record`: the line as it stands |
| the `journal.jsonl` of a workflow, no session's | a run of kind `claude-code.workflow`; its lines are notes |
| a line with several records glued together | each of them, and note.added, code `glued`, for each but the first |
| a line that comes again, byte for byte, with its uuid | note.added, code `repeated_line` |
| a line that is no JSON | quarantined: note.added, code `quarantined`, with its number and the cause |

`raw` of a message is the list of the records that it was made of, without what `content` holds; `{"json": line}` for
one that holds what the journal can't (see `values.storable`). A call of a tool is known by its message and its id,
since models begin their ids anew; it keeps the provider's id unless another message has used that. Its policy is
`unsafe`. A model call that was imported while its message still grew, and has cost more since, gets model.recounted.
A result without a call is note.added, code `orphan_result`. The rest of a message whose beginning was imported before,
with other assistant messages in between, is note.added, code `message_continued`: order is that of the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, Final, NamedTuple

from runjournal.log.events import RunImported
from runjournal.log.limits import export_header_bytes_max, title_chars_max
from runjournal.log.sqlite_scratch import Scratch
from runjournal.log.store import Import

from .base import FileImport, ImportedRun, Item, Known
from .claude_files import Source, Taken, discover, holds_records, identify, meta_of, real_path, taken_of
from .claude_session import WORKFLOW, Chain, Session
from .jsonl import is_export
from .lines import Reader, TextLine, open_file, parse

__all__ = ["Source", "discover", "holds_records", "read"]

SOURCE: Final = "claude-code"
EPOCH: Final = "1970-01-01T00:00:00.000000Z"
"""The time of records before which, and in which, no time is known."""


class _About(NamedTuple):
    """What all runs of a file share, and the title and the note that a sub-agent's run has from its `.meta.json`."""

    path: str
    sha256: str
    taken: str
    title: str | None
    note: str | None


class _Refused(Exception):
    """The file can't be imported; the text says why."""


def read(source: Source, known: Known) -> FileImport:
    """Return what a transcript adds to the journal, beside what is known of it. Never raises for what the file holds.

    The file is read whole: the part that was taken before must be as it was. A last line without a newline that is no
    JSON is torn: it isn't taken, and is read again when the file has grown. Of two copies of a session the longer one
    counts, whichever comes first; the shorter one has nothing to add.
    """
    result = FileImport(os.fsencode(source.path).decode(errors="replace"))
    try:
        with open_file(source.path) as file:
            _read(source, file, known, result)
    except OSError as error:
        result.error = f"{error.strerror or error}: expected a file of JSON lines that can be read"
    except ValueError as error:  # NUL in the path
        result.error = str(error)
    except _Refused as refusal:
        result.error = str(refusal)
    if result.error is not None:
        result.runs = []
    return result


def _read(source: Source, file: IO[bytes], known: Known, result: FileImport) -> None:
    if is_export(file.readline(export_header_bytes_max)):
        raise _Refused("it is an export of runjournal; `runjournal import jsonl` takes it")
    identity = identify(source, file, known)
    run_id = identity.run_id if identity else ""
    row = known.imported(run_id) if identity else None
    taken = taken_of(row) if row else Taken(0, "")
    if taken is None:
        raise _Refused(f"run {run_id} was imported from something else than a Claude Code transcript")
    result.scratch = Scratch()
    session = Session(
        result.scratch,
        run_id,
        identity.parent_run_id if identity else None,
        sidechains=not (identity and identity.agent),
        live=row is None,
    )
    if identity and identity.workflow:
        session.main.kind = WORKFLOW
    reader = Reader(file, taken.bytes)
    if row is not None and reader.size < taken.bytes:
        result.runs = [_shorter(source, reader, row, taken)]
        return
    end = 0
    for line in reader:
        if not session.live and line.start >= taken.bytes:
            _same(reader.before.hexdigest(), row.sha256 if row else "", taken)
            session.go_live()
        if _take(line, session, result):
            end = reader.offset
    digest = (reader.hash if end == reader.offset else reader.before).hexdigest()
    if not session.live:
        _same(digest, row.sha256 if row else "", taken)
        session.go_live()
    if identity:
        title, note = meta_of(source.path) if identity.agent else (None, None)
        now = Taken(end, identity.digest, real_path(source.path), tuple(reader.marks))
        about = _About(result.path, digest, now.dump(), title, note)
        result.runs = list(_runs(session, about))


def _same(digest: str, expected: str, taken: Taken) -> None:
    if digest != expected:
        raise _Refused(f"the first {taken.bytes} bytes were changed since they were imported; nothing was added")


def _shorter(source: Source, reader: Reader, row: Import, taken: Taken) -> ImportedRun:
    """Return nothing new, for a file that is a part of a longer copy elsewhere. Raises _Refused if it isn't."""
    if real_path(source.path) == taken.path:
        raise _Refused(f"the file has {reader.size} bytes, {taken.bytes} were imported before; nothing was added")
    for _ in reader:
        pass
    if set(reader.marks) - set(taken.marks):
        raise _Refused(f"a longer copy, {taken.path}, was imported before, and this one differs; nothing was added")
    path = os.fsencode(source.path).decode(errors="replace")
    return ImportedRun(row.run_id, SOURCE, path, row.sha256, (), row.taken, None)


def _take(line: TextLine, session: Session, result: FileImport) -> bool:
    """Take the records of a line, and put what is none into quarantine; return whether it is done with to its end."""
    records, bad = parse(line)
    for place, record in enumerate(records):
        if place or line.rest:
            session.glued(line.number)
        session.record(line.number, *record)
    if bad is None:
        return bool(records) or line.ended
    result.torn_tail = not line.ended
    cause = f"torn: the file ends in it ({bad})" if result.torn_tail else str(bad)
    result.quarantine(line.number, cause)
    if line.ended:
        session.quarantined(line.number, cause)
    return line.ended


def _runs(session: Session, about: _About) -> Iterator[ImportedRun]:
    for chain in session.chains():
        main = chain is session.main
        begin = None
        if chain.new:
            name = (session.title or about.title) if main else None
            begin = RunImported(
                kind=chain.kind,
                source=SOURCE,
                tool=SOURCE,
                sha256=about.sha256,
                title=name[:title_chars_max] if name else None,
                tool_version=session.version,
                path=about.path,
                parent_run_id=chain.parent_run_id,
                note=about.note if main else None,
            )
        items = _Items(session, chain, begin)
        yield ImportedRun(chain.run_id, SOURCE, about.path, about.sha256, items, about.taken, chain.parent_run_id)


class _Items:
    """What a file adds to a run, read again each time."""

    def __init__(self, session: Session, chain: Chain, begin: RunImported | None) -> None:
        self._session = session
        self._chain = chain
        self._begin = begin

    def __iter__(self) -> Iterator[Item]:
        begin = self._begin
        for at, event in self._session.events(self._chain):
            moment = at or self._session.first_at or EPOCH
            if begin is not None:
                yield Item(moment, begin)
                begin = None
            yield Item(moment, event)
        if begin is not None:
            yield Item(EPOCH, begin)
