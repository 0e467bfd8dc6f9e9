"""What every command that writes to a run has: who acts, why, a rehearsal; and how it says what it has appended."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from . import exits
from .app import App, load_types, user
from .output import document, emit, styled
from .safe import line

if TYPE_CHECKING:
    from runjournal.async_journal import AsyncJournal
    from runjournal.log.base import RecordedEvent
    from runjournal.logbook import Logbook
    from runjournal.writing.appender import Appender
    from runjournal.writing.rehearsal import NotingAppender

F = TypeVar("F", bound=Callable[..., Any])
WHOLE: Final = (
    "RUN is a whole id: a prefix names a run to look at, none to change. It stands for the newest run of its line."
)
EXACT: Final = "RUN is a whole id, and exactly that run; RUN~2 is the second run of its line."
EXITS: Final = (
    "Exit codes: 0 done, or it would be done (--dry-run); 2 the command line can't be right; 4 no such run; "
    "5 refused, nothing was written; the text says why."
)


def json_text(text: str) -> Any:
    """Return the JSON value of an argument of the command line. Raises BadParameter."""
    import orjson

    try:
        return orjson.loads(text.encode("utf-8", "surrogateescape"))
    except ValueError as error:
        quoted = "a text has quotes of its own: '\"text\"'"
        raise click.BadParameter(f"expected JSON, got {line(text, 60)} ({error}); {quoted}") from None


class Act(NamedTuple):
    """Who acts, and why; `dry_run`: nothing is written."""

    by: str | None
    reason: str | None
    dry_run: bool


def act_options(function: F) -> F:
    """Add the options that every command has which writes to a run; they come as one, `act`."""

    @functools.wraps(function)
    def wrapped(*args: Any, by: str | None, reason: str | None, dry_run: bool, **more: Any) -> Any:
        return function(*args, act=Act(by, reason, dry_run), **more)

    options = [
        click.option("--by", envvar="RUNJOURNAL_BY", metavar="NAME", help="Who acts, in the log.  [default: cli:USER]"),
        click.option("--reason", metavar="TEXT", help="Why, in the log."),
        click.option("--dry-run", is_flag=True, help="Say what would be appended, and write nothing."),
    ]
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]  # the same function, with options


@dataclass(slots=True)
class Desk:
    """A journal that somebody acts on, and what was appended there so far, or would have been."""

    app: App
    act: Act
    journal: AsyncJournal
    appender: NotingAppender

    def name(self, text: str) -> str:
        """Return a whole id, which stands for its line. Raises what `refs.whole_id` raises."""
        from .refs import whole_id

        return whole_id(self.journal, text)

    def run_id(self, text: str) -> str:
        """Return exactly the run of this id; `ID~2` is the second run of the line of ID."""
        name = self.name(text)
        return newest(self.journal, name) if "~" in name else name

    def note(self, name: str) -> None:
        """Put the reason on record where the event itself has no place for it."""
        note(self.journal, name, self.act.reason)

    def told(self, run_id: str, **more: Any) -> int:
        """Say what was appended, or would be, and what to type next; `more` is for programs."""
        from .events import event_json

        records = self.appender.records
        if self.app.plain:
            emit(self.app, self._lines(records))
            self.app.say("nothing was written" if self.act.dry_run else f"next: runjournal explain {run_id}")
        else:
            found = {"run_id": run_id, "dry_run": self.act.dry_run, **more}
            document(self.app, found | {"appended": [event_json(record) for record in records]})
        return exits.OK

    def _lines(self, records: Iterable[RecordedEvent]) -> Iterator[str]:
        from .describe import event

        word = "would append" if self.act.dry_run else "appended"
        for record in records:
            where = f"{styled(line(record.run_id), 'title')} {record.seq}"
            yield f"{word}  {where}  {line(record.type)}  {event(record)}".rstrip()


@contextlib.contextmanager
def acting(app: App, act: Act) -> Generator[Desk]:
    """Open the journal to write to runs in it; a rehearsal judges what it is told, and writes nothing."""
    from runjournal.writing.rehearsal import NotingAppender, RehearsingAppender

    kind = RehearsingAppender if act.dry_run else NotingAppender
    with opened(app, act.by or f"cli:{user()}", kind, create=False) as journal:
        appender = journal.ownership.appender
        assert isinstance(appender, kind)  # noqa: S101 - what was passed two lines above
        yield Desk(app, act, journal, appender)


@contextlib.contextmanager
def opened(app: App, by: str | None, appender: type[Appender], *, create: bool) -> Generator[AsyncJournal]:
    """Open the journal with an appender; only what begins a run makes a new store."""
    from runjournal.async_journal import AsyncJournal
    from runjournal.log.clock import SystemClock
    from runjournal.log.opening import open_store
    from runjournal.writing.rebuild import rebuild

    if not create:
        app.check_there()
    load_types()
    store = open_store(app.db, clock=SystemClock(), create=create, allow_unsafe=False)
    with contextlib.closing(store), app.naming_the_store():
        if store.index_stale():
            rebuild(store)
        with AsyncJournal(store, by=by, appender=appender) as journal:
            yield journal


def newest(journal: Logbook, name: str) -> str:
    """Return the run that a whole id stands for now."""
    from runjournal.naming import named

    return named(journal.store, name)


def note(journal: Logbook, name: str, reason: str | None) -> None:
    """Put a reason on record as a note, if there is one, in the run that an id stands for."""
    from runjournal.log.codec import tellable
    from runjournal.log.events import NoteAdded

    if reason:
        journal.append(newest(journal, name), [NoteAdded(tellable(reason), "reason")], expect=None)


def exact_id(what: str, text: str, known: Iterable[str]) -> str:
    """Return an id as it was typed. Raises UsageError for the beginning of one that is known, which it names."""
    found = list(known)
    meant = [each for each in found if each.startswith(text)]
    if text in found or not text or len(meant) != 1:
        return text
    raise click.UsageError(
        f"expected the whole id of a {what}, got {line(text, 60)}; if you mean {meant[0]}, type that"
    )


def agreed(app: App, what: str, run_ids: Sequence[str], done: str) -> bool:
    """Return whether who is asked agrees that these runs lose something for ever; say so if nothing was `done`."""
    named = ", ".join(line(each) for each in run_ids[:10])
    if click.confirm(f"{what} for ever ({named})?", err=True):
        return True
    app.say(f"nothing was {done}")
    return False


def say_pending(app: App) -> None:
    """Say that what was taken away is in an older page still."""
    app.say("a reader that began before still keeps an old page: `runjournal doctor` says when it is gone")
