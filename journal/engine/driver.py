"""A driver performs what the core of a run asks for: in plain threads (`run.py`), or on an asyncio loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from . import failures as f
from .callees import Target
from .commands import Command
from .script import Entry

T = TypeVar("T")


class Driver(Protocol):
    """What differs between threads and tasks.

    What may wait is a coroutine, so that it is written once for both: a driver of plain threads blocks in it instead,
    and it is over at its first step (`finished`).
    """

    @property
    def cancellation(self) -> type[BaseException]:
        """What is raised in a body that is cancelled, by itself or with its task."""
        ...

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held while a verb runs; a command may let go of it."""
        ...

    async def perform(self, command: Command) -> Any:
        """Do what a verb asks for; return what it comes to."""
        ...

    def check(self, target: Target) -> None:
        """Raise Mistake for what can't be called here: nobody would await the body of a coroutine function."""
        ...

    async def value(self, who: str, value: Any) -> Any:
        """What a function of the agent's gave, awaited if need be. Raises Mistake for what nobody would await."""
        ...

    # Who asks, and who is told.

    def alone(self) -> bool:
        """Whether nobody else can ask: no task or thread was made since the step began."""
        ...

    def current(self) -> object:
        """Who asks: the task or thread."""
        ...

    def ring(self) -> None:
        """Look again: something that is waited for may have come."""
        ...

    def settle(self) -> None:
        """Somebody was told something: let him do what he will do at once, before `calm` is true again."""
        ...

    @property
    def calm(self) -> bool:
        """Whether nobody was told anything in the last turns."""
        ...

    # The step of a context.

    def begin_step(self) -> None:
        """A step begins: who is there now isn't of it."""
        ...

    async def end_step(self, entry: Entry) -> None:
        """Its body is over, and nothing has gone wrong. Raises NotAwaited."""
        ...

    async def break_step(self, entry: Entry, error: BaseException | None = None) -> None:
        """Something, the `error`, left its body: return when nothing of it is in flight."""
        ...

    def abandon_step(self, stop: Callable[[], None]) -> None:
        """Its body was closed by the generator that it is in: `stop` the run, if anybody is there to be told."""
        ...

    def forget_step(self, entry: Entry) -> None:
        """It is over, however it ended."""
        ...


def finished(work: Coroutine[Any, Any, T]) -> T:
    """Run to its end what waits for nothing, or blocks. Raises Mistake for what would have to be awaited."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    work.close()
    raise f.Mistake("this verb waits: it must be awaited")
