-- Version 8: erasure that reaches what was left without a name, in an order that no clock can turn round.

-- Who wrote what a wipe left without its author, as a pseudonym: a later wipe can still take it away.
ALTER TABLE versions ADD COLUMN formerly TEXT;
CREATE INDEX anonymised ON versions (formerly) WHERE formerly IS NOT NULL;

-- How far the log was when these were made: when a wipe is done over again, it takes what was there then.
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
