"""What an audit says: findings, each with its place and with the command to type next; never a payload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Severity = Literal["error", "warning", "info"]
"""error: the log or what is derived from it is wrong. warning: somebody should look. info: good to know, no fault."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an audit has found.

    `code` is a key of `CODES`. `run_id` is "" and `seq` None where the finding is about the store or the whole run.
    `what` says it in a sentence, names and numbers only; `next` is a complete command.
    """

    severity: Severity
    code: str
    run_id: str
    seq: int | None
    what: str
    next: str

    @property
    def counts(self) -> bool:
        """Return whether the finding makes `runjournal audit` exit with 3."""
        return self.severity != "info"


class Code(NamedTuple):
    """What a code means: its severity, unless the finding knows better, and a sentence for the reference."""

    severity: Severity
    meaning: str


REBUILD: Final = "runjournal db rebuild"
"""What makes all again that follows from the events."""

CODES: Final[Mapping[str, Code]] = {
    # The chain.
    "seq_gap": Code("error", "events are missing in the middle of the run"),
    "seq_duplicate": Code("error", "two events have the same seq"),
    "link_broken": Code("error", "an event names another hash than the one before it has: one of the two was changed"),
    "position_order": Code("error", "a later event of the run has an earlier place in the store"),
    "row_unreadable": Code("error", "a stored row, or a page of the file, can't be read at all"),
    "tail_missing": Code("error", "the run's row promises events that aren't there"),
    "beyond_head": Code("error", "there are events behind the head of the run, written past the guarded append"),
    "purge_broken": Code("error", "an event is empty and no run.purged speaks of it, or one isn't about what is left"),
    "head_hash": Code("error", "the last event isn't the one that the run's row names: one of the two was changed"),
    "run_row_missing": Code("error", "there are events of a run that has no row in the table runs"),
    # What an event says.
    "unreadable": Code("error", "a stored body isn't an event of its type"),
    "newer": Code("warning", "an event was written by a newer version of this package"),
    "unknown_type": Code("info", "an event's type isn't known here: kept, shown, and nothing to any fold"),
    "not_canonical": Code("warning", "a stored body isn't written the way this package writes it"),
    "bad_time": Code("warning", "an event's time isn't UTC text with microseconds"),
    "clock_back": Code("warning", "the wall clock went back between two events"),
    "blob_missing": Code("error", "a value that is held out of line isn't in the store"),
    "blob_damaged": Code("error", "a value that is held out of line isn't the one that its event names"),
    # What the events say together.
    "transition": Code("error", "the state machine has no arrow for this event where it stands"),
    "fenced": Code("error", "an event was written with an epoch that didn't own the run"),
    "step_order": Code("error", "a step started while another one was open, or with the wrong index"),
    "step_attempt": Code("warning", "the attempt or the entry of a step doesn't count on from the one before"),
    "step_end": Code("error", "a step ended that wasn't open"),
    "step_left_call": Code("warning", "a step completed while a call of its own was open: progress without a result"),
    "call_attempt": Code("error", "the attempt of a call doesn't count on from the one before"),
    "call_end": Code("error", "a call ended that wasn't open: it never started, or it had ended"),
    "call_adopted": Code("error", "a step took over a call of which somebody knew what had become of it"),
    "duplicate_effect": Code("error", "one key has two effects"),
    "call_open": Code("warning", "a call was started and has no end"),
    "call_unresolved": Code("warning", "a call may have happened, and nobody knows"),
    "stopped": Code("warning", "the run stands still: the code differs, or it doesn't get on"),
    "uncommitted": Code("warning", "a step was left open: what it did to the context counts for nothing"),
    "signal_untaken": Code("info", "the run ended before any step took a signal: whoever sent it was not heard"),
    "approval_unasked": Code("error", "a question was answered that wasn't open"),
    "checks_stopped": Code("info", "from here on nothing that needs the folded state is checked"),
    "fold_failed": Code("error", "the fold failed at an event"),
    # What is derived from the events.
    "run_row": Code("error", "the run's row says something else than its events"),
    "index_missing": Code("error", "an index table lacks a row that the events stand for"),
    "index_wrong": Code("error", "a row of an index table says something else than the events"),
    "index_extra": Code("error", "an index table has a row that no event stands for"),
    "checkpoint_damaged": Code("warning", "a checkpoint doesn't verify; it is left out, and no state is wrong by it"),
    "checkpoint_version": Code("info", "a checkpoint was made by other versions of the folds, or by an unknown fold"),
    "checkpoint_state": Code("error", "a checkpoint verifies and holds another state than the events"),
    "import_missing": Code("info", "an imported run lacks the note of how far it was taken"),
    "import_note": Code("error", "the note of an import isn't what the events of its run say"),
    "import_native": Code("error", "a run of this store is noted as imported, so that nobody can claim it"),
    "key_missing": Code("error", "a private run lacks one of its keys, so that its values read as erased"),
    "import_orphan": Code("warning", "there is the note of an import whose run isn't in the store"),
    # Across runs.
    "parent_missing": Code("warning", "the parent of a run isn't in the store"),
    "child_missing": Code("warning", "a run spawned a child that isn't in the store"),
    "child_differs": Code("error", "an agent was told another end of a child than that which the child's log has"),
    "base_missing": Code("warning", "the run that this one goes on from isn't in the store"),
    "base_changed": Code("error", "the event that this run goes on from isn't the one that it names"),
    "blob_bytes": Code("error", "the stored length of a blob isn't that of its bytes"),
    "checkpoint_orphan": Code("warning", "there is a checkpoint of a run that isn't in the store"),
    # The store.
    "schema": Code("error", "a table, index, trigger or view isn't as this version makes it"),
    "schema_own": Code("info", "a table or index that the store's user has made; no audit looks into it"),
    "positions": Code("error", "the places of the events aren't 1, 2, 3 …: one was moved, or taken away"),
    "blob_unused": Code("info", "no event refers to a blob"),
}
"""Every code that a finding can have. Codes are stable."""

BESIDE: Final = frozenset(
    {"run_row", "run_row_missing", "row_unreadable", "index_missing", "index_wrong", "index_extra"}
    | {"import_note", "import_native", "key_missing", "import_orphan", "blob_bytes", "blob_damaged"}
    | {"checkpoint_damaged", "checkpoint_state", "checkpoint_orphan"}
)
"""Codes of what stands beside the events, and isn't what follows from them."""


def finding(
    code: str, run_id: str, seq: int | None, what: str, next: str, *, severity: Severity | None = None
) -> Finding:
    """Return a finding of a known code, of the code's severity unless another is passed."""
    return Finding(severity or CODES[code].severity, code, run_id, seq, what, next)


def shown(name: object) -> str:
    """Return a name from the log, safe to print: bounded, without control characters."""
    text = ascii(name)
    return text if len(text) <= 80 else f"{text[:76]}…{text[-1]}"  # noqa: PLR2004 - a line holds it


def spoken(seconds: float) -> str:
    """Return a length of time as people say it."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:g} s"
