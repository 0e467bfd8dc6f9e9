"""The verdict: what becomes of a call of which the log has no outcome. Pure, and the only place that says so.

The engine acts on it. `recover`, the recovery before the agent is called and `runjournal show` report it. The first
rule that fits counts (docs/explanation/recovery.md has the table):

1. its outcome is known: `recorded`, it is returned; so it is for a call of the outbox, which a relay delivers;
2. no attempt may have happened, since the call is repeatable or every attempt said that it did nothing; or the agent
   was told that nobody knows, and that was the word: `run`;
3. the tool has a hook: `hook`, which is asked; if it doesn't know, the rules below count;
4. `keyed`, then and now, and its key lives: `run`, under the same key, which the receiver dedupes by;
5. nobody knows: a person is asked (`ask`), unless he has said that he doesn't know either; or the agent is told, each
   time it asks (`fail`) or once (`tell`), as `on_unknown` says.

What was recorded of a call counts as strictly as the tool of today: a key is of no use to a tool that no longer passes
it on, and an attempt of an unsafe tool stays one. A tool that isn't known here is judged by what was recorded alone.
The rules: engine.md H3, V2 and E1.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from runjournal.log.base import Json
from runjournal.log.clock import parse_timestamp
from runjournal.log.owner import Moment
from runjournal.log.policies import EFFECT_FREE
from runjournal.projections.calls import Call

Verdict = Literal["recorded", "run", "hook", "ask", "fail", "tell"]
UNDECIDED: tuple[Verdict, ...] = ("hook", "ask", "fail", "tell")
"""The verdicts of a call that isn't sent again before a hook or a person has said what became of it."""


class Live(NamedTuple):
    """The log's answer to a call: send it."""


class Person(NamedTuple):
    """The log's answer to a call: a person must say first what became of it."""


class Nobody(NamedTuple):
    """The log's answer to a call: the agent is told that nobody knows; `settled`: that is the word."""

    settled: bool


LIVE: Final = Live()
PERSON: Final = Person()


class ToolToday(NamedTuple):
    """What the verdict needs of a tool as this process has it; `hook`: it can be asked what became of a call."""

    policy: str
    on_unknown: str
    hook: bool


class Judgement(NamedTuple):
    """A verdict, and why, in one sentence for people."""

    verdict: Verdict
    why: str


class Judged(NamedTuple):
    """An open call and what is to become of it. `key` is its id, `args` are those that were sent, in full.

    `why` is one sentence for people; times are UTC text.
    """

    key: str
    tool: str
    policy: str
    read_only: bool
    attempt: int
    started_at: str
    args: Json
    verdict: Verdict
    why: str

    @property
    def call_id(self) -> str:
        """Return the id of the call, for `Journal.resolve`: its key."""
        return self.key


def judge(call: Call, tool: ToolToday | None, now: Moment, *, happened: bool = False) -> Judgement:
    """Return the verdict of a call at a moment.

    `tool` is what this process knows of the call's tool, None if nothing. `happened` says that the store's `effects`
    have the call's key: it has happened somewhere in the scope of the run.
    """
    if happened or call.status == "completed":
        return Judgement("recorded", "its outcome is on record")
    if call.policy == "outbox" and call.maybe:
        if not call.parked:
            return Judgement("recorded", "a relay delivers it under its key, once its step is complete")
        return Judgement("fail" if call.said else "ask", "no relay could deliver it, and none tries any more")
    if not call.maybe:
        if call.policy in EFFECT_FREE:
            return Judgement("run", "it may simply be made again")
        if call.policy == "transactional":
            return Judgement("run", "its effect commits with its record, and there is none")
        return Judgement("run", "every attempt is known to have done nothing")
    if call.settled:
        return Judgement("run", "the agent was told that nobody knows, and its tool says that this is enough")
    if tool is not None and tool.hook:
        return Judgement("hook", "it may have happened, and its tool has a hook that can tell")
    if key_lives(call, now) and (tool is None or tool.policy == "keyed"):
        return Judgement("run", f"the receiver does it once for its key, which lives until {call.key_expires_at}")
    on_unknown = tool.on_unknown if tool is not None else call.on_unknown
    verdict: Verdict = "tell" if on_unknown == "tell" else "ask" if on_unknown == "ask" and not call.said else "fail"
    return Judgement(verdict, _why_unknown(call, now))


def key_lives(call: Call, at: Moment) -> bool:
    """Return whether the receiver of a keyed call still knows its key: engine.md E3.

    An age that nothing proves is too old.
    In the boot that the key was born in the seconds since boot prove it. In another one only the wall clock is there,
    which proves nothing once it has been set back.
    """
    if call.policy != "keyed" or call.key_expires_at is None or call.key_expires_at <= at.now:
        return False
    born = call.key_born
    if born is None or born["boot_id"] != at.boot_id:
        return call.key_since <= at.now
    life = parse_timestamp(call.key_expires_at) - parse_timestamp(call.key_since)
    age_s: float = at.boottime_s - born["boottime_s"]
    return 0 <= age_s < life.total_seconds()


def _why_unknown(call: Call, now: Moment) -> str:
    if call.policy != "keyed":
        return "it may have happened, and nothing keeps it from happening twice"
    if key_lives(call, now):
        return "it may have happened, and its tool of today passes no key on"
    return "it may have happened, and its key may have been forgotten by the receiver"
