"""Ids that people type to a run and that name nothing there: which ones are meant, and how to list them.

All of it is looked up only once something was refused, so it may read the log.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from runjournal.engine.arguments import violations
from runjournal.log import events as e
from runjournal.log.base import Json
from runjournal.log.codec import check_run_id
from runjournal.log.errors import InvalidArgument, RunNotFound
from runjournal.log.limits import close_ids_max, refs_prefixed_runs_max
from runjournal.log.shapes import kind_of
from runjournal.projections.shell import command, store_option
from runjournal.writing import folding

from . import naming
from .logbook import Logbook


def check_run(journal: Logbook, run_id: str) -> str:
    """The run's id. Raises RunNotFound, which names the ids that are close to it."""
    name = check_run_id(naming.stem(run_id))
    if journal.store.head(name) is None:
        heads = itertools.islice(journal.runs(), refs_prefixed_runs_max)
        raise RunNotFound(name, _close(name, (head.run_id for head in heads)))
    return run_id


def check_line(journal: Logbook, run_id: str) -> str:
    """The run that an id stands for. Raises RunNotFound, which names the ids that are close to it."""
    return naming.named(journal.store, check_run(journal, run_id))


def check_call(journal: Logbook, run_id: str, call_id: str) -> None:
    """Raise InvalidArgument unless a call of this id was ever started in the run, or in one that it goes on from."""
    _check(run_id, "call", call_id, _calls(journal, run_id), f"`{_show(journal, run_id, '--calls')}` lists them")


def check_question(journal: Logbook, run_id: str, approval_id: str) -> None:
    """Raise InvalidArgument unless a question of this id was ever asked in the run, or in one that it goes on from."""
    hint = f"`{_show(journal, run_id)}` shows what it waits for"
    _check(run_id, "question", approval_id, _questions(journal, run_id), hint)


def check_answer(journal: Logbook, run_id: str, approval_id: str, args: object, choice: object) -> None:
    """Raise InvalidArgument for a yes that the agent, which reads what it has asked about, couldn't use."""
    asked = _asked(journal, check_run(journal, run_id), approval_id)
    if asked is None:  # no question of this run: the append says so
        return
    _check_choice(asked.choices or [], choice)
    if args is not None and kind_of(asked.args) is dict:
        _check_edited(asked.args, asked.args_schema, args)


def _check_choice(choices: list[str], choice: object) -> None:
    if choice is None and not choices:
        return
    shown = f"choice: got {ascii(choice)[:80]}" if choice is not None else "choice: none was given"
    if not choices:
        raise InvalidArgument(f"{shown}, and this question has no choices: leave it out")
    if choice not in choices:
        raise InvalidArgument(f"{shown}; expected one of {', '.join(ascii(each)[:80] for each in choices)}")


def _check_edited(asked: dict[str, Json], schema: Json, args: object) -> None:
    names = ", ".join(ascii(name)[:80] for name in asked) or "none"
    if not isinstance(args, Mapping):
        raise InvalidArgument(
            f"args: expected an object, by the names that were asked about ({names}), got {type(args).__name__}; "
            "leave them out to say yes to what was asked"
        )
    edited = cast("Mapping[str, Json]", args)
    if left_out := [name for name in asked if name not in edited]:
        raise InvalidArgument(
            f"args: {', '.join(ascii(name)[:80] for name in left_out)} was asked about and isn't there: "
            f"give all that were asked about ({names}), each as it is or edited"
        )
    if schema is not None and (wrong := list(violations(schema, edited))):
        raise InvalidArgument(f"args: {'; '.join(wrong)}")


def check_steps(journal: Logbook, run_id: str, steps: Iterable[str]) -> list[str]:
    """The ids of steps as a list. Raises InvalidArgument unless each was begun in the run, or in one before it."""
    if isinstance(steps, str):
        raise InvalidArgument(f"again: expected a list of ids of steps, got the text {steps[:60]!r}: put it in [ ]")
    wanted = list(steps)
    hint = f"`{_show(journal, run_id, '--tree')}` lists them"
    for step in wanted:
        _check(run_id, "step", step, _steps(journal, run_id), hint)
    return wanted


def _show(journal: Logbook, run_id: str, options: str = "") -> str:
    return command("show", run_id, options=options, db=store_option(journal.store.url))


def _check(run_id: str, what: str, name: object, known: Iterator[str], hint: str) -> None:
    seen: set[str] = set()
    for each in known:
        if each == name:
            return
        seen.add(each)
    shown = ascii(name)[:80] if isinstance(name, str) else type(name).__name__
    close = _close(name, seen) if isinstance(name, str) else []
    meant = f"; close to it: {', '.join(ascii(each)[:80] for each in close)}" if close else ""
    raise InvalidArgument(f"run {run_id} has no {what} {shown}{meant}; {hint}")


def _close(name: str, known: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, known, n=close_ids_max)


def _line(journal: Logbook, run_id: str) -> Iterator[str]:
    """The run and those that it goes on from, newest first."""
    while True:
        yield run_id
        queued = folding.first(journal.store, run_id)
        if queued is None or queued.base is None or journal.store.head(queued.base["run_id"]) is None:
            return
        run_id = queued.base["run_id"]


def _calls(journal: Logbook, run_id: str) -> Iterator[str]:
    for part in _line(journal, run_id):
        for record in journal.store.read(part, types=("tool.started", "model.started")):
            if isinstance(record.event, e.ToolStarted | e.ModelStarted):
                yield record.event.call_id


def _questions(journal: Logbook, run_id: str) -> Iterator[str]:
    for part in _line(journal, run_id):
        for record in journal.store.read(part, types=("approval.requested",)):
            if isinstance(record.event, e.ApprovalRequested):
                yield record.event.approval_id


def _asked(journal: Logbook, run_id: str, approval_id: str) -> e.ApprovalRequested | None:
    """Return a question as it was asked; None if the run never asked it."""
    for part in _line(journal, run_id):
        for record in journal.store.read(part, types=("approval.requested",)):
            if isinstance(record.event, e.ApprovalRequested) and record.event.approval_id == approval_id:
                filled = folding.filled_record(journal.store, record).event
                return filled if isinstance(filled, e.ApprovalRequested) else None
    return None


def _steps(journal: Logbook, run_id: str) -> Iterator[str]:
    for part in _line(journal, run_id):
        for record in journal.store.read(part, types=("step.started",)):
            if isinstance(record.event, e.StepStarted):
                yield record.event.id
