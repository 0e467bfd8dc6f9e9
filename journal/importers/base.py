"""What an importer returns: the runs that one file makes, and the lines that it couldn't take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, Self

from runjournal.log.events import Event
from runjournal.log.limits import import_quarantined_held_max
from runjournal.log.sqlite_scratch import Scratch
from runjournal.log.store import Import


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A line that was not taken: `line` counts from 1, `cause` says why and never quotes it."""

    line: int
    cause: str


@dataclass(frozen=True, slots=True)
class Item:
    """An event to append. `at` is UTC text with microseconds, `step` the index of its step, from 0, or None."""

    at: str
    event: Event
    step: int | None = None


@dataclass(slots=True)
class ImportedRun:
    """What a file adds to one run. The first item of a new run is RunImported; a run known before gets its tail only.

    `items` are read from disk, as often as they are asked for, as long as their `FileImport` is open.

    `source` names the importer, `path` is the file's as the user wrote it, `sha256` (hex) that of all bytes taken so
    far. `taken` is the importer's own JSON: how much was taken, and what it must know to go on from there.
    """

    run_id: str
    source: str
    path: str
    sha256: str
    items: Iterable[Item]
    taken: str
    parent_run_id: str | None


@dataclass(slots=True)
class FileImport:
    """What came of one file: to be written in one transaction, or not at all.

    `runs` begins with the file's own run; it is empty if nothing could be taken, and its items are if nothing is new.
    `quarantined` are all lines of the file that aren't in the journal, those of earlier imports included, by number;
    with `torn_tail` the last of them is the file's end, which is read again once the file has grown. It holds the
    first `import_quarantined_held_max` of them, and the torn one; `quarantined_count` counts them all. `error` says why
    the file was left alone; it is None otherwise. What was read is on disk until `close`.
    """

    path: str
    runs: list[ImportedRun] = field(default_factory=list[ImportedRun])
    quarantined: list[Quarantined] = field(default_factory=list[Quarantined])
    quarantined_count: int = 0
    torn_tail: bool = False
    error: str | None = None
    scratch: Scratch | None = None

    def quarantine(self, line: int, cause: str) -> None:
        """Count a line that wasn't taken, and remember it unless there are very many."""
        self.quarantined_count += 1
        if self.torn_tail or len(self.quarantined) < import_quarantined_held_max:
            self.quarantined.append(Quarantined(line, cause))

    def close(self) -> None:
        """Let go of what was read; idempotent."""
        if self.scratch is not None:
            self.scratch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Known(Protocol):
    """What was imported before; every `Store` and transaction knows it."""

    def imported(self, run_id: str) -> Import | None:
        """Return where an imported run came from and how much of it was taken, or None."""
        ...
