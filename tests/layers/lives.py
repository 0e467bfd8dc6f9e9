"""Lives of processes: a child, forked from a warm parent, works on a store and tells, until it ends or is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

Tell = Callable[..., None]
"""Write one line to the parent: it is told what was acknowledged, before anybody can die of what comes next."""


class Life(NamedTuple):
    """What a child told, a line each, and how it ended: its exit code, or minus the signal."""

    told: list[dict[str, Any]]
    ended: int

    @property
    def killed(self) -> bool:
        return self.ended == -signal.SIGKILL


class Living(NamedTuple):
    """A child at work, and the pipe that it tells to."""

    pid: int
    pipe: int

    def word(self) -> None:
        """Wait for its next word, which nobody hears of then."""
        while os.read(self.pipe, 1) not in (b"\n", b""):
            pass

    def over(self) -> Life:
        """Wait for its end."""
        with os.fdopen(self.pipe, "rb") as pipe:
            lines = pipe.read().split(b"\n")[:-1]  # the last one, if it is cut, was never told
        _, status = os.waitpid(self.pid, 0)
        return Life([json.loads(line) for line in lines], os.waitstatus_to_exitcode(status))


def begin(work: Callable[[Tell], None]) -> Living:
    """Fork a child that does this work. It ends with 1, and tells the trace, by what `work` raises."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        os.close(writer)
        return Living(pid, reader)
    code = 1
    try:
        os.close(reader)

        def tell(**what: Any) -> None:
            os.write(writer, json.dumps(what).encode() + b"\n")

        work(tell)
        code = 0
    except BaseException:  # noqa: BLE001 - it is told, and the exit code says so
        with suppress(OSError):
            os.write(writer, json.dumps({"say": "fell", "trace": traceback.format_exc()[-1500:]}).encode() + b"\n")
    finally:
        os._exit(code)


def live(work: Callable[[Tell], None]) -> Life:
    """Have a child do this work, and wait for its end."""
    return begin(work).over()
