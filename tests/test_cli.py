"""The commands: what they print, where, and with which exit code."""

import json

import pytest
from click.testing import CliRunner

from runjournal.cli.app import COMMANDS, cli
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.logbook import Logbook

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\u202egnp.exe\u200b\x9b31m[red]x[/red]"
HARMFUL = "\x1b\x07\r\u202e\u200b\x9b"


def claim(epoch=1):
    return e.RunClaimed(
        worker="w", epoch=epoch, lease_s=60.0, host="h", boot_id="b", pid_ns="n", pid=1, pid_started="1"
    )


def started(call_id, tool="send", args=None):
    return e.ToolStarted(
        call_id=call_id,
        tool=tool,
        args=args or {"to": "a@b.c"},
        policy="unsafe",
        read_only=False,
        on_unknown="ask",
        attempt=1,
    )


def fill(path):
    """Two runs: `alpha-1` completed, `alpha-2` failed in the middle of a call, with hostile content."""
    with Journal.open(path, by="t") as journal:
        journal.append(
            "alpha-1",
            [
                e.RunQueued(kind="report", input={"n": 1}, title="first", tags={"team": "ops"}),
                claim(),
                e.StepStarted(index=0, id="load", name="load", kind="do", entry=1, attempt=1),
                e.MessageAppended(role="user", content="hello"),
            ],
            expect=0,
        )
        journal.append(
            "alpha-1",
            [
                e.ModelStarted(call_id="m1", model="claude", request_hash="h", attempt=1),
                e.ModelCompleted(
                    call_id="m1", attempt=1, response={},
                    cost={"amount": "0.5", "currency": "USD", "source": "reported"},
                    usage={"input": 10, "output": 5, "cache_read": 3, "cache_write": 2},
                ),
                e.MemorySet(key="total", value=42),
                started("c1"),
            ],
            expect=4,
            epoch=1,
        )  # fmt: skip
        journal.append(
            "alpha-1",
            [
                e.ToolCompleted(call_id="c1", attempt=1, result={"ok": True}),
                e.StepCompleted(index=0),
                e.RunCompleted(output="done"),
            ],
            expect=8,
            epoch=1,
        )
        journal.append("alpha-2", [e.RunQueued(kind="report", input=HOSTILE, title=HOSTILE), claim()], expect=0)
        journal.append(
            "alpha-2",
            [
                e.StepStarted(index=0, id="send", name="send", kind="once", entry=1, attempt=1),
                e.MessageAppended(role="assistant", content=HOSTILE),
                started("c2", HOSTILE, {HOSTILE: HOSTILE}),
                e.NoteAdded(text=HOSTILE),
                e.RunFailed(error={"type": "E", "message": HOSTILE}, left=[], cause="error"),
            ],
            expect=2,
            epoch=1,
        )


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "runs.db"
    fill(path)
    return str(path)


def run(db, *words, stdin=None, env=None):
    return CliRunner().invoke(cli, ["--db", db, *words], input=stdin, env=env)


def loaded(db, *words):
    result = run(db, *words, "-o", "json")
    assert 0 == result.exit_code, result.output
    return json.loads(result.stdout)


# --- ls ------------------------------------------------------------------------------------------------------------


def test_ls(db):
    """`ls` lists the runs, newest first, data to stdout and prose to stderr."""
    result = run(db, "ls")
    assert 0 == result.exit_code
    assert ["RUN", "alpha-2", "alpha-1"] == [row.split()[0] for row in result.stdout.splitlines()]
    assert result.stderr.startswith("2 runs; next: runjournal --db ")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--status", "failed"], ["alpha-2"]),
        (["--status", "failed", "--status", "completed"], ["alpha-2", "alpha-1"]),
        (["--tag", "team=ops"], ["alpha-1"]),
        (["--tag", "team=dev"], []),
        (["--kind", "other"], []),
        (["--since", "2h"], ["alpha-2", "alpha-1"]),
        (["--since", "2999-01-01"], []),
        (["--limit", "1"], ["alpha-2"]),
    ],
)
def test_ls_filters(db, options, expected):
    """The filters of `ls` leave what they say."""
    assert expected == [each["run_id"] for each in loaded(db, "ls", *options)]


def test_ls_glance(db):
    """`ls` tells tokens, money and the calls in flight."""
    found = {each["run_id"]: each for each in loaded(db, "ls")}
    assert (20, {"USD": "0.5"}, 0) == tuple(found["alpha-1"][name] for name in ("tokens", "cost", "in_flight"))
    assert 1 == found["alpha-2"]["in_flight"]


def test_jsonl_is_one_object_a_line(db):
    """With -o jsonl every line is an object."""
    result = run(db, "ls", "-o", "jsonl")
    assert ["alpha-2", "alpha-1"] == [json.loads(row)["run_id"] for row in result.stdout.splitlines()]


# --- show ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R140", "R142")
def test_show_json(db):
    """`show -o json` says where a run stands: counts, usage, open calls, findings."""
    found = loaded(db, "show", "alpha-1")
    with Journal.open(db, create=False) as journal:
        head = journal.head("alpha-1")
    assert ("alpha-1", "completed", "report", head.head_seq, head.head_hash) == tuple(
        found[name] for name in ("run_id", "status", "kind", "head_seq", "head_hash")
    )
    assert {"user": 1} == found["messages"]
    assert {"started": 1, "completed": 1, "failed": 0, "in_flight": 0} == found["calls"]
    assert {"claude": {"input": 10, "output": 5, "cache_read": 3, "cache_write": 2}} == found["usage"]
    assert 11 == sum(found["events"].values())
    assert ([], None) == (found["open_calls"], found["step"])
    assert "path" not in found


@pytest.mark.requirement("R140")
def test_show_open_call(db):
    """A call in flight is listed with its tool, its key, its args and when it started."""
    (call,) = loaded(db, "show", "alpha-2")["open_calls"]
    assert ("c2", HOSTILE, {HOSTILE: HOSTILE}, 5) == (call["call_id"], call["tool"], call["args"], call["seq"])


def test_show_at(db):
    """RUN@SEQ shows the run as it stood then."""
    found = loaded(db, "show", "alpha-1@2")
    assert ("running", 2, {"run.claimed": 1, "run.queued": 1}) == (found["status"], found["head_seq"], found["events"])


@pytest.mark.requirement("R141")
def test_show_events(db):
    """`show --events` gives each event with its time, type, writer, step and data."""
    found = loaded(db, "show", "alpha-1", "--events")
    assert list(range(1, 12)) == [each["seq"] for each in found]
    failed = loaded(db, "show", "alpha-2", "--events", "--type", "run.failed")
    assert [("run.failed", HOSTILE)] == [(each["type"], each["data"]["error"]["message"]) for each in failed]


def test_show_events_from(db):
    """`--from` and a prefix of types narrow the events."""
    found = loaded(db, "show", "alpha-1", "--events", "--from", "5", "--type", "tool.")
    assert ["tool.started", "tool.completed"] == [each["type"] for each in found]


def test_show_calls(db):
    """`show --calls` gives every attempt with args and outcome."""
    (call,) = loaded(db, "show", "alpha-1", "--calls")
    assert ("send", "completed", {"to": "a@b.c"}, {"ok": True}) == tuple(
        call[n] for n in ("tool", "status", "args", "outcome")
    )
    assert ["open"] == [each["status"] for each in loaded(db, "show", "alpha-2", "--calls")]


def test_show_messages(db):
    """`show --messages` is a transcript, each text behind its role."""
    assert "user  4\n  hello\n\n" == run(db, "show", "alpha-1", "--messages").stdout
    assert [["user", "hello"]] == [[m["role"], m["content"]] for m in loaded(db, "show", "alpha-1", "--messages")]


def test_show_screen(db):
    """The screen says what is in flight, what failed, and what to type next."""
    shown = run(db, "show", "@last-failed").stdout
    for expected in ("alpha-2", "failed", "Left open (1)", "Last error", "Next", "show alpha-2 --calls"):
        assert expected in shown


# --- replay, diff --------------------------------------------------------------------------------------------------


def test_replay(db):
    """`replay --at` gives the folded state after that event."""
    then, now = loaded(db, "replay", "alpha-1", "--at", "7"), loaded(db, "replay", "alpha-1")
    assert ({"total": 42}, "load", True) == (then["memory"], then["step"]["id"], then["overlay_open"])
    assert ("completed", None, {"USD": "0.5"}) == (now["status"], now["step"], now["cost"])
    assert "running" in run(db, "replay", "alpha-1@7").stdout


def test_diff(db):
    """`diff` names each place that changed."""
    changes = {each["path"]: each for each in loaded(db, "diff", "alpha-1@6", "alpha-1@7")}
    assert {"at", "hash", "memory.total", "seq"} == set(changes) | {"at"}
    assert (None, 42) == (changes["memory.total"]["before"], changes["memory.total"]["after"])


# --- references ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ref", "expected"),
    [("alpha-1", ("alpha-1", 11)), ("@last", ("alpha-2", 7)), ("@last-failed@2", ("alpha-2", 2)),
     ("alpha-1@-1", ("alpha-1", 10)),
     ("alpha-2@23:59:59", ("alpha-2", 7)), ("alpha-2@2999-01-01T00:00", ("alpha-2", 7))],
)  # fmt: skip
def test_references(db, ref, expected):
    """A run is named by id, @last or @last-failed, its event by number, from the end, or by time."""
    found = loaded(db, "replay", ref)
    assert expected == (found["run_id"], found["seq"])


def test_prefix(tmp_path):
    """A unique prefix names a run; one of several is an error that names them."""
    path = str(tmp_path / "p.db")
    fill(path)
    with Journal.open(path, by="t") as journal:
        journal.append("beta", [e.RunQueued(kind="x", input=1)], expect=0)
    assert "beta" == loaded(path, "show", "be")["run_id"]
    result = run(path, "show", "al")
    assert 2 == result.exit_code
    assert "alpha-2, alpha-1" in result.stderr


# --- exit codes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["show", "nope"], 4),
        (["show", "alpha-1@99"], 2),
        (["show", "alpha-1@x"], 2),
        (["show", "../etc"], 2),
        (["show", "@first"], 2),
        (["replay", "alpha-1", "--at", "99"], 2),
        (["replay", "alpha-1@2", "--at", "3"], 2),
        (["ls", "--status", "nope"], 2),
        (["ls", "--since", "soon"], 2),
        (["ls", "--tag", "x"], 2),
        (["nope"], 2),
        (["export"], 2),
        (["export", "nope"], 4),
        (["audit", "alpha-1"], 0),
        (["audit", "alpha-2"], 3),
        (["audit", "--all"], 3),
        (["audit", "nope"], 4),
        (["verify"], 0),
        (["verify", "nope"], 4),
        (["checkpoint", "prune"], 2),
        (["import", "jsonl", "/no/such/file"], 1),
        (["import", "claude-code", "/no/such/file"], 1),
        (["db", "info"], 0),
    ],
)
def test_exit_codes(db, words, expected):
    """Each outcome has its exit code, and an error says what was expected on stderr, never on stdout."""
    result = run(db, *words)
    assert expected == result.exit_code, result.output
    if expected in {2, 4}:
        assert ("", True) == (result.stdout, result.stderr.startswith("error: "))


@pytest.mark.parametrize("word", ["ls", "show", "replay", "audit", "verify", "doctor", "export", "tail", "diff"])
def test_reading_makes_no_store(tmp_path, word):
    """A command that reads exits with 75 where no store is, and makes none."""
    path = tmp_path / "none.db"
    words = {"show": ["r"], "replay": ["r"], "export": ["r"], "diff": ["r", "s"]}.get(word, [])
    result = run(str(path), word, *words)
    assert (75, []) == (result.exit_code, list(tmp_path.iterdir()))
    assert "runjournal demo" in result.stderr


def test_not_a_store(tmp_path):
    """A file of another kind is refused with 75 and left as it was."""
    path = tmp_path / "other.db"
    path.write_text("not ours, not even a database\n" * 50, encoding="utf-8")
    before = path.read_bytes()
    assert (75, before) == (run(str(path), "ls").exit_code, path.read_bytes())


@pytest.mark.parametrize("words", [["show", "nope"], ["show"], ["ls", "--nope"], ["nope"], ["show", "@what"]])
def test_errors_as_json(db, words):
    """With -o json an error is one JSON object on stderr."""
    result = run(db, *words, "-o", "json")
    assert "" == result.stdout
    assert {"code", "message"} == set(json.loads(result.stderr)["error"])


def test_unexpected_error(db, monkeypatch):
    """What nobody expected is one line and exit 1; RUNJOURNAL_DEBUG=1 shows where."""

    def broken(*_args, **_more):
        raise ZeroDivisionError(HOSTILE)

    monkeypatch.setattr(Logbook, "runs", broken)
    quiet, loud = run(db, "ls"), run(db, "ls", env={"RUNJOURNAL_DEBUG": "1"})
    assert (1, 1, 1) == (quiet.exit_code, loud.exit_code, quiet.stderr.count("\n"))
    assert ("Traceback" in quiet.stderr, "Traceback" in loud.stderr) == (False, True)
    assert [] == [char for char in quiet.stderr + loud.stderr if char in HARMFUL]


# --- hostile content -----------------------------------------------------------------------------------------------

VIEWS = [
    ["ls"], ["show", "alpha-2"], ["show", "alpha-2", "--events", "--full"], ["show", "alpha-2", "--calls"],
    ["show", "alpha-2", "--messages", "--full"], ["replay", "alpha-2"], ["diff", "alpha-1", "alpha-2"],
    ["audit"], ["verify"],
    ["tail"], ["export", "alpha-2"], ["db", "info"], ["checkpoint", "ls", "alpha-2"],
]  # fmt: skip


@pytest.mark.requirement("R140")
@pytest.mark.parametrize("output", ["table", "json", "jsonl"])
@pytest.mark.parametrize("words", VIEWS, ids="-".join)
def test_hostile_content(db, words, output):
    """Whatever was logged, no view and no format gives a terminal anything but text."""
    result = run(db, *words, "-o", output)
    assert result.exit_code in {0, 3}, result.output
    assert [] == [char for char in result.stdout + result.stderr if char in HARMFUL]


@pytest.mark.parametrize(
    "words",
    [
        ["show", HOSTILE],
        ["import", "claude-code", HOSTILE.replace("/", "")],
        ["ls", "--since", HOSTILE],
        [HOSTILE],
        ["--color", HOSTILE, "ls"],
    ],
)
def test_hostile_arguments(db, words):
    """Arguments come back in errors without acting on the terminal."""
    result = run(db, *words)
    assert 0 != result.exit_code
    assert [] == [char for char in result.stdout + result.stderr if char in HARMFUL]


# --- export and import ---------------------------------------------------------------------------------------------


def test_round_trip(db, tmp_path):
    """An export, imported into another store, has the same hashes; a second import adds nothing."""
    exported = run(db, "export", "--all").stdout
    other = str(tmp_path / "other.db")
    first = run(other, "import", "jsonl", "-", "-o", "json", stdin=exported)
    again = run(other, "import", "jsonl", "-", "-o", "json", stdin=exported)
    assert ([11, 7], [0, 0]) == tuple([each["events_added"] for each in json.loads(r.stdout)] for r in (first, again))
    assert (0, 0) == (first.exit_code, again.exit_code)
    assert loaded(db, "verify") == loaded(other, "verify")
    assert exported == run(other, "export", "--all").stdout


def test_export_to_a_file(db, tmp_path):
    """`--to` writes a new file and never over an old one."""
    target = tmp_path / "out.jsonl"
    assert 0 == run(db, "export", "alpha-1", "--to", str(target)).exit_code
    before = target.read_bytes()
    assert (1, before) == (run(db, "export", "alpha-2", "--to", str(target)).exit_code, target.read_bytes())


def test_damaged_export(db, tmp_path):
    """An export with a changed line is refused whole."""
    exported = run(db, "export", "alpha-1").stdout.replace("hello", "hullo")
    other = str(tmp_path / "other.db")
    assert 1 == run(other, "import", "jsonl", "-", stdin=exported).exit_code
    assert [] == loaded(other, "ls")


def record(text, number):
    return json.dumps({"type": "user", "uuid": f"u{number}", "sessionId": "s-1", "timestamp": "2026-01-02T03:04:05Z",
                       "message": {"role": "user", "content": text}}) + "\n"  # fmt: skip


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (record("a", 1) + record("b", 2), 0),
        (record("a", 1) + '{"torn', 0),
        (record("a", 1) + "{broken\n" + record("b", 2), 3),
        ("{broken\n", 1),
        ("", 1),
    ],
)
def test_import_claude_code(tmp_path, content, expected):
    """Importing a transcript: 0 also with a torn end, 3 with lines in quarantine, 1 if nothing came in."""
    (tmp_path / "s-1.jsonl").write_text(content, encoding="utf-8")
    path = str(tmp_path / "runs.db")
    first, again = (run(path, "import", "claude-code", str(tmp_path), "-o", "json") for _ in range(2))
    assert (expected, expected) == (first.exit_code, again.exit_code)
    (found,) = json.loads(first.stdout)
    assert {"run_id", "path", "events_added", "quarantined"} <= set(found)
    assert (expected != 1, 0) == (found["events_added"] > 0, json.loads(again.stdout)[0]["events_added"])
    if expected == 3:
        assert [2] == [each["line"] for each in found["quarantined"]]
        shown = loaded(path, "show", "s-1")
        assert ("imported", str(tmp_path / "s-1.jsonl")) == (shown["status"], shown["path"])


# --- help and environment ------------------------------------------------------------------------------------------


def test_help_names_every_command():
    """The help names each command by section, examples first."""
    shown = CliRunner().invoke(cli, ["--help"]).stdout
    assert [] == [name for section in COMMANDS.values() for name in section if f"\n  {name} " not in shown]
    assert shown.index("Examples:") < shown.index("Begin:") < shown.index("Options:")


@pytest.mark.parametrize("name", [name for section in COMMANDS.values() for name in section])
def test_help_of_a_command(name):
    """Each command's help shows examples and the shared options."""
    result = CliRunner().invoke(cli, [name, "--help"])
    assert 0 == result.exit_code
    assert all(expected in result.stdout for expected in ("Examples:", "--db", "--output"))
    assert COMMANDS_BY_NAME[name]


COMMANDS_BY_NAME = {name: text for section in COMMANDS.values() for name, (_, text) in section.items()}


def test_environment(db):
    """RUNJOURNAL_DB and RUNJOURNAL_OUTPUT stand in for options, and options beat them."""
    env = {"RUNJOURNAL_DB": db, "RUNJOURNAL_OUTPUT": "json"}
    assert 2 == len(json.loads(CliRunner().invoke(cli, ["ls"], env=env).stdout))
    assert 75 == CliRunner().invoke(cli, ["ls", "--db", "/no/such.db"], env=env).exit_code
    assert CliRunner().invoke(cli, ["ls", "-o", "table"], env=env).stdout.startswith("RUN")


@pytest.mark.parametrize(
    ("words", "env", "expected"),
    [
        ([], {}, False),
        (["--color", "always"], {}, True),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
    ],
)
def test_color(db, words, env, expected):
    """Colour follows the option, then NO_COLOR and FORCE_COLOR, then the terminal."""
    env = {"NO_COLOR": "", "FORCE_COLOR": "", **env}
    assert expected is ("\x1b[" in run(db, "ls", *words, env=env).stdout)


def test_tail(db):
    """`tail` shows the newest events, of the store or of a run."""
    found = [json.loads(row) for row in run(db, "tail", "alpha-1", "-n", "2", "-o", "json").stdout.splitlines()]
    assert ["step.completed", "run.completed"] == [each["type"] for each in found]


def test_backup(db, tmp_path):
    """`db backup` makes a store with the same runs, and never over another file."""
    target = str(tmp_path / "copy.db")
    assert 0 == run(db, "db", "backup", target).exit_code
    assert loaded(db, "verify") == loaded(target, "verify")
    assert 0 != run(db, "db", "backup", target).exit_code


def test_checkpoints(tmp_path):
    """Snapshots are listed, shown and dropped; nothing but them changes."""
    path = str(tmp_path / "c.db")
    fill(path)
    before = loaded(path, "replay", "alpha-1")
    assert [None] == list({each["problem"] for each in loaded(path, "checkpoint", "ls", "alpha-1")})
    assert 42 == loaded(path, "checkpoint", "show", "alpha-1")["working_memory"]["total"]
    assert 0 == run(path, "checkpoint", "prune", "--all").exit_code
    assert ([], before) == (loaded(path, "checkpoint", "ls", "alpha-1"), loaded(path, "replay", "alpha-1"))
    assert 1 == run(path, "checkpoint", "show", "alpha-1").exit_code


def test_next_commands_reach_the_store(db):
    """What is suggested names the store, if the command line named it."""
    findings = json.loads(run(db, "audit", "alpha-2", "-o", "json").stdout)
    assert {f"runjournal --db {db} "} == {each["next"][: len(f"runjournal --db {db} ")] for each in findings}
