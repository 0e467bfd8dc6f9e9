"""The code of an agent: whether it has changed, and by which name another process finds it."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runjournal.log.limits import name_chars_max


def code_version(agent: Callable[..., Any]) -> str:
    """Return SHA-256 in hex of the source of the agent's module, "" where there is none.

    It shows if the code changed.
    """
    try:
        source = inspect.getsourcefile(inspect.unwrap(agent))
        return hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""
    except (OSError, TypeError):  # it is no function, or its source isn't here
        return ""


def agent_path(agent: Callable[..., Any]) -> str | None:
    """Return how an agent is imported, as module:function; None for one that isn't found again by that name.

    That is so of a lambda, of a function in a function, and of the script that a process was started with, which would
    run anew if it were imported.
    """
    path = path_here(agent)
    return None if path is None or path.startswith("__main__:") else path


def path_here(agent: Callable[..., Any]) -> str | None:
    """Return module:name of an agent as this process has it; None for one that isn't found by that, as a lambda."""
    path = f"{getattr(agent, '__module__', None)}:{getattr(agent, '__qualname__', None)}"
    return path if found_here(path) is agent and path.isprintable() and len(path) <= name_chars_max else None


def found_here(path: str | None) -> Callable[..., Any] | None:
    """Return the agent of a path, if its module is loaded here; nothing is imported."""
    module, _, names = (path or "").partition(":")
    there: Any = sys.modules.get(module)
    for name in names.split("."):
        there = getattr(there, name, None)
    return there if callable(there) else None
