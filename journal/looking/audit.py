"""The audit of a store: every run in one pass over its events, then what only all runs together can tell.

`verify_run` looks at the chain alone and is fast; `audit_run` looks at everything. Both take a run as it stands when
they begin, so that writers may go on.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import orjson

from runjournal.log import blob_names, owner
from runjournal.log.base import ERASED, BlobRef, NewerEvent, RecordedEvent, UnknownEvent, UnreadableEvent, plan_of
from runjournal.log.codec import RUN_ID, digest_of
from runjournal.log.errors import CorruptLog, InvalidArgument, JournalError, RunNotFound, StoreBusy
from runjournal.log.events import RunQueued
from runjournal.log.head import Head
from runjournal.log.limits import blobs_checked_max
from runjournal.log.store import BadRow, Checkpoint, Store, all_heads
from runjournal.log.tables import DERIVED, INDEX
from runjournal.projections.audit import RunAudit
from runjournal.projections.chain_audit import ChainAudit
from runjournal.projections.findings import REBUILD, finding, shown
from runjournal.projections.findings import Finding as Finding
from runjournal.projections.shell import command, show_events
from runjournal.projections.state import RunState
from runjournal.writing import folding
from runjournal.writing.checkpoints import fold_name, seal, unseal

from .audit_rows import DAMAGE, Damage, IndexRow, Presence, beyond, rows
from .audit_tables import TableAudit
from .progress import Progress


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify_run` has found: the number of events that are there, and the hash of the last one."""

    run_id: str
    events: int
    head_hash: str | None
    problems: list[Finding]


# The chain alone.


def verify_run(store: Store, run_id: str, *, progress: Progress | None = None) -> Verification:
    """Check sequence, links and head of a run, and report every break. Raises RunNotFound, StoreBusy, StoreClosed."""
    row, head, problems = _heads(store, run_id)
    links = ChainAudit(run_id, row)
    for each in rows(store, run_id, head.head_seq if head else None, progress):
        problems += (
            links.feed(each.record, each.body) if isinstance(each, IndexRow) else links.skip(each.seq, each.what)
        )
    if head is None and not links.seq and not problems:
        raise RunNotFound(run_id)
    problems += links.finish()
    problems += _beyond(store, run_id, head)
    if problems and _purged_since(store, run_id, head):
        return verify_run(store, run_id, progress=progress)
    return Verification(run_id, links.count, links.hash, problems)


def verify_store(store: Store, *, progress: Progress | None = None) -> Iterator[Verification]:
    """`verify_run` for every run of the store, also for those that have events and no row."""
    ids, problems = _run_ids(store)
    if problems:
        yield Verification("", 0, None, problems)
    done, total = 0, store.last_position()
    for run_id in ids:
        found = verify_run(store, run_id)
        done += found.events
        if progress is not None:
            progress(done, max(done, total))
        yield found


def _heads(store: Store, run_id: str) -> tuple[Head | None, Head | None, list[Finding]]:
    """Return the run's row as it stands, its head, and what is wrong with the row."""
    try:
        row = store.head_row(run_id)
        return row, row if row is not None and row.status != "running" else store.head(run_id), []
    except StoreBusy:
        raise
    except DAMAGE as error:
        why = error.what if isinstance(error, CorruptLog) else type(error).__name__
        what = f"the run's row can't be read ({why})"
        return None, None, [finding("row_unreadable", run_id, None, what, REBUILD)]


def _purged_since(store: Store, run_id: str, head: Head | None) -> bool:
    """Return whether a run was purged since its head was read: what was found of it then may be no damage."""
    if head is None or head.status == "purged":
        return False
    now, _, _ = _heads(store, run_id)
    return now is not None and now.status == "purged"


def _beyond(store: Store, run_id: str, head: Head | None) -> list[Finding]:
    try:
        seq = beyond(store, run_id, head.head_seq) if head else None
    except StoreBusy:
        raise
    except DAMAGE as error:
        what = f"rows behind the head can't be read ({type(error).__name__})"
        return [finding("row_unreadable", run_id, None, what, command("verify", run_id))]
    if seq is None:
        return []
    what = f"event {seq} stands behind the head of the run, past the guarded append"
    return [finding("beyond_head", run_id, seq, what, show_events(run_id, seq))]


# One run, everything.


def audit_run(store: Store, run_id: str, *, progress: Progress | None = None) -> Iterator[Finding]:
    """Yield everything that is wrong or worth knowing in one run, in one pass.

    `progress` is told now and then how many events have been read, and of how many. Raises RunNotFound, StoreBusy,
    StoreClosed.
    """
    return _Pass(store, run_id, set(), Presence(), progress).run()


def _base(store: Store, first: IndexRow | Damage | None) -> RunState | None:
    """Return what a linked run begins with; None if it begins with nothing, or its base can't be folded."""
    queued = first.record.event if isinstance(first, IndexRow) else None
    try:
        return folding.begin(store, queued) if isinstance(queued, RunQueued) and queued.base is not None else None
    except StoreBusy:
        raise
    except (JournalError, UnicodeError):
        return None


class _Pass:
    """One pass over a run; `digests` collects what its events refer to, `presence` says where it has rows."""

    def __init__(
        self, store: Store, run_id: str, digests: set[bytes], presence: Presence, progress: Progress | None = None
    ) -> None:
        self.store = store
        self.run_id = run_id
        self.progress = progress
        self.digests = digests
        self.presence = presence
        row, self.head, self.problems = _heads(store, run_id)
        coming = rows(store, run_id, self.head.head_seq if self.head else None, progress)
        first = next(coming, None)
        self.rows = coming if first is None else chain([first], coming)
        args_at = folding.args_reader(store, store, run_id)
        self.audit = RunAudit(run_id, row, args_at=args_at, state=_base(store, first))
        self.tables = TableAudit(store, run_id, self.head, presence)
        self.snapshots: set[int] = set()
        self.blobs: OrderedDict[str, bool] = OrderedDict()

    def run(self) -> Iterator[Finding]:
        """Yield all findings, as they are met; of a run that is purged meanwhile those of what is left."""
        for each in self._findings():
            if _purged_since(self.store, self.run_id, self.head):
                yield from _Pass(self.store, self.run_id, self.digests, self.presence, self.progress).run()
                return
            yield each

    def _findings(self) -> Iterator[Finding]:
        head = self.head
        yield from self.problems
        yield from self._list_snapshots()
        for each in self.rows:
            if isinstance(each, Damage):
                yield from self.audit.skip(each.seq, each.what)
            else:
                yield from self._one(each)
        if head is None and not self.audit.chain.seq and not self.problems:
            raise RunNotFound(self.run_id)
        yield from self.audit.finish(owner_gone=self._owner_gone(), known_elsewhere=self._known_elsewhere)
        yield from _beyond(self.store, self.run_id, head)
        yield from self.tables.finish(self.audit)
        yield from self._snapshots_left()

    def _one(self, row: IndexRow) -> Iterator[Finding]:
        record, audit = row.record, self.audit
        yield from audit.feed(record, row.body)
        if audit.folding:
            yield from self.tables.feed(record, audit.derived.rows)
        yield from self._check_blobs(record, row.body)
        if record.seq in self.snapshots:
            self.snapshots.remove(record.seq)
            try:
                for checkpoint in self.store.checkpoints(self.run_id, record.seq):
                    if checkpoint.seq != record.seq:
                        break
                    yield from self._check_snapshot(record, checkpoint)
            except StoreBusy:
                raise
            except DAMAGE as error:
                what = f"the checkpoint at seq {record.seq} can't be read ({type(error).__name__})"
                yield self._snapshot("checkpoint_damaged", record.seq, what)

    def _owner_gone(self) -> bool:
        head = self.head
        if head is None or head.status != "running" or self.tables.elsewhere:
            return False  # an owner elsewhere can't be seen from here
        return owner.gone(head, owner.here(), self.store.clock)

    def _known_elsewhere(self, call_id: str) -> bool:
        """Return whether a later run of the line has said what became of the call."""
        scope = self.audit.state.status.scope
        return self.store.newest(scope) not in (None, self.run_id) and self.store.unknown(scope, call_id) is None

    # Blobs.

    def _check_blobs(self, record: RecordedEvent, body: bytes) -> Iterator[Finding]:
        event = record.event
        strange = isinstance(event, UnknownEvent | NewerEvent | UnreadableEvent)
        self.digests.update(map(bytes.fromhex, blob_names.digests(body)))  # of newer versions, too
        if strange:
            return
        if not blob_names.may_name(body):
            return
        for digest in sorted(blob_names.names(body)):
            yield from self._check_blob(record, "bytes that it refers to", digest, None)
        for name, attribute, *_ in plan_of(type(event)):
            value = getattr(event, attribute)
            if isinstance(value, BlobRef) and value != ERASED:
                yield from self._check_blob(record, f"the value of {name}", value.sha256, value.bytes)

    def _check_blob(self, record: RecordedEvent, named: str, digest: str, size: int | None) -> Iterator[Finding]:
        place = f"event {record.seq}: {named}, sha256:{shown(digest)[1:-1]},"
        code, what = "blob_damaged", f"{place} isn't the one that the event names"
        try:
            self.digests.add(bytes.fromhex(digest))
            sound = self.blobs.get(digest)
            if sound is None:
                body = self.store.blob(digest)
                if body is None:
                    code, what, sound = "blob_missing", f"{place} isn't in the store: restore it from a backup", False
                else:
                    sound = digest_of(body) == digest and size in (None, len(body))
                    self._remember(digest, sound)
        except StoreBusy:
            raise
        except (*DAMAGE, ValueError, TypeError):
            sound = False
        if not sound:
            yield finding(code, self.run_id, record.seq, what, show_events(self.run_id, record.seq))

    def _remember(self, digest: str, sound: bool) -> None:  # noqa: FBT001 - private
        self.blobs[digest] = sound
        if len(self.blobs) > blobs_checked_max:
            self.blobs.popitem(last=False)

    # Checkpoints.

    def _list_snapshots(self) -> Iterator[Finding]:
        if not self.presence.may_have("checkpoints", self.run_id):
            return
        try:
            self.snapshots = {each.seq for each in self.store.checkpoints(self.run_id)}
        except StoreBusy:
            raise
        except DAMAGE as error:
            yield self._snapshot("checkpoint_damaged", None, f"the checkpoints can't be read ({type(error).__name__})")

    def _check_snapshot(self, record: RecordedEvent, checkpoint: Checkpoint) -> Iterator[Finding]:
        seq = record.seq
        name, _, version = checkpoint.fold.partition(":")
        if name != RunState.NAME or checkpoint.fold != fold_name(RunState):
            problem = _seal_problem(checkpoint)
            code = "checkpoint_damaged" if problem else "checkpoint_version"
            problem = problem or f"it was made by {shown(name)} {shown(version)[:14]}, which isn't known here"
            yield self._snapshot(code, seq, f"the checkpoint at seq {seq} is left out: {problem}")
            return
        try:
            unseal(RunState, checkpoint, record.hash)
        except Exception as error:  # noqa: BLE001 - a state of any shape may be in there
            why = str(error) if isinstance(error, InvalidArgument) else type(error).__name__
            why = "it is that of another run or seq" if "belongs to" in why else why
            yield self._snapshot("checkpoint_damaged", seq, f"the checkpoint at seq {seq} is left out: {why}")
            return
        if not self.audit.folding:
            return
        sealed = seal(RunState, self.audit.state, self.run_id, seq, record.hash)
        if sealed.body != checkpoint.body:
            what = f"the checkpoint at seq {seq} verifies and holds another state than events 1 to {seq}"
            yield self._snapshot("checkpoint_state", seq, what)

    def _snapshots_left(self) -> Iterator[Finding]:
        now = self.store.head(self.run_id) if self.snapshots else None
        for seq in sorted(self.snapshots):
            if now is None or seq > now.head_seq or seq <= self.audit.chain.seq:
                what = f"the checkpoint at seq {seq} has no event: it is ahead of the log"
                yield self._snapshot("checkpoint_damaged", seq, what)

    def _snapshot(self, code: str, seq: int | None, what: str) -> Finding:
        return finding(code, self.run_id, seq, what, command("checkpoint prune", self.run_id))


def _seal_problem(checkpoint: Checkpoint) -> str:
    """Return what is wrong with a checkpoint of a fold that isn't known here, as far as that can be seen."""
    digest, _, text = checkpoint.body.partition(b"\n")
    if digest != digest_of(text).encode():
        return "its own hash doesn't match"
    try:
        content = orjson.loads(text)
        found = (content["run_id"], content["seq"], content["fold"])
    except (ValueError, KeyError, TypeError):
        return "it isn't a checkpoint"
    return "" if found == checkpoint[:3] else "it is that of another run, seq or fold"


# All runs.


def audit_store(store: Store, *, progress: Progress | None = None) -> Iterator[Finding]:
    """Yield the findings of `audit_run` for every run, and those that only all runs together show.

    These are rows without a run, runs without a row, unused blobs. Raises StoreBusy, StoreClosed.
    """
    ids, problems = _run_ids(store)
    yield from problems
    digests: set[bytes] = set()
    presence, known = Presence(), set(ids)
    strays = [each for table in INDEX for each in _strays(store, table, known, presence)]
    strays += _stray_checkpoints(store, known, presence)
    done, total = 0, store.last_position()
    for run_id in ids:
        each = _Pass(store, run_id, digests, presence)
        yield from each.run()
        done += each.audit.chain.count
        if progress is not None:
            progress(done, max(done, total))
    yield from strays
    yield from _unused(store, digests)
    yield from store_faults(store)


def store_faults(store: Store) -> Iterator[Finding]:
    """What of the store's tables isn't as this version makes it, whatever they hold; `db rebuild` mends what is ours.

    Raises StoreBusy, StoreClosed.
    """
    try:
        for fault in store.faults():
            next_ = "runjournal doctor" if fault.code == "schema_own" else REBUILD
            yield finding(fault.code, "", None, f"{shown(fault.part)[1:-1]}: {fault.what}", next_)
    except StoreBusy:
        raise
    except DAMAGE as error:
        what = f"the schema can't be read ({type(error).__name__})"
        yield finding("row_unreadable", "", None, what, "runjournal doctor")


def _stray_checkpoints(store: Store, known: set[str], presence: Presence) -> Iterator[Finding]:
    try:
        for run_id in presence.noted("checkpoints", store.checkpoint_runs()):
            if run_id not in known and store.head(run_id) is None:
                what = "table checkpoints: a row is of a run that isn't in the store"
                yield finding("checkpoint_orphan", run_id, None, what, command("checkpoint prune", run_id))
    except StoreBusy:
        raise
    except DAMAGE as error:
        what = f"the table checkpoints can't be read ({type(error).__name__})"
        yield finding("row_unreadable", "", None, what, "runjournal doctor")


def _strays(store: Store, table: str, known: set[str], presence: Presence) -> Iterator[Finding]:
    """Yield rows of runs that aren't there; a run that began meanwhile is there. Note which runs have rows."""
    place = INDEX[table].run_place
    try:
        for run_id in presence.noted(table, (row[place] for row in store.index_rows(table))):
            if run_id not in known and store.head(run_id) is None:
                what = f"table {table}: a row is of a run that isn't in the store"
                if table in DERIVED:
                    yield finding("index_extra", run_id, None, what, REBUILD)
                else:
                    yield finding("import_orphan", run_id, None, what, command("export", run_id))
    except StoreBusy:
        raise
    except DAMAGE as error:
        what = f"the table {table} can't be read ({type(error).__name__})"
        yield finding("row_unreadable", "", None, what, REBUILD)


def _unused(store: Store, digests: set[bytes]) -> Iterator[Finding]:
    try:
        for digest, size in store.blob_digests():
            if size < 0:
                what = f"table blobs: the length of sha256:{shown(digest)[1:-1]} isn't that of its bytes"
                yield finding("blob_bytes", "", None, what, "runjournal doctor")
            if not re.fullmatch(r"[0-9a-f]{64}", digest) or bytes.fromhex(digest) not in digests:
                what = f"no event refers to the blob sha256:{shown(digest)[1:-1]} of {size} bytes"
                yield finding("blob_unused", "", None, what, "runjournal doctor")
    except StoreBusy:
        raise
    except DAMAGE as error:
        what = f"the table blobs can't be read ({type(error).__name__})"
        yield finding("row_unreadable", "", None, what, "runjournal doctor")


def _run_ids(store: Store) -> tuple[list[str], list[Finding]]:
    """Return the ids of all runs that have a row or an event, sorted."""
    ids: set[str] = set()
    problems: list[Finding] = []
    bad: dict[BadRow, None] = {}
    heads = all_heads(store, bad=lambda row: bad.update({row: None}))
    for source in ((head.run_id for head in heads), store.run_ids()):
        try:
            ids.update(source)
        except StoreBusy:
            raise
        except DAMAGE as error:
            what = f"the list of runs can't be read in full ({type(error).__name__})"
            problems.append(finding("row_unreadable", "", None, what, "runjournal doctor"))
    for row in bad:
        if RUN_ID.fullmatch(row.name):
            ids.add(row.name)  # its own audit tells
        else:
            what = f"table {row.table}: the row of {shown(row.name)} can't be read ({row.what})"
            problems.append(finding("row_unreadable", "", None, what, "runjournal doctor"))
    for run_id in [each for each in ids if not RUN_ID.fullmatch(each)]:
        ids.remove(run_id)
        what = f"table events: {shown(run_id)} can't be the id of a run"
        problems.append(finding("row_unreadable", "", None, what, "runjournal doctor"))
    return sorted(ids), problems
