"""One execution of a step's body, and what the log holds of the attempt: a script that is gone through in its order.

The rules: engine.md D1 to D4, and engine.md T6 for ends whose asker was cancelled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from runjournal.log import events as e
from runjournal.log.base import Event
from runjournal.projections.calls import Call
from runjournal.projections.children import LEFT, child_key


class ScriptItem(NamedTuple):
    """A line of the script: at `at`, this call or question was asked for the nth time, or its nth end was told.

    `nth` 0 of a `tell` is a word: an answer, or what somebody said of a call.
    """

    at: int
    kind: Literal["ask", "tell"]
    call_id: str
    nth: int


class Awaiting(NamedTuple):
    """What a task of a step waits for: `kind` and `id` as in run.waiting; `due_at`: when it is over all the same."""

    kind: str
    id: str
    due_at: str | None = None


@dataclass(slots=True)
class Entry:
    """An execution of a step's body. `asked` is what it asked for; `busy` is what of that is in flight or was returned.

    `functions` are those of its tools, by name; `places` says of each model call which one it is, from 1, in the order
    in which they were asked for first; `unrecorded` is the newest ask of each tool, model and question that isn't on
    record, its args or request and its place, for the text of a stop; `stands`, of a request that differs from a
    recorded one in its clocks, which one that is. `recorded` are the calls of its step that are
    on record and weren't asked for in this entry yet; `since` is the place of its start; `numbers` says from which n on
    an equal call may be free (engine.md C2).
    """

    step: str
    attempt: int
    index: int
    script: list[ScriptItem]
    cuts: set[int]
    since: int = 0
    open: bool = True
    asked: set[str] = field(default_factory=set[str])
    busy: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    asks: Counter[str] = field(default_factory=Counter[str])
    functions: dict[str, Any] = field(default_factory=dict[str, Any])
    places: dict[str, int] = field(default_factory=dict[str, int])
    stands: dict[str, str] = field(default_factory=dict[str, str])
    unrecorded: dict[str, tuple[Any, int]] = field(default_factory=dict[str, tuple[Any, int]])
    flights: dict[str, Any] = field(default_factory=dict[str, Any])
    shared: dict[str, list[tuple[Any, BaseException | None]]] = field(
        default_factory=dict[str, list[tuple[Any, BaseException | None]]]
    )
    held: set[str] = field(default_factory=set[str])
    tasks: Any = None  # that were made in it, on a loop
    awaited: list[Awaiting] = field(default_factory=list[Awaiting])

    recorded: set[str] = field(default_factory=set[str])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    _words: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    _next: int = 0  # the first line that hasn't been gone through, for all that is known
    _told: set[int] = field(default_factory=set[int])
    _left_out: float = 0

    def __post_init__(self) -> None:
        """Index the words."""
        for line in self.script:
            if line.kind == "tell" and line.nth == 0:
                self._words.setdefault(line.call_id, []).append(line.at)

    def unasked(self, known: Mapping[str, Call]) -> dict[str, Call]:
        """Return those of the calls on record that are its step's and weren't asked for in it yet."""
        return {key: call for key in self.recorded if (call := known.get(key)) is not None and call.step == self.step}

    def told(self, at: int) -> None:
        """Note that this end has been told."""
        self._told.add(at)

    def add(self, line: ScriptItem) -> None:
        """Add an end that is still to be told."""
        place = (
            len(self.script)
            if not self.script or self.script[-1].at <= line.at
            else bisect_right(self.script, line.at, key=lambda each: each.at)
        )
        self.script.insert(place, line)
        self._words.setdefault(line.call_id, []).append(line.at)
        self._told.discard(line.at)
        self._next = min(self._next, place)

    def before(self, at: float) -> ScriptItem | None:
        """Return the first of the log that comes before this and hasn't been gone through; None if all has.

        What was asked for or told stays so: whatever was gone through is never looked at again.
        """
        while self._next < len(self.script):
            line = self.script[self._next]
            gone = line.at in self._told if line.kind == "tell" else line.at < self._left_out
            if not gone and (line.kind == "tell" or self.asks[line.call_id] < line.nth):
                return line if line.at < at else None
            self._next += 1
        return None

    def leave_out(self, at: int) -> None:
        """Go through all that comes before this, asked for and told or not."""
        self._left_out = max(self._left_out, at)
        while (line := self.before(at)) is not None:
            self._told.add(line.at)
            self._next += 1

    def word(self, call_id: str) -> int | None:
        """Return where the log holds an answer, or somebody's word, about this."""
        return next((at for at in self._words.get(call_id, ()) if at not in self._told), None)


def read(events: Iterable[tuple[int, Event]]) -> tuple[list[ScriptItem], set[int]]:
    """Return the script of an attempt, from its events, each with its place; and the ends whose asker was cancelled."""
    script: list[ScriptItem] = []
    cuts: set[int] = set()
    ends, needed = Counter[str](), Counter[str]()
    last_end: dict[str, int] = {}
    for at, event in events:
        match event:
            case e.ToolStarted() | e.ModelStarted():
                _ask(script, needed, ends, at, event.call_id)
            case e.ApprovalRequested(approval_id=about) | e.TimerSet(timer_id=about):
                _ask(script, needed, ends, at, about)
            case e.ToolCompleted() | e.ModelCompleted() | e.ToolFailed() | e.ModelFailed():
                if getattr(event, "again", False) or getattr(event, "lost", False):
                    continue
                _ask(script, needed, ends, at - 1, event.call_id)  # one without a start told that nobody knows
                ends[event.call_id] += 1
                script.append(ScriptItem(at, "tell", event.call_id, ends[event.call_id]))
                last_end[event.call_id] = at
                if getattr(event, "cut", False):
                    cuts.add(at)
            case e.NoteAdded(code="cut", call_id=str(call_id)) if call_id in last_end:
                cuts.add(last_end[call_id])
            case e.ChildSpawned() | e.ChildFinished() | e.NoteAdded(code="child_refused" | "child_left"):
                _of_child(event, at, script, needed, ends, last_end, cuts)
            case e.ApprovalResolved():
                if needed[event.approval_id]:
                    script.append(ScriptItem(at, "tell", event.approval_id, 0))
            case e.TimerFired():
                script.append(ScriptItem(at, "tell", event.timer_id, 0))
            case e.SignalTaken(wait_id=str(wait_id)):
                _ask(script, needed, ends, at - 1, wait_id)
                script.append(ScriptItem(at, "tell", wait_id, 0))
            case e.ToolResolved(outcome="happened"):
                if needed[event.call_id]:
                    script.append(ScriptItem(at, "tell", event.call_id, 0))
            case _:
                pass
    return script, cuts


def _of_child(  # noqa: PLR0917 - what `read` gathers
    event: e.ChildSpawned | e.ChildFinished | e.NoteAdded,
    at: int,
    script: list[ScriptItem],
    needed: Counter[str],
    ends: Counter[str],
    last_end: dict[str, int],
    cuts: set[int],
) -> None:
    """Add what is on record of a child: that it was asked for, or something that was told, which has no start."""
    if isinstance(event, e.ChildSpawned):
        _ask(script, needed, ends, at, event.call_id or "")
        return
    about = child_key(event.child_run_id) if isinstance(event, e.ChildFinished) else event.call_id or ""
    _ask(script, needed, ends, at - 1, about)
    ends[about] += 1
    script.append(ScriptItem(at, "tell", about, ends[about]))
    last_end[about] = at
    if getattr(event, "code", None) == LEFT:
        cuts.add(at)


def _ask(script: list[ScriptItem], needed: Counter[str], ends: Counter[str], at: int, call_id: str) -> None:
    """Add an attempt of a call to the script as an ask of its own, if it was asked for anew.

    An attempt after an end that was told is asked for anew. One within the same ask isn't.
    """
    if needed[call_id] < ends[call_id] + 1:
        needed[call_id] = ends[call_id] + 1
        script.append(ScriptItem(at, "ask", call_id, needed[call_id]))
