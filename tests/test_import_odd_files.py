"""Files that nobody would write: each costs an import no more than itself, and no more memory than any other."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from runjournal.cli.app import cli
from runjournal.importers.claude_code import Source
from runjournal.importers.lines import Reader, open_file, parse
from runjournal.importers.transfer import export_runs, import_claude_code
from runjournal.journal import Journal
from runjournal.log import events as e
from runjournal.log import limits
from runjournal.log.store import Bill
from runjournal.looking.audit import audit_run

PEAK = Path(__file__).parent / "programs" / "peak_of.py"
PEAK_MB_MAX = 150


def user(content):
    return json.dumps({"type": "user", "message": {"role": "user", "content": content}}).encode()


GOOD = user("good")
ODD = {
    "deep": b'{"type":"user","message":' + b"[" * 900 + b"]" * 900 + b"}",
    "deep id": b'{"type":"user","isSidechain":true,"uuid":' + b"[" * 480 + b"]" * 480 + b',"message":{"content":1}}',
    "deeper": b"[" * 3_000_000,
    "values": b'{"type":"user","message":{"role":"user","content":[' + b"[]," * 2_000_000 + b"[]]}}",
    "keys": b"{" + b",".join(b'"%d":[]' % each for each in range(100_000)) + b"}",
    "huge number": b'{"type":"user","message":{"role":"user","content":1%s}}' % (b"0" * 5000),
    "huge float": b'{"type":"user","message":{"role":"user","content":1e99999}}',
    "huge key": b'{"type":"user","message":{"role":"user","content":{"%s":1}}}' % (b"k" * 2_000_000),
    "huge names": json.dumps(
        {
            "type": "assistant",
            "uuid": "u" * 100_000,
            "version": "v" * 100_000,
            "requestId": "r" * 100_000,
            "message": {"id": "i" * 100_000, "model": "m" * 2_000_000, "content": [{"type": "tool_use", "id": "x"}]},
        }
    ).encode(),
    "surrogates": b'{"type":"user","uuid":"\\ud800","message":{"role":"user","content":"\\ud800 \\udfff"}}',
    "surrogate keys": b'{"type":"assistant","message":{"id":"\\ud800","content":[{"\\ud800":1,"type":"tool_use"}]}}',
    "nul": b'{"type":"user","message":{"role":"user","content":"\0"}}',
    "escaped nul": b'{"type":"user","message":{"role":"user","content":"\\u0000","id":"\\u0000"}}',
    "not utf-8": b'{"type":"user","message":{"role":"user","content":"\xff"}}',
    "scalars": b"[1,null]",
}
TAKEN = {
    "deep id",
    "keys",
    "huge float",
    "huge key",
    "huge names",
    "surrogates",
    "surrogate keys",
    "escaped nul",
    "scalars",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_line(tmp_path, name):
    """A line that can't be taken is told with its place, and the lines around it and the files behind it come in."""
    (tmp_path / "a.jsonl").write_bytes(GOOD + b"\n" + ODD[name] + b"\n" + GOOD + b"\n")
    (tmp_path / "b.jsonl").write_bytes(GOOD + b"\n")
    result = CliRunner().invoke(
        cli, ["--db", str(tmp_path / "runs.db"), "import", "claude-code", str(tmp_path), "-o", "jsonl"]
    )
    rows = [json.loads(each) for each in result.stdout.splitlines()]
    quarantined = [line["line"] for row in rows for line in row["quarantined"]]
    assert (0 if name in TAKEN else 3, [] if name in TAKEN else [2]) == (result.exit_code, quarantined), result.stderr
    with Journal.open(tmp_path / "runs.db") as journal:
        ids = [run.run_id for run in journal.runs()]
        records = [each for run_id in ids for each in journal.events(run_id, types=["message.appended"])]
    assert 3 == [record.event.content for record in records].count("good")  # type: ignore[attr-defined]  # as a test may


def test_odd_files(tmp_path):
    """What can't be read is told, each with its path, and all other files come in."""
    (tmp_path / "a-folder.jsonl").mkdir()
    (tmp_path / "b-loop.jsonl").symlink_to("b-loop.jsonl")
    os.mkfifo(tmp_path / "c-pipe.jsonl")
    (tmp_path / "d-gone.jsonl").symlink_to("nowhere")
    (tmp_path / "e-zero.jsonl").symlink_to("/dev/zero")
    with (tmp_path / "f-endless.jsonl").open("wb") as file:
        file.truncate(200 * 1024 * 1024)
    (tmp_path / "z-good.jsonl").write_bytes(GOOD + b"\n")
    result = CliRunner().invoke(
        cli, ["--db", str(tmp_path / "runs.db"), "import", "claude-code", str(tmp_path), "-o", "jsonl"]
    )
    rows = {Path(row["path"]).name: row for row in map(json.loads, result.stdout.splitlines())}
    assert 1 == result.exit_code
    assert {"b-loop.jsonl", "c-pipe.jsonl", "d-gone.jsonl", "e-zero.jsonl", "f-endless.jsonl"} == {
        name for name, row in rows.items() if row.get("error")
    }
    assert ["longer than transcript_line_bytes_max = 67108864"] == [
        each["cause"].removeprefix("torn: the file ends in it (").removesuffix(")")
        for each in rows["f-endless.jsonl"]["torn"]
    ]
    assert 2 == rows["z-good.jsonl"]["events_added"]


def test_full_stack(tmp_path):
    """Whoever imports from deep in his own calls loses the lines that need more of the stack, and nothing else."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD + b"\n" + user([[[]]]).replace(b"[]", b"[" * 450 + b"]" * 450) + b"\n" + GOOD + b"\n")

    def below(depth):
        return below(depth - 1) if depth else import_claude_code(journal, Source(str(path)))

    with Journal.open("memory:") as journal:
        report = below(600)
    assert [2] == [each.line for each in report.quarantined]
    assert 4 == report.runs[0].events_added


@pytest.mark.parametrize(
    ("depth", "good"), [(limits.transcript_depth_max, True), (limits.transcript_depth_max + 1, False)]
)
def test_depth_is_that_of_values(tmp_path, depth, good):
    """Brackets in a text are no levels, and the bound is that of the levels."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"[" * (depth - 1) + b'["' + b'[{\\"' * 1000 + b'"' + b"]" * depth + b"\n")
    with open_file(str(path)) as file:
        [line] = Reader(file)
    found, bad = parse(line)
    assert (good, None if good else "nested deeper than transcript_depth_max = 500") == (
        bool(found),
        None if bad is None else str(bad),
    )


def test_commas_in_a_text_are_no_values(tmp_path):
    """A long text is taken, whatever stands in it."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(user('"[{,\\' * limits.transcript_values_max) + b"\n")
    with Journal.open("memory:") as journal:
        assert [] == import_claude_code(journal, Source(str(path))).quarantined


def test_many_quarantined_lines_are_counted(tmp_path):
    """Of very many bad lines the first are listed, all are counted, and each has its note in the run."""
    bad = limits.import_quarantined_held_max + 10
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD + b"\n" + b"{\n" * bad)
    result = CliRunner().invoke(
        cli, ["--db", str(tmp_path / "runs.db"), "import", "claude-code", str(path), "-o", "jsonl"]
    )
    [row] = map(json.loads, result.stdout.splitlines())
    assert (limits.import_quarantined_held_max, bad) == (len(row["quarantined"]), row["quarantined_count"])
    again = CliRunner().invoke(cli, ["--db", str(tmp_path / "runs.db"), "import", "claude-code", str(path)])
    assert f"{bad:,} lines quarantined" in again.stderr
    with Journal.open(tmp_path / "runs.db") as journal:
        codes = [getattr(record.event, "code", None) for record in journal.events(row["run_id"])]
    assert bad == codes.count("quarantined")


KEPT = st.lists(
    st.sampled_from(["user", "call", "more", "result", "side"]).flatmap(
        lambda kind: st.tuples(st.just(kind), st.integers(0, 6))
    ),
    max_size=40,
)


def _line(number, kind, name):
    message = {
        "user": {"role": "user", "content": f"{number}"},
        "side": {"role": "user", "content": f"{number}"},
        "call": {
            "role": "assistant",
            "id": f"m{name}",
            "content": [{"type": "tool_use", "id": f"c{name}", "name": "t"}],
        },
        "more": {"role": "assistant", "id": f"m{name}", "content": [{"type": "text", "text": f"{number}"}]},
        "result": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{name}", "content": number}]},
    }[kind]
    record = {"type": message["role"], "uuid": f"{number}", "message": message}  # type: ignore[index]  # as a test may
    return json.dumps(record | ({"isSidechain": True, "parentUuid": f"{name}"} if kind == "side" else {})).encode()


@settings(max_examples=2 * settings().max_examples // 5)  # four imports each
@given(KEPT, st.integers(0, 40))
def test_what_is_on_disk_is_what_was_in_memory(tmp_path_factory, kinds, cut):
    """An import that holds next to nothing in memory makes the same events as one that holds all, also in two parts."""
    path = tmp_path_factory.mktemp("t") / "t.jsonl"
    found = []
    for held in (1, 1000):
        with Journal.open("memory:") as journal, pytest.MonkeyPatch.context() as patch:
            for name in ("import_names_held_max", "import_messages_held_max"):
                patch.setattr(f"runjournal.importers.claude_session.{name}", held)
            patch.setattr("runjournal.importers.transfer.import_chunk_events", held)
            for part in (kinds[:cut], kinds):
                path.write_bytes(b"".join(_line(number, *each) + b"\n" for number, each in enumerate(part)))
                import_claude_code(journal, Source(str(path)))
            found.append(list(export_runs(journal, sorted(head.run_id for head in journal.runs()))))
    assert found[1] == found[0]


def test_newest_time(tmp_path):
    """The run that changed last is the one with the newest time in its file, wherever that stands in it."""
    times = {"a": ["03", "09", "04"], "b": ["05", "08"]}
    with Journal.open("memory:") as journal:
        for name, hours in times.items():
            path = tmp_path / f"{name}.jsonl"
            lines = [json.loads(user(hour)) | {"timestamp": f"2026-01-02T{hour}:00:00Z"} for hour in hours]
            path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            import_claude_code(journal, Source(str(path)))
        latest = journal.latest()
        assert latest is not None
        assert ("a.", "2026-01-02T09:00:00.000000Z") == (latest.run_id[:2], latest.updated_at)
        assert ["2026-01-02T09", "2026-01-02T08"] == sorted(
            (head.updated_at[:13] for head in journal.runs()), reverse=True
        )


def test_failed_import_leaves_nothing(tmp_path, monkeypatch):
    """An import that fails in its last part has written none of it, and the next one takes all."""
    monkeypatch.setattr("runjournal.importers.transfer.import_chunk_events", 2)
    path = tmp_path / "a.jsonl"
    path.write_bytes((GOOD + b"\n") * 9)
    made = []

    def failing(event, **more):
        made.append(event)
        if len(made) == 7:
            raise OSError("the disk")
        return draft(event, **more)

    from runjournal.importers.transfer import draft  # type: ignore[attr-defined]  # as a test may

    with Journal.open("memory:") as journal:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("runjournal.importers.transfer.draft", failing)
            with pytest.raises(OSError, match="the disk"):
                import_claude_code(journal, Source(str(path)))
        assert [] == list(journal.runs())
        [run] = import_claude_code(journal, Source(str(path))).runs
        assert 10 == run.events_added
        assert 10 == journal.replay(run.run_id).seq == journal.state(run.run_id).seq


def _peak_mb(*command):
    program = [sys.executable, str(PEAK), sys.executable, "-m", "runjournal.cli", *command]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def _record(role, name, *blocks, **more):
    message = {"role": role, "id": f"m{name}", "model": "m", "usage": {"input_tokens": 1}, "content": list(blocks)}
    return json.dumps({"type": role, "uuid": f"{role}{name}", "requestId": f"r{name}", "message": message} | more)


def _lines(kind, count):
    for number in range(count):
        call = {"type": "tool_use", "id": f"c{number}", "name": "t", "input": "x" * 200}
        result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": "x" * 200}
        if kind == "calls":
            yield _record("assistant", number, call)
            yield _record("user", number, result)
        elif kind == "orphans":
            yield _record("user", number, result)
        elif kind == "sidechains":
            yield _record("user", number, {"type": "text", "text": "x"}, isSidechain=True)
        else:
            yield "{"


@pytest.mark.parametrize(
    ("kind", "count"), [("calls", 6_000), ("orphans", 12_000), ("sidechains", 5_000), ("bad", 40_000)]
)
def test_memory_is_flat_in_lines(tmp_path, kind, count):
    """A transcript of thousands of lines takes hardly more memory than one of a few."""
    peaks = []
    for lines in (count // 10, count):
        path = tmp_path / f"{lines}.jsonl"
        path.write_text("".join(f"{line}\n" for line in ['{"type":"summary"}', *_lines(kind, lines)]))
        peaks.append(_peak_mb("--db", str(tmp_path / f"{lines}.db"), "import", "claude-code", str(path)))
    assert peaks[1] < peaks[0] + 30, peaks


@pytest.mark.parametrize("name", ["deeper", "values", "keys", "huge names"])
def test_memory_of_one_line(tmp_path, name):
    """A line of some megabytes takes no hundred times its size of memory."""
    (tmp_path / "a.jsonl").write_bytes(ODD[name] + b"\n" + GOOD + b"\n")
    assert _peak_mb("--db", str(tmp_path / "runs.db"), "import", "claude-code", str(tmp_path)) < PEAK_MB_MAX
    with Journal.open(tmp_path / "runs.db") as journal:
        assert 1 <= len(list(journal.runs()))


def test_memory_of_an_export_is_flat_in_runs(tmp_path):
    """An export of many runs takes hardly more memory than one of a few."""
    peaks = []
    for count in (100, 1500):
        path = tmp_path / f"{count}.jsonl"
        with Journal.open("memory:") as journal:
            for number in range(count):
                journal.append(f"r{number}", [e.RunQueued(kind="k", input="x" * 1000)], expect=0)
            path.write_bytes(b"".join(export_runs(journal, [f"r{number}" for number in range(count)])))
        peaks.append(_peak_mb("--db", str(tmp_path / f"{count}.db"), "import", "jsonl", str(path)))
    assert peaks[1] < peaks[0] + 10, peaks


def test_rusage_is_in_kilobytes():
    """What the measure rests on: this process has some megabytes, told in units of 1024 bytes."""
    assert 4 * 1024 < resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 16 * 1024**2


def test_ledger_of_a_grown_message(tmp_path):
    """A model call that has cost more since it was imported has one row in the ledger, of its own day, and audits."""
    path, found = tmp_path / "a.jsonl", []
    lines = [
        {"type": "assistant", "requestId": "r", "timestamp": f"2026-01-0{day}T00:00:00Z"}
        | {"message": {"id": "m", "model": "x", "content": [], "usage": {"input_tokens": 3, "output_tokens": day}}}
        for day in (1, 2)
    ]
    for parts in ([1, 2], [2]):
        with Journal.open("memory:") as journal:
            for upto in parts:
                path.write_text("".join(f"{json.dumps(line)}\n" for line in lines[:upto]))
                assert None is import_claude_code(journal, Source(str(path))).error
            [head] = journal.runs()
            run_id = head.run_id
            found += [Bill._make(each)._replace(seq=0) for each in journal.store.index_rows("bills", run_id)]
            assert [] == [each.code for each in audit_run(journal.store, run_id) if each.severity == "error"]
    assert [found[0]] * 2 == found
    row = found[0]
    assert (3, 2, "unpriced", "m", "r", "2026-01-01") == (
        row.input, row.output, row.status, row.response_id, row.request_id, row.at[:10],
    )  # fmt: skip
