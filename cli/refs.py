"""How people name a run: its id, a unique prefix of it, `@last`, `@last-failed`; and one of its events: `RUN@42`.

`RUN~1` is the first run of its line, where RUN alone may stand for the newest one.

A prefix of a session is one of its sub-agents too; it names the session. `0f0f.agent-1` names a sub-agent of it.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from runjournal.log.limits import refs_above_runs_max, refs_prefixed_runs_max, refs_shown_max

from .safe import line

if TYPE_CHECKING:
    from runjournal.log.head import Head
    from runjournal.logbook import Logbook

HELP: Final = (
    "RUN: an id, a unique prefix of one (of a run and its sub-agents: the run), @last, @last-failed (what changed "
    "last, sub-agents left out). RUN~1, RUN~2: by its place in a line of retries. "
    "RUN@42, RUN@-1 (before the last), RUN@14:03:22 (UTC)."
)
_short_min, _short_step = 8, 2
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT)?\d\d:\d\d(:\d\d(\.\d{1,6})?)?Z?")
_NUMBER: Final = re.compile(r"-?\d{1,18}")


class Ref(NamedTuple):
    """A run, and the seq of one of its events (the newest: None)."""

    run_id: str
    at: int | None


def resolve(journal: Logbook, text: str, *, newest: bool = False) -> Ref:
    """Return what a reference names; with `newest`, the id of the first run of a line stands for its newest one.

    Raises RunNotFound, InvalidArgument, UsageError.
    """
    from runjournal.naming import named

    name, at = text, ""
    if text.rfind("@") > 0:
        name, _, at = text.rpartition("@")
    run_id = _run(journal, name)
    if at or text.endswith("@"):
        return Ref(run_id, _seq(journal, run_id, at))
    follows = newest and "~" not in name and not name.startswith("@")
    return Ref(named(journal.store, run_id) if follows else run_id, None)


def run_id_of(journal: Logbook, text: str, *, newest: bool = False) -> str:
    """Return the run that a reference names, where an event makes no sense. Raises as `resolve`."""
    ref = resolve(journal, text, newest=newest)
    if ref.at is not None:
        raise click.UsageError(f"expected a run, got one of its events: {line(text, 60)}; leave out what follows the @")
    return ref.run_id


def whole_id(journal: Logbook, text: str) -> str:
    """Return the name of a run if it is a whole id, or one with a place in its line, `ID~1`.

    A short name names what is looked at, never what is changed. Raises RunNotFound, InvalidArgument, and UsageError,
    which names the whole id.
    """
    from runjournal.log.codec import check_run_id
    from runjournal.naming import stem

    own = stem(text)
    if "@" not in own and journal.store.head(check_run_id(own)) is not None:
        return text
    meant = resolve(journal, text).run_id
    raise click.UsageError(f"expected the whole id of a run, got {line(text, 60)}; if you mean {meant}, type that")


def _run(journal: Logbook, name: str) -> str:
    from runjournal.log.codec import check_run_id
    from runjournal.log.errors import RunNotFound
    from runjournal.naming import named

    if name.startswith("@"):
        if name not in ("@last", "@last-failed"):
            raise click.UsageError(f"expected @last or @last-failed, got {line(name, 40)}")
        head = journal.latest(status=("failed",) if name == "@last-failed" else ())
        if head is None:
            raise RunNotFound(name)
        return head.run_id
    name, tilde, place = name.partition("~")
    check_run_id(name)
    if tilde:
        return named(journal.store, f"{_run(journal, name)}~{place}")
    if journal.store.head(name) is not None:
        return name
    found, several = _eldest(journal, name)
    if found is None and "." in name:  # a sub-agent: what its session's id begins with, and its own name
        session, _, own = name.partition(".")
        above, several = _eldest(journal, session)
        if above is not None and not several:
            found, several = _eldest(journal, f"{above}.{own}")
    if found is None:
        raise RunNotFound(name)
    if several:
        more = ", …" if len(several) > refs_shown_max else ""
        raise click.UsageError(
            f"{name} begins the ids of several runs: {', '.join(several[:refs_shown_max])}{more}; type more of it"
        )
    return found


def _eldest(journal: Logbook, prefix: str) -> tuple[str | None, list[str]]:
    """The run that a prefix names: the one that all others with that prefix are sub-agents of. Or several of them."""
    found: dict[str, None] = {}
    for head in itertools.islice(journal.runs(prefix=prefix), refs_prefixed_runs_max):
        found[_above(journal, head, prefix)] = None
        if len(found) > refs_shown_max:
            break
    return next(iter(found), None), list(found) if len(found) > 1 else []


def _above(journal: Logbook, head: Head, prefix: str) -> str:
    """The topmost run with a prefix that another one descends from; itself, if there is none."""
    top, above = head.run_id, _parent(journal, head)
    for _ in range(refs_above_runs_max):
        if above is None:
            break
        top = above.run_id if above.run_id.startswith(prefix) else top
        above = _parent(journal, above)
    return top


def _parent(journal: Logbook, head: Head) -> Head | None:
    """The run above another: its parent, or else the one whose id its own begins with, up to a dot."""
    if head.parent_run_id is not None:
        return journal.store.head(head.parent_run_id)
    parts = head.run_id.split(".")
    above = (journal.store.head(".".join(parts[:count])) for count in range(len(parts) - 1, 0, -1))
    return next(filter(None, above), None)


def shortened(journal: Logbook, head: Head) -> str:
    """The shortest name of a run, from `_short_min` characters on, that `resolve` takes for it; its id, if none is."""
    from runjournal.log.errors import JournalError

    session, dot, own = head.run_id.partition(".")
    before = ""
    if dot and (above := journal.store.head(session)) is not None:
        before, session = f"{shortened(journal, above)}.", own
    for length in range(_short_min, len(session), _short_step):
        name = before + session[:length]
        with contextlib.suppress(click.UsageError, JournalError):
            if name[-1] not in "-._" and _run(journal, name) == head.run_id:
                return name
    return before + session


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
    from runjournal.looking.moments import seq_at_time

    seq_or_none = seq_at_time(journal, run_id, at)
    if seq_or_none is None:
        raise click.UsageError(f"run {run_id} has no event at or before {at}")
    return seq_or_none
