"""Which process this is, and whether the owner of a run is provably gone.

A process is identified by boot id, PID namespace, PID and its start time; the first two must be ours before a missing
PID proves anything, since a container sees the boot id of its host but not its processes.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .clock import Clock, timestamp
from .head import TOLD_TO_STOP, Head


class Process(NamedTuple):
    """A process. `started` is its start in clock ticks since boot, as text; "" where the system doesn't say."""

    host: str
    boot_id: str
    pid_ns: str
    pid: int
    started: str


class Moment(NamedTuple):
    """Now: UTC text of the wall clock, which may be set back, and seconds since this boot, which can't."""

    now: str
    boot_id: str
    boottime_s: float


def moment(clock: Clock, process: Process) -> Moment:
    """What the clocks of a process say."""
    return Moment(timestamp(clock.now()), process.boot_id, clock.boottime_s())


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def started(pid: int) -> str | None:
    """Return when a process was started (proc(5), stat field 22), as text.

    It is "" if that can't be known, and None if there is no such process.
    """
    if not Path("/proc/self/stat").exists():
        return ""
    stat = _read(f"/proc/{pid}/stat")
    return stat.rpartition(")")[2].split()[19] if stat else None


@cache
def _boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id")


def here() -> Process:
    """Return this process."""
    try:
        pid_ns = str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        pid_ns = ""
    return Process(socket.gethostname(), _boot_id(), pid_ns, os.getpid(), started(os.getpid()) or "")


def gone(head: Head, process: Process, clock: Clock) -> bool:
    """Return whether a running run has no living owner: its lease is over, or its process is provably dead.

    A lease of another boot is over, because the machine was restarted. Where namespaces differ only the lease counts.
    """
    if head.lease_until is None or head.boot_id != process.boot_id or clock.boottime_s() >= head.lease_until:
        return True
    return _dead(head.pid_ns, head.pid, head.pid_started, process)


def dead(claimed: Process, process: Process) -> bool:
    """Return whether a process is provably dead, seen from another one: of one on another machine nothing proves it."""
    if claimed.host == process.host and claimed.boot_id != process.boot_id:
        return True
    return claimed.boot_id == process.boot_id and _dead(claimed.pid_ns, claimed.pid, claimed.started, process)


def _dead(pid_ns: str | None, pid: int | None, pid_started: str | None, process: Process) -> bool:
    """Return whether there is no process of this number and start time, in the same boot."""
    if not process.boot_id or not process.pid_ns or pid_ns != process.pid_ns or pid is None:
        return False
    now = started(pid)
    return now is None or (bool(now) and bool(pid_started) and now != pid_started)


def lapse_reason(head: Head, clock: Clock, process: Process, *, stopping: bool, redeployed: bool = False) -> str:
    """Return why an owner that is gone is gone. What is none of the run's doing comes first: engine.md X21.

    `stopping`: its process was told to stop. `redeployed`: other code goes on with the run.
    """
    if head.boot_id != process.boot_id:
        return "machine_restarted"
    if stopping:
        return TOLD_TO_STOP
    if redeployed:
        return "redeployed"
    lapsed = head.lease_until is None or clock.boottime_s() >= head.lease_until
    return "lease_expired" if lapsed else "owner_dead"
