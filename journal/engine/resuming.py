"""What a run goes on from: told before it does, to people and to its agent. Pure: it reads a folded state.

The rules: engine.md G1 to G3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple

from runjournal.log.base import Json
from runjournal.log.limits import show_rows_max
from runjournal.log.owner import Moment
from runjournal.projections.calls import Call
from runjournal.projections.findings import spoken
from runjournal.projections.prompt import Fingerprints, Prompt
from runjournal.projections.state import RunState

from .callees import tool_today
from .verdict import judge

ResumeKind = Literal["crash", "reopen", "manual"]
Becomes = Literal["done", "repeat", "unknown", "person"]
KINDS: Final[dict[str, ResumeKind]] = {
    "crash": "crash",
    "reopen": "reopen",
    "code": "reopen",
    "child": "reopen",
    "manual": "manual",
}
"""How an owner has come to a run, by what its claim says: other code and a child that has ended reopen it."""
KIND_WORDS: Final[dict[ResumeKind, str]] = {
    "crash": "behind a crash",
    "reopen": "reopened",
    "manual": "because a person has asked for it",
}
_BECOMES: Final[dict[str, Becomes]] = {
    "recorded": "done",
    "run": "repeat",
    "hook": "unknown",
    "fail": "unknown",
    "tell": "unknown",
    "ask": "person",
}
BECOMES_WORDS: Final[dict[Becomes, str]] = {
    "done": "done",
    "repeat": "safe to repeat",
    "unknown": "unknown",
    "person": "waits for a person",
}


class ReportedCall(NamedTuple):
    """A call, or a question, of the step that a run goes on in, and what becomes of it.

    `done`: its outcome is returned. `repeat`: it can be made again, and does nothing twice. `unknown`: it may have
    happened; its hook or the agent is asked. `person`: nothing goes on before a person has said. `why` says why.
    """

    call_id: str
    tool: str
    policy: str
    attempt: int
    becomes: Becomes
    why: str


@dataclass(frozen=True, slots=True)
class ResumeReport:
    """What a run goes on from, by what is on record at its resume point.

    `kind`: its process died (`crash`); it was let go, or has waited (`reopen`); or a person has asked for it
    (`manual`). `why` says how it came to stand. `point` is the resume point, the `seq` of the last event that counts:
    notes and costs move no run. It was at work last at `worked_at` (UTC text), and has stood for `stood_s` since.
    `last_step` is the id of the last completed step. `next_action` says what comes. `calls` are those of the step that
    it goes on in. `code` and `prompt` say `same`, `changed`, `not recorded` or, of a prompt that nobody has named yet,
    `not compared`; of a prompt also which layers have changed.
    """

    run_id: str
    kind: ResumeKind
    why: str
    point: int
    worked_at: str
    stood_s: float
    last_step: str | None
    steps_completed: int
    next_action: str
    tasks_done: int
    tasks: int
    calls: tuple[ReportedCall, ...]
    code: str
    prompt: str

    def count(self, becomes: Becomes) -> int:
        """Return of how many calls this becomes."""
        return sum(call.becomes == becomes for call in self.calls)

    def lines(self) -> list[str]:
        """Return the report as lines of text for people."""
        done = f", {self.tasks_done} of {self.tasks} tasks done" if self.tasks else ""
        counts = ", ".join(f"{n} {word}" for key, word in BECOMES_WORDS.items() if (n := self.count(key)))
        undone = [call for call in self.calls if call.becomes != "done"]
        listed = [
            f"  {call.tool} {call.call_id}: {BECOMES_WORDS[call.becomes]}; {call.why}"
            for call in undone[:show_rows_max]
        ]
        return [
            f"run {self.run_id} goes on from event {self.point}, {KIND_WORDS[self.kind]}: {self.why}",
            f"stood still: {spoken(round(self.stood_s))}, since {self.worked_at}",
            f"last step: {self.last_step or 'none is complete'} ({self.steps_completed} completed{done})",
            f"next: {self.next_action}",
            f"calls: {counts or 'none'}",
            *listed,
            *([f"  … {len(undone) - show_rows_max} more"] if len(undone) > show_rows_max else []),
            f"code: {self.code}; system prompt: {self.prompt}",
        ]

    def as_json(self) -> dict[str, Json]:
        """Return the report as JSON."""
        return asdict(self) | {"calls": [call._asdict() for call in self.calls]}


def classified(state: RunState, at: Moment, happened: Callable[[str], bool]) -> Iterator[ReportedCall]:
    """Yield the calls and questions of the open step, and the others of which nobody knows, in the order of asking."""
    opened, questions = state.steps.open, state.approvals.known
    chosen = state.calls.unresolved() | (state.calls.of_step(opened.id) if opened else {})
    for call_id, call in sorted(chosen.items(), key=lambda item: item[1].args_seq):
        if call.status != "new":
            yield _classified(call_id, call, at, happened=happened(call_id))
    for key, question in questions.items():
        if question.decision is None:
            why = f"asked at {question.asked_at}, and nobody has answered"
            yield ReportedCall(key, f"ask {question.action}", "question", question.attempt, "person", why)
        elif opened is not None and question.step == opened.id:
            why = f"it was {question.decision}"
            yield ReportedCall(key, f"ask {question.action}", "question", question.attempt, "done", why)


def _classified(call_id: str, call: Call, at: Moment, *, happened: bool) -> ReportedCall:
    if call.status == "failed" and not call.unresolved:
        return ReportedCall(call_id, call.tool, call.policy, call.attempt, "done", "that it failed is on record")
    verdict, why = judge(call, tool_today(call.tool), at, happened=happened)
    return ReportedCall(call_id, call.tool, call.policy, call.attempt, _BECOMES[verdict], why)


def next_action(state: RunState) -> str:
    """Return what a run that goes on does next, in words."""
    opened, steps, status = state.steps.open, state.steps, state.status.status
    task = state.plan.next()
    about = f"; task: {task['title']}" if task else ""
    if status == "completed":
        return "nothing: it has completed"
    retried = "a retry: " if status in ("failed", "cancelled") else ""
    if opened is not None:
        return f"{retried}step {opened.id} is entered again (attempt {opened.attempt}, entry {opened.entry + 1}){about}"
    if steps.redo is not None:
        return f"{retried}step {steps.redo} is tried again (attempt {steps.attempts.get(steps.redo, 0) + 1}){about}"
    last = steps.completed[-1] if steps.completed else None
    return f"{retried}{f'what comes behind step {last}' if last else 'the first step'}{about}"


def prompt_words(before: Prompt, today: Fingerprints | None) -> str:
    """Return how a prompt of today compares with the pinned one, by its layers."""
    if before.fingerprint is None:
        return "not recorded"
    if today is None:
        return "not compared"
    if today.whole == before.fingerprint:
        return "same"
    return f"changed: {', '.join(before.changed_layers(today.layers)) or 'the order of its layers'}"


def code_words(before: str | None, today: str | None) -> str:
    """Return how the code of today compares with the recorded one."""
    if not before or not today:
        return "not recorded"
    return "same" if before == today else "changed"


def tasks_done(tasks: Iterable[dict[str, Any]]) -> int:
    """Return how many tasks of a plan are done."""
    return sum(task["status"] == "done" for task in tasks)
