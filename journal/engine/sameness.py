"""Whether two asks are the same call: by the tool's name and its args."""

from __future__ import annotations

from typing import cast

from runjournal.log import events as e
from runjournal.log.base import Json
from runjournal.projections.calls import Call
from runjournal.projections.index import args_sha256

from .callees import ToolTarget
from .core import Core
from .script import Entry


def same(core: Core, call: Call, target: ToolTarget, args: dict[str, Json]) -> bool:
    """Return whether a recorded call is of this tool, with these args.

    An argument that the record lacks and that has its default today is a parameter that the tool has got since.
    """
    recorded = recorded_args(core, call)
    if call.tool != target.name or not isinstance(recorded, dict):
        return False
    tool = target.tool
    mine = {name: value for name, value in args.items() if name in recorded or not tool.is_default(name, value)}
    return args_sha256(mine) == args_sha256(cast("Json", recorded))


def known(core: Core, entry: Entry, call_id: str) -> list[tuple[str, str] | None]:
    """Return the (tool, args_sha256) of each call that has this id: in flight, of the run, of its scope."""
    call = core.state.calls.known.get(call_id)
    effect = core.lineage.effect(call_id)
    return [
        entry.busy.get(call_id),
        None if call is None else (call.tool, args_sha256(recorded_args(core, call))),
        None if effect is None else (effect.tool, effect.args_sha256 or args_sha256(core.lineage.effect_args(effect))),
    ]


def recorded_args(core: Core, call: Call) -> Json:
    """Return the args of a tool call as its newest start has them; None if it has none."""
    event = core.lineage.event_at(call.args_seq)
    return event.args if isinstance(event, e.ToolStarted) else None
