"""Ten minutes of outage, killed at each boundary, and against a real HTTP server: engine.md F20 to F24."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from crashing import Crash, Struck, World
from tasks.lab import FIRST_PID

from runjournal import Journal, Retry, Run, RunNotDue
from runjournal.log import events as e
from runjournal.log.clock import FakeClock, parse_timestamp
from runjournal.log.memory import MemoryStore
from runjournal.log.owner import Process

OUT_S = 600.0


class Overloaded(Exception):
    """What a client raises."""

    def __init__(self, status: int, after_s: float | None) -> None:
        super().__init__(f"status {status}")
        self.status_code = status
        self.response = type("Response", (), {"headers": {} if after_s is None else {"Retry-After": str(after_s)}})()


class Provider:
    """It goes out behind its first answer, for ten minutes: 529, then 429 with Retry-After, then resets."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.since: datetime | None = None
        self.asked: list[datetime] = []
        self.answered: list[Any] = []

    def answer(self, question: Any) -> Any:
        """Return an answer, or a status and what is asked for by Retry-After; a status of 0 is a reset."""
        now = self.clock.now()
        if self.since is not None:
            self.asked.append(now)
            out_s = (now - self.since).total_seconds()
            if out_s < OUT_S:
                return (529, None) if out_s < 100 else (429, 45) if out_s < 400 else (0, None)
        self.since = self.since or now
        self.answered.append(question)
        return {"answer": question}


def through(agent: Any, store: MemoryStore, strikes: frozenset[int] = frozenset(), **how: Any) -> tuple[Any, World]:
    """Processes one after the other, each when the run is due, until it has ended; one dies at the tick struck."""
    clock: Any = store.clock
    world = World(strikes, store, random.Random(0))
    how["worlds"].append(world)
    for life in range(60):
        world.dead = False
        process = Process("crashing", "boot", "namespace", FIRST_PID + life, "1")
        journal = Journal(Struck(store, world.tick), by=f"process-{life}", process=process, retry=Retry())  # type: ignore[arg-type]
        try:
            return journal.run(agent, run_id="r", kind="agent"), world
        except Crash:
            continue
        except RunNotDue as not_due:
            left = parse_timestamp(not_due.due_at) - clock.now()
            clock.sleep(max(0.0, left.total_seconds()))
    raise AssertionError("it hasn't ended")


def outage(strikes: frozenset[int]) -> tuple[MemoryStore, Provider, World]:
    """An agent in an outage, that dies where it is struck."""
    clock = FakeClock()
    store, provider, worlds = MemoryStore(clock=clock), Provider(clock), list[World]()

    def ask(request: Any) -> Any:
        worlds[-1].tick()
        failed = [each.event for each in store.read("r", types=("model.failed",))]
        last = [parse_timestamp(x.retry_at) for x in failed if isinstance(x, e.ModelFailed) and x.retry_at]
        assert not last or clock.now() >= last[-1], "asked before the time on record"
        answer = provider.answer(request)
        worlds[-1].tick()
        if isinstance(answer, tuple):
            raise Overloaded(*answer) if answer[0] else ConnectionResetError("reset")
        return answer

    def agent(run: Run) -> Any:
        return run.do("work", lambda: [run.model("m", question, ask) for question in ("one", "two", "three")])

    output, world = through(agent, store, strikes, worlds=worlds)
    assert [{"answer": "one"}, {"answer": "two"}, {"answer": "three"}] == output
    return store, provider, world


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.crash)])
def test_an_outage_killed_at_each_boundary(every: int) -> None:
    """The run completes, its step is begun once, nobody asks before the time on record, and no answer is paid again.

    A process that dies between an answer and its record has it paid once more, which nobody can help.
    """
    store, provider, world = outage(frozenset())
    ticks, usual = world.ticks, len(provider.asked)
    assert usual <= 12 + 2
    assert ["one", "two", "three"] == provider.answered
    for tick in range(1, ticks + 1, every):
        store, provider, _ = outage(frozenset({tick}))
        types = [record.type for record in store.read("r")]
        assert "step.failed" not in types
        assert 1 == types.count("step.completed")
        assert 3 == types.count("model.completed")
        assert len(provider.answered) <= 4
        assert ["one", "two", "three"] == sorted(set(provider.answered), key=provider.answered.index)
        assert len(provider.asked) <= usual + 3
        out = [at for at in provider.asked if (at - provider.asked[0]).total_seconds() < OUT_S]
        assert len(out) <= 12 + 1


# A real server.


class Handler(BaseHTTPRequestHandler):
    """Answers as the provider does."""

    provider: Provider

    def do_POST(self) -> None:
        """Answer, refuse, or reset the connection."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self.provider.answer(body["question"])
        if answer == (0, None):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        refused = isinstance(answer, tuple)
        self.send_response(answer[0] if refused else 200)
        if refused and answer[1] is not None:
            self.send_header("Retry-After", str(answer[1]))
        self.end_headers()
        self.wfile.write(json.dumps({} if refused else answer).encode())

    def finish(self) -> None:
        """End a request; of one that was reset there is nothing to end."""
        if self.connection.fileno() != -1:
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def served(provider: Provider) -> Iterator[str]:
    """A server on this machine."""
    handler = type("Bound", (Handler,), {"provider": provider})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def post(url: str, question: Any) -> Any:
    """Ask it, as people do with the standard library."""
    request = urllib.request.Request(url, json.dumps({"question": question}).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        error.close()
        raise


@pytest.mark.parametrize("waits", [False, True])
def test_ten_minutes_of_outage_of_a_real_server(waits: bool) -> None:
    """529, then 429 with Retry-After, then resets, then answers: asked at most twelve times, and each is paid once."""
    clock = FakeClock()
    provider = Provider(clock)
    with served(provider) as url, Journal.open("memory:", clock=clock, retry=Retry()) as journal:

        def agent(run: Run) -> Any:
            with run.step("work"):
                first = run.model("m", "one", lambda question: post(url, question))
                return [first, run.model("m", "two", lambda question: post(url, question))]

        output, runs = None, 0
        while output is None:
            runs += 1
            try:
                output = journal.run(agent, run_id="r", wait_s=3600 if waits else 0)
            except RunNotDue as not_due:
                clock.sleep((parse_timestamp(not_due.due_at) - clock.now()).total_seconds())
        errors = [
            record.event.error["type"] for record in journal.events("r") if isinstance(record.event, e.ModelFailed)
        ]
        assert "step.failed" not in [record.type for record in journal.events("r")]
    assert [{"answer": "one"}, {"answer": "two"}] == output
    assert ["one", "two"] == provider.answered
    assert len(provider.asked) <= 12 + 1  # the last of them is answered
    assert {"HTTPError"} < set(errors)
    refused = [at for at in provider.asked if 100 <= (at - provider.asked[0]).total_seconds() < 400]
    assert all(b - a >= timedelta(seconds=45) for a, b in zip(refused, provider.asked[-len(refused) :], strict=False))
    assert (runs == 1) == waits
