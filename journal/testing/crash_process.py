"""A process of an agent that is crashed, as its machine sees it: its end, what it prints, and where its code stands."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runjournal.log.limits import (
    crash_around_points,
    crash_output_bytes_max,
    crash_output_tail_bytes,
    crash_poll_s,
)

_PRCTL: Final[Callable[..., int] | None] = getattr(ctypes.CDLL(None), "prctl", None) if hasattr(os, "fork") else None
_INSTALLED: Final = tuple(sysconfig.get_paths()[each] for each in ("stdlib", "purelib", "platlib"))


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, where it can (Linux)."""
    if _PRCTL is not None:
        _PRCTL(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it was dead before
            os._exit(1)


def redirect(path: Path) -> None:
    """Have all that is printed written into a file: what the parent's streams hold is the parent's."""
    nothing, out = os.open(os.devnull, os.O_RDONLY), os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout = sys.stderr = open(1, "w", encoding="utf-8", errors="replace", closefd=False, buffering=1)  # noqa: SIM115 - it is open as long as the process lives


def ended(pid: int, until: float, out: Path) -> int | None:
    """Wait for a child; return its status, None if its time is over, or it has printed too much."""
    pause = crash_poll_s / 8
    while True:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # somebody else has waited for it
            return 0
        if done:
            return status
        if time.monotonic() > until or size(out) > crash_output_bytes_max:
            return None
        time.sleep(pause)
        pause = min(pause * 2, crash_poll_s)


def size(path: Path) -> int:
    """Return how many bytes a file has, 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def tail(path: Path) -> str:
    """Return the last part of what was printed."""
    if not path.exists():
        return ""
    with path.open("rb") as out:
        out.seek(max(0, size(path) - crash_output_tail_bytes))
        return out.read(crash_output_tail_bytes).decode(errors="replace")


def frames_of(out: str) -> list[str]:
    """Return where the main thread of a process stood, the newest call first; the main thread is the last one told."""
    _, _, found = out.rpartition("(most recent call first):\n")
    return [line.strip() for line in found.splitlines() if line.startswith("  File ")][:crash_around_points]


def place_of(error: BaseException) -> str:
    """Return where the agent raised an error, or its cause: the last place that is neither ours nor Python's."""
    while error.__cause__ is not None and error.__cause__.__traceback__ is not None:
        error = error.__cause__
    frames = [
        (frame.f_code, line, str(frame.f_globals.get("__name__")))
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    others = [(code, line) for code, line, module in frames if not module.startswith("runjournal.")]
    own = [each for each in others if not each[0].co_filename.startswith(_INSTALLED)] or others
    if not own:
        return ""
    code, line = own[-1]
    here = f"{Path.cwd()}{os.sep}"
    return f"{code.co_filename.removeprefix(here)}:{line}, in {code.co_name}"
