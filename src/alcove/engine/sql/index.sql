-- Statements for indexing and searching. `{condition}` is a predicate compiled by filter_sql.py, and `{along}` says
-- which way to read: along the log from a position near its end, otherwise along the subtree.

-- name: serving
SELECT embedder FROM serving

-- name: set_serving
INSERT INTO serving ("only", embedder) VALUES (1, ?) ON CONFLICT ("only") DO UPDATE SET embedder = excluded.embedder

-- name: serve_first
INSERT INTO serving ("only", embedder) VALUES (1, ?) ON CONFLICT DO NOTHING

-- name: claim
-- Claims texts until a moment at which they are due again.
UPDATE to_index SET due = ?, tries = tries + 1 WHERE seq IN ({numbers})

-- name: pieces
SELECT body FROM pieces WHERE seq = ? ORDER BY id

-- name: next_piece
-- Puts a text back into the queue after one piece got its vectors, unless another process was faster.
UPDATE to_index SET due = 0, tries = 0, error = NULL, turn = turn + ?1, size = size - ?1,
                    at_field = ?2, at_window = ?3
WHERE seq = ?4 AND at_field = ?5 AND at_window = ?6

-- name: remove_from_queue
DELETE FROM to_index WHERE seq IN ({numbers})

-- name: postpone
UPDATE to_index SET due = ?, error = ?, tries = tries - ? WHERE seq = ?

-- name: retry
-- Each text gets a new turn, since the queue has advanced.
UPDATE to_index SET due = 0, tries = 0, error = NULL, turn = line.turn FROM (
    SELECT t.seq, value + sum(size) OVER (PARTITION BY writer ORDER BY t.seq) - size AS turn
    FROM to_index t CROSS JOIN marks WHERE name = 'turn') line
WHERE line.seq = to_index.seq AND (due IS NULL OR tries > 0)

-- name: queue_entry
SELECT error FROM to_index WHERE seq = ?

-- name: pending_counts
-- How many of some versions are waiting for their vectors, and how many are parked.
SELECT count(due), count(*) - count(due) FROM to_index WHERE seq IN ({numbers})

-- name: namespaces_of
SELECT ns FROM versions WHERE seq IN ({numbers})

-- name: next_due
SELECT min(due) FROM to_index {by_to_index_by_due} WHERE due IS NOT NULL

-- name: status
SELECT (SELECT count(*) FROM to_index WHERE due IS NOT NULL), (SELECT count(*) FROM to_index WHERE due IS NULL),
       (SELECT count(*) FROM vectors WHERE embedder = ?1),
       (SELECT min(created_at) FROM versions WHERE seq = (SELECT min(seq) FROM to_index WHERE due IS NOT NULL))

-- name: parked
SELECT v.ns, v.key, t.tries, coalesce(t.error, '') FROM to_index t JOIN versions v USING (seq)
WHERE t.due IS NULL ORDER BY t.seq LIMIT 100

-- name: texts_without_vectors
-- Live texts without vectors of an embedder, in order: at most ?3, and at most ?4 bytes unless the first one is larger.
SELECT seq, index_text FROM versions JOIN (
    SELECT seq, sum(size) OVER (ORDER BY seq) - size AS before FROM (
        SELECT seq, octet_length(index_text) AS size FROM versions v
        WHERE seq > ?2 AND ended_at IS NULL AND index_text IS NOT NULL
          AND NOT EXISTS (SELECT 1 FROM vectors x WHERE x.ns = v.ns AND x.seq = v.seq AND x.embedder = ?1)
        ORDER BY seq LIMIT ?3) few) counted USING (seq)
WHERE before < ?4 ORDER BY seq

-- name: newest_vectors
SELECT body FROM vectors WHERE embedder = ? ORDER BY id DESC LIMIT 1

-- name: drop_vectors
DELETE FROM vectors WHERE embedder = ?

-- name: drop_other_vectors
-- Also vectors of versions that are not live, which should not exist.
DELETE FROM vectors WHERE embedder != ?
    OR NOT EXISTS (SELECT 1 FROM versions v WHERE v.seq = vectors.seq AND v.ns = vectors.ns AND v.ended_at IS NULL)

-- name: empty_queue
DELETE FROM to_index

-- name: next_owned
-- The first namespace of a range that belongs to a user.
SELECT ns FROM namespaces {by_owned} WHERE owner = ? AND ns >= ? AND ns < ? ORDER BY ns LIMIT 1

-- name: added_texts
-- Live texts of a subtree that were written after a position, with their vectors if they have them.
SELECT v.seq, v.ns, coalesce(v.original_at, v.created_at), v.expires_at, v.index_text, x.body FROM versions v {along}
LEFT JOIN vectors x ON x.ns = v.ns AND x.seq = v.seq AND x.embedder = ?4
WHERE v.seq > ?3 AND v.ns >= ?1 AND v.ns < ?2 AND v.ended_at IS NULL AND v.index_text IS NOT NULL AND {condition}

-- name: superseded
-- The versions that were replaced by those after a position.
SELECT p.seq FROM versions v {along} {in_order} JOIN versions p {by_history}
ON p.ns = v.ns AND p.key = v.key AND p.revision = v.revision - 1
WHERE v.seq > ?3 AND v.ns >= ?1 AND v.ns < ?2

-- name: texts_with_new_vectors
-- Live texts of a subtree whose vectors were stored after a position.
SELECT v.seq, v.ns, coalesce(v.original_at, v.created_at), v.expires_at, v.index_text, x.body
FROM vectors x {along} {in_order} JOIN versions v USING (seq)
WHERE x.id > ?3 AND x.ns >= ?1 AND x.ns < ?2 AND x.embedder = ?4 AND v.ended_at IS NULL AND {condition}

-- name: live
-- Reads only the index; includes versions without a text.
SELECT seq FROM versions {by_live} WHERE ns >= ? AND ns < ? AND ended_at IS NULL

-- name: live_count
-- Counts the live versions of a subtree, up to a limit and from the index alone.
SELECT count(*) FROM (SELECT 1 FROM versions {by_live} WHERE ns >= ? AND ns < ? AND ended_at IS NULL LIMIT ?) few

-- name: rows_without_text
-- Versions without a text among the first ?3 live ones of a subtree.
SELECT {columns} FROM versions v WHERE seq IN (
    SELECT seq FROM versions {by_live} WHERE ns >= ?1 AND ns < ?2 AND ended_at IS NULL LIMIT ?3)
  AND index_text IS NULL AND (expires_at IS NULL OR expires_at > ?4) AND {condition}

-- name: expiring
-- The new expiry of each version of a subtree whose expiry changed after a position.
SELECT v.seq, v.expires_at FROM touches t {in_order} JOIN versions v USING (seq)
WHERE t.id > ?3 AND v.ns >= ?1 AND v.ns < ?2

-- name: matching_texts
-- The texts of a subtree after a position that match a filter.
SELECT seq FROM versions v {by_live}
WHERE ns >= ? AND ns < ? AND seq > ? AND ended_at IS NULL AND index_text IS NOT NULL AND {condition}
