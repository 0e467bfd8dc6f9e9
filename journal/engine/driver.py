"""A driver performs what the core of a run asks for: in plain threads (`run.py`), or on an asyncio loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from runjournal.log.base import Event, RecordedEvent

from . import failures as f
from .callees import Target
from .commands import Command, Made
from .script import Entry

T = TypeVar("T")


class Driver(Protocol):
    """What differs between threads and tasks.

    What may wait is a coroutine, so that it is written once for both: a driver of plain threads blocks in it instead,
    and it is over at its first step (`finished`).
    """

    @property
    def awaits(self) -> bool:
        """Return whether it awaits coroutines, on a loop."""
        ...

    @property
    def cancellation(self) -> type[BaseException]:
        """Return the class of what is raised in a body that is cancelled, by itself or with its task."""
        ...

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Return the lock that is held while a verb runs; a command may let go of it."""
        ...

    def unlock(self) -> None:
        """Let go of the lock and the floor, if the asker has them: an interrupt at their edge may have left him so."""
        ...

    def told_again(self, stop: BaseException) -> BaseException:
        """Return what tells of a stop once more: whoever has swallowed it, and whoever else asks."""
        ...

    @property
    def at_once(self) -> Callable[[tuple[Event, ...] | Made], list[RecordedEvent]] | None:
        """Return what appends as the owner without waiting; None if `perform` has to be asked, which may wait."""
        ...

    @property
    def append_now(self) -> Callable[[tuple[Event, ...] | Made], list[RecordedEvent]]:
        """Return what appends as the owner for a verb that can't be asked to wait."""
        ...

    @property
    def leaving(self) -> bool:
        """Return whether the run's caller was cancelled: maybe he hasn't been told yet."""
        ...

    # The floor: a verb has it while its append is under way, and until it waits for something else.

    @property
    def taken(self) -> bool:
        """Return whether somebody has the floor; where nobody waits for an append, nobody ever has."""
        ...

    async def take_floor(self, *, through: bool = False) -> None:
        """Wait until the asker has the floor, in the order of asking; `through`: a cancel comes behind that."""
        ...

    def give_floor(self) -> None:
        """Give the floor to the next one, if the asker has it."""
        ...

    def absorbed(self) -> BaseException | None:
        """Return the cancel of the asker that came while he waited for an append; once."""
        ...

    def leave_floor(self, *, cancelled: bool) -> None:
        """The asker's verb is over: give the floor on; `cancelled`: such a cancel is raised where he waits next."""
        ...

    async def perform(self, command: Command) -> Any:
        """Perform a command that a verb yields; return its outcome."""
        ...

    def check(self, target: Target) -> None:
        """Raise Mistake for what can't be called here: nobody would await the body of a coroutine function."""
        ...

    async def value(self, who: str, value: Any) -> Any:
        """Return what a function of the agent's returned, awaited if need be.

        Raises Mistake for what nobody would await.
        """
        ...

    async def together(self, works: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        """Do some things at the same time, where a driver can; return what they came to, in order.

        Raises what leaves one of them, once all are over.
        """
        ...

    # Who asks, and who is told.

    def alone(self) -> bool:
        """Return whether nobody else can ask: no task or thread was made since the step began."""
        ...

    def current(self) -> object:
        """Return who asks: the task or thread."""
        ...

    def ring(self) -> None:
        """Wake all who wait: what they wait for may have come."""
        ...

    def settle(self) -> None:
        """Let somebody who was just told something act on it, before `calm` is true again."""
        ...

    @property
    def calm(self) -> bool:
        """Return whether nobody was told anything in the last turns."""
        ...

    @property
    def working(self) -> bool:
        """Return whether somebody else of the step is between two verbs, where that is known (engine.md W26)."""
        ...

    # The step of a context.

    def begin_step(self, entry: Entry) -> None:
        """Begin a step: tasks and threads that are there now don't belong to it."""
        ...

    async def end_step(self, entry: Entry) -> None:
        """Check the end of a step whose body is over without an error. Raises NotAwaited."""
        ...

    async def break_step(self, entry: Entry, error: BaseException | None = None) -> None:
        """Something, the `error`, left its body: return when nothing of it is in flight."""
        ...

    def abandon_step(self, stop: Callable[[], None]) -> None:
        """Stop the run with `stop`, if anybody is there to be told: the generator that holds the step was closed."""
        ...

    def forget_step(self, entry: Entry) -> None:
        """Forget the step: it is over, however it ended."""
        ...


def finished(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end that blocks or waits for nothing. Raises Mistake for what would have to be awaited."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    work.close()
    raise f.Mistake("this verb waits: it must be awaited")
