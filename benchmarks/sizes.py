"""What a long run costs: recovery beside a short one, bytes on disk, memory of some commands, the start of the help."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from measure import Pairs, interleaved, spread
from replay import our_run

from runjournal.journal import Journal

LONG = 300_000
SHORT = 1_000


def long_run(path: Path) -> Path:
    """A store with one run of 300,000 messages."""
    if not path.exists():
        our_run(path, LONG).close()
    return path


def recover(folder: Path, pairs: int = 15) -> Pairs:
    """`journal.state` from a checkpoint and a tail of 100 events: a run of 300,000 events, and one of 1,000."""
    journals: list[Journal] = []
    for name, count in (("long.db", LONG), ("short.db", SHORT)):
        journal = Journal.open(long_run(folder / name) if count == LONG else folder / name)
        if count == SHORT:
            our_run(folder / name, SHORT).close()
        journal.store.drop_checkpoints("r")
        journal.checkpoint("r")
        head = journal.head("r").head_seq
        from runjournal.log.events import MessageAppended

        journal.append("r", [MessageAppended("user", "x" * 300)] * 100, expect=head, epoch=1)
        journals.append(journal)
    try:
        return interleaved(lambda: journals[0].state("r"), lambda: journals[1].state("r"), pairs)
    finally:
        for journal in journals:
            journal.close()


def bytes_ratio(folder: Path, count: int = 20_000) -> float:
    """The whole file / the payload: 20,000 messages of 300 bytes, no checkpoints."""
    path = folder / "bytes.db"
    journal = our_run(path, count)
    journal.store.drop_checkpoints()
    journal.close()
    files = [Path(f"{path}{suffix}") for suffix in ("", "-wal")]
    whole = sum(file.stat().st_size for file in files if file.exists())
    return round(whole / (300 * (count - 2)), 3)


def peak_mb(store: Path, *command: str) -> float:
    """The peak memory, in MB of 2**20 bytes, of a command of ours on a store."""
    script = (
        "import resource, subprocess, sys; "
        "subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    program = [sys.executable, "-m", "runjournal.cli", "--db", str(store), *command]
    out = subprocess.run([sys.executable, "-c", script, *program], capture_output=True, text=True, check=True)
    return round(int(out.stdout) / 1024, 1)


def transcript(folder: Path, calls: int = 20_000) -> Path:
    """A transcript of Claude Code with 20,000 calls and their results, a line each."""
    path = folder / "session.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(calls):
            use = {"type": "tool_use", "id": f"c{number}", "name": "Bash", "input": {"command": "x" * 300}}
            result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": "x" * 300}
            for role, block in (("assistant", use), ("user", result)):
                message = {"id": f"m{number}", "role": role, "content": [block]}
                file.write(json.dumps({"type": role, "uuid": f"{role}{number}", "message": message}) + "\n")
    return path


def session(folder: Path, turns: int = 1_500) -> Path:
    """A transcript as Claude Code writes it: per turn a text, a call, and its result of 1.5 kB, a line each."""
    path = folder / "0f0f0f0f-1111-4222-8333-444444444444.jsonl"
    usage = {
        "input_tokens": 4,
        "cache_creation_input_tokens": 900,
        "cache_read_input_tokens": 9000,
        "output_tokens": 40,
    }
    common = {"isSidechain": False, "cwd": "/home/ada/books", "sessionId": path.stem, "version": "2.0.26"}
    with path.open("w", encoding="utf-8") as file:
        for turn in range(turns):
            head = {"model": "claude-sonnet-4-5", "id": f"msg_{turn}", "role": "assistant", "usage": usage}
            use = {
                "type": "tool_use",
                "id": f"toolu_{turn}",
                "name": "Bash",
                "input": {"command": "grep -rn total src"},
            }
            told = {"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": "src/sum.py: total = 0\n" * 70}
            for place, (role, message) in enumerate(
                (
                    (
                        "assistant",
                        head | {"content": [{"type": "text", "text": "I look where the total is made. " * 5}]},
                    ),
                    ("assistant", head | {"content": [use]}),
                    ("user", {"role": "user", "content": [told]}),
                )
            ):
                own = {"uuid": f"{turn}-{place}", "timestamp": "2026-10-24T20:50:22.786Z", "requestId": f"req_{turn}"}
                record = {"type": role, "message": message} | common | own
                file.write(json.dumps(record, separators=(",", ":")) + "\n")
    return path


def import_ratio(folder: Path, pairs: int) -> dict[str, float]:
    """CPU seconds of an import of a transcript / of `json.loads` of its lines, one after the other."""
    from runjournal.importers.claude_code import Source
    from runjournal.importers.transfer import import_claude_code

    path = session(folder)
    lines = path.read_bytes().splitlines()
    ratios: list[float] = []
    for number in range(pairs + 1):  # the first warms up
        with Journal.open(folder / f"import-{number}.db") as journal:
            begun = time.process_time()
            import_claude_code(journal, Source(str(path)))
            ours = time.process_time() - begun
        begun = time.process_time()
        for line in lines:
            json.loads(line)
        ratios.append(ours / (time.process_time() - begun))
    return spread(ratios[1:])


def help_ratio(pairs: int = 15) -> dict[str, float]:
    """`runjournal --help` / `python -c "import click"`: user + system seconds of the whole process."""
    ours = [sys.executable, "-m", "runjournal.cli", "--help"]
    theirs = [sys.executable, "-c", "import click"]
    return spread([_cpu_s(ours) / _cpu_s(theirs) for _ in range(pairs)])


def _cpu_s(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
