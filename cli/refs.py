"""How people name a run: its id, a unique prefix of it, `@last`, `@last-failed`; and one of its events: `RUN@42`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from .safe import line

if TYPE_CHECKING:
    from runjournal.logbook import Logbook

HELP: Final = (
    "RUN: an id, a unique prefix of one, @last, @last-failed (what changed last, sub-agents left out). "
    "RUN@42, RUN@-1 (before the last), RUN@14:03:22 (UTC)."
)
_shown_max: Final = 5
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT)?\d\d:\d\d(:\d\d(\.\d{1,6})?)?Z?")
_NUMBER: Final = re.compile(r"-?\d{1,18}")


class Ref(NamedTuple):
    """A run, and the seq of one of its events (the newest: None)."""

    run_id: str
    at: int | None


def resolve(journal: Logbook, text: str) -> Ref:
    """What a reference names. Raises RunNotFound, InvalidArgument, UsageError."""
    name, at = text, ""
    if text.rfind("@") > 0:
        name, _, at = text.rpartition("@")
    run_id = _run(journal, name)
    return Ref(run_id, _seq(journal, run_id, at) if at or text.endswith("@") else None)


def run_id_of(journal: Logbook, text: str) -> str:
    """The run that a reference names, where an event makes no sense. Raises as `resolve`."""
    ref = resolve(journal, text)
    if ref.at is not None:
        raise click.UsageError(f"expected a run, got one of its events: {line(text, 60)}; leave out what follows the @")
    return ref.run_id


def _run(journal: Logbook, name: str) -> str:
    from runjournal.log.codec import check_run_id
    from runjournal.log.errors import RunNotFound

    if name.startswith("@"):
        if name not in ("@last", "@last-failed"):
            raise click.UsageError(f"expected @last or @last-failed, got {line(name, 40)}")
        head = journal.latest(status=("failed",) if name == "@last-failed" else ())
        if head is None:
            raise RunNotFound(name)
        return head.run_id
    check_run_id(name)
    if journal.store.head(name) is not None:
        return name
    found = [head.run_id for head, _ in zip(journal.runs(prefix=name), range(_shown_max + 1), strict=False)]
    if not found:
        raise RunNotFound(name)
    if len(found) > 1:
        more = ", …" if len(found) > _shown_max else ""
        raise click.UsageError(
            f"{name} begins the ids of several runs: {', '.join(found[:_shown_max])}{more}; type more of it"
        )
    return found[0]


def _seq(journal: Logbook, run_id: str, at: str) -> int:
    head = journal.head(run_id).head_seq
    if _NUMBER.fullmatch(at):
        seq = int(at)
        seq = head + seq if at.startswith("-") else seq
        if not 1 <= seq <= head:
            raise click.UsageError(f"run {run_id} has the events 1 to {head}, got @{at}")
        return seq
    if not _TIME.fullmatch(at):
        raise click.UsageError(f"expected a seq, a negative one, or a time (14:03:22) behind the @, got {line(at, 40)}")
    from runjournal.reports import seq_at_time

    seq_or_none = seq_at_time(journal, run_id, at)
    if seq_or_none is None:
        raise click.UsageError(f"run {run_id} has no event at or before {at}")
    return seq_or_none
