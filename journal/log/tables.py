"""The tables of a store, named once: what is the truth, what follows from it, what is kept beside both."""

from __future__ import annotations

from typing import Final, NamedTuple

from .store import Bill, Effect, Import, StepEnd, Unknown


class IndexTable(NamedTuple):
    """A table of index rows: its columns, how many of them are the key, and the one that names the run."""

    columns: tuple[str, ...]
    key: int
    run: str

    @property
    def run_place(self) -> int:
        """Return where in a row the run is named."""
        return self.columns.index(self.run)


INDEX: Final = {
    "effects": IndexTable(Effect._fields, 2, "run_id"),
    "unknowns": IndexTable(Unknown._fields, 2, "run_id"),
    "step_ends": IndexTable(StepEnd._fields, 3, "run_id"),
    "bills": IndexTable(Bill._fields, 3, "run_id"),
    "lines": IndexTable(("scope", "newest"), 1, "newest"),
    "imports": IndexTable(Import._fields, 1, "run_id"),
}
"""The tables of which `Store.index_rows` returns the rows."""

DERIVED: Final = tuple(name for name in INDEX if name != "imports")
"""Those that follow from the events, and that a rebuild makes again; where a run came from doesn't."""

STATE: Final = ("runs", "blobs", "checkpoints", "secrets", *INDEX)
"""All that a store holds beside the events."""

ALL: Final = frozenset({"events", "run_keys", "log", "meta", "run_tags", *STATE})
"""Every table and view that is ours; a tool's own have other names."""
