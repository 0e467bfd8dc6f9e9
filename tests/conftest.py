"""What all tests share: the requirement marks and the Hypothesis profiles."""

import os
from collections.abc import Iterator
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from runjournal import logbook
from runjournal.engine import tools
from runjournal.engine.retry import Retry

pytest_plugins = ["requirements_plugin"]

# `default` is what CI runs, the same examples every time; `crash` looks for new ones. EXAMPLES overrides the number.
_EXAMPLES = {"fast": 200, "default": 700, "crash": 10_000}

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


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that may be tried again is so at once, three times in all; a test of pauses says `retry=Retry()`."""
    monkeypatch.setattr(logbook, "DEFAULT", Retry(attempts=3, first_s=0))


@pytest.fixture(autouse=True)
def _tools_of_this_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each file of tests has its own mail, pay and charge, and so has each test: it sees those of its file alone.

    Which other files this process has read makes no difference: all that is chosen does one time, one file another.
    """
    before = {name: dict(claims) for name, claims in tools._known.items()}
    here = _modules_of(request.module)
    for name, claims in before.items():
        tools._known[name] = {place: made for place, made in claims.items() if place[0] in here}
    yield
    tools._known.clear()
    tools._known.update(before)


def _modules_of(test_module: ModuleType) -> set[str]:
    """Return the file of tests, and what it has imported: modules, or the ones that its functions come from."""
    return {test_module.__name__, *map(_module_of, vars(test_module).values())}


def _module_of(value: object) -> str:
    """Return the module that a value is, or comes from; "" for one that says none, or raises when it is asked."""
    if isinstance(value, ModuleType):
        return value.__name__
    try:
        name = getattr(value, "__module__", "")
    except Exception:  # noqa: BLE001 - values of tests may do anything
        return ""
    return name if isinstance(name, str) else ""
