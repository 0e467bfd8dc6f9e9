"""Whether a store kept its promises, judged from outside, after whatever was done to it."""

from __future__ import annotations

import base64
import pickle
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runjournal import Journal
from runjournal.log import events as e
from runjournal.log.errors import JournalError
from runjournal.looking.audit import audit_store
from runjournal.writing import folding

Told = list[dict[str, Any]]
_NAME = re.compile(r"([\w.-]+)/(\d+)(?: |$)")


def name_of(event: e.Event) -> tuple[str, int] | None:
    """The name of the append that an event is of, and which of its events it is."""
    match event:
        case e.NoteAdded(text=text):
            pass
        case e.CostRecorded(source=text):
            pass
        case e.MessageAppended(content=str(text)):
            pass
        case e.RunQueued(input=str(text)):
            pass
        case _:
            return None
    found = _NAME.match(text)
    return (found[1], int(found[2])) if found else None


def stored(journal: Journal) -> dict[str, list[int]]:
    """Return which parts of each append are in the store, by the append's name, in the order of the store."""
    found: dict[str, list[int]] = {}
    for record in journal.store.read_all():
        if (name := name_of(folding.filled_record(journal.store, record).event)) is not None:
            found.setdefault(name[0], []).append(name[1])
    return found


def judged(told: Told, found: dict[str, list[int]], *, power: bool = False) -> list[str]:
    """Return what is wrong with what a store holds, by what was told of it; `power`: relaxed ones may be lost."""
    wrong: list[str] = []
    state: dict[str, dict[str, Any]] = {}
    for line in told:
        if line["say"] in ("tried", "done", "refused", "unknown"):
            state[line["name"]] = line
    for name, line in state.items():
        parts, whole = found.get(name, []), list(range(line["count"]))
        if parts not in ([], whole):
            wrong.append(f"torn: of {line['count']} events of {name}, {parts} are there")
        if line["say"] == "done" and not parts and not (power and not line["durable"]):
            wrong.append(f"lost: {name} was acknowledged")
        if line["say"] == "refused" and parts:
            wrong.append(f"false refusal: {name} is there")
    wrong.extend(f"from nowhere: {name}" for name in found if name not in state)
    return wrong


def suffix(told: Told, found: dict[str, list[int]]) -> str | None:
    """Return what is wrong if an acknowledged append is lost and a later one isn't."""
    lost: str | None = None
    for line in told:
        if line["say"] == "done":
            if line["name"] not in found:
                lost = lost or line["name"]
            elif lost:
                return f"no suffix: {lost} is lost, and {line['name']} behind it isn't"
    return None


def judge(path: Path, told: Told, *, power: bool = False) -> list[str]:
    """Open a store unaided and return all that is wrong with it; then append to it, and repeat what nobody knows of."""
    if not path.exists():
        return [f"lost: {line['name']}, with the file" for line in told if line["say"] == "done"]
    try:
        with Journal.open(path) as journal:
            found = stored(journal)
            wrong = judged(told, found, power=power)
            if power and (gap := suffix(told, found)):
                wrong.append(gap)
            wrong += faults(journal)
            wrong += repeated(journal, told)
            journal.append("judge", [e.RunQueued("judge", None)], expect=0)
            wrong += faults(journal)
    except (JournalError, RuntimeError, OSError, ValueError) as error:
        return [f"it can't be used: {type(error).__name__}: {error}"]
    return wrong


def faults(journal: Journal) -> list[str]:
    """Return the errors of an audit, which compares chain, tables, checkpoints and blobs."""
    found = audit_store(journal.store)
    return [f"audit: {each.code} {each.run_id}: {each.what}" for each in found if each.severity == "error"]


def repeated(journal: Journal, told: Iterable[dict[str, Any]]) -> list[str]:
    """Append again what nobody knew the outcome of: it has to be there once, whatever came of it the first time.

    What stands on a commit that is lost is refused, and that is no fault; what is acknowledged has to be there.
    """
    unknown = [line for line in told if line["say"] == "unknown"]
    done = set[str]()
    for line in unknown:
        batches = pickle.loads(base64.b85decode(line["again"]))
        try:
            journal.append_all(batches)
        except JournalError:
            continue
        done.add(line["name"])
    found = stored(journal) if unknown else {}
    names = {line["name"]: line["count"] for line in unknown}
    return [
        f"repeated: of {name}, {parts} are there"
        for name, count in names.items()
        if (parts := found.get(name, [])) != list(range(count)) and (parts or name in done)
    ]


def effects_wrong(happened: list[str], expected: list[str], output: Any) -> list[str]:
    """Return what is wrong with what an agent did outside, once it has ended."""
    wrong = [f"twice: {each}" for each in set(happened) if each.startswith("send") and happened.count(each) > 1]
    wrong += [f"never: {each}" for each in expected if each not in happened]
    if output != expected:
        wrong.append(f"another output: {output}")
    return wrong
