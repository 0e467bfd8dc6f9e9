"""The folded state of a run from its store: the newest usable checkpoint and the events since, bases included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from runjournal.log import events as e
from runjournal.log.base import ERASED, BlobRef, Json, RecordedEvent, plan_of
from runjournal.log.chain import RawRow, verified
from runjournal.log.codec import decode, digest_of
from runjournal.log.errors import CorruptLog, MissingBlob
from runjournal.log.hiding import blob_value
from runjournal.log.private_values import KeyRing
from runjournal.log.store import Reading, Store
from runjournal.projections import transcript
from runjournal.projections.skim import fold_rows
from runjournal.projections.state import RunState

from . import checkpoints, purged


def context_records(store: Store, run_id: str, upto: int | None = None) -> Iterator[RecordedEvent]:
    """Yield the events that `transcript.messages` needs of a run and of those that it goes on from, in order."""
    for part, last in _parts(store, run_id, upto):
        yield from store.read(part, 0, last, types=transcript.CONTEXT_TYPES)


def own_records(store: Store, run_id: str) -> Iterator[RecordedEvent]:
    """Yield the events of users' own types of the runs that a retry or a fork goes on from, in order."""
    for part, last in _parts(store, run_id, None)[:-1]:
        yield from (record for record in store.read(part, 0, last) if record.type.startswith("x."))


def _parts(store: Store, run_id: str, upto: int | None) -> list[tuple[str, int | None]]:
    """Return the runs whose events a run has as its own, itself last, each up to a seq; a restart begins anew."""
    parts: list[tuple[str, int | None]] = [(run_id, upto)]
    while (first := next(iter(store.read(parts[-1][0], 0, 1)), None)) is not None:
        queued = first.event
        if not isinstance(queued, e.RunQueued) or queued.base is None or queued.link not in ("retry", "fork"):
            break
        parts.append((queued.base["run_id"], queued.base["seq"]))
    return parts[::-1]


def begin(store: Store, queued: e.RunQueued | None) -> RunState:
    """Return the state before the first event of a run: nothing, or what its base is for it. Raises CorruptLog."""
    if queued is None or queued.base is None or queued.link is None:
        return RunState.initial()
    run_id, seq, digest = queued.base["run_id"], queued.base["seq"], queued.base["hash"]
    base, _ = load(store, store, run_id, seq)
    if base.hash != digest:
        raise CorruptLog(run_id, seq, "it is the base of another run, and not what that run was begun from")
    return base.derive(queued.link, queued.again or ())


def first(reading: Reading, run_id: str) -> e.RunQueued | None:
    """Return the run.queued of a run, or None."""
    record = next(iter(reading.read(run_id, 0, 1)), None)
    return record.event if record is not None and isinstance(record.event, e.RunQueued) else None


def bases(reading: Reading, run_id: str) -> Iterator[str]:
    """Yield the runs that a run goes on from, the nearest first."""
    queued = first(reading, run_id)
    while queued is not None and queued.base is not None:
        yield (run_id := queued.base["run_id"])
        queued = first(reading, run_id)


def start(
    store: Store, reading: Reading, run_id: str, upto: int, *, whole: bool = False
) -> tuple[RunState, int, str | None]:
    """Return where a fold up to the event `upto` begins: a state, its seq, and the chain's hash there.

    That is the newest usable checkpoint. If there is none, or `whole` wants none, it is the state before the first
    event.
    """
    found = None if whole else checkpoints.newest(store, RunState, run_id, upto)
    if found is not None and isinstance(found[0], RunState):
        return found[0], found[1], found[2]
    return begin(store, first(reading, run_id)), 0, None


def load(
    store: Store, reading: Reading, run_id: str, upto: int, *, force: bool = False, whole: bool = False
) -> tuple[RunState, int]:
    """Return the state after the event `upto`, the chain verified, and the seq of the checkpoint used (0: none).

    Events come from `reading` (a transaction, or the store), checkpoints from the store; `whole` uses none. Raises
    CorruptLog, Unfoldable, and Purged if the run is purged meanwhile.
    """
    state, seq, chain = start(store, reading, run_id, upto, whole=whole)
    rows = _verified(reading, run_id, seq, upto, chain)
    fold_rows(state, run_id, rows, KeyRing(reading.key), force=force)
    if max(state.seq, seq) < upto:
        raise _missing(run_id, max(state.seq, seq), upto)
    return state, seq


def _verified(reading: Reading, run_id: str, after: int, upto: int, chain: str | None) -> Iterator[RawRow]:
    """Yield the rows with after < seq <= upto, the chain verified.

    Raises CorruptLog, and Purged if they were purged meanwhile.
    """
    try:
        yield from verified(reading.read_raw(run_id, after, upto), run_id, after, chain)
    except CorruptLog:
        head = reading.head(run_id)
        if head is not None and upto < head.head_seq:  # what is healthy now was read without its marker
            purged.check_head(reading, head)
        raise


def _missing(run_id: str, last: int, upto: int) -> CorruptLog:
    return CorruptLog(run_id, last + 1, f"the event is missing, the run has {upto}")


def chained(reading: Reading, run_id: str, after: int, upto: int, chain: str | None) -> Iterator[RecordedEvent]:
    """Yield the events with after < seq <= upto, the chain behind `chain` verified, to the last one.

    Raises CorruptLog, and Purged if the run is purged meanwhile.
    """
    last, keys = after, KeyRing(reading.key)
    for row in _verified(reading, run_id, after, upto, chain):
        last = row[0]
        yield decode(run_id, *row, keys)
    if last < upto:
        raise _missing(run_id, last, upto)


def event_at(reading: Reading, run_id: str, seq: int) -> RecordedEvent | None:
    """Return the event of a run at a seq, or None; a seq of 0 and below counts back in the run that it goes on from."""
    while seq < 1:
        queued = first(reading, run_id)
        if queued is None or queued.base is None:
            return None
        run_id, seq = queued.base["run_id"], queued.base["seq"] + seq
    return next(iter(reading.read(run_id, seq - 1, seq)), None)


def args_reader(store: Store, reading: Reading, run_id: str) -> Callable[[int], object]:
    """Return a function from the seq of a tool.started, as `event_at` counts, to its args; None if there is none.

    Args that are held out of line are read from the store; where the blob is missing, its reference is returned.
    """

    def args_at(seq: int) -> object:
        record = event_at(reading, run_id, seq)
        return filled(store, record.event.args) if record and isinstance(record.event, e.ToolStarted) else None

    return args_at


def filled(store: Store, value: object) -> object:
    """A value, read from its blob if it is held out of line and its blob is there and can be read."""
    body = store.blob(value.sha256) if isinstance(value, BlobRef) else None
    try:
        return value if body is None else blob_value(body, store.key)
    except ValueError:
        return value


def filled_record(store: Store, record: RecordedEvent) -> RecordedEvent:
    """Return a record with the values that are held out of line in place, but for those that were erased.

    Raises MissingBlob, CorruptLog.
    """
    plan = plan_of(type(record.event)) if record.event.BLOBS else ()
    refs = {
        f.attribute: value
        for f in plan
        if isinstance(value := getattr(record.event, f.attribute), BlobRef) and f.name != record.event.RAW
    }
    if not refs:
        return record
    values: dict[str, Json] = {}
    for name, ref in refs.items():
        if ref == ERASED:
            continue
        body = store.blob(ref.sha256)
        if body is None:
            raise MissingBlob(ref.sha256, f"run {record.run_id} seq {record.seq} {record.type}.{name}")
        if digest_of(body) != ref.sha256:
            raise CorruptLog(record.run_id, record.seq, f"the blob sha256:{ref.sha256} of {name} was changed")
        try:
            values[name] = blob_value(body, store.key)
        except ValueError as error:
            raise CorruptLog(record.run_id, record.seq, f"the blob of {name} can't be read: {error}"[:200]) from error
    return record._replace(event=replace(record.event, **values))
