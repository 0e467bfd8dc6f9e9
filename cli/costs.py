"""What a run has cost, and what its sub-agents have, for people."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from .formats import amount, at_least, money, plural
from .output import Column, styled, table
from .safe import line

if TYPE_CHECKING:
    from runjournal.looking.family import Family
    from runjournal.projections.state import RunState

_TOKENS: Final = ("input", "output", "cache_read", "cache_write")
_COLUMNS: Final = (
    Column("MODEL", flex=True),
    *(Column(name, right=True) for name in ("CALLS", "INPUT", "OUTPUT", "CACHE READ", "CACHE WRITE", "TOTAL")),
)


def cost_rows(state: RunState, indent: str) -> Iterator[str]:
    """Calls and tokens by model, and in all; nothing, if no model told any."""
    rows: dict[str, list[int]] = {}
    for model, told in state.costs.usage().items():
        calls = sum(found["calls"] for found in state.costs.lines[model].values())
        rows[model] = [calls, *(told[name] for name in _TOKENS)]
    if rows:
        rows["TOTAL"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    unknown = {model: state.costs.unknown(None if model == "TOTAL" else model) > 0 for model in rows}
    shown = (
        (model, *(amount(number) for number in row), at_least(amount(sum(row[1:])), unknown[model]))
        for model, row in rows.items()
    )
    yield from table(_COLUMNS, shown, indent)


def cost_notes(state: RunState) -> Iterator[str]:
    """Money by its source, and what isn't known."""
    unpriced = state.costs.unpriced()
    told = [
        f"{at_least(money(value), unpriced > 0)} {line(currency)} {line(source)}"
        for currency, sources in sorted(state.costs.money.items())
        for source, value in sorted(sources.items())
    ]
    if told:
        yield ", ".join(told)
    if untold := state.costs.count("without_usage"):
        yield styled(f"{plural(untold, 'call')} told no usage", "warn")
    if partial := state.costs.count("partial"):
        yield styled(f"{plural(partial, 'call')} told a part of the usage only", "warn")
    if unpriced:
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
