"""Copied as `sitecustomize.py` beside a copy of the package: each Python that starts with it on its path gets the copy.

An editable install may find the package by a hook or by a link, so the copy's own hook goes before all others.
"""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent)


class CopyFinder:
    """Finds the package beside this file, and what is in it."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "runjournal":
            return PathFinder.find_spec(name, [ROOT])
        return PathFinder.find_spec(name, path) if name.startswith("runjournal.") else None  # type: ignore[arg-type]


sys.meta_path.insert(0, CopyFinder)
_found = importlib.util.find_spec("runjournal")
if _found is None or _found.origin != os.path.join(ROOT, "runjournal", "__init__.py"):  # noqa: PTH118 - nothing more to load
    sys.stderr.write(f"the copy in {ROOT} isn't what is imported: {_found}\n")
    os._exit(70)  # no exit code of pytest: nothing was tested
