"""The outbox: what runs have written down to be done outside them, and the relay that does it.

A call of a tool of the policy `outbox` is an entry. It may be delivered once its step is complete, by whoever calls
`Journal.relay`, in whatever process. The claim is an event, appended where the relay has read the log and nowhere else,
so that of two relays one has an entry. Whoever is killed between delivering and marking has delivered: the next relay
delivers the same entry again, under the same key, by which the receiver knows it. The rules: engine.md E61 to E65.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal, NamedTuple

from runjournal.engine import failures
from runjournal.engine.callees import ToolTarget
from runjournal.engine.retry import Retry, next_try
from runjournal.engine.tools import Tool, known
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.base import Event, Json
from runjournal.log.clock import new_id, timestamp
from runjournal.log.errors import CallEnded, InvalidArgument, WrongExpectation
from runjournal.log.limits import line_tries_max
from runjournal.log.store import Unknown
from runjournal.projections.calls import Call
from runjournal.projections.state import RunState
from runjournal.writing import folding

from . import naming
from .logbook import Logbook


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """What is to be delivered: a call of `tool` with these args, under this key.

    `tries` is how often that has failed since it was queued, or since a person wanted it tried again; `queued_at` is
    UTC text.
    """

    run_id: str
    key: str
    tool: str
    args: dict[str, Json]
    tries: int
    queued_at: str


class Relayed(NamedTuple):
    """What a relay has done with an entry.

    `delivered`; `failed`, and it is tried again, not before `retry_at` (UTC text); `parked`: it failed too often, or
    its key may be forgotten, and a person has to say what becomes of it; `left`: nobody here can deliver it. `error`
    says why, in words.
    """

    run_id: str
    key: str
    tool: str
    outcome: Literal["delivered", "failed", "parked", "left"]
    error: str = ""
    retry_at: str | None = None


Deliver = Callable[[OutboxEntry], Json]


class Relay:
    """Delivers what the runs of a store have in their outbox: `deliver` an entry, else by its tool of this process.

    `lease_s` is how long a claim holds if nobody can know whether its process lives.
    """

    def __init__(self, log: Logbook, deliver: Deliver | None, lease_s: float, retry: Retry) -> None:
        if not lease_s > 0:
            raise InvalidArgument(f"lease_s: expected more than 0, got {lease_s!r}")
        self.log = log
        self.deliver = deliver
        self.lease_s = lease_s
        self.retry = retry
        self.claim = new_id(log.clock)

    def run(self) -> list[Relayed]:
        """Deliver all that is due, one entry after the other; return what was done."""
        return [done for run_id in self._runs() for done in self._of(run_id)]

    def _runs(self) -> Iterator[str]:
        """Yield the newest run of each line that may have something to deliver, in the order of their ids."""
        store = self.log.store
        for scope in sorted({Unknown._make(row).scope for row in store.index_rows("unknowns")}):
            newest = store.newest(scope) or scope
            if store.head(newest) is not None and store.imported(newest) is None:
                yield newest

    def _of(self, run_id: str) -> Iterator[Relayed]:
        """Deliver the entries of a run, in the order in which it made them: one that has to wait lets none pass."""
        tries = 0
        while tries < line_tries_max:
            state = self.log.fold(RunState, run_id)
            waiting = [(key, call) for key, call in state.calls.outbox().items() if not call.parked and not call.said]
            if not waiting or not self._may_take(waiting[0][1]):
                return
            try:
                done = self._take(state, *waiting[0])
            except WrongExpectation:  # somebody appended meanwhile, maybe another relay: look again
                tries += 1
                continue
            yield done
            if done.outcome in ("failed", "left"):
                return
            tries = 0

    def _may_take(self, call: Call) -> bool:
        now = timestamp(self.log.clock.now())
        if call.retry_at is not None and call.retry_at > now:
            return False
        if call.relay is None or (call.relay["until"] or "") <= now:
            return True
        there = call.relay["process"]
        return there is not None and owner.dead(owner.Process(**there), self.log.ownership.process)

    def _take(self, state: RunState, key: str, call: Call) -> Relayed:
        """Deliver one entry. Raises WrongExpectation, before anything is done, if the run has moved on."""
        entry, tool = self._entry(state, key, call), known().get(call.tool)
        done = partial(Relayed, state.run_id, key, call.tool)
        if tool is None and self.deliver is None:
            return done("left", f"no tool {call.tool} in this process: import the module that has it")
        if call.dispatched and tool is not None and (word := ToolTarget(tool).word(entry.args, key)) is not None:
            if word[0] == "happened":
                self._mark(state, e.ToolCompleted(key, call.attempt, word[1]), at=state.seq)
                return done("delivered")
        elif call.dispatched and call.key_expires_at is not None and self._now() >= call.key_expires_at:
            why = "it may have been delivered, and its key may have been forgotten by the receiver"
            expired: dict[str, Any] = {"type": "KeyExpired", "message": why}
            self._mark(state, e.ToolFailed(key, call.attempt, expired, transient=False), at=state.seq)
            return done("parked", f"KeyExpired: {why}")
        self.log.append(state.run_id, [self._claimed(key, tool)], expect=state.seq)
        try:
            value = self.deliver(entry) if self.deliver is not None else _called(tool, entry)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is on record and tried again
            return self._failed(state.run_id, key, tool, error)
        except BaseException as interrupt:  # nobody delivers it any more: the next relay need not wait for the lease
            self._failed(state.run_id, key, tool, interrupt)
            raise
        target = ToolTarget(Tool(_nothing, call.tool, "outbox") if tool is None else tool)
        self._mark(state, target.completed(key, call.attempt, value, cut=False)[0])
        return done("delivered")

    def _entry(self, state: RunState, key: str, call: Call) -> OutboxEntry:
        record = folding.event_at(self.log.store, state.run_id, call.args_seq - state.offset)
        event = None if record is None else folding.filled_record(self.log.store, record).event
        args: dict[str, Json] = event.args if isinstance(event, e.ToolStarted) else {}
        return OutboxEntry(state.run_id, key, call.tool, args, call.tries, call.started_at)

    def _now(self) -> str:
        return timestamp(self.log.clock.now())

    def _claimed(self, key: str, tool: Tool[..., Any] | None) -> e.ToolDispatched:
        ttl_s = Tool(_nothing, "").key_ttl_s if tool is None else tool.key_ttl_s
        process = dict(self.log.ownership.process._asdict())
        return e.ToolDispatched(key, self.claim, self._in(self.lease_s), process, self._in(ttl_s))

    def _in(self, seconds: float) -> str:
        return timestamp(self.log.clock.now() + timedelta(seconds=seconds))

    def _mark(self, state: RunState, event: Event, *, at: int | None = None) -> None:
        """Record what became of an entry. Another relay that has it meanwhile may have been faster."""
        with suppress(CallEnded):
            if at is not None:
                self.log.append(state.run_id, [event], expect=at)
                return
            naming.on_line(self.log.store, state.status.scope, lambda of: self.log.append(of, [event], expect=None))

    def _failed(self, run_id: str, key: str, tool: Tool[..., Any] | None, error: BaseException) -> Relayed:
        """Record a failure, if the claim is still this relay's: then it is tried again, or was tried often enough."""
        stored, transient = failures.error_of_body(error)
        said = f"{stored['type']}: {stored['message']}"
        nothing = tool is not None and tool.did_nothing(error)
        for _ in range(line_tries_max):
            newest = naming.named(self.log.store, self.log.head(run_id).scope)
            state = self.log.fold(RunState, newest)
            call = state.calls.known.get(key)
            if call is None or call.relay is None or call.relay["claim"] != self.claim:
                break
            again, retry_at = next_try(self.retry, key, call, error, self.log.clock.now(), refused=False)
            event = e.ToolFailed(
                key, call.attempt, stored, transient, did_not_happen=nothing, again=again,
                retry_at=retry_at if again else None,
            )  # fmt: skip
            try:
                self.log.append(newest, [event], expect=state.seq)
            except WrongExpectation:
                continue
            return Relayed(newest, key, call.tool, "failed" if again else "parked", said, event.retry_at)
        return Relayed(run_id, key, "" if tool is None else tool.name, "failed", said)


def _called(tool: Tool[..., Any] | None, entry: OutboxEntry) -> Json:
    assert tool is not None  # noqa: S101 - it was looked for before
    return tool.invoke(entry.args, entry.key)


def _nothing() -> None:
    """Stand for a tool that this process doesn't have."""
