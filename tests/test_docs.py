"""The documents: the generated pages are what the code says, every block of code runs, every link leads somewhere.

How a block is written down:

- ```python runs; the blocks of a page share a namespace and a folder. ```output behind it is what it prints.
- ```console: each line that begins with `$ ` runs in a shell, in the page's folder, with a home of its own; `cd`,
  `export` and `unset` hold for the blocks below. The lines
  below it are the shape of what it prints: of each line the first word, or the first two where that is a number, and
  a line of column titles whole; digits may differ; a line with nothing but `…` stands for any number of lines, the
  empty ones don't count. The exit codes that are allowed stand above, as `<!-- exits: 0 3 -->`.
- ```json and ```toml are parsed; of ```text only the fence is looked at.
- `<!-- not run: why -->` above a block says that it can't run; the number of these is known below.
"""

import contextlib
import dataclasses
import importlib.util
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import runjournal
from runjournal.cli import exits
from runjournal.cli.app import cli
from runjournal.log import base, errors
from runjournal.log.base import plan_of, registered
from runjournal.log.sqlite_schema import MIGRATIONS
from runjournal.projections.findings import CODES

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
GENERATED = ("cli.md", "crash-report.md", "events.md", "inventory.md", "python.md", "sql.md")
NOT_RUN = 4
"""Blocks that can't run: they build an environment, or need a remote."""
README_LINES_MAX = 150
SESSION = "0f0f0f0f-1111-4222-8333-444444444444"


def load_generator() -> Any:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_generate"] = module
    spec.loader.exec_module(module)
    return module


generate = load_generator()


def text_of(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


# --- the generated pages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_up_to_date(name):
    """Each generated page is what docs/generate.py makes of the code; `make docs` writes them."""
    made = {path.name: text for path, text in generate.pages().items()}
    assert sorted(GENERATED) == sorted(made)
    assert made[name] == text_of(name)


def walk(
    command: click.Command, context: click.Context, words: str
) -> Iterator[tuple[str, click.Command, click.Context]]:
    yield words, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from walk(inner, click.Context(inner, parent=context, info_name=name), f"{words} {name}")


COMMANDS = list(walk(cli, click.Context(cli, info_name="runjournal", auto_envvar_prefix="RUNJOURNAL"), "runjournal"))


@pytest.mark.parametrize(("words", "command", "context"), COMMANDS, ids=[words for words, *_ in COMMANDS])
def test_every_command_and_option_is_documented(words, command, context):
    """cli.md has a heading for each command, and each option, argument and example that its help has."""
    page = text_of("cli.md")
    if command is cli:
        section = page
    else:
        found = re.search(rf"^#+ {words}\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
        assert found is not None, f"{words} has no heading"
        section = found[1]
    for option in (each for each in command.params if isinstance(each, click.Option)):
        shared = option.name in {each.name for each in cli.params}
        for name in (*option.opts, *option.secondary_opts):
            assert re.search(rf"`[^`]*(?<![\w-]){re.escape(name)}(?![\w-])", page if shared else section), name
    for argument in (each for each in command.params if isinstance(each, click.Argument)):
        assert argument.make_metavar(context).replace("[[", "[").replace("]]", "]") in section


def test_environment_twins(monkeypatch):
    """The variable that cli.md names for an option is the one that click reads."""
    page, count = text_of("cli.md"), 0
    for place in generate.commands():
        for option in generate.own_options(place):
            if name := generate.env_of(option, place.context):
                monkeypatch.setenv(name, "told")
                assert "told" == option.resolve_envvar_value(place.context), name
                monkeypatch.delenv(name)
                assert f"`{name}`" in page
                count += 1
    assert count > 20


def test_every_exit_code_is_documented():
    """cli.md has a row for each exit code."""
    codes = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert codes == {int(code) for code in re.findall(r"^\| (\d+) \|", text_of("cli.md"), re.MULTILINE)}


def test_every_finding_is_documented():
    """cli.md has a row for each code of the audit."""
    assert [] == [code for code in CODES if f"| `{code}` |" not in text_of("cli.md")]


OWN = sorted(name for name in registered() if not name.startswith("x."))


@pytest.mark.parametrize("name", OWN)
def test_every_event_type_is_documented(name):
    """events.md has a heading for each type, a row for each field, and says who may append it and how durable it is."""
    found = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## )", text_of("events.md"), re.MULTILINE | re.DOTALL)
    assert found is not None
    section = found[1]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (.*?) \| ([^|]+) \|$", section, re.MULTILINE)
    fields = [(field.name, not field.optional) for field in plan_of(registered()[name])]
    assert fields == [(row[0], row[2] == "yes") for row in rows]
    assert re.search(r"^(Durable|Relaxed)", section, re.MULTILINE)
    assert re.search(r"May be appended by: \w", section)


def test_every_public_name_is_documented():
    """python.md has a heading for each name of the façade and each method of Journal, and a row for each error."""
    page = text_of("python.md")
    methods = inspect.getmembers(runjournal.Journal, lambda value: inspect.isfunction(value) or inspect.ismethod(value))
    names = [*runjournal.__all__, *(f"Journal.{name}" for name, _ in methods if not name.startswith("_"))]
    assert [] == [name for name in names if not re.search(rf"^##+ {re.escape(name)}$", page, re.MULTILINE)]
    every = [cls for cls in vars(errors).values() if isinstance(cls, type)]
    tree: list[type[errors.JournalError]] = [cls for cls in every if issubclass(cls, errors.JournalError)]
    assert len(tree) > 20
    assert [] == [cls.__name__ for cls in tree if f"`{cls.__name__}` | `{cls.code}`" not in page]


def test_both_kinds_of_run_have_the_same_verbs():
    """What an agent can ask of its run is the same in both kinds, but for threads: tasks stand for them."""
    names = [{name for name in dir(kind) if name[0] != "_"} for kind in (runjournal.Run, runjournal.AsyncRun)]
    assert {"thread"} == names[0] - names[1]
    assert {"loop"} == names[1] - names[0]


def test_every_table_is_documented():
    """sql.md has a heading for each table and view that the migrations make."""
    names = re.findall(r"CREATE (?:TABLE|VIEW) (?:IF NOT EXISTS )?(\w+)", "\n".join(MIGRATIONS))
    assert sorted(names) == sorted(set(re.findall(r"^## (\w+)$", text_of("sql.md"), re.MULTILINE)))


# --- blocks of code ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines, the line of the page it begins at, and the comment above it."""

    kind: str
    lines: list[str]
    line: int
    comment: str

    @property
    def not_run(self) -> bool:
        return self.comment.startswith("not run: ")


def blocks(path: Path) -> Iterator[Block]:
    """The blocks of a page. An opening fence without a language has the language ""."""
    lines, comment, place = path.read_text(encoding="utf-8").splitlines(), "", 0
    while place < len(lines):
        line = lines[place]
        if line.startswith("```"):
            end = next(n for n in range(place + 1, len(lines)) if lines[n].startswith("```"))
            yield Block(line.removeprefix("```"), lines[place + 1 : end], place + 2, comment)
            place = end
        found = re.fullmatch(r"<!-- (.*) -->", line)
        comment = found[1] if found else ""
        place += 1


ALL = {name: list(blocks(path)) for name, path in zip(NAMES, PAGES, strict=True)}


def test_every_block_says_what_it_is():
    """A block has a language that this file knows what to do with, and a comment that it can read."""
    known = {"python", "output", "console", "json", "toml", "text", "mermaid"}
    assert [] == [(name, each.line) for name, found in ALL.items() for each in found if each.kind not in known]
    consoles = [(name, each) for name, found in ALL.items() for each in found if each.kind == "console"]
    assert [] == [
        (name, each.line) for name, each in consoles if not (each.not_run or each.comment.startswith("exits: "))
    ]


def test_no_code_outside_of_blocks():
    """An indented block holds no command and no Python prompt: it would escape from being run."""
    stray = re.compile(r"^    +(\$ |>>> )", re.MULTILINE)
    assert [] == [
        name for name, path in zip(NAMES, PAGES, strict=True) if stray.search(path.read_text(encoding="utf-8"))
    ]


def test_blocks_that_do_not_run_are_counted():
    """No block is left out silently: there are as many as this file knows of, each with a reason."""
    found = [(name, each.comment) for name, all_blocks in ALL.items() for each in all_blocks if each.not_run]
    assert NOT_RUN == len(found), found
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    lines = [line for all_blocks in ALL.values() for each in all_blocks if each.not_run for line in each.lines]
    assert [] == [line for line in lines if line.startswith("$ make ") and line.removeprefix("$ make ") not in targets]


def transcript() -> str:
    """A session of Claude Code that was left in the middle of a call."""

    def record(second: int, kind: str, **more: Any) -> str:
        at = f"2026-11-28T09:00:{second:02}.000Z"
        return json.dumps({"type": kind, "uuid": f"u{second}", "sessionId": SESSION, "timestamp": at} | more)

    def answer(number: int, *content: Any, **usage: int) -> dict[str, Any]:
        message = {"role": "assistant", "id": f"msg_{number}", "model": "claude-sonnet-4-5", "content": content}
        return {"requestId": f"req_{number}", "message": message | {"usage": usage}}

    said = {"type": "text", "text": "I read them."}
    read = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "invoices.csv"}}
    pay = {"type": "tool_use", "id": "toolu_2", "name": "Bash", "input": {"command": "pay 17"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "42 lines"}
    first = {"input_tokens": 1200, "output_tokens": 80, "cache_read_input_tokens": 900}
    second = {
        "input_tokens": 1300,
        "output_tokens": 40,
        "cache_read_input_tokens": 2100,
        "cache_creation_input_tokens": 60,
    }
    lines = [
        record(0, "user", message={"role": "user", "content": "Check the invoices and pay what is open."}),
        record(4, "assistant", **answer(1, said, read, **first)),
        record(5, "user", message={"role": "user", "content": [result]}),
        record(9, "assistant", **answer(2, pay, **second)),
    ]
    return "".join(line + "\n" for line in lines)


def sub_agent() -> str:
    """What a sub-agent of that session has left, in a file of its own."""
    about = {"sessionId": SESSION, "agentId": "a1b2c3d4", "isSidechain": True, "timestamp": "2026-11-28T09:00:03.000Z"}
    usage = {"input_tokens": 3000, "output_tokens": 200, "cache_read_input_tokens": 0}
    answer = {"role": "assistant", "id": "msg_9", "model": "claude-haiku-4-5", "content": "17 is open.", "usage": usage}
    lines = [
        about | {"type": "user", "uuid": "a1", "message": {"role": "user", "content": "Which invoices are open?"}},
        about | {"type": "assistant", "uuid": "a2", "parentUuid": "a1", "requestId": "req_9", "message": answer},
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


class Sandbox:
    """A folder and a home for the blocks of one page, with `runjournal` in the path."""

    def __init__(self, folder: Path) -> None:
        self.place, self.home, programs = folder / "here", folder / "home", folder / "bin"
        project = self.home / ".claude" / "projects" / "-home-ada-books"
        for each in (self.place, project, programs):
            each.mkdir(parents=True)
        (project / f"{SESSION}.jsonl").write_text(transcript(), encoding="utf-8")
        agents = project / SESSION / "subagents"
        agents.mkdir(parents=True)
        (agents / "agent-a1b2c3d4.jsonl").write_text(sub_agent(), encoding="utf-8")
        (agents / "agent-a1b2c3d4.meta.json").write_text('{"description": "list open invoices"}', encoding="utf-8")
        program = programs / "runjournal"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m runjournal.cli "$@"\n')
        program.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RUNJOURNAL", "COV"))}
        self.env = kept | {
            "HOME": str(self.home),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "NO_COLOR": "1",
            "PYTHONUTF8": "1",
        }

    def shell(self, command: str) -> tuple[int, list[str]]:
        """Run a command; gives its exit code and the lines it wrote to stdout and stderr. What it sets stays."""
        if found := re.fullmatch(r"export (\w+)=(\S+)", command):
            self.env[found[1]] = found[2].replace("~", str(self.home))
        if found := re.fullmatch(r"unset (\w+)", command):
            self.env.pop(found[1], None)
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=self.place, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
        )  # fmt: skip
        if found := re.fullmatch(r"(?:mkdir \S+ && )?cd (\S+)", command):
            self.place /= found[1]
        return done.returncode, done.stdout.splitlines()


def shape(line: str) -> str:
    """What of a line of output must be as it is written down: titles whole, else the first word that is no number."""
    if re.fullmatch(r"[A-Z][A-Z ()]+", line.strip()):
        return " ".join(line.split())
    words = [re.sub(r"[0-9a-f]*\d[0-9a-f,.:…_-]*", "#", word) for word in line.split()]
    return " ".join(words[: 2 if words[:1] == ["#"] else 1])


def compare(shown: list[str], printed: list[str]) -> None:
    """Fail unless what was printed has the shape of what is shown; nothing shown is nothing said of it."""
    expected = [
        "(?:.*\n)*" if line.split() == ["…"] else re.escape(shape(line)) + "\n" for line in shown if line.strip()
    ]
    actual = [shape(line) + "\n" for line in printed if line.strip()]
    assert not shown or re.fullmatch("".join(expected), "".join(actual)), "\n".join([*shown, "--- printed:", *printed])


def run_console(sandbox: Sandbox, block: Block) -> None:
    allowed = {int(code) for code in block.comment.removeprefix("exits: ").split()}
    starts = [number for number, line in enumerate(block.lines) if line.startswith("$ ")]
    assert starts[:1] == [0], f"line {block.line}: a console block begins with a command"
    for start, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        command = block.lines[start].removeprefix("$ ")
        code, printed = sandbox.shell(command)
        assert code in allowed, (command, code, printed)
        compare(block.lines[start + 1 : end], printed)


@pytest.fixture
def registry():
    """What blocks register is taken back."""
    kept: list[tuple[dict[Any, Any], dict[Any, Any]]] = [(each, dict(each)) for each in (base._types, base._upcasters)]
    yield
    for now, before in kept:
        now.clear()
        now.update(before)


@pytest.mark.parametrize("name", [name for name, found in ALL.items() if found])
def test_blocks_run(name, tmp_path, monkeypatch, registry):
    """The blocks of a page run one after another, exit as they say, and print what stands below them."""
    sandbox = Sandbox(tmp_path)
    monkeypatch.chdir(sandbox.place)
    monkeypatch.setenv("HOME", str(sandbox.home))
    module = types.ModuleType("docs_page")
    monkeypatch.setitem(sys.modules, "docs_page", module)
    printed = None
    for block in ALL[name]:
        source = "\n" * (block.line - 1) + "\n".join(block.lines) + "\n"
        if block.not_run:
            continue
        if block.kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(source, str(ROOT / name), "exec", dont_inherit=True), vars(module))
            printed = out.getvalue().splitlines()
        elif block.kind == "output":
            assert block.lines == printed
        elif block.kind == "console":
            run_console(sandbox, block)
            monkeypatch.chdir(sandbox.place)
        elif block.kind == "json":
            json.loads(source)
        elif block.kind == "toml":
            tomllib.loads(source)


def test_output_that_differs_is_found():
    """The comparison of shapes fails for a missing line, another first word, a line too much and other titles."""
    printed = ["RUN  STATUS", "demo-12ab  running", "1 run; next"]
    compare(["RUN STATUS", "demo-98cd  queued", "2 run; …"], printed)
    compare(["…", "1 run;"], printed)
    for shown in (["RUN STATUS"], ["RUN  KIND", "…"], ["RUN STATUS", "other", "…"], ["…", "demo-1"], ["…", "1 event"]):
        with pytest.raises(AssertionError):
            compare(shown, printed)


# --- links, words, claims ----------------------------------------------------------------------------------------

OTHERS = {REFERENCE / "errors.md"}
"""Pages that are linked and may not be there yet."""


def anchors(path: Path) -> set[str]:
    return {generate.slug(each) for each in re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)}


def links(path: Path) -> list[tuple[Path, str]]:
    found = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    return [
        ((path.parent / target).resolve() if target else path, anchor)
        for target, _, anchor in (each.partition("#") for each in found if not each.startswith("https://"))
    ]


@pytest.mark.parametrize("name", NAMES)
def test_links_resolve(name):
    """Each link leads to a file, and where it names one, to a heading in it."""
    for target, anchor in links(ROOT / name):
        if target not in OTHERS:
            assert target.exists(), target
            assert not anchor or anchor in anchors(target), (target.name, anchor)


def test_every_page_is_reachable():
    """Each page of docs/ is linked from the index."""
    index = ROOT / "docs" / "index.md"
    linked = {target for target, _ in links(index)} | {index}
    assert [] == [path.name for path in (ROOT / "docs").rglob("*.md") if path not in linked]


@pytest.mark.parametrize("name", NAMES)
def test_words(name):
    """The pages praise nothing, and name no machine and no issue."""
    words = r"\b(blazing|seamless(ly)?|powerful|robust|effortless(ly)?|best-in-class|cutting-edge|simply|easily)\b"
    places = r"/work/|/tmp/v\b|\bissue #?\d+|(?<![\w(/])#\d+\b|localhost|https?://(?!keepachangelog|semver)"
    text = (ROOT / name).read_text(encoding="utf-8")
    assert [] == re.findall(words, text, re.IGNORECASE)
    assert [] == re.findall(places, text)


def test_guarantees_are_numbered_and_shown():
    """P1 to P24 stand in order; each says why and what holds today; each test that is named is there."""
    text = (ROOT / "docs" / "explanation" / "guarantees.md").read_text(encoding="utf-8")
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    assert [f"P{number}." for number in range(1, 25)] == [each.split()[0] for each in sections]
    assert [] == [each.split()[0] for each in sections if "**Today" not in each]
    assert ["P18."] == [each.split()[0] for each in sections if "**Because**" not in each]
    named = re.findall(r"`((?:tests|journal)/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 40
    assert [] == [(file, name) for file, name in named if not re.search(rf"def {name}\(", (ROOT / file).read_text())]
    without = [each.split()[0] for each in sections if "::" not in each]
    assert ["P18."] == without


def test_readme_is_short():
    """The README begins with the two commands, and a newcomer reads all of it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert README_LINES_MAX >= len(text.splitlines())
    assert ["$ make demo", "$ make test"] == ALL["README.md"][0].lines
