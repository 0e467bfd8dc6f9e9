"""Folding stored rows into a run's state, decoding no more of them than its folds read.

Most of a long run are messages, and of these no fold reads more than the role: a stretch of them is counted, not made
into events. A row is counted only if `decode` would make a message of it that a fold would accept; any other row is
decoded, and folded or refused as everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from json import decoder
from typing import Any, Final, cast

import orjson

from runjournal.log import events as e
from runjournal.log.chain import RawRow
from runjournal.log.codec import decode
from runjournal.log.limits import json_depth_max
from runjournal.log.private_values import Keys
from runjournal.log.shapes import MESSAGE, OneOf

from .state import RunState
from .transcript import Stretch

_TYPE: Final = e.MessageAppended.TYPE
_VERSION: Final = e.MessageAppended.VERSION
_role: Final = MESSAGE.required["role"]
_ROLES: Final = frozenset(_role.words if isinstance(_role, OneOf) else ())
_STEPS: Final = frozenset({int, type(None)})
_MORE: Final = frozenset({"ext", "private"})
"""What a body may hold beside its data: where it can't be read, no fold goes past it."""
_FIELDS: Final = frozenset({"role", "content"})
"""The fields of a message that continues none, and was told by no provider."""
_string_end: Final = cast("Callable[[str, int, bool], tuple[str, int]]", vars(decoder)["scanstring"])
_WHOLE: Final = "(?:0|[1-9][0-9]{0,17})"
_TEXT: Final = re.compile(
    rf'\{{"v":{_VERSION},"at":"([^"\\\x00-\x1f]*)","by":"[^"\\\x00-\x1f]*","epoch":{_WHOLE},"step":(?:null|{_WHOLE}),'
    rf'"data":\{{"role":"({"|".join(sorted(_ROLES))})","content":"'
)
_END: Final = "}}"


def role_of(body: bytes) -> tuple[str, str] | None:
    """Return the role and the time of a stored message that continues none; None for whatever else this may be.

    One whose content is a text needn't be parsed: that its text is one is all that has to be known of it.
    """
    try:
        text = body.decode()
        found = _TEXT.match(text)
        # Half of a surrogate pair is no text. Most texts have no escape at all, which one character's search tells.
        if found is not None and ("\\" not in text or "\\u" not in text):
            end = _string_end(text, found.end(), True)[1]
            if len(text) - end == len(_END) and text.endswith(_END):
                at, role = found.groups()
                return role, at
    except ValueError:
        return None
    return _parsed(body)


def _parsed(body: bytes) -> tuple[str, str] | None:
    try:
        envelope: dict[str, Any] = orjson.loads(body)
        data, at, version = envelope["data"], envelope["at"], envelope["v"]
        role = data["role"]
        if (
            data.keys() == _FIELDS
            and role in _ROLES
            and version == _VERSION
            and type(version) is type(envelope["epoch"]) is int
            and type(at) is type(envelope["by"]) is str
            and type(envelope["step"]) in _STEPS
            and not _MORE & envelope.keys()
            and body.count(b"{") + body.count(b"[") <= json_depth_max
        ):
            return role, at
    except (KeyError, TypeError, ValueError):
        pass
    return None


def fold_rows(state: RunState, run_id: str, rows: Iterable[RawRow], keys: Keys, *, force: bool = False) -> RunState:
    """Fold rows in, in place; return the state. What is raised is what folding their records raises.

    `keys` returns the keys of private runs, as `decode` asks for them.
    """
    roles: dict[str, int] = {}
    first, last, at = 0, _NONE, ""

    def count() -> None:
        state.count_messages(run_id, last[0], last[4].hex(), at, Stretch(first, roles))

    try:
        for row in rows:
            if row[2] == _TYPE and (found := role_of(row[3])) is not None:
                role, at = found
                if role in roles:
                    roles[role] += 1
                else:
                    first = first if roles else row[0]
                    roles[role] = 1
                last = row
                continue
            if roles:
                count()
                roles = {}
            state.fold((decode(run_id, *row, keys),), force=force)
    finally:
        if roles:
            count()
    return state


_NONE: Final[RawRow] = (0, 0, "", b"", b"")
