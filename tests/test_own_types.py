"""Event types of users' own: how durable they are, packages that bring them, and runs that go on from others."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from click.testing import CliRunner

from runjournal import Event, Journal, Run, register
from runjournal.cli.app import cli
from runjournal.log import own_types
from runjournal.log.base import RecordedEvent, registered
from runjournal.log.events import NoteAdded, RunQueued, is_durable
from runjournal.looking.doctor import doctor

MODULE = """
from dataclasses import dataclass
from typing import ClassVar
from runjournal import Event, register

@register
@dataclass(frozen=True, slots=True)
class {name}(Event):
    TYPE: ClassVar[str] = "{type}"
    text: str
"""


@register
@dataclass(frozen=True, slots=True)
class Kept(Event):
    TYPE: ClassVar[str] = "x.test_own_types.kept"
    text: str


@register
@dataclass(frozen=True, slots=True)
class Passing(Event):
    TYPE: ClassVar[str] = "x.test_own_types.passing"
    DURABLE: ClassVar[bool] = False
    text: str


class Texts:
    """What was kept, in order."""

    NAME: ClassVar[str] = "test_own_types.texts"
    VERSION: ClassVar[int] = 1

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    @classmethod
    def initial(cls) -> Self:
        return cls([])

    def apply(self, record: RecordedEvent) -> None:
        if isinstance(record.event, Kept | NoteAdded):
            self.texts.append(record.event.text)

    def dump(self) -> Any:
        return self.texts

    @classmethod
    def load(cls, data: Any) -> Self:
        return cls(data)


def test_a_type_says_how_durable_it_is(tmp_path: Path) -> None:
    """A type of one's own waits for the disk unless its class says otherwise; a batch waits if one of it does."""
    waited: list[bool] = []
    assert (True, False) == (is_durable(Kept("a")), is_durable(Passing("a")))
    with Journal.open(tmp_path / "runs.db") as journal:
        transact = journal.store.transact

        def noted(decide: Any, *, durable: bool) -> Any:
            waited.append(durable)
            return transact(decide, durable=durable)

        journal.store.transact = noted  # type: ignore[method-assign]
        journal.append("r", [RunQueued("k", None)], expect=0)
        for events in ([Passing("a")], [Kept("a")], [Passing("a"), Kept("b")]):
            journal.append("r", events)
    assert [True, False, True, True] == waited


def test_a_fork_and_a_retry_keep_what_they_go_on_from() -> None:
    """A projection of one's own sees the own types of the runs before, as far as they count, and of those no others."""

    def agent(run: Run) -> None:
        for name in ("a", "b"):
            with run.step(name):
                journal.append("r", [Kept(f"before {name}"), NoteAdded("not mine")])
            journal.append("r", [Kept(f"behind {name}")])

    with Journal.open("memory:") as journal:
        journal.run(agent, run_id="r", kind="k")
        after_a = next(each.seq for each in journal.events("r", types=["step.completed"]))
        fork = journal.fork("r", after_a, new_run_id="fork")
        again = journal.fork(fork, new_run_id="again")
        whole = journal.fork("r", new_run_id="whole")
        journal.append(fork, [Kept("of the fork"), NoteAdded("mine")])
        assert ["before a", "of the fork", "mine"] == journal.fold(Texts, fork).texts
        assert ["before a"] == journal.fold(Texts, again).texts
        assert ["before a", "behind a", "before b"] == journal.fold(Texts, whole).texts
        journal.checkpoint(fork, Texts)
        journal.append(fork, [Kept("later")])
        assert ["before a", "of the fork", "mine", "later"] == journal.fold(Texts, fork).texts


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that installs a package with an entry point, for this test."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(name: str, text: str) -> None:
        (tmp_path / f"own_{name}.py").write_text(text, encoding="utf-8")
        about = tmp_path / f"own_{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: own-{name}\nVersion: 1.0\n", encoding="utf-8")
        (about / "entry_points.txt").write_text(f"[{own_types.GROUP}]\n{name} = own_{name}\n", encoding="utf-8")
        own_types.load_own_types.cache_clear()

    yield add
    own_types.load_own_types.cache_clear()


def test_packages_bring_types_to_the_command_line(tmp_path: Path, install: Any) -> None:
    """The command line and the doctor load them and tell of those that fail, by name; a library loads nothing."""
    install("desk", MODULE.format(name="DeskOpened", type="x.desk.opened"))
    install("broken", "raise SystemExit('no')")
    install("stranger", MODULE.format(name="Other", type="x.others.opened"))
    path = str(tmp_path / "runs.db")
    with Journal.open(path) as journal:
        journal.append("r", [RunQueued("k", None)], expect=0)
        assert "x.desk.opened" not in registered()
    found = CliRunner().invoke(cli, ["--db", path, "ls"])
    assert (0, True) == (found.exit_code, "x.desk.opened" in registered())
    assert "event types of broken can't be loaded: SystemExit: no" in found.stderr
    assert "event types of stranger can't be loaded: its types are to begin with x.stranger." in found.stderr
    with Journal.open(path) as journal:
        checks = [each for each in doctor(journal) if each.name == "event types"]
    assert [False, False, True] == [each.ok for each in checks]
    assert "desk" in checks[-1].what
