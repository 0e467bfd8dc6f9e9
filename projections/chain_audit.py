"""The chain of one run, checked event by event: every break is reported, and the check goes on behind it."""

from __future__ import annotations

from runjournal.log.base import RecordedEvent, UnreadableEvent
from runjournal.log.head import Head

from .findings import Finding, finding
from .shell import show_events


class ChainAudit:
    """Check the chain of a run: `feed` it the events in the order of the store.

    It holds no more than the last event's seq, hash and position. `head` is the run's row as it was before the first
    event was read, or None; events behind that head aren't fed. `seq` and `hash` are of the last event that was read,
    `count` is the number of events.
    """

    def __init__(self, run_id: str, head: Head | None) -> None:
        self.run_id = run_id
        self.seq = 0
        self.hash: str | None = None
        self.count = 0
        self._head = head
        self._position = 0
        self._links: tuple[str | None, ...] = (None,)  # the hashes that the next event may name; none: not known

    def feed(self, record: RecordedEvent) -> list[Finding]:
        """Check one more event."""
        found: list[Finding] = []
        seq, expected = record.seq, self.seq + 1
        self.count += 1
        if seq == self.seq:
            found.append(self._at("seq_duplicate", seq, f"there are two events {seq}"))
            self._links = (*self._links, record.hash)
            return found
        if seq != expected:
            found.append(self._gap(expected, seq))
            self._links = ()
        elif self._links and record.prev not in self._links and type(record.event) is not UnreadableEvent:
            before = "it is the first and names another" if seq == 1 else f"event {seq - 1} has another hash"
            what = f"the link of event {seq} is broken: {before}; one of the two was changed"
            found.append(self._at("link_broken", seq, what))
        if record.position <= self._position:
            found.append(self._at("position_order", seq, f"event {seq} lies before event {self.seq} in the store"))
        self.seq, self.hash, self._position, self._links = seq, record.hash, record.position, (record.hash,)
        return found

    def skip(self, seq: int, what: str) -> list[Finding]:
        """Count a row that can't be read at all."""
        found = [] if seq == self.seq + 1 else [self._gap(self.seq + 1, seq)]
        self.seq, self.hash, self._links = seq, None, ()
        return [*found, self._at("row_unreadable", seq, f"the row of event {seq} can't be read: {what}")]

    def finish(self) -> list[Finding]:
        """Compare the end with the run's row."""
        head, seq = self._head, self.seq
        if head is None:
            if not self.count:
                return []
            return [self._at("run_row_missing", 1, f"{self.count} events, and no row in the table runs")]
        if head.head_seq > seq:
            return [self._at("tail_missing", seq + 1, f"the run's head is at {head.head_seq}, its last event is {seq}")]
        if self.hash is not None and head.head_hash not in self._links:
            what = f"the hash of event {seq} isn't the head's: it or the run's row was changed"
            return [self._at("head_hash", seq, what)]
        return []

    def _gap(self, first: int, seq: int) -> Finding:
        last = seq - 1
        missing = f"event {first} is" if first == last else f"events {first} to {last} are"
        if seq < first:
            return self._at("seq_gap", first, f"event {seq} stands behind event {first - 1}")
        return self._at("seq_gap", first, f"{missing} missing, the next one is {seq}")

    def _at(self, code: str, seq: int, what: str) -> Finding:
        return finding(code, self.run_id, seq, what, show_events(self.run_id, max(1, seq - 1)))
