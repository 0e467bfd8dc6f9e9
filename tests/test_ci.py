"""What runs elsewhere and what runs here are the same commands: the workflow, `.ci/run`, and the Makefile."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z]+):.*## ", MAKEFILE, re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("file", [".github/workflows/ci.yml", ".ci/run"])
def test_commands_are_targets(file):
    """Every command of a pipeline is `make` with a target that the Makefile has."""
    text = (ROOT / file).read_text(encoding="utf-8")
    runs = re.findall(r"^ *- run: (.*)$|^(make .*)$", text, re.MULTILINE)
    commands = [first or second for first, second in runs]
    assert 2 <= len(commands)
    assert [] == [each for each in commands if each.split()[0] != "make" or each.split()[-1] not in TARGETS]


def test_workflow_covers_what_is_promised():
    """Every Python of pyproject.toml is tested on Linux and macOS; so are the oldest dependencies and the wheel."""
    pythons = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    (matrix,) = re.findall(r"python: (\[.*\])\n    runs-on: .*\n    timeout-minutes: 120", WORKFLOW)
    assert sorted(pythons) == sorted(set(re.findall(r"3\.\d+", matrix)) - {"3.14"})
    assert "3.14" in matrix
    jobs = re.findall(r"^  (\w+):(?:  #.*)?\n    (?:strategy|runs-on)", WORKFLOW, re.MULTILINE)
    assert ["lint", "test", "oldest", "wheel"] == jobs
    assert {"actions/checkout", "actions/setup-python"} == set(re.findall(r"uses: ([\w/-]+)@", WORKFLOW))
    assert 2 == WORKFLOW.count("os: [ubuntu-latest, macos-latest]")


def test_check_names_files():
    """Each file that `make check` runs is there."""
    (listed,) = re.findall(r"^CHECK := \$\(patsubst %,tests/test_%\.py,((?:.*\\\n)*.*)\)$", MAKEFILE, re.MULTILINE)
    names = listed.replace("\\", " ").split()
    assert 10 < len(names)
    assert [] == [name for name in names if not (ROOT / "tests" / f"test_{name}.py").is_file()]


def test_oldest_versions():
    """The constraints for the oldest dependencies pin each that pyproject.toml declares to its lower bound."""
    spec = importlib.util.spec_from_file_location("oldest", ROOT / "tests" / "oldest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = set(module.oldest(PROJECT))
    assert {"apsw==3.51.3", "eventsourcing==9.5.6", "pyright==1.1.400"} <= found
    declared = {re.split(r"[\[><=]", each)[0] for each in PROJECT["dependencies"]}
    assert declared <= {each.partition("==")[0] for each in found}
