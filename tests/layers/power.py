"""L3: the power of a file system is cut while a writer is at work on it; then it is mounted again.

An ext4 image on a loop device, mounted where nobody else sees it, is shut down without its log being flushed. It needs
root, losetup and mkfs.ext4; without them the layer is skipped, and says so.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from . import workloads
from .judge import Told
from .kills import judge_here
from .lives import begin, live
from .report import Entry, emptied, folder, timed

SHUTDOWN: Final = 0x8004587D
"""EXT4_IOC_SHUTDOWN of Linux's fs/ext4/ext4.h."""
NO_LOG_FLUSH: Final = 2
NEW_MOUNTS: Final = 0x00020000
"""CLONE_NEWNS of Linux's sched.h: mounts that are made from here on are this process's."""
SIZE: Final = 48 << 20
CUTS_OF_A_STORE: Final = 5


def missing() -> str:
    """Return why the power can't be cut here; "" if it can."""
    if os.geteuid():
        return "it needs root"
    tools = [name for name in ("losetup", "mkfs.ext4", "mount", "umount") if shutil.which(name) is None]
    return f"it needs {', '.join(tools)}" if tools else ""


class Machine:
    """A file system whose power can be cut."""

    def __init__(self, home: Path) -> None:
        image, self.mounted = home / "image", home / "mounted"
        with image.open("wb") as file:
            file.truncate(SIZE)
        self.mounted.mkdir()
        _run("mkfs.ext4", "-q", "-F", str(image))
        self.device = _run("losetup", "-f", "--show", str(image)).strip()

    def on(self) -> None:
        _run("mount", self.device, str(self.mounted))

    def cut(self) -> None:
        """Nothing that isn't on the disk now gets there any more."""
        place = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(place, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(place)

    def off(self) -> None:
        for _ in range(100):
            if subprocess.run(["umount", str(self.mounted)], capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.01)
        _run("umount", "-l", str(self.mounted))

    def close(self) -> None:
        _run("losetup", "-d", self.device)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def power(seed: str, n: int, *, harm: str = "") -> Entry:
    """Cut the power n times, in a process of its own, since mounts of its own are for good."""
    entry = Entry("L3", "real power cuts: ext4 on a loop device, shut down without a flush", seed)
    if why := missing():
        entry.skipped = f"{n} cuts: {why}"
        return entry
    with timed(entry), folder() as home:
        kept = home / "entry"

        def within(_: object) -> None:
            _own_mounts()
            _cuts(entry, home, n, harm)
            kept.write_text(repr((entry.n, entry.violations, entry.counts, entry.first)))

        life = live(within)
        if life.ended or not kept.exists():
            entry.add("the layer itself", [f"it ended with {life.ended}"])
        else:
            entry.n, entry.violations, entry.counts, entry.first = eval(kept.read_text())
    return entry


def _own_mounts() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    _run("mount", "--make-rprivate", "/")


def _cuts(entry: Entry, home: Path, n: int, harm: str) -> None:
    machine = Machine(home)
    try:
        told = Told()
        for number in range(n):
            rng = random.Random(f"{entry.seed} cut {number}")
            fresh = number % CUTS_OF_A_STORE == 0
            machine.on()
            try:
                path = machine.mounted / "runs.db"
                if fresh:
                    told = Told()
                    for each in machine.mounted.glob("runs.db*"):
                        each.unlink()
                    os.sync()
                told += _struck(machine, path, f"{entry.seed}.{number}", rng, harm)
            finally:
                machine.off()
            machine.on()
            try:
                wrong = judge_here(path, told, power=True, beside=home)
                told = _without_lost(entry, path, home, told)
            finally:
                machine.off()
            entry.add(f"cut {number}", wrong)
    finally:
        machine.close()


def _struck(machine: Machine, path: Path, life: str, rng: random.Random, harm: str) -> Told:
    child = begin(partial(workloads.appends, path, life, count=10_000, harm=harm))
    time.sleep(0.01 + rng.random() * 0.06)
    went_s = time.monotonic()
    machine.cut()
    os.kill(child.pid, signal.SIGKILL)
    return [_heard(line, went_s) for line in child.over().told]


def _heard(line: dict[str, Any], went_s: float) -> dict[str, Any]:
    """Return what was told as somebody hears it whose power is the same.

    The file system takes some milliseconds to go down, and an fsync that it cuts short may return without an error. At
    a real cut nobody lives to be told so.
    """
    return line if line.get("at_s", 0.0) < went_s else line | {"say": "tried"}


def _without_lost(entry: Entry, path: Path, home: Path, told: Told) -> Told:
    """Return what was told without what a power cut has taken by right; it is counted."""
    left = live(lambda tell: tell(names=workloads.names(_copied(path, home)))).told
    names = set(left[0]["names"]) if left else set()
    lost = {line["name"] for line in told if line["say"] == "done" and line["name"] not in names}
    entry.count("relaxed ones lost", len(lost))
    entry.count("acknowledged", sum(line["say"] == "done" for line in told))
    return [line for line in told if line.get("name") not in lost]


def _copied(path: Path, home: Path) -> Path:
    copy = emptied(home / "copied")
    for each in path.parent.glob("runs.db*"):
        if not each.name.endswith("-shm"):
            (copy / each.name).write_bytes(each.read_bytes())
    return copy / path.name
