"""What runs have cost, by run, line, tree, model, tool, step or day: the rows of `bills`, added up.

Each request to a provider is counted once, whatever became of it. A sum in which the money or the tokens of a request
aren't known is a lower bound, and says of how many; unknown is never zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from runjournal.log.clock import timestamp
from runjournal.log.errors import InvalidArgument, RunNotFound
from runjournal.log.head import Head
from runjournal.log.limits import cost_minutes_cached_max
from runjournal.log.store import Bill, Store, all_heads
from runjournal.projections.bills import COUNTERS, OPEN_STATUSES
from runjournal.projections.copies import joined, of_bill
from runjournal.projections.costs import MONEY
from runjournal.projections.state import RunState

from . import naming

GROUPS: Final = ("run", "line", "tree", "model", "tool", "step", "day")
"""What rows can be added up by."""
IN_FLIGHT: Final = "in_flight"
"""The status of a request that was sent, and whose answer is still to come."""


@dataclass(slots=True)
class Spending:
    """What the rows of one group come to; `key` names it, "" is what belongs to none.

    `calls` counts requests to providers, `statuses` how many there are of each status (see `runjournal.log.store.Bill`,
    and `in_flight`). `tokens` are {input, output, cache_read, cache_write, reasoning}, of those that told any;
    `untold` counts the requests that didn't tell all four of them. `money` is {currency: amount}, exact; `open`
    counts the requests whose money isn't known. `copies` counts the imported requests that are copies of one in another
    session's record, which counts them: they are in none of the sums.
    """

    key: str
    calls: int = 0
    statuses: dict[str, int] = field(default_factory=dict[str, int])
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    untold: int = 0
    money: dict[str, Decimal] = field(default_factory=dict[str, Decimal])
    open: int = 0
    copies: int = 0

    def add(self, bill: Bill) -> None:
        """Add one row."""
        calls, status = bill.calls, bill.status
        self.calls += calls
        if calls:
            self.statuses[status] = self.statuses.get(status, 0) + calls
            if status in OPEN_STATUSES or status == IN_FLIGHT:
                self.open += calls
        counters = (bill.input, bill.output, bill.cache_read, bill.cache_write, bill.reasoning)
        tokens = self.tokens
        for name, count in zip(COUNTERS, counters, strict=True):
            if count:
                tokens[name] += count
        if calls and None in counters[:-1]:
            self.untold += 0 if status == "free" else calls
        if bill.amount is not None and bill.currency is not None:
            before = self.money.get(bill.currency, _ZERO)
            self.money[bill.currency] = MONEY.add(before, Decimal(bill.amount))

    def add_all(self, other: Spending) -> None:
        """Add the sums of another group."""
        for name in ("calls", "untold", "open", "copies"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for status, count in other.statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + count
        for name, count in other.tokens.items():
            self.tokens[name] += count
        for currency, amount in other.money.items():
            self.money[currency] = MONEY.add(self.money.get(currency, _ZERO), amount)

    def as_json(self) -> dict[str, Any]:
        """Return the same as a JSON value; amounts are decimal text."""
        money = {currency: format(amount, "f") for currency, amount in sorted(self.money.items())}
        return {
            "key": self.key, "calls": self.calls, "statuses": dict(sorted(self.statuses.items())), **self.tokens,
            "untold": self.untold, "money": money, "open": self.open, "copies": self.copies,
        }  # fmt: skip


_ZERO: Final = Decimal(0)


@dataclass(frozen=True, slots=True)
class CostReport:
    """What runs have cost: a `Spending` a group, and the total of all of them, each row counted in one of them."""

    by: str
    rows: list[Spending]
    total: Spending

    def as_json(self) -> dict[str, Any]:
        """Return the same as a JSON value."""
        return {"by": self.by, "rows": [row.as_json() for row in self.rows], "total": self.total.as_json()}


class Ledger:
    """The rows of a store, and what names their groups; `fold` returns the state of a run, which tells what is open."""

    def __init__(self, store: Store, fold: Callable[[str], RunState]) -> None:
        self._store = store
        self._fold = fold

    def costs(
        self, run_ids: Sequence[str], by: str, since: str | date | None, until: str | date | None, tz: str
    ) -> CostReport:
        """Return what these runs have cost, all of the store if none is named; see `Logbook.costs`."""
        if by not in GROUPS:
            raise InvalidArgument(f"by: expected one of {', '.join(GROUPS)}, got {by[:40]!r}")
        zone = _zone(tz)
        first, last = _moment("since", since, zone), _moment("until", until, zone)
        heads = {head.run_id: head for head in all_heads(self._store)} if by in ("line", "tree") else {}
        key = _keys(heads, by, zone)
        groups: dict[str, Spending] = {}
        copies = self._copies()
        for row in self._bills(self._chosen(run_ids, heads, key)):
            bill = row
            if copies and row.origin is not None and row[:2] in copies:
                bill = copies[row[:2]] or row
            if (first is not None and bill.at < first) or (last is not None and bill.at >= last):
                continue
            name = key(bill.run_id, bill)
            group = groups.get(name)
            if group is None:
                group = groups[name] = Spending(name)
            if copies.get(row[:2], row) is None:
                group.copies += 1
                continue
            group.add(bill)
        total = Spending("total")
        for group in groups.values():
            total.add_all(group)
        return CostReport(by, _sorted(groups.values(), by), total)

    def _copies(self) -> dict[tuple[str, ...], Bill | None]:
        """Return what stands for imported calls that have copies, by run and call.

        The earliest has the row that told the most; for its copies stands None.
        """
        imported = [row[0] for row in self._store.index_rows("imports")]
        seen = Counter((row.provider, row.response_id) for row in self._recorded(imported))
        found: dict[tuple[str, ...], Bill | None] = {}
        again = [row for row in self._recorded(imported) if seen[row.provider, row.response_id] > 1]
        rows = {row[:2]: row for row in again}
        for each in joined(map(of_bill, again)):
            if each.copies:
                alike = [rows[call.run_id, call.call_id] for call in (each.first, *each.copies)]
                first, most = alike[0], max(alike, key=_weight)
                found.update(dict.fromkeys((row[:2] for row in alike[1:]), None))
                found[first[:2]] = most._replace(**{name: getattr(first, name) for name in _PLACED})
        return found

    def _recorded(self, imported: Iterable[str]) -> Iterator[Bill]:
        for run_id in imported:
            for row in map(Bill._make, self._store.index_rows("bills", run_id)):
                if row.origin is not None and row.response_id is not None:
                    yield row

    def _chosen(self, run_ids: Sequence[str], heads: Mapping[str, Head], key: _Key) -> list[str] | None:
        """Return the runs to add up: those that are named, or the whole lines or trees of them; None is all."""
        if not run_ids:
            return None
        chosen: dict[str, None] = {}
        for name in run_ids:
            run_id = naming.named(self._store, name)
            if self._store.head(run_id) is None:
                raise RunNotFound(name)
            chosen[run_id] = None
        if not heads:
            return list(chosen)
        groups = {key(run_id, None) for run_id in chosen}
        return [run_id for run_id in heads if key(run_id, None) in groups]

    def _bills(self, chosen: list[str] | None) -> Iterator[Bill]:
        store = self._store
        if chosen is None:
            yield from map(Bill._make, store.index_rows("bills"))
            heads: Iterable[Head | None] = all_heads(store, status=_GOING)
        else:
            for run_id in chosen:
                yield from map(Bill._make, store.index_rows("bills", run_id))
            heads = (store.head(run_id) for run_id in chosen)
        for head in heads:
            if head is not None and head.status in _GOING and head.epoch:  # one that nobody had has sent nothing
                yield from in_flight(self._fold(head.run_id))


_PLACED: Final = ("run_id", "call_id", "attempt", "seq", "at", "step", "origin")
"""What of a call is that of its earliest copy, whichever of them told the most."""


def _weight(bill: Bill) -> tuple[int, int]:
    told = [bill.output or 0, bill.input or 0, bill.cache_read or 0, bill.cache_write or 0]
    return told[0], sum(told)


_GOING: Final = ("running", "waiting", "queued", "scheduled_retry")
"""The statuses of runs that may have a request in flight: a run that ended tells what became of each."""


def in_flight(state: RunState) -> Iterator[Bill]:
    """Yield a row for each request to a model that was sent, and whose answer isn't on record."""
    for call_id, call in state.calls.open().items():
        if call.policy == "model" and not call.priced:
            yield Bill(
                state.run_id, call_id, call.attempt, call.latest, call.started_at, "model", call.tool, call.provider,
                call.step, IN_FLIGHT,
            )  # fmt: skip


_Key: TypeAlias = "Callable[[str, Bill | None], str]"
"""What names the group of a row of a run; of lines and trees the run alone does."""


def _keys(heads: Mapping[str, Head], by: str, zone: ZoneInfo) -> _Key:
    """Return what names the group of a row."""
    if by == "line":
        return lambda run_id, _: heads[run_id].scope if run_id in heads else run_id
    if by == "tree":
        return _root_in(heads)
    of_row: dict[str, Callable[[Bill], str]] = {
        "run": lambda bill: bill.run_id,
        "model": lambda bill: bill.name if bill.kind == "model" else "",
        "tool": lambda bill: bill.name if bill.kind == "tool" else "",
        "step": lambda bill: bill.step,
        "day": _day_in(zone),
    }
    found = of_row[by]
    return lambda _, bill: found(bill) if bill is not None else ""


def _root_in(heads: Mapping[str, Head]) -> _Key:
    roots: dict[str, str] = {}

    def root(run_id: str, _: Bill | None) -> str:
        if run_id not in roots:
            at, seen = run_id, {run_id}
            while at in heads and (parent := heads[at].parent_run_id) in heads and parent not in seen:
                at = str(parent)
                seen.add(at)
            roots[run_id] = at
        return roots[run_id]

    return root


def _day_in(zone: ZoneInfo) -> Callable[[Bill], str]:
    if zone.key == "UTC":
        return lambda bill: bill.at[: len("2026-12-01")]

    @lru_cache(maxsize=cost_minutes_cached_max)
    def day(minute: str) -> str:
        return datetime.fromisoformat(f"{minute}:00+00:00").astimezone(zone).date().isoformat()

    return lambda bill: day(bill.at[: len("2026-12-01T00:00")])  # no zone's day begins within a minute of UTC


def _sorted(groups: Iterable[Spending], by: str) -> list[Spending]:
    """Days in their order; anything else with the most money first, then with the most tokens."""
    if by == "day":
        return sorted(groups, key=lambda row: row.key)
    return sorted(groups, key=lambda row: (-sum(row.money.values(), _ZERO), -sum(row.tokens.values()), row.key))


def _zone(tz: str) -> ZoneInfo:
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidArgument(f"tz: expected the name of a time zone, such as Europe/Zurich, got {tz[:40]!r}") from None


def _moment(name: str, value: str | date | None, zone: ZoneInfo) -> str | None:
    """Return a moment as stored times are written; a day begins at midnight in the time zone."""
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
        if not isinstance(found, datetime):
            found = datetime(found.year, found.month, found.day, tzinfo=zone)
        return timestamp((found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC))
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"{name}: expected a day or a time, such as 2026-12-01 or 2026-12-01T09:00, got {str(value)[:40]!r}"
        ) from None
