"""The inventory: each kind of state has a policy, and a process that was killed leaves of it what the policy says."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import get_args

import pytest

from runjournal import Journal
from runjournal.engine import failures as f
from runjournal.log.base import registered
from runjournal.looking.inventory import INVENTORY, POLICIES, Policy
from runjournal.projections.state import RunState
from runjournal.run import Run

AGENT = Path(__file__).parent / "programs" / "inventory_agent.py"
TOKEN = "canary-of-the-bank"
PROMPT = "You keep the books of the Übersee company.\n\n\nPay once."


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of an agent that was killed in its second step."""
    path = tmp_path_factory.mktemp("inventory") / "runs.db"
    env = {**os.environ, "BANK_TOKEN": TOKEN}
    done = subprocess.run([sys.executable, str(AGENT), str(path)], env=env, capture_output=True, text=True, check=False)
    assert -signal.SIGKILL == done.returncode, done.stderr
    return path


@pytest.fixture
def journal(killed: Path) -> Iterator[Journal]:
    with Journal.open(killed) as opened:
        yield opened


def messages(journal: Journal) -> None:
    context = [each for each in journal.messages("r") if each.committed]
    assert ["text of books.csv", "one open item"] == [each.content for each in context]
    assert ["I pay now"] == [each.content for each in journal.messages("r") if not each.committed]


def tool_status(journal: Journal) -> None:
    ends = [each.type for each in journal.events("r") if each.type.startswith("tool.")]
    assert ["tool.started", "tool.completed", "tool.started"] == ends


def effects_in_flight(journal: Journal) -> None:
    (judged,) = journal.recover("r").verdicts
    assert ("pay", {"invoice": 17}, "unsafe", "ask") == (judged.tool, judged.args, judged.policy, judged.verdict)


def working_memory(journal: Journal) -> None:
    memory = journal.state("r").memory
    assert {"open": ["a random name that no message holds", 17]} == memory.committed


def abort_token(journal: Journal) -> None:
    copy = Path(journal.store.info()["path"]).with_name("cancelled.db")
    copy.unlink(missing_ok=True)
    journal.backup(copy)
    called = []
    with Journal.open(copy) as other:
        other.cancel("r", "enough")
        with pytest.raises(f.RunCancelled):
            other.run(lambda _: called.append(1), run_id="r")
        assert "cancelled" == other.state("r").status.status
    assert [] == called


def credentials(journal: Journal) -> None:
    path = Path(journal.store.info()["path"])
    files = [each.read_bytes() for each in path.parent.glob("runs.db*")]
    assert files
    assert not any(TOKEN.encode() in text for text in files)


def prompt(journal: Journal) -> None:
    pinned = journal.state("r").prompt
    assert hashlib.sha256(PROMPT.encode()).hexdigest() == pinned.fingerprint
    (event,) = [each.event for each in journal.events("r", types=("prompt.pinned",))]
    assert PROMPT == event.text  # type: ignore[attr-defined]


def ledger(journal: Journal) -> None:
    costs = journal.state("r").costs
    assert (Decimal("0.0125"), 1280) == (costs.amount("USD"), costs.tokens())


CHECKS: dict[str, Callable[[Journal], None]] = {
    "messages": messages,
    "tool status": tool_status,
    "effects in flight": effects_in_flight,
    "working memory": working_memory,
    "abort token": abort_token,
    "credentials": credentials,
    "prompt": prompt,
    "ledger": ledger,
}


@pytest.mark.requirement("R1")
def test_each_kind_has_a_policy() -> None:
    """Eight kinds, each with one policy of four, events that there are, and a part of the state that folds them."""
    assert list(CHECKS) == [kind.name for kind in INVENTORY]
    assert get_args(Policy) == POLICIES
    for kind in INVENTORY:
        assert kind.policy in POLICIES, kind.name
        assert set(kind.events) <= set(registered()), kind.name
        assert kind.fold is None or hasattr(RunState(), kind.fold), kind.name
        assert all((kind.written, kind.resumed, kind.lost)), kind.name


@pytest.mark.requirement("R1", "R5", "R6", "R9")
@pytest.mark.parametrize("name", CHECKS)
def test_what_a_kill_leaves(name: str, journal: Journal) -> None:
    """After SIGKILL each kind is what its line in the inventory says."""
    CHECKS[name](journal)


@pytest.mark.requirement("R9")
def test_another_prompt_is_told(tmp_path: Path) -> None:
    """The same prompt again is no event; another one is pinned, and a note names the layers that differ."""

    def agent(run: Run) -> None:
        run.pin_prompt(identity="a", rules="b")
        run.pin_prompt(identity="a", rules="b")
        run.pin_prompt(identity="a", rules="c")

    with Journal.open(tmp_path / "runs.db") as journal:
        journal.run(agent, run_id="r")
        assert 2 == journal.state("r").prompt.pins
        (note,) = [each.event for each in journal.events("r", types=("note.added",))]
        assert "the system prompt isn't the one pinned before: rules" == note.text  # type: ignore[attr-defined]
