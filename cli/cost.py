"""`runjournal cost`: what runs have cost, and what isn't known of it."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import click

from runjournal.log.limits import cost_bar_chars

from . import exits
from .app import OUTPUTS, App, command, pass_app
from .formats import amount, money, plural
from .output import Column, document, emit, is_utf8, styled, table
from .safe import line

if TYPE_CHECKING:
    from runjournal.spending import CostReport, Spending

_BY: Final = ("run", "line", "tree", "model", "tool", "step", "day")
_NOBODY: Final = {"model": "(no model's)", "tool": "(no tool's)", "step": "(outside of steps)"}
"""What is said of rows that belong to no group."""
_OPEN: Final = {
    "in_flight": "in flight",
    "lost": "lost: sent, and its end never heard of",
    "unmeasured": "told no tokens",
    "unpriced": "without a price",
    "listed": "at list prices: it was recorded elsewhere, and nobody here knows what was billed",
}
"""Why the money of a request isn't known, by its status."""
_BLOCKS: Final = " ▏▎▍▌▋▊▉█"


@command(
    "cost",
    outputs=(*OUTPUTS, "csv"),
    examples=[
        ("runjournal cost", "each run, the dearest first"),
        ("runjournal cost --by day --since 2026-11-01 --tz Europe/Zurich", "this month, by the days there"),
        ("runjournal cost @last --by tree", "the last run, with all that it has begun"),
        ("runjournal cost --by model -o csv", "for a spreadsheet"),
    ],
    epilog="A total with >= is a lower bound: the lines below it say what isn't known.",
)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--by", type=click.Choice(_BY), default="run", show_default=True, help="What to add up by.")
@click.option("--since", metavar="DAY", help="Only requests that ended on or after this day or time.")
@click.option("--until", metavar="DAY", help="Only requests that ended before this day or time.")
@click.option("--tz", default="UTC", show_default=True, metavar="ZONE", help="Whose days: a time zone, as Asia/Tokyo.")
@pass_app
def cost(app: App, runs: tuple[str, ...], *, by: str, since: str | None, until: str | None, tz: str) -> int:
    """Say what runs have cost: money and tokens, each request to a provider counted once.

    A RUN stands for its whole line with --by line, and for all of its tree with --by tree. None is the whole store.
    """
    from .refs import run_id_of

    with app.open() as journal:
        chosen = [run_id_of(journal, run) for run in runs]
        found = journal.costs(*chosen, by=by, since=since, until=until, tz=tz)
    if app.output == "csv":
        emit(app, _csv(found))
    elif not app.plain:
        document(app, found.as_json())
    else:
        emit(app, _table(found))
        hint = "runjournal cost --by model" if by != "model" else "runjournal cost --by day"
        app.say(
            f"{plural(len(found.rows), by)}; next: {hint}" if found.rows else "nothing was spent; next: runjournal ls"
        )
    return exits.OK


def _table(found: CostReport) -> Iterator[str]:
    if not found.rows:
        return
    total = found.total
    currencies = sorted(total.money)
    tokens = [name for name, count in total.tokens.items() if count]
    columns = [
        Column(found.by.upper(), flex=True),
        Column("CALLS", right=True),
        *(Column(name.replace("_", " ").upper(), right=True, spare=2) for name in tokens),
        *(Column(line(currency), right=True) for currency in currencies),
        Column("", spare=1),
    ]

    def row(each: Spending, name: str) -> list[object]:
        return [
            name,
            amount(each.calls),
            *(_least(amount(each.tokens[token]), each.untold) for token in tokens),
            *(_least(money(str(each.money.get(currency, Decimal(0)))), each.open) for currency in currencies),
            _bar(each, found) if each is not total else "",
        ]

    rows = [row(each, line(each.key or _NOBODY.get(found.by, "-"))) for each in found.rows]
    yield from table(columns, [*rows, row(total, "TOTAL")])
    yield from (styled(text, "warn") for text in _unknown(total))


def _least(text: str, unknown: int) -> str:
    return f">= {text}" if unknown else text


def _bar(each: Spending, found: CostReport) -> str:
    """Return a bar as long as the group's part of the greatest: of money, or of tokens where nothing is priced."""
    currency = max(found.total.money, key=lambda name: found.total.money[name], default=None)

    def size(one: Spending) -> Decimal:
        return one.money.get(currency, Decimal(0)) if currency is not None else Decimal(sum(one.tokens.values()))

    greatest = max(map(size, found.rows))
    if greatest <= 0 or size(each) <= 0:
        return ""
    eighths = int(size(each) / greatest * cost_bar_chars * len(_BLOCKS[1:]))
    if not is_utf8():
        return "#" * max(1, eighths // 8)
    return "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip() if eighths else _BLOCKS[1]


def _unknown(total: Spending) -> Iterator[str]:
    """Say what isn't known, and of how many requests."""
    for status, what in _OPEN.items():
        if count := total.statuses.get(status, 0):
            yield f"{plural(count, 'call')} {what}"
    if total.copies:
        yield f"{plural(total.copies, 'call')} more: copies of calls in another session's record, counted once"


def _csv(found: CostReport) -> Iterator[str]:
    import csv
    import io

    statuses = sorted(found.total.statuses)
    currencies = sorted(found.total.money)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([found.by, "calls", *statuses, *found.total.tokens, "untold", *currencies, "open", "copies"])
    for row in found.rows:
        writer.writerow(
            [
                line(row.key), row.calls, *(row.statuses.get(name, 0) for name in statuses),
                *row.tokens.values(), row.untold,
                *(format(row.money.get(name, Decimal(0)), "f") for name in currencies), row.open,
                row.copies,
            ]
        )  # fmt: skip
    yield from out.getvalue().splitlines()
