"""The points in the way of a run: passed by name and in order while somebody looks, and else not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runjournal import AsyncJournal, Journal, tool
from runjournal.log import failpoint, limits


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The points that are passed, but for those of the clock, in order."""
    found = list[str]()

    def note(point: str, about: Any) -> None:
        if point not in {"heartbeat", "group"}:
            found.append(point)

    monkeypatch.setattr(failpoint, "hit", note)
    return found


@tool
def act() -> str:
    return "acted"


COMMIT = ["commit.before", "commit.after"]
WHOLE = [
    *COMMIT, *COMMIT,  # queued, claimed
    *COMMIT, "do.before", *COMMIT, "tool.before", "tool.after", *COMMIT, "do.after", *COMMIT,
    *COMMIT, "do.before", *COMMIT, "model.before", "model.after", *COMMIT, "do.after", *COMMIT,
    *COMMIT,  # completed
]  # fmt: skip


@pytest.mark.requirement("R23")
def test_a_run_passes_its_points_in_order(tmp_path: Path, passed: list[str]) -> None:
    """Each commit, each body of a tool, each function of a `do` and each request stands between two points."""

    def agent(run: Any) -> Any:
        return [run.do("act", act), run.do("ask", lambda: run.model("m", {}, lambda _: "answer"))]

    with Journal.open(tmp_path / "runs.db") as journal:
        assert ["acted", "answer"] == journal.run(agent, run_id="r")
        assert WHOLE == passed


@pytest.mark.requirement("R23")
def test_an_asyncio_run_passes_the_same_points(tmp_path: Path, passed: list[str]) -> None:
    """A coroutine is over when it has been awaited, and not when it was made."""

    async def ask(_: Any) -> str:
        passed.append("in the request")
        await asyncio.sleep(0)
        return "answer"

    async def agent(run: Any) -> Any:
        async def second() -> Any:
            return await run.model("m", {}, ask)

        return [await run.do("act", act), await run.do("ask", second)]

    with AsyncJournal.open(tmp_path / "runs.db") as journal:
        assert ["acted", "answer"] == asyncio.run(journal.run_async(agent, run_id="r"))
        at = passed.index("in the request")
        assert ("model.before", "model.after") == (passed[at - 1], passed.pop(at + 1))
        passed[at] = "model.after"
        assert WHOLE == passed


def test_what_a_body_raises_passes_the_point_behind_it(passed: list[str]) -> None:
    """A failure that an agent may handle passes the point behind it, in a coroutine too; an interrupt doesn't."""

    async def fails() -> None:
        raise ValueError

    for raised, expected in ((ValueError, ["tool.before", "tool.after"]), (KeyboardInterrupt, ["tool.before"])):

        def body(raised: type[BaseException] = raised) -> None:
            raise raised

        with pytest.raises(raised):
            failpoint.around("tool", None, body)
        assert expected == passed
        passed.clear()
    with pytest.raises(ValueError):  # noqa: PT011 - it says nothing
        asyncio.run(failpoint.around("tool", None, fails))
    assert ["tool.before", "tool.after"] == passed


def test_the_wal_and_a_lease_have_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moving the WAL into the file and a heartbeat are passed by name."""
    found = list[str]()
    monkeypatch.setattr(failpoint, "hit", lambda point, _: found.append(point))
    with Journal.open(tmp_path / "runs.db") as journal:
        journal.enqueue("k", run_id="r")
        assert not journal.store.heartbeat("r", 1, limits.lease_s, 0.0)
        journal.store.vacuum()
    assert ["commit.before", "commit.after", "heartbeat", "checkpoint"] == found
