"""Bytes in a run, such as screenshots: stored once, referred to in JSON, and gone with the run (engine.md A25)."""

import asyncio
import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner

from runjournal import AsyncJournal, Journal, attach, read_blob, tool
from runjournal.cli.app import cli
from runjournal.engine.failures import NotInRun
from runjournal.importers.jsonl import read_lines
from runjournal.importers.transfer import export_runs, import_jsonl
from runjournal.log import blob_names, codec, limits, media
from runjournal.log import events as e
from runjournal.log.clock import FakeClock
from runjournal.log.errors import ChangedBlob, InvalidArgument, MissingBlob, NotAllowed, TooLarge
from runjournal.looking.attached import attached
from runjournal.looking.audit import audit_run, audit_store
from runjournal.looking.doctor import doctor

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
SHA = hashlib.sha256(PNG).hexdigest()
REF = {"$blob": SHA, "bytes": len(PNG), "media_type": "image/png"}


@pytest.fixture(params=["memory:", "runs.db"])
def journal(request, tmp_path):
    url = request.param if request.param == "memory:" else str(tmp_path / request.param)
    with Journal.open(url, clock=FakeClock(), by="w") as opened:
        yield opened


@tool(read_only=True)
def screenshot() -> dict[str, Any]:
    return {"page": attach(PNG, "image/png", "page.png")}


@tool(read_only=True)
def measure(ref: dict[str, Any]) -> int:
    return len(read_blob(ref))


def looking(run):
    """An agent whose tool takes a screenshot, and whose model is shown it."""
    with run.step("look"):
        page = screenshot()["page"]
        run.message("user", [{"type": "image", "source": page}])
        seen = run.model("m", {"messages": [page]}, lambda asked: len(run.read_blob(asked["messages"][0])))
        run.memory["seen"] = [seen, measure(page)]
    return page


def opened(journal: Journal, run_id: str, *values: Any) -> str:
    """A run that others record into, with these values in its memory of messages."""
    journal.open_run("k", source="s", run_id=run_id)
    for value in values:
        journal.append(run_id, [e.MessageAppended("user", value)])
    return run_id


def blobs(journal: Journal) -> list[str]:
    return [digest for digest, _ in journal.store.blob_digests()]


def errors(journal: Journal) -> list[str]:
    return [each.code for each in audit_store(journal.store) if each.severity != "info"]


# In and out.


def test_bytes_of_a_tool_come_in_and_are_read(journal):
    """A tool's screenshot is a reference in its result, live and told again; model, tool and caller read the bytes."""
    ref = journal.run(looking, run_id="r")
    assert REF | {"name": "page.png"} == ref
    assert (PNG, ref) == (journal.read_blob(ref), journal.run(looking, run_id="r"))
    assert {"seen": [len(PNG), len(PNG)]} == journal.state("r").memory.committed
    assert [SHA] == blobs(journal)
    assert [] == errors(journal)
    assert journal.check(looking, "r").ok


def test_a_step_that_is_tried_again_gets_an_equal_reference(journal):
    """What a call is identified by doesn't change by the bytes being attached anew."""
    tried: list[Any] = []

    def agent(run):
        with run.step("a"):
            tried.append(run.attach(PNG, "image/png"))
            run.model("m", {"page": tried[-1]}, lambda asked: "answer")
            if len(tried) == 1:
                raise KeyboardInterrupt
            return tried[-1]

    with pytest.raises(KeyboardInterrupt):
        journal.run(agent, run_id="r")
    journal.run(agent, run_id="r")
    assert [REF, REF] == tried
    assert 1 == [each.type for each in journal.events("r")].count("model.started")


def test_an_asyncio_agent_attaches(tmp_path):
    """Its coroutine tools, its plain ones and itself bring bytes in, at the same time."""

    @tool(read_only=True)
    async def paint(n: int) -> Any:
        await asyncio.sleep(0)
        return attach(b"a%d" % n, "image/png")

    @tool(read_only=True)
    def draw(n: int) -> Any:
        return attach(b"b%d" % n, "image/png")

    async def agent(run):
        async with run.step("a"):
            found = await asyncio.gather(*(one(n) for one in (paint, draw) for n in range(5)))
            return [run.read_blob(each).decode() for each in [*found, run.attach(b"c", "text/plain")]]

    with AsyncJournal.open(str(tmp_path / "runs.db")) as journal:
        got = asyncio.run(journal.run_async(agent, run_id="r"))
        assert [*(f"{kind}{n}" for kind in "ab" for n in range(5)), "c"] == got
        assert [] == errors(journal)


def test_anybody_attaches_to_an_open_run(journal):
    """Who records into an open run has the same verb, and the same bytes are stored once."""
    opened(journal, "o")
    refs = [journal.attach("o", data, "image/png") for data in (PNG, bytearray(PNG), memoryview(PNG))]
    assert [REF] * 3 == refs
    assert [SHA] == blobs(journal)
    assert ["run.opened", *["blob.attached"] * 3] == [each.type for each in journal.events("o")]


def test_what_only_looks_alike_is_data(journal):
    """A value with other keys or shapes is no reference: it comes back as it is, and names nothing."""
    alike = [
        {"$blob": SHA},
        {"$blob": "short", "bytes": 1, "media_type": "image/png"},
        REF | {"more": 1},
        REF | {"bytes": "1"},
        {"$blob": [REF | {"media_type": "png"}]},
        '{"$blob"',
    ]
    journal.run(lambda run: alike, run_id="r", input=alike)
    assert (alike, alike) == (
        journal.run(lambda run: 0, run_id="r", input=alike),
        next(journal.events("r")).event.input,
    )
    assert [] == [row for row in journal.store.read_raw("r") if blob_names.names(row[3])]
    assert [] == errors(journal)


@pytest.mark.parametrize("size", [1, 2 * limits.inline_value_bytes_max])
def test_an_event_names_the_bytes_wherever_they_are_referred_to(journal, size):
    """Also deep in a value, and in one that is itself held out of line."""
    opened(journal, "o")
    journal.attach("o", PNG, "image/png")
    journal.append("o", [e.MessageAppended("tool", {"a": [{"b": REF}], "c": "c" * size})])
    body = list(journal.store.read_raw("o"))[-1][3]
    assert {SHA} == blob_names.names(body)
    assert (size > 1) == (b'"ext"' in body)
    assert [(2, SHA)] == [(each.seq, each.digest) for each in attached(journal, "o")]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("text", "text/plain"), "expected bytes, got str; read the file, or encode the text"),
        ((b"", "text/plain"), "expected some bytes, got none"),
        ((b"x", "png"), "media_type: expected a media type such as image/png"),
        ((b"x", "image/png\n"), "media_type: expected a media type"),
        ((b"x", "image/png", ""), "name: expected a name of 1 to 512"),
    ],
)
def test_what_cant_be_attached(journal, args, says):
    """It is refused with what was expected, and nothing is written."""
    opened(journal, "o")
    with pytest.raises(InvalidArgument, match=says):
        journal.attach("o", *args)
    assert (1, []) == (journal.head("o").head_seq, blobs(journal))


def test_too_many_bytes_are_refused_before_anything_is_written(journal, monkeypatch):
    """The bound on one blob holds for bytes, and the error names it."""
    opened(journal, "o")
    monkeypatch.setattr(codec, "blob_bytes_max", 100)
    with pytest.raises(TooLarge, match="101 bytes, a value may have at most blob_bytes_max = 100"):
        journal.attach("o", bytes(101), "image/png")
    assert (1, []) == (journal.head("o").head_seq, blobs(journal))
    journal.attach("o", bytes(100), "image/png")


@pytest.mark.parametrize(
    ("ref", "kind", "says"),
    [
        ("text", InvalidArgument, "expected a reference to bytes, as `attach` returns it, got str; nothing was read"),
        ({"$blob": SHA}, InvalidArgument, "the reference: bytes is missing.*nothing was read"),
        (REF | {"$blob": "x"}, InvalidArgument, "a SHA-256 in hex"),
        (REF | {"bytes": 7}, InvalidArgument, "says 7 bytes, and there are 264"),
        (REF | {"private": True}, InvalidArgument, "says that its bytes are private, and they aren't"),
        (REF | {"$blob": "0" * 64}, MissingBlob, "the blob sha256:0000.* is not in the store"),
    ],
)
def test_what_isnt_a_reference_leads_nowhere(journal, ref, kind, says):
    """A reading says what is wrong with the reference, or that its bytes aren't there."""
    opened(journal, "o")
    journal.attach("o", PNG, "image/png")
    with pytest.raises(kind, match=says):
        journal.read_blob(ref)


@pytest.mark.parametrize("verb", [lambda: attach(b"x", "text/plain"), lambda: read_blob(REF)])
def test_the_functions_are_for_tools(journal, verb):
    """Outside of a tool they say which verb to take; in an agent's own code, too."""
    with pytest.raises(NotInRun, match=r"there it is run\.\w+ or journal\.\w+"):
        verb()
    with pytest.raises(NotInRun):
        journal.run(lambda run: verb(), run_id="r")


def test_a_run_that_was_stopped_takes_no_bytes(journal):
    """As every verb of it, outside its tools."""

    def interrupted(run):
        with run.step("a"):
            raise KeyboardInterrupt

    def agent(run):
        with suppress(KeyboardInterrupt):
            interrupted(run)
        run.attach(PNG, "image/png")

    with pytest.raises(KeyboardInterrupt):
        journal.run(agent, run_id="r")
    assert [] == blobs(journal)


# Damage.


@pytest.mark.parametrize(("damage", "code"), [("DELETE FROM blobs", "blob_missing"), ("UPDATE", "blob_damaged")])
def test_bytes_that_are_gone_or_changed_are_found(tmp_path, damage, code):
    """By the audit of every event that refers to them, in whatever run; a reading is refused."""
    path = tmp_path / "runs.db"
    with Journal.open(str(path)) as journal:
        opened(journal, "a")
        ref = journal.attach("a", PNG, "image/png")
        opened(journal, "b", {"deep": [ref]})
    raw = apsw.Connection(str(path))
    raw.execute(damage if damage != "UPDATE" else "UPDATE blobs SET body = zeroblob(length(body))")
    raw.close()
    with Journal.open(str(path)) as journal:
        for run_id in "ab":
            assert [(code, 2)] == [(each.code, each.seq) for each in audit_run(journal.store, run_id)]
        with pytest.raises(MissingBlob if code == "blob_missing" else ChangedBlob, match=SHA):
            journal.read_blob(ref)


def test_the_doctor_tells_what_a_recovery_would_miss(tmp_path):
    """An unfinished run that refers to bytes which aren't there is named."""
    path = tmp_path / "runs.db"
    with Journal.open(str(path)) as journal:
        journal.enqueue("k", {"page": REF}, run_id="r")
        lost = [each.what for each in doctor(journal.store) if each.ok is False]
    assert [what for what in lost if "event 1: bytes that it refers to aren't in the store" in what]


def test_a_crash_between_the_bytes_and_what_names_them_loses_nothing(tmp_path):
    """The bytes are committed with an event of their own: whatever comes behind it finds them."""

    def agent(run):
        with run.step("a"):
            ref = run.attach(PNG, "image/png")
            raise SystemExit(json.dumps(ref))

    path = str(tmp_path / "runs.db")
    with Journal.open(path) as journal, pytest.raises(SystemExit):
        journal.run(agent, run_id="r")
    with Journal.open(path) as journal:
        assert PNG == journal.read_blob(REF)
        assert [] == errors(journal)


def test_bytes_that_fail_to_be_written_leave_no_event(journal, monkeypatch):
    """Bytes and event are one transaction: an error before its commit leaves neither, one behind it both."""
    opened(journal, "o")

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the disk")

    monkeypatch.setattr(media, "reference", fail)  # behind the commit
    with pytest.raises(RuntimeError):
        journal.attach("o", PNG, "image/png")
    monkeypatch.undo()
    assert PNG == journal.read_blob(REF)
    monkeypatch.setattr("runjournal.writing.appender.linked", fail)  # before it
    with pytest.raises(RuntimeError):
        journal.attach("o", b"other", "image/png")
    assert (2, [SHA]) == (journal.head("o").head_seq, blobs(journal))


# Purging.


def test_a_purge_takes_the_bytes_that_no_other_run_refers_to(journal):
    """A run that was given the reference keeps them; the last one that goes takes them."""
    ref = journal.run(looking, run_id="r")
    journal.run(lambda run: None, run_id="s", input={"shown": [ref]})
    journal.purge("r", reason="old")
    assert PNG == journal.read_blob(ref)
    assert [] == errors(journal)
    journal.purge("s", reason="old")
    with pytest.raises(MissingBlob):
        journal.read_blob(ref)
    assert [] == blobs(journal)


@pytest.mark.parametrize("how", ["private", "out of line"])
def test_a_reference_that_can_be_seen_nowhere_keeps_the_bytes(journal, tmp_path, how):
    """Also one in an encrypted value, or in a value that is itself out of line, is known without reading it."""
    opened(journal, "o")
    ref = journal.attach("o", PNG, "image/png")
    more = "m" * (2 * limits.inline_value_bytes_max if how == "out of line" else 1)
    with Journal(journal.store, private=how == "private") as other:
        other.run(lambda run: None, run_id="s", input=[ref, more])
    journal.purge("o", reason="old")
    assert PNG == journal.read_blob(ref)


# Private runs.


@pytest.fixture
def private(tmp_path):
    with Journal.open(str(tmp_path / "private.db"), private=True, clock=FakeClock()) as opened_:
        yield opened_


def test_bytes_of_a_private_run_are_encrypted_and_go_with_it(private, tmp_path):
    """Neither the bytes nor their SHA-256 nor their name are in the file; erased, they can't be read."""
    ref = private.run(looking, run_id="r")
    assert (PNG, True) == (private.read_blob(ref), ref["private"])
    assert SHA != ref["$blob"]
    stored = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert [] == [what for what in (PNG, SHA.encode(), b"page.png") if what in stored]
    assert b"blob.attached" in stored
    assert private.check(looking, "r").ok
    private.erase("r", reason="asked")
    with pytest.raises(NotAllowed, match="belong to run r, whose key was erased"):
        private.read_blob(ref)
    with pytest.raises(NotAllowed, match="was erased"):
        private.attach("r", PNG, "image/png")
    assert [] == errors(private)
    assert [(5, ref["$blob"], "(erased)")] == [
        (each.seq, each.digest, each.ref["name"]) for each in attached(private, "r")
    ]


def test_each_private_run_has_its_own_bytes(private):
    """Nobody sees by the digest that two runs hold the same, and erasing one leaves the other's."""
    refs = [private.run(looking, run_id=run_id) for run_id in "ab"]
    assert refs[0]["$blob"] != refs[1]["$blob"]
    private.erase("a", reason="asked")
    assert PNG == private.read_blob(refs[1])


def test_bytes_that_look_encrypted_are_read_as_they_are(journal):
    """What they begin with says nothing: the reference does."""
    data = b"\0rj\1rwhatever"
    opened(journal, "o")
    assert data == journal.read_blob(journal.attach("o", data, "application/octet-stream"))


# Export, import.


@pytest.mark.parametrize("data", [PNG, b"plain text\nof lines\0", b'{"a":1}', b"\0" * 1000])
def test_an_export_takes_the_bytes_along(journal, data):
    """Also those that came into another run; the import has them, verified, and the same hashes."""
    opened(journal, "o")
    ref = journal.attach("o", data, "application/octet-stream")
    opened(journal, "s", [ref])
    for run_ids in (["o"], ["s"], ["s", "o"]):
        lines = list(export_runs(journal, run_ids))
        assert sum(map(len, lines)) < 6000
        with Journal.open("memory:") as there:
            import_jsonl(there, lines, "x")
            assert (data, []) == (there.read_blob(ref), errors(there))
            for run_id in run_ids:
                assert [each.hash for each in journal.events(run_id)] == [each.hash for each in there.events(run_id)]


def test_an_export_without_the_bytes_that_an_event_names_is_refused(journal):
    """Their line comes before the event, or says that they are missing; then the audit says it, too."""
    opened(journal, "s", [REF])
    lines = list(export_runs(journal, ["s"]))
    assert {"blob": SHA, "missing": True} == json.loads(lines[2])
    with pytest.raises(ValueError, match="1 blobs that the event refers to"):
        list(read_lines([*lines[:2], *lines[3:]]))
    with Journal.open("memory:") as there:
        import_jsonl(there, lines, "x")
        assert ["blob_missing"] == errors(there)


def test_private_bytes_go_with_the_key_of_their_run(private):
    """An export of the run has both; one of another run, that was given the reference, has the ciphertext alone."""
    ref = private.run(looking, run_id="r")
    private.run(lambda run: None, run_id="s", input=ref)
    for run_ids, kind in ((["r"], None), (["s"], NotAllowed)):
        with Journal.open("memory:") as there:
            import_jsonl(there, export_runs(private, run_ids), "x")
            assert [] == errors(there)
            if kind is None:
                assert PNG == there.read_blob(ref)
            else:
                with pytest.raises(kind, match="isn't in this store"):
                    there.read_blob(ref)


# The shell.


def shell(path: Path, *args: str) -> Any:
    return CliRunner().invoke(cli, ["--db", str(path), *args])


def test_the_shell_tells_of_bytes_and_writes_them_out(tmp_path):
    """A reference reads as type, size and digest; `blob` lists them and writes one to a new file or a pipe."""
    path, target = tmp_path / "runs.db", tmp_path / "page.png"
    with Journal.open(str(path)) as journal:
        journal.run(looking, run_id="r")
        journal.run(lambda run: None, run_id="s", input=b"".hex())
    text = f"image/png, 264 bytes, {SHA[:12]}…"
    for args in (("show", "r", "--events"), ("show", "r", "--messages"), ("show", "r", "--calls"), ("show", "r")):
        assert text in " ".join(shell(path, *args).stdout.split())
    listed = shell(path, "blob", "r").stdout
    assert ["5", SHA[:12], "264", "bytes", "image/png", "page.png"] == listed.split("\n")[1].split()
    assert [{"seq": 5, **REF, "name": "page.png"}] == json.loads(shell(path, "blob", "r", "-o", "json").stdout)
    done = shell(path, "blob", "r", SHA[:4], "--to", str(target))
    assert (0, PNG, 0o600) == (done.exit_code, target.read_bytes(), target.stat().st_mode & 0o777)
    assert (1, PNG) == (shell(path, "blob", "r", SHA, "--to", str(target)).exit_code, target.read_bytes())
    assert PNG == shell(path, "blob", "r", SHA.upper()).stdout_bytes
    for args, says in (
        (("s", SHA), "s refers to no bytes"),
        (("r", "ffff"), "whose SHA-256 begins with 'ffff'"),
        (("r", "--to", "x"), "expected the DIGEST"),
    ):
        failed = shell(path, "blob", *args)
        assert (2, True) == (failed.exit_code, says in failed.output)


def test_no_bytes_are_shown_on_a_terminal(tmp_path, monkeypatch):
    """There it says how to get them."""
    path = tmp_path / "runs.db"
    with Journal.open(str(path)) as journal:
        journal.run(looking, run_id="r")
    monkeypatch.setattr("runjournal.cli.attached.on_terminal", lambda: True)
    failed = shell(path, "blob", "r", SHA)
    assert (2, True, False) == (failed.exit_code, "--to FILE writes them" in failed.output, PNG in failed.stdout_bytes)
