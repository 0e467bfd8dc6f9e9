"""What an agent has while it runs, as data: eight kinds of state, and what becomes of each when its process dies.

`docs/reference/inventory.md` is written from this, and a test kills an agent and looks at each.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Policy = Literal["persist before commit", "persist after commit", "rebuild on resume", "accept loss"]
POLICIES: Final[tuple[Policy, ...]] = (
    "persist before commit",
    "persist after commit",
    "rebuild on resume",
    "accept loss",
)


class Kind(NamedTuple):
    """A kind of state. `events` are the types that hold it, `fold` the part of `RunState` that they fold into.

    `written` says when, `resumed` what the next process finds; `lost` what a kill or a power cut may take of it.
    """

    name: str
    policy: Policy
    events: tuple[str, ...]
    fold: str | None
    written: str
    resumed: str
    lost: str


INVENTORY: Final = (
    Kind(
        "messages",
        "persist before commit",
        ("message.appended", "context.compacted"),
        "transcript",
        "each one when it is appended, before its step completes",
        "those of completed steps are the context; those of a step that was open are uncommitted, and are written anew "
        "by the step when it is entered again",
        "a power cut may take those since the last durable event, with the step that wrote them",
    ),
    Kind(
        "tool status",
        "persist before commit",
        ("tool.started", "tool.completed", "tool.failed", "tool.adopted", "tool.resolved"),
        "calls",
        "the start before the tool is called, the end as soon as it has ended, both before the step completes",
        "a call that ended returns its recorded result or failure, and is not made again",
        "nothing that was acknowledged",
    ),
    Kind(
        "effects in flight",
        "persist before commit",
        ("tool.started",),
        "calls",
        "the intent, with the exact arguments, before a tool of policy `keyed` or `unsafe` is called: durably",
        "listed with a verdict: recorded, run (again, under the same key), hook, ask, fail, tell; never by a guess",
        "nothing: what can't be known is said aloud",
    ),
    Kind(
        "working memory",
        "persist before commit",
        ("memory.set", "memory.deleted", "memory.reset", "plan.set", "plan.updated"),
        "memory",
        "each assignment when it is made, before its step completes",
        "as it was when the last step completed: recorded, not derived from the messages",
        "a power cut may take those since the last durable event, with the step that wrote them",
    ),
    Kind(
        "abort token",
        "rebuild on resume",
        ("run.cancel_requested",),
        "status",
        "the request, when it is made, by anybody; the token itself lives in the process and dies with it",
        "a cancel that was requested before the crash beats any resume: the run ends before anything is paid or sent",
        "the token; never the request",
    ),
    Kind(
        "credentials",
        "rebuild on resume",
        (),
        None,
        "never: keys and tokens are your process's, tools read them from where you keep them",
        "read anew by the process that goes on; one that was changed meanwhile is the new one",
        "all of it, by intent",
    ),
    Kind(
        "prompt",
        "persist before commit",
        ("prompt.pinned",),
        "prompt",
        "`run.pin_prompt` writes its exact text and a fingerprint of each layer",
        "the same text is pinned again without an event; another one is a new event, and a note names the layers",
        "a power cut may take it if nothing durable followed; it is then pinned anew",
    ),
    Kind(
        "ledger",
        "persist before commit",
        ("model.completed", "model.failed", "model.recounted", "cost.recorded", "cost.repriced"),
        "costs",
        "usage and cost stand in the event that ends each model call, failed ones included: durably",
        "the sum over the log; a recorded call returns its answer and costs nothing again",
        "the price of an answer that was on its way when the process died: the provider may bill it, nobody knows",
    ),
)
"""The eight kinds."""
