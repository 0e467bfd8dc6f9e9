"""Private runs: what they were told is ciphertext in the store, and erasing makes it unreadable for ever (P25)."""

import base64
import random
import re
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import apsw
import orjson
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from runjournal.cli.app import cli
from runjournal.engine.failures import StepFailed
from runjournal.engine.tools import call_key, tool
from runjournal.erasing import Erasure
from runjournal.importers.transfer import export_runs, import_jsonl
from runjournal.journal import Journal
from runjournal.log import cipher, codec, sqlite_place, sqlite_transaction
from runjournal.log import events as e
from runjournal.log import sqlite_upkeep as upkeep
from runjournal.log.base import ERASED, Event, UnreadableEvent, data_of, event_of, plan_of, register
from runjournal.log.chain import GENESIS
from runjournal.log.clock import FakeClock
from runjournal.log.errors import InvalidArgument, MissingExtra, NotAllowed, RunNotFound
from runjournal.log.hiding import hide
from runjournal.log.limits import inline_value_bytes_max, name_chars_max
from runjournal.log.private_fields import ERASED_TEXT
from runjournal.log.private_values import _places, no_key
from runjournal.looking.audit import audit_store
from runjournal.looking.doctor import doctor
from runjournal.projections.state import RunState
from runjournal.testing import generate
from runjournal.writing.checkpoints import CheckpointPolicy
from runjournal.writing.rebuild import rebuild

AT = "2026-11-30T00:00:00.000000Z"
KEY = bytes(range(32))
BUILTIN = {name: cls for name, cls in e.registered().items() if not name.startswith("x.")}
PUBLIC = {
    "run.queued": "kind tags scope priority parent_run_id link base again budget not_before expires_at every "
    "code_version",
    "run.imported": "kind source tool sha256 tool_version parent_run_id",
    "run.opened": "kind source tags parent_run_id",
    "run.claimed": "worker epoch lease_s host boot_id pid_ns pid pid_started resume code_version agent",
    "run.waiting": "for due_at",
    "run.retry_scheduled": "due_at attempt left",
    "run.requeued": "reason point",
    "run.failed": "left cause",
    "run.cancel_requested": "mode above",
    "run.erased": "reason",
    "run.purged": "reason status kind scope queued_at events head_hash hashes lines money started_at ended_at "
    "parent_run_id",
    "step.started": "index id name kind entry attempt key recalled",
    "step.completed": "index",
    "step.failed": "index transient cut left",
    "step.recorded": "index",
    "message.appended": "role message_id provider",
    "model.started": "call_id model attempt provider place",
    "model.completed": "call_id attempt usage cost response_id finish_reason request_id response_model first_token_at "
    "price origin",
    "model.recounted": "call_id attempt model usage was was_model provider response_id finish_reason request_id "
    "price was_price",
    "model.failed": "call_id attempt transient again cut retry_at usage cost response_id request_id "
    "response_model first_token_at price",
    "tool.started": "call_id tool policy read_only on_unknown attempt provider_call_id key_expires_at timeout_s "
    "key_born own_key",
    "tool.dispatched": "call_id claim until process key_expires_at",
    "tool.completed": "call_id attempt cut replayed usage cost",
    "tool.failed": "call_id attempt transient did_not_happen again cut retry_at lost settled usage cost",
    "tool.adopted": "call_id",
    "tool.resolved": "call_id attempt outcome late",
    "memory.set": "key",
    "memory.deleted": "key",
    "approval.requested": "approval_id action tool call_id risk expires_at",
    "approval.resolved": "approval_id decision",
    "signal.received": "signal_id name",
    "timer.set": "timer_id due_at",
    "timer.fired": "timer_id",
    "signal.taken": "signal_ids wait_id",
    "child.spawned": "child_run_id kind agent budget call_id",
    "child.finished": "child_run_id status ended_as spent",
    "plan.updated": "task_id status",
    "context.compacted": "upto_seq",
    "cost.recorded": "amount currency source call_id model usage",
    "cost.repriced": "amount currency source call_id",
    "note.added": "code call_id",
    "blob.attached": "media_type bytes",
}
"""What is never private, by type: names, keys, kinds, ids, times, numbers. A new field has to be decided about."""


class Marks:
    """Texts that are found again wherever they lie."""

    def __init__(self, rng: random.Random, sizes: tuple[int, ...] = (30,)) -> None:
        self.rng, self.sizes, self.made = rng, sizes, list[str]()

    def mark(self) -> str:
        text = f"PLANT-{secrets.token_hex(10)}"
        self.made.append(text)
        return text + "x" * (self.rng.choice(self.sizes) - len(text))

    def on(self, event: Event) -> Event:
        """The same event with a mark in each place that can be private."""
        data = data_of(event)
        for path in event.PRIVATE:
            for holder, key, _ in list(_places(data, path.split("."), [])):
                if not (isinstance(holder[key], str) and re.fullmatch("[0-9a-f]{64}", holder[key])):
                    object_only = type(holder[key]) is dict and key not in event.BLOBS
                    marked = {"mark": self.mark()} if object_only or key == "request" else self.mark()
                    holder[key] = {"rest": marked} if key == "request" else marked
                    if event.RAW:  # bytes, and a name, which has a bound
                        holder[key] = str(marked).encode() if key == event.RAW else str(marked)[:name_chars_max]
        return event_of(type(event), data)


def full(cls: type[Event]) -> Event:
    """An event of a type with all fields that it can have."""
    rng = random.Random(7)
    values: dict[str, Any] = {}
    for field in plan_of(cls):
        for _ in range(200):
            value = generate._of_shape(rng, field.shape)
            if value not in (None, [], {}) and (field.name != "error" or len(value) > 5):
                values[field.attribute] = value
                break
            values[field.attribute] = value
    return cls(**values)


PRIVATE_TYPES = sorted(name for name, cls in BUILTIN.items() if cls.PRIVATE)


@pytest.mark.parametrize("name", PRIVATE_TYPES)
def test_no_private_text_is_in_what_is_stored(name):
    """What can be private is gone from body and blobs; with the key it comes back, without it a stand-in does."""
    for size in (30, 2 * inline_value_bytes_max):
        marks = Marks(random.Random(1), (size,))
        event = marks.on(full(BUILTIN[name]))
        draft = hide(codec.draft(event, at=AT, by="w"), KEY, "r", 5)
        body = codec.encode(draft, epoch=0)
        stored = body + b"".join(blob for _, blob in draft.blobs)
        assert marks.made
        assert [] == [mark for mark in marks.made if mark.encode() in stored]
        read = codec.decode("r", 5, 5, name, body, GENESIS, lambda _: KEY)
        assert draft.event == read.event
        assert read.private
        if not draft.blobs:
            assert event == read.event
        erased = codec.decode("r", 5, 5, name, body, GENESIS, no_key)
        assert BUILTIN[name] is type(erased.event)
        assert [] == [mark for mark in marks.made if mark in repr(erased.event)]


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_every_field_is_private_or_known_to_be_public(name):
    """Of each field of each type somebody has decided whether it can be private."""
    private = {path.partition(".")[0] for path in BUILTIN[name].PRIVATE}
    fields = {field.name for field in plan_of(BUILTIN[name])}
    assert set(PUBLIC.get(name, "").split()) == fields - private
    assert BUILTIN[name].BLOBS <= private


def test_the_same_event_at_the_same_place_is_stored_as_the_same_bytes():
    """So that a repeated append is known to be one; at another place, or in another run, the bytes are others."""
    made = codec.draft(e.NoteAdded("text"), at=AT, by="w")
    assert hide(made, KEY, "r", 5) == hide(made, KEY, "r", 5)
    others = [hide(made, KEY, "r", 6), hide(made, KEY, "s", 5), hide(made, bytes(32), "r", 5)]
    assert 4 == len({hide(made, KEY, "r", 5).private, *(each.private for each in others)})


@pytest.mark.parametrize("place", [("r", 6), ("s", 5)])
def test_private_values_belong_to_their_event(place):
    """A box that was moved to another event can't be opened: the event is unreadable, and says why."""
    run_id, seq = place
    body = codec.encode(hide(codec.draft(e.NoteAdded("text"), at=AT, by="w"), KEY, "r", 5), epoch=0)
    event = codec.decode(run_id, seq, seq, "note.added", body, GENESIS, lambda _: KEY).event
    assert isinstance(event, UnreadableEvent)
    assert "can't be decrypted" in event.reason


@pytest.mark.parametrize(
    ("private", "what"),
    [
        (("typo",), "'typo' is none of its fields"),
        (("score",), "'score' is no text"),
        (("numbers.*",), r"'numbers.\*' is no text"),
        (("address", "address.street"), "overlap"),
        (("address.street", "address"), "overlap"),
        (("tags.*.a", "tags.*"), "overlap"),
        (("text.inner",), "is no text"),
    ],
)
def test_what_cant_be_erased_cant_be_declared_private(private, what):
    """A type says so when it is registered, and not when its first event can't be read any more."""
    with pytest.raises(InvalidArgument, match=what):
        register(made_type(private))


def test_what_a_type_of_ones_own_declares_is_private():
    """Texts, JSON, and whole fields that may be missing come back with the key; without it the event is sound."""
    cls = made_type(("text", "address.street", "tags.*", "maybe"), "x.sound")
    register(cls)
    event = cls("Ada", 1, [1], {"street": "Ada"}, {"a": "Ada"}, 7)
    draft = hide(codec.draft(event, at=AT, by="w"), KEY, "r", 5)
    body = codec.encode(draft, epoch=0)
    assert event == codec.decode("r", 5, 5, "x.sound", body, GENESIS, lambda _: KEY).event
    left = cls(ERASED_TEXT, 1, [1], {"street": ERASED_TEXT}, {"a": ERASED_TEXT})
    assert left == codec.decode("r", 5, 5, "x.sound", body, GENESIS, no_key).event


def made_type(private: tuple[str, ...], name: str = "x.refused") -> Any:
    @dataclass(frozen=True, slots=True)
    class Made(Event):
        TYPE: ClassVar[str] = name
        PRIVATE: ClassVar[tuple[str, ...]] = private
        text: str
        score: int
        numbers: list[int]
        address: dict[str, Any]
        tags: dict[str, Any]
        maybe: int | None = None

    return Made


# In a store.


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return "memory:" if request.param == "memory" else tmp_path / "runs.db"


def first(journal: Journal, run_id: str) -> Any:
    """The first event of a run."""
    return next(journal.events(run_id)).event


def opened(url: Any, **more: Any) -> Any:
    return Journal.open(url, clock=FakeClock(), by="w", private=True, **more)


def agent(run):
    with run.step("a"):
        run.memory["name"] = "Ada"
        run.memory["long"] = "Ada" * inline_value_bytes_max
    return "for Ada"


def failing(run):
    raise RuntimeError("no Ada")


def test_a_private_run_is_like_any_other_until_it_is_erased(url):
    """Its events, memory and output are read as they were; a second call returns what is recorded."""
    with opened(url) as journal:
        assert "for Ada" == journal.run(agent, run_id="r", input={"who": "Ada"})
        assert "for Ada" == journal.run(agent, run_id="r", input={"who": "Ada"})
        assert {"who": "Ada"} == first(journal, "r").input
        assert [] == [each.what for each in audit_store(journal.store)]


def test_erasing_takes_all_values_and_leaves_the_log(url):
    """Afterwards the hashes, names, times and costs are as before, folds and audit go on, and no value is there."""
    with opened(url) as journal:
        journal.run(agent, run_id="r", input="Ada", title="Ada", tags={"of": "x"})
        before = list(journal.events("r"))
        assert Erasure(("r",), (), (), pending=False) == journal.erase("r", reason="asked")
        after = list(journal.events("r"))
        assert [(each.hash, each.at, each.type) for each in before] == [
            (each.hash, each.at, each.type) for each in after[:-1]
        ]
        assert e.RunErased("asked") == after[-1].event
        assert "Ada" not in repr(after)
        assert (ERASED, ERASED_TEXT, {"of": "x"}) == (after[0].event.input, after[0].event.title, after[0].event.tags)
        state = journal.state("r")
        assert "Ada" not in repr(state.dump())
        assert ["long", "name"] == sorted(state.memory.committed)
        assert [] == list(journal.store.checkpoints("r"))
        assert [] == [each.what for each in audit_store(journal.store)]
        rebuild(journal.store)
        assert [] == [each.what for each in audit_store(journal.store)]


def test_no_row_beside_the_events_holds_a_private_value(tmp_path):
    """The run's title and the digest of a call's arguments are in no table."""
    with opened(tmp_path / "runs.db") as journal:
        journal.append("r", [e.RunQueued("k", None, title="Ada"), generate.claim(1)], expect=0)
        start = e.ToolStarted("c", "pay", {"to": "Ada"}, "unsafe", read_only=False, on_unknown="ask", attempt=1)
        journal.append("r", [e.StepStarted(0, "a", "a", "once", 1, 1)], epoch=1)
        journal.append("r", [start], epoch=1)
        journal.append("r", [e.ToolCompleted("c", 1, "Ada")], epoch=1)
        assert None is journal.head("r").title
        assert [("r", "c", "pay", "", "r", 5)] == list(journal.store.index_rows("effects"))


@tool()
def look(number: int) -> int:
    return number


def test_ids_of_calls_in_a_private_line_cant_be_worked_out_from_arguments(url):
    """They are made with a key of the line, which goes when the last run of the line is erased."""

    def looking(run):
        with run.step("a"):
            return look(7)

    with opened(url) as journal:
        journal.run(looking, run_id="r")
        (start,) = journal.events("r", types=["tool.started"])
        salt = journal.store.secret("scope", "r")
        assert call_key("r", "a", "look", {"number": 7}, 1, salt, journal.store.store_id) == start.event.call_id
        assert call_key("r", "a", "look", {"number": 7}, store=journal.store.store_id) != start.event.call_id
        journal.erase("r", reason="asked")
        assert cipher.ERASED_KEY == journal.store.secret("scope", "r") != salt


def test_a_run_that_may_still_go_on_isnt_erased(url):
    """Nothing is erased of a run that hasn't ended; the refusal says what to do."""
    with opened(url) as journal:
        journal.enqueue("k", "Ada", run_id="r")
        with pytest.raises(NotAllowed, match=r"run r is queued and needs its own values.*cancel it"):
            journal.erase("r", reason="asked")
        assert "Ada" == first(journal, "r").input
        with pytest.raises(RunNotFound):
            journal.erase("s", reason="asked")


def test_a_run_that_isnt_private_cant_be_erased(url):
    """It says how runs become private; and a journal that isn't private itself still erases those that are."""
    with Journal.open(url, by="w") as journal:
        journal.run(agent, run_id="r")
        with pytest.raises(InvalidArgument, match=r"isn't private.*private=True"):
            journal.erase("r", reason="asked")


def test_what_goes_on_from_a_private_run_is_private_and_named(url):
    """A retry and a fork of it are private whoever makes them; without `line` they stay, and lose their checkpoints."""
    with opened(url) as journal:
        with pytest.raises(RuntimeError):
            journal.run(failing, run_id="r", input="Ada")
        fork = journal.fork("r")
        journal.cancel(fork)
        with pytest.raises(RuntimeError):
            journal.run(failing, run_id="r", retry=True, input="Ada")
        key = journal.store.secret("checkpoints", "r.r2")
        done = journal.erase("r", reason="asked")
        assert (("r",), tuple(sorted([fork, "r.r2"]))) == (done.run_ids, done.derived)
        assert key != journal.store.secret("checkpoints", "r.r2") != cipher.ERASED_KEY
        assert "Ada" == first(journal, "r.r2").input
        done = journal.erase("r", reason="asked", line=True)
        assert (("r",), tuple(sorted([fork, "r.r2"]))) == (done.before, done.run_ids)
        assert ERASED == first(journal, "r.r2").input


def test_nothing_is_erased_that_a_run_needs_to_go_on(url):
    """While a retry of it may go on, its base stays."""
    with opened(url) as journal:
        with pytest.raises(RuntimeError):
            journal.run(failing, run_id="r", input="Ada")
        journal.retry("r")
        with pytest.raises(NotAllowed, match=r"run r\.r2 is queued and needs those of r"):
            journal.erase("r", reason="asked")


@pytest.mark.parametrize("link", ["retry", "restart", "fork"])
def test_nothing_goes_on_from_an_erased_run(url, link):
    """What it would need is gone."""
    with opened(url) as journal:
        with pytest.raises(RuntimeError):
            journal.run(failing, run_id="r", input="Ada")
        journal.erase("r", reason="asked")
        with pytest.raises(NotAllowed, match="run r was erased"):
            getattr(journal, link)("r")


@pytest.mark.parametrize("link", ["retry", "restart", "fork"])
def test_nothing_goes_on_in_a_line_with_an_erased_run(url, link):
    """Its messages, its results and the calls of its line are the erased run's, too."""
    with opened(url) as journal:
        for retry in (False, True):
            with pytest.raises(RuntimeError):
                journal.run(failing, run_id="r", retry=retry, input="Ada")
        journal.erase("r", reason="asked")
        with pytest.raises(NotAllowed, match="run r was erased"):
            getattr(journal, link)("r.r2")


@tool
def pay(to: str) -> str:
    PAID.append(to)
    return f"paid {to}"


PAID: list[str] = []


def paying(run):
    with run.step("pay"):
        pay("Ada")
        raise RuntimeError("later")


@pytest.mark.parametrize("link", ["retry", "restart"])
def test_a_line_that_began_in_the_open_keeps_the_ids_of_its_calls(url, link):
    """A journal that makes private runs goes on with it, and what has happened isn't sent again."""
    PAID.clear()
    store = Journal.open(url, clock=FakeClock(), by="w")
    with pytest.raises(StepFailed):
        store.run(paying, run_id="r")
    with Journal(store.store, by="w", private=True) as journal:
        run_id = getattr(journal, link)("r")
        with pytest.raises(StepFailed):
            journal.run(paying, run_id=run_id)
        assert ["Ada"] == PAID
        assert None is not journal.store.secret("run", run_id)
        assert [] == [each.what for each in audit_store(journal.store) if each.severity == "error"]
    store.close()


def test_children_of_an_erased_run_are_named_and_taken_along(url):
    """What a run was told it has told its sub-agents, whose runs have keys of their own."""
    with opened(url) as journal:
        journal.run(agent, run_id="r")
        journal.append("kid", [e.RunQueued("k", "Ada", parent_run_id="r")], expect=0)
        assert ("kid",) == journal.erase("r", reason="asked").derived
        with pytest.raises(NotAllowed, match="run kid is queued"):
            journal.erase("r", reason="asked", line=True)
        journal.cancel("kid")
        assert ("kid",) == journal.erase("r", reason="asked", line=True).run_ids


def test_an_erased_run_takes_costs_and_no_private_value(url):
    """What comes late and is private is refused: it could never be erased."""
    with opened(url) as journal:
        journal.run(agent, run_id="r")
        journal.erase("r", reason="asked")
        with pytest.raises(NotAllowed, match="was erased: no private value"):
            journal.append("r", [e.NoteAdded("Ada")])
        journal.append("r", [e.CostRecorded("1", "USD", "bill")])
        assert Erasure((), ("r",), (), pending=False) == journal.erase("r", reason="again")


def test_a_result_of_an_erased_run_isnt_returned_as_if_it_were_one(url):
    """Who asks for the run's output is told that it was erased."""
    with opened(url) as journal:
        journal.run(agent, run_id="r", input="Ada")
        journal.erase("r", reason="asked")
        with pytest.raises(NotAllowed, match="run r was erased"):
            journal.run(agent, run_id="r", input="Ada")


@pytest.mark.parametrize("size", [10, 2 * inline_value_bytes_max])
def test_a_repeated_append_to_a_private_run_is_a_no_op(url, size):
    """As in any other run; its bytes are the same ones."""
    with opened(url) as journal:
        journal.append("r", [e.RunQueued("k", None)], expect=0)
        batch = journal.batch("r", [e.CostRecorded("1", "USD", "s"), e.NoteAdded("x" * size)], expect=1)
        first = journal.append(batch)
        assert first == journal.append(batch)
        assert 3 == journal.head("r").head_seq


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_a_private_run_folds_to_what_a_plain_one_does(seed):
    """The same random events are read back equal, and lead to the same state but for what says that it is private."""
    states = []
    for private in (False, True):
        with Journal.open("memory:", clock=FakeClock(), by="w", private=private) as journal:
            for event, epoch in generate.run(random.Random(seed), 25):
                journal.append("r", [event], epoch=0 if isinstance(event, e.RunClaimed) else epoch)
            events = [each.event for each in journal.events("r")]
            state = journal.fold(RunState, "r").dump()
            assert [] == [each.what for each in audit_store(journal.store) if each.severity == "error"]
        del state["hash"]
        state["status"].pop("private", None)
        states.append((events, re.sub(rb"[0-9a-f]{64}", b"", orjson.dumps(state))))  # a hash is of what is stored
    assert states[0] == states[1]


# Export, import.


def test_an_export_takes_the_key_along_and_an_erased_run_has_none():
    """A private run is read in the other store; one that was erased stays so, and no import revives it."""
    with opened("memory:") as here, opened("memory:") as there:
        here.run(agent, run_id="r", input="Ada")
        lines = list(export_runs(here, ["r"]))
        import_jsonl(there, lines, "x")
        assert list(here.events("r")) == [each._replace(position=each.seq) for each in there.events("r")]
        there.erase("r", reason="asked")
        import_jsonl(there, lines, "x")
        assert ERASED == first(there, "r").input
        here.erase("r", reason="asked")
        with opened("memory:") as third:
            import_jsonl(third, export_runs(here, ["r"]), "x")
            assert ERASED == first(third, "r").input
            assert ("r",) == third.erase("r", reason="asked").before


def test_an_export_whose_key_opens_nothing_is_refused():
    """Nothing is imported that could never be read."""
    with opened("memory:") as here, opened("memory:") as there:
        here.run(agent, run_id="r", input="Ada")
        lines = list(export_runs(here, ["r"]))
        place = next(n for n, line in enumerate(lines) if b'"key":' in line[:8])
        lines[place] = orjson.dumps({"key": base64.b64encode(bytes(31) + b"x").decode(), "of": "r"}) + b"\n"
        with pytest.raises(InvalidArgument, match="the key of run r doesn't open its first event"):
            import_jsonl(there, lines, "x")
        assert [] == list(there.runs())


# In the files.


def test_a_key_can_only_be_overwritten(tmp_path):
    """The database refuses to change, delete or replace one, whatever `recursive_triggers` says."""
    with opened(tmp_path / "runs.db") as journal:
        journal.run(agent, run_id="r")
    connection = apsw.Connection(str(tmp_path / "runs.db"))
    rows = connection.execute("SELECT * FROM secrets ORDER BY id").fetchall()
    for recursive in (0, 1):
        connection.execute(f"PRAGMA recursive_triggers = {recursive}")
        for query in (
            "UPDATE secrets SET key = randomblob(32)",
            "UPDATE secrets SET key = zeroblob(32), name = 's'",
            "UPDATE OR REPLACE secrets SET id = 2, key = zeroblob(32) WHERE id = 1",
            "DELETE FROM secrets",
            "INSERT OR REPLACE INTO secrets SELECT * FROM secrets",
            "INSERT INTO secrets (purpose, name, key) VALUES ('run', 'r', x'00')",
            "INSERT INTO secrets (purpose, name, key) VALUES ('other', 'r', randomblob(32))",
        ):
            with pytest.raises(apsw.ConstraintError):
                connection.execute(query)
    assert rows == connection.execute("SELECT * FROM secrets ORDER BY id").fetchall()
    connection.close()


def test_a_key_that_is_gone_is_found(tmp_path):
    """Without its row in the table a private run reads as erased: the audit says that it wasn't."""
    with opened(tmp_path / "runs.db") as journal:
        journal.run(agent, run_id="r")
        journal.store._writer.execute("DROP TRIGGER secrets_not_deleted; DELETE FROM secrets WHERE purpose = 'run'")
        found = [each for each in audit_store(journal.store) if each.code == "key_missing"]
        assert [("r", "error")] == [(each.run_id, each.severity) for each in found]


def test_a_reader_that_began_before_is_told_of_until_it_is_gone(tmp_path, monkeypatch):
    """It keeps an older page in the log of the file; the answer and `doctor` say so, and opening the store ends it."""
    path = tmp_path / "runs.db"
    with opened(path) as journal:
        journal.run(agent, run_id="r", input="Ada")
        key = journal.store.secret("run", "r")
        reader = apsw.Connection(str(path))
        reader.execute("BEGIN; SELECT count(*) FROM events").fetchall()
        assert journal.erase("r", reason="asked").pending
        assert ["erased"] == [each.name for each in doctor(journal.store) if each.ok is False]
        assert key in (tmp_path / "runs.db-wal").read_bytes()
        reader.close()
    with opened(path) as journal:
        assert not journal.store.unscrubbed()
        assert [] == [each.name for each in doctor(journal.store) if each.ok is False]
        assert [] == [name for name in tmp_path.iterdir() if key in name.read_bytes()]


def test_two_erasures_at_once_leave_nothing_behind(tmp_path, monkeypatch):
    """One that empties the log takes away no note of another that comes just then."""
    path = tmp_path / "runs.db"
    with opened(path) as one, opened(path) as two:
        for run_id in ("r", "s"):
            one.run(agent, run_id=run_id)
        key, truncate = one.store.secret("run", "s"), upkeep.truncate_wal

        def racing(writer: Any) -> bool:
            done = truncate(writer)
            monkeypatch.setattr(upkeep, "truncate_wal", lambda _: False)
            two.erase("s", reason="asked")  # commits, and can't scrub
            monkeypatch.setattr(upkeep, "truncate_wal", truncate)
            return done

        monkeypatch.setattr(upkeep, "truncate_wal", racing)
        one.erase("r", reason="asked")
        assert not one.store.unscrubbed()
        assert [] == [each.name for each in tmp_path.iterdir() if key in each.read_bytes()]


def test_an_erasure_that_was_cut_short_is_finished_when_the_store_is_opened(tmp_path, monkeypatch):
    """A process that dies behind the commit leaves a mark that what it overwrote may still lie in the log."""
    with opened(tmp_path / "runs.db") as journal:
        journal.run(agent, run_id="r")
        monkeypatch.setattr(journal.store, "scrub", partial(exec, "raise KeyboardInterrupt"))
        with pytest.raises(KeyboardInterrupt):
            journal.erase("r", reason="asked")
        assert journal.store.unscrubbed()
    with opened(tmp_path / "runs.db") as journal:
        assert not journal.store.unscrubbed()
        assert Erasure((), ("r",), (), pending=False) == journal.erase("r", reason="asked")


class Planted:
    """Runs with marks in every private field, made and erased in ten portions, between appends, trims and rollbacks."""

    def __init__(self, path: Path, *, runs: int, largest: int, events: int = 25, private: bool = True) -> None:
        self.rng, self.events = random.Random(11), events
        self.folder, self.erased, self.kept, self.erased_keys, self.kept_keys = path.parent, [], [], [], []
        sizes = (30, 60, 200, 700, 1500, 5000, largest)
        policy = CheckpointPolicy(every_events=7, at_ends=True, keep=2)
        self.journal = Journal.open(path, clock=FakeClock(), by="w", checkpoints=policy, private=private)
        left: dict[str, Marks] = {}
        for portion in range(10):
            for number in range(runs // 10):
                run_id, marks = f"r{portion}-{number}", Marks(self.rng, sizes)
                left[run_id] = marks
                self.run(run_id, marks)
                with pytest.raises(ZeroDivisionError):
                    self.journal.store.transact(rolled_back, durable=False)
            for run_id in self.rng.sample(sorted(left), runs // 10 - 1) if private else ():
                self.erased += left.pop(run_id).made
                self.erased_keys += self.keys(run_id)
                self.journal.erase(run_id, reason="asked")
        for run_id, marks in left.items():
            self.kept += marks.made
            self.kept_keys += self.keys(run_id) if private else []

    def run(self, run_id: str, marks: Marks) -> None:
        for event, epoch in generate.run(self.rng, self.events):
            told = marks.on(event)
            self.journal.append(run_id, [told], epoch=0 if isinstance(event, e.RunClaimed) else epoch)
        head = self.journal.head(run_id)
        if head.status == "running":
            self.journal.append(run_id, [e.RunFailed({"type": "X", "message": "x"}, [], "error")], epoch=head.epoch)
        elif head.status in ("queued", "waiting", "scheduled_retry"):
            self.journal.append(run_id, [e.RunCancelled("x")])
        for call_id in self.journal.state(run_id).calls.unresolved():
            self.journal.resolve(run_id, call_id, "unknown")

    def keys(self, run_id: str) -> list[bytes]:
        found = (self.journal.store.secret(purpose, run_id) for purpose in ("run", "checkpoints"))
        return [key for key in found if key is not None]

    def found(self, texts: Sequence[str | bytes]) -> int:
        held = b"".join(path.read_bytes() for path in self.folder.iterdir())
        return sum((text.encode() if isinstance(text, str) else text) in held for text in texts)


LARGE = pytest.mark.filterwarnings("ignore:the checkpoint of run:runjournal.writing.checkpoints.CheckpointWarning")


def rolled_back(tx: Any) -> None:
    tx.add_secret("run", "other", secrets.token_bytes(32))
    _ = 1 / 0


@LARGE
@pytest.mark.parametrize(
    ("runs", "largest"), [(30, 20_000), pytest.param(100, 200_000, marks=pytest.mark.crash)], ids=["few", "many"]
)
def test_no_file_of_the_store_holds_an_erased_value_or_its_key(tmp_path, monkeypatch, runs, largest):
    """No text is ever there in plain, no erased key anywhere; keys of the others are, and so the search finds some."""
    planted = Planted(tmp_path / "runs.db", runs=runs, largest=largest)
    assert len(planted.erased) > 8 * runs
    assert 0 == planted.found(planted.erased + planted.kept)
    assert 0 == planted.found(planted.erased_keys)
    assert len(planted.kept_keys) == planted.found(planted.kept_keys)
    assert [] == [each.what for each in audit_store(planted.journal.store) if each.severity == "error"]
    planted.journal.close()
    assert 0 == planted.found([*planted.erased, *planted.erased_keys])


@LARGE
def test_a_store_that_isnt_private_holds_the_texts(tmp_path, monkeypatch):
    """So the search would find them."""
    planted = Planted(tmp_path / "runs.db", runs=10, largest=20_000, private=False)
    assert planted.found(planted.kept) > 8 * 10


@LARGE
def test_a_key_that_is_moved_lies_on_where_it_was(tmp_path, monkeypatch):
    """Without `secure_delete` a page that SQLite splits keeps what it held: that is why it is on."""
    monkeypatch.setitem(sqlite_place._SETTINGS, "secure_delete", 0)
    planted = Planted(tmp_path / "runs.db", runs=100, largest=60, events=2)
    assert planted.found(planted.erased_keys) > 0


@LARGE
def test_deleting_a_key_leaves_it_in_the_file(tmp_path, monkeypatch):
    """A row that is deleted is only unlinked: that is why a key is overwritten in place."""
    delete = "DELETE FROM secrets WHERE purpose = ? AND name = ? RETURNING id"
    monkeypatch.setattr(sqlite_transaction, "_ERASE_KEYS", delete)
    monkeypatch.setitem(sqlite_place._SETTINGS, "secure_delete", 0)
    with opened(tmp_path / "runs.db") as journal:
        journal.store._writer.execute("DROP TRIGGER secrets_not_deleted")
    planted = Planted(tmp_path / "runs.db", runs=30, largest=700)
    assert planted.found(planted.erased_keys) > 0


# Without the library, and from the shell.


def test_without_the_library_it_says_what_to_install(monkeypatch, tmp_path):
    """A journal that makes private runs isn't opened, and a private run isn't read; others are."""
    path = tmp_path / "runs.db"
    with opened(path) as journal:
        journal.run(agent, run_id="r")
    with Journal.open(path) as journal:
        journal.run(agent, run_id="s")
    cipher._cipher.cache_clear()
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'runjournal\[private\]'"):
        opened(path)
    with Journal.open(path) as journal:
        with pytest.raises(MissingExtra, match="cryptography"):
            list(journal.events("r"))
        assert "for Ada" == journal.run(agent, run_id="s")


def shell(path: Path, *args: str, **how: Any) -> Any:
    return CliRunner().invoke(cli, ["--db", str(path), *args], **how)


def test_erase_from_the_shell_asks_first_and_says_what_it_did(tmp_path):
    """A rehearsal and a no leave all as it was; a yes erases, and names what wasn't erased."""
    path = tmp_path / "runs.db"
    with opened(path) as journal:
        with pytest.raises(RuntimeError):
            journal.run(failing, run_id="r", input="Ada")
        journal.cancel(journal.fork("r", new_run_id="f"))
    command = ["erase", "r", "--reason", "asked"]
    assert 2 == shell(path, "erase", "r").exit_code
    assert "would erase 1 run" in shell(path, *command, "--dry-run").stderr
    refused = shell(path, *command, input="n\n")
    assert (5, True) == (refused.exit_code, "nothing was erased" in refused.stderr)
    with Journal.open(path) as journal:
        assert "Ada" == first(journal, "r").input
    done = shell(path, *command, input="y\n")
    assert (0, True) == (done.exit_code, "erased 1 run; not erased, though going on from it: f" in done.stderr)
    answer = orjson.loads(shell(path, *command, "--line", "--yes", "-o", "json").stdout)
    assert {"dry_run": False, "run_ids": ["f"], "before": ["r"], "derived": [], "pending": False} == answer
    assert "(erased)" in shell(path, "show", "r", "--events").stdout
