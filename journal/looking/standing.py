"""Why a run isn't moving, and the exact line to type: one table, the first row that fits counts.

`docs/how-to/a-run-stands-still.md` has the same rows in prose.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from runjournal.children import failed_below, moved
from runjournal.engine.waits import awaited_by
from runjournal.family import below_line
from runjournal.log import owner
from runjournal.log.clock import timestamp
from runjournal.log.errors import JournalError
from runjournal.log.head import Head
from runjournal.log.limits import refs_shown_max, show_rows_max
from runjournal.logbook import Logbook
from runjournal.projections import shell
from runjournal.projections.findings import spoken
from runjournal.projections.shell import command
from runjournal.projections.state import RunState
from runjournal.projections.status import STANDSTILLS
from runjournal.questions import OpenQuestion, of_run

from .known_agents import agent_option
from .stops import Differs, stopped_at


class Way(NamedTuple):
    """A line to type, and what it is for; `moves`: it changes the run, else it only leads to where it goes on."""

    why: str
    command: str
    moves: bool = True


@dataclass(frozen=True, slots=True)
class Stand:
    """What is known of a run that stands.

    `gone`: it is running, and its owner isn't there any more. `claimed_at` is when that one began, `lease_s` how long
    its lease still runs, if that can be known here. `newest` is the newest run of its line. `elsewhere`: it was brought
    in from another store, where it lives. `now` is UTC text. `agent` names its agent, for a command line. `below` is
    what people are asked by the runs that it has begun, where it waits for one; `moved`: one of these has ended, or may
    be gone on with. `failed` are those whose failure it was told since a step was last complete, and that still stands.
    """

    head: Head
    state: RunState
    questions: list[OpenQuestion]
    gone: bool
    claimed_at: str
    lease_s: float | None
    newest: str
    elsewhere: bool
    now: str
    agent: str
    differs: Differs | None = None
    below: tuple[OpenQuestion, ...] = ()
    moved: bool = False
    failed: tuple[str, ...] = ()

    @property
    def run_id(self) -> str:
        """Return the run."""
        return self.head.run_id

    def asked(self, kind: str) -> bool:
        """Return whether a person is asked something of this kind."""
        return any(each.kind == kind for each in self.questions)

    def waits_for(self, *kinds: str) -> list[dict[str, Any]]:
        """Return what the run waits for, of these kinds, and hasn't got."""
        return [wait for wait in self.state.status.waits if wait["kind"] in kinds and not self.state.answered(wait)]

    @property
    def then(self) -> str:
        """Return what becomes of a call that is to be sent again."""
        match self.head.status:
            case "completed":
                return "the run has completed, so nothing is sent"
            case "failed" | "cancelled":
                return "a retry sends it again, when it is asked for"
            case _:
                return "it is sent again"

    @property
    def ended(self) -> str:
        """Return the error that the run, or its round, ended with, in one line."""
        error = self.state.status.error
        return f"{error['type']}: {error['message']}" if error else ""

    def go_on(self, verb: str, why: str, *, options: str = "", moves: bool = True) -> Way:
        """Return the way of having it run here: `resume` or `recover`, with its agent."""
        return Way(why, command(verb, self.run_id, options=f"{options}--agent {shlex.quote(self.agent)}"), moves)

    def do(self, verb: str, why: str, *args: str, options: str = "", moves: bool = True) -> Way:
        """Return the way of another command on the run."""
        return Way(why, command(verb, self.run_id, *args, options=options), moves)


@dataclass(frozen=True, slots=True)
class StandingKind:
    """A way in which a run can stand still: its word, when it is that, why it doesn't move, and what to type."""

    word: str
    fits: Callable[[Stand], bool]
    why: Callable[[Stand], str]
    ways: Callable[[Stand], Iterable[Way]]


class Standing(NamedTuple):
    """How a run stands: the word for it, why it doesn't move, and what to type, the best first."""

    word: str
    why: str
    ways: list[Way]


def standing(stand: Stand) -> Standing:
    """Return how a run stands, by the table."""
    kind = next(each for each in KINDS if each.fits(stand))
    return Standing(kind.word, kind.why(stand), list(kind.ways(stand)))


def word_of(log: Logbook, head: Head, state: RunState | None = None) -> str:
    """Return the one word for how a run stands, "" for one whose log can't be folded; its state may be passed."""
    try:
        if state is None and head.status not in ("waiting", "failed", "queued"):  # the others are told by their heads
            state = RunState.initial()
        stand = stand_of(log, head, state)
    except JournalError:
        return ""
    return next(each.word for each in KINDS if each.fits(stand))


def stand_of(log: Logbook, head: Head, state: RunState | None = None, *, agent: str = "") -> Stand:
    """Return what is known of a run; `agent` is [KIND=]module:function, "" for a placeholder. It reads only."""
    state = log.fold(RunState, head.run_id, at=head.head_seq) if state is None else state
    running, here = head.status == "running", owner.here()
    claims = log.store.read(head.run_id, types=("run.claimed",)) if running else ()
    waits = any(wait["kind"] == "child" for wait in state.status.waits)
    known = running and head.lease_until is not None and head.boot_id == here.boot_id
    return Stand(
        head,
        state,
        of_run(log, head, state),
        running and owner.gone(head, here, log.clock),
        max((record.at for record in claims), default=""),
        (head.lease_until or 0.0) - log.clock.boottime_s() if known else None,
        log.store.newest(head.scope) or head.run_id,
        log.store.imported(head.run_id) is not None,
        timestamp(log.clock.now()),
        agent_option(agent, head.kind),
        stopped_at(log, state),
        tuple(each for one in below_line(log, head.run_id) for each in of_run(log, one)) if waits else (),
        waits and moved(log, state),
        failed_below(log, state) if head.status == "failed" else (),
    )


# --- what to type --------------------------------------------------------------------------------------------------


def _answers(stand: Stand) -> Iterable[Way]:
    """Each answer to each question, a line each."""
    for each in stand.questions[:show_rows_max]:
        what = _named(each)
        if each.kind == "approval":
            if not each.choices:
                yield stand.do("approve", f"say yes to {what}", each.id)
            for choice in each.choices:
                chosen = f"--choice {shlex.quote(choice)}"
                yield stand.do("approve", f"say {choice!r} to {what}", each.id, options=chosen)
            yield stand.do("reject", f"say no to {what}", each.id)
            if edit := shell.edit(stand.run_id, each.id, each.args):
                yield Way("say yes, with other args: change them in this line first", edit)
        else:
            words = "its result behind it: --result JSON"
            nothing = f"{what} did nothing" + (f", and {each.running} has ended: it won't" if each.running else "")
            yield stand.do("resolve", f"{what} has happened; {words}", each.id, "happened")
            yield stand.do("resolve", f"{nothing}; {stand.then}", each.id, "did-not-happen")
            if stand.head.status != "completed":
                yield stand.do("resolve", f"whatever became of {what}: {stand.then}", each.id, "retry")


def _named(each: OpenQuestion) -> str:
    """What a person is asked about, with its args in short."""
    return shell.asked(repr(each.action) if each.kind == "approval" else each.action, each.args)


def _wanted(each: OpenQuestion) -> str:
    return f"one of {', '.join(each.choices)}, or a no," if each.choices else "a yes or no"


def _terms(each: OpenQuestion) -> str:
    """How bad a wrong yes is, and until when it may be said, where that was told."""
    risk = f", risk {each.risk}" if each.risk else ""
    return f"{risk}, until {each.expires_at}" if each.expires_at else risk


def _asked(stand: Stand) -> str:
    """What people are asked, in words."""
    said = [
        f"{_wanted(each)} to {_named(each)}{_terms(each)}"
        if each.kind == "approval"
        else f"whether {_named(each)} has happened"
        + (f" (its body may still be running in {each.running}, and may yet act)" if each.running else "")
        for each in stand.questions
    ]
    return "; ".join(said[:show_rows_max]) + "; …" * (len(said) > show_rows_max)


def _owned(stand: Stand) -> str:
    head = stand.head
    lease = "" if stand.lease_s is None else f", its lease runs for {spoken(round(max(0.0, stand.lease_s)))}"
    return f"{head.owner}, process {head.pid} on {head.host}, since {stand.claimed_at}{lease}"


def _anew(stand: Stand) -> Iterable[Way]:
    why = "a new run from the beginning; calls that are the same, in steps of the same names, aren't sent again"
    yield stand.do("restart", why)


def _failed(stand: Stand) -> Iterable[Way]:
    left = ", ".join(f"{step} (attempt {attempt})" for step, attempt in stand.state.status.left[:show_rows_max])
    tried = f"; what failed is tried again: {left}" if left else ""
    for child in stand.failed:
        yield Way(f"have its child {child} go on from where it ended; then retry this one", command("retry", child))
    yield stand.do("retry", f"a new run that goes on from here{tried}")
    yield from _anew(stand)


def _code(stand: Stand) -> Iterable[Way]:
    """What moves a run that today's code has stopped: it depends on what of it differs."""
    yield stand.go_on("resume", "once the code asks again for what is on record, mended or as it was before: go on")
    differs, opened = stand.differs, stand.state.steps.open
    if differs is not None and differs.what == "request":
        recorded = "go on with the answers on record in its step, whatever today's code asks: nothing is sent twice"
        yield stand.go_on("resume", recorded, options="--recorded ")
    yield from _answers(stand)
    if differs is None:
        yield from _given_up(stand)
        return
    if opened is not None and differs.what != "plan":
        yield stand.do("abandon-step", f"try step {opened.id} anew, by today's code; {_again(differs, opened.id)}")
    why = f"a new run that does step {differs.step} and what is behind it by today's code; {_again(differs)}"
    yield Way(why, command("fork", differs.run_id, options=f"--at {differs.at}"))
    yield stand.do("cancel", "end it: `restart` then begins it anew, by today's code")
    if differs.sent:
        yield stand.do("show", "what was sent, and what came back", options="--calls", moves=False)


def _again(differs: Differs, step: str | None = None) -> str:
    """What is sent once more, in words; of one step, or of all that is done again."""
    sent = [call for call in differs.sent if step in (None, call.step)]
    named = [shell.asked(call.tool, call.args) for call in sent[:refs_shown_max]]
    more = [f"and {len(sent) - refs_shown_max} more"] * (len(sent) > refs_shown_max)
    return f"what was sent in it can be sent again: {'; '.join([*named, *more])}" if sent else "nothing was sent in it"


def _given_up(stand: Stand) -> Iterable[Way]:
    """The ways that give up what the open step has done, and the whole run."""
    if stand.state.steps.open is not None:
        step = stand.state.steps.open.id
        yield stand.do("abandon-step", f"try step {step} anew, by today's code; what it has sent can be sent again")
    yield stand.do("fork", "a new run behind the last step that is complete; what was sent since can be sent again")
    yield from _ends(stand)


def _waits(stand: Stand) -> Iterable[Way]:
    yield from _answers(stand)
    if stand.state.status.woken:
        yield stand.go_on("recover", "some of it has come: go on with that")
    yield from _ends(stand)


def _ends(stand: Stand) -> Iterable[Way]:
    yield stand.do("cancel", "end it; a retry can still go on from there")


def _signals(stand: Stand) -> Iterable[Way]:
    for wait in stand.waits_for("signal"):
        yield stand.do("signal", "send what it waits for; with what it says: --payload JSON", wait["id"])
    yield from _ends(stand)


def _children(stand: Stand) -> Iterable[Way]:
    for each in stand.below:
        yield from _answers(replace(stand, head=stand.head._replace(run_id=each.run_id), questions=[each]))
    for wait in stand.waits_for("child"):
        yield Way("see why that run isn't moving", command("explain", wait["id"]), moves=False)
    yield from _ends(stand)


def _stopping(stand: Stand) -> Iterable[Way]:
    if stand.state.status.cancel != "now":
        yield stand.do("cancel", "stop it at its next call, not behind its step", options="--now")
    yield stand.do("tail", "watch it end", moves=False)


_lives: Final = "it lives in another store, and goes on there"
_never: Final = "it happened in another tool, and was imported: it is there to be looked at"
_recorded: Final = "it is open: it happens elsewhere, and is recorded here as it happens; nobody owns it"


KINDS: Final[tuple[StandingKind, ...]] = (
    StandingKind(
        "purged",
        lambda s: s.head.status == "purged",
        lambda s: f"it was {s.state.status.was}, and was purged ({s.state.status.why}): this is all that is left of it",
        lambda s: [s.do("show", "what it was, and what it has cost", moves=False)],
    ),
    StandingKind(
        "imported",
        lambda s: s.head.status == "imported",
        lambda _: _never,
        lambda s: [s.do("show", "what was said in it", options="--messages", moves=False)],
    ),
    StandingKind(
        "open",
        lambda s: s.head.status == "open" and not s.elsewhere,
        lambda _: _recorded,
        lambda s: [
            s.do("tail", "watch what is recorded", moves=False),
            s.do("fork", "a new run that goes on from what was recorded so far"),
        ],
    ),
    StandingKind(
        "elsewhere",
        lambda s: s.elsewhere,
        lambda _: _lives,
        lambda s: [s.do("fork", "a new run that goes on from it here; what it has sent may be sent again")],
    ),
    StandingKind(
        "superseded",
        lambda s: s.newest != s.run_id,
        lambda s: f"it is {s.head.status}, and its line went on as {s.newest}",
        lambda s: [Way("see how that one stands", command("explain", s.newest), moves=False)],
    ),
    StandingKind(
        "completed",
        lambda s: s.head.status == "completed",
        lambda s: (
            "it has completed: "
            + (
                f"nothing is sent any more, but nobody has said {_asked(s)}"
                if s.questions
                else "there is nothing to do"
            )
        ),
        lambda s: [*_answers(s), s.do("show", "its output, and what it did", moves=False)],
    ),
    StandingKind(
        "budget",
        lambda s: s.head.status == "failed" and s.state.status.cause in ("budget", "step_cap"),
        lambda s: f"its budget is used up: {s.ended}",
        lambda s: [*_answers(s), s.do("retry", "a new run that goes on from here, with the same budget for itself")],
    ),
    StandingKind(
        "unanswered",
        lambda s: s.head.status == "failed" and bool(s.questions),
        lambda s: f"it has failed, and nobody has said {_asked(s)}: {s.ended}",
        lambda s: [*_answers(s), *_failed(s)],
    ),
    StandingKind(
        "failed",
        lambda s: s.head.status == "failed",
        lambda s: f"it has failed ({s.state.status.cause}): {s.ended}",
        _failed,
    ),
    StandingKind(
        "cancelled",
        lambda s: s.head.status == "cancelled",
        lambda _: "it was cancelled",
        lambda s: [*_answers(s), s.do("retry", "a new run that goes on from here"), *_anew(s)],
    ),
    StandingKind(
        "stopping",
        lambda s: s.head.status == "running" and not s.gone and s.head.cancel_requested is not None,
        lambda s: f"a cancel was requested ({s.head.cancel_requested}), and its owner hasn't obeyed yet: {_owned(s)}",
        _stopping,
    ),
    StandingKind(
        "owned",
        lambda s: s.head.status == "running" and not s.gone,
        lambda s: f"it is running: {_owned(s)}" + (f"; it has asked for {_asked(s)}" if s.questions else ""),
        lambda s: [*_answers(s), s.do("tail", "watch it", moves=False), *_ends(s)],
    ),
    StandingKind(
        "abandoned",
        lambda s: s.head.status == "running",
        lambda s: (
            f"its owner is gone: {_owned(s)}"
            + ("; a cancel was requested, and whoever recovers it ends it" if s.head.cancel_requested else "")
        ),
        lambda s: (
            [s.do("cancel", "end it now, as was requested"), s.go_on("recover", "the same: it is cancelled, not run")]
            if s.head.cancel_requested
            else [s.go_on("recover", "go on where it was"), *_answers(s), *_ends(s)]
        ),
    ),
    StandingKind(
        "mistake",
        lambda s: s.head.status == "queued" and bool(s.state.status.why),
        lambda s: f"its agent's code has met a mistake, and was left with nothing failed: {s.state.status.why}",
        lambda s: [s.go_on("recover", "once that is mended: it goes on where it was"), *_answers(s), *_ends(s)],
    ),
    StandingKind(
        "queued",
        lambda s: s.head.status == "queued",
        lambda _: "it is queued, and nobody runs it",
        lambda s: [s.go_on("recover", "run it here"), *_answers(s), *_ends(s)],
    ),
    StandingKind(
        "due",
        lambda s: s.head.status == "scheduled_retry" and (s.head.due_at or "") <= s.now,
        lambda s: f"its round {s.state.status.round} is due since {s.head.due_at}: {s.ended}",
        lambda s: [s.go_on("recover", "run it here"), *_ends(s)],
    ),
    StandingKind(
        "backoff",
        lambda s: s.head.status == "scheduled_retry",
        lambda s: f"its round {s.state.status.round} is due at {s.head.due_at}, not before: {s.ended}",
        lambda s: [s.go_on("recover", "run it here, then", moves=False), *_ends(s)],
    ),
    StandingKind(
        "code",
        lambda s: s.state.stands == "code",
        lambda s: f"{STANDSTILLS['code']}: {s.state.status.why}",
        _code,
    ),
    StandingKind(
        "recoveries",
        lambda s: s.state.stands == "recoveries",
        lambda s: f"{STANDSTILLS['recoveries']}: {s.state.status.why}",
        lambda s: [s.go_on("resume", "once what ends its process is mended"), *_given_up(s)],
    ),
    StandingKind(
        "overdue",
        lambda s: s.head.status == "waiting" and s.head.due_at is not None and s.head.due_at <= s.now,
        lambda s: f"the time of what it waited for was over at {s.head.due_at}, and nobody runs it",
        lambda s: [s.go_on("recover", "run it here"), *_ends(s)],
    ),
    StandingKind(
        "answers",
        lambda s: s.asked("approval") and s.asked("call"),
        lambda s: f"it waits for people to say {_asked(s)}",
        _waits,
    ),
    StandingKind(
        "approval",
        lambda s: s.asked("approval"),
        lambda s: f"it waits for {_asked(s)}",
        _waits,
    ),
    StandingKind(
        "call",
        lambda s: s.asked("call"),
        lambda s: f"nobody knows {_asked(s)}, and it waits for somebody to say so",
        _waits,
    ),
    StandingKind(
        "answered",
        lambda s: s.state.status.woken or s.moved,
        lambda _: "what it waited for has come, and nobody runs it",
        lambda s: [s.go_on("recover", "run it here"), *_ends(s)],
    ),
    StandingKind(
        "signal",
        lambda s: bool(s.waits_for("signal")),
        lambda s: f"it waits for {awaited_by(s.state)}",
        _signals,
    ),
    StandingKind(
        "timer",
        lambda s: bool(s.waits_for("timer")) and s.head.due_at is not None,
        lambda s: f"it goes on at {s.head.due_at}, not before: it waits for {awaited_by(s.state)}",
        lambda s: [s.go_on("recover", "run it here, then", moves=False), *_ends(s)],
    ),
    StandingKind(
        "child",
        lambda s: bool(s.waits_for("child")),
        lambda s: (
            f"it waits for run {', '.join(wait['id'] for wait in s.waits_for('child'))}"
            + (f", which waits for {_asked(replace(s, questions=list(s.below)))}" if s.below else "")
        ),
        _children,
    ),
    StandingKind(
        "waiting",
        lambda _: True,
        lambda s: f"it waits for {', '.join(wait['kind'] + ' ' + wait['id'] for wait in s.state.status.waits)}",
        lambda s: list(_ends(s)),
    ),
)
"""Every way in which a run can stand still. The last row fits every run that waits."""
