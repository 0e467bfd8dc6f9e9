"""runjournal: the journal that a long-running AI agent can't do without.

Everything public is here; it is loaded when it is first used. Its names are in `__init__.pyi`.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

if __name__ != "runjournal":
    raise ImportError(f"import this package as runjournal, not as {__name__}")


def _homes() -> dict[str, str]:
    """{name: the module that has it}, sorted, from the lines `from <module> import <name> as <name>` of the stub."""
    path = f"{__path__[0]}{os.sep}__init__.pyi"
    stub = __spec__.loader.get_data(path).decode()  # from wherever the package is loaded: a folder, an archive
    words = [line.split() for line in stub.splitlines() if line.startswith("from ")]
    return dict(sorted((name, module) for _, module, _, name, *_ in words))


_HOMES = _homes()
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]  # type checkers have the stub


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'runjournal' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return __all__
