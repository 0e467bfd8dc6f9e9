"""The demo's evidence: what the log said when a life had ended, and what log and ledger say in the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from runjournal.engine.requests import request_hash
from runjournal.engine.verdict import Judged
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.base import RecordedEvent
from runjournal.looking.audit import audit_run
from runjournal.projections.state import RunState, dump_bytes

from .stage import COMMIT, INVOICES, Life
from .world import Entry, ledger


class Found(NamedTuple):
    """A run as a killed life left it.

    `lost` is what the life knew to be committed and isn't there: (seq, type). `kept` are the steps that are complete;
    `given_back` is {call id: tool or model} of the open step's calls whose outcome is on record; `verdicts` are of
    those that have none.
    """

    life: Life
    state: RunState
    lost: set[tuple[int, str]]
    kept: list[str]
    given_back: dict[str, str]
    verdicts: list[Judged]


class Proof(NamedTuple):
    """A promise, and whether it was kept."""

    what: str
    kept: bool


def find(journal: Journal, run_id: str, life: Life) -> Found:
    """Return a run as whoever goes on with it will find it. Writes nothing."""
    recovery = journal.recover(run_id)
    state = recovery.state
    step = state.steps.open
    calls = state.calls.of_step(step.id) if step else {}
    on_record = {call_id: call.tool for call_id, call in calls.items() if call.status == "completed"}
    stored = {(record.seq, record.type) for record in journal.events(run_id)}
    return Found(life, state, set(life.committed) - stored, state.steps.completed, on_record, recovery.verdicts)


def effects(folder: Path) -> list[Entry]:
    """Return what the world's ledger holds of effects, without the questions to the model."""
    return [entry for entry in ledger(folder) if entry["what"] != "ask_model"]


def asked(folder: Path) -> list[Entry]:
    """Return the questions that the model was paid for."""
    return [entry for entry in ledger(folder) if entry["what"] == "ask_model"]


def paid(folder: Path) -> Decimal:
    """Return what they cost, in USD."""
    return sum((Decimal(entry["usd"]) for entry in asked(folder)), Decimal(0))


def bookings(journal: Journal, run_id: str) -> list[tuple[str, int, str]]:
    """Return the run's rows of the agent's own table: (invoice, cents, charge)."""
    query = "SELECT invoice, cents, charge FROM demo_bookings WHERE run_id = ? ORDER BY rowid"
    return [(str(invoice), int(cents), str(charge)) for invoice, cents, charge in journal.sql(query, [run_id])]


def checks(journal: Journal, run_id: str, folder: Path, found: Sequence[Found]) -> Iterator[Proof]:
    """Return everything that the demo promises, and whether it was kept."""
    records = list(journal.events(run_id))
    yield Proof(
        "killed twice, once between an effect and its record",
        len(found) == 2 and any(_in_a_window(each, folder) for each in found),  # noqa: PLR2004 - as the points are
    )
    yield Proof(
        "nothing committed was lost, and no event is missing",
        not any(each.lost for each in found) and [record.seq for record in records] == [*range(1, len(records) + 1)],
    )
    yield Proof(
        "no step that was complete was done again, and no outcome on record was asked for again",
        not any(_again(each, records) for each in found),
    )
    yield Proof("every effect is in the world's ledger, and once", _each_once(folder))
    charges = [
        (entry["args"]["invoice"], entry["args"]["cents"], entry["result"]["charge"])
        for entry in effects(folder)
        if entry["what"] == "charge_card"
    ]
    yield Proof("the agent's own table has one row for each charge", bookings(journal, run_id) == charges)
    answers = [record.event for record in records if isinstance(record.event, e.ModelCompleted)]
    yield Proof("every question to the model was paid once", _paid_once(records, folder, len(answers)))
    state, whole = journal.state(run_id), journal.replay(run_id)
    yield Proof("the ledger of costs is the model's bill, to the last digit", state.costs.amount("USD") == paid(folder))
    findings = [finding.code for finding in audit_run(journal.store, run_id) if finding.counts]
    yield Proof(f"the audit: {', '.join(findings) or 'nothing is wrong'}", not findings)
    yield Proof("from a checkpoint or from the first event, the fold is the same, byte for byte", _same(state, whole))
    places = " and ".join(str(each.state.seq) for each in found)
    yield Proof(
        f"replayed to event {places}, the run is what it was then, byte for byte",
        all(_same(each.state, journal.replay(run_id, at=each.state.seq)) for each in found),
    )
    yield Proof(
        f"the run is {state.status.status}, its plan is {'done' if _planned(state) else 'open'}",
        state.status.status == "completed" and _planned(state),
    )


def _in_a_window(found: Found, folder: Path) -> bool:
    """Whether the world had done something of which the log had no outcome when the life ended."""
    if found.life.killed is None or found.life.killed.what == COMMIT:
        return False
    entry = ledger(folder)[found.life.line - 1]
    return any((verdict.tool, verdict.args) == (entry["what"], entry["args"]) for verdict in found.verdicts)


def _again(found: Found, records: Sequence[RecordedEvent]) -> bool:
    later = [record.event for record in records if record.seq > found.state.seq]
    return any(isinstance(event, e.StepStarted) and event.id in found.kept for event in later) or any(
        isinstance(event, e.ToolStarted | e.ModelStarted) and event.call_id in found.given_back for event in later
    )


def _each_once(folder: Path) -> bool:
    done = Counter((entry["what"], json.dumps(entry["args"], sort_keys=True)) for entry in effects(folder))
    kinds = Counter(what for what, _ in done)
    return set(done.values()) == {1} and kinds == {"charge_card": len(INVOICES), "open_pull_request": 1}


def _paid_once(records: Sequence[RecordedEvent], folder: Path, answers: int) -> bool:
    recorded = {record.event.request_hash for record in records if isinstance(record.event, e.ModelStarted)}
    bill = Counter(request_hash(entry["args"]["request"]) for entry in asked(folder))
    return answers == len(recorded) and bill == dict.fromkeys(recorded, 1)


def _planned(state: RunState) -> bool:
    return [task["status"] for task in state.plan.tasks] == ["done"] * len(INVOICES)


def _same(one: RunState, other: RunState) -> bool:
    return dump_bytes(one.dump()) == dump_bytes(other.dump())
