"""Points in the way of a run at which somebody may strike: `runjournal.testing.crash_points` does.

Each is passed by name: `commit.before` and `commit.after` around each commit of a SQLite store, `checkpoint` where its
WAL is moved into the file, `heartbeat`, `group` where one thread begins to commit for several; `tool`, `do` and `model`
with `.before` and `.after` around what is called of the user's. Nothing happens there unless `hit` is set: whoever
passes looks at it, and calls nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

hit: Callable[[str, Any], None] | None = None
"""What is called with the name of each point and what it is about. It is of the whole process, and of any thread."""


def passed(point: str, about: Any = None) -> None:
    """Pass a point."""
    if hit is not None:
        hit(point, about)


def around(what: str, about: Any, work: Callable[[], Any]) -> Any:
    """Do a piece of work, or begin to, between its two points.

    It is passed behind, too, if it raises what an agent may handle.
    """
    passed(f"{what}.before", about)
    try:
        done = work()
    except Exception:
        passed(f"{what}.after", about)
        raise
    if inspect.isawaitable(done):
        return _awaited(what, about, done)
    passed(f"{what}.after", about)
    return done


async def _awaited(what: str, about: Any, work: Awaitable[Any]) -> Any:
    try:
        done = await work
    except Exception:
        passed(f"{what}.after", about)
        raise
    passed(f"{what}.after", about)
    return done
