"""`AsyncJournal`: the same journal, running asyncio agents."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar, Unpack

from runjournal.engine import failures as f
from runjournal.engine.parts import RunParts
from runjournal.engine.tools import TOOL_CONTEXT
from runjournal.log.base import Json
from runjournal.writing import keys, purged
from runjournal.writing.appender import Batch

from . import naming
from .agent_code import agent_path, code_version
from .async_run import AsyncAgent, AsyncDriver, AsyncRun
from .body_telling import INTERRUPTS
from .children import JournalNursery
from .code_check import CodeCheck, CodeChecker, Watcher, both
from .journal import LEFT_ALONE, Journal, RunOptions, begin, unfinished
from .mistyped import check_run
from .patience import Patience, slept
from .runner import WAITS, Claim, Runner
from .tasks import in_thread, over
from .telling import tell, tell_all

T = TypeVar("T")


class AsyncJournal(Journal):
    """A journal whose `run_async` runs asyncio agents. Its other verbs are those of `Journal`, and don't wait.

    What an asyncio agent awaits is committed in another thread, together with what others append meanwhile: the loop
    goes on while the disk works. A cancel comes behind it.
    """

    async def run_async(
        self,
        agent: AsyncAgent,
        *,
        run_id: str | None = None,
        input: Json = None,
        retry: bool = False,
        wait_s: float = 0.0,
        **how: Unpack[RunOptions],
    ) -> Json:
        """Run an asyncio agent to its end, or go on where a run of this id was; see `Journal.run`."""
        if not inspect.iscoroutinefunction(agent) and not inspect.iscoroutinefunction(getattr(agent, "__call__", None)):  # noqa: B004 - an object may be one
            raise f.Mistake("the agent is no coroutine function: run it with Journal.run")
        run_id = await self._off_loop(partial(begin, self, agent, run_id, input, retry=retry, **how))
        return await AsyncRunner(self).run_async(agent, run_id, wait_s=wait_s)

    async def _off_loop(self, work: Callable[[], T]) -> T:
        """Do what appends, and may wait for the disk, in a thread; no cancel comes before its end."""
        return work() if self.store.sharing is None else await in_thread(work)

    async def recover_all_async(
        self, agents: Mapping[str, AsyncAgent], *, concurrency: int = 8
    ) -> dict[str, Json | BaseException]:
        """Go on with every run whose kind has an agent here, so many at a time; see `Journal.recover_all`."""
        places, found = asyncio.Semaphore(concurrency), dict[str, Json | BaseException]()

        async def go_on(run_id: str, agent: AsyncAgent) -> None:
            async with places:
                try:
                    found[run_id] = await AsyncRunner(self).run_async(agent, run_id, only_new=True)
                except LEFT_ALONE:
                    return
                except (Exception, f.Stop) as error:  # noqa: BLE001 - each run has its own end, and is told of
                    found[run_id] = error

        if self.on_waiting:
            await in_thread(partial(tell_all, self))
        async with asyncio.TaskGroup() as group:
            for run_id, kind in unfinished(self, agents):
                group.create_task(go_on(run_id, agents[kind]))
        return found

    async def check_async(self, agent: AsyncAgent, run_id: str) -> CodeCheck:
        """Return whether today's code of an asyncio agent can go on with a run; see `Journal.check`."""
        keys.check_there(self.store, naming.stem(run_id), "what the agent was told")
        purged.check_there(self.store, naming.stem(run_id))
        return await AsyncCodeChecker(self, agent, check_run(self, run_id)).check_async()


class AsyncRunner(Runner):
    """Runs asyncio agents, each in a task of its own, so that a cancel that came from outside is known."""

    async def run_async(self, agent: AsyncAgent, run_id: str, *, only_new: bool = False, wait_s: float = 0.0) -> Json:
        """Go on with a run, or say how it ended; see `Runner.run`."""
        patience = Patience(self.log, run_id, wait_s)
        while True:
            tried = list[Batch]()
            try:
                return await self._run_async(agent, run_id, tried, only_new=only_new)
            except BaseException as error:
                if isinstance(error, WAITS) and self.log.on_waiting:
                    await in_thread(partial(tell, self.log, run_id))
                elif not isinstance(error, Exception | f.Stop):
                    self.let_go(tried)
                pause_s = patience.pause_s(error)
                if pause_s is None:
                    raise
            await slept(self.log.clock, pause_s)

    async def _run_async(self, agent: AsyncAgent, run_id: str, tried: list[Batch], *, only_new: bool) -> Json:
        code = code_version(agent)
        work = partial(self.claim, run_id, code=code, agent=agent_path(agent), only_new=only_new, tried=tried)
        claim = work() if self.log.store.sharing is None else await in_thread(work)
        if claim is None:
            return self.outcome(run_id)
        driver, output = self.driver(claim), list[Json]()
        parts = self.parts(claim, driver, code)
        with self.owned(claim, over(driver.loop)):  # a loop that is closed goes on with nothing
            self.triage(parts)
            end = self._called(await self._own(agent, parts, driver), parts)
            await parts.core.drive(parts.core.append(end.event))
            output.append(end.told())
        return output[0] if output else self.outcome(run_id)

    def nursery(self) -> JournalNursery:
        """Return what runs the children of a run, each in a task of its own."""

        async def run(agent: AsyncAgent, run_id: str) -> None:
            TOOL_CONTEXT.set(None)  # of its own task
            await type(self)(self.log, self.tools, patience=self.patience).run_async(agent, run_id)

        return JournalNursery(self.log, run)

    def driver(self, claim: Claim) -> AsyncDriver:
        """Return the driver of a claim: its appends share commits, where the store's commits wait for something."""
        if (sharing := self.log.store.sharing) is None:
            return AsyncDriver(self.appending(claim))
        submit = partial(self.submit, claim.run_id, claim.epoch)
        return AsyncDriver(self.appending(claim), submit, sharing.wake)

    async def _own(self, agent: AsyncAgent, parts: RunParts, driver: AsyncDriver) -> Callable[[], Any]:
        """Call the agent, in a task; return a function that returns what the agent returned, or raises what left it."""
        core, steps = parts.core, parts.steps
        driver.begin()
        task = asyncio.get_running_loop().create_task(_call(agent, AsyncRun(parts, driver), driver))
        cancelled: BaseException | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                core.leave()
                task.cancel()
        left = asyncio.CancelledError() if task.cancelled() else task.exception() or task.result().interrupt
        if isinstance(left, INTERRUPTS):
            core.stop(left)  # it may have come before the block of a step was entered
        if steps.entry is not None and steps.entry.open:  # in a task that the agent left behind
            core.stop(f.StepOpen(f"the agent has ended, and step {steps.entry.step} is open in another task"))
            await driver.break_step(steps.entry)
        stop = core.stopped or (f.stop_in(left) if left else None)
        return lambda: _outcome(task, stop, left, cancelled)


class AsyncCodeChecker(CodeChecker, AsyncRunner):
    """Checks the code of an asyncio agent against the log of a run."""

    async def check_async(self) -> CodeCheck:
        """Check it on the loop that runs."""
        found = await self._lives_async(Watcher(self.reel()))
        if self.twice(found):
            return both(found, await self._lives_async(Watcher(self.whole())))
        return found

    async def _lives_async(self, watcher: Watcher) -> CodeCheck:
        while watcher.found is None:
            driver = AsyncDriver(watcher.append)
            parts = self.watched(watcher, driver)
            self.ended_so(watcher, parts, await self._own(self.agent, parts, driver))
        return watcher.found


class _Called(NamedTuple):
    """What an agent returned, or the interrupt that left it."""

    output: Any = None
    interrupt: BaseException | None = None


async def _call(agent: AsyncAgent, run: AsyncRun, driver: AsyncDriver) -> _Called:
    """Call the agent. An interrupt that leaves it is returned: raised here it would break the loop.

    A group raises again what has broken the loop in one of its tasks. That would break the loop's end, too, in which
    the run is released.
    """
    TOOL_CONTEXT.set(None)  # of its own task: a run inside a step of another one, whose tools aren't that step's
    try:
        output = await agent(run)
        await driver.end_step()
    except INTERRUPTS as interrupt:
        return _Called(interrupt=interrupt)
    return _Called(output)


def _outcome(
    task: asyncio.Task[_Called],
    stop: BaseException | None,
    error: BaseException | None,
    cancelled: BaseException | None,
) -> Any:
    if isinstance(stop, f.Suspend | f.Completed | f.Cancelled | f.Fenced):
        raise stop from error
    if stop is not None:
        raise cancelled or stop from error
    if isinstance(error, asyncio.CancelledError):
        raise TimeoutError("the agent was cancelled by itself") from error
    if error is not None:
        raise error
    return task.result().output
