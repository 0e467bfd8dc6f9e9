"""What grows with a run and must not: a question to a model late in a conversation, a recorded call among many.

CPU time of the thread that does it, of a long one and a short one in turn, so that a ratio holds on a busy machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from measure import spread

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
