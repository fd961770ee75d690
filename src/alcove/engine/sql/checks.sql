-- Checks of `alcove doctor` inside a store. Each check is two statements: the count of compared rows, and the
-- sequence numbers (or names) of those that are wrong.

-- name: the log runs forward in time
SELECT count(*) FROM versions;
SELECT seq FROM (SELECT seq, created_at, lag(created_at) OVER (ORDER BY seq) AS before FROM versions) each
WHERE created_at < before

-- name: the newest version of each key is the live one, or a tombstone
SELECT count(*) FROM (SELECT DISTINCT ns, key FROM versions) places;
SELECT seq FROM (
    SELECT seq, kind, ended_at, lead(seq) OVER (PARTITION BY ns, key ORDER BY revision) AS next FROM versions) each
WHERE (ended_at IS NULL AND (next IS NOT NULL OR kind IN ('delete', 'expired')))
   OR (ended_at IS NOT NULL AND next IS NULL AND kind IN ('add', 'update'))

-- name: each version ends when the next one begins
SELECT count(*) FROM versions WHERE ended_at IS NOT NULL;
SELECT seq FROM (
    SELECT seq, kind, revision, created_at, ended_at,
           lead(created_at) OVER w AS next, lead(revision) OVER w AS next_revision
    FROM versions WINDOW w AS (PARTITION BY ns, key ORDER BY revision)) each
WHERE (kind IN ('add', 'update') AND next_revision = revision + 1 AND ended_at IS DISTINCT FROM next)
   OR (kind IN ('delete', 'expired') AND ended_at IS DISTINCT FROM created_at)

-- name: revisions of a key count up in the order of the log
SELECT count(*) FROM versions;
SELECT seq FROM (
    SELECT seq, revision,
           lag(seq) OVER w AS seq_before, lag(revision) OVER w AS revision_before
    FROM versions WINDOW w AS (PARTITION BY ns, key ORDER BY revision)) each
WHERE seq <= seq_before OR revision < 1

-- name: an update follows something live, an add does not
SELECT count(*) FROM versions;
SELECT seq FROM (
    SELECT seq, kind, revision,
           lag(kind) OVER w AS before, lag(revision) OVER w AS revision_before
    FROM versions WINDOW w AS (PARTITION BY ns, key ORDER BY revision)) each
WHERE revision = revision_before + 1
  AND ((kind = 'add') = (before IN ('add', 'update')))

-- name: tombstones hold no content, and everything else does
SELECT count(*) FROM versions;
SELECT seq FROM versions WHERE (sealed IS NULL) != (kind IN ('delete', 'expired'))

-- name: the directory of namespaces matches the log
SELECT count(*) FROM namespaces;
SELECT ns FROM (SELECT ns, owner FROM namespaces EXCEPT SELECT ns, owner FROM versions) extra
UNION ALL
SELECT ns FROM (SELECT ns, owner FROM versions EXCEPT SELECT ns, owner FROM namespaces) missing

-- name: every value's data key exists
SELECT count(*) FROM data_keys;
SELECT seq FROM versions WHERE data_key IS NOT NULL AND data_key NOT IN (SELECT id FROM data_keys)
