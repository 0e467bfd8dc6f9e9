"""L7: somebody changes rows behind the triggers' back, or a bit of the file turns over: it is found."""

from __future__ import annotations

import itertools
import random
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from runjournal import Journal
from runjournal.log.chain import GENESIS, event_hash
from runjournal.log.errors import JournalError
from runjournal.looking.audit import audit_store, verify_store
from runjournal.writing.checkpoints import CheckpointWarning

from . import harms, workloads
from .lives import Tell, live
from .report import Entry, emptied, folder, timed

Rng = random.Random
Connection = apsw.Connection
Heads = dict[str, tuple[int, str | None]]
Tamper = Callable[[Connection, Rng], None]


class Nothing(Exception):
    """This store has nothing that could be changed so."""


def rows_of(connection: Connection, query: str, *params: Any) -> list[Any]:
    """The rows of a query, of which there is at least one."""
    rows: list[Any] = connection.execute(query, params).fetchall()
    if not rows:
        raise Nothing
    return rows


def one(connection: Connection, query: str, *params: Any) -> Any:
    return rows_of(connection, query, *params)[0]


def event(connection: Connection, rng: Rng, where: str = "1") -> tuple[Any, ...]:
    """Any event: (position, run, seq, type, body, hash)."""
    query = f"SELECT position, run, seq, type, body, hash FROM events WHERE {where} ORDER BY position"
    return tuple(rng.choice(rows_of(connection, query)))


def two_of_a_run(connection: Connection, rng: Rng) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    first = event(connection, rng)
    return first, event(connection, rng, f"run = {first[1]} AND seq <> {first[2]}")


def set_body(connection: Connection, position: int, body: bytes) -> None:
    connection.execute("UPDATE events SET body = ? WHERE position = ?", (body, position))


def _digit(found: re.Match[bytes]) -> bytes:
    return b"%d" % ((int(found[0]) + 1) % 10)


def payload(connection: Connection, rng: Rng) -> None:
    """One character of what an event says."""
    position, *_, body, _ = event(connection, rng, 'instr(body, \'"text":"\') OR instr(body, \'"content":"\')')
    changed = re.sub(
        rb'("(?:text|content)":")(.)', lambda found: found[1] + (b"q" if found[2] != b"q" else b"p"), body, count=1
    )
    set_body(connection, position, changed)


def header(connection: Connection, rng: Rng) -> None:
    """When, or by whom."""
    position, *_, body, _ = event(connection, rng)
    changed = (
        re.sub(rb'(?<="at":"20)\d', _digit, body, count=1)
        if rng.random() < 0.5
        else body.replace(b'"by":"', b'"by":"x', 1)
    )
    set_body(connection, position, changed)


def kind(connection: Connection, rng: Rng) -> None:
    """What kind of event it is."""
    position, _, _, known, *_ = event(connection, rng)
    other = rng.choice([each for each in ("note.added", "cost.recorded", "run.completed", "x.y") if each != known])
    connection.execute("UPDATE events SET type = ? WHERE position = ?", (other, position))


def reorder(connection: Connection, rng: Rng) -> None:
    """Two events of a run change places."""
    one_, other = two_of_a_run(connection, rng)
    connection.execute("UPDATE events SET seq = 999999 WHERE position = ?", (one_[0],))
    connection.execute("UPDATE events SET seq = ? WHERE position = ?", (one_[2], other[0]))
    connection.execute("UPDATE events SET seq = ? WHERE position = ?", (other[2], one_[0]))


def swap_bodies(connection: Connection, rng: Rng) -> None:
    """Two events of a run change what they say."""
    one_, other = two_of_a_run(connection, rng)
    set_body(connection, one_[0], other[4])
    set_body(connection, other[0], one_[4])


def delete(connection: Connection, rng: Rng) -> None:
    """An event in the middle is gone."""
    position, *_ = event(connection, rng, "seq < (SELECT max(seq) FROM events AS e WHERE e.run = events.run)")
    connection.execute("DELETE FROM events WHERE position = ?", (position,))


def ended(connection: Connection, rng: Rng) -> tuple[int, int]:
    """A run that has ended, and its last seq."""
    query = "SELECT run, head_seq FROM runs WHERE status = 'completed' AND head_seq > 2 ORDER BY run"
    run, last = rng.choice(rows_of(connection, query))
    return run, last


def cut(connection: Connection, rng: Rng) -> None:
    """The last events of a run that has ended are gone."""
    run, last = ended(connection, rng)
    connection.execute("DELETE FROM events WHERE run = ? AND seq > ?", (run, rng.randrange(1, last)))


def cut_and_covered(connection: Connection, rng: Rng) -> None:
    """They are gone, and the run's row says that there never were more."""
    run, last = ended(connection, rng)
    left = rng.randrange(1, last)
    connection.execute("DELETE FROM events WHERE run = ? AND seq > ?", (run, left))
    (digest,) = one(connection, "SELECT hash FROM events WHERE run = ? AND seq = ?", run, left)
    connection.execute("UPDATE runs SET head_seq = ?, head_hash = ? WHERE run = ?", (left, digest.hex(), run))


def behind(connection: Connection, rng: Rng) -> None:
    """An event more stands behind the end of a run, with the right hash."""
    run, last = ended(connection, rng)
    run_id, body, prev = one(
        connection,
        "SELECT run_id, body, hash FROM events JOIN run_keys USING (run) WHERE run = ? AND seq = ?",
        run,
        last,
    )
    digest = event_hash(run_id, last + 1, "note.added", prev, body)
    insert(connection, run, last + 1, "note.added", body, digest)


def insert(connection: Connection, *row: Any) -> None:
    connection.execute("INSERT INTO events (run, seq, type, body, hash) VALUES (?, ?, ?, ?, ?)", row)


def duplicate(connection: Connection, rng: Rng) -> None:
    """The last event of a run is there once more."""
    run, last = ended(connection, rng)
    row = one(connection, "SELECT type, body, hash FROM events WHERE run = ? AND seq = ?", run, last)
    insert(connection, run, last + 1, *row)
    connection.execute("UPDATE runs SET head_seq = head_seq + 1 WHERE run = ?", (run,))


def rewrite(connection: Connection, rng: Rng) -> None:
    """An event says something else, and all hashes from there on are worked out anew."""
    run, last = ended(connection, rng)
    (run_id,) = one(connection, "SELECT run_id FROM run_keys WHERE run = ?", run)
    changed, prev = rng.randrange(2, last + 1), GENESIS
    rows = rows_of(connection, "SELECT position, seq, type, body FROM events WHERE run = ? ORDER BY seq", run)
    for position, seq, type_, body in rows:
        said = re.sub(rb'(?<="at":"20)\d', _digit, body, count=1) if seq == changed else body
        prev = event_hash(run_id, seq, type_, prev, said)
        connection.execute("UPDATE events SET body = ?, hash = ? WHERE position = ?", (said, prev, position))
    connection.execute("UPDATE runs SET head_hash = ? WHERE run = ?", (prev.hex(), run))


def forget_run(connection: Connection, rng: Rng) -> None:
    """A whole run is gone, with all that is said of it."""
    run, _ = ended(connection, rng)
    (run_id,) = one(connection, "SELECT run_id FROM run_keys WHERE run = ?", run)
    for table in ("events", "runs", "run_keys"):
        connection.execute(f"DELETE FROM {table} WHERE run = ?", (run,))
    for table in ("effects", "unknowns", "step_ends", "bills", "checkpoints", "run_tags"):
        connection.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
    connection.execute("DELETE FROM lines WHERE newest = ?", (run_id,))


def splice(connection: Connection, rng: Rng) -> None:
    """What an event says, and its hash, are those of another run's."""
    position, run, seq, *_ = event(connection, rng)
    *_, body, digest = event(connection, rng, f"run <> {run} AND seq = {seq}")
    connection.execute("UPDATE events SET body = ?, hash = ? WHERE position = ?", (body, digest, position))


def hash_column(connection: Connection, rng: Rng) -> None:
    """A stored hash is another one."""
    position, *_, digest = event(connection, rng)
    place = rng.randrange(32)
    changed = digest[:place] + bytes([digest[place] ^ (1 << rng.randrange(8))]) + digest[place + 1 :]
    connection.execute("UPDATE events SET hash = ? WHERE position = ?", (changed, position))


def moved(connection: Connection, rng: Rng) -> None:
    """The last event of a run is another run's."""
    run, last = ended(connection, rng)
    (other,) = one(connection, "SELECT run FROM runs WHERE run <> ? ORDER BY random() LIMIT 1", run)
    (seq,) = one(connection, "SELECT max(seq) + 1 FROM events WHERE run = ?", other)
    connection.execute("UPDATE events SET run = ?, seq = ? WHERE run = ? AND seq = ?", (other, seq, run, last))


def checkpoint(connection: Connection, rng: Rng) -> None:
    """The newest checkpoint of the agent's run holds another state."""
    query = 'SELECT run_id, seq, fold, body FROM checkpoints WHERE instr(body, \'"m0":["value",0]\') ORDER BY seq DESC'
    run_id, seq, fold, body = one(connection, query)
    place = (run_id, seq, fold)
    changed = body.replace(b'"m0":["value",0]', b'"m0":["value",%d]' % rng.randrange(1, 10))
    connection.execute("UPDATE checkpoints SET body = ? WHERE (run_id, seq, fold) = (?, ?, ?)", (changed, *place))


BESIDE: Final = (
    "UPDATE effects SET tool = tool || 'x' WHERE rowid = (SELECT min(rowid) FROM effects)",
    "DELETE FROM effects",
    "DELETE FROM step_ends",
    "UPDATE step_ends SET seq = seq + 1",
    "UPDATE runs SET status = 'failed' WHERE status = 'completed'",
    "UPDATE runs SET kind = kind || 'x'",
    "UPDATE runs SET epoch = epoch + 1",
    "UPDATE blobs SET body = x'00'",
    "DELETE FROM blobs",
    "UPDATE checkpoints SET body = CAST(body || 'x' AS BLOB)",
    "DELETE FROM lines",
)


def beside(connection: Connection, rng: Rng) -> None:
    """What follows from the events says something else."""
    try:
        connection.execute(rng.choice(BESIDE))
    except apsw.Error as error:
        raise Nothing from error
    if not connection.changes():
        raise Nothing


KINDS: Final[dict[str, Tamper]] = {
    each.__name__: each
    for each in (
        payload, header, kind, reorder, swap_bodies, delete, cut, cut_and_covered, behind, duplicate, rewrite,
        forget_run, splice, hash_column, moved, beside, checkpoint,
    )
}  # fmt: skip
BY_A_KEPT_HEAD: Final = {"cut_and_covered", "rewrite", "forget_run"}
"""What a file can't tell by itself: only a head's hash that was kept elsewhere shows it, as guarantees.md says."""


def template(path: Path, seed: str) -> None:
    """Make a store with several runs, effects, ends of steps, values out of line and checkpoints."""

    def work(tell: Tell) -> None:
        workloads.appends(path, seed, tell, count=30)
        workloads.runs(path, seed, tell, world=path.with_name("world"))

    if live(work).ended:
        raise RuntimeError("the template couldn't be made")


def look(path: Path) -> tuple[set[tuple[str, str, int | None]], Heads]:
    """Return what an audit finds, but for remarks, and the heads that `verify` prints."""
    with Journal.open(path) as journal:
        found = {(each.code, each.run_id, each.seq) for each in audit_store(journal.store) if each.severity != "info"}
        return found, {each.run_id: (each.events, each.head_hash) for each in verify_store(journal.store)}


def tamper(path: Path, change: Tamper, rng: Rng) -> None:
    """Change a file behind its triggers' back; they are there again afterwards."""
    connection = apsw.Connection(str(path))
    try:
        with connection:
            triggers = rows_of(connection, "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
            for name, _ in triggers:
                connection.execute(f"DROP TRIGGER {name}")
            change(connection, rng)
            for _, sql in triggers:
                connection.execute(sql)
    finally:
        connection.close()


class Template(NamedTuple):
    """A store to be damaged, again and again, and what is there and found before."""

    data: bytes
    kept: list[Any] | None
    found: set[Any]
    heads: Heads


def templates(home: Path, seed: str, each: int) -> Iterator[Template]:
    """Yield a store for each round, another one after so many."""
    for count in itertools.count():
        path = emptied(home / "t") / "runs.db"
        template(path, f"{seed}.{count}")
        data = path.read_bytes()
        made = Template(data, kept(path), *look(path))
        yield from itertools.repeat(made, each)


def tamperings(seed: str, each: int, *, harm: str = "") -> Entry:
    """Tamper in each way so many times."""
    if harm:
        harms.HARMS[harm]()
    entry = Entry("L7", f"{len(KINDS)} kinds of tampering", seed)
    with timed(entry), folder() as home:
        for round_, before in zip(range(each), templates(home, seed, 50), strict=False):
            for name, change in KINDS.items():
                path = emptied(home / "w") / "runs.db"
                path.write_bytes(before.data)
                try:
                    tamper(path, change, Rng(f"{seed} {round_} {name}"))
                except Nothing:
                    entry.count(f"nothing to change: {name}")
                    continue
                entry.count(name)
                entry.add(f"{name} {round_}", _unseen(name, path, before))
    return entry


def _unseen(name: str, path: Path, before: Template) -> list[str]:
    try:
        found, heads = look(path)
    except JournalError:
        return []
    seen = bool(found - before.found) or (name in BY_A_KEPT_HEAD and heads != before.heads)
    return ([] if seen else ["nothing was found"]) + (_believed(path) if name == checkpoint.__name__ else [])


def _believed(path: Path) -> list[str]:
    """Return the runs whose state isn't that of their events, whatever their checkpoints say."""
    with warnings.catch_warnings(), Journal.open(path) as journal:
        warnings.simplefilter("ignore", CheckpointWarning)  # of each that is left out
        return [
            f"the state of {head.run_id} isn't what its events say"
            for head in journal.runs()
            if journal.state(head.run_id).dump() != journal.replay(head.run_id).dump()
        ]


# --- bits ------------------------------------------------------------------------------------------------------------

ALL_ROWS: Final = (
    "SELECT position, run, seq, type, hash, body FROM events ORDER BY position",
    "SELECT run, run_id FROM run_keys ORDER BY run",
    "SELECT digest, bytes, body FROM blobs ORDER BY digest",
)


def kept(path: Path) -> list[Any] | None:
    """Return all that can't be derived; None if SQLite says that the file is damaged."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [connection.execute(query).fetchall() for query in ALL_ROWS]
    except (apsw.Error, UnicodeDecodeError):
        return None
    finally:
        connection.close()


def flips(seed: str, n: int) -> Entry:
    """Turn over one bit of a store's file: what is kept is unchanged, or somebody says so."""
    entry = Entry("L7", "flips of one bit anywhere in the file", seed)
    with timed(entry), folder() as home:
        for number, before in zip(range(n), templates(home, seed, 5000), strict=False):
            rng, data = Rng(f"{seed} flip {number}"), before.data
            place, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
            path = home / "flipped.db"
            for suffix in ("-wal", "-shm", "-journal"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            path.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
            entry.add(f"byte {place}, bit {bit}", _flipped(entry, path, before))
    return entry


def _flipped(entry: Entry, path: Path, before: Template) -> list[str]:
    now = kept(path)
    if now == before.kept:
        entry.count("nothing that is kept was changed")
        return []
    if now is None:
        entry.count("SQLite said so")
        return []
    try:
        with Journal.open(path) as journal:
            verified = any(each.problems for each in verify_store(journal.store))
        entry.count("verify said so" if verified else "the audit said so")
        return [] if verified or look(path)[0] - before.found else ["an event was changed, and nobody says so"]
    except (JournalError, UnicodeError):
        entry.count("it was refused")
        return []
