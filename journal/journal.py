"""`Journal`: a store of runs, and agents on top of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict, Unpack

from runjournal.engine.budget import Budget
from runjournal.engine.failures import Mistake, RunBusy, RunNotDue, RunWaiting, Stop
from runjournal.engine.resuming import ResumeReport
from runjournal.engine.retry import Retry, checked
from runjournal.log import events as e
from runjournal.log.base import Json
from runjournal.log.codec import plain, tellable
from runjournal.log.errors import CallEnded, NotAllowed, NotNewest, WrongExpectation
from runjournal.log.limits import relay_lease_s
from runjournal.projections.plan import Task
from runjournal.projections.state import RunState
from runjournal.writing import keys, purged

from . import inbox, linking, mistyped, naming, standstill
from .cancelling import cancel_family
from .code_check import CodeCheck, CodeChecker
from .erasing import Erasure, erase
from .logbook import Logbook, Place
from .outbox import Deliver, Relay, Relayed
from .patience import check_wait
from .purging import Purge, purge
from .questions import OpenQuestion, questions
from .recovery import Recovery, recover
from .resumes import resume_report
from .runner import Agent, Claim, Runner
from .sent import SentCall, sent_by
from .telling import tell_all

__all__ = ["Journal", "Place"]
Messages = Sequence[Mapping[str, Any]]
UNFINISHED: Final = ("running", "waiting", "scheduled_retry", "queued")
LEFT_ALONE: Final = (RunBusy, RunNotDue, RunWaiting)
"""What a run that can't go on now tells whoever goes on with all of them."""


class RunOptions(TypedDict, total=False):
    """What a new run takes beside its input: see `Journal.enqueue`. `kind` is the agent's name."""

    kind: str
    title: str | None
    tags: Mapping[str, str] | None
    plan: Sequence[Task] | None
    messages: Messages | None
    budget: Budget | None


class Journal(Logbook):
    """The runs of one store, and agents on top of it. Safe to share between threads, never across a fork.

    >>> with Journal.open("memory:") as journal:
    ...     journal.run(lambda run: run.do("add", sum, [1, 2]), run_id="r")
    3
    """

    # Running.

    def enqueue(
        self,
        kind: str,
        input: Json = None,
        *,
        run_id: str | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        plan: Sequence[Task] | None = None,
        messages: Messages | None = None,
        budget: Budget | None = None,
    ) -> str:
        """Queue a run for whoever will run it; return its id.

        `plan` are the tasks that it begins with, {id, title, status}, `messages` its first ones, {role, content}, and
        `budget` what it may cost. Raises WrongExpectation if a run of this id is there, InvalidArgument, Unstorable.
        """
        run_id = self.new_run_id() if run_id is None else run_id
        queued = e.RunQueued(
            kind,
            plain(input),
            messages=plain([dict(message) for message in messages]) if messages else None,
            plan=plain([dict(task) for task in plan]) if plan else None,
            title=tellable(title),
            tags=dict(tags) if tags else None,
            budget=dict(**budget) if budget else None,
        )
        self.append(run_id, [queued], expect=0)
        return run_id

    def open_run(
        self,
        kind: str,
        *,
        source: str,
        run_id: str | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        parent_run_id: str | None = None,
    ) -> str:
        """Open a run that nobody owns, to record into it what happens elsewhere, as it happens; return its id.

        `source` says where it happens. Whoever knows the id records into it with `append`, from any number of
        processes: messages, each whole, calls of models and tools, costs, notes, and types of their own. None of it is
        ever sent again or asked about. If a run of this id is open, of the same kind and source, that is the one.
        Raises WrongExpectation if another run of this id is there, InvalidArgument.
        """
        run_id = self.new_run_id() if run_id is None else run_id
        opened = e.RunOpened(
            kind, source, title=tellable(title), tags=dict(tags) if tags else None, parent_run_id=parent_run_id
        )
        try:
            self.append(run_id, [opened], expect=0)
        except WrongExpectation:
            there = next(self.store.read(run_id, 0, 1)).event
            if not isinstance(there, e.RunOpened) or (there.kind, there.source) != (kind, source):
                raise
        return run_id

    def run(
        self,
        agent: Agent,
        *,
        run_id: str | None = None,
        input: Json = None,
        retry: bool = False,
        wait_s: float = 0.0,
        **how: Unpack[RunOptions],
    ) -> Json:
        """Run an agent to its end, or go on where a run of this id was; return its output.

        If there is no such run, or it may go on, the agent is called. If it has completed, its output is returned. The
        id of the first run of a line stands for the newest one; with `retry` one that has failed or was cancelled is
        gone on from. A run that goes on at a time that hasn't come is RunNotDue; with `wait_s` this process sleeps
        until then, for so many seconds in all. Raises InputDiffers, KindDiffers, RunFailed, RunCancelled, RunWaiting,
        RunNotDue, RunBusy; what left the agent; PlanChanged, StepDiverged, which no `except Exception` sees. `how` is
        what `enqueue` takes.
        """
        if inspect.iscoroutinefunction(agent):
            raise Mistake("the agent is a coroutine function: run it with AsyncJournal.run_async")
        check_wait(wait_s)
        run_id = begin(self, agent, run_id, input, retry=retry, **how)
        return Runner(self).run(agent, run_id, wait_s=wait_s)

    def claim(self, run_id: str, resume: Literal["crash", "reopen", "manual"] | None = None) -> Claim | None:
        """Become the owner of a run; None if it may not go on. Raises RunBusy, RunNotDue, RunNotFound."""
        return Runner(self).claim(run_id, resume=resume)

    def recover(self, run_id: str) -> Recovery:
        """Return what a run would go on with, and a verdict for each open call.

        It only reads; `.take()` claims the run.
        """
        run_id = mistyped.check_line(self, run_id)
        return recover(self, run_id, lambda resume: Runner(self).claim(run_id, resume=resume))

    def recover_all(self, agents: Mapping[str, Agent]) -> dict[str, Json | BaseException]:
        """Go on with every run whose kind has an agent here and that may go on, one after another.

        A run may go on if it is queued, due, woken, or without a living owner. Returns {run id: output, or what was
        raised, PlanChanged and StepDiverged included}; runs that wait or are busy are left out.
        """
        found: dict[str, Json | BaseException] = {}
        tell_all(self)
        for run_id, kind in unfinished(self, agents):
            try:
                found[run_id] = Runner(self).run(agents[kind], run_id, only_new=True)
            except LEFT_ALONE:
                continue
            except (Exception, Stop) as error:  # noqa: BLE001 - each run has its own end, and is told of
                found[run_id] = error
        return found

    def check(self, agent: Agent, run_id: str) -> CodeCheck:
        """Return whether today's code of an agent can go on with a run, and if not, the first place where it differs.

        The agent is called over a copy of the log in memory: each call, question and answer is served from there. No
        tool, model or hook is called, and nothing is written. Code outside tools is executed, but for a `do` in which
        nothing was journalled. Raises RunNotFound, and InvalidArgument for an imported run.
        """
        if inspect.iscoroutinefunction(agent):
            raise Mistake("the agent is a coroutine function: check it with AsyncJournal.check_async")
        keys.check_there(self.store, naming.stem(run_id), "what the agent was told")
        purged.check_there(self.store, naming.stem(run_id))
        return CodeChecker(self, agent, mistyped.check_run(self, run_id)).check()

    def relay(
        self, deliver: Deliver | None = None, *, lease_s: float = relay_lease_s, retry: Retry | None = None
    ) -> list[Relayed]:
        """Deliver what runs have in their outbox and is due, one after another; return what was done. For a loop.

        By default an entry is delivered by its tool, which this process must have imported; `deliver(entry)` does it
        instead, by `entry.tool`, `entry.args` and `entry.key`. It may be delivered again after a crash, always under
        its key. Entries of a run come in the order in which it made them; one that failed is tried again as `retry`
        says, by default the journal's, and keeps those behind it waiting until it is delivered or parked. What is
        parked stands among the `questions`: `resolve` says `retry`, `happened`, or `did_not_happen`, and then it is
        dropped. Any number of relays may run: a claim holds while its process lives, at most for `lease_s` seconds, so
        a delivery must not take longer. Raises InvalidArgument.
        """
        checked(retry, "Journal.relay")
        return Relay(self, deliver, lease_s, retry or self.call_retry).run()

    # What others say to a run.

    def questions(self, run_id: str | None = None) -> list[OpenQuestion]:
        """Return what people are asked, oldest first: approvals, and calls of which nobody knows if they happened.

        It is of all runs that haven't ended and of the ends of all lines, or of the run that `run_id` stands for.
        `approve`, `reject` and `resolve` answer. Raises RunNotFound.
        """
        return questions(self, run_id if run_id is None else mistyped.check_line(self, run_id))

    def signal(self, run_id: str, name: str, payload: Json = None, *, signal_id: str | None = None) -> str:
        """Send a message to a run; return its id. The same again under its id is the same signal: nothing happens.

        Raises RunNotFound, and NotAllowed for another name or payload under an id that has come before.
        """
        mistyped.check_run(self, run_id)
        signal = e.SignalReceived(self.new_run_id() if signal_id is None else signal_id, name, plain(payload))
        if signal_id is None:
            naming.on_line(self.store, run_id, lambda of: self.append(of, [signal], expect=None))
        else:
            naming.on_line(self.store, run_id, lambda of: inbox.receive(self, of, signal))
        return signal.signal_id

    def approve(
        self,
        run_id: str,
        approval_id: str,
        args: Mapping[str, Json] | None = None,
        note: str | None = None,
        *,
        choice: str | None = None,
    ) -> None:
        """Say yes, with other args if `args` are given. The first answer counts: NotAllowed after that, and too late.

        `args` are all that were asked about, by name, each as it is or edited; others may come with them. A question
        with choices is answered with one of them. It is about exactly this run: a retry of it may ask the same question
        again. Raises RunNotFound, and InvalidArgument for a question that the run never asked, or for args or a choice
        that don't answer it.
        """
        mistyped.check_answer(self, run_id, approval_id, args, choice)
        self._answer(
            run_id,
            e.ApprovalResolved(
                approval_id,
                "approved" if args is None else "edited",
                None if args is None else plain(dict(args)),
                tellable(note),
                choice,
            ),
        )

    def reject(self, run_id: str, approval_id: str, note: str | None = None) -> None:
        """Say no; see `approve`."""
        self._answer(run_id, e.ApprovalResolved(approval_id, "rejected", note=tellable(note)))

    def _answer(self, run_id: str, answer: e.ApprovalResolved) -> None:
        mistyped.check_run(self, run_id)
        try:
            self.append(run_id, [answer], expect=None)
        except NotAllowed:
            mistyped.check_question(self, run_id, answer.approval_id)
            raise

    def resolve(
        self,
        run_id: str,
        call_id: str,
        outcome: Literal["happened", "did_not_happen", "retry", "unknown"],
        result: Json = None,
        note: str | None = None,
    ) -> None:
        """Say what became of a call of which nobody knows. It holds for all its attempts so far.

        Raises CallEnded if that is known, NotAllowed while the owner lives, NotNewest for an older run of the line;
        RunNotFound, and InvalidArgument for a call that the run doesn't have.
        """
        mistyped.check_run(self, run_id)
        naming.on_line(self.store, run_id, lambda of: self._resolve(of, call_id, outcome, result, note))

    def _resolve(self, run_id: str, call_id: str, outcome: str, result: Json, note: str | None) -> None:
        call = self.fold(RunState, run_id).calls.known.get(call_id)
        attempt = call.attempt if call is not None else 1
        try:
            self.append(
                run_id, [e.ToolResolved(call_id, attempt, outcome, plain(result), note=tellable(note))], expect=None
            )
        except (CallEnded, NotAllowed):
            if call is None:
                mistyped.check_call(self, run_id, call_id)
            raise

    def erase(self, run_id: str, *, reason: str, line: bool = False) -> Erasure:
        """Erase the private values of a run that has ended: for ever, in every file of the store; return what was done.

        Gone are messages, arguments, results, requests and answers of models, values of the memory, texts of errors,
        notes, questions and the rest of what `Event.PRIVATE` names. Names, keys, tags, kinds, times, usage, costs and
        who did what stay, and so does the log: its chain, folds and audits. With `line` the whole line of the run is
        erased, and all that goes on from any of it (retry, restart, fork) or was begun by it; else they are named.
        `reason` stays in the log.

        Raises RunNotFound, InvalidArgument for a run that isn't private (`Journal.open(private=True)`), NotAllowed
        while the run, or one that goes on from it, may still go on, or a call of it may have happened and nobody has
        said whether (`resolve`).
        """
        return erase(self, run_id, reason, line=line)

    def purge(self, run_id: str, *, reason: str) -> Purge:
        """Take a run away for ever, with its whole line (its retries and restarts); return what went.

        All of them have ended, or are open or imported. In place of each a last event stays, `run.purged`, with its
        kind, status, times and costs, beside the numbers, types and hashes of the events before it, whose bodies are
        emptied in place; ids, positions and the line's scope are never used again. Values that other runs refer to
        stay, and so do runs that these have begun. Keys of private runs are erased. The disk space is used again;
        the disk gets it back by `runjournal db vacuum`. `reason` stays in the log.

        Raises RunNotFound, and NotAllowed while one of them may still go on, another run goes on from one (purge that
        first), or a call may have happened and nobody has said whether (`resolve`). A line that
        was purged before is left as it is.
        """
        return purge(self, run_id, reason)

    def cancel(self, run_id: str, reason: str = "", mode: Literal["after_step", "now"] = "after_step") -> None:
        """Stop a run and its children. Their owners, or whoever claims one next, obey; what nobody owns is ended."""
        mistyped.check_run(self, run_id)
        naming.on_line(self.store, run_id, lambda of: cancel_family(self, of, tellable(reason), mode))

    def resume(self, run_id: str, *, recorded: bool = False, reason: str = "", point: int | None = None) -> None:
        """Have a run tried again that stands still: today's code has stopped it, or it doesn't get on.

        Whoever runs it next tries it, whatever its code, and its recoveries are counted anew. With `recorded` the open
        attempt of its step goes on with the answers that models have given in it, whatever today's code asks them: a
        changed prompt sends nothing twice. `point` is that of the `resume_report` which whoever resumes has seen: it is
        used once. Raises RunNotFound; ResumePointUsed where somebody has used the point, or the run has moved since;
        and NotAllowed for a run that has nothing to resume; it says what to do instead.
        """
        mistyped.check_run(self, run_id)

        def resume(of: str) -> None:
            standstill.resume(self, of, reason, recorded=recorded, point=point)

        naming.on_line(self.store, run_id, resume)

    def abandon_step(self, run_id: str, *, reason: str = "") -> list[SentCall]:
        """Give up the open attempt of the step of a run that nobody owns: the step is tried anew, by today's code.

        Return what the step has sent: it can be sent again, unless the new attempt asks for exactly the same. Raises
        RunNotFound, and NotAllowed for a run without an open step, one that has ended, and one with a living owner.
        """
        mistyped.check_run(self, run_id)
        step = naming.on_line(self.store, run_id, lambda of: standstill.abandon_step(self, of, reason))
        return [call for call in self.sent(run_id) if call.step == step]

    def sent(self, run_id: str) -> list[SentCall]:
        """Return the calls that a run and those of its line before it have sent, whether or not that is known.

        A fork, a restart and an abandoned step can send them again, unless they ask for exactly the same. Raises
        RunNotFound.
        """
        return sent_by(self, mistyped.check_line(self, run_id))

    def resume_report(
        self, run_id: str, *, agent: Callable[..., Any] | None = None, prompt: Mapping[str, str] | None = None
    ) -> ResumeReport | None:
        """Return what a run would go on from now, for people to look at before it does: it only reads.

        It says how it comes to be resumed, the last completed step, what comes next, the calls of its open step by what
        becomes of them, and how long it has stood still. With `agent`, whether its code is that of before; with
        `prompt`, by its layers as `run.pin_prompt` takes them, which of them have changed. None for a run that has
        never begun. Raises RunNotFound, Purged.
        """
        return resume_report(self, mistyped.check_line(self, run_id), agent, prompt)

    # Runs that go on from others.

    def retry(self, run_id: str, *, again: Iterable[str] = (), new_run_id: str | None = None) -> str:
        """Queue a new run that goes on from the newest of its line, which has ended; return its id.

        That is `ID.r2`, `ID.r3`, … by its place in the line, and the same if somebody else has just asked for the same.
        The steps in `again` are tried as if they hadn't failed. Raises NotNewest, RunNotFound, and InvalidArgument for
        a step that the run never began.
        """
        return self._go_on("retry", run_id, new_run_id, again)

    def restart(self, run_id: str, *, new_run_id: str | None = None) -> str:
        """A new run of the same scope that begins with what its line was queued with.

        What was sent isn't sent again if a step of the same name asks the same tool for it with the same args, or if
        the tool has a key of its own; after a rename, or with other args, it is. Its id is that of a retry.
        """
        return self._go_on("restart", run_id, new_run_id, ())

    def fork(self, run_id: str, at: int | None = None, *, new_run_id: str | None = None) -> str:
        """Queue a new run, of its own scope; return its id.

        It begins behind the last step completed by the event `at` of exactly this run, or by now (None).
        """
        here = mistyped.check_run(self, run_id)
        of = naming.named(self.store, here) if at is None else naming.exactly(self.store, here)
        return linking.queue(self, "fork", of, self.new_run_id() if new_run_id is None else new_run_id, at=at)

    def _go_on(self, link: str, run_id: str, new_run_id: str | None, again: Iterable[str]) -> str:
        steps = again if isinstance(again, str) else list(again)

        def go_on(of: str) -> str:
            return linking.go_on(self, link, of, new_run_id, mistyped.check_steps(self, of, steps))

        return naming.on_line(self.store, mistyped.check_run(self, run_id), go_on)


def begin(
    journal: Journal, agent: object, run_id: str | None, input: Json, *, retry: bool = False, **how: Unpack[RunOptions]
) -> str:
    """Return the id of the run that an agent is asked for: queued now, or there already.

    With `retry` one that has failed or was cancelled is gone on from. Raises InputDiffers, KindDiffers, and NotNewest
    where `retry` names an older run of its line.
    """
    named_so = getattr(agent, "__name__", None)
    kind = how.get("kind", None if named_so == "<lambda>" else named_so)
    how["kind"] = (named_so or "agent") if kind is None else kind
    name = run_id
    run_id = journal.new_run_id() if run_id is None else naming.named(journal.store, run_id)
    if journal.store.head(run_id) is None:
        try:
            return journal.enqueue(input=input, run_id=run_id, **how)
        except WrongExpectation:  # somebody else has queued it since: then it is there already
            pass
    keys.check_there(journal.store, run_id, "its output")
    purged.check_there(journal.store, run_id)
    runner = Runner(journal)
    if kind is not None:  # an agent without a name is of any kind
        runner.check_kind(run_id, kind)
    runner.check_input(run_id, input)
    if retry and journal.head(run_id).status in ("failed", "cancelled"):
        try:
            return journal.retry(run_id)
        except NotNewest:
            newest = naming.named(journal.store, name or run_id)
            if newest == run_id:  # it was named itself, and not its line
                raise
            return newest  # somebody was faster, and is at work with it
    return run_id


def unfinished(journal: Journal, kinds: Container[str]) -> list[tuple[str, str]]:
    """Return (run id, kind) of each run of these kinds that hasn't ended, those that have run before first."""
    heads = [head for status in UNFINISHED for head in journal.runs(status=(status,)) if head.kind in kinds]
    return [(head.run_id, head.kind) for head in heads if journal.store.imported(head.run_id) is None]
