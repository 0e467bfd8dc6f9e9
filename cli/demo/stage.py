"""The demo's stage: the world, the lives of the agent one after another, and the points at which a life is ended.

A process tells what it has just done and waits. So it can be killed exactly there, without luck.
"""

from __future__ import annotations

import os
import queue
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeAlias

from runjournal.log.limits import demo_end_wait_s, demo_word_wait_s

Child: TypeAlias = "subprocess.Popen[str]"
INVOICES: Final = {"hosting.txt": "48.50", "lawyer.txt": "930.00", "paper.txt": "17.25", "travel.txt": "212.80"}
WORLD: Final = (sys.executable, "-m", "runjournal.cli.demo.world")
AGENT: Final = (sys.executable, "-m", "runjournal.cli.demo.agent")
COMMIT: Final = "commit"
_first_commit: Final = 4
_last_commit: Final = 68
"""A point after a commit lies between these; an agent that isn't killed makes 70."""


class Point(NamedTuple):
    """Where to kill: after the `number`-th commit of all lives, or when the world has done `what` that often."""

    what: str
    number: int


class Life(NamedTuple):
    """One process of the agent, from its start to its end.

    `committed` are [(seq, type)] of the appends that it knew of. `killed` is the point, None if it ended by itself;
    then `word` is what it said last. `line` is that of the world's ledger, if it was killed before the world answered.
    """

    pid: int
    committed: list[tuple[int, str]]
    killed: Point | None
    line: int
    word: str


def two_points(rng: random.Random) -> list[Point]:
    """One after a commit, anywhere; one between an effect and its record: of a keyed call, or of an unsafe one."""
    effects = [Point("charge_card", rng.randint(1, len(INVOICES))), Point("open_pull_request", 1)]
    return [Point(COMMIT, rng.randint(_first_commit, _last_commit)), rng.choice(effects)]


class Stage:
    """The world, as long as the block lasts, and one agent at a time. No process outlives it."""

    def __init__(self, folder: Path, points: Sequence[Point], world: Sequence[str] = WORLD) -> None:
        self.folder = folder
        self._points = list(points)
        self._counts: Counter[str] = Counter()
        self._told: queue.Queue[tuple[Child, str | None]] = queue.Queue()
        self._command = world
        self._children: list[tuple[Child, threading.Thread]] = []

    def __enter__(self) -> Self:
        try:
            self._world = self._start([*self._command, str(self.folder)], {})
            self._address = self._next()[1] or ""
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for child, listener in self._children:
            child.kill()
            child.wait(demo_end_wait_s)
            listener.join(demo_end_wait_s)
            _close(child)
        (self.folder / "world.sock").unlink(missing_ok=True)

    def _start(self, command: Sequence[str], env: dict[str, str]) -> Child:
        """A child that Ctrl-C doesn't reach by itself: whoever is interrupted ends it."""
        child = subprocess.Popen(  # noqa: S603 - our own program
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **env},
            start_new_session=True,
        )  # fmt: skip
        listener = threading.Thread(target=self._listen, args=(child,), daemon=True)
        self._children.append((child, listener))
        listener.start()
        return child

    def _listen(self, child: Child) -> None:
        for line in child.stdout or ():
            self._told.put((child, line.rstrip("\n")))
        self._told.put((child, None))

    def _next(self, agent: Child | None = None) -> tuple[Child, str | None]:
        """Return who says what next; None if the agent has ended. Raises ChildProcessError if the world has."""
        try:
            who, line = self._told.get(timeout=demo_word_wait_s)
        except queue.Empty:
            raise TimeoutError(f"the demo's processes have said nothing for {demo_word_wait_s:g} s") from None
        if line is None and who is not agent:
            raise ChildProcessError("the demo's world has ended")
        return who, line

    def live(self, path: Path, run_id: str) -> Life:
        """Let the agent live once: from its start to its end."""
        agent = self._start([*AGENT, str(path), run_id, str(self.folder)], {"DEMO_WORLD": self._address})
        committed, killed, at, word = list[tuple[int, str]](), None, 0, ""
        while True:
            who, told = self._next(agent)
            if told is None:
                break
            kind, *rest = told.split(" ")
            if kind not in ("committed", "effect"):
                word = told
                continue
            if kind == "committed":
                committed += [(int(seq), name) for seq, _, name in (each.partition(":") for each in rest)]
            due = self._due(COMMIT if kind == "committed" else rest[0])
            if due is not None:
                agent.kill()
                killed, at = due, int(rest[1]) if kind == "effect" else 0
            if due is None or who is not agent:
                _go_on(who)
        agent.wait(demo_end_wait_s)
        return Life(agent.pid, committed, killed, at, word)

    def _due(self, what: str) -> Point | None:
        self._counts[what] += 1
        point = Point(what, self._counts[what])
        return point if point in self._points else None


def _go_on(child: Child) -> None:
    if child.stdin is not None:
        child.stdin.write("go\n")
        child.stdin.flush()


def _close(child: Child) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
