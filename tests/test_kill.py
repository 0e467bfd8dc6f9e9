"""SIGKILL: a writer dies at a random moment, again and again, on one store."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runjournal.journal import Journal
from runjournal.looking.audit import audit_store

WRITER = Path(__file__).parent / "programs" / "writer.py"
KILLS = 25


def killed(store: Path, seed: str, rng: random.Random) -> list[tuple[str, int, str]]:
    """Start a writer, kill it at a random moment, and give what was acknowledged to it: (run, seq, hash)."""
    command = [sys.executable, str(WRITER), str(store), seed]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(rng.uniform(0, 0.12))
        writer.kill()
        lines = [first, *writer.stdout]
    assert writer.returncode == -9
    whole = [line.split() for line in lines if line.endswith("\n")]
    return [(run_id, int(seq), digest) for run_id, seq, digest in whole]


@pytest.mark.requirement("R3")
@pytest.mark.requirement("R47")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.crash) for seed in range(1, 12))])
def test_no_kill_takes_what_was_committed(tmp_path: Path, seed: int) -> None:
    """After each kill every acknowledged event is there, no run has a gap, and the audit finds no damage."""
    store, rng, acknowledged = tmp_path / "runs.db", random.Random(seed), dict[tuple[str, int], str]()
    for kill in range(KILLS):
        for run_id, seq, digest in killed(store, f"{seed}-{kill}", rng):
            acknowledged[run_id, seq] = digest
        with Journal.open(store) as journal:
            stored = {
                (head.run_id, record.seq): record.hash
                for head in journal.runs()
                for record in journal.store.read(head.run_id)
            }
            assert {key: stored.get(key) for key in acknowledged} == acknowledged
            for head in journal.runs():
                assert [record.seq for record in journal.store.read(head.run_id)] == list(range(1, head.head_seq + 1))
            if kill == KILLS - 1 or kill % 8 == 0:
                damage = [finding for finding in audit_store(journal.store) if finding.severity == "error"]
                assert damage == []
    assert len(acknowledged) > KILLS
