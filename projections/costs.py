"""The cost ledger: tokens and money, per model and outcome. What is unknown is counted, never taken for zero.

Bounded: the first `models_max` model names have lines of their own, later ones share the line `…`; so do sources of
money in a currency. A count of tokens that passes 64 bits stays at their end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any, ClassVar, Final

from runjournal.log import events as e
from runjournal.log.base import Event, RecordedEvent
from runjournal.log.limits import int_max, models_max
from runjournal.log.store import Bill

from . import bills
from .usage import KINDS, UNSPLIT, is_whole

MONEY: Final = Context(prec=60)
"""The context of every sum, whatever the program has set for itself."""
TOKENS: Final = (*KINDS, UNSPLIT, "cache_write_1h", "reasoning")
"""The counters of a line; the last two are parts of others."""
ADDED: Final = (*KINDS, UNSPLIT)
OTHERS: Final = "…"
SYNTHETIC: Final = "<synthetic>"
"""The model of messages that Claude Code has made up itself: they cost nothing."""


def add(left: str, right: str) -> str:
    """Return the exact sum of two amounts of money, as decimal text."""
    return format(MONEY.add(Decimal(left), Decimal(right)), "f")


@dataclass(slots=True)
class Costs:
    """The cost ledger of a run; see the module.

    `lines` are {model: {completed|failed|lost|recorded: {calls, input, output, cache_read, cache_write, unsplit,
    cache_write_1h, reasoning, without_usage, partial, unpriced}}}: tokens, and how many calls told no usage, or not all
    of it, or no cost. A usage that contradicts itself is none. `money` is {currency: {source: amount}}: what was
    `reported`; else by a list of prices, `estimated`, or `list` of what was recorded elsewhere. A tool that told its
    tokens has the line `tool:NAME`; `recorded` are tokens told beside the calls.
    """

    VERSION: ClassVar[int] = 4

    lines: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict[str, dict[str, dict[str, int]]])
    money: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    billed: list[Bill] | None = field(default=None, compare=False, repr=False)
    """Where the rows of `bills` go as they come about, if somebody wants them; no part of the state."""

    def on_model(self, model: str, event: e.ModelCompleted | e.ModelFailed) -> None:
        """Add a model call that ended; a failed one may have cost something too."""
        line = self._line(model, "completed" if isinstance(event, e.ModelCompleted) else "failed")
        if event.usage is None or "unmeasured" in event.usage:
            line["without_usage"] += 1
        else:
            _count(line, event.usage)
        price = event.price or {}
        if event.cost is not None:
            self._add(event.cost["currency"], event.cost["source"], event.cost["amount"])
        elif "amount" in price:
            self._add(price["currency"], price["source"], price["amount"])
        else:
            line["unpriced"] += 1

    def on_recounted(self, record: RecordedEvent, event: e.ModelRecounted) -> None:
        """Take what was told of a call's usage back, and add what is told now."""
        before = self._line(event.was_model or event.model, "completed", calls=0)
        after = self._line(event.model, "completed", calls=0)
        if event.was is None:
            before["without_usage"] = max(before["without_usage"] - 1, 0)
        else:
            for name in TOKENS:
                before[name] = max(before[name] - event.was.get(name, 0), 0)
        if before is not after:
            before["calls"] = max(before["calls"] - 1, 0)
            after["calls"] += 1
        _count(after, event.usage)
        was, now = event.was_price or {}, event.price or {}
        if "amount" in was:
            self._add(was["currency"], was["source"], format(-Decimal(was["amount"]), "f"))
        else:
            before["unpriced"] = max(before["unpriced"] - 1, 0)
        if "amount" in now:
            self._add(now["currency"], now["source"], now["amount"])
        else:
            after["unpriced"] += 1
        if self.billed is not None:
            self.billed.append(bills.of_recounted(record, event))

    def on_lost(self, model: str) -> None:
        """Add an attempt whose process died before it ended: nobody knows what it has cost.

        The call was sent anew.
        """
        line = self._line(model, "lost")
        line["without_usage"] += 1
        line["unpriced"] += 1

    def on_tool(self, tool: str, event: e.ToolCompleted | e.ToolFailed) -> None:
        """Add what a call of a tool has told of its tokens and its price; most tell nothing, and cost nothing."""
        if event.usage is not None:
            _count(
                self._line(f"tool:{tool}", "completed" if isinstance(event, e.ToolCompleted) else "failed"), event.usage
            )
        if event.cost is not None:
            self._add(event.cost["currency"], event.cost["source"], event.cost["amount"])

    def _line(self, model: str, outcome: str, *, calls: int = 1) -> dict[str, int]:
        if model not in self.lines and len(self.lines) >= models_max:
            model = OTHERS
        line = self.lines.setdefault(model, {}).setdefault(outcome, _empty())
        line["calls"] += calls
        return line

    def on_money(self, record: RecordedEvent, event: e.CostRecorded | e.CostRepriced) -> None:
        """Add money beside the calls, and tokens if it tells any; or a correction."""
        if isinstance(event, e.CostRecorded) and event.usage is not None:
            _count(self._line(event.model or "unknown", "recorded", calls=0), event.usage)
        self._add(event.currency, event.source, event.amount)
        if self.billed is not None:
            self.billed.append(bills.of_money(record, event))

    def on_purged(self, _: RecordedEvent, event: e.RunPurged) -> None:
        """Take the ledger of a run that was purged."""
        self.lines = {
            model: {outcome: {**_empty(), **line} for outcome, line in outcomes.items()}
            for model, outcomes in event.lines.items()
        }
        self.money = {currency: dict(sources) for currency, sources in event.money.items()}

    def _add(self, currency: str, source: str, amount: str) -> None:
        sources = self.money.setdefault(currency, {})
        if source not in sources and len(sources) >= models_max:
            source = OTHERS
        sources[source] = add(sources.get(source, "0"), amount)

    def usage(self) -> dict[str, dict[str, int]]:
        """Return {model: {input, output, cache_read, cache_write}} of the models that told any usage.

        All outcomes are counted together. What nobody knows to have been cached or not is input here.
        """
        total: dict[str, dict[str, int]] = {}
        for model, outcomes in sorted(self.lines.items()):
            lines = outcomes.items()
            told = [line for outcome, line in lines if line["calls"] > line["without_usage"] or outcome == "recorded"]
            if told:
                total[model] = {name: sum(line[name] for line in told) for name in KINDS}
                total[model]["input"] += sum(line[UNSPLIT] for line in told)
        return total

    def tokens(self) -> int:
        """Return all tokens that were told, in and out; a lower bound if `unknown` isn't zero."""
        lines = (line for outcomes in self.lines.values() for line in outcomes.values())
        return min(sum(sum(line[n] for n in ADDED) for line in lines), int_max)

    def amount(self, currency: str) -> Decimal:
        """Return the money spent in a currency, all sources together; a lower bound if `unpriced` isn't zero."""
        total = "0"
        for amount in self.money.get(currency, {}).values():
            total = add(total, amount)
        return Decimal(total)

    def unknown(self, model: str | None = None) -> int:
        """Return how many calls, of a model or of all, didn't tell all of their tokens: sums without them are less."""
        lines = self.lines.get(model, {}) if model is not None else None
        found = (
            lines.values() if lines is not None else (line for each in self.lines.values() for line in each.values())
        )
        return sum(line["without_usage"] + line["partial"] for line in found)

    def unpriced(self) -> int:
        """Return how many calls nobody knows the price of; a sum of money without them is less than what was spent."""
        return sum(
            line["unpriced"]
            for model, outcomes in self.lines.items() if model != SYNTHETIC for line in outcomes.values()
        )  # fmt: skip

    def count(self, what: str) -> int:
        """Return how many calls there are of this kind: `calls`, `without_usage`, `partial` or `unpriced`."""
        return sum(line[what] for outcomes in self.lines.values() for line in outcomes.values())

    def dump(self) -> dict[str, Any]:
        """Return the ledger as a JSON value."""
        return {"lines": self.lines, "money": self.money}

    @classmethod
    def load(cls, data: dict[str, Any]) -> Costs:
        """Return the ledger that `dump` made this value of."""
        return cls(data["lines"], data["money"])


def _count(line: dict[str, int], usage: Mapping[str, Any]) -> None:
    line["partial"] += not is_whole(usage)
    if "unmeasured" in usage:
        return
    for name in TOKENS:
        line[name] = min(line[name] + usage.get(name, 0), int_max)


def _empty() -> dict[str, int]:
    return dict.fromkeys((*TOKENS, "calls", "without_usage", "partial", "unpriced"), 0)


HANDLERS: Final[Mapping[type[Event], Any]] = {
    e.CostRecorded: Costs.on_money,
    e.CostRepriced: Costs.on_money,
    e.ModelRecounted: Costs.on_recounted,
    e.RunPurged: Costs.on_purged,
}
