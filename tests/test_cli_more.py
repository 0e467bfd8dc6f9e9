"""The commands that walk, draw and tell: trees, waterfalls, steps, schemas, settings, upkeep."""

import json
import re
from datetime import UTC, datetime, timedelta

import apsw
import pytest
from click.testing import CliRunner

from runjournal.cli import spans, stepper
from runjournal.cli.app import cli
from runjournal.cli.stepper import Stepper
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log import limits, owner
from runjournal.log.clock import timestamp
from runjournal.log.errors import InvalidArgument
from runjournal.log.limits import snapshots_max
from runjournal.log.sqlite_schema import MIGRATIONS
from runjournal.log.sqlite_schema import migrate as bring_up
from runjournal.log.store import Checkpoint
from runjournal.looking import moments, states

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\u202egnp.exe\u200b\x9b31m[red]x[/red]"
HARMFUL = "\x1b\x07\r\u202e\u200b\x9b"
BEGAN = datetime(2026, 11, 29, 12, tzinfo=UTC)
ERROR = {"type": "Timeout", "message": HOSTILE}
USAGE = {"input": 1200, "output": 80, "cache_read": 0, "cache_write": 0}
COST = {"amount": "0.012", "currency": "USD", "source": "reported"}


def claim(epoch=1):
    return e.RunClaimed(
        worker="w", epoch=epoch, lease_s=60.0, host="h", boot_id="b", pid_ns="n", pid=1, pid_started="1"
    )


def tool(call_id, name="send", *, attempt=1, policy="unsafe"):
    return e.ToolStarted(call_id, name, {"to": HOSTILE}, policy, read_only=False, on_unknown="ask", attempt=attempt)


class Writer:
    """Appends events two seconds apart."""

    def __init__(self, journal):
        self.journal, self.now = journal, BEGAN

    def add(self, run_id, *events, epoch=0):
        head, times = self.journal.store.head(run_id), []
        for _ in events:
            self.now += timedelta(seconds=2)
            times.append(timestamp(self.now))
        self.journal.append(
            self.journal.batch(run_id, events, expect=head.head_seq if head else 0, epoch=epoch, at=times)
        )


def fill(journal):
    """A parent with a failed step, a child, a wait and an open call; a grandchild that only names its parent."""
    write = Writer(journal)
    write.add("parent", e.RunQueued(kind="report", input=HOSTILE, title=HOSTILE))
    write.add("parent", claim())
    write.add(
        "parent",
        e.StepStarted(0, "load", "load", "once", 1, 1),
        e.ModelStarted("m1", "claude", "h", 1),
        e.ModelCompleted("m1", 1, {}, USAGE, COST),
        tool("c1", HOSTILE, policy="idempotent"),
        e.ToolFailed("c1", 1, ERROR, transient=False),
        e.StepFailed(0, ERROR, transient=True),
        e.StepStarted(0, "load", "load", "once", 1, 2),
        tool("c1", HOSTILE, attempt=2, policy="idempotent"),
        e.ToolCompleted("c1", 2, "ok"),
        e.MemorySet("total", HOSTILE),
        e.StepCompleted(0),
        e.StepStarted(1, "write", "write", "once", 1, 1),
        e.ChildSpawned("kid", "research"),
        epoch=1,
    )
    write.add("kid", e.RunQueued(kind="research", input=1, parent_run_id="parent", link="child"))
    write.add("kid", claim())
    write.add("kid", e.StepStarted(0, "dig", "dig", "once", 1, 1), e.StepCompleted(0), e.RunCompleted(1), epoch=1)
    write.add("stray", e.RunQueued(kind="research", input=2, parent_run_id="kid", link="child"))
    write.add(
        "parent",
        e.ApprovalRequested("a1", "send", HOSTILE),
        e.RunWaiting([{"kind": "approval", "id": "a1"}]),
        epoch=1,
    )
    write.add("parent", e.ApprovalResolved("a1", "approved"))
    write.add("parent", claim(2))
    write.add("parent", e.StepStarted(1, "write", "write", "once", 2, 1), tool("c2"), epoch=2)


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("more") / "runs.db")
    with Journal.open(path, by="t") as journal:
        fill(journal)
    return path


def run(db, *words, stdin=None, env=None):
    return CliRunner().invoke(cli, ["--db", db, *words], input=stdin, env=env)


def lines(db, *words, stdin=None):
    result = run(db, *words, "-o", "jsonl", stdin=stdin)
    assert 0 == result.exit_code, result.output
    return [json.loads(each) for each in result.stdout.splitlines()]


# --- show --tree, show --waterfall ---------------------------------------------------------------------------------


def test_tree(db):
    """`show --tree` gives the run, its attempts with their calls, each once, and its children where they began."""
    found = [
        (each["depth"], each["kind"], each["name"], each["attempt"], each["status"], each["duration_s"])
        for each in lines(db, "show", "parent", "--tree")
    ]
    expected = [
        (0, "run", "parent", 1, "running", None),
        (1, "step", "load", 1, "failed", 10.0),
        (2, "model", "claude", 1, "completed", 2.0),
        (2, "tool", HOSTILE, 1, "failed", 2.0),
        (1, "step", "load", 2, "completed", 8.0),
        (2, "tool", HOSTILE, 2, "completed", 2.0),
        (1, "step", "write", 1, "open", None),
        (2, "run", "kid", 1, "completed", 8.0),
        (3, "step", "dig", 1, "completed", 2.0),
        (3, "run", "stray", 1, "queued", None),
        (2, "wait", "approval a1", 1, "came", 4.0),
        (2, "tool", "send", 1, "open", None),
    ]
    assert expected == found


def test_tree_for_people(db):
    """The branches say what is inside what, and the lines how long it took and how it ended."""
    shown = run(db, "show", "parent", "--tree").stdout.splitlines()
    assert "│  ├─ model claude  completed  2.00 s  1,200 in, 80 out, 0.012 USD" == shown[2]
    assert "├─ step 0 load attempt 2  completed  8.00 s" == shown[4]
    assert "   │  ├─ step 0 dig  completed  2.00 s" == shown[8]
    assert shown[6].startswith("└─ step 1 write entry 2  open  ")


def test_tree_at(db):
    """RUN@SEQ gives the spans as they were then."""
    found = lines(db, "show", "parent@7", "--tree")
    assert [("run", "as of event 7"), ("step", "open")] == [(each["kind"], each["status"]) for each in found[:2]]


@pytest.mark.parametrize("view", ["--tree", "--waterfall"])
def test_limit(db, view):
    """`--limit` bounds the lines and says that there are more."""
    result = run(db, "show", "parent", view, "--limit", "3", "-o", "json")
    assert 3 == len(json.loads(result.stdout))
    assert "the first 3 lines" in run(db, "show", "parent", view, "--limit", "3").stderr
    assert "the first" not in run(db, "show", "parent", view, "--limit", "0").stderr


def bars(text):
    return {
        row.split()[1]: row[51:] for row in text.splitlines() if row.split()[0] in {"step", "model", "tool", "wait"}
    }


def test_waterfall(db):
    """Bars stand where their spans are in time: one that began later stands further right."""
    shown = bars(run(db, "show", "kid", "--waterfall").stdout)
    assert ["dig"] == list(shown)
    begin = len(shown["dig"]) - len(shown["dig"].lstrip())
    assert (24, 37) == (begin, len(shown["dig"].rstrip()))


@pytest.mark.parametrize("view", ["--tree", "--waterfall"])
def test_plain_ascii(db, view):
    """With TERM=dumb nothing but ASCII is drawn."""
    assert run(db, "show", "parent", view, env={"TERM": "dumb"}).stdout.isascii()
    assert not run(db, "show", "parent", view, env={"TERM": "xterm"}).stdout.isascii()


def test_a_run_inside_itself(tmp_path):
    """Runs that name each other as children are each opened once."""
    path = str(tmp_path / "c.db")
    with Journal.open(path, by="t") as journal:
        for one, other in (("a", "b"), ("b", "a")):
            journal.append(one, [e.RunQueued(kind="k", input=1)], expect=0)
            journal.append(one, [claim()], expect=1)
            journal.append(one, [e.ChildSpawned(other, "k")], expect=2, epoch=1)
    assert [(0, "a"), (1, "b"), (2, "a")] == [
        (each["depth"], each["name"]) for each in lines(path, "show", "a", "--tree")
    ]


def test_what_is_held_is_bounded(db, monkeypatch):
    """A step with more calls than are held says how many were left out; nothing waits for ever outside of steps."""
    monkeypatch.setattr(spans, "spans_held_max", 1)
    found = {(each["name"], each["attempt"]): each["left_out"] for each in lines(db, "show", "parent", "--tree")}
    assert (1, 0, 2) == (found["load", 1], found["load", 2], found["write", 1])


def test_calls_without_an_end(tmp_path):
    """A call whose step ended first is unknown, and an outbox's is queued."""
    path = str(tmp_path / "o.db")
    with Journal.open(path, by="t") as journal:
        write = Writer(journal)
        write.add("r", e.RunQueued(kind="k", input=1))
        write.add("r", claim())
        step = e.StepStarted(0, "s", "s", "once", 1, 1)
        write.add("r", step, tool("c1"), tool("c2", policy="outbox"), e.StepFailed(0, ERROR, transient=False), epoch=1)
    assert ["unknown", "queued"] == [each["status"] for each in lines(path, "show", "r", "--tree")[2:]]


# --- replay --step -------------------------------------------------------------------------------------------------


def test_step_by_lines(db):
    """Lines of stdin walk: each position is an event and what it changed."""
    found = lines(db, "replay", "parent", "--step", stdin="n\ngoto 12\nprevious\nprev\nstate\nquit\nnext\n")
    assert [1, 2, 12, 11, 10, 10] == [each["seq"] for each in found]
    assert [{"path": "memory.total", "before": None, "after": HOSTILE}] == found[2]["changes"]
    assert ("running", 2) == (found[-1]["status"], found[-1]["step"]["attempt"])


def test_step_from_a_place(db):
    """The walk begins at RUN@SEQ, ends at the last event, and a negative number counts from it."""
    found = lines(db, "replay", "parent@-1", "--step", stdin="next\nnext\ngoto -2\n")
    assert [20, 21, 19] == [each["seq"] for each in found]


def test_step_diff(db):
    """`diff` shows all that an event changed, `diff N` all since another."""
    *_, one, many = lines(db, "replay", "parent@12", "--step", stdin="diff\ndiff 2\n")
    assert ["memory.total"] == [each["path"] for each in one["changes"]]
    assert {"memory.total", "cost.USD", "seq"} <= {each["path"] for each in many["changes"]}


def test_step_refuses(db):
    """What can't be done is said on stderr, the walk goes on, and the exit code tells."""
    hostile = HOSTILE.replace("\r", "")
    result = run(db, "replay", "parent", "--step", stdin=f"goto 99\n{hostile}\ngoto x\nnext\n")
    assert (2, 3) == (result.exit_code, result.stderr.count("error: "))
    assert "\n2  2026-11-29 12:00:04  run.claimed" in result.stdout
    assert [] == [char for char in result.stdout + result.stderr if char in HARMFUL]


def test_stepper_agrees_with_replay(db):
    """Wherever one goes, forwards and back, the state is what replay gives."""
    with Journal.open(db, create=False) as journal:
        walk = Stepper(journal, "parent")
        for seq in (1, 2, 3, 21, 20, 8, 9, 21, 1):
            walk.go(seq)
            assert journal.replay("parent", seq).dump() == walk.state.dump()
        with pytest.raises(InvalidArgument):
            walk.go(22)


def test_stepper_goes_back_from_what_it_kept(tmp_path, monkeypatch):
    """Going back in a long run folds from a state that was kept on the way, and holds only so many of them."""
    monkeypatch.setattr(stepper, "snapshot_every_events", 8)
    with Journal.open("memory:", by="t") as journal:
        journal.append("r", [e.RunQueued(kind="k", input=1)], expect=0)
        journal.append("r", [e.NoteAdded(str(number)) for number in range(999)])
        journal.store.drop_checkpoints()
        walk = Stepper(journal, "r")
        walk.go(900)
        read = []
        walk.go(895, lambda done, total: read.append(total))
        assert [6] == read
        for seq in range(900, 100, -20):
            walk.go(seq)
        assert snapshots_max == len(walk._kept)


# --- replay, diff, show of long runs -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """A run of 1,000 events with a checkpoint at its end, and one of 20,001."""
    path = str(tmp_path_factory.mktemp("long") / "runs.db")
    with Journal.open(path, by="t") as journal:
        for run_id, count in (("short", 999), ("long", 20_000)):
            journal.append(run_id, [e.RunQueued(kind="k", input=1)], expect=0)
            for first in range(0, count, 10_000):
                journal.append(run_id, [e.NoteAdded("x")] * min(10_000, count - first))
            journal.checkpoint(run_id)
    return path


def test_replay_goes_on_from_a_checkpoint(long):
    """`replay` folds what stands behind the newest checkpoint, all with --whole, and comes to the same."""
    quick, whole = run(long, "replay", "short"), run(long, "replay", "short", "--whole")
    assert quick.stdout == whole.stdout
    assert "folded 0 events behind the checkpoint at 1000" in quick.stderr
    assert "folded 1,000 events, the chain is whole" in whole.stderr


def test_looking_writes_nothing(tmp_path):
    """A fold of any length leaves no checkpoint behind: a command that reads doesn't write."""
    with Journal.open(tmp_path / "r.db", by="t") as journal:
        journal.append("long", [e.RunQueued(kind="k", input=1)], expect=0)
        journal.append("long", [e.NoteAdded("x")] * 2_000)
        journal.store.drop_checkpoints()
        found = [states.state_at(journal, "long").since for _ in range(2)]
        assert ([0, 0], []) == (found, list(journal.store.checkpoints("long")))


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize(("output", "expected"), [("table", "warning: "), ("json", '{"warning": ')])
def test_warnings(tmp_path, output, expected):
    """What the package warns of is one line on stderr, and JSON beside JSON."""
    path = str(tmp_path / "w.db")
    with Journal.open(path, by="t") as journal:
        journal.append("r", [e.RunQueued(kind="k", input=1)], expect=0)
        journal.store.save_checkpoint(Checkpoint("r", 1, "run_state:old", b"x"))
    told = run(path, "replay", "r", "-o", output).stderr
    assert told.startswith(expected)
    assert 1 == told.count("checkpoint of run r at seq 1 is left out")


def test_show_leaves_findings_out(long):
    """`show -o json` of a run of over 20,000 events audits it only with --audit, and says so."""
    shown = [
        json.loads(run(long, "show", *words, "-o", "json").stdout)
        for words in (["long"], ["long", "--audit"], ["short"])
    ]
    assert [(True, False), (False, True), (False, True)] == [
        (each["findings_skipped"], "findings" in each) for each in shown
    ]


@pytest.mark.parametrize("url", ["memory:", "file"])
def test_type_counts_and_times(url, tmp_path):
    """Counts by type and the event at a time are the same with SQL and without."""
    with Journal.open(url if url == "memory:" else tmp_path / "r.db", by="t") as journal:
        fill(journal)
        assert {"run.queued": 1, "run.claimed": 1, "step.started": 1} == journal.store.type_counts("parent", 3)
        found = [moments.seq_at_time(journal, "parent", text) for text in ("12:00:01", "12:00:04", "12:00:05", "12:01")]
        assert [None, 2, 2, 21] == found


def test_first_divergence(tmp_path):
    """`diff` of two runs names the first events that differ in what was done; ids, owners and times don't count."""
    path = str(tmp_path / "d.db")
    with Journal.open(path, by="t") as journal:
        for run_id, last in (("one", "same"), ("two", "same"), ("three", HOSTILE)):
            journal.append(run_id, [e.RunQueued(kind="k", input=1, title=run_id)], expect=0)
            journal.append(run_id, [claim()], expect=1, by=run_id)
            if run_id == "two":
                journal.append(run_id, [e.NoteAdded("only here")], expect=2)
            step = e.StepStarted(0, "s", "s", "once", 1, 1)
            journal.append(run_id, [step, tool(f"call-{run_id}"), e.MemorySet("k", last)], epoch=1)

    def parted(*words):
        found = [each for each in lines(path, "diff", *words) if each["path"] == "first_divergence"]
        return [(each["before"] and each["before"]["seq"], each["after"] and each["after"]["seq"]) for each in found]

    assert [[], [(5, 5)], [(None, 6)], []] == [
        parted("one", "two"), parted("one", "three"), parted("one@4", "two"), parted("one@4", "one@5"),
    ]  # fmt: skip
    assert "first_divergence" in run(path, "diff", "one", "three").stdout


# --- schema --------------------------------------------------------------------------------------------------------

TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float),
    "null": type(None),
}  # fmt: skip


def fits(value, schema, defs):
    """Whether a value fits a schema: the keywords that ours use."""
    if "$ref" in schema:
        return fits(value, defs[schema["$ref"].removeprefix("#/$defs/")], defs)
    kinds = schema.get("type", [])
    kinds = tuple(TYPES[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds))
    return (
        (not kinds or (isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))))
        and ("enum" not in schema or value in schema["enum"])
        and ("const" not in schema or value == schema["const"])
        and ("pattern" not in schema or re.search(schema["pattern"], value) is not None)
        and ("minimum" not in schema or value is None or value >= schema["minimum"])
        and len(value if isinstance(value, str | list) else "")
        >= max(schema.get("minLength", 0), schema.get("minItems", 0))
        and ("anyOf" not in schema or any(fits(value, each, defs) for each in schema["anyOf"]))
        and all(fits(item, schema["items"], defs) for item in (value if "items" in schema else []))
        and (not isinstance(value, dict) or object_fits(value, schema, defs))
        and all(fits(value, each["then"], defs) for each in schema.get("allOf", []) if fits(value, each["if"], defs))
    )


def object_fits(value, schema, defs):
    fields = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    return set(schema.get("required", [])) <= set(value) and all(
        fits(item, fields[name], defs) if name in fields else others is True or (others and fits(item, others, defs))
        for name, item in value.items()
    )


def test_schema_fits_what_show_gives(db):
    """Every line of `show --events -o jsonl` fits the schema of all events; with a field changed it doesn't."""
    schema = json.loads(run(db, "schema").stdout)
    found = lines(db, "show", "parent", "--events") + lines(db, "show", "kid", "--events")
    assert [] == [each for each in found if not fits(each, schema, schema["$defs"])]
    assert not fits(found[0] | {"data": {"kind": 1, "input": None}}, schema, schema["$defs"])
    assert not fits(found[0] | {"data": {"kind": "k", "input": None, "extra": 1}}, schema, schema["$defs"])


def test_schema_names_every_type(db):
    """The schema has every event type of the package, and one a line as jsonl."""
    expected = sorted(name for name in e.registered() if not name.startswith("x."))
    assert [*expected, "blob"] == list(json.loads(run(db, "schema").stdout)["$defs"])
    assert expected == [each["title"] for each in lines(db, "schema")]


def test_schema_of_one(db):
    """`schema TYPE` is a document of its own; a value that may be held out of line may be a reference."""
    found = json.loads(run(db, "schema", "memory.set").stdout)
    assert ("https://json-schema.org/draft/2020-12/schema", ["key", "value"]) == (found["$schema"], found["required"])
    assert fits({"key": "k", "value": {"$blob": "0" * 64, "bytes": 5}}, found, found["$defs"])
    wrong = run(db, "schema", "memory.sett")
    assert (2, True) == (wrong.exit_code, "did you mean memory.set?" in wrong.stderr)


# --- config --------------------------------------------------------------------------------------------------------


def options(db, *words, env=None):
    result = CliRunner().invoke(cli, [*words, "config", "-o", "json"], env={"RUNJOURNAL_DB": None} | (env or {}))
    assert 0 == result.exit_code, result.output
    found = json.loads(result.stdout)
    return {each["name"]: (each["value"], each["from"]) for each in found["options"]}, {
        each["name"]: each for each in found["limits"]
    }


def test_config(db):
    """`config` tells each option's value and whether it is a default, of the environment or of the command line."""
    found, bounds = options(db, "--db", db, env={"RUNJOURNAL_DB": "/other.db", "RUNJOURNAL_COLOR": "never"})
    assert (db, "command line") == found["--db"]
    assert ("never", "environment") == found["--color"]
    assert ("json", "command line") == found["--output"]
    assert ("yes", "default") == found["--pager"]
    assert (64, 60.0) == (bounds["json_depth_max"]["value"], bounds["lease_s"]["value"])


def test_config_shows_every_limit(db):
    """Every bound of the package is shown with its value and with what it bounds, to people and to programs."""
    known = {
        name: value for name, value in vars(limits).items() if name[0] != "_" and name not in {"Final", "annotations"}
    }
    found = options(db)[1]
    assert {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()} == {
        name: each["value"] for name, each in found.items()
    }
    assert [] == [name for name, each in found.items() if not each["meaning"].endswith(".")]
    shown = run(db, "config").stdout
    assert [] == [name for name in known if f"  {name} = " not in shown]
    assert "record_waits_s = 0.1, 0.5, 2.0" in shown


def test_config_of_commands(db):
    """Options of single commands are told where the environment sets them, and a variable that no option reads."""
    env = {"RUNJOURNAL_LS_LIMIT": "4", "RUNJOURNAL_DBB": HOSTILE}
    assert ("4", "environment") == options(db, env=env)[0]["ls --limit"]
    shown = run(db, "config", env=env)
    assert "RUNJOURNAL_DBB is set and no option reads it; did you mean RUNJOURNAL_DB?" in shown.stderr


# --- db rebuild, db migrate ----------------------------------------------------------------------------------------


def test_rebuild(tmp_path):
    """`db rebuild` makes the index again: what it was is what it is, and the audit finds nothing new."""
    path = str(tmp_path / "r.db")
    with Journal.open(path, by="t") as journal:
        fill(journal)
    before = lines(path, "ls")
    assert {"runs": 3, "events": 27} == json.loads(run(path, "db", "rebuild", "-o", "json").stdout)
    assert before == lines(path, "ls")


def test_rebuild_refuses_a_living_owner(tmp_path):
    """While a run has a living owner nothing is rebuilt, and the exit code is that of a conflict."""
    path = str(tmp_path / "r.db")
    with Journal.open(path, by="t") as journal:
        journal.append("r", [e.RunQueued(kind="k", input=1)], expect=0)
        here = owner.here()
        mine = e.RunClaimed(
            worker="w", epoch=1, lease_s=60.0, host=here.host, boot_id=here.boot_id, pid_ns=here.pid_ns,
            pid=here.pid, pid_started=here.started,
        )  # fmt: skip
        journal.append("r", [mine], expect=1)
        assert 5 == run(path, "db", "rebuild").exit_code


@pytest.fixture
def old(tmp_path):
    """A store of schema 1."""
    path = tmp_path / "old.db"
    connection = apsw.Connection(str(path))
    bring_up(connection, str(path), MIGRATIONS[:1])
    connection.close()
    return path


def test_migrate(old):
    """`db migrate` says from where to where and names the copy; --dry-run changes nothing."""
    before = old.read_bytes()
    newest = len(MIGRATIONS)
    dry = json.loads(run(str(old), "db", "migrate", "--dry-run", "-o", "json").stdout)
    assert {"from": 1, "to": newest, "migrated": False, "backups": []} == dry
    assert (before, [old]) == (old.read_bytes(), list(old.parent.iterdir()))
    found = run(str(old), "db", "migrate")
    assert f"migrated from schema 1 to {newest}" in found.stderr
    assert f"{old}.backup-schema-1" in found.stderr
    again = json.loads(run(str(old), "db", "migrate", "-o", "json").stdout)
    assert {"from": newest, "to": newest, "migrated": False, "backups": []} == again


@pytest.mark.parametrize("words", [["--dry-run"], []])
def test_migrate_makes_no_store(tmp_path, words):
    """Where no store is there is none to migrate, and none is made."""
    assert 75 == run(str(tmp_path / "none.db"), "db", "migrate", *words).exit_code
    assert [] == list(tmp_path.iterdir())
    assert 2 == run("memory:", "db", "migrate", *words).exit_code


# --- hostile content -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("R140")
@pytest.mark.parametrize("output", ["table", "json", "jsonl"])
@pytest.mark.parametrize(
    "words",
    [
        ["show", "parent", "--tree"], ["show", "parent", "--waterfall"], ["replay", "parent", "--step"],
        ["diff", "parent", "kid"], ["config"], ["schema"], ["db", "migrate", "--dry-run"],
    ],
    ids="-".join,
)  # fmt: skip
def test_hostile_content(db, words, output):
    """Whatever was logged, no view and no format gives a terminal anything but text."""
    stdin = "\n".join(["next"] * 20 + ["state", "diff", "diff 1"])
    result = run(db, *words, "-o", output, stdin=stdin, env={"PAGER": HOSTILE})
    assert 0 == result.exit_code, result.output
    assert [] == [char for char in result.stdout + result.stderr if char in HARMFUL]
