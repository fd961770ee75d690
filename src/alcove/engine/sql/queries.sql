-- Reading and writing memories. `{columns}` are those of rows.Row; `{condition}` is a
-- predicate compiled by filters.py, with its own parameters bound after the numbered ones.

-- name: key_state
-- All that a write must know, in one statement: the last version of its key, live or not, whether its
-- namespace is known, and whether the data key that sealed it still exists.
SELECT seq, ns, key, revision, owner, attributes, coalesce(added_at, original_at, created_at), ended_at, expires_at,
       EXISTS (SELECT 1 FROM namespaces WHERE ns = ?1), EXISTS (SELECT 1 FROM data_keys WHERE id = ?3)
FROM (SELECT 1) one LEFT JOIN versions ON seq = (
    SELECT seq FROM versions WHERE ns = ?1 AND key = ?2 ORDER BY revision DESC LIMIT 1)

-- name: begin
-- What a transaction begins with: the newest document, and the time of the last version, which no later one may precede.
SELECT value, (SELECT created_at FROM versions ORDER BY seq DESC LIMIT 1) FROM marks WHERE name = 'documents'

-- name: set_savepoint
-- One submission of several operations, of which all are done or none.
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
-- Once more the time to live that it was written with.
UPDATE versions SET expires_at = ? + ttl WHERE seq = ? AND ttl IS NOT NULL

-- name: add_namespace
INSERT INTO namespaces (ns, owner) VALUES (?, ?) ON CONFLICT DO NOTHING

-- name: get
-- What is live at one key.
SELECT {columns} FROM versions v {by_live}
WHERE ns = ?1 AND key = ?2 AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?3)

-- name: read
-- The same, after the version of the newest document: one row, whose rest is empty where nothing is there.
SELECT value, {columns} FROM marks LEFT JOIN versions v {by_live}
ON ns = ?1 AND key = ?2 AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?3)
WHERE name = 'documents'

-- name: fingerprint
-- What only the same live rows have, of a namespace and of two keys elsewhere: see rows.Fingerprint.
SELECT (SELECT value FROM marks WHERE name = 'documents'), (SELECT coalesce(max(seq), 0) FROM versions),
       (SELECT id FROM versions {by_live}
        WHERE ns = ?3 AND key = ?4 AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?2)),
       (SELECT id FROM versions {by_live}
        WHERE ns = ?5 AND key = ?6 AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?2)),
       count(*), CAST(coalesce(sum(seq), 0) AS BIGINT), coalesce(max(created_at), 0)
FROM versions {by_live} WHERE ns = ?1 AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?2)

-- name: oldest_key
-- How many keys a namespace holds, which was written longest ago and whether one is among them, off the index alone.
SELECT count(*), min(seq), count(*) FILTER (WHERE key = ?2) FROM versions {by_live} WHERE ns = ?1 AND ended_at IS NULL

-- name: get_at
-- What was live at one key at a moment.
SELECT {columns} FROM versions v {by_history}
WHERE ns = ?1 AND key = ?2 AND created_at <= ?3
  AND (ended_at IS NULL OR ended_at > ?3) AND (expires_at IS NULL OR expires_at > ?3)

-- name: scan
-- What is live in a subtree, in order of namespace and key.
SELECT {columns} FROM versions v {by_live}
WHERE ns >= ? AND ns < ? AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?)
  AND {condition}
ORDER BY ns, key

-- name: scan_at
-- What was live in a subtree at a moment.
SELECT {columns} FROM versions v {by_history}
WHERE ns >= ? AND ns < ? AND created_at <= ?3
  AND (ended_at IS NULL OR ended_at > ?3) AND (expires_at IS NULL OR expires_at > ?3)
  AND {condition}
ORDER BY ns, key

-- name: history
SELECT {columns} FROM versions v WHERE ns = ? AND key = ? AND revision < ? ORDER BY revision DESC

-- name: namespaces
-- The namespaces of a subtree with something live in them that the caller may see; all of them or one owner's.
SELECT n.ns FROM namespaces n
WHERE {of_owner} n.ns >= ? AND n.ns < ? AND EXISTS (
    SELECT 1 FROM versions v {by_live}
    WHERE v.ns = n.ns AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?) AND {condition})
ORDER BY n.ns

-- name: owned_keys
-- What is live in a subtree in rooms that belong to one user, without one of these rooms: at the cost of those rooms.
SELECT v.seq, v.ns, v.key, v.revision, coalesce(v.original_at, v.created_at)
FROM namespaces n {by_owned} {in_order} JOIN versions v {by_live} ON v.ns = n.ns
WHERE n.owner = ? AND n.ns >= ? AND n.ns < ? AND n.ns != ? AND v.ended_at IS NULL
  AND (v.expires_at IS NULL OR v.expires_at > ?) AND {condition}

-- name: authored_keys
-- What is live in a subtree that one user wrote in rooms that do not belong to them. It is found by its author alone:
-- with another condition and no statistics, PostgreSQL would read an index of everybody's as well.
WITH v AS MATERIALIZED (
    SELECT seq, ns, key, revision, original_at, created_at, ended_at, expires_at, owner, "user", attributes
    FROM versions {by_authored} WHERE "user" = ? AND "user" IS DISTINCT FROM owner)
SELECT seq, ns, key, revision, coalesce(original_at, created_at) FROM v
WHERE v.ns >= ? AND v.ns < ? AND v.ended_at IS NULL AND (v.expires_at IS NULL OR v.expires_at > ?) AND {condition}

-- name: keys
-- What is live in a subtree.
SELECT v.seq, v.ns, v.key, v.revision, coalesce(v.original_at, v.created_at) FROM versions v {by_live}
WHERE v.ns >= ? AND v.ns < ? AND v.ended_at IS NULL AND (v.expires_at IS NULL OR v.expires_at > ?) AND {condition}

-- name: counts
-- Off the index alone where the caller sees everything: what has expired is known by an index of its own.
SELECT ns, count(*) FROM versions v {by_live}
WHERE ns >= ? AND ns < ? AND ended_at IS NULL
  AND seq NOT IN (SELECT seq FROM versions {by_expiring} WHERE ended_at IS NULL AND expires_at <= ?) AND {condition}
GROUP BY ns ORDER BY ns

-- name: scan_newest
-- Some of what is live in a subtree, what was written last first; each with its vectors by one embedder.
SELECT {columns}, (SELECT body FROM vectors x WHERE x.ns = v.ns AND x.seq = v.seq AND x.embedder = ?)
FROM versions v WHERE seq IN (
    SELECT seq FROM versions v {by_live}
    WHERE ns >= ? AND ns < ? AND ended_at IS NULL
      AND seq NOT IN (SELECT seq FROM versions {by_expiring} WHERE ended_at IS NULL AND expires_at <= ?)
      AND seq < ? AND {condition}
    ORDER BY seq DESC LIMIT ?)
ORDER BY seq DESC

-- name: activity
-- How often what happened on each day since one, of a subtree.
SELECT created_at / 86400000000, kind, count(*) FROM versions v
WHERE ns >= ? AND ns < ? AND created_at >= ? AND {condition} GROUP BY 1, 2 ORDER BY 1, 2

-- name: growth
-- By how much the rooms of a subtree in which most happened have grown on each day since one.
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
-- The same page, read from the subtree: its cost follows the subtree, not the store.
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
-- Live versions whose time has come.
SELECT seq FROM versions {by_expiring}
WHERE ended_at IS NULL AND expires_at <= ? ORDER BY expires_at LIMIT ?

-- name: aged
-- Live versions of a subtree that were written before a moment, wherever that was.
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
-- A namespace goes with its last version.
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
-- With a fourth parameter, only if nobody was wiped since there had been so many wipes.
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
-- What is live in a subtree after a place in it: a page that holds no snapshot open for a slow reader.
SELECT {columns} FROM versions v {by_live}
WHERE (ns, key) > (?, ?) AND ns < ? AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?)
  AND {condition}
ORDER BY ns, key LIMIT ?

-- name: count
SELECT count(*) FROM versions v {by_live}
WHERE ns >= ? AND ns < ? AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?) AND {condition}
