"""The rows of `bills`: what each request to a provider came to, one row an attempt, whatever became of it.

A call of this run is always its own row, by run, call and attempt, whatever id its answer has: providers and gateways
use ids again. A request without a told end is `lost`: the provider may have been paid for it, and nobody will ever say
so. One that a provider refused, which the status code of its answer tells, is free: they bill answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from runjournal.log import events as e
from runjournal.log.base import RecordedEvent
from runjournal.log.store import Bill

from .usage import UNSPLIT, is_whole

if TYPE_CHECKING:
    from .calls import Call

COUNTERS: Final = ("input", "output", "cache_read", "cache_write", "reasoning")
"""The counters of tokens of a row."""
UNKNOWN: Final = "unknown"
"""The name of what nobody has named."""
OPEN_STATUSES: Final = frozenset({"unpriced", "unmeasured", "lost"})
"""The statuses of rows whose money isn't known: a sum with one of them is a lower bound."""
_Ended = e.ModelCompleted | e.ModelFailed | e.ToolCompleted | e.ToolFailed


def of_end(record: RecordedEvent, event: _Ended, call: Call | None) -> Bill:
    """Return the row of an attempt that has ended; `call` is what is known of it, None if nothing is."""
    model = isinstance(event, e.ModelCompleted | e.ModelFailed)
    return Bill(
        record.run_id,
        event.call_id,
        event.attempt,
        record.seq,
        record.at,
        "model" if model else "tool",
        call.tool if call else UNKNOWN,
        call.provider if call else None,
        call.step if call else "",
        status_of(event),
        response_id=event.response_id if isinstance(event, e.ModelCompleted | e.ModelFailed) else None,
        request_id=event.request_id if isinstance(event, e.ModelCompleted | e.ModelFailed) else None,
        **_counters(event.usage),
        **_money(event.cost or (_price(event) if "amount" in _price(event) else None)),
    )


def of_recounted(record: RecordedEvent, event: e.ModelRecounted) -> Bill:
    """Return the row of a call of another tool's record that has told more since; it takes the place of the first."""
    return Bill(
        record.run_id,
        event.call_id,
        event.attempt,
        record.seq,
        record.at,
        "model",
        event.model,
        event.provider,
        "",
        status_of(event),
        response_id=event.response_id,
        request_id=event.request_id,
        **_counters(event.usage),
        **_money(event.price if "amount" in _price(event) else None),
    )


def of_lost(record: RecordedEvent, call_id: str, call: Call) -> Bill:
    """Return the row of a model call's newest attempt, which has no end and won't get one."""
    at = call.started_at or record.at
    return Bill(
        record.run_id, call_id, call.attempt, record.seq, at, "model", call.tool, call.provider, call.step, "lost"
    )


def of_money(record: RecordedEvent, event: e.CostRecorded | e.CostRepriced) -> Bill:
    """Return the row of money beside the calls, or of a correction, which may be negative."""
    recorded = event if isinstance(event, e.CostRecorded) else None
    return Bill(
        record.run_id,
        "",
        record.seq,
        record.seq,
        record.at,
        "cost",
        (recorded and recorded.model) or event.source,
        None,
        "",
        "reported",
        amount=event.amount,
        currency=event.currency,
        calls=0,
        **_counters(recorded.usage if recorded else None),
    )


def of_purged(record: RecordedEvent, event: e.RunPurged) -> Iterator[Bill]:
    """Yield what is left of the rows of a run that was purged: its tokens by model and outcome, its money by source."""
    number = 0
    for model, outcomes in event.lines.items():
        for outcome, line in outcomes.items():
            number += 1
            open_ = "unmeasured" if line.get("without_usage") else "unpriced" if line.get("unpriced") else "priced"
            yield Bill(
                record.run_id,
                "",
                number,
                record.seq,
                event.ended_at or record.at,
                "tool" if model.startswith("tool:") else "model",
                model.removeprefix("tool:"),
                None,
                "",
                "lost" if outcome == "lost" else open_,
                calls=line.get("calls", 0),
                **_counters(line),
            )
    for currency, sources in event.money.items():
        for source, amount in sources.items():
            number += 1
            at = event.ended_at or record.at
            yield Bill(
                record.run_id, "", number, record.seq, at, "cost", source, None, "", "reported",
                amount=amount, currency=currency, calls=0,
            )  # fmt: skip


def status_of(event: _Ended | e.ModelRecounted) -> str:
    """Return the status of the row of an attempt that has ended; see `Bill`."""
    cost = None if isinstance(event, e.ModelRecounted) else event.cost
    if cost is not None:
        if Decimal(cost["amount"]) == 0:
            return "free"
        return "reported" if cost["source"] == "reported" else "priced"
    if (amount := _price(event).get("amount")) is not None:
        return "priced" if Decimal(amount) else "free"
    if event.usage is not None:
        if "unmeasured" in event.usage:
            return "unmeasured"
        return "free" if is_whole(event.usage) and not any(event.usage.get(name) for name in COUNTERS) else "unpriced"
    if isinstance(event, e.ModelFailed):
        if event.cut:
            return "lost"
        if event.error.get("status") is not None:
            return "free"
    return "unmeasured"


def _counters(usage: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the counters of a row; tokens of which nobody knows whether they were cached stand in its input."""
    if usage is None or "unmeasured" in usage:
        return {}
    read = [usage[name] for name in ("input", UNSPLIT) if name in usage]
    return {name: usage.get(name) for name in COUNTERS} | {"input": sum(read) if read else None}


def _price(event: _Ended | e.ModelRecounted) -> Mapping[str, Any]:
    """Return what an attempt costs by a list of prices; nothing, if none says."""
    return (None if isinstance(event, e.ToolCompleted | e.ToolFailed) else event.price) or {}


def _money(cost: Mapping[str, Any] | None) -> dict[str, Any]:
    if cost is None:
        return {}
    return {"amount": cost["amount"], "currency": cost["currency"], "pricing": cost.get("pricing_version")}
