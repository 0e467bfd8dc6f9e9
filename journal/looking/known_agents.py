"""Which agent a run was last claimed for, and how a command line names it."""

from __future__ import annotations

import itertools

from runjournal.log import events as e
from runjournal.log.head import Head
from runjournal.log.limits import agent_search_runs_max
from runjournal.logbook import Logbook


def known_agent(log: Logbook, head: Head) -> str:
    """Return the agent that a run of this store was last claimed for: this run, or else the newest of its kind."""
    others = itertools.islice(log.runs(kind=head.kind), agent_search_runs_max)
    for each in itertools.chain([head], others):
        if not each.unowned and log.store.imported(each.run_id) is None:
            claims = [record.event for record in log.store.read(each.run_id, types=("run.claimed",))]
            named = [claim.agent for claim in claims if isinstance(claim, e.RunClaimed) and claim.agent]
            if named:
                return named[-1]
    return ""


def agent_option(text: str, kind: str) -> str:
    """Return an agent as `--agent` takes it for a run of a kind; a placeholder in it where it isn't known."""
    if not text:
        return f"MODULE:{kind}" if kind.isidentifier() else f"{kind}=MODULE:FUNCTION"
    return text if "=" in text or text.rpartition(":")[2] == kind else f"{kind}={text}"
