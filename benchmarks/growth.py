"""What grows with a run and must not: a question to a model late in a conversation, a recorded call among many.

CPU time of the thread that does it, of a long one and a short one in turn, so that a ratio holds on a busy machine.
"""

from __future__ import annotations

import statistics
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from measure import spread

from runjournal import tool
from runjournal.journal import Journal
from runjournal.run import Run

TURNS = (400, 10)
CALLS = (8_000, 500)
TEXT = "x" * 300


def run_model_growth(folder: Path, pairs: int) -> dict[str, float]:
    """A turn of an agent that sends its whole conversation: the 400th / the 10th, each with a message and an answer."""
    took: dict[int, list[float]] = {}
    bells = {turns: threading.Semaphore(0) for turns in TURNS}

    def agent(turns: int) -> Callable[[Run], None]:
        other = next(each for each in TURNS if each != turns)

        def loop(run: Run) -> None:
            said: list[dict[str, str]] = []
            for turn in range(turns - pairs // 2 + pairs):
                if measured := turn >= turns - pairs // 2:
                    bells[turns].acquire()
                begin = time.thread_time()
                _turn(run, said, turn)
                if measured:
                    took.setdefault(turns, []).append(time.thread_time() - begin)
                    bells[other].release()

        return loop

    def work(turns: int) -> None:
        with Journal.open(folder / f"turns-{turns}.db") as journal:
            journal.run(agent(turns), run_id="r")

    threads = [threading.Thread(target=work, args=(turns,)) for turns in TURNS]
    for thread in threads:
        thread.start()
    bells[TURNS[0]].release()
    for thread in threads:
        thread.join()
    return spread([late / early for late, early in zip(*(took[turns] for turns in TURNS), strict=True)])


def _turn(run: Run, said: list[dict[str, str]], turn: int) -> None:
    with run.step("turn", repeat=True):
        said.append({"role": "user", "content": f"{turn} {TEXT}"})
        run.message(**said[-1])
        answer = run.model("m", {"max_tokens": 1000, "messages": said}, lambda _: {"text": f"{turn} {TEXT}"})
        said.append({"role": "assistant", "content": answer["text"]})
        run.message(**said[-1])


def replayed_calls_growth(pairs: int = 3) -> dict[str, float]:
    """A recorded call that is given back in a step of 8,000 / of 500, each time in a process that finds them so."""
    long, *others = CALLS
    (short,) = others
    ratios: list[float] = []
    for _ in range(pairs):
        both = _given_back(long), statistics.median(_given_back(short) for _ in range(pairs))
        ratios.append(both[0] / both[1])
    return spread(ratios)


class _Died(BaseException):
    """The agent's process ends."""


@tool(read_only=True)
def look(number: int) -> int:
    """Return what it was given."""
    return number


def _given_back(count: int) -> float:
    """Seconds of CPU time of a call that is given back, in a step of so many that was left open."""
    took: list[float] = []

    def agent(run: Run) -> None:
        with run.step("long"):
            begin = time.thread_time()
            for number in range(count):
                look(number)
            took.append((time.thread_time() - begin) / count)
            raise _Died

    with warnings.catch_warnings(), Journal.open("memory:") as journal:
        warnings.simplefilter("ignore")  # a long step makes long checkpoints
        for _ in range(2):
            with suppress(_Died):
                journal.run(agent, run_id="r", kind="k")
    return took[1]
