"""The table of checkpoints in a SQLite file: what is kept of them, and dropped, on a connection of the caller's.

What a private run's checkpoint holds is encrypted under a key of its own kind. So a run that goes on from an erased one
loses only its checkpoints, which were folded from both: that key is erased, and another one is made.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

import apsw

from .cipher import ERASED_KEY, blob_run, decrypt_blob, encrypt_blob
from .limits import checkpoint_stretch_events
from .store import Checkpoint

_SAVE: Final = (
    "INSERT OR REPLACE INTO checkpoints (run_id, seq, fold, body) SELECT ?1, ?2, ?3, ?4 "
    "WHERE NOT EXISTS (SELECT 1 FROM runs WHERE run_id = ?1 AND status = 'purged')"
)
"""Of a purged run none is kept: whoever comes late has folded what is gone."""
_TRIM: Final = (
    "DELETE FROM checkpoints WHERE run_id = ?1 AND substr(fold, 1, length(?2)) = ?2 AND (seq, fold) NOT IN "
    "(SELECT seq, fold FROM checkpoints WHERE run_id = ?1 AND substr(fold, 1, length(?2)) = ?2 "
    "ORDER BY seq DESC, fold DESC LIMIT ?3) "
    f"AND EXISTS (SELECT 1 FROM checkpoints AS later WHERE later.run_id = ?1 AND later.seq > checkpoints.seq "
    f"AND later.seq / {checkpoint_stretch_events} = checkpoints.seq / {checkpoint_stretch_events} "
    "AND substr(later.fold, 1, length(?2)) = ?2)"
)
_NEWEST_KEY: Final = "SELECT key FROM secrets WHERE purpose = 'checkpoints' AND name = ? ORDER BY id DESC LIMIT 1"
_DROP: Final = "DELETE FROM checkpoints WHERE run_id = coalesce(?, run_id) AND seq = coalesce(?, seq)"


def save(connection: apsw.Connection, checkpoint: Checkpoint, keep: int) -> None:
    """Keep a checkpoint, and drop all but the newest `keep` of its projection in the run, and the last of a stretch."""
    key = cast("bytes | None", connection.execute(_NEWEST_KEY, (checkpoint.run_id,)).get)
    if key == ERASED_KEY:
        return
    if key is not None:
        checkpoint = checkpoint._replace(body=encrypt_blob(key, checkpoint.run_id, checkpoint.body))
    connection.execute(_SAVE, checkpoint)
    connection.execute(_TRIM, (checkpoint.run_id, f"{checkpoint.projection}:", keep))


def opened(checkpoint: Checkpoint, secret: Callable[[str, str], bytes | None]) -> Checkpoint | None:
    """Return a checkpoint as it was given to `save`; None if its key was erased. Raises MissingExtra."""
    if blob_run(checkpoint.body) is None:
        return checkpoint
    key = secret("checkpoints", checkpoint.run_id)
    try:
        return None if key is None else checkpoint._replace(body=decrypt_blob(key, checkpoint.body))
    except ValueError:  # under a key that was erased
        return None


def drop(connection: apsw.Connection, run_id: str | None, seq: int | None) -> int:
    """Drop one checkpoint, those of a run, or all; return how many."""
    connection.execute(_DROP, (run_id, seq))
    return connection.changes()
