"""Random agents in warm forked children, killed and interrupted at random: `programs/strike.py` judges them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STRIKE = Path(__file__).parent / "programs" / "strike.py"


def strike(kills: int, interrupts: int, seed: int) -> None:
    given = ["--kills", str(kills), "--interrupts", str(interrupts), "--seed", str(seed)]
    done = subprocess.run([sys.executable, str(STRIKE), *given], capture_output=True, text=True, check=False)
    rows = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines())
    assert (0, "0") == (done.returncode, rows.get("violations")), done.stdout + done.stderr
    assert (kills <= int(rows["kills"]), interrupts <= int(rows["interrupts"])) == (True, True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="its children are forked")
@pytest.mark.requirement("R3", "R14", "R47")
def test_a_sample_of_kills_and_interrupts() -> None:
    """No judge finds anything after five of each."""
    strike(5, 5, 11)


@pytest.mark.crash
@pytest.mark.timeout(3500)
@pytest.mark.requirement("R3", "R14", "R47")
def test_a_thousand_kills_and_a_thousand_interrupts() -> None:
    """No judge finds anything after a thousand of each, half of them in asyncio."""
    strike(1000, 1000, 7)
