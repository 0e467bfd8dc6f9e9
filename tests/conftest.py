"""What all tests share: the requirement marks and the Hypothesis profiles."""

import os

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["requirements_plugin"]

# `default` is what CI runs, the same examples every time; `crash` looks for new ones. EXAMPLES overrides the number.
_EXAMPLES = {"fast": 200, "default": 2_000, "crash": 10_000}

for _name, _count in _EXAMPLES.items():
    settings.register_profile(
        _name,
        max_examples=int(os.environ.get("EXAMPLES", _count)),
        deadline=None,
        derandomize=_name != "crash",
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],  # tells of the machine, not of the test
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end how many mutants were killed, if any were tried."""
    reports = [
        (report.nodeid, outcome)
        for outcome in ("passed", "failed", "error")
        for report in terminalreporter.stats.get(outcome, ())
        if "test_mutants.py::test_the_suite_bites" in report.nodeid
    ]
    if tried := {nodeid for nodeid, _ in reports}:
        killed = tried - {nodeid for nodeid, outcome in reports if outcome != "passed"}
        terminalreporter.write_line(f"{len(killed)} of {len(tried)} mutants killed")
