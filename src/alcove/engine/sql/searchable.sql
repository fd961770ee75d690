-- Statements of the candidate index that all databases share, and of the texts of large subtrees.

-- name: index_progress
SELECT embedder, dimensions, upto FROM searchable

-- name: next_vectors_to_index
-- Vectors of an embedder that were stored after a position, with their texts.
SELECT x.id, x.seq, v.index_text, x.body FROM vectors x {not_indexed} {in_order} JOIN versions v ON v.seq = x.seq
WHERE x.id > ? AND x.embedder = ? AND v.ended_at IS NULL ORDER BY x.id LIMIT ?

-- name: set_index_progress
INSERT INTO searchable ("only", embedder, dimensions, upto) VALUES (1, ?, ?, ?)
ON CONFLICT ("only") DO UPDATE SET embedder = excluded.embedder, dimensions = excluded.dimensions, upto = excluded.upto

-- name: indexed_count
-- Counts the indexed texts of a subtree, up to a limit and from the index alone.
SELECT count(*) FROM (SELECT 1 FROM terms WHERE ns >= ? AND ns < ? LIMIT ?) few

-- name: has_unindexed_texts
-- Whether any text is waiting for vectors, or any vectors are newer than the last indexed one of an embedder.
SELECT EXISTS (SELECT 1 FROM to_index)
    OR EXISTS (SELECT 1 FROM vectors WHERE id > coalesce((SELECT upto FROM searchable WHERE embedder = ?), 0))

-- name: unindexed_texts
-- Texts of a subtree whose vectors came after a position and are not in `terms` and `windows` yet; newest first.
SELECT v.seq FROM vectors x {not_indexed} {in_order} JOIN versions v ON v.seq = x.seq
WHERE x.id > ?3 AND x.ns >= ?1 AND x.ns < ?2 AND x.embedder = ?4 AND {condition} ORDER BY v.seq DESC LIMIT ?

-- name: queued_texts
-- Texts of a subtree that are waiting for vectors or are parked; newest first.
SELECT v.seq FROM to_index q {in_order} JOIN versions v ON v.seq = q.seq
WHERE v.ns >= ?1 AND v.ns < ?2 AND {condition} ORDER BY v.seq DESC LIMIT ?

-- name: texts_of
SELECT v.seq, v.ns, coalesce(v.original_at, v.created_at), v.expires_at, v.index_text, x.body FROM versions v {not_indexed}
LEFT JOIN vectors x ON x.ns = v.ns AND x.seq = v.seq AND x.embedder = ?4
WHERE v.seq IN ({numbers})
  AND v.ns >= ?1 AND v.ns < ?2 AND v.ended_at IS NULL AND (v.expires_at IS NULL OR v.expires_at > ?3)
  AND v.index_text IS NOT NULL AND {condition}
