# ruff: noqa: PTH112, PTH113, PTH118 - a path stays as the user wrote it, and none is too odd to be asked for
"""Where Claude Code keeps its transcripts, and which run a file is.

Three layouts of sub-agents: lines with `isSidechain` inside the session's file; `agent-<id>.jsonl` beside it; a tree
`<session>/subagents/**/agent-<id>.jsonl`, with `.meta.json` files and, for workflows, a `journal.jsonl`.

A file's run id survives its growth and being moved. It is the stem of the file if that is the id of its session,
`<session>.agent-<id>` for a sub-agent, and otherwise the stem with a digest of the first record. Another file that
would have the same id (its first record differs) gets that digest behind the id.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO, Any, Final, NamedTuple

from runjournal.log.limits import meta_bytes_max, stem_chars_max, stem_whole_chars_max
from runjournal.log.store import Import

from .base import Known
from .lines import Reader, open_file, parse
from .values import dict_of, short_digest, text_of

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


@dataclass(frozen=True, slots=True)
class Source:
    """A transcript: `path` as the user named it, `session_path` its session's file, if it lies under one."""

    path: str
    session_path: str | None = None


class Identity(NamedTuple):
    """Which run a file is: `digest` of its first record, `agent` whether all of it is one sub-agent's.

    `workflow`: it is what a workflow keeps of its steps, and no session's.
    """

    run_id: str
    digest: str
    agent: bool
    parent_run_id: str | None
    workflow: bool


class Taken(NamedTuple):
    """How much of a file was taken: that many bytes, the first record with this digest, out of the file `path`.

    `marks` are a few places before that, each with the hash of the bytes up to there, so that a copy that is shorter
    is known.
    """

    bytes: int
    first: str
    path: str = ""
    marks: tuple[tuple[int, str], ...] = ()

    def dump(self) -> str:
        """Return it as `Import.taken` holds it."""
        return json.dumps({"v": 1, **self._asdict()})


def taken_of(row: Import) -> Taken | None:
    """Return what `Taken.dump` made this of; None if another importer wrote it."""
    try:
        data = json.loads(row.taken)
        marks = tuple((int(place), str(digest)) for place, digest in data.get("marks", ()))
        return Taken(int(data["bytes"]), str(data["first"]), str(data.get("path", "")), marks)
    except (ValueError, TypeError, KeyError):
        return None


def real_path(path: str) -> str:
    """Return where a file is, as text that can be stored."""
    return os.fsencode(_real(path)).decode(errors="replace")


def discover(paths: Iterable[str]) -> list[Source]:
    """Return the transcripts among these files and folders, sessions before their sub-agents, each file once.

    Folders are walked for `*.jsonl`, without following links to folders. What doesn't exist or can't be listed is
    returned all the same, for `read` to say so.
    """
    found: dict[str, Source] = {}
    for path in paths:
        for each in sorted(_walk(path), key=_order) if os.path.isdir(path) else [path]:
            found.setdefault(_real(each), Source(each, _session_path(each)))
    return sorted(found.values(), key=lambda source: _order(source.path)[0])


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


def _walk(folder: str) -> Iterator[str]:
    failed: list[OSError] = []
    for place, _, names in os.walk(folder, onerror=failed.append):
        yield from (os.path.join(place, name) for name in names if name.endswith(".jsonl"))
    yield from (str(error.filename) for error in failed)


def _order(path: str) -> tuple[bool, str]:
    return PurePath(path).name.startswith("agent-") or "subagents" in PurePath(path).parts[:-1], path


def _session_path(path: str) -> str | None:
    """`<session>.jsonl` for what lies under `<session>/subagents/`, if it is there."""
    parts = PurePath(path).parts
    for place in range(len(parts) - 2, 0, -1):
        if parts[place] == "subagents":
            main = os.path.join(*parts[:place]) + ".jsonl"
            return main if os.path.isfile(main) else None
    return None


def identify(source: Source, file: IO[bytes], known: Known) -> Identity | None:
    """Return which run the file is, by its first record, which is an object; None if it holds none. Raises OSError."""
    first = _first_record(file)
    if first is None:
        return None
    digest, record = short_digest(first[0]), first[1]
    stem = PurePath(source.path).stem
    session = _session(record)
    agent = stem.startswith("agent-") or (bool(record.get("agentId")) and record.get("isSidechain") is True)
    under = _folder_session(source.path)
    if agent or under is not None:
        parent = _parent(source, known) or session or under
        name = f"{session}.{stem}" if session and stem.startswith("agent-") and _PLAIN.fullmatch(stem) else ""
    else:
        parent = None
        name = stem if _UUID.fullmatch(stem) or stem == session else ""
    if not 0 < len(name) <= stem_whole_chars_max:
        name, parent = f"{_clean(stem)}.{digest}", parent if parent != stem else None
    workflow = stem == "journal" and under is not None and session is None
    return Identity(_own(name, digest, known), digest, agent, parent, workflow)


def holds_records(source: Source) -> bool:
    """Return whether the file can be read and holds a JSON object at all."""
    try:
        with open_file(source.path) as file:
            return _first_record(file) is not None
    except (OSError, ValueError):
        return False


def _first_record(file: IO[bytes]) -> tuple[bytes, Mapping[str, Any]] | None:
    for line in Reader(file):
        for each in parse(line)[0]:
            if (record := dict_of(each.value)) is not None:
                return each.text.encode("utf-8", "surrogatepass"), record
    return None


def _session(record: Mapping[str, Any]) -> str | None:
    """The session id of a record, if it can be a run id."""
    session = record.get("sessionId")
    return session if isinstance(session, str) and _PLAIN.fullmatch(session) else None


def _folder_session(path: str) -> str | None:
    """The name of the folder above `subagents`, if the file lies in such a tree and it can be a run id."""
    parts = PurePath(path).parts
    place = next((n for n in range(len(parts) - 2, 0, -1) if parts[n] == "subagents"), 0)
    return parts[place - 1] if place and _PLAIN.fullmatch(parts[place - 1]) else None


def _parent(source: Source, known: Known) -> str | None:
    """Return the run of the session's file."""
    if source.session_path is None:
        return None
    try:
        with open_file(source.session_path) as file:
            identity = identify(Source(source.session_path), file, known)
    except OSError:
        return None
    return identity.run_id if identity else None


def _clean(stem: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("._-")[:stem_chars_max] or "file"


def _own(name: str, digest: str, known: Known) -> str:
    """The name, unless a file with another first record has it."""
    row = known.imported(name)
    taken = taken_of(row) if row else None
    return name if taken is None or taken.first == digest else f"{name}.{digest}"


def meta_of(path: str) -> tuple[str | None, str | None]:
    """Return a sub-agent's title, and its `.meta.json` as text; None where there is none."""
    try:
        with open_file(str(PurePath(path).with_suffix(".meta.json"))) as file:
            data = file.read(meta_bytes_max + 1)
        text = data.decode()
        meta = dict_of(json.loads(text))
    except (OSError, ValueError, RecursionError):
        return None, None
    if len(data) > meta_bytes_max or meta is None:
        return None, None
    title = meta.get("description")
    return text_of(title) if isinstance(title, str) else None, text.strip()
