"""The audit: each damage, planted alone, gives exactly its finding; a clean run gives none."""

import re
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import cast

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.base import BlobRef
from runjournal.log.chain import GENESIS, NewRow, RawRow, event_hash
from runjournal.log.clock import FakeClock, timestamp
from runjournal.log.codec import decode, digest_of, draft, linked
from runjournal.log.errors import CorruptLog, RunNotFound
from runjournal.log.memory import MemoryStore
from runjournal.log.private_values import no_key
from runjournal.log.sqlite import SQLiteStore
from runjournal.log.store import Bill, Checkpoint, Effect, Import, StepEnd, Unknown, Write
from runjournal.looking.audit import audit_run, audit_store, verify_run, verify_store
from runjournal.looking.audit_rows import beyond, rows
from runjournal.projections.audit import RunAudit
from runjournal.projections.derived import Derived
from runjournal.projections.findings import CODES
from runjournal.projections.state import RunState
from runjournal.writing.checkpoints import fold_name, seal

FILES = ("test_erasing.py", "test_purging.py", "test_audit.py", "test_audit_columns.py")
SECRET = "pa55word-in-a-payload"
ERROR = {"type": "Boom", "message": SECRET}
COMMANDS = re.compile(
    r"runjournal (show \S+ --(events --from \d+|calls( --models)?)|show \S+|explain \S+|verify \S+"
    r"|replay \S+( --at \d+)?|export \S+|doctor|db rebuild|checkpoint prune \S+)"
)


# --- events ----------------------------------------------------------------------------------------------------------


def queued(**fields):
    return e.RunQueued(kind="demo", input=SECRET, **fields)


def claimed(epoch=1, *, lease_s=60.0):
    me = owner.here()
    return e.RunClaimed("w", epoch, lease_s, me.host, me.boot_id, me.pid_ns, me.pid, me.started)


def dead_claim(epoch=1):
    return e.RunClaimed("w", epoch, 60.0, "elsewhere", "another-boot", "1", 1, "1")


def started(index=0, name="draft", *, entry=1, attempt=1):
    return e.StepStarted(index, name, name, "once", entry, attempt)


def tool(key="pay", *, policy="unsafe", attempt=1):
    return e.ToolStarted(key, "pay_tool", {"note": SECRET}, policy, False, "ask", attempt)


def model(key="ask", *, attempt=1):
    return e.ModelStarted(key, "some-model", "hash", attempt)


def tool_done(key="pay", *, attempt=1):
    return e.ToolCompleted(key, attempt, SECRET)


def tool_failed(**more):
    return e.ToolFailed("pay", 1, ERROR, False, **more)


def tool_told(**more):
    return e.ToolFailed("pay", 1, {"type": "CallOutcomeUnknown", "message": "", "kind": "unknown"}, False, **more)


def happened(key="pay", *, attempt=1, late=False):
    return e.ToolResolved(key, attempt, "happened", SECRET, late=late)


def ended():
    return e.RunCompleted(SECRET)


def imported():
    return e.RunImported("chat", SECRET, "some-tool", "0" * 64)


BEGUN = [queued(), (claimed(), 1)]
OPEN = [*BEGUN, (started(), 1)]


def owned(*events):
    return [(event, 1) for event in events]


# --- stores ----------------------------------------------------------------------------------------------------------


@dataclass
class Forger:
    """Writes whatever it is told as a well-linked log, past the guarded append."""

    store: MemoryStore | SQLiteStore

    def write(self, events, run_id="r", by="tester", seconds=()):
        """Events, or (event, epoch); `seconds` are their times. Index rows are those that the events stand for."""
        by = by if isinstance(events[0], e.RunQueued) else "import:s"
        rows: list[NewRow] = []
        records: list[e.RecordedEvent] = []
        blobs: list[tuple[str, bytes]] = []
        effects: dict[tuple[str, str], Effect] = {}
        unknown: dict[tuple[str, str], Unknown] = {}
        ends: dict[tuple[str, str, int], StepEnd] = {}
        bills: dict[tuple[str, str, int], Bill] = {}
        prev = None
        derived = Derived(run_id, lambda seq: getattr(records[seq - 1].event, "args", None))
        start = datetime(2026, 1, 2, tzinfo=UTC)
        for seq, item in enumerate(events, 1):
            event, epoch = item if isinstance(item, tuple) else (item, 0)
            at = timestamp(start + timedelta(seconds=seconds[seq - 1] if seconds else seq))
            made = draft(event, at=at, by=by)
            each, row = linked(run_id, seq, prev, made, epoch=epoch)
            prev = each.hash
            records.append(each)
            found = derived.apply(each)
            effects = {effect[:2]: effect for effect in found.effects} | effects
            unknown = {key: row for key, row in unknown.items() if key not in found.known}
            unknown |= {row[:2]: row for row in found.unknown}
            ends |= {end[:3]: end for end in found.step_ends}
            bills |= {bill[:3]: bill for bill in found.bills}
            blobs += made.blobs
            rows.append(row)
        note = Import(run_id, "s", "0" * 64, "{}") if derived.newest is None else None
        write = Write(
            None, derived.head, rows, blobs, list(effects.values()), list(unknown.values()), (), list(ends.values()),
            list(bills.values()), derived.newest, note,
        )  # fmt: skip
        self.store.transact(lambda tx: tx.write(write), durable=True)
        return self.store


def forged(events, **how):
    return Forger(MemoryStore(clock=FakeClock())).write(events, **how)


def codes(findings):
    return [found.code for found in findings]


def counting(findings):
    return [found.code for found in findings if found.counts]


def whole(journal, run_id="r"):
    """A run with a bit of everything that ends well."""
    journal.append(run_id, [queued(tags={"a": "b"})], expect=0)
    journal.append(run_id, [claimed()])
    journal.append(run_id, [started(0), e.MessageAppended("user", SECRET)], epoch=1)
    journal.append(run_id, [model()], epoch=1)
    journal.append(run_id, [e.ModelCompleted("ask", 1, SECRET)], epoch=1)
    journal.append(run_id, [tool()], epoch=1)
    journal.append(run_id, [tool_done()], epoch=1)
    journal.append(run_id, [e.MemorySet("blob", "x" * 70_000), e.StepCompleted(0)], epoch=1)
    journal.append(run_id, [started(1, "send")], epoch=1)
    journal.append(run_id, [e.StepFailed(1, ERROR, False)], epoch=1)
    journal.append(run_id, [started(1, "send", attempt=2)], epoch=1)
    journal.append(run_id, [tool("maybe", policy="keyed")], epoch=1)
    journal.append(run_id, [e.ToolFailed("maybe", 1, ERROR, False, did_not_happen=True)], epoch=1)
    journal.append(run_id, [e.StepCompleted(1)], epoch=1)
    journal.append(run_id, [ended()], epoch=1)
    return journal


def journal_at(path):
    return Journal.open(path, clock=FakeClock())


def tampered(path, *statements):
    """Damage a closed store through another library, its triggers dropped meanwhile, and open it again."""
    connection = sqlite3.connect(path)
    triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        text, params = statement if isinstance(statement, tuple) else (statement, ())
        assert 0 != connection.execute(text, params).rowcount
    for _, text in triggers:
        connection.execute(text)
    connection.commit()
    connection.close()
    return journal_at(path)


@pytest.fixture
def path(tmp_path):
    """The closed store of one whole run `r`."""
    with journal_at(tmp_path / "r.db") as journal:
        whole(journal)
    return tmp_path / "r.db"


# --- clean runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["memory:", "file"])
def test_clean_store(url, tmp_path):
    """Runs of every kind that went through the guarded append give no finding at all."""
    with Journal.open("memory:" if url == "memory:" else tmp_path / "r.db", clock=FakeClock()) as journal:
        whole(journal)
        journal.append("queued", [queued()], expect=0)
        for run_id, last in {
            "failed": e.RunFailed(ERROR, [], "error"),
            "waiting": e.RunWaiting([{"kind": "timer", "id": "t"}], "2026-11-29T13:28:05.123456Z"),
            "retry": e.RunRetryScheduled("2026-11-29T13:28:05.123456Z", 1, ERROR, []),
            "cancelled": e.RunCancelled("no"),
            "running": e.NoteAdded("hello"),
        }.items():
            journal.append(run_id, [queued()], expect=0)
            journal.append(run_id, [claimed()])
            journal.append(run_id, [last], epoch=1)
        batch = journal.batch("imported", [imported(), e.MessageAppended("user", "hi")], expect=0, by="import:tool")
        journal.append(batch._replace(imported=Import("imported", "tool", "0" * 64, "{}")))
        assert [] == list(audit_store(journal.store))
        assert [[]] * 8 == [found.problems for found in verify_store(journal.store)]


def test_running_with_open_things():
    """What is open in a run whose owner lives is worth knowing, no fault."""
    store = forged([*OPEN, *owned(tool())])
    found = list(audit_run(store, "r"))
    assert {"call_unresolved": "info", "uncommitted": "info"} == {each.code: each.severity for each in found}


def test_dead_owner():
    """The same things are faults once the owner is gone."""
    found = list(audit_run(forged([queued(), (dead_claim(), 1), *owned(started(), tool())]), "r"))
    assert ["call_unresolved", "uncommitted"] == counting(found)


def test_progress():
    """The audit tells how far it has come."""
    told = []
    list(audit_run(forged(BEGUN), "r", progress=lambda done, total: told.append((done, total))))
    assert [(2, 2)] == told


def test_no_run():
    """A run that isn't there is an error, no finding."""
    store = MemoryStore(clock=FakeClock())
    with pytest.raises(RunNotFound):
        list(audit_run(store, "nobody"))
    with pytest.raises(RunNotFound):
        verify_run(store, "nobody")


# --- what the events say together: well linked, and wrong ------------------------------------------------------------

FORGED = {
    "no beginning": ([e.NoteAdded("x")], ["transition"]),
    "claimed twice": ([*BEGUN, (claimed(2), 2)], ["transition"]),
    "completed while queued": ([queued(), ended()], ["transition"]),
    "message behind the end": ([*BEGUN, *owned(ended()), e.MessageAppended("user", SECRET)], ["transition"]),
    "import that goes on": ([imported(), claimed()], ["transition", "fenced"]),
    "stale epoch": ([*BEGUN, e.RunRequeued("owner_dead"), (claimed(2), 2), (e.NoteAdded("late"), 1)], ["fenced"]),
    "epoch without a run": ([queued(), (e.NoteAdded("x"), 1)], ["fenced"]),
    "claim skips an epoch": ([queued(), (claimed(3), 3)], ["fenced"]),
    "step in a step": ([*OPEN, *owned(started(1, "b"), e.StepCompleted(1), ended())], ["step_order"]),
    "step left out": ([*BEGUN, *owned(started(3), e.StepCompleted(3), ended())], ["step_order"]),
    "attempt left out": ([*BEGUN, *owned(started(attempt=3), e.StepCompleted(0), ended())], ["step_attempt"]),
    "entry left out": ([*OPEN, *owned(started(entry=5), e.StepCompleted(0), ended())], ["step_attempt"]),
    "step ends unbegun": ([*BEGUN, *owned(e.StepCompleted(0), ended())], ["step_end"]),
    "another step ends": ([*OPEN, *owned(e.StepFailed(7, ERROR, False), ended())], ["step_end"]),
    "progress without a result": ([*OPEN, *owned(model(), e.StepCompleted(0), ended())], ["step_left_call"]),
    "result without progress": (
        [*OPEN, *owned(tool(), tool_done(), e.RunFailed(ERROR, [], "error"))],
        ["uncommitted"],
    ),
    "call begins at 2": ([*OPEN, *owned(model(attempt=2))], ["call_attempt"]),
    "call ends unbegun": ([*OPEN, *owned(tool_done())], ["call_end"]),
    "model ends unbegun": ([*OPEN, *owned(e.ModelFailed("ask", 1, ERROR, False))], ["call_end"]),
    "failed twice": (
        [*OPEN, *owned(model(), e.ModelFailed("ask", 1, ERROR, False), e.ModelFailed("ask", 1, ERROR, False))],
        ["call_end"],
    ),
    "unknown outcome of nothing": (
        [*OPEN, *owned(e.ToolFailed("x", 1, {"type": "CallOutcomeUnknown", "message": ""}, False))],
        ["call_end"],
    ),
    "a word on nothing": ([*OPEN, happened("x")], ["call_end"]),
    "taken over unbegun": ([*OPEN, *owned(e.ToolAdopted("x"))], ["call_adopted"]),
    "taken over, and known": ([*OPEN, *owned(tool(), tool_done(), e.ToolAdopted("pay"))], ["call_adopted"]),
    "taken over by no step": (
        [*OPEN, *owned(tool(), tool_failed(lost=True), e.StepFailed(0, ERROR, False), e.ToolAdopted("pay"))],
        ["call_adopted"],
    ),
    "unknown and taken over": (
        [
            *OPEN,
            *owned(tool(), tool_failed(lost=True), e.StepFailed(0, ERROR, False), started(1, "b")),
            *owned(e.ToolAdopted("pay"), e.RunFailed(ERROR, [], "error")),
        ],
        ["call_unresolved", "uncommitted"],
    ),
    "unknown and told": (
        [*OPEN, *owned(tool(), tool_failed(lost=True), tool_told(), e.RunFailed(ERROR, [], "error"))],
        ["call_unresolved", "uncommitted"],
    ),
    "unknown and settled": (
        [*OPEN, *owned(tool(), tool_failed(lost=True), tool_told(settled=True), e.RunFailed(ERROR, [], "error"))],
        ["uncommitted"],
    ),
    "stands still": ([*BEGUN, *owned(e.RunWaiting([{"kind": "code", "id": "PlanChanged"}]))], ["stopped"]),
    "effect twice": ([*OPEN, *owned(tool(), tool_done(), tool_done())], ["duplicate_effect"]),
    "effect twice by a word": ([*OPEN, *owned(tool(), tool_done()), happened()], ["duplicate_effect"]),
    "effect twice, steps apart": (
        [*OPEN, *owned(tool(), tool_done(), e.StepCompleted(0), started(1, "b"), tool(), tool_done())],
        ["duplicate_effect"],
    ),
    "unsafe call left": ([*OPEN, *owned(tool(), e.RunFailed(ERROR, [], "error"))], ["call_unresolved", "uncommitted"]),
    "model call left": ([*OPEN, *owned(model(), e.RunFailed(ERROR, [], "error"))], ["call_open", "uncommitted"]),
    "answer to nothing": ([*BEGUN, e.ApprovalResolved("q", "approved")], ["approval_unasked"]),
    "second answer": (
        [
            *OPEN,
            *owned(e.ApprovalRequested("q", "act", SECRET)),
            e.ApprovalResolved("q", "approved"),
            e.ApprovalResolved("q", "rejected"),
        ],
        ["approval_unasked"],
    ),
    "child that isn't there": ([*BEGUN, *owned(e.ChildSpawned("child", "demo"))], ["child_missing"]),
    "another end of a child": (
        [*BEGUN, *owned(e.ChildSpawned("r", "demo"), e.ChildFinished("r", "completed"))],
        ["child_differs"],
    ),
    "parent that isn't there": ([queued(parent_run_id="p", link="child")], ["parent_missing"]),
    "base that isn't there": (
        [queued(link="fork", base={"run_id": "b", "seq": 1, "hash": "0" * 64})],
        ["base_missing"],
    ),
}


@pytest.mark.requirement("R154")
@pytest.mark.parametrize(("events", "expected"), FORGED.values(), ids=FORGED)
def test_meaning(events, expected):
    """A log whose chain is whole and whose events contradict each other gives exactly the finding of that."""
    store = forged(events)
    assert expected == counting(audit_run(store, "r"))
    assert [] == verify_run(store, "r").problems


def test_cancelled_run():
    """A run that was cancelled in the middle of a model call is no fault; an unsafe call that it left is one."""
    left = list(audit_run(forged([*OPEN, *owned(model(), tool(), e.RunCancelled("no"))]), "r"))
    assert [("call_open", "info"), ("call_unresolved", "warning"), ("uncommitted", "info")] == [
        (each.code, each.severity) for each in left
    ]


def test_signal_at_the_end():
    """A signal that nobody took is told once the run has ended, whichever way, and is no fault."""
    signal = e.SignalReceived("id-1", "stop", None)
    for end in (ended(), e.RunCancelled("no"), e.RunFailed(ERROR, [], "error")):
        found = list(audit_run(forged([*BEGUN, signal, (end, 1)]), "r"))
        assert [("signal_untaken", "info", 3)] == [(each.code, each.severity, each.seq) for each in found]
    taken = [*OPEN, signal, *owned(e.StepCompleted(0), started(1, "b"), e.SignalTaken(["id-1"]), e.StepCompleted(1))]
    for events in ([*BEGUN, signal], [*taken, (ended(), 1)]):
        assert [] == list(audit_run(forged(events), "r"))


def test_outbox_at_the_end():
    """What the outbox relay still has to deliver is its business."""
    found = list(audit_run(forged([*OPEN, *owned(tool(policy="outbox"), e.StepCompleted(0), ended())]), "r"))
    assert [("call_unresolved", "info")] == [(each.code, each.severity) for each in found]


@pytest.mark.parametrize(("first", "severity"), [(queued(), "warning"), (imported(), "info")])
def test_clock_back(first, severity):
    """A wall clock that goes back by more than the skew is reported; in an imported run it is only worth knowing."""
    by = "import:x" if severity == "info" else "tester"
    note = e.NoteAdded("x")
    assert [] == list(audit_run(forged([first, note, note], seconds=[0, 5, 4.5], by=by), "r"))
    (found,) = audit_run(forged([first, note, note], seconds=[0, 5, 3], by=by), "r")
    assert ("clock_back", severity, 3) == (found.code, found.severity, found.seq)


def test_base_changed():
    """A run that goes on from an event that isn't what it was says so."""
    store = forged([queued()], run_id="b")
    base = {"run_id": "b", "seq": 1, "hash": "0" * 64}
    Forger(store).write([queued(link="fork", base=base)])
    assert ["base_changed"] == codes(audit_run(store, "r"))


def test_parent_of_an_import():
    """That the parent of an imported run isn't there is only worth knowing."""
    (found,) = audit_run(forged([e.RunImported("chat", "s", "t", "0" * 64, parent_run_id="p")]), "r")
    assert ("parent_missing", "info") == (found.code, found.severity)


def test_effect_in_two_runs():
    """One key of one scope with effects in two runs of a line is found in the later one."""
    calls = owned(tool(), tool_done(), e.StepCompleted(0), ended())
    store = forged([*OPEN, *calls], run_id="first")
    events = [queued(scope="first"), *OPEN[1:], *calls]
    Forger(store).write(events, run_id="second")
    assert [("second", "duplicate_effect")] == [(each.run_id, each.code) for each in audit_store(store)]


def test_known_elsewhere():
    """A call that a later run of the line has settled is no fault of the earlier one."""
    store = forged([*OPEN, *owned(tool(), e.RunFailed(ERROR, [], "error"))], run_id="first")
    assert ["call_unresolved", "uncommitted"] == counting(audit_run(store, "first"))
    Forger(store).write([queued(scope="first")], run_id="second")
    store._tables["unknowns"].clear()
    assert ["uncommitted"] == counting(audit_run(store, "first"))


# --- schemas ---------------------------------------------------------------------------------------------------------


class Tampered(MemoryStore):
    """A store whose rows of the run `r` are a list that tests change."""

    def __init__(self, source):
        super().__init__(clock=source.clock)
        self._tables = {name: dict(rows) for name, rows in source._tables.items()}
        self._recorder = source._recorder  # read only
        self.rows = list(source.read_raw("r"))

    def read_raw(self, run_id, after=0, upto=None):
        found = [row for row in self.rows if after < row[0] and (upto is None or row[0] <= upto)]
        yield from sorted(found, key=lambda row: row[:2])

    def read(self, run_id, after=0, upto=None, *, types=None):
        for row in self.read_raw(run_id, after, upto):
            if types is None or row[2] in types:
                yield decode(run_id, *cast("RawRow", row), no_key)

    def relink(self):
        """Make the chain whole again, head included, so that only the content is wrong."""
        prev, again = GENESIS, []
        for seq, position, kind, body, _ in self.rows:
            prev = event_hash("r", seq, kind, prev, body)
            again.append((seq, position, kind, body, prev))
        self.rows = again
        self._tables["runs"]["r",] = self._tables["runs"]["r",]._replace(head_hash=prev.hex())
        return self


@cache
def _whole_store():
    return whole(Journal(MemoryStore(clock=FakeClock()))).store


def whole_rows():
    """The rows of a whole run, to be changed: each time a copy."""
    return Tampered(_whole_store())


def changed(seq, change):
    """A whole run with one row changed and the chain made whole again; its checkpoints are left out."""
    store = whole_rows()
    store.drop_checkpoints()
    store.rows[seq - 1] = change(store.rows[seq - 1])
    return store.relink()


def body_with(**fields):
    return lambda row: (*row[:3], orjson.dumps(orjson.loads(row[3]) | fields), row[4])


@pytest.mark.requirement("R145")
def test_unknown_type():
    """An event of an unknown type is kept, verified, told once, and stops nothing."""
    store = whole_rows()
    store.drop_checkpoints()
    for seq in (4, 7):
        store.rows[seq - 1] = (seq, seq, "x.future.thing", *store.rows[seq - 1][3:])
    found = [each for each in audit_run(store.relink(), "r") if each.code == "unknown_type"]
    assert [(4, "info")] == [(each.seq, each.severity) for each in found]
    assert [] == verify_run(store, "r").problems


@pytest.mark.requirement("R145")
def test_newer_event():
    """An event of a newer version stops the fold, with a finding, and not the checks of the chain."""
    assert ["newer", "checks_stopped"] == codes(audit_run(changed(4, body_with(v=99)), "r"))


def test_unreadable_event():
    """A body that isn't its type's stops the fold, with a finding, and not the checks of the chain."""
    store = changed(4, body_with(data={SECRET: 1}))
    found = list(audit_run(store, "r"))
    assert ["unreadable", "checks_stopped"] == codes(found)
    assert not any(SECRET in each.what + each.next for each in found)
    store.rows[9] = (*store.rows[9][:3], store.rows[9][3] + b" ", store.rows[9][4])
    assert ["unreadable", "checks_stopped", "link_broken", "not_canonical"] == codes(audit_run(store, "r"))


def test_not_canonical():
    """A body with blanks, well linked, was not written by this package."""
    store = changed(4, lambda row: (*row[:3], row[3].replace(b',"by"', b', "by"'), row[4]))
    assert ["not_canonical"] == codes(audit_run(store, "r"))


@pytest.mark.parametrize("at", ["yesterday", "2026-01-02T03:04:05Z", ""])
def test_bad_time(at):
    """A time that isn't UTC text with microseconds is found."""
    assert ["bad_time"] == codes(audit_run(changed(4, body_with(at=at)), "r"))


def test_impossible_time():
    """A time of the right form and no calendar is found where it must be compared."""
    assert ["bad_time"] == codes(audit_run(changed(4, body_with(at="0000-13-45T99:99:99.000000Z")), "r"))


# --- the chain -------------------------------------------------------------------------------------------------------


LENGTH = len(whole_rows().rows)
places = st.integers(1, LENGTH)


@pytest.mark.requirement("R93")
@given(seq=places, place=st.integers(0, 10_000), bits=st.integers(1, 255))
def test_byte_flip(seq, place, bits):
    """Any change of any byte of any stored body is found, at its event or at the link behind it."""
    store = whole_rows()
    number, position, kind, body, digest = store.rows[seq - 1]
    place %= len(body)
    flipped = body[:place] + bytes([body[place] ^ bits]) + body[place + 1 :]
    store.rows[seq - 1] = (number, position, kind, flipped, digest)
    problems = verify_run(store, "r").problems
    assert [("link_broken", seq)] == [(each.code, each.seq) for each in problems]
    assert counting(audit_run(store, "r"))


def test_an_event_that_its_index_has_elsewhere(tmp_path):
    """A row with another run than its index has is found: whoever reads in the order of the store would miss it."""
    path = tmp_path / "r.db"
    with journal_at(path) as journal:
        for run_id in ("a", "r"):
            journal.append(run_id, [queued()], expect=0)
        digest = journal.append("r", [e.NoteAdded("x")])[0].hash
    data = bytearray(path.read_bytes())
    place = data.index(b"note.added" + bytes.fromhex(digest)) - 2
    assert (2, 2) == tuple(data[place : place + 2])  # the run, and the seq
    data[place] = 34
    path.write_bytes(data)
    with journal_at(path) as journal:
        assert ["positions"] == codes(audit_store(journal.store))


@pytest.mark.requirement("R93")
@given(first=places, length=st.integers(1, 5))
def test_rows_deleted(first, length):
    """Rows that are gone are found, at the first of them, and nothing else is wrong."""
    store = whole_rows()
    last = min(LENGTH, first + length - 1)
    del store.rows[first - 1 : last]
    (found,) = verify_run(store, "r").problems
    assert ("tail_missing" if last == LENGTH else "seq_gap", first) == (found.code, found.seq)


@pytest.mark.requirement("R93")
@given(one=places, other=places)
def test_rows_swapped(one, other):
    """Two events that have changed places are found, at the first of them or behind it."""
    store = whole_rows()
    if one == other:
        assert [] == verify_run(store, "r").problems
        return
    a, b = store.rows[one - 1], store.rows[other - 1]
    store.rows[one - 1], store.rows[other - 1] = (*a[:2], *b[2:]), (*b[:2], *a[2:])
    assert verify_run(store, "r").problems[0].seq in (min(one, other), min(one, other) + 1)
    assert counting(audit_run(store, "r"))


@pytest.mark.requirement("R93")
@given(seq=places)
def test_row_duplicated(seq):
    """A second row of one seq is found there; the links on either side stay whole."""
    store = whole_rows()
    store.rows.append((seq, 1_000, *store.rows[seq - 1][2:]))
    assert ("seq_duplicate", seq) == next((each.code, each.seq) for each in verify_run(store, "r").problems)


@pytest.mark.requirement("R93")
@given(seq=places)
def test_row_inserted(seq):
    """A row that was put in between, the rest moved on, is found where it was put in."""
    store = whole_rows()
    moved = [(row[0] + 1, row[1] + 1, *row[2:]) for row in store.rows[seq - 1 :]]
    store.rows = [*store.rows[:seq], *moved]
    problems = verify_run(store, "r").problems
    assert ("beyond_head" if seq == LENGTH else "link_broken", seq + 1) == (problems[0].code, problems[0].seq)
    assert "beyond_head" in codes(problems)


def test_every_break():
    """Behind one break the check goes on: each of several is told with its place."""
    store = whole_rows()
    for seq in (4, 9):
        *row, body, digest = store.rows[seq - 1]
        store.rows[seq - 1] = (*row, body.replace(b'"by":"', b'"by":"x'), digest)
    del store.rows[13]
    found = verify_run(store, "r").problems
    assert [("link_broken", 4), ("link_broken", 9), ("seq_gap", 14)] == [(each.code, each.seq) for each in found]
    assert LENGTH - 1 == verify_run(store, "r").events


def test_position_order():
    """Rows whose places in the store contradict their seq are found."""
    store = whole_rows()
    store.rows[4] = (5, 2, *store.rows[4][2:])
    assert ["position_order"] == codes(verify_run(store, "r").problems)


FIELDS = ["v", "at", "by", "epoch", "step", "ext", "data", "call_id"]
jsons = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=8),
).map(orjson.dumps)


@settings(max_examples=500)  # an audit each: no property of the log itself
@given(body=st.binary(max_size=200) | jsons, seq=places, kind=st.none() | st.text(max_size=9))
def test_garbage(body, seq, kind):
    """A row of any bytes gives findings, never an exception."""
    store = whole_rows()
    row = store.rows[seq - 1]
    store.rows[seq - 1] = (*row[:2], row[2] if kind is None else kind, body, row[4])
    found = list(audit_run(store, "r"))
    assert counting(found)
    assert [] == [each for each in found if COMMANDS.fullmatch(each.next) is None]


@settings(max_examples=500)
@given(data=st.data(), seq=places)
def test_any_data(data, seq):
    """A well-linked event whose fields hold anything never stops the audit."""
    store = whole_rows()
    store.drop_checkpoints()
    envelope = orjson.loads(store.rows[seq - 1][3])
    values: st.SearchStrategy[object] = (
        st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "x"]) | st.just([]) | st.just({})
    )
    for part in (envelope, envelope["data"]):
        for name in part:
            if name != "data" and data.draw(st.integers(0, 3)) == 0:
                part[name] = data.draw(values)
    if data.draw(st.booleans()):
        envelope["ext"] = data.draw(values | st.just({"result": {"sha256": 1, "bytes": "x"}}) | st.just({"value": {}}))
    store.rows[seq - 1] = (*store.rows[seq - 1][:3], orjson.dumps(envelope), GENESIS)
    found = list(audit_run(store.relink(), "r"))
    assert [] == [each for each in found if COMMANDS.fullmatch(each.next) is None]


# --- a file that was tampered with -----------------------------------------------------------------------------------

CHANGE = """UPDATE events SET body = CAST(replace(body, '"by":"', '"by":"x') AS BLOB)"""
TAMPERED = {
    "body": (f"{CHANGE} WHERE seq = 9", ["link_broken"]),
    "type": ("UPDATE events SET type = 'note.added' WHERE seq = 5", ["link_broken"]),
    "last body": (f"{CHANGE} WHERE seq = (SELECT max(seq) FROM events)", ["link_broken"]),
    "deleted": ("DELETE FROM events WHERE seq = 9", ["seq_gap"]),
    "tail deleted": ("DELETE FROM events WHERE seq > 15", ["tail_missing"]),
    "moved to another run": ("UPDATE events SET run = 99 WHERE seq = 9", ["seq_gap"]),
    "head set back": ("UPDATE runs SET head_seq = head_seq - 1", ["head_hash", "beyond_head"]),
    "head hash": ("UPDATE runs SET head_hash = 'x'", ["head_hash"]),
    "text that is none": ("UPDATE events SET type = CAST(x'ff' AS TEXT) WHERE seq = 9", ["link_broken"]),
}


@pytest.mark.requirement("R93")
@pytest.mark.parametrize(("statement", "expected"), TAMPERED.values(), ids=TAMPERED)
def test_tampered_file(path, statement, expected):
    """Whatever is done to the rows of a file behind the triggers' back, `verify` finds it, and `audit` too."""
    with tampered(path, statement) as journal:
        assert expected == codes(verify_run(journal.store, "r").problems)
        assert set(expected) <= set(codes(audit_run(journal.store, "r")))
        assert set(expected) <= set(codes(audit_store(journal.store)))


TABLES = {
    "row": ("UPDATE runs SET title = 'x'", ["run_row"]),
    "row status": ("UPDATE runs SET status = 'running'", ["run_row"]),
    "row wake": ("UPDATE runs SET wake_at = 'x'", ["run_row"]),
    "effect gone": ("DELETE FROM effects", ["index_missing"]),
    "effect wrong": ("UPDATE effects SET args_sha256 = 'x'", ["index_wrong"]),
    "effect more": ("INSERT INTO effects VALUES ('r', 'k', 't', 'x', 'r', 2)", ["index_extra"]),
    "unknown more": ("INSERT INTO unknowns VALUES ('r', 'k', 'r', 2)", ["index_extra"]),
    "end gone": ("DELETE FROM step_ends WHERE step = 'draft'", ["index_missing"]),
    "end wrong": ("UPDATE step_ends SET ok = 1 - ok WHERE step = 'draft'", ["index_wrong"]),
    "end more": ("INSERT INTO step_ends VALUES ('r', 'x', 1, 'once', 1, 2)", ["index_extra"]),
    "line gone": ("DELETE FROM lines", ["index_missing"]),
    "line wrong": ("UPDATE lines SET newest = 'q'", ["index_wrong", "index_extra"]),
    "line more": ("INSERT INTO lines VALUES ('x', 'r')", ["index_extra"]),
    "import of nothing": ("INSERT INTO imports VALUES ('q', 's', 'x', '')", ["import_orphan"]),
    "blob gone": ("DELETE FROM blobs", ["blob_missing"]),
    "blob damaged": ("UPDATE blobs SET body = x'00'", ["blob_damaged", "blob_bytes"]),
    "checkpoint damaged": (
        "UPDATE checkpoints SET body = CAST(body || 'x' AS BLOB) WHERE seq = (SELECT max(seq) FROM checkpoints)",
        ["checkpoint_damaged"],
    ),
    "checkpoint ahead": ("INSERT INTO checkpoints VALUES ('r', 999, 'run_state:1', x'00')", ["checkpoint_damaged"]),
}


@pytest.mark.parametrize(("statement", "expected"), TABLES.values(), ids=TABLES)
def test_tampered_table(path, statement, expected):
    """What is derived from the events and says something else than they do gives exactly the finding of that."""
    with tampered(path, statement) as journal:
        assert expected == codes(audit_store(journal.store))
        assert [] == verify_run(journal.store, "r").problems


def test_unknown_missing(tmp_path):
    """A call that may have happened must stand in the table of those."""
    with journal_at(tmp_path / "r.db") as journal:
        journal.append("r", [queued()], expect=0)
        journal.append("r", [claimed()])
        journal.append("r", [started(), tool()], epoch=1)
    with tampered(tmp_path / "r.db", "DELETE FROM unknowns") as journal:
        assert "index_missing" in codes(audit_run(journal.store, "r"))
    with tampered(tmp_path / "r.db", "INSERT INTO unknowns VALUES ('r', 'pay', 'r', 1)") as journal:
        assert "index_wrong" in codes(audit_run(journal.store, "r"))


def test_events_without_a_row(path):
    """Events of a run without a row are found, and audited all the same."""
    with tampered(path, "DELETE FROM runs") as journal:
        assert "run_row_missing" in codes(audit_store(journal.store))
        assert [["run_row_missing"]] == [codes(each.problems) for each in verify_store(journal.store)]


def test_blob_unused(path):
    """A blob that no event refers to is worth knowing."""
    with tampered(path, ("INSERT INTO blobs VALUES (?, 1, x'00')", ("0" * 64,))) as journal:
        assert [("blob_unused", "info")] == [(each.code, each.severity) for each in audit_store(journal.store)]


def test_blob_of_an_unknown_type():
    """A blob that an event of an unknown type refers to is in use."""
    store = whole_rows()
    store.drop_checkpoints()
    place = next(row[0] for row in store.rows if b'"ext"' in row[3])
    store.rows[place - 1] = (place, place, "x.future.thing", *store.rows[place - 1][3:])
    assert ["unknown_type"] == codes(audit_store(store.relink()))


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_wrong_checkpoint():
    """A checkpoint that verifies and holds another state than the events is an error."""
    store = forged([*OPEN, *owned(e.StepCompleted(0), ended())])
    state = RunState.initial().fold(store.read("r"))
    state.status.title = "forged"
    store.save_checkpoint(seal(RunState, state, "r", 5, store.head("r").head_hash))
    assert [("checkpoint_state", 5)] == [(each.code, each.seq) for each in audit_run(store, "r")]


def test_checkpoints_equal_the_log():
    """Each checkpoint that a journal takes is, byte for byte, the state that its events refold to."""
    journal = whole(Journal(MemoryStore(clock=FakeClock())))
    assert 3 == len(list(journal.store.checkpoints("r")))
    assert [] == list(audit_run(journal.store, "r"))


@pytest.mark.parametrize("fold", ["run_state:old", "mine:1"])
def test_checkpoint_of_another_version(fold):
    """A checkpoint of other folds is only worth knowing, as long as it is whole."""
    store = forged(BEGUN)
    text = orjson.dumps({"run_id": "r", "seq": 2, "hash": "x", "fold": fold, "state": {}})
    store.save_checkpoint(Checkpoint("r", 2, fold, digest_of(text).encode() + b"\n" + text))
    assert ["checkpoint_version"] == codes(audit_run(store, "r"))
    store.save_checkpoint(Checkpoint("r", 2, fold, b"rubbish"))
    assert ["checkpoint_damaged"] == codes(audit_run(store, "r"))


@given(st.binary(max_size=50))
def test_any_checkpoint(body):
    """A checkpoint of any bytes gives a finding, sealed or not."""
    store = forged(BEGUN)
    for text in (body, digest_of(body).encode() + b"\n" + body):
        store.save_checkpoint(Checkpoint("r", 2, fold_name(RunState), text))
        assert ["checkpoint_damaged"] == codes(audit_run(store, "r"))


# --- reading on ------------------------------------------------------------------------------------------------------


class Failing(Tampered):
    """A store in which pages that hold certain rows can't be read."""

    bad = frozenset({4})

    def read_raw(self, run_id, after=0, upto=None):
        for row in super().read_raw(run_id, after, upto):
            if row[0] in self.bad:
                raise CorruptLog(run_id, row[0], "a page is damaged")
            yield row


def test_unreadable_page():
    """Rows that can't be read are told one by one, and those behind them are still checked."""
    store = Failing(whole_rows())
    assert [("row_unreadable", 4)] == [(each.code, each.seq) for each in verify_run(store, "r").problems]
    assert {"row_unreadable", "checks_stopped"} == set(codes(audit_run(store, "r")))


def test_unreadable_store():
    """Where nothing can be read the audit ends soon."""
    store = Failing(whole_rows())
    store.bad = frozenset(range(1, 100_000))
    assert LENGTH == len(list(rows(store, "r", LENGTH)))
    assert LENGTH + 1 == len(list(rows(store, "r", None)))


def test_writer_meanwhile():
    """What a writer appends while the audit reads is nothing behind the head."""
    store = forged(BEGUN)
    assert beyond(store, "r", 2) is None
    assert beyond(store, "r", 1) is None


def test_bounded_memory():
    """The audit of a long run holds no more than that of a short one, but for a number per effect."""
    audit = RunAudit("r", None)
    for each in forged([*OPEN, *owned(*(e.NoteAdded(str(n)) for n in range(2_000)))]).read("r"):
        audit.feed(each)
    assert ["run_row_missing"] == counting(audit.finish())
    assert 0 == len(audit._effects) + len(audit.state.calls.known)


# --- what a finding says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("events", "_"), FORGED.values(), ids=FORGED)
def test_findings_say_what_to_type(events, _):
    """Each finding has a known code, a place, a sentence without payloads, and a complete command."""
    for found in audit_run(forged(events), "r"):
        assert found.code in CODES
        assert "r" == found.run_id
        assert COMMANDS.fullmatch(found.next)
        assert SECRET not in found.what + found.next


def test_names_are_safe_to_print():
    """A name from the log can neither move the cursor nor fill the screen."""
    key = "k\x1b[2J" + "x" * 500
    (found,) = audit_run(forged([*BEGUN, e.ApprovalResolved(key, "approved")]), "r")
    assert found.what.isprintable()
    assert 200 > len(found.what)


def test_referenced_twice():
    """A blob that is there is sound for every event that refers to it."""
    text = orjson.dumps("x" * 70_000)
    again = e.MemorySet("again", BlobRef(digest_of(text), len(text)))
    events = [*OPEN, *owned(e.MemorySet("big", "x" * 70_000), again, e.StepCompleted(0), ended())]
    assert [] == list(audit_store(forged(events)))


def test_import_without_its_note():
    """An imported run of which nobody knows how far it was taken says so."""
    store = forged([imported()], by="import:x")
    store._tables["imports"].clear()
    assert [("import_missing", "info")] == [(each.code, each.severity) for each in audit_store(store)]


def test_run_from_another_store(path):
    """A run that was brought in from another store has no effects and no line here, and needs no owner."""
    with tampered(
        path,
        "DELETE FROM effects",
        "DELETE FROM lines",
        "INSERT INTO imports SELECT 'r', 'jsonl', head_hash, json_object('seq', head_seq) FROM runs",
    ) as journal:
        assert [] == list(audit_store(journal.store))


def test_failing_fold(monkeypatch):
    """A fold that raises is a finding, and the chain is checked on."""

    def fail(_self, _record):
        raise ZeroDivisionError(SECRET)

    store = forged(BEGUN)
    monkeypatch.setattr(Derived, "apply", fail)
    assert ["fold_failed", "checks_stopped"] == codes(audit_run(store, "r"))


@pytest.mark.parametrize(("kind", "words"), [("code", "the code differs"), ("recoveries", "it doesn't get on")])
def test_a_run_that_stands_still(kind, words):
    """A run for which nothing will come by itself is a finding until somebody has seen to it."""
    waiting = e.RunWaiting([{"kind": kind, "id": "x"}], why="secret")
    store = forged([*BEGUN, (waiting, 1)])
    (found,) = [each for each in audit_run(store, "r") if each.code == "stopped"]
    assert ("warning", f"the run is stopped: {words} ('x')", "runjournal explain r") == (
        found.severity,
        found.what,
        found.next,
    )


def test_every_code_is_tested():
    """Each code that a finding may have is expected by a test of this file."""
    text = "".join(Path(__file__).with_name(name).read_text("utf-8") for name in FILES)
    assert [] == [code for code in CODES if f'"{code}"' not in text]


# --- a run that is running -------------------------------------------------------------------------------------------


def running(path, *, checkpoint=False, other=False):
    """A closed store of a running run of five events; its row names the claim. `other`: another run began behind."""
    with journal_at(path) as journal:
        journal.append("r", [queued(), claimed(1)], expect=0)
        for text in ("a", "b", "c"):
            journal.append("r", [e.NoteAdded(text)], epoch=1)
        if checkpoint:
            journal.checkpoint("r")
        if other:
            journal.append("q", [queued()], expect=0)
    return path


@pytest.mark.parametrize(
    ("beside", "expected"),
    [({}, []), ({"checkpoint": True}, ["checkpoint_damaged"]), ({"other": True}, ["positions"])],
    ids=["nothing", "a checkpoint", "another run"],
)
def test_tail_of_a_running_run(tmp_path, beside, expected):
    """Behind the event that its row names, a cut is found by what lies behind it, and by nothing else."""
    with tampered(running(tmp_path / "r.db", **beside), "DELETE FROM events WHERE run = 1 AND seq > 3") as journal:
        found = [code for code in codes(audit_store(journal.store)) if code not in {"uncommitted", "abandoned"}]
        assert expected == found


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("DELETE FROM events WHERE run = 1 AND seq > 1", "tail_missing"),
        ("UPDATE runs SET head_hash = 'x'", "head_hash"),
        ("UPDATE events SET hash = zeroblob(32) WHERE run = 1 AND seq = 2", "link_broken"),
        ("UPDATE events SET hash = zeroblob(32) WHERE run = 1 AND seq = 5", "link_broken"),
        (
            "INSERT INTO events (run, seq, type, hash, body) VALUES (1, 6, 'note.added', zeroblob(32), x'7b7d')",
            "link_broken",
        ),
    ],
)
def test_a_running_run_that_was_changed(tmp_path, statement, expected):
    """What its row pins, and what is appended at its head by other means, is found."""
    with tampered(running(tmp_path / "r.db"), statement) as journal:
        assert expected in codes(verify_run(journal.store, "r").problems)
