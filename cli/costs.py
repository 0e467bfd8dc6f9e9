"""What a run has cost, and what its sub-agents have, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from .output import Column, amount, money, plural, styled, table
from .safe import line

if TYPE_CHECKING:
    from runjournal.glances import Family
    from runjournal.projections.state import RunState

_TOKENS: Final = ("input", "output", "cache_read", "cache_write")
_COLUMNS: Final = (
    Column("MODEL", flex=True),
    *(Column(name, right=True) for name in ("CALLS", "INPUT", "OUTPUT", "CACHE READ", "CACHE WRITE", "TOTAL")),
)
_UNPRICED: Final = "<synthetic>"
"""The model of messages that Claude Code has made up itself: they cost nothing."""


def cost_rows(state: RunState, indent: str) -> Iterator[str]:
    """Calls and tokens by model, and in all; nothing, if no model told any."""
    usage = state.costs.usage()
    rows = [
        (model, sum(line_["calls"] for line_ in state.costs.lines[model].values()), *(told[name] for name in _TOKENS))
        for model, told in usage.items()
    ]
    if rows:
        rows.append(("TOTAL", *(sum(column) for column in list(zip(*rows, strict=True))[1:])))
    yield from table(_COLUMNS, (_shown(row) for row in rows), indent)


def _shown(row: Sequence[object]) -> Sequence[object]:
    model, calls, *tokens = row
    numbers = [number for number in (calls, *tokens) if isinstance(number, int)]
    return model, *(amount(number) for number in (*numbers, sum(numbers[1:])))


def cost_notes(state: RunState) -> Iterator[str]:
    """Money by its source, and what isn't known."""
    told = [
        f"{money(value)} {line(currency)} {line(source)}"
        for currency, sources in sorted(state.costs.money.items())
        for source, value in sorted(sources.items())
    ]
    if told:
        yield ", ".join(told)
    if untold := state.costs.count("without_usage"):
        yield styled(f"{plural(untold, 'call')} told no usage", "warn")
    lines = {model: found for model, found in state.costs.lines.items() if model != _UNPRICED}
    if unpriced := sum(found["unpriced"] for outcomes in lines.values() for found in outcomes.values()):
        yield styled(f"{plural(unpriced, 'call')} without a price", "dim")


def family_note(state: RunState, found: Family, command: str) -> Iterator[str]:
    """What the sub-agents have cost beside the run, in a line; nothing, if it has none."""
    if not found.runs:
        return
    count = f"{found.runs:,}{'+' if found.more else ''} sub-agent{'' if found.runs == 1 else 's'}"
    least = "at least " if found.more or found.uncounted else ""
    text = f"{count} {'has' if found.runs == 1 else 'have'} {least}{amount(found.tokens)} more tokens"
    text += "".join(f" and {money(value)} {line(currency)}" for currency, value in found.cost.items())
    text += f", {amount(state.costs.tokens() + found.tokens)}"
    for currency in sorted({*found.cost, *state.costs.money}):
        both = state.costs.amount(currency) + Decimal(found.cost.get(currency, "0"))
        text += f" and {money(str(both))} {line(currency)}"
    text += f" with {'it' if found.runs == 1 else 'them'}"
    if found.in_flight:
        text += f", {plural(found.in_flight, 'call')} in flight"
    yield styled(f"{text}; {line(command)}", "warn")
