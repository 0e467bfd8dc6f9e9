"""Purging: runs that are over go for ever, a marker of what they came to stays, and nothing is used again (P19)."""

import json
import random
import re
import secrets
from pathlib import Path
from typing import Any

import apsw
import orjson
import pytest
from click.testing import CliRunner

from runjournal import naming, purging, tool
from runjournal.cli.app import cli
from runjournal.importers.claude_code import Source
from runjournal.importers.jsonl import BadExport, JsonlRow, export_lines
from runjournal.importers.transfer import export_runs, import_claude_code, import_jsonl
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log import sqlite_place
from runjournal.log import sqlite_upkeep as upkeep
from runjournal.log.chain import GENESIS, event_hash, verified
from runjournal.log.clock import FakeClock
from runjournal.log.errors import AppendRefused, CorruptLog, NotAllowed, Purged, WrongExpectation
from runjournal.log.limits import inline_value_bytes_max, read_page_events_max
from runjournal.looking.audit import audit_run, audit_store, verify_run
from runjournal.looking.doctor import doctor
from runjournal.looking.summary import summary
from runjournal.testing import generate
from runjournal.writing.checkpoints import CheckpointPolicy
from runjournal.writing.rebuild import rebuild

BIG = "B" * (2 * inline_value_bytes_max)


def agent(run):
    with run.step("greet"):
        run.memory["name"] = run.input
        return f"Hello {run.input}"


def failing(run):
    raise RuntimeError(f"no {run.input}")


@pytest.fixture(params=["memory:", "runs.db"])
def journal(request, tmp_path):
    url = request.param if request.param == "memory:" else str(tmp_path / request.param)
    with Journal.open(url, clock=FakeClock(), by="w") as opened:
        yield opened


def ended(journal: Journal, run_id: str, input: Any = "Ada", **how: Any) -> None:
    journal.run(agent, run_id=run_id, input=input, **how)


def errors(journal: Journal) -> list[tuple[str, str]]:
    return [(each.code, each.what) for each in audit_store(journal.store) if each.severity != "info"]


# What goes, and what stays.


def test_a_purged_run_is_gone_and_a_marker_is_left(journal):
    """Its texts are in no event, row or blob; kind, status, times, costs, numbers, types and hashes are there."""
    ended(journal, "r", "Ada" + BIG, title="for Ada", tags={"who": "Ada"})
    journal.append("r", [e.CostRecorded("1.50", "USD", "bill")])
    journal.checkpoint("r")
    before, rows, costs = journal.head("r"), list(journal.store.read_raw("r")), journal.state("r").costs
    done = journal.purge("r", reason="old")
    assert (("r",), before.head_seq, (), False) == (done.run_ids, done.events, done.children, done.pending)
    assert done.bytes > sum(len(row[3]) for row in rows) + len(BIG)
    left = list(journal.store.read_raw("r", 0, before.head_seq))
    assert [(seq, place, kind, b"", digest) for seq, place, kind, _, digest in rows] == left
    marker = list(journal.events("r"))[-1].event
    assert ("old", "completed", "agent", before.head_seq, before.head_hash) == (
        marker.reason, marker.status, marker.kind, marker.events, marker.head_hash,
    )  # fmt: skip
    head, state = journal.head("r"), journal.state("r")
    assert ("purged", None, "{}", before.queued_at) == (head.status, head.title, head.tags, head.queued_at)
    assert ("purged", "completed", costs) == (state.status.status, state.status.was, state.costs)
    assert ([], []) == (list(journal.store.blob_digests()), list(journal.store.checkpoints("r")))
    assert "r" == journal.store.newest("r")
    assert ([], []) == (errors(journal), verify_run(journal.store, "r").problems)


def test_no_id_scope_or_position_is_used_again(journal):
    """A run of the same id, or in the same scope, is refused, and the next event stands behind the marker."""
    ended(journal, "r")
    journal.purge("r", reason="old")
    last = journal.store.last_position()
    for queued, run_id in ((e.RunQueued("k", None), "r"), (e.RunQueued("k", None, scope="r"), "s")):
        with pytest.raises(AppendRefused):
            journal.append(run_id, [queued], expect=None)
    ended(journal, "t")
    assert last + 1 == next(journal.events("t")).position


def test_nothing_is_said_of_a_purged_run(journal):
    """What would go on from it, read its past or add to it is refused, and told what it was and why it is gone."""
    ended(journal, "r")
    journal.purge("r", reason="old")
    image = list(journal.store.read_raw("r"))
    asked = [
        lambda: journal.retry("r"),
        lambda: journal.restart("r"),
        lambda: journal.fork("r"),
        lambda: journal.fork("r", 2),
        lambda: journal.resume("r"),
        lambda: journal.abandon_step("r"),
        lambda: journal.check(agent, "r"),
        lambda: journal.replay("r", 2),
        lambda: journal.run(agent, run_id="r", input="Ada"),
        lambda: list(export_runs(journal, ["r"])),
    ]
    for ask in asked:
        with pytest.raises(Purged, match=r"run r was purged \(agent, completed, \d+ events; at .*, for: old\)"):
            ask()
    for say in (lambda: journal.append("r", [e.NoteAdded("x")]), lambda: journal.signal("r", "go")):
        with pytest.raises(Purged):
            say()
    assert ([], image) == (list(journal.messages("r")), list(journal.store.read_raw("r")))


def test_a_run_purged_before_is_left_as_it_is(journal):
    """So a loop over many runs may meet one twice."""
    ended(journal, "r")
    journal.purge("r", reason="old")
    assert ((), 0, 0, (), False) == journal.purge("r", reason="again")
    assert 1 == len([record for record in journal.events("r") if record.type == "run.purged"])


@pytest.mark.parametrize("where", [(naming, "members"), (purging, "_leaving"), (purging, "_marker")])
def test_of_two_purges_at_once_the_second_finds_nothing_left(journal, monkeypatch, where):
    """Whatever it has looked at before, it leaves the run as it is, as it would later."""
    ended(journal, "r")
    before, other, done = getattr(*where), Journal(journal.store, by="other"), list[bool]()

    def late(*args: Any) -> Any:
        if not done:
            done.append(True)
            other.purge("r", reason="first")
        return before(*args)

    monkeypatch.setattr(*where, late)
    assert ((), 0, 0, (), False) == journal.purge("r", reason="second")
    assert ["first"] == [each.event.reason for each in journal.events("r", types=["run.purged"])]


def test_the_whole_line_goes_and_what_goes_on_from_it_is_named(journal):
    """Retries go along; a fork has to go first, a run that may go on lets nothing go, and children stay."""
    with pytest.raises(RuntimeError):
        journal.run(failing, run_id="r", input="Ada")
    retried = journal.retry("r")
    with pytest.raises(NotAllowed, match=f"run {retried} is queued; nothing was purged"):
        journal.purge("r", reason="old")
    with pytest.raises(RuntimeError):
        journal.run(failing, run_id=retried, input="Ada")
    journal.cancel(journal.fork("r", new_run_id="f"))
    journal.append("child", [e.RunOpened("k", "s", parent_run_id="r")], expect=0)
    with pytest.raises(NotAllowed, match=r"go on from what would be purged: f; nothing was purged, purge them first"):
        journal.purge("r", reason="old")
    assert ("f",) == journal.purge("f", reason="old").run_ids
    done = journal.purge(retried, reason="old")
    assert (("r", retried), ("child",)) == (done.run_ids, done.children)
    assert ("open", []) == (journal.head("child").status, errors(journal))


@tool(on_unknown="fail")
def pay(cents: int) -> str:
    raise ConnectionError("lost")


def paying(run):
    with run.step("s"):
        try:
            pay(cents=5)
        except ConnectionError:
            pay(cents=5)


@pytest.mark.parametrize("what", ["purge", "erase"])
def test_what_somebody_has_to_decide_stays(tmp_path, what):
    """A call that may have happened is forgotten only after a word, which may be that nobody will ever know."""
    path = str(tmp_path / "runs.db")
    typed = ["--db", path, what, "r", "--reason", "old"]
    with Journal.open(path, private=True) as journal:
        with pytest.raises(Exception, match="nobody knows"):
            journal.run(paying, run_id="r")
        ((call_id, _),) = journal.state("r").calls.unresolved().items()
        said = f"run r: call {call_id} of pay may have happened, and nobody has said whether; nothing was {what}d: "
        say = (
            f"type `runjournal resolve r {call_id} WORD` (happened, did-not-happen, retry or unknown), and do it again"
        )
        with pytest.raises(NotAllowed, match=re.escape(said + say)):
            getattr(journal, what)("r", reason="old")
    for how in ("--dry-run", "--yes"):
        assert said in CliRunner().invoke(cli, [*typed, how]).stderr
    assert 0 == CliRunner().invoke(cli, ["--db", path, "resolve", "r", call_id, "unknown"]).exit_code
    assert 0 == CliRunner().invoke(cli, [*typed, "--yes"]).exit_code


@pytest.mark.parametrize("begun", [e.RunOpened("k", "s"), e.RunImported("k", "s", "t", "0" * 64)])
def test_an_open_or_imported_run_is_purged(journal, begun):
    """Nobody owns it, so that it never ends."""
    by = "import:t" if isinstance(begun, e.RunImported) else "w"
    journal.append("r", [begun], expect=0, by=by)
    assert ("r",) == journal.purge("r", reason="old").run_ids
    rebuild(journal.store)
    assert ("purged", []) == (journal.head("r").status, errors(journal))


def test_only_a_purge_appends_its_marker(journal):
    """A marker before which nothing was emptied would break the log."""
    ended(journal, "r")
    marker = e.RunPurged("x", "completed", "k", "r", "2026-01-01T00:00:00.000000Z", 1, "0" * 64, "0" * 64, {}, {})
    with pytest.raises(NotAllowed, match=r"appended by Journal\.purge alone"):
        journal.append("r", [marker])


def test_everything_is_made_again_from_the_marker(journal):
    """A rebuild leaves a purged run as it was, and the lines of others too."""
    ended(journal, "r")
    journal.purge("r", reason="old")
    ended(journal, "s")
    before = [journal.head("r"), journal.head("s"), list(journal.store.index_rows("lines"))]
    assert 2 == rebuild(journal.store)
    assert before == [journal.head("r"), journal.head("s"), list(journal.store.index_rows("lines"))]


def test_what_looks_at_runs_goes_on(journal):
    """A summary, a listing, a doctor and a reader that follows meet a purged run among others."""
    ended(journal, "r")
    ended(journal, "s")
    journal.purge("r", reason="old")
    assert ("purged", "purged") == (summary(journal, "r").stands, summary(journal, "r").as_json()["status"])
    assert ["r"] == [head.run_id for head in journal.runs(status="purged")]
    assert [] == [each.name for each in doctor(journal.store) if each.ok is False]
    seen = [record.event for record in journal.follow(idle_s=0.0) if record.run_id == "r"]
    assert {e.PurgedEvent, e.RunPurged} == {type(event) for event in seen}


# Blobs.


def test_a_value_that_another_run_refers_to_stays(journal):
    """Only the blobs that no other run names are emptied."""
    ended(journal, "r", BIG)
    ended(journal, "s", BIG)
    digests = {digest for digest, _ in journal.store.blob_digests()}
    journal.purge("r", reason="old")
    assert digests == {digest for digest, _ in journal.store.blob_digests()}
    assert BIG == next(journal.events("s")).event.input
    journal.purge("s", reason="old")
    assert [] == list(journal.store.blob_digests())


@pytest.mark.parametrize("way", ["blanks", "escapes"])
def test_a_value_stays_however_the_event_of_another_run_is_written(journal, way):
    """An export that somebody else has written refers to a value in JSON of another form."""
    journal.append("r", [e.RunQueued("k", BIG)], expect=0)
    journal.cancel("r")
    ((digest, _),) = journal.store.blob_digests()
    event = orjson.loads(next(journal.store.read_raw("r"))[3])
    body = json.dumps(event | {"data": event["data"] | {"scope": "s"}}).encode()
    if way == "escapes":
        escaped = "".join(rf"\u{ord(each):04x}" for each in digest)
        body = body.replace(digest.encode(), escaped.encode()).replace(b'"ext"', rb'"\u0065xt"').replace(b": ", b":")
    row = JsonlRow("s", 1, "run.queued", body, event_hash("s", 1, "run.queued", GENESIS, body))
    lines = list(export_lines([row], journal.store.blob))
    assert digest.encode() in lines[1]
    import_jsonl(journal, lines, "x")
    journal.purge("r", reason="old")
    assert ([(digest, len(BIG) + 2)], BIG) == (
        list(journal.store.blob_digests()),
        next(journal.events("s")).event.input,
    )
    assert ["not_canonical"] == [code for code, _ in errors(journal)]


def test_a_value_that_another_run_refers_to_just_then_stays(journal, monkeypatch):
    """A run that begins between the look at the others and the write lock is seen inside it."""
    ended(journal, "r", BIG)
    planned = purging.plan

    def late(*args: Any) -> Any:
        found = planned(*args)
        assert found.digests
        ended(journal, "s", BIG)
        return found

    monkeypatch.setattr(purging, "plan", late)
    journal.purge("r", reason="old")
    assert BIG == next(journal.events("s")).event.input
    assert [] == errors(journal)


def test_what_is_said_of_a_run_just_then_goes_along(journal, monkeypatch):
    """An append between the look and the lock has the look taken again."""
    ended(journal, "r")
    planned, times = purging.plan, list[Any]()

    def late(*args: Any) -> Any:
        found = planned(*args)
        if not times:
            journal.append("r", [e.NoteAdded(BIG)])
        times.append(found)
        return found

    monkeypatch.setattr(purging, "plan", late)
    done = journal.purge("r", reason="old")
    assert (2, times[0].runs[0].head.head_seq + 1) == (len(times), done.events)
    assert ([], []) == (errors(journal), list(journal.store.blob_digests()))


def test_a_fork_that_comes_just_then_ends_the_purge(journal, monkeypatch):
    """Nothing was purged from under it."""
    ended(journal, "r")
    planned = purging.plan

    def late(*args: Any) -> Any:
        found = planned(*args)
        journal.fork("r", new_run_id="f")
        return found

    monkeypatch.setattr(purging, "plan", late)
    with pytest.raises(NotAllowed, match=": f; nothing was purged"):
        journal.purge("r", reason="old")
    assert ("completed", "queued") == (journal.head("r").status, journal.head("f").status)


def test_a_fork_of_what_was_purged_just_then_is_refused(journal):
    """The base is looked at inside the write lock."""
    ended(journal, "r")
    base = {"run_id": "r", "seq": 1, "hash": next(journal.events("r")).hash}
    batch = journal.batch("f", [e.RunQueued("agent", "Ada", link="fork", base=base)], expect=0)
    journal.purge("r", reason="old")
    with pytest.raises(Purged):
        journal.append(batch)


def test_another_process_keeps_no_checkpoint_of_what_is_gone(journal):
    """Who has folded a run before it was purged can't write that state any more, nor append by it."""
    ended(journal, "r")
    other = Journal(journal.store, by="other")
    other.append("r", [e.NoteAdded("x")])
    late = other.batch("r", [e.NoteAdded("y")], expect=other.head("r").head_seq)
    journal.purge("r", reason="old")
    assert journal.head("r").head_seq == other.checkpoint("r")
    assert [] == list(journal.store.checkpoints("r"))
    with pytest.raises((Purged, WrongExpectation)):
        other.append(late)


# A purge beside a reader.


@pytest.fixture
def two(tmp_path):
    """Two journals on a file with a long run, `r`, of which no checkpoint is there."""
    with Journal.open(tmp_path / "runs.db", by="w") as one, Journal.open(tmp_path / "runs.db", by="other") as other:
        one.append("r", [e.RunQueued("k", BIG)], expect=0)
        one.append("r", [e.NoteAdded("x")] * (2 * read_page_events_max))
        one.cancel("r")
        one.store.drop_checkpoints("r")
        yield one, other


READERS = {
    "verify": lambda j: verify_run(j.store, "r").problems,
    "audit": lambda j: [each.code for each in audit_run(j.store, "r")],
    "audit of all": lambda j: [each.code for each in audit_store(j.store)],
    "state": lambda j: [] if j.state("r").status.status == "purged" else ["not purged"],
}


@pytest.mark.parametrize("at", [1, read_page_events_max + 1])
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_purge_beside_a_reader_is_no_damage(two, monkeypatch, read, at):
    """The head was read before the purge and the rows behind it: it is read again before anything is called damage."""
    one, other = two
    purge_at(one, other, monkeypatch, at)
    assert [] == read(one)
    assert "purged" == one.head("r").status


@pytest.mark.parametrize("ask", [lambda j: j.fork("r"), lambda j: j.replay("r"), lambda j: j.checkpoint("r")])
def test_who_goes_on_from_what_is_purged_meanwhile_is_told(two, monkeypatch, ask):
    """It is told that the run was purged, and not that it is damaged."""
    one, other = two
    purge_at(one, other, monkeypatch, read_page_events_max + 1)
    with pytest.raises(Purged, match="run r was purged"):
        ask(one)


def purge_at(one: Journal, other: Journal, monkeypatch: Any, at: int) -> None:
    """Have the other one purge the run when so many of its rows have been read in one go."""
    read_raw = one.store.read_raw

    def late(*args: Any) -> Any:
        for count, row in enumerate(read_raw(*args), 1):
            yield row
            if count == at and one.head("r").status != "purged":
                other.purge("r", reason="old")

    monkeypatch.setattr(one.store, "read_raw", late)


# Export and import.


def test_an_older_export_brings_nothing_back():
    """The runs that were purged here are left out, and told; the others come in."""
    with Journal.open("memory:") as there, Journal.open("memory:") as here:
        ended(there, "r", BIG)
        ended(there, "s", "Ada")
        lines = list(export_runs(there, ["r", "s"]))
        import_jsonl(here, lines, "x")
        here.purge("r", reason="old")
        there.append("s", [e.NoteAdded("x")])
        there.append("r", [e.NoteAdded("x"), e.NoteAdded("y")])
        found = import_jsonl(here, list(export_runs(there, ["r", "s"])), "x").runs
        left_out = "it was purged here, and stays so"
        assert [("r", 0, left_out), ("s", 1, None)] == [(r.run_id, r.events_added, r.left_out) for r in found]
        assert ([], []) == (list(here.store.blob_digests()), errors(here))


@pytest.mark.parametrize("row", [("run.queued", b""), ("run.purged", b"{}")])
def test_no_export_holds_what_was_purged(row):
    """So a file can't make a run look purged that was never purged here."""
    line = {"run_id": "r", "seq": 1, "type": row[0], "hash": event_hash("r", 1, row[0], GENESIS, row[1]).hex()}
    lines = [{"runjournal": 2}, line | {"body": row[1].decode()}, {"end": {"events": 1, "blobs": 0}}]
    with Journal.open("memory:") as here, pytest.raises(BadExport, match="line 2: what was purged is in no export"):
        import_jsonl(here, [orjson.dumps(each) + b"\n" for each in lines], "x")


@pytest.mark.parametrize("lines", [2, read_page_events_max])
def test_an_export_of_what_is_purged_meanwhile_ends(journal, lines):
    """It has no end then, so that nobody takes it for a whole one; that goes for values out of line, too."""
    ended(journal, "r", BIG)
    journal.append("r", [e.NoteAdded("x")] * read_page_events_max)
    coming = export_runs(journal, ["r"])
    found = [next(coming) for _ in range(lines)]
    journal.purge("r", reason="old")
    with pytest.raises(Purged, match="run r was purged"):
        found += coming
    assert not [line for line in found if b'"body":""' in line]


def test_an_export_misses_no_value_that_is_purged_meanwhile(journal, monkeypatch):
    """A value that goes behind the event that names it isn't told as missing, in an export that looks whole."""
    ended(journal, "r", BIG)
    missing, blob = list[str](), journal.store.blob

    def late(digest):
        if not missing:
            missing.append(digest)
            journal.purge("r", reason="old")
        return blob(digest)

    monkeypatch.setattr(journal.store, "blob", late)
    with pytest.raises(Purged, match="run r was purged"):
        list(export_runs(journal, ["r"]))


def test_what_goes_on_from_a_purged_run_is_not_imported():
    """A fork that comes from elsewhere is left out and told, as is what goes on from it: nobody could fold it."""
    with Journal.open("memory:") as there, Journal.open("memory:") as here:
        ended(there, "r")
        import_jsonl(here, list(export_runs(there, ["r"])), "x")
        here.purge("r", reason="old")
        there.cancel(there.fork("r", new_run_id="f"))
        there.cancel(there.fork("f", new_run_id="g"))
        ended(there, "s")
        found = import_jsonl(here, list(export_runs(there, ["f", "g", "s"])), "x").runs
        why = "it goes on from {}, which was purged here, or left out for that"
        assert [("f", 0, why.format("r")), ("g", 0, why.format("f"))] == [
            (r.run_id, r.events_added, r.left_out) for r in found[:2]
        ]
        assert (None, None, "completed") == (here.store.head("f"), here.store.head("g"), here.head("s").status)
        rebuild(here.store)
        assert [] == errors(here)


# Tampering.


@pytest.fixture
def store(tmp_path):
    """A file with a purged run, `r`, and one that isn't, `s`."""
    path = tmp_path / "runs.db"
    with Journal.open(path, clock=FakeClock(), by="w") as opened:
        ended(opened, "r")
        ended(opened, "s")
        opened.purge("r", reason="old")
    return path


BYPASSES = {
    "a body without a marker": "UPDATE events SET body = x'' WHERE run = 2",
    "a body without a marker, or replace": "UPDATE OR REPLACE events SET body = x'' WHERE run = 2 AND seq = 1",
    "a body that says something else": "UPDATE events SET body = x'7b7d' WHERE run = 1 AND seq = 1",
    "the marker": "UPDATE events SET body = x'' WHERE type = 'run.purged'",
    "a hash": "UPDATE events SET hash = zeroblob(32) WHERE run = 1 AND seq = 1",
    "a hash with the body": "UPDATE events SET hash = zeroblob(32), body = x'' WHERE run = 1 AND seq = 1",
    "a type": "UPDATE events SET type = 'x.y', body = x'' WHERE run = 1 AND seq = 1",
    "a place": "UPDATE OR REPLACE events SET position = 2, body = x'' WHERE position = 1",
    "a seq": "UPDATE OR REPLACE events SET seq = 2, body = x'' WHERE run = 1 AND seq = 1",
    "all of it": "DELETE FROM events WHERE run = 1",
    "an event behind the marker": "INSERT INTO events (run, seq, type, hash, body) "
    "SELECT 1, max(seq) + 1, 'x.y', zeroblob(32), x'7b7d' FROM events WHERE run = 1",
    "a marker behind the marker": "INSERT INTO events (run, seq, type, hash, body) "
    "SELECT 1, max(seq) + 1, 'run.purged', zeroblob(32), x'7b7d' FROM events WHERE run = 1",
    "an event behind the marker of a run that runs": (
        "UPDATE runs SET status = 'running' WHERE run = 1; INSERT INTO events (run, seq, type, hash, body) "
        "SELECT 1, max(seq) + 1, 'x.y', zeroblob(32), x'7b7d' FROM events WHERE run = 1"
    ),
    "a marker in a run that runs": (
        "UPDATE runs SET status = 'running' WHERE run = 2; INSERT INTO events (run, seq, type, hash, body) "
        "SELECT 2, max(seq) + 1, 'run.purged', zeroblob(32), x'7b7d' FROM events WHERE run = 2"
    ),
    "a marker in a run that ended": (
        "UPDATE runs SET head_seq = head_seq + 1 WHERE run = 2; INSERT INTO events (run, seq, type, hash, body) "
        "SELECT 2, max(seq) + 1, 'run.purged', zeroblob(32), x'7b7d' FROM events WHERE run = 2"
    ),
    "an effect of a run that is there": "DELETE FROM effects WHERE run_id = 's'",
}


@pytest.mark.parametrize("recursive", [0, 1])
@pytest.mark.parametrize("what", BYPASSES)
def test_the_database_lets_nothing_else_through(store, what, recursive):
    """An UPDATE that empties a body needs the marker behind it, and may change nothing else."""
    connection = apsw.Connection(str(store))
    connection.execute(f"PRAGMA recursive_triggers = {recursive}").fetchall()
    connection.execute("INSERT INTO effects VALUES ('s', 'k', 't', '', 's', 1)").fetchall()
    rows = connection.execute("SELECT * FROM events").fetchall()
    with pytest.raises(apsw.ConstraintError):
        connection.execute(BYPASSES[what]).fetchall()
    assert rows == connection.execute("SELECT * FROM events").fetchall()
    connection.close()


TAMPERED = {
    "a body without a marker": ("UPDATE events SET body = x'' WHERE run = 2 AND seq = 2", "s"),
    "all bodies without a marker": ("UPDATE events SET body = x'' WHERE run = 2", "s"),
    "the first body without a marker": ("UPDATE events SET body = x'' WHERE run = 2 AND seq = 1", "s"),
    "a type of a purged run": ("UPDATE events SET type = 'x.y' WHERE run = 1 AND seq = 2", "r"),
    "a hash of a purged run": ("UPDATE events SET hash = randomblob(32) WHERE run = 1 AND seq = 2", "r"),
    "a body of a purged run": ("UPDATE events SET body = x'7b7d' WHERE run = 1 AND seq = 2", "r"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_what_is_done_past_the_triggers_is_found(store, what):
    """Verifying, auditing and folding say so of exactly that run."""
    query, run_id = TAMPERED[what]
    connection = apsw.Connection(str(store))
    connection.execute(f"DROP TRIGGER events_not_updated; {query}").fetchall()
    connection.close()
    with Journal.open(store) as opened:
        found = {each for each in ("r", "s") if verify_run(opened.store, each).problems}
        assert {run_id} == found
        assert "purge_broken" in {each.code for each in audit_run(opened.store, run_id)}
        with pytest.raises(CorruptLog):
            list(verified(opened.store.read_raw(run_id), run_id))


def test_a_marker_pins_what_was_before_it(store):
    """With its last hash in a backup, and all before it, the run can still be shown to have been just that."""
    with Journal.open(store) as opened:
        rows = list(opened.store.read_raw("r"))
        marker = next(record.event for record in opened.events("r") if record.type == "run.purged")
        assert isinstance(marker, e.RunPurged)
        assert marker.head_hash == rows[-2][4].hex()


# In the files.


class Planted:
    """Runs with texts in every field, of which most are purged between other appends."""

    def __init__(self, path: Path, runs: int, largest: int, *, purging: bool = True) -> None:
        self.rng, self.folder = random.Random(7), path.parent
        self.gone, self.kept = [], []
        self.sizes = (30, 200, 1500, 5000, largest)
        policy = CheckpointPolicy(every_events=10**9, at_ends=False)
        with Journal.open(path, clock=FakeClock(), by="w", checkpoints=policy) as self.journal:
            for number in range(runs):
                marks = self.run(f"r{number}")
                if number % 3 and purging:
                    self.journal.purge(f"r{number}", reason="old")
                    self.gone += marks
                else:
                    self.kept += marks
            self.found = (self.count(self.gone), self.count(self.kept))
            self.errors = [each.what for each in audit_store(self.journal.store) if each.severity == "error"]

    def run(self, run_id: str) -> list[str]:
        marks = [f"PLANT-{secrets.token_hex(10)}" for _ in range(8)]
        texts = [mark + "x" * (self.rng.choice(self.sizes) - len(mark)) for mark in marks]
        self.journal.append(run_id, [e.RunQueued("k", texts[0], title=marks[1], tags={"t": marks[2]})], expect=0)
        for event, epoch in list(generate.run(self.rng, 10))[1:]:
            try:
                self.journal.append(run_id, [event], epoch=0 if isinstance(event, e.RunClaimed) else epoch)
            except AppendRefused:
                continue
        self.journal.append(run_id, [e.NoteAdded(text) for text in texts[3:]])
        head = self.journal.head(run_id)
        if head.status == "running":
            self.journal.append(run_id, [e.RunCompleted(texts[0])], epoch=head.epoch)
        elif head.status in ("queued", "waiting", "scheduled_retry"):
            self.journal.append(run_id, [e.RunCancelled(marks[1])])
        for call_id in self.journal.state(run_id).calls.unresolved():
            self.journal.resolve(run_id, call_id, "unknown")
        return marks

    def count(self, marks: list[str]) -> int:
        held = b"".join(path.read_bytes() for path in self.folder.iterdir())
        return sum(mark.encode() in held for mark in marks)


@pytest.mark.parametrize(
    ("runs", "largest"), [(20, 70_000), pytest.param(300, 200_000, marks=pytest.mark.crash)], ids=["few", "many"]
)
def test_no_file_of_the_store_holds_a_text_of_a_purged_run(tmp_path, runs, largest):
    """Inputs, titles, tags, notes and values out of line are gone at once; those of the others are found."""
    planted = Planted(tmp_path / "runs.db", runs, largest)
    assert len(planted.gone) > 4 * runs
    assert (0, len(planted.kept)) == planted.found
    assert [] == planted.errors
    assert 0 == planted.count(planted.gone)


def test_without_secure_delete_texts_are_found(tmp_path, monkeypatch):
    """What SQLite takes out of a page it leaves in it: that is why it is told to overwrite."""
    monkeypatch.setitem(sqlite_place._SETTINGS, "secure_delete", 0)
    assert Planted(tmp_path / "runs.db", 20, 70_000).found[0] > 0


def test_a_vacuum_gives_the_disk_back(tmp_path):
    """The file shrinks by about what was purged, and what was moved about in it is gone for good."""
    path = tmp_path / "runs.db"
    with Journal.open(path, checkpoints=CheckpointPolicy(every_events=2)) as journal:
        for number in range(5):
            ended(journal, f"r{number}", f"Ada{number}" + BIG[: inline_value_bytes_max // 2])
        purged = sum(journal.purge(f"r{number}", reason="old").bytes for number in range(5))
        assert journal.store.vacuum() > purged * 0.9
        assert [] == [each.name for each in tmp_path.iterdir() if b"Ada" in each.read_bytes()]
        assert "purged" == journal.head("r3").status


def test_a_purge_that_was_cut_short_is_finished_when_the_store_is_opened(tmp_path, monkeypatch):
    """A process that dies behind the commit leaves a mark that older pages may still lie in the log."""
    path = tmp_path / "runs.db"
    with Journal.open(path) as journal:
        ended(journal, "r", "Ada")
        monkeypatch.setattr(upkeep, "truncate_wal", lambda _: False)
        assert journal.purge("r", reason="old").pending
        assert ["erased"] == [each.name for each in doctor(journal.store) if each.ok is False]
        monkeypatch.undo()
    with Journal.open(path) as journal:
        assert not journal.store.unscrubbed()
        assert [] == [each.name for each in tmp_path.iterdir() if b"Ada" in each.read_bytes()]


def test_the_keys_of_a_private_run_are_overwritten(tmp_path):
    """Whoever has an older copy of the file has its keys; the store itself has none any more."""
    path = tmp_path / "runs.db"
    with Journal.open(path, private=True) as journal:
        ended(journal, "r")
        keys = [journal.store.secret(purpose, "r") for purpose in ("run", "checkpoints", "scope")]
        journal.purge("r", reason="old")
        assert 3 * [True] == [key is not None and not journal.store.key("r") for key in keys]
        held = b"".join(each.read_bytes() for each in tmp_path.iterdir())
        assert 3 * [False] == [key is None or key in held for key in keys]
        assert [] == errors(journal)


def test_a_backup_has_the_purged_run_as_it_is(tmp_path):
    """A copy is made and verified with purged runs in it."""
    with Journal.open(tmp_path / "runs.db") as journal:
        ended(journal, "r")
        journal.purge("r", reason="old")
        journal.backup(tmp_path / "copy.db")
    with Journal.open(tmp_path / "copy.db") as copy:
        assert ("purged", []) == (copy.head("r").status, errors(copy))


# Beside it: what is told of erased runs.


def test_resume_of_an_erased_run_says_what_is_true():
    """It advises no retry, which would be refused."""
    with Journal.open("memory:", private=True) as journal:
        with pytest.raises(RuntimeError):
            journal.run(failing, run_id="r", input="Ada")
        journal.erase("r", reason="asked")
        with pytest.raises(NotAllowed, match="was erased: nothing goes on from it; begin another run"):
            journal.resume("r")


# From the shell.


def shell(path: Path, *args: str, **how: Any) -> Any:
    return CliRunner().invoke(cli, ["--db", str(path), *args], **how)


def test_purge_from_the_shell_asks_first_and_says_what_it_did(tmp_path):
    """A rehearsal and a no leave all as it was; a yes purges, and says how many events and bytes."""
    path = tmp_path / "runs.db"
    with Journal.open(path) as journal:
        ended(journal, "r", BIG)
        ended(journal, "s")
    command = ["purge", "r", "--reason", "old"]
    assert 2 == shell(path, "purge", "r").exit_code
    assert 4 == shell(path, "purge", "q", "--reason", "old").exit_code
    rehearsed = shell(path, *command, "--dry-run").stderr
    assert "would purge 1 run with 6 events" in rehearsed
    refused = shell(path, *command, input="n\n")
    assert (5, True) == (refused.exit_code, "nothing was purged" in refused.stderr)
    done = shell(path, *command, input="y\n")
    assert (0, True) == (done.exit_code, "purged 1 run with 6 events" in done.stderr)
    answer = orjson.loads(shell(path, *command, "--yes", "-o", "json").stdout)
    assert {"dry_run": False, "run_ids": [], "events": 0, "bytes": 0, "children": [], "pending": False} == answer
    assert 5 == shell(path, "retry", "r").exit_code


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["show", "r"], "purged"),
        (["show", "r", "--events"], "run.purged"),
        (["ls"], "purged"),
        (["show", "r"], "1.5"),
        (["explain", "r"], "was purged"),
        (["verify"], ""),
        (["audit"], ""),
        (["tree", "r"], ""),
        (["spans", "r"], ""),
        (["diff", "r", "s"], ""),
        (["doctor"], ""),
        (["export", "--all"], '"run_id":"s"'),
        (["replay", "r"], ""),
        (["replay", "r", "--at", "2"], "run t was purged (agent, completed, "),
        (["show", "r@2"], "run t was purged (agent, completed, "),
        (["show", "r", "--events"], "(purged)"),
        (["show", "r", "--events", "-o", "json"], '"data": null'),
        (["db", "rebuild"], ""),
        (["db", "info"], ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_commands_meet_a_purged_run(store, args, expected):
    """None of them breaks on it, and each says what is left."""
    with Journal.open(store) as journal:
        journal.append("s", [e.CostRecorded("1.5", "USD", "bill")])
        journal.run(agent, run_id="t", input="Ada")
        journal.append("t", [e.CostRecorded("1.5", "USD", "bill")])
        journal.purge("t", reason="old")
    args = ["t" + each[1:] if each in ("r", "r@2") else each for each in args]
    done = shell(store, *args)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    assert expected in done.output


@pytest.mark.parametrize("how", ["purge", "erase"])
def test_a_grown_transcript_of_what_is_gone_is_left_out(tmp_path, how):
    """An import of it adds nothing, ends well, and says why; other files come in."""
    said = {"type": "user", "message": {"role": "user", "content": "Ada"}}
    path, other = tmp_path / "runs.db", tmp_path / "b.jsonl"
    file = tmp_path / "a.jsonl"
    file.write_bytes(orjson.dumps(said) + b"\n")
    with Journal.open(path, private=how == "erase") as journal:
        (run,) = import_claude_code(journal, Source(str(file))).runs
        getattr(journal, how)(run.run_id, reason="old")
    file.write_bytes(2 * (orjson.dumps(said) + b"\n"))
    other.write_bytes(file.read_bytes())
    done = shell(path, "import", "claude-code", str(tmp_path))
    gone = f"run {run.run_id} is left out: it was {how}d here"
    assert (0, True) == (done.exit_code, gone in done.stderr)
    with Journal.open(path) as journal:
        assert ([], 2) == ([each for each in errors(journal) if "purge" in each[0]], len(list(journal.runs())))
