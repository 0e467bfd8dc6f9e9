"""The command line as a process: start-up, pipes that close, terminals, the environment."""

import os
import pty
import subprocess
import sys

import pytest

from runjournal.journal import Journal
from runjournal.log.events import NoteAdded, RunQueued

COMMAND = [sys.executable, "-m", "runjournal.cli"]
HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\u202egnp.exe\x9b31m"


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("cli") / "runs.db")
    with Journal.open(path, by="t") as journal:
        journal.append("long", [RunQueued(kind="k", input=HOSTILE, title=HOSTILE)], expect=0)
        journal.append("long", [NoteAdded(text=HOSTILE * 5) for _ in range(3000)])
    return path


def run(*words, **more):
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=120, check=False, **more)


def in_terminal(*words, **env):
    """What a command writes to a terminal of 80 columns, and its exit code."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(
            COMMAND[0], [*COMMAND, *words], {**os.environ, "TERM": "xterm", "LINES": "24", "COLUMNS": "80", **env}
        )
    written = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other end has closed
            break
        if not piece:
            break
        written += piece
    os.close(terminal)
    return written.decode(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_help_loads_little():
    """`--help` loads click, and neither the store's driver nor eventsourcing, rich or orjson."""
    code = (
        "import sys; from runjournal.cli.app import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: print(sorted({'apsw', 'eventsourcing', 'rich', 'orjson', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "['click']" == done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "words", [["show", "long", "--events"], ["show", "long", "--events", "-o", "jsonl"], ["export", "long"]]
)
def test_closed_pipe(db, words):
    """A reader that goes away ends a command quietly, with the code of SIGPIPE."""
    with subprocess.Popen(
        [*COMMAND, "--db", db, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.readline()
        command.stdout.close()
        said = command.stderr.read()
        code = command.wait(timeout=60)
    assert (141, "") == (code, said)


def test_terminal_gets_no_control_of_the_log(db):
    """On a terminal, with colours, only our own SGR sequences arrive."""
    for words in (["ls"], ["show", "long"], ["show", "long", "--events", "--no-pager"], ["tail", "-n", "30"]):
        written, code = in_terminal("--db", db, *words)
        assert 0 == code
        rest = written.replace("\r\n", "\n")
        for own in ("\x1b[0m", "\x1b[1m", "\x1b[2m", *(f"\x1b[{number}m" for number in range(30, 38))):
            rest = rest.replace(own, "")
        assert [] == [char for char in rest if char in "\x1b\x07\r\u202e\x9b"]


def test_pager(db):
    """Long output on a terminal goes through the pager; one that quits early is no error."""
    written, code = in_terminal("--db", db, "show", "long", "--events", PAGER="head -n 3")
    assert (0, 3) == (code, written.count("run.queued") + written.count("note.added") + written.count("SUMMARY"))


def test_terminal_width(db):
    """No line of a table is wider than the terminal."""
    written, _ = in_terminal("--db", db, "ls", "--color", "never")
    assert [] == [row for row in written.splitlines()[:2] if len(row) > 80]


def test_dumb_terminal(db):
    """TERM=dumb gets no colours."""
    written, _ = in_terminal("--db", db, "ls", TERM="dumb")
    assert "\x1b" not in written


def test_other_encoding(db):
    """A terminal that isn't UTF-8 gets escapes, not an error."""
    done = run("--db", db, "show", "long", env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert (0, "") == (done.returncode, done.stderr)


def test_no_arguments():
    """Without a command the help is shown."""
    done = run()
    assert (0, True) == (done.returncode, "Examples:" in done.stdout)


def test_default_store(tmp_path, db):
    """The store is ./runjournal.db unless --db or RUNJOURNAL_DB names another; --db beats the environment."""
    assert 75 == run("ls", cwd=tmp_path).returncode
    assert 0 == run("ls", cwd=tmp_path, env={**os.environ, "RUNJOURNAL_DB": db}).returncode
    assert 75 == run("--db", "none.db", "ls", cwd=tmp_path, env={**os.environ, "RUNJOURNAL_DB": db}).returncode
    assert [] == list(tmp_path.iterdir())


def test_tail_follows(tmp_path):
    """`tail -f` shows what another process appends, line by line."""
    path = str(tmp_path / "runs.db")
    with Journal.open(path, by="t") as journal:
        journal.append("r", [RunQueued(kind="k", input=1)], expect=0)
        with subprocess.Popen(
            [*COMMAND, "--db", path, "tail", "r", "-f", "-o", "jsonl"], stdout=subprocess.PIPE, text=True
        ) as command:
            assert command.stdout is not None
            assert '"run.queued"' in command.stdout.readline()
            journal.append("r", [NoteAdded(text="news")])
            assert '"news"' in command.stdout.readline()
            command.send_signal(2)
            assert 130 == command.wait(timeout=60)


def test_start_up():
    """`--help` loads click and none of the heavy libraries: how long it takes is shown by the benchmarks."""
    script = (
        "import sys; from runjournal.cli.__main__ import main\n"
        "sys.argv = ['runjournal', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'apsw', 'eventsourcing', 'rich', 'orjson'} & {name.split('.')[0] for name in sys.modules}))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "[]" == out.splitlines()[-1]
