"""The ledger of effects: one row for what happened, kept for ever, and asked before anything is sent again."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from crashing import everywhere, finish, outside

from runjournal import KEY, Journal, tool
from runjournal.engine import failures as f
from runjournal.engine.tools import call_key
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.errors import CallEnded
from runjournal.log.limits import lease_s
from runjournal.looking.audit import audit_run
from runjournal.run import Run
from runjournal.runner import Runner


@tool
def send_email_once(to: str) -> str:
    return outside.did("send_email_once", to)


@tool(key="report-{name}", reconcile=lambda args, key: written(args["name"]))
def write_report(name: str) -> str:
    return outside.did("write_report", name)


def written(name: str) -> tuple[str, Any]:
    """The existence check of a report."""
    there = any(tool == "write_report" and args == json.dumps(name) for tool, args, _ in outside.world.effects)
    return ("happened", f"write_report {name}") if there else ("did_not_happen", None)


@tool(policy="keyed")
def charge(cents: int, *, idempotency_key: str = KEY) -> str:
    return outside.did("charge", cents, idempotency_key)


@tool(read_only=True)
def load(path: str) -> str:
    return outside.did("load", path)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "runs.db", clock=FakeClock()) as opened:
        yield opened


def types(journal: Journal, run_id: str = "r") -> list[str]:
    return [each.type for each in journal.events(run_id)]


# ------------------------------------------------------------------------------------------------------------- the key

GOLDEN = [
    ("turn-17", "send", "send_email", {"to": "ada"}, 1, "21550083862c24a2c463a03d"),
    ("turn-17", "send", "send_email", {"to": "Zoë", "n": 1}, 1, "77a9f2caff3f231d4cc6fae0"),
    ("turn-17", "send", "send_email", {"to": "ada"}, 2, "c56a43aa1b404c48a675ca95"),
    ("turn-18", "send", "send_email", {"to": "ada"}, 1, "a41d8f252311133929a5973f"),
]


@pytest.mark.requirement("R98", "R99", "R100", "R112")
def test_the_key_of_a_call() -> None:
    """24 hex digits of SHA-256 over the canonical JSON of scope, step, tool and args, and n for the n-th equal one."""
    # Another variant, sha256(session:step:action)[:32], isn't offered: it would take two calls of a step for one.
    for scope, step, what, args, n, key in GOLDEN:
        assert key == call_key(scope, step, what, args, n)
        about = {"args": args, "step": step, "task": scope, "tool": what} | ({"n": n} if n > 1 else {})
        text = json.dumps(about, sort_keys=True, ensure_ascii=False)
        assert hashlib.sha256(text.encode()).hexdigest()[:24] == key
    assert len(GOLDEN) == len({key for *_, key in GOLDEN})
    assert call_key("s", "a", "t", {"a": 1, "b": "é"}) == call_key("s", "a", "t", {"b": "é", "a": 1})


@pytest.mark.requirement("R102")
def test_the_key_is_given_to_the_tool(journal: Journal) -> None:
    """As `idempotency_key`, the id that the log has."""
    given = []

    @tool(policy="keyed")
    def pay(cents: int, *, idempotency_key: str = KEY) -> None:
        given.append((cents, idempotency_key))

    def agent(run: Run) -> None:
        with run.step("a"):
            pay(1)
            pay(1)

    journal.run(agent, run_id="r")
    started = [each.event for each in journal.events("r") if isinstance(each.event, e.ToolStarted)]
    assert [(1, each.call_id) for each in started] == given
    assert 2 == len({key for _, key in given})


# ---------------------------------------------------------------------------------------------------------- the ledger


@pytest.mark.requirement("R96", "R97", "R103", "R106")
def test_an_effect_is_one_row_for_ever(journal: Journal) -> None:
    """The intent is on record before the tool is called, its row before the step goes on; the first row stands."""
    seen = []

    @tool
    def act(n: int) -> int:
        seen.append((types(journal)[-1], journal.sql("SELECT count(*) FROM effects")))
        return n

    def agent(run: Run) -> None:
        with run.step("a"):
            act(1)
            seen.append((types(journal)[-1], journal.sql("SELECT count(*) FROM effects")))
            act(2)

    journal.run(agent, run_id="r")
    assert [("tool.started", [(0,)]), ("tool.completed", [(1,)]), ("tool.started", [(1,)])] == seen
    rows = journal.sql("SELECT scope, key, tool, args_sha256, run_id, seq FROM effects ORDER BY seq")
    assert [("r", "act", "r"), ("r", "act", "r")] == [(row[0], row[2], row[4]) for row in rows]
    recorded = [next(iter(journal.events("r", after=row[5] - 1, upto=row[5]))) for row in rows]
    assert [1, 2] == [each.event.result for each in recorded]  # type: ignore[attr-defined]
    assert all(each.at for each in recorded)
    connection = apsw.Connection(str(journal.store.info()["path"]))
    again = "INSERT INTO effects VALUES ('r', ?, 'other', 'x', 'r', 99)"
    connection.execute(again, (rows[0][1],))
    connection.execute(again.replace("INSERT", "INSERT OR REPLACE"), (rows[0][1],))
    for forbidden in ("UPDATE effects SET tool = 'other'", "DELETE FROM effects"):
        with pytest.raises(apsw.ConstraintError, match="insert-only"):
            connection.execute(forbidden)
    connection.close()
    assert rows == journal.sql("SELECT scope, key, tool, args_sha256, run_id, seq FROM effects ORDER BY seq")


@pytest.mark.requirement("R11", "R105")
def test_effects_survive_the_loss_of_context_and_progress(journal: Journal) -> None:
    """A restart begins with an empty context and no progress: what was sent is given back, and not sent again."""
    sent = []

    @tool(key="order-{order}")
    def ship(order: int) -> str:
        sent.append(order)
        return f"shipped {order}"

    def agent(run: Run) -> Any:
        with run.step("ship" if run.id == "r" else "another step"):
            run.message("user", "go")
            shipped = ship(7)
        if run.id == "r":
            raise ValueError("no")
        return shipped

    with pytest.raises(ValueError, match="no"):
        journal.run(agent, run_id="r")
    journal.store.drop_checkpoints()
    again = journal.restart("r")
    assert ([], {}) == (list(journal.messages(again)), journal.state(again).memory.committed)
    assert "shipped 7" == journal.run(agent, run_id=again)
    assert [7] == sent


@pytest.mark.requirement("R110")
def test_a_report_is_written_once() -> None:
    """A stable id, a look whether it is there, a record of it, and "it happened" as a state: one report, everywhere."""

    def agent(run: Run) -> Any:
        return run.do("write", write_report, "march")

    whole, ends = everywhere(agent)
    assert {("write_report", '"march"'): 1} == dict(whole.effects)
    assert [whole.facts] * len(ends) == [end.facts for end in ends]
    assert [1] * len(ends) == [len(end.keys) for end in ends]


@pytest.mark.requirement("R111")
def test_a_mail_is_sent_once_to_each() -> None:
    """Another address in the same task is another mail; the same one in a step that has completed isn't sent again."""

    def agent(run: Run) -> None:
        for to in run.each("mail", ["ada", "bob"]):
            with run.step("mail", key=to):
                send_email_once(to)

    whole, ends = everywhere(agent)
    assert {("send_email_once", '"ada"'): 1, ("send_email_once", '"bob"'): 1} == dict(whole.effects)
    assert [whole.effects] * len(ends) == [end.effects for end in ends]


# -------------------------------------------------------------------------------------------------------- after a crash


@pytest.mark.requirement("R104", "R107", "R64", "R60", "R59")
def test_each_policy_at_every_boundary() -> None:
    """Killed anywhere: what is on record is skipped; an unsafe effect without a record is a question, not repeated."""

    def all_of_them() -> None:
        load("a")
        charge(5)
        send_email_once("ada")

    def agent(run: Run) -> str:
        run.do("all", all_of_them)
        return "done"

    assert "unsafe" == send_email_once.policy
    whole, ends = everywhere(agent)
    for end in ends:
        assert (whole.status, whole.output) == (end.status, end.output)
        assert 1 == end.effects["send_email_once", '"ada"']
        assert 1 == len([key for what, _, key in end.keys if what == "charge"])
        assert 1 <= end.effects["load", '"a"'] <= 2
    assert any(end.effects["load", '"a"'] == 2 for end in ends)


@pytest.mark.requirement("R74", "R151", "R152")
def test_completed_steps_are_not_executed_again() -> None:
    """Of five steps the fifth is killed: it alone is entered again; a run of one step is no exception."""
    executed: Counter[int] = Counter()

    def agent(run: Run) -> list[int]:
        return [run.do("step", step, n, key=n) for n in range(1, 6)]

    def step(n: int) -> int:
        executed[n] += 1
        if n == 5:
            send_email_once("ada")
        return n

    whole, entered = finish(agent), Counter[int]()
    for tick in range(1, whole.world.ticks + 1):
        executed.clear()
        assert whole.facts == finish(agent, [tick]).facts
        twice = [n for n, count in executed.items() if count > 1]
        assert len(twice) <= 1  # the one that was open, and no other
        entered.update(twice)
    assert {1, 2, 3, 4, 5} == set(entered)

    def small(run: Run) -> str:
        return run.do("only", send_email_once, "bob")

    one, ends = everywhere(small)
    assert [one.facts] * len(ends) == [each.facts for each in ends]


@pytest.mark.requirement("R69", "R123", "R71")
def test_the_recorded_arguments_are_sent_again_and_no_model_is_asked() -> None:
    """Of calls in flight together those that ended keep their results; the others go out with what was recorded."""
    answers = [{"text": "pay 5", "cents": 5}]

    def agent(run: Run) -> Any:
        def pay() -> Any:
            answer: Any = run.model("m", {"ask": "how much?"}, outside.says)
            paid = run.parallel([(charge, {"cents": answer["cents"]}), (load, {"path": "a"}), (load, {"path": "b"})])
            run.message("assistant", answer["text"])
            return paid

        return run.do("pay", pay)

    whole, ends = everywhere(agent, answers=answers)
    assert ["charge 5", "load a", "load b"] == whole.output
    for end in ends:
        assert (whole.output, whole.context) == (end.output, end.context)
        assert 1 == len([key for what, _, key in end.keys if what == "charge"])
        assert len(end.world.asked) <= 2  # the one whose answer got lost
    assert 1 == min(len(end.world.asked) for end in ends)


@pytest.mark.requirement("R125", "R126")
def test_code_that_was_edited_meanwhile() -> None:
    """Where the run stands is a step, no line: code that grew goes on, code that goes another way is stopped first."""

    def old(run: Run) -> str:
        run.do("load", load, "a")
        return run.do("mail", send_email_once, "ada")

    def longer(run: Run) -> str:
        for line in ("some", "more", "lines"):
            assert line
        text = run.do("load", load, "a")
        run.do("mail", send_email_once, "ada")
        return str(run.do("count", len, text))

    def deployed(run: Run) -> str:  # each process has newer code than the one before
        lives.append(run)
        return (old if len(lives) == 1 else longer)(run)

    lives: list[Run] = []
    entries: set[int] = set()
    for tick in range(1, finish(old).world.ticks):
        lives.clear()
        end = finish(deployed, [tick])
        assert ("completed", 1) == (end.status, end.effects["send_email_once", '"ada"'])
        entries.add(len(lives))
    assert {1, 2} == entries  # one that died before its agent was called


@pytest.mark.requirement("R126")
def test_an_edit_in_the_middle_of_a_step_is_stopped(journal: Journal) -> None:
    """Inserted before the open step, renamed, or reordered: PlanChanged, and nothing is done."""

    def died(run: Run) -> None:
        run.do("load", lambda: 1)
        with run.step("mail"):
            raise KeyboardInterrupt

    done = []
    with pytest.raises(KeyboardInterrupt):
        journal.run(died, run_id="r", kind="agent")
    for edited in (["load", "inserted", "mail"], ["load", "renamed"], ["other", "load", "mail"]):

        def agent(run: Run, names: list[str] = edited) -> None:
            for name in names:
                if not run.done(name):
                    with run.step(name):
                        done.append(name)

        with pytest.raises(f.PlanChanged, match="step mail is open"):
            journal.run(agent, run_id="r")
    assert [] == done


# ------------------------------------------------------------------------------------------------------------ failures


@pytest.mark.requirement("R109")
def test_a_recorded_failure_is_no_effect(journal: Journal) -> None:
    """A repeatable call that failed is made again when it is asked for again; of an unsafe one nobody ever knows."""
    calls: Counter[str] = Counter()

    @tool(policy="idempotent")
    def look() -> str:
        calls["look"] += 1
        if calls["look"] == 1:
            raise ValueError("no")
        return "seen"

    @tool(on_unknown="fail")
    def act() -> str:
        calls["act"] += 1
        raise ValueError("no")

    def agent(run: Run) -> list[str]:
        with run.step("a"):
            with pytest.raises(f.CallFailed):
                look()
            for _ in range(2):
                with pytest.raises(f.CallOutcomeUnknown) as unknown:
                    act()
                assert {"type": "ValueError", "message": "no"} == unknown.value.original
            return [look()]

    assert ["seen"] == journal.run(agent, run_id="r")
    assert {"look": 2, "act": 1} == dict(calls)
    assert [] == journal.sql("SELECT * FROM effects")
    assert 1 == journal.sql("SELECT count(*) FROM unknowns")[0][0]


@pytest.mark.requirement("R17", "R117")
def test_attempts_are_counted_by_step_and_not_in_the_messages(journal: Journal) -> None:
    """With three failures before it the transcript is the same as with none; the report counts each step's."""

    def agent(fails: int) -> Any:
        left = [fails]

        def body(run: Run) -> None:
            for _ in range(4):
                try:
                    with run.step("write"):
                        run.message("user", "write")
                        if left[0]:
                            left[0] -= 1
                            raise ValueError("no")
                        run.message("assistant", "written")
                        return
                except f.StepFailed:
                    continue

        return body

    journal.run(agent(0), run_id="calm")
    journal.run(agent(3), run_id="stormy")
    shown = [[(m.role, m.content) for m in journal.messages(run) if m.committed] for run in ("calm", "stormy")]
    assert shown[0] == shown[1]
    ends = [journal.store.step_ends(run, "write") for run in ("calm", "stormy")]
    assert [[1], [0, 0, 0, 1]] == [[end.ok for end in run] for run in ends]
    assert [1, 4] == [journal.state(run).steps.recent[0][2] for run in ("calm", "stormy")]


@pytest.mark.requirement("R81")
@pytest.mark.parametrize("progress", [False, True])
def test_a_run_that_dies_again_and_again_is_stopped(journal: Journal, progress: bool) -> None:
    """Each recovery is counted before it is made; the fourth in a row stops it, unless a step completed between."""

    class Died(BaseException):
        pass

    runner, lives = Runner(journal, {}), 0
    journal.enqueue("k", run_id="r")
    while lives < 10 and (claim := runner.claim("r")) is not None:
        run, _ = runner.open(claim)
        if progress:
            run.do("part", lambda: None, key=lives)
        else:
            with pytest.raises(Died), run.step("last"):
                raise Died
        lives += 1
        journal.clock.elapsed_s += 2 * lease_s  # type: ignore[attr-defined]
    state = journal.state("r").status
    assert (("running", 10) if progress else ("waiting", 4)) == (state.status, lives)
    assert ([] if progress else ["restart_loop"]) == [wait["id"] for wait in state.waits]


@pytest.mark.requirement("R120")
@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_what_is_no_exception_leaves_a_coherent_log(journal: Journal, raised: type[BaseException]) -> None:
    """The step stays open, its outcome is not guessed, the run is given back, and it goes on."""
    left = [raised]

    def agent(run: Run) -> str:
        with run.step("a"):
            run.message("user", "go")
            if left:
                raise left.pop()
        return "done"

    with pytest.raises(raised):
        journal.run(agent, run_id="r")
    assert "run.requeued" == types(journal)[-1]
    assert "step.failed" not in types(journal)
    assert "done" == journal.run(agent, run_id="r")
    assert ["go"] == [message.content for message in journal.messages("r") if message.committed]


@pytest.mark.requirement("R26")
def test_a_queued_run_is_claimed_by_one(journal: Journal) -> None:
    """From queued to running by one append; whoever comes second is told that it is busy."""
    journal.enqueue("k", run_id="r")
    first = journal.claim("r")
    assert first is not None
    other = Journal(journal.store, by="other")
    with pytest.raises(f.RunBusy):
        other.claim("r")
    assert ("running", 1) == (journal.head("r").status, journal.head("r").epoch)
    assert ["run.queued", "run.claimed"] == types(journal)


@pytest.mark.parametrize("given", [(1, 2), {1: 2}, {1, 2}, object(), float("nan")])
def test_what_cannot_be_stored_is_a_mistake_in_the_code(journal: Journal, given: object) -> None:
    """A `do` or an agent that gives it back ends nothing: the run is released, and mended code goes on from there."""
    executed: list[int] = []

    def agent(run: Run, *, mended: bool = False) -> Any:
        run.do("first", executed.append, 1)
        value = run.do("second", lambda: 2 if mended else given)
        return value if mended else run.done("third")

    with pytest.raises(f.ResultUnstorable, match="the function of step second gives back what can't be stored"):
        journal.run(agent, run_id="r")
    assert "queued" == journal.head("r").status
    with pytest.raises(f.ResultUnstorable, match="the agent gives back"):
        journal.run(lambda run: (agent(run, mended=True), given)[1], run_id="r")
    assert 2 == journal.run(lambda run: agent(run, mended=True), run_id="r")
    assert [1] == executed


@pytest.mark.parametrize("how", ["return", "complete"])
def test_a_run_is_not_complete_while_a_step_is_open_in_the_log(journal: Journal, how: str) -> None:
    """Code that no longer comes by the step that its process died in is stopped; the step isn't forgotten."""

    def died(run: Run) -> None:
        with run.step("mail"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        journal.run(died, run_id="r")
    with pytest.raises(f.PlanChanged, match="step mail is open in the log"):
        journal.run(lambda run: run.complete(1) if how == "complete" else 1, run_id="r")
    assert ("waiting", "mail") == (journal.head("r").status, journal.state("r").steps.open.id)  # type: ignore[union-attr]


def test_a_person_says_what_a_result_was_that_could_not_be_stored(journal: Journal) -> None:
    """It is no dead end: the tool isn't called again, and the run goes on with what was said."""
    called = []

    @tool
    def order(n: int) -> Any:
        called.append(n)
        return object()

    def agent(run: Run) -> Any:
        return run.do("order", order, 7)

    with pytest.raises(f.StepFailed, match="order has happened, but its result couldn't be stored"):
        journal.run(agent, run_id="r")
    with pytest.raises(f.StepFailed, match="ResultUnusable"):
        journal.run(agent, run_id=journal.retry("r", again=["order"], new_run_id="r2"))
    (key,) = [each.event.call_id for each in journal.events("r", types=("tool.completed",))]  # type: ignore[attr-defined]
    with pytest.raises(CallEnded):
        journal.resolve("r2", key, "did_not_happen")
    journal.resolve("r2", key, "happened", {"order": 7})
    with pytest.raises(CallEnded):
        journal.resolve("r2", key, "happened", {"order": 8})
    assert {"order": 7} == journal.run(agent, run_id=journal.retry("r2", again=["order"], new_run_id="r3"))
    assert [7] == called
    for run_id in ("r", "r2", "r3"):
        assert [] == [found for found in audit_run(journal.store, run_id) if found.severity == "error"]


def test_a_retry_begins_to_count_recoveries_anew(journal: Journal) -> None:
    """A run that was stopped for its many recoveries, and then cancelled, goes on in its retry."""

    class Died(BaseException):
        pass

    @tool(read_only=True)
    def look(n: int) -> int:
        return n

    def live(run_id: str, *, dies: bool) -> None:
        runner = Runner(journal, {})
        claim = runner.claim(run_id)
        assert claim is not None
        run, _ = runner.open(claim)
        with run.step("s"):
            for n in range(30):
                look(n)
                if dies and n == lives[0]:
                    lives[0] += 1
                    raise Died

    lives = [0]
    journal.enqueue("k", run_id="r")
    for _ in range(21):
        with pytest.raises(Died):
            live("r", dies=True)
        journal.clock.elapsed_s += 2 * lease_s  # type: ignore[attr-defined]
    assert Runner(journal, {}).claim("r") is None
    journal.cancel("r")
    live(journal.retry("r", new_run_id="again"), dies=False)
    assert ["s"] == journal.state("again").steps.completed
