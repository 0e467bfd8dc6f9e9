"""The contract of a store, as tests that need no test framework.

A store that passes them may stand under a journal. They hold under `python -O` too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from runjournal.log import events as e
from runjournal.log.base import Event, RecordedEvent
from runjournal.log.codec import digest_of, draft, encode, record
from runjournal.log.errors import InvalidArgument, StoreClosed, StoreError, WrongExpectation
from runjournal.log.head import Head, advance
from runjournal.log.limits import read_page_events_max
from runjournal.log.store import Checkpoint, Effect, Import, Reading, StepEnd, Store, Transaction, Unknown, Write

T = TypeVar("T")

_RACERS = 20


class _Stop(Exception):
    """Leaves a transaction."""


def check(condition: object, text: str) -> None:
    """Raise AssertionError with this text unless the condition holds."""
    if not condition:
        raise AssertionError(text)


def equal(expected: object, actual: object, what: str) -> None:
    """Raise AssertionError unless both are equal."""
    check(expected == actual, f"{what}: expected {expected!r:.400}, got {actual!r:.400}")


def raises(kind: type[BaseException], call: Callable[[], object], what: str) -> BaseException:
    """Raise AssertionError unless the call raises an error of this kind; gives that."""
    try:
        result = call()
    except kind as error:
        return error
    raise AssertionError(f"{what}: expected {kind.__name__}, got the result {result!r:.200}")


class StoreContract:
    """Derive from it, say how to open your store, and let a test runner, or `run`, call its methods.

    >>> class TestMyStore(StoreContract):
    ...     def open(self):
    ...         return MyStore(tempfile.mkdtemp())
    ...
    ...     def reopen(self, store):
    ...         store.close()
    ...         return MyStore(store.path)
    """

    def open(self) -> Store:
        """A new, empty store."""
        raise NotImplementedError("override open(): it gives a new, empty store")

    def reopen(self, store: Store) -> Store:
        """The same store, closed and opened again. A store that is gone when it is closed gives it back as it is."""
        raise NotImplementedError("override reopen(): it closes a store and opens it again")

    def run(self) -> int:
        """Run all tests without a test framework; gives how many there were. Raises the first AssertionError."""
        names = [name for name in sorted(dir(type(self))) if name.startswith("test_")]
        for name in names:
            getattr(self, name)()
        return len(names)

    # Appending.

    def test_an_append_is_read_back_as_it_was(self) -> None:
        """Events come back equal, with the positions that the append gave, and the head is the one that was written."""
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
                tx.write(Write(None, Head("child", "queued", head_seq=1, head_hash="0"), [(1, "note.added", b"{}")]))

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
            (two, kind, body), three = good.events
            for events in ([], [three], [three, (two, kind, body)], [(two, kind, body)], [(two, kind, body)] * 2):
                bad = Write(good.before, good.head, events)
                raises(InvalidArgument, lambda bad=bad: store.transact(lambda tx: tx.write(bad), durable=True), "a gap")
            equal(1, seq_of(store, "run-1"), "the head")

    # Compare and set.

    def test_a_moved_head_refuses(self) -> None:
        """A write over a head that has moved since it was read is refused, and tells both numbers."""
        with self.open() as store:
            append(store, "run-1", [queued()])
            late, _ = prepare(store, "run-1", [note("late")])
            append(store, "run-1", [note("first")])
            error = raises(WrongExpectation, lambda: store.transact(lambda tx: tx.write(late), durable=True), "late")
            equal((1, 2), (getattr(error, "expected", None), getattr(error, "actual", None)), "expected and actual")
            equal(["note.added"], [each.type for each in store.read("run-1", 1)], "what stands")

    def test_a_run_is_born_once(self) -> None:
        """A second creation of a run is refused, as is an append to one that doesn't exist."""
        with self.open() as store:
            again, _ = prepare(store, "run-1", [queued()])
            append(store, "run-1", [queued()])
            raises(WrongExpectation, lambda: store.transact(lambda tx: tx.write(again), durable=True), "born twice")
            orphan = Write(Head("run-2", "running", head_seq=1), Head("run-2", "running", head_seq=2), [(2, "x", b"{}")])
            raises(WrongExpectation, lambda: store.transact(lambda tx: tx.write(orphan), durable=True), "no such run")

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
                        lambda bad=bad: store.transact(lambda tx: tx.write(bad), durable=True),
                        "another epoch or status",
                    )
            equal(2, seq_of(store, "run-1"), "the head")

    def test_racing_writers_leave_no_gap_and_no_duplicate(self) -> None:
        """Of twenty threads that append behind the same head one wins; the others are told, and nothing is lost."""
        with self.open() as store:
            append(store, "run-1", [queued()])
            for turn in range(3):
                same = [prepare(store, "run-1", [note(f"{turn}.{number}")])[0] for number in range(_RACERS)]
                calls = [lambda one=one: store.transact(lambda tx: tx.write(one), durable=False) for one in same]
                outcomes = together(calls)
                won = [each for each in outcomes if not isinstance(each, BaseException)]
                lost = [each for each in outcomes if isinstance(each, WrongExpectation)]
                equal((1, _RACERS - 1), (len(won), len(lost)), f"winners and losers of {outcomes!r:.300}")
            appends = [lambda: append(store, "run-1", [note("x"), note("y")]) for _ in range(_RACERS)]
            for each in together(appends):
                check(not isinstance(each, BaseException), f"an append that decides inside the lock failed: {each!r}")
            records = list(store.read("run-1"))
            equal(list(range(1, 5 + 2 * _RACERS)), [each.seq for each in records], "seq")
            equal([None, *(each.hash for each in records[:-1])], [each.prev for each in records], "the chain")
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
            equal(expected, [each.seq for each in store.transact(lambda tx: list(tx.read("run-1")), durable=True)], "tx")
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
            made = Write(None, head, [(1, "x.odd", body)], effects=[Effect(name, name, name, "h", "run-1", 1)])
            store.transact(lambda tx: tx.write(made), durable=True)
            equal([(1, "x.odd", body)], [(seq, kind, stored) for seq, _, kind, stored in store.read_raw("run-1")], "row")
            equal(head, store.head("run-1"), "head")
            equal(made.effects[0], store.effect(name, name), "effect")

    # Heads.

    def test_heads_are_filtered(self) -> None:
        """Each filter leaves the heads that fit, and all of them together what fits them all."""
        with self.open() as store:
            append(store, "job-1", [queued("report")], at=1)
            append(store, "job-2", [queued("report"), claimed(1)], at=2)
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
                (["task-2", "task-1"], {"limit": 2}),
            ]
            for expected, filters in cases:
                equal(expected, [head.run_id for head in store.heads(**filters)], f"heads({filters})")
            raises(InvalidArgument, lambda: store.heads(limit=0), "heads(limit=0)")

    def test_heads_page_by_key(self) -> None:
        """Paging behind the last head of a page gives each run once, also where times are equal."""
        with self.open() as store:
            for number in range(10):
                append(store, f"run-{number}", [queued()], at=number // 4)
            found: list[str] = []
            after: tuple[str, str] | None = None
            while page := store.heads(after=after, limit=3):
                found += [head.run_id for head in page]
                after = (page[-1].updated_at, page[-1].run_id)
            equal([f"run-{number}" for number in reversed(range(10))], found, "runs, newest first")

    def test_a_head_keeps_every_column(self) -> None:
        """A head comes back as it was written, field by field."""
        with self.open() as store:
            head = Head(
                "run-1", "running", "k", "t", '{"a":"b"}', "scope", 7, "parent", "q", "u", "d", "w", 1, "hash", "o", 3,
                1.5, 2.5, "boot", "host", "ns", 42, "started", "now",
            )  # fmt: skip
            store.transact(lambda tx: tx.write(Write(None, head, [(1, "x.a", b"{}")])), durable=True)
            equal(head, store.head("run-1"), "head")
            changed = head._replace(
                status="waiting", title=None, owner=None, lease_until=None, heartbeat_at=None, pid=None, head_seq=2,
                head_hash="other", updated_at="v", wake_at="x", cancel_requested=None,
            )  # fmt: skip
            store.transact(lambda tx: tx.write(Write(head, changed, [(2, "x.a", b"{}")])), durable=True)
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

    # Index tables.

    def test_index_rows_are_looked_up(self) -> None:
        """What an append adds to the index tables is found by key, and listed by key, of one run or all."""
        with self.open() as store:
            append(store, "run-1", [queued()], rows=everything("run-1", 1))
            append(store, "run-2", [queued()], rows=everything("run-2", 1))
            equal(rows_of(everything("run-1", 1), "run-1"), lookups(store, "run-1"), "look-ups")
            expected = {
                "effects": [("scope-run-1", "k1", "tool", "h", "run-1", 1), ("scope-run-2", "k1", "tool", "h", "run-2", 1)],
                "unknowns": [("scope-run-1", "k2", "run-1", 1), ("scope-run-2", "k2", "run-2", 1)],
                "step_ends": [
                    ("run-1", "a", 1, "once", 0, 1), ("run-1", "a", 2, "once", 1, 1),
                    ("run-2", "a", 1, "once", 0, 1), ("run-2", "a", 2, "once", 1, 1),
                ],
                "lines": [("scope-run-1", "run-1"), ("scope-run-2", "run-2")],
                "imports": [("run-1", "source", "h", "{}"), ("run-2", "source", "h", "{}")],
            }  # fmt: skip
            for table, rows in expected.items():
                equal(rows, [tuple(row) for row in store.index_rows(table)], table)
                equal([row for row in rows if "run-2" in row], [tuple(row) for row in store.index_rows(table, "run-2")], table)
            raises(InvalidArgument, lambda: list(store.index_rows("runs")), "no index table")
            raises(InvalidArgument, lambda: list(store.index_rows("x; DROP TABLE runs")), "no table at all")

    def test_index_rows_go_over_pages(self) -> None:
        """More rows than a page holds come back whole, each once, by key."""
        with self.open() as store:
            count = read_page_events_max + 2
            ends = [StepEnd("run-1", f"s{number:05}", 1, "once", 1, 1) for number in range(count)]
            append(store, "run-1", [queued()], rows={"step_ends": ends[::-1]})
            equal([tuple(end) for end in ends], [tuple(row) for row in store.index_rows("step_ends")], "step_ends")

    def test_the_first_effect_stays(self) -> None:
        """A second effect under a key changes nothing: the first word stands."""
        with self.open() as store:
            first, second = Effect("s", "k", "tool", "h", "run-1", 1), Effect("s", "k", "other", "i", "run-1", 2)
            append(store, "run-1", [queued()], rows={"effects": [first]})
            append(store, "run-1", [note("x")], rows={"effects": [second]})
            equal(first, store.effect("s", "k"), "effect")

    def test_what_becomes_known_is_no_longer_unknown(self) -> None:
        """`known` takes a row away, an `unknown` of the same append comes after it, and the first of two stays."""
        with self.open() as store:
            one, two = Unknown("s", "k", "run-1", 1), Unknown("s", "k", "run-1", 2)
            append(store, "run-1", [queued()], rows={"unknown": [one]})
            append(store, "run-1", [note("x")], rows={"unknown": [two]})
            equal(one, store.unknown("s", "k"), "the first of two")
            append(store, "run-1", [note("x")], rows={"known": [("s", "k")], "unknown": [two]})
            equal(two, store.unknown("s", "k"), "ended and started again")
            append(store, "run-1", [note("x")], rows={"known": [("s", "k"), ("s", "other")]})
            equal(None, store.unknown("s", "k"), "known")

    def test_the_newest_run_of_a_line_moves(self) -> None:
        """A line's newest run is the one written last."""
        with self.open() as store:
            append(store, "run-1", [queued()], rows={"newest": ("s", "run-1")})
            append(store, "run-2", [queued()], rows={"newest": ("s", "run-2")})
            equal("run-2", store.newest("s"), "newest")
            equal([("s", "run-2")], [tuple(row) for row in store.index_rows("lines")], "lines")

    def test_an_import_is_updated(self) -> None:
        """An import's row says how much was taken by the newest append."""
        with self.open() as store:
            append(store, "run-1", [queued()], rows={"imported": Import("run-1", "file", "h1", "1")})
            append(store, "run-1", [note("x")], rows={"imported": Import("run-1", "file", "h2", "2")})
            equal(Import("run-1", "file", "h2", "2"), store.imported("run-1"), "import")

    # Blobs and checkpoints.

    def test_blobs_are_kept_once(self) -> None:
        """Values out of line come back by their digest; the same value twice is one blob."""
        with self.open() as store:
            bodies = [b"", b"\0" * 300_000, "Grüße".encode()]
            blobs = [(digest_of(body), body) for body in bodies]
            append(store, "run-1", [queued()], rows={"blobs": blobs})
            append(store, "run-2", [queued()], rows={"blobs": blobs[:1]})
            equal(bodies, [store.blob(digest) for digest, _ in blobs], "blobs")
            equal(sorted((digest, len(body)) for digest, body in blobs), list(store.blob_digests()), "digests")
            equal(None, store.blob("0" * 64), "no blob")

    def test_checkpoints_are_kept_and_dropped(self) -> None:
        """The newest few snapshots of a run are kept, newest first, and can be forgotten."""
        with self.open() as store:
            for run_id in ("run-1", "run-2"):
                for seq in range(1, 6):
                    store.save_checkpoint(Checkpoint(run_id, seq, "fold", b"%d" % seq), keep=3)
            expected = [Checkpoint("run-1", seq, "fold", b"%d" % seq) for seq in (5, 4, 3)]
            equal(expected, list(store.checkpoints("run-1")), "the newest three")
            equal(expected[1:], list(store.checkpoints("run-1", 4)), "up to seq 4")
            equal([], list(store.checkpoints("run-1", 2)), "up to seq 2")
            store.save_checkpoint(Checkpoint("run-1", 5, "fold 2", b"new"))
            equal(Checkpoint("run-1", 5, "fold 2", b"new"), next(store.checkpoints("run-1")), "written again")
            equal(1, store.drop_checkpoints("run-1", 4), "dropped one")
            equal([5, 3], [each.seq for each in store.checkpoints("run-1")], "what is left")
            equal(2, store.drop_checkpoints("run-1"), "dropped the run's")
            equal([5, 4, 3], [each.seq for each in store.checkpoints("run-2")], "another run's")
            equal(3, store.drop_checkpoints(), "dropped all")
            equal([], list(store.checkpoints("run-2")), "nothing")

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

    def test_info_counts(self) -> None:
        """`info` tells at least what kind of store it is, where, and how much it holds."""
        with self.open() as store:
            append(store, "run-1", [queued(), note("x")])
            info = store.info()
            equal((1, 2, store.url), (info.get("runs_count"), info.get("events_count"), info.get("url")), "info")
            check(info.get("store"), "info has no store")

    def test_a_closed_store_refuses(self) -> None:
        """After `close`, which may be called again, every use raises StoreClosed."""
        store = self.open()
        append(store, "run-1", [queued()])
        reading = store.read("run-1")
        store.close()
        store.close()
        uses: list[Callable[[], object]] = [
            lambda: store.head("run-1"), lambda: list(store.read("run-1")), lambda: list(store.read_all()),
            store.heads, store.last_position, store.data_version, lambda: store.blob("x"), lambda: next(reading),
            lambda: store.transact(lambda tx: tx.head("run-1"), durable=True), lambda: store.heartbeat("run-1", 1, 1.0, 1.0),
            lambda: store.save_checkpoint(Checkpoint("run-1", 1, "fold", b"")), lambda: list(store.index_rows("lines")),
        ]  # fmt: skip
        for use in uses:
            raises(StoreClosed, use, "a use after close")


# How the tests make bytes.


def queued(kind: str = "report", *, parent: str | None = None) -> Event:
    """The first event of a run."""
    return e.RunQueued(kind=kind, input={"n": 1}, tags={}, scope=None, parent_run_id=parent)


def claimed(epoch: int) -> Event:
    """An owner takes the run."""
    return e.RunClaimed(
        worker="w", epoch=epoch, lease_s=60.0, host="h", boot_id="b", pid_ns="1", pid=2, pid_started="3"
    )


def note(text: str) -> Event:
    """An event that moves nothing but the head's seq, hash and time."""
    return e.NoteAdded(text=text)


def moment(number: int) -> str:
    """Time number so and so."""
    return f"2026-01-01T00:00:{number:02}.000000Z"


def prepare(
    reading: Reading, run_id: str, events: Sequence[Event], at: int = 0, rows: dict[str, Any] | None = None
) -> tuple[Write, list[RecordedEvent]]:
    """An append behind the head that the store has now, and its records without positions."""
    before = reading.head(run_id)
    head, stored, records = before or Head(run_id), list[tuple[int, str, bytes]](), list[RecordedEvent]()
    for event in events:
        made = draft(event, at=moment(at), by="contract")
        seq, prev = head.head_seq + 1, head.head_hash
        body = encode(made, epoch=head.epoch, prev=prev)
        each = record(run_id, seq, 0, made, epoch=head.epoch, prev=prev, body=body)
        head = advance(head, each, "{}", 10.0)
        stored.append((seq, made.type, body))
        records.append(each)
    return Write(before, head, stored, **rows or {}), records


def write(
    tx: Transaction, run_id: str, events: Sequence[Event], at: int = 0, rows: dict[str, Any] | None = None
) -> list[RecordedEvent]:
    """Append inside a transaction; gives the records."""
    made, records = prepare(tx, run_id, events, at, rows)
    positions = tx.write(made)
    return [each._replace(position=position) for each, position in zip(records, positions, strict=True)]


def append(
    store: Store,
    run_id: str,
    events: Sequence[Event],
    *,
    at: int = 0,
    rows: dict[str, Any] | None = None,
    durable: bool = False,
) -> list[RecordedEvent]:
    """Append in a transaction of its own; gives the records."""
    return store.transact(lambda tx: write(tx, run_id, events, at, rows), durable=durable)


def everything(run_id: str, seq: int) -> dict[str, Any]:
    """Rows for each of the tables that an append may add to."""
    scope = f"scope-{run_id}"
    return {
        "blobs": [(digest_of(run_id.encode()), run_id.encode())],
        "effects": [Effect(scope, "k1", "tool", "h", run_id, seq)],
        "unknown": [Unknown(scope, "k2", run_id, seq)],
        "step_ends": [StepEnd(run_id, "a", 1, "once", 0, seq), StepEnd(run_id, "a", 2, "once", 1, seq)],
        "newest": (scope, run_id),
        "imported": Import(run_id, "source", "h", "{}"),
    }


def rows_of(rows: dict[str, Any], run_id: str) -> list[object]:
    """What `lookups` finds of `everything`."""
    return [rows["effects"][0], rows["unknown"][0], run_id, rows["step_ends"][1], rows["imported"]]


def lookups(reading: Reading, run_id: str) -> list[object]:
    """The rows of `everything`, found by key."""
    scope = f"scope-{run_id}"
    return [
        reading.effect(scope, "k1"),
        reading.unknown(scope, "k2"),
        reading.newest(scope),
        reading.step_end(run_id, "a"),
        reading.imported(run_id),
    ]


def snapshot(store: Store) -> tuple[Any, ...]:
    """All that a store holds."""
    tables = ("effects", "unknowns", "step_ends", "lines", "imports")
    heads = store.heads(limit=1000)
    return (
        list(store.read_all()),
        heads,
        [(digest, store.blob(digest)) for digest, _ in store.blob_digests()],
        [[tuple(row) for row in store.index_rows(table)] for table in tables],
        [list(store.checkpoints(head.run_id)) for head in heads],
    )


def seq_of(reading: Reading, run_id: str) -> int:
    """Where the head of a run is."""
    head = reading.head(run_id)
    return head.head_seq if head else 0


def together(calls: Iterable[Callable[[], T]]) -> list[T | BaseException]:
    """Call them all at once, each in a thread of its own; gives the results or what was raised."""
    calls = list(calls)
    outcomes: list[T | BaseException] = []
    start = threading.Barrier(len(calls))

    def call(one: Callable[[], T]) -> None:
        start.wait()
        try:
            outcomes.append(one())
        except BaseException as error:  # noqa: BLE001 - it is what the test looks at
            outcomes.append(error)

    threads = [threading.Thread(target=call, args=(one,), daemon=True) for one in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    check(len(outcomes) == len(calls), "a thread didn't come to an end")
    return outcomes
