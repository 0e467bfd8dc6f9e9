"""The ledger: one row for each request to a provider, and what is added up of the rows."""

from __future__ import annotations

import csv
import io
import json
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from test_rebuild import fill

from runjournal import Budget, RunFailed, tool
from runjournal.cli.app import cli
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.errors import InvalidArgument, RunNotFound
from runjournal.log.store import Bill
from runjournal.looking.audit import audit_store
from runjournal.projections.bills import COUNTERS
from runjournal.projections.usage import UNSPLIT
from runjournal.run import Run
from runjournal.spending import GROUPS
from runjournal.testing.generate import claim
from runjournal.testing.strategies import seeds
from runjournal.writing.rebuild import rebuild

USAGE = {"input": 10, "output": 5, "cache_read": 0, "cache_write": 0}
PAID = {"amount": "0.25", "currency": "USD", "source": "reported"}
WORKED_OUT = PAID | {"source": "estimated", "pricing_version": "2026-11"}
ERROR = {"type": "Overloaded", "message": "later"}


def bills(journal: Journal, run_id: str | None = None) -> list[Bill]:
    """The rows of the ledger."""
    return [Bill._make(row) for row in journal.store.index_rows("bills", run_id)]


def asked(journal: Journal, run_id: str, *ends: e.Event, last: e.Event | None = None) -> None:
    """A run that has asked a model, call by call, with these ends."""
    journal.append(
        run_id, [e.RunQueued(kind="k", input=None), claim(1), e.StepStarted(0, "s", "s", "once", 1, 1)], expect=0
    )
    for end in ends:
        start = e.ModelStarted(end.call_id, "m", "", end.attempt, provider="p")  # type: ignore[attr-defined]
        journal.append(run_id, [start], epoch=1)
        journal.append(run_id, [end], epoch=1)
    if last is not None:
        journal.append(run_id, [e.StepCompleted(0), last], epoch=1)


ENDS: dict[str, tuple[e.Event, str]] = {
    "the provider's own price": (e.ModelCompleted("c", 1, "x", usage=USAGE, cost=PAID), "reported"),
    "a price by rates": (e.ModelCompleted("c", 1, "x", usage=USAGE, cost=WORKED_OUT), "priced"),
    "a price of nothing": (e.ModelCompleted("c", 1, "x", usage=USAGE, cost=PAID | {"amount": "0.00"}), "free"),
    "tokens alone": (e.ModelCompleted("c", 1, "x", usage=USAGE), "unpriced"),
    "no token at all": (e.ModelCompleted("c", 1, "x", usage=dict.fromkeys(USAGE, 0)), "free"),
    "nothing told": (e.ModelCompleted("c", 1, "x"), "unmeasured"),
    "refused by the provider": (e.ModelFailed("c", 1, ERROR | {"status": 529}, transient=True), "free"),
    "a connection that broke": (e.ModelFailed("c", 1, ERROR, transient=True), "unmeasured"),
    "cut in the middle": (e.ModelFailed("c", 1, ERROR, transient=True, cut=True), "lost"),
    "a failure that was paid": (e.ModelFailed("c", 1, ERROR, transient=False, usage=USAGE, cost=PAID), "reported"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_status_says_what_is_known(name: str) -> None:
    """Each end of a request has the status that says how its money is known, and the counters that were told."""
    end, status = ENDS[name]
    with Journal.open("memory:") as journal:
        asked(journal, "r", end)
        (row,) = bills(journal)
        assert ("r", "c", 1, 5, "model", "m", "p", "s", status) == (*row[:4], *row[5:10])
        usage = end.usage  # type: ignore[attr-defined]
        assert [None if usage is None else usage.get(name) for name in COUNTERS] == [getattr(row, n) for n in COUNTERS]


ENDS_OF_RUNS: dict[str, e.Event] = {
    "completed": e.RunCompleted(None),
    "failed": e.RunFailed({"type": "E", "message": "m"}, [], "error"),
}


@pytest.mark.parametrize("how", ENDS_OF_RUNS)
def test_what_is_in_flight_at_the_end_is_lost(how: str) -> None:
    """A request without an end is in flight while its run goes on, and lost once it has ended; it is counted once."""
    with Journal.open("memory:") as journal:
        asked(journal, "r")
        journal.append("r", [e.ModelStarted("c", "m", "", 1)], epoch=1)
        assert ([], {"in_flight": 1}, 1) == (bills(journal), (told := journal.costs().total).statuses, told.open)
        journal.append(
            "r", [e.StepFailed(0, {"type": "E", "message": "m"}, transient=False), ENDS_OF_RUNS[how]], epoch=1
        )
        assert ["lost"] == [row.status for row in bills(journal)]
        assert ({"lost": 1}, 1) == ((told := journal.costs().total).statuses, told.open)


def test_an_attempt_whose_process_died_is_lost_and_the_next_one_counts() -> None:
    """A call that is sent anew has a row an attempt: the first one was sent too, and nobody will say what it cost."""
    with Journal.open("memory:") as journal:
        asked(journal, "r")
        journal.append("r", [e.ModelStarted("c", "m", "", 1)], epoch=1)
        journal.append("r", [e.ModelStarted("c", "m", "", 2)], epoch=1)
        journal.append("r", [e.ModelCompleted("c", 2, "x", usage=USAGE)], epoch=1)
        assert [(1, "lost"), (2, "unpriced")] == [(row.attempt, row.status) for row in bills(journal)]


@settings(max_examples=150)
@given(rng=seeds())
def test_rows_add_up_to_the_fold(rng: random.Random) -> None:
    """Whatever happens in a run, its rows count the requests, the tokens and the money that its state has folded."""
    with Journal.open("memory:") as journal:
        fill(journal, rng, events=40)
        for row in journal.costs(by="run").rows:
            state = journal.state(f"{row.key}~1")
            lines = state.costs.lines
            models = {name: found for name, found in lines.items() if not name.startswith("tool:")}
            calls = sum(line["calls"] for outcomes in models.values() for line in outcomes.values())
            going = sum(1 for call in state.calls.open().values() if call.policy == "model" and not call.priced)
            assert calls + going == sum(1 for each in bills(journal, row.key) if each.kind == "model") + going
            assert {c: state.costs.amount(c) for c in state.costs.money} == row.money
            counted = Counter[str]()
            for outcomes in lines.values():
                for line in outcomes.values():
                    counted.update({name: line[name] for name in COUNTERS} | {"input": line["input"] + line[UNSPLIT]})
            assert {name: counted[name] for name in COUNTERS} == row.tokens


@settings(max_examples=60)
@given(rng=seeds())
def test_groups_add_up_to_the_total(rng: random.Random) -> None:
    """However rows are grouped, each is counted once: the sums of the groups are the total."""
    with Journal.open("memory:") as journal:
        fill(journal, rng)
        total = journal.costs().total.as_json()
        for by in GROUPS:
            found = journal.costs(by=by)
            assert total == found.total.as_json(), by
            assert total["calls"] == sum(row.calls for row in found.rows)
            assert total["input"] == sum(row.tokens["input"] for row in found.rows)
            usd = sum((row.money.get("USD", Decimal(0)) for row in found.rows), Decimal(0))
            assert Decimal(total["money"].get("USD", "0")) == usd


# --- what is wrong is found -------------------------------------------------------------------------------------------

SPOILED = {
    "gone": ("DELETE FROM bills WHERE call_id = 'c'", ["index_missing"]),
    "another amount": ("UPDATE bills SET amount = '0.01' WHERE call_id = 'c'", ["index_wrong"]),
    "another's": ("UPDATE bills SET call_id = 'd' WHERE call_id = 'c'", ["index_extra", "index_missing"]),
    "of no run": (
        f"INSERT INTO bills SELECT 'q', {', '.join(Bill._fields[1:])} FROM bills",
        ["index_extra"],
    ),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_row_that_was_changed_is_found_and_rebuilt(how: str, tmp_path: Path) -> None:
    """The audit compares the ledger with the events, and a rebuild makes it theirs again."""
    import apsw

    path = tmp_path / "j.db"
    with Journal.open(path) as journal:
        asked(journal, "r", ENDS["the provider's own price"][0], last=e.RunCompleted(None))
        before = bills(journal)
    connection = apsw.Connection(str(path))
    connection.execute(SPOILED[how][0])
    connection.close()
    with Journal.open(path) as journal:
        assert SPOILED[how][1] == sorted(each.code for each in audit_store(journal.store))
        rebuild(journal.store)
        assert ([], before) == (list(audit_store(journal.store)), bills(journal))


# --- agents -----------------------------------------------------------------------------------------------------------


@tool(policy="unsafe")
def search(words: str) -> str:
    """A tool that is free."""
    return words


def answer(_: Any) -> dict[str, Any]:
    """A provider's answer."""
    return {"content": "yes", "usage": {"input_tokens": 100, "output_tokens": 20}}


def cents(_: Any) -> dict[str, str]:
    """A price."""
    return {"amount": "0.01", "currency": "USD"}


def two_steps(run: Run) -> str:
    """Ask twice."""
    for name in ("plan", "write"):
        with run.step(name):
            run.model(
                "claude-sonnet-4-5",
                {"messages": [{"role": "user", "content": name}]},
                answer,
                cost=lambda _: {"amount": "0.01", "currency": "USD"},
            )
            run.call(search, name)
    return "done"


def test_a_run_that_a_budget_stops_has_a_row_for_each_request() -> None:
    """What was asked before a budget was spent is counted, and the request that it cut is told."""
    with Journal.open("memory:") as journal:
        with pytest.raises(RunFailed):
            journal.run(two_steps, run_id="r", budget=Budget(usd="0.005"))
        assert ["reported"] == [row.status for row in bills(journal)]
        assert {"USD": Decimal("0.01")} == journal.costs("r").total.money


def test_a_line_counts_its_retries_and_a_tree_its_children() -> None:
    """A run stands for its whole line, and for all of its tree, where these are added up."""
    turns = iter([ValueError("no"), None])

    def child(run: Run) -> str:
        return two_steps(run)

    def parent(run: Run) -> str:
        if not run.done("below"):
            with run.step("below"):
                run.call_child(child)
        if not run.done("own"):
            with run.step("own"):
                run.model("m", {"messages": []}, answer, cost=lambda _: {"amount": "0.10", "currency": "USD"})
        if (error := next(turns)) is not None:
            raise error
        return "done"

    with Journal.open("memory:") as journal:
        with pytest.raises(Exception, match="no"):
            journal.run(parent, run_id="r")
        again = journal.retry("r")
        journal.run(parent, run_id=again)
        by_line = journal.costs("r", by="line")
        assert ["r"] == [row.key for row in by_line.rows]
        assert Decimal("0.10") == by_line.total.money["USD"]
        tree = journal.costs("r~1", by="tree")
        assert Decimal("0.12") == tree.total.money["USD"]
        assert 3 == tree.total.calls


def test_days_are_those_of_the_time_zone() -> None:
    """A request at half past eleven at night in UTC is of the next day in Zurich, and `until` leaves its day out."""
    with Journal.open("memory:") as journal:
        row = Bill("r", "c", 1, 1, "2026-11-30T23:30:00.000000Z", "model", "m", None, "", "unpriced", 1, 1, 0, 0)
        asked(journal, "r")
        head = journal.head("r")
        journal.store.transact(lambda tx: tx.reindex([_only(head, row)]), durable=True)
        assert ["2026-11-30"] == [each.key for each in journal.costs(by="day").rows]
        assert ["2026-12-01"] == [each.key for each in journal.costs(by="day", tz="Europe/Zurich").rows]
        assert 0 == journal.costs(until="2026-12-01", since="2026-12-01", tz="Europe/Zurich").total.calls
        assert 1 == journal.costs(since="2026-12-01", tz="Europe/Zurich").total.calls
        assert 0 == journal.costs(until="2026-11-30").total.calls


def _only(head: Any, row: Bill) -> Any:
    from runjournal.log.store import Write

    return Write(head, head, [], bills=[row])


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"by": "week"}, "by: expected one of run, line, tree, model, tool, step, day, got 'week'"),
        ({"since": "yesterday"}, "since: expected a day or a time, such as 2026-12-01 or"),
        ({"tz": "Mars/Olympus"}, "tz: expected the name of a time zone, such as Europe/Zurich, got 'Mars/Olympus'"),
    ],
)
def test_costs_refuses(how: dict[str, str], error: str) -> None:
    """What can't be meant is refused, with what was expected."""
    with Journal.open("memory:") as journal, pytest.raises(InvalidArgument, match=error):
        journal.costs(**how)


def test_costs_of_a_run_that_isnt_there() -> None:
    """A run that isn't there is told."""
    with Journal.open("memory:") as journal, pytest.raises(RunNotFound):
        journal.costs("nobody")


def test_a_purged_run_keeps_what_it_came_to(tmp_path: Path) -> None:
    """The rows of a run that was purged are what its last event says: the same calls, tokens and money, rebuilt too."""
    with Journal.open(tmp_path / "j.db") as journal:
        journal.run(two_steps, run_id="r")
        before = journal.costs("r").total
        journal.purge("r", reason="old")
        after = journal.costs("r").total
        assert (before.calls, before.tokens, before.money) == (after.calls, after.tokens, after.money)
        rows = bills(journal)
        rebuild(journal.store)
        assert rows == bills(journal)
        assert [] == list(audit_store(journal.store))


# --- the command line -------------------------------------------------------------------------------------------------


def typed(path: Path, *words: str) -> str:
    """What a command prints; it has to end well."""
    done = CliRunner().invoke(cli, ["--db", str(path), *words], standalone_mode=True)
    assert 0 == done.exit_code, done.output
    return done.stdout


def test_the_command_says_what_isnt_known(tmp_path: Path) -> None:
    """A total with unknowns is a lower bound, and the lines below say of how many requests and why."""
    path = tmp_path / "j.db"
    with Journal.open(path) as journal:
        first = ENDS["the provider's own price"][0]
        asked(journal, "r", first, e.ModelCompleted("d", 1, "x"))
        journal.append("r", [e.ModelStarted("f", "m", "", 1)], epoch=1)
    text = typed(path, "cost")
    assert ">= 0.25" in text
    assert "1 call in flight" in text
    assert "1 call told no tokens" in text
    found = json.loads(typed(path, "cost", "--by", "model", "-o", "json"))
    assert ("model", ["m"], 3, {"USD": "0.25"}, 2) == (
        found["by"], [row["key"] for row in found["rows"]], found["total"]["calls"], found["total"]["money"],
        found["total"]["open"],
    )  # fmt: skip
    (row,) = csv.DictReader(io.StringIO(typed(path, "cost", "r", "-o", "csv")))
    assert {
        "run": "r",
        "calls": "3",
        "reported": "1",
        "in_flight": "1",
        "unmeasured": "1",
        "USD": "0.25",
    }.items() <= row.items()


def test_other_commands_have_no_csv(tmp_path: Path) -> None:
    """Only what is a table of numbers can be written as one."""
    done = CliRunner().invoke(cli, ["--db", str(tmp_path / "j.db"), "ls", "-o", "csv"])
    assert 2 == done.exit_code
