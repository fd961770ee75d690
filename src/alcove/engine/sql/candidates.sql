-- How PostgreSQL with pgvector finds candidates for a search by itself: see `engine/candidates.py`.

-- name: searchable
SELECT embedder, dimensions, upto FROM searchable

-- name: next_searchable
-- Vectors of an embedder that came after a position, with their texts.
SELECT x.id, x.seq, v.index_text, x.body FROM vectors x JOIN versions v ON v.seq = x.seq
WHERE x.id > ? AND x.embedder = ? AND v.ended_at IS NULL ORDER BY x.id LIMIT ?

-- name: reach_searchable
INSERT INTO searchable ("only", embedder, dimensions, upto) VALUES (1, ?, ?, ?)
ON CONFLICT ("only") DO UPDATE SET embedder = excluded.embedder, dimensions = excluded.dimensions, upto = excluded.upto

-- name: drop_windows
DROP TABLE IF EXISTS windows

-- name: make_windows
CREATE TABLE windows (
    seq       BIGINT NOT NULL REFERENCES terms ON DELETE CASCADE,
    ns        BYTEA  NOT NULL,
    embedding HALFVEC({dimensions}) NOT NULL)

-- name: windows_by_text
CREATE INDEX windows_of ON windows (seq)

-- name: windows_by_place
CREATE INDEX windows_in ON windows (ns)

-- name: windows_to_order
-- Whether there are so many windows that they are worth an index by meaning, and there is none that is whole.
SELECT count(*) > ?1 AND NOT EXISTS (
    SELECT 1 FROM pg_index WHERE indexrelid = to_regclass('windows_by_meaning') AND indisvalid)
FROM (SELECT 1 FROM windows LIMIT ?1 + 1) few

-- name: begin_to_order
-- One node at a time; what it holds goes with its connection.
SELECT pg_try_advisory_lock(?)

-- name: end_to_order
SELECT pg_advisory_unlock(?)

-- name: forget_order
-- What somebody left who did not come to an end.
DROP INDEX CONCURRENTLY IF EXISTS windows_by_meaning

-- name: order_windows
CREATE INDEX CONCURRENTLY windows_by_meaning ON windows USING hnsw (embedding halfvec_cosine_ops)

-- name: setting
SELECT current_setting(?)

-- name: set
SELECT set_config(?, ?, FALSE)

-- name: forget_terms
DELETE FROM terms WHERE seq IN ({numbers})

-- name: add_terms
INSERT INTO terms (seq, ns, terms)
SELECT seq, ns, ARRAY(SELECT CAST(value AS BIGINT) FROM json_array_elements_text(CAST(?2 AS JSON)))
FROM versions WHERE seq = ?1 AND ended_at IS NULL

-- name: add_window
INSERT INTO windows (seq, ns, embedding)
SELECT seq, ns, CAST(CAST(?2 AS TEXT) AS HALFVEC) FROM terms WHERE seq = ?1

-- name: searchable_up_to
-- How many texts of a subtree can be found, counted up to a number and off the index alone.
SELECT count(*) FROM (SELECT 1 FROM terms WHERE ns >= ? AND ns < ? LIMIT ?) few

-- name: sampled
-- About so many texts of a subtree, evenly from its order; with how many there are.
SELECT seq, every FROM (
    SELECT seq, row_number() OVER (ORDER BY ns, seq) AS place, count(*) OVER () AS every
    FROM terms WHERE ns >= ?1 AND ns < ?2) inside
WHERE place % greatest(every / CAST(?3 AS BIGINT), 1) = 0

-- name: unsearchable
-- Texts of a subtree that came after a position, of which `terms` and `windows` know nothing yet; newest first.
SELECT v.seq FROM vectors x JOIN versions v ON v.seq = x.seq
WHERE x.id > ?3 AND x.ns >= ?1 AND x.ns < ?2 AND x.embedder = ?4 AND {where} ORDER BY v.seq DESC LIMIT ?

-- name: queued
-- Texts of a subtree that wait for their vectors, or cannot get any; newest first.
SELECT v.seq FROM to_index q JOIN versions v ON v.seq = q.seq
WHERE v.ns >= ?1 AND v.ns < ?2 AND {where} ORDER BY v.seq DESC LIMIT ?

-- name: look_far
-- Goes on along the index by meaning until enough was found that may be seen. Left to itself, the planner takes a
-- policy's filter for one that hardly lets anything pass, and reads everything.
SELECT set_config('hnsw.iterative_scan', 'relaxed_order', TRUE), set_config('hnsw.ef_search', CAST(CAST(? AS BIGINT) AS TEXT), TRUE),
       set_config('enable_sort', CAST(? AS TEXT), TRUE)

-- name: nearest
SELECT w.seq, w.embedding <=> CAST(CAST(?4 AS TEXT) AS HALFVEC) AS distance FROM windows w JOIN versions v ON v.seq = w.seq
WHERE w.ns >= ?1 AND w.ns < ?2 AND v.ended_at IS NULL AND (v.expires_at IS NULL OR v.expires_at > ?3) AND {where}
ORDER BY distance LIMIT ?

-- name: nearest_of_few
-- The same without the index by meaning, for what is too small a part of it.
WITH inside AS MATERIALIZED (
    SELECT w.seq, w.embedding <=> CAST(CAST(?4 AS TEXT) AS HALFVEC) AS distance FROM windows w JOIN versions v ON v.seq = w.seq
    WHERE w.ns >= ?1 AND w.ns < ?2 AND v.ended_at IS NULL AND (v.expires_at IS NULL OR v.expires_at > ?3) AND {where})
SELECT seq, distance FROM inside ORDER BY distance LIMIT ?

-- name: holding
-- Texts that hold one of some terms, those first whose terms weigh most together.
WITH asked AS MATERIALIZED (
    SELECT CAST(value ->> 0 AS BIGINT) AS term, CAST(value ->> 1 AS DOUBLE PRECISION) AS weight
    FROM json_array_elements(CAST(?5 AS JSON))),
there AS MATERIALIZED (
    SELECT seq, terms FROM terms
    WHERE terms && ARRAY(SELECT CAST(value AS BIGINT) FROM json_array_elements_text(CAST(?4 AS JSON)))
      AND ns >= ?1 AND ns < ?2),
held AS MATERIALIZED (
    SELECT t.seq, t.terms FROM there t JOIN versions v ON v.seq = t.seq
    WHERE v.ended_at IS NULL AND (v.expires_at IS NULL OR v.expires_at > ?3) AND {where}
    LIMIT ?)
SELECT seq FROM held ORDER BY (SELECT sum(weight) FROM asked WHERE term = ANY (held.terms)) DESC, seq DESC LIMIT ?

-- name: texts_of
SELECT v.seq, v.ns, coalesce(v.original_at, v.created_at), v.expires_at, v.index_text, x.body FROM versions v
LEFT JOIN vectors x ON x.ns = v.ns AND x.seq = v.seq AND x.embedder = ?4
WHERE v.seq IN (SELECT CAST(value AS BIGINT) FROM json_array_elements_text(CAST(?5 AS JSON)))
  AND v.ns >= ?1 AND v.ns < ?2 AND v.ended_at IS NULL AND (v.expires_at IS NULL OR v.expires_at > ?3)
  AND v.index_text IS NOT NULL AND {where}
