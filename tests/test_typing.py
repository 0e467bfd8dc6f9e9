"""What a type checker says of a user's agents: each call has its function's types, and what is wrong is an error."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import runjournal

SAMPLE = Path(__file__).parent / "typing" / "sample_agent.py"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder in which the package has its import name, as installed, and beside it the sample."""
    package = tmp_path / "runjournal"
    package.mkdir()
    journal = Path(runjournal.__file__).parent
    folders = {"projections": "runjournal.projections", "cli": "runjournal.cli"}
    for path in journal.iterdir():
        if path.name != "__pycache__":
            (package / path.name).symlink_to(path.resolve())
    for folder, name in folders.items():
        if not (package / folder).exists():  # in the repository it stands beside it
            __import__(name)
            (package / folder).symlink_to(Path(str(sys.modules[name].__file__)).resolve().parent)
    (tmp_path / SAMPLE.name).write_bytes(SAMPLE.read_bytes())
    return tmp_path


def check(command: list[str], folder: Path) -> tuple[int, str]:
    environment = {**os.environ, "MYPYPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_mypy_knows_the_types_of_an_agent(installed: Path) -> None:
    """`mypy --strict` is green: what is asserted holds, and each line that says so is an error."""
    (installed / "mypy.ini").write_text("[mypy]\n")
    command = ["mypy", "--strict", "--python-version", "3.11", "--cache-dir", str(installed / "cache"), SAMPLE.name]
    assert (0, "Success: no issues found in 1 source file\n") == check(command, installed)


def test_pyright_knows_the_types_of_an_agent(installed: Path) -> None:
    """So is pyright's strict mode, to which an ignore without an error is one."""
    settings = {
        "include": [SAMPLE.name],
        "extraPaths": ["."],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "reportUnnecessaryTypeIgnoreComment": True,
    }
    (installed / "pyrightconfig.json").write_text(json.dumps(settings))
    code, text = check(["pyright", "--pythonpath", sys.executable], installed)
    if "0 errors" not in text and " - error: " not in text:
        pytest.skip(f"pyright can't be run here: {text[-200:]}")  # it brings its program along, or fetches it
    assert (0, "0 errors, 0 warnings, 0 informations") == (code, text.strip().splitlines()[-1]), text
