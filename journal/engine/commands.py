"""What the core of a run asks of its driver: it yields these, and is sent what they came to."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from runjournal.log.base import Event
from runjournal.log.store import Transaction

T = TypeVar("T")


Made: TypeAlias = Callable[[Transaction], tuple[Event, ...]]
"""Events that are made in the transaction that appends them: what else is done there commits with them, or not."""


@dataclass(frozen=True, slots=True)
class WithRun:
    """Events of the owner, and the first event of a new run, in one append: both are there, or neither.

    It is a `Made`, for a driver that knows nothing of it: nothing but the owner's events are made.
    """

    events: tuple[Event, ...]
    run_id: str
    queued: Event

    def __call__(self, _: Transaction) -> tuple[Event, ...]:
        return self.events


class Append(NamedTuple):
    """Append these events as the owner. Its outcome is the list of their records. A cancel never interrupts it."""

    events: tuple[Event, ...] | Made


class Ended(NamedTuple):
    """How a body ended: with a value or an error, or `cut` short, by its timeout or because its asker was cancelled.

    `cancelled` is the cancellation of the asker, whether or not it cut the body.
    """

    value: Any = None
    error: BaseException | None = None
    cut: Literal["", "timeout", "cancel"] = ""
    cancelled: BaseException | None = None


class Invoke(NamedTuple):
    """Run a body to its end. Its outcome is an `Ended`.

    What is `cuttable` is dropped when its asker is cancelled; anything else is waited for. `late` is told of a body
    that ends after it was cut. One that is `blocking` isn't a coroutine function: a loop runs it in a thread. A body
    that `leaves` is waited for even when it was cut: it has to release something first.
    """

    body: Callable[[], Any]
    cuttable: bool
    timeout_s: float | None
    late: Callable[[Ended], None]
    blocking: bool = True
    leaves: bool = False


class Until(NamedTuple):
    """Wait until `ready()` is true, or the run has stopped.

    Its outcome is False if `bound_s` passed first (None: no bound). Of the waits whose `turn` begins alike, none is
    ready before one with a smaller number behind: only that one has to be asked.
    """

    ready: Callable[[], object]
    bound_s: float | None
    turn: tuple[int, int] | None = None


Command: TypeAlias = Append | Invoke | Until
Verb: TypeAlias = Generator[Command, Any, T]
"""A verb of the core: yields commands, returns a T."""
