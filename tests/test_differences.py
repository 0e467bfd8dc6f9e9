"""What `diff` says: element by element, and of long texts the part that differs."""

import json
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from runjournal import Journal
from runjournal.cli import output, states
from runjournal.cli.app import cli
from runjournal.log.differences import Change, differences

TODO = {"id": "hosting.txt", "title": "Hosting", "status": "todo"}
OTHER = {"id": "mail", "title": "Mail", "status": "todo"}


@pytest.mark.parametrize(("before", "after", "expected"), [
    ([TODO, OTHER], [TODO | {"status": "done"}, OTHER], [("x[hosting.txt].status", "todo", "done")]),
    ([TODO], [TODO, OTHER], [("x[mail]", None, OTHER)]),
    ([TODO, OTHER], [OTHER], [("x[hosting.txt]", TODO, None)]),
    ([TODO, OTHER], [OTHER, TODO], [("x", ["hosting.txt", "mail"], ["mail", "hosting.txt"])]),
    ([TODO, TODO], [TODO], [("x[1]", TODO, None)]),
    ([TODO, 1], [TODO | {"status": "done"}, 1], [("x[0].status", "todo", "done")]),
    ([{"kind": "approval", "id": "q"}], [], [("x[q]", {"kind": "approval", "id": "q"}, None)]),
    ([], [{"call_id": "c", "tool": "t", "attempt": 1}], [("x[c]", None, {"call_id": "c", "tool": "t", "attempt": 1})]),
    ([{"call_id": "c", "attempt": 1}], [{"call_id": "c", "attempt": 2}], [("x[c].attempt", 1, 2)]),
    ([{"approval_id": "c", "a": 1}], [{"approval_id": "c", "a": 2}], [("x[c].a", 1, 2)]),
    ([{"seq": 1, "signal_id": "s"}], [{"seq": 2, "signal_id": "s"}], [("x[s].seq", 1, 2)]),
    ([1, 2, 3], [1, 5, 3, 4], [("x[1]", 2, 5), ("x[3]", None, 4)]),
    ([None], [], [("x", [None], [])]),
    ({"a": None}, {}, [("x", {"a": None}, {})]),
    ([], {}, [("x", [], {})]),
    (1, 1.0, [("x", 1, 1.0)]),
])  # fmt: skip
def test_elements(before: Any, after: Any, expected: list[Any]) -> None:
    """The elements of a list are compared by their ids, or by their places where they have none."""
    assert expected == [tuple(change) for change in differences({"x": before}, {"x": after})]


VALUES = st.recursive(
    st.none() | st.integers(0, 2) | st.sampled_from(["", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "a", "b"]), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, VALUES)
def test_nothing_that_differs_is_left_out(before: Any, after: Any) -> None:
    """Values that are stored differently have a difference, and equal ones have none."""
    found = list(differences({"x": before}, {"x": after}))
    assert (json.dumps(before) != json.dumps(after)) == bool(found)
    assert all(json.dumps(change.before) != json.dumps(change.after) for change in found)


def test_long_texts_show_what_differs() -> None:
    """Two long texts that differ far from their begin are cut to the place where they do."""
    before, after = (f"{'same ' * 100}{word}{' same' * 100}" for word in ("one", "two"))
    row = states.change_row(Change("memory.x", before, after))
    assert ("memory.x", True, True) == (row[0], "one" in str(row[1]), "two" in str(row[2]))
    assert all(len(str(each)) <= 60 for each in row[1:])
    assert ("short", "text") == states.sides(Change("x", "short", "text"), 60)
    assert ("", "y") == states.sides(Change("x", None, "y"), 60)
    tail = states.sides(Change("x", "y" * 100, "y" * 100 + "z"), 20)
    assert (True, True) == (tail[1].endswith("z"), not tail[0].endswith("z"))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_rows_fit_the_terminal(tmp_path, monkeypatch, width: int) -> None:
    """No row of a diff of large plans and memories is wider than the terminal, and each shows what differs."""
    with Journal.open(tmp_path / "runs.db") as journal:

        def agent(run: Any) -> None:
            with run.step("a"):
                run.memory["text"] = "same " * 100 + "before" + " same" * 100
                run.plan.set([{"id": f"t{n}", "title": "long " * 50, "status": "todo"} for n in range(9)])
            with run.step("b"):
                run.memory["text"] = "same " * 100 + "after" + " same" * 100
                run.plan.update("t3", status="done")

        journal.run(agent, run_id="r")
        seqs = [record.seq for record in journal.events("r", types=["step.completed"])]
    for module in (output, states):
        monkeypatch.setattr(module, "terminal_width", lambda: width)
    result = CliRunner().invoke(cli, ["--db", str(tmp_path / "runs.db"), "diff", f"r@{seqs[0]}", f"r@{seqs[1]}"])
    assert 0 == result.exit_code, result.output
    rows = result.stdout.splitlines()
    assert width >= max(len(row) for row in rows)
    (task,) = (row.split() for row in rows if "plan" in row)
    assert ["plan[t3].status", "todo", "done"] == task
    (memory,) = (row for row in rows if "memory.text" in row)
    assert (True, True) == ("befo" in memory, "afte" in memory)
