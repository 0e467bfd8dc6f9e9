"""The product's code with one rule replaced, as data: each must turn the suite red (`test_mutants.py`).

A name says what the code then does wrong; `dies` is the test file where it falls first, which saves time and proves
nothing. Where a mutant has its place is said by name and by a piece of code (`mutating.py`), not by file and line. The
first part are the mutants of the executable model that the rules came with, each at the place where the product holds
the same rule; `NOT_OURS` are those that make no sense here. The second part are the product's alone.
"""

from __future__ import annotations

from typing import Final

from mutating import Mutant

RULES, STORIES, THREADS, TASKS = "engine_rules", "engine_stories", "threads", "async_driver"
GAPS, RANDOM, STATUSES, FOLDS, BUDGET = "engine_gaps", "engine_model", "status", "folds", "budget"
LET_GO, OUTAGES, SLEEPS = "let_go", "outages", "sleeps"

STANDS, LINES, SAME, VERDICT = "standstill", "lines", "same_call", "verdict"
REPLACED, NAMES = "store_replaced", "tool_names"
STOPPED, ENDS = "stopping", "in_flight_at_the_end"
OUTBOXES, STORE_IDS = "outbox", "store_id"
BILLED = "bills"
TURN, CHECK, OPENED, GROWING, OWN = "turn", "code_check", "open_runs", "growing_requests", "own_types"

TEXT = 'CLOCK.sub(lambda found: "0" if self._is_clock(found[0]) else found[0], value)'
# Where both drivers share a rule, it is broken for one of them.
ON_A_LOOP, CORE_ON_A_LOOP = 'hasattr(self, "loop")', 'hasattr(self.core.driver, "loop")'
NUMBER = "0 if abs(value) >= stamp_min_s and self._is_stamp(value) else value"

TWINS: Final = (
    # What a step sees.
    Mutant(
        "a step's overlay is seen between steps: memory",
        "RunParts.memory",
        "if self.steps.inside else memory.committed",
        "",
    ),
    Mutant("a step's overlay is seen between steps: plan", "RunParts.tasks", "if self.steps.inside else plan.base", ""),
    Mutant("a step's overlay is seen between steps: messages", "RunParts.messages", "self.steps.inside", "True"),
    Mutant(
        "the overlay is not dropped on re-entry: memory",
        "Memory.begin",
        "self.overlay, self.overlay_bytes = dict(self.base), self.base_bytes",
        "if self.overlay is None:\n    self.overlay, self.overlay_bytes = dict(self.base), self.base_bytes",
        STORIES,
    ),
    Mutant("the overlay is not dropped on re-entry: plan", "Plan.begin", "self.base", "self.view"),
    Mutant(
        "the overlay is not dropped on re-entry: messages",
        "MessageWalk.settled",
        "self.unsettled, self._open = [], isinstance(event, e.StepStarted)",
        "self._open = isinstance(event, e.StepStarted)\nself.unsettled = self.unsettled if self._open else []",
        STORIES,
    ),
    # Which call is it.
    Mutant("two tools of one name are called in a run", "Names.claim", "_place(first) != _place(made)", "False", NAMES),
    Mutant("a hook of two tools of one name is asked", "Runner._tool", "found is None", "False", NAMES),
    Mutant("a mistyped call is one that is known", "Journal._resolve", "if call is None:", "if False:", "mistyped"),
    Mutant(
        "n counts what the log has, not what this entry was given",
        "Caller.free_id",
        "in entry.busy",
        "in entry.busy or (\n"
        "    call_id in self.core.state.calls.known\n"
        '    and self.core.state.calls.known[call_id].status in ("completed", "open")\n'
        ")",
    ),
    Mutant(
        "n = 1 + the equal calls that are completed or open",
        "Caller.free_id",
        "n = entry.numbers.get(first, 1)",
        "n = 1 + sum(\n"
        "    call_key(lineage.scope, step, what, args, k, lineage.salt, store) in entry.busy for k in range(1, 9)\n"
        ")",
    ),
    Mutant("keys are those of any store", "Caller.identify", "self.core.lineage.store_id", '""'),
    Mutant("a copy of the log has an id of its own", "Reel.__init__", ", store_id=real.store_id", "", CHECK),
    Mutant(
        "any request gets the next recorded answer",
        "Caller._in_place",
        "alike(self.core, call, asked)",
        "True",
    ),
    Mutant(
        "a request that fits none is asked anew",
        "Caller.identify",
        'call_id = yield from self.request(entry, target, args["request"], call_id)',
        "yield from ()",
    ),
    Mutant(
        "an unfinished request is begun anew",
        "Caller._in_place",
        "call.began and call.place == place",
        'call.began and call.place == place and call.status != "open"',
    ),
    Mutant(
        "a second try is begun anew",
        "Caller._in_place",
        "key not in entry.asked",
        "key not in entry.asked and not call.tries",
    ),
    Mutant(
        "a second try of two attempts is begun anew",
        "Caller._in_place",
        "key not in entry.asked",
        'key not in entry.asked and not (call.tries and call.status != "open")',
    ),
    Mutant(
        "answers go by the order of their ends",
        "Caller._in_place",
        "call.began and call.place == place",
        "call.began and place == 1 + sum(\n"
        "    min((at for at, _ in each.told), default=10**9) < min((at for at, _ in call.told), default=10**9)\n"
        "    for each in calls.values()\n"
        "    if each.place\n"
        ")",
    ),
    Mutant(
        "a question that failed loses its place",
        "Caller._in_place",
        "key not in entry.asked",
        'key not in entry.asked and call.status != "failed"',
    ),
    Mutant("a clock in a text is a word", "Clocks.shape", TEXT, "value"),
    Mutant("any number is a clock", "Clocks.shape", TEXT, 're.sub(r"[0-9]+", "0", value)'),
    Mutant("one text is as good as another", "Clocks.shape", TEXT, '"text"'),
    Mutant(
        "a key that is asked for twice in flight is sent twice",
        "Caller.parallel",
        "wanted = dict(zip(ids, asks, strict=True))",
        "wanted = {key if ids.index(key) == n else key + '+': asks[n] for n, key in enumerate(ids)}",
    ),
    Mutant(
        "the end of a key asked for twice is told to one",
        "Caller.parallel",
        "for call_id in sorted(wanted, key=partial(self._next_told, entry))",
        "for call_id in ids",
    ),
    Mutant(
        "a key is of any tool",
        "Caller.identify",
        "each not in (None, (target.name, digest))",
        "each and each[1] != digest",
    ),
    Mutant("a key in flight isn't looked at", "known", "entry.busy.get(call_id),", ""),
    Mutant("a question has the name of a step", "Context._ask", "question.what", "question.action"),
    # What a recorded call gives back.
    Mutant(
        "a recorded failure is not told again",
        "Calls.on_ended",
        'call.told.append([record.seq, "completed" if completed else "failed"])',
        'call.told += [[record.seq, "completed"]] if completed else []',
    ),
    Mutant(
        "what was tried again inside an ask is told",
        "Calls.on_ended",
        "isinstance(event, e.ModelFailed | e.ToolFailed) and event.again",
        "False",
    ),
    Mutant(
        "DidNotHappen speaks for all attempts",
        "Calls.on_ended",
        "[attempt for attempt in call.maybe if attempt != event.attempt]",
        "[]",
    ),
    Mutant(
        "a late word speaks for all attempts", "Calls.on_resolved", "a != last if event.late else a > last", "False"
    ),
    Mutant("a failure proves that nothing happened", "Calls.on_ended", "and event.did_not_happen", ""),
    # Same call.
    Mutant(
        "an equal call that nobody knows of is another one",
        "Caller.identify",
        "not own_key and isinstance(target, ToolTarget) and target.policy not in REPEATABLE",
        "False",
    ),
    Mutant(
        "what a step has taken over is not asked for first",
        "Caller._equal",
        "call_id not in entry.busy and same(self.core, calls.known[call_id], target, args)",
        "False",
    ),
    Mutant(
        "what was taken over and returned is the same call again", "Caller._equal", "call_id not in entry.busy and", ""
    ),
    Mutant(
        "what nobody has heard is told to nobody",
        "Calls.on_resolved",
        'call.untold = call.policy != "outbox" and (call.status == "unknown" or not call.step)',
        "pass",
    ),
    Mutant("what came when its step was over is told to nobody", "Calls.on_resolved", "or not call.step", ""),
    Mutant("what was told late is told each time", "Caller.recorded", "call is not None and call.untold", "False"),
    Mutant("what nobody has heard is another call's", "Call.kept", "self.untold or", ""),
    Mutant(
        "what is settled is forgotten with its step",
        "Call.remembered",
        'or (self.settled and bool(self.maybe) and self.status != "completed")',
        "",
    ),
    Mutant("a late word about what is settled is none", "Calls.on_resolved", "or late", ""),
    Mutant(
        "what is settled is remembered for ever",
        "Calls._drop_settled",
        "len(settled) > settled_kept_max",
        "False",
        FOLDS,
    ),
    Mutant(
        "the newest of what is settled is forgotten",
        "Calls._drop_settled",
        "self.known[key].latest",
        "-self.known[key].latest",
        FOLDS,
    ),
    Mutant("a late word is said twice", "_check_word", "and not call.completed", ""),
    Mutant(
        "a word that nothing happened keeps a proof out", "Calls.on_resolved", "event.attempt in call.denied", "False"
    ),
    Mutant(
        "what was denied is not remembered",
        "Calls.on_resolved",
        "call.denied += [a for a in call.maybe if a <= last]",
        "pass",
    ),
    Mutant("nobody may know better than a word", "_check_word", "event.attempt in call.denied", "False"),
    Mutant(
        "the result of an owner that slept is lost",
        "Sender._said_meanwhile",
        'isinstance(end, e.ToolCompleted) and self.core.state.calls.known[call_id].status != "completed"',
        "False",
    ),
    Mutant(
        "a call of another step comes before the step's own",
        "Caller._equal",
        "if self._older(own_id, None):\n    return own_id",
        "",
    ),
    Mutant(
        "what a step has taken over comes before its elder equals",
        "Caller._older",
        "than is None or call.began < than",
        "than is None",
    ),
    Mutant(
        "what a step has taken over comes behind its younger equals",
        "Caller._older",
        "than is None or call.began < than",
        "True",
    ),
    Mutant(
        "a call of the step's own is one that it has taken over", "Calls.on_adopted", "call.step != self.step", "True"
    ),
    Mutant(
        "a call is taken over without a word in the log",
        "Caller._equal",
        "yield from self.core.append(e.ToolAdopted(call_id))",
        "yield from ()",
    ),
    Mutant(
        "any call of the tool is the same",
        "same",
        'args_sha256(mine) == args_sha256(cast("Json", recorded))',
        "True",
    ),
    Mutant("a call of any tool is the same", "same", "call.tool != target.name or", "", SAME),
    Mutant(
        "a parameter that a deploy adds makes another call",
        "same",
        "name in recorded or not tool.is_default(name, value)",
        "True",
        SAME,
    ),
    Mutant(
        "whatever a deploy adds, it is the same call",
        "same",
        "name in recorded or not tool.is_default(name, value)",
        "name in recorded",
        SAME,
    ),
    Mutant(
        "the newest of equal calls is taken over first",
        "Calls.kept_elsewhere",
        "key=self._age",
        "key=self._age, reverse=True",
    ),
    Mutant(
        "the newest that was taken over is asked for first",
        "Calls.taken_over",
        "self.known[key].taken_seq",
        "-self.known[key].taken_seq",
    ),
    Mutant(
        "a call that was taken over stays that of the step before",
        "Calls.on_adopted",
        "call.step, call.taken, call.taken_seq = self.step, self.step, record.seq",
        "call.taken, call.taken_seq = self.step, record.seq",
    ),
    Mutant(
        "what was told is forgotten when its result is told",
        "Calls.on_adopted",
        "call.fresh, call.untold = True, False",
        "call.fresh, call.untold, call.told = True, False, []",
    ),
    Mutant(
        "what was taken over may be left out",
        "Calls.on_adopted",
        "call.fresh, call.untold = True, False",
        "call.untold = False",
    ),
    Mutant(
        "anything may be taken over",
        "_check_facts",
        "call is not None and call.untold and",
        "call is not None and",
        STATUSES,
    ),
    # Ends that prove nothing.
    Mutant(
        "a failure that proves nothing is told", "Sender._failed", "return replace(event, lost=True)", "return event"
    ),
    Mutant("a failure that proves nothing is told live", "Sender.finish", "if sent.lost:\n    return LOST", ""),
    Mutant(
        "a failure that proves nothing is told again", "Calls.on_ended", 'not getattr(event, "lost", False)', "True"
    ),
    Mutant(
        "a failure that proves nothing is a line of the script", "read", 'or getattr(event, "lost", False)', "", SAME
    ),
    Mutant("who was cancelled is told of nothing", "Sender._failed", "void or safe or cut", "void or safe", SAME),
    Mutant("a hook is asked twice of one end", "Caller._made", ", asked=True", "", GAPS),
    Mutant(
        "a class that is derived from one of not_sent did nothing",
        "Tool.did_nothing",
        "type(error) in self.not_sent",
        "isinstance(error, self.not_sent)",
    ),
    Mutant("not_sent says nothing", "Tool.did_nothing", "or type(error) in self.not_sent", ""),
    Mutant(
        "of an unknown outcome the error is the telling before",
        "Caller._failure",
        "told if tells_unknown(event) else event.error",
        "event.error",
        SAME,
    ),
    Mutant("an agent that is told once is told each time", "Caller.recorded", 'verdict == "tell"', "False"),
    Mutant("a person is asked about what is settled", "Call.unresolved", "and not self.settled", ""),
    Mutant("what is settled is asked about when it is asked for", "judge", "if call.settled", "if False", VERDICT),
    Mutant("a word about what is settled is taken", "Calls.facts", "completed or call.settled", "completed", VERDICT),
    Mutant(
        "what was settled once stays so",
        "Calls.on_started",
        "call.said = call.settled = call.priced = False",
        "call.said = call.priced = False",
    ),
    Mutant("a word that nobody knows is none", "Calls.on_resolved", "call.said = True", "pass", VERDICT),
    Mutant(
        "what an agent was told answers a question", "RunState.answered", "call.said or", 'call.status == "unknown" or'
    ),
    Mutant("a run waits for what only its agent is told", "Runner.triage", 'verdict == "ask"', 'verdict != "run"'),
    Mutant("an agent is called before a person has spoken", "Runner.triage", 'verdict == "ask"', "False", VERDICT),
    Mutant(
        "calls that are asked for together are begun together",
        "Caller._all_made",
        "for call_id, (target, args, _) in wanted.items():\n"
        "    if isinstance(outcome := outcomes[call_id], Live | Nobody):\n"
        "        outcomes[call_id] = yield from self._caught(self._made(entry, call_id, target, args, outcome))",
        "begun = {}\n"
        "for call_id, (target, args, _) in wanted.items():\n"
        "    if outcomes[call_id] is LIVE:\n"
        "        begun[call_id] = yield from self.sender.start(entry, call_id, target, args)\n"
        "for call_id, number in begun.items():\n"
        "    made = self.sender.finish(entry, call_id, *wanted[call_id][:2], number)\n"
        "    outcomes[call_id] = yield from self._caught(made)",
    ),
    Mutant("a changed question is paid for", "Sender.start", 'not known and target.policy == "model"', "False"),
    Mutant(
        "a new question waits for nobody who asks again",
        "Sender.start",
        "yield from self.order.nothing_left_out(entry, where, call_id, questions=False, told=False)",
        "self.order.stop_if_left_out(entry, where, questions=False)",
        SAME,
    ),
    Mutant(
        "an open unsafe call is sent again",
        "judge",
        '"ask" if on_unknown == "ask" and not call.said else "fail"',
        '"run"',
    ),
    Mutant(
        "what the agent was told of an unknown outcome is not recorded",
        "Caller._tell_unknown",
        "at = yield from self.core.append(end)\n"
        'entry.script.append(ScriptItem(at, "tell", call_id, 0))\n'
        "yield from self.sender.told_in_turn(entry, at, call_id)\n"
        "self.order.tell(entry, at)",
        "yield from ()",
    ),
    Mutant(
        "that nobody knows is told at once",
        "Caller._tell_unknown",
        "yield from self.sender.told_in_turn(entry, at, call_id)",
        "",
        SAME,
    ),
    Mutant(
        "what was told of an unknown outcome belongs to the step that asked first",
        "Calls.on_ended",
        "call.step, call.settled = self.step, event.settled",
        "call.settled = event.settled",
    ),
    Mutant("an answer that a sent call rests on is forgotten", "Call.forget", "and self.latest > sent", ""),
    Mutant("an answer is as old as its first attempt", "Call.forget", "self.latest", "self.began"),
    Mutant("only models are asked anew", "Call.forget", "not self.has_effect", 'self.policy == "model"'),
    Mutant(
        "a key's life is counted from its last attempt",
        "Calls.on_started",
        "call.key_expires_at if call.maybe else expires",
        "expires",
    ),
    Mutant(
        "the hook is not asked when a tool fails",
        "Sender._ending",
        "None if nothing or ended.cut else target.word(args, call_id)",
        "None",
    ),
    Mutant("a hook that doesn't know says no", "ToolTarget.word", 'and word[0] == "did_not_happen"', ""),
    Mutant("a hook that raises fails the run", "ToolTarget.word", "except Exception", "except ()"),
    Mutant(
        "the effects of the scope are not looked up",
        "Caller.verdict",
        "self.core.lineage.effect(call_id) is not None",
        "False",
    ),
    # Which step is it.
    Mutant(
        "a name is for any number of steps",
        "StepControl.plan_step",
        "self.core.lineage.done(step_id) is not None",
        "False",
    ),
    Mutant("a do may be asked for twice", "StepControl.plan_do", "step_id in self.passed", "False"),
    Mutant("an id is of any kind", "StepControl.check_kind", "known not in (None, kind)", "False"),
    Mutant("a renamed do is simply done", "StepControl.plan_do", "key is None and not begun", "False"),
    Mutant(
        "another step may be begun while one is open",
        "StepControl.begin",
        "steps.open is not None and steps.open.id != step_id",
        "False",
    ),
    Mutant("each gives the done ones, too", "Context.each", "not self.done(name, item_key)", "True"),
    Mutant("a loop on local variables goes on", "Core.stop_if_blind", "self.blind and not self.looked", "False"),
    Mutant("a loop that has looked is stopped", "Core.stop_if_blind", "and not self.looked", ""),
    Mutant("a loop in one process is stopped", "StepControl.plan_step", "and self.turns.get(name) != uses", ""),
    Mutant(
        "a loop must look before it fails",
        "Core.append",
        'not in ("step.failed", "signal.taken")',
        'not in ("signal.taken",)',
    ),
    Mutant("a look at the memory doesn't count", "RunParts.memory", "self.core.looked = True", ""),
    Mutant("a look at the messages doesn't count", "RunParts.messages", "self.core.looked = True", "", GAPS),
    Mutant("a look at the plan doesn't count", "RunParts.tasks", "self.core.looked = True", "", GAPS),
    Mutant("a look at the inbox doesn't count", "Context._signals", "core.looked = True", ""),
    # Divergence.
    Mutant(
        "divergence is found only at the end of the step",
        "Sender.start",
        "not known and target.policy not in EFFECT_FREE",
        "False",
    ),
    Mutant(
        "divergence is not found at the end of the step",
        "StepControl.complete",
        'self.order.stop_if_left_out(entry, "the end of the step", questions=False)',
        "pass",
    ),
    Mutant(
        "a question with a clock is asked for ever",
        "Asker.ask_all",
        'yield from self.order.nothing_left_out(entry, f"{question.what} was asked anew", key, calls=False)',
        "pass",
    ),
    Mutant(
        "a call takes the place of a question",
        "TellingOrder.nothing_left_out",
        "self.stop_if_left_out(entry, where, calls=calls, questions=questions)",
        "self.stop_if_left_out(entry, where, calls=calls, questions=not calls)",
    ),
    Mutant(
        "a call takes the place of a question at once",
        "TellingOrder.nothing_left_out",
        "left = self.left_out(entry, calls=calls, questions=questions)",
        "left = self.left_out(entry, calls=calls, questions=not calls)",
        GAPS,
    ),
    Mutant(
        "a question of a failed attempt is missed",
        "TellingOrder.left_out",
        "(asked.step, asked.attempt) == mine",
        "asked.step == mine[0]",
    ),
    # Failures of steps.
    Mutant("handled failures are forgotten", "Lineage.failures", 'end.kind == "repeat"', "True"),
    Mutant("handled failures of a block are forgotten", "Lineage.failures", 'end.kind == "repeat"', 'end.kind != "do"'),
    Mutant(
        "failures since the last completed step are not told",
        "Steps.may_be_told",
        "any(failure[0] == place and failure[1] == step for failure in self.failures)",
        "False",
    ),
    Mutant("a failure that left `failures` is told no more", "Steps.may_be_told", "place > self.cut and", "", LET_GO),
    Mutant("a step that failed long ago is entered with nothing", "Lineage.recall", "not steps.let_go", "True", LET_GO),
    Mutant("the state lets go of no failed step", "RunState._let_go", "over > 0", "False", LET_GO),
    Mutant(
        "answers to a step that failed long ago are forgotten",
        "RunState.on_step_started",
        'self.approvals.recall(event.id, event.recalled["questions"])',
        "pass",
        LET_GO,
    ),
    Mutant("a failure is known by what the log has by now", "Core.commit", "records[-1].seq", "self.state.seq"),
    Mutant("a no is a failure like any other", "step_failure", 'kind == "rejected"', "False"),
    Mutant("an unknown outcome is a failure like any other", "step_failure", 'kind == "unknown"', "False"),
    Mutant("a failure that leaves the agent wrapped is handled", "left_by", ", (cause, False)", ""),
    Mutant(
        "a failure that leaves the agent in a group is handled", "left_by", "*((each, itself) for each in held),", ""
    ),
    Mutant(
        "a failure that leaves the agent late is handled",
        "Steps.tried_anew",
        "place > since or attempt >= least",
        "place > since",
    ),
    Mutant("what was handled before is tried anew", "Steps.tried_anew", "place > since or attempt >= least", "True"),
    Mutant(
        "a new round is told what made the last one fail",
        "Steps.on_retry_scheduled",
        "self.try_anew(event.left, record.seq)",
        "pass",
    ),
    Mutant(
        "a new round forgets what was handled",
        "Steps.on_retry_scheduled",
        "self.try_anew(event.left, record.seq)",
        "self.failures = []",
    ),
    # Mistakes and stops.
    Mutant("a mistake fails its step", "stop_in", "Mistake |", ""),
    Mutant("a mistake fails the run", "Runner._called", "except f.Mistake:\n    raise", ""),
    Mutant("a step that is done fails the run", "StepDone", "Mistake", "JournalError"),
    Mutant(
        "a mistake can be swallowed",
        "StepBlock._leave",
        "if stop is not None:\n    if stop is error",
        "core.stopped = None if isinstance(stop, f.Mistake) else stop\nif stop is not None:\n    if stop is error",
    ),
    Mutant("a stop can be swallowed", "Core.alive", "self.stopped is not None", "False"),
    # Signals.
    Mutant("the inbox is what has arrived by now", "Inbox.arrived", "signal[0] < before_seq", "True"),
    Mutant(
        "a step takes signals that it didn't look at",
        "RunState.on_step_completed",
        "step.taken",
        "[signal[1] for signal in self.inbox.arrived(step.since)]",
    ),
    Mutant(
        "an earlier entry takes signals for the last one",
        "Steps.on_started",
        "record.at",
        "record.at, took=again.took if again else None",
    ),
    # Links.
    Mutant("a restart forgets what is unresolved", "RunState.derive", 'new.calls = calls.inherited(kept, "")', ""),
    Mutant("any run may be retried at any time", "_Append._check_line", "base is None or base != last or", ""),
    Mutant("a base and a run number their events alike", "RunState.derive", "offset=place,", ""),
    Mutant(
        "a retry takes an open step for a failed one",
        "RunState.derive",
        "new.calls = calls.inherited(base.calls.known, base.calls.step)",
        "base.calls.fail_step()\nnew.steps.open = None\nnew.calls = calls.inherited(base.calls.known, base.calls.step)",
    ),
    Mutant("a retry is told what made its parent fail", "RunState.derive", "*base.status.left,", ""),
    Mutant(
        "a retry forgets what was handled",
        "RunState.derive",
        "new.steps.try_anew([*base.status.left, *([step, 0] for step in again)], place + 1)",
        "new.steps.failures = []",
    ),
    Mutant("a retry is deaf", "RunState.derive", ", *([step, 0] for step in again)", ""),
    Mutant("a retry knows the old answers", "RunState.derive", "q.step == step and", ""),
    Mutant(
        "a fork is told what came after",
        "RunState.derive",
        "new.steps.open, new.steps.redo, new.steps.failures = None, None, []",
        "new.steps.open, new.steps.redo = None, None",
    ),
    Mutant("a fork inherits what is open", "RunState.derive", '== "retry"', 'in ("retry", "fork")'),
    Mutant("a word may go to any run of a line", "_check_newest", "newest not in (None, head.run_id)", "False"),
    # Owners, recovery, words.
    Mutant(
        "a fenced owner speaks of the attempt it finds",
        "Sender._testify",
        "self.testify",
        "self.core.lineage._source.forget([self.core.lineage.run_id])\n"
        "attempt = self.core.state.calls.known[call_id].attempt\n"
        "self.testify",
    ),
    Mutant("a fenced owner says nothing", "Runner.testify", "self.log.append(run_id, [event], expect=None)", "pass"),
    Mutant(
        "anyone may speak of a call in flight",
        "_may_testify",
        'head.status == "running" and not relayed and not scene.owner_gone(head)',
        "False",
    ),
    Mutant("no fence", "Gate.admit", 'self.epoch and (status != "running" or self.epoch != self.current)', "False"),
    Mutant("no look at the lease before the call", "Sender._send.body", "core.lineage.check_lease(core.epoch)", ""),
    Mutant(
        "a cancel is looked at before the lock",
        "_owner_may",
        '(kind in _GOES_ON or (cancel == "now" and kind in CALL_STARTS))',
        "kind in _GOES_ON",
    ),
    Mutant("an answer comes after its time", "_check_in_time", 'over and event.decision != "expired"', "False"),
    Mutant("a time is over before it is", "_check_in_time", 'event.decision == "expired" and not over', "False"),
    Mutant("a time that is over wakes nobody", "Waiter.wait", "min(filter(None, times), default=None)", "None"),
    Mutant(
        "a question's time is never over",
        "Asker._answered",
        "known.expires_at <= timestamp(core.lineage.clock.now())",
        "False",
    ),
    Mutant("nobody's answer is always a no", "Asker._outcome", "not (yes or by_default)", "not yes"),
    Mutant(
        "several questions are asked one by one",
        "Asker.ask_all",
        'yield from self.caller.wait(entry, [{"kind": "approval", "id": key} for key in open_], *new)',
        'yield from self.caller.wait(entry, [{"kind": "approval", "id": keys[0]}], new[0])',
    ),
    Mutant("an answer is taken twice", "_check_facts", "not facts.question_open(event.approval_id)", "False"),
    Mutant("a word before the wait is slept through", "_WAKING", '"run.waiting",', ""),
    Mutant("recoveries are not counted", "Status.on_requeued", "self.stuck += event.reason in RECOVERIES", ""),
    Mutant("progress doesn't count", "Status.on_call_ended", "self.progress()", "pass"),
    Mutant("a tool that isn't known falls over", "Runner._tool", "self.tools.get(name)", "self.tools[name]"),
    Mutant("a tool that isn't known fails the run", "judge", "else call.on_unknown", 'else "fail"', "recovery"),
    Mutant(
        "a tool that isn't known asks a person, whatever was recorded", "judge", "else call.on_unknown", 'else "ask"'
    ),
    Mutant(
        "an unsafe start is relaxed",
        "is_durable",
        "not (event.read_only or event.policy in RELAXED_STARTS)",
        "False",
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
        "Sender._failed",
        "void and call.maybe == [attempt]",
        "void",
    ),
    Mutant("a lost unsafe call is tried again within the ask", "Sender._failed", "safe and", ""),
    Mutant("what can't happen twice is not tried again", "Sender._failed", "call.policy in REPEATABLE or", ""),
    Mutant(
        "a keyed call is not tried again",
        "Sender._failed",
        "or lives",
        "",
    ),
    Mutant("a failure that isn't transient is tried again", "Sender._failed", "transient and", ""),
    Mutant("an ask tries for ever", "next_try", "tried < retry.attempts", "True", OUTAGES),
    Mutant("an ask tries once more", "next_try", "tried < retry.attempts", "tried <= retry.attempts", OUTAGES),
    # Times.
    Mutant("a call is sent before its time", "Sender.paused", "return left_s > 0", "return False", OUTAGES),
    Mutant("the next process forgets a pause", "Calls.on_ended", "call.retry_at = event.retry_at", "pass", OUTAGES),
    Mutant("a long pause is slept in the process", "Sender.paused", "left_s > pause_s_max", "False", OUTAGES),
    Mutant("a service is asked before it wants to be", "next_try", "asked_s or 0.0", "0.0", OUTAGES),
    Mutant("a call is tried beyond its time", "next_try", "since_s + pause_s <= retry.within_s", "True", OUTAGES),
    Mutant("a useless answer is an outage", "next_try", "if refused:", "if False:", OUTAGES),
    Mutant(
        "who asks next doesn't wait",
        "next_try",
        "if again or asked_s is not None else None",
        "if again else None",
        OUTAGES,
    ),
    Mutant(
        "a call may have only short pauses",
        "Retry.pause_s",
        "(drawn + attempt * (math.sqrt(5) - 1) / 2) % 1",
        "drawn",
        OUTAGES,
    ),
    Mutant("pauses don't grow", "Retry.pause_s", "min(most * self.factor, self.longest_s)", "most", OUTAGES),
    Mutant(
        "any client is one that is known", "unreached", 'str(each.__module__).partition(".")[0]', '"httpx"', OUTAGES
    ),
    Mutant("a sleep begins anew in each process", "Timers._known", "opened is None", "True", SLEEPS),
    Mutant("a short sleep gives the run back", "Timers._until", "left_s > pause_s_max", "left_s > 0", SLEEPS),
    Mutant("a wait takes a signal that is taken", "Timers._oldest", "and key not in taken", "", SLEEPS),
    Mutant(
        "a wait that has timed out finds its signal later",
        "Steps.on_signal_taken",
        'self.open.waited[event.wait_id] = next(iter(event.signal_ids), "")',
        "self.open.waited.update({event.wait_id: each for each in event.signal_ids})",
        SLEEPS,
    ),
    Mutant("the inbox has what was waited for", "Context._signals", "if signal[1] not in waited", "", SLEEPS),
    Mutant("a signal comes twice under its id", "receive", "raise _IsThere", "break", SLEEPS),
    Mutant(
        "a signal changes under its id",
        "receive",
        "(there.name, plain(folding.filled(log.store, there.payload))) != (signal.name, signal.payload)",
        "False",
        SLEEPS,
    ),
    Mutant("a run is waited for beyond what was said", "Patience.pause_s", "due > self._until", "False", "due"),
    Mutant(
        "a key that today's tool drops is relied on",
        "judge",
        'and (tool is None or tool.policy == "keyed")',
        "",
        "verdict",
    ),
    Mutant("recover knows no tool of today", "recover", "tool_today(call.tool)", "None", "verdict"),
    Mutant("a key lives for ever", "key_lives", "or call.key_expires_at <= at.now", ""),
    Mutant("a paid answer that is rejected counts for nothing", "Sender._ending", ", paid=event", "", GAPS),
    Mutant("a tool that changes its arguments changes the next attempt", "ToolTarget.lend", "copied(args)", "args"),
    Mutant(
        "a hook that changes its arguments changes the call", "ToolTarget.word", "copy.deepcopy(args)", "args", GAPS
    ),
    Mutant(
        "no look at the lease before a transaction",
        "Sender._transact",
        "core.lineage.check_lease(core.epoch)",
        "",
        GAPS,
    ),
    Mutant(
        "an owner that was fenced before it sent says nothing",
        "Sender._send",
        "not reached and isinstance(ended.error, f.Fenced)",
        "False",
    ),
    Mutant(
        "a fenced owner keeps its result to itself",
        "Sender.attempt",
        "self._testify(target, call_id, attempt, ended, word)",
        "",
    ),
    Mutant("a fenced owner speaks as a person does", "Sender._testify", ", late=True", ""),
    Mutant("a body that was cut never tells", "Sender._send.late", "not cuttable", "False", THREADS),
    Mutant(
        "an effect that can't be recorded is given up at once",
        "Sender._record",
        "(*record_waits_s, None)",
        "(None,)",
        GAPS,
    ),
    Mutant("an effect that can't be recorded fails the step", "Sender._record", "self.core.stop(lost)", "", GAPS),
    # Words and verdicts.
    Mutant(
        "a retry asks again what is known to have happened",
        "_apply",
        "call.has_effect and not was_completed",
        "False",
    ),
    Mutant(
        "what happened in the scope may be begun again",
        "authority:_check_facts",
        "or scene.happened(event.call_id)",
        "",
        GAPS,
    ),
    Mutant(
        "a person speaks of any attempt",
        "_check_word",
        "event.attempt != call.attempt",
        "False",
        STATUSES,
    ),
    Mutant(
        "a late word about an attempt that has an outcome is heard",
        "_check_word",
        "event.attempt in call.maybe and not call.completed",
        "not call.completed",
        STATUSES,
    ),
    Mutant("a word about what is known is heard", "_check_word", "or not call.unresolved", "", STATUSES),
    Mutant(
        "an attempt may end twice", "_check_facts", "or not call.open or call.attempt != event.attempt", "", STATUSES
    ),
    Mutant(
        "the log is told that nobody knows what is known",
        "_check_facts",
        "or not (call.unresolved or unheard)",
        "",
        STATUSES,
    ),
    Mutant(
        "a call of which a word says that nothing happened is in flight for ever",
        "Calls.on_resolved",
        'not call.maybe and call.status in ("open", "unknown")',
        "False",
        FOLDS,
    ),
    Mutant(
        "a call of an own key that is completed gives nothing in another step",
        "Caller.recorded",
        "self._effect_value(call_id)",
        "None",
    ),
    Mutant(
        "a result that can't be stored is none",
        "Caller._effect_value",
        "isinstance(event, e.ToolCompleted) and event.result_error",
        "False",
        STORIES,
    ),
    Mutant(
        "a key is of any arguments",
        "Caller.identify",
        "each not in (None, (target.name, digest))",
        "each and each[0] != target.name",
    ),
    Mutant(
        "a key of its own in flight is sent twice by two tasks",
        "Caller.call",
        "if own_key:\n    entry.shared[call_id] = []",
        "",
        TASKS,
    ),
    Mutant(
        "a failed call is another call when it is asked for again", "Caller.call", "entry.busy.pop(call_id, None)", ""
    ),
    Mutant("seconds since 1970 are no clock", "Clocks.shape", NUMBER, "value"),
    Mutant("each number of a request is a clock", "Clocks.shape", NUMBER, "0"),
    Mutant(
        "a question has the key of a tool",
        "Asker._key",
        "self.caller.free_id(entry, question.what, question.args)",
        "self.caller.free_id(entry, question.action, question.args)",
    ),
    Mutant(
        "an asyncio question has the name of a step",
        "Context._ask",
        "question.what",
        f"(question.action if {ON_A_LOOP} else question.what)",
        GAPS,
    ),
    Mutant("a no is a yes", "Asker._outcome", "not (yes or by_default)", "False"),
    Mutant(
        "a result that can't be stored is told of nowhere",
        "ToolTarget.completed",
        'self.policy == "idempotent"',
        "False",
    ),
    Mutant("any tool may be called again", "ToolTarget.completed", 'self.policy == "idempotent"', "True"),
    Mutant("args that don't bind leave the agent", "Context._parallel", "unbound[place] = failure", "raise"),
    Mutant("a value that can't be stored fails a step", "written", "ValueUnstorable", "ValueError"),
    Mutant("an answer on record is asked for again", "AgentTurn.take", "if last is None:", "if True:", TURN),
    Mutant(
        "calls that something was written behind are never made",
        "AgentTurn._last_answer",
        "left or not (behind or shape.paused(last))",
        "not (behind or shape.paused(last))",
        TURN,
    ),
    Mutant(
        "a call that has its result is made again", "AgentTurn._last_answer", "each.id not in answered", "True", TURN
    ),
    Mutant(
        "a person isn't asked before a call", "AgentTurn._made", "partial(self.approve, tool.name, args)", "bool", TURN
    ),
    Mutant(
        "edited args of a turn are dropped",
        "AgentTurn._made",
        "self.verbs.call(tool, edited, wanted.id)",
        "self.verbs.call(tool, args, wanted.id)",
        TURN,
    ),
    Mutant("a cut call of an answer is made", "_cut", "found[-1]._replace(wrong=CUT_OFF)", "found[-1]", TURN),
    Mutant(
        "an answer that pauses is the last one",
        "AnthropicShape.paused",
        '_told(message, "stop_reason") == "pause_turn"',
        "False",
        TURN,
    ),
    Mutant(
        "blank texts go back to the provider",
        "AnthropicShape.history",
        "_without_blanks(message.content)",
        "message.content",
        TURN,
    ),
    Mutant(
        "a check lets another step pass", "Watcher.enter", "(start.id, start.kind) != (step_id, kind)", "False", CHECK
    ),
    Mutant(
        "a check lets another result pass",
        "Watcher._same",
        "dumps(shape(before, then)) != dumps(shape(plain(today), now))",
        "False",
        CHECK,
    ),
    Mutant(
        "a check lets other writes pass",
        "Watcher._compare_writes",
        "were == are or sorted(were) == sorted(are)",
        "True",
        CHECK,
    ),
    Mutant(
        "a check doesn't take the run up",
        "CodeChecker.twice",
        "not self._ended and not found.unchecked",
        "False",
        CHECK,
    ),
    Mutant("a check lets another call pass", "Watcher._live", "shown.end is None", "True", CHECK),
    Mutant("a no lost its note", "step_failure", 'error.get("note", "")', '""'),
    Mutant("edited arguments are dropped", "Asker._outcome", "args if edited is None else edited", "args"),
    Mutant(
        "a word about an unknown outcome in a failed call is lost",
        "call_failure",
        'error.get("kind") == "unknown"',
        "False",
    ),
    Mutant(
        "a class's name makes a no",
        "_error_of",
        "isinstance(first, Rejected)",
        'type(first).__name__ == "Rejected"',
        GAPS,
    ),
    Mutant(
        "a class's name makes an unknown outcome",
        "_error_of",
        "isinstance(first, CallOutcomeUnknown)",
        'type(first).__name__ == "CallOutcomeUnknown"',
        GAPS,
    ),
    Mutant(
        "a group is transient if one of it is",
        "_error_of",
        "all(is_transient(leaf) for leaf in every)",
        "any(is_transient(leaf) for leaf in every)",
        GAPS,
    ),
    # Steps.
    Mutant(
        "nothing of a loop that hasn't looked is stopped but its calls",
        "Core.append",
        "self.stop_if_blind(events[0].TYPE)",
        "pass",
    ),
    Mutant(
        "a loop that looks at its signals is stopped for it",
        "Core.append",
        'not in ("step.failed", "signal.taken")',
        'not in ("step.failed",)',
    ),
    Mutant("the same code is stopped for what it left out", "StepControl.plan_do", "not self.same_code and", "", GAPS),
    Mutant("a do that failed is taken for a new one", "StepControl.plan_do", "step_id in state.steps.attempts or", ""),
    Mutant("a do with a key counts as left out", "RunState.on_step_completed", "and step.key is None", ""),
    Mutant("a step that failed gets another index", "StepControl.begin", "or steps.redo == step_id", ""),
    Mutant(
        "attempts are counted in one process",
        "StepControl.begin",
        "steps.open.attempt if steps.open else (failed or steps.attempts.get(step_id, 0)) + 1",
        "1",
    ),
    Mutant(
        "what an older run did long ago is not done",
        "Lineage.done",
        "next((at for at, end in self._ends(step_id) if end.ok), None)",
        "None",
        GAPS,
    ),
    Mutant("a restart takes over the steps of its base", "Lineage._walk", 'queued.link in ("retry", "fork")', "True"),
    Mutant(
        "a fork has done what its base did later", "Lineage._ends", "part.upto is None or end.seq <= part.upto", "True"
    ),
    Mutant(
        "a failure is told as often as its step is asked for",
        "StepControl.tell_failure",
        "failure.at not in self.order.heard",
        "True",
    ),
    Mutant(
        "a failure is told again by the process that told it", "StepControl.fail", "self.order.heard.add(place)", ""
    ),
    Mutant("a fork counts no attempts", "RunState.derive", "dict(new.steps.settled)", "{}"),
    Mutant(
        "a fork keeps the attempts of steps that came after",
        "RunState.derive",
        "new.steps.attempts = dict(new.steps.settled)",
        "",
    ),
    Mutant("a do with a key is stopped for what was left out", "StepControl.plan_do", "key is None and", ""),
    Mutant("a retry keeps questions that nobody answered", "RunState.derive", "and q.decision", ""),
    Mutant("a retry has an empty inbox", "RunState.derive", "new.inbox = base.inbox", ""),
    Mutant(
        "a retry has the history of the calls of its base no more",
        "RunState.derive",
        "new.calls = calls.inherited(base.calls.known, base.calls.step)",
        "",
    ),
    Mutant(
        "an inbox is what had arrived when this entry began",
        "Steps.on_started",
        "again.since if again else record.seq",
        "record.seq",
    ),
    Mutant(
        "an attempt that failed takes signals",
        "RunState.on_step_failed",
        "self.calls.fail_step()",
        "self.calls.fail_step()\nself.inbox.take((self.steps.open.took if self.steps.open else None) or ())",
    ),
    Mutant(
        "a signal of one id is two",
        "Inbox.on_signal",
        "all(signal[1] != event.signal_id for signal in self.signals)",
        "True",
        FOLDS,
    ),
    Mutant(
        "a value of the memory may be changed in place",
        "LentValues.check",
        "dumps(value) != before",
        "False",
        STORIES,
    ),
    Mutant(
        "a value that was assigned counts as changed in place",
        "LentValues.forget",
        "self._lent = [lent for lent in self._lent if lent[0] != key]",
        "pass",
        GAPS,
    ),
    Mutant("a tool may write to its run", "Core.not_in_tool", "IN_TOOL.get() is self", "False", STORIES),
    Mutant(
        "a thread that outlives its step writes to the next one",
        "StepControl.here",
        'entry.open and getattr(context, "entry", None) is entry',
        f'(not {CORE_ON_A_LOOP} or (entry.open and getattr(context, "entry", None) is entry))',
        THREADS,
    ),
    Mutant(
        "a task that outlives its step writes to the next one",
        "StepControl.here",
        'entry.open and getattr(context, "entry", None) is entry',
        f'({CORE_ON_A_LOOP} or (entry.open and getattr(context, "entry", None) is entry))',
        TASKS,
    ),
    # Running.
    Mutant(
        "a run that makes no progress in steps is given up: completed",
        "RunState.on_step_completed",
        "self.status.progress()",
        "",
    ),
    Mutant(
        "a run that makes no progress in steps is given up: failed",
        "RunState.on_step_failed",
        "self.status.progress(proven=not event.left)",
        "",
    ),
    Mutant("waiting is no progress", "Status.on_waiting", "not self.stands", "False"),
    Mutant("to stand still is progress", "Status.on_waiting", "not self.stands", "True"),
    Mutant("a stop for code is forgotten", "left_by", "not isinstance(stop, f.PlanChanged | f.StepDiverged)", "True"),
    Mutant("a stop for code in a group is forgotten", "left_by", "f.stop_in(error)", "error", STANDS),
    Mutant("mended code isn't tried", "children:resumed", 'state.stands != "code"', "True"),
    Mutant("any wait is tried by whoever names it", "children:resumed", 'state.stands != "code"', "False"),
    Mutant("code that has stopped a run is tried for ever", "children:resumed", "only_new and", "False and", STANDS),
    Mutant("code that is named is tried once", "children:resumed", "only_new and", "", STANDS),
    Mutant(
        "code that has stopped a run is that which it got on with",
        "Runner.claim",
        'state.status.proven_code or ""',
        'state.status.code_version or ""',
        STANDS,
    ),
    Mutant("what stood still counts on", "Status.on_requeued", "self.stuck = 0", "pass"),
    Mutant("a step that stood still counts on", "Steps.on_requeued", "self.open.recoveries = 0", "pass", GAPS),
    Mutant("a wait for an answer is resumed", "_may_requeue", "not scene.facts().stands", "False", STATUSES),
    Mutant("what has nothing to resume isn't told so", "standstill:resume", "not state.stands", "False", STANDS),
    Mutant(
        "a run that got on remembers where it stood still",
        "Status.progress",
        "if self.stopped_codes:\n    self.stopped_codes = []",
        "",
        STANDS,
    ),
    Mutant("the id of a line is its first run", "naming:named", "head.scope != name", "True"),
    Mutant("what is said while a run goes on is lost", "on_line", "newest == run_id", "True", LINES),
    Mutant(
        "who was overtaken on the way to a retry is refused",
        "Journal._go_on",
        "naming.on_line(self.store, mistyped.check_run(self, run_id), go_on)",
        "go_on(mistyped.check_line(self, run_id))",
        LINES,
    ),
    Mutant("an older run is gone on from as its newest", "begin", "newest == run_id", "False", LINES),
    Mutant("two retries are two", "_asked_for", "(queued.link, queued.again or []) != (link, steps)", "True", LINES),
    Mutant("a retry is a restart", "_asked_for", "(queued.link, queued.again or []) != (link, steps)", "False", LINES),
    Mutant(
        "a retry that runs is asked for again",
        "_asked_for",
        'head.status == "queued" and head.epoch == 0',
        "True",
        LINES,
    ),
    Mutant("a stranger's id is a retry's", "next_id", "if store.head(name) is None", "", LINES),
    Mutant("an older run is gone on from", "go_on", "newest not in (None, of)", "False", LINES),
    Mutant("any agent runs any run", "Runner.check_kind", "known != kind", "False", LINES),
    Mutant("a failed run is never gone on from", "journal:begin", "retry and", "False and", LINES),
    Mutant(
        "what is recorded is forgotten in a crash", "Steps.on_started", "again.recorded if again else False", "False"
    ),
    Mutant("what is recorded holds for ever", "Steps.on_started", "again.recorded if again else False", "True", STANDS),
    Mutant("a changed question has no answer", "Caller.request", "if recorded", "if False"),
    Mutant("any answer is as good as another", "Caller._next_recorded", "[:1]", "[-1:]"),
    Mutant("an answer is given twice", "Caller._next_recorded", "and key not in entry.asked", ""),
    Mutant(
        "a run goes on as recorded that code hasn't stopped", "_may_decide", 'facts.stands != "code"', "False", STATUSES
    ),
    Mutant(
        "an owner gives its step up", "_owner_may", "isinstance(event, e.StepFailed) and event.left", "False", STATUSES
    ),
    Mutant("a step that was given up is told of", "Steps.on_failed", "if event.left:", "if False:"),
    Mutant(
        "a step is given up under its owner",
        "abandon_step",
        "not owner.gone(head, log.ownership.process, log.clock)",
        "False",
        STANDS,
    ),
    Mutant("a run whose step was given up is never run", "_may_requeue", "not scene.facts().between_steps", "True"),
    Mutant(
        "code that was stopped is what gave the step up",
        "RunState.on_step_failed",
        "proven=not event.left",
        "",
        STANDS,
    ),
    Mutant(
        "what did nothing was sent", "sent_by", "found.items() if call.known or maybe[call_id]", "found.items()", STANDS
    ),
    Mutant("what only looks was sent", "sent_by", "if call.policy not in EFFECT_FREE", "", STANDS),
    Mutant("all stops are remembered", "Status.on_waiting", "[-stopped_codes_max:]", "", STANDS),
    Mutant(
        "a run that doesn't get on is tried once too often",
        "Runner.claim",
        "stuck, entered = stuck + counted, entered + counted",
        "entered = entered + counted",
    ),
    Mutant(
        "an attempt of a step is recovered for ever",
        "Runner.claim",
        "stuck, entered = stuck + counted, entered + counted",
        "stuck = stuck + counted",
        GAPS,
    ),
    Mutant(
        "a waiting run is run before anything has come",
        "Runner.claim",
        "state.status.woken or due or head.cancel_requested",
        "True",
    ),
    Mutant("a cancel is beaten by a resume", "Runner.claim", "if head.cancel_requested:", "if False:"),
    Mutant("a cancelled wait must be woken", "Runner.claim", "head.cancel_requested or", ""),
    Mutant("an owner whose lease ran out doesn't look", "Leases.ensure", "and now < lease.until", "", GAPS),
    Mutant("an owner doesn't look for its store", "Leases.ensure", "self._store.check_place()", "", REPLACED),
    Mutant(
        "a commit into a lost file is acknowledged",
        "SQLiteStore._committed",
        'self._files.check("what was committed just now is in the file that was there, and counts for nothing")',
        "",
        REPLACED,
    ),
    Mutant(
        "a lost WAL is none of its business", "Files.check", "now != its", "now != its and name == self._path", REPLACED
    ),
    Mutant("an owner looks at nothing but its clock", "Leases.ensure", "self._renew(run_id, epoch)", "True", GAPS),
    Mutant("a lease is anybody's", "Runner.check_lease", "not ours", "False", GAPS),
    Mutant(
        "a paid call is made without a look at the budget",
        "Sender.start",
        "self.core.check_budget()",
        "pass",
        GAPS,
    ),
    Mutant(
        "a step is begun without a look at the budget",
        "StepControl.begin",
        "self.core.check_budget(step=True)",
        "pass",
        BUDGET,
    ),
    Mutant(
        "a round is begun before it is due",
        "Runner.claim",
        "head.due_at is not None and not due",
        "False",
        GAPS,
    ),
    Mutant("a transient failure begins no round", "Runner.ending", "transient and round_ < rounds_max", "False"),
    Mutant("any failure begins a round", "Runner.ending", "transient and", ""),
    Mutant("rounds have no end", "Runner.ending", "and round_ < rounds_max", ""),
    Mutant(
        "an unknown outcome that leaves the agent is an error",
        "Runner.ending",
        'stored.get("kind") == "unknown"',
        "False",
    ),
    Mutant(
        "a no that leaves the agent is an error", "Runner.ending", 'stored.get("kind") == "rejected"', "False", GAPS
    ),
    Mutant(
        "a mistake keeps the run",
        "Runner.owned",
        "self._leave(run_id, claim.epoch, left_by(error))",
        "pass",
    ),
    Mutant("a run with another input goes on", "Runner.check_input", "queued.input != plain(given)", "False", GAPS),
    Mutant("the agent may return while a step is open", "Runner._called", "steps.entry is not None", "False", GAPS),
    # Threads.
    Mutant("a step doesn't wait for its threads", "SyncDriver._join", "thread.join()", "pass", THREADS),
    Mutant(
        "a mistake in a thread is lost with it", "Run.thread.asking", "self._core.stop(stop or error)", "pass", THREADS
    ),
    Mutant(
        "a lock is held during a body",
        "SyncDriver._unlocked",
        "try:\n    self._sending.add(me)\n    self.lock.release()\n    return self._invoke(command)\n"
        "finally:\n    take_again(self.lock)\n    self._sending.discard(me)",
        "try:\n    self._sending.add(me)\n    return self._invoke(command)\nfinally:\n    self._sending.discard(me)",
        THREADS,
    ),
    Mutant(
        "threads don't wait for what is recorded",
        "SyncDriver.alone",
        "not any(each.is_alive() for each in list(self.threads))",
        "True",
        THREADS,
    ),
    Mutant("timeout_s cuts nothing", "SyncDriver._invoke", "command.timeout_s is None", "True", THREADS),
    Mutant("a late end is told to nobody", "SyncDriver._timed.work", "command.late(ended)", "pass", THREADS),
    # The order of history.
    Mutant(
        "ends are told in any order",
        "TellingOrder.turn",
        "lambda: self.driver.calm and not entry.before(at)",
        "lambda: True",
        TASKS,
    ),
    Mutant(
        "ends are told in any order, at once",
        "TellingOrder.turn",
        "if self.driver.calm and not entry.before(at)",
        "if True",
        TASKS,
    ),
    Mutant(
        "an end is told while somebody does what he was told to do",
        "TellingOrder.turn",
        "if self.driver.calm and not entry.before(at)",
        "if not entry.before(at)",
        TASKS,
    ),
    Mutant(
        "something new doesn't wait for what is recorded",
        "TellingOrder.nothing_left_out",
        "yield from self.core.until(all_there, self.wait_s())",
        "yield from ()",
        TASKS,
    ),
    Mutant(
        "something new doesn't wait for what is recorded, but goes on at once",
        "TellingOrder.nothing_left_out",
        "if all_there()",
        "if True",
        TASKS,
    ),
    Mutant(
        "something new doesn't wait for the ends to be told",
        "TellingOrder.nothing_left_out",
        'not (told and entry.before(float("inf")))',
        "True",
        GAPS,
    ),
    Mutant(
        "something new goes on at once, before the ends are told",
        "TellingOrder.nothing_left_out",
        "if all_there()",
        "if self.driver.calm and not self.left_out(entry, calls=calls, questions=questions)",
        GAPS,
    ),
    Mutant(
        "what is left out is waited for again and again",
        "TellingOrder.turn",
        "entry.leave_out(at)",
        "pass",
        GAPS,
    ),
    Mutant(
        "nothing is waited for", "TellingOrder.wait_s", "0.0 if self.driver.alone() else left_out_wait_s", "0.0", TASKS
    ),
    Mutant(
        "an agent without tasks waits for nobody",
        "TellingOrder.wait_s",
        "0.0 if self.driver.alone() else left_out_wait_s",
        "left_out_wait_s",
        TASKS,
    ),
    Mutant(
        "the script holds what was tried again within an ask",
        "read",
        'getattr(event, "again", False) or',
        "",
        GAPS,
    ),
    Mutant("answers are told out of turn", "read", "needed[event.approval_id]", "False", GAPS),
    Mutant("words are told out of turn", "read", "needed[event.call_id]", "False", GAPS),
    Mutant(
        "a call that is asked for again is one line of the script",
        "Entry.before",
        "self.asks[line.call_id] < line.nth",
        "not self.asks[line.call_id]",
        GAPS,
    ),
    Mutant("an end that nobody is told of is waited for", "Sender.attempt", "not (again or lost)", "not lost", GAPS),
    Mutant(
        "who was cancelled before is not parked",
        "Caller.recorded",
        "if cut:\n    yield from self._park",
        "if False:\n    yield from self._park",
        TASKS,
    ),
    Mutant(
        "a step that was cancelled fails at once",
        "StepControl.tell_step",
        "failure.at not in self.order.heard and failure.cut",
        "False",
        TASKS,
    ),
    Mutant(
        "a cancel between end and telling is forgotten",
        "Sender.told_in_turn",
        'yield from self.core.record(e.NoteAdded("its asker was cancelled", code="cut", call_id=call_id))',
        "pass",
        TASKS,
    ),
    # asyncio.
    Mutant(
        "two ends are told in one turn of the loop",
        "AsyncDriver.settle",
        "self._turn(told_turns)",
        "self._turn(0)",
        TASKS,
    ),
    Mutant("a cancel waits for ever", "AsyncDriver._invoke", "patience_s is not None", "False", TASKS),
    Mutant(
        "a cancel waits longer than timeout_s",
        "AsyncDriver._invoke",
        "held if deadline is None else min(deadline, held)",
        "held",
        TASKS,
    ),
    Mutant(
        "a cancel cuts nothing",
        "AsyncDriver._invoke",
        "if command.cuttable and not patience_s:\n    break",
        "",
        TASKS,
    ),
    Mutant("a cancel cuts everything", "AsyncDriver._invoke", "command.cuttable and not", "not", TASKS),
    Mutant("a body that was cut goes on", "AsyncDriver._invoke", "body.cancel()", "", TASKS),
    Mutant(
        "a step that fails leaves its calls in flight",
        "StepBlock._leave",
        "await driver.break_step(self._entry, error)",
        "",
        TASKS,
    ),
    Mutant(
        "a step that fails waits for what can be cut",
        "AsyncDriver.break_step",
        "for task in tasks - told:\n    task.cancel()",
        "",
        TASKS,
    ),
    Mutant(
        "a step ends while its calls are in flight",
        "StepControl.complete",
        "yield from self.core.until(lambda: self.order.idle(entry) or entry.awaited, None)\n"
        "yield from self.core.until(lambda: not self.order.left_out(entry, questions=False), self.order.wait_s())\n"
        "yield from self.core.until(lambda: self.order.idle(entry), None)",
        "yield from self.core.until(lambda: not self.order.left_out(entry, questions=False), self.order.wait_s())",
        TASKS,
    ),
    Mutant(
        "a step ends while its questions are open",
        "StepControl.complete",
        "yield from self.core.until(lambda: self.order.idle(entry), None)",
        "",
        GAPS,
    ),
    Mutant(
        "the run waits while a call is in flight",
        "Waiter.wait_for",
        "self._come(awaited) or self.order.idle(entry), left",
        "True, left",
        TASKS,
    ),
    Mutant("a stop ends no wait", "Core.until", "lambda: self.stopped is not None or ready()", "ready", GAPS),
    Mutant("a cancelled step is no failure", "StepBlock._leave", ", cut=cancelled", "", TASKS),
    Mutant(
        "a cancelled step swallows its cancel",
        "StepBlock._leave",
        "if cancelled:\n    return",
        "if False:\n    return",
        TASKS,
    ),
    Mutant(
        "the caller's cancel is taken for the agent's",
        "AsyncDriver.leaving",
        "self._caller.cancelling() > self._cancels",
        "False",
        TASKS,
    ),
    Mutant(
        "a call that the caller cancelled is recorded as cut",
        "Sender.attempt",
        'ended.cut == "cancel" and cuttable and leaving',
        "False",
        TASKS,
    ),
    Mutant(
        "asyncio's each gives the done ones, too",
        "Context.each",
        "not self.done(name, item_key)",
        f"{ON_A_LOOP} or not self.done(name, item_key)",
        GAPS,
    ),
)

# Which call is it, which step is it; what has left the agent; what an age proves; what a restart begins with.
IDENTITY: Final = (
    Mutant("plan A is done after plan B", "left_by", "itself or not handled(one)", "True"),
    Mutant(
        "a group is only a reason",
        "left_by",
        "(each, itself) for each in held",
        "(each, False) for each in held",
        "engine_records",
    ),
    Mutant("a failure of another run has left this one", "left_by", 'said(one, "run_id") == run_id', "True"),
    Mutant("a step that was passed is none behind a failure", "StepControl.has_done", "self._goes(name, end)", "pass"),
    Mutant(
        "a step that began before a failure was told is one behind it",
        "StepControl.has_handled",
        "self.way[since:]",
        "self.way",
    ),
    Mutant("whatever was passed is behind a failure", "StepControl.has_handled", "place > at", "True"),
    Mutant(
        "an answer goes to any request of its shape",
        "Caller._in_place",
        "call.began and call.place == place",
        "call.began",
    ),
    Mutant("a request keeps no place", "Caller.request", "entry.places.setdefault(call_id, place)", "pass"),
    Mutant(
        "a request that stood for one is another one",
        "Caller.request",
        "entry.stands[call_id] = call_id =",
        "call_id =",
    ),
    Mutant("the place of a request is not recorded", "Sender.start", "place=entry.places.get(call_id)", "place=None"),
    Mutant(
        "a key is judged by the wall clock alone",
        "key_lives",
        'born is None or born["boot_id"] != at.boot_id',
        "True",
        "verdict",
    ),
    Mutant("a clock that was set back proves an age", "key_lives", "call.key_since <= at.now", "True"),
    Mutant("seconds of another boot prove an age", "key_lives", 'or born["boot_id"] != at.boot_id', "", "verdict"),
    Mutant(
        "the birth of a key is not recorded",
        "Sender.start",
        'intent = replace(intent, key_born={"boot_id": now.boot_id, "boottime_s": now.boottime_s})',
        "pass",
        "verdict",
    ),
    Mutant("a look is made as often as it is asked for", "Call.has_effect", "or self.own_key", ""),
    Mutant("a key of its own is not recorded", "ToolTarget.started", "own_key=bool(self.tool.key)", "own_key=False"),
    Mutant("an empty key is none", "Tool.own_key", "if not key:", "if False:", "identity"),
    Mutant("two accounts are one", "Tool.bind", "receiver_id(self.name, self.instance)", '""', "identity"),
    Mutant("any object is as good as another", "receiver_id", 'or told == ""', "", "identity"),
    Mutant("two functions are one tool", "same_function", "if one == other:", "if True:", "identity"),
    Mutant(
        "an empty run id is a new one",
        "begin",
        "journal.new_run_id() if run_id is None else naming.named(journal.store, run_id)",
        "run_id or journal.new_run_id()",
        "identity",
    ),
    Mutant(
        "a restart has lost its plan",
        "linking:queue",
        "None if first is None else first.plan",
        "None",
        "engine_records",
    ),
    Mutant(
        "a restart has lost its messages",
        "linking:queue",
        "None if first is None else first.messages",
        "None",
        "engine_records",
    ),
    Mutant(
        "a restart begins as the run before it",
        "linking:_first",
        "while queued.base is not None",
        "while False",
        "engine_records",
    ),
    Mutant("an item that is there twice is left out", "Context.each", "if str(item_key) in seen:", "if False:"),
    Mutant("a list that got lost is one without items", "Context.each", "self._steps.had_no_items(name)", "pass"),
    Mutant("a list is lost though its steps are passed", "StepControl._goes", "self.emptied.discard(name)", "pass"),
    Mutant(
        "a run ends without the list that it lost", "StepControl.stop_if_step_left", "self.stop_if_emptied()", "pass"
    ),
    Mutant("whoever has looked has lost a list, too", "StepControl.stop_if_emptied", "and not self.core.looked", ""),
    # What lives on unseen: copies, caches, leases.
    Mutant(
        "a hook's word is not what the log gives back",
        "ToolTarget.word",
        "plain(word[1] if len(word) > 1 else None)",
        "word[1]",
        "engine_faults",
    ),
    Mutant(
        "cached tokens make the input less than nothing",
        "usage:_read",
        "if rest < 0:",
        "if False:",
        BUDGET,
    ),
    Mutant("a counter without a rate is free", "pricing:amount_of", "count and name not in rates", "False", "prices"),
    Mutant("a name that looks like a model's is one", "_listed", "not _names(found, model)", "False", "prices"),
    Mutant("what is tiered costs the base rate", "_Tiers.at", "tokens > start", "False", "prices"),
    Mutant("a tier without a price costs what is usual", "_listed", "if unpriced:", "if False:", "prices"),
    Mutant("the price of a day is that of any", "PriceList.find", "key[2].date()", "None", "prices"),
    Mutant(
        "what was reported counts beside its list price",
        "Costs.on_model",
        'elif "amount" in price',
        'if "amount" in price',
        "prices",
    ),
    Mutant(
        "a total that fits no reading is believed",
        "usage:_fitting",
        "if not fits:",
        "if False:",
        "usage",
    ),
    Mutant(
        "a counter that is no number is zero",
        "usage:_first",
        "return number(value)",
        "return number(value) or 0",
        "usage",
    ),
    Mutant(
        "the reasoning is in the completion, whoever tells",
        "usage:measure",
        "chat(usage, xai=xai)",
        "chat(usage)",
        "usage",
    ),
    Mutant(
        "a renewed lease is forgotten",
        "Leases._renew",
        "self._held[run_id] = lease._replace(epoch=epoch, until=now + lease_s)",
        "pass",
        "recovery",
    ),
    Mutant(
        "the state of an owned run is dropped for others",
        "States._keep",
        "each[1] and self._owned(each[0])",
        "False",
        "recovery",
    ),
    Mutant(
        "a queued run is taken for an owned one", "_Append.__init__", "batch.epoch > 0", "batch.epoch >= 0", "recovery"
    ),
)

KEPT: Final = (
    Mutant(
        "an interrupt that is swallowed stops nothing",
        "Core._driven",
        "self.stop(interrupt)",
        "pass",
        "left_open",
    ),
    Mutant(
        "a step ends over an open call of a stranger's thread",
        "SyncDriver._unlocked",
        "self._sending.add(me)",
        "",
        "left_open",
    ),
    Mutant("what leaves a thread is lost", "SyncDriver.end_step", "raise self.left[0]", "pass", "left_open"),
    Mutant(
        "a hook calls a tool",
        "looking",
        "TOOL_CONTEXT.set(_Looking(None if here is None else here.entry))",
        "TOOL_CONTEXT.set(here)",
        "callbacks",
    ),
    Mutant(
        "a hook that uses the run says unknown", "ToolTarget.word", "except ToolUsesRun:\n    raise", "", "callbacks"
    ),
    Mutant("a value is checked as if nothing held it", "plain", "depth=1", "depth=0", "recordable"),
    Mutant(
        "an end that does not fit is lost",
        "Sender.attempt",
        "except (f.WrongArgument, TooLarge) as error",
        "except ZeroDivisionError as error",
        "recordable",
    ),
    Mutant(
        "a name that can't be stored fails the run",
        "Core.commit",
        "raise f.WrongArgument(str(error)) from error",
        "raise",
        "recordable",
    ),
    Mutant(
        "an interrupt leaves the lock",
        "SQLiteStore._locked",
        "except BaseException:\n    self._leave()\n    raise",
        "except ZeroDivisionError:\n    raise",
        "interrupted",
    ),
    Mutant(
        "an interrupt leaves a claim",
        "Runner._give_back",
        'e.RunRequeued("released")',
        'e.NoteAdded("x")',
        "interrupted",
    ),
    Mutant(
        "an interrupt breaks a loop again at its end",
        "AsyncDriver.told_again",
        "isinstance(stop, INTERRUPTS)",
        "False",
        "interrupted_threads",
    ),
    Mutant("a run of a closed loop is renewed", "Leases._beat", "lease.left()", "False", "interrupted_threads"),
    Mutant("a run of a closed loop stays busy", "Leases.left", "lease.left()", "False", "interrupted_threads"),
    Mutant(
        "an interrupt leaves its lock to a thread that is joined",
        "Core.drive",
        "driver.unlock()",
        "pass",
        "interrupted_threads",
    ),
    Mutant(
        "an append that an interrupt has left is made twice",
        "GroupCommit._alone.decide",
        "waiting.unsure and",
        "False and",
        "interrupted_threads",
    ),
)

APPENDS: Final = (
    # Appends that share a commit.
    Mutant("a refusal ends its whole group", "GroupCommit._judge", "tx.written != written", "True", "group"),
    Mutant(
        "a group that was written to in part is committed",
        "GroupCommit._judge",
        "raise _BrokenError from error",
        "pass",
        "group",
    ),
    Mutant("what a failed commit had folded is gone on from", "GroupCommit._failed", "group.undo()", "pass", "group"),
    Mutant(
        "what waits behind a failed commit goes on",
        "GroupCommit._failed",
        "waiting.work.run_id in runs",
        "False",
        "group",
    ),
    Mutant("all hear of a failed commit by one error", "_Group.tell", "again(error)", "error", "group"),
    Mutant(
        "an append that was given up is made",
        "GroupCommit._taken_back.take_back",
        "self._line.remove(waiting)",
        "pass",
        "group",
    ),
    Mutant(
        "a relaxed commit takes a durable append",
        "GroupCommit._next",
        "first.work.durable and not durable",
        "False",
        "group",
    ),
    Mutant(
        "verbs of a run come between an append and what it means",
        "AsyncDriver.taken",
        "self.floor.holder is not None",
        "False",
        "late_commits",
    ),
    Mutant("a cancel gets lost in an append", "Floor.absorb", "cancelled is not None", "False", "late_commits"),
    Mutant(
        "a checkpoint is due on the short way, and not kept",
        "Appender._view",
        "states.is_due(key, draft.type)",
        "False",
        "checkpoints",
    ),
    Mutant(
        "who has waited longer looks less often",
        "pause_s",
        "1 - waited_s / lock_patience_s",
        "waited_s / lock_patience_s",
        "group",
    ),
    # The short way of an owner's event, and the chain.
    Mutant("a cancel goes the short way", "may_go_alone", "draft.type in MOVES", "False", "alone"),
    Mutant("a blob gets lost on the short way", "may_go_alone", "draft.blobs", "False", "alone"),
    Mutant(
        "an effect gets lost on the short way",
        "has_no_row",
        "return call.policy in EFFECT_FREE and not (call.own_key or call.maybe)",
        "return True",
        "effects",
    ),
    Mutant(
        "a state that another event has overtaken is kept",
        "Appender._alone",
        "self.states.drop([key])\nreturn None",
        "return None",
        "alone",
    ),
    Mutant(
        "an owner's event is judged by what was known before another one",
        "Appender._alone.decide",
        "self.states.known(key) is view",
        "True",
        "alone",
    ),
    Mutant(
        "an expectation isn't looked at on the short way",
        "Appender._view",
        "batch.expect not in (None, known.head.head_seq)",
        "False",
        "alone",
    ),
    Mutant(
        "a refusal of the short way is appended",
        "judged",
        "except (AppendRefused, _LongWayError)",
        "except ZeroDivisionError",
        "alone",
    ),
    Mutant(
        "a step begins out of its order on the short way",
        "judged",
        "check_step(head.run_id, draft.event, state)",
        "pass",
        "alone",
    ),
    Mutant("what isn't to be is folded on the short way", "folded", "check(state, record)", "pass", "alone"),
    Mutant("a running run's row is its head", "head_of", "seq is None", "True", "alone"),
    Mutant(
        "each append moves the row",
        "SQLiteTransaction._move_head",
        'before.status != "running" or not only_moved(before, head)',
        "True",
        "alone",
    ),
    Mutant(
        "no append moves the row",
        "SQLiteTransaction._move_head",
        'before.status != "running" or not only_moved(before, head)',
        "False",
        "alone",
    ),
    Mutant("a chain isn't worked out", "verified", "link != stored", "False", "codec"),
    Mutant(
        "a message that continues one is counted as a plain one", "_parsed", "data.keys() == _FIELDS and", "", "skim"
    ),
    Mutant("a stretch of messages is counted twice", "fold_rows", "count()\nroles = {}", "count()", "skim"),
    Mutant("an event that was changed is sound", "ChainAudit.feed", "digest not in hashes", "False", "audit"),
    Mutant("an unknown field is a fault", "_tolerant", "not unknown", "True", "newer_fields"),
    Mutant(
        "an unknown type of ours is somebody's own", "_event", 'event_type.startswith("x.")', "True", "newer_fields"
    ),
    # Threads that an interrupt ended.
    Mutant("a body whose thread is gone is waited for", "BodyTelling.lost", "not self._told", "False", "engine_faults"),
    Mutant(
        "a thread that never began counts as one", "SyncDriver._others", "not each.is_alive()", "False", "engine_faults"
    ),
)

FIELDS: Final = (
    # Runs that nobody owns, and runs from elsewhere.
    Mutant(
        "a message of an open run is continued",
        "_may_record",
        "not scene.facts().goes_on(event.role, message)",
        "True",
        OPENED,
    ),
    Mutant("anything is recorded into an open run", "_may_record", "event.TYPE not in _RECORDED", "False", OPENED),
    Mutant("people are asked of an open run's calls", "Calls.on_started", "and not self.unowned", "", OPENED),
    Mutant("an open run is the newest of a line", "Derived.newest", "status.unowned or", "", OPENED),
    Mutant(
        "anybody writes into an imported run",
        "_Append._write",
        "not self.batch.epoch and self.batch.imported is None",
        "False",
        OPENED,
    ),
    # What a model is asked, on record.
    Mutant("each request is stored whole", "AskedRequest.recorded", "kept.items is items", "False", GROWING),
    Mutant(
        "what was mended is stored as it was", "AskedList.follow", "min(self.stable, count)", "self.stable", GROWING
    ),
    Mutant(
        "another process's requests are stored again",
        "AskedRequests.asked",
        "(before := self._newest(model)) is not None",
        "False",
        GROWING,
    ),
    # Types of users' own.
    Mutant("a type of one's own is always durable", "is_durable", "and event.DURABLE", "", OWN),
    Mutant("a fork forgets its own types", "own_records", "[:-1]", "[:0]", OWN),
    Mutant(
        "tokens of a tool cost nothing", "RunState.on_tool_ended", "event.usage is not None or", "", "told_of_calls"
    ),
    Mutant("a changed request is given back", "rebuilt", "request_hash(whole) != event.request_hash", "False", GROWING),
)

ERASING: Final = (
    # Private runs.
    Mutant(
        "a run goes on from an erased one",
        "of_run",
        'check_bases(tx, base, f"what {run_id} would go on from")',
        "pass",
        "erasing",
    ),
    Mutant("a line that began in the open gets other ids", "of_run", "tx.newest(scope) is None", "True", "erasing"),
    Mutant("what goes on from a private run isn't private", "of_run", "private = private or", "private and", "erasing"),
    Mutant("private values are added to an erased run", "hidden", "key == ERASED_KEY", "False", "erasing"),
    Mutant("a private value can be moved to another event", "_place", "str(seq).encode()", 'b""', "erasing"),
    Mutant("the digest of private args is in the index", "_apply", '"" if private else', "", "erasing"),
    Mutant(
        "a title is in the row of a private run",
        "advance",
        "record.private",
        "False",
        "erasing",
    ),
    Mutant("a run that may go on is erased", "plan", "_check_over(reading, each, run_id)", "pass", "erasing"),
    Mutant(
        "checkpoints folded from an erased run stay",
        "overwrite",
        'tx.add_secret("checkpoints", each, new_key())',
        "pass",
        "erasing",
    ),
    Mutant(
        "an import revives an erased run",
        "_Taking._keep_key",
        "self.keys.get(run_id, ERASED_KEY)",
        "self.keys[run_id]",
        "erasing",
    ),
    Mutant(
        "an old page keeps an erased key",
        "truncate_wal",
        "apsw.SQLITE_CHECKPOINT_TRUNCATE",
        "apsw.SQLITE_CHECKPOINT_PASSIVE",
        "erasing",
    ),
)

# The kit that crashes agents: each dies in its own tests.
KIT = "crash_points"
CRASHES: Final = (
    Mutant("what happened twice is once", "_twice", "count > expected", "count > expected + 1", KIT),
    Mutant(
        "a key for two things is none", "_twice", "under.setdefault(each.key, each.what) != each.what", "False", KIT
    ),
    Mutant("what didn't happen isn't lost", "_judged", "found.effects[each] < count", "False", KIT),
    Mutant("an answer on record may be paid for again", "_paid_twice", "max(1, clean.requests[asked])", "9", KIT),
    Mutant(
        "another output is the same",
        "_judged",
        "(clean.status, clean.output) != (found.status, found.output)",
        "False",
        KIT,
    ),
    Mutant("what a provider refuses passes", "_refused", "found is not None", "False", KIT),
    Mutant("the World does again what has a key", "World.did", "bool(key)", "False", KIT),
    Mutant(
        "a question is answered as if nothing had happened",
        "_Child._answer",
        "each.id in self.plan.effects",
        "False",
        KIT,
    ),
    Mutant("a child's children are left", "lived", "os.killpg(pid, signal.SIGKILL)", "pass", KIT),
    Mutant("a retry more is a difference", "_comparable", "if not each.again", "", KIT),
    Mutant("messages of an unknown shape are judged", "refusal", "not all(map(_known, messages))", "False", KIT),
    Mutant(
        "the cancel of a run is one of its asker",
        "Sender.attempt",
        "leaving or core.stopped is not None or core.leaving",
        "leaving",
        "group",
    ),
)

PURGES: Final = (
    Mutant("what was purged is appended to", "Gate.admit", 'status == "purged"', "False", "status"),
    Mutant("anybody appends run.purged", "Appender._checked", "draft.type == PURGED", "False", "purging"),
    Mutant(
        "a run goes on from a purged one",
        "_Append.run",
        "purged.check_base(self.tx, first)",
        "pass",
        "purging",
    ),
    Mutant("a run that may go on is purged", "purging:plan", "_check_over(store, each)", "pass", "purging"),
    Mutant("a call that nobody has decided is purged", "_check_line", "not call.said", "False", "purging"),
    Mutant("a fork loses what it goes on from", "purging:plan", "_check_left(set(line), relations)", "pass", "purging"),
    Mutant("a fork that comes just then loses it", "Relations.catch_up", "self._before |=", "_ =", "purging"),
    Mutant("a value of another run is purged", "purging:plan", "digests -= _named", "_named", "purging"),
    Mutant("a value is purged that is named in another form", "digests", "_ESCAPE in body", "False", "purging"),
    Mutant("a value of a run that comes just then is purged", "_empty", "digests -= _named", "_named", "purging"),
    Mutant("an empty body needs no marker", "verified", "if emptied is not None:", "if False:", "purging"),
    Mutant("types of a purged run are changed", "Emptied.add", "_type(event_type) + digest", "digest", "purging"),
    Mutant(
        "a purged run keeps a checkpoint that comes late",
        "keep_checkpoint",
        'head.status == "purged"',
        "False",
        "purging",
    ),
    Mutant("a ledger is purged", "Costs.on_purged", "dict(sources)", "{}", "purging"),
    Mutant(
        "an import goes on from a purged run",
        "_Taking._refuses",
        "not purged.is_purged(self.tx, base)",
        "True",
        "purging",
    ),
    Mutant("an export of what is purged looks whole", "_exported", "if not body:", "if False:", "purging"),
    Mutant("a file makes a run look purged", "_Reading._row", "not body or event_type == PURGED", "False", "purging"),
    Mutant(
        "an imported run that hasn't ended stays",
        "purging:_check_over",
        "store.imported(head.run_id) is None",
        "True",
        "transfer",
    ),
    Mutant("an imported run that hasn't ended isn't erased", "_may_tell", "not scene.elsewhere()", "True", "transfer"),
    Mutant("an imported run is tried again", "go_on", "log.store.imported(of) is not None", "False", "transfer"),
    Mutant("an imported run is claimed", "Runner.claim", "log.store.imported(run_id) is not None", "False", "transfer"),
    Mutant(
        "an import adds to an erased run",
        "additions",
        'stored.secret("run", entry.run_id) == ERASED_KEY',
        "False",
        "transfer",
    ),
    Mutant("an import brings a purged run back", "additions", "entry.run_id in gone", "False", "purging"),
)

CHILDREN: Final = (
    # Runs that a run has begun.
    Mutant("each ask begins a child of another name", "JournalNursery.id_of", 'f"{stem}.{call_id[:child_id_chars]}"',
        'f"{stem}.{self.log.new_run_id()}"', "children"),
    Mutant("equal asks begin one child", "ChildCalls.spawn", 'entry.busy[call_id] = what, ""', "pass", "children"),
    Mutant("a child with another input is the same", "ChildCalls._check_same",
           "(queued.kind, queued.input) != (asked.kind, asked.input)", "False", "children"),
    Mutant("a stranger of the given id is a child", "ChildCalls._check_same", "scope != self.core.lineage.scope",
           "False", "children"),
    Mutant("a child is born alone", "Runner.append", "self.log.append_all([began, self.log.batch(run_id, "
           "events.events, expect=None, epoch=epoch)])[1]", "(self.log.append(began), self.log.append(run_id, "
           "events.events, epoch=epoch))[1]", RULES),
    Mutant("what was told of a child is forgotten", "ChildCalls._untold", "places if at not in self.order.heard",
           "()", "children"),
    Mutant("a child's end is told twice", "ChildCalls._outcome",
           'child.settled or child.status == "completed"', "child.settled", "children"),
    Mutant("what was told of a child outlives its attempt", "Children.end_step", "child.told = []", "pass", RULES),
    Mutant("an older run of a child's line is looked at", "children:newest", "store.head(later) if later is not None",
           "head if later is not None", "children"),
    Mutant("a stranger is waited for", "ChildCalls._outcome", "child is None and not self._is_ours(child_id)", "False",
           "children"),
    Mutant("a parent sleeps though its child has moved", "children:resumed", "moved(log, state, code=not only_new)",
           "False", "children"),
    Mutant("a child's question is seen in the child alone", "children:leaves",
           'head is None or head.status != "waiting"', "True", "children"),
    Mutant("a parent is asked for no questions below it", "questions:questions", ", *below_line(log, run_id)", "",
           "children"),
    Mutant("an imported run is to be retried", "Runner.outcome", 'link="fork"', 'link="retry"', "circles"),
    Mutant("a run leaves a thread that is at work", "TellingOrder.idle", "and not self.driver.working", "", "threads"),
    Mutant("a run stays for a thread for ever", "SyncDriver.working",
           "time.monotonic() - self._acted_s < working_wait_s", "True", "threads"),
    Mutant("a cancel stays above", "cancel_family", "if unended(log, run_id):", "if False:", "children"),
    Mutant("a claim cancels nothing below", "Runner.claim", "cancel_below(log, run_id, CANCELLED_ABOVE, "
           "head.cancel_requested)", "pass", RULES),
    Mutant("a retry is told of its own cancel", "taken_down_by", "above[-1] if all(above) and above else None", "None",
           RULES),
    Mutant("what a person has cancelled is taken up", "taken_down_by", "all(above)", "any(above)", RULES),
    Mutant("a run that is cancelled takes up what it takes down", "ChildCalls._outcome",
           "there.above == core.lineage.run_id", "False", "children_lines"),
    Mutant("a parent that is cancelled is told of its child", "ChildCalls._outcome",
           "isinstance(there.end, e.RunCancelled)", "False", "children"),
    Mutant("a retry of a child has no parent", "linking:queue",
           'None if link == "fork" else queued.parent_run_id', "None", "children"),
    Mutant("a fork takes children along", "RunState.derive", "base.children.settled()", "base.children", "children"),
    Mutant("a retry forgets children", "RunState.derive", "new.children = base.children", "pass", RULES),
    Mutant("a child may be left out", "TellingOrder.left_out", "state.children.asked().keys() - entry.asked", "set()",
           "children"),
    Mutant("nothing is reserved for a child", "left_for_children", "- state.children.reserved(what)", "", "children"),
    Mutant("what a child was given never comes back", "Children.reserved", 'child.status == "running"', "True",
           "children"),
    Mutant("what children spend is nobody's", "exceeded", "+ Decimal(state.children.usd)", "", "children"),
    Mutant("what a child has spent is counted again", "Children.on_finished",
           'format(-Decimal(before["usd"]), "f")', '"0"',
           "children"),
    Mutant("a child that was given back has an end of its own", "_of_child", "cuts.add(at)", "pass", "children"),
    Mutant("a mistake in a child is the child's alone", "ChildCalls._run", "isinstance(error, stops) or", "False or",
           "children"),
)  # fmt: skip

MEDIA: Final = (
    Mutant("a body doesn't say which bytes it refers to", "draft", "MARK in text", "False", "media"),
    Mutant(
        "bytes are told by a look, not by their reference",
        "opened",
        'ref.get("private")',
        "body[:1] == b'\\0'",
        "media",
    ),
    Mutant("bytes are believed", "opened", "hashlib.sha256(body).hexdigest() != digest", "False", "media"),
    Mutant("what looks alike is a reference", "is_reference", "checked(value)", "pass", "media"),
    Mutant("bytes are read as JSON", "filled_record", "f.name != record.event.RAW", "True", "media"),
    Mutant("a purge sees no references", "may_name", """b'"names"' in body""", "False", "media"),
    Mutant("an audit sees no references", "_Pass._check_blobs", "blob_names.names(body)", "()", "media"),
)

STOPS: Final = (
    Mutant("a machine that starts anew counts", "lapse_reason", "head.boot_id != process.boot_id", "False"),
    Mutant("a death after a SIGTERM counts", "lapse_reason", "if stopping:", "if False:"),
    Mutant("a deploy counts", "Runner._lapse", "bool(code and before) and code != before", "False"),
    Mutant("every death counts", "Status.on_requeued", "event.reason in RECOVERIES", "True"),
    Mutant("anybody excuses a death", "Status.on_note", "record.epoch and record.epoch == self.epoch", "True", STOPPED),
    Mutant("one SIGTERM excuses all deaths", "Status.on_claimed", "self.stopping = False", "pass", STOPPED),
    Mutant("a run to be cancelled waits", "_GOES_ON", '"run.waiting"', '"run.queued"'),
    Mutant("a run to be cancelled is queued for a retry", "_GOES_ON", '"run.retry_scheduled"', '"run.queued"'),
    Mutant("a run to be cancelled is released", "_GOES_ON", '"run.requeued"', '"run.queued"'),
    Mutant(
        "a run to be cancelled stays its owner's", "Runner._leave", "except CancelRequested:", "except RunNotFound:"
    ),
    Mutant("no answer is waited for at a stop", "Core.patience_s", 'policy == "model"', "False", ENDS),
    Mutant("a lost answer cost nothing", "RunState.on_run_ended", "self._lose(record)", "pass", ENDS),
    Mutant("a lost answer is counted in its retry, too", "RunState.on_model_started", "and not call.priced", "", ENDS),
    Mutant(
        "a lost answer of a step cost nothing",
        "RunState.on_step_completed",
        "self._lose(record, step.id)",
        "pass",
        ENDS,
    ),
    Mutant(
        "somebody's handler is replaced",
        "StopSignal._handle",
        "or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL",
        "",
        STOPPED,
    ),
    Mutant("a process that was forked off waits", "_on_sigterm", "HERE.pid != os.getpid()", "False", STOPPED),
    Mutant("a run inside a tool is stopped", "StopSignal.enter", "IN_TOOL.get() is not None", "False", STOPPED),
    Mutant("nobody says that the process was told to stop", "Heed.tell", "self._note()", "pass", STOPPED),
    Mutant("the signal doesn't act", "StopSignal.waits", "os.kill(self.pid, signal.SIGTERM)", "pass", STOPPED),
    Mutant("a run begins though the process is to stop", "Heed.check", "if HERE.came:", "if False:", STOPPED),
)

OUTBOX: Final = (
    Mutant("what a failed step has in the outbox is delivered", "Calls.fail_step", "call.maybe = []", "pass", OUTBOXES),
    Mutant("an entry is delivered before its step is complete", "Calls.outbox", "and not call.step", "", OUTBOXES),
    Mutant("two equal entries are one", "Caller.identify", 'REPEATABLE | {"outbox"}', "REPEATABLE", OUTBOXES),
    Mutant("a relay looks at no claim", "Relay._may_take", "call.relay is None", "True", OUTBOXES),
    Mutant(
        "a claim needs no look at the log",
        "Relay._take",
        "self.log.append(state.run_id, [self._claimed(key, tool)], expect=state.seq)",
        "self.log.append(state.run_id, [self._claimed(key, tool)], expect=None)",
        OUTBOXES,
    ),
    Mutant("a dead relay keeps its entry", "Relay._may_take", "there is not None", "False", OUTBOXES),
    Mutant("a relay passes over an entry that waits", "Relay._of", 'in ("failed", "left")', "in ()", OUTBOXES),
    Mutant("an old key is sent again", "Relay._take", "self._now() >= call.key_expires_at", "False", OUTBOXES),
    Mutant("a key ages in the outbox", "Calls.on_dispatched", "call.dispatched += 1", "pass", OUTBOXES),
    Mutant("a relay asks no hook", "Relay._take", "call.dispatched and tool is not None", "False", OUTBOXES),
    Mutant("a word moves no parked entry", "Calls.on_resolved", "self._deliver_again(call)", "pass", OUTBOXES),
    Mutant("a store of any id is opened", "check_id", "expected not in (None, found)", "False", STORE_IDS),
)

IMPORTED, COPIES = "import_claude_code", "copies"
IMPORTS: Final = (
    # What an import makes of copies.
    Mutant(
        "a snapshot with less output replaces one with more",
        "Request.spend",
        "self.now is None or _weight(counters) >= _weight(self.now)",
        "True",
        IMPORTED,
    ),
    Mutant(
        "a call's id alone says which call it is",
        "Session._call",
        'f"{group.name} {provider_id}"',
        "provider_id",
        IMPORTED,
    ),
    Mutant("a line that comes again counts again", "Seen.again", "return True", "return False", IMPORTED),
    Mutant(
        "a recount is added to what was told",
        "Costs.on_recounted",
        "before[name] - event.was.get(name, 0)",
        "before[name]",
        FOLDS,
    ),
    Mutant(
        "the last line of a file is its newest time",
        "advance",
        'head.status == "imported"',
        "False",
        "import_odd_files",
    ),
    Mutant("a shorter copy is an error", "_shorter", "real_path(source.path) == taken.path", "True", IMPORTED),
    Mutant(
        "calls with other counters are copies",
        "JoinedCall.fits",
        "all(_grows(each, call.counters) for each in self.told)",
        "True",
        COPIES,
    ),
    Mutant(
        "a request's id says nothing",
        "_same_ids",
        "one.request_id is not None and one.request_id == other.request_id",
        "False",
        COPIES,
    ),
)


BILLS: Final = (
    Mutant(
        "a request that was refused is told as unknown",
        "status_of",
        'event.error.get("status") is not None',
        "False",
        BILLED,
    ),
    Mutant("a request that was cut is told as unmeasured", "status_of", 'return "lost"', "pass", BILLED),
    Mutant(
        "a price by rates is told as the provider's",
        "status_of",
        'if cost["source"] == "reported" else "priced"',
        'if cost["source"] == "reported" else "reported"',
        BILLED,
    ),
    Mutant(
        "the end of a call has no row",
        "has_no_row",
        "event.usage is not None or event.cost is not None",
        "False",
        BILLED,
    ),
    Mutant("an attempt that was lost has no row", "RunState._lost", "self.costs.billed is not None", "False", BILLED),
    Mutant("a lost attempt goes the short way", "has_no_row", 'call.status != "open" or', "True or", BILLED),
    Mutant("money beside the calls has no row", "Costs.on_money", "self.billed is not None", "False", BILLED),
    Mutant("a purged run came to nothing", "apply", "rows.bills += bills.of_purged(record, event)", "pass", BILLED),
    Mutant(
        "what is in flight isn't counted",
        "Ledger._bills",
        "yield from in_flight(self._fold(head.run_id))",
        "pass",
        BILLED,
    ),
    Mutant("unknown money is taken for none", "Spending.add", "self.open += calls", "pass", BILLED),
    Mutant(
        "the audit believes the ledger",
        "TableAudit.finish",
        'self._bills.count or self._may_have("bills")',
        "False",
        BILLED,
    ),
    Mutant("days are those of UTC", "_day_in", 'zone.key == "UTC"', "True", BILLED),
)

RESUMES: Final = (
    Mutant("a first start is a resume", "Runner.claim", "state.status.freed or None", 'state.status.freed or "reopen"'),
    Mutant(
        "a crash is a reopen",
        "Runner.claim",
        '"crash" if head.status == "running"',
        '"reopen" if head.status == "running"',
    ),
    Mutant("a person's resume is a reopen", "Status.on_requeued", 'self.freed = "manual"', 'self.freed = "reopen"'),
    Mutant("a retry begins anew", "Status.on_queued", 'event.link in ("retry", "fork")', "False"),
    Mutant("a note moves the resume point", "counts", "event_type not in ANYTIME", "True", "resumes"),
    Mutant(
        "an agent is told of a resume at its first start", "of_claim", "or claim.event.resume is None", "", "resumes"
    ),
    Mutant(
        "a report has what came behind the claim",
        "of_claim",
        "log.store.read_back(run_id, claim.seq)",
        "log.store.read_back(run_id, claim.seq + 1)",
        "resumes",
    ),
    Mutant("a resume point is used twice", "check_point", "actual == point", "actual >= point"),
    Mutant("a brief is of now", "anchor", "store.read_back(run_id, before)", "store.read_back(run_id)", "brief"),
    Mutant("the brief of a retry is of the retry", "begun_in", "since <= offset and", "False and", "brief"),
    Mutant("a changed layer is the same", "prompt_words", "today.whole == before.fingerprint", "True", "resumes"),
    Mutant(
        "what nobody knows is safe to repeat",
        "_BECOMES",
        '"fail": "unknown"',
        '"fail": "repeat"',
        "resumes",
    ),
)

MUTANTS: Final = (
    TWINS
    + OURS
    + IDENTITY
    + KEPT
    + APPENDS
    + FIELDS
    + ERASING
    + CRASHES
    + PURGES
    + MEDIA
    + STOPS
    + CHILDREN
    + BILLS
    + OUTBOX
    + IMPORTS
    + RESUMES
)
