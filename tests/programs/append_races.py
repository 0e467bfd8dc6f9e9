"""Races of the append itself: processes and threads, batches, blobs, stopped owners, cancels, kills.

python tests/programs/append_races.py [--rounds 1000] [--seed 0] [--only NAME]

Each race looks at the store from outside when it is over: what was acknowledged is there, each event once; the chain is
dense and verified; no event of an owner stands behind the claim that fenced it, and no step begins behind a cancel. It
prints a line a race, and exits 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from runjournal import Journal
from runjournal.log import events as e
from runjournal.log.errors import AppendRefused, CancelRequested, StaleEpoch, StoreBusy
from runjournal.log.limits import inline_value_bytes_max
from runjournal.log.owner import here
from runjournal.looking.audit import audit_store

LEASE_S = 0.02


def say(text: str) -> None:
    """Tell how far it is, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def forked(work: Callable[[int], None]) -> tuple[int, int]:
    """Fork a child that does the work, with a pipe to write to; return its pid and the pipe's other end."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            os.close(reader)
            work(writer)
            code = 0
        except BaseException:  # noqa: BLE001 - it is told, and the exit code says so
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    return pid, reader


def claim(epoch: int) -> e.RunClaimed:
    """The claim of this process, whose lease is over soon."""
    me = here()
    return e.RunClaimed(
        worker=f"w{epoch}", epoch=epoch, lease_s=LEASE_S, host=me.host, boot_id=me.boot_id, pid_ns=me.pid_ns,
        pid=os.getpid(), pid_started=me.started,
    )  # fmt: skip


def begin(path: Path, run_id: str) -> None:
    with Journal.open(path) as journal:
        journal.append(run_id, [e.RunQueued("k", None), claim(1)], expect=0)


def read(fd: int) -> list[str]:
    """All lines that a child wrote, whole ones."""
    with os.fdopen(fd, "rb") as pipe:
        return pipe.read().decode().split("\n")[:-1]


def faults(path: Path) -> list[str]:
    with Journal.open(path) as journal:
        return [f"{each.run_id}: {each.what}" for each in audit_store(journal.store) if each.severity == "error"]


def crowd(path: Path, rng: random.Random, rounds: int) -> list[str]:
    """Four processes of two threads append singles, batches and blobs to the same runs as their owner."""
    runs = ["a", "b", "c"]
    for run_id in runs:
        begin(path, run_id)
    share = max(1, rounds // 8)

    def process(number: int, seed: int) -> Callable[[int], None]:
        def work(fd: int) -> None:
            with Journal.open(path) as journal:

                def thread(which: int) -> None:
                    mine = random.Random(seed * 10 + which)
                    for turn in range(share):
                        name = f"{number}.{which}.{turn}"
                        events = [e.NoteAdded(f"{name} {part}") for part in range(mine.choice((1, 1, 3)))]
                        if mine.random() < 0.1:
                            events.append(e.NoteAdded(name + " " + "x" * inline_value_bytes_max))
                        run_id = mine.choice(runs)
                        journal.append(run_id, events, epoch=1)
                        os.write(fd, f"{run_id} {name} {len(events)}\n".encode())

                threads = [threading.Thread(target=thread, args=(which,)) for which in range(2)]
                for each in threads:
                    each.start()
                for each in threads:
                    each.join()

        return work

    children = [forked(process(number, rng.randrange(10**6))) for number in range(4)]
    told = [line.split() for _, fd in children for line in read(fd)]
    wrong = [f"a process ended with {status}" for pid, _ in children if (status := os.waitpid(pid, 0)[1])]
    with Journal.open(path) as journal:
        names: dict[tuple[str, str], list[int]] = {}
        for run_id in runs:
            for record in journal.events(run_id, types=["note.added"]):
                names.setdefault((run_id, record.event.text.split(" ")[0]), []).append(record.seq)
    if len(told) != 8 * share:
        wrong.append(f"{len(told)} of {8 * share} appends were acknowledged")
    for run_id, name, count in told:
        seqs = names.pop((run_id, name), [])
        if seqs != list(range(seqs[0] if seqs else 0, (seqs[0] if seqs else 0) + int(count))):
            wrong.append(f"append {name} to {run_id} stands at {seqs}, expected {count} in a row")
    return wrong + [f"{name} was never acknowledged" for name in names] + faults(path)


def hammering(path: Path, epoch: int, *, steps: bool = False) -> Callable[[int], None]:
    """An owner that appends until it is refused; it tells each seq, and then the refusal."""

    def work(fd: int) -> None:
        with Journal.open(path) as journal:
            turn = journal.state("r").steps.last_index + 1 if steps else 0
            while True:
                try:
                    if steps:
                        journal.append("r", [e.StepStarted(turn, f"s{turn}", "s", "once", 1, 1)], epoch=epoch)
                        journal.append("r", [e.StepCompleted(turn)], epoch=epoch)
                    record = journal.append("r", [e.NoteAdded(f"{epoch} {turn}")], epoch=epoch)[0]
                except AppendRefused as error:
                    os.write(fd, f"{type(error).__name__}\n".encode())
                    signal.pause()
                os.write(fd, f"{record.seq}\n".encode())
                turn += 1

    return work


def ended(pid: int, fd: int, *, word: str | None) -> tuple[list[str], list[str]]:
    """Wait for the child's word, kill it, and return what it told and what was wrong."""
    told, wrong = b"", list[str]()
    while word is not None and not told.endswith(f"{word}\n".encode()):
        more = os.read(fd, 4096)
        if not more:
            wrong.append(f"expected the child to tell {word}, it told {told[-40:]!r}")
            break
        told += more
        if told.endswith((b"StaleEpoch\n", b"CancelRequested\n")) and not told.endswith(f"{word}\n".encode()):
            wrong.append(f"expected {word}, got {told[-40:]!r}")
            break
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    lines = (told + "\n".join(["", *read(fd)]).encode()[1:]).decode().split("\n")
    return [line for line in lines if line], wrong


def fences(path: Path, rng: random.Random, rounds: int) -> list[str]:
    """An owner is stopped anywhere, inside the write lock too; another one claims, and the first one wakes up."""
    begin(path, "r")
    wrong: list[str] = []
    inside = 0
    for epoch in range(1, rounds + 1):
        pid, fd = forked(hammering(path, epoch))
        os.read(fd, 1)  # it is at work
        time.sleep(rng.random() * 0.01)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(LEASE_S)
        with Journal.open(path) as journal:
            journal.store._busy_wait_s = 0.1
            journal.store._writer.set_busy_timeout(100)
            held = False
            while True:
                try:
                    journal.append("r", [e.RunRequeued("lease_expired"), claim(epoch + 1)])
                except StoreBusy:
                    held = True
                    os.kill(pid, signal.SIGCONT)
                    time.sleep(0.001)
                    os.kill(pid, signal.SIGSTOP)
                    continue
                break
            inside += held
            os.kill(pid, signal.SIGCONT)
            wrong += ended(pid, fd, word=StaleEpoch.__name__)[1]
    say(f"  stopped inside the write lock: {inside}")
    with Journal.open(path) as journal:
        current = 0
        for record in journal.events("r"):
            if isinstance(record.event, e.RunClaimed):
                current = record.event.epoch
            elif record.epoch not in (0, current):
                wrong.append(f"event {record.seq} of epoch {record.epoch} stands behind the claim of {current}")
    return wrong + faults(path)


def cancels(path: Path, rng: random.Random, rounds: int) -> list[str]:
    """A cancel comes between any two events of an owner that begins steps: none begins behind it."""
    wrong: list[str] = []
    for number in range(rounds):
        store = path.with_name(f"{number}.db")
        begin(store, "r")
        pid, fd = forked(hammering(store, 1, steps=True))
        os.read(fd, 1)
        time.sleep(rng.random() * 0.01)
        with Journal.open(store) as journal:
            journal.append("r", [e.RunCancelRequested("x", rng.choice(("after_step", "now")))])
        wrong += ended(pid, fd, word=CancelRequested.__name__)[1]
        with Journal.open(store) as journal:
            types = [record.type for record in journal.events("r")]
        if "step.started" in types[types.index("run.cancel_requested") :]:
            wrong.append(f"round {number}: a step began behind the cancel")
        wrong += faults(store)
        for each in path.parent.glob(f"{number}.db*"):
            each.unlink()
    return wrong


def kills(path: Path, rng: random.Random, rounds: int) -> list[str]:
    """An owner is killed anywhere: what it was told is stored is there, and the next one goes on behind it."""
    begin(path, "r")
    wrong: list[str] = []
    acknowledged: list[int] = []
    for _ in range(rounds):
        pid, fd = forked(hammering(path, 1))
        os.read(fd, 1)
        time.sleep(rng.random() * 0.01)
        told, more = ended(pid, fd, word=None)
        acknowledged += [int(line) for line in told[1:] if line.isdigit()]  # of the first a digit was read
        wrong += more
    with Journal.open(path) as journal:
        notes = {record.seq for record in journal.events("r", types=["note.added"])}
    wrong += [f"event {seq} was acknowledged and isn't there" for seq in acknowledged if seq not in notes]
    if len(set(acknowledged)) < len(acknowledged):
        wrong.append("an event was acknowledged twice")
    return wrong + faults(path)


RACES = {"crowd": crowd, "fences": fences, "cancels": cancels, "kills": kills}


def main(argv: list[str]) -> int:
    """Race, print, judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=sorted(RACES))
    given = parser.parse_args(argv)
    bad = 0
    for name, race in RACES.items():
        if given.only not in (None, name):
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            wrong = race(Path(folder) / "runs.db", random.Random(f"{given.seed} {name}"), given.rounds)
        bad += len(wrong)
        say(f"{name}: {given.rounds} rounds, {len(wrong)} wrong, {time.monotonic() - began:.1f} s")
        for each in wrong[:10]:
            say(f"  {each}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
