"""What an agent can run into: failures that it is told of, mistakes in its code, and stops that it can't swallow.

*Failures* (`Told`) are ordinary exceptions, the same live and in replay: an agent may catch them and go on. *Mistakes*
fail nothing: the run is released, and mended code goes on where it was. *Stops* are BaseExceptions: the run leaves
this process; catching one is of no use, every later verb of the run raises it again.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, cast
from urllib.error import URLError

from runjournal.log.base import Event
from runjournal.log.codec import plain
from runjournal.log.errors import (
    CorruptLog,
    InvalidArgument,
    JournalError,
    MissingBlob,
    StoreError,
    TooLarge,
    Unstorable,
)
from runjournal.log.limits import error_text_chars_max
from runjournal.log.shapes import Name
from runjournal.projections import shell
from runjournal.projections.status import STANDSTILLS

from .clients import unreached


class Transient(Exception):
    """Raised by a tool or an agent: trying again may help."""


class DidNotHappen(Exception):
    """Raised by a tool: this attempt did nothing, for sure."""


class NotSent(DidNotHappen, Transient):
    """Raised by a tool: this attempt did nothing, and trying again may help."""


class TransactionTooLong(DidNotHappen, Transient):
    """A transactional tool took longer than `transaction_s_max`, and was rolled back."""


# What an agent is told.


class Told(JournalError):
    """A failure that the agent is told of, live or from the log.

    `run_id`, `step` and `attempt` name the step that it left, if it left one.

    `told_at`, of the failure of a step, is for the engine: its place in the log, and how far the agent had come.
    """

    code: ClassVar[str] = "told"

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.run_id = ""
        self.step = ""
        self.attempt = 0
        self.told_at: tuple[int, int] = (0, 0)
        self.traceback: str | None = None


class Rejected(Told):
    """A person said no, or nobody answered in time. `note` is what the person said, "" if nothing."""

    code = "rejected"

    def __init__(self, message: str = "", note: str = "") -> None:
        super().__init__(message)
        self.note = note


class CallOutcomeUnknown(Told):
    """A call may have happened, and nobody knows.

    It isn't a CallFailed: code that retries failures must not retry this. `original` is what the call raised, {type,
    message}; None if its process died.
    """

    code = "call_outcome_unknown"

    def __init__(self, message: str = "", original: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.original = None if original is None else {name: original[name] for name in ("type", "message")}
        self.add_note(
            'a tool that may be sent again says so, @tool(policy="idempotent") or "keyed"; one that did nothing raises '
            "DidNotHappen, or what its not_sent= names; one that can be asked has reconcile=; else a person says what "
            "became of it: `runjournal questions` lists it, with the commands that answer it"
        )


class Failed(Told):
    """`type` and `message` of what was raised; `transient`: trying again may help; live, the original is the cause."""

    code = "failed"

    def __init__(self, type: str, message: str, *, transient: bool = False, attempt: int = 0) -> None:
        super().__init__(f"{type}: {message}")
        self.type = type
        self.message = message
        self.transient = transient
        self.attempt = attempt


class CallFailed(Failed):
    """A call of a tool or a model ended in a failure."""

    code = "call_failed"


class StepFailed(Failed):
    """An exception left a step; `attempt` says which attempt of it."""

    code = "step_failed"


class ChildFailed(Failed):
    """A child run has failed, or was cancelled: `child_run_id` says which, `status` how.

    Once it was retried, `wait_child` of another attempt of the step returns what the newest run of its line came to.
    """

    code = "child_failed"

    def __init__(self, child_run_id: str, status: str, error: Mapping[str, Any]) -> None:
        super().__init__(error["type"], error["message"])
        self.child_run_id = child_run_id
        self.status = status
        self.add_note(f"run {child_run_id} was begun by this one and has {HOW[status]}; retry it, then run this one")


HOW: Final = {"failed": "failed", "cancelled": "been cancelled"}
"""How a child has ended that didn't complete, in words."""


class KeyReused(JournalError):
    """Another tool, or other arguments, were called under a key that is taken. Nothing was sent."""

    code = "key_reused"


class ResultUnusable(JournalError):
    """The effect happened, but its result can't be stored or parsed. Asking again raises this again."""

    code = "result_unusable"


def unusable(tool: str, error: Mapping[str, Any]) -> ResultUnusable:
    """Return what the agent is told of a call that happened and whose result couldn't be stored."""
    why = str(error["message"]).removesuffix("; nothing was written")
    return ResultUnusable(
        f"{tool} has happened, but its result couldn't be stored: {why}. It is not made again; let the "
        "tool give back plain JSON, and say what it was: runjournal resolve, with `happened` and `--result`"
    )


class EffectNotRecorded(JournalError):
    """The effect happened, and the store couldn't be written. `result` is what the tool returned. Tell a person."""

    code = "effect_not_recorded"

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message, result)
        self.result = result

    def __str__(self) -> str:
        return str(self.args[0])


# Mistakes in the agent's code.


class Mistake(JournalError):
    """The agent's code can't be right. It fails nothing: the run is released, and mended code goes on where it was."""

    code = "mistake"


class StepDone(Mistake):
    """This step is complete. A loop needs `repeat=True` or a key for each step; a straight line needs `do`."""

    code = "step_done"


class NotInStep(Mistake):
    """This verb was used outside a step, or after its step had ended. Everything happens in a step."""

    code = "not_in_step"


class NestedStep(Mistake):
    """A step was begun inside another."""

    code = "nested_step"


class StepOpen(Mistake):
    """A step is open: another task's, or the run was to be completed inside one."""

    code = "step_open"


class NotAChild(Mistake):
    """`wait_child` was asked for a run that this one hasn't begun: `spawn` begins one, and returns its id."""

    code = "not_a_child"


class NotInRun(Mistake):
    """A tool or `attach` was called outside any run, or in a thread without its context: `run.thread`, `tool.fn`."""

    code = "not_in_run"


class ToolUsesRun(Mistake):
    """A tool wrote to the run that called it: it may read the state, nothing else."""

    code = "tool_uses_run"


class SameName(Mistake):
    """Two functions are tools of one name, so nobody can tell which one was called: give one another name (name=)."""

    code = "same_name"


class ResultUnstorable(Mistake):
    """What the agent, or the function of a `do`, returns can't be stored. Return plain JSON values."""

    code = "result_unstorable"


class ValueUnstorable(Mistake):
    """A value of the working memory, of the plan or of a message can't be stored. Write plain JSON values."""

    code = "value_unstorable"


class WrongArgument(Mistake, InvalidArgument):
    """What a verb was given can't be on record: a name with a lone surrogate or a NUL, or one that is too long."""

    code = "wrong_argument"


class NotAwaited(Mistake):
    """An asyncio agent called a tool or a verb of the run and didn't await it, so it didn't happen."""

    code = "not_awaited"


class MemoryMutated(Mistake):
    """A value of the working memory was changed in place. Assign it, so that the log knows."""

    code = "memory_mutated"


# What became of a run, to whoever runs it.


class RunFailed(JournalError):
    """The run has failed; `error` and `cause` say why. `retry` goes on from it as a new run; `fork`, if it is imported.

    `answers` are the commands to type first, one for each call: they say what became of what may have happened. `db`
    names the store in the commands.
    """

    code = "run_failed"

    def __init__(
        self,
        run_id: str,
        cause: str,
        error: dict[str, Any],
        answers: Iterable[list[str]] = (),
        *,
        db: str = "",
        link: str = "retry",
    ) -> None:
        asked = list(answers)
        self.answers = [each for group in asked for each in group]
        say = "".join(f"say what became of it, {shell.choice(group)}, then " for group in asked)
        super().__init__(
            f"run {run_id} has failed ({cause}): {error['type']}: {error['message']}; "
            f"{say}`{shell.command(link, run_id, db=db)}` makes a new run that goes on from here: run that one"
        )
        self.run_id = run_id
        self.cause = cause
        self.error = error


class RunCancelled(JournalError):
    """The run was cancelled."""

    code = "run_cancelled"


class RunWaiting(JournalError):
    """The run waits; `waits` says for what: [{kind, id, action, args, reason, age_s}]. Answer it, and run it again.

    `whats` are the same in words, `answers` the commands that answer them, each whole: of those with one id one is
    typed. What isn't asked of a person has no action. `mend` says what keeps people from being asked the next time.
    """

    code = "run_waiting"

    def __init__(
        self,
        run_id: str,
        waits: list[dict[str, Any]],
        whats: Iterable[str] = (),
        answers: Iterable[list[str]] = (),
        mend: str = "",
    ) -> None:
        groups = [group for group in answers if group]
        self.whats, self.answers = list(whats), [each for group in groups for each in group]
        named = "; ".join(self.whats) or ", ".join(f"{wait['kind']} {wait['id']}" for wait in waits)
        how = "; ".join(map(shell.choice, groups))
        stands = bool(waits) and all(wait["kind"] in STANDSTILLS for wait in waits)
        first = "Once that is mended" if stands else "Answer it"
        say = f". {first}, {how}, and run it again" if how else "; answer, and run it again"
        super().__init__(f"run {run_id} {'has' if stands else 'waits for'} {named}{say}{f'. {mend}' if mend else ''}")
        self.run_id = run_id
        self.waits = waits


class RunNotDue(JournalError):
    """The run goes on at a time that hasn't come: `due_at` (UTC text). `cause` says in words what it waits for."""

    code = "run_not_due"

    def __init__(self, run_id: str, due_at: str, cause: str) -> None:
        super().__init__(
            f"run {run_id} goes on at {due_at}, not before: {cause}; run it again then, or have `run` wait (wait_s=)"
        )
        self.run_id = run_id
        self.due_at = due_at
        self.cause = cause


class RunBusy(JournalError):
    """The run has a living owner, or was taken by another one."""

    code = "run_busy"


class InputDiffers(JournalError):
    """A run of this id is there, with another input: nothing was run."""

    code = "input_differs"


class KindDiffers(JournalError):
    """A run of this id is there, of another kind, which is another agent's work: nothing was run."""

    code = "kind_differs"


# Stops.


class Stop(BaseException):
    """The run leaves this process."""


class Suspend(Stop):
    """The run waits; its step stays open."""


class Fenced(Stop):
    """Another owner has the run."""


class Cancelled(Stop):
    """A cancel was requested."""


class Completed(Stop):
    """`run.complete` or `run.fail` was called."""


class OverBudget(Stop):
    """The budget is used up: what is in flight ends, and `event` is the end of the run."""

    def __init__(self, event: Event) -> None:
        super().__init__(event)
        self.event = event


class Released(Stop):
    """The run's caller cancelled it, or the process is to stop."""


class ToldToStop(Released):
    """The process got a SIGTERM: what is in flight ends, and the run is released."""


class CodeDiffers(Stop):
    """Today's code goes another way than the log.

    `step` is the first step on record that it doesn't go through as it did: its id, or the name of a loop's steps.
    `what` says how much of it differs: the `plan`, which has that step; what the `step` asks for, once it is open; or
    no more than a `request` to a model in it. `see` are commands that show what is on record, for who reads this now.
    """

    def __init__(self, message: str = "", step: str = "", what: str = "plan", see: tuple[str, ...] = ()) -> None:
        super().__init__(message, step, what, see)
        self.message, self.step, self.what, self.see = message, step, what, see

    def __str__(self) -> str:
        return self.message + "".join(f"; `{each}`" for each in self.see)


class PlanChanged(CodeDiffers):
    """Today's code asks for another step than the log has, or for a step that the log can't tell apart."""


class StepDiverged(CodeDiffers):
    """A step that was entered again leaves out a question, or a call that may have happened."""


BROKEN: Final = StoreError | CorruptLog | MissingBlob
"""What keeps a run from going on here, and fails nothing: it is released, and goes on once the store is whole."""


def given_back(who: str, value: Any) -> Any:
    """Return a value as the log will return it. Raises ResultUnstorable: mended code goes on from there."""
    try:
        return plain(value)
    except (Unstorable, TooLarge) as error:
        raise ResultUnstorable(f"{who} gives back what can't be stored: {error}") from error


def written(what: str, value: Any) -> Any:
    """Return a value that the agent writes as the log will return it. Raises ValueUnstorable."""
    try:
        return plain(value)
    except (Unstorable, TooLarge) as error:
        raise ValueUnstorable(f"{what} can't be stored: {error}") from error


_NAME: Final = Name()


def check_name(name: object, what: str) -> None:
    """Raise WrongArgument for what is no name that can be on record."""
    try:
        _NAME.check(name, what)
    except InvalidArgument as error:
        raise WrongArgument(str(error)) from None


def anew(stop: BaseException) -> BaseException:
    """Return the same stop, as a new object if it is one of ours: each raise has a traceback of its own."""
    return type(stop)(*stop.args) if isinstance(stop, Stop | Mistake | EffectNotRecorded) else stop


# What is stored of an exception, and what comes back.

TRANSIENT_STATUSES = frozenset({408, 429})


def is_transient(error: BaseException) -> bool:
    """Return whether trying again may help.

    It may for Transient, connection errors, timeouts, `.transient`, and HTTP 408, 429 and 5xx.
    """
    try:
        return _is_transient(error)
    except Exception:  # noqa: BLE001 - what a status of theirs does must not keep the failure from being stored
        return False


def _is_transient(error: BaseException) -> bool:
    told = said(error, "transient")
    if isinstance(told, bool):
        return told
    reason = said(error, "reason") if isinstance(error, URLError) else error
    if isinstance(reason, Transient | ConnectionError | TimeoutError) or unreached(error):
        return True
    status = _status_of(error)
    return bool(status in TRANSIENT_STATUSES) or 500 <= status < 600  # noqa: PLR2004


def _status_of(error: BaseException) -> int:
    """Return the HTTP status that an error of a client's tells, 0 if it tells none."""
    places = (error, "status_code"), (said(error, "response"), "status_code"), (error, "status")
    found = (said(about, name) for about, name in places)
    return next((int(value) for value in found if isinstance(value, int) and value), 0)


def said(about: object, name: str) -> Any:
    """Return what an exception says by an attribute; None if it has none, or if asking it raises."""
    try:
        return getattr(about, name, None)
    except Exception:  # noqa: BLE001 - a property of theirs must not keep the failure from being stored
        return None


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Return the exceptions in a group, or the one."""
    left = [error]
    while left:  # groups may lie deeper in each other than Python's stack
        one = left.pop()
        held = said(cast("object", one), "exceptions") if isinstance(one, BaseExceptionGroup) else None
        members = cast(
            "tuple[object, ...]", held if isinstance(held, tuple) else ()
        )  # a class of theirs may say anything
        if errors := [each for each in members if isinstance(each, BaseException)]:
            left.extend(reversed(errors))
        else:
            yield one


def error_of(error: BaseException) -> tuple[dict[str, Any], bool]:
    """What is stored of an exception, and whether it is transient. A group is its first leaf, transient if all are.

    Whatever the exception is or does when it is asked, this can be stored.
    """
    try:
        return _error_of(error)
    except Exception:  # noqa: BLE001 - the same
        return untold(error), False


def _error_of(error: BaseException) -> tuple[dict[str, Any], bool]:
    every = list(leaves(error))
    first = every[0]
    kind, message = said(first, "type"), said(first, "message")
    stored: dict[str, Any] = {
        "type": storable_text(kind if isinstance(kind, str) else type(first).__name__),
        "message": storable_text(message if isinstance(message, str) else _text(first)),
    }
    if 100 <= (status := _status_of(first)) < 600:  # noqa: PLR2004 - those that HTTP has
        stored["status"] = status
    if isinstance(first, Rejected):
        stored["kind"] = "rejected"
        if first.note:
            stored["note"] = storable_text(first.note)
    if isinstance(first, CallOutcomeUnknown):
        stored["kind"] = "unknown"
        if first.original is not None:
            stored["original"] = first.original
    return stored, all(is_transient(leaf) for leaf in every)


def error_of_body(error: BaseException) -> tuple[dict[str, Any], bool]:
    """Return the same, for what the body of a call raised. It has no kind: only the engine says a kind of the call.

    A body may raise an error of this package, from a run of its own. "Nobody knows", or a person's no, is then about
    another call.
    """
    stored, transient = error_of(error)
    return {name: value for name, value in stored.items() if name not in ("kind", "note")}, transient


def untold(error: BaseException) -> dict[str, Any]:
    """Return what is stored of an exception that can say nothing more about itself."""
    name: str = type.__dict__["__name__"].__get__(type(error))  # whatever its class says of itself
    return {"type": storable_text(name), "message": "(the error can't be written down)"}


def trace_of(error: BaseException) -> str | None:
    """Return the traceback of an error, without the values of variables, bounded.

    It is None if the error has none, or none can be made.
    """
    try:
        if error.__traceback__ is None:
            return None
        return storable_text("".join(traceback.format_exception(error, limit=-20)))
    except Exception:  # noqa: BLE001 - what an error says of itself must not keep it from being stored
        return None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as wrong:  # noqa: BLE001 - the same
        return f"(its text can't be told: {type(wrong).__name__})"


def storable_text(text: str) -> str:
    """Text without lone surrogates, bounded: an error's message must never keep the error from being stored."""
    exact = str.__str__(text)  # what a class of theirs makes of itself is no text
    return exact[:error_text_chars_max].encode("utf-8", "backslashreplace").decode()


def outcome_unknown(tool: str, call_id: str, original: Mapping[str, Any] | None) -> CallOutcomeUnknown:
    """Return what the agent is told of a call of which nobody knows; `original` is the error it ended with, if any."""
    why = "" if original is None else f"; it raised {original['type']}: {original['message']}"
    return CallOutcomeUnknown(storable_text(f"{tool} ({call_id}) may have happened, and nobody knows{why}"), original)


def call_failure(error: dict[str, Any], *, transient: bool) -> Told:
    """Return a stored failure of a call as the agent is told of it."""
    if error.get("kind") == "unknown":
        return CallOutcomeUnknown(error["message"], error.get("original"))
    return CallFailed(error["type"], error["message"], transient=transient)


def step_failure(step: str, attempt: int, error: dict[str, Any], *, transient: bool) -> Told:
    """Return a stored failure of a step.

    A person's no and an unknown outcome stay what they are, whoever tells of them.
    """
    kind = error.get("kind")
    failure: Told
    if kind == "rejected":
        failure = Rejected(error["message"], error.get("note", ""))
    elif kind == "unknown":
        failure = CallOutcomeUnknown(error["message"], error.get("original"))
    else:
        failure = StepFailed(error["type"], error["message"], transient=transient)
    failure.step, failure.attempt = step, attempt
    return failure


def left_by(error: BaseException, run_id: str, handled: Callable[[Told], bool]) -> list[list[Any]]:
    """Return the failures of a run's steps that leave its agent, [step id, attempt]: engine.md F3.

    What leaves is the error, or what its group holds; or the reason of one of these, unless the agent has `handled` it
    by then. A failure of another run, in a tool or beside this one, is like any other error.
    """
    left: list[list[Any]] = []
    pending, seen = [(error, True)], set[tuple[int, bool]]()
    while pending:  # a chain may be longer than Python's stack
        one, itself = pending.pop()
        if seen & {(id(one), itself), (id(one), True)}:  # an exception may be its own cause; it may say it is equal
            continue
        seen.add((id(one), itself))
        if isinstance(one, Told) and said(one, "run_id") == run_id:
            step, attempt = said(one, "step"), said(one, "attempt")
            if step and isinstance(step, str) and isinstance(attempt, int):
                if (itself or not handled(one)) and [step, attempt] not in left:
                    left.append([step, attempt])
                continue
        group = said(one, "exceptions")
        held = cast("Iterable[object]", group if isinstance(group, list | tuple) else ())
        cause = one.__context__ if one.__cause__ is None else one.__cause__
        reasons = [*((each, itself) for each in held), (cause, False)]
        pending.extend((each, same) for each, same in reversed(reasons) if isinstance(each, BaseException))
    return left


TIMED_OUT: Final = " took longer than timeout_s = "
"""What the error of a call says that ran out of its time: of a plain function the body goes on."""


def timed_out(name: str, timeout_s: float | None) -> Exception:
    """Return what is stored of a call that ran out of its time."""
    return TimeoutError(f"{name}{TIMED_OUT}{timeout_s}")


def cancelled_call(name: str) -> Exception:
    """Return what is stored of a call whose asker was cancelled before it ended."""
    return Failed("Cancelled", f"the task that asked for {name} was cancelled")


def stop_in(error: BaseException) -> BaseException | None:
    """Return the stop or mistake that an exception is, or that a group holds; else None.

    An effect that got lost counts as one. So does a store that can't be read or written now, a log that contradicts
    itself, and a blob that isn't there: these are no failure of the agent's, and none that its log should keep for
    ever.
    """
    return next((leaf for leaf in leaves(error) if isinstance(leaf, Stop | Mistake | EffectNotRecorded | BROKEN)), None)
