"""The journal's own lines: a round trip is exact, damage is named by its line, a longer export adds its tail."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runjournal.importers.jsonl import (
    BadExport,
    Blob,
    ImportConflict,
    JsonlRow,
    additions,
    export_lines,
    is_export,
    read_lines,
)
from runjournal.log import events as e
from runjournal.log.chain import GENESIS, event_hash
from runjournal.log.codec import decode, draft, linked
from runjournal.log.head import Head
from runjournal.log.private_values import no_key

AT = "2026-01-02T03:04:05.000000Z"


def chained(run_id, *events):
    """The rows of a run with these events, and the blobs that they refer to."""
    rows: list[JsonlRow] = []
    blobs: dict[str, bytes] = {}
    prev = None
    for seq, event in enumerate(events, 1):
        made = draft(event, at=AT, by="test")
        record, row = linked(run_id, seq, prev, made, epoch=0)
        rows.append(JsonlRow(run_id, *row))
        blobs.update(made.blobs)
        prev = record.hash
    return rows, blobs


def notes(run_id, *texts):
    return chained(run_id, e.RunQueued("k", {"n": 1}), *(e.NoteAdded(each) for each in texts))


class Stored:
    """A store that holds these rows."""

    def __init__(self, rows):
        self.rows = rows

    def head(self, run_id):
        own = [row for row in self.rows if row.run_id == run_id]
        return Head(run_id, head_seq=own[-1].seq, head_hash=own[-1].hash.hex()) if own else None

    def read(self, run_id, after=0, upto=None, *, types=None):
        own = [row for row in self.rows if row.run_id == run_id]
        return iter([decode(run_id, row.seq, 0, row.type, row.body, row.hash, no_key) for row in own[after:upto]])

    def secret(self, kind, name):
        return None


def exported(rows, blobs):
    return list(export_lines(rows, blobs.get))


@pytest.fixture
def export():
    rows, blobs = notes("r", "a", "x" * 70_000, "x" * 70_000)
    return exported(rows, blobs)


def test_round_trip():
    """What comes out of an export is what went in, byte for byte, each blob once and before its event."""
    rows, blobs = notes("r", "ä\0\u2028", "x" * 70_000, "x" * 70_000)
    entries = list(read_lines(exported(rows, blobs)))
    assert rows == [each for each in entries if isinstance(each, JsonlRow)]
    assert list(blobs.items()) == [each for each in entries if isinstance(each, Blob)]
    assert ["JsonlRow", "JsonlRow", "Blob", "JsonlRow", "JsonlRow"] == [type(each).__name__ for each in entries]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.binary(min_size=1, max_size=20) | st.text(min_size=1).map(str.encode)),
        max_size=6,
    )
)
def test_any_body(bodies):
    """Any bytes but none are carried over as they are, runs alternating, if they chain."""
    rows: list[JsonlRow] = []
    ends: dict[str, tuple[int, bytes]] = {}
    for run_id, body in bodies:
        seq, prev = ends.get(run_id, (0, GENESIS))
        ends[run_id] = seq + 1, event_hash(run_id, seq + 1, "x.any", prev, body)
        rows.append(JsonlRow(run_id, seq + 1, "x.any", body, ends[run_id][1]))
    assert rows == list(read_lines(exported(rows, {})))


def test_erased_blob():
    """A blob that was erased stays so."""
    rows, blobs = notes("r", "x" * 70_000)
    [digest] = blobs
    assert Blob(digest, None) in list(read_lines(exported(rows, {})))


def test_nothing():
    """An export of nothing is an export."""
    assert [] == list(read_lines(exported([], {})))


def test_is_export(export):
    """An export is told by its first line."""
    assert [True, False, False, False] == [is_export(line) for line in (export[0], export[1], b"[]", b"{")]


def _altered(line, **changes):
    return orjson.dumps(json.loads(line) | changes)


@pytest.mark.parametrize(
    ("number", "change", "what"),
    [
        (1, lambda lines: lines[1:], "expected the header"),
        (1, lambda lines: [b'{"runjournal":99}', *lines[1:]], "expected the header"),
        (2, lambda lines: [lines[0], b"{", *lines[2:]], "not valid JSON"),
        (2, lambda lines: [lines[0], b"[]", *lines[2:]], "expected a JSON object"),
        (2, lambda lines: [lines[0], b"{}", *lines[2:]], "run_id is missing"),
        (2, lambda lines: [lines[0], _altered(lines[1], run_id="../x"), *lines[2:]], "a run id"),
        (2, lambda lines: [lines[0], _altered(lines[1], seq="1"), *lines[2:]], "seq as a whole number"),
        (2, lambda lines: [lines[0], _altered(lines[1], body=None), *lines[2:]], "body as text"),
        (2, lambda lines: [lines[0], _altered(lines[1], body64="?"), *lines[2:]], "body64"),
        (2, lambda lines: [lines[0], _altered(lines[1], type="run.imported"), *lines[2:]], "another hash"),
        (4, lambda lines: [*lines[:2], *lines[3:]], "expected event 2"),
        (3, lambda lines: [*lines[:2], lines[1], *lines[2:]], "expected event 2"),
        (4, lambda lines: [*lines[:3], _altered(lines[3], body="1"), *lines[4:]], "another hash"),
        (4, lambda lines: [*lines[:3], *lines[4:]], "1 blobs"),
        (5, lambda lines: [*lines[:4], lines[3], *lines[4:]], "each once"),
        (6, lambda lines: [*lines[:5], *lines[6:]], "the end counts others"),
        (7, lambda lines: lines[:-1], "the file is cut"),
        (7, lambda lines: [*lines[:-1], lines[-1][:-4]], "not valid JSON"),
        (8, lambda lines: [*lines, lines[-1]], "something follows the end"),
    ],
)
def test_damage(export, number, change, what):
    """Each damage is an error that names the line and what was expected there."""
    with pytest.raises(BadExport, match=what) as caught:
        list(read_lines(change(export)))
    assert number == caught.value.line


def test_broken_chain():
    """An event that was hashed behind another one is found."""
    rows, _ = notes("r", "a")
    other, _ = notes("r", "b", "c")
    with pytest.raises(BadExport, match="another hash"):
        list(read_lines(exported([*rows, other[2]], {})))


def test_again():
    """The same export again adds nothing, into a store that has gone on neither."""
    rows, _ = notes("r", "a", "b")
    assert [] == list(additions(rows, Stored(rows)))
    assert [] == list(additions(rows[:2], Stored(rows)))


def test_longer_export():
    """A longer export adds its tail, and runs that aren't there yet whole."""
    rows, _ = notes("r", "a", "b")
    others, _ = notes("s", "a")
    assert [rows[2], *others] == list(additions([*rows, *others], Stored(rows[:2])))


@pytest.mark.parametrize("upto", [1, 2, 3])
def test_conflict(upto):
    """A run of the same id with another history is refused, be it longer, shorter or as long."""
    rows, _ = notes("r", "a", "b")
    others, _ = chained("r", e.RunQueued("other", None), e.NoteAdded("a"))
    with pytest.raises(ImportConflict):
        list(additions(rows[:upto], Stored(others)))
