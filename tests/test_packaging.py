"""The wheel: what is in it, and that it works alone, out of reach of the sources."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION = PROJECT["project"]["version"]

SCRIPT = """\
import sys
from pathlib import Path

import runjournal
from runjournal import Journal
from runjournal.log.events import RunQueued

assert Path(runjournal.__file__).is_relative_to(sys.prefix), runjournal.__file__
with Journal.open(sys.argv[1]) as journal:
    journal.append("run-1", [RunQueued(kind="demo", input={})], expect=0)
    print(journal.state("run-1").status.status)
"""

# One worker builds the wheel once, for all tests of this module.
pytestmark = [pytest.mark.xdist_group("packaging"), pytest.mark.timeout(600)]


def call(*command: object, cwd: Path) -> str:
    """Run a program without our environment's Python settings; its output is shown if it fails."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy: a build/ left in the checkout would get into it."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for folder in ["journal", "projections", "cli"]:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ["pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy(ROOT / file, source)
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", out, source]
    if int(importlib.metadata.version("setuptools").partition(".")[0]) >= 77:
        build.append("--no-isolation")
    call(*build, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A new environment that holds the wheel and its dependencies, nothing else."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    call(
        sys.executable, "-m", "pip", "--python", python, "install", "-q", "--disable-pip-version-check", wheel, cwd=home
    )
    return home


def test_packages_match_folders():
    """`packages` in pyproject.toml names the folders that hold an `__init__.py`, by package-dir, and no other."""
    tables = PROJECT["tool"]["setuptools"]
    tops = {folder: name for name, folder in tables["package-dir"].items()}
    found = [init.parent.relative_to(ROOT).parts for folder in tops for init in (ROOT / folder).rglob("__init__.py")]
    assert sorted(tables["packages"]) == sorted(".".join([tops[top], *rest]) for top, *rest in found)


def test_wheel_content(wheel):
    """The wheel holds every file of the three folders, under the one import package."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {"runjournal"} == {name.partition("/")[0] for name in names}
    places = {"journal": "runjournal", "projections": "runjournal/projections", "cli": "runjournal/cli"}
    expected = {
        f"{place}/{file.relative_to(ROOT / folder).as_posix()}"
        for folder, place in places.items()
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".py", ".pyi", ".sql", ".typed"}
    }
    assert expected == names


def test_nothing_at_the_top(installed):
    """Nothing called cli, projections or journal lands at the top of site-packages."""
    site = Path(sysconfig.get_path("purelib", vars={"base": str(installed), "platbase": str(installed)}))
    tops = {path.name for path in site.iterdir()}
    assert "runjournal" in tops
    assert set() == tops & {"cli", "projections", "journal", "tests", "benchmarks"}


@pytest.mark.parametrize("program", [["bin/runjournal"], ["bin/python", "-m", "runjournal.cli"]])
def test_version(installed, tmp_path, program):
    """Both ways to call the installed command tell the version of pyproject.toml."""
    assert VERSION in call(installed / program[0], *program[1:], "--version", cwd=tmp_path)


@pytest.mark.parametrize("place", ["memory:", "journal.db"])
def test_script(installed, tmp_path, place):
    """A script outside the checkout can open a journal, append an event and read the run's state."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    assert "queued\n" == call(installed / "bin" / "python", script, place, cwd=tmp_path)


def test_smoke(installed, tmp_path):
    """The wheel alone runs an agent that is interrupted and goes on, and the command line looks at its run."""
    script = shutil.copy(ROOT / "tests" / "programs" / "smoke.py", tmp_path)
    assert "interrupted\nsmoke test passed\n" == call(
        installed / "bin" / "python", "-I", script, tmp_path, cwd=tmp_path
    )
