"""`runjournal explain RUN`: why it isn't moving, and the exact line to type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from . import exits
from .app import App, command, pass_app
from .output import STATUS_STYLES, document, emit, styled, wrapped
from .refs import HELP
from .safe import line

if TYPE_CHECKING:
    from runjournal.looking.standing import Stand, Standing
    from runjournal.questions import OpenQuestion

_INDENT = "  "


@command(
    "explain",
    epilog=HELP,
    examples=[
        ("runjournal explain report-42", "why it isn't moving, and what to type"),
        ("runjournal explain report-42 --agent agents:report", "the same, with the name of the agent filled in"),
        ("runjournal explain @last -o json", "for a script"),
    ],
)
@click.argument("run")
@click.option(
    "--agent",
    envvar="RUNJOURNAL_AGENT",
    metavar="[KIND=]MODULE:FUNCTION",
    default="",
    help="The agent, as the lines are to name it; nothing is imported.  [default: as the log names it]",
)
@pass_app
def explain(app: App, run: str, agent: str) -> int:
    """Say why a run isn't moving, and the exact line to type; nothing is written."""
    from runjournal.looking.known_agents import known_agent
    from runjournal.looking.standing import stand_of, standing

    from .refs import run_id_of

    with app.open() as journal:
        head = journal.head(run_id_of(journal, run, newest=True))
        stand = stand_of(journal, head, agent=agent or known_agent(journal, head))
    found = standing(stand)
    if not app.plain:
        ways = [way._asdict() | {"command": app.typed(way.command)} for way in found.ways]
        told = {"run_id": stand.run_id, "status": stand.head.status, "stands": found.word, "why": found.why}
        asked = [_question(each) for each in stand.questions]
        document(app, told | {"questions": asked, "ways": ways})
        return exits.OK
    emit(app, _lines(app, stand, found))
    if any("MODULE:" in way.command for way in found.ways):
        app.say("MODULE is where the agent is; --agent or RUNJOURNAL_AGENT fills it in")
    return exits.OK


def _question(each: OpenQuestion) -> dict[str, Any]:
    """What a person is asked, for a program; large args by reference."""
    from runjournal.projections.status import reference

    return {name: reference(getattr(each, name)) for name in each.__slots__}


def _lines(app: App, stand: Stand, found: Standing) -> Iterator[str]:
    status = stand.head.status
    yield f"{styled(stand.run_id, 'title')}  {styled(status, STATUS_STYLES.get(status, ''))}  {found.word}"
    yield from wrapped(line(found.why, 2_000), "")
    for way in found.ways:
        yield ""
        yield f"{_INDENT}{styled(line(way.why), 'dim')}"
        yield f"{_INDENT}{line(app.typed(way.command))}"
