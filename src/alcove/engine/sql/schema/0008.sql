-- Version 8: a wipe also reaches what an earlier wipe made anonymous, in an order that does not depend on the clock.

-- Who wrote what a wipe made anonymous, as a pseudonym: a later wipe can still remove it.
ALTER TABLE versions ADD COLUMN formerly TEXT;
CREATE INDEX anonymised ON versions (formerly) WHERE formerly IS NOT NULL;

-- The position in the log of each wipe: a wipe that is repeated after a restore removes what was there then.
INSERT INTO sqlite_sequence (name, seq)
SELECT 'versions', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'versions');
ALTER TABLE api_keys ADD COLUMN position INTEGER NOT NULL DEFAULT 0;
UPDATE api_keys SET position = (SELECT seq FROM sqlite_sequence WHERE name = 'versions');
ALTER TABLE replays ADD COLUMN position INTEGER NOT NULL DEFAULT 0;
UPDATE replays SET position = (SELECT seq FROM sqlite_sequence WHERE name = 'versions');

-- Templates of agents' private rooms: what users wrote below them before they had rooms of their own is theirs.
CREATE TABLE private_rooms (
    template TEXT PRIMARY KEY
) WITHOUT ROWID;
