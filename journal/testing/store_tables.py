"""The part of a store's contract that is about the tables beside the events."""

from __future__ import annotations

from functools import partial

from runjournal.log import events as e
from runjournal.log.chain import RawRow
from runjournal.log.cipher import ERASED_KEY
from runjournal.log.codec import digest_of
from runjournal.log.errors import InvalidArgument, StoreError
from runjournal.log.limits import checkpoint_stretch_events, key_bytes, read_page_events_max
from runjournal.log.store import Checkpoint, Effect, Import, StepEnd, Transaction, Unknown

from .store_making import (
    Opening,
    append,
    check,
    equal,
    everything,
    lookups,
    moment,
    note,
    queued,
    raises,
    rows_of,
    write,
)


class TablesContract(Opening):
    """What holds for index tables, blobs and checkpoints."""

    # Index tables.

    def test_index_rows_are_looked_up(self) -> None:
        """What an append adds to the index tables is found by key, and listed by key, of one run or all."""
        with self.open() as store:
            append(store, "run-1", [queued()], rows=everything("run-1", 1))
            append(store, "run-2", [queued()], rows=everything("run-2", 1))
            equal(rows_of(everything("run-1", 1), "run-1"), lookups(store, "run-1"), "look-ups")
            expected: dict[str, list[tuple[object, ...]]] = {
                "effects": [
                    ("scope-run-1", "k1", "tool", "h", "run-1", 1), ("scope-run-2", "k1", "tool", "h", "run-2", 1),
                ],
                "unknowns": [("scope-run-1", "k2", "run-1", 1), ("scope-run-2", "k2", "run-2", 1)],
                "step_ends": [
                    ("run-1", "a", 1, "once", 0, 1), ("run-1", "a", 2, "once", 1, 1),
                    ("run-2", "a", 1, "once", 0, 1), ("run-2", "a", 2, "once", 1, 1),
                ],
                "lines": [("scope-run-1", "run-1"), ("scope-run-2", "run-2")],
                "imports": [("run-1", "source", "h", "{}"), ("run-2", "source", "h", "{}")],
            }  # fmt: skip
            for table, rows in expected.items():
                equal(rows, [tuple(row) for row in store.index_rows(table)], table)
                equal(
                    [row for row in rows if "run-2" in row],
                    [tuple(row) for row in store.index_rows(table, "run-2")],
                    table,
                )
            raises(InvalidArgument, lambda: list(store.index_rows("runs")), "no index table")
            raises(InvalidArgument, lambda: list(store.index_rows("x; DROP TABLE runs")), "no table at all")

    def test_index_rows_go_over_pages(self) -> None:
        """More rows than a page holds come back whole, each once, by key."""
        with self.open() as store:
            count = read_page_events_max + 2
            ends = [StepEnd("run-1", f"s{number:05}", 1, "once", 1, 1) for number in range(count)]
            append(store, "run-1", [queued()], rows={"step_ends": ends[::-1]})
            equal([tuple(end) for end in ends], [tuple(row) for row in store.index_rows("step_ends")], "step_ends")

    def test_the_first_effect_stays(self) -> None:
        """A second effect under a key changes nothing: the first word stands."""
        with self.open() as store:
            first, second = Effect("s", "k", "tool", "h", "run-1", 1), Effect("s", "k", "other", "i", "run-1", 2)
            append(store, "run-1", [queued()], rows={"effects": [first]})
            append(store, "run-1", [note("x")], rows={"effects": [second]})
            equal(first, store.effect("s", "k"), "effect")

    def test_what_becomes_known_is_no_longer_unknown(self) -> None:
        """`known` takes a row away, an `unknown` of the same append comes after it, and the first of two stays."""
        with self.open() as store:
            one, two = Unknown("s", "k", "run-1", 1), Unknown("s", "k", "run-1", 2)
            append(store, "run-1", [queued()], rows={"unknown": [one]})
            append(store, "run-1", [note("x")], rows={"unknown": [two]})
            equal(one, store.unknown("s", "k"), "the first of two")
            append(store, "run-1", [note("x")], rows={"known": [("s", "k")], "unknown": [two]})
            equal(two, store.unknown("s", "k"), "ended and started again")
            append(store, "run-1", [note("x")], rows={"known": [("s", "k"), ("s", "other")]})
            equal(None, store.unknown("s", "k"), "known")

    def test_the_newest_run_of_a_line_moves(self) -> None:
        """A line's newest run is the one written last."""
        with self.open() as store:
            append(store, "run-1", [queued()], rows={"newest": ("s", "run-1")})
            append(store, "run-2", [queued()], rows={"newest": ("s", "run-2")})
            equal("run-2", store.newest("s"), "newest")
            equal([("s", "run-2")], [tuple(row) for row in store.index_rows("lines")], "lines")

    def test_an_import_is_updated(self) -> None:
        """An import's row says how much was taken by the newest append."""
        with self.open() as store:
            append(store, "run-1", [queued()], rows={"imported": Import("run-1", "file", "h1", "1")})
            append(store, "run-1", [note("x")], rows={"imported": Import("run-1", "file", "h2", "2")})
            equal(Import("run-1", "file", "h2", "2"), store.imported("run-1"), "import")

    # Blobs and checkpoints.

    def test_blobs_are_kept_once(self) -> None:
        """Values out of line come back by their digest; the same value twice is one blob."""
        with self.open() as store:
            bodies = [b"0", b"\0" * 300_000, "Grüße".encode()]
            blobs = [(digest_of(body), body) for body in bodies]
            append(store, "run-1", [queued()], rows={"blobs": blobs})
            append(store, "run-2", [queued()], rows={"blobs": blobs[:1]})
            equal(bodies, [store.blob(digest) for digest, _ in blobs], "blobs")
            equal(sorted((digest, len(body)) for digest, body in blobs), list(store.blob_digests()), "digests")
            equal(None, store.blob("0" * 64), "no blob")

    def test_checkpoints_are_kept_and_dropped(self) -> None:
        """The newest few checkpoints of a run are kept, newest first, and can be forgotten."""
        with self.open() as store:
            for run_id in ("run-1", "run-2"):
                for seq in range(1, 6):
                    store.save_checkpoint(Checkpoint(run_id, seq, "fold:1", b"%d" % seq), keep=3)
            expected = [Checkpoint("run-1", seq, "fold:1", b"%d" % seq) for seq in (5, 4, 3)]
            equal(expected, list(store.checkpoints("run-1")), "the newest three")
            equal(expected[1:], list(store.checkpoints("run-1", 4)), "up to seq 4")
            equal([], list(store.checkpoints("run-1", 2)), "up to seq 2")
            store.save_checkpoint(Checkpoint("run-1", 5, "fold:1", b"new"))
            equal(Checkpoint("run-1", 5, "fold:1", b"new"), next(store.checkpoints("run-1")), "written again")
            store.save_checkpoint(Checkpoint("run-1", 5, "own:1", b"other"), keep=1)
            kept = [(each.seq, each.fold) for each in store.checkpoints("run-1")]
            equal([(5, "own:1"), (5, "fold:1"), (4, "fold:1"), (3, "fold:1")], kept, "another projection's are apart")
            store.drop_checkpoints("run-1", 5)
            store.save_checkpoint(Checkpoint("run-1", 5, "fold:1", b"new"))
            for seq in (100, checkpoint_stretch_events - 1, checkpoint_stretch_events + 5):
                store.save_checkpoint(Checkpoint("run-3", seq, "fold:1", b""), keep=1)
            kept_3 = [each.seq for each in store.checkpoints("run-3")]
            equal([checkpoint_stretch_events + 5, checkpoint_stretch_events - 1], kept_3, "the last of each stretch")
            store.drop_checkpoints("run-3")
            equal(1, store.drop_checkpoints("run-1", 4), "dropped one")
            equal([5, 3], [each.seq for each in store.checkpoints("run-1")], "what is left")
            equal(2, store.drop_checkpoints("run-1"), "dropped the run's")
            equal([5, 4, 3], [each.seq for each in store.checkpoints("run-2")], "another run's")
            equal(3, store.drop_checkpoints(), "dropped all")
            equal([], list(store.checkpoints("run-2")), "nothing")

    def test_keys_are_kept_and_erased(self) -> None:
        """The newest key for a purpose and name counts; erasing leaves zeros, and what is rolled back isn't there."""
        first, second = b"1" * key_bytes, b"2" * key_bytes
        with self.open() as store:
            equal((None, None), (store.secret("run", "a"), store.key("a")), "a key that was never made")
            for purpose, name, key in (("run", "a", first), ("checkpoints", "a", first), ("run", "b", second)):
                store.transact(partial(_adding, purpose, name, key), durable=True)
            store.transact(lambda tx: tx.add_secret("checkpoints", "a", second), durable=True)
            equal((first, second), (store.key("a"), store.secret("checkpoints", "a")), "the newest keys")
            equal(False, store.unscrubbed(), "unscrubbed")
            equal(1, store.transact(lambda tx: tx.erase_secrets("run", "a"), durable=True), "keys erased")
            equal(0, store.transact(lambda tx: tx.erase_secrets("run", "a"), durable=True), "keys erased again")
            equal((ERASED_KEY, None), (store.secret("run", "a"), store.key("a")), "an erased key")
            equal((second, second), (store.key("b"), store.secret("checkpoints", "a")), "the others")
            equal((True, False), (store.scrub(), store.unscrubbed()), "scrubbed")
            raises(ZeroDivisionError, lambda: store.transact(_failing, durable=True), "a decision that fails")
            equal((second, None), (store.key("b"), store.secret("run", "c")), "what was rolled back")

    def test_what_is_purged_is_gone(self) -> None:
        """Bodies, blobs and rows of a purged run go, in the same commit as run.purged; places, hashes, lines stay."""
        with self.open() as store:
            for run_id in ("run-1", "run-2"):
                append(store, run_id, [queued(), note("x")], rows=everything(run_id, 1))
                store.save_checkpoint(Checkpoint(run_id, 2, "fold:1", b"1"))
            before, other = list(store.read_raw("run-1")), list(store.read_raw("run-2"))
            kept = (rows_of(everything("run-2", 1), "run-2"), store.head("run-2"))
            raises(StoreError, lambda: store.transact(lambda tx: tx.purge("run-1", []), durable=True), "no run.purged")
            raises(ZeroDivisionError, lambda: store.transact(_purged_and_failing, durable=True), "a purge that fails")
            equal(
                (before, other), (list(store.read_raw("run-1")), list(store.read_raw("run-2"))), "nothing has changed"
            )
            equal(1, len(list(store.checkpoints("run-1"))), "nor have checkpoints")
            seen = store.transact(_purged, durable=True)
            emptied = [(seq, position, kind, b"", digest) for seq, position, kind, _, digest in before]
            equal((emptied, emptied), (seen[:2], list(store.read_raw("run-1", 0, 2))), "what is left of the events")
            equal([e.PurgedEvent, e.PurgedEvent, e.RunPurged], [type(r.event) for r in store.read("run-1")], "events")
            equal([], list(store.read("run-1", types=("note.added",))), "events of a type")
            digests = [digest for digest, _ in everything("run-1", 1)["blobs"] + everything("run-2", 1)["blobs"]]
            equal([None, b"run-2"], [store.blob(digest) for digest in digests], "blobs")
            equal([(digests[1], 5)], list(store.blob_digests()), "digests")
            equal([None, None, "run-1", None], lookups(store, "run-1")[:4], "rows")
            equal("imported", "imported" if store.imported("run-1") else "", "where it came from")
            store.save_checkpoint(Checkpoint("run-1", 2, "fold:1", b"late"))
            equal([], list(store.checkpoints("run-1")), "checkpoints")
            equal(kept, (lookups(store, "run-2"), store.head("run-2")), "the other run's")
            equal((other, 1), (list(store.read_raw("run-2")), len(list(store.checkpoints("run-2")))), "its events")
            head = store.head("run-1")
            equal(("purged", 3, None, "{}"), head and (head.status, head.head_seq, head.title, head.tags), "head")
            equal([], store.heads(tags={"z": "1"}, prefix="run-1"), "by tag")
            append(store, "run-2", [note("y")], rows={"blobs": everything("run-1", 1)["blobs"]})
            equal(b"run-1", store.blob(digests[0]), "the same value again")
            equal((True, False), (store.scrub(), store.unscrubbed()), "scrubbed")

    def test_runs_are_born_in_order(self) -> None:
        """Every run that has a first event is told of, all or those behind a position; and events that name blobs."""
        with self.open() as store:
            for run_id in ("run-2", "run-1", "run-3"):
                first = queued() if run_id != "run-1" else e.RunQueued("k", e.BlobRef("0" * 64, 9))
                append(store, run_id, [first, note("x")])
            equal(["run-2", "run-1", "run-3"], list(store.born()), "all")
            equal(["run-3"], list(store.born(3)), "behind a position")
            found = [("run-1", row[3]) for row in store.read_raw("run-1", 0, 1)]
            equal(found, list(store.naming_blobs()), "naming blobs")
            equal([], list(store.naming_blobs(4)), "naming blobs, behind a position")
            shown = {"$blob": "0" * 64, "bytes": 9, "media_type": "image/png"}
            append(store, "run-4", [e.RunQueued("k", [shown]), note("x")])
            found = [("run-4", row[3]) for row in store.read_raw("run-4", 0, 1)]
            equal(found, list(store.naming_blobs(6)), "naming blobs that were attached")

    def test_info_counts(self) -> None:
        """`info` tells at least what kind of store it is, where, and how much it holds."""
        with self.open() as store:
            append(store, "run-1", [queued(), note("x")])
            info = store.info()
            equal((1, 2, store.url), (info.get("runs_count"), info.get("events_count"), info.get("url")), "info")
            check(info.get("store"), "info has no store")


def _adding(purpose: str, name: str, key: bytes, tx: Transaction) -> None:
    tx.add_secret(purpose, name, key)


def _purged(tx: Transaction) -> list[RawRow]:
    purged = e.RunPurged(
        "asked", "completed", "report", "scope-run-1", moment(0), 2, "0" * 64, "0" * 64, {}, {}, parent_run_id=None
    )
    write(tx, "run-1", [purged])
    tx.purge("run-1", [digest for digest, _ in everything("run-1", 1)["blobs"]])
    return list(tx.read_raw("run-1"))


def _purged_and_failing(tx: Transaction) -> None:
    _purged(tx)
    _ = 1 / 0


def _failing(tx: Transaction) -> None:
    tx.erase_secrets("run", "b")
    tx.add_secret("run", "c", b"3" * key_bytes)
    _ = 1 / 0
