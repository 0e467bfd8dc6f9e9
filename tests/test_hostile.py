"""Looking at what an enemy wrote: no byte of it acts on the terminal, nothing of it is run, imported or opened."""

import contextlib
import fcntl
import io
import itertools
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
import traceback
from pathlib import Path
from typing import Any

import click
import hostile
import pytest

from runjournal.cli.app import COMMANDS, cli
from runjournal.cli.safe import line

PROGRAMS = Path(__file__).parent / "programs"


def leaves():
    """Every command, by its words, from the group itself: a new one is looked at without being named here."""

    def walk(command, words):
        if not isinstance(command, click.Group):
            return [(words, command)]
        context = click.Context(command)
        found = ((name, command.get_command(context, name)) for name in command.list_commands(context))
        return [leaf for name, each in found if each is not None for leaf in walk(each, (*words, name))]

    return dict(walk(cli, ()))


LEAVES = leaves()

# What to type behind a command so that it shows as much as it can; {file} and {export} are hostile files. A command
# that isn't here gets a run for each argument that it asks for.
SHOWING = {
    "demo": [["--seed", "7", "--db", "{new}"]],
    "import claude-code": [["{file}"], ["{folder}"], ["{nothing}"]],
    "import jsonl": [["{export}"], ["{file}"], ["{nothing}"]],
    "ls": [[], ["--kind", hostile.NAME], ["--tag", f"{hostile.TEXT}=x"]],
    "show": [
        *([run] for run in ("bad-1", "bad-2", "forged", "forged-newer", "bad-1@5", "@last")),
        *([run, "--events", "--full"] for run in ("bad-1", "forged")),
        ["bad-1", "--messages", "--full"],
        ["bad-1", "--calls", "--models"],
    ],
    "replay": [["bad-1"], ["forged", "--force"], ["forged"]],
    "diff": [["bad-1@2", "bad-1"]],
    "tail": [["-n", "100"], ["bad-1"]],
    "audit": [[], ["bad-1"]],
    "verify": [[]],
    "doctor": [[]],
    "export": [["--all"], ["bad-1", "--to", "{new}"], ["bad-1", "--to", "{file}"]],
    "db info": [[]],
    "db backup": [["{new}"], ["{file}"]],
    "db vacuum": [[]],
    "erase": [["bad-1", "--reason", "x", "--yes"]],
    "checkpoint ls": [["bad-1"]],
    "checkpoint show": [["bad-1"]],
    "checkpoint prune": [["--all"]],
    "completion": [["bash"]],
}


def showing(name):
    if name in SHOWING:
        return SHOWING[name]
    command = LEAVES[tuple(name.split())]
    return [["bad-1" for each in command.params if isinstance(each, click.Argument) and each.required]]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    hostile.fill(folder / "plain.db")
    shutil.copyfile(folder / "plain.db", folder / "tampered.db")
    hostile.tamper(folder / "tampered.db")
    return folder


@pytest.fixture
def place(tmp_path, original, monkeypatch):
    """A folder whose name is hostile too, with a store, a transcript and an export; and the working directory."""
    folder = tmp_path / hostile.FILE_NAME
    folder.mkdir()
    shutil.copyfile(original / "plain.db", folder / f"{hostile.FILE_NAME}.db")
    (folder / f"{hostile.FILE_NAME}.jsonl").write_bytes(hostile.transcript())
    (folder / "export.jsonl").write_bytes(hostile.forged())
    monkeypatch.chdir(folder)
    return folder


def in_terminal(words, *, columns=100, **env):
    """The bytes that a command writes to a terminal which passes them on as they are, and its exit code.

    The command runs in a fork of this process: to start an interpreter for each would take minutes.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child, terminal = pty.fork()
    if not child:
        code = 70
        try:
            code = _child(words, columns, env)
        except BaseException:  # noqa: BLE001 - the fork must never go on as pytest
            os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
        finally:
            os._exit(code)
    written = b""
    with contextlib.suppress(OSError):  # the other end has closed
        while piece := os.read(terminal, 65536):
            written += piece
    os.close(terminal)
    return written, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _child(words, columns, env):
    settings = termios.tcgetattr(1)
    settings[1] &= ~termios.OPOST  # so that every \r is the command's own
    termios.tcsetattr(1, termios.TCSANOW, settings)
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        os.environ.pop(name, None)
    os.environ |= {"TERM": "xterm-256color", "PAGER": "cat", **env}
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, mode), encoding="utf-8", errors=errors, write_through=True)
        for number, mode, errors in ((0, "r", "strict"), (1, "w", "strict"), (2, "w", "backslashreplace"))
    )
    try:
        cli.main(words)
    except SystemExit as stop:
        sys.stdout.flush()
        return stop.code or 0


def filled(words, folder, number):
    names = {
        "{file}": f"{hostile.FILE_NAME}.jsonl",
        "{export}": "export.jsonl",
        "{folder}": str(folder),
        "{nothing}": f"none-{hostile.FILE_NAME}",
        "{new}": f"new-{number}-{hostile.FILE_NAME}",
    }
    return [names.get(word, word) for word in words]


FORMATS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "wide table": (["--no-pager"], {"columns": 200}),
    "narrow table": ([], {"columns": 40}),
    "no colour": (["--no-pager"], {"NO_COLOR": "1"}),
    "json": (["-o", "json", "--no-pager"], {}),
    "jsonl": (["-o", "jsonl"], {"columns": 40}),
}


@pytest.mark.parametrize("name", [" ".join(words) for words in LEAVES])
def test_no_command_lets_content_act_on_the_terminal(name, place):
    """Whatever a log, a file or its name holds, no control, bidi or invisible character of it reaches the terminal."""
    numbers = itertools.count()
    for what, (options, terminal) in FORMATS.items():
        for words in showing(name):
            line = [*name.split(), *filled(words, place, next(numbers))]
            if "--db" not in line:
                line += ["--db", f"{hostile.FILE_NAME}.db"]
            written, code = in_terminal([*line, *options], **terminal)
            assert (what, line, []) == (what, line, hostile.harmful(written, color="NO_COLOR" not in terminal))
            assert code in {0, 1, 2, 3, 4, 5, 75}, (what, line, written)
            assert b"RUNJOURNAL_DEBUG=1 shows" not in written, (what, line, written)


@pytest.mark.parametrize("name", [" ".join(words) for words in LEAVES])
def test_errors_show_what_was_typed_harmlessly(name, place):
    """What was typed comes back in an error as visible escapes, also bytes that are no text, with exit code 1 to 75."""
    command = LEAVES[tuple(name.split())]
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    options = [each.opts[0] for each in command.params if isinstance(each, click.Option) and not each.is_flag]
    asks = ["--dry-run"] if any("--yes" in each.opts for each in command.params) else []  # nobody answers here
    wrong = hostile.TEXT.replace("\0", "")
    lines = [
        [wrong] * max(1, len(arguments)),
        ["\udcff\udc9b"] * max(1, len(arguments)),
        [f"--{wrong}"],
        *(
            [*asks, option, wrong, *["bad-1" for each in arguments if each.required]]
            for option in options
            if option != "--db"
        ),
    ]
    for words in lines:
        for more in ([], ["-o", "json"], ["--color", "always"]):
            if "-o" in words and more[:1] == ["-o"]:
                continue
            line = [*name.split(), "--db", f"{hostile.FILE_NAME}.db", *more, *words]
            written, code = in_terminal(line, NO_COLOR="")
            assert (line, []) == (line, hostile.harmful(written, color=True))
            assert code in {0, 1, 2, 3, 4, 5, 75}, (line, written)
            assert b"Traceback" not in written, (line, written)


@pytest.mark.parametrize("name", [" ".join(words) for words in LEAVES if words[0] not in ("import", "demo")])
def test_no_tampered_store_acts_on_the_terminal(name, place, original):
    """A file that was changed behind our back, row by row, is shown harmlessly too, or refused by name."""
    shutil.copyfile(original / "tampered.db", "t.db")
    for number, words in enumerate([*showing(name), *([["bad-2"]] if ["bad-1"] in showing(name) else [])]):
        for more in (["--no-pager"], ["-o", "json"]):
            line = [*name.split(), "--db", "t.db", *filled(words, place, f"{number}{more[0]}"), *more]
            written, code = in_terminal(line)
            assert (line, []) == (line, hostile.harmful(written, color=True))
            assert code in {0, 1, 2, 3, 4, 5, 75}, (line, written)
            assert b"Traceback" not in written, (line, written)


def test_a_name_that_is_no_command(place):
    """A command line without a command that exists is answered harmlessly as well."""
    for words in ([hostile.TEXT], [f"-{hostile.TEXT}"], ["import", hostile.TEXT], ["db", f"--{hostile.TEXT}"]):
        written, code = in_terminal(words)
        assert (2, []) == (code, hostile.harmful(written, color=True))


@pytest.mark.parametrize("name", hostile.CORPUS)
def test_the_scan_sees(name):
    """The scan finds every kind of text of the corpus that is harmful; without that the tests above are blind."""
    harmless = {"marks", "markup", "wide"}
    text = hostile.CORPUS[name].replace("\x1b[31;1m\x1b[0m", "\x1b[31;1m")
    assert (name in harmless) == (not hostile.harmful(text.encode(), color=True))
    assert [] == hostile.harmful(line(text).encode(), color=False)


def test_the_scan_knows_our_colours():
    """The program's own colours pass where colours are on, and only there; raw C1 bytes never do."""
    ours = b"\x1b[1m\x1b[31mbad\x1b[0m"
    assert [] == hostile.harmful(ours, color=True)
    assert [] != hostile.harmful(ours, color=False)
    assert [] != hostile.harmful(b"a\x9b31m", color=True)


def test_every_section_is_walked():
    """The walk over the commands finds at least those that the help lists."""
    assert {name for section in COMMANDS.values() for name in section} == {words[0] for words in LEAVES}


# --- nothing is run ------------------------------------------------------------------------------------------------


def run_reader(place, *words):
    done = subprocess.run(
        [sys.executable, PROGRAMS / "read_hostile.py", *words],
        cwd=place, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


def test_reading_runs_nothing(tmp_path):
    """Reading, folding, auditing and exporting a hostile store imports, runs and opens nothing but the store."""
    found = run_reader(tmp_path, "read")
    assert [] == found["events"]
    assert ["runs.db"] == [name for name in found["files"] if not name.startswith(("warm.db", "runs.db-"))]
    assert {"read", "folded", "replayed", "audited", "exported", "shown"} == set(found["done"])
    assert found["unreadable"] > 0


def test_the_hook_sees(tmp_path):
    """The same hook sees each thing that it is there for; without that the test above is blind."""
    found = run_reader(tmp_path, "control")
    expected = {
        "import", "exec", "compile", "pickle.find_class", "marshal.loads", "os.system", "subprocess.Popen", "open",
        "socket.__new__", "ctypes.dlopen", "os.exec", "os.posix_spawn", "os.remove",
    }  # fmt: skip
    assert expected == {event for event, _ in found["events"]} & expected
