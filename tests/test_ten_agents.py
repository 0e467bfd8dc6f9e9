"""Agents as a new user writes them, killed at random, with tools that time out: `programs/ten_agents.py` judges."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "ten_agents.py"


def killed(kills: int, seed: int) -> None:
    """Kill each agent so often under each `on_unknown`."""
    given = [sys.executable, str(PROGRAM), "--kills", str(kills), "--seed", str(seed)]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert (0, "violations 0") == (done.returncode, done.stdout.splitlines()[-1]), done.stdout + done.stderr
    assert 11 * 3 * kills <= int(done.stdout.splitlines()[-2].split()[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="its lives are forked")
@pytest.mark.requirement("R65", "R84", "R101")
def test_a_sample_of_kills_of_agents_as_they_are_written() -> None:
    """Two kills of each under each `on_unknown`: no effect stands twice in the ledger without a person's word."""
    killed(2, 3)


@pytest.mark.crash
@pytest.mark.timeout(3500)
@pytest.mark.requirement("R65", "R84", "R101")
def test_sixty_kills_of_agents_as_they_are_written() -> None:
    """Sixty kills of each under each `on_unknown`, some 2,000 in all, and each request was valid for its provider."""
    killed(60, 1)
