-- Version 9: stores the TTL that a memory was written with, and since when its key has had a live version.
ALTER TABLE versions ADD COLUMN ttl INTEGER;       -- from its write, or the last touch; NULL where it was to live for ever
ALTER TABLE versions ADD COLUMN added_at INTEGER;  -- NULL for the first of its key: that is when it was written itself
UPDATE versions SET ttl = expires_at - created_at WHERE expires_at > created_at AND ended_at IS NULL;
UPDATE versions SET added_at = (
    SELECT coalesce(a.original_at, a.created_at) FROM versions a
    WHERE a.ns = versions.ns AND a.key = versions.key AND a.kind = 'add' AND a.revision < versions.revision
    ORDER BY a.revision DESC LIMIT 1)
WHERE ended_at IS NULL AND kind = 'update';
