"""Which run an id names: a line goes by the id of its first run, and `ID~1` is that run itself (engine.md L7, L8)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final, TypeVar

from runjournal.log.codec import check_run_id
from runjournal.log.errors import AppendRefused, InvalidArgument, RunNotFound
from runjournal.log.limits import line_names_tried_max, line_tries_max, link_digest_chars, link_id_chars_max
from runjournal.log.store import Reading, Store
from runjournal.writing import folding

T = TypeVar("T")
_NTH: Final = re.compile(r"(.+)~([1-9][0-9]{0,5})")


def named(store: Store, name: str) -> str:
    """Return the run that an id stands for now; one that names nothing is itself.

    The id of the first run of a line stands for the newest one. `ID~2` is the second run of the line of ID. Raises
    InvalidArgument, and RunNotFound for a place that the line doesn't have.
    """
    if (nth := _nth(name)) is not None:
        line = members(store, named(store, nth[0]))
        if nth[1] > len(line):
            raise RunNotFound(name)
        return line[nth[1] - 1]
    head = store.head(check_run_id(name))
    if head is None or head.scope != name:
        return name
    newest = store.newest(name)
    return newest if newest is not None and _is_there(store, newest) else name


def _is_there(store: Store, run_id: str) -> bool:
    """Return whether a row of the lines names a run; one that was spoiled doesn't, as an audit says."""
    try:
        return store.head(check_run_id(run_id)) is not None
    except InvalidArgument:
        return False


def _nth(name: object) -> tuple[str, int] | None:
    """Return the id of a line and a place in it, from 1, if a name is made of these."""
    found = _NTH.fullmatch(name) if isinstance(name, str) else None
    return (found[1], int(found[2])) if found else None


def exactly(store: Store, name: str) -> str:
    """Return the one run that a name names: an id is that run, and not the newest of its line. Raises RunNotFound."""
    return name if _nth(name) is None else named(store, name)


def stem(name: str) -> str:
    """Return the id in a name: what stands before the place in its line."""
    return nth[0] if (nth := _nth(name)) else name


def members(store: Reading, run_id: str) -> list[str]:
    """Return the runs of a line up to one of them, the first one first. Raises RunNotFound."""
    found: list[str] = []
    of: str | None = run_id
    while of is not None:
        found.append(of)
        queued = folding.first(store, of)
        if queued is None and store.head(of) is None:
            raise RunNotFound(of)
        going_on = queued is not None and queued.link in ("retry", "restart") and queued.base
        of = queued.base["run_id"] if queued is not None and queued.base is not None and going_on else None
    return found[::-1]


def on_line(store: Store, name: str, act: Callable[[str], T]) -> T:
    """Do something to the run that an id stands for; return what it came to.

    A run that has gone on as another one has ended, and refuses every word, inside the write lock. So what was refused
    is said again to the run that the id stands for by then, if that is another one.
    """
    run_id, refused = named(store, name), None
    for _ in range(line_tries_max):
        try:
            return act(run_id)
        except AppendRefused as error:
            newest = named(store, name)
            if newest == run_id:
                raise
            run_id, refused = newest, error
    raise refused or AppendRefused(f"run {name} went on again and again; try again")


def next_id(store: Store, scope: str, newest: str) -> str | None:
    """Return the id of the next run of a line: `ID.r2` by its place, or the next number that no other run has.

    None if too many numbers are taken.
    """
    stem = scope
    if len(stem) > link_id_chars_max:
        digest = hashlib.sha256(scope.encode()).hexdigest()[:link_digest_chars]
        stem = f"{scope[: link_id_chars_max - link_digest_chars - 1]}-{digest}"
    last = re.fullmatch(re.escape(stem) + r"\.r([1-9][0-9]{0,8})", newest)
    place = 1 + (int(last[1]) if last else len(members(store, newest)))
    names = (f"{stem}.r{number}" for number in range(place, place + line_names_tried_max))
    return next((name for name in names if store.head(name) is None), None)
