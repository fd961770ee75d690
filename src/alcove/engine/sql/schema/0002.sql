-- Version 2: API keys, stored as hashes; revoking one deletes it.
CREATE TABLE api_keys (
    id         TEXT    PRIMARY KEY,
    client     TEXT    NOT NULL,
    user       TEXT,                -- whom it acts for; NULL for a trusted key that names the user itself
    roles      TEXT    NOT NULL,    -- separated by spaces
    trusted    INTEGER NOT NULL,
    digest     BLOB    NOT NULL,
    created_at INTEGER NOT NULL
) WITHOUT ROWID;
