"""Print constraints for pip that take the oldest version of each dependency that pyproject.toml allows.

python tests/oldest.py > build/oldest.txt
python -m pip install --constraint build/oldest.txt -e '.[all,dev]'
"""

import itertools
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def oldest(project: dict[str, Any]) -> Iterator[str]:
    """``apsw>=3.51.3`` -> ``apsw==3.51.3``, for users' dependencies and for the tools of the tests."""
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    found = {re.match(r"([\w.-]+)(?:\[[^\]]*\])?>=([\w.]+)", each) for each in itertools.chain(*lists)}
    yield from sorted({f"{each[1]}=={each[2]}" for each in found if each})


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in oldest(tomllib.loads(_PROJECT.read_text("utf-8"))["project"]))
