"""A store has an id, which joins the keys that its tools send: a store made anew never gets an old receipt."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

from runjournal import Journal, tool
from runjournal.engine.tools import call_key
from runjournal.log.clock import FakeClock
from runjournal.log.errors import InvalidArgument, StoreIdDiffers
from runjournal.log.events import ToolStarted
from runjournal.log.memory import MemoryStore

receipts: dict[str, str] = {}
"""What a service has answered, by key."""


@tool(policy="keyed")
def pay(cents: int, *, idempotency_key: str = "") -> str:
    return receipts.setdefault(idempotency_key, f"receipt {len(receipts) + 1} of {cents}")


@tool(policy="keyed", key="order-{order}")
def order(order: int, *, idempotency_key: str = "") -> str:
    return receipts.setdefault(idempotency_key, f"receipt {len(receipts) + 1}")


def pays(run: Any) -> str:
    return str(run.do("pay", pay, 500))


def ran(path: Path, agent: Any = pays, **how: Any) -> tuple[str, str]:
    """Run an agent in the store at a path; return its output, and the id of its call."""
    with Journal.open(path, **how) as journal:
        output = journal.run(agent, run_id="nightly")
        (start,) = journal.events("nightly", types=["tool.started"])
        assert isinstance(start.event, ToolStarted)
        return output, start.event.call_id


@pytest.fixture(autouse=True)
def _no_receipts() -> None:
    receipts.clear()


def test_a_store_made_anew_gets_no_old_receipt(tmp_path: Path) -> None:
    """The run of the same name pays under another key when its store was lost."""
    first = ran(tmp_path / "runs.db")
    for each in tmp_path.iterdir():
        each.unlink()
    second = ran(tmp_path / "runs.db")
    assert ("receipt 1 of 500", "receipt 2 of 500") == (first[0], second[0])
    assert first[1] != second[1]
    assert [first[1], second[1]] == list(receipts)


def test_a_restored_backup_keeps_its_keys(tmp_path: Path) -> None:
    """A run that the backup doesn't have pays under the key that it has paid under before."""
    with Journal.open(tmp_path / "runs.db") as journal:
        journal.backup(str(tmp_path / "backup.db"))
    first = ran(tmp_path / "runs.db")
    shutil.move(tmp_path / "backup.db", tmp_path / "restored.db")
    assert first == ran(tmp_path / "restored.db")
    assert 1 == len(receipts)


def test_the_id_of_a_call_is_made_of_the_stores(tmp_path: Path) -> None:
    """Whoever knows the store's id can work out the key, which is on record at the first attempt."""
    _, key = ran(tmp_path / "runs.db", store_id="shop-1")
    assert call_key("nightly", "pay", "pay", {"cents": 500}, store="shop-1") == key
    with Journal.open(tmp_path / "runs.db", store_id="shop-1") as journal:
        assert "shop-1" == journal.store.store_id == journal.store.info()["store_id"]


def test_a_key_of_ones_own_is_sent_as_it_is_written(tmp_path: Path) -> None:
    """It reaches across stores: the second one gets the receipt of the first."""
    both = [ran(tmp_path / name, lambda run: run.do("a", order, 7)) for name in ("one.db", "two.db")]
    assert [("receipt 1", "order-7")] * 2 == both


def test_a_store_of_another_id_is_refused(tmp_path: Path) -> None:
    """The text names both and says what to do; the file keeps its id."""
    Journal.open(tmp_path / "runs.db", store_id="shop-1").close()
    with pytest.raises(StoreIdDiffers, match=r"has the id 'shop-1', expected 'shop-2'.*leave store_id out") as refused:
        Journal.open(tmp_path / "runs.db", store_id="shop-2")
    assert ("shop-2", "shop-1") == (refused.value.expected, refused.value.found)
    with Journal.open(tmp_path / "runs.db") as journal:
        assert "shop-1" == journal.store.store_id


@pytest.mark.parametrize("store_id", ["", " ", "a/b", "x" * 129, 7])
def test_an_id_that_is_none_is_refused(tmp_path: Path, store_id: Any) -> None:
    """Nothing is made."""
    with pytest.raises(InvalidArgument, match="store_id: expected 1 to 128 characters"):
        Journal.open(tmp_path / "runs.db", store_id=store_id)
    assert [] == list(tmp_path.iterdir())


def test_each_new_store_has_an_id_of_its_own(tmp_path: Path) -> None:
    """Of 16 hex digits, in a file as in memory."""
    with (
        Journal.open(tmp_path / "a.db") as one,
        Journal.open(tmp_path / "b.db") as two,
        Journal.open("memory:") as three,
    ):
        ids = {each.store.store_id for each in (one, two, three)}
    assert 3 == len(ids)
    assert {16} == {len(each) for each in ids}
    assert "own" == MemoryStore(clock=FakeClock(), store_id="own").store_id


def test_the_database_refuses_to_change_the_id(tmp_path: Path) -> None:
    """By UPDATE, DELETE and INSERT OR REPLACE."""
    Journal.open(tmp_path / "runs.db", store_id="shop-1").close()
    connection = apsw.Connection(str(tmp_path / "runs.db"))
    for statement in (
        "UPDATE meta SET value = 'x' WHERE key = 'store_id'",
        "UPDATE meta SET key = 'x' WHERE key = 'store_id'",
        "DELETE FROM meta WHERE key = 'store_id'",
        "INSERT OR REPLACE INTO meta VALUES ('store_id', 'x')",
    ):
        with pytest.raises(apsw.ConstraintError, match="the id of a store is immutable"):
            connection.execute(statement)
    connection.close()
