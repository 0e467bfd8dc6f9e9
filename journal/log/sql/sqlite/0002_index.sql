-- What can be rebuilt from the events: lookups that would need a fold, snapshots, and the indexes for listings.

-- One row per tool call that happened and isn't idempotent. The first word stands, even against INSERT OR REPLACE.
CREATE TABLE effects (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    tool TEXT NOT NULL,
    args_sha256 TEXT NOT NULL,
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER effects_not_updated BEFORE UPDATE ON effects BEGIN
    SELECT RAISE(ABORT, 'effects are insert-only: UPDATE is refused');
END;

CREATE TRIGGER effects_not_deleted BEFORE DELETE ON effects BEGIN
    SELECT RAISE(ABORT, 'effects are insert-only: DELETE is refused');
END;

CREATE TRIGGER effects_not_replaced BEFORE INSERT ON effects
WHEN EXISTS (SELECT 1 FROM effects WHERE scope = NEW.scope AND key = NEW.key) BEGIN
    SELECT RAISE(IGNORE);
END;

CREATE TABLE unknowns (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE lines (
    scope TEXT NOT NULL PRIMARY KEY,
    newest TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE step_ends (
    run_id TEXT NOT NULL,
    step TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    kind TEXT NOT NULL,
    ok INTEGER NOT NULL CHECK (ok IN (0, 1)),
    seq INTEGER NOT NULL,
    PRIMARY KEY (run_id, step, attempt)
) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoints (
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    fold TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (run_id, seq, fold)
) STRICT;

-- Listings go by queued_at, which never changes: an index on what each append moves would cost it a page of the WAL.
CREATE INDEX runs_by_queued ON runs (queued_at, run_id);
CREATE INDEX runs_by_status ON runs (status, run_id);
CREATE INDEX runs_by_parent ON runs (parent_run_id, run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX effects_by_run ON effects (run_id);
CREATE INDEX unknowns_by_run ON unknowns (run_id);

-- What was there before has no rows yet: whoever opens the store next makes them.
INSERT INTO meta (key, value) SELECT 'index', 'stale' WHERE EXISTS (SELECT 1 FROM events);
