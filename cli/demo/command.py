"""`runjournal demo`: an agent is killed twice while it does things in the world, and does each of them once."""

from __future__ import annotations

import random
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final, NamedTuple

import click

from runjournal.cli.formats import money, plural
from runjournal.cli.output import Column, table
from runjournal.cli.safe import preview
from runjournal.journal import Journal
from runjournal.log.limits import demo_lives_max, demo_preview_chars_max
from runjournal.log.private import open_new

from .agent import TABLE
from .evidence import Found, asked, bookings, checks, effects, find
from .stage import COMMIT, INVOICES, WORLD, Stage, two_points
from .world import LEDGER, ledger

Say = Callable[[str], None]
_width: Final = 100


class Demo(NamedTuple):
    """One demo: its store, its run, the folder that the agent and the world work in, and where it is told."""

    path: Path
    run_id: str
    folder: Path
    say: Say


def run_demo(path: Path, seed: int, say: Say, world: Sequence[str] = WORLD) -> int:
    """Tell the story. Return the exit code: 0 if every promise was kept, by the ledger and the log."""
    with Journal.open(path) as journal:
        run_id = f"demo-{journal.new_run_id()[-12:]}"
        journal.define(TABLE)
    demo = Demo(path, run_id, _prepare(path, run_id), say)
    say(f"1. An agent pays {len(INVOICES)} invoices: run {run_id}, in {path}")
    say("   It reads a file, asks a model, charges a card, books that in a table of its own; at last it opens")
    say("   a pull request. Card company, code host and model are another process, with a ledger on disk.")
    say(f"   Where seed {seed} says, the agent will be killed twice (SIGKILL).")
    points = two_points(random.Random(seed))  # noqa: S311 - where to kill is no secret
    with Stage(demo.folder, points, world) as stage:
        found = _lives(demo, stage)
    with Journal.open(path, by="demo") as journal:
        return _end(demo, journal, found)


def _lives(demo: Demo, stage: Stage) -> list[Found]:
    """Start the agent again and again until it ends by itself; answer its question in between."""
    found = list[Found]()
    for part in range(2, 2 + demo_lives_max):
        life = stage.live(demo.path, demo.run_id)
        head = f"\n{part}. {'It starts again' if part > 2 else 'It starts'}:"  # noqa: PLR2004 - 1 is the introduction
        with Journal.open(demo.path, by="demo") as journal:
            if life.killed is not None:
                found.append(find(journal, demo.run_id, life))
                first, *rest = _killed(found[-1])
                demo.say(f"{head} killed {first}")
                for line in rest:
                    demo.say(f"   {line}")
            elif life.word.startswith("waiting"):
                demo.say(f"{head} it waits for a person: nothing that may have happened is sent again.")
                _answer(demo, journal)
            else:
                demo.say(f"{head} {life.word or 'it failed'}")
                break
    return found


def _prepare(path: Path, run_id: str) -> Path:
    """Make a folder with the invoices."""
    folder = path.with_name(f"{path.name}-demo") / run_id
    folder.mkdir(parents=True, mode=0o700)
    for name, total in INVOICES.items():
        with open(open_new(folder / name), "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor has no path
            file.write(f"Invoice: {name.removesuffix('.txt')}\nTotal: {total} EUR\n")
    return folder


def _killed(found: Found) -> Iterator[str]:
    """Tell what was there when the agent died, and what becomes of it."""
    life, state = found.life, found.state
    if life.killed is not None and life.killed.what != COMMIT:
        yield f"when the world had done {life.killed.what} (line {life.line}) and not yet answered."
    else:
        yield f"after it had committed event {life.committed[-1][0]}, {life.committed[-1][1]}."
    lost = f"{len(found.lost)} OF THEM LOST" if found.lost else "all of them are there"
    yield f"committed   {plural(state.seq, 'event')}; this life knew of {len(life.committed)}, {lost}"
    yield f"kept        {plural(len(found.kept), 'step')}: {', '.join(found.kept)}"
    if state.steps.open is not None:
        yield f"open        {state.steps.open.id}: messages, memory and plan are as they were when it began"
    if found.given_back:
        yield f"replayed    {', '.join(found.given_back.values())}: what they gave is on record"
    for word, verdict in (("sent again", "run"), ("asked", "hook"), ("asked", "ask")):
        for each in found.verdicts:
            if each.verdict == verdict:
                yield from _wrapped(f"{word:<10}  {each.tool} ({each.policy}): {each.why}")


def _wrapped(text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, _width - 3, subsequent_indent=" " * 12)


def _answer(demo: Demo, journal: Journal) -> None:
    """Do what a person would do: look at the world, and say in the log what is there."""
    for question in journal.recover(demo.run_id).questions:
        same = (one for one in ledger(demo.folder) if (one["what"], one["args"]) == (question.tool, question.args))
        done = next(same, None)
        demo.say(f"   asked       did {question.tool} happen? {preview(question.args, demo_preview_chars_max)}")
        if done is not None:
            note = f"line {done['line']} of {LEDGER}"
            demo.say(f"   answered    yes: the demo has looked, as a person would; it is {note}")
            journal.resolve(demo.run_id, question.key, "happened", result=done["result"], note=note)
        else:
            note = f"it isn't in {LEDGER}"
            demo.say(f"   answered    no: the demo has looked, as a person would; {note}")
            journal.resolve(demo.run_id, question.key, "did_not_happen", note=note)


def _end(demo: Demo, journal: Journal, found: Sequence[Found]) -> int:
    """Tell what is there in the end, and whether that is what was promised."""
    _show_world(demo, journal)
    _show_cost(demo, journal, found)
    demo.say("\n   Checked, by the ledger and the log:")
    kept = True
    for check in checks(journal, demo.run_id, demo.folder, found):
        demo.say(f"   {'ok' if check.kept else 'NO'}  {check.what}")
        kept = kept and check.kept
    db = "" if demo.path == Path("runjournal.db") else f"--db {shlex.quote(str(demo.path))} "
    at = found[0].state.seq if found else 1
    demo.say("\nLook further:")
    for command in (f"show {demo.run_id} --tree", f"replay {demo.run_id} --at {at}", f"audit {demo.run_id}"):
        demo.say(f"   {_program()} {db}{command}")
    demo.say(f"   cat {shlex.quote(str(demo.folder / LEDGER))}")
    return 0 if kept else 1


def _show_world(demo: Demo, journal: Journal) -> None:
    demo.say("\n   The world's ledger:")
    columns = [Column("LINE", right=True), Column("WHAT"), Column("OF"), Column("RESULT"), Column("KEY")]
    rows = [
        (one["line"], one["what"], next(iter(one["args"].values())), next(iter(one["result"].values())), one["key"])
        for one in effects(demo.folder)
    ]
    _table(columns, rows, demo.say)
    demo.say("\n   The agent's table, demo_bookings:")
    columns = [Column("INVOICE"), Column("EUR", right=True), Column("CHARGE")]
    booked = bookings(journal, demo.run_id)
    _table(columns, [(name, money(str(Decimal(cents) / 100)), charge) for name, cents, charge in booked], demo.say)


def _table(columns: Sequence[Column], rows: Sequence[Sequence[object]], say: Say) -> None:
    for line in table(columns, rows, "   "):
        say(click.unstyle(line))


def _show_cost(demo: Demo, journal: Journal, found: Sequence[Found]) -> None:
    costs = journal.state(demo.run_id).costs
    replayed = sum(tool in costs.lines for each in found for tool in each.given_back.values())
    demo.say(
        f"\n   Cost: {plural(len(asked(demo.folder)), 'question')} to the model, {plural(costs.tokens(), 'token')}, "
        f"{money(str(costs.amount('USD')))} USD; {plural(replayed, 'answer')} replayed, for nothing."
    )


def _program() -> str:
    """How the reader can call us."""
    program = Path(sys.argv[0])
    return "runjournal" if program.name != "runjournal" or program.parent == Path() else shlex.quote(str(program))
