"""What a store is: it keeps bytes, atomically and in order, and has no opinion on what they mean.

A store allows one write transaction at a time; the caller decides inside it, on what it reads there. That makes
compare-and-set, optimistic concurrency and fencing one thing: the head that was read is the head that is replaced, or
nothing is written. Who may append what is in `authority.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from .base import RecordedEvent
from .chain import NewRow, RawRow
from .clock import Clock
from .codec import decode
from .errors import InvalidArgument
from .head import Head
from .limits import read_page_heads_max
from .private_values import KeyRing

T = TypeVar("T")


class Effect(NamedTuple):
    """A tool call that happened and isn't idempotent: what later calls under its key are answered from.

    `args_sha256` is "" in a private run.
    """

    scope: str
    key: str
    tool: str
    args_sha256: str
    run_id: str
    seq: int


class StepEnd(NamedTuple):
    """An attempt of a step that ended: `step` its id, `seq` the event that ended it, `ok` 1 or 0."""

    run_id: str
    step: str
    attempt: int
    kind: str
    ok: int
    seq: int


class Unknown(NamedTuple):
    """A call that may have happened and of which nobody knows; `seq` is where it started."""

    scope: str
    key: str
    run_id: str
    seq: int


class Bill(NamedTuple):
    """What one request to a provider came to, or a tool's own price, or money beside the calls.

    `kind` says which: `model`, `tool` or `cost`; `name` is the model, the tool, or who said it. One attempt of a call
    is one row; money beside the calls has no `call_id`, and its seq as `attempt`. `seq` is the event that tells what is
    known, `at` its time (UTC text), `step` the step that asked. `status`: `reported` (somebody who knows has said the
    amount), `priced` (worked out from rates), `free`, `unpriced` (tokens without a price), `unmeasured` (no tokens
    told), `lost` (sent, and nobody will ever say what it cost). A counter of tokens that wasn't told is None, which is
    never zero. `amount` is decimal text. `calls` is how many requests the row stands for: 1, 0 for money beside the
    calls, and more for what is left of a purged run.
    """

    run_id: str
    call_id: str
    attempt: int
    seq: int
    at: str
    kind: str
    name: str
    provider: str | None
    step: str
    status: str
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    amount: str | None = None
    currency: str | None = None
    pricing: str | None = None
    response_id: str | None = None
    request_id: str | None = None
    calls: int = 1


class Checkpoint(NamedTuple):
    """A checkpoint of a projection after the event `seq`; `fold` is `<projection>:<version>` of what made it."""

    run_id: str
    seq: int
    fold: str
    body: bytes

    @property
    def projection(self) -> str:
        """Return the name of the projection, without its version."""
        return self.fold.partition(":")[0]


class Import(NamedTuple):
    """Where an imported run came from, and how much of it was taken (the importer's own JSON)."""

    run_id: str
    source: str
    sha256: str
    taken: str


class Fault(NamedTuple):
    """What of a store's tables isn't as this version makes it, by name: `part` is `trigger events_not_updated`.

    `code` is that of the finding, `schema`, `positions`, or `schema_own`: what the store's user has made, no fault.
    """

    code: str
    part: str
    what: str


class BadRow(NamedTuple):
    """A row that was left out because it can't be read: of which table, by name or number, and what is wrong."""

    table: str
    name: str
    what: str


class RowWarning(UserWarning):
    """A row was left out because it can't be read; the others are there."""


def warn_of(row: BadRow) -> None:
    """Say once of a row that was left out."""
    text = f"the row {row.name} of table {row.table} can't be read ({row.what}) and is left out; next: runjournal audit"
    warnings.warn(text, RowWarning, stacklevel=2)


@dataclass(slots=True)
class Write:
    """All that one append adds to one run: consecutive events, the new head, and the rows of the index tables.

    `known` takes rows of `unknown` calls away before `unknown` adds some. The first effect of a key stays, and the
    first unknown; a step's end, a bill, a line's newest run and an import are replaced.
    """

    before: Head | None
    head: Head
    events: list[NewRow]
    blobs: Sequence[tuple[str, bytes]] = ()
    effects: Sequence[Effect] = ()
    unknown: Sequence[Unknown] = ()
    known: Sequence[tuple[str, str]] = ()
    step_ends: Sequence[StepEnd] = ()
    bills: Sequence[Bill] = ()
    newest: tuple[str, str] | None = None
    imported: Import | None = None

    def check(self) -> None:
        """Raise InvalidArgument unless the events follow each other from the old head to the new one."""
        first = seq = 1 if self.before is None else self.before.head_seq + 1
        for event in self.events:
            if event[0] != seq:
                break
            seq += 1
        if seq != self.head.head_seq + 1 or seq != first + len(self.events) or seq == first:
            raise InvalidArgument(
                f"run {self.head.run_id}: expected events {first} to {self.head.head_seq}, each once, in order"
            )


class Alone(NamedTuple):
    """One event of the owner of a running run that brings nothing else: `before` is the head that it stands behind."""

    run_id: str
    before: Head
    event: NewRow


class Reading(Protocol):
    """What can be read, inside a write transaction and outside."""

    def head(self, run_id: str) -> Head | None:
        """Return the run's head, or None."""
        ...

    def read(
        self, run_id: str, after: int = 0, upto: int | None = None, *, types: Sequence[str] | None = None
    ) -> Iterator[RecordedEvent]:
        """Yield the run's events with after < seq <= upto, in order, of these types (all: None)."""
        ...

    def read_raw(self, run_id: str, after: int = 0, upto: int | None = None) -> Iterator[RawRow]:
        """Yield the same rows as they are stored: (seq, position, type, body, hash)."""
        ...

    def effect(self, scope: str, key: str) -> Effect | None:
        """Return the row of a call that happened, by its key, or None."""
        ...

    def unknown(self, scope: str, key: str) -> Unknown | None:
        """Return the row of a call that may have happened, by its key, or None."""
        ...

    def newest(self, scope: str) -> str | None:
        """Return the newest run of a line, or None."""
        ...

    def step_end(self, run_id: str, step: str) -> StepEnd | None:
        """Return the newest end of a step, or None."""
        ...

    def step_ends(self, run_id: str, step: str) -> list[StepEnd]:
        """Return every end of a step, by attempt."""
        ...

    def imported(self, run_id: str) -> Import | None:
        """Return where an imported run came from, or None."""
        ...

    def secret(self, purpose: str, name: str) -> bytes | None:
        """Return the newest key for a purpose, `run`, `checkpoints` or `scope`; None if there never was one.

        `name` is the run's id, or the scope. A key that was erased is `cipher.ERASED_KEY`.
        """
        ...

    def key(self, run_id: str) -> bytes | None:
        """Return the key of a run's private values; None if it has none, or they were erased."""
        ...

    def born(self, after: int = 0) -> Iterator[str]:
        """Yield every run that has a first event, in the order of their first events; only those behind a position."""
        ...

    def naming_blobs(self, after: int = 0) -> Iterator[tuple[str, bytes]]:
        """Yield (run id, body) of every event behind a position that may name a value which is held out of line."""
        ...


class Transaction(Reading, Protocol):
    """One write transaction. Only what is written through it is in the commit."""

    def write(self, write: Write) -> list[int]:
        """Append; return the store-wide positions of the events. Raises WrongExpectation if the head has moved."""
        ...

    def append_alone(self, alone: Alone) -> int | None:
        """Append one event of an owner; return its position, or None, and nothing written, if `write` has to do it."""
        ...

    def add_secret(self, purpose: str, name: str, key: bytes) -> None:
        """Keep a new key, which is from now on the newest for its purpose and name."""
        ...

    def erase_secrets(self, purpose: str, name: str) -> int:
        """Overwrite every key for a purpose and name in place; return how many weren't erased before.

        What is left of them in other places of the files goes with `Store.scrub`.
        """
        ...

    def purge(self, run_id: str, digests: Iterable[str]) -> None:
        """Empty the bodies of all events of a run but the last, which is run.purged, and these blobs, for ever.

        Its effects, unknown calls, ends of steps, bills and checkpoints go, too. What is left of it in other places of
        the files goes with `Store.scrub`. Raises StoreError for a run whose last event is another one.
        """
        ...

    def execute(self, query: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement on the user's own tables, for a transactional tool; return its rows.

        Raises InvalidArgument for anything else: control of the transaction, PRAGMA, ATTACH, DDL, our own tables; and
        where a store knows no SQL. Raises TimeoutError once the transaction has lasted transaction_s_max.
        """
        ...

    def define(self, query: str) -> None:
        """Make, change or drop a table or index of the user's own, beside ours; one statement.

        Raises InvalidArgument for anything else, and where a store knows no SQL.
        """
        ...

    def save_checkpoint(self, checkpoint: Checkpoint, keep: int = 3) -> None:
        """Keep a checkpoint as `Store.save_checkpoint` does, in this commit.

        Raises StoreError if it can't be kept; unless the whole transaction fails by that, it goes on without.
        """
        ...

    def reindex(self, writes: Iterable[Write]) -> None:
        """Forget the rows of all tables that follow from events, and keep those of these writes instead.

        The head of a write replaces the row of its run, whatever that was. Events and blobs are there already, and
        aren't written again. `writes` may read through this transaction as it goes.
        """
        ...


class SharedTransaction(Transaction, Protocol):
    """A write transaction that several appends share.

    `written` counts what was written; `failed` is the error that made it unusable.
    """

    written: int
    failed: BaseException | None

    def settled(self, run_id: str) -> bool:
        """Return whether all that this transaction wrote of a run can be read through it: it added no blob to it."""
        ...


class SharedWork(Protocol):
    """An append that may share its commit with others: it reads and writes through the transaction alone."""

    @property
    def run_id(self) -> str:
        """Return the run that it appends to."""
        ...

    @property
    def durable(self) -> bool:
        """Return whether its commit waits for the disk."""
        ...

    def decide(self, tx: SharedTransaction) -> None:
        """Judge, then write. It may be called again, in another transaction, after `undo`."""
        ...

    def undo(self) -> None:
        """Forget what `decide` has changed outside the store: nothing of it was written, or nobody knows."""
        ...

    def stands(self, tx: SharedTransaction) -> bool:
        """Return whether what `decide` has written last is in the log."""
        ...

    def over(self, error: BaseException | None) -> None:
        """Hear how it ended: committed, or by this error. It appends nothing. An interrupt may have it told twice."""
        ...


class Sharing(Protocol):
    """Where a store takes appends that may share a commit, in the order in which they come."""

    def crowded(self, *, durable: bool) -> bool:
        """Return whether an append should come here, for others are before it; else it goes by itself at once."""
        ...

    def add(self, work: SharedWork) -> None:
        """Take an append; its `over` will be called some time after a `wake`. Raises StoreClosed, UsedAfterFork."""
        ...

    def wake(self) -> None:
        """Let those begin that were taken."""
        ...

    def wait(self, work: SharedWork, heard: Callable[[float], bool]) -> None:
        """Take an append, and wait for its end, which `heard(seconds)` says.

        Raises StoreBusy if it hasn't begun in time. An interrupt takes it back if it hasn't begun, else waits for it.
        """
        ...


class Store(Reading, Protocol):
    """A store of runs. Safe to share between threads, never across a fork."""

    url: str
    clock: Clock

    @property
    def store_id(self) -> str:
        """Return the id that the store was made with, and that its copies keep: keys sent by its runs join it.

        "" if it has none; the keys are then those of any other store, too.
        """
        ...

    @property
    def sharing(self) -> Sharing | None:
        """Return where appends go that may share a commit; None if a commit waits for nothing."""
        ...

    def index_stale(self) -> bool:
        """Return whether the index tables wait for a `reindex`: after a migration that made them."""
        ...

    def transact(self, decide: Callable[[Transaction], T], *, durable: bool) -> T:
        """Run `decide` inside the write lock and commit what it wrote; if it raises, nothing is written.

        `durable` commits wait for the disk; relaxed ones survive the death of the process, but a power cut may take
        them until the next durable commit. Raises StoreBusy, StoreFull, StoreReadOnly, OutcomeUnknown, StorePoisoned.
        """
        ...

    def append_alone(self, decide: Callable[[], Alone | None], *, durable: bool) -> int | None:
        """Append one event of an owner by itself, and return its position.

        `decide` is called alone among this process's writers, and reads nothing from the store. Nothing is written,
        and None returned, if it returns None, or if the run isn't any more as it says: a transaction then tells why.
        Raises what `transact` raises.
        """
        ...

    def heads(
        self,
        *,
        status: Sequence[str] = (),
        kind: str | None = None,
        parent: str | None = None,
        tags: Mapping[str, str] | None = None,
        prefix: str = "",
        since: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
        bad: Callable[[BadRow], None] = warn_of,
    ) -> list[Head]:
        """Heads by (queued_at, run_id), newest first, after the given one in that order; `since` bounds updated_at.

        A run has all of `tags`. A page takes as long in a store of many runs as in one of few, if one of the filters
        is the narrow one: the first tag, or else the parent, or the status, or the kind.

        `bad` is told of each row that can't be read, maybe twice; there may be more behind fewer heads than `limit`,
        and none behind no head.
        """
        ...

    def latest(self, *, status: Sequence[str] = (), bad: Callable[[BadRow], None] = warn_of) -> Head | None:
        """Return the run that changed last, of these statuses (all: none), among those that no other run began."""
        ...

    def head_row(self, run_id: str) -> Head | None:
        """Return the run's row as it stands in the table `runs`, or None.

        Of a run that is running it may be behind: its last event is then the head, as `head` tells. The row is the
        head as of the last event that moved more than how far the run is.
        """
        ...

    def read_back(self, run_id: str, before: int | None = None) -> Iterator[RecordedEvent]:
        """Yield the run's events with seq < before, newest first."""
        ...

    def read_all(self, after: int = 0, upto: int | None = None) -> Iterator[RecordedEvent]:
        """Yield all runs' events with after < position <= upto, in the order of the store."""
        ...

    def run_ids(self) -> Iterator[str]:
        """Yield the id of every run that has an event, once, in no order; also of one without a row in `runs`."""
        ...

    def type_counts(self, run_id: str, upto: int) -> dict[str, int]:
        """Return how many events of each type a run has with seq <= upto, by type, sorted."""
        ...

    def seq_at(self, run_id: str, at: str) -> int | None:
        """Return the seq of the run's last event that was appended at or before a time, or None.

        The time is UTC text of 26 characters. The order of events is that of `seq`: a clock that went back doesn't
        matter.
        """
        ...

    def last_position(self) -> int:
        """Return the greatest position in the store, 0 if it is empty."""
        ...

    def blob(self, digest: str) -> bytes | None:
        """Return the bytes of a blob, or None. No blob is empty: an empty value has JSON, too."""
        ...

    def blob_digests(self) -> Iterator[tuple[str, int]]:
        """(digest, bytes) of every blob; -1 for one whose stored length isn't that of its bytes."""
        ...

    def checkpoints(self, run_id: str, upto: int | None = None) -> Iterator[Checkpoint]:
        """Yield the run's checkpoints, newest first."""
        ...

    def checkpoint_runs(self) -> Iterator[str]:
        """Every run that a checkpoint is noted for, each once."""
        ...

    def save_checkpoint(self, checkpoint: Checkpoint, keep: int = 3) -> None:
        """Keep a checkpoint, relaxed, and drop older ones of its projection in the run.

        The newest `keep` stay, and the last one of each stretch of `checkpoint_stretch_events`.
        """
        ...

    def scrub(self) -> bool:
        """Make sure that no file of the store holds what was erased or purged; return whether that could be done.

        It can't while a reader, of any process, still reads from before that: then `unscrubbed` says so until
        another `scrub` gets through. Raises what `transact` raises.
        """
        ...

    def unscrubbed(self) -> bool:
        """Return whether keys were erased and `scrub` hasn't got through since."""
        ...

    def drop_checkpoints(self, run_id: str | None = None, seq: int | None = None) -> int:
        """Drop checkpoints: one, those of a run, or all. Return how many."""
        ...

    def index_rows(self, table: str, run_id: str | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of an index table (`tables.INDEX`), sorted by their key, of one run or all."""
        ...

    def heartbeat(self, run_id: str, epoch: int, lease_until: float, at: float) -> bool:
        """Extend the lease of a running run if `epoch` is still its epoch; return whether it was."""
        ...

    def check_place(self) -> None:
        """Raise StoreReplaced if what is written now would go where nobody finds it: its file is gone, or another one.

        It is asked directly before each call that leaves the process, so it must cost little.
        """
        ...

    def data_version(self) -> int:
        """A number that changes when another connection commits. Raises StoreReplaced as `check_place`."""
        ...

    def sql(self, query: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a read-only query.

        Raises InvalidArgument for anything else, and where a store knows no SQL.
        """
        ...

    def backup(self, target: str) -> None:
        """Write a copy that is a store of its own, complete and verified, while writers go on.

        The target must not exist.
        """
        ...

    def vacuum(self) -> int:
        """Give disk space back that holds nothing any more; return how many bytes. Others may read and wait meanwhile.

        It takes as much free disk as the store has. Raises what `transact` raises.
        """
        ...

    def faults(self) -> list[Fault]:
        """What of the store's tables isn't as this version makes it, and what the store's user has made beside them."""
        ...

    def info(self) -> dict[str, Any]:
        """Return what there is to know of the place: engine, versions, settings, sizes in bytes, counts."""
        ...

    def close(self) -> None:
        """Close the store; idempotent."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def read(
    reading: Reading, run_id: str, after: int = 0, upto: int | None = None, *, types: Sequence[str] | None = None
) -> Iterator[RecordedEvent]:
    """Yield what `Reading.read` yields, from the rows of `Reading.read_raw`: only events of these types are decoded."""
    wanted = None if types is None else frozenset(types)
    keys = KeyRing(reading.key)
    for row in reading.read_raw(run_id, after, upto):
        if wanted is None or (row[2] in wanted and row[3]):  # of a purged event only the type is left
            yield decode(run_id, *row, keys)


def all_heads(
    store: Store,
    *,
    status: Sequence[str] = (),
    kind: str | None = None,
    parent: str | None = None,
    tags: Mapping[str, str] | None = None,
    prefix: str = "",
    since: str | None = None,
    bad: Callable[[BadRow], None] = warn_of,
) -> Iterator[Head]:
    """Yield every head that `Store.heads` finds, page by page."""
    after: tuple[str, str] | None = None
    while page := store.heads(
        status=status,
        kind=kind,
        parent=parent,
        tags=tags,
        prefix=prefix,
        since=since,
        after=after,
        limit=read_page_heads_max,
        bad=bad,
    ):
        yield from page
        after = (page[-1].queued_at, page[-1].run_id)
