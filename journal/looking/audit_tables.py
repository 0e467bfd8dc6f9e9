"""What is stored beside the events of a run, compared with what follows from them: its row, its index rows, its links.

Held in memory: the unresolved calls of the run, which a fold bounds. Ends of steps are compared by their number and
the sum of their hashes; only where these differ are they all looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

from runjournal.log import events as e
from runjournal.log.base import PurgedEvent, RecordedEvent
from runjournal.log.errors import StoreBusy
from runjournal.log.head import Head
from runjournal.log.limits import int_max
from runjournal.log.store import Bill, Effect, Import, StepEnd, Store, Unknown
from runjournal.projections.audit import RunAudit
from runjournal.projections.derived import Derived
from runjournal.projections.findings import REBUILD, Finding, Severity, finding, shown
from runjournal.projections.index import Rows
from runjournal.projections.shell import command, show_calls, show_events
from runjournal.writing import folding
from runjournal.writing.checkpoints import hash_at

from .audit_rows import DAMAGE, Presence

_PRESENT: Final = ("lease_until", "heartbeat_at", "wake_at")
"""Columns that don't follow from the events alone: only whether they hold something does."""


@dataclass(slots=True)
class Tally:
    """A number and sum of hashes of rows: equal tallies hold the same rows, in whatever order."""

    count: int = 0
    total: int = 0

    def add(self, row: tuple[Any, ...]) -> None:
        """Count one more row."""
        digest = hashlib.sha256(repr(tuple(row)).encode("utf-8", "surrogatepass")).digest()
        self.count += 1
        self.total = (self.total + int.from_bytes(digest[:16], "big")) % 2**128


_WORDS: Final[dict[str, tuple[type[Any], str, str, str]]] = {
    "step_ends": (StepEnd, "step", "ends", "the end of {}"),
    "bills": (Bill, "call", "is about", "what {} came to"),
}
"""Of each table that is compared whole: its rows, what they are attempts of, how one too many or too few is told."""


class TableAudit:
    """Compare the tables with the events of a run. It is told of each event and its rows, in order; `finish` compares.

    `presence` says which tables it may have rows in. A run that lives in another store (`elsewhere`) has no effects,
    unknown calls and line in this one.
    """

    def __init__(self, store: Store, run_id: str, head: Head | None, presence: Presence) -> None:
        self.store = store
        self._presence = presence
        self.run_id = run_id
        self.head = head
        self._last = head.head_seq if head else 0
        self._effects = 0
        self._unknown: dict[tuple[str, str], Unknown] = {}
        self._ends = Tally()
        self._bills = Tally()
        self._first_position = 0
        note = _note(store, run_id) if presence.may_have("imports", run_id) else None
        self._note = note
        self._misnoted = note is not None and head is not None and _went_on_here(store, run_id, head.scope)
        self.elsewhere = note is not None and not self._misnoted
        self._first: RecordedEvent | None = None

    def feed(self, record: RecordedEvent, rows: Rows) -> Iterator[Finding]:
        """Take one more event; `rows` are what it stands for."""
        self._first = self._first or record
        self._first_position = self._first_position or record.position
        for end in rows.step_ends:
            self._ends.add(end)
        for bill in rows.bills:
            self._bills.add(bill)
        for key in rows.known:
            self._unknown.pop(key, None)
        for unknown in rows.unknown:
            self._unknown[unknown[:2]] = unknown
        for effect in () if self.elsewhere else rows.effects:
            yield from self._guarded("effects", self._check_effect(record, effect))
        if isinstance(record.event, e.ChildSpawned):
            yield from self._guarded("runs", self._check_child(record.seq, record.event.child_run_id))
        if isinstance(record.event, e.ChildFinished):
            yield from self._guarded("runs", self._check_child_end(record.seq, record.event))

    def finish(self, audit: RunAudit) -> Iterator[Finding]:
        """Compare what is stored with what the whole run stands for; `audit` has folded it."""
        head = self.head
        if head is None or not audit.folding:
            return
        yield from self._guarded("runs", self._check_row(head, audit.derived.head))
        if (self._ends.count or self._may_have("step_ends")) and self._still(head):
            yield from self._guarded("step_ends", self._check_rows("step_ends", self._ends))
        if (self._bills.count or self._may_have("bills")) and self._still(head):
            yield from self._guarded("bills", self._check_rows("bills", self._bills))
        yield from self._guarded("secrets", self._check_keys(audit.derived.state.status.private))
        if self._misnoted:
            what = "table imports: it has a row of this run, which has a line of its own here"
            yield finding("import_native", self.run_id, None, what, command("show", self.run_id))
        if self.elsewhere:
            yield from self._guarded("imports", self._check_note())
            for table in ("effects", "unknowns", "lines"):
                yield from self._guarded(table, self._check_none(table))
        else:
            yield from self._guarded("effects", self._check_effects())
            yield from self._guarded("lines", self._check_line(audit.derived))
            inherited = audit.state.status.base is not None and bool(audit.state.calls.unresolved())
            if (self._unknown or inherited or self._may_have("unknowns")) and self._still(head):
                yield from self._guarded("unknowns", self._check_unknowns())
                yield from self._guarded("unknowns", self._check_inherited(audit))
        yield from self._guarded("runs", self._check_links(audit))

    def _may_have(self, table: str) -> bool:
        return self._presence.may_have(table, self.run_id)

    def _guarded(self, table: str, check: Iterator[Finding]) -> Iterator[Finding]:
        try:
            yield from check
        except StoreBusy:
            raise
        except DAMAGE as error:
            what = f"the table {table} can't be read ({type(error).__name__})"
            yield finding("row_unreadable", self.run_id, None, what, REBUILD)

    def _still(self, head: Head) -> bool:
        """Return whether nobody has appended to the run since the audit began."""
        now = self.store.head(self.run_id)
        return now is not None and now.head_seq == head.head_seq

    def _wrong(self, code: str, table: str, seq: int | None, what: str) -> Finding:
        return finding(code, self.run_id, seq, f"table {table}: {what}", REBUILD)

    # The row in `runs`.

    def _check_row(self, head: Head, derived: Head) -> Iterator[Finding]:
        if head.head_seq != derived.head_seq:
            return  # the chain says so
        for name, stored, expected in zip(Head._fields, head, derived, strict=True):
            if name == "wake_at" and self.elsewhere:
                continue
            if name in _PRESENT:
                same = (stored is None) is (expected is None)
            elif name == "tags":
                same = stored in (expected, _sorted(derived.tags))
            else:
                same = name == "head_hash" or stored == expected
            if not same:
                yield self._wrong("run_row", "runs", None, f"{name} isn't what the events say")

    # Effects and unknown calls.

    def _check_effect(self, record: RecordedEvent, effect: Effect) -> Iterator[Finding]:
        row, key, seq = self.store.effect(effect.scope, effect.key), shown(effect.key), effect.seq
        if row is None:
            yield self._wrong("index_missing", "effects", seq, f"the effect {key} of event {seq} is missing")
        elif row == effect:
            self._effects += 1
        elif row.run_id == self.run_id and row.seq < seq and _stands(self.store, row):
            pass  # a second effect in this run, which RunAudit reports
        elif row.run_id == self.run_id or not _stands(self.store, row):
            yield self._wrong("index_wrong", "effects", seq, f"the row of {key} isn't what event {seq} says")
        elif not (isinstance(record.event, e.ToolCompleted) and record.event.replayed):
            first = f"run {shown(row.run_id)} seq {row.seq}"
            what = f"event {seq}: a second effect under the key {key}; the first is {first}"
            yield finding("duplicate_effect", self.run_id, seq, what, show_calls(self.run_id))

    def _check_effects(self) -> Iterator[Finding]:
        if not self._effects and not self._may_have("effects"):
            return
        mine = [0, 0]
        for row in self.store.index_rows("effects", self.run_id):
            mine[Effect._make(row).seq > self._last] += 1
        if mine == [self._effects, 0]:
            return
        for row in map(Effect._make, self.store.index_rows("effects", self.run_id)):
            if not _stands(self.store, row):
                what = f"no event {row.seq} is the effect {shown(row.key)}"
                yield self._wrong("index_extra", "effects", row.seq, what)

    def _check_unknowns(self) -> Iterator[Finding]:
        for (scope, key), unknown in self._unknown.items():
            row = self.store.unknown(scope, key)
            if row is None and self.store.newest(scope) == self.run_id:
                what = f"the call {shown(key)} of event {unknown.seq} is missing"
                yield self._wrong("index_missing", "unknowns", unknown.seq, what)
            elif row is not None and row.run_id == self.run_id and row != unknown:
                what = f"the row of {shown(key)} isn't what event {unknown.seq} says"
                yield self._wrong("index_wrong", "unknowns", unknown.seq, what)
        for row in map(Unknown._make, self.store.index_rows("unknowns", self.run_id)):
            if row[:2] not in self._unknown:
                what = f"what became of the call {shown(row.key)} is known, or it never started"
                yield self._wrong("index_extra", "unknowns", row.seq, what)

    def _check_inherited(self, audit: RunAudit) -> Iterator[Finding]:
        """Calls that the runs before it in its line left unknown: only the newest run can tell that they still are."""
        scope = audit.derived.head.scope
        if self.store.newest(scope) != self.run_id:
            return
        for key in audit.state.calls.unresolved():
            if (scope, key) not in self._unknown and self.store.unknown(scope, key) is None:
                what = f"the call {shown(key)}, of a run that this one goes on from, is missing"
                yield self._wrong("index_missing", "unknowns", None, what)

    # An import.

    def _check_none(self, table: str) -> Iterator[Finding]:
        """A run that lives elsewhere has no rows here that others are answered from."""
        for _ in self.store.index_rows(table, self.run_id):
            yield self._wrong("index_extra", table, None, "a row is of this run, which was imported")

    def _check_note(self) -> Iterator[Finding]:
        """The note of an export names the event that it ended with; that of a transcript, who has read it."""
        note, first = self._note, self._first
        if note is None or first is None or isinstance(first.event, PurgedEvent):
            return
        if note.source != "jsonl":
            sound = first.by == f"import:{note.source}"
        else:
            seq = _noted_seq(note.taken)
            sound = seq is not None and hash_at(self.store, self.run_id, seq) == note.sha256
        if not sound:
            what = "table imports: its row isn't what the events say"
            yield finding("import_note", self.run_id, None, what, command("show", self.run_id))

    # Keys of a private run.

    def _check_keys(self, private: bool) -> Iterator[Finding]:  # noqa: FBT001 - private
        if not private:
            return
        begins = self.head is not None and self.head.scope == self.run_id and not self.elsewhere
        scope = (("scope", self.run_id),) if begins else ()
        for purpose, name in (("run", self.run_id), ("checkpoints", self.run_id), *scope):
            if self.store.secret(purpose, name) is None:
                what = f"table secrets: the key of this private run for {purpose} is gone; restore it from a backup"
                yield finding("key_missing", self.run_id, None, what, command("show", self.run_id))

    # Ends of steps, and bills.

    def _check_rows(self, table: str, kept: Tally) -> Iterator[Finding]:
        """Compare this run's rows in a table, keyed by three columns, with the `kept` ones of its events."""
        stored = Tally()
        for row in self.store.index_rows(table, self.run_id):
            stored.add(row)
        if stored == kept:
            return
        kind, of, ends, missing = _WORDS[table]
        expected: dict[tuple[Any, ...], Any] = {}
        derived = Derived(self.run_id, lambda _: None)
        for record in self.store.read(self.run_id, 0, self._last):
            expected.update((row[:3], row) for row in getattr(derived.apply(record), table))
        for row in map(kind._make, self.store.index_rows(table, self.run_id)):
            named = f"attempt {row.attempt} of {of} {shown(row[1])}"
            if (true := expected.pop(row[:3], None)) is None:
                yield self._wrong("index_extra", table, row.seq, f"no event {ends} {named}")
            elif true != row:
                what = f"the row of {named} isn't what event {true.seq} says"
                yield self._wrong("index_wrong", table, true.seq, what)
        for row in expected.values():
            what = missing.format(f"attempt {row.attempt} of {of} {shown(row[1])}")
            yield self._wrong("index_missing", table, row.seq, f"{what}, event {row.seq}, is missing")

    # The line, the parent, the base.

    def _check_line(self, derived: Derived) -> Iterator[Finding]:
        if derived.newest is None:
            return
        scope = derived.head.scope
        scopes = [row[0] for row in self.store.index_rows("lines", self.run_id)]
        newest = self.run_id if scope in scopes else self.store.newest(scope)
        if newest is None:
            yield self._wrong("index_missing", "lines", None, f"the line {shown(scope)} is missing")
        elif newest != self.run_id:
            other = self.store.head(newest)
            first = next(iter(self.store.read_raw(newest, 0, 1)), None)
            if other is None or other.scope != scope or first is None or first[1] < self._first_position:
                what = f"{shown(newest)} isn't the newest run of line {shown(scope)}"
                yield self._wrong("index_wrong", "lines", None, what)
        for other_scope in scopes:
            if other_scope != scope:
                yield self._wrong("index_extra", "lines", None, f"this run isn't of the line {shown(other_scope)}")

    def _check_links(self, audit: RunAudit) -> Iterator[Finding]:
        status = audit.state.status
        parent, base = status.parent_run_id, status.base
        if parent is not None and self.store.head(parent) is None:
            what = f"the parent {shown(parent)} isn't in the store"
            severity: Severity | None = "info" if status.unowned else None
            yield finding("parent_missing", self.run_id, 1, what, show_events(self.run_id, 1), severity=severity)
        if base is not None:
            yield from self._check_base(base)
        if status.status == "imported" and self.store.imported(self.run_id) is None:
            what = "how far this imported run was taken isn't noted, so importing more of it takes it from the start"
            yield finding("import_missing", self.run_id, None, what, command("show", self.run_id))

    def _check_child(self, seq: int, child: str) -> Iterator[Finding]:
        if self.store.head(child) is None:
            what = f"event {seq}: the child {shown(child)} isn't in the store"
            yield finding("child_missing", self.run_id, seq, what, show_events(self.run_id, seq))

    def _check_child_end(self, seq: int, event: e.ChildFinished) -> Iterator[Finding]:
        """Compare what the agent was told of a child with how the run stands that ended so."""
        ended = event.ended_as or event.child_run_id
        head = self.store.head(ended)
        if head is not None and head.status not in (event.status, "purged"):
            what = f"event {seq}: run {shown(ended)} is {head.status}, and the agent was told that it is {event.status}"
            yield finding("child_differs", self.run_id, seq, what, show_events(self.run_id, seq))

    def _check_base(self, base: dict[str, Any]) -> Iterator[Finding]:
        run_id, seq = base["run_id"], base["seq"]
        if self.store.head(run_id) is None:
            what = f"the run {shown(run_id)} that it goes on from isn't in the store"
            yield finding("base_missing", self.run_id, 1, what, show_events(self.run_id, 1))
        elif hash_at(self.store, run_id, seq) != base["hash"]:
            what = f"event {seq} of run {shown(run_id)}, which it goes on from, isn't the one that it names"
            yield finding("base_changed", self.run_id, 1, what, command("verify", run_id))


def _note(store: Store, run_id: str) -> Import | None:
    """The note of a run's import; if that can't be read, `finish` says so."""
    try:
        return store.imported(run_id)
    except StoreBusy:
        raise
    except DAMAGE:
        return None


def _noted_seq(taken: str) -> int | None:
    """The seq that the note of an export says; None if it says none that an event can have."""
    try:
        seq = orjson.loads(taken)["seq"]
    except (ValueError, KeyError, TypeError):
        return None
    return seq if type(seq) is int and 0 < seq <= int_max else None


def _went_on_here(store: Store, run_id: str, scope: str) -> bool:
    """Whether a run is its line's newest, or one that this goes on from: only a run that lives here is."""
    try:
        current, seen = store.newest(scope), set[str]()
        while current is not None and current not in seen:
            if current == run_id:
                return True
            seen.add(current)
            queued = folding.first(store, current)
            current = None
            if queued is not None and queued.base is not None and queued.link in ("retry", "restart"):
                current = queued.base["run_id"]
    except StoreBusy:
        raise
    except DAMAGE:
        return False
    return False


def _stands(store: Store, row: Effect) -> bool:
    """Return whether the event that a row of effects names is the effect of its key."""
    event = next((record.event for record in store.read(row.run_id, row.seq - 1, row.seq)), None)
    return isinstance(event, e.ToolCompleted | e.ToolResolved) and event.call_id == row.key


def _sorted(tags: str) -> str:
    """Return tags as rows of earlier versions hold them: these sorted the keys, and nothing of theirs is damaged."""
    return orjson.dumps(orjson.loads(tags), option=orjson.OPT_SORT_KEYS).decode()
