-- Version 1 of the schema. A released version file never changes, except its comments; add a new one instead.

-- The log, which is also the table: one row for each version of each memory.
CREATE TABLE versions (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,  -- commit order; never reused, also after a wipe
    id         BLOB    NOT NULL,                   -- UUID, part of what the sealed value is bound to
    ns         BLOB    NOT NULL,                   -- order-preserving encoding: a subtree is one range
    key        BLOB    NOT NULL,                   -- UTF-8
    kind       TEXT    NOT NULL CHECK (kind IN ('add', 'update', 'delete', 'expired')),
    revision   INTEGER NOT NULL,
    created_at INTEGER NOT NULL,                   -- microseconds; never runs backwards along seq
    ended_at   INTEGER,                            -- when a newer version took over; a tombstone's own time
    expires_at INTEGER,
    owner      TEXT,                               -- the user the namespace belongs to, if any
    user       TEXT,                               -- who wrote it
    client     TEXT,
    agent      TEXT,
    data_key   INTEGER,
    sealed     BLOB,                               -- AES-256-GCM; NULL in a tombstone
    attributes TEXT    NOT NULL,                   -- JSON, by the policy; kept in tombstones for its filters
    index_text TEXT                                -- JSON, by the caller
);

-- A key has at most one live version, and a range of this index is a live subtree.
CREATE UNIQUE INDEX live ON versions (ns, key) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX history ON versions (ns, key, revision);
CREATE INDEX expiring ON versions (expires_at) WHERE ended_at IS NULL AND expires_at IS NOT NULL;
CREATE INDEX ended ON versions (ended_at) WHERE ended_at IS NOT NULL;
-- What users wrote into rooms that are not their own.
CREATE INDEX authored ON versions (user) WHERE user IS NOT owner;

-- Every namespace that holds a version, and who owns it.
CREATE TABLE namespaces (
    ns    BLOB PRIMARY KEY,
    owner TEXT
) WITHOUT ROWID;
CREATE INDEX owned ON namespaces (owner) WHERE owner IS NOT NULL;

-- One data key for each subject, wrapped by the key-encryption key that `wrapped_by` identifies.
CREATE TABLE data_keys (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused: a destroyed key stays destroyed
    subject    TEXT NOT NULL UNIQUE,
    wrapped    BLOB NOT NULL,
    wrapped_by TEXT NOT NULL
);

-- Answers to requests with an idempotency key, sealed, stored for a day.
CREATE TABLE replays (
    user       TEXT    NOT NULL,
    token      BLOB    NOT NULL,
    created_at INTEGER NOT NULL,
    data_key   INTEGER NOT NULL,
    sealed     BLOB    NOT NULL,
    PRIMARY KEY (user, token)
) WITHOUT ROWID;
CREATE INDEX replays_by_age ON replays (created_at);

-- Counters that must survive the rows that they count.
CREATE TABLE marks (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO marks VALUES
    ('history_from', 0),   -- the earliest moment that is fully retained
    ('purged_seq', 0),     -- the highest sequence retention has removed
    ('wipes', 0),          -- wipes done
    ('scrubbed', 0);       -- the last wipe whose bytes are gone from the file
