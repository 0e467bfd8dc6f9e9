"""Event types that installed packages bring: the entry points `runjournal.event_types`.

The command line loads them, so that it can show and check what adapters record. A library that reads a store loads
nothing by itself: it has the types that its program has imported. What is stored names a type, never code.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Final, NamedTuple

from .base import Event, register, registered

GROUP: Final = "runjournal.event_types"


class OwnTypes(NamedTuple):
    """The entry points that were loaded, and those that couldn't be: each by its name, with why."""

    loaded: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]


@cache
def load_own_types() -> OwnTypes:
    """Load the event types of installed packages, once in a process; return what came of it.

    An entry point `NAME = package.module` registers its types when it is imported; `NAME = package.module:Class` is
    one. All of them are called `x.NAME.…`.
    """
    loaded: list[str] = []
    failed: list[tuple[str, str]] = []
    for point in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        before = set(registered())
        try:
            found = point.load()
            if isinstance(found, type) and issubclass(found, Event):
                register(found)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a package does: it is told of by its name
            failed.append((point.name, f"{type(error).__name__}: {error}"))
            continue
        prefix = f"x.{point.name}."
        strangers = sorted(kind for kind in set(registered()) - before if not kind.startswith(prefix))
        if strangers:
            failed.append((point.name, f"its types are to begin with {prefix}, and it has {', '.join(strangers)}"))
        else:
            loaded.append(point.name)
    return OwnTypes(tuple(loaded), tuple(failed))
