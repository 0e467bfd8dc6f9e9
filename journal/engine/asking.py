"""Questions to people, in the core of a run: what is asked, until when, and what came of it: engine.md W1 to W6, W40.

A question is on record before anybody is told of it. It is told again, or waited for, as a call is; its answer is told
in the order of the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypedDict

from runjournal.log import events as e
from runjournal.log.base import Event, Json
from runjournal.log.clock import timestamp
from runjournal.log.codec import plain, tellable
from runjournal.log.errors import InvalidArgument, NotAllowed

from . import failures as f
from .arguments import check_schema, violations
from .calls import Caller
from .commands import Verb
from .requests import copied
from .script import Awaiting, Entry

CHOICE: Final = "choice"
"""The name under which the agent gets what a person has chosen."""


class AskOptions(TypedDict, total=False):
    """What `run.ask` takes beside what is asked about, and what `approve` of `run.turn` may return.

    `reason` says why it is asked, `risk` how bad a wrong yes is, in a word ("low", "high"). `choices` are the texts of
    which a person picks one, which the agent gets as `choice` beside the args. `schema` says what the args may be
    edited to, see `runjournal.engine.arguments`. `expires_in` is how long it may be answered, in seconds or as a
    timedelta, from when it was first asked; after that it is a no, or what `default` is: args, or one of the choices.
    """

    reason: str
    risk: str | None
    choices: Sequence[str] | None
    schema: Mapping[str, Json] | None
    expires_in: float | timedelta | None
    default: Mapping[str, Json] | str | None


@dataclass(frozen=True, slots=True)
class Wording:
    """A question as an agent asks it, checked: what is stored of it is plain JSON."""

    action: str
    args: dict[str, Json]
    reason: str = ""
    risk: str | None = None
    choices: list[str] | None = None
    schema: dict[str, Json] | None = None
    expires_in: timedelta | None = None
    default: dict[str, Json] | None = field(default=None)

    @property
    def what(self) -> str:
        """Return the name by which an equal question is known again."""
        return f"ask {self.action}"


def worded(action: str, args: Mapping[str, Json] | None, how: AskOptions) -> Wording:
    """Return a question, checked. Raises InvalidArgument, WrongArgument; Unstorable for args that can't be stored."""
    if not action:
        raise InvalidArgument("ask: what is asked for has an empty name")
    f.check_name(f"ask {action}", "a question")
    if args is not None and not isinstance(args, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers aren't all typed
        raise f.WrongArgument(
            f"ask {action!r}: args is what is asked, by name: expected a dict, got {type(args).__name__}"
        )
    if strangers := how.keys() - AskOptions.__annotations__.keys():
        known = ", ".join(AskOptions.__annotations__)
        raise f.WrongArgument(f"ask {action!r}: {', '.join(sorted(strangers))}: expected args, {known}")
    asked: dict[str, Json] = plain(dict(args or {}))
    risk, choices = how.get("risk"), how.get("choices")
    if risk is not None:
        f.check_name(risk, "a risk")
    if choices is not None:
        choices = _choices(action, choices, asked)
    schema = how.get("schema")
    if schema is not None:
        schema = plain(dict(schema))
        check_schema(schema, asked)
    default, expires_in = how.get("default"), how.get("expires_in")
    if default is not None and expires_in is None:
        raise f.WrongArgument(f"ask {action!r}: a default is what counts when time is over: give expires_in=, too")
    return Wording(
        action, asked, tellable(how.get("reason", "")), risk, choices, schema,
        None if expires_in is None else _lasting(action, expires_in),
        None if default is None else _default(action, default, choices, schema, asked),
    )  # fmt: skip


def _choices(action: str, choices: Sequence[str], asked: Mapping[str, Json]) -> list[str]:
    listed = [] if isinstance(choices, str) else list(choices)
    for each in listed:
        f.check_name(each, "a choice")
    if not listed or len(set(listed)) < len(listed):
        raise f.WrongArgument(f"ask {action!r}: choices is a list of different texts, got {choices!r:.80}")
    if CHOICE in asked:
        raise f.WrongArgument(f"ask {action!r}: what is chosen comes back as {CHOICE!r}: name that of args otherwise")
    return listed


def _lasting(action: str, expires_in: float | timedelta) -> timedelta:
    told: object = expires_in
    if isinstance(told, int | float) and not isinstance(told, bool):
        try:
            expires_in = timedelta(seconds=told)
        except (OverflowError, ValueError):
            expires_in = timedelta(0)
    if not isinstance(expires_in, timedelta) or expires_in <= timedelta(0):
        raise f.WrongArgument(f"ask {action!r}: expires_in is a time in seconds, more than none, got {told!r:.80}")
    return expires_in


def _default(
    action: str,
    default: Mapping[str, Json] | str,
    choices: Sequence[str] | None,
    schema: Mapping[str, Json] | None,
    asked: Mapping[str, Json],
) -> dict[str, Json]:
    """Return what counts if nobody answers, as it is stored: {args} or {choice}."""
    if choices is not None:
        if default not in choices:
            raise f.WrongArgument(f"ask {action!r}: default is one of the choices, got {default!r:.80}")
        return {CHOICE: default}
    if not isinstance(default, Mapping):
        raise f.WrongArgument(f"ask {action!r}: default is args by name, as they are asked about, got {default!r:.80}")
    args: dict[str, Json] = plain(dict(default))
    wrong = [f"{name} isn't there" for name in asked if name not in args] or list(violations(schema or {}, args))
    if wrong:
        raise f.WrongArgument(f"ask {action!r}: the default: {wrong[0]}")
    return {"args": args}


class Asker:
    """Asks people for a run."""

    def __init__(self, caller: Caller) -> None:
        self.core = caller.core
        self.order = caller.order
        self.caller = caller

    def ask(self, question: Wording) -> Verb[dict[str, Json]]:
        """Ask a person; return the approved args. Raises Rejected."""
        outcome, *_ = yield from self.ask_all([question])
        if isinstance(outcome, f.Rejected):
            raise outcome
        return outcome

    def ask_all(self, questions: Sequence[Wording]) -> Verb[list[dict[str, Json] | f.Rejected]]:
        """Ask several at once; return what came of each, in their order, once all have an answer."""
        entry, core = self.caller.entry(), self.core
        keys = [self._key(entry, each) for each in questions]
        asked = dict(zip(keys, questions, strict=True))
        entry.asked.update(keys)
        for key, question in asked.items():
            if key not in core.state.approvals.known:
                entry.unrecorded[question.what] = question.args, 0
                yield from self.order.nothing_left_out(entry, f"{question.what} was asked anew", key, calls=False)
        core.driver.settle()
        known = core.state.approvals.known
        if new := [self._request(key, question) for key, question in asked.items() if key not in known]:
            if core.driver.alone() and not entry.flights:
                open_ = [key for key in keys if key not in known or known[key].decision is None]
                yield from self.caller.wait(entry, [{"kind": "approval", "id": key} for key in open_], *new)
            yield from core.append(*new)
        for key in keys:
            yield from self._answered(entry, key)
        return [self._outcome(key, question.args) for key, question in asked.items()]

    def _key(self, entry: Entry, question: Wording) -> str:
        """Return which question it is, of equal ones that are asked in this step."""
        key = self.caller.free_id(entry, question.what, question.args)
        entry.busy[key] = question.what, ""
        entry.asks[key] += 1  # before anything else: what waits for it to be asked for may be what it waits for
        return key

    def _request(self, key: str, question: Wording) -> Event:
        expires_at = None
        if question.expires_in is not None:
            expires_at = timestamp(self.core.lineage.clock.now() + question.expires_in)
        return e.ApprovalRequested(
            key, question.action, question.reason, args=question.args, args_schema=question.schema, risk=question.risk,
            expires_at=expires_at, choices=question.choices, default=question.default,
        )  # fmt: skip

    def _answered(self, entry: Entry, key: str) -> Verb[None]:
        """Wait until a question has an answer, and its turn to be told has come; a time that is over is one, too."""
        core = self.core
        while (known := core.state.approvals.known[key]).decision is None:
            if known.expires_at is not None and known.expires_at <= timestamp(core.lineage.clock.now()):
                yield from self._expire(key)
                continue
            yield from self.caller.waiter.wait_for(entry, Awaiting("approval", key, known.expires_at))
        if (word := entry.word(key)) is not None:
            yield from self.order.turn(entry, word, key)
            self.order.tell(entry, word)

    def _expire(self, key: str) -> Verb[None]:
        """Record that nobody has answered in time; somebody may just have done so."""
        asked = self._event(self.core.state.approvals.known[key].asked_seq)
        default: dict[str, Any] = (asked.default if isinstance(asked, e.ApprovalRequested) else None) or {}
        args, choice = default.get("args"), default.get(CHOICE)
        try:
            yield from self.core.append(e.ApprovalResolved(key, "expired", args, choice=choice))
        except NotAllowed:
            if self.core.state.approvals.known[key].decision is None:
                raise

    def _event(self, at: int | None) -> Event | None:
        return self.core.lineage.event_at(at or 0)

    def _outcome(self, key: str, args: dict[str, Json]) -> dict[str, Json] | f.Rejected:
        """Return what the agent is told of an answer; each time a copy."""
        known = self.core.state.approvals.known[key]
        answer, asked = self._event(known.answered_seq), self._event(known.asked_seq)
        edited, note, choice = None, "", None
        if isinstance(answer, e.ApprovalResolved):
            edited, note, choice = answer.args, answer.note or "", answer.choice
        choices = (asked.choices if isinstance(asked, e.ApprovalRequested) else None) or []
        yes = known.decision in ("approved", "edited")
        by_default = known.decision == "expired" and not (edited is None and choice is None)
        if not (yes or by_default) or (choices and choice not in choices):
            why = note or ("nobody answered in time" if known.decision == "expired" else "")
            return f.Rejected(f"{known.decision}: {why}" if why else str(known.decision), note)
        used: dict[str, Json] = copied(args if edited is None else edited)
        return used | {CHOICE: choice} if choices else used
