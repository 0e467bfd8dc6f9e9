"""The contract of a store, as tests that need no test framework.

A store that passes them may stand under a journal. They hold under `python -O` too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from runjournal.log import events as e
from runjournal.log.base import RecordedEvent
from runjournal.log.chain import GENESIS, verified
from runjournal.log.codec import decode
from runjournal.log.errors import InvalidArgument, StoreClosed, StoreError, WrongExpectation
from runjournal.log.head import Head
from runjournal.log.limits import read_page_events_max
from runjournal.log.private_values import no_key
from runjournal.log.store import Checkpoint, Effect, Transaction, Write

from .store_making import (
    append,
    check,
    claimed,
    equal,
    everything,
    lookups,
    moment,
    note,
    prepare,
    put,
    queued,
    raises,
    rows_of,
    seq_of,
    snapshot,
    together,
    write,
)
from .store_tables import TablesContract

T = TypeVar("T")

_RACERS = 20


class _Stop(Exception):
    """Leaves a transaction."""


class StoreContract(TablesContract):
    """Derive from it, say how to open your store, and let a test runner, or `run`, call its methods.

    >>> class TestMyStore(StoreContract):
    ...     def open(self):
    ...         return MyStore(tempfile.mkdtemp())
    ...
    ...     def reopen(self, store):
    ...         store.close()
    ...         return MyStore(store.path)
    """

    def run(self) -> int:
        """Run all tests without a test framework; return how many there were. Raises the first AssertionError."""
        names = [name for name in sorted(dir(type(self))) if name.startswith("test_")]
        for name in names:
            getattr(self, name)()
        return len(names)

    # Appending.

    def test_an_append_is_read_back_as_it_was(self) -> None:
        """Events come back equal, with the positions that the append returned; the head is the one that was written."""
        with self.open() as store:
            records = append(store, "run-1", [queued(), note("one"), note("two")])
            equal(records, list(store.read("run-1")), "the run's events")
            equal([1, 2, 3], [each.seq for each in records], "seq")
            head = store.head("run-1")
            check(head is not None, "the run has no head")
            equal((3, records[-1].hash), head and (head.head_seq, head.head_hash), "the head")
            equal(
                [(each.seq, each.position, each.type) for each in records],
                [raw[:3] for raw in store.read_raw("run-1")],
                "the rows as they are stored",
            )

    def test_an_unknown_run_is_empty(self) -> None:
        """A run that doesn't exist has no head, no events and no rows."""
        with self.open() as store:
            equal(None, store.head("run-1"), "head")
            equal([], [*store.read("run-1"), *store.read_back("run-1"), *store.read_raw("run-1")], "events")
            equal(0, store.last_position(), "the last position")
            equal([], store.heads(), "heads")
            equal(
                [None] * 5,
                [
                    store.effect("s", "k"), store.unknown("s", "k"), store.newest("s"), store.step_end("run-1", "a"),
                    store.imported("run-1"),
                ],
                "rows",
            )  # fmt: skip

    def test_positions_rise_over_all_runs(self) -> None:
        """Positions are the order of the store, whichever run an event is of."""
        with self.open() as store:
            for number in range(6):
                append(store, f"run-{number % 2}", [note("x")] if number > 1 else [queued()])
            found = [(each.run_id, each.seq, each.position) for each in store.read_all()]
            equal([f"run-{number % 2}" for number in range(6)], [each[0] for each in found], "the order of the store")
            equal(sorted({each[2] for each in found}), [each[2] for each in found], "positions")
            equal(found[-1][2], store.last_position(), "the last position")

    def test_one_append_may_span_runs(self) -> None:
        """Two runs that are written in one transaction are both there, or neither."""
        with self.open() as store:

            def both(tx: Transaction) -> None:
                write(tx, "parent", [queued()])
                write(tx, "child", [queued()])

            store.transact(both, durable=True)
            equal([1, 1], [len(list(store.read(run_id))) for run_id in ("parent", "child")], "events")

            def half(tx: Transaction) -> None:
                write(tx, "parent", [note("x")])
                tx.write(
                    Write(None, Head("child", "queued", head_seq=1, head_hash="0"), [(1, "note.added", b"{}", GENESIS)])
                )

            raises(WrongExpectation, lambda: store.transact(half, durable=True), "a second birth of the child")
            equal([1, 1], [len(list(store.read(run_id))) for run_id in ("parent", "child")], "events after it")

    def test_nothing_is_written_if_the_decision_fails(self) -> None:
        """An error inside a transaction undoes all of it: events, head, blobs and rows."""
        with self.open() as store:
            append(store, "run-1", [queued()])
            before = snapshot(store)

            def fail(tx: Transaction) -> None:
                write(tx, "run-1", [note("x")], rows=everything("run-1", 2))
                raise _Stop

            raises(_Stop, lambda: store.transact(fail, durable=True), "the decision")
            equal(before, snapshot(store), "the store after it")
            append(store, "run-1", [note("y")])
            equal([1, 2], [each.seq for each in store.read("run-1")], "seq of the next append")

    def test_a_transaction_reads_what_it_wrote(self) -> None:
        """Inside a transaction its own writes are seen, outside only when it has committed."""
        with self.open() as store:
            append(store, "run-1", [queued()])

            def look(tx: Transaction) -> tuple[list[RecordedEvent], list[RecordedEvent]]:
                write(tx, "run-1", [note("x")], rows=everything("run-1", 2))
                equal(2, seq_of(tx, "run-1"), "the head inside")
                equal(rows_of(everything("run-1", 2), "run-1"), lookups(tx, "run-1"), "the rows inside")
                equal(1, seq_of(store, "run-1"), "the head outside")
                return list(tx.read("run-1")), list(store.read("run-1"))

            inside, outside = store.transact(look, durable=False)
            equal([1, 2], [each.seq for each in inside], "seq inside")
            equal([1], [each.seq for each in outside], "seq outside")
            equal(inside, list(store.read("run-1")), "events after the commit")

    def test_a_transaction_is_of_no_use_after_its_end(self) -> None:
        """A transaction that somebody keeps can neither read nor write."""
        with self.open() as store:
            append(store, "run-1", [queued()])
            kept = store.transact(lambda tx: tx, durable=True)
            raises(StoreError, lambda: kept.head("run-1"), "reading")
            raises(StoreError, lambda: kept.write(prepare(store, "run-1", [note("x")])[0]), "writing")

    def test_a_transaction_inside_a_transaction_is_refused(self) -> None:
        """A thread that holds the write lock gets an error, not a deadlock."""
        with self.open() as store:
            raises(
                StoreError,
                lambda: store.transact(
                    lambda _: store.transact(lambda tx: tx.head("run-1"), durable=True), durable=True
                ),
                "transact in transact",
            )
            append(store, "run-1", [queued()])

    def test_a_gap_is_refused(self) -> None:
        """Events that don't follow the head, each other, or lead to the new head, are refused."""
        with self.open() as store:
            append(store, "run-1", [queued()])
            good, _ = prepare(store, "run-1", [note("a"), note("b")])
            two, three = good.events
            for events in ([], [three], [three, two], [two], [two] * 2):
                bad = Write(good.before, good.head, events)
                raises(InvalidArgument, partial(put, store, bad), "a gap")
            equal(1, seq_of(store, "run-1"), "the head")

    # Compare and set.

    def test_a_moved_head_refuses(self) -> None:
        """A write over a head that has moved since it was read is refused, and tells both numbers."""
        with self.open() as store:
            append(store, "run-1", [queued()])
            late, _ = prepare(store, "run-1", [note("late")])
            append(store, "run-1", [note("first")])
            error = raises(WrongExpectation, partial(put, store, late), "late")
            equal((1, 2), (getattr(error, "expected", None), getattr(error, "actual", None)), "expected and actual")
            equal(["note.added"], [each.type for each in store.read("run-1", 1)], "what stands")

    def test_a_run_is_born_once(self) -> None:
        """A second creation of a run is refused, as is an append to one that doesn't exist."""
        with self.open() as store:
            again, _ = prepare(store, "run-1", [queued()])
            append(store, "run-1", [queued()])
            raises(WrongExpectation, partial(put, store, again), "born twice")
            orphan = Write(
                Head("run-2", "running", head_seq=1), Head("run-2", "running", head_seq=2), [(2, "x", b"{}", GENESIS)]
            )
            raises(WrongExpectation, partial(put, store, orphan), "no such run")

    def test_another_epoch_or_status_refuses(self) -> None:
        """The head that is replaced must have the epoch and the status that were read, not only the seq."""
        with self.open() as store:
            append(store, "run-1", [queued(), claimed(1)])
            good, _ = prepare(store, "run-1", [note("x")])
            check(good.before is not None, "the run has no head")
            if good.before is not None:
                for before in (good.before._replace(epoch=2), good.before._replace(status="queued")):
                    bad = Write(before, good.head, good.events)
                    raises(
                        WrongExpectation,
                        partial(put, store, bad),
                        "another epoch or status",
                    )
            equal(2, seq_of(store, "run-1"), "the head")

    def test_racing_writers_leave_no_gap_and_no_duplicate(self) -> None:
        """Of twenty threads that append behind the same head one wins; the others are told, and nothing is lost."""
        with self.open() as store:
            append(store, "run-1", [queued()])
            for turn in range(3):
                same = [prepare(store, "run-1", [note(f"{turn}.{number}")])[0] for number in range(_RACERS)]
                calls = [partial(put, store, one) for one in same]
                outcomes = together(calls)
                won = [each for each in outcomes if not isinstance(each, BaseException)]
                lost = [each for each in outcomes if isinstance(each, WrongExpectation)]
                equal((1, _RACERS - 1), (len(won), len(lost)), f"winners and losers of {outcomes!r:.300}")
            appends = [lambda: append(store, "run-1", [note("x"), note("y")]) for _ in range(_RACERS)]
            for each in together(appends):
                check(not isinstance(each, BaseException), f"an append that decides inside the lock failed: {each!r}")
            records = list(store.read("run-1"))
            equal(list(range(1, 5 + 2 * _RACERS)), [each.seq for each in records], "seq")
            chain = [decode("run-1", *row, no_key) for row in verified(store.read_raw("run-1"), "run-1")]
            equal(records, chain, "the chain")
            equal(len(records), len({each.position for each in records}), "positions")

    # Reading.

    def test_reads_are_bounded_as_asked(self) -> None:
        """`after` is left out, `upto` is taken in, in runs and in the whole store; before a seq it goes back."""
        with self.open() as store:
            records = append(store, "run-1", [queued(), *(note(str(number)) for number in range(9))])
            append(store, "run-2", [queued()])
            equal(records[3:6], list(store.read("run-1", 3, 6)), "read(after=3, upto=6)")
            equal(records[8:], list(store.read("run-1", 8)), "read(after=8)")
            equal(records[:2], list(store.read("run-1", upto=2)), "read(upto=2)")
            equal([], list(store.read("run-1", 6, 3)) + list(store.read("run-1", 10)), "empty ranges")
            equal(records[::-1], list(store.read_back("run-1")), "read_back()")
            equal(records[2::-1], list(store.read_back("run-1", 4)), "read_back(before=4)")
            equal([], list(store.read_back("run-1", 1)), "read_back(before=1)")
            everything_read = list(store.read_all())
            equal(11, len(everything_read), "read_all()")
            first, last = everything_read[2].position, everything_read[5].position
            equal(everything_read[3:6], list(store.read_all(first, last)), "read_all(after, upto)")

    def test_reads_by_type(self) -> None:
        """Only events of the types asked for come back; none for no types."""
        with self.open() as store:
            append(store, "run-1", [queued(), claimed(1), note("x"), note("y")])
            equal([3, 4], [each.seq for each in store.read("run-1", types=["note.added"])], "one type")
            equal([1, 2], [each.seq for each in store.read("run-1", types=["run.queued", "run.claimed"])], "two types")
            equal([], list(store.read("run-1", types=[])), "no types")

    def test_runs_are_listed_by_their_events(self) -> None:
        """Every run that has an event is listed, each once."""
        with self.open() as store:
            equal([], list(store.run_ids()), "an empty store")
            append(store, "run-2", [queued(), note("x")])
            append(store, "run-1", [queued()])
            equal(["run-1", "run-2"], sorted(store.run_ids()), "runs")

    def test_events_are_counted_by_type(self) -> None:
        """Counts are those of one run's events up to a seq, sorted by type; a run that isn't there has none."""
        with self.open() as store:
            append(store, "run-1", [queued(), claimed(1), note("x"), note("y")])
            append(store, "run-2", [queued(), note("z")])
            expected = [("note.added", 1), ("run.claimed", 1), ("run.queued", 1)]
            equal(expected, list(store.type_counts("run-1", 3).items()), "up to event 3")
            equal({"note.added": 2, "run.claimed": 1, "run.queued": 1}, store.type_counts("run-1", 9), "all")
            equal(0, len(store.type_counts("run-1", 0)) + len(store.type_counts("run-3", 9)), "nothing")

    def test_the_last_event_at_a_time_is_found(self) -> None:
        """The greatest seq counts whose time isn't later, also where the clock went back; None before the first."""
        with self.open() as store:
            for number in (1, 5, 3, 8):
                append(store, "run-1", [note("x")] if store.head("run-1") else [queued()], at=number)
            append(store, "run-2", [queued()], at=2)
            times = [moment(number)[:26] for number in (0, 1, 2, 3, 5, 7, 8, 9)]
            equal([None, 1, 1, 3, 3, 3, 4, 4], [store.seq_at("run-1", each) for each in times], "seqs")
            equal(None, store.seq_at("run-3", times[-1]), "no run")

    def test_reads_go_over_pages(self) -> None:
        """More events than a page holds come back whole, in order, and a reader sees what is appended meanwhile."""
        with self.open() as store:
            count = 2 * read_page_events_max + 1
            append(store, "run-1", [queued(), *(note("x") for _ in range(count - 1))])
            expected = list(range(1, count + 1))
            equal(expected, [each.seq for each in store.read("run-1")], "read")
            equal(expected, [raw[0] for raw in store.read_raw("run-1")], "read_raw")
            equal(expected[::-1], [each.seq for each in store.read_back("run-1")], "read_back")
            equal(expected, [each.seq for each in store.read_all()], "read_all")
            equal(
                expected, [each.seq for each in store.transact(lambda tx: list(tx.read("run-1")), durable=True)], "tx"
            )
            reading = store.read("run-1")
            next(reading)
            append(store, "run-1", [note("late")])
            equal(count, len(list(reading)), "the rest, with the late one")
            equal(count + 1, len(list(store.read("run-1", upto=count + 1))), "an exact bound")

    def test_reads_go_on_beside_a_writer(self) -> None:
        """While a transaction is open, readers of other threads neither wait nor fail, and see what was committed."""
        with self.open() as store:
            records = append(store, "run-1", [queued(), note("x")])
            inside, leave = threading.Event(), threading.Event()

            def slow(tx: Transaction) -> None:
                write(tx, "run-1", [note("y")])
                inside.set()
                check(leave.wait(30), "the reader didn't come to an end beside the writer")

            writer = threading.Thread(target=store.transact, args=(slow,), kwargs={"durable": False}, daemon=True)
            writer.start()
            try:
                check(inside.wait(30), "the writer didn't begin")
                equal(records, list(store.read("run-1")), "events beside the writer")
                equal(2, seq_of(store, "run-1"), "the head beside the writer")
                equal(1, len(store.heads()), "heads beside the writer")
            finally:
                leave.set()
                writer.join(30)
            equal(3, seq_of(store, "run-1"), "the head after the writer")

    def test_any_bytes_and_names(self) -> None:
        """Bodies are bytes that the store doesn't look into; keys may hold any text but NUL."""
        with self.open() as store:
            body = bytes(range(256))
            name = "Grüße ' \" ; -- \U0001f980"
            head = Head("run-1", "queued", "k", name, head_seq=1, head_hash="0", queued_at="2026", updated_at="2026")
            made = Write(None, head, [(1, "x.odd", body, GENESIS)], effects=[Effect(name, name, name, "h", "run-1", 1)])
            put(store, made)
            equal([(1, 1, "x.odd", body, GENESIS)], list(store.read_raw("run-1")), "row")
            equal(head, store.head("run-1"), "head")
            equal(made.effects[0], store.effect(name, name), "effect")

    # Heads.

    def test_heads_are_filtered(self) -> None:
        """Each filter leaves the heads that fit, and all of them together what fits them all."""
        with self.open() as store:
            append(store, "job-1", [queued("report", tags={"team": "ops"})], at=1)
            append(store, "job-2", [queued("report", tags={"on": "2", "team": "ops"}), claimed(1)], at=2)
            append(store, "task-1", [queued("mail", parent="job-1")], at=3)
            append(store, "task-2", [queued("report", parent="job-1"), claimed(1), e.RunCompleted(output=None)], at=4)
            cases: list[tuple[list[str], dict[str, Any]]] = [
                (["task-2", "task-1", "job-2", "job-1"], {}),
                (["task-1", "job-1"], {"status": ["queued"]}),
                (["job-2"], {"status": ["running"]}),
                (["task-2", "task-1", "job-1"], {"status": ["completed", "queued"]}),
                (["task-2", "job-2", "job-1"], {"kind": "report"}),
                (["task-2", "task-1"], {"parent": "job-1"}),
                (["job-2", "job-1"], {"prefix": "job-"}),
                (["task-2", "task-1"], {"since": moment(3)}),
                (["job-1"], {"status": ["queued"], "kind": "report", "prefix": "j"}),
                (["task-2"], {"parent": "job-1", "kind": "report", "status": ["completed", "failed"]}),
                ([], {"kind": "other"}),
                (["job-2", "job-1"], {"tags": {"team": "ops"}}),
                (["job-2"], {"tags": {"team": "ops", "on": "2"}}),
                (["job-1"], {"tags": {"team": "ops"}, "status": ["queued", "failed"], "kind": "report"}),
                ([], {"tags": {"team": "web"}}),
                (["task-2", "task-1"], {"limit": 2}),
            ]
            for expected, filters in cases:
                equal(expected, [head.run_id for head in store.heads(**filters)], f"heads({filters})")
            raises(InvalidArgument, lambda: store.heads(limit=0), "heads(limit=0)")

    def test_the_run_that_changed_last(self) -> None:
        """The latest run is the one whose newest event is the newest, of runs that no other began, of a status."""
        with self.open() as store:
            equal(None, store.latest(), "latest in an empty store")
            append(store, "a", [queued(), claimed(1)], at=1)
            append(store, "b", [queued(), claimed(1), e.RunCompleted(output=None)], at=2)
            append(store, "c", [queued()], at=3)
            append(store, "d", [queued(parent="c")], at=9)
            cases = [("c", ()), ("b", ("completed", "running")), ("a", ("running",)), (None, ("failed",))]
            for expected, status in cases:
                found = store.latest(status=status)
                equal(expected, found and found.run_id, f"latest({status})")
            append(store, "a", [e.NoteAdded("x")], at=5)
            for status in ((), ("running",)):
                found = store.latest(status=status)
                equal("a", found and found.run_id, f"latest({status}) behind a note")

    def test_heads_page_by_key(self) -> None:
        """Paging behind the last head of a page returns each run once, also where times are equal."""
        with self.open() as store:
            for number in range(10):
                append(store, f"run-{number}", [queued()], at=number // 4)
            found: list[str] = []
            after: tuple[str, str] | None = None
            while page := store.heads(after=after, limit=3):
                found += [head.run_id for head in page]
                after = (page[-1].queued_at, page[-1].run_id)
            equal([f"run-{number}" for number in reversed(range(10))], found, "runs, newest first")

    def test_a_head_keeps_every_column(self) -> None:
        """A head comes back as it was written, field by field."""
        with self.open() as store:
            head = Head(
                "run-1", "running", "k", "t", '{"a":"b"}', "scope", 7, "parent", "q", "u", "d", "w", 1, GENESIS.hex(),
                "o", 3, 1.5, 2.5, "boot", "host", "ns", 42, "started", "now",
            )  # fmt: skip
            put(store, Write(None, head, [(1, "x.a", b"{}", GENESIS)]))
            equal(head, store.head("run-1"), "head")
            changed = head._replace(
                status="waiting", title=None, owner=None, lease_until=None, heartbeat_at=None, pid=None, head_seq=2,
                head_hash="other", updated_at="v", wake_at="x", cancel_requested=None,
            )  # fmt: skip
            put(store, Write(head, changed, [(2, "x.a", b"{}", GENESIS)]))
            equal(changed, store.head("run-1"), "head after the second append")
            equal([changed], store.heads(), "heads")

    def test_a_heartbeat_extends_its_own_lease_only(self) -> None:
        """A lease is extended for the epoch that owns the running run, and for nobody else."""
        with self.open() as store:
            append(store, "run-1", [queued(), claimed(1)])
            equal(True, store.heartbeat("run-1", 1, 99.5, 39.5), "the owner's heartbeat")
            head = store.head("run-1")
            equal((99.5, 39.5, 2), head and (head.lease_until, head.heartbeat_at, head.head_seq), "the lease")
            equal(False, store.heartbeat("run-1", 2, 500.0, 1.0), "another epoch's heartbeat")
            equal(False, store.heartbeat("run-2", 1, 500.0, 1.0), "a heartbeat of no run")
            append(store, "run-1", [e.RunCompleted(output=None)])
            equal(False, store.heartbeat("run-1", 1, 500.0, 1.0), "a heartbeat after the end")

    # The whole.

    def test_reopening_keeps_everything(self) -> None:
        """What was written is there when the store is opened again, and the next append goes on behind it."""
        store = self.open()
        append(store, "run-1", [queued(), note("x")], rows=everything("run-1", 2))
        store.save_checkpoint(Checkpoint("run-1", 2, "fold", b"x"))
        before = snapshot(store)
        with self.reopen(store) as again:
            equal(before, snapshot(again), "the store, opened again")
            equal([3], [each.seq for each in append(again, "run-1", [note("y")])], "seq of the next append")
            equal(before[0][-1].position + 1, again.last_position(), "its position")

    def test_data_version_tells_of_commits(self) -> None:
        """The number stays while nothing is committed, and changes with a commit, durable or relaxed."""
        with self.open() as store:
            seen = store.data_version()
            equal(seen, store.data_version(), "without a commit")
            for durable in (True, False):
                append(store, f"run-{durable}", [queued()], durable=durable)
                check(seen != store.data_version(), "a commit changed no data_version")
                seen = store.data_version()

    def test_a_closed_store_refuses(self) -> None:
        """After `close`, which may be called again, every use raises StoreClosed."""
        store = self.open()
        append(store, "run-1", [queued()])
        reading = store.read("run-1")
        store.close()
        store.close()
        uses: list[Callable[[], object]] = [
            lambda: store.head("run-1"), lambda: list(store.read("run-1")), lambda: list(store.read_all()),
            store.heads, store.last_position, store.data_version, lambda: list(store.run_ids()),
            lambda: store.type_counts("run-1", 1), lambda: store.seq_at("run-1", "9"),
            lambda: store.blob("x"), lambda: next(reading),
            lambda: append(store, "run-1", [note("x")]), lambda: store.heartbeat("run-1", 1, 1.0, 1.0),
            lambda: store.save_checkpoint(Checkpoint("run-1", 1, "fold", b"")), lambda: list(store.index_rows("lines")),
        ]  # fmt: skip
        for use in uses:
            raises(StoreClosed, use, "a use after close")
