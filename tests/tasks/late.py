"""Commits that come late, on virtual time: what an asyncio run appends is committed some turns later."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any


class _Shared:
    """A transaction that several appends may share; an event that would go by itself goes the long way."""

    written, failed = 0, None

    def __init__(self, tx: Any) -> None:
        self._tx = tx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def append_alone(self, _: Any) -> None:
        return None

    def settled(self, _: str) -> bool:
        return True


class LateCommits:
    """What takes appends as the committer of a store does, and commits them in the loop's thread, each by itself."""

    delays = (0.0, 0.0, 0.001, 0.05)

    def __init__(self, transact: Callable[..., Any], seed: int = 0) -> None:
        self._transact, self._random, self._line = transact, random.Random(seed), list[Any]()
        self.committed = 0

    def crowded(self, *, durable: bool) -> bool:
        return bool(self._line)

    def add(self, work: Any) -> None:
        self._line.append(work)
        work._states.fly(work.run_id, self.commit)  # whoever reads the state can't wait for a thread

    def wake(self) -> None:
        asyncio.get_running_loop().call_later(self._random.choice(self.delays), self.commit)

    def wait(self, work: Any, heard: Callable[[float], bool]) -> None:
        self._line.append(work)
        self.commit()
        assert heard(0.0)

    def commit(self) -> None:
        line, self._line = self._line, []
        for work in line:
            try:
                self._transact(lambda tx, work=work: work.decide(_Shared(tx)), durable=work.durable)
            except BaseException as error:  # noqa: BLE001 - its asker's
                work.undo()
                work.over(error)
            else:
                self.committed += 1
                work.over(None)
