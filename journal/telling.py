"""Telling people that a run waits for them: hooks, once the wait is on record. Rule: engine.md W41.

A hook is told behind the commit, never before it. That it was told is a note in the log; whoever finds a run that waits
without that note tells of it: so a process that dies in between costs a message twice, and never one.
"""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import orjson

from runjournal.log import events as e
from runjournal.log.errors import AppendRefused, InvalidArgument, StoreError
from runjournal.log.limits import hook_s
from runjournal.log.shapes import kind_of
from runjournal.projections.state import RunState
from runjournal.projections.status import STANDSTILLS, TOLD, reference

from .logbook import Logbook
from .questions import OpenQuestion, of_run


class Waiting(NamedTuple):
    """A run that waits for people: what they are asked, or in words why it stands still.

    `db` is the store's address. `due_at` is when the wait is over though nobody has answered (UTC text), or None.
    """

    run_id: str
    kind: str
    title: str | None
    db: str
    questions: list[OpenQuestion]
    why: str | None
    due_at: str | None

    def as_json(self) -> bytes:
        """Return it as one JSON object, in UTF-8; args that are too long for a line are {"$blob", "bytes"}."""
        questions = [{name: reference(getattr(each, name)) for name in each.__slots__} for each in self.questions]
        return orjson.dumps(self._asdict() | {"questions": questions})


Hook: TypeAlias = Callable[[Waiting], object]
"""Tells people. It is called in the thread that ran the agent, or for asyncio in one of its own; it may block."""


class HookWarning(UserWarning):
    """A hook couldn't tell that a run waits. The run waits all the same, and is told of again at the next look."""


def by_command(*argv: str, timeout_s: float = hook_s) -> Hook:
    """Return a hook that runs a command, with `Waiting.as_json()` on its standard input and no shell.

    It must end with 0 within `timeout_s` seconds; else it counts as not told. Raises InvalidArgument for no command.
    """
    if not argv or not all(kind_of(each) is str and each for each in argv):
        raise InvalidArgument(f"on_waiting: expected a command and its arguments, each a text, got {argv!r:.80}")

    def tell(waiting: Waiting) -> None:
        subprocess.run(argv, input=waiting.as_json(), timeout=timeout_s, check=True)  # noqa: S603 - the user's own

    return tell


def tell(log: Logbook, run_id: str) -> None:
    """Tell of a run, if it waits for people and nobody was told yet; what a hook raises is a HookWarning."""
    if not log.on_waiting or (waiting := _untold(log, run_id)) is None:
        return
    for hook in log.on_waiting:
        try:
            hook(waiting)
        except Exception as error:  # noqa: BLE001 - whatever it raises, the run waits, and its caller is told so
            why = f"{type(error).__name__}: {error}"
            warnings.warn(f"run {run_id} waits, and a hook couldn't tell: {why}", HookWarning, stacklevel=2)
            return
    try:
        log.append(run_id, [e.NoteAdded(f"{len(log.on_waiting)} hooks were told that it waits", TOLD)], expect=None)
    except (AppendRefused, StoreError) as error:  # it has gone on, or is told of once more
        warnings.warn(f"run {run_id}: hooks were told, and the log wasn't: {error}", HookWarning, stacklevel=2)


def tell_all(log: Logbook) -> None:
    """Tell of every run that waits for people and that nobody was told of yet."""
    for head in log.runs(status=["waiting"]) if log.on_waiting else ():
        tell(log, head.run_id)


def _untold(log: Logbook, run_id: str) -> Waiting | None:
    """Return what people are told of a run; None if it doesn't wait for them, or they were told."""
    head = log.store.head(run_id)
    if head is None or head.status != "waiting":
        return None
    state = log.fold(RunState, run_id, at=head.head_seq)
    status = state.status
    if status.told or status.woken or not any(wait["kind"] in _FOR_PEOPLE for wait in status.waits):
        return None
    why = status.why if status.stands else None
    return Waiting(run_id, status.kind, status.title, log.store.url, list(of_run(log, head, state)), why, status.due_at)


_FOR_PEOPLE: Final = frozenset({"approval", "question", *STANDSTILLS})
