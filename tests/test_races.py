"""Two processes act on the same run at the same moment: there is one outcome, and the log has no gap."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runjournal import Journal
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.looking.audit import verify_run

PROGRAM = Path(__file__).parent / "programs" / "racer.py"
ERROR = {"type": "Boom", "message": "no number"}
Came = list[Any]


def owned(journal: Journal, run_id: str, *events: e.Event) -> None:
    me = owner.here()
    claim = e.RunClaimed("w", 1, 60.0, me.host, me.boot_id, me.pid_ns, me.pid, me.started)
    journal.append(run_id, [e.RunQueued("agent", run_id), claim], expect=0)
    journal.append(run_id, list(events), epoch=1)


def asks(journal: Journal, run_id: str) -> None:
    owned(journal, run_id, e.ApprovalRequested("q1", "go on", ""), e.RunWaiting([{"kind": "approval", "id": "q1"}]))


def fails(journal: Journal, run_id: str) -> None:
    owned(journal, run_id, e.RunFailed(ERROR, [], "error"))


def stands(journal: Journal, run_id: str) -> None:
    owned(journal, run_id, e.RunWaiting([{"kind": "code", "id": "PlanChanged"}], why="another step"))


def queued(journal: Journal, run_id: str) -> None:
    journal.enqueue("agent", run_id, run_id=run_id)


def left_behind(journal: Journal, run_id: str) -> None:
    """Its owner's lease is over, and a step that has sent nothing is open."""
    me = owner.here()
    claim = e.RunClaimed("w", 1, 0.001, me.host, me.boot_id, me.pid_ns, me.pid, me.started)
    step = e.StepStarted(0, "post", "post", "do", 1, 1)
    journal.append(run_id, [e.RunQueued("agent", run_id), claim, step], expect=0)
    time.sleep(0.002)


def one_answer(journal: Journal, run_id: str, came: list[Came], _: list[str]) -> None:
    assert [[False, "NotAllowed"], [True, None]] == sorted(came)
    assert 1 == count(journal, run_id, "approval.resolved")


def one_retry(journal: Journal, run_id: str, came: list[Came], _: list[str]) -> None:
    assert [[True, f"{run_id}.r2"]] * 2 == came
    assert [f"{run_id}.r2", run_id] == [head.run_id for head in journal.runs(prefix=run_id)]


def one_end(journal: Journal, run_id: str, came: list[Came], _: list[str]) -> None:
    """The cancel is about the run that waits; a retry goes on from there once that has ended, or is refused."""
    (cancelled, _), (retried, what) = came
    assert (True, 1) == (cancelled, count(journal, run_id, "run.cancelled"))
    assert what == (f"{run_id}.r2" if retried else "NotNewest")
    assert ["queued"] * retried == [head.status for head in journal.runs(prefix=f"{run_id}.r2")]


def one_outcome(journal: Journal, run_id: str, came: list[Came], ledger: list[str]) -> None:
    """It completes or is cancelled, and whoever runs it is told which; what was sent is on record, and sent once."""
    (completed, _), (cancelled, why) = came
    ends = {name: count(journal, run_id, f"run.{name}") for name in ("completed", "cancelled", "failed")}
    assert ends == {"completed": int(completed), "cancelled": int(not completed), "failed": 0}, came
    assert cancelled or (completed and why == "InvalidTransition"), came
    assert ledger.count(run_id) == count(journal, run_id, "tool.completed") == count(journal, run_id, "tool.started")


def one_recovery(journal: Journal, run_id: str, came: list[Came], ledger: list[str]) -> None:
    """The same for whoever recovers it: that one hears of the end, or finds the run ended."""
    (_, found), (cancelled, why) = came
    completed = count(journal, run_id, "run.completed")
    assert (1, 0) == (completed + count(journal, run_id, "run.cancelled"), count(journal, run_id, "run.failed")), came
    assert completed == (found == {run_id: "posted"})
    assert cancelled or (completed and why == "InvalidTransition"), came
    assert ledger.count(run_id) == count(journal, run_id, "tool.completed") == count(journal, run_id, "tool.started")


def always_cancelled(journal: Journal, run_id: str, came: list[Came], _: list[str]) -> None:
    """It is never left to be tried once more: neither by its owner, nor behind the cancel."""
    assert ("cancelled", 1) == (journal.head(run_id).status, count(journal, run_id, "run.cancelled")), came


def one_owner(journal: Journal, run_id: str, came: list[Came], ledger: list[str]) -> None:
    """Both try to run it: the effect is there once, whoever was faster."""
    assert ("completed", 1, 1) == (
        journal.head(run_id).status,
        count(journal, run_id, "run.completed"),
        ledger.count(run_id),
    ), came


def count(journal: Journal, run_id: str, kind: str) -> int:
    return len(list(journal.events(run_id, types=(kind,))))


RACES: dict[str, tuple[Callable[[Journal, str], None], tuple[str, str], Callable[..., None]]] = {
    "two approvers": (asks, ("approve", "reject"), one_answer),
    "two retries": (fails, ("retry", "retry"), one_retry),
    "cancel and retry": (asks, ("cancel", "retry"), one_end),
    "resume and recover": (stands, ("resume", "recover"), one_owner),
    "complete while cancelling": (queued, ("run", "cancel now"), one_outcome),
    "cancel while recovering": (left_behind, ("recover", "cancel"), one_recovery),
    "a retry while cancelling": (queued, ("run and fail", "cancel"), always_cancelled),
}


LATE_S = {"complete while cancelling": 0.015, "cancel while recovering": 0.015, "a retry while cancelling": 0.015}
"""How much later the second may act, where the first has more to do than it: so that each can be the faster one."""


@pytest.fixture
def racers(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that have the store open, and wait for what to do."""
    words = [sys.executable, str(PROGRAM), str(tmp_path / "runs.db"), str(tmp_path / "ledger")]
    Journal.open(tmp_path / "runs.db").close()
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as one, subprocess.Popen(words, **pipes) as two:
        for each in (one, two):
            assert each.stdout is not None
            assert "ready\n" == each.stdout.readline()
        yield [one, two]
        for each in (one, two):
            assert each.stdin is not None
            each.stdin.close()


def race(folder: Path, racers: list[subprocess.Popen[str]], name: str, rounds: int) -> None:
    """Have both act on the same run so many times, at most some milliseconds apart."""
    build, verbs, check = RACES[name]
    rng, ledger = random.Random(7), folder / "ledger"
    ledger.touch()
    with Journal.open(folder / "runs.db") as journal:
        for number in range(rounds):
            run_id = f"run-{number}"
            build(journal, run_id)
            when = time.monotonic() + 0.005
            for racer, verb, apart_s in zip(racers, verbs, (0.002, LATE_S.get(name, 0.002)), strict=True):
                assert racer.stdin is not None
                racer.stdin.write(json.dumps([verb, run_id, when + rng.random() * apart_s]) + "\n")
                racer.stdin.flush()
            came = [json.loads(racer.stdout.readline()) for racer in racers if racer.stdout is not None]
            check(journal, run_id, came, ledger.read_text().splitlines())
            for head in list(journal.runs(prefix=run_id)):
                if head.run_id.removeprefix(run_id)[:1] in ("", "."):
                    assert list(range(1, head.head_seq + 1)) == [record.seq for record in journal.events(head.run_id)]
                    assert [] == verify_run(journal.store, head.run_id).problems


@pytest.mark.parametrize("name", RACES)
def test_races(tmp_path: Path, racers: list[subprocess.Popen[str]], name: str) -> None:
    """Of two processes that act at the same time one has its way, and the other is told, fifty times."""
    race(tmp_path, racers, name, 50)


@pytest.mark.crash
@pytest.mark.parametrize("name", RACES)
def test_many_races(tmp_path: Path, racers: list[subprocess.Popen[str]], name: str) -> None:
    """The same, a thousand in all."""
    race(tmp_path, racers, name, 250)
