"""Promises of the product, broken on purpose: each layer has to notice those that are its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runjournal.log import events as e
from runjournal.log import sqlite as sqlite_module
from runjournal.log import sqlite_place
from runjournal.projections.chain_audit import ChainAudit
from runjournal.projections.findings import Finding

EARLY = False
"""Whether a workload acknowledges before it commits."""


def early() -> None:
    global EARLY  # noqa: PLW0603 - in a child that ends soon
    EARLY = True


def relaxed_all() -> None:
    """Commit everything with synchronous=NORMAL."""
    e.is_durable = lambda _: False  # type: ignore[assignment]


def never_synced() -> None:
    """Commit everything with synchronous=OFF."""
    settings: dict[str, int] = sqlite_place._SETTINGS
    settings["synchronous"] = 0
    enter = sqlite_module.SQLiteStore._enter

    def careless(store: Any, durable: bool) -> None:
        store._durable = durable
        enter(store, durable)

    sqlite_module.SQLiteStore._enter = careless  # type: ignore[method-assign, assignment]


def rollback_journal() -> None:
    """Keep SQLite's rollback journal, journal_mode=DELETE, in place of the write-ahead log."""

    def stay(*_: object) -> None:
        return None

    sqlite_module.switch_to_wal = stay  # type: ignore[attr-defined, assignment]


def swallowed() -> None:
    """Take an error of a commit for a success."""

    def swallow(*_: object) -> None:
        return None

    sqlite_module.SQLiteStore._not_committed = swallow  # type: ignore[method-assign, assignment]


def unhashed() -> None:
    """Compare no hash of an event with what is stored."""
    feed = ChainAudit.feed

    def fed(self: ChainAudit, record: Any, body: Any) -> list[Finding]:
        return [each for each in feed(self, record, body) if each.code != "link_broken"]

    ChainAudit.feed = fed  # type: ignore[method-assign]


HARMS: dict[str, Callable[[], None]] = {
    "acknowledged before the commit": early,
    "synchronous=NORMAL for durable events": relaxed_all,
    "synchronous=OFF": never_synced,
    "journal_mode=DELETE": rollback_journal,
    "an error of a commit taken for a success": swallowed,
    "no hash compared": unhashed,
}
