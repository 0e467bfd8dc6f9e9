"""How patient a journal is: with runs that don't get on, and with calls in flight when a run leaves its process."""

from __future__ import annotations

import math
from typing import NamedTuple

from runjournal.log import limits
from runjournal.log.errors import InvalidArgument


class StopLimits(NamedTuple):
    """The settings of `Journal.open` of these names."""

    recoveries_max: int = limits.recoveries_max
    attempt_recoveries_max: int = limits.attempt_recoveries_max
    grace_s: float = limits.grace_s

    def checked(self) -> StopLimits:
        """Return the same. Raises InvalidArgument for what can't be a bound."""
        for name in ("recoveries_max", "attempt_recoveries_max"):
            count: object = getattr(self, name)
            if type(count) is not int or count < 0:
                raise InvalidArgument(f"{name}: expected a whole number from 0, got {count!r}"[:120])
        grace: object = self.grace_s
        if type(grace) not in (int, float) or not 0 <= self.grace_s < math.inf:
            raise InvalidArgument(f"grace_s: expected seconds from 0, got {grace!r}"[:120])
        return self
