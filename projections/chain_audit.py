"""The chain of one run, checked event by event: every break is reported, and the check goes on behind it."""

from __future__ import annotations

from runjournal.log.base import PurgedEvent, RecordedEvent
from runjournal.log.chain import GENESIS, PURGED, Emptied, event_hash
from runjournal.log.head import Head
from runjournal.log.limits import hash_bytes

from .findings import REBUILD, Finding, finding
from .shell import show_events


class ChainAudit:
    """Check the chain of a run: `feed` it the events in the order of the store, each with its stored bytes.

    It holds no more than the last event's seq, hash and position. `row` is the run's row in the table `runs` as it was
    before the first event was read, or None: the run has at least the events up to there. `seq` and `hash` are of the
    last event that was read, `count` is the number of events.
    """

    def __init__(self, run_id: str, row: Head | None) -> None:
        self.run_id = run_id
        self.seq = 0
        self.hash: str | None = None
        self.count = 0
        self._row = row
        self._position = 0
        self._links: tuple[bytes, ...] = (GENESIS,)  # what may be the hash before the next event; none: not known
        self._at_row: tuple[str, ...] | None = None
        self._emptied: Emptied | None = Emptied()  # the events so far, if all of them were emptied

    def feed(self, record: RecordedEvent, body: bytes | None) -> list[Finding]:
        """Check one more event; without its stored bytes, nothing of its hash."""
        found: list[Finding] = []
        seq, expected, digest = record.seq, self.seq + 1, bytes.fromhex(record.hash)
        self.count += 1
        if seq == self.seq:
            found.append(self._at("seq_duplicate", seq, f"there are two events {seq}"))
            self._links = (*self._links, digest) if len(digest) == hash_bytes else self._links
            return found
        links: tuple[bytes, ...] = (digest,) if len(digest) == hash_bytes else ()
        found += self._check_purged(record, body, digest)
        if seq != expected:
            found.append(self._gap(expected, seq))
        elif isinstance(record.event, PurgedEvent):
            pass  # its hash is what is left of it
        elif self._links and body is not None:
            # It is worked out from what was stored before it; a changed hash or event is told of once.
            hashes = [event_hash(self.run_id, seq, record.type, prev, body) for prev in self._links]
            if digest not in hashes:
                before = "" if seq == 1 else f" (or that of event {seq - 1})"
                what = f"event {seq} isn't the one that was hashed: it, or its stored hash{before}, was changed"
                found.append(self._at("link_broken", seq, what))
                links = (*links, *hashes)
        if record.position <= self._position:
            found.append(self._at("position_order", seq, f"event {seq} lies before event {self.seq} in the store"))
        self.seq, self.hash, self._position, self._links = seq, record.hash, record.position, links
        if self._row is not None and seq == self._row.head_seq:
            self._at_row = tuple(link.hex() for link in links)
            if record.at != self._row.updated_at and self._row.status == "running":
                what = f"table runs: updated_at isn't the time of event {seq}"
                found.append(finding("run_row", self.run_id, seq, what, REBUILD))
        return found

    def _check_purged(self, record: RecordedEvent, body: bytes | None, digest: bytes) -> list[Finding]:
        """Check that an emptied event stands at the beginning, and that a run.purged is about just those before it."""
        seq, emptied = record.seq, self._emptied
        if isinstance(record.event, PurgedEvent):
            if emptied is not None and record.type != PURGED:
                emptied.add(record.type, digest)
                return []
            return [self._at("purge_broken", seq, f"event {seq} is empty, and events before it aren't")]
        self._emptied = None
        if record.type == PURGED and body is not None and not (emptied or Emptied()).fits(seq, body):
            what = f"event {seq} says that {seq - 1} events before it were purged, and they aren't what it says"
            return [self._at("purge_broken", seq, what)]
        if record.type != PURGED and emptied is not None and emptied.count:
            return [self._unmarked(emptied.count)]
        return []

    def _unmarked(self, count: int) -> Finding:
        return self._at("purge_broken", 1, f"{count} events are empty, and no run.purged comes behind them")

    def skip(self, seq: int, what: str) -> list[Finding]:
        """Count a row that can't be read at all."""
        found = [] if seq == self.seq + 1 else [self._gap(self.seq + 1, seq)]
        self.seq, self.hash, self._links = seq, None, ()
        return [*found, self._at("row_unreadable", seq, f"the row of event {seq} can't be read: {what}")]

    def finish(self) -> list[Finding]:
        """Compare the end with the run's row."""
        emptied, self._emptied = self._emptied, None
        if emptied is not None and emptied.count:
            return [self._unmarked(emptied.count), *self.finish()]
        row, seq = self._row, self.seq
        if row is None:
            if not self.count:
                return []
            return [self._at("run_row_missing", 1, f"{self.count} events, and no row in the table runs")]
        if row.head_seq > seq:
            return [self._at("tail_missing", seq + 1, f"the run's row is at {row.head_seq}, its last event is {seq}")]
        if self._at_row is not None and row.head_hash not in self._at_row:
            what = f"the hash of event {row.head_seq} isn't that of the run's row: one of the two was changed"
            return [self._at("head_hash", row.head_seq, what)]
        return []

    def _gap(self, first: int, seq: int) -> Finding:
        last = seq - 1
        missing = f"event {first} is" if first == last else f"events {first} to {last} are"
        if seq < first:
            return self._at("seq_gap", first, f"event {seq} stands behind event {first - 1}")
        return self._at("seq_gap", first, f"{missing} missing, the next one is {seq}")

    def _at(self, code: str, seq: int, what: str) -> Finding:
        return finding(code, self.run_id, seq, what, show_events(self.run_id, max(1, seq - 1)))
