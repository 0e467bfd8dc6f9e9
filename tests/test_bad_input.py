"""Every row of docs/reference/errors.md: the exit code, a message with place, expectation and remedy, nothing written.

A row's id is that of its case. Cases of the command line run in a folder of their own, which must be afterwards what it
was before, byte for byte.
"""

import contextlib
import ctypes
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import hostile
import pytest
from click.testing import CliRunner

from runjournal import Mistake, Retry, RunWaiting, StepFailed, by_command, tool
from runjournal.cli.app import cli
from runjournal.engine.failures import KindDiffers, NotAChild
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log import limits, sqlite
from runjournal.log.base import Event
from runjournal.log.clock import FakeClock, SystemClock
from runjournal.log.errors import (
    InvalidArgument,
    JournalError,
    MissingBlob,
    NotAllowed,
    NotNewest,
    Purged,
    ResumePointUsed,
    RunNotFound,
    StoreBusy,
    StoreFull,
    StoreReplaced,
    StoreUnavailable,
    TooLarge,
    Unstorable,
    WrongExpectation,
)
from runjournal.log.memory import MemoryStore
from runjournal.log.sqlite import SQLiteStore
from runjournal.testing import World, crash_points

DOCUMENT = Path(__file__).parent.parent / "docs" / "reference" / "errors.md"
ROW = re.compile(r"^\| (B\d+) \|(.*)\|$", re.MULTILINE)
STORE = "runs.db"
SESSION = "0198f3aa-0000-4000-8000-000000000000"


def export_lines() -> list[bytes]:
    """An export of one run: header, two events, end."""
    first = {"v": 1, "at": "2026-01-01T00:00:00.000000Z", "by": "x", "epoch": 0, "step": None}
    rows = [
        ("run.queued", first | {"data": {"kind": "k", "input": 1}}),
        ("note.added", first | {"data": {"text": "a"}}),
    ]
    return hostile.export_of(hostile.chained("from-elsewhere", rows)).splitlines(keepends=True)


def said(number: int, text: str) -> dict[str, Any]:
    """A line of a transcript."""
    message = {"role": "user", "content": text}
    return {"type": "user", "sessionId": SESSION, "uuid": f"u{number}", "message": message,
            "timestamp": f"2026-01-01T00:00:{number:02}.000Z"}  # fmt: skip


def transcript(*lines: bytes) -> bytes:
    """A good line, these, and another good one."""
    good = (json.dumps(said(number, "hello")).encode() for number in (1, 2))
    return b"\n".join([next(good), *lines, next(good)]) + b"\n"


def in_line(number: int, change: Callable[[bytes], bytes]) -> Callable[[], None]:
    """Write the export `e.jsonl`, one of its lines changed."""

    def make() -> None:
        lines = export_lines()
        lines[number - 1] = change(lines[number - 1])
        Path("e.jsonl").write_bytes(b"".join(lines))

    return make


def file(name: str, content: bytes) -> Callable[[], None]:
    """Write a file."""

    def make() -> None:
        Path(name).write_bytes(content)

    return make


def nothing() -> None:
    """Nothing to prepare."""


def another_tool() -> None:
    connection = apsw.Connection("tool.db")
    connection.execute("CREATE TABLE a (b); INSERT INTO a VALUES (1)")
    connection.close()


def header(offset: int, value: int) -> Callable[[], None]:
    """Change a number in the header of the store."""

    def make() -> None:
        with Path(STORE).open("r+b") as opened:
            opened.seek(offset)
            opened.write(value.to_bytes(4, "big"))

    return make


def endless() -> None:
    """Put a view without end in the place of a table."""
    connection = apsw.Connection(STORE)
    connection.execute("DROP TABLE runs; CREATE VIEW runs AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 "
                       "FROM r) SELECT x AS run_id FROM r")  # fmt: skip
    connection.close()


def damaged() -> None:
    os.truncate(STORE, 5000)


def imported() -> None:
    """Bring the export in, so that it is there already; then change it."""
    Path("e.jsonl").write_bytes(b"".join(export_lines()))
    assert 0 == run("import", "jsonl", "e.jsonl").exit_code
    first = {"v": 1, "at": "2026-01-01T00:00:00.000000Z", "by": "x", "epoch": 0, "step": None}
    other = hostile.chained("from-elsewhere", [("run.queued", first | {"data": {"kind": "other", "input": 1}})])
    Path("e.jsonl").write_bytes(hostile.export_of(other))


def lives_here() -> None:
    """An export of a run that goes on in this store, longer than it is here."""
    with Journal.open("other.db", by="t") as journal, Journal.open(STORE, by="t") as here:
        batch = journal.batch("r", [e.RunQueued(kind="k", input=1)], expect=0)
        here.append(batch)
        journal.append(batch)
        journal.append("r", [e.NoteAdded("more")])
    result = CliRunner().invoke(cli, ["--db", "other.db", "export", "r", "--to", "e.jsonl"])
    assert 0 == result.exit_code


def no_birth() -> None:
    row = hostile.chained("r", [("x.os.system", {"v": 1})])
    Path("e.jsonl").write_bytes(hostile.export_of(row))


def shrunk() -> None:
    """A transcript that was imported and is then cut."""
    name = Path(f"{SESSION}.jsonl")
    name.write_bytes(transcript())
    assert 0 == run("import", "claude-code", str(name)).exit_code
    name.write_bytes(b"")


def changed() -> None:
    """A transcript that was imported and is then changed."""
    shrunk()
    Path(f"{SESSION}.jsonl").write_bytes(transcript().replace(b'"u2"', b'"u9"'))


@dataclass(frozen=True)
class Case:
    """A row: its id, the command, its exit code, what the message says (parts of it), what there is before.

    `new`: the command names a store that isn't there, and must not make one. `ok`: something may be written.
    """

    id: str
    words: tuple[str, ...]
    code: int
    says: tuple[str, ...]
    make: Callable[[], None] = nothing
    new: bool = False
    ok: bool = False


def case(id: str, words: str, code: int, *says: str, make: Callable[[], None] = nothing, **more: bool) -> Case:
    """A row whose command has no spaces in its words."""
    return Case(id, tuple(words.split()), code, says, make, **more)


BIG = str(2**64)
SPLIT = b'{"runjournal":1'
CASES = [
    # The store.
    case("B01", "--db none.db ls", 75, "no store at none.db", "--db or RUNJOURNAL_DB names another"),
    case("B02", "--db . ls", 75, "{cwd} is a directory", "name a file in it"),
    case("B03", "--db bin ls", 75, "bin is not a SQLite database", "not touched",
         make=file("bin", bytes(range(256)) * 9)),
    case("B04", "--db tool.db ls", 75, "tool.db is a SQLite database of another tool", "not touched",
         make=another_tool),
    case("B05", "--db empty ls", 75, "empty is empty, expected a store", "name another file", make=file("empty", b"")),
    case("B06", "ls", 75, "runs.db is damaged", "restore a backup", make=damaged),
    case("B07", "ls", 75, "runs.db has schema 99", "schemas up to", "update runjournal", make=header(60, 99)),
    case("B08", "--db /dev/null ls", 75, "/dev/null is a special file", "name a file"),
    case("B09", "--db none/x.db import jsonl e.jsonl", 75,
         "none/x.db: can't be made: No such file or directory", "check the path",
         make=file("e.jsonl", b"".join(export_lines()))),
    Case("B10", ("--db", "x\udcff.db", "import", "jsonl", "e.jsonl"), 2, ("expected UTF-8", "\\udcff", "rename it"),
         file("e.jsonl", b"".join(export_lines()))),
    case("B11", "--db postgresql://h/d ls", 2, "PostgreSQL store isn't part of this version", "use a path"),
    case("B19", "ls", 75, "runs.db: the table runs is a view", "restore a backup", make=endless, ok=True),
    # Names and options.
    case("B20", "show none", 4, "no run 'none' in runs.db (--db)", "`runjournal --db runs.db ls` lists"),
    case("B21", "show ../x", 2, "run id '../x'", "expected 1 to 128 characters of A-Z"),
    case("B22", "show alpha", 2, "begins the ids of several runs: alpha-2, alpha-1", "type more of it"),
    case("B23", "show alpha-1@99", 2, "run alpha-1 has the events 1 to 2, got @99"),
    case("B24", "show @first", 2, "expected @last or @last-failed, got @first"),
    case("B25", f"replay alpha-1 --at {BIG}", 2, "run alpha-1 has the events 1 to 2", BIG),
    case("B26", f"show alpha-1 --events --from {BIG}", 2, "expected a seq from 0 to 9223372036854775807"),
    case("B27", "ls --kind \udcff", 2, "kind: expected text that is UTF-8", "\\udcff"),
    case("B28", f"checkpoint prune alpha-1 --seq {BIG}", 2, "seq: expected one from 0 to 9223372036854775807"),
    case("B29", "shwo", 2, "no command 'shwo'", "did you mean show?"),
    case("B30", "checkpoint", 2, "Usage: runjournal checkpoint", "prune"),
    case("B31", "ls -o xml", 2, "'xml' is not one of 'table', 'json', 'jsonl'", "help: runjournal ls --help"),
    case("B32", "ls --status gone", 2, "status: expected one of queued, running", "got 'gone'"),
    case("B33", "ls --tag team", 2, "--tag: expected KEY=VALUE, got team"),
    case("B34", "ls --since soon", 2, "--since: expected 30m, 2h, 3d or a date", "got soon"),
    case("B36", "cancel @last", 2, "expected the whole id of a run, got @last; if you mean alpha-", ", type that"),
    case("B37", "run --agent nowhere:report", 2, "--agent: no module nowhere in ", ", nor on Python's path"),
    case("B38", "signal alpha-1 paid --payload {1", 2, "'--payload': expected JSON, got {1 (", "quotes of its own"),
    # An export, read.
    case("B40", "--db new.db import jsonl none", 1, "none: No such file or directory", "check the path", new=True),
    case("B41", "--db new.db import jsonl .", 1, ".: Is a directory", "expected a file", new=True),
    case("B42", "--db new.db import jsonl bin", 1, "bin, line 1: expected the header", "`runjournal export`",
         make=file("bin", os.urandom(9000)), new=True),
    case("B43", "--db new.db import jsonl s.jsonl", 1, "s.jsonl, line 1: expected the header",
         "`runjournal import claude-code`", make=file("s.jsonl", transcript()), new=True),
    case("B44", "--db new.db import jsonl e.jsonl", 1, "e.jsonl, line 3: not valid JSON", "export the runs again",
         make=in_line(3, lambda each: each[:40] + b"\n"), new=True),
    case("B45", "--db new.db import jsonl e.jsonl", 1, "e.jsonl, line 3: expected seq as a whole number",
         make=in_line(3, lambda each: each.replace(b'"seq":2', b'"seq":"2"')), new=True),
    case("B46", "--db new.db import jsonl e.jsonl", 1, "e.jsonl, line 3: not valid JSON",
         make=in_line(3, lambda each: each.replace(b'"seq":2', b'"seq":NaN')), new=True),
    case("B47", "--db new.db import jsonl e.jsonl", 1, "e.jsonl, line 3: expected seq as a whole number",
         make=in_line(3, lambda each: each.replace(b'"seq":2', b'"seq":' + BIG.encode())), new=True),
    case("B48", "--db new.db import jsonl e.jsonl", 1, "e.jsonl, line 3: not valid JSON", "surrogate",
         make=in_line(3, lambda each: each.replace(b"note.added", b"\\ud800")), new=True),
    case("B49", "--db new.db import jsonl e.jsonl", 1, "e.jsonl, line 3: not valid JSON: depth limit exceeded",
         make=in_line(3, lambda _: b'{"a":' * 70_000 + b"1" + b"}" * 70_000 + b"\n"), new=True),
    case("B50", "--db new.db import jsonl e.jsonl", 1, "e.jsonl, line 3: a key of the object comes twice",
         make=in_line(3, lambda each: each.replace(b'"seq":2', b'"seq":2,"seq":2')), new=True),
    case("B51", "--db new.db import jsonl e.jsonl", 1, "e.jsonl, line 4: the file is cut", "its last line should say",
         make=file("e.jsonl", b"".join(export_lines()[:-1])), new=True),
    case("B52", "import jsonl e.jsonl", 1, "e.jsonl, line 3: the event has another hash than its line says",
         "nothing was imported", make=in_line(3, lambda each: each.replace(b'a\\"}', b'b\\"}'))),
    case("B54", "--db new.db import jsonl /dev/zero", 1, "/dev/zero, line 1: expected the header", new=True),
    case("B55", "import jsonl e.jsonl", 2, "e.jsonl: run r begins with 'x.os.system'", "expected run.queued",
         make=no_birth),
    case("B56", "import jsonl e.jsonl", 5, "run from-elsewhere: its event 1", "import into another store",
         make=imported),
    case("B57", "import jsonl e.jsonl", 2, "run r lives in this store", "import into another store", make=lives_here),
    # A transcript, read.
    case("B60", "--db new.db import claude-code none", 1, "none", "No such file or directory: expected a file",
         new=True),
    case("B61", "--db new.db import claude-code .", 1, "no *.jsonl files there", "~/.claude/projects", new=True),
    case("B62", "--db new.db import claude-code bin", 1, "bin", "no line of it is a JSON object; expected",
         make=file("bin", bytes(range(128, 256)) * 9), new=True),
    case("B63", "--db new.db import claude-code e.jsonl", 1, "e.jsonl", "`runjournal import jsonl` takes it",
         make=file("e.jsonl", b"".join(export_lines())), ok=True),
    case("B64", "import claude-code s.jsonl", 3, "s.jsonl:2: not valid JSON: ", "1 line quarantined",
         make=file("s.jsonl", transcript(b'{"a": }')), ok=True),
    case("B65", "import claude-code s.jsonl", 0, "0 lines quarantined", make=file("s.jsonl", transcript(
         *(json.dumps(said(9, "x") | {"odd": "@"}).encode().replace(b'"@"', odd) for odd in (
             b"NaN", BIG.encode(), b'"\\ud800"', b"[" * 65 + b"]" * 65)))), ok=True),
    case("B66", "import claude-code s.jsonl", 3, "s.jsonl:2: a key of an object comes twice",
         make=file("s.jsonl", transcript(b'{"type":"user","type":"assistant"}')), ok=True),
    case("B58", "import claude-code s.jsonl", 3, "s.jsonl:2: nested deeper than transcript_depth_max = 500",
         make=file("s.jsonl", transcript(b"[" * 900 + b"]" * 900)), ok=True),
    case("B59", "import claude-code s.jsonl", 3, "s.jsonl:2: more values than transcript_values_max = 250000",
         make=file("s.jsonl", transcript(b"[" + b"[]," * 500_000 + b"1]")), ok=True),
    case("B68", f"import claude-code {SESSION}.jsonl", 1, f"{SESSION}.jsonl", "no line of it is a JSON object",
         make=shrunk),
    case("B69", f"import claude-code {SESSION}.jsonl", 1, f"{SESSION}.jsonl", "were changed since they were imported",
         "nothing was added", make=changed),
    # Written elsewhere.
    case("B70", "export alpha-1 --to there", 1, "there: File exists", "name a new file", make=file("there", b"mine")),
    case("B71", "export alpha-1 --to none/x", 1, "none/x: No such file or directory", "check the path"),
    case("B72", "export", 2, "expected one or more RUNs, or --all"),
    case("B73", "db backup there", 2, "there exists", "name a new file", make=file("there", b"mine")),
    case("B74", "db backup none/x", 75, "none/x", "No such file or directory"),
]  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("bad") / STORE
    with Journal.open(path, by="t") as journal:
        for number in (1, 2):
            journal.append(
                f"alpha-{number}", [e.RunQueued(kind="k", input=1), e.NoteAdded("n")][: 3 - number], expect=0
            )
    return path


@pytest.fixture
def here(tmp_path, original, monkeypatch):
    """The working directory: a folder with a store of two runs."""
    shutil.copyfile(original, tmp_path / STORE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNJOURNAL_DB", raising=False)
    return tmp_path


def run(*words: str) -> Any:
    line = words if "--db" in words else ["--db", STORE, *words]
    return CliRunner().invoke(cli, line, prog_name="runjournal")


def files(folder: Path) -> dict[str, bytes]:
    """What a folder holds; SQLite's own side files are there or not."""
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file() and not each.name.endswith(("-wal", "-shm"))
    }


def check(result: Any, code: int, says: tuple[str, ...], cwd: Path) -> None:
    text = result.output
    assert code == result.exit_code, text
    for part in says:
        wanted = part.replace("{cwd}", str(cwd))
        assert any(each in text for each in wanted.split("|")), (wanted, text)
    assert "Traceback" not in text
    assert "RUNJOURNAL_DEBUG" not in text


@pytest.mark.parametrize("row", CASES, ids=lambda row: row.id)
def test_row(row, here):
    """The command ends with the code, the message says where, what was expected and what to do; nothing is written."""
    row.make()
    before = files(here)
    result = run(*row.words)
    check(result, row.code, row.says, here)
    if not row.ok:
        assert before == files(here)
    elif "new.db" in row.words:
        assert [] == json.loads(run("--db", "new.db", "ls", "-o", "json").stdout)


@pytest.mark.parametrize("row", [each for each in CASES if each.code in {1, 2, 4, 5, 75}][::4], ids=lambda row: row.id)
def test_row_as_json(row, here):
    """With JSON output the same error is one object on stderr, with a stable code."""
    row.make()
    result = run(*row.words, *([] if "-o" in row.words else ["-o", "json"]))
    assert row.code == result.exit_code
    if result.stderr.startswith("{"):
        error = json.loads(result.stderr)["error"]
        assert {"code", "message"} == set(error)
        assert re.fullmatch(r"[a-z_]+", error["code"])


# --- the place ---------------------------------------------------------------------------------------------------


def without_rights() -> None:
    """Take root's right to write everywhere from the program that this process is about to become."""
    if not os.getuid():
        ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE


def as_a_user(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user to whom the modes of files apply."""
    if subprocess.run(["test", "-w", STORE], preexec_fn=without_rights, check=False).returncode == 0:
        pytest.skip("modes don't bind this user: read-only places are NOT tested here")
    return subprocess.run(
        [sys.executable, "-m", "runjournal.cli", *words],
        capture_output=True, text=True, timeout=120, check=False, preexec_fn=without_rights,
    )  # fmt: skip


def test_b12_read_only_file(here):
    """B12: a store that can't be written is looked at in a copy; who wants to write is told what to look at."""
    (here / STORE).chmod(0o444)
    before = files(here)
    seen, done = as_a_user("--db", STORE, "ls"), as_a_user("--db", STORE, "cancel", "alpha-1")
    assert (0, 75) == (seen.returncode, done.returncode), (seen.stderr, done.stderr)
    assert f"{STORE} can't be written: this is a copy of it, last changed " in seen.stderr
    assert f"{STORE}: " in done.stderr
    assert "can't be written; check owner and mode" in done.stderr
    assert before == files(here)


def test_b13_read_only_folder(here):
    """B13: a folder in which no store can be made is refused by name; where only SQLite's own files can't, look on."""
    (here / "e.jsonl").write_bytes(b"".join(export_lines()))
    (here / STORE).chmod(0o444)
    here.chmod(0o555)
    before = files(here)
    try:
        made = as_a_user("--db", "new.db", "import", "jsonl", "e.jsonl")
        (here / STORE).chmod(0o644)
        opened = subprocess.run(
            [sys.executable, "-m", "runjournal.cli", "--db", STORE, "ls"],
            capture_output=True, text=True, timeout=120, check=False, preexec_fn=without_rights,
        )  # fmt: skip
    finally:
        here.chmod(0o755)
    assert (75, 0) == (made.returncode, opened.returncode), (made.stderr, opened.stderr)
    assert "new.db: can't be made: Permission denied; check owner and mode of the folder" in made.stderr
    assert f"{STORE} can't be written: this is a copy of it" in opened.stderr
    assert before == files(here)


def test_b18_lost_store(here):
    """B18: once its file is deleted, moved or replaced, an open store acknowledges nothing more."""
    with Journal.open(STORE) as journal:
        Path(STORE).rename("elsewhere.db")
        with pytest.raises(
            StoreReplaced, match=r"runs\.db isn't the file that this process has open.*nothing was written"
        ):
            journal.append("alpha-1", [e.NoteAdded("lost")])
    assert not Path(STORE).exists()


def test_b35_row_that_cant_be_read(here):
    """B35: a row of the table runs that can't be read is told by its id, the others are listed."""
    connection = apsw.Connection(STORE)
    connection.execute("UPDATE runs SET tags = '{' WHERE run_id = 'alpha-1'")
    connection.close()
    result = run("ls")
    assert 3 == result.exit_code
    assert "alpha-2" in result.stdout
    assert "the row alpha-1 of table runs can't be read (tags isn't JSON of names and texts)" in result.stderr


@pytest.mark.requirement("R23")
def test_b14_locked_store(here, monkeypatch):
    """B14: while another process holds the write lock, a writer waits, then says so; a reader isn't hindered."""
    monkeypatch.setitem(SQLiteStore.__init__.__kwdefaults__, "busy_wait_s", 0.1)
    code = (
        "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.execute('BEGIN IMMEDIATE')\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert "held\n" == holder.stdout.readline()
        before = files(here)
        check(run("checkpoint", "prune", "--all"), 75, ("runs.db: another process holds the lock", "try again"), here)
        assert 0 == run("ls").exit_code
        with Journal.open(STORE, by="t") as journal, pytest.raises(StoreBusy):
            journal.append("alpha-1", [e.NoteAdded("x")])
        assert before == files(here)
        holder.communicate("")
    with Journal.open(STORE, by="t") as journal:
        assert 3 == len(journal.append("alpha-1", [e.NoteAdded("x")])) + 2


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of two megabytes; skips loudly where none can be had."""
    folder.mkdir()
    mounted = (
        not os.getuid()
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], check=False, capture_output=True
        ).returncode
    )
    if not mounted:
        pytest.skip("no small disk can be mounted here: a full disk is tested by RLIMIT_FSIZE alone")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.requirement("R23")
def test_b15_full_disk(tmp_path):
    """B15: on a full disk nothing is acknowledged that isn't there, the rest is readable, and it goes on afterwards."""
    with small_disk(tmp_path / "disk") as disk:
        with Journal.open(disk / STORE, by="t") as journal:
            journal.append("r", [e.RunQueued(kind="k", input=1)], expect=0)
            (disk / "ballast").write_bytes(bytes(200_000))
            acknowledged, refused = 1, ""
            while not refused and acknowledged < 200:
                try:
                    journal.append("r", [e.NoteAdded("x" * 40_000)])
                    acknowledged += 1
                except StoreFull as error:
                    refused = str(error)
            assert (
                f"{disk}/{STORE}: the disk or a quota is full; nothing was written, make room and try again" == refused
            )
            assert acknowledged == len(list(journal.events("r")))
            (disk / "ballast").unlink()
            journal.append("r", [e.NoteAdded("after")])
        assert 0 == run("--db", str(disk / STORE), "verify").exit_code
        # An export that doesn't fit leaves nothing behind.
        with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(bytes(4096)):
                pass
        result = run("--db", str(disk / STORE), "export", "r", "--to", str(disk / "e.jsonl"))
        assert 75 == result.exit_code or "No space left on device; make room" in result.output
        assert not (disk / "e.jsonl").exists()


def test_b75_export_over_the_limit_of_a_file(here):
    """B75: an export that can't be written whole is an error by name, and leaves no half of it."""
    with Journal.open(STORE, by="t") as journal:
        journal.append("alpha-1", [e.NoteAdded("x" * 50_000) for _ in range(20)])

    def limit() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000))

    done = subprocess.run(
        [sys.executable, "-m", "runjournal.cli", "--db", STORE, "export", "--all", "--to", "e.jsonl"],
        capture_output=True, text=True, timeout=60, check=False, preexec_fn=limit,
    )  # fmt: skip
    assert 1 == done.returncode, done.stderr
    assert "File too large; the file would grow over a limit" in done.stderr
    assert not Path("e.jsonl").exists()


def test_b16_older_engine(here, monkeypatch):
    """B16: an engine with a known fault is refused before the file is touched."""
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.40.1")
    before = files(here)
    check(run("ls"), 75, ("SQLite 3.40.1", "expected 3.51.3 or newer", "update apsw"), here)
    assert before == files(here)


def test_b17_network_file_system(here, monkeypatch):
    """B17: a network file system is refused before anything is made on it, for readers and writers."""
    monkeypatch.setattr(sqlite, "mountinfo", lambda: f"30 22 0:40 / {here} rw - nfs4 host:/x rw")
    before = files(here)
    check(run("ls"), 75, (f"{here}/runs.db lies on nfs4", "use a local disk"), here)
    Path("e.jsonl").write_bytes(b"".join(export_lines()))
    check(run("--db", "new.db", "import", "jsonl", "e.jsonl"), 75, (f"{here}/new.db lies on nfs4",), here)
    assert before | {"e.jsonl": b"".join(export_lines())} == files(here)


# --- lines of 100 MB -------------------------------------------------------------------------------------------------

LINE_BYTES = 100_000_000


def in_little_memory(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command with 640 MB of address space."""
    return subprocess.run(
        [sys.executable, "-m", "runjournal.cli", *words], capture_output=True, text=True, timeout=200, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (640_000_000, 640_000_000)),
    )  # fmt: skip


def test_b53_long_line_of_an_export(here):
    """B53: a line of 100 MB in an export is refused by its number, in bounded memory, and no store is made."""
    lines = export_lines()
    with Path("e.jsonl").open("wb") as opened:
        opened.write(lines[0])
        opened.writelines(b"x" * 1_000_000 for _ in range(LINE_BYTES // 1_000_000))
        opened.write(b"\n" + lines[-1])
    done = in_little_memory("--db", "new.db", "import", "jsonl", "e.jsonl")
    assert (1, False) == (done.returncode, Path("new.db").exists()), done.stderr
    assert "e.jsonl, line 2: not valid JSON" in done.stderr


@pytest.mark.requirement("R92")
def test_b67_long_line_of_a_transcript(here):
    """B67: a line of 100 MB in a transcript is quarantined unread, in bounded memory; the lines around it come in."""
    good = transcript().splitlines(keepends=True)
    with Path("s.jsonl").open("wb") as opened:
        opened.write(good[0])
        opened.writelines(b"x" * 1_000_000 for _ in range(LINE_BYTES // 1_000_000))
        opened.write(b"\n" + good[1])
    done = in_little_memory("--db", STORE, "import", "claude-code", "s.jsonl")
    assert 3 == done.returncode, done.stderr
    assert f"s.jsonl:2: longer than transcript_line_bytes_max = {limits.transcript_line_bytes_max}" in done.stderr
    with Journal.open(STORE, create=False) as journal:
        kinds = [record.type for record in journal.events(next(journal.runs(prefix="s.")).run_id)]
    assert 2 == kinds.count("message.appended")


@pytest.mark.requirement("R92")
def test_b79_torn_tail(here):
    """B79: a last line that is torn isn't taken; what is before is, and once the line is whole it is added."""
    name = f"{SESSION}.jsonl"
    whole = transcript()
    Path(name).write_bytes(whole[:-20])
    result = run("import", "claude-code", name)
    check(result, 0, (f"{name}:2: torn: the file ends in it",), here)
    assert 2 == len(json.loads(run("show", SESSION, "--events", "-o", "json").stdout))
    Path(name).write_bytes(whole)
    assert 0 == run("import", "claude-code", name).exit_code
    assert 3 == len(json.loads(run("show", SESSION, "--events", "-o", "json").stdout))


# --- values ------------------------------------------------------------------------------------------------------


class Text(str):
    """A subclass of str."""

    __slots__ = ()


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


class Unregistered(Event):
    """An event type that nobody registered."""

    TYPE = "x.unregistered"


# id: what is appended, the error, what its text says.
VALUES: dict[str, tuple[Callable[[], Any], type[JournalError], tuple[str, ...]]] = {
    "B80": (lambda: e.MemorySet("k", {"a": [object()]}), Unstorable, ("$.value.a[0]", "plain JSON value", "object")),
    "B81": (lambda: e.MemorySet("k", [float("nan")]), Unstorable, ("$.value[0]", "a finite number", "nan")),
    "B82": (lambda: e.MemorySet("k", {"n": 2**64}), Unstorable, ("$.value.n", "64 bits", "65 bits")),
    "B83": (lambda: e.MemorySet("k", ["\ud800"]), Unstorable, ("$.value[0]", "valid Unicode", "lone surrogate")),
    "B84": (lambda: e.MemorySet("k", nested(65)), Unstorable, ("$.value[0]", "at most 64 levels of nesting")),
    "B85": (lambda: e.MemorySet("k", {1: 2}), Unstorable, ("$.value", "text as keys", "int")),
    "B86": (lambda: e.MemorySet("k", [Text("a")]), Unstorable, ("$.value[0]", "plain JSON value", "Text")),
    "B87": (Unregistered, InvalidArgument, ("Unregistered is not a registered event type", "register it")),
    "B88": (lambda: e.NoteAdded(5), InvalidArgument, ("text: expected a text, got int 5",)),  # type: ignore[arg-type]
    "B89": (lambda: e.MemorySet("a\0b", 1), InvalidArgument, ("key: expected a name of 1 to 512", "without NUL")),
    "B90": (lambda: e.NoteAdded("a", "x" * 2**20), TooLarge, ("note.added", "may have event_data_bytes_max = 1048576")),
}  # fmt: skip


@pytest.fixture(params=["memory:", STORE])
def journal(request, here):
    with Journal.open(request.param, by="t") as opened:
        opened.append("gone", [e.RunQueued(kind="k", input=1), e.RunCancelled("x")], expect=0)
        opened.purge("gone", reason="old")
        opened.append("r", [e.RunQueued(kind="k", input=1)], expect=0)
        yield opened


@pytest.mark.requirement("R113")
@pytest.mark.parametrize("row", VALUES)
def test_value(row, journal):
    """A value that wouldn't come back equal is refused by its place, with what was expected, and its whole batch."""
    make, kind, says = VALUES[row]
    before = journal.head("r"), journal.store.last_position()
    with pytest.raises(kind) as caught:
        journal.append("r", [e.NoteAdded("the first of the batch"), make()])
    assert [] == [part for part in says if part not in str(caught.value)]
    assert before == (journal.head("r"), journal.store.last_position())


@pytest.mark.requirement("R113")
@pytest.mark.parametrize(
    "value", [1, 1.0, -0.0, True, None, {"a": None}, {}, [], "", "\0", 2**63 - 1, -(2**63), 1e308, nested(63)]
)
def test_what_is_alike_stays_apart(value, journal):
    """1 and 1.0, True, null and missing come back as what they were, type for type; so do the extremes."""
    journal.append("s", [e.RunQueued(kind="k", input=value)], expect=0)
    (record,) = journal.events("s")
    assert (repr(value), type(value)) == (repr(record.event.input), type(record.event.input))


@pytest.mark.parametrize(
    ("row", "call", "kind", "says"),
    [
        ("B91", lambda j: j.append("a b", [e.NoteAdded("x")]), InvalidArgument, ("run id 'a b'", "A-Z a-z 0-9")),
        ("B92", lambda j: j.append("r", [e.NoteAdded("x")], expect=7), WrongExpectation,
         ("at seq 7", "it is at 1", "append again")),
        ("B93", lambda j: j.append("r", [e.NoteAdded("x")] * (limits.append_batch_events_max + 1)), TooLarge,
         ("10001 events", "append_batch_events_max = 10000")),
        ("B94", lambda j: j.append("r", [e.NoteAdded("x")], expect=True), InvalidArgument,
         ("expect: the seq", "got True")),
        ("B95", lambda j: j.append("r", [e.NoteAdded("x")], by="a\x1bb"), InvalidArgument, ("by: ", "printable")),
        ("B96", lambda j: j.replay("r", 2**64), InvalidArgument, ("run r has the events 1 to 1",)),
        ("B97", lambda j: list(j.runs(status=["gone"])), InvalidArgument, ("status: expected one of queued", "'gone'")),
        ("B98", lambda j: j.sql("DELETE FROM events"), InvalidArgument, ()),
        ("B99", lambda j: j.enqueue("k", run_id="t", tags={str(n): "" for n in range(65)}), TooLarge,
         ("65 tags", "tags_max = 64")),
        ("B110", lambda j: j.resume("r"), NotAllowed, ("run r has nothing to resume", "it is queued: run it")),
        ("B111", lambda j: j.retry("r"), NotNewest, ("run r is queued", "a retry takes a run that has ended")),
        ("B112", lambda j: j.signal("r~2", "go"), RunNotFound, ("no run 'r~2'", "`runjournal ls`")),
        ("B113", lambda j: j.enqueue("k", run_id="r~2"), InvalidArgument, ("run id 'r~2'", "characters of A-Z")),
        ("B114", lambda j: j.run(lambda run: 1, run_id="r", kind="other"), KindDiffers,
         ("run r is of the kind", "this agent is 'other'", "kind=")),
        ("B115", lambda j: j.retry("gone"), Purged,
         ("run gone was purged (k, cancelled, 2 events; at ", "for: old")),
        ("B116", lambda j: j.purge("r", reason="x"), NotAllowed, ("run r is queued; nothing was purged", "cancel it")),
        ("B117", lambda _: crash_points(lambda run: 1, how="power cut"), InvalidArgument,  # type: ignore[arg-type]
         ("how: expected one or both of kill, interrupt", "'power cut'")),
        ("B118", lambda _: crash_points(lambda run: 1, at=99), InvalidArgument, ("there are 6 boundaries", "got 99")),
        ("B119", lambda _: World("/"), InvalidArgument, ("/ is a folder", "name one in it")),
        ("B180", lambda j: j.resume("r", point=99), ResumePointUsed,
         ("expected the resume point", "got 99: there is none such", "`runjournal show r`")),
        ("B181", lambda j: j.resume("r", point=0), InvalidArgument, ("point: expected the seq", "from 1, got 0")),
        ("B140", lambda j: j.attach("r", "text", "text/plain"), InvalidArgument, ("expected bytes, got str",)),
        ("B141", lambda j: j.attach("r", b"x", "png"), InvalidArgument, ("media_type: ", "such as image/png")),
        ("B142", lambda j: j.read_blob({"$blob": "0" * 64}), InvalidArgument, ("the reference: bytes is missing",)),
        ("B143", lambda j: j.read_blob({"$blob": "0" * 64, "bytes": 1, "media_type": "image/png"}), MissingBlob,
         ("0" * 64, "restore it from a backup")),
        ("B144", lambda j: j.attach("r", bytes(limits.blob_bytes_max + 1), "image/png"), TooLarge,
         ("268435457 bytes", "blob_bytes_max = 268435456")),
    ],
)  # fmt: skip
def test_call(row, call, kind, says, journal):
    """A call that can't be right is refused with what is allowed and what came, and writes nothing."""
    if row == "B98" and journal.store.url == "memory:":
        pytest.skip("a store in memory has no SQL")
    before = journal.head("r"), journal.store.last_position()
    with pytest.raises(kind) as caught:
        call(journal)
    assert [] == [part for part in says if part not in str(caught.value)]
    assert before == (journal.head("r"), journal.store.last_position())


def test_b184_store_of_another_id(here):
    """B184: a store that has another id than was said is refused, and keeps its own."""
    Journal.open("shop.db", store_id="shop-1").close()
    with pytest.raises(
        JournalError, match=r"shop\.db has the id 'shop-1', expected 'shop-2'; .* leave store_id"
    ) as refused:
        Journal.open("shop.db", store_id="shop-2")
    assert "store_id_differs" == refused.value.code


def test_library_tells_the_place(here):
    """The library's errors name the path as well as the command line's do."""
    for make, words in ((nothing, "none.db"), (another_tool, "tool.db"), (file("empty", b""), "empty")):
        make()
        with pytest.raises(JournalError, match=re.escape(str(here / words))):
            Journal.open(words, create=False)
    with pytest.raises(StoreUnavailable, match="can't be made"):
        SQLiteStore("none/x.db", clock=SystemClock())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([400], ("args: expected an object, by the names", "('cents', 'to'), got list", "leave them out")),
        ("yes", ("got str",)),
        ({"cents": 400, "too": "ada"}, ("'to' was asked about and isn't there", "each as it is or edited")),
    ],
)
def test_b100_approve_with_other_args(args, says):
    """Args that the agent couldn't read are refused before they wake the run; those that it asked for are taken."""

    def agent(run):
        return run.ask("pay", args={"cents": 500, "to": "ada"})

    with Journal.open("memory:") as journal:
        with pytest.raises(RunWaiting) as waiting:
            journal.run(agent, run_id="r")
        question, before = waiting.value.waits[0]["id"], journal.head("r")
        with pytest.raises(InvalidArgument) as caught:
            journal.approve("r", question, args)
        assert [] == [part for part in says if part not in str(caught.value)]
        assert before == journal.head("r")
        journal.approve("r", question, {"cents": 400, "to": "ada", "cc": "bob"})
        assert {"cents": 400, "to": "ada", "cc": "bob"} == journal.run(agent, run_id="r")


def test_b101_ask_without_names():
    """What is asked about has names; else it is a mistake in the code, which ends nothing."""
    with Journal.open("memory:") as journal:
        with pytest.raises(
            InvalidArgument, match="ask 'pay': args is what is asked, by name: expected a dict, got int"
        ):
            journal.run(lambda run: run.ask("pay", args=json.loads("500")), run_id="r")
        assert "queued" == journal.head("r").status


def spawning(**how):
    """Run an agent that begins a child so; return what came of it."""
    with Journal.open("memory:") as journal:
        journal.enqueue("kid", 1, run_id="taken")
        return journal.run(lambda run: run.do("a", lambda: run.spawn(**how)), run_id="r", budget={"usd": "1"})


def kid(run):
    return run.input


async def async_kid(run):
    return run.input


def test_b180_the_id_of_another_run():
    """A child doesn't take the place of a run that is there."""
    with pytest.raises(StepFailed, match="run taken is there, and this run hasn't begun it: give the child another"):
        spawning(agent=kid, run_id="taken")


def test_b181_a_run_that_is_no_child():
    """Only a run that this one has begun is waited for."""
    with Journal.open("memory:") as journal, pytest.raises(NotAChild, match=r"run s is no child .* run\.spawn begins"):
        journal.run(lambda run: run.do("a", lambda: run.wait_child("s")), run_id="r")


def test_b182_an_agent_of_another_kind():
    """A run of threads runs plain functions."""
    with pytest.raises(Mistake, match="a coroutine function, and a run of threads can't run it: let both be the same"):
        spawning(agent=async_kid)


def test_b183_a_budget_over_what_is_left():
    """The child isn't begun."""
    with pytest.raises(StepFailed, match=r"a child wants 2 usd, and the budget of the run has 1 left"):
        spawning(agent=kid, budget={"usd": "2"})


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"choices": []}, "choices is a list of different texts, got []"),
        ({"choices": "card"}, "choices is a list of different texts, got 'card'"),
        ({"choices": ["a", "a"]}, "choices is a list of different texts"),
        ({"choices": ["a"], "args": {"choice": 1}}, "what is chosen comes back as 'choice'"),
        ({"choices": ["a"], "expires_in": 1, "default": "b"}, "default is one of the choices, got 'b'"),
        ({"default": {"cents": 1}}, "give expires_in=, too"),
        ({"expires_in": 0}, "expires_in is a time in seconds, more than none, got 0"),
        ({"expires_in": float("inf")}, "expires_in is a time in seconds, more than none, got inf"),
        ({"expires_in": "1 h"}, "expires_in is a time in seconds, more than none, got '1 h'"),
        ({"expires_in": 1, "default": "card"}, "default is args by name"),
        ({"expires_in": 1, "default": {}}, "the default: cents isn't there"),
        ({"schema": {"euros": {}}}, "schema has a rule for 'euros', which isn't asked about: cents"),
        ({"schema": {"cents": {"exactly": 5}}}, "cents has 'exactly'; it may have type, enum"),
        ({"schema": {"cents": {"type": "int"}}}, "cents: type 'int' is none of string"),
        ({"schema": {"cents": {"enum": []}}}, "cents: enum is a list of what is allowed, got []"),
        ({"schema": {"cents": {"minimum": "1"}}}, "cents: minimum is a number, got '1'"),
        ({"schema": {"cents": {"items": 1}}}, "the rule of cents[] is a dict"),
        ({"schema": {"cents": {"maximum": 4}}}, "doesn't fit its own schema: cents: expected at most 4, got 5"),
        ({"risk": ""}, "a risk"),
        ({"when": 1}, "ask 'pay': when: expected args, reason, risk"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_b160_a_question_that_cannot_be_asked(how, says):
    """It is a mistake in the code, which says what was expected and ends nothing; nobody is asked."""

    def agent(run):
        return run.ask("pay", **{"args": {"cents": 5}, **how})

    def all_agent(run):
        with run.step("a"):
            return run.ask_all([{"action": "pay", "args": {"cents": 5}, **how}])

    for place, each in enumerate([agent, all_agent]):
        with Journal.open("memory:") as journal, pytest.raises(InvalidArgument) as caught:
            journal.run(each, run_id="r")
        assert says in str(caught.value), place


@pytest.mark.parametrize(
    ("args", "choice", "says"),
    [
        (None, None, "choice: none was given; expected one of 'card', 'bank'"),
        (None, "cash", "choice: got 'cash'; expected one of 'card', 'bank'"),
        ({"cents": 6}, "card", "args: cents: expected at most 5, got 6"),
    ],
)
def test_b161_an_answer_that_does_not_fit(args, choice, says):
    """It is refused before it wakes the run, and says what the person could answer."""

    def agent(run):
        return run.ask("pay", args={"cents": 5}, choices=["card", "bank"], schema={"cents": {"maximum": 5}})

    with Journal.open("memory:") as journal:
        with pytest.raises(RunWaiting) as waiting:
            journal.run(agent, run_id="r")
        question, before = waiting.value.waits[0]["id"], journal.head("r")
        with pytest.raises(InvalidArgument) as caught:
            journal.approve("r", question, args, choice=choice)
        assert says in str(caught.value)
        assert before == journal.head("r")


def test_b161_a_choice_where_there_are_none():
    """A question without choices takes none."""
    with Journal.open("memory:") as journal:
        with pytest.raises(RunWaiting) as waiting:
            journal.run(lambda run: run.ask("pay"), run_id="r")
        with pytest.raises(InvalidArgument, match="'card', and this question has no choices: leave it out"):
            journal.approve("r", waiting.value.waits[0]["id"], choice="card")


def test_b162_an_answer_after_its_time():
    """Who answers too late is told until when it could be answered."""
    clock = FakeClock()
    with Journal(MemoryStore(clock=clock)) as journal:
        with pytest.raises(RunWaiting) as waiting:
            journal.run(lambda run: run.ask("pay", expires_in=60), run_id="r")
        asked = waiting.value.waits[0]
        clock.elapsed_s += 60
        with pytest.raises(NotAllowed, match=f"could be answered until {asked['expires_at']}"):
            journal.approve("r", asked["id"])


def hooked(hooks: Any) -> Journal:
    return Journal.open("memory:", on_waiting=hooks)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: hooked(print), "expected a list of functions, got one: put it in [ ]"),
        (lambda: hooked(["ls"]), "expected functions of a Waiting, got 'ls'"),
        (by_command, "expected a command and its arguments, each a text, got ()"),
        (lambda: by_command("ls", 5), "each a text, got ('ls', 5)"),  # type: ignore[arg-type]
    ],
)
def test_b163_a_hook_that_is_none(make, says):
    """It is refused when the journal is opened, and not when a run waits at night."""
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert says in str(caught.value)


def test_b170_another_signal_under_an_id():
    """Who sends it is told the id; the same once more is no error."""
    with Journal.open("memory:") as journal:
        journal.enqueue("agent", run_id="r")
        for _ in range(2):
            journal.signal("r", "paid", 1, signal_id="s1")
        with pytest.raises(NotAllowed, match=r"'s1' has come before.*an id of its own"):
            journal.signal("r", "paid", 2, signal_id="s1")


@pytest.mark.parametrize("how", [{}, {"for_s": -1}, {"for_s": 1, "until": 2}, {"until": "tomorrow"}])
def test_b171_no_time_to_sleep(how):
    """It is a mistake in the code, which ends nothing."""
    with Journal.open("memory:") as journal:
        with pytest.raises(InvalidArgument, match="expected"):
            journal.run(lambda run: run.sleep(**how), run_id="r", kind="agent")
        with pytest.raises(InvalidArgument, match="timeout_s: expected"):
            journal.run(lambda run: run.wait_signal("paid", timeout_s=-1), run_id="s", kind="agent")
        assert ["queued", "queued"] == [journal.head(run_id).status for run_id in "rs"]


def test_b172_no_retry():
    """It is refused where it is given, and not in an outage."""
    wrong: Any = 3
    with pytest.raises(InvalidArgument, match="Retry: attempts: expected a whole number from 1, got 0"):
        Retry(attempts=0)
    with pytest.raises(InvalidArgument, match="expected a Retry, got int"):
        Journal.open("memory:", retry=wrong)
    with pytest.raises(InvalidArgument, match="look: retry: expected a Retry, got int"):
        tool(read_only=True, retry=wrong, name="look")(lambda: None)


def test_b173_no_time_to_wait():
    """It is refused before the run is looked at."""
    with Journal.open("memory:") as journal:
        with pytest.raises(InvalidArgument, match="wait_s: expected"):
            journal.run(lambda run: None, run_id="r", kind="agent", wait_s=-1)
        assert [] == list(journal.runs())


# --- the table -----------------------------------------------------------------------------------------------------


def test_every_row_is_tested():
    """The table of docs/reference/errors.md and these tests have the same rows, with the same codes."""
    rows = {match[1]: [cell.strip() for cell in match[2].split("|")] for match in ROW.finditer(DOCUMENT.read_text())}
    source = Path(__file__).read_text(encoding="utf-8")
    functions = {name.upper() for name in re.findall(r"def test_(b\d+)_", source)}
    calls = set(re.findall(r'\("(B(?:9|11|12|14)\d)", lambda', source))
    assert set(rows) == {row.id for row in CASES} | functions | set(VALUES) | calls
    assert {row.id: str(row.code) for row in CASES} == {row.id: rows[row.id][2].split()[0] for row in CASES}
    classes = {row: rows[row][2].strip("`") for row in VALUES}
    assert {row: kind.__name__ for row, (_, kind, _) in VALUES.items()} == classes
