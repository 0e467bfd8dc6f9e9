"""L6: KeyboardInterrupt before a random bytecode, at a random moment, in a random thread; then the process goes on.

The agents, the strikes and the judges are those of `programs/strike.py`.
"""

from __future__ import annotations

import zlib

from programs import strike

from . import harms
from .report import Entry, apart, folder, timed


def interrupts(seed: str, n: int, *, harm: str = "") -> Entry:
    """Interrupt random agents so often, in a process of its own: what is set for them holds for nobody else."""
    (entry,) = apart(lambda: [_interrupts(seed, n, harm)])
    return entry


def _interrupts(seed: str, n: int, harm: str) -> Entry:
    entry = Entry("L6", "KeyboardInterrupt at random bytecodes, moments and threads; the same process goes on", seed)
    number = 0
    strike.hurry()
    if harm:
        harms.HARMS[harm]()
    with timed(entry), folder() as home:
        while entry.n < n and not (harm and entry.violations):
            case = strike.Case(home, zlib.crc32(seed.encode()), number, "interrupt")
            wrong: list[str] = []
            try:
                case.judge(n - entry.n)
            except strike.Violation as violation:
                wrong = [str(violation)]
            for name, count in case.counts.items():
                entry.count(name, count)
            struck = strike.struck(case.counts)
            entry.add(f"case {number}, {case.program}", wrong)
            entry.n += struck - 1
            number += 1
    entry.count("agents", number)
    return entry
