"""`runjournal ls`: the runs, newest first."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from runjournal.log.limits import ls_table_rows, whole_ids_columns_min

from . import exits
from .app import App, command, pass_app
from .formats import amount, at_least, money, plural, when
from .output import STATUS_STYLES, Cell, Column, records, terminal_width
from .safe import line

if TYPE_CHECKING:
    from runjournal.log.head import Head
    from runjournal.logbook import Logbook
    from runjournal.looking.family import Glance

    _Listed = tuple[Head, Glance | None, str, str]

_AGO: Final = re.compile(r"(\d{1,6})(s|m|h|d|w)")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_COLUMNS: Final = (
    Column("RUN"),
    Column("STATUS"),
    Column("KIND", flex=True, spare=3),
    Column("TITLE", flex=True),
    Column("EVENTS", right=True, spare=2),
    Column("TOKENS", right=True),
    Column("COST", right=True, spare=1),
    Column("IN FLIGHT", right=True),
    Column("UPDATED (UTC)"),
)


@command(
    "ls",
    examples=[
        ("runjournal ls", "all runs, newest first"),
        ("runjournal ls --status failed --since 2h", "what went wrong lately"),
        ("runjournal ls --kind report --tag team=ops -o json", "for a script"),
        ("runjournal ls --tree", "each run with the runs that it has begun below it"),
    ],
)
@click.option("--status", multiple=True, help="Only these: queued, running, waiting, failed, …")
@click.option("--kind", help="Only runs of this kind.")
@click.option("--tag", multiple=True, metavar="KEY=VALUE", help="Only runs with this tag; several must all match.")
@click.option("--parent", metavar="RUN", help="Only the children of this run.")
@click.option("--tree", is_flag=True, help="Below each run those that it has begun, whatever they are.")
@click.option("--since", metavar="WHEN", help="Only runs changed since: 2h, 3d, or a date in UTC.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    help=f"At most so many, 0 = all.  [default: {ls_table_rows} in a table]",
)
@pass_app
def ls(
    app: App,
    *,
    status: tuple[str, ...],
    kind: str | None,
    tag: tuple[str, ...],
    parent: str | None,
    tree: bool,
    since: str | None,
    limit: int | None,
) -> int:
    """List the runs, newest first, by the time they were queued."""
    from .refs import run_id_of

    with app.open() as journal:
        found = journal.runs(
            status=[word.replace("-", "_") for word in status],
            kind=kind,
            tags=dict(_tag(each) for each in tag) or None,
            parent=run_id_of(journal, parent) if parent else None,
            since=since_text(journal, since) if since else None,
        )
        most = (ls_table_rows if app.plain else 0) if limit is None else limit
        depths: dict[str, int] = {}
        if tree:
            found = _family(journal, found, depths, whole=not (status or kind or tag or parent or since))
        heads = itertools.islice(found, most) if most else found
        width = terminal_width()
        name = _short(journal) if width is not None and width < whole_ids_columns_min else _whole
        rows = _glanced(journal, heads)
        count = records(
            app,
            rows,
            _COLUMNS,
            lambda item: _row(item, "  " * depths.get(item[0].run_id, 0) + name(item[0]).lstrip(" " if tree else "")),
            lambda item: _json(item) | ({"depth": depths[item[0].run_id]} if tree else {}),
        )
        more = most and next(found, None) is not None
    if not count:
        app.say("no runs match" if status or kind or tag or parent or since else "no runs yet; next: runjournal demo")
    elif more:
        app.say(f"the first {count}; next: runjournal ls --limit 0, or --status, --kind, --since")
    else:
        app.say(f"{plural(count, 'run')}; next: runjournal show @last")
    return exits.OK


def _family(journal: Logbook, found: Iterator[Head], depths: dict[str, int], *, whole: bool) -> Iterator[Head]:
    """Yield runs, below each one those that it has begun, the oldest first; note how deep each one stands.

    `whole`: of all runs, so that one which was begun by another stands only below that.
    """
    for root in found:
        if root.run_id in depths or (whole and root.parent_run_id and journal.store.head(root.parent_run_id)):
            continue
        pending = [(root, 0)]
        while pending:
            head, depth = pending.pop()
            if head.run_id not in depths:
                depths[head.run_id] = depth
                yield head
                pending += [(each, depth + 1) for each in journal.runs(parent=head.run_id)]


def _glanced(journal: Logbook, heads: Iterator[Head]) -> Iterator[_Listed]:
    from runjournal.looking.family import glance, stands
    from runjournal.looking.standing import word_of

    for head in heads:
        seen = glance(journal, head)
        word = "" if seen is None else word_of(journal, head)
        yield head, seen, stands(journal.store, head), word


def _whole(head: Head) -> str:
    return head.run_id


def _short(journal: Logbook) -> Callable[[Head], str]:
    """Return the shortest names that other commands take too, those of sub-agents behind a space."""
    from .refs import shortened

    return lambda head: " " * (head.parent_run_id is not None) + shortened(journal, head)


def _row(item: _Listed, name: str) -> tuple[object, ...]:
    head, seen, stopped, word = item
    spent = "?"
    if seen:
        costs = seen.cost.items()
        spent = " ".join(
            f"{at_least(money(value, 4), seen.unpriced > 0)} {line(currency)}" for currency, value in costs
        )
    return (
        Cell(name, "title"),
        Cell(stopped or _status(head, word), "bad" if stopped else STATUS_STYLES.get(head.status, "")),
        head.kind,
        line(head.title or "", 60),
        amount(head.head_seq),
        at_least(amount(seen.tokens), seen.unknown > 0) if seen else "?",
        spent,
        Cell(amount(seen.in_flight), "warn" if seen.in_flight else "dim") if seen else "?",
        when(head.updated_at),
    )


_TELLING: Final = frozenset({"abandoned", "answered", "answers", "approval", "budget", "call", "due", "elsewhere"})
_TELLING_MORE: Final = frozenset({"signal", "child", "mistake", "stopping", "superseded", "unanswered"})
"""Words that say more than the status does."""


def _status(head: Head, word: str) -> str:
    return f"{head.status}: {word}" if word in _TELLING | _TELLING_MORE else head.status


def _json(item: _Listed) -> dict[str, Any]:
    import orjson

    head, seen, stopped, word = item
    return {
        "run_id": head.run_id,
        "status": head.status,
        "stopped": stopped or None,
        "stands": word or None,
        "kind": head.kind,
        "title": head.title,
        "tags": orjson.loads(head.tags),
        "parent_run_id": head.parent_run_id,
        "queued_at": head.queued_at,
        "updated_at": head.updated_at,
        "due_at": head.due_at,
        "head_seq": head.head_seq,
        "head_hash": head.head_hash,
        "owner": head.owner,
        "epoch": head.epoch,
        "tokens": seen.tokens if seen else None,
        "cost": seen.cost if seen else None,
        "in_flight": seen.in_flight if seen else None,
    }


def _tag(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key:
        raise click.BadParameter(f"expected KEY=VALUE, got {line(text, 40)}", param_hint="--tag")
    return key, value


def since_text(journal: Logbook, text: str) -> str:
    """A time as it is stored, from `2h`, `3d` or an ISO date."""
    from runjournal.log.clock import parse_timestamp, timestamp

    if ago := _AGO.fullmatch(text):
        return timestamp(journal.clock.now() - timedelta(**{_UNITS[ago[2]]: int(ago[1])}))
    try:
        return timestamp(parse_timestamp(text))
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"expected 30m, 2h, 3d or a date like 2026-11-29, got {line(text, 40)}", param_hint="--since"
        ) from None
