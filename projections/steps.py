"""The steps of a run: the open one, its attempts and entries, the failures nobody has got past, and what is done.

Bounded: of completed steps the last `steps_recent_max` are kept, of failed ones the last `failed_steps_max`; the rest
is in the table step_ends and in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from runjournal.log import events as e
from runjournal.log.base import Event, RecordedEvent
from runjournal.log.head import RECOVERIES
from runjournal.log.limits import failed_steps_max, steps_recent_max


@dataclass(slots=True)
class OpenStep:
    """The step that is open. `attempt` and `entry` count from 1; `since` is the seq of the attempt's first start.

    `recoveries` counts how often its process died in this attempt. `recorded`: models are answered from the record.
    `took` are the signals that this entry has seen, None before it looked; `waited` those that this attempt has waited
    for, by the id of the wait, "" where the time was over first. `timers` are its times, {id: [due_at, fired]}.
    """

    index: int
    id: str
    name: str
    kind: str
    key: str | None
    attempt: int
    entry: int
    since: int
    started_at: str
    took: list[str] | None = None
    recoveries: int = 0
    recorded: bool = False
    waited: dict[str, str] = field(default_factory=dict[str, str])
    timers: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])

    @property
    def taken(self) -> list[str]:
        """Return the ids of the signals that the step takes if it completes."""
        return [*(self.took or ()), *filter(None, self.waited.values())]

    def dump(self) -> dict[str, Any]:
        """Return the step as a JSON value."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Steps:
    """The steps of a run; see the module.

    `recent` holds [id, index, attempts, entries, place of its end] of the last completed steps, oldest first.
    `completed_count` counts those of this run alone, `failed_count` those of the runs that it goes on from, too.
    `failures` are the last [place, step id, attempt, kind, error] since a step last completed, but for those that left
    the agent. `attempts` says how often each step that isn't complete has failed, those that failed last at its end;
    `settled` the same when a step last completed. `let_go` counts the steps that have left `attempts`. `uses` says how
    often each repeated name has completed. `redo` is the step that failed last, if none was started since. `spent` is
    each `do` without a key that sent something. `last_done` is the place where a step last completed. `anew` is [step
    id, attempt, from, to] of each step whose failure left the agent: its failures between the two places, and those of
    this attempt or later, are not told again. `cut` is the place of the newest failure since a step last completed that
    `failures` has no more.
    """

    VERSION: ClassVar[int] = 6

    last_index: int = -1
    open: OpenStep | None = None
    redo: str | None = None
    completed_count: int = 0
    failed_count: int = 0
    recent: list[list[Any]] = field(default_factory=list[list[Any]])
    attempts: dict[str, int] = field(default_factory=dict[str, int])
    settled: dict[str, int] = field(default_factory=dict[str, int])
    failures: list[list[Any]] = field(default_factory=list[list[Any]])
    uses: dict[str, int] = field(default_factory=dict[str, int])
    spent: list[str] = field(default_factory=list[str])
    last_done: int = 0
    anew: list[list[Any]] = field(default_factory=list[list[Any]])
    let_go: int = 0
    cut: int = 0

    @property
    def next_index(self) -> int:
        """Return the index that the run goes on with: of the open or failed step, else the one after the last."""
        return self.last_index if self.open or self.redo else self.last_index + 1

    @property
    def completed(self) -> list[str]:
        """Return the ids of the last completed steps, oldest first."""
        return [step[0] for step in self.recent]

    def on_started(self, record: RecordedEvent, event: e.StepStarted) -> None:
        """Begin an entry; the same index again is the same step, entered again."""
        again = self.open if self.open and self.open.id == event.id and self.open.attempt == event.attempt else None
        self.open = OpenStep(
            event.index, event.id, event.name, event.kind, event.key, event.attempt, event.entry,
            again.since if again else record.seq, record.at, recoveries=again.recoveries if again else 0,
            recorded=again.recorded if again else False, waited=dict(again.waited) if again else {},
            timers={key: list(timer) for key, timer in again.timers.items()} if again else {},
        )  # fmt: skip
        self.last_index, self.redo = event.index, None

    def on_requeued(self, _: RecordedEvent, event: e.RunRequeued) -> None:
        """Count a recovery of the open step: the process that was in it is gone. Once resumed they count anew."""
        if self.open is not None and event.reason in RECOVERIES:
            self.open.recoveries += 1
        elif self.open is not None and event.reason == "resumed":
            self.open.recoveries = 0

    def on_completed(self, record: RecordedEvent, _: e.StepCompleted) -> None:
        """Complete the step, and settle the failures before it."""
        step = self.open
        if step is None:
            return
        self.open, self.redo, self.failures, self.cut, self.last_done = None, None, [], 0, record.seq
        self.completed_count += 1
        self.recent.append([step.id, step.index, step.attempt, step.entry, record.seq])
        del self.recent[:-steps_recent_max]
        self.attempts.pop(step.id, None)
        self.settled = dict(self.attempts)
        if step.kind == "repeat":
            self.uses[step.name] = self.uses.get(step.name, 0) + 1

    def on_failed(self, record: RecordedEvent, event: e.StepFailed) -> None:
        """End this attempt; the next one keeps the index."""
        step = self.open
        if step is None:
            return
        self.open, self.redo = None, step.id
        self.failed_count += 1
        self.attempts[step.id] = max(step.attempt, self.attempts.pop(step.id, 0) + 1)
        error = {name: value for name, value in event.error.items() if name != "traceback"}
        self.failures.append([record.seq, step.id, step.attempt, step.kind, error | {"transient": event.transient}])
        if len(self.failures) > failed_steps_max:
            self.cut = self.failures.pop(0)[0]
        if event.left:
            self.try_anew([[step.id, step.attempt]], record.seq + 1)

    def on_recorded(self, _: RecordedEvent, __: e.StepRecorded) -> None:
        """Note that this attempt goes on with the recorded answers of models, through crashes."""
        if self.open is not None:
            self.open.recorded = True

    def on_retry_scheduled(self, record: RecordedEvent, event: e.RunRetryScheduled) -> None:
        """End a round: the next one isn't told of the failures that left the agent."""
        self.try_anew(event.left, record.seq)

    def try_anew(self, left: list[list[Any]], place: int) -> None:
        """Note that the steps of these failures, [step id, attempt], are to be tried as if they hadn't failed."""
        for step, attempt in left:
            self.failures = [failure for failure in self.failures if failure[1] != step]
            self.anew.append([step, attempt, self.last_done, place])

    def tried_anew(self, step: str, attempt: int, place: int) -> bool:
        """Return whether a failure of a step, at a place, is one that isn't told again."""
        return any(
            step == again and place < upto and (place > since or attempt >= least)
            for again, least, since, upto in self.anew
        )

    def may_be_told(self, step: str, attempt: int, place: int, *, repeats: bool) -> bool:
        """Return whether a failure of a step, at a place, is one that the agent may have handled."""
        if place > self.cut and place > self.last_done:
            return any(failure[0] == place and failure[1] == step for failure in self.failures)
        return (place > self.last_done or not repeats) and not self.tried_anew(step, attempt, place)

    def on_signal_taken(self, _: RecordedEvent, event: e.SignalTaken) -> None:
        """Note what the open step has seen in the inbox, or waited for."""
        if self.open is not None and event.wait_id is not None:
            self.open.waited[event.wait_id] = next(iter(event.signal_ids), "")
        elif self.open is not None:
            self.open.took = [*(self.open.took or []), *event.signal_ids]

    def on_timer_set(self, _: RecordedEvent, event: e.TimerSet) -> None:
        """Add a time that the open step waits for."""
        if self.open is not None:
            self.open.timers.setdefault(event.timer_id, [event.due_at, False])

    def on_timer_fired(self, _: RecordedEvent, event: e.TimerFired) -> None:
        """Note that the agent was told that its time has come."""
        if self.open is not None and event.timer_id in self.open.timers:
            self.open.timers[event.timer_id][1] = True

    def dump(self) -> dict[str, Any]:
        """Return the fold as a JSON value."""
        parts = {name: getattr(self, name) for name in self.__slots__ if name != "open"}
        return parts | {"open": self.open.dump() if self.open else None}

    @classmethod
    def load(cls, data: dict[str, Any]) -> Steps:
        """Return the fold that `dump` made this value of."""
        values: dict[str, Any] = {**data, "open": OpenStep(**data["open"]) if data["open"] else None}
        return cls(**values)


HANDLERS: Final[Mapping[type[Event], Any]] = {
    e.StepStarted: Steps.on_started,
    e.RunRequeued: Steps.on_requeued,
    e.StepCompleted: Steps.on_completed,
    e.StepFailed: Steps.on_failed,
    e.StepRecorded: Steps.on_recorded,
    e.RunRetryScheduled: Steps.on_retry_scheduled,
    e.SignalTaken: Steps.on_signal_taken,
    e.TimerSet: Steps.on_timer_set,
    e.TimerFired: Steps.on_timer_fired,
}
