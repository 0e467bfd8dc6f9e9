"""What the contract of a store is written with: checks that hold under `python -O`, and appends made by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from runjournal.log import events as e
from runjournal.log.base import Event, RecordedEvent
from runjournal.log.chain import NewRow
from runjournal.log.codec import digest_of, draft, linked
from runjournal.log.head import Head, advance
from runjournal.log.store import Bill, Effect, Import, Reading, StepEnd, Store, Transaction, Unknown, Write
from runjournal.log.tables import INDEX

T = TypeVar("T")


class Opening:
    """Where a contract gets its stores from."""

    def open(self) -> Store:
        """Return a new, empty store."""
        raise NotImplementedError("override open(): it gives a new, empty store")

    def reopen(self, store: Store) -> Store:
        """Close the store, and return the same store, opened again.

        A store that is gone when closed is returned as it is.
        """
        raise NotImplementedError("override reopen(): it closes a store and opens it again")


def check(condition: object, text: str) -> None:
    """Raise AssertionError with this text unless the condition holds."""
    if not condition:
        raise AssertionError(text)


def equal(expected: object, actual: object, what: str) -> None:
    """Raise AssertionError unless both are equal, type for type, their keys in the same order."""
    same = expected == actual and repr(expected) == repr(actual)
    check(same, f"{what}: expected {expected!r:.400}, got {actual!r:.400}")


def raises(kind: type[BaseException], call: Callable[[], object], what: str) -> BaseException:
    """Raise AssertionError unless the call raises an error of this kind; return that error."""
    try:
        result = call()
    except kind as error:
        return error
    raise AssertionError(f"{what}: expected {kind.__name__}, got the result {result!r:.200}")


def queued(kind: str = "report", *, parent: str | None = None, tags: dict[str, str] | None = None) -> Event:
    """Return the first event of a run."""
    tags = {"z": "1", "a": "2"} if tags is None else tags
    return e.RunQueued(kind=kind, input={"n": 1, "a": {"y": 1, "b": 2}}, tags=tags, scope=None, parent_run_id=parent)


def claimed(epoch: int) -> Event:
    """Return the event with which an owner takes the run."""
    return e.RunClaimed(
        worker="w", epoch=epoch, lease_s=60.0, host="h", boot_id="b", pid_ns="1", pid=2, pid_started="3"
    )


def note(text: str) -> Event:
    """Return an event that moves nothing but the head's seq, hash and time."""
    return e.NoteAdded(text=text)


def moment(number: int) -> str:
    """Return time number so and so."""
    return f"2026-01-01T00:00:{number:02}.000000Z"


def prepare(
    reading: Reading, run_id: str, events: Sequence[Event], at: int = 0, rows: dict[str, Any] | None = None
) -> tuple[Write, list[RecordedEvent]]:
    """Return an append behind the head that the store has now, and its records without positions."""
    before = reading.head(run_id)
    head, stored, records = before or Head(run_id), list[NewRow](), list[RecordedEvent]()
    for event in events:
        made = draft(event, at=moment(at), by="contract")
        each, row = linked(run_id, head.head_seq + 1, head.head_hash, made, epoch=head.epoch)
        head = advance(head, each, 10.0)
        stored.append(row)
        records.append(each)
    return Write(before, head, stored, **rows or {}), records


def write(
    tx: Transaction, run_id: str, events: Sequence[Event], at: int = 0, rows: dict[str, Any] | None = None
) -> list[RecordedEvent]:
    """Append inside a transaction; return the records."""
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
    """Append in a transaction of its own; return the records."""
    return store.transact(lambda tx: write(tx, run_id, events, at, rows), durable=durable)


def put(store: Store, write: Write) -> list[int]:
    """Commit one write, durably."""
    return store.transact(lambda tx: tx.write(write), durable=True)


def everything(run_id: str, seq: int) -> dict[str, Any]:
    """Return rows for each of the tables that an append may add to."""
    scope = f"scope-{run_id}"
    return {
        "blobs": [(digest_of(run_id.encode()), run_id.encode())],
        "effects": [Effect(scope, "k1", "tool", "h", run_id, seq)],
        "unknown": [Unknown(scope, "k2", run_id, seq)],
        "step_ends": [StepEnd(run_id, "a", 1, "once", 0, seq), StepEnd(run_id, "a", 2, "once", 1, seq)],
        "bills": [Bill(run_id, "m1", 1, seq, "2026-12-01T00:00:00.000000Z", "model", "m", "p", "a", "unpriced", 1, 2)],
        "newest": (scope, run_id),
        "imported": Import(run_id, "source", "h", "{}"),
    }


def rows_of(rows: dict[str, Any], run_id: str) -> list[object]:
    """Return what `lookups` finds of `everything`."""
    return [rows["effects"][0], rows["unknown"][0], run_id, rows["step_ends"][1], rows["imported"]]


def lookups(reading: Reading, run_id: str) -> list[object]:
    """Return the rows of `everything`, found by key."""
    scope = f"scope-{run_id}"
    return [
        reading.effect(scope, "k1"),
        reading.unknown(scope, "k2"),
        reading.newest(scope),
        reading.step_end(run_id, "a"),
        reading.imported(run_id),
    ]


def snapshot(store: Store) -> tuple[Any, ...]:
    """Return all that a store holds."""
    heads = store.heads(limit=1000)
    return (
        list(store.read_all()),
        heads,
        [(digest, store.blob(digest)) for digest, _ in store.blob_digests()],
        [[tuple(row) for row in store.index_rows(table)] for table in INDEX],
        [list(store.checkpoints(head.run_id)) for head in heads],
    )


def seq_of(reading: Reading, run_id: str) -> int:
    """Return where the head of a run is."""
    head = reading.head(run_id)
    return head.head_seq if head else 0


def together(calls: Iterable[Callable[[], T]]) -> list[T | BaseException]:
    """Call them all at once, each in a thread of its own; return the results or what was raised."""
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
