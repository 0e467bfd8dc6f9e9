"""No circle: whatever a refusal tells a person to type isn't refused itself, in whatever way the run stands."""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_standing import WAYS, R

from runjournal import Journal
from runjournal.cli.app import cli
from runjournal.importers.transfer import export_runs, import_jsonl
from runjournal.log.errors import JournalError

TYPED = re.compile(r"`runjournal ([^`]+)`")
NOT_EXPORTED = {"elsewhere", "purged", "superseded", "child"}  # one is an import, the others aren't one run


def agent(_: object) -> None:
    """Nobody calls it: the run isn't run here."""


def advice(journal: Journal) -> list[str]:
    """Return the commands in the words with which `run` and `resume` are refused."""
    said = list[str]()
    kind = journal.head(R).kind
    for act in (lambda: journal.run(agent, run_id=R, kind=kind), lambda: journal.resume(R)):
        try:
            act()
        except JournalError as error:
            said += TYPED.findall(str(error))
    return said


@pytest.mark.parametrize("word", sorted(set(WAYS) - NOT_EXPORTED))
def test_what_an_imported_run_is_told_to_do_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """Each command in a refusal of `run` and `resume`, and in `explain`, does what it says in the other store."""
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "here.db"
    with Journal.open(tmp_path / "there.db") as there, Journal.open(store) as here:
        WAYS[word][0](there)
        import_jsonl(here, export_runs(there, [R]), "there")
        lines = advice(here)
    told = CliRunner().invoke(cli, ["--db", str(store), "explain", R, "-o", "json"])
    lines += [way["command"].partition(" ")[2] for way in json.loads(told.stdout)["ways"]]
    assert lines
    for line in dict.fromkeys(lines):
        words = shlex.split(line)
        words = words if "--db" in words else ["--db", str(store), *words]
        done = CliRunner().invoke(cli, words, catch_exceptions=False)
        assert 0 == done.exit_code, f"{line}: {done.output}"
