"""The tests bite: with any one rule of the engine replaced, something turns red (`mutants.py` holds the replacements).

Each worker has one copy of the package and of the tests, where one module at a time is replaced and tests run in a
process of their own; so what isn't replaced is compiled once. `make mutants` tries them all.
"""

from __future__ import annotations

import ast
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from mutants import MUTANTS, RULES
from mutating import Mutant, NoPlaceError, checkout, mutated

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"journal": "runjournal", "projections": "runjournal/projections", "cli": "runjournal/cli"}
COMPILED = shutil.ignore_patterns("__pycache__")
QUICK = (
    "verdict",
    "engine_rules",
    "engine_gaps",
    "engine_stories",
    "threads",
    "budget",
    "status",
    "folds",
    "tool_names",
    "mistyped",
    "standstill",
    "lines",
    "same_call",
    "children",
)
SLOWER = ("identity", "recovery", "engine_records", "engine_faults", "async_driver", "engine_model")
SELECTION = (*QUICK, "store_replaced", *SLOWER)
WITHOUT = (
    "tests/test_engine_rules.py::test_the_rule[model",  # it isn't mutated
    "tests/test_engine_rules.py::test_the_rule[sqlite",
    "tests/test_engine_rules.py::test_the_rule[memory-a_stalled_owner_in_each_place]",  # slow, and drawn below
    "tests/test_engine_model.py::test_a_crash_at_every_boundary_of_a_sample",
    "tests/test_engine_model.py::test_an_owner_that_stalls_at_every_boundary_of_a_sample",
)
SAMPLE = random.Random(3).sample([mutant for mutant in MUTANTS if mutant.dies == RULES], 3)
TIMEOUT_S = 1800
RED = 1  # pytest's: tests were run, and some failed; 2 and more: it never came to that


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and of the tests."""
    folder = tmp_path_factory.mktemp("mutants")
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=COMPILED)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs/requirements.md", folder / "docs")  # tests name them
    shutil.copy(ROOT / "tests/programs/mutated_first.py", folder / "sitecustomize.py")
    for source, target in FOLDERS.items():
        shutil.copytree(ROOT / source, folder / target, ignore=COMPILED)
    return folder


@contextmanager
def replaced(copy: Path, mutant: Mutant) -> Iterator[None]:
    """With the mutant in the copy; what came of it is gone afterwards."""
    path, text = mutated(checkout(ROOT), mutant)
    source, _, rest = path.partition("/")
    try:
        rewrite(copy / FOLDERS[source] / rest, text)
        yield
    finally:
        rewrite(copy / FOLDERS[source] / rest, (ROOT / path).read_text("utf-8"))
        shutil.rmtree(copy / ".hypothesis", ignore_errors=True)  # examples that fell over this mutant


def rewrite(module: Path, text: str) -> None:
    """Change a module; it must not be taken for what was compiled before, perhaps within the same second."""
    for compiled in module.parent.glob(f"__pycache__/{module.stem}.*.pyc"):
        compiled.unlink()
    module.write_text(text, "utf-8")


def suite(folder: Path, names: Sequence[str] = SELECTION) -> tuple[int, str]:
    """Run these test files on what is copied there; gives pytest's exit code and the end of what it said."""
    files = [f"tests/test_{name}.py" for name in names]
    without = [f"--deselect={name}" for name in WITHOUT]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not crash", "-o", "timeout=60", "-o", "timeout_method=thread", *without, *files]
    told = {"HYPOTHESIS_PROFILE": "fast", "EXAMPLES": "15", "NO_SHRINK": "1", "PYTHONPATH": str(folder)}
    told["PYTHONDONTWRITEBYTECODE"] = ""  # do write it
    done = subprocess.run(
        command, cwd=folder, env=os.environ | told, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return done.returncode, (done.stdout + done.stderr)[-2000:]


def bites(mutant: Mutant, copy: Path) -> tuple[int, str]:
    """The same with a mutant: first what it falls over soonest, then all the rest."""
    with replaced(copy, mutant):
        code, said = suite(copy, [mutant.dies])
        return (code, said) if code else suite(copy, [name for name in SELECTION if name != mutant.dies])


def test_each_mutant_has_its_place():
    """Its piece of code is there once, what takes its place compiles and is other code, and no two have one name."""
    assert {} == {name: count for name, count in Counter(each.name for each in MUTANTS).items() if count > 1}
    sources, astray = checkout(ROOT), list[str]()
    before = {path: ast.dump(ast.parse(text)) for path, text in sources.items()}
    for mutant in MUTANTS:
        assert (ROOT / f"tests/test_{mutant.dies}.py").exists(), mutant.name
        try:
            path, text = mutated(sources, mutant)
        except NoPlaceError as error:
            astray.append(str(error))
        else:
            assert before[path] != ast.dump(compile(text, path, "exec", ast.PyCF_ONLY_AST)), mutant.name
    assert not astray, "\n".join(astray)


@pytest.mark.parametrize("mutant", SAMPLE, ids=lambda mutant: mutant.name)
def test_the_suite_bites_on_a_sample(mutant: Mutant, copy: Path):
    """Three of the mutants, the same ones every time, fall over the rules."""
    with replaced(copy, mutant):
        code, said = suite(copy, [RULES])
    assert RED == code, said


@pytest.mark.crash
@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_suite_bites(mutant: Mutant, copy: Path):
    """With any one rule replaced, some test fails."""
    code, said = bites(mutant, copy)
    assert RED == code, said


@pytest.mark.crash
@pytest.mark.mutants
def test_the_suite_is_green_without_a_mutant(copy: Path):
    """What falls, falls over the mutant: a copy of the code as it is passes."""
    code, said = suite(copy)
    assert code == 0, said
