"""Read a hostile store with an audit hook set; print, as JSON, what the hook saw. argv[1]: `read` or `control`.

The store is made and everything is read once from a harmless one, so that all modules are there before the hook is.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import hostile
from click.testing import CliRunner

from runjournal.cli.app import cli
from runjournal.importers.transfer import export_runs, import_jsonl
from runjournal.journal import Journal
from runjournal.log.base import UnreadableEvent
from runjournal.log.errors import JournalError
from runjournal.looking.audit import audit_store, verify_store
from runjournal.writing.folding import filled_record

FORBIDDEN = (
    "import", "exec", "compile", "pickle.", "marshal.", "os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork",
    "subprocess.", "socket.", "ctypes.", "open", "os.remove", "os.rename", "os.mkdir", "os.link", "os.symlink",
    "os.chmod", "os.kill", "shutil.", "glob.", "urllib.", "webbrowser.", "code.__new__", "sys.add", "setopencodehook",
)  # fmt: skip
OURS = re.compile(r"/proc/(self/mountinfo|\d+/stat|sys/kernel/random/boot_id)")
"""What is looked at by names that stand in the program, or by the number of a process."""
PICKLE = b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x0ctouch PWNED1\x94\x85\x94R\x94."
ODD = "../../../../etc/passwd".ljust(64, "/")
DEEP = b'{"v":1,"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
HUGE = b'{"v":1,"at":"x","by":"x","step":null,"epoch":%d,"data":{}}' % 10**400
TOPICS = ("os:system", "__import__", "builtins:eval", "x.os.system", "x.__class__", "x.subprocess:Popen", "x.../../etc")


def payloads() -> list[Any]:
    """Values that look like code, objects or places to whoever would look."""
    code = "__import__('os').system('touch PWNED2')"
    text = base64.b64encode(PICKLE).decode()
    return [
        {"py/object": "os.system", "py/reduce": [{"py/function": "os.system"}, ["touch PWNED3"]]},
        {"_type_": "os:system", "_data_": ["touch PWNED4"], "__class__": "os.system", "$ref": "file:///etc/passwd"},
        {"!!python/object/apply:os.system": ["touch PWNED5"], "pickle": text, "code": code},
        f"gASV{text}", code, "{0.__class__.__mro__}", "${jndi:ldap://localhost/a}", "../../../../etc/passwd",
        int("9" * 18), 1e308,
    ]  # fmt: skip


def rows() -> list[hostile.Row]:
    """Events of types and shapes that nobody should follow anywhere."""
    envelope: dict[str, Any] = {"v": 1, "at": "2026-01-01T00:00:00.000000Z", "by": "os:system"}
    envelope |= {"epoch": 0, "step": None}
    first = {"kind": "os:system", "input": payloads(), "title": "__import__('os')", "tags": {"a": "b"}}
    start = b'{"v":1,"at":"x","by":"x","step":null'
    nested = start + b',"epoch":0,"data":' + b'{"a":' * 900 + b"1" + b"}" * 901
    huge = start + b',"epoch":%d,"data":{"n":%d}}' % (10**30, -(10**30))
    odd = {"sha256": ODD, "bytes": -1}
    return [
        ("run.queued", envelope | {"data": first}),
        *((topic, envelope | {"data": {"value": each}}) for topic in TOPICS for each in payloads()),
        *(("note.added", envelope | {"data": {"text": each, "code": topic}}) for topic in TOPICS
          for each in payloads()),
        *(("message.appended", envelope | {"data": {"role": "user", "content": each}}) for each in payloads()),
        *(("memory.set", envelope | {"data": {"key": topic, "value": payloads()}}) for topic in TOPICS),
        ("x.deep", nested), ("note.added", nested), ("note.added", huge), ("x.huge", huge),
        ("note.added", envelope | {"v": 10**15, "data": {}}), ("note.added", envelope | {"v": "os:system", "data": {}}),
        ("tool.completed", envelope | {"ext": {"result": odd}, "data": {"call_id": "c", "attempt": 1}}),
        ("tool.completed", envelope | {"ext": {"result": odd | {"sha256": "a" * 64, "bytes": 2**53}}, "data": {}}),
        ("note.added", envelope | {"ext": "os:system", "data": {"text": ""}}),
        ("note.added", envelope | {"enc": {"alg": "os:system", "kid": "../key"}, "data": {"text": ""}}),
    ]  # fmt: skip


def make(path: str) -> None:
    """A store with all of it, then changed behind our back: pickles as blobs and as checkpoints."""
    hostile.fill(path)
    with Journal.open(path) as journal:
        lines = [{"blob": digest, "missing": True} for digest in (ODD, "a" * 64)]
        lines += hostile.chained("evil", rows())
        bodies = (DEEP, HUGE, base64.b64encode(PICKLE), b"__import__('os').system('touch PWNED6')")
        for number, body in enumerate(bodies):
            lines += hostile.chained(f"evil-{number}", [("run.queued", body)])
        import_jsonl(journal, hostile.export_of(lines).splitlines(keepends=True), "evil.jsonl")
    hostile.blob_row(path, PICKLE)
    hostile.tamper(path)


def read(path: str) -> tuple[list[str], int]:
    """Do all that only reads; gives what was done, and how many events couldn't be read."""
    done, unreadable = set[str](), 0
    with Journal.open(path, create=False) as journal:
        run_ids = [head.run_id for head in journal.runs()]
        for run_id in run_ids:
            for record in journal.events(run_id, blobs=False):
                unreadable += isinstance(record.event, UnreadableEvent)
                with suppress(JournalError):
                    filled_record(journal.store, record)
            done.add("read")
            for fold in (journal.state, journal.replay):
                with suppress(JournalError):
                    fold(run_id, force=True)
                    done.add("folded" if fold == journal.state else "replayed")
            with suppress(JournalError):
                list(journal.messages(run_id, force=True))
        list(audit_store(journal.store))
        list(verify_store(journal.store))
        done.add("audited")
        list(export_runs(journal, run_ids))
        done.add("exported")
    runner = CliRunner()
    for words in (["ls"], ["show", "evil"], ["show", "evil", "--events", "--full"], ["show", "bad-1", "--messages"],
                  ["replay", "evil", "--force"], ["checkpoint", "ls", "bad-1"], ["tail", "-n", "200"]):  # fmt: skip
        for output in ("table", "json", "jsonl"):
            result = runner.invoke(cli, ["--db", path, "-o", output, *words])
            if result.exit_code not in {0, 1, 3}:
                raise SystemExit(f"{words}: {result.exit_code} {result.output}")
    done.add("shown")
    return sorted(done), unreadable


def controls() -> list[Callable[[], Any]]:
    """Each does one thing that the hook must see."""
    import ctypes
    import marshal
    import pickle
    import socket
    import subprocess

    return [
        lambda: __import__("this_module_is_not_there"),
        lambda: exec("1"),
        lambda: compile("1", "x", "eval"),
        lambda: pickle.loads(b"cposix\nsystem\n."),
        lambda: marshal.loads(marshal.dumps(1)),
        lambda: os.system("true"),
        lambda: subprocess.run(["true"], check=False),
        lambda: socket.socket().close(),
        lambda: ctypes.CDLL("libnothing.so"),
        lambda: os.execv("/nothing", ["x"]),
        lambda: os.posix_spawn("/nothing", ["x"], {}),
        lambda: Path("/etc/passwd").read_bytes(),
        lambda: Path("nothing").unlink(),
    ]


def main(what: str) -> None:
    """Make, warm up, hook, read, tell."""
    make("runs.db")
    make("warm.db")
    read("warm.db")
    todo = controls()
    allowed = {str(Path(f"runs.db{end}").absolute()) for end in ("", "-wal", "-shm")}
    seen: list[tuple[str, str]] = []
    armed = False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if armed and event.startswith(FORBIDDEN) and event != "socket.gethostname":
            if event == "open" and isinstance(args[0], str):
                name = str(Path(args[0]).absolute())
                if name in allowed or OURS.fullmatch(name):
                    return
            seen.append((event, repr(args)[:300]))

    sys.addaudithook(hook)
    held, sys.stdout = sys.stdout, io.StringIO()
    armed = True
    done, unreadable = list[str](), 0
    if what == "read":
        done, unreadable = read("runs.db")
    else:
        for each in todo:
            with suppress(Exception):
                each()
    armed = False
    sys.stdout = held
    found = {
        "events": seen,
        "done": done,
        "unreadable": unreadable,
        "files": sorted(each.name for each in Path().iterdir()),
    }
    print(json.dumps(found))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main(sys.argv[1])
