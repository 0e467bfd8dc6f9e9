"""Sleeps and waits for signals, in the core of a run: engine.md W22 to W25."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

from runjournal.log import events as e
from runjournal.log.base import Json
from runjournal.log.clock import timestamp
from runjournal.log.limits import pause_s_max, sleep_s_max

from . import failures as f
from .calls import Caller
from .commands import Verb
from .requests import copied
from .script import Awaiting, Entry, ScriptItem


class Timers:
    """The sleeps of one run, and its waits for signals: a time is on record when it is asked for first."""

    def __init__(self, caller: Caller) -> None:
        self.core = caller.core
        self.order = caller.order
        self.caller = caller
        self.waiter = caller.waiter

    # Sleeping.

    def check_sleep(self, for_s: float | None, until: datetime | None) -> None:
        """Raise WrongArgument for what is no time to sleep."""
        if (for_s is None) == (until is None):
            raise f.WrongArgument("run.sleep: expected one of for_s= (seconds) and until= (a datetime with its zone)")
        if for_s is not None:
            _check_seconds("run.sleep: for_s", for_s)
        given = cast("object", until)  # callers aren't all typed
        if until is not None and (not isinstance(given, datetime) or given.tzinfo is None):
            raise f.WrongArgument(f"run.sleep: until: expected a datetime with its zone (tzinfo), got {given!r}")

    def sleep(self, for_s: float | None, until: datetime | None) -> Verb[None]:
        """Sleep until a time. Whoever is entered again is told the time that is on record, whatever he asks for."""
        entry = self.caller.entry()
        timer_id = self._asked(entry, "sleep", {} if for_s is None else {"for_s": for_s})
        due = until.astimezone(UTC) if until is not None else self._after(for_s or 0.0)
        known = self._known(timer_id)
        if known is None and self._alone(entry) and self._left_s(due) > pause_s_max:
            waits = [{"kind": "timer", "id": timer_id}]
            yield from self.waiter.wait(waits, e.TimerSet(timer_id, timestamp(due)), due_at=timestamp(due))
        if known is None:
            yield from self.core.append(e.TimerSet(timer_id, timestamp(due)))
            known = timestamp(due), False
        if not known[1]:
            yield from self._until(entry, timer_id, known[0])
            at = yield from self.core.append(e.TimerFired(timer_id))
            entry.add(ScriptItem(at, "tell", timer_id, 0))
        yield from self._told(entry, timer_id)

    def _until(self, entry: Entry, timer_id: str, due_at: str) -> Verb[None]:
        """Wait for a time: a short one in this process, a longer one without it once nothing else can go on."""
        left_s = self.waiter.left_s(due_at)
        if left_s > pause_s_max:
            yield from self.waiter.wait_for(entry, Awaiting("timer", timer_id, due_at))
        elif left_s > 0:
            yield from self.caller.sender.slept(left_s)

    # Signals.

    def check_wait(self, name: str, timeout_s: float | None) -> None:
        """Raise WrongArgument for what can't be waited for."""
        if not name:
            raise f.WrongArgument("run.wait_signal: the name of the signal is empty")
        f.check_name(name, "the name of a signal")
        if timeout_s is not None:
            _check_seconds("run.wait_signal: timeout_s", timeout_s)

    def wait_signal(self, name: str, timeout_s: float | None) -> Verb[Json]:
        """Return the payload of the oldest signal of this name that nothing has taken; None if the time is over first.

        Whoever is entered again is told the same.
        """
        entry = self.caller.entry()
        wait_id = self._asked(entry, f"wait_signal {name}", {})
        if self._waited(wait_id) is None:
            due_at = yield from self._bound(wait_id, timeout_s)
            while (found := self._oldest(name)) is None and (due_at is None or self.waiter.left_s(due_at) > 0):
                yield from self.waiter.wait_for(entry, Awaiting("signal", name, due_at))
            taken = [] if found is None else [found]
            at = yield from self.core.append(e.SignalTaken(taken, wait_id))
            entry.add(ScriptItem(at, "tell", wait_id, 0))
        yield from self._told(entry, wait_id)
        return self._payload(self._waited(wait_id) or "")

    def _bound(self, wait_id: str, timeout_s: float | None) -> Verb[str | None]:
        """Return until when a signal is waited for, which is on record from the first time it was."""
        known = self._known(wait_id)
        if known is not None or timeout_s is None:
            return None if known is None else known[0]
        due_at = timestamp(self._after(timeout_s))
        yield from self.core.append(e.TimerSet(wait_id, due_at))
        return due_at

    def _oldest(self, name: str) -> str | None:
        state = self.core.state
        taken = state.steps.open.taken if state.steps.open else []
        return next((key for _, key, of in state.inbox.signals if of == name and key not in taken), None)

    def _waited(self, wait_id: str) -> str | None:
        opened = self.core.state.steps.open
        return None if opened is None else opened.waited.get(wait_id)

    def _payload(self, signal_id: str) -> Json:
        at = next((signal[0] for signal in self.core.state.inbox.signals if signal[1] == signal_id), None)
        event = None if at is None else self.core.lineage.event_at(at)
        return copied(event.payload) if isinstance(event, e.SignalReceived) else None

    # Both.

    def _asked(self, entry: Entry, what: str, args: Json) -> str:
        """Return the id of what is asked for now: equal ones of a step are told apart by their order."""
        asked_id = self.caller.free_id(entry, what, args)
        entry.busy[asked_id] = what, ""
        entry.asks[asked_id] += 1
        entry.asked.add(asked_id)
        self.core.driver.settle()
        return asked_id

    def _told(self, entry: Entry, asked_id: str) -> Verb[None]:
        """Wait for its turn, if it has been told of."""
        if (word := entry.word(asked_id)) is not None:
            yield from self.order.turn(entry, word, asked_id)
            self.order.tell(entry, word)

    def _known(self, timer_id: str) -> tuple[str, bool] | None:
        opened = self.core.state.steps.open
        timer = None if opened is None else opened.timers.get(timer_id)
        return None if timer is None else (str(timer[0]), bool(timer[1]))

    def _after(self, seconds: float) -> datetime:
        return self.core.lineage.clock.now() + timedelta(seconds=seconds)

    def _left_s(self, due: datetime) -> float:
        return (due - self.core.lineage.clock.now()).total_seconds()

    def _alone(self, entry: Entry) -> bool:
        return self.core.driver.alone() and not entry.flights


def _check_seconds(what: str, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= sleep_s_max:
        most = f"{sleep_s_max:.0f}"
        raise f.WrongArgument(f"{what}: expected a number of seconds from 0 to {most}, got {value!r}")
