-- The external vector store and the progress of its synchronisation: see `engine/qdrant/index.py`.

-- name: vector_store
SELECT store, collection, upto FROM vector_store

-- name: use_vector_store
INSERT INTO vector_store ("only", store, collection, upto) VALUES (1, ?, '', 0) ON CONFLICT DO NOTHING

-- name: set_vector_store_progress
UPDATE vector_store SET collection = ?, upto = ?

-- name: delete_vector_store
DELETE FROM vector_store

-- name: reset_index
-- Makes the candidate index start again with the first text.
DELETE FROM searchable

-- name: next_vectors
SELECT id, seq, ns, body FROM vectors WHERE id > ? AND embedder = ? ORDER BY id LIMIT ?

-- name: vectors_of_versions
SELECT x.id, x.seq, x.ns, x.body FROM versions v JOIN vectors x ON x.ns = v.ns AND x.seq = v.seq
WHERE v.seq IN ({numbers}) AND x.embedder = ?

-- name: versions_with_vectors
-- Versions from a number on that have vectors, and the number of these vectors.
SELECT v.seq, x.id FROM versions v JOIN vectors x ON x.ns = v.ns AND x.seq = v.seq
WHERE v.seq >= ?1 AND v.seq < ?2 AND x.embedder = ?3 AND v.ended_at IS NULL ORDER BY v.seq LIMIT ?4

-- name: to_remove
SELECT seq FROM to_remove ORDER BY seq LIMIT ?

-- name: delete_removed
DELETE FROM to_remove WHERE seq IN ({numbers})

-- name: clear_to_remove
DELETE FROM to_remove

-- name: visible_of
-- Those of some versions that a scope shows.
SELECT v.seq FROM versions v
WHERE v.seq IN (SELECT CAST(value AS BIGINT) FROM json_array_elements_text(CAST(?4 AS JSON)))
  AND v.ns >= ?1 AND v.ns < ?2 AND v.ended_at IS NULL AND (v.expires_at IS NULL OR v.expires_at > ?3) AND {condition}

-- name: visible_texts
-- The first texts of a subtree that a scope shows.
SELECT v.seq FROM terms t JOIN versions v ON v.seq = t.seq
WHERE t.ns >= ?1 AND t.ns < ?2 AND v.ended_at IS NULL AND (v.expires_at IS NULL OR v.expires_at > ?3) AND {condition} LIMIT ?
