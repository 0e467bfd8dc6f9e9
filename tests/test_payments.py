"""A payment service that forgets keys and checks what they are used for: one charge, whatever is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from payments import Payments, charge_at, serving

from runjournal import CallFailed, Journal, RunWaiting, tool
from runjournal.log.clock import FakeClock

PAYS = Path(__file__).parent / "programs" / "pays.py"
TTL_S = 3600.0


class Killed(BaseException):
    """The process dies here."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def payments(clock: FakeClock) -> Iterator[Payments]:
    service = Payments(lambda: clock.elapsed_s, TTL_S)
    with serving(service) as service.port:
        yield service


def agent_of(payments: Payments, dies: list[str], key: str | None = None) -> Any:
    """An agent that charges; it dies once at each of these places."""

    def here(place: str) -> None:
        if dies[:1] == [place]:
            dies.pop(0)
            raise Killed

    def sent() -> None:
        assert payments.charged.wait(10)
        here("sent")

    @tool(policy="keyed", key_ttl_s=TTL_S, key=key, name="charge")
    def charge(cents: int, *, idempotency_key: str = "") -> dict[str, Any]:
        here("before")
        receipt = charge_at(payments.port, idempotency_key, {"cents": cents}, sent)
        here("answered")
        return receipt

    return lambda run: run.do("charge", charge, 500)


def killed(journal: Journal, agent: Any) -> None:
    with pytest.raises(Killed):
        journal.run(agent, run_id="bill", kind="bill")


@pytest.mark.parametrize("dies", ["before", "sent", "answered"])
def test_a_process_that_is_killed_around_the_answer_charges_once(tmp_path: Path, payments: Payments, dies: str) -> None:
    """The next process sends the same key, and gets the receipt of the one charge."""
    command = [sys.executable, str(PAYS), str(tmp_path / "runs.db"), str(payments.port)]
    assert -signal.SIGKILL == subprocess.run([*command, dies], check=False, timeout=60).returncode
    again = subprocess.run([*command, "never"], check=True, timeout=60, capture_output=True, text=True)
    assert (1, "1\n", 1) == (len(payments.charges), again.stdout, len(payments.seen))


@pytest.mark.parametrize("dies", ["before", "sent", "answered"])
def test_after_the_life_of_the_key_a_charge_is_not_tried_again_alone(
    clock: FakeClock, payments: Payments, dies: str
) -> None:
    """The service has forgotten, and would charge again: a person looks, and says what happened."""
    journal, agent = Journal.open("memory:", clock=clock), agent_of(payments, [dies])
    killed(journal, agent)
    charged = int(dies != "before")
    clock.sleep(TTL_S)
    with pytest.raises(RunWaiting):
        journal.run(agent, run_id="bill", kind="bill")
    (asked,) = journal.questions()
    assert "its key may have been forgotten by the receiver" in asked.reason
    assert charged == len(payments.charges)
    if charged:
        journal.resolve("bill", asked.id, "happened", {"charge": 1})
    else:
        journal.resolve("bill", asked.id, "did_not_happen")
    assert 1 == journal.run(agent, run_id="bill", kind="bill")["charge"]
    assert 1 == len(payments.charges)


def test_within_the_life_of_the_key_a_charge_is_tried_again_alone(clock: FakeClock, payments: Payments) -> None:
    """Killed in a row at each place, it still charges once."""
    journal, agent = Journal.open("memory:", clock=clock), agent_of(payments, ["before", "sent", "answered"])
    for _ in range(3):
        killed(journal, agent)
        clock.sleep(TTL_S / 4)
    assert {"charge": 1, "cents": 500} == journal.run(agent, run_id="bill", kind="bill")
    assert 1 == len(payments.charges)


def test_a_key_of_ones_own_that_is_used_for_something_else_is_refused_by_the_service(
    clock: FakeClock, payments: Payments
) -> None:
    """A key template reaches across stores: the second one's other amount is refused, and the agent hears why."""
    first = agent_of(payments, [], key="order-7")
    assert 1 == Journal.open("memory:", clock=clock).run(first, run_id="bill")["charge"]
    heard: list[str] = []

    def second(run: Any) -> None:
        with run.step("charge"):
            try:
                other(900)
            except CallFailed as error:
                heard.append(str(error))

    @tool(policy="keyed", key_ttl_s=TTL_S, key="order-7", name="charge_other")
    def other(cents: int, *, idempotency_key: str = "") -> dict[str, Any]:
        return charge_at(payments.port, idempotency_key, {"cents": cents})

    Journal.open("memory:", clock=clock).run(second, run_id="bill")
    assert (1, True) == (len(payments.charges), "422: the key was used for something else" in heard[0])


def test_a_store_made_anew_charges_anew(clock: FakeClock, payments: Payments) -> None:
    """The key of the journal's own making is another one there: the old receipt is no answer to the new charge."""
    agent = agent_of(payments, [])
    receipts = [Journal.open("memory:", clock=clock).run(agent, run_id="bill")["charge"] for _ in range(2)]
    assert [1, 2] == receipts
