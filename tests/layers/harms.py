"""Promises of the product, broken on purpose: each layer has to notice those that are its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import orjson

from runjournal import runner
from runjournal.log import authority, sqlite_place
from runjournal.log import events as e
from runjournal.log import sqlite as sqlite_module
from runjournal.log.errors import StaleEpoch
from runjournal.projections.chain_audit import ChainAudit
from runjournal.projections.findings import Finding
from runjournal.writing import appender, checkpoints
from runjournal.writing.appender import Appender

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


def unfenced() -> None:
    """Let whoever once owned a run go on as its owner."""
    admit = authority.Gate.admit

    def admitted(self: authority.Gate, draft: Any) -> None:
        if self.epoch:
            self.status, self.epoch = "running", self.current
        admit(self, draft)

    authority.Gate.admit = admitted  # type: ignore[method-assign]
    sqlite_module.SQLiteStore.append_alone = _the_long_way  # type: ignore[method-assign]


def _the_long_way(*_: object, **__: object) -> None:
    return None


def fenced_outside() -> None:
    """Look who owns a run before the transaction, and not in it."""
    unfenced()
    append = Appender.append

    def appended(self: Appender, *batches: Any) -> Any:
        for each in batches:
            head = self.store.head(each.run_id)
            if each.epoch and head is not None and head.epoch != each.epoch:
                raise StaleEpoch(each.run_id, each.epoch, head.epoch, head.status)
        time.sleep(0.002)
        return append(self, *batches)

    Appender.append = appended  # type: ignore[method-assign]


def effect_first() -> None:
    """Have the effect of an agent's `send` happen before it is on record that it may."""
    append = Appender.append

    def appended(self: Appender, *batches: Any) -> Any:
        for draft in (draft for each in batches for draft in each.drafts):
            if isinstance(draft.event, e.ToolStarted) and draft.event.policy == "unsafe":
                EARLY_EFFECTS.add(ACT[0](f"send {draft.event.args['x']}"))
        return append(self, *batches)

    Appender.append = appended  # type: ignore[method-assign]


ACT: list[Callable[[str], str]] = []
"""How the workload has an effect happen."""
EARLY_EFFECTS: set[str] = set()
"""What has happened already."""


def uncompared() -> None:
    """Take whatever stands where an append would have stood for that append."""

    def repeated(self: Any) -> Any:
        batch, head = self.batch, self.head
        if batch.expect is None or batch.expect >= head.head_seq:
            return None
        there = list(self.tx.read(batch.run_id, batch.expect, batch.expect + len(batch.drafts)))
        return there if len(there) == len(batch.drafts) else None

    appender._Append._repeated = repeated  # type: ignore[method-assign]


def unguarded() -> None:
    """Let a forked child use the store of its parent."""
    of_whoever_asks = property(lambda _: os.getpid(), lambda *_: None)
    sqlite_module.SQLiteStore._pid = of_whoever_asks  # type: ignore[assignment]


def kept_claims() -> None:
    """Keep the claim of a run that an interrupt has taken from its agent."""

    def keep(*_: object) -> None:
        return None

    runner.Runner.let_go = keep  # type: ignore[method-assign, assignment]


def believed() -> None:
    """Believe a checkpoint that says that it is one."""

    def believe(kind: Any, checkpoint: Any, chain: str | None) -> Any:
        return kind.load(orjson.loads(checkpoint.body.partition(b"\n")[2])["state"])

    checkpoints.unseal = believe


HARMS: dict[str, Callable[[], None]] = {
    "acknowledged before the commit": early,
    "synchronous=NORMAL for durable events": relaxed_all,
    "synchronous=OFF": never_synced,
    "journal_mode=DELETE": rollback_journal,
    "an error of a commit taken for a success": swallowed,
    "no hash compared": unhashed,
    "no fence": unfenced,
    "a fence outside of the transaction": fenced_outside,
    "an effect before its intent": effect_first,
    "a checkpoint that is believed": believed,
    "a retry that doesn't compare bytes": uncompared,
    "no guard after a fork": unguarded,
    "an interrupted claim that is kept": kept_claims,
}
