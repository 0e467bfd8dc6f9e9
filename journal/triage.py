"""Triage: what recovery does with a call whose outcome isn't on record. Pure; the first rule that fits counts.

1. its outcome is known: `recorded`, it is given back;
2. no attempt of it may have happened, since it is repeatable or said so itself: `run`, it is simply made again;
3. `keyed`, and its key lives: `run`, it is made again under the same key, which the receiver dedupes by;
4. else `ask`: a hook of the tool is asked, then a person. It is never sent again before one of them has said so.

The rules: engine.md H3, V2 and E1.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from runjournal.log.base import Json
from runjournal.projections.calls import Call

Verdict = Literal["recorded", "run", "ask"]


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
        """Its id, for `Journal.resolve`: the key."""
        return self.key


def judge(call: Call, now: str) -> tuple[Verdict, str]:
    """The verdict of a call at a time (UTC text), by the policy that was frozen when it was started."""
    if call.status == "completed":
        return "recorded", "its outcome is on record"
    if not call.maybe:
        if call.policy in ("model", "idempotent"):
            return "run", "it may simply be made again"
        if call.policy == "transactional":
            return "run", "its effect commits with its record, and there is none"
        return "run", "every attempt is known to have done nothing"
    if call.policy == "keyed":
        if call.key_expires_at is not None and now < call.key_expires_at:
            return "run", f"the receiver does it once for its key, which lives until {call.key_expires_at}"
        return "ask", "it may have happened, and its key may have been forgotten by the receiver"
    return "ask", "it may have happened, and nothing keeps it from happening twice"
