"""Commands that go on until somebody stops them: Ctrl-C or SIGTERM ends them once the work at hand is done."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType
from typing import Any, Final, Self

_ASKING: Final = (signal.SIGINT, signal.SIGTERM)


class EndAsked:
    """Whether somebody has asked to end, while it is open; a second Ctrl-C ends at once."""

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        self._before: dict[int, Any] = {number: signal.signal(number, self._ask) for number in _ASKING}
        return self

    def __exit__(self, *_: object) -> None:
        self._put_back()
        os.close(self._reader)
        os.close(self._writer)

    def _ask(self, _: int, __: FrameType | None) -> None:
        os.write(self._writer, b".")  # a flag alone would be seen only after the pause
        self._put_back()

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self, wait_s: float) -> bool:
        """Return whether somebody has asked, after waiting for that up to so long."""
        return bool(select.select([self._reader], [], [], wait_s)[0])
