"""Claude Code's transcripts: what becomes of each kind of line, of damage, of growth, and of sub-agents."""

import itertools
import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runjournal.importers import claude_files, lines
from runjournal.importers.base import FileImport, Item
from runjournal.importers.claude_code import EPOCH, Source, discover, read
from runjournal.log import events as e
from runjournal.log.codec import check_run_id, draft, linked
from runjournal.log.store import Import
from runjournal.projections.state import RunState

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SESSION = "0f0f0f0f-1111-4222-8333-444444444444"
USAGE = {"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 11}


class Shelf:
    """What a journal would remember: every run's events, folded, and how much of its file was taken."""

    def __init__(self) -> None:
        self.rows: dict[str, Import] = {}
        self.states: dict[str, RunState] = {}
        self.items: dict[str, list[Item]] = {}
        self.paths: dict[str, str] = {}

    def imported(self, run_id: str) -> Import | None:
        return self.rows.get(run_id)

    def take(self, path: Path | str, **session: str) -> FileImport:
        """Import a file as a Journal does: each event checked as it will be when it is stored."""
        result = read(Source(str(path), **session), self)
        for run in result.runs:
            run.items = list(run.items)
            if run.run_id not in self.rows:
                assert isinstance(run.items[0].event, e.RunImported)
            state = self.states.setdefault(check_run_id(run.run_id), RunState())
            for item in run.items:
                made = draft(item.event, at=item.at, by="import:claude-code")
                state.apply(linked(run.run_id, state.seq + 1, state.hash, made, epoch=0)[0])
            self.items.setdefault(run.run_id, []).extend(run.items)
            self.rows[run.run_id] = Import(run.run_id, run.source, run.sha256, run.taken)
            self.paths[run.run_id] = run.path
        return result

    def counts(self, path: Path | str) -> dict[str, object]:
        """The sums over the runs with this path, in the words of expected.json."""
        states = [self.states[run_id] for run_id, own in self.paths.items() if own == str(path)]
        roles: Counter[str] = Counter()
        tokens: dict[str, Counter[str]] = {}
        for state in states:
            roles.update(state.transcript.base.roles)
            for model, usage in state.costs.usage().items():
                tokens.setdefault(model, Counter(dict.fromkeys(usage, 0))).update(usage)
        return {
            "user_messages": roles["user"],
            "assistant_messages": roles["assistant"],
            "tool_calls": sum(state.calls.tools.started for state in states),
            "dangling_tool_calls": sum(state.calls.tools.in_flight for state in states),
            "tokens_by_model": {model: dict(usage) for model, usage in tokens.items()},
            "model_calls": sum(state.costs.count("calls") for state in states),
            "without_usage": sum(state.costs.count("without_usage") for state in states),
            "ended_calls": sum(state.calls.tools.completed + state.calls.tools.failed for state in states),
        }


def user(content="hello", **more):
    return {"type": "user", "uuid": "u", "sessionId": SESSION, "message": {"role": "user", "content": content}} | more


def assistant(*blocks, id="msg_1", request="req_1", model="m", usage=USAGE, **more):
    message = {"role": "assistant", "id": id, "model": model, "content": list(blocks), "usage": usage}
    message = {name: value for name, value in message.items() if value is not None}
    return {"type": "assistant", "requestId": request, "sessionId": SESSION, "message": message} | more


def text(words="hi"):
    return {"type": "text", "text": words}


def call(id="toolu_1", name="Bash", **args):
    return {"type": "tool_use", "id": id, "name": name, "input": args}


def answer(id="toolu_1", content="ok", **more):
    return {"type": "tool_result", "tool_use_id": id, "content": content} | more


def dump(*records):
    return b"".join(json.dumps(each).encode() + b"\n" for each in records)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "session.jsonl"


@pytest.fixture
def shelf():
    return Shelf()


@pytest.fixture
def take(file, shelf):
    """Import these records as a file; gives the events of its own run, after run.imported."""

    def _take(*records, data=b""):
        file.write_bytes(data or dump(*records))
        result = shelf.take(file)
        assert None is result.error
        return [item.event for item in result.runs[0].items[1:]] if result.runs else []

    return _take


# --- messages and calls ----------------------------------------------------------------------------------------------


def test_user_message(take):
    """A user entry is a message with the record as raw, without what content holds."""
    [message] = take(user("hello", cwd="/x"))
    assert ("user", "hello") == (message.role, message.content)
    assert [user("hello", cwd="/x") | {"message": {"role": "user"}}] == message.raw


def test_tool_results(take):
    """A user entry with a tool_result has role tool, ends its calls, and an is_error fails one."""
    made = take(
        assistant(call("a", x=1), call("b")), user([answer("a", "fine"), answer("b", "broken", is_error=True), text()])
    )
    message, completed, failed = made[-3:]
    assert "tool" == message.role
    assert e.ToolCompleted("a", 1, "fine") == completed
    assert e.ToolFailed("b", 1, {"type": "ToolError", "message": "broken"}, transient=False) == failed


def test_call(take):
    """A call keeps the provider's id and is unsafe: nothing of an imported run is ever sent again."""
    assert (
        e.ToolStarted("toolu_1", "Bash", {"command": "ls"}, "unsafe", False, "ask", 1, provider_call_id="toolu_1")
        == (take(assistant(call(command="ls")))[-1])
    )


def test_one_message_per_id(take, shelf, file):
    """Lines of one message.id, repeated and with others in between, are one message at the first one's place."""
    made = take(assistant(text("a")), user("x"), assistant(text("a")), assistant(text("b")), assistant(id="msg_2"))
    messages = [(each.role, each.content) for each in made if isinstance(each, e.MessageAppended)]
    assert [("assistant", [text("a"), text("b")]), ("user", "x"), ("assistant", [])] == messages
    assert 2 == shelf.counts(file)["assistant_messages"]


def test_messages_without_id(take, shelf, file):
    """Without a message.id each line is a message, and its usage counts."""
    take(assistant(text(), id=None), assistant(text(), id=None))
    counts = shelf.counts(file)
    assert (2, 6) == (counts["assistant_messages"], counts["tokens_by_model"]["m"]["input"])


def test_repeated_lines(take, shelf, file):
    """A line that comes again with its uuid, byte for byte, is one, and a note says so; any other one counts."""
    made = take(user(), user(), user() | {"more": 1}, user(uuid="v"), user(uuid=None), user(uuid=None))
    assert 5 == shelf.counts(file)["user_messages"]
    said = "line 2 of the file repeats an earlier one, with its uuid"
    assert [e.NoteAdded(said, code="repeated_line")] == [each for each in made if isinstance(each, e.NoteAdded)]


def test_text_content(take):
    """An assistant's content that is plain text becomes a block."""
    record = assistant()
    record["message"]["content"] = "plain"
    assert [text("plain")] == take(record)[-1].content


def test_repeated_call(take, shelf, file):
    """A call whose id comes again in its message is started once and ended once."""
    made = take(assistant(call()), assistant(call()), user([answer()]), user([answer()], uuid="v"))
    assert 1 == sum(isinstance(each, e.ToolCompleted) for each in made)
    counts = shelf.counts(file)
    assert (1, 0) == (counts["tool_calls"], counts["dangling_tool_calls"])


def test_ids_that_begin_anew(take, shelf, file):
    """A call is known by its message and its id: one of another message is another call, and has the next result."""
    made = take(
        assistant(call(x=1)),
        user([answer(content="one")], uuid="1"),
        assistant(call(x=2), id="msg_2"),
        user([answer(content="two")], uuid="2"),
        assistant(call(x=3), id="msg_3"),
    )
    assert ["toolu_1", "toolu_1.msg_2", "toolu_1.msg_3"] == [
        each.call_id for each in made if isinstance(each, e.ToolStarted)
    ]
    assert {"toolu_1"} == {each.provider_call_id for each in made if isinstance(each, e.ToolStarted)}
    assert [("toolu_1", "one"), ("toolu_1.msg_2", "two")] == [
        (each.call_id, each.result) for each in made if isinstance(each, e.ToolCompleted)
    ]
    assert (3, 1) == (shelf.counts(file)["tool_calls"], shelf.counts(file)["dangling_tool_calls"])


def test_names_of_calls_never_clash(take, shelf, file):
    """An id that looks like the name that we made of another one is still a call of its own."""
    ids = [("a", "m"), ("a", "b"), ("a.b", "c"), ("a.b", "b")]
    made = take(*(assistant(call(each), id=message) for each, message in ids))
    assert 4 == len({each.call_id for each in made if isinstance(each, e.ToolStarted)})


def test_equal_blocks(take):
    """Equal blocks of one message stay: in one line, and in lines with ids of their own."""
    lines = [assistant(text("a"), text("a"), uuid="1"), assistant(text("b"), uuid="2"), assistant(text("b"), uuid="3")]
    assert [text("a"), text("a"), text("b"), text("b")] == take(*lines)[-1].content


@pytest.mark.parametrize("uuids", [(None, None, None), ("1", "1", "1"), ("1", "2", "3")])
def test_snapshots(take, uuids):
    """Of several snapshots of a message the one with the most output counts, whole: its content and its usage."""
    usages = [{"input_tokens": 9, "output_tokens": 1}, {"output_tokens": 7}, {"input_tokens": 8, "output_tokens": 2}]
    contents = [[text("Hel")], [text("Hello"), call()], [text("Hello")]]
    order = (0, 2, 1) if uuids[0] != uuids[1] else (0, 1, 2)
    lines = [
        assistant(*contents[place], usage=usages[place], **({"uuid": uuid} if uuid else {}))
        for place, uuid in zip(order, uuids, strict=True)
    ]
    made = take(*lines)
    [message] = [each for each in made if isinstance(each, e.MessageAppended)]
    [answered] = [each for each in made if isinstance(each, e.ModelCompleted)]
    assert [text("Hello"), call()] == message.content
    usage = answered.usage or {}
    assert (None, 7) == (usage.get("input"), usage["output"])


def test_whole_message_behind_its_pieces(take):
    """A line that holds all blocks of the lines before it, and more, is the message so far."""
    lines = [[text("a")], [text("b")], [text("a"), text("b"), text("c")]]
    made = take(*(assistant(*blocks, uuid=f"{number}") for number, blocks in enumerate(lines)))
    assert lines[-1] == made[-1].content


def test_a_message_id_that_another_model_uses(take, shelf, file):
    """Two models under the same ids are two calls, and a note says so; one that has cost nothing is no other."""
    zero = dict.fromkeys(USAGE, 0)
    made = take(assistant(model="x", usage=zero), assistant(), assistant(model="n"), assistant(model="y", usage=zero))
    assert {"m": 5, "n": 5} == {
        model: usage["output"] for model, usage in shelf.counts(file)["tokens_by_model"].items()
    }
    said = "line 3 of the file is another request under the ids of one before"
    assert [e.NoteAdded(said, code="id_reused")] == [each for each in made if isinstance(each, e.NoteAdded)]


@pytest.mark.parametrize("requests", [(None, "req_1"), ("req_1", None)])
def test_a_line_that_names_no_request(take, requests):
    """A line that doesn't name its request belongs to that of its message."""
    made = take(*(assistant(request=request) for request in requests))
    assert ["req_1"] == [each.request_id for each in made if isinstance(each, e.ModelCompleted)]


def test_where_a_call_stood(take):
    """An answer keeps what tells a copy from another call: its message, its request, its session, its line."""
    answered = take(assistant(uuid="u1", agentId="a1"))[1]
    assert ("msg_1", "req_1") == (answered.response_id, answered.request_id)
    assert {"session_id": SESSION, "uuid": "u1", "agent_id": "a1"} == answered.origin


def test_dangling_call(take, shelf, file):
    """A call without a result stays in flight."""
    take(assistant(call()))
    assert 1 == shelf.counts(file)["dangling_tool_calls"]


def test_orphan_result(take):
    """A result without a call is a note beside its message."""
    assert e.NoteAdded("a result without a call", code="orphan_result", call_id="toolu_1") == take(user([answer()]))[-1]


def test_result_before_call(take, shelf, file):
    """A result that stands before its call ends it, and leaves no note."""
    made = take(user([answer()]), assistant(call()))
    assert e.ToolCompleted("toolu_1", 1, "ok") == made[-1]
    assert [] == [each for each in made if isinstance(each, e.NoteAdded)]


def test_call_without_id(take, shelf, file):
    """A call without an id counts and is never in flight, since no result can be told to be its own."""
    take(assistant({"type": "tool_use", "name": "Bash", "input": {}}), user([{"type": "tool_result", "content": "ok"}]))
    counts = shelf.counts(file)
    assert (1, 0) == (counts["tool_calls"], counts["dangling_tool_calls"])


@pytest.mark.parametrize("odd", ["nul\0", "x" * 600, "\ud800", 7])
def test_odd_ids(take, odd):
    """Ids that the journal can't hold are replaced by their digests, for call and result alike."""
    made = take(assistant(call(odd), id=odd), user([answer(odd)]))
    assert made[-1].call_id == next(each.call_id for each in made if isinstance(each, e.ToolStarted))


# --- usage -----------------------------------------------------------------------------------------------------------


def test_usage_is_the_maximum(take, shelf, file):
    """Per message and request each counter's maximum counts, neither the sum nor the first line."""
    take(assistant(usage=USAGE | {"output_tokens": 1}), assistant(), assistant(usage=USAGE | {"input_tokens": 1}))
    expected = {"m": {"input": 3, "output": 5, "cache_read": 7, "cache_write": 11}}
    assert expected == shelf.counts(file)["tokens_by_model"]


def test_usage_of_two_requests(take, shelf, file):
    """Two requests of one message are two model calls, and one message."""
    made = take(assistant(), assistant(request="req_2"))
    assert 2 == len({each.call_id for each in made if isinstance(each, e.ModelCompleted)})
    counts = shelf.counts(file)
    assert (1, 6) == (counts["assistant_messages"], counts["tokens_by_model"]["m"]["input"])


def test_what_was_recorded_elsewhere_has_a_list_price(take):
    """An imported call says what it costs by the list of its day; never that anybody billed it."""
    usage = {"input_tokens": 1000, "output_tokens": 200}
    told = take(assistant(usage=usage, model="claude-sonnet-4-5-20250929", timestamp="2026-11-01T10:00:00Z"))
    ended = next(event for event in told if isinstance(event, e.ModelCompleted))
    assert ended.price is not None
    assert (None, "list", "0.006") == (ended.cost, ended.price["source"], ended.price["amount"])


def test_cache_creation(take, shelf, file):
    """Without cache_creation_input_tokens the parts of cache_creation are summed."""
    take(assistant(usage={"cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 3}}))
    assert 5 == shelf.counts(file)["tokens_by_model"]["m"]["cache_write"]


def test_zero_and_missing_usage(take, shelf, file):
    """A zero usage is kept as zero, a missing one as unknown; the model of the group is its last line's."""
    take(
        assistant(model="first", usage={}),
        assistant(model="<synthetic>", usage={"input_tokens": 0}),
        assistant(id="msg_2", model=None, usage=None),
        assistant(id="msg_3", model=None),
    )
    assert {"<synthetic>": 0, "unknown": 3} == {
        model: usage["input"] for model, usage in shelf.counts(file)["tokens_by_model"].items()
    }


@pytest.mark.parametrize("odd", [None, "7", -1, 2**70, 1.5, True, [1]])
def test_odd_counters(take, shelf, file, odd):
    """A counter that is no count is none."""
    take(assistant(usage={"input_tokens": odd, "output_tokens": 5}))
    assert {"m": {"input": 0, "output": 5, "cache_read": 0, "cache_write": 0}} == shelf.counts(file)["tokens_by_model"]


# --- other records ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [{"type": "new"}, "words", 42, [1], {"type": "user", "message": "error"}, {"a": "b"}])
def test_unknown_records(take, other):
    """What isn't a message is kept as the line that it was."""
    assert e.NoteAdded(json.dumps(other), code="record") == take(user(), other)[-1]


def test_titles(take, shelf):
    """The title that a person gave wins over the model's, and that over a summary; the first version counts."""
    titles = [{"type": "custom-title", "customTitle": "mine"}, {"type": "summary", "summary": "long"}]
    take(*titles, {"type": "ai-title", "aiTitle": "its"}, user(version="1.2"), user(version="1.3"))
    [begin, *_] = next(iter(shelf.items.values()))
    assert ("mine", "1.2", "claude-code") == (begin.event.title, begin.event.tool_version, begin.event.tool)


def test_times(take, shelf):
    """Times become UTC; a record without a good one has that of the record before, the first ones that of the first."""
    take(user(), user(timestamp="2026-01-02T03:04:05+01:00"), user(timestamp="soon"))
    [items] = shelf.items.values()
    assert {"2026-01-02T02:04:05.000000Z"} == {item.at for item in items}


def test_no_times(take, shelf):
    """A file without any time begins with the epoch."""
    take(user())
    [items] = shelf.items.values()
    assert {EPOCH} == {item.at for item in items}


@pytest.mark.parametrize("odd", ["\ud800", 2**70, float("nan"), float("inf")])
def test_unstorable_values(take, odd):
    """A message with what the journal can't hold is taken all the same, with the exact line in raw."""
    [message] = take(user([text(), {"odd": odd}]))
    assert [{"json": json.dumps(user([text(), {"odd": odd}]))}] == message.raw
    assert text() == message.content[0]


def test_deep_values(take):
    """What nests deeper than the journal allows becomes text at that depth."""
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    [message] = take(user(deep))
    assert "json" in message.raw[0]


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R92")
def test_torn_tail(file, shelf):
    """A torn last line is in quarantine with its number and cause, and all before it is taken."""
    file.write_bytes(dump(user("a"), user("b"))[:-9])
    result = shelf.take(file)
    assert ([2], True, 1) == (
        [q.line for q in result.quarantined],
        result.torn_tail,
        shelf.counts(file)["user_messages"],
    )
    assert result.quarantined[0].cause.startswith("torn")


@pytest.mark.requirement("R92")
def test_torn_tail_grows(file, shelf):
    """A line that was torn is taken whole once the rest of it has come."""
    whole = dump(user("a"), user("b"))
    file.write_bytes(whole[:-9])
    shelf.take(file)
    file.write_bytes(whole)
    result = shelf.take(file)
    assert ([], False, 2) == (result.quarantined, result.torn_tail, shelf.counts(file)["user_messages"])


@pytest.mark.requirement("R92")
def test_last_line_without_newline(take, shelf, file):
    """A last line that is whole is taken, with or without a newline behind it."""
    take(data=dump(user("a"), user("b"))[:-1])
    assert 2 == shelf.counts(file)["user_messages"]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b'1{"type": "user"}', "something that is no whole record follows the record at column 2"),
        (b'{"type": "us{"type": "user"}', "not valid JSON: Expecting ',' delimiter at column 15"),
        (b'{"type"', "not valid JSON: Expecting ':' delimiter at column 8"),
        (b'{"type": 1} x', "something that is no whole record follows the record at column 13"),
        (b"\xff\xfe", "not valid UTF-8 at byte 1"),
        (b"\0\0\0", "not valid JSON: NUL bytes from column 1"),
        (b"9" * 5000, "a number with too many digits"),
        (b"[" * 200_000, "nested deeper than transcript_depth_max = 500"),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "nested deeper than transcript_depth_max = 500"),
        (b"[" + b"{}," * 125_000 + b"{}]", "more values than transcript_values_max = 250000"),
    ],
)
def test_quarantine(file, shelf, line, cause):
    """A bad line between good ones is in quarantine with its cause, and a note of it in its place."""
    file.write_bytes(dump(user("a")) + line + b"\n" + dump(user("b")))
    result = shelf.take(file)
    assert ([(2, cause)], False) == ([(q.line, q.cause) for q in result.quarantined], result.torn_tail)
    assert 2 == shelf.counts(file)["user_messages"]
    assert e.NoteAdded(f"line 2 of the file was quarantined: {cause}", code="quarantined") in [
        item.event for item in result.runs[0].items
    ]


def test_long_line(file, shelf, monkeypatch):
    """A line over the bound is in quarantine, and the next one is read."""
    monkeypatch.setattr(lines, "transcript_line_bytes_max", 300)
    file.write_bytes(dump(user("a"), user("x" * 1000), user("b")))
    assert ["longer than transcript_line_bytes_max = 300"] == [q.cause for q in shelf.take(file).quarantined]
    assert 2 == shelf.counts(file)["user_messages"]


def test_odd_but_good_lines(take, shelf, file):
    """A byte order mark, carriage returns and blank lines are no damage."""
    data = b"\xef\xbb\xbf" + dump(user("a")).replace(b"\n", b"\r\n") + b"\r\n  \n" + dump(user("b"))
    take(data=data)
    assert 2 == shelf.counts(file)["user_messages"]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"no\njson\n", b"42\n"])
def test_nothing_came_in(file, shelf, data):
    """A file without a single record gives no run."""
    file.write_bytes(data)
    assert [] == shelf.take(file).runs


def test_no_file(tmp_path, shelf):
    """What can't be read is an error of that file alone: a missing one, a folder, a pipe, an impossible name."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none", tmp_path, tmp_path / "pipe", "a\0b"):
        result = shelf.take(path)
        assert (True, []) == (bool(result.error), result.runs)


@given(
    st.binary(max_size=300) | st.lists(st.sampled_from([b"{", b"}", b'"', b"\n", b"[", b"1", b"\\ud800"])).map(b"".join)
)
def test_any_bytes(tmp_path_factory, data):
    """Whatever the bytes, reading them doesn't raise."""
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(data)
    Shelf().take(path)


# --- again and grown -------------------------------------------------------------------------------------------------


def test_again(take, file, shelf):
    """The same file again adds nothing."""
    take(assistant(call()), user([answer()]))
    assert [[]] == [run.items for run in shelf.take(file).runs]


def test_moved(take, file, shelf, tmp_path):
    """A file that was moved is still the same run."""
    take(user())
    (tmp_path / "other").mkdir()
    assert [[]] == [run.items for run in shelf.take(file.rename(tmp_path / "other" / file.name)).runs]


def test_grown_message(take, file, shelf):
    """The rest of a message continues it, and of its usage the difference is added."""
    records = [assistant(text("a"), usage=USAGE | {"output_tokens": 1}), assistant(text("a")), assistant(call())]
    take(records[0])
    file.write_bytes(dump(*records))
    added = [item.event for item in shelf.take(file).runs[0].items]
    assert ["model.recounted", "message.appended", "tool.started"] == [each.TYPE for each in added]
    assert [call()] == added[1].content
    assert (1, 5) == (added[0].was["output"], added[0].usage["output"])
    assert (1, 5) == (shelf.counts(file)["assistant_messages"], shelf.counts(file)["tokens_by_model"]["m"]["output"])
    assert 1 == shelf.counts(file)["model_calls"]


def test_grown_message_without_usage(take, file, shelf):
    """A message whose usage comes later is one call, of which everything is known then, its model included."""
    records = [assistant(usage=None), assistant(), assistant(model="n", usage={"output_tokens": 9})]
    for upto in (1, 2, 3):
        file.write_bytes(dump(*records[:upto]))
        shelf.take(file)
    whole = Shelf()
    whole.take(file)
    assert whole.counts(file) == shelf.counts(file)
    assert {"model_calls": 2, "without_usage": 0}.items() <= shelf.counts(file).items()


def test_grown_message_behind_another(take, file, shelf):
    """The rest of a message behind which another one came is a note: messages keep their order and number."""
    records = [assistant(text("a")), assistant(id="msg_2"), assistant(text("b"))]
    take(*records[:2])
    file.write_bytes(dump(*records))
    [item] = shelf.take(file).runs[0].items
    assert ("message_continued", [text("b")]) == (item.event.code, json.loads(item.event.text)["content"])
    assert 2 == shelf.counts(file)["assistant_messages"]


def test_shortened_file(take, file, shelf):
    """A file that is shorter than what was taken is left alone, with the reason."""
    take(user("a"), user("b"))
    file.write_bytes(dump(user("a")))
    result = shelf.take(file)
    assert ([], True) == (result.runs, "were imported before" in (result.error or ""))


@pytest.mark.parametrize("order", [("short", "long"), ("long", "short"), ("short", "long", "short", "long")])
def test_two_folders(tmp_path, shelf, order):
    """A session in two folders is one run, as long as its longer copy, in whatever order they are imported."""
    lines = [user(f"{number}", uuid=f"{number}") for number in range(9)]
    paths = {name: tmp_path / name / f"{SESSION}.jsonl" for name in order}
    for name, path in paths.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(dump(*lines) if name == "long" else dump(*lines)[:-400])
    for name in order:
        result = shelf.take(paths[name])
        assert (None, [SESSION]) == (result.error, [run.run_id for run in result.runs])
    assert 9 == shelf.states[SESSION].transcript.base.roles["user"]


def test_two_folders_that_differ(tmp_path, shelf):
    """A shorter file with the same beginning that is no part of the longer one is left alone, with the reason."""
    paths = [tmp_path / name / f"{SESSION}.jsonl" for name in "ab"]
    for path, words in zip(paths, ("abcdefghi", "abxxxx"), strict=True):
        path.parent.mkdir()
        path.write_bytes(dump(*map(user, words)))
    shelf.take(paths[0])
    result = shelf.take(paths[1])
    assert ([], True) == (result.runs, "this one differs" in (result.error or ""))


def test_other_file_in_its_place(take, file, shelf):
    """A file that begins with another record is another run."""
    take(user("a"))
    take(user("b"))
    assert 2 == len(shelf.rows)


def test_changed_tail(take, file, shelf):
    """A change behind the first record is found by the hash of what was taken."""
    take(user("a"), user("b"))
    file.write_bytes(dump(user("a"), user("B"), user("c")))
    assert "were changed" in (shelf.take(file).error or "")


@pytest.mark.parametrize("space", [b"", b" ", b"\t"])
def test_glued_line(take, space):
    """A line of whole records that are glued together is all of them, each but the first with a note."""
    a, b = dump(user("a", uuid="1"))[:-1], dump(user("b", uuid="2"))
    made = take(data=a + space + b)
    said = e.NoteAdded("line 1 of the file holds two records glued together; both were taken", code="glued")
    assert ["a", said, "b"] == [getattr(each, "content", each) for each in made]


def test_whole_record_before_a_broken_one(file, shelf):
    """Of a line that goes on with what is no record, the whole record is taken and the rest is in quarantine."""
    file.write_bytes(dump(user("a", uuid="1"))[:-1] + b'{"type": "us\n' + dump(user("b", uuid="2")))
    result = shelf.take(file)
    assert [1] == [each.line for each in result.quarantined]
    assert 2 == shelf.counts(file)["user_messages"]


@pytest.mark.parametrize("last", [b"4", b"[1]", b'"a"', b"null"])
def test_last_line_that_may_go_on(file, shelf, last):
    """A last line without a newline that is no record is torn: another value may become of it."""
    file.write_bytes(dump(user()) + last)
    assert shelf.take(file).torn_tail
    file.write_bytes(dump(user()) + last + b"\n")
    assert [e.NoteAdded(last.decode(), code="record")] == [item.event for item in shelf.take(file).runs[0].items]


def test_glued_to_the_last_line(take, file, shelf):
    """A record that is glued to a line that was taken is taken, and so is what follows."""
    whole = [dump(user(words, uuid=words)) for words in "abc"]
    take(data=whole[0][:-1])
    file.write_bytes(whole[0][:-1] + whole[1] + whole[2])
    assert [] == shelf.take(file).quarantined
    assert 3 == shelf.counts(file)["user_messages"]


_usages = st.none() | st.fixed_dictionaries({"input_tokens": st.integers(0, 9), "output_tokens": st.integers(0, 9)})
_blocks = st.lists(st.builds(text, st.sampled_from("ab")) | st.builds(call, st.sampled_from("abcd")), max_size=2)
_places = st.fixed_dictionaries(
    {}, optional={"isSidechain": st.just(True), "uuid": st.sampled_from("xyz"), "parentUuid": st.sampled_from("xyz")}
)


@st.composite
def _records(draw):
    """A user's or an assistant's entry, with ids of a few, so that they come again."""
    if draw(st.booleans()):
        results = [answer(each) for each in draw(st.lists(st.sampled_from("abcd"), max_size=2))]
        return user(results or "words") | draw(_places)
    message_id, request = draw(st.sampled_from([None, "m1", "m2"])), draw(st.sampled_from([None, "r1", "r2"]))
    model = draw(st.sampled_from(["m", "n", None]))
    made = assistant(*draw(_blocks), id=message_id, request=request, usage=draw(_usages), model=model)
    return made | draw(_places)


_line = st.builds(
    lambda record, end: json.dumps(record).encode() + end,
    _records(),
    st.sampled_from([b"\n", b"\n", b"\r\n", b"", b" "]),
)
_damage = st.sampled_from([b"", b"{", b"\xff", b"42", b'{"a":1}{"b":2}', b'{"a":1', b"\r", b'{"type":"new"}'])


@pytest.mark.requirement("R92")
@settings(max_examples=settings().max_examples // 2)  # up to five imports each
@given(
    st.lists(_line | _damage | st.just(b"\n"), min_size=1, max_size=10).map(b"".join),
    st.lists(st.floats(0, 1), min_size=1, max_size=3).map(sorted),
)
@example(b'{"a":1}\n{"b":2}', [0.5])
def test_cut_and_grown(tmp_path_factory, data, cuts):
    """A file that is imported as it grows, cut anywhere, comes to the same counts as one imported whole."""
    path = tmp_path_factory.getbasetemp() / "grown.jsonl"
    shelf = Shelf()
    for cut in [*cuts, 1.0]:
        path.write_bytes(data[: round(cut * len(data))])
        assert None is shelf.take(path).error
    whole = Shelf()
    whole.take(path)
    assert whole.counts(path) == shelf.counts(path)


def test_every_cut(tmp_path):
    """A file that is imported once before it was whole has the same counts, wherever that found its end."""
    data = dump(
        assistant(text("H"), usage={"output_tokens": 1}, uuid="1", model="n"),
        assistant(text("Hi"), usage={"input_tokens": 2, "output_tokens": 3}, uuid="2", request=None),
    )
    data += dump(assistant(call(), uuid="3", usage=None))[:-1] + dump(user([answer()], uuid="4"))
    data += b"7\n{ x\n" + dump(assistant(call(), id="msg_2", uuid="5"), user([answer()], uuid="6"))
    path = tmp_path / "cut.jsonl"
    whole = Shelf()
    path.write_bytes(data)
    whole.take(path)
    ends = [place for place, byte in enumerate(data, 1) if byte in b"}\n"]
    for cut in sorted({*range(0, len(data), 31), *ends, *(end - 1 for end in ends)}):
        shelf = Shelf()
        for part in (data[:cut], data):
            path.write_bytes(part)
            shelf.take(path)
        assert whole.counts(path) == shelf.counts(path), cut


# --- sub-agents ------------------------------------------------------------------------------------------------------


def test_inline_sidechains(file, shelf):
    """Each tree of sidechain lines is a child run with the path of its file, spawned where it begins."""
    side = {"isSidechain": True}
    file.write_bytes(
        dump(
            user("main", uuid="m1", parentUuid=None),
            user("one", uuid="s1", parentUuid=None) | side,
            user("two", uuid="t1", parentUuid=None) | side,
            assistant(text(), uuid="s2", parentUuid="s1") | side,
        )
    )
    main, one, two = shelf.take(file).runs
    spawned = [item.event.child_run_id for item in main.items if isinstance(item.event, e.ChildSpawned)]
    assert [one.run_id, two.run_id] == spawned
    assert [main.run_id] * 2 == [one.parent_run_id, two.parent_run_id]
    assert {str(file)} == {main.path, one.path, two.path}
    assert 1 == shelf.states[one.run_id].transcript.base.roles["assistant"]


def test_agent_beside(tmp_path, shelf):
    """The file of a sub-agent beside its session is one run, whose parent is the session."""
    path = tmp_path / "agent-0a1b.jsonl"
    path.write_bytes(
        dump(user(agentId="0a1b", isSidechain=True), assistant(isSidechain=True, uuid="x", parentUuid="u"))
    )
    [run] = shelf.take(path).runs
    assert (f"{SESSION}.agent-0a1b", SESSION) == (run.run_id, run.parent_run_id)


def test_agent_tree(tmp_path, shelf):
    """Under <session>/subagents all is found behind its session, as its children, with what .meta.json says."""
    (tmp_path / f"{SESSION}.jsonl").write_bytes(dump(user()))
    folder = tmp_path / SESSION / "subagents" / "workflows" / "wf_1"
    folder.mkdir(parents=True)
    (folder / "agent-1.jsonl").write_bytes(dump(user(isSidechain=True)))
    (folder / "agent-1.meta.json").write_text('{"description": "Look around"}')
    (folder / "journal.jsonl").write_bytes(dump({"type": "started", "key": "k"}))
    sources = discover([str(tmp_path)])
    main, agent, journal = (shelf.take(source.path, session_path=source.session_path).runs[0] for source in sources)
    assert (SESSION, None) == (main.run_id, main.parent_run_id)
    assert (f"{SESSION}.agent-1", SESSION) == (agent.run_id, agent.parent_run_id)
    assert SESSION == journal.parent_run_id
    begin = agent.items[0].event
    assert ("Look around", '{"description": "Look around"}') == (begin.title, begin.note)


def test_agent_of_another_name(tmp_path, shelf):
    """A file of sidechain lines that name their agent is the agent's run, whatever it is called."""
    path = tmp_path / "copy.jsonl"
    path.write_bytes(dump(user(agentId="0a1b", isSidechain=True)))
    [run] = shelf.take(path).runs
    assert SESSION == run.parent_run_id


def test_same_session_twice(tmp_path, shelf):
    """Two files of one session, or of one name, are two runs."""
    other = tmp_path / "other"
    other.mkdir()
    paths = [tmp_path / f"{SESSION}.jsonl", tmp_path / "copy.jsonl", other / f"{SESSION}.jsonl"]
    for number, path in enumerate(paths):
        path.write_bytes(dump(user(f"file {number}")))
        shelf.take(path)
    assert 3 == len(shelf.rows)
    assert [[[]]] * 3 == [[run.items for run in shelf.take(path).runs] for path in paths]


# --- discovery -------------------------------------------------------------------------------------------------------


def test_discover(tmp_path):
    """A folder is walked for its .jsonl files, each once, not through links to folders, and a missing path is kept."""
    (tmp_path / "b").mkdir()
    for name in ("a.jsonl", "b/c.jsonl", "b/notes.txt", "agent-1.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.jsonl")
    found = [source.path for source in discover([str(tmp_path), str(tmp_path / "a.jsonl"), "gone", "a\0b"])]
    inside = [str(tmp_path / name) for name in ("a.jsonl", "b/c.jsonl", "agent-1.jsonl")]
    assert {*inside, "gone", "a\0b"} == set(found)
    assert len(found) == len(set(found))
    assert found.index(inside[2]) > found.index(inside[1])


def test_meta_that_is_none(tmp_path):
    """A .meta.json that is missing, broken, too long or no object is left alone."""
    path = tmp_path / "agent-1.meta.json"
    for data in (None, b"{", b"[]", b"\xff", b" " * 70_000 + b"{}"):
        if data is not None:
            path.write_bytes(data)
        assert (None, None) == claude_files.meta_of(str(tmp_path / "agent-1.jsonl"))


# --- real transcripts ------------------------------------------------------------------------------------------------


def _expected():
    path = DATA / "expected.json"
    found = json.loads(path.read_text()) if path.is_file() else {}
    wanted: list[object] = [(name, facts) for name, facts in found.items() if facts["format"] == "claude-code-jsonl"]
    return wanted or [
        pytest.param("none", {}, marks=pytest.mark.skip(f"{path} is missing: no real transcript was read"))
    ]


@pytest.mark.parametrize(("name", "facts"), _expected())
def test_real_transcripts(shelf, name, facts):
    """The sums over the runs of a real transcript are what was counted in it by other means."""
    result = shelf.take(DATA / name)
    counts = shelf.counts(DATA / name)
    assert {each: facts[each] for each in counts if each in facts} == _told(counts, facts)
    assert facts["malformed_lines"] == len(result.quarantined)


@pytest.mark.parametrize(("name", "facts"), _expected())
def test_real_transcripts_grown(tmp_path, name, facts):
    """A real transcript that is imported line by line, as it grows, comes to the same sums."""
    pieces = (DATA / name).read_bytes().splitlines(keepends=True)
    path, shelf = tmp_path / Path(name).name, Shelf()
    for data in itertools.accumulate(pieces):
        path.write_bytes(data)
        shelf.take(path)
    counts = shelf.counts(path)
    tokens = counts.pop("tokens_by_model")
    assert {each: facts[each] for each in counts if each in facts} == _told(counts, facts)
    assert _spent(facts["tokens_by_model"]) == _spent(tokens)


def _told(counts, facts):
    """What the facts have a word for."""
    return {each: count for each, count in counts.items() if each in facts}


def _spent(tokens):
    """What was spent; a model without any may be named differently while its message grows."""
    return {model: usage for model, usage in tokens.items() if any(usage.values())}
