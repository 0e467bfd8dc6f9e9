"""`runjournal demo`: an agent is killed while it writes, and its run is read back."""

from __future__ import annotations

import random
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from runjournal.auditing import audit_run
from runjournal.journal import Journal
from runjournal.projections.state import RunState

from .output import money, plural

Say = Callable[[str], None]


class Killed(NamedTuple):
    """What the killed agent had been told: [(seq, type)] of each append that was acknowledged to it."""

    acknowledged: list[tuple[int, str]]
    exit_code: int


def kill_an_agent(path: Path, run_id: str, rng: random.Random) -> Killed:
    """Start the scripted agent and kill it (SIGKILL) at a random point while it writes."""
    point, delay_s = rng.randint(15, 75), rng.uniform(0, 0.006)
    command = [sys.executable, "-m", "runjournal.cli.demo_agent", str(path), run_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:  # noqa: S603 - our own program
        acknowledged: list[tuple[int, str]] = []
        lines = iter(agent.stdout or ())
        for line in lines:
            acknowledged.append(_acknowledged(line))
            if len(acknowledged) == point:
                _sleep(delay_s)
                agent.send_signal(signal.SIGKILL)
                break
        acknowledged += [_acknowledged(line) for line in lines if line.endswith("\n")]
    return Killed(acknowledged, agent.returncode)


def _acknowledged(line: str) -> tuple[int, str]:
    seq, event_type = line.split()
    return int(seq), event_type


def _sleep(seconds: float) -> None:
    import time

    time.sleep(seconds)


def run_demo(path: Path, seed: int, say: Say) -> int:
    """Kill an agent, read its run back, and say what is there. Gives the exit code: 0 if nothing committed was lost."""
    with Journal.open(path) as journal:
        run_id = f"demo-{journal.new_run_id()[-12:]}"
    say(f"1. An agent works in a process of its own, and writes its run {run_id} to {path}.")
    killed = kill_an_agent(path, run_id, random.Random(seed))  # noqa: S311 - which point to kill at is no secret
    last_seq, last_type = killed.acknowledged[-1]
    say(
        f"   SIGKILL (exit {killed.exit_code}, seed {seed}). "
        f"The last append it knew to be committed: seq {last_seq}, {last_type}."
    )
    with Journal.open(path) as journal:
        return _read_back(journal, run_id, killed, path, say)


def _read_back(journal: Journal, run_id: str, killed: Killed, path: Path, say: Say) -> int:
    stored = [(record.seq, record.type) for record in journal.events(run_id)]
    kept = stored[: len(killed.acknowledged)] == killed.acknowledged
    more = len(stored) - len(killed.acknowledged)
    say("\n2. The store is opened again.")
    say(f"   {plural(len(stored), 'event')} are there, seq 1 to {stored[-1][0]} without a gap.")
    say(
        f"   All {len(killed.acknowledged)} acknowledged ones are among them: {'yes' if kept else 'NO'}."
        + (f" {more} more: committed as it died." if more else "")
    )
    state = journal.state(run_id)
    say("\n3. Folded, they say where the run was.")
    _show(state, say)
    _show_open(state, say)
    say("\n4. Replayed to two earlier points:")
    for at in (stored[-1][0] // 3, 2 * stored[-1][0] // 3):
        then = journal.replay(run_id, at)
        step = f"in step {then.steps.open.id}" if then.steps.open else "between steps"
        say(f"   seq {at:>3}: {step}, {plural(then.steps.completed_count, 'step')} done, {_usd(then)} spent")
    findings = list(audit_run(journal.store, run_id))
    say("\n5. Audited: chain, sequence, transitions, effects, checkpoints, index tables.")
    for finding in findings:
        say(f"   {finding.severity}: seq {finding.seq}: {finding.what}")
    damaged = any(finding.severity == "error" for finding in findings)
    say("   No damage: what is open is what the kill left open." if not damaged else "   DAMAGED.")
    db = "" if path == Path("runjournal.db") else f"--db {shlex.quote(str(path))} "
    say("\nLook further:")
    for command in (f"show {run_id}", f"replay {run_id} --at {stored[-1][0] // 2}", f"audit {run_id}"):
        say(f"   {_program()} {db}{command}")
    return 0 if kept and not damaged else 1


def _program() -> str:
    """How the reader can call us."""
    program = Path(sys.argv[0])
    return "runjournal" if program.name != "runjournal" or program.parent == Path() else shlex.quote(str(program))


def _show(state: RunState, say: Say) -> None:
    step = state.steps.open
    say(f"   status     {state.status.status}, claimed by {state.status.owner} (epoch {state.status.epoch})")
    say(f"   done       {plural(state.steps.completed_count, 'step')}: {', '.join(state.steps.completed) or '-'}")
    say(
        f"   open step  {f'{step.id} (index {step.index}), what it did to the context is uncommitted' if step else '-'}"
    )
    say(f"   memory     {state.memory.committed}")
    say(
        f"   cost       {_usd(state)}, {plural(state.costs.tokens(), 'token')}, "
        f"{plural(state.costs.count('calls'), 'model call')}"
    )


def _usd(state: RunState) -> str:
    return f"{money(str(state.costs.amount('USD')))} USD"


def _show_open(state: RunState, say: Say) -> None:
    calls = state.calls.open()
    say(f"   in flight  {'nothing' if not calls else ''}")
    for call_id, call in calls.items():
        verdict = (
            "may have happened: nobody may send it again unasked" if call.unresolved else "may simply be made again"
        )
        say(f"              {call_id}: {call.tool}, {call.policy}, started {call.started_at}: {verdict}")
