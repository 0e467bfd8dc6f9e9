"""`runjournal schema`: the JSON Schema of the event types, for programs that read what this one writes."""

from __future__ import annotations

import difflib
from typing import Any, Final

import click

from . import exits
from .app import App, command, pass_app
from .output import document, emit
from .safe import dumps, line

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_BLOB: Final = {
    "description": "A value that is held out of line: the SHA-256, in hex, of its JSON, and how many bytes that has.",
    "type": "object",
    "properties": {
        "$blob": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "bytes": {"type": "integer", "minimum": 0},
    },
    "required": ["$blob", "bytes"],
    "additionalProperties": False,
}


@command(
    "schema",
    examples=[
        ("runjournal schema > events.schema.json", "one document for all: a line of `show --events -o jsonl` fits it"),
        ("runjournal schema tool.started", "the data of one type"),
        ("runjournal schema -o jsonl", "the data of each type, one a line"),
    ],
)
@click.argument("type_", required=False, metavar="TYPE")
@pass_app
def schema(app: App, type_: str | None) -> int:
    """Print the JSON Schema (draft 2020-12) of every event type, or of one."""
    from runjournal.log import events

    known = {name: kind for name, kind in sorted(events.registered().items()) if not name.startswith("x.")}
    if type_ is not None and type_ not in known:
        near = difflib.get_close_matches(type_, known, 1)
        hint = f"did you mean {near[0]}?" if near else "`runjournal schema` shows them all"
        raise click.UsageError(f"no event type {line(type_, 60)}; {hint}")
    if type_ is not None:
        document(app if not app.plain else App(output="json", color=app.color, pager=app.pager), one(known[type_]))
    elif app.output == "jsonl":
        emit(app, (dumps(one(kind)) for kind in known.values()))
    else:
        emit(app, dumps(whole(known), indent=2).split("\n"))
        app.say("next: runjournal show @last --events -o jsonl")
    return exits.OK


def one(kind: type[Any]) -> dict[str, Any]:
    """The schema of the data of one event type, as a document of its own."""
    content = data_schema(kind)
    blobs = {"$defs": {"blob": _BLOB}} if kind.BLOBS else {}
    return {"$schema": DRAFT, "$id": f"urn:runjournal:event:{kind.TYPE}:{kind.VERSION}"} | content | blobs


def data_schema(kind: type[Any]) -> dict[str, Any]:
    """The schema of the data of one event type."""
    from runjournal.log.base import plan_of

    plan = plan_of(kind)
    return {
        "title": kind.TYPE,
        "description": " ".join((kind.__doc__ or "").split()),
        "type": "object",
        "properties": {
            field.name: _BLOB_REF
            if field.name == kind.RAW
            else _or_blob(field.shape.schema())
            if field.attribute in kind.BLOBS
            else field.shape.schema()
            for field in plan
        },
        "required": [field.name for field in plan if not field.optional],
        "additionalProperties": False,
    }


_BLOB_REF: Final = {"$ref": "#/$defs/blob"}


def _or_blob(shape: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [shape, _BLOB_REF]}


def whole(known: dict[str, type[Any]]) -> dict[str, Any]:
    """One document for all events, as `show --events` prints them; events of other types are let through."""
    return {
        "$schema": DRAFT,
        "$id": "urn:runjournal:events:1",
        "title": "An event of a run",
        "type": "object",
        "properties": _RECORD,
        "required": list(_RECORD),
        "allOf": [
            {
                "if": {"properties": {"type": {"const": name}}},
                "then": {"properties": {"data": {"$ref": f"#/$defs/{name}"}}},
            }
            for name in known
        ],
        "$defs": {name: data_schema(kind) for name, kind in known.items()} | {"blob": _BLOB},
    }


_HASH: Final = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_RECORD: Final[dict[str, Any]] = {
    "run_id": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
    "seq": {"type": "integer", "minimum": 1, "description": "Counts the events of the run from 1, without a gap."},
    "position": {"type": "integer", "minimum": 1, "description": "Counts those of the store; gaps are possible."},
    "type": {"type": "string"},
    "at": {"type": "string", "format": "date-time", "description": "UTC."},
    "by": {"type": "string", "description": "Who wrote it."},
    "epoch": {"type": "integer", "minimum": 0, "description": "The writer's fencing token; 0: not the owner."},
    "step": {"type": ["integer", "null"], "minimum": 0},
    "hash": _HASH,
    "data": {"description": "See $defs, by type."},
}
