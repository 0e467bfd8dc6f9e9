"""The plan: the tasks that the agent has set itself, in order; committed, and as the open step has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from runjournal.log import events as e
from runjournal.log.base import Event, RecordedEvent

Task = dict[str, Any]


@dataclass(slots=True)
class Plan:
    """The plan. Tasks are {id, title, status, note?}; an update that names no task of the plan changes nothing."""

    VERSION: ClassVar[int] = 1

    base: list[Task] = field(default_factory=list[Task])
    overlay: list[Task] | None = None

    @property
    def view(self) -> list[Task]:
        """Return what the open step sees; the committed plan if none is open."""
        return self.base if self.overlay is None else self.overlay

    @property
    def tasks(self) -> list[Task]:
        """Return copies of the tasks of `view`."""
        return [dict(task) for task in self.view]

    def next(self) -> Task | None:
        """Return the first task that is being done, else the first to do, or None."""
        for status in ("doing", "todo"):
            for task in self.view:
                if task["status"] == status:
                    return dict(task)
        return None

    def on_queued(self, _: RecordedEvent, event: e.RunQueued) -> None:
        """Take the plan that a run begins with."""
        if event.plan is not None:
            self.base = [dict(task) for task in event.plan]

    def on_set(self, _: RecordedEvent, event: e.PlanSet) -> None:
        """Replace the whole plan."""
        tasks = [dict(task) for task in event.tasks]
        if self.overlay is None:
            self.base = tasks
        else:
            self.overlay = tasks

    def on_updated(self, _: RecordedEvent, event: e.PlanUpdated) -> None:
        """Change one task."""
        tasks = self.view
        for place, task in enumerate(tasks):
            if task["id"] == event.task_id:
                tasks[place] = task | {"status": event.status} | ({} if event.note is None else {"note": event.note})
                break

    def begin(self) -> None:
        """Begin a step: it starts from the committed plan."""
        self.overlay = list(self.base)

    def commit(self) -> None:
        """Commit what the step has changed: it completed."""
        if self.overlay is not None:
            self.base, self.overlay = self.overlay, None

    def drop(self) -> None:
        """Drop what the step has changed: it failed."""
        self.overlay = None

    def dump(self) -> dict[str, Any]:
        """Return the plan as a JSON value."""
        return {"base": self.base, "overlay": self.overlay}

    @classmethod
    def load(cls, data: dict[str, Any]) -> Plan:
        """Return the plan that `dump` made this value of."""
        return cls(data["base"], data["overlay"])


HANDLERS: Final[Mapping[type[Event], Any]] = {
    e.RunQueued: Plan.on_queued,
    e.PlanSet: Plan.on_set,
    e.PlanUpdated: Plan.on_updated,
}
