"""The demo: killed where the seed says, recovered, and its promises checked, which can also be found broken."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runjournal.cli.demo.command import run_demo
from runjournal.cli.demo.evidence import effects
from runjournal.cli.demo.stage import COMMIT, INVOICES, Stage, two_points
from runjournal.cli.demo.world import DemoWorld, request
from runjournal.journal import Journal
from runjournal.log.events import ToolResolved
from runjournal.looking.audit import audit_store

WRONG = Path(__file__).parent / "programs" / "demo_world_gone_wrong.py"


def seed_of(what: str) -> int:
    """The first seed with a kill between this effect and its record."""
    return next(seed for seed in range(100) if what in {point.what for point in two_points(random.Random(seed))})


IN_A_CHARGE, IN_A_PULL_REQUEST = seed_of("charge_card"), seed_of("open_pull_request")
DONE = sorted([*(("charge_card", name) for name in INVOICES), ("open_pull_request", "Bookings of November")])


def demo(path: Path, seed: int, fault: str = "") -> tuple[int, str]:
    """The exit code, and the screen."""
    said = list[str]()
    world = [[sys.executable, str(WRONG), fault]] if fault else []
    code = run_demo(path, seed, said.append, *world)
    return code, "\n".join(said)


def broken(screen: str) -> list[str]:
    return [line[7:] for line in screen.splitlines() if line.startswith("   NO  ")]


def in_the_world(path: Path) -> list[tuple[str, str]]:
    (folder,) = path.with_name(f"{path.name}-demo").iterdir()
    return sorted((entry["what"], next(iter(entry["args"].values()))) for entry in effects(folder))


def processes(word: str) -> list[str]:
    """The command lines of the processes that name something."""
    found = list[str]()
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended
            continue
        if word in line:
            found.append(line)
    return found


def whole(path: Path, seed: int) -> None:
    code, screen = demo(path, seed)
    assert (0, []) == (code, broken(screen)), screen
    assert DONE == in_the_world(path), screen
    with Journal.open(path) as journal:
        assert [] == [finding for finding in audit_store(journal.store) if finding.counts]
        assert ["completed"] == [head.status for head in journal.runs()]
    assert 100 >= max(len(line) for line in screen.splitlines() if str(path.parent) not in line)
    assert 70 >= len(screen.splitlines())


@pytest.mark.requirement("R3")
@pytest.mark.parametrize("seed", range(6))
def test_each_effect_happens_once_wherever_it_is_killed(tmp_path, seed):
    """The demo exits with 0, the world has each effect once, and the audit finds nothing."""
    whole(tmp_path / "runs.db", seed)


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(6, 56))
def test_each_effect_happens_once_wherever_it_is_killed_at_length(tmp_path, seed):
    """The same, for more seeds."""
    whole(tmp_path / "runs.db", seed)


def test_one_of_two_points_lies_between_an_effect_and_its_record():
    """Whatever the seed, one kill is after a commit and one in the window of a keyed or an unsafe call."""
    points = [two_points(random.Random(seed)) for seed in range(200)]
    assert {COMMIT} == {first.what for first, _ in points}
    assert {"charge_card", "open_pull_request"} == {second.what for _, second in points}


def test_the_same_seed_tells_the_same_story(tmp_path):
    """But for ids, keys and times, a seed gives the same screen again."""
    stories = list[list[str]]()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        _, screen = demo(tmp_path / name / "runs.db", IN_A_CHARGE)
        stories.append([line for line in screen.splitlines() if line.startswith(("   kept", "   replayed"))])
        stories[-1] += [line for line in screen.splitlines() if "killed" in line]
    assert stories[0] == stories[1]


def test_an_unsafe_call_that_was_cut_off_is_a_question(tmp_path):
    """Nobody sends the pull request again: the run waits, the ledger is looked at, the answer is on record."""
    code, screen = demo(tmp_path / "runs.db", IN_A_PULL_REQUEST)
    assert 0 == code
    for said in ("asked       open_pull_request (unsafe)", "it waits for a person", "answered    yes"):
        assert said in screen
    with Journal.open(tmp_path / "runs.db") as journal:
        (head,) = journal.runs()
        words = [record.event for record in journal.events(head.run_id) if isinstance(record.event, ToolResolved)]
    assert ["happened"] == [word.outcome for word in words]


def test_a_keyed_call_that_was_cut_off_is_sent_again(tmp_path):
    """The charge is sent under its key, and the card company makes it once."""
    code, screen = demo(tmp_path / "runs.db", IN_A_CHARGE)
    assert 0 == code
    assert "sent again  charge_card (keyed)" in screen


@pytest.mark.parametrize(
    ("fault", "seed", "check"),
    [
        ("twice", IN_A_CHARGE, "every effect is in the world's ledger, and once"),
        ("twice", IN_A_CHARGE, "every question to the model was paid once"),
        ("forgets", IN_A_CHARGE, "every effect is in the world's ledger, and once"),
        ("charges more", IN_A_PULL_REQUEST, "the agent's own table has one row for each charge"),
    ],
)
def test_a_promise_that_is_broken_is_found(tmp_path, fault, seed, check):
    """With a world that does things twice, or other things than it was asked for, the demo exits with 1."""
    code, screen = demo(tmp_path / "runs.db", seed, fault)
    assert 1 == code
    assert check in broken(screen)


def test_a_world_that_dies_ends_the_demo(tmp_path):
    """The demo says so, and leaves no process behind."""
    with pytest.raises(ChildProcessError, match="world has ended"):
        demo(tmp_path / "runs.db", IN_A_CHARGE, "dies")
    assert [] == processes(str(tmp_path))


def test_an_interrupt_leaves_no_process_behind(tmp_path):
    """Ctrl-C at any moment ends the agent and the world too."""
    command = [sys.executable, "-m", "runjournal.cli", "--db", str(tmp_path / "runs.db"), "demo", "--seed", "1"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as running:
        assert running.stdout is not None
        while "It starts" not in running.stdout.readline():
            pass
        running.send_signal(signal.SIGINT)
        assert 130 == running.wait(60)
    assert [] == processes(str(tmp_path))


def test_a_killed_demo_leaves_no_process_behind(tmp_path):
    """When nobody holds their gate any more, the agent and the world end by themselves."""
    command = [sys.executable, "-m", "runjournal.cli", "--db", str(tmp_path / "runs.db"), "demo", "--seed", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as running:
        assert running.stdout is not None
        while b"It starts" not in running.stdout.readline():
            pass
        running.kill()
    for _ in range(600):
        if not processes(str(tmp_path)):
            break
        time.sleep(0.1)
    assert [] == processes(str(tmp_path))


def test_a_path_too_long_for_a_socket(tmp_path):
    """The world listens on the loopback then."""
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    with Stage(folder, []) as stage:
        assert stage._address.startswith("127.0.0.1:")


def test_a_key_is_known_again_by_the_next_world(tmp_path, monkeypatch):
    """The card company gives the first charge for its key again, also after it was started anew."""
    monkeypatch.setattr("runjournal.cli.demo.world.pause", lambda _: None)
    args = {"invoice": "a.txt", "cents": 5}
    first = DemoWorld(tmp_path).answer("charge_card", "k", args)
    assert first == DemoWorld(tmp_path).answer("charge_card", "k", args)
    assert {"charge": "ch_2", "cents": 5} == DemoWorld(tmp_path).answer("charge_card", "other", args)
    assert [{"number": 101}, {"number": 102}] == [
        DemoWorld(tmp_path).answer("open_pull_request", "", {"title": "t", "body": "b"}) for _ in range(2)
    ]


def test_nobody_is_there(tmp_path):
    """A client of a world that isn't there gets the error of the system."""
    with pytest.raises(FileNotFoundError):
        request(str(tmp_path / "world.sock"), "charge_card", {})


def test_a_store_that_processes_cannot_share_is_refused():
    """The demo needs a file: `memory:` is an error of usage."""
    done = subprocess.run(
        [sys.executable, "-m", "runjournal.cli", "--db", "memory:", "demo"], capture_output=True, text=True, check=False
    )
    assert (2, True) == (done.returncode, done.stderr.startswith("error: expected a store in a file"))
