"""The policies of tools, and the sets of them that rules speak of: what becomes of a call whose outcome was lost.

A model call is told of as if it had a policy of its own, `model`.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

ToolPolicy: TypeAlias = Literal["transactional", "idempotent", "keyed", "outbox", "unsafe"]
TOOL_POLICIES: Final[tuple[ToolPolicy, ...]] = get_args(ToolPolicy)
"""What a tool of this package may be."""

POLICIES: Final = ("transactional", "idempotent", "keyed", "outbox", "unsafe")
"""What a tool may be, as its events say it."""

ON_UNKNOWN: Final = ("ask", "fail", "tell")
"""What becomes of a call that may have happened, where nobody knows."""

OUTCOMES: Final = ("happened", "did_not_happen", "retry", "unknown")
"""What somebody says of such a call."""

STRICTNESS: Final = ("idempotent", "transactional", "keyed", "outbox", "unsafe")
"""The same, by how much is known of an attempt whose outcome was lost, the most first."""

EFFECT_FREE: Final = frozenset({"model", "idempotent"})
"""Whose calls may happen twice: of no call with another policy may the effect come again once it has happened."""

REPEATABLE: Final = EFFECT_FREE | {"transactional"}
"""Whose attempts may simply be made again when their outcome was lost: a transaction that was lost did nothing."""

RELAXED_STARTS: Final = frozenset({"idempotent", "transactional", "outbox"})
"""Whose intent may be lost in a power cut: nothing was sent behind it that mustn't be sent again."""
