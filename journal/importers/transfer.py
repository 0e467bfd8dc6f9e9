"""Runs in and out of a store: other tools' transcripts, and exports with the same bytes and hashes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import orjson

from runjournal.log.base import NewerEvent, UnreadableEvent
from runjournal.log.codec import check_run_id, decode, is_utf8
from runjournal.log.errors import CorruptLog, InvalidArgument
from runjournal.log.head import Head, advance
from runjournal.log.limits import checkpoint_every_events, import_chunk_events
from runjournal.log.store import Import, Transaction, Write
from runjournal.logbook import Logbook
from runjournal.projections import index
from runjournal.projections.state import RunState
from runjournal.writing.appender import Batch

from . import jsonl
from .base import FileImport, ImportedRun, Quarantined
from .claude_code import read
from .claude_files import Source

_BIRTHS = frozenset(["run.queued", "run.imported"])


@dataclass(frozen=True, slots=True)
class RunReport:
    """What an import added to a run; `path` is the file's as the user named it."""

    run_id: str
    path: str
    events_added: int


@dataclass(frozen=True, slots=True)
class FileReport:
    """What came of one file. `torn_tail`: the last of `quarantined` is the file's end, read again once it grows."""

    path: str
    runs: list[RunReport] = field(default_factory=list[RunReport])
    quarantined: list[Quarantined] = field(default_factory=list[Quarantined])
    torn_tail: bool = False
    error: str | None = None

    @property
    def findings(self) -> int:
        """Return the lines that couldn't be taken, without a torn end."""
        return len(self.quarantined) - self.torn_tail


def import_claude_code(journal: Logbook, source: Source) -> FileReport:
    """Import a transcript of Claude Code in one transaction; what was imported of it before is not added again."""
    found: FileImport = read(source, journal.store)
    batches = [_batch(journal, run) for run in found.runs if run.items]
    if batches and found.error is None:
        journal.append_all(batches)
    added = {batch.run_id: len(batch.drafts) for batch in batches if found.error is None}
    runs = [RunReport(run.run_id, found.path, added.get(run.run_id, 0)) for run in found.runs]
    return FileReport(found.path, runs, found.quarantined, found.torn_tail, found.error)


def _batch(journal: Logbook, run: ImportedRun) -> Batch:
    batch = journal.batch(
        run.run_id,
        [item.event for item in run.items],
        expect=None,
        by=f"import:{run.source}",
        at=[item.at for item in run.items],
    )
    return replace(batch, imported=Import(run.run_id, run.source, run.sha256, run.taken))


def export_runs(journal: Logbook, run_ids: Iterable[str]) -> Iterator[bytes]:
    """Yield the lines of an export of these runs, each with its newline. Raises RunNotFound before the first line."""
    heads = [journal.head(run_id) for run_id in run_ids]
    rows = (
        jsonl.JsonlRow(head.run_id, seq, _exportable(head.run_id, seq, event_type), body)
        for head in heads
        for seq, _, event_type, body in journal.store.read_raw(head.run_id, 0, head.head_seq)
    )
    return jsonl.export_lines(rows, journal.store.blob)


def _exportable(run_id: str, seq: int, event_type: str) -> str:
    if not is_utf8(event_type):
        raise CorruptLog(run_id, seq, "its type is no UTF-8, so no export can hold it")
    return event_type


def import_jsonl(journal: Logbook, lines: Iterable[bytes], path: str) -> FileReport:
    """Import an export: the same ids, bytes and hashes, in one transaction; what is there already is not added again.

    The runs are marked as from elsewhere: they are never claimed here, since their owner may live on there; `fork`
    goes on from them. Raises BadExport, ImportConflict; then nothing is written.
    """

    def decide(tx: Transaction) -> dict[str, int]:
        taking = _Taking(journal, tx, path)
        for entry in jsonl.additions(taking.noted(jsonl.read_lines(lines, path)), tx):
            taking.take(entry)
        return taking.finish()

    added = journal.store.transact(decide, durable=True)
    journal.ownership.forget(added)
    for run_id, count in added.items():
        if count >= checkpoint_every_events:
            journal.checkpoint(run_id)
    return FileReport(path, [RunReport(run_id, path, count) for run_id, count in added.items()])


class _Taking:
    """The writing side of an import: rows as they are, in chunks."""

    def __init__(self, journal: Logbook, tx: Transaction, path: str) -> None:
        self.journal = journal
        self.tx = tx
        self.path = path
        self.added: dict[str, int] = {}
        self.rows: list[jsonl.JsonlRow] = []
        self.blobs: list[tuple[str, bytes]] = []
        self.states: dict[str, RunState] = {}

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
                self.blobs.append((entry.digest, entry.body))
            return
        if self.rows and (self.rows[0].run_id != entry.run_id or len(self.rows) >= import_chunk_events):
            self._write()
        self.rows.append(entry)

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
                f"{self.path}: run {run_id} begins with {self.rows[0].type[:60]!a}, expected run.queued or run.imported"
                "; "
                "nothing was imported"
            )
        state, table = self._state(head), index.Rows()
        for row in self.rows:
            record = decode(run_id, row.seq, 0, row.type, row.body)
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
                [(row.seq, row.type, row.body) for row in self.rows],
                self.blobs,
                step_ends=table.step_ends,
                imported=note,
            )
        )
        self.added[run_id] += len(self.rows)
        self.rows, self.blobs = [], []

    def _state(self, head: Head) -> RunState:
        if head.run_id not in self.states:
            state = RunState.initial()
            self.states[head.run_id] = state.fold(self.tx.read(head.run_id, 0, head.head_seq), force=True)
        return self.states[head.run_id]
