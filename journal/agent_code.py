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
    module, names = getattr(agent, "__module__", None), getattr(agent, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(names, str) or module == "__main__":
        return None
    found: object = sys.modules.get(module)
    for name in names.split("."):
        found = getattr(found, name, None)
    path = f"{module}:{names}"
    return path if found is agent and path.isprintable() and len(path) <= name_chars_max else None
