"""`Logbook`: a store of runs, open for appending, reading and folding; `Journal` runs agents on top of it."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from runjournal.engine.media import attachment, reference_of
from runjournal.engine.price_list import LIST, OwnPrices, PriceList
from runjournal.engine.retry import Retry, checked
from runjournal.log import media
from runjournal.log.base import Event, Json, RecordedEvent
from runjournal.log.call_events import ModelStarted
from runjournal.log.cipher import new_key
from runjournal.log.clock import Clock, SystemClock, new_id, timestamp
from runjournal.log.codec import check_by, check_run_id, draft, is_utf8
from runjournal.log.errors import InvalidArgument, Purged, RunNotFound, TailRewound
from runjournal.log.head import STATUSES, Head
from runjournal.log.limits import attempt_recoveries_max, follow_poll_s, grace_s, int_max, recoveries_max
from runjournal.log.opening import open_store
from runjournal.log.owner import Process, here
from runjournal.log.shapes import TIME
from runjournal.log.store import Store, all_heads
from runjournal.projections import transcript
from runjournal.projections.requests import NotStored, rebuilt
from runjournal.projections.state import Projection, RunState, fold, foldable
from runjournal.writing import checkpoints, folding, purged
from runjournal.writing.appender import Appender, Batch
from runjournal.writing.checkpoints import CheckpointPolicy
from runjournal.writing.ownership import Ownership
from runjournal.writing.rebuild import rebuild

from . import naming
from .spending import CostReport, Ledger
from .stop_limits import StopLimits

P = TypeVar("P", bound=Projection)


class Place(NamedTuple):
    """How far a reader of the whole store has come: the position of the last event it saw, and that event's hash."""

    position: int = 0
    hash: str | None = None


DEFAULT = Retry()
"""How calls are tried again, as shipped."""
START = Place()
"""Before the first event of a store."""


class Logbook:
    """The runs of one store. Safe to share between threads; open one per process, never across a fork.

    >>> with Journal.open("memory:") as journal:
    ...     records = journal.append("r", [RunQueued(kind="demo", input={})], expect=0)
    ...     journal.state("r").status.status
    'queued'
    """

    store: Store
    """Where the runs are kept: for audits, exports and others that read it whole."""
    clock: Clock
    """The store's clock, which times and leases come from."""
    by: str
    """Who appends, in the log."""
    store_requests: bool
    """Whether the log holds what models are asked."""
    stop_limits: StopLimits
    """When a run that doesn't get on is left alone, and how long calls in flight are waited for."""
    call_retry: Retry
    """How calls are tried again that failed for now, where they don't say so themselves."""
    prices: PriceList
    """By which prices calls of models are priced when they end."""
    on_waiting: tuple[Callable[[Any], object], ...]
    """Who is told that a run waits for people: see `runjournal.telling`."""
    ownership: Ownership
    """What runs are owned with; for runjournal's own runner, and nobody else."""

    def __init__(
        self,
        store: Store,
        *,
        by: str | None = None,
        checkpoints: CheckpointPolicy | None = None,
        owned: bool = False,
        private: bool = False,
        process: Process | None = None,
        appender: type[Appender] = Appender,
        store_requests: bool = True,
        stop_limits: StopLimits | None = None,
        on_waiting: Iterable[Callable[[Any], object]] = (),
        retry: Retry | None = None,
        prices: OwnPrices | None = None,
    ) -> None:
        self.store = store
        self.prices = PriceList(prices) if prices else LIST
        self.stop_limits = (stop_limits or StopLimits()).checked()
        self.store_requests = store_requests
        self.call_retry = checked(retry, "Journal") or DEFAULT
        self.on_waiting = _hooks(on_waiting)
        self.by = f"{_user()}@{socket.gethostname()}:{os.getpid()}" if by is None else check_by(by)
        self.clock = store.clock
        self.ownership = Ownership(
            store, checkpoints or CheckpointPolicy(), process or here(), appender, private=private
        )
        self._owned = owned

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str] = "runjournal.db",
        *,
        by: str | None = None,
        clock: Clock | None = None,
        checkpoints: CheckpointPolicy | None = None,
        create: bool = True,
        allow_unsafe: bool = False,
        private: bool = False,
        store_requests: bool = True,
        recoveries_max: int = recoveries_max,
        attempt_recoveries_max: int = attempt_recoveries_max,
        grace_s: float = grace_s,
        on_waiting: Iterable[Callable[[Any], object]] = (),
        retry: Retry | None = None,
        store_id: str | None = None,
        prices: OwnPrices | None = None,
    ) -> Self:
        """Open the store at a URL: a path of a SQLite file, made if `create` and not there, or `memory:`.

        `by` is who appends, in the log. `allow_unsafe` opens a file on a network file system all the same. `private`
        makes every new run a private one: what it was told and has said can be erased later, see `erase`. Without
        `store_requests` the log holds short digests of what models are asked, and not the requests. A run whose process
        has died more than `recoveries_max` times without getting on, or `attempt_recoveries_max` times within one
        attempt of a step, waits for `resume`; a death that isn't its doing doesn't count. `grace_s` is how long calls
        in flight are waited for when their run ends, or its process gets a SIGTERM. `on_waiting` are
        hooks that tell people that a run waits for them, each called with a `telling.Waiting`. `retry` says how calls
        are tried again that failed for now and can't happen twice; without it, `Retry()` does. `store_id` names
        a new store, which is otherwise random, and refuses one that has another: keys that tools are sent under join
        it. `prices` are your own, {model, or provider/model: {"input": "3", "output": "15", …}}, for a million tokens;
        they go before those of the extra `prices`. Raises StoreUnavailable, NotAStore, NewerSchema, UnsafePlace,
        StoreIdDiffers, InvalidArgument; MissingExtra without the extra `private`.
        """
        checked(retry, "Journal.open")
        PriceList(prices)
        limits = StopLimits(recoveries_max, attempt_recoveries_max, grace_s).checked()
        store = open_store(
            os.fspath(url), clock=clock or SystemClock(), create=create, allow_unsafe=allow_unsafe, store_id=store_id
        )
        if private:
            new_key()  # to fail here, and not at the first run
        if store.index_stale():
            rebuild(store)
        if store.unscrubbed():
            store.scrub()
        return cls(
            store, by=by, checkpoints=checkpoints, owned=True, private=private, store_requests=store_requests,
            stop_limits=limits, on_waiting=on_waiting, retry=retry, prices=prices,
        )  # fmt: skip

    def close(self) -> None:
        """Close the store; idempotent. The heartbeat ends first."""
        self.ownership.close()
        if self._owned:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Appending.

    def new_run_id(self) -> str:
        """Return a fresh id: a UUIDv7, so that ids sort by time."""
        return new_id(self.clock)

    def batch(
        self,
        run_id: str,
        events: Iterable[Event],
        *,
        expect: int | None,
        by: str | None = None,
        epoch: int = 0,
        step: int | None = None,
        at: Sequence[str] | None = None,
    ) -> Batch:
        """Return an append, checked and timed now, for `append`: it can be repeated after an `OutcomeUnknown`.

        `at` sets a time for each event (UTC text with microseconds), for what happened elsewhere. Raises
        InvalidArgument, Unstorable, TooLarge.
        """
        check_run_id(run_id)
        if expect is not None and (type(expect) is not int or expect < 0):
            raise InvalidArgument(f"expect: the seq of the head from 0, or None for any, got {expect!r}"[:120])
        if step is not None and (type(step) is not int or step < 0):
            raise InvalidArgument(f"step: the index of a step from 0, or None, got {step!r}"[:120])
        if type(epoch) is not int or epoch < 0:
            raise InvalidArgument(f"epoch: a whole number from 0, got {epoch!r}"[:120])
        if isinstance(events, Event):
            raise InvalidArgument(f"events: expected a list of events, got one {type(events).__name__}: put it in [ ]")
        by = self.by if by is None else by
        if at is None:
            now = timestamp(self.clock.now())
            drafts = [draft(event, at=now, by=by, step=step) for event in events]
        else:
            items = list(events)
            _check_times(at, len(items))
            drafts = [draft(event, at=moment, by=by, step=step) for event, moment in zip(items, at, strict=True)]
        return Batch(run_id, tuple(drafts), expect, epoch)

    def append(
        self,
        run_id: str | Batch,
        events: Iterable[Event] = (),
        *,
        expect: int | None = None,
        by: str | None = None,
        epoch: int = 0,
        step: int | None = None,
    ) -> list[RecordedEvent]:
        """Append events to a run, all or nothing; they are committed when it returns. Return the records.

        `expect` is the expected version: the seq of the head that the events stand behind, 0 for a new run, None for
        whatever it is. `epoch` is that of the owner's claim, 0 for anybody else. `step` is the index of the step that
        they belong to; an owner's events belong to the open step by themselves. Instead of a run id, pass a `Batch`:
        repeating it is a no-op.

        Raises WrongExpectation, NotAllowed, InvalidTransition, StaleEpoch, CancelRequested, CallEnded, NotNewest (all
        AppendRefused); InvalidArgument, Unstorable, TooLarge; StoreBusy, StoreFull, StoreReadOnly, OutcomeUnknown.
        """
        batch = run_id
        if not isinstance(batch, Batch):
            batch = self.batch(batch, events, expect=expect, by=by, epoch=epoch, step=step)
        return self.ownership.appender.append(batch)[0]

    def append_all(self, batches: Sequence[Batch]) -> list[list[RecordedEvent]]:
        """Append to several runs, all or nothing; return the records of each batch, in their order.

        Raises what `append` raises. If one batch is refused, none is written.
        """
        if isinstance(batches, Batch):
            raise InvalidArgument("batches: expected a list of batches, got one: put it in [ ], or use append")
        return self.ownership.appender.append(*batches) if batches else []

    def attach(self, run_id: str, data: bytes, media_type: str, name: str | None = None) -> dict[str, Json]:
        """Bring bytes into a run, as anybody: an open run, to record into it; return the reference, plain JSON.

        In an agent it is `run.attach`, which says more. Raises RunNotFound, InvalidArgument, TooLarge, NotAllowed for
        an imported or erased run, Purged.
        """
        event = attachment(data, media_type, name)
        self.head(run_id)
        found = reference_of(self.append(run_id, [event])[0])
        assert found is not None  # noqa: S101 - it was written just now
        return found

    # Reading.

    def read_blob(self, ref: Json) -> bytes:
        """Return the bytes that a reference leads to, verified by its SHA-256; see `Run.read_blob`."""
        return media.opened(ref, self.store.blob, self.store.key)

    def head(self, run_id: str) -> Head:
        """Return the run's row: status, owner, head. Raises RunNotFound."""
        head = self.store.head(check_run_id(run_id))
        if head is None:
            raise RunNotFound(run_id)
        return head

    def runs(
        self,
        *,
        status: str | Sequence[str] = (),
        kind: str | None = None,
        tags: Mapping[str, str] | None = None,
        parent: str | None = None,
        since: str | None = None,
        prefix: str = "",
    ) -> Iterator[Head]:
        """Yield the runs that match, newest first, read page by page. `since` is UTC text; tags must all match.

        `status` is one or several; runs of any of them match. Raises InvalidArgument.
        """
        status = (status,) if isinstance(status, str) else status
        for word in status:
            if word not in STATUSES:
                raise InvalidArgument(f"status: expected one of {', '.join(STATUSES)}, got {word[:40]!r}")
        for name, text in (("kind", kind), ("parent", parent), ("since", since), ("prefix", prefix)):
            if text is not None and not is_utf8(text):
                raise InvalidArgument(f"{name}: expected text that is UTF-8, got {ascii(text)[:60]}")
        yield from all_heads(self.store, status=status, kind=kind, parent=parent, tags=tags, prefix=prefix, since=since)

    def latest(self, *, status: str | Sequence[str] = ()) -> Head | None:
        """Return the run that changed last, among those that no other run began; None if there is none."""
        return self.store.latest(status=(status,) if isinstance(status, str) else status)

    def events(
        self,
        run_id: str,
        *,
        after: int = 0,
        upto: int | None = None,
        types: Sequence[str] | None = None,
        blobs: bool = True,
    ) -> Iterator[RecordedEvent]:
        """Yield the run's events with after < seq <= upto, in order, read page by page.

        Values held out of line are put in place; with `blobs=False` they stay `BlobRef`s. Raises RunNotFound,
        MissingBlob, CorruptLog (a blob was changed).
        """
        self._check_seqs(run_id, after=after, upto=upto)
        for record in self.store.read(run_id, after, upto, types=types):
            yield folding.filled_record(self.store, record) if blobs else record

    def _check_seqs(self, run_id: str, **seqs: int | None) -> None:
        self.head(run_id)
        for name, seq in seqs.items():
            if seq is not None and (type(seq) is not int or not 0 <= seq <= int_max):
                raise InvalidArgument(f"{name}: expected a seq from 0 to {int_max}, got {seq!r}"[:120])

    def request(self, run_id: str, seq: int) -> Json:
        """Return what a model was asked by the `model.started` at a seq, whole, as it was sent.

        The log holds what is new in each request (`store_requests` of `open`); this puts it together, and compares it
        with the event's `request_hash`. Raises RunNotFound, MissingBlob, and InvalidArgument where there is no such
        event or its request isn't on record.
        """
        self._check_seqs(run_id, seq=seq)

        def at(place: int) -> Event | None:
            return next((record.event for record in self.events(run_id, after=place - 1, upto=place)), None)

        event = at(seq) if seq else None
        if not isinstance(event, ModelStarted):
            raise InvalidArgument(f"run {run_id}: event {seq} is no model.started")
        try:
            return rebuilt(event, seq, at)
        except NotStored as error:
            raise InvalidArgument(f"run {run_id}: {error}") from None

    def messages(
        self, run_id: str, *, at: int | None = None, compacted: bool = False, force: bool = False
    ) -> Iterator[transcript.Message]:
        """Yield the messages of the run's context after the event `at` (the newest: None).

        Those of failed attempts are left out. A retry or a fork begins with those of the run that it goes on from;
        `seq` is that of each one's own run. Raises RunNotFound, MissingBlob, and Unfoldable where one of them can't be
        read, unless `force`.
        """
        self._check_seqs(run_id, at=at)
        records = (
            folding.filled_record(self.store, record) for record in folding.context_records(self.store, run_id, at)
        )
        return transcript.messages(records if force else foldable(records), compacted=compacted)

    def follow(
        self, after: Place = START, *, run_id: str | None = None, idle_s: float | None = None
    ) -> Iterator[RecordedEvent]:
        """Yield events as they are committed, of all runs or one, in the order of the store, from behind `after`.

        It never ends; with `idle_s`, it ends when nothing has come for that long. Raises TailRewound when what was seen
        last is gone: a power cut may take relaxed commits.
        """
        place, version, waited_s = after, -1, 0.0
        while True:
            now = self.store.data_version()
            if now == version:
                if idle_s is not None and waited_s >= idle_s:
                    return
                self.clock.sleep(follow_poll_s)
                waited_s += follow_poll_s
                continue
            version = now
            self._check_place(place)
            for record in self.store.read_all(place.position):
                place, waited_s = Place(record.position, record.hash), 0.0
                if run_id is None or record.run_id == run_id:
                    yield record

    def _check_place(self, place: Place) -> None:
        if place.hash is not None:
            seen = next(iter(self.store.read_all(place.position - 1, place.position)), None)
            if seen is None or seen.hash != place.hash:
                raise TailRewound(place.position)

    # Folding.

    def state(self, run_id: str, *, force: bool = False) -> RunState:
        """Return the folded state: the newest usable checkpoint, and the events since.

        The id of the first run of a line stands for the newest one, here and wherever something is said to a run;
        `ID~1` is the first one itself. Raises RunNotFound, Unfoldable.
        """
        run_id = naming.named(self.store, run_id)
        try:
            return self.fold(RunState, run_id, force=force)
        except Purged:  # meanwhile: nothing comes behind it any more
            return self.fold(RunState, run_id, force=force)

    def replay(self, run_id: str, at: int | None = None, *, force: bool = False) -> RunState:
        """Return the folded state after the event `at` (the newest: None), from the first event on, the chain verified.

        Raises RunNotFound, InvalidArgument (no such seq), Unfoldable.
        """
        upto = purged.checked_seq(self.store, self.head(run_id), at)
        return folding.load(self.store, self.store, run_id, upto, force=force, whole=True)[0]

    def fold(self, projection: type[P], run_id: str, *, at: int | None = None, force: bool = False) -> P:
        """Fold a run into a projection, one's own or `RunState`, after the event `at` (the newest: None).

        Goes on from the newest usable checkpoint of that projection; the chain behind it is verified. A projection of
        one's own folds first what a retry or a fork goes on from, as far as that is of types of one's own (x.*). Raises
        RunNotFound, InvalidArgument, Unfoldable.
        """
        checkpoints.check_kind(projection)
        upto = purged.checked_seq(self.store, self.head(run_id), at)
        if issubclass(projection, RunState):
            return folding.load(self.store, self.store, run_id, upto, force=force)[0]  # type: ignore[return-value]  # P is RunState
        found = checkpoints.newest(self.store, projection, run_id, upto)
        state, seq, chain = found or (projection.initial(), 0, None)
        if not found:
            fold(state, folding.own_records(self.store, run_id), force=force)
        fold(state, folding.chained(self.store, run_id, seq, upto, chain), force=force)
        return state  # type: ignore[return-value]  # a checkpoint of a projection holds that projection

    def costs(
        self,
        *run_ids: str,
        by: str = "run",
        since: str | date | None = None,
        until: str | date | None = None,
        tz: str = "UTC",
    ) -> CostReport:
        """Return what these runs have cost, all of the store if none is named, added up by run, line, tree and so on.

        `by` is one of `run`, `line` (a run and its retries), `tree` (a run and all that it has begun), `model`, `tool`,
        `step`, `day`. A run that is named stands for its whole line or tree where these are added up. `since` and
        `until` bound the time at which a request ended, half open: a day, a datetime, or text of one; a day begins at
        midnight in the time zone `tz`. Each request is counted once, failed, lost and open ones included; see
        `Spending` for what isn't known. Raises RunNotFound, InvalidArgument.
        """
        return Ledger(self.store, lambda run_id: self.fold(RunState, run_id)).costs(run_ids, by, since, until, tz)

    def checkpoint(self, run_id: str, projection: type[Projection] = RunState) -> int:
        """Take a checkpoint of a projection of the run now; return its seq. Raises RunNotFound, Unfoldable."""
        head = self.head(run_id)
        state = self.fold(projection, run_id, at=head.head_seq)
        chain = checkpoints.hash_at(self.store, run_id, head.head_seq)
        if chain is not None:
            checkpoints.save(self.store, checkpoints.seal(projection, state, run_id, head.head_seq, chain), keep=3)
        return head.head_seq

    # The place.

    def sql(self, query: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return rows of a read-only query on the store's tables, see docs/reference/sql.md. Raises InvalidArgument."""
        return self.store.sql(query, params)

    def define(self, statement: str) -> None:
        """Make, change or drop a table or index of your own in the store's file, for transactional tools.

        One statement, durable: CREATE TABLE, CREATE INDEX, ALTER TABLE, DROP TABLE, DROP INDEX. `IF NOT EXISTS` makes
        it repeatable at each start. Raises InvalidArgument for anything else, and for our tables; StoreBusy, StoreFull.
        """
        self.store.transact(lambda tx: tx.define(statement), durable=True)

    def backup(self, target: str | os.PathLike[str]) -> None:
        """Write a verified copy of the store, while writers go on. The target must not exist. Raises StoreError."""
        self.store.backup(os.fspath(target))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry for this uid, as in many containers
        return f"uid{os.getuid()}"


def _check_times(at: Sequence[str], count: int) -> None:
    if len(at) != count:
        raise InvalidArgument(f"at: expected one time for each of {count} events, got {len(at)}")
    for place, moment in enumerate(at):
        TIME.check(moment, f"at[{place}]")


def _hooks(given: Iterable[Callable[[Any], object]]) -> tuple[Callable[[Any], object], ...]:
    """Return the hooks. Raises InvalidArgument for one that can't be called."""
    if callable(given):
        raise InvalidArgument("on_waiting: expected a list of functions, got one: put it in [ ]")
    hooks = tuple(given)
    for each in hooks:
        if not callable(each):
            raise InvalidArgument(f"on_waiting: expected functions of a Waiting, got {each!r:.80}")
    return hooks
