-- Reading and writing memories. `{columns}` are those of rows.Row; `{condition}` is a
-- predicate compiled by filter_sql.py, whose parameters are bound after the numbered ones.

-- name: key_state
-- All that a write needs to know, in one statement: the last version of its key, live or not, whether its
-- namespace exists, and whether the data key that sealed it still exists.
SELECT seq, ns, key, revision, owner, attributes, coalesce(added_at, original_at, created_at), ended_at, expires_at,
       EXISTS (SELECT 1 FROM namespaces WHERE ns = ?1), EXISTS (SELECT 1 FROM data_keys WHERE id = ?3)
FROM (SELECT 1) one LEFT JOIN versions ON seq = (
    SELECT seq FROM versions WHERE ns = ?1 AND key = ?2 ORDER BY revision DESC LIMIT 1)

-- name: begin
-- A transaction reads this first: the newest document, and the time of the last version, which later ones must exceed.
SELECT value, (SELECT created_at FROM versions ORDER BY seq DESC LIMIT 1) FROM marks WHERE name = 'documents'

-- name: set_savepoint
-- For a submission of several operations, which are done together or not at all.
SAVEPOINT one

-- name: roll_back_to_savepoint
ROLLBACK TO one

-- name: release_savepoint
RELEASE one

-- name: end_version
UPDATE versions SET ended_at = ? WHERE seq = ?

-- name: set_expiry
UPDATE versions SET expires_at = ?, ttl = ? WHERE seq = ?

-- name: restart_ttl
-- Restarts the time to live with which it was written.
UPDATE versions SET expires_at = ? + ttl WHERE seq = ? AND ttl IS NOT NULL

-- name: add_namespace
INSERT INTO namespaces (ns, owner) VALUES (?, ?) ON CONFLICT DO NOTHING

-- name: get
-- The live version of a key.
SELECT {columns} FROM versions v {by_live}
WHERE ns = ?1 AND key = ?2 AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?3)

-- name: read
-- The same, after the version of the newest document: one row, with NULLs if the key has no live version.
SELECT value, {columns} FROM marks LEFT JOIN versions v {by_live}
ON ns = ?1 AND key = ?2 AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?3)
WHERE name = 'documents'

-- name: fingerprint
-- Values that change with the live rows of a namespace and of two other keys: see rows.Fingerprint.
SELECT (SELECT value FROM marks WHERE name = 'documents'), (SELECT coalesce(max(seq), 0) FROM versions),
       (SELECT id FROM versions {by_live}
        WHERE ns = ?3 AND key = ?4 AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?2)),
       (SELECT id FROM versions {by_live}
        WHERE ns = ?5 AND key = ?6 AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?2)),
       count(*), CAST(coalesce(sum(seq), 0) AS BIGINT), coalesce(max(created_at), 0)
FROM versions {by_live} WHERE ns = ?1 AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?2)

-- name: oldest_key
-- The count of keys in a namespace, the oldest of them, and whether a key is among them, from the index alone.
SELECT count(*), min(seq), count(*) FILTER (WHERE key = ?2) FROM versions {by_live} WHERE ns = ?1 AND ended_at IS NULL

-- name: get_at
-- The version of a key that was live at a moment.
SELECT {columns} FROM versions v {by_history}
WHERE ns = ?1 AND key = ?2 AND created_at <= ?3
  AND (ended_at IS NULL OR ended_at > ?3) AND (expires_at IS NULL OR expires_at > ?3)

-- name: scan
-- The live versions of a subtree, in order of namespace and key.
SELECT {columns} FROM versions v {by_live}
WHERE ns >= ? AND ns < ? AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?)
  AND {condition}
ORDER BY ns, key

-- name: scan_at
-- The versions of a subtree that were live at a moment.
SELECT {columns} FROM versions v {by_history}
WHERE ns >= ? AND ns < ? AND created_at <= ?3
  AND (ended_at IS NULL OR ended_at > ?3) AND (expires_at IS NULL OR expires_at > ?3)
  AND {condition}
ORDER BY ns, key

-- name: history
SELECT {columns} FROM versions v WHERE ns = ? AND key = ? AND revision < ? ORDER BY revision DESC

-- name: namespaces
-- The namespaces of a subtree with a live version that the caller may see; of all owners or of one.
SELECT n.ns FROM namespaces n
WHERE {of_owner} n.ns >= ? AND n.ns < ? AND EXISTS (
    SELECT 1 FROM versions v {by_live}
    WHERE v.ns = n.ns AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?) AND {condition})
ORDER BY n.ns

-- name: owned_keys
-- Live versions in one user's rooms of a subtree, except one room; the cost depends only on those rooms.
SELECT v.seq, v.ns, v.key, v.revision, coalesce(v.original_at, v.created_at)
FROM namespaces n {by_owned} {in_order} JOIN versions v {by_live} ON v.ns = n.ns
WHERE n.owner = ? AND n.ns >= ? AND n.ns < ? AND n.ns != ? AND v.ended_at IS NULL
  AND (v.expires_at IS NULL OR v.expires_at > ?) AND {condition}

-- name: authored_keys
-- Live versions of a subtree that one user wrote in rooms of others. The first part selects by author alone: with
-- another condition and no statistics, PostgreSQL would also read an index of all users' versions.
WITH v AS MATERIALIZED (
    SELECT seq, ns, key, revision, original_at, created_at, ended_at, expires_at, owner, "user", attributes
    FROM versions {by_authored} WHERE "user" = ? AND "user" IS DISTINCT FROM owner)
SELECT seq, ns, key, revision, coalesce(original_at, created_at) FROM v
WHERE v.ns >= ? AND v.ns < ? AND v.ended_at IS NULL AND (v.expires_at IS NULL OR v.expires_at > ?) AND {condition}

-- name: keys
-- The live versions of a subtree.
SELECT v.seq, v.ns, v.key, v.revision, coalesce(v.original_at, v.created_at) FROM versions v {by_live}
WHERE v.ns >= ? AND v.ns < ? AND v.ended_at IS NULL AND (v.expires_at IS NULL OR v.expires_at > ?) AND {condition}

-- name: counts
-- Reads only the index if the caller may see everything: expired versions have a separate index.
SELECT ns, count(*) FROM versions v {by_live}
WHERE ns >= ? AND ns < ? AND ended_at IS NULL
  AND seq NOT IN (SELECT seq FROM versions {by_expiring} WHERE ended_at IS NULL AND expires_at <= ?) AND {condition}
GROUP BY ns ORDER BY ns

-- name: scan_newest
-- Some live versions of a subtree, newest first, each with its vectors of one embedder.
SELECT {columns}, (SELECT body FROM vectors x WHERE x.ns = v.ns AND x.seq = v.seq AND x.embedder = ?)
FROM versions v WHERE seq IN (
    SELECT seq FROM versions v {by_live}
    WHERE ns >= ? AND ns < ? AND ended_at IS NULL
      AND seq NOT IN (SELECT seq FROM versions {by_expiring} WHERE ended_at IS NULL AND expires_at <= ?)
      AND seq < ? AND {condition}
    ORDER BY seq DESC LIMIT ?)
ORDER BY seq DESC

-- name: activity
-- Counts of a subtree's events by day and kind, since a moment.
SELECT created_at / 86400000000, kind, count(*) FROM versions v
WHERE ns >= ? AND ns < ? AND created_at >= ? AND {condition} GROUP BY 1, 2 ORDER BY 1, 2

-- name: growth
-- The daily growth of the busiest rooms of a subtree, since a moment.
WITH happened AS MATERIALIZED (
    SELECT ns, created_at / 86400000000 AS day,
           CASE kind WHEN 'add' THEN 1 WHEN 'update' THEN 0 ELSE -1 END AS more FROM versions v
    WHERE ns >= ? AND ns < ? AND created_at >= ? AND {condition})
SELECT ns, day, CAST(sum(more) AS BIGINT) FROM happened
WHERE ns IN (SELECT ns FROM happened GROUP BY ns ORDER BY count(*) DESC, ns LIMIT ?)
GROUP BY ns, day ORDER BY ns, day

-- name: last_seq
SELECT coalesce(max(seq), 0) FROM versions

-- name: events_by_seq
-- A page of the timeline, read along the log: for a position near its end.
SELECT {columns} FROM versions v {not_indexed}
WHERE seq > ? AND ns >= ? AND ns < ? AND {condition}
ORDER BY seq LIMIT ?

-- name: events_by_subtree
-- The same page, read from the subtree: its cost depends on the subtree, not on the store.
SELECT {columns} FROM versions WHERE seq IN (
    SELECT seq FROM versions v {by_history}
    WHERE seq > ? AND ns >= ? AND ns < ? AND {condition}
    ORDER BY seq LIMIT ?)
ORDER BY seq

-- name: mark
SELECT value FROM marks WHERE name = ?

-- name: set_mark
-- Marks only ever grow.
UPDATE marks SET value = ?1 WHERE name = ?2 AND value < ?1

-- name: due
-- Live versions that have expired.
SELECT seq FROM versions {by_expiring}
WHERE ended_at IS NULL AND expires_at <= ? ORDER BY expires_at LIMIT ?

-- name: aged
-- Live versions of a subtree that were written before a moment, in this store or, if imported, elsewhere.
SELECT seq FROM versions {by_live}
WHERE ended_at IS NULL AND ns >= ? AND ns < ? AND coalesce(original_at, created_at) < ? LIMIT ?

-- name: live_version
SELECT seq, ns, key, revision, owner, attributes FROM versions WHERE seq = ? AND ended_at IS NULL

-- name: purge
-- Versions that ended before a moment, oldest first.
DELETE FROM versions WHERE seq IN (
    SELECT seq FROM versions {by_ended}
    WHERE ended_at IS NOT NULL AND ended_at < ? ORDER BY ended_at, seq LIMIT ?)
RETURNING seq, ns

-- name: remove_empty_namespace
-- A namespace is removed with its last version.
DELETE FROM namespaces WHERE ns = ?1 AND NOT EXISTS (SELECT 1 FROM versions WHERE versions.ns = ?1)

-- name: stored_answer
SELECT data_key, sealed FROM replays WHERE "user" = ? AND token = ? AND created_at > ?

-- name: store_answer
INSERT INTO replays ("user", token, created_at, data_key, sealed, position) VALUES (?, ?, ?, ?, ?, {log_end})
ON CONFLICT ("user", token) DO UPDATE SET created_at = excluded.created_at, data_key = excluded.data_key,
                                        sealed = excluded.sealed, position = excluded.position

-- name: purge_stored_answers
DELETE FROM replays WHERE created_at <= ?

-- name: data_key_exists
SELECT 1 FROM data_keys WHERE id = ?

-- name: data_key_of
SELECT id, subject, wrapped, wrapped_by FROM data_keys WHERE subject = ?

-- name: data_key_by_id
SELECT id, subject, wrapped, wrapped_by FROM data_keys WHERE id = ?

-- name: data_keys
SELECT id, subject, wrapped, wrapped_by FROM data_keys WHERE wrapped_by IS DISTINCT FROM ? ORDER BY id LIMIT ?

-- name: add_data_key
-- With a fourth parameter, only if the count of wipes still equals it.
INSERT INTO data_keys (subject, wrapped, wrapped_by)
SELECT ?1, ?2, ?3 FROM marks WHERE name = 'wipes' AND (value = ?4 OR ?4 IS NULL) ON CONFLICT DO NOTHING

-- name: rewrap
UPDATE data_keys SET wrapped = ?, wrapped_by = ? WHERE id = ?

-- name: add_api_key
INSERT INTO api_keys (id, client, "user", roles, trusted, digest, created_at, position)
VALUES (?, ?, ?, ?, ?, ?, ?, {log_end})

-- name: api_key
SELECT id, client, "user", roles, trusted, created_at, digest FROM api_keys WHERE id = ?

-- name: api_keys
SELECT id, client, "user", roles, trusted, created_at, digest FROM api_keys ORDER BY created_at, id

-- name: remove_api_key
DELETE FROM api_keys WHERE id = ?

-- name: every_version
SELECT {columns} FROM versions v WHERE seq > ? ORDER BY seq LIMIT ?

-- name: versions
SELECT {columns} FROM versions v WHERE seq IN ({numbers}) ORDER BY seq

-- name: scan_page
-- A page of a subtree's live versions after a place in it; no snapshot stays open for a slow reader.
SELECT {columns} FROM versions v {by_live}
WHERE (ns, key) > (?, ?) AND ns < ? AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?)
  AND {condition}
ORDER BY ns, key LIMIT ?

-- name: count
SELECT count(*) FROM versions v {by_live}
WHERE ns >= ? AND ns < ? AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?) AND {condition}
