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

CREATE TRIGGER effects_not_deleted BEFORE DELETE ON effects
WHEN NOT EXISTS (SELECT 1 FROM runs WHERE run_id = OLD.run_id AND status = 'purged') BEGIN
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

-- One row per request to a provider, and per price beside them; its columns are those of runjournal.log.store.Bill.
CREATE TABLE bills (
    run_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    provider TEXT,
    step TEXT NOT NULL,
    status TEXT NOT NULL,
    input INTEGER,
    output INTEGER,
    cache_read INTEGER,
    cache_write INTEGER,
    reasoning INTEGER,
    amount TEXT,
    currency TEXT,
    pricing TEXT,
    response_id TEXT,
    request_id TEXT,
    calls INTEGER NOT NULL,
    PRIMARY KEY (run_id, call_id, attempt)
) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoints (
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    fold TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (run_id, seq, fold)
) STRICT;

-- The tags of the runs, by what a listing asks for; made of the column `tags` by the triggers below.
CREATE TABLE run_tags (
    tag TEXT NOT NULL,
    value TEXT NOT NULL,
    queued_at TEXT NOT NULL,
    run_id TEXT NOT NULL,
    PRIMARY KEY (tag, value, queued_at, run_id)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER runs_tagged AFTER INSERT ON runs WHEN NEW.tags <> '{}' AND json_valid(NEW.tags) BEGIN
    INSERT OR IGNORE INTO run_tags SELECT key, CAST(value AS TEXT), NEW.queued_at, NEW.run_id FROM json_each(NEW.tags)
    WHERE json_each.type = 'text';
END;

CREATE TRIGGER runs_retagged AFTER UPDATE OF tags, queued_at ON runs
WHEN OLD.tags <> NEW.tags OR OLD.queued_at <> NEW.queued_at BEGIN
    DELETE FROM run_tags WHERE queued_at = OLD.queued_at AND run_id = OLD.run_id
        AND tag IN (SELECT key FROM json_each(iif(json_valid(OLD.tags), OLD.tags, '{}')));
    INSERT OR IGNORE INTO run_tags SELECT key, CAST(value AS TEXT), NEW.queued_at, NEW.run_id
        FROM json_each(iif(json_valid(NEW.tags), NEW.tags, '{}')) WHERE json_each.type = 'text';
END;

-- Listings go by queued_at, which never changes. What changed last goes by updated_at, which moves with the row alone:
-- that of a running run stays while it is appended to.
CREATE INDEX runs_by_queued ON runs (queued_at, run_id);
CREATE INDEX runs_by_status ON runs (status, queued_at, run_id);
CREATE INDEX runs_by_kind ON runs (kind, queued_at, run_id);
CREATE INDEX runs_by_change ON runs (status, updated_at, run_id) WHERE parent_run_id IS NULL;
CREATE INDEX runs_by_parent ON runs (parent_run_id, queued_at, run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX effects_by_run ON effects (run_id);
CREATE INDEX unknowns_by_run ON unknowns (run_id);
CREATE INDEX lines_by_newest ON lines (newest);

-- What was there before has no rows yet: whoever opens the store next makes them.
INSERT INTO meta (key, value) SELECT 'index', 'stale' WHERE EXISTS (SELECT 1 FROM events);
