"""The part of a store's contract that is about the tables beside the events."""

from __future__ import annotations

from functools import partial

from runjournal.log.cipher import ERASED_KEY
from runjournal.log.codec import digest_of
from runjournal.log.errors import InvalidArgument
from runjournal.log.limits import checkpoint_stretch_events, key_bytes, read_page_events_max
from runjournal.log.store import Checkpoint, Effect, Import, StepEnd, Transaction, Unknown

from .store_making import Opening, append, check, equal, everything, lookups, note, queued, raises, rows_of


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
            bodies = [b"", b"\0" * 300_000, "Grüße".encode()]
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

    def test_info_counts(self) -> None:
        """`info` tells at least what kind of store it is, where, and how much it holds."""
        with self.open() as store:
            append(store, "run-1", [queued(), note("x")])
            info = store.info()
            equal((1, 2, store.url), (info.get("runs_count"), info.get("events_count"), info.get("url")), "info")
            check(info.get("store"), "info has no store")


def _adding(purpose: str, name: str, key: bytes, tx: Transaction) -> None:
    tx.add_secret(purpose, name, key)


def _failing(tx: Transaction) -> None:
    tx.erase_secrets("run", "b")
    tx.add_secret("run", "c", b"3" * key_bytes)
    _ = 1 / 0
