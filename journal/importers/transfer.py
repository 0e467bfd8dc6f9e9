"""Runs in and out of a store: other tools' transcripts, and exports with the same bytes and hashes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import orjson

from runjournal.log.base import NewerEvent, UnreadableEvent
from runjournal.log.blob_names import references
from runjournal.log.cipher import ERASED_KEY, new_key
from runjournal.log.codec import Draft, check_run_id, decode, draft, is_utf8
from runjournal.log.errors import CorruptLog, InvalidArgument
from runjournal.log.events import RunQueued
from runjournal.log.head import Head, advance
from runjournal.log.limits import (
    checkpoint_every_events,
    import_chunk_bytes,
    import_chunk_events,
    import_states_held_max,
)
from runjournal.log.private_values import KeyRing
from runjournal.log.store import Import, Reading, Store, Transaction, Write
from runjournal.logbook import Logbook
from runjournal.projections import index
from runjournal.projections.state import RunState
from runjournal.writing import folding, purged
from runjournal.writing.appender import Batch

from . import jsonl
from .base import ImportedRun, Quarantined
from .claude_code import read
from .claude_files import Source

_BIRTHS = frozenset(["run.queued", "run.imported", "run.opened"])


@dataclass(frozen=True, slots=True)
class RunReport:
    """What an import added to a run; `path` is the file's as the user named it.

    `left_out` says why nothing is ever added to it again: the run was erased or purged here. None for any other run.
    """

    run_id: str
    path: str
    events_added: int
    left_out: str | None = None


@dataclass(frozen=True, slots=True)
class FileReport:
    """What came of one file. `torn_tail`: the last of `quarantined` is the file's end, read again once it grows.

    `quarantined` holds the first `import_quarantined_held_max` lines; `quarantined_count` counts them all.
    """

    path: str
    runs: list[RunReport] = field(default_factory=list[RunReport])
    quarantined: list[Quarantined] = field(default_factory=list[Quarantined])
    quarantined_count: int = 0
    torn_tail: bool = False
    error: str | None = None

    @property
    def findings(self) -> int:
        """Return the lines that couldn't be taken, without a torn end."""
        return self.quarantined_count - self.torn_tail


def import_claude_code(journal: Logbook, source: Source) -> FileReport:
    """Import a transcript of Claude Code in one transaction; what was imported of it before is not added again."""
    with read(source, journal.store) as found:
        added = dict.fromkeys((run.run_id for run in found.runs), 0)
        left_out = {run_id: why for run_id in added if (why := _gone(journal.store, run_id)) is not None}
        batches = (batch for run in found.runs if run.run_id not in left_out for batch in _batches(run))
        added |= journal.ownership.appender.append_stream(batches)
    runs = [RunReport(run_id, found.path, count, left_out.get(run_id)) for run_id, count in added.items()]
    return FileReport(found.path, runs, found.quarantined, found.quarantined_count, found.torn_tail, found.error)


def _gone(reading: Reading, run_id: str) -> str | None:
    """Return why nothing is imported into a run any more; None if it may be."""
    head = reading.head(run_id)
    if head is not None and head.status == "purged":
        return "it was purged here, and stays so"
    if head is not None and reading.secret("run", run_id) == ERASED_KEY:
        return "it was erased here, and nothing is added to it"
    return None


def _batches(run: ImportedRun) -> Iterator[Batch]:
    """What a file adds to a run, in pieces that fit memory. Each says that all of them are in: none is in alone."""
    imported = Import(run.run_id, run.source, run.sha256, run.taken)
    drafts: list[Draft] = []
    held_bytes = 0
    for item in run.items:
        made = draft(item.event, at=item.at, by=f"import:{run.source}")
        drafts.append(made)
        held_bytes += len(made.data) + sum(len(body) for _, body in made.blobs)
        if len(drafts) >= import_chunk_events or held_bytes >= import_chunk_bytes:
            yield Batch(check_run_id(run.run_id), tuple(drafts), None, imported=imported)
            drafts, held_bytes = [], 0
    if drafts:
        yield Batch(check_run_id(run.run_id), tuple(drafts), None, imported=imported)


def with_family(journal: Logbook, run_ids: Iterable[str]) -> list[str]:
    """Return these runs with those that they go on from and those that they have begun, near or far, each once.

    Runs that were purged are left out, but for these themselves. Raises RunNotFound.
    """
    chosen = list(dict.fromkeys(run_ids))
    pending, found = list(chosen), dict.fromkeys(chosen)
    while pending:
        run_id = pending.pop()
        journal.head(run_id)
        near = [*folding.bases(journal.store, run_id), *(head.run_id for head in journal.runs(parent=run_id))]
        for each in near:
            head = journal.store.head(each)
            if each not in found and head is not None and head.status != "purged":
                found[each] = None
                pending.append(each)
    return list(found)


def export_runs(journal: Logbook, run_ids: Iterable[str]) -> Iterator[bytes]:
    """Yield the lines of an export of these runs, each with its newline.

    Raises RunNotFound before the first line, and Purged for a run of which nothing is left to export: later, too, if it
    is purged meanwhile. The lines so far are no export then, as they have no end.
    """
    heads = [journal.head(run_id) for run_id in run_ids]
    for head in heads:
        purged.check_head(journal.store, head)
    rows = (row for head in heads for row in _exported(journal.store, head))
    return jsonl.export_lines(rows, journal.store.blob, journal.store.key)


def _exported(store: Store, head: Head) -> Iterator[jsonl.JsonlRow]:
    for seq, _, event_type, body, digest in store.read_raw(head.run_id, 0, head.head_seq):
        if not body:
            purged.check_there(store, head.run_id)
        yield jsonl.JsonlRow(head.run_id, seq, _exportable(head.run_id, seq, event_type), body, digest)
    purged.check_there(store, head.run_id)  # a value out of line may have gone behind its event


def _exportable(run_id: str, seq: int, event_type: str) -> str:
    if not is_utf8(event_type):
        raise CorruptLog(run_id, seq, "its type is no UTF-8, so no export can hold it")
    return event_type


def import_jsonl(journal: Logbook, lines: Iterable[bytes], path: str) -> FileReport:
    """Import an export: the same ids, bytes and hashes, in one transaction; what is there already is not added again.

    The runs are marked as from elsewhere: they are never claimed here, since their owner may live on there; `fork`
    goes on from them. A run that was purged here stays so, and what goes on from it is left out; the report says it.
    Raises BadExport, ImportConflict; then nothing is written.
    """
    left_out: dict[str, str | None] = {}

    def decide(tx: Transaction) -> dict[str, int]:
        taking = _Taking(journal, tx, path)
        left_out.clear()
        for entry in jsonl.additions(taking.noted(jsonl.read_lines(lines, path)), tx):
            taking.take(entry)
        added = taking.finish()
        left_out.update((run_id, taking.refused.get(run_id) or _gone(tx, run_id)) for run_id in added)
        return added

    added = journal.store.transact(decide, durable=True)
    journal.ownership.forget(added)
    for run_id, count in added.items():
        if count >= checkpoint_every_events:
            journal.checkpoint(run_id)
    return FileReport(path, [RunReport(run_id, path, count, left_out.get(run_id)) for run_id, count in added.items()])


class _Taking:
    """The writing side of an import: rows as they are, in chunks."""

    def __init__(self, journal: Logbook, tx: Transaction, path: str) -> None:
        self.journal = journal
        self.tx = tx
        self.path = path
        self.added: dict[str, int] = {}
        self.rows: list[jsonl.JsonlRow] = []
        self.held_bytes = 0
        self.blobs: list[tuple[str, bytes]] = []
        self.waiting: dict[str, bytes] = {}  # blobs that no event has named yet that is taken
        self.states: dict[str, RunState] = {}
        self.keys: dict[str, bytes] = {}
        self.refused: dict[str, str] = {}  # runs that are left out, and why

    def noted(self, entries: Iterable[jsonl.Entry]) -> Iterator[jsonl.Entry]:
        """The same entries; their runs are reported even if they add nothing."""
        for entry in entries:
            if isinstance(entry, jsonl.JsonlRow):
                self.added.setdefault(entry.run_id, 0)
            yield entry

    def take(self, entry: jsonl.Entry) -> None:
        """Take one more row or blob."""
        if isinstance(entry, jsonl.Blob):
            if entry.body is not None:
                self.waiting[entry.digest] = entry.body
            return
        if isinstance(entry, jsonl.RunKey):
            self.keys[entry.run_id] = entry.key
            return
        if entry.run_id in self.refused or (entry.seq == 1 and self._refuses(entry)):
            return
        if self.rows and self.rows[0].run_id != entry.run_id:
            self._write()
        self.rows.append(entry)
        self.held_bytes += len(entry.body)
        for digest in references(entry.body) & self.waiting.keys():
            self.blobs.append((digest, self.waiting.pop(digest)))
            self.held_bytes += len(self.blobs[-1][1])
        if len(self.rows) >= import_chunk_events or self.held_bytes >= import_chunk_bytes:
            self._write()

    def finish(self) -> dict[str, int]:
        """Write the rest; return how many events each run got."""
        self._write()
        return self.added

    def _write(self) -> None:
        if not self.rows:
            return
        run_id = check_run_id(self.rows[0].run_id)
        before = self.tx.head(run_id)
        head = before or Head(run_id)
        if before is not None and self.tx.imported(run_id) is None:
            raise InvalidArgument(
                f"run {run_id} lives in this store and is behind the export; import into another store"
            )
        if before is None and self.rows[0].type not in _BIRTHS:
            raise InvalidArgument(
                f"{self.path}: run {run_id} begins with {self.rows[0].type[:60]!a}, expected run.queued, run.imported "
                "or run.opened; nothing was imported"
            )
        state, table, keys = self._state(head), index.Rows(), KeyRing(self._key)
        for row in self.rows:
            record = decode(run_id, row.seq, 0, row.type, row.body, row.hash, keys)
            if record.private and row.seq == 1:
                if isinstance(record.event, UnreadableEvent) and run_id in self.keys:
                    raise InvalidArgument(
                        f"{self.path}: the key of run {run_id} doesn't open its first event; nothing was imported, "
                        "export the runs again"
                    )
                self._keep_key(run_id)
            head = advance(head, record)
            if isinstance(record.event, UnreadableEvent | NewerEvent):  # carried over as it is
                state.fold([record], force=True)
            else:
                index.apply(state, record, table, lambda _: None)
        note = Import(
            run_id, "jsonl", head.head_hash or "", orjson.dumps({"path": self.path, "seq": head.head_seq}).decode()
        )
        self.tx.write(
            Write(
                before,
                head,
                [row[1:] for row in self.rows],
                self.blobs,
                step_ends=table.step_ends,
                bills=table.bills,
                imported=note,
            )
        )
        self.added[run_id] += len(self.rows)
        self.rows, self.blobs, self.held_bytes = [], [], 0

    def _refuses(self, first: jsonl.JsonlRow) -> bool:
        """Return whether a new run goes on from what was purged here, or was left out for that; note it then."""
        event = decode(first.run_id, first.seq, 0, first.type, first.body, first.hash, KeyRing(self._key)).event
        if not isinstance(event, RunQueued) or event.base is None:
            return False
        base = event.base["run_id"]
        if base not in self.refused and not purged.is_purged(self.tx, base):
            return False
        self.refused[first.run_id] = f"it goes on from {base}, which was purged here, or left out for that"
        return True

    def _key(self, run_id: str) -> bytes | None:
        return self.keys.get(run_id) or self.tx.key(run_id)

    def _keep_key(self, run_id: str) -> None:
        """Keep the key of a new private run; one that came without is as if it had been erased here."""
        self.tx.add_secret("run", run_id, self.keys.get(run_id, ERASED_KEY))
        self.tx.add_secret("checkpoints", run_id, new_key() if run_id in self.keys else ERASED_KEY)

    def _state(self, head: Head) -> RunState:
        state = self.states.pop(head.run_id, None)
        if state is None:
            state = RunState.initial().fold(self.tx.read(head.run_id, 0, head.head_seq), force=True)
        self.states[head.run_id] = state  # the last one
        if len(self.states) > import_states_held_max:
            del self.states[next(iter(self.states))]
        return state
