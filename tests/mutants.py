"""The product's code with one rule replaced, as data: each must turn the suite red (`test_mutants.py`).

A name says what the code then does wrong; `dies` is the test file where it falls first, which saves time and proves
nothing. The first part are the mutants of the executable model that the rules came with, each at the place where the
product holds the same rule; `NOT_OURS` are those that make no sense here. The second part are the product's alone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ENGINE, CALLING, SENDING = "journal/engine/core.py", "journal/engine/calls.py", "journal/engine/attempts.py"
SCRIPT, LINE, TARGETS, FAILURES = (
    "journal/engine/script.py",
    "journal/engine/lineage.py",
    "journal/engine/callees.py",
    "journal/engine/failures.py",
)
CONTEXT, RUN, ASYNC, RUNNING = (
    "journal/engine/context.py",
    "journal/run.py",
    "journal/async_run.py",
    "journal/runner.py",
)
LINKS, APPENDER, GATE = "journal/journal.py", "journal/writing/appender.py", "journal/log/authority.py"
STATE, CALLS, STEPS = "projections/state.py", "projections/calls.py", "projections/steps.py"
STATUS, INBOX, INDEX = "projections/status.py", "projections/inbox.py", "projections/index.py"

RULES, STORIES, THREADS, TASKS = "engine_rules", "engine_stories", "threads", "async_driver"
GAPS, RANDOM, STATUSES, FOLDS, BUDGET = "engine_gaps", "engine_model", "status", "folds", "budget"


TEXT = 'return CLOCK.sub(lambda found: "0" if _is_clock(found[0], now) else found[0], value)'
NUMBER = "return 0 if abs(value) >= stamp_min_s and _is_stamp(value, now) else value"


class Mutant(NamedTuple):
    """`old` occurs once in `file`, a path from the repository's root; `new` takes its place."""

    name: str
    file: str
    old: str
    new: str
    dies: str = RULES


TWINS: Final = (
    # What a step sees.
    Mutant(
        "a step's overlay is seen between steps: memory",
        CONTEXT,
        "return memory.view if context.core.inside else memory.committed",
        "return memory.view",
    ),
    Mutant(
        "a step's overlay is seen between steps: plan",
        CONTEXT,
        "(plan.view if self.core.inside else plan.base)",
        "plan.view",
    ),
    Mutant(
        "a step's overlay is seen between steps: messages",
        CONTEXT,
        "if inside or message.committed]",
        "if inside or True]",
    ),
    Mutant(
        "the overlay is not dropped on re-entry: memory",
        "projections/memory.py",
        "        self.overlay, self.overlay_bytes = dict(self.base), self.base_bytes",
        "        if self.overlay is None:\n"
        "            self.overlay, self.overlay_bytes = dict(self.base), self.base_bytes",
        STORIES,
    ),
    Mutant(
        "the overlay is not dropped on re-entry: plan",
        "projections/plan.py",
        "self.overlay = list(self.base)",
        "self.overlay = list(self.view)",
    ),
    Mutant(
        "the overlay is not dropped on re-entry: messages",
        "projections/transcript.py",
        "pending = []",
        "pending = pending or []",
        STORIES,
    ),
    # Which call is it.
    Mutant(
        "n counts what the log has, not what this entry was given",
        ENGINE,
        "(call_id := call_key(self.scope, entry.step, what, args, n)) in entry.busy:",
        "(call_id := call_key(self.scope, entry.step, what, args, n)) in entry.busy or (\n"
        "            call_id in self.state.calls.known\n"
        '            and self.state.calls.known[call_id].status in ("completed", "open")\n'
        "        ):",
    ),
    Mutant(
        "n = 1 + the equal calls that are completed or open",
        ENGINE,
        "        n = 1\n",
        "        n = 1 + sum(call_key(self.scope, entry.step, what, args, k) in entry.busy for k in range(1, 9))\n",
    ),
    Mutant(
        "any request gets the next recorded answer",
        CALLING,
        "(event.model, event.request_shape) == (target.name, wanted)",
        "event.model == target.name",
    ),
    Mutant(
        "a request that fits none is asked anew",
        CALLING,
        "call_id = (yield from self._next_answer(entry, target, args)) or call_id",
        "yield from ()",
    ),
    Mutant(
        "an unfinished request is begun anew",
        CALLING,
        'if call.policy == "model" and call.began]',
        'if call.policy == "model" and call.status != "open"]',
    ),
    Mutant(
        "a second try is begun anew",
        CALLING,
        'or told_more or call.status == "open" or call.tries:',
        "or told_more:",
    ),
    Mutant(
        "a second try of two attempts is begun anew",
        CALLING,
        'call.status == "open" or call.tries:',
        'call.status == "open":',
    ),
    Mutant(
        "answers go by the order of their ends",
        CALLING,
        "models = [(call.began, key, call)",
        "models = [(min((at for at, _ in call.told), default=10**9), key, call)",
    ),
    Mutant(
        "a question that failed loses its place",
        CALLING,
        "if key not in entry.asked or told_more",
        'if (key not in entry.asked and call.status != "failed") or told_more',
    ),
    Mutant("a clock in a text is a word", TARGETS, TEXT, "return value"),
    Mutant("any number is a clock", TARGETS, TEXT, 'return re.sub(r"[0-9]+", "0", value)'),
    Mutant("one text is as good as another", TARGETS, TEXT, 'return "text"'),
    Mutant(
        "a key that is asked for twice in flight is sent twice",
        CALLING,
        "live = [call_id for call_id in wanted if",
        "live = [call_id for call_id in ids if",
    ),
    Mutant(
        "the end of a key asked for twice is told to one",
        CALLING,
        "for call_id, (target, args, own_key) in wanted.items():",
        "for call_id, (target, args, own_key) in zip(ids, asks, strict=True):",
    ),
    Mutant(
        "a key is of any tool",
        CALLING,
        "any(known not in (None, (target.name, digest)) for",
        "any(known and known[1] != digest for",
    ),
    Mutant("a key in flight isn't looked at", CALLING, "            entry.busy.get(call_id),\n", ""),
    Mutant("a question has the name of a step", RUN, 'self._do(f"ask {action}", key', "self._do(action, key"),
    # What a recorded call gives back.
    Mutant(
        "a recorded failure is not told again",
        CALLS,
        'call.told.append([record.seq, "completed" if completed else "failed"])',
        'call.told += [[record.seq, "completed"]] if completed else []',
    ),
    Mutant(
        "what was tried again inside an ask is told",
        CALLS,
        "isinstance(event, e.ModelFailed | e.ToolFailed) and event.again:",
        "False:",
    ),
    Mutant(
        "DidNotHappen speaks for all attempts",
        CALLS,
        "call.maybe = [attempt for attempt in call.maybe if attempt != event.attempt]",
        "call.maybe = []",
    ),
    Mutant("a late word speaks for all attempts", CALLS, "(a != last if event.late else a > last)", "False"),
    Mutant(
        "a failure proves that nothing happened",
        CALLS,
        "if isinstance(event, e.ToolFailed) and event.did_not_happen:",
        "if isinstance(event, e.ToolFailed):",
    ),
    Mutant(
        "an open unsafe call is sent again",
        CALLING,
        'return "run" if keyed and self._key_lives(call) else "unknown"',
        'return "run"',
    ),
    Mutant(
        "what the agent was told of an unknown outcome is not recorded",
        CALLING,
        "core.heard.add((yield from core.append(target.failed(call_id, call.attempt, stored))))",
        "pass",
    ),
    Mutant(
        "what was told of an unknown outcome belongs to the step that asked first",
        CALLS,
        '            call.step = self.step\n            self._end(call, "unknown", call.value_seq)',
        '            self._end(call, "unknown", call.value_seq)',
    ),
    Mutant(
        "an answer that a sent call rests on is forgotten",
        CALLS,
        "and not self.sent and self.latest > sent:",
        "and not self.sent:",
    ),
    Mutant("an answer is as old as its first attempt", CALLS, "self.latest > sent:", "self.began > sent:"),
    Mutant(
        "only models are asked anew",
        CALLS,
        "and not self.sent and self.latest",
        'and self.policy == "model" and self.latest',
    ),
    Mutant(
        "a key's life is counted from its last attempt",
        CALLS,
        "call.key_expires_at = call.key_expires_at if call.maybe else expires",
        "call.key_expires_at = expires",
    ),
    Mutant(
        "the hook is not asked when a tool fails",
        SENDING,
        "word = None if isinstance(error, f.DidNotHappen) or ended.cut else target.word(copy.deepcopy(args), call_id)",
        "word = None",
    ),
    Mutant(
        "a hook that doesn't know says no",
        TARGETS,
        'if word and word[0] == "did_not_happen":',
        "if word:",
    ),
    Mutant(
        "a hook that raises fails the run",
        TARGETS,
        "        except Exception:  # noqa: BLE001 - it says unknown, by rule\n",
        "        except ():\n",
    ),
    Mutant(
        "the effects of the scope are not looked up",
        CALLING,
        'if (call is not None and call.status == "completed") or self.core.line.effect(call_id) is not None:',
        'if call is not None and call.status == "completed":',
    ),
    # Which step is it.
    Mutant(
        "a name is for any number of steps",
        ENGINE,
        "if self.line.done(step_id) is not None:\n            self.refuse",
        "if False:\n            self.refuse",
    ),
    Mutant("a do may be asked for twice", ENGINE, "if step_id in self.passed:", "if False:"),
    Mutant("an id is of any kind", ENGINE, "if known not in (None, kind):", "if False:"),
    Mutant("a renamed do is simply done", ENGINE, "if key is None and not begun and", "if False and"),
    Mutant(
        "another step may be begun while one is open",
        ENGINE,
        "if steps.open is not None and steps.open.id != step_id:",
        "if False:",
    ),
    Mutant(
        "each gives the done ones, too",
        RUN,
        "item in items if not self.done(name, key(item))",
        "item in items",
    ),
    Mutant("a loop on local variables goes on", ENGINE, "if self.blind and not self.looked:", "if False:"),
    Mutant("a loop that has looked is stopped", ENGINE, "if self.blind and not self.looked:", "if self.blind:"),
    Mutant(
        "a loop in one process is stopped",
        ENGINE,
        "uses > 0 and self.turns.get(name) != uses",
        "uses > 0",
    ),
    Mutant(
        "a loop must look before it fails",
        ENGINE,
        'not in ("step.failed", "signal.taken"):',
        'not in ("signal.taken",):',
    ),
    Mutant(
        "a look at the memory doesn't count",
        CONTEXT,
        "        context.core.looked = True\n",
        "",
    ),
    Mutant(
        "a look at the messages doesn't count",
        CONTEXT,
        "        self.core.looked = True\n        inside",
        "        inside",
        GAPS,
    ),
    Mutant(
        "a look at the plan doesn't count",
        CONTEXT,
        "        self.core.looked = True\n        return [dict",
        "        return [dict",
        GAPS,
    ),
    Mutant(
        "a look at the inbox doesn't count", CONTEXT, "        core.looked = True\n        events", "        events"
    ),
    # Divergence.
    Mutant(
        "divergence is found only at the end of the step",
        SENDING,
        'if target.policy not in ("model", "idempotent") and not (call is not None and call.fresh):',
        "if False:",
    ),
    Mutant(
        "divergence is not found at the end of the step",
        ENGINE,
        'self.stop_if_left_out(entry, "the end of the step", questions=False)',
        "pass",
    ),
    Mutant(
        "a question with a clock is asked for ever",
        CALLING,
        'yield from core.nothing_left_out(entry, f"{what} was asked anew", call_id, calls=False)',
        "pass",
    ),
    Mutant(
        "a call takes the place of a question",
        ENGINE,
        "self.stop_if_left_out(entry, where, calls=calls)",
        "self.stop_if_left_out(entry, where, calls=calls, questions=not calls)",
    ),
    Mutant(
        "a question of a failed attempt is missed",
        ENGINE,
        "if (asked.step, asked.attempt) == mine}",
        "if asked.step == mine[0]}",
    ),
    # Failures of steps.
    Mutant("handled failures are forgotten", LINE, 'end.kind != "repeat" and', "False and"),
    Mutant("handled failures of a block are forgotten", LINE, 'end.kind != "repeat" and', 'end.kind == "do" and'),
    Mutant(
        "failures since the last completed step are not told",
        LINE,
        "(at in current or handled)",
        "handled",
    ),
    Mutant(
        "a failure is known by what the log has by now",
        ENGINE,
        "return self.state.offset + records[-1].seq",
        "return self.state.offset + self.state.seq",
    ),
    Mutant("a no is a failure like any other", FAILURES, 'if kind == "rejected":', "if False:"),
    Mutant("an unknown outcome is a failure like any other", FAILURES, 'elif kind == "unknown":', "elif False:"),
    Mutant(
        "a failure that leaves the agent wrapped is handled",
        FAILURES,
        "reasons = [*held, cause]",
        "reasons = [*held]",
    ),
    Mutant(
        "a failure that leaves the agent in a group is handled",
        FAILURES,
        "reasons = [*held, cause]",
        "reasons = [cause]",
    ),
    Mutant(
        "a failure that leaves the agent late is handled",
        STEPS,
        "(place > since or attempt >= least)",
        "place > since",
    ),
    Mutant("what was handled before is tried anew", STEPS, "(place > since or attempt >= least)", "True"),
    Mutant(
        "a new round is told what made the last one fail",
        STEPS,
        "self.try_anew(event.left, record.seq)",
        "pass",
    ),
    Mutant(
        "a new round forgets what was handled",
        STEPS,
        "self.try_anew(event.left, record.seq)",
        "self.failures = []",
    ),
    # Mistakes and stops.
    Mutant("a mistake fails its step", FAILURES, "(leaf, Stop | Mistake |", "(leaf, Stop |"),
    Mutant("a mistake fails the run", RUNNING, "        except f.Mistake:\n            raise\n", ""),
    Mutant("a step that is done fails the run", FAILURES, "class StepDone(Mistake)", "class StepDone(JournalError)"),
    Mutant(
        "a mistake can be swallowed",
        RUN,
        "            if stop is not None:  # the step stays open\n",
        "            core.stopped = None if isinstance(stop, f.Mistake) else stop\n            if stop is not None:\n",
    ),
    Mutant(
        "a stop can be swallowed",
        ENGINE,
        "        if self.stopped is not None:\n            raise",
        "        if False:\n            raise",
    ),
    # Signals.
    Mutant("the inbox is what has arrived by now", INBOX, "if signal[0] < before_seq]", "if True]"),
    Mutant(
        "a step takes signals that it didn't look at",
        STATE,
        "self.inbox.take(step.took or ())",
        "self.inbox.take([signal[1] for signal in self.inbox.arrived(step.since)])",
    ),
    Mutant(
        "an earlier entry takes signals for the last one",
        STEPS,
        "again.since if again else record.seq, record.at,",
        "again.since if again else record.seq, record.at, took=again.took if again else None,",
    ),
    # Links.
    Mutant("a restart forgets what is unresolved", STATE, '            new.calls = calls.inherited(kept, "")\n', ""),
    Mutant("any run may be retried at any time", APPENDER, "base is None or base != last or ended", "ended"),
    Mutant("a base and a run number their events alike", STATE, "RunState(offset=place)", "RunState()"),
    Mutant(
        "a retry takes an open step for a failed one",
        STATE,
        "            new.calls = calls.inherited(base.calls.known, base.calls.step)\n",
        "            base.calls.fail_step()\n"
        "            new.steps.open = None\n"
        "            new.calls = calls.inherited(base.calls.known, base.calls.step)\n",
    ),
    Mutant("a retry is told what made its parent fail", STATE, "[*base.status.left, *(", "[*("),
    Mutant(
        "a retry forgets what was handled",
        STATE,
        "new.steps.try_anew([*base.status.left, *([step, 0] for step in again)], place + 1)",
        "new.steps.failures = []",
    ),
    Mutant("a retry is deaf", STATE, ", *([step, 0] for step in again)]", "]"),
    Mutant("a retry knows the old answers", STATE, "if q.step == step and q.decision}", "if q.decision}"),
    Mutant(
        "a fork is told what came after",
        STATE,
        "new.steps.open, new.steps.redo, new.steps.failures = None, None, []",
        "new.steps.open, new.steps.redo = None, None",
    ),
    Mutant("a fork inherits what is open", STATE, 'if link == "retry":', 'if link in ("retry", "fork"):'),
    Mutant("a word may go to any run of a line", GATE, "if newest not in (None, head.run_id):", "if False:"),
    # Owners, recovery, words.
    Mutant(
        "a fenced owner speaks of the attempt it finds",
        SENDING,
        "self.testify(e.ToolResolved(call_id, attempt, word",
        "self.core.line._source.forget([self.core.line.run_id])\n"
        "        attempt = self.core.state.calls.known[call_id].attempt\n"
        "        self.testify(e.ToolResolved(call_id, attempt, word",
    ),
    Mutant("a fenced owner says nothing", RUNNING, "self.log.append(run_id, [event], expect=None)", "pass"),
    Mutant(
        "anyone may speak of a call in flight",
        GATE,
        'if head.status == "running" and not scene.owner_gone(head):',
        "if False:",
    ),
    Mutant("no fence", GATE, 'if self.epoch and (status != "running" or self.epoch != self.current):', "if False:"),
    Mutant(
        "no look at the lease before the call",
        SENDING,
        "            core.line.check_lease(core.epoch)\n            reached",
        "            reached",
    ),
    Mutant(
        "a cancel is looked at before the lock",
        GATE,
        'if cancel and (kind == "step.started" or (cancel == "now" and kind in CALL_STARTS)):',
        'if cancel and kind == "step.started":',
    ),
    Mutant(
        "an answer is taken twice",
        GATE,
        "case e.ApprovalResolved():\n            if not facts.question_open(event.approval_id):",
        "case e.ApprovalResolved():\n            if False:",
    ),
    Mutant(
        "a word before the wait is slept through", STATE, 'frozenset({"run.waiting", "approval', 'frozenset({"approval'
    ),
    Mutant("recoveries are not counted", STATUS, "            self.stuck += 1\n", ""),
    Mutant(
        "progress doesn't count",
        STATE,
        '"""That is progress."""\n        self.status.progress()',
        '"""That is progress."""',
    ),
    Mutant("a tool that isn't known falls over", RUNNING, ":= self.tools.get(name)) is", ":= self.tools[name]) is"),
    Mutant("a tool that isn't known fails the run", RUNNING, 'if tool else "ask"', 'if tool else "fail"'),
    Mutant(
        "an unsafe start is relaxed",
        "journal/log/events.py",
        'return not (event.read_only or event.policy in ("idempotent", "transactional", "outbox"))',
        "return False",
        RANDOM,
    ),
)

NOT_OURS: Final = {
    "the intent comes after the effect": "a call is sent from what the log has of it: without its intent it falls over",
}

OURS: Final = (
    # Sending.
    Mutant(
        "a call is tried again if its last attempt did nothing, whatever the others did",
        SENDING,
        "(void and call.maybe == [attempt])",
        "void",
    ),
    Mutant("a lost unsafe call is tried again within the ask", SENDING, "transient and safe and", "transient and"),
    Mutant("what can't happen twice is not tried again", SENDING, "call.policy in REPEATABLE or ", ""),
    Mutant("a keyed call is not tried again", SENDING, " or self._key_lives(call)\n", "\n"),
    Mutant("a failure that isn't transient is tried again", SENDING, "again = transient and", "again ="),
    Mutant("an ask tries for ever", SENDING, "call.tries + 1 < tries_max", "True"),
    Mutant("a key lives for ever", SENDING, " and now < call.key_expires_at", ""),
    Mutant(
        "a paid answer that is rejected counts for nothing",
        SENDING,
        "rejection, call, cut=cut, paid=event)",
        "rejection, call, cut=cut)",
        GAPS,
    ),
    Mutant(
        "a tool that changes its arguments changes the next attempt",
        SENDING,
        "as_tool(core, lambda: target.invoke(copy.deepcopy(args), call_id))",
        "as_tool(core, lambda: target.invoke(args, call_id))",
    ),
    Mutant(
        "a hook that changes its arguments changes the call",
        CALLING,
        "target.word(copy.deepcopy(args), call_id)",
        "target.word(args, call_id)",
        GAPS,
    ),
    Mutant(
        "no look at the lease before a transaction",
        SENDING,
        "            core.line.check_lease(core.epoch)\n            at =",
        "            at =",
        GAPS,
    ),
    Mutant(
        "an owner that was fenced before it sent says nothing",
        SENDING,
        "if not reached and isinstance(ended.error, f.Fenced):",
        "if False:",
    ),
    Mutant(
        "a fenced owner keeps its result to itself",
        SENDING,
        "            self._testify(target, call_id, attempt, ended, word)\n",
        "",
    ),
    Mutant(
        "a fenced owner speaks as a person does",
        SENDING,
        'getattr(event, "result", None), late=True)',
        'getattr(event, "result", None))',
    ),
    Mutant(
        "a body that was cut never tells", SENDING, "            if not cuttable:\n", "            if False:\n", THREADS
    ),
    Mutant(
        "an effect that can't be recorded is given up at once",
        SENDING,
        "(*record_waits_s, None)",
        "(None,)",
        GAPS,
    ),
    Mutant(
        "an effect that can't be recorded fails the step",
        SENDING,
        "                self.core.stop(lost)\n",
        "",
        GAPS,
    ),
    # Words and verdicts.
    Mutant(
        "a retry asks again what is known to have happened",
        INDEX,
        'return call.status == "completed" and call.policy not in ("model", "idempotent")',
        "return False",
    ),
    Mutant(
        "what happened in the scope may be begun again",
        GATE,
        "return bool(call and call.completed) or scene.happened(call_id)",
        "return bool(call and call.completed)",
        GAPS,
    ),
    Mutant(
        "a person speaks of any attempt",
        GATE,
        "if not event.late and event.attempt != call.attempt:",
        "if False:",
        STATUSES,
    ),
    Mutant(
        "a late word about an attempt that has an outcome is heard",
        GATE,
        "if event.late and event.attempt not in call.maybe:",
        "if False:",
        STATUSES,
    ),
    Mutant(
        "a word about what is known is heard",
        GATE,
        "    if call is None or not call.unresolved:\n        raise",
        "    if call is None:\n        raise",
        STATUSES,
    ),
    Mutant(
        "an attempt may end twice",
        GATE,
        "if call is None or not call.open or call.attempt != event.attempt:",
        "if call is None:",
        STATUSES,
    ),
    Mutant(
        "the log is told that nobody knows what is known",
        GATE,
        "# the agent was told that nobody knows: no outcome\n            if call is None or not call.unresolved:",
        "# the agent was told that nobody knows: no outcome\n            if call is None:",
        STATUSES,
    ),
    Mutant(
        "a call of which a word says that nothing happened is in flight for ever",
        CALLS,
        'if not call.maybe and call.status in ("open", "unknown"):',
        "if False:",
        FOLDS,
    ),
    Mutant(
        "a call of an own key that is completed gives nothing in another step",
        CALLING,
        "return self.value_at(known) if known else self._effect_value(call_id)",
        "return self.value_at(known) if known else None",
    ),
    Mutant(
        "a result that can't be stored is none",
        CALLING,
        "        if isinstance(event, e.ToolCompleted) and event.result_error:\n",
        "        if False:\n",
        STORIES,
    ),
    Mutant(
        "a key is of any arguments",
        CALLING,
        "any(known not in (None, (target.name, digest)) for",
        "any(known and known[0] != target.name for",
    ),
    Mutant(
        "a key of its own in flight is sent twice by two tasks",
        CALLING,
        "        if own_key:\n            entry.shared[call_id] = []\n",
        "",
        TASKS,
    ),
    Mutant(
        "a failed call is another call when it is asked for again",
        CALLING,
        "        except BaseException as error:\n            entry.busy.pop(call_id, None)\n",
        "        except BaseException as error:\n",
    ),
    Mutant("seconds since 1970 are no clock", TARGETS, NUMBER, "return value"),
    Mutant("each number of a request is a clock", TARGETS, NUMBER, "return 0"),
    Mutant(
        "a question has the key of a tool",
        CALLING,
        'self.entry(), self.core, f"ask {action}"',
        "self.entry(), self.core, action",
    ),
    Mutant(
        "an asyncio question has the name of a step",
        ASYNC,
        'self._do(f"ask {action}", key',
        "self._do(action, key",
        GAPS,
    ),
    Mutant("a no is a yes", CALLING, 'if answer.decision not in ("approved", "edited"):', "if False:"),
    Mutant(
        "edited arguments are dropped",
        CALLING,
        "return copy.deepcopy(args if edited is None else edited)",
        "return copy.deepcopy(args)",
    ),
    Mutant(
        "a word about an unknown outcome in a failed call is lost",
        FAILURES,
        'if error.get("kind") == "unknown":',
        "if False:",
    ),
    Mutant(
        "a class's name makes a no",
        FAILURES,
        "if isinstance(first, Rejected):",
        'if type(first).__name__ == "Rejected":',
        GAPS,
    ),
    Mutant(
        "a class's name makes an unknown outcome",
        FAILURES,
        "if isinstance(first, CallOutcomeUnknown):",
        'if type(first).__name__ == "CallOutcomeUnknown":',
        GAPS,
    ),
    Mutant(
        "a group is transient if one of it is",
        FAILURES,
        "all(is_transient(leaf) for leaf in every)",
        "any(is_transient(leaf) for leaf in every)",
        GAPS,
    ),
    # Steps.
    Mutant(
        "nothing of a loop that hasn't looked is stopped but its calls",
        ENGINE,
        "            self.stop_if_blind(events[0].TYPE)\n",
        "            pass\n",
    ),
    Mutant(
        "a loop that looks at its signals is stopped for it",
        ENGINE,
        'not in ("step.failed", "signal.taken"):',
        'not in ("step.failed",):',
    ),
    Mutant(
        "the same code is stopped for what it left out",
        ENGINE,
        "if key is None and not begun and not self.same_code and",
        "if key is None and not begun and",
        GAPS,
    ),
    Mutant(
        "a do that failed is taken for a new one", ENGINE, "begun = step_id in state.steps.attempts or (", "begun = ("
    ),
    Mutant("a do with a key counts as left out", STATE, " and step.key is None:", ":"),
    Mutant(
        "a step that failed gets another index",
        ENGINE,
        "if steps.open or steps.redo == step_id else",
        "if steps.open else",
    ),
    Mutant(
        "attempts are counted in one process",
        ENGINE,
        "steps.open.attempt if steps.open else steps.attempts.get(step_id, 0) + 1",
        "1",
    ),
    Mutant(
        "what an older run did long ago is not done",
        LINE,
        "return next((at for at, end in self._ends(step_id) if end.ok), None)",
        "return None",
        GAPS,
    ),
    Mutant("a restart takes over the steps of its base", LINE, 'queued.link in ("retry", "fork")', "True"),
    Mutant(
        "a fork has done what its base did later", LINE, "if part.upto is None or end.seq <= part.upto:", "if True:"
    ),
    Mutant(
        "a failure is told as often as its step is asked for",
        ENGINE,
        "            if failure.at not in self.heard:\n",
        "            if True:\n",
    ),
    Mutant(
        "a failure is told again by the process that told it",
        ENGINE,
        "        self.heard.add(place)\n        failure =",
        "        failure =",
    ),
    Mutant(
        "a fork counts no attempts", STATE, "new.steps.attempts = dict(new.steps.settled)", "new.steps.attempts = {}"
    ),
    Mutant(
        "a fork keeps the attempts of steps that came after",
        STATE,
        "        new.steps.attempts = dict(new.steps.settled)\n",
        "",
    ),
    Mutant(
        "a do with a key is stopped for what was left out",
        ENGINE,
        "if key is None and not begun and not self.same_code and",
        "if not begun and not self.same_code and",
    ),
    Mutant("a retry keeps questions that nobody answered", STATE, "q.step == step and q.decision}", "q.step == step}"),
    Mutant("a retry has an empty inbox", STATE, "            new.inbox = base.inbox\n", ""),
    Mutant(
        "a retry has the history of the calls of its base no more",
        STATE,
        "            new.calls = calls.inherited(base.calls.known, base.calls.step)\n",
        "",
    ),
    Mutant(
        "an inbox is what had arrived when this entry began",
        STEPS,
        "again.since if again else record.seq, record.at,",
        "record.seq, record.at,",
    ),
    Mutant(
        "an attempt that failed takes signals",
        STATE,
        "        self.calls.fail_step()\n",
        "        self.calls.fail_step()\n"
        "        self.inbox.take((self.steps.open.took if self.steps.open else None) or ())\n",
    ),
    Mutant(
        "a signal of one id is two",
        INBOX,
        "if all(signal[1] != event.signal_id for signal in self.signals):",
        "if True:",
        FOLDS,
    ),
    Mutant(
        "a value of the memory may be changed in place",
        CONTEXT,
        "if dumps(value) != before:",
        "if False:",
        STORIES,
    ),
    Mutant(
        "a value that was assigned counts as changed in place",
        CONTEXT,
        "self._lent = [lent for lent in self._lent if lent[0] != key]",
        "pass",
        GAPS,
    ),
    Mutant("a tool may write to its run", ENGINE, "if IN_TOOL.get() is self:", "if False:", STORIES),
    Mutant(
        "a thread that outlives its step writes to the next one",
        RUN,
        "caller.core is self and caller.entry is self.entry and caller.entry.open",
        "caller.core is self and self.entry is not None",
        THREADS,
    ),
    Mutant(
        "a task that outlives its step writes to the next one",
        ASYNC,
        "caller.core is self and caller.entry is self.entry and caller.entry.open",
        "caller.core is self and self.entry is not None",
        TASKS,
    ),
    # Running.
    Mutant(
        "a run that makes no progress in steps is given up: completed",
        STATE,
        "        self.steps.on_completed(record, event)\n        self.status.progress()\n",
        "        self.steps.on_completed(record, event)\n",
    ),
    Mutant(
        "a run that makes no progress in steps is given up: failed",
        STATE,
        "        self.steps.on_failed(record, event)\n        self.status.progress()\n",
        "        self.steps.on_failed(record, event)\n",
    ),
    Mutant("waiting is no progress", STATUS, "self.woken, self.stuck = False, 0", "self.woken = False"),
    Mutant(
        "a run that doesn't get on is tried once too often",
        RUNNING,
        "stuck, entered = stuck + 1, entered + 1",
        "entered = entered + 1",
    ),
    Mutant(
        "an attempt of a step is recovered for ever",
        RUNNING,
        "stuck, entered = stuck + 1, entered + 1",
        "stuck = stuck + 1",
        GAPS,
    ),
    Mutant(
        "a waiting run is run before anything has come",
        RUNNING,
        "state.status.woken or head.cancel_requested or",
        "True or",
    ),
    Mutant("a cancel is beaten by a resume", RUNNING, "        if head.cancel_requested:\n", "        if False:\n"),
    Mutant(
        "a cancelled wait must be woken",
        RUNNING,
        "state.status.woken or head.cancel_requested or",
        "state.status.woken or",
    ),
    Mutant(
        "an owner whose lease ran out doesn't look", "journal/writing/leases.py", " and now < lease.until:", ":", GAPS
    ),
    Mutant(
        "an owner looks at nothing but its clock",
        "journal/writing/leases.py",
        "            return True\n        return self._renew(run_id, epoch)",
        "            return True\n        return True",
        GAPS,
    ),
    Mutant("a lease is anybody's", RUNNING, "        if not ours:\n", "        if False:\n", GAPS),
    Mutant(
        "a paid call is made without a look at the budget",
        SENDING,
        "            yield from self.core.check_budget()\n",
        "            pass\n",
        GAPS,
    ),
    Mutant(
        "a step is begun without a look at the budget",
        ENGINE,
        "            yield from self.check_budget(step=True)\n",
        "            pass\n",
        BUDGET,
    ),
    Mutant(
        "a round is begun before it is due",
        RUNNING,
        "if head.due_at is not None and head.due_at > timestamp(clock.now()):",
        "if False:",
        GAPS,
    ),
    Mutant("a transient failure begins no round", RUNNING, "if transient and round_ < rounds_max:", "if False:"),
    Mutant("any failure begins a round", RUNNING, "if transient and round_ < rounds_max:", "if round_ < rounds_max:"),
    Mutant("rounds have no end", RUNNING, "if transient and round_ < rounds_max:", "if transient:"),
    Mutant(
        "an unknown outcome that leaves the agent is an error",
        RUNNING,
        'if stored.get("kind") == "unknown":',
        "if False:",
    ),
    Mutant(
        "a no that leaves the agent is an error", RUNNING, 'if stored.get("kind") == "rejected":', "if False:", GAPS
    ),
    Mutant(
        "a mistake keeps the run",
        RUNNING,
        'self.log.append(run_id, [e.RunRequeued("released")], epoch=claim.epoch)',
        "pass",
    ),
    Mutant("a run with another input goes on", RUNNING, "queued.input != plain(given):", "False:", GAPS),
    Mutant(
        "the agent may return while a step is open",
        RUNNING,
        "            if core.entry is not None:\n                raise f.StepOpen(",
        "            if False:\n                raise f.StepOpen(",
        GAPS,
    ),
    # Threads.
    Mutant(
        "a step doesn't wait for its threads", RUN, "                thread.join()\n", "                pass\n", THREADS
    ),
    Mutant(
        "a mistake in a thread is lost with it",
        RUN,
        "                self._core.stop(mistake)\n",
        "                pass\n",
        THREADS,
    ),
    Mutant(
        "a lock is held during a body",
        RUN,
        "                self._changed.release()\n"
        "                try:\n"
        "                    return self._invoke(command)\n"
        "                finally:\n"
        "                    self._changed.acquire()",
        "                return self._invoke(command)",
        THREADS,
    ),
    Mutant("threads don't wait for what is recorded", RUN, "return not self.threads", "return True", THREADS),
    Mutant(
        "timeout_s cuts nothing",
        RUN,
        "        if command.timeout_s is None:\n            return _ended",
        "        if True:\n            return _ended",
        THREADS,
    ),
    Mutant(
        "a late end is told to nobody",
        RUN,
        "                    command.late(ended)\n",
        "                    pass\n",
        THREADS,
    ),
    # The order of history.
    Mutant(
        "ends are told in any order",
        ENGINE,
        "self.driver.calm and not entry.before(at), self.wait_s()",
        "True, self.wait_s()",
        TASKS,
    ),
    Mutant(
        "something new doesn't wait for what is recorded",
        ENGINE,
        'self.driver.calm and not self.left_out(entry, calls=calls) and not entry.before(float("inf"))',
        "True",
        TASKS,
    ),
    Mutant(
        "something new doesn't wait for the ends to be told", ENGINE, ' and not entry.before(float("inf"))', "", GAPS
    ),
    Mutant(
        "what is left out is waited for again and again",
        ENGINE,
        "entry.script = [line for line in entry.script if line not in gone]",
        "pass",
        GAPS,
    ),
    Mutant(
        "nothing is waited for", ENGINE, "return 0.0 if self.driver.alone() else left_out_wait_s", "return 0.0", TASKS
    ),
    Mutant(
        "an agent without tasks waits for nobody",
        ENGINE,
        "return 0.0 if self.driver.alone() else left_out_wait_s",
        "return left_out_wait_s",
        TASKS,
    ),
    Mutant(
        "the script holds what was tried again within an ask",
        SCRIPT,
        '                if getattr(event, "again", False):\n                    continue\n',
        "",
        GAPS,
    ),
    Mutant(
        "answers are told out of turn",
        SCRIPT,
        "                if needed[event.approval_id]:\n",
        "                if False:\n",
        GAPS,
    ),
    Mutant(
        "words are told out of turn",
        SCRIPT,
        "                if needed[event.call_id]:\n",
        "                if False:\n",
        GAPS,
    ),
    Mutant(
        "a call that is asked for again is one line of the script",
        SCRIPT,
        "self.asks[line.call_id] < line.nth",
        "not self.asks[line.call_id]",
        GAPS,
    ),
    Mutant("an end that nobody is told of is waited for", SENDING, "        if not again:", "        if True:", GAPS),
    Mutant(
        "who was cancelled before is not parked",
        CALLING,
        "                if cut:\n                    yield from self._park",
        "                if False:\n                    yield from self._park",
        TASKS,
    ),
    Mutant(
        "a step that was cancelled fails at once",
        ENGINE,
        "if failure.at not in self.heard and failure.cut:",
        "if False:",
        TASKS,
    ),
    Mutant(
        "a cancel between end and telling is forgotten",
        SENDING,
        'yield from self.core.record(e.NoteAdded("its asker was cancelled", code="cut", call_id=call_id))',
        "pass",
        TASKS,
    ),
    # asyncio.
    Mutant("two ends are told in one turn of the loop", ASYNC, "self._turn(told_turns)", "self._turn(0)", TASKS),
    Mutant("a cancel waits for ever", ASYNC, "if cancel_wait_s is not None:", "if False:", TASKS),
    Mutant(
        "a cancel waits longer than timeout_s",
        ASYNC,
        "held if deadline is None else min(deadline, held)",
        "held",
        TASKS,
    ),
    Mutant(
        "a cancel cuts nothing", ASYNC, "                if command.cuttable:\n                    break\n", "", TASKS
    ),
    Mutant(
        "a cancel cuts everything", ASYNC, "                if command.cuttable:\n", "                if True:\n", TASKS
    ),
    Mutant("a body that was cut goes on", ASYNC, "        body.cancel()\n", "", TASKS),
    Mutant("a step that fails leaves its calls in flight", ASYNC, "        await self.drain(entry)\n", "", TASKS),
    Mutant(
        "a step that fails waits for what can be cut",
        ASYNC,
        "            for task in tasks - told:\n                task.cancel()\n",
        "",
        TASKS,
    ),
    Mutant(
        "a step ends while its calls are in flight",
        ENGINE,
        "        yield from self.until(lambda: self.idle(entry) or entry.questions, None)\n"
        "        yield from self.until(lambda: not self.left_out(entry, questions=False), self.wait_s())\n"
        "        yield from self.until(lambda: self.idle(entry), None)\n",
        "        yield from self.until(lambda: not self.left_out(entry, questions=False), self.wait_s())\n",
        TASKS,
    ),
    Mutant(
        "a step ends while its questions are open",
        ENGINE,
        "        yield from self.until(lambda: self.idle(entry), None)\n",
        "",
        GAPS,
    ),
    Mutant(
        "the run waits while a call is in flight",
        CALLING,
        "core.state.answered(about) or core.idle(entry), None)",
        "True, None)",
        TASKS,
    ),
    Mutant(
        "a stop ends no wait", ENGINE, "lambda: self.stopped is not None or ready(), bound_s", "ready, bound_s", GAPS
    ),
    Mutant(
        "a cancelled step is no failure",
        ASYNC,
        "core.fail(entry, leaf, cut=cancelled)",
        "core.fail(entry, leaf)",
        TASKS,
    ),
    Mutant(
        "a cancelled step swallows its cancel",
        ASYNC,
        "        if cancelled:\n            raise error",
        "        if False:\n            raise error",
        TASKS,
    ),
    Mutant(
        "the caller's cancel is taken for the agent's",
        "journal/async_journal.py",
        "cancelled, core.leaving = cancelled or error, True\n"
        '                core.stop(f.Released("the run\'s caller cancelled it"))\n',
        "cancelled = cancelled or error\n",
        TASKS,
    ),
    Mutant(
        "a call that the caller cancelled is recorded as cut",
        SENDING,
        'if ended.cut == "cancel" and cuttable and leaving and',
        "if False and",
        TASKS,
    ),
    Mutant(
        "asyncio's each gives the done ones, too",
        ASYNC,
        "item in items if not self.done(name, key(item))",
        "item in items",
        GAPS,
    ),
)

MUTANTS: Final = TWINS + OURS
