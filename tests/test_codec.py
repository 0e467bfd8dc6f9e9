"""Events and their bytes: what is stored is exactly this, and it comes back equal or is refused at the door."""

import dataclasses
import datetime as dt
import enum
import hashlib
import json
import math
import random
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from same import exact

from runjournal import Journal
from runjournal.log import base, codec
from runjournal.log import events as e
from runjournal.log.chain import GENESIS, event_hash, verified
from runjournal.log.clock import FakeClock
from runjournal.log.errors import CorruptLog, InvalidArgument, TooLarge, Unstorable
from runjournal.log.limits import inline_value_bytes_max, int_max, int_min, json_depth_max
from runjournal.log.private_values import no_key
from runjournal.testing import generate, strategies

AT = "2026-11-29T13:28:05.123456Z"
BUILTIN = sorted(
    (cls for name, cls in base.registered().items() if not name.startswith("x.")), key=lambda cls: cls.TYPE
)

FIRST = (
    b'{"v":1,"at":"2026-11-29T13:28:05.123456Z","by":"worker-7","epoch":0,"step":null,'
    b'"data":{"kind":"demo","input":{"b":1,"a":[true,null,0.5]}}}'
)
SECOND = (
    b'{"v":1,"at":"2026-11-29T13:28:05.123456Z","by":"w\xc3\xb6rker","epoch":3,"step":4,'
    b'"data":{"key":"k","value":"\\u0000"}}'
)
GOLDEN = [
    (
        "run.queued",
        b'{"v":1,"at":"2026-11-30T00:00:00.000000Z","by":"w","epoch":0,"step":null,"data":{"kind":"k","input":null}}',
        "c62b60ce8e8b3c2b7ecc589bac0a2c162fb32941ec289091f1c33c1b173ec1cc",
    ),
    (
        "note.added",
        b'{"v":1,"at":"2026-11-30T00:00:01.000000Z","by":"w","epoch":1,"step":null,"data":{"text":"hi"}}',
        "41bbdb33f2776f234dcd4c0337e3ab0970f42723ab1931a35628900a5db94f63",
    ),
]
"""The first two events of the run `r`, and their hashes."""


def by_hand(run_id, seq, event_type, prev, body):
    """The hash as docs/architecture.md has it, with nothing of ours."""
    run, kind = run_id.encode(), event_type.encode()
    place = bytes([len(run)]) + run + seq.to_bytes(8, "big") + bytes([len(kind)]) + kind
    return hashlib.sha256(b"runjournal/2\0" + place + prev + body).digest()


def body_of(event, *, epoch=0, step=None, by="w"):
    return codec.encode(codec.draft(event, at=AT, by=by, step=step), epoch=epoch)


def back(event, **place) -> Any:
    """The event as a reader gets it."""
    return codec.decode("r", 1, 1, event.TYPE, body_of(event, **place), GENESIS, no_key).event


def note(value):
    return e.MemorySet("k", value)


def nested(depth):
    value: Any = None
    for _ in range(depth):
        value = [value]
    return value


# --- the exact bytes --------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R93")
def test_chain_golden():
    """The hashes of events are frozen: they are these values, by hand and by the package, and they are linked so."""
    prev = GENESIS
    for seq, (event_type, body, expected) in enumerate(GOLDEN, 1):
        assert expected == by_hand("r", seq, event_type, prev, body).hex()
        assert expected == event_hash("r", seq, event_type, prev, body).hex()
        prev = bytes.fromhex(expected)


def test_golden_events_are_written_so():
    """The package writes the golden events itself, byte for byte and hash for hash."""
    prev = None
    made = [(e.RunQueued("k", None), GOLDEN[0], 0), (e.NoteAdded("hi"), GOLDEN[1], 1)]
    for seq, (event, (kind, body, digest), epoch) in enumerate(made, 1):
        draft = codec.draft(event, at=f"2026-11-30T00:00:0{seq - 1}.000000Z", by="w")
        record, row = codec.linked("r", seq, prev, draft, epoch=epoch)
        assert (seq, kind, body, bytes.fromhex(digest)) == row
        prev = record.hash


def test_body_first():
    """The bytes of a first event are frozen: the order of keys, no spaces, data in the order of the fields."""
    assert FIRST == body_of(e.RunQueued("demo", {"b": 1, "a": [True, None, 0.5]}), by="worker-7")


def test_body_linked():
    """The bytes of a later event name epoch and step; text is UTF-8, NUL is escaped."""
    event = e.MemorySet("k", "\0")
    assert SECOND == body_of(event, epoch=3, step=4, by="wörker")


def test_body_ext():
    """A blob's reference stands before data, with digest and length."""
    value = "x" * 70_000
    digest = hashlib.sha256(b'"' + value.encode() + b'"').hexdigest()
    expected = (
        f'{{"v":1,"at":"{AT}","by":"w","epoch":0,"step":null,'
        f'"ext":{{"value":{{"sha256":"{digest}","bytes":70002}}}},"data":{{"key":"k"}}}}'
    )
    assert expected.encode() == body_of(note(value))


def test_optional_fields_absent():
    """An optional field that says nothing isn't stored."""
    body = json.loads(body_of(e.ToolCompleted("c", 1, {"ok": True})))
    assert {"call_id": "c", "attempt": 1, "result": {"ok": True}} == body["data"]


def test_underscore_is_not_stored():
    """A field that had to dodge a Python word is stored under its plain name."""
    body = json.loads(body_of(e.RunWaiting([{"kind": "timer", "id": "t"}])))
    assert ["for"] == list(body["data"])


def test_chain_link_and_gap():
    """A changed body or hash is found at its event, and a missing event is named by its seq."""
    rows, prev = [], None
    for seq, record in enumerate(generate.as_records(generate.run(random.Random(7), 30)), 1):
        made, (*_, kind, body, digest) = codec.linked("r", seq, prev, codec.draft(record.event, at=AT, by="w"), epoch=0)
        rows.append((seq, seq, kind, body, digest))
        prev = made.hash
    assert rows == list(verified(rows, "r"))
    assert rows[4:] == list(verified(rows[4:], "r", 4, rows[3][4].hex()))
    with pytest.raises(CorruptLog) as gap:
        list(verified(rows[:4] + rows[5:], "r"))
    assert 5 == gap.value.seq
    seq, position, kind, body, digest = rows[4]
    for other in ((seq, position, kind, body, GENESIS), (seq, position, kind, body + b" ", digest)):
        with pytest.raises(CorruptLog) as link:
            list(verified([*rows[:4], other, *rows[5:]], "r"))
        assert 5 == link.value.seq
    for prev in ("0" * 64, "not hex"):
        with pytest.raises(CorruptLog) as behind:
            list(verified(rows[4:], "r", 4, prev))
        assert 5 == behind.value.seq


@pytest.mark.requirement("R93")
@pytest.mark.parametrize("place", range(1, 7))
def test_each_part_is_hashed(place):
    """Run id, seq, type, the hash before and the body all count, and none can lend a byte to its neighbour."""
    others = [
        ("ru", 1, "n-1", GENESIS, b"{}"),
        ("run", 2, "t", GENESIS, b"{}"),
        ("run", 1, "u", GENESIS, b"{}"),
        ("run", 1, "t", GENESIS, b"{} "),
        ("run", 1, "t\0", GENESIS[1:] + b"{", b"}"),
        ("run", 1, "t", b"x" * 32, b"{}"),
    ]
    assert event_hash("run", 1, "t", GENESIS, b"{}") != event_hash(*others[place - 1])


@pytest.mark.parametrize(
    "odd",
    [("r" * 256, 1, "t", GENESIS), ("r", 1, "ä" * 128, GENESIS), ("r", -1, "t", GENESIS), ("r", 2**64, "t", GENESIS),
     ("r", 1, "t", b"")],
)  # fmt: skip
def test_what_no_hash_can_stand_for(odd: tuple[str, int, str, bytes]):
    """A name whose length takes more than a byte, a seq over 8 bytes and a hash of another length are refused."""
    with pytest.raises(InvalidArgument, match="expected"):
        event_hash(*odd, b"{}")
    assert 32 == len(event_hash("r" * 255, 2**64 - 1, "ä" * 127, GENESIS, b""))


# --- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", BUILTIN, ids=lambda cls: cls.TYPE)
def test_round_trip_of_each_type(cls):
    """Twenty random events of each type come back equal."""
    rng = random.Random(cls.TYPE)
    for event in [generate.event(rng, cls) for _ in range(20)]:
        assert exact(event) == exact(back(event))


@given(strategies.any_event())
def test_round_trip(event):
    """Any event that the test kit makes comes back equal, and writes the same bytes again."""
    again = back(event)
    assert exact(event) == exact(again)
    assert body_of(event) == body_of(again)


@given(strategies.json_values())
def test_values_round_trip(value):
    """Any JSON value comes back equal, type for type."""
    assert exact(value) == exact(codec.plain(value))


@given(st.dictionaries(strategies.text(), strategies.json_values(), min_size=2, max_size=4), st.booleans())
def test_order_round_trips(value, large):
    """The keys of a value come back in the order that they had, inside an event and out of line."""
    value = {"z": "x" * inline_value_bytes_max} | value if large else value
    made = codec.draft(note(value), at=AT, by="w")
    for body in [body for _, body in made.blobs] or [orjson.dumps(back(note(value)).value)]:
        assert exact(value) == exact(codec.loads(body))


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Half(float):
    pass


class Map(dict[str, Any]):
    pass


class Items(list[Any]):
    pass


class Word(str, enum.Enum):  # noqa: UP042 - what StrEnum replaced is still about
    A = "a"


class Level(enum.IntEnum):
    LOW = 1


class Flags(enum.Flag):
    ON = 1


@dataclass
class Data:
    x: int = 1


class Point(NamedTuple):
    x: int
    y: int


WRONG = {
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "2**63": 2**63,
    "2**64": 2**64,
    "-2**63-1": -(2**63) - 1,
    "tuple": (1, 2),
    "namedtuple": Point(1, 2),
    "set": {1},
    "frozenset": frozenset({1}),
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "str subclass": Text("x"),
    "int subclass": Whole(1),
    "float subclass": Half(1.0),
    "dict subclass": Map(a=1),
    "OrderedDict": OrderedDict(a=1),
    "list subclass": Items([1]),
    "str enum": Word.A,
    "int enum": Level.LOW,
    "flag": Flags.ON,
    "datetime": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "date": dt.date(2026, 1, 1),
    "time": dt.time(1),
    "uuid": uuid.UUID(int=1),
    "decimal": Decimal(1),
    "complex": 1j,
    "dataclass": Data(),
    "type": int,
    "object": object(),
    "range": range(2),
    "fragment": orjson.Fragment(b"1"),
    "blob inside": e.BlobRef("0" * 64, 1),
}


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
def test_unstorable(value):
    """What wouldn't come back equal is refused, by JSON path, wherever it hides."""
    with pytest.raises(Unstorable) as refusal:
        codec.draft(note({"a": [0, {"b": value}]}), at=AT, by="w")
    assert "$.value.a[1].b" == refusal.value.path


@pytest.mark.parametrize(
    "value", [int_min, int_max, 0, -0.0, 5e-324, 1.7976931348623157e308, "\0", "\U0010ffff", "", {}, []]
)
def test_storable_at_the_edge(value):
    """The last values inside the bounds come back equal, type for type, NUL in a payload too."""
    assert exact(value) == exact(back(note(value)).value)


@pytest.mark.parametrize("key", [1, None, True, 1.5, Text("x"), Word.A, (1,), b"x"], ids=repr)
def test_keys_are_text(key):
    """A key that isn't plain text is refused where its object lies."""
    with pytest.raises(Unstorable) as refusal:
        codec.dumps({"a": {key: 1}})
    assert "$.a" == refusal.value.path


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("\ud800", "$"),
        (["x", "\udfff"], "$[1]"),
        ({"a": {"\ud800": 1}}, "$.a"),
        ({"a": {"b": ["\udc80x"]}}, "$.a.b[0]"),
    ],
)
def test_lone_surrogates(value, path):
    """Half a character is refused, in values and in keys, with its place."""
    with pytest.raises(Unstorable) as refusal:
        codec.dumps(value)
    assert path == refusal.value.path


def test_depth():
    """Sixty-four levels are stored, the sixty-fifth is refused at its place; a value in an event has one less."""
    assert nested(json_depth_max) == codec.loads(codec.dumps(nested(json_depth_max)))
    assert nested(json_depth_max - 1) == codec.plain(nested(json_depth_max - 1))
    with pytest.raises(Unstorable):
        codec.plain(nested(json_depth_max))
    with pytest.raises(Unstorable) as refusal:
        codec.dumps(nested(json_depth_max + 1))
    assert "$" + "[0]" * json_depth_max == refusal.value.path


def test_endless():
    """A list that holds itself is refused."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(Unstorable):
        codec.dumps(endless)


def test_error_text_holds_no_payload():
    """A refusal says what was wrong without repeating the value."""
    with pytest.raises(Unstorable) as unstorable:
        codec.draft(note({"password": {"hunter2"}}), at=AT, by="w")
    with pytest.raises(InvalidArgument) as invalid:
        codec.draft(e.MemoryDeleted("hunter2" * 100), at=AT, by="w")
    assert "hunter2" not in str(unstorable.value) + str(invalid.value)


@dataclass(frozen=True)
class Odd:
    """Not JSON, but it compares equal to everything."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary(max_size=3)
    | st.sampled_from(list(WRONG.values()))
    | st.just(Odd())
    | st.decimals()
    | st.uuids()
    | st.datetimes(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.sets(st.integers(), max_size=2)
        | st.dictionaries(
            st.text(st.characters(), max_size=3) | st.integers() | st.none() | st.booleans(), inner, max_size=3
        )
        | st.lists(inner, max_size=2).map(Items)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2).map(Map)
    ),
    max_leaves=6,
)


@given(ANYTHING)
def test_equal_or_refused(value):
    """Whatever Python has: what goes in comes out equal, type for type, or is refused."""
    try:
        made = body_of(note(value))
    except (Unstorable, InvalidArgument):
        return
    stored: Any = codec.decode("r", 1, 1, "memory.set", made, GENESIS, no_key).event
    assert isinstance(value, e.BlobRef) or exact(value) == exact(stored.value)
    assert note(value) == stored


@given(st.sampled_from(BUILTIN), strategies.seeds(), st.data())
def test_fields_equal_or_refused(cls, rng, data):
    """Whatever is put into whatever field of an event: it comes out equal or is refused."""
    event = generate.event(rng, cls)
    fields = base.plan_of(cls)
    if not fields:
        return
    event = dataclasses.replace(event, **{data.draw(st.sampled_from(fields)).attribute: data.draw(ANYTHING)})
    try:
        made = body_of(event)
    except (Unstorable, InvalidArgument, TooLarge):
        return
    stored = codec.decode("r", 1, 1, cls.TYPE, made, GENESIS, no_key).event
    assert event == stored
    assert exact(event) == exact(stored)
    assert repr(event) == repr(stored)


def test_a_field_whose_name_is_no_text_is_refused():
    """An object of an event has the fields that it has, whatever is put in beside them."""
    with pytest.raises(InvalidArgument, match="unknown field '0'"):
        body_of(e.RunQueued("demo", None, budget={0: 1}))  # type: ignore[dict-item]  # as a user may


# --- ids, names, times ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run_id", ["", "a" * 129, ".a", "-a", "_a", "a b", "a/b", "ä", "a\0", "a\n", None, 1, b"a"], ids=repr
)
def test_run_id_refused(run_id):
    """A run id is 1 to 128 of A-Z a-z 0-9 . _ -, starting with a letter or digit; NUL and a newline are neither."""
    with pytest.raises(InvalidArgument):
        codec.check_run_id(run_id)


@pytest.mark.parametrize("run_id", ["a", "0", "A.b_c-d", "a" * 128])
def test_run_id(run_id):
    """A run id at the edge of what is allowed is given back."""
    assert run_id == codec.check_run_id(run_id)


@pytest.mark.parametrize("name", ["", "a\0b", "\0", "a" * 513, None, 1, Text("a")], ids=lambda name: repr(name)[:20])
def test_names_refused(name):
    """Ids and names are not empty, bounded, plain text, and without NUL."""
    with pytest.raises(InvalidArgument):
        codec.draft(e.MemoryDeleted(name), at=AT, by="w")


@pytest.mark.parametrize(
    "by", ["", "a\0", "a\n", "\x1b[31m", "a" * 513, "\ud800", None, 7], ids=lambda by: repr(by)[:20]
)
def test_by_refused(by):
    """Who writes is 1 to 512 printable characters."""
    with pytest.raises(InvalidArgument):
        codec.draft(e.MemoryReset(), at=AT, by=by)


@pytest.mark.parametrize(
    "due_at",
    [
        "",
        "2026-11-29",
        "2026-11-29T13:28:05Z",
        "2026-11-29T13:28:05.123456+00:00",
        "2026-13-29T13:28:05.123456Z",
        "٢٠٢٦-11-29T13:28:05.123456Z",
        AT + "\n",
    ],
)
def test_times_refused(due_at):
    """A time is UTC text with microseconds, in plain digits, of a day that there is."""
    with pytest.raises(InvalidArgument):
        codec.draft(e.RunRetryScheduled(due_at, 1, {"type": "E", "message": ""}, []), at=AT, by="w")


@pytest.mark.parametrize(
    "amount", ["", "1e3", "NaN", "1,5", "0.1 ", "٣", "1.", ".5", "+1", 1, 0.5, Decimal(1)], ids=repr
)
def test_money_refused(amount):
    """Money is plain decimal text."""
    with pytest.raises(InvalidArgument):
        codec.draft(e.CostRecorded(amount, "USD", "bill"), at=AT, by="w")


@pytest.mark.parametrize("event", ["run.queued", None, {"type": "note.added"}, e.NoteAdded], ids=repr)
def test_not_an_event(event):
    """What isn't an event is refused with a sentence, not with an AttributeError."""
    with pytest.raises(InvalidArgument):
        codec.draft(event, at=AT, by="w")


def test_unregistered_type():
    """An event whose class isn't registered is refused, with the way out."""

    @dataclass(frozen=True, slots=True)
    class Stray(e.Event):
        TYPE: ClassVar[str] = "x.stray"

    with pytest.raises(InvalidArgument, match="register"):
        codec.draft(Stray(), at=AT, by="w")


def test_another_class_under_a_known_type():
    """A subclass of an event isn't that event: it wouldn't come back as itself."""

    @dataclass(frozen=True, slots=True)
    class Louder(e.NoteAdded):
        volume: int = 11

    with pytest.raises(InvalidArgument):
        codec.draft(Louder("x"), at=AT, by="w")


# --- blobs ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R88")
@pytest.mark.parametrize(("size", "out"), [(inline_value_bytes_max - 2, False), (inline_value_bytes_max - 1, True)])
def test_blob_boundary(size, out):
    """A value of exactly 64 KiB of JSON stays in line, one byte more is a blob."""
    draft = codec.draft(note("x" * size), at=AT, by="w")
    assert out == bool(draft.blobs)
    assert out == isinstance(back(note("x" * size)).value, e.BlobRef)
    assert out == isinstance(back(e.RunCompleted("x" * size)).output, e.BlobRef)


def test_blob_counts_bytes():
    """The bound is on bytes of JSON, not on characters."""
    assert codec.draft(note("ß" * (inline_value_bytes_max // 2)), at=AT, by="w").blobs


def test_blob_is_named_by_its_content():
    """A blob is the JSON of the value, under the SHA-256 of those bytes; folds see the reference."""
    value = {"b": "y" * 70_000, "a": 1}
    draft = codec.draft(note(value), at=AT, by="w")
    ((digest, body),) = draft.blobs
    assert (hashlib.sha256(body).hexdigest(), value) == (digest, json.loads(body))
    assert e.MemorySet("k", e.BlobRef(digest, len(body))) == draft.event


def test_small_fields_stay():
    """Of an event over the bound only the values over it go out of line."""
    event = e.ApprovalRequested("q", "a", "r", args={"x": 1}, preview="p" * 70_000)
    assert (["preview"], {"x": 1}) == (list(json.loads(body_of(event))["ext"]), back(event).args)


def test_too_large():
    """What can't go out of line is bounded by the size of an event."""
    with pytest.raises(TooLarge, match="event_data_bytes_max"):
        codec.draft(e.ToolFailed("c", 1, {"type": "E", "message": "m" * 2**20}, transient=False), at=AT, by="w")


@pytest.mark.parametrize(
    "reference", [("x", 1), ("0" * 64, -1), ("0" * 64, "1"), (None, 1), ("A" * 64, 1), ("0" * 64, True)], ids=repr
)
def test_blob_reference_refused(reference):
    """A reference that names no blob is refused."""
    with pytest.raises(InvalidArgument):
        codec.draft(note(e.BlobRef(*reference)), at=AT, by="w")


# --- types of the user's own ------------------------------------------------------------------------------------------


@base.register
@dataclass(frozen=True, slots=True)
class Invoice(e.Event):
    TYPE: ClassVar[str] = "x.test_codec.invoice"
    VERSION: ClassVar[int] = 3
    BLOBS: ClassVar[frozenset[str]] = frozenset({"lines"})
    number: str
    lines: e.Json
    paid: bool = True
    note: str | None = None
    extra: e.Json = None


@base.upcaster("x.test_codec.invoice", 1)
def _number(data):
    return {"number": str(data["no"]), "lines": []}


@base.upcaster("x.test_codec.invoice", 2)
def _lines(data):
    if data["lines"] == "boom":
        raise ZeroDivisionError
    return data | {"note": "upcast"}


@base.register
@dataclass(frozen=True)
class Checked(e.Event):
    TYPE: ClassVar[str] = "x.test_codec.checked"
    n: int

    def __post_init__(self):
        if self.n == 13:
            raise LookupError(self.n)


@base.register
@dataclass(frozen=True, slots=True)
class Nullable(e.Event):
    TYPE: ClassVar[str] = "x.test_codec.nullable"
    maybe: str | None
    word: str | None = "default"
    anything: e.Json = 5


def stored(event_type, v, data, **extra):
    envelope = {"v": v, "at": AT, "by": "w", "epoch": 0, "step": None} | extra | {"data": data}
    return codec.decode("r", 1, 1, event_type, orjson.dumps(envelope), GENESIS, no_key).event


@pytest.mark.parametrize(
    "event",
    [Invoice("1", []), Invoice("2", [{"a": 1}], paid=False, note="n"), Invoice("3", "x" * 70_000), Checked(7),
     Nullable(None), Nullable("x", None, None), Nullable("x", "default", 5)],
    ids=lambda event: f"{type(event).__name__}-{event.__reduce__()[1:2]!r}"[:30],
)  # fmt: skip
def test_own_types_round_trip(event):
    """Types of the user's own come back equal, None in the place of another default included."""
    draft = codec.draft(event, at=AT, by="w")
    assert exact(draft.event) == exact(back(event))
    assert draft.blobs or exact(event) == exact(draft.event)


@pytest.mark.requirement("R146")
def test_upcasters():
    """Old versions are read through every upcaster in turn."""
    assert Invoice("17", [], note="upcast") == stored("x.test_codec.invoice", 1, {"no": 17})
    assert Invoice("17", [1], note="upcast") == stored("x.test_codec.invoice", 2, {"number": "17", "lines": [1]})
    assert Invoice("17", [1]) == stored("x.test_codec.invoice", 3, {"number": "17", "lines": [1]})


@pytest.mark.requirement("R146")
def test_old_versions_replay():
    """A stored log of old versions is replayed through the upcasters, to readers and folds."""
    with Journal.open("memory:", clock=FakeClock()) as journal:
        journal.append("r", [e.RunQueued("demo", None), Invoice("1", [])], expect=0)
        old = body_of(Invoice("1", [])).replace(b'"v":3', b'"v":1').replace(b'"number":"1","lines":[]', b'"no":1')
        assert Invoice("1", [], note="upcast") == codec.decode("r", 2, 2, Invoice.TYPE, old, GENESIS, no_key).event


@pytest.mark.parametrize("data", [{"number": "1", "lines": "boom"}, {"number": "1"}, {}])
def test_failing_upcaster(data):
    """An upcaster that raises, whatever it raises, makes an unreadable event, not a crash."""
    assert isinstance(stored("x.test_codec.invoice", 2, data), e.UnreadableEvent)


def test_failing_constructor():
    """A class of the user's own that refuses stored data makes an unreadable event, not a crash."""
    assert isinstance(stored("x.test_codec.checked", 1, {"n": 13}), e.UnreadableEvent)


@pytest.mark.requirement("R145")
def test_unknown_type():
    """An event of an unknown type keeps its version and data."""
    event = stored("x.teleported", 2, {"to": "mars"})
    assert e.UnknownEvent("x.teleported", 2, {"to": "mars"}) == event


def test_newer_version():
    """Data of a newer version is shown as it is."""
    assert e.NewerEvent("note.added", 2, {"texts": ["a"]}) == stored("note.added", 2, {"texts": ["a"]})


def test_empty_body():
    """A body that was taken away is an event of which the type is left, whatever that is."""
    for kind in ("run.queued", "x.own", "newer.type"):
        assert e.PurgedEvent(kind) == codec.decode("r", 1, 1, kind, b"", bytes(32), no_key).event


@pytest.mark.parametrize(
    "body",
    [b"\xff", b"null", b"[]", b"17", b'"x"', b"{}", b'{"v":1}', FIRST[:-1], FIRST + b" x",
     FIRST.replace(b'"v":1', b'"v":"1"'), FIRST.replace(b'"v":1', b'"v":true'), FIRST.replace(b'"v":1', b'"v":0'),
     FIRST.replace(b'"v":1', b'"v":null'), FIRST.replace(b'"epoch":0', b'"epoch":"0"'),
     FIRST.replace(b'"step":null', b'"step":[]'),
     FIRST.replace(b'"by":"worker-7"', b'"by":7'), FIRST.replace(b'"kind"', b'"kinds"'),
     FIRST.replace(b'"kind":"demo"', b'"kind":1'),
     FIRST.replace(b'"data"', b'"ext":[1],"data"'), FIRST.replace(b'"data"', b'"ext":{"input":1},"data"'),
     FIRST.replace(b'"data"', b'"ext":{"input":{}},"data"'), FIRST.replace(b'"data"', b'"ext":"x","data"'),
     FIRST.replace(b'"data"', b'"ext":{"input":{"sha256":1,"bytes":"x"}},"data"')],
)  # fmt: skip
def test_unreadable_body(body):
    """A body that is no event of its type is an UnreadableEvent that keeps the bytes, and its hash."""
    digest = by_hand("r", 1, "run.queued", GENESIS, body)
    record = codec.decode("r", 1, 1, "run.queued", body, digest, no_key)
    assert isinstance(record.event, e.UnreadableEvent)
    assert (body, digest.hex()) == (record.event.body, record.hash)


@given(
    st.binary(max_size=40)
    | st.builds(lambda at, cut: FIRST[:at] + cut + FIRST[at + 1 :], st.integers(0, len(FIRST)), st.binary(max_size=2))
)
def test_decode_never_raises(body):
    """Whatever bytes are stored, reading them gives a record."""
    digest = by_hand("r", 1, "run.queued", GENESIS, body)
    assert digest.hex() == codec.decode("r", 1, 1, "run.queued", body, digest, no_key).hash


def test_register_wants_a_prefix():
    """A type of the user's own is `x.<name>`, so that it never meets one of ours."""

    @dataclass(frozen=True, slots=True)
    class Shadow(e.Event):
        TYPE: ClassVar[str] = "run.queued"

    with pytest.raises(InvalidArgument, match=r"x\.<name>"):
        base.register(Shadow)


def test_register_wants_frozen():
    """An event that could be changed is refused."""

    class Loose(e.Event):
        TYPE: ClassVar[str] = "x.test_codec.loose"

    with pytest.raises(InvalidArgument, match="frozen"):
        base.register(type("Loose2", (), {"TYPE": "x.test_codec.loose2"}))
    with pytest.raises(InvalidArgument):
        base.register(Loose)


def test_register_twice():
    """Two classes can't share a type; registering the same one again is nothing."""

    @dataclass(frozen=True, slots=True)
    class Other(e.Event):
        TYPE: ClassVar[str] = "x.test_codec.invoice"

    with pytest.raises(InvalidArgument, match="registered already"):
        base.register(Other)
    assert Invoice is base.register(Invoice)


def test_upcaster_twice():
    """A version has one upcaster."""
    with pytest.raises(InvalidArgument):
        base.upcaster("x.test_codec.invoice", 1)(dict)


def test_register_refuses_fields_that_json_lacks():
    """A field that JSON can't hold is found when the type is registered."""

    @dataclass(frozen=True, slots=True)
    class When(e.Event):
        TYPE: ClassVar[str] = "x.test_codec.when"
        at: dt.datetime

    with pytest.raises(InvalidArgument):
        base.register(When)


def test_blob_reference_in_another_field():
    """A reference where the type keeps no blobs is refused: a reader wouldn't find it."""
    with pytest.raises((InvalidArgument, Unstorable)):
        codec.draft(Invoice("1", [], extra=e.BlobRef("0" * 64, 1)), at=AT, by="w")


def test_draft_is_detached():
    """What the writer does to its value afterwards changes nothing that was drafted."""
    value = {"a": [1]}
    draft = codec.draft(note(value), at=AT, by="w")
    value["a"].append(2)
    assert e.MemorySet("k", {"a": [1]}) == draft.event
