"""Ten agents as a new user writes them, killed at random moments, with tools that time out live; the world is judged.

    python tests/programs/ten_agents.py --kills 60 --seed 1 [--agent NAME] [--on-unknown ask|fail|tell]

Each life is a fork of this warm process, on a SQLite store in a temporary folder, and is killed by SIGKILL at a random
moment until `kills` have struck; then the run is let end. Tools of policy unsafe write a line into a ledger and then,
now and then, raise TimeoutError, or raise it before they have written. People answer truthfully, by the ledger. Models
are scripted by what they are asked, and check that each request is valid for their provider; the system prompt is
another one in each process.

The judges: no effect stands twice in the ledger, each run has ended, what it says has happened is in the ledger, and
what is in the ledger is on record or was asked about. The exit code is 1 if there is a violation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from runjournal import (
    KEY,
    AsyncJournal,
    AsyncRun,
    CallFailed,
    CallOutcomeUnknown,
    Journal,
    Rejected,
    Run,
    RunBusy,
    RunFailed,
    RunNotDue,
    RunWaiting,
    StepFailed,
    tool,
)
from runjournal.looking.audit import audit_store
from runjournal.testing.refusals import refused_by_anthropic, refused_by_openai

LIVES_MAX: Final = 400
"""Lives of one case; more is a violation."""
FOLDER: list[Path] = []
"""The folder of this case."""
LUCK = random.Random()
"""What becomes of the tools of this life."""


# ------------------------------------------------------------------------------------------------------ the world


def write(kind: str, **what: Any) -> None:
    """Add a line to the ledger, in one write."""
    line = json.dumps({"kind": kind, **what}, sort_keys=True).encode() + b"\n"
    at = os.open(FOLDER[0] / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(at, line)
    finally:
        os.close(at)


def ledger(folder: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in (folder / "ledger").read_text().splitlines()]
    except FileNotFoundError:
        return []


def act(name: str, **args: Any) -> str:
    """Act on the world; one time in four the answer gets lost, in one more nothing is done and nobody can tell."""
    luck = LUCK.random()
    if luck < 1 / 8:
        raise TimeoutError("no connection?")
    write("effect", tool=name, args=args)
    time.sleep(0.002)
    if luck < 3 / 8:
        raise TimeoutError("no answer")
    return f"{name} done"


def made(on_unknown: Any) -> dict[str, Any]:
    """The tools, all of them unsafe but for the last two."""

    @tool(on_unknown=on_unknown)
    def send_mail(to: str, body: str = "hello") -> str:
        return act("send_mail", to=to, body=body)

    @tool(on_unknown=on_unknown)
    def pay(cents: int) -> str:
        return act("pay", cents=cents)

    @tool(on_unknown=on_unknown)
    async def post(text: str) -> str:
        await asyncio.sleep(0.001)
        return act("post", text=text)

    @tool(read_only=True)
    def look_up(what: str) -> str:
        return f"{what}: found"

    @tool(policy="keyed")
    def charge(cents: int, *, idempotency_key: str = KEY) -> str:
        if any(line.get("key") == idempotency_key for line in ledger(FOLDER[0])):
            return "charged"
        write("effect", tool="charge", args={"cents": cents}, key=idempotency_key)
        if LUCK.random() < 1 / 4:
            raise TimeoutError("no answer")
        return "charged"

    return {each.name: each for each in (send_mail, pay, post, look_up, charge)}


class Invalid(Exception):
    """A request that the provider would refuse."""


SCRIPT: Final[list[list[tuple[str, dict[str, Any]]]]] = [
    [("look_up", {"what": "bill"}), ("send_mail", {"to": "ann"})],
    [("pay", {"cents": 100})],
    [("send_mail", {"to": "bob", "body": "hi"}), ("pay", {"cents": 200}), ("nothing", {}), ("look_up", {"where": 1})],
]
"""The tool calls of each answer; the third has a tool that isn't there, and args that don't fit."""


ANSWERS_MAX: Final = 7
"""Of the models: then they give up what still fails."""


def asked_for(place: int, failed: list[tuple[str, Any]], on_unknown: str) -> list[tuple[str, Any]]:
    """The calls of an answer: those of the script, and once more what has just failed; with `tell` that is settled."""
    calls = list(SCRIPT[place]) if place < len(SCRIPT) else []
    if on_unknown != "tell" and place < ANSWERS_MAX:
        calls += [call for call in failed if call[0] in ("send_mail", "pay")]
    return calls


def claude(on_unknown: str) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        messages = request["messages"]
        check_anthropic(messages)
        place = sum(message["role"] == "assistant" for message in messages)
        failed = []
        if place:
            uses = [(block["name"], block["input"]) for block in messages[-2]["content"] if block["type"] == "tool_use"]
            said = [bool(block.get("is_error")) for block in messages[-1]["content"] if block["type"] == "tool_result"]
            failed = [use for use, wrong in zip(uses, said, strict=True) if wrong]
        calls = asked_for(place, failed, on_unknown)
        content: list[Any] = [{"type": "text", "text": "well"}]
        content += [
            {"type": "tool_use", "id": f"t{place}_{n}", "name": name, "input": args}
            for n, (name, args) in enumerate(calls)
        ]
        return {
            "role": "assistant",
            "content": content,
            "stop_reason": "tool_use" if calls else "end_turn",
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }

    return answer


def check_anthropic(messages: list[Any]) -> None:
    """Each tool_use is answered once, in the very next message; roles alternate; nothing is empty."""
    for place, message in enumerate(messages):
        if message["role"] != ("user", "assistant")[place % 2]:
            raise Invalid(f"message {place} is of {message['role']}")
    if (refused := refused_by_anthropic(messages)) is not None:
        raise Invalid(refused)


def gpt(on_unknown: str) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        messages = request["messages"]
        check_openai(messages)
        place = sum(message["role"] == "assistant" for message in messages)
        results = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
        last = next((m for m in reversed(messages) if m["role"] == "assistant"), {})
        failed = [
            (use["function"]["name"], json.loads(use["function"]["arguments"]))
            for use in last.get("tool_calls") or []
            if results[use["id"]] not in ("send_mail done", "pay done", "by hand", "bill: found")
        ]
        calls = asked_for(place, failed, on_unknown)
        message: dict[str, Any] = {"role": "assistant", "content": None if calls else "done"}
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"c{place}_{n}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(args)},
                }
                for n, (name, args) in enumerate(calls)
            ]
        return {"choices": [{"message": message, "finish_reason": "tool_calls" if calls else "stop"}]}

    return answer


def check_openai(messages: list[Any]) -> None:
    """Each tool call is answered once, directly behind its message, before any other."""
    if (refused := refused_by_openai(messages)) is not None:
        raise Invalid(refused)


# ------------------------------------------------------------------------------------------------------ ten agents


def prompt() -> str:
    """Another one in each process, as a deploy or a date makes it."""
    return f"You work in process {os.getpid()}."


def claude_turns(tools: dict[str, Any], on_unknown: str, *approve: str) -> Callable[[Run], Any]:
    model, chosen = claude(on_unknown), [tools["look_up"], tools["send_mail"], tools["pay"]]

    def agent(run: Run) -> Any:
        if not run.done("begin"):
            with run.step("begin"):
                run.message("user", "Pay the bills.")
        request = {"model": "m", "system": prompt(), "max_tokens": 100}
        while (answer := run.turn("claude", request, chosen, model, approve=approve)) is None:
            pass
        return answer

    return agent


def gpt_turns(tools: dict[str, Any], on_unknown: str) -> Callable[[Run], Any]:
    model, chosen = gpt(on_unknown), [tools["look_up"], tools["send_mail"], tools["pay"]]

    def agent(run: Run) -> Any:
        if not run.done("begin"):
            with run.step("begin"):
                run.message("system", prompt())
                run.message("user", "Pay the bills.")
        while (answer := run.turn("gpt", {"model": "m"}, chosen, model)) is None:
            pass
        return answer

    return agent


def claude_turns_soon(tools: dict[str, Any], on_unknown: str, *approve: str) -> Callable[[AsyncRun], Any]:
    model, chosen = claude(on_unknown), [tools["look_up"], tools["send_mail"], tools["pay"]]

    async def ask(request: Any) -> Any:
        await asyncio.sleep(0.001)
        return model(request)

    async def agent(run: AsyncRun) -> Any:
        if not run.done("begin"):
            async with run.step("begin"):
                run.message("user", "Pay the bills.")
        request = {"model": "m", "system": prompt(), "max_tokens": 100}
        while (answer := await run.turn("claude", request, chosen, ask, approve=approve)) is None:
            pass
        return answer

    return agent


def gpt_turns_soon(tools: dict[str, Any], on_unknown: str) -> Callable[[AsyncRun], Any]:
    model, chosen = gpt(on_unknown), [tools["look_up"], tools["send_mail"], tools["pay"]]

    async def agent(run: AsyncRun) -> Any:
        if not run.done("begin"):
            async with run.step("begin"):
                run.message("user", "Pay the bills.")
        while (answer := await run.turn("gpt", {"model": "m", "user": prompt()}, chosen, model)) is None:
            pass
        return answer

    return agent


def straight(tools: dict[str, Any], on_unknown: str) -> Callable[[Run], Any]:
    """Steps in a straight line, each with one effect; what fails is written down."""

    def agent(run: Run) -> Any:
        bill = run.do("look up", lambda: tools["look_up"]("bill"))
        said = run.do("think", lambda: run.model("m", {"system": prompt()}, lambda _: {"text": "pay"}))
        heard = []
        for name, call in (
            ("pay", lambda: tools["pay"](300)),
            ("tell", lambda: tools["send_mail"](to="ann", body=bill + said["text"])),
        ):
            try:
                heard.append(run.do(name, call))
            except (StepFailed, CallOutcomeUnknown) as failure:
                heard.append(type(failure).__name__)
        return heard

    return agent


def items(tools: dict[str, Any], on_unknown: str) -> Callable[[Run], Any]:
    """A step for each item of a list, over and over until all are done."""

    def agent(run: Run) -> Any:
        names = run.do("list", lambda: ["ann", "bob", "eve"])
        for name in run.each("mail", names):
            with run.step("mail", name):
                try:
                    run.memory[name] = tools["send_mail"](to=name)
                except (CallFailed, CallOutcomeUnknown) as failure:
                    run.memory[name] = type(failure).__name__
        return dict(run.memory)

    return agent


def turns_of_its_own(tools: dict[str, Any], on_unknown: str) -> Callable[[Run], Any]:
    """A loop that tells its model what failed, which asks again in the next turn."""

    def agent(run: Run) -> Any:
        while (i := run.memory.get("i", 0)) < 4:
            with run.step("turn", repeat=True):
                try:
                    out = tools["pay"](400)
                except (CallFailed, CallOutcomeUnknown) as failure:
                    out = type(failure).__name__
                run.message("tool", out)
                settled = out in {"pay done", "by hand"} or on_unknown == "tell"
                run.memory["i"] = 4 if settled else i + 1
        return run.memory["i"]

    return agent


def asks_first(tools: dict[str, Any], on_unknown: str) -> Callable[[Run], Any]:
    """A person is asked before each payment; a no is taken for an answer."""

    def agent(run: Run) -> Any:
        heard = []
        for cents in run.each("pay", [500, 600, 700]):
            with run.step("pay", str(cents)):
                try:
                    args = run.ask("pay", args={"cents": cents}, reason="it is much")
                    run.memory[str(cents)] = tools["pay"](**args)
                except Rejected as no:
                    run.memory[str(cents)] = f"no: {no}"
                except (CallFailed, CallOutcomeUnknown) as failure:
                    run.memory[str(cents)] = type(failure).__name__
            heard.append(cents)
        return len(run.memory)

    return agent


def gathers(tools: dict[str, Any], on_unknown: str) -> Callable[[AsyncRun], Any]:
    """Calls in flight together, some of which fail, and a keyed one behind them."""

    async def agent(run: AsyncRun) -> Any:
        if not run.done("all"):
            async with run.step("all"):
                found = await asyncio.gather(
                    tools["post"]("a"), tools["post"]("b"), tools["post"]("c"), return_exceptions=True
                )
                told = [each if isinstance(each, str) else type(each).__name__ for each in found]
                for each in found:
                    if isinstance(each, BaseException) and not isinstance(each, Exception):
                        raise each
                run.memory["told"] = told
        if not run.done("charge"):
            async with run.step("charge"):
                with suppress(CallFailed):
                    await run.call(tools["charge"], cents=900)
        return run.memory["told"]

    return agent


class Kind(NamedTuple):
    """An agent, made of its tools and of what they do where nobody knows; whether it is one of asyncio."""

    make: Callable[..., Callable[[Any], Any]]
    soon: bool = False
    approve: tuple[str, ...] = ()


AGENTS: Final = {
    "claude": Kind(claude_turns),
    "gpt": Kind(gpt_turns),
    "claude soon": Kind(claude_turns_soon, soon=True),
    "gpt soon": Kind(gpt_turns_soon, soon=True),
    "claude approved": Kind(claude_turns, approve=("pay",)),
    "claude soon approved": Kind(claude_turns_soon, soon=True, approve=("pay", "send_mail")),
    "straight": Kind(straight),
    "items": Kind(items),
    "turns": Kind(turns_of_its_own),
    "asks": Kind(asks_first),
    "gathers": Kind(gathers, soon=True),
}


# ------------------------------------------------------------------------------------------------------ lives


class Case:
    """One agent under one `on_unknown`, killed again and again."""

    def __init__(self, name: str, on_unknown: str, seed: str) -> None:
        self.name, self.on_unknown, self.rng = name, on_unknown, random.Random(f"{name} {on_unknown} {seed}")
        self.kind, self.folder = AGENTS[name], Path(tempfile.mkdtemp(prefix="ten-agents-"))
        self.violations: list[str] = []
        self.kills = self.runs = 0

    def child(self, act: Callable[[], str], kill_after_s: float | None = None) -> str:
        """Fork, act, and return what the child said; "killed" if it was."""
        read, out = os.pipe()
        pid = os.fork()
        if not pid:
            said = "raised"
            try:
                FOLDER[:] = [self.folder]
                LUCK.seed(f"{self.rng.random()} {os.getpid()} {time.monotonic_ns()}")
                said = act()
            except BaseException as error:  # noqa: BLE001 - it is judged
                said = f"raised {type(error).__name__}: {error}"
            finally:
                os.write(out, said.encode()[:4000])
                os._exit(0)
        os.close(out)
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read().decode(errors="replace")
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status)
        self.kills += killed
        return "killed" if killed else said

    def live(self, run_id: str) -> str:
        agent = self.kind.make(made(self.on_unknown), self.on_unknown, *self.kind.approve)
        about: Any = {"run_id": run_id, "kind": self.name}
        try:
            if self.kind.soon:
                with AsyncJournal.open(self.folder / "runs.db") as journal:
                    return f"completed {asyncio.run(journal.run_async(agent, **about))}"
            with Journal.open(self.folder / "runs.db") as journal:
                return f"completed {journal.run(agent, **about)}"
        except RunWaiting:
            return "waiting"
        except (RunBusy, RunNotDue) as error:
            return type(error).__name__
        except RunFailed as failed:
            return f"failed {failed}"

    def people(self, run_id: str) -> str:
        """Answer truthfully what is asked."""
        rows = Counter(json.dumps([r["tool"], r["args"]], sort_keys=True) for r in ledger(self.folder) if "tool" in r)
        with Journal.open(self.folder / "runs.db", by="people") as journal:
            for question in journal.questions(run_id):
                if question.kind == "approval":
                    args = question.args or {}
                    if args.get("cents") == 600:
                        journal.reject(run_id, question.id, note="too much")
                    else:
                        journal.approve(run_id, question.id)
                    continue
                bound = dict(question.args or {})
                happened = rows[json.dumps([question.action, bound], sort_keys=True)]
                journal.resolve(run_id, question.id, *(("happened", "by hand") if happened else ("did_not_happen",)))
            status = journal.state(run_id).status
            if "recoveries" in [wait["kind"] for wait in status.waits]:
                journal.resume(run_id)
        return "spoken"

    def one(self, run_id: str, kills: int) -> None:
        """Let one run end, killed up to so often."""
        self.runs += 1
        took = 0.15
        for _ in range(LIVES_MAX):
            strike = self.kills < kills
            began = time.monotonic()
            said = self.child(lambda: self.live(run_id), self.rng.random() * took if strike else None)
            if said.startswith(("completed", "failed")):
                break
            if said == "waiting":
                took = 0.7 * took + 0.3 * (time.monotonic() - began)
                self.child(
                    lambda: self.people(run_id),
                    self.rng.random() * 0.05 if strike and self.rng.random() < 0.2 else None,
                )
            elif said not in ("killed", "RunBusy", "RunNotDue"):
                self.violations.append(f"{run_id}: {said}")
                return
            if said == "RunNotDue":
                time.sleep(0.3)
        else:
            self.violations.append(f"{run_id}: no end")

    def judge(self) -> None:
        """Look at the ledger, and at the log, by a journal of its own."""
        for row, count in Counter(json.dumps(r, sort_keys=True) for r in ledger(self.folder)).items():
            per_run = count / self.runs
            if per_run > 1:
                self.violations.append(f"{count} times in {self.runs} runs: {row}")
        with Journal.open(self.folder / "runs.db") as journal:
            found = [each for each in audit_store(journal.store) if each.severity == "error"]
        self.violations += [f"audit: {each}" for each in found]

    def go(self, kills: int) -> None:
        """Runs of this agent until so many kills have struck, each judged in a world of its own."""
        while self.kills < kills and not self.violations:
            before, self.runs = self.kills, 0
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            self.one("r", kills)
            if not self.violations:
                self.child_judges()
            if self.kills == before and self.runs > 200:
                self.violations.append("no kill has struck")
        shutil.rmtree(self.folder, ignore_errors=True)

    def child_judges(self) -> None:
        def judged() -> str:
            self.judge()
            return "\n".join(self.violations)

        said = self.child(judged)
        self.violations += [line for line in said.splitlines() if line]


def say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


@contextmanager
def told(text: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    say(f"{text} {time.monotonic() - began:.1f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60, help="of each agent under each on_unknown")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--agent", choices=AGENTS, action="append")
    parser.add_argument("--on-unknown", choices=("ask", "fail", "tell"), action="append")
    given = parser.parse_args()
    violations, kills = [], 0
    for name in given.agent or AGENTS:
        for on_unknown in given.on_unknown or ("ask", "fail", "tell"):
            case = Case(name, on_unknown, given.seed)
            with told(f"{name} / {on_unknown}: "):
                case.go(given.kills)
            kills += case.kills
            violations += [f"{name} / {on_unknown}: {each}" for each in case.violations]
    say(*violations)
    say(f"agents {len(given.agent or AGENTS)}")
    say(f"kills {kills}")
    say(f"violations {len(violations)}")
    return bool(violations)


if __name__ == "__main__":
    sys.exit(main())
