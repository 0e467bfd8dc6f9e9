"""Write the pages of docs/reference that are made from the code: cli, events, inventory, python, sql.

    python docs/generate.py            write them
    python docs/generate.py --check    change nothing; exit 1 if one of them isn't what the code says

tests/test_docs.py makes the same check.
"""
# ruff: noqa: E501, INP001 - sentences of the pages stand on one line; a script, no package

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, get_overloads, get_type_hints

import apsw
import click

import runjournal
from runjournal.cli import exits
from runjournal.cli.app import COMMANDS, cli
from runjournal.cli.config import bounds, spelt
from runjournal.log import errors, limits, shapes
from runjournal.log import events as e
from runjournal.log.authority import CallFacts, Gate
from runjournal.log.base import Event, Field, event_of, plan_of, registered
from runjournal.log.codec import draft
from runjournal.log.errors import AppendRefused
from runjournal.log.head import STATUSES, TERMINAL, UNOWNED, Head
from runjournal.log.sqlite_schema import MIGRATIONS
from runjournal.looking.inventory import INVENTORY, POLICIES
from runjournal.projections.findings import CODES

FOLDER: Final = Path(__file__).resolve().parent / "reference"
NOTE: Final = "<!-- Written by docs/generate.py from the code. Change it there, then run `make docs`. -->"


def pages() -> dict[Path, str]:
    """Each generated page and what must stand in it."""
    made = {
        "cli.md": cli_page,
        "crash-report.md": crash_report_page,
        "events.md": events_page,
        "inventory.md": inventory_page,
        "python.md": python_page,
        "sql.md": sql_page,
    }
    return {FOLDER / name: "\n".join([NOTE, *page()]).rstrip() + "\n" for name, page in made.items()}


def cell(text: object) -> str:
    """A text as a cell of a table."""
    return " ".join(str(text).replace("|", "\\|").split())


def table(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """The lines of a table, and an empty one; nothing without rows."""
    made = [f"| {' | '.join(cell(each) for each in row)} |" for row in rows]
    if made:
        names = list(titles)
        yield f"| {' | '.join(names)} |"
        yield "|" + "---|" * len(names)
        yield from made
        yield ""


def slug(text: str) -> str:
    """The anchor that a heading has."""
    return re.sub(r"[^a-z0-9 _-]", "", text.lower()).replace(" ", "-")


# --- the command line --------------------------------------------------------------------------------------------

EXITS: Final = {
    "OK": "done; an audit found nothing, or only findings of severity `info`",
    "FAILED": "it failed: the message says why",
    "USAGE": "the command line can't be right: an unknown option, a bad value, an ambiguous RUN, or a short one where a run is changed",
    "FINDINGS": "`audit`, `verify`, `doctor`, `import claude-code`: there are findings; "
    "any command: a row was left out that can't be read",
    "NOT_FOUND": "there is no such run",
    "CONFLICT": "an append was refused (nothing was written), an import contradicts what is there, or `db rebuild` met a run with a living owner",
    "UNAVAILABLE": "the store can't be opened or used: it isn't there, it is busy, full, read-only, no store, or in an unsafe place, its file was replaced",
    "INTERRUPTED": "interrupted by Ctrl-C",
    "PIPE_CLOSED": "the reader of the output has gone, as in `runjournal ls | head -1`",
}

OTHER_ENV: Final = {
    "NO_COLOR": "not empty: no colours, unless `--color` says otherwise",
    "FORCE_COLOR": "not empty and not 0: colours also where the output is no terminal",
    "TERM": "`dumb`: no colours, no pager",
    "RUNJOURNAL_DEBUG": "not empty and not 0: an error shows its traceback too, on stderr",
    "PAGER, LESS": "the pager of long output, and its options (`FRX`, unless set)",
}


class Place(NamedTuple):
    """A command as it is typed: its words, and click's objects for it."""

    words: str
    command: click.Command
    context: click.Context


def commands() -> list[Place]:
    """The root, then every command and subcommand, in the order of the help."""
    root = click.Context(cli, info_name="runjournal", auto_envvar_prefix="RUNJOURNAL")
    return list(_commands(Place("runjournal", cli, root)))


def _commands(place: Place) -> Iterator[Place]:
    yield place
    if isinstance(place.command, click.Group):
        for name in place.command.list_commands(place.context):
            inner = place.command.get_command(place.context, name)
            if inner is None:
                raise LookupError(f"{place.words} lists {name} and doesn't have it")
            context = click.Context(inner, parent=place.context, info_name=name)
            yield from _commands(Place(f"{place.words} {name}", inner, context))


def env_of(option: click.Option, context: click.Context) -> str:
    """The environment variable that stands in for an option, or ""."""
    if option.envvar:
        return str(option.envvar)
    if not option.allow_from_autoenv or option.is_eager or context.auto_envvar_prefix is None:
        return ""
    return f"{context.auto_envvar_prefix}_{(option.name or '').upper()}"


def names_of(option: click.Option) -> list[str]:
    """Every way to type an option."""
    return [*option.opts, *option.secondary_opts]


def own_options(place: Place) -> list[click.Option]:
    """The options of a command that not every command has; those of the root are the shared ones."""
    shared = {name for each in cli.params if isinstance(each, click.Option) for name in each.opts}
    found = [each for each in place.command.params if isinstance(each, click.Option)]
    return found if place.command is cli else [each for each in found if not shared & set(each.opts)]


def _option_row(option: click.Option, context: click.Context) -> list[str]:
    record = option.get_help_record(context)
    if record is None:
        raise LookupError(f"the option {option.opts} has no help")
    text = re.sub(r"\s*\[env\s+var: [^\]]*\]", "", record[1])
    env = env_of(option, context)
    value = f"`{option.flag_value}`" if option.is_flag and isinstance(option.flag_value, str) else ""
    return [f"`{record[0]}`", f"`{env}`" + (f" = {value}" if value else "") if env else "", text]


def cli_page() -> Iterator[str]:
    """The command line."""
    places = commands()
    yield from ["# The command line", "", "`runjournal COMMAND --help` says the same on the terminal.", ""]
    yield from [
        "Data goes to stdout, prose to stderr. With `-o json` or `-o jsonl` there is no prose, and an error is one",
        'JSON object on stderr: `{"error": {"code": …, "message": …}}`.',
        "",
    ]
    yield from ["| section | command | what it does |", "|---|---|---|"]
    for section, found in COMMANDS.items():
        for name, (_, text) in found.items():
            yield f"| {section} | [{name}](#{slug('runjournal ' + name)}) | {cell(text)} |"
    yield from ["", "## How to name a run", ""]
    yield from _refs()
    yield from [
        "## Options of every command",
        "",
        "They stand before or behind the command. The command line beats the environment.",
        "",
    ]
    yield from table(
        ("option", "environment", "what it does"),
        (_option_row(each, places[0].context) for each in own_options(places[0])),
    )
    yield from ["`-h`, `--help` shows the help of a command.", ""]
    yield from ["## Environment", "", "Each option has an environment twin, named with it below. Besides:", ""]
    yield from table(("variable", "what it does"), ((f"`{name}`", text) for name, text in OTHER_ENV.items()))
    yield from ["## Exit codes", ""]
    codes = {name: value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    yield from table(
        ("code", "when"), ((value, EXITS[name]) for name, value in sorted(codes.items(), key=lambda item: item[1]))
    )
    yield from ["What bad input does, row by row: [errors.md](errors.md).", ""]
    for place in places[1:]:
        yield from _command(place)
    yield from [
        "## Findings of an audit",
        "The codes are stable. An error or a warning makes `audit` exit with 3, `info` doesn't. A finding may be milder",
        "than its code where the run was imported.",
        "",
    ]
    yield from table(
        ("code", "severity", "meaning"), ((f"`{code}`", each.severity, each.meaning) for code, each in CODES.items())
    )


def _refs() -> Iterator[str]:
    rows = [
        ("`report-42`", "a run by its id"),
        ("`repo`", "by a prefix that only one id has"),
        ("`@last`", "the run that changed last, sub-agents left out"),
        ("`@last-failed`", "the same among those that failed"),
        ("`RUN@42`", "its event 42: the run as it was then"),
        ("`RUN@-1`", "one event before its last"),
        (
            "`RUN@14:03:22`",
            "its last event at or before this time, UTC, on the day of its last event; or a whole `2026-11-29T14:03:22Z`",
        ),
    ]
    yield from table(("text", "what it names"), rows)


def _command(place: Place) -> Iterator[str]:
    command, context = place.command, place.context
    words = place.words.split()
    yield from ["#" * len(words) + " " + place.words, ""]
    yield from [" ".join((command.help or "").split()), ""]
    usage = " ".join(["runjournal", *words[1:], *command.collect_usage_pieces(context)])
    usage = usage.replace("[[", "[").replace("]]", "]")  # older versions of click write an optional choice in both
    yield from ["```text", usage, "```", ""]
    rows = [_option_row(each, context) for each in own_options(place)]
    yield from table(("option", "environment", "what it does"), rows)
    for example, meaning in getattr(command, "examples", ()):
        typed = example.replace("\n", "\\n")
        yield f"- `{typed}`: {meaning}"
    yield ""
    if command.epilog and "Exit codes:" in command.epilog:
        yield from [" ".join(command.epilog[command.epilog.index("Exit codes:") :].split()), ""]


# --- events ------------------------------------------------------------------------------------------------------

NESTED: Final[Mapping[str, shapes.Fields]] = {
    name.lower(): value for name, value in vars(shapes).items() if name.isupper() and isinstance(value, shapes.Fields)
}
TEXTS: Final = {
    shapes.TIME.pattern: "time",
    shapes.MONEY.pattern: "money",
    shapes.DIGEST.pattern: "digest",
    shapes.MEDIA_TYPE.pattern: "media type",
}
_SAMPLES: Final = {
    "time": "2026-11-29T13:28:05.123456Z",
    "money": "1.00",
    "digest": "0" * 64,
    "": "x",
    "media type": "image/png",
}

# What the matrix can't say: it is asked with a call that isn't in the outbox, and with a question that is open.
CONDITIONS: Final = {
    "run.claimed": "A batch that holds it takes the next epoch. From `waiting` only if what the run waits for has come, if it is due, or with `resume` = `manual`; never after a cancel was requested.",
    "run.requeued": "`released` by the owner alone; `retry_due` not before it is due; `lease_expired`, `owner_dead`, `machine_restarted`, `told_to_stop` and `redeployed` once the owner is gone; `resumed` by anyone, from `waiting` for `code` or `recoveries`; `abandoned` by anyone, from `waiting`, once no step is open.",
    "step.recorded": "While the run waits for `code`.",
    "step.failed": "By anyone but the owner only with `left`, and while a step is open.",
    "run.waiting": "Without the owner only for `recoveries`, and from `queued`.",
    "run.failed": "Without the owner only with a cause that needs none: from `queued` as `expired` or `budget`, from `waiting` as `expired`.",
    "run.purged": "Only `Journal.purge` appends it, and empties the events before it in the same commit.",
    "run.cancelled": "A running run is cancelled by its owner, or once it was requeued because its owner is gone.",
    "step.started": "Not after a cancel was requested. One step at a time.",
    "model.started": "Attempts count from 1. Not after a cancel of mode `now` was requested.",
    "tool.started": "Attempts count from 1. Not after a cancel of mode `now` was requested; not for a call that has happened in this scope, unless it is idempotent.",
    "model.completed": "The attempt must be open; the first end counts.",
    "model.failed": "The attempt must be open; the first end counts.",
    "tool.dispatched": "For calls of policy `outbox`, by whoever delivers them.",
    "tool.completed": "The attempt must be open; the first end counts. Of policy `outbox` also by whoever delivers them, at any time.",
    "tool.failed": "The attempt must be open; the first end counts. Of policy `outbox` also by whoever delivers them, at any time.",
    "tool.resolved": "Of a call that may have happened and that nobody knows of. A person names its newest attempt, on the newest run of the line, with no living owner. A fenced owner speaks (`late`) of its own attempt.",
    "approval.requested": "Its id must not be open.",
    "approval.resolved": "Its question must be open; the first answer counts.",
    "tool.started.durable": "Durable, unless it is read-only or of policy `idempotent`, `transactional` or `outbox`; then relaxed.",
}


# What a field is: by type and name, or by name alone.
MEANINGS: Final = {
    "kind": "what sort of run it is",
    "step.started.kind": "`once` with an id of its own, `repeat` one of many, `do` a function whose result is recorded",
    "input": "what the run is to do",
    "messages": "the messages that its context begins with",
    "run.queued.plan": "the plan that it begins with",
    "title": "for people",
    "tags": "for finding it again",
    "scope": "what its effects dedupe in; else its own id",
    "priority": "higher first; else 0",
    "parent_run_id": "the run that began it",
    "above": "the run that has begun this one, if its cancel is what takes this one down",
    "link": "why it goes on from another run",
    "base": "the event that it goes on from",
    "run.queued.again": "the steps to do again in a retry, by id",
    "again": "it is tried again within the same ask, so the agent wasn't told",
    "budget": "what it may spend",
    "not_before": "when it may begin",
    "run.queued.expires_at": "when it is no longer wanted",
    "expires_at": "when the question is no longer open",
    "every": "how it repeats",
    "code_version": "which code runs it",
    "agent": "the agent that is called, as `module:function`; nothing, where it can't be imported by that name",
    "run.imported.source": "the importer",
    "source": "who says so",
    "run.imported.tool": "the tool that the record is of",
    "run.opened.source": "where it happens",
    "tool": "the name of the tool",
    "sha256": "of the file's bytes that were taken by then",
    "tool_version": "that tool's version",
    "path": "the file, as it was named",
    "note": "for people",
    "point": "the resume point that a person has resumed it from, a seq; it is used once",
    "worker": "who claims it",
    "run.claimed.epoch": "the fencing token: one more than the last",
    "lease_s": "how long the claim holds without a heartbeat, in seconds",
    "host": "the machine",
    "boot_id": "the machine's boot",
    "pid_ns": "the PID namespace",
    "pid": "the process",
    "pid_started": "when the process began, in clock ticks since boot",
    "resume": "which kind of resume this is",
    "for": "what would wake it, any of them",
    "run.waiting.due_at": "when it goes on even if nothing has come",
    "due_at": "when the next round may begin",
    "run.retry_scheduled.attempt": "the round that comes, from 1",
    "attempt": "which attempt, from 1",
    "error": "what was raised",
    "left": "the step failures that left the agent: [step id, attempt]",
    "run.requeued.reason": "why it is free",
    "run.requeued.error": "what its owner met that fails nothing: a mistake in its code, or a store that can't be used",
    "run.requeued.note": "what the person said who resumed it",
    "choices": "what it is answered with: one of these",
    "approval.requested.default": "what counts if nobody has answered in time: args, or one of the choices; none: a no",
    "choice": "which of its choices was picked",
    "run.waiting.why": "why nobody goes on with it, for people: what today's code does otherwise, or how often it died",
    "reason": "for people",
    "output": "the result",
    "cause": "what ended it",
    "run.cancel_requested.mode": "whether the open step may end",
    "index": "the place of the step, from 0",
    "id": "the name, with its key (`name/key`) or its number (`name#2`)",
    "step.started.name": "the name in the code",
    "signal.received.name": "what a wait asks for",
    "entry": "which execution of this attempt, from 1",
    "step.started.key": "which item it is for",
    "recalled": "what the step did before: `calls` and `questions` by id, if more than `failed_steps_max` steps have "
    "failed since it did, so that the folded state has let go of it",
    "key": "the key in the working memory",
    "result": "what it returned",
    "transient": "trying again may help",
    "cut": "whoever asked for it was cancelled meanwhile",
    "step.failed.left": "a person gave this attempt up, and the step is tried as if it hadn't failed",
    "role": "who speaks",
    "content": "a text, or the provider's list of blocks",
    "message_id": "the provider's; equal ones in a row are one message",
    "provider": "whose API it is",
    "raw": "the provider's own object",
    "call_id": "the call; it is the idempotency key",
    "cost.recorded.call_id": "the call that it belongs to",
    "cost.repriced.call_id": "the call that it belongs to",
    "blob.attached.content": "the bytes, always out of line; in a private run encrypted",
    "media_type": "what kind of bytes they are",
    "bytes": "how many they are; in a private run, before they are encrypted",
    "blob.attached.name": "of the file, for people",
    "note.added.call_id": "the call that it is about",
    "approval.requested.call_id": "the call that it is about",
    "model": "which model",
    "request_hash": "which request it is (C1 of [the rules](../explanation/engine.md))",
    "place": "which one it is, from 1, in the order in which its step asked for model calls",
    "lost": "the agent wasn't told, and the call is judged as after a crash",
    "settled": "the agent was told that nobody knows, and that was the word about all attempts so far",
    "request": "what is new in it behind an earlier one (C14 of [the rules](../explanation/engine.md))",
    "parts": "where requests aren't stored: of the request without its clocks, short digests of what stands under its keys and in its lists",
    "prompt_fingerprint": "of the pinned prompt that it was asked with",
    "params": "of the request",
    "response": "the answer",
    "usage": "tokens; nothing if none are told. `input` is without the caches, `output` with its reasoning; a counter that is missing is unknown; `raw` is what was told",
    "cost": "money, if somebody said it",
    "price": "what it costs by a list of prices: the amount and the rates for a million tokens that it comes of, or `why` there is none; `source` is `list` for what was recorded elsewhere. Beside a `cost` it doesn't count",
    "request_id": "the id by which the provider knows the request, for its support",
    "origin": "where a line of another tool's record stood: its session, its own id, its agent, whether it is a side chain's",
    "was": "the usage that was told before; nothing if it was unknown",
    "was_price": "what `was` came to, by the same list of prices",
    "was_model": "the model that was named before, if it was another",
    "response_model": "the model that answered, as the provider names it",
    "first_token_at": "when the first token of the answer came",
    "response_id": "the provider's",
    "finish_reason": "the provider's",
    "retry_at": "the next attempt isn't sent before; where it isn't tried again: what the service asked for",
    "args": "the arguments",
    "approval.resolved.args": "the arguments as they were approved or edited",
    "policy": "what may be done if its outcome is unknown",
    "read_only": "it changes nothing",
    "on_unknown": "what recovery does if nobody knows whether it happened",
    "provider_call_id": "the id that the model uses for it",
    "own_key": "whether the tool names its calls itself (`key=`), so that each happens once in the scope of the run",
    "claim": "which relay has the entry of the outbox",
    "until": "until when it has it, unless its process dies",
    "process": "that process: host, boot, PID namespace, PID and start time",
    "key_expires_at": "until when the other side knows the key",
    "key_born": "seconds since which boot when it was begun: what the key's age is counted by in the same boot",
    "timeout_s": "when it is cut, in seconds",
    "result_error": "why the result couldn't be stored; the effect happened",
    "replayed": "the other side answered from its own record",
    "did_not_happen": "this attempt did nothing, for sure",
    "outcome": "what became of it",
    "late": "a fenced owner says so",
    "value": "the new value",
    "fingerprint": "SHA-256 of the text",
    "layers": "SHA-256 of each part, by name",
    "prompt.pinned.text": "the prompt",
    "text": "the remark",
    "approval_id": "the question",
    "action": "what is to be approved",
    "args_schema": "what edited arguments must fit, as JSON Schema",
    "preview": "what it would do",
    "risk": "for people",
    "decision": "the answer",
    "signal_id": "the signal",
    "timer_id": "the sleep, or the wait for a signal",
    "timer.set.due_at": "when it is over",
    "payload": "what it says",
    "signal_ids": "the signals that were seen; none: the wait timed out",
    "wait_id": "the wait that took them",
    "child_run_id": "the other run",
    "child.spawned.call_id": "the ask that it was begun by; an id as those of calls",
    "child.spawned.agent": "its agent, as `module:name`, where it is found by that",
    "child.spawned.budget": "what of the run's own budget is reserved for it",
    "child.finished.error": "what it has failed of",
    "ended_as": "the run of its line that ended so; nothing, where that is the child itself",
    "spent": "what its line and all below it have spent, where the run has a budget",
    "child.finished.status": "how it ended",
    "run.purged.status": "where the run stood",
    "run.purged.scope": "its scope, which nobody takes again",
    "queued_at": "when it began",
    "started_at": "when it was first claimed",
    "ended_at": "when it ended",
    "events": "how many events stand before this one",
    "head_hash": "the hash of the last of them: whoever has a backup can show that it is the run",
    "hashes": "SHA-256 over the types and hashes of all of them",
    "lines": "what models told of tokens: by model and outcome, as `state.costs.lines`",
    "money": "what it has cost: by currency and source, as `state.costs.money`",
    "status": "the new status",
    "tasks": "all of them",
    "task_id": "the task",
    "summary": "what stands in for the messages",
    "upto_seq": "the last event whose message it stands in for",
    "amount": "how much",
    "currency": "its code: `USD`",
    "code": "what sort of remark, for programs",
}


def meaning(cls: type[Event], field: Field) -> str:
    """What a field is. Raises KeyError for one that nobody has described."""
    text = MEANINGS.get(f"{cls.TYPE}.{field.name}") or MEANINGS[field.name]
    text = (
        f"{text} (held out of line if it is large)" if field.attribute in cls.BLOBS and field.name != cls.RAW else text
    )
    return text + _privacy(cls, field)


def _privacy(cls: type[Event], field: Field) -> str:
    """What of a field is private in a private run."""
    inner = [path.partition(".")[2] for path in cls.PRIVATE if path.partition(".")[0] == field.name]
    if not inner:
        return ""
    return "; private" if "" in inner else "; private: " + ", ".join(f"`{path}`" for path in inner)


def shape_text(shape: Any) -> str:
    """A shape in words."""
    for name, nested in NESTED.items():
        if shape is nested:
            return f"[{name}](#{name})"
    match shape:
        case shapes.Text():
            return TEXTS.get(shape.pattern, shape.what.removeprefix("a ")) if shape.pattern else "text"
        case shapes.Whole():
            return f"whole number from {shape.least:,}"
        case shapes.OneOf():
            return " or ".join(f"`{word}`" for word in shape.words)
        case shapes.ListOf():
            return f"list of {shape_text(shape.item)}" + (f", at least {shape.least}" if shape.least else "")
        case shapes.Pair():
            return "[text, whole number]"
        case shapes.MapOf():
            return f"object of {shape_text(shape.value)}"
        case _:
            plain: dict[type, str] = {
                shapes.Anything: "any JSON value",
                shapes.Name: "name",
                shapes.Flag: "true or false",
                shapes.Number: "number from 0",
            }
            return plain[type(shape)]


def sample(shape: Any) -> Any:
    """A value of a shape, the smallest there is."""
    match shape:
        case shapes.Text():
            return _SAMPLES[TEXTS.get(shape.pattern, "")]
        case shapes.Whole():
            return max(shape.least, 0)
        case shapes.OneOf():
            return shape.words[0]
        case shapes.ListOf():
            return [sample(shape.item) for _ in range(shape.least)]
        case shapes.Pair():
            return ["x", 0]
        case shapes.Fields():
            return {name: sample(inner) for name, inner in shape.required.items()}
        case shapes.MapOf():
            return {}
        case _:
            plain: dict[type, Any] = {shapes.Anything: "x", shapes.Name: "x", shapes.Flag: False, shapes.Number: 1.0}
            return plain[type(shape)]


def samples(cls: type[Event]) -> Iterator[Event]:
    """Events of a type: one for each combination of its required words."""
    fields = [field for field in plan_of(cls) if not field.optional]
    choices = [
        field.shape.words if isinstance(field.shape, shapes.OneOf) else [sample(field.shape)] for field in fields
    ]
    for values in itertools.islice(itertools.product(*choices), 64):
        data: dict[str, Any] = {field.name: value for field, value in zip(fields, values, strict=True)}
        if cls is e.ToolStarted:
            data["policy"] = "unsafe"
        if cls.RAW:
            data[cls.RAW] = b"x"
        yield event_of(cls, data)
        if cls is e.RunWaiting:
            yield e.RunWaiting([{"kind": "recoveries", "id": "restart_loop"}])


@dataclasses.dataclass
class Scene:
    """What the gate is asked in: everything that may help is so, but for what a parameter says."""

    gone: bool
    call: CallFacts | None
    asked: bool

    def now(self) -> str:
        """A day after everything is due."""
        return "2026-11-30T00:00:00.000000Z"

    def elsewhere(self) -> bool:
        """No run here was imported before it had ended."""
        return False

    def owner_gone(self, head: Head) -> bool:
        """Whether the owner is gone."""
        return self.gone

    def facts(self) -> Scene:
        """Itself."""
        return self

    def newest(self, scope: str) -> str | None:
        """This run is."""
        return None

    def happened(self, key: str) -> bool:
        """Nothing has."""
        return False

    def call_facts(self, call_id: str) -> CallFacts | None:
        """The one call."""
        return self.call

    def question_open(self, approval_id: str) -> bool:
        """The one question."""
        return self.asked

    def question_expires(self, _: str) -> None:
        """It may be answered at any time."""

    def goes_on(self, role: str, message_id: str) -> bool:
        """No message has this id."""
        return False

    @property
    def stands(self) -> str:
        """It does."""
        return "code"

    @property
    def between_steps(self) -> bool:
        """One is open."""
        return False


def admitted(cls: type[Event], status: str, *, by: str, epoch: int, gone: bool) -> bool:
    """Whether the gate lets an event of this type through, in one scene or another."""
    calls = [None, CallFacts(attempt=1, open=True, unresolved=True, maybe=(1,), policy="unsafe", completed=False)]
    head = Head(
        run_id="r",
        status=status,
        epoch=1 if status == "running" else 0,
        wake_at="x",
        due_at="2026-11-29T00:00:00.000000Z",
    )
    for event, call, asked in itertools.product(samples(cls), calls, (True, False)):
        made = event
        if isinstance(made, e.RunClaimed):
            made = dataclasses.replace(made, epoch=head.epoch + 1)
        try:
            Gate(head, epoch, Scene(gone, call, asked)).admit(draft(made, at=_SAMPLES["time"], by=by, step=None))
        except AppendRefused:
            continue
        return True
    return False


ASKED: Final = tuple(status for status in STATUSES if status != "purged")


def who(cls: type[Event]) -> str:
    """Who may append a type, and in which statuses, as the gate answers."""
    begin = {"w": "anyone, as the first event", "import:x": "an importer, as the first event"}
    parts = [text for by, text in begin.items() if admitted(cls, "new", by=by, epoch=0, gone=True)]
    if admitted(cls, "running", by="w", epoch=1, gone=False):
        parts.append("the owner")
    open_to = [status for status in ASKED if status != "running" and admitted(cls, status, by="w", epoch=0, gone=True)]
    if admitted(cls, "running", by="w", epoch=0, gone=False):
        open_to.insert(1, "running")
    elif admitted(cls, "running", by="w", epoch=0, gone=True):
        open_to.insert(1, "running, its owner gone")
    if len(open_to) == len(ASKED) and "running" in open_to:
        return "anyone, at any time"
    if (live := set(ASKED) - TERMINAL - UNOWNED) <= set(open_to):
        parts.append("anyone, until the run has ended")
        open_to = [each for each in open_to if each not in live | UNOWNED]
    if open_to:
        parts.append("anyone, while " + " / ".join(open_to).replace("_", "\\_"))
    if "an importer, as the first event" not in parts and admitted(cls, "imported", by="import:x", epoch=0, gone=True):
        parts.append("an importer, in an imported run")
    return "; ".join(parts)


def _durable(cls: type[Event]) -> str:
    if cls is e.ToolStarted:
        return CONDITIONS["tool.started.durable"]
    found = {e.is_durable(event) for event in samples(cls)}
    return "Durable." if found == {True} else "Relaxed."


def _default(field: Field) -> str:
    if not field.optional:
        return "yes"
    return "" if field.default is None else f"else `{str(field.default).lower()}`"


_GROUPS: Final = (
    "run", "step", "message", "model", "tool", "memory", "prompt", "approval", "signal", "timer", "child", "plan", "context",
    "cost", "blob", "note",
)  # fmt: skip
"""What comes first in the name of a type, in the order of the page."""


def own_types() -> dict[str, type[Event]]:
    """The package's own event types, in the order of the page."""
    found = {name: cls for name, cls in registered().items() if not name.startswith("x.")}
    return dict(sorted(found.items(), key=lambda item: _GROUPS.index(item[0].partition(".")[0])))


def events_page() -> Iterator[str]:
    """The event types."""
    yield from [
        "# Events",
        "",
        "Every type that this version knows, with its fields. The Python class of each is in",
        "`runjournal.log.events`; a field is a keyword argument of the same name (`for` is `for_` there).",
        "",
    ]
    yield from ["An event is stored as one JSON object, its body; the bytes are what is hashed:", ""]
    yield from ["```json"]
    yield '{"v": 1, "at": "2026-11-29T13:28:05.123456Z", "by": "worker-7", "epoch": 3, "step": 4, "data": {"key": "total", "value": 42}}'
    yield from ["```", ""]
    rows = [
        ("`v`", "the version of this type's data"),
        ("`at`", "when it was appended: UTC, with microseconds. Order is by seq, never by time"),
        ("`by`", "who wrote it: a worker, `cli:<user>`, `import:<tool>`"),
        ("`epoch`", "the fencing token of the writer; 0 for anybody but the owner"),
        ("`step`", "the index of the step that it belongs to, from 0, or null"),
        ("`private`", "only in a private run: its private values, encrypted"),
        ("`ext`", "only if a field is held out of line: its SHA-256 and its size in bytes"),
        ("`data`", "the fields below; an optional one only where it says something"),
    ]
    yield from table(("key", "what it is"), rows)
    yield from [
        "`run_id`, `seq`, `type` and `hash` stand beside the body. The hash is SHA-256 over a tag, run id, seq, type, the hash",
        "of the event before it and the body, so each event pins all before it.",
        "",
    ]
    yield from [
        "*Durable* and *relaxed* are explained in [durable-and-relaxed.md](../explanation/durable-and-relaxed.md). A batch",
        "that holds one durable event is durable as a whole.",
        "",
    ]
    yield from [
        "*May be appended by* is what the guarded append answers, asked for every status. An event that isn't let through",
        "raises an `AppendRefused` and writes nothing. The owner is whoever holds the lease and passes the epoch of its claim.",
        "Behind `run.purged` nobody appends anything.",
        "",
    ]
    yield from ["| type | what happened | durable |", "|---|---|---|"]
    for name, cls in own_types().items():
        kind = {"Durable.": "yes", "Relaxed.": "relaxed"}.get(_durable(cls), "by policy")
        yield f"| [{name}](#{slug(name)}) | {cell(_first(cls))} | {kind} |"
    yield ""
    for name, cls in own_types().items():
        yield from [f"## {name}", "", f"{_doc(cls)} Class `{cls.__name__}`, version {cls.VERSION}.", ""]
        yield from [f"{_durable(cls)} May be appended by: {who(cls)}. {CONDITIONS.get(name, '')}".rstrip(), ""]
        rows = [
            (f"`{f.name}`", "bytes" if f.name == cls.RAW else shape_text(f.shape), _default(f), meaning(cls, f))
            for f in plan_of(cls)
        ]
        yield from table(("field", "shape", "required", "what it is"), rows) if rows else ["It has no fields.", ""]
    yield from [
        "## Types of your own",
        "`runjournal.register` makes a frozen dataclass that derives from `Event` a type of yours, `x.<name>`. It is durable,",
        "and anyone may append it at any time. [The tutorial](../tutorial.md) has an example.",
        "",
    ]
    yield from [
        "A type under `x.` that isn't registered where it is read comes back as `UnknownEvent`: it is kept, shown and verified,",
        "and no fold sees anything in it. Any other type that isn't known is `NewerEvent`, and folds stop there. An event of a",
        "run that was [purged](../how-to/purge.md), whatever its type, comes back as `PurgedEvent`: its body is empty.",
        "",
    ]
    yield from ["## Shapes", ""]
    rows2 = [
        ("name", f"text of 1 to {limits.name_chars_max} characters, without NUL"),
        ("time", f"UTC text with microseconds: `{_SAMPLES['time']}`"),
        ("money", "decimal text: `0.0125`, `-3`"),
        ("media type", f"`type/subtype` with parameters, if any: `{_SAMPLES['media type']}`"),
        ("digest", "SHA-256 as 64 hex digits, small letters"),
        (
            "any JSON value",
            f"null, true, false, 64-bit integers, finite floats, text, lists and objects, at most {limits.json_depth_max - 1} levels deep",
        ),
    ]
    yield from table(("word", "meaning"), rows2)
    for name, shape in NESTED.items():
        yield from [f"### {name}", ""]
        fields = [(each, inner, "yes") for each, inner in shape.required.items()]
        fields += [(each, inner, "") for each, inner in shape.optional.items()]
        yield from table(
            ("field", "shape", "required"), ((f"`{each}`", shape_text(inner), must) for each, inner, must in fields)
        )


def _doc(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split())


def _first(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


# --- Python ------------------------------------------------------------------------------------------------------

# Beyond the façade: module -> its public names.
MODULES: Final = {
    "runjournal.importers.transfer": ("import_claude_code", "import_jsonl", "export_runs"),
    "runjournal.importers.claude_code": ("discover",),
    "runjournal.looking.audit": ("audit_run", "audit_store", "verify_run", "verify_store", "Finding", "Verification"),
    "runjournal.log.base": ("upcaster", "BlobRef", "UnknownEvent", "NewerEvent", "UnreadableEvent", "PurgedEvent"),
    "runjournal.log.head": ("Head",),
    "runjournal.erasing": ("Erasure",),
    "runjournal.purging": ("Purge",),
    "runjournal.engine.context": ("StateView", "PlanView", "MemoryView"),
    "runjournal.engine.callees": ("ModelOptions",),
    "runjournal.journal": ("RunOptions",),
    "runjournal.projections.transcript": ("Message",),
    "runjournal.testing": ("StoreContract", "crash_points", "World", "WorldEffect", "CrashReport", "CrashFailure"),
}
FOLDS: Final = ("status", "steps", "transcript", "memory", "plan", "prompt", "costs", "calls", "approvals", "inbox")


def signature(name: str, function: Callable[..., Any]) -> str:
    """How a function is called, annotations without quotes."""
    told = get_overloads(function)
    found = inspect.signature(told[-1] if told else function)
    made = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    text = str(found.replace(parameters=made))
    plain = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    return f"{name}{plain}"


def _wrapped(text: str) -> list[str]:
    """A signature, a parameter a line if it is long."""
    if len(text) <= 110:  # noqa: PLR2004 - a line of the page
        return [text]
    head, _, rest = text.partition("(")
    depth, parts, begin = 0, list[str](), 0
    body, _, tail = rest.rpartition(")")
    for place, letter in enumerate(body):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(body[begin:place].strip())
            begin = place + 1
    parts.append(body[begin:].strip())
    return [f"{head}(", *(f"    {part}," for part in parts), f"){tail}"]


def _paragraphs(thing: Any) -> Iterator[str]:
    """A docstring: prose as it stands, examples as text."""
    text = inspect.getdoc(thing) or ""
    for part in text.split("\n\n"):
        if part.lstrip().startswith(">>>"):
            continue  # the tutorial has examples that run
        yield from [" ".join(part.split()), ""]


def _function(name: str, function: Callable[..., Any], level: str) -> Iterator[str]:
    yield from [f"{level} {name}", "", "```text", *_wrapped(signature(name, function)), "```", ""]
    yield from _paragraphs(function)


def public_methods(cls: type) -> dict[str, Any]:
    """The public methods of a class, in the order of the source, those that it inherits first; not the handlers of events."""
    return {
        name: getattr(cls, name)
        for base in reversed(cls.__mro__)
        if base.__module__.startswith("runjournal.")
        for name, value in vars(base).items()
        if not name.startswith(("_", "on_")) and (inspect.isfunction(value) or isinstance(value, classmethod))
    }


def attributes(cls: type) -> dict[str, str]:
    """The public attributes of a class that its source declares with a sentence below, and that sentence."""
    return {
        named.target.id: " ".join(told.value.value.split())
        for base in reversed(cls.__mro__)
        if base.__module__.startswith("runjournal.") and not issubclass(base, tuple)
        for named, told in itertools.pairwise(ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body)  # type: ignore[attr-defined]  # a class
        if isinstance(named, ast.AnnAssign)
        and isinstance(named.target, ast.Name)
        and not named.target.id.startswith("_")
        if isinstance(told, ast.Expr) and isinstance(told.value, ast.Constant) and isinstance(told.value.value, str)
    }


def _class(name: str, cls: type, level: str) -> Iterator[str]:
    yield from [f"{level} {name}", ""]
    yield from _paragraphs(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        yield from [f"Fields: {', '.join(f'`{each}`' for each in cls._fields)}.", ""]
    elif dataclasses.is_dataclass(cls) and not issubclass(cls, Event):
        names = [each.name for each in dataclasses.fields(cls)]
        yield from [f"Fields: {', '.join(f'`{each}`' for each in names)}.", ""]
    elif issubclass(cls, dict):
        keys = get_type_hints(cls)
        yield from [f"Keys, none of them needed: {', '.join(f'`{each}`' for each in keys)}.", ""]
    properties = {
        each: value
        for base in reversed(cls.__mro__)
        for each, value in vars(base).items()
        if isinstance(value, property) and not each.startswith("_")
    }
    told = attributes(cls) | {
        each: " ".join((inspect.getdoc(value) or "").split()) for each, value in properties.items()
    }
    yield from (f"- `.{each}`: {text}" for each, text in told.items())
    if told:
        yield ""
    for method, function in public_methods(cls).items():
        if name == "StoreContract":
            continue  # its methods are tests
        yield from _function(f"{name}.{method}", function, level + "#")


def error_tree(root: type = errors.JournalError, depth: int = 0) -> Iterator[tuple[int, type]]:
    """The errors of `runjournal.log.errors`, each below what it derives from."""
    yield depth, root
    for cls in root.__subclasses__():
        if cls.__module__ == errors.__name__:
            yield from error_tree(cls, depth + 1)


def python_page() -> Iterator[str]:
    """The Python API."""
    yield from [
        "# Python",
        "",
        "What `import runjournal` gives, then what is public in its modules. Everything else may change without notice.",
        "",
    ]
    yield from ["The event classes are in [events.md](events.md). Signatures and sentences are those of the code.", ""]
    for name in sorted(runjournal.__all__, key=lambda each: (each != "Journal", each)):
        thing = getattr(runjournal, name)
        if inspect.isclass(thing):
            yield from _class(name, thing, "##")
        elif callable(thing):
            yield from _function(name, thing, "##")
        else:
            yield from [f"## {name}", "", f"A constant: `{thing!r}`.", ""]
        if name == "RunState":
            yield from _folds()
        if name == "JournalError":
            yield from ["All of them are below, under [Errors](#errors).", ""]
    for module_name, names in MODULES.items():
        module = importlib.import_module(module_name)
        yield from [f"## {module_name}", ""]
        for name in names:
            thing = getattr(module, name)
            if inspect.isclass(thing):
                yield from _class(name, thing, "###")
            else:
                yield from _function(name, thing, "###")
    yield from [
        "## Errors",
        "",
        "All are in `runjournal.log.errors`. `code` is stable, for programs; the text is for people and holds no payload.",
        "",
    ]
    rows = [
        ("·&nbsp;" * depth + f"`{cls.__name__}`", f"`{getattr(cls, 'code')}`", _doc(cls))  # noqa: B009 - of a type
        for depth, cls in error_tree()
    ]
    yield from table(("error", "code", "when, and what to do"), rows)
    yield from _failures()
    yield from [
        "## Limits",
        "",
        "All are in `runjournal.log.limits`, the unit last; `runjournal config` shows them too. One that is reached is an error that names it, unless its line says otherwise.",
        "",
    ]
    yield from table(("limit", "value", ""), ((f"`{each.name}`", spelt(each.value), each.meaning) for each in bounds()))


def _failures() -> Iterator[str]:
    module = importlib.import_module("runjournal.engine.failures")
    found = [cls for cls in vars(module).values() if inspect.isclass(cls) and cls.__module__ == module.__name__]
    rows = [
        (f"`{cls.__name__}`", f"`{cls.__mro__[1].__name__}`", _doc(cls))
        for cls in found
        if issubclass(cls, BaseException)
    ]
    yield from ["## What an agent runs into", ""]
    yield from ["All are in `runjournal.engine.failures`.", ""]
    yield from table(("name", "is a", "when"), rows)


def _folds() -> Iterator[str]:
    state = runjournal.RunState()
    rows = []
    for name in FOLDS:
        part = getattr(state, name)
        module = importlib.import_module(f"runjournal.projections.{name}")
        names = [each.name for each in dataclasses.fields(part)]
        names += [each for each, value in vars(type(part)).items() if isinstance(value, property)]
        methods = [
            f"{each}()"
            for each in public_methods(type(part))
            if not each.startswith(("begin", "commit", "drop", "dump", "load"))
        ]
        rows.append((f"`{name}`", _first(module), ", ".join(f"`{each}`" for each in [*names, *methods])))
    yield from ["The parts of a state:", ""]
    yield from table(("part", "what it is", "what it has"), rows)


# --- SQL ---------------------------------------------------------------------------------------------------------

TABLES: Final = {
    "log": "A view: one row an event, with the run's id and the parts of the body. This is what stays; the tables are ours.",
    "run_keys": "The number of each run, by which its events are kept. Immutable, and never used again.",
    "events": "The log. Immutable: triggers refuse UPDATE, DELETE, REPLACE, and an INSERT anywhere but behind the last event. The one UPDATE that is let through empties a body of a run whose last event is `run.purged`.",
    "blobs": "Values over the inline bound, and bytes that were attached (`blob.attached`), by their SHA-256. One that was purged is empty.",
    "runs": "One row a run: its head, and what a listing needs.",
    "secrets": "The keys of private runs, of their checkpoints and lines. Erased by overwriting, never deleted.",
    "imports": "Of imported runs: where they came from, and how much was taken.",
    "effects": "One row for each tool call that happened and isn't idempotent. Insert-only, until their run is purged.",
    "unknowns": "Calls that may have happened, and of which nobody knows.",
    "lines": "The newest run of each line of retries and restarts.",
    "step_ends": "How each attempt of a step ended.",
    "bills": "One row for each request to a provider, whatever became of it, and for each price beside them.",
    "run_tags": "The tags of each run, by which a listing finds it.",
    "checkpoints": "Checkpoints of folded state. They can be dropped at any time.",
    "meta": "The store's own notes.",
}
COLUMNS: Final = {
    "run_id": "the run",
    "position": "the place of the event in the store, rising, gaps possible",
    "seq": "the seq of the event in its run",
    "type": "the type of the event, as in events.md",
    "body": "the exact bytes that were hashed; none, in a run that was purged",
    "hash": "its SHA-256, over the hash before it too",
    "run": "the number of the run",
    "at": "when it was appended, UTC text",
    "step": "the index of its step, from 0",
    "data": "its fields, as JSON",
    "writer": "who wrote it",
    "epoch": "the fencing token of the writer; 0 for anybody but the owner",
    "ext": "JSON: what is held out of line, by field",
    "log.hash": "its SHA-256 in hex, over the hash before it too",
    "runs.run": "the number of the run",
    "scope": "what effects dedupe in: the first run of a line",
    "key": "the call id, which is the idempotency key",
    "sha256": "of what was taken",
    "runs.status": "queued, running, waiting, scheduled_retry, completed, failed, cancelled, imported, open or purged",
    "runs.kind": "what sort of run it is",
    "runs.title": "for people",
    "runs.tags": "a JSON object",
    "runs.priority": "higher first",
    "runs.parent_run_id": "the run that began this one",
    "runs.queued_at": "when it began, UTC text",
    "runs.updated_at": "the time of its last event; of a running run, of one at or before it",
    "runs.due_at": "when it may go on",
    "runs.wake_at": "when what it waits for came",
    "runs.head_seq": "the seq of its last event; of a running run, of one at or before it",
    "runs.head_hash": "the hash of that event: it pins all up to there",
    "runs.owner": "who holds the lease",
    "runs.epoch": "the fencing token, one more at each claim",
    "runs.lease_until": "seconds since the boot `boot_id`",
    "runs.heartbeat_at": "seconds since the boot `boot_id`",
    "runs.boot_id": "the boot of the owner's machine",
    "runs.host": "the owner's machine",
    "runs.pid_ns": "the PID namespace of the owner",
    "runs.pid": "the owner's process",
    "runs.pid_started": "when that process began, in clock ticks since boot",
    "runs.cancel_requested": "after_step or now, once a cancel was requested",
    "blobs.digest": "SHA-256 of the body, in hex",
    "blobs.bytes": "the length of the body",
    "blobs.body": "the value as JSON; bytes that were attached as they are",
    "secrets.id": "the number of the key; of those with its purpose and name the greatest counts",
    "secrets.purpose": "run (its values), checkpoints, or scope (ids of calls)",
    "secrets.name": "the run's id, or the scope",
    "secrets.key": "32 random bytes; zeros once it was erased",
    "imports.source": "the importer",
    "imports.taken": "the importer's own JSON",
    "meta.key": "its name",
    "meta.value": "its value",
    "effects.tool": "the tool",
    "effects.args_sha256": "SHA-256 of the arguments",
    "lines.newest": "the run that may go on",
    "run_tags.tag": "the name of the tag",
    "run_tags.value": "its value",
    "run_tags.queued_at": "when the run was queued, UTC text",
    "step_ends.step": "the id of the step",
    "step_ends.attempt": "which attempt, from 1",
    "step_ends.kind": "once, repeat or do",
    "bills.call_id": "the call; empty where the row is of none",
    "bills.attempt": "which attempt of the call, from 1; the seq, where the row is of no call",
    "bills.at": "when it ended, UTC text; of a lost one, when it was sent",
    "bills.kind": "model, tool, or cost: money beside the calls",
    "bills.name": "the model, the tool, or who said it",
    "bills.provider": "whom it was sent to, if that was said",
    "bills.step": "the id of the step that asked",
    "bills.status": "reported, priced, free, unpriced, unmeasured or lost",
    "bills.input": "tokens that were neither read from a cache nor written to one; NULL if nobody said",
    "bills.output": "tokens of the answer, reasoning included; NULL if nobody said",
    "bills.cache_read": "tokens read from a cache; NULL if nobody said",
    "bills.cache_write": "tokens written to a cache; NULL if nobody said",
    "bills.reasoning": "tokens of the output that were reasoning; NULL if nobody said",
    "bills.amount": "money, as decimal text; NULL if nobody knows",
    "bills.currency": "its currency",
    "bills.pricing": "which price list it was worked out by",
    "bills.response_id": "the provider's id of the answer",
    "bills.request_id": "the provider's id of the request",
    "bills.calls": "how many requests the row stands for: 1, or 0 where it is none, or those of a purged run",
    "step_ends.ok": "1 completed, 0 failed",
    "checkpoints.fold": "the projection, and the version that made it",
    "checkpoints.body": "its hash, a newline, and the state as JSON",
}


def schema() -> dict[str, list[tuple[str, str, bool]]]:
    """Each table with its columns: (name, type, whether NULL is refused), as the migrations make them."""
    connection = apsw.Connection(":memory:")
    for script in MIGRATIONS:
        connection.execute(script).fetchall()
    query = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
    names = connection.execute(query)
    found = {}
    for (name,) in names.fetchall():
        columns = connection.execute("SELECT name, type, [notnull] FROM pragma_table_xinfo(?)", (name,)).fetchall()
        found[str(name)] = [(str(column), str(kind), bool(must)) for column, kind, must in columns]
    return found


def inventory_page() -> Iterator[str]:
    """inventory.md: the kinds of state, and what becomes of each."""
    yield "# What an agent has, and what becomes of it\n"
    yield "Eight kinds of state, each with one policy of four. As data: `runjournal.looking.inventory.INVENTORY`.\n"
    yield from table(
        ["state", "policy", "events"],
        ([kind.name, kind.policy, ", ".join(f"`{name}`" for name in kind.events) or "none"] for kind in INVENTORY),
    )
    for kind in INVENTORY:
        yield f"## {kind.name}\n"
        yield f"- **Written:** {kind.written}."
        yield f"- **After a crash:** {kind.resumed}."
        yield f"- **What may be lost:** {kind.lost}.\n"
    yield f"The policies: {', '.join(f'*{policy}*' for policy in POLICIES)}. *Commit* is the completion of a step.\n"


def crash_report_page() -> Iterator[str]:
    """What the crash layers found when they last ran whole."""
    found = json.loads((FOLDER.parent / "crash-report.json").read_text(encoding="utf-8"))
    made = (
        f"What `{found['command']}` wrote down, in {found['seconds'] // 60} minutes on {found['cores']} cores: commit "
        f"`{found['commit']}`, Python {found['python']}, SQLite {found['sqlite']}, {found['kernel']}. What the layers are, and who "
        "judges: [how the promises are attacked](../explanation/crash-tests.md)."
    )
    yield from ["# Crash report", "", made, ""]
    rows = [
        (each["layer"], each["what"], f"{each['n']:,}", str(each["violations"]), _counts(each), each.get("skipped", ""))
        for each in found["layers"]
    ]
    yield from table(("layer", "what", "tried", "promises broken", "of these", "skipped"), rows)
    yield from ["", "Promises that are broken on purpose, to see whether a layer notices:", ""]
    harmed = [
        (each["layer"], each["harm"], f"{each['violations']:,} of {each['n']:,}", each["verdict"])
        for each in found["controls"]
    ]
    yield from table(("layer", "what was broken", "noticed in", "verdict"), harmed)


def _counts(entry: Mapping[str, Any]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(entry.get("counts", {}).items()))


def sql_page() -> Iterator[str]:
    """The tables."""
    yield from [
        "# SQL",
        "",
        f"The tables of a SQLite store, schema {len(MIGRATIONS)}, for `Journal.sql(query, params)`: one SELECT, read-only.",
        "",
    ]
    yield from [
        "`run_keys`, `events`, `blobs`, `imports` and `meta` are the truth; the others follow from the events. A later version may",
        "change them by a migration; events stay as they are.",
        "",
    ]
    yield from [
        "Don't open the file with `sqlite3` in a process that has it open with runjournal: two SQLite libraries in one",
        "process drop each other's locks. Don't write to it with another tool at all.",
        "",
    ]
    yield from ["```python"]
    yield SQL_EXAMPLE.rstrip()
    yield from ["```", "", "```output", *SQL_PRINTS.splitlines(), "```", ""]
    found = schema()
    for name in sorted(found, key=list(TABLES).index):
        yield from [f"## {name}", "", TABLES[name], ""]
        rows = [
            (
                f"`{column}`",
                kind.lower(),
                ""
                if must or ((column in {"position", "run"} or name == "log") and column not in {"step", "ext"})
                else "or null",
                COLUMNS.get(f"{name}.{column}") or COLUMNS[column],
            )
            for column, kind, must in found[name]
        ]
        yield from table(("column", "type", "", "what it is"), rows)


SQL_EXAMPLE: Final = """\
from runjournal import Journal
from runjournal.log.events import NoteAdded, RunQueued

with Journal.open("example.db") as journal:
    journal.append("report-42", [RunQueued(kind="report", input={}), NoteAdded("waits for the data")], expect=0)

    # how many events of each type
    print(journal.sql("SELECT type, count(*) FROM log GROUP BY type ORDER BY type"))

    # a field of the data; a field that is held out of line isn't there
    query = "SELECT seq, data ->> '$.text' FROM log WHERE type = ?"
    print(journal.sql(query, ["note.added"]))
"""
SQL_PRINTS: Final = """\
[('note.added', 1), ('run.queued', 1)]
[(2, 'waits for the data')]
"""


def main(words: list[str]) -> int:
    """Write the pages, or check them."""
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        sys.stdout.write(f"{path.relative_to(FOLDER.parent.parent)}\n")
        if "--check" not in words:
            path.write_text(pages()[path], encoding="utf-8")
    return 1 if stale and "--check" in words else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
