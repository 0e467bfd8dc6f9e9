"""The rules of resumes, each with the smallest agents that show it; see `rules.py`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from model.lab import Lab, use
from model.rules import bench, crash_at, rule


def came(lab: Lab, run_id: str = "r") -> list[str]:
    """How each owner has come to a run."""
    return [event.data.get("resume") or "" for event in lab.store.log[run_id] if event.type == "run.claimed"]


@rule  # engine.md G1
def test_how_an_owner_has_come_to_a_run_is_on_record(m: Any) -> None:
    """The first start is no resume; then it is behind a crash, reopened when it was let go, or manual by a person."""

    def agent(run: Any) -> Any:
        run.do("a", lambda: use(run, lab, "idempotent"))
        return run.do("b", lambda: run.ask("ok?", args={"x": 3}))

    lab = bench(m, agent)
    crash_at(lab, "before tool.completed")
    with suppress(m.Crash):
        lab.journal.run(agent, "r")
    assert [""] == came(lab)
    lab.disown("r")
    assert "waiting" == lab.journal.run(agent, "r").status
    assert ["", "crash"] == came(lab)
    lab.people("r")
    with pytest.raises(m.PlanChanged):
        lab.journal.run(lambda run: run.do("two", list), "r")
    with pytest.raises(m.PlanChanged):  # whoever names it tries it
        lab.journal.run(lambda run: run.do("two", list), "r")
    assert ["", "crash", "reopen", "reopen"] == came(lab)
    lab.journal.resume("r")
    with pytest.raises(m.Mistake):
        lab.journal.run(lambda run: run.message("user", "outside"), "r")
    assert ["", "crash", "reopen", "reopen", "manual"] == came(lab)
    assert "completed" == lab.journal.run(agent, "r").status
    assert ["", "crash", "reopen", "reopen", "manual", "reopen"] == came(lab)


@rule  # engine.md G1
def test_a_person_who_goes_on_from_an_end_or_gives_up_a_step_resumes(m: Any) -> None:
    """A retry and a fork are manual, and so is a step that was given up; a restart begins anew."""

    def fails(run: Any) -> Any:
        run.do("a", lambda: 1)
        raise ValueError

    lab = bench(m, fails)
    lab.journal.run(fails, "r")
    for link in ("retry", "restart", "fork"):
        lab.journal.start(link, link, "r")
        lab.journal.run(fails, link)
    assert [["manual"], [""], ["manual"]] == [came(lab, link) for link in ("retry", "restart", "fork")]
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "idempotent")))
    crash_at(lab, "before tool.completed")
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.disown("r")
    lab.journal.abandon("r")
    lab.journal.run(lab.agent, "r")
    assert ["", "manual"] == came(lab)


@rule  # engine.md G3, G4
def test_a_resume_point_is_used_once(m: Any) -> None:
    """Two people who have seen the same: the second is refused, and so is whoever saw the run before it moved."""
    lab = bench(m, lambda run: run.do("a", lambda: use(run, lab, "idempotent")))
    crash_at(lab, "before tool.completed")
    with suppress(m.Crash):
        lab.journal.run(lab.agent, "r")
    lab.disown("r")

    def stopped() -> int:
        with pytest.raises(m.PlanChanged):
            lab.journal.run(lambda run: run.do("two", list), "r")
        return int(lab.journal.point("r"))

    def refused(point: int) -> None:
        with pytest.raises(m.Refused):
            lab.journal.resume("r", point=point)

    first = stopped()
    lab.journal.tell("r", ("note.added", {"text": "seen"}))
    lab.journal.resume("r", point=first)
    refused(first)
    second = stopped()
    refused(first)
    refused(second + 1)
    lab.journal.resume("r", point=second)
    assert "completed" == lab.serve().status
