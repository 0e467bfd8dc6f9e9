"""What looking at a store of many runs costs, beside the same in a store of few."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

from measure import Pairs, interleaved, spread

from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.looking.audit import audit_store, verify_store
from runjournal.testing.generate import claim

RUNS = (20_000, 1_000)
TOGETHER = 600
RARE = 250
PAGE = 50
REPEATS = 20


def _store(folder: Path, count: int) -> Journal:
    """A store of so many runs: the oldest few have failed, and are of a kind, and have a tag; the others completed."""
    folder.mkdir(exist_ok=True)
    journal = Journal.open(folder / f"runs-{count}.db")
    batches = []
    for number in range(count):
        rare = number < RARE
        queued = e.RunQueued("rare" if rare else "report", None, tags={"team": "ops" if rare else "web"})
        end = e.RunFailed({"type": "E", "message": ""}, [], "error") if rare else e.RunCompleted(None)
        batches.append(journal.batch(f"run-{number:06}", [queued], expect=0))
        batches.append(journal.batch(f"run-{number:06}", [claim(1)], expect=1))
        batches.append(journal.batch(f"run-{number:06}", [end], expect=2, epoch=1))
    for place in range(0, len(batches), TOGETHER):
        journal.append_all(batches[place : place + TOGETHER])
    return journal


ASKED: dict[str, Callable[[Journal], object]] = {
    "@last": lambda journal: journal.latest(),
    "@last-failed": lambda journal: journal.latest(status="failed"),
    "--kind": lambda journal: _page(journal, kind="rare"),
    "--tag": lambda journal: _page(journal, tags={"team": "ops"}),
    "--status": lambda journal: _page(journal, status="failed"),
    "--status, several": lambda journal: _page(journal, status=["failed", "completed"]),
}


def _page(journal: Journal, **filters: object) -> list[object]:
    return list(itertools.islice(journal.runs(**filters), PAGE))  # type: ignore[arg-type]  # as they are named above


def list_growth(folder: Path, pairs: int) -> dict[str, dict[str, float]]:
    """Each question, of 20,000 runs / of 1,000."""
    many, few = (_store(folder, count) for count in RUNS)
    found: dict[str, dict[str, float]] = {}
    for name, ask in ASKED.items():
        found[name] = Pairs.ratio(interleaved(_often(ask, many), _often(ask, few), pairs))
    many.close()
    few.close()
    return found


def _often(ask: Callable[[Journal], object], journal: Journal) -> Callable[[], None]:
    def run() -> None:
        for _ in range(REPEATS):
            ask(journal)

    return run


def audit_ratio(folder: Path, pairs: int) -> dict[str, float]:
    """A whole audit of a store of 1,000 short runs / verifying the chains of all."""
    with _store(folder / "audited", RUNS[1]) as journal:
        return interleaved(
            lambda: list(audit_store(journal.store)), lambda: list(verify_store(journal.store)), pairs
        ).ratio()


SPENT_RUNS, SPENT_CALLS = 2_000, 50
_PRICE = {"amount": "0.00123", "currency": "USD", "source": "reported"}
_USAGE = {"input": 100, "output": 20, "cache_read": 0, "cache_write": 0}


def spent(path: Path) -> Path:
    """A store of 2,000 runs with 50 model calls each, over a month."""
    clock = FakeClock()
    with Journal.open(path, clock=clock) as journal:
        for number in range(SPENT_RUNS):
            run_id = f"run-{number:04}"
            begun = [e.RunQueued("report", None), claim(1), e.StepStarted(0, "s", "s", "once", 1, 1)]
            calls: list[e.Event] = []
            for call in range(SPENT_CALLS):
                calls.append(e.ModelStarted(f"c{call}", f"model-{call % 5}", "", 1))
                calls.append(e.ModelCompleted(f"c{call}", 1, "yes", usage=_USAGE, cost=_PRICE))
            end = [e.StepCompleted(0), e.RunCompleted(None)]
            journal.append(run_id, begun, expect=0)
            journal.append(run_id, [*calls, *end], epoch=1)
            clock.sleep(30 * 86_400 / SPENT_RUNS)
    return path


def cost_by_day_s(path: Path, times: int) -> dict[str, float]:
    """CPU seconds of what all of them have cost, by day."""
    found: list[float] = []
    with Journal.open(path, clock=FakeClock()) as journal:
        for _ in range(times):
            began = time.process_time()
            assert journal.costs(by="day").total.calls == SPENT_RUNS * SPENT_CALLS
            found.append(time.process_time() - began)
    return spread(found)
