"""The parts that a run is made of: for its verbs, its views and its runner. An agent sees none of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from runjournal.log.base import BlobRef, Event, Json
from runjournal.log.codec import dumps
from runjournal.log.shapes import kind_of
from runjournal.projections.plan import Task
from runjournal.projections.prompt import Fingerprints
from runjournal.projections.transcript import CONTEXT_TYPES, Message, MessageWalk

from . import failures as f
from .brief import Past, brief_text
from .callees import ModelTarget
from .calls import Caller
from .children import ChildCalls, Nursery
from .commands import Verb
from .core import Core
from .driver import finished
from .media import RunMedia
from .price_list import LIST, PriceList
from .requests import AskedRequests
from .resuming import ResumeReport, prompt_words
from .timers import Timers

T = TypeVar("T")


class LentValues:
    """Values of the memory that a step was given, as they were then: one that is changed in place is told to no log."""

    def __init__(self) -> None:
        self._lent: list[tuple[str, Any, bytes]] = []

    def lend(self, key: str, value: Json) -> None:
        """Remember what was handed out."""
        if kind_of(value) in (dict, list):
            self._lent.append((key, value, dumps(value)))

    def forget(self, key: str) -> None:
        """The key was assigned: what was handed out before counts no more."""
        self._lent = [lent for lent in self._lent if lent[0] != key]

    def clear(self) -> None:
        """The step is over: what it was given counts no more."""
        self._lent.clear()

    def check(self) -> None:
        """Raise MemoryMutated if a value was changed in place."""
        lent, self._lent = self._lent, []
        for key, value, before in lent:
            if dumps(value) != before:
                raise f.MemoryMutated(f"run.memory[{key!r}] was changed in place: assign it, so that the log knows")


class ReadMessages:
    """The messages of a run, as far as its log was read: what an agent looks at in each turn is read once."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._walk = MessageWalk()
        self._upto = 0
        self._settled: list[Message] = []

    def messages(self, *, inside: bool) -> list[Message]:
        """Return those that are committed; `inside`: those of the open step, too. Nobody may change their values."""
        head = self._core.state.seq
        if head > self._upto:
            for record in self._core.lineage.records(CONTEXT_TYPES, self._upto):
                if record.seq <= head or record.run_id != self._core.lineage.run_id:
                    self._settled += [item for item in self._walk.settled(record) if isinstance(item, Message)]
            self._upto = head
        unsettled = self._walk.unsettled if inside else ()
        return self._settled + [item._replace(committed=False) for item in unsettled if isinstance(item, Message)]


class RunParts:
    """The parts of one run in one process, and what several of them do together."""

    def __init__(
        self,
        caller: Caller,
        media: RunMedia,
        nursery: Nursery,
        *,
        store_requests: bool = True,
        past: Past,
        prices: PriceList = LIST,
    ) -> None:
        self.core = caller.core
        self.core.media = media
        self.steps = caller.steps
        self.caller = caller
        self.children = ChildCalls(caller, nursery)
        self.timers = Timers(caller)
        self.lent = LentValues()
        self.prices = prices
        self.requests = AskedRequests(parts=not store_requests, newest=self.core.lineage.newest_request)
        self.past = past
        self.pinned: Fingerprints | None = None  # the prompt that the agent has pinned in this process
        self._read = ReadMessages(self.core)

    def priced(self, target: ModelTarget) -> ModelTarget:
        """Return a model that says by this run's list what its answers cost."""
        clock = self.core.lineage.clock
        target.price_of = lambda usage, models: self.prices.price(target.provider, models, clock.now(), usage)
        return target

    def drive(self, verb: Verb[T]) -> T:
        """Run a verb that blocks, or waits for nothing but appends."""
        return finished(self.core.drive(verb, waits=False))

    def resumed(self) -> ResumeReport | None:
        """What the owner at work goes on from, its prompt compared with what was pinned here."""
        told = self.past.report()
        if told is None or told.prompt != "not compared" or self.pinned is None:
            return told
        return replace(told, prompt=prompt_words(self.past.prompt(), self.pinned))

    def brief(self) -> str:
        """Where the plan stands, as text for a model."""
        return brief_text(self.tasks(), self.past.basis(self.core.state))

    # The context: inside a step what the step has made of it, outside what is committed.

    def note(self, event: Event) -> None:
        """Append an event of the context to the overlay of the open step. Raises NotInStep."""
        self.core.alive()
        if self.steps.here is None:
            raise f.NotInStep("messages, memory and plan are written inside a step: `with run.step(name):`")
        self.drive(self.core.append(event))

    def memory(self) -> dict[str, Json]:
        """The working memory; values held out of line are references."""
        self.core.looked = True
        memory = self.core.state.memory
        return memory.view if self.steps.inside else memory.committed

    def value(self, value: Json) -> Json:
        """A value of it, if that is held out of line, too."""
        return self.core.lineage.blob(value) if isinstance(value, BlobRef) else value

    def tasks(self) -> list[Task]:
        """The tasks of the plan."""
        self.core.looked = True
        plan = self.core.state.plan
        return [dict(task) for task in (plan.view if self.steps.inside else plan.base)]

    def messages(self) -> list[Message]:
        """The messages of the transcript; their values are nobody's to change."""
        self.core.looked = True
        return self.core.locked(lambda: self._read.messages(inside=self.steps.inside))
