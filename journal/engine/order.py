"""The order of telling: what the log holds is told as it was told before, and all of it before anything new.

The rules: engine.md D1 to D4 (divergence) and engine.md H1.
"""

from __future__ import annotations

from runjournal.log.limits import left_out_wait_s
from runjournal.projections.shell import show_calls, show_events

from . import failures as f
from .commands import Verb
from .core import Core
from .differing import asks_otherwise, what_differs
from .script import Entry


class TellingOrder:
    """What this call of the agent was told, and what it is told next."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.driver = core.driver
        self.heard: set[int] = set()  # ends and failures that this call of the agent was told, by their place

    def wait_s(self) -> float:
        """Return how long to wait for others: not at all if there are none."""
        return 0.0 if self.driver.alone() else left_out_wait_s

    # What comes before anything new.

    def idle(self, entry: Entry) -> bool:
        """Return whether nothing is in flight, waits for its turn, or was just told, and no thread is at work."""
        return self.driver.calm and not entry.flights and not entry.held and not self.driver.working

    def left_out(self, entry: Entry, *, calls: bool = True, questions: bool = True) -> set[str]:
        """Return what this attempt has on record and this entry hasn't asked for: sent calls, and questions."""
        state, found = self.core.state, set[str]()
        if calls:
            for key in entry.recorded:
                call = state.calls.known.get(key)
                if call is not None and call.step == entry.step and call.fresh and call.sent:
                    found.add(key)
            if state.children.begun and entry.attempt == (state.steps.open.attempt if state.steps.open else 0):
                found |= state.children.asked().keys() - entry.asked
        if questions:
            mine = (entry.step, entry.attempt)
            for key, asked in state.approvals.known.items():
                if key not in entry.asked and (asked.step, asked.attempt) == mine:
                    found.add(key)
        return found

    def stop_if_left_out(self, entry: Entry, where: str, *, calls: bool = True, questions: bool = True) -> None:
        """Stop the run if this entry leaves out what was sent or asked: that comes before anything new."""
        self.core.stop_if_blind(where)
        if left := self.left_out(entry, calls=calls, questions=questions):
            state, run_id, db = self.core.state, self.core.lineage.run_id, self.core.lineage.store_option
            calls_left = {call.tool for key, call in state.calls.known.items() if key in left}
            calls_left |= {f"the child {child.kind}" for key, child in state.children.asked().items() if key in left}
            questions_left = [question for key, question in state.approvals.known.items() if key in left]
            names = [*sorted(calls_left), *sorted({f"the question {each.action!r}" for each in questions_left})]
            see = [show_calls(run_id, db=db)] * bool(calls_left)
            since = min((each.asked_seq for each in questions_left), default=0) - state.offset
            see += [show_events(run_id, since, db=db)] * (since > 0)
            opened = state.steps.open
            asks = asks_otherwise(self.core, entry) and not (opened is not None and opened.recorded)
            self.core.halt(
                f.StepDiverged(
                    f"{', '.join(names)} was sent or asked before, in this attempt of step "
                    f"{entry.step}, and was not asked for in the same way before {where}: what differs from one time "
                    "to the next (a clock, a random number, a uuid, a file) is made once, in a step before this one, "
                    "`x = run.do(name, make)`; this step needs what was sent and answered"
                    f"{what_differs(self.core, entry, left)}",
                    entry.step,
                    "request" if asks else "step",
                    tuple(see),
                )
            )

    def nothing_left_out(
        self, entry: Entry, where: str, call_id: str, *, calls: bool = True, questions: bool = True, told: bool = True
    ) -> Verb[None]:
        """Wait until all that is recorded has been asked for and told; then nothing may be left out.

        `told=False` waits for what was sent, and not until each end has been told.
        """

        def all_there() -> bool:
            left = self.left_out(entry, calls=calls, questions=questions)
            return self.driver.calm and not left and not (told and entry.before(float("inf")))

        if all_there():
            self.core.alive()
            if self.core.blind:
                self.core.stop_if_blind(where)
            return
        entry.held.add(call_id)
        try:
            yield from self.core.until(all_there, self.wait_s())
            self.stop_if_left_out(entry, where, calls=calls, questions=questions)
        finally:
            entry.held.discard(call_id)
            self.driver.ring()

    def turn(self, entry: Entry, at: int, call_id: str) -> Verb[None]:
        """Wait for the turn of an end: all ends before it in the log have been asked for and told.

        One that isn't asked for in time is left out, and no longer waited for.
        """
        if self.driver.calm and not entry.before(at):
            self.core.alive()
            return
        entry.held.add(call_id)
        try:
            came = yield from self.core.until(
                lambda: self.driver.calm and not entry.before(at), self.wait_s(), (entry.since, at)
            )
            if not came:
                entry.leave_out(at)
        finally:
            entry.held.discard(call_id)
            self.driver.ring()

    def tell(self, entry: Entry, at: int) -> None:
        """Note that this end has been told."""
        self.heard.add(at)
        entry.told(at)
        self.driver.settle()
