"""Checkpoints of folded state: disposable, verified before use, never ahead of the log.

A checkpoint's body is the SHA-256 of what follows, in hex, a newline, and JSON. It is used only if that hash, the run,
the seq, the hash of the event at that seq and the versions of all folds are what they should be; else it is left out
with a warning, and the one before it, or the log from its start, leads to the same state.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import orjson

from runjournal.log.codec import digest_of
from runjournal.log.errors import InvalidArgument, JournalError
from runjournal.log.limits import (
    checkpoint_every_events,
    checkpoint_parts_told_max,
    checkpoint_warn_bytes,
    checkpoints_kept_max,
)
from runjournal.log.store import Checkpoint, Reading, Store
from runjournal.projections.state import Projection, RunState, dump_bytes


class CheckpointWarning(UserWarning):
    """A checkpoint was left out, couldn't be written, or is large. No state is ever wrong because of it."""


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When a journal takes checkpoints by itself: every so many events, and after each event that ends a step or round.

    Irreversible and expensive work ends in such events, so a checkpoint of it is taken at once. `every_events=0` and
    `at_ends=False` together take none.
    """

    every_events: int = checkpoint_every_events
    at_ends: bool = True
    keep: int = checkpoints_kept_max

    def due(self, event_type: str, since: int) -> bool:
        """Return whether to take one after an event of this type, `since` events after the last."""
        return (self.at_ends and event_type in _ENDS) or (0 < self.every_events <= since)


_ENDS = frozenset(
    {"step.completed", "step.failed"}
    | {"run.waiting", "run.retry_scheduled", "run.completed", "run.failed", "run.cancelled"}
)


SEAL: Final = 2
"""How a state becomes bytes. The first way sorted all keys of a state, so what it wrote isn't used any more."""


def fold_name(kind: type[Projection]) -> str:
    """Return what a checkpoint says of the fold that made it: its name and version, and the way to bytes.

    For RunState that covers all its parts.
    """
    version = RunState.version() if issubclass(kind, RunState) else f"{kind.VERSION}.{SEAL}"
    return f"{kind.NAME}:{version}"


def check_kind(kind: type[Projection]) -> None:
    """Raise InvalidArgument unless a projection says what it is: else its checkpoints would be mistaken for others."""
    for name, expected, example in (("NAME", str, '"sent"'), ("VERSION", int, "1")):
        if type(getattr(kind, name, None)) is not expected:
            raise InvalidArgument(
                f"projection {getattr(kind, '__name__', kind)}: expected {name}, as in `{name} = {example}`, "
                f"got {getattr(kind, name, 'none')!r}"[:200]
            )


def seal(kind: type[Projection], projection: Projection, run_id: str, seq: int, chain: str) -> Checkpoint:
    """Return a checkpoint of a projection that has folded the run up to `seq`, whose event's hash is `chain`."""
    fold = fold_name(kind)
    content = {"run_id": run_id, "seq": seq, "hash": chain, "fold": fold, "state": projection.dump()}
    text = dump_bytes(content)
    return Checkpoint(run_id, seq, fold, digest_of(text).encode() + b"\n" + text)


def unseal(kind: type[Projection], checkpoint: Checkpoint, chain: str | None) -> Projection:
    """Return the projection in a checkpoint. Raises InvalidArgument, saying what is wrong with it."""
    digest, _, text = checkpoint.body.partition(b"\n")
    if digest != digest_of(text).encode():
        raise InvalidArgument("its own hash doesn't match: it was damaged")
    try:
        content: dict[str, Any] = orjson.loads(text)
        found = (content["run_id"], content["seq"], content["fold"])
        state, link = content["state"], content["hash"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"it isn't a checkpoint ({type(error).__name__})") from None
    if found[2] != fold_name(kind) or checkpoint.fold != found[2]:
        raise InvalidArgument("it was made by other versions of the folds")
    if found[:2] != (checkpoint.run_id, checkpoint.seq):
        raise InvalidArgument(f"it belongs to run {found[0]!r} seq {found[1]!r}")
    if chain is None:
        raise InvalidArgument("it is ahead of the log")
    if link != chain:
        raise InvalidArgument("the log has another event at its seq")
    try:
        return kind.load(state)
    except Exception as error:
        raise InvalidArgument(f"its state can't be loaded ({type(error).__name__}: {error})"[:300]) from error


def hash_at(store: Reading, run_id: str, seq: int) -> str | None:
    """Return the hash of the event at a seq, or None if there is none."""
    return next((record.hash for record in store.read(run_id, seq - 1, seq)), None)


def newest(
    store: Store, kind: type[Projection], run_id: str, upto: int | None = None
) -> tuple[Projection, int, str] | None:
    """Return the newest usable checkpoint up to `upto`: (projection, seq, hash of its event).

    Warns of each it drops.
    """
    for checkpoint in of_fold(store, kind, run_id, upto):
        chain = hash_at(store, run_id, checkpoint.seq)
        try:
            projection = unseal(kind, checkpoint, chain)
        except InvalidArgument as error:
            warn(f"checkpoint of run {run_id} at seq {checkpoint.seq} is left out: {error}")
            continue
        if chain is not None:
            return projection, checkpoint.seq, chain
    return None


def problem(store: Store, checkpoint: Checkpoint) -> str | None:
    """Return why a checkpoint of a run's state isn't used, or None."""
    try:
        unseal(RunState, checkpoint, hash_at(store, checkpoint.run_id, checkpoint.seq))
    except InvalidArgument as error:
        return str(error)
    return None


def of_fold(store: Store, kind: type[Projection], run_id: str, upto: int | None = None) -> Iterator[Checkpoint]:
    """Yield the checkpoints that a fold of this name has made, of whatever version, newest first."""
    name = f"{kind.NAME}:"
    return (checkpoint for checkpoint in store.checkpoints(run_id, upto) if checkpoint.fold.startswith(name))


class Keeping(Protocol):
    """A store, or a transaction of one, as far as it keeps checkpoints."""

    def save_checkpoint(self, checkpoint: Checkpoint, keep: int = 3) -> None:
        """Keep a checkpoint. Raises JournalError."""
        ...


def kept(where: Keeping, checkpoint: Checkpoint, keep: int) -> tuple[bool, list[str]]:
    """Keep a checkpoint; return whether it was kept, and what to warn of.

    A failure is no more than that, since the log has all that is in it.
    """
    told: list[str] = []
    if len(checkpoint.body) > checkpoint_warn_bytes:
        told.append(
            f"the checkpoint of run {checkpoint.run_id} at seq {checkpoint.seq} has {len(checkpoint.body)} bytes, "
            f"more than checkpoint_warn_bytes = {checkpoint_warn_bytes}: {_filled_by(checkpoint)}"
        )
    try:
        where.save_checkpoint(checkpoint, keep)
    except JournalError as error:  # a failed read, too, comes as an error of the log's
        told.append(f"the checkpoint of run {checkpoint.run_id} at seq {checkpoint.seq} couldn't be kept: {error}")
        return False, told
    return True, told


def save(store: Store, checkpoint: Checkpoint, keep: int) -> bool:
    """Keep a checkpoint in a commit of its own; return whether it was kept. Warn of what is wrong with it."""
    is_kept, told = kept(store, checkpoint, keep)
    for text in told:
        warn(text)
    return is_kept


_LESS: Final = {
    "memory": "keep large values out of the working memory",
    "plan": "keep the titles and notes of the plan short",
    "calls": "a step holds its calls until it completes, so make several steps of a long one",
    "approvals": "a step holds its questions until it completes",
    "inbox": "let a step take the signals that have come",
}
"""What to do about each part of a run's state."""


def _filled_by(checkpoint: Checkpoint) -> str:
    """The largest parts of what a checkpoint holds, in bytes, and what to do about the largest."""
    state = orjson.loads(checkpoint.body.partition(b"\n")[2])["state"]
    parts: dict[str, Any] = cast("dict[str, Any]", state) if isinstance(state, dict) else {"state": state}
    sizes = {str(name): len(dump_bytes(part)) for name, part in parts.items()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:checkpoint_parts_told_max]
    told = ", ".join(f"{name} {sizes[name]}" for name in largest)
    less = _LESS.get(largest[0], "") if checkpoint.projection == RunState.NAME and largest else ""
    return f"its largest parts, in bytes, are {told}" + (f"; {less}" if less else "")


def warn(text: str) -> None:
    """Warn of it once for each place."""
    warnings.warn(text, CheckpointWarning, stacklevel=3)


def summary(state: RunState) -> dict[str, Any]:
    """Return what a checkpoint says, for people: where the run is, what it knows, what it has spent.

    {run_id, step_index, next_index, completed, status, message_range [first, last] of seqs or None, working_memory,
    tokens_spent, cost_spent {currency: text}, prompt_fingerprint, last_error, committed_at}.
    """
    extent, open_step = state.transcript.base, state.steps.open
    error = state.status.error or (state.steps.failures[-1][4] if state.steps.failures else None)
    return {
        "run_id": state.run_id,
        "step_index": open_step.index if open_step else state.steps.last_index,
        "next_index": state.steps.next_index,
        "completed": state.steps.completed,
        "status": state.status.status,
        "message_range": [extent.first_seq, extent.last_seq] if extent.count else None,
        "working_memory": state.memory.committed,
        "tokens_spent": state.costs.tokens(),
        "cost_spent": {currency: str(state.costs.amount(currency)) for currency in sorted(state.costs.money)},
        "prompt_fingerprint": state.prompt.fingerprint,
        "last_error": error,
        "committed_at": state.at,
    }
