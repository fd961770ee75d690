-- Version 3: what operators need. No column names a user who can be wiped except `actor`, which a wipe clears.
CREATE TABLE audit (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    at      INTEGER NOT NULL,
    actor   TEXT,               -- who did it
    action  TEXT    NOT NULL,
    subject TEXT,               -- the pseudonym of whom it was done to
    details TEXT    NOT NULL    -- JSON, without content
);
CREATE INDEX audit_by_actor ON audit (actor) WHERE actor IS NOT NULL;
CREATE INDEX audit_by_subject ON audit (subject) WHERE subject IS NOT NULL;

-- Policies and settings that were put at run time: all versions; the newest one is active.
CREATE TABLE documents (
    version INTEGER PRIMARY KEY AUTOINCREMENT,
    kind    TEXT    NOT NULL CHECK (kind IN ('policies', 'settings')),
    at      INTEGER NOT NULL,
    actor   TEXT,
    body    TEXT    NOT NULL    -- JSON
);
INSERT INTO marks VALUES ('documents', 0);  -- the newest version of either kind
