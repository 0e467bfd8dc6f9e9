"""Migrate the store at argv[1] to a schema 2 whose script dies half-way, inside its transaction."""

import os
import sys

import apsw

from runjournal.log.sqlite_place import connect
from runjournal.log.sqlite_schema import MIGRATIONS, migrate

connection = connect(sys.argv[1], 1.0)


def die(*_args: object) -> None:
    """End as a killed process does."""
    os._exit(9)


connection.create_scalar_function("die", die)
migrate(connection, sys.argv[1], (MIGRATIONS[0], "CREATE TABLE half (a); INSERT INTO half VALUES (1); SELECT die();"))
sys.exit(f"survived with apsw {apsw.apsw_version()}")
