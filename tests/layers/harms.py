"""Promises of the product, broken on purpose: each layer has to notice those that are its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runjournal.log import events as e
from runjournal.log import sqlite as sqlite_module
from runjournal.log import sqlite_place

EARLY = False
"""Whether a workload acknowledges before it commits."""


def early() -> None:
    global EARLY  # noqa: PLW0603 - in a child that ends soon
    EARLY = True


def relaxed_all() -> None:
    """Commit everything with synchronous=NORMAL."""
    e.is_durable = lambda _: False


class Careless:
    """A connection that never waits for the disk."""

    def __init__(self, connection: Any) -> None:
        object.__setattr__(self, "_connection", connection)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def never_synced() -> None:
    """Commit everything with synchronous=OFF."""
    settings: dict[str, int] = sqlite_place._SETTINGS
    settings["synchronous"] = 0
    enter = sqlite_module.SQLiteStore._enter

    def careless(store: Any, durable: bool) -> None:  # noqa: FBT001 - as the one it stands for
        store._durable = durable
        enter(store, durable)

    sqlite_module.SQLiteStore._enter = careless  # type: ignore[method-assign]


def rollback_journal() -> None:
    """Keep SQLite's rollback journal, journal_mode=DELETE, in place of the write-ahead log."""

    def stay(*_: object) -> None:
        return None

    sqlite_module.switch_to_wal = stay  # type: ignore[attr-defined]


HARMS: dict[str, Callable[[], None]] = {
    "acknowledged before the commit": early,
    "synchronous=NORMAL for durable events": relaxed_all,
    "synchronous=OFF": never_synced,
    "journal_mode=DELETE": rollback_journal,
}
