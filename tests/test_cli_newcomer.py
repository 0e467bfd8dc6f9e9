"""What a newcomer stumbled over: names of runs, what sub-agents cost, what is in flight, errors, imports, widths."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from runjournal.cli import output
from runjournal.cli.app import cli
from runjournal.cli.formats import money
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log.limits import inline_value_bytes_max
from runjournal.projections.findings import spoken

SESSION = "0f0f0f0f-1111-4222-8333-444444444444"
OTHER = "0f0f0f0f-9999-4222-8333-444444444444"
AGENT, DEEP, APART = f"{SESSION}.agent-a1b2c3d4", f"{SESSION}.agent-a1ff", "0f0f0f0f-kid"
ARGS = {"text": "pay the invoices " * 60 + "END"}


def imported(kind="claude-code", parent=None):
    return e.RunImported(kind=kind, source="claude-code", tool="claude-code", sha256="0" * 64, parent_run_id=parent)


def asked(call_id, tokens, cost=None):
    usage = {"input": tokens, "output": 0, "cache_read": 0, "cache_write": 0}
    spent = {"amount": cost, "currency": "USD", "source": "reported"} if cost else None
    return [e.ModelStarted(call_id, "claude", "h", 1), e.ModelCompleted(call_id, 1, {}, usage, spent)]


@pytest.fixture
def db(tmp_path):
    """A session with two sub-agents and one below those; a model call and a tool call of it are in flight."""
    path = str(tmp_path / "s.db")
    with Journal.open(path, by="import:t") as journal:
        send = e.ToolStarted("c1", "send", ARGS, "unsafe", read_only=False, on_unknown="ask", attempt=1)
        opened = e.ModelStarted("m2", "claude", "h", 1)
        journal.append(SESSION, [imported(), *asked("m1", 1000, "0.10"), send, opened])
        journal.append(AGENT, [imported("claude-code.sub-agent", SESSION), *asked("m1", 2000, "0.250")])
        journal.append(DEEP, [imported("claude-code.sub-agent", AGENT), *asked("m1", 400)])
        journal.append(APART, [imported("claude-code.sub-agent", SESSION)])
    return path


def run(db, *words, env=None):
    return CliRunner().invoke(cli, ["--db", db, *words], env=env)


def loaded(db, *words):
    result = run(db, *words, "-o", "json")
    assert 0 == result.exit_code, result.output
    return json.loads(result.stdout)


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0f0f0f0f", SESSION),
        (SESSION[:-1], SESSION),
        (f"{SESSION}.", AGENT),
        (f"{SESSION}.agent-a1b", AGENT),
        ("0f0f.agent-a1b2", AGENT),
        ("0f0f.agent-a1f", DEEP),
    ],
)
def test_a_prefix_of_a_session_is_the_session(db, name, expected):
    """What a session's id and those of its sub-agents begin with names the session; a dot leads to a sub-agent."""
    if name.endswith("."):
        with Journal.open(db) as journal:  # DEEP is below AGENT, APART has another prefix
            assert {AGENT, DEEP} == {head.run_id for head in journal.runs(prefix=name)}
    assert expected == loaded(db, "show", name)["run_id"]


def test_a_prefix_of_several_sessions_is_refused(db):
    """Two sessions that begin alike are several, and only they are named."""
    with Journal.open(db, by="import:t") as journal:
        journal.append(OTHER, [imported()])
    result = run(db, "show", "0f0f0f0f")
    assert 2 == result.exit_code
    assert (True, True, False) == tuple(each in result.stderr for each in (SESSION, OTHER, "agent"))


@pytest.mark.parametrize(
    ("words", "env", "expected"),
    [
        (["--db", "{db}", "show", "nope"], {}, "error: no run 'nope' in {db} (--db); `runjournal --db {db} ls` lists"),
        (["show", "nope"], {"RUNJOURNAL_DB": "{db}"}, "error: no run 'nope' in {db} (RUNJOURNAL_DB); `runjournal ls`"),
        (["ls"], {"RUNJOURNAL_DB": "none.db"}, "error: no store at none.db (RUNJOURNAL_DB); "),
        (["ls"], {"RUNJOURNAL_DB": None}, "error: no store at runjournal.db (the default); "),
    ],
)
def test_errors_name_the_store(db, monkeypatch, words, env, expected):
    """What isn't there is said with the store, and with what has named the store."""
    monkeypatch.chdir(Path(db).parent)
    told = {name: value and value.replace("{db}", db) for name, value in env.items()}
    result = CliRunner().invoke(cli, [each.replace("{db}", db) for each in words], env=told)
    assert result.stderr.startswith(expected.replace("{db}", db)), result.stderr


# --- cost ------------------------------------------------------------------------------------------------------------


def test_sub_agents_cost(db):
    """`show` says what the runs below have cost beside the run's own, and a total."""
    shown = run(db, "show", SESSION).stdout
    assert ["TOTAL", "1", "1,000", "0", "0", "0", "1,000"] in [each.split() for each in shown.splitlines()]
    expected = "3 sub-agents have 2,400 more tokens and 0.25 USD, 3,400 and 0.35 USD with them; runjournal --db "
    assert f"  {expected}{db} ls --parent {SESSION}\n" in shown
    found = {"runs": 3, "tokens": 2400, "cost": {"USD": "0.250"}, "in_flight": 0, "uncounted": 0, "more": False}
    assert found == loaded(db, "show", SESSION)["sub_agents"]
    assert "1 sub-agent has 400 more tokens, 2,400 and 0.25 USD with it; " in run(db, "show", AGENT).stdout
    assert "sub-agent has" not in run(db, "show", DEEP).stdout


def test_many_sub_agents_are_not_all_read(db, monkeypatch):
    """Of very many runs below, some are looked at, and it is said that there are more."""
    monkeypatch.setattr("runjournal.looking.family.family_runs_max", 2)
    assert "2+ sub-agents have at least " in run(db, "show", SESSION).stdout


def test_calls_that_cost_nothing_lack_no_price(tmp_path):
    """What Claude Code has made up itself isn't among the calls without a price."""
    path = str(tmp_path / "s.db")
    made_up = [e.ModelStarted("m9", "<synthetic>", "h", 1), e.ModelCompleted("m9", 1, {})]
    with Journal.open(path, by="import:t") as journal:
        journal.append("r", [imported(), *asked("m1", 10), *made_up])
    assert "  1 call without a price\n" in run(path, "show", "r").stdout


@pytest.mark.parametrize(
    ("text", "places", "expected"),
    [("0.270", None, "0.27"), ("0.5", 4, "0.50"), ("12", None, "12.00"), ("0.0048", None, "0.0048"),
     ("0.00488", 4, "0.0049"), ("1234567.1", 4, "1,234,567.10"), ("1E+3", None, "1,000.00"), ("0", None, "0.00")],
)  # fmt: skip
def test_money(text, places, expected):
    """Money is written in one way everywhere."""
    assert expected == money(text, places)


# --- in flight -------------------------------------------------------------------------------------------------------


def test_open_model_calls_are_in_flight(db):
    """An open model call is in flight for `show`, `ls` and `audit`, which names the command that shows it."""
    shown = run(db, "show", SESSION).stdout
    assert "In flight (2)" in shown
    assert "--calls --models" in shown
    assert ["send", "claude"] == [each["tool"] for each in loaded(db, "show", SESSION)["open_calls"]]
    assert 2 == next(each["in_flight"] for each in loaded(db, "ls") if each["run_id"] == SESSION)
    _, found = (each for each in loaded(db, "audit", SESSION) if each["code"] == "call_open")
    assert found["next"].endswith(f"show {SESSION} --calls --models")


def test_hidden_model_calls_are_counted(db):
    """`show --calls` says how many attempts of model calls it leaves out, and how to see them."""
    assert (
        "left out: 2 attempts of model calls, --models shows them; next: " in run(db, "show", "0f0f", "--calls").stderr
    )
    assert "left out" not in run(db, "show", "0f0f", "--calls", "--models").stderr


def test_args_stand_on_lines_of_their_own(db):
    """The args of a call in flight are wrapped, cut in the end, and whole with --full; exact in both."""
    whole = json.dumps(ARGS)
    short, full = (run(db, "show", SESSION, *words).stdout.splitlines() for words in ((), ("--full",)))
    cut, found = ("".join(_args(lines)) for lines in (short, full))
    assert f"{whole[:600]}… ({len(whole) - 600} characters more: --full)" == cut
    assert whole == found
    assert 96 >= max(map(len, _args(full)))


def _args(lines):
    at = next(number for number, each in enumerate(lines) if each.lstrip().startswith("send"))
    taken = []
    for each in lines[at + 1 :]:
        if not each.startswith("    "):
            break
        taken.append(each.removeprefix("    "))
    return taken


def test_large_args_are_shown_whole(tmp_path):
    """Args that are held out of line are named by their size, and shown with --full."""
    path, args = str(tmp_path / "s.db"), {"text": "x" * 2 * inline_value_bytes_max}
    with Journal.open(path, by="import:t") as journal:
        send = e.ToolStarted("c1", "send", args, "unsafe", read_only=False, on_unknown="ask", attempt=1)
        journal.append("r", [imported(), send])
    assert "bytes, blob " in run(path, "show", "r").stdout
    assert json.dumps(args) == "".join(_args(run(path, "show", "r", "--full").stdout.splitlines()))


def test_no_messages(db):
    """`show --messages` of a run without any says so."""
    assert f"no messages in {APART}; next: " in run(db, "show", APART, "--messages").stderr


def test_remarks_are_counted(db):
    """An audit that finds nothing wrong counts what it remarks."""
    assert "3 remarks, nothing is wrong\n" == run(db, "audit", SESSION).stderr


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.5, "0.5 s"), (119, "119 s"), (150, "2.5 min"), (7_200, "2.0 h"), (432_000, "5.0 d")],
)
def test_lengths_of_time(seconds, expected):
    """Findings say lengths of time as people do."""
    assert expected == spoken(seconds)


# --- ls on a narrow terminal -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100])
def test_ls_on_a_narrow_terminal(db, monkeypatch, width):
    """At 80 columns ids are shortened to what other commands take, and title, tokens and calls in flight stay."""
    monkeypatch.setattr("runjournal.cli.ls.terminal_width", lambda: width)
    monkeypatch.setattr(output, "terminal_width", lambda: width)
    lines = run(db, "ls").stdout.splitlines()
    assert width >= max(len(each) for each in lines)
    assert {"RUN", "TITLE", "TOKENS", "UPDATED"} <= set(lines[0].split())
    named = {each.split()[0] for each in lines[1:]}
    assert {SESSION, AGENT, DEEP, APART} == {loaded(db, "show", name)["run_id"] for name in named}
    assert 2 == sum("." in name for name in named)
    assert all(each.startswith(" ") for each in lines[1:] if each.split()[0] != "0f0f0f0f")


def test_ls_into_a_pipe(db):
    """Elsewhere ids are whole."""
    assert SESSION in [each.split()[0] for each in run(db, "ls").stdout.splitlines()]


# --- import ----------------------------------------------------------------------------------------------------------


def line(number, **more):
    message = {"role": "user", "content": f"hello {number}"}
    found = {"type": "user", "uuid": f"u{number}", "sessionId": SESSION, "timestamp": f"2026-11-28T09:00:{number:02}Z"}
    return json.dumps(found | {"message": message} | more) + "\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A home with a project of one session."""
    folder = tmp_path / "home" / "project"
    folder.mkdir(parents=True)
    (folder / f"{SESSION}.jsonl").write_text(line(1), encoding="utf-8")
    monkeypatch.setenv("HOME", str(folder.parent))
    return folder


def take(project, *words):
    return run(str(project.parent / "runs.db"), "import", "claude-code", str(project), *words)


def test_a_torn_end_counts_apart(project):
    """Table, sentence, JSON and exit code agree: a torn end isn't a line in quarantine."""
    (project / f"{SESSION}.jsonl").write_text(line(1) + '{"torn', encoding="utf-8")
    result = take(project)
    title, row = result.stdout.splitlines()
    assert ["RUN", "ADDED", "QUARANTINED", "TORN", "FROM"] == title.split()
    assert [SESSION, "2", "0", "1", f"~/project/{SESSION}.jsonl"] == row.split()
    assert "2 events added, 1 run, 0 lines quarantined, 1 torn line left for the next time; next: " in result.stderr
    (found,) = json.loads(take(project, "-o", "json").stdout)
    assert ([], [2], 0) == (found["quarantined"], [each["line"] for each in found["torn"]], result.exit_code)


def test_import_says_what_to_type_next(project):
    """After one run: show it, as @last where that names it; after several: list them."""
    assert take(project).stderr.endswith(" show @last\n")
    with Journal.open(project.parent / "runs.db", by="t") as journal:
        journal.append("newer", [e.RunQueued(kind="demo", input=None)])
    assert take(project).stderr.endswith(f" show {SESSION}\n")
    shutil.copy(project / f"{SESSION}.jsonl", project / "copy.jsonl")
    assert take(project).stderr.endswith(" ls\n")


def test_import_counts_runs_alike(project):
    """A sidechain in a file counts as a run, whether it is new or not."""
    side = line(2, isSidechain=True, agentId="a1", parentUuid=None)
    (project / f"{SESSION}.jsonl").write_text(line(1) + side, encoding="utf-8")
    first, again = take(project), take(project)
    assert (True, True) == tuple(", 2 runs, " in each.stderr for each in (first, again))
    assert [3, 3] == [len(each.stdout.splitlines()) for each in (first, again)]


def test_errors_of_an_import_are_told(project):
    """A file that was left alone has its error behind the table, in a sentence."""
    (project / "none.jsonl").write_text("nothing\n", encoding="utf-8")
    result = take(project)
    assert f"{project}/none.jsonl: no line of it is a JSON object" in result.stderr
    assert ["-", "0", "1", "0", "~/project/none.jsonl"] in [each.split() for each in result.stdout.splitlines()]


def test_workflow(project):
    """What a workflow keeps of its steps is no session, and a time that nobody knows isn't one of 1970."""
    folder = project / SESSION / "subagents" / "workflows" / "w1"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text('{"type": "started", "key": "k"}\n', encoding="utf-8")
    take(project)
    db = str(project.parent / "runs.db")
    (found,) = loaded(db, "ls", "--kind", "claude-code.workflow")
    assert SESSION == found["parent_run_id"]
    for words in (["ls"], ["show", found["run_id"]], ["show", found["run_id"], "--events"], ["tail", found["run_id"]]):
        assert "1970" not in run(db, *words).stdout, words
    assert "-" == run(db, "ls").stdout.splitlines()[-1].split()[-1]
