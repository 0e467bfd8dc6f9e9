-- What is kept for ever: the events, the heads that every append is guarded by, and what can't be derived from events.

-- The columns are in the order of runjournal.log.head.Head. Times are UTC text; lease_until and heartbeat_at are
-- seconds since the boot boot_id.
CREATE TABLE runs (
    run_id TEXT NOT NULL PRIMARY KEY,
    status TEXT NOT NULL,
    kind TEXT NOT NULL,
    title TEXT,
    tags TEXT NOT NULL,
    scope TEXT NOT NULL,
    priority INTEGER NOT NULL,
    parent_run_id TEXT,
    queued_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    due_at TEXT,
    wake_at TEXT,
    head_seq INTEGER NOT NULL CHECK (head_seq >= 1),
    head_hash TEXT NOT NULL,
    owner TEXT,
    epoch INTEGER NOT NULL,
    lease_until REAL,
    heartbeat_at REAL,
    boot_id TEXT,
    host TEXT,
    pid_ns TEXT,
    pid INTEGER,
    pid_started TEXT,
    cancel_requested TEXT
) STRICT, WITHOUT ROWID;

-- No AUTOINCREMENT: nothing is ever deleted, so max + 1 gives the same positions for less.
CREATE TABLE events (
    position INTEGER PRIMARY KEY CHECK (position >= 1),
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 1),
    type TEXT NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (run_id, seq)
) STRICT;

CREATE TRIGGER events_not_updated BEFORE UPDATE ON events BEGIN
    SELECT RAISE(ABORT, 'events are immutable: UPDATE is refused');
END;

CREATE TRIGGER events_not_deleted BEFORE DELETE ON events BEGIN
    SELECT RAISE(ABORT, 'events are immutable: DELETE is refused');
END;

-- A writer that bypasses the guarded append hasn't moved the head.
CREATE TRIGGER events_covered BEFORE INSERT ON events
WHEN NOT EXISTS (SELECT 1 FROM runs WHERE run_id = NEW.run_id AND head_seq >= NEW.seq) BEGIN
    SELECT RAISE(ABORT, 'runs.head_seq does not cover this event: INSERT is refused');
END;

-- INSERT OR REPLACE deletes without firing a DELETE trigger, hence the first half. The second half keeps positions
-- rising, so that a reader who has seen one has seen all below it; an automatic position is -1 here.
CREATE TRIGGER events_not_replaced BEFORE INSERT ON events
WHEN EXISTS (SELECT 1 FROM events WHERE run_id = NEW.run_id AND seq = NEW.seq)
    OR NEW.position <> -1 AND NEW.position <= (SELECT max(position) FROM events) BEGIN
    SELECT RAISE(ABORT, 'events are immutable: an INSERT over one, or behind the last position, is refused');
END;

CREATE TABLE blobs (
    digest TEXT NOT NULL PRIMARY KEY,
    bytes INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;

CREATE TABLE imports (
    run_id TEXT NOT NULL PRIMARY KEY,
    source TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    taken TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE meta (
    key TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
