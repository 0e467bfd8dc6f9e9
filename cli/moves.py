"""`runjournal cancel`, `abandon-step`, `retry`, `restart`, `fork`: stop a run, give up a part of it, or go on anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

from runjournal.log.limits import show_args_chars_max, show_rows_max

from .acts import EXITS, WHOLE, Act, Desk, act_options, acting, newest
from .app import App, command, pass_app
from .safe import line

if TYPE_CHECKING:
    from runjournal.sent import GivenAnswer, SentCall

_new_id = click.option(
    "--new-run-id",
    metavar="ID",
    help="The id of the new run.  [default: ID.r2, …; of a fork a fresh one]",
)


@command(
    "cancel",
    epilog=f"{WHOLE}\n\n{EXITS}",
    examples=[
        ("runjournal cancel report-42 --reason 'not needed'", "it ends behind the step that is open"),
        ("runjournal cancel report-42 --now", "it ends at the next call"),
    ],
)
@click.argument("run")
@click.option(
    "--now/--after-step",
    "at_once",
    default=False,
    show_default=True,
    help="Its owner, if it has one, begins no call any more, or only no step; what is in flight ends.",
)
@act_options
@pass_app
def cancel(app: App, run: str, *, at_once: bool, act: Act) -> int:
    """Stop a run: one that nobody owns is ended at once, else its owner obeys, or whoever claims it next."""
    when: Literal["after_step", "now"] = "now" if at_once else "after_step"
    with acting(app, act) as desk:
        name = desk.name(run)
        sent = desk.journal.sent(name)
        desk.journal.cancel(name, act.reason or "", when)
        return _told(desk, name, sent)


@command(
    "abandon-step",
    epilog=f"{WHOLE}\n\n{EXITS}",
    examples=[("runjournal abandon-step report-42", "its step is tried anew, by today's code")],
)
@click.argument("run")
@act_options
@pass_app
def abandon_step(app: App, run: str, *, act: Act) -> int:
    """Give up the open attempt of the step of a run that nobody owns; what it has sent can be sent again."""
    from runjournal.sent import answers_to

    with acting(app, act) as desk:
        name = desk.name(run)
        opened = desk.journal.state(name).steps.open
        sent = desk.journal.abandon_step(name, reason=act.reason or "")
        answers = answers_to(desk.journal, newest(desk.journal, name))
        return _told(desk, name, sent, [each for each in answers if opened is not None and each.step == opened.id])


@command(
    "retry",
    epilog=f"{WHOLE}\n\n{EXITS}",
    examples=[
        ("runjournal retry report-42", "a new run, which goes on where this one ended"),
        ("runjournal retry report-42 --again pay", "a step is tried as if it hadn't failed"),
    ],
)
@click.argument("run")
@click.option("--again", multiple=True, metavar="STEP", help="A step to try as if it hadn't failed; several are taken.")
@_new_id
@act_options
@pass_app
def retry(app: App, run: str, *, again: tuple[str, ...], new_run_id: str | None, act: Act) -> int:
    """Queue a new run that goes on from one that has ended."""
    with acting(app, act) as desk:
        new = desk.journal.retry(desk.name(run), again=again, new_run_id=new_run_id)
        desk.note(new)
        return desk.told(new)


@command(
    "restart",
    epilog=f"{WHOLE}\n\n{EXITS}",
    examples=[("runjournal restart report-42", "from the beginning; the same calls aren't sent again")],
)
@click.argument("run")
@_new_id
@act_options
@pass_app
def restart(app: App, run: str, *, new_run_id: str | None, act: Act) -> int:
    """Queue a new run that begins anew with what its line was queued with.

    What was sent isn't sent again if a step of the same name asks the same tool for it with the same args, or if the
    tool has a key= of its own; after a rename, or with other args, it is.
    """
    from runjournal.sent import answers_to

    with acting(app, act) as desk:
        name = desk.name(run)
        new = desk.journal.restart(name, new_run_id=new_run_id)
        desk.note(new)
        return _told(desk, new, desk.journal.sent(name), answers_to(desk.journal, newest(desk.journal, name)))


@command(
    "fork",
    epilog=f"{WHOLE}\n\n{EXITS}",
    examples=[("runjournal fork report-42 --at 120", "behind the last step that was complete at event 120")],
)
@click.argument("run")
@click.option("--at", type=click.IntRange(min=1), metavar="SEQ", help="An event of the run.  [default: its newest]")
@_new_id
@act_options
@pass_app
def fork(app: App, run: str, *, at: int | None, new_run_id: str | None, act: Act) -> int:
    """Queue a new run, of its own, that goes on behind a step of another one. What that has sent it may send again."""
    from runjournal.sent import answers_to, redone, sent_by

    with acting(app, act) as desk:
        name = desk.run_id(run) if at else desk.name(run)
        new = desk.journal.fork(name, at, new_run_id=new_run_id)
        desk.note(new)
        of, base = _base(desk, new)
        sent, answers = sent_by(desk.journal, of), answers_to(desk.journal, of)
        return _told(desk, new, redone(desk.journal, of, base, sent), redone(desk.journal, of, base, answers))


def _base(desk: Desk, new: str) -> tuple[str, int]:
    """The run that a fork goes on from, and the event behind which it does."""
    from runjournal.log.events import RunQueued

    for record in desk.appender.records:
        if record.run_id == new and isinstance(record.event, RunQueued) and record.event.base is not None:
            return record.event.base["run_id"], record.event.base["seq"]
    raise AssertionError("a fork was made, and queued nothing")


def _told(desk: Desk, name: str, sent: Sequence[SentCall], answers: Sequence[GivenAnswer] = ()) -> int:
    """Say what was appended; what was sent, for it can be sent again; and what people have answered."""
    from runjournal.projections.status import reference

    from .describe import value

    if sent:
        desk.app.say("what it has sent can be sent again by a new attempt or a new run:")
    for call in sent[:show_rows_max]:
        known = "it has happened" if call.known else "nobody knows whether it has happened"
        desk.app.say(f"  {line(call.tool)} {value(call.args, show_args_chars_max)}: {known}")
    if len(sent) > show_rows_max:
        desk.app.say(f"  … {len(sent) - show_rows_max} more")
    if answers:
        desk.app.say("what people have answered holds for exactly the same question; today's code may not ask again:")
    for each in answers[:show_rows_max]:
        what = f"{line(repr(each.action))} {value(each.args, show_args_chars_max)}"
        edited = f", with {value(each.edited, show_args_chars_max)}" if each.decision == "edited" else ""
        note = f": {line(each.note, 200)}" if each.note else ""
        desk.app.say(f"  a person said {'no' if each.decision == 'rejected' else 'yes'} to {what}{edited}{note}")
    if len(answers) > show_rows_max:
        desk.app.say(f"  … {len(answers) - show_rows_max} more")
    return desk.told(
        name,
        sent=[call._asdict() | {"args": reference(call.args)} for call in sent],
        answers=[
            each._asdict() | {name: reference(getattr(each, name)) for name in ("args", "edited")} for each in answers
        ],
    )
