"""Recovery, looked at: verdicts by the policy that was frozen at the start, and nothing written."""

from __future__ import annotations

import pytest

from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.testing.generate import claim
from runjournal.triage import judge

PAST, FUTURE = "2020-01-01T00:00:00.000000Z", "2036-01-01T00:00:00.000000Z"


def crashed(policy: str, *, expires: str | None = None, ended: e.Event | None = None) -> Journal:
    """A run whose owner died with one call open, in an open step."""
    journal = Journal.open("memory:", clock=FakeClock())
    journal.append("r", [e.RunQueued("k", None), claim(1)], expect=0)
    start = e.ToolStarted("c", "t", {"to": "bob"}, policy, False, "ask", 1, key_expires_at=expires)
    events = [e.StepStarted(0, "s", "s", "once", 1, 1), start, *([ended] if ended else [])]
    journal.append("r", events, expect=2, epoch=1)
    return journal


@pytest.mark.requirement("R4")
@pytest.mark.requirement("R59")
@pytest.mark.requirement("R60")
@pytest.mark.requirement("R62")
@pytest.mark.requirement("R63")
@pytest.mark.requirement("R68")
@pytest.mark.parametrize(
    ("policy", "expires", "verdict"),
    [
        ("idempotent", None, "run"),
        ("transactional", None, "run"),
        ("keyed", FUTURE, "run"),
        ("keyed", PAST, "ask"),
        ("unsafe", None, "ask"),
    ],
)
def test_verdicts(policy: str, expires: str | None, verdict: str) -> None:
    """An open call is listed with its tool, exact args, key and start; its policy says what becomes of it."""
    with crashed(policy, expires=expires) as journal:
        (found,) = journal.recover("r").verdicts
        assert ("c", "t", policy, {"to": "bob"}, verdict) == (
            found.key, found.tool, found.policy, found.args, found.verdict
        )  # fmt: skip
        assert found.started_at.startswith("2026-01-02T")


def test_an_attempt_that_did_nothing_is_made_again():
    """An unsafe call whose only attempt said that it did nothing may be sent."""
    with crashed("unsafe") as journal:
        call = journal.state("r").calls.known["c"]
        call.maybe = []
        assert "run" == judge(call, FUTURE)[0]


@pytest.mark.requirement("R67")
def test_recovering_writes_nothing():
    """Looking at a run leaves the log as it is; taking it is one more append."""
    with crashed("unsafe") as journal:
        recovery = journal.recover("r")
        assert 4 == journal.head("r").head_seq
        taken = recovery.take()
        assert taken is not None
        assert (2, 6) == (taken.epoch, journal.head("r").head_seq)


def test_recover_all_goes_on_with_what_may_go_on():
    """Runs without a living owner are gone on with by the agent of their kind; others are left alone."""
    with crashed("idempotent") as journal:
        journal.append("q", [e.RunQueued("other", None)], expect=0)

        def agent(run):
            with run.step("s"):
                run.memory["done"] = True
            return "ok"

        assert {"r": "ok"} == journal.recover_all({"k": agent})
        assert "queued" == journal.head("q").status
