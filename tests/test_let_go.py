"""What the state lets go of, of steps that failed long ago: it is read from the log when one is entered again."""

import pytest

from runjournal import Journal, RunWaiting, StepFailed, tool
from runjournal.log import events as e
from runjournal.log.base import data_of
from runjournal.log.limits import failed_steps_max
from runjournal.looking.audit import audit_run
from runjournal.projections import state as states
from runjournal.projections import steps
from runjournal.projections.state import RunState, dump_bytes
from runjournal.testing import generate

ERROR = {"type": "E", "message": "m"}
NAMES = ("a", "b", "c", "d")


def agent_of(acted):
    """An agent whose four steps ask a model and a person, send something and fail; then it goes through them again."""

    @tool(policy="unsafe")
    def send(of: str) -> str:
        acted.append(f"send {of}")
        return f"sent {of}"

    def answer(request):
        acted.append(f"model {request}")
        return f"answer {len(acted)}"

    def agent(run):
        for last in (False, True):
            for name in NAMES:
                if run.done(name):
                    continue
                try:
                    with run.step(name):
                        found = run.model("m", name, answer)
                        run.ask("send", args={"what": found})
                        send(found)
                        if not last:
                            raise ValueError(name)
                        run.memory[name] = found
                except StepFailed:
                    pass
        return dict(run.memory)

    return agent


def story(path, kept, monkeypatch):
    """What the agent did and ended with, and the log, if the state keeps so many failed steps."""
    monkeypatch.setattr(states, "failed_steps_max", kept)
    monkeypatch.setattr(steps, "failed_steps_max", kept)
    acted: list[str] = []
    output = None
    with Journal.open(path) as journal:
        for _ in range(20):
            try:
                output = journal.run(agent_of(acted), run_id="r")
                break
            except RunWaiting:
                (question,) = journal.fold(RunState, "r").approvals.open()
                journal.approve("r", question)
        records = list(journal.events("r"))
        assert [] == [finding.code for finding in audit_run(journal.store, "r") if finding.severity != "info"]
        whole = RunState.initial().fold(records)
        assert dump_bytes(whole.dump()) == dump_bytes(journal.fold(RunState, "r").dump())
    return acted, output, records


def shown(records):
    """The events as two runs have them in common."""
    left_out = {"recalled", "call_id", "approval_id", "worker", "pid", "for"}
    return [
        (record.type, str({key: value for key, value in data_of(record.event).items() if key not in left_out}))
        for record in records
        if record.type != "run.claimed"
    ]


@pytest.mark.parametrize("store", ["memory:", "runs.db"])
def test_a_step_that_failed_long_ago_is_told_what_it_did(store, tmp_path, monkeypatch):
    """A step that the state has let go of is entered again with its answers: nothing is asked or sent a second time."""
    path = store if store == "memory:" else tmp_path / store
    expected, output, log = story(path, failed_steps_max, monkeypatch)
    acted, again, records = story(path if store == "memory:" else tmp_path / "2.db", 1, monkeypatch)
    assert (expected, output, 8) == (acted, again, len(acted))
    assert shown(log) == shown(records)
    told = [record.event.recalled and record.event.id for record in records if isinstance(record.event, e.StepStarted)]
    assert 3 == sum(each is not None for each in told)
    assert not any(record.event.recalled for record in log if isinstance(record.event, e.StepStarted))


def test_failures_that_the_state_let_go_of_are_told_again(monkeypatch):
    """An agent that is called again is told each failure that it has handled, once, however many there were."""
    monkeypatch.setattr(states, "failed_steps_max", 2)
    monkeypatch.setattr(steps, "failed_steps_max", 2)
    heard: list[list[str]] = []

    def agent(run):
        for number in range(6):
            try:
                with run.step(f"s{number}"):
                    raise ValueError(str(number))
            except StepFailed as failure:
                heard[-1].append(str(failure))
        with run.step("last"):
            run.ask("go on?")
            run.ask("really?")

    with Journal.open("memory:") as journal:
        for _ in range(2):
            heard.append([])
            with pytest.raises(RunWaiting):
                journal.run(agent, run_id="r")
            (question,) = journal.fold(RunState, "r").approvals.open()
            journal.approve("r", question)
    first, again = heard
    assert (6, first) == (len(first), again)


def test_a_large_failed_step_is_kept():
    """A failed step with more calls than a step.started can tell again stays in the state."""
    calls = [event for n in range(70) for event in (
        e.ToolStarted(f"c{n}", "t", {}, "idempotent", read_only=True, on_unknown="fail", attempt=1),
        e.ToolCompleted(f"c{n}", 1, "ok"),
    )]  # fmt: skip
    events = [(e.RunQueued("demo", None), 0), (generate.claim(1), 1)]
    events += [
        (event, 1) for event in (e.StepStarted(0, "big", "big", "once", 1, 1), *calls, e.StepFailed(0, ERROR, False))
    ]
    for n in range(1, failed_steps_max + 3):
        events += [(e.StepStarted(n, f"s{n}", f"s{n}", "once", 1, 1), 1), (e.StepFailed(n, ERROR, False), 1)]
    state = RunState.initial().fold(generate.as_records(events))
    assert (70, 1, failed_steps_max) == (
        len(state.calls.of_step("big")),
        state.steps.attempts["big"],
        len(state.steps.attempts),
    )


def test_nothing_grows_where_no_step_completes():
    """A run whose steps all fail has a state of one size, and keeps in order which of them failed last."""
    events = [(e.RunQueued("demo", None), 0), (generate.claim(1), 1)]
    sizes = []
    for n in range(4 * failed_steps_max):
        events += [(event, 1) for event in (
            e.StepStarted(n, f"s{n:04}", "s", "once", 1, 1),
            e.ToolStarted(f"c{n:04}", "t", {}, "unsafe", read_only=False, on_unknown="fail", attempt=1),
            e.ToolCompleted(f"c{n:04}", 1, "ok"),
            e.StepFailed(n, ERROR, False),
        )]  # fmt: skip
    state = RunState.initial()
    for record in generate.as_records(events):
        state.apply(record)
        if record.type == "step.failed":
            sizes.append(len(dump_bytes(state.dump())))
    assert sizes[-1] < 1.2 * sizes[2 * failed_steps_max]
    assert failed_steps_max == len(state.calls.known) == len(state.steps.failures) == len(state.steps.attempts)
