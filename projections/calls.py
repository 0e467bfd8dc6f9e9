"""The calls of a run, of tools and of models: what the log knows of each, and what the agent was told.

*History* is what the agent was told in the open attempt of a step: the ends that aren't marked `again`. *Knowledge* is
all that the log knows by now, whoever said it. A call *may have happened* if it was started, isn't repeatable, and
nobody has said that it didn't: a failure proves nothing. Args and results are held by reference (seq).

Bounded: the calls of the open step and of the last ones that failed, every call that is open or unresolved, and the
last ones that are settled; of the rest, counts. A step that failed before these tells its calls again when it is
entered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, Final, TypeAlias

from runjournal.log import events as e
from runjournal.log.authority import CallFacts, tells_unknown
from runjournal.log.base import Event, RecordedEvent
from runjournal.log.limits import settled_kept_max
from runjournal.log.policies import EFFECT_FREE, REPEATABLE, STRICTNESS

AnyStart: TypeAlias = e.ModelStarted | e.ToolStarted
AnyEnd: TypeAlias = e.ModelCompleted | e.ModelFailed | e.ToolCompleted | e.ToolFailed


@dataclass(slots=True)
class Call:
    """One call. `policy` is `model` for a model call; all `*_seq`, `began` and `latest` are seqs of events, 0 = none.

    A tool's policy may be changed between two attempts: the strictest one counts, it is `read_only` if every attempt
    was, and `on_unknown` is that of the newest.
    `status`: open, completed, failed, or unknown (it was said that nobody knows); `new` once its result was forgotten.
    `key_expires_at` is that of its first attempt that may have happened, `key_since` when that was (UTC text), and
    `key_born` when it was in seconds since which boot, if somebody said.
    `own_key`: its tool names its calls itself, so that each happens once in the scope, whatever its policy.
    `tries` failures were tried again within this ask, `refused` of them at once, since a model's answer was of no use;
    `since` is when the first attempt of the ask was started. `retry_at`: the next one isn't sent before (UTC text).
    `ended` is the newest attempt that has an outcome: an end of its own or a word, but that nobody knows is none.
    `unusable`: it happened, and its result couldn't be stored, until a person says what it was.
    `said`: somebody has said that nobody knows, since the newest attempt started. `settled`: the agent was told so, and
    that was the word about all attempts so far (on_unknown="tell"). `taken`: the step that has taken the call over from
    the one that asked for it first; `taken_seq`: when.
    `untold`: somebody has said that it happened, after the agent was told that nobody knows, or its step was over: an
    equal call is this one, and is told the result.
    `maybe` are the attempts that may have happened and aren't repeatable; `denied` are those that a person or a hook
    has denied, and whoever made one may know better; `told` is [seq, status] of each end that the
    agent was told in this attempt of the step; `tries` counts failures since then; `fresh`: started in this attempt.
    Of one of the outbox: `relay` is the claim of the relay that delivers it, {claim, until, process}, and `dispatched`
    how many deliveries were begun under its key of which nobody has said that they did nothing.
    `provider` is whom a model call was sent to, as its newest start said.
    `place`, of a model call, is its place in the order in which the step asked for such calls, 0 if nobody said.
    """

    tool: str
    policy: str
    step: str
    read_only: bool = False
    on_unknown: str = "ask"
    attempt: int = 0
    ended: int = 0
    status: str = "new"
    value_seq: int = 0
    args_seq: int = 0
    began: int = 0
    latest: int = 0
    started_at: str = ""
    key_expires_at: str | None = None
    maybe: list[int] = field(default_factory=list[int])
    tries: int = 0
    fresh: bool = False
    told: list[list[Any]] = field(default_factory=list[list[Any]])
    provider_call_id: str | None = None
    unusable: bool = False
    place: int = 0
    key_since: str = ""
    key_born: dict[str, Any] | None = None
    own_key: bool = False
    said: bool = False
    settled: bool = False
    taken: str = ""
    untold: bool = False
    taken_seq: int = 0
    denied: list[int] = field(default_factory=list[int])
    refused: int = 0
    since: str = ""
    retry_at: str | None = None
    priced: bool = False
    relay: dict[str, Any] | None = None
    dispatched: int = 0
    provider: str | None = None

    @property
    def parked(self) -> bool:
        """Return whether it is one of the outbox that a relay has given up: a person says what becomes of it."""
        return self.policy == "outbox" and self.unresolved and self.status != "open"

    @property
    def unresolved(self) -> bool:
        """Return whether the call may have happened and nobody knows: a person is asked about such a call."""
        return bool(self.maybe) and self.status != "completed" and not self.settled

    @property
    def kept(self) -> bool:
        """Return whether the call outlives its step: an equal one is this one."""
        return self.untold or self.unresolved

    @property
    def remembered(self) -> bool:
        """Return whether somebody may still say what became of the call: `kept`, or settled, by whoever made it."""
        return self.kept or (self.settled and bool(self.maybe) and self.status != "completed")

    @property
    def has_effect(self) -> bool:
        """Return whether the call happened and must not happen again."""
        return self.status == "completed" and (self.policy not in EFFECT_FREE or self.own_key)

    @property
    def sent(self) -> bool:
        """Return whether it happened or may have, and isn't to be repeated; a committed transactional call counts."""
        return bool(self.maybe) or (self.has_effect and self.policy not in EFFECT_FREE)

    def copy(self) -> Call:
        """Return the call as it is now; its lists are shared."""
        return Call(*_values(self))

    def forget(self, sent: int | None = None) -> None:
        """Forget the history of the call, because the attempt of its step is over.

        With `sent`, also forget the result of a repeatable call whose newest attempt began after that seq. Else an
        answer that couldn't be used would be returned for ever.
        """
        self.told, self.tries, self.refused, self.fresh = [], 0, 0, False
        if sent is not None and self.status == "completed" and not self.has_effect and self.latest > sent:
            self.status, self.value_seq, self.began = "new", 0, 0


_values: Final[Callable[[Call], tuple[Any, ...]]] = attrgetter(*Call.__slots__)


@dataclass(slots=True)
class Counts:
    """How many calls were started, and how many of them ended how; each call counts once, by its newest end.

    One without an end, that may be made again and whose step has completed without it, counts as failed.
    """

    started: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def in_flight(self) -> int:
        """Return how many calls were started and have no end on record."""
        return self.started - self.completed - self.failed

    def dump(self) -> dict[str, int]:
        """Return the counts as a JSON value."""
        return {"started": self.started, "completed": self.completed, "failed": self.failed}


@dataclass(slots=True)
class Calls:
    """The calls of a run; see the module.

    `step` is the id of the open step, "" if there is none. From a run that is `unowned` nothing is ever sent again, so
    that nobody is asked what became of its calls.
    """

    VERSION: ClassVar[int] = 12

    known: dict[str, Call] = field(default_factory=dict[str, Call])
    tools: Counts = field(default_factory=Counts)
    models: Counts = field(default_factory=Counts)
    step: str = ""
    unowned: bool = False
    _kept: dict[str, dict[str, None]] = field(default_factory=dict[str, dict[str, None]], compare=False, repr=False)
    _taken: dict[str, None] = field(default_factory=dict[str, None], compare=False, repr=False)

    def __post_init__(self) -> None:
        """Index the calls that are kept, by tool, and those that a step has taken over."""
        for call_id, call in self.known.items():
            self._index(call_id, call)

    # Reading.

    def taken_over(self, step: str) -> list[str]:
        """Return the ids of the calls that this step has taken over from others, in the order in which it did."""
        found = [key for key in self._taken if self.known[key].taken == self.known[key].step == step]
        return sorted(found, key=lambda key: self.known[key].taken_seq)

    def kept_elsewhere(self, tool: str, step: str) -> list[str]:
        """Return the ids of a tool's calls that are kept and aren't this step's, the oldest first."""
        found = [key for key in self._kept.get(tool, ()) if self.known[key].step != step]
        return sorted(found, key=self._age)

    def _age(self, call_id: str) -> tuple[int, str]:
        return self.known[call_id].began, call_id

    def of_step(self, step: str) -> dict[str, Call]:
        """Return the calls that a step has asked for, by id."""
        return {call_id: call for call_id, call in self.known.items() if call.step == step}

    def open(self) -> dict[str, Call]:
        """Return the calls in flight, by id, in the order of their start."""
        return dict(self._sorted(lambda call: call.status == "open"))

    def unresolved(self) -> dict[str, Call]:
        """Return the calls that may have happened and of which nobody knows, by id, in the order of their start."""
        return dict(self._sorted(lambda call: call.unresolved))

    def outbox(self) -> dict[str, Call]:
        """Return what a relay has to deliver, by id, in the order of their start: what no open step may still drop."""
        return dict(self._sorted(lambda call: call.policy == "outbox" and call.unresolved and not call.step))

    def lose(self, step: str | None = None) -> dict[str, Call]:
        """Note that no end will tell what the open model calls have cost, of all or of a step; return them by id."""
        lost = {
            call_id: call
            for call_id, call in self.known.items()
            if call.policy == "model" and call.status == "open" and not call.priced and step in (None, call.step)
        }
        for call in lost.values():
            call.priced = True
        return lost

    def _sorted(self, wanted: Callable[[Call], bool]) -> Iterator[tuple[str, Call]]:
        chosen = [(call.args_seq, call_id, call) for call_id, call in self.known.items() if wanted(call)]
        return ((call_id, call) for _, call_id, call in sorted(chosen, key=lambda item: item[:2]))

    def facts(self, call_id: str) -> CallFacts | None:
        """Return what the guarded append asks about a call; see `log/authority.py`."""
        call = self.known.get(call_id)
        if call is None:
            return None
        completed = call.status == "completed"
        is_open = not completed and call.ended < call.attempt
        unresolved = bool(call.maybe) and not (completed or call.settled)  # as `Call.unresolved`, on the way of appends
        return CallFacts(
            call.attempt,
            is_open,
            unresolved,
            tuple(call.maybe),
            call.policy,
            completed,
            call.unusable,
            call.untold,
            tuple(call.denied),
        )

    # Folding.

    def on_unowned(self, _: RecordedEvent, __: e.RunImported | e.RunOpened) -> None:
        """Note that nothing will be sent again from this run."""
        self.unowned = True

    def on_step_started(self, _: RecordedEvent, event: e.StepStarted) -> None:
        """Note the step that the next calls belong to."""
        self.step = event.id

    def on_started(self, record: RecordedEvent, event: AnyStart) -> None:
        """Add a new attempt, maybe after some that may have happened."""
        call = self.known.get(event.call_id)
        if call is None:
            call = self.known[event.call_id] = _call(event)
        elif isinstance(event, e.ToolStarted):
            _tighten(call, event)
            call.own_key = call.own_key or event.own_key
        counts = self.models if call.policy == "model" else self.tools
        if not call.latest:
            counts.started += 1
        elif call.status in ("completed", "new"):  # new: its result was forgotten
            counts.completed -= 1
        elif call.status in ("failed", "unknown"):
            counts.failed -= 1
        call.step, call.attempt, call.status, call.fresh = self.step, event.attempt, "open", True
        call.began, call.latest, call.started_at = call.began or record.seq, record.seq, record.at
        call.since, call.retry_at = call.since if call.tries else record.at, None
        call.args_seq = call.args_seq or record.seq
        if isinstance(event, e.ModelStarted):
            call.place, call.provider = event.place or 0, event.provider
        if call.policy not in REPEATABLE and not self.unowned:
            expires = event.key_expires_at if isinstance(event, e.ToolStarted) else None
            if not call.maybe:
                call.key_since = record.at
                call.key_born = event.key_born if isinstance(event, e.ToolStarted) else None
            call.key_expires_at = call.key_expires_at if call.maybe else expires
            call.maybe.append(event.attempt)
        call.said = call.settled = call.priced = False
        self._index(event.call_id, call)

    def on_dispatched(self, record: RecordedEvent, event: e.ToolDispatched) -> None:
        """Note who delivers a call of the outbox. The life of its key is counted from the first delivery."""
        call = self.known.get(event.call_id)
        if call is not None and call.unresolved:
            call.relay = {"claim": event.claim, "until": event.until, "process": event.process}
            call.since = call.since if call.tries else record.at
            call.key_expires_at = call.key_expires_at if call.dispatched else event.key_expires_at
            call.dispatched += 1

    def on_adopted(self, record: RecordedEvent, event: e.ToolAdopted) -> None:
        """Make the call one of the open step, which must ask for it again if it is entered again.

        One that is the step's already is told what the agent hadn't heard, and keeps its place among its equals.
        """
        call = self.known.get(event.call_id)
        if call is not None:
            if call.step != self.step:
                call.step, call.taken, call.taken_seq = self.step, self.step, record.seq
            call.fresh, call.untold = True, False
            self._index(event.call_id, call)

    def on_ended(self, record: RecordedEvent, event: AnyEnd) -> None:
        """Keep the outcome of an attempt.

        A failure proves nothing, unless the tool says that this attempt did nothing.
        """
        call = self.known.get(event.call_id)
        if call is None:
            return
        completed = isinstance(event, e.ModelCompleted | e.ToolCompleted)
        if call.policy == "outbox" and isinstance(event, e.ToolFailed):
            call.relay = None
            if event.did_not_happen:
                call.dispatched -= 1
            if event.again:  # it stays what it is: to be delivered
                call.tries, call.retry_at = call.tries + 1, event.retry_at
                return
        self._end(call, "completed" if completed else "failed", record.seq)
        call.unusable = isinstance(event, e.ToolCompleted) and event.result_error is not None
        if isinstance(event, e.ModelFailed | e.ToolFailed):
            call.retry_at = event.retry_at
        if isinstance(event, e.ToolFailed) and event.did_not_happen:
            call.maybe = [attempt for attempt in call.maybe if attempt != event.attempt]
        if isinstance(event, e.ModelFailed | e.ToolFailed) and event.again:
            call.tries += 1
            call.refused += event.retry_at is None
        else:
            call.tries = call.refused = 0
            if not getattr(event, "lost", False):
                call.told.append([record.seq, "completed" if completed else "failed"])
        if isinstance(event, e.ToolFailed) and tells_unknown(event):
            call.step, call.settled = self.step, event.settled
            self._end(call, "unknown", call.value_seq)
        else:
            call.ended = max(call.ended, event.attempt)
        self._index(event.call_id, call)
        if self.unowned or not call.step:
            self._settle(event.call_id, call)

    def on_resolved(self, record: RecordedEvent, event: e.ToolResolved) -> None:
        """Keep somebody's word about a call: it changes what is known, not what the agent was told.

        If the result couldn't be stored, a person says what it was. "Nothing happened", said by a person or a hook, is
        about all attempts up to this one; said by a late owner, it is about its own attempt alone. That this has
        happened he knows better than whoever said that it hasn't.
        """
        call = self.known.get(event.call_id)
        if call is not None and call.unusable and event.outcome == "happened":
            call.value_seq, call.unusable = record.seq, False
            return
        if call is not None and event.late and event.attempt in call.denied:
            call.denied.remove(event.attempt)
            call.maybe.append(event.attempt)
        late = call is not None and event.late and event.attempt in call.maybe and call.status != "completed"
        if call is None or not (call.unresolved or late):
            return
        if call.parked and event.outcome == "retry":
            self._deliver_again(call)
            return
        if event.outcome != "unknown":
            call.ended = max(call.ended, event.attempt)
        if event.outcome == "happened":
            call.untold = call.policy != "outbox" and (call.status == "unknown" or not call.step)
            self._end(call, "completed", record.seq)
        elif event.outcome == "unknown":
            call.said = True
            self._end(call, "unknown", call.value_seq)
        else:
            last = event.attempt
            if not event.late:
                call.denied += [a for a in call.maybe if a <= last]
            call.maybe = [a for a in call.maybe if (a != last if event.late else a > last)]
            if not call.maybe and call.status in ("open", "unknown"):
                self._end(call, "failed", record.seq)
        self._index(event.call_id, call)
        if not call.step:
            self._settle(event.call_id, call)

    def _deliver_again(self, call: Call) -> None:
        """Let a relay deliver a call that one has given up, as if it hadn't been tried: a person says so."""
        self.tools.failed -= 1
        call.status, call.ended, call.said = "open", call.attempt - 1, False
        call.tries, call.retry_at, call.dispatched = 0, None, 0

    def _end(self, call: Call, status: str, seq: int) -> None:
        """Count the call by its newest end; one that is known to be completed stays so."""
        if call.status == "completed":
            return
        counts = self.models if call.policy == "model" else self.tools
        counts.failed += (status != "completed") - (call.status in ("failed", "unknown"))
        counts.completed += status == "completed"
        call.status, call.value_seq = status, seq

    def _settle(self, call_id: str, call: Call) -> None:
        """Forget a call that nobody will ask for again: of what is known for sure only the counts stay."""
        if call.status != "open" and (self.unowned or not call.remembered):
            self._drop(call_id, call)

    def _drop(self, call_id: str, call: Call) -> None:
        del self.known[call_id]
        self._taken.pop(call_id, None)
        self._kept.get(call.tool, {}).pop(call_id, None)

    def _index(self, call_id: str, call: Call) -> None:
        """Keep the indexes what they were built as."""
        if call.kept:
            self._kept.setdefault(call.tool, {})[call_id] = None
        elif call.tool in self._kept:
            self._kept[call.tool].pop(call_id, None)
        if call.taken:
            self._taken[call_id] = None

    def complete_step(self) -> bool:
        """Settle the calls of a step that completed; return whether it had sent something.

        Only unresolved ones stay. One that may simply be made again, and that a process which died has left open, isn't
        in flight any more: nobody will ask for it.
        """
        sent = False
        for call_id, call in self.of_step(self.step).items() if self.step else ():
            sent = sent or call.sent
            if call.status == "open" and not call.kept:
                self._end(call, "failed", call.value_seq)
            call.forget()
            call.step = ""
            if not call.remembered:
                self._drop(call_id, call)
        self.step = ""
        self._drop_settled()
        return sent

    def _drop_settled(self) -> None:
        """Forget the oldest calls that are only remembered because they are settled, if there are too many."""
        settled = [key for key, call in self.known.items() if call.settled and not (call.step or call.kept)]
        if len(settled) > settled_kept_max:
            for call_id in sorted(settled, key=lambda key: self.known[key].latest)[:-settled_kept_max]:
                self._drop(call_id, self.known[call_id])

    def fail_step(self) -> None:
        """End the history of a step that failed, and forget the answers that came after all that was sent."""
        calls = self.of_step(self.step).values() if self.step else ()
        for call in calls:
            if call.policy == "outbox" and call.unresolved and not call.dispatched:
                call.maybe = []  # what a failed step would have had delivered is never delivered
                self._end(call, "failed", call.value_seq)
        sent = max((call.latest for call in calls if call.sent), default=0)
        for call in calls:
            call.forget(sent)
        self.step = ""

    def recallable(self, step: str) -> dict[str, dict[str, Any]]:
        """Return what a step.started can tell again of the calls of a failed step, by id; see `let_go`.

        These are the calls of which nobody can say any more what became of them. Their history is over, so what is
        known of them is all.
        """
        found: dict[str, dict[str, Any]] = {}
        for call_id, call in self.of_step(step).items():
            if not (call.remembered or call.denied):
                told = {name: value for name, default in _RECALLED.items() if (value := getattr(call, name)) != default}
                if call.maybe:
                    told["maybe"] = list(call.maybe)
                status = call.status if call.status in ("new", "completed") else "failed"
                found[call_id] = told | {"tool": call.tool, "policy": call.policy, "status": status}
        return found

    def let_go(self, step: str) -> None:
        """Forget the calls of a step that has failed long ago; one that has no end isn't in flight any more."""
        for call_id in self.recallable(step):
            call = self.known[call_id]
            if call.status == "open":
                self._end(call, "failed", call.value_seq)
            self._drop(call_id, call)

    def recall(self, step: str, calls: dict[str, dict[str, Any]]) -> None:
        """Know calls of a step again."""
        for call_id, call in calls.items():
            if call_id not in self.known:
                known: dict[str, Any] = {name: value for name, value in call.items() if name in Call.__slots__}
                known["maybe"] = list(call.get("maybe", ()))  # the event keeps its own
                known["step"] = step
                self.known[call_id] = Call(**known)
                self._index(call_id, self.known[call_id])

    def dump(self) -> dict[str, Any]:
        """Return the fold as a JSON value."""
        names = Call.__slots__
        known = {call_id: dict(zip(names, _values(call), strict=True)) for call_id, call in self.known.items()}
        return {
            "known": known,
            "tools": self.tools.dump(),
            "models": self.models.dump(),
            "step": self.step,
            "unowned": self.unowned,
        }

    @classmethod
    def load(cls, data: dict[str, Any]) -> Calls:
        """Return the fold that `dump` made this value of."""
        return cls(
            {call_id: Call(**call) for call_id, call in data["known"].items()},
            Counts(**data["tools"]),
            Counts(**data["models"]),
            data["step"],
            data["unowned"],
        )


def inherited(known: dict[str, Call], step: str) -> Calls:
    """Return the calls that a linked run begins with; they count as its own."""
    new = Calls(known, step=step)
    for call in known.values():
        counts = new.models if call.policy == "model" else new.tools
        counts.started += 1
        counts.completed += call.status in ("completed", "new")
        counts.failed += call.status in ("failed", "unknown")
    return new


_RECALLED: Final[Mapping[str, Any]] = {
    "read_only": False, "on_unknown": "ask", "own_key": False, "unusable": False, "attempt": 0, "ended": 0, "place": 0,
    "maybe": [], "value_seq": 0, "args_seq": 0, "began": 0, "latest": 0, "started_at": "", "taken": "", "taken_seq": 0,
}  # fmt: skip
"""What a step.started can tell again of a call, with what each is by default; see `log/shapes.py`, RECALLED."""


def _call(event: AnyStart) -> Call:
    if isinstance(event, e.ModelStarted):
        return Call(event.model, "model", "")
    return Call(
        event.tool,
        event.policy,
        "",
        event.read_only,
        event.on_unknown,
        provider_call_id=event.provider_call_id,
        own_key=event.own_key,
    )


def _tighten(call: Call, event: e.ToolStarted) -> None:
    """Keep the stricter of two policies: an earlier attempt that may have happened stays what it was.

    Under the first policy alone, a tool that was mended to `unsafe` would be sent again unasked.
    """
    if call.policy != "model":
        call.policy = max(call.policy, event.policy, key=STRICTNESS.index)
        call.read_only, call.on_unknown = call.read_only and event.read_only, event.on_unknown


HANDLERS: Final[Mapping[type[Event], Any]] = {
    e.RunImported: Calls.on_unowned,
    e.RunOpened: Calls.on_unowned,
    e.StepStarted: Calls.on_step_started,
    e.ModelStarted: Calls.on_started,
    e.ToolStarted: Calls.on_started,
    e.ModelCompleted: Calls.on_ended,
    e.ModelFailed: Calls.on_ended,
    e.ToolCompleted: Calls.on_ended,
    e.ToolFailed: Calls.on_ended,
    e.ToolResolved: Calls.on_resolved,
    e.ToolAdopted: Calls.on_adopted,
    e.ToolDispatched: Calls.on_dispatched,
}
