"""The record of proved requirements: only executed, passing tests count, also under xdist."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import requirements_plugin

SUITE = """\
import pytest

@pytest.mark.requirement("R1", "R2")
def test_passes(): pass

@pytest.mark.requirement("R3")
def test_fails(): assert False

@pytest.mark.requirement("R4")
def test_skips(): pytest.skip("no")

@pytest.mark.requirement("R5")
@pytest.mark.xfail
def test_fails_as_expected(): assert False

@pytest.fixture
def broken():
    yield
    raise RuntimeError

@pytest.mark.requirement("R6")
def test_fails_at_teardown(broken): pass
"""


@pytest.fixture
def run_suite(tmp_path):
    """Run a suite with the plugin in a folder of its own; gives the exit code, the output and the recorded file."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "tests").mkdir()
    shutil.copy(requirements_plugin.REQUIREMENTS_PATH, tmp_path / "docs")
    shutil.copy(requirements_plugin.__file__, tmp_path / "tests")
    (tmp_path / "tests" / "conftest.py").write_text('pytest_plugins = ["requirements_plugin"]\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = tests\ntestpaths = tests\nmarkers = requirement\n")

    def run(suite: str, *options: str) -> tuple[int, str, Path]:
        (tmp_path / "tests" / "test_suite.py").write_text(suite)
        command = [sys.executable, "-m", "pytest", "--requirements-to=build/proved.json", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr, tmp_path / "build" / "proved.json"

    return run


@pytest.mark.parametrize("workers", ["0", "2"])
def test_only_passing_tests_prove(run_suite, workers):
    """A test that fails, is skipped, is expected to fail or fails at its teardown proves nothing."""
    _, output, path = run_suite(SUITE, "-n", workers)
    assert path.exists(), output
    assert {"tests/test_suite.py::test_passes": ["R1", "R2"]} == json.loads(path.read_text())


def test_unknown_requirement(run_suite):
    """A mark that names no requirement stops the run."""
    code, output, _ = run_suite('import pytest\n@pytest.mark.requirement("R9999")\ndef test_it(): pass\n')
    assert pytest.ExitCode.USAGE_ERROR == code
    assert "R9999" in output


def test_stated():
    """The requirements of the document are found, numbered without a gap."""
    ids = list(requirements_plugin.stated(requirements_plugin.REQUIREMENTS_PATH.read_text(encoding="utf-8")))
    assert [f"R{number}" for number in range(1, len(ids) + 1)] == ids
    assert len(ids) >= 170


def test_unproved():
    """What no run has proved is listed, in the document's order."""
    assert ["R3", "R1"] == requirements_plugin.unproved(["R3", "R2", "R1"], [{"a": ["R2"]}, {"b": ["R2"]}])
