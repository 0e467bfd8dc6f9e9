"""A store that a newer version has written to: what may be ignored is, what may not is refused, nothing is lost."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from runjournal import Run, tool
from runjournal.cli.app import cli
from runjournal.journal import Journal
from runjournal.log import base, codec
from runjournal.log import events as e
from runjournal.log.chain import GENESIS, event_hash
from runjournal.log.errors import InvalidArgument, Unfoldable
from runjournal.log.private_values import no_key
from runjournal.looking.audit import audit_run
from runjournal.testing import generate, strategies

AT = "2026-11-30T00:00:00.000000Z"
USAGE = {"input": 1, "output": 2, "cache_read": 0, "cache_write": 0}


def stored(event: base.Event, change: Any) -> base.RecordedEvent:
    """An event as a reader gets it whose stored data somebody has changed."""
    envelope = orjson.loads(codec.encode(codec.draft(event, at=AT, by="w"), epoch=0))
    change(envelope["data"])
    return codec.decode("r", 1, 1, event.TYPE, orjson.dumps(envelope), GENESIS, no_key)


@given(strategies.seeds(), st.sampled_from(sorted(base.registered().values(), key=lambda cls: cls.TYPE)))
def test_a_field_that_is_not_known(rng: Any, cls: type[base.Event]) -> None:
    """Whatever the type, the event is the one without it, and the field stands beside it."""
    if cls.TYPE.startswith("x."):
        return
    event = generate.event(rng, cls)
    found = stored(event, lambda data: data.update(zz_new={"a": 1}))
    plain = stored(event, lambda data: None)
    assert (plain.event, {"zz_new": {"a": 1}}) == (found.event, dict(found.unknown))
    assert {} == dict(plain.unknown)


NESTED = [
    (e.ModelCompleted("c", 1, None, usage=USAGE), "usage", "audio"),
    (e.ModelCompleted("c", 1, None, cost={"amount": "1", "currency": "USD", "source": "reported"}), "cost", "tier"),
    (e.ToolFailed("c", 1, {"type": "T", "message": "m"}, transient=False), "error", "retry_after"),
]


@pytest.mark.parametrize(("event", "field", "key"), NESTED, ids=["usage", "cost", "error"])
def test_a_key_that_is_not_known(event: base.Event, field: str, key: str) -> None:
    """A key of a nested object is left out of what folds see, and told of; writing one is refused."""
    found = stored(event, lambda data: data[field].update({key: 5}))
    assert (event, {f"{field}.{key}": 5}) == (found.event, dict(found.unknown))
    with pytest.raises(InvalidArgument, match="unknown field"):
        codec.draft(type(event)(**{**base.data_of(event), field: {**getattr(event, field), key: 5}}), at=AT, by="w")


@pytest.mark.parametrize(
    "change",
    [lambda data: data.update(new=1, attempt="x"), lambda data: data["usage"].update(new=1, input=-1),
     lambda data: (data.update(new=1), data.pop("call_id"))],
)  # fmt: skip
def test_what_is_wrong_stays_wrong(change: Any) -> None:
    """Beside what isn't known the rest has to be of its shape: a changed meaning needs a new version."""
    assert isinstance(stored(NESTED[0][0], change).event, e.UnreadableEvent)


def test_unknown_types() -> None:
    """A type under `x.` is somebody's own and nothing to any fold; any other is newer, and folds refuse it."""
    body = codec.encode(codec.draft(e.NoteAdded("x"), at=AT, by="w"), epoch=0)
    assert isinstance(codec.decode("r", 1, 1, "x.theirs", body, GENESIS, no_key).event, e.UnknownEvent)
    assert isinstance(codec.decode("r", 1, 1, "run.teleported", body, GENESIS, no_key).event, e.NewerEvent)


def put(journal: Journal, kind: str, data: dict[str, Any]) -> None:
    """Append a row to the running run `r` as a newer version would, past this version's checks."""
    head = journal.head("r")
    envelope = {"v": 1, "at": head.updated_at, "by": head.owner, "epoch": head.epoch, "step": None, "data": data}
    body = orjson.dumps(envelope)
    digest = event_hash("r", head.head_seq + 1, kind, bytes.fromhex(head.head_hash or ""), body)
    row = (head.head_seq + 1, kind, body, digest)
    writer = journal.store._writer  # type: ignore[attr-defined]
    writer.execute("INSERT INTO events (run, seq, type, body, hash) VALUES (1, ?, ?, ?, ?)", row)


@tool(read_only=True)
def look(x: int) -> int:
    return x


def agent(run: Run) -> int:
    with run.step("s"):
        found: int = look(1)
    return found + run.do("t", int)


def made(path: Path, *rows: tuple[str, dict[str, Any]]) -> None:
    """A store whose run `r` was begun here, and written to by a newer version whose process died."""
    with Journal.open(path) as journal:
        journal.append("r", [e.RunQueued("agent", None), generate.claim(1)], expect=0)
        for kind, data in rows:
            put(journal, kind, data)


NEW: list[tuple[str, dict[str, Any]]] = [
    ("note.added", {"text": "hi", "mood": "good"}),
    ("cost.recorded", {"amount": "1", "currency": "USD", "source": "s", "region": ["eu"]}),
    ("x.newer.thing", {"a": 1}),
]


def test_a_newer_store_opens_folds_and_resumes(tmp_path: Path) -> None:
    """What a newer version added is kept, verified, shown and exported, and its run goes on here."""
    path = tmp_path / "runs.db"
    made(path, *NEW)
    with Journal.open(path) as journal:
        assert 1 == journal.run(agent, run_id="r")
        assert {"mood": "good"} == dict(list(journal.events("r"))[2].unknown)
        assert {"USD": {"s": "1"}} == journal.replay("r").costs.money
        found = {each.code for each in audit_run(journal.store, "r")}
        assert {"unknown_type"} == found - {"cost_unpriced", "index_missing"}  # its maker has written events alone
    shown = CliRunner().invoke(cli, ["--db", str(path), "show", "r", "--events", "-o", "json"])
    assert '"unknown":{"mood":"good"}' in shown.stdout.replace(" ", "").replace("\n", "")
    assert "mood" in CliRunner().invoke(cli, ["--db", str(path), "show", "r", "--events"]).stdout
    exported = CliRunner().invoke(cli, ["--db", str(path), "export", "r"]).stdout
    assert any("mood" in json.loads(line).get("body", "") for line in exported.splitlines())


def test_a_newer_type_is_not_gone_past(tmp_path: Path) -> None:
    """A type that only a newer version knows stops the fold: its meaning isn't known, and the run isn't told again."""
    path = tmp_path / "runs.db"
    made(path, ("run.teleported", {"to": "mars"}))
    with Journal.open(path) as journal:
        with pytest.raises(Unfoldable, match=r"run\.teleported"):
            journal.run(agent, run_id="r")
        assert 3 == journal.head("r").head_seq
