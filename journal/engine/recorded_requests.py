"""Requests to models that are on record, compared with those of today: without their clocks (engine.md C4, D8)."""

from __future__ import annotations

from typing import Any

from runjournal.log import events as e
from runjournal.log.base import Json
from runjournal.log.clock import parse_timestamp
from runjournal.projections.calls import Call
from runjournal.projections.requests import NotStored, sha256_of

from .clocks import shape
from .core import Core
from .requests import AskedRequest, parts_of


def alike(core: Core, call: Call, asked: AskedRequest) -> bool:
    """Return whether a request of today's differs from the one of a recorded call in its clocks alone.

    What is a clock is judged by when each was asked. Where requests aren't stored, their parts are compared.
    """
    record = core.lineage.record_at(call.args_seq)
    if record is None or not isinstance(record.event, e.ModelStarted):
        return False
    if record.event.request is None:
        return record.event.parts is not None and record.event.parts == asked.parts
    try:
        before: Json = core.lineage.request_at(call.args_seq)
    except NotStored:
        return False
    then = shape(before, parse_timestamp(record.at))
    return sha256_of(then) == sha256_of(shape(asked.value, asked.at))


def recorded_parts(core: Core, at: int) -> dict[str, Any]:
    """Return the parts of the request that was asked at a place; none where nothing of it is on record."""
    record = core.lineage.record_at(at)
    if record is None or not isinstance(record.event, e.ModelStarted):
        return {}
    try:
        return record.event.parts or parts_of(core.lineage.request_at(at), parse_timestamp(record.at))
    except NotStored:
        return {}
