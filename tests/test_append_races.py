"""Appends that race: by processes and threads, stopped owners, cancels and kills (`programs/append_races.py`)."""

import random

import pytest
from programs import append_races

ROUNDS = [pytest.param(8, id="few"), pytest.param(1000, id="many", marks=[pytest.mark.crash, pytest.mark.timeout(900)])]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("name", sorted(append_races.RACES))
def test_appends_that_race(name, rounds, tmp_path):
    """What is acknowledged is there once, the chain is dense, and nothing stands behind a fence or a cancel."""
    assert [] == append_races.RACES[name](tmp_path / "runs.db", random.Random(f"1 {name}"), rounds)
