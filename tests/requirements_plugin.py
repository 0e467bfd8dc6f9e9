"""Which requirements the tests prove: a pytest plugin that records, and a script that reports.

    pytest --requirements-to=build/requirements-test.json
    python tests/requirements_plugin.py docs/requirements.md build/requirements-*.json

A test carries ``@pytest.mark.requirement("R47")``. The recorded file maps the id of each test that passed to the ids
of the requirements that it carries; a test that failed, was skipped or was expected to fail proves nothing.
"""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

REQUIREMENTS_PATH = Path(__file__).resolve().parent.parent / "docs" / "requirements.md"
_PROPERTY = "requirement"


def stated(text: str) -> dict[str, str]:
    """The requirements that a document states: id -> the first line of its text, in the document's order."""
    return dict(re.findall(r"^- \*\*(R\d+)\*\* (.*)$", text, flags=re.MULTILINE))


def unproved(requirements: Iterable[str], runs: Iterable[dict[str, list[str]]]) -> list[str]:
    """The requirements that no passing test of these runs carries, in the order given."""
    proved = {requirement for run in runs for ids in run.values() for requirement in ids}
    return [requirement for requirement in requirements if requirement not in proved]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--requirements-to``."""
    parser.addoption("--requirements-to", metavar="PATH", help="write which requirements the passing tests carry")


def pytest_configure(config: pytest.Config) -> None:
    """Record in the process that reports: with xdist that is the controller."""
    if (path := config.getoption("--requirements-to")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config.rootpath / path), "requirements-recorder")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the ids of the marks into the properties of the reports, which xdist carries over; refuse unknown ones."""
    known = stated(REQUIREMENTS_PATH.read_text(encoding="utf-8"))
    for item in items:
        for mark in item.iter_markers("requirement"):
            if not mark.args or not known.keys() >= set(mark.args):
                raise pytest.UsageError(f"{item.nodeid}: {mark.args} names no requirement of {REQUIREMENTS_PATH.name}")
            item.user_properties += [(_PROPERTY, requirement) for requirement in mark.args]


class Recorder:
    """Collects the outcome of every test and writes the requirements of those that passed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._carried: dict[str, list[str]] = {}
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of one phase of a test; a test has passed if its call did and no other phase failed."""
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            ids = {str(value) for name, value in report.user_properties if name == _PROPERTY}
            if ids:
                self._carried[report.nodeid] = sorted(ids, key=lambda requirement: int(requirement[1:]))
        elif report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        passed = {test: ids for test, ids in sorted(self._carried.items()) if test not in self._failed}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(passed, indent=1) + "\n", encoding="utf-8")


def main(requirements_path: str, *run_paths: str) -> None:
    """Print the requirements that no passing test of the recorded runs carries."""
    requirements = stated(Path(requirements_path).read_text(encoding="utf-8"))
    left = unproved(requirements, [json.loads(Path(path).read_text(encoding="utf-8")) for path in run_paths])
    for requirement in left:
        print(f"{requirement:<5} {requirements[requirement]}")  # noqa: T201 - the report is what the script is for
    print(f"{len(left)} of {len(requirements)} are left", file=sys.stderr)  # noqa: T201 - as above


if __name__ == "__main__":
    main(*sys.argv[1:])
