"""Hypothesis strategies for values, events and whole runs. Needs the extra `testing`.

>>> @given(run_events())
... def test_my_projection(events): ...
"""

from __future__ import annotations

import random

from hypothesis import strategies as st

from runjournal.log.base import Event, Json, registered
from runjournal.log.limits import int_max, int_min

from . import generate
from .generate import Written


def text() -> st.SearchStrategy[str]:
    """Return a strategy for any text that is valid Unicode, NUL and control characters included."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def json_values(max_leaves: int = 8) -> st.SearchStrategy[Json]:
    """Return a strategy for any value that the log stores."""
    leaves = (
        st.none() | st.booleans() | st.integers(int_min, int_max) | st.floats(allow_nan=False, allow_infinity=False)
    )
    return st.recursive(
        leaves | text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text(), inner, max_size=3),
        max_leaves=max_leaves,
    )


def seeds() -> st.SearchStrategy[random.Random]:
    """Return a strategy for sources of chance, by their seed."""
    return st.integers(0, 2**32 - 1).map(random.Random)


def any_event() -> st.SearchStrategy[Event]:
    """Return a strategy for events of every type that this package has, legal or not at their place."""
    own = [cls for name, cls in sorted(registered().items()) if not name.startswith("x.")]
    return st.builds(generate.event, seeds(), st.sampled_from(own))


def run_events(max_size: int = 60) -> st.SearchStrategy[list[Written]]:
    """Return a strategy for the events of a run as the guarded append lets them through.

    Each event comes with its writer's epoch.
    """
    return st.builds(generate.run, seeds(), st.integers(1, max_size))
