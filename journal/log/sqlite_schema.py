"""The schema of a SQLite store: numbered migrations, each of them atomic, with a copy of the store before the first.

`application_id` in the file's header tells that it is ours, `user_version` how many migrations it has seen.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import re
from importlib.resources import files
from typing import Final

import apsw

from .errors import NewerSchema, NotAStore, StoreError, StoreIdDiffers
from .sqlite_copy import copy
from .sqlite_place import APPLICATION_ID, read_header, value

Migrations = tuple[str, ...]


def _migrations() -> Migrations:
    folder = files(__package__ or "") / "sql" / "sqlite"
    scripts = {
        int(match[1]): each for each in folder.iterdir() if (match := re.fullmatch(r"(\d{4})_\w+\.sql", each.name))
    }
    if sorted(scripts) != list(range(1, len(scripts) + 1)):
        raise StoreError(f"the installation is damaged: it has migrations {sorted(scripts)}")
    return tuple(scripts[number].read_text(encoding="utf-8") for number in sorted(scripts))


MIGRATIONS: Final[Migrations] = _migrations()
"""SQL scripts; number n, counted from 1, leads from schema n - 1 to schema n."""


def check_header(path: str, migrations: Migrations = MIGRATIONS) -> bool:
    """Return whether a file holds a store (False: it is empty), without touching it. Raises NotAStore, NewerSchema."""
    header = read_header(path)
    if header is None:
        return False
    if header.application_id != APPLICATION_ID:
        raise NotAStore(f"{path} is a SQLite database of another tool; it was not touched")
    if header.schema > len(migrations):
        raise NewerSchema(path, header.schema, len(migrations))
    return True


def stored_id(connection: apsw.Connection) -> str:
    """Return the id that a store was made with, "" if it has none."""
    return str(value(connection, "SELECT coalesce(max(value), '') FROM meta WHERE key = 'store_id'"))


def check_id(path: str, expected: str | None, found: str) -> None:
    """Raise StoreIdDiffers if a store has another id than was expected; None: whatever it has."""
    if expected not in (None, found):
        raise StoreIdDiffers(path, str(expected), found)


def migrate(connection: apsw.Connection, path: str, migrations: Migrations = MIGRATIONS, *, store_id: str = "") -> None:
    """Bring a store to the newest schema; an existing one is copied to `<path>.backup-schema-<n>` before.

    A new one gets `store_id`. Each migration is a transaction: a process that dies in the middle leaves the schema
    before it. Raises NewerSchema, NotAStore, and the driver's errors.
    """
    copied = False
    while _schema(connection) != len(migrations):
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have been faster.
            found = _checked_schema(connection, path, migrations)
            # A new store gets all of them at once, so that there never is one with an old schema.
            pending = migrations[found : found + 1] if found else migrations
            if found and pending and not copied:
                _copy_aside(path, found)
                copied = True
            for script in pending:
                connection.execute(script).fetchall()
            if store_id and not found:
                connection.execute("INSERT INTO meta VALUES ('store_id', ?)", (store_id,)).fetchall()
            if pending:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {found + len(pending)}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _schema(connection: apsw.Connection) -> int:
    return int(value(connection, "PRAGMA user_version"))


def _checked_schema(connection: apsw.Connection, path: str, migrations: Migrations) -> int:
    found = _schema(connection)
    if found > len(migrations):
        raise NewerSchema(path, found, len(migrations))
    if not found and value(connection, "SELECT count(*) FROM sqlite_schema"):
        raise NotAStore(f"{path} is a SQLite database of another tool; it was not touched")
    return found


def _copy_aside(path: str, schema: int) -> None:
    """Copy a store that is about to be migrated; the caller holds its write lock. An existing copy stays."""
    base = target = f"{path}.backup-schema-{schema}"
    number = 1
    while os.path.lexists(target):
        number += 1
        target = f"{base}-{number}"
    copy(path, target)
