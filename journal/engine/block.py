"""The block of a step: from its begin to its end, whatever leaves its body. Written once, for threads and tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Token
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias

from runjournal.log.base import Json

from . import failures as f
from .driver import Driver, finished
from .script import Entry
from .steps import StepControl
from .tools import TOOL_CONTEXT, Tool, ToolContext

CallHere: TypeAlias = Callable[[Tool[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]
"""Where a tool goes that is called as a function, with its args and kwargs, in the step of a context."""


class Asked(NamedTuple):
    """Which step is asked for. `blind`: the turn of a loop that another process began."""

    id: str
    name: str
    kind: str
    key: str | int | None = None
    blind: bool = False


class Inside(NamedTuple):
    """The step of a context: what a tool that is called there goes to, by `call(tool, args, kwargs)`."""

    entry: Entry
    call: CallHere

    def call_tool(self, tool: Tool[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make the call, journalled."""
        return self.call(tool, args, kwargs)


class StepBlock:
    """The block of an open step, for `with` and `async with`. `result` is what a `do` came to.

    `check` raises what is wrong with a body that is over; `forget` is called when the step is over.
    """

    def __init__(
        self,
        steps: StepControl,
        asked: Asked,
        call: CallHere,
        check: Callable[[], None],
        forget: Callable[[], None],
    ) -> None:
        self.result: Json = None
        self._steps = steps
        self._core = steps.core
        self._driver: Driver = steps.core.driver
        self._asked = asked
        self._call = call
        self._check = check
        self._forget = forget
        self._entry: Entry
        self._token: Token[ToolContext | None]

    def __enter__(self) -> Self:
        finished(self._begin())
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        finished(self._end(error))

    async def __aenter__(self) -> Self:
        await self._begin()
        if (late := self._driver.absorbed()) is not None:  # as if it had come in the body
            await self._end(late)
            raise late
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._end(error)

    async def _begin(self) -> None:
        step_id, name, kind, key, blind = self._asked
        begin = self._steps.begin(step_id, name, kind, None if key is None else str(key), blind=blind)
        self._entry = await self._core.drive(begin, cancelled=False)
        self._driver.begin_step(self._entry)
        self._token = TOOL_CONTEXT.set(Inside(self._entry, self._call))

    async def _end(self, error: BaseException | None) -> None:
        try:
            if error is None:
                await self._complete()
            else:
                await self._leave(error)
        finally:
            self._driver.forget_step(self._entry)
            self._forget()
            self._steps.leave(self._entry)
            with suppress(ValueError):  # closed from another context
                TOOL_CONTEXT.reset(self._token)

    async def _complete(self) -> None:
        try:
            await self._driver.end_step(self._entry)
            self._check()
            await self._core.drive(self._steps.complete(self._entry, self.result), cancelled=False)
        except BaseException as error:
            await self._leave(error)
            raise
        if (late := self._driver.absorbed()) is not None:
            raise late  # the step is complete all the same

    async def _leave(self, error: BaseException) -> None:
        """Handle what leaves a step: a stop leaves it open; else it fails, once none of its calls is in flight.

        Raises what its caller is told; if that is the error itself, returns.
        """
        core, driver = self._core, self._driver
        if isinstance(error, GeneratorExit):
            driver.abandon_step(partial(self._steps.left_half_way, self._entry))
            return
        stop = core.stopped or f.stop_in(error)
        cancelled = isinstance(error, driver.cancellation)
        if stop is None and core.leaving:
            stop = core.leave()
        if stop is None and not (isinstance(error, Exception) or cancelled):
            stop = error
        if stop is not None:
            core.stop(stop)  # whoever is in flight is told at his next verb
        await driver.break_step(self._entry, error)
        stop = core.stopped or stop
        if stop is not None:  # the step stays open
            if stop is error or (cancelled and core.leaving):
                return
            raise driver.told_again(stop) from error
        leaf = TimeoutError("the step was cancelled") if cancelled else error
        failure = await core.drive(self._steps.fail(self._entry, leaf, cut=cancelled))
        if cancelled:  # swallowing it would break the timeout or the group that sent it
            return
        raise failure from error
