"""A smoke test of an installed runjournal: an agent is interrupted and goes on, and the command line looks at its run.

    python smoke.py FOLDER

It imports nothing but the package and the standard library, so that it runs where the sources are out of reach.
"""

import os
import subprocess
import sys
from pathlib import Path

import runjournal
from runjournal import KEY, Journal, tool

SENT: list[str] = []


@tool(policy="keyed")
def send(to: str, *, idempotency_key: str = KEY) -> str:
    SENT.append(idempotency_key)
    return f"mail to {to}"


def greet(run):
    for name in run.each("greet", run.input):
        with run.step("greet", key=name):
            run.memory[name] = send(name)
        if name == "ada" and len(SENT) == 1:
            raise KeyboardInterrupt


def main(folder: Path) -> None:
    home = Path(sys.prefix).resolve()
    assert Path(runjournal.__file__).resolve().is_relative_to(home), f"{runjournal.__file__} isn't of {home}"
    path = folder / "runs.db"
    for _ in range(2):
        with Journal.open(path) as journal:
            try:
                journal.run(greet, run_id="greet-1", input=["ada", "bob"])
            except KeyboardInterrupt:
                sys.stdout.write("interrupted\n")
    with Journal.open(path) as journal:
        state = journal.state("greet-1")
        assert "completed" == state.status.status, state.status.status
        assert {"ada": "mail to ada", "bob": "mail to bob"} == state.memory.committed
    assert 2 == len(set(SENT)) == len(SENT), SENT
    env = {name: value for name, value in os.environ.items() if not name.startswith("RUNJOURNAL_")}
    for words in (["ls"], ["show", "greet-1"], ["audit", "greet-1"], ["verify", "greet-1"], ["config"]):
        command = [sys.executable, "-m", "runjournal.cli", "--db", str(path), *words]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert 0 == done.returncode, f"{command}\n{done.stdout}\n{done.stderr}"
    sys.stdout.write("smoke test passed\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
