"""What is public is what the page of the Python API describes, and nothing else."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import runjournal
from runjournal import AsyncJournal, AsyncRun, Batch, Journal, Place, Run, testing
from runjournal.log.events import NoteAdded

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "python.md"


def on_page(name: str) -> set[str]:
    """The methods, attributes and fields that the page has of a class."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    fields = re.findall(r"`(\w+)`", "".join(re.findall(r"^Fields: .*$", section, re.MULTILINE)))
    heads = re.findall(rf"^### {name}\.(\w+)$", section, re.MULTILINE)
    return {*fields, *heads, *re.findall(r"^- `\.(\w+)`:", section, re.MULTILINE)}


def public(thing: object, inherited: type = object) -> set[str]:
    """The public names of an object, those of a base left out."""
    return {name for name in dir(thing) if not name.startswith("_")} - set(dir(inherited))


@pytest.mark.parametrize("kind", [Journal, AsyncJournal])
def test_a_journal_has_what_its_page_says(kind: type[Journal]) -> None:
    """Every public name of a journal is on the page, and every name there is one of a journal."""
    with kind.open("memory:") as journal:
        assert on_page(kind.__name__) == public(journal)


def test_a_run_has_what_its_page_says() -> None:
    """An agent finds in its run what the page says, and nothing else."""
    found: dict[str, set[str]] = {}

    def agent(run: Run) -> None:
        found["Run"] = public(run)

    async def async_agent(run: AsyncRun) -> None:
        found["AsyncRun"] = public(run)

    with AsyncJournal.open("memory:") as journal:
        journal.run(agent)
        asyncio.run(journal.run_async(async_agent))
    assert on_page("Run") == found["Run"]
    assert on_page("AsyncRun") == found["AsyncRun"]


def test_a_batch_and_a_place_have_what_their_page_says() -> None:
    """What a program keeps of a journal has the fields of its page."""
    with Journal.open("memory:") as journal:
        made: Any = journal.batch("r", [NoteAdded("x")], expect=None)
    assert isinstance(made, Batch)
    assert on_page("Batch") == public(made, tuple)
    assert on_page("Place") == public(Place(), tuple)


def test_the_facade_has_what_the_page_says() -> None:
    """The page begins with the names of the façade, each once, before it goes on with modules."""
    ours = PAGE.read_text(encoding="utf-8").partition("\n## runjournal.")[0]
    assert sorted(re.findall(r"^## (\w+)$", ours, re.MULTILINE)) == sorted(runjournal.__all__)


def test_the_kit_has_what_its_page_says() -> None:
    """What a program imports from `runjournal.testing` stands on the page, each with its methods and fields."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## runjournal.testing\n")[2].partition("\n## ")[0]
    assert sorted(testing.__all__) == sorted(re.findall(r"^### (\w+)$", section, re.MULTILINE))
    for name in ("World", "CrashReport"):
        of = section.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        fields = re.findall(r"`(\w+)`", "".join(re.findall(r"^Fields: .*$", of, re.MULTILINE)))
        told = {*fields, *re.findall(rf"^#### {name}\.(\w+)$", of, re.MULTILINE)}
        cls = getattr(testing, name)
        assert told == public(cls, tuple if issubclass(cls, tuple) else object), name
