"""The table of checkpoints in a SQLite file: what is kept of them, and dropped, on a connection of the caller's."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Final

import apsw

from .limits import checkpoint_stretch_events
from .store import Checkpoint

_SAVE: Final = "INSERT OR REPLACE INTO checkpoints (run_id, seq, fold, body) VALUES (?, ?, ?, ?)"
_TRIM: Final = (
    "DELETE FROM checkpoints WHERE run_id = ?1 AND substr(fold, 1, length(?2)) = ?2 AND (seq, fold) NOT IN "
    "(SELECT seq, fold FROM checkpoints WHERE run_id = ?1 AND substr(fold, 1, length(?2)) = ?2 "
    "ORDER BY seq DESC, fold DESC LIMIT ?3) "
    f"AND EXISTS (SELECT 1 FROM checkpoints AS later WHERE later.run_id = ?1 AND later.seq > checkpoints.seq "
    f"AND later.seq / {checkpoint_stretch_events} = checkpoints.seq / {checkpoint_stretch_events} "
    "AND substr(later.fold, 1, length(?2)) = ?2)"
)
_DROP: Final = "DELETE FROM checkpoints WHERE run_id = coalesce(?, run_id) AND seq = coalesce(?, seq)"


def save(connection: apsw.Connection, checkpoint: Checkpoint, keep: int) -> None:
    """Keep a checkpoint, and drop all but the newest `keep` of its projection in the run, and the last of a stretch."""
    connection.execute(_SAVE, checkpoint)
    connection.execute(_TRIM, (checkpoint.run_id, f"{checkpoint.projection}:", keep))


def drop(connection: apsw.Connection, run_id: str | None, seq: int | None) -> int:
    """Drop one checkpoint, those of a run, or all; return how many."""
    connection.execute(_DROP, (run_id, seq))
    return connection.changes()
