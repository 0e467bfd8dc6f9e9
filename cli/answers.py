"""`runjournal questions`, `approve`, `reject`, `edit`, `resolve`, `signal`: what people are asked, and say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from runjournal.log.limits import show_args_chars_max

from . import exits
from .acts import EXACT, EXITS, WHOLE, Act, Desk, act_options, acting, exact_id, json_text
from .app import App, command, pass_app
from .formats import duration, plural
from .output import emit, records, styled, wrapped
from .refs import HELP
from .safe import line

if TYPE_CHECKING:
    from runjournal.questions import OpenQuestion

_INDENT: Final = "    "
_WORDS: Final[dict[str, Literal["happened", "did_not_happen", "retry", "unknown"]]] = {
    "happened": "happened",
    "did-not-happen": "did_not_happen",
    "retry": "retry",
    "unknown": "unknown",
}


@command(
    "questions",
    epilog=HELP,
    examples=[
        ("runjournal questions", "what people are asked, of all runs, oldest first"),
        ("runjournal questions report-42 -o json", "of one run, for a script"),
    ],
)
@click.argument("run", required=False)
@pass_app
def questions(app: App, run: str | None) -> int:
    """List what people are asked: approvals, and calls of which nobody knows whether they happened."""
    from runjournal.log.clock import timestamp
    from runjournal.questions import questions as asked

    from .refs import run_id_of

    with app.open() as journal:
        found = asked(journal, run if run is None else run_id_of(journal, run, newest=True))
        now = timestamp(journal.clock.now())
        if app.plain:
            emit(app, itertools.chain.from_iterable(_question_lines(app, each, now) for each in found))
        else:
            records(app, found, (), lambda _: (), _question_json)
    app.say(plural(len(found), "question") if found else "nobody is asked anything")
    return exits.OK


def _question_lines(app: App, each: OpenQuestion, now: str) -> Iterator[str]:
    from runjournal.projections import shell

    from .describe import value

    approval = each.kind == "approval"
    commands = (
        shell.answers(each.run_id, each.id, each.choices) if approval else shell.resolutions(each.run_id, each.id)
    )
    asked = "asked" if each.kind == "approval" else "sent"
    ago = f"{asked} {duration(each.asked_at, now)} ago"
    yield f"{styled(line(each.run_id), 'title')}  {each.kind}  {styled(line(each.action, 120), 'warn')}  {line(ago)}"
    yield from wrapped(value(each.args, show_args_chars_max), _INDENT)
    if each.reason:
        yield from wrapped(line(each.reason, 400), _INDENT)
    if each.running:
        text = f"it ran out of its time, and its body may still be running in {each.running}: it may yet act"
        yield from wrapped(line(text, 400), _INDENT)
    for about in filter(None, (each.risk and f"risk: {each.risk}", each.expires_at and _until(each, now))):
        yield from wrapped(line(about, 400), _INDENT)
    if each.schema:
        yield from wrapped(f"args may be edited to: {value(each.schema, show_args_chars_max)}", _INDENT)
    edit = shell.edit(each.run_id, each.id, each.args, each.choices) if approval else None
    for answer in [*commands, *filter(None, [edit])]:
        yield f"{_INDENT}{styled('answer:', 'dim')} {line(app.typed(answer))}"


def _until(each: OpenQuestion, now: str) -> str:
    """Return until when a question may be answered, and what counts then."""
    if each.default is None:
        then = "then it is a no"
    else:
        then = f"then it is {', '.join(f'{name} {told}' for name, told in each.default.items())}"
    if (each.expires_at or "") <= now:
        return f"its time was over at {each.expires_at}: {then}"
    return f"it may be answered for {duration(now, each.expires_at or now)} more, until {each.expires_at}; {then}"


def _question_json(each: OpenQuestion) -> dict[str, Any]:
    from runjournal.projections.status import reference

    return {name: reference(getattr(each, name)) for name in each.__slots__}


@command(
    "approve",
    epilog=f"{EXACT}\n\n{EXITS}",
    examples=[
        ("runjournal approve refund-1 7b13738e045569f9 --reason 'seen'", "the first answer counts"),
        ("runjournal approve refund-1 7b13738e045569f9 --choice voucher", "a question that has choices"),
    ],
)
@click.argument("run")
@click.argument("question")
@click.option("--choice", metavar="TEXT", help="Which of the question's choices, if it has some.")
@act_options
@pass_app
def approve(app: App, run: str, question: str, *, choice: str | None, act: Act) -> int:
    """Say yes to a question that a run asks; `runjournal questions` lists them."""
    with acting(app, act) as desk:
        run_id, key = _asked(desk, run, question)
        desk.journal.approve(run_id, key, note=act.reason, choice=choice)
        return desk.told(run_id)


@command(
    "reject",
    epilog=f"{EXACT}\n\n{EXITS}",
    examples=[("runjournal reject refund-1 7b13738e045569f9 --reason 'too much'", "the agent is told the reason")],
)
@click.argument("run")
@click.argument("question")
@act_options
@pass_app
def reject(app: App, run: str, question: str, *, act: Act) -> int:
    """Say no to a question that a run asks: what it asked for raises Rejected."""
    with acting(app, act) as desk:
        run_id, key = _asked(desk, run, question)
        desk.journal.reject(run_id, key, note=act.reason)
        return desk.told(run_id)


@command(
    "edit",
    epilog=f"{EXACT}\n\n{EXITS}",
    examples=[("runjournal edit refund-1 7b13738e045569f9 --args '{\"cents\": 400}'", "yes, but only so much")],
)
@click.argument("run")
@click.argument("question")
@click.option(
    "--args",
    "args",
    type=json_text,
    metavar="JSON",
    required=True,
    help="The arguments that are approved, a JSON object.",
)
@click.option("--choice", metavar="TEXT", help="Which of the question's choices, if it has some.")
@act_options
@pass_app
def edit(app: App, run: str, question: str, *, args: Any, choice: str | None, act: Act) -> int:
    """Say yes to a question that a run asks, with other arguments than it asked for."""
    if not _is_object(args):
        raise click.BadParameter("expected a JSON object, as the run has asked with one", param_hint="--args")
    with acting(app, act) as desk:
        run_id, key = _asked(desk, run, question)
        desk.journal.approve(run_id, key, args=args, note=act.reason, choice=choice)
        return desk.told(run_id)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _asked(desk: Desk, run: str, question: str) -> tuple[str, str]:
    from runjournal.projections.state import RunState

    run_id = desk.run_id(run)
    return run_id, exact_id("question", question, desk.journal.fold(RunState, run_id).approvals.known)


@command(
    "resolve",
    epilog=f"{WHOLE}\n\n{EXITS}",
    examples=[
        ("runjournal resolve report-42 c2 happened --result '\"PR 7\"'", "it has happened: the agent gets the result"),
        ("runjournal resolve report-42 c2 did-not-happen", "nothing was done: it is sent when it is asked for again"),
        ("runjournal resolve report-42 c2 retry --reason 'twice is fine'", "it is sent again, whatever became of it"),
        ("runjournal resolve report-42 c2 unknown", "nobody will ever know: the agent is told so"),
    ],
)
@click.argument("run")
@click.argument("call")
@click.argument("word", type=click.Choice(list(_WORDS)))
@click.option("--result", type=json_text, metavar="JSON", help="With `happened`: what the call returned.")
@act_options
@pass_app
def resolve(app: App, run: str, call: str, word: str, *, result: Any, act: Act) -> int:
    """Say what became of a call of which nobody knows; it holds for all its attempts so far."""
    if result is not None and word != "happened":
        raise click.UsageError(f"--result is what a call returned that has happened; leave it out with {word}")
    with acting(app, act) as desk:
        name = desk.name(run)
        key = exact_id("call", call, desk.journal.state(name).calls.known)
        desk.journal.resolve(name, key, _WORDS[word], result, act.reason)
        return desk.told(name)


@command(
    "signal",
    epilog=f"{WHOLE}\n\n{EXITS}",
    examples=[("runjournal signal report-42 paid --payload '{\"order\": 7}'", "a message that a step takes")],
)
@click.argument("run")
@click.argument("name")
@click.option("--payload", type=json_text, metavar="JSON", help="What the message says.")
@click.option("--signal-id", metavar="ID", help="The same id again is the same signal.  [default: a new one]")
@act_options
@pass_app
def signal(app: App, run: str, name: str, *, payload: Any, signal_id: str | None, act: Act) -> int:
    """Send a message to a run that hasn't ended."""
    with acting(app, act) as desk:
        named = desk.name(run)
        sent = desk.journal.signal(named, name, payload, signal_id=signal_id)
        desk.note(named)
        return desk.told(named, signal_id=sent)
