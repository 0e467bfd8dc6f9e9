"""`import claude-code --follow`: what comes is imported, until somebody stops it."""

import json
import signal

import pytest
from click.testing import CliRunner

from runjournal.cli import stopping
from runjournal.cli.app import cli
from runjournal.importers.following import grown
from runjournal.journal import Journal


def user(words):
    return json.dumps({"type": "user", "uuid": words, "message": {"role": "user", "content": words}}) + "\n"


def test_what_has_changed_comes_again(tmp_path):
    """A file comes once, and again when it has grown, been replaced or gone; a new one is found."""
    path, found = tmp_path / "a.jsonl", []
    looks = iter(
        [
            lambda: None,
            lambda: path.write_text(user("a") + user("b")),
            lambda: (tmp_path / "b.jsonl").write_text(user("c")),
            path.unlink,
        ]
    )

    def stop(wait_s):
        if not wait_s:
            return False
        found.append("|")
        look = next(looks, None)
        if look is None:
            return True
        look()
        return False

    path.write_text(user("a"))
    for source in grown([str(tmp_path)], stop, 1.0):
        found.append(source.path[-7:-6])  # noqa: PERF401 - `stop` adds to it meanwhile
    assert ["a", "|", "|", "a", "|", "b", "|", "|"] == found


def test_a_file_that_is_named_and_missing(tmp_path):
    """A file that isn't there yet is told once, and comes when it is there."""
    path = tmp_path / "a.jsonl"

    def stop(wait_s):
        if wait_s and not path.exists():
            path.write_text(user("a"))
            return False
        return bool(wait_s)

    found = [(source.path == str(path), path.exists()) for source in grown([str(path)], stop, 1.0)]
    assert [(True, False), (True, True)] == found


def test_stop_between_files(tmp_path):
    """It ends after the file at hand, and doesn't take the others."""
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_text(user(name))
    assert 1 == sum(1 for _ in grown([str(tmp_path)], lambda _: True, 1.0))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("output", ["table", "jsonl"])
def test_follow(tmp_path, monkeypatch, number, output):
    """The command imports a file as it grows, says so as it goes, and ends well at Ctrl-C and at SIGTERM."""
    path, waits = tmp_path / "a.jsonl", []
    path.write_text(user("a"))
    asked, before = stopping.EndAsked.asked, signal.getsignal(number)

    def fake(self, wait_s):
        if wait_s:
            waits.append(wait_s)
            if len(waits) == 1:
                path.write_text(user("a") + "{ bad\n" + user("b") + '{"torn')
            elif len(waits) == 2:
                path.write_text(user("a") + "{ bad\n" + user("b") + '{"torn more')
            else:
                signal.raise_signal(number)
        return asked(self, 0.0)

    monkeypatch.setattr(stopping.EndAsked, "asked", fake)
    store = str(tmp_path / "runs.db")
    result = CliRunner().invoke(cli, ["--db", store, "import", "claude-code", str(path), "--follow", "-o", output])
    assert 3 == result.exit_code, result.output
    if output == "jsonl":
        assert [2, 2, 0] == [json.loads(each)["events_added"] for each in result.stdout.splitlines()]
    else:
        assert ["2 events added", "2 events added"] == [
            each.split("  ")[1].split(" from")[0] for each in result.stdout.splitlines()
        ]
        assert "4 events added, 1 run, 1 line quarantined, 1 torn line" in result.stderr
        assert 1 == result.stderr.count("a.jsonl:2:")
    assert before == signal.getsignal(number)
    with Journal.open(store) as journal:
        [head] = journal.runs()
        assert 4 == head.head_seq


def test_follow_nothing(tmp_path, monkeypatch):
    """An empty folder is followed, and that none came is no failure."""
    monkeypatch.setattr(stopping.EndAsked, "asked", lambda _, wait_s: bool(wait_s))
    result = CliRunner().invoke(
        cli, ["--db", str(tmp_path / "runs.db"), "import", "claude-code", str(tmp_path), "--follow"]
    )
    assert 0 == result.exit_code, result.output
