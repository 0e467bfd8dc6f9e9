"""A replay decodes no more than its folds read: what it comes to, and refuses, is what all decoded events come to."""

from typing import cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runjournal.log import events as e
from runjournal.log.chain import GENESIS, RawRow, event_hash
from runjournal.log.codec import decode, draft, encode
from runjournal.log.errors import Unfoldable
from runjournal.log.private_values import no_key
from runjournal.projections.skim import fold_rows, role_of
from runjournal.projections.state import RunState, dump_bytes
from runjournal.testing import generate, strategies

AT = "2026-01-02T03:04:05.000006Z"
CONTENTS = st.text() | st.lists(
    st.dictionaries(st.text(), st.none() | st.integers(-9, 9) | st.text(), max_size=2), max_size=2
)
HEAD = b'{"v":1,"at":"2026-01-02T03:04:05.000006Z","by":"w","epoch":1,"step":null,'


def body_of(event, **how):
    """The stored bytes of an event."""
    return encode(draft(event, at=AT, by="w", step=how.get("step")), epoch=1)


def is_counted(body):
    """Whether all decoded it is a message that a fold takes, and that is of its role and continues none."""
    record = decode("r", 1, 1, "message.appended", body, bytes(32), no_key)
    match record.event:
        case e.MessageAppended(role=role, message_id=None, provider=None) if not record.unknown:
            return role, record.at
        case _:
            return None


@given(st.sampled_from(["system", "user", "assistant", "tool"]), CONTENTS)
def test_a_message_is_known_by_its_role(role, content):
    """A plain message is skimmed, whatever it says."""
    assert (role, AT) == role_of(body_of(e.MessageAppended(role, content)))


@pytest.mark.parametrize("data", [
    b'"data":{"role":"user","content":"x","message_id":"m"}}',
    b'"data":{"role":"user","content":"x","provider":"p"}}',
    b'"data":{"role":"user","content":"x","raw":[]}}',
    b'"data":{"role":"user","content":"x","newer":1}}',
    b'"data":{"role":"nobody","content":"x"}}', b'"data":{"role":"user"}}', b'"data":{"content":"x"}}', b'"data":[]}',
    b'"ext":{"content":{"sha256":"' + b"0" * 64 + b'","bytes":1}},"data":{"role":"user"}}',
    b'"data":{"role":"user","content":"\\ud800"}}', b'"data":{"role":"user","content":"x"}',
    b'"data":{"role":["user"],"content":1}}',
    b'"data":{"role":"user","content":"x"}}}',
    b'"data":{"role":"user","content":"\n"}}',
    b'"data":{"role":"user","content":"\xff"}}',
    b'"data":{"role":"user","content":' + b"[" * 70 + b"]" * 70 + b"}}",
    b'"data":{"role":"user","content":"x"} ,"v":2}',
])  # fmt: skip
def test_what_is_decoded_in_full(data):
    """Whatever isn't a plain message, or can't be read, is left to those who read all of it."""
    assert role_of(HEAD + data) is None


@given(st.binary(max_size=3), st.integers(0, 120), st.integers(0, 3), CONTENTS)
def test_no_other_bytes_are_taken_for_a_message(junk, at, gone, content):
    """Bytes that were changed anywhere are skimmed only if all decoded they are that very message."""
    body = body_of(e.MessageAppended("user", content))
    changed = body[:at] + junk + body[at + gone :]
    assert role_of(changed) in (None, is_counted(changed))


def rows_of(records, **changed):
    """Stored rows, chained anew, some bodies changed by seq."""
    rows, link = [], GENESIS
    for record in records:
        made = draft(record.event, at=record.at, by=record.by, step=record.step)
        body = changed.get(f"at_{record.seq}", encode(made, epoch=record.epoch))
        link = event_hash("r", record.seq, record.type, link, body)
        rows.append((record.seq, record.seq, record.type, body, link))
    return rows


@given(strategies.seeds(), st.integers(1, 60))
def test_skimmed_is_folded(rng, size):
    """The state of skimmed rows is, byte for byte, that of all of them decoded."""
    records = generate.as_records(generate.run(rng, size))
    rows = rows_of(records)
    expected = RunState.initial().fold(decode("r", *cast("RawRow", row), no_key) for row in rows)
    assert dump_bytes(expected.dump()) == dump_bytes(fold_rows(RunState.initial(), "r", rows, no_key).dump())


@pytest.mark.parametrize("bad", [b"{", body_of(e.MessageAppended("user", "x")).replace(b'"v":1', b'"v":9')])
def test_a_bad_row_among_messages_is_refused(bad):
    """Folding stops at a message that can't be read or is newer, and what came before it is in the state."""
    said = [(e.MessageAppended("user", str(n)), 1) for n in range(5)]
    records = generate.as_records([(e.RunQueued("demo", None), 0), (generate.claim(1), 1), *said])
    state = RunState.initial()
    with pytest.raises(Unfoldable):
        fold_rows(state, "r", rows_of(records, at_5=bad), no_key)
    assert (4, 2) == (state.seq, state.transcript.base.count)
    state = fold_rows(RunState.initial(), "r", rows_of(records, at_5=bad), no_key, force=True)
    assert (7, 4, 1) == (state.seq, state.transcript.base.count, state.skipped)


def test_escapes_are_read():
    """A text with escapes is a message like any other."""
    body = HEAD + b'"data":{"role":"user","content":"a\\n\\"\\\\ \xc3\xa4 \\u00e4"}}'
    assert orjson.loads(body)
    assert ("user", AT) == role_of(body)
