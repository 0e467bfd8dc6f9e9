"""Which imported model calls are copies: made pairs of sessions, in both orders, and any calls in any order."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runjournal.importers.claude_files import discover
from runjournal.importers.transfer import import_claude_code
from runjournal.journal import Journal
from runjournal.projections.copies import ImportedCall, imported_calls, joined

ONE, TWO = "0f0f0f0f-1111-4222-8333-444444444444", "1e1e1e1e-1111-4222-8333-444444444444"


def user(words, session=ONE, **more):
    message = {"role": "user", "content": words}
    return {"type": "user", "uuid": words, "sessionId": session, "timestamp": "2026-01-02T03:04:05Z"} | {
        "message": message, **more
    }  # fmt: skip


def answer(number, session=ONE, output=5, model="m", request=True, **more):
    usage = {"input_tokens": 100 * number, "output_tokens": output}
    content = [{"type": "tool_use", "id": "call_0", "name": "look", "input": {"n": number}}]
    message = {"role": "assistant", "id": f"msg_{number}", "model": model, "content": content, "usage": usage}
    record = {"type": "assistant", "uuid": f"a{number}", "sessionId": session, "message": message}
    record["timestamp"] = f"2026-01-02T03:04:{number + 10}Z"
    return record | ({"requestId": f"req_{number}"} if request else {}) | more


def as_session(record, session):
    return record | {"sessionId": session}


HISTORY = [user("hello"), answer(1), answer(2)]
PAIRS: dict[str, tuple[dict[str, Any], int, int]] = {
    "resumed": ({ONE: HISTORY, TWO: [*HISTORY, user("more", TWO), answer(3, TWO)]}, 3, 2),
    "resumed under its own name": (
        {ONE: HISTORY, TWO: [as_session(each, TWO) for each in HISTORY] + [answer(3, TWO)]}, 3, 2,
    ),
    "forked": ({ONE: [*HISTORY, answer(3)], TWO: [*HISTORY, answer(4, TWO)]}, 4, 2),
    "sub-agent": (
        {
            ONE: HISTORY,
            f"{ONE}/subagents/agent-a1": [
                each | {"isSidechain": True, "agentId": "a1", "requestId": f"side {number}"}
                for number, each in enumerate([*HISTORY, answer(3)])
            ],
        }, 3, 2,
    ),
    "two folders": ({ONE: HISTORY, f"copy/{ONE}": HISTORY[:2]}, 2, 0),
    "glued": ({ONE: HISTORY, TWO: "glued"}, 2, 2),
    "request not told": (
        {ONE: HISTORY, TWO: [answer(1, ONE, request=False), answer(2, TWO, request=False, uuid="other")]}, 3, 1,
    ),
    "reused by another model": ({ONE: HISTORY, TWO: [answer(1, TWO, model="n")]}, 3, 0),
    "a copy from before the answer was whole": ({ONE: HISTORY, TWO: [answer(1, TWO, output=3) | {"uuid": "b"}]}, 2, 1),
}  # fmt: skip


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_made_pairs(tmp_path, name, backwards):
    """A copy is counted once, whatever was imported first, and another call under the same ids is counted."""
    files, calls, copies = PAIRS[name]
    for stem, records in files.items():
        path = tmp_path / f"{stem}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        given_lines = HISTORY if records == "glued" else records
        lines = [json.dumps(each) for each in given_lines]
        path.write_text("".join(lines) if records == "glued" else "".join(f"{each}\n" for each in lines))
    with Journal.open("memory:") as journal:
        sources = discover([str(tmp_path)])
        for source in reversed(sources) if backwards else sources:
            assert None is import_claude_code(journal, source).error
        found = [call for head in journal.runs() for call in imported_calls(journal.events(head.run_id))]
        rows = joined(found)
    assert (calls, copies) == (len(rows), sum(len(row.copies) for row in rows))
    assert sum(row.counters[1] for row in rows if row.counters) == 5 * calls
    if name == "resumed":
        assert {ONE, TWO} == {row.first.run_id for row in rows}
        assert [ONE, ONE, TWO] == [row.first.run_id for row in rows]


def test_other_counters_are_another_call():
    """Counters of which one grew and another shrank are those of two calls, and both are noted."""
    one = ImportedCall("r", "a", "1", "p", "m", "msg", "req", counters=(1, 5, 0, 0))
    rows = joined([one, one._replace(run_id="s", counters=(2, 4, 0, 0)), one._replace(run_id="t", counters=None)])
    assert [True, True] == [row.id_reused for row in rows]
    assert [1, 0] == [len(row.copies) for row in rows]


def test_two_requests_of_one_message():
    """Two requests of one message are two calls, and nothing is odd about them."""
    one = ImportedCall("r", "a", "1", "p", "m", "msg", "req", counters=(1, 5, 0, 0))
    rows = joined([one, one._replace(call_id="b", request_id="again")])
    assert [False, False] == [row.id_reused for row in rows]


_few = st.sampled_from
_calls = st.builds(
    ImportedCall,
    _few("rst"), _few("abcdef"), _few("12"), _few("p"), _few("mn"), _few(["x", "y", None]), _few(["q", "z", None]),
    _few(["r", "s", None]), _few(["u", "v", None]), st.booleans(), st.none() | st.tuples(*[st.integers(0, 2)] * 4),
)  # fmt: skip


@settings(max_examples=settings().max_examples // 4)
@given(st.lists(_calls, max_size=12), st.randoms(use_true_random=False))
def test_any_order(calls, rng):
    """In whatever order the calls come, the rows and their copies are the same, and no call is lost."""
    rows = joined(calls)
    mixed = list(calls)
    rng.shuffle(mixed)
    assert rows == joined(mixed)
    assert sorted(map(str, calls)) == sorted(str(each) for row in rows for each in (row.first, *row.copies))
