-- What is kept for ever: the events, the heads that every append is guarded by, and what can't be derived from events.

-- The number of each run, which its events are stored by. Never deleted, so never used again.
CREATE TABLE run_keys (
    run INTEGER PRIMARY KEY CHECK (run >= 1),
    run_id TEXT NOT NULL UNIQUE
) STRICT;

CREATE TRIGGER run_keys_not_updated BEFORE UPDATE ON run_keys BEGIN
    SELECT RAISE(ABORT, 'the number of a run is immutable: UPDATE is refused');
END;

CREATE TRIGGER run_keys_not_deleted BEFORE DELETE ON run_keys BEGIN
    SELECT RAISE(ABORT, 'the number of a run is immutable: DELETE is refused');
END;

-- INSERT OR REPLACE deletes without firing a DELETE trigger; an automatic number is -1 here.
CREATE TRIGGER run_keys_not_replaced BEFORE INSERT ON run_keys
WHEN EXISTS (SELECT 1 FROM run_keys WHERE run = NEW.run OR run_id = NEW.run_id) BEGIN
    SELECT RAISE(ABORT, 'the number of a run is immutable: an INSERT over one is refused');
END;

-- The head of each run. Of a run that is running it is a lower bound: its last event is the head. The columns are in
-- the order of runjournal.log.head.Head, behind the run's number. Times are UTC text; lease_until and heartbeat_at are seconds
-- since the boot boot_id.
CREATE TABLE runs (
    run INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
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
) STRICT;

-- No AUTOINCREMENT: nothing is ever deleted, so max + 1 gives the same positions for less.
CREATE TABLE events (
    position INTEGER PRIMARY KEY CHECK (position >= 1),
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 1),
    type TEXT NOT NULL,
    hash BLOB NOT NULL CHECK (length(hash) = 32),
    body BLOB NOT NULL,
    UNIQUE (run, seq)
) STRICT;

-- A run that was purged has run.purged as its last event: the bodies before it may be emptied, and nothing else.
CREATE TRIGGER events_not_updated BEFORE UPDATE ON events
WHEN NEW.body IS NOT x'' OR OLD.type = 'run.purged'
    OR (NEW.position, NEW.run, NEW.seq, NEW.type, NEW.hash) IS NOT (OLD.position, OLD.run, OLD.seq, OLD.type, OLD.hash)
    OR (SELECT type FROM events WHERE run = OLD.run ORDER BY seq DESC LIMIT 1) IS NOT 'run.purged' BEGIN
    SELECT RAISE(ABORT, 'events are immutable: UPDATE is refused');
END;

CREATE TRIGGER events_not_deleted BEFORE DELETE ON events BEGIN
    SELECT RAISE(ABORT, 'events are immutable: DELETE is refused');
END;

-- An event stands behind the last one of its run and of the store, so that a reader who has seen one has seen all below
-- it. INSERT OR REPLACE deletes without firing a DELETE trigger: it would need a seq that is taken. An automatic position
-- is -1 here. The guarded append passes NULL for a run that has moved on.
CREATE TRIGGER events_in_order BEFORE INSERT ON events
WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM events WHERE run = NEW.run)
    OR NOT EXISTS (SELECT 1 FROM run_keys WHERE run = NEW.run)
    OR NEW.position <> -1 AND NEW.position IS NOT (SELECT coalesce(max(position), 0) + 1 FROM events) BEGIN
    SELECT RAISE(ABORT, 'events stand in order: an INSERT anywhere but behind the last one is refused');
END;

-- The head of a run that isn't running is moved first, by the guarded append. run.purged comes into no run whose head
-- doesn't say so, and nothing comes behind it, whatever the head says.
CREATE TRIGGER events_covered BEFORE INSERT ON events
WHEN NOT EXISTS (SELECT 1 FROM runs WHERE run = NEW.run AND iif(NEW.type = 'run.purged',
        status = 'purged' AND head_seq = NEW.seq, status = 'running' OR status <> 'purged' AND head_seq >= NEW.seq))
    OR (SELECT type FROM events WHERE run = NEW.run AND seq = NEW.seq - 1) IS 'run.purged' BEGIN
    SELECT RAISE(ABORT, 'runs.head_seq does not cover this event: INSERT is refused');
END;

-- A value that no event refers to any more is emptied, never deleted: a row that goes would move others to other pages,
-- and what they held would stay in the gaps.
CREATE TABLE blobs (
    digest TEXT NOT NULL PRIMARY KEY,
    bytes INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;

-- The keys of private values. A key is random, never deleted, and erased by overwriting it in place: an UPDATE of the same
-- length in a table by integer key moves no bytes to other pages. The newest key for a purpose and name counts.
CREATE TABLE secrets (
    id INTEGER PRIMARY KEY CHECK (id >= 1),
    purpose TEXT NOT NULL CHECK (purpose IN ('run', 'checkpoints', 'scope')),
    name TEXT NOT NULL,
    key BLOB NOT NULL CHECK (length(key) = 32)
) STRICT;

CREATE INDEX secrets_by_name ON secrets (name, purpose);

CREATE TRIGGER secrets_only_erased BEFORE UPDATE ON secrets
WHEN NEW.key IS NOT zeroblob(32) OR (NEW.id, NEW.purpose, NEW.name) IS NOT (OLD.id, OLD.purpose, OLD.name) BEGIN
    SELECT RAISE(ABORT, 'a key can only be erased: any other UPDATE is refused');
END;

CREATE TRIGGER secrets_not_deleted BEFORE DELETE ON secrets BEGIN
    SELECT RAISE(ABORT, 'keys are overwritten, never deleted: DELETE is refused');
END;

-- INSERT OR REPLACE deletes without firing a DELETE trigger; an automatic number is -1 here.
CREATE TRIGGER secrets_not_replaced BEFORE INSERT ON secrets
WHEN EXISTS (SELECT 1 FROM secrets WHERE id = NEW.id) BEGIN
    SELECT RAISE(ABORT, 'keys are overwritten, never deleted: an INSERT over one is refused');
END;

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

-- The store's own id joins the keys that tools are sent under: with another one, all of them would be new to receivers.
CREATE TRIGGER store_id_not_updated BEFORE UPDATE ON meta WHEN 'store_id' IN (OLD.key, NEW.key) BEGIN
    SELECT RAISE(ABORT, 'the id of a store is immutable: UPDATE is refused');
END;

CREATE TRIGGER store_id_not_deleted BEFORE DELETE ON meta WHEN OLD.key = 'store_id' BEGIN
    SELECT RAISE(ABORT, 'the id of a store is immutable: DELETE is refused');
END;

-- INSERT OR REPLACE deletes without firing a DELETE trigger.
CREATE TRIGGER store_id_not_replaced BEFORE INSERT ON meta
WHEN NEW.key = 'store_id' AND EXISTS (SELECT 1 FROM meta WHERE key = 'store_id') BEGIN
    SELECT RAISE(ABORT, 'the id of a store is immutable: an INSERT over it is refused');
END;

-- What is promised to readers of the log: one row an event. `data` and `ext` are JSON; NULL where a body is none.
CREATE VIEW log AS
SELECT
    run_id, seq, type,
    json_extract(text, '$.at') AS at, json_extract(text, '$.step') AS step, json_extract(text, '$.data') AS data,
    json_extract(text, '$.by') AS writer, json_extract(text, '$.epoch') AS epoch, json_extract(text, '$.ext') AS ext,
    position, lower(hex(hash)) AS hash
FROM (
    SELECT *, iif(json_valid(CAST(body AS TEXT)), CAST(body AS TEXT), NULL) AS text
    FROM events CROSS JOIN run_keys USING (run)
);
